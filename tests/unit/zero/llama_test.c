/* llama_test.c: zr-train's LLaMA against one written here from the papers, number by number in double
 * precision with a tape for the gradients: RMSNorm (Zhang and Sennrich, 2019), rotary embedding (Su et al.,
 * 2021), SwiGLU (Shazeer, 2020), grouped queries (Ainslie et al., 2023). It knows of the kernels only which
 * weights there are. */
#include "tests/support/tap.h"
#include "tests/support/zero/trainer_rig.h"

/* ---- Numbers that remember how they were made ---------------------------------------------------------- */

enum { NODES_MAX = 1 << 20 };

/* d(this) / d(from[i]) = slope[i] */
struct node {
    double value, gradient, slope[2];
    unsigned from[2];
};
static struct node *tape;
static unsigned nodes;

typedef unsigned number;

static number make(double value, number a, double slope_a, number b, double slope_b)
{
    if (nodes == NODES_MAX)
        abort();
    tape[nodes] = (struct node){value, 0, {slope_a, slope_b}, {a, b}};
    return nodes++;
}

static double of(number a)
{
    return tape[a].value;
}

static number constant(double value)
{
    return make(value, 0, 0, 0, 0);
}

static number add(number a, number b)
{
    return make(of(a) + of(b), a, 1, b, 1);
}

static number multiply(number a, number b)
{
    return make(of(a) * of(b), a, of(b), b, of(a));
}

static number times(number a, double factor)
{
    return make(of(a) * factor, a, factor, 0, 0);
}

static number power(number a, double exponent)
{
    return make(pow(of(a), exponent), a, exponent * pow(of(a), exponent - 1), 0, 0);
}

static number exponential(number a)
{
    return make(exp(of(a)), a, exp(of(a)), 0, 0);
}

static number logarithm(number a)
{
    return make(log(of(a)), a, 1 / of(a), 0, 0);
}

static void differentiate(number loss)
{
    tape[loss].gradient = 1;
    for (number i = nodes; i-- > 0;)
        for (int k = 0; k < 2; k++)
            tape[tape[i].from[k]].gradient += tape[i].slope[k] * tape[i].gradient;
}

/* ---- The model ----------------------------------------------------------------------------------------- */

enum { WIDE = 64, TOKENS = 32 }; /* the largest row and sequence below */

/* y = W x, W [out, in] */
static void linear(number w, const number *x, size_t in, size_t out, number *y)
{
    for (size_t o = 0; o < out; o++) {
        y[o] = constant(0);
        for (size_t i = 0; i < in; i++)
            y[o] = add(y[o], multiply(w + (number)(o * in + i), x[i]));
    }
}

/* With a bias, which follows the weights, the norm is a layer norm. */
static void norm(const struct zr_shape *shape, number w, bool bias, const number *x, size_t n, number *y)
{
    number squares = constant(0), sum = constant(0), one = constant((double)shape->variant.norms_add_one);
    for (size_t i = 0; i < n && bias; i++)
        sum = add(sum, times(x[i], -1 / (double)n));
    for (size_t i = 0; i < n; i++) {
        y[i] = add(x[i], sum);
        squares = add(squares, multiply(y[i], y[i]));
    }
    number factor = power(add(times(squares, 1 / (double)n), constant(shape->norm_epsilon)), -0.5);
    for (size_t i = 0; i < n; i++) {
        y[i] = multiply(add(one, w + (number)i), multiply(y[i], factor));
        y[i] = bias ? add(y[i], w + (number)(n + i)) : y[i];
    }
}

/* x / (1 + exp(-x)), or GELU's tanh form, which is x / (1 + exp(-2 u)). */
static number activate(bool gelu, number x)
{
    number u = gelu ? times(add(x, times(multiply(x, multiply(x, x)), 0.044715)), 2 * sqrt(2 / acos(-1))) : x;
    return multiply(x, power(add(constant(1), exponential(times(u, -1))), -1));
}

/* The pair (i, i + D / 2) of a head turns by t theta^(-2 i / D), or by a scaled angle. */
static void rotate(const struct zr_shape *shape, bool windowed, number *x, size_t width, size_t t)
{
    static const struct zr_rotary_scaling plain;
    bool other = windowed && shape->variant.window_theta > 0;
    const struct zr_rotary_scaling *scaling = other ? &plain : &shape->variant.rotary;
    double theta = other ? shape->variant.window_theta : shape->rope_theta;
    if (shape->variant.rotary_share > 0)
        width = (size_t)((double)width * shape->variant.rotary_share);
    for (size_t i = 0; i < width / 2; i++) {
        double frequency = pow(theta, -2 * (double)i / (double)width), angle, kept, size = 1;
        if (scaling->factor > 0) {
            kept = fmin(
                1, fmax(0, scaling->offset + scaling->slope * (scaling->by_pair ? (double)i : frequency)));
            frequency = kept * frequency + (1 - kept) * frequency / scaling->factor;
            size = scaling->scale;
        }
        if (scaling->divisors[0] > 0)
            frequency /= (double)scaling->divisors[i];
        angle = (double)t * frequency;
        number a = x[i], b = x[i + width / 2];
        x[i] = add(times(a, size * cos(angle)), times(b, -size * sin(angle)));
        x[i + width / 2] = add(times(a, size * sin(angle)), times(b, size * cos(angle)));
    }
}

static number dot(const number *a, const number *b, size_t n)
{
    number sum = constant(0);
    for (size_t i = 0; i < n; i++)
        sum = add(sum, multiply(a[i], b[i]));
    return sum;
}

/* One query over the keys and values of the tokens from `begin` to `count`. */
static void attend(const struct zr_shape *shape, const number *q, number k[][WIDE], number v[][WIDE],
                   size_t first, size_t width, size_t begin, size_t count, number *out)
{
    double divisor = sqrt(shape->variant.score_width > 0 ? shape->variant.score_width : (double)width);
    number weights[TOKENS], sum = constant(0);
    for (size_t t = begin; t < count; t++) {
        weights[t] = exponential(times(dot(q, k[t] + first, width), 1 / divisor));
        sum = add(sum, weights[t]);
    }
    sum = power(sum, -1);
    for (size_t i = 0; i < width; i++) {
        out[i] = constant(0);
        for (size_t t = begin; t < count; t++)
            out[i] = add(out[i], multiply(multiply(weights[t], sum), v[t][first + i]));
    }
}

/* Moves on in the vector of parameters. */
static number take(number *w, size_t elements)
{
    number first = *w;
    *w += (number)elements;
    return first;
}

static void add_bias(number bias, size_t count, number *y)
{
    for (size_t i = 0; bias && i < count; i++)
        y[i] = add(y[i], bias + (number)i);
}

/* Norms of `count` heads, in place. */
static void norm_heads(const struct zr_shape *shape, number w, size_t width, size_t count, number *x)
{
    for (size_t h = 0; w && h < count; h++)
        norm(shape, w, false, x + h * width, width, x + h * width);
}

static void block(const struct zr_shape *shape, size_t layer, number *w, number x[][WIDE])
{
    static number k[TOKENS][WIDE], v[TOKENS][WIDE];
    const struct zr_variant *variant = &shape->variant;
    size_t c = shape->hidden, width = variant->head_width ? variant->head_width : c / shape->heads,
           queries = width * shape->heads, kv = width * shape->kv_heads, f = shape->ffn,
           window = variant->window && layer >= variant->window_first &&
                            (!variant->window_period || (layer + 1) % variant->window_period)
                        ? variant->window
                        : TOKENS,
           norms = variant->layer_norms ? 2 * c : c;
    bool qkv = variant->biases & ZR_BIASES_QKV, out = variant->biases & ZR_BIASES_OUT,
         ffn = variant->biases & ZR_BIASES_FFN, normed = variant->head_norms, gated = !variant->ungated;
    number norm1 = take(w, norms), wq = take(w, queries * c), wk = take(w, kv * c), wv = take(w, kv * c),
           bq = qkv ? take(w, queries) : 0, bk = qkv ? take(w, kv) : 0, bv = qkv ? take(w, kv) : 0,
           nq = normed ? take(w, width) : 0, nk = normed ? take(w, width) : 0,
           no = variant->branch_norms ? take(w, c) : 0, wo = take(w, c * queries), bo = out ? take(w, c) : 0,
           norm2 = take(w, norms), gate = gated ? take(w, f * c) : 0, up = take(w, f * c),
           b_gate = ffn && gated ? take(w, f) : 0, b_up = ffn ? take(w, f) : 0,
           nd = variant->branch_norms ? take(w, c) : 0, down = take(w, c * f), b_down = ffn ? take(w, c) : 0;
    for (size_t t = 0; t < shape->sequence; t++) {
        number y[WIDE], q[WIDE], mixed[WIDE], g[WIDE], u[WIDE], second[WIDE];
        norm(shape, norm1, variant->layer_norms, x[t], c, y);
        norm(shape, norm2, variant->layer_norms, x[t], c, second);
        linear(wq, y, c, queries, q);
        linear(wk, y, c, kv, k[t]);
        linear(wv, y, c, kv, v[t]);
        add_bias(bq, queries, q), add_bias(bk, kv, k[t]), add_bias(bv, kv, v[t]);
        norm_heads(shape, nq, width, shape->heads, q), norm_heads(shape, nk, width, shape->kv_heads, k[t]);
        for (size_t h = 0; h < shape->kv_heads; h++)
            rotate(shape, window < TOKENS, k[t] + h * width, width, t);
        for (size_t h = 0; h < shape->heads; h++) {
            size_t shared = h / (shape->heads / shape->kv_heads);
            rotate(shape, window < TOKENS, q + h * width, width, t);
            attend(shape, q + h * width, k, v, shared * width, width, t < window ? 0 : t + 1 - window, t + 1,
                   mixed + h * width);
        }
        linear(wo, mixed, queries, c, y);
        add_bias(bo, c, y);
        norm_heads(shape, no, c, 1, y);
        for (size_t i = 0; i < c; i++)
            x[t][i] = add(x[t][i], y[i]);
        if (!variant->parallel)
            norm(shape, norm2, variant->layer_norms, x[t], c, second);
        linear(up, second, c, f, u);
        add_bias(b_up, f, u);
        if (gated)
            linear(gate, second, c, f, g);
        add_bias(b_gate, f, g);
        for (size_t i = 0; i < f; i++)
            u[i] = gated ? multiply(activate(variant->activation, g[i]), u[i]) : activate(true, u[i]);
        linear(down, u, f, c, y);
        add_bias(b_down, c, y);
        norm_heads(shape, nd, c, 1, y);
        for (size_t i = 0; i < c; i++)
            x[t][i] = add(x[t][i], y[i]);
    }
}

/* Sum of the losses of a sequence. */
static number sequence_loss(const struct zr_shape *shape, const int32_t *tokens, const int32_t *targets)
{
    static number x[TOKENS][WIDE];
    size_t c = shape->hidden;
    number w = 1, embedding = take(&w, shape->vocabulary_padded * c), loss = constant(0);
    for (size_t t = 0; t < shape->sequence; t++)
        for (size_t i = 0; i < c; i++)
            x[t][i] = times(embedding + (number)((size_t)tokens[t] * c + i),
                            shape->variant.scaled_tokens ? sqrt((double)c) : 1);
    for (size_t l = 0; l < shape->layers; l++)
        block(shape, l, &w, x);
    number last = take(&w, shape->variant.layer_norms ? 2 * c : c), head = shape->tied ? embedding : w;
    for (size_t t = 0; t < shape->sequence; t++) {
        number y[WIDE], logits[WIDE], sum = constant(0);
        norm(shape, last, shape->variant.layer_norms, x[t], c, y);
        linear(head, y, c, shape->vocabulary, logits);
        for (size_t v = 0; v < shape->vocabulary; v++)
            sum = add(sum, exponential(logits[v]));
        loss = add(loss, add(logarithm(sum), times(logits[targets[t]], -1)));
    }
    return loss;
}

/* Number 0 is nothing; the parameters follow. */
static double reference_pass(const struct rig *rig, const double *w, double *g)
{
    const struct zr_shape *shape = &rig->state.transformer.shape;
    size_t total = zr_engine_elements(rig->state.engine);
    double sum = 0, rows = (double)(shape->batch * shape->sequence);
    for (size_t b = 0; b < shape->batch; b++) {
        nodes = 0;
        constant(0);
        for (size_t i = 0; i < total; i++)
            constant(w[i]);
        number loss =
            times(sequence_loss(shape, rig->tokens + b * shape->sequence, rig->targets + b * shape->sequence),
                  1 / rows);
        differentiate(loss);
        for (size_t i = 0; i < total; i++)
            g[i] += tape[1 + i].gradient;
        sum += of(loss);
    }
    return sum;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static const struct zr_trainable attention = {.lora = {2, 5, "*self_attn*"}},
                                 everything = {.lora = {3, 2, "*"}},
                                 frozen = {
                                     .frozen = {3, {"*q_proj*", "*norm.weight", "*.1.mlp.down_proj.weight"}}};
static const struct {
    const char *words;
    struct zr_shape shape;
} models[] = {
    {"adapters of attention",
     {.layers = 2,
      .hidden = 16,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 20,
      .sequence = 7,
      .batch = 2,
      .trainable = &attention}},
    {"adapters of all matrices, all recomputed",
     {.layers = 2,
      .hidden = 16,
      .heads = 2,
      .kv_heads = 1,
      .ffn = 20,
      .sequence = 7,
      .tied = true,
      .recompute = ZR_RECOMPUTE_FULL,
      .trainable = &everything}},
    {"frozen tensors",
     {.layers = 2,
      .hidden = 16,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 20,
      .sequence = 7,
      .batch = 2,
      .trainable = &frozen}},
    {"four heads on two, a head of its own",
     {.layers = 2, .hidden = 16, .heads = 4, .kv_heads = 2, .ffn = 20, .sequence = 7, .batch = 2}},
    {"one head of keys and values, tied",
     {.layers = 1, .hidden = 24, .heads = 4, .kv_heads = 1, .ffn = 33, .sequence = 5, .tied = true}},
    {"a window, biases, wide heads with norms, angles scaled by frequency",
     {.layers = 2,
      .hidden = 16,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 20,
      .sequence = 7,
      .variant = {.window = 3,
                  .biases = 7,
                  .head_width = 6,
                  .head_norms = 1,
                  .rotary = {.factor = 4, .offset = -0.5, .slope = 2, .scale = 1.25}}}},
    {"narrow heads, biases of q, k and v, angles scaled by pair, adapters",
     {.layers = 2,
      .hidden = 18,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 20,
      .sequence = 7,
      .tied = true,
      .recompute = ZR_RECOMPUTE_FULL,
      .trainable = &everything,
      .variant = {.biases = ZR_BIASES_QKV,
                  .head_width = 4,
                  .head_norms = 1,
                  .rotary = {.factor = 2, .offset = 1.5, .slope = -1, .scale = 1, .by_pair = 1}}}},
    {"layer norms that both read x, no gate, half of each head rotates: GPT-NeoX",
     {.layers = 2,
      .hidden = 16,
      .heads = 2,
      .ffn = 20,
      .sequence = 7,
      .variant = {.layer_norms = 1, .parallel = 1, .ungated = 1, .biases = 7, .rotary_share = 0.5}}},
    {"the same, adapters of all matrices, all recomputed",
     {.layers = 2,
      .hidden = 16,
      .heads = 2,
      .ffn = 20,
      .sequence = 7,
      .recompute = ZR_RECOMPUTE_FULL,
      .trainable = &everything,
      .variant = {.layer_norms = 1, .parallel = 1, .ungated = 1, .biases = 7}}},
    {"norms of 1 + w, scaled embeddings, a gate of GELU: Gemma; windows in layers 1 and 3",
     {.layers = 4,
      .hidden = 16,
      .heads = 4,
      .kv_heads = 1,
      .ffn = 20,
      .sequence = 7,
      .tied = true,
      .variant = {.norms_add_one = 1,
                  .scaled_tokens = 1,
                  .activation = 1,
                  .window = 2,
                  .window_first = 1,
                  .window_period = 3}}},
    {"norms of branches and heads, two bases of angles, scores of another width: Gemma 3",
     {.layers = 3,
      .hidden = 16,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 20,
      .sequence = 7,
      .tied = true,
      .rope_theta = 900,
      .variant = {.norms_add_one = 1,
                  .branch_norms = 1,
                  .head_norms = 1,
                  .head_width = 6,
                  .scaled_tokens = 1,
                  .activation = 1,
                  .window = 3,
                  .window_period = 2,
                  .window_theta = 30,
                  .score_width = 11,
                  .rotary = {.factor = 4, .offset = 0, .slope = 0, .scale = 1}}}},
    {"the same, all recomputed, adapters",
     {.layers = 2,
      .hidden = 16,
      .heads = 2,
      .kv_heads = 1,
      .ffn = 20,
      .sequence = 7,
      .recompute = ZR_RECOMPUTE_FULL,
      .trainable = &everything,
      .variant = {.branch_norms = 1, .head_norms = 1, .window = 3, .window_period = 2, .window_theta = 30}}},
    {"angles over divisors",
     {.layers = 1,
      .hidden = 16,
      .heads = 2,
      .ffn = 20,
      .sequence = 7,
      .variant = {.rotary = {.factor = 1, .scale = 1.5, .divisors = {1, 2, 3, 4}}}}},
    {"as many as heads, another base, all recomputed",
     {.layers = 3,
      .hidden = 8,
      .heads = 2,
      .sequence = 12,
      .rope_theta = 500,
      .norm_epsilon = 0.03,
      .recompute = ZR_RECOMPUTE_FULL}},
};

int main(void)
{
    enum { STEPS = 20, V = 29, VP = 32 };
    tape = calloc(NODES_MAX, sizeof *tape);
    if (!tape)
        return 1;
    rig_plain = reference_pass;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct zr_shape shape = models[i].shape;
        struct rig rig;
        struct rig_distance far;
        shape.architecture = ZR_ARCH_LLAMA;
        shape.vocabulary = V;
        shape.vocabulary_padded = VP;
        shape.batch = shape.batch ? shape.batch : 1;
        tap_result(rig_open(&rig, &shape), ZR_OK, "%s: a model", models[i].words);
        tap_result(rig_compare(&rig, shape.trainable ? rig_trainable_reference : reference_pass, STEPS, &far),
                   ZR_OK, "%d steps", STEPS);
        tap_ok(far.loss < 1e-5, "losses are the reference's within 1e-5 (worst %.1e)", far.loss);
        tap_ok(far.norm < 1e-4, "gradient norms within 1e-4 of themselves (worst %.1e)", far.norm);
        tap_ok(far.first_loss != far.last_loss, "the loss moves: %.4f to %.4f", far.first_loss,
               far.last_loss);
        tap_is(rig_close(&rig), 0, "nothing is left behind");
    }
    free(tape);
    return tap_done();
}
