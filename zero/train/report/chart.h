/* chart.h: a curve in characters, for the end of a run. */
#ifndef ZR_TRAIN_CHART_H
#define ZR_TRAIN_CHART_H

#include "alloc/base/system/file.h"

struct zr_chart {
    const double *values; /* values that are no number leave a gap */
    size_t count;
    uint64_t first;   /* what the first value's place on the axis is called */
    unsigned columns; /* of the whole chart, the axis included: 20 at least */
    unsigned rows;    /* of the curve */
    bool utf8;        /* braille dots, eight to a character; else stars */
};

/* Draws nothing for fewer than two values. */
void zr_chart_draw(struct zr_text *text, const struct zr_chart *chart);

#endif
