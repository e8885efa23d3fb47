/* config.h: --config FILE, a DeepSpeed-style JSON, read into the settings of a run through the table of
 * options.
 *
 * Each key is a row of one table and equals an option, or may have one value only: what the trainer does.
 * Nothing is ignored: other keys and values are refused by their path. Private to args.c and help.c. */
#ifndef ZR_TRAIN_CONFIG_H
#define ZR_TRAIN_CONFIG_H

#include "alloc/base/system/file.h"
#include "zero/train/settings/args.h"

/* What can be worked out only when options and world are known. */
struct zr_config_rest {
    uint64_t train_batch; /* sequences of a step; 0: not given */
    bool has_batch, has_accumulate;
    double least_ratio; /* least learning rate over the highest; below 0: not given */
};

/* Reads `path` into *config. ZR_ERR_IO, ZR_ERR_FORMAT: no such file, or no JSON; ZR_ERR_INVALID: a key or
 * value that cannot be; each with file, line and path. Runs before the fork; gives back all memory. */
zr_result zr_config_read(const char *path, struct zr_train_config *config, struct zr_config_rest *rest);

/* train_batch_size = batch * accumulate * data ranks: works out what was not given, and checks the rest. */
zr_result zr_config_resolve_batch(const struct zr_config_rest *rest, struct zr_train_config *config);

/* Writes the keys of the optimizer, the scheduler and the clipping that neither file nor options gave, each
 * with the value it has here; nothing where there is none. After all is resolved. */
void zr_config_left_out(struct zr_text *text, const struct zr_train_config *config);

/* The keys, each with the option that it equals, for --help. */
void zr_config_help(struct zr_text *text);

#endif
