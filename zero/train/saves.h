/* saves.h: checkpoints of a run, the one it resumes from, and the exported model. zero/checkpoint/ has
 * their formats. Used by the thread that drives the engine. Rank 0 logs. */
#ifndef ZR_TRAIN_SAVES_H
#define ZR_TRAIN_SAVES_H

#include "zero/train/background.h"
#include "zero/train/rank/rank.h"
#include "zero/train/report/log.h"

struct zr_saves {
    struct zr_rank *rank;         /* open; must outlive this */
    struct zr_progress *progress; /* its live line ends before a message is logged; must outlive this */
    uint64_t resumed_step;        /* 0: the run starts from scratch */
    char source[ZR_TRAIN_PATH_ROOM + 32]; /* the checkpoint it resumes from: --resume, or after a restart the
                                           * last save; "": none */
    uint64_t saved_step;                  /* newest step in the folder of --save; UINT64_MAX: none */
    bool shares;     /* after a restart: a rank has lost the course and the history of the run */
    unsigned from;   /* a rank that has them */
    uint64_t due_ns; /* for --save-every TIME, on this rank's clock */
    /* Rank 0: by_clock: the clock requests a save of the current step. clock_step: the last step saved for
     * that reason; 0: none. Without --keep, the next save by the clock replaces that step, because the disk
     * would fill up otherwise. */
    bool by_clock;
    uint64_t clock_step;
    struct zr_background_save background;
    unsigned count;      /* saves of this process */
    uint64_t stopped_ns; /* time in which they stopped training */
};

/* Starts the time to the first save and shows it on the progress line. */
void zr_saves_start(struct zr_saves *saves);
/* Whether the time to the next save has passed, or a save in the background has failed: the next save returns
 * its error. */
bool zr_saves_due(const struct zr_saves *saves);

/* --resume, --save and --export; each has no effect if not requested. Collective, with the same errors and
 * messages on all ranks: those of zr_checkpoint_resume(), zr_checkpoint_save() and zr_model_export(). A step
 * that is already saved is not saved again. */
zr_result zr_saves_resume(struct zr_saves *saves);
/* After a restart with kept memory, in place of zr_saves_resume(): the course of the run. */
zr_result zr_saves_continue(struct zr_saves *saves);
/* Of a course that is known otherwise: takes it / writes it to kept memory, or reads it from there. */
struct zr_kept_course;
void zr_saves_take_course(struct zr_saves *saves, const struct zr_kept_course *course);
zr_result zr_saves_keep_course(struct zr_saves *saves, bool reads);
/* The run's checkpoint of a step; the paths and settings are borrowed. */
struct zr_checkpoint;
struct zr_checkpoint zr_saves_checkpoint(const struct zr_saves *saves, const char *folder, uint64_t step);
/* With --save-background it waits for the save before, whose error it returns, and starts the next one. */
zr_result zr_saves_save(struct zr_saves *saves, uint64_t step);
/* Waits for a save in the background, and prints its message. Errors: those of zr_checkpoint_save().
 * Collective unless the save has ended. */
zr_result zr_saves_finish(struct zr_saves *saves);
/* Prints the message of a save in the background that has ended well. */
void zr_saves_look(struct zr_saves *saves);
/* Ends a save that a failure or the loss of a rank has cut. Before the rank is closed. */
void zr_saves_close(struct zr_saves *saves);
zr_result zr_saves_export(struct zr_saves *saves);

/* Rank 0: prints a message if the folder of --save has later steps, of another run, because --resume would
 * choose them. */
zr_result zr_saves_look_for_later(const struct zr_saves *saves);

#endif
