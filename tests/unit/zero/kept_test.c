/* kept_test.c: a rank that is killed at any action of a step is replaced, and the run has the bits of one
 * that was not interrupted: losses, and all parameters at the end. The other ranks keep their processes, and
 * at most one step is computed again. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/support/zero/comm_ranks.h"
#include "tests/support/zero/trainer_rig.h"
#include "zero/launch/zr_launch.h"

enum {
    STEPS = 4,
    KILLED_STEP = 3,
    RANKS_MAX = 4,
    MEMORIES = 10,
    MEMORY_BYTES = 4 << 20,
    ELEMENTS_MAX = 1 << 18
};

static const struct zr_shape gpt2 = {.architecture = ZR_ARCH_GPT2,
                                     .layers = 2,
                                     .hidden = 16,
                                     .heads = 2,
                                     .vocabulary = 61,
                                     .vocabulary_padded = 64,
                                     .sequence = 8,
                                     .batch = 1};

static const struct run {
    unsigned stage, data, tensor, pipeline, micro_batches;
    enum zr_precision precision;
    enum zr_optimizer_kind optimizer;
    bool untied;
    size_t hidden;                                                             /* 0: 16 */
} runs[] = {{0, 2, 1, 1, 1, ZR_PRECISION_FP32, ZR_OPTIMIZER_ADAMW, false, 80}, /* several windows a unit */
            {1, 2, 1, 1, 2, ZR_PRECISION_FP32, ZR_OPTIMIZER_ADAMW, false, 16},
            {1, 2, 1, 1, 1, ZR_PRECISION_BF16, ZR_OPTIMIZER_ADAMW8, false, 16},
            {2, 2, 1, 1, 1, ZR_PRECISION_BF16, ZR_OPTIMIZER_ADAMW, false, 16},
            {3, 3, 1, 1, 1, ZR_PRECISION_FP32, ZR_OPTIMIZER_SGD, false, 16},
            {3, 2, 1, 1, 2, ZR_PRECISION_BF16, ZR_OPTIMIZER_ADAMW, false, 16},
            {2, 2, 2, 1, 1, ZR_PRECISION_FP32, ZR_OPTIMIZER_ADAMW, false, 16},
            {1, 2, 1, 2, 2, ZR_PRECISION_BF16, ZR_OPTIMIZER_ADAMW, true, 16},
            {3, 1, 2, 2, 2, ZR_PRECISION_FP32, ZR_OPTIMIZER_ADAMW, true, 16}};

/* The rank dies when another rank has decided the step, before it has itself. */
#define UNDECIDED UINT32_MAX

/* Shared by the ranks and the test. */
static struct board {
    unsigned victim,
        at;         /* the rank, and the action of KILLED_STEP before which it dies; ACTIONS_MAX: never */
    unsigned store; /* if not 0, it dies before this store to the record instead, or UNDECIDED */
    bool killed;
    bool backs_up, dropped;      /* with copies on other ranks, the memory of the victim is lost, too */
    unsigned second;             /* if not 0, the next rank dies at this store of its recovery */
    _Atomic bool decided;        /* by a rank, in KILLED_STEP */
    unsigned stores;             /* of rank 0 in KILLED_STEP, at least */
    unsigned actions[RANKS_MAX]; /* of KILLED_STEP */
    unsigned computed[RANKS_MAX][STEPS + 1]; /* how often each step was begun */
    pid_t first[RANKS_MAX], last[RANKS_MAX];
    double losses[RANKS_MAX][STEPS + 1];
    float parameters[ELEMENTS_MAX];
} * board;

/* The kept memory of the ranks. */
static struct memory {
    char bytes[RANKS_MAX][MEMORIES][MEMORY_BYTES];
    char name[RANKS_MAX][MEMORIES][32];
} * memory;

struct at_work {
    unsigned rank, step, actions;
};

static void observe(void *state, const struct zr_action *action, bool done)
{
    struct at_work *work = state;
    if (work->step == KILLED_STEP && done && action->kind == ZR_ACTION_DECIDE)
        atomic_store(&board->decided, true);
    if (work->step != KILLED_STEP || done)
        return;
    if (action->kind == ZR_ACTION_DECIDE && work->rank == board->victim && board->store && !board->killed) {
        board->killed = true;
        while (board->store == UNDECIDED && !atomic_load(&board->decided)) /* by another rank */
            usleep(100);
        if (board->store == UNDECIDED)
            kill(getpid(), SIGKILL);
        zr_fault_set(ZR_FAULT_KEPT, board->store);
    }
    board->stores += action->kind == ZR_ACTION_UPDATE && work->rank == 0 ? 2 : 0;
    if (work->rank == board->victim && work->actions == board->at && !board->killed) {
        board->killed = true;
        kill(getpid(), SIGKILL);
    }
    board->actions[work->rank] = ++work->actions;
}

static zr_result take_kept(void *state, const struct zr_kept_request *request, void **out)
{
    unsigned rank = *(const unsigned *)state, i = 0;
    char(*names)[32] = memory->name[rank];
    while (i < MEMORIES && names[i][0] && strcmp(names[i], request->name) != 0)
        i++;
    if (i == MEMORIES || request->bytes > MEMORY_BYTES)
        return zr_fail(ZR_ERR_MEMORY, "%s: no room", request->name);
    snprintf(names[i], sizeof names[i], "%s", request->name);
    *out = memory->bytes[rank][i];
    return ZR_OK;
}

struct asked {
    struct rig_step step; /* first: rig_load() gets it */
    unsigned rank;
};

/* The loss is known before the update, which a restart may finish. */
static zr_result note_loss(void *state, double loss, float *rate)
{
    const struct asked *asked = state;
    board->losses[asked->rank][asked->step.step] = loss;
    *rate = rig_rate;
    return ZR_OK;
}

static zr_result step_once(struct rig *rig, unsigned rank, unsigned step)
{
    struct zr_step_report report;
    struct asked asked = {{rig, step, 0}, rank};
    return zr_trainer_step(rig->state.trainer,
                           &(struct zr_step_calls){.state = &asked, .load = rig_load, .update = note_loss},
                           &report);
}

/* Trains up to the end, or to the loss of another rank. */
static zr_result train(struct environment *rank, const struct run *run)
{
    struct rig rig = {.arena = rank->arena, .host_arena = rank->arena};
    const struct zr_kept_memory kept = {take_kept, &rank->rank};
    struct at_work work = {.rank = rank->rank};
    struct zr_stages stages = {.ranks = run->pipeline, .schedule = ZR_PIPELINE_1F1B};
    struct zr_trainer_state_options options = {.shape = gpt2,
                                               .stages = run->pipeline > 1 ? &stages : NULL,
                                               .stage = run->stage,
                                               .micro_batches = run->micro_batches,
                                               .precision = run->precision,
                                               .optimizer = rig_adamw,
                                               .kept = &kept};
    const struct zr_comm_options comm = options_of(rank);
    zr_comm *world = NULL;
    options.optimizer.kind = run->optimizer;
    options.optimizer.momentum_factor = 0.9f;
    options.shape.tensor = run->tensor;
    options.shape.hidden = run->hidden;
    if (run->untied)
        options.shape = (struct zr_shape){.architecture = ZR_ARCH_LLAMA,
                                          .layers = 2,
                                          .hidden = 16,
                                          .heads = 2,
                                          .kv_heads = 2,
                                          .ffn = 32,
                                          .vocabulary = 61,
                                          .vocabulary_padded = 64,
                                          .sequence = 8,
                                          .batch = 1,
                                          .tensor = run->tensor};
    for (unsigned s = 0; s < run->pipeline; s++)
        stages.layers[s] = (uint16_t)(gpt2.layers / run->pipeline);
    zr_result result = zr_comm_local_create(&world, &comm, rank->local, rank->rank);
    if (result == ZR_OK)
        result = zr_mesh_open(&rig.mesh, world,
                              (struct zr_mesh_shape){.data = run->data,
                                                     .tensor = run->tensor,
                                                     .pipeline = run->pipeline,
                                                     .backup = board->backs_up},
                              1 << 16);
    if (result == ZR_OK)
        result = rig_open_trainer(&rig, options);
    if (result == ZR_OK) {
        rig.state.trainer->observe = observe;
        rig.state.trainer->observe_state = &work;
        work.step = (unsigned)zr_engine_steps_done(rig.state.engine);
        check(rank, zr_engine_recovered(rig.state.engine) == (work.step > 0), "recovered to step %u",
              work.step);
    }
    while (result == ZR_OK && work.step < STEPS) {
        work.step++;
        work.actions = 0;
        board->computed[rank->rank][work.step]++;
        result = step_once(&rig, rank->rank, work.step);
    }
    if (result == ZR_OK)
        rig_read(&rig, board->parameters);
    if (result == ZR_OK)
        result = zr_comm_barrier(world); /* a loss is reported to all */
    zr_trainer_state_close(&rig.state);
    if (rig.mesh.world)
        zr_mesh_close(&rig.mesh);
    if (world)
        zr_comm_destroy(world);
    return result;
}

static void body(struct environment *rank)
{
    pid_t self = getpid();
    zr_result result;
    if (board->first[rank->rank] == 0)
        board->first[rank->rank] = self;
    board->last[rank->rank] = self;
    if (board->backs_up && self != board->first[rank->rank] && !board->dropped) {
        board->dropped = true;
        madvise(memory->bytes[rank->rank], sizeof memory->bytes[0], MADV_REMOVE);
    }
    do {
        result = train(rank, &runs[rank->seed]);
        if (board->second && result == ZR_ERR_PEER && rank->rank != board->victim) {
            zr_fault_set(ZR_FAULT_KEPT, board->second);
            board->second = 0;
        }
    } while (result == ZR_ERR_PEER && zr_local_rejoin(rank->local, rank->rank) == ZR_OK);
    check(rank, result == ZR_OK, "%s", zr_last_error());
}

/* A kill: before an action of the victim, or before a store. */
struct kill_at {
    size_t run;
    unsigned victim, at, store;
    bool backs_up;
    unsigned second;
};

/* True: all ranks ended well. */
static bool run_killed(struct kill_at k)
{
    const size_t run = k.run;
    const unsigned world = runs[run].data * runs[run].tensor * runs[run].pipeline;
    struct test_case test = {.body = body, .world = world, .bucket_bytes = 1 << 16, .seed = run};
    memset(board, 0, sizeof *board);
    madvise(memory, sizeof *memory, MADV_REMOVE); /* zeros */
    board->victim = k.victim;
    board->at = k.at;
    board->store = k.store;
    board->backs_up = k.backs_up;
    board->second = k.second;
    fflush(stdout);
    return zr_local_launch(&(struct zr_launch_options){.struct_bytes = sizeof(struct zr_launch_options),
                                                       .world = world,
                                                       .rank_main = run_rank,
                                                       .argument = &test,
                                                       .max_restarts = 1 + (k.second > 0)}) == 0;
}

/* What came of the kills of a run. */
struct outcome {
    unsigned kills, wrong, restarted, again;
};

static struct board whole; /* of the run without a kill */

static void add_kill(struct outcome *out, struct kill_at k)
{
    out->kills++;
    if (!run_killed(k) || memcmp(whole.parameters, board->parameters, sizeof whole.parameters) != 0 ||
        memcmp(whole.losses, board->losses, sizeof whole.losses) != 0) {
        printf("# rank %u killed before action %u or store %u, second %u\n", k.victim, k.at, k.store,
               k.second);
        out->wrong++;
    }
    for (unsigned r = 0; r < RANKS_MAX; r++) {
        out->restarted += board->first[r] != board->last[r];
        for (unsigned s = 1; s <= STEPS; s++)
            out->again += board->computed[r][s] >
                          1u + (s + k.backs_up >= KILLED_STEP && s <= KILLED_STEP + 1) * (1 + (k.second > 0));
    }
}

/* Every `stride`th action of each rank, and some stores; with copies the victim's memory is lost, too. */
static void test_run(size_t i, unsigned stride, bool backs_up)
{
    const struct run *run = &runs[i];
    unsigned world = run->data * run->tensor * run->pipeline;
    struct outcome out = {0};
    struct kill_at kill = {.run = i, .at = UINT32_MAX, .backs_up = backs_up};
    bool good = run_killed(kill);
    memcpy(&whole, board, sizeof whole);
    for (kill.victim = 0; kill.victim < world && good; kill.victim++)
        for (kill.at = (unsigned)(i + kill.victim) % stride; kill.at < whole.actions[kill.victim];
             kill.at += stride)
            add_kill(&out, kill);
    kill.at = UINT32_MAX;
    for (kill.store = 1 + (unsigned)i % 2; kill.store <= whole.stores && good;
         kill.store += stride / 24 + 1) {
        kill.victim = kill.store % world;
        add_kill(&out, kill);
    }
    kill.victim = (unsigned)i % world;
    kill.store = UNDECIDED;
    if (good)
        add_kill(&out, kill);
    const unsigned kills = out.kills;
    kill.second = 2;
    if (good && backs_up)
        add_kill(&out, kill);
    tap_ok(good && out.kills > 0 && out.wrong == 0,
           "stage %u, %u x %u x %u ranks, %s, %s: %u kills%s have the bits of an uninterrupted run",
           run->stage, run->data, run->tensor, run->pipeline, zr_precision_name(run->precision),
           zr_optimizer_of(run->optimizer)->name, out.kills, backs_up ? " with their memory" : "");
    tap_is(out.restarted, out.kills + (out.kills - kills), "only killed ranks have new processes");
    tap_is(out.again, 0,
           backs_up ? "at most two steps are computed again" : "only the killed step is computed again");
}

static void *share(size_t bytes)
{
    void *shared =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return shared == MAP_FAILED ? NULL : shared;
}

int main(int argc, char **argv)
{
    unsigned stride = argc > 1 ? (unsigned)atoi(argv[1]) : 97;
    board = share(sizeof *board);
    memory = share(sizeof *memory);
    for (size_t i = 0; i < sizeof runs / sizeof *runs && board && memory; i++)
        test_run(i, stride, false);
    for (size_t i = 0; i < sizeof runs / sizeof *runs && board && memory; i++)
        if (runs[i].data > 1 && (argc > 1 || (i < 5 && i != 2)))
            test_run(i, 2 * stride, true);
    return tap_done();
}
