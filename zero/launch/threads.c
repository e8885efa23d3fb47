/* threads.c: ranks that are threads of one process, which launch.c forks: starts them, tells the launcher
 * their exit codes, and lets them end together, because they read each other's memory.
 *
 * The process's first thread only waits: it takes the signals of the run, and the ranks' threads block them.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/slab.h"
#include "alloc/base/system/os.h"
#include "zero/launch/control.h"

#define STACK_BYTES ((size_t)8 << 20)

enum { EXIT_MEMORY = 4 };

/* The thread of a rank. */
struct member {
    struct zr_thread thread;
    const struct zr_local_birth *birth;
    unsigned rank;
};

/* State of the handler of fatal signals, written once before it is installed. */
static struct zr_local_world *watched;
static pid_t launcher;
/* 1 + the rank whose thread this is; 0: another thread. */
static __thread uint32_t own_rank __attribute__((tls_model("initial-exec")));

/* The signal's default action follows, since SA_RESETHAND has restored it. */
static void name_fault(int signal_number)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&watched->faulting, &none, own_rank);
    kill(getpid(), signal_number);
}

static void watch_faults(const struct zr_local_birth *birth)
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    const struct sigaction action = {.sa_handler = name_fault, .sa_flags = (int)SA_RESETHAND};
    watched = birth->local;
    launcher = birth->launcher;
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        sigaction(fatal[i], &action, NULL);
}

static void tell(struct zr_local_world *local, unsigned rank, uint32_t code)
{
    atomic_store(&local->ranks[rank].code, code);
    kill(launcher, SIGCHLD); /* the launcher then looks at its ranks */
}

static void *run_rank(void *argument)
{
    const struct member *self = argument;
    const struct zr_launch_options *options = self->birth->options;
    own_rank = 1 + self->rank;
    int code = options->rank_main(self->birth->local, self->rank, options->argument);
    tell(self->birth->local, self->rank, ZR_LOCAL_HAS_ENDED | ((uint32_t)code & ZR_LOCAL_CODE_MASK));
    return NULL;
}

/* Starts a rank on a stack of which the system backs only pages that are used. */
static zr_result start_member(struct member *member)
{
    struct zr_stack stack = {zr_pages_take(STACK_BYTES), STACK_BYTES};
    if (!stack.pages)
        return ZR_ERR_HOST_MEMORY;
    zr_result result = zr_thread_start_on(&member->thread, stack, run_rank, member);
    if (result != ZR_OK)
        zr_pages_give(stack.pages, stack.bytes);
    return result;
}

int zr_local_run_threads(const struct zr_local_birth *birth)
{
    struct member members[ZR_MAX_WORLD];
    struct zr_local_world *local = birth->local;
    unsigned started = 0;
    zr_result result = ZR_OK;
    watch_faults(birth);
    for (; started < birth->threads && result == ZR_OK; started += result == ZR_OK) {
        members[started] = (struct member){.birth = birth, .rank = birth->rank + started};
        result = start_member(&members[started]);
    }
    if (result != ZR_OK) {
        zr_local_log("rank %u cannot be started: %s", birth->rank + started, zr_last_error());
        zr_local_message_logged(local);
    }
    for (unsigned i = started; i < birth->threads; i++) {
        atomic_fetch_add(&local->parted, 1);
        tell(local, birth->rank + i, ZR_LOCAL_HAS_ENDED | EXIT_MEMORY);
    }
    zr_word_wake_all(&local->parted);
    for (unsigned i = 0; i < started; i++) {
        zr_thread_join_on(&members[i].thread);
        zr_pages_give(members[i].thread.stack, STACK_BYTES);
    }
    return 0; /* the ranks have told their exit codes */
}

bool zr_local_are_threads(const struct zr_local_world *local)
{
    return local && local->threads;
}

void zr_local_fail(struct zr_local_world *local, unsigned rank, int code)
{
    if (zr_local_are_threads(local) && rank < local->world && code != 0)
        tell(local, rank, ZR_LOCAL_FAILS | ((uint32_t)code & ZR_LOCAL_CODE_MASK));
}

void zr_local_part(struct zr_local_world *local)
{
    uint32_t parted;
    if (!zr_local_are_threads(local))
        return;
    atomic_fetch_add(&local->parted, 1);
    zr_word_wake_all(&local->parted);
    while ((parted = atomic_load(&local->parted)) < local->world)
        zr_word_wait(&local->parted, parted, ZR_LOCAL_POLL_NS);
}
