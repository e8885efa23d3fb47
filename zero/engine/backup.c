/* backup.c: see backup.h. */
#include "zero/engine/backup.h"

#include <stdatomic.h>

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

static zr_result submit(struct zr_engine *engine, size_t end)
{
    struct zr_backup *backup = &engine->kept.backup;
    zr_result result = ZR_OK;
    for (; backup->next < backup->image.pieces_count && backup->next < end && result == ZR_OK;
         backup->next++) {
        const struct zr_image_piece *piece = &backup->image.pieces[backup->next];
        result = zr_comm_send_receive(
            engine->options.backup,
            &(struct zr_transfer){.send = piece->address,
                                  .send_bytes = piece->bytes,
                                  .to = backup->to,
                                  .from = backup->from,
                                  .receive = zr_backup_image(engine, backup->step) + piece->at,
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
