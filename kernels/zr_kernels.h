/* zr_kernels.h: the operations of GPT-2 and LLaMA, forward and backward, as a table of functions.
 *
 * Kernels allocate nothing, start no threads and keep no state outside the context. The caller provides
 * memory, workspace and threads. Tensors are dense, row-major and aligned to 64 bytes. Results depend only on
 * the instruction set and the precision, never on the number of threads, addresses or timing. `accumulate`
 * adds to the output instead of overwriting it.
 *
 * Precision. The context's `precision` (fp32, bf16 or fp16) is the element type of all `void *` tensors:
 * parameters, activations and gradients. Means, log-sums, losses, sampled logits, master weights, momentum
 * and variance are floats at every precision. Two-byte operations compute in floats and round to nearest even
 * once, when they store; attention also rounds its probabilities. NaN stays NaN. fp16 keeps denormals and
 * overflows to infinity from 65,520 on, which shows in the gradient norm and in find_nonfinite(). Arithmetic
 * flushes float and bf16 denormals to zero; conversions keep them. Operations on optimizer state take the
 * precision of each array from its `struct zr_numbers`.
 *
 * fp8. A linear operation on bf16 tensors with `fp8` rounds x and w to E4M3 and dy to E5M2. Each operand is
 * scaled by the largest power of two that keeps its largest number within the format. Products are summed in
 * floats, unscaled, and rounded to bf16. The scale depends only on the operand of this call, so there is no
 * scaling state. A tensor that is rounded in parts, each with its own scale, has the same digits, except for
 * numbers too small for the format. An infinity or NaN in an operand makes every result NaN. Bias and its
 * gradient are not rounded. If rows, inputs or outputs are not a multiple of 16 (zr_fp8_suits() in
 * kernels/fp8.h), the product is computed in bf16.
 *
 * Shapes: B sequences of T tokens, C channels, A heads of D = C / A, rows = B * T, V vocabulary entries
 * stored as Vp >= V rows. Rows from V on are padding: they are never predicted, and their gradient is zero.
 */
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

/* Array of numbers; the function that takes it defines the length. */
struct zr_numbers {
    void *at; /* only read, unless the function says otherwise */
    enum zr_precision precision;
};

/* The caller's threads. run() calls task(argument, part, threads) once for every part in [0, threads),
 * concurrently, and returns when all calls have returned. run may be NULL if threads == 1. */
struct zr_parallel {
    unsigned threads;
    void (*run)(void *state, void (*task)(void *argument, unsigned part, unsigned parts), void *argument);
    void *state;
};

/* Each instruction set includes the ones before it. The last three give the same bits in fp32 and fp16. */
enum zr_isa { ZR_ISA_PLAIN = 0, ZR_ISA_AVX2, ZR_ISA_AVX512, ZR_ISA_AVX512_BF16, ZR_ISA_AMX, ZR_ISA_COUNT };
ZR_API const char *zr_isa_name(enum zr_isa isa); /* "plain", "avx2", "avx512", "avx512_bf16", "amx" */
/* Best instruction set of this processor and operating system. Requests permission to use AMX for this
 * process and its children if the processor has it. */
ZR_API enum zr_isa zr_isa_best(void);

/* Largest problem that a context computes; determines the workspace size. */
struct zr_kernel_limits {
    size_t rows;     /* B * T */
    size_t sequence; /* T */
    size_t channels; /* C */
    size_t heads;    /* A */
    unsigned threads;
    /* Largest narrow side and largest wide side of the matrices multiplied in fp8; 0: no fp8. */
    size_t fp8_narrow, fp8_wide;
};

/* Products that the matrix library refused. The table's own kernels compute them: slower, and with other last
 * bits. */
struct zr_kernel_refusals {
    uint64_t count;
    size_t m, n, k; /* the first refused product: [m, k] x [k, n] */
};

/* The caller owns the context and sets all fields except `library` and `refusals`. Used by one thread at a
 * time. */
struct zr_kernel_context {
    struct zr_parallel parallel;
    void *workspace; /* aligned to 64 bytes; tag workspace */
    size_t workspace_bytes;
    enum zr_isa isa;
    enum zr_precision precision;        /* element type of the model's tensors */
    bool fp8;                           /* linear operations may set fp8; requires bf16 */
    double *flops;                      /* the null table adds each operation's FLOPs here; NULL: no count */
    void *library;                      /* set by the table: state of the matrix library */
    struct zr_kernel_refusals refusals; /* set by the table; counts since open() */
    void *stream;                       /* GPU tables: the CUstream; NULL: the default stream */
    /* GPU tables: polled while the host waits for the stream. A failure ends the wait, and the waiting
     * operation returns it. NULL: the stream cannot be blocked. */
    zr_result (*while_waiting)(void *state);
    void *waiting_state;
};

/* ---- Arguments of the operations ----------------------------------------------------------------------- */

/* Operation `name` of the table takes a struct zr_name. Pointers to const are inputs, other pointers outputs.
 */

/* y[rows, C] = w[token]. Backward: dw[w_rows, C] is the sum of dy by token; rows of absent tokens are zero.
 */
struct zr_embedding_forward {
    size_t rows, channels;
    const int32_t *tokens;    /* [rows], each in [0, V) */
    size_t first_row, w_rows; /* rows of the V in w; y of other tokens is zero. w_rows 0: all V */
    const void *w;
    void *y;
    bool keeps; /* leave y of other tokens unchanged instead of zero */
};
struct zr_embedding_backward {
    size_t rows, channels;
    const int32_t *tokens;
    const void *dy;
    void *dw;
    size_t first_row, w_rows; /* rows of the V in dw; other tokens add nothing */
    bool accumulate;
};
/* y[rows, C] += w[(first_row + row) % T]. Backward: dw[w_rows, C] is the sum of dy by position; rows from T
 * on are zero. */
struct zr_positions_forward {
    size_t rows, sequence, channels;
    size_t first_row; /* index of the first of these rows in the batch */
    const void *w;
    void *y;
    const int32_t *positions; /* [rows]: other rows of w; backward is embedding_backward(). NULL: none */
};
struct zr_positions_backward {
    size_t rows, sequence, channels;
    size_t first_row;
    const void *dy;
    void *dw;
    size_t w_rows;
    bool accumulate;
};

/* Layer norm by row. Backward reads the mean and rstd [rows] that forward wrote. */
struct zr_layernorm {
    size_t rows, channels;
    float epsilon; /* 0: 1e-5 */
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
    void *dx;      /* not dy; accumulate_dx adds to it (the residual path); NULL: not computed */
    void *dw, *db; /* NULL: not computed; a GPU computes both or none */
    bool accumulate_dx, accumulate; /* accumulate: dw and db */
};

/* Rows of a norm inside wider rows: row r of the norm is head r % heads of row r / heads. Strides are those
 * of the wider rows, in elements, also of the gradients. heads 0: the rows are dense. */
struct zr_norm_heads {
    size_t heads, x_stride, y_stride;
};
/* Root mean square norm by row: y = (w + w_offset) x / sqrt(mean of x^2 + epsilon). Backward reads the rstd
 * [rows] that forward wrote. */
struct zr_rmsnorm_forward {
    size_t rows, channels;
    float epsilon;
    const void *x, *w;
    void *y;
    float *rstd;
    struct zr_norm_heads heads;
    float w_offset;
};
struct zr_rmsnorm_backward {
    size_t rows, channels;
    const void *x, *w, *dy;
    const float *rstd;
    void *dx; /* not dy; accumulate_dx adds to it; NULL: not computed */
    void *dw; /* NULL: not computed */
    bool accumulate_dx, accumulate;
    struct zr_norm_heads heads;
    float w_offset;
};

/* Residual sum and the norm after it: sum = a + b, y = norm(sum); norm.x is ignored. Same bits as add()
 * followed by the norm's forward, in one pass over the rows. */
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

/* y[rows, out] = x[rows, in] w[in, out] + bias[out]; w has the layout of GPT-2's Conv1D. */
struct zr_linear {
    size_t rows, in, out;
    bool turned;               /* w is stored [out, in], the layout of torch.nn.Linear */
    size_t x_stride, y_stride; /* row strides in elements, also of dx and dy; 0: dense */
    bool fp8;                  /* round the operands to fp8, see above; y and dw are bf16 */
};
struct zr_linear_forward {
    struct zr_linear shape;
    const void *x, *w, *bias; /* bias NULL: none */
    void *y;
    bool floats; /* y is float at every precision */
};
struct zr_linear_backward {
    struct zr_linear shape;
    const void *x, *w, *dy;
    void *dx, *dw, *db; /* NULL: not computed */
    bool accumulate_dx, accumulate;
    bool dw_floats; /* dw is float at every precision; requires a table with narrow_logits */
};

/* Frequencies for sequences longer than those of pretraining: frequency f of pair i becomes
 * f (m + (1 - m) / factor), m = offset + slope x within [0, 1], where x is f or, with by_pair, i; with
 * divisors, that over divisors[i]. Cosines and sines are multiplied by `scale`. factor 0: unchanged
 * frequencies, scale 1. */
enum { ZR_ROTARY_DIVISORS = 64 };
struct zr_rotary_scaling {
    double factor, offset, slope, scale;
    uint64_t by_pair;
    float divisors[ZR_ROTARY_DIVISORS]; /* divisors[0] 0: none; else there are at most so many pairs */
};
/* Cosines and sines [T, D / 2] of t / theta^(2 i / D), or of scaled frequencies; inputs of rotary(). */
struct zr_rotary_table {
    size_t sequence, width; /* T, D */
    double theta;
    float *cosines, *sines;
    struct zr_rotary_scaling scaling;
};
/* Rotary position embedding (Su et al., 2021): rotates the pairs (i, i + D / 2) of each head in place by the
 * angle of the token. The pairing is that of Hugging Face's LLaMA. `inverse` computes backward. */
struct zr_rotary {
    size_t rows, sequence, heads, width; /* rotates the first D = width numbers of each head */
    size_t stride;                       /* row stride in elements */
    const float *cosines, *sines;        /* [T, D / 2] */
    void *x;
    bool inverse;
    size_t head_stride;       /* numbers of a head; 0: D */
    const int32_t *positions; /* [rows]: the tokens whose angles are used; NULL: row % T */
};

/* The tokens of a sequence that a context rank has: of 2 N chunks of equal length, chunk r and, because later
 * tokens attend to more, chunk 2 N - 1 - r. */
struct zr_context_part {
    unsigned ranks, rank; /* N, r; ranks 0 and 1: the rank has all tokens */
    size_t tokens;        /* of the rank; even if there are several ranks */
};
/* Token of the sequence that is the rank's token `t`. */
static inline size_t zr_context_token(struct zr_context_part part, size_t t)
{
    size_t chunk = part.tokens / 2;
    return part.ranks <= 1 ? t
           : t < chunk     ? part.rank * chunk + t
                           : (2 * part.ranks - 1 - part.rank) * chunk + t - chunk;
}
/* Number of the rank's tokens before token `token` of the sequence. */
static inline size_t zr_context_before(struct zr_context_part part, size_t token)
{
    size_t chunk = part.tokens / 2, low = part.rank * chunk, high = (2 * part.ranks - 1 - part.rank) * chunk;
    if (part.ranks <= 1)
        return token;
    low = token < low ? 0 : token - low;
    high = token < high ? 0 : token - high;
    return (low < chunk ? low : chunk) + (high < chunk ? high : chunk);
}

/* A step of ring attention (Liu et al., 2023): queries of context rank `queries`, with the keys and values of
 * rank `keys`. T is the number of tokens of a rank; window and documents are those of the sequence. */
struct zr_attention_ring {
    unsigned ranks, queries, keys;
    const void *kv; /* [B, T, 2 K D]: keys and values; NULL: no ring, they are in qkv. A GPU: NULL */
    /* Forward: `out` is float. With `merge`, out and lse have the results of other keys, with which those of
     * kv are merged; the first step has the queries' own keys. */
    bool merge;
    /* Backward: sums [B, T, C] and [B, T, 2 K D], to which the gradients are added; dqkv is not used. */
    float *dq, *dkv;
};

/* Dropout of attention's probabilities, after the softmax, by the rule of struct zr_dropout with the counter
 * {key / 4, draw->row + b S + query, site + head, draw->step}, for word key % 4: query and key are tokens of
 * sequence b, which has S tokens on all context ranks. `lse` and `p` are those without dropout. */
struct zr_attention_dropout {
    float rate; /* at least 0, below 1 */
    unsigned site;
    const struct zr_dropout_draw *draw; /* in the table's memory; with rate 0 not used */
};

/* Causal attention. qkv [B, T, (A + 2 K) D] holds q, k and v side by side, each by
 * head. */
struct zr_attention {
    size_t batch, sequence, channels, heads;
    size_t kv_heads; /* K, a divisor of A: A / K query heads share one head of keys and values; 0: A */
    float scale;     /* of the scores; 0: 1 / sqrt(D) */
    size_t window;   /* tokens that a token attends to, itself and those before it; 0: all */
    /* [B, T]: position of each token in its document: 0, or 1 more than that of the token before. A token
     * attends to its document only. NULL: a sequence is a document. */
    const int32_t *positions;
    struct zr_attention_ring ring; /* a GPU: none */
    struct zr_attention_dropout dropout;
};
/* The bits of `out` are the same with and without p. Backward reads p only in tables with
 * reads_probabilities. */
struct zr_attention_forward {
    struct zr_attention shape;
    const void *qkv;
    void *out;  /* [B, T, C] */
    float *lse; /* [B, A, T]: log-sum-exp of the scaled scores */
    void *p;    /* [B, A, T, T]: the probabilities; NULL: not stored */
};
struct zr_attention_backward {
    struct zr_attention shape;
    const void *qkv, *out;
    const float *lse;
    const void *p; /* NULL: recomputed from lse, with the bits of stored ones */
    const void *dout;
    void *dqkv; /* overwritten */
};

/* GELU in its tanh form or exact, or max(x, 0). The fused operations below have the tanh form. */
enum zr_activation { ZR_GELU_TANH = 0, ZR_GELU_ERF, ZR_RELU };
/* y = gelu(x) */
struct zr_gelu_forward {
    size_t n;
    const void *x;
    void *y;
    enum zr_activation activation;
};
struct zr_gelu_backward {
    size_t n;
    const void *x, *dy;
    void *dx; /* may be dy */
    enum zr_activation activation;
};
/* Backward of GELU and of the bias before it, in one pass: dx as in gelu_backward(), and db (+)= the sums of
 * dx over the rows as in linear_backward(). Same bits as the two operations. */
struct zr_gelu_bias_backward {
    size_t rows, columns; /* dense */
    const void *x, *dy;
    void *dx; /* may be dy */
    void *db; /* [columns] */
    bool accumulate;
};

/* Product fused with the operation after or before it, on dense tensors of the context's precision. If the
 * table can, float sums pass through both operations and are rounded once.
 *
 * y = x w + bias, an input of backward, and gelu = gelu(x w + bias). */
struct zr_linear_gelu_forward {
    struct zr_linear_forward linear;
    void *gelu; /* [rows, out] */
};
/* y = x w + bias + residual */
struct zr_linear_residual_forward {
    struct zr_linear_forward linear;
    const void *residual; /* [rows, out]; not y */
};
/* linear_backward() for x = gelu(pre); dx is the gradient of pre. accumulate_dx is not supported. */
struct zr_linear_gelu_backward {
    struct zr_linear_backward linear;
    const void *pre; /* [rows, in] */
    void *pre_bias;  /* [in] (+)= sums over the rows of dx as stored; NULL: not computed */
};
/* y = gate sigmoid(gate) up, element by element; with `gelu`, GELU's tanh form of the gate times up */
struct zr_swiglu_forward {
    size_t n;
    const void *gate, *up;
    void *y;
    bool gelu;
};
struct zr_swiglu_backward {
    size_t n;
    const void *gate, *up, *dy;
    void *dgate, *dup; /* may be gate and up, or dy */
    bool gelu;
};
/* out = a + b; out may be a or b */
struct zr_add {
    size_t n;
    const void *a, *b;
    void *out;
};

/* Dropout (Srivastava et al. 2014), with kept elements divided by 1 - rate. Element (row, column) of x is
 * kept if word column % 4 of Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as
 * 1, 2, 3, 2011) is at least rate 2^32, for the counter {column / 4, draw->row + first_row + row, site,
 * draw->step}. So a mask depends on no division of the rows and is never stored: backward calls this for the
 * gradient. */
struct zr_dropout_draw {
    uint32_t key[2], step, row;
};
struct zr_dropout {
    size_t rows, columns, first_row;
    unsigned site;                      /* apart from those of the model's other tensors */
    float rate;                         /* at least 0, below 1 */
    const struct zr_dropout_draw *draw; /* in the table's memory */
    const void *x;
    void *y;                     /* may be x */
    struct zr_context_part part; /* tokens of each sequence that are rows of x. A GPU: all */
};

/* Softmax statistics of one row over some columns of the logits. To merge the parts of several ranks: `most`
 * is their maximum, `sum` the sum of sum * exp(part's most - most), `target` the sum of the targets. */
struct zr_softmax_part {
    double sum;   /* of exp(logit - most) */
    float most;   /* the largest logit; -infinity without columns */
    float target; /* the target's logit; 0 if the target is not among the columns */
};
/* losses = -log softmax(logits)[target] over the first `columns` of each row: the whole vocabulary, or one
 * rank's shard. The input comes from a linear_forward() with `floats`; linear_backward() of the head reads
 * the gradient with the y_stride of floats. With `narrow`, logits and gradient have the context's precision.
 * A shard takes two calls. The first has `parts` only, writes them and may change the logits for the second
 * call. The second has the same logits and parts, and `all`, the merged parts of all ranks; it writes losses
 * and gradient. */
struct zr_cross_entropy {
    size_t rows, columns, stride; /* stride: elements per row of logits; columns to stride is padding */
    size_t first_column;          /* vocabulary index of column 0 */
    const int32_t *targets;       /* [rows], vocabulary indices */
    void *logits;                 /* floats */
    bool narrow; /* logits have the context's precision; requires a table with narrow_logits */
    float *losses;
    /* Overwrite the logits by the gradient of (sum of losses) * scale, in the context's precision. Each row
     * of the gradient begins where its logits began; padding is zero. */
    bool gradient;
    float scale;
    struct zr_softmax_part *parts;     /* [rows]; NULL: `columns` is the whole vocabulary */
    const struct zr_softmax_part *all; /* [rows] */
};

/* Merges the parts of several ranks, in the order of the ranks. */
struct zr_softmax_merge {
    size_t rows;
    unsigned count;
    const struct zr_softmax_part *parts; /* [count][rows] */
    struct zr_softmax_part *all;         /* [rows] */
};

/* Result of weigh_gradients(). */
struct zr_gradient_weight {
    double norm;      /* without the loss scale */
    float clip_scale; /* 1: not clipped */
    float scale;      /* factor for each gradient: clipping divided by the loss scale */
    uint32_t skips;   /* 1: the norm is not finite; updates are skipped */
};
/* The norm of all gradients from sums of squares [ranks][units], added by unit, and within a unit by rank. */
struct zr_weigh_gradients {
    size_t units, ranks;
    const double *squares;
    double loss_scale; /* factor contained in the gradients */
    double clip;       /* largest norm; 0: no clipping */
    struct zr_gradient_weight *weight;
};

/* Values of an update that change from step to step; a CUDA graph reads them from memory when it is launched
 * again. */
struct zr_step_rates {
    float rate, correction1, correction2, unused;
};
struct zr_adamw {
    float rate, beta1, beta2, epsilon, weight_decay; /* weight_decay: 0 for tensors without decay */
    float gradient_scale;                            /* multiplies each gradient first: clipping */
    float correction1, correction2;                  /* 1 - beta^t */
    /* If not NULL, in the table's memory: its `scale` replaces gradient_scale, and its `skips` skips the
     * update. */
    const struct zr_gradient_weight *weight;
    /* If not NULL, in the table's memory: its corrections replace these, and its rate multiplies `rate`. */
    const struct zr_step_rates *rates;
};
/* momentum = momentum_factor * momentum + gradient + weight_decay * parameter; parameter -= rate * momentum.
 * Each product and each sum is rounded. */
struct zr_sgd {
    float rate, momentum_factor, weight_decay; /* weight_decay: 0 for tensors without decay */
    float gradient_scale;                      /* multiplies each gradient first: clipping */
    const struct zr_gradient_weight *weight;   /* see zr_adamw, as well as rates */
    const struct zr_step_rates *rates;
};
/* n elements that one optimizer step updates. */
struct zr_update {
    size_t n;
    struct zr_numbers gradient;  /* fp32, or the precision of `parameter` (any if parameter.at is NULL) */
    float *master;               /* updated; in fp32 training the parameters themselves */
    float *momentum, *variance;  /* updated; variance NULL for SGD */
    struct zr_numbers parameter; /* written: the new master, rounded; `at` NULL: not written */
};
struct zr_update_adamw {
    struct zr_adamw how;
    struct zr_update numbers;
};
struct zr_update_sgd {
    struct zr_sgd how;
    struct zr_update numbers;
};

/* Block-wise 8-bit optimizer state (Dettmers, Lewis, Shleifer, Zettlemoyer: 8-bit Optimizers via Block-wise
 * Quantization, 2022). A number of a block is `scale`, the block's largest magnitude, times a value of the
 * state's map (kernels/block8.h). Codes that no number has are 0. A cleared block is a block of zeros. A
 * largest magnitude below 2^-100 becomes 0. With an infinity or NaN in it a whole block becomes NaN. */
enum { ZR_BLOCK8_NUMBERS = 256 };
struct zr_block8 {
    float scale;
    uint8_t codes[ZR_BLOCK8_NUMBERS];
};
/* update_adamw() with momentum and variance in blocks. Element 0 is a block's first number; the last block
 * may have fewer. The new moments enter the update as floats and are rounded to codes afterwards. */
struct zr_update_adamw8 {
    struct zr_adamw how;
    struct zr_update numbers;              /* momentum and variance: ignored */
    struct zr_block8 *momentum, *variance; /* updated: ceil(n / 256) blocks */
};
/* Blocks to floats and back, for checkpoints. Numbers that block8_read() has written become the same blocks
 * again, bit for bit. */
struct zr_block8_read {
    size_t n;
    bool is_signed; /* momentum; false: variance */
    const struct zr_block8 *blocks;
    float *to;
};
struct zr_block8_write {
    size_t n;
    bool is_signed; /* false: signs are dropped */
    const float *from;
    struct zr_block8 *blocks;
};

/* Adafactor (Shazeer, Stern: Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018), with
 * decoupled weight decay: epsilon1 is added to each square and bounds the second moments, which may
 * underflow. A step of a matrix is factor_sums(), factor_moments(), factor_norm() and update_factored(); a
 * vector needs the last two. All sums are doubles, so the parts of a tensor can have different owners.
 * Products and sums of floats are rounded one by one. */
struct zr_adafactor {
    float rate, weight_decay;
    float share;              /* 1 - beta2_t = t^-0.8: share of the new squares in the second moments */
    float step_max;           /* t^-0.5, the largest relative step if `rate` is larger */
    float epsilon1, epsilon2; /* 1e-30, 1e-3 */
    float threshold;          /* d, the largest root mean square of an update: 1 */
    float gradient_scale;
    const struct zr_gradient_weight *weight; /* see zr_adamw */
    /* If not NULL, in the table's memory: its rate multiplies `rate`, correction1 replaces `share` and
     * correction2 `step_max`. */
    const struct zr_step_rates *rates;
    bool relative; /* steps are relative to the tensor's size; false: step_max and epsilon2 are ignored */
    float momentum_factor; /* with numbers.momentum: at least 0, below 1 */
};
/* Elements [first, first + n) of a matrix of `columns` columns, in row-major order; both end rows may be cut.
 * The squares of the scaled gradients are added to row_sums, by row from the matrix's row 0, and to
 * column_sums [columns]. The order of additions depends on first, n and columns only: a row as a block of
 * sum_of_squares(), a column in eight sums, row r in sum r % 8. */
struct zr_factor_sums {
    size_t n, first, columns;
    struct zr_numbers gradient;
    float gradient_scale;
    const struct zr_gradient_weight *weight;
    double *row_sums, *column_sums; /* added to; a skipped update leaves both unchanged */
};
/* Factors of a whole matrix, moved by `share` towards the means of the squares, each more by epsilon1:
 * row_sums [parts][rows] and column_sums [parts][columns], added in order of the parts. row_mean: the mean of
 * the new row factors, whose order of additions depends on `rows` only. */
struct zr_factor_moments {
    struct zr_adafactor how;
    size_t rows, columns, parts;
    size_t stride; /* numbers from a part's sums to the next part's, of both arrays; 0: they are dense */
    const double *row_sums, *column_sums;
    float *row_factors, *column_factors; /* updated: [rows], [columns]; initially 0 */
    float *row_mean;
};
/* Second moments of a part of a matrix, see zr_factor_sums. */
struct zr_factors {
    size_t first, columns;
    const float *row_factors, *column_factors, *row_mean; /* of the whole matrix */
};
/* squares[0]: the sum of u^2, u = g / sqrt(max(V, epsilon1)) with the scaled gradient g and V = row factor *
 * column factor / max(row mean, epsilon1); squares[1], with `relative`: the sum of the master's squares. The
 * order of additions is sum_of_squares()'s. After a skipped update `squares` has no meaning. If
 * numbers.variance is not NULL the part is of a vector: V is the variance, which is first moved by `share`
 * towards g^2 + epsilon1. */
struct zr_factor_norm {
    struct zr_adafactor how;
    struct zr_factors factors; /* ignored for a vector */
    struct zr_update numbers;  /* momentum and parameter: ignored */
    double *squares;           /* [2] */
};
/* master = master (1 - rate weight_decay) - step u / max(1, rms(u) / threshold), with step = rate, or with
 * `relative` min(rate, step_max) max(epsilon2, rms(master)). The root mean squares are those of the whole
 * tensor before the update. With numbers.momentum the steps are averaged: momentum = momentum_factor momentum
 * + (1 - momentum_factor) step u / .., and master = master (1 - rate weight_decay) - momentum. */
struct zr_update_factored {
    struct zr_adafactor how;
    struct zr_factors factors; /* as factor_norm() had them */
    struct zr_update numbers;  /* momentum: NULL, or updated; variance: NULL, or a vector's, only read */
    size_t parts, elements;    /* parts and numbers of the whole tensor */
    const double *squares;     /* [parts][2] from factor_norm(), added in order of the parts */
    size_t stride;             /* numbers from a part's squares to the next part's; 0: 2 */
};

/* Muon (Jordan et al.: Muon: An optimizer for hidden layers in neural networks, 2024): momentum, then the
 * nearest orthogonal matrix in place of the direction. Products and sums are rounded one by one, except in
 * orthogonalize().
 *
 * momentum = momentum_factor * momentum + g; direction = g + momentum_factor * momentum (Nesterov), with the
 * scaled gradient g */
struct zr_muon_direction {
    size_t n;
    struct zr_numbers gradient;
    float gradient_scale, momentum_factor;
    const struct zr_gradient_weight *weight; /* see zr_adamw */
    float *momentum;                         /* updated */
    float *direction;                        /* written; a skipped update leaves both unchanged */
};
/* x [rows, columns] = x / (norm(x) + 1e-7), then five Newton-Schulz iterations x = a x + (b A + c A^2) x with
 * A = x x^T and (a, b, c) = (3.4445, -4.7750, 2.0315); with more rows than columns on the transpose. Products
 * are fp32 at every precision of the context. */
struct zr_orthogonalize {
    size_t rows, columns;
    float *x;
    void *workspace; /* orthogonalize_bytes(), aligned to 64 bytes */
    size_t workspace_bytes;
};
/* master = master (1 - rate weight_decay) - rate scale direction */
struct zr_apply_direction {
    float rate, scale, weight_decay;
    const struct zr_gradient_weight *weight; /* see zr_adamw, as well as rates; only its `skips` is used */
    const struct zr_step_rates *rates;
    const float *direction;
    struct zr_update numbers; /* gradient, momentum and variance: ignored */
};

/* LAMB (You et al.: Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, 2019). The step
 * r of an element is AdamW's: the corrected momentum, divided by the root of the corrected variance plus
 * epsilon, plus weight_decay times the master. Its rate is multiplied by the trust ratio of the whole tensor:
 * norm(master) / norm(r), within trust_min and trust_max, or 1 where a norm is 0 or not finite.
 *
 * A step is lamb_norms() and update_lamb(). All sums are doubles, so the parts of a tensor can have different
 * owners. */
struct zr_lamb {
    struct zr_adamw adam;
    float trust_min, trust_max; /* at least 0; trust_max at least trust_min */
};
/* Moves momentum and variance. squares[0]: the sum of r^2, squares[1]: that of the master's squares, both
 * before the update, in the order of sum_of_squares(). After a skipped update `squares` has no meaning. */
struct zr_lamb_norms {
    struct zr_lamb how;
    struct zr_update numbers; /* parameter: ignored; master: only read */
    double *squares;          /* [2] */
};
/* master = master - rate trust r */
struct zr_update_lamb {
    struct zr_lamb how;
    struct zr_update numbers; /* gradient: ignored; momentum and variance: only read, as lamb_norms() left
                               * them */
    size_t parts;             /* of the whole tensor */
    const double *squares;    /* [parts][2] from lamb_norms(), added in order of the parts */
    size_t stride;            /* numbers from a part's squares to the next part's; 0: 2 */
    const float *trust;       /* the trust ratio, in the table's memory; NULL: that of `squares` */
};

/* Exponential moving average of masters: average = decay average + (1 - decay) master, each rounded; or the
 * two change places. */
struct zr_average {
    size_t n;
    float decay;
    bool exchanges;
    const struct zr_gradient_weight *weight; /* see zr_adamw; only its `skips` is used; NULL: none */
    float *average, *master;
};

/* The outer step of groups that train apart (DiLoCo, https://arxiv.org/abs/2311.08105), by element. With
 * `differs` only gradient = anchor - master. Else SGD with Nesterov momentum moves the anchor, and the master
 * towards it; each product and sum is rounded:
 *   momentum = momentum_factor momentum + gradient
 *   anchor = anchor - rate (gradient + momentum_factor momentum)
 *   master = mix master + (1 - mix) anchor; with mix 0 the anchor itself */
struct zr_outer_step {
    size_t n;
    bool differs;
    float rate, momentum_factor, mix;
    float *gradient, *anchor, *master;
    float *momentum; /* with `differs` not used */
};

/* Sum of squares in double. The order of additions depends on n only: blocks of 4,096 elements, groups of 64
 * blocks in order, then the groups in order. */
struct zr_sum_of_squares {
    size_t n;
    struct zr_numbers x;
    double *sum;
};
/* Index of the first NaN or infinity; n if all numbers are finite. */
struct zr_find_nonfinite {
    size_t n;
    struct zr_numbers x;
    size_t *index;
};
/* 64-bit checksum of memory. */
struct zr_checksum {
    size_t bytes;
    const void *data;
    uint64_t *sum;
};
/* x[i] = mean + deviation * normal(seed, first_index + i). The global index makes the values the same on any
 * rank. */
struct zr_init_normal {
    size_t n;
    uint64_t seed, first_index;
    float mean, deviation;
    float *x;
};
/* to[i] = from[i], rounded if `to` is narrower. The arrays do not overlap. */
struct zr_convert {
    size_t n;
    struct zr_numbers from, to;
};
/* Sets bytes to zero, which is 0 at every precision. */
struct zr_clear {
    size_t bytes;
    void *to;
};
/* to[bytes] = from[bytes]; the ranges do not overlap. One of the two may be host memory. With `waits` the
 * copy and all earlier operations have completed on return. Without it the host memory must be pinned
 * (kernels/streams.h) and unchanged until the copy completes. */
struct zr_copy_bytes {
    size_t bytes;
    const void *from;
    void *to;
    bool waits;
};
/* to[i] (+)= ((from[0][i] + from[1][i]) + ...) * scale, in the order of the list, computed in floats and
 * rounded once. `to` has the precision of the sources, and may be one of them, or is fp32. With a NULL
 * context sum() runs on the calling thread, is thread-safe and cannot fail; the communicator uses it so. */
struct zr_sum {
    size_t n;
    const void *const *from;
    unsigned count;
    enum zr_precision precision; /* precision of the sources */
    float scale;
    bool accumulate;
    struct zr_numbers to;
};

/* Formats of packed numbers, for collectives. A block is ZR_PACK_BLOCK numbers, the last one padded with
 * zeros, so a block's bytes depend only on its numbers, and packed parts whose borders are borders of blocks
 * are the packed whole. Packing is the same on every instruction set.
 *
 *                 bytes of a block
 *   onebit              68   a sign each (of 0: +); the scale is the root of the mean square
 *   int8               520   -127 to 127; a scale for each 256, of the largest magnitude
 *   int4               272   -7 to 7; a scale for each 128
 *   int4_rotated       272   the same, after a Hadamard transform of each 32 numbers that are 16 apart
 *   mxfp8              528   E4M3 with a power of two for each 32 (OCP Microscaling Formats, 2023)
 *
 * An infinity or NaN makes all numbers of its scale NaN. An integer scale of magnitudes below 2^-100 is 0. */
enum zr_packing {
    ZR_PACKING_ONEBIT = 0,
    ZR_PACKING_INT8,
    ZR_PACKING_INT4,
    ZR_PACKING_INT4_ROTATED,
    ZR_PACKING_MXFP8,
    ZR_PACKINGS_COUNT
};
enum { ZR_PACK_BLOCK = 512 };
ZR_API const char *zr_packing_name(enum zr_packing packing); /* "onebit", .. */
/* Of n packed numbers. Saturates. */
ZR_API size_t zr_pack_bytes(enum zr_packing packing, size_t n);
/* to = pack(from - minus + error), error = what was not packed, so that the sum of what was packed and the
 * last error is the sum of the numbers. A block with an infinity or NaN leaves its errors as they are. */
struct zr_pack {
    enum zr_packing packing;
    size_t n;
    struct zr_numbers from, minus; /* fp32, or both of the context's precision or fp32; minus.at NULL: 0 */
    float *error;                  /* [n], in and out; NULL: none */
    void *to;                      /* [zr_pack_bytes(packing, n)], of any alignment */
    size_t *nonfinite;             /* lowered to the index of the first infinity or NaN; NULL: not wanted */
};
/* to[i] (+)= ((from[0][i] + from[1][i]) + ...) * scale, in the order of the list, computed in floats and
 * rounded once. `to` is fp32 or of the context's precision. */
struct zr_unpack {
    enum zr_packing packing;
    size_t n;
    const void *const *from; /* packed */
    unsigned count;
    float scale;
    bool accumulate;
    struct zr_numbers to;
};

/* ---- The table ----------------------------------------------------------------------------------------- */

struct zr_kernel_streams;

#define ZR_KERNELS_VERSION 13

#define ZR_KERNEL(name) zr_result (*name)(struct zr_kernel_context *, const struct zr_##name *)

/* One table per implementation. Operations return ZR_ERR_INVALID for a context that is not open and for a
 * problem larger than its workspace. */
struct zr_kernels {
    uint32_t version; /* ZR_KERNELS_VERSION */
    const char *name; /* "cpu", "cuda", "null" */
    /* Capabilities. */
    bool executes;           /* false: operations read and write nothing; used for planning */
    bool host_visible;       /* the host can read and write the tensors */
    bool deterministic_sums; /* the bits depend neither on threads nor on timing */
    /* attention_backward() reads the probabilities that attention_forward() stored. False: it always
     * recomputes them. */
    bool reads_probabilities;
    /* cross_entropy() supports `narrow`, and linear_backward() `dw_floats`. A head that uses both rounds dw
     * once for all chunks of its rows. False: both are ignored. */
    bool narrow_logits;

    /* Workspace for any single operation within `limits`. Depends only on limits and isa, so a plan can be
     * made without the hardware. Saturates. */
    size_t (*workspace_bytes)(const struct zr_kernel_limits *limits, enum zr_isa isa);
    /* Workspace of orthogonalize() for args->rows and args->columns, the same in every table. Saturates. */
    size_t (*orthogonalize_bytes)(const struct zr_orthogonalize *args);
    /* Open or close a context, in the process that uses it, after fork. Closing a context that is not open is
     * allowed. ZR_ERR_INVALID: a field of the context is invalid. ZR_ERR_UNAVAILABLE: the processor lacks the
     * instruction set, the card lacks fp8, or the matrix library fails to start. */
    zr_result (*open)(struct zr_kernel_context *context);
    void (*close)(struct zr_kernel_context *context);
    /* Human-readable name of the library that computes large matrix products in an open context
     * ("cuBLASLt 13.0.2"), or of its replacement and the reason. Valid until close(). NULL: the table has one
     * implementation. */
    const char *(*products)(const struct zr_kernel_context *context);
    /* Streams and events, see kernels/streams.h. NULL: operations are synchronous. */
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
    ZR_KERNEL(dropout);
    ZR_KERNEL(cross_entropy);
    ZR_KERNEL(softmax_merge);

    /* Optional: several of the above in one pass. NULL: the caller uses the separate operations. */
    ZR_KERNEL(residual_layernorm);
    ZR_KERNEL(residual_rmsnorm);
    ZR_KERNEL(gelu_bias_backward);

    /* Optional: fused products. NULL: the caller uses linear_forward(), gelu_forward() and so on, which round
     * in between; two-byte results differ in their last bits. */
    ZR_KERNEL(linear_gelu_forward);
    ZR_KERNEL(linear_residual_forward);
    ZR_KERNEL(linear_gelu_backward);

    /* On optimizer state, at the precision of their arguments. */
    ZR_KERNEL(weigh_gradients);
    ZR_KERNEL(update_adamw);
    ZR_KERNEL(update_sgd);
    ZR_KERNEL(update_adamw8);
    ZR_KERNEL(block8_read);
    ZR_KERNEL(block8_write);
    ZR_KERNEL(factor_sums);
    ZR_KERNEL(factor_moments);
    ZR_KERNEL(factor_norm);
    ZR_KERNEL(update_factored);
    ZR_KERNEL(muon_direction);
    ZR_KERNEL(orthogonalize);
    ZR_KERNEL(apply_direction);
    ZR_KERNEL(lamb_norms);
    ZR_KERNEL(update_lamb);
    ZR_KERNEL(average);
    ZR_KERNEL(outer_step);
    ZR_KERNEL(sum_of_squares);
    ZR_KERNEL(find_nonfinite);
    ZR_KERNEL(checksum);
    ZR_KERNEL(init_normal);
    ZR_KERNEL(convert);
    ZR_KERNEL(clear);
    ZR_KERNEL(copy_bytes);
    ZR_KERNEL(sum);

    /* Optional. NULL: the table packs no numbers. */
    ZR_KERNEL(pack);
    ZR_KERNEL(unpack);
};
#undef ZR_KERNEL

/* Tables are constants of the library. */
ZR_API const struct zr_kernels *zr_kernels_cpu(enum zr_isa isa);
ZR_API const struct zr_kernels *zr_kernels_null(void);
/* Null table with the workspace_bytes, host_visible, reads_probabilities and narrow_logits of `table`, so a
 * plan needs the same memory. */
ZR_API const struct zr_kernels *zr_kernels_null_of(const struct zr_kernels *table);
/* NVIDIA GPUs. The caller makes the device's primary context current before it opens or uses a context. All
 * memory, including the workspace and scalar results, is device memory. Operations are queued in the
 * context's stream; asynchronous errors are reported by a later driver call. `parallel` is ignored, and sum()
 * requires a context. A context without a workspace can be opened, but refuses sum_of_squares() and some
 * products. Attention supports heads of up to 256 numbers; two-byte heads 64, 96 and 128 wide in tensors
 * aligned to 16 bytes use tensor cores and round probabilities; other heads, and attention with a window or a
 * scale, keep them as floats. cuBLASLt
 * computes products of at least 64 x 64 x 64 whose rows are aligned to 16 bytes, if it can be loaded; see
 * products(). open() returns ZR_ERR_UNAVAILABLE without a driver, with a driver older than CUDA 12.0, in a
 * build without GPU kernels, and where 16 contexts of the process are open. */
ZR_API const struct zr_kernels *zr_kernels_cuda(void);

#ifdef __cplusplus
}
#endif

#endif
