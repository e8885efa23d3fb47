/* number.h: number formats for people and for programs, and curves in characters.
 *
 * Each call fills the caller's buffer and returns
 * it, for use as an argument of a print call. */
#ifndef ZR_TRAIN_NUMBER_H
#define ZR_TRAIN_NUMBER_H

#include <stddef.h>
#include <stdint.h>

#include "alloc/base/system/file.h"

enum { ZR_NUMBER_ROOM = 40 };

/* The shortest decimal that reads back as the same double; "null" for NaN and infinity, which JSON lacks. */
const char *zr_number_exact(char out[ZR_NUMBER_ROOM], double value);
/* Hexadecimal floating point, as C's %a prints it: "0x1.8p+1". */
const char *zr_number_hex(char out[ZR_NUMBER_ROOM], double value);
/* zr_size_print() of alloc/base/sizes.h: "1.50 GiB", "640 KiB", "0". */
const char *zr_number_bytes(char out[ZR_NUMBER_ROOM], uint64_t bytes);
/* "1,234,567". */
const char *zr_number_grouped(char out[ZR_NUMBER_ROOM], uint64_t value);
/* Elements or tokens: "124.4 M", "1.56 B", "850". */
const char *zr_number_counted(char out[ZR_NUMBER_ROOM], double value);
/* "45 s", "3 min 20 s", "2 h 05 min". */
const char *zr_number_seconds(char out[ZR_NUMBER_ROOM], double seconds);

/* ---- Curves (chart.c) ---------------------------------------------------------------------------------- */

struct zr_chart {
    const double *values; /* NaN leaves a gap */
    size_t count;
    uint64_t first;   /* label of the first value on the axis */
    unsigned columns; /* width of the chart including the axis, at least 20 */
    unsigned rows;    /* of the curve */
    bool utf8;        /* braille dots, eight per character; else stars */
};

/* Draws nothing for fewer than two values. */
void zr_chart_draw(struct zr_text *text, const struct zr_chart *chart);

#endif
