/* optimizer.c: the table of optimizers: see optimizer.h. */
#include "zero/engine/optimizer.h"

/* AdamW: Loshchilov and Hutter 2019. */
static zr_result update_adamw(const struct zr_optimizer_call *call)
{
    const struct zr_optimizer_options *o = call->options;
    return call->kernels->update_adamw(
        call->context, &(struct zr_update_adamw){.how = {.rate = call->rate,
                                                         .beta1 = o->beta1,
                                                         .beta2 = o->beta2,
                                                         .epsilon = o->epsilon,
                                                         .weight_decay = call->weight_decay,
                                                         .gradient_scale = call->gradient_scale,
                                                         .correction1 = call->correction1,
                                                         .correction2 = call->correction2,
                                                         .weight = call->weight,
                                                         .rates = call->rates},
                                                 .numbers = {.n = call->n,
                                                             .gradient = call->gradient,
                                                             .master = call->master,
                                                             .momentum = call->slots[0],
                                                             .variance = call->slots[1],
                                                             .parameter = call->parameter}});
}

/* SGD with momentum. */
static zr_result update_sgd(const struct zr_optimizer_call *call)
{
    return call->kernels->update_sgd(
        call->context, &(struct zr_update_sgd){.how = {.rate = call->rate,
                                                       .momentum_factor = call->options->momentum_factor,
                                                       .weight_decay = call->weight_decay,
                                                       .gradient_scale = call->gradient_scale,
                                                       .weight = call->weight,
                                                       .rates = call->rates},
                                               .numbers = {.n = call->n,
                                                           .gradient = call->gradient,
                                                           .master = call->master,
                                                           .momentum = call->slots[0],
                                                           .parameter = call->parameter}});
}

static const struct zr_optimizer optimizers[] = {
    [ZR_OPTIMIZER_ADAMW] = {.name = "adamw",
                            .slots_count = 2,
                            .slots = {{"momentum", 1, sizeof(float)}, {"variance", 1, sizeof(float)}},
                            .update = update_adamw},
    [ZR_OPTIMIZER_SGD] = {.name = "sgd",
                          .slots_count = 1,
                          .slots = {{"momentum", 1, sizeof(float)}},
                          .update = update_sgd},
};

const struct zr_optimizer *zr_optimizer_of(enum zr_optimizer_kind kind)
{
    return (size_t)kind < sizeof optimizers / sizeof *optimizers ? &optimizers[kind] : NULL;
}
