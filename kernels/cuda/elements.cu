/* elements.cu: embeddings and elementwise operations. */
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/element.h"

#include "kernels/dropout.h"

/* ---- Embeddings ---------------------------------------------------------------------------------------- */

/* A block handles one row. */
KERNEL(K(embedding_forward), struct zr_embedding_forward, CUDA_THREADS)
{
    size_t row = blockIdx.x, token = (size_t)a.tokens[row] - a.first_row;
    const el *w = (const el *)a.w + token * a.channels;
    el *y = (el *)a.y + row * a.channels;
    bool here = a.w_rows == 0 || token < a.w_rows;
    for (size_t c = threadIdx.x; c < a.channels && (here || !a.keeps); c += blockDim.x)
        el_put(y + c, here ? el_get(w + c) : 0);
}

/* A block computes one row of dw, up to four channels per thread. It searches all tokens and adds their rows
 * of dy in order, so the sum is rounded once and does not depend on timing. */
KERNEL(K(embedding_backward), struct zr_embedding_backward, CUDA_THREADS)
{
    enum { CHANNELS = CUDA_EMBEDDING_CHANNELS / CUDA_THREADS };
    SHARED(unsigned, found, CUDA_THREADS);    /* rows with this token in one pass */
    SHARED(unsigned, counts, 2 * CUDA_WARPS); /* per warp, double-buffered over passes */
    size_t first_channel = (size_t)blockIdx.y * CUDA_EMBEDDING_CHANNELS + threadIdx.x;
    el *dw = (el *)a.dw + blockIdx.x * a.channels;
    float sums[CHANNELS];
    bool any = !a.accumulate;
    UNROLL
    for (int i = 0; i < CHANNELS; i++) {
        size_t c = first_channel + (size_t)i * CUDA_THREADS;
        sums[i] = a.accumulate && c < a.channels ? el_get(dw + c) : 0;
    }
    unsigned pass = 0;
    for (size_t from = 0; from < a.rows; from += CUDA_THREADS, pass ^= 1) {
        size_t row = from + threadIdx.x;
        bool match = row < a.rows && (size_t)a.tokens[row] - a.first_row == blockIdx.x;
        unsigned votes = __ballot_sync(ALL_LANES, match), before = 0, total = 0;
        if (lane_of_thread() == 0)
            counts[pass * CUDA_WARPS + warp_of_thread()] = (unsigned)__popc(votes);
        __syncthreads();
        for (unsigned warp = 0; warp < CUDA_WARPS; warp++) {
            before += warp < warp_of_thread() ? counts[pass * CUDA_WARPS + warp] : 0;
            total += counts[pass * CUDA_WARPS + warp];
        }
        if (total == 0)
            continue;
        any = true;
        if (match)
            found[before + (unsigned)__popc(votes & ((1u << lane_of_thread()) - 1))] = threadIdx.x;
        __syncthreads();
        for (unsigned f = 0; f < total; f++) {
            const el *dy = (const el *)a.dy + (from + found[f]) * a.channels;
            UNROLL
            for (int i = 0; i < CHANNELS; i++) {
                size_t c = first_channel + (size_t)i * CUDA_THREADS;
                if (c < a.channels)
                    sums[i] += el_get(dy + c);
            }
        }
    }
    UNROLL
    for (int i = 0; i < CHANNELS; i++) {
        size_t c = first_channel + (size_t)i * CUDA_THREADS;
        if (any && c < a.channels)
            el_put(dw + c, sums[i]);
    }
}

KERNEL(K(positions_forward), struct zr_positions_forward, CUDA_THREADS)
{
    size_t row = blockIdx.x;
    size_t position = a.positions ? (size_t)a.positions[row] : (a.first_row + row) % a.sequence;
    const el *w = (const el *)a.w + position * a.channels;
    el *y = (el *)a.y + row * a.channels;
    for (size_t c = threadIdx.x; c < a.channels; c += blockDim.x)
        el_put(y + c, el_get(y + c) + el_get(w + c));
}

/* A block computes one row of dw. */
KERNEL(K(positions_backward), struct zr_positions_backward, CUDA_THREADS)
{
    size_t t = blockIdx.x, first = (t + a.sequence - a.first_row % a.sequence) % a.sequence;
    for (size_t c = threadIdx.x; c < a.channels; c += blockDim.x) {
        el *dw = (el *)a.dw + t * a.channels + c;
        float sum = a.accumulate ? el_get(dw) : 0;
        for (size_t row = first; t < a.sequence && row < a.rows; row += a.sequence)
            sum += el_get((const el *)a.dy + row * a.channels + c);
        el_put(dw, sum);
    }
}

/* ---- Element by element -------------------------------------------------------------------------------- */

#define ADDRESS(tensor) ((uintptr_t)a.tensor)

KERNEL(K(gelu_forward), struct zr_gelu_forward, CUDA_THREADS)
{
    const size_t width = pack_width(ADDRESS(x) | ADDRESS(y));
    EACH_PACK(i, count, a.n, width)
    {
        struct pack x = pack_get(a.x, i, count);
        EACH_OF_PACK(j, count) x.at[j] = formula_activate(a.activation, x.at[j]);
        pack_put(a.y, i, &x, count);
    }
}

KERNEL(K(gelu_backward), struct zr_gelu_backward, CUDA_THREADS)
{
    const size_t width = pack_width(ADDRESS(x) | ADDRESS(dy) | ADDRESS(dx));
    EACH_PACK(i, count, a.n, width)
    {
        struct pack x = pack_get(a.x, i, count), dy = pack_get(a.dy, i, count);
        EACH_OF_PACK(j, count) dy.at[j] *= formula_activation_slope(a.activation, x.at[j]);
        pack_put(a.dx, i, &dy, count);
    }
}

KERNEL(K(swiglu_forward), struct zr_swiglu_forward, CUDA_THREADS)
{
    const size_t width = pack_width(ADDRESS(gate) | ADDRESS(up) | ADDRESS(y));
    EACH_PACK(i, count, a.n, width)
    {
        struct pack gate = pack_get(a.gate, i, count), up = pack_get(a.up, i, count);
        EACH_OF_PACK(j, count) up.at[j] = formula_swiglu(a.gelu, gate.at[j], up.at[j]);
        pack_put(a.y, i, &up, count);
    }
}

KERNEL(K(swiglu_backward), struct zr_swiglu_backward, CUDA_THREADS)
{
    const size_t width =
        pack_width(ADDRESS(gate) | ADDRESS(up) | ADDRESS(dy) | ADDRESS(dgate) | ADDRESS(dup));
    EACH_PACK(i, count, a.n, width)
    {
        struct pack gate = pack_get(a.gate, i, count), up = pack_get(a.up, i, count),
                    dy = pack_get(a.dy, i, count);
        EACH_OF_PACK(j, count)
        {
            float dgate, dup;
            formula_swiglu_backward(a.gelu, gate.at[j], up.at[j], dy.at[j], &dgate, &dup);
            gate.at[j] = dgate;
            up.at[j] = dup;
        }
        pack_put(a.dup, i, &up, count);
        pack_put(a.dgate, i, &gate, count);
    }
}

KERNEL(K(add), struct zr_add, CUDA_THREADS)
{
    const size_t width = pack_width(ADDRESS(a) | ADDRESS(b) | ADDRESS(out));
    EACH_PACK(i, count, a.n, width)
    {
        struct pack x = pack_get(a.a, i, count), y = pack_get(a.b, i, count);
        EACH_OF_PACK(j, count) x.at[j] += y.at[j];
        pack_put(a.out, i, &x, count);
    }
}

/* A thread handles four elements of a row, whose random numbers are one counter's. */
KERNEL(K(dropout), struct zr_dropout, CUDA_THREADS)
{
    const size_t groups = (a.columns + 3) / 4;
    EACH(i, a.rows * groups)
    {
        const size_t row = i / groups, first = i % groups * 4, at = row * a.columns + first;
        float factors[4];
        zr_dropout_factors(&a, a.first_row + row, i % groups, factors);
        UNROLL
        for (unsigned j = 0; j < 4; j++)
            if (first + j < a.columns)
                el_put((el *)a.y + at + j, el_get((const el *)a.x + at + j) * factors[j]);
    }
}

/* A block handles one row, and a thread some pairs of the row. */
KERNEL(K(rotary), struct zr_rotary, CUDA_THREADS)
{
    size_t position = a.positions ? (size_t)a.positions[blockIdx.x] : blockIdx.x % a.sequence;
    size_t half = a.width / 2, angles = position * half, head_stride = a.head_stride ? a.head_stride : a.width;
    for (size_t pair = threadIdx.x; pair < a.heads * half; pair += blockDim.x) {
        size_t i = pair % half;
        el *x = (el *)a.x + blockIdx.x * a.stride + pair / half * head_stride + i;
        float first = el_get(x), second = el_get(x + half), sine = a.sines[angles + i];
        formula_turn(&first, &second, a.cosines[angles + i], a.inverse ? -sine : sine);
        el_put(x, first);
        el_put(x + half, second);
    }
}
