/* launch_test.c: how runs end. Each case runs a launcher in a process of its own, sends the signals that a
 * terminal, a batch system or an out-of-memory killer would send, and looks at what is left: the exit code,
 * the time it took, the reason on stderr, and that no process and no file stays. */
#define _GNU_SOURCE
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

#include "tests/pace.h"
#include "tests/seed.h"
#include "tests/tap.h"
#include "zero/comm/local.h"

/* How long a launcher waits for what is turn by turn in launch_turns_test.c. Here it may be held up while
 * this program is not, so the limit is only for what never ends. It holds at the pace of this program;
 * PATIENCE_MS, by the clock, is for what must come at some time. */
enum { WORLD = 3, END_LIMIT_MS = 10000, PATIENCE_MS = 120000 };

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

static void nap_ms(long ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* ---- What a rank does ------------------------------------------------------------------------------- */

static int fail_with_words(unsigned rank)
{
    char line[1200];
    int bytes = snprintf(line, sizeof(line), "rank %u: %s\n", rank, zr_last_error());
    if (write(STDERR_FILENO, line, (size_t)bytes) < 0)
        return 9;
    return 1;
}

static void compute_forever(void)
{
    for (volatile uint64_t i = 0;; i++) {
#if defined(__SANITIZE_THREAD__) /* which holds signals back until a call that it knows */
        if (i % 1000000 == 0)
            nap_ms(1);
#endif
    }
}

/* A training loop in small: a collective and the question for requests in every step. */
static int train(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    (void)scene;
    for (uint32_t step = 1;; step++) {
        char note[32];
        uint32_t all[WORLD];
        enum zr_request_kind request;
        snprintf(note, sizeof(note), "step %u", step);
        zr_local_note(local, rank, note);
        if (zr_comm_exchange(comm, &step, sizeof(step), all) != ZR_OK ||
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
        if (request == ZR_REQUEST_SAVE_AND_END || request == ZR_REQUEST_END)
            return 0;
        nap_ms(1);
    }
}

/* Rank 1 computes for ever after a few steps; the others wait for it. */
static int train_and_stick(const struct scene *scene, struct zr_local_world *local, unsigned rank,
                           zr_comm *comm)
{
    (void)scene;
    for (uint32_t step = 1; step <= 5; step++)
        if (zr_comm_barrier(comm) != ZR_OK)
            return fail_with_words(rank);
    zr_local_note(local, rank, "step 5");
    atomic_store(&board->steps, 5);
    if (rank == 1)
        compute_forever();
    return zr_comm_barrier(comm) == ZR_OK ? 0 : fail_with_words(rank);
}

/* All compute for ever: nobody is there to follow a request. */
static int stick(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    (void)scene, (void)local, (void)rank, (void)comm;
    atomic_store(&board->steps, 5);
    compute_forever();
    return 0;
}

/* True when it has come to `want`. */
static bool wait_for(const _Atomic uint32_t *number, uint32_t want)
{
    for (unsigned ms = 0; ms < PATIENCE_MS && atomic_load(number) < want; ms++)
        nap_ms(1);
    return atomic_load(number) >= want;
}

/* Steps longer than the deadline: rank 1 computes for so many times so long, and says nothing while it does.
 * A step ends early when the test says so. */
static int train_slowly(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    for (uint32_t step = 1;; step++) {
        enum zr_request_kind request;
        char note[32];
        snprintf(note, sizeof(note), "step %u", step);
        zr_local_note(local, rank, note);
        for (long layer = 0; layer < scene->layers && !atomic_load(&board->saved); layer++) {
            if (rank == 1)
                nap_ms(scene->layer_ms);
            if (rank == 0 && step == scene->watched_step)
                atomic_store(&board->steps, 5);
            if (zr_comm_wait(comm, 0) != ZR_OK)
                return fail_with_words(rank);
        }
        if (zr_comm_barrier(comm) != ZR_OK || zr_local_request(comm, &request) != ZR_OK)
            return fail_with_words(rank);
        if (request == ZR_REQUEST_SAVE_AND_END) {
            atomic_fetch_add(&board->saves, 1);
            return 0;
        }
    }
}

/* A save that takes as long as the test wants. */
static int save_for_long(const struct scene *scene, struct zr_local_world *local, unsigned rank,
                         zr_comm *comm)
{
    (void)scene;
    enum zr_request_kind request = ZR_REQUEST_NONE;
    while (request == ZR_REQUEST_NONE) {
        atomic_store(&board->steps, 5);
        if (zr_local_request(comm, &request) != ZR_OK)
            return fail_with_words(rank);
    }
    zr_local_busy(local, rank, true);
    atomic_fetch_add(&board->saving, 1);
    while (!atomic_load(&board->saved))
        nap_ms(1);
    atomic_fetch_add(&board->saves, 1);
    zr_local_busy(local, rank, false);
    return request == ZR_REQUEST_SAVE_AND_END ? 0 : 9;
}

/* Rank 1 comes when the test says so; the others wait for it. */
static int wait_for_one(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    (void)scene, (void)local;
    if (rank == 0)
        atomic_store(&board->steps, 5);
    while (rank == 1 && !atomic_load(&board->saved))
        nap_ms(1);
    return zr_comm_barrier(comm) == ZR_OK ? 0 : fail_with_words(rank);
}

static int fail_alone(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    (void)scene;
    zr_local_note(local, rank, "step 7");
    if (rank == 1)
        return 4;
    for (;;)
        if (zr_comm_barrier(comm) != ZR_OK)
            return fail_with_words(rank);
}

static int fail_together(const struct scene *scene, struct zr_local_world *local, unsigned rank,
                         zr_comm *comm)
{
    (void)scene, (void)local, (void)rank, (void)comm;
    atomic_store(&board->steps, 5);
    while (!atomic_load(&board->saved))
        nap_ms(1);
    return 3;
}

static int end_early(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    (void)scene, (void)local;
    if (rank == 2)
        return 0;
    return zr_comm_barrier(comm) == ZR_ERR_PEER ? fail_with_words(rank) : 9;
}

static int crash(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    (void)scene;
    zr_local_note(local, rank, "a bad address");
    if (rank == 2) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would make an exit of it */
        raise(SIGSEGV);
    }
    return zr_comm_barrier(comm) == ZR_OK ? 0 : fail_with_words(rank);
}

/* Only remembers and removes, as a handler may. */
static void clean_up(void *argument)
{
    (void)argument;
    unlink(board->file);
    atomic_fetch_add(&board->cleaned, 1);
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
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

/* ---- A run under observation ------------------------------------------------------------------------ */

struct run {
    pid_t launcher;
    int said; /* read end of stderr */
    char words[8192];
    size_t words_bytes;
    struct pace pace; /* since the end was called for */
    int status;
    bool in_time;
};

static void listen_to(struct run *run, int timeout_ms)
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
static void listen_for(struct run *run, const char *words)
{
    uint64_t limit_ns = zr_os_now_ns() + PATIENCE_MS * UINT64_C(1000000);
    while (!strstr(run->words, words) && zr_os_now_ns() < limit_ns)
        listen_to(run, 1);
}

/* As ps(1) has it: 'T' stands still, 'Z' is dead; 0: there is no such process. */
static char state_of(pid_t pid)
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

static bool alive(pid_t pid)
{
    char state = state_of(pid);
    return state && state != 'Z' && state != 'X'; /* a zombie waits for whoever adopted it */
}

/* True when it has come to that state. */
static bool wait_state(pid_t pid, char state)
{
    for (unsigned ms = 0; ms < PATIENCE_MS && state_of(pid) != state; ms++)
        nap_ms(1);
    return state_of(pid) == state;
}

static int ranks_alive(void)
{
    int count = 0;
    for (unsigned r = 0; r < WORLD; r++)
        count += board->pids[r] != 0 && alive(board->pids[r]);
    return count;
}

/* Starts a run in a process group of its own and waits until its ranks are at work. */
static struct run start(const struct scene *scene)
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
    run.pace = pace_start();
    return run;
}

/* Waits for the end of the launcher and all ranks, twice the limit at most, and gathers what was said. */
static void finish(struct run *run)
{
    pid_t reaped = 0;
    do {
        pace_wait(&run->pace);
        listen_to(run, 0);
        if (reaped == 0)
            reaped = waitpid(run->launcher, &run->status, WNOHANG);
    } while ((reaped == 0 || ranks_alive() > 0) && run->pace.ms < 2.0 * END_LIMIT_MS);
    run->in_time = reaped != 0 && ranks_alive() == 0 && run->pace.ms < END_LIMIT_MS;
    for (unsigned i = 0; i < 20; i++)
        listen_to(run, 1);
    close(run->said);
    kill(-run->launcher, SIGKILL); /* whoever is left must not disturb the next case */
    if (reaped == 0)
        waitpid(run->launcher, &run->status, 0);
}

static void tell(const struct run *run)
{
    char copy[sizeof(run->words)], *save = NULL;
    memcpy(copy, run->words, sizeof(copy));
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        tap_note("  said: %s", line);
}

/* What every case has in common once it is over. `code`: -signal for a launcher that was killed. */
static void check_finished(const struct run *run, const char *name, int code, const char *words)
{
    int got = WIFSIGNALED(run->status) ? -WTERMSIG(run->status) : WEXITSTATUS(run->status);
    tap_is(got, code, "%s: the exit code", name);
    tap_ok(run->in_time, "%s: all has ended within %d ms (%.0f, %.0f by the clock)", name, END_LIMIT_MS,
           run->pace.ms, run->pace.clock_ms);
    if (!tap_ok(!words || strstr(run->words, words), "%s: the reason is on stderr: %s", name,
                words ? words : "none"))
        tell(run);
    bool gone = access(board->file, F_OK) != 0;
    tap_ok(gone == (code != 0), "%s: the half-written file is %s", name, gone ? "gone" : "there");
    unlink(board->file);
}

static void check_end(struct run *run, const char *name, int code, const char *words)
{
    finish(run);
    check_finished(run, name, code, words);
}

/* ---- Ranks that die --------------------------------------------------------------------------------- */

/* How many of a killed rank's peers said why they end, and how many of them named another. A peer that is
 * held up for longer than the launcher's grace says nothing. */
struct heard {
    unsigned peers, wrong;
};

static void hear(const struct run *run, unsigned dead, struct heard *heard)
{
    char name[24], *save = NULL, copy[sizeof(run->words)];
    unsigned peer, used;
    snprintf(name, sizeof(name), "rank %u (pid ", dead);
    memcpy(copy, run->words, sizeof(copy));
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        int bytes = 0;
        if (sscanf(line, "rank %u: %n", &peer, &bytes) < 1 || bytes == 0)
            continue;
        used = (unsigned)bytes;
        heard->peers++;
        heard->wrong += strncmp(line + used, name, strlen(name)) != 0;
    }
}

static void test_killed_rank(void)
{
    const struct scene training = {.name = "training", .act = train};
    const struct scene stuck = {.name = "stuck", .act = train_and_stick};
    struct heard heard = {0};
    for (unsigned r = 0; r < WORLD; r++) {
        char words[64];
        struct run run = start(&training);
        snprintf(words, sizeof(words), "rank %u (pid %d) was killed by signal 9 (Killed) at step ", r,
                 board->pids[r]);
        kill(board->pids[r], SIGKILL);
        check_end(&run, "a rank killed by -9", 137, words);
        hear(&run, r, &heard);
    }
    tap_ok(heard.peers > 0 && heard.wrong == 0,
           "its peers know who it was (%u of %u said so, %u named another)", heard.peers, WORLD * (WORLD - 1),
           heard.wrong);
    struct run run = start(&stuck);
    kill(board->pids[0], SIGKILL);
    check_end(&run, "a rank dies while another computes", 137, "rank 0 (pid ");
    run = start(&stuck);
    kill(board->pids[2], SIGSTOP);
    kill(board->pids[0], SIGKILL);
    check_end(&run, "a rank dies while another is stopped", 137, "rank 0 (pid ");
}

static void test_failing_rank(void)
{
    const struct scene alone = {.name = "alone", .act = fail_alone, .ends_by_itself = true};
    const struct scene together = {.name = "together", .act = fail_together};
    const struct scene early = {.name = "early", .act = end_early, .ends_by_itself = true};
    const struct scene crashed = {.name = "crash", .act = crash, .ends_by_itself = true};
    const struct scene slow = {
        .name = "slow death", .act = train, .ends_by_itself = true, .dies_slowly = true};
    struct run run = start(&alone);
    check_end(&run, "a rank returns an error", 4, "ended with exit code 4 at step 7");
    tap_is(board->cleaned, 1, "it was cleaned up after once");
    run = start(&together);
    kill(run.launcher, SIGSTOP); /* so that it finds all of them ended, and has none to give up */
    bool ended = wait_state(run.launcher, 'T');
    atomic_store(&board->saved, true);
    for (unsigned r = 0; r < WORLD; r++)
        ended &= board->pids[r] != 0 && wait_state(board->pids[r], 'Z');
    kill(run.launcher, SIGCONT);
    tap_ok(ended, "all ranks end before the launcher looks");
    run.pace = pace_start();
    check_end(&run, "all ranks return the same error", 3, NULL);
    tap_is(run.words_bytes, 0, "which needs no words from the launcher");
    run = start(&early);
    check_end(&run, "a rank ends while others wait", 1, "has ended while others still wait for it");
    run = start(&crashed);
    check_end(&run, "a rank crashes", 139, "signal 11 (Segmentation fault) at a bad address");
    run = start(&slow);
    check_end(&run, "a rank whose sockets close before it is dead", 137, "rank 2 (pid ");
    tap_ok(!strstr(run.words, "the ring"), "nobody calls that a failure of his own");
}

/* ---- The launcher dies ------------------------------------------------------------------------------ */

static void test_killed_launcher(void)
{
    const struct scene training = {.name = "training", .act = train};
    const struct scene stuck = {.name = "stuck", .act = stick};
    char words[64];
    struct run run = start(&training);
    snprintf(words, sizeof(words), "the launcher (pid %d) is gone", (int)run.launcher);
    kill(run.launcher, SIGKILL);
    check_end(&run, "the launcher killed by -9", -9, words);
    tap_ok(board->cleaned >= 1, "the ranks cleaned up");
    run = start(&stuck);
    kill(run.launcher, SIGKILL);
    check_end(&run, "the launcher killed while all compute", -9, "is gone");
    for (unsigned stopped = 1; stopped <= WORLD; stopped += WORLD - 1) {
        run = start(&training);
        for (unsigned r = 0; r < stopped; r++)
            kill(board->pids[r], SIGSTOP);
        for (unsigned r = 0; r < stopped; r++)
            tap_ok(wait_state(board->pids[r], 'T'), "rank %u stands still", r);
        kill(run.launcher, SIGKILL);
        check_end(&run,
                  stopped == 1 ? "the launcher killed while a rank is stopped"
                               : "the launcher killed while all are stopped",
                  -9, "is gone");
    }
}

/* Ctrl-Z and fg. */
static void test_stopped_run(void)
{
    const struct scene training = {.name = "training", .act = train, .save_within_ms = 60000};
    struct run run = start(&training);
    kill(-run.launcher, SIGSTOP);
    for (unsigned r = 0; r < WORLD; r++)
        tap_ok(wait_state(board->pids[r], 'T'), "rank %u stands still", r);
    unsigned steps = atomic_load(&board->steps);
    kill(-run.launcher, SIGCONT);
    tap_ok(wait_for(&board->steps, steps + 5), "a stopped run goes on");
    kill(run.launcher, SIGTERM);
    run.pace = pace_start();
    check_end(&run, "and ends when asked", 0, NULL);

    const struct scene waiting = {.name = "waiting", .act = wait_for_one, .timeout_ms = 8000};
    run = start(&waiting);
    nap_ms(100); /* the others wait by now, mostly */
    kill(-run.launcher, SIGSTOP);
    for (unsigned r = 0; r < WORLD; r++)
        tap_ok(wait_state(board->pids[r], 'T'), "rank %u stands still", r);
    nap_ms(waiting.timeout_ms + 500);
    kill(-run.launcher, SIGCONT);
    nap_ms(300); /* so that they look whether the one that they wait for is late */
    atomic_store(&board->saved, true);
    run.pace = pace_start();
    check_end(&run, "stopped for longer than a rank may be silent", 0, NULL);
}

/* The processes of a run that has lost its launcher come to the test, their nearest subreaper: true when the
 * whole group has ended in time. */
static bool group_ended(pid_t group)
{
    struct pace pace = pace_start();
    for (;;) {
        pid_t pid = waitpid(-group, NULL, WNOHANG);
        if (pid < 0)
            return true;
        if (pid == 0 && pace.ms > END_LIMIT_MS)
            return false;
        if (pid == 0)
            pace_wait(&pace);
    }
}

/* One end at a random moment of a run's first milliseconds, the making of the communicator included. */
struct moment {
    bool wrong, survived;
    struct run run;
};

static struct moment kill_at_random(const struct scene *scene, unsigned victim_rank, bool launcher)
{
    struct moment seen = {0};
    struct run run = start(scene);
    pid_t victim = run.launcher;
    nanosleep(&(struct timespec){.tv_nsec = rand() % (rand() % 2 ? 8000000 : 500000)}, NULL);
    if (!launcher && board->pids[victim_rank] != 0)
        victim = board->pids[victim_rank];
    kill(victim, SIGKILL);
    if (victim != run.launcher) {
        run.pace = pace_start();
        finish(&run);
        seen.wrong = !run.in_time || !WIFEXITED(run.status) || WEXITSTATUS(run.status) != 137;
        seen.run = run;
    } else {
        close(run.said);
    }
    seen.survived = !group_ended(run.launcher);
    kill(-run.launcher, SIGKILL);
    unlink(board->file);
    return seen;
}

static void test_any_moment(void)
{
    const struct scene training = {.name = "training", .act = train, .ends_by_itself = true};
    unsigned survivors = 0, wrong = 0;
    struct run last_wrong = {0};
    srand((unsigned)run_seed());
    for (unsigned i = 0; i < 80; i++) {
        struct moment seen = kill_at_random(&training, i % WORLD, i % 2 == 0);
        survivors += seen.survived;
        wrong += seen.wrong;
        if (seen.wrong)
            last_wrong = seen.run;
    }
    tap_is(survivors, 0, "launchers and ranks killed at any moment: nobody stays");
    tap_is(wrong, 0, "and a launcher always ends in time, with the reason");
    if (wrong > 0) {
        tap_note("  the last one's wait status: 0x%x, after %.0f ms, %.0f by the clock", last_wrong.status,
                 last_wrong.pace.ms, last_wrong.pace.clock_ms);
        tell(&last_wrong);
    }
}

/* ---- Requests --------------------------------------------------------------------------------------- */

/* SIGINT gives ranks 1.2 s and no more: a run of which one was held up for longer shows nothing. */
static void check_interrupt(const char *name, bool whole_group)
{
    const struct scene training = {.name = "training", .act = train};
    struct run run;
    bool late;
    unsigned tries = 0;
    do {
        run = start(&training);
        kill(whole_group ? -run.launcher : run.launcher, SIGINT);
        finish(&run);
        late = strstr(run.words, "SIGINT: the ranks did not end in time") != NULL;
    } while (late && ++tries < 5);
    check_finished(&run, name, 0, NULL);
    tap_is(board->saves, 0, "%s: nobody saved", name);
}

static void test_requests(void)
{
    const struct scene training = {.name = "training", .act = train, .save_within_ms = 60000};
    struct run run = start(&training);
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM", 0, NULL);
    tap_is(board->saves, WORLD, "SIGTERM: every rank saved once");
    check_interrupt("SIGINT", false);
    check_interrupt("Ctrl-C", true);
    run = start(&training);
    kill(-run.launcher, SIGTERM); /* as timeout(1) does it, which sends it to the launcher before, too */
    check_end(&run, "SIGTERM to the whole group", 0, NULL);
    tap_is(board->saves, WORLD, "and every rank saved once");
    run = start(&training);
    kill(board->pids[1], SIGTERM);
    check_end(&run, "SIGTERM to one rank", 0, NULL);
    tap_is(board->saves, WORLD, "means the run: every rank saved");
    run = start(&training);
    kill(-run.launcher, SIGHUP);
    check_end(&run, "the terminal goes away", 0, NULL);
    tap_is(board->saves, WORLD, "and every rank saved");
}

static void test_save_on_request(void)
{
    const struct scene training = {.name = "training", .act = train, .save_within_ms = 60000};
    struct run run = start(&training);
    for (unsigned i = 1; i <= 3; i++) {
        kill(run.launcher, SIGUSR1);
        wait_for(&board->saves, i * WORLD);
        tap_is(board->saves, i * WORLD, "SIGUSR1 number %u: every rank saved once and went on", i);
    }
    kill(-run.launcher, SIGUSR1); /* to everybody at once: one request, unless some hear of it late */
    wait_for(&board->saves, 4 * WORLD);
    run.pace = pace_start();
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM after saves", 0, NULL);
    tap_ok(board->saves >= 5 * WORLD && board->saves <= (5 + WORLD) * WORLD && board->saves % WORLD == 0,
           "SIGUSR1 to the group: all ranks agreed (%u saves)", board->saves);
}

static void test_deadlines(void)
{
    const struct scene stuck = {.name = "stuck", .act = stick};
    const struct scene saving = {.name = "saving", .act = save_for_long};
    struct run run = start(&stuck);
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM, and nobody listens", 143, "SIGTERM: the ranks did not end in time");
    tap_ok(run.pace.clock_ms > 1000, "the ranks had time to (%.0f ms)", run.pace.clock_ms);
    run = start(&stuck);
    kill(-run.launcher, SIGINT);
    check_end(&run, "Ctrl-C, and nobody listens", 130, "SIGINT: the ranks did not end in time");
    run = start(&stuck);
    uint64_t first_ns = zr_os_now_ns();
    kill(-run.launcher, SIGINT);
    nap_ms(500);
    run.pace = pace_start();
    kill(-run.launcher, SIGINT);
    check_end(&run, "Ctrl-C twice", 130, "SIGINT: ");
    /* Where the launcher is held up, the first one's deadline may come before the second. */
    bool held_up = zr_os_now_ns() - first_ns > 1000000000;
    if (!tap_ok(held_up || strstr(run.words, "asked for a second time"), "the reason is the second one"))
        tell(&run);
    run = start(&stuck);
    kill(-run.launcher, SIGQUIT);
    check_end(&run, "Ctrl-\\", 131, "SIGQUIT: asked to end at once");
    run = start(&saving);
    kill(run.launcher, SIGTERM);
    wait_for(&board->saving, WORLD);
    nap_ms(2000); /* beyond the deadline */
    tap_is(ranks_alive(), WORLD, "a save that takes longer than the deadline is not cut short");
    atomic_store(&board->saved, true);
    run.pace = pace_start();
    check_end(&run, "SIGTERM during a long save", 0, NULL);
    tap_is(board->saves, WORLD, "it was completed");
    run = start(&saving);
    kill(run.launcher, SIGTERM);
    wait_for(&board->saving, WORLD);
    nap_ms(1800);
    run.pace = pace_start();
    kill(run.launcher, SIGTERM);
    check_end(&run, "a second SIGTERM during a long save", 143, "SIGTERM: asked for a second time");
}

/* What is computed when SIGTERM comes is not lost, if there is somewhere to save it and the ranks get on. */
static void test_long_steps(void)
{
    const struct scene layers = {.name = "layers",
                                 .act = train_slowly,
                                 .save_within_ms = 600000,
                                 .watched_step = 1,
                                 .layers = 100000, /* for ever: the test ends the step */
                                 .layer_ms = 60};
    const struct scene silent = {.name = "silent",
                                 .act = train_slowly,
                                 .save_within_ms = 60000,
                                 .watched_step = 4, /* of the three before one may go badly */
                                 .layers = 1,
                                 .layer_ms = 2000};
    struct scene unsaved = layers, limited = layers, held = silent;
    const struct scene stuck = {.name = "stuck", .act = train_and_stick, .save_within_ms = 60000};
    struct run run = start(&layers);
    kill(run.launcher, SIGTERM);
    listen_for(&run, "finished and saved first");
    atomic_store(&board->saved, true);
    wait_for(&board->saves, WORLD);
    run.pace = pace_start();
    check_end(&run, "SIGTERM in a long step", 0, "the step under way is finished and saved first");
    tap_is(board->saves, WORLD, "every rank saved");

    run = start(&silent);
    kill(run.launcher, SIGTERM);
    wait_for(&board->saves, WORLD);
    run.pace = pace_start();
    check_end(&run, "SIGTERM in a long step whose ranks say nothing, as in those before", 0, NULL);
    tap_is(board->saves, WORLD, "every rank saved");

    held.watched_step = 1; /* there were none before */
    run = start(&held);
    kill(run.launcher, SIGTERM);
    wait_for(&board->saves, WORLD);
    run.pace = pace_start();
    check_end(&run, "SIGTERM in a first step whose ranks say nothing for a moment", 0, NULL);

    run = start(&layers);
    kill(run.launcher, SIGTERM);
    listen_for(&run, "finished and saved first"); /* so the first one has been taken */
    run.pace = pace_start();
    kill(run.launcher, SIGTERM);
    check_end(&run, "a second SIGTERM in a long step", 143, "SIGTERM: asked for a second time");

    run = start(&layers);
    kill(run.launcher, SIGINT);
    check_end(&run, "SIGINT in a long step", 130, "SIGINT: the ranks did not end in time");

    unsaved.save_within_ms = 0;
    run = start(&unsaved);
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM in a long step with nowhere to save", 143, "the ranks did not end in time");

    limited.save_within_ms = 2500;
    run = start(&limited);
    uint64_t asked_ns = zr_os_now_ns();
    kill(run.launcher, SIGTERM);
    listen_for(&run, "SIGTERM");
    unsigned long long cut_ms = (zr_os_now_ns() - asked_ns) / 1000000;
    tap_ok(cut_ms >= 2200, "a step that gets on outlives the deadline (%llu ms)", cut_ms);
    run.pace = pace_start();
    check_end(&run, "and no limit", 143, "SIGTERM: the step under way did not end within 2.5 s");

    run = start(&stuck);
    kill(run.launcher, SIGTERM);
    check_end(&run, "SIGTERM, and a rank hangs", 143, "SIGTERM: the ranks did not end in time");
}

/* A launcher leaves the signals of its process as they were. */
static void test_signals_restored(void)
{
    sigset_t before, after; /* the system fills a part of them only */
    struct sigaction child = {.sa_handler = SIG_IGN}, now;
    const struct scene together = {.name = "together", .act = fail_together, .ends_by_itself = true};
    memset(board, 0, sizeof(*board));
    atomic_store(&board->saved, true);
    memset(&before, 0, sizeof(before));
    memset(&after, 0, sizeof(after));
    sigaction(SIGCHLD, &child, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    int code = zr_local_launch(
        &(struct zr_launch_options){.world = WORLD, .rank_main = rank_main, .argument = (void *)&together});
    tap_is(code, 3, "exit codes arrive where SIGCHLD was ignored");
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    sigaction(SIGCHLD, NULL, &now);
    tap_ok(memcmp(&before, &after, sizeof(before)) == 0 && now.sa_handler == SIG_IGN,
           "the signals are as before");
    signal(SIGCHLD, SIG_DFL);
}

int main(void)
{
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return tap_done();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    test_killed_rank();
    test_failing_rank();
    test_killed_launcher();
    test_stopped_run();
    test_any_moment();
    test_requests();
    test_save_on_request();
    test_deadlines();
    test_long_steps();
    test_signals_restored();
    return tap_done();
}
