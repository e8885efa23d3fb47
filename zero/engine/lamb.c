/* lamb.c: LAMB (You et al. 2019), and its trust ratio where ranks send one bit per number: 1-bit LAMB (Li et
 * al. 2021, https://arxiv.org/abs/2104.06069).
 *
 * In the warm-up of 1-bit LAMB the moving average c of the trust ratios of a tensor is kept. Then the
 * variance v stays (onebit.h), and the trust ratio is c f, where f compares v with a fresh variance u. The
 * gradient is reconstructed from the momentum m that the update has, which at stage 0 is what the ranks have
 * sent:
 *
 *   g = (m - beta1 m') / (1 - beta1), with the momentum m' of the step before
 *   u = beta2 u + (1 - beta2) g^2, which begins with v
 *   f = the largest (sqrt(v) + epsilon) / (sqrt(u) + epsilon) of an element, within 1/2 and 4, and within a
 *       tenth of the last f, at first of 1
 *
 * v and u are corrected, as this LAMB's variances are. Elements whose v is 0 do not count (momentum.h). The
 * paper scales the momenta of tensors to one size before it packs them; here each block has a scale. */
#include "kernels/optimizers.h"
#include "zero/engine/optimizer.h"

#include <math.h>

enum { COEFFICIENT, FACTOR, NUMBERS }; /* c and f of a tensor; 0: not known */

static const double factor_min = 0.5, factor_max = 4, factor_change = 0.1;

size_t zr_lamb_numbers(const struct zr_parameter *tensor)
{
    (void)tensor;
    return NUMBERS;
}

static struct zr_lamb how_of(const struct zr_optimizer_call *call)
{
    return (struct zr_lamb){zr_adamw_of(call), call->options->trust_min, call->options->trust_max};
}

zr_result zr_lamb_sum(const struct zr_optimizer_call *call, double *squares)
{
    return call->kernels->lamb_norms(
        call->context, &(struct zr_lamb_norms){how_of(call), zr_adamw_numbers_of(call), squares});
}

zr_result zr_lamb_update(const struct zr_optimizer_call *call)
{
    return call->kernels->update_lamb(call->context,
                                      &(struct zr_update_lamb){.how = how_of(call),
                                                               .numbers = zr_adamw_numbers_of(call),
                                                               .parts = call->sums.parts,
                                                               .squares = call->sums.squares,
                                                               .stride = call->sums.stride,
                                                               .trust = call->trust});
}

/* ---- One bit per number -------------------------------------------------------------------------------- */

/* Moves the fresh variance and returns the largest ratio. */
static double move_fresh(const struct zr_optimizer_call *call)
{
    const float *m = call->slots[0], *v = call->slots[1];
    float *u = call->slots[ZR_LAMB_FRESH];
    const float beta1 = call->options->beta1, beta2 = call->options->beta2, epsilon = call->options->epsilon;
    double most = 0;
    for (size_t i = 0; i < call->n; i++) {
        float g = (m[i] - beta1 * call->before[i]) / (1 - beta1);
        u[i] = beta2 * u[i] + (1 - beta2) * g * g;
        float ratio =
            (sqrtf(v[i] / call->correction2) + epsilon) / (sqrtf(u[i] / call->fresh_correction) + epsilon);
        if (v[i] > 0 && (double)ratio > most)
            most = (double)ratio;
    }
    return most;
}

/* With a frozen variance the first sum is a part's largest ratio. */
zr_result zr_lamb_sum_fresh(const struct zr_optimizer_call *call, double *squares)
{
    zr_result result = call->keeps_momentum ? ZR_OK : zr_lamb_sum(call, squares);
    if (result == ZR_OK && call->before && call->kernels->executes)
        squares[0] = move_fresh(call);
    return result;
}

static double within(double x, double least, double most)
{
    return x < least ? least : x > most ? most : x;
}

float zr_lamb_trust_now(const struct zr_optimizer_options *options, const struct zr_tensor_sums *sums,
                        bool frozen, float *numbers)
{
    const double decay = (double)options->trust_average;
    double most = 0, steps = 0, masters = 0;
    for (size_t part = 0; part < sums->parts; part++) {
        const double *squares = sums->squares + part * sums->stride;
        most = squares[0] > most ? squares[0] : most;
        steps += squares[0];
        masters += squares[1];
    }
    if (frozen) {
        double last = numbers[FACTOR] > 0 ? (double)numbers[FACTOR] : 1;
        most = within(most > 0 ? most : 1, factor_min, factor_max);
        numbers[FACTOR] = (float)within(most, last * (1 - factor_change), last * (1 + factor_change));
        return (numbers[COEFFICIENT] > 0 ? numbers[COEFFICIENT] : 1) * numbers[FACTOR];
    }
    float trust = zr_lamb_trust(
        &(struct zr_lamb){.trust_min = options->trust_min, .trust_max = options->trust_max}, steps, masters);
    if (steps > 0 && masters > 0) /* else it is 1 because nothing is known */
        numbers[COEFFICIENT] =
            numbers[COEFFICIENT] > 0
                ? (float)(decay * (double)numbers[COEFFICIENT] + (1 - decay) * (double)trust)
                : trust;
    return trust;
}
