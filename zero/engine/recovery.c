/* recovery.c: continues with the kept memory of processes that died: ranks agree on the step, finish it if
 * one of them had decided it, and publish the parameters. See kept.h. */
#include <stdatomic.h>
#include <string.h>

#include "zero/engine/backup.h"
#include "zero/engine/kept.h"

/* The rest of a decided step. */
static const struct zr_action_transform rest_of_step = {.drops = true,
                                                        .rules = {{ZR_ACTION_OPEN, {ZR_ACTION_OPEN}},
                                                                  {ZR_ACTION_TAKE, {ZR_ACTION_TAKE}},
                                                                  {ZR_ACTION_UPDATE, {ZR_ACTION_UPDATE}},
                                                                  {ZR_ACTION_GIVE, {ZR_ACTION_GIVE}},
                                                                  {ZR_ACTION_CLOSE, {ZR_ACTION_CLOSE}},
                                                                  {ZR_ACTION_COUNT, {ZR_ACTION_COUNT}},
                                                                  {ZR_ACTION_COMMIT, {ZR_ACTION_COMMIT}}}};

/* What the ranks know about the step. */
struct knowledge {
    bool valid, undoing;  /* undoing: a return to an earlier step has not ended */
    uint64_t least, most; /* committed steps */
    uint64_t decided;
    struct zr_kept_arguments arguments; /* of `decided` */
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
        known->undoing |= all[r].undoing;
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
    known->undoing = known->valid && atomic_load(&record->undoing) > 0;
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
    *held = result == ZR_OK && known.valid && !known.undoing && known.most <= known.decided &&
            known.decided <= known.least + 1;
    return result == ZR_OK && !*held ? zr_backup_find(engine, held) : result;
}

/* Restores the window in the log, if its update has begun and has not ended. */
static zr_result restore_window(struct zr_engine *engine)
{
    size_t unit;
    struct zr_overlap window;
    struct zr_owned owned;
    if (!zr_engine_kept_logged(engine, &unit, &window))
        return ZR_OK;
    zr_result result = zr_engine_take_owned(engine, unit, &owned);
    if (result == ZR_OK)
        result = zr_engine_kept_copy(engine, unit, &owned, window, true);
    zr_result given = zr_engine_give_owned(engine, unit, true);
    return result == ZR_OK ? given : result;
}

static zr_result finish_step(struct zr_engine *engine, const struct knowledge *known)
{
    struct zr_kept_record *record = engine->kept.record;
    struct zr_step_report report;
    const struct zr_kept_arguments *arguments = &known->arguments;
    struct zr_engine_run run = {.engine = engine, .way = &zr_update_here, .report = &report};
    run.update = (struct zr_engine_update){.rate = arguments->rate,
                                           .gradient_scale = arguments->gradient_scale,
                                           .correction1 = arguments->correction1,
                                           .correction2 = arguments->correction2};
    report = (struct zr_step_report){.skipped = false};
    if (atomic_load(&record->decided) < known->decided)
        zr_engine_kept_store(engine, arguments);
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

static zr_result finish_and_publish(struct zr_engine *engine)
{
    struct knowledge known;
    zr_result result = ask_all(engine, &known);
    engine->steps_done = atomic_load(&engine->kept.record->steps);
    if (result == ZR_OK && engine->steps_done < known.decided)
        result = finish_step(engine, &known);
    return result == ZR_OK ? zr_engine_publish(engine, engine->steps_done) : result;
}

zr_result zr_engine_kept_recover(struct zr_engine *engine)
{
    zr_result result = engine->kept.backup.found > 0 ? zr_backup_recover(engine) : finish_and_publish(engine);
    engine->recovered = result == ZR_OK;
    return result == ZR_OK && engine->options.backup ? zr_backup_start(engine) : result;
}
