/* repeat.h: the blocks of a pass, which every pass of training asks for anew in the same order, and a place
 * for each. Found in a rehearsal, followed in the run: the arena maps each place once, and from then on no
 * step calls the driver. What is not as in the rehearsal takes the arena's own way. */
#ifndef ZR_REPEAT_H
#define ZR_REPEAT_H

#include "alloc/zr.h"

/* Watches an arena; one at a time may. */
typedef struct zr_repeat zr_repeat;

/* Passes of one step are to follow, each at most so many allocations long, the last with those of the step's
 * end. The caller owns *out. */
zr_result zr_repeat_create(zr_repeat **out, zr_arena *arena, size_t allocations_most, zr_arena *host_arena);
/* A pass begins: forward and backward of a micro-batch. What comes after the last one's is the step's end. */
void zr_repeat_pass(zr_repeat *repeat);
/* The step is over: ends the watch and finds places. *found false: the passes differ, hold blocks beyond the
 * step or are too long to place. */
zr_result zr_repeat_place(zr_repeat *repeat, bool *found);
/* Bytes of the places, and the most that is live in them at a time. After zr_repeat_place(). */
size_t zr_repeat_region_bytes(const zr_repeat *repeat);
size_t zr_repeat_live_bytes(const zr_repeat *repeat);
/* From now on the arena keeps to the places, for the calling thread. Each pass begins with
 * zr_arena_rewind_plan(). */
zr_result zr_repeat_install(const zr_repeat *repeat, zr_arena *arena);
/* NULL is fine. */
void zr_repeat_destroy(zr_repeat *repeat);

#endif
