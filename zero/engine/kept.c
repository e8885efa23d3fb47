/* kept.c: see kept.h. */
#include "zero/engine/kept.h"

#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/hash.h"
#include "zero/engine/backup.h"
#include "zero/engine/compression.h"

/* The log of a window stays in the processor's caches, and its copy reads what the update reads next. */
enum { WINDOW_ELEMENTS = 64 << 10 };
#define RECORD_VERSION 2

void zr_engine_kept_die_if_asked(void)
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
    if (engine->options.backup)
        return engine->kept.backup.image.trained_bytes;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        const struct zr_optimizer *optimizer = engine->layout.units[u].optimizer;
        size_t owned = zr_unit_owned(&engine->units[u]), count = owned < window ? owned : window,
               bytes = count * sizeof(float);
        for (unsigned s = 0; s < optimizer->slots_count && !zr_engine_is_frozen(engine, u); s++)
            bytes += count < owned ? count * sizeof(float)
                                   : zr_layout_slot_bytes(&engine->layout, u, s,
                                                          engine->units[u].tier->store.options.whole);
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
    zr_result result = engine->options.backup ? zr_image_place(&kept->backup.image, engine) : ZR_OK;
    if (result == ZR_OK)
        result = zr_kept_pool_take(
            memory, &(struct zr_kept_pool){arena, "log", ZR_TAG_OPTIMIZER, log_bytes(engine), 1}, &kept->log);
    if (result == ZR_OK)
        result = zr_kept_pool_take(
            memory, &(struct zr_kept_pool){arena, "record", ZR_TAG_OPTIMIZER, 1, sizeof *kept->record},
            &kept->block);
    kept->record = engine->simulated ? NULL : kept->block; /* a dry run has no memory to read */
    kept->layout = layout_hash(engine);
    kept->redo.host_arena = engine->options.host_arena;
    return result == ZR_OK ? zr_backup_open(engine) : result;
}

void zr_engine_kept_close(struct zr_engine *engine)
{
    const struct zr_kept_memory *memory = engine->options.kept;
    zr_backup_close(engine);
    zr_actions_drop(&engine->kept.redo);
    zr_kept_pool_drop(memory, engine->options.arena, &engine->kept.block);
    zr_kept_pool_drop(memory, engine->options.arena, &engine->kept.log);
    engine->kept.record = NULL;
}

void zr_engine_kept_invalidate(struct zr_engine *engine)
{
    struct zr_kept_record *record = engine->kept.record;
    if (!record)
        return;
    zr_backup_await(engine); /* a failure is that of the next step, too */
    engine->kept.backup.whole = 0;
    atomic_store(&record->layout, 0);
    for (unsigned i = 0; i < 2; i++)
        atomic_store(&record->images[i], 0);
}

/* ---- A step -------------------------------------------------------------------------------------------- */

const struct zr_action_transform zr_engine_kept_step = {
    .rules = {{ZR_ACTION_OPEN, {ZR_ACTION_DECIDE, ZR_ACTION_OPEN}},
              {ZR_ACTION_COUNT, {ZR_ACTION_COUNT, ZR_ACTION_COMMIT}}}};

void zr_engine_kept_store(struct zr_engine *engine, const struct zr_kept_arguments *arguments)
{
    struct zr_kept_record *record = engine->kept.record;
    atomic_store(&record->undo, 0); /* the log no longer leads back to the step before */
    record->arguments = *arguments;
    atomic_store(&record->logged, 0);
    atomic_store(&record->done, 0);
    atomic_store(&record->steps, engine->steps_done);
    atomic_store(&record->decided, engine->steps_done + 1);
    atomic_store(&record->undo, engine->steps_done + 1);
    atomic_store(&record->layout, engine->kept.layout); /* valid from the first step on */
}

void zr_engine_kept_decide(struct zr_engine_run *run)
{
    const struct zr_engine_update *update = &run->update;
    zr_engine_kept_store(run->engine, &(struct zr_kept_arguments){update->rate, update->gradient_scale,
                                                                  update->correction1, update->correction2});
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

size_t zr_engine_kept_end(const struct zr_engine *engine, size_t unit)
{
    size_t logged;
    struct zr_overlap window;
    return zr_engine_kept_logged(engine, &logged, &window) && logged == unit
               ? window.offset + window.count
               : zr_engine_kept_begin(engine, unit);
}

zr_result zr_engine_kept_copy(struct zr_engine *engine, size_t unit, const struct zr_owned *owned,
                              struct zr_overlap window, bool back)
{
    struct zr_compute compute = zr_engine_unit_compute(engine, unit);
    const struct zr_optimizer *optimizer = engine->layout.units[unit].optimizer;
    bool all = window.count == owned->to - owned->from;
    char *log = engine->kept.log;
    zr_result result = ZR_OK;
    for (unsigned s = 0; s <= optimizer->slots_count && result == ZR_OK; s++) {
        bool slot = s < optimizer->slots_count;
        size_t bytes = slot && all ? zr_layout_slot_bytes(&engine->layout, unit, s,
                                                          engine->units[unit].tier->store.options.whole)
                                   : window.count * sizeof(float);
        char *state = slot ? owned->slots[s] : (void *)owned->master;
        if (!state || bytes == 0)
            continue;
        state += window.offset * sizeof(float);
        if (engine->options.backup) /* a place for every window */
            log = (char *)engine->kept.log + engine->kept.backup.image.at[unit][slot ? s + 1 : 0] +
                  window.offset * sizeof(float);
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
    zr_result result = zr_engine_kept_copy(engine, unit, &run->owned,
                                           (struct zr_overlap){.offset = at, .count = count}, false);
    zr_engine_kept_die_if_asked();
    atomic_store(&engine->kept.record->logged, 1 + pack(unit, at));
    return result;
}

void zr_engine_kept_note(struct zr_engine *engine, size_t unit, size_t end)
{
    struct zr_kept_record *record = engine->kept.record;
    if (!record)
        return;
    bool whole = end == zr_unit_owned(&engine->units[unit]);
    zr_engine_kept_die_if_asked();
    atomic_store(&record->done, whole ? pack(unit + 1, 0) : pack(unit, end));
}

bool zr_engine_kept_logged(const struct zr_engine *engine, size_t *unit, struct zr_overlap *window)
{
    uint64_t done = atomic_load(&engine->kept.record->done);
    size_t max = zr_engine_kept_window(engine);
    *unit = unit_of(done);
    if (atomic_load(&engine->kept.record->logged) != 1 + done || *unit >= engine->layout.units_count)
        return false;
    window->offset = at_of(done);
    window->count = zr_unit_owned(&engine->units[*unit]) - window->offset;
    window->count = max > 0 && window->count > max ? max : window->count;
    return true;
}
