/* kernels_support.h: what the kernels' test programs share: lent threads, tensors between guard words, and
 * one child process per instruction set. */
#ifndef ZR_KERNELS_SUPPORT_H
#define ZR_KERNELS_SUPPORT_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/zr_kernels.h"
#include "tests/support/kernels/kernels_calls.h"
#include "tests/support/kernels/kernels_reference.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"
#ifdef ZR_TEST_ON_CARD
#include "tests/support/kernels/kernels_card.h"
#endif

/* ---- Random numbers ------------------------------------------------------------------------------------ */

static uint64_t random_state;

static inline uint64_t random_bits(void)
{
    return splitmix64(&random_state);
}

/* Uniform in [-1, 1). */
static inline double random_unit(void)
{
    return (double)(int64_t)(random_bits() >> 11) * 0x1p-52 - 1.0;
}

/* ---- Tensors ------------------------------------------------------------------------------------------- */

enum { GUARD_BYTES = 128, TENSORS_MAX = 192 };
static const uint32_t guard_word = 0x7fc0dead; /* a NaN in every precision: what reads it shows */

/* On the emulated card no kernel reads there either, although that may change no number; 0 bytes: forgets
 * all. */
static inline void guard(const void *at, size_t bytes)
{
#ifdef ZR_TEST_ON_CARD
    if (card)
        card->guard(at, bytes);
#else
    (void)at, (void)bytes;
#endif
}

struct tensor {
    float *at;    /* the caller's part: n elements on a 64-byte line, guard words on both sides */
    double *real; /* the same numbers for the reference */
    size_t n;
    enum zr_precision precision;
    void *before; /* of an input: a copy that must still be equal */
};

static struct tensor tensors[TENSORS_MAX];
static size_t tensors_count;

static inline size_t tensor_bytes(const struct tensor *t)
{
    return t->n * zr_precision_bytes(t->precision);
}

static inline struct tensor *tensor_of(enum zr_precision precision, size_t n)
{
    struct tensor *t = &tensors[tensors_count++];
    *t = (struct tensor){.n = n, .precision = precision};
    size_t all = (2 * GUARD_BYTES + tensor_bytes(t) + 63) / 64 * 64;
    char *memory = tensor_memory(64, all);
    t->real = calloc(n + 1, sizeof *t->real);
    if (tensors_count >= TENSORS_MAX || memory == NULL || t->real == NULL)
        abort();
    for (size_t i = 0; i < all; i += sizeof guard_word)
        memcpy(memory + i, &guard_word, sizeof guard_word);
    t->at = (float *)(memory + GUARD_BYTES);
    guard(memory, GUARD_BYTES);
    guard(memory + GUARD_BYTES + tensor_bytes(t), GUARD_BYTES);
    return t;
}

/* An output: every word a NaN until the kernel writes it. */
static inline struct tensor *output_of(enum zr_precision precision, size_t n)
{
    return tensor_of(precision, n);
}

static inline struct tensor *output(size_t n)
{
    return output_of(ZR_PRECISION_FP32, n);
}

/* Element i as it lies in memory, and the other way. */
static inline double tensor_get(const struct tensor *t, size_t i)
{
    return t->precision == ZR_PRECISION_FP32 ? (double)t->at[i]
                                             : reference_decode(((const uint16_t *)t->at)[i], t->precision);
}

static inline void tensor_set(struct tensor *t, size_t i, double value)
{
    if (t->precision == ZR_PRECISION_FP32)
        t->at[i] = (float)value;
    else
        ((uint16_t *)t->at)[i] = reference_encode(value, t->precision);
    t->real[i] = tensor_get(t, i);
}

/* From here on the reference starts from what the kernel wrote. */
static inline void tensor_follow(struct tensor *t)
{
    for (size_t i = 0; i < t->n; i++)
        t->real[i] = tensor_get(t, i);
}

/* Random numbers in [middle - spread, middle + spread). */
static inline struct tensor *in_out_of(enum zr_precision precision, size_t n, double middle, double spread)
{
    struct tensor *t = tensor_of(precision, n);
    for (size_t i = 0; i < n; i++)
        tensor_set(t, i, middle + spread * random_unit());
    return t;
}

static inline struct tensor *in_out(size_t n, double middle, double spread)
{
    return in_out_of(ZR_PRECISION_FP32, n, middle, spread);
}

/* The same, which no kernel may change. */
static inline struct tensor *input_of(enum zr_precision precision, size_t n, double middle, double spread)
{
    struct tensor *t = in_out_of(precision, n, middle, spread);
    t->before = malloc(tensor_bytes(t) + 1);
    if (t->before == NULL)
        abort();
    memcpy(t->before, t->at, tensor_bytes(t));
    return t;
}

static inline struct tensor *input(size_t n, double middle, double spread)
{
    return input_of(ZR_PRECISION_FP32, n, middle, spread);
}

/* A hash of every tensor's bits; frees them all. *intact: guards and inputs are as they were. */
static inline uint64_t tensors_finish(bool *intact)
{
    uint64_t hash = 14695981039346656037u;
    const char *word = (const char *)&guard_word;
    guard(NULL, 0);
    for (size_t i = 0; i < tensors_count; i++) {
        struct tensor *t = &tensors[i];
        char *at = (char *)t->at;
        size_t bytes = tensor_bytes(t);
        for (size_t j = 0; j < GUARD_BYTES; j++)
            *intact = *intact && at[(ptrdiff_t)j - GUARD_BYTES] == word[j % 4] &&
                      at[bytes + j] == word[(bytes + j) % 4];
        if (t->before != NULL)
            *intact = *intact && memcmp(t->before, at, bytes) == 0;
        for (size_t j = 0; j < bytes; j++)
            hash = (hash ^ (unsigned char)at[j]) * 1099511628211u;
        tensor_memory_free(at - GUARD_BYTES);
        free(t->real);
        free(t->before);
    }
    tensors_count = 0;
    return hash;
}

/* The largest difference, in units of the largest number of the reference of `beside`: what the result is a
 * mean of, say, which may be far smaller than they. NaN counts as infinite. */
static inline double error_beside(const struct tensor *got, const struct tensor *beside)
{
    double most = 0, largest = 1e-30;
    for (size_t i = 0; i < got->n; i++) {
        double difference = fabs(tensor_get(got, i) - got->real[i]);
        most = difference <= most ? most : isnan(difference) ? INFINITY : difference;
    }
    for (size_t i = 0; i < beside->n; i++)
        largest = fabs(beside->real[i]) > largest ? fabs(beside->real[i]) : largest;
    return most / largest;
}

static inline double error_of(const struct tensor *got)
{
    return error_beside(got, got);
}

static inline double worst(double a, double b)
{
    return a > b ? a : b;
}

/* ---- Threads lent -------------------------------------------------------------------------------------- */

struct lent {
    void (*task)(void *, unsigned, unsigned);
    void *argument;
    unsigned part, parts;
};

static inline void *lent_main(void *argument)
{
    struct lent *lent = argument;
    lent->task(lent->argument, lent->part, lent->parts);
    return NULL;
}

static inline void lent_run(void *state, void (*task)(void *, unsigned, unsigned), void *argument)
{
    unsigned parts = *(unsigned *)state;
    pthread_t handles[16];
    struct lent lent[16];
    for (unsigned p = 0; p < parts; p++)
        lent[p] = (struct lent){task, argument, p, parts};
    for (unsigned p = 1; p < parts; p++)
        if (pthread_create(&handles[p], NULL, lent_main, &lent[p]) != 0)
            abort();
    lent_main(&lent[0]);
    for (unsigned p = 1; p < parts; p++)
        pthread_join(handles[p], NULL);
}

/* The table that a program's cases are for, and its name. */
static inline const struct zr_kernels *table_of(enum zr_isa isa)
{
#ifdef ZR_TEST_ON_CARD
    (void)isa;
    return &card_table;
#else
    return zr_kernels_cpu(isa);
#endif
}

static inline const char *table_name(enum zr_isa isa)
{
#ifdef ZR_TEST_ON_CARD
    (void)isa;
    return card_has_library ? "cuda with cuBLASLt" : "cuda";
#else
    return zr_isa_name(isa);
#endif
}

/* A context with `*threads` threads, sized for `limits`, its workspace poisoned; ended by context_end(). */
static inline bool context_begin(struct zr_kernel_context *context, struct zr_kernel_limits limits,
                                 enum zr_isa isa, unsigned *threads)
{
    limits.threads = *threads;
    memset(context, 0, sizeof *context);
    context->isa = isa;
    context->parallel = (struct zr_parallel){*threads, *threads > 1 ? lent_run : NULL, threads};
    context->workspace_bytes = table_of(isa)->workspace_bytes(&limits, isa);
    context->workspace = tensor_memory(64, (context->workspace_bytes + 64 + 63) / 64 * 64);
    if (context->workspace == NULL)
        abort();
    memset(context->workspace, 0xff, context->workspace_bytes);
    memset((char *)context->workspace + context->workspace_bytes, 0xa5, 64);
    guard((char *)context->workspace + context->workspace_bytes, 64);
    if (table_of(isa)->open(context) == ZR_OK)
        return true;
    printf("# open: %s\n", zr_last_error());
    tensor_memory_free(context->workspace);
    return false;
}

/* False when something was written past the workspace. */
static inline bool context_end(struct zr_kernel_context *context)
{
    bool intact = true;
    for (size_t i = 0; i < 64; i++)
        intact = intact && ((unsigned char *)context->workspace)[context->workspace_bytes + i] == 0xa5;
    table_of(context->isa)->close(context);
    guard(NULL, 0);
    tensor_memory_free(context->workspace);
    return intact;
}

/* ---- One process per instruction set: the matrix library can be bound to one only ---------------------- */

static inline void for_each_isa(void (*run)(enum zr_isa isa))
{
#ifdef ZR_TEST_ON_CARD
    card_run(run);
    return;
#endif
    for (int isa = 0; isa < ZR_ISA_COUNT; isa++) {
        int pipes[2], numbers[3] = {tap_count + 1, tap_failed + 1, tap_skipped}, status = 0;
        if ((enum zr_isa)isa > zr_isa_best()) {
            tap_skip("%s: this processor does not have it", zr_isa_name((enum zr_isa)isa));
            continue;
        }
        fflush(stdout);
        if (pipe(pipes) != 0)
            abort();
        pid_t child = fork();
        if (child == 0) {
            close(pipes[0]);
            run((enum zr_isa)isa);
            numbers[0] = tap_count, numbers[1] = tap_failed, numbers[2] = tap_skipped;
            fflush(stdout);
            if (write(pipes[1], numbers, sizeof numbers) != sizeof numbers)
                _exit(1);
            exit(0);
        }
        close(pipes[1]);
        bool whole = child > 0 && read(pipes[0], numbers, sizeof numbers) == sizeof numbers;
        close(pipes[0]);
        whole = child > 0 && waitpid(child, &status, 0) == child && status == 0 && whole;
        if (whole)
            tap_count = numbers[0], tap_failed = numbers[1], tap_skipped = numbers[2];
        tap_ok(whole, "%s: the child process ended well", zr_isa_name((enum zr_isa)isa));
    }
}

#endif
