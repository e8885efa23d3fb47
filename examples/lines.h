/* lines.h: small noisy pictures of 8 x 8, as 16 patches of 2 x 2, with a bright line: across or down? */
#ifndef ZR_EXAMPLES_LINES_H
#define ZR_EXAMPLES_LINES_H

#include "zero/zr_zero.h"

enum { PICTURES = 32, PATCHES = 16, PIXELS = 4, ROWS = PICTURES * PATCHES, CLASSES = 2, STORED_CLASSES = 16 };

/* Returns from the function with whatever is not ZR_OK. */
#define TRY(call)                                                                                            \
    for (zr_result try_result = (call); try_result != ZR_OK;)                                                \
    return try_result

extern const struct zr_model resmlp; /* its inputs: pixels [ROWS, PIXELS], and a class per patch [ROWS] */

#endif
