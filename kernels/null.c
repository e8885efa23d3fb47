/* null.c: a table that computes nothing. Plans run the engine with it on the sim backend, whose addresses
 * must not be accessed. Its workspace is that of the CPU or CUDA table, so that a plan needs the same memory.
 *
 * If the context has `flops`, the FLOPs of matrix products are counted: 2 m n k for [m, k] x [k, n], and the
 * whole square of scores in attention, as in Narayanan et al. (Efficient Large-Scale Language Model Training
 * on GPU Clusters Using Megatron-LM, 2021, section 5.1). Elementwise operations (norms, GELU, sums,
 * optimizers) are not counted. */
#include "kernels/cpu/context.h"
#include "kernels/optimizers.h"
#include "kernels/sizes.h"

static double linear(const struct zr_linear *s)
{
    return 2 * (double)s->rows * (double)s->in * (double)s->out;
}

static double linear_back(const struct zr_linear_backward *args)
{
    return ((args->dx != NULL) + (args->dw != NULL)) * linear(&args->shape);
}

static double attention(const struct zr_attention *s)
{
    return 2 * (double)s->batch * (double)s->sequence * (double)s->channels * (double)s->sequence;
}

/* Three products in each iteration. */
static double orthogonal(const struct zr_orthogonalize *args)
{
    double rows = (double)args->rows, columns = (double)args->columns, side = rows < columns ? rows : columns;
    return ZR_MUON_ITERATIONS * (4 * side * rows * columns + 2 * side * side * side);
}

/* Operations and their FLOPs. */
#define OPERATIONS(OP)                                                                                       \
    OP(embedding_forward, 0)                                                                                 \
    OP(embedding_backward, 0)                                                                                \
    OP(positions_forward, 0)                                                                                 \
    OP(positions_backward, 0)                                                                                \
    OP(layernorm_forward, 0)                                                                                 \
    OP(layernorm_backward, 0)                                                                                \
    OP(rmsnorm_forward, 0)                                                                                   \
    OP(rmsnorm_backward, 0)                                                                                  \
    OP(linear_forward, linear(&args->shape))                                                                 \
    OP(linear_backward, linear_back(args))                                                                   \
    OP(rotary_table, 0)                                                                                      \
    OP(rotary, 0)                                                                                            \
    OP(attention_forward, 2 * attention(&args->shape)) /* scores, and sums of values */                      \
    OP(attention_backward,                                                                                   \
       (args->p ? 4 : 5) * attention(&args->shape)) /* two for each, and recomputed scores */                \
    OP(gelu_forward, 0)                                                                                      \
    OP(gelu_backward, 0)                                                                                     \
    OP(swiglu_forward, 0)                                                                                    \
    OP(swiglu_backward, 0)                                                                                   \
    OP(dropout, 0)                                                                                           \
    OP(average, 0)                                                                                           \
    OP(outer_step, 0)                                                                                        \
    OP(add, 0)                                                                                               \
    OP(cross_entropy, 0)                                                                                     \
    OP(softmax_merge, 0)                                                                                     \
    OP(residual_layernorm, 0)                                                                                \
    OP(residual_rmsnorm, 0)                                                                                  \
    OP(gelu_bias_backward, 0)                                                                                \
    OP(linear_gelu_forward, linear(&args->linear.shape))                                                     \
    OP(linear_residual_forward, linear(&args->linear.shape))                                                 \
    OP(linear_gelu_backward, linear_back(&args->linear))                                                     \
    OP(weigh_gradients, 0)                                                                                   \
    OP(update_adamw, 0)                                                                                      \
    OP(update_sgd, 0)                                                                                        \
    OP(update_adamw8, 0)                                                                                     \
    OP(block8_read, 0)                                                                                       \
    OP(block8_write, 0)                                                                                      \
    OP(factor_sums, 0)                                                                                       \
    OP(factor_moments, 0)                                                                                    \
    OP(factor_norm, 0)                                                                                       \
    OP(update_factored, 0)                                                                                   \
    OP(muon_direction, 0)                                                                                    \
    OP(orthogonalize, orthogonal(args))                                                                      \
    OP(apply_direction, 0)                                                                                   \
    OP(lamb_norms, 0)                                                                                        \
    OP(update_lamb, 0)                                                                                       \
    OP(sum_of_squares, 0)                                                                                    \
    OP(find_nonfinite, 0)                                                                                    \
    OP(checksum, 0)                                                                                          \
    OP(init_normal, 0)                                                                                       \
    OP(convert, 0)                                                                                           \
    OP(clear, 0)                                                                                             \
    OP(copy_bytes, 0)                                                                                        \
    OP(sum, 0)                                                                                               \
    OP(pack, 0)                                                                                              \
    OP(unpack, 0)

#define NOTHING(name, flops_taken)                                                                           \
    static zr_result name(struct zr_kernel_context *context, const struct zr_##name *args)                   \
    {                                                                                                        \
        (void)args;                                                                                          \
        if (context && context->flops)                                                                       \
            *context->flops += flops_taken;                                                                  \
        return ZR_OK;                                                                                        \
    }
OPERATIONS(NOTHING)

static zr_result open(struct zr_kernel_context *context)
{
    (void)context;
    return ZR_OK;
}

static void close(struct zr_kernel_context *context)
{
    (void)context;
}

static size_t cuda_workspace_bytes(const struct zr_kernel_limits *limits, enum zr_isa isa)
{
    return zr_kernels_cuda()->workspace_bytes(limits, isa);
}

#define SLOT(name, flops_taken) .name = name,
static const struct zr_kernels null_table = {.version = ZR_KERNELS_VERSION,
                                             .name = "null",
                                             .host_visible = true,
                                             .deterministic_sums = true,
                                             .reads_probabilities = true,
                                             .workspace_bytes = zr_cpu_workspace_bytes,
                                             .orthogonalize_bytes = zr_orthogonalize_bytes,
                                             .open = open,
                                             .close = close,
                                             OPERATIONS(SLOT)};
static const struct zr_kernels null_cuda = {.version = ZR_KERNELS_VERSION,
                                            .name = "null",
                                            .deterministic_sums = true,
                                            .narrow_logits = true,
                                            .workspace_bytes = cuda_workspace_bytes,
                                            .orthogonalize_bytes = zr_orthogonalize_bytes,
                                            .open = open,
                                            .close = close,
                                            OPERATIONS(SLOT)};

const struct zr_kernels *zr_kernels_null(void)
{
    return &null_table;
}

const struct zr_kernels *zr_kernels_null_of(const struct zr_kernels *table)
{
    return table->host_visible ? &null_table : &null_cuda;
}
