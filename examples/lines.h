/* lines.h: noisy pictures of 8 x 8 pixels, as 16 patches of 2 x 2, with a bright horizontal or vertical line.
 */
#ifndef ZR_EXAMPLES_LINES_H
#define ZR_EXAMPLES_LINES_H

#include "zero/zr_zero.h"

enum { PICTURES = 32, PATCHES = 16, PIXELS = 4, ROWS = PICTURES * PATCHES, CLASSES = 2, STORED_CLASSES = 16 };

/* Returns a result that is not ZR_OK from the calling function. */
#define TRY(call)                                                                                            \
    for (zr_result try_result = (call); try_result != ZR_OK;)                                                \
    return try_result

extern const struct zr_model resmlp; /* inputs: pixels [ROWS, PIXELS], and a class per patch [ROWS] */

#endif
