/* offload.h: the folders of --offload-optimizer nvme:DIR and --offload-param nvme:DIR: measures them
 * before the ranks exist and checks that the plan fits. */
#ifndef ZR_TRAIN_OFFLOAD_H
#define ZR_TRAIN_OFFLOAD_H

#include "zero/plan/plan.h"
#include "zero/train/settings/args.h"

/* Whether zr_offload_measure() has any measurement to make for this run. */
bool zr_offload_has_to_measure(const struct zr_train_config *config);
/* Fills config->found. A disk is written and read for half a second in a file of 32 MiB, unless the disk is
 * too full or --nvme-depth is given; the ranks of a machine share its rate. With a timeline, host copies and
 * an update by one thread (the host's kernels for `isa`) are timed too. Records and buffers come from
 * host_arena and are freed. ZR_ERR_IO: the folder is missing, not writable, or in memory; the message has the
 * fix. */
zr_result zr_offload_measure(struct zr_tiers_found *out, const struct zr_train_config *config,
                             enum zr_isa isa, zr_arena *host_arena);

/* The files for optimizer state and for parameters; folder NULL: not offloaded to a file. */
struct zr_offload_file zr_offload_file_of(const struct zr_train_config *config);
struct zr_offload_file zr_offload_parameters_file_of(const struct zr_train_config *config);

/* The fraction of elements that is not offloaded, 0 to 1; 0 until --offload-ratio auto is resolved. */
static inline double zr_offload_resident_share(const struct zr_train_config *config)
{
    return config->offload_optimizer != ZR_TIER_NONE && config->offload_ratio >= 0 ? 1 - config->offload_ratio
                                                                                   : 0;
}

/* Checks that the files of all ranks of this machine fit. ZR_ERR_IO: the disk is too full; ZR_ERR_MEMORY:
 * --nvme-limit is too small. The message has the bytes. */
zr_result zr_offload_check_space(const struct zr_train_config *config, const struct zr_byte_plan *plan);
/* Whether the optimizer's folder has twice the space of the plan, which leaves space for checkpoints and
 * other files. */
bool zr_offload_has_ample_space(const struct zr_train_config *config, const struct zr_byte_plan *plan);

#endif
