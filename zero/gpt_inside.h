/* gpt_inside.h: what the files of the GPT model share (gpt_shape.c, gpt.c, gpt_block.c). */
#ifndef ZR_GPT_INSIDE_H
#define ZR_GPT_INSIDE_H

#include "zero/gpt.h"
#include "zero/comm/take.h"

enum { GPT_WTE = 0, GPT_WPE, GPT_EMBEDDINGS };

/* The parameters of a block, in the order of the list. */
enum {
    GPT_LN1_W,
    GPT_LN1_B,
    GPT_QKV_W,
    GPT_QKV_B,
    GPT_PROJ_W,
    GPT_PROJ_B,
    GPT_LN2_W,
    GPT_LN2_B,
    GPT_FC_W,
    GPT_FC_B,
    GPT_FC2_W,
    GPT_FC2_B,
    GPT_BLOCK_PARAMETERS
};

/* What a block keeps from forward to backward, [rows, ...] each, besides its input. */
enum gpt_slot {
    SLOT_LN1,
    SLOT_LN1_MEAN,
    SLOT_LN1_RSTD,
    SLOT_QKV,
    SLOT_LSE,
    SLOT_PROBABILITIES,
    SLOT_ATTENTION,
    SLOT_MIDDLE,
    SLOT_LN2,
    SLOT_LN2_MEAN,
    SLOT_LN2_RSTD,
    SLOT_FC,
    SLOT_GELU,
    SLOT_COUNT
};

struct gpt_block_activations {
    void *slot[SLOT_COUNT]; /* in the engine's precision, but for means, deviations and log-sums: floats */
};

/* Temporary tensors of a pass; one table, so that whatever a failing pass holds is dropped in one place. */
enum gpt_scratch {
    SCRATCH_FINAL,
    SCRATCH_FINAL_MEAN,
    SCRATCH_FINAL_RSTD,
    SCRATCH_D_FINAL,
    SCRATCH_D,
    SCRATCH_D_WIDE,
    SCRATCH_D_QKV,
    SCRATCH_D_NORM,
    SCRATCH_COUNT
};

struct zr_gpt {
    struct zr_gpt_options options;
    int32_t *tokens, *targets; /* [batch, sequence] */
    float *losses;             /* [batch, sequence] */
    void **inputs;             /* [layers + 1]: the input of each block, and of ln_f; tag checkpoint */
    struct gpt_block_activations *blocks; /* [layers] */
    void *scratch[SCRATCH_COUNT];
    size_t element_bytes; /* of activations, parameters and gradients */
    size_t batch;         /* sequences of the pass under way */
    bool dry;
    bool inspect; /* look at every result for a value that is not finite */
};

static inline size_t gpt_rows(const struct zr_gpt *model)
{
    return model->batch * model->options.shape.sequence;
}

/* Rows that blocks have room for: a smaller batch has the blocks, and so the places, of a whole one. */
static inline size_t gpt_room_rows(const struct zr_gpt *model)
{
    return model->options.shape.batch * model->options.shape.sequence;
}

/* Elements of the engine's precision; floats, whatever that is. */
#define gpt_take(model, tag, elements, out)                                                                  \
    zr_take((model)->options.arena, tag, elements, (model)->element_bytes, out)
#define gpt_take_floats(model, elements, out)                                                                \
    zr_take((model)->options.arena, ZR_TAG_ACTIVATION, elements, sizeof(float), out)

/* Of what the arena's tag limits refuse: of which layer it was. */
static inline zr_result gpt_name_layer(zr_result result, size_t layer)
{
    return result == ZR_ERR_TAG_LIMIT ? zr_fail(result, "layer %zu, %s", layer, zr_last_error()) : result;
}

/* Parameter number `parameter` in its unit at `base`, or its gradient. */
static inline void *gpt_at(const struct zr_gpt *model, const void *base, size_t parameter)
{
    return (char *)base + zr_engine_offset(model->options.engine, parameter) * model->element_bytes;
}

/* When inspecting: ZR_ERR_CORRUPT with words where the first value that is not finite lies, else ZR_OK.
 * `layer` SIZE_MAX: outside the blocks. */
zr_result gpt_inspect(struct zr_gpt *model, size_t layer, const char *what, const void *values,
                      size_t columns);

/* Takes the activations of a block and runs it forward. `output` NULL: only what backward needs (recompute).
 */
zr_result gpt_block_forward(struct zr_gpt *model, size_t layer, void *output);
/* Runs a block backward: `d` [rows, C], the gradient of its output, becomes that of its input. Hands the
 * block's gradients to the engine; the caller drops the activations. */
zr_result gpt_block_backward(struct zr_gpt *model, size_t layer, void *d);
void gpt_block_drop(struct zr_gpt *model, size_t layer);

#endif
