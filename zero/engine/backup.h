/* backup.h: copies of a rank's state on another rank (zr_engine_options.backup), for ranks whose kept memory
 * is lost with their process.
 *
 * After COMMIT of step t a rank sends its state to the image (image.h) t modulo 2 of the rank `to`, piece by
 * piece from where it lies, while step t + 1 computes. A word of the receiver's record says
 * that the image is whole. The other image keeps step t - 1 until then, since a transfer may be cut.
 *
 * BACKED_UP waits for the transfers before the norm. The norm needs all ranks, so when a rank updates its
 * state, every rank has sent the state of the step before. Each rank has its own state of that step, too, as
 * the log has all units (kept.h). After the loss of memories there are three cases:
 *
 *   no rank had decided step t + 1     all return to t, or to t - 1 if the copy of a lost rank was cut
 *   some had decided it                all return to t; those that had begun to update, by their logs
 *   a lost rank and the rank with its copy are lost, or the first step has not decided   no return
 *
 * A step that is computed again has the same bits, so an image of a later step is as good as its successor.
 * recovery.c has the return. Used by the thread that drives the engine. Private to engine/. */
#ifndef ZR_ENGINE_BACKUP_H
#define ZR_ENGINE_BACKUP_H

#include "zero/engine/engine.h"

/* All of these do nothing without options.backup. open: takes the images, after zr_image_place() / close:
 * waits for the transfers, also of lost peers. */
zr_result zr_backup_open(struct zr_engine *engine);
void zr_backup_close(struct zr_engine *engine);

/* Adds the actions to the list of a step that has those of kept.h. */
extern const struct zr_action_transform zr_backup_step;
/* Starts to send the state of the step that was done last. */
zr_result zr_backup_start(struct zr_engine *engine);
/* Waits for the state's transfers, which it starts if that has not been done since the state was changed:
 * in the first step, and after a load. Errors: see zr_comm_wait(). */
zr_result zr_backup_finish(struct zr_engine *engine);
/* Waits for transfers under way, so that the state may change outside of a step. */
zr_result zr_backup_await(struct zr_engine *engine);

/* The image of another rank's state of a step. */
static inline char *zr_backup_image(const struct zr_engine *engine, uint64_t step)
{
    return engine->kept.backup.images + step % 2 * engine->kept.backup.image.bytes;
}

#endif
