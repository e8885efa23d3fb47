/* kernel_rules_test.c: what zr_kernels.h promises beside the right numbers: which context opens, how large a
 * workspace is, that bits do not depend on addresses, that no thread and no floating-point mode is left
 * behind, that the same seed makes the same parameters everywhere, and what happens when the matrix library
 * refuses. */
#include <dirent.h>
#include <float.h>
#include <xmmintrin.h>

#include "kernels/cpu/context.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/products/panels.h"
#include "kernels/state.h"
#include "tests/support/kernels/kernels_calls.h"
#include "tests/support/kernels/kernels_reference.h"
#include "tests/support/kernels/kernels_support.h"

static const struct zr_kernel_limits small = {64, 32, 48, 3, 1, 0, 0};

static unsigned threads_now(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* ---- Opening and sizes --------------------------------------------------------------------------------- */

static void check_names(void)
{
    tap_ok(strcmp(zr_isa_name(ZR_ISA_PLAIN), "plain") == 0 && strcmp(zr_isa_name(ZR_ISA_AVX2), "avx2") == 0 &&
               strcmp(zr_isa_name(ZR_ISA_AVX512), "avx512") == 0 &&
               strcmp(zr_isa_name(ZR_ISA_AVX512_BF16), "avx512_bf16") == 0 &&
               strcmp(zr_isa_name(ZR_ISA_AMX), "amx") == 0,
           "instruction sets have their names");
    tap_ok(strcmp(zr_precision_name(ZR_PRECISION_FP32), "fp32") == 0 &&
               strcmp(zr_precision_name(ZR_PRECISION_BF16), "bf16") == 0 &&
               strcmp(zr_precision_name(ZR_PRECISION_FP16), "fp16") == 0 &&
               strcmp(zr_precision_name((enum zr_precision)9), "unknown") == 0 &&
               zr_precision_bytes(ZR_PRECISION_FP32) == 4 && zr_precision_bytes(ZR_PRECISION_FP16) == 2,
           "precisions have theirs, and their sizes");
    tap_ok(strcmp(zr_isa_name((enum zr_isa)77), "unknown") == 0, "a number that is none has one too");
    tap_note("this processor's best is %s", zr_isa_name(zr_isa_best()));
}

static void check_refusals(void)
{
    const struct zr_kernels *plain = zr_kernels_cpu(ZR_ISA_PLAIN);
    size_t bytes = zr_kernels_cpu(ZR_ISA_PLAIN)->workspace_bytes(&small, ZR_ISA_PLAIN);
    char *memory = aligned_alloc(64, bytes + 64);
    struct zr_kernel_context good = {.workspace = memory, .workspace_bytes = bytes, .isa = ZR_ISA_PLAIN};
    struct zr_kernel_context c = good;
    good.parallel.threads = 1;
    c = good, c.workspace = NULL;
    tap_ok(plain->open(&c) != ZR_OK && strstr(zr_last_error(), "workspace") != NULL,
           "no workspace: refused, in words");
    c = good, c.workspace_bytes = 1000;
    tap_ok(plain->open(&c) != ZR_OK && strstr(zr_last_error(), "1000") != NULL, "a small workspace: refused");
    c = good, c.workspace = memory + 4;
    tap_ok(plain->open(&c) != ZR_OK, "a crooked workspace: refused");
    c = good, c.parallel.threads = 2;
    tap_ok(plain->open(&c) != ZR_OK && strstr(zr_last_error(), "threads") != NULL,
           "threads without a way to run them: refused");
    c = good, c.isa = ZR_ISA_COUNT;
    tap_ok(plain->open(&c) != ZR_OK && strstr(zr_last_error(), "instruction set") != NULL,
           "no such instruction set: refused");
    c = good, c.precision = ZR_PRECISION_COUNT;
    tap_ok(plain->open(&c) != ZR_OK && strstr(zr_last_error(), "precision") != NULL,
           "no such precision: refused");
    plain->close(&c);
    tap_note("closing what did not open does nothing");
    free(memory);
}

static void check_sizes(void)
{
    const struct zr_kernel_limits huge = {1 << 16, 1 << 11, 25600, 160, 128, 0, 0};
    struct zr_kernel_limits end = {SIZE_MAX, SIZE_MAX, SIZE_MAX, 1, 2, SIZE_MAX, SIZE_MAX}, more = small;
    double seconds = 1;
    size_t bytes = 0;
    for (unsigned i = 0; i < 50; i++) { /* the best of them: others use the processor, too */
        struct timespec before, after;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
        bytes = zr_kernels_cpu(ZR_ISA_PLAIN)->workspace_bytes(&huge, ZR_ISA_AVX512);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
        double took =
            (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
        seconds = took < seconds ? took : seconds;
    }
    tap_ok(seconds < 0.001 && bytes > (size_t)128 * (7 * 2048 * 160 * 4),
           "a trillion parameters are sized at once (%zu MiB)", bytes >> 20);
    tap_ok(zr_kernels_cpu(ZR_ISA_PLAIN)->workspace_bytes(&end, ZR_ISA_PLAIN) > SIZE_MAX / 2,
           "sizes that overflow saturate");
    more.threads = 2;
    tap_ok(zr_kernels_cpu(ZR_ISA_PLAIN)->workspace_bytes(&more, ZR_ISA_PLAIN) >
               zr_kernels_cpu(ZR_ISA_PLAIN)->workspace_bytes(&small, ZR_ISA_PLAIN),
           "another thread needs scratch of its own");
}

static void check_null(void)
{
    const struct zr_kernels *null = zr_kernels_null();
    void (*const *operations)(void) = (void (*const *)(void))(const void *)&null->embedding_forward;
    size_t count = (sizeof *null - offsetof(struct zr_kernels, embedding_forward)) / sizeof *operations;
    bool whole = null->workspace_bytes && null->open && null->close;
    for (size_t i = 0; i < count; i++)
        whole = whole && operations[i] != NULL;
    tap_ok(whole, "the null table has all %zu operations", count);
    struct zr_linear_forward linear = {.shape = {.rows = 3, .in = 5, .out = 7}};
    struct zr_linear_backward backward = {.shape = linear.shape, .dw = &backward};
    struct zr_attention_forward attention = {
        .shape = {.batch = 2, .sequence = 3, .channels = 10, .heads = 5}};
    double flops = 0, sum = 5;
    size_t index = 5;
    struct zr_kernel_context silent = {0}, counting = {.flops = &flops};
    null->linear_forward(&silent, &linear);
    null->clear(&silent, &(struct zr_clear){1u << 30, NULL});
    null->linear_forward(&counting, &linear);
    tap_ok(flops == 2.0 * 3 * 5 * 7, "it counts a product that it is asked to count");
    null->linear_backward(&counting, &backward);
    null->attention_forward(&counting, &attention);
    null->cross_entropy(&counting, NULL);
    tap_ok(flops == 2.0 * 3 * 5 * 7 * 2 + 4.0 * 6 * 10 * 3, "a gradient's, and attention's two");
    tap_ok(null->find_nonfinite(&silent, &(struct zr_find_nonfinite){.n = 17, .index = &index}) == ZR_OK &&
               null->sum_of_squares(&silent, &(struct zr_sum_of_squares){.n = 17, .sum = &sum}) == ZR_OK &&
               index == 5 && sum == 5 && strcmp(null->name, "null") == 0 && !null->executes,
           "and touches nothing, results neither");
    tap_ok(null->version == ZR_KERNELS_VERSION &&
               zr_kernels_cpu(ZR_ISA_PLAIN)->version == ZR_KERNELS_VERSION &&
               zr_kernels_cpu(ZR_ISA_PLAIN)->executes && zr_kernels_cpu(ZR_ISA_PLAIN)->host_visible,
           "tables say their version and what they can do");
}

/* Errors are values: of what no context was opened for, and of problems beyond its limits. */
static void check_errors(struct zr_kernel_context *c, const struct zr_kernels *kernels)
{
    struct zr_kernel_context closed = *c;
    float numbers[8] = {0};
    closed.library = NULL;
    struct zr_linear_forward linear = {
        .shape = {.rows = 1, .in = 1, .out = 1}, .x = numbers, .w = numbers, .y = numbers};
    tap_ok(kernels->clear(&closed, &(struct zr_clear){4, numbers}) == ZR_ERR_INVALID &&
               kernels->linear_forward(&closed, &linear) == ZR_ERR_INVALID &&
               strstr(zr_last_error(), "not open"),
           "%s: what is not open refuses, in words", zr_isa_name(c->isa));
    struct zr_attention_forward attention = {
        .shape = {.batch = 1, .sequence = 1 << 20, .channels = 64, .heads = 1}};
    struct zr_embedding_backward embedding = {.rows = 1 << 30, .channels = 1};
    tap_ok(kernels->attention_forward(c, &attention) == ZR_ERR_INVALID && strstr(zr_last_error(), "limits") &&
               kernels->embedding_backward(c, &embedding) == ZR_ERR_INVALID,
           "%s: so does a problem beyond the limits of its workspace", zr_isa_name(c->isa));
    void *at;
    zr_result none = zr_context_scratch(c, 0, &at);
    size_t room = c->workspace_bytes - (size_t)((char *)at - (char *)c->workspace);
    tap_ok(none == ZR_OK && zr_context_scratch(c, room, &at) == ZR_OK &&
               zr_context_scratch(c, room + 1, &at) == ZR_ERR_INVALID,
           "%s: scratch to the workspace's last byte, and no further", zr_isa_name(c->isa));
    size_t least = zr_gemm_state_bytes(1) + zr_gemm_scratch_bytes(1) + ZR_PARTIAL_BYTES;
    void *memory = aligned_alloc(64, (least + 63) / 64 * 64);
    struct zr_kernel_context tight = {.workspace = memory, .workspace_bytes = least - 1, .isa = c->isa};
    zr_result refused = kernels->open(&tight);
    tight.workspace_bytes = least;
    tap_ok(refused == ZR_ERR_INVALID && kernels->open(&tight) == ZR_OK,
           "%s: opens in the least workspace, and not in less", zr_isa_name(c->isa));
    kernels->close(&tight);
    free(memory);
}

/* The product instructions of bf16 are for bf16 alone: fp16 is multiplied in floats, as wide as there are. */
static void check_panels(void)
{
    static const struct zr_panels *const wanted[ZR_ISA_COUNT][2] = {
        [ZR_ISA_PLAIN] = {&zr_panels_plain, &zr_panels_plain},
        [ZR_ISA_AVX2] = {&zr_panels_avx2, &zr_panels_avx2},
        [ZR_ISA_AVX512] = {&zr_panels_avx512, &zr_panels_avx512},
        [ZR_ISA_AVX512_BF16] = {&zr_panels_avx512_bf16, &zr_panels_avx512},
        [ZR_ISA_AMX] = {&zr_panels_amx, &zr_panels_avx512},
    };
    for (unsigned isa = 0; isa < ZR_ISA_COUNT; isa++)
        tap_ok(zr_panels_of(isa, ZR_PRECISION_BF16) == wanted[isa][0] &&
                   zr_panels_of(isa, ZR_PRECISION_FP16) == wanted[isa][1],
               "%s: bf16 and fp16 are multiplied by the fastest that it has", zr_isa_name(isa));
}

/* Whether the system counts `name` among the processor's abilities; it may hide some, and adds none. */
static bool processor_has(const char *name)
{
    char line[16384], padded[32];
    bool has = false;
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(padded, sizeof padded, " %s ", name);
    while (!has && file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "flags", 5) == 0) {
            line[strcspn(line, "\n")] = ' ';
            has = strstr(line, padded) != NULL;
        }
    if (file != NULL)
        fclose(file);
    return has;
}

static void check_best(void)
{
    if (!processor_has("avx512_bf16"))
        tap_skip("the system shows no avx512_bf16 here");
    else
        tap_ok(zr_isa_best() >= ZR_ISA_AVX512_BF16, "a processor with avx512_bf16 is used as one");
}

/* ---- In a context, for each instruction set ------------------------------------------------------------ */

static void check_exponential(enum zr_isa isa)
{
    enum { COUNT = 200003 };
    static float x[COUNT], y[COUNT];
    double most = 0;
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(random_unit() * 87.0 * (i % 3 == 0 ? 0.01 : 1.0));
    zr_loops_of[isa][ZR_PRECISION_FP32]->exponential(COUNT, x, y);
    for (int i = 0; i < COUNT; i++) {
        double exact = exp((double)x[i]), unit = ldexp(1, ilogb(exact) - 23);
        most = worst(most, fabs((double)y[i] - exact) / unit);
    }
    tap_ok(most < 2, "%s: the exponential is within 2 ulp (%.2f)", zr_isa_name(isa), most);
    float ends[6] = {-100, -INFINITY, 0, 100, INFINITY, NAN};
    zr_loops_of[isa][ZR_PRECISION_FP32]->exponential(6, ends, y);
    tap_ok(y[0] == 0 && y[1] == 0 && y[2] == 1 && y[3] > 1e38f && y[4] > 1e38f && isnan(y[5]),
           "%s: it ends in 0, in 2e38, and keeps NaN", zr_isa_name(isa));
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void check_normal(struct zr_kernel_context *c, const struct zr_kernels *kernels)
{
    enum { COUNT = 100000 };
    static float whole[COUNT], part[1000];
    double mean = 0, gap = 0;
    kernels->init_normal(c, &(struct zr_init_normal){COUNT, 42, 1000000007, 1.0f, 2.0f, whole});
    kernels->init_normal(c, &(struct zr_init_normal){1000, 42, 1000000007 + 50001, 1.0f, 2.0f, part});
    tap_ok(memcmp(whole + 50001, part, sizeof part) == 0, "%s: normal numbers go by global index",
           zr_isa_name(c->isa));
    for (int i = 0; i < COUNT; i++)
        mean += ((double)whole[i] - 1) / 2 / COUNT;
    uint64_t bits = checksum_of(kernels, c, sizeof whole, whole);
    qsort(whole, COUNT, sizeof whole[0], ascending);
    for (int i = 0; i < COUNT; i++) /* Kolmogorov and Smirnov: 0.0062 happens by chance once in a thousand */
        gap = worst(gap, fabs(0.5 * erfc((1 - (double)whole[i]) / 2 / sqrt(2)) - (i + 0.5) / COUNT));
    tap_ok(fabs(mean) < 0.01 && gap < 0.0062, "%s: and are normal (mean %.4f, distance %.4f)",
           zr_isa_name(c->isa), mean, gap);
    tap_ok(bits == 0x660aec9e0ad426daull, "%s: with the same bits on every machine (%#llx)",
           zr_isa_name(c->isa), (unsigned long long)bits);
}

/* The same numbers 1 and 7 floats further on: the same bits. */
static void check_addresses(struct zr_kernel_context *c, const struct zr_kernels *kernels)
{
    enum { ROWS = 19, IN = 45, OUT = 83 };
    struct zr_linear l = {.rows = ROWS, .in = IN, .out = OUT};
    struct tensor *x = input(ROWS * IN, 0, 1), *w = input(IN * OUT, 0, 1), *first = output(ROWS * OUT);
    bool same = true;
    kernels->linear_forward(c, &(struct zr_linear_forward){l, x->at, w->at, NULL, first->at, false});
    double squares = squares_of(kernels, c, x->n, (struct zr_numbers){x->at, ZR_PRECISION_FP32});
    for (size_t shift = 1; shift < 16; shift += 6) {
        struct tensor *x2 = output(x->n + shift), *w2 = output(w->n + shift), *y2 = output(first->n + shift);
        memcpy(x2->at + shift, x->at, x->n * 4);
        memcpy(w2->at + shift, w->at, w->n * 4);
        kernels->linear_forward(
            c, &(struct zr_linear_forward){l, x2->at + shift, w2->at + shift, NULL, y2->at + shift, false});
        same = same && memcmp(y2->at + shift, first->at, first->n * 4) == 0;
        same = same && squares_of(kernels, c, x->n, (struct zr_numbers){x2->at + shift, ZR_PRECISION_FP32}) ==
                           squares;
        kernels->gelu_forward(c, &(struct zr_gelu_forward){x->n, x->at, x2->at + shift, ZR_GELU_TANH});
        kernels->gelu_forward(c, &(struct zr_gelu_forward){x->n, x->at, y2->at, ZR_GELU_TANH});
        same = same && memcmp(y2->at, x2->at + shift, x->n * 4) == 0;
    }
    tap_ok(same, "%s: bits do not depend on addresses", zr_isa_name(c->isa));
}

static void check_mode(struct zr_kernel_context *c, const struct zr_kernels *kernels)
{
    float x[20], y[20];
    unsigned before = _mm_getcsr(), odd = (before & ~0x6000u) | 0x2000; /* round down */
    for (int i = 0; i < 20; i++)
        x[i] = 1.0f + (float)i * 0.1f;
    kernels->gelu_forward(c, &(struct zr_gelu_forward){20, x, y, ZR_GELU_TANH});
    uint64_t usual = checksum_of(kernels, c, sizeof y, y);
    _mm_setcsr(odd);
    kernels->gelu_forward(c, &(struct zr_gelu_forward){20, x, y, ZR_GELU_TANH});
    bool kept = (_mm_getcsr() & ~0x3fu) == (odd & ~0x3fu);
    _mm_setcsr(before);
    tap_ok(kept && checksum_of(kernels, c, sizeof y, y) == usual,
           "%s: the caller's floating-point mode neither matters nor changes", zr_isa_name(c->isa));
}

/* Sums and searches beyond one part of the work: more than one thread's share, more than one round of a sum.
 */
static void check_reductions(struct zr_kernel_context *c, const struct zr_kernels *kernels)
{
    enum { ROUND = 4096 * 4096, COUNT = ROUND + 4096 + 5, SEARCHED = 1 << 20 };
    uint16_t *bits = calloc(COUNT, sizeof *bits);
    struct zr_numbers x = {bits, ZR_PRECISION_BF16};
    if (!bits)
        return (void)tap_ok(false, "memory");
    bits[ROUND - 1] = 0x3f80; /* 1 in the first round, 2 in the second, and 1 in the last block */
    for (size_t i = 0; i < 7; i++) {
        bits[i * 4096] = 0x3f80;
        bits[ROUND + i] = 0x4000;
    }
    bits[COUNT - 1] = 0x3f80;
    const double round = squares_of(kernels, c, ROUND, x);
    tap_ok(round == 8 && squares_of(kernels, c, ROUND - 1, x) == 7 &&
               squares_of(kernels, c, ROUND + 1, x) == 8 + 4 &&
               squares_of(kernels, c, COUNT, x) == 8 + 7 * 4 + 1,
           "%s: a sum of squares of one round, of one element less and more, and beyond",
           zr_isa_name(c->isa));
    memset(bits, 0, COUNT * sizeof *bits);
    for (size_t block = 0; block < 128; block++)
        bits[block * 4096] = 0x3f80;
    bits[0] = 0x4d00; /* 2^27: beside its square a one is lost, and 64 are not */
    tap_ok(squares_of(kernels, c, 128 * 4096, x) == 0x1p54 + 64, "%s: blocks are added in groups of 64",
           zr_isa_name(c->isa));
    bits[0] = bits[SEARCHED - 1] = 0x7f80;
    tap_is(nonfinite_of(kernels, c, SEARCHED, x), 0, "%s: the first infinity, not the one found last",
           zr_isa_name(c->isa));
    free(bits);
}

/* The definition in kernels/state.h, with the end of the data filled up with zeros. */
static uint64_t plain_checksum(const char *data, size_t bytes)
{
    enum { BLOCK = 1 << 16, LANES = 8 };
    uint64_t sum = zr_hash_mix(bytes), lane[LANES], word[LANES];
    for (size_t block = 0; block * BLOCK < bytes; block++) {
        size_t end = bytes < (block + 1) * BLOCK ? bytes : (block + 1) * BLOCK;
        uint64_t hash = zr_hash_begin(block);
        for (uint64_t j = 0; j < LANES; j++)
            lane[j] = zr_hash_mix(hash + j);
        for (size_t at = block * BLOCK; at < end; at += sizeof word) {
            char part[sizeof word] = {0};
            memcpy(part, data + at, end - at < sizeof part ? end - at : sizeof part);
            memcpy(word, part, sizeof word);
            for (size_t j = 0; j < LANES; j++)
                lane[j] = zr_hash_step(lane[j], word[j]);
        }
        for (size_t j = 0; j < LANES; j++)
            hash = zr_hash_join(hash, lane[j], j);
        sum += zr_hash_mix(hash ^ (end - block * BLOCK));
    }
    return zr_hash_mix(sum);
}

static void check_checksums(struct zr_kernel_context *c, const struct zr_kernels *kernels)
{
    enum { MOST = 3 * 65536 };
    static const size_t sizes[] = {0, 1, 63, 64, 65, 127, 65535, 65536, 65537, MOST - 1, MOST};
    static char data[MOST];
    size_t wrong = 0;
    for (size_t i = 0; i < MOST; i++)
        data[i] = (char)random_bits();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        wrong += checksum_of(kernels, c, sizes[i], data) != plain_checksum(data, sizes[i]);
    tap_is(wrong, 0, "%s: checksums of whole blocks and words, and of one byte more and less",
           zr_isa_name(c->isa));
}

/* All three forms of a product without the library: shapes beyond one block in every direction. */
static void check_refused_library(struct zr_kernel_context *c, const struct zr_kernels *kernels)
{
    struct zr_linear l = {.rows = 70, .in = 300, .out = 270};
    struct tensor *x = input(l.rows * l.in, 0, 1), *w = input(l.in * l.out, 0, 1), *b = input(l.out, 0, 1);
    struct tensor *dy = input(l.rows * l.out, 0, 1), *y = output(l.rows * l.out), *dx = output(x->n);
    struct tensor *dw = output(w->n), *db = output(l.out), *with = output(y->n);
    kernels->linear_forward(c, &(struct zr_linear_forward){l, x->at, w->at, b->at, with->at, false});
    bool none = c->refusals.count == 0;
    zr_gemm_refuse(c);
    kernels->linear_forward(c, &(struct zr_linear_forward){l, x->at, w->at, b->at, y->at, false});
    kernels->linear_backward(c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, dx->at, dw->at, db->at,
                                                             false, false, false});
    kernels->linear_backward(
        c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, NULL, dw->at, NULL, false, true, false});
    reference_linear(&l, x->real, w->real, b->real, y->real);
    reference_linear_backward(&l, x->real, w->real, dy->real, dx->real, dw->real, db->real);
    for (size_t i = 0; i < dw->n; i++)
        dw->real[i] *= 2;
    double error = worst(worst(error_of(y), error_of(dx)), error_of(dw));
    struct zr_kernel_refusals refusals = c->refusals;
    tap_ok(none && refusals.count == 4 && refusals.m == l.rows && refusals.n == l.out && refusals.k == l.in,
           "%s: products that the library refuses are counted, with the first one's shape",
           zr_isa_name(c->isa));
    tap_ok(error < 3e-6, "%s: products without the library are right too (%.1e)", zr_isa_name(c->isa), error);
}

static void test_isa(enum zr_isa isa)
{
    const struct zr_kernels *kernels = zr_kernels_cpu(isa);
    struct zr_kernel_limits limits = {128, 32, 300, 3, 0, 0, 0};
    struct zr_kernel_context context, other;
    unsigned threads = 2, before = threads_now();
    bool intact = true;
    if (!tap_ok(context_begin(&context, limits, isa, &threads), "%s: a context opens", zr_isa_name(isa)))
        return;
    check_exponential(isa);
    check_errors(&context, kernels);
    check_normal(&context, kernels);
    check_addresses(&context, kernels);
    check_mode(&context, kernels);
    check_reductions(&context, kernels);
    check_checksums(&context, kernels);
    if (isa != ZR_ISA_PLAIN) {
        bool opened = context_begin(&other, limits, ZR_ISA_PLAIN, &threads);
        tap_ok(!opened && strstr(zr_last_error(), "oneDNN") != NULL,
               "%s: a second instruction set in one process is refused", zr_isa_name(isa));
    }
    check_refused_library(&context, kernels);
    tap_is(threads_now(), before, "%s: the library started no thread", zr_isa_name(isa));
    intact = context_end(&context);
    tensors_finish(&intact);
    tap_ok(intact, "%s: nothing else was written", zr_isa_name(isa));
    tap_ok(context_begin(&context, limits, isa, &threads) && context_end(&context), "%s: and it opens again",
           zr_isa_name(isa));
}

int main(void)
{
    random_state = run_seed();
    check_names();
    check_refusals();
    check_sizes();
    check_null();
    check_panels();
    check_best();
    for_each_isa(test_isa);
    return tap_done();
}
