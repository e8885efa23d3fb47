/* checkpoint.h: saving a run and taking it up again, at the same or another world size and stage.
 *
 * FOLDER/step-00000100/ holds state.safetensors, a file of zr_engine_save() (see zero/checkpoint/state.h),
 * and manifest.json: the run's settings, that file's checksum, and its own. Everything is written to
 * FOLDER/.step-00000100.partial/, synced (files, then folders), and renamed by rank 0 after every rank said
 * that its part is good; so a folder without the dot is complete, and a failure leaves older ones as they
 * were. Memory is constant. */
#ifndef ZR_CHECKPOINT_H
#define ZR_CHECKPOINT_H

#include "zero/model/transformer.h"

/* What the later steps of a run depend on beside its state, the shape and the seed; zeros where the manifest
 * does not say. */
struct zr_checkpoint_course {
    uint64_t steps, warmup; /* of the whole run */
    char schedule[16];      /* of the learning rate: "cosine", as --schedule-lr has it */
    double rate, min_rate;
    uint64_t data_order; /* of a manifest without one: 1 */
    uint64_t data_tokens, data_checksum;
    char products[192]; /* what makes its matrix products, with the card: see struct zr_kernels; "": no choice
                         */
};

/* How the run that saved went through its data (zeros where the manifest does not say), and what is newer. */
struct zr_checkpoint_origin {
    struct zr_checkpoint_course course;
    uint64_t micro_batches; /* per step */
    uint64_t step_tokens;   /* of all ranks */
    uint64_t passed_over;   /* the newest step of the folder, where it has no manifest; 0: it has one */
    double dropout;         /* of an imported model, see struct zr_model_file */
};

struct zr_checkpoint {
    const char *folder; /* --save DIR, or for resuming DIR or DIR/step-00000100 */
    zr_engine *engine;  /* all borrowed */
    zr_comm *comm;
    struct zr_shape shape; /* batch and recompute are noted, and may differ when resuming */
    uint64_t seed;
    unsigned stage;
    bool assumed_shape;                  /* resuming: see struct zr_model_file */
    unsigned micro_batches;              /* per step; noted, and may differ when resuming */
    struct zr_checkpoint_course course;  /* likewise */
    struct zr_checkpoint_origin *origin; /* resuming fills it; NULL: not asked for */
    uint64_t replaced; /* an older step, which goes when the new one is there; 0: none. Of the first rank */
    unsigned keep;     /* steps that stay in the folder, the new one among them; 0: all. Later steps, as of
                        * another run, are neither counted nor removed */
};

/* The folder of --save, held for one run: two that save to one folder would sweep each other's unfinished
 * saves away. The hold goes over a fork to the ranks and ends with the last process that has it. */
struct zr_checkpoint_hold {
    int fd;    /* -1: nothing is held */
    bool made; /* the folder was not there before */
};
/* Makes the folder ("": none) and holds it; waits two seconds for one whose run is just ending. For the
 * launcher. ZR_ERR_IO: another run has it, or it cannot be made. A file system without locks holds nothing.
 */
zr_result zr_checkpoint_hold(struct zr_checkpoint_hold *out, const char *folder);
/* Lets go; a folder that was made and got nothing is removed again. */
void zr_checkpoint_let_go(struct zr_checkpoint_hold *hold, const char *folder);

/* Saves as step `step`. Collective: the same result on every rank. A checkpoint of that step that is there
 * already is replaced. ZR_ERR_IO with the cause; nothing half written stays. */
zr_result zr_checkpoint_save(const struct zr_checkpoint *checkpoint, uint64_t step);

/* Loads the newest complete step of `folder` (or that very step folder) into the engine, publishes it and
 * stores its number in *step. Where `folder` is a file, it is taken for a model as safetensors, and *step is
 * 0: see zr_model_import(). Collective: the same result on every rank. ZR_ERR_FORMAT: no checkpoint there,
 * not one of ours, another shape or seed (the words name the flag), or a file is damaged (the words name
 * it). ZR_ERR_CORRUPT: a file changed while it was read. */
zr_result zr_checkpoint_resume(const struct zr_checkpoint *checkpoint, uint64_t *step);

/* The newest complete step in `folder`, which is there; *found false: none. Local. */
zr_result zr_checkpoint_newest(const char *folder, bool *found, uint64_t *step);

/* Removes what unfinished saves left in `folder`. Async-signal-safe: for the launcher and for ranks whose
 * launcher died. "" and a folder that is not there are fine. */
void zr_checkpoint_clean_up(const char *folder);

#endif
