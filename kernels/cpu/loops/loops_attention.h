/* loops_attention.h: a small matrix product and causal attention of one head. Part of loops_body.h.
 *
 * A block of query rows is multiplied by all its keys at once (no online softmax), so that the log-sum-exp of
 * a row is exact and backward recomputes exp(score - lse) with the same bits. */

/* ---- Small products ------------------------------------------------------------------------------------ */

enum { TILE_ROWS = VF_LANES == 16 ? 8 : 4 };

/* Computes rows x vectors of c in registers. `left`: number of valid columns. Both counts are compile-time
 * constants after inlining; the order of additions does not depend on them. */
VF_INLINE void product_tile(const struct zr_small_product *w, size_t i, size_t j, const size_t rows,
                            const size_t vectors)
{
    vf sum[TILE_ROWS][2];
    const float *a = w->a + i * w->a_row_stride, *b = w->b + j;
    float *c = w->c + i * w->c_stride + j;
    size_t left = w->n - j;
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < 2; v++)
            sum[r][v] = w->accumulate && v < vectors
                            ? vf_get(c + r * w->c_stride + v * VF_LANES, left - v * VF_LANES)
                            : vf_set(0.0f);
    for (size_t k = 0; k < w->k; k++) {
        vf column[2];
        for (size_t v = 0; v < vectors; v++)
            column[v] = vectors == 2 ? vf_load(b + v * VF_LANES) : vf_get(b + v * VF_LANES, left);
        for (size_t r = 0; r < rows; r++) {
            vf factor = vf_set(a[r * w->a_row_stride]);
            for (size_t v = 0; v < vectors; v++)
                sum[r][v] = vf_fma(factor, column[v], sum[r][v]);
        }
        a += w->a_k_stride;
        b += w->b_stride;
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t v = 0; v < vectors; v++)
            vf_put(c + r * w->c_stride + v * VF_LANES, left - v * VF_LANES, sum[r][v]);
}

static void small_product(const struct zr_small_product *w)
{
    size_t j = 0;
    for (; j + 2 * VF_LANES <= w->n; j += 2 * VF_LANES) {
        size_t i = 0;
        for (; i + TILE_ROWS <= w->m; i += TILE_ROWS)
            product_tile(w, i, j, TILE_ROWS, 2);
        for (; i < w->m; i++)
            product_tile(w, i, j, 1, 2);
    }
    for (; j < w->n; j += VF_LANES) {
        size_t i = 0;
        for (; i + TILE_ROWS <= w->m; i += TILE_ROWS)
            product_tile(w, i, j, TILE_ROWS, 1);
        for (; i < w->m; i++)
            product_tile(w, i, j, 1, 1);
    }
}

/* ---- One head's matrices ------------------------------------------------------------------------------- */

enum { QUERY_BLOCK = 32 };

/* A [T, D] matrix inside rows of `stride`. */
struct head_view {
    const el *at;
    size_t tokens, width, stride;
};

static void gather(const struct head_view *from, float scale, float *to, size_t to_stride)
{
    for (size_t t = 0; t < from->tokens; t++)
        for (size_t i = 0; i < from->width; i += VF_LANES)
            vf_put(to + t * to_stride + i, from->width - i,
                   el_get(from->at + t * from->stride + i, from->width - i) * vf_set(scale));
}

static void gather_turned(const struct head_view *from, float *to, size_t to_stride)
{
    enum { BLOCK = 16 };
    for (size_t t0 = 0; t0 < from->tokens; t0 += BLOCK)
        for (size_t d = 0; d < from->width; d++)
            for (size_t t = t0; t < from->tokens && t < t0 + BLOCK; t++)
                to[d * to_stride + t] = el_one(from->at + t * from->stride + d);
}

static void scatter(const float *from, size_t from_stride, const struct head_view *to, float scale)
{
    for (size_t t = 0; t < to->tokens; t++)
        for (size_t i = 0; i < to->width; i += VF_LANES)
            el_put((el *)to->at + t * to->stride + i, to->width - i,
                   vf_get(from + t * from_stride + i, to->width - i) * vf_set(scale));
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Takes the next `floats` of the scratch, aligned to 64 bytes. */
static float *take(float **scratch, size_t floats)
{
    float *at = *scratch;
    *scratch += round_up(floats, 16);
    return at;
}

/* Query heads per head of keys and values. */
static size_t heads_per_kv(const struct zr_attention *shape)
{
    return shape->kv_heads ? shape->heads / shape->kv_heads : 1;
}

struct head {
    size_t tokens, width, padded_width, padded_tokens;
    struct zr_context_part queries, keys;
    size_t window;            /* tokens that a token attends to */
    const int32_t *positions; /* of the sequence's tokens in their documents; NULL: it is one document */
    float scale;
    struct head_view q, k, v;
    struct zr_dropout drop; /* of the probabilities; rate 0: none */
};

/* First key that query t attends to. */
static size_t first_seen(const struct head *h, size_t query)
{
    size_t t = zr_context_token(h->queries, query);
    size_t of_window = t < h->window ? 0 : t + 1 - h->window,
           of_document = h->positions ? t - (size_t)h->positions[query] : 0;
    return zr_context_before(h->keys, of_window > of_document ? of_window : of_document);
}

/* The key after the last one that query t attends to. */
static size_t end_seen(const struct head *h, size_t query)
{
    return zr_context_before(h->keys, zr_context_token(h->queries, query) + 1);
}

/* The same for the first query of a block, rounded down to whole vectors. */
static size_t first_of_block(const struct head *h, size_t t0)
{
    return first_seen(h, t0) / 16 * 16;
}

static struct head head_of(const struct zr_attention *shape, const el *all, size_t unit)
{
    const el *kv = shape->ring.kv;
    size_t width = shape->channels / shape->heads, sequence = unit / shape->heads, head = unit % shape->heads,
           shared = head / heads_per_kv(shape), kv_channels = shape->channels / heads_per_kv(shape),
           stride = shape->channels + 2 * kv_channels, tokens = shape->sequence;
    const el *qkv = all + sequence * tokens * stride;
    struct head_view q = {qkv + head * width, tokens, width, stride},
                     k = {qkv + shape->channels, tokens, width, stride};
    if (kv)
        k = (struct head_view){kv + sequence * tokens * 2 * kv_channels, tokens, width, 2 * kv_channels};
    struct head h = {
        .tokens = tokens,
        .width = width,
        .padded_width = round_up(width, 16),
        .padded_tokens = round_up(tokens, 16),
        .queries = {shape->ring.ranks, shape->ring.queries, tokens},
        .keys = {shape->ring.ranks, shape->ring.keys, tokens},
        .window = shape->window ? shape->window : SIZE_MAX,
        .positions = shape->positions ? shape->positions + sequence * tokens : NULL,
        .scale = shape->scale > 0 ? shape->scale : 1.0f / sqrtf((float)width),
        .q = q,
        .k = k,
        .v = k,
        .drop = {.rate = shape->dropout.rate,
                 .site = shape->dropout.site + (unsigned)head,
                 .draw = shape->dropout.draw,
                 .first_row = sequence * tokens * (shape->ring.ranks > 1 ? shape->ring.ranks : 1)}};
    h.k.at += shared * width;
    h.v.at += kv_channels + shared * width;
    return h;
}

/* Drops numbers of a query's row of keys, from `begin` to `end`. */
static void drop_keys(const struct head *h, size_t query, float *row, size_t begin, size_t end)
{
    size_t at = h->drop.first_row + zr_context_token(h->queries, query), group = SIZE_MAX;
    float factors[4];
    for (size_t i = begin; i < end && h->drop.rate > 0; i++) {
        size_t key = zr_context_token(h->keys, i);
        if (key / 4 != group)
            zr_dropout_factors(&h->drop, at, group = key / 4, factors);
        row[i] *= factors[key % 4];
    }
}

/* ---- Forward ------------------------------------------------------------------------------------------- */

/* Log-sum-exp of n scores. */
static float score_lse(const float *row, size_t n)
{
    size_t whole = n / VF_LANES * VF_LANES;
    vf most = vf_set(-INFINITY), sum = vf_set(0.0f);
    for (size_t i = 0; i < whole; i += VF_LANES)
        most = vf_max(vf_load(row + i), most);
    float largest = vf_largest(most);
    for (size_t i = whole; i < n; i++)
        largest = row[i] > largest ? row[i] : largest;
    for (size_t i = 0; i < whole; i += VF_LANES)
        sum += vf_exp(vf_load(row + i) - vf_set(largest));
    float total = vf_sum(sum);
    if (whole < n) {
        float lane[VF_LANES];
        vf_store(lane, vf_exp(vf_get(row + whole, n - whole) - vf_set(largest)));
        for (size_t i = 0; i < n - whole; i++)
            total += lane[i];
    }
    return largest + (float)zr_real_log((double)total);
}

/* The scores that are seen, of a row from `begin` to `end`. */
struct seen {
    size_t begin, first, n, end;
};

/* Scores to probabilities, rounded as stored; zero for tokens that are not seen. */
static void probabilities(float *row, struct seen seen, float lse)
{
    size_t n = seen.n;
    for (size_t i = seen.first; i < n; i += VF_LANES)
        vf_put(row + i, n - i, el_round(vf_exp(vf_get(row + i, n - i) - vf_set(lse))));
    memset(row + seen.begin, 0, (seen.first - seen.begin) * sizeof *row);
    memset(row + n, 0, (seen.end - n) * sizeof *row);
}

/* Merges a row of results of some keys, `from`, into those of other keys. Results without keys have an lse of
 * minus infinity and weigh nothing. */
static void merge_row(float *to, float *lse, const float *from, float from_lse, size_t width)
{
    double largest = *lse > from_lse ? *lse : from_lse, before = zr_real_exp((double)*lse - largest),
           now = from_lse > -INFINITY ? zr_real_exp((double)from_lse - largest) : 0, sum = before + now;
    for (size_t i = 0; i < width; i += VF_LANES)
        vf_put(to + i, width - i,
               vf_get(to + i, width - i) * vf_set((float)(before / sum)) +
                   vf_get(from + i, width - i) * vf_set((float)(now / sum)));
    *lse = (float)(largest + zr_real_log(sum));
}

/* Stores the results of query rows from t0 on. */
static void put_results(const struct zr_attention_forward *work, const struct head *h, size_t unit, size_t t0,
                        size_t rows, const float *mixed, const float *row_lse)
{
    size_t channels = work->shape.channels,
           at = (unit / work->shape.heads * h->tokens + t0) * channels + unit % work->shape.heads * h->width;
    float *lse = work->lse + unit * h->tokens + t0;
    for (size_t r = 0; r < rows && work->shape.ring.merge; r++)
        merge_row((float *)work->out + at + r * channels, &lse[r], mixed + r * h->padded_width, row_lse[r],
                  h->width);
    if (work->shape.ring.merge)
        return;
    memcpy(lse, row_lse, rows * sizeof *lse);
    for (size_t r = 0; r < rows && work->shape.ring.kv; r++)
        memcpy((float *)work->out + at + r * channels, mixed + r * h->padded_width, h->width * sizeof *mixed);
    if (!work->shape.ring.kv)
        scatter(mixed, h->padded_width, &(struct head_view){(el *)work->out + at, rows, h->width, channels},
                1.0f);
}

static void attention_forward(const struct zr_attention_forward *work, size_t unit, float *scratch)
{
    struct head h = head_of(&work->shape, work->qkv, unit);
    float row_lse[QUERY_BLOCK];
    float *q = take(&scratch, QUERY_BLOCK * h.padded_width);
    float *keys = take(&scratch, h.width * h.padded_tokens);
    float *v = take(&scratch, h.tokens * h.padded_width);
    float *p = take(&scratch, QUERY_BLOCK * h.padded_tokens);
    float *mixed = take(&scratch, QUERY_BLOCK * h.padded_width);
    gather_turned(&h.k, keys, h.padded_tokens);
    gather(&h.v, 1.0f, v, h.padded_width);
    for (size_t t0 = 0; t0 < h.tokens; t0 += QUERY_BLOCK) {
        size_t rows = h.tokens - t0 < QUERY_BLOCK ? h.tokens - t0 : QUERY_BLOCK,
               seen = end_seen(&h, t0 + rows - 1), from = first_of_block(&h, t0);
        struct head_view block = {h.q.at + t0 * h.q.stride, rows, h.width, h.q.stride};
        gather(&block, h.scale, q, h.padded_width);
        small_product(&(struct zr_small_product){.m = rows,
                                                 .n = seen - from,
                                                 .k = h.width,
                                                 .a = q,
                                                 .a_row_stride = h.padded_width,
                                                 .a_k_stride = 1,
                                                 .b = keys + from,
                                                 .b_stride = h.padded_tokens,
                                                 .c = p + from,
                                                 .c_stride = h.padded_tokens});
        for (size_t r = 0; r < rows; r++) {
            float *row = p + r * h.padded_tokens;
            size_t t = t0 + r, first = first_seen(&h, t), end = end_seen(&h, t);
            row_lse[r] = score_lse(row + first, end - first);
            probabilities(row, (struct seen){from, first, end, seen}, row_lse[r]);
            if (work->p != NULL) {
                el *kept = (el *)work->p + (unit * h.tokens + t) * h.tokens;
                memset(kept, 0, from * sizeof *kept);
                narrow(seen - from, row + from, kept + from);
                memset(kept + seen, 0, (h.tokens - seen) * sizeof *kept);
            }
            drop_keys(&h, t, row, first, end);
        }
        small_product(&(struct zr_small_product){.m = rows,
                                                 .n = h.width,
                                                 .k = seen - from,
                                                 .a = p + from,
                                                 .a_row_stride = h.padded_tokens,
                                                 .a_k_stride = 1,
                                                 .b = v + from * h.padded_width,
                                                 .b_stride = h.padded_width,
                                                 .c = mixed,
                                                 .c_stride = h.padded_width});
        put_results(work, &h, unit, t0, rows, mixed, row_lse);
    }
}

/* ---- Backward ------------------------------------------------------------------------------------------ */

struct backward_scratch {
    float *q, *k, *k_turned, *v_turned, *dout, *dk, *dv, *p, *dp, *dq;
};

/* p[rows, from to seen] of the query rows from t0: stored by forward or recomputed, with the same bits. */
static void backward_probabilities(const struct zr_attention_backward *work, const struct head *h,
                                   const struct backward_scratch *s, size_t unit, size_t t0, size_t rows)
{
    size_t seen = end_seen(h, t0 + rows - 1), from = first_of_block(h, t0);
    if (work->p != NULL) {
        for (size_t r = 0; r < rows; r++)
            widen(seen - from, (const el *)work->p + (unit * h->tokens + t0 + r) * h->tokens + from,
                  s->p + r * h->padded_tokens + from);
        return;
    }
    small_product(&(struct zr_small_product){.m = rows,
                                             .n = seen - from,
                                             .k = h->width,
                                             .a = s->q + t0 * h->padded_width,
                                             .a_row_stride = h->padded_width,
                                             .a_k_stride = 1,
                                             .b = s->k_turned + from,
                                             .b_stride = h->padded_tokens,
                                             .c = s->p + from,
                                             .c_stride = h->padded_tokens});
    for (size_t r = 0; r < rows; r++)
        probabilities(s->p + r * h->padded_tokens,
                      (struct seen){from, first_seen(h, t0 + r), end_seen(h, t0 + r), seen},
                      work->lse[unit * h->tokens + t0 + r]);
}

/* ds = p (dp - sum of dout . out), overwriting dp. Dropout applies to dp, and to p after that. */
static void backward_scores(const struct head *h, const struct backward_scratch *s, const el *out,
                            size_t out_stride, size_t t0, size_t rows)
{
    size_t seen = end_seen(h, t0 + rows - 1), from = first_of_block(h, t0);
    for (size_t r = 0; r < rows; r++) {
        const el *o = out + (t0 + r) * out_stride;
        const float *d = s->dout + (t0 + r) * h->padded_width;
        float *dp = s->dp + r * h->padded_tokens, *p = s->p + r * h->padded_tokens;
        size_t first = first_seen(h, t0 + r), end = end_seen(h, t0 + r);
        drop_keys(h, t0 + r, dp, first, end);
        vf sum = vf_set(0.0f);
        for (size_t i = 0; i < h->width; i += VF_LANES)
            sum = vf_fma(el_get(o + i, h->width - i), vf_get(d + i, h->width - i), sum);
        vf delta = vf_set(vf_sum(sum));
        for (size_t i = from; i < seen; i += VF_LANES)
            vf_put(dp + i, seen - i, vf_get(p + i, seen - i) * (vf_get(dp + i, seen - i) - delta));
        drop_keys(h, t0 + r, p, first, end);
    }
}

/* One block of query rows: computes dq and adds to dk and dv. */
static void backward_block(const struct head *h, const struct backward_scratch *s, size_t t0, size_t rows)
{
    size_t from = first_of_block(h, t0), seen = end_seen(h, t0 + rows - 1) - from, wide = h->padded_width,
           line = h->padded_tokens;
    small_product(&(struct zr_small_product){.m = rows,
                                             .n = h->width,
                                             .k = seen,
                                             .a = s->dp + from,
                                             .a_row_stride = line,
                                             .a_k_stride = 1,
                                             .b = s->k + from * wide,
                                             .b_stride = wide,
                                             .c = s->dq,
                                             .c_stride = wide});
    small_product(&(struct zr_small_product){.m = seen,
                                             .n = h->width,
                                             .k = rows,
                                             .a = s->dp + from,
                                             .a_row_stride = 1,
                                             .a_k_stride = line,
                                             .b = s->q + t0 * wide,
                                             .b_stride = wide,
                                             .c = s->dk + from * wide,
                                             .c_stride = wide,
                                             .accumulate = true});
    small_product(&(struct zr_small_product){.m = seen,
                                             .n = h->width,
                                             .k = rows,
                                             .a = s->p + from,
                                             .a_row_stride = 1,
                                             .a_k_stride = line,
                                             .b = s->dout + t0 * wide,
                                             .b_stride = wide,
                                             .c = s->dv + from * wide,
                                             .c_stride = wide,
                                             .accumulate = true});
}

static struct backward_scratch backward_take(const struct head *h, float *scratch)
{
    size_t whole = h->tokens * h->padded_width, turned = h->width * h->padded_tokens;
    struct backward_scratch s;
    s.q = take(&scratch, whole);
    s.k = take(&scratch, whole);
    s.dout = take(&scratch, whole);
    s.dk = take(&scratch, whole);
    s.dv = take(&scratch, whole);
    s.k_turned = take(&scratch, turned);
    s.v_turned = take(&scratch, turned);
    s.p = take(&scratch, QUERY_BLOCK * h->padded_tokens);
    s.dp = take(&scratch, QUERY_BLOCK * h->padded_tokens);
    s.dq = take(&scratch, QUERY_BLOCK * h->padded_width);
    return s;
}

/* The address in dqkv that corresponds to an address in qkv. */
static struct head_view gradient_of(const struct zr_attention_backward *work, const struct head_view *view)
{
    struct head_view d = *view;
    d.at = (const el *)work->dqkv + (view->at - (const el *)work->qkv);
    return d;
}

/* Adds rows of one head, multiplied by `scale`, to rows of `line` floats. */
static void add_floats(const float *from, const struct head *h, float *to, size_t line, size_t rows,
                       float scale)
{
    for (size_t r = 0; r < rows; r++, from += h->padded_width, to += line)
        for (size_t i = 0; i < h->width; i += VF_LANES)
            vf_put(to + i, h->width - i,
                   vf_fma(vf_get(from + i, h->width - i), vf_set(scale), vf_get(to + i, h->width - i)));
}

/* One query head: computes dq and adds to dk and dv. */
static void backward_queries(const struct zr_attention_backward *work, const struct head *of,
                             const struct backward_scratch *scratch, size_t unit)
{
    const struct head h = *of;
    const struct backward_scratch s = *scratch;
    size_t sequence = unit / work->shape.heads, channels = work->shape.channels;
    size_t at = sequence * h.tokens * channels + unit % work->shape.heads * h.width;
    struct head_view dout = {(const el *)work->dout + at, h.tokens, h.width, channels};
    struct head_view dqkv = gradient_of(work, &h.q);
    gather(&h.q, h.scale, s.q, h.padded_width);
    gather(&dout, 1.0f, s.dout, h.padded_width);
    for (size_t t0 = 0; t0 < h.tokens; t0 += QUERY_BLOCK) {
        size_t rows = h.tokens - t0 < QUERY_BLOCK ? h.tokens - t0 : QUERY_BLOCK,
               seen = end_seen(&h, t0 + rows - 1), from = first_of_block(&h, t0);
        backward_probabilities(work, &h, &s, unit, t0, rows);
        small_product(&(struct zr_small_product){.m = rows,
                                                 .n = seen - from,
                                                 .k = h.width,
                                                 .a = s.dout + t0 * h.padded_width,
                                                 .a_row_stride = h.padded_width,
                                                 .a_k_stride = 1,
                                                 .b = s.v_turned + from,
                                                 .b_stride = h.padded_tokens,
                                                 .c = s.dp + from,
                                                 .c_stride = h.padded_tokens});
        backward_scores(&h, &s, (const el *)work->out + at, channels, t0, rows);
        backward_block(&h, &s, t0, rows);
        struct head_view dq = {dqkv.at + t0 * dqkv.stride, rows, h.width, dqkv.stride};
        if (work->shape.ring.kv)
            add_floats(s.dq, &h, work->shape.ring.dq + at + t0 * channels, channels, rows, h.scale);
        else
            scatter(s.dq, h.padded_width, &dq, h.scale);
    }
}

static void attention_backward(const struct zr_attention_backward *work, size_t unit, float *scratch)
{
    size_t group = heads_per_kv(&work->shape);
    struct head h = head_of(&work->shape, work->qkv, unit * group);
    struct backward_scratch s = backward_take(&h, scratch);
    gather(&h.k, 1.0f, s.k, h.padded_width);
    gather_turned(&h.k, s.k_turned, h.padded_tokens);
    gather_turned(&h.v, s.v_turned, h.padded_tokens);
    memset(s.dk, 0, h.tokens * h.padded_width * sizeof *s.dk);
    memset(s.dv, 0, h.tokens * h.padded_width * sizeof *s.dv);
    for (size_t i = 0; i < group; i++) {
        h = head_of(&work->shape, work->qkv, unit * group + i);
        backward_queries(work, &h, &s, unit * group + i);
    }
    if (work->shape.ring.kv) {
        size_t line = h.k.stride;
        add_floats(s.dk, &h, work->shape.ring.dkv + (h.k.at - (const el *)work->shape.ring.kv), line,
                   h.tokens, 1.0f);
        add_floats(s.dv, &h, work->shape.ring.dkv + (h.v.at - (const el *)work->shape.ring.kv), line,
                   h.tokens, 1.0f);
        return;
    }
    struct head_view dk = gradient_of(work, &h.k), dv = gradient_of(work, &h.v);
    scatter(s.dk, h.padded_width, &dk, 1.0f);
    scatter(s.dv, h.padded_width, &dv, 1.0f);
}
