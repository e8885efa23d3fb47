/* moments.c: the figures of a recording at chosen points in time. Uses memory.c. */
#include "defrag/report/moments.h"

#include <string.h>

#include "alloc/base/error.h"

struct measuring {
    struct zr_memory *memory;
    struct zr_moments *out;
    uint64_t peak_bytes;
    uint64_t last_ns;
    double stranded_ns, all_ns, stranded_records, all_records;
};

double zr_stranded_ratio(const struct zr_memory_figures *figures)
{
    return figures->reserved_bytes ? (double)figures->stranded_bytes / (double)figures->reserved_bytes : 0;
}

static struct zr_moment moment_of(const struct zr_memory *memory, uint64_t time_ns)
{
    struct zr_moment moment = {.records_count = memory->records_count, .time_ns = time_ns};
    zr_memory_get_figures(memory, &moment.figures);
    return moment;
}

static zr_result measure(void *state, const struct zr_record *record, bool *stop)
{
    struct measuring *own = state;
    struct zr_memory *memory = own->memory;
    struct zr_moments *out = own->out;
    (void)stop;
    if (!record->before && memory->reserved_bytes > 0) {
        uint64_t used = memory->live_bytes + memory->pending_bytes + memory->releasable_bytes;
        uint64_t stranded = memory->reserved_bytes > used ? memory->reserved_bytes - used : 0;
        double ratio = (double)stranded / (double)memory->reserved_bytes;
        double passed_ns = (double)(record->time_ns - own->last_ns);
        own->stranded_ns += passed_ns * ratio;
        own->all_ns += passed_ns;
        own->stranded_records += ratio;
        own->all_records++;
    }
    own->last_ns = record->time_ns;
    if (record->kind == ZR_RECORD_REFUSED) {
        out->failure = moment_of(memory, record->time_ns);
        out->has_failure = true;
        out->refused = *record;
        out->refusal = record->refusal ? *record->refusal : (struct zrt_refusal){0};
        out->refused.refusal = NULL;
        out->failures_count++;
        out->failure_marks_count = out->marks_count;
    }
    zr_result result = zr_memory_apply(memory, record);
    if (result != ZR_OK)
        return result;
    out->marks_count += record->kind == ZR_RECORD_MARK;
    out->before_count += record->before && record->kind == ZR_RECORD_ALLOC;
    if (memory->live_bytes + memory->pending_bytes > own->peak_bytes) {
        own->peak_bytes = memory->live_bytes + memory->pending_bytes;
        out->peak = moment_of(memory, record->time_ns);
    }
    if (memory->requested_bytes > out->peak_requested_bytes)
        out->peak_requested_bytes = memory->requested_bytes;
    if (memory->reserved_bytes > out->peak_reserved_bytes)
        out->peak_reserved_bytes = memory->reserved_bytes;
    return ZR_OK;
}

zr_result zr_moments_measure(struct zr_moments *out, struct zr_memory *end, struct zr_recording *recording,
                             zr_arena *arena)
{
    struct measuring own = {.memory = end, .out = out};
    *out = (struct zr_moments){0};
    zr_memory_init(end, recording, arena);
    zr_result result = zr_recording_play(recording, &(struct zr_recording_sink){measure, &own});
    out->now = moment_of(end, own.last_ns);
    out->allocations_count = end->allocations_count;
    out->stranded_time_weighted = own.all_ns > 0        ? own.stranded_ns / own.all_ns
                                  : own.all_records > 0 ? own.stranded_records / own.all_records
                                                        : zr_stranded_ratio(&out->now.figures);
    if (out->peak_reserved_bytes > 0)
        out->gmlake_ratio = 1 - (double)own.peak_bytes / (double)out->peak_reserved_bytes;
    return result;
}

/* ---- Reaching a moment --------------------------------------------------------------------------------- */

struct reaching {
    struct zr_memory *memory;
    uint64_t records_count;
    const struct zr_recording_sink *also;
};

static zr_result reach(void *state, const struct zr_record *record, bool *stop)
{
    struct reaching *own = state;
    zr_result result = ZR_OK;
    if (own->memory->records_count >= own->records_count) {
        *stop = true;
        return ZR_OK;
    }
    if (own->also)
        result = own->also->take(own->also->state, record, stop);
    return result == ZR_OK ? zr_memory_apply(own->memory, record) : result;
}

zr_result zr_moment_reach(struct zr_memory *memory, struct zr_recording *recording, uint64_t records_count,
                          const struct zr_recording_sink *also)
{
    struct reaching own = {memory, records_count, also};
    zr_memory_init(memory, recording, recording->arena);
    return zr_recording_play(recording, &(struct zr_recording_sink){reach, &own});
}

/* The search for a moment: how many records precede it. */
struct finding {
    uint64_t until_ns; /* UINT64_MAX: search a mark */
    const char *label;
    uint64_t seen_count, found_count, contained_count;
    uint64_t first_ns;
    bool has_first;
};

static zr_result find(void *state, const struct zr_record *record, bool *stop)
{
    struct finding *own = state;
    if (!own->has_first && !record->before) {
        own->first_ns = record->time_ns;
        own->has_first = true;
    }
    if (own->until_ns != UINT64_MAX && own->has_first && record->time_ns - own->first_ns > own->until_ns) {
        *stop = true;
        return ZR_OK;
    }
    own->seen_count++;
    if (own->until_ns == UINT64_MAX && record->kind == ZR_RECORD_MARK && record->label) {
        if (strcmp(record->label, own->label) == 0)
            own->found_count = own->seen_count;
        if (strstr(record->label, own->label))
            own->contained_count = own->seen_count;
    }
    return ZR_OK;
}

static zr_result find_mark(struct zr_recording *recording, const char *label, uint64_t *records_count)
{
    struct finding finding = {.until_ns = UINT64_MAX, .label = label};
    zr_result result = zr_recording_play(recording, &(struct zr_recording_sink){find, &finding});
    *records_count = finding.found_count ? finding.found_count : finding.contained_count;
    return result == ZR_OK && *records_count == 0
               ? zr_fail(ZR_ERR_INVALID, "no mark of this file contains '%.60s'", label)
               : result;
}

static zr_result find_time(struct zr_recording *recording, uint64_t until_ns, uint64_t *records_count)
{
    struct finding finding = {.until_ns = until_ns};
    if (!recording->has_times)
        return zr_fail(ZR_ERR_INVALID, "this file has no times: give a number of events");
    zr_result result = zr_recording_play(recording, &(struct zr_recording_sink){find, &finding});
    *records_count = finding.seen_count;
    return result;
}

/* Parses a number with up to nine decimals, in billionths. False: invalid or too large. */
static bool read_billionths(const char *text, size_t length, uint64_t *out)
{
    uint64_t number = 0;
    unsigned decimals = 0;
    bool point = false, digits = false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '.' && !point) {
            point = true;
            continue;
        }
        if (text[i] < '0' || text[i] > '9' || decimals == 9 ||
            __builtin_mul_overflow(number, UINT64_C(10), &number) ||
            __builtin_add_overflow(number, (uint64_t)(text[i] - '0'), &number))
            return false;
        decimals += point;
        digits = true;
    }
    for (; decimals < 9; decimals++)
        if (__builtin_mul_overflow(number, UINT64_C(10), &number))
            return false;
    *out = number;
    return digits && number != UINT64_MAX;
}

static zr_result find_number(const struct zr_moments *moments, const char *words, uint64_t *records_count)
{
    uint64_t number = 0;
    for (const char *at = words; *at; at++)
        if (*at < '0' || *at > '9' || __builtin_mul_overflow(number, UINT64_C(10), &number) ||
            __builtin_add_overflow(number, (uint64_t)(*at - '0'), &number))
            return zr_fail(ZR_ERR_INVALID, "'%.40s' is not a moment: " ZR_MOMENT_WORDS, words);
    if (words[0] == '\0' || number > moments->now.records_count)
        return zr_fail(ZR_ERR_INVALID, "moment '%.40s' is beyond the %llu events of the file", words,
                       (unsigned long long)moments->now.records_count);
    *records_count = number;
    return ZR_OK;
}

zr_result zr_moment_find(const struct zr_moments *moments, struct zr_recording *recording, const char *words,
                         uint64_t *records_count)
{
    size_t length = strlen(words);
    uint64_t until_ns;
    if (strcmp(words, "now") == 0) {
        *records_count = moments->now.records_count;
        return ZR_OK;
    }
    if (strcmp(words, "peak") == 0) {
        *records_count = moments->peak.records_count;
        return ZR_OK;
    }
    if (strcmp(words, "failure") == 0) {
        *records_count = moments->failure.records_count;
        return moments->has_failure ? ZR_OK : zr_fail(ZR_ERR_INVALID, "no allocation fails in this file");
    }
    if (strncmp(words, "mark:", 5) == 0)
        return find_mark(recording, words + 5, records_count);
    if (length > 1 && words[length - 1] == 's' && read_billionths(words, length - 1, &until_ns))
        return find_time(recording, until_ns, records_count);
    return find_number(moments, words, records_count);
}

/* ---- Free runs ----------------------------------------------------------------------------------------- */

double zr_unusable_ratio(const struct zr_memory *memory, uint64_t bytes)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    double all = 0, unusable = 0;
    while (zr_memory_next(&walk, &piece)) {
        if (piece.block || !piece.mapped)
            continue;
        all += (double)piece.bytes;
        unusable += piece.bytes < bytes ? (double)piece.bytes : 0;
    }
    return all > 0 ? unusable / all : 0;
}
