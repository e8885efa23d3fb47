/* attention_mma.cu: causal attention on tensor cores, for bf16 and fp16 and heads 64, 96 and 128 wide
 * (attention.cu has the others), with the tiling of Dao, FlashAttention-2, 2023. Scores are stored in
 * registers only.
 *
 * A block of four warps computes a tile of queries (forward, and gradients of queries) or of keys (gradients
 * of keys and values), and each warp 16 or 32 of its rows. Tiles of the other side are copied to shared
 * memory asynchronously, 64 rows at a time. A lane's fragment of a product's sums, rounded to two bytes, is
 * the A fragment of the next product (mma.h), so probabilities and their gradients never leave registers. The
 * width of a head and the rows per warp are constants in every kernel, so that arrays are registers.
 *
 * Rows after the last token are zeros in shared memory. As keys they come after every query and are masked.
 * As queries they add zeros to gradients, and they are not stored.
 *
 * The order of every sum is fixed: one block computes the whole sum of a gradient, over the queries of each
 * head of the group in order, without atomics. Backward stores row statistics, 8 bytes per row and head,
 * where the gradients of queries are written later: the kernel of these gradients runs last. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma.h"

enum {
    TILE = CUDA_MMA_TILE, /* rows of a tile in shared memory */
    CHUNK = 16,           /* rows of a tile that are multiplied at once */
    CHUNKS = TILE / CHUNK,
    WIDEST = 128,
    STEPS = WIDEST / 16,
    PADDING = 8, /* elements after a row in shared memory, so that 8 rows of 16 bytes use all 32 banks */
    COPY_ROWS = 8 * CUDA_MMA_WARPS,
    COPY_COLUMNS = 32
};

/* Exponentials are computed as powers of two: exp(x) = 2^(x log2(e)). */
#define LOG2_E 1.44269504088896340736f
/* A row's running maximum is raised only if it would grow by more than RISE, as an exponent of two. Until
 * then the exponentials are at max_score 2^8, and a rescaling is saved. */
#define RISE 8.0f
/* The maximum before the first score. It is finite, because a row's first tile may have no key of the row's
 * document, and then exponentials of masked scores must be 0. */
#define LEAST_SCORE (-1e30f)

/* Statistics of a query for backward: the dot product of dout and out, and the log-sum-exp to base 2. */
struct ALIGNED(8) row_statistics {
    float delta, lse2;
};
struct ALIGNED(16) row_statistics_pair {
    struct row_statistics of[2];
};

/* A product's sums of 16 rows and 16 columns: half[0] has columns 0 to 7, half[1] columns 8 to 15. */
struct sums {
    float half[2][4];
};

DEVICE int row_stride(const int width)
{
    return width + PADDING;
}

/* The thread's warp, by a shuffle: the compiler then knows that all lanes have the same value, and that
 * branches on the value do not diverge. */
DEVICE unsigned uniform_warp(void)
{
    return __shfl_sync(ALL_LANES, warp_of_thread(), 0);
}

/* The number of chunks of a tile that have tokens, if `left` tokens remain. */
DEVICE int chunks_of(unsigned left)
{
    return left < TILE ? (int)(left + CHUNK - 1) / CHUNK : CHUNKS;
}

/* Addresses of a lane's loads of matrices from a tile: of the tile's rows, and of its rows as columns. */
DEVICE shared_el lane_row(const el *tile, const int width)
{
    return shared_el_of(tile + matrices_offset((unsigned)row_stride(width)));
}

DEVICE shared_el lane_column(const el *tile, const int width)
{
    return shared_el_of(tile + matrices_offset_of_columns((unsigned)row_stride(width)));
}

/* Address of a thread's part of a copy, in the rows of a tensor from token `first` on. Eight lanes write 16
 * bytes of 8 rows, which are in different banks, and a warp reads 64 bytes of each row. */
DEVICE const el *copy_from(const el *from, unsigned line, unsigned first)
{
    unsigned row = warp_of_thread() * 8 + lane_of_thread() % 8;
    return from + (size_t)(first + row) * line + lane_of_thread() / 8 * EL_PACK;
}

/* Called by all threads: copies `rows` rows from token `first` on. The thread's part begins at `at`. */
DEVICE void copy_part(el *tile, const el *at, unsigned line, unsigned first, unsigned tokens, const int rows,
                      const int width)
{
    unsigned row = warp_of_thread() * 8 + lane_of_thread() % 8;
    el *to = tile + row * (unsigned)row_stride(width) + lane_of_thread() / 8 * EL_PACK;
    UNROLL
    for (int r = 0; r < rows; r += COPY_ROWS) {
        bool there = first + row + (unsigned)r < tokens;
        UNROLL
        for (int c = 0; c < width; c += COPY_COLUMNS)
            if (r + COPY_ROWS <= rows || r + (int)row < rows)
                copy_16_bytes(to + r * row_stride(width) + c, at + c, there);
        at += (size_t)COPY_ROWS * line;
    }
}

DEVICE void copy_tile(el *tile, const el *from, unsigned line, unsigned first, unsigned tokens,
                      const int rows, const int width)
{
    copy_part(tile, copy_from(from, line, first), line, first, tokens, rows, width);
}

/* Writes a warp's 16 rows of a result to its rows of a tile. Rows g are multiplied by `factor`, rows g + 8 by
 * `factor_below`. */
DEVICE void put_rows(el *tile, float (*sums)[4], float factor, float factor_below, const int width)
{
    unsigned lane = lane_of_thread();
    uint32_t *to = (uint32_t *)(void *)(tile + lane / 4 * (unsigned)row_stride(width) + lane % 4 * 2);
    UNROLL
    for (int n = 0; n < width / 8; n++) {
        to[n * 4] = el_pair(sums[n][0] * factor, sums[n][1] * factor);
        to[n * 4 + 4 * row_stride(width)] = el_pair(sums[n][2] * factor_below, sums[n][3] * factor_below);
    }
}

/* Stores a warp's rows of a tile in memory, from token `first` on. */
DEVICE void store_rows(el *out, unsigned line, const el *tile, unsigned first, unsigned tokens,
                       const int rows, const int width)
{
    unsigned row = lane_of_thread() % 8, column = lane_of_thread() / 8 * EL_PACK;
    el *to = out + (size_t)(first + row) * line + column;
    const el *from = tile + row * (unsigned)row_stride(width) + column;
    __syncwarp(ALL_LANES);
    UNROLL
    for (int r = 0; r < rows; r += 8) {
        UNROLL
        for (int c = 0; c < width; c += COPY_COLUMNS)
            if (first + row + (unsigned)r < tokens)
                *(struct pack_words *)(void *)(to + c) =
                    *(const struct pack_words *)(const void *)(from + r * row_stride(width) + c);
        to += (size_t)8 * line;
    }
}

/* The A fragment that consists of sums of 16 rows and 16 columns. */
DEVICE struct matrices fragment_of(float (*half)[4])
{
    struct matrices a = {{el_pair(half[0][0], half[0][1]), el_pair(half[0][2], half[0][3]),
                          el_pair(half[1][0], half[1][1]), el_pair(half[1][2], half[1][3])}};
    return a;
}

/* sums (16 x 16) += a b */
DEVICE void multiply(float (*half)[4], const struct matrices *a, const struct matrices *b)
{
    mma(half[0], a, b->part[0], b->part[1]);
    mma(half[1], a, b->part[2], b->part[3]);
}

/* Clears sums of 16 rows and `count` times 8 columns. */
DEVICE void clear_sums(float (*sums)[4], const int count)
{
    UNROLL
    for (int n = 0; n < count; n++)
        UNROLL
    for (int i = 0; i < 4; i++)
        sums[n][i] = 0;
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

enum { STRIPS = CUDA_MMA_QUERIES / CUDA_MMA_WARPS / 16 }; /* strips of 16 queries per warp */

/* Running state per row of a lane (rows g and g + 8 of each strip): a score that no later one exceeds by more
 * than RISE, the lane's part of the sum of exponentials, and the values weighted with these. */
struct running {
    float max_score[STRIPS][2], sum[STRIPS][2], values[STRIPS][WIDEST / 8][4];
};
typedef float scores[STRIPS][TILE / 8][4];

DEVICE void find_scores(scores s, shared_el q_row, shared_el k_column, const int keys, const int width)
{
    UNROLL
    for (int m = 0; m < STRIPS; m++)
        clear_sums(s[m], keys / 8);
    UNROLL
    for (int step = 0; step < width; step += 16) {
        struct matrices q[STRIPS];
        UNROLL
        for (int m = 0; m < STRIPS; m++)
            q[m] = matrices_load(q_row, m * 16 * row_stride(width) + step);
        UNROLL
        for (int c = 0; c < keys / CHUNK; c++) {
            struct matrices k = matrices_load(k_column, c * CHUNK * row_stride(width) + step);
            UNROLL
            for (int m = 0; m < STRIPS; m++)
                multiply(&s[m][2 * c], &q[m], &k);
        }
    }
}

/* Number of tokens before token t of sequence blockIdx.z that t attends to: those of its document, or all.
 * Distances of later keys are larger, as unsigned numbers. The address is computed each time, so that no
 * register holds it during the loop. */
DEVICE unsigned reach_of(const struct zr_attention *s, unsigned t)
{
    return s->positions && t < s->sequence ? (unsigned)s->positions[blockIdx.z * s->sequence + t] : ~0u >> 2;
}

/* Masks the keys after each row's query, and those before its document. The tile's first key is token `at`,
 * and the warp's first query token `own`. */
DEVICE void mask_scores(scores s, const struct zr_attention *shape, unsigned at, unsigned own, const int keys)
{
    unsigned row = own + lane_of_thread() / 4, column = at + lane_of_thread() % 4 * 2;
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            unsigned t = row + (unsigned)(m * 16 + half * 8);
            int last = (int)(t - column), before = last - (int)reach_of(shape, t);
            UNROLL
            for (int n = 0; n < keys / 8; n++)
                UNROLL
            for (int i = 0; i < 2; i++)
                if (n * 8 + i > last || n * 8 + i < before)
                    s[m][n][half * 2 + i] = -INFINITY;
        }
    }
}

/* Raises the running maxima and rescales the sums accordingly. */
DEVICE void rescale(struct running *r, float (*max_score)[2], float scale2, const int width)
{
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            float now = fmaxf(r->max_score[m][h], max_score[m][h]),
                  before = exp2_approximate((r->max_score[m][h] - now) * scale2);
            r->max_score[m][h] = now;
            r->sum[m][h] *= before;
            UNROLL
            for (int n = 0; n < width / 8; n++) {
                r->values[m][n][2 * h] *= before;
                r->values[m][n][2 * h + 1] *= before;
            }
        }
    }
}

/* Raises the running maxima if exponentials of these scores would exceed 2^RISE. */
DEVICE void take_largest(struct running *r, scores s, float scale2, const int keys, const int width)
{
    float max_score[STRIPS][2];
    bool rises = false;
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            float x = fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]);
            UNROLL
            for (int n = 1; n < keys / 8; n++)
                x = fmaxf(x, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
            max_score[m][h] = x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
            rises = rises || (x - r->max_score[m][h]) * scale2 > RISE;
        }
    }
    if (__ballot_sync(ALL_LANES, rises))
        rescale(r, max_score, scale2, width);
}

/* Exponentials of a strip's scores of 16 keys, as the fragment for the product with the keys' values. */
DEVICE struct matrices exponentials(struct running *r, float (*half)[4], int strip, float scale2)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        float shift = -r->max_score[strip][i / 2] * scale2;
        half[0][i] = exp2_approximate(fmaf(half[0][i], scale2, shift));
        half[1][i] = exp2_approximate(fmaf(half[1][i], scale2, shift));
        r->sum[strip][i / 2] += half[0][i] + half[1][i];
    }
    return fragment_of(half);
}

DEVICE void add_values(struct running *r, scores s, shared_el v_row, float scale2, const int keys,
                       const int width)
{
    UNROLL
    for (int c = 0; c < keys / CHUNK; c++) {
        struct matrices p[STRIPS];
        UNROLL
        for (int m = 0; m < STRIPS; m++)
            p[m] = exponentials(r, &s[m][2 * c], m, scale2);
        UNROLL
        for (int d = 0; d < width / 16; d++) {
            struct matrices v = matrices_load_transposed(v_row, c * CHUNK * row_stride(width) + d * 16);
            UNROLL
            for (int m = 0; m < STRIPS; m++)
                multiply(&r->values[m][2 * d], &p[m], &v);
        }
    }
}

/* Stores the results of a warp, by way of its rows of the tile of queries. */
DEVICE void put_values(const struct zr_attention_forward *a, struct running *r, el *q_tile, unsigned own,
                       const int width)
{
    const struct zr_attention *s = &a->shape;
    unsigned tokens = (unsigned)s->sequence, lane = lane_of_thread();
    float *lse = a->lse + ((size_t)blockIdx.z * s->heads + blockIdx.y) * tokens;
    el *out = (el *)a->out + (size_t)blockIdx.z * tokens * s->channels + blockIdx.y * (unsigned)width;
    __syncwarp(ALL_LANES);
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            float sum = r->sum[m][half];
            unsigned t = own + (unsigned)(m * 16 + half * 8) + lane / 4;
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            r->sum[m][half] = sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            if (lane % 4 == 0 && t < tokens)
                lse[t] = r->max_score[m][half] * scale_of(width) + logf(sum);
        }
        put_rows(q_tile + m * 16 * row_stride(width), r->values[m], 1.0f / r->sum[m][0], 1.0f / r->sum[m][1],
                 width);
    }
    store_rows(out, (unsigned)s->channels, q_tile, own, tokens, STRIPS * 16, width);
}

/* A block computes a tile of queries of head blockIdx.y, sequence blockIdx.z; tiles with more keys come
 * first. The next keys are copied while values are added, and values while scores are computed. */
DEVICE void forward(const struct zr_attention_forward *a, const int keys, const int width)
{
    SHARED_DYNAMIC(el, q_tile);
    el *k_tile = q_tile + CUDA_MMA_QUERIES * row_stride(width), *v_tile = k_tile + keys * row_stride(width);
    struct head h = head_of(&a->shape, (const el *)a->qkv, blockIdx.z, blockIdx.y);
    unsigned tokens = (unsigned)h.tokens, first = (gridDim.x - 1 - blockIdx.x) * CUDA_MMA_QUERIES;
    unsigned end = first + CUDA_MMA_QUERIES < tokens ? first + CUDA_MMA_QUERIES : tokens;
    unsigned rows = uniform_warp() * STRIPS * 16, own = first + rows;
    el *q_own = q_tile + rows * (unsigned)row_stride(width);
    shared_el q_row = lane_row(q_own, width), k_column = lane_column(k_tile, width),
              v_row = lane_row(v_tile, width);
    float scale2 = scale_of(width) * LOG2_E;
    struct running r;
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            r.max_score[m][half] = LEAST_SCORE;
            r.sum[m][half] = 0;
        }
        clear_sums(r.values[m], width / 8);
    }
    const unsigned line = (unsigned)h.line;
    const unsigned begin = (unsigned)first_seen(&h, first) / (unsigned)keys * (unsigned)keys;
    const el *k_at = copy_from(h.k, line, begin); /* the next keys; their values are `values` further */
    const unsigned values = (unsigned)kv_heads_of(&a->shape) * (unsigned)width;
    copy_tile(q_tile, h.q, line, first, tokens, CUDA_MMA_QUERIES, width);
    copy_part(k_tile, k_at, line, begin, tokens, keys, width);
    for (unsigned at = begin; at < end; at += keys) {
        bool seen = at < own + STRIPS * 16 && own < tokens; /* uniform over the warp */
        scores s;
        copies_wait();
        __syncthreads(); /* the keys have arrived, and the tile of values is free */
        copy_part(v_tile, k_at + values, line, at, tokens, keys, width);
        k_at += (size_t)keys * line;
        if (seen)
            find_scores(s, q_row, k_column, keys, width);
        copies_wait();
        __syncthreads(); /* the values have arrived, and the tile of keys is free */
        if (at + keys < end)
            copy_part(k_tile, k_at, line, at + keys, tokens, keys, width);
        if (seen) {
            unsigned last = (own + STRIPS * 16 < tokens ? own + STRIPS * 16 : tokens) - 1;
            if (at + keys - 1 > own || last - at > reach_of(&a->shape, last))
                mask_scores(s, &a->shape, at, own, keys);
            take_largest(&r, s, scale2, keys, width);
            add_values(&r, s, v_row, scale2, keys, width);
        }
    }
    if (own < tokens)
        put_values(a, &r, q_own, own, width);
}

#define FORWARD(width)                                                                                       \
    KERNEL(K(attention_forward_##width), struct zr_attention_forward, CUDA_MMA_THREADS)                      \
    {                                                                                                        \
        forward(&a, CUDA_MMA_FORWARD_KEYS(width), width);                                                    \
    }
FORWARD(64)
FORWARD(96)
FORWARD(128)

/* ---- Backward: row statistics ----------------------------------------------------------------------------
 */

DEVICE struct row_statistics *statistics_of(void *dqkv, const struct head *h, const void *qkv, size_t token)
{
    return (struct row_statistics *)(void *)((el *)dqkv + (h->q - (const el *)qkv) + token * h->line);
}

/* Eight lanes compute the statistics of one token of one head. */
KERNEL(K(attention_row_statistics), struct zr_attention_backward, CUDA_THREADS)
{
    size_t heads = a.shape.heads, at = index_in_grid() / 8, lane = index_in_grid() % 8;
    bool there = at < a.shape.batch * a.shape.sequence * heads;
    size_t number = at % heads, token = at / heads % a.shape.sequence;
    size_t batch = there ? at / heads / a.shape.sequence : 0;
    struct head h = head_of(&a.shape, (const el *)a.qkv, batch, number);
    size_t row = (batch * h.tokens + token) * h.out_line + number * h.width;
    float delta = 0;
    for (size_t i = lane * EL_PACK; i < h.width && there; i += 8 * EL_PACK) {
        struct pack dout = pack_get(a.dout, row + i, EL_PACK), out = pack_get(a.out, row + i, EL_PACK);
        UNROLL
        for (int j = 0; j < EL_PACK; j++)
            delta = fmaf(dout.at[j], out.at[j], delta);
    }
    for (int other = 4; other > 0; other /= 2)
        delta += __shfl_xor_sync(ALL_LANES, delta, other);
    if (lane == 0 && there) {
        struct row_statistics *to = statistics_of(a.dqkv, &h, a.qkv, token);
        to->delta = delta;
        to->lse2 = a.lse[(batch * heads + number) * h.tokens + token] * LOG2_E;
    }
}

/* ---- Backward: gradients of scores -----------------------------------------------------------------------
 */

/* Replaces the score of a query and a key by the probability, and the product of dout and the key's value by
 * the gradient of the score, without the scale. */
DEVICE void find_gradient(float *score, float *product, const struct row_statistics *query, float scale2,
                          bool seen)
{
    float p = exp2_approximate(fmaf(*score, scale2, -query->lse2));
    p = seen ? p : 0;
    *score = p;
    *product = p * (*product - query->delta);
}

/* ---- Backward: keys and values ---------------------------------------------------------------------------
 */

enum { KEYS = CUDA_MMA_KEYS }; /* keys per block, 16 per warp */

/* A warp's keys and values, and their gradients. */
struct key_rows {
    struct matrices k[STEPS], v[STEPS];
    float dk[WIDEST / 8][4], dv[WIDEST / 8][4];
};

/* The tiles of queries that a block's keys are multiplied with: from the block's first key on, for each head
 * of the group. */
struct query_tiles {
    const el *q, *dout; /* of the current head */
    unsigned heads;     /* remaining heads, with the current one */
    unsigned queries;   /* first query of the current tile */
};

/* Copies one stage: a tile of queries, followed by the tile of their dout, and their statistics. */
DEVICE void copy_queries(el *q_tile, struct row_statistics *statistics, const struct query_tiles *from,
                         const struct zr_attention_backward *a, const struct head *h, const int width)
{
    const el *dq = (const el *)a->dqkv + (from->q - (const el *)a->qkv);
    unsigned tokens = (unsigned)h->tokens, token = from->queries + threadIdx.x;
    copy_tile(q_tile, from->q, (unsigned)h->line, from->queries, tokens, TILE, width);
    copy_tile(q_tile + TILE * row_stride(width), from->dout, (unsigned)h->out_line, from->queries, tokens,
              TILE, width);
    if (threadIdx.x < TILE)
        copy_8_bytes(&statistics[threadIdx.x], dq + (size_t)token * (unsigned)h->line, token < tokens);
}

/* Addresses of a lane's loads from a stage, for 16 queries. */
struct stage_lane {
    shared_el row, column;
    const struct row_statistics_pair *statistics;
    unsigned query; /* the lane's first one */
};

/* Adds 16 queries of a stage. `ahead`: tokens from the warp's first key to the first of the queries.
 * `masked`: some queries precede a key, or are of another document. */
DEVICE void take_chunk_of_queries(struct key_rows *r, const struct zr_attention *shape,
                                  const struct stage_lane *from, int ahead, bool masked, float scale2,
                                  const int width)
{
    const int behind = TILE * row_stride(width); /* offset of dout from its queries */
    int column = (int)(lane_of_thread() % 4) * 2, row = (int)(lane_of_thread() / 4);
    float p[2][4] = {{0}}, ds[2][4] = {{0}};
    UNROLL
    for (int step = 0; step < width / 16; step++) {
        struct matrices q = matrices_load(from->column, step * 16),
                        dout = matrices_load(from->column, behind + step * 16);
        multiply(p, &r->k[step], &q);
        multiply(ds, &r->v[step], &dout);
    }
    UNROLL
    for (int n = 0; n < 2; n++) {
        struct row_statistics_pair queries = from->statistics[n * 4];
        unsigned reach[2] = {0};
        UNROLL
        for (int i = 0; i < 2 && masked; i++)
            reach[i] = reach_of(shape, from->query + (unsigned)(n * 8 + i));
        UNROLL
        for (int i = 0; i < 4; i++)
            find_gradient(&p[n][i], &ds[n][i], &queries.of[i % 2], scale2,
                          !masked ||
                              (unsigned)(ahead + n * 8 + column + i % 2 - row - i / 2 * 8) <= reach[i % 2]);
    }
    struct matrices p_part = fragment_of(p), ds_part = fragment_of(ds);
    UNROLL
    for (int d = 0; d < width / 16; d++) {
        struct matrices dout = matrices_load_transposed(from->row, behind + d * 16),
                        q = matrices_load_transposed(from->row, d * 16);
        multiply(&r->dv[2 * d], &p_part, &dout);
        multiply(&r->dk[2 * d], &ds_part, &q);
    }
}

DEVICE void next_chunk(struct stage_lane *at, const int width)
{
    at->row = shared_el_behind(at->row, CHUNK * row_stride(width));
    at->column = shared_el_behind(at->column, CHUNK * row_stride(width));
    at->statistics += CHUNK / 2;
    at->query += CHUNK;
}

/* Adds `chunks` chunks of a tile of queries, which begins with token `query`. `ahead`: tokens from the warp's
 * first key to that. */
DEVICE void take_queries(struct key_rows *r, const struct zr_attention *shape, const el *q_tile,
                         const struct row_statistics *statistics, unsigned query, int chunks, int ahead,
                         const int width)
{
    struct stage_lane at = {lane_row(q_tile, width), lane_column(q_tile, width),
                            (const struct row_statistics_pair *)(const void *)statistics +
                                lane_of_thread() % 4,
                            query + lane_of_thread() % 4 * 2};
    const float scale2 = scale_of(width) * LOG2_E;
    if (ahead >= 15 && !shape->positions) {
        ROLLED
        for (int c = 0; c < chunks; c++, next_chunk(&at, width))
            take_chunk_of_queries(r, shape, &at, 0, false, scale2, width);
        return;
    }
    ROLLED
    for (int c = 0; c < chunks; c++, next_chunk(&at, width))
        if (ahead + (c + 1) * CHUNK > 0)
            take_chunk_of_queries(r, shape, &at, ahead + c * CHUNK, true, scale2, width);
}

/* Loads the fragments of keys and values, by way of the stages' memory. */
DEVICE void load_keys(struct key_rows *r, el *tiles, const struct head *h, unsigned first, const int width)
{
    const int behind = KEYS * row_stride(width); /* offset of the values from their keys */
    shared_el row = lane_row(tiles + warp_of_thread() * 16 * (unsigned)row_stride(width), width);
    copy_tile(tiles, h->k, (unsigned)h->line, first, (unsigned)h->tokens, KEYS, width);
    copy_tile(tiles + behind, h->v, (unsigned)h->line, first, (unsigned)h->tokens, KEYS, width);
    copies_wait();
    __syncthreads();
    UNROLL
    for (int step = 0; step < width / 16; step++) {
        r->k[step] = matrices_load(row, step * 16);
        r->v[step] = matrices_load(row, behind + step * 16);
    }
    clear_sums(r->dk, width / 8);
    clear_sums(r->dv, width / 8);
    __syncthreads();
}

/* Stores the gradients of key head blockIdx.y. Addresses are computed again, so that no register holds them
 * during the loop. */
DEVICE void put_keys(const struct zr_attention_backward *a, struct key_rows *r, el *tiles, unsigned first,
                     const int width)
{
    const unsigned kv_width = (unsigned)(kv_heads_of(&a->shape) * width);
    unsigned rows = warp_of_thread() * 16, tokens = (unsigned)a->shape.sequence,
             line = (unsigned)a->shape.channels + 2 * kv_width;
    el *k_tile = tiles + rows * (unsigned)row_stride(width), *v_tile = k_tile + KEYS * row_stride(width);
    el *dk = (el *)a->dqkv + blockIdx.z * a->shape.sequence * line + a->shape.channels + blockIdx.y * width;
    __syncthreads(); /* all warps have used the stages */
    put_rows(k_tile, r->dk, scale_of(width), scale_of(width), width);
    put_rows(v_tile, r->dv, 1, 1, width);
    store_rows(dk, line, k_tile, first + rows, tokens, 16, width);
    store_rows(dk + kv_width, line, v_tile, first + rows, tokens, 16, width);
}

/* A block computes the gradients of tile blockIdx.x of keys and values, of key head blockIdx.y, sequence
 * blockIdx.z. The next queries are copied while the current ones are used. */
DEVICE void backward_keys(const struct zr_attention_backward *a, const int width)
{
    SHARED_DYNAMIC(el, tiles);
    SHARED(struct row_statistics, statistics, 2 * TILE);
    const unsigned stage = 2 * TILE * (unsigned)row_stride(width);
    size_t group = a->shape.heads / kv_heads_of(&a->shape), number = blockIdx.y * group;
    struct head h = head_of(&a->shape, (const el *)a->qkv, blockIdx.z, number);
    unsigned tokens = (unsigned)h.tokens, first = blockIdx.x * KEYS, own = first + uniform_warp() * 16;
    struct query_tiles next = {h.q, (const el *)a->dout + blockIdx.z * h.tokens * h.out_line + number * width,
                               (unsigned)group, first};
    struct key_rows r;
    load_keys(&r, tiles, &h, first, width);
    copy_queries(tiles, statistics, &next, a, &h, width);
    for (unsigned parity = 0; next.heads > 0; parity ^= 1) {
        int ahead = (int)(next.queries - own), chunks = chunks_of(tokens - next.queries);
        unsigned query = next.queries;
        next.queries += TILE;
        if (next.queries >= tokens) {
            next.queries = first;
            next.q += width, next.dout += width;
            next.heads--;
        }
        copies_wait();
        __syncthreads(); /* the current queries have arrived, and the other stage is free */
        if (next.heads > 0)
            copy_queries(tiles + (parity ^ 1) * stage, statistics + (parity ^ 1) * TILE, &next, a, &h, width);
        take_queries(&r, &a->shape, tiles + parity * stage, statistics + parity * TILE, query, chunks, ahead,
                     width);
    }
    put_keys(a, &r, tiles, first, width);
}

#define BACKWARD_KEYS(width)                                                                                 \
    KERNEL(K(attention_backward_keys_##width), struct zr_attention_backward, CUDA_MMA_THREADS)               \
    {                                                                                                        \
        backward_keys(&a, width);                                                                            \
    }
BACKWARD_KEYS(64)
BACKWARD_KEYS(96)
BACKWARD_KEYS(128)

/* ---- Backward: queries -----------------------------------------------------------------------------------
 */

/* A warp's strips of 16 queries, their dout, their gradients, and the statistics and reach of a lane's rows.
 */
struct query_rows {
    struct matrices q[2][STEPS], dout[2][STEPS];
    struct row_statistics statistics[2][2];
    unsigned reach[2][2];
    float dq[2][WIDEST / 8][4];
};

/* Adds 16 keys of a stage, whose tile of keys is followed by the tile of their values. `ahead`: tokens from
 * the first of the keys to the warp's first query. `masked`: some keys come after a query, or are of another
 * document. */
DEVICE void take_chunk_of_keys(struct query_rows *r, shared_el k_row, shared_el k_column, int ahead,
                               bool masked, float scale2, const int strips, const int width)
{
    const int values = TILE * row_stride(width); /* offset of the values from their keys */
    int column = (int)(lane_of_thread() % 4) * 2, row = (int)(lane_of_thread() / 4);
    float p[2][2][4] = {{{0}}}, ds[2][2][4] = {{{0}}};
    UNROLL
    for (int step = 0; step < width / 16; step++) {
        struct matrices k = matrices_load(k_column, step * 16),
                        v = matrices_load(k_column, values + step * 16);
        UNROLL
        for (int m = 0; m < strips; m++) {
            multiply(p[m], &r->q[m][step], &k);
            multiply(ds[m], &r->dout[m][step], &v);
        }
    }
    struct matrices ds_part[2];
    UNROLL
    for (int m = 0; m < strips; m++) {
        UNROLL
        for (int n = 0; n < 2; n++)
            UNROLL
        for (int i = 0; i < 4; i++)
            find_gradient(&p[m][n][i], &ds[m][n][i], &r->statistics[m][i / 2], scale2,
                          !masked || (unsigned)(ahead + row + m * 16 + i / 2 * 8 - n * 8 - column - i % 2) <=
                                         r->reach[m][i / 2]);
        ds_part[m] = fragment_of(ds[m]);
    }
    UNROLL
    for (int d = 0; d < width / 16; d++) {
        struct matrices k = matrices_load_transposed(k_row, d * 16);
        UNROLL
        for (int m = 0; m < strips; m++)
            multiply(&r->dq[m][2 * d], &ds_part[m], &k);
    }
}

/* Adds `chunks` chunks of a tile of keys. `ahead`: tokens from the tile's first key to the warp's first
 * query. */
DEVICE void take_keys(struct query_rows *r, const el *k_tile, int chunks, int ahead, bool documents,
                      const int strips, const int width)
{
    const float scale2 = scale_of(width) * LOG2_E;
    const int step = CHUNK * row_stride(width);
    shared_el k_row = lane_row(k_tile, width), k_column = lane_column(k_tile, width);
    if (ahead >= TILE - 1 && !documents) {
        ROLLED
        for (int c = 0; c < chunks; c++) {
            take_chunk_of_keys(r, k_row, k_column, 0, false, scale2, strips, width);
            k_row = shared_el_behind(k_row, step), k_column = shared_el_behind(k_column, step);
        }
        return;
    }
    ROLLED
    for (int c = 0; c < chunks && c * CHUNK < ahead + strips * 16; c++) {
        take_chunk_of_keys(r, k_row, k_column, ahead - c * CHUNK, true, scale2, strips, width);
        k_row = shared_el_behind(k_row, step), k_column = shared_el_behind(k_column, step);
    }
}

/* Loads the fragments of queries and dout, by way of the stages' memory, and the statistics. */
DEVICE void load_queries(struct query_rows *r, const struct zr_attention_backward *a, el *tiles,
                         const struct head *h, unsigned first, const int strips, const int width)
{
    const int rows = CUDA_MMA_WARPS * strips * 16;
    unsigned own = warp_of_thread() * (unsigned)strips * 16, tokens = (unsigned)h->tokens;
    el *dout_tile = tiles + rows * row_stride(width);
    const el *dout = (const el *)a->dout + blockIdx.z * h->tokens * h->out_line + blockIdx.y * h->width;
    shared_el q_row = lane_row(tiles + own * (unsigned)row_stride(width), width);
    shared_el dout_row = lane_row(dout_tile + own * (unsigned)row_stride(width), width);
    copy_tile(tiles, h->q, (unsigned)h->line, first, tokens, rows, width);
    copy_tile(dout_tile, dout, (unsigned)h->out_line, first, tokens, rows, width);
    copies_wait();
    __syncthreads();
    UNROLL
    for (int m = 0; m < strips; m++) {
        UNROLL
        for (int step = 0; step < width / 16; step++) {
            r->q[m][step] = matrices_load(q_row, m * 16 * row_stride(width) + step * 16);
            r->dout[m][step] = matrices_load(dout_row, m * 16 * row_stride(width) + step * 16);
        }
        UNROLL
        for (int half = 0; half < 2; half++) {
            unsigned t = first + own + (unsigned)(m * 16 + half * 8) + lane_of_thread() / 4;
            struct row_statistics none = {0, 0};
            r->statistics[m][half] = t < tokens ? *statistics_of(a->dqkv, h, a->qkv, t) : none;
            r->reach[m][half] = reach_of(&a->shape, t);
        }
        clear_sums(r->dq[m], width / 8);
    }
    __syncthreads();
}

/* Copies one stage: a tile of keys, followed by the tile of their values. */
DEVICE void copy_keys(el *k_tile, const struct head *h, unsigned keys, const int width)
{
    unsigned tokens = (unsigned)h->tokens, line = (unsigned)h->line;
    copy_tile(k_tile, h->k, line, keys, tokens, TILE, width);
    copy_tile(k_tile + TILE * row_stride(width), h->v, line, keys, tokens, TILE, width);
}

/* A block computes the gradients of a tile of queries of head blockIdx.y, sequence blockIdx.z; tiles with
 * more keys come first. The next keys and values are copied while the current ones are used. */
DEVICE void backward_queries(const struct zr_attention_backward *a, const int strips, const int width)
{
    SHARED_DYNAMIC(el, tiles);
    const unsigned rows = CUDA_MMA_WARPS * (unsigned)strips * 16,
                   stage = 2 * TILE * (unsigned)row_stride(width);
    struct head h = head_of(&a->shape, (const el *)a->qkv, blockIdx.z, blockIdx.y);
    unsigned tokens = (unsigned)h.tokens, first = (gridDim.x - 1 - blockIdx.x) * rows;
    unsigned mine = uniform_warp() * (unsigned)strips * 16, own = first + mine;
    unsigned end = first + rows < tokens ? first + rows : tokens;
    struct query_rows r;
    const unsigned begin = (unsigned)first_seen(&h, first) / TILE * TILE;
    load_queries(&r, a, tiles, &h, first, strips, width);
    copy_keys(tiles, &h, begin, width);
    for (unsigned keys = begin, parity = 0; keys < end; keys += TILE, parity ^= 1) {
        copies_wait();
        __syncthreads(); /* the current keys have arrived, and the other stage is free */
        if (keys + TILE < end)
            copy_keys(tiles + (parity ^ 1) * stage, &h, keys + TILE, width);
        take_keys(&r, tiles + parity * stage, chunks_of(end - keys), (int)(own - keys),
                  a->shape.positions != NULL, strips, width);
    }
    el *own_tile = tiles + mine * (unsigned)row_stride(width);
    __syncthreads(); /* all warps have used the stages */
    UNROLL
    for (int m = 0; m < strips; m++)
        put_rows(own_tile + m * 16 * row_stride(width), r.dq[m], scale_of(width), scale_of(width), width);
    store_rows((el *)a->dqkv + (h.q - (const el *)a->qkv), (unsigned)h.line, own_tile, own, tokens,
               strips * 16, width);
}

#define BACKWARD_QUERIES(width, strips)                                                                      \
    KERNEL(K(attention_backward_queries_##width), struct zr_attention_backward, CUDA_MMA_THREADS)            \
    {                                                                                                        \
        backward_queries(&a, strips, width);                                                                 \
    }
BACKWARD_QUERIES(64, CUDA_MMA_QUERY_STRIPS(64))
BACKWARD_QUERIES(96, CUDA_MMA_QUERY_STRIPS(96))
BACKWARD_QUERIES(128, CUDA_MMA_QUERY_STRIPS(128))
