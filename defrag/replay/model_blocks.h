/* model_blocks.h: the blocks of a modelled allocator, their records, and ordered sets of them. Private to the
 * policies of defrag/. */
#ifndef ZR_MODEL_BLOCKS_H
#define ZR_MODEL_BLOCKS_H

#include "alloc/zr.h"

/* A used or free range of a segment's addresses. The blocks of a segment are linked in address order. */
struct zr_model_block {
    struct zr_model_block *previous, *next; /* neighbours in the segment; NULL at its ends */
    struct zr_model_block *children[2];     /* in a set; children[0] of a free record: the next free record */
    uint64_t address, bytes, stream;
    uint64_t segment; /* start address, for models that need it */
    uint64_t since;   /* when it became free, for models that need it */
    bool allocated;
    bool mapped; /* the range is mapped */
    bool small;  /* of the pool for small requests */
};

/* An ordered set: a treap whose nodes are the blocks. */
struct zr_block_set {
    struct zr_model_block *root;
    bool by_address; /* by (stream, address); else by (stream, bytes, address) */
};

/* Records of blocks, in slabs from a host arena. */
struct zr_block_pool {
    zr_arena *arena;             /* borrowed */
    struct zr_model_block *free; /* through children[0] */
    struct zr_block_slab *slabs;
};

void zr_block_pool_init(struct zr_block_pool *pool, zr_arena *arena);
/* Frees all records. */
void zr_block_pool_end(struct zr_block_pool *pool);
/* Returns a zeroed record, or the arena's error. */
zr_result zr_block_take(struct zr_block_pool *pool, struct zr_model_block **out);
void zr_block_give(struct zr_block_pool *pool, struct zr_model_block *block);

void zr_block_set_insert(struct zr_block_set *set, struct zr_model_block *block);
/* The block must be in the set, with the keys under which it was inserted. */
void zr_block_set_remove(struct zr_block_set *set, struct zr_model_block *block);
/* The first block of the stream with at least `bytes` (by address: at or after address `bytes`); NULL: none.
 */
struct zr_model_block *zr_block_set_find(const struct zr_block_set *set, uint64_t stream, uint64_t bytes);
/* The block after this one in the set's order, of any stream, NULL at the end; NULL gives the first. */
struct zr_model_block *zr_block_set_next(const struct zr_block_set *set, const struct zr_model_block *block);

/* Splits off the first `bytes` into `front`, a fresh record that becomes the block's predecessor. Neither may
 * be in a set. */
void zr_block_split(struct zr_model_block *block, struct zr_model_block *front, uint64_t bytes);
/* Merges the block with a neighbour on either side; the caller frees the neighbour's record. */
void zr_block_join(struct zr_model_block *block, const struct zr_model_block *neighbour);

#endif
