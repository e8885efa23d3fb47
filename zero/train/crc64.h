/* crc64.h: CRC-64/XZ (reflected ECMA-182 polynomial), so that `xz`'s and other tools' numbers compare with
 * those in a checkpoint's manifest. Finds every single flipped bit and every burst of up to 64. */
#ifndef ZR_TRAIN_CRC64_H
#define ZR_TRAIN_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of what gave `before` followed by `data`; 0 before the first byte. One thread at a time calls
 * it first; afterwards any. */
uint64_t zr_crc64(uint64_t before, const void *data, size_t bytes);

#endif
