/* engine_plan_test.c: a program's own byte plan for the engine, as zr_zero.h tells how to make one: its steps
 * are rehearsed on sim, and ranks are held to what the rehearsal reached. */
#include <string.h>

#include "tests/support/zero/engine_rig.h"
#include "tests/support/tap.h"

enum { UNITS = 8, WIDTH = 64, WORLD = 2, STEPS = 3, BUCKET_BYTES = 16 << 10, ACTIVATION_BYTES = 5000 };

static struct zr_parameter parameters[UNITS];
static struct zr_unit units[UNITS];

static void describe(void)
{
    for (unsigned u = 0; u < UNITS; u++) {
        parameters[u] = (struct zr_parameter){
            .shape = {WIDTH, WIDTH}, .unit = u, .group = ZR_GROUP_DECAY, .init_deviation = 0.02f};
        snprintf(parameters[u].name, sizeof parameters[u].name, "u%u.weight", u);
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        units[u].gradient_uses = 1;
    }
}

static struct zr_engine_options options_of(unsigned stage, zr_arena *arena, zr_arena *host_arena,
                                           const struct zr_kernels *kernels,
                                           struct zr_kernel_context *context, zr_comm *comm)
{
    return (struct zr_engine_options){.arena = arena,
                                      .host_arena = host_arena,
                                      .kernels = kernels,
                                      .context = context,
                                      .comm = comm,
                                      .list = {parameters, UNITS, units, UNITS},
                                      .stage = stage,
                                      .seed = 3,
                                      .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f}};
}

/* One unit after the other, backward; an activation of the program's own lies beside it. */
static zr_result make_step(zr_engine *engine, zr_arena *arena, bool dry)
{
    struct zr_step_report report;
    zr_result result = ZR_OK;
    for (unsigned u = UNITS; result == ZR_OK && u-- > 0;) {
        const void *base;
        void *gradients, *activation = NULL;
        bool accumulate;
        result = zr_engine_gather(engine, u, &base);
        if (result != ZR_OK)
            return result;
        result = zr_arena_alloc(
            arena, &(struct zr_request){.bytes = ACTIVATION_BYTES, .tag = ZR_TAG_ACTIVATION}, &activation);
        if (result == ZR_OK)
            result = zr_engine_gradients(engine, u, &gradients, &accumulate);
        if (result == ZR_OK && !dry)
            memset(gradients, 0, WIDTH * WIDTH * sizeof(float));
        zr_engine_release(engine, u);
        zr_arena_free(arena, activation);
        if (result == ZR_OK)
            result = zr_engine_reduce(engine, u);
    }
    return result == ZR_OK ? zr_engine_step(engine, 1e-3f, &report) : result;
}

/* The same on sim, as zr_zero.h has it. */
static zr_result rehearse(struct zr_tag_limits *out, const struct rig *rig, unsigned stage, unsigned rank)
{
    struct zr_tag_limits none = {.total_bytes = SIZE_MAX};
    struct zr_kernel_context context = {.parallel = {.threads = 1}};
    struct zr_engine_options options;
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    zr_engine *engine = NULL;
    void *workspace = NULL;
    zr_result result = zr_backend_sim_create(&backend, NULL);
    for (int tag = 0; tag < ZR_TAG_COUNT; tag++)
        none.by_tag_bytes[tag] = SIZE_MAX;
    if (result == ZR_OK)
        result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "rehearsal"});
    if (result == ZR_OK)
        result = zr_arena_set_tag_limits(arena, &none);
    if (result == ZR_OK)
        result = zr_comm_null_create(&comm,
                                     &(struct zr_comm_options){.arena = arena,
                                                               .host_arena = rig->arena,
                                                               .kernels = zr_kernels_null(),
                                                               .bucket_bytes = BUCKET_BYTES},
                                     rank, WORLD);
    if (result == ZR_OK)
        result = zr_arena_alloc(
            arena, &(struct zr_request){.bytes = rig->context.workspace_bytes, .tag = ZR_TAG_WORKSPACE},
            &workspace);
    if (result == ZR_OK) {
        options = options_of(stage, arena, rig->arena, zr_kernels_null(), &context, comm);
        result = zr_engine_create(&engine, &options);
    }
    for (int step = 0; result == ZR_OK && step < 2; step++) /* the second begins as all others do */
        result = make_step(engine, arena, true);
    if (result == ZR_OK)
        result = zr_arena_get_high_water(arena, out);
    zr_engine_destroy(engine);
    zr_arena_free(arena, workspace);
    if (comm)
        zr_comm_destroy(comm);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    return result;
}

static bool says(const char *words)
{
    return strstr(zr_last_error(), words) != NULL;
}

/* One unit is gathered at a time in the plan; here two are. All ranks do so, and none sends anything. */
static int ask_for_two(struct rig *rig, const struct zr_tag_limits *plan)
{
    const void *base;
    must(plan->by_tag_bytes[ZR_TAG_GATHERED] == WIDTH * WIDTH * sizeof(float));
    must(zr_engine_gather(rig->engine, 2, &base) == ZR_OK);
    must(zr_engine_gather(rig->engine, 5, &base) == ZR_ERR_TAG_LIMIT);
    must(says("unit u5, start_gathering() for state->gathered: 16384 bytes for gathered") &&
         says("would make it 32768") && says("its tag limit is 16384"));
    zr_engine_release(rig->engine, 2);
    return 0;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const unsigned *stage = argument;
    struct zr_tag_limits plan, reached;
    struct rig rig;
    void *more;
    must(rig_open(&rig, &(struct rig_options){.local = local,
                                              .rank = rank,
                                              .bucket_bytes = BUCKET_BYTES,
                                              .kernels = zr_kernels_cpu(ZR_ISA_PLAIN)}) == ZR_OK);
    must(rehearse(&plan, &rig, *stage, rank) == ZR_OK);
    must(zr_arena_set_tag_limits(rig.arena, &plan) == ZR_OK);
    const struct zr_engine_options options =
        options_of(*stage, rig.arena, rig.arena, zr_kernels_cpu(ZR_ISA_PLAIN), &rig.context, rig.comm);
    must(zr_engine_create(&rig.engine, &options) == ZR_OK);
    for (int step = 0; step < STEPS; step++)
        must(make_step(rig.engine, rig.arena, false) == ZR_OK);
    must(zr_arena_get_high_water(rig.arena, &reached) == ZR_OK);
    must(memcmp(&reached, &plan, sizeof plan) == 0);

    int code = *stage == 3 ? ask_for_two(&rig, &plan) : 0;
    must(code == 0);
    must(zr_arena_alloc(rig.arena,
                        &(struct zr_request){.bytes = 2 * ACTIVATION_BYTES, .tag = ZR_TAG_ACTIVATION},
                        &more) == ZR_ERR_TAG_LIMIT);
    must(says("for activation"));
    must(make_step(rig.engine, rig.arena, false) == ZR_OK);

    plan.by_tag_bytes[ZR_TAG_PARAM]--;
    must(zr_arena_set_tag_limits(rig.arena, &plan) == ZR_OK);
    zr_engine_destroy(rig.engine);
    must(zr_engine_create(&rig.engine, &options) == ZR_ERR_TAG_LIMIT && !rig.engine);
    must(says("engine() for parameters: ") && says("for param"));
    must(rig_close(&rig) == 0);
    return 0;
}

int main(void)
{
    describe();
    for (unsigned stage = 0; stage <= 3; stage++)
        tap_is(rig_launch(WORLD, rank_main, &stage), 0, "stage %u is held to its rehearsal, to the byte",
               stage);
    return tap_done();
}
