/* noise.h: the gradient noise scale: the batch, in tokens, at which noise and signal of a gradient are equal.
 * A much smaller batch wastes steps, a much larger one tokens (McCandlish et al., An Empirical Model of
 * Large-Batch Training, 2018, arXiv 1812.06162, appendix A.1).
 *
 * The gradient of a batch of B tokens has the expected square |G|^2 + tr(S) / B, where G is the gradient of
 * all data and S the covariance of the gradients of single tokens. Two sizes of batch give both terms without
 * bias. Each is averaged exponentially before the ratio, whose own mean would be biased. Header only. */
#ifndef ZR_TRAIN_NOISE_H
#define ZR_TRAIN_NOISE_H

#include <math.h>

/* Zeros: no step. */
struct zr_noise {
    double square, variance; /* averages of |G|^2 and tr(S), to be divided by `weight` */
    double weight;
};

struct zr_noise_batch {
    double square; /* of the gradient, a mean over tokens */
    double tokens;
};
struct zr_noise_step {
    double decay;
    struct zr_noise_batch small, large; /* of two sizes */
};

/* Adds a step. A step with a square that is not finite does not count. */
static inline void zr_noise_add(struct zr_noise *noise, const struct zr_noise_step *step)
{
    const struct zr_noise_batch *a = &step->small, *b = &step->large;
    double square = (b->tokens * b->square - a->tokens * a->square) / (b->tokens - a->tokens),
           variance = (a->square - b->square) / (1 / a->tokens - 1 / b->tokens);
    if (!isfinite(square) || !isfinite(variance))
        return;
    noise->square = step->decay * noise->square + (1 - step->decay) * square;
    noise->variance = step->decay * noise->variance + (1 - step->decay) * variance;
    noise->weight = step->decay * noise->weight + (1 - step->decay);
}

/* The averages; NaN before the first step. */
static inline double zr_noise_square(const struct zr_noise *noise)
{
    return noise->weight > 0 ? noise->square / noise->weight : NAN;
}
static inline double zr_noise_variance(const struct zr_noise *noise)
{
    return noise->weight > 0 ? noise->variance / noise->weight : NAN;
}
/* tr(S) / |G|^2, in tokens. NaN: an average is not positive, as those of few steps may be. */
static inline double zr_noise_scale(const struct zr_noise *noise)
{
    return noise->square > 0 && noise->variance > 0 ? noise->variance / noise->square : NAN;
}

#endif
