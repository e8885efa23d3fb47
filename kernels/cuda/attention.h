/* attention.h: pointers of one head of one sequence, for the attention kernels. */
#ifndef ZR_CUDA_ATTENTION_H
#define ZR_CUDA_ATTENTION_H

#include "kernels/cuda/element.h"
#include "kernels/dropout.h"

struct head {
    size_t width, tokens, line, out_line; /* line: stride of tokens in q, k and v, in elements */
    const el *q, *k, *v;                  /* at the sequence's first token */
    float scale;
    size_t window;            /* tokens that a token attends to */
    const int32_t *positions; /* of the sequence's tokens in their documents; NULL: it is one document */
    struct zr_dropout drop;   /* of the probabilities; rate 0: none */
};

/* Factor of a probability: 1 without dropout. */
DEVICE float drop_factor(const struct head *h, size_t query, size_t key)
{
    float four[4], factor = 1;
    if (h->drop.rate > 0) {
        zr_dropout_factors(&h->drop, h->drop.first_row + query, key / 4, four);
        factor = key % 4 == 0 ? four[0] : key % 4 == 1 ? four[1] : key % 4 == 2 ? four[2] : four[3];
    }
    return factor;
}

/* First token that token t of the sequence attends to. */
DEVICE size_t first_seen(const struct head *h, size_t t)
{
    size_t window = t < h->window ? 0 : t - h->window + 1,
           document = h->positions ? t - (size_t)h->positions[t] : 0;
    return window > document ? window : document;
}

DEVICE size_t kv_heads_of(const struct zr_attention *s)
{
    return s->kv_heads ? s->kv_heads : s->heads;
}

DEVICE float scale_of(size_t width)
{
    return 1.0f / sqrtf((float)width);
}

/* Query head `number` with the keys and values of its group. */
DEVICE struct head head_of(const struct zr_attention *s, const el *qkv, size_t batch, size_t number)
{
    struct head h;
    size_t kv_heads = kv_heads_of(s), kv = number / (s->heads / kv_heads);
    h.width = s->channels / s->heads;
    h.tokens = s->sequence;
    h.line = s->channels + 2 * kv_heads * h.width;
    h.out_line = s->channels;
    h.q = qkv + batch * h.tokens * h.line + number * h.width;
    h.k = qkv + batch * h.tokens * h.line + s->channels + kv * h.width;
    h.v = h.k + kv_heads * h.width;
    h.scale = s->scale > 0 ? s->scale : scale_of(h.width);
    h.window = s->window ? s->window : s->sequence;
    h.positions = s->positions ? s->positions + batch * h.tokens : NULL;
    h.drop.rate = s->dropout.rate;
    h.drop.site = s->dropout.site + (unsigned)number;
    h.drop.draw = s->dropout.draw;
    h.drop.first_row = batch * h.tokens;
    return h;
}

#endif
