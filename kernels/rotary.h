/* rotary.h: the frequencies of rotary position embedding, for CPU and GPU. */
#ifndef ZR_KERNELS_ROTARY_H
#define ZR_KERNELS_ROTARY_H

#include "kernels/real.h"
#include "kernels/zr_kernels.h"

/* Frequency of a pair; *scale: factor of its cosines and sines. */
ZR_REAL double zr_rotary_frequency(const struct zr_rotary_table *table, size_t pair, double *scale)
{
    const struct zr_rotary_scaling *s = &table->scaling;
    double plain = zr_real_exp(-2.0 * (double)pair / (double)table->width * zr_real_log(table->theta));
    double m = s->offset + s->slope * (s->by_pair ? (double)pair : plain);
    m = m < 0 ? 0 : m > 1 ? 1 : m;
    *scale = s->factor > 0 ? s->scale : 1;
    return s->factor > 0 ? plain * (m + (1 - m) / s->factor) : plain;
}

#endif
