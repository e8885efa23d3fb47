/* resmlp.c: a custom model: a ResMLP (Touvron et al., 2021), which mixes the patches of a picture with one
 * matrix and their channels with two. The library's trainer trains it at every stage; see lines.c. */
#include "lines.h"

enum { C = 32, WIDE = 64, MIX = 0, SCALE, FC1, FC2 }; /* widths; a block's parameters; then its slots */
enum { MIDDLE, NORM, RSTD, F, G, D_WIDE, D, SLOTS, LOGITS = 0 };
static const struct zr_linear patch = {.rows = ROWS, .in = PIXELS, .out = C},
                              wide = {.rows = ROWS, .in = C, .out = WIDE},
                              narrow = {.rows = ROWS, .in = WIDE, .out = C},
                              mix = {.rows = PATCHES, .in = PATCHES, .out = C},
                              classes = {.rows = ROWS, .in = C, .out = STORED_CLASSES, .turned = true};

static zr_result multiply(struct zr_module_pass *p, struct zr_linear s, const void *x, const void *w, void *y)
{
    return p->kernels->linear_forward(p->context, &(struct zr_linear_forward){s, x, w, NULL, y, true});
}

static zr_result back(struct zr_module_pass *p, struct zr_linear shape, const void *x, const void *w,
                      const void *dy, void *dx, void *dw)
{
    const struct zr_linear_backward args = {shape, x, w, dy, dx, dw, NULL, false, p->accumulate[0], false};
    return p->kernels->linear_backward(p->context, &args);
}

static zr_result embed(struct zr_module_pass *p)
{
    return multiply(p, patch, p->inputs[0], p->parameters[0][0], p->y);
}

static zr_result embed_backward(struct zr_module_pass *p)
{
    return back(p, patch, p->inputs[0], p->parameters[0][0], p->dy, NULL, p->gradients[0][0]);
}

/* middle = x + mix x, over the patches of each picture; y = middle + fc2 gelu(fc1 rmsnorm(middle)) */
static zr_result block(struct zr_module_pass *p)
{
    const struct zr_kernels *k = p->kernels;
    void **s = p->slots, **w = p->parameters[0];
    for (int i = 0; i < ROWS * C; i += PATCHES * C) /* a picture takes the place of weights in the product */
        TRY(multiply(p, mix, w[MIX], (const float *)p->x + i, (float *)s[MIDDLE] + i));
    TRY(k->add(p->context, &(struct zr_add){ROWS * C, p->x, s[MIDDLE], s[MIDDLE]}));
    TRY(k->rmsnorm_forward(p->context, &(struct zr_rmsnorm_forward){
                                           ROWS, C, 1e-5f, s[MIDDLE], w[SCALE], s[NORM], s[RSTD], {0}, 0}));
    TRY(multiply(p, wide, s[NORM], w[FC1], s[F]));
    TRY(k->gelu_forward(p->context, &(struct zr_gelu_forward){ROWS * WIDE, s[F], s[G], ZR_GELU_TANH}));
    TRY(multiply(p, narrow, s[G], w[FC2], p->y));
    return k->add(p->context, &(struct zr_add){ROWS * C, s[MIDDLE], p->y, p->y});
}

static zr_result block_backward(struct zr_module_pass *p) /* in_place: on entry, dx contains dy */
{
    const struct zr_kernels *k = p->kernels;
    void **s = p->slots, **w = p->parameters[0], **g = p->gradients[0];
    bool add = p->accumulate[0];
    TRY(zr_module_take(p, D_WIDE));
    TRY(zr_module_take(p, D));
    TRY(back(p, narrow, s[G], w[FC2], p->dx, s[D_WIDE], g[FC2]));
    TRY(k->gelu_backward(p->context,
                         &(struct zr_gelu_backward){ROWS * WIDE, s[F], s[D_WIDE], s[D_WIDE], ZR_GELU_TANH}));
    TRY(back(p, wide, s[NORM], w[FC1], s[D_WIDE], s[D], g[FC1]));
    TRY(k->rmsnorm_backward(
        p->context, &(struct zr_rmsnorm_backward){
                        ROWS, C, s[MIDDLE], w[SCALE], s[D], s[RSTD], p->dx, g[SCALE], true, add, {0}, 0}));
    for (int i = 0; i < ROWS * C; i += PATCHES * C, add = true)
        TRY(k->linear_backward(
            p->context, &(struct zr_linear_backward){mix, w[MIX], (float *)p->x + i, (float *)p->dx + i,
                                                     g[MIX], (float *)s[D] + i, NULL, add, false, false}));
    return k->add(p->context, &(struct zr_add){ROWS * C, s[D], p->dx, p->dx});
}

static zr_result head(struct zr_module_pass *p) /* dx NULL: an evaluation, which computes only losses */
{
    TRY(zr_module_take(p, LOGITS));
    void *logits = p->slots[LOGITS], *w = p->parameters[0][0];
    TRY(multiply(p, classes, p->x, w, logits));
    TRY(p->kernels->cross_entropy(
        p->context, &(struct zr_cross_entropy){ROWS, CLASSES, STORED_CLASSES, 0, p->inputs[1], logits, false,
                                               p->losses, p->dx != NULL, p->scale, NULL, NULL}));
    if (p->dx)
        TRY(back(p, classes, p->x, w, logits, p->dx, p->gradients[0][0]));
    zr_module_drop(p, LOGITS);
    return ZR_OK;
}

#define TENSOR(tensor, rows, columns, index, mean)                                                           \
    {                                                                                                        \
        .name = tensor, .shape = {rows, columns}, .unit = index, .group = (columns) > 0, .init_mean = mean,  \
        .init_deviation = (columns) > 0 ? 0.1f : 0                                                           \
    }
#define BLOCK(u, i)                                                                                          \
    TENSOR(i ".mix", PATCHES, PATCHES, u, 0), TENSOR(i ".scale", C, 0, u, 1),                                \
        TENSOR(i ".fc1", C, WIDE, u, 0), TENSOR(i ".fc2", WIDE, C, u, 0)
static const struct zr_parameter list[] = {TENSOR("embed", PIXELS, C, 0, 0), BLOCK(1, "1"), BLOCK(2, "2"),
                                           BLOCK(3, "3"), TENSOR("head", STORED_CLASSES, C, 4, 0)};
static const struct zr_unit units[] = {{"embed", 1}, {"1", 1}, {"2", 1}, {"3", 1}, {"head", 1}};
static const struct zr_slot slots[] = {{"middle", C, 0, 0, 0},
                                       {"norm", C, 0, 0, 0},
                                       {"rstd", 1, ZR_SLOT_FLOATS, 0, 0},
                                       {"fc1", WIDE, 0, 0, 0},
                                       {"gelu", WIDE, 0, 0, 0},
                                       {"d fc1", WIDE, 0, ZR_SLOT_TEMPORARY, 0},
                                       {"d norm", C, 0, ZR_SLOT_TEMPORARY, 0}};
static const struct zr_slot logits_slot = {"logits", STORED_CLASSES, ZR_SLOT_FLOATS, ZR_SLOT_TEMPORARY, 0};
#define BETWEEN .output_columns = C, .output_tag = ZR_TAG_CHECKPOINT
static const struct zr_module_type first = {BETWEEN, .forward = embed, .backward = embed_backward},
                                   last = {.name = "head",
                                           .slots = &logits_slot,
                                           .slots_count = 1,
                                           .forward = head,
                                           .backward = head},
                                   middle = {BETWEEN,          .slots = slots,   .slots_count = SLOTS,
                                             .in_place = true, .forward = block, .backward = block_backward};
static const struct zr_module modules[] = {{.type = &first, .units = {0}, .units_count = 1},
                                           {.type = &middle, .units = {1}, .units_count = 1},
                                           {.type = &middle, .units = {2}, .units_count = 1},
                                           {.type = &middle, .units = {3}, .units_count = 1},
                                           {.type = &last, .units = {4}, .units_count = 1}};
const struct zr_model resmlp = {
    .list = {list, sizeof list / sizeof *list, units, sizeof units / sizeof *units},
    .modules = modules,
    .modules_count = sizeof modules / sizeof *modules,
    .inputs = {{"pixels", ROWS *PIXELS, ZR_SLOT_FLOATS}, {"classes", ROWS, ZR_SLOT_INTEGERS}},
    .inputs_count = 2,
    .rows = ROWS};
