/* transformer.h: the bundled models: a shape and the struct zr_model built from it. An architecture (gpt2.c,
 * llama.c) is a table with its tensors, its modules and slots, forward and backward. A row is a token; the
 * inputs are tokens, targets and, with documents, positions, [batch, sequence] each. */
#ifndef ZR_MODEL_TRANSFORMER_H
#define ZR_MODEL_TRANSFORMER_H

#include <math.h>

#include "zero/model/trainable.h"
#include "zero/zr_zero.h"

enum zr_architecture { ZR_ARCH_GPT2 = 0, ZR_ARCH_LLAMA, ZR_ARCH_COUNT };
const char *zr_architecture_name(enum zr_architecture architecture); /* "gpt2", "llama" */

/* Tensors of biases of a LLaMA: of q, k and v; of attention's output; of the feed-forward layer. */
enum zr_biases { ZR_BIASES_QKV = 1, ZR_BIASES_OUT = 2, ZR_BIASES_FFN = 4 };

/* Names and layouts of tensors in files: LLaMA's; GPT-NeoX's, where q, k and v are one tensor, by head;
 * Phi-3's, where q, k and v are one tensor, and gate and up another; Gemma 3's names of norms. */
enum zr_names { ZR_NAMES_LLAMA = 0, ZR_NAMES_NEOX, ZR_NAMES_PHI3, ZR_NAMES_GEMMA3 };

/* Differences of a model from the plain form of its architecture; zeros: none. A config.json has them, and no
 * option. */
struct zr_variant {
    uint64_t positions;     /* GPT-2: rows of wpe; 0: as many as --seq */
    uint64_t head_width;    /* LLaMA: channels of a head; 0: hidden / heads */
    uint64_t window;        /* LLaMA: tokens that a token attends to, itself included; 0: all before */
    uint64_t window_first;  /* LLaMA: first layer with the window */
    uint64_t window_period; /* LLaMA: every so many layers, the last one is without the window; 0: none */
    uint64_t biases;        /* LLaMA: of enum zr_biases */
    uint64_t head_norms;    /* LLaMA: 1: root mean square norms of each head of q and k */
    uint64_t layer_norms;   /* LLaMA: 1: layer norms with biases; excludes head_norms */
    uint64_t norms_add_one; /* LLaMA: 1: norms multiply by 1 + weight */
    uint64_t branch_norms;  /* LLaMA: 1: norms of both branches of a block, before they are added */
    uint64_t scaled_tokens; /* LLaMA: 1: embeddings are multiplied by the root of hidden */
    uint64_t parallel;      /* LLaMA: 1: both norms of a block read its input */
    uint64_t ungated;       /* LLaMA: 1: no gate; an activation of up */
    uint64_t activation;    /* GPT-2, and ungated: enum zr_activation; gated: 0: silu, 1: GELU's tanh form */
    double rotary_share;    /* LLaMA: share of a head's channels that rotate, the first ones; 0: all */
    double window_theta;    /* LLaMA: base of plain angles in layers with the window; 0: those of all */
    double score_width;     /* LLaMA: scores are divided by its root; 0: a head's width */
    uint64_t names;         /* LLaMA: enum zr_names */
    uint64_t untied;        /* GPT-2: 1: the head has a matrix of its own */
    uint64_t unscaled;      /* GPT-2: 1: scores are not divided by the root of a head's width */
    uint64_t scaled_by_layer;        /* GPT-2: 1: scores of layer i, from 1, are divided by i */
    struct zr_rotary_scaling rotary; /* LLaMA */
};
/* Writes the differences as text, "window 8, biases 1"; "" if there are none. */
enum { ZR_VARIANT_ROOM = 600 };
void zr_variant_print(const struct zr_variant *variant, char out[ZR_VARIANT_ROOM]);

struct zr_shape {
    size_t layers, hidden, heads;
    size_t vocabulary;        /* entries that can be predicted */
    size_t vocabulary_padded; /* rows stored */
    size_t sequence;          /* tokens per sequence */
    bool documents;           /* attention stays inside of documents, each of which ends with token `eos` */
    int32_t eos;
    size_t batch; /* sequences per rank and micro-batch */
    enum zr_recompute recompute;
    unsigned recompute_layers;      /* ZR_RECOMPUTE_FULL: number of first layers that recompute; 0: all */
    unsigned tensor, tensor_rank;   /* number of tensor-parallel ranks (0 and 1: none) and this rank */
    unsigned context, context_rank; /* number of context ranks, which divide each sequence (0 and 1: none) */
    bool sequence_parallel;         /* tensor ranks also divide the rows of norms and residuals */
    /* Number of tiles (0 and 1: none) that divide a block's products by columns, and embedding and head by
     * vocabulary entries. Each tile is a part of its module and has its own unit. */
    unsigned tiles;
    bool fp8;           /* products of blocks round their operands to fp8: kernels/zr_kernels.h */
    size_t logits_rows; /* maximum rows of a chunk of the head; 0: 64 MiB of floats */
    enum zr_architecture architecture;
    size_t ffn;          /* width of the feed-forward layer */
    double norm_epsilon; /* added to the mean square before the root; GPT-2: to the variance, 0: 1e-5 */
    /* LLaMA only. */
    size_t kv_heads;   /* heads of keys and values; divides heads */
    double rope_theta; /* base of the rotary angles */
    bool tied;         /* the head shares the embedding's matrix; GPT-2: !variant.untied */
    struct zr_variant variant;
    const struct zr_trainable *trainable; /* borrowed; NULL: everything is trained */
    /* Dropout rates in training, of the sum of the embeddings, of the outputs of attention and of the
     * feed-forward layer before they are added to the residual, and of attention's probabilities; 0: none. */
    float embedding_dropout, residual_dropout, attention_dropout;
};

/* ZR_ERR_INVALID: a size is zero or overflows, heads do not divide hidden, the variant has something that the
 * architecture, tiles or the sequence exclude, or tensor ranks or tiles do not
 * divide the dimension that they split, or exclude what is trained (trainable.h). */
zr_result zr_shape_check(const struct zr_shape *shape);
/* The same model on one tensor rank, without tiles, with default chunks of the head. */
struct zr_shape zr_shape_dense(const struct zr_shape *shape);
static inline size_t zr_shape_tensor(const struct zr_shape *shape)
{
    return shape->tensor > 1 ? shape->tensor : 1;
}
static inline size_t zr_shape_context(const struct zr_shape *shape)
{
    return shape->context > 1 ? shape->context : 1;
}
/* Tokens of a sequence on a context rank. */
static inline size_t zr_shape_own_sequence(const struct zr_shape *shape)
{
    return shape->sequence / zr_shape_context(shape);
}
static inline struct zr_context_part zr_shape_part(const struct zr_shape *shape)
{
    return (struct zr_context_part){shape->context, shape->context_rank, zr_shape_own_sequence(shape)};
}
/* Whether the model has the input ZR_INPUT_POSITIONS. */
static inline bool zr_shape_has_positions(const struct zr_shape *shape)
{
    return shape->documents || shape->context > 1;
}
/* Channels of a head, and of all heads of queries. */
static inline size_t zr_shape_head(const struct zr_shape *shape)
{
    return shape->variant.head_width ? shape->variant.head_width : shape->hidden / shape->heads;
}
static inline size_t zr_shape_queries(const struct zr_shape *shape)
{
    return shape->heads * zr_shape_head(shape);
}
/* Channels of a head that rotate. */
static inline size_t zr_shape_rotary(const struct zr_shape *shape)
{
    double share = shape->variant.rotary_share;
    return share > 0 ? (size_t)((double)zr_shape_head(shape) * share) : zr_shape_head(shape);
}
/* Whether a layer has the window. */
static inline bool zr_shape_has_window(const struct zr_shape *shape, size_t layer)
{
    const struct zr_variant *variant = &shape->variant;
    return variant->window && layer >= variant->window_first &&
           (variant->window_period == 0 || (layer + 1) % variant->window_period != 0);
}
/* GPT-2: rows of wpe. */
static inline size_t zr_shape_positions(const struct zr_shape *shape)
{
    return shape->variant.positions ? shape->variant.positions : shape->sequence;
}
static inline unsigned zr_shape_tiles(const struct zr_shape *shape)
{
    return shape->tiles > 1 ? shape->tiles : 1;
}
/* Rows of logits of this tensor rank's largest tile that fit into `bytes`; from 1 to all rows. */
size_t zr_shape_logits_rows(const struct zr_shape *shape, size_t bytes, size_t logit_bytes);
/* Copies this context rank's part of `count` sequences. `whole`: [count, sequence]; `own`: [count, own
 * sequence]. */
void zr_shape_share_tokens(const struct zr_shape *shape, const int32_t *whole, size_t count, int32_t *own);
/* The same of each token's position in its document, from 0 on. A document begins with a sequence and, with
 * shape->documents, after its token `eos`. */
void zr_shape_share_positions(const struct zr_shape *shape, const int32_t *tokens, size_t count,
                              int32_t *positions);
/* The largest valid number of tiles below `below`; at least 1. */
unsigned zr_shape_tiles_below(const struct zr_shape *shape, unsigned below);
/* Replaces zeros in kv_heads, ffn, rope_theta and norm_epsilon by the architecture's defaults. */
void zr_shape_complete(struct zr_shape *shape);

/* Parameter groups: vectors do not decay; embeddings may have another learning rate. */
enum zr_transformer_group {
    ZR_GROUP_VECTORS = ZR_GROUP_NO_DECAY,
    ZR_GROUP_MATRICES = ZR_GROUP_DECAY,
    ZR_GROUP_EMBEDDINGS,
    ZR_GROUP_HEADS, /* untied */
    ZR_TRANSFORMER_GROUPS_COUNT
};

/* Inputs of every architecture; an architecture may append inputs. Positions: zr_shape_has_positions(). With
 * dropout the last input is a struct zr_dropout_draw, see zr_transformer_draw(). */
enum { ZR_INPUT_TOKENS = 0, ZR_INPUT_TARGETS, ZR_INPUT_POSITIONS, ZR_INPUTS_COMMON };
static inline bool zr_shape_drops(const struct zr_shape *shape)
{
    return shape->embedding_dropout > 0 || shape->residual_dropout > 0 || shape->attention_dropout > 0;
}

/* Pipeline stages of a bundled model. The first stage also has the embedding, the last one the final norm and
 * the head. */
struct zr_stages {
    enum zr_pipeline_schedule schedule;
    unsigned interleave;                     /* see struct zr_pipeline */
    bool vertical_sync;                      /* likewise */
    unsigned ranks;                          /* pipeline ranks; 0 and 1: no pipeline */
    uint16_t layers[ZR_PIPELINE_STAGES_MAX]; /* per stage */
};
/* Total number of stages; at least 1. */
unsigned zr_stages_count(const struct zr_stages *stages);
/* Distributes layers as evenly as possible. */
void zr_stages_cut_equally(struct zr_stages *stages, size_t layers);
/* The struct zr_pipeline of the stages, without its communicator. `modules`: array of zr_stages_count()
 * elements that the result points to; NULL: the result has no module counts. */
struct zr_pipeline zr_stages_pipeline(const struct zr_stages *stages, size_t *modules);

/* Parameter elements without padding; a double, which does not overflow. */
double zr_shape_elements(const struct zr_shape *shape);
/* Number of a block's matrices whose sizes support fp8; *all: number of its matrices. Other products use
 * bf16. */
unsigned zr_shape_fp8_matrices(const struct zr_shape *shape, unsigned *all);
/* Limits of the kernel context that runs the model. */
void zr_shape_limits(const struct zr_shape *shape, unsigned threads, struct zr_kernel_limits *out);
/* Floating-point operations of the model's matrix products, forward and backward, for one micro-batch of a
 * data rank, without recomputation and padding. For GPT-2: 72 B T L C^2 (1 + T / 6C + V / 12LC), as in
 * Narayanan et al. (see kernels/null.c, which counts the same for --recompute none). */
double zr_shape_flops(const struct zr_shape *shape);

/* ---- Building blocks of architectures ------------------------------------------------------------------ */

enum { ZR_TYPE_EMBEDDING = 0, ZR_TYPE_BLOCK, ZR_TYPE_FINAL, ZR_TYPE_HEAD, ZR_TYPES_COUNT };

/* A model and the arrays that it points to. Must not be moved in memory. */
struct zr_transformer {
    struct zr_shape shape;
    const struct zr_architecture_table *table; /* of the shape */
    struct zr_model model;
    const struct zr_kernels *kernels; /* argument of zr_transformer_open() */
    zr_arena *host_arena;
    struct zr_module_type types[ZR_TYPES_COUNT];
    struct zr_slot slots[ZR_TYPES_COUNT][ZR_MODULE_SLOTS_MAX]; /* by type */
    struct zr_parameter *parameters;
    struct zr_unit *units;
    struct zr_module *modules;
    unsigned char (*places)[ZR_UNIT_PARAMETERS_MAX]; /* of modules whose units zr_trainable_split() divided */
};

/* `kernels`: the table that runs the passes; a slot that none of its operations reads has no columns. NULL:
 * no pass will run, and the slots are those of the CPU table. Records are allocated from the host arena.
 * ZR_ERR_INVALID: see zr_shape_check(). */
zr_result zr_transformer_open(struct zr_transformer *out, const struct zr_shape *shape,
                              const struct zr_kernels *kernels, zr_arena *host_arena);
void zr_transformer_close(struct zr_transformer *transformer);

/* Dropout: the input that the caller sets with a micro-batch / its value. The numbers depend on seed, step,
 * the number of a sequence in the step, layer and element only, so the same elements are dropped on any mesh,
 * and with any division into micro-batches. */
struct zr_transformer_draw {
    uint64_t seed, step;
    uint64_t sequence; /* number in the step of the micro-batch's first sequence */
};
unsigned zr_transformer_draw_input(const struct zr_transformer *transformer); /* UINT_MAX: no dropout */
struct zr_dropout_draw zr_transformer_draw(const struct zr_transformer *transformer,
                                           const struct zr_transformer_draw *draw);

/* A tensor of a unit in an architecture's table. A vector has columns 0. */
struct zr_tensor {
    const char *name;     /* appended to the unit's prefix */
    size_t rows, columns; /* of the whole tensor; rows 0: the model lacks it */
    float mean, deviation;
    unsigned group;
    enum zr_split {
        ZR_SPLIT_NONE = 0, /* each tensor rank has the whole tensor and gradient */
        ZR_SPLIT_NORM,     /* each tensor rank has the whole tensor and the gradient of its own rows */
        ZR_SPLIT_HEADS,    /* each tensor rank has the whole tensor and the gradient of its own heads */
        ZR_SPLIT_FIRST,    /* by rows */
        ZR_SPLIT_LAST,     /* by columns, or by the elements of a vector */
        ZR_SPLIT_QKV,      /* like ZR_SPLIT_LAST, separately for the q, k and v blocks */
    } split;
};

/* A unit of `count` tensors, appended to the model's lists. */
struct zr_unit_tensors {
    const char *name;   /* may contain one %zu for `layer`: "h.%zu" */
    const char *prefix; /* prefix of the parameters' names, likewise */
    size_t layer;
    unsigned gradient_uses;
    const struct zr_tensor *tensors;
    size_t count;
};
void zr_transformer_add_unit(struct zr_transformer *transformer, const struct zr_unit_tensors *unit);
/* Appends a module that reads units[count], or the last unit if count is 0. */
void zr_transformer_add_module(struct zr_transformer *transformer, unsigned type, const unsigned *units,
                               unsigned count);

/* The four products of a block: to queries, keys and values; of attention's output; and the two of the
 * feed-forward layer, where gate and up count as one. */
enum { ZR_PRODUCT_QKV = 0, ZR_PRODUCT_OUT, ZR_PRODUCT_WIDE, ZR_PRODUCT_NARROW, ZR_BLOCK_PRODUCTS };

/* Tensors of one product in the table of a block: `first` to the next product's `first`. Those before `tiled`
 * belong to the first tile; each tile has a part of the others. */
struct zr_block_product {
    const char *name;      /* in the names of its tiles' units, after the block's name */
    unsigned first, tiled; /* with several tensor ranks a ZR_SPLIT_QKV tensor counts three times: q, k, v */
};

/* Appends a block: a unit and a module, or one unit per tile and a module with as many parts. */
void zr_transformer_add_block(struct zr_transformer *transformer, const struct zr_unit_tensors *unit);

/* Appends a matrix [vocabulary_padded, ..] as one unit or one unit per tile. Returns the index of the first
 * unit. */
unsigned zr_transformer_add_vocabulary(struct zr_transformer *transformer,
                                       const struct zr_unit_tensors *unit);

/* Steps of a block for each product. A pass runs all products, or one tile of one product. Forward: `before`
 * computes the product's input, `multiply` the product or tile, `after` uses the output. Backward:
 * `take_gradients` takes slots for gradients, `multiply_back` computes the gradients of the product or tile,
 * `go_back` continues from the gradient of the input to its sources. The first and third step run once per
 * product, with its first and last tile.
 *
 * Weights after a backward that split (zr_module_type.weights): `multiply_back` without dx, then
 * `weigh_norms` computes the gradients of the norms between the previous product and this one. */
struct zr_block_steps {
    zr_result (*before)(struct zr_module_pass *pass, unsigned product);
    zr_result (*multiply)(struct zr_module_pass *pass, unsigned product);
    zr_result (*after)(struct zr_module_pass *pass, unsigned product);
    zr_result (*take_gradients)(struct zr_module_pass *pass, unsigned product);
    zr_result (*multiply_back)(struct zr_module_pass *pass, unsigned product);
    zr_result (*go_back)(struct zr_module_pass *pass, unsigned product);
    zr_result (*weigh_norms)(struct zr_module_pass *pass, unsigned product);
    /* Slots that weights do not read, a bit each, freed after go_back of the product. */
    uint64_t freed[ZR_BLOCK_PRODUCTS];
};

enum { ZR_BLOCK_MATRICES_MAX = 7 };

/* An architecture. describe() fills in types, slots, units, modules, inputs and prepare. */
struct zr_architecture_table {
    const char *name;
    /* Capacities: units and parameters outside of blocks; parameters per block and tile. */
    unsigned units, parameters, block_parameters;
    struct zr_block_product products[ZR_BLOCK_PRODUCTS];
    struct zr_block_steps block;
    bool turned; /* matrices are stored [out, in] */
    /* Matrices of a block, as indices in its table. A pass has A and B of the adapter of matrix i at the
     * places block_tensors + 2 i and the next one; NULL: no adapter. block_tensors: maximum of tensors that a
     * model has. */
    unsigned char matrices[ZR_BLOCK_MATRICES_MAX];
    unsigned matrices_count, block_tensors;
    unsigned adapter_slot; /* the slot for x A of an adapter; the next one is for its gradient */
    void (*describe)(struct zr_transformer *transformer);
    /* Tensors of a block's table that a model lacks, a bit each; NULL: none. */
    uint32_t (*absent)(const struct zr_shape *shape);
    double (*elements)(const struct zr_shape *shape);
    double (*block_flops)(const struct zr_shape *shape); /* forward, per row */
};
/* Number of tensors from `first` to `tensor` of a block's table that the model has: the index of `tensor` in
 * a unit that begins with `first`. */
unsigned zr_block_index(const struct zr_shape *shape, unsigned first, unsigned tensor);
/* Whether the model has a tensor of a block's table. */
bool zr_block_has(const struct zr_shape *shape, unsigned tensor);
/* Index among the matrices of a block of its tensor `tensor`; matrices_count: not a matrix. */
static inline unsigned zr_block_matrix(const struct zr_architecture_table *table, unsigned tensor)
{
    unsigned i = 0;
    while (i < table->matrices_count && table->matrices[i] != tensor)
        i++;
    return i;
}
/* Place of A of a matrix's adapter in a pass's table, and of the first of its slots. */
struct zr_adapter_place {
    unsigned a, slot;
};
static inline struct zr_adapter_place zr_block_adapter(const struct zr_architecture_table *table,
                                                       unsigned tensor)
{
    return (struct zr_adapter_place){table->block_tensors + 2 * zr_block_matrix(table, tensor),
                                     table->adapter_slot};
}
extern const struct zr_architecture_table zr_architecture_gpt2, zr_architecture_llama;

/* This tensor rank's shard of the vocabulary: rows of embedding and head. */
struct zr_vocabulary_share {
    size_t first, rows; /* rows: equal on all ranks; rows beyond the whole matrix are padding */
    size_t columns;     /* number of rows that can be predicted */
};
struct zr_vocabulary_share zr_shape_vocabulary(const struct zr_shape *shape);
/* A tile of the shard. Tile sizes differ by at most one row. */
struct zr_vocabulary_share zr_shape_vocabulary_tile(const struct zr_shape *shape, unsigned tile);

/* Slot for attention's probabilities; no columns if backward does not read them. */
struct zr_slot zr_slot_probabilities(const struct zr_transformer *transformer, const char *name);

/* Module type of the head: product to logits, softmax and cross-entropy. The first parameter of its unit is
 * [vocabulary_padded, hidden]. */
void zr_transformer_add_head(struct zr_transformer *transformer);

static inline const struct zr_shape *zr_pass_shape(const struct zr_module_pass *pass)
{
    return pass->model->shape;
}
/* The tile that the pass runs; zr_pass_is_whole(): it runs the whole module. */
static inline unsigned zr_pass_tile(const struct zr_module_pass *pass)
{
    return pass->part % zr_shape_tiles(zr_pass_shape(pass));
}
bool zr_pass_is_whole(const struct zr_module_pass *pass);
static inline bool zr_pass_is_backward(const struct zr_module_pass *pass)
{
    return pass->dx || pass->dy;
}
/* The pass runs the product's first / last tile in order of execution, or the whole module. Backward runs
 * tiles in reverse. */
bool zr_pass_opens(const struct zr_module_pass *pass);
bool zr_pass_closes(const struct zr_module_pass *pass);
/* An output of backward: `at`; NULL in weights, which follow a backward that split. */
static inline void *zr_pass_dx(const struct zr_module_pass *pass, void *at)
{
    return pass->dx ? at : NULL;
}
/* Frees a slot that weights read, unless they follow. */
static inline void zr_pass_end_slot(struct zr_module_pass *pass, unsigned slot)
{
    if (!pass->splits)
        zr_module_drop(pass, slot);
}
/* Index of a tensor of the block's table in pass->parameters[0] and in the gradients. */
unsigned zr_pass_parameter(const struct zr_module_pass *pass, unsigned tensor);
/* Restricts a product to the columns of the pass's tile; returns the address of the tile's first column in y.
 */
void *zr_pass_columns(const struct zr_module_pass *pass, struct zr_linear *linear, const void *y);
/* lora.c: adapters. Whether there is one / adds the adapter's product to y / adds the adapter's part to dx
 * and computes its gradients. `linear`: the matrix's product, dense in x. Without an adapter these do
 * nothing. */
bool zr_pass_is_adapted(const struct zr_module_pass *pass, struct zr_adapter_place place);
zr_result zr_pass_adapt(struct zr_module_pass *pass, struct zr_adapter_place place,
                        const struct zr_linear *linear, const void *x, void *y);
struct zr_adapt_backward {
    struct zr_linear linear;
    const void *x, *dy;
    void *dx;
};
zr_result zr_pass_adapt_backward(struct zr_module_pass *pass, struct zr_adapter_place place,
                                 const struct zr_adapt_backward *back);
/* The shard or tile of the vocabulary that the pass runs on. */
struct zr_vocabulary_share zr_pass_vocabulary(const struct zr_module_pass *pass);

/* Token embedding: forward writes y, backward the gradient of the unit's first parameter [vocabulary_padded,
 * hidden]. `slot` holds all rows, see below. */
zr_result zr_pass_embed(struct zr_module_pass *pass, unsigned slot);
zr_result zr_pass_embed_backward(struct zr_module_pass *pass, unsigned slot);
/* Positions of the rows from `first` on; NULL: row r is token r modulo the sequence. */
static inline const int32_t *zr_pass_positions(const struct zr_module_pass *pass, size_t first)
{
    const int32_t *positions = pass->inputs[ZR_INPUT_POSITIONS];
    return positions ? positions + first : NULL;
}
/* Number of the block that a pass runs, from 0. */
size_t zr_pass_layer(const struct zr_module_pass *pass);
/* Dropout of attention's probabilities in this pass (dropout.c). */
struct zr_attention_dropout zr_pass_attention_dropout(const struct zr_module_pass *pass);
/* Attention over this tensor rank's heads. */
static inline struct zr_attention zr_pass_attention(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    size_t tensor = zr_shape_tensor(shape),
           window = zr_shape_has_window(shape, zr_pass_layer(pass)) ? shape->variant.window : 0;
    return (struct zr_attention){
        .batch = pass->rows / zr_shape_own_sequence(shape),
        .sequence = zr_shape_own_sequence(shape),
        .channels = zr_shape_queries(shape) / tensor,
        .heads = shape->heads / tensor,
        .kv_heads = shape->kv_heads / tensor,
        .scale = shape->variant.score_width > 0 ? 1 / sqrtf((float)shape->variant.score_width) : 0,
        .window = window < shape->sequence ? window : 0,
        .positions = shape->documents ? zr_pass_positions(pass, 0) : NULL,
        .dropout = zr_pass_attention_dropout(pass)};
}

/* ---- Ring attention (ring.c) --------------------------------------------------------------------------- */

/* Attention, over the keys of all context ranks if there are several. `slots`: the first of ZR_RING_SLOTS
 * slots of the block. `p` is not used by a ring. */
enum { ZR_RING_SLOTS = 3 };
void zr_slots_ring(const struct zr_shape *shape, struct zr_slot *slots);
zr_result zr_pass_attend(struct zr_module_pass *pass, unsigned slots, const struct zr_attention_forward *op);
zr_result zr_pass_attend_backward(struct zr_module_pass *pass, unsigned slots,
                                  const struct zr_attention_backward *op);

/* ---- Dropout (dropout.c) ------------------------------------------------------------------------------- */

/* Whether the pass drops elements of a residual branch. */
static inline bool zr_pass_drops(const struct zr_module_pass *pass)
{
    return pass->trains && zr_pass_shape(pass)->residual_dropout > 0;
}
/* Rows of the rank's x and y before them in the micro-batch: under sequence parallelism. */
static inline size_t zr_pass_first_row(const struct zr_module_pass *pass)
{
    return pass->own_rows < pass->rows ? zr_pass_shape(pass)->tensor_rank * pass->own_rows : 0;
}
/* Drops elements of `at`, [own_rows, hidden]: of the sum of the embeddings, in forward, or of its gradient,
 * in backward; of the output of a block's product. */
zr_result zr_pass_drop_embedding(struct zr_module_pass *pass, const void *at);
zr_result zr_pass_drop_output(struct zr_module_pass *pass, unsigned product, void *at);
/* The gradient of a product's output before dropout: pass->dx, or with dropout or `splits` a copy in `slot`,
 * which lives from take() to the product's go_back(), or to weights. */
struct zr_slot zr_slot_dropped(const struct zr_shape *shape);
zr_result zr_pass_take_dropped(struct zr_module_pass *pass, unsigned product, unsigned slot);
static inline void *zr_pass_dropped(const struct zr_module_pass *pass, unsigned slot)
{
    return pass->slots[slot] ? pass->slots[slot] : pass->dx;
}

/* ---- Between tensor ranks ------------------------------------------------------------------------------ */

/* A tensor rank multiplies all rows by its shard of the matrices. Under sequence parallelism norms and
 * residuals work on this rank's rows only: before a product the rows of all ranks are gathered into a
 * temporary slot, and the sum of the products over the ranks is reduce-scattered by rows. Otherwise each rank
 * has all rows and sums are all-reduced in place. With one tensor rank these functions do nothing. Rows have
 * `hidden` elements. */

/* *all: all ranks' rows of `own`, valid until zr_pass_drop_rows(). Tiles share one gather. */
zr_result zr_pass_all_rows(struct zr_module_pass *pass, const void *own, unsigned slot, const void **all);
void zr_pass_drop_rows(struct zr_module_pass *pass, unsigned slot);
/* Sum of a product over the ranks: open provides `part`, where the product writes all rows; start begins the
 * collective; end waits until this rank's rows are in `own`, and drops the slot. Tiles share one sum. */
struct zr_pass_sum {
    void *own, *part;
    unsigned slot;
    zr_ticket ticket;
};
zr_result zr_pass_open_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum, void *own, unsigned slot);
zr_result zr_pass_start_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum);
zr_result zr_pass_end_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum);
/* Starts the collective of a sum and waits for its end. */
zr_result zr_pass_close_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum);
/* Bias of a product that is summed over the ranks: only rank 0 adds it. */
static inline const void *zr_pass_bias_once(const struct zr_module_pass *pass, const void *bias)
{
    return zr_pass_shape(pass)->tensor_rank == 0 ? bias : NULL;
}
/* Whether a product adds the residual itself; requires that the sum needs no other rank or tile, dropout or
 * norm.
 */
static inline bool zr_pass_adds_in_product(const struct zr_module_pass *pass)
{
    return zr_pass_is_whole(pass) && zr_shape_tensor(zr_pass_shape(pass)) == 1 && !zr_pass_drops(pass) &&
           !zr_pass_shape(pass)->variant.branch_norms && pass->kernels->linear_residual_forward;
}
/* Slot for all rows; without sequence parallelism it has no columns. */
struct zr_slot zr_slot_all_rows(const struct zr_shape *shape, const char *name);

#endif
