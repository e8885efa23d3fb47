/* served_test.c: an engine whose state parameter servers keep, against servers that are plain arrays: what is
 * pulled and pushed when, the bytes of a worker, and states that move to an engine without servers and back.
 */
#include <math.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "tests/support/tap.h"
#include "tests/support/zero/engine_rig.h"
#include "zero/engine/engine.h"

enum { UNITS = 3, FROZEN = 1, MICRO_BATCHES = 2, STEPS = 3, ELEMENTS = 101 + 64 + 7, KINDS = 2 };
static const size_t sizes[UNITS] = {101, 64, 7}, firsts[UNITS] = {0, 101, 165};
static const float rate = 0.5f;

struct servers {
    float state[KINDS][ELEMENTS], sum[ELEMENTS];
    unsigned pulls[UNITS], pushes[UNITS], clocks, reads;
};

static zr_result pull(void *state, const struct zr_server_tensors *to)
{
    struct servers *servers = state;
    const size_t p = to->tensors[0].parameter;
    servers->pulls[p]++;
    memcpy(to->tensors[0].values.at, servers->state[0] + firsts[p], to->tensors[0].elements * sizeof(float));
    return to->count == 1 ? ZR_OK : ZR_ERR_INVALID;
}

static zr_result push(void *state, const struct zr_server_tensors *from)
{
    struct servers *servers = state;
    const size_t p = from->tensors[0].parameter;
    servers->pushes[p]++;
    for (size_t i = 0; i < from->tensors[0].elements; i++)
        servers->sum[firsts[p] + i] += ((const float *)from->tensors[0].values.at)[i];
    return ZR_OK;
}

static zr_result end_step(void *state, float of_step)
{
    struct servers *servers = state;
    servers->clocks++;
    for (size_t i = 0; i < ELEMENTS; i++) {
        servers->state[0][i] -= of_step * servers->sum[i];
        servers->state[1][i] = servers->sum[i];
        servers->sum[i] = 0;
    }
    return ZR_OK;
}

static zr_result read_state(void *state, unsigned kind, const struct zr_server_tensors *to)
{
    ((struct servers *)state)->reads++;
    memcpy(to->tensors[0].values.at,
           ((struct servers *)state)->state[kind] + firsts[to->tensors[0].parameter],
           to->tensors[0].elements * sizeof(float));
    return ZR_OK;
}

static zr_result write_state(void *state, unsigned kind, const struct zr_server_tensors *from)
{
    memcpy(((struct servers *)state)->state[kind] + firsts[from->tensors[0].parameter],
           from->tensors[0].values.at, from->tensors[0].elements * sizeof(float));
    return ZR_OK;
}

static float gradient_of(unsigned step, unsigned micro_batch, size_t element)
{
    unsigned word = (unsigned)element * 2654435761u + step * 40503u + micro_batch * 97u;
    return (float)((int)(word >> 7 & 255) - 128) / 1024.0f;
}

/* A step of an engine; `spoiled`: a gradient of unit 0 is infinite. */
static zr_result step_engine(zr_engine *engine, unsigned step, bool spoiled)
{
    struct zr_step_report report;
    zr_result result = ZR_OK;
    const void *values;
    for (unsigned m = 0; m < MICRO_BATCHES; m++)
        for (unsigned u = UNITS; u-- > 0 && result == ZR_OK;) {
            void *base;
            bool adds;
            result = zr_engine_gather(engine, u, &values);
            zr_engine_release(engine, u);
            if (u == FROZEN || result != ZR_OK)
                continue;
            result = zr_engine_gradients(engine, u, &base, &adds);
            float *to = (float *)base + zr_engine_offset(engine, u);
            for (size_t i = 0; i < sizes[u] && result == ZR_OK; i++)
                to[i] = (adds ? to[i] : 0) + gradient_of(step, m, firsts[u] + i);
            if (spoiled && u == 0)
                to[5] = INFINITY;
            if (result == ZR_OK)
                result = zr_engine_reduce(engine, u);
        }
    return result == ZR_OK ? zr_engine_step(engine, rate, &report) : result;
}

static zr_result open_engine(struct rig *rig, const struct zr_servers *servers, enum zr_reduce_when reduce,
                             unsigned micro_batches)
{
    static struct zr_parameter parameters[UNITS];
    static struct zr_unit units[UNITS];
    for (unsigned u = 0; u < UNITS; u++) {
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        snprintf(parameters[u].name, sizeof parameters[u].name, "p%u", u);
        units[u].gradient_uses = u != FROZEN;
        parameters[u].unit = u;
        parameters[u].shape[0] = sizes[u];
        parameters[u].init_mean = 0.5f;
    }
    zr_result result = rig_open(rig, &(struct rig_options){.isa = ZR_ISA_PLAIN,
                                                           .bucket_bytes = 4096,
                                                           .kernels = zr_kernels_cpu(ZR_ISA_PLAIN)});
    struct zr_engine_options options = {.struct_bytes = sizeof options,
                                        .arena = rig->arena,
                                        .host_arena = rig->arena,
                                        .kernels = rig->kernels,
                                        .context = &rig->context,
                                        .comm = rig->comm,
                                        .list = {parameters, UNITS, units, UNITS, 0},
                                        .micro_batches = micro_batches,
                                        .reduce = reduce,
                                        .optimizer = {.kind = ZR_OPTIMIZER_SGD, .momentum_factor = 0.5f}};
    if (servers)
        options.servers = *servers;
    return result == ZR_OK ? zr_engine_create(&rig->engine, &options) : result;
}

static int train(enum zr_reduce_when reduce)
{
    char path[] = "/tmp/zr-served-XXXXXX";
    static struct servers servers, other;
    const struct zr_servers calls = {true, &servers, pull, push, end_step, read_state, write_state},
                            other_calls = {true, &other, pull, push, end_step, read_state, write_state};
    struct zr_arena_stats stats;
    struct rig served, plain;
    float want[ELEMENTS];
    const unsigned pushes = reduce == ZR_REDUCE_ONCE ? 1 : MICRO_BATCHES;
    memset(&servers, 0, sizeof servers);
    memset(&other, 0, sizeof other);
    must(mkstemp(path) >= 0);
    must(open_engine(&served, &calls, reduce, MICRO_BATCHES) == ZR_OK);
    for (size_t i = 0; i < ELEMENTS; i++) {
        want[i] = 0.5f;
        must((i >= firsts[FROZEN] && i < firsts[FROZEN + 1]) || servers.state[0][i] == 0.5f);
    }
    for (unsigned step = 1; step <= STEPS; step++) {
        must(step_engine(served.engine, step, false) == ZR_OK);
        for (unsigned u = 0; u < UNITS; u++) {
            const unsigned times = u == FROZEN ? 0 : step;
            must(servers.pulls[u] == times && servers.pushes[u] == pushes * times);
            for (size_t i = firsts[u]; i < firsts[u] + sizes[u] && u != FROZEN; i++) {
                want[i] -= rate * (gradient_of(step, 0, i) + gradient_of(step, 1, i));
                must(servers.state[0][i] == want[i]);
            }
        }
        must(servers.clocks == step);
    }
    must(zr_arena_get_stats(served.arena, &stats) == ZR_OK);
    must(stats.live_by_tag_bytes[ZR_TAG_MASTER] == 0 && stats.live_by_tag_bytes[ZR_TAG_OPTIMIZER] == 0 &&
         stats.live_by_tag_bytes[ZR_TAG_OFFLOAD] == 0);
    servers.reads = 0;
    must(zr_engine_save(served.engine, path) == ZR_OK);
    must(servers.reads == KINDS * (UNITS - 1));
    must(step_engine(served.engine, STEPS + 1, true) == ZR_ERR_CORRUPT);
    must(servers.clocks == STEPS && servers.pushes[0] == pushes * STEPS);
    must(rig_close(&served) == 0);

    /* An engine without servers continues, and servers with what it saves. */
    must(open_engine(&plain, NULL, reduce, MICRO_BATCHES) == ZR_OK);
    must(zr_engine_load(plain.engine, path) == ZR_OK && zr_engine_save(plain.engine, path) == ZR_OK);
    for (unsigned u = 0; u < UNITS; u++) {
        const void *base;
        must(zr_engine_gather(plain.engine, u, &base) == ZR_OK);
        must(memcmp((const float *)base + zr_engine_offset(plain.engine, u), want + firsts[u],
                    sizes[u] * sizeof(float)) == 0);
        zr_engine_release(plain.engine, u);
    }
    must(rig_close(&plain) == 0);
    must(open_engine(&served, &other_calls, reduce, MICRO_BATCHES) == ZR_OK);
    must(zr_engine_load(served.engine, path) == ZR_OK && zr_engine_steps_done(served.engine) == STEPS);
    for (unsigned kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < firsts[FROZEN]; i++)
            must(other.state[kind][i] == servers.state[kind][i]);
    must(unlink(path) == 0 && rig_close(&served) == 0);
    return 0;
}

/* ---- Calls that travel --------------------------------------------------------------------------------- */

/* Servers that wait: a pull of a unit but the first one for the step to use unit 0, and a push of
 * the last unit for the gradients of unit 0 to be taken. */
struct waiting {
    sem_t begun, used, taken;
    _Atomic bool late, fails;
    _Atomic unsigned pulls, pushes;
};

static zr_result await_step(struct waiting *waiting, sem_t *step)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    if (sem_timedwait(step, &until) != 0)
        waiting->late = true;
    return waiting->fails ? zr_fail(ZR_ERR_PEER, "parameter server 7: it is lost") : ZR_OK;
}

static zr_result waiting_pull(void *state, const struct zr_server_tensors *to)
{
    struct waiting *waiting = state;
    waiting->pulls++;
    if (to->tensors[0].parameter == 0)
        return ZR_OK;
    sem_post(&waiting->begun);
    return await_step(waiting, &waiting->used);
}

static zr_result waiting_push(void *state, const struct zr_server_tensors *from)
{
    struct waiting *waiting = state;
    waiting->pushes++;
    return from->tensors[0].parameter == 0 ? ZR_OK : await_step(waiting, &waiting->taken);
}

static zr_result no_end(void *state, float of_step)
{
    (void)of_step;
    return ((struct waiting *)state)->pushes == 2 ? ZR_OK : ZR_ERR_INVALID;
}

static zr_result no_state(void *state, unsigned kind, const struct zr_server_tensors *tensors)
{
    (void)state;
    (void)kind;
    (void)tensors;
    return ZR_OK;
}

/* A step whose calls end only while the step goes on. */
static int travel(bool fails)
{
    struct waiting waiting = {.fails = false};
    struct zr_step_report report;
    struct rig rig;
    const void *values;
    bool adds;
    const struct zr_servers calls = {true, &waiting, waiting_pull, waiting_push, no_end, no_state, no_state};
    must(sem_init(&waiting.begun, 0, 0) == 0 && sem_init(&waiting.used, 0, 0) == 0 &&
         sem_init(&waiting.taken, 0, 0) == 0);
    must(open_engine(&rig, &calls, ZR_REDUCE_ONCE, 1) == ZR_OK);
    for (unsigned u = 0; u < UNITS; u++) {
        must(zr_engine_gather(rig.engine, u, &values) == ZR_OK);
        zr_engine_release(rig.engine, u);
        if (u > 0)
            continue;
        must(await_step(&waiting, &waiting.begun) == ZR_OK);
        must(sem_post(&waiting.used) == 0);
    }
    must(waiting.pulls == 2 && !waiting.late);
    waiting.fails = fails;
    for (unsigned u = UNITS; u-- > 0;) {
        void *base;
        if (u == FROZEN)
            continue;
        must(zr_engine_gradients(rig.engine, u, &base, &adds) == ZR_OK);
        memset((float *)base + zr_engine_offset(rig.engine, u), 0, sizes[u] * sizeof(float));
        must(u > 0 || sem_post(&waiting.taken) == 0);
        zr_result result = zr_engine_reduce(rig.engine, u);
        must(result == ZR_OK || (fails && u == 0));
    }
    must(zr_engine_step(rig.engine, rate, &report) == (fails ? ZR_ERR_PEER : ZR_OK));
    must(!waiting.late && waiting.pushes == (fails ? 1 : 2));
    must(!fails || strstr(zr_last_error(), "parameter server 7"));
    sem_destroy(&waiting.begun);
    sem_destroy(&waiting.used);
    sem_destroy(&waiting.taken);
    return rig_close(&rig);
}

int main(void)
{
    tap_is(travel(false), 0, "pulls and pushes end while the step computes");
    tap_is(travel(true), 0, "a failed push fails the step, with the server's name");
    tap_is(train(ZR_REDUCE_EACH), 0, "a push of each gradient");
    tap_is(train(ZR_REDUCE_ONCE), 0, "a push of a step's sum");
    return tap_done();
}
