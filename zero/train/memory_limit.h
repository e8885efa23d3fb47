/* memory_limit.h: what fits under --memory-limit, by the byte plan on the sim backend: never an estimate.
 *
 * A configuration fits when the granules of its plan do, on rank 0 and on the last rank (the others are
 * theirs by construction). Nothing here prints; report_limit.c does. */
#ifndef ZR_TRAIN_MEMORY_LIMIT_H
#define ZR_TRAIN_MEMORY_LIMIT_H

#include "zero/plan/plan.h"
#include "zero/train/settings/args.h"

enum { ZR_LIMIT_CHOICES = 6 };

/* A configuration like the one asked for, with something changed, that fits. */
struct zr_limit_choice {
    unsigned stage;
    enum zr_recompute recompute;
    enum zr_reduce_when reduce;
    unsigned tiles; /* 1: none */
    size_t batch, layers;
    size_t reserved_bytes; /* by its plan */
};

struct zr_limit_advice {
    struct zr_byte_plan plan; /* of what was asked for, on the rank that needs most */
    bool fits;
    size_t count;
    struct zr_limit_choice choices[ZR_LIMIT_CHOICES]; /* none where it fits, or nothing would */
};

/* Whether there is one of --memory-limit, --host-limit and --nvme-limit; whether a plan is within those of
 * the tiers; and within all. */
bool zr_limit_is_set(const struct zr_train_config *config);
bool zr_limit_fits_tiers(const struct zr_train_config *config, const struct zr_byte_plan *plan);
bool zr_limit_fits(const struct zr_train_config *config, const struct zr_byte_plan *plan);

/* The plan of the rank that needs most; and the most that is live on one, in granules as large as the caller
 * likes.
 */
zr_result zr_limit_plan_largest(struct zr_byte_plan *out, const struct zr_train_config *config,
                                zr_arena *host_arena);
zr_result zr_limit_most_live(size_t *out, const struct zr_train_config *config, size_t granule_bytes,
                             zr_arena *host_arena);

/* Plans the configuration and, where it is above config->memory_limit_bytes, looks for what would fit: the
 * lowest stage, the least recomputation, the fewest tiles and the largest batch, each alone; where none of
 * the first three helps, they together, then with a smaller batch, then with fewer layers. A higher stage
 * than ZR_REDUCE_ONCE takes comes with ZR_REDUCE_EACH. Records of the rehearsals come from host_arena. */
zr_result zr_limit_advise(struct zr_limit_advice *out, const struct zr_train_config *config,
                          zr_arena *host_arena);

/* The bytes of the head's chunks on a card, from the least to the most that are of use: the largest power of
 * two whose plan fits; the least where none does. Larger chunks are fewer and no rounder, but add up in
 * another order: losses under different limits may differ in their last bits. */
zr_result zr_limit_logits(size_t *out, const struct zr_train_config *config, zr_arena *host_arena);

/* The size that is looked for. */
enum zr_limit_size { ZR_LIMIT_BATCH = 0, ZR_LIMIT_LAYERS };

struct zr_limit_found {
    size_t value;                 /* largest that fits; 0: not even 1 does */
    size_t reserved_bytes;        /* by its plan */
    size_t beyond_reserved_bytes; /* by the plan of one more; 0: one more is beyond what can be asked for, and
                                   * SIZE_MAX: beyond what can be addressed */
    /* Of the tiers, likewise. */
    size_t host_bytes, beyond_host_bytes;
    uint64_t nvme_bytes, beyond_nvme_bytes;
};

/* Looks for the largest batch or number of layers, all else as in `config`: from the largest whose live bytes
 * are within the limit, by plans, until value fits and value + 1 does not. (Plans may differ by a granule
 * from what grows with the number: a still larger one may fit then by chance, and is not looked for.) */
zr_result zr_limit_find(struct zr_limit_found *out, const struct zr_train_config *config,
                        enum zr_limit_size size, zr_arena *host_arena);

#endif
