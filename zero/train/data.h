/* data.h: training text as windows of tokens, read from the file on demand.
 *
 * A file is a text (its bytes are the tokens; binary data is refused) or an llm.c token shard with two
 * bytes per token. The last twentieth, at least one window, is held out for validation; training windows
 * do not overlap it. A window has sequence + 1 tokens: inputs, and targets shifted by one. The sequences
 * of a step are rows, numbered over its micro-batches and data ranks. The window of a row depends only on
 * the file, the sequence length, the seed, the step and the row's number. A resumed run therefore needs no
 * state, and another mesh, batch or number of micro-batches with the same rows per step reads the same
 * windows. One thread per struct; it holds a descriptor and numbers, no memory. */
#ifndef ZR_TRAIN_DATA_H
#define ZR_TRAIN_DATA_H

#include "alloc/base/system/file.h"

/* How rows are assigned windows; stored in a checkpoint's manifest. */
enum zr_data_order {
    ZR_DATA_ORDER_BATCHES = 1, /* manifests without a number: each micro-batch counts as a step */
    ZR_DATA_ORDER_ROWS = 2,
    ZR_DATA_ORDER_LATEST = ZR_DATA_ORDER_ROWS
};

struct zr_data_options {
    const char *path;
    bool bytes;             /* a text, one token per byte; else a token shard */
    size_t vocabulary;      /* upper bound of tokens */
    size_t sequence, batch; /* batch: per data rank and micro-batch */
    unsigned data_ranks;
    unsigned micro_batches; /* per step */
    uint64_t seed;
};

struct zr_data {
    struct zr_data_options options; /* path is borrowed until zr_data_close() */
    struct zr_file file;
    size_t token_bytes;  /* 1 or 2 */
    uint64_t lead_bytes; /* bytes before the first token */
    unsigned order;      /* enum zr_data_order */
    uint64_t tokens_count;
    uint64_t checksum;    /* over samples of the tokens; identifies the file */
    uint64_t train_count; /* tokens [0, train_count) are for training, the others for validation */
    uint64_t validation_windows;
};

/* Opens and checks a file: type, header, size, at least one global batch for training and one held-out
 * window. ZR_ERR_IO, ZR_ERR_FORMAT: the message names the file and the fix. On failure *out is closed. */
zr_result zr_data_open(struct zr_data *out, const struct zr_data_options *options);
void zr_data_close(struct zr_data *data);
/* Selects an older order, including its division of the file. */
void zr_data_set_order(struct zr_data *data, enum zr_data_order order);

/* Reads the whole file and checks that every token is in the vocabulary (returns at once for bytes).
 * Called by the launcher before it forks. ZR_ERR_FORMAT: the message names the first bad token. */
zr_result zr_data_scan(const struct zr_data *data);

struct zr_data_place {
    uint64_t step; /* from 1; for validation the round, from 0 */
    unsigned data_rank;
    unsigned micro_batch; /* within the step; unused for validation */
};
/* Fills tokens and targets, [batch, sequence] each, for training. */
zr_result zr_data_train(const struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                        int32_t *targets);

/* Validation always uses the same windows, evenly spread over the held-out tail: rank r of round k reads
 * windows from (k * world + r) * batch on. The last round may be short: *count (0 to batch) is the number
 * of sequences for this rank. The validation loss is the sum of loss * count over rounds and ranks,
 * divided by validation_windows. */
uint64_t zr_data_validation_rounds(const struct zr_data *data);
zr_result zr_data_validation(const struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                             int32_t *targets, size_t *count);

#endif
