/* zr_kernels.h: the arithmetic of GPT-2 and LLaMA, forward and backward, behind one table of
 * operations.
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
 * nearest even once, when they store; attention rounds its probabilities too, as if they had been kept. NaN
 * stays NaN; fp16 keeps its denormals, and becomes infinite from 65,520 on, so that a caller who scales its
 * loss sees the overflow in the gradients' norm or by find_nonfinite(). Arithmetic takes a float's denormals,
 * and so bf16's, for zero; conversions keep them. Operations on the engine's state work on what they are told
 * (`struct zr_numbers`), whatever the context's precision.
 *
 * Eight bits. A linear operation of bf16 tensors with `fp8` multiplies numbers of eight bits: x and w rounded
 * to E4M3, dy to E5M2, each tensor times a power of two of its own, the largest with which no number is above
 * the format's largest; products add up in floats and are undone of the two powers before they are rounded to
 * bf16, as without fp8. The power follows from the largest number of the operand as it is in this call alone,
 * so there is no state to keep, and since it is a power of two it changes no digit of a number but those too
 * small for the format: a tensor rounded in parts, each with its own power, has the same digits. An operand
 * with an infinity or a NaN makes every result NaN. Bias and its gradient are not rounded. Of rows, inputs
 * and outputs one that is no multiple of 16 (zr_fp8_suits() in kernels/fp8.h) makes the product one in bf16.
 *
 * Shapes: B sequences, T tokens each, C channels, A heads of D = C / A, rows = B * T, V vocabulary entries of
 * Vp stored rows (Vp >= V; the rows from V on are padding, never predicted, with zero gradient). */
#ifndef ZR_KERNELS_H
#define ZR_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/zr.h"

#ifdef __cplusplus
extern "C" {
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
    size_t rows;     /* B * T */
    size_t sequence; /* T */
    size_t channels; /* C */
    size_t heads;    /* A */
    unsigned threads;
    /* The most channels of the narrower and of the wider side of a matrix that is multiplied in fp8; 0: none
     * is. */
    size_t fp8_narrow, fp8_wide;
};

/* Products that the matrix library refused, and that the context did by itself: slower, and with other last
 * bits than the library's. */
struct zr_kernel_refusals {
    uint64_t count;
    size_t m, n, k; /* of the first: [m, k] x [k, n] */
};

/* Belongs to the caller, who sets all but what is said to be the table's. One thread at a time. */
struct zr_kernel_context {
    struct zr_parallel parallel;
    void *workspace; /* on a 64-byte line; tag workspace */
    size_t workspace_bytes;
    enum zr_isa isa;
    enum zr_precision precision;        /* of the model's tensors */
    bool fp8;                           /* linear operations may ask for fp8; of bf16 */
    double *flops;                      /* the null table adds here what its operations would take; or NULL */
    void *library;                      /* the table's: the matrix library's own state */
    struct zr_kernel_refusals refusals; /* the table's, since open() */
    void *stream; /* the driver's (CUstream), of a card's table; NULL: its default one */
    /* Called now and then while the host waits for the stream, of a card's table: a failure ends the wait,
     * and is what the waiting operation returns. NULL: nothing can keep the stream from its end. */
    zr_result (*while_waiting)(void *state);
    void *waiting_state;
};

/* ---- What operations take ------------------------------------------------------------------------------ */

/* Of every operation `name` in the table: struct zr_name. What two directions share is a struct of its own.
 * Pointers to const are read, others written. */

/* y[rows, C] = w[token]. Backward: dw[w_rows, C] gets the sums over dy, and zeros where no token is. */
struct zr_embedding_forward {
    size_t rows, channels;
    const int32_t *tokens;    /* [rows], each in [0, V) */
    size_t first_row, w_rows; /* that w has of the V: the y of other tokens is zero. w_rows 0: all */
    const void *w;
    void *y;
    bool keeps; /* the y of other tokens stays as it is */
};
struct zr_embedding_backward {
    size_t rows, channels;
    const int32_t *tokens;
    const void *dy;
    void *dw;
    size_t first_row, w_rows; /* that dw has of the V: other tokens add nothing */
    bool accumulate;
};
/* y[rows, C] += w[(first_row + row) % T]. Backward: dw[w_rows, C] gets the sums over dy; rows from T on are
 * zero. */
struct zr_positions_forward {
    size_t rows, sequence, channels;
    size_t first_row; /* of a batch of which these rows are a part */
    const void *w;
    void *y;
};
struct zr_positions_backward {
    size_t rows, sequence, channels;
    size_t first_row;
    const void *dy;
    void *dw;
    size_t w_rows;
    bool accumulate;
};

/* mean and rstd [rows] are kept for backward; epsilon is 1e-5 */
struct zr_layernorm {
    size_t rows, channels;
};
struct zr_layernorm_forward {
    struct zr_layernorm shape;
    const void *x, *w, *b;
    void *y;
    float *mean, *rstd;
};
struct zr_layernorm_backward {
    struct zr_layernorm shape;
    const void *x, *w;
    const float *mean, *rstd;
    const void *dy;
    void *dx; /* not dy; added to with accumulate_dx (the residual path) */
    void *dw, *db;
    bool accumulate_dx, accumulate; /* the latter: of dw and db */
};

/* Root mean square norm: y = w x / sqrt(mean of x^2 + epsilon), by row; rstd [rows] is kept for backward. */
struct zr_rmsnorm_forward {
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
    void *dx; /* not dy; added to with accumulate_dx */
    void *dw;
    bool accumulate_dx, accumulate;
};

/* The end of a residual path and the norm behind it: sum = a + b, and the norm of the sum, whose own x is not
 * looked at. What add() and the norm's forward do, with the same bits, in one pass over the rows. */
struct zr_residual_layernorm {
    struct zr_layernorm_forward norm;
    const void *a, *b; /* [rows, C] */
    void *sum;         /* may be a or b */
};
struct zr_residual_rmsnorm {
    struct zr_rmsnorm_forward norm;
    const void *a, *b;
    void *sum; /* may be a or b */
};

/* y[rows, out] = x[rows, in] w[in, out] + bias[out]: weights as GPT-2's Conv1D has them */
struct zr_linear {
    size_t rows, in, out;
    bool turned;               /* w is stored [out, in], as torch.nn.Linear has it */
    size_t x_stride, y_stride; /* elements from row to row, of dx and dy too; 0: dense */
    bool fp8;                  /* operands are rounded to eight bits, see above; y and dw are bf16 */
};
struct zr_linear_forward {
    struct zr_linear shape;
    const void *x, *w, *bias; /* bias NULL: none */
    void *y;
    bool floats; /* y is of floats at every precision */
};
struct zr_linear_backward {
    struct zr_linear shape;
    const void *x, *w, *dy;
    void *dx, *dw, *db; /* each may be NULL: not wanted */
    bool accumulate_dx, accumulate;
    bool dw_floats; /* dw is of floats at every precision; for a table with narrow_logits */
};

/* cosines and sines [T, D / 2] of t / theta^(2 i / D), for rotary() */
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

/* Causal attention, scaled by 1 / sqrt(D). qkv [B, T, (A + 2 K) D]: q, k, v side by side, heads inside each.
 */
struct zr_attention {
    size_t batch, sequence, channels, heads;
    size_t kv_heads; /* K, which divides A: A / K heads of queries share one of keys and values; 0: A */
};
/* The bits of out do not depend on p being kept. A caller keeps it for a table that reads_probabilities. */
struct zr_attention_forward {
    struct zr_attention shape;
    const void *qkv;
    void *out;  /* [B, T, C] */
    float *lse; /* [B, A, T], the log of the sum of exponentials of the scaled scores */
    void *p;    /* [B, A, T, T], the probabilities; NULL: they are not to be kept */
};
struct zr_attention_backward {
    struct zr_attention shape;
    const void *qkv, *out;
    const float *lse;
    const void *p; /* NULL: made again from lse, with the same bits as kept ones */
    const void *dout;
    void *dqkv; /* overwritten */
};

/* y = gelu(x) in its tanh form */
struct zr_gelu_forward {
    size_t n;
    const void *x;
    void *y;
};
struct zr_gelu_backward {
    size_t n;
    const void *x, *dy;
    void *dx; /* may be dy */
};
/* Backward of GELU and of the bias of the product that made x: dx as of gelu_backward(), and db (+)= the sums
 * of dx over the rows as of linear_backward(), with the same bits, in one pass. */
struct zr_gelu_bias_backward {
    size_t rows, columns; /* dense */
    const void *x, *dy;
    void *dx; /* may be dy */
    void *db; /* [columns] */
    bool accumulate;
};

/* A product and the operation behind it or before it, of dense tensors of the context's precision. Sums in
 * floats go through both and are rounded once, where a table can do so.
 *
 * y = x w + bias, which backward reads, and gelu = gelu(x w + bias). */
struct zr_linear_gelu_forward {
    struct zr_linear_forward linear;
    void *gelu; /* [rows, out] */
};
/* y = x w + bias + residual */
struct zr_linear_residual_forward {
    struct zr_linear_forward linear;
    const void *residual; /* [rows, out]; not y */
};
/* linear_backward() where x = gelu(pre), with the gradient of pre in dx, without accumulate_dx. */
struct zr_linear_gelu_backward {
    struct zr_linear_backward linear;
    const void *pre; /* [rows, in] */
    void *pre_bias;  /* [in] (+)= sums over the rows of dx as it is stored; NULL: not wanted */
};
/* y = gate sigmoid(gate) up, element by element */
struct zr_swiglu_forward {
    size_t n;
    const void *gate, *up;
    void *y;
};
struct zr_swiglu_backward {
    size_t n;
    const void *gate, *up, *dy;
    void *dgate, *dup; /* may be gate and up, or dy */
};
/* out = a + b; out may be a or b */
struct zr_add {
    size_t n;
    const void *a, *b;
    void *out;
};

/* What some columns of the logits say of a row's softmax. Those of several ranks together: `most` is the
 * largest of theirs, `sum` the sum of sum * exp(their most - most), `target` the sum of their targets. */
struct zr_softmax_part {
    double sum;   /* of exp(logit - most) */
    float most;   /* the largest logit; -infinity where there are no columns */
    float target; /* the target's logit; 0 where it is not among the columns */
};
/* losses = -log softmax(logits)[target] over the first `columns` of each row: all the vocabulary, or one
 * rank's share of it. The head is this between a linear_forward() to floats and a linear_backward() from the
 * gradient of the logits, whose y_stride is that of floats; or with `narrow` without either of the two.
 *
 * Of a share it takes two calls: with `parts`, which it writes (and nothing else but what the second call
 * needs of the logits); then, with the same parts and `all`, what they are together, for losses and
 * gradient. */
struct zr_cross_entropy {
    size_t rows, columns, stride; /* logits from row to row; those from `columns` on are padding */
    size_t first_column;          /* of the vocabulary: what column 0 is */
    const int32_t *targets;       /* [rows], in the vocabulary */
    void *logits;                 /* floats */
    bool narrow; /* the logits are of the context's precision; for a table with narrow_logits */
    float *losses;
    /* The logits become the gradient of (sum of losses) * scale, of the context's precision, each row from
     * where its logits begin; zero in the padding. Without it they stay. */
    bool gradient;
    float scale;
    struct zr_softmax_part *parts;     /* [rows]; NULL: all columns are here */
    const struct zr_softmax_part *all; /* [rows] */
};

/* What the parts of several shares are together, added in their order. */
struct zr_softmax_merge {
    size_t rows;
    unsigned count;
    const struct zr_softmax_part *parts; /* [count][rows] */
    struct zr_softmax_part *all;         /* [rows] */
};

/* What a step's gradients are worth. */
struct zr_gradient_weight {
    double norm;      /* without the loss scale */
    float clip_scale; /* 1: not clipped */
    float scale;      /* multiplies each gradient: clips, and undoes the loss scale */
    uint32_t skips;   /* 1: the norm is not finite, and nothing is to be updated */
};
/* The norm of all gradients, of sums of squares [ranks][units]: added unit by unit, and within a unit rank by
 * rank. */
struct zr_weigh_gradients {
    size_t units, ranks;
    const double *squares;
    double loss_scale; /* that the gradients have */
    double clip;       /* the largest norm; 0: any */
    struct zr_gradient_weight *weight;
};

/* What changes from step to step in an update that is asked for once, and done again by a graph. */
struct zr_step_rates {
    float rate, correction1, correction2, unused;
};
struct zr_adamw {
    float rate, beta1, beta2, epsilon, weight_decay; /* weight_decay already 0 for tensors without decay */
    float gradient_scale;                            /* multiplies each gradient first: clipping */
    float correction1, correction2;                  /* 1 - beta^t */
    /* In the table's memory: its scale in place of gradient_scale, and nothing is updated where it skips.
     * NULL: there is none. */
    const struct zr_gradient_weight *weight;
    /* Likewise: its corrections in place of these, and its rate times `rate`. NULL: there are none. */
    const struct zr_step_rates *rates;
};
/* momentum = momentum_factor * momentum + gradient + weight_decay * parameter; parameter -= rate * momentum.
 * Each product and each sum is rounded. */
struct zr_sgd {
    float rate, momentum_factor, weight_decay; /* weight_decay already 0 for tensors without decay */
    float gradient_scale;                      /* multiplies each gradient first: clipping */
    const struct zr_gradient_weight *weight;   /* as of zr_adamw, and: */
    const struct zr_step_rates *rates;
};
/* What one step of an optimizer works on: n elements of one shard. */
struct zr_update {
    size_t n;
    struct zr_numbers gradient;  /* fp32, or the precision of `parameter` (any when that has none) */
    float *master;               /* updated; in fp32 training the parameters themselves */
    float *momentum, *variance;  /* updated; variance NULL for SGD */
    struct zr_numbers parameter; /* gets the new master rounded; `at` NULL: nothing to write */
};
struct zr_update_adamw {
    struct zr_adamw how;
    struct zr_update numbers;
};
struct zr_update_sgd {
    struct zr_sgd how;
    struct zr_update numbers;
};

/* Sum of squares in double, a tree that depends on n alone: blocks of 4,096 elements, of which 64 at a time
 * are added in order, and such groups in order. */
struct zr_sum_of_squares {
    size_t n;
    struct zr_numbers x;
    double *sum;
};
/* The first index of a NaN or an infinity, n if there is none. */
struct zr_find_nonfinite {
    size_t n;
    struct zr_numbers x;
    size_t *index;
};
/* 64 bits of the bits; any changed bit changes them with overwhelming likelihood. */
struct zr_checksum {
    size_t bytes;
    const void *data;
    uint64_t *sum;
};
/* x[i] = mean + deviation * normal(seed, first_index + i): by global index, the same on any rank. */
struct zr_init_normal {
    size_t n;
    uint64_t seed, first_index;
    float mean, deviation;
    float *x;
};
/* to[i] = from[i], rounded where it must be. They do not overlap. */
struct zr_convert {
    size_t n;
    struct zr_numbers from, to;
};
/* Zero bytes: the zero of every precision. */
struct zr_clear {
    size_t bytes;
    void *to;
};
/* to[bytes] = from[bytes]; they do not overlap. One of them may be the caller's own memory in place of the
 * table's, with `waits`: then the bytes are there when the operation returns, and all that was asked for
 * before has ended. Without `waits` it is pinned (kernels/streams.h) and stays as it is until the copy has
 * ended. */
struct zr_copy_bytes {
    size_t bytes;
    const void *from;
    void *to;
    bool waits;
};
/* to[i] = ((from[0][i] + from[1][i]) + ...) * scale, in the order of the list; with accumulate, added to what
 * is there. Sums are made in floats and rounded once. `to` has the sources' precision (and may be one of
 * them), or fp32. Without a context it runs on the calling thread, whatever others do, and cannot
 * fail: the communicator's. */
struct zr_sum {
    size_t n;
    const void *const *from;
    unsigned count;
    enum zr_precision precision; /* of the sources */
    float scale;
    bool accumulate;
    struct zr_numbers to;
};

/* ---- The table ----------------------------------------------------------------------------------------- */

struct zr_kernel_streams;

#define ZR_KERNELS_VERSION 7

#define ZR_KERNEL(name) zr_result (*name)(struct zr_kernel_context *, const struct zr_##name *)

/* One table per arithmetic. Operations fail with ZR_ERR_INVALID alone: a context that is not open, or a
 * problem beyond the limits that its workspace was sized for. */
struct zr_kernels {
    uint32_t version; /* ZR_KERNELS_VERSION */
    const char *name; /* "cpu", "cuda", "null" */
    /* What it can do. */
    bool executes;           /* it computes; else nothing is read or written, results neither: for plans */
    bool host_visible;       /* the host reads and writes the tensors where they lie */
    bool deterministic_sums; /* the bits depend neither on threads nor on timing */
    /* attention_backward() reads the probabilities that attention_forward() kept. False: it makes them again
     * whether or not they are there, so nothing is to be kept for it. */
    bool reads_probabilities;
    /* cross_entropy() takes narrow logits, and linear_backward() dw_floats: a head may have both, and no
     * chunk of its rows is rounded by itself. False: neither is looked at. */
    bool narrow_logits;

    /* Scratch that any operation within `limits` may use at one time: depends on limits and isa only, so
     * that a plan made without arithmetic knows it. Saturates. */
    size_t (*workspace_bytes)(const struct zr_kernel_limits *limits, enum zr_isa isa);
    /* Prepares / ends a context, after every fork, in the process that uses it. ZR_ERR_INVALID: what the
     * context holds makes no sense. ZR_ERR_UNAVAILABLE: no such instruction set here, no fp8 on this card, or
     * the matrix library refuses. What is not open may be closed. */
    zr_result (*open)(struct zr_kernel_context *context);
    void (*close)(struct zr_kernel_context *context);
    /* What makes the large matrix products of an open context, for people: "cuBLASLt 13.0.2", or what does
     * without it, and why. Valid until it is closed. NULL: there is no choice to speak of. */
    const char *(*products)(const struct zr_kernel_context *context);
    /* What orders the work of several streams, see kernels/streams.h. NULL: an operation has ended when it
     * returns. */
    const struct zr_kernel_streams *streams;

    ZR_KERNEL(embedding_forward);
    ZR_KERNEL(embedding_backward);
    ZR_KERNEL(positions_forward);
    ZR_KERNEL(positions_backward);
    ZR_KERNEL(layernorm_forward);
    ZR_KERNEL(layernorm_backward);
    ZR_KERNEL(rmsnorm_forward);
    ZR_KERNEL(rmsnorm_backward);
    ZR_KERNEL(linear_forward);
    ZR_KERNEL(linear_backward);
    ZR_KERNEL(rotary_table);
    ZR_KERNEL(rotary);
    ZR_KERNEL(attention_forward);
    ZR_KERNEL(attention_backward);
    ZR_KERNEL(gelu_forward);
    ZR_KERNEL(gelu_backward);
    ZR_KERNEL(swiglu_forward);
    ZR_KERNEL(swiglu_backward);
    ZR_KERNEL(add);
    ZR_KERNEL(cross_entropy);
    ZR_KERNEL(softmax_merge);

    /* Operations that are several of the above in one pass. Each may be NULL: the caller then uses those. */
    ZR_KERNEL(residual_layernorm);
    ZR_KERNEL(residual_rmsnorm);
    ZR_KERNEL(gelu_bias_backward);

    /* Products with what follows them. Each may be NULL: the caller then uses linear_forward(),
     * gelu_forward() and so on, which round in between and so have other last bits in two bytes. */
    ZR_KERNEL(linear_gelu_forward);
    ZR_KERNEL(linear_residual_forward);
    ZR_KERNEL(linear_gelu_backward);

    /* On the engine's state, of the precision that they are told. */
    ZR_KERNEL(weigh_gradients);
    ZR_KERNEL(update_adamw);
    ZR_KERNEL(update_sgd);
    ZR_KERNEL(sum_of_squares);
    ZR_KERNEL(find_nonfinite);
    ZR_KERNEL(checksum);
    ZR_KERNEL(init_normal);
    ZR_KERNEL(convert);
    ZR_KERNEL(clear);
    ZR_KERNEL(copy_bytes);
    ZR_KERNEL(sum);
};
#undef ZR_KERNEL

/* Owned by the library, constant. */
ZR_API const struct zr_kernels *zr_kernels_cpu(enum zr_isa isa);
ZR_API const struct zr_kernels *zr_kernels_null(void);
/* The one that computes nothing in the place of `table`: with its workspace, host_visible,
 * reads_probabilities and narrow_logits, so that a plan is of what that one takes. */
ZR_API const struct zr_kernels *zr_kernels_null_of(const struct zr_kernels *table);
/* On a card. The device's primary context is current where a context of this table is opened and used, and
 * all memory is the device's, workspace and single results too. An operation is queued in the context's
 * stream and has not ended when it returns; what it does wrong there shows as the driver has it. It makes no
 * use of threads, and there is no sum() without a context. A context without a workspace opens too, and
 * refuses sum_of_squares(). Attention: heads of up to 256 numbers; probabilities stay floats in sums, but on
 * tensor cores, which take two-byte heads 64, 96 and 128 wide in tensors that begin on 16 bytes. Products of
 * 64 x 64 x 64 steps and more, whose rows begin on 16 bytes, are cuBLASLt's where it can be loaded:
 * products() says so. ZR_ERR_UNAVAILABLE of open(): no driver, one older than CUDA 12.0, no kernels in
 * this build, or 16 open contexts in this process. */
ZR_API const struct zr_kernels *zr_kernels_cuda(void);

#ifdef __cplusplus
}
#endif

#endif
