/* optimizers.h: scalars of the optimizers, for CPU and GPU; formulas.h has the formulas of their elements. */
#ifndef ZR_KERNELS_OPTIMIZERS_H
#define ZR_KERNELS_OPTIMIZERS_H

#include "kernels/real.h"
#include "kernels/zr_kernels.h"

/* ---- What the table's memory has in place of an argument ------------------------------------------------
 */

ZR_REAL bool zr_update_skips(const struct zr_gradient_weight *weight)
{
    return weight && weight->skips;
}

ZR_REAL float zr_scale_now(float gradient_scale, const struct zr_gradient_weight *weight)
{
    return weight ? weight->scale : gradient_scale;
}

ZR_REAL float zr_rate_now(float rate, const struct zr_step_rates *rates)
{
    return rates ? rates->rate * rate : rate;
}

ZR_REAL struct zr_adamw zr_adamw_now(const struct zr_adamw *how)
{
    struct zr_adamw now = *how;
    now.gradient_scale = zr_scale_now(how->gradient_scale, how->weight);
    now.rate = zr_rate_now(how->rate, how->rates);
    if (how->rates) {
        now.correction1 = how->rates->correction1;
        now.correction2 = how->rates->correction2;
    }
    return now;
}

#endif
