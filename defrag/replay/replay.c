/* replay.c: runs a sequence under a policy and reports its cost. Uses the policies (model.h). */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"
#include "defrag/replay/model.h"
#include "alloc/base/sort.h"
#include "defrag/replay/unplanned.h"

#define GRANULE_DEFAULT_BYTES ((size_t)2 << 20)
/* The backend's limits, for every policy: addresses of a model are sums of whole granules. */
#define GRANULE_MIN_BYTES ((size_t)4 << 10)
#define GRANULE_MAX_BYTES ((size_t)1 << 30)

/* Events between two clock readings. The cost of an operation is the median over these runs of events, which
 * excludes interruptions by other programs. */
enum { SAMPLE_EVENTS = 256 };

static const struct {
    const char *name;
    const struct zr_model_ops *ops;
} policies[ZR_POLICY_COUNT] = {
    [ZR_POLICY_ZR] = {"zr", &zr_model_arena},
    [ZR_POLICY_CACHING] = {"caching", &zr_model_caching},
    [ZR_POLICY_EXPANDABLE] = {"expandable", &zr_model_expandable},
    [ZR_POLICY_BESTFIT] = {"bestfit", &zr_model_bestfit},
};

const char *zr_policy_name(enum zr_policy policy)
{
    return (unsigned)policy < ZR_POLICY_COUNT ? policies[policy].name : NULL;
}

/* ---- Common part of the models ------------------------------------------------------------------------- */

bool zr_model_take(struct zr_policy_model *model, uint64_t bytes)
{
    uint64_t capacity = model->options.capacity_bytes;
    bytes = zr_model_round(bytes, model->options.granule_bytes);
    if (bytes > UINT64_MAX / 2 - model->reserved_bytes ||
        (capacity && model->reserved_bytes + bytes > capacity))
        return false;
    model->reserved_bytes += bytes;
    if (model->reserved_bytes > model->peak_reserved_bytes)
        model->peak_reserved_bytes = model->reserved_bytes;
    return true;
}

void zr_model_give(struct zr_policy_model *model, uint64_t bytes)
{
    bytes = zr_model_round(bytes, model->options.granule_bytes);
    zr_assert(bytes <= model->reserved_bytes);
    model->reserved_bytes -= bytes;
}

void zr_model_use(struct zr_policy_model *model, struct zr_block_set *set, struct zr_model_block *block,
                  struct zr_model_block *front, uint64_t bytes, bool split, void **out)
{
    if (split) {
        zr_block_split(block, front, bytes);
        zr_block_set_insert(set, block);
        block = front;
    } else {
        zr_block_give(&model->records, front);
    }
    block->allocated = true;
    *out = block;
}

static void reset_peak(struct zr_policy_model *model)
{
    model->peak_reserved_bytes = model->reserved_bytes;
    if (model->ops->reset_peak)
        model->ops->reset_peak(model);
}

static void measure(struct zr_policy_model *model)
{
    if (model->ops->measure)
        model->ops->measure(model);
}

void zr_model_end(struct zr_policy_model *model)
{
    if (model->ops->end)
        model->ops->end(model);
    zr_block_pool_end(&model->records);
    zr_arena_free(model->options.host_arena, model);
}

zr_result zr_model_begin(struct zr_policy_model **out, const struct zr_model_ops *ops,
                         const struct zr_model_options *options)
{
    void *room;
    zr_result result = zr_arena_alloc(options->host_arena,
                                      &(struct zr_request){.bytes = ops->bytes, .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        return result;
    struct zr_policy_model *model = memset(room, 0, ops->bytes);
    model->ops = ops;
    model->options = *options;
    zr_block_pool_init(&model->records, options->host_arena);
    result = ops->begin ? ops->begin(model) : ZR_OK;
    if (result == ZR_OK)
        *out = model;
    else
        zr_model_end(model);
    return result;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

struct run {
    const struct zr_sequence *sequence; /* of the current repeat */
    struct zr_unplanned unplanned;
    struct zr_policy_model *model;
    void **handles; /* by block number; NULL: not live */
    uint64_t failed_at;
    struct zr_sort_pair *samples, *spare; /* key: picoseconds per operation, of one repeat */
    size_t samples_count;
    uint64_t ns, operations_count; /* of one repeat */
    uint64_t all_ns, all_count;    /* of all repeats */
};

static size_t samples_max(const struct run *run)
{
    return run->unplanned.events_max / SAMPLE_EVENTS + 1;
}

/* Checks that every event names a valid block, so that the runs need no checks. */
static zr_result check(const struct zr_sequence *sequence, void **handles)
{
    memset(handles, 0, sequence->blocks_count * sizeof *handles);
    for (size_t i = 0; i < sequence->events_count; i++) {
        const struct zr_event *event = &sequence->events[i];
        bool live =
            event->kind != ZR_EVENT_MARK && event->block < sequence->blocks_count && handles[event->block];
        if (event->kind == ZR_EVENT_MARK)
            continue;
        if (event->kind > ZR_EVENT_MARK || event->block >= sequence->blocks_count ||
            event->tag >= ZR_TAG_COUNT || live != (event->kind == ZR_EVENT_FREE) ||
            (event->kind == ZR_EVENT_ALLOC && event->bytes == 0))
            return zr_fail(ZR_ERR_INVALID, "event %zu of the sequence contradicts those before it", i);
        handles[event->block] = live ? NULL : (void *)handles;
    }
    memset(handles, 0, sequence->blocks_count * sizeof *handles);
    return ZR_OK;
}

/* Runs the events from `first` to `end`; on an error stops and sets run->failed_at. Returns the number of
 * operations. */
static size_t run_events(struct run *run, size_t first, size_t end, zr_result *result)
{
    struct zr_policy_model *model = run->model;
    zr_result (*alloc)(struct zr_policy_model *, const struct zr_event *, void **) = model->ops->alloc;
    zr_result (*dealloc)(struct zr_policy_model *, void *) = model->ops->free;
    size_t count = 0;
    for (size_t i = first; i < end; i++) {
        const struct zr_event *event = &run->sequence->events[i];
        void **handle = &run->handles[event->block];
        if (event->kind == ZR_EVENT_MARK)
            continue;
        count++;
        if (event->kind == ZR_EVENT_ALLOC) {
            *result = alloc(model, event, handle);
        } else {
            *result = dealloc(model, *handle);
            *handle = NULL;
        }
        if (__builtin_expect(*result != ZR_OK, 0)) {
            run->failed_at = i;
            break;
        }
    }
    return count;
}

/* Runs and times the events once. */
static zr_result run_once(struct run *run)
{
    size_t events_count = run->sequence->events_count;
    zr_result result = ZR_OK;
    run->samples_count = 0;
    run->ns = run->operations_count = 0;
    for (size_t first = 0; first < events_count && result == ZR_OK; first += SAMPLE_EVENTS) {
        size_t end = first + SAMPLE_EVENTS < events_count ? first + SAMPLE_EVENTS : events_count;
        uint64_t start_ns = zr_os_now_ns();
        size_t count = run_events(run, first, end, &result);
        uint64_t ns = zr_os_now_ns() - start_ns;
        run->ns += ns;
        run->operations_count += count;
        /* A shorter run of events is within the clock's resolution. */
        if (count > 0 && (end - first == SAMPLE_EVENTS || run->samples_count == 0))
            run->samples[run->samples_count++] = (struct zr_sort_pair){.key = ns * 1000 / count};
    }
    if (result == ZR_ERR_MEMORY || result == ZR_ERR_ADDRESSES) {
        run->handles[run->sequence->events[run->failed_at].block] = NULL;
        return ZR_OK;
    }
    if (result == ZR_OK)
        run->failed_at = UINT64_MAX;
    return result;
}

static double median_ns(struct run *run)
{
    if (run->samples_count == 0)
        return 0;
    zr_sort_pairs(run->samples, run->spare, run->samples_count);
    size_t middle = run->samples_count / 2;
    return (double)run->samples[middle].key / 1000;
}

/* Frees live blocks, in order of first appearance. */
static zr_result drain(struct run *run)
{
    zr_result result = ZR_OK;
    uint64_t start_ns = zr_os_now_ns();
    for (size_t i = 0; i < run->sequence->blocks_count && result == ZR_OK; i++)
        if (run->handles[i]) {
            result = run->model->ops->free(run->model, run->handles[i]);
            run->handles[i] = NULL;
            run->all_count++;
        }
    run->all_ns += zr_os_now_ns() - start_ns;
    return result;
}

static void wait_for_learning(struct run *run, struct zr_replay_report *out)
{
    uint64_t start_ns = zr_os_now_ns();
    if (!run->model->ops->wait || run->model->options.no_wait)
        return;
    run->model->ops->wait(run->model);
    out->waited_ns += zr_os_now_ns() - start_ns;
}

static zr_result run_all(struct run *run, unsigned repeat, struct zr_replay_report *out)
{
    struct zr_policy_model *model = run->model;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < repeat && result == ZR_OK && run->failed_at == UINT64_MAX; i++) {
        if (i > 0)
            result = drain(run);
        if (result != ZR_OK)
            break;
        wait_for_learning(run, out);
        run->sequence = zr_unplanned_make(&run->unplanned, i);
        if (run->sequence->lower_bound_bytes > out->lower_bound_bytes)
            out->lower_bound_bytes = run->sequence->lower_bound_bytes;
        out->lower_bound_last_repeat_bytes = run->sequence->lower_bound_bytes;
        reset_peak(model);
        measure(model);
        uint64_t calls = model->driver_calls;
        result = run_once(run);
        measure(model);
        out->driver_calls = model->driver_calls;
        out->driver_calls_last_repeat = model->driver_calls - calls;
        out->peak_reserved_last_repeat_bytes = model->peak_reserved_bytes;
        if (model->peak_reserved_bytes > out->peak_reserved_bytes)
            out->peak_reserved_bytes = model->peak_reserved_bytes;
        run->all_ns += run->ns;
        run->all_count += run->operations_count;
        out->ns_per_operation = median_ns(run);
        out->ns_per_operation_all = run->all_count ? (double)run->all_ns / (double)run->all_count : 0;
        out->ns_per_operation_mean =
            run->operations_count ? (double)run->ns / (double)run->operations_count : 0;
    }
    out->failed_at = run->failed_at;
    return result;
}

zr_result zr_replay(const struct zr_sequence *sequence, const struct zr_replay_options *options,
                    struct zr_replay_report *out)
{
    return zr_replay_unplanned(sequence, options, 0, 0, out);
}

zr_result zr_replay_unplanned(const struct zr_sequence *sequence, const struct zr_replay_options *options,
                              unsigned percent, uint64_t seed, struct zr_replay_report *out)
{
    struct zr_replay_options own;
    zr_result result = ZR_STRUCT_COPY(zr_replay_options, garbage_collection_threshold, &own, options);
    if (result != ZR_OK)
        return result;
    if (!sequence || !options || !out || !sequence->host_arena || (unsigned)own.policy >= ZR_POLICY_COUNT)
        return zr_fail(ZR_ERR_INVALID, "a replay requires a sequence, a policy and an output pointer");
    options = &own;
    struct zr_model_options model_options = {
        .host_arena = sequence->host_arena,
        .capacity_bytes = options->capacity_bytes,
        .no_wait = options->no_wait,
        .max_split_bytes = options->max_split_bytes,
        .garbage_collection_threshold = options->garbage_collection_threshold,
        .granule_bytes = options->granule_bytes ? options->granule_bytes : GRANULE_DEFAULT_BYTES};
    const size_t granule_bytes = model_options.granule_bytes;
    memcpy(model_options.roundup_divisions, options->roundup_divisions, sizeof options->roundup_divisions);
    if (!(options->garbage_collection_threshold >= 0 && options->garbage_collection_threshold <= 1))
        return zr_fail(ZR_ERR_INVALID, "a garbage_collection_threshold is between 0 and 1");
    if (granule_bytes < GRANULE_MIN_BYTES || granule_bytes > GRANULE_MAX_BYTES ||
        (granule_bytes & (granule_bytes - 1)) != 0)
        return zr_fail(ZR_ERR_INVALID, "a granule of %zu bytes is not a power of two between 4 KiB and 1 GiB",
                       granule_bytes);
    struct run run = {.failed_at = UINT64_MAX};
    void *room = NULL;
    *out = (struct zr_replay_report){.failed_at = UINT64_MAX};
    result = zr_unplanned_begin(&run.unplanned, sequence, percent, seed);
    if (result != ZR_OK)
        goto unwind;
    size_t handles_bytes = (run.unplanned.blocks_max + (size_t)1) * sizeof *run.handles;
    size_t samples_bytes = samples_max(&run) * sizeof *run.samples;
    result = zr_arena_alloc(
        sequence->host_arena,
        &(struct zr_request){.bytes = handles_bytes + 2 * samples_bytes, .tag = ZR_TAG_OTHER}, &room);
    if (result != ZR_OK)
        goto unwind;
    run.handles = memset(room, 0, handles_bytes);
    run.samples = (struct zr_sort_pair *)((char *)room + handles_bytes);
    run.spare = run.samples + samples_max(&run);
    result = check(sequence, run.handles);
    if (result == ZR_OK)
        result = zr_model_begin(&run.model, policies[options->policy].ops, &model_options);
    if (result == ZR_OK)
        result = run_all(&run, options->repeat ? options->repeat : 1, out);
    if (run.model)
        zr_model_end(run.model);
    zr_arena_free(sequence->host_arena, room);
unwind:
    zr_unplanned_end(&run.unplanned);
    return result;
}
