/* attention.h: one head of one sequence as the attention kernels find it in the operation's tensors. */
#ifndef ZR_CUDA_ATTENTION_H
#define ZR_CUDA_ATTENTION_H

#include "kernels/cuda/element.h"

struct head {
    size_t width, tokens, line, out_line; /* line: elements from token to token of q, k, v */
    const el *q, *k, *v;                  /* of the sequence's first token */
    float scale;
};

DEVICE size_t kv_heads_of(const struct zr_attention *s)
{
    return s->kv_heads ? s->kv_heads : s->heads;
}

DEVICE float scale_of(size_t width)
{
    return 1.0f / sqrtf((float)width);
}

/* Head `number` of the queries, with the keys and values that its group shares. */
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
    h.scale = scale_of(h.width);
    return h;
}

#endif
