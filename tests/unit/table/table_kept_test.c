/* table_kept_test.c: tables in memory that outlives their process. A process dies before each of its stores
 * in turn, and again while another continues; every push is applied exactly once. And memory that is damaged.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "alloc/base/fault.h"
#include "tests/support/child.h"
#include "tests/support/seed.h"
#include "tests/support/zero/table_model.h"

enum { IDS = 2700, BATCH = 300, PUSHES = 8, WIDTH = 5, MEMORY_BYTES = 2 << 20, LIVES = 40, WORKED = 77 };

static zr_arena *arena;
static char folder[] = "/tmp/zr-table-XXXXXX";
static struct zr_table_options options;
static uint64_t seed;

/* Shared by all processes. */
static struct board {
    _Alignas(4096) char memory[MEMORY_BYTES];
    float values[IDS * WIDTH];
    struct zr_table_status status;
    uint64_t strike; /* store before which the process dies; 0: none */
    uint64_t stores; /* of a process that was not struck */
    bool exists;     /* the table */
} * board;

/* The batch of a push, the same in every process. */
static void draw(struct model_batch *batch, uint64_t sequence)
{
    random_state = seed + sequence * UINT64_C(0x9e3779b97f4a7c15);
    batch_draw(batch, IDS, WIDTH);
    for (size_t i = 0; i < BATCH; i++) { /* a window of ids that moves on: old rows move to the file */
        batch->numbers[i] = (random_below(450) + sequence * 280) % IDS;
        batch->ids[i] = model_id(batch->numbers[i]);
    }
}

/* Pulls and drops before a push: an interrupted one comes first. */
static zr_result step(zr_table *table, struct model_batch *batch, uint64_t sequence)
{
    static float rows[BATCH * WIDTH];
    zr_result result = ZR_OK;
    struct zr_table_push push = {batch->ids, BATCH, batch->floats, .rate = 0.1f, .sequence = sequence};
    if (table_status(table).interrupted_sequence == 0) {
        result = table_pull(table, batch->ids, BATCH, rows);
        if (result == ZR_OK && sequence == 5)
            result = zr_table_drop(table, 5, NULL);
    } else if (table_pull(table, batch->ids, BATCH, rows) != ZR_ERR_INVALID)
        return ZR_ERR_CORRUPT;
    bool applied = false;
    if (result == ZR_OK)
        result = zr_table_push(table, &push, &applied);
    if (result == ZR_OK && (!applied || zr_table_push(table, &push, &applied) != ZR_OK || applied))
        return ZR_ERR_CORRUPT; /* the second time changes nothing */
    return result;
}

static const char *dump_path(void)
{
    static char path[64];
    snprintf(path, sizeof path, "%s/dump", folder);
    return path;
}

/* Another table's rows, which replace some at the end of a life. */
static bool dump_another(void)
{
    struct zr_table_options other = options;
    struct model_batch batch = batch_make(BATCH, WIDTH);
    other.memory = NULL;
    zr_table *table = table_make(&other);
    draw(&batch, PUSHES - 1);
    bool good = table_push(table, batch.ids, BATCH, batch.floats) == ZR_OK &&
                zr_table_dump(table, &(struct zr_table_dump){dump_path(), 0}, NULL) == ZR_OK;
    zr_table_close(table);
    batch_free(&batch);
    return good;
}

static int live(void)
{
    zr_table *table = NULL;
    struct model_batch batch = batch_make(BATCH, WIDTH);
    if (!board->exists && zr_table_create(&table, &options) != ZR_OK)
        return 1;
    board->exists = true;
    zr_fault_set(ZR_FAULT_KEPT, board->strike);
    zr_result result = table ? ZR_OK : zr_table_open(&table, &options);
    for (uint64_t i = table_status(table).sequence + 1; i <= PUSHES && result == ZR_OK; i++) {
        draw(&batch, i);
        result = step(table, &batch, i);
    }
    if (result == ZR_OK && table_status(table).applied_until == 0)
        result = zr_table_apply(table, &(struct zr_table_apply){.path = dump_path()});
    board->stores = zr_fault_set(ZR_FAULT_KEPT, 0);
    if (result != ZR_OK) {
        tap_note("%s: %s", zr_result_name(result), zr_last_error());
        return 1;
    }
    float *values = table_values(table, IDS, WIDTH);
    memcpy(board->values, values, sizeof board->values);
    board->status = table_status(table);
    free(values);
    zr_table_close(table);
    return WORKED;
}

/* A table's whole life, in as many processes as it takes; the first dies before its store `strike`. Returns
 * the deaths, or -1: a process failed. */
static int live_on(uint64_t strike)
{
    uint64_t next = strike;
    board->exists = false;
    for (int deaths = 0; deaths < LIVES; deaths++) {
        board->strike = next;
        int ended = in_child(live);
        if (ended == WORKED)
            return deaths;
        if (ended != -SIGKILL)
            return -1;
        random_state = next * 2 + 1;
        next = deaths < 3 ? 1 + random_below(2000) : 0;
    }
    return -1;
}

static void test_deaths(const char *name)
{
    static float expected[IDS * WIDTH];
    int unharmed = live_on(0);
    memcpy(expected, board->values, sizeof expected);
    struct zr_table_status status = board->status;
    uint64_t stores = board->stores;
    unsigned wrong = 0, deaths = 0, tables = 0;
    for (uint64_t strike = 1; strike <= stores && wrong < 3;
         strike += 1 + strike / (run_stride(7) == 1 ? 100 : 7), tables++) {
        int died = live_on(strike);
        bool good = died > 0 && memcmp(expected, board->values, sizeof expected) == 0 &&
                    board->status.rows_count == status.rows_count &&
                    board->status.sequence == status.sequence;
        if (!good)
            tap_note("store %llu: %d deaths, %llu rows of %llu", (unsigned long long)strike, died,
                     (unsigned long long)board->status.rows_count, (unsigned long long)status.rows_count);
        wrong += !good;
        deaths += died > 0 ? (unsigned)died : 0;
    }
    tap_ok(unharmed == 0 && wrong == 0 && stores > 3000 && deaths > tables &&
               (options.file.folder == NULL || status.stored_count > 500),
           "%s: %u tables continue after %u deaths with the bits of a life without (%llu stores)", name,
           tables, deaths, (unsigned long long)stores);
}

/* Words of the memory have other values: an open refuses, or the table works in some way. */
static void test_damage(void)
{
    static char whole[MEMORY_BYTES];
    struct zr_table_plan plan;
    static float rows[BATCH * WIDTH];
    struct model_batch batch = batch_make(BATCH, WIDTH);
    unsigned refused = 0, opened = 0;
    zr_table_plan(&options, &plan);
    memcpy(whole, board->memory, sizeof whole);
    for (unsigned i = 0; i < 300; i++) {
        zr_table *table = NULL;
        size_t words = (i % 2 ? 512 : plan.memory_bytes) / sizeof(uint32_t);
        draw(&batch, i);
        for (unsigned n = 0; n < 4; n++) {
            uint32_t value = (uint32_t)next_random() >> random_below(32);
            memcpy(board->memory + random_below(words) * sizeof value, &value, sizeof value);
        }
        if (zr_table_open(&table, &options) == ZR_OK) {
            opened++;
            (void)table_pull(table, batch.ids, BATCH, rows);
            (void)table_push(table, batch.ids, BATCH, batch.floats);
            (void)zr_table_drop(table, 8, NULL);
            zr_table_close(table);
        } else
            refused++;
        memcpy(board->memory, whole, sizeof whole);
    }
    tap_ok(refused > 50 && opened > 50, "damaged memory is refused (%u) or works in some way (%u)", refused,
           opened);
    struct zr_table_options other = options;
    zr_table *table;
    other.width++;
    tap_result(zr_table_open(&table, &other), ZR_ERR_INVALID, "a table of another width is refused");
    tap_ok(strstr(zr_last_error(), "another width"), "by name");
    memset(board->memory, 0, 64);
    tap_result(zr_table_open(&table, &options), ZR_ERR_FORMAT, "and so is memory without a table");
    batch_free(&batch);
}

/* Other contents of the file, and a file that is missing. */
static void test_other_file(void)
{
    char path[64], zeros[4096] = {0};
    zr_table *table = NULL;
    snprintf(path, sizeof path, "%s/rows", folder);
    struct zr_table_options missing = options;
    missing.file.name = "missing";
    tap_ok(zr_table_open(&table, &missing) == ZR_ERR_IO && strstr(zr_last_error(), "is missing"),
           "a missing file is found when the table is opened");
    int file = open(path, O_WRONLY);
    bool good = file >= 0;
    for (unsigned i = 0; i < 60; i++)
        good = good && write(file, zeros, sizeof zeros) == sizeof zeros;
    close(file);
    good = good && zr_table_open(&table, &options) == ZR_OK;
    zr_result result = ZR_OK;
    for (size_t i = 0; i < IDS && result == ZR_OK; i++) {
        uint64_t id = model_id(i);
        float row[WIDTH];
        result = table_pull(table, &id, 1, row);
    }
    tap_ok(good && result == ZR_ERR_CORRUPT, "a row of another file is refused");
    tap_result(zr_table_dump(table, &(struct zr_table_dump){dump_path(), 0}, NULL), ZR_ERR_CORRUPT,
               "and a dump of the table");
    zr_table_close(table);
}

int main(void)
{
    struct zr_table_plan plan;
    seed = run_seed();
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED || !mkdtemp(folder))
        return 2;
    arena = table_arena();
    options = table_options(arena);
    options.rows_limit = 9000;
    options.batch_max = BATCH;
    options.memory = board->memory;
    options.optimizer = ZR_TABLE_ADAM;
    if (zr_table_plan(&options, &plan) != ZR_OK || plan.memory_bytes > MEMORY_BYTES)
        return 2;
    if (!dump_another())
        return 2;
    test_deaths("in memory");
    test_damage();
    options = table_with_file(options, folder, 1030);
    options.file.name = "rows";
    test_deaths("with a file");
    test_other_file();
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0 || tap_done();
}
