/* click.c: learns clicks by rows of sparse tables, in one process or with workers and parameter servers.
 *     cc click*.c -o click $(pkg-config --cflags --libs zr_zero) -lm
 *     ./click make samples 1000000                                draws samples from a known law
 *     ./click train samples                                       all in one process
 *     ./click train samples --memory-limit 64MiB --file /var/tmp  rows beyond the limit in a file
 *     ./click train samples --workers 4 --servers 2 --ps ssp:3    parameter servers
 *     ./click convert train.txt samples                           Criteo's text instead */
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "click.h"

/* What the processes of a run share. */
struct click_shared {
    sem_t stepped;          /* posted by workers after each step */
    sem_t finished;         /* posted by the observer for each worker: the last evaluation is done */
    _Atomic uint64_t taken; /* samples that workers have begun, if they do not wait for each other */
    uint64_t begin_ns;
    _Atomic uint64_t end_ns; /* of the last step of any worker */
    double truth;            /* AUC of the law; 0.5 of a file that was not drawn */
    unsigned points_count;
    struct point {
        uint64_t samples;
        double seconds, auc;
    } points[CLICK_POINTS_MAX];
    struct zr_ps_state state;
    unsigned steps[ZR_PS_WORKERS_MAX];      /* of each worker */
    double sleep_shares[ZR_PS_WORKERS_MAX]; /* of the time that its steps took */
    struct click_tiers tiers[ZR_PS_SERVERS_MAX];
};

/* One process of a run. */
struct process {
    const struct click_options *options;
    unsigned number, slices; /* the first worker that it computes for, and how many */
    zr_backend *backend;
    struct click_memory memory;
    struct click_model model;
    click_store *store;
    struct click_sample *samples;
    uint64_t *ids;
    float *rows, *row_gradients, *logits;
    struct click_dense *gradient, *sum;
    struct click_score *scores;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t resident_peak(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

static void wait_for(sem_t *posts)
{
    while (sem_wait(posts) != 0 && errno == EINTR)
        ;
}

static zr_result open_process(struct process *process, const struct click_options *options, unsigned batch)
{
    struct zr_arena_options arena = {.struct_bytes = sizeof arena, .name = "click"};
    struct zr_tag_limits unlimited;
    process->options = options;
    TRY(zr_backend_host_create(&process->backend, NULL));
    arena.backend = process->backend;
    TRY(zr_arena_create(&process->memory.others, &arena));
    TRY(zr_arena_create(&process->memory.tables, &arena));
    memset(&unlimited, 0xff, sizeof unlimited); /* limits count the bytes at the peak */
    TRY(zr_arena_set_tag_limits(process->memory.tables, &unlimited));
    return click_model_open(&process->model, process->memory.others, batch);
}

static zr_result take(struct process *process, size_t bytes, void *out /* address of a pointer */)
{
    return zr_arena_alloc(process->memory.others,
                          &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_ACTIVATION}, out);
}

static zr_result open_worker(struct process *process, unsigned number, unsigned slices)
{
    const struct click_run *run = &process->options->run;
    const size_t steps = run->timing.kind == ZR_PS_GEO ? run->timing.parameter : 1,
                 count = (size_t)slices * run->batch;
    process->number = number;
    process->slices = slices;
    TRY(take(process, count * sizeof *process->samples, &process->samples));
    TRY(take(process, steps * count * CLICK_CATEGORIES * sizeof(uint64_t), &process->ids));
    TRY(take(process, count * CLICK_ROWS * sizeof(float), &process->rows));
    TRY(take(process, count * CLICK_ROWS * sizeof(float), &process->row_gradients));
    TRY(take(process, count * sizeof(float), &process->logits));
    TRY(take(process, sizeof *process->gradient, &process->gradient));
    TRY(take(process, sizeof *process->sum, &process->sum));
    TRY(take(process, CLICK_TEST_MAX * sizeof *process->scores, &process->scores));
    return click_store_open(&process->store, run, &process->model, &process->memory, number);
}

static void close_process(struct process *process)
{
    click_store_close(process->store);
    click_model_close(&process->model);
    if (process->memory.tables)
        zr_arena_destroy(process->memory.tables, NULL); /* frees all remaining blocks */
    if (process->memory.others)
        zr_arena_destroy(process->memory.others, NULL);
    if (process->backend)
        zr_backend_destroy(process->backend);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static zr_result read_samples(struct process *process, uint64_t first, unsigned count,
                              struct click_sample *samples, uint64_t *ids)
{
    if (!click_read(&process->options->file, first, count, samples))
        return ZR_ERR_CORRUPT;
    for (size_t i = 0; i < (size_t)count * CLICK_CATEGORIES; i++)
        ids[i] =
            (uint64_t)(i % CLICK_CATEGORIES) << 32 | samples[i / CLICK_CATEGORIES].ids[i % CLICK_CATEGORIES];
    return ZR_OK;
}

/* Step `step` of a round of samples from `first` on; a round has one step, or with geo K. */
static zr_result train_step(struct process *process, uint64_t first, unsigned step)
{
    const struct click_run *run = &process->options->run;
    const unsigned count = process->slices * run->batch;
    const size_t ids = (size_t)count * CLICK_CATEGORIES;
    const struct click_rows values = {process->ids, ids, process->rows},
                            gradients = {process->ids, ids, process->row_gradients},
                            all = {process->ids, run->timing.parameter * ids, NULL};
    const struct click_dense *dense;
    float *sum = &process->sum->w1[0][0], *part = &process->gradient->w1[0][0];
    for (unsigned i = 0; step == 0 && run->timing.kind == ZR_PS_GEO && i < run->timing.parameter; i++)
        TRY(read_samples(process, first + i * count, count, process->samples, process->ids + i * ids));
    if (step == 0 && run->timing.kind == ZR_PS_GEO)
        TRY(click_store_fetch(process->store, &all));
    TRY(read_samples(process, first + step * count, count, process->samples, process->ids));
    TRY(click_store_pull(process->store, &values, false, &dense));
    for (unsigned slice = 0; slice < process->slices; slice++) {
        const size_t at = (size_t)slice * run->batch;
        struct click_batch batch = {.count = run->batch,
                                    .samples = process->samples + at,
                                    .rows = process->rows + at * CLICK_ROWS,
                                    .dense = dense,
                                    .logits = process->logits,
                                    .row_gradients = process->row_gradients + at * CLICK_ROWS,
                                    .dense_gradient = slice == 0 ? process->sum : process->gradient};
        TRY(click_forward(&process->model, &batch));
        TRY(click_backward(&process->model, &batch));
        for (size_t i = 0; slice > 0 && i < sizeof *process->sum / sizeof(float); i++)
            sum[i] += part[i];
    }
    for (size_t i = 0; process->slices > 1 && i < sizeof *process->sum / sizeof(float); i++)
        sum[i] *= 1.0f / (float)process->slices;
    for (size_t i = 0; process->slices > 1 && i < gradients.count * CLICK_WIDTH; i++)
        gradients.values[i] *= 1.0f / (float)process->slices;
    return click_store_push(process->store, &gradients, process->sum);
}

/* AUC of the samples at the end of the file, which are not trained on; truth: of the law that drew them. */
static zr_result evaluate(struct process *process, bool truth, double *out)
{
    const struct click_options *options = process->options;
    const struct click_dense *dense;
    for (uint64_t at = 0, count; at < options->test_count; at += count) {
        count = options->test_count - at < options->run.batch ? options->test_count - at : options->run.batch;
        const struct click_rows rows = {process->ids, count * CLICK_CATEGORIES, process->rows};
        TRY(read_samples(process, options->train_count + at, (unsigned)count, process->samples,
                         process->ids));
        if (!truth) {
            TRY(click_store_pull(process->store, &rows, true, &dense));
            const struct click_batch batch = {.count = (unsigned)count,
                                              .samples = process->samples,
                                              .rows = process->rows,
                                              .dense = dense,
                                              .logits = process->logits};
            TRY(click_forward(&process->model, &batch));
        }
        for (uint64_t i = 0; i < count; i++)
            process->scores[at + i] = (struct click_score){
                truth ? (float)process->samples[i].truth : process->logits[i], process->samples[i].clicked};
    }
    *out = click_auc(process->scores, options->test_count);
    return ZR_OK;
}

/* Adds a point to the curve: the AUC after so many samples. */
static zr_result add_point(struct process *process, uint64_t samples, uint64_t ns)
{
    struct click_shared *shared = process->options->shared;
    struct point *point = &shared->points[shared->points_count];
    *point = (struct point){.samples = samples, .seconds = (double)ns / 1e9};
    TRY(evaluate(process, false, &point->auc));
    shared->points_count++;
    if (!process->options->json) {
        printf("%10llu samples %8.2f s  AUC %.5f\n", (unsigned long long)samples, point->seconds, point->auc);
        fflush(stdout);
    }
    return ZR_OK;
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

/* All parameters and all workers in this process. */
static zr_result run_alone(struct process *process, const struct click_options *options)
{
    const uint64_t each = (uint64_t)options->run.workers * options->run.batch;
    uint64_t trained_ns = 0, begin_ns = 0, next = options->eval_every;
    TRY(open_process(process, options, options->run.batch));
    TRY(open_worker(process, 0, options->run.workers));
    for (uint64_t step = 0; step < options->steps; step++) {
        begin_ns = now_ns();
        TRY(train_step(process, step * each, 0));
        trained_ns += now_ns() - begin_ns;
        if ((step + 1) * each < next && step + 1 < options->steps)
            continue;
        TRY(add_point(process, (step + 1) * each, trained_ns));
        next += options->eval_every;
    }
    options->shared->end_ns = trained_ns;
    options->shared->steps[0] = (unsigned)options->steps;
    TRY(click_store_tiers(process->store, &options->shared->tiers[0]));
    options->shared->tiers[0].resident_peak = resident_peak();
    return evaluate(process, true, &options->shared->truth);
}

static unsigned round_steps(const struct click_run *run)
{
    return run->timing.kind == ZR_PS_GEO ? run->timing.parameter : 1;
}

/* The first sample of a worker's round; UINT64_MAX: it has no more. Where workers do not wait for each other,
 * a faster one has more of the samples. */
static uint64_t next_round(const struct click_options *options, unsigned number, uint64_t round)
{
    const struct click_run *run = &options->run;
    const uint64_t each = (uint64_t)round_steps(run) * run->batch,
                   all = options->steps * run->workers * run->batch;
    bool waits = run->timing.kind != ZR_PS_ASYNC && run->timing.kind != ZR_PS_GEO;
    uint64_t first =
        waits ? (round * run->workers + number) * each : atomic_fetch_add(&options->shared->taken, each);
    return first + each <= all ? first : UINT64_MAX;
}

static zr_result run_worker(struct process *process, const struct click_options *options, unsigned number)
{
    struct click_shared *shared = options->shared;
    double sleep_s = options->sleep_ms / 1e3 * (number == options->slow_worker ? options->slow_factor : 1);
    const struct timespec rest = {(time_t)sleep_s, (long)((sleep_s - (double)(time_t)sleep_s) * 1e9)};
    uint64_t slept_ns = 0;
    TRY(open_process(process, options, options->run.batch));
    TRY(open_worker(process, number, 1));
    const uint64_t begin_ns = now_ns();
    for (uint64_t round = 0, first; (first = next_round(options, number, round)) != UINT64_MAX; round++)
        for (unsigned step = 0; step < round_steps(&options->run); step++) {
            TRY(train_step(process, first, step));
            const uint64_t stepped_ns = now_ns();
            if (sleep_s > 0)
                nanosleep(&rest, NULL);
            const uint64_t end_ns = now_ns();
            slept_ns += sleep_s > 0 ? end_ns - stepped_ns : 0;
            shared->sleep_shares[number] = (double)slept_ns / (double)(end_ns - begin_ns);
            shared->end_ns = end_ns;
            shared->steps[number]++;
            sem_post(&shared->stepped);
        }
    wait_for(&shared->finished);
    return click_store_leave(process->store);
}

static zr_result run_observer(struct process *process, const struct click_options *options)
{
    struct click_shared *shared = options->shared;
    const uint64_t all = options->steps * options->run.workers;
    uint64_t next = options->eval_every;
    TRY(open_process(process, options, options->run.batch));
    TRY(open_worker(process, ZR_PS_OBSERVER, 1));
    shared->begin_ns = now_ns();
    for (uint64_t steps = 1; steps <= all; steps++) {
        wait_for(&shared->stepped);
        if (steps * options->run.batch < next && steps < all)
            continue;
        TRY(add_point(process, steps * options->run.batch, now_ns() - shared->begin_ns));
        next += options->eval_every;
    }
    TRY(evaluate(process, true, &shared->truth));
    TRY(click_store_report(process->store, &shared->state));
    for (unsigned i = 0; i < options->run.workers; i++)
        sem_post(&shared->finished);
    return ZR_OK;
}

static zr_result run_server(struct process *process, const struct click_options *options, unsigned number)
{
    TRY(open_process(process, options, 1));
    TRY(click_serve(&options->run, &process->model, &process->memory, number,
                    &options->shared->tiers[number]));
    options->shared->tiers[number].resident_peak = resident_peak();
    return ZR_OK;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct click_options *options = argument;
    const unsigned servers = options->run.servers, workers = servers > 0 ? options->run.workers : 0;
    struct process process = {0};
    (void)local;
    zr_result result = rank < servers             ? run_server(&process, options, rank)
                       : rank < servers + workers ? run_worker(&process, options, rank - servers)
                       : servers > 0              ? run_observer(&process, options)
                                                  : run_alone(&process, options);
    if (result != ZR_OK && *zr_last_error()) /* click_read() has printed its own */
        fprintf(stderr, "click: %s\n", zr_last_error());
    close_process(&process);
    return result == ZR_OK ? 0 : 3;
}

/* Forks the processes of a run with servers; each server has a socket in a folder of the run. */
static int launch(struct click_options *options)
{
    char folder[] = "/tmp/click.XXXXXX", addresses[ZR_PS_SERVERS_MAX][sizeof folder + 16];
    const struct zr_launch_options launch = {.struct_bytes = sizeof launch,
                                             .world = options->run.servers + options->run.workers + 1,
                                             .rank_main = rank_main,
                                             .argument = options};
    int code = 3;
    unsigned count = 0;
    if (!mkdtemp(folder)) {
        perror("click: /tmp");
        return 3;
    }
    for (; count < options->run.servers; count++) {
        snprintf(addresses[count], sizeof addresses[count], "unix:%s/%u", folder, count);
        options->run.addresses[count] = addresses[count];
        if (zr_ps_listen(&options->run.listeners[count], addresses[count], NULL) != ZR_OK)
            break;
    }
    if (count < options->run.servers)
        fprintf(stderr, "click: %s\n", zr_last_error());
    else
        code = zr_local_launch(&launch);
    while (count-- > 0)
        unlink(addresses[count] + strlen("unix:"));
    rmdir(folder);
    return code;
}

/* ---- Report -------------------------------------------------------------------------------------------- */

static void report_json(const struct click_options *options, double rate)
{
    const struct click_shared *shared = options->shared;
    printf("{\"truth_auc\": %.6f, \"auc\": %.6f, \"samples_per_second\": %.1f, \"curve\": [", shared->truth,
           shared->points[shared->points_count - 1].auc, rate);
    for (unsigned i = 0; i < shared->points_count; i++)
        printf("%s[%llu, %.3f, %.6f]", i ? ", " : "", (unsigned long long)shared->points[i].samples,
               shared->points[i].seconds, shared->points[i].auc);
    printf("], \"staleness\": [");
    for (unsigned i = 0; i < ZR_PS_STALE_BINS; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)shared->state.staleness[i]);
    printf("], \"steps\": [");
    for (unsigned i = 0; i < options->run.workers; i++)
        printf("%s%u", i ? ", " : "", shared->steps[i]);
    printf("], \"sleep_shares\": [");
    for (unsigned i = 0; i < options->run.workers; i++)
        printf("%s%.3f", i ? ", " : "", shared->sleep_shares[i]);
    printf("], \"tiers\": [");
    for (unsigned i = 0; i == 0 || i < options->run.servers; i++) {
        const struct click_tiers *tiers = &shared->tiers[i];
        printf(
            "%s{\"memory_planned_bytes\": %llu, \"memory_measured_bytes\": %llu, \"file_planned_bytes\": %llu, "
            "\"rows\": %llu, \"rows_in_memory\": %llu, \"file_measured_bytes\": %llu, \"file_read_bytes\": %llu, "
            "\"file_written_bytes\": %llu, \"file_changed_bytes\": %llu, \"file_wait_seconds\": %.3f, "
            "\"resident_peak_bytes\": %llu}",
            i ? ", " : "", (unsigned long long)tiers->memory_planned,
            (unsigned long long)tiers->memory_measured, (unsigned long long)tiers->file_planned,
            (unsigned long long)tiers->rows_count, (unsigned long long)tiers->slots_used_count,
            (unsigned long long)tiers->file_measured, (unsigned long long)tiers->file_read,
            (unsigned long long)tiers->file_written, (unsigned long long)tiers->file_changed,
            (double)tiers->file_wait_ns / 1e9, (unsigned long long)tiers->resident_peak);
    }
    puts("]}");
}

static void report_tiers(const struct click_tiers *tiers)
{
    printf("memory %.1f MiB planned, %.1f MiB measured; file %.1f MiB planned",
           (double)tiers->memory_planned / 0x1p20, (double)tiers->memory_measured / 0x1p20,
           (double)tiers->file_planned / 0x1p20);
    if (tiers->file_measured > 0)
        printf(", %.1f MiB measured", (double)tiers->file_measured / 0x1p20);
    if (tiers->rows_count > 0)
        printf("; %llu of %llu rows in memory", (unsigned long long)tiers->slots_used_count,
               (unsigned long long)tiers->rows_count);
    printf("\nresident at most %.1f MiB\n", (double)tiers->resident_peak / 0x1p20);
    if (tiers->file_measured > 0)
        printf("file: %.1f MiB read, %.1f MiB written for %.1f MiB of changed rows, %.1f s of waiting\n",
               (double)tiers->file_read / 0x1p20, (double)tiers->file_written / 0x1p20,
               (double)tiers->file_changed / 0x1p20, (double)tiers->file_wait_ns / 1e9);
}

static void report(const struct click_options *options)
{
    const struct click_shared *shared = options->shared;
    const struct point *last = &shared->points[shared->points_count - 1], *at = shared->points;
    double rate = (double)last->samples * 1e9 / (double)(shared->end_ns - shared->begin_ns);
    if (options->json) {
        report_json(options, rate);
        return;
    }
    printf("%.0f samples/s; AUC %.5f, that of the law %.5f\n", rate, last->auc, shared->truth);
    while (at <= last && at->auc < options->target)
        at++;
    if (options->target > 0 && at <= last)
        printf("AUC %.3f after %.2f s\n", options->target, at->seconds);
    if (options->sleep_ms > 0) {
        printf("sleep of each worker's time:");
        for (unsigned i = 0; i < options->run.workers; i++)
            printf(" %.1f %%", 100 * shared->sleep_shares[i]);
        puts("");
    }
    for (unsigned i = 0; i == 0 || i < options->run.servers; i++)
        report_tiers(&shared->tiers[i]);
}

/* ---- Command line -------------------------------------------------------------------------------------- */

static int train(int argc, char **argv)
{
    struct click_options options = {.slow_worker = UINT32_MAX};
    int code = click_options_read(&options, argc, argv);
    if (code != 0)
        return code;
    options.shared =
        mmap(NULL, sizeof *options.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (options.shared == MAP_FAILED || sem_init(&options.shared->stepped, 1, 0) != 0 ||
        sem_init(&options.shared->finished, 1, 0) != 0) {
        perror("click: shared memory");
        return 3;
    }
    code = options.run.servers > 0 ? launch(&options) : rank_main(NULL, 0, &options);
    if (code == 0)
        report(&options);
    return code;
}

int main(int argc, char **argv)
{
    struct click_header how = {.seed = 1, .vocabulary_max = UINT32_MAX};
    const char *mode = argc > 1 ? argv[1] : "";
    double numbers[3] = {0, 1, UINT32_MAX};
    if (strcmp(mode, "convert") == 0 && argc == 4)
        return click_convert(argv[2], argv[3]);
    if (strcmp(mode, "train") == 0)
        return train(argc - 1, argv + 1);
    if (strcmp(mode, "make") != 0 || argc < 4 || argc > 6)
        return click_usage("", "");
    for (int i = 3; i < argc; i++)
        if (!click_number_read(argv[i], i == 4 ? 0 : 1, i == 5 ? UINT32_MAX : 1e12, &numbers[i - 3]))
            return click_usage("click: not a number, or out of range: ", argv[i]);
    how.samples_count = (uint64_t)numbers[0];
    how.seed = (uint64_t)numbers[1];
    how.vocabulary_max = (uint32_t)numbers[2];
    return click_make(argv[2], &how);
}
