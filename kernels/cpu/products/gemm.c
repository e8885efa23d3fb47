/* gemm.c: fp32 matrix products by oneDNN's matmul, divided into slices over the context's threads; each call
 * of the library uses one thread. tests/bench/bench_gemm.c compares this with the library's own threads and
 * with OpenBLAS.
 *
 * The division, and so the bits, depend on the shape only; threads take slices from a counter. Slices are
 * columns, or rows if the left operand is transposed (the gradient of weights). If the right operand is
 * transposed, its slices are contiguous, and results pass through a tile in the thread's scratch, because the
 * library's fastest kernel, which needs no memory of its own, requires contiguous operands. In the other
 * forms the library allocates about 7 MB per thread for packing.
 *
 * Primitives are created once per shape and slice and cached in the workspace. A slice that the library
 * refuses (out of memory, unsupported shape) is computed here and counted in the context. */
#include "kernels/cpu/products/gemm.h"
#include "alloc/base/error.h"
#include "kernels/cpu/products/onednn.h"

#include <stdatomic.h>
#include <string.h>

void omp_set_num_threads(int threads); /* libgomp's function; applies to the calling thread only */

enum {
    ENTRIES = 192,
    SLICES_PER_SIDE = 8,
    SLICE_MIN = 64,
    SLICE_MAX = 384,
    SLICE_GRAIN = 32,
    TILE_ROWS = 256
};
#define SCRATCH_BYTES ZR_THREAD_SCRATCH_BYTES /* primitives that need more are not used */

/* Scratch of zr's own code, at the end; the library uses the rest. */
#define TILE_BYTES ((size_t)TILE_ROWS * SLICE_MAX * sizeof(float))

/* Key of a primitive, compared bytewise: must not contain padding. */
struct key {
    uint64_t m, n, k; /* of the slice */
    uint64_t a_stride, b_stride, c_stride;
    uint32_t a_turned, b_turned, accumulate, unused;
};

struct memory {
    dnnl_memory_t a, b, c, scratchpad;
};

struct entry {
    struct key key;
    dnnl_primitive_t primitive; /* NULL: refused by the library, computed here */
    bool used;
    uint64_t last_use;
};

struct zr_gemm_state {
    dnnl_engine_t engine;
    uint64_t uses;
    unsigned threads;
    bool refused; /* refused by a test */
    atomic_uint_least64_t pieces_refused;
    struct entry entries[ENTRIES];
    struct memory *memories; /* [ENTRIES][threads] */
    dnnl_stream_t *streams;  /* [threads] */
    char *scratch;           /* [threads][SCRATCH_BYTES] */
};

/* ---- Layout of the memory ------------------------------------------------------------------------------ */

size_t zr_gemm_state_bytes(unsigned threads)
{
    return zr_round_up(sizeof(struct zr_gemm_state), 64) +
           zr_round_up((size_t)threads * (ENTRIES * sizeof(struct memory) + sizeof(dnnl_stream_t)), 64);
}

size_t zr_gemm_scratch_bytes(unsigned threads)
{
    return (size_t)threads * SCRATCH_BYTES;
}

char *zr_gemm_scratch(const struct zr_kernel_context *context)
{
    return ((struct zr_gemm_state *)context->library)->scratch;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static dnnl_cpu_isa_t library_isa(enum zr_isa isa)
{
    switch (isa) {
    case ZR_ISA_AMX:
    case ZR_ISA_AVX512_BF16:
    case ZR_ISA_AVX512: /* no better kernels for floats */
        return dnnl_cpu_isa_avx512_core;
    case ZR_ISA_AVX2:
        return dnnl_cpu_isa_avx2;
    default:
        return dnnl_cpu_isa_sse41; /* the library's minimum */
    }
}

/* The library's instruction set can be set once per process, before its first use. */
static zr_result bind_isa(enum zr_isa isa)
{
    dnnl_cpu_isa_t wanted = library_isa(isa);
    if (dnnl_set_max_cpu_isa(wanted) == dnnl_success || dnnl_get_effective_cpu_isa() == wanted)
        return ZR_OK;
    return zr_fail(
        ZR_ERR_UNAVAILABLE,
        "oneDNN already uses another instruction set in this process; run %s in a separate process",
        zr_isa_name(isa));
}

zr_result zr_gemm_open(struct zr_kernel_context *context)
{
    struct zr_gemm_state *state = context->workspace;
    unsigned threads = zr_context_threads(context);
    zr_result result = bind_isa(context->isa);
    if (result != ZR_OK)
        return result;
    memset(state, 0, zr_gemm_state_bytes(threads));
    state->threads = threads;
    state->memories = (struct memory *)((char *)state + zr_round_up(sizeof *state, 64));
    state->streams = (dnnl_stream_t *)(state->memories + (size_t)ENTRIES * threads);
    state->scratch = (char *)state + zr_gemm_state_bytes(threads);
    context->library = state;
    dnnl_set_primitive_cache_capacity(0); /* the table in this file replaces the library's cache */
    dnnl_status_t status = dnnl_engine_create(&state->engine, dnnl_cpu, 0);
    for (unsigned t = 0; t < threads && status == dnnl_success; t++)
        status = dnnl_stream_create(&state->streams[t], state->engine, dnnl_stream_in_order);
    if (status == dnnl_success)
        return ZR_OK;
    zr_gemm_close(context);
    context->library = NULL;
    return zr_fail(ZR_ERR_UNAVAILABLE, "oneDNN cannot start (status %d)", (int)status);
}

static void entry_clear(struct zr_gemm_state *state, struct entry *entry)
{
    struct memory *memories = state->memories + (size_t)(entry - state->entries) * state->threads;
    for (unsigned t = 0; t < state->threads; t++) {
        if (memories[t].a != NULL)
            dnnl_memory_destroy(memories[t].a);
        if (memories[t].b != NULL)
            dnnl_memory_destroy(memories[t].b);
        if (memories[t].c != NULL)
            dnnl_memory_destroy(memories[t].c);
        if (memories[t].scratchpad != NULL)
            dnnl_memory_destroy(memories[t].scratchpad);
    }
    memset(memories, 0, state->threads * sizeof *memories);
    if (entry->primitive != NULL)
        dnnl_primitive_destroy(entry->primitive);
    memset(entry, 0, sizeof *entry);
}

void zr_gemm_close(struct zr_kernel_context *context)
{
    struct zr_gemm_state *state = context->library;
    for (size_t i = 0; i < ENTRIES; i++)
        if (state->entries[i].used)
            entry_clear(state, &state->entries[i]);
    for (unsigned t = 0; t < state->threads; t++)
        if (state->streams[t] != NULL)
            dnnl_stream_destroy(state->streams[t]);
    if (state->engine != NULL)
        dnnl_engine_destroy(state->engine);
}

void zr_gemm_refuse(struct zr_kernel_context *context)
{
    struct zr_gemm_state *state = context->library;
    state->refused = true;
}

/* ---- Primitives ---------------------------------------------------------------------------------------- */

struct shapes {
    dnnl_memory_desc_t sides[3]; /* a, b, c */
    dnnl_memory_desc_t scratchpad;
};

static void shapes_forget(struct shapes *shapes)
{
    for (int i = 0; i < 3; i++)
        onednn_forget(&shapes->sides[i]);
    onednn_forget(&shapes->scratchpad);
}

static dnnl_status_t describe_sides(const struct key *key, struct shapes *shapes)
{
    dnnl_dims_t a = {(dnnl_dim_t)key->m, (dnnl_dim_t)key->k}, b = {(dnnl_dim_t)key->k, (dnnl_dim_t)key->n};
    dnnl_dims_t c = {(dnnl_dim_t)key->m, (dnnl_dim_t)key->n}, c_strides = {(dnnl_dim_t)key->c_stride, 1};
    dnnl_dims_t a_strides = {key->a_turned ? 1 : (dnnl_dim_t)key->a_stride,
                             key->a_turned ? (dnnl_dim_t)key->a_stride : 1};
    dnnl_dims_t b_strides = {key->b_turned ? 1 : (dnnl_dim_t)key->b_stride,
                             key->b_turned ? (dnnl_dim_t)key->b_stride : 1};
    dnnl_status_t status = onednn_describe(&shapes->sides[0], a, dnnl_f32, a_strides);
    if (status == dnnl_success)
        status = onednn_describe(&shapes->sides[1], b, dnnl_f32, b_strides);
    if (status == dnnl_success)
        status = onednn_describe(&shapes->sides[2], c, dnnl_f32, c_strides);
    return status;
}

static dnnl_status_t primitive_create(struct zr_gemm_state *state, const struct key *key,
                                      struct shapes *shapes, dnnl_primitive_t *out)
{
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t sums = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t status = describe_sides(key, shapes);
    if (status != dnnl_success)
        goto unwind;
    status = dnnl_primitive_attr_create(&attributes);
    if (status != dnnl_success)
        goto unwind;
    status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (status != dnnl_success)
        goto unwind;
    status = dnnl_post_ops_create(&sums);
    if (status != dnnl_success)
        goto unwind;
    if (key->accumulate)
        status = onednn_append_sum(sums);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attributes, sums);
    if (status == dnnl_success)
        status = onednn_matmul(&description, state->engine, shapes->sides, attributes);
    if (status == dnnl_success)
        status = onednn_scratchpad(&shapes->scratchpad, description);
    if (status == dnnl_success)
        status = onednn_bytes(&shapes->scratchpad) <= SCRATCH_BYTES - TILE_BYTES
                     ? dnnl_primitive_create(out, description)
                     : dnnl_unimplemented;
unwind:
    if (description != NULL)
        dnnl_primitive_desc_destroy(description);
    if (sums != NULL)
        dnnl_post_ops_destroy(sums);
    if (attributes != NULL)
        dnnl_primitive_attr_destroy(attributes);
    return status;
}

static dnnl_status_t memories_create(struct zr_gemm_state *state, struct entry *entry,
                                     const struct shapes *shapes)
{
    struct memory *memories = state->memories + (size_t)(entry - state->entries) * state->threads;
    dnnl_status_t status = dnnl_success;
    for (unsigned t = 0; t < state->threads && status == dnnl_success; t++) {
        struct memory *m = &memories[t];
        status = onednn_memory(&m->a, &shapes->sides[0], state->engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success)
            status = onednn_memory(&m->b, &shapes->sides[1], state->engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success)
            status = onednn_memory(&m->c, &shapes->sides[2], state->engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success)
            status = onednn_memory(&m->scratchpad, &shapes->scratchpad, state->engine,
                                   state->scratch + t * SCRATCH_BYTES);
    }
    return status;
}

/* Finds or creates the entry of a key; replaces the least recently used one. Calling thread only, with the
 * library limited to one thread, because the library's choice of kernel depends on the number of threads. */
static struct entry *entry_of(struct zr_gemm_state *state, const struct key *key)
{
    struct entry *oldest = &state->entries[0];
    struct shapes shapes = {0};
    state->uses++;
    for (size_t i = 0; i < ENTRIES; i++) {
        struct entry *entry = &state->entries[i];
        if (entry->used && memcmp(&entry->key, key, sizeof *key) == 0) {
            entry->last_use = state->uses;
            return entry;
        }
        if (!entry->used ? oldest->used : oldest->used && entry->last_use < oldest->last_use)
            oldest = entry;
    }
    if (oldest->used)
        entry_clear(state, oldest);
    oldest->key = *key;
    oldest->used = true;
    oldest->last_use = state->uses;
    /* A single column is computed here: oneDNN 3 adds to it, even to NaN, instead of overwriting it. */
    if (key->n == 1)
        return oldest;
    dnnl_primitive_t primitive = NULL;
    dnnl_status_t status = primitive_create(state, key, &shapes, &primitive);
    oldest->primitive = primitive;
    if (status == dnnl_success)
        status = memories_create(state, oldest, &shapes);
    shapes_forget(&shapes);
    if (status != dnnl_success) {
        entry_clear(state, oldest);
        oldest->key = *key;
        oldest->used = true;
        oldest->last_use = state->uses;
    }
    return oldest;
}

/* ---- Slices -------------------------------------------------------------------------------------------- */

/* A piece of the result, computed by one call of the library. */
struct piece {
    size_t row, rows, column, columns;
};

struct job {
    const struct zr_gemm *product;
    const struct zr_loops *loops;
    struct zr_gemm_state *state;
    bool by_rows;
    bool tiled;   /* results pass through a tile in the thread's scratch */
    size_t slice; /* rows or columns per slice; the last may be smaller */
    size_t slices_count;
    size_t piece_rows;           /* rows per piece; the last may be smaller */
    struct entry *entries[2][2]; /* [in the last slice][in the slice's last piece] */
    atomic_size_t next;
};

static size_t slice_of(size_t n)
{
    size_t slice = zr_round_up((n + SLICES_PER_SIDE - 1) / SLICES_PER_SIDE, SLICE_GRAIN);
    return slice < SLICE_MIN ? SLICE_MIN : slice > SLICE_MAX ? SLICE_MAX : slice;
}

static struct piece piece_of(const struct job *job, size_t slice, size_t row)
{
    const struct zr_gemm *p = job->product;
    size_t from = slice * job->slice, end = (job->by_rows ? p->m : p->n) - from;
    size_t width = end < job->slice ? end : job->slice;
    if (job->by_rows)
        return (struct piece){from, width, 0, p->n};
    return (struct piece){row, p->m - row < job->piece_rows ? p->m - row : job->piece_rows, from, width};
}

static struct entry *entry_for(const struct job *job, size_t slice, size_t row)
{
    const struct zr_gemm *p = job->product;
    struct piece piece = piece_of(job, slice, row);
    struct key key = {.m = piece.rows,
                      .n = piece.columns,
                      .k = p->k,
                      .a_stride = p->a_stride,
                      .b_stride = p->b_stride,
                      .c_stride = job->tiled ? piece.columns : p->c_stride,
                      .a_turned = p->a_turned,
                      .b_turned = p->b_turned,
                      .accumulate = p->accumulate};
    return entry_of(job->state, &key);
}

/* A block of an operand in rows of `line`, for products computed here. */
struct block {
    const float *from; /* its first element */
    size_t rows, columns, row_stride, column_stride;
};

static void block_copy(const struct block *block, float *to, size_t line)
{
    for (size_t i = 0; i < block->rows; i++)
        for (size_t j = 0; j < block->columns; j++)
            to[i * line + j] = block->from[i * block->row_stride + j * block->column_stride];
}

/* Operands of a piece. */
struct sides {
    const float *a, *b;
    float *c;
};

/* Computes a piece without the library, in blocks that fit the caches, in the order of k. */
static void compute_piece(const struct job *job, const struct key *key, struct sides sides, unsigned part)
{
    enum { K = 256, N = 256, M = 64 };
    float *a = (float *)(job->state->scratch + part * SCRATCH_BYTES), *b = a + K * M;
    size_t a_row = key->a_turned ? 1 : key->a_stride, a_k = key->a_turned ? key->a_stride : 1;
    size_t b_k = key->b_turned ? 1 : key->b_stride, b_column = key->b_turned ? key->b_stride : 1;
    for (size_t k = 0; k < key->k; k += K)
        for (size_t n = 0; n < key->n; n += N) {
            struct zr_small_product p = {.n = key->n - n < N ? key->n - n : N,
                                         .k = key->k - k < K ? key->k - k : K,
                                         .a = a,
                                         .a_row_stride = K,
                                         .a_k_stride = 1,
                                         .b = b,
                                         .b_stride = N,
                                         .c_stride = key->c_stride,
                                         .accumulate = key->accumulate || k > 0};
            block_copy(&(struct block){sides.b + k * b_k + n * b_column, p.k, p.n, b_k, b_column}, b, N);
            for (size_t m = 0; m < key->m; m += M) {
                p.m = key->m - m < M ? key->m - m : M;
                p.c = sides.c + m * key->c_stride + n;
                block_copy(&(struct block){sides.a + m * a_row + k * a_k, p.m, p.k, a_row, a_k}, a, K);
                job->loops->small_product(&p);
            }
        }
}

static bool piece_by_library(const struct job *job, const struct entry *entry, struct sides sides,
                             unsigned part)
{
    struct zr_gemm_state *state = job->state;
    if (entry->primitive == NULL || state->refused)
        return false;
    struct memory *m = state->memories + (size_t)(entry - state->entries) * state->threads + part;
    if (dnnl_memory_set_data_handle(m->a, (void *)sides.a) != dnnl_success ||
        dnnl_memory_set_data_handle(m->b, (void *)sides.b) != dnnl_success ||
        dnnl_memory_set_data_handle(m->c, sides.c) != dnnl_success)
        return false;
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, m->a},
                                         {DNNL_ARG_WEIGHTS, m->b},
                                         {DNNL_ARG_DST, m->c},
                                         {DNNL_ARG_SCRATCHPAD, m->scratchpad}};
    return dnnl_primitive_execute(entry->primitive, state->streams[part], 4, arguments) == dnnl_success;
}

static void piece_run(const struct job *job, const struct entry *entry, struct piece piece, unsigned part)
{
    const struct zr_gemm *p = job->product;
    float *c = p->c + piece.row * p->c_stride + piece.column;
    float *tile = (float *)(job->state->scratch + (part + 1) * SCRATCH_BYTES - TILE_BYTES);
    struct sides sides = {p->a + (p->a_turned ? piece.row : piece.row * p->a_stride),
                          p->b + (p->b_turned ? piece.column * p->b_stride : piece.column),
                          job->tiled ? tile : c};
    if (!piece_by_library(job, entry, sides, part)) {
        atomic_fetch_add_explicit(&job->state->pieces_refused, 1, memory_order_relaxed);
        compute_piece(job, &entry->key, sides, part);
    }
    for (size_t r = 0; job->tiled && r < piece.rows; r++)
        memcpy(c + r * p->c_stride, tile + r * piece.columns, piece.columns * sizeof(float));
    if (p->bias != NULL)
        job->loops->add_to_rows(&(struct zr_tile){c, piece.rows, piece.columns, p->c_stride},
                                p->bias + piece.column);
}

static void gemm_part(void *argument, unsigned part, unsigned parts)
{
    struct job *job = argument;
    (void)parts;
    omp_set_num_threads(1); /* keep libgomp from starting threads */
    for (size_t i; (i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->slices_count;)
        for (size_t row = 0; row < (job->by_rows ? 1 : job->product->m); row += job->piece_rows) {
            bool end = !job->by_rows && job->product->m - row <= job->piece_rows;
            piece_run(job, job->entries[i + 1 == job->slices_count][end], piece_of(job, i, row), part);
        }
}

zr_result zr_gemm(struct zr_kernel_context *context, const struct zr_gemm *asked)
{
    struct zr_gemm strided = *asked;
    const struct zr_gemm *product = &strided;
    if (strided.a_stride == 0)
        strided.a_stride = strided.a_turned ? strided.m : strided.k;
    if (strided.b_stride == 0)
        strided.b_stride = strided.b_turned ? strided.k : strided.n;
    if (strided.c_stride == 0)
        strided.c_stride = strided.n;
    struct job job = {.product = product,
                      .loops = zr_loops_of[context->isa][ZR_PRECISION_FP32],
                      .state = context->library,
                      .by_rows = product->a_turned,
                      .tiled = product->b_turned && !product->accumulate};
    size_t side = job.by_rows ? product->m : product->n;
    if (product->m == 0 || product->n == 0)
        return ZR_OK;
    omp_set_num_threads(1);
    job.slice = slice_of(side);
    job.slices_count = (side + job.slice - 1) / job.slice;
    job.piece_rows = job.tiled ? TILE_ROWS : product->m;
    size_t last_row = job.by_rows ? 0 : (product->m - 1) / job.piece_rows * job.piece_rows;
    for (size_t last = 0; last < 2; last++) {
        size_t slice = last ? job.slices_count - 1 : 0;
        job.entries[last][0] = entry_for(&job, slice, 0);
        job.entries[last][1] = entry_for(&job, slice, last_row);
    }
    atomic_init(&job.next, 0);
    uint64_t refused = atomic_load(&job.state->pieces_refused);
    zr_result result = zr_parallel_run(context, gemm_part, &job);
    if (atomic_load(&job.state->pieces_refused) != refused && context->refusals.count++ == 0) {
        context->refusals.m = product->m;
        context->refusals.n = product->n;
        context->refusals.k = product->k;
    }
    return result;
}
