/* serve.c: the thread that publishes figures and answers commands (see serve.h). Uses publish.c, command.c,
 * tracing.c and arena.c.
 *
 * Several connections are open at once, each with a second to send its line. If all are in use, a new
 * connection closes the one that has been silent longest. The thread answers one line at a time. A connection
 * is closed after its answer, unless it has sent `attach`: it may then send more lines, and its records end
 * with it. */
#define _GNU_SOURCE
#include "alloc/telemetry/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/fork.h"
#include "alloc/base/system/os.h"
#include "alloc/telemetry/command.h"
#include "alloc/telemetry/python.h"
#include "alloc/telemetry/trace.h"
#include "alloc/core/registry.h"
#include "alloc/telemetry/report.h"

#define DUE_BYTES       ((size_t)64 << 20)
#define TIMEOUT_NS      UINT64_C(1000000000)
#define REFRESH_MS      1000
#define CHECK_NS        UINT64_C(10000000) /* between two checks for a request */
#define QUEUE_MAX       16
#define CONNECTIONS_MAX 16  /* max connections at once */
enum { ATTACHED_MAX = 64 }; /* max arenas that one connection records */
#define DESCRIPTOR_MIN 200  /* lowest number to use, because programs close unknown descriptors from below */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STACK_BYTES ((size_t)4 << 20)
#else
#define STACK_BYTES ((size_t)256 << 10)
#endif

_Atomic uint32_t zr_serve_state;

struct connection {
    int fd;               /* -1: no connection */
    ino_t inode;          /* of the socket; see is_own_socket() */
    uint64_t deadline_ns; /* end of the time for its line; UINT64_MAX: attached, without a partial line */
    size_t used;
    char line[ZR_COMMAND_BYTES];
};

static struct {
    int listening; /* -1: no socket */
    dev_t device;  /* of the socket; see is_own_socket() */
    ino_t inode;
    pid_t process; /* the process that owns these files; 0: none */
    struct zr_publisher publisher;
    char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct zr_thread thread;
    void *stack; /* the thread's stack, which a child keeps and reuses, because its C library reads it */
    struct connection connections[CONNECTIONS_MAX];
    struct connection *attached; /* one of the connections, or NULL */
    unsigned attached_arenas[ATTACHED_MAX];
    unsigned attached_count;
} serve = {.listening = -1};

/* ---- Connections --------------------------------------------------------------------------------------- */

/* Whether the descriptor is still this file's socket: a program may close an unknown descriptor and open
 * another file with its number. All sockets have the same device number. */
static bool is_own_socket(int fd, ino_t inode)
{
    struct stat status;
    return fd >= 0 && fstat(fd, &status) == 0 && status.st_dev == serve.device && status.st_ino == inode;
}

static bool is_of_this_user(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

static void close_connection(struct connection *connection)
{
    if (is_own_socket(connection->fd, connection->inode))
        close(connection->fd);
    connection->fd = -1;
}

/* Accepts a connection. If no slot is free, closes the connection that has been silent longest. NULL: none
 * was accepted. */
static struct connection *accept_connection(void)
{
    struct connection *slot = NULL;
    struct stat status;
    int fd = accept4(serve.listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        poll(NULL, 0, 100); /* usually no descriptor is left: do not retry at once */
        return NULL;
    }
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
        struct connection *each = &serve.connections[i];
        bool better = !slot || (slot->fd >= 0 && (each->fd < 0 || each->deadline_ns < slot->deadline_ns));
        if (each != serve.attached && better)
            slot = each;
    }
    close_connection(slot);
    if (!is_of_this_user(fd) || fstat(fd, &status) != 0) {
        close(fd);
        return NULL;
    }
    slot->fd = fd;
    slot->inode = status.st_ino;
    slot->deadline_ns = zr_os_now_ns() + TIMEOUT_NS;
    slot->used = 0;
    return slot;
}

/* Receives a part of a line. Returns the length of a complete line without its end; 0: the line is
 * incomplete; -1: the line is too long or empty, or the connection is closed. */
static int receive_line(struct connection *connection)
{
    size_t capacity_bytes = ZR_COMMAND_BYTES - 1 - connection->used;
    char *at = connection->line + connection->used;
    if (!is_own_socket(connection->fd, connection->inode))
        return -1;
    ssize_t got = recv(connection->fd, at, capacity_bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return 0;
    char *end = got > 0 ? memchr(at, '\n', (size_t)got) : NULL;
    if (!end && (got <= 0 || (size_t)got == capacity_bytes))
        return -1;
    connection->used += (size_t)got;
    if (!end)
        return 0;
    *end = '\0';
    return end > connection->line ? (int)(end - connection->line) : -1;
}

/* Sends an answer. Waits for the peer as long as for a line. False: the answer was not sent. */
static bool answer(const struct connection *connection, bool good, const char *message)
{
    char line[1100];
    uint64_t deadline_ns = zr_os_now_ns() + TIMEOUT_NS, now_ns;
    int length = snprintf(line, sizeof line, "%s %s\n", good ? "ok" : "no", message);
    size_t sent = 0;
    while (sent < (size_t)length && (now_ns = zr_os_now_ns()) < deadline_ns) {
        struct pollfd poll_fd = {.fd = connection->fd, .events = POLLOUT};
        if (!is_own_socket(connection->fd, connection->inode))
            return false;
        if (poll(&poll_fd, 1, (int)((deadline_ns - now_ns) / 1000000) + 1) <= 0)
            continue;
        ssize_t more = send(connection->fd, line + sent, (size_t)length - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (more < 0 && errno != EINTR && errno != EAGAIN)
            return false;
        sent += more > 0 ? (size_t)more : 0;
    }
    return sent == (size_t)length;
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

static zr_result trim_all(char *message, size_t capacity_bytes)
{
    bool busy = false;
    snprintf(message, capacity_bytes, "%zu bytes released", zr_reclaim(SIZE_MAX, NULL, &busy));
    return ZR_OK;
}

static void detach(void)
{
    if (!serve.attached)
        return;
    char message[256] = "";
    unsigned whole_count = 0;
    bool good = true;
    for (unsigned i = 0; i < serve.attached_count; i++) {
        zr_result result = zr_trace_stop_foreign(serve.attached_arenas[i]);
        whole_count += result == ZR_OK;
        good = good && result != ZR_ERR_IO;
        if (result != ZR_OK && (result == ZR_ERR_IO || !message[0]))
            snprintf(message, sizeof message, "%s", zr_last_error());
    }
    good = good && whole_count > 0; /* some arenas may have been destroyed meanwhile */
    answer(serve.attached, good, good ? "the record is complete" : message);
    close_connection(serve.attached);
    serve.attached = NULL;
    serve.attached_count = 0;
}

/* Starts a record of an arena for the connection, which may already record other arenas. */
static zr_result attach(const struct zr_command *command, struct connection *connection)
{
    if (serve.attached && serve.attached != connection)
        return zr_fail(ZR_ERR_INVALID, "another client is already attached to this process");
    if (serve.attached_count == ATTACHED_MAX)
        return zr_fail(ZR_ERR_INVALID, "one connection records %d arenas at most", ATTACHED_MAX);
    zr_result result = zr_trace_start_foreign(command->arena, command->text);
    if (result != ZR_OK)
        return result;
    serve.attached = connection;
    serve.attached_arenas[serve.attached_count++] = command->arena;
    return ZR_OK;
}

static zr_result dispatch(const struct zr_command *command, struct connection *connection, char *message,
                          size_t capacity_bytes)
{
    message[0] = '\0';
    switch (command->kind) {
    case ZR_COMMAND_STATS:
        zr_publisher_refresh(&serve.publisher, ZR_REFRESH_WALKED);
        return ZR_OK;
    case ZR_COMMAND_LEDGER:
        zr_publisher_refresh(&serve.publisher, ZR_REFRESH_DEVICES);
        return ZR_OK;
    case ZR_COMMAND_TRIM:
        return trim_all(message, capacity_bytes);
    case ZR_COMMAND_SNAPSHOT:
        return zr_trace_snapshot(command->arena, command->text);
    case ZR_COMMAND_ATTACH:
        return attach(command, connection);
    case ZR_COMMAND_RECORD:
        return zr_trace_start_foreign(command->arena, command->text);
    case ZR_COMMAND_STOP:
        return zr_trace_stop_foreign(command->arena);
    case ZR_COMMAND_MARK:
        snprintf(message, capacity_bytes, "in %u traces", zr_trace_mark_all(command->text));
        return ZR_OK;
    case ZR_COMMAND_STACKS:
        if (!zr_arenas_set_stacks(command->arena))
            return zr_fail(ZR_ERR_UNAVAILABLE, "an arena is busy: it has no stacks");
        if (command->arena > 0 && zr_python_find() != ZR_OK)
            snprintf(message, capacity_bytes, "%s", zr_last_error());
        return ZR_OK;
    default:
        return ZR_ERR_INVALID;
    }
}

/* Runs a command line and answers it. False: the answer was not sent. */
static bool serve_line(struct connection *connection, int length)
{
    char message[128] = "";
    struct zr_command command;
    zr_result result = zr_command_read(&command, connection->line, (size_t)length);
    if (result == ZR_OK)
        result = dispatch(&command, connection, message, sizeof message);
    connection->used = 0;
    return answer(connection, result == ZR_OK, result == ZR_OK ? message : zr_last_error());
}

/* Handles data on a connection, or its timeout. An attached connection stays open after an answer. */
static void serve_connection(struct connection *connection, bool timed_out)
{
    int length = timed_out ? -1 : receive_line(connection);
    bool good = length == 0 || (length > 0 && serve_line(connection, length));
    if (connection != serve.attached) {
        if (!good || length > 0)
            close_connection(connection);
        return;
    }
    if (!good)
        detach();
    else if (length > 0)
        connection->deadline_ns = UINT64_MAX;
    else if (connection->used > 0 && connection->deadline_ns == UINT64_MAX)
        connection->deadline_ns = zr_os_now_ns() + TIMEOUT_NS;
}

/* Waits for data on a socket, until the first deadline of a connection or the next refresh. */
static int wait_ready(struct pollfd fds[1 + CONNECTIONS_MAX])
{
    uint64_t now_ns = zr_os_now_ns(), until_ns = now_ns + (uint64_t)REFRESH_MS * 1000000;
    fds[0] = (struct pollfd){.fd = serve.listening, .events = POLLIN};
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *each = &serve.connections[i];
        fds[1 + i] = (struct pollfd){.fd = each->fd, .events = POLLIN};
        if (each->fd >= 0 && each->deadline_ns < until_ns)
            until_ns = each->deadline_ns;
    }
    return poll(fds, 1 + CONNECTIONS_MAX, until_ns > now_ns ? (int)((until_ns - now_ns) / 1000000) + 1 : 0);
}

/* Runs until the socket is closed. The thread is never joined. */
static void *run(void *nothing)
{
    uint64_t refreshed_ns = zr_os_now_ns();
    (void)nothing;
    pthread_setname_np(pthread_self(), "zr");
    for (;;) {
        struct pollfd fds[1 + CONNECTIONS_MAX];
        int ready = wait_ready(fds);
        uint64_t now_ns = zr_os_now_ns();
        if (!is_own_socket(serve.listening, serve.inode))
            break;
        if (now_ns - refreshed_ns >= (uint64_t)REFRESH_MS * 1000000) {
            zr_publisher_refresh(&serve.publisher, ZR_REFRESH_COUNTERS);
            refreshed_ns = now_ns;
        }
        if (ready < 0)
            continue;
        for (unsigned i = 0; i < CONNECTIONS_MAX; i++) {
            struct connection *each = &serve.connections[i];
            if (each->fd >= 0 && (fds[1 + i].revents || now_ns >= each->deadline_ns))
                serve_connection(each, !fds[1 + i].revents);
        }
        struct connection *next = fds[0].revents ? accept_connection() : NULL;
        if (next)
            serve_connection(next, false);
    }
    detach();
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
        close_connection(&serve.connections[i]);
    unlink(serve.socket_path);
    unlink(serve.publisher.path);
    return NULL;
}

/* ---- Start --------------------------------------------------------------------------------------------- */

static zr_result open_socket(const char *folder)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat status;
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%ld.sock", folder, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return zr_fail(ZR_ERR_IO, "the path of '%s' is too long for a socket", folder);
    memcpy(serve.socket_path, address.sun_path, sizeof address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int high = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTOR_MIN) : -1;
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    unlink(address.sun_path); /* a dead process with the same number may have left it */
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0600) != 0 || listen(fd, QUEUE_MAX) != 0 || fstat(fd, &status) != 0) {
        if (fd >= 0)
            close(fd);
        return zr_fail(ZR_ERR_IO, "cannot listen at '%s' (error %d)", address.sun_path, errno);
    }
    serve.device = status.st_dev;
    serve.inode = status.st_ino;
    serve.listening = fd;
    return ZR_OK;
}

static zr_result start_server(void)
{
    char folder[ZR_FOLDER_BYTES];
    serve.attached = NULL;
    for (unsigned i = 0; i < CONNECTIONS_MAX; i++)
        serve.connections[i].fd = -1;
    zr_result result = zr_folder_runtime(folder, true);
    if (result == ZR_OK)
        zr_publisher_name(&serve.publisher, folder);
    if (result == ZR_OK)
        result = open_socket(folder); /* first, because a reader of the file connects at once */
    if (result != ZR_OK)
        return result;
    result = zr_publisher_start(&serve.publisher);
    if (result != ZR_OK)
        goto unwind_socket;
    if (!serve.stack)
        serve.stack = zr_pages_take(STACK_BYTES);
    void *stack = serve.stack;
    serve.process = getpid();
    result = stack ? zr_thread_start_on(&serve.thread, (struct zr_stack){stack, STACK_BYTES}, run, NULL)
                   : ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK)
        return ZR_OK;
    serve.process = 0;
    unlink(serve.publisher.path);
    zr_publisher_end(&serve.publisher);
unwind_socket:
    close(serve.listening);
    serve.listening = -1;
    unlink(serve.socket_path);
    return result;
}

/* The process that may start the server. A child of vfork() may not, because it shares its parent's memory.
 */
static pid_t own_process;

/* Closes the parent's sockets in a child. This file has no locks to reset. */
static void after_fork(bool child)
{
    if (!child)
        return;
    if (is_own_socket(serve.listening, serve.inode))
        close(serve.listening);
    for (unsigned i = 0; serve.listening >= 0 && i < CONNECTIONS_MAX; i++)
        close_connection(&serve.connections[i]);
    serve.listening = -1;
    serve.attached = NULL;
    serve.process = 0;
    serve.publisher.shown = NULL; /* the child has no such mapping (MADV_DONTFORK) */
    own_process = getpid();
    uint32_t on = ZR_SERVE_ON;
    if (zr_option_get(ZR_OPTION_PUBLISH) != 1)
        atomic_compare_exchange_strong(&zr_serve_state, &on, ZR_SERVE_NOT);
}

static void prepare(void)
{
    static const struct zr_fork_room room = {.open = after_fork};
    own_process = getpid();
    zr_fork_register(ZR_FORK_SERVE, &room);
}

static char requests_folder[ZR_FOLDER_BYTES];

static void find_folder(void)
{
    /* The folder may not exist yet. start_server() creates it and checks its owner. */
    zr_folder_runtime(requests_folder, false);
}

/* Whether another process asks this process to publish. */
static bool is_requested(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char path[ZR_FOLDER_BYTES + 32];
    pthread_once(&once, find_folder);
    snprintf(path, sizeof path, "%s/%ld.ask", requests_folder, (long)getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    close(fd);
    unlink(path);
    return true;
}

bool zr_serve_note(const struct zr_arena *arena)
{
    static _Atomic uint64_t checked_ns;
    bool holds_memory = strcmp(arena->backend->ops->name, "sim") != 0;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint32_t not = ZR_SERVE_NOT;
    uint64_t publish = zr_option_get(ZR_OPTION_PUBLISH);
    pthread_once(&once, prepare);
    if (publish == 1 || getauxval(AT_SECURE))
        atomic_store(&zr_serve_state, ZR_SERVE_ON);
    else if (publish == 2 ||
             (holds_memory && atomic_load(&arena->first_stripe->all_reserved_bytes) >= DUE_BYTES))
        atomic_compare_exchange_strong(&zr_serve_state, &not, ZR_SERVE_DUE);
    uint32_t state = atomic_load(&zr_serve_state);
    if (state != ZR_SERVE_NOT || !holds_memory)
        return state == ZR_SERVE_DUE;
    uint64_t now_ns = zr_os_now_ns();
    if (now_ns - atomic_load_explicit(&checked_ns, memory_order_relaxed) < CHECK_NS)
        return false;
    atomic_store_explicit(&checked_ns, now_ns, memory_order_relaxed);
    return true;
}

void zr_serve_start(void)
{
    uint32_t state = atomic_load(&zr_serve_state);
    int error = errno;
    if (getpid() == own_process && state != ZR_SERVE_ON && (state == ZR_SERVE_DUE || is_requested()) &&
        atomic_compare_exchange_strong(&zr_serve_state, &state, ZR_SERVE_ON))
        start_server();
    errno = error;
}

/* Checks for a request here too, because a program whose steps follow a plan takes no memory from the system.
 */
zr_result zr_arena_get_stats(zr_arena *arena, struct zr_arena_stats *out)
{
    zr_result result = zr_stats_of(arena, out);
    if (result == ZR_OK && zr_serve_due(arena))
        zr_serve_start();
    return result;
}

/* Removes the files at the exit of the process, which ends the thread. */
static __attribute__((destructor)) void remove_files(void)
{
    if (serve.process != getpid())
        return;
    unlink(serve.socket_path);
    unlink(serve.publisher.path);
}
