/* granule_class.h: which granules may move. Private to alloc/. lock: both of the arena */
#ifndef ZR_CORE_GRANULE_CLASS_H
#define ZR_CORE_GRANULE_CLASS_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"

/* Whether the granules of a mapping may be unmapped while its addresses are free. */
static inline bool zr_is_movable(const struct zr_mapping *mapping)
{
    return mapping->handle->granule_class == ZR_GRANULE_MOVABLE;
}

/* The class of a handle that is mapped in the arena. */
void zr_handle_set_class(struct zr_arena *arena, struct zr_handle *handle,
                         enum zr_granule_class granule_class);
/* Bytes of granules [first, end) whose class is not movable. */
size_t zr_unmovable_bytes(const struct zr_arena *arena, struct zr_stretch where);

#endif
