/* run_watch.c: see run.h: the folder and the environment of a run, and the wait for the program. */
#define _GNU_SOURCE
#include "defrag/tool/run/run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"

/* ---- The folder ---------------------------------------------------------------------------------------- */

#define FOLDER_NAME "zr-run-"
enum { MAKING_S = 60 };

static const char *folder_of_folders(void)
{
    const char *folder = getenv("TMPDIR");
    return folder && folder[0] == '/' ? folder : "/tmp";
}

/* Whether a killed `zr run` left the folder: the lock of its shared table is free, or it has had no table for
 * longer than a run needs to create one. */
static bool is_left_over(const char *path)
{
    struct stat status;
    char table[PATH_MAX + 16];
    snprintf(table, sizeof table, "%s/" ZR_USAGE_FILE, path);
    if (lstat(path, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
        return false;
    int fd = open(table, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool free = fd >= 0 ? flock(fd, LOCK_EX | LOCK_NB) == 0
                        : errno == ENOENT && time(NULL) - status.st_mtime > MAKING_S;
    if (fd >= 0)
        close(fd);
    return free;
}

static void remove_left_overs(void)
{
    struct zr_folder folder;
    struct zr_folder_entry entry;
    char path[PATH_MAX];
    if (zr_folder_open(&folder, folder_of_folders()) != ZR_OK)
        return;
    while (zr_folder_next(&folder, &entry) == ZR_OK && entry.name)
        if (strncmp(entry.name, FOLDER_NAME, strlen(FOLDER_NAME)) == 0 &&
            zr_path_join(path, sizeof path, &(struct zr_path_parts){folder_of_folders(), entry.name}) ==
                ZR_OK &&
            is_left_over(path))
            zr_path_remove_folder(path);
    zr_folder_close(&folder);
}

/* Creates the shared table, and gives it its name once it is complete and locked. */
static bool make_table(struct zr_run_folder *folder)
{
    static const struct zr_usage_table empty; /* mostly a hole: only the first page is written */
    char fresh[PATH_MAX + 16], name[PATH_MAX + 16];
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeof empty) {
        errno = EFBIG; /* `ulimit -f`: SIGXFSZ would end zr */
        return false;
    }
    snprintf(fresh, sizeof fresh, "%s/new", folder->path);
    snprintf(name, sizeof name, "%s/" ZR_USAGE_FILE, folder->path);
    folder->fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (folder->fd < 0 || flock(folder->fd, LOCK_EX | LOCK_NB) != 0 ||
        ftruncate(folder->fd, sizeof empty) != 0 ||
        !zr_write_all(folder->fd, 0, &empty, offsetof(struct zr_usage_table, records)))
        return false;
    void *table = mmap(NULL, sizeof empty, PROT_READ | PROT_WRITE, MAP_SHARED, folder->fd, 0);
    if (table == MAP_FAILED)
        return false;
    folder->table = table;
    folder->table->magic = ZR_USAGE_MAGIC;
    folder->table->version = ZR_USAGE_VERSION;
    folder->table->record_bytes = sizeof(struct zr_usage);
    return rename(fresh, name) == 0;
}

zr_result zr_run_folder_make(struct zr_run_folder *out)
{
    *out = (struct zr_run_folder){.fd = -1};
    remove_left_overs();
    char path[PATH_MAX];
    errno = ENAMETOOLONG;
    int length = snprintf(path, sizeof path, "%s/" FOLDER_NAME "XXXXXX", folder_of_folders());
    if (length < (int)sizeof path && mkdtemp(path)) {
        strcpy(out->path, path);
        if (make_table(out))
            return ZR_OK;
    }
    char room[64];
    zr_result result =
        zr_fail(ZR_ERR_IO, "%s: cannot create a folder for the figures: %s; set TMPDIR to a writable folder",
                folder_of_folders(), strerror_r(errno, room, sizeof room));
    zr_run_folder_remove(out);
    return result;
}

void zr_run_folder_remove(struct zr_run_folder *folder)
{
    if (folder->table)
        munmap(folder->table, sizeof *folder->table);
    if (folder->path[0])
        zr_path_remove_folder(folder->path);
    if (folder->fd >= 0)
        close(folder->fd);
    *folder = (struct zr_run_folder){.fd = -1};
}

/* ---- The environment ----------------------------------------------------------------------------------- */

bool zr_run_put_before(const char *variable, const char *first, const char *separator)
{
    const char *old = getenv(variable);
    char value[16384];
    int length = snprintf(value, sizeof value, "%s%s%s", first, old && *old ? separator : "", old ? old : "");
    return length < (int)sizeof value && setenv(variable, value, 1) == 0;
}

/* ---- Signals ------------------------------------------------------------------------------------------- */

enum { LOOK_MS = 200 };

/* Selects all signals that sigwait can handle: not those of a fault in zr itself. */
static void choose_signals(sigset_t *out)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigfillset(out);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(out, own[i]);
}

static void note_interruption(struct zr_run_end *out, int number)
{
    if (number == SIGINT || number == SIGTERM || number == SIGHUP)
        out->interrupted = number;
}

/* Forwards a signal that a process sent; a terminal sends its signals to the whole group, including the
 * program. */
static void pass_on(pid_t child, const siginfo_t *info)
{
    if (info->si_code > 0 || info->si_pid == child)
        return;
    if (info->si_code == SI_QUEUE)
        sigqueue(child, info->si_signo, info->si_value);
    else
        kill(child, info->si_signo);
}

/* ---- Killed processes ---------------------------------------------------------------------------------- */

/* The kernel's peak of resident memory; 0: the process does not exist, or is dead. */
static uint64_t peak_resident(pid_t process)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%ld/status", (long)process);
    zr_read_text(path, text, sizeof text);
    const char *line = strstr(text, "\nVmHWM:");
    return line ? strtoull(line + 7, NULL, 10) * 1024 : 0;
}

/* Marks killed processes, so that the sums drop their memory. */
static void look_after(struct zr_usage_table *table)
{
    for (unsigned i = zr_usage_next(table->running, 0); i < ZR_USAGE_COUNT;
         i = zr_usage_next(table->running, i + 1)) {
        struct zr_usage *record = &table->records[i];
        uint64_t resident_bytes = peak_resident(record->process);
        if (resident_bytes > record->peak_resident_bytes)
            record->peak_resident_bytes = resident_bytes;
        if (resident_bytes == 0)
            zr_usage_uncount(table, record, ZR_USAGE_GONE);
    }
}

/* ---- The program --------------------------------------------------------------------------------------- */

struct mask {
    sigset_t before;
    struct sigaction children;
};

/* Runs in the child and never returns. */
static void start_program(const struct zr_run_start *start, const struct mask *mask, pid_t parent)
{
    /* SIGKILL to zr must end the program, too. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(ZR_TOOL_THRESHOLD);
    sigaction(SIGCHLD, &mask->children, NULL);
    sigprocmask(SIG_SETMASK, &mask->before, NULL);
    if (!start->prepare(start->argument))
        _exit(ZR_TOOL_USAGE);
    execv(start->path, start->command);
    int error = errno;
    zr_tool_log("run: %s: %s", start->path, strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}

/* Waits for the program's end; stops zr when the program stops. */
static void wait_for(pid_t child, const sigset_t *signals, struct zr_usage_table *table,
                     struct zr_run_end *out)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
    struct rusage usage;
    for (;;) {
        siginfo_t info;
        int number = sigtimedwait(signals, &info, &pause);
        if (number > 0 && number != SIGCHLD) {
            note_interruption(out, number);
            pass_on(child, &info);
            continue;
        }
        pid_t got;
        while ((got = wait4(child, &out->status, WNOHANG | WUNTRACED, &usage)) == child) {
            if (!WIFSTOPPED(out->status)) {
                out->peak_resident_bytes = (uint64_t)usage.ru_maxrss * 1024;
                return;
            }
            kill(getpid(), SIGSTOP);
        }
        if (number < 0)
            look_after(table);
    }
}

int zr_run_watch(const struct zr_run_start *start, struct zr_run_end *out)
{
    struct mask mask;
    sigset_t signals;
    pid_t parent = getpid();
    *out = (struct zr_run_end){0};
    choose_signals(&signals);
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &mask.children);
    sigprocmask(SIG_BLOCK, &signals, &mask.before);
    if (start->signals)
        mask.before = *start->signals;
    uint64_t started_ns = zr_os_now_ns();
    pid_t child = fork();
    if (child < 0) {
        zr_tool_log("run: cannot start a process: %s", strerror(errno));
        return 126;
    }
    if (child == 0)
        start_program(start, &mask, parent);
    start->folder->table->root = child;
    wait_for(child, &signals, start->folder->table, out);
    look_after(start->folder->table);
    for (int number; (number = sigtimedwait(&signals, NULL, &(struct timespec){0})) > 0;)
        note_interruption(out, number); /* a terminal's, which came after the program's end */
    out->ns = zr_os_now_ns() - started_ns;
    return -1;
}

int zr_run_end_alike(int status)
{
    if (!WIFSIGNALED(status))
        return WEXITSTATUS(status);
    int number = WTERMSIG(status);
    sigset_t one;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* the program wrote its own core */
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    kill(getpid(), number);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    return 128 + number;
}
