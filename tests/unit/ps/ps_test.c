/* ps_test.c: parameter servers with their workers: what workers pull beside plain references of the timings,
 * staleness rules, fills, replicas, and refusals. */
#define _GNU_SOURCE
#include <math.h>
#include <poll.h>
#include <stdatomic.h>

#include "tests/support/seed.h"
#include "tests/support/zero/ps_rig.h"
#include "zero/table/zr_table.h"

/* Rounds to nearest even, for numbers that are finite. */
static uint16_t bf16_from(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bf16_to(uint16_t number)
{
    uint32_t bits = (uint32_t)number << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

enum { STEPS = 4, ELEMENTS = 1000 };
static char folder[48];
static uint64_t seed;

/* ---- Workers as threads -------------------------------------------------------------------------------- */

struct job {
    struct ps_run *run;
    unsigned worker;
    int (*work)(struct job *job, zr_ps_worker *worker);
    void *shared;
    int code; /* the line that failed, or 0 */
    pthread_t thread;
};

#define must(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            tap_note("line %d: %s (%s)", __LINE__, #condition, zr_last_error());                             \
            return __LINE__;                                                                                 \
        }                                                                                                    \
    } while (0)

static int do_work(struct job *job, zr_arena *arena)
{
    zr_ps_worker *worker = NULL;
    must(ps_join(&worker, job->run, job->worker, arena) == ZR_OK);
    int code = job->work(job, worker);
    if (zr_ps_leave(worker, job->worker) != ZR_OK && code == 0)
        code = __LINE__;
    zr_ps_worker_destroy(worker);
    return code;
}

static void *job_main(void *argument)
{
    struct job *job = argument;
    struct ps_ground ground;
    job->code = ps_ground_open(&ground) == ZR_OK ? do_work(job, ground.arena) : __LINE__;
    if (ps_ground_close(&ground) != 0)
        job->code = __LINE__;
    return NULL;
}

/* Runs servers and workers to their end; 0: all succeeded. */
static int run_all(struct ps_run *run, int (*work)(struct job *job, zr_ps_worker *worker), void *shared)
{
    struct job jobs[PS_WORKERS];
    int code = 0;
    const unsigned drivers = run->drivers ? run->drivers : run->options.workers;
    must(ps_run_start(run, folder) == ZR_OK);
    for (unsigned w = 0; w < drivers; w++) {
        jobs[w] = (struct job){.run = run, .worker = w, .work = work, .shared = shared};
        pthread_create(&jobs[w].thread, NULL, job_main, &jobs[w]);
    }
    for (unsigned w = 0; w < drivers; w++) {
        pthread_join(jobs[w].thread, NULL);
        code = code ? code : jobs[w].code;
    }
    return ps_run_end(run) || code ? code : __LINE__;
}

static struct zr_optimizer_options adamw(void)
{
    return (struct zr_optimizer_options){
        .kind = ZR_OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};
}

static struct zr_optimizer_options plain_sgd(void)
{
    return (struct zr_optimizer_options){.kind = ZR_OPTIMIZER_SGD};
}

/* ---- sync: the bits of a plain run ----------------------------------------------------------------------
 */

static const struct zr_ps_table mixed[] = {
    {.name = "matrix", .elements = ELEMENTS, .rate_factor = 1, .decay_factor = 1, .filled = true},
    {.name = "one", .elements = 1, .rate_factor = 0.5f},
    {.name = "narrow", .elements = 700, .precision = ZR_PRECISION_BF16, .rate_factor = 1, .decay_factor = 1},
    {.name = "twice", .elements = 300, .pushes = 2, .rate_factor = 1},
};
enum { MIXED = sizeof mixed / sizeof *mixed };

/* Of a worker, a step, a table and a push: any numbers, the same in each run. */
static void draw_gradient(const struct zr_ps_table *table, uint64_t key, void *out)
{
    uint64_t state = seed + key * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < table->elements; i++) {
        float number = (float)((double)(splitmix64(&state) >> 40) / (1 << 23) - 1);
        if (table->precision == ZR_PRECISION_BF16)
            ((uint16_t *)out)[i] = bf16_from(number);
        else
            ((float *)out)[i] = number;
    }
}

static uint64_t key_of(unsigned worker, unsigned step, unsigned table, unsigned push)
{
    return 1 + push + 4 * (table + MIXED * (step + 16 * (uint64_t)worker));
}

static float first_value(size_t i)
{
    return 0.01f * (float)(i % 97);
}

/* What the workers read in each step, and the plain run's. */
struct history {
    char tables[STEPS + 1][MIXED][ELEMENTS * sizeof(float)];
    bool reversed; /* workers begin in another order */
    unsigned ahead;
};

/* A plain run: gradients of a step are added in the order of workers, divided, rounded, and applied. */
static void plain_run(struct history *out, unsigned workers, struct ps_ground *ground)
{
    static float master[ELEMENTS], momentum[ELEMENTS], variance[ELEMENTS], sum[ELEMENTS], all[ELEMENTS];
    const struct zr_kernels *kernels = zr_kernels_cpu(zr_isa_best());
    const struct zr_optimizer_options o = adamw();
    union {
        float wide[ELEMENTS];
        uint16_t narrow[ELEMENTS];
    } gradient;
    for (unsigned t = 0; t < MIXED; t++) {
        const size_t n = mixed[t].elements;
        memset(momentum, 0, sizeof momentum);
        memset(variance, 0, sizeof variance);
        for (size_t i = 0; i < n; i++)
            master[i] = mixed[t].filled ? first_value(i) : 0;
        for (unsigned step = 0; step <= STEPS; step++) {
            for (size_t i = 0; i < n; i++)
                if (mixed[t].precision == ZR_PRECISION_BF16)
                    ((uint16_t *)out->tables[step][t])[i] = bf16_from(master[i]);
                else
                    ((float *)out->tables[step][t])[i] = master[i];
            memset(all, 0, sizeof all);
            for (unsigned push = 0; push < (mixed[t].pushes ? mixed[t].pushes : 1); push++) {
                memset(sum, 0, sizeof sum);
                for (unsigned w = 0; w < workers; w++) {
                    draw_gradient(&mixed[t], key_of(w, step, t, push), &gradient);
                    for (size_t i = 0; i < n; i++)
                        sum[i] += mixed[t].precision == ZR_PRECISION_BF16 ? bf16_to(gradient.narrow[i])
                                                                          : gradient.wide[i];
                }
                for (size_t i = 0; i < n; i++) {
                    float mean = sum[i] * (1.0f / (float)workers);
                    all[i] += mixed[t].precision == ZR_PRECISION_BF16 ? bf16_to(bf16_from(mean)) : mean;
                }
            }
            kernels->update_adamw(
                &ground->context,
                &(struct zr_update_adamw){.how = {.rate = 0.01f * (float)(step + 1) * mixed[t].rate_factor,
                                                  .beta1 = o.beta1,
                                                  .beta2 = o.beta2,
                                                  .epsilon = o.epsilon,
                                                  .weight_decay = o.weight_decay * mixed[t].decay_factor,
                                                  .gradient_scale = 1,
                                                  .correction1 = (float)(1 - pow(o.beta1, step + 1)),
                                                  .correction2 = (float)(1 - pow(o.beta2, step + 1))},
                                          .numbers = {.n = n,
                                                      .gradient = {all, ZR_PRECISION_FP32},
                                                      .master = master,
                                                      .momentum = momentum,
                                                      .variance = variance}});
        }
    }
}

/* Pushes of a step, table by table; those of several pushes one after the other, or in one batch. */
static int push_step(struct job *job, zr_ps_worker *worker, unsigned step)
{
    char numbers[MIXED + 1][ELEMENTS * sizeof(float)];
    struct zr_ps_item items[MIXED + 1];
    unsigned count = 0;
    for (unsigned push = 0; push < 2; push++) {
        for (unsigned t = 0; t < MIXED; t++) {
            if (push >= (mixed[t].pushes ? mixed[t].pushes : 1))
                continue;
            draw_gradient(&mixed[t], key_of(job->worker, step, t, push), numbers[count]);
            items[count] = (struct zr_ps_item){.table = t, .values = numbers[count]};
            count++;
        }
        if (push == 0 && step % 2 == 1)
            continue;
        must(zr_ps_push(worker, &(struct zr_ps_push){.batch = {items, count},
                                                     .rate = 0.01f * (float)(step + 1)}) == ZR_OK);
        count = 0;
    }
    must(zr_ps_end_step(worker) == ZR_OK);
    return 0;
}

static int sync_work(struct job *job, zr_ps_worker *worker)
{
    const struct history *want = job->shared;
    char numbers[MIXED][ELEMENTS * sizeof(float)];
    struct zr_ps_item items[MIXED];
    float values[ELEMENTS];
    for (size_t i = 0; i < ELEMENTS; i++)
        values[i] = first_value(i);
    const struct zr_ps_item fill = {.table = 0, .values = values};
    must(zr_ps_fill(worker, &(struct zr_ps_filling){.batch = {&fill, 1}, .done = true}) == ZR_OK);
    for (unsigned step = 0; step <= STEPS; step++) {
        for (unsigned t = 0; t < MIXED; t++)
            items[t] = (struct zr_ps_item){.table = t, .values = numbers[t]};
        must(zr_ps_pull(worker, &(struct zr_ps_batch){items, MIXED}) == ZR_OK);
        for (unsigned t = 0; t < MIXED && want->ahead == 0; t++)
            must(memcmp(numbers[t], want->tables[step][t],
                        mixed[t].elements * zr_precision_bytes(mixed[t].precision)) == 0);
        if (step < STEPS && push_step(job, worker, step) != 0)
            return __LINE__;
    }
    must(zr_ps_worker_clock(worker) == STEPS);
    return 0;
}

static void check_sync(struct ps_ground *ground)
{
    static const struct {
        struct zr_ps_timing timing;
        unsigned workers, servers;
    } runs[] = {
        {{ZR_PS_SYNC, 0}, 1, 1}, {{ZR_PS_SYNC, 0}, 3, 2}, {{ZR_PS_SSP, 0}, 2, 3}, {{ZR_PS_SSP, 2}, 3, 2}};
    static struct history want;
    for (unsigned i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct ps_run run = {.options = {.workers = runs[i].workers,
                                         .servers = runs[i].servers,
                                         .timing = runs[i].timing,
                                         .optimizer = adamw(),
                                         .tables = mixed,
                                         .tables_count = MIXED}};
        plain_run(&want, runs[i].workers, ground);
        want.ahead = runs[i].timing.parameter;
        tap_is(run_all(&run, sync_work, &want), 0,
               "%u workers, %u servers, timing %d:%u: each pull has the bits of a plain run", runs[i].workers,
               runs[i].servers, runs[i].timing.kind, runs[i].timing.parameter);
    }
}

/* ---- half-async: no half push ----------------------------------------------------------------------------
 */

static const struct zr_ps_table flat[] = {{.name = "a", .elements = 600, .rate_factor = 1},
                                          {.name = "b", .elements = 5000, .rate_factor = 1}};

/* Each push lowers every number by 1. */
static int half_work(struct job *job, zr_ps_worker *worker)
{
    static float ones[5000];
    float a[600], b[5000];
    const struct zr_ps_item pulls[] = {{.table = 0, .values = a}, {.table = 1, .values = b}},
                            pushes[] = {{.table = 0, .values = ones}, {.table = 1, .values = ones}};
    const bool half = job->run->options.timing.kind == ZR_PS_HALF_ASYNC;
    struct zr_ps_state state;
    for (unsigned i = 0; i < 5000; i++)
        ones[i] = 1;
    for (unsigned step = 0; step < 12; step++) {
        must(zr_ps_pull(worker, &(struct zr_ps_batch){pulls, 2}) == ZR_OK);
        float want = half ? -(float)(step * job->run->options.workers) : b[0];
        for (unsigned i = 0; i < 5000; i++)
            must(b[i] == want && a[i % 600] == want);
        must(zr_ps_push(worker, &(struct zr_ps_push){.batch = {pushes, 2}, .rate = 1}) == ZR_OK);
        must(zr_ps_end_step(worker) == ZR_OK);
    }
    must(zr_ps_report(worker, &state) == ZR_OK && state.lost_replicas == 0);
    return 0;
}

static void check_half(void)
{
    for (unsigned servers = 1; servers <= 3; servers += 2) {
        struct ps_run run = {.options = {.workers = 4,
                                         .servers = servers,
                                         .timing = {ZR_PS_HALF_ASYNC, 0},
                                         .optimizer = plain_sgd(),
                                         .tables = flat,
                                         .tables_count = 2},
                             .replicated = servers > 1};
        tap_is(run_all(&run, half_work, NULL), 0,
               "half-async, %u servers: a pull has all pushes of earlier steps and no half push", servers);
    }
    struct ps_run run = {.options = {.workers = 4,
                                     .servers = 1,
                                     .timing = {ZR_PS_ASYNC, 0},
                                     .optimizer = plain_sgd(),
                                     .tables = flat,
                                     .tables_count = 2}};
    tap_is(run_all(&run, half_work, NULL), 0, "async, one server: a message is applied as a whole");
}

/* ---- Staleness rules ------------------------------------------------------------------------------------
 */

/* Two workers in one thread: worker 1 pulls, worker 0 pushes twice, then worker 1 pushes what is stale by 2.
 */
static int stale_work(struct job *job, zr_ps_worker *worker)
{
    const struct zr_ps_staleness *rule = &job->run->options.staleness;
    float w[ELEMENTS], g[ELEMENTS], now[ELEMENTS], pulled[ELEMENTS];
    const struct zr_ps_item pull = {.table = 0, .values = w}, push = {.table = 0, .values = g};
    const struct zr_ps_batch pulls = {&pull, 1}, pushes = {&push, 1};
    struct zr_ps_state state;
    uint64_t version;
    zr_ps_worker *other = NULL;
    struct ps_ground ground;
    must(ps_ground_open(&ground) == ZR_OK && ps_join(&other, job->run, 1, ground.arena) == ZR_OK);
    must(zr_ps_pull(other, &pulls) == ZR_OK);
    for (unsigned i = 0; i < ELEMENTS; i++) {
        g[i] = 0.25f * (float)(i % 9);
        now[i] = pulled[i] = w[i];
    }
    for (unsigned k = 0; k < 3; k++) {
        zr_ps_worker *sender = k < 2 ? worker : other;
        const float rate = 0.5f, fresh = rule->kind == ZR_PS_STALE_DIVIDE && k == 2 ? rate / 2 : rate;
        must(sender == other || zr_ps_pull(sender, &pulls) == ZR_OK);
        must(zr_ps_push(sender, &(struct zr_ps_push){.batch = pushes, .rate = rate}) == ZR_OK);
        for (unsigned i = 0; i < ELEMENTS; i++) {
            float h = g[i], behind = sender == other ? now[i] - pulled[i] : 0;
            if (rule->kind == ZR_PS_STALE_COMPENSATE)
                h = h + rule->lambda * h * h * behind;
            now[i] -= fresh * h;
        }
    }
    must(zr_ps_pull(worker, &pulls) == ZR_OK);
    for (unsigned i = 0; i < ELEMENTS; i++)
        must(w[i] == now[i]);
    must(zr_ps_version(worker, 0, &version) == ZR_OK && version == 3);
    must(zr_ps_report(worker, &state) == ZR_OK && state.staleness[0] == 2 * job->run->options.servers &&
         state.staleness[2] == job->run->options.servers && state.updates == 3 * job->run->options.servers);
    must(zr_ps_leave(other, 1) == ZR_OK);
    zr_ps_worker_destroy(other);
    return ps_ground_close(&ground) == 0 ? 0 : __LINE__;
}

static void check_staleness(void)
{
    static const char *const rules[] = {"none", "divide", "dc:0.5"};
    for (unsigned r = 0; r < 3; r++) {
        struct ps_run run = {
            .options = {.workers = 2,
                        .servers = 2,
                        .timing = {ZR_PS_ASYNC, 0},
                        .optimizer = plain_sgd(),
                        .tables = &(struct zr_ps_table){.name = "t", .elements = ELEMENTS, .rate_factor = 1},
                        .tables_count = 1},
            .drivers = 1};
        tap_ok(zr_ps_staleness_read(&run.options.staleness, rules[r]) == ZR_OK &&
                   run_all(&run, stale_work, NULL) == 0,
               "staleness %s: a push that is 2 updates late", rules[r]);
    }
}

/* ---- geo --------------------------------------------------------------------------------------------------
 */

/* Differences are multiples of 2^-18 below 2^6, so that their sums are exact in any order. */
static int geo_work(struct job *job, zr_ps_worker *worker)
{
    enum { N = 3000, ROUNDS = 5 };
    static float own[PS_WORKERS][N], old[PS_WORKERS][N];
    float difference[N], server[N], own_before[N], old_before[N];
    const unsigned workers = job->run->options.workers;
    struct zr_ps_exchange exchange = {N, workers, own[job->worker], old[job->worker]};
    const struct zr_ps_item pull = {.table = 0, .values = server}, push = {.table = 0, .values = difference};
    _Atomic long *sums = job->shared;
    memset(own[job->worker], 0, sizeof *own);
    memset(old[job->worker], 0, sizeof *old);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < N; i++) /* its own steps */
            exchange.own[i] +=
                (float)((long)((i * 7 + round * 3 + job->worker) % 64) - 30) * (float)workers / 1024;
        memcpy(own_before, exchange.own, sizeof own_before);
        memcpy(old_before, exchange.old, sizeof old_before);
        zr_ps_difference(&exchange, difference);
        for (unsigned i = 0; i < N; i++)
            atomic_fetch_add(&sums[i], lrintf(difference[i] * (1 << 18)));
        must(zr_ps_push(worker, &(struct zr_ps_push){.batch = {&push, 1}}) == ZR_OK);
        must(zr_ps_pull(worker, &(struct zr_ps_batch){&pull, 1}) == ZR_OK);
        zr_ps_receive(&exchange, server);
        for (unsigned i = 0; i < N; i++)
            must(exchange.own[i] == own_before[i] + (server[i] - (old_before[i] + difference[i])));
        must(zr_ps_end_step(worker) == ZR_OK);
    }
    atomic_fetch_add(&sums[N], 1);
    while (atomic_load(&sums[N]) < (long)workers)
        usleep(1000);
    must(zr_ps_pull(worker, &(struct zr_ps_batch){&pull, 1}) == ZR_OK);
    for (unsigned i = 0; i < N; i++)
        must(server[i] == (float)atomic_load(&sums[i]) / (1 << 18));
    return 0;
}

static void check_geo(void)
{
    static _Atomic long sums[3001];
    struct ps_run run = {.options = {.workers = 4,
                                     .servers = 2,
                                     .timing = {ZR_PS_GEO, 3},
                                     .tables = &(struct zr_ps_table){.name = "t", .elements = 3000},
                                     .tables_count = 1}};
    tap_is(run_all(&run, geo_work, sums), 0, "geo: the servers have the sum of all differences");
}

/* ---- Rows ------------------------------------------------------------------------------------------------
 */

/* Each worker lowers each of its ids by the number of its repetitions, mean of the workers with sync. */
static int rows_work(struct job *job, zr_ps_worker *worker)
{
    enum { COUNT = 5000, WIDTH = 3 };
    static uint64_t ids[COUNT];
    static float rows[PS_WORKERS][COUNT * WIDTH], ones[COUNT * WIDTH];
    struct zr_ps_item pull = {.table = 0, .ids = ids, .ids_count = COUNT, .values = rows[job->worker]};
    const bool sync = job->run->options.timing.kind == ZR_PS_SYNC;
    for (unsigned i = 0; i < COUNT; i++)
        ids[i] = UINT64_C(0x9e3779b97f4a7c15) * (i % 1000 + 1);
    for (unsigned i = 0; i < COUNT * WIDTH; i++)
        ones[i] = 1;
    for (unsigned step = 0; step < STEPS; step++) {
        must(zr_ps_pull(worker, &(struct zr_ps_batch){&pull, 1}) == ZR_OK);
        for (unsigned i = 0; i < COUNT * WIDTH && sync; i++)
            must(rows[job->worker][i] == -5.0f * (float)step);
        struct zr_ps_item push = {.table = 0, .ids = ids, .ids_count = COUNT, .values = ones};
        must(zr_ps_push(worker, &(struct zr_ps_push){.batch = {&push, 1}, .rate = 1}) == ZR_OK);
        must(zr_ps_end_step(worker) == ZR_OK);
    }
    return 0;
}

static void check_rows(void)
{
    const struct zr_table_options rows = {
        .width = 3, .optimizer = ZR_TABLE_SGD, .rows_limit = 4096, .batch_max = 16384};
    static const struct zr_ps_timing timings[] = {{ZR_PS_SYNC, 0}, {ZR_PS_ASYNC, 0}};
    for (unsigned i = 0; i < 2; i++) {
        struct ps_run run = {
            .options = {.workers = 2,
                        .servers = 3,
                        .timing = timings[i],
                        .optimizer = plain_sgd(),
                        .tables = &(struct zr_ps_table){.name = "ids", .rows = &rows, .rate_factor = 1},
                        .tables_count = 1}};
        tap_is(run_all(&run, rows_work, NULL), 0, "rows on three servers, timing %d: repeated ids are summed",
               timings[i].kind);
    }
}

/* Two tables whose rows fit into a request each, but not together into a step. */
static int crowded_work(struct job *job, zr_ps_worker *worker)
{
    enum { COUNT = 150 };
    uint64_t ids[COUNT];
    float ones[COUNT * 3] = {0};
    for (unsigned i = 0; i < COUNT; i++)
        ids[i] = i;
    for (unsigned t = 0; t < 2; t++) {
        struct zr_ps_item item = {.table = t, .ids = ids, .ids_count = COUNT, .values = ones};
        struct zr_ps_push push = {.batch = {(struct zr_ps_item[]){item, item}, 2}, .rate = 1};
        must(zr_ps_push(worker, &push) == ZR_ERR_INVALID);
        push.batch.items_count = 1;
        must(zr_ps_push(worker, &push) == (t == 0 ? ZR_OK : ZR_ERR_PEER));
    }
    must(job->run->options.message_bytes == 4096 && strstr(zr_last_error(), "message_bytes"));
    return 0;
}

static void check_crowded(void)
{
    const struct zr_table_options rows = {.width = 3, .optimizer = ZR_TABLE_SGD, .rows_limit = 4096};
    struct ps_run run = {.options = {.workers = 1,
                                     .servers = 1,
                                     .timing = {ZR_PS_SYNC, 0},
                                     .optimizer = plain_sgd(),
                                     .tables = (struct zr_ps_table[]){{.name = "a", .rows = &rows},
                                                                      {.name = "b", .rows = &rows}},
                                     .tables_count = 2,
                                     .message_bytes = 4096}};
    tap_is(run_all(&run, crowded_work, NULL), 0, "rows that exceed message_bytes are refused");
}

/* ---- Over TCP ---------------------------------------------------------------------------------------------
 */

static void check_tcp(struct ps_ground *ground)
{
    static const unsigned char secret[ZR_PS_SECRET_BYTES] = "one", other[ZR_PS_SECRET_BYTES] = "other";
    char address[ZR_PS_ADDRESS_BYTES];
    struct ps_run run = {.options = {.workers = 1,
                                     .servers = 1,
                                     .timing = {ZR_PS_ASYNC, 0},
                                     .optimizer = plain_sgd(),
                                     .tables = flat,
                                     .tables_count = 2,
                                     .secret = secret}};
    zr_ps_worker *worker;
    tap_result(zr_ps_listen(&run.listeners[0], "127.0.0.1:0", address), ZR_OK, "a server listens at a port");
    run.at[0] = address;
    struct job job = {.run = &run, .work = half_work};
    struct zr_ps_worker_options options = {
        .common = run.options, .addresses = run.at, .arena = ground->arena, .timeout_ns = 300000000};
    options.common.secret = other;
    ps_run_start_one(&run, 0, false);
    tap_result(zr_ps_worker_create(&worker, &options), ZR_ERR_TIMEOUT,
               "a client with another secret is refused");
    tap_is(do_work(&job, ground->arena), 0, "over TCP, with the secret, a worker does its steps");
    tap_ok(ps_run_end(&run), "and the server ends");
}

/* ---- Repeated calls ---------------------------------------------------------------------------------------
 */

/* A server that is served by the test: it handles what lies in its sockets while the worker waits or has
 * given up. */
struct late {
    struct ps_run run;
    zr_ps_server *servers[2];
    _Atomic bool serves, rests, over; /* the servers are to be served / are not served / end */
    _Atomic bool applied;             /* each server has a push */
};

static void *late_worker(void *argument)
{
    struct late *late = argument;
    static float ones[5000], got[2][5000];
    const struct zr_ps_item push[] = {{.table = 0, .values = ones}, {.table = 1, .values = ones}},
                            pull[] = {{.table = 0, .values = got[0]}, {.table = 1, .values = got[1]}};
    const struct zr_ps_push pushed = {.batch = {push, 2}, .rate = 1};
    struct ps_ground ground;
    zr_ps_worker *worker = NULL;
    bool good = ps_ground_open(&ground) == ZR_OK &&
                zr_ps_worker_create(&worker, &(struct zr_ps_worker_options){.common = late->run.options,
                                                                            .addresses = late->run.at,
                                                                            .arena = ground.arena,
                                                                            .timeout_ns = 50000000}) == ZR_OK;
    for (size_t i = 0; i < 5000; i++)
        ones[i] = 1;
    atomic_store(&late->serves, false);
    while (!atomic_load(&late->rests))
        poll(NULL, 0, 1);
    good = good && zr_ps_push(worker, &pushed) == ZR_ERR_TIMEOUT;
    atomic_store(&late->serves, true);
    while (good && !atomic_load(&late->applied))
        poll(NULL, 0, 1);
    for (zr_result result = good ? ZR_ERR_TIMEOUT : ZR_OK; result == ZR_ERR_TIMEOUT;)
        result = zr_ps_push(worker, &pushed);
    for (zr_result result = good ? ZR_ERR_TIMEOUT : ZR_OK; result == ZR_ERR_TIMEOUT;)
        result = zr_ps_pull(worker, &(struct zr_ps_batch){pull, 2});
    for (size_t i = 0; i < 5000; i++)
        good = good && got[0][i % 600] == -1 && got[1][i] == -1;
    while (good && zr_ps_leave(worker, 0) == ZR_ERR_TIMEOUT)
        ;
    zr_ps_worker_destroy(worker);
    ps_ground_close(&ground);
    atomic_store(&late->over, true);
    return good ? late : NULL;
}

static void check_repeats(struct ps_ground *ground)
{
    struct late late = {.run = {.options = {.workers = 1,
                                            .servers = 2,
                                            .timing = {ZR_PS_ASYNC, 0},
                                            .optimizer = plain_sgd(),
                                            .tables = flat,
                                            .tables_count = 2,
                                            .message_bytes = 10496}},
                        .serves = true};
    pthread_t thread;
    struct zr_ps_state states[2];
    void *good;
    bool ended;
    zr_result result = ps_run_listen(&late.run, folder);
    for (unsigned s = 0; s < 2 && result == ZR_OK; s++)
        result = zr_ps_server_create(&late.servers[s],
                                     &(struct zr_ps_server_options){.common = late.run.options,
                                                                    .server = s,
                                                                    .listener = late.run.listeners[s],
                                                                    .arena = ground->arena,
                                                                    .kernels = zr_kernels_cpu(zr_isa_best()),
                                                                    .context = &ground->context});
    pthread_create(&thread, NULL, late_worker, &late);
    while (result == ZR_OK && !atomic_load(&late.over)) {
        atomic_store(&late.rests, !atomic_load(&late.serves));
        if (atomic_load(&late.rests))
            poll(NULL, 0, 1);
        for (unsigned s = 0; s < 2 && result == ZR_OK && !atomic_load(&late.rests); s++)
            result = zr_ps_server_serve(late.servers[s], 1, &ended);
        for (unsigned s = 0; s < 2; s++)
            zr_ps_server_get_state(late.servers[s], &states[s]);
        atomic_store(&late.applied, states[0].pushes > 0 && states[1].pushes > 0);
    }
    pthread_join(thread, &good);
    tap_ok(good != NULL, "a push that is repeated after a timeout is applied once");
    for (unsigned s = 0; s < 2; s++) {
        zr_ps_server_destroy(late.servers[s]);
        close(late.run.listeners[s]);
    }
}

/* ---- Servers that have ended ----------------------------------------------------------------------------
 */

/* A worker that may have left waits for a server that does not answer, and for none that has ended. */
static int leave_without(struct ps_run *run, zr_arena *arena)
{
    struct zr_ps_worker_options options = {
        .common = run->options, .addresses = run->at, .arena = arena, .timeout_ns = 50000000, .leaves = true};
    zr_ps_worker *worker;
    must(ps_run_listen(run, folder) == ZR_OK);
    must(zr_ps_worker_create(&worker, &options) == ZR_ERR_TIMEOUT);
    for (unsigned s = 0; s < 2; s++)
        ps_run_start_one(run, s, false);
    options.timeout_ns = 0;
    must(zr_ps_worker_create(&worker, &options) == ZR_OK);
    while (!run->servers[0])
        poll(NULL, 0, 1);
    ps_run_stop(run, 0);
    close(run->listeners[0]);
    must(zr_ps_leave(worker, 0) == ZR_OK); /* the first server ends before its answer */
    zr_ps_worker_destroy(worker);
    options.worker = 1;
    must(zr_ps_worker_create(&worker, &options) == ZR_OK && zr_ps_leave(worker, 1) == ZR_OK);
    zr_ps_worker_destroy(worker);
    pthread_join(run->threads[1], NULL);
    close(run->listeners[1]);
    must(run->results[1] == ZR_OK && run->leaked[0] + run->leaked[1] == 0);
    return 0;
}

static void check_ended(struct ps_ground *ground)
{
    struct ps_run run = {.options = {.workers = 2,
                                     .servers = 2,
                                     .timing = {ZR_PS_ASYNC, 0},
                                     .optimizer = plain_sgd(),
                                     .tables = flat,
                                     .tables_count = 2}};
    tap_is(leave_without(&run, ground->arena), 0, "a worker leaves servers of which one has ended");
}

/* ---- Refusals ---------------------------------------------------------------------------------------------
 */

static int refused_work(struct job *job, zr_ps_worker *worker)
{
    float numbers[5000] = {0};
    struct zr_ps_item item = {.table = 0, .values = numbers};
    struct zr_ps_push push = {.batch = {&item, 1}, .rate = 1};
    zr_ps_worker *other;
    struct ps_run changed = *job->run;
    struct ps_ground ground;
    struct zr_ps_table tables[2] = {flat[0], flat[1]};
    must(zr_ps_push(worker, &push) == ZR_OK && zr_ps_push(worker, &push) == ZR_ERR_INVALID);
    item.table = 2;
    must(zr_ps_push(worker, &push) == ZR_ERR_INVALID && zr_ps_pull(worker, &push.batch) == ZR_ERR_INVALID);
    item = (struct zr_ps_item){.table = 1, .first = 10, .count = 5, .values = numbers};
    must(zr_ps_push(worker, &push) == ZR_ERR_INVALID && zr_ps_pull(worker, &push.batch) == ZR_OK);
    item.count = 4991;
    must(zr_ps_pull(worker, &push.batch) == ZR_ERR_INVALID);
    push.rate = NAN;
    must(zr_ps_push(worker, &push) == ZR_ERR_INVALID);
    must(zr_ps_leave(worker, 1) == ZR_ERR_INVALID && zr_ps_leave(worker, 7) == ZR_ERR_INVALID);
    tables[1].elements++;
    changed.options.tables = tables;
    must(ps_ground_open(&ground) == ZR_OK);
    must(ps_join(&other, &changed, 1, ground.arena) == ZR_ERR_PEER);
    must(ps_join(&other, job->run, 1, ground.arena) == ZR_OK && zr_ps_leave(other, 1) == ZR_OK);
    zr_ps_worker_destroy(other);
    return ps_ground_close(&ground) == 0 ? 0 : __LINE__;
}

static void check_refusals(struct ps_ground *ground)
{
    struct ps_run run = {.options = {.workers = 2,
                                     .servers = 2,
                                     .timing = {ZR_PS_SYNC, 0},
                                     .optimizer = plain_sgd(),
                                     .tables = flat,
                                     .tables_count = 2},
                         .drivers = 1};
    static const char *const wrong[] = {"",       "sync:1", "ssp",     "ssp:65",
                                        "ssp:-1", "geo:0",  "geo:1.5", "asynch"};
    struct zr_ps_timing timing;
    struct zr_ps_staleness rule;
    struct zr_ps_bytes bytes;
    unsigned accepted = 0;
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
        accepted += zr_ps_timing_read(&timing, wrong[i]) != ZR_ERR_INVALID;
    tap_is(accepted, 0, "names that are no timing are refused");
    tap_ok(zr_ps_timing_read(&timing, "ssp:3") == ZR_OK && timing.kind == ZR_PS_SSP &&
               timing.parameter == 3 && zr_ps_staleness_read(&rule, "dc:") == ZR_ERR_INVALID &&
               zr_ps_staleness_read(&rule, "dc:0.04") == ZR_OK && rule.lambda == 0.04f,
           "and names with numbers are read");
    tap_is(run_all(&run, refused_work, NULL), 0, "invalid calls change nothing, other tables are refused");
    run.options.optimizer.clip = 1;
    tap_result(zr_ps_server_plan(&run.options, 0, ground->arena, &bytes), ZR_ERR_INVALID, "clip is refused");
    run.options.optimizer.clip = 0;
    run.options.staleness.kind = ZR_PS_STALE_DIVIDE;
    tap_result(zr_ps_server_plan(&run.options, 0, ground->arena, &bytes), ZR_ERR_INVALID,
               "and a staleness rule with sync");
}

/* ---- Replicas
 * ---------------------------------------------------------------------------------------------- */

/* The primary stops in the middle; the worker goes on with the replica and finds all that was acknowledged.
 */
static int replica_work(struct job *job, zr_ps_worker *worker)
{
    float ones[5000], got[5000];
    const struct zr_ps_item pull = {.table = 1, .values = got}, push = {.table = 1, .values = ones};
    struct zr_ps_counters counters;
    for (unsigned i = 0; i < 5000; i++)
        ones[i] = 1;
    for (unsigned step = 0; step < 8; step++) {
        if (step == 4)
            ps_run_stop(job->run, 0);
        must(zr_ps_pull(worker, &(struct zr_ps_batch){&pull, 1}) == ZR_OK);
        for (unsigned i = 0; i < 5000; i++)
            must(got[i] == -(float)step);
        must(zr_ps_push(worker, &(struct zr_ps_push){.batch = {&push, 1}, .rate = 1}) == ZR_OK);
        must(zr_ps_end_step(worker) == ZR_OK);
    }
    zr_ps_worker_counters(worker, &counters);
    must(counters.retries > 0);
    return 0;
}

static void check_replica(void)
{
    struct ps_run run = {.options = {.workers = 1,
                                     .servers = 1,
                                     .timing = {ZR_PS_ASYNC, 0},
                                     .staleness = {ZR_PS_STALE_COMPENSATE, 0.5f},
                                     .optimizer = plain_sgd(),
                                     .tables = flat,
                                     .tables_count = 2},
                         .replicated = true};
    tap_is(run_all(&run, replica_work, NULL), 0, "a replica takes over with all acknowledged pushes");
}

int main(void)
{
    struct ps_ground ground;
    snprintf(folder, sizeof folder, "/tmp/zr-ps-XXXXXX");
    seed = run_seed();
    if (!mkdtemp(folder) || ps_ground_open(&ground) != ZR_OK)
        return 1;
    check_sync(&ground);
    check_half();
    check_staleness();
    check_geo();
    check_rows();
    check_crowded();
    check_tcp(&ground);
    check_repeats(&ground);
    check_ended(&ground);
    check_refusals(&ground);
    check_replica();
    tap_is(ps_ground_close(&ground), 0, "nothing leaks");
    rmdir(folder);
    return tap_done();
}
