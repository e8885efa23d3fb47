/* table_test.c: embedding tables beside a plain model: random histories in memory and with a file, dumps,
 * tables that drop rows, permits, threads, and refusals. */
#define _GNU_SOURCE
#include <pthread.h>

#include "tests/support/faults.h"
#include "tests/support/seed.h"
#include "tests/support/zero/table_model.h"

enum { IDS = 4000, BATCH = 300, ROUNDS = 120 };

static zr_arena *arena;
static char folder[] = "/tmp/zr-table-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* ---- Random histories ---------------------------------------------------------------------------------- */

struct history {
    struct model model;
    zr_table *table, *copy;
    struct model_batch batch;
    uint64_t dumped_until;
    bool good;
};

static void must(struct history *h, zr_result result)
{
    if (result != ZR_OK)
        tap_note("%s", zr_last_error());
    h->good = h->good && result == ZR_OK;
}

static void pull_and_compare(struct history *h)
{
    must(h, zr_table_pull(h->table, &(struct zr_table_pull){h->batch.ids, h->batch.count, h->batch.floats,
                                                            .peek = random_below(4) == 0}));
    h->good = h->good && model_agrees(&h->model, &h->batch, h->batch.floats);
}

static void push_both(struct history *h)
{
    float rate = 0.01f * (float)(1 + random_below(10));
    bool applied = false;
    must(h,
         zr_table_push(h->table,
                       &(struct zr_table_push){h->batch.ids, h->batch.count, h->batch.floats, .rate = rate},
                       &applied));
    h->good = h->good && applied;
    model_push(&h->model, &h->batch, rate, table_status(h->table).version);
}

static void drop_both(struct history *h)
{
    uint64_t version = table_status(h->table).version, oldest = version > 40 ? version - 40 : 0, count = 0,
             own = 0;
    must(h, zr_table_drop(h->table, oldest, &count));
    for (size_t i = 0; i < IDS; i++) {
        struct model_row *row = &h->model.rows[i];
        bool old = row->pushed && row->change < oldest;
        own += old;
        if (old)
            *row = (struct model_row){0};
    }
    h->good = h->good && count >= own; /* rows that were only pulled are dropped, too */
}

static void dump_and_apply(struct history *h)
{
    uint64_t since = random_below(8) ? h->dumped_until : 0;
    const char *path = path_of("dump");
    must(h, zr_table_dump(h->table, &(struct zr_table_dump){path, since}, &h->dumped_until));
    if (since == 0) {
        zr_table_close(h->copy);
        struct zr_table_options options = *h->model.options;
        options.memory_limit_bytes = 0;
        h->copy = table_make(&options);
    }
    must(h, zr_table_apply(h->copy, &(struct zr_table_apply){.path = path}));
    h->good = h->good && tables_agree(h->table, h->copy, IDS, h->model.options->width);
}

static void test_history(struct zr_table_options options, const char *name)
{
    struct history h = {.good = true, .table = table_make(&options), .copy = table_make(&options)};
    model_init(&h.model, &options, IDS);
    h.batch = batch_make(BATCH, options.width);
    for (unsigned i = 0; i < ROUNDS && h.good; i++) {
        unsigned draw = (unsigned)random_below(40);
        batch_draw(&h.batch, IDS, options.width);
        if (draw == 0)
            dump_and_apply(&h);
        else if (draw == 1)
            drop_both(&h);
        else if (draw < 16)
            pull_and_compare(&h);
        else
            push_both(&h);
    }
    dump_and_apply(&h);
    for (size_t i = 0; i < IDS && h.good; i += BATCH) {
        for (size_t j = 0; j < BATCH; j++)
            h.batch.ids[j] = model_id(h.batch.numbers[j] = (i + j) % IDS);
        pull_and_compare(&h);
    }
    struct zr_table_status status = table_status(h.table);
    tap_ok(h.good && status.rows_count > IDS / 2, "%s: a random history gives the model's bits", name);
    if (options.file.folder)
        tap_ok(status.loaded_count > 0 && status.stored_count > 0 &&
                   status.rows_count > status.slots_used_count + 1000,
               "rows moved to the file (%llu) and back (%llu)", (unsigned long long)status.stored_count,
               (unsigned long long)status.loaded_count);
    zr_table_close(h.table);
    zr_table_close(h.copy);
    model_fini(&h.model);
    batch_free(&h.batch);
}

static void test_histories(void)
{
    const char *names[] = {"sgd", "adagrad", "adagrad_row", "adam"};
    for (unsigned i = 0; i < ZR_TABLE_OPTIMIZERS_COUNT; i++) {
        struct zr_table_options options = table_options(arena);
        options.optimizer = i;
        if (i % 2)
            options = table_with_file(options, folder, 1100);
        test_history(options, names[i]);
    }
}

/* Rows that were only read are not written again. */
static void test_reading(zr_table *table, size_t rows_count)
{
    enum { AT_ONCE = 250, PASSES = 3 };
    uint64_t ids[AT_ONCE], stored[PASSES];
    float rows[AT_ONCE * 3];
    for (unsigned pass = 0; pass < PASSES; pass++) {
        for (size_t i = 0; i + AT_ONCE <= rows_count; i += AT_ONCE) {
            for (size_t j = 0; j < AT_ONCE; j++)
                ids[j] = model_id(i + j);
            if (table_pull(table, ids, AT_ONCE, rows) != ZR_OK)
                tap_note("%s", zr_last_error());
        }
        stored[pass] = table_status(table).stored_count;
    }
    tap_is(stored[2] - stored[1], 0, "reading writes no rows");
}

/* A table 64 times as large as its memory. */
static void test_overcommit(void)
{
    enum { ROWS = 64 * ZR_TABLE_SLOTS_MIN, AT_ONCE = 512 };
    struct zr_table_options options = table_options(arena);
    options.width = 3;
    options.optimizer = ZR_TABLE_ADAGRAD;
    options.rows_limit = ROWS;
    struct zr_table_options small = table_with_file(options, folder, ZR_TABLE_SLOTS_MIN + 8);
    zr_table *whole = table_make(&options), *table = table_make(&small);
    struct model_batch batch = batch_make(AT_ONCE, options.width);
    bool good = table && whole;
    for (size_t round = 0; round < 2 * ROWS / AT_ONCE && good; round++) {
        batch_draw(&batch, ROWS, options.width);
        for (size_t j = 0; j < AT_ONCE && round < ROWS / AT_ONCE; j++) /* all of them, then any */
            batch.ids[j] = model_id(round * AT_ONCE + j);
        good = table_push(table, batch.ids, AT_ONCE, batch.floats) == ZR_OK &&
               table_push(whole, batch.ids, AT_ONCE, batch.floats) == ZR_OK;
    }
    struct zr_table_plan plan;
    struct zr_table_status status = table_status(table);
    zr_table_plan(&small, &plan);
    tap_ok(good && status.rows_count == ROWS && plan.slots_count < ROWS / 60,
           "%llu rows with memory for %llu", (unsigned long long)status.rows_count,
           (unsigned long long)plan.slots_count);
    double amplification =
        (double)status.file_written_bytes / (double)(status.stored_count * (plan.row_bytes + 16));
    tap_ok(amplification < 2 && status.file_bytes >= plan.file_bytes,
           "evictions write %.1f times the records that move", amplification);
    test_reading(table, ROWS / 16);
    tap_ok(good && tables_agree(table, whole, ROWS / 8, options.width), "have the bits of a table in memory");
    zr_table_close(table);
    zr_table_close(whole);
    batch_free(&batch);
}

/* 512 MB of rows in 128 MB, each with two steps; long_table.t. */
static void test_large(void)
{
    enum { ROWS = 1 << 20, WIDTH = 64, AT_ONCE = 4096 };
    struct zr_table_options options = table_options(arena);
    options.width = WIDTH;
    options.optimizer = ZR_TABLE_ADAGRAD;
    options.rows_limit = ROWS;
    options.init_range = 0;
    options.batch_max = AT_ONCE;
    options.memory_limit_bytes = (size_t)128 << 20;
    options.file = (struct zr_table_file){.folder = folder, .force = true};
    zr_table *table = table_make(&options);
    struct model_batch batch = batch_make(AT_ONCE, WIDTH);
    unsigned wrong = 0;
    bool good = table != NULL;
    for (size_t i = 0; i < 3 * (size_t)ROWS && good; i += AT_ONCE) {
        for (size_t j = 0; j < AT_ONCE; j++) {
            size_t number = (i + j) * (1 + 2 * (i / ROWS)) % ROWS;
            batch.ids[j] = model_id(number);
            for (size_t k = 0; k < WIDTH; k++)
                batch.floats[j * WIDTH + k] = (float)(1 + number % 7);
        }
        if (i < 2 * (size_t)ROWS) {
            good = table_push(table, batch.ids, AT_ONCE, batch.floats) == ZR_OK;
            continue;
        }
        float *rows = calloc((size_t)AT_ONCE * WIDTH, sizeof *rows);
        good = table_peek(table, batch.ids, AT_ONCE, rows) == ZR_OK;
        for (size_t j = 0; j < (size_t)AT_ONCE * WIDTH; j++) {
            float g = batch.floats[j], sum = options.initial_state, value = 0;
            for (unsigned step = 0; step < 2; step++) {
                sum += g * g;
                value -= 0.1f * g / (sqrtf(sum) + options.epsilon);
            }
            wrong += rows[j] != value;
        }
        free(rows);
    }
    struct zr_table_status status = table_status(table);
    tap_ok(good && wrong == 0 && status.rows_count == ROWS && status.slots_used_count < ROWS / 5,
           "%llu rows train with memory for %llu", (unsigned long long)status.rows_count,
           (unsigned long long)status.slots_used_count);
    zr_table_close(table);
    batch_free(&batch);
}

/* ---- Plans and refusals -------------------------------------------------------------------------------- */

/* Whether blocks of a tag have been taken since, as many bytes as planned. */
static bool has_taken(const struct zr_arena_stats *before, zr_tag tag, size_t planned)
{
    enum { ROUNDING = 256 };
    struct zr_arena_stats now;
    zr_arena_get_stats(arena, &now);
    size_t bytes = now.live_by_tag_bytes[tag] - before->live_by_tag_bytes[tag];
    if (bytes < planned || bytes >= planned + ROUNDING)
        tap_note("%s: %zu bytes, and %zu are planned", zr_tag_name(tag), bytes, planned);
    return bytes >= planned && bytes < planned + ROUNDING;
}

static void test_plan(void)
{
    struct zr_table_options options = table_options(arena);
    struct zr_table_plan plan;
    struct zr_arena_stats before, with;
    options.optimizer = ZR_TABLE_ADAM;
    options.staleness = 2;
    options = table_with_file(options, folder, 1100);
    options.file.name = "tier";
    zr_arena_get_stats(arena, &before);
    tap_result(zr_table_plan(&options, &plan), ZR_OK, "a plan");
    zr_table *table = table_make(&options);
    tap_ok(has_taken(&before, ZR_TAG_PARAM, plan.memory_bytes) &&
               has_taken(&before, ZR_TAG_OFFLOAD, plan.staging_bytes),
           "memory (%zu) and staging (%zu) take what is planned", plan.memory_bytes, plan.staging_bytes);
    FILE *file = fopen(path_of("tier"), "rb");
    tap_ok(file && fseek(file, 0, SEEK_END) == 0 && (uint64_t)ftell(file) == plan.file_bytes,
           "and so does the file");
    fclose(file);
    zr_table_close(table);
    unlink(path_of("tier"));
    zr_arena_get_stats(arena, &with);
    tap_is(with.live_bytes, before.live_bytes, "a closed table leaves nothing");
    options.memory_limit_bytes = 0;
    table = table_make(&options);
    zr_table_plan(&options, &plan);
    tap_ok(has_taken(&before, ZR_TAG_OTHER, plan.record_bytes) && plan.file_bytes == 0,
           "records take what is planned (%zu), without those of transfers", plan.record_bytes);
    zr_table_close(table);
}

static void test_refusals(void)
{
    struct zr_table_options good = table_options(arena), bad[13];
    zr_table *table;
    unsigned n = 0;
    for (unsigned i = 0; i < 13; i++)
        bad[i] = good;
    bad[n++].name = NULL;
    bad[n++].name = "a b";
    bad[n++].width = 0;
    bad[n++].width = ZR_TABLE_WIDTH_MAX + 1;
    bad[n++].optimizer = ZR_TABLE_OPTIMIZERS_COUNT;
    bad[n].optimizer = ZR_TABLE_ADAGRAD;
    bad[n++].epsilon = 0;
    bad[n].optimizer = ZR_TABLE_ADAM;
    bad[n++].beta2 = 1;
    bad[n++].rows_limit = 0;
    bad[n].full = ZR_TABLE_DROP;
    bad[n++].rows_limit = ZR_TABLE_SLOTS_MIN - 1;
    bad[n++].init_range = -1;
    bad[n++].file.align_bytes = 3000;
    bad[n++].memory = (void *)1;
    bad[n++].arena = NULL;
    for (unsigned i = 0; i < n; i++)
        if (zr_table_create(&table, &bad[i]) != ZR_ERR_INVALID)
            tap_ok(false, "options %u are refused", i);
    good.memory_limit_bytes = 100000;
    tap_result(zr_table_create(&table, &good), ZR_ERR_MEMORY, "too little memory is refused");
    good.memory_limit_bytes = 0;
    good.rows_limit = 2;
    table = table_make(&good);
    uint64_t ids[] = {1, 2, 3, 4};
    float rows[20] = {0};
    tap_result(table_push(table, ids, 3, rows), ZR_ERR_MEMORY, "a third row of two is refused");
    tap_ok(strstr(zr_last_error(), "rows_limit") && !strstr(zr_last_error(), "memory_limit"),
           "for the limit of rows");
    tap_is(table_status(table).version, 0, "and no gradient is applied");
    tap_result(table_pull(table, ids, 4096, rows), ZR_ERR_INVALID, "a batch above batch_max is refused");
    tap_result(table_peek(table, ids, 4, rows), ZR_OK, "a look makes no rows");
    zr_table_close(table);
}

/* ---- Full tables, permits, threads --------------------------------------------------------------------- */

static void test_least_used(void)
{
    struct zr_table_options options = table_options(arena);
    uint64_t ids[1500], since;
    static float rows[1500 * 5], twice[1500 * 5];
    options.full = ZR_TABLE_DROP;
    options.rows_limit = 1024;
    zr_table *table = table_make(&options), *copy = table_make(&options);
    for (size_t i = 0; i < 1500; i++)
        ids[i] = model_id(i);
    for (size_t i = 0; i < 1500 * 5; i++)
        rows[i] = 1;
    table_push(table, ids, 1024, rows);
    table_pull(table, ids, 24, twice);        /* used again */
    table_push(table, ids + 1024, 476, rows); /* 24 to 499 are lost */
    struct zr_table_status status = table_status(table);
    tap_ok(status.rows_count == 1024 && status.lost_count == 476,
           "a full table loses a row for each new one");
    unsigned wrong = 0;
    for (size_t i = 0; i < 1500; i++) {
        float now[5], first[5];
        table_peek(table, &ids[i], 1, now);
        table_peek(copy, &ids[i], 1, first);
        wrong += (memcmp(now, first, sizeof now) == 0) != (i >= 24 && i < 500);
    }
    tap_is(wrong, 0, "the least-used ones");
    zr_result result = zr_table_dump(table, &(struct zr_table_dump){path_of("dump"), 1}, &since);
    tap_result(result, ZR_ERR_INVALID, "drops that are forgotten cannot be dumped");
    zr_table_close(table);
    zr_table_close(copy);
}

static void test_permits(void)
{
    struct zr_table_options options = table_options(arena);
    options.staleness = 2;
    options.permits_max = 1000;
    zr_table *table = table_make(&options);
    uint64_t ids[] = {5, 6, 5};
    float rows[15] = {0};
    struct zr_table_pull one = {ids, 3, rows, .worker = 1},
                         two = {ids, 3, rows, .worker = 2, .wait_ns = 1000};
    bool good = zr_table_pull(table, &one) == ZR_OK && zr_table_pull(table, &two) == ZR_OK;
    tap_ok(good && table_status(table).permits_count == 4, "two workers take a permit of each id");
    tap_result(zr_table_pull(table, &two), ZR_ERR_TIMEOUT, "a third pull is refused");
    zr_table_push(table, &(struct zr_table_push){ids, 1, rows, 1, .worker = 2}, NULL);
    zr_table_push(table, &(struct zr_table_push){ids, 1, rows, 1, .worker = 3}, NULL);
    tap_result(zr_table_pull(table, &(struct zr_table_pull){ids, 1, rows, .worker = 3}), ZR_OK,
               "a push returns a permit, and that of a worker without one nothing");
    tap_result(zr_table_pull(table, &(struct zr_table_pull){ids, 1, rows, .worker = 3}), ZR_ERR_TIMEOUT,
               "which is taken");
    tap_is(zr_table_release_worker(table, 1), 2, "a dead worker's permits are returned");
    tap_is(zr_table_release_worker(table, 1), 0, "once");
    for (uint64_t id = 100; id < 600; id++) /* chains of buckets */
        good = good && zr_table_pull(
                           table, &(struct zr_table_pull){&id, 1, rows, .worker = (unsigned)id % 7}) == ZR_OK;
    uint64_t returned = 0;
    for (unsigned worker = 0; worker < 7; worker++)
        returned += zr_table_release_worker(table, worker);
    tap_ok(good && returned == 502 && table_status(table).permits_count == 0, "all of them");
    zr_table_close(table);
}

enum { THREADS = 4 };

static struct worker {
    zr_table *table;
    unsigned number;
    bool good;
} workers[THREADS];

/* Each thread's ids are its own, and one is of all: a gradient of 1 in each step. */
static void *work(void *argument)
{
    struct worker *worker = argument;
    worker->good = true;
    for (unsigned i = 0; i < 200; i++) {
        uint64_t ids[3] = {worker->number + 1000, worker->number + 2000 + 8 * i, 1};
        float rows[15], gradients[15];
        for (unsigned j = 0; j < 15; j++)
            gradients[j] = 1;
        struct zr_table_pull pull = {ids, 3, rows, .worker = worker->number,
                                     .wait_ns = UINT64_C(60000000000)};
        struct zr_table_push push = {ids, 3, gradients, 1, .worker = worker->number};
        worker->good = worker->good && zr_table_pull(worker->table, &pull) == ZR_OK &&
                       zr_table_push(worker->table, &push, NULL) == ZR_OK;
    }
    return NULL;
}

static void test_threads(void)
{
    struct zr_table_options options = table_options(arena);
    options.init_range = 0;
    options.staleness = 1; /* a pull waits for the push of another thread */
    zr_table *table = table_make(&options);
    pthread_t threads[THREADS];
    uint64_t ids[2] = {1, 1002};
    float rows[10];
    bool good = true;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){table, i, false};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        good = good && workers[i].good;
    }
    table_peek(table, ids, 2, rows);
    tap_ok(good && rows[0] == -200 * THREADS && rows[5] == -200, "threads wait for permits and lose no push");
    zr_table_close(table);
}

/* ---- Dumps --------------------------------------------------------------------------------------------- */

/* Three servers' tables become those of two. */
static void test_servers(void)
{
    struct zr_table_options options = table_options(arena);
    options.optimizer = ZR_TABLE_ADAM;
    zr_table *whole = table_make(&options), *joined = table_make(&options), *three[3], *two[2];
    struct model_batch batch = batch_make(1500, options.width);
    bool good = true;
    batch_draw(&batch, IDS, options.width);
    good = table_push(whole, batch.ids, batch.count, batch.floats) == ZR_OK;
    for (unsigned s = 0; s < 3 && good; s++) {
        size_t own = 0;
        char name[16];
        three[s] = table_make(&options);
        uint64_t ids[1500];
        static float gradients[1500 * 5];
        for (size_t i = 0; i < batch.count; i++)
            if (zr_table_server(batch.ids[i], 3) == s) {
                ids[own] = batch.ids[i];
                memcpy(gradients + 5 * own++, batch.floats + 5 * i, 5 * sizeof(float));
            }
        snprintf(name, sizeof name, "server%u", s);
        good = own > 300 && table_push(three[s], ids, own, gradients) == ZR_OK &&
               zr_table_dump(three[s], &(struct zr_table_dump){path_of(name), 0}, NULL) == ZR_OK;
        zr_table_close(three[s]);
    }
    for (unsigned s = 0; s < 2 && good; s++) {
        two[s] = table_make(&options);
        for (unsigned file = 0; file < 3; file++) {
            char name[16];
            snprintf(name, sizeof name, "server%u", file);
            good = good && zr_table_apply(two[s], &(struct zr_table_apply){path_of(name), s, 2}) == ZR_OK;
        }
        good = good && zr_table_dump(two[s], &(struct zr_table_dump){path_of("half"), 0}, NULL) == ZR_OK &&
               zr_table_apply(joined, &(struct zr_table_apply){.path = path_of("half")}) == ZR_OK;
    }
    uint64_t halves = table_status(two[0]).rows_count + table_status(two[1]).rows_count;
    tap_ok(good && tables_agree(whole, joined, IDS, 5) && halves == table_status(whole).rows_count,
           "the tables of three servers are loaded by two");
    good = table_push(whole, batch.ids, batch.count, batch.floats) == ZR_OK &&
           table_push(joined, batch.ids, batch.count, batch.floats) == ZR_OK;
    tap_ok(good && tables_agree(whole, joined, IDS, 5), "with their optimizer state");
    zr_table_close(two[0]);
    zr_table_close(two[1]);
    zr_table_close(whole);
    zr_table_close(joined);
    batch_free(&batch);
}

struct dumping {
    zr_table *table;
    struct zr_table_options options;
};

static zr_result dump_again(void *state)
{
    const struct dumping *dumping = state;
    zr_table *copy = table_make(&dumping->options);
    zr_result result = zr_table_dump(dumping->table, &(struct zr_table_dump){path_of("fault"), 0}, NULL);
    if (result == ZR_OK)
        result = zr_table_apply(copy, &(struct zr_table_apply){.path = path_of("fault")});
    if (result == ZR_OK && !tables_agree(dumping->table, copy, 200, 5))
        result = ZR_ERR_CORRUPT;
    zr_table_close(copy);
    return result;
}

static void test_damaged_dumps(void)
{
    struct dumping dumping = {.options = table_options(arena)};
    dumping.options.optimizer = ZR_TABLE_ADAM;
    dumping.table = table_make(&dumping.options);
    struct model_batch batch = batch_make(100, 5);
    batch_draw(&batch, 200, 5);
    table_push(dumping.table, batch.ids, 100, batch.floats);
    const unsigned sites[] = {ZR_FAULT_OPEN,   ZR_FAULT_WRITE, ZR_FAULT_SYNC,
                              ZR_FAULT_RENAME, ZR_FAULT_READ,  ZR_FAULT_WRITE | ZR_FAULT_SHORT};
    for (unsigned i = 0; i < sizeof sites / sizeof *sites; i++)
        fault_each("a dump and its application", sites[i], dump_again, &dumping);
    char bytes[65536];
    FILE *file = fopen(path_of("fault"), "rb");
    size_t length = fread(bytes, 1, sizeof bytes, file), refused = 0, tried = 0;
    fclose(file);
    uint64_t header = 0;
    memcpy(&header, bytes, sizeof header);
    for (size_t i = 0; i < header + 8; i += 3, tried++) {
        char old = bytes[i];
        bytes[i] ^= (char)(1 << random_below(7));
        size_t kept = i % 2 ? length : random_below(length);
        file = fopen(path_of("damaged"), "wb");
        fwrite(bytes, 1, kept, file);
        fclose(file);
        bytes[i] = old;
        refused += zr_table_apply(dumping.table, &(struct zr_table_apply){.path = path_of("damaged")}) ==
                   ZR_ERR_FORMAT;
    }
    tap_ok(refused == tried && tried > 50, "%zu of %zu damaged headers are refused", refused, tried);
    uint64_t until = 0;
    table_push(dumping.table, batch.ids, 100, batch.floats);
    zr_table *copy = table_make(&dumping.options);
    zr_table_dump(dumping.table, &(struct zr_table_dump){path_of("fault"), 2}, &until);
    tap_result(zr_table_apply(copy, &(struct zr_table_apply){.path = path_of("fault")}), ZR_ERR_INVALID,
               "a dump is refused before those that it follows");
    zr_table_close(copy);
    zr_table_close(dumping.table);
    batch_free(&batch);
}

/* A disk that fails: the push must be repeated, and nothing leaks. */
static void test_failing_disk(void)
{
    struct zr_table_options options = table_options(arena);
    struct model_batch batch = batch_make(2000, 5);
    options.optimizer = ZR_TABLE_ADAM;
    options = table_with_file(options, folder, 1100);
    zr_table *table = table_make(&options);
    zr_result result = ZR_OK;
    for (unsigned i = 0; i < 40 && result == ZR_OK; i++) {
        batch_draw(&batch, IDS, 5);
        if (i == 2)
            zr_fault_set(ZR_FAULT_DISK_READ, 3);
        result = table_push(table, batch.ids, 2000, batch.floats);
    }
    zr_fault_set(ZR_FAULT_DISK_READ, 0);
    tap_result(result, ZR_ERR_IO, "a failing disk ends a push");
    zr_table_close(table);
    batch_free(&batch);
}

static void test_all(void)
{
    test_plan();
    test_refusals();
    test_histories();
    test_overcommit();
    test_least_used();
    test_permits();
    test_threads();
    test_servers();
    test_damaged_dumps();
    test_failing_disk();
}

/* --large: only test_large(). */
int main(int argc, char **argv)
{
    random_state = run_seed();
    if (!mkdtemp(folder))
        return 2;
    arena = table_arena();
    if (argc > 1 && strcmp(argv[1], "--large") == 0)
        test_large();
    else
        test_all();
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0 || tap_done();
}
