/* background.c: see background.h. */
#include "zero/train/background.h"

#include <stdio.h>

#include "alloc/base/error.h"

enum { STACK_BYTES = 1 << 20 };

static void *write_save(void *argument)
{
    struct zr_background_save *save = argument;
    save->result = zr_checkpoint_save(&save->checkpoint, save->step);
    snprintf(save->message, sizeof save->message, "%s", save->result == ZR_OK ? "" : zr_last_error());
    atomic_store(&save->ended, true);
    return NULL;
}

zr_result zr_background_save_start(struct zr_background_save *save, const struct zr_checkpoint *checkpoint,
                                   uint64_t step, zr_arena *host_arena)
{
    save->checkpoint = *checkpoint;
    save->step = step;
    atomic_store(&save->ended, false);
    zr_result result = zr_thread_start(&save->thread, host_arena, STACK_BYTES, write_save, save);
    save->under_way = result == ZR_OK;
    return result;
}

zr_result zr_background_save_end(struct zr_background_save *save)
{
    if (!save->under_way)
        return ZR_OK;
    zr_thread_join(&save->thread);
    save->under_way = false;
    return save->result == ZR_OK ? ZR_OK : zr_fail(save->result, "%s", save->message);
}
