/* sequence.c: detects the format of a trace by its content and calls its reader: zrt.c, torch_snapshot.c,
 * rmm.c, minimalloc.c, events_csv.c. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/struct_bytes.h"
#include "defrag/trace/formats/events_csv.h"
#include "defrag/trace/formats/minimalloc.h"
#include "defrag/trace/raw_trace.h"
#include "defrag/trace/formats/zrt.h"

/* ---- .zrt ---------------------------------------------------------------------------------------------- */

/* Takes the events of a .zrt that are requests of the program. */
static zr_result take(struct zr_raw_trace *trace, const struct zrt_event *event)
{
    struct zr_raw_event raw = {.address = event->offset_bytes,
                               .bytes = event->bytes,
                               .stream = event->stream,
                               .thread = event->thread,
                               .tag = (uint8_t)event->tag};
    switch (event->kind) {
    case ZRT_ALLOC:
        raw.kind = ZR_EVENT_ALLOC;
        break;
    case ZRT_FREE:
        if (event->asked)
            return ZR_OK;
        raw.kind = ZR_EVENT_FREE;
        break;
    case ZRT_MARK:
        raw.kind = ZR_EVENT_MARK;
        raw.tag = ZR_TAG_OTHER;
        break;
    case ZRT_BEGIN:
        trace->preface_count = trace->events.count;
        return ZR_OK;
    default:
        return ZR_OK;
    }
    return zr_vector_add(&trace->events, &raw);
}

zr_result zr_zrt_sequence(struct zr_raw_trace *trace, const struct zr_read_options *options)
{
    struct zrt_event event;
    struct zrt_reader *reader; /* 64 KiB */
    void *room;
    bool more = true;
    zr_result result = zr_arena_alloc(
        trace->events.arena, &(struct zr_request){.bytes = sizeof *reader, .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    reader = room;
    trace->whole = true;
    result = zrt_open(reader, options->path);
    if (result != ZR_OK)
        goto unwind;
    while (result == ZR_OK && (result = zrt_next(reader, &event, &more)) == ZR_OK && more)
        result = take(trace, &event);
    trace->cut_short = reader->cut_short;
    zrt_close(reader);
unwind:
    zr_arena_free(trace->events.arena, room);
    return result == ZR_ERR_CORRUPT ? ZR_ERR_FORMAT : result;
}

/* ---- Detection ----------------------------------------------------------------------------------------- */

struct format {
    const char *name;
    zr_result (*read)(struct zr_raw_trace *trace, const struct zr_read_options *options);
};

/* Detects the format by the first bytes, which are zero-terminated; NULL: unknown. */
static const struct format *recognise(const char *head, size_t bytes)
{
    static const struct format zrt = {"zrt", zr_zrt_sequence}, torch = {"torch", zr_torch_sequence},
                               rmm = {"rmm", zr_rmm_sequence},
                               minimalloc = {"minimalloc", zr_minimalloc_sequence},
                               csv = {"csv", zr_events_csv_sequence};
    if (bytes >= 4 && memcmp(head, ZRT_MAGIC, 4) == 0)
        return &zrt;
    if (bytes >= 2 && (unsigned char)head[0] == 0x80)
        return &torch;
    if (bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0)
        head += 3;
    head += strspn(head, "\r\n");
    return zr_rmm_is(head)          ? &rmm
           : zr_minimalloc_is(head) ? &minimalloc
           : zr_events_csv_is(head) ? &csv
                                    : NULL;
}

static zr_result find_format(const char *path, const struct format **out)
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
    *out = recognise(head, got);
    if (!*out)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' is %s: neither a .zrt trace, nor a PyTorch snapshot (pickle), nor an RMM log "
            "(Thread,Time,Action,..), nor a MiniMalloc CSV (id,lower,upper,size), nor a CSV of events "
            "(event,address,bytes,..)",
            path, got ? "of an unknown format" : "empty");
    return ZR_OK;
}

zr_result zr_trace_format(const char *path, const char **name)
{
    const struct format *format = NULL;
    zr_result result = find_format(path, &format);
    *name = result == ZR_OK ? format->name : NULL;
    return result;
}

zr_result zr_sequence_read(struct zr_sequence *out, const struct zr_read_options *options,
                           zr_arena *host_arena)
{
    struct zr_read_options own;
    const struct format *format = NULL;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a sequence requires an output pointer");
    *out = (struct zr_sequence){0};
    zr_result result = ZR_STRUCT_COPY(zr_read_options, device, &own, options);
    if (result != ZR_OK)
        return result;
    options = &own;
    if (!options->path || !host_arena)
        return zr_fail(ZR_ERR_INVALID, "a sequence requires a file name and an arena for its records");
    result = find_format(options->path, &format);
    if (result != ZR_OK)
        return result;
    struct zr_raw_trace trace = {.format = format->name, .path = options->path};
    zr_vector_init(&trace.events, host_arena, sizeof(struct zr_raw_event));
    zr_vector_init(&trace.blocks, host_arena, sizeof(struct zr_raw_block));
    result = format->read(&trace, options);
    if (result == ZR_OK)
        result = zr_raw_trace_sequence(out, &trace);
    out->cut_short = trace.cut_short;
    zr_vector_end(&trace.blocks);
    zr_vector_end(&trace.events);
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
