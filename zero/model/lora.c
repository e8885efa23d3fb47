/* lora.c: passes of adapters (LoRA); see trainable.h.
 *
 * The product with B adds to y, whose rows may be wider than the matrix, so it is the backward product of a
 * layer with the matrix B [out, rank], which supports both. */
#include "zero/model/transformer.h"

/* An adapter of a pass. */
struct adapter {
    struct zr_adapter_place place;
    size_t rank;
    float scale;
};

static struct adapter adapter_of(const struct zr_module_pass *pass, struct zr_adapter_place place)
{
    const struct zr_lora *lora = &zr_pass_shape(pass)->trainable->lora;
    return (struct adapter){place, lora->rank, lora->alpha / (float)lora->rank};
}

bool zr_pass_is_adapted(const struct zr_module_pass *pass, struct zr_adapter_place place)
{
    const struct zr_trainable *trainable = zr_pass_shape(pass)->trainable;
    return trainable && trainable->lora.rank > 0 && pass->parameters[0][place.a];
}

/* x A, or its gradient, times alpha / rank. */
static zr_result scale(struct zr_module_pass *pass, const struct adapter *adapter, void *values)
{
    const void *from = values;
    return pass->kernels->sum(pass->context, &(struct zr_sum){.n = pass->rows * adapter->rank,
                                                              .from = &from,
                                                              .count = 1,
                                                              .precision = pass->context->precision,
                                                              .scale = adapter->scale,
                                                              .to = {values, pass->context->precision}});
}

/* Takes the slot of x A and computes the scaled product. */
static zr_result multiply_a(struct zr_module_pass *pass, const struct adapter *adapter, size_t in,
                            const void *x)
{
    zr_result result = zr_module_take(pass, adapter->place.slot);
    if (result == ZR_OK)
        result = pass->kernels->linear_forward(
            pass->context, &(struct zr_linear_forward){
                               .shape = {.rows = pass->rows, .in = in, .out = adapter->rank, .turned = true},
                               .x = x,
                               .w = pass->parameters[0][adapter->place.a],
                               .y = pass->slots[adapter->place.slot]});
    return result == ZR_OK ? scale(pass, adapter, pass->slots[adapter->place.slot]) : result;
}

zr_result zr_pass_adapt(struct zr_module_pass *pass, struct zr_adapter_place place,
                        const struct zr_linear *linear, const void *x, void *y)
{
    if (!zr_pass_is_adapted(pass, place))
        return ZR_OK;
    struct adapter adapter = adapter_of(pass, place);
    zr_result result = multiply_a(pass, &adapter, linear->in, x);
    if (result == ZR_OK)
        result = pass->kernels->linear_backward(
            pass->context, &(struct zr_linear_backward){.shape = {.rows = pass->rows,
                                                                  .in = linear->out,
                                                                  .out = adapter.rank,
                                                                  .x_stride = linear->y_stride},
                                                        .w = pass->parameters[0][adapter.place.a + 1],
                                                        .dy = pass->slots[adapter.place.slot],
                                                        .dx = y,
                                                        .accumulate_dx = true});
    zr_module_drop(pass, adapter.place.slot);
    return result;
}

zr_result zr_pass_adapt_backward(struct zr_module_pass *pass, struct zr_adapter_place place,
                                 const struct zr_adapt_backward *back)
{
    if (!zr_pass_is_adapted(pass, place))
        return ZR_OK;
    struct adapter adapter = adapter_of(pass, place);
    void *const *gradients = &pass->gradients[0][adapter.place.a];
    zr_result result = multiply_a(pass, &adapter, back->linear.in, back->x);
    if (result == ZR_OK)
        result = zr_module_take(pass, adapter.place.slot + 1);
    void *dxa = pass->slots[adapter.place.slot + 1];
    if (result == ZR_OK)
        result = pass->kernels->linear_backward(
            pass->context, &(struct zr_linear_backward){.shape = {.rows = pass->rows,
                                                                  .in = adapter.rank,
                                                                  .out = back->linear.out,
                                                                  .turned = true,
                                                                  .y_stride = back->linear.y_stride},
                                                        .x = pass->slots[adapter.place.slot],
                                                        .w = pass->parameters[0][adapter.place.a + 1],
                                                        .dy = back->dy,
                                                        .dx = dxa,
                                                        .dw = gradients[1],
                                                        .accumulate = pass->accumulate[0]});
    if (result == ZR_OK)
        result = scale(pass, &adapter, dxa);
    if (result == ZR_OK)
        result = pass->kernels->linear_backward(
            pass->context,
            &(struct zr_linear_backward){
                .shape = {.rows = pass->rows, .in = back->linear.in, .out = adapter.rank, .turned = true},
                .x = back->x,
                .w = pass->parameters[0][adapter.place.a],
                .dy = dxa,
                .dx = back->dx,
                .dw = gradients[0],
                .accumulate_dx = true,
                .accumulate = pass->accumulate[0]});
    zr_module_drop(pass, adapter.place.slot + 1);
    zr_module_drop(pass, adapter.place.slot);
    return result;
}
