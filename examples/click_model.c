/* click_model.c: a factorization machine and a perceptron: forward and backward of a batch. */
#include <math.h>
#include <string.h>

#include "click.h"

enum { INPUTS = CLICK_ROWS + CLICK_WIDTH };

static const struct zr_linear FIRST = {.in = INPUTS, .out = CLICK_HIDDEN},
                              SECOND = {.in = CLICK_HIDDEN, .out = CLICK_TOP};

static struct zr_linear with_rows(struct zr_linear shape, unsigned rows)
{
    shape.rows = rows;
    return shape;
}

zr_result click_model_open(struct click_model *model, zr_arena *arena, unsigned batch)
{
    const struct zr_kernel_limits limits = {
        .rows = batch, .sequence = 1, .channels = INPUTS, .heads = 1, .threads = 1};
    const struct {
        float **at;
        size_t floats;
    } blocks[] = {{&model->x, INPUTS},        {&model->dx, INPUTS},       {&model->z1, CLICK_HIDDEN},
                  {&model->a1, CLICK_HIDDEN}, {&model->d1, CLICK_HIDDEN}, {&model->z2, CLICK_TOP},
                  {&model->a2, CLICK_TOP},    {&model->d2, CLICK_TOP},    {&model->sums, CLICK_WIDTH}};
    model->batch = batch;
    model->context = (struct zr_kernel_context){.parallel.threads = 1, .isa = zr_isa_best()};
    model->kernels = zr_kernels_cpu(model->context.isa);
    model->context.workspace_bytes = model->kernels->workspace_bytes(&limits, model->context.isa);
    const struct zr_request scratch = {.bytes = model->context.workspace_bytes, .tag = ZR_TAG_WORKSPACE};
    TRY(zr_arena_alloc(arena, &scratch, &model->context.workspace));
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        const struct zr_request request = {.bytes = batch * blocks[i].floats * sizeof(float),
                                           .tag = ZR_TAG_ACTIVATION};
        void *at;
        TRY(zr_arena_alloc(arena, &request, &at));
        *blocks[i].at = at;
    }
    return model->kernels->open(&model->context);
}

void click_model_close(struct click_model *model)
{
    if (model->kernels)
        model->kernels->close(&model->context);
}

/* Uniform numbers of the variance 1 / inputs of He's rule; the output begins at zero. */
void click_dense_init(struct click_dense *dense, uint64_t seed)
{
    float *at = &dense->w1[0][0];
    memset(dense, 0, sizeof *dense);
    for (size_t i = 0; i < INPUTS * CLICK_HIDDEN + CLICK_HIDDEN * CLICK_TOP; i++) {
        uint64_t random = (seed * 1000003 + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        random = (random ^ random >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
        bool first = i < INPUTS * CLICK_HIDDEN;
        float uniform = (float)(random >> 40) / (float)(1 << 23) - 1;
        (first ? at : &dense->w2[0][0] - INPUTS * CLICK_HIDDEN)[i] =
            uniform * sqrtf(6.0f / (first ? INPUTS : CLICK_HIDDEN));
    }
    for (size_t i = 0; i < CLICK_TOP; i++)
        dense->top[i] = i % 2 ? 0.1f : -0.1f;
}

/* The part of the logit without the perceptron; keeps the sum of the vectors for backward. */
static float machine(const float *rows, const float *numbers, const float *wide, float *sums)
{
    float logit = 0, squares = 0;
    memset(sums, 0, CLICK_WIDTH * sizeof *sums);
    for (unsigned field = 0; field < CLICK_CATEGORIES; field++)
        for (unsigned k = 0; k < CLICK_WIDTH; k++) {
            float value = rows[field * CLICK_WIDTH + k];
            sums[k] += value;
            squares += k > 0 ? value * value : 0;
        }
    for (unsigned k = 0; k < CLICK_WIDTH; k++)
        logit += numbers[k] * wide[k] + (k > 0 ? sums[k] * sums[k] / 2 : sums[0]);
    return logit - squares / 2;
}

zr_result click_forward(struct click_model *model, const struct click_batch *batch)
{
    const struct click_dense *dense = batch->dense;
    for (unsigned i = 0; i < batch->count; i++) {
        float *x = model->x + i * INPUTS, *numbers = x + CLICK_ROWS;
        memcpy(x, batch->rows + i * CLICK_ROWS, CLICK_ROWS * sizeof *x);
        memset(numbers, 0, CLICK_WIDTH * sizeof *x);
        for (unsigned n = 0; n < CLICK_NUMBERS; n++)
            numbers[n] = (float)click_log2(batch->samples[i].numbers[n]) / (8 * 65536);
        numbers[CLICK_NUMBERS] = 1;
        batch->logits[i] = machine(x, numbers, dense->wide, model->sums + i * CLICK_WIDTH);
    }
    const struct zr_linear_forward first = {
        with_rows(FIRST, batch->count), model->x, dense->w1, dense->b1, model->z1, true};
    const struct zr_linear_forward second = {
        with_rows(SECOND, batch->count), model->a1, dense->w2, dense->b2, model->z2, true};
    const struct zr_gelu_forward relu1 = {batch->count * CLICK_HIDDEN, model->z1, model->a1, ZR_RELU};
    const struct zr_gelu_forward relu2 = {batch->count * CLICK_TOP, model->z2, model->a2, ZR_RELU};
    TRY(model->kernels->linear_forward(&model->context, &first));
    TRY(model->kernels->gelu_forward(&model->context, &relu1));
    TRY(model->kernels->linear_forward(&model->context, &second));
    TRY(model->kernels->gelu_forward(&model->context, &relu2));
    for (unsigned i = 0; i < batch->count; i++)
        for (unsigned k = 0; k < CLICK_TOP; k++)
            batch->logits[i] += model->a2[i * CLICK_TOP + k] * dense->top[k];
    return ZR_OK;
}

zr_result click_backward(struct click_model *model, struct click_batch *batch)
{
    const struct click_dense *dense = batch->dense;
    struct click_dense *gradient = batch->dense_gradient;
    memset(gradient, 0, sizeof *gradient);
    batch->loss = 0;
    for (unsigned i = 0; i < batch->count; i++) {
        float sign = batch->samples[i].clicked ? 1 : -1, margin = sign * batch->logits[i];
        float d = -sign / (1 + expf(margin)) / (float)batch->count;
        batch->loss += log1p(exp(-(double)margin)) / batch->count;
        batch->logits[i] = d; /* the gradient of the logit */
        for (unsigned k = 0; k < CLICK_WIDTH; k++)
            gradient->wide[k] += d * model->x[i * INPUTS + CLICK_ROWS + k];
        for (unsigned k = 0; k < CLICK_TOP; k++) {
            gradient->top[k] += d * model->a2[i * CLICK_TOP + k];
            model->d2[i * CLICK_TOP + k] = d * dense->top[k];
        }
    }
    const struct zr_gelu_backward relu2 = {batch->count * CLICK_TOP, model->z2, model->d2, model->d2,
                                           ZR_RELU};
    const struct zr_gelu_backward relu1 = {batch->count * CLICK_HIDDEN, model->z1, model->d1, model->d1,
                                           ZR_RELU};
    const struct zr_linear_backward second = {.shape = with_rows(SECOND, batch->count),
                                              .x = model->a1,
                                              .w = dense->w2,
                                              .dy = model->d2,
                                              .dx = model->d1,
                                              .dw = gradient->w2,
                                              .db = gradient->b2};
    const struct zr_linear_backward first = {.shape = with_rows(FIRST, batch->count),
                                             .x = model->x,
                                             .w = dense->w1,
                                             .dy = model->d1,
                                             .dx = model->dx,
                                             .dw = gradient->w1,
                                             .db = gradient->b1};
    TRY(model->kernels->gelu_backward(&model->context, &relu2));
    TRY(model->kernels->linear_backward(&model->context, &second));
    TRY(model->kernels->gelu_backward(&model->context, &relu1));
    TRY(model->kernels->linear_backward(&model->context, &first));
    for (unsigned i = 0; i < batch->count; i++)
        for (unsigned at = 0; at < CLICK_ROWS; at++) {
            unsigned k = at % CLICK_WIDTH;
            float others = k == 0 ? 1 : model->sums[i * CLICK_WIDTH + k] - model->x[i * INPUTS + at];
            batch->row_gradients[i * CLICK_ROWS + at] =
                model->dx[i * INPUTS + at] + batch->logits[i] * others;
        }
    return ZR_OK;
}
