/* serve.c: see serve.h. Stands on publish.c, command.c, tracing.c and arena.c.
 *
 * One connection at a time, each with a second to say its line and to hear the answer; the rest wait in the
 * socket's queue, or are turned away by it. Only a connection that has said `attach` stays, beside the
 * others, and may say more lines; its records end with it. */
#define _GNU_SOURCE
#include "alloc/front/serve.h"

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
#include "alloc/base/system/folders.h"
#include "alloc/base/system/fork.h"
#include "alloc/base/system/os.h"
#include "alloc/debug/command.h"
#include "alloc/debug/publish.h"
#include "alloc/debug/trace.h"
#include "alloc/front/reclaim.h"

#define DUE_BYTES   ((size_t)64 << 20)
#define PATIENCE_NS UINT64_C(1000000000)
#define REFRESH_MS  1000
#define LOOK_NS     UINT64_C(10000000) /* between two looks for a request */
#define QUEUE_MOST  16
enum { ATTACHED_MOST = 64 }; /* arenas that one connection records */
#define DESCRIPTOR 200       /* from here on: programs that close what they do not know begin below */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STACK_BYTES ((size_t)4 << 20)
#else
#define STACK_BYTES ((size_t)256 << 10)
#endif

_Atomic uint32_t zr_serve_state;

static struct {
    int listening; /* -1: none */
    dev_t device;  /* of it: a program may close what is not its own, and open another there */
    ino_t inode;
    pid_t process; /* whose files these are; 0: nobody's */
    struct zr_publisher publisher;
    char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct zr_thread thread;
    void *stack;  /* of the thread, or of the next one: a child has it, since its C library looks at it */
    int attached; /* a connection; -1: none */
    unsigned attached_arenas[ATTACHED_MOST];
    unsigned attached_count;
} serve = {.listening = -1, .attached = -1};

/* ---- Connections --------------------------------------------------------------------------------------- */

/* Whether the descriptor is still the socket that was made. */
static bool is_ours(int fd)
{
    struct stat status;
    return fd >= 0 && fstat(fd, &status) == 0 && status.st_dev == serve.device &&
           status.st_ino == serve.inode;
}

static bool is_of_this_user(int connection)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* Waits for the connection until the deadline; false: it passed, or the other side is gone. */
static bool await(int connection, short what, uint64_t deadline_ns)
{
    uint64_t now_ns = zr_os_now_ns();
    struct pollfd poll_fd = {.fd = connection, .events = what};
    return now_ns < deadline_ns && poll(&poll_fd, 1, (int)((deadline_ns - now_ns) / 1000000) + 1) == 1 &&
           (poll_fd.revents & what);
}

/* A line, without its end; its length, 0: none came in time. */
static size_t hear(int connection, char line[ZR_COMMAND_BYTES])
{
    uint64_t deadline_ns = zr_os_now_ns() + PATIENCE_NS;
    size_t used = 0;
    while (used < ZR_COMMAND_BYTES - 1 && await(connection, POLLIN, deadline_ns)) {
        ssize_t got = recv(connection, line + used, ZR_COMMAND_BYTES - 1 - used, MSG_DONTWAIT);
        if (got <= 0 && (got == 0 || (errno != EINTR && errno != EAGAIN)))
            return 0;
        char *end = got > 0 ? memchr(line + used, '\n', (size_t)got) : NULL;
        used += got > 0 ? (size_t)got : 0;
        if (end) {
            *end = '\0';
            return (size_t)(end - line);
        }
    }
    return 0;
}

static void answer(int connection, bool good, const char *words)
{
    char line[1100];
    uint64_t deadline_ns = zr_os_now_ns() + PATIENCE_NS;
    int length = snprintf(line, sizeof line, "%s %s\n", good ? "ok" : "no", words);
    for (size_t sent = 0; sent < (size_t)length && await(connection, POLLOUT, deadline_ns);) {
        ssize_t more = send(connection, line + sent, (size_t)length - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (more < 0 && errno != EINTR && errno != EAGAIN)
            return;
        sent += more > 0 ? (size_t)more : 0;
    }
}

/* ---- Commands ------------------------------------------------------------------------------------------ */

static zr_result trim_all(char *words, size_t room_bytes)
{
    bool busy = false;
    snprintf(words, room_bytes, "%zu bytes went back", zr_reclaim(SIZE_MAX, NULL, &busy));
    return ZR_OK;
}

static void detach(void)
{
    if (serve.attached < 0)
        return;
    char words[256] = "";
    unsigned whole_count = 0;
    bool good = true;
    for (unsigned i = 0; i < serve.attached_count; i++) {
        zr_result result = zr_trace_stop_foreign(serve.attached_arenas[i]);
        whole_count += result == ZR_OK;
        good = good && result != ZR_ERR_IO;
        if (result != ZR_OK && (result == ZR_ERR_IO || !words[0]))
            snprintf(words, sizeof words, "%s", zr_last_error());
    }
    good = good && whole_count > 0; /* one of several arenas may have been destroyed meanwhile */
    answer(serve.attached, good, good ? "the record is whole" : words);
    close(serve.attached);
    serve.attached = -1;
    serve.attached_count = 0;
}

/* The first arena of a connection, or another one beside those that it records already. */
static zr_result attach(const struct zr_command *command, int connection)
{
    if (serve.attached >= 0 && serve.attached != connection)
        return zr_fail(ZR_ERR_INVALID, "somebody is attached to this process already");
    if (serve.attached_count == ATTACHED_MOST)
        return zr_fail(ZR_ERR_INVALID, "one connection records %d arenas at most", ATTACHED_MOST);
    zr_result result = zr_trace_start_foreign(command->arena, command->text);
    if (result != ZR_OK)
        return result;
    serve.attached = connection;
    serve.attached_arenas[serve.attached_count++] = command->arena;
    return ZR_OK;
}

static zr_result obey(const struct zr_command *command, int connection, char *words, size_t room_bytes)
{
    words[0] = '\0';
    switch (command->kind) {
    case ZR_COMMAND_STATS:
        zr_publisher_refresh(&serve.publisher, ZR_REFRESH_WALKED);
        return ZR_OK;
    case ZR_COMMAND_LEDGER:
        zr_publisher_refresh(&serve.publisher, ZR_REFRESH_DEVICES);
        return ZR_OK;
    case ZR_COMMAND_TRIM:
        return trim_all(words, room_bytes);
    case ZR_COMMAND_SNAPSHOT:
        return zr_trace_snapshot(command->arena, command->text);
    case ZR_COMMAND_ATTACH:
        return attach(command, connection);
    case ZR_COMMAND_RECORD:
        return zr_trace_start_foreign(command->arena, command->text);
    case ZR_COMMAND_STOP:
        return zr_trace_stop_foreign(command->arena);
    case ZR_COMMAND_MARK:
        snprintf(words, room_bytes, "in %u traces", zr_trace_mark_all(command->text));
        return ZR_OK;
    case ZR_COMMAND_STACKS:
        return zr_arenas_set_stacks(command->arena)
                   ? ZR_OK
                   : zr_fail(ZR_ERR_UNAVAILABLE, "an arena is busy: it has no stacks");
    default:
        return ZR_ERR_INVALID;
    }
}

/* Hears one line and answers it; false: there was none. */
static bool serve_line(int connection)
{
    char line[ZR_COMMAND_BYTES], words[128] = "";
    struct zr_command command;
    size_t length = hear(connection, line);
    if (length == 0)
        return false;
    zr_result result = zr_command_read(&command, line, length);
    if (result == ZR_OK)
        result = obey(&command, connection, words, sizeof words);
    answer(connection, result == ZR_OK, result == ZR_OK ? words : zr_last_error());
    return true;
}

static void serve_connection(int connection)
{
    if (is_of_this_user(connection))
        serve_line(connection);
    if (connection != serve.attached)
        close(connection);
}

/* Until the socket is gone. The process does not wait for this thread when it ends. */
static void *run(void *nothing)
{
    (void)nothing;
    pthread_setname_np(pthread_self(), "zr");
    for (;;) {
        struct pollfd fds[2] = {{.fd = serve.listening, .events = POLLIN},
                                {.fd = serve.attached, .events = POLLIN}};
        int ready = poll(fds, 2, REFRESH_MS);
        if (!is_ours(serve.listening))
            break;
        if (ready == 0)
            zr_publisher_refresh(&serve.publisher, ZR_REFRESH_COUNTERS);
        if (ready <= 0)
            continue;
        if (fds[1].revents && !serve_line(serve.attached))
            detach();
        int connection =
            fds[0].revents & POLLIN ? accept4(serve.listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
        if (connection >= 0)
            serve_connection(connection);
        else if (fds[0].revents)
            poll(NULL, 0, 100); /* out of descriptors, as a rule: not again at once */
    }
    detach();
    unlink(serve.socket_path);
    unlink(serve.publisher.path);
    return NULL;
}

/* ---- The beginning ------------------------------------------------------------------------------------- */

static zr_result open_socket(const char *folder)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat status;
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%ld.sock", folder, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return zr_fail(ZR_ERR_IO, "the path of '%s' is too long for a socket", folder);
    memcpy(serve.socket_path, address.sun_path, sizeof address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int high = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTOR) : -1;
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    unlink(address.sun_path); /* of a dead process of this number */
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0600) != 0 || listen(fd, QUEUE_MOST) != 0 || fstat(fd, &status) != 0) {
        if (fd >= 0)
            close(fd);
        return zr_fail(ZR_ERR_IO, "cannot listen at '%s' (error %d)", address.sun_path, errno);
    }
    serve.device = status.st_dev;
    serve.inode = status.st_ino;
    serve.listening = fd;
    return ZR_OK;
}

static zr_result begin(void)
{
    char folder[ZR_FOLDER_BYTES];
    serve.attached = -1;
    zr_result result = zr_folder_runtime(folder, true);
    if (result == ZR_OK)
        zr_publisher_name(&serve.publisher, folder);
    if (result == ZR_OK)
        result = open_socket(folder); /* before the file: who finds that connects at once */
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

/* Of the process that may begin: a child of vfork() has another number, and its parent's memory. */
static pid_t own_process;

/* In a child: what was its parent's stays the parent's. Nothing here is a lock. */
static void after_fork(bool child)
{
    if (!child)
        return;
    if (is_ours(serve.listening))
        close(serve.listening);
    if (serve.attached >= 0)
        close(serve.attached);
    serve.listening = serve.attached = -1;
    serve.process = 0;
    serve.publisher.shown = NULL; /* the kernel has left it out */
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

static char folder_of_requests[ZR_FOLDER_BYTES];

static void find_folder(void)
{
    zr_folder_runtime(folder_of_requests, false); /* it need not be there yet; begin() checks whose it is */
}

/* Whether somebody wants this process to begin. */
static bool was_asked(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char path[ZR_FOLDER_BYTES + 32];
    pthread_once(&once, find_folder);
    snprintf(path, sizeof path, "%s/%ld.ask", folder_of_requests, (long)getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    close(fd);
    unlink(path);
    return true;
}

bool zr_serve_note(const struct zr_arena *arena)
{
    static _Atomic uint64_t looked_ns;
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
    if (now_ns - atomic_load_explicit(&looked_ns, memory_order_relaxed) < LOOK_NS)
        return false;
    atomic_store_explicit(&looked_ns, now_ns, memory_order_relaxed);
    return true;
}

void zr_serve_start(void)
{
    uint32_t state = atomic_load(&zr_serve_state);
    int error = errno;
    if (getpid() == own_process && state != ZR_SERVE_ON && (state == ZR_SERVE_DUE || was_asked()) &&
        atomic_compare_exchange_strong(&zr_serve_state, &state, ZR_SERVE_ON))
        begin();
    errno = error;
}

/* A program whose steps all follow a plan takes no memory from the system, and so would not hear. */
zr_result zr_arena_get_stats(zr_arena *arena, struct zr_arena_stats *out)
{
    zr_result result = zr_stats_of(arena, out);
    if (result == ZR_OK && zr_serve_due(arena))
        zr_serve_start();
    return result;
}

/* The process ends, and the thread with it. */
static __attribute__((destructor)) void leave(void)
{
    if (serve.process != getpid())
        return;
    unlink(serve.socket_path);
    unlink(serve.publisher.path);
}
