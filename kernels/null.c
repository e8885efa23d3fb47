/* null.c: the table that does nothing, for plans: the engine runs on the sim backend's made-up addresses with
 * it, and no byte is touched.
 *
 * Where the context asks for it, matrix products are counted, two floating-point operations per
 * multiplication: 2 m n k for [m, k] x [k, n], and whole squares of scores in attention, as Narayanan et al.
 * do (Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, 2021, section 5.1).
 * What goes element by element (norms, GELU, sums, the optimizer) counts as nothing beside them. */
#include "kernels/zr_kernels.h"

#define UNUSED __attribute__((unused))

/* `products` of rows x in x out multiplications. */
static void count(struct zr_kernel_context *c, double products, double rows, double in, double out)
{
    if (c->flops)
        *c->flops += 2 * products * rows * in * out;
}

static void count_attention(struct zr_kernel_context *c, const struct zr_attention *s, double products)
{
    count(c, products, (double)s->batch * (double)s->sequence, (double)s->channels, (double)s->sequence);
}

static void embedding_forward(struct zr_kernel_context *c UNUSED, const struct zr_embedding *s UNUSED,
                              const void *wte UNUSED, const void *wpe UNUSED, void *out UNUSED)
{
}

static void embedding_backward(struct zr_kernel_context *c UNUSED, const struct zr_embedding *s UNUSED,
                               const void *d UNUSED, void *dwte UNUSED, size_t wte_rows UNUSED,
                               void *dwpe UNUSED, size_t wpe_rows UNUSED, bool accumulate UNUSED)
{
}

static void layernorm_forward(struct zr_kernel_context *c UNUSED, const struct zr_layernorm *s UNUSED,
                              const void *x UNUSED, const void *w UNUSED, const void *b UNUSED,
                              void *y UNUSED, float *mean UNUSED, float *rstd UNUSED)
{
}

static void layernorm_backward(struct zr_kernel_context *c UNUSED, const struct zr_layernorm *s UNUSED,
                               const void *x UNUSED, const void *w UNUSED, const float *mean UNUSED,
                               const float *rstd UNUSED, const void *dy UNUSED, void *dx UNUSED,
                               bool accumulate_dx UNUSED, void *dw UNUSED, void *db UNUSED,
                               bool accumulate UNUSED)
{
}

static void linear_forward(struct zr_kernel_context *c, const struct zr_linear *s, const void *x UNUSED,
                           const void *w UNUSED, const void *bias UNUSED, void *y UNUSED)
{
    count(c, 1, (double)s->rows, (double)s->in, (double)s->out);
}

static void linear_backward(struct zr_kernel_context *c, const struct zr_linear *s, const void *x UNUSED,
                            const void *w UNUSED, const void *dy UNUSED, void *dx, void *dw, void *db UNUSED,
                            bool accumulate UNUSED)
{
    count(c, (dx != NULL) + (dw != NULL), (double)s->rows, (double)s->in, (double)s->out);
}

static void rmsnorm_forward(struct zr_kernel_context *c UNUSED, const struct zr_rmsnorm *args UNUSED)
{
}

static void rmsnorm_backward(struct zr_kernel_context *c UNUSED,
                             const struct zr_rmsnorm_backward *args UNUSED)
{
}

static void rotary_table(struct zr_kernel_context *c UNUSED, const struct zr_rotary_table *args UNUSED)
{
}

static void rotary(struct zr_kernel_context *c UNUSED, const struct zr_rotary *args UNUSED)
{
}

static void swiglu_forward(struct zr_kernel_context *c UNUSED, const struct zr_swiglu *args UNUSED)
{
}

static void swiglu_backward(struct zr_kernel_context *c UNUSED, const struct zr_swiglu_backward *args UNUSED)
{
}

static void attention_forward(struct zr_kernel_context *c, const struct zr_attention *s,
                              const void *qkv UNUSED, void *out UNUSED, float *lse UNUSED, void *p UNUSED)
{
    count_attention(c, s, 2); /* scores, and their sums of values */
}

static void attention_backward(struct zr_kernel_context *c, const struct zr_attention *s,
                               const void *qkv UNUSED, const void *out UNUSED, const float *lse UNUSED,
                               const void *p, const void *dout UNUSED, void *dqkv UNUSED)
{
    count_attention(c, s, p ? 4 : 5); /* two for each of them, and the scores once more */
}

static void gelu_forward(struct zr_kernel_context *c UNUSED, size_t n UNUSED, const void *x UNUSED,
                         void *y UNUSED)
{
}

static void gelu_backward(struct zr_kernel_context *c UNUSED, size_t n UNUSED, const void *x UNUSED,
                          const void *dy UNUSED, void *dx UNUSED)
{
}

static void add(struct zr_kernel_context *c UNUSED, size_t n UNUSED, const void *a UNUSED,
                const void *b UNUSED, void *out UNUSED)
{
}

static void head_loss(struct zr_kernel_context *c, const struct zr_head *s, const void *x UNUSED,
                      const void *wte UNUSED, float *losses UNUSED, float scale UNUSED, void *dx, void *dwte,
                      bool accumulate UNUSED)
{
    count(c, 1 + (dx != NULL) + (dwte != NULL), (double)s->rows, (double)s->channels,
          (double)s->vocabulary_padded);
}

static void head_logits(struct zr_kernel_context *c, const struct zr_head *s, const void *x_row UNUSED,
                        const void *wte UNUSED, float *logits UNUSED)
{
    count(c, 1, 1, (double)s->channels, (double)s->vocabulary_padded);
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

static void update_adamw(struct zr_kernel_context *c UNUSED, const struct zr_adamw *how UNUSED,
                         const struct zr_update *update UNUSED)
{
}

static void update_sgd(struct zr_kernel_context *c UNUSED, const struct zr_sgd *how UNUSED,
                       const struct zr_update *update UNUSED)
{
}

static double sum_of_squares_in(struct zr_kernel_context *c UNUSED, size_t n UNUSED,
                                struct zr_numbers x UNUSED)
{
    return 0.0;
}

static size_t find_nonfinite_in(struct zr_kernel_context *c UNUSED, size_t n, struct zr_numbers x UNUSED)
{
    return n;
}

static void convert(struct zr_kernel_context *c UNUSED, size_t n UNUSED, struct zr_numbers from UNUSED,
                    struct zr_numbers to UNUSED)
{
}

static void clear(struct zr_kernel_context *c UNUSED, size_t bytes UNUSED, void *to UNUSED)
{
}

static uint64_t checksum(struct zr_kernel_context *c UNUSED, size_t bytes UNUSED, const void *data UNUSED)
{
    return 0;
}

static void sum_in_order(size_t n UNUSED, const float *const *from UNUSED, unsigned count UNUSED,
                         float scale UNUSED, float *to UNUSED, bool accumulate UNUSED)
{
}

static void sum_numbers_in_order(const struct zr_sum *sum UNUSED)
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
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward = rmsnorm_backward,
    .rotary_table = rotary_table,
    .rotary = rotary,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
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
    .update_adamw = update_adamw,
    .update_sgd = update_sgd,
    .sum_of_squares_in = sum_of_squares_in,
    .find_nonfinite_in = find_nonfinite_in,
    .convert = convert,
    .clear = clear,
    .checksum = checksum,
    .sum_in_order = sum_in_order,
    .sum_numbers_in_order = sum_numbers_in_order,
};

const struct zr_kernels *zr_kernels_null(void)
{
    return &null_table;
}
