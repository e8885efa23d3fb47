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

ZR_REAL struct zr_adafactor zr_adafactor_now(const struct zr_adafactor *how)
{
    struct zr_adafactor now = *how;
    now.gradient_scale = zr_scale_now(how->gradient_scale, how->weight);
    now.rate = zr_rate_now(how->rate, how->rates);
    if (how->rates) {
        now.share = how->rates->correction1;
        now.step_max = how->rates->correction2;
    }
    return now;
}

/* Element i of struct zr_outer_step without `differs`. */
ZR_REAL void zr_outer_step_element(const struct zr_outer_step *o, size_t i)
{
    const float gradient = o->gradient[i], momentum = o->momentum_factor * o->momentum[i] + gradient,
                anchor = o->anchor[i] - o->rate * (gradient + o->momentum_factor * momentum);
    o->momentum[i] = momentum;
    o->anchor[i] = anchor;
    o->master[i] = o->mix > 0 ? o->mix * o->master[i] + (1.0f - o->mix) * anchor : anchor;
}

/* The trust ratio of LAMB from the squares of steps and masters. */
ZR_REAL float zr_lamb_trust(const struct zr_lamb *how, double steps, double masters)
{
    const double trust = sqrt(masters) / sqrt(steps), least = (double)how->trust_min,
                 most = (double)how->trust_max;
    if (!(steps > 0 && masters > 0 && trust > 0))
        return 1;
    return (float)(trust < least ? least : trust > most ? most : trust);
}

ZR_REAL float zr_lamb_trust_of(const struct zr_update_lamb *args)
{
    double steps = 0, masters = 0;
    for (size_t part = 0; part < args->parts; part++) {
        const double *squares = args->squares + part * (args->stride ? args->stride : 2);
        steps += squares[0];
        masters += squares[1];
    }
    return args->trust ? *args->trust : zr_lamb_trust(&args->how, steps, masters);
}

/* With the tensor's rate. */
ZR_REAL struct zr_adamw zr_lamb_of(const struct zr_update_lamb *args)
{
    struct zr_adamw now = zr_adamw_now(&args->how.adam);
    now.rate *= zr_lamb_trust_of(args);
    return now;
}

/* Factors of the master and of what is subtracted from it. */
struct zr_master_step {
    float keep, step;
};

/* ---- Adafactor ----------------------------------------------------------------------------------------- */

enum {
    ZR_FACTOR_COLUMN_SUMS = 8, /* sums of a column's squares, by row modulo 8 */
    ZR_FACTOR_MEAN_SUMS = 256  /* sums of the row factors, by row modulo 256, folded in halves */
};

/* A factor after it has moved towards a mean of squares. */
ZR_REAL float zr_factor_moved(const struct zr_adafactor *how, float factor, double mean)
{
    mean += (double)how->epsilon1;
    return (float)((double)factor + (double)how->share * (mean - (double)factor));
}

/* The new factor of a row or a column; `how` is zr_adafactor_now(&args->how). */
ZR_REAL float zr_row_moved(const struct zr_factor_moments *args, const struct zr_adafactor *how, size_t row)
{
    const size_t stride = args->stride ? args->stride : args->rows;
    double sum = 0;
    for (size_t part = 0; part < args->parts; part++)
        sum += args->row_sums[part * stride + row];
    return zr_factor_moved(how, args->row_factors[row], sum / (double)args->columns);
}

ZR_REAL float zr_column_moved(const struct zr_factor_moments *args, const struct zr_adafactor *how,
                              size_t column)
{
    const size_t stride = args->stride ? args->stride : args->columns;
    double sum = 0;
    for (size_t part = 0; part < args->parts; part++)
        sum += args->column_sums[part * stride + column];
    return zr_factor_moved(how, args->column_factors[column], sum / (double)args->rows);
}

/* `how` is zr_adafactor_now(&args->how). */
ZR_REAL struct zr_master_step zr_factored_step_of(const struct zr_adafactor *how,
                                                  const struct zr_update_factored *args)
{
    double updates = 0, masters = 0, largest = (double)how->threshold;
    struct zr_master_step result;
    for (size_t part = 0; part < args->parts; part++) {
        const double *squares = args->squares + part * (args->stride ? args->stride : 2);
        updates += squares[0];
        masters += how->relative ? squares[1] : 0;
    }
    double update = sqrt(updates / (double)args->elements), size = sqrt(masters / (double)args->elements);
    double step = (double)(how->rate < how->step_max || !how->relative ? how->rate : how->step_max);
    if (how->relative)
        step *= size > (double)how->epsilon2 ? size : (double)how->epsilon2;
    result.step = (float)(update > largest ? step * largest / update : step);
    result.keep = (float)(1 - (double)how->rate * (double)how->weight_decay);
    return result;
}

/* ---- Muon ---------------------------------------------------------------------------------------------- */

enum { ZR_MUON_ITERATIONS = 5 };

/* Divisor of the matrix before the first iteration, from the sum of its squares. */
ZR_REAL float zr_muon_norm(double squares)
{
    return (float)(sqrt(squares) + 1e-7);
}

/* An element of a I + b A + c A^2, the factor of x in an iteration. */
ZR_REAL float zr_muon_polynomial(float gram, float square, bool diagonal)
{
    return (diagonal ? 3.4445f : 0.0f) + (-4.7750f * gram + 2.0315f * square);
}

ZR_REAL struct zr_master_step zr_direction_step_of(const struct zr_apply_direction *args)
{
    float rate = zr_rate_now(args->rate, args->rates);
    struct zr_master_step result = {1 - rate * args->weight_decay, rate * args->scale};
    return result;
}

#endif
