/* optimizer.c: the table of optimizers: see optimizer.h. */
#include "zero/engine/optimizer.h"

#include <float.h>
#include <math.h>

#define NAMED(field) .name = #field, .offset = offsetof(struct zr_optimizer_options, field)
/* With epsilon 0 a zero gradient would divide by zero. */
const struct zr_optimizer_number zr_optimizer_numbers[ZR_NUMBERS_COUNT] = {
    [ZR_NUMBER_BETA1] = {NAMED(beta1), .option = "beta1", .max = 1, .excludes_max = true},
    [ZR_NUMBER_BETA2] = {NAMED(beta2), .option = "beta2", .max = 1, .excludes_max = true},
    [ZR_NUMBER_EPSILON] = {NAMED(epsilon), .option = "eps", .min = FLT_MIN, .max = FLT_MAX},
    [ZR_NUMBER_MOMENTUM] = {NAMED(momentum_factor), .option = "momentum", .max = 1, .excludes_max = true},
    [ZR_NUMBER_TRUST_MIN] = {NAMED(trust_min), .option = "trust-min", .max = FLT_MAX},
    [ZR_NUMBER_TRUST_MAX] = {NAMED(trust_max), .option = "trust-max", .max = FLT_MAX},
    [ZR_NUMBER_TRUST_AVERAGE] = {NAMED(trust_average), .option = "trust-average", .max = 1,
                                 .excludes_max = true}};

static void betas(const struct zr_optimizer_options *options, double step, float out[2])
{
    out[0] = (float)(1 - pow(options->beta1, step));
    out[1] = (float)(1 - pow(options->beta2, step));
}

/* AdamW: Loshchilov and Hutter 2019. */
struct zr_adamw zr_adamw_of(const struct zr_optimizer_call *call)
{
    const struct zr_optimizer_options *o = call->options;
    return (struct zr_adamw){.rate = call->rate,
                             .beta1 = call->keeps_momentum ? 1 : o->beta1,
                             .beta2 = call->keeps_variance ? 1 : o->beta2,
                             .epsilon = o->epsilon,
                             .weight_decay = call->weight_decay,
                             .gradient_scale = call->gradient_scale,
                             .correction1 = call->correction1,
                             .correction2 = call->correction2,
                             .weight = call->weight,
                             .rates = call->rates};
}

struct zr_update zr_adamw_numbers_of(const struct zr_optimizer_call *call)
{
    return (struct zr_update){.n = call->n,
                              .gradient = call->gradient,
                              .master = call->master,
                              .momentum = call->slots[0],
                              .variance = call->slots[1],
                              .parameter = call->parameter};
}

static zr_result update_adamw(const struct zr_optimizer_call *call)
{
    return call->kernels->update_adamw(
        call->context,
        &(struct zr_update_adamw){.how = zr_adamw_of(call), .numbers = zr_adamw_numbers_of(call)});
}

/* The same with 8-bit state: Dettmers et al. 2022. */
static zr_result update_adamw8(const struct zr_optimizer_call *call)
{
    return call->kernels->update_adamw8(call->context,
                                        &(struct zr_update_adamw8){.how = zr_adamw_of(call),
                                                                   .numbers = {.n = call->n,
                                                                               .gradient = call->gradient,
                                                                               .master = call->master,
                                                                               .parameter = call->parameter},
                                                                   .momentum = call->slots[0],
                                                                   .variance = call->slots[1]});
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

/* ---- Muon ---------------------------------------------------------------------------------------------- */

/* Jordan et al. 2024: for the matrices within the network; AdamW for vectors, and for the groups of
 * embeddings and heads. */
static bool is_hidden_matrix(const struct zr_parameter *tensor, const struct zr_parameter_group *group)
{
    return tensor->shape[1] > 0 && !group->wide_state;
}

static bool is_other(const struct zr_parameter *tensor, const struct zr_parameter_group *group)
{
    return !is_hidden_matrix(tensor, group);
}

/* With the scale of Liu et al. (Muon is Scalable for LLM Training, 2025), updates are as large as AdamW's, so
 * that both take one learning rate and one weight decay. */
static zr_result update_muon(const struct zr_optimizer_call *call)
{
    if (!call->direction)
        return update_adamw(call);
    size_t rows = call->tensor->shape[0], columns = call->tensor->shape[1];
    return call->kernels->apply_direction(
        call->context, &(struct zr_apply_direction){
                           .rate = call->rate,
                           .scale = 0.2f * sqrtf((float)(rows > columns ? rows : columns)),
                           .weight_decay = call->weight_decay,
                           .weight = call->weight,
                           .rates = call->rates,
                           .direction = call->direction,
                           .numbers = {.n = call->n, .master = call->master, .parameter = call->parameter}});
}

/* ---- Adafactor: Shazeer and Stern 2018; adafactor.c ---------------------------------------------------- */

static bool is_any(const struct zr_parameter *tensor, const struct zr_parameter_group *group)
{
    (void)tensor, (void)group;
    return true; /* updates of vectors are clipped, and have a trust ratio, too */
}

static bool is_not_factored(const struct zr_parameter *tensor, const struct zr_parameter_group *group)
{
    return !zr_adafactor_is_factored(tensor, group);
}

/* Slots of 4 bytes by element. */
#define MOMENTUM                                                                                             \
    {                                                                                                        \
        "momentum", 1, sizeof(float), true, NULL, NULL                                                       \
    }
#define VARIANCE                                                                                             \
    {                                                                                                        \
        "variance", 1, sizeof(float), false, NULL, NULL                                                      \
    }
#define AVERAGE                                                                                              \
    {                                                                                                        \
        "average", 1, sizeof(float), true, NULL, NULL                                                        \
    }
#define ANCHOR                                                                                               \
    {                                                                                                        \
        "anchor", 1, sizeof(float), true, NULL, NULL                                                         \
    }
#define OUTER_MOMENTUM                                                                                       \
    {                                                                                                        \
        "outer_momentum", 1, sizeof(float), true, NULL, NULL                                                 \
    }
#define FACTORS                                                                                              \
    {                                                                                                        \
        "factors", 1, sizeof(float), false, zr_adafactor_is_factored, zr_adafactor_factors                   \
    }
#define VECTORS_VARIANCE                                                                                     \
    {                                                                                                        \
        "variance", 1, sizeof(float), false, is_not_factored, NULL                                           \
    }

#define ADAFACTOR(kept)                                                                                      \
    .name = "adafactor", .help = "second moments by row and by column of a matrix, clipped updates",         \
    .rate = 1e-3f, .numbers = {[ZR_NUMBER_MOMENTUM] = {true, 0}}, .kept_count = kept,                        \
    .not_in_parts = "sums the rows and columns of whole matrices",                                           \
    .not_ahead = "adds the sums of all ranks within an update", .corrections = zr_adafactor_corrections,     \
    .needs_whole = is_any, .prepares = ZR_PREPARES_SUMS, .sum = zr_adafactor_sum,                            \
    .update = zr_adafactor_update
#define WITH_MOMENTUM(kept, ...)                                                                             \
    {                                                                                                        \
        ADAFACTOR(kept), .slots_count = 3 + (kept), .slots = {                                               \
            FACTORS,                                                                                         \
            VECTORS_VARIANCE,                                                                                \
            MOMENTUM,                                                                                        \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
static const struct zr_optimizer with_momentum[ZR_KEEPS_COUNT] = {
    WITH_MOMENTUM(0, AVERAGE), WITH_MOMENTUM(1, AVERAGE), WITH_MOMENTUM(2, ANCHOR, OUTER_MOMENTUM)};

#define ADAM_NUMBERS                                                                                         \
    [ZR_NUMBER_BETA1] = {true, 0.9f}, [ZR_NUMBER_BETA2] = {true, 0.95f}, [ZR_NUMBER_EPSILON] = {true, 1e-8f}

/* With a trust_average, which excludes a moving average of the parameters. */
#define LAMB                                                                                                 \
    .name = "lamb", .help = "AdamW whose rate follows the norm of each tensor, for large batches",           \
    .rate = 1e-2f, .numbers = {[ZR_NUMBER_BETA1] = {true, 0.9f},    [ZR_NUMBER_BETA2] = {true, 0.999f},      \
                               [ZR_NUMBER_EPSILON] = {true, 1e-6f}, [ZR_NUMBER_TRUST_MIN] = {true, 0.01f},   \
                               [ZR_NUMBER_TRUST_MAX] = {true, 10},  [ZR_NUMBER_TRUST_AVERAGE] = {true, 0}},  \
    .not_in_parts = "measures whole tensors", .not_ahead = "adds the sums of all ranks within an update",    \
    .corrections = betas, .needs_whole = is_any, .prepares = ZR_PREPARES_SUMS, .update = zr_lamb_update
static const struct zr_optimizer onebit_lamb = {
    LAMB, .slots_count = 4,
    .slots = {MOMENTUM, VARIANCE, [ZR_LAMB_FRESH] = {"fresh_variance", 1, sizeof(float), false, NULL, NULL},
              [ZR_LAMB_TRUST] = {"trust", 1, sizeof(float), false, is_any, zr_lamb_numbers}},
    .sum = zr_lamb_sum_fresh, .trust = zr_lamb_trust_now};

/* The rows, and the last slots of enum zr_keeps. */
#define OPTIMIZERS(kept, ...)                                                                                \
    {                                                                                                        \
        [ZR_OPTIMIZER_ADAMW] = {.name = "adamw",                                                             \
                                .help = "Adam with decoupled weight decay",                                  \
                                .rate = 1e-3f,                                                               \
                                .numbers = {ADAM_NUMBERS},                                                   \
                                .slots_count = 2 + (kept),                                                   \
                                .slots = {MOMENTUM, VARIANCE, __VA_ARGS__},                                  \
                                .kept_count = kept,                                                          \
                                .corrections = betas,                                                        \
                                .update = update_adamw},                                                     \
        [ZR_OPTIMIZER_SGD] = {.name = "sgd",                                                                 \
                              .help = "stochastic gradient descent with momentum",                           \
                              .rate = 1e-3f,                                                                 \
                              .numbers = {[ZR_NUMBER_MOMENTUM] = {true, 0.9f}},                              \
                              .slots_count = 1 + (kept),                                                     \
                              .slots = {MOMENTUM, __VA_ARGS__},                                              \
                              .kept_count = kept,                                                            \
                              .corrections = betas,                                                          \
                              .update = update_sgd},                                                         \
        [ZR_OPTIMIZER_ADAMW8] = {.name = "adamw8",                                                           \
                                 .help = "AdamW with momentum and variance in 8 bits",                       \
                                 .rate = 1e-3f,                                                              \
                                 .numbers = {ADAM_NUMBERS},                                                  \
                                 .slots_count = 2 + (kept),                                                  \
                                 .slots = {{"momentum", ZR_BLOCK8_NUMBERS, sizeof(struct zr_block8), true,   \
                                            NULL, NULL},                                                     \
                                           {"variance", ZR_BLOCK8_NUMBERS, sizeof(struct zr_block8), false,  \
                                            NULL, NULL},                                                     \
                                           __VA_ARGS__},                                                     \
                                 .kept_count = kept,                                                         \
                                 .wide = &optimizers[kept][ZR_OPTIMIZER_ADAMW],                              \
                                 .not_in_parts = "keeps state in blocks of whole tensors",                   \
                                 .corrections = betas,                                                       \
                                 .update = update_adamw8},                                                   \
        [ZR_OPTIMIZER_MUON] = {.name = "muon",                                                               \
                               .help = "orthogonal momentum for the matrices of layers, AdamW for all else", \
                               .rate = 1e-3f,                                                                \
                               .numbers = {ADAM_NUMBERS, [ZR_NUMBER_MOMENTUM] = {true, 0.95f}},              \
                               .wide_heads = true,                                                           \
                               .slots_count = 2 + (kept),                                                    \
                               .slots = {MOMENTUM,                                                           \
                                         {"variance", 1, sizeof(float), false, is_other, NULL},              \
                                         __VA_ARGS__},                                                       \
                               .kept_count = kept,                                                           \
                               .not_in_parts = "updates whole matrices",                                     \
                               .not_ahead = "gathers matrices of all ranks within an update",                \
                               .corrections = betas,                                                         \
                               .needs_whole = is_hidden_matrix,                                              \
                               .prepares = ZR_PREPARES_DIRECTIONS,                                           \
                               .update = update_muon},                                                       \
        [ZR_OPTIMIZER_ADAFACTOR] = {ADAFACTOR(kept), .slots_count = 2 + (kept),                              \
                                    .slots = {FACTORS, VECTORS_VARIANCE, __VA_ARGS__},                       \
                                    .averaged = &with_momentum[kept], .averages = ZR_NUMBER_MOMENTUM},       \
        [ZR_OPTIMIZER_LAMB] = {LAMB,                                                                         \
                               .slots_count = 2 + (kept),                                                    \
                               .slots = {MOMENTUM, VARIANCE, __VA_ARGS__},                                   \
                               .kept_count = kept,                                                           \
                               .averaged = &onebit_lamb,                                                     \
                               .averages = ZR_NUMBER_TRUST_AVERAGE,                                          \
                               .sum = zr_lamb_sum},                                                          \
    }
static const struct zr_optimizer optimizers[ZR_KEEPS_COUNT][ZR_OPTIMIZERS_COUNT] = {
    OPTIMIZERS(0, AVERAGE), OPTIMIZERS(1, AVERAGE), OPTIMIZERS(2, ANCHOR, OUTER_MOMENTUM)};

const struct zr_optimizer *zr_optimizer_of(enum zr_optimizer_kind kind)
{
    return (size_t)kind < ZR_OPTIMIZERS_COUNT ? &optimizers[0][kind] : NULL;
}

const struct zr_optimizer *zr_optimizer_with(const struct zr_optimizer_options *options, enum zr_keeps keeps)
{
    const struct zr_optimizer *optimizer = &optimizers[keeps][options->kind];
    const float *averages =
        (const float *)((const char *)options + zr_optimizer_numbers[optimizer->averages].offset);
    return optimizer->averaged && *averages > 0 ? optimizer->averaged : optimizer;
}
