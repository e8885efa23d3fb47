/* map_callbacks.h: tells others of memory that is mapped or about to be unmapped. Private to alloc/. */
#ifndef ZR_FRONT_MAP_CALLBACKS_H
#define ZR_FRONT_MAP_CALLBACKS_H

#include "alloc/core/arena.h"
#include "alloc/core/calls.h"

extern const struct zr_map_calls zr_map_callback_calls;

#endif
