/* bench_pipeline.c: how long a step takes under each pipeline schedule if modules sleep in place of
 * computing, with clipped gradients and updates after the norm or ahead of it, beside what the simulation of
 * the schedule says, which has no updates. Sleeping ranks need no processor of their own. No test: it prints
 * medians.
 *
 * `bench_pipeline [ranks [micro-batches [milliseconds [update [schedule..]]]]]`; all schedules, 4 ranks, 8
 * micro-batches, and 20 milliseconds for forward, backward, weights and update of a module by default. A rank
 * has two modules. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/zero/engine_rig.h"
#include "zero/step/pipeline.h"

enum { ROUNDS = 3, RANKS_MAX = 8, MODULES_MAX = 2 * RANKS_MAX, ELEMENTS = 64 };

static struct run {
    struct zr_pipeline pipeline;
    unsigned ranks, micro_batches;
    long nanoseconds, update_nanoseconds;
    bool ahead; /* of the norm */
} run;

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static zr_result rest(unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        nanosleep(&(struct timespec){.tv_nsec = run.nanoseconds}, NULL);
    return ZR_OK;
}

static zr_result sleep_forward(struct zr_module_pass *pass)
{
    memset(pass->y, 0, sizeof(float));
    return rest(1);
}

static zr_result sleep_weights(struct zr_module_pass *pass)
{
    memset(pass->gradients[0][0], 0, ELEMENTS * sizeof(float));
    return rest(1);
}

static zr_result sleep_backward(struct zr_module_pass *pass)
{
    if (pass->dx)
        memset(pass->dx, 0, sizeof(float));
    rest(1);
    return pass->splits ? ZR_OK : sleep_weights(pass);
}

static zr_result loss(struct zr_module_pass *pass)
{
    *pass->losses = 0;
    memset(pass->dx, 0, sizeof(float));
    return ZR_OK;
}

static zr_result sleep_update(struct zr_kernel_context *context, const struct zr_update_adamw *update)
{
    (void)context;
    (void)update;
    nanosleep(&(struct timespec){.tv_nsec = run.update_nanoseconds}, NULL);
    return ZR_OK;
}

static const struct zr_module_type sleeper = {.output_columns = 1,
                                              .output_tag = ZR_TAG_ACTIVATION,
                                              .forward = sleep_forward,
                                              .backward = sleep_backward,
                                              .weights = sleep_weights},
                                   last = {.name = "loss", .forward = loss, .backward = loss};

static zr_result load_nothing(void *state, unsigned micro_batch)
{
    (void)state;
    (void)micro_batch;
    return ZR_OK;
}

static zr_result rate_zero(void *state, double mean, float *rate)
{
    (void)state;
    *rate = (float)(0 * mean);
    return ZR_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of a step between barriers of all ranks. */
static int time_steps(struct rig *rig, zr_trainer *trainer, double *median)
{
    double seconds[ROUNDS];
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct zr_step_report report;
        must(zr_comm_barrier(rig->comm) == ZR_OK);
        double begin = now_seconds();
        must(!run.ahead || zr_engine_speculate(zr_trainer_engine(trainer), 0) == ZR_OK);
        must(zr_trainer_step(trainer, &(struct zr_step_calls){.load = load_nothing, .update = rate_zero},
                             &report) == ZR_OK);
        must(zr_comm_barrier(rig->comm) == ZR_OK);
        seconds[i] = now_seconds() - begin;
    }
    qsort(seconds, ROUNDS, sizeof *seconds, by_value);
    *median = seconds[ROUNDS / 2];
    return 0;
}

/* The step's time by simulation, without transfers. */
static int simulate(zr_arena *arena, double *seconds)
{
    struct zr_pipeline_times times[MODULES_MAX];
    struct zr_pipeline_walk walk;
    unsigned stages = run.ranks * zr_pipeline_parts(&run.pipeline), each = 2 * run.ranks / stages;
    for (unsigned s = 0; s < stages; s++)
        for (unsigned kind = 0; kind < ZR_PIPELINE_KINDS; kind++)
            times[s] = (struct zr_pipeline_times){.seconds = {1e-9 * (double)run.nanoseconds * each,
                                                              1e-9 * (double)run.nanoseconds * each *
                                                                  (zr_pipeline_splits(&run.pipeline) ? 1 : 2),
                                                              1e-9 * (double)run.nanoseconds * each}};
    must(zr_pipeline_walk(&walk,
                          &(struct zr_pipeline_request){.pipeline = &run.pipeline,
                                                        .ranks = run.ranks,
                                                        .micro_batches = run.micro_batches,
                                                        .host_arena = arena},
                          times) == ZR_OK);
    *seconds = walk.seconds;
    return 0;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    static struct zr_parameter parameters[MODULES_MAX];
    static struct zr_unit units[MODULES_MAX];
    struct zr_module modules[MODULES_MAX + 1];
    unsigned count = 2 * run.ranks;
    size_t stages[MODULES_MAX], stages_count = run.ranks * zr_pipeline_parts(&run.pipeline);
    struct rig rig;
    zr_comm *alone = NULL;
    zr_trainer *trainer = NULL;
    double median = 0, simulated = 0;
    (void)argument;
    struct zr_kernels kernels = *zr_kernels_cpu(ZR_ISA_PLAIN);
    kernels.update_adamw = sleep_update;
    for (unsigned u = 0; u < count; u++) {
        parameters[u] = (struct zr_parameter){.unit = u, .shape = {ELEMENTS}};
        units[u] = (struct zr_unit){.gradient_uses = 1};
        snprintf(parameters[u].name, sizeof parameters[u].name, "p%u", u);
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        modules[u] = (struct zr_module){.type = &sleeper, .units = {u}, .units_count = 1};
    }
    modules[count] = (struct zr_module){.type = &last};
    for (size_t s = 0; s < stages_count; s++)
        stages[s] = count / stages_count + (s + 1 == stages_count);
    const struct zr_model model = {.list = {parameters, count, units, count, 0},
                                   .modules = modules,
                                   .modules_count = count + 1,
                                   .rows = 1};
    must(rig_open(&rig,
                  &(struct rig_options){
                      .local = local, .rank = rank, .bucket_bytes = 4096, .kernels = &kernels}) == ZR_OK);
    must(zr_comm_null_create(
             &alone,
             &(struct zr_comm_options){
                 .arena = rig.arena, .host_arena = rig.arena, .kernels = rig.kernels, .bucket_bytes = 4096},
             0, 1) == ZR_OK);
    struct zr_pipeline pipeline = run.pipeline;
    pipeline.comm = rig.comm;
    pipeline.modules = stages;
    must(zr_trainer_create(
             &trainer, &(struct zr_trainer_options){
                           .engine =
                               &(struct zr_engine_options){
                                   .struct_bytes = sizeof(struct zr_engine_options),
                                   .arena = rig.arena,
                                   .host_arena = rig.arena,
                                   .kernels = rig.kernels,
                                   .context = &rig.context,
                                   .comm = alone,
                                   .optimizer = {.beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f, .clip = 1},
                                   .offload = {.speculative_bytes = run.ahead ? SIZE_MAX / 2 : 0},
                                   .micro_batches = run.micro_batches},
                           .model = &model,
                           .pipeline = pipeline}) == ZR_OK);
    int code = time_steps(&rig, trainer, &median);
    if (code == 0 && rank == 0)
        code = simulate(rig.arena, &simulated);
    if (code == 0 && rank == 0)
        printf("%-6s %8.4f s a step, %8.4f s by simulation, updates %s the norm\n",
               zr_pipeline_schedule_name(run.pipeline.schedule), median, simulated,
               run.ahead ? "ahead of" : "after");
    fflush(stdout);
    zr_trainer_destroy(trainer);
    zr_comm_destroy(alone);
    return rig_close(&rig) == 0 ? code : 1;
}

static bool is_wanted(int count, char **names)
{
    bool found = count <= 0;
    for (int i = 0; i < count; i++)
        found |= strcmp(names[i], zr_pipeline_schedule_name(run.pipeline.schedule)) == 0;
    return found;
}

int main(int count, char **arguments)
{
    run.ranks = count > 1 ? (unsigned)atoi(arguments[1]) : 4;
    run.micro_batches = count > 2 ? (unsigned)atoi(arguments[2]) : 8;
    run.nanoseconds = 1000000 * (count > 3 ? atol(arguments[3]) : 20);
    run.update_nanoseconds = 1000000 * (count > 4 ? atol(arguments[4]) : 20);
    if (run.ranks < 2 || run.ranks > RANKS_MAX || run.micro_batches < 1 || run.nanoseconds < 0 ||
        run.nanoseconds >= 1000000000 || run.update_nanoseconds < 0 || run.update_nanoseconds >= 1000000000) {
        fprintf(stderr, "bench_pipeline: 2 to %d ranks, 1 micro-batch or more, below 1000 milliseconds\n",
                RANKS_MAX);
        return 2;
    }
    printf("%u ranks, %u micro-batches, %ld ms for each of forward, backward and weights of a module, %ld ms "
           "for its update\n",
           run.ranks, run.micro_batches, run.nanoseconds / 1000000, run.update_nanoseconds / 1000000);
    for (unsigned schedule = 0; schedule < ZR_PIPELINE_SCHEDULES; schedule++) {
        run.pipeline.schedule = (enum zr_pipeline_schedule)schedule;
        unsigned ways = zr_pipeline_is_asynchronous(&run.pipeline) ? 1 : 2;
        for (unsigned way = 0; way < ways && is_wanted(count - 5, arguments + 5); way++) {
            run.ahead = way > 0;
            if (rig_launch(run.ranks, rank_main, NULL) != 0)
                return 1;
        }
    }
    return 0;
}
