/* transformer.h: the bundled models: a shape, and the struct zr_model that an architecture makes of it. An
 * architecture is a table in a file of its own (gpt2.c, llama.c): its tensors, its modules with their slots,
 * forward and backward. A row is a token; the inputs are tokens and targets, [batch, sequence] each. */
#ifndef ZR_MODEL_TRANSFORMER_H
#define ZR_MODEL_TRANSFORMER_H

#include "zero/zr_zero.h"

enum zr_architecture { ZR_ARCH_GPT2 = 0, ZR_ARCH_LLAMA, ZR_ARCH_COUNT };
const char *zr_architecture_name(enum zr_architecture architecture); /* "gpt2", "llama" */

struct zr_shape {
    size_t layers, hidden, heads;
    size_t vocabulary;        /* entries that can be predicted */
    size_t vocabulary_padded; /* rows stored */
    size_t sequence;          /* tokens per sequence; of GPT-2 also the positions in wpe */
    size_t batch;             /* sequences per rank and micro-batch */
    enum zr_recompute recompute;
    unsigned recompute_layers;    /* of ZR_RECOMPUTE_FULL: so many, the first ones; 0: all */
    unsigned tensor, tensor_rank; /* tensor-parallel ranks (0 and 1: none), and this one among them */
    bool sequence_parallel;       /* they divide the rows of norms and residuals too */
    /* Pieces of a block's products, by columns, and of the embedding and the head, by entries of the
     * vocabulary; each is a part of its module with a unit of its own. 0 and 1: none */
    unsigned tiles;
    bool fp8;           /* products of blocks round their operands to eight bits: kernels/zr_kernels.h */
    size_t logits_rows; /* of a chunk of the head, at most; 0: as many as are in 64 MiB of floats */
    enum zr_architecture architecture;
    /* LLaMA's. */
    size_t kv_heads;     /* that keys and values have; divides heads */
    size_t ffn;          /* width of the feed-forward layer */
    double rope_theta;   /* base of the rotary angles */
    double norm_epsilon; /* added to the mean square, below the root */
    bool tied;           /* the head is the embedding; GPT-2's always is */
};

/* Checks a shape: ZR_ERR_INVALID with words when heads do not divide hidden, the tensor ranks or the tiles do
 * not divide what they share, anything is zero, or it overflows. */
zr_result zr_shape_check(const struct zr_shape *shape);
/* The same model on one tensor rank, without tiles and in the head's usual chunks. */
struct zr_shape zr_shape_dense(const struct zr_shape *shape);
static inline size_t zr_shape_tensor(const struct zr_shape *shape)
{
    return shape->tensor > 1 ? shape->tensor : 1;
}
static inline unsigned zr_shape_tiles(const struct zr_shape *shape)
{
    return shape->tiles > 1 ? shape->tiles : 1;
}
/* Rows of logits, of this tensor rank's largest tile, in so many bytes; from 1 to all. */
size_t zr_shape_logits_rows(const struct zr_shape *shape, size_t bytes, size_t logit_bytes);
/* The most tiles, below so many, that the model can have; at least 1. */
unsigned zr_shape_tiles_below(const struct zr_shape *shape, unsigned below);
/* Fills in what a shape leaves 0 (kv_heads, ffn, rope_theta, norm_epsilon) with what the architecture usually
 * has. */
void zr_shape_complete(struct zr_shape *shape);

/* The optimizer's groups: vectors do not decay; the embeddings may have a rate of their own. */
enum zr_transformer_group {
    ZR_GROUP_VECTORS = ZR_GROUP_NO_DECAY,
    ZR_GROUP_MATRICES = ZR_GROUP_DECAY,
    ZR_GROUP_EMBEDDINGS,
    ZR_TRANSFORMER_GROUPS_COUNT
};

/* The inputs of every architecture; others may follow. */
enum { ZR_INPUT_TOKENS = 0, ZR_INPUT_TARGETS, ZR_INPUTS_COMMON };

/* How a bundled model is cut into the stages of a pipeline. The first stage has the embedding too, the last
 * one the final norm and the head. */
struct zr_stages {
    enum zr_pipeline_schedule schedule;
    unsigned interleave;                      /* see struct zr_pipeline */
    unsigned ranks;                           /* of the pipeline; 0 and 1: none */
    uint16_t layers[ZR_PIPELINE_STAGES_MOST]; /* of each stage */
};
/* Stages in all, of `ranks` of them at least 1. */
unsigned zr_stages_count(const struct zr_stages *stages);
/* Layers as equal as can be. */
void zr_stages_cut_equally(struct zr_stages *stages, size_t layers);
/* The pipeline of such stages: without its communicator; and without modules where `modules` is NULL, else
 * they are there, with room for all stages. */
struct zr_pipeline zr_stages_pipeline(const struct zr_stages *stages, size_t *modules);

/* Elements without padding, in floating point: of shapes beyond counting too. */
double zr_shape_elements(const struct zr_shape *shape);
/* Of a block's matrices, those whose sizes fp8 takes; *all: their number. The products of others are made in
 * bf16. */
unsigned zr_shape_fp8_matrices(const struct zr_shape *shape, unsigned *all);
/* What the kernels must be ready for. */
void zr_shape_limits(const struct zr_shape *shape, unsigned threads, struct zr_kernel_limits *out);
/* Floating-point operations of the model's matrix products, forward and backward, for one micro-batch of a
 * data rank: without what recomputation does again, and without padding. Of GPT-2 that is
 * 72 B T L C^2 (1 + T / 6C + V / 12LC), as Narayanan et al. count (see kernels/null.c); what is counted there
 * for --recompute none. */
double zr_shape_flops(const struct zr_shape *shape);

/* ---- What architectures are made of -------------------------------------------------------------------- */

enum { ZR_TYPE_EMBEDDING = 0, ZR_TYPE_BLOCK, ZR_TYPE_FINAL, ZR_TYPE_HEAD, ZR_TYPES_COUNT };

/* A model and the arrays that it points to. Do not move it. */
struct zr_transformer {
    struct zr_shape shape;
    struct zr_model model;
    const struct zr_kernels *kernels; /* of zr_transformer_open() */
    zr_arena *host_arena;
    struct zr_module_type types[ZR_TYPES_COUNT];
    struct zr_slot slots[ZR_TYPES_COUNT][ZR_MODULE_SLOTS_MAX]; /* of the types */
    struct zr_parameter *parameters;
    struct zr_unit *units;
    struct zr_module *modules;
};

/* `kernels`: the table that passes are to run on; a slot that no operation of it reads has no columns. NULL:
 * no pass is to run, and slots are the processor's. Takes records from the host arena. ZR_ERR_INVALID: see
 * zr_shape_check(). */
zr_result zr_transformer_open(struct zr_transformer *out, const struct zr_shape *shape,
                              const struct zr_kernels *kernels, zr_arena *host_arena);
void zr_transformer_close(struct zr_transformer *transformer);

/* A tensor of a unit, as an architecture's table has it. Matrices have two sizes, vectors one. */
struct zr_tensor {
    const char *name;     /* after the unit's prefix */
    size_t rows, columns; /* of the whole */
    float mean, deviation;
    unsigned group;
    enum zr_split {
        ZR_SPLIT_NONE = 0, /* every tensor rank has it and its gradient */
        ZR_SPLIT_NORM,     /* every one has it; the gradient is of the rank's own rows */
        ZR_SPLIT_FIRST,    /* rows */
        ZR_SPLIT_LAST,     /* columns, or the elements of a vector */
        ZR_SPLIT_QKV,      /* the same, of three blocks a share of each */
    } split;
};

/* A unit of `count` tensors, appended to the model's lists. */
struct zr_unit_tensors {
    const char *name;   /* "h.%zu", with `layer` in it; or one without */
    const char *prefix; /* of its parameters' names, likewise */
    size_t layer;
    unsigned gradient_uses;
    const struct zr_tensor *tensors;
    size_t count;
};
void zr_transformer_add_unit(struct zr_transformer *transformer, const struct zr_unit_tensors *unit);
/* A module that reads the last unit; or units[count] of the caller's choice. */
void zr_transformer_add_module(struct zr_transformer *transformer, unsigned type, const unsigned *units,
                               unsigned count);

/* A block goes through four products: what makes queries, keys and values; what attention's output goes
 * through; and the two of the feed-forward layer. Gate and up are one. */
enum { ZR_PRODUCT_QKV = 0, ZR_PRODUCT_OUT, ZR_PRODUCT_WIDE, ZR_PRODUCT_NARROW, ZR_BLOCK_PRODUCTS };

/* Of one of them, the tensors from `first` on in the table of a block: those before `tiled` are read with its
 * first tile, of the others up to the next product's each tile has a part. */
struct zr_block_product {
    const char *name;      /* of its tiles' units, after the block's */
    unsigned first, tiled; /* one of ZR_SPLIT_QKV has three of several tensor ranks: of q, of k and of v */
};

/* A block: a unit and a module, or a unit for each tile and a module with as many parts. Its tensors are
 * count of them, of the architecture's table. */
void zr_transformer_add_block(struct zr_transformer *transformer, const struct zr_unit_tensors *unit);

/* A matrix that is looked up or multiplied by entry of the vocabulary, [vocabulary_padded, ..]: one tensor,
 * in a unit or in a unit for each tile. The index of the first comes back. */
unsigned zr_transformer_add_vocabulary(struct zr_transformer *transformer,
                                       const struct zr_unit_tensors *unit);

/* What a block does with each of its products: all of them in a pass, or a tile of one. Forward: what the
 * product reads is made; the tile, or all of it, multiplies; what it wrote is used. Backward: slots are taken
 * for gradients; the gradients of the tile, or of all; from that of what the product reads to what it is made
 * of. The first and the last run once, with the first or the last tile. */
struct zr_block_steps {
    zr_result (*before)(struct zr_module_pass *pass, unsigned product);
    zr_result (*multiply)(struct zr_module_pass *pass, unsigned product);
    zr_result (*after)(struct zr_module_pass *pass, unsigned product);
    zr_result (*take_gradients)(struct zr_module_pass *pass, unsigned product);
    zr_result (*multiply_back)(struct zr_module_pass *pass, unsigned product);
    zr_result (*go_back)(struct zr_module_pass *pass, unsigned product);
};

/* Fills types, slots, units, modules, inputs, prepare. The lists have room for all of them. */
struct zr_architecture_table {
    const char *name;
    /* Units and parameters besides those of blocks, and of each block, at most, so that its tiles together
     * have no more than that for each of them. */
    unsigned units, parameters, block_parameters;
    struct zr_block_product products[ZR_BLOCK_PRODUCTS];
    struct zr_block_steps block;
    bool turned; /* its matrices are [out, in] */
    void (*describe)(struct zr_transformer *transformer);
    double (*elements)(const struct zr_shape *shape);
    double (*block_flops)(const struct zr_shape *shape); /* forward, per row */
};
extern const struct zr_architecture_table zr_architecture_gpt2, zr_architecture_llama;
const struct zr_architecture_table *zr_shape_table(const struct zr_shape *shape);

/* What this tensor rank has of the vocabulary: rows of the embedding and of the head. */
struct zr_vocabulary_share {
    size_t first, rows; /* the same number on each rank; those beyond the whole are padding */
    size_t columns;     /* of them, entries that can be predicted */
};
struct zr_vocabulary_share zr_shape_vocabulary(const struct zr_shape *shape);
/* Of that a tile. Tiles differ by a row. */
struct zr_vocabulary_share zr_shape_vocabulary_tile(const struct zr_shape *shape, unsigned tile);

/* The slot for attention's probabilities, without columns where backward does not read them. */
struct zr_slot zr_slot_probabilities(const struct zr_transformer *transformer, const char *name);

/* The type of the head of every architecture: linear to logits, softmax and cross-entropy. Its unit's first
 * parameter is [vocabulary_padded, hidden]. */
void zr_transformer_add_head(struct zr_transformer *transformer);

/* The shape of the model that a pass is of. */
static inline const struct zr_shape *zr_pass_shape(const struct zr_module_pass *pass)
{
    return pass->model->shape;
}
/* A pass is of a whole module, or of a tile; and forward or backward. */
static inline unsigned zr_pass_tile(const struct zr_module_pass *pass)
{
    return pass->part % zr_shape_tiles(zr_pass_shape(pass));
}
bool zr_pass_is_whole(const struct zr_module_pass *pass);
static inline bool zr_pass_is_backward(const struct zr_module_pass *pass)
{
    return pass->dx || pass->dy;
}
/* It is the first / the last of a product's tiles to run, or all. Backward goes from the last tile to the
 * first. */
bool zr_pass_opens(const struct zr_module_pass *pass);
bool zr_pass_closes(const struct zr_module_pass *pass);
/* Forward and backward of a block. */
zr_result zr_pass_block(struct zr_module_pass *pass);
zr_result zr_pass_block_backward(struct zr_module_pass *pass);
/* Where a tensor of a block's table is in pass->parameters[0] and in its gradients. */
unsigned zr_pass_parameter(const struct zr_module_pass *pass, unsigned tensor);
/* Makes a product that of the tile: its columns of y, at the address that comes back for the first of all. */
void *zr_pass_columns(const struct zr_module_pass *pass, struct zr_linear *linear, const void *y);
/* What the pass has of the vocabulary. */
struct zr_vocabulary_share zr_pass_vocabulary(const struct zr_module_pass *pass);

/* The first module of every architecture begins with y and the gradient of the first parameter of its first
 * unit, [vocabulary_padded, hidden], by the tokens. `slot` is of rows that are all here: see below. */
zr_result zr_pass_embed(struct zr_module_pass *pass, unsigned slot);
zr_result zr_pass_embed_backward(struct zr_module_pass *pass, unsigned slot);
/* Attention of the heads that this tensor rank has. */
static inline struct zr_attention zr_pass_attention(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    size_t tensor = zr_shape_tensor(shape);
    return (struct zr_attention){.batch = pass->rows / shape->sequence,
                                 .sequence = shape->sequence,
                                 .channels = shape->hidden / tensor,
                                 .heads = shape->heads / tensor,
                                 .kv_heads = shape->kv_heads / tensor};
}

/* ---- Between tensor ranks ------------------------------------------------------------------------------ */

/* A module multiplies all rows by its share of the matrices. Under sequence parallelism, norms and residuals
 * have this rank's rows alone: before such products the rows of all ranks are gathered into a temporary slot,
 * and the products' sums over the ranks are divided by rows again. Without it all rows are here, and sums are
 * made in place. With one tensor rank all of this does nothing. Rows have `hidden` elements. */

/* *all: all rows of what `own` has this rank's rows of, until they are dropped. Tiles gather them once. */
zr_result zr_pass_all_rows(struct zr_module_pass *pass, const void *own, unsigned slot, const void **all);
void zr_pass_drop_rows(struct zr_module_pass *pass, unsigned slot);
/* Where a product writes all rows of a sum's part, of which this rank's rows are to be in `own`; then the
 * sum, under way until zr_pass_end_sum(), which drops the slot. Tiles share one sum. */
struct zr_pass_sum {
    void *own, *part;
    unsigned slot;
    zr_ticket ticket;
};
zr_result zr_pass_open_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum, void *own, unsigned slot);
zr_result zr_pass_start_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum);
zr_result zr_pass_end_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum);
/* Both at once, where nothing is to be done meanwhile. */
zr_result zr_pass_close_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum);
/* The bias of a product whose parts are added: it counts once. */
static inline const void *zr_pass_bias_once(const struct zr_module_pass *pass, const void *bias)
{
    return zr_pass_shape(pass)->tensor_rank == 0 ? bias : NULL;
}
/* Whether products that end in a residual path add the residual: their sums are all here. */
static inline bool zr_pass_adds_in_product(const struct zr_module_pass *pass)
{
    return zr_pass_is_whole(pass) && zr_shape_tensor(zr_pass_shape(pass)) == 1 &&
           pass->kernels->linear_residual_forward;
}
/* The slot for all rows; without sequence parallelism it is not there. */
struct zr_slot zr_slot_all_rows(const struct zr_shape *shape, const char *name);

#endif
