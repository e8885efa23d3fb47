/* saves.h: the files of a run's state: checkpoints that it saves, the one that it resumes from, and the model
 * that it exports. What is in them is zero/checkpoint's.
 *
 * One thread, the one that drives the engine. Rank 0 logs what was done. */
#ifndef ZR_TRAIN_SAVES_H
#define ZR_TRAIN_SAVES_H

#include "zero/train/rank/rank.h"
#include "zero/train/report/progress.h"

struct zr_saves {
    struct zr_rank *rank;         /* open, and outlives this */
    struct zr_progress *progress; /* its live line ends before something is logged; outlives this */
    uint64_t resumed_step;        /* 0: the run starts anew */
    uint64_t saved_step;          /* the newest in the folder of --save; UINT64_MAX: none */
    uint64_t due_ns;              /* with --save-every TIME; this rank's clock */
    /* Rank 0: whether the clock asks for the save of the step under way, and the last step that is saved for
     * that reason; 0: none. Without --keep the next such save replaces it, or the disk would fill up. */
    bool by_clock;
    uint64_t clock_step;
};

/* The run's steps begin: so does the time to the first save, and the screen shows how long that is. */
void zr_saves_start(struct zr_saves *saves);
/* Whether it is over. */
bool zr_saves_due(const struct zr_saves *saves);

/* --resume, --save and --export; each does nothing where it was not asked for. Collective, and so are
 * failures: those of zr_checkpoint_resume(), zr_checkpoint_save() and zr_model_export(), in the same words on
 * all ranks. A step that is saved already is not saved again. */
zr_result zr_saves_resume(struct zr_saves *saves);
zr_result zr_saves_save(struct zr_saves *saves, uint64_t step);
zr_result zr_saves_export(struct zr_saves *saves);

/* --resume takes the newest step of a folder, be it of another run: better logged before this one than found
 * out after it. Of rank 0. */
zr_result zr_saves_look_for_later(const struct zr_saves *saves);

#endif
