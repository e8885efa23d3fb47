/* bench_kernels.c: how fast the kernels are at GPT-2 124M's shape (4 x 64 tokens), operation by operation,
 * and what a whole training step's arithmetic adds up to. A plain measuring program: it prints medians and
 * never fails on time.
 *
 *   bench_kernels [threads [repeats [isa [precision [name]]]]]
 *
 * isa as enum zr_isa counts, -1 the best; precision fp32, bf16 or fp16; name: a part of the names of the
 * operations to run. The time of one thread is the processor's, which other programs lengthen less.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/zr_kernels.h"
#include "tests/support/kernels/kernels_calls.h"

enum { B = 4, T = 64, C = 768, A = 12, V = 50257, VP = 50304, LAYERS = 12, ROWS = B * T, WIDE = 4 * C };
enum { REPEATS_MAX = 101, THREADS_MAX = 64 };
#define PARAMETERS ((size_t)124475904) /* with the padded vocabulary */

static clockid_t clock_id = CLOCK_MONOTONIC;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Threads: they spin between operations ------------------------------------------------------------- */

static struct {
    unsigned threads;
    void (*task)(void *, unsigned, unsigned);
    void *argument;
    _Atomic unsigned round, done;
} pool;

/* Spins, and lets others run on a machine that is not quiet. */
static void pool_pause(unsigned spins)
{
    if (spins > 20000)
        sched_yield();
    else
        __builtin_ia32_pause();
}

static void *pool_main(void *argument)
{
    unsigned part = (unsigned)(uintptr_t)argument;
    for (unsigned seen = 0;; seen++) {
        for (unsigned spins = 0; pool.round == seen; spins++)
            pool_pause(spins);
        pool.task(pool.argument, part, pool.threads);
        pool.done++;
    }
    return NULL;
}

static void pool_run(void *state, void (*task)(void *, unsigned, unsigned), void *argument)
{
    (void)state;
    pool.task = task;
    pool.argument = argument;
    pool.done = 0;
    pool.round++;
    task(argument, 0, pool.threads);
    for (unsigned spins = 0; pool.done != pool.threads - 1; spins++)
        pool_pause(spins);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static const struct zr_kernels *kernels;
static struct zr_kernel_context context;

static float *tensor(size_t n)
{
    float *x = aligned_alloc(64, (n * sizeof *x + 63) / 64 * 64);
    if (x == NULL) {
        fprintf(stderr, "bench_kernels: no memory for %zu floats\n", n);
        exit(1);
    }
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((i * 2654435761u >> 8) & 0xffff) / 65536.0f - 0.5f;
    return x;
}

/* What the operations below work on; sizes at the 124M shape. */
static struct {
    float *x, *y, *w, *bias, *wide, *dwide, *qkv, *dqkv, *p, *lse, *wte, *dwte, *losses, *logits, *mean,
        *rstd, *dx, *dw;
    float *parameter, *gradient, *momentum, *variance; /* parameter: the master */
    void *small;                                       /* of the precision: what AdamW writes */
    int32_t *tokens;
    size_t adam_n;
    float *square[3]; /* 2048^3 */
} m;

/* ---- Operations ---------------------------------------------------------------------------------------- */

static void op_square(void)
{
    kernels->linear_forward(
        &context, &(struct zr_linear_forward){(struct zr_linear){.rows = 2048, .in = 2048, .out = 2048},
                                              m.square[0], m.square[1], NULL, m.square[2], false});
}
static const struct zr_linear qkv_shape = {.rows = ROWS, .in = C, .out = 3 * C},
                              proj_shape = {.rows = ROWS, .in = C, .out = C},
                              fc_shape = {.rows = ROWS, .in = C, .out = WIDE},
                              down_shape = {.rows = ROWS, .in = WIDE, .out = C};
static void op_qkv(void)
{
    kernels->linear_forward(&context,
                            &(struct zr_linear_forward){qkv_shape, m.x, m.w, m.bias, m.wide, false});
}
static void op_proj(void)
{
    kernels->linear_forward(&context, &(struct zr_linear_forward){proj_shape, m.x, m.w, m.bias, m.y, false});
}
static void op_fc(void)
{
    kernels->linear_forward(&context, &(struct zr_linear_forward){fc_shape, m.x, m.w, m.bias, m.wide, false});
}
static void op_down(void)
{
    kernels->linear_forward(&context,
                            &(struct zr_linear_forward){down_shape, m.wide, m.w, m.bias, m.y, false});
}
static void op_qkv_back(void)
{
    kernels->linear_backward(&context, &(struct zr_linear_backward){qkv_shape, m.x, m.w, m.dqkv, m.dx, m.dw,
                                                                    m.bias, false, false, false});
}
static void op_proj_back(void)
{
    kernels->linear_backward(&context, &(struct zr_linear_backward){proj_shape, m.x, m.w, m.y, m.dx, m.dw,
                                                                    m.bias, false, false, false});
}
static void op_fc_back(void)
{
    kernels->linear_backward(&context, &(struct zr_linear_backward){fc_shape, m.x, m.w, m.dwide, m.dx, m.dw,
                                                                    m.bias, false, false, false});
}
static void op_down_back(void)
{
    kernels->linear_backward(&context, &(struct zr_linear_backward){down_shape, m.wide, m.w, m.y, m.dwide,
                                                                    m.dw, m.bias, false, false, false});
}
static const struct zr_attention attention_shape = {.batch = B, .sequence = T, .channels = C, .heads = A},
                                 long_shape = {.batch = 1, .sequence = 1024, .channels = C, .heads = A};
static void op_attention(void)
{
    kernels->attention_forward(&context,
                               &(struct zr_attention_forward){attention_shape, m.qkv, m.y, m.lse, NULL});
}
static void op_attention_back(void)
{
    kernels->attention_backward(
        &context, &(struct zr_attention_backward){attention_shape, m.qkv, m.y, m.lse, NULL, m.x, m.dqkv});
}
static void op_long(void)
{
    kernels->attention_forward(&context, &(struct zr_attention_forward){long_shape, m.qkv, m.y, m.lse, NULL});
}
static void op_long_back(void)
{
    kernels->attention_backward(
        &context, &(struct zr_attention_backward){long_shape, m.qkv, m.y, m.lse, NULL, m.x, m.dqkv});
}
static const struct zr_layernorm norm_shape = {ROWS, C, 0};
static void op_norm(void)
{
    kernels->layernorm_forward(
        &context, &(struct zr_layernorm_forward){norm_shape, m.x, m.w, m.bias, m.y, m.mean, m.rstd});
}
static void op_norm_back(void)
{
    kernels->layernorm_backward(&context,
                                &(struct zr_layernorm_backward){norm_shape, m.x, m.w, m.mean, m.rstd, m.y,
                                                                m.dx, m.dw, m.bias, true, false});
}
static void op_gelu(void)
{
    kernels->gelu_forward(&context,
                          &(struct zr_gelu_forward){(size_t)ROWS * WIDE, m.wide, m.dwide, ZR_GELU_TANH});
}
static void op_gelu_back(void)
{
    kernels->gelu_backward(
        &context, &(struct zr_gelu_backward){(size_t)ROWS * WIDE, m.wide, m.qkv, m.dwide, ZR_GELU_TANH});
}
static struct zr_add residual_add(void)
{
    return (struct zr_add){(size_t)ROWS * C, m.x, m.y, m.y};
}
static void op_residual(void)
{
    const struct zr_add add = residual_add();
    kernels->residual_layernorm(
        &context, &(struct zr_residual_layernorm){
                      {norm_shape, NULL, m.w, m.bias, m.dx, m.mean, m.rstd}, add.a, add.b, add.out});
}
static void op_residual_apart(void)
{
    const struct zr_add add = residual_add();
    kernels->add(&context, &add);
    kernels->layernorm_forward(
        &context, &(struct zr_layernorm_forward){norm_shape, m.y, m.w, m.bias, m.dx, m.mean, m.rstd});
}
static void op_gelu_bias(void)
{
    kernels->gelu_bias_backward(
        &context, &(struct zr_gelu_bias_backward){ROWS, WIDE, m.wide, m.qkv, m.dwide, m.bias, false});
}
static void op_gelu_bias_apart(void)
{
    op_gelu_back();
    kernels->linear_backward(&context,
                             &(struct zr_linear_backward){.shape = fc_shape, .dy = m.dwide, .db = m.bias});
}
static void op_add(void)
{
    kernels->add(&context, &(struct zr_add){(size_t)ROWS * C, m.x, m.y, m.dx});
}
static void head_of(void *dx)
{
    run_head(kernels, &context,
             &(struct head_call){.shape = {m.tokens, ROWS, C, V, VP},
                                 .x = m.x,
                                 .wte = m.wte,
                                 .losses = m.losses,
                                 .scale = 1.0f / ROWS,
                                 .dx = dx,
                                 .dwte = m.dwte,
                                 .logits = m.logits});
}
static void op_head(void)
{
    head_of(m.dx);
}
static void op_head_loss(void)
{
    head_of(NULL);
}
static void op_logits(void)
{
    kernels->linear_forward(
        &context, &(struct zr_linear_forward){
                      {.rows = 1, .in = C, .out = V, .turned = true}, m.x, m.wte, NULL, m.logits, true});
}
static const struct embedding_shape *embedding(void)
{
    static struct embedding_shape shape = {NULL, B, T, C};
    shape.tokens = m.tokens;
    return &shape;
}
static void op_embed(void)
{
    embed(kernels, &context, embedding(), m.wte, m.w, m.x);
}
static void op_embed_back(void)
{
    embed_backward(kernels, &context, embedding(), m.dx,
                   &(struct embedding_gradients){m.dwte, m.dw, VP, 1024, true});
}
static struct zr_numbers numbers(void *at)
{
    return (struct zr_numbers){at, context.precision};
}
static void op_adamw(void)
{
    struct zr_adamw how = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0.5f, 0.5f, NULL, NULL};
    kernels->update_adamw(&context,
                          &(struct zr_update_adamw){how, (struct zr_update){.n = m.adam_n,
                                                                            .gradient = numbers(m.gradient),
                                                                            .master = m.parameter,
                                                                            .momentum = m.momentum,
                                                                            .variance = m.variance,
                                                                            .parameter = numbers(m.small)}});
}
static volatile double sink;
static void op_squares(void)
{
    sink = squares_of(kernels, &context, m.adam_n, numbers(m.gradient));
}
static void op_checksum(void)
{
    sink = (double)checksum_of(kernels, &context, m.adam_n * sizeof(float), m.gradient);
}
static void op_nonfinite(void)
{
    sink = (double)nonfinite_of(kernels, &context, m.adam_n, numbers(m.gradient));
}
static void op_copy(void)
{
    kernels->convert(
        &context,
        &(struct zr_convert){m.adam_n, {m.gradient, ZR_PRECISION_FP32}, {m.momentum, ZR_PRECISION_FP32}});
}
static void op_sum2(void)
{
    const void *from[2] = {m.gradient, m.small != NULL ? m.small : m.momentum};
    kernels->sum(NULL, &(struct zr_sum){.n = m.adam_n / 4,
                                        .from = from,
                                        .count = 2,
                                        .precision = context.precision,
                                        .scale = 0.5f,
                                        .to = numbers(m.variance)});
}
static void op_normal(void)
{
    kernels->init_normal(&context, &(struct zr_init_normal){m.adam_n / 16, 1, 0, 0.0f, 0.02f, m.variance});
}
static void op_narrow(void)
{
    kernels->convert(&context,
                     &(struct zr_convert){m.adam_n, (struct zr_numbers){m.parameter, ZR_PRECISION_FP32},
                                          (struct zr_numbers){m.gradient, ZR_PRECISION_BF16}});
}
static void op_widen(void)
{
    kernels->convert(&context,
                     &(struct zr_convert){m.adam_n, (struct zr_numbers){m.gradient, ZR_PRECISION_BF16},
                                          (struct zr_numbers){m.parameter, ZR_PRECISION_FP32}});
}

/* Numbers are floats. Their errors lie in m.momentum, packed numbers in m.variance. */
static void pack(enum zr_packing packing, float *errors)
{
    kernels->pack(&context, &(struct zr_pack){.packing = packing,
                                              .n = m.adam_n,
                                              .from = numbers(m.parameter),
                                              .error = errors,
                                              .to = m.variance});
}
static void unpack(enum zr_packing packing)
{
    const void *from = m.variance;
    kernels->unpack(&context,
                    &(struct zr_unpack){packing, m.adam_n, &from, 1, 1, false, numbers(m.gradient)});
}
#define PACKING(name, packing)                                                                               \
    static void op_pack_##name(void)                                                                         \
    {                                                                                                        \
        pack(packing, NULL);                                                                                 \
    }                                                                                                        \
    static void op_feed_##name(void)                                                                         \
    {                                                                                                        \
        pack(packing, m.momentum);                                                                           \
    }                                                                                                        \
    static void op_unpack_##name(void)                                                                       \
    {                                                                                                        \
        unpack(packing);                                                                                     \
    }
PACKING(onebit, ZR_PACKING_ONEBIT)
PACKING(int8, ZR_PACKING_INT8)
PACKING(int4, ZR_PACKING_INT4)
PACKING(rotated, ZR_PACKING_INT4_ROTATED)
PACKING(mxfp8, ZR_PACKING_MXFP8)

static double packed(enum zr_packing packing)
{
    return (double)zr_pack_bytes(packing, m.adam_n);
}

struct operation {
    const char *name;
    void (*run)(void);
    double work; /* floating-point operations, or bytes */
    bool flops;
    double per_step; /* how often a training step runs it */
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_s(void (*run)(void), unsigned repeats)
{
    double seconds[REPEATS_MAX];
    run();
    for (unsigned r = 0; r < repeats; r++) {
        double start = now_s();
        run();
        seconds[r] = now_s() - start;
    }
    qsort(seconds, repeats, sizeof seconds[0], ascending);
    return seconds[repeats / 2];
}

static void prepare(void)
{
    size_t wide = (size_t)ROWS * WIDE;
    m.adam_n = PARAMETERS / 4; /* beyond the caches; a step does four of them */
    m.x = tensor(1024 * C), m.y = tensor(1024 * C), m.w = tensor((size_t)C * WIDE), m.bias = tensor(WIDE);
    m.wide = tensor(wide), m.dwide = tensor(wide), m.dw = tensor((size_t)C * WIDE), m.dx = tensor(1024 * C);
    m.qkv = tensor((size_t)1024 * 3 * C), m.dqkv = tensor((size_t)1024 * 3 * C), m.lse = tensor(A * 1024);
    m.wte = tensor((size_t)VP * C), m.dwte = tensor((size_t)VP * C), m.logits = tensor((size_t)ROWS * VP);
    m.losses = tensor(ROWS);
    m.mean = tensor(ROWS), m.rstd = tensor(ROWS);
    m.parameter = tensor(m.adam_n), m.gradient = tensor(m.adam_n), m.momentum = tensor(m.adam_n);
    m.variance = tensor(m.adam_n);
    m.tokens = (int32_t *)tensor(ROWS);
    for (size_t i = 0; i < ROWS; i++)
        m.tokens[i] = (int32_t)(i * 7919 % V);
    for (size_t i = 0; i < m.adam_n; i++)
        m.variance[i] += 0.5f;
    for (int i = 0; i < 3; i++)
        m.square[i] = tensor(2048 * 2048);
}

/* Rounds the model's tensors where they lie. */
static void narrow(void)
{
    size_t wide = (size_t)ROWS * WIDE, qkv = (size_t)1024 * 3 * C;
    const struct {
        float *at;
        size_t n;
    } all[] = {{m.x, 1024 * C},
               {m.y, 1024 * C},
               {m.w, (size_t)C * WIDE},
               {m.bias, WIDE},
               {m.wide, wide},
               {m.dwide, wide},
               {m.dx, 1024 * C},
               {m.dw, (size_t)C * WIDE},
               {m.qkv, qkv},
               {m.dqkv, qkv},
               {m.wte, (size_t)VP * C},
               {m.gradient, m.adam_n},
               {m.square[0], 2048 * 2048},
               {m.square[1], 2048 * 2048}};
    float *aside = tensor(m.adam_n > (size_t)VP * C ? m.adam_n : (size_t)VP * C);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        memcpy(aside, all[i].at, all[i].n * sizeof(float));
        kernels->convert(&context,
                         &(struct zr_convert){all[i].n, (struct zr_numbers){aside, ZR_PRECISION_FP32},
                                              numbers(all[i].at)});
    }
    m.small = aside;
}

int main(int argc, char **argv)
{
    unsigned repeats = argc > 2 ? (unsigned)atoi(argv[2]) : 11;
    pool.threads = argc > 1 ? (unsigned)atoi(argv[1]) : 2;
    context.isa = argc > 3 && atoi(argv[3]) >= 0 ? (enum zr_isa)atoi(argv[3]) : zr_isa_best();
    while (argc > 4 && context.precision < ZR_PRECISION_COUNT &&
           strcmp(argv[4], zr_precision_name(context.precision)) != 0)
        context.precision++;
    const char *name = argc > 5 ? argv[5] : "";
    if (pool.threads == 1)
        clock_id = CLOCK_THREAD_CPUTIME_ID;
    if (pool.threads < 1 || pool.threads > THREADS_MAX || repeats < 1 || repeats > REPEATS_MAX)
        return 2;
    for (unsigned t = 1; t < pool.threads; t++) {
        pthread_t handle;
        if (pthread_create(&handle, NULL, pool_main, (void *)(uintptr_t)t) != 0)
            return 1;
    }
    struct zr_kernel_limits limits = {2048, 1024, C, A, pool.threads, 0, 0};
    kernels = zr_kernels_cpu(context.isa);
    context.parallel = (struct zr_parallel){pool.threads, pool_run, NULL};
    context.workspace_bytes = kernels->workspace_bytes(&limits, context.isa);
    context.workspace = tensor(context.workspace_bytes / sizeof(float));
    if (kernels->open(&context) != ZR_OK) {
        fprintf(stderr, "bench_kernels: %s\n", zr_last_error());
        return 1;
    }
    prepare();
    if (context.precision != ZR_PRECISION_FP32)
        narrow();
    double size = (double)zr_precision_bytes(context.precision), share = size / 4;
    double block = 2.0 * ROWS * C, head = 2.0 * ROWS * C * VP, row = 4.0 * ROWS * C;
    double short_scores = 4.0 * B * A * T * T * (C / A) / 2,
           long_scores = 4.0 * A * 1024 * 1024 * (C / A) / 2;
    double bytes = 4.0 * (double)m.adam_n;
    const struct operation operations[] = {
        {"2048^3", op_square, 2.0 * 2048 * 2048 * 2048, true, 0},
        {"qkv", op_qkv, block * 3 * C, true, LAYERS},
        {"projection", op_proj, block * C, true, LAYERS},
        {"fc", op_fc, block * WIDE, true, LAYERS},
        {"fc projection", op_down, block * WIDE, true, LAYERS},
        {"qkv backward", op_qkv_back, 2 * block * 3 * C, true, LAYERS},
        {"projection backward", op_proj_back, 2 * block * C, true, LAYERS},
        {"fc backward", op_fc_back, 2 * block * WIDE, true, LAYERS},
        {"fc projection backward", op_down_back, 2 * block * WIDE, true, LAYERS},
        {"head and its gradients", op_head, 3 * head, true, 1},
        {"head, loss only", op_head_loss, head, true, 0},
        {"attention, 4 x 64", op_attention, short_scores, true, LAYERS},
        {"attention backward, 4 x 64", op_attention_back, 2.5 * short_scores, true, LAYERS},
        {"attention, 1 x 1024", op_long, long_scores, true, 0},
        {"attention backward, 1 x 1024", op_long_back, 2.5 * long_scores, true, 0},
        {"layer norm", op_norm, 2 * row * share, false, 2 * LAYERS + 1},
        {"layer norm backward", op_norm_back, 4 * row * share, false, 2 * LAYERS + 1},
        {"gelu", op_gelu, 8 * row * share, false, LAYERS},
        {"gelu backward", op_gelu_back, 12 * row * share, false, LAYERS},
        {"gelu and bias backward", op_gelu_bias, 12 * row * share, false, 0},
        {"the same in two", op_gelu_bias_apart, 16 * row * share, false, 0},
        {"residual and norm", op_residual, 4 * row * share, false, 0},
        {"the same in two", op_residual_apart, 5 * row * share, false, 0},
        {"add", op_add, 3 * row * share, false, 2 * LAYERS},
        {"embedding", op_embed, 3 * row * share, false, 1},
        {"embedding backward", op_embed_back, 4 * row * share, false, 1},
        {"one row of logits", op_logits, size * V * C, false, 0},
        {"adamw", op_adamw, (share < 1 ? 6 + 2 * share : 7) * bytes, false, 4},
        {"sum of squares", op_squares, share * bytes, false, 4},
        {"checksum", op_checksum, bytes, false, 0},
        {"find nonfinite", op_nonfinite, share * bytes, false, 0},
        {"copy", op_copy, 2 * bytes, false, 0},
        {"sum of 2 in order (1 thread)", op_sum2, 3 * share * bytes / 4, false, 0},
        {"init normal", op_normal, bytes / 16, false, 0},
        {"bf16 from float", op_narrow, 1.5 * bytes, false, 0},
        {"float from bf16", op_widen, 1.5 * bytes, false, 0},
        {"onebit", op_pack_onebit, bytes + packed(ZR_PACKING_ONEBIT), false, 0},
        {"onebit, error fed back", op_feed_onebit, 3 * bytes + packed(ZR_PACKING_ONEBIT), false, 0},
        {"onebit unpacked", op_unpack_onebit, bytes + packed(ZR_PACKING_ONEBIT), false, 0},
        {"int8", op_pack_int8, bytes + packed(ZR_PACKING_INT8), false, 0},
        {"int8, error fed back", op_feed_int8, 3 * bytes + packed(ZR_PACKING_INT8), false, 0},
        {"int8 unpacked", op_unpack_int8, bytes + packed(ZR_PACKING_INT8), false, 0},
        {"int4", op_pack_int4, bytes + packed(ZR_PACKING_INT4), false, 0},
        {"int4, error fed back", op_feed_int4, 3 * bytes + packed(ZR_PACKING_INT4), false, 0},
        {"int4 unpacked", op_unpack_int4, bytes + packed(ZR_PACKING_INT4), false, 0},
        {"int4_rotated", op_pack_rotated, bytes + packed(ZR_PACKING_INT4_ROTATED), false, 0},
        {"int4_rotated, error fed back", op_feed_rotated, 3 * bytes + packed(ZR_PACKING_INT4_ROTATED), false,
         0},
        {"int4_rotated unpacked", op_unpack_rotated, bytes + packed(ZR_PACKING_INT4_ROTATED), false, 0},
        {"mxfp8", op_pack_mxfp8, bytes + packed(ZR_PACKING_MXFP8), false, 0},
        {"mxfp8, error fed back", op_feed_mxfp8, 3 * bytes + packed(ZR_PACKING_MXFP8), false, 0},
        {"mxfp8 unpacked", op_unpack_mxfp8, bytes + packed(ZR_PACKING_MXFP8), false, 0},
    };
    double peak = 0, sum = 0, matrix = 0, least = 0;
    printf("%s, %s, %u threads, medians of %u\n%-30s %10s %10s %8s %10s\n", zr_isa_name(context.isa),
           zr_precision_name(context.precision), pool.threads, repeats, "operation", "ms", "rate", "of peak",
           "ms a step");
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        const struct operation *o = &operations[i];
        if (!strstr(o->name, name))
            continue;
        double seconds = median_s(o->run, repeats), rate = o->work / seconds * 1e-9;
        peak = i == 0 ? rate : peak;
        sum += seconds * o->per_step;
        matrix += o->flops ? seconds * o->per_step : 0;
        least += o->flops ? o->work * o->per_step / (peak * 1e9) : 0;
        printf("%-30s %10.3f %6.1f %s", o->name, seconds * 1e3, rate, o->flops ? "GF" : "GB");
        if (o->flops)
            printf(" %7.0f%%", rate / peak * 100);
        else
            printf(" %8s", "");
        printf(" %10.2f\n", seconds * o->per_step * 1e3);
    }
    if (!*name)
        printf(
            "a step of %d tokens: %.1f ms, %.0f tokens/s; matrix products and attention %.1f ms (%.0f%% of "
            "the peak)\n",
            ROWS, sum * 1e3, ROWS / sum, matrix * 1e3, least / matrix * 100);
    kernels->close(&context);
    return 0;
}
