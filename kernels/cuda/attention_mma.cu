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

/* The thread's warp, by a shuffle: the compiler then knows that all lanes have the same, and that branches on
 * it keep them together. */
DEVICE unsigned uniform_warp(void)
{
    return __shfl_sync(ALL_LANES, warp_of_thread(), 0);
}

/* Chunks of a tile that have tokens, of so many that are left. */
DEVICE int chunks_of(unsigned left)
{
    return left < TILE ? (int)(left + CHUNK - 1) / CHUNK : CHUNKS;
}

/* Where of a tile a lane's loads of matrices begin: of the tile's rows, and of its rows as columns. */
DEVICE shared_el lane_row(const el *tile, const int width)
{
    return shared_el_of(tile + matrices_offset((unsigned)row_stride(width)));
}

DEVICE shared_el lane_column(const el *tile, const int width)
{
    return shared_el_of(tile + matrices_offset_of_columns((unsigned)row_stride(width)));
}

/* Where of a tensor's rows from token `first` on, and of a tile's, a thread's part of copies begins. Eight
 * lanes write 16 bytes of 8 rows, which are in different banks, and a warp reads 64 bytes of each. */
DEVICE const el *copy_from(const el *from, unsigned line, unsigned first)
{
    unsigned row = warp_of_thread() * 8 + lane_of_thread() % 8;
    return from + (size_t)(first + row) * line + lane_of_thread() / 8 * EL_PACK;
}

/* All threads: `rows` rows from token `first` on, where the thread's part begins `at`. */
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

/* The A fragment of sums of 16 rows and 16 columns. */
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

/* 16 rows of 8 columns each. */
DEVICE void clear_sums(float (*sums)[4], const int count)
{
    UNROLL
    for (int n = 0; n < count; n++)
        UNROLL
    for (int i = 0; i < 4; i++)
        sums[n][i] = 0;
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

enum { STRIPS = CUDA_MMA_QUERIES / CUDA_MMA_WARPS / 16 }; /* of 16 queries of a warp */

/* Per row of a lane (g and g + 8 of each strip): a score that no later one exceeds by more than RISE, the
 * lane's part of the sum of exponentials; the values added up with them. */
struct running {
    float most[STRIPS][2], sum[STRIPS][2], values[STRIPS][WIDEST / 8][4];
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

/* Keys behind a row's query are none of its. `ahead`: queries from the tile's first key to the warp's first.
 */
DEVICE void mask_scores(scores s, int ahead, const int keys)
{
    int row = ahead + (int)(lane_of_thread() / 4), column = (int)(lane_of_thread() % 4) * 2;
    UNROLL
    for (int m = 0; m < STRIPS; m++)
        UNROLL
    for (int n = 0; n < keys / 8; n++)
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

/* Largest scores that keep exponentials of these within bounds. */
DEVICE void take_largest(struct running *r, scores s, float scale2, const int keys, const int width)
{
    float most[STRIPS][2];
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
            most[m][h] = x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
            rises = rises || (x - r->most[m][h]) * scale2 > RISE;
        }
    }
    if (__ballot_sync(ALL_LANES, rises))
        rescale(r, most, scale2, width);
}

/* Exponentials of a strip's scores of 16 keys, as the fragment that multiplies the keys' values. */
DEVICE struct matrices exponentials(struct running *r, float (*half)[4], int strip, float scale2)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        float shift = -r->most[strip][i / 2] * scale2;
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

/* The block's results, by way of its queries' tile. */
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
                lse[t] = r->most[m][half] * scale_of(width) + logf(sum);
        }
        put_rows(q_tile + m * 16 * row_stride(width), r->values[m], 1.0f / r->sum[m][0], 1.0f / r->sum[m][1],
                 width);
    }
    store_rows(out, (unsigned)s->channels, q_tile, own, tokens, STRIPS * 16, width);
}

/* A block has a tile of queries, those with most keys first, of head blockIdx.y, sequence .z. The next keys
 * come while values are added up, and values while scores are made. */
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
            r.most[m][half] = -INFINITY;
            r.sum[m][half] = 0;
        }
        clear_sums(r.values[m], width / 8);
    }
    const unsigned line = (unsigned)h.line;
    const el *k_at = copy_from(h.k, line, 0); /* the next keys, with their values `values` behind */
    const unsigned values = (unsigned)kv_heads_of(&a->shape) * (unsigned)width;
    copy_tile(q_tile, h.q, line, first, tokens, CUDA_MMA_QUERIES, width);
    copy_part(k_tile, k_at, line, 0, tokens, keys, width);
    for (unsigned at = 0; at < end; at += keys) {
        bool seen = at < own + STRIPS * 16 && own < tokens; /* all lanes alike */
        scores s;
        copies_wait();
        __syncthreads(); /* the keys are here, the values' tile has been used */
        copy_part(v_tile, k_at + values, line, at, tokens, keys, width);
        k_at += (size_t)keys * line;
        if (seen)
            find_scores(s, q_row, k_column, keys, width);
        copies_wait();
        __syncthreads(); /* the values are here, the keys' tile has been used */
        if (at + keys < end)
            copy_part(k_tile, k_at, line, at + keys, tokens, keys, width);
        if (seen) {
            if (at + keys - 1 > own)
                mask_scores(s, (int)(own - at), keys);
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

enum { KEYS = CUDA_MMA_KEYS }; /* of a block: 16 of a warp */

/* A warp's keys and values, and their gradients. */
struct key_rows {
    struct matrices k[STEPS], v[STEPS];
    float dk[WIDEST / 8][4], dv[WIDEST / 8][4];
};

/* What a block's keys meet: tiles of queries from its first key on, of each head of the group. */
struct query_tiles {
    const el *q, *dout; /* of the head */
    unsigned heads;     /* left, with this one */
    unsigned queries;   /* the tile's first */
};

/* A stage is a tile of queries and, behind it, one of their dout; and their statistics. */
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

/* Where a lane's loads from a stage begin, for 16 of its queries. */
struct stage_lane {
    shared_el row, column;
    const struct row_statistics_pair *statistics;
};

/* 16 queries of a stage. `ahead`: queries from the warp's first key to the first of the 16; with `masked`
 * some are before a key. */
DEVICE void take_chunk_of_queries(struct key_rows *r, const struct stage_lane *from, int ahead, bool masked,
                                  float scale2, const int width)
{
    const int behind = TILE * row_stride(width); /* dout, behind its queries */
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
        UNROLL
        for (int i = 0; i < 4; i++)
            find_gradient(&p[n][i], &ds[n][i], &queries.of[i % 2], scale2,
                          !masked || row + i / 2 * 8 <= ahead + n * 8 + column + i % 2);
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
}

/* So many chunks of a tile of queries; `ahead`: queries from the warp's first key to its first. */
DEVICE void take_queries(struct key_rows *r, const el *q_tile, const struct row_statistics *statistics,
                         int chunks, int ahead, const int width)
{
    struct stage_lane at = {lane_row(q_tile, width), lane_column(q_tile, width),
                            (const struct row_statistics_pair *)(const void *)statistics +
                                lane_of_thread() % 4};
    const float scale2 = scale_of(width) * LOG2_E;
    if (ahead >= 15) {
        ROLLED
        for (int c = 0; c < chunks; c++, next_chunk(&at, width))
            take_chunk_of_queries(r, &at, 0, false, scale2, width);
        return;
    }
    ROLLED
    for (int c = 0; c < chunks; c++, next_chunk(&at, width))
        if (ahead + (c + 1) * CHUNK > 0)
            take_chunk_of_queries(r, &at, ahead + c * CHUNK, true, scale2, width);
}

/* The keys' and values' fragments, by way of the stages' memory. */
DEVICE void load_keys(struct key_rows *r, el *tiles, const struct head *h, unsigned first, const int width)
{
    const int behind = KEYS * row_stride(width); /* values, behind their keys */
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

/* Head blockIdx.y of keys: found again here, so that no register keeps it until now. */
DEVICE void put_keys(const struct zr_attention_backward *a, struct key_rows *r, el *tiles, unsigned first,
                     const int width)
{
    const unsigned kv_width = (unsigned)(kv_heads_of(&a->shape) * width);
    unsigned rows = warp_of_thread() * 16, tokens = (unsigned)a->shape.sequence,
             line = (unsigned)a->shape.channels + 2 * kv_width;
    el *k_tile = tiles + rows * (unsigned)row_stride(width), *v_tile = k_tile + KEYS * row_stride(width);
    el *dk = (el *)a->dqkv + blockIdx.z * a->shape.sequence * line + a->shape.channels + blockIdx.y * width;
    __syncthreads(); /* stages have been used */
    put_rows(k_tile, r->dk, scale_of(width), scale_of(width), width);
    put_rows(v_tile, r->dv, 1, 1, width);
    store_rows(dk, line, k_tile, first + rows, tokens, 16, width);
    store_rows(dk + kv_width, line, v_tile, first + rows, tokens, 16, width);
}

/* A block has a tile of keys, and their values, of blockIdx.x, head of keys .y, sequence .z. The next queries
 * come while those at hand are used. */
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
    for (unsigned turn = 0; next.heads > 0; turn ^= 1) {
        int ahead = (int)(next.queries - own), chunks = chunks_of(tokens - next.queries);
        next.queries += TILE;
        if (next.queries >= tokens) {
            next.queries = first;
            next.q += width, next.dout += width;
            next.heads--;
        }
        copies_wait();
        __syncthreads(); /* these queries are here, the others' stage has been used */
        if (next.heads > 0)
            copy_queries(tiles + (turn ^ 1) * stage, statistics + (turn ^ 1) * TILE, &next, a, &h, width);
        take_queries(&r, tiles + turn * stage, statistics + turn * TILE, chunks, ahead, width);
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

/* ---- Backward: queries ----------------------------------------------------------------------------------
 */

/* A warp's strips of 16 queries, their dout, their gradients, and the statistics of a lane's rows. */
struct query_rows {
    struct matrices q[2][STEPS], dout[2][STEPS];
    struct row_statistics statistics[2][2];
    float dq[2][WIDEST / 8][4];
};

/* 16 keys of a stage, behind whose tile that of their values is. `ahead`: queries from the first of the keys
 * to the warp's first; with `masked` some keys are behind a query. */
DEVICE void take_chunk_of_keys(struct query_rows *r, shared_el k_row, shared_el k_column, int ahead,
                               bool masked, float scale2, const int strips, const int width)
{
    const int values = TILE * row_stride(width); /* behind their keys */
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
                          !masked || n * 8 + column + i % 2 <= ahead + row + m * 16 + i / 2 * 8);
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

/* So many chunks of a tile of keys; `ahead`: queries from its first to the warp's first. */
DEVICE void take_keys(struct query_rows *r, const el *k_tile, int chunks, int ahead, const int strips,
                      const int width)
{
    const float scale2 = scale_of(width) * LOG2_E;
    const int step = CHUNK * row_stride(width);
    shared_el k_row = lane_row(k_tile, width), k_column = lane_column(k_tile, width);
    if (ahead >= TILE - 1) {
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

/* The queries' and their dout's fragments, by way of the stages' memory; statistics. */
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
        }
        clear_sums(r->dq[m], width / 8);
    }
    __syncthreads();
}

/* A stage is a tile of keys and, behind it, one of their values. */
DEVICE void copy_keys(el *k_tile, const struct head *h, unsigned keys, const int width)
{
    unsigned tokens = (unsigned)h->tokens, line = (unsigned)h->line;
    copy_tile(k_tile, h->k, line, keys, tokens, TILE, width);
    copy_tile(k_tile + TILE * row_stride(width), h->v, line, keys, tokens, TILE, width);
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
    unsigned mine = uniform_warp() * (unsigned)strips * 16, own = first + mine;
    unsigned end = first + rows < tokens ? first + rows : tokens;
    struct query_rows r;
    load_queries(&r, a, tiles, &h, first, strips, width);
    copy_keys(tiles, &h, 0, width);
    for (unsigned keys = 0, turn = 0; keys < end; keys += TILE, turn ^= 1) {
        copies_wait();
        __syncthreads(); /* these keys are here, the others' stage has been used */
        if (keys + TILE < end)
            copy_keys(tiles + (turn ^ 1) * stage, &h, keys + TILE, width);
        take_keys(&r, tiles + turn * stage, chunks_of(end - keys), (int)(own - keys), strips, width);
    }
    el *own_tile = tiles + mine * (unsigned)row_stride(width);
    __syncthreads(); /* stages have been used */
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
