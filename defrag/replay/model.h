/* model.h: an allocation policy for replays: zr's arena, or a model of another allocator. Private to defrag/.
 *
 * One thread at a time. A policy returns handles, not addresses: a replay does not access the memory. */
#ifndef ZR_MODEL_H
#define ZR_MODEL_H

#include "defrag/replay/model_blocks.h"
#include "defrag/zr_defrag.h"

struct zr_model_options {
    zr_arena *host_arena;    /* for the policy's own records; borrowed */
    uint64_t capacity_bytes; /* 0: none */
    uint64_t granule_bytes;  /* a power of two; reserved bytes count in whole granules */
    bool no_wait;            /* this and the rest: see struct zr_replay_options */
    uint64_t max_split_bytes;
    uint32_t roundup_divisions[16];
    double garbage_collection_threshold;
};

/* The common part of every policy, at the start of its own state. */
struct zr_policy_model {
    const struct zr_model_ops *ops;
    struct zr_model_options options;
    uint64_t reserved_bytes, peak_reserved_bytes;
    uint64_t driver_calls;
    struct zr_block_pool records; /* of blocks, for policies that model blocks */
};

struct zr_model_ops {
    size_t bytes; /* of the policy's own struct, which begins with struct zr_policy_model */
    /* Initialises a zeroed model; end() is called even if begin() fails. NULL: nothing to do. */
    zr_result (*begin)(struct zr_policy_model *model);
    void (*end)(struct zr_policy_model *model);
    /* ZR_ERR_MEMORY: the capacity is exhausted. */
    zr_result (*alloc)(struct zr_policy_model *model, const struct zr_event *event, void **out);
    zr_result (*free)(struct zr_policy_model *model, void *handle);
    void (*wait)(struct zr_policy_model *model); /* waits for the learner; NULL: the policy does not learn */
    /* For counters kept elsewhere; NULL: those in the model are current. measure() updates reserved_bytes,
     * peak_reserved_bytes and driver_calls. */
    void (*reset_peak)(struct zr_policy_model *model);
    void (*measure)(struct zr_policy_model *model);
};

extern const struct zr_model_ops zr_model_arena, zr_model_caching, zr_model_expandable, zr_model_bestfit;

/* Creates a model under a policy, owned until zr_model_end(). Returns the arena's error, or that of the
 * policy's begin(). */
zr_result zr_model_begin(struct zr_policy_model **out, const struct zr_model_ops *ops,
                         const struct zr_model_options *options);
void zr_model_end(struct zr_policy_model *model);
/* Counts driver memory taken or returned, in whole granules. zr_model_take() is false, and takes nothing,
 * beyond the capacity. */
bool zr_model_take(struct zr_policy_model *model, uint64_t bytes);
void zr_model_give(struct zr_policy_model *model, uint64_t bytes);
/* Makes a block in no set, owned by the caller: `bytes` of it in the record `front`, the rest back in `set`;
 * or all of it if it is not split. */
void zr_model_use(struct zr_policy_model *model, struct zr_block_set *set, struct zr_model_block *block,
                  struct zr_model_block *front, uint64_t bytes, bool split, void **out);

static inline uint64_t zr_model_round(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

#endif
