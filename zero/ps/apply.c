/* apply.c: requests that change tables, each applied once, and reads of tables. See store.h. */
#include <string.h>

#include "alloc/base/error.h"
#include "zero/ps/store.h"

static struct zr_ps_request request_in(const struct zr_ps_store *store, unsigned buffer)
{
    const struct zr_ps_frame *frame = zr_ps_buffer(store, buffer);
    return (struct zr_ps_request){frame, (const char *)(frame + 1)};
}

static bool is_ready(const struct zr_ps_store *store, unsigned table)
{
    return !store->setup->entries[table].table.filled || atomic_load(&store->numbers[table].written);
}

bool zr_ps_must_wait(struct zr_ps_store *store, unsigned buffer)
{
    struct zr_ps_request request = request_in(store, buffer);
    const struct zr_ps_frame *frame = request.frame;
    struct zr_ps_timetable *t = &store->timetable;
    const bool worker = frame->worker < t->workers, pushes = frame->kind == ZR_PS_PUSH && worker;
    size_t at = zr_ps_first_data(request);
    if (pushes)
        zr_ps_begin_push(t, frame->worker);
    for (unsigned i = 0; i < frame->items_count && (pushes || frame->kind == ZR_PS_PULL); i++) {
        struct zr_ps_view view = zr_ps_view_of(store->setup, request, i, &at);
        unsigned table = view.item.table;
        if (!is_ready(store, table))
            return true;
        if (pushes ? !zr_ps_may_push(t, table, frame->worker, view.item.index)
                   : worker && !zr_ps_may_pull(t, table, frame->worker))
            return true;
    }
    return false;
}

/* ---- Staleness ----------------------------------------------------------------------------------------- */

/* What a pull has: updates, or with sync and ssp steps. */
static uint64_t version_seen(const struct zr_ps_store *store, unsigned table)
{
    const unsigned pushes = store->pushes[table] ? store->pushes[table] : 1;
    return zr_ps_groups(&store->timetable.timing) ? atomic_load(&store->timetable.applied[table]) / pushes
                                                  : atomic_load(&store->numbers[table].version);
}

static uint64_t staleness_of(struct zr_ps_store *store, unsigned table, unsigned worker)
{
    uint64_t pulled = atomic_load(&zr_ps_lane_of(&store->timetable, table, worker)->pulled),
             now = zr_ps_groups(&store->timetable.timing)
                       ? atomic_load(&store->timetable.members[worker].clock)
                       : atomic_load(&store->numbers[table].version);
    return now > pulled ? now - pulled : 0;
}

static void count_staleness(struct zr_ps_store *store, uint64_t tau)
{
    store->staleness[tau < ZR_PS_STALE_BINS ? tau : ZR_PS_STALE_BINS - 1]++;
}

/* ---- Pushes -------------------------------------------------------------------------------------------- */

/* Applies a push at once. */
static zr_result push_now(struct zr_ps_store *store, struct zr_ps_request request, unsigned i,
                          const struct zr_ps_view *view)
{
    const struct zr_ps_frame *frame = request.frame;
    const unsigned table = view->item.table;
    const uint64_t tau = staleness_of(store, table, frame->worker);
    const bool divides = store->setup->options.staleness.kind == ZR_PS_STALE_DIVIDE && tau > 1;
    count_staleness(store, tau);
    return zr_ps_operate(store, &(struct zr_ps_operation){
                                    .kind = view->entry->width                          ? ZR_PS_OP_ROWS
                                            : store->timetable.timing.kind == ZR_PS_GEO ? ZR_PS_OP_ADD
                                                                                        : ZR_PS_OP_UPDATE,
                                    .table = table,
                                    .worker = frame->worker,
                                    .offset = (uint64_t)((const char *)view->data - (const char *)frame),
                                    .count = view->item.count,
                                    .version = atomic_load(&store->numbers[table].version) + 1,
                                    .item = i + 1,
                                    .rate = divides ? frame->rate / (float)tau : frame->rate,
                                    .scale = frame->scale});
}

/* The same, unless a predecessor of the worker has made the push. `item` has advanced once it is applied, and
 * a successor of the server then notes it. */
static zr_result push_once(struct zr_ps_store *store, struct zr_ps_request request, unsigned i,
                           const struct zr_ps_view *view)
{
    struct zr_ps_timetable *t = &store->timetable;
    const unsigned table = view->item.table, worker = request.frame->worker;
    zr_result result = ZR_OK;
    if (i >= atomic_load(&store->kept->item) &&
        !(t->successors && zr_ps_has_push(t, table, worker, view->item.index)))
        result = push_now(store, request, i, view);
    zr_ps_store_point();
    if (result == ZR_OK && t->successors)
        zr_ps_note_push(t, table, worker, view->item.index);
    return result;
}

/* Bytes of the worker's area that pushes of the group have. A push of `table` is not counted: a killed
 * process may have stored the one that is stored again. */
static uint64_t area_used(const struct zr_ps_store *store, unsigned worker, uint64_t group, unsigned table)
{
    uint64_t used = 0;
    for (unsigned t = 0; t < store->setup->options.tables_count; t++) {
        const unsigned width = store->setup->entries[t].width;
        if (width == 0 || t == table)
            continue;
        const struct zr_ps_waiter *waiter = zr_ps_waiter_of(store, t, worker, group);
        uint64_t end = waiter->offset + waiter->count * (sizeof(uint64_t) + width * sizeof(float));
        if (atomic_load(&waiter->group) == group + 1 && end > used)
            used = end;
    }
    return zr_ps_padded(used);
}

bool zr_ps_rows_fit(struct zr_ps_store *store, unsigned buffer)
{
    struct zr_ps_request request = request_in(store, buffer);
    const struct zr_ps_frame *frame = request.frame;
    const struct zr_ps_timetable *t = &store->timetable;
    size_t at = zr_ps_first_data(request);
    uint64_t bytes = 0, used = 0;
    if (frame->kind != ZR_PS_PUSH || !zr_ps_groups(&t->timing))
        return true;
    for (unsigned i = 0; i < frame->items_count; i++) {
        struct zr_ps_view view = zr_ps_view_of(store->setup, request, i, &at);
        if (view.entry->width == 0 || zr_ps_has_push(t, view.item.table, frame->worker, view.item.index))
            continue;
        used = area_used(store, frame->worker,
                         zr_ps_group(t, view.item.table, frame->worker, view.item.index), view.item.table);
        bytes += zr_ps_padded(view.item.bytes);
    }
    return used + bytes <= store->setup->message_bytes;
}

/* Keeps a push until its group is complete. */
static void push_later(struct zr_ps_store *store, struct zr_ps_request request, const struct zr_ps_view *view)
{
    const struct zr_ps_frame *frame = request.frame;
    const unsigned table = view->item.table, worker = frame->worker;
    const struct zr_ps_slice *slice = &store->slices[table];
    struct zr_ps_timetable *t = &store->timetable;
    if (zr_ps_has_push(t, table, worker, view->item.index))
        return;
    const uint64_t group = zr_ps_group(t, table, worker, view->item.index);
    struct zr_ps_waiter *waiter = zr_ps_waiter_of(store, table, worker, group);
    char *to = slice->pushes;
    if (view->entry->width > 0) {
        uint64_t used = area_used(store, worker, group, table);
        waiter->offset = used;
        waiter->count = view->item.count;
        to = store->row_areas +
             (worker * (size_t)slice->places + group % slice->places) * store->setup->message_bytes + used;
    } else {
        to += (worker * (size_t)slice->places + group % slice->places) * slice->stride *
              zr_precision_bytes(view->entry->table.precision);
    }
    memcpy(to, view->data, view->item.bytes);
    waiter->rate = frame->rate;
    waiter->scale = frame->scale;
    zr_ps_store_point();
    atomic_store(&waiter->group, group + 1);
    zr_ps_store_point();
    count_staleness(store, staleness_of(store, table, worker));
    zr_ps_note_push(t, table, worker, view->item.index);
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* The change that a complete group makes; false: nothing was pushed in it. */
static bool group_operation(const struct zr_ps_store *store, unsigned table, uint64_t group,
                            struct zr_ps_operation *out)
{
    const unsigned pushes = store->pushes[table];
    const struct zr_ps_numbers *numbers = &store->numbers[table];
    unsigned count = 0;
    *out = (struct zr_ps_operation){.table = table,
                                    .group = group,
                                    .version = atomic_load(&numbers->version) + 1,
                                    .applied = group + 1,
                                    .summed = atomic_load(&numbers->summed),
                                    .item = atomic_load(&store->kept->item)};
    for (unsigned w = 0; w < store->setup->options.workers; w++) {
        const struct zr_ps_waiter *waiter = zr_ps_waiter_of(store, table, w, group);
        if (atomic_load(&waiter->group) != group + 1)
            continue;
        if (count++ == 0) {
            out->rate = waiter->rate;
            out->scale = waiter->scale;
        }
        out->count += waiter->count;
    }
    out->kind = pushes == 0 ? ZR_PS_OP_ROWS_GROUP : ZR_PS_OP_GROUP;
    if (pushes == 0 && count > 0)
        out->scale /= (float)count;
    if (pushes <= 1)
        return count > 0;
    const uint64_t first = group / pushes * pushes;
    if (count > 0 && out->summed <= group) {
        out->kind = ZR_PS_OP_SUM;
        out->adds = out->summed > first;
        out->version--;
        out->applied = group % pushes + 1 < pushes ? group + 1 : 0; /* else OP_SUMMED follows */
        out->summed = group + 1;
        return true;
    }
    out->kind = ZR_PS_OP_SUMMED;
    return group % pushes + 1 == pushes && out->summed > first;
}

/* Applies complete groups of a table. */
static zr_result settle(struct zr_ps_store *store, unsigned table)
{
    struct zr_ps_operation operation;
    zr_result result = ZR_OK;
    uint64_t group;
    while (result == ZR_OK && zr_ps_is_complete(&store->timetable, table, &group)) {
        if (group_operation(store, table, group, &operation))
            result = zr_ps_operate(store, &operation);
        else
            zr_ps_note_applied(&store->timetable, table, group);
    }
    return result;
}

static zr_result settle_all(struct zr_ps_store *store)
{
    zr_result result = ZR_OK;
    for (unsigned t = 0; t < store->setup->options.tables_count && result == ZR_OK; t++)
        result = settle(store, t);
    return result;
}

/* ---- Fills --------------------------------------------------------------------------------------------- */

static void fill(struct zr_ps_store *store, struct zr_ps_request request)
{
    const struct zr_ps_frame *frame = request.frame;
    size_t at = zr_ps_first_data(request);
    for (unsigned i = 0; i < frame->items_count; i++) {
        struct zr_ps_view view = zr_ps_view_of(store->setup, request, i, &at);
        struct zr_ps_slice *slice = &store->slices[view.item.table];
        unsigned slot = frame->content - ZR_PS_SLOT;
        float *to = frame->content < ZR_PS_SLOT                  ? slice->master
                    : slot < ZR_PS_STATES && slice->states[slot] ? slice->states[slot]
                                                                 : NULL;
        if (to && !atomic_load(&store->numbers[view.item.table].written))
            memcpy(to + (view.item.first - slice->part.first), view.data, view.item.bytes);
    }
    at = zr_ps_first_data(request);
    for (unsigned i = 0; i < frame->items_count && frame->done; i++) {
        struct zr_ps_view view = zr_ps_view_of(store->setup, request, i, &at);
        struct zr_ps_numbers *numbers = &store->numbers[view.item.table];
        if (atomic_load(&numbers->written))
            continue;
        atomic_store(&numbers->version, frame->number);
        zr_ps_store_point();
        atomic_store(&numbers->written, 1);
    }
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

static zr_result push(struct zr_ps_store *store, struct zr_ps_request request)
{
    const bool groups = zr_ps_groups(&store->timetable.timing);
    size_t at = zr_ps_first_data(request);
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < request.frame->items_count && result == ZR_OK; i++) {
        struct zr_ps_view view = zr_ps_view_of(store->setup, request, i, &at);
        if (groups && i >= atomic_load(&store->kept->item))
            push_later(store, request, &view);
        else if (!groups)
            result = push_once(store, request, i, &view);
    }
    return result;
}

/* Applies the request of an intent from its next item on. */
static zr_result continue_intent(struct zr_ps_store *store, unsigned buffer)
{
    struct zr_ps_request request = request_in(store, buffer);
    const struct zr_ps_frame *frame = request.frame;
    zr_result result = ZR_OK;
    if (frame->kind == ZR_PS_FILL)
        fill(store, request);
    else if (frame->kind == ZR_PS_PUSH)
        result = push(store, request);
    else if (frame->kind == ZR_PS_END_STEP)
        zr_ps_end_of_step(&store->timetable, frame->worker, frame->clock);
    else if (frame->kind == ZR_PS_LEAVE)
        zr_ps_leaves(&store->timetable, (unsigned)frame->number);
    if (result != ZR_OK)
        return result;
    zr_ps_store_point();
    if (frame->worker < store->setup->options.workers)
        atomic_store(&store->timetable.members[frame->worker].sequence, frame->sequence);
    zr_ps_store_point();
    atomic_store(&store->kept->intent, 0);
    size_t at = zr_ps_first_data(request);
    for (unsigned i = 0; i < frame->items_count && result == ZR_OK; i++)
        result = settle(store, zr_ps_view_of(store->setup, request, i, &at).item.table);
    return result == ZR_OK && frame->items_count == 0 ? settle_all(store) : result;
}

zr_result zr_ps_apply(struct zr_ps_store *store, unsigned buffer)
{
    atomic_store(&store->kept->item, 0);
    atomic_store(&store->kept->layout, store->setup->hash); /* valid from the first request on */
    zr_ps_store_point();
    atomic_store(&store->kept->intent, buffer + 1);
    zr_ps_store_point();
    return continue_intent(store, buffer);
}

zr_result zr_ps_store_recover(struct zr_ps_store *store)
{
    uint64_t intent, buffers = store->setup->options.workers + ZR_PS_EXTRA;
    size_t reply;
    if (atomic_load(&store->kept->layout) == 0)
        return ZR_OK;
    zr_result result = zr_ps_operation_resume(store);
    intent = atomic_load(&store->kept->intent);
    if (result == ZR_OK && intent != 0) {
        if (intent > buffers || !zr_ps_request_valid(store->setup, store->server,
                                                     request_in(store, (unsigned)intent - 1), &reply))
            return zr_fail(ZR_ERR_FORMAT, "the kept memory of server %u is damaged; drop it", store->server);
        result = continue_intent(store, (unsigned)intent - 1);
    }
    return result == ZR_OK ? settle_all(store) : result;
}

/* ---- Reads --------------------------------------------------------------------------------------------- */

/* Notes that the worker has the present version. */
static void note_pull(struct zr_ps_store *store, const struct zr_ps_view *view, unsigned worker)
{
    struct zr_ps_slice *slice = &store->slices[view->item.table];
    atomic_store(&zr_ps_lane_of(&store->timetable, view->item.table, worker)->pulled,
                 version_seen(store, view->item.table));
    if (slice->pulled) {
        size_t first = view->item.first - slice->part.first;
        memcpy(slice->pulled + worker * slice->stride + first, slice->master + first,
               view->item.count * sizeof(float));
    }
}

static zr_result read_item(struct zr_ps_store *store, unsigned content, const struct zr_ps_view *view,
                           char *out)
{
    const struct zr_ps_slice *slice = &store->slices[view->item.table];
    const size_t first = view->item.first - slice->part.first, n = view->item.count;
    if (view->entry->width > 0)
        return zr_table_pull(slice->rows,
                             &(struct zr_table_pull){.ids = view->data, .count = n, .rows = (float *)out});
    if (content > ZR_PS_PARAMETERS) {
        const unsigned slot = content - ZR_PS_SLOT;
        const float *from = content == ZR_PS_MASTER ? slice->master : slice->states[slot];
        if (!from)
            return zr_fail(ZR_ERR_INVALID, "tables have no slot %u", slot);
        memcpy(out, from + first, n * sizeof(float));
        return ZR_OK;
    }
    if (view->entry->table.precision != ZR_PRECISION_FP32)
        return store->kernels->convert(
            store->context, &(struct zr_convert){.n = n,
                                                 .from = {slice->master + first, ZR_PRECISION_FP32},
                                                 .to = {out, view->entry->table.precision}});
    memcpy(out, slice->master + first, n * sizeof(float));
    return ZR_OK;
}

zr_result zr_ps_answer(struct zr_ps_store *store, unsigned buffer, char *out)
{
    struct zr_ps_request request = request_in(store, buffer);
    const struct zr_ps_frame *frame = request.frame;
    size_t at = zr_ps_first_data(request);
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < frame->items_count && result == ZR_OK; i++) {
        struct zr_ps_view view = zr_ps_view_of(store->setup, request, i, &at);
        result = read_item(store, frame->kind == ZR_PS_READ ? frame->content : ZR_PS_PARAMETERS, &view, out);
        if (frame->kind == ZR_PS_PULL && frame->worker < store->setup->options.workers)
            note_pull(store, &view, frame->worker);
        out += view.reply_bytes;
    }
    return result;
}
