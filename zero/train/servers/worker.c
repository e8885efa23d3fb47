/* worker.c: a rank as a worker of parameter servers: the calls of its engine. See servers.h. */
#include "zero/train/servers/servers.h"

#include <string.h>
#include <time.h>

#include "alloc/base/error.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/comm/posted.h"
#include "zero/comm/take.h"
#include "zero/engine/update.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"

struct zr_served_worker {
    struct zr_rank *rank;
    struct zr_served_tables tables;
    struct zr_ps_item *items; /* [tables.most] */
    zr_ps_worker *worker;
    float rate;
    bool begun, completes; /* pulls are answered / worker 0 writes values for the last time */
    uint64_t done;         /* updates that completed tables have had */
    bool left, succeeds;   /* succeeds: a predecessor has ended a step, so the tables are complete */
};

static struct zr_ps_batch batch_of(struct zr_served_worker *own, const struct zr_server_tensors *of)
{
    for (size_t i = 0; i < of->count; i++)
        own->items[i] = (struct zr_ps_item){.table = own->tables.numbers[of->tensors[i].parameter],
                                            .count = of->tensors[i].elements,
                                            .values = of->tensors[i].values.at};
    return (struct zr_ps_batch){own->items, (unsigned)of->count};
}

static zr_result pull(void *state, const struct zr_server_tensors *to)
{
    struct zr_served_worker *own = state;
    const struct zr_ps_batch batch = batch_of(own, to);
    return zr_ps_pull(own->worker, &batch);
}

static zr_result push(void *state, const struct zr_server_tensors *from)
{
    struct zr_served_worker *own = state;
    return zr_ps_push(own->worker, &(struct zr_ps_push){.batch = batch_of(own, from), .rate = own->rate});
}

/* --worker-sleep: the milliseconds of this worker, the last number for all further workers. */
static uint64_t sleep_of(const struct zr_served_worker *own)
{
    const struct zr_train_config *config = own->rank->config;
    const unsigned last = config->worker_sleeps_count;
    return last == 0 ? 0 : config->worker_sleeps[own->rank->rank < last ? own->rank->rank : last - 1];
}

void zr_served_sleep(const struct zr_rank *rank)
{
    const uint64_t sleeps_ms = rank->served ? sleep_of(rank->served) : 0;
    if (sleeps_ms > 0)
        nanosleep(&(struct timespec){.tv_sec = (time_t)(sleeps_ms / 1000),
                                     .tv_nsec = (long)(sleeps_ms % 1000 * 1000000)},
                  NULL);
}

static zr_result end_step(void *state, float rate)
{
    struct zr_served_worker *own = state;
    (void)rate; /* the pushes had it */
    return zr_ps_end_step(own->worker);
}

static unsigned content_of(unsigned kind)
{
    return kind == 0 ? ZR_PS_MASTER : ZR_PS_SLOT + kind - 1;
}

/* Before the first step only worker 0 has values; those of the others are replaced by their first pulls. */
static zr_result read_state(void *state, unsigned kind, const struct zr_server_tensors *to)
{
    struct zr_served_worker *own = state;
    const struct zr_ps_batch batch = batch_of(own, to);
    if (own->begun || (own->rank->rank == 0 && !own->succeeds))
        return zr_ps_read(own->worker, content_of(kind), &batch);
    for (size_t i = 0; i < to->count; i++)
        memset(to->tensors[i].values.at, 0, to->tensors[i].elements * sizeof(float));
    return ZR_OK;
}

static zr_result write_state(void *state, unsigned kind, const struct zr_server_tensors *from)
{
    struct zr_served_worker *own = state;
    if (own->begun)
        return zr_fail(ZR_ERR_INVALID,
                       "the servers' parameters cannot be written after the first step has begun");
    if (own->rank->rank != 0 || own->succeeds)
        return ZR_OK;
    const bool last = kind == zr_optimizer_of(own->rank->config->optimizer.kind)->slots_count;
    return zr_ps_fill(own->worker, &(struct zr_ps_filling){.batch = batch_of(own, from),
                                                           .content = content_of(kind),
                                                           .done = own->completes && last,
                                                           .updates = own->done});
}

static zr_result open_worker(struct zr_rank *rank, bool leaves, struct zr_servers *out)
{
    const struct zr_train_config *config = rank->config;
    const struct zr_served_run *run = config->served;
    const char *addresses[2 * ZR_PS_SERVERS_MAX];
    struct zr_served_worker *own;
    *out = (struct zr_servers){.on = false};
    if (!zr_train_is_served(config))
        return ZR_OK;
    zr_result result = zr_take(rank->host_arena, ZR_TAG_OTHER, 1, sizeof *own, (void **)&own);
    if (result != ZR_OK)
        return result;
    *own = (struct zr_served_worker){.rank = rank};
    rank->served = own;
    result = zr_served_tables_make(&own->tables, config, rank->host_arena);
    if (result == ZR_OK)
        result = zr_take(rank->host_arena, ZR_TAG_OTHER, own->tables.most, sizeof *own->items,
                         (void **)&own->items);
    for (unsigned i = 0; i < run->count; i++)
        addresses[i] = run->addresses[i];
    if (result == ZR_OK)
        result = zr_ps_worker_create(
            &own->worker,
            &(struct zr_ps_worker_options){.struct_bytes = sizeof(struct zr_ps_worker_options),
                                           .common = own->tables.options,
                                           .worker = rank->rank,
                                           .addresses = addresses,
                                           .replicas = config->replicas ? addresses + config->servers : NULL,
                                           .arena = rank->host_arena,
                                           .timeout_ns = config->comm_timeout * UINT64_C(1000000000),
                                           .leaves = leaves});
    own->succeeds = zr_ps_worker_clock(own->worker) > 0;
    if (!zr_train_differs(config))
        *out = (struct zr_servers){true, own, pull, push, end_step, read_state, write_state};
    return result;
}

zr_result zr_served_open(struct zr_rank *rank, struct zr_servers *out)
{
    return open_worker(rank, false, out);
}

/* ---- Differences of parameters: --ps geo:K ------------------------------------------------------------- */

/* What a unit's exchange consists of. */
enum part { FILLS = 1, PUSHES = 2, PULLS = 4 };

static zr_result exchange_unit(struct zr_served_worker *own, size_t unit, unsigned parts)
{
    struct zr_trainer_state *state = &own->rank->state;
    const struct zr_layout *layout = &state->engine->layout;
    const struct zr_layout_unit *u = &layout->units[unit];
    struct zr_owned owned;
    zr_result result = zr_engine_take_owned(state->engine, unit, &owned);
    const struct zr_ps_exchange exchange = {u->padded_elements, own->rank->config->world, owned.master,
                                            state->old + u->pool_offset};
    const struct zr_ps_batch batch = {own->items, (unsigned)u->parameters_count};
    float *values = parts & FILLS ? owned.master : state->difference;
    for (size_t i = 0; i < u->parameters_count; i++) {
        const struct zr_layout_parameter *p = &layout->parameters[u->first_parameter + i];
        own->items[i] = (struct zr_ps_item){.table = own->tables.numbers[u->first_parameter + i],
                                            .count = p->elements,
                                            .values = values + p->offset};
    }
    if (result == ZR_OK && parts & FILLS && !own->succeeds)
        result = zr_ps_fill(own->worker, &(struct zr_ps_filling){batch, ZR_PS_MASTER, true, 0});
    if (result == ZR_OK && parts & PUSHES) {
        zr_ps_difference(&exchange, state->difference);
        result = zr_ps_push(own->worker, &(struct zr_ps_push){.batch = batch});
    }
    for (size_t i = 0; i < u->parameters_count; i++)
        own->items[i].values = state->difference + layout->parameters[u->first_parameter + i].offset;
    if (result == ZR_OK && parts & PULLS)
        result = zr_ps_pull(own->worker, &batch);
    if (result == ZR_OK && parts & FILLS) /* own - old is 0 then */
        memcpy(exchange.old, exchange.own, exchange.n * sizeof *exchange.old);
    if (result == ZR_OK && parts & PULLS)
        zr_ps_receive(&exchange, state->difference);
    zr_result given = zr_engine_give_owned(state->engine, unit, true);
    result = result == ZR_OK ? given : result;
    return result == ZR_OK ? zr_engine_publish_masters(state->engine, unit) : result;
}

/* Exchanges all units between two steps. Padding stays 0. */
static zr_result exchange(struct zr_served_worker *own, unsigned parts)
{
    struct zr_engine *engine = own->rank->state.engine;
    zr_result result = zr_engine_synchronize(engine);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++)
        if (!zr_engine_is_frozen(engine, u))
            result = exchange_unit(own, u, parts);
    return result == ZR_OK && parts & PUSHES ? zr_ps_end_step(own->worker) : result;
}

/* Worker 0 writes the parameters, and all continue from them. */
static zr_result begin_differences(struct zr_served_worker *own)
{
    struct zr_trainer_state *state = &own->rank->state;
    const size_t elements = state->engine->layout.pool_elements;
    memset(state->old, 0, elements * sizeof *state->old);
    for (size_t u = 0; u < state->engine->layout.units_count; u++) /* padding */
        memset(state->difference, 0,
               state->engine->layout.units[u].padded_elements * sizeof *state->difference);
    zr_result result = exchange(own, FILLS);
    return result == ZR_OK ? exchange(own, PULLS) : result;
}

zr_result zr_served_after_step(struct zr_rank *rank, uint64_t step)
{
    const struct zr_train_config *config = rank->config;
    return zr_train_differs(config) && step % config->timing.parameter == 0
               ? exchange(rank->served, PUSHES | PULLS)
               : ZR_OK;
}

zr_result zr_served_settle(struct zr_rank *rank)
{
    const bool differs = zr_train_differs(rank->config);
    if (!rank->served)
        return ZR_OK;
    zr_result result = zr_comm_all_status(rank->comm, differs ? exchange(rank->served, PUSHES) : ZR_OK);
    return result == ZR_OK && differs ? exchange(rank->served, PULLS) : result;
}

/* ---- A run --------------------------------------------------------------------------------------------- */

zr_result zr_served_begin(struct zr_rank *rank, uint64_t done)
{
    struct zr_served_worker *own = rank->served;
    struct zr_engine *engine = rank->state.engine;
    zr_result result = ZR_OK;
    if (!own)
        return ZR_OK;
    if (zr_train_differs(rank->config))
        return zr_comm_all_status(rank->comm, begin_differences(own));
    own->completes = rank->rank == 0;
    own->done = done;
    for (size_t u = 0; own->completes && u < engine->layout.units_count && result == ZR_OK; u++) {
        struct zr_owned owned;
        if (zr_engine_is_frozen(engine, u))
            continue;
        result = zr_engine_take_owned(engine, u, &owned);
        zr_result given = zr_engine_give_owned(engine, u, true);
        result = result == ZR_OK ? given : result;
    }
    own->begun = true;
    return zr_comm_all_status(rank->comm, result);
}

zr_result zr_served_save(struct zr_rank *rank, const struct zr_checkpoint *checkpoint, uint64_t step)
{
    struct zr_served_worker *own = rank->served;
    zr_result result = zr_served_settle(rank);
    if (result == ZR_OK && rank->rank == 0 && zr_train_differs(rank->config)) {
        result = zr_checkpoint_save(checkpoint, step);
    } else if (result == ZR_OK && rank->rank == 0) {
        /* The optimizer's corrections count updates, of which a step of free workers has several. */
        const uint64_t steps = rank->state.engine->steps_done;
        result = zr_ps_version(own->worker, 0, &rank->state.engine->steps_done);
        if (result == ZR_OK)
            result = zr_checkpoint_save(checkpoint, step);
        rank->state.engine->steps_done = steps;
    }
    return zr_comm_all_status(rank->comm, result);
}

uint64_t zr_served_worker_clock(const struct zr_rank *rank)
{
    return rank->served ? zr_ps_worker_clock(rank->served->worker) : 0;
}

int zr_served_lose(const struct zr_train_config *config, struct zr_local_world *local, unsigned number)
{
    struct zr_rank rank;
    struct zr_servers servers;
    zr_result result = zr_rank_open_records(&rank, config);
    rank.local = local;
    rank.rank = number;
    if (result == ZR_OK)
        result = open_worker(&rank, true, &servers); /* it may have left before it was killed */
    if (result == ZR_OK)
        result = zr_served_leave(&rank);
    if (result == ZR_OK)
        result = zr_comm_posted_leave(&config->served->posts, number);
    if (result != ZR_OK)
        zr_say("rank %u: %s", number, zr_last_error());
    zr_served_close(&rank);
    zr_result closed = zr_rank_close(&rank);
    return (int)zr_exit_of(result != ZR_OK ? result : closed);
}

void zr_served_set_rate(struct zr_rank *rank, float rate)
{
    if (rank->served)
        rank->served->rate = rate;
}

zr_result zr_served_report(struct zr_rank *rank, struct zr_served_report *out)
{
    struct zr_served_worker *own = rank->served;
    *out = (struct zr_served_report){.worker_restarts = zr_local_replaced(rank->local),
                                     .workers_left = zr_local_left(rank->local)};
    if (!own)
        return ZR_OK;
    zr_result result = zr_ps_report(own->worker, &out->state);
    return result == ZR_OK ? zr_ps_version(own->worker, 0, &out->version) : result;
}

zr_result zr_served_leave(struct zr_rank *rank)
{
    struct zr_served_worker *own = rank->served;
    if (!own || own->left)
        return ZR_OK;
    own->left = true;
    return zr_ps_leave(own->worker, rank->rank);
}

void zr_served_close(struct zr_rank *rank)
{
    struct zr_served_worker *own = rank->served;
    if (!own)
        return;
    zr_ps_worker_destroy(own->worker);
    zr_drop(rank->host_arena, &own->items);
    zr_served_tables_end(&own->tables, rank->host_arena);
    zr_drop(rank->host_arena, &rank->served);
}
