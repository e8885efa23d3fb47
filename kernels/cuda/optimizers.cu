/* optimizers.cu: the optimizers, at the precision of their arguments. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

#include "kernels/optimizers.h"
#include "kernels/state.h"

DEVICE struct zr_numbers floats_at(const float *at)
{
    struct zr_numbers numbers = {(void *)(uintptr_t)at, ZR_PRECISION_FP32};
    return numbers;
}

/* Numbers per thread and loop iteration: four if all arrays are aligned. */
DEVICE size_t update_width(const struct zr_update *u)
{
    uintptr_t floats = (uintptr_t)u->master | (uintptr_t)u->momentum | (uintptr_t)u->variance;
    return floats % sizeof(struct four) == 0 && fours_begin(&u->gradient) && fours_begin(&u->parameter) ? FOUR
                                                                                                        : 1;
}

DEVICE void put_parameters(const struct zr_update *u, size_t i, const struct four *x, size_t count)
{
    const struct zr_numbers master = floats_at(u->master);
    four_put(&master, i, x, count);
    if (u->parameter.at)
        four_put(&u->parameter, i, x, count);
}

KERNEL(weigh_gradients, struct zr_weigh_gradients, 1)
{
    double sum = 0;
    for (size_t u = 0; u < a.units; u++)
        for (size_t r = 0; r < a.ranks; r++)
            sum += a.squares[r * a.units + u];
    *a.weight = zr_weight_of(sqrt(sum), a.loss_scale, a.clip);
}

KERNEL(update_adamw, struct zr_update_adamw, CUDA_THREADS)
{
    if (zr_update_skips(a.how.weight))
        return;
    const struct zr_adamw now = zr_adamw_now(&a.how);
    const struct formula_adamw how = formula_adamw_of(&now);
    const struct zr_update *u = &a.numbers;
    const struct zr_numbers master = floats_at(u->master), momentum = floats_at(u->momentum),
                            variance = floats_at(u->variance);
    const size_t width = update_width(u);
    EACH_PACK(i, count, u->n, width)
    {
        struct four g = four_get(&u->gradient, i, count), p = four_get(&master, i, count),
                    m = four_get(&momentum, i, count), v = four_get(&variance, i, count);
        EACH_OF_FOUR(j, count) p.at[j] = formula_adamw(&how, g.at[j], p.at[j], &m.at[j], &v.at[j]);
        four_put(&momentum, i, &m, count);
        four_put(&variance, i, &v, count);
        put_parameters(u, i, &p, count);
    }
}

KERNEL(update_sgd, struct zr_update_sgd, CUDA_THREADS)
{
    const struct zr_update *u = &a.numbers;
    if (zr_update_skips(a.how.weight))
        return;
    const float scale = zr_scale_now(a.how.gradient_scale, a.how.weight),
                rate = zr_rate_now(a.how.rate, a.how.rates);
    const struct zr_numbers master = floats_at(u->master), momentum = floats_at(u->momentum);
    const size_t width = update_width(u);
    EACH_PACK(i, count, u->n, width)
    {
        struct four g = four_get(&u->gradient, i, count), p = four_get(&master, i, count),
                    m = four_get(&momentum, i, count);
        EACH_OF_FOUR(j, count)
        {
            float gradient = g.at[j] * scale;
            m.at[j] = a.how.momentum_factor * m.at[j] + gradient + a.how.weight_decay * p.at[j];
            p.at[j] = p.at[j] - rate * m.at[j];
        }
        four_put(&momentum, i, &m, count);
        put_parameters(u, i, &p, count);
    }
}
