/* remedies.c: changes that would make a request fit, each replayed. Uses zr_replay(). */
#include "defrag/report/remedies.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"

/* Repeats of a plan's sequence; replays of the search for the least capacity, fewer for long sequences. */
enum { PLAN_REPEATS = 4, SEARCHES = 12, SEARCHES_LONG = 4, LONG_EVENTS = 200000 };

struct mark {
    size_t event;
    char label[ZR_REMEDY_WHERE_BYTES];
};

/* The records as a sequence of requests. */
struct making {
    struct zr_vector events, marks; /* struct zr_event, struct mark */
    struct zr_memory memory;        /* the live blocks */
    uint64_t live_bytes, most_bytes;
    bool streams; /* there are several */
};

static zr_result take(void *state, const struct zr_record *record, bool *stop)
{
    struct making *making = state;
    struct zr_event event = {.kind = record->kind == ZR_RECORD_ALLOC ? ZR_EVENT_ALLOC : ZR_EVENT_FREE,
                             .tag = record->tag,
                             .thread = (uint16_t)record->thread,
                             .bytes = record->bytes ? record->bytes : record->reserved_bytes,
                             .stream = record->stream};
    (void)stop;
    if (record->kind == ZR_RECORD_MARK && record->label) {
        struct mark mark = {.event = making->events.count};
        snprintf(mark.label, sizeof mark.label, "%s", record->label);
        return zr_vector_add(&making->marks, &mark);
    }
    if (record->kind != ZR_RECORD_ALLOC && record->kind != ZR_RECORD_FREE &&
        record->kind != ZR_RECORD_FREE_ASKED)
        return ZR_OK;
    const struct zr_range_record *block = zr_extents_floor(&making->memory.blocks, record->address);
    if (record->kind == ZR_RECORD_ALLOC) {
        const struct zr_event *first = making->events.count ? making->events.items : NULL;
        event.block = (uint32_t)making->memory.allocations_count;
        making->live_bytes += event.bytes;
        making->streams |= first && first->stream != record->stream;
    } else if (block && block->address == record->address) {
        event.block = block->number;
        event.bytes = block->requested_bytes ? block->requested_bytes : block->bytes;
        making->live_bytes -= record->kind == ZR_RECORD_FREE ? event.bytes : 0;
    }
    if (making->live_bytes > making->most_bytes)
        making->most_bytes = making->live_bytes;
    zr_result result = zr_memory_apply(&making->memory, record);
    return result == ZR_OK && record->kind != ZR_RECORD_FREE_ASKED ? zr_vector_add(&making->events, &event)
                                                                   : result;
}

/* ---- Trying -------------------------------------------------------------------------------------------- */

struct trying {
    struct making *making;
    struct zr_sequence sequence;
    const struct zr_recording *recording;
    uint64_t capacity_bytes;
    void (*say)(const char *words);
};

static zr_result replay(const struct trying *trying, enum zr_policy policy, uint64_t capacity_bytes,
                        unsigned repeat, struct zr_replay_report *report)
{
    return zr_replay(&trying->sequence,
                     &(struct zr_replay_options){.policy = policy,
                                                 .capacity_bytes = capacity_bytes,
                                                 .granule_bytes = trying->recording->granule_bytes,
                                                 .repeat = repeat},
                     report);
}

/* Searches the least capacity, between one that fails and one that suffices, to about 2 MiB or as near as the
 * number of searches allows. */
static zr_result find_minimum(const struct trying *trying, enum zr_policy policy, uint64_t most_bytes,
                              uint64_t *out)
{
    struct zr_replay_report report;
    uint64_t low = trying->capacity_bytes, high = most_bytes;
    unsigned searches = trying->sequence.events_count > LONG_EVENTS ? SEARCHES_LONG : SEARCHES;
    zr_result result = ZR_OK;
    while (result == ZR_OK && searches-- > 0 && high > low && high - low > UINT64_C(2) << 20) {
        uint64_t middle = low + (high - low) / 2;
        result = replay(trying, policy, middle, 1, &report);
        if (report.failed_at == UINT64_MAX)
            high = report.peak_reserved_bytes;
        else
            low = middle;
    }
    *out = high;
    return result;
}

static void set_where(const struct making *making, uint64_t failed_at, struct zr_remedy *remedy)
{
    const struct mark *marks = making->marks.items;
    for (size_t i = 0; i < making->marks.count && marks[i].event <= failed_at; i++)
        memcpy(remedy->where, marks[i].label, sizeof remedy->where);
}

static zr_result try(const struct trying *trying, const char *change, enum zr_policy policy,
                     struct zr_remedies *out)
{
    struct zr_remedy *remedy = &out->list[out->count++];
    struct zr_replay_report within, free_of_limits;
    char words[80];
    *remedy = (struct zr_remedy){.change = change};
    snprintf(words, sizeof words, "replaying with %s", change);
    if (trying->say)
        trying->say(words);
    zr_result result = replay(trying, policy, trying->capacity_bytes, 1, &within);
    if (result != ZR_OK)
        return result;
    remedy->fits = within.failed_at == UINT64_MAX;
    remedy->peak_reserved_bytes = within.peak_reserved_bytes;
    if (remedy->fits)
        return ZR_OK;
    set_where(trying->making, within.failed_at, remedy);
    result = replay(trying, policy, 0, 1, &free_of_limits);
    if (result == ZR_OK)
        result =
            find_minimum(trying, policy, free_of_limits.peak_reserved_bytes, &remedy->peak_reserved_bytes);
    if (result == ZR_OK && remedy->peak_reserved_bytes > trying->capacity_bytes)
        remedy->short_bytes = remedy->peak_reserved_bytes - trying->capacity_bytes;
    return result;
}

/* Replays several repeats; the last one follows the learned plan. */
static zr_result try_plan(const struct trying *trying, struct zr_remedies *out)
{
    struct zr_remedy *remedy = &out->list[out->count++];
    struct zr_replay_report report;
    *remedy = (struct zr_remedy){.change = "plan"};
    if (trying->say)
        trying->say("replaying with plan");
    zr_result result = replay(trying, ZR_POLICY_ZR, 0, PLAN_REPEATS, &report);
    if (result != ZR_OK)
        return result;
    remedy->peak_reserved_bytes = report.peak_reserved_last_repeat_bytes;
    remedy->fits = remedy->peak_reserved_bytes <= trying->capacity_bytes;
    remedy->short_bytes = remedy->fits ? 0 : remedy->peak_reserved_bytes - trying->capacity_bytes;
    return ZR_OK;
}

static enum zr_policy own_policy(const struct zr_recording *recording)
{
    switch (recording->kind) {
    case ZR_RECORDING_ZRT:
        return ZR_POLICY_ZR;
    case ZR_RECORDING_TORCH:
        return recording->expandable ? ZR_POLICY_EXPANDABLE : ZR_POLICY_CACHING;
    default:
        return ZR_POLICY_BESTFIT;
    }
}

/* The file's own policy with the least sufficient capacity. */
static zr_result add_capacity(const struct trying *trying, struct zr_remedies *out)
{
    const char *own = zr_policy_name(own_policy(trying->recording));
    for (unsigned i = 0; i < out->count; i++)
        if (strcmp(out->list[i].change, own) == 0 && !out->list[i].fits) {
            struct zr_replay_report report;
            struct zr_remedy remedy = {.change = "capacity",
                                       .peak_reserved_bytes = out->list[i].peak_reserved_bytes};
            zr_result result =
                replay(trying, own_policy(trying->recording), remedy.peak_reserved_bytes, 1, &report);
            remedy.fits = result == ZR_OK && report.failed_at == UINT64_MAX;
            if (remedy.fits)
                out->list[out->count++] = remedy;
            return result;
        }
    return ZR_OK;
}

/* The same requests on one stream. */
static zr_result try_one_stream(struct trying *trying, struct zr_remedies *out)
{
    zr_arena *arena = trying->making->events.arena;
    size_t bytes = trying->sequence.events_count * sizeof(struct zr_event);
    struct trying other = *trying;
    void *room;
    zr_result result =
        zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    other.sequence.events = memcpy(room, trying->sequence.events, bytes);
    for (size_t i = 0; i < other.sequence.events_count; i++)
        other.sequence.events[i].stream = 0;
    result = try(&other, "one stream", own_policy(trying->recording), out);
    zr_arena_free(arena, room);
    return result;
}

/* Pending blocks are freed before the request. */
static zr_result try_without_pending(struct trying *trying, const struct zr_event *request,
                                     struct zr_remedies *out)
{
    struct making *making = trying->making;
    const struct zr_range_record *block = zr_extents_ceiling(&making->memory.blocks, 0);
    zr_result result = ZR_OK;
    making->events.count--; /* the request */
    for (; block && result == ZR_OK; block = zr_extents_next(&making->memory.blocks, block))
        if (block->pending)
            result = zr_vector_add(&making->events, &(struct zr_event){.kind = ZR_EVENT_FREE,
                                                                       .tag = block->tag,
                                                                       .block = block->number,
                                                                       .bytes = block->requested_bytes,
                                                                       .stream = block->stream});
    if (result == ZR_OK)
        result = zr_vector_add(&making->events, request);
    trying->sequence.events = making->events.items;
    trying->sequence.events_count = making->events.count;
    return result == ZR_OK ? try(trying, "pending", own_policy(trying->recording), out) : result;
}

static zr_result try_all(struct trying *trying, const struct zr_event *request, struct zr_remedies *out)
{
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < ZR_POLICY_COUNT && result == ZR_OK; i++) {
        result = try(trying, zr_policy_name((enum zr_policy)i), (enum zr_policy)i, out);
        if (i == ZR_POLICY_ZR && result == ZR_OK)
            result = try_plan(trying, out);
    }
    if (result == ZR_OK)
        result = add_capacity(trying, out);
    if (result == ZR_OK && trying->making->streams)
        result = try_one_stream(trying, out);
    if (result == ZR_OK && trying->making->memory.pending_bytes > 0)
        result = try_without_pending(trying, request, out);
    return result;
}

zr_result zr_remedies_find(struct zr_remedies *out, struct zr_recording *recording, uint64_t records_count,
                           const struct zr_question *question, zr_arena *arena,
                           void (*say)(const char *words))
{
    struct making making = {0};
    struct zr_memory reached;
    struct zr_event request = {.kind = ZR_EVENT_ALLOC,
                               .tag = ZR_TAG_OTHER,
                               .bytes = question->size_bytes,
                               .stream = question->stream};
    *out = (struct zr_remedies){0};
    zr_vector_init(&making.events, arena, sizeof(struct zr_event));
    zr_vector_init(&making.marks, arena, sizeof(struct mark));
    zr_memory_init(&making.memory, recording, arena);
    zr_result result =
        zr_moment_reach(&reached, recording, records_count, &(struct zr_recording_sink){take, &making});
    zr_memory_end(&reached);
    if (result == ZR_OK && question->size_bytes > (UINT64_C(1) << 62) - making.live_bytes)
        result = zr_fail(ZR_ERR_INVALID, "the request exceeds what a machine can hold");
    request.block = (uint32_t)making.memory.allocations_count;
    if (result == ZR_OK)
        result = zr_vector_add(&making.events, &request);
    if (result == ZR_OK) {
        struct trying trying = {.making = &making,
                                .recording = recording,
                                .capacity_bytes = question->capacity_bytes,
                                .say = say,
                                .sequence = {.events = making.events.items,
                                             .events_count = making.events.count,
                                             .blocks_count = request.block + 1,
                                             .lower_bound_bytes = making.most_bytes,
                                             .host_arena = arena}};
        if (making.live_bytes + request.bytes > making.most_bytes)
            trying.sequence.lower_bound_bytes = making.live_bytes + request.bytes;
        result = try_all(&trying, &request, out);
    }
    if (say)
        say(NULL);
    zr_memory_end(&making.memory);
    zr_vector_end(&making.marks);
    zr_vector_end(&making.events);
    return result;
}
