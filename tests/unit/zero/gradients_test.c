/* gradients_test.c: each backward operation, and a whole small GPT, against finite differences, in every
 * precision.
 *
 * The differences are taken of the double-precision reference's forward pass (central, step 1e-5 of numbers
 * near 1: about nine digits), so they judge the kernels' gradients without using any backward formula twice.
 */
#include "tests/support/kernels/kernels_reference.h"
#include "tests/support/kernels/kernels_support.h"

static const double float_tolerance = 5e-6; /* of the largest difference quotient */
enum { SAMPLES = 400 };

static const struct zr_kernels *kernels;
static enum zr_precision precision;

/* Tensors of the model; what stays in floats is input()'s and output()'s. */
static struct tensor *model_input(size_t n, double middle, double spread)
{
    return input_of(precision, n, middle, spread);
}

static struct tensor *model_output(size_t n)
{
    return output_of(precision, n);
}

/* Element `index` of a tensor of the model. */
static void *off(void *base, size_t index)
{
    return (char *)base + index * zr_precision_bytes(precision);
}

static const void *at(const void *base, size_t index)
{
    return (const char *)base + index * zr_precision_bytes(precision);
}

/* A function of everything that `state` reaches, to be differentiated. */
struct scalar {
    double (*value)(void *state);
    void *state;
};

static size_t largest_of(const struct tensor *t)
{
    size_t at = 0;
    for (size_t i = 1; i < t->n; i++)
        at = fabs(tensor_get(t, i)) > fabs(tensor_get(t, at)) ? i : at;
    return at;
}

/* The largest difference between the quotient by x->real[i] and element i of got, as a share of the largest
 * quotient, over all i or SAMPLES of them: got's largest, which the others' roundings are small beside, and
 * random ones. */
static double gradient_error(struct scalar f, struct tensor *x, const struct tensor *got)
{
    double most = 0, largest = 1e-30, step = 1e-5;
    for (size_t s = 0; s < x->n && s < SAMPLES; s++) {
        size_t i = x->n <= SAMPLES ? s : s == 0 ? largest_of(got) : random_bits() % x->n;
        double kept = x->real[i];
        x->real[i] = kept + step;
        double above = f.value(f.state);
        x->real[i] = kept - step;
        double below = f.value(f.state);
        x->real[i] = kept;
        double quotient = (above - below) / (2 * step), difference = fabs(quotient - tensor_get(got, i));
        most = difference <= most ? most : isnan(difference) ? INFINITY : difference;
        largest = worst(largest, fabs(quotient));
    }
    return most / largest;
}

static double weighed(const double *out, const struct tensor *weights)
{
    double sum = 0;
    for (size_t i = 0; i < weights->n; i++)
        sum += out[i] * weights->real[i];
    return sum;
}

/* In two bytes, `units` halves of the last place of the largest quotient are allowed: one for the result,
 * more where rounded numbers go in. */
static void report(double error, double units, const char *what, enum zr_isa isa)
{
    double half = precision == ZR_PRECISION_BF16 ? 0x1p-8 : 0x1p-11;
    double allowed = float_tolerance + (precision == ZR_PRECISION_FP32 ? 0 : units * half);
    tap_ok(error <= allowed, "%s, %s: %s agrees with finite differences (%.1e; %.1e is allowed)",
           zr_isa_name(isa), zr_precision_name(precision), what, error, allowed);
}

/* ---- One operation at a time --------------------------------------------------------------------------- */

struct one {
    struct zr_layernorm norm;
    struct zr_linear linear;
    struct zr_attention attention;
    struct head_shape head;
    struct tensor *x, *w, *b, *dy, *scratch, *lse, *p;
    double scale;
};

static double layernorm_value(void *state)
{
    struct one *o = state;
    reference_layernorm(&o->norm, o->x->real, o->w->real, o->b->real, o->scratch->real, o->lse->real,
                        o->p->real);
    return weighed(o->scratch->real, o->dy);
}

static void check_layernorm(struct zr_kernel_context *c)
{
    struct one o = {.norm = {7, 19}};
    size_t n = o.norm.rows * o.norm.channels;
    o.x = model_input(n, 0.3, 1), o.w = model_input(19, 1, 0.5), o.b = model_input(19, 0, 1),
    o.dy = model_input(n, 0, 1);
    o.scratch = model_output(n), o.lse = output(7), o.p = output(7);
    struct tensor *dx = model_output(n), *dw = model_output(19), *db = model_output(19);
    kernels->layernorm_forward(c, &(struct zr_layernorm_forward){o.norm, o.x->at, o.w->at, o.b->at,
                                                                 o.scratch->at, o.lse->at, o.p->at});
    kernels->layernorm_backward(c, &(struct zr_layernorm_backward){o.norm, o.x->at, o.w->at, o.lse->at,
                                                                   o.p->at, o.dy->at, dx->at, dw->at, db->at,
                                                                   false, false});
    struct scalar f = {layernorm_value, &o};
    report(gradient_error(f, o.x, dx), 1.1, "layer norm, dx", c->isa);
    report(gradient_error(f, o.w, dw), 1.1, "layer norm, dw", c->isa);
    report(gradient_error(f, o.b, db), 1.1, "layer norm, db", c->isa);
}

static double linear_value(void *state)
{
    struct one *o = state;
    reference_linear(&o->linear, o->x->real, o->w->real, o->b->real, o->scratch->real);
    return weighed(o->scratch->real, o->dy);
}

static void check_linear(struct zr_kernel_context *c)
{
    struct one o = {.linear = {.rows = 11, .in = 13, .out = 37}};
    o.x = model_input(11 * 13, 0, 1), o.w = model_input(13 * 37, 0, 1), o.b = model_input(37, 0, 1),
    o.dy = model_input(11 * 37, 0, 1);
    o.scratch = model_output(11 * 37);
    struct tensor *dx = model_output(11 * 13), *dw = model_output(13 * 37), *db = model_output(37);
    kernels->linear_backward(c, &(struct zr_linear_backward){o.linear, o.x->at, o.w->at, o.dy->at, dx->at,
                                                             dw->at, db->at, false, false, false});
    struct scalar f = {linear_value, &o};
    report(gradient_error(f, o.x, dx), 1.1, "linear, dx", c->isa);
    report(gradient_error(f, o.w, dw), 1.1, "linear, dw", c->isa);
    report(gradient_error(f, o.b, db), 1.1, "linear, db", c->isa);
}

static double attention_value(void *state)
{
    struct one *o = state;
    reference_attention(&o->attention, o->x->real, o->scratch->real, o->lse->real, o->p->real);
    return weighed(o->scratch->real, o->dy);
}

static void check_attention(struct zr_kernel_context *c)
{
    struct one o = {.attention = {2, 37, 15, 3}}; /* heads of 5 channels, more than one block of queries */
    size_t n = 2 * 37 * 15, units = 2 * 3;
    o.x = model_input(3 * n, 0, 1), o.dy = model_input(n, 0, 1), o.scratch = model_output(n);
    o.lse = output(units * 37), o.p = output(units * 37 * 37);
    struct tensor *dqkv = model_output(3 * n);
    kernels->attention_forward(
        c, &(struct zr_attention_forward){o.attention, o.x->at, o.scratch->at, o.lse->at, NULL});
    kernels->attention_backward(c, &(struct zr_attention_backward){o.attention, o.x->at, o.scratch->at,
                                                                   o.lse->at, NULL, o.dy->at, dqkv->at});
    struct scalar f = {attention_value, &o};
    report(gradient_error(f, o.x, dqkv), 3, "attention, dqkv", c->isa);
}

static double gelu_value(void *state)
{
    struct one *o = state;
    for (size_t i = 0; i < o->x->n; i++)
        o->scratch->real[i] = reference_gelu(o->x->real[i]);
    return weighed(o->scratch->real, o->dy);
}

static void check_gelu(struct zr_kernel_context *c)
{
    struct one o = {.x = model_input(333, 0, 5), .dy = model_input(333, 0, 1), .scratch = model_output(333)};
    struct tensor *dx = model_output(333);
    kernels->gelu_backward(c, &(struct zr_gelu_backward){333, o.x->at, o.dy->at, dx->at, ZR_GELU_TANH});
    report(gradient_error((struct scalar){gelu_value, &o}, o.x, dx), 1.1, "gelu, dx", c->isa);
}

static double head_value(void *state)
{
    struct one *o = state;
    double sum = 0;
    reference_head(&o->head, o->x->real, o->w->real, o->lse->real, 1, o->scratch->real, NULL, NULL);
    for (size_t r = 0; r < o->head.rows; r++)
        sum += o->lse->real[r];
    return sum * o->scale;
}

static void check_head(struct zr_kernel_context *c)
{
    static const int32_t targets[] = {0, 3, 256, 17, 17, 100, 255, 1, 2};
    struct one o = {.head = {targets, 9, 21, 257, 320}, .scale = 0.125};
    o.x = model_input(9 * 21, 0, 1), o.w = model_input(320 * 21, 0, 0.7), o.scratch = model_output(320),
    o.lse = output(9);
    struct tensor *dx = model_output(9 * 21), *dwte = model_output(320 * 21);
    run_head(kernels, c,
             &(struct head_call){o.head, o.x->at, o.w->at, o.lse->at, 0.125f, dx->at, dwte->at, false, NULL});
    struct scalar f = {head_value, &o};
    report(gradient_error(f, o.x, dx), 3, "head, dx", c->isa);
    report(gradient_error(f, o.w, dwte), 3, "head, dwte", c->isa);
}

/* ---- A whole GPT of two layers ------------------------------------------------------------------------- */

enum { B = 2, T = 6, C = 12, A = 3, V = 11, VP = 16, LAYERS = 2, ROWS = B * T, WIDE = 4 * C, N = ROWS * C };

/* Where each tensor lies in the flat parameters. */
enum {
    AT_WTE = 0,
    AT_WPE = AT_WTE + VP * C,
    AT_LAYERS = AT_WPE + (T + 1) * C,
    LN1_W = 0,
    LN1_B = LN1_W + C,
    QKV_W = LN1_B + C,
    QKV_B = QKV_W + 3 * C * C,
    PROJ_W = QKV_B + 3 * C,
    PROJ_B = PROJ_W + C * C,
    LN2_W = PROJ_B + C,
    LN2_B = LN2_W + C,
    FC_W = LN2_B + C,
    FC_B = FC_W + C * WIDE,
    DOWN_W = FC_B + WIDE,
    DOWN_B = DOWN_W + WIDE * C,
    LAYER = DOWN_B + C,
    AT_LNF_W = AT_LAYERS + LAYERS * LAYER,
    AT_LNF_B = AT_LNF_W + C,
    PARAMETERS = AT_LNF_B + C
};

static int32_t tokens[ROWS], targets[ROWS];
static const struct embedding_shape embedding = {tokens, B, T, C};
static const struct zr_layernorm norm = {ROWS, C, 0};
static const struct zr_linear qkv_shape = {.rows = ROWS, .in = C, .out = 3 * C},
                              proj_shape = {.rows = ROWS, .in = C, .out = C},
                              fc_shape = {.rows = ROWS, .in = C, .out = WIDE},
                              down_shape = {.rows = ROWS, .in = WIDE, .out = C};
static const struct zr_attention attention = {.batch = B, .sequence = T, .channels = C, .heads = A};
static const struct head_shape head = {targets, ROWS, C, V, VP};

/* The mean loss, in double. state: the parameters' tensor. */
static double gpt_value(void *state)
{
    const double *all = ((struct tensor *)state)->real;
    double x[N], normal[N], qkv[3 * N], mixed[N], out[N], wide[ROWS * WIDE], mean[ROWS], rstd[ROWS];
    double lse[B * A * T], p[B * A * T * T], losses[ROWS], row[VP], sum = 0;
    reference_embedding(&embedding, all + AT_WTE, all + AT_WPE, x);
    for (int l = 0; l < LAYERS; l++) {
        const double *w = all + AT_LAYERS + l * LAYER;
        reference_layernorm(&norm, x, w + LN1_W, w + LN1_B, normal, mean, rstd);
        reference_linear(&qkv_shape, normal, w + QKV_W, w + QKV_B, qkv);
        reference_attention(&attention, qkv, mixed, lse, p);
        reference_linear(&proj_shape, mixed, w + PROJ_W, w + PROJ_B, out);
        for (int i = 0; i < N; i++)
            x[i] += out[i];
        reference_layernorm(&norm, x, w + LN2_W, w + LN2_B, normal, mean, rstd);
        reference_linear(&fc_shape, normal, w + FC_W, w + FC_B, wide);
        for (int i = 0; i < ROWS * WIDE; i++)
            wide[i] = reference_gelu(wide[i]);
        reference_linear(&down_shape, wide, w + DOWN_W, w + DOWN_B, out);
        for (int i = 0; i < N; i++)
            x[i] += out[i];
    }
    reference_layernorm(&norm, x, all + AT_LNF_W, all + AT_LNF_B, normal, mean, rstd);
    reference_head(&head, normal, all + AT_WTE, losses, 1, row, NULL, NULL);
    for (int r = 0; r < ROWS; r++)
        sum += losses[r];
    return sum / ROWS;
}

/* What one layer's forward pass keeps. */
struct kept {
    struct tensor *in, *normal1, *mean1, *rstd1, *qkv, *mixed, *lse, *middle, *normal2, *mean2, *rstd2, *wide,
        *active;
};

static struct kept kept_new(struct tensor *in)
{
    return (struct kept){.in = in,
                         .normal1 = model_output(N),
                         .mean1 = output(ROWS),
                         .rstd1 = output(ROWS),
                         .qkv = model_output(3 * N),
                         .mixed = model_output(N),
                         .lse = output(B * A * T),
                         .middle = model_output(N),
                         .normal2 = model_output(N),
                         .mean2 = output(ROWS),
                         .rstd2 = output(ROWS),
                         .wide = model_output(ROWS * WIDE),
                         .active = model_output(ROWS * WIDE)};
}

static void layer_forward(struct zr_kernel_context *c, const struct kept *k, const void *w, void *out)
{
    kernels->layernorm_forward(c, &(struct zr_layernorm_forward){norm, k->in->at, at(w, LN1_W), at(w, LN1_B),
                                                                 k->normal1->at, k->mean1->at, k->rstd1->at});
    kernels->linear_forward(c, &(struct zr_linear_forward){qkv_shape, k->normal1->at, at(w, QKV_W),
                                                           at(w, QKV_B), k->qkv->at, false});
    kernels->attention_forward(
        c, &(struct zr_attention_forward){attention, k->qkv->at, k->mixed->at, k->lse->at, NULL});
    kernels->linear_forward(c, &(struct zr_linear_forward){proj_shape, k->mixed->at, at(w, PROJ_W),
                                                           at(w, PROJ_B), k->middle->at, false});
    kernels->add(c, &(struct zr_add){N, k->in->at, k->middle->at, k->middle->at});
    kernels->layernorm_forward(c,
                               &(struct zr_layernorm_forward){norm, k->middle->at, at(w, LN2_W), at(w, LN2_B),
                                                              k->normal2->at, k->mean2->at, k->rstd2->at});
    kernels->linear_forward(c, &(struct zr_linear_forward){fc_shape, k->normal2->at, at(w, FC_W), at(w, FC_B),
                                                           k->wide->at, false});
    kernels->gelu_forward(c,
                          &(struct zr_gelu_forward){ROWS * WIDE, k->wide->at, k->active->at, ZR_GELU_TANH});
    kernels->linear_forward(
        c, &(struct zr_linear_forward){down_shape, k->active->at, at(w, DOWN_W), at(w, DOWN_B), out, false});
    kernels->add(c, &(struct zr_add){N, k->middle->at, out, out});
}

/* `d` is the gradient of the layer's output, and becomes that of its input; g gets the parameters' gradients.
 */
static void layer_backward(struct zr_kernel_context *c, const struct kept *k, const void *w, void *d, void *g)
{
    struct tensor *wide = model_output(ROWS * WIDE), *before = model_output(ROWS * WIDE),
                  *normal = model_output(N);
    struct tensor *mixed = model_output(N), *qkv = model_output(3 * N), *first = model_output(N);
    kernels->linear_backward(c, &(struct zr_linear_backward){down_shape, k->active->at, at(w, DOWN_W), d,
                                                             wide->at, off(g, DOWN_W), off(g, DOWN_B), false,
                                                             false, false});
    kernels->gelu_backward(
        c, &(struct zr_gelu_backward){ROWS * WIDE, k->wide->at, wide->at, before->at, ZR_GELU_TANH});
    kernels->linear_backward(c, &(struct zr_linear_backward){fc_shape, k->normal2->at, at(w, FC_W),
                                                             before->at, normal->at, off(g, FC_W),
                                                             off(g, FC_B), false, false, false});
    kernels->layernorm_backward(
        c, &(struct zr_layernorm_backward){norm, k->middle->at, at(w, LN2_W), k->mean2->at, k->rstd2->at,
                                           normal->at, d, off(g, LN2_W), off(g, LN2_B), true, false});
    kernels->linear_backward(c, &(struct zr_linear_backward){proj_shape, k->mixed->at, at(w, PROJ_W), d,
                                                             mixed->at, off(g, PROJ_W), off(g, PROJ_B), false,
                                                             false, false});
    kernels->attention_backward(c, &(struct zr_attention_backward){attention, k->qkv->at, k->mixed->at,
                                                                   k->lse->at, NULL, mixed->at, qkv->at});
    kernels->linear_backward(c, &(struct zr_linear_backward){qkv_shape, k->normal1->at, at(w, QKV_W), qkv->at,
                                                             first->at, off(g, QKV_W), off(g, QKV_B), false,
                                                             false, false});
    kernels->layernorm_backward(
        c, &(struct zr_layernorm_backward){norm, k->in->at, at(w, LN1_W), k->mean1->at, k->rstd1->at,
                                           first->at, d, off(g, LN1_W), off(g, LN1_B), true, false});
}

static void check_gpt(struct zr_kernel_context *c)
{
    struct tensor *all = in_out_of(precision, PARAMETERS, 0, 0.6), *gradient = model_output(PARAMETERS),
                  *losses = output(ROWS);
    struct tensor *normal = model_output(N), *mean = output(ROWS), *rstd = output(ROWS),
                  *dn = model_output(N), *dx = model_output(N);
    struct kept kept[LAYERS];
    void *w = all->at, *g = gradient->at;
    for (int r = 0; r < ROWS; r++)
        tokens[r] = (int32_t)(random_bits() % V), targets[r] = (int32_t)(random_bits() % V);
    struct tensor *x = model_output(N);
    embed(kernels, c, &embedding, at(w, AT_WTE), at(w, AT_WPE), x->at);
    for (int l = 0; l < LAYERS; l++) {
        kept[l] = kept_new(x);
        x = model_output(N);
        layer_forward(c, &kept[l], at(w, AT_LAYERS + l * LAYER), x->at);
    }
    kernels->layernorm_forward(c,
                               &(struct zr_layernorm_forward){norm, x->at, at(w, AT_LNF_W), at(w, AT_LNF_B),
                                                              normal->at, mean->at, rstd->at});
    run_head(kernels, c,
             &(struct head_call){head, normal->at, at(w, AT_WTE), losses->at, 1.0f / ROWS, dn->at,
                                 off(g, AT_WTE), false, NULL});
    kernels->layernorm_backward(c, &(struct zr_layernorm_backward){norm, x->at, at(w, AT_LNF_W), mean->at,
                                                                   rstd->at, dn->at, dx->at, off(g, AT_LNF_W),
                                                                   off(g, AT_LNF_B), false, false});
    for (int l = LAYERS - 1; l >= 0; l--)
        layer_backward(c, &kept[l], at(w, AT_LAYERS + l * LAYER), dx->at, off(g, AT_LAYERS + l * LAYER));
    kernels->clear(c, &(struct zr_clear){(T + 1) * C * zr_precision_bytes(precision), off(g, AT_WPE)});
    embed_backward(kernels, c, &embedding, dx->at,
                   &(struct embedding_gradients){off(g, AT_WTE), off(g, AT_WPE), VP, T + 1, true});
    double mean_loss = 0;
    for (int r = 0; r < ROWS; r++)
        mean_loss += (double)losses->at[r] / ROWS;
    double difference = fabs(mean_loss - gpt_value(all));
    double allowed = precision == ZR_PRECISION_FP32 ? 1e-5 : precision == ZR_PRECISION_BF16 ? 0x1p-6 : 0x1p-9;
    tap_ok(difference < allowed, "%s, %s: the loss of a whole GPT is the reference's (%.6f, %.1e off)",
           zr_isa_name(c->isa), zr_precision_name(precision), mean_loss, difference);
    report(gradient_error((struct scalar){gpt_value, all}, all, gradient), 12,
           "a whole GPT with its tied head", c->isa);
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

static void test_isa(enum zr_isa isa)
{
    void (*const checks[])(struct zr_kernel_context *) = {check_layernorm, check_linear, check_attention,
                                                          check_gelu,      check_head,   check_gpt};
    kernels = zr_kernels_cpu(isa);
    for (size_t i = 0; i < ZR_PRECISION_COUNT * sizeof checks / sizeof checks[0]; i++) {
        struct zr_kernel_context context;
        unsigned threads = 2;
        bool intact = true;
        if (!context_begin(&context, (struct zr_kernel_limits){74, 37, 21, 3, 0, 0, 0}, isa, &threads)) {
            tap_ok(false, "%s: a context opens", zr_isa_name(isa));
            return;
        }
        context.precision = precision = (enum zr_precision)(i % ZR_PRECISION_COUNT);
        checks[i / ZR_PRECISION_COUNT](&context);
        intact = context_end(&context);
        tensors_finish(&intact);
        tap_ok(intact, "%s: group %zu writes nothing else", zr_isa_name(isa), i);
    }
}

int main(void)
{
    random_state = run_seed();
    for_each_isa(test_isa);
    return tap_done();
}
