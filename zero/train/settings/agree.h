/* agree.h: whether all ranks were started with the same settings, and compute with the same library. Ranks
 * that somebody else starts have a command line each, and a machine each. */
#ifndef ZR_TRAIN_AGREE_H
#define ZR_TRAIN_AGREE_H

#include "zero/train/settings/args.h"

/* The first words between the ranks. Collective. ZR_ERR_INVALID on all of them, with the first option that
 * differs: settings that must be alike are not. Those that are a rank's own (where it reads and writes, its
 * threads, its limits) may differ. */
zr_result zr_train_agree(const struct zr_train_config *config, zr_comm *comm);

/* Compares what makes the ranks' matrix products, `mine` of this rank: a card, its compute capability and the
 * library's version decide in which order a product is added up, so ranks that differ in one differ in last
 * bits. Rank 0 says so; with --deterministic it is ZR_ERR_INVALID on all of them. Collective. */
zr_result zr_train_agree_products(const struct zr_train_config *config, zr_comm *comm, const char *mine);

#endif
