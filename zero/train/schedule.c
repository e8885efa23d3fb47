/* schedule.c: see schedule.h. Computes in double and rounds once, so that every rank and run has the same
 * bits. */
#include "zero/train/schedule.h"

#include <math.h>

float zr_schedule_rate(const struct zr_train_config *config, uint64_t step)
{
    double rate = (double)config->rate, min_rate = (double)config->min_rate, share;

    if (step < config->warmup)
        return (float)(rate * (double)step / (double)config->warmup);
    if (config->rate_kind == ZR_RATE_CONSTANT || step <= config->warmup)
        return config->rate;
    if (step >= config->steps)
        return config->min_rate;
    share = (double)(step - config->warmup) / (double)(config->steps - config->warmup);
    if (config->rate_kind == ZR_RATE_COSINE)
        share = 0.5 - 0.5 * cos(3.14159265358979323846 * share);
    return (float)(rate - (rate - min_rate) * share);
}
