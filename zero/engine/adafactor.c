/* adafactor.c: Adafactor (Shazeer and Stern 2018) with the learning rate of the run, and with a momentum of
 * its steps if one is given: see optimizer.h. */
#include "zero/engine/optimizer.h"

#include <math.h>

bool zr_adafactor_is_factored(const struct zr_parameter *tensor, const struct zr_parameter_group *group)
{
    (void)group;
    return tensor->shape[1] > 0;
}

size_t zr_adafactor_factors(const struct zr_parameter *tensor)
{
    return tensor->shape[0] + tensor->shape[1];
}

/* The second number limits a relative step, which is not used. */
void zr_adafactor_corrections(const struct zr_optimizer_options *options, double step, float out[2])
{
    (void)options;
    out[0] = (float)pow(step, -0.8);
    out[1] = (float)pow(step, -0.5);
}

const struct zr_adafactor zr_adafactor_paper = {.epsilon1 = 1e-30f, .epsilon2 = 1e-3f, .threshold = 1};

static struct zr_adafactor how_of(const struct zr_optimizer_call *call)
{
    struct zr_adafactor how = zr_adafactor_paper;
    how.rate = call->rate;
    how.weight_decay = call->weight_decay;
    how.share = call->correction1;
    how.step_max = call->correction2;
    how.gradient_scale = call->gradient_scale;
    how.weight = call->weight;
    how.rates = call->rates;
    how.momentum_factor = call->options->momentum_factor;
    return how;
}

static struct zr_factors factors_of(const struct zr_optimizer_call *call)
{
    const float *factors = call->slots[ZR_ADAFACTOR_FACTORS];
    if (!factors)
        return (struct zr_factors){.first = call->first};
    return (struct zr_factors){call->first, call->tensor->shape[1], factors, factors + call->tensor->shape[0],
                               call->sums.row_mean};
}

static struct zr_update numbers_of(const struct zr_optimizer_call *call)
{
    return (struct zr_update){.n = call->n,
                              .gradient = call->gradient,
                              .master = call->master,
                              .momentum = call->slots[ZR_ADAFACTOR_MOMENTUM],
                              .variance = call->slots[ZR_ADAFACTOR_VARIANCE],
                              .parameter = call->parameter};
}

zr_result zr_adafactor_sum(const struct zr_optimizer_call *call, double *squares)
{
    return call->kernels->factor_norm(
        call->context, &(struct zr_factor_norm){how_of(call), factors_of(call), numbers_of(call), squares});
}

zr_result zr_adafactor_update(const struct zr_optimizer_call *call)
{
    return call->kernels->update_factored(
        call->context, &(struct zr_update_factored){.how = how_of(call),
                                                    .factors = factors_of(call),
                                                    .numbers = numbers_of(call),
                                                    .parts = call->sums.parts,
                                                    .elements = zr_parameter_elements(call->tensor),
                                                    .squares = call->sums.squares,
                                                    .stride = call->sums.stride});
}
