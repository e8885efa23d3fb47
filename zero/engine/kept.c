/* kept.c: see kept.h. */
#include "zero/engine/kept.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/hash.h"
#include "zero/engine/compression.h"

/* The log of a window stays in the processor's caches, and its copy reads what the update reads next. */
enum { WINDOW_ELEMENTS = 64 << 10 };
#define RECORD_VERSION 1

/* What the update of a step needs beside gradients and state. */
struct arguments {
    float rate, gradient_scale, correction1, correction2;
};

struct zr_kept_record {
    _Atomic uint64_t layout;  /* hash of what the memory contains; 0: nothing of use */
    _Atomic uint64_t steps;   /* committed */
    _Atomic uint64_t decided; /* the last step whose update has begun */
    _Atomic uint64_t done;    /* position of the update of step `decided` */
    _Atomic uint64_t logged;  /* 1 + the position whose window the log has; 0: none */
    struct arguments arguments;
};

/* The fault site: a process that dies between two stores. */
static void die_if_asked(void)
{
    if (zr_fault(ZR_FAULT_KEPT))
        kill(getpid(), SIGKILL);
}

/* A position in the update: the elements before it are complete. */
static uint64_t pack(size_t unit, size_t at)
{
    return (uint64_t)unit << 40 | (uint64_t)at;
}

static size_t unit_of(uint64_t position)
{
    return (size_t)(position >> 40);
}

static size_t at_of(uint64_t position)
{
    return (size_t)(position & ((UINT64_C(1) << 40) - 1));
}

/* ---- Pools --------------------------------------------------------------------------------------------- */

zr_result zr_kept_pool_take(const struct zr_kept_memory *kept, const struct zr_kept_pool *pool, void *out)
{
    void **block = out;
    size_t bytes;
    if (!kept || !kept->take)
        return zr_name_call(zr_take_block(pool->arena, pool->tag, pool->count, pool->bytes, block), "engine",
                            pool->name);
    *block = NULL;
    if (pool->count == 0)
        return ZR_OK;
    if (__builtin_mul_overflow(pool->count, pool->bytes, &bytes))
        return zr_fail(ZR_ERR_INVALID, "%zu elements of %zu bytes overflow the address space", pool->count,
                       pool->bytes);
    return kept->take(kept->state, &(struct zr_kept_request){pool->name, pool->tag, bytes}, block);
}

void zr_kept_pool_drop(const struct zr_kept_memory *kept, zr_arena *arena, void *pointer_to_pool)
{
    if (kept && kept->take)
        *(void **)pointer_to_pool = NULL;
    else
        zr_drop(arena, pointer_to_pool);
}

/* ---- What it excludes ---------------------------------------------------------------------------------- */

zr_result zr_engine_kept_check(const struct zr_engine_options *options)
{
    const struct zr_optimizer *optimizer = zr_optimizer_of(options->optimizer.kind);
    bool compresses = false;
    if (!options->kept)
        return ZR_OK;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
        compresses |= options->compression.kinds[kind].on;
    if (options->kernels->executes && (!options->kernels->host_visible || !options->kept->take))
        return zr_fail(ZR_ERR_INVALID, "kept memory is not supported by the kernels \"%s\"",
                       options->kernels->name);
    if (options->offload.optimizer || options->stashed_versions > 0 || options->own_norm || compresses ||
        options->outer.period > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "kept memory excludes offload, asynchronous pipelines, compression and outer "
                       "steps, whose state is elsewhere");
    if (options->precision == ZR_PRECISION_FP16)
        return zr_fail(ZR_ERR_INVALID, "kept memory excludes fp16, whose loss scale is not kept; use bf16");
    if (optimizer->prepares || options->optimizer.average_decay > 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "kept memory excludes a moving average and the optimizer %s, whose updates need all ranks",
            optimizer->name);
    if (options->scattered_gradients)
        return zr_fail(ZR_ERR_INVALID, "kept memory requires contiguous gradients");
    return options->stage == 0 && options->precision != ZR_PRECISION_FP32 && zr_comm_world(options->comm) > 1
               ? zr_fail(ZR_ERR_INVALID, "kept memory excludes stage 0 in bf16, whose updates gather sums")
               : ZR_OK;
}

/* ---- Log and record ------------------------------------------------------------------------------------ */

size_t zr_engine_kept_window(const struct zr_engine *engine)
{
    return engine->kept.record && zr_optimizer_block(engine->optimizer) == 1 ? (size_t)WINDOW_ELEMENTS : 0;
}

/* The largest log of a unit's windows. State in blocks is logged whole, because a window may begin within a
 * block. */
static size_t log_bytes(const struct zr_engine *engine)
{
    size_t window = zr_optimizer_block(engine->optimizer) == 1 ? WINDOW_ELEMENTS : SIZE_MAX, most = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_optimizer *optimizer = engine->layout.units[u].optimizer;
        size_t owned = zr_unit_owned(&engine->units[u]), count = owned < window ? owned : window,
               bytes = count * sizeof(float);
        for (unsigned s = 0; s < optimizer->slots_count && !zr_engine_is_frozen(engine, u); s++)
            bytes += count < owned ? count * sizeof(float)
                                   : zr_layout_slot_bytes(&engine->layout, u, s, engine->options.stage == 0);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* A hash of everything that decides where numbers lie in the kept memory. */
static uint64_t layout_hash(const struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    uint64_t hash = zr_hash_next(ZR_HASH_START, RECORD_VERSION);
    const uint64_t numbers[] = {engine->rank,
                                engine->world,
                                o->stage,
                                o->precision,
                                o->micro_batches,
                                (uint64_t)o->reduce,
                                o->optimizer.kind,
                                engine->tiers[0].parameters_elements,
                                log_bytes(engine),
                                engine->tiers[0].gradients_elements,
                                engine->tiers[0].sums_elements};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        hash = zr_hash_next(hash, numbers[i]);
    for (size_t u = 0; u < engine->layout.units_count; u++)
        hash = zr_hash_next(hash, engine->layout.units[u].padded_elements);
    return hash | 1;
}

zr_result zr_engine_kept_open(struct zr_engine *engine)
{
    const struct zr_kept_memory *memory = engine->options.kept;
    zr_arena *arena = engine->options.arena;
    struct zr_kept *kept = &engine->kept;
    if (!memory)
        return ZR_OK;
    zr_result result = zr_kept_pool_take(
        memory, &(struct zr_kept_pool){arena, "log", ZR_TAG_OPTIMIZER, log_bytes(engine), 1}, &kept->log);
    if (result == ZR_OK)
        result = zr_kept_pool_take(
            memory, &(struct zr_kept_pool){arena, "record", ZR_TAG_OPTIMIZER, 1, sizeof *kept->record},
            &kept->block);
    kept->record = engine->simulated ? NULL : kept->block; /* a dry run has no memory to read */
    kept->layout = layout_hash(engine);
    kept->redo.host_arena = engine->options.host_arena;
    return result;
}

void zr_engine_kept_close(struct zr_engine *engine)
{
    const struct zr_kept_memory *memory = engine->options.kept;
    zr_actions_drop(&engine->kept.redo);
    zr_kept_pool_drop(memory, engine->options.arena, &engine->kept.block);
    zr_kept_pool_drop(memory, engine->options.arena, &engine->kept.log);
    engine->kept.record = NULL;
}

void zr_engine_kept_invalidate(struct zr_engine *engine)
{
    if (engine->kept.record)
        atomic_store(&engine->kept.record->layout, 0);
}

/* ---- A step -------------------------------------------------------------------------------------------- */

const struct zr_action_transform zr_engine_kept_step = {
    .rules = {{ZR_ACTION_OPEN, {ZR_ACTION_DECIDE, ZR_ACTION_OPEN}},
              {ZR_ACTION_COUNT, {ZR_ACTION_COUNT, ZR_ACTION_COMMIT}}}};

/* The rest of a decided step. */
static const struct zr_action_transform rest_of_step = {.drops = true,
                                                        .rules = {{ZR_ACTION_OPEN, {ZR_ACTION_OPEN}},
                                                                  {ZR_ACTION_TAKE, {ZR_ACTION_TAKE}},
                                                                  {ZR_ACTION_UPDATE, {ZR_ACTION_UPDATE}},
                                                                  {ZR_ACTION_GIVE, {ZR_ACTION_GIVE}},
                                                                  {ZR_ACTION_CLOSE, {ZR_ACTION_CLOSE}},
                                                                  {ZR_ACTION_COUNT, {ZR_ACTION_COUNT}},
                                                                  {ZR_ACTION_COMMIT, {ZR_ACTION_COMMIT}}}};

static void decide(struct zr_engine *engine, const struct arguments *arguments)
{
    struct zr_kept_record *record = engine->kept.record;
    record->arguments = *arguments;
    atomic_store(&record->logged, 0);
    atomic_store(&record->done, 0);
    atomic_store(&record->steps, engine->steps_done);
    atomic_store(&record->decided, engine->steps_done + 1);
    atomic_store(&record->layout, engine->kept.layout); /* valid from the first step on */
}

void zr_engine_kept_decide(struct zr_engine_run *run)
{
    const struct zr_engine_update *update = &run->update;
    decide(run->engine, &(struct arguments){update->rate, update->gradient_scale, update->correction1,
                                            update->correction2});
}

void zr_engine_kept_commit(struct zr_engine *engine)
{
    atomic_store(&engine->kept.record->steps, engine->steps_done);
}

size_t zr_engine_kept_begin(const struct zr_engine *engine, size_t unit)
{
    if (!engine->kept.record)
        return 0;
    uint64_t done = atomic_load(&engine->kept.record->done);
    return unit < unit_of(done)    ? zr_unit_owned(&engine->units[unit])
           : unit == unit_of(done) ? at_of(done)
                                   : 0;
}

/* Copies a window's state to the log, or back. */
static zr_result copy_window(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                             struct zr_overlap window, bool back)
{
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;
    bool all = window.count == owned->to - owned->from;
    char *log = engine->kept.log;
    zr_result result = ZR_OK;
    for (unsigned s = 0; s <= optimizer->slots_count && result == ZR_OK; s++) {
        bool slot = s < optimizer->slots_count;
        size_t bytes = slot && all
                           ? zr_layout_slot_bytes(&engine->layout, unit, s, engine->options.stage == 0)
                           : window.count * sizeof(float);
        char *state = slot ? owned->slots[s] : (void *)owned->master;
        if (!state || bytes == 0)
            continue;
        state += window.offset * sizeof(float);
        result = compute.kernels->copy_bytes(
            compute.context,
            &(struct zr_copy_bytes){
                .bytes = bytes, .from = back ? log : state, .to = back ? state : log, .waits = true});
        log += bytes;
    }
    return result;
}

zr_result zr_engine_kept_log(struct zr_engine_run *run, size_t unit, size_t at, size_t count)
{
    struct zr_engine *engine = run->engine;
    if (!engine->kept.record)
        return ZR_OK;
    zr_result result =
        copy_window(engine, unit, &run->owned, (struct zr_overlap){.offset = at, .count = count}, false);
    die_if_asked();
    atomic_store(&engine->kept.record->logged, 1 + pack(unit, at));
    return result;
}

void zr_engine_kept_note(struct zr_engine *engine, size_t unit, size_t end)
{
    struct zr_kept_record *record = engine->kept.record;
    if (!record)
        return;
    bool whole = end == zr_unit_owned(&engine->units[unit]);
    die_if_asked();
    atomic_store(&record->done, whole ? pack(unit + 1, 0) : pack(unit, end));
}

/* ---- After a restart ----------------------------------------------------------------------------------- */

/* What the ranks know about the step. */
struct knowledge {
    bool valid;
    uint64_t least, most; /* committed steps */
    uint64_t decided;
    struct arguments arguments; /* of `decided` */
};

/* Combines the knowledge of the ranks of a communicator; NULL does nothing. */
static zr_result combine(zr_comm *comm, struct knowledge *known)
{
    struct knowledge all[ZR_MAX_WORLD];
    if (!comm)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(comm, known, sizeof *known, all);
    for (unsigned r = 0; r < zr_comm_world(comm) && result == ZR_OK; r++) {
        known->valid &= all[r].valid;
        known->least = all[r].least < known->least ? all[r].least : known->least;
        known->most = all[r].most > known->most ? all[r].most : known->most;
        if (all[r].decided > known->decided) {
            known->decided = all[r].decided;
            known->arguments = all[r].arguments;
        }
    }
    return result;
}

static zr_result ask_all(const struct zr_engine *engine, struct knowledge *known)
{
    const struct zr_kept_record *record = engine->kept.record;
    memset(known, 0, sizeof *known);
    known->valid = atomic_load(&record->layout) == engine->kept.layout;
    known->least = known->most = atomic_load(&record->steps);
    known->decided = atomic_load(&record->decided);
    known->arguments = record->arguments;
    zr_result result = combine(engine->options.comm, known);
    if (result == ZR_OK)
        result = combine(engine->options.tensor, known);
    return result == ZR_OK ? combine(engine->options.pipeline, known) : result;
}

zr_result zr_engine_kept_find(struct zr_engine *engine, bool *held)
{
    struct knowledge known;
    *held = false;
    if (!engine->kept.record)
        return ZR_OK;
    zr_result result = ask_all(engine, &known);
    *held = result == ZR_OK && known.valid && known.most <= known.decided && known.decided <= known.least + 1;
    return result;
}

/* Restores the window in the log, if its update has begun and has not ended. */
static zr_result restore_window(struct zr_engine *engine)
{
    struct zr_kept_record *record = engine->kept.record;
    uint64_t done = atomic_load(&record->done);
    size_t unit = unit_of(done), at = at_of(done), max = zr_engine_kept_window(engine);
    struct zr_owned owned;
    if (atomic_load(&record->logged) != 1 + done || unit >= engine->layout.units_count)
        return ZR_OK;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    size_t count = owned.to - owned.from - at;
    count = max > 0 && count > max ? max : count;
    if (result == ZR_OK)
        result = copy_window(engine, unit, &owned, (struct zr_overlap){.offset = at, .count = count}, true);
    zr_result given = zr_engine_give_owned(engine, unit, true);
    return result == ZR_OK ? given : result;
}

static zr_result finish_step(struct zr_engine *engine, const struct knowledge *known)
{
    struct zr_kept_record *record = engine->kept.record;
    struct zr_step_report report;
    const struct arguments *arguments = &known->arguments;
    struct zr_engine_run run = {.engine = engine, .way = &zr_update_here, .report = &report};
    run.update = (struct zr_engine_update){.rate = arguments->rate,
                                           .gradient_scale = arguments->gradient_scale,
                                           .correction1 = arguments->correction1,
                                           .correction2 = arguments->correction2};
    report = (struct zr_step_report){.skipped = false};
    if (atomic_load(&record->decided) < known->decided)
        decide(engine, arguments);
    zr_result result = restore_window(engine);
    if (result == ZR_OK)
        zr_actions_derive(&engine->kept.redo, &engine->step, &rest_of_step);
    if (result == ZR_OK)
        result = engine->kept.redo.result;
    if (result == ZR_OK)
        result = zr_engine_run_list(&run, &engine->kept.redo);
    zr_actions_drop(&engine->kept.redo);
    return result;
}

zr_result zr_engine_kept_recover(struct zr_engine *engine)
{
    struct knowledge known;
    zr_result result = ask_all(engine, &known);
    engine->steps_done = atomic_load(&engine->kept.record->steps);
    if (result == ZR_OK && engine->steps_done < known.decided)
        result = finish_step(engine, &known);
    engine->recovered = result == ZR_OK;
    return result == ZR_OK ? zr_engine_publish(engine, engine->steps_done) : result;
}
