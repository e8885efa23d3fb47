/* click_store.c: where the parameters live: in this process (a sparse table, and Adam for the other
 * parameters), or on parameter servers. With geo a worker trains on copies and pushes differences. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "click.h"

enum { DENSE, ROWS, STATES, TABLES }; /* STATES: of Adagrad for rows, with geo only */
enum {
    DENSE_COUNT = sizeof(struct click_dense) / sizeof(float),
    ROW_BYTES = 8 + CLICK_WIDTH * sizeof(float)
};
static const float BETA1 = 0.9f, BETA2 = 0.999f, EPSILON = 1e-8f;

struct click_store {
    const struct click_run *run;
    struct click_model *model;
    struct click_memory memory;
    unsigned number;
    uint64_t steps;
    struct click_dense *dense;
    float *momentum, *variance; /* of Adam in this process */
    zr_table *table;            /* or: */
    zr_ps_worker *worker;
    struct {
        struct click_dense *old, *difference;
        uint64_t *ids; /* of the round: sorted, without repetitions */
        size_t ids_count;
        size_t *places; /* of the ids of the step, among those of the round */
        float *rows, *states, *old_rows, *old_states, *sums; /* [ids_count][CLICK_WIDTH] */
    } geo;
};

static zr_result take(zr_arena *arena, size_t bytes, void *out /* address of a pointer */)
{
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_PARAM}, out);
}

/* ---- Tables -------------------------------------------------------------------------------------------- */

/* Ids of a push. */
static size_t ids_max(const struct click_run *run)
{
    unsigned steps = run->timing.kind == ZR_PS_GEO ? run->timing.parameter : 1;
    return (size_t)steps * run->batch * CLICK_CATEGORIES;
}

/* Of one of `servers` equal tables. */
static struct zr_table_options table_options(const struct click_run *run, unsigned servers, zr_arena *arena)
{
    const bool adds = run->timing.kind == ZR_PS_GEO,
               groups = run->timing.kind == ZR_PS_SYNC || run->timing.kind == ZR_PS_SSP; /* pushes of all */
    return (struct zr_table_options){.struct_bytes = sizeof(struct zr_table_options),
                                     .arena = arena,
                                     .name = "rows",
                                     .width = CLICK_WIDTH,
                                     .optimizer = adds ? ZR_TABLE_SGD : ZR_TABLE_ADAGRAD,
                                     .epsilon = EPSILON,
                                     .init_range = 0.02f,
                                     .seed = run->seed,
                                     .rows_limit = run->rows_limit / servers + 1,
                                     .memory_limit_bytes = run->memory_limit_bytes / servers,
                                     .file = {.folder = run->folder, .force = true},
                                     .batch_max = (groups ? run->workers : 1) * ids_max(run)};
}

struct tables {
    struct zr_table_options rows, states;
    struct zr_ps_table list[TABLES];
    struct zr_ps_options options;
};

/* Options of servers and workers; they point into *out. */
static void describe(struct tables *out, const struct click_run *run, zr_arena *arena)
{
    out->rows = out->states = table_options(run, run->servers, arena);
    out->rows.batch_max = out->states.batch_max = ids_max(run); /* of a worker: servers group pushes */
    out->states.name = "states";
    out->states.init_range = 0;
    out->list[DENSE] = (struct zr_ps_table){.name = "dense",
                                            .elements = DENSE_COUNT,
                                            .rate_factor = run->dense_factor,
                                            .decay_factor = 1,
                                            .filled = true};
    out->list[ROWS] = (struct zr_ps_table){.name = "rows", .rows = &out->rows, .rate_factor = 1};
    out->list[STATES] = (struct zr_ps_table){.name = "states", .rows = &out->states, .rate_factor = 1};
    out->options = (struct zr_ps_options){
        .struct_bytes = sizeof out->options,
        .workers = run->workers,
        .servers = run->servers,
        .timing = run->timing,
        .staleness = run->staleness,
        .optimizer = {.kind = ZR_OPTIMIZER_ADAMW, .beta1 = BETA1, .beta2 = BETA2, .epsilon = EPSILON},
        .message_bytes = (1 << 20) + ids_max(run) * ROW_BYTES,
        .tables = out->list,
        .tables_count = run->timing.kind == ZR_PS_GEO ? TABLES : TABLES - 1};
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

static zr_result connect_worker(click_store *store)
{
    struct tables tables;
    describe(&tables, store->run, store->memory.tables);
    const struct zr_ps_worker_options options = {.struct_bytes = sizeof options,
                                                 .common = tables.options,
                                                 .worker = store->number,
                                                 .addresses = store->run->addresses,
                                                 .arena = store->memory.others};
    const struct zr_ps_item all = {.table = DENSE, .count = DENSE_COUNT, .values = store->dense};
    TRY(zr_ps_worker_create(&store->worker, &options));
    return zr_ps_fill(store->worker, &(struct zr_ps_filling){.batch = {&all, 1}, .done = true});
}

zr_result click_store_open(click_store **out, const struct click_run *run, struct click_model *model,
                           const struct click_memory *memory, unsigned number)
{
    zr_arena *arena = memory->others;
    void *at;
    TRY(take(arena, sizeof **out, &at));
    click_store *store = memset(at, 0, sizeof **out);
    *store = (struct click_store){.run = run, .model = model, .memory = *memory, .number = number};
    *out = store;
    TRY(take(arena, sizeof *store->dense, &store->dense));
    click_dense_init(store->dense, run->seed);
    if (run->servers == 0 || run->timing.kind == ZR_PS_GEO) {
        TRY(take(arena, sizeof *store->dense, &store->momentum));
        TRY(take(arena, sizeof *store->dense, &store->variance));
        memset(store->momentum, 0, sizeof *store->dense);
        memset(store->variance, 0, sizeof *store->dense);
    }
    if (run->timing.kind == ZR_PS_GEO) {
        const size_t room = ids_max(run);
        TRY(take(arena, sizeof *store->dense, &store->geo.old));
        TRY(take(arena, sizeof *store->dense, &store->geo.difference));
        TRY(take(arena, room * sizeof(uint64_t), &store->geo.ids));
        TRY(take(arena, room * sizeof(size_t), &store->geo.places));
        float **blocks[] = {&store->geo.rows, &store->geo.states, &store->geo.old_rows,
                            &store->geo.old_states, &store->geo.sums};
        for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
            TRY(take(arena, room * CLICK_WIDTH * sizeof(float), blocks[i]));
        memset(store->geo.sums, 0, room * CLICK_WIDTH * sizeof(float));
    }
    if (run->servers > 0)
        return connect_worker(store);
    const struct zr_table_options rows = table_options(run, 1, memory->tables);
    return zr_table_create(&store->table, &rows);
}

void click_store_close(click_store *store)
{
    if (!store)
        return;
    zr_ps_worker_destroy(store->worker);
    zr_table_close(store->table);
}

/* ---- A step -------------------------------------------------------------------------------------------- */

/* Adam in this process. */
static zr_result update_dense(click_store *store, struct click_dense *gradient)
{
    const struct zr_update_adamw update = {
        .how = {.rate = store->run->rate * store->run->dense_factor,
                .beta1 = BETA1,
                .beta2 = BETA2,
                .epsilon = EPSILON,
                .gradient_scale = 1,
                .correction1 = (float)(1 - pow(BETA1, (double)store->steps)),
                .correction2 = (float)(1 - pow(BETA2, (double)store->steps))},
        .numbers = {.n = DENSE_COUNT,
                    .gradient = {gradient, ZR_PRECISION_FP32},
                    .master = &store->dense->w1[0][0],
                    .momentum = store->momentum,
                    .variance = store->variance}};
    return store->model->kernels->update_adamw(&store->model->context, &update);
}

/* The place of an id among those of the round. */
static size_t place_of(const click_store *store, uint64_t id)
{
    size_t low = 0, high = store->geo.ids_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        *(store->geo.ids[middle] <= id ? &low : &high) = middle;
    }
    return low;
}

zr_result click_store_pull(click_store *store, const struct click_rows *rows, bool peek,
                           const struct click_dense **out_dense)
{
    const struct zr_table_pull pull = {
        .ids = rows->ids, .count = rows->count, .rows = rows->values, .peek = peek};
    const struct zr_ps_item items[] = {
        {.table = DENSE, .count = DENSE_COUNT, .values = store->dense},
        {.table = ROWS, .ids = rows->ids, .ids_count = rows->count, .values = rows->values}};
    *out_dense = store->dense;
    if (store->table)
        return zr_table_pull(store->table, &pull);
    if (store->run->timing.kind != ZR_PS_GEO || peek)
        return zr_ps_pull(store->worker, &(struct zr_ps_batch){items, 2});
    for (size_t i = 0; i < rows->count; i++) {
        store->geo.places[i] = place_of(store, rows->ids[i]);
        memcpy(rows->values + i * CLICK_WIDTH, store->geo.rows + store->geo.places[i] * CLICK_WIDTH,
               CLICK_WIDTH * sizeof(float));
    }
    return ZR_OK;
}

/* ---- geo ----------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

zr_result click_store_fetch(click_store *store, const struct click_rows *rows)
{
    uint64_t *ids = store->geo.ids;
    size_t count = 0;
    memcpy(ids, rows->ids, rows->count * sizeof *ids);
    qsort(ids, rows->count, sizeof *ids, compare);
    for (size_t i = 0; i < rows->count; i++)
        if (i == 0 || ids[i] != ids[count - 1])
            ids[count++] = ids[i];
    store->geo.ids_count = count;
    const struct zr_ps_item items[] = {
        {.table = DENSE, .count = DENSE_COUNT, .values = store->geo.difference},
        {.table = ROWS, .ids = ids, .ids_count = count, .values = store->geo.rows},
        {.table = STATES, .ids = ids, .ids_count = count, .values = store->geo.states}};
    TRY(zr_ps_pull(store->worker, &(struct zr_ps_batch){items, TABLES}));
    memcpy(store->geo.old_rows, store->geo.rows, count * CLICK_WIDTH * sizeof(float));
    memcpy(store->geo.old_states, store->geo.states, count * CLICK_WIDTH * sizeof(float));
    const struct zr_ps_exchange dense = {DENSE_COUNT, store->run->workers, &store->dense->w1[0][0],
                                         &store->geo.old->w1[0][0]};
    if (store->steps == 0)
        *store->dense = *store->geo.old = *store->geo.difference;
    else
        zr_ps_receive(&dense, &store->geo.difference->w1[0][0]);
    return ZR_OK;
}

/* Adagrad on the copies. */
static void update_copies(click_store *store, const struct click_rows *rows)
{
    for (size_t i = 0; i < rows->count * CLICK_WIDTH; i++)
        store->geo.sums[store->geo.places[i / CLICK_WIDTH] * CLICK_WIDTH + i % CLICK_WIDTH] +=
            rows->values[i];
    for (size_t i = 0; i < rows->count; i++) {
        const size_t at = store->geo.places[i] * CLICK_WIDTH;
        float *sums = store->geo.sums + at, *row = store->geo.rows + at, *state = store->geo.states + at;
        for (unsigned k = 0; k < CLICK_WIDTH; k++) {
            state[k] += sums[k] * sums[k];
            row[k] -= store->run->rate * sums[k] / (sqrtf(state[k]) + EPSILON);
            sums[k] = 0; /* a repeated id changes nothing */
        }
    }
}

/* The states of Adagrad are sums, so that servers add their differences, too. */
static zr_result push_geo(click_store *store, const struct click_rows *rows, struct click_dense *gradient)
{
    const size_t count = store->geo.ids_count;
    const struct zr_ps_exchange exchanges[TABLES] = {
        {DENSE_COUNT, store->run->workers, &store->dense->w1[0][0], &store->geo.old->w1[0][0]},
        {count * CLICK_WIDTH, store->run->workers, store->geo.rows, store->geo.old_rows},
        {count * CLICK_WIDTH, store->run->workers, store->geo.states, store->geo.old_states}};
    struct zr_ps_item items[TABLES] = {
        {.table = DENSE, .count = DENSE_COUNT, .values = store->geo.difference},
        {.table = ROWS, .ids = store->geo.ids, .ids_count = count, .values = store->geo.sums},
        {.table = STATES, .ids = store->geo.ids, .ids_count = count, .values = store->geo.sums}};
    update_copies(store, rows);
    TRY(update_dense(store, gradient));
    for (unsigned table = 0; table < TABLES && store->steps % store->run->timing.parameter == 0; table++) {
        zr_ps_difference(&exchanges[table], items[table].values);
        TRY(zr_ps_push(store->worker, &(struct zr_ps_push){.batch = {&items[table], 1}, .rate = 1}));
        memset(store->geo.sums, 0, count * CLICK_WIDTH * sizeof(float));
    }
    return zr_ps_end_step(store->worker);
}

/* ---- The end of a step and of a worker ----------------------------------------------------------------- */

zr_result click_store_push(click_store *store, const struct click_rows *rows, struct click_dense *gradient)
{
    const struct zr_table_push push = {
        .ids = rows->ids, .count = rows->count, .gradients = rows->values, .rate = store->run->rate};
    const struct zr_ps_item items[] = {
        {.table = DENSE, .count = DENSE_COUNT, .values = gradient},
        {.table = ROWS, .ids = rows->ids, .ids_count = rows->count, .values = rows->values}};
    store->steps++;
    if (store->table) {
        TRY(update_dense(store, gradient));
        return zr_table_push(store->table, &push, NULL);
    }
    if (store->run->timing.kind == ZR_PS_GEO)
        return push_geo(store, rows, gradient);
    TRY(zr_ps_push(store->worker, &(struct zr_ps_push){.batch = {items, 2}, .rate = store->run->rate}));
    return zr_ps_end_step(store->worker);
}

zr_result click_store_report(click_store *store, struct zr_ps_state *out)
{
    return zr_ps_report(store->worker, out);
}

zr_result click_store_leave(click_store *store)
{
    return store->worker ? zr_ps_leave(store->worker, store->number) : ZR_OK;
}

/* ---- Servers and bytes --------------------------------------------------------------------------------- */

/* Adds the planned bytes of a table. */
static zr_result plan(const struct zr_table_options *options, struct click_tiers *out)
{
    struct zr_table_plan plan;
    TRY(zr_table_plan(options, &plan));
    out->memory_planned += plan.memory_bytes + plan.staging_bytes;
    out->file_planned += plan.file_bytes;
    return ZR_OK;
}

static zr_result measure(zr_arena *tables, struct click_tiers *out)
{
    struct zr_tag_limits high;
    TRY(zr_arena_get_high_water(tables, &high));
    out->memory_measured = high.total_bytes;
    return ZR_OK;
}

zr_result click_store_tiers(click_store *store, struct click_tiers *out)
{
    const struct zr_table_options rows = table_options(store->run, 1, store->memory.tables);
    struct zr_table_status status;
    zr_table_get_status(store->table, &status);
    *out = (struct click_tiers){.rows_count = status.rows_count,
                                .slots_used_count = status.slots_used_count,
                                .file_measured = status.file_bytes,
                                .file_read = status.file_read_bytes,
                                .file_written = status.file_written_bytes,
                                .file_wait_ns = status.file_wait_ns};
    struct zr_table_plan shape;
    TRY(zr_table_plan(&rows, &shape));
    out->file_changed = status.stored_count * shape.row_bytes;
    TRY(plan(&rows, out));
    return measure(store->memory.tables, out);
}

zr_result click_serve(const struct click_run *run, struct click_model *model,
                      const struct click_memory *memory, unsigned number, struct click_tiers *out)
{
    struct tables tables;
    struct zr_ps_bytes bytes;
    const struct zr_table_options rows = table_options(run, run->servers, memory->tables);
    describe(&tables, run, memory->tables);
    const struct zr_ps_server_options options = {.struct_bytes = sizeof options,
                                                 .common = tables.options,
                                                 .server = number,
                                                 .listener = run->listeners[number],
                                                 .arena = memory->tables,
                                                 .kernels = model->kernels,
                                                 .context = &model->context};
    zr_ps_server *server = NULL;
    TRY(zr_ps_server_plan(&tables.options, number, memory->others, &bytes));
    *out = (struct click_tiers){.memory_planned = bytes.master + bytes.optimizer + bytes.gradients +
                                                  bytes.messages + bytes.log};
    for (unsigned table = ROWS; table < tables.options.tables_count; table++)
        TRY(plan(&rows, out));
    zr_result result = zr_ps_server_create(&server, &options);
    if (result == ZR_OK)
        result = zr_ps_server_run(server);
    zr_ps_server_destroy(server);
    return result == ZR_OK ? measure(memory->tables, out) : result;
}
