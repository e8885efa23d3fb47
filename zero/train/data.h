/* data.h: training text as windows of tokens, read from the files on demand.
 *
 * A source is the files of one --data (see token_files.h). Its last twentieth, at least one window, is held
 * out for validation; training windows do not overlap it. A window has sequence + 1 tokens: inputs, and
 * targets shifted by one. The sequences of a step are rows, numbered over its micro-batches and data ranks.
 * The window of a row depends only on the files, the sequence length, the seed and the row's number, within
 * the step or (in epochs) since the run began. Another mesh, batch or number of micro-batches with the same
 * rows per step therefore reads the same windows, and a resumed run needs one number: the rows so far. One
 * thread per struct. */
#ifndef ZR_TRAIN_DATA_H
#define ZR_TRAIN_DATA_H

#include "zero/train/token_files.h"

/* How rows are assigned windows; stored in a checkpoint's manifest. */
enum zr_data_order {
    ZR_DATA_ORDER_BATCHES = 1, /* manifests without a number: each micro-batch counts as a step */
    ZR_DATA_ORDER_ROWS = 2,    /* each row starts at a random token */
    ZR_DATA_ORDER_EPOCHS =
        3, /* windows do not overlap; each is read once per epoch, in an order of its own */
    ZR_DATA_ORDER_LATEST = ZR_DATA_ORDER_EPOCHS
};

/* Sources are separated by line feeds. Each is a pattern of zr_token_files_add(), or PATTERN:weight=F; all
 * sources of a run have a weight, or none has. Without weights every token of every source counts alike. */
enum { ZR_DATA_SOURCES_MAX = 64 };

struct zr_data_options {
    const char *sources;     /* borrowed during zr_data_open() */
    bool bytes;              /* texts, one token per byte */
    enum zr_token_type type; /* of files without a header */
    size_t vocabulary;       /* upper bound of tokens */
    size_t sequence, batch;  /* batch: per data rank and micro-batch */
    unsigned data_ranks;
    unsigned micro_batches;      /* per step; 0: 1 */
    uint64_t step_micro_batches; /* of all data ranks; 0: all of theirs. See division.h */
    enum zr_data_order order;    /* 0: ZR_DATA_ORDER_ROWS */
    uint64_t seed;
};

struct zr_data_source {
    uint64_t first, tokens_count; /* tokens among those of all files */
    uint64_t train_count;         /* the first of them are for training, the others for validation */
    uint64_t starts;              /* tokens at which a training window may start */
    uint64_t windows;             /* for training, without overlap */
    uint64_t validation_windows;
    uint64_t slots; /* rows of this source among 65,536; 0: sources have no weights */
    double weight;
};

struct zr_data {
    struct zr_data_options options;
    struct zr_token_files files;
    struct zr_data_source sources[ZR_DATA_SOURCES_MAX];
    unsigned sources_count;
    enum zr_data_order order;
    uint64_t tokens_count, train_count, starts; /* of all sources */
    uint64_t windows;                           /* of an epoch; with weights the largest source's */
    uint64_t validation_windows;
    uint64_t checksum;                  /* identifies the files */
    uint64_t rows_before, steps_before; /* rows that were read in the steps before this run's first one */
};

/* Opens and checks the files: type, header, size, at least one global batch for training and one held-out
 * window. ZR_ERR_IO, ZR_ERR_FORMAT, ZR_ERR_INVALID: the message names the file and the fix. On failure *out
 * is closed. */
zr_result zr_data_open(struct zr_data *out, const struct zr_data_options *options);
/* Opens the data of a thread with the files of another struct, see zr_token_files_share(). */
void zr_data_share(struct zr_data *out, const struct zr_data *of);
/* A struct of zeros is closed. */
void zr_data_close(struct zr_data *data);
/* Checks the syntax of a source; NULL: valid, else a message without the text. */
const char *zr_data_source_problem(const char *source);
/* Selects another order, including its division of the files. */
void zr_data_set_order(struct zr_data *data, enum zr_data_order order);
/* Continues after a step by which this many rows were read. */
void zr_data_resume(struct zr_data *data, uint64_t step, uint64_t rows);
/* The step by whose end this many epochs are read, from the first step on; the step may read on in the next
 * epoch. UINT64_MAX: too many. */
uint64_t zr_data_steps_of(const struct zr_data *data, uint64_t epochs);
/* Rows that are read by the end of a step. */
uint64_t zr_data_rows_after(const struct zr_data *data, uint64_t step);

/* Checks that tokens are in the vocabulary, see zr_token_files_scan() (returns at once for bytes). Called by
 * the launcher before it forks. ZR_ERR_FORMAT: the message names the first bad token. */
zr_result zr_data_scan(struct zr_data *data);

struct zr_data_place {
    uint64_t step; /* from 1; for validation the round, from 0 */
    unsigned data_rank;
    unsigned micro_batch; /* within the step; unused for validation */
};
/* Number in its step of a micro-batch's first row. */
uint64_t zr_data_first_row(const struct zr_data *data, const struct zr_data_place *place);
/* Fills tokens and targets, [batch, sequence] each, for training, and has the system read the windows of the
 * next micro-batch meanwhile. */
zr_result zr_data_train(struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                        int32_t *targets);

/* Validation always uses the same windows, evenly spread over the held-out tails: rank r of round k reads
 * windows from (k * world + r) * batch on. The last round may be short: *count (0 to batch) is the number
 * of sequences for this rank. The validation loss is the sum of loss * count over rounds and ranks,
 * divided by validation_windows. */
uint64_t zr_data_validation_rounds(const struct zr_data *data);
zr_result zr_data_validation(struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                             int32_t *targets, size_t *count);

#endif
