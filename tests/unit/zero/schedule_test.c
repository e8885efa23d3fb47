/* schedule_test.c: lists of actions: what a step of two small models is, written out; rules that every list
 * keeps; and that a byte plan and a run carry out the same list. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/records.h"
#include "tests/support/tap.h"
#include "zero/step/trainer_state.h"

/* ---- Written out --------------------------------------------------------------------------------------- */

enum { TEXT_BYTES = 1 << 16 };

/* One word per action of the passes: G gather, F forward, K store (keep), Q fetch, C recompute, B backward, R
 * release, S reduce (send), U update, P pass on, V receive, and the unit or the module; L load. */
static void append(char *text, const struct zr_action *action)
{
    static const char letters[] = " LGFKQCBWRSUPV";
    size_t used = strlen(text);
    if (action->kind == ZR_ACTION_LOAD)
        snprintf(text + used, TEXT_BYTES - used, "L ");
    else if (action->kind <= ZR_ACTION_RECEIVE)
        snprintf(text + used, TEXT_BYTES - used, "%c%u ", letters[action->kind], action->index);
}

static void print(char *text, const struct zr_actions *schedule)
{
    text[0] = '\0';
    for (size_t i = 0; i < schedule->count; i++)
        append(text, &schedule->actions[i]);
}

static const struct zr_shape tiled = {.layers = 1,
                                      .hidden = 64,
                                      .heads = 2,
                                      .vocabulary = 192,
                                      .vocabulary_padded = 192,
                                      .sequence = 8,
                                      .batch = 2,
                                      .tiles = 2};
static const struct zr_shape gpt2 = {.layers = 2,
                                     .hidden = 64,
                                     .heads = 2,
                                     .vocabulary = 192,
                                     .vocabulary_padded = 192,
                                     .sequence = 8,
                                     .batch = 2};
static const struct zr_shape llama = {.layers = 2,
                                      .hidden = 64,
                                      .heads = 2,
                                      .vocabulary = 192,
                                      .vocabulary_padded = 192,
                                      .sequence = 8,
                                      .batch = 2,
                                      .architecture = ZR_ARCH_LLAMA,
                                      .kv_heads = 1};

/* GPT-2's units: wte 0, wpe 1, h 2 and 3, ln_f 4; modules: embedding 0, h 1 and 2, ln_f 3, head 4. LLaMA's:
 * embed_tokens 0, layers 1 and 2, norm 3, lm_head 4; modules likewise. In tiles: those of wte 0 and 1, wpe 2,
 * those of h 3 to 10, ln_f 11; modules: embedding 0, h 1, ln_f 2, head 3. */
static const struct {
    const char *words;
    const struct zr_shape *shape;
    unsigned micro_batches, distance;
    bool recompute, forward;
    const char *want;
    unsigned fetch; /* distance */
} written[] = {
    {"GPT-2", &gpt2, 1, 1, false, false,
     "L G0 G1 F0 R1 R0 G2 G3 F1 R2 G0 F2 R3 G4 F3 R4 G3 B4 R0 S0 G4 B3 R4 S4 G2 B2 R3 S3 B1 R2 S2 B0 S1 S0 ",
     0},
    {"GPT-2, full recomputation", &gpt2, 1, 1, true, false,
     "L G0 G1 F0 R1 R0 G2 G3 F1 R2 G0 F2 R3 G4 F3 R4 G3 B4 R0 S0 G4 B3 R4 S4 G2 C2 B2 R3 S3 C1 B1 R2 S2 B0 "
     "S1 S0 ",
     0},
    {"GPT-2, full recomputation, inputs stored and fetched", &gpt2, 1, 1, true, false,
     "L G0 G1 F0 R1 R0 G2 G3 F1 K0 R2 G0 F2 K1 R3 G4 F3 R4 G3 B4 R0 S0 G4 Q1 B3 R4 S4 G2 Q0 C2 B2 R3 S3 C1 B1 "
     "R2 S2 B0 S1 S0 ",
     1},
    {"LLaMA, inputs fetched two modules ahead", &llama, 1, 1, false, false,
     "L G0 G1 F0 R0 G2 F1 K0 R1 G4 F2 K1 R2 G3 F3 R3 G2 Q1 B4 R4 S4 G3 Q0 B3 R3 S3 G1 B2 R2 S2 B1 R1 S1 B0 S0 ",
     2},
    {"LLaMA", &llama, 1, 1, false, false,
     "L G0 G1 F0 R0 G2 F1 R1 G4 F2 R2 G3 F3 R3 G2 B4 R4 S4 G3 B3 R3 S3 G1 B2 R2 S2 B1 R1 S1 B0 S0 ", 0},
    {"LLaMA, two units ahead", &llama, 1, 2, false, false,
     "L G0 G1 G2 F0 R0 G4 F1 R1 G1 F2 R2 G3 F3 R3 G2 B4 R4 S4 G3 B3 R3 S3 B2 R2 S2 B1 R1 S1 B0 S0 ", 0},
    {"an evaluation", &gpt2, 1, 1, false, true, "G0 G1 F0 R1 R0 G2 G3 F1 R2 G0 F2 R3 G4 F3 R4 F4 R0 ", 0},
    {"tiles", &tiled, 1, 1, false, false,
     "L G0 G1 F0 R0 G2 F0 R1 G3 F0 R2 G4 F1 R3 G5 F1 R4 G6 F1 R5 G7 F1 R6 G8 F1 R7 G9 F1 R8 G10 F1 R9 G0 F1 "
     "R10 G11 F2 R11 G1 F3 R0 G0 F3 B3 R1 S1 G10 B3 R0 S0 G11 B2 R11 S11 G9 B1 R10 S10 G8 B1 R9 S9 G7 B1 R8 "
     "S8 G6 B1 R7 S7 G5 B1 R6 S6 G4 B1 R5 S5 G3 B1 R4 S4 B1 R3 S3 B0 S2 B0 S1 B0 S0 ",
     0},
    {"tiles, full recomputation, inputs stored and fetched", &tiled, 1, 1, true, false,
     "L G0 G1 F0 R0 G2 F0 R1 G3 F0 R2 G4 F1 R3 G5 F1 R4 G6 F1 R5 G7 F1 R6 G8 F1 R7 G9 F1 R8 G10 F1 R9 G0 F1 "
     "K0 R10 G11 F2 R11 G1 F3 R0 G0 F3 B3 R1 S1 G3 B3 R0 S0 G11 Q0 B2 R11 S11 G4 C1 R3 G5 C1 R4 G6 C1 R5 G7 "
     "C1 R6 G8 C1 R7 G10 C1 R8 G9 B1 R10 S10 G8 B1 R9 S9 G7 B1 R8 S8 G6 B1 R7 S7 G5 B1 R6 S6 G4 B1 R5 S5 G3 "
     "B1 R4 S4 B1 R3 S3 B0 S2 B0 S1 B0 S0 ",
     1},
    {"tiles, an evaluation two units ahead", &tiled, 1, 2, false, true,
     "G0 G1 G2 F0 R0 G3 F0 R1 G4 F0 R2 G5 F1 R3 G6 F1 R4 G7 F1 R5 G8 F1 R6 G9 F1 R7 G10 F1 R8 G0 F1 R9 G1 "
     "F1 R10 G11 F2 R11 F3 R0 F3 R1 ",
     0},
    {"two micro-batches", &llama, 2, 1, false, false,
     "L G0 G1 F0 R0 G2 F1 R1 G4 F2 R2 G3 F3 R3 G2 B4 R4 S4 G3 B3 R3 S3 G1 B2 R2 S2 B1 R1 S1 B0 S0 "
     "L G0 G1 F0 R0 G2 F1 R1 G4 F2 R2 G3 F3 R3 G2 B4 R4 S4 G3 B3 R3 S3 G1 B2 R2 S2 B1 R1 S1 B0 S0 ",
     0},
};

static void test_written(void)
{
    static char text[TEXT_BYTES];
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        struct zr_transformer transformer;
        struct zr_actions schedule;
        zr_result result = zr_transformer_open(&transformer, written[i].shape, NULL, host_arena);
        bool recomputes[16];
        for (size_t m = 0; m < transformer.model.modules_count; m++)
            recomputes[m] = transformer.model.modules[m].type->recomputes;
        const struct zr_schedule_request request = {.model = &transformer.model,
                                                    .micro_batches = written[i].micro_batches,
                                                    .prefetch_distance = written[i].distance,
                                                    .recomputes = written[i].recompute ? recomputes : NULL,
                                                    .fetch_distance = written[i].fetch,
                                                    .host_arena = host_arena};
        if (result == ZR_OK)
            result = written[i].forward ? zr_schedule_forward(&schedule, &request)
                                        : zr_schedule_step(&schedule, &request);
        if (result == ZR_OK)
            print(text, &schedule);
        if (!tap_ok(result == ZR_OK && strcmp(text, written[i].want) == 0, "%s: as written",
                    written[i].words))
            tap_note("got  %s\nwant %s", text, written[i].want);
        zr_actions_drop(&schedule);
        zr_transformer_close(&transformer);
    }
}

/* ---- The end of a step --------------------------------------------------------------------------------- */

/* What transforms make of a step with two micro-batches and of the end that a list of the engine's gives it.
 */
struct end_row {
    const char *words;
    const struct zr_action_transform *by[2];
    const char *want;
};
static const struct end_row ends[] = {
    {"losses at once", {NULL}, "load load drain agree begin collect weigh update read settle count "},
    {"losses with the gradients",
     {&zr_schedule_with_gradients},
     "load load drain collect losses agree begin weigh update read settle count "},
    {"deferred results",
     {&zr_schedule_deferred},
     "load load rate begin collect weigh update read losses agree settle count "},
    {"a graph is captured",
     {&zr_schedule_deferred, &zr_schedule_captured},
     "load load rate begin collect weigh update record launch read losses agree settle count "},
    {"a graph is launched",
     {&zr_schedule_deferred, &zr_schedule_launched},
     "inputs inputs rate begin repeat launch read losses agree settle count "},
};

static void test_ends(void)
{
    static const enum zr_action_kind of_engine[] = {ZR_ACTION_BEGIN,  ZR_ACTION_COLLECT, ZR_ACTION_WEIGH,
                                                    ZR_ACTION_UPDATE, ZR_ACTION_READ,    ZR_ACTION_SETTLE,
                                                    ZR_ACTION_COUNT};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct zr_transformer transformer;
        struct zr_actions end = {.host_arena = host_arena}, step;
        char text[512] = "";
        for (size_t k = 0; k < sizeof of_engine / sizeof *of_engine; k++)
            zr_actions_add(&end, (struct zr_action){.kind = of_engine[k]});
        zr_assert(zr_transformer_open(&transformer, &gpt2, NULL, host_arena) == ZR_OK &&
                  zr_schedule_step(&step, &(struct zr_schedule_request){.model = &transformer.model,
                                                                        .micro_batches = 2,
                                                                        .end = &end,
                                                                        .host_arena = host_arena}) == ZR_OK);
        for (unsigned k = 0; k < 2 && ends[i].by[k]; k++)
            zr_actions_change(&step, ends[i].by[k]);
        for (size_t k = 0; k < step.count; k++)
            if (step.actions[k].kind == ZR_ACTION_LOAD || step.actions[k].kind == ZR_ACTION_UPDATE ||
                step.actions[k].kind > ZR_ACTION_RECEIVE)
                strcat(strcat(text, zr_action_kind_name(step.actions[k].kind)), " ");
        if (!tap_ok(strcmp(text, ends[i].want) == 0, "%s: as written", ends[i].words))
            tap_note("got  %s\nwant %s", text, ends[i].want);
        zr_actions_drop(&step);
        zr_actions_drop(&end);
        zr_transformer_close(&transformer);
    }
}

/* ---- Rules --------------------------------------------------------------------------------------------- */

static zr_result nothing(struct zr_module_pass *pass)
{
    (void)pass;
    return ZR_OK;
}

enum { UNITS = 12, MODULES = 14 };

/* Modules of random units, some shared, some none; of random sizes. */
static void test_rules(unsigned seed)
{
    unsigned short state[3] = {(unsigned short)seed, 4, 2};
    struct zr_parameter parameters[UNITS] = {0};
    struct zr_unit units[UNITS] = {0};
    struct zr_module modules[MODULES] = {0};
    static const struct zr_module_type types[] = {
        {.name = "a", .output_columns = 1, .forward = nothing, .backward = nothing},
        {.name = "b",
         .output_columns = 1,
         .forward = nothing,
         .backward = nothing,
         .backward_reads_none = true,
         .recomputes = true},
        {.name = "c", .forward = nothing, .backward = nothing}};
    unsigned distance = 1 + (unsigned)(nrand48(state) % 4), held = 0, wrong = 0;
    unsigned uses[UNITS] = {0}, reduced[UNITS] = {0};
    bool is_held[UNITS] = {false}, recomputes[MODULES];
    struct zr_actions schedule;

    for (unsigned u = 0; u < UNITS; u++)
        parameters[u] = (struct zr_parameter){.unit = u, .shape = {(size_t)1 << nrand48(state) % 12}};
    for (unsigned m = 0; m < MODULES; m++) {
        modules[m].type = &types[m + 1 < MODULES ? nrand48(state) % 2 : 2];
        recomputes[m] = modules[m].type->recomputes;
        modules[m].units_count = (unsigned)(nrand48(state) % 3);
        for (unsigned i = 0; i < modules[m].units_count; i++)
            modules[m].units[i] = (unsigned)(nrand48(state) % (UNITS / 2)) * 2 + i; /* two that differ */
        for (unsigned i = 0; i < modules[m].units_count; i++)
            uses[modules[m].units[i]]++;
    }
    for (unsigned u = 0; u < UNITS; u++) /* some are frozen */
        units[u].gradient_uses = uses[u] = u % 5 == 3 ? 0 : uses[u];
    const struct zr_model model = {.list = {parameters, UNITS, units, UNITS, 0},
                                   .modules = modules,
                                   .modules_count = MODULES,
                                   .rows = 1};
    zr_result result =
        zr_schedule_step(&schedule, &(struct zr_schedule_request){.model = &model,
                                                                  .micro_batches = 2,
                                                                  .prefetch_distance = distance,
                                                                  .recomputes = recomputes,
                                                                  .host_arena = host_arena});
    for (size_t i = 0; result == ZR_OK && i < schedule.count; i++) {
        const struct zr_action *a = &schedule.actions[i];
        const struct zr_module *m = &modules[a->index % MODULES];
        bool reads = a->kind == ZR_ACTION_FORWARD || a->kind == ZR_ACTION_RECOMPUTE ||
                     (a->kind == ZR_ACTION_BACKWARD && !m->type->backward_reads_none);
        for (unsigned u = 0; reads && u < m->units_count; u++)
            wrong += !is_held[m->units[u]] && a->kind != ZR_ACTION_RECOMPUTE;
        if (a->kind == ZR_ACTION_GATHER || a->kind == ZR_ACTION_RELEASE) {
            wrong += is_held[a->index] == (a->kind == ZR_ACTION_GATHER);
            is_held[a->index] = a->kind == ZR_ACTION_GATHER;
            held += a->kind == ZR_ACTION_GATHER ? 1 : -1u;
        }
        wrong += held > distance + 1 + ZR_MODULE_UNITS_MAX;
        reduced[a->index % UNITS] += a->kind == ZR_ACTION_REDUCE;
    }
    for (unsigned u = 0; u < UNITS; u++)
        wrong += reduced[u] != 2 * uses[u];
    tap_ok(
        result == ZR_OK && wrong == 0 && held == 0,
        "seed %u: what is read is held, at most %u units, and every gradient of what is not frozen is handed over",
        seed, distance + 1 + ZR_MODULE_UNITS_MAX);
    zr_actions_drop(&schedule);
}

/* ---- A plan and a run ---------------------------------------------------------------------------------- */

static void listen(void *state, const struct zr_action *action, bool done)
{
    if (done)
        append(state, action);
}

static zr_result load(void *state, unsigned micro_batch)
{
    (void)state;
    (void)micro_batch;
    return ZR_OK;
}

static zr_result rate(void *state, double loss, float *out)
{
    (void)state;
    *out = loss >= 0 ? 1e-3f : 0;
    return ZR_OK;
}

/* Two steps, on sim as a byte plan does or on memory; the actions of the second, the peak and its tags. */
static zr_result walk(const struct zr_shape *shape, bool real, char *text, struct zr_arena_stats *stats)
{
    const struct zr_kernels *kernels = real ? zr_kernels_cpu(ZR_ISA_PLAIN) : zr_kernels_null();
    struct zr_trainer_state state = {.options = {.arena = NULL}};
    struct zr_step_report report;
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    zr_result result = real ? zr_backend_host_create(&backend, NULL)
                            : zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = 0});
    text[0] = '\0';
    if (result == ZR_OK)
        result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "walk"});
    if (result == ZR_OK)
        result = zr_comm_null_create(
            &comm,
            &(struct zr_comm_options){
                .arena = arena, .host_arena = host_arena, .kernels = kernels, .bucket_bytes = 4096},
            0, 1);
    if (result == ZR_OK)
        result = zr_trainer_state_open(
            &state, &(struct zr_trainer_state_options){.arena = arena,
                                                       .host_arena = host_arena,
                                                       .kernels = kernels,
                                                       .parallel = {.threads = 1},
                                                       .mesh = &(struct zr_mesh){.world = comm, .data = comm},
                                                       .shape = *shape,
                                                       .micro_batches = 2,
                                                       .optimizer = {.epsilon = 1e-8f}});
    for (unsigned step = 0; step < 2 && result == ZR_OK; step++) {
        state.trainer->observe = step == 1 ? listen : NULL;
        state.trainer->observe_state = text;
        result =
            zr_trainer_step(state.trainer, &(struct zr_step_calls){.load = load, .update = rate}, &report);
    }
    if (result == ZR_OK)
        result = zr_arena_get_stats(arena, stats);
    zr_trainer_state_close(&state);
    zr_comm_destroy(comm);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    return result;
}

static void test_plan(const char *words, struct zr_shape shape)
{
    static char planned[TEXT_BYTES], run[TEXT_BYTES];
    for (shape.recompute = ZR_RECOMPUTE_NONE; shape.recompute <= ZR_RECOMPUTE_FULL; shape.recompute++) {
        struct zr_arena_stats plan = {0}, real = {0};
        tap_result(walk(&shape, false, planned, &plan), ZR_OK, "%s, recompute %d: a plan", words,
                   (int)shape.recompute);
        tap_result(walk(&shape, true, run, &real), ZR_OK, "and a run");
        tap_ok(strcmp(planned, run) == 0 && strlen(run) > 100, "of the same actions");
        tap_ok(plan.peak_live_bytes == real.peak_live_bytes &&
                   memcmp(plan.peak_by_tag_bytes, real.peak_by_tag_bytes, sizeof plan.peak_by_tag_bytes) == 0,
               "and the same bytes, %zu at the peak", real.peak_live_bytes);
    }
}

int main(void)
{
    tap_result(records_begin(), ZR_OK, "memory for records");
    test_written();
    test_ends();
    for (unsigned seed = 1; seed <= 20; seed++)
        test_rules(seed);
    test_plan("GPT-2", gpt2);
    test_plan("LLaMA", llama);
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
