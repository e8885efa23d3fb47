/* lines.c: trains the model of resmlp.c to detect the direction of a line.
 *     cc lines.c resmlp.c -o lines $(pkg-config --cflags --libs zr_zero) -lm
 *     ./lines 2 3 100          2 ranks, stage 3, 100 steps */
#include <stdio.h>

#include "lines.h"
#include "rank.h"

struct run {
    unsigned ranks, stage, steps;
    struct rank mine;
    zr_trainer *trainer;
    uint64_t step;
};

static uint64_t random_bits(uint64_t place)
{
    place = (place ^ place >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return (place ^ place >> 29) * UINT64_C(0xbf58476d1ce4e5b9) >> 32;
}

/* Each rank and each step has its own pictures. */
static zr_result load(void *state, unsigned micro_batch)
{
    struct run *run = state;
    float *pixels = zr_trainer_input(run->trainer, 0);
    int32_t *classes = zr_trainer_input(run->trainer, 1);
    for (unsigned i = 0; i < PICTURES; i++) {
        uint64_t place = ((run->step + micro_batch) * ZR_MAX_WORLD + run->mine.rank) * PICTURES + i + 1;
        unsigned down = random_bits(place) & 1, line = random_bits(place) >> 1 & 7;
        for (unsigned at = 0; at < PATCHES * PIXELS; at++) {
            unsigned patch = at / PIXELS, x = patch % 4 * 2 + at % 2, y = patch / 4 * 2 + at / 2 % 2;
            float noise = (float)random_bits(place * 64 + at) / (float)(UINT64_C(1) << 32) - 0.5f;
            pixels[i * PATCHES * PIXELS + at] = noise + ((down ? x : y) == line ? 0.8f : 0);
            classes[i * PATCHES + patch] = (int32_t)down;
        }
    }
    return ZR_OK;
}

static zr_result update(void *state, double loss, float *rate)
{
    struct run *run = state;
    *rate = 2e-3f;
    run->step++;
    if (run->mine.rank == 0 && (run->step % 50 == 1 || run->step == run->steps))
        printf("step %u loss %.6f\n", (unsigned)run->step, loss); /* the loss of this rank */
    return ZR_OK;
}

static zr_result train(struct run *run)
{
    const struct zr_engine_options engine = {
        .struct_bytes = sizeof engine,
        .arena = run->mine.arena,
        .host_arena = run->mine.arena,
        .kernels = run->mine.kernels,
        .context = &run->mine.context,
        .comm = run->mine.comm,
        .stage = run->stage,
        .seed = 1,
        .optimizer = {.beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f, .weight_decay = 0.01f, .clip = 1}};
    const struct zr_trainer_options options = {
        .struct_bytes = sizeof options, .engine = &engine, .model = &resmlp};
    const struct zr_step_calls calls = {.state = run, .load = load, .update = update};
    struct zr_step_report report = {0};
    zr_result result = zr_trainer_create(&run->trainer, &options);
    for (unsigned i = 0; i < run->steps && result == ZR_OK; i++)
        result = zr_trainer_step(run->trainer, &calls, &report);
    if (result == ZR_OK && run->mine.rank == 0)
        printf("norm %a\n", report.gradient_norm);
    zr_trainer_destroy(run->trainer);
    return result;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct zr_kernel_limits limits = {
        .rows = ROWS, .sequence = PATCHES, .channels = 64, .heads = 1, .threads = 1};
    struct run *run = argument;
    zr_result result = rank_open(&run->mine, local, rank, &limits);
    if (result == ZR_OK)
        result = train(run);
    if (result != ZR_OK)
        fprintf(stderr, "rank %u: %s\n", rank, zr_last_error());
    rank_close(&run->mine);
    fflush(stdout);
    return result == ZR_OK ? 0 : 3;
}

int main(int argc, char **argv)
{
    struct run run = {0};
    if (argc != 4 || sscanf(argv[1], "%u", &run.ranks) != 1 || sscanf(argv[2], "%u", &run.stage) != 1 ||
        sscanf(argv[3], "%u", &run.steps) != 1) {
        fprintf(stderr, "usage: lines RANKS STAGE STEPS\n");
        return 2;
    }
    const struct zr_launch_options launch = {
        .struct_bytes = sizeof launch, .world = run.ranks, .rank_main = rank_main, .argument = &run};
    return zr_launch(&launch, ZR_CARRIER_LOCAL, argv);
}
