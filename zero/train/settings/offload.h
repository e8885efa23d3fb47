/* offload.h: the folders of --offload-optimizer nvme:DIR and --offload-param nvme:DIR: what they offer, found
 * out before the ranks exist, and whether the plan fits into them. */
#ifndef ZR_TRAIN_OFFLOAD_H
#define ZR_TRAIN_OFFLOAD_H

#include "zero/plan/plan.h"
#include "zero/train/settings/args.h"

/* Whether something is to be found out about the tiers of such a run. */
bool zr_offload_has_to_measure(const struct zr_train_config *config);
/* What config->found has. A disk is written and read for half a second, in 32 MiB of a file, where there is
 * so much room and --nvme-depth is not given; the ranks of a machine share its rate. Copies of the host, and
 * an update by one thread with the host's kernels for `isa`, are timed where the timeline asks for them.
 * ZR_ERR_IO: the folder is missing, cannot be written, or is memory; the words have the way out. Records and
 * buffers come from host_arena and go back. */
zr_result zr_offload_measure(struct zr_tiers_found *out, const struct zr_train_config *config,
                             enum zr_isa isa, zr_arena *host_arena);

/* The files of a run, of the optimizer's state and of parameters; where these are not offloaded to a file,
 * the folder is NULL. */
struct zr_offload_file zr_offload_file_of(const struct zr_train_config *config);
struct zr_offload_file zr_offload_parameters_file_of(const struct zr_train_config *config);

/* The part of the elements that is not offloaded, 0 to 1; 0 of a ratio that is not found yet. */
static inline double zr_offload_stays(const struct zr_train_config *config)
{
    return config->offload_optimizer != ZR_TIER_NONE && config->offload_ratio >= 0 ? 1 - config->offload_ratio
                                                                                   : 0;
}

/* Whether the files of the ranks of this machine fit. ZR_ERR_IO, or ZR_ERR_MEMORY of --nvme-limit: they do
 * not; the words have the bytes. */
zr_result zr_offload_check_space(const struct zr_train_config *config, const struct zr_byte_plan *plan);
/* Whether the optimizer's folder has twice as much: the rest is for checkpoints, and for others. */
bool zr_offload_has_ample_space(const struct zr_train_config *config, const struct zr_byte_plan *plan);

#endif
