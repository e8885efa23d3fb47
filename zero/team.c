/* team.c: the compute threads of a rank. Stands on alloc/base/os.h; see team.h.
 *
 * A run is announced by one counter, `round`, on which idle workers spin for a moment and then sleep; its end
 * is the counter `pending` reaching zero. Kernels follow one another within microseconds, so a short spin
 * saves the wake-up; where the cores are all taken a spinning thread would only keep a working one from its
 * core. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/os.h"
#include "zero/comm/spin.h"
#include "zero/team.h"

enum { TEAM_THREADS_MAX = 1024 };
static const uint64_t spin_ns = 20000;          /* longer than the gap between two kernels of a layer */
static const uint64_t sleep_ns = 1000000000ull; /* then look again, in case a wake-up was lost */

typedef void (*team_task)(void *argument, unsigned part, unsigned parts);

struct worker {
    zr_team *team;
    unsigned part;
    struct zr_thread thread;
};

struct zr_team {
    zr_arena *host_arena;
    unsigned threads, started; /* started: workers that run */
    bool spins;
    /* Written by the caller of run() before `round` moves, read by workers after it has. */
    team_task task;
    void *argument;
    bool stopping;
    _Alignas(64) _Atomic uint32_t round;   /* runs announced so far */
    _Atomic uint32_t round_sleepers;       /* workers in or near a sleep on round */
    _Alignas(64) _Atomic uint32_t pending; /* workers that have not ended this round */
    _Atomic uint32_t pending_sleepers;     /* 1 while the caller sleeps on pending */
    _Alignas(64) struct worker workers[];  /* threads - 1 */
};

/* Returns once *word differs from `seen`. The sleeper is counted before it looks a last time, and the other
 * side looks at the count after it has changed the word: one of the two sees the other. */
static void wait_while(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers, bool spins)
{
    if (spins && zr_spin_while(word, seen, spin_ns))
        return;
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen)
        zr_word_wait(word, seen, sleep_ns);
    atomic_fetch_sub(sleepers, 1);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    zr_team *team = worker->team;
    for (uint32_t seen = 0;; seen++) {
        wait_while(&team->round, seen, &team->round_sleepers, team->spins);
        if (team->stopping)
            return NULL;
        team->task(team->argument, worker->part, team->threads);
        if (atomic_fetch_sub(&team->pending, 1) == 1 && atomic_load(&team->pending_sleepers) > 0)
            zr_word_wake_all(&team->pending);
    }
}

static void announce(zr_team *team)
{
    atomic_fetch_add(&team->round, 1);
    if (atomic_load(&team->round_sleepers) > 0)
        zr_word_wake_all(&team->round);
}

static void team_run(void *state, team_task task, void *argument)
{
    zr_team *team = state;
    uint32_t left;
    if (team->started == 0) {
        task(argument, 0, 1);
        return;
    }
    team->task = task;
    team->argument = argument;
    atomic_store(&team->pending, team->started);
    announce(team);
    task(argument, 0, team->threads);
    while ((left = atomic_load(&team->pending)) != 0)
        wait_while(&team->pending, left, &team->pending_sleepers, team->spins);
}

struct zr_parallel zr_team_parallel(zr_team *team)
{
    return (struct zr_parallel){.threads = team->threads, .run = team_run, .state = team};
}

void zr_team_destroy(zr_team *team)
{
    if (!team)
        return;
    team->stopping = true;
    announce(team);
    for (unsigned i = 0; i < team->started; i++)
        zr_thread_join(&team->workers[i].thread);
    zr_arena_free(team->host_arena, team);
}

zr_result zr_team_create(zr_team **out, const struct zr_team_options *options)
{
    struct zr_machine machine;
    void *memory = NULL;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "a team needs a place to go");
    *out = NULL;
    if (!options || !options->host_arena || options->threads == 0 || options->threads > TEAM_THREADS_MAX)
        return zr_fail(ZR_ERR_INVALID, "a team needs an arena and 1 to %d threads", TEAM_THREADS_MAX);
    unsigned workers = options->threads - 1;
    size_t bytes = sizeof(zr_team) + workers * sizeof(struct worker);
    zr_result result = zr_arena_alloc(options->host_arena,
                                      &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &memory);
    if (result != ZR_OK)
        return result;
    zr_team *team = memset(memory, 0, bytes);
    zr_os_machine(&machine);
    team->host_arena = options->host_arena;
    team->threads = options->threads;
    team->spins = (uint64_t)options->threads * (options->ranks ? options->ranks : 1) <= machine.cores_count;
    for (; team->started < workers; team->started++) {
        struct worker *worker = &team->workers[team->started];
        worker->team = team;
        worker->part = team->started + 1;
        result = zr_thread_start(&worker->thread, options->host_arena, 0, work, worker);
        if (result != ZR_OK)
            goto unwind;
    }
    *out = team;
    return ZR_OK;
unwind:
    zr_team_destroy(team);
    return result;
}
