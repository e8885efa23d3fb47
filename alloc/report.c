/* report.c: why there is no memory, in words for the person who has to do something about it. Walks the
 * spans: slow, and only on failure. Stands on space.c. */
#include "alloc/arena_internal.h"

#include <stdio.h>
#include <string.h>

#include "alloc/error.h"

struct survey {
    size_t largest_bytes; /* free and mapped, in one piece */
    size_t free_bytes;    /* free and mapped */
    size_t holes_count;
    size_t pinned_bytes[ZR_TAG_COUNT]; /* free bytes next to blocks of the tag, halved between both sides */
};

static void pin(struct survey *survey, const struct zr_span *neighbour, size_t bytes)
{
    if (neighbour && neighbour->kind == ZR_SPAN_BLOCK)
        survey->pinned_bytes[neighbour->tag] += bytes;
}

/* The mapped bytes of a gap; *largest_bytes grows to the longest mapped run in it. */
static size_t survey_gap(const struct zr_arena *arena, const struct zr_span *gap, size_t *largest_bytes)
{
    size_t granule = arena->granule_bytes, total = 0, end = zr_span_end(gap) / granule + 1;
    if (end > arena->zones[gap->zone].mapped_end)
        end = arena->zones[gap->zone].mapped_end;
    for (size_t first = gap->offset_bytes / granule, after; first < end; first = after) {
        first = zr_granules_next(arena->granules, first, end, true);
        after = zr_granules_next(arena->granules, first, end, false);
        if (first >= end)
            break;
        size_t low = first * granule, high = after * granule;
        low = low < gap->offset_bytes ? gap->offset_bytes : low;
        high = high > zr_span_end(gap) ? zr_span_end(gap) : high;
        if (high <= low)
            continue;
        total += high - low;
        if (high - low > *largest_bytes)
            *largest_bytes = high - low;
    }
    return total;
}

static void take_survey(const struct zr_arena *arena, struct survey *out)
{
    memset(out, 0, sizeof *out);
    for (const struct zr_span *span = arena->first; span; span = span->next) {
        size_t bytes = span->kind == ZR_SPAN_GAP ? survey_gap(arena, span, &out->largest_bytes) : 0;
        if (bytes == 0)
            continue;
        out->free_bytes += bytes;
        out->holes_count++;
        pin(out, span->previous, bytes / 2);
        pin(out, span->next, bytes / 2);
    }
}

static unsigned largest_of(const size_t *bytes)
{
    unsigned best = 0;
    for (unsigned tag = 1; tag < ZR_TAG_COUNT; tag++)
        if (bytes[tag] > bytes[best])
            best = tag;
    return best;
}

/* "1.50 GB" */
struct amount {
    char text[24];
};

static struct amount amount(size_t bytes)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
    struct amount out;
    double number = (double)bytes;
    unsigned unit = 0;
    while (number >= 1000 && unit < 5) {
        number /= 1000;
        unit++;
    }
    snprintf(out.text, sizeof out.text, unit ? "%.2f %s" : "%.0f %s", number, units[unit]);
    return out;
}

zr_result zr_report_exhausted(struct zr_arena *arena, zr_result result, const struct zr_request *request)
{
    struct survey survey;
    char cause[320];
    if (result != ZR_ERR_MEMORY && result != ZR_ERR_ADDRESSES)
        return result;
    snprintf(cause, sizeof cause, "%s", zr_last_error());
    zr_arena_settle(arena);
    take_survey(arena, &survey);
    size_t idle_bytes = survey.free_bytes + arena->stock.bytes;
    bool fragmented = idle_bytes >= request->bytes;
    unsigned pinning = largest_of(survey.pinned_bytes), living = largest_of(arena->live_by_tag_bytes);
    char pins[128] = "";
    if (survey.free_bytes > 0)
        snprintf(pins, sizeof pins, ", %s of it between blocks of %s",
                 amount(survey.pinned_bytes[pinning]).text, zr_tag_name((zr_tag)pinning));
    return zr_fail(
        result,
        "arena \"%s\" has no %s for %s: %s. %s live (%s of it %s), %s free in %zu holes, the largest "
        "%s%s. Cause: %s. What would help: %s",
        arena->name, amount(request->bytes).text, zr_tag_name(request->tag),
        fragmented ? "fragmentation" : "shortage", amount(arena->live_bytes).text,
        amount(arena->live_by_tag_bytes[living]).text, zr_tag_name((zr_tag)living), amount(idle_bytes).text,
        survey.holes_count, amount(survey.largest_bytes).text, pins, cause,
        fragmented ? "a smaller granule (ZR_CONF=granule:256k), or allocating long-lived blocks first"
                   : "a larger limit, a smaller batch, recomputing activations, or more ranks");
}
