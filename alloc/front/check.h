/* check.h: every invariant of an arena, recomputed. Private to alloc/. */
#ifndef ZR_FRONT_CHECK_H
#define ZR_FRONT_CHECK_H

#include "alloc/core/arena.h"

/* ZR_ERR_CORRUPT, with a message that names what is damaged. Both locks. */
zr_result zr_check_arena(struct zr_arena *arena);

#endif
