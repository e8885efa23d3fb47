/* serve.c: `zr serve`: serves the figures of running processes over HTTP, for Prometheus. Uses metrics.c.
 *
 * The server handles one connection at a time. A request has two seconds to arrive, and a client has ten
 * seconds to read the answer. Only its user can open the default socket. All users of the machine can read a
 * loopback port, so a port requires an option. The port rejects requests with another Host header, because a
 * web page can make a browser send them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "defrag/tool/input.h"
#include "defrag/tool/live/top_model.h"

enum { PATIENCE_MS = 1000, REQUEST_BYTES = 8192, HEAR_MS = 2000, ANSWER_MS = 10000, QUEUE_MAX = 16 };

static const char help[] =
    "Serves the figures of running processes to Prometheus.\n"
    "\n"
    "Examples\n"
    "  zr serve --listen 127.0.0.1:9464       http://127.0.0.1:9464/metrics\n"
    "  zr serve & curl --unix-socket $XDG_RUNTIME_DIR/zr/metrics.sock http://zr/metrics\n"
    "  zr serve --once > zr.prom              for a collector of text files\n"
    "\n"
    "zr serve [PID..] [options]\n"
    "  --socket PATH     (default: metrics.sock in the folder of the processes' sockets), mode 0600\n"
    "  --listen ADDRESS  127.0.0.1:PORT or [::1]:PORT; 0: any port. All users of this machine can read it\n"
    "  --once            prints the metrics and exits\n"
    "\n"
    "examples/grafana.json is a dashboard for these metrics.\n";

struct settings {
    struct zr_tool_arguments arguments;
    const char *socket, *listen;
    bool once;
};

struct server {
    struct zr_top *top;
    int listening;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "": a port */
};

static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

/* ---- Answers ------------------------------------------------------------------------------------------- */

static bool await(int connection, short events, uint64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = connection, .events = events};
    uint64_t now_ns = zr_os_now_ns();
    int ready = -1;
    for (; !ended && ready < 0 && now_ns < deadline_ns; now_ns = zr_os_now_ns()) {
        ready = poll(&poll_fd, 1, (int)((deadline_ns - now_ns) / 1000000) + 1);
        if (ready < 0 && errno != EINTR) /* after EINTR, the loop checks `ended` */
            return false;
    }
    return ready == 1 && (poll_fd.revents & events);
}

/* Reads the head of a request and terminates it with a zero. False: the deadline passed, or the head is too
 * long. */
static bool hear(int connection, char head[REQUEST_BYTES], uint64_t deadline_ns)
{
    size_t used = 0;
    while (used < REQUEST_BYTES - 1 && await(connection, POLLIN, deadline_ns)) {
        ssize_t got = zr_receive_bytes(connection, head + used, REQUEST_BYTES - 1 - used, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return false;
        used += got > 0 ? (size_t)got : 0;
        head[used] = '\0';
        if (memmem(head, used, "\r\n\r\n", 4) || memmem(head, used, "\n\n", 2))
            return strlen(head) == used;
    }
    return false;
}

/* Sends a whole file. */
static void send_file(int connection, int fd, off_t bytes, uint64_t deadline_ns)
{
    off_t sent = 0;
    while (sent < bytes && await(connection, POLLOUT, deadline_ns))
        if (sendfile(connection, fd, &sent, zr_fault_part(ZR_FAULT_SEND, (size_t)(bytes - sent))) < 0 &&
            errno != EAGAIN && errno != EINTR)
            return;
}

static void put_body(struct zr_text *text, void *top)
{
    zr_top_refresh(top, PATIENCE_MS);
    zr_metrics_print(text, top);
    zr_top_clear_unnamed(top);
}

/* Checks the Host header: a browser sends the name of the site whose page made the request. */
static bool is_local(const char *head)
{
    const char *host = strcasestr(head, "\nhost:");
    if (!host)
        return true;
    host += strlen("\nhost:");
    host += strspn(host, " \t");
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncasecmp(host, names[i], strlen(names[i])) == 0 && strchr(":\r\n ", host[strlen(names[i])]))
            return true;
    return false;
}

static void answer(struct server *server, int connection, const char *head, uint64_t deadline_ns)
{
    bool asks_head = strncmp(head, "HEAD ", 5) == 0, gets = strncmp(head, "GET ", 4) == 0;
    const char *path = strchr(head, ' ');
    bool metrics = path && strncmp(path, " /metrics", 9) == 0 && path[9] && strchr(" ?\r\n", path[9]);
    const char *status = !gets && !asks_head                   ? "405 Method Not Allowed"
                         : !server->path[0] && !is_local(head) ? "403 Forbidden"
                         : !metrics                            ? "404 Not Found"
                                                               : "200 OK";
    char buffer[8192], line[256];
    int body = memfd_create("zr-metrics", MFD_CLOEXEC);
    struct stat size;
    if (body < 0)
        return;
    struct zr_file file = zr_file_borrow(body, "metrics");
    struct zr_text text;
    zr_text_start(&text, &file, buffer, sizeof buffer);
    if (status[0] == '2')
        put_body(&text, server->top);
    else
        zr_text_print(&text, "%s: GET /metrics\n", status);
    if (zr_text_flush(&text) == ZR_OK && fstat(body, &size) == 0) {
        int length = snprintf(line, sizeof line,
                              "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                              "Content-Length: %lld\r\nConnection: close\r\n\r\n",
                              status, (long long)size.st_size);
        if (send(connection, line, (size_t)length, MSG_NOSIGNAL) == length && !asks_head)
            send_file(connection, body, size.st_size, deadline_ns);
    }
    close(body);
}

static void serve_connection(struct server *server, int connection)
{
    char head[REQUEST_BYTES];
    uint64_t deadline_ns = zr_os_now_ns() + (uint64_t)HEAR_MS * 1000000;
    if (hear(connection, head, deadline_ns))
        answer(server, connection, head, zr_os_now_ns() + (uint64_t)ANSWER_MS * 1000000);
    shutdown(connection, SHUT_WR);
    close(connection);
}

static void run(struct server *server)
{
    while (!ended) {
        struct pollfd poll_fd = {.fd = server->listening, .events = POLLIN};
        if (poll(&poll_fd, 1, 1000) <= 0) /* a signal may arrive just before poll() */
            continue;
        int connection = zr_accept(server->listening, SOCK_NONBLOCK);
        if (connection >= 0)
            serve_connection(server, connection);
        else
            poll(NULL, 0, 100); /* usually out of descriptors: wait before the next accept() */
    }
}

/* ---- Listening ----------------------------------------------------------------------------------------- */

/* Removes a socket without a listener from the path; other files remain. */
static zr_result clear_path(const struct sockaddr_un *address)
{
    struct stat status;
    if (lstat(address->sun_path, &status) != 0)
        return ZR_OK;
    int fd = S_ISSOCK(status.st_mode) ? zr_socket(AF_UNIX, SOCK_STREAM) : -1;
    bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 &&
                 errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    if (stale && unlink(address->sun_path) == 0)
        return ZR_OK;
    return zr_fail(ZR_ERR_IO, "serve: '%s' exists: %s", address->sun_path,
                   S_ISSOCK(status.st_mode) ? "another program listens" : "it is not a socket");
}

static zr_result listen_at_path(struct server *server, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[ZR_FOLDER_BYTES];
    zr_result result = path ? ZR_OK : zr_folder_runtime(folder, true);
    if (result != ZR_OK)
        return result;
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s%s", path ? path : folder,
                          path ? "" : "/metrics.sock");
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return zr_fail(ZR_ERR_INVALID,
                       "serve: the path is too long for a socket; give a shorter one with --socket");
    result = clear_path(&address);
    if (result != ZR_OK)
        return result;
    server->listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t before = umask(0177); /* the mode must be set before the first connection */
    bool bound = server->listening >= 0 &&
                 bind(server->listening, (const struct sockaddr *)&address, sizeof address) == 0;
    int error = errno;
    umask(before);
    if (!bound)
        return zr_fail(ZR_ERR_IO, "serve: cannot listen at '%s': %s", address.sun_path, strerror(error));
    memcpy(server->path, address.sun_path, sizeof server->path);
    if (listen(server->listening, QUEUE_MAX) != 0)
        return zr_fail(ZR_ERR_IO, "serve: cannot listen at '%s': %s", server->path, strerror(errno));
    zr_tool_log("serve: /metrics at %s", server->path);
    return ZR_OK;
}

/* Listens at "127.0.0.1:PORT" or "[::1]:PORT". */
static zr_result listen_at_port(struct server *server, const char *words)
{
    bool six = strncmp(words, "[::1]:", 6) == 0, four = strncmp(words, "127.0.0.1:", 10) == 0;
    char *rest;
    const char *digits = words + (six ? 6 : 10);
    unsigned long port = six || four ? strtoul(digits, &rest, 10) : 0;
    if (!(six || four) || *digits < '0' || *digits > '9' || *rest || port > 65535)
        return zr_fail(
            ZR_ERR_INVALID,
            "serve: --listen takes 127.0.0.1:PORT or [::1]:PORT, not '%.60s': only this machine may connect",
            words);
    struct sockaddr_in address4 = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 address6 = {
        .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr *address = six ? (struct sockaddr *)&address6 : (struct sockaddr *)&address4;
    socklen_t bytes = six ? sizeof address6 : sizeof address4;
    int yes = 1;
    server->listening = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server->listening < 0 ||
        setsockopt(server->listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(server->listening, address, bytes) != 0 || listen(server->listening, QUEUE_MAX) != 0 ||
        getsockname(server->listening, address, &bytes) != 0)
        return zr_fail(ZR_ERR_IO, "serve: cannot listen at %s: %s", words, strerror(errno));
    zr_tool_log("serve: http://%s:%u/metrics", six ? "[::1]" : "127.0.0.1",
                (unsigned)ntohs(six ? address6.sin6_port : address4.sin_port));
    return ZR_OK;
}

static zr_result serve(struct server *server, const struct settings *settings)
{
    const struct sigaction action = {.sa_handler = end};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* sendfile() has no flag against SIGPIPE */
    zr_result result = settings->listen ? listen_at_port(server, settings->listen)
                                        : listen_at_path(server, settings->socket);
    if (result == ZR_OK)
        run(server);
    if (server->path[0])
        unlink(server->path);
    if (server->listening >= 0)
        close(server->listening);
    return result;
}

/* ---- The subcommand ------------------------------------------------------------------------------------ */

static zr_result work(void *state, zr_arena *arena, int *code)
{
    static struct zr_top top;
    const struct settings *settings = state;
    struct server server = {.top = &top, .listening = -1};
    zr_result result = ZR_OK;
    zr_top_start(&top, arena);
    *code = zr_tool_each_process(&settings->arguments, false, zr_top_name, &top);
    if (*code == ZR_TOOL_FINE && settings->once) {
        struct zr_tool_output out;
        zr_tool_output_start(&out);
        put_body(&out.text, &top);
        *code = zr_tool_output_end(&out);
    } else if (*code == ZR_TOOL_FINE) {
        result = serve(&server, settings);
    }
    zr_top_end(&top);
    return result;
}

int zr_tool_serve(int argc, char **argv)
{
    struct settings settings = {0};
    const struct zr_tool_option options[] = {{"--once", ZR_TOOL_FLAG, &settings.once},
                                             {"--socket", ZR_TOOL_TEXT, &settings.socket},
                                             {"--listen", ZR_TOOL_TEXT, &settings.listen},
                                             {NULL, ZR_TOOL_FLAG, NULL}};
    settings.arguments = (struct zr_tool_arguments){.help = help, .options = options};
    int code = zr_tool_parse(&settings.arguments, argc, argv);
    if (code >= 0)
        return code;
    if ((settings.socket != NULL) + (settings.listen != NULL) + settings.once > 1) {
        zr_tool_log("serve: --socket, --listen and --once exclude each other; see zr serve --help");
        return ZR_TOOL_USAGE;
    }
    return zr_tool_with_memory(work, &settings);
}
