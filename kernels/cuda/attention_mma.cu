/* attention_mma.cu: causal attention on tensor cores, for bf16 and fp16 and heads 64, 96 and 128 wide
 * (others: attention.cu): the tiling of Dao, FlashAttention-2, 2023. Scores exist in registers alone.
 *
 * A block of four warps has a tile of queries (forward; the queries' gradients) or of keys (the keys' and
 * values' gradients), and each warp 16 or 32 of its rows. Tiles of the other side come through shared memory,
 * 64 rows at a time, by asynchronous copies. The fragment of sums that a product leaves in a lane is, in two
 * bytes, the A fragment of the next product (mma.h): probabilities and their gradients never leave registers.
 * The width of a head and the rows of a warp are constants in every kernel, so that arrays are registers.
 *
 * Rows behind the last token are zeros in shared memory. As keys they are behind every query, as queries they
 * add zeros to gradients, and they are not stored.
 *
 * The order of every sum is fixed: a block has all of a gradient's sum, over the queries of each head of the
 * group in turn; there are no atomics. Row statistics that backward needs, 8 bytes per row and head, lie
 * where the queries' gradients will be: their kernel runs last. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/mma.h"

enum {
    TILE = CUDA_MMA_TILE, /* rows of a tile that comes by shared memory */
    CHUNK = 16,           /* rows of it that are multiplied at once */
    CHUNKS = TILE / CHUNK,
    WIDEST = 128,
    STEPS = WIDEST / 16,
    PADDING = 8, /* elements behind a row in shared memory: 8 rows of 16 bytes are in 32 banks */
    COPY_ROWS = 8 * CUDA_MMA_WARPS,
    COPY_COLUMNS = 32
};

/* Scores are made powers of two: exp(x) = 2^(x log2(e)). */
#define LOG2_E 1.44269504088896340736f
/* The largest score so far is replaced only by one that makes exponentials 2^8 times as large: until then the
 * sums hold 2^8 at most per key, and a rescaling is saved. */
#define RISE 8.0f

/* What backward knows of a query: dout out, and the log of the sum of exponentials, as a power of two. */
struct ALIGNED(8) row_statistics {
    float delta, lse2;
};
struct ALIGNED(16) row_statistics_pair {
    struct row_statistics of[2];
};

/* A product's sums of 16 rows and 16 columns: for columns 0 to 7 and 8 to 15. */
struct sums {
    float half[2][4];
};

DEVICE int row_stride(const int width)
{
    return width + PADDING;
}

/* Where of a tile the lane's loads of matrices begin. */
DEVICE const el *lane_row(const el *tile, const int width)
{
    return tile + matrices_offset((unsigned)row_stride(width));
}

/* All threads: `rows` rows from token `first` on. Eight lanes write 16 bytes of 8 rows, which are in
 * different banks, and a warp reads 64 bytes of each. */
DEVICE void copy_tile(el *tile, const el *from, size_t line, unsigned first, unsigned tokens, const int rows,
                      const int width)
{
    unsigned row = warp_of_thread() * 8 + lane_of_thread() % 8, column = lane_of_thread() / 8 * EL_PACK;
    const el *at = from + (size_t)(first + row) * line + column;
    el *to = tile + row * (unsigned)row_stride(width) + column;
    UNROLL
    for (int r = 0; r < rows; r += COPY_ROWS) {
        bool there = first + row + (unsigned)r < tokens;
        UNROLL
        for (int c = 0; c < width; c += COPY_COLUMNS)
            copy_16_bytes(to + r * row_stride(width) + c, at + c, there);
        at += COPY_ROWS * line;
    }
}

/* A warp's 16 rows of a result, each half (g, g + 8) times its factor, into its rows of a tile. */
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

/* A warp's rows of a tile to memory, from token `first` on. */
DEVICE void store_rows(el *out, size_t line, const el *tile, unsigned first, unsigned tokens, const int rows,
                       const int width)
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
        to += 8 * line;
    }
}

/* The A fragment of sums of 16 rows and 16 columns. */
DEVICE struct matrices fragment_of(float (*half)[4])
{
    struct matrices a = {{el_pair(half[0][0], half[0][1]), el_pair(half[0][2], half[0][3]),
                          el_pair(half[1][0], half[1][1]), el_pair(half[1][2], half[1][3])}};
    return a;
}

/* sums (16 x 16) += a x^T, for rows of x as a tile has them. */
DEVICE void multiply_rows(float (*half)[4], const struct matrices *a, const struct matrices *x)
{
    mma(half[0], a, x->part[0], x->part[2]);
    mma(half[1], a, x->part[1], x->part[3]);
}

/* sums (16 x 16) += a x, for x that was transposed when it was loaded. */
DEVICE void multiply_columns(float (*half)[4], const struct matrices *a, const struct matrices *x)
{
    mma(half[0], a, x->part[0], x->part[1]);
    mma(half[1], a, x->part[2], x->part[3]);
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

enum { STRIPS = CUDA_MMA_QUERIES / CUDA_MMA_WARPS / 16 }; /* of 16 queries of a warp */

/* Per row of a lane (g and g + 8 of each strip): a score that no later one exceeds by more than RISE, the
 * lane's part of the sum of exponentials; the values added up with them. */
struct running {
    float most[STRIPS][2], sum[STRIPS][2], values[STRIPS][WIDEST / 8][4];
};
typedef float scores[STRIPS][TILE / 8][4];

DEVICE void find_scores(scores s, const el *q_row, const el *k_row, const int width)
{
    UNROLL
    for (int step = 0; step < width; step += 16) {
        struct matrices q[STRIPS];
        UNROLL
        for (int m = 0; m < STRIPS; m++)
            q[m] = matrices_load(q_row + m * 16 * row_stride(width) + step);
        UNROLL
        for (int c = 0; c < CHUNKS; c++) {
            struct matrices k = matrices_load(k_row + c * CHUNK * row_stride(width) + step);
            UNROLL
            for (int m = 0; m < STRIPS; m++)
                multiply_rows(&s[m][2 * c], &q[m], &k);
        }
    }
}

/* Keys behind a row's query are none of its. `ahead`: queries from the tile's first key to the warp's first.
 */
DEVICE void mask_scores(scores s, int ahead)
{
    int row = ahead + (int)(lane_of_thread() / 4), column = (int)(lane_of_thread() % 4) * 2;
    UNROLL
    for (int m = 0; m < STRIPS; m++)
        UNROLL
    for (int n = 0; n < TILE / 8; n++)
        UNROLL
    for (int i = 0; i < 4; i++)
        if (n * 8 + column + i % 2 > row + m * 16 + i / 2 * 8)
            s[m][n][i] = -INFINITY;
}

/* New largest scores, to which all that was added up is brought. */
DEVICE void rescale(struct running *r, float (*most)[2], float scale2, const int width)
{
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            float now = fmaxf(r->most[m][h], most[m][h]),
                  before = exp2_approximate((r->most[m][h] - now) * scale2);
            r->most[m][h] = now;
            r->sum[m][h] *= before;
            UNROLL
            for (int n = 0; n < width / 8; n++) {
                r->values[m][n][2 * h] *= before;
                r->values[m][n][2 * h + 1] *= before;
            }
        }
    }
}

/* Scores become exponentials. */
DEVICE void take_scores(struct running *r, scores s, float scale2, const int width)
{
    float most[STRIPS][2];
    bool rises = false;
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            float x = fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]);
            UNROLL
            for (int n = 1; n < TILE / 8; n++)
                x = fmaxf(x, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
            most[m][h] = x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
            rises = rises || (x - r->most[m][h]) * scale2 > RISE;
        }
    }
    if (__ballot_sync(ALL_LANES, rises))
        rescale(r, most, scale2, width);
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            float shift = -r->most[m][h] * scale2, sum = r->sum[m][h];
            UNROLL
            for (int n = 0; n < TILE / 8; n++) {
                UNROLL
                for (int i = 2 * h; i < 2 * h + 2; i++)
                    sum += s[m][n][i] = exp2_approximate(fmaf(s[m][n][i], scale2, shift));
            }
            r->sum[m][h] = sum;
        }
    }
}

DEVICE void add_values(struct running *r, scores s, const el *v_row, const int width)
{
    UNROLL
    for (int c = 0; c < CHUNKS; c++) {
        struct matrices p[STRIPS];
        UNROLL
        for (int m = 0; m < STRIPS; m++)
            p[m] = fragment_of(&s[m][2 * c]);
        UNROLL
        for (int d = 0; d < width / 16; d++) {
            struct matrices v = matrices_load_transposed(v_row + c * CHUNK * row_stride(width) + d * 16);
            UNROLL
            for (int m = 0; m < STRIPS; m++)
                multiply_columns(&r->values[m][2 * d], &p[m], &v);
        }
    }
}

/* The block's results, by way of its queries' tile. */
DEVICE void put_values(const struct zr_attention_forward *a, const struct head *h, struct running *r,
                       el *q_tile, unsigned own, const int width)
{
    unsigned tokens = (unsigned)h->tokens, lane = lane_of_thread();
    float *lse = a->lse + ((size_t)blockIdx.z * a->shape.heads + blockIdx.y) * h->tokens;
    el *out = (el *)a->out + blockIdx.z * h->tokens * h->out_line + blockIdx.y * h->width;
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
                lse[t] = r->most[m][half] * h->scale + logf(sum);
        }
        put_rows(q_tile + m * 16 * row_stride(width), r->values[m], 1.0f / r->sum[m][0], 1.0f / r->sum[m][1],
                 width);
    }
    store_rows(out, h->out_line, q_tile, own, tokens, STRIPS * 16, width);
}

/* A block has a tile of queries, those with most keys first, of head blockIdx.y, sequence .z. The next keys
 * come while values are added up, and values while scores are made. */
DEVICE void forward(const struct zr_attention_forward *a, const int width)
{
    SHARED_DYNAMIC(el, q_tile);
    el *k_tile = q_tile + CUDA_MMA_QUERIES * row_stride(width), *v_tile = k_tile + TILE * row_stride(width);
    struct head h = head_of(&a->shape, (const el *)a->qkv, blockIdx.z, blockIdx.y);
    unsigned tokens = (unsigned)h.tokens, first = (gridDim.x - 1 - blockIdx.x) * CUDA_MMA_QUERIES;
    unsigned end = first + CUDA_MMA_QUERIES < tokens ? first + CUDA_MMA_QUERIES : tokens;
    unsigned rows = warp_of_thread() * STRIPS * 16, own = first + rows;
    el *q_own = q_tile + rows * (unsigned)row_stride(width);
    const el *q_row = lane_row(q_own, width), *k_row = lane_row(k_tile, width),
             *v_row = lane_row(v_tile, width);
    float scale2 = h.scale * LOG2_E;
    struct running r;
    UNROLL
    for (int m = 0; m < STRIPS; m++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            r.most[m][half] = -INFINITY;
            r.sum[m][half] = 0;
        }
        UNROLL
        for (int n = 0; n < width / 8; n++)
            UNROLL
        for (int i = 0; i < 4; i++)
            r.values[m][n][i] = 0;
    }
    copy_tile(q_tile, h.q, h.line, first, tokens, CUDA_MMA_QUERIES, width);
    copy_tile(k_tile, h.k, h.line, 0, tokens, TILE, width);
    for (unsigned keys = 0; keys < end; keys += TILE) {
        bool seen = keys < own + STRIPS * 16 && own < tokens; /* all lanes alike */
        scores s = {{{0}}};
        copies_wait();
        __syncthreads(); /* the keys are here, the values' tile has been used */
        copy_tile(v_tile, h.v, h.line, keys, tokens, TILE, width);
        if (seen)
            find_scores(s, q_row, k_row, width);
        copies_wait();
        __syncthreads(); /* the values are here, the keys' tile has been used */
        if (keys + TILE < end)
            copy_tile(k_tile, h.k, h.line, keys + TILE, tokens, TILE, width);
        if (seen) {
            if (keys + TILE - 1 > own)
                mask_scores(s, (int)(own - keys));
            take_scores(&r, s, scale2, width);
            add_values(&r, s, v_row, width);
        }
    }
    if (own < tokens)
        put_values(a, &h, &r, q_own, own, width);
}

#define FORWARD(width)                                                                                       \
    KERNEL(K(attention_forward_##width), struct zr_attention_forward, CUDA_MMA_THREADS)                      \
    {                                                                                                        \
        forward(&a, width);                                                                                  \
    }
FORWARD(64)
FORWARD(96)
FORWARD(128)

/* ---- Backward: row statistics ---------------------------------------------------------------------------
 */

DEVICE struct row_statistics *statistics_of(void *dqkv, const struct head *h, const void *qkv, size_t token)
{
    return (struct row_statistics *)(void *)((el *)dqkv + (h->q - (const el *)qkv) + token * h->line);
}

/* Eight lanes have a token of a head. */
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

/* ---- Backward: gradients of scores ----------------------------------------------------------------------
 */

/* From the score of a query and a key, and dout times the key's value, the probability and the score's
 * gradient, but for the scale. */
DEVICE void find_gradient(float *score, float *product, const struct row_statistics *query, float scale2,
                          bool seen)
{
    float p = exp2_approximate(fmaf(*score, scale2, -query->lse2));
    p = seen ? p : 0;
    *score = p;
    *product = p * (*product - query->delta);
}

/* ---- Backward: keys and values --------------------------------------------------------------------------
 */

/* A warp's strips of 16 keys, and of their gradients. */
struct key_rows {
    struct matrices k[2][STEPS], v[2][STEPS];
    float dk[2][WIDEST / 8][4], dv[2][WIDEST / 8][4];
};

/* A tile of queries, one of their dout, and their statistics. */
struct stage {
    el *q, *dout;
    struct row_statistics *statistics;
};

/* What a block's keys meet: tiles of queries from its first key on, of each head of the group. */
struct query_tiles {
    const el *q, *dout, *dq; /* of the head */
    size_t heads;            /* left, with this one */
    unsigned queries;        /* the tile's first */
};

DEVICE void copy_queries(const struct stage *to, const struct query_tiles *from, const struct head *h,
                         const int width)
{
    unsigned tokens = (unsigned)h->tokens, token = from->queries + threadIdx.x;
    copy_tile(to->q, from->q, h->line, from->queries, tokens, TILE, width);
    copy_tile(to->dout, from->dout, h->out_line, from->queries, tokens, TILE, width);
    if (threadIdx.x < TILE)
        copy_8_bytes(&to->statistics[threadIdx.x], from->dq + token * h->line, token < tokens);
}

/* 16 queries of a stage. `ahead`: queries from the warp's first key to the first of the 16; with `masked`
 * some are before a key. */
DEVICE void take_chunk_of_queries(struct key_rows *r, const struct stage *from, int chunk, int ahead,
                                  bool masked, float scale2, const int strips, const int width)
{
    const el *q_row = lane_row(from->q, width) + chunk * CHUNK * row_stride(width);
    const el *dout_row = lane_row(from->dout, width) + chunk * CHUNK * row_stride(width);
    int column = (int)(lane_of_thread() % 4) * 2, row = (int)(lane_of_thread() / 4);
    float p[2][2][4] = {{{0}}}, ds[2][2][4] = {{{0}}};
    UNROLL
    for (int step = 0; step < width / 16; step++) {
        struct matrices q = matrices_load(q_row + step * 16), dout = matrices_load(dout_row + step * 16);
        UNROLL
        for (int m = 0; m < strips; m++) {
            multiply_rows(p[m], &r->k[m][step], &q);
            multiply_rows(ds[m], &r->v[m][step], &dout);
        }
    }
    UNROLL
    for (int n = 0; n < 2; n++) {
        struct row_statistics_pair queries = *(const struct row_statistics_pair *)(const void *)&from
                                                  ->statistics[chunk * CHUNK + n * 8 + column];
        UNROLL
        for (int m = 0; m < strips; m++)
            UNROLL
        for (int i = 0; i < 4; i++)
            find_gradient(&p[m][n][i], &ds[m][n][i], &queries.of[i % 2], scale2,
                          !masked || row + m * 16 + i / 2 * 8 <= ahead + n * 8 + column + i % 2);
    }
    struct matrices p_part[2], ds_part[2];
    UNROLL
    for (int m = 0; m < strips; m++) {
        p_part[m] = fragment_of(p[m]);
        ds_part[m] = fragment_of(ds[m]);
    }
    UNROLL
    for (int d = 0; d < width / 16; d++) {
        struct matrices dout = matrices_load_transposed(dout_row + d * 16),
                        q = matrices_load_transposed(q_row + d * 16);
        UNROLL
        for (int m = 0; m < strips; m++) {
            multiply_columns(&r->dv[m][2 * d], &p_part[m], &dout);
            multiply_columns(&r->dk[m][2 * d], &ds_part[m], &q);
        }
    }
}

/* A tile of queries; `ahead`: queries from the warp's first key to its first. */
DEVICE void take_queries(struct key_rows *r, const struct stage *from, int ahead, float scale2,
                         const int strips, const int width)
{
    if (ahead >= strips * 16 - 1) {
        UNROLL
        for (int c = 0; c < CHUNKS; c++)
            take_chunk_of_queries(r, from, c, 0, false, scale2, strips, width);
        return;
    }
    for (int c = 0; c < CHUNKS; c++)
        if (ahead + (c + 1) * CHUNK > 0)
            take_chunk_of_queries(r, from, c, ahead + c * CHUNK, true, scale2, strips, width);
}

/* The keys' and values' fragments, by way of the stages' memory. */
DEVICE void load_keys(struct key_rows *r, el *tiles, const struct head *h, unsigned first, const int strips,
                      const int width)
{
    const int rows = CUDA_MMA_WARPS * strips * 16;
    unsigned own = warp_of_thread() * (unsigned)(strips * 16 * row_stride(width));
    el *v_tile = tiles + rows * row_stride(width);
    const el *k_row = lane_row(tiles + own, width), *v_row = lane_row(v_tile + own, width);
    copy_tile(tiles, h->k, h->line, first, (unsigned)h->tokens, rows, width);
    copy_tile(v_tile, h->v, h->line, first, (unsigned)h->tokens, rows, width);
    copies_wait();
    __syncthreads();
    UNROLL
    for (int m = 0; m < strips; m++) {
        UNROLL
        for (int step = 0; step < width / 16; step++) {
            r->k[m][step] = matrices_load(k_row + m * 16 * row_stride(width) + step * 16);
            r->v[m][step] = matrices_load(v_row + m * 16 * row_stride(width) + step * 16);
        }
        UNROLL
        for (int n = 0; n < width / 8; n++)
            UNROLL
        for (int i = 0; i < 4; i++)
            r->dk[m][n][i] = r->dv[m][n][i] = 0;
    }
    __syncthreads();
}

DEVICE void put_keys(const struct zr_attention_backward *a, const struct head *h, struct key_rows *r,
                     el *tiles, unsigned first, const int strips, const int width)
{
    unsigned rows = warp_of_thread() * (unsigned)strips * 16, tokens = (unsigned)h->tokens;
    el *k_tile = tiles + rows * (unsigned)row_stride(width),
       *v_tile = k_tile + CUDA_MMA_WARPS * strips * 16 * row_stride(width);
    el *dk = (el *)a->dqkv + (h->k - (const el *)a->qkv), *dv = (el *)a->dqkv + (h->v - (const el *)a->qkv);
    __syncthreads(); /* stages have been used */
    UNROLL
    for (int m = 0; m < strips; m++) {
        put_rows(k_tile + m * 16 * row_stride(width), r->dk[m], h->scale, h->scale, width);
        put_rows(v_tile + m * 16 * row_stride(width), r->dv[m], 1, 1, width);
    }
    store_rows(dk, h->line, k_tile, first + rows, tokens, strips * 16, width);
    store_rows(dv, h->line, v_tile, first + rows, tokens, strips * 16, width);
}

DEVICE struct stage stage_of(el *tiles, struct row_statistics *statistics, unsigned turn, const int width)
{
    el *q = tiles + turn * 2 * TILE * (unsigned)row_stride(width);
    struct stage stage = {q, q + TILE * row_stride(width), statistics + turn * TILE};
    return stage;
}

/* A block has a tile of keys, and their values, of blockIdx.x, head of keys .y, sequence .z. The next queries
 * come while those at hand are used. */
DEVICE void backward_keys(const struct zr_attention_backward *a, const int strips, const int width)
{
    SHARED_DYNAMIC(el, tiles);
    SHARED(struct row_statistics, statistics, 2 * TILE);
    size_t group = a->shape.heads / kv_heads_of(&a->shape), number = blockIdx.y * group;
    struct head h = head_of(&a->shape, (const el *)a->qkv, blockIdx.z, number);
    unsigned tokens = (unsigned)h.tokens, first = blockIdx.x * CUDA_MMA_WARPS * (unsigned)strips * 16;
    unsigned own = first + warp_of_thread() * (unsigned)strips * 16;
    struct query_tiles next = {h.q, (const el *)a->dout + blockIdx.z * h.tokens * h.out_line + number * width,
                               (const el *)a->dqkv + (h.q - (const el *)a->qkv), group, first};
    struct stage now = stage_of(tiles, statistics, 0, width);
    struct key_rows r;
    load_keys(&r, tiles, &h, first, strips, width);
    copy_queries(&now, &next, &h, width);
    for (unsigned turn = 0; next.heads > 0; turn ^= 1) {
        int ahead = (int)(next.queries - own);
        now = stage_of(tiles, statistics, turn, width);
        next.queries += TILE;
        if (next.queries >= tokens) {
            next.queries = first;
            next.q += width, next.dout += width, next.dq += width;
            next.heads--;
        }
        copies_wait();
        __syncthreads(); /* these queries are here, the others' stage has been used */
        if (next.heads > 0) {
            struct stage later = stage_of(tiles, statistics, turn ^ 1, width);
            copy_queries(&later, &next, &h, width);
        }
        take_queries(&r, &now, ahead, h.scale * LOG2_E, strips, width);
    }
    put_keys(a, &h, &r, tiles, first, strips, width);
}

#define BACKWARD_KEYS(width, strips)                                                                         \
    KERNEL(K(attention_backward_keys_##width), struct zr_attention_backward, CUDA_MMA_THREADS)               \
    {                                                                                                        \
        backward_keys(&a, strips, width);                                                                    \
    }
BACKWARD_KEYS(64, CUDA_MMA_STRIPS(64))
BACKWARD_KEYS(96, CUDA_MMA_STRIPS(96))
BACKWARD_KEYS(128, CUDA_MMA_STRIPS(128))

/* ---- Backward: queries ----------------------------------------------------------------------------------
 */

/* A warp's strips of 16 queries, their dout, their gradients, and the statistics of a lane's rows. */
struct query_rows {
    struct matrices q[2][STEPS], dout[2][STEPS];
    struct row_statistics statistics[2][2];
    float dq[2][WIDEST / 8][4];
};

/* 16 keys of a stage. `ahead`: queries from the first of the keys to the warp's first; with `masked` some
 * keys are behind a query. */
DEVICE void take_chunk_of_keys(struct query_rows *r, const el *k_row, const el *v_row, int ahead, bool masked,
                               float scale2, const int strips, const int width)
{
    int column = (int)(lane_of_thread() % 4) * 2, row = (int)(lane_of_thread() / 4);
    float p[2][2][4] = {{{0}}}, ds[2][2][4] = {{{0}}};
    UNROLL
    for (int step = 0; step < width / 16; step++) {
        struct matrices k = matrices_load(k_row + step * 16), v = matrices_load(v_row + step * 16);
        UNROLL
        for (int m = 0; m < strips; m++) {
            multiply_rows(p[m], &r->q[m][step], &k);
            multiply_rows(ds[m], &r->dout[m][step], &v);
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
                          !masked || n * 8 + column + i % 2 <= ahead + row + m * 16 + i / 2 * 8);
        ds_part[m] = fragment_of(ds[m]);
    }
    UNROLL
    for (int d = 0; d < width / 16; d++) {
        struct matrices k = matrices_load_transposed(k_row + d * 16);
        UNROLL
        for (int m = 0; m < strips; m++)
            multiply_columns(&r->dq[m][2 * d], &ds_part[m], &k);
    }
}

/* A tile of keys; `ahead`: queries from its first to the warp's first. */
DEVICE void take_keys(struct query_rows *r, const el *k_tile, int ahead, float scale2, const int strips,
                      const int width)
{
    const el *k_row = lane_row(k_tile, width), *v_row = k_row + TILE * row_stride(width);
    const int step = CHUNK * row_stride(width);
    if (ahead >= TILE - 1) {
        UNROLL
        for (int c = 0; c < CHUNKS; c++)
            take_chunk_of_keys(r, k_row + c * step, v_row + c * step, 0, false, scale2, strips, width);
        return;
    }
    for (int c = 0; c < CHUNKS && c * CHUNK < ahead + strips * 16; c++)
        take_chunk_of_keys(r, k_row + c * step, v_row + c * step, ahead - c * CHUNK, true, scale2, strips,
                           width);
}

/* The queries' and their dout's fragments, by way of the stages' memory; statistics. */
DEVICE void load_queries(struct query_rows *r, const struct zr_attention_backward *a, el *tiles,
                         const struct head *h, unsigned first, const int strips, const int width)
{
    const int rows = CUDA_MMA_WARPS * strips * 16;
    unsigned own = warp_of_thread() * (unsigned)strips * 16, tokens = (unsigned)h->tokens;
    el *dout_tile = tiles + rows * row_stride(width);
    const el *dout = (const el *)a->dout + blockIdx.z * h->tokens * h->out_line + blockIdx.y * h->width;
    const el *q_row = lane_row(tiles + own * (unsigned)row_stride(width), width);
    const el *dout_row = lane_row(dout_tile + own * (unsigned)row_stride(width), width);
    copy_tile(tiles, h->q, h->line, first, tokens, rows, width);
    copy_tile(dout_tile, dout, h->out_line, first, tokens, rows, width);
    copies_wait();
    __syncthreads();
    UNROLL
    for (int m = 0; m < strips; m++) {
        UNROLL
        for (int step = 0; step < width / 16; step++) {
            r->q[m][step] = matrices_load(q_row + m * 16 * row_stride(width) + step * 16);
            r->dout[m][step] = matrices_load(dout_row + m * 16 * row_stride(width) + step * 16);
        }
        UNROLL
        for (int half = 0; half < 2; half++) {
            unsigned t = first + own + (unsigned)(m * 16 + half * 8) + lane_of_thread() / 4;
            struct row_statistics none = {0, 0};
            r->statistics[m][half] = t < tokens ? *statistics_of(a->dqkv, h, a->qkv, t) : none;
        }
        UNROLL
        for (int n = 0; n < width / 8; n++)
            UNROLL
        for (int i = 0; i < 4; i++)
            r->dq[m][n][i] = 0;
    }
    __syncthreads();
}

/* A block has a tile of queries, those with most keys first, of head blockIdx.y, sequence .z. The next keys
 * and values come while those at hand are used. */
DEVICE void backward_queries(const struct zr_attention_backward *a, const int strips, const int width)
{
    SHARED_DYNAMIC(el, tiles);
    const unsigned rows = CUDA_MMA_WARPS * (unsigned)strips * 16,
                   stage = 2 * TILE * (unsigned)row_stride(width);
    struct head h = head_of(&a->shape, (const el *)a->qkv, blockIdx.z, blockIdx.y);
    unsigned tokens = (unsigned)h.tokens, first = (gridDim.x - 1 - blockIdx.x) * rows;
    unsigned mine = warp_of_thread() * (unsigned)strips * 16, own = first + mine;
    unsigned end = first + rows < tokens ? first + rows : tokens;
    struct query_rows r;
    load_queries(&r, a, tiles, &h, first, strips, width);
    for (unsigned keys = 0, turn = 0; keys < end + TILE; keys += TILE, turn ^= 1) {
        copies_wait();
        __syncthreads(); /* the last keys are here, the stage before them has been used */
        if (keys < end) {
            copy_tile(tiles + turn * stage, h.k, h.line, keys, tokens, TILE, width);
            copy_tile(tiles + turn * stage + TILE * row_stride(width), h.v, h.line, keys, tokens, TILE,
                      width);
        }
        if (keys >= TILE)
            take_keys(&r, tiles + (turn ^ 1) * stage, (int)(own - (keys - TILE)), h.scale * LOG2_E, strips,
                      width);
    }
    el *own_tile = tiles + mine * (unsigned)row_stride(width);
    __syncthreads(); /* stages have been used */
    UNROLL
    for (int m = 0; m < strips; m++)
        put_rows(own_tile + m * 16 * row_stride(width), r.dq[m], h.scale, h.scale, width);
    store_rows((el *)a->dqkv + (h.q - (const el *)a->qkv), h.line, own_tile, own, tokens, strips * 16, width);
}

#define BACKWARD_QUERIES(width, strips)                                                                      \
    KERNEL(K(attention_backward_queries_##width), struct zr_attention_backward, CUDA_MMA_THREADS)            \
    {                                                                                                        \
        backward_queries(&a, strips, width);                                                                 \
    }
BACKWARD_QUERIES(64, CUDA_MMA_STRIPS(64))
BACKWARD_QUERIES(96, CUDA_MMA_STRIPS(96))
BACKWARD_QUERIES(128, CUDA_MMA_STRIPS(128))
