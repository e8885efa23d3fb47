/* chart.h: draws a curve in characters. */
#ifndef ZR_TRAIN_CHART_H
#define ZR_TRAIN_CHART_H

#include "alloc/base/system/file.h"

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
