/* zr_kernels.h: the arithmetic of GPT-2, forward and backward, behind one table of operations.
 *
 * The kernels allocate nothing, start no thread and hold no state but the context: memory, scratch and
 * threads come from the caller. All tensors are dense, row-major, aligned to 64 bytes at their start. Results
 * depend on the instruction set and the precision alone, never on the number of threads, on addresses or on
 * timing. A `bool accumulate` adds to the output instead of overwriting it.
 *
 * Precision. The context says what the model's tensors are made of (`precision`: fp32, bf16 or fp16), and
 * `void *` parameters of the operations point to such elements: parameters, activations and gradients. What
 * is a float stays one at every precision: means, log-sums, losses, logits for sampling, master weights,
 * momentum and variance. Two-byte operations compute in floats (products add up in floats) and round to
 * nearest even once, when they store. Inside two of them more is rounded: attention's probabilities, as if
 * they had been kept, and the gradient of the head's logits. NaN stays NaN; fp16 keeps its denormals, and
 * becomes infinite from 65,520 on, so that a caller who scales its loss sees the overflow in the gradients'
 * norm or by find_nonfinite_in(). Arithmetic takes a float's denormals, and so bf16's, for zero; conversions
 * keep them. Operations on the engine's state work on what they are told (`struct zr_numbers`), whatever the
 * context's precision.
 *
 * Shapes: B sequences, T tokens each, C channels, A heads of D = C / A, rows = B * T, V vocabulary entries of
 * Vp stored rows (Vp >= V; the rows from V on are padding, never predicted, with zero gradient). */
#ifndef ZR_KERNELS_H
#define ZR_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ZR_API /* alloc/zr.h says the same; nothing here stands on it */
#if defined(__GNUC__)
#define ZR_API __attribute__((visibility("default")))
#else
#define ZR_API
#endif
#endif

enum zr_precision { ZR_PRECISION_FP32 = 0, ZR_PRECISION_BF16, ZR_PRECISION_FP16, ZR_PRECISION_COUNT };
ZR_API const char *zr_precision_name(enum zr_precision precision); /* "fp32", "bf16", "fp16" */
ZR_API size_t zr_precision_bytes(enum zr_precision precision);     /* of one element: 4, 2, 2 */

/* Numbers of one kind; the function that takes it says how many. */
struct zr_numbers {
    void *at; /* read only unless said otherwise */
    enum zr_precision precision;
};

/* Threads lent by the caller. run() calls task(argument, part, threads) once for every part in [0, threads),
 * concurrently, and returns when all have ended. threads == 1 may have run == NULL. */
struct zr_parallel {
    unsigned threads;
    void (*run)(void *state, void (*task)(void *argument, unsigned part, unsigned parts), void *argument);
    void *state;
};

/* Each has all of those before it. In fp32 and fp16 the last three give the same bits. */
enum zr_isa { ZR_ISA_PLAIN = 0, ZR_ISA_AVX2, ZR_ISA_AVX512, ZR_ISA_AVX512_BF16, ZR_ISA_AMX, ZR_ISA_COUNT };
ZR_API const char *zr_isa_name(enum zr_isa isa); /* "plain", "avx2", "avx512", "avx512_bf16", "amx" */
/* The best that this processor and its system have. Where there is AMX, asks the system to let this process
 * and its children use it. */
ZR_API enum zr_isa zr_isa_best(void);

/* The largest problem a context will be asked to do; sizes its scratch. */
struct zr_kernel_limits {
    size_t rows;       /* B * T */
    size_t sequence;   /* T */
    size_t channels;   /* C */
    size_t heads;      /* A */
    size_t wide;       /* the widest linear layer, 4 C for GPT-2 */
    size_t vocabulary; /* Vp */
    unsigned threads;
};

struct zr_kernel_context {
    struct zr_parallel parallel;
    void *workspace; /* the caller's, at least zr_kernel_workspace_bytes(); tag workspace */
    size_t workspace_bytes;
    enum zr_isa isa;
    enum zr_precision precision; /* of the model's tensors */
    void *library;               /* the matrix library's own state */
    double *flops;               /* of the null table: it adds here what its operations would take; or NULL */
};

/* Scratch that any operation within `limits` may use at one time: depends on limits and isa only (it is the
 * same for every precision), so that a plan made without arithmetic knows it. Bounded: the head works on rows
 * in chunks of at most 64 MiB of logits.*/
ZR_API size_t zr_kernel_workspace_bytes(const struct zr_kernel_limits *limits, enum zr_isa isa);

/* Prepares / ends a context; `context` belongs to the caller, with parallel, workspace, workspace_bytes and
 * isa and precision set. 0 or -1 (the matrix library refused; zr_kernel_why() says why in words). Create it
 * after every fork, in the process that uses it. One thread at a time per context. */
ZR_API int zr_kernel_open(struct zr_kernel_context *context);
ZR_API void zr_kernel_close(struct zr_kernel_context *context);
ZR_API const char *zr_kernel_why(void);

/* fp32 products that the matrix library refused, and that the context did by itself: slower, and with other
 * last bits than the library's. */
struct zr_kernel_refusals {
    uint64_t count;
    size_t m, n, k; /* of the first: [m, k] x [k, n] */
};
/* All zero where there was none, and of a context that is not open. */
ZR_API struct zr_kernel_refusals zr_kernel_refusals(const struct zr_kernel_context *context);

struct zr_embedding {
    const int32_t *tokens; /* [B, T], each in [0, V) */
    size_t batch, sequence, channels;
};
struct zr_layernorm {
    size_t rows, channels; /* eps is 1e-5 */
};
struct zr_linear { /* y[rows, out] = x[rows, in] w[in, out] + bias[out]: weights as GPT-2's Conv1D has them */
    size_t rows, in, out;
    bool turned;               /* w is stored [out, in], as torch.nn.Linear has it */
    size_t x_stride, y_stride; /* elements from row to row, of dx and dy too; 0: dense */
    bool accumulate_dx;        /* backward adds to dx */
};
struct zr_attention { /* causal, scaled by 1 / sqrt(D) */
    size_t batch, sequence, channels, heads;
    size_t kv_heads; /* K, which divides A: A / K heads of queries share one of keys and values; 0: A */
};
/* Root mean square norm: y = w x / sqrt(mean of x^2 + epsilon), by row; rstd [rows] is kept for backward. */
struct zr_rmsnorm {
    size_t rows, channels;
    float epsilon;
    const void *x, *w;
    void *y;
    float *rstd;
};
struct zr_rmsnorm_backward {
    size_t rows, channels;
    const void *x, *w, *dy;
    const float *rstd;
    void *dx; /* not dy; added to with accumulate_dx (the residual path) */
    void *dw; /* overwritten, or added to with accumulate */
    bool accumulate_dx, accumulate;
};
/* cosines and sines [T, D / 2] of t / theta^(2 i / D), for rotary(). */
struct zr_rotary_table {
    size_t sequence, width; /* T, D */
    double theta;
    float *cosines, *sines;
};
/* Turns the pairs (i, i + D / 2) of each head in place by the angle of its token: rotary position embedding
 * (Su et al., 2021) with the pairs as HF's LLaMA has them. Backward is the same with `inverse`. */
struct zr_rotary {
    size_t rows, sequence, heads, width; /* heads of D numbers lie side by side, from `x` on */
    size_t stride;                       /* elements from row to row */
    const float *cosines, *sines;        /* [T, D / 2] */
    void *x;
    bool inverse;
};
/* y = gate sigmoid(gate) up, element by element. */
struct zr_swiglu {
    size_t n;
    const void *gate, *up;
    void *y;
};
struct zr_swiglu_backward { /* dgate and dup may be gate and up, or dy */
    size_t n;
    const void *gate, *up, *dy;
    void *dgate, *dup;
};
struct zr_head { /* logits[rows, Vp] = x[rows, C] wte[Vp, C]^T, softmax over the first V, cross-entropy */
    const int32_t *targets; /* [rows], each in [0, V) */
    size_t rows, channels, vocabulary, vocabulary_padded;
};
struct zr_adamw {
    float rate, beta1, beta2, epsilon, weight_decay; /* weight_decay already 0 for tensors without decay */
    float gradient_scale;                            /* multiplies each gradient first: clipping */
    float correction1, correction2;                  /* 1 - beta^t */
};

/* momentum = momentum_factor * momentum + gradient + weight_decay * parameter; parameter -= rate * momentum.
 * Each product and each sum is rounded. */
struct zr_sgd {
    float rate, momentum_factor, weight_decay; /* weight_decay already 0 for tensors without decay */
    float gradient_scale;                      /* multiplies each gradient first: clipping */
};
/* One step of an optimizer over n elements of one shard. */
struct zr_update {
    size_t n;
    struct zr_numbers gradient;  /* fp32, or the precision of `parameter` (any when that has none) */
    float *master;               /* updated; in fp32 training the parameters themselves */
    float *momentum, *variance;  /* updated; variance NULL for SGD */
    struct zr_numbers parameter; /* gets the new master rounded; `at` NULL: nothing to write */
};
/* to[i] = ((from[0][i] + from[1][i]) + ...) * scale, in the order of the list; with accumulate, added to what
 * is there. `to` has the sources' precision (and may be one of them), or fp32. */
struct zr_sum {
    size_t n;
    const void *const *from;
    unsigned count;
    enum zr_precision precision; /* of the sources */
    float scale;
    bool accumulate;
    struct zr_numbers to; /* written */
};

/* One table per arithmetic; the null table does nothing at all, for plans. No operation fails. */
struct zr_kernels {
    const char *name; /* "cpu", "null" */

    /* out[B, T, C] = wte[token] + wpe[t]; wpe NULL: there is none, nor dwpe */
    void (*embedding_forward)(struct zr_kernel_context *, const struct zr_embedding *, const void *wte,
                              const void *wpe, void *out);
    /* dwte[Vp, C] and dwpe[T', C] get the sums over d[B, T, C]. Both are overwritten: rows that no token
     * names become zero (`wte_rows`, `wpe_rows` are the rows to write). With accumulate, added to. */
    void (*embedding_backward)(struct zr_kernel_context *, const struct zr_embedding *, const void *d,
                               void *dwte, size_t wte_rows, void *dwpe, size_t wpe_rows, bool accumulate);

    /* mean and rstd: [rows], kept for backward */
    void (*layernorm_forward)(struct zr_kernel_context *, const struct zr_layernorm *, const void *x,
                              const void *w, const void *b, void *y, float *mean, float *rstd);
    /* dx is added to when accumulate_dx (the residual path); dw, db overwritten or accumulated. dx is not dy.
     */
    void (*layernorm_backward)(struct zr_kernel_context *, const struct zr_layernorm *, const void *x,
                               const void *w, const float *mean, const float *rstd, const void *dy, void *dx,
                               bool accumulate_dx, void *dw, void *db, bool accumulate);

    void (*linear_forward)(struct zr_kernel_context *, const struct zr_linear *, const void *x, const void *w,
                           const void *bias, void *y); /* bias may be NULL */
    /* dx, dw, db may each be NULL: not wanted. dx is always overwritten; `accumulate` is for dw and db. */
    void (*linear_backward)(struct zr_kernel_context *, const struct zr_linear *, const void *x,
                            const void *w, const void *dy, void *dx, void *dw, void *db, bool accumulate);

    void (*rmsnorm_forward)(struct zr_kernel_context *, const struct zr_rmsnorm *);
    void (*rmsnorm_backward)(struct zr_kernel_context *, const struct zr_rmsnorm_backward *);
    void (*rotary_table)(struct zr_kernel_context *, const struct zr_rotary_table *);
    void (*rotary)(struct zr_kernel_context *, const struct zr_rotary *);
    void (*swiglu_forward)(struct zr_kernel_context *, const struct zr_swiglu *);
    void (*swiglu_backward)(struct zr_kernel_context *, const struct zr_swiglu_backward *);

    /* qkv[B, T, (A + 2 K) D] (q, k, v side by side, heads inside each), out[B, T, C], lse[B, A, T] (log of
     * the sum of exponentials, scaled scores), p[B, A, T, T] the probabilities or NULL when they are not to
     * be kept. The bits of out do not depend on p being kept. */
    void (*attention_forward)(struct zr_kernel_context *, const struct zr_attention *, const void *qkv,
                              void *out, float *lse, void *p);
    /* dqkv is overwritten. p NULL: the probabilities are made again from lse, same bits as kept ones. */
    void (*attention_backward)(struct zr_kernel_context *, const struct zr_attention *, const void *qkv,
                               const void *out, const float *lse, const void *p, const void *dout,
                               void *dqkv);

    void (*gelu_forward)(struct zr_kernel_context *, size_t n, const void *x, void *y); /* tanh form */
    void (*gelu_backward)(struct zr_kernel_context *, size_t n, const void *x, const void *dy, void *dx);
    /* out = a + b; out may be a or b */
    void (*add)(struct zr_kernel_context *, size_t n, const void *a, const void *b, void *out);

    /* losses[rows] = -log softmax(logits)[target]. When dx is given, also the gradient of
     * (sum of losses) * scale: dx[rows, C] overwritten, dwte[Vp, C] overwritten or accumulated. The logits
     * live in the workspace, a chunk of rows at a time, so the result depends on the limits' shape only. At
     * two bytes dwte is rounded once per chunk. */
    void (*head_loss)(struct zr_kernel_context *, const struct zr_head *, const void *x, const void *wte,
                      float *losses, float scale, void *dx, void *dwte, bool accumulate);
    /* logits[V] of one row, for sampling */
    void (*head_logits)(struct zr_kernel_context *, const struct zr_head *, const void *x_row,
                        const void *wte, float *logits);

    /* In place over n elements of one shard. `g` is read only. */
    void (*adamw)(struct zr_kernel_context *, const struct zr_adamw *, size_t n, float *parameter,
                  const float *g, float *momentum, float *variance);
    /* Sum of squares in double over fixed blocks of 4,096 elements, added in order: the same for any threads.
     */
    double (*sum_of_squares)(struct zr_kernel_context *, size_t n, const float *x);
    /* x[i] = mean + deviation * normal(seed, first_index + i): by global index, the same on any rank. */
    void (*init_normal)(struct zr_kernel_context *, size_t n, uint64_t seed, uint64_t first_index, float mean,
                        float deviation, float *x);
    void (*fill)(struct zr_kernel_context *, size_t n, float value, float *x);
    void (*copy)(struct zr_kernel_context *, size_t bytes, const void *from, void *to);
    /* The first index of a NaN or an infinity, n if there is none. */
    size_t (*find_nonfinite)(struct zr_kernel_context *, size_t n, const float *x);

    /* The same three on numbers of any precision, with SGD beside AdamW. */
    void (*update_adamw)(struct zr_kernel_context *, const struct zr_adamw *, const struct zr_update *);
    void (*update_sgd)(struct zr_kernel_context *, const struct zr_sgd *, const struct zr_update *);
    double (*sum_of_squares_in)(struct zr_kernel_context *, size_t n, struct zr_numbers x);
    size_t (*find_nonfinite_in)(struct zr_kernel_context *, size_t n, struct zr_numbers x);
    /* to[i] = from[i], rounded where it must be. The same precision: a copy. They do not overlap. */
    void (*convert)(struct zr_kernel_context *, size_t n, struct zr_numbers from, struct zr_numbers to);
    /* Zero bytes: the zero of every precision. */
    void (*clear)(struct zr_kernel_context *, size_t bytes, void *to);

    /* A 64-bit checksum of the bits; any changed bit changes it with overwhelming likelihood. */
    uint64_t (*checksum)(struct zr_kernel_context *, size_t bytes, const void *data);

    /* One thread, for the communicator: to[i] = ((from[0][i] + from[1][i]) + ...) * scale, in the order of
     * the list; with accumulate, to[i] += that. `to` may be one of the sources. */
    void (*sum_in_order)(size_t n, const float *const *from, unsigned count, float scale, float *to,
                         bool accumulate);
    /* The same on any precision: the sum is made in floats and rounded once. One thread. */
    void (*sum_numbers_in_order)(const struct zr_sum *);
};

/* Owned by the library, constant. */
ZR_API const struct zr_kernels *zr_kernels_cpu(enum zr_isa isa);
ZR_API const struct zr_kernels *zr_kernels_null(void);

#ifdef __cplusplus
}
#endif

#endif
