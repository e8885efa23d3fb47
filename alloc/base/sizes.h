/* sizes.h: sizes in bytes as people write and read them. Private to the project.
 *
 * One reader and one printer for the options of all programs, ZR_CONF and JSON. A size is a number, with or
 * without a fraction, and a unit, in either case:
 *   16777216   16777216B   bytes
 *   16G  16GiB             powers of 1024
 *   16GB                   powers of 1000
 * The letters are K, M, G, T, P and E. A letter alone is a power of 1024, as in ZR_CONF, in jemalloc's
 * options and in GNU's programs. */
#ifndef ZR_SIZES_H
#define ZR_SIZES_H

#include <stddef.h>
#include <stdint.h>

/* For a --help. */
#define ZR_SIZE_HELP                                                                                         \
    "Sizes are bytes, or end in K, M, G, T or KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (of "    \
    "1000), in\neither case: 16G, 1.5GiB, 16GB.\n"

/* Reads all of the `length` bytes of `text`, which need no final zero. NULL: it is read, and *out set. Else
 * the problem and the accepted forms ("is no size; give .."), for a caller that names the text before them:
 * no size, negative, above 2^64 - 1 bytes, no whole number of bytes, more than 19 digits behind the point,
 * words behind the size. */
const char *zr_size_read(const char *text, size_t length, uint64_t *out);

enum { ZR_SIZE_ROOM = 16 };

/* "1.50 GiB", "640 KiB", "0": three digits, or four before the next unit. Fills `out` and returns it. */
const char *zr_size_print(char out[ZR_SIZE_ROOM], uint64_t bytes);
/* The same in the unit of `largest_bytes`, so that the sizes of a sentence can be compared: "0.250 GiB".
 * Three decimals at most; a size that they would show as 0 has a unit of its own. */
const char *zr_size_print_in(char out[ZR_SIZE_ROOM], uint64_t bytes, uint64_t largest_bytes);

enum { ZR_SIZE_EXACT_ROOM = 24 };

/* As zr_size_read() takes it for exactly this: "64MiB", "1500MB", "16777217". For options in messages and
 * commands. Fills `out` and returns it. */
const char *zr_size_print_exact(char out[ZR_SIZE_EXACT_ROOM], uint64_t bytes);

#endif
