/* tensor_test.c: GPT-2 and LLaMA on tensor ranks train as on one rank that has all of the model. */
#include "tests/support/zero/comm_ranks.h"
#include "tests/support/zero/trainer_rig.h"

enum { STEPS = 4 };

static const struct zr_shape gpt2 = {.layers = 4,
                                     .hidden = 24,
                                     .heads = 12,
                                     .vocabulary = 61,
                                     .vocabulary_padded = 64,
                                     .sequence = 12,
                                     .batch = 2},
                             llama = {.architecture = ZR_ARCH_LLAMA,
                                      .layers = 4,
                                      .hidden = 24,
                                      .heads = 12,
                                      .kv_heads = 12,
                                      .ffn = 36,
                                      .vocabulary = 61,
                                      .vocabulary_padded = 64,
                                      .sequence = 12,
                                      .batch = 2};

static const struct run {
    const struct zr_shape *shape;
    unsigned data, tensor, stage;
    bool sequence_parallel, partition, host;
    enum zr_recompute recompute;
} runs[] = {{&gpt2, 1, 2, 0, false, false, false, ZR_RECOMPUTE_NONE},
            {&gpt2, 1, 3, 0, true, false, true, ZR_RECOMPUTE_FULL},
            {&gpt2, 2, 2, 1, false, true, false, ZR_RECOMPUTE_FULL},
            {&gpt2, 2, 2, 3, true, false, false, ZR_RECOMPUTE_SELECTIVE},
            {&llama, 1, 2, 0, false, true, true, ZR_RECOMPUTE_FULL},
            {&llama, 1, 4, 0, true, false, false, ZR_RECOMPUTE_NONE},
            {&llama, 2, 2, 2, true, false, true, ZR_RECOMPUTE_NONE},
            {&llama, 2, 2, 0, false, true, true, ZR_RECOMPUTE_NONE}};

static double far(double a, double b)
{
    return fabs(a - b) / fabs(b);
}

/* The batches of all data ranks are one, so that their mean is the dense run's. */
static void compare(struct environment *rank, struct rig *rig, struct rig *dense)
{
    for (unsigned step = 0; step < STEPS; step++) {
        double loss = 0, norm = 0, want = 0, want_norm = 0;
        check_ok(rank, rig_train(rig, step, &loss, &norm));
        check_ok(rank, rig_train(dense, step, &want, &want_norm));
        check(rank, far(loss, want) < 1e-6 && far(norm, want_norm) < 1e-5,
              "step %u: loss %.9g of %.9g, norm %.9g of %.9g", step, loss, want, norm, want_norm);
    }
    check_ok(rank, zr_engine_verify_replicas(rig->state.engine));
}

static void body(struct environment *rank)
{
    const struct run *run = &runs[rank->seed];
    struct zr_shape shape = *run->shape;
    struct rig dense, rig = {.arena = rank->arena, .host_arena = rank->arena};
    zr_comm *comm = open_comm(rank);
    check_ok(rank, rig_open(&dense, &shape));
    shape.tensor = run->tensor;
    shape.tensor_rank = rank->rank % run->tensor;
    shape.sequence_parallel = run->sequence_parallel;
    check_ok(rank,
             zr_mesh_open(&rig.mesh, comm,
                          (struct zr_mesh_shape){.data = run->data, .tensor = run->tensor, .pipeline = 1},
                          4096));
    shape.recompute = run->recompute;
    check_ok(rank, rig_open_trainer(&rig, (struct zr_trainer_state_options){
                                              .shape = shape,
                                              .stage = run->stage,
                                              .optimizer = rig_adamw,
                                              .checkpoints = {.partition = run->partition,
                                                              .host = run->host ? rank->arena : NULL}}));
    compare(rank, &rig, &dense);
    zr_trainer_state_close(&rig.state);
    check_ok(rank, zr_mesh_close(&rig.mesh));
    check_ok(rank, zr_comm_destroy(comm));
    check(rank, rig_close(&dense) == 0, "the dense run leaves nothing");
}

/* The last of 4 ranks has rows of the vocabulary, or the 4 are refused. */
static void test_vocabulary(void)
{
    struct zr_shape shape = gpt2;
    shape.tensor = 4, shape.vocabulary = shape.vocabulary_padded = 9;
    tap_ok(zr_shape_check(&shape) == ZR_ERR_INVALID && strstr(zr_last_error(), "--tp 3"),
           "9 rows on 4 ranks leave the last without");
    shape.vocabulary_padded = 10;
    tap_result(zr_shape_check(&shape), ZR_OK, "10 do not");
}

int main(void)
{
    test_vocabulary();
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        tap_is(launch(&(struct test_case){
                   .body = body, .world = runs[i].data * runs[i].tensor, .bucket_bytes = 1 << 16, .seed = i}),
               0, "%s on %u x %u ranks at stage %u%s%s%s", zr_architecture_name(runs[i].shape->architecture),
               runs[i].data, runs[i].tensor, runs[i].stage,
               runs[i].sequence_parallel ? ", sequence parallel" : "",
               runs[i].partition ? ", checkpoints in parts" : "", runs[i].host ? ", on the host" : "");
    return tap_done();
}
