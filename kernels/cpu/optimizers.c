/* optimizers.c: the optimizers. Work is divided over the context's threads; sums are combined in a fixed
 * order. */
#include "kernels/optimizers.h"
#include "kernels/cpu/cpu.h"
#include "kernels/state.h"

#include <math.h>

/* A loop supports one two-byte precision: the parameter's, or the gradient's if there is no parameter. */
static const struct zr_loops *update_loops(const struct zr_kernel_context *context,
                                           const struct zr_update *update)
{
    return zr_loops_of(context->isa,
                       update->parameter.at != NULL && update->gradient.precision == ZR_PRECISION_FP32
                           ? update->parameter.precision
                           : update->gradient.precision);
}

zr_result zr_cpu_weigh_gradients(struct zr_kernel_context *context, const struct zr_weigh_gradients *args)
{
    double sum = 0;
    (void)context;
    for (size_t u = 0; u < args->units; u++)
        for (size_t r = 0; r < args->ranks; r++)
            sum += args->squares[r * args->units + u];
    *args->weight = zr_weight_of(sqrt(sum), args->loss_scale, args->clip);
    return ZR_OK;
}

zr_result zr_cpu_update_adamw(struct zr_kernel_context *context, const struct zr_update_adamw *args)
{
    struct zr_update_adamw own = *args;
    if (zr_update_skips(args->how.weight))
        return ZR_OK;
    own.how = zr_adamw_now(&args->how);
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_adamw, &own, args->numbers.n,
                       ZR_GRAIN);
}

zr_result zr_cpu_update_sgd(struct zr_kernel_context *context, const struct zr_update_sgd *args)
{
    struct zr_update_sgd own = *args;
    if (zr_update_skips(args->how.weight))
        return ZR_OK;
    own.how.gradient_scale = zr_scale_now(args->how.gradient_scale, args->how.weight);
    own.how.rate = zr_rate_now(args->how.rate, args->how.rates);
    return zr_loop_run(context, update_loops(context, &args->numbers)->update_sgd, &own, args->numbers.n,
                       ZR_GRAIN);
}
