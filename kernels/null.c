/* null.c: the table that does nothing, for plans: the engine runs on the sim backend's made-up addresses with
 * it, and no byte is touched. */
#include "kernels/zr_kernels.h"

#define UNUSED __attribute__((unused))

static void embedding_forward(struct zr_kernel_context *c UNUSED, const struct zr_embedding *s UNUSED,
                              const float *wte UNUSED, const float *wpe UNUSED, float *out UNUSED)
{
}

static void embedding_backward(struct zr_kernel_context *c UNUSED, const struct zr_embedding *s UNUSED,
                               const float *d UNUSED, float *dwte UNUSED, size_t wte_rows UNUSED,
                               float *dwpe UNUSED, size_t wpe_rows UNUSED, bool accumulate UNUSED)
{
}

static void layernorm_forward(struct zr_kernel_context *c UNUSED, const struct zr_layernorm *s UNUSED,
                              const float *x UNUSED, const float *w UNUSED, const float *b UNUSED,
                              float *y UNUSED, float *mean UNUSED, float *rstd UNUSED)
{
}

static void layernorm_backward(struct zr_kernel_context *c UNUSED, const struct zr_layernorm *s UNUSED,
                               const float *x UNUSED, const float *w UNUSED, const float *mean UNUSED,
                               const float *rstd UNUSED, const float *dy UNUSED, float *dx UNUSED,
                               bool accumulate_dx UNUSED, float *dw UNUSED, float *db UNUSED,
                               bool accumulate UNUSED)
{
}

static void linear_forward(struct zr_kernel_context *c UNUSED, const struct zr_linear *s UNUSED,
                           const float *x UNUSED, const float *w UNUSED, const float *bias UNUSED,
                           float *y UNUSED)
{
}

static void linear_backward(struct zr_kernel_context *c UNUSED, const struct zr_linear *s UNUSED,
                            const float *x UNUSED, const float *w UNUSED, const float *dy UNUSED,
                            float *dx UNUSED, float *dw UNUSED, float *db UNUSED, bool accumulate UNUSED)
{
}

static void attention_forward(struct zr_kernel_context *c UNUSED, const struct zr_attention *s UNUSED,
                              const float *qkv UNUSED, float *out UNUSED, float *lse UNUSED, float *p UNUSED)
{
}

static void attention_backward(struct zr_kernel_context *c UNUSED, const struct zr_attention *s UNUSED,
                               const float *qkv UNUSED, const float *out UNUSED, const float *lse UNUSED,
                               const float *p UNUSED, const float *dout UNUSED, float *dqkv UNUSED)
{
}

static void gelu_forward(struct zr_kernel_context *c UNUSED, size_t n UNUSED, const float *x UNUSED,
                         float *y UNUSED)
{
}

static void gelu_backward(struct zr_kernel_context *c UNUSED, size_t n UNUSED, const float *x UNUSED,
                          const float *dy UNUSED, float *dx UNUSED)
{
}

static void add(struct zr_kernel_context *c UNUSED, size_t n UNUSED, const float *a UNUSED,
                const float *b UNUSED, float *out UNUSED)
{
}

static void head_loss(struct zr_kernel_context *c UNUSED, const struct zr_head *s UNUSED,
                      const float *x UNUSED, const float *wte UNUSED, float *losses UNUSED,
                      float scale UNUSED, float *dx UNUSED, float *dwte UNUSED, bool accumulate UNUSED)
{
}

static void head_logits(struct zr_kernel_context *c UNUSED, const struct zr_head *s UNUSED,
                        const float *x_row UNUSED, const float *wte UNUSED, float *logits UNUSED)
{
}

static void adamw(struct zr_kernel_context *c UNUSED, const struct zr_adamw *how UNUSED, size_t n UNUSED,
                  float *parameter UNUSED, const float *g UNUSED, float *momentum UNUSED,
                  float *variance UNUSED)
{
}

static double sum_of_squares(struct zr_kernel_context *c UNUSED, size_t n UNUSED, const float *x UNUSED)
{
    return 0.0;
}

static void init_normal(struct zr_kernel_context *c UNUSED, size_t n UNUSED, uint64_t seed UNUSED,
                        uint64_t first_index UNUSED, float mean UNUSED, float deviation UNUSED,
                        float *x UNUSED)
{
}

static void fill(struct zr_kernel_context *c UNUSED, size_t n UNUSED, float value UNUSED, float *x UNUSED)
{
}

static void copy(struct zr_kernel_context *c UNUSED, size_t bytes UNUSED, const void *from UNUSED,
                 void *to UNUSED)
{
}

static size_t find_nonfinite(struct zr_kernel_context *c UNUSED, size_t n, const float *x UNUSED)
{
    return n; /* nothing is wrong where nothing is */
}

static uint64_t checksum(struct zr_kernel_context *c UNUSED, size_t bytes UNUSED, const void *data UNUSED)
{
    return 0;
}

static void sum_in_order(size_t n UNUSED, const float *const *from UNUSED, unsigned count UNUSED,
                         float scale UNUSED, float *to UNUSED, bool accumulate UNUSED)
{
}

static const struct zr_kernels null_table = {
    .name = "null",
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .linear_forward = linear_forward,
    .linear_backward = linear_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .add = add,
    .head_loss = head_loss,
    .head_logits = head_logits,
    .adamw = adamw,
    .sum_of_squares = sum_of_squares,
    .init_normal = init_normal,
    .fill = fill,
    .copy = copy,
    .find_nonfinite = find_nonfinite,
    .checksum = checksum,
    .sum_in_order = sum_in_order,
};

const struct zr_kernels *zr_kernels_null(void)
{
    return &null_table;
}
