/* image.h: the state that a rank updates as one range of bytes: values of all units, then each slot of the
 * optimizer, and frozen units at the end. For copies of the state, on other ranks (backup.h) and in a
 * snapshot, which another thread saves while the next steps compute. The state is in memory
 * (zr_state_store_memory). Private to zero/. */
#ifndef ZR_ENGINE_IMAGE_H
#define ZR_ENGINE_IMAGE_H

#include "zero/engine/optimizer.h"

struct zr_engine;
struct zr_unit_state;

/* Contiguous memory of the state. */
struct zr_image_piece {
    char *address;
    size_t at, bytes; /* place in the image */
};
struct zr_image {
    size_t (*at)[1 + ZR_SLOTS_MAX]; /* [units_count]: place of a unit's values and slots */
    size_t bytes, trained_bytes;    /* trained_bytes: without frozen units */
    struct zr_image_piece *pieces;  /* [pieces_count], in the order of the image */
    size_t pieces_count;
};

/* Fills in the sizes / the pieces, after the state has its addresses; none in a dry run. Records are in the
 * engine's host arena. */
zr_result zr_image_place(struct zr_image *out, struct zr_engine *engine);
zr_result zr_image_find(struct zr_image *image, struct zr_engine *engine);
void zr_image_end(struct zr_image *image, struct zr_engine *engine); /* allowed for zeros */

/* ---- A snapshot (snapshot.c) ----------------------------------------------------------------------------
 */

/* Of zr_engine_options.snapshots. Zeros: none. */
struct zr_snapshot {
    struct zr_image image;
    char *memory; /* [image.bytes], tag optimizer */
    struct zr_engine *view;
    struct zr_unit_state *units;      /* [units_count] of the view */
    struct zr_kernel_context context; /* likewise */
};

/* Takes the memory / releases it. Both do nothing without options.snapshots. */
zr_result zr_snapshot_open(struct zr_engine *engine);
void zr_snapshot_close(struct zr_engine *engine);

/* Copies the state between two steps. *out: an engine with the state's copy and the numbers of now, owned by
 * `engine` and valid until the next snapshot. Any one thread can save it, over `comm` in place of
 * options.comm; nothing else may be done with it. Local. ZR_ERR_INVALID: within a step, or an engine without
 * snapshots. */
zr_result zr_engine_snapshot(struct zr_engine *engine, zr_comm *comm, struct zr_engine **out);

#endif
