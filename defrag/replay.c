/* replay.c: runs a sequence under a policy and says what it took. Stands on the policies (model.h). */
#include <string.h>

#include "alloc/error.h"
#include "alloc/os.h"
#include "defrag/model.h"

#define GRANULE_DEFAULT_BYTES ((size_t)2 << 20)

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

/* ---- What the models share ------------------------------------------------------------------------------
 */

bool zr_model_take(struct zr_model *model, uint64_t bytes)
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

void zr_model_give(struct zr_model *model, uint64_t bytes)
{
    bytes = zr_model_round(bytes, model->options.granule_bytes);
    zr_assert(bytes <= model->reserved_bytes);
    model->reserved_bytes -= bytes;
}

void zr_model_reset_peak(struct zr_model *model)
{
    model->peak_reserved_bytes = model->reserved_bytes;
}

void zr_model_measure(struct zr_model *model)
{
    (void)model;
}

/* ---- Running --------------------------------------------------------------------------------------------
 */

struct run {
    const struct zr_sequence *sequence;
    struct zr_model *model;
    void **handles; /* of live blocks, by number; NULL: not live */
    uint64_t failed_at;
};

/* That every event names a block as it should, so that the runs need not look. */
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

/* Runs the events once; *ns gets the time. */
static zr_result run_once(struct run *run, uint64_t *ns)
{
    const struct zr_sequence *sequence = run->sequence;
    const struct zr_model_ops *ops = run->model->ops;
    zr_result result = ZR_OK;
    uint64_t start_ns = zr_os_now_ns();
    for (size_t i = 0; i < sequence->events_count; i++) {
        const struct zr_event *event = &sequence->events[i];
        if (event->kind == ZR_EVENT_ALLOC) {
            result = ops->alloc(run->model, event, &run->handles[event->block]);
        } else if (event->kind == ZR_EVENT_FREE) {
            result = ops->free(run->model, run->handles[event->block]);
            run->handles[event->block] = NULL;
        }
        if (__builtin_expect(result != ZR_OK, 0)) {
            run->failed_at = i;
            break;
        }
    }
    *ns = zr_os_now_ns() - start_ns;
    if (result == ZR_ERR_MEMORY || result == ZR_ERR_ADDRESSES) {
        run->handles[sequence->events[run->failed_at].block] = NULL;
        return ZR_OK;
    }
    if (result == ZR_OK)
        run->failed_at = UINT64_MAX;
    return result;
}

/* Frees what is live, in order of first appearance. */
static zr_result drain(struct run *run)
{
    zr_result result = ZR_OK;
    for (size_t i = 0; i < run->sequence->blocks_count && result == ZR_OK; i++)
        if (run->handles[i]) {
            result = run->model->ops->free(run->model, run->handles[i]);
            run->handles[i] = NULL;
        }
    return result;
}

static size_t operations_count(const struct zr_sequence *sequence)
{
    size_t count = 0;
    for (size_t i = 0; i < sequence->events_count; i++)
        count += sequence->events[i].kind != ZR_EVENT_MARK;
    return count;
}

static zr_result run_all(struct run *run, unsigned repeat, struct zr_replay_report *out)
{
    struct zr_model *model = run->model;
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < repeat && result == ZR_OK && run->failed_at == UINT64_MAX; i++) {
        uint64_t ns = 0;
        if (i > 0)
            result = drain(run);
        if (result != ZR_OK)
            break;
        model->ops->reset_peak(model);
        model->ops->measure(model);
        uint64_t calls = model->driver_calls;
        result = run_once(run, &ns);
        model->ops->measure(model);
        out->driver_calls = model->driver_calls;
        out->driver_calls_last_repeat = model->driver_calls - calls;
        out->peak_reserved_last_repeat_bytes = model->peak_reserved_bytes;
        if (model->peak_reserved_bytes > out->peak_reserved_bytes)
            out->peak_reserved_bytes = model->peak_reserved_bytes;
        size_t count = run->failed_at == UINT64_MAX ? operations_count(run->sequence) : run->failed_at + 1;
        out->ns_per_operation = count ? (double)ns / (double)count : 0;
    }
    out->failed_at = run->failed_at;
    return result;
}

zr_result zr_replay(const struct zr_sequence *sequence, const struct zr_replay_options *options,
                    struct zr_replay_report *out)
{
    if (!sequence || !options || !out || !sequence->host_arena ||
        (unsigned)options->policy >= ZR_POLICY_COUNT)
        return zr_fail(ZR_ERR_INVALID, "a replay needs a sequence, a policy and somewhere to put its report");
    struct zr_model_options model_options = {.host_arena = sequence->host_arena,
                                             .capacity_bytes = options->capacity_bytes,
                                             .granule_bytes = options->granule_bytes ? options->granule_bytes
                                                                                     : GRANULE_DEFAULT_BYTES};
    if ((model_options.granule_bytes & (model_options.granule_bytes - 1)) != 0)
        return zr_fail(ZR_ERR_INVALID, "a granule of %zu bytes is no power of two", options->granule_bytes);
    struct run run = {.sequence = sequence, .failed_at = UINT64_MAX};
    void *room = NULL;
    *out =
        (struct zr_replay_report){.lower_bound_bytes = sequence->lower_bound_bytes, .failed_at = UINT64_MAX};
    zr_result result =
        zr_arena_alloc(sequence->host_arena,
                       &(struct zr_request){.bytes = (sequence->blocks_count + 1) * sizeof *run.handles,
                                            .tag = ZR_TAG_OTHER},
                       &room);
    if (result != ZR_OK)
        return result;
    run.handles = room;
    result = check(sequence, run.handles);
    if (result == ZR_OK)
        result = policies[options->policy].ops->create(&run.model, &model_options);
    if (result == ZR_OK)
        result = run_all(&run, options->repeat ? options->repeat : 1, out);
    if (run.model)
        run.model->ops->destroy(run.model);
    zr_arena_free(sequence->host_arena, room);
    return result;
}
