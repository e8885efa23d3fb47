/* live.c: see live.h. Uses alloc/base. */
#define _GNU_SOURCE
#include "defrag/trace/live.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/process.h"

/* ---- Commands ------------------------------------------------------------------------------------------ */

static zr_result path_of(char *out, size_t room_bytes, long pid, const char *kind)
{
    char folder[ZR_FOLDER_BYTES];
    zr_result result = zr_folder_runtime(folder, false);
    if (result != ZR_OK)
        return zr_fail(ZR_ERR_UNAVAILABLE, "no process of this user publishes its memory (%s)",
                       zr_last_error());
    int length = snprintf(out, room_bytes, "%s/%ld.%s", folder, pid, kind);
    return length >= 0 && (size_t)length < room_bytes ? ZR_OK
                                                      : zr_fail(ZR_ERR_INVALID, "'%s' is too long", folder);
}

static bool has_ended(long pid)
{
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static zr_result gone(long pid)
{
    if (has_ended(pid))
        return zr_fail(ZR_ERR_UNAVAILABLE, "there is no process %ld: it exited, or never existed", pid);
    if (kill((pid_t)pid, 0) != 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "process %ld belongs to another user", pid);
    return zr_fail(
        ZR_ERR_UNAVAILABLE,
        "process %ld publishes no memory: it holds less than 64 MiB with zr (ZR_CONF=publish:on publishes it at once), or does not use zr",
        pid);
}

/* ---- Waiting for a process ----------------------------------------------------------------------------- */

enum { SLICE_MS = 100, SAY_MS = 1000, REASON_ROOM = 160 };

struct wait {
    const struct zr_live_patience *patience;
    long pid; /* 0: unknown, such as a process of another container */
    uint64_t start_ns;
    uint64_t worked_ns; /* when its zr thread last used processor time */
    uint64_t ticks;
    bool small, said; /* small: it has no zr thread yet */
};

bool zr_live_is_stopped(long pid)
{
    char state = zr_process_state((int32_t)pid);
    return state == 'T' || state == 't';
}

/* The process, its state, and a remedy. */
static const char *reason_of(char out[REASON_ROOM], long pid, bool small)
{
    char state = pid > 0 ? zr_process_state((int32_t)pid) : '\0';
    if (state == 'T')
        snprintf(out, REASON_ROOM, "process %ld is stopped: `kill -CONT %ld` lets it go on", pid, pid);
    else if (state == 't')
        snprintf(out, REASON_ROOM, "process %ld is stopped by a debugger: continue it there", pid);
    else if (state && small)
        snprintf(out, REASON_ROOM,
                 "process %ld is small: it sees the request when it next takes memory from the system", pid);
    else if (state == 'D')
        snprintf(out, REASON_ROOM, "process %ld waits in the kernel for a disk or a driver: ask again later",
                 pid);
    else if (state)
        snprintf(out, REASON_ROOM,
                 "process %ld does not answer (state %c); it may wait for a driver call: ask again later",
                 pid, state);
    else
        snprintf(out, REASON_ROOM, "the process does not answer: ask again later");
    return out;
}

static struct wait wait_begin(long pid, const struct zr_live_patience *patience)
{
    uint64_t now_ns = zr_os_now_ns();
    return (struct wait){.patience = patience, .pid = pid, .start_ns = now_ns, .worked_ns = now_ns};
}

/* Waits a slice of time; false: the time is over. Reports once what it waits for. */
static bool wait_on(struct wait *wait)
{
    const struct zr_live_patience *patience = wait->patience;
    char reason[REASON_ROOM], words[REASON_ROOM + 64];
    uint64_t now_ns = zr_os_now_ns(), passed_ms = (now_ns - wait->start_ns) / 1000000;
    if (patience->passes_stopped && zr_live_is_stopped(wait->pid))
        return false;
    if (patience->working_ms > 0 && wait->pid > 0) {
        uint64_t ticks = zr_process_thread_ticks((int32_t)wait->pid, "zr");
        wait->worked_ns = ticks > wait->ticks ? now_ns : wait->worked_ns;
        wait->ticks = ticks;
    }
    if ((now_ns - wait->worked_ns) / 1000000 >= (uint64_t)patience->timeout_ms ||
        (patience->working_ms > 0 && passed_ms >= (uint64_t)patience->working_ms))
        return false;
    if (patience->say && !wait->said && passed_ms >= SAY_MS) {
        snprintf(words, sizeof words, "%s; waiting at most %d s", reason_of(reason, wait->pid, wait->small),
                 patience->timeout_ms / 1000);
        patience->say(words);
        wait->said = true;
    }
    return true;
}

static zr_result wait_fail(const struct wait *wait)
{
    char reason[REASON_ROOM];
    return zr_fail(ZR_ERR_TIMEOUT, "%s (no answer for %.1f s)", reason_of(reason, wait->pid, wait->small),
                   (double)(zr_os_now_ns() - wait->start_ns) / 1e9);
}

/* The process at the other end; 0: unknown. */
static long peer_of(int connection)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 ? (long)peer.pid : 0;
}

/* ---- Connections --------------------------------------------------------------------------------------- */

/* Both ends must belong to the same user. */
static zr_result open_connection(int *out, long pid)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    char reason[REASON_ROOM];
    zr_result result = path_of(address.sun_path, sizeof address.sun_path, pid, "sock");
    *out = -1;
    if (result != ZR_OK)
        return result;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failed = fd >= 0 ? connect(fd, (const struct sockaddr *)&address, sizeof address) : -1;
    for (unsigned tries = 0; failed != 0 && errno == EAGAIN && tries < 50 && !zr_live_is_stopped(pid);
         tries++) {
        poll(NULL, 0, 20); /* its queue of connections is full */
        failed = connect(fd, (const struct sockaddr *)&address, sizeof address);
    }
    if (failed == 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid()) {
        *out = fd;
        return ZR_OK;
    }
    bool busy = failed != 0 && errno == EAGAIN;
    if (fd >= 0)
        close(fd);
    if (busy && zr_live_is_stopped(pid))
        return zr_fail(ZR_ERR_TIMEOUT, "%s", reason_of(reason, pid, false));
    return busy ? zr_fail(ZR_ERR_IO, "process %ld has too many open connections", pid) : gone(pid);
}

zr_result zr_live_hear(int connection, const struct zr_live_patience *patience,
                       char words[ZR_LIVE_ANSWER_BYTES])
{
    struct wait wait = wait_begin(peer_of(connection), patience);
    size_t used = 0;
    while (used < ZR_LIVE_ANSWER_BYTES - 1) {
        struct pollfd poll_fd = {.fd = connection, .events = POLLIN};
        if (poll(&poll_fd, 1, 0) <= 0) {
            if (!wait_on(&wait))
                return wait_fail(&wait);
            if (poll(&poll_fd, 1, SLICE_MS) <= 0)
                continue;
        }
        ssize_t got = recv(connection, words + used, ZR_LIVE_ANSWER_BYTES - 1 - used, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return zr_fail(ZR_ERR_IO, "the process exited, or refused the connection");
        used += got > 0 ? (size_t)got : 0;
        words[used] = '\0';
        char *end = memchr(words, '\n', used);
        if (!end)
            continue;
        *end = '\0';
        bool good = strncmp(words, "ok ", 3) == 0;
        memmove(words, words + (used >= 3 ? 3 : used), strlen(words + (used >= 3 ? 3 : used)) + 1);
        return good ? ZR_OK : zr_fail(ZR_ERR_INVALID, "%s", words);
    }
    return zr_fail(ZR_ERR_IO, "the process's answer is too long");
}

/* A line is much shorter than the buffer of an idle socket. */
static bool send_line(int connection, const char *command)
{
    struct iovec pieces[2] = {{(char *)(uintptr_t)command, strlen(command)}, {(char *)(uintptr_t) "\n", 1}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    return sendmsg(connection, &message, MSG_NOSIGNAL) == (ssize_t)pieces[0].iov_len + 1;
}

zr_result zr_live_say(int connection, const char *command, const struct zr_live_patience *patience,
                      char words[ZR_LIVE_ANSWER_BYTES])
{
    words[0] = '\0';
    return send_line(connection, command) ? zr_live_hear(connection, patience, words)
                                          : zr_fail(ZR_ERR_IO, "the process exited, or does not listen");
}

zr_result zr_live_send(long pid, const char *command, int *connection)
{
    zr_result result = open_connection(connection, pid);
    if (result != ZR_OK)
        return result;
    if (send_line(*connection, command))
        return ZR_OK;
    close(*connection);
    *connection = -1;
    return zr_fail(ZR_ERR_IO, "process %ld does not listen", pid);
}

zr_result zr_live_ask(long pid, const char *command, const struct zr_live_patience *patience,
                      char words[ZR_LIVE_ANSWER_BYTES], int *connection)
{
    int fd;
    words[0] = '\0';
    if (connection)
        *connection = -1;
    zr_result result = zr_live_send(pid, command, &fd);
    if (result != ZR_OK)
        return result;
    result = zr_live_hear(fd, patience, words);
    if (result == ZR_OK && connection)
        *connection = fd;
    else
        close(fd);
    return result;
}

void zr_live_hang_up(int connection)
{
    shutdown(connection, SHUT_WR);
}

/* ---- Figures ------------------------------------------------------------------------------------------- */

/* Copies the figures between two writes. False: the writer died during a write. */
static bool copy_shown(int fd, struct zr_published *out)
{
    for (unsigned tries = 0; tries < 200; tries++) {
        struct zr_published again;
        if (pread(fd, out, sizeof *out, 0) != (ssize_t)sizeof *out)
            return false;
        if (atomic_load(&out->sequence) % 2 == 0 &&
            pread(fd, &again, offsetof(struct zr_published, arenas_count), 0) > 0 &&
            atomic_load(&again.sequence) == atomic_load(&out->sequence))
            return true;
        poll(NULL, 0, 2);
    }
    return false;
}

/* Opens the published file, which must belong to this user with mode 0600; -1: there is none. */
static int open_shown(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
                    (status.st_mode & 077) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Terminates all texts. */
static void end_texts(struct zr_live *live)
{
    live->shown.program[ZR_PUBLISHED_NAME_BYTES - 1] = '\0';
    live->arenas_count =
        live->shown.arenas_count < ZR_PUBLISHED_ARENAS ? live->shown.arenas_count : ZR_PUBLISHED_ARENAS;
    for (unsigned i = 0; i < live->arenas_count; i++) {
        struct zr_published_arena *arena = &live->shown.arenas[i];
        arena->name[ZR_PUBLISHED_NAME_BYTES - 1] = '\0';
        if (arena->ranges_count > ZR_PUBLISHED_RANGES)
            arena->ranges_count = ZR_PUBLISHED_RANGES;
    }
}

/* Reads the figures, after sending `command` if `patience` is not NULL. */
static zr_result read_shown(struct zr_live *out, long pid, const char *command,
                            const struct zr_live_patience *patience)
{
    char path[ZR_FOLDER_BYTES + 32], socket_path[ZR_FOLDER_BYTES + 32], words[ZR_LIVE_ANSWER_BYTES];
    memset(out, 0, sizeof *out);
    zr_result result = path_of(path, sizeof path, pid, "live");
    if (result == ZR_OK)
        result = path_of(socket_path, sizeof socket_path, pid, "sock");
    if (result != ZR_OK)
        return result;
    int fd = open_shown(path);
    if (fd < 0)
        return gone(pid);
    bool whole = copy_shown(fd, &out->shown);
    struct zr_process process = out->shown.process;
    bool known = memcmp(out->shown.magic, ZR_PUBLISHED_MAGIC, sizeof out->shown.magic) == 0;
    bool ours = known && out->shown.version == ZR_PUBLISHED_VERSION && out->shown.bytes == sizeof out->shown;
    /* Gone: the process died, its number belongs to another process, or it became another program by exec. */
    bool alive = known && process.pid == pid && zr_process_lives(&process);
    zr_result answered = alive && patience ? zr_live_ask(pid, command, patience, words, NULL) : ZR_OK;
    if (answered == ZR_ERR_IO) /* the process may have exited meanwhile: then the connection is refused */
        answered = zr_live_ask(pid, command, patience, words, NULL);
    if (!alive || answered == ZR_ERR_UNAVAILABLE) {
        if (known) {
            unlink(path);
            unlink(socket_path);
        }
        result = gone(pid);
    } else if (!ours) {
        result = zr_fail(ZR_ERR_FORMAT, "process %ld runs with another release of zr", pid);
    } else if (answered == ZR_OK && patience) {
        whole = copy_shown(fd, &out->shown);
    } else if (answered == ZR_ERR_TIMEOUT) {
        result = answered;
    }
    close(fd);
    if (result == ZR_OK && !whole)
        result = zr_fail(ZR_ERR_UNAVAILABLE, "process %ld did not publish its memory in time", pid);
    end_texts(out);
    return result;
}

zr_result zr_live_read(struct zr_live *out, long pid, const struct zr_live_patience *fresh)
{
    return read_shown(out, pid, "stats", fresh);
}

zr_result zr_live_read_devices(struct zr_live *out, long pid, const struct zr_live_patience *patience)
{
    return read_shown(out, pid, "ledger", patience);
}

/* ---- Small processes ----------------------------------------------------------------------------------- */

enum { WAKE_MS = 3000 };

/* Looks at the names of its mappings: libraries of zr, or an arena's memfd. */
bool zr_live_runs(long pid)
{
    char path[64], text[4096 + 32];
    struct zr_file file;
    size_t held = 0, got = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%ld/maps", pid);
    if (zr_file_open(&file, path) != ZR_OK)
        return false;
    while (!found && zr_file_read(&file, text + held, 4096, &got) == ZR_OK && got > 0) {
        text[held + got] = '\0';
        found = strstr(text, "/libzr") || strstr(text, "/memfd:zr");
        size_t keep = held + got < 16 ? held + got : 16; /* a name may continue in the next read */
        memmove(text, text + held + got - keep, keep);
        held = keep;
    }
    zr_file_close(&file);
    return found;
}

/* The path of the process's program; false: it exited, or belongs to another user. */
static bool program_of(const char *pid, char *out, size_t room_bytes)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/exe", pid);
    ssize_t bytes = readlink(path, out, room_bytes - 1);
    out[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

bool zr_live_is_quiet(long pid)
{
    static struct zr_live live;
    char path[64], number[24], program[4096], own[4096];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%ld", pid);
    snprintf(number, sizeof number, "%ld", pid);
    if (stat(path, &status) != 0 || status.st_uid != geteuid() ||
        !program_of(number, program, sizeof program) ||
        (program_of("self", own, sizeof own) && strcmp(program, own) == 0))
        return false;
    const char *slash = strrchr(program, '/');
    return (strcmp(slash ? slash + 1 : program, "zrd") == 0 || zr_live_runs(pid)) &&
           zr_live_read(&live, pid, NULL) == ZR_ERR_UNAVAILABLE;
}

zr_result zr_live_reach(struct zr_live *out, long pid, bool fresh, const struct zr_live_patience *patience)
{
    char folder[ZR_FOLDER_BYTES], path[ZR_FOLDER_BYTES + 32];
    zr_result result = zr_live_read(out, pid, fresh ? patience : NULL);
    if (result != ZR_ERR_UNAVAILABLE)
        return result;
    if (!zr_live_runs(pid))
        return gone(pid);
    result = zr_folder_runtime(folder, true);
    if (result != ZR_OK)
        return result;
    snprintf(path, sizeof path, "%s/%ld.ask", folder, pid);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return zr_fail(ZR_ERR_IO, "cannot make '%s' (error %d)", path, errno);
    close(fd);
    struct wait wait = wait_begin(pid, &(struct zr_live_patience){WAKE_MS, .say = patience->say});
    wait.small = true;
    do {
        poll(NULL, 0, 10);
        result = zr_live_read(out, pid, fresh ? patience : NULL);
    } while (result == ZR_ERR_UNAVAILABLE && !has_ended(pid) && wait_on(&wait));
    unlink(path);
    if (result != ZR_ERR_UNAVAILABLE || has_ended(pid))
        return result;
    if (zr_live_is_stopped(pid))
        return wait_fail(&wait);
    return zr_fail(
        ZR_ERR_UNAVAILABLE,
        "process %ld holds less than 64 MiB, so it has no zr thread, and did not take memory from the system or read its own figures within %d s, when it would see the request: ask while it allocates, or start it with ZR_CONF=publish:on (with publish:off it never answers)",
        pid, WAKE_MS / 1000);
}

/* ---- Listing processes --------------------------------------------------------------------------------- */

/* Removes the request of a killed zr to a process that exited. */
static void remove_request(const char *folder, long pid)
{
    char path[ZR_FOLDER_BYTES + 32];
    snprintf(path, sizeof path, "%s/%ld.ask", folder, pid);
    unlink(path);
}

zr_result zr_live_folder(char folder[ZR_FOLDER_BYTES])
{
    struct sockaddr_un address;
    zr_result result = zr_folder_runtime(folder, false);
    if (result != ZR_OK && access(folder, F_OK) != 0 && errno == ENOENT)
        result = ZR_OK; /* the first process creates the folder */
    if (result == ZR_OK && strlen(folder) + sizeof "/2147483647.sock" > sizeof address.sun_path)
        result = zr_fail(ZR_ERR_IO, "'%s' is too long for a socket: set a shorter XDG_RUNTIME_DIR", folder);
    return result;
}

/* The lowest number above `pid` of a .live file, or with `pid` -1 the highest; 0: there is none. */
static long number_after(long pid)
{
    char path[ZR_FOLDER_BYTES];
    struct zr_folder folder;
    struct zr_folder_entry entry;
    long best = 0;
    if (zr_folder_runtime(path, false) != ZR_OK || zr_folder_open(&folder, path) != ZR_OK)
        return 0;
    while (zr_folder_next(&folder, &entry) == ZR_OK && entry.name) {
        char *end;
        long number = strtol(entry.name, &end, 10);
        if (strcmp(end, ".ask") == 0 && number > 0 && has_ended(number))
            remove_request(path, number);
        if (strcmp(end, ".live") == 0 && number > pid && (best == 0 || (pid < 0) == (number > best)))
            best = number;
    }
    zr_folder_close(&folder);
    return best;
}

bool zr_live_next(long *pid)
{
    *pid = number_after(*pid);
    return *pid > 0;
}

long zr_live_last(void)
{
    return number_after(-1);
}

const struct zr_published_arena *zr_live_largest(const struct zr_live *live)
{
    const struct zr_published_arena *best = NULL;
    for (unsigned i = 0; i < live->arenas_count; i++)
        if (!best || live->shown.arenas[i].stats.peak_live_bytes > best->stats.peak_live_bytes)
            best = &live->shown.arenas[i];
    return best;
}
