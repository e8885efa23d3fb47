/* memory_limit.h: configurations that fit under --memory-limit, computed by byte plans on the sim backend.
 *
 * A configuration fits if the granules of its plan fit on rank 0 and on the last rank, whose plans bound all
 * others. This module prints nothing; report.c prints the results. */
#ifndef ZR_TRAIN_MEMORY_LIMIT_H
#define ZR_TRAIN_MEMORY_LIMIT_H

#include "zero/plan/plan.h"
#include "zero/train/settings/args.h"

enum { ZR_LIMIT_CHOICES = 6 };

/* A variation of the requested configuration that fits. */
struct zr_limit_choice {
    unsigned stage;
    enum zr_recompute recompute;
    enum zr_reduce_when reduce;
    unsigned tiles; /* 1: no tiles */
    size_t batch, layers;
    size_t reserved_bytes; /* of its plan */
};

struct zr_limit_advice {
    struct zr_byte_plan plan; /* of the requested configuration, on the largest rank */
    bool fits;
    size_t count;
    struct zr_limit_choice choices[ZR_LIMIT_CHOICES]; /* empty if the configuration fits, or no variation
                                                       * does */
};

/* Whether one of --memory-limit, --host-limit and --nvme-limit is given / a plan is within all
 * limits. */
bool zr_limit_is_set(const struct zr_train_config *config);
bool zr_limit_fits(const struct zr_train_config *config, const struct zr_byte_plan *plan);

/* The plan of the largest rank / the maximum live bytes on a rank, in granules of any size. */
zr_result zr_limit_plan_largest(struct zr_byte_plan *out, const struct zr_train_config *config,
                                zr_arena *host_arena);
zr_result zr_limit_most_live(size_t *out, const struct zr_train_config *config, size_t granule_bytes,
                             zr_arena *host_arena);

/* Plans the configuration. If it exceeds a limit, searches for variations that fit: separately the lowest
 * stage, the minimum of recomputation, the minimum number of tiles and the largest batch; if none of the
 * first three helps, all of them together, then with a smaller batch, then with fewer layers. A stage above 1
 * implies ZR_REDUCE_EACH. Records come from host_arena. */
zr_result zr_limit_advise(struct zr_limit_advice *out, const struct zr_train_config *config,
                          zr_arena *host_arena);

/* Bytes of the head's chunks on a GPU: the largest useful power of two whose plan fits, or the minimum if
 * none does. Larger chunks sum in another order, so losses under different limits may differ in their last
 * bits. */
zr_result zr_limit_logits(size_t *out, const struct zr_train_config *config, zr_arena *host_arena);

/* The number to maximize. */
enum zr_limit_size { ZR_LIMIT_BATCH = 0, ZR_LIMIT_LAYERS };

struct zr_limit_found {
    size_t smallest;              /* with which there is a model */
    size_t value;                 /* largest that fits; 0: the smallest does not fit */
    size_t reserved_bytes;        /* of its plan */
    size_t beyond_reserved_bytes; /* of the plan for one more; 0: beyond the option's range; SIZE_MAX:
                                   * beyond the address space */
    /* Values of the tiers. */
    size_t host_bytes, beyond_host_bytes;
    uint64_t nvme_bytes, beyond_nvme_bytes;
};

/* Searches for the largest batch or number of layers, with all other settings as in `config`: starts from the
 * largest number whose live bytes fit, and plans until value fits and value + 1 does not. Plans are not
 * strictly monotonic, so a larger value may fit by a granule; the search does not look for it. */
zr_result zr_limit_find(struct zr_limit_found *out, const struct zr_train_config *config,
                        enum zr_limit_size size, zr_arena *host_arena);

#endif
