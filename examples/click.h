/* click.h: the parts of the click model. A file of samples (click_data.c), the model (click_model.c), and
 * where its parameters live (click_store.c). click_options.c has the command line, click.c the
 * processes and the report. */
#ifndef ZR_EXAMPLES_CLICK_H
#define ZR_EXAMPLES_CLICK_H

#include <stdio.h>

#include "zero/ps/zr_ps.h"
#include "zero/table/zr_table.h"
#include "zero/zr_zero.h"

enum { CLICK_NUMBERS = 13, CLICK_CATEGORIES = 26 };

/* Returns a result that is not ZR_OK from the calling function. */
#define TRY(call)                                                                                            \
    for (zr_result try_result = (call); try_result != ZR_OK;)                                                \
    return try_result

/* ---- Samples ------------------------------------------------------------------------------------------- */

/* A file is a header and samples_count samples, little-endian. */
enum { CLICK_UNKNOWN = INT32_MIN }; /* a number that is missing; the truth of a file that was not drawn */
struct click_header {
    char magic[8]; /* "zrclick1" */
    uint64_t samples_count, seed;
    uint32_t vocabulary_max, unused;
};
struct click_sample {
    int32_t clicked;                /* 0 or 1 */
    int32_t truth;                  /* the logit of the law that drew `clicked`, in 1/65536 */
    int32_t numbers[CLICK_NUMBERS]; /* counts, as in Criteo's files */
    uint32_t ids[CLICK_CATEGORIES]; /* hashes; a value of field f is (f, id) */
};

/* Draws samples. The bits depend on the arguments only: integers, and doubles that IEEE 754 defines exactly.
 * Returns 0, or 3 after a message on stderr; so does click_convert(), which reads Criteo's text:
 * click TAB 13 counts TAB 26 hashes of 8 hex digits, where a count or a hash may be empty. */
int click_make(const char *path, const struct click_header *how);
int click_convert(const char *text_path, const char *path);

struct click_file {
    int descriptor;
    struct click_header header;
};
/* Print on stderr and return false if the file is damaged. Workers that are forked share the descriptor. */
bool click_open(struct click_file *file, const char *path);
bool click_read(const struct click_file *file, uint64_t first, unsigned count, struct click_sample *out);

/* log2(1 + number) in 1/65536, linear between powers of two; 0 of a number that is missing or negative. */
int32_t click_log2(int32_t number);

/* The area under the ROC curve: how often a sample with a click has the higher score of two, where a tie
 * counts half. 0.5 if no two differ in `clicked`, 0 with a NaN. Sorts `scores`. */
struct click_score {
    float score;
    int32_t clicked;
};
double click_auc(struct click_score *scores, size_t count);

/* ---- Model --------------------------------------------------------------------------------------------- */

/* A factorization machine and a perceptron with two hidden layers, added:
 *     logit = wide n + sum v0 + (|sum v|^2 - sum |v|^2) / 2 + top relu(relu(x w1 + b1) w2 + b2)
 * A value of a field has a row: its weight v0 and its vector v. x is the rows of all fields and n, the
 * logarithms of the numbers and a constant 1. */
#ifndef CLICK_WIDTH
#define CLICK_WIDTH 16 /* floats of a row; more with -DCLICK_WIDTH=64 */
#endif
enum { CLICK_HIDDEN = 64, CLICK_TOP = 32, CLICK_ROWS = CLICK_CATEGORIES * CLICK_WIDTH };
struct click_dense {
    float w1[CLICK_ROWS + CLICK_WIDTH][CLICK_HIDDEN], b1[CLICK_HIDDEN], w2[CLICK_HIDDEN][CLICK_TOP],
        b2[CLICK_TOP], top[CLICK_TOP], wide[CLICK_WIDTH];
};
void click_dense_init(struct click_dense *dense, uint64_t seed);

struct click_model {
    unsigned batch;
    const struct zr_kernels *kernels;
    struct zr_kernel_context context;
    float *x, *dx, *z1, *a1, *d1, *z2, *a2, *d2, *sums;
};
/* Takes memory of the arena, for `batch` samples; close it before the arena is destroyed. */
zr_result click_model_open(struct click_model *model, zr_arena *arena, unsigned batch);
void click_model_close(struct click_model *model);

struct click_batch {
    unsigned count; /* of samples */
    const struct click_sample *samples;
    const float *rows; /* [count][CLICK_ROWS] */
    const struct click_dense *dense;
    float *logits;        /* [count]; output of forward, input of backward */
    float *row_gradients; /* [count][CLICK_ROWS]; of the mean logistic loss, as dense_gradient */
    struct click_dense *dense_gradient; /* set to the gradient */
    double loss;
};
zr_result click_forward(struct click_model *model, const struct click_batch *batch);
zr_result click_backward(struct click_model *model, struct click_batch *batch);

/* ---- Store of the parameters --------------------------------------------------------------------------- */

/* The same in all processes of a run. */
struct click_run {
    unsigned workers, servers; /* servers 0: one process has all parameters and computes for all workers */
    unsigned batch;            /* samples of a worker's step */
    struct zr_ps_timing timing;
    struct zr_ps_staleness staleness;
    float rate, dense_factor;  /* of Adagrad for rows; of Adam for the others: rate * dense_factor */
    uint64_t seed, rows_limit; /* rows_limit: values with a row, on all servers */
    size_t memory_limit_bytes; /* of the rows in memory, on all servers; 0: all of them */
    const char *folder;        /* for rows beyond memory_limit_bytes; NULL: none */
    const char *addresses[ZR_PS_SERVERS_MAX];
    int listeners[ZR_PS_SERVERS_MAX];
};

/* Bytes of the parameters and their optimizer state in a process, by tier. */
struct click_tiers {
    uint64_t memory_planned, memory_measured, file_planned;
    /* 0 of a server: rows; rows in memory; of the file: its size, transfers, and rows that changed in memory
     * and moved to it */
    uint64_t rows_count, slots_used_count, file_measured, file_read, file_written, file_changed, file_wait_ns;
    uint64_t resident_peak; /* of the process, with all else that it has */
};

struct click_memory {
    zr_arena *tables, *others; /* tables: of sparse tables, and of servers; both outlive the store */
};

typedef struct click_store click_store;
/* number: of a worker, or ZR_PS_OBSERVER. The kernels are the model's. */
zr_result click_store_open(click_store **out, const struct click_run *run, struct click_model *model,
                           const struct click_memory *memory, unsigned number);
void click_store_close(click_store *store);

struct click_rows {
    const uint64_t *ids; /* [count] */
    size_t count;
    float *values; /* [count][CLICK_WIDTH]: written by a pull, the gradients of a push */
};
/* geo trains on copies for K steps: before the first, the ids of all of them. */
zr_result click_store_fetch(click_store *store, const struct click_rows *rows);
/* Reads rows and *out_dense, which is the store's. peek: for an evaluation. */
zr_result click_store_pull(click_store *store, const struct click_rows *rows, bool peek,
                           const struct click_dense **out_dense);
/* Ends a step of a worker. */
zr_result click_store_push(click_store *store, const struct click_rows *rows, struct click_dense *gradient);
zr_result click_store_report(click_store *store, struct zr_ps_state *out); /* of all servers */
/* The last call of a worker, which the servers no longer wait for. */
zr_result click_store_leave(click_store *store);
zr_result click_store_tiers(click_store *store, struct click_tiers *out); /* with 0 servers */

/* Runs server `number`. Returns once every worker has left. */
zr_result click_serve(const struct click_run *run, struct click_model *model,
                      const struct click_memory *memory, unsigned number, struct click_tiers *out);

/* ---- Command line -------------------------------------------------------------------------------------- */

enum { CLICK_POINTS_MAX = 64, CLICK_TEST_MAX = 100000 }; /* evaluations of a run; samples of each */
struct click_shared;                                     /* of all processes: click.c */
struct click_options {
    struct click_run run;
    struct click_file file;
    uint64_t train_count, test_count, steps, eval_every;
    unsigned slow_worker;
    double slow_factor, sleep_ms, target;
    bool json;
    struct click_shared *shared;
};
/* Both print a message on stderr; usage() prints the help, too. They return 0 or the exit code. */
int click_options_read(struct click_options *out, int argc, char **argv);
int click_usage(const char *problem, const char *word);
/* A number with or without KiB, MiB or GiB. */
bool click_number_read(const char *text, double least, double most, double *out);

#endif
