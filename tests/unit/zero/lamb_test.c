/* lamb_test.c: the trust ratio of 1-bit LAMB beside a model in double precision: its average in the warm-up,
 * the fresh variance from reconstructed gradients, and the limits of its factor, of a tensor in two parts. */
#include <math.h>
#include <string.h>

#include "kernels/zr_kernels.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"
#include "zero/engine/optimizer.h"

enum { N = 64, CUT = 23, STRIDE = 4, STEPS = 40 };

struct tensor {
    float momentum[N], before[N], variance[N], fresh[N], numbers[2];
    double squares[2 * STRIDE];
};
struct model {
    double fresh[N], coefficient, factor;
};

static const struct zr_optimizer_options options = {.kind = ZR_OPTIMIZER_LAMB,
                                                    .beta1 = 0.8f,
                                                    .beta2 = 0.75f,
                                                    .epsilon = 1e-3f,
                                                    .trust_min = 0.1f,
                                                    .trust_max = 3,
                                                    .trust_average = 0.6f};

static uint64_t state;

static double draw(double most)
{
    return most * (double)(xorshift64(&state) % 1000000) / 1e6;
}

static double relative(double got, double want)
{
    return fabs(got - want) / (fabs(want) + 1e-12);
}

static double trust_of(struct tensor *t, bool frozen)
{
    const struct zr_tensor_sums sums = {.squares = t->squares, .parts = 2, .stride = STRIDE};
    return (double)zr_optimizer_with(&options, ZR_KEEPS_NOTHING)->trust(&options, &sums, frozen, t->numbers);
}

/* A step of the warm-up; the sums of some are 0. */
static double warm_up(struct tensor *t, struct model *model, unsigned step)
{
    double steps = 0, masters = 0, trust = 1;
    for (unsigned part = 0; part < 2; part++) {
        steps += t->squares[STRIDE * part] = step % 5 == 0 ? 0 : draw(1);
        masters += t->squares[STRIDE * part + 1] = draw(pow(10, step % 7) * 1e-3);
    }
    if (steps > 0) {
        trust = fmin(fmax(sqrt(masters / steps), options.trust_min), options.trust_max);
        double decay = model->coefficient > 0 ? (double)options.trust_average : 0;
        model->coefficient = decay * model->coefficient + (1 - decay) * trust;
    }
    return relative(trust_of(t, false), trust);
}

/* A step with a frozen variance and gradients of `size`. */
static double frozen_step(struct tensor *t, struct model *model, double size, double correction)
{
    const double b1 = (double)options.beta1, b2 = (double)options.beta2, epsilon = (double)options.epsilon;
    double most = 0, error = 0;
    memcpy(t->before, t->momentum, sizeof t->before);
    for (unsigned i = 0; i < N; i++) {
        t->momentum[i] = (float)(b1 * (double)t->before[i] + (1 - b1) * (draw(2 * size) - size));
        double g = ((double)t->momentum[i] - b1 * (double)t->before[i]) / (1 - b1);
        model->fresh[i] = b2 * model->fresh[i] + (1 - b2) * g * g;
        double ratio =
            (sqrt((double)t->variance[i] / 0.9) + epsilon) / (sqrt(model->fresh[i] / correction) + epsilon);
        most = t->variance[i] > 0 ? fmax(most, ratio) : most;
    }
    double last = model->factor;
    model->factor = fmin(fmax(fmin(fmax(most, 0.5), 4), last * 0.9), last * 1.1);
    for (unsigned part = 0; part < 2; part++) {
        const size_t first = part ? CUT : 0;
        const struct zr_optimizer_call call = {
            .options = &options,
            .kernels = zr_kernels_cpu(ZR_ISA_PLAIN),
            .keeps_variance = true,
            .keeps_momentum = true,
            .correction2 = 0.9f,
            .fresh_correction = (float)correction,
            .n = part ? N - CUT : CUT,
            .before = t->before + first,
            .slots = {t->momentum + first, t->variance + first, t->fresh + first, t->numbers}};
        if (zr_optimizer_with(&options, ZR_KEEPS_NOTHING)->sum(&call, t->squares + STRIDE * part) != ZR_OK)
            return INFINITY;
    }
    error = relative(trust_of(t, true), model->coefficient * model->factor);
    for (unsigned i = 0; i < N; i++)
        error = fmax(error, relative((double)t->fresh[i], model->fresh[i]));
    return error;
}

int main(void)
{
    static const double sizes[] = {1, 30, 0.01};
    struct tensor t = {.squares = {0}};
    struct model model = {.factor = 1};
    double worst = 0, least = INFINITY, most = 0;
    state = run_seed();
    for (unsigned step = 0; step < STEPS; step++)
        worst = fmax(worst, warm_up(&t, &model, step));
    tap_ok(worst < 1e-6 && relative((double)t.numbers[0], model.coefficient) < 1e-5,
           "the trust ratios of a warm-up and their average (%.1e off)", worst);
    for (unsigned i = 0; i < N; i++) {
        t.momentum[i] = (float)draw(0.1);
        t.fresh[i] = t.variance[i] = i % 9 == 0 ? 0 : (float)draw(1);
        model.fresh[i] = (double)t.fresh[i];
    }
    worst = 0;
    for (unsigned step = 0; step < 3 * STEPS; step++) {
        worst = fmax(worst, frozen_step(&t, &model, sizes[step / STEPS], 0.9 + 0.0005 * step));
        least = fmin(least, model.factor), most = fmax(most, model.factor);
    }
    tap_ok(worst < 1e-4, "and those of a frozen variance (%.1e off)", worst);
    tap_ok(least == 0.5 && most == 4, "whose factors have reached both limits (%g, %g)", least, most);
    return tap_done();
}
