/* resmlp.c: a model of one's own: a ResMLP (Touvron et al., 2021), which mixes the patches of a picture by
 * one matrix and their channels by two. The library's trainer trains it at every stage: lines.c. */
#include "lines.h"

enum { C = 32, WIDE = 64 };
enum { MIX, NORM_W, NORM_B, FC1, FC2 }; /* of a block */
enum { MIDDLE, NORM, MEAN, RSTD, F, G, D_WIDE, D, SLOTS };
static const struct zr_layernorm norm = {.rows = ROWS, .channels = C};
static const struct zr_linear patch = {.rows = ROWS, .in = PIXELS, .out = C},
                              wide = {.rows = ROWS, .in = C, .out = WIDE},
                              narrow = {.rows = ROWS, .in = WIDE, .out = C};

static zr_result embed(struct zr_module_pass *p)
{
    p->kernels->linear_forward(p->context, &patch, p->inputs[0], p->parameters[0][0], NULL, p->y);
    return ZR_OK;
}

static zr_result embed_backward(struct zr_module_pass *p)
{
    p->kernels->linear_backward(p->context, &patch, p->inputs[0], p->parameters[0][0], p->dy, NULL,
                                p->gradients[0][0], NULL, p->accumulate[0]);
    return ZR_OK;
}

/* middle = x + mix x, over the patches of each picture; y = middle + fc2 gelu(fc1 norm(middle)) */
static zr_result block(struct zr_module_pass *p)
{
    const struct zr_kernels *k = p->kernels;
    const struct zr_linear mix = {
        .rows = PATCHES, .in = PATCHES, .out = C}; /* a picture stands where weights do */
    void **s = p->slots, **w = p->parameters[0];
    for (int i = 0; i < ROWS * C; i += PATCHES * C)
        k->linear_forward(p->context, &mix, w[MIX], (float *)p->x + i, NULL, (float *)s[MIDDLE] + i);
    k->add(p->context, ROWS * C, p->x, s[MIDDLE], s[MIDDLE]);
    k->layernorm_forward(p->context, &norm, s[MIDDLE], w[NORM_W], w[NORM_B], s[NORM], s[MEAN], s[RSTD]);
    k->linear_forward(p->context, &wide, s[NORM], w[FC1], NULL, s[F]);
    k->gelu_forward(p->context, ROWS * WIDE, s[F], s[G]);
    k->linear_forward(p->context, &narrow, s[G], w[FC2], NULL, p->y);
    k->add(p->context, ROWS * C, s[MIDDLE], p->y, p->y);
    return ZR_OK;
}

static zr_result block_backward(struct zr_module_pass *p) /* dx comes as dy: in_place */
{
    const struct zr_kernels *k = p->kernels;
    struct zr_linear mix = {.rows = PATCHES, .in = PATCHES, .out = C, .accumulate_dx = p->accumulate[0]};
    void **s = p->slots, **w = p->parameters[0], **g = p->gradients[0];
    zr_result result = zr_module_take(p, D_WIDE);
    if (result != ZR_OK || (result = zr_module_take(p, D)) != ZR_OK)
        return result;
    k->linear_backward(p->context, &narrow, s[G], w[FC2], p->dx, s[D_WIDE], g[FC2], NULL, p->accumulate[0]);
    k->gelu_backward(p->context, ROWS * WIDE, s[F], s[D_WIDE], s[D_WIDE]);
    k->linear_backward(p->context, &wide, s[NORM], w[FC1], s[D_WIDE], s[D], g[FC1], NULL, p->accumulate[0]);
    k->layernorm_backward(p->context, &norm, s[MIDDLE], w[NORM_W], s[MEAN], s[RSTD], s[D], p->dx, true,
                          g[NORM_W], g[NORM_B], p->accumulate[0]);
    for (int i = 0; i < ROWS * C; i += PATCHES * C, mix.accumulate_dx = true)
        k->linear_backward(p->context, &mix, w[MIX], (float *)p->x + i, (float *)p->dx + i, g[MIX],
                           (float *)s[D] + i, NULL, false);
    k->add(p->context, ROWS * C, s[D], p->dx, p->dx);
    return ZR_OK;
}

static zr_result
head(struct zr_module_pass *p) /* in an evaluation dx is NULL, and nothing but losses is made */
{
    const struct zr_head shape = {p->inputs[1], ROWS, C, CLASSES, STORED_CLASSES};
    p->kernels->head_loss(p->context, &shape, p->x, p->parameters[0][0], p->losses, p->scale, p->dx,
                          p->gradients[0][0], p->accumulate[0]);
    return ZR_OK;
}

/* ---- The tables ---- */

#define TENSOR(label, rows, columns, unit_, mean)                                                            \
    {                                                                                                        \
        .name = label, .shape = {rows, columns}, .unit = unit_, .group = (columns) > 0, .init_mean = mean,   \
        .init_deviation = (columns) > 0 ? 0.1f : 0                                                           \
    }
#define BLOCK(u, i)                                                                                          \
    TENSOR(i ".mix", PATCHES, PATCHES, u, 0), TENSOR(i ".norm.w", C, 0, u, 1),                               \
        TENSOR(i ".norm.b", C, 0, u, 0), TENSOR(i ".fc1", C, WIDE, u, 0), TENSOR(i ".fc2", WIDE, C, u, 0)
static const struct zr_parameter list[] = {TENSOR("embed", PIXELS, C, 0, 0), BLOCK(1, "1"), BLOCK(2, "2"),
                                           BLOCK(3, "3"), TENSOR("head", STORED_CLASSES, C, 4, 0)};
static const struct zr_unit units[] = {{"embed", 1}, {"1", 1}, {"2", 1}, {"3", 1}, {"head", 1}};
static const struct zr_slot slots[] = {{"middle", C, 0, 0},
                                       {"norm", C, 0, 0},
                                       {"mean", 1, ZR_SLOT_FLOATS, 0},
                                       {"rstd", 1, ZR_SLOT_FLOATS, 0},
                                       {"fc1", WIDE, 0, 0},
                                       {"gelu", WIDE, 0, 0},
                                       {"d fc1", WIDE, 0, ZR_SLOT_TEMPORARY},
                                       {"d norm", C, 0, ZR_SLOT_TEMPORARY}};
#define BETWEEN .output_columns = C, .output_tag = ZR_TAG_CHECKPOINT
static const struct zr_module_type first = {BETWEEN, .forward = embed, .backward = embed_backward},
                                   last = {.name = "head", .forward = head, .backward = head},
                                   middle = {BETWEEN,          .slots = slots,   .slots_count = SLOTS,
                                             .in_place = true, .forward = block, .backward = block_backward};
static const struct zr_module modules[] = {
    {&first, {0}, 1}, {&middle, {1}, 1}, {&middle, {2}, 1}, {&middle, {3}, 1}, {&last, {4}, 1}};
const struct zr_model resmlp = {
    .list = {list, sizeof list / sizeof *list, units, sizeof units / sizeof *units},
    .modules = modules,
    .modules_count = sizeof modules / sizeof *modules,
    .inputs = {{"pixels", ROWS *PIXELS, ZR_SLOT_FLOATS}, {"classes", ROWS, ZR_SLOT_INTEGERS}},
    .inputs_count = 2,
    .rows = ROWS};
