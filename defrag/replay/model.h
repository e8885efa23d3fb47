/* model.h: an allocation policy to replay under: our arena, or a model of somebody else's. Private to
 * defrag/.
 *
 * One thread at a time. A policy answers with handles, not addresses: nobody reads the memory. */
#ifndef ZR_MODEL_H
#define ZR_MODEL_H

#include "defrag/replay/model_blocks.h"
#include "defrag/zr_defrag.h"

struct zr_model_options {
    zr_arena *host_arena;    /* for the policy's own records; borrowed */
    uint64_t capacity_bytes; /* 0: none */
    uint64_t granule_bytes;  /* a power of two; what is reserved is counted in whole ones */
    bool no_wait;            /* see struct zr_replay_options */
};

/* What every policy keeps, in front of its own state. */
struct zr_policy_model {
    const struct zr_model_ops *ops;
    struct zr_model_options options;
    uint64_t reserved_bytes, peak_reserved_bytes;
    uint64_t driver_calls;
    struct zr_block_pool records; /* of blocks, for policies that model them */
};

struct zr_model_ops {
    size_t bytes; /* of the policy's own struct, which begins with its struct zr_policy_model */
    /* Fills what is not zero in a fresh model; end() is called where it fails too. NULL: nothing to do. */
    zr_result (*begin)(struct zr_policy_model *model);
    void (*end)(struct zr_policy_model *model);
    /* ZR_ERR_MEMORY: the capacity is used up. */
    zr_result (*alloc)(struct zr_policy_model *model, const struct zr_event *event, void **out);
    zr_result (*free)(struct zr_policy_model *model, void *handle);
    void (*wait)(struct zr_policy_model *model); /* until all is learned; NULL: it learns nothing */
    /* Where the counters are kept elsewhere; NULL: those in the model are up to date. measure() brings
     * reserved_bytes, peak_reserved_bytes and driver_calls up to date. */
    void (*reset_peak)(struct zr_policy_model *model);
    void (*measure)(struct zr_policy_model *model);
};

extern const struct zr_model_ops zr_model_arena, zr_model_caching, zr_model_expandable, zr_model_bestfit;

/* A model under a policy, ready to run; owned until zr_model_end(). The arena's failure, or what the policy's
 * begin() fails with. */
zr_result zr_model_begin(struct zr_policy_model **out, const struct zr_model_ops *ops,
                         const struct zr_model_options *options);
void zr_model_end(struct zr_policy_model *model);
/* Counts driver memory taken (false, and nothing taken, beyond the capacity) and given back, in whole
 * granules. */
bool zr_model_take(struct zr_policy_model *model, uint64_t bytes);
void zr_model_give(struct zr_policy_model *model, uint64_t bytes);
/* Makes a block, in no set, the caller's: `bytes` of it in the record `front`, the rest back into `set`; or,
 * where it is not split, the whole of it. */
void zr_model_use(struct zr_policy_model *model, struct zr_block_set *set, struct zr_model_block *block,
                  struct zr_model_block *front, uint64_t bytes, bool split, void **out);

static inline uint64_t zr_model_round(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

#endif
