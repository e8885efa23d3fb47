/* model.h: an allocation policy to replay under: our arena, or a model of somebody else's. Private to
 * defrag/.
 *
 * One thread at a time. A policy answers with handles, not addresses: nobody reads the memory. */
#ifndef ZR_MODEL_H
#define ZR_MODEL_H

#include "defrag/zr_defrag.h"

struct zr_model_options {
    zr_arena *host_arena;    /* for the policy's own records; borrowed */
    uint64_t capacity_bytes; /* 0: none */
    uint64_t granule_bytes;  /* a power of two; what is reserved is counted in whole ones */
    bool no_wait;            /* see struct zr_replay_options */
};

/* What every policy keeps, in front of its own state. */
struct zr_model {
    const struct zr_model_ops *ops;
    struct zr_model_options options;
    uint64_t reserved_bytes, peak_reserved_bytes;
    uint64_t driver_calls;
};

struct zr_model_ops {
    /* *out is owned until destroy(). The arena's failure, or ZR_ERR_INVALID for the granule size. */
    zr_result (*create)(struct zr_model **out, const struct zr_model_options *options);
    void (*destroy)(struct zr_model *model);
    /* ZR_ERR_MEMORY: the capacity is used up. */
    zr_result (*alloc)(struct zr_model *model, const struct zr_event *event, void **out);
    zr_result (*free)(struct zr_model *model, void *handle);
    void (*wait)(
        struct zr_model *model); /* until it has learned what there is to learn; NULL: it learns nothing */
    void (*reset_peak)(struct zr_model *model);
    /* Brings reserved_bytes, peak_reserved_bytes and driver_calls up to date. */
    void (*measure)(struct zr_model *model);
};

extern const struct zr_model_ops zr_model_arena, zr_model_caching, zr_model_expandable, zr_model_bestfit;

/* Counts driver memory taken (false, and nothing taken, beyond the capacity) and given back, in whole
 * granules. */
bool zr_model_take(struct zr_model *model, uint64_t bytes);
void zr_model_give(struct zr_model *model, uint64_t bytes);
/* For policies whose numbers are always up to date. */
void zr_model_reset_peak(struct zr_model *model);
void zr_model_measure(struct zr_model *model);

static inline uint64_t zr_model_round(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

#endif
