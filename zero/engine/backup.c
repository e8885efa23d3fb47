/* backup.c: see backup.h. */
#include "zero/engine/backup.h"

#include <stdatomic.h>
#include <string.h>

#include "zero/comm/mesh.h"
#include "zero/engine/kept.h"

/* Pieces that are submitted after a step: fewer than a communicator queues. The others follow before the next
 * norm. */
enum { PIECES_AT_ONCE = 60 };

const struct zr_action_transform zr_backup_step = {
    .rules = {{ZR_ACTION_NORM, {ZR_ACTION_BACKED_UP, ZR_ACTION_NORM}},
              {ZR_ACTION_COMMIT, {ZR_ACTION_COMMIT, ZR_ACTION_BACK_UP}}}};

/* ---- Opening ------------------------------------------------------------------------------------------- */

zr_result zr_backup_open(struct zr_engine *engine)
{
    const struct zr_engine_options *o = &engine->options;
    struct zr_backup *backup = &engine->kept.backup;
    if (!o->backup)
        return ZR_OK;
    const unsigned distance = o->backup_distance ? o->backup_distance : 1;
    backup->to = (engine->rank + distance) % engine->world;
    backup->from = (engine->rank + engine->world - distance) % engine->world;
    zr_result result = zr_kept_pool_take(
        o->kept, &(struct zr_kept_pool){o->arena, "images", ZR_TAG_OPTIMIZER, 2, backup->image.bytes},
        &backup->images);
    if (result == ZR_OK)
        result = zr_image_find(&backup->image, engine);
    if (result == ZR_OK)
        result =
            zr_take(o->host_arena, ZR_TAG_OTHER, engine->world, sizeof *backup->lost, (void **)&backup->lost);
    return result;
}

void zr_backup_close(struct zr_engine *engine)
{
    struct zr_backup *backup = &engine->kept.backup;
    zr_arena *host_arena = engine->options.host_arena;
    if (!engine->options.backup)
        return;
    zr_comm_synchronize(engine->options.backup); /* no transfer uses the state afterwards */
    zr_drop(host_arena, &backup->lost);
    zr_kept_pool_drop(engine->options.kept, engine->options.arena, &backup->images);
    zr_image_end(&backup->image, engine);
}

/* ---- A step -------------------------------------------------------------------------------------------- */

static char *image_of(const struct zr_engine *engine, uint64_t step)
{
    return engine->kept.backup.images + step % 2 * engine->kept.backup.image.bytes;
}

static zr_result submit(struct zr_engine *engine, size_t end)
{
    struct zr_backup *backup = &engine->kept.backup;
    zr_result result = ZR_OK;
    for (; backup->next < backup->image.pieces_count && backup->next < end && result == ZR_OK;
         backup->next++) {
        const struct zr_image_piece *piece = &backup->image.pieces[backup->next];
        result =
            zr_comm_send_receive(engine->options.backup,
                                 &(struct zr_transfer){.send = piece->address,
                                                       .send_bytes = piece->bytes,
                                                       .to = backup->to,
                                                       .from = backup->from,
                                                       .receive = image_of(engine, backup->step) + piece->at,
                                                       .receive_bytes = piece->bytes},
                                 &backup->ticket);
    }
    return result;
}

zr_result zr_backup_start(struct zr_engine *engine)
{
    struct zr_backup *backup = &engine->kept.backup;
    backup->step = engine->steps_done;
    backup->next = 0;
    backup->under_way = true;
    atomic_store(&engine->kept.record->images[backup->step % 2], 0);
    return submit(engine, PIECES_AT_ONCE);
}

zr_result zr_backup_await(struct zr_engine *engine)
{
    struct zr_backup *backup = &engine->kept.backup;
    if (!backup->under_way)
        return ZR_OK;
    zr_result result = submit(engine, SIZE_MAX);
    if (result == ZR_OK)
        result = zr_comm_wait(engine->options.backup, backup->ticket);
    if (result != ZR_OK)
        return result;
    atomic_store(&engine->kept.record->images[backup->step % 2], backup->step + 1);
    backup->whole = backup->step + 1;
    backup->under_way = false;
    backup->count++;
    return ZR_OK;
}

zr_result zr_backup_finish(struct zr_engine *engine)
{
    const struct zr_backup *backup = &engine->kept.backup;
    zr_result result = ZR_OK;
    if (!backup->under_way && backup->whole != engine->steps_done + 1)
        result = zr_backup_start(engine);
    return result == ZR_OK ? zr_backup_await(engine) : result;
}

void zr_engine_get_backup_report(zr_engine *engine, struct zr_backup_report *out)
{
    struct zr_comm_counters counters;
    *out = (struct zr_backup_report){0};
    if (!engine || !engine->options.backup)
        return;
    zr_comm_counters_get(engine->options.backup, &counters);
    *out = (struct zr_backup_report){engine->kept.backup.image.bytes, engine->kept.backup.count,
                                     counters.exposed_ns};
}

/* ---- After a restart ----------------------------------------------------------------------------------- */

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

static zr_result combine(zr_comm *comm, struct common *mine)
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

static zr_result combine_parts(const struct zr_engine *engine, struct common *mine)
{
    zr_result result = combine(engine->options.tensor, mine);
    return result == ZR_OK ? combine(engine->options.pipeline, mine) : result;
}

zr_result zr_backup_find(struct zr_engine *engine, bool *held)
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
        result = combine_parts(engine, &common);
    for (unsigned r = 0; r < engine->world && result == ZR_OK; r++)
        common.bits &= bits_of(all[r].own, common.newest) |
                       bits_of(all[(r + distance) % engine->world].images, common.newest);
    if (result == ZR_OK)
        result = combine_parts(engine, &common);
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
        const struct zr_transfer transfer = {.send = image_of(engine, step) + piece->at,
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
    zr_result result = zr_engine_clear_pools(engine); /* padding is zeros */
    if (result == ZR_OK)
        result = bring(engine, engine->rank, false, step);
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

zr_result zr_backup_recover(struct zr_engine *engine)
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
