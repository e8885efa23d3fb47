/* attention.cu: causal attention in tiles of 32 queries by 32 keys, without a matrix of all scores. Forward
 * keeps a running maximum and sum (Dao et al., FlashAttention, 2022). Backward recomputes probabilities from
 * the log-sums. One kernel iterates over the queries and computes the gradients of keys and values; another
 * iterates over the keys and computes the gradients of queries. Heads have up to 256 numbers; several query
 * heads may share one head of keys and values.
 *
 * A warp computes four rows of its block's tile. Its lanes are the 32 columns of a row of scores, or numbers
 * of the head when values are summed. Probabilities are kept as floats. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/attention.h"

enum {
    TILE = CUDA_ATTENTION_TILE,
    ROWS = TILE / CUDA_WARPS,           /* rows per warp */
    PARTS = CUDA_ATTENTION_WIDTH / WARP /* maximum of head elements per lane */
};

/* Row stride of a tile in shared memory, in floats; odd, to avoid bank conflicts. */
DEVICE unsigned row_stride_of(const struct head *h)
{
    return (unsigned)h->width | 1;
}

/* Loads 32 rows from token `first` on; zeros after the last token. */
DEVICE void load_rows(float *tile, const struct head *h, const el *from, size_t line, size_t first)
{
    for (unsigned row = warp_of_thread(); row < TILE; row += CUDA_WARPS)
        for (unsigned d = lane_of_thread(); d < h->width; d += WARP)
            tile[row * row_stride_of(h) + d] =
                first + row < h->tokens ? el_get(from + (first + row) * line + d) : 0.0f;
}

DEVICE float dot(const float *x, const float *y, size_t width)
{
    float sum = 0;
    for (unsigned d = 0; d < width; d++)
        sum = fmaf(x[d], y[d], sum);
    return sum;
}

/* sums += rows of the tile, each multiplied by its lane's factor. */
DEVICE void add_rows(float *sums, const float *tile, const struct head *h, float factor)
{
    for (int row = 0; row < TILE; row++) {
        float f = __shfl_sync(ALL_LANES, factor, row);
        UNROLL
        for (int i = 0; i < PARTS; i++) {
            unsigned d = lane_of_thread() + (unsigned)i * WARP;
            if (d < h->width)
                sums[i] = fmaf(f, tile[(unsigned)row * row_stride_of(h) + d], sums[i]);
        }
    }
}

DEVICE void put_row(el *to, const struct head *h, const float *sums, float factor)
{
    UNROLL
    for (int i = 0; i < PARTS; i++) {
        unsigned d = lane_of_thread() + (unsigned)i * WARP;
        if (d < h->width)
            el_put(to + d, sums[i] * factor);
    }
}

/* Running state of a row: largest score, sum of exponentials, weighted sum of values. */
struct running {
    float max_score, sum, values[PARTS];
};

DEVICE void take_scores(struct running *r, float score, float drop, const float *v_tile, const struct head *h)
{
    float max_score = fmaxf(r->max_score, warp_max(score)), before = expf(r->max_score - max_score),
          p = expf(score - max_score);
    r->max_score = max_score;
    r->sum = fmaf(r->sum, before, warp_sum(p));
    UNROLL
    for (int i = 0; i < PARTS; i++)
        r->values[i] *= before;
    add_rows(r->values, v_tile, h, p * drop);
}

/* A block computes one tile of queries: tile blockIdx.x of head blockIdx.y of sequence blockIdx.z. */
KERNEL(K(attention_forward), struct zr_attention_forward, CUDA_THREADS)
{
    SHARED_DYNAMIC(float, q_tile);
    struct head h = head_of(&a.shape, (const el *)a.qkv, blockIdx.z, blockIdx.y);
    float *k_tile = q_tile + TILE * row_stride_of(&h), *v_tile = k_tile + TILE * row_stride_of(&h);
    struct running rows[ROWS];
    size_t first = (size_t)blockIdx.x * TILE, own = first + warp_of_thread() * ROWS;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        rows[r].max_score = -INFINITY;
        rows[r].sum = 0;
        UNROLL
        for (int i = 0; i < PARTS; i++)
            rows[r].values[i] = 0;
    }
    load_rows(q_tile, &h, h.q, h.line, first);
    for (size_t keys = first_seen(&h, first) / TILE * TILE; keys <= first; keys += TILE) {
        __syncthreads();
        load_rows(k_tile, &h, h.k, h.line, keys);
        load_rows(v_tile, &h, h.v, h.line, keys);
        __syncthreads();
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            const float *q = q_tile + (own + r - first) * row_stride_of(&h),
                        *k = k_tile + lane_of_thread() * row_stride_of(&h);
            size_t from = own + r < h.tokens ? first_seen(&h, own + r) : 0, key = keys + lane_of_thread();
            bool seen = from <= key && key <= own + r;
            if (own + r < h.tokens && from < keys + TILE) /* uniform over the warp */
                take_scores(&rows[r], seen ? dot(q, k, h.width) * h.scale : -INFINITY,
                            drop_factor(&h, own + r, key), v_tile, &h);
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        size_t t = own + r;
        if (t >= h.tokens)
            continue;
        put_row((el *)a.out + (blockIdx.z * h.tokens + t) * h.out_line + blockIdx.y * h.width, &h,
                rows[r].values, 1.0f / rows[r].sum);
        if (lane_of_thread() == 0)
            a.lse[(blockIdx.z * a.shape.heads + blockIdx.y) * h.tokens + t] =
                rows[r].max_score + logf(rows[r].sum);
    }
}

/* A block computes the probabilities of token blockIdx.x. */
KERNEL(K(attention_probabilities), struct zr_attention_forward, CUDA_THREADS)
{
    struct head h = head_of(&a.shape, (const el *)a.qkv, blockIdx.z, blockIdx.y);
    size_t t = blockIdx.x, row = (blockIdx.z * a.shape.heads + blockIdx.y) * h.tokens + t;
    el *p = (el *)a.p + row * h.tokens;
    size_t from = first_seen(&h, t);
    for (size_t j = threadIdx.x; j < h.tokens; j += blockDim.x) {
        float score = 0;
        for (size_t d = 0; from <= j && j <= t && d < h.width; d++)
            score = fmaf(el_get(h.q + t * h.line + d), el_get(h.k + j * h.line + d), score);
        el_put(p + j, from <= j && j <= t ? expf(score * h.scale - a.lse[row]) : 0);
    }
}

/* Tiles and statistics of 32 queries. */
struct queries {
    float *q, *dout, *lse, *delta; /* delta: the dot product of dout and out, by row */
};

/* Called by all threads; contains two barriers, after which the tiles are complete. */
DEVICE void load_queries(const struct queries *to, const struct head *h,
                         const struct zr_attention_backward *a, size_t batch, size_t number, size_t first)
{
    size_t at = batch * h->tokens * h->out_line + number * h->width;
    const el *out = (const el *)a->out + at;
    __syncthreads();
    load_rows(to->q, h, h->q, h->line, first);
    load_rows(to->dout, h, (const el *)a->dout + at, h->out_line, first);
    __syncthreads();
    for (unsigned row = warp_of_thread(); row < TILE; row += CUDA_WARPS) {
        float delta = 0;
        for (unsigned d = lane_of_thread(); d < h->width && first + row < h->tokens; d += WARP)
            delta = fmaf(to->dout[row * row_stride_of(h) + d], el_get(out + (first + row) * h->out_line + d),
                         delta);
        delta = warp_sum(delta);
        if (lane_of_thread() == 0) {
            to->delta[row] = delta;
            to->lse[row] = first + row < h->tokens
                               ? a->lse[(batch * a->shape.heads + number) * h->tokens + first + row]
                               : 0;
        }
    }
    __syncthreads();
}

/* A block computes the gradients of tile blockIdx.x of keys and values, of key head blockIdx.y, sequence
 * blockIdx.z. */
KERNEL(K(attention_backward_keys), struct zr_attention_backward, CUDA_THREADS)
{
    SHARED_DYNAMIC(float, k_tile);
    SHARED(float, lse, TILE);
    SHARED(float, delta, TILE);
    size_t kv_heads = kv_heads_of(&a.shape), group = a.shape.heads / kv_heads;
    size_t first = (size_t)blockIdx.x * TILE, own = warp_of_thread() * ROWS;
    struct head h = head_of(&a.shape, (const el *)a.qkv, blockIdx.z, blockIdx.y * group);
    float *v_tile = k_tile + TILE * row_stride_of(&h);
    struct queries all = {v_tile + TILE * row_stride_of(&h), v_tile + 2 * TILE * row_stride_of(&h), lse,
                          delta};
    float dk[ROWS][PARTS] = {{0}}, dv[ROWS][PARTS] = {{0}};
    load_rows(k_tile, &h, h.k, h.line, first);
    load_rows(v_tile, &h, h.v, h.line, first);
    for (size_t g = 0; g < group; g++) {
        size_t number = blockIdx.y * group + g;
        h = head_of(&a.shape, (const el *)a.qkv, blockIdx.z, number);
        for (size_t queries = first; queries < h.tokens && first_seen(&h, queries) < first + TILE;
             queries += TILE) {
            load_queries(&all, &h, &a, blockIdx.z, number, queries);
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                unsigned lane = lane_of_thread();
                const float *k = k_tile + (own + r) * row_stride_of(&h),
                            *v = v_tile + (own + r) * row_stride_of(&h);
                size_t key = first + own + r, query = queries + lane;
                bool seen = key <= query && query < h.tokens && first_seen(&h, query) <= key;
                float p =
                    seen ? expf(dot(all.q + lane * row_stride_of(&h), k, h.width) * h.scale - lse[lane]) : 0;
                float drop = drop_factor(&h, query, key),
                      dp = dot(all.dout + lane * row_stride_of(&h), v, h.width) * drop;
                add_rows(dv[r], all.dout, &h, p * drop);
                add_rows(dk[r], all.q, &h, p * (dp - delta[lane]) * h.scale);
            }
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        size_t j = first + own + r;
        if (j >= h.tokens)
            continue;
        el *to = (el *)a.dqkv + (h.k - (const el *)a.qkv) + j * h.line;
        put_row(to, &h, dk[r], 1);
        put_row(to + kv_heads * h.width, &h, dv[r], 1);
    }
}

/* A block computes the gradients of tile blockIdx.x of queries, of head blockIdx.y, sequence blockIdx.z. */
KERNEL(K(attention_backward_queries), struct zr_attention_backward, CUDA_THREADS)
{
    SHARED_DYNAMIC(float, k_tile);
    SHARED(float, lse, TILE);
    SHARED(float, delta, TILE);
    size_t first = (size_t)blockIdx.x * TILE, own = warp_of_thread() * ROWS;
    struct head h = head_of(&a.shape, (const el *)a.qkv, blockIdx.z, blockIdx.y);
    float *v_tile = k_tile + TILE * row_stride_of(&h);
    struct queries all = {v_tile + TILE * row_stride_of(&h), v_tile + 2 * TILE * row_stride_of(&h), lse,
                          delta};
    float dq[ROWS][PARTS] = {{0}};
    load_queries(&all, &h, &a, blockIdx.z, blockIdx.y, first);
    for (size_t keys = first_seen(&h, first) / TILE * TILE; keys <= first; keys += TILE) {
        __syncthreads();
        load_rows(k_tile, &h, h.k, h.line, keys);
        load_rows(v_tile, &h, h.v, h.line, keys);
        __syncthreads();
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            unsigned lane = lane_of_thread(), row = (unsigned)own + (unsigned)r;
            size_t key = keys + lane, query = first + row;
            bool seen = key <= query && query < h.tokens && first_seen(&h, query) <= key;
            const float *k = k_tile + lane * row_stride_of(&h), *v = v_tile + lane * row_stride_of(&h);
            float p = seen ? expf(dot(all.q + row * row_stride_of(&h), k, h.width) * h.scale - lse[row]) : 0;
            float dp = dot(all.dout + row * row_stride_of(&h), v, h.width) * drop_factor(&h, query, key);
            add_rows(dq[r], k_tile, &h, p * (dp - delta[row]) * h.scale);
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; r++)
        if (first + own + r < h.tokens)
            put_row((el *)a.dqkv + (h.q - (const el *)a.qkv) + (first + own + r) * h.line, &h, dq[r], 1);
}
