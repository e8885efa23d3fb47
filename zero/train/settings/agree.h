/* agree.h: checks that all ranks were started with the same settings and compute with the same
 * library. Ranks of another launcher each parse
 * a command line. */
#ifndef ZR_TRAIN_AGREE_H
#define ZR_TRAIN_AGREE_H

#include "zero/train/settings/args.h"

/* The first exchange between the ranks. Collective. ZR_ERR_INVALID on all ranks: a setting that must be
 * equal differs; the message names the first one. Paths, threads and limits may differ. */
zr_result zr_train_agree(const struct zr_train_config *config, zr_comm *comm);

/* Compares what makes the ranks' matrix products, `mine` of this rank: a card, its compute capability and the
 * library's version decide in which order a product is added up, so ranks that differ in one differ in last
 * bits. Rank 0 says so; with --deterministic it is ZR_ERR_INVALID on all of them. Collective. */
zr_result zr_train_agree_products(const struct zr_train_config *config, zr_comm *comm, const char *mine);

#endif
