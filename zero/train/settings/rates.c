/* rates.c: the learning rate of each step: a warm-up, then one of the schedules of a table. See args.h. */
#include "zero/train/settings/args.h"

#include <math.h>

/* Shares of the way from --lr to the minimum after a step beyond the warm-up. */

/* One period of Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017, (5). */
static double fallen_cosine(const struct zr_train_config *config, double step)
{
    double from = (double)config->warmup, share = (step - from) / ((double)config->steps - from);
    return 0.5 - 0.5 * cos(3.14159265358979323846 * share);
}

static double fallen_linear(const struct zr_train_config *config, double step)
{
    double from = (double)config->warmup;
    return (step - from) / ((double)config->steps - from);
}

static double fallen_constant(const struct zr_train_config *config, double step)
{
    (void)config, (void)step;
    return 0;
}

/* Warm-up, stable, decay: Hu et al., MiniCPM, 2024; the linear decay of Hägele et al., Scaling Laws and
 * Compute-Optimal Training Beyond Fixed Training Durations, 2024. */
static double fallen_wsd(const struct zr_train_config *config, double step)
{
    double steps = (double)config->steps,
           from = fmax(steps - (double)config->decay_share * steps, (double)config->warmup);
    return step > from ? (step - from) / (steps - from) : 0;
}

/* Vaswani et al., Attention Is All You Need, 2017, (3): proportional to the inverse root of the step. */
static double fallen_inverse_sqrt(const struct zr_train_config *config, double step)
{
    return 1 - sqrt((double)config->warmup / step);
}

static const struct zr_schedule schedules[ZR_RATES_COUNT] = {
    [ZR_RATE_COSINE] = {"cosine", true, fallen_cosine},
    [ZR_RATE_LINEAR] = {"linear", true, fallen_linear},
    [ZR_RATE_CONSTANT] = {"constant", false, fallen_constant},
    [ZR_RATE_WSD] = {"wsd", true, fallen_wsd},
    [ZR_RATE_INVERSE_SQRT] = {"inverse-sqrt", false, fallen_inverse_sqrt}};

const struct zr_schedule *zr_schedule_of(enum zr_rate_kind kind)
{
    return &schedules[kind];
}

/* Computes in double and rounds once, so that every rank and run has the same bits. */
float zr_schedule_rate(const struct zr_train_config *config, uint64_t step)
{
    const struct zr_schedule *schedule = zr_schedule_of(config->rate_kind);
    double rate = (double)config->rate, min_rate = schedule->ends ? (double)config->min_rate : 0;
    double start_rate = (double)config->start_rate, warmup = (double)config->warmup, at = (double)step;

    if (step < config->warmup && config->log_warmup)
        return (float)(start_rate + (rate - start_rate) * log2(at) / log2(warmup));
    if (step < config->warmup)
        return (float)(start_rate + (rate - start_rate) * at / warmup);
    if (step <= config->warmup)
        return config->rate;
    if (step >= config->steps && schedule->ends)
        return config->min_rate;
    return (float)(rate - (rate - min_rate) * schedule->fallen(config, at));
}
