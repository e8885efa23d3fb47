/* sequence.c: reads a trace as a sequence. Uses recording.c and numbering.c. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "defrag/trace/recording.h"

static zr_result take(void *state, const struct zr_record *record, bool *stop)
{
    (void)stop;
    return zr_numbering_take(state, record);
}

zr_result zr_sequence_read_settings(struct zr_sequence *out, const struct zr_read_options *options,
                                    zr_arena *host_arena, struct zr_torch_settings *settings)
{
    struct zr_recording recording;
    struct zr_numbering numbering;
    *out = (struct zr_sequence){0};
    zr_numbering_init(&numbering, options->path, host_arena);
    zr_result result = zr_recording_open(&recording, options, true, host_arena);
    if (result == ZR_OK)
        result = zr_recording_play(&recording, &(struct zr_recording_sink){take, &numbering});
    if (result == ZR_OK && numbering.blocks_count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", options->path);
    if (result == ZR_OK) {
        *out = zr_numbering_sequence(&numbering);
        out->format = recording.format;
        numbering.events.items = NULL;
    }
    out->cut_short = recording.cut_short;
    *settings = recording.settings;
    zr_recording_close(&recording);
    zr_numbering_end(&numbering);
    return result;
}

zr_result zr_sequence_read(struct zr_sequence *out, const struct zr_read_options *options,
                           zr_arena *host_arena)
{
    struct zr_read_options own;
    struct zr_torch_settings settings;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a sequence requires an output pointer");
    *out = (struct zr_sequence){0};
    zr_result result = ZR_STRUCT_COPY(zr_read_options, device, &own, options);
    if (result != ZR_OK)
        return result;
    if (!own.path || !host_arena)
        return zr_fail(ZR_ERR_INVALID, "a sequence requires a file name and an arena for its records");
    return zr_sequence_read_settings(out, &own, host_arena, &settings);
}

void zr_sequence_end(struct zr_sequence *sequence)
{
    if (!sequence)
        return;
    if (sequence->events)
        zr_arena_free(sequence->host_arena, sequence->events);
    *sequence = (struct zr_sequence){0};
}
