/* os.h: the port to the system, for the rooms above that may not name malloc or mmap themselves.
 *
 * Threads with stacks from an arena, waits on shared words, the clock and timeouts, what the machine grants,
 * and libraries loaded at run time. */
#ifndef ZR_OS_H
#define ZR_OS_H

#include <pthread.h>

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* Monotonic time. Replaceable for tests by zr_os_clock_set(); NULL puts the real one back. */
ZR_PRIVATE_API uint64_t zr_os_now_ns(void);
void zr_os_clock_set(uint64_t (*now_ns)(void));

struct zr_thread {
    pthread_t handle;
    void *stack;     /* a block of `arena`, tag other */
    zr_arena *arena; /* NULL: the stack is the caller's */
};

/* Starts a thread on a stack of `stack_bytes` (0: 256 KiB) from `arena` (host visible), all signals blocked
 * except those that a fault of its own raises. The caller
 * owns *out and joins it. ZR_ERR_INVALID: a stack too small for the system; ZR_ERR_HOST_MEMORY: no more
 * threads; else the arena's own failure. */
ZR_PRIVATE_API zr_result zr_thread_start(struct zr_thread *out, zr_arena *arena, size_t stack_bytes,
                                         void *(*run)(void *), void *argument);
/* The same on the caller's stack, which it keeps until the thread has been joined: for a thread whose stack
 * may not come from shared memory. */
struct zr_stack {
    void *pages; /* page aligned */
    size_t bytes;
};
ZR_PRIVATE_API zr_result zr_thread_start_on(struct zr_thread *out, struct zr_stack stack,
                                            void *(*run)(void *), void *argument);
/* Waits for the end of the thread on the caller's stack; asserts that it did not run over. */
ZR_PRIVATE_API void zr_thread_join_on(struct zr_thread *thread);
/* Waits for the end of the thread and frees its stack, if that is its own; asserts that it did not run over.
 * A struct that was never started, all zeros, is fine. */
ZR_PRIVATE_API void zr_thread_join(struct zr_thread *thread);

/* Waits while *word == expected, at most `timeout_ns` (0: no wait at all). Works between processes on shared
 * memory. True when woken or changed, false on time-out; a spurious true is allowed: look again. */
ZR_PRIVATE_API bool zr_word_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);
ZR_PRIVATE_API void zr_word_wake_all(_Atomic uint32_t *word);

/* What this process may use; 0 where the system states no limit. */
struct zr_machine {
    unsigned cores_count; /* that this process may run on */
    size_t page_bytes;
    uint64_t memory_bytes;           /* physical memory */
    uint64_t memory_available_bytes; /* MemAvailable */
    uint64_t cgroup_limit_bytes;     /* smallest memory.max up the tree; 0: none */
    uint64_t cgroup_used_bytes;      /* of the cgroup with that limit, less what the kernel can drop */
    uint64_t address_limit_bytes;    /* RLIMIT_AS; 0: none */
    uint64_t commit_left_bytes;      /* CommitLimit - Committed_AS, at least 1; 0: not strict */
    bool overcommit_strict;          /* overcommit_memory = 2 */
    char cpu_name[64];
};
ZR_PRIVATE_API void zr_os_machine(struct zr_machine *out);
/* The part of it that comes from the files under `root`/proc and `root`/sys, so that tests can make a machine
 * up. Fills in *out, which holds the rest already: the groups only lower cores_count. */
void zr_os_machine_under(const char *root, struct zr_machine *out);

/* Sets a variable of the environment, for this process and those it starts, unless it is set. No other thread
 * may look at the environment meanwhile. False: the system refuses memory. */
bool zr_environment_prefer(const char *name, const char *value);

/* This process's resident memory from /proc/self/status: anonymous, file, shared. Peak is VmHWM. */
struct zr_resident {
    size_t anonymous_bytes, file_bytes, shared_bytes, peak_bytes;
    size_t address_bytes; /* VmSize: what `ulimit -v` counts */
};
zr_result zr_os_resident(struct zr_resident *out);

/* ---- Modules (module.c) -------------------------------------------------------------------------------- */

/* A module is a shared library beside the program or beside zr's library, for what must not be linked: it may
 * be absent, and so may be what it needs itself. It stays loaded to the end of the process. */

/* Loads `file` from the folder of this program, or from ../lib or ../bin beside it, or else from those of the
 * library that this code is in, and finds `symbol` in it. ZR_ERR_UNAVAILABLE with the loader's words: it is
 * not there, or it needs something that is not. */
ZR_PRIVATE_API zr_result zr_module_load(const char *file, const char *symbol, void **out);

/* Finds a library by name (the first of `names` that is there, NULL-ended) and the functions of `symbols`
 * (NULL-ended) in it, in order; a missing one is ZR_ERR_UNAVAILABLE unless its name begins with '?'. Each
 * name is looked for where the system does (LD_LIBRARY_PATH is the user's way to say where), then in the
 * wheels that PyTorch brings: beside the PyTorch of this process, and beside the programs of PATH. */
ZR_PRIVATE_API zr_result zr_module_find(const char *const *names, const char *const *symbols,
                                        void **functions);

/* ---- Timeouts ------------------------------------------------------------------------------------------ */

/* Waiting time as a timeout counts it. */

/* Maximum time counted between two polls. A stopped or starved waiter polls later than that, and the excess
 * does not count: a run that is stopped and continued hours later does not time out. */
#define ZR_TIMEOUT_POLLS_NS 200000000ull

struct zr_timeout {
    uint64_t polled_ns, waited_ns;
};

static inline struct zr_timeout zr_timeout_begin(void)
{
    return (struct zr_timeout){.polled_ns = zr_os_now_ns()};
}

/* Adds the time since the last poll and returns the total. Call it at every poll. */
static inline uint64_t zr_timeout_waited_ns(struct zr_timeout *timeout)
{
    uint64_t now_ns = zr_os_now_ns(), passed_ns = now_ns - timeout->polled_ns;
    timeout->polled_ns = now_ns;
    timeout->waited_ns += passed_ns < ZR_TIMEOUT_POLLS_NS ? passed_ns : ZR_TIMEOUT_POLLS_NS;
    return timeout->waited_ns;
}

#endif
