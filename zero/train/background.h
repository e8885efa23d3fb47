/* background.h: a save that a thread writes while the next steps compute (--save-background): the thread runs
 * zr_checkpoint_save() on a copy of the state (zero/engine/image.h), over a communicator of its own. All
 * ranks start and end their parts of a save together. Used by the thread that drives the engine. */
#ifndef ZR_TRAIN_BACKGROUND_H
#define ZR_TRAIN_BACKGROUND_H

#include <stdatomic.h>

#include "alloc/base/system/os.h"
#include "zero/checkpoint/checkpoint.h"

/* Zeros: no save is under way. */
struct zr_background_save {
    struct zr_thread thread;
    struct zr_checkpoint checkpoint;
    uint64_t step;
    bool under_way;
    _Atomic bool ended; /* the thread has ended; then the next two fields are set */
    zr_result result;
    char message[512];
};

/* Starts the thread, whose stack is in `host_arena`. `checkpoint` is copied; its engine is the snapshot's,
 * and only the thread uses its communicator. The earlier save has ended. Errors: see zr_thread_start(). */
zr_result zr_background_save_start(struct zr_background_save *save, const struct zr_checkpoint *checkpoint,
                                   uint64_t step, zr_arena *host_arena);
/* Waits for the thread. Returns the save's result with its message, or ZR_OK if no save is under way. */
zr_result zr_background_save_end(struct zr_background_save *save);
/* Whether zr_background_save_end() returns a result without a wait. */
static inline bool zr_background_save_has_ended(const struct zr_background_save *save)
{
    return save->under_way && atomic_load(&save->ended);
}

#endif
