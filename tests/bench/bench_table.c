/* bench_table.c: rows per second of an embedding table's pulls and pushes, by ids of a Zipf law, beside a
 * copy of as many bytes and beside a hash map with a list per bucket and a node per row, as of C++'s
 * std::unordered_map.
 *
 *   bench_table [FOLDER]      FOLDER: also a table with a quarter of its rows in memory, the others in a file
 * there
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/random.h"
#include "zero/table/zr_table.h"

enum { ROWS = 1 << 20, WIDTH = 32, BATCH = 1 << 17, BATCHES = 8 };

static clockid_t clock_used = CLOCK_THREAD_CPUTIME_ID; /* other programs do not count */
static zr_arena *arena;
static uint64_t *ids; /* [BATCHES * BATCH] */
static float *rows;   /* [BATCH * WIDTH] */

static double now_s(void)
{
    struct timespec now;
    clock_gettime(clock_used, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static uint64_t id_of(uint64_t number)
{
    return splitmix64(&number);
}

static void check(zr_result result)
{
    if (result != ZR_OK) {
        fprintf(stderr, "bench_table: %s\n", zr_last_error());
        exit(1);
    }
}

static void show(const char *name, const char *work, double seconds)
{
    printf("%-24s %-6s %7.2f million rows per second\n", name, work, 1e-6 * BATCHES * BATCH / seconds);
    fflush(stdout);
}

static void bench_copy(void)
{
    float *from = calloc((size_t)BATCH * WIDTH, sizeof *from);
    memset(rows, 1, (size_t)BATCH * WIDTH * sizeof *rows);
    double start = now_s();
    for (unsigned i = 0; i < BATCHES; i++) {
        from[i] = (float)i;
        memcpy(rows, from, (size_t)BATCH * WIDTH * sizeof *rows);
    }
    show("memcpy", "copy", now_s() - start);
    free(from);
}

struct node {
    struct node *next;
    uint64_t id;
    float values[WIDTH];
};

static void bench_map(void)
{
    struct node **buckets = calloc(ROWS, sizeof(struct node *)), *node;
    for (uint64_t i = 0; i < ROWS; i++) {
        node = calloc(1, sizeof *node);
        node->id = id_of(i);
        node->next = buckets[node->id % ROWS];
        buckets[node->id % ROWS] = node;
    }
    double start = now_s();
    for (size_t i = 0; i < (size_t)BATCHES * BATCH; i++) {
        for (node = buckets[ids[i] % ROWS]; node->id != ids[i]; node = node->next)
            ;
        memcpy(rows + i % BATCH * WIDTH, node->values, sizeof node->values);
    }
    show("hash map", "pull", now_s() - start);
    start = now_s();
    for (size_t i = 0; i < (size_t)BATCHES * BATCH; i++) {
        for (node = buckets[ids[i] % ROWS]; node->id != ids[i]; node = node->next)
            ;
        for (size_t k = 0; k < WIDTH; k++)
            node->values[k] -= 0.1f * rows[i % BATCH * WIDTH + k];
    }
    show("hash map", "SGD", now_s() - start);
    for (size_t i = 0; i < ROWS; i++)
        for (node = buckets[i]; node; node = buckets[i]) {
            buckets[i] = node->next;
            free(node);
        }
    free(buckets);
}

static void bench_table(struct zr_table_options options, const char *name)
{
    zr_table *table;
    const char *const pushes[] = {"SGD", "", "Adagrd", "Adam"};
    check(zr_table_create(&table, &options));
    for (uint64_t i = 0; i < ROWS; i += BATCH) {
        static uint64_t all[BATCH];
        for (uint64_t j = 0; j < BATCH; j++)
            all[j] = id_of(i + j);
        check(zr_table_pull(table, &(struct zr_table_pull){.ids = all, .count = BATCH, .rows = rows}));
    }
    double start = now_s();
    for (size_t i = 0; i < BATCHES; i++)
        check(zr_table_pull(table,
                            &(struct zr_table_pull){.ids = ids + i * BATCH, .count = BATCH, .rows = rows}));
    show(name, "pull", now_s() - start);
    start = now_s();
    for (size_t i = 0; i < BATCHES; i++)
        check(zr_table_push(
            table,
            &(struct zr_table_push){.ids = ids + i * BATCH, .count = BATCH, .gradients = rows, .rate = 0.01f},
            NULL));
    show(name, pushes[options.optimizer], now_s() - start);
    zr_table_close(table);
}

int main(int argc, char **argv)
{
    struct zr_host_options host = {.struct_bytes = sizeof host};
    struct zr_arena_options arena_options = {.struct_bytes = sizeof arena_options};
    struct zr_table_plan plan;
    uint64_t random = 1;
    check(zr_backend_host_create(&arena_options.backend, &host));
    check(zr_arena_create(&arena, &arena_options));
    ids = calloc((size_t)BATCHES * BATCH, sizeof *ids);
    rows = calloc((size_t)BATCH * WIDTH, sizeof *rows);
    for (size_t i = 0; i < (size_t)BATCHES * BATCH; i++) { /* exponent 1: the logarithm is uniform */
        double uniform = (double)(splitmix64(&random) >> 11) * 0x1p-53;
        ids[i] = id_of((uint64_t)exp(uniform * log(ROWS)) % ROWS);
    }
    printf("%d rows of %d floats, batches of %d ids by a Zipf law of exponent 1\n", ROWS, WIDTH, BATCH);
    bench_copy();
    bench_map();
    struct zr_table_options options = {.struct_bytes = sizeof options,
                                       .arena = arena,
                                       .name = "bench",
                                       .width = WIDTH,
                                       .epsilon = 1e-6f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.999f,
                                       .init_range = 0.1f,
                                       .rows_limit = ROWS};
    bench_table(options, "table");
    options.optimizer = ZR_TABLE_ADAGRAD_ROW;
    bench_table(options, "table");
    options.optimizer = ZR_TABLE_ADAM;
    bench_table(options, "table");
    options.optimizer = ZR_TABLE_ADAGRAD_ROW;
    check(zr_table_plan(&options, &plan));
    options.memory = aligned_alloc(4096, (plan.memory_bytes + 4095) / 4096 * 4096);
    bench_table(options, "table in kept memory");
    free(options.memory);
    options.memory = NULL;
    if (argc > 1) {
        clock_used = CLOCK_MONOTONIC;
        options.file = (struct zr_table_file){.folder = argv[1], .force = true};
        options.memory_limit_bytes = plan.memory_bytes + plan.record_bytes - ROWS / 4 * 3 * plan.row_bytes;
        bench_table(options, "table, a quarter in memory");
    }
    free(ids);
    free(rows);
    return 0;
}
