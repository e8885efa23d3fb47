/* metrics.h: the figures of running processes in Prometheus's text format. Private to defrag/tool/. */
#ifndef ZR_METRICS_H
#define ZR_METRICS_H

#include "defrag/tool/live/top_model.h"

/* Prints the whole model, with the samples of each metric together. */
void zr_metrics_print(struct zr_text *text, const struct zr_top *top);

#endif
