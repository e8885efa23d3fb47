/* config.h: reads --config FILE, a DeepSpeed-style JSON, into the settings of a run.
 *
 * Each key is a row of one table: it maps to an option, or has a single supported value. Unknown keys and
 * values are errors that name their path. Private to args.c and help.c. */
#ifndef ZR_TRAIN_CONFIG_H
#define ZR_TRAIN_CONFIG_H

#include "alloc/base/system/file.h"
#include "zero/train/settings/args.h"

/* Settings that can be resolved only after the options and the world size are known. */
struct zr_config_rest {
    uint64_t train_batch; /* sequences of a step; 0: not given */
    bool has_batch, has_accumulate;
    double least_ratio; /* minimum learning rate over the maximum; negative: not given */
};

/* Reads `path` into *config. Errors name file, line and key. ZR_ERR_IO: the file cannot be read;
 * ZR_ERR_FORMAT: not JSON; ZR_ERR_INVALID: an unsupported key or value. Runs before the fork and frees all
 * memory. */
zr_result zr_config_read(const char *path, struct zr_train_config *config, struct zr_config_rest *rest);

/* Computes missing factors of train_batch_size = batch * accumulate * data ranks and checks the product. */
zr_result zr_config_resolve_batch(const struct zr_config_rest *rest, struct zr_train_config *config);

/* Writes the keys of optimizer, scheduler and clipping that neither the file nor an option sets, each with
 * zr-train's value. Called after all settings are resolved. */
void zr_config_left_out(struct zr_text *text, const struct zr_train_config *config);

/* Writes the keys and their options for --help. */
void zr_config_help(struct zr_text *text);

#endif
