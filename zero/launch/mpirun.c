/* mpirun.c: runs mpirun with this program as its parent. mpirun ends its ranks on SIGTERM, SIGHUP and SIGINT
 * without a save, so this process converts them to signals that mpirun forwards and that ranks take as
 * requests (rank.c). */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/system/os.h"
#include "zero/launch/control.h"
#include "zero/launch/start.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MEMORY = 4, EXIT_NO_EXEC = 127, EXIT_SIGNAL = 128 };
enum { MAX_ARGUMENTS = 512, PATH_ROOM = 4096 };
#define DEADLINE_NS     1500000000ull /* from a request to the end, if nothing can be saved */
#define SAME_REQUEST_NS 150000000ull  /* timeout(1) and shells signal both the process and its group */
#define AGAIN_NS        1000000000ull /* mpirun drops signals before its ranks exist */
#define FORCE_NS        5000000000ull /* time for mpirun to end its ranks before it is killed */

struct watch {
    pid_t mpirun;
    uint64_t save_within_ns;
    int request; /* the signal that requested the end; 0: none */
    uint64_t asked_ns, deadline_ns;
    uint64_t again_ns, pause_ns; /* time at which the request is forwarded again, and the interval */
    bool forced;                 /* mpirun was signalled to end its ranks */
    uint64_t forced_ns;
};

static bool on_path(const char *name)
{
    const char *path = getenv("PATH");
    char full[PATH_ROOM];
    while (path && *path) {
        size_t length = strcspn(path, ":");
        if ((size_t)snprintf(full, sizeof(full), "%.*s/%s", (int)length, path, name) < sizeof(full) &&
            access(full, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

/* ---- The parent ---------------------------------------------------------------------------------------- */

static void force_end(struct watch *watch, const char *why)
{
    const char *name = sigabbrev_np(watch->request);
    if (watch->forced)
        return;
    watch->forced = true;
    watch->forced_ns = zr_os_now_ns();
    zr_local_log("SIG%s: %s; the run is cut short%s", name ? name : "?", why,
                 watch->save_within_ns == 0 ? ", and nothing was saved" : "");
    kill(watch->mpirun, SIGTERM);
}

/* Forwards the request to mpirun. Ranks ignore a repeated request. */
static void forward_request(struct watch *watch)
{
    kill(watch->mpirun, watch->request == SIGINT ? ZR_MPIRUN_INTERRUPT : ZR_MPIRUN_SAVE_AND_END);
    watch->pause_ns = watch->pause_ns == 0 ? AGAIN_NS : 2 * watch->pause_ns;
    watch->again_ns = zr_os_now_ns() + watch->pause_ns;
}

static void request_end(struct watch *watch, int signal_number)
{
    uint64_t now_ns = zr_os_now_ns();
    if (watch->request != 0) {
        if (now_ns - watch->asked_ns > SAME_REQUEST_NS)
            force_end(watch, "second request to end");
        return;
    }
    bool saves = watch->save_within_ns > DEADLINE_NS;
    watch->request = signal_number;
    watch->asked_ns = now_ns;
    watch->deadline_ns = now_ns + (saves ? watch->save_within_ns : DEADLINE_NS);
    forward_request(watch);
}

static void take_signal(struct watch *watch, int signal_number)
{
    switch (signal_number) {
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
        request_end(watch, signal_number);
        break;
    case SIGQUIT:
        watch->request = signal_number;
        force_end(watch, "request to end immediately");
        break;
    case SIGUSR2: /* same as for a rank */
        request_end(watch, SIGTERM);
        break;
    case SIGTSTP: /* Ctrl-Z: mpirun is in its own process group */
        kill(watch->mpirun, SIGTSTP);
        kill(getpid(), SIGSTOP);
        break;
    case SIGUSR1:
    case SIGCONT:
        kill(watch->mpirun, signal_number);
        break;
    default: /* SIGCHLD: the loop checks in every iteration */
        break;
    }
}

/* The exit code of the run. Ranks that followed a request exit with 0, because mpirun would report other
 * codes. A signal that arrives before mpirun or its ranks can take it kills them. */
static int code_of(const struct watch *watch, int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_SIGNAL + WTERMSIG(status);
    bool early = code == EXIT_SIGNAL + ZR_MPIRUN_SAVE_AND_END || code == EXIT_SIGNAL + ZR_MPIRUN_INTERRUPT;
    return watch->forced || (watch->request != 0 && (early || code == 0)) ? EXIT_SIGNAL + watch->request
                                                                          : code;
}

static int watch_over(struct watch *watch, const sigset_t *signals)
{
    const struct timespec tick = {.tv_nsec = 100000000};
    int status;
    pid_t ended;
    while ((ended = waitpid(watch->mpirun, &status, WNOHANG)) == 0) {
        int signal_number = sigtimedwait(signals, NULL, &tick);
        if (signal_number > 0)
            take_signal(watch, signal_number);
        uint64_t now_ns = zr_os_now_ns();
        if (watch->forced && now_ns - watch->forced_ns > FORCE_NS)
            kill(watch->mpirun, SIGKILL); /* the ranks exit when mpirun is gone */
        else if (!watch->forced && watch->request != 0 && now_ns > watch->deadline_ns)
            force_end(watch, "the ranks did not exit in time");
        else if (!watch->forced && watch->request != 0 && now_ns > watch->again_ns)
            forward_request(watch);
    }
    return ended > 0 ? code_of(watch, status) : EXIT_FAILED;
}

/* ---- mpirun -------------------------------------------------------------------------------------------- */

/* Builds the command line. Allows more ranks than cores, and root; these variables are Open MPI's, and
 * others ignore them. False: too many arguments. */
static bool write_line(const char **line, char *number, char **argv)
{
    static const char *const before[] = {"env",
                                         "OMPI_ALLOW_RUN_AS_ROOT=1",
                                         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                         "OMPI_MCA_rmaps_base_oversubscribe=1",
                                         "OMPI_MCA_hwloc_base_binding_policy=none",
                                         "OMPI_MCA_mpi_yield_when_idle=1",
                                         ("OMPI_MCA_ess_base_forward_signals=" ZR_MPIRUN_FORWARDS),
                                         (ZR_MPIRUN_STARTED "=1"),
                                         "mpirun",
                                         "-n"};
    size_t count = sizeof(before) / sizeof(*before), given = 0;
    memcpy(line, before, sizeof(before));
    line[count++] = number;
    while (argv[given] && count + 1 < MAX_ARGUMENTS)
        line[count++] = argv[given++];
    line[count] = NULL;
    return !argv[given];
}

/* In the child: starts mpirun. Ctrl-C goes to the parent, and mpirun dies with its parent. */
static void become_mpirun(const char **line, const sigset_t *before, const struct sigaction *child_before,
                          pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigaction(SIGCHLD, child_before, NULL);
    pthread_sigmask(SIG_SETMASK, before, NULL);
    if (getppid() == parent)
        execvp(line[0], (char *const *)line);
    _exit(EXIT_NO_EXEC);
}

int zr_mpirun(const struct zr_launch_options *options, char **argv)
{
    static const int followed[] = {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD};
    struct sigaction hangup, child_before, standard = {.sa_handler = SIG_DFL};
    struct watch watch = {.save_within_ns = options->save_within_ns};
    const char *line[MAX_ARGUMENTS];
    char number[16];
    sigset_t signals, before;
    pid_t parent = getpid();
    int code = EXIT_FAILED;
    if (!on_path("mpirun")) {
        zr_local_log("--comm mpi: mpirun is not on PATH; install an MPI (openmpi-bin), or use --comm local");
        return EXIT_USAGE;
    }
    snprintf(number, sizeof(number), "%u", options->world);
    if (!write_line(line, number, argv)) {
        zr_local_log("--comm mpi: starting mpirun failed; run: mpirun -n %s %s ...", number, argv[0]);
        return EXIT_FAILED;
    }
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof(followed) / sizeof(*followed); i++)
        sigaddset(&signals, followed[i]);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaddset(&signals, SIGHUP); /* not under nohup(1) */
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    sigaction(SIGCHLD, &standard, &child_before); /* ignored children would leave no exit status */
    watch.mpirun = fork();
    if (watch.mpirun == 0)
        become_mpirun(line, &before, &child_before, parent);
    if (watch.mpirun > 0) {
        code = watch_over(&watch, &signals);
    } else {
        zr_local_log("cannot fork mpirun: raise `ulimit -u` or the cgroup's pids.max");
        code = EXIT_MEMORY;
    }
    sigaction(SIGCHLD, &child_before, NULL);
    if (!options->ends_process)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
