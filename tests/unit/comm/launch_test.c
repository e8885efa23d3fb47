/* launch_test.c: how runs end whose ranks or launcher die, fail or are stopped. Requests to end are in
 * launch_requests_test.c, deadlines turn by turn in launch_turns_test.c. */
#define _GNU_SOURCE
#include <sys/time.h>

#include "alloc/keep/zr_keep.h"
#include "tests/support/child.h"
#include "tests/support/zero/launch_runs.h"
#include "tests/support/seed.h"
#include "zero/launch/start.h"

/* ---- Scenes -------------------------------------------------------------------------------------------- */

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
    zr_local_set_status(local, rank, "step 7");
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

/* As when one cannot make its part of something, and the others learn that of it. */
static int fail_apart(const struct scene *scene, struct zr_local_world *local, unsigned rank, zr_comm *comm)
{
    return fail_together(scene, local, rank, comm) == 3 && rank == 1 ? 4 : 1;
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
    zr_local_set_status(local, rank, "a bad address");
    if (rank == 2) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would make an exit of it */
        raise(SIGSEGV);
    }
    return zr_comm_barrier(comm) == ZR_OK ? 0 : fail_with_words(rank);
}

/* ---- Ranks that die ------------------------------------------------------------------------------------ */

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

/* The launcher finds all ranks ended, and has none to give up. */
static struct run start_all_ended(const struct scene *scene)
{
    struct run run = start(scene);
    kill(run.launcher, SIGSTOP);
    bool ended = wait_state(run.launcher, 'T');
    atomic_store(&board->saved, true);
    for (unsigned r = 0; r < WORLD; r++)
        ended &= board->pids[r] != 0 && wait_state(board->pids[r], 'Z');
    kill(run.launcher, SIGCONT);
    tap_ok(ended, "all ranks end before the launcher looks");
    run.asked_ns = zr_os_now_ns();
    return run;
}

static void test_failing_rank(void)
{
    const struct scene alone = {.name = "alone", .act = fail_alone, .ends_by_itself = true};
    const struct scene together = {.name = "together", .act = fail_together};
    const struct scene early = {.name = "early", .act = end_early, .ends_by_itself = true};
    const struct scene crashed = {.name = "crash", .act = crash, .ends_by_itself = true};
    const struct scene slow = {
        .name = "slow death", .act = train, .ends_by_itself = true, .dies_slowly = true};
    const struct scene apart = {.name = "apart", .act = fail_apart};
    struct run run = start(&alone);
    check_end(&run, "a rank returns an error", 4, "ended with exit code 4 at step 7");
    tap_is(board->cleaned, 1, "it was cleaned up after once");
    run = start_all_ended(&together);
    check_end(&run, "all ranks return the same error", 3, NULL);
    tap_is(run.words_bytes, 0, "which needs no words from the launcher");
    run = start_all_ended(&apart);
    check_end(&run, "an error counts more than the loss of a peer, which may come first", 4, "rank 1 (pid ");
    run = start(&early);
    check_end(&run, "a rank ends while others wait", 1, "has exited while others still wait for it");
    run = start(&crashed);
    check_end(&run, "a rank crashes", 139, "signal 11 (Segmentation fault) at a bad address");
    run = start(&slow);
    check_end(&run, "a rank whose sockets close before it is dead", 137, "rank 2 (pid ");
    tap_ok(!strstr(run.words, "the ring"), "nobody calls that a failure of his own");
}

/* ---- The launcher dies --------------------------------------------------------------------------------- */

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
    run.asked_ns = zr_os_now_ns();
    check_end(&run, "and ends when asked", 143, NULL);

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
    run.asked_ns = zr_os_now_ns();
    check_end(&run, "stopped for longer than a rank may be silent", 0, NULL);
}

/* The processes of a run that has lost its launcher come to the test, their nearest subreaper: true when the
 * whole group has ended in time. */
static bool group_ended(pid_t group)
{
    uint64_t start_ns = zr_os_now_ns();
    for (;;) {
        pid_t pid = waitpid(-group, NULL, WNOHANG);
        if (pid < 0)
            return true;
        if (pid == 0 && ms_since(start_ns) > PATIENCE_MS)
            return false;
        if (pid == 0)
            nap_ms(2);
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
        run.asked_ns = zr_os_now_ns();
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
        tap_note("  the last one's wait status: 0x%x", last_wrong.status);
        tell(&last_wrong);
    }
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

/* Whether the handlers of a rank run on a stack of their own, with room for a frame and their work. */
static int look_at_handlers(struct zr_local_world *local, unsigned rank, void *argument)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1, SIGCONT};
    stack_t stack = {.ss_flags = SS_DISABLE};
    bool good = sigaltstack(NULL, &stack) == 0 && stack.ss_flags == 0 && stack.ss_size >= 1 << 16;
    (void)local, (void)rank, (void)argument;
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action;
        sigaction(numbers[i], NULL, &action);
        good &= action.sa_handler == SIG_IGN || action.sa_flags & SA_ONSTACK;
    }
    return good ? 0 : 3;
}

static void test_handlers(void)
{
    int code = zr_local_launch(&(struct zr_launch_options){.world = 1, .rank_main = look_at_handlers});
    tap_is(code, 0, "the handlers of a rank run on a stack of their own");
}

/* A process of the run that is killed after a commit, and its successor: the launcher keeps the memory. */
static const struct zr_keep_name shard = {"run/shard", 77};

static int keep_and_die(void)
{
    const struct zr_keep_options options = {.name = shard.name, .token = shard.token, .bytes = 8};
    const struct zr_keep_tensor number = {.name = "number", .bytes = sizeof(int)};
    uint32_t tensor;
    zr_keep *keep;
    void *at;
    if (zr_keep_create(&keep, &options) != ZR_OK || zr_keep_tensor_create(keep, &number, &tensor) != ZR_OK ||
        zr_keep_begin(keep, NULL) != ZR_OK || zr_keep_write(keep, tensor, &at) != ZR_OK)
        return 3;
    *(int *)at = 42;
    zr_keep_commit(keep);
    return kill(getpid(), SIGKILL);
}

static int keep_in_turn(struct zr_local_world *local, unsigned rank, void *argument)
{
    zr_keep *keep;
    struct zr_keep_view view;
    (void)local, (void)rank, (void)argument;
    bool good = in_child(keep_and_die) == -SIGKILL && zr_keep_open(&keep, &shard, ZR_KEEP_WRITE) == ZR_OK &&
                zr_keep_read(keep, 0, &view) == ZR_OK && *(const int *)view.address == 42;
    zr_keep_close(good ? keep : NULL);
    return good && zr_keep_drop(&shard) == ZR_OK ? 0 : 3;
}

static void test_kept_memory(void)
{
    int code = zr_local_launch(&(struct zr_launch_options){.world = 1, .rank_main = keep_in_turn});
    tap_is(code, 0, "a launcher keeps the memory of a process that is killed for the next one");
}

static int end_at_once(struct zr_local_world *local, unsigned rank, void *argument)
{
    (void)local, (void)rank, (void)argument;
    return 0;
}

/* The status of a process that a signal meets right after its run. */
static int meet_after_run(int signal_number, bool ends_process)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int code =
            zr_local_launch(&(struct zr_launch_options){.struct_bytes = sizeof(struct zr_launch_options),
                                                        .world = 2,
                                                        .rank_main = end_at_once,
                                                        .ends_process = ends_process});
        raise(signal_number);
        _exit(code);
    }
    waitpid(child, &status, 0);
    return status;
}

static void test_signals_after_run(void)
{
    static const int numbers[] = {SIGUSR1, SIGINT, SIGTERM, SIGHUP};
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        signal(numbers[i], SIG_DFL); /* nohup(1) and a shell's background jobs ignore some of them */
        tap_is(meet_after_run(numbers[i], true), 0, "%s after a run does not change its exit code",
               strsignal(numbers[i]));
        int status = meet_after_run(numbers[i], false);
        tap_ok(WIFSIGNALED(status) && (WTERMSIG(status) == numbers[i]),
               "and meets a process that goes on as before");
    }
}

/* Each rank's number comes to each. */
static int meet_and_end(struct zr_local_world *local, unsigned rank, void *argument)
{
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *comm = NULL;
    uint32_t all[64], wrong = 0;
    (void)argument;
    zr_backend_host_create(&backend,
                           &(struct zr_host_options){.granule_bytes = 64 << 10, .small_pages = true});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 64 << 20});
    struct zr_comm_options options = {
        .arena = arena, .host_arena = arena, .kernels = zr_kernels_cpu(ZR_ISA_PLAIN), .bucket_bytes = 1};
    if (zr_comm_local_create(&comm, &options, local, rank) != ZR_OK ||
        zr_comm_host_all_gather(comm, &rank, sizeof rank, all) != ZR_OK)
        return 1;
    for (unsigned r = 0; r < zr_comm_world(comm); r++)
        wrong += all[r] != r;
    zr_comm_destroy(comm);
    return wrong != 0;
}

/* The most ranks, the last rank, the last port and the longest name of a job, and one beyond. */
static void test_limits(void)
{
    static const struct {
        const char *rank, *world, *local_world, *port;
        bool good;
    } rows[] = {
        {"0", "1", NULL, "1", true},     {"0", "1", NULL, "0", false},     {"0", "0", NULL, "1", false},
        {"6", "7", NULL, "65535", true}, {"6", "7", NULL, "65536", false}, {"7", "7", NULL, "1", false},
        {"0", "7", "7", "1", true},      {"0", "7", "8", "1", false},      {"0", "7", "0", "1", false},
        {"255", "256", NULL, "1", true}, {"256", "257", NULL, "1", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct zr_start start;
        unsigned ranks = 0;
        setenv("RANK", rows[i].rank, 1);
        setenv("WORLD_SIZE", rows[i].world, 1);
        setenv("MASTER_PORT", rows[i].port, 1);
        if (rows[i].local_world)
            setenv("LOCAL_WORLD_SIZE", rows[i].local_world, 1);
        zr_result result = zr_start_read(&start);
        result = result == ZR_OK ? zr_start_check(&start, false, 0, &ranks) : result;
        tap_result(result, rows[i].good ? ZR_OK : ZR_ERR_INVALID, "rank %s of %s, port %s", rows[i].rank,
                   rows[i].world, rows[i].port);
        unsetenv("LOCAL_WORLD_SIZE");
    }
    unsetenv("RANK"), unsetenv("WORLD_SIZE"), unsetenv("MASTER_PORT");
    char name[62], keys[3][96];
    for (size_t length = 59; length <= 61; length++) {
        struct zr_start start;
        memset(name, 'n', length);
        name[length] = '\0';
        setenv("OMPI_COMM_WORLD_RANK", "0", 1), setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
        setenv("PMIX_NAMESPACE", name, 1);
        tap_result(zr_start_read(&start), ZR_OK, "a job's name of %zu letters", length);
        memcpy(keys[length - 59], start.key, sizeof start.key);
    }
    unsetenv("OMPI_COMM_WORLD_RANK"), unsetenv("OMPI_COMM_WORLD_SIZE"), unsetenv("PMIX_NAMESPACE");
    tap_ok(strlen(keys[0]) == 59 && strlen(keys[1]) == 60 && strchr(keys[2], '~') != NULL,
           "is the key, up to 60; of a longer one a part, and a hash");
    struct zr_local_world *local = calloc(1, sizeof *local + sizeof *local->ranks);
    char reason[2 * ZR_LOCAL_REASON_BYTES];
    memset(reason, 'r', sizeof reason);
    reason[sizeof reason - 1] = '\0';
    memset(local->ranks[0].message, 'x', sizeof local->ranks[0].message);
    local->world = 1;
    bool ends = zr_local_end(local, &(struct zr_local_end){.why = ZR_ERR_PEER, .reason = reason});
    const char *message = local->ranks[0].message[0];
    tap_ok(ends && strlen(message) == ZR_LOCAL_REASON_BYTES - 1 && message[ZR_LOCAL_REASON_BYTES] == 'x',
           "a reason as long as the room for it, and the rest cut off");
    free(local);
    struct zr_launch_options options = {.world = ZR_MAX_WORLD, .rank_main = end_at_once};
    tap_is(zr_local_launch(&options), 0, "as many ranks as there can be");
    options.world = ZR_MAX_WORLD + 1;
    tap_is(zr_local_launch(&options), 2, "one more is refused");
    options.world = 0;
    tap_is(zr_local_launch(&options), 2, "so is none");
    options = (struct zr_launch_options){
        .struct_bytes = sizeof options, .world = ZR_MAX_WORLD, .rank_main = end_at_once, .threads = true};
    tap_is(zr_local_launch(&options), 0, "as many threads as there can be ranks");
    tap_is(zr_launch(&options, ZR_CARRIER_TCP, NULL), 2, "with another transport they are refused");
    options.max_restarts = 1;
    tap_is(zr_local_launch(&options), 2, "and so are restarts");
}

/* Rank 1 dies until it is to leave; rank 0 keeps its process and waits for that. */
static int die_until_last(struct zr_local_world *local, unsigned rank, void *argument)
{
    (void)argument;
    if (rank == 1 && !zr_local_leaves(local, 1))
        raise(SIGKILL);
    while (rank == 0 && zr_local_left(local) == 0)
        usleep(1000);
    return rank == 0 && (zr_local_replaced(local) != 2 || zr_local_restarts(local) != 0);
}

static void test_apart(void)
{
    struct zr_launch_options options = {.struct_bytes = sizeof options,
                                        .world = 2,
                                        .rank_main = die_until_last,
                                        .max_restarts = 2,
                                        .apart = true,
                                        .leaves = true};
    tap_is(zr_local_launch(&options), 0, "a rank restarts by itself twice, and then leaves the run");
    options.leaves = false;
    tap_is(zr_local_launch(&options), 137, "where no rank may leave, its last death ends the run");
}

static void let_through(int signal)
{
    (void)signal;
}

/* A signal each millisecond, which interrupts whatever waits. */
static void interrupt_often(void)
{
    const struct sigaction action = {.sa_handler = let_through};
    const struct itimerval often = {{0, 1000}, {0, 1000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
}

/* Ranks that others have started, each with the outboxes of all: as many as go in one message, one fewer and
 * more. The last comes late; signals interrupt the others meanwhile. */
static void test_joined(unsigned world)
{
    pid_t ranks[64];
    unsigned good = 0;
    fflush(stdout);
    for (unsigned r = 0; r < world; r++)
        if ((ranks[r] = fork()) == 0) {
            struct zr_start start = {.kind = ZR_START_RANK,
                                     .rank = r,
                                     .world = world,
                                     .rank_name = "RANK",
                                     .world_name = "WORLD_SIZE",
                                     .key_name = "MASTER_PORT"};
            snprintf(start.key, sizeof start.key, "zr-test-%d-%u", (int)getppid(), world);
            if (r + 1 == world)
                usleep(50000);
            else
                interrupt_often();
            _exit(zr_local_join(&(struct zr_launch_options){.world = world, .rank_main = meet_and_end},
                                &start));
        }
    for (unsigned r = 0; r < world; r++) {
        int status = 1;
        good += ranks[r] > 0 && waitpid(ranks[r], &status, 0) == ranks[r] && status == 0;
    }
    tap_is(good, world, "%u ranks that were started one by one hear one another", world);
}

static int run_on(struct zr_local_world *local, unsigned rank, void *argument)
{
    (void)local, (void)rank, (void)argument;
    return 7;
}

/* Its launcher has ended between the fork and the rank's question to be told of that. */
static void test_orphan(void)
{
    const struct zr_launch_options options = {.world = 1, .rank_main = run_on};
    struct zr_local_world *local = calloc(1, sizeof *local + sizeof(struct zr_local_rank));
    int status = 0;
    sigset_t mask;
    sigemptyset(&mask);
    local->world = 1;
    pid_t rank = fork();
    if (rank == 0) {
        close(STDERR_FILENO);
        zr_local_become_rank(&(struct zr_local_birth){
            .options = &options, .local = local, .before = &mask, .launcher = getpid()});
    }
    waitpid(rank, &status, 0);
    tap_ok(WIFEXITED(status) && WEXITSTATUS(status) == 1, "a rank that has lost its launcher at birth ends");
    free(local);
}

int main(void)
{
    if (!prepare_runs())
        return tap_done();
    test_killed_rank();
    test_failing_rank();
    test_killed_launcher();
    test_orphan();
    test_stopped_run();
    test_any_moment();
    test_signals_restored();
    test_handlers();
    test_kept_memory();
    test_apart();
    test_signals_after_run();
    test_limits();
    for (unsigned world = 31; world <= 33; world++)
        test_joined(world);
    return tap_done();
}
