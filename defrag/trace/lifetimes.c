/* lifetimes.c: makes lifetimes of a sequence or a MiniMalloc CSV, and computes their lower bound. Uses the
 * arena, minimalloc.h and sort.h. */
#include "defrag/trace/lifetimes.h"

#include <inttypes.h>
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/formats/minimalloc.h"
#include "alloc/base/sort.h"
#include "defrag/trace/vector.h"

/* ---- The lower bound ----------------------------------------------------------------------------------- */

static zr_result check_buffers(const struct zr_lifetimes *lifetimes)
{
    uint64_t sum_bytes = 0;
    if (lifetimes->count > ZR_LIFETIMES_MAX)
        return zr_fail(ZR_ERR_INVALID, "%zu buffers; %zu are the most", lifetimes->count, ZR_LIFETIMES_MAX);
    for (size_t i = 0; i < lifetimes->count; i++) {
        const struct zr_buffer *buffer = &lifetimes->buffers[i];
        if (buffer->lower > buffer->upper)
            return zr_fail(ZR_ERR_INVALID,
                           "buffer %" PRIu64 " ends at %" PRIu64 ", before it begins at %" PRIu64, buffer->id,
                           buffer->upper, buffer->lower);
        if (lifetimes->period > 0 &&
            (buffer->lower >= lifetimes->period || buffer->upper - buffer->lower > lifetimes->period))
            return zr_fail(ZR_ERR_INVALID,
                           "buffer %" PRIu64 " is alive from %" PRIu64 " to %" PRIu64
                           " in a period of %" PRIu64,
                           buffer->id, buffer->lower, buffer->upper, lifetimes->period);
        if (buffer->bytes > ZR_LIFETIMES_MAX_BYTES - sum_bytes)
            return zr_fail(ZR_ERR_INVALID,
                           "with buffer %" PRIu64 " of %" PRIu64 " bytes the sum of all passes 2^62 bytes",
                           buffer->id, buffer->bytes);
        sum_bytes += buffer->bytes;
    }
    return ZR_OK;
}

zr_result zr_lifetimes_sweep(struct zr_lifetimes_sweep *out, const struct zr_lifetimes *lifetimes,
                             struct zr_scratch *scratch)
{
    struct zr_sort_pair *ends = zr_scratch_take(scratch, 2 * lifetimes->count, sizeof *ends);
    struct zr_sort_pair *spare = zr_scratch_take(scratch, 2 * lifetimes->count, sizeof *spare);
    *out = (struct zr_lifetimes_sweep){.ends = ends};
    if (scratch->result)
        return scratch->result;
    /* Deaths first: the stable sort keeps them first at equal times. */
    for (unsigned born = 0; born < 2; born++)
        for (size_t i = 0; i < lifetimes->count; i++) {
            const struct zr_buffer *buffer = &lifetimes->buffers[i];
            uint64_t time = born ? buffer->lower : buffer->upper;
            if (buffer->bytes == 0 || buffer->lower == buffer->upper)
                continue;
            if (!born && lifetimes->period > 0 && time > lifetimes->period) {
                time -= lifetimes->period;
                out->crossing_bytes += buffer->bytes;
            }
            ends[out->count++] = (struct zr_sort_pair){time, (uint32_t)i << 1 | born};
        }
    zr_sort_pairs(ends, spare, out->count);
    uint64_t live_bytes = out->crossing_bytes, least_bytes = live_bytes;
    for (size_t e = 0; e < out->count; e++) {
        if (live_bytes < least_bytes) {
            least_bytes = live_bytes;
            out->least_at = e;
        }
        uint64_t bytes = lifetimes->buffers[ends[e].value >> 1].bytes;
        live_bytes = ends[e].value & 1 ? live_bytes + bytes : live_bytes - bytes;
        out->peak_bytes = live_bytes > out->peak_bytes ? live_bytes : out->peak_bytes;
    }
    zr_assert(live_bytes == out->crossing_bytes);
    return ZR_OK;
}

zr_result zr_lifetimes_measure(struct zr_lifetimes *lifetimes)
{
    struct zr_scratch scratch = {.arena = lifetimes->host_arena};
    struct zr_lifetimes_sweep sweep;

    zr_result result = check_buffers(lifetimes);
    if (!result)
        result = zr_lifetimes_sweep(&sweep, lifetimes, &scratch);
    if (!result)
        lifetimes->lower_bound_bytes = sweep.peak_bytes;
    zr_scratch_end(&scratch);
    return result;
}

/* ---- Births and deaths --------------------------------------------------------------------------------- */

static zr_result take_buffers(struct zr_lifetimes *out, size_t count, zr_arena *host_arena)
{
    *out = (struct zr_lifetimes){.count = count, .host_arena = host_arena};
    if (count > ZR_LIFETIMES_MAX)
        return zr_fail(ZR_ERR_INVALID, "%zu buffers; %zu are the most", count, ZR_LIFETIMES_MAX);
    struct zr_request request = {.bytes = (count ? count : 1) * sizeof *out->buffers, .tag = ZR_TAG_OTHER};
    void *block;
    zr_result result = zr_arena_alloc(host_arena, &request, &block);
    if (result) {
        *out = (struct zr_lifetimes){0};
        return result;
    }
    memset(block, 0, request.bytes);
    out->buffers = block;
    return ZR_OK;
}

void zr_lifetimes_end(struct zr_lifetimes *lifetimes)
{
    if (lifetimes && lifetimes->buffers)
        zr_arena_free(lifetimes->host_arena, lifetimes->buffers);
    if (lifetimes)
        *lifetimes = (struct zr_lifetimes){0};
}

/* A block may be allocated once and freed once; any other sequence is invalid. */
static zr_result follow_events(struct zr_lifetimes *out, const struct zr_sequence *sequence)
{
    for (size_t i = 0; i < sequence->events_count; i++) {
        const struct zr_event *event = &sequence->events[i];
        if (event->kind == ZR_EVENT_MARK)
            continue;
        if (event->block >= sequence->blocks_count)
            return zr_fail(ZR_ERR_INVALID, "event %zu names block %" PRIu32 " of %" PRIu32, i, event->block,
                           sequence->blocks_count);
        struct zr_buffer *buffer = &out->buffers[event->block];
        bool begun = buffer->upper != 0;
        if (event->kind == ZR_EVENT_ALLOC && !begun) {
            *buffer = (struct zr_buffer){
                .lower = i, .upper = sequence->events_count, .bytes = event->bytes, .id = event->block};
        } else if (event->kind == ZR_EVENT_FREE && begun && buffer->upper == sequence->events_count) {
            buffer->upper = i;
        } else {
            return zr_fail(ZR_ERR_INVALID, "event %zu %s block %" PRIu32 " %s", i,
                           event->kind == ZR_EVENT_ALLOC ? "allocates" : "frees", event->block,
                           event->kind == ZR_EVENT_ALLOC || begun ? "a second time"
                                                                  : "before its allocation");
        }
    }
    return ZR_OK;
}

zr_result zr_lifetimes_of(struct zr_lifetimes *out, const struct zr_sequence *sequence, zr_arena *host_arena)
{
    zr_result result = take_buffers(out, sequence->blocks_count, host_arena);
    if (result)
        return result;
    result = follow_events(out, sequence);
    if (!result)
        result = zr_lifetimes_measure(out);
    if (result)
        zr_lifetimes_end(out);
    return result;
}

/* ---- MiniMalloc CSV ------------------------------------------------------------------------------------ */

static zr_result read_rows(struct zr_minimalloc *reader, struct zr_vector *buffers)
{
    struct zr_minimalloc_row row;
    bool more;
    for (;;) {
        zr_result result = zr_minimalloc_next(reader, &row, &more);
        if (result || !more)
            return result;
        struct zr_buffer buffer = {.lower = row.lower, .upper = row.upper, .bytes = row.bytes, .id = row.id};
        result = zr_vector_add(buffers, &buffer);
        if (result)
            return result;
    }
}

zr_result zr_lifetimes_read(struct zr_lifetimes *out, const char *path, zr_arena *host_arena)
{
    struct zr_minimalloc reader;
    struct zr_vector buffers;

    *out = (struct zr_lifetimes){0};
    zr_vector_init(&buffers, host_arena, sizeof(struct zr_buffer));
    zr_result result = zr_minimalloc_open(&reader, path);
    if (result)
        return result;
    result = read_rows(&reader, &buffers);
    zr_minimalloc_close(&reader);
    *out = (struct zr_lifetimes){.buffers = buffers.items, .count = buffers.count, .host_arena = host_arena};
    if (!result)
        result = zr_lifetimes_measure(out);
    if (result == ZR_ERR_INVALID)
        result = zr_fail(ZR_ERR_FORMAT,
                         "'%s' has too many buffers or too large ones: their sum passes 2^62 bytes", path);
    if (result)
        zr_lifetimes_end(out);
    return result;
}
