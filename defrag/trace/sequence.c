/* sequence.c: detects the format of a trace by its content; reads a trace as a sequence. Uses recording.c and
 * numbering.c. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/struct_bytes.h"
#include "defrag/trace/formats/events_csv.h"
#include "defrag/trace/formats/minimalloc.h"
#include "defrag/trace/formats/rmm.h"
#include "defrag/trace/formats/zrt.h"
#include "defrag/trace/numbering.h"

/* ---- Detection ----------------------------------------------------------------------------------------- */

/* Detects the format by the first bytes, which are zero-terminated. False: unknown. */
static bool recognise(const char *head, size_t bytes, enum zr_recording_kind *out)
{
    bool zrt = bytes >= 4 && memcmp(head, ZRT_MAGIC, 4) == 0;
    bool torch = bytes >= 2 && (unsigned char)head[0] == 0x80;
    if (bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0)
        head += 3;
    head += strspn(head, "\r\n");
    *out = zrt                      ? ZR_RECORDING_ZRT
           : torch                  ? ZR_RECORDING_TORCH
           : zr_rmm_is(head)        ? ZR_RECORDING_RMM
           : zr_minimalloc_is(head) ? ZR_RECORDING_MINIMALLOC
                                    : ZR_RECORDING_CSV;
    return *out != ZR_RECORDING_CSV || zr_events_csv_is(head);
}

zr_result zr_trace_format(const char *path, enum zr_recording_kind *out)
{
    struct zr_file file;
    char head[512];
    size_t got = 0;
    enum zr_path_kind kind;
    /* Opening a pipe would wait for its writer, and detection would consume its data. */
    zr_result result = zr_path_kind_get(path, &kind);
    if (result == ZR_OK && kind == ZR_PATH_OTHER)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' is no ordinary file, and traces are read more than once; save it to one", path);
    if (result == ZR_OK)
        result = zr_file_open(&file, path);
    if (result != ZR_OK)
        return result;
    result = zr_file_read(&file, head, sizeof head - 1, &got);
    zr_file_close(&file);
    if (result != ZR_OK)
        return result;
    head[got] = '\0';
    if (!recognise(head, got, out))
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is %s: neither a .zrt trace, nor a PyTorch snapshot (pickle), nor an RMM log "
            "(Thread,Time,Action,..), nor a MiniMalloc CSV (id,lower,upper,size), nor a CSV of events "
            "(event,address,bytes,..)",
            path, got ? "of an unknown format" : "empty");
    return ZR_OK;
}

/* ---- Sequences ----------------------------------------------------------------------------------------- */

static zr_result take(void *state, const struct zr_record *record, bool *stop)
{
    (void)stop;
    return zr_numbering_take(state, record);
}

zr_result zr_sequence_read(struct zr_sequence *out, const struct zr_read_options *options,
                           zr_arena *host_arena)
{
    struct zr_read_options own;
    struct zr_recording recording;
    struct zr_numbering numbering;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a sequence requires an output pointer");
    *out = (struct zr_sequence){0};
    zr_result result = ZR_STRUCT_COPY(zr_read_options, device, &own, options);
    if (result != ZR_OK)
        return result;
    if (!own.path || !host_arena)
        return zr_fail(ZR_ERR_INVALID, "a sequence requires a file name and an arena for its records");
    zr_numbering_init(&numbering, own.path, host_arena);
    result = zr_recording_open(&recording, &own, true, host_arena);
    if (result == ZR_OK)
        result = zr_recording_play(&recording, &(struct zr_recording_sink){take, &numbering});
    if (result == ZR_OK && numbering.blocks_count == 0)
        result = zr_fail(ZR_ERR_FORMAT, "'%s' contains no allocation", own.path);
    if (result == ZR_OK) {
        *out = zr_numbering_sequence(&numbering);
        out->format = recording.format;
        numbering.events.items = NULL;
    }
    out->cut_short = recording.cut_short;
    zr_recording_close(&recording);
    zr_numbering_end(&numbering);
    return result;
}

void zr_sequence_end(struct zr_sequence *sequence)
{
    if (!sequence)
        return;
    if (sequence->events)
        zr_arena_free(sequence->host_arena, sequence->events);
    *sequence = (struct zr_sequence){0};
}
