/* image.h: the state that a rank updates as one range of bytes: values of all units, then each slot of the
 * optimizer, and frozen units at the end. For copies of the state: backup.h, kept.h, snapshot.h. The state is
 * in memory (zr_state_store_memory). Private to engine/. */
#ifndef ZR_ENGINE_IMAGE_H
#define ZR_ENGINE_IMAGE_H

#include "zero/engine/optimizer.h"

struct zr_engine;

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

#endif
