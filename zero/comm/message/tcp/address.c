/* address.c: see address.h. Used by join.c. */
#define _GNU_SOURCE
#include "zero/comm/message/tcp/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/socket.h"

enum { HOST_BYTES = 256, PORT_BYTES = 8, BACKLOG = 512, PROBES = 4 };
enum { ADDRESSES_MAX = 16, ANSWER_BYTES = 8 << 10, EXIT_NO_EXEC = 127 };

/* Splits HOST:PORT or [HOST]:PORT. */
static bool split(const char *rendezvous, char *host, char *port)
{
    const char *colon = strrchr(rendezvous, ':');
    if (!colon || colon == rendezvous || strlen(colon + 1) == 0 || strlen(colon + 1) >= PORT_BYTES ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || strtoul(colon + 1, NULL, 10) > UINT16_MAX)
        return false;
    const char *begin = rendezvous, *end = colon;
    bool bracketed = begin[0] == '[' && end[-1] == ']';
    begin += bracketed;
    end -= bracketed;
    if (end <= begin || end - begin >= HOST_BYTES ||
        (!bracketed && memchr(begin, ':', (size_t)(end - begin))))
        return false;
    snprintf(host, HOST_BYTES, "%.*s", (int)(end - begin), begin);
    snprintf(port, PORT_BYTES, "%s", colon + 1);
    return true;
}

/* Reads an address; false: the text is none. */
static bool parse(struct zr_tcp_address *out, const char *text, const char *port)
{
    uint16_t number = htons((uint16_t)strtoul(port, NULL, 10));
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &out->four.sin_addr) == 1) {
        out->four.sin_family = AF_INET;
        out->four.sin_port = number;
        out->bytes = sizeof out->four;
        return true;
    }
    if (inet_pton(AF_INET6, text, &out->six.sin6_addr) != 1)
        return false;
    out->six.sin6_family = AF_INET6;
    out->six.sin6_port = number;
    out->bytes = sizeof out->six;
    return true;
}

/* The addresses of the last name: found in the launcher, so that ranks have them after the fork. */
static struct {
    char host[HOST_BYTES], port[PORT_BYTES];
    struct zr_tcp_address addresses[ADDRESSES_MAX];
    unsigned count;
} found;

/* In the child: prints a line per address and kind of socket, each with the address first. */
static void become_getent(char *host, int out)
{
    char *line[] = {"getent", "--", "ahosts", host, NULL};
    if (dup2(out, STDOUT_FILENO) == STDOUT_FILENO)
        execvp(line[0], line);
    _exit(EXIT_NO_EXEC);
}

/* Asks getent(1) for the addresses of a name, since the C library's own look-up allocates memory. It uses
 * /etc/hosts, DNS and what else /etc/nsswitch.conf names. */
static void look_up(char *host, const char *port)
{
    static char answer[ANSWER_BYTES + 1];
    int ends[2];
    ssize_t bytes = 0;
    found.count = 0;
    if (pipe(ends) != 0)
        return;
    pid_t child = fork();
    if (child == 0)
        become_getent(host, ends[1]);
    close(ends[1]);
    if (child > 0)
        bytes = zr_read_all(ends[0], ZR_PRESENT_POSITION, answer, ANSWER_BYTES);
    close(ends[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    answer[bytes > 0 ? bytes : 0] = '\0';
    for (char *line = answer, *next; *line && found.count < ADDRESSES_MAX; line = next) {
        size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        line[length] = '\0';
        bool stream = strstr(line, " STREAM") != NULL;
        line[strcspn(line, " ")] = '\0';
        found.count += stream && parse(&found.addresses[found.count], line, port);
    }
    snprintf(found.host, sizeof found.host, "%s", host);
    snprintf(found.port, sizeof found.port, "%s", port);
}

zr_result zr_tcp_resolve(struct zr_tcp_address *out, const char *rendezvous, unsigned number)
{
    char host[HOST_BYTES], port[PORT_BYTES];
    if (!split(rendezvous, host, port))
        return zr_fail(
            ZR_ERR_INVALID,
            "--rendezvous %s: give HOST:PORT, as 10.0.0.1:29500 or [2001:db8::1]:29500, with a port below "
            "65536",
            rendezvous);
    if (parse(out, host, port))
        return ZR_OK;
    if (found.count == 0 || strcmp(found.host, host) != 0 || strcmp(found.port, port) != 0)
        look_up(host, port);
    if (found.count > 0) {
        *out = found.addresses[number % found.count];
        return ZR_OK;
    }
    return zr_fail(ZR_ERR_INVALID,
                   "--rendezvous %s: %s is neither an address nor a name that this host knows; check what "
                   "`getent ahosts %s` prints",
                   rendezvous, host, host);
}

zr_result zr_tcp_rendezvous_find(const char *rendezvous)
{
    struct zr_tcp_address address;
    return zr_tcp_resolve(&address, rendezvous, 0);
}

void zr_tcp_address_of(struct zr_tcp_address *out, const struct zr_tcp_introduction *introduction)
{
    memset(out, 0, sizeof *out);
    if (introduction->family == 4) {
        out->four.sin_family = AF_INET;
        out->four.sin_port = htons((uint16_t)introduction->port);
        memcpy(&out->four.sin_addr, introduction->address, sizeof out->four.sin_addr);
        out->bytes = sizeof out->four;
    } else {
        out->six.sin6_family = AF_INET6;
        out->six.sin6_port = htons((uint16_t)introduction->port);
        memcpy(&out->six.sin6_addr, introduction->address, sizeof out->six.sin6_addr);
        out->bytes = sizeof out->six;
    }
}

void zr_tcp_introduce_address(struct zr_tcp_introduction *out, int listener)
{
    struct zr_tcp_address own = {.bytes = sizeof own.six};
    getsockname(listener, &own.any, &own.bytes);
    memset(out->address, 0, sizeof out->address);
    if (own.any.sa_family == AF_INET) {
        out->family = 4;
        out->port = ntohs(own.four.sin_port);
        memcpy(out->address, &own.four.sin_addr, sizeof own.four.sin_addr);
    } else {
        out->family = 6;
        out->port = ntohs(own.six.sin6_port);
        memcpy(out->address, &own.six.sin6_addr, sizeof own.six.sin6_addr);
    }
}

static zr_result listen_at(int *out, const struct zr_tcp_address *address, const char *where)
{
    int on = 1, error;
    *out = zr_socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK);
    if (*out >= 0 && setsockopt(*out, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(*out, &address->any, address->bytes) == 0 && listen(*out, BACKLOG) == 0)
        return ZR_OK;
    error = errno;
    if (*out >= 0)
        close(*out);
    *out = -1;
    return zr_fail(ZR_ERR_UNAVAILABLE, "--comm tcp: rank 0 cannot accept connections at %s: %s%s", where,
                   strerrordesc_np(error),
                   error == EADDRNOTAVAIL ? "; give --rendezvous an address of the host of rank 0" : "");
}

zr_result zr_tcp_listen(int *out, const char *rendezvous, char *text)
{
    struct zr_tcp_address address;
    char host[INET6_ADDRSTRLEN] = "";
    zr_result result;
    unsigned number = 0;
    *out = -1;
    do { /* a name may have addresses that are not of this host */
        result = zr_tcp_resolve(&address, rendezvous, number);
        if (result == ZR_OK)
            result = listen_at(out, &address, rendezvous);
    } while (result == ZR_ERR_UNAVAILABLE && ++number < found.count);
    if (result != ZR_OK || !text)
        return result;
    address.bytes = sizeof address.six;
    getsockname(*out, &address.any, &address.bytes);
    bool four = address.any.sa_family == AF_INET;
    inet_ntop(address.any.sa_family, four ? (void *)&address.four.sin_addr : (void *)&address.six.sin6_addr,
              host, sizeof host);
    snprintf(text, ZR_TCP_ADDRESS_BYTES, four ? "%s:%u" : "[%s]:%u", host,
             ntohs(four ? address.four.sin_port : address.six.sin6_port));
    return ZR_OK;
}

zr_result zr_tcp_listen_beside(int *out, int connection)
{
    struct zr_tcp_address address = {.bytes = sizeof address.six};
    getsockname(connection, &address.any, &address.bytes);
    if (address.any.sa_family == AF_INET)
        address.four.sin_port = 0;
    else
        address.six.sin6_port = 0;
    return listen_at(out, &address, "its own address");
}

void zr_tcp_tune(int fd, uint64_t silence_ns)
{
    int on = 1, probes = PROBES, seconds = (int)(silence_ns / 1000000000u / PROBES) + 1;
    unsigned silence_ms = (unsigned)(2 * silence_ns / 1000000u);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
}
