/* agree.h: checks that all ranks were started with the same settings and compute with the same library. Ranks
 * of another launcher parse separate command lines. */
#ifndef ZR_TRAIN_AGREE_H
#define ZR_TRAIN_AGREE_H

#include "zero/train/settings/args.h"

/* The first exchange between the ranks. Collective. ZR_ERR_INVALID on all ranks: a setting that must be
 * equal differs; the message names the first one. Paths, threads and limits may differ. */
zr_result zr_train_agree(const struct zr_train_config *config, zr_comm *comm);

/* Compares the libraries that compute the ranks' matrix products; `mine`: that of this rank. GPU model,
 * compute capability and the library's version determine the order of sums, so ranks that differ in one of
 * them differ in the last bits. Rank 0 prints a difference; with --deterministic it is ZR_ERR_INVALID on all
 * ranks. Collective. */
zr_result zr_train_agree_products(const struct zr_train_config *config, zr_comm *comm, const char *mine);

#endif
