/* data.h: the training text, as windows of tokens read straight from the file.
 *
 * A file is any text (its bytes are the tokens; binary data is refused) or an llm.c token shard of two bytes
 * a token. Its last twentieth, at least one window, is held out for validation; no training window reaches
 * into it. A window is sequence + 1 tokens: inputs, and targets one further on. The sequences of a step are
 * rows, numbered over its micro-batches and the data ranks of each. Which window a row gets depends on the
 * file, the sequence, the seed, the step and the row's number alone: a resumed run needs no state, and
 * another mesh, batch or number of micro-batches with as many rows per step reads the same windows. One
 * struct belongs to one thread; it holds a descriptor and numbers, no memory. */
#ifndef ZR_TRAIN_DATA_H
#define ZR_TRAIN_DATA_H

#include "alloc/base/system/file.h"

/* How rows get their windows; a checkpoint's manifest has the number. */
enum zr_data_order {
    ZR_DATA_ORDER_BATCHES =
        1, /* of manifests without a number: each micro-batch counts as a step of its own */
    ZR_DATA_ORDER_ROWS = 2,
    ZR_DATA_ORDER_LATEST = ZR_DATA_ORDER_ROWS
};

struct zr_data_options {
    const char *path;
    bool bytes;             /* a text, one token per byte; else a token shard */
    size_t vocabulary;      /* every token is below it */
    size_t sequence, batch; /* batch: per data rank and micro-batch */
    unsigned data_ranks;
    unsigned micro_batches; /* per step */
    uint64_t seed;
};

struct zr_data {
    struct zr_data_options options; /* path is borrowed until zr_data_close() */
    struct zr_file file;
    size_t token_bytes;  /* 1 or 2 */
    uint64_t lead_bytes; /* before the first token */
    unsigned order;      /* enum zr_data_order */
    uint64_t tokens_count;
    uint64_t checksum;    /* of samples of the tokens: another file is told from this one by it */
    uint64_t train_count; /* tokens [0, train_count) are for training, the rest is held out */
    uint64_t validation_windows;
};

/* Opens and checks: kind of file, header, size against the count, at least one global batch for training and
 * one window held out. ZR_ERR_IO, ZR_ERR_FORMAT with words that name the file and the way out. On failure
 * *out is closed. */
zr_result zr_data_open(struct zr_data *out, const struct zr_data_options *options);
void zr_data_close(struct zr_data *data);
/* Takes another order than the latest, with the division of the file that went with it. */
void zr_data_set_order(struct zr_data *data, enum zr_data_order order);

/* Reads the whole file once and checks that every token is in the vocabulary (bytes always are: returns at
 * once). For the launcher, before it forks. ZR_ERR_FORMAT names the first bad token. */
zr_result zr_data_scan(const struct zr_data *data);

struct zr_data_place {
    uint64_t step; /* counted from 1, or the round of a validation, from 0 */
    unsigned data_rank;
    unsigned micro_batch; /* of the step; not of a validation */
};
/* Fills tokens and targets, [batch, sequence] each, for training. */
zr_result zr_data_train(const struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                        int32_t *targets);

/* Validation uses the same windows every time, evenly spread over the held-out tail: rank r of round k has
 * the windows from (k * world + r) * batch on. The last round may be short: *count (0 .. batch) says how many
 * sequences this rank got. The validation loss is the sum of loss * count over rounds and ranks, divided by
 * validation_windows. */
uint64_t zr_data_validation_rounds(const struct zr_data *data);
zr_result zr_data_validation(const struct zr_data *data, const struct zr_data_place *place, int32_t *tokens,
                             int32_t *targets, size_t *count);

#endif
