/* comm_calls_test.c: what ranks note of their operations, and what a rank that waits finds in it: circles of
 * made-up ranks, beside a model that runs them to their end, and ranks that wait for one another. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "tests/support/seed.h"
#include "tests/support/zero/comm_circle.h"
#include "tests/support/zero/comm_ranks.h"
#include "zero/comm/local/local.h"

/* ---- Made-up ranks ------------------------------------------------------------------------------------- */

enum { RANKS = 4, COMMS = 5, ACTIONS_MAX = 64, PENDING_MAX = 64 };
static const unsigned members[COMMS] = {15, 3, 12, 5, 10}; /* bits of ranks */

/* A program: hands an operation in, waits for all of a communicator, or is in a host message. */
enum verb { HAND_IN, WAIT, HOST };
struct action {
    enum verb verb;
    unsigned comm;
};

struct model_rank {
    struct action program[ACTIONS_MAX];
    unsigned count, at;
    bool waits;
    struct zr_comm comms[COMMS];
    uint64_t handed_in[COMMS], begun[COMMS], ended[COMMS], hosts[COMMS], hosts_ended[COMMS];
};

struct model {
    struct zr_local_world *local;
    struct model_rank ranks[RANKS];
    uint64_t random;
};

static const struct zr_comm_table table = {.name = "model", .meets = true};

static struct zr_comm_item item_of(unsigned comm, bool host)
{
    return (struct zr_comm_item){.kind = host ? ZR_COMM_HOST : ZR_COMM_ALL_GATHER,
                                 .all_gather = {.shard_bytes = 64 + comm}};
}

static void append(struct model *model, unsigned rank, struct action action)
{
    struct model_rank *r = &model->ranks[rank];
    r->program[r->count++] = action;
}

/* One order for all, so the programs come to their end; with `swaps`, some have two actions the other way. */
static void draw_programs(struct model *model, unsigned swaps)
{
    for (unsigned i = 0; i < 12; i++) {
        unsigned comm = (unsigned)(xorshift64(&model->random) % COMMS);
        enum verb verb = xorshift64(&model->random) % 3 == 0 ? HOST : HAND_IN;
        for (unsigned r = 0; r < RANKS; r++) {
            if (members[comm] >> r & 1)
                append(model, r, (struct action){verb, comm});
            if (xorshift64(&model->random) % 3 == 0)
                append(model, r, (struct action){WAIT, (unsigned)(xorshift64(&model->random) % COMMS)});
        }
    }
    for (unsigned i = 0; i < swaps; i++) {
        struct model_rank *r = &model->ranks[xorshift64(&model->random) % RANKS];
        unsigned at = (unsigned)(xorshift64(&model->random) % (r->count - 1));
        struct action first = r->program[at];
        r->program[at] = r->program[at + 1];
        r->program[at + 1] = first;
    }
    for (unsigned r = 0; r < RANKS; r++) {
        for (unsigned comm = 0; comm < COMMS; comm++)
            append(model, r, (struct action){WAIT, comm});
        append(model, r, (struct action){HOST, 0});
    }
}

static bool all_began(const struct model *model, unsigned comm, uint64_t number, bool host)
{
    for (unsigned r = 0; r < RANKS; r++)
        if (members[comm] >> r & 1 && (host ? model->ranks[r].hosts : model->ranks[r].begun)[comm] < number)
            return false;
    return true;
}

/* The caller of a rank goes one step, if it can. */
static bool step_caller(struct model *model, struct model_rank *r)
{
    if (r->at == r->count)
        return false;
    struct action action = r->program[r->at];
    struct zr_comm *comm = &r->comms[action.comm];
    struct zr_comm_item item = item_of(action.comm, action.verb == HOST);
    unsigned c = action.comm;
    if (action.verb == HAND_IN) {
        zr_calls_submit(comm, &item);
        r->handed_in[c]++;
    } else if (action.verb == WAIT && !r->waits && r->ended[c] < r->handed_in[c]) {
        zr_calls_wait(comm, r->handed_in[c]);
        return r->waits = true;
    } else if (action.verb == HOST && !r->waits) {
        zr_calls_begin(comm, &item, 0);
        zr_calls_wait(comm, 0);
        r->hosts[c]++;
        return r->waits = true;
    } else if (r->waits) {
        if (action.verb == WAIT ? r->ended[c] < r->handed_in[c] : !all_began(model, c, r->hosts[c], true))
            return false;
        if (action.verb == HOST)
            zr_calls_end(comm, true);
        zr_calls_go_on(comm);
        r->waits = false;
    }
    r->at++;
    return true;
}

/* The thread of a communicator. */
static bool step_thread(struct model *model, struct model_rank *r, unsigned c)
{
    struct zr_comm_item item = item_of(c, false);
    if (r->begun[c] == r->ended[c]) {
        if (r->handed_in[c] == r->begun[c])
            return false;
        zr_calls_begin(&r->comms[c], &item, ++r->begun[c]);
        return true;
    }
    if (!all_began(model, c, r->begun[c], false))
        return false;
    zr_calls_end(&r->comms[c], false);
    r->ended[c]++;
    return true;
}

/* Runs to the end. Returns whether all have ended; counts the ranks that said that they cannot go on, and
 * those of them that ended all the same. */
static bool run_model(struct model *model, unsigned *said, unsigned *wrong)
{
    bool found[RANKS] = {false};
    unsigned idle = 0;
    *said = *wrong = 0;
    while (idle < 400) {
        struct model_rank *r = &model->ranks[xorshift64(&model->random) % RANKS];
        unsigned who = (unsigned)(xorshift64(&model->random) % (COMMS + 1));
        bool moved = who == COMMS ? step_caller(model, r) : step_thread(model, r, who);
        idle = moved ? 0 : idle + 1;
        for (unsigned i = 0; i < RANKS && (moved || idle == 400); i++)
            found[i] = found[i] || zr_calls_check_local(model->local, i) != ZR_OK;
    }
    bool ended = true;
    for (unsigned i = 0; i < RANKS; i++) {
        ended &= model->ranks[i].at == model->ranks[i].count;
        *said += found[i];
        *wrong += found[i] && model->ranks[i].at == model->ranks[i].count;
    }
    return ended;
}

static void open_model(struct model *model, struct zr_local_world *local, uint64_t seed)
{
    unsigned all[RANKS] = {0, 1, 2, 3};
    memset(model, 0, sizeof *model);
    memset(local->ranks, 0, RANKS * sizeof local->ranks[0]);
    model->local = local;
    model->random = seed;
    for (unsigned r = 0; r < RANKS; r++)
        for (unsigned c = 0; c < COMMS; c++) {
            struct zr_comm *comm = &model->ranks[r].comms[c];
            unsigned ranks[RANKS];
            if (!(members[c] >> r & 1))
                continue;
            *comm = (struct zr_comm){.table = &table, .local = local, .run_rank = r};
            for (unsigned p = 0; p < RANKS; p++)
                if (members[c] >> p & 1)
                    ranks[comm->world++] = all[p];
            zr_calls_open(comm, 100 + c, ranks);
        }
}

static void test_models(void)
{
    static struct model model;
    struct zr_local_world *local = calloc(1, sizeof *local + RANKS * sizeof(struct zr_local_rank));
    uint64_t random = run_seed();
    unsigned right = 0, stuck = 0, silent = 0, false_words = 0, said, wrong;
    local->world = RANKS;
    for (unsigned round = 0; round < 600; round++) {
        open_model(&model, local, xorshift64(&random));
        draw_programs(&model, round % 3 * 8);
        bool ended = run_model(&model, &said, &wrong);
        false_words += ended ? said : wrong;
        silent += !ended && said == 0;
        right += ended;
        stuck += !ended;
    }
    tap_ok(right > 200 && stuck > 50, "of 600 made-up runs %u come to their end, and %u stand still", right,
           stuck);
    tap_is((int)false_words, 0, "no rank that gets on, however slowly, is called out of step");
    tap_is((int)silent, 0, "wherever the ranks stand still, one finds out");
    free(local);
}

/* ---- A rank that ends ---------------------------------------------------------------------------------- */

static struct {
    struct zr_local_world *local;
    _Atomic uint32_t word, sleepers;
} last;

/* Does its part and ends while the other sleeps, which finds both when it looks. */
static void *do_the_last_part(void *nothing)
{
    while (atomic_load(&last.sleepers) == 0)
        usleep(100);
    usleep(5000);
    atomic_store(&last.word, 1);
    atomic_store(&last.local->ranks[1].ended, true);
    return nothing;
}

static void test_ends(void)
{
    pthread_t peer;
    last.local = calloc(1, sizeof *last.local + 2 * sizeof(struct zr_local_rank));
    last.local->world = 2;
    pthread_create(&peer, NULL, do_the_last_part, NULL);
    tap_result(zr_local_wait_for(last.local, &(struct zr_local_wait){.word = &last.word,
                                                                     .sleepers = &last.sleepers,
                                                                     .target = 1,
                                                                     .peer = 1,
                                                                     .timeout_ns = UINT64_MAX}),
               ZR_OK, "a rank that ends after its part is not missed");
    pthread_join(peer, NULL);
    free(last.local);
}

/* ---- Ranks --------------------------------------------------------------------------------------------- */

static void body_circle(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    zr_result result = wait_in_circle(comm);
    check(rank, result == ZR_ERR_PEER && names_the_circle(), "%s: %s", zr_result_name(result),
          zr_last_error());
    check(rank, zr_local_is_out_of_step(rank->local), "the run does not know");
    zr_comm_destroy(comm);
}

/* 0 waits for 1 in one group, 1 for 2 in another, and 2 does something else for several looks. */
static void body_slow(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    zr_comm *data = circle_group(comm, "data", 0, 1), *pipeline = circle_group(comm, "pipeline", 1, 2);
    check_ok(rank, zr_comm_barrier(comm));
    if (rank->rank == 2)
        usleep(2500000);
    if (pipeline)
        check_ok(rank, zr_comm_barrier(pipeline));
    if (data)
        check_ok(rank, zr_comm_barrier(data));
    check_ok(rank, zr_comm_barrier(comm));
    check_ok(rank, zr_comm_destroy(pipeline));
    check_ok(rank, zr_comm_destroy(data));
    check_ok(rank, zr_comm_destroy(comm));
}

int main(void)
{
    test_models();
    test_ends();
    tap_is(launch(&(struct test_case){.body = body_circle, .world = 4, .bucket_bytes = 65536}), 1,
           "ranks in three groups that wait in a circle are told what each is in, long before the time-out");
    tap_is(launch(&(struct test_case){.body = body_slow, .world = 3, .bucket_bytes = 65536}), 0,
           "a rank that is slow holds two others up, and is not called out of step");
    return tap_done();
}
