/* layout.h: the flat partition: the place of each parameter in its unit, and the part of a unit that a rank
 * owns. */
#ifndef ZR_LAYOUT_H
#define ZR_LAYOUT_H

#include "zero/engine/optimizer.h"

enum {
    ZR_TENSOR_ALIGN_BYTES = 64, /* for vector instructions */
    ZR_SHARD_ALIGN_BYTES = 256, /* the arena's alignment, so blocks are not padded */
};

/* Prefix of the optimizer's slots in a saved state; slot and parameter follow (state.c). */
#define ZR_STATE_PREFIX "optimizer."

struct zr_layout_parameter {
    struct zr_parameter parameter;
    uint64_t global_index; /* of the whole tensor's first element, counted without padding */
    size_t offset;         /* elements from the start of the unit */
    size_t elements;
    bool has_slot[ZR_SLOTS_MAX]; /* of its unit's optimizer */
    bool needs_whole;            /* likewise */
    /* Set by placement.c: the elements of the unit that this rank updates, none if both are equal, and where
     * the first of them is in this rank's part of each slot, in bytes. */
    size_t owned_from, owned_to, slots_at[ZR_SLOTS_MAX];
};

struct zr_layout_unit {
    struct zr_unit unit;
    size_t first_parameter, parameters_count;
    size_t padded_elements; /* world x shard_elements */
    size_t shard_elements;
    size_t pool_offset;  /* elements before this unit in a pool of whole units that are not frozen */
    size_t shard_offset; /* elements before this unit in a pool of one rank's shards of these */
    const struct zr_optimizer *optimizer; /* of the unit's tensors */
};

struct zr_layout {
    struct zr_layout_parameter *parameters;
    size_t parameters_count;
    struct zr_layout_unit *units;
    size_t units_count;
    uint64_t elements;      /* of whole tensors, without padding */
    const char *part;       /* name of a tensor that is only partly here; NULL: all are whole */
    size_t pool_elements;   /* all units that are not frozen, padded */
    size_t shards_elements; /* all shards of one rank in these units */
    size_t padded_elements; /* all units, padded */
    unsigned world;
    size_t element_bytes;  /* parameters and gradients */
    size_t block_elements; /* see struct zr_layout_request; likewise blocks_have_one_tensor */
    bool blocks_have_one_tensor;
    zr_arena *host_arena;
};

/* Units [first, end). */
struct zr_unit_range {
    unsigned first, end;
};

struct zr_layout_request {
    const struct zr_parameter_list *list;
    unsigned world;
    enum zr_precision precision;
    zr_arena *host_arena;
    const struct zr_optimizer *optimizer;    /* NULL: AdamW */
    const struct zr_parameter_group *groups; /* NULL: no group has wide_state */
    size_t block_elements;                   /* shards are multiples of it; 0: 1 */
    bool blocks_have_one_tensor;             /* tensors begin at blocks */
};

/* Lays out a list for `world` ranks. Records are allocated from the host arena, tag other, and freed by
 * zr_layout_end(). ZR_ERR_INVALID: an empty list or unit, units out of order, sizes that overflow, or names
 * that are duplicate, too long or reserved. */
zr_result zr_layout_make(struct zr_layout *layout, const struct zr_layout_request *request);
void zr_layout_end(struct zr_layout *layout);

/* Number of elements of which a unit's shards are multiples: the arena's alignment, the optimizer's block and
 * the request's. */
size_t zr_layout_align(const struct zr_layout *layout, size_t unit);

/* Elements of [from, to) of a unit that have a slot; of a slot of whole tensors, the numbers of the tensors
 * that begin there. */
size_t zr_layout_covered(const struct zr_layout *layout, size_t unit, unsigned slot, size_t from, size_t to);
/* Bytes of a unit's slot, or of all slots, on a rank that updates the whole unit or its shard: the most of
 * all ranks, so that every rank has as many. */
size_t zr_layout_slot_bytes(const struct zr_layout *layout, size_t unit, unsigned slot, bool whole);
size_t zr_layout_state_bytes(const struct zr_layout *layout, size_t unit, bool whole);

/* The part of a parameter in [from, to) of its unit; false: there is none. */
struct zr_overlap {
    size_t offset; /* elements from the start of the unit */
    size_t count;
};
bool zr_layout_overlap(const struct zr_layout_parameter *parameter, size_t from, size_t to,
                       struct zr_overlap *out);
static inline bool zr_overlap_has(struct zr_overlap range, size_t element)
{
    return element >= range.offset && element - range.offset < range.count;
}

/* Index of a stored element in its whole tensor, counted without padding. */
uint64_t zr_layout_whole_index(const struct zr_layout_parameter *parameter, size_t element);

/* The overlap in pieces that are contiguous in the whole tensor as well: one piece, or one per row of a
 * column slice. Pieces exclude padding and may be empty. `index` is below zr_layout_pieces(). */
struct zr_tensor_piece {
    size_t offset; /* elements from the start of the unit */
    size_t count;
    uint64_t global_index; /* of the first element */
};
size_t zr_layout_pieces(const struct zr_layout_parameter *parameter, size_t from, size_t to);
struct zr_tensor_piece zr_layout_piece(const struct zr_layout_parameter *parameter, size_t from, size_t to,
                                       size_t index);

#endif
