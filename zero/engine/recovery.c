/* recovery.c: continues with the kept memory of processes that died: ranks agree on the step, finish it if
 * one of them had decided it, or return to an earlier one if memory is lost, and publish the parameters. See
 * kept.h and backup.h. */
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

/* ---- Memory that is lost, see backup.h ----------------------------------------------------------------- */

/* The steps that a rank has; each is 1 + the step, or 0: none. */
struct steps {
    uint64_t own[2], images[2];
};

/* Whether the state is that of `steps` steps: no element of it is updated. */
static bool is_clean(const struct zr_kept_record *record)
{
    return atomic_load(&record->undoing) == 0 &&
           (atomic_load(&record->decided) == atomic_load(&record->steps) ||
            (atomic_load(&record->done) == 0 && atomic_load(&record->logged) == 0));
}

static struct steps steps_of(const struct zr_engine *engine)
{
    const struct zr_kept_record *record = engine->kept.record;
    uint64_t undoing = atomic_load(&record->undoing);
    if (atomic_load(&record->layout) != engine->kept.layout)
        return (struct steps){{0}, {0}};
    return (struct steps){{is_clean(record) ? atomic_load(&record->steps) + 1 : 0,
                           undoing ? undoing : atomic_load(&record->undo)},
                          {atomic_load(&record->images[0]), atomic_load(&record->images[1])}};
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Bit i: `newest` - i is among two steps. */
static uint64_t bits_of(const uint64_t steps[2], uint64_t newest)
{
    uint64_t bits = 0;
    for (unsigned i = 0; i < 2; i++)
        if (steps[i] > 0 && newest - steps[i] < 64)
            bits |= UINT64_C(1) << (newest - steps[i]);
    return bits;
}

/* What the ranks of a communicator have in common: the largest `newest`, the bits of all; NULL: this rank. */
struct common {
    uint64_t newest, bits;
};

static zr_result have_in_common(zr_comm *comm, struct common *mine)
{
    struct common all[ZR_MAX_WORLD];
    if (!comm)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(comm, mine, sizeof *mine, all);
    for (unsigned r = 0; r < zr_comm_world(comm) && result == ZR_OK; r++) {
        mine->newest = larger(mine->newest, all[r].newest);
        mine->bits &= all[r].bits;
    }
    return result;
}

static zr_result parts_have_in_common(const struct zr_engine *engine, struct common *mine)
{
    zr_result result = have_in_common(engine->options.tensor, mine);
    return result == ZR_OK ? have_in_common(engine->options.pipeline, mine) : result;
}

static zr_result find_return(struct zr_engine *engine, bool *held)
{
    struct zr_backup *backup = &engine->kept.backup;
    struct steps mine = steps_of(engine), all[ZR_MAX_WORLD];
    struct common common = {0, UINT64_MAX};
    const unsigned distance = (backup->to + engine->world - engine->rank) % engine->world;
    *held = false;
    if (!engine->options.backup)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(engine->options.comm, &mine, sizeof mine, all);
    for (unsigned r = 0; r < engine->world && result == ZR_OK; r++)
        for (unsigned i = 0; i < 2; i++)
            common.newest = larger(common.newest, larger(all[r].own[i], all[r].images[i]));
    if (result == ZR_OK)
        result = parts_have_in_common(engine, &common);
    for (unsigned r = 0; r < engine->world && result == ZR_OK; r++)
        common.bits &= bits_of(all[r].own, common.newest) |
                       bits_of(all[(r + distance) % engine->world].images, common.newest);
    if (result == ZR_OK)
        result = parts_have_in_common(engine, &common);
    if (result != ZR_OK || common.bits == 0)
        return result;
    backup->found = common.newest - (uint64_t)__builtin_ctzll(common.bits);
    for (unsigned r = 0; r < engine->world; r++)
        backup->lost[r] = all[r].own[0] != backup->found && all[r].own[1] != backup->found;
    *held = true;
    return ZR_OK;
}

/* Sends the image of a lost rank, or receives the own state, piece by piece. */
static zr_result bring(struct zr_engine *engine, unsigned lost, bool sends, uint64_t step)
{
    const struct zr_backup *backup = &engine->kept.backup;
    zr_ticket ticket = 0;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < backup->image.pieces_count && result == ZR_OK; i++) {
        const struct zr_image_piece *piece = &backup->image.pieces[i];
        const struct zr_transfer transfer = {.send = zr_backup_image(engine, step) + piece->at,
                                             .send_bytes = piece->bytes,
                                             .to = lost,
                                             .from = backup->to,
                                             .receive = piece->address,
                                             .receive_bytes = piece->bytes};
        result = sends ? zr_comm_send(engine->options.backup, &transfer, &ticket)
                       : zr_comm_receive(engine->options.backup, &transfer, &ticket);
    }
    return result == ZR_OK ? zr_comm_wait(engine->options.backup, ticket) : result;
}

/* The record of a rank whose state is that of a step. A process that dies meanwhile has not ended the return:
 * `undoing` is set, or the record is not valid. */
static void settle(struct zr_engine *engine, uint64_t step)
{
    struct zr_kept_record *record = engine->kept.record;
    atomic_store(&record->steps, step);
    atomic_store(&record->decided, step);
    atomic_store(&record->logged, 0);
    atomic_store(&record->done, 0);
    atomic_store(&record->undo, 0);
    atomic_store(&record->undoing, 0);
}

static zr_result receive_state(struct zr_engine *engine, uint64_t step)
{
    struct zr_kept_record *record = engine->kept.record;
    zr_engine_kept_invalidate(engine);
    zr_result result = bring(engine, engine->rank, false, step);
    if (result != ZR_OK)
        return result;
    settle(engine, step);
    atomic_store(&record->layout, engine->kept.layout);
    return ZR_OK;
}

/* Returns to the state before the last update, which the log has. */
static zr_result undo(struct zr_engine *engine, uint64_t step)
{
    struct zr_kept_record *record = engine->kept.record;
    zr_result result = ZR_OK;
    atomic_store(&record->undoing, step + 1);
    for (size_t u = 0; u < engine->layout.units_count && result == ZR_OK; u++) {
        struct zr_overlap window = {.offset = 0, .count = zr_engine_kept_end(engine, u)};
        struct zr_owned owned;
        if (zr_engine_is_frozen(engine, u) || window.count == 0)
            continue;
        result = zr_engine_take_owned(engine, u, &owned);
        if (result == ZR_OK)
            result = zr_engine_kept_copy(engine, u, &owned, window, true);
        zr_result given = zr_engine_give_owned(engine, u, true);
        result = result == ZR_OK ? given : result;
        zr_engine_kept_die_if_asked();
    }
    if (result == ZR_OK)
        settle(engine, step);
    return result;
}

static zr_result go_back(struct zr_engine *engine)
{
    const struct zr_backup *backup = &engine->kept.backup;
    struct zr_kept_record *record = engine->kept.record;
    const uint64_t step = backup->found - 1;
    zr_result result = ZR_OK;
    if (!backup->lost[engine->rank] && is_clean(record) && atomic_load(&record->steps) == step)
        atomic_store(&record->decided, step);
    else if (!backup->lost[engine->rank])
        result = undo(engine, step);
    for (unsigned r = 0; r < engine->world && result == ZR_OK; r++) {
        if (!backup->lost[r])
            continue;
        if (r == engine->rank)
            result = receive_state(engine, step);
        else if (r == backup->from)
            result = bring(engine, r, true, step);
    }
    engine->steps_done = step;
    return result == ZR_OK ? zr_engine_publish(engine, step) : result;
}

/* ---- Both ---------------------------------------------------------------------------------------------- */

zr_result zr_engine_kept_find(struct zr_engine *engine, bool *held)
{
    struct knowledge known;
    *held = false;
    if (!engine->kept.record)
        return ZR_OK;
    zr_result result = ask_all(engine, &known);
    *held = result == ZR_OK && known.valid && !known.undoing && known.most <= known.decided &&
            known.decided <= known.least + 1;
    return result == ZR_OK && !*held ? find_return(engine, held) : result;
}

zr_result zr_engine_kept_recover(struct zr_engine *engine)
{
    zr_result result = engine->kept.backup.found > 0 ? go_back(engine) : finish_and_publish(engine);
    engine->recovered = result == ZR_OK;
    return result == ZR_OK && engine->options.backup ? zr_backup_start(engine) : result;
}
