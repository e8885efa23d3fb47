/* bench_ps.c: rows per second of a worker that pulls and pushes 26 x 4,096 ids in each step, by a Zipf law,
 * from parameter servers over Unix sockets, beside one process that does the same look-ups and updates on its
 * own tables, and beside the transport: the same bytes there and back between two processes.
 *
 * bench_ps [servers [width]] */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "alloc/base/system/os.h"
#include "tests/support/random.h"
#include "tests/support/zero/ps_rig.h"
#include "zero/table/zr_table.h"

enum { CATEGORIES = 26, IDS = 4096, VOCABULARY = 1 << 18, STEPS = 24, WARM = 8, ROWS_LIMIT = 1 << 18 };
#define EXPONENT 1.05

static unsigned width = 16;
static uint64_t ids[STEPS][CATEGORIES][IDS];
static float *values[CATEGORIES];

/* A rank from 1 to VOCABULARY by the continuous power law, made an id. */
static uint64_t draw_id(uint64_t *state)
{
    double u = (double)(splitmix64(state) >> 11) * 0x1p-53,
           rank = pow((pow(VOCABULARY, 1 - EXPONENT) - 1) * u + 1, 1 / (1 - EXPONENT));
    return (uint64_t)rank * UINT64_C(0x9e3779b97f4a7c15);
}

static struct zr_table_options table_options(void)
{
    return (struct zr_table_options){.width = width,
                                     .optimizer = ZR_TABLE_ADAGRAD,
                                     .epsilon = 1e-8f,
                                     .init_range = 0.01f,
                                     .rows_limit = ROWS_LIMIT,
                                     .batch_max = IDS};
}

static int by_number(const void *first, const void *second)
{
    const double *a = first, *b = second;
    return (*a > *b) - (*a < *b);
}

/* Rows per second, of pulls and pushes together, from the median of steps. */
static double rate_of(double seconds[STEPS])
{
    qsort(seconds + WARM, STEPS - WARM, sizeof *seconds, by_number);
    return 2.0 * CATEGORIES * IDS / seconds[WARM + (STEPS - WARM) / 2];
}

static double now(void)
{
    return (double)zr_os_now_ns() / 1e9;
}

/* Processor time of this process and of its children. */
static double used(const pid_t *children, unsigned count)
{
    struct timespec time;
    clockid_t clock;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    double sum = (double)time.tv_sec + (double)time.tv_nsec / 1e9;
    for (unsigned i = 0; i < count; i++)
        if (clock_getcpuclockid(children[i], &clock) == 0 && clock_gettime(clock, &time) == 0)
            sum += (double)time.tv_sec + (double)time.tv_nsec / 1e9;
    return sum;
}

/* Rows per second of elapsed time, and of processor time of all processes, after the warm-up. */
struct rate {
    double elapsed, processor;
};
static struct rate rate_and_use(double seconds[STEPS], double processor)
{
    return (struct rate){rate_of(seconds), 2.0 * CATEGORIES * IDS * (STEPS - WARM) / processor};
}

static struct rate alone(struct ps_ground *ground)
{
    double seconds[STEPS], before = 0;
    zr_table *tables[CATEGORIES];
    struct zr_table_options options = table_options();
    for (unsigned c = 0; c < CATEGORIES; c++) {
        options.arena = ground->arena;
        options.name = "t";
        if (zr_table_create(&tables[c], &options) != ZR_OK)
            return (struct rate){0, 0};
    }
    for (unsigned step = 0; step < STEPS; step++) {
        before = step == WARM ? used(NULL, 0) : before;
        double begin = now();
        for (unsigned c = 0; c < CATEGORIES; c++)
            zr_table_pull(tables[c],
                          &(struct zr_table_pull){.ids = ids[step][c], .count = IDS, .rows = values[c]});
        for (unsigned c = 0; c < CATEGORIES; c++)
            zr_table_push(tables[c],
                          &(struct zr_table_push){
                              .ids = ids[step][c], .count = IDS, .gradients = values[c], .rate = 0.01f},
                          NULL);
        seconds[step] = now() - begin;
    }
    double processor = used(NULL, 0) - before;
    for (unsigned c = 0; c < CATEGORIES; c++)
        zr_table_close(tables[c]);
    return rate_and_use(seconds, processor);
}

static struct rate served(struct ps_ground *ground, unsigned servers, const char *folder)
{
    static struct zr_ps_table tables[CATEGORIES];
    const struct zr_table_options rows = table_options();
    struct zr_ps_item items[CATEGORIES];
    double seconds[STEPS], before = 0;
    pid_t children[PS_SERVERS];
    struct ps_run run = {.options = {.workers = 1,
                                     .servers = servers,
                                     .timing = {ZR_PS_ASYNC, 0},
                                     .tables = tables,
                                     .tables_count = CATEGORIES,
                                     .message_bytes = 32 << 20}};
    zr_ps_worker *worker;
    for (unsigned c = 0; c < CATEGORIES; c++) {
        tables[c] = (struct zr_ps_table){.rows = &rows, .rate_factor = 1};
        snprintf(tables[c].name, sizeof tables[c].name, "c%u", c);
    }
    if (ps_run_listen(&run, folder) != ZR_OK)
        return (struct rate){0, 0};
    for (unsigned s = 0; s < servers; s++) {
        children[s] = fork();
        if (children[s] == 0) {
            struct ps_seat *seat = malloc(sizeof *seat);
            *seat = (struct ps_seat){&run, s, false};
            ps_serve(seat);
            _exit(run.results[s] != ZR_OK);
        }
    }
    if (ps_join(&worker, &run, 0, ground->arena) != ZR_OK) {
        fprintf(stderr, "%s\n", zr_last_error());
        return (struct rate){0, 0};
    }
    for (unsigned step = 0; step < STEPS; step++) {
        before = step == WARM ? used(children, servers) : before;
        double begin = now();
        for (unsigned c = 0; c < CATEGORIES; c++)
            items[c] =
                (struct zr_ps_item){.table = c, .ids = ids[step][c], .ids_count = IDS, .values = values[c]};
        zr_result result = zr_ps_pull(worker, &(struct zr_ps_batch){items, CATEGORIES});
        if (result == ZR_OK)
            result = zr_ps_push(worker, &(struct zr_ps_push){.batch = {items, CATEGORIES}, .rate = 0.01f});
        if (result == ZR_OK)
            result = zr_ps_end_step(worker);
        if (result != ZR_OK)
            fprintf(stderr, "%s\n", zr_last_error());
        seconds[step] = now() - begin;
    }
    double processor = used(children, servers) - before;
    zr_ps_leave(worker, 0);
    zr_ps_worker_destroy(worker);
    for (unsigned s = 0; s < servers; s++)
        waitpid(children[s], NULL, 0);
    return rate_and_use(seconds, processor);
}

/* Moves bytes through a socket whole. */
static bool move(int fd, char *data, size_t bytes, bool sends)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = sends ? send(fd, data + done, bytes - done, MSG_NOSIGNAL)
                          : recv(fd, data + done, bytes - done, 0);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

/* The bytes of a step's requests and answers, between two processes that do nothing else. */
static double transport(void)
{
    const size_t rows = (size_t)CATEGORIES * IDS, asked = rows * 8, row_bytes = rows * width * sizeof(float);
    char *data = calloc(1, asked + row_bytes);
    double seconds[STEPS];
    int ends[2];
    if (!data || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        bool good = true;
        for (unsigned step = 0; step < STEPS && good; step++)
            good = move(ends[1], data, asked, false) && move(ends[1], data, row_bytes, true) &&
                   move(ends[1], data, asked + row_bytes, false) && move(ends[1], data, 1, true);
        _exit(!good);
    }
    for (unsigned step = 0; step < STEPS; step++) {
        double begin = now();
        if (!move(ends[0], data, asked, true) || !move(ends[0], data, row_bytes, false) ||
            !move(ends[0], data, asked + row_bytes, true) || !move(ends[0], data, 1, false))
            return 0;
        seconds[step] = now() - begin;
    }
    waitpid(child, NULL, 0);
    free(data);
    return rate_of(seconds);
}

int main(int count, char **words)
{
    unsigned servers = count > 1 ? (unsigned)strtoul(words[1], NULL, 10) : 1;
    char folder[] = "/tmp/zr-bench-ps-XXXXXX";
    uint64_t state = 1;
    struct ps_ground ground;
    width = count > 2 ? (unsigned)strtoul(words[2], NULL, 10) : width;
    if (servers < 1 || servers > PS_SERVERS || width < 1 || width > 256 || !mkdtemp(folder) ||
        ps_ground_open(&ground) != ZR_OK) {
        fprintf(stderr, "bench_ps [servers from 1 to %d [width]]\n", PS_SERVERS);
        return 2;
    }
    for (uint64_t *id = &ids[0][0][0]; id < &ids[0][0][0] + STEPS * CATEGORIES * IDS; id++)
        *id = draw_id(&state);
    for (unsigned c = 0; c < CATEGORIES; c++)
        values[c] = calloc(IDS * width, sizeof(float));
    double wire = transport();
    struct rate tables = alone(&ground), both = served(&ground, servers, folder);
    printf("%d x %d ids of width %u, Zipf %.2f over %d, million rows per second of pull and push:\n",
           CATEGORIES, IDS, width, EXPONENT, VOCABULARY);
    printf("  %-44s %8s %16s\n", "", "elapsed", "processor time");
    printf("  %-44s %8.2f %16.2f\n", "tables in one process", tables.elapsed / 1e6, tables.processor / 1e6);
    printf("  %-44s %8.2f\n", "the bytes over a Unix socket, nothing else", wire / 1e6);
    printf("  %-44s %8.2f\n", "bound: one after the other", 1e-6 / (1 / tables.elapsed + 1 / wire));
    printf("  %-44s %8.2f %16.2f\n", servers == 1 ? "a worker and 1 server" : "a worker and its servers",
           both.elapsed / 1e6, both.processor / 1e6);
    printf("  %-44s %7.0f%% %15.0f%%\n", "of one process", 100 * both.elapsed / tables.elapsed,
           100 * both.processor / tables.processor);
    for (unsigned s = 0; s < servers; s++) {
        char path[64];
        snprintf(path, sizeof path, "%s/s%u", folder, s);
        unlink(path);
    }
    rmdir(folder);
    return 0;
}
