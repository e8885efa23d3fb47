/* config.h: reads --config FILE, a DeepSpeed JSON, into the settings of a run.
 *
 * Each key is a row of one table: it maps to an option, has a single supported value, or changes no number
 * and is passed over. "auto" leaves an option to the command line and zr-train's default. What the file omits
 * of optimizer, schedule and clipping has DeepSpeed's default. Private to args.c and help.c. */
#ifndef ZR_TRAIN_CONFIG_H
#define ZR_TRAIN_CONFIG_H

#include "alloc/base/system/file.h"
#include "zero/train/settings/args.h"

/* Settings that can be resolved only after the options and the world size are known, and notes for the user.
 */
struct zr_config_rest {
    uint64_t train_batch; /* sequences of a step; 0: not given */
    bool has_batch, has_accumulate;
    double least_ratio, start_ratio; /* last learning rate, and that before the warm-up, over the highest;
                                      * negative: not given */
    bool automatic[ZR_FLAGS_MAX];    /* [i]: the file has "auto" for option i */
    bool assumed[ZR_FLAGS_MAX];      /* [i]: the file omits option i, which has DeepSpeed's default */
    char passed[2048];               /* keys that were passed over, as " a, b" */
    char reduced[256];               /* sizes that were reduced to zr-train's largest, likewise */
    char problems[16384];            /* if there are several: a line each */
    unsigned problems_count;
};

/* Reads `path` into *config. ZR_ERR_IO: the file cannot be read; ZR_ERR_FORMAT: not JSON; ZR_ERR_INVALID:
 * unsupported keys or values, the first of which is in the message with file, line and key, and all of which
 * are in rest->problems. Runs before the fork and frees all memory. */
zr_result zr_config_read(const char *path, struct zr_train_config *config, struct zr_config_rest *rest);

/* After the command line: what neither it nor the file gives has DeepSpeed's default. */
void zr_config_assume(struct zr_config_rest *rest, struct zr_train_config *config);

/* After zr_config_assume() and zr_optimizer_resolve(): computes missing factors of train_batch_size = batch *
 * accumulate * data ranks and checks the product; computes learning rates that are ratios; without --tp
 * ignores partition_activations. */
zr_result zr_config_resolve(struct zr_config_rest *rest, struct zr_train_config *config);

/* Prints what was passed over, reduced, left to options, and assumed. Called after all settings are
 * resolved. */
void zr_config_say(const struct zr_config_rest *rest, const struct zr_train_config *config);

/* Writes the keys and their options for --help. */
void zr_config_help(struct zr_text *text);

#endif
