/* number.h: numbers as people and as programs read them. Nothing allocates; each call fills the caller's
 * buffer and returns it, so that it can stand in a print's argument list. */
#ifndef ZR_TRAIN_NUMBER_H
#define ZR_TRAIN_NUMBER_H

#include <stddef.h>
#include <stdint.h>

enum { ZR_NUMBER_ROOM = 40 };

/* The shortest decimal that reads back as the same double; "null" (JSON has no other word) for NaN and
 * infinity. */
const char *zr_number_exact(char out[ZR_NUMBER_ROOM], double value);
/* The bits, as C's %a writes them: "0x1.8p+1". */
const char *zr_number_hex(char out[ZR_NUMBER_ROOM], double value);
/* zr_size_print() of alloc/base/sizes.h: "1.50 GiB", "640 KiB", "0". */
const char *zr_number_bytes(char out[ZR_NUMBER_ROOM], uint64_t bytes);
/* "1,234,567". */
const char *zr_number_grouped(char out[ZR_NUMBER_ROOM], uint64_t value);
/* "124.4 M", "1.56 B", "850": of elements or tokens. */
const char *zr_number_counted(char out[ZR_NUMBER_ROOM], double value);
/* "45 s", "3 min 20 s", "2 h 05 min". */
const char *zr_number_seconds(char out[ZR_NUMBER_ROOM], double seconds);

#endif
