/* launch_runs.h: runs that a launcher watches, and what is left when they have ended. A run's launcher is a
 * process of its own, its ranks play a scene, and the test looks: the exit code, the reason on stderr, and
 * that no process and no file stays. For programs of one thread, with one run at a time. */
#ifndef ZR_TEST_LAUNCH_RUNS_H
#define ZR_TEST_LAUNCH_RUNS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/system/os.h"
#include "tests/support/tap.h"
#include "zero/comm/zr_comm.h"
#include "zero/launch/control.h"

/* How long a launcher waits for what is turn by turn in launch_turns_test.c. Here any process may be held up,
 * so there is only a limit for what never comes. */
enum { WORLD = 3, PATIENCE_MS = 120000 };

/* What the test and all processes of a run share. */
struct board {
    _Atomic int pids[WORLD];
    _Atomic uint32_t steps;                  /* of rank 0 */
    _Atomic uint32_t saving, saves, cleaned; /* ranks that have begun a long save, saves that are done */
    _Atomic bool saved;                      /* the long save or step, or the run, may end */
    _Atomic uint32_t closed;                 /* a dying rank has closed its sockets */
    char file[64];                           /* "half written" */
};
static struct board *board;

struct scene {
    const char *name;
    int (*act)(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm);
    bool ends_by_itself;
    bool dies_slowly; /* rank 2, before it has a communicator: its sockets close long before it is dead */
    long save_within_ms, timeout_ms;
    uint32_t watched_step; /* of train_slowly(): the test begins in it */
    long layers, layer_ms;
};

static inline void nap_ms(long ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* ---- What a rank does ---------------------------------------------------------------------------------- */

static inline int fail_with_words(unsigned rank)
{
    char line[1200];
    int bytes = snprintf(line, sizeof(line), "rank %u: %s\n", rank, zr_last_error());
    if (write(STDERR_FILENO, line, (size_t)bytes) < 0)
        return 9;
    return 1;
}

/* As one that computes it looks at nothing that the run has for it; it leaves the processors to other tests.
 */
static inline void compute_forever(void)
{
    for (;;)
        nap_ms(1000);
}

/* A training loop in small: a collective and the question for requests in every step. */
static inline int train(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    (void)scene;
    for (uint32_t step = 1;; step++) {
        char note[32];
        uint32_t all[WORLD];
        enum zr_request_kind request;
        snprintf(note, sizeof(note), "step %u", step);
        zr_local_set_status(local, rank, note);
        if (zr_comm_host_all_gather(comm, &step, sizeof(step), all) != ZR_OK ||
            zr_local_request(comm, &request) != ZR_OK)
            return fail_with_words(rank);
        if (rank == 0)
            atomic_store(&board->steps, step);
        if (request == ZR_REQUEST_SAVE || request == ZR_REQUEST_SAVE_AND_END) {
            zr_local_busy(local, rank, true);
            nap_ms(20);
            atomic_fetch_add(&board->saves, 1);
            zr_local_busy(local, rank, false);
        }
        if (request == ZR_REQUEST_SAVE_AND_END) {
            zr_local_request_followed(local, zr_local_end_signal(local));
            return 0;
        }
        nap_ms(1);
    }
}

/* Rank 1 computes for ever after a few steps; the others wait for it. */
static inline int train_and_stick(const struct scene *scene, struct zr_local_world *local, unsigned rank,
                                  zr_comm *comm)
{
    (void)scene;
    for (uint32_t step = 1; step <= 5; step++)
        if (zr_comm_barrier(comm) != ZR_OK)
            return fail_with_words(rank);
    zr_local_set_status(local, rank, "step 5");
    atomic_store(&board->steps, 5);
    if (rank == 1)
        compute_forever();
    return zr_comm_barrier(comm) == ZR_OK ? 0 : fail_with_words(rank);
}

/* All compute for ever: nobody is there to follow a request. */
static inline int stick(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    (void)scene, (void)local, (void)rank, (void)comm;
    atomic_store(&board->steps, 5);
    compute_forever();
    return 0;
}

/* True when it has come to `want`. */
static inline bool wait_for(const _Atomic uint32_t *number, uint32_t want)
{
    for (unsigned ms = 0; ms < PATIENCE_MS && atomic_load(number) < want; ms++)
        nap_ms(1);
    return atomic_load(number) >= want;
}

/* Only remembers and removes, as a handler may. */
static inline void clean_up(void *argument)
{
    (void)argument;
    unlink(board->file);
    atomic_fetch_add(&board->cleaned, 1);
}

static inline int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct scene *scene = argument;
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    atomic_store(&board->pids[rank], (int)getpid());
    if (zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = 64 << 10}) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 64 << 20}) !=
            ZR_OK)
        return fail_with_words(rank);
    if (scene->dies_slowly && rank == 2) {
        close(zr_local_own_sockets()->inbox[rank]);
        atomic_store(&board->closed, 1);
        nap_ms(100);
        raise(SIGKILL);
    }
    if (scene->dies_slowly)
        wait_for(&board->closed, 1);
    struct zr_comm_options options = {.arena = arena,
                                      .host_arena = arena,
                                      .kernels = zr_kernels_cpu(zr_isa_best()),
                                      .bucket_bytes = 4096,
                                      .timeout_ns = (uint64_t)scene->timeout_ms * 1000000};
    if (zr_comm_local_create(&comm, &options, local, rank) != ZR_OK)
        return fail_with_words(rank);
    int code = scene->act(scene, local, rank, comm);
    zr_comm_destroy(comm);
    return code;
}

/* ---- A run under observation --------------------------------------------------------------------------- */

struct run {
    pid_t launcher;
    int said; /* read end of stderr */
    char words[8192];
    size_t words_bytes;
    uint64_t asked_ns; /* when the end was called for */
    int status;
    bool in_time;
};

static inline void listen_to(struct run *run, int timeout_ms)
{
    struct pollfd wait = {.fd = run->said, .events = POLLIN};
    if (poll(&wait, 1, timeout_ms) <= 0)
        return;
    ssize_t bytes = read(run->said, run->words + run->words_bytes, sizeof(run->words) - 1 - run->words_bytes);
    if (bytes > 0)
        run->words_bytes += (size_t)bytes;
    else
        nap_ms(timeout_ms < 2 ? timeout_ms : 2); /* closed: everybody has ended, or nearly */
}

/* Reads on until the run has said so, or for as long as there is patience. */
static inline void listen_for(struct run *run, const char *words)
{
    uint64_t limit_ns = zr_os_now_ns() + PATIENCE_MS * UINT64_C(1000000);
    while (!strstr(run->words, words) && zr_os_now_ns() < limit_ns)
        listen_to(run, 1);
}

/* As ps(1) has it: 'T' stands still, 'Z' is dead; 0: there is no such process. */
static inline char state_of(pid_t pid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t bytes = read(fd, line, sizeof(line) - 1);
    close(fd);
    const char *state = bytes > 0 ? strrchr(line, ')') : NULL;
    return state ? state[2] : 0;
}

static inline bool alive(pid_t pid)
{
    char state = state_of(pid);
    return state && state != 'Z' && state != 'X'; /* a zombie waits for whoever adopted it */
}

/* True when it has come to that state. */
static inline bool wait_state(pid_t pid, char state)
{
    for (unsigned ms = 0; ms < PATIENCE_MS && state_of(pid) != state; ms++)
        nap_ms(1);
    return state_of(pid) == state;
}

static inline int ranks_alive(void)
{
    int count = 0;
    for (unsigned r = 0; r < WORLD; r++)
        count += board->pids[r] != 0 && alive(board->pids[r]);
    return count;
}

/* Starts a run in a process group of its own and waits until its ranks are at work. */
static inline struct run start(const struct scene *scene)
{
    struct run run = {.launcher = -1};
    int ends[2];
    memset(board, 0, sizeof(*board));
    snprintf(board->file, sizeof(board->file), "/tmp/zr-launch-test-%d", (int)getpid());
    int fd = open(board->file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 || pipe2(ends, O_CLOEXEC) != 0)
        exit(tap_done());
    close(fd);
    fflush(stdout);
    run.launcher = fork();
    if (run.launcher == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the test itself is killed */
        dup2(ends[1], STDERR_FILENO);
        signal(SIGINT, SIG_IGN); /* as a shell does for what it starts with & */
        signal(SIGHUP, SIG_DFL); /* the test itself may run under nohup(1) */
        _exit(zr_local_launch(
            &(struct zr_launch_options){.world = WORLD,
                                        .rank_main = rank_main,
                                        .argument = (void *)scene,
                                        .clean_up = clean_up,
                                        .save_within_ns = (uint64_t)scene->save_within_ms * 1000000}));
    }
    close(ends[1]);
    run.said = ends[0];
    if (!scene->ends_by_itself && !wait_for(&board->steps, 5)) {
        tap_ok(false, "%s: the ranks come to work", scene->name);
        kill(-run.launcher, SIGKILL);
        exit(tap_done());
    }
    run.asked_ns = zr_os_now_ns();
    return run;
}

static inline double ms_since(uint64_t start_ns)
{
    return (double)(zr_os_now_ns() - start_ns) / 1e6;
}

/* Waits for the end of the launcher and all ranks, and gathers what was said. */
static inline void finish(struct run *run)
{
    pid_t reaped = 0;
    do {
        listen_to(run, 2);
        if (reaped == 0)
            reaped = waitpid(run->launcher, &run->status, WNOHANG);
    } while ((reaped == 0 || ranks_alive() > 0) && ms_since(run->asked_ns) < PATIENCE_MS);
    run->in_time = reaped != 0 && ranks_alive() == 0;
    for (unsigned i = 0; i < 20; i++)
        listen_to(run, 1);
    close(run->said);
    kill(-run->launcher, SIGKILL); /* whoever is left must not disturb the next case */
    if (reaped == 0)
        waitpid(run->launcher, &run->status, 0);
}

static inline void tell(const struct run *run)
{
    char copy[sizeof(run->words)], *save = NULL;
    memcpy(copy, run->words, sizeof(copy));
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        tap_note("  said: %s", line);
}

/* What every case has in common once it is over. `code`: -signal for a launcher that was killed. */
static inline void check_finished(const struct run *run, const char *name, int code, const char *words)
{
    int got = WIFSIGNALED(run->status) ? -WTERMSIG(run->status) : WEXITSTATUS(run->status);
    tap_is(got, code, "%s: the exit code", name);
    tap_ok(run->in_time, "%s: all has ended (after %.0f ms)", name, ms_since(run->asked_ns));
    if (!tap_ok(!words || strstr(run->words, words), "%s: the reason is on stderr: %s", name,
                words ? words : "none"))
        tell(run);
    bool gone = access(board->file, F_OK) != 0;
    tap_ok(gone == (code != 0), "%s: the half-written file is %s", name, gone ? "gone" : "there");
    unlink(board->file);
}

static inline void check_end(struct run *run, const char *name, int code, const char *words)
{
    finish(run);
    check_finished(run, name, code, words);
}
/* The board, and a test that gets the ranks of launchers that are gone. False: there is no memory. */
static inline bool prepare_runs(void)
{
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return false;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return true;
}

#endif
