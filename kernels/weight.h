/* weight.h: computes struct zr_gradient_weight, for CPU and GPU. */
#ifndef ZR_KERNELS_WEIGHT_H
#define ZR_KERNELS_WEIGHT_H

#include "kernels/real.h"
#include "kernels/zr_kernels.h"

/* `norm`: norm of all gradients, including the loss scale. */
ZR_REAL struct zr_gradient_weight zr_weight_of(double norm, double loss_scale, double clip)
{
    struct zr_gradient_weight weight;
    weight.norm = norm / loss_scale;
    weight.skips = !(norm - norm == 0); /* infinite or NaN */
    weight.clip_scale = clip > 0 && !weight.skips && weight.norm > clip ? (float)(clip / weight.norm) : 1;
    weight.scale = weight.clip_scale / (float)loss_scale;
    return weight;
}

#endif
