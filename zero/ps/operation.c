/* operation.c: changes of one table, in windows with a log, so that a process may be killed at any store. See
 * store.h. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "zero/ps/store.h"

void zr_ps_store_point(void)
{
    if (zr_fault(ZR_FAULT_KEPT))
        kill(getpid(), SIGKILL);
}

static unsigned states_of(const struct zr_ps_store *store)
{
    return store->setup->options.timing.kind == ZR_PS_GEO ? 0 : store->setup->optimizer->slots_count;
}

/* Copies the numbers that a window of the operation changes to the log, or back. */
static void copy_window(struct zr_ps_store *store, const struct zr_ps_operation *operation, size_t at,
                        size_t n, bool back)
{
    struct zr_ps_slice *slice = &store->slices[operation->table];
    const bool sum = operation->kind == ZR_PS_OP_SUM;
    for (unsigned i = 0; i < (sum ? 1 : 1 + states_of(store)); i++) {
        float *numbers = (sum      ? slice->sum
                          : i == 0 ? slice->master
                                   : slice->states[i - 1]) +
                         at,
              *log = store->log + (size_t)i * ZR_PS_WINDOW;
        memcpy(back ? numbers : log, back ? log : numbers, n * sizeof(float));
    }
}

/* Addresses of the pushes of a group in the order of workers; returns their number. */
static unsigned members_of(const struct zr_ps_store *store, const struct zr_ps_operation *operation,
                           size_t at, const void *from[ZR_PS_WORKERS_MAX])
{
    const struct zr_ps_slice *slice = &store->slices[operation->table];
    const size_t bytes = zr_precision_bytes(store->setup->entries[operation->table].table.precision);
    unsigned count = 0;
    for (unsigned w = 0; w < store->setup->options.workers; w++)
        if (atomic_load(&zr_ps_waiter_of(store, (unsigned)operation->table, w, operation->group)->group) ==
            operation->group + 1)
            from[count++] =
                slice->pushes +
                ((w * (size_t)slice->places + operation->group % slice->places) * slice->stride + at) * bytes;
    return count;
}

static zr_result sum_group(const struct zr_ps_store *store, const struct zr_ps_operation *operation,
                           size_t at, size_t n, struct zr_numbers to)
{
    const void *from[ZR_PS_WORKERS_MAX];
    unsigned count = members_of(store, operation, at, from);
    return store->kernels->sum(
        store->context, &(struct zr_sum){.n = n,
                                         .from = from,
                                         .count = count,
                                         .precision = store->setup->entries[operation->table].table.precision,
                                         .scale = 1.0f / (float)count,
                                         .accumulate = operation->kind == ZR_PS_OP_SUM && operation->adds,
                                         .to = to});
}

/* Makes gradients fp32, and compensates their staleness: see ZR_PS_STALE_COMPENSATE. */
static zr_result compensate(const struct zr_ps_store *store, const struct zr_ps_operation *operation,
                            size_t at, size_t n, struct zr_numbers *gradient)
{
    const struct zr_ps_slice *slice = &store->slices[operation->table];
    const float lambda = store->setup->options.staleness.lambda,
                *pulled = slice->pulled + operation->worker * slice->stride + at, *now = slice->master + at;
    float *g = store->scratch;
    zr_result result = store->kernels->convert(
        store->context, &(struct zr_convert){.n = n, .from = *gradient, .to = {g, ZR_PRECISION_FP32}});
    for (size_t i = 0; i < n; i++)
        g[i] += lambda * g[i] * g[i] * (now[i] - pulled[i]);
    *gradient = (struct zr_numbers){g, ZR_PRECISION_FP32};
    return result;
}

static zr_result update(const struct zr_ps_store *store, const struct zr_ps_operation *operation, size_t at,
                        size_t n, struct zr_numbers gradient)
{
    const struct zr_optimizer *optimizer = store->setup->optimizer;
    const struct zr_optimizer_options *o = &store->setup->options.optimizer;
    const struct zr_ps_table *table = &store->setup->entries[operation->table].table;
    struct zr_ps_slice *slice = &store->slices[operation->table];
    float corrections[2];
    optimizer->corrections(o, (double)operation->version, corrections);
    struct zr_optimizer_call call = {.options = o,
                                     .kernels = store->kernels,
                                     .context = store->context,
                                     .rate = operation->rate * table->rate_factor,
                                     .weight_decay = o->weight_decay * table->decay_factor,
                                     .gradient_scale = operation->scale,
                                     .correction1 = corrections[0],
                                     .correction2 = corrections[1],
                                     .n = n,
                                     .gradient = gradient,
                                     .master = slice->master + at,
                                     .first = slice->part.first + at};
    for (unsigned s = 0; s < states_of(store); s++)
        call.slots[s] = slice->states[s] + at;
    return optimizer->update(&call);
}

static zr_result change_window(struct zr_ps_store *store, const struct zr_ps_operation *operation, size_t at,
                               size_t n)
{
    const enum zr_precision precision = store->setup->entries[operation->table].table.precision;
    struct zr_ps_slice *slice = &store->slices[operation->table];
    const char *data = (const char *)zr_ps_buffer(store, (unsigned)operation->worker) + operation->offset +
                       at * zr_precision_bytes(precision);
    struct zr_numbers gradient = {(void *)data, precision};
    zr_result result = ZR_OK;
    switch (operation->kind) {
    case ZR_PS_OP_ADD:
        return store->kernels->sum(store->context, &(struct zr_sum){.n = n,
                                                                    .from = (const void *const[]){data},
                                                                    .count = 1,
                                                                    .scale = 1,
                                                                    .accumulate = true,
                                                                    .to = {slice->master + at}});
    case ZR_PS_OP_SUM:
        return sum_group(store, operation, at, n, (struct zr_numbers){slice->sum + at, ZR_PRECISION_FP32});
    case ZR_PS_OP_SUMMED:
        gradient = (struct zr_numbers){slice->sum + at, ZR_PRECISION_FP32};
        break;
    case ZR_PS_OP_GROUP:
        gradient = (struct zr_numbers){store->scratch, precision};
        result = sum_group(store, operation, at, n, gradient);
        break;
    default:
        if (slice->pulled)
            result = compensate(store, operation, at, n, &gradient);
    }
    return result == ZR_OK ? update(store, operation, at, n, gradient) : result;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* Copies ids and scaled rows behind those that are gathered already. */
static void gather(struct zr_ps_store *store, const char *data, size_t count, float scale, size_t *have,
                   size_t all, unsigned width)
{
    uint64_t *ids = (uint64_t *)store->gathered;
    float *rows = (float *)(ids + all);
    const float *from = (const float *)(data + count * sizeof *ids);
    memcpy(ids + *have, data, count * sizeof *ids);
    for (size_t i = 0; i < count * width; i++)
        rows[*have * width + i] = from[i] * scale;
    *have += count;
}

static zr_result change_rows(struct zr_ps_store *store, const struct zr_ps_operation *operation)
{
    const struct zr_ps_options *o = &store->setup->options;
    const unsigned table = (unsigned)operation->table, width = store->setup->entries[table].width;
    const struct zr_ps_slice *slice = &store->slices[table];
    size_t all = operation->count, have = 0;
    float scale = operation->scale, rate = operation->rate * store->setup->entries[table].table.rate_factor;
    if (operation->kind == ZR_PS_OP_ROWS) {
        /* SGD with rate 1 subtracts, so a difference is added with the opposite sign. */
        bool adds = o->timing.kind == ZR_PS_GEO;
        gather(store, (const char *)zr_ps_buffer(store, (unsigned)operation->worker) + operation->offset, all,
               adds ? -1 : scale, &have, all, width);
        rate = adds ? 1 : rate;
    }
    for (unsigned w = 0; w < o->workers && operation->kind == ZR_PS_OP_ROWS_GROUP; w++) {
        const struct zr_ps_waiter *waiter = zr_ps_waiter_of(store, table, w, operation->group);
        if (atomic_load(&waiter->group) == operation->group + 1)
            gather(store,
                   store->row_areas +
                       (w * (size_t)slice->places + operation->group % slice->places) *
                           store->setup->message_bytes +
                       waiter->offset,
                   waiter->count, scale, &have, all, width);
    }
    return zr_table_push(
        slice->rows,
        &(struct zr_table_push){.ids = (const uint64_t *)store->gathered,
                                .count = all,
                                .gradients = (const float *)(store->gathered + all * sizeof(uint64_t)),
                                .rate = rate,
                                .sequence = operation->version},
        NULL);
}

/* ---- From begin to end --------------------------------------------------------------------------------- */

static zr_result change(struct zr_ps_store *store)
{
    struct zr_ps_operation *operation = &store->kept->operation;
    const size_t count = store->slices[operation->table].part.count;
    zr_result result = ZR_OK;
    if (operation->kind >= ZR_PS_OP_ROWS)
        return change_rows(store, operation);
    for (size_t at = atomic_load(&operation->done), n; at < count && result == ZR_OK; at += n) {
        n = count - at < ZR_PS_WINDOW ? count - at : ZR_PS_WINDOW;
        copy_window(store, operation, at, n, false);
        zr_ps_store_point();
        atomic_store(&operation->logged, 1 + at);
        zr_ps_store_point();
        result = change_window(store, operation, at, n);
        zr_ps_store_point();
        if (result == ZR_OK)
            atomic_store(&operation->done, at + n);
    }
    return result;
}

/* Stores what follows from the change, all of it absolute. */
static void conclude(struct zr_ps_store *store)
{
    struct zr_ps_operation *operation = &store->kept->operation;
    struct zr_ps_numbers *numbers = &store->numbers[operation->table];
    zr_ps_store_point();
    atomic_store(&numbers->version, operation->version);
    zr_ps_store_point();
    atomic_store(&numbers->summed, operation->summed);
    if (operation->applied > 0)
        zr_ps_note_applied(&store->timetable, (unsigned)operation->table, operation->applied - 1);
    atomic_store(&store->kept->item, operation->item);
    zr_ps_store_point();
    atomic_store(&operation->active, 0);
    store->updates += operation->kind != ZR_PS_OP_SUM;
}

zr_result zr_ps_operate(struct zr_ps_store *store, const struct zr_ps_operation *operation)
{
    struct zr_ps_operation *kept = &store->kept->operation;
    memcpy((void *)kept, operation, sizeof *kept); /* not active */
    zr_ps_store_point();
    atomic_store(&kept->active, 1);
    zr_result result = change(store);
    if (result == ZR_OK)
        conclude(store);
    return result;
}

zr_result zr_ps_operation_resume(struct zr_ps_store *store)
{
    struct zr_ps_operation *operation = &store->kept->operation;
    if (!atomic_load(&operation->active))
        return ZR_OK;
    if (operation->table >= store->setup->options.tables_count || operation->kind > ZR_PS_OP_ROWS_GROUP)
        return zr_fail(ZR_ERR_FORMAT, "the kept memory of server %u is damaged; drop it", store->server);
    const size_t count = store->slices[operation->table].part.count, done = atomic_load(&operation->done);
    if (operation->kind < ZR_PS_OP_ROWS && atomic_load(&operation->logged) == 1 + done && done < count)
        copy_window(store, operation, done, count - done < ZR_PS_WINDOW ? count - done : ZR_PS_WINDOW, true);
    zr_result result = change(store);
    if (result == ZR_OK)
        conclude(store);
    return result;
}
