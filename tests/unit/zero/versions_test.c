/* versions_test.c: asynchronous pipelines train as delayed gradients do in one process: a dense trainer gets
 * the parameters that each stage reads before a step and the newest ones before the update. The same bits, in
 * losses and in all parameters after every step; and again after the pipeline was drained. */
#include "tests/support/zero/comm_ranks.h"
#include "tests/support/zero/trainer_rig.h"

enum { STEPS = 13, DRAINED_AFTER = 6, UNITS_MAX = 16 };

static const struct zr_shape llama = {.architecture = ZR_ARCH_LLAMA,
                                      .layers = 4,
                                      .hidden = 24,
                                      .heads = 2,
                                      .kv_heads = 2,
                                      .ffn = 36,
                                      .vocabulary = 61,
                                      .vocabulary_padded = 64,
                                      .sequence = 12,
                                      .batch = 2};

static const struct run {
    enum zr_pipeline_schedule schedule;
    unsigned ranks, micro_batches;
    enum zr_recompute recompute;
    enum zr_precision precision;
    bool vertical_sync;
} runs[] = {{ZR_PIPELINE_2BW, 2, 2, ZR_RECOMPUTE_NONE, ZR_PRECISION_FP32, false},
            {ZR_PIPELINE_2BW, 4, 6, ZR_RECOMPUTE_NONE, ZR_PRECISION_FP32, false},
            {ZR_PIPELINE_2BW, 4, 5, ZR_RECOMPUTE_FULL, ZR_PRECISION_BF16, false},
            {ZR_PIPELINE_PIPEDREAM, 2, 1, ZR_RECOMPUTE_NONE, ZR_PRECISION_FP32, false},
            {ZR_PIPELINE_PIPEDREAM, 4, 1, ZR_RECOMPUTE_FULL, ZR_PRECISION_FP32, false},
            {ZR_PIPELINE_PIPEDREAM, 4, 1, ZR_RECOMPUTE_NONE, ZR_PRECISION_BF16, false},
            {ZR_PIPELINE_PIPEDREAM, 2, 1, ZR_RECOMPUTE_NONE, ZR_PRECISION_BF16, true},
            {ZR_PIPELINE_PIPEDREAM, 4, 1, ZR_RECOMPUTE_FULL, ZR_PRECISION_FP32, true}};

static zr_result open_trainer(struct rig *rig, const struct run *run, const struct zr_stages *stages,
                              bool tied)
{
    struct zr_trainer_state_options options = {.shape = llama,
                                               .stages = stages,
                                               .micro_batches = run->micro_batches,
                                               .precision = run->precision,
                                               .optimizer = rig_adamw};
    options.shape.recompute = run->recompute;
    options.shape.tied = tied;
    options.optimizer.clip = 0; /* of each stage */
    return rig_open_trainer(rig, options);
}

static zr_result load(void *state, unsigned micro_batch)
{
    struct rig_step asked = *(struct rig_step *)state;
    asked.step = asked.step * asked.rig->state.engine->options.micro_batches + micro_batch;
    return rig_load(&asked, micro_batch);
}

static zr_result train(struct rig *rig, unsigned step, double *loss)
{
    struct zr_step_report report;
    struct rig_step asked = {rig, step, (double)NAN};
    zr_result result = zr_trainer_step(
        rig->state.trainer, &(struct zr_step_calls){.state = &asked, .load = load, .update = rig_update},
        &report);
    *loss = asked.loss;
    return result;
}

/* The dense trainer and its parameters after each step. */
struct dense {
    struct rig rig;
    char *pool, *after[STEPS + 1];
    size_t pool_bytes;
    unsigned stages[UNITS_MAX], newest; /* stage of each unit; version that the update changes */
};

static void put_newest(void *state, const struct zr_action *action, bool done)
{
    const struct dense *dense = state;
    if (action->kind == ZR_ACTION_OPEN && !done)
        memcpy(dense->pool, dense->after[dense->newest], dense->pool_bytes);
}

static void keep(struct environment *rank, struct dense *dense, unsigned step)
{
    dense->after[step] = malloc(dense->pool_bytes);
    check(rank, dense->after[step] != NULL, "no memory");
    memcpy(dense->after[step], dense->pool, dense->pool_bytes);
}

/* The units of the cut's stages have the names of the model's. */
static void find_stages(struct environment *rank, struct dense *dense, const struct zr_stages *stages)
{
    const struct zr_model *model = &dense->rig.state.transformer.model;
    size_t modules[UNITS_MAX];
    const struct zr_pipeline pipeline = zr_stages_pipeline(stages, modules);
    for (unsigned r = 0; r < stages->ranks; r++) {
        struct zr_cut cut;
        check_ok(rank, zr_cut_open(
                           &cut, &(struct zr_cut_request){model, &pipeline, stages->ranks, r, rank->arena}));
        for (unsigned u = 0; u < cut.model.list.units_count; u++)
            for (unsigned i = 0; i < model->list.units_count; i++)
                if (strcmp(cut.model.list.units[u].name, model->list.units[i].name) == 0)
                    dense->stages[i] = r;
        zr_cut_close(&cut);
    }
}

/* Trains one step as the stages do `since` steps after the pipeline was filled. */
static void train_dense(struct environment *rank, struct dense *dense, const struct run *run, unsigned step,
                        unsigned since, double *loss)
{
    const struct zr_engine *engine = dense->rig.state.engine;
    dense->newest = step - 1;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        unsigned stale = run->schedule == ZR_PIPELINE_2BW ? 1
                         : run->vertical_sync             ? run->ranks - 1
                                                          : run->ranks - 1 - dense->stages[u];
        const char *from = dense->after[step - 1 - (since < stale ? since : stale)];
        memcpy(engine->units[u].whole, from + ((char *)engine->units[u].whole - dense->pool),
               engine->layout.units[u].padded_elements * engine->parameter_bytes);
    }
    check_ok(rank, train(&dense->rig, step, loss));
    keep(rank, dense, step);
}

static void compare(struct environment *rank, struct rig *rig, struct dense *dense, unsigned step)
{
    size_t total = zr_engine_elements(dense->rig.state.engine);
    float *want = calloc(2 * total, sizeof *want), *got = want + total;
    check(rank, want != NULL, "no memory");
    rig_read(&dense->rig, want);
    memcpy(got, want, total * sizeof *got);
    rig_read(rig, got);
    check(rank, memcmp(got, want, total * sizeof *got) == 0, "step %u: other parameters", step);
    free(want);
}

static void body(struct environment *rank)
{
    const struct run *run = &runs[rank->seed];
    struct rig rig = {.arena = rank->arena, .host_arena = rank->arena};
    struct dense dense = {.rig = {.arena = rank->arena, .host_arena = rank->arena}};
    struct zr_stages stages = {
        .ranks = run->ranks, .schedule = run->schedule, .vertical_sync = run->vertical_sync};
    zr_comm *comm = open_comm(rank), *alone;
    for (unsigned s = 0; s < run->ranks; s++)
        stages.layers[s] = (uint16_t)(llama.layers / run->ranks);
    check_ok(rank, zr_comm_null_create(&alone,
                                       &(struct zr_comm_options){.arena = rank->arena,
                                                                 .host_arena = rank->arena,
                                                                 .kernels = zr_kernels_cpu(zr_isa_best()),
                                                                 .bucket_bytes = 4096},
                                       0, 1));
    dense.rig.mesh = (struct zr_mesh){.world = alone, .data = alone};
    check_ok(rank, open_trainer(&dense.rig, run, NULL, false));
    check_ok(rank,
             zr_mesh_open(&rig.mesh, comm,
                          (struct zr_mesh_shape){.data = 1, .tensor = 1, .pipeline = run->ranks}, 4096));
    check(rank,
          run->schedule != ZR_PIPELINE_PIPEDREAM ||
              (open_trainer(&rig, run, &stages, true) == ZR_ERR_INVALID &&
               strstr(zr_last_error(), "is shared by pipeline ranks")),
          "a tied embedding: %s", zr_last_error());
    check_ok(rank, open_trainer(&rig, run, &stages, false));
    dense.pool = dense.rig.state.engine->tiers[0].parameters;
    dense.pool_bytes =
        dense.rig.state.engine->tiers[0].parameters_elements * dense.rig.state.engine->parameter_bytes;
    dense.rig.state.trainer->observe = put_newest;
    dense.rig.state.trainer->observe_state = &dense;
    find_stages(rank, &dense, &stages);
    keep(rank, &dense, 0);
    for (unsigned step = 1; step <= STEPS && rank->failures == 0; step++) {
        bool again = step > DRAINED_AFTER;
        double loss = 0, want = 0;
        unsigned left = (again ? STEPS : DRAINED_AFTER) - step;
        /* A pipeline that drains is not filled again before it is empty. */
        zr_trainer_expect_steps(rig.state.trainer, left + 2 < run->ranks ? STEPS : left);
        check_ok(rank, train(&rig, step, &loss));
        train_dense(rank, &dense, run, step, step - 1 - (again ? DRAINED_AFTER : 0), &want);
        check(rank, rank->rank + 1 < rank->world || loss == want, "step %u: loss %.9g of %.9g", step, loss,
              want);
        compare(rank, &rig, &dense, step);
        bool drained = step == DRAINED_AFTER || step == STEPS;
        check(rank,
              zr_trainer_evaluate(rig.state.trainer, rig.state.trainer->model->rows, &loss) ==
                  (drained ? ZR_OK : ZR_ERR_INVALID),
              "an evaluation after step %u: %s", step, zr_last_error());
    }
    for (unsigned step = 0; step <= STEPS; step++)
        free(dense.after[step]);
    zr_trainer_state_close(&rig.state);
    zr_trainer_state_close(&dense.rig.state);
    check_ok(rank, zr_mesh_close(&rig.mesh));
    check_ok(rank, zr_comm_destroy(alone));
    check_ok(rank, zr_comm_destroy(comm));
}

int main(void)
{
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        tap_is(launch(&(struct test_case){
                   .body = body, .world = runs[i].ranks, .bucket_bytes = 1 << 16, .seed = i}),
               0, "%s%s on %u ranks, %u micro-batches%s, %s: the bits of delayed gradients",
               zr_pipeline_schedule_name(runs[i].schedule),
               runs[i].vertical_sync ? " with vertical sync" : "", runs[i].ranks, runs[i].micro_batches,
               runs[i].recompute ? ", recomputed" : "", zr_precision_name(runs[i].precision));
    return tap_done();
}
