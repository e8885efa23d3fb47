/* transformer.c: shapes, stages, lists of units and tiles, and execution of a block, shared by the
 * architectures. */
#include "zero/model/transformer.h"

#include <stdio.h>
#include <string.h>

#include "kernels/fp8.h"
#include "zero/comm/take.h"
#include "zero/model/cut.h"

static const struct zr_architecture_table *const tables[ZR_ARCH_COUNT] = {&zr_architecture_gpt2,
                                                                          &zr_architecture_llama};

const char *zr_architecture_name(enum zr_architecture architecture)
{
    return tables[architecture]->name;
}

static const struct zr_architecture_table *table_of(const struct zr_shape *shape)
{
    return tables[shape->architecture];
}

/* ---- Shapes -------------------------------------------------------------------------------------------- */

void zr_shape_complete(struct zr_shape *shape)
{
    enum { FFN_MULTIPLE = 64 };
    if (shape->architecture == ZR_ARCH_GPT2) {
        shape->kv_heads = shape->heads;
        shape->ffn = shape->ffn ? shape->ffn : 4 * shape->hidden;
        shape->tied = !shape->variant.untied;
        return;
    }
    if (shape->kv_heads == 0)
        shape->kv_heads = shape->heads;
    if (shape->ffn == 0) /* the three matrices have as many parameters as GPT-2's two of 4 C */
        shape->ffn = (shape->hidden * 8 / 3 + FFN_MULTIPLE - 1) / FFN_MULTIPLE * FFN_MULTIPLE;
    if (shape->rope_theta == 0)
        shape->rope_theta = 10000;
    if (shape->norm_epsilon == 0)
        shape->norm_epsilon = 1e-5;
}

void zr_variant_print(const struct zr_variant *variant, char out[ZR_VARIANT_ROOM])
{
    double divisors = 0; /* a sum that tells lists apart */
    for (unsigned i = 0; i < ZR_ROTARY_DIVISORS; i++)
        divisors += (double)variant->rotary.divisors[i] * (1 + i / 7.0);
    const struct {
        const char *name;
        double value;
    } parts[] = {{"positions", (double)variant->positions},
                 {"head width", (double)variant->head_width},
                 {"window", (double)variant->window},
                 {"from layer", (double)variant->window_first},
                 {"but each", (double)variant->window_period},
                 {"biases", (double)variant->biases},
                 {"head norms", (double)variant->head_norms},
                 {"layer norms", (double)variant->layer_norms},
                 {"norms add one", (double)variant->norms_add_one},
                 {"branch norms", (double)variant->branch_norms},
                 {"scaled tokens", (double)variant->scaled_tokens},
                 {"parallel", (double)variant->parallel},
                 {"ungated", (double)variant->ungated},
                 {"activation", (double)variant->activation},
                 {"untied", (double)variant->untied},
                 {"unscaled", (double)variant->unscaled},
                 {"scaled by layer", (double)variant->scaled_by_layer},
                 {"rotary share", variant->rotary_share},
                 {"window theta", variant->window_theta},
                 {"score width", variant->score_width},
                 {"names", (double)variant->names},
                 {"angle factor", variant->rotary.factor},
                 {"offset", variant->rotary.offset},
                 {"slope", variant->rotary.slope},
                 {"scale", variant->rotary.scale},
                 {"by pair", (double)variant->rotary.by_pair},
                 {"divisors", divisors}};
    int used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].value != 0 && used < ZR_VARIANT_ROOM)
            used += snprintf(out + used, (size_t)(ZR_VARIANT_ROOM - used), "%s%s %.15g", used ? ", " : "",
                             parts[i].name, parts[i].value);
}

/* Checks what tensor ranks, or the sequence, exclude of a variant. */
static zr_result check_variant(const struct zr_shape *shape)
{
    const struct zr_variant *variant = &shape->variant;
    if (shape->architecture == ZR_ARCH_GPT2 && shape->sequence > zr_shape_positions(shape))
        return zr_fail(ZR_ERR_INVALID,
                       "the model has %zu positions, fewer than the %zu tokens of --seq; give --seq %zu",
                       zr_shape_positions(shape), shape->sequence, zr_shape_positions(shape));
    if (variant->head_norms && zr_shape_head(shape) % zr_shape_tensor(shape))
        return zr_fail(
            ZR_ERR_INVALID,
            "--tp %zu does not divide the %zu channels of a head, whose norms are summed over the ranks; "
            "give a --tp that does",
            zr_shape_tensor(shape), zr_shape_head(shape));
    if (variant->branch_norms && zr_shape_tiles(shape) > 1)
        return zr_fail(ZR_ERR_INVALID, "--tile divides the branches of a block, of which this model has "
                                       "norms; leave it out");
    return variant->head_norms && variant->layer_norms
               ? zr_fail(ZR_ERR_INVALID, "norms of the heads of q and k exclude layer norms")
               : ZR_OK;
}

static zr_result check_epsilon(double epsilon)
{
    return epsilon >= 1e-12 && epsilon <= 1
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID, "the epsilon of the norms is %g; its range is 1e-12 to 1", epsilon);
}

static zr_result check_llama(const struct zr_shape *shape)
{
    if (shape->kv_heads == 0 || shape->heads % shape->kv_heads)
        return zr_fail(ZR_ERR_INVALID,
                       "%zu heads of keys and values do not divide %zu heads; use a divisor of %zu",
                       shape->kv_heads, shape->heads, shape->heads);
    if (zr_shape_rotary(shape) % 2 || zr_shape_rotary(shape) == 0 ||
        zr_shape_rotary(shape) > zr_shape_head(shape))
        return zr_fail(
            ZR_ERR_INVALID,
            "rotary embedding requires heads of even size, and %zu of %zu channels rotate; use a hidden size that is "
            "a multiple of %zu",
            zr_shape_rotary(shape), zr_shape_head(shape), 2 * shape->heads);
    if (shape->ffn == 0)
        return zr_fail(ZR_ERR_INVALID, "the model's feed-forward width must be at least 1");
    if (!(shape->rope_theta >= 1 && shape->rope_theta <= 1e12))
        return zr_fail(ZR_ERR_INVALID, "the rotary base is %g; its range is 1 to 1e12", shape->rope_theta);
    if (shape->variant.rotary.divisors[0] > 0 && zr_shape_rotary(shape) > 2 * ZR_ROTARY_DIVISORS)
        return zr_fail(ZR_ERR_INVALID,
                       "angles with divisors support at most %d rotated channels, and there are %zu",
                       2 * ZR_ROTARY_DIVISORS, zr_shape_rotary(shape));
    return check_epsilon(shape->norm_epsilon);
}

/* Dimensions that the number of tensor ranks must divide, with zr-train's flags. */
enum { SHARED = 4 };
struct shared {
    const char *name, *flag;
    size_t value;
};

/* The first dimension that `tensor` ranks do not divide; SHARED: none. */
static size_t first_undivided(const struct shared shared[SHARED], size_t tensor)
{
    size_t i = 0;
    while (i < SHARED && shared[i].value % tensor == 0)
        i++;
    return i;
}

/* Whether every rank has a row of the vocabulary. */
static bool shares_vocabulary(const struct zr_shape *shape, size_t tensor)
{
    size_t rows = shape->vocabulary_padded;
    return (tensor - 1) * ((rows + tensor - 1) / tensor) < rows;
}

static zr_result check_tensor(const struct zr_shape *shape)
{
    size_t tensor = zr_shape_tensor(shape), below = tensor;
    const struct shared shared[SHARED] = {
        {"attention heads", "heads", shape->heads},
        {"heads of keys and values", "kv-heads", shape->kv_heads},
        {"channels of the feed-forward layer", "ffn", shape->ffn},
        {"tokens of a sequence", "seq", shape->sequence_parallel ? shape->sequence : 0}};
    size_t undivided = first_undivided(shared, tensor);
    if (shape->tensor_rank >= tensor)
        return zr_fail(ZR_ERR_INVALID, "there is no tensor rank %u of %zu", shape->tensor_rank, tensor);
    while (first_undivided(shared, below) < SHARED || !shares_vocabulary(shape, below))
        below--;
    if (undivided < SHARED) {
        const struct shared *s = &shared[undivided];
        return zr_fail(
            ZR_ERR_INVALID,
            "%zu tensor-parallel ranks do not divide the %zu %s; the nearest that fit are --tp %zu, or "
            "take --%s %zu",
            tensor, s->value, s->name, below, s->flag, (s->value / tensor + 1) * tensor);
    }
    return below == tensor ? ZR_OK
                           : zr_fail(ZR_ERR_INVALID,
                                     "%zu tensor-parallel ranks are too many for %zu rows of the vocabulary; "
                                     "the nearest that fit are --tp %zu",
                                     tensor, shape->vocabulary_padded, below);
}

/* Dimensions that the number of tiles must divide. */
enum { TILED = 4 };

/* The first dimension that `tiles` do not divide; TILED: none. */
static size_t first_untiled(const struct zr_shape *shape, size_t tiles, struct shared out[TILED])
{
    size_t kv = zr_shape_head(shape) * shape->kv_heads;
    const struct shared tiled[TILED] = {{"channels", "hidden", shape->hidden},
                                        {"channels of queries", "heads", zr_shape_queries(shape)},
                                        {"channels of keys and values", "kv-heads", kv},
                                        {"channels of the feed-forward layer", "ffn", shape->ffn}};
    size_t i = 0;
    memcpy(out, tiled, sizeof tiled);
    while (i < TILED && tiled[i].value % (tiles * zr_shape_tensor(shape)) == 0)
        i++;
    return i;
}

/* Whether each tile has a row of the vocabulary on the tensor rank with the fewest rows. */
static bool tiles_vocabulary(const struct zr_shape *shape, size_t tiles)
{
    size_t tensor = zr_shape_tensor(shape), rows = (shape->vocabulary_padded + tensor - 1) / tensor,
           before = rows * (tensor - 1);
    return tiles <= rows && before < shape->vocabulary_padded &&
           rows * (tiles - 1) / tiles < shape->vocabulary_padded - before;
}

unsigned zr_shape_tiles_below(const struct zr_shape *shape, unsigned below)
{
    struct shared tiled[TILED];
    if (zr_trainable_splits(shape->trainable) || shape->variant.branch_norms)
        return 1;
    if (below > shape->hidden)
        below = (unsigned)shape->hidden + 1;
    while (--below > 1 && (first_untiled(shape, below, tiled) < TILED || !tiles_vocabulary(shape, below)))
        ;
    return below > 1 ? below : 1;
}

static zr_result check_tiles(const struct zr_shape *shape)
{
    struct shared tiled[TILED];
    size_t tiles = zr_shape_tiles(shape), untiled = first_untiled(shape, tiles, tiled);
    if (tiles == 1)
        return ZR_OK;
    if (untiled == TILED && !tiles_vocabulary(shape, tiles))
        return zr_fail(
            ZR_ERR_INVALID,
            "--tile %zu: too many tiles for %zu rows of the vocabulary; the nearest below that fit are --tile %u",
            tiles, shape->vocabulary_padded, zr_shape_tiles_below(shape, shape->tiles));
    return untiled == TILED
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID,
                         "--tile %zu does not divide the %zu %s%s; the nearest below that fit are "
                         "--tile %u",
                         tiles, tiled[untiled].value / zr_shape_tensor(shape), tiled[untiled].name,
                         zr_shape_tensor(shape) > 1 ? " of a tensor rank" : "",
                         zr_shape_tiles_below(shape, shape->tiles));
}

static zr_result check_context(const struct zr_shape *shape)
{
    size_t context = zr_shape_context(shape), chunks = 2 * context,
           ranks = shape->sequence_parallel ? zr_shape_tensor(shape) : 1;
    if (shape->context_rank >= context)
        return zr_fail(ZR_ERR_INVALID, "there is no context rank %u of %zu", shape->context_rank, context);
    if (context > 1 && (shape->sequence % chunks || shape->sequence / context % ranks))
        return zr_fail(ZR_ERR_INVALID,
                       "--cp %zu divides a sequence into %zu chunks%s, which do not divide --seq %zu; give "
                       "--seq %zu",
                       context, chunks, ranks > 1 ? " for --tp ranks each" : "", shape->sequence,
                       (shape->sequence / (chunks * ranks) + 1) * chunks * ranks);
    return context > 1 && zr_shape_tiles(shape) > 1
               ? zr_fail(ZR_ERR_INVALID,
                         "--cp cannot be combined with --tile, whose parts of a block have no "
                         "place in a ring; leave one of the two out")
               : ZR_OK;
}

static zr_result check_trainable(const struct zr_shape *shape)
{
    if (zr_trainable_splits(shape->trainable) && zr_shape_tiles(shape) > 1)
        return zr_fail(ZR_ERR_INVALID,
                       "frozen tensors and adapters exclude tiles, whose units have parts of tensors");
    if (shape->trainable && shape->trainable->lora.rank > 0 && zr_shape_tensor(shape) > 1)
        return zr_fail(ZR_ERR_INVALID,
                       "adapters exclude several tensor ranks: each adapter would need a sum over "
                       "the ranks between A and B");
    static const char *const shared[] = {"q", "k", "v", "gate", "up"};
    size_t count = shape->variant.names == ZR_NAMES_PHI3 ? 5 : shape->variant.names == ZR_NAMES_NEOX ? 3 : 0;
    for (size_t i = 0; i < count && shape->trainable && shape->trainable->lora.rank > 0; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.0.%s.%s_proj.weight", i < 3 ? "self_attn" : "mlp",
                 shared[i]);
        if (zr_pattern_matches(shape->trainable->lora.pattern, name))
            return zr_fail(
                ZR_ERR_INVALID,
                "--lora matches %s, a part of a tensor of this model, for which PEFT has no adapter; give "
                "--lora RANK:'*o_proj*' or '*down_proj*'",
                name);
    }
    return ZR_OK;
}

void zr_shape_share_tokens(const struct zr_shape *shape, const int32_t *whole, size_t count, int32_t *own)
{
    struct zr_context_part part = zr_shape_part(shape);
    for (size_t i = 0; i < count; i++)
        for (size_t t = 0; t < part.tokens; t++)
            own[i * part.tokens + t] = whole[i * shape->sequence + zr_context_token(part, t)];
}

void zr_shape_share_positions(const struct zr_shape *shape, const int32_t *tokens, size_t count,
                              int32_t *positions)
{
    struct zr_context_part part = zr_shape_part(shape);
    for (size_t i = 0; i < count; i++, tokens += shape->sequence)
        for (size_t t = 0, next = 0, begin = 0; t < part.tokens; t++) {
            size_t token = zr_context_token(part, t);
            for (; next < token; next++)
                begin = shape->documents && tokens[next] == shape->eos ? next + 1 : begin;
            positions[i * part.tokens + t] = (int32_t)(token - begin);
        }
}

struct zr_shape zr_shape_dense(const struct zr_shape *shape)
{
    struct zr_shape dense = *shape;
    dense.tensor = dense.tensor_rank = dense.tiles = dense.context = dense.context_rank = 0;
    dense.logits_rows = 0;
    dense.sequence_parallel = false;
    return dense;
}

zr_result zr_shape_check(const struct zr_shape *shape)
{
    const struct {
        const char *name;
        size_t value;
    } sizes[] = {{"layers", shape->layers},
                 {"hidden", shape->hidden},
                 {"heads", shape->heads},
                 {"vocabulary", shape->vocabulary},
                 {"sequence", shape->sequence},
                 {"batch", shape->batch},
                 {"padded vocabulary", shape->vocabulary_padded}};
    size_t elements, rows, product;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value == 0)
            return zr_fail(ZR_ERR_INVALID, "the model's %s must be at least 1", sizes[i].name);
    if ((unsigned)shape->architecture >= ZR_ARCH_COUNT)
        return zr_fail(ZR_ERR_INVALID, "unknown architecture %d", (int)shape->architecture);
    const float dropout[] = {shape->embedding_dropout, shape->residual_dropout, shape->attention_dropout};
    for (size_t i = 0; i < sizeof dropout / sizeof *dropout; i++)
        if (!(dropout[i] >= 0 && dropout[i] < 1))
            return zr_fail(ZR_ERR_INVALID, "a dropout of %g; its range is 0 to below 1", (double)dropout[i]);
    if (shape->variant.head_width == 0 && shape->hidden % shape->heads)
        return zr_fail(ZR_ERR_INVALID, "%zu heads do not divide a hidden size of %zu; use a multiple of %zu",
                       shape->heads, shape->hidden, shape->heads);
    if (shape->vocabulary_padded < shape->vocabulary)
        return zr_fail(ZR_ERR_INVALID, "the padded vocabulary (%zu) is smaller than the vocabulary (%zu)",
                       shape->vocabulary_padded, shape->vocabulary);
    if (shape->vocabulary > INT32_MAX || shape->layers > UINT32_MAX - 4)
        return zr_fail(ZR_ERR_INVALID, "a vocabulary of %zu or %zu layers overflow", shape->vocabulary,
                       shape->layers);
    zr_result result = shape->architecture == ZR_ARCH_LLAMA ? check_llama(shape)
                       : shape->norm_epsilon != 0           ? check_epsilon(shape->norm_epsilon)
                                                            : ZR_OK;
    if (result != ZR_OK)
        return result;
    if (__builtin_mul_overflow(shape->batch, shape->sequence, &rows) ||
        __builtin_mul_overflow(rows, shape->sequence, &product) ||
        __builtin_mul_overflow(product, shape->heads, &product) || product > SIZE_MAX / 16 ||
        __builtin_mul_overflow(rows, shape->hidden, &product) || product > SIZE_MAX / 64 ||
        __builtin_mul_overflow(shape->heads, zr_shape_head(shape), &product) ||
        __builtin_mul_overflow(product, rows > shape->hidden ? rows : shape->hidden, &elements) ||
        __builtin_mul_overflow(elements, shape->layers, &elements) || elements > SIZE_MAX / 1024 ||
        __builtin_mul_overflow(rows, shape->ffn, &product) || product > SIZE_MAX / 16 ||
        __builtin_mul_overflow(shape->hidden, shape->hidden, &elements) ||
        __builtin_mul_overflow(elements, shape->layers, &elements) || elements > SIZE_MAX / 1024 ||
        __builtin_mul_overflow(shape->hidden, shape->ffn, &elements) ||
        __builtin_mul_overflow(elements, shape->layers, &elements) || elements > SIZE_MAX / 64 ||
        __builtin_mul_overflow(shape->hidden, shape->vocabulary_padded, &elements) ||
        elements > SIZE_MAX / 64)
        return zr_fail(ZR_ERR_INVALID, "the number of bytes of a model of this shape overflows");
    result = check_variant(shape);
    if (result == ZR_OK)
        result = check_tensor(shape);
    if (result == ZR_OK)
        result = check_context(shape);
    if (result == ZR_OK)
        result = check_tiles(shape);
    return result == ZR_OK ? check_trainable(shape) : result;
}

/* Fills in the sizes of a block's products on this tensor rank, per tile; returns their number. */
enum { MATRICES_MAX = 5 };
static unsigned matrices_of(const struct zr_shape *shape, struct zr_linear out[MATRICES_MAX])
{
    size_t tensor = zr_shape_tensor(shape), tiles = zr_shape_tiles(shape), c = shape->hidden,
           own = zr_shape_queries(shape) / tensor, kv = zr_shape_head(shape) * shape->kv_heads / tensor,
           ffn = shape->ffn / tensor;
    bool llama = shape->architecture == ZR_ARCH_LLAMA, apart = llama || (tiles > 1 && tensor > 1);
    const size_t sizes[MATRICES_MAX][2] = {{c, apart ? own : 3 * own}, {own, c}, {c, ffn}, {ffn, c}, {c, kv}};
    unsigned count = llama ? MATRICES_MAX : MATRICES_MAX - 1;
    for (unsigned i = 0; i < count; i++)
        out[i] = (struct zr_linear){.rows = shape->batch * zr_shape_own_sequence(shape),
                                    .in = sizes[i][0],
                                    .out = sizes[i][1] / tiles};
    return count;
}

unsigned zr_shape_fp8_matrices(const struct zr_shape *shape, unsigned *all)
{
    struct zr_linear matrices[MATRICES_MAX];
    unsigned suited = 0;
    *all = matrices_of(shape, matrices);
    for (unsigned i = 0; i < *all; i++)
        suited += zr_fp8_suits(&matrices[i]);
    return suited;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void limit_fp8(const struct zr_shape *shape, struct zr_kernel_limits *limits)
{
    struct zr_linear matrices[MATRICES_MAX];
    unsigned count = matrices_of(shape, matrices);
    for (unsigned i = 0; i < count; i++) {
        const struct zr_linear *m = &matrices[i];
        if (!zr_fp8_suits(m))
            continue;
        limits->fp8_narrow = larger(limits->fp8_narrow, m->in < m->out ? m->in : m->out);
        limits->fp8_wide = larger(limits->fp8_wide, larger(m->in, m->out));
    }
}

void zr_shape_limits(const struct zr_shape *shape, unsigned threads, struct zr_kernel_limits *out)
{
    *out = (struct zr_kernel_limits){
        .rows = shape->batch * zr_shape_own_sequence(shape),
        .sequence = zr_shape_own_sequence(shape),
        .channels = larger(shape->hidden, zr_shape_queries(shape)),
        .heads = shape->heads,
        .threads = threads,
    };
    if (shape->fp8)
        limit_fp8(shape, out);
}

double zr_shape_elements(const struct zr_shape *shape)
{
    return table_of(shape)->elements(shape);
}

double zr_shape_flops(const struct zr_shape *shape)
{
    double rows = (double)shape->batch * (double)zr_shape_own_sequence(shape), c = (double)shape->hidden;
    double head = 2 * c * (double)shape->vocabulary; /* forward, per row */
    double blocks = (double)shape->layers * table_of(shape)->block_flops(shape);
    return 3 * rows * (blocks + head); /* backward takes twice the operations of forward */
}

/* ---- Stages of a pipeline ------------------------------------------------------------------------------ */

unsigned zr_stages_count(const struct zr_stages *stages)
{
    const struct zr_pipeline pipeline = {.schedule = stages->schedule, .interleave = stages->interleave};
    return stages->ranks > 1 ? stages->ranks * zr_pipeline_parts(&pipeline) : 1;
}

void zr_stages_cut_equally(struct zr_stages *stages, size_t layers)
{
    unsigned count = zr_stages_count(stages);
    for (unsigned s = 0; s < count; s++)
        stages->layers[s] = (uint16_t)(layers * (s + 1) / count - layers * s / count);
}

struct zr_pipeline zr_stages_pipeline(const struct zr_stages *stages, size_t *modules)
{
    struct zr_pipeline pipeline = {.schedule = stages->schedule,
                                   .interleave = stages->interleave,
                                   .vertical_sync = stages->vertical_sync,
                                   .modules = modules};
    unsigned count = zr_stages_count(stages);
    for (unsigned s = 0; modules && s < count; s++)
        modules[s] = stages->layers[s] + (s == 0) + 2u * (s + 1 == count);
    return pipeline;
}

/* ---- Lists --------------------------------------------------------------------------------------------- */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void print_layer(char *out, size_t size, const char *format, size_t layer)
{
    snprintf(out, size, format, layer);
}
#pragma GCC diagnostic pop

/* Reduces a whole tensor to this tensor rank's part. */
static void take_part(const struct zr_shape *shape, enum zr_split split, struct zr_parameter *p)
{
    size_t tensor = zr_shape_tensor(shape), blocks = split == ZR_SPLIT_QKV ? 3 : 1;
    unsigned dimension = split != ZR_SPLIT_FIRST && p->shape[1] > 0;
    if (split == ZR_SPLIT_NONE || split == ZR_SPLIT_NORM || split == ZR_SPLIT_HEADS) {
        p->part.copy = shape->tensor_rank > 0;
        p->part.sum_gradient =
            split == ZR_SPLIT_HEADS || (split == ZR_SPLIT_NORM && shape->sequence_parallel);
        return;
    }
    size_t block = p->shape[dimension] / blocks, share = (block + tensor - 1) / tensor;
    memcpy(p->part.whole, p->shape, sizeof p->shape);
    p->part.blocks = (unsigned)blocks;
    p->part.first[dimension] = share * shape->tensor_rank;
    p->shape[dimension] = share * blocks;
}

static struct zr_unit *begin_unit(struct zr_transformer *transformer, const struct zr_unit_tensors *unit)
{
    struct zr_unit *u = &transformer->units[transformer->model.list.units_count];
    *u = (struct zr_unit){.gradient_uses = unit->gradient_uses};
    print_layer(u->name, sizeof u->name, unit->name, unit->layer);
    return u;
}

/* Appends tensor `index` of `unit` to the unit under construction. */
static struct zr_parameter *add_tensor(struct zr_transformer *transformer, const struct zr_unit_tensors *unit,
                                       size_t index)
{
    struct zr_parameter_list *list = &transformer->model.list;
    const struct zr_tensor *tensor = &unit->tensors[index];
    struct zr_parameter *p = &transformer->parameters[list->parameters_count++];
    *p = (struct zr_parameter){.shape = {tensor->rows, tensor->columns},
                               .unit = (unsigned)list->units_count,
                               .group = tensor->group,
                               .init_mean = tensor->mean,
                               .init_deviation = tensor->deviation};
    if (zr_shape_tensor(&transformer->shape) > 1)
        take_part(&transformer->shape, tensor->split, p);
    print_layer(p->name, sizeof p->name, unit->prefix, unit->layer);
    size_t used = strlen(p->name);
    snprintf(p->name + used, sizeof p->name - used, "%s", tensor->name);
    return p;
}

void zr_transformer_add_unit(struct zr_transformer *transformer, const struct zr_unit_tensors *unit)
{
    begin_unit(transformer, unit);
    for (size_t i = 0; i < unit->count; i++)
        if (unit->tensors[i].rows)
            add_tensor(transformer, unit, i);
    transformer->model.list.units_count++;
}

void zr_transformer_add_module(struct zr_transformer *transformer, unsigned type, const unsigned *units,
                               unsigned count)
{
    struct zr_module *module = &transformer->modules[transformer->model.modules_count++];
    *module = (struct zr_module){.type = &transformer->types[type], .units_count = count};
    memcpy(module->units, units, count * sizeof *units);
}

/* ---- Tiles --------------------------------------------------------------------------------------------- */

/* Reduces a tensor, or a tensor rank's part, to one tile: rows of a matrix [out, in], columns of a matrix
 * [in, out]. A part with blocks becomes a tile of one block. */
static void take_tile(const struct zr_shape *shape, unsigned tile, unsigned block, struct zr_parameter *p)
{
    unsigned dimension = p->shape[1] > 0 && !table_of(shape)->turned,
             blocks = p->part.blocks > 0 ? p->part.blocks : 1;
    size_t share = p->shape[dimension] / blocks / shape->tiles;
    if (p->part.whole[0] == 0)
        memcpy(p->part.whole, p->shape, sizeof p->shape);
    p->part.first[dimension] += p->part.whole[dimension] / blocks * block + share * tile;
    p->part.blocks = 1;
    p->part.continues = tile > 0 || block > 0;
    p->shape[dimension] = share;
}

static void add_tile(struct zr_transformer *transformer, const struct zr_unit_tensors *unit, unsigned number,
                     unsigned tile)
{
    const struct zr_block_product *product = &table_of(&transformer->shape)->products[number];
    size_t end = number + 1 < ZR_BLOCK_PRODUCTS ? product[1].first : unit->count;
    struct zr_unit *u = begin_unit(transformer, unit);
    size_t used = strlen(u->name);
    snprintf(u->name + used, sizeof u->name - used, ".%s.%u", product->name, tile);
    for (size_t i = tile > 0 ? product->tiled : product->first; i < end; i++) {
        unsigned blocks =
            zr_shape_tensor(&transformer->shape) > 1 && unit->tensors[i].split == ZR_SPLIT_QKV ? 3 : 1;
        for (unsigned block = 0; block < blocks && unit->tensors[i].rows; block++) {
            struct zr_parameter *p = add_tensor(transformer, unit, i);
            if (i >= product->tiled)
                take_tile(&transformer->shape, tile, block, p);
        }
    }
    transformer->model.list.units_count++;
}

void zr_transformer_add_block(struct zr_transformer *transformer, const struct zr_unit_tensors *unit)
{
    unsigned tiles = zr_shape_tiles(&transformer->shape),
             first = (unsigned)transformer->model.list.units_count;
    struct zr_module *module = &transformer->modules[transformer->model.modules_count];
    if (tiles == 1)
        zr_transformer_add_unit(transformer, unit);
    for (unsigned p = 0; p < ZR_BLOCK_PRODUCTS; p++)
        for (unsigned t = 0; tiles > 1 && t < tiles; t++)
            add_tile(transformer, unit, p, t);
    zr_transformer_add_module(transformer, ZR_TYPE_BLOCK, &first, 1);
    print_layer(module->name, sizeof module->name, unit->name, unit->layer);
}

unsigned zr_transformer_add_vocabulary(struct zr_transformer *transformer, const struct zr_unit_tensors *unit)
{
    const struct zr_shape *shape = &transformer->shape;
    unsigned tiles = zr_shape_tiles(shape), first = (unsigned)transformer->model.list.units_count;
    if (tiles == 1)
        zr_transformer_add_unit(transformer, unit);
    for (unsigned t = 0; tiles > 1 && t < tiles; t++) {
        struct zr_vocabulary_share share = zr_shape_vocabulary_tile(shape, t);
        struct zr_unit *u = begin_unit(transformer, unit);
        size_t used = strlen(u->name);
        snprintf(u->name + used, sizeof u->name - used, ".%u", t);
        struct zr_parameter *p = add_tensor(transformer, unit, 0);
        p->part.whole[0] = unit->tensors->rows;
        p->part.whole[1] = unit->tensors->columns;
        p->part.first[0] = share.first;
        p->part.continues = t > 0;
        p->shape[0] = share.rows;
        transformer->model.list.units_count++;
    }
    return first;
}

/* ---- A block ------------------------------------------------------------------------------------------- */

static uint32_t absent_of(const struct zr_shape *shape)
{
    const struct zr_architecture_table *table = table_of(shape);
    return table->absent ? table->absent(shape) : 0;
}

bool zr_block_has(const struct zr_shape *shape, unsigned tensor)
{
    return !(absent_of(shape) >> tensor & 1);
}

unsigned zr_block_index(const struct zr_shape *shape, unsigned first, unsigned tensor)
{
    uint32_t before = (UINT32_C(1) << tensor) - (UINT32_C(1) << first);
    unsigned count = tensor - first;
    for (uint32_t missing = absent_of(shape) & before; missing; missing &= missing - 1)
        count--;
    return count;
}

unsigned zr_pass_parameter(const struct zr_module_pass *pass, unsigned tensor)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    const struct zr_block_product *product = &table_of(shape)->products[pass->part / zr_shape_tiles(shape)];
    unsigned first = zr_pass_is_whole(pass) ? 0 : zr_pass_tile(pass) > 0 ? product->tiled : product->first;
    return zr_block_index(shape, first, tensor);
}

/* Range of products that a pass runs: all of them, or one. */
struct products {
    unsigned first, end;
};

static struct products products_of(const struct zr_module_pass *pass)
{
    unsigned product = pass->part / zr_shape_tiles(zr_pass_shape(pass));
    return zr_pass_is_whole(pass) ? (struct products){0, ZR_BLOCK_PRODUCTS}
                                  : (struct products){product, product + 1};
}

/* Without y, the last product is skipped if only y depends on it. */
static zr_result run_block(struct zr_module_pass *pass)
{
    const struct zr_block_steps *steps = &table_of(zr_pass_shape(pass))->block;
    struct products now = products_of(pass);
    if (!pass->y && now.end == ZR_BLOCK_PRODUCTS && !zr_pass_shape(pass)->variant.branch_norms)
        now.end = ZR_PRODUCT_NARROW;
    zr_result result = ZR_OK;
    for (unsigned p = now.first; p < now.end && result == ZR_OK; p++) {
        if (zr_pass_opens(pass))
            result = steps->before(pass, p);
        if (result == ZR_OK)
            result = steps->multiply(pass, p);
        if (result == ZR_OK && zr_pass_closes(pass))
            result = steps->after(pass, p);
    }
    return result;
}

static zr_result run_block_backward(struct zr_module_pass *pass)
{
    const struct zr_block_steps *steps = &table_of(zr_pass_shape(pass))->block;
    struct products now = products_of(pass);
    zr_result result = ZR_OK;
    for (unsigned p = now.end; p-- > now.first && result == ZR_OK;) {
        if (zr_pass_opens(pass))
            result = steps->take_gradients(pass, p);
        if (result == ZR_OK)
            result = steps->multiply_back(pass, p);
        if (result == ZR_OK && zr_pass_closes(pass))
            result = steps->go_back(pass, p);
        for (unsigned s = 0; pass->splits && s < ZR_MODULE_SLOTS_MAX; s++)
            if (steps->freed[p] >> s & 1)
                zr_module_drop(pass, s);
    }
    return result;
}

static zr_result weigh_block(struct zr_module_pass *pass)
{
    const struct zr_block_steps *steps = &table_of(zr_pass_shape(pass))->block;
    zr_result result = ZR_OK;
    for (unsigned p = ZR_BLOCK_PRODUCTS; p-- > 0 && result == ZR_OK;) {
        result = steps->multiply_back(pass, p);
        if (result == ZR_OK)
            result = steps->weigh_norms(pass, p);
    }
    return result;
}

/* Completes the block type after describe(). */
static void describe_blocks(struct zr_transformer *transformer)
{
    unsigned tiles = zr_shape_tiles(&transformer->shape);
    struct zr_module_type *type = &transformer->types[ZR_TYPE_BLOCK];
    type->forward = run_block;
    type->backward = run_block_backward;
    if (tiles == 1 && !(transformer->shape.trainable && transformer->shape.trainable->lora.rank > 0))
        type->weights = weigh_block;
    type->parts = tiles > 1 ? ZR_BLOCK_PRODUCTS * tiles : 1;
    type->recomputed_parts = type->parts - tiles; /* the last product only writes y */
}

struct zr_slot zr_slot_probabilities(const struct zr_transformer *transformer, const char *name)
{
    const struct zr_shape *shape = &transformer->shape;
    bool read = shape->context <= 1 && (!transformer->kernels || transformer->kernels->reads_probabilities);
    return (struct zr_slot){.name = name,
                            .columns = read ? shape->heads / zr_shape_tensor(shape) * shape->sequence : 0,
                            .life = ZR_SLOT_RECOMPUTED};
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

zr_result zr_transformer_open(struct zr_transformer *out, const struct zr_shape *shape,
                              const struct zr_kernels *kernels, zr_arena *host_arena)
{
    zr_result result;
    memset(out, 0, sizeof *out);
    out->shape = *shape;
    zr_shape_complete(&out->shape);
    result = zr_shape_check(&out->shape);
    if (result != ZR_OK)
        return result;
    shape = &out->shape;
    const struct zr_architecture_table *table = table_of(shape);
    out->kernels = kernels;
    out->host_arena = host_arena;
    out->table = table;
    out->model = (struct zr_model){.rows = shape->batch * zr_shape_own_sequence(shape),
                                   .rows_together = zr_shape_own_sequence(shape),
                                   .row_ranks = shape->sequence_parallel ? shape->tensor : 1,
                                   .answer_count = shape->vocabulary,
                                   .shape = shape};
    out->model.inputs[ZR_INPUT_TOKENS] = (struct zr_input){"tokens", out->model.rows, ZR_SLOT_INTEGERS};
    out->model.inputs[ZR_INPUT_TARGETS] = (struct zr_input){"targets", out->model.rows, ZR_SLOT_INTEGERS};
    out->model.inputs[ZR_INPUT_POSITIONS] =
        (struct zr_input){"positions", zr_shape_has_positions(shape) ? out->model.rows : 0, ZR_SLOT_INTEGERS};
    out->model.inputs_count = ZR_INPUTS_COMMON;
    size_t tiles = zr_shape_tiles(shape), block_units = tiles > 1 ? ZR_BLOCK_PRODUCTS * tiles : 1;
    result = zr_take(host_arena, ZR_TAG_OTHER,
                     tiles * (table->parameters + table->block_parameters * shape->layers),
                     sizeof *out->parameters, (void **)&out->parameters);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, tiles * table->units + block_units * shape->layers,
                         sizeof *out->units, (void **)&out->units);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, ZR_TYPES_COUNT - 1 + shape->layers, sizeof *out->modules,
                         (void **)&out->modules);
    if (result != ZR_OK) {
        zr_transformer_close(out);
        return result;
    }
    out->model.list.parameters = out->parameters;
    out->model.list.units = out->units;
    out->model.modules = out->modules;
    table->describe(out);
    if (zr_shape_drops(shape))
        out->model.inputs[out->model.inputs_count++] =
            (struct zr_input){"dropout", sizeof(struct zr_dropout_draw) / sizeof(int32_t), ZR_SLOT_INTEGERS};
    describe_blocks(out);
    result = zr_trainable_split(out);
    if (result != ZR_OK)
        zr_transformer_close(out);
    return result;
}

void zr_transformer_close(struct zr_transformer *transformer)
{
    if (!transformer->host_arena)
        return;
    zr_drop(transformer->host_arena, &transformer->places);
    zr_drop(transformer->host_arena, &transformer->modules);
    zr_drop(transformer->host_arena, &transformer->units);
    zr_drop(transformer->host_arena, &transformer->parameters);
}
