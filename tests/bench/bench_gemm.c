/* bench_gemm.c: which matrix library, and how to thread it. A plain measuring program, not part of any
 * product.
 *
 * Multiplies fp32 matrices of GPT-2 124M's shapes (256 rows) through OpenBLAS's cblas_sgemm and oneDNN's
 * matmul primitive (scratchpad from us), in two ways: the library with its own threads, and the library held
 * to one thread while we cut each product in slices over threads of our own, as the trainer lends them.
 * Prints GFLOP/s: the median of the repeats, and the best of them for a machine that is not quiet.
 *
 *   bench_gemm [threads [repeats]]         OPENBLAS_CORETYPE=SkylakeX bench_gemm 2
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/products/onednn.h"

void omp_set_num_threads(int threads); /* libgomp's, per calling thread */

/* c[m, n] (+)= op(a) op(b), row-major; a_turned means a is stored [k, m], b_turned that b is stored [n, k].
 */
struct product {
    const char *name;
    size_t m, n, k;
    bool a_turned, b_turned, accumulate;
};

static const struct product products[] = {
    {"qkv forward", 256, 2304, 768, false, false, false},
    {"proj forward", 256, 768, 768, false, false, false},
    {"fc forward", 256, 3072, 768, false, false, false},
    {"fcproj forward", 256, 768, 3072, false, false, false},
    {"head forward", 256, 50304, 768, false, true, false},
    {"qkv dx", 256, 768, 2304, false, true, false},
    {"proj dx", 256, 768, 768, false, true, false},
    {"fc dx", 256, 768, 3072, false, true, false},
    {"fcproj dx", 256, 3072, 768, false, true, false},
    {"head dx", 256, 768, 50304, false, false, false},
    {"qkv dw", 768, 2304, 256, true, false, false},
    {"proj dw", 768, 768, 256, true, false, false},
    {"fc dw", 768, 3072, 256, true, false, false},
    {"fcproj dw", 3072, 768, 256, true, false, false},
    {"head dw", 50304, 768, 256, true, false, false},
    {"qkv dw +=", 768, 2304, 256, true, false, true},
    {"head dw +=", 50304, 768, 256, true, false, true},
    {"2048^3", 2048, 2048, 2048, false, false, false},
};

enum { PRODUCTS = sizeof products / sizeof products[0], SLICES_MAX = 64, THREADS_MAX = 64, REPEATS_MAX = 64 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Threads of our own, spinning between tasks: what a trainer lends at best -------------------------- */

static struct {
    unsigned threads;
    pthread_t handles[THREADS_MAX];
    void (*task)(void *argument, unsigned part);
    void *argument;
    _Atomic unsigned round, done;
} pool;

/* Spins, and lets others run on a machine that is not quiet. */
static void pool_pause(unsigned spins)
{
    if (spins > 20000)
        sched_yield();
    else
        __builtin_ia32_pause();
}

static void *pool_main(void *argument)
{
    unsigned part = (unsigned)(uintptr_t)argument, seen = 0;
    omp_set_num_threads(1);
    for (;;) {
        for (unsigned spins = 0; pool.round == seen; spins++)
            pool_pause(spins);
        seen++;
        if (pool.task == NULL)
            return NULL;
        pool.task(pool.argument, part);
        pool.done++;
    }
}

static void pool_run(void (*task)(void *, unsigned), void *argument)
{
    pool.task = task;
    pool.argument = argument;
    pool.done = 0;
    pool.round++;
    if (task == NULL)
        return;
    task(argument, 0);
    for (unsigned spins = 0; pool.done != pool.threads - 1; spins++)
        pool_pause(spins);
}

/* ---- OpenBLAS, found at run time ----------------------------------------------------------------------- */

typedef void (*sgemm_function)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                               int lda, const float *b, int ldb, float beta, float *c, int ldc);
static sgemm_function blas_sgemm;
static void (*blas_threads)(int);

static void blas_open(void)
{
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("OpenBLAS is not here: %s\n", dlerror());
        return;
    }
    blas_sgemm = (sgemm_function)dlsym(library, "cblas_sgemm");
    blas_threads = (void (*)(int))dlsym(library, "openblas_set_num_threads");
    const char *(*core)(void) = (const char *(*)(void))dlsym(library, "openblas_get_corename");
    printf("OpenBLAS core type: %s\n", core());
}

/* ---- One product as slices ----------------------------------------------------------------------------- */

struct slice {
    size_t row, rows, column, columns;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratchpad;
    void *scratch;
};

struct work {
    struct product product;
    float *a, *b, *c;
    struct slice slices[SLICES_MAX];
    unsigned slices_count;
    bool blas;
};

static void check(dnnl_status_t status, const char *what)
{
    if (status != dnnl_success) {
        fprintf(stderr, "bench_gemm: oneDNN %s: status %d\n", what, (int)status);
        exit(1);
    }
}

static size_t a_offset(const struct work *w, size_t row)
{
    return w->product.a_turned ? row : row * w->product.k;
}

static size_t b_offset(const struct work *w, size_t column)
{
    return w->product.b_turned ? column * w->product.k : column;
}

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void slice_prepare(struct work *w, struct slice *s, bool verbose)
{
    const struct product *p = &w->product;
    dnnl_dims_t ad = {(long)s->rows, (long)p->k}, bd = {(long)p->k, (long)s->columns},
                cd = {(long)s->rows, (long)s->columns};
    dnnl_dims_t as = {p->a_turned ? 1 : (long)p->k, p->a_turned ? (long)p->m : 1};
    dnnl_dims_t bs = {p->b_turned ? 1 : (long)p->n, p->b_turned ? (long)p->k : 1}, cs = {(long)p->n, 1};
    dnnl_memory_desc_t sides[3] = {0}, scratchpad = {0};
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t sums;
    dnnl_primitive_desc_t description;
    check(onednn_describe(&sides[0], ad, dnnl_f32, as), "a");
    check(onednn_describe(&sides[1], bd, dnnl_f32, bs), "b");
    check(onednn_describe(&sides[2], cd, dnnl_f32, cs), "c");
    check(dnnl_primitive_attr_create(&attributes), "attributes");
    check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "scratchpad mode");
    check(dnnl_post_ops_create(&sums), "post-ops");
    if (p->accumulate)
        check(onednn_append_sum(sums), "sum");
    check(dnnl_primitive_attr_set_post_ops(attributes, sums), "set post-ops");
    check(onednn_matmul(&description, engine, sides, attributes), "matmul");
    check(onednn_scratchpad(&scratchpad, description), "scratchpad");
    size_t bytes = onednn_bytes(&scratchpad);
    s->scratch = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (verbose) {
        const char *name = "?";
        dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, &name);
        printf("    [%s %zux%zu, scratch %zu KiB]\n", name, s->rows, s->columns, bytes / 1024);
    }
    check(dnnl_primitive_create(&s->primitive, description), "primitive");
    check(onednn_memory(&s->a, &sides[0], engine, w->a + a_offset(w, s->row)), "memory");
    check(onednn_memory(&s->b, &sides[1], engine, w->b + b_offset(w, s->column)), "memory");
    check(onednn_memory(&s->c, &sides[2], engine, w->c + s->row * p->n + s->column), "memory");
    check(onednn_memory(&s->scratchpad, &scratchpad, engine, s->scratch), "memory");
    for (int i = 0; i < 3; i++)
        onednn_forget(&sides[i]);
    onednn_forget(&scratchpad);
    dnnl_primitive_desc_destroy(description);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_post_ops_destroy(sums);
}

static void slice_run(struct work *w, struct slice *s)
{
    const struct product *p = &w->product;
    if (w->blas) {
        blas_sgemm(101, p->a_turned ? 112 : 111, p->b_turned ? 112 : 111, (int)s->rows, (int)s->columns,
                   (int)p->k, 1.0f, w->a + a_offset(w, s->row), p->a_turned ? (int)p->m : (int)p->k,
                   w->b + b_offset(w, s->column), p->b_turned ? (int)p->k : (int)p->n,
                   p->accumulate ? 1.0f : 0.0f, w->c + s->row * p->n + s->column, (int)p->n);
        return;
    }
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, s->a},
                                         {DNNL_ARG_WEIGHTS, s->b},
                                         {DNNL_ARG_DST, s->c},
                                         {DNNL_ARG_SCRATCHPAD, s->scratchpad}};
    check(dnnl_primitive_execute(s->primitive, stream, 4, arguments), "execute");
}

static void work_part(void *argument, unsigned part)
{
    struct work *w = argument;
    for (unsigned i = part; i < w->slices_count; i += pool.threads)
        slice_run(w, &w->slices[i]);
}

/* How a product is cut: into `rows` by `columns` slices, run by our threads or (1 x 1, own false) the
 * library's. */
struct cut {
    const char *name;
    unsigned rows, columns;
    bool own, blas;
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct work *w, const struct cut *cut, unsigned repeats, unsigned threads, bool verbose)
{
    const struct product *p = &w->product;
    unsigned row_slices = cut->rows, column_slices = cut->columns;
    double seconds[REPEATS_MAX], flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    omp_set_num_threads(cut->own ? 1 : (int)threads);
    if (blas_threads != NULL)
        blas_threads(cut->own ? 1 : (int)threads);
    w->blas = cut->blas;
    w->slices_count = 0;
    for (unsigned i = 0; i < row_slices; i++)
        for (unsigned j = 0; j < column_slices; j++) {
            struct slice *s = &w->slices[w->slices_count++];
            s->row = p->m / 16 * i / row_slices * 16;
            s->rows = (i + 1 == row_slices ? p->m : p->m / 16 * (i + 1) / row_slices * 16) - s->row;
            s->column = p->n / 16 * j / column_slices * 16;
            s->columns =
                (j + 1 == column_slices ? p->n : p->n / 16 * (j + 1) / column_slices * 16) - s->column;
            if (!w->blas)
                slice_prepare(w, s, verbose && w->slices_count == 1);
        }
    for (unsigned r = 0; r < repeats + 2; r++) {
        double start = now_s();
        if (cut->own && threads > 1)
            pool_run(work_part, w);
        else
            for (unsigned i = 0; i < w->slices_count; i++)
                slice_run(w, &w->slices[i]);
        if (r >= 2)
            seconds[r - 2] = now_s() - start;
    }
    qsort(seconds, repeats, sizeof seconds[0], ascending);
    printf("  %-26s %6.0f (best %.0f)\n", cut->name, flop / seconds[repeats / 2] * 1e-9,
           flop / seconds[0] * 1e-9);
    for (unsigned i = 0; i < w->slices_count && !w->blas; i++) {
        struct slice *s = &w->slices[i];
        dnnl_primitive_destroy(s->primitive);
        dnnl_memory_destroy(s->a);
        dnnl_memory_destroy(s->b);
        dnnl_memory_destroy(s->c);
        dnnl_memory_destroy(s->scratchpad);
        free(s->scratch);
    }
}

static float *matrix(size_t elements)
{
    float *x = aligned_alloc(64, elements * sizeof *x / 64 * 64 + 64);
    for (size_t i = 0; i < elements; i++)
        x[i] = (float)((i * 2654435761u >> 8) & 0xffff) / 65536.0f - 0.5f;
    return x;
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 2,
             repeats = argc > 2 ? (unsigned)atoi(argv[2]) : 9;
    const char *only = argc > 3 ? argv[3] : NULL;
    if (threads < 1 || threads > THREADS_MAX || repeats < 1 || repeats > REPEATS_MAX)
        return 2;
    pool.threads = threads;
    blas_open();
    check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine");
    check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "stream");
    const struct cut cuts[] = {
        {"OpenBLAS", 1, 1, false, true},
        {"OpenBLAS own, columns", 1, threads, true, true},
        {"OpenBLAS own, rows", threads, 1, true, true},
        {"oneDNN", 1, 1, false, false},
        {"oneDNN own, columns", 1, threads, true, false},
        {"oneDNN own, rows", threads, 1, true, false},
        {"oneDNN own, columns x4", 1, 4, true, false},
        {"oneDNN own, columns x8", 1, 8, true, false},
        {"oneDNN own, columns x24", 1, 24, true, false},
        {"oneDNN own, rows x4", 4, 1, true, false},
        {"oneDNN own, rows x8", 8, 1, true, false},
        {"oneDNN own, rows x16", 16, 1, true, false},
    };
    for (size_t i = 0; i < PRODUCTS; i++) {
        struct work w = {.product = products[i]};
        const struct product *p = &w.product;
        if (only != NULL && strstr(p->name, only) == NULL)
            continue;
        w.a = matrix(p->m * p->k);
        w.b = matrix(p->k * p->n);
        w.c = matrix(p->m * p->n);
        printf("%s [%zu, %zu, k %zu], %u threads, GFLOP/s\n", p->name, p->m, p->n, p->k, threads);
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            if (cuts[c].blas && blas_sgemm == NULL)
                continue;
            /* Our threads live only where they are measured: spinning, they would take the library's cores.
             */
            pool.round = 0;
            for (unsigned t = 1; cuts[c].own && t < threads; t++)
                pthread_create(&pool.handles[t], NULL, pool_main, (void *)(uintptr_t)t);
            measure(&w, &cuts[c], repeats, threads, true);
            if (cuts[c].own)
                pool_run(NULL, NULL);
            for (unsigned t = 1; cuts[c].own && t < threads; t++)
                pthread_join(pool.handles[t], NULL);
        }
        free(w.a);
        free(w.b);
        free(w.c);
    }
    return 0;
}
