/* ps_test.c: parameter servers with their workers: what workers pull beside plain references of the timings,
 * staleness rules, fills, replicas, and refusals. */
#define _GNU_SOURCE
#include <math.h>
#include <stdatomic.h>

#include "tests/support/seed.h"
#include "tests/support/zero/ps_rig.h"

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
    must(ps_run_start(run, folder) == ZR_OK);
    for (unsigned w = 0; w < run->options.workers; w++) {
        jobs[w] = (struct job){.run = run, .worker = w, .work = work, .shared = shared};
        pthread_create(&jobs[w].thread, NULL, job_main, &jobs[w]);
    }
    for (unsigned w = 0; w < run->options.workers; w++) {
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

/* Pushes of a step, table by table; those of several pushes one after the other. */
static int push_step(struct job *job, zr_ps_worker *worker, unsigned step)
{
    char numbers[MIXED][ELEMENTS * sizeof(float)];
    struct zr_ps_item items[MIXED];
    for (unsigned push = 0; push < 2; push++) {
        unsigned count = 0;
        for (unsigned t = 0; t < MIXED; t++) {
            if (push >= (mixed[t].pushes ? mixed[t].pushes : 1))
                continue;
            draw_gradient(&mixed[t], key_of(job->worker, step, t, push), numbers[count]);
            items[count] = (struct zr_ps_item){.table = t, .values = numbers[count]};
            count++;
        }
        must(zr_ps_push(worker, &(struct zr_ps_push){.batch = {items, count},
                                                     .rate = 0.01f * (float)(step + 1)}) == ZR_OK);
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
                                         .tables_count = 2}};
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

int main(void)
{
    struct ps_ground ground;
    snprintf(folder, sizeof folder, "/tmp/zr-ps-XXXXXX");
    seed = run_seed();
    if (!mkdtemp(folder) || ps_ground_open(&ground) != ZR_OK)
        return 1;
    check_sync(&ground);
    check_half();
    tap_is(ps_ground_close(&ground), 0, "nothing leaks");
    if (folder_entries(folder) >= 0)
        tap_note("%s", folder);
    return tap_done();
}
