/* checkpoint.h: saves a run and resumes it at the same or another world size and stage.
 *
 * FOLDER/step-00000100/ has state.safetensors, a file of zr_engine_save() (see zero/checkpoint/state.h),
 * and manifest.json with the run's settings, the state's checksum and its own. Of a run with groups (struct
 * zr_outer) each further group has a state.group-001.safetensors of its own. All are written to
 * FOLDER/.step-00000100.partial/ and synced (files, then folders). Rank 0 renames the folder after every
 * rank has reported success, so a folder without the dot is complete, and a failure leaves older ones
 * intact. Memory use is constant. */
#ifndef ZR_CHECKPOINT_H
#define ZR_CHECKPOINT_H

#include "zero/model/transformer.h"

/* Settings that the later steps of a run depend on, besides state, shape and seed; zeros if the manifest
 * lacks a value. */
struct zr_checkpoint_course {
    uint64_t steps, warmup; /* of the whole run */
    char schedule[16];      /* of the learning rate, as for --schedule-lr: "cosine" */
    double rate, min_rate, decay_share, dropout, attention_dropout;
    uint64_t data_order;    /* 1 if the manifest has none */
    uint64_t data_rows;     /* sequences read so far, if they are read in epochs */
    uint64_t data_sequence; /* their length in tokens */
    uint64_t data_tokens, data_checksum;
    char products[192]; /* library and GPU that compute matrix products, see struct zr_kernels; "": no
                         * choice */
};

/* Settings of the run that saved (zeros if the manifest lacks them). */
struct zr_checkpoint_origin {
    struct zr_checkpoint_course course;
    uint64_t micro_batches; /* per step */
    uint64_t step_tokens;   /* of all ranks */
    unsigned groups;        /* 0: none */
    uint64_t passed_over;   /* newest step of the folder if it has no manifest and was skipped; else 0 */
    double dropout;         /* of an imported model, see struct zr_model_file */
};

struct zr_checkpoint {
    const char *folder;  /* --save DIR; to resume, DIR or DIR/step-00000100 */
    zr_engine *engine;   /* borrowed, like all pointers below */
    zr_comm *comm;       /* all ranks */
    zr_comm *group_comm; /* all ranks with the engine's model; NULL: `comm` */
    unsigned group,
        groups; /* number of this rank's group, and of all groups; 0 groups: 1. When resuming another
                 * number is allowed: group g continues with the state of group g modulo theirs */
    struct zr_shape shape; /* batch and recompute are recorded, and may differ when resuming */
    uint64_t seed;
    unsigned stage;
    bool any_seed;                       /* for resuming: the run's steps do not continue */
    bool assumed_shape;                  /* for resuming: see struct zr_model_file */
    unsigned micro_batches;              /* per step; recorded, and may differ when resuming */
    uint64_t step_tokens;                /* of all ranks; likewise */
    struct zr_checkpoint_course course;  /* recorded, and may differ when resuming */
    struct zr_checkpoint_origin *origin; /* filled when resuming; NULL: not needed */
    uint64_t replaced;                   /* older step to remove after saving; 0: none. Used by rank 0 */
    unsigned keep; /* newest steps to keep, including the new one; 0: all. Later steps, of another run,
                    * are neither counted nor removed */
};

/* Lock on the folder of --save. Two runs that save to one folder would remove each other's unfinished saves.
 * A fork passes the lock to the ranks; the lock ends with the last process that has it. */
struct zr_checkpoint_hold {
    int fd;    /* -1: not locked */
    bool made; /* the folder was created by zr_checkpoint_hold() */
};
/* Creates the folder ("": none) and locks it, waiting two seconds for a run that is about to exit. Called
 * by the launcher. ZR_ERR_IO: another run has the lock, or the folder cannot be created. A file system
 * without locks is accepted. */
zr_result zr_checkpoint_hold(struct zr_checkpoint_hold *out, const char *folder);
/* Unlocks the folder and removes it if it was created and is empty. */
void zr_checkpoint_let_go(struct zr_checkpoint_hold *hold, const char *folder);

/* Saves step `step`, replacing an existing one. Collective, with the same result on every rank. ZR_ERR_IO:
 * the message has the cause; no partial save remains. */
zr_result zr_checkpoint_save(const struct zr_checkpoint *checkpoint, uint64_t step);

/* Loads the newest complete step of `folder`, or the step folder itself, publishes it, and stores its
 * number in *step. If `folder` is a file, it is imported as a safetensors model and *step is 0: see
 * zr_model_import(). Collective, with the same result on every rank. ZR_ERR_FORMAT: no checkpoint, another
 * program's, another shape or seed (the message names the option), or a damaged file (the message names
 * it). ZR_ERR_CORRUPT: a file changed while it was read. */
zr_result zr_checkpoint_resume(const struct zr_checkpoint *checkpoint, uint64_t *step);

/* Write / read only the engine's state, to and from the existing file `folder`, which is in memory: it is
 * neither synced nor renamed. A run reads what it has written itself, with any number of ranks. Not with
 * groups, nor with errors of compression. Collective, with the same result on every rank. */
zr_result zr_checkpoint_write_state(const struct zr_checkpoint *checkpoint);
zr_result zr_checkpoint_read_state(const struct zr_checkpoint *checkpoint);

/* Finds the newest complete step in an existing folder; *found false: none. Local. */
zr_result zr_checkpoint_newest(const char *folder, bool *found, uint64_t *step);

/* Removes unfinished saves in `folder`, which may be "" or missing. Async-signal-safe; called by the
 * launcher, and by ranks whose launcher has died. */
void zr_checkpoint_clean_up(const char *folder);

#endif
