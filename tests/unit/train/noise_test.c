/* noise_test.c: the gradient noise scale of made-up gradients whose mean and covariance are known. */
#include <string.h>

#include "tests/support/seed.h"
#include "tests/support/tap.h"
#include "zero/train/noise.h"

enum { NUMBERS = 40, SMALL = 3, SMALL_BATCHES = 7, STEPS = 4000 };

static uint64_t state;

/* About a normal number: the sum of twelve uniform ones. */
static double normal(void)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (double)(state >> 11) * 0x1p-53;
    }
    return sum;
}

static double square_of(const double gradient[NUMBERS])
{
    double sum = 0;
    for (int i = 0; i < NUMBERS; i++)
        sum += gradient[i] * gradient[i];
    return sum;
}

/* A step: the mean of several small batches, whose squares have a mean. */
static struct zr_noise_step draw(const double mean[NUMBERS], const double deviation[NUMBERS])
{
    double large[NUMBERS] = {0}, small = 0;
    for (int batch = 0; batch < SMALL_BATCHES; batch++) {
        double gradient[NUMBERS] = {0};
        for (int token = 0; token < SMALL; token++)
            for (int i = 0; i < NUMBERS; i++)
                gradient[i] += (mean[i] + deviation[i] * normal()) / SMALL;
        small += square_of(gradient) / SMALL_BATCHES;
        for (int i = 0; i < NUMBERS; i++)
            large[i] += gradient[i] / SMALL_BATCHES;
    }
    return (struct zr_noise_step){
        .decay = 0.9995, .small = {small, SMALL}, .large = {square_of(large), SMALL * SMALL_BATCHES}};
}

int main(void)
{
    double mean[NUMBERS], deviation[NUMBERS], square, variance;
    struct zr_noise noise = {0};
    state = run_seed();
    for (int i = 0; i < NUMBERS; i++) {
        mean[i] = 0.02 * (i % 9 - 3);
        deviation[i] = 0.1 * (1 + i % 5);
    }
    square = square_of(mean);
    variance = square_of(deviation);
    tap_ok(isnan(zr_noise_scale(&noise)) && isnan(zr_noise_square(&noise)), "nothing is known before a step");
    for (int step = 0; step < STEPS; step++) {
        struct zr_noise_step drawn = draw(mean, deviation);
        zr_noise_add(&noise, &drawn);
        if (step == 0) {
            double expected =
                (drawn.large.square * drawn.large.tokens - drawn.small.square * drawn.small.tokens) /
                (drawn.large.tokens - drawn.small.tokens);
            tap_ok(fabs(zr_noise_square(&noise) - expected) < 1e-12, "the first step is its own average");
        }
    }
    tap_ok(fabs(zr_noise_square(&noise) / square - 1) < 0.05, "|G|^2: %.4f of %.4f", zr_noise_square(&noise),
           square);
    tap_ok(fabs(zr_noise_variance(&noise) / variance - 1) < 0.02, "tr(S): %.4f of %.4f",
           zr_noise_variance(&noise), variance);
    tap_ok(fabs(zr_noise_scale(&noise) * square / variance - 1) < 0.06,
           "the noise scale: %.2f of %.2f tokens", zr_noise_scale(&noise), variance / square);
    struct zr_noise before = noise;
    zr_noise_add(&noise, &(struct zr_noise_step){0.5, {NAN, SMALL}, {1, 2 * SMALL}});
    tap_ok(memcmp(&before, &noise, sizeof noise) == 0, "a skipped step does not count");
    noise = (struct zr_noise){0};
    zr_noise_add(&noise, &(struct zr_noise_step){0.5, {1, SMALL}, {2, 2 * SMALL}});
    tap_ok(isnan(zr_noise_scale(&noise)) && zr_noise_variance(&noise) < 0, "a variance below 0 has no scale");
    return tap_done();
}
