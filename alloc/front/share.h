/* share.h: the memory of a block as segments of the backend's files. Private to zr. */
#ifndef ZR_SHARE_H
#define ZR_SHARE_H

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* zr_block_export(), or without `exports` only what it describes: the granules keep their class. For readers
 * that use the segments while the block is live and at no other time. */
ZR_PRIVATE_API zr_result zr_block_segments(zr_arena *arena, const void *block, bool exports,
                                           struct zr_segment *segments, size_t *count, size_t *lead_bytes);

#endif
