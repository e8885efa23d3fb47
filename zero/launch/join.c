/* join.c: joins ranks that a launcher started one by one on this machine (torchrun, srun, mpirun, a shell)
 * into one run of the local communicator.
 *
 * The process of rank 0 creates the control block and listens on a socket named after the run's key. When all
 * ranks have connected, rank 0 sends them the block's granules and the ranks' sockets. From then on each
 * process is the launcher (launch.c) of its own rank, so limits, CPU sets and accounts set for the process
 * apply to its rank. The connections remain open: a connection that closes before its rank has exited means a
 * lost process. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "zero/launch/control.h"
#include "zero/launch/start.h"

#define JOIN_NS     60000000000ull /* time for all ranks to connect */
#define HELLO_NS    10000000000ull /* time for a connected process to send its hello, perhaps starved of CPU */
#define FAREWELL_NS 5000000000ull  /* time for the other processes to exit after the run has failed */
#define RETRY_MS    20

enum { MAGIC = 0x7a726a31, SEGMENTS = 16, MAX_FDS = 32, TEXT_BYTES = 200, EXIT_USAGE = 2, EXIT_MEMORY = 4 };

/* The message of a connecting process; the answer is a sequence of struct message. */
struct hello {
    uint32_t magic, rank, world;
};

enum parcel_kind { REFUSED = 1, CONTROL, OUTBOXES, INBOX };

struct message {
    uint32_t magic, kind;
    uint32_t first, count; /* OUTBOXES: ranks. CONTROL: segments */
    uint64_t lead_bytes;
    struct {
        uint64_t offset_bytes, bytes;
    } segments[SEGMENTS];
    char text[TEXT_BYTES]; /* REFUSED */
};

union control { /* buffer for descriptors with the alignment that the system requires */
    struct cmsghdr header;
    char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
};

struct joining {
    const struct zr_start *start;
    struct zr_local_part *part;
    uint64_t limit_ns, deadline_ns;
    uint64_t failed_ns; /* time at which the end of the run was noticed; 0: not yet */
};

static uint64_t left_ms(const struct joining *joining)
{
    uint64_t now_ns = zr_os_now_ns();
    return now_ns < joining->deadline_ns ? (joining->deadline_ns - now_ns) / 1000000 + 1 : 0;
}

/* An abstract socket address, which vanishes with its last socket. The address is unique to the run, and
 * every rank can compute it. */
static socklen_t make_address(const struct zr_start *start, struct sockaddr_un *out)
{
    memset(out, 0, sizeof(*out));
    out->sun_family = AF_UNIX;
    int length = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "zr-run-%u-%s", (unsigned)getuid(),
                          start->key);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static bool is_own(int fd)
{
    struct ucred who;
    socklen_t bytes = sizeof(who);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == getuid();
}

/* ---- Messages with descriptors ------------------------------------------------------------------------- */

static bool send_message(int link, struct message *message, const int *fds, unsigned fds_count)
{
    union control control;
    struct iovec data = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};
    message->magic = MAGIC;
    if (fds_count > 0) {
        memset(&control, 0, sizeof(control));
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fds_count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds_count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, fds_count * sizeof(int));
    }
    for (unsigned ms = 0; ms < HELLO_NS / 1000000; ms++) {
        ssize_t sent = zr_send(link, &header, 0);
        if (sent >= 0 || errno != ETOOMANYREFS)
            return sent == (ssize_t)sizeof(*message);
        poll(NULL, 0, 1); /* too many descriptors in flight: retry after some have been received */
    }
    return false;
}

/* Receives a message. The caller owns the received descriptors. */
static zr_result read_message(const struct joining *joining, int link, struct message *message, int *fds,
                              unsigned *fds_count)
{
    union control control;
    struct iovec data = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr header = {.msg_iov = &data,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    struct pollfd wait = {.fd = link, .events = POLLIN};
    *fds_count = 0;
    if (zr_poll(&wait, 1, (int)left_ms(joining)) <= 0)
        return zr_fail(ZR_ERR_TIMEOUT,
                       "not all %u ranks connected within %llu s; check that all were started",
                       joining->start->world, (unsigned long long)(joining->limit_ns / 1000000000u));
    ssize_t bytes = zr_receive(link, &header, 0);
    for (struct cmsghdr *part = bytes >= 0 ? CMSG_FIRSTHDR(&header) : NULL; part;
         part = CMSG_NXTHDR(&header, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            *fds_count = (unsigned)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds, CMSG_DATA(part), *fds_count * sizeof(int));
        }
    if (bytes != (ssize_t)sizeof(*message) || message->magic != MAGIC)
        return zr_fail(ZR_ERR_PEER, "the process of rank 0 exited before the run began");
    if (header.msg_flags & MSG_CTRUNC)
        return zr_fail(ZR_ERR_HOST_MEMORY, "no file descriptor is left: raise `ulimit -n`");
    return ZR_OK;
}

/* ---- Rank 0 -------------------------------------------------------------------------------------------- */

static zr_result open_listener(const struct zr_start *start, int *listener)
{
    struct sockaddr_un address;
    socklen_t bytes = make_address(start, &address);
    *listener = zr_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
    if (*listener < 0)
        return zr_fail(ZR_ERR_HOST_MEMORY, "no file descriptor is left: raise `ulimit -n`");
    if (bind(*listener, (struct sockaddr *)&address, bytes) != 0 || listen(*listener, ZR_MAX_WORLD) != 0)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "another run on this machine uses the key '%s' (%s); wait for its end, or set another",
                       start->key, start->key_name);
    return ZR_OK;
}

static bool link_closed(int link)
{
    char byte;
    ssize_t got = recv(link, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

/* Accepts one process, or refuses it with a reason. */
static void accept_process(const struct joining *joining, int link)
{
    struct hello hello = {0};
    struct message no = {.kind = REFUSED};
    struct pollfd wait = {.fd = link, .events = POLLIN};
    int *links = joining->part->links;
    uint64_t hello_ms = left_ms(joining) < HELLO_NS / 1000000 ? left_ms(joining) : HELLO_NS / 1000000;
    if (!is_own(link) || zr_poll(&wait, 1, (int)hello_ms) <= 0 ||
        zr_receive_packet(link, &hello, sizeof(hello), MSG_DONTWAIT) != (ssize_t)sizeof(hello) ||
        hello.magic != MAGIC) {
        close(link);
        return;
    }
    if (hello.world != joining->start->world)
        snprintf(no.text, sizeof(no.text), "rank %u was started with %s=%u, but rank 0 with %u", hello.rank,
                 joining->start->world_name, hello.world, joining->start->world);
    else if (hello.rank == 0 || hello.rank >= hello.world || links[hello.rank] >= 0)
        snprintf(no.text, sizeof(no.text), "rank %u exists already (%s)", hello.rank,
                 joining->start->rank_name);
    if (no.text[0]) {
        send_message(link, &no, NULL, 0);
        close(link);
        return;
    }
    links[hello.rank] = link;
}

/* Forgets processes that connected and have exited, because they may be started again. */
static void forget_closed(const struct joining *joining)
{
    int *links = joining->part->links;
    for (unsigned r = 1; r < joining->start->world; r++)
        if (links[r] >= 0 && link_closed(links[r])) {
            close(links[r]);
            links[r] = -1;
        }
}

static unsigned first_missing(const struct joining *joining)
{
    unsigned r = 1;
    while (r < joining->start->world && joining->part->links[r] >= 0)
        r++;
    return r;
}

static zr_result wait_for_all(const struct joining *joining, int listener)
{
    unsigned world = joining->start->world;
    while (first_missing(joining) < world) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        uint64_t ms = left_ms(joining);
        if (ms == 0)
            return zr_fail(
                ZR_ERR_TIMEOUT, "rank %u of %u did not connect within %llu s; check that all were started",
                first_missing(joining), world, (unsigned long long)(joining->limit_ns / 1000000000u));
        if (poll(&wait, 1, (int)ms) <= 0)
            continue;
        int link = zr_accept(listener, 0);
        forget_closed(joining);
        if (link >= 0)
            accept_process(joining, link);
        else
            poll(NULL, 0, RETRY_MS); /* usually out of descriptors: retry later */
    }
    return ZR_OK;
}

/* Sends one rank its messages. If the rank is gone, its connection shows that later. */
static zr_result send_messages(const struct joining *joining, unsigned rank)
{
    const struct zr_local_part *part = joining->part;
    struct zr_segment segments[SEGMENTS];
    struct message message = {.kind = CONTROL};
    size_t count = SEGMENTS, lead_bytes;
    int fds[MAX_FDS], link = part->links[rank];
    zr_result result =
        zr_block_export(part->control.arena, part->control.local, segments, &count, &lead_bytes);
    if (result != ZR_OK)
        return result;
    message.count = (uint32_t)count;
    message.lead_bytes = lead_bytes;
    for (size_t i = 0; i < count; i++) {
        message.segments[i].offset_bytes = segments[i].offset_bytes;
        message.segments[i].bytes = segments[i].bytes;
        fds[i] = segments[i].fd;
    }
    bool there = send_message(link, &message, fds, (unsigned)count);
    for (unsigned first = 0; there && first < joining->start->world; first += MAX_FDS) {
        unsigned left = joining->start->world - first, some = left < MAX_FDS ? left : MAX_FDS;
        message = (struct message){.kind = OUTBOXES, .first = first, .count = some};
        there = send_message(link, &message, part->sockets.outbox + first, some);
    }
    message = (struct message){.kind = INBOX, .first = rank, .count = 1};
    if (there)
        send_message(link, &message, &part->sockets.inbox[rank], 1);
    return ZR_OK;
}

static zr_result lead(const struct joining *joining)
{
    int listener = -1;
    struct zr_local_part *part = joining->part;
    zr_result result = zr_local_control_make(&part->control, joining->start->world);
    if (result == ZR_OK)
        result = zr_local_sockets_make(&part->sockets, joining->start->world);
    if (result == ZR_OK)
        result = open_listener(joining->start, &listener);
    if (result == ZR_OK)
        result = wait_for_all(joining, listener);
    for (unsigned r = 1; r < joining->start->world && result == ZR_OK; r++)
        result = send_messages(joining, r);
    if (listener >= 0)
        close(listener);
    /* The other processes own these sockets now. */
    for (unsigned r = 1; r < joining->start->world && result == ZR_OK; r++) {
        close(part->sockets.inbox[r]);
        part->sockets.inbox[r] = -1;
    }
    return result;
}

/* ---- Other ranks --------------------------------------------------------------------------------------- */

/* Connects to rank 0, which may start later. */
static zr_result connect_to_rank_0(const struct joining *joining)
{
    struct sockaddr_un address;
    const struct zr_start *start = joining->start;
    socklen_t bytes = make_address(start, &address);
    struct hello hello = {.magic = MAGIC, .rank = start->rank, .world = start->world};
    int link = zr_socket(AF_UNIX, SOCK_SEQPACKET);
    if (link < 0)
        return zr_fail(ZR_ERR_HOST_MEMORY, "no file descriptor is left: raise `ulimit -n`");
    joining->part->links[0] = link;
    while (zr_connect(link, (struct sockaddr *)&address, bytes) != 0) {
        if (left_ms(joining) == 0)
            return zr_fail(
                ZR_ERR_TIMEOUT,
                "rank 0 of %u did not accept within %llu s; check that it was started on this machine, with "
                "the same key '%s' (%s)",
                start->world, (unsigned long long)(joining->limit_ns / 1000000000u), start->key,
                start->key_name);
        poll(NULL, 0, RETRY_MS);
    }
    if (!is_own(link))
        return zr_fail(ZR_ERR_UNAVAILABLE, "the key '%s' belongs to another user's process; set another %s",
                       start->key, start->key_name);
    if (zr_send_packet(link, &hello, sizeof(hello), 0) != (ssize_t)sizeof(hello))
        return zr_fail(ZR_ERR_PEER, "the process of rank 0 exited before the run began");
    return ZR_OK;
}

static zr_result map_control(struct zr_local_part *part, const struct message *message, const int *fds,
                             unsigned fds_count)
{
    struct zr_segment segments[SEGMENTS];
    if (message->count == 0 || message->count > SEGMENTS || message->count != fds_count)
        return zr_fail(ZR_ERR_PEER, "rank 0 sent an invalid control block");
    for (unsigned i = 0; i < message->count; i++)
        segments[i] = (struct zr_segment){.fd = fds[i],
                                          .offset_bytes = message->segments[i].offset_bytes,
                                          .bytes = message->segments[i].bytes};
    zr_result result = zr_local_control_backend(&part->control);
    if (result == ZR_OK)
        result = zr_import(part->control.backend, segments, message->count, &part->control.import);
    if (result == ZR_OK)
        part->control.local = (struct zr_local_world *)((char *)part->control.import + message->lead_bytes);
    return result;
}

/* Receives one message and keeps or closes its descriptors; *complete after the last one. */
static zr_result take_message(const struct joining *joining, bool *complete)
{
    struct zr_local_part *part = joining->part;
    struct message message;
    int fds[MAX_FDS];
    unsigned fds_count, kept = 0;
    zr_result result = read_message(joining, part->links[0], &message, fds, &fds_count);
    if (result == ZR_OK && message.kind == REFUSED) {
        message.text[TEXT_BYTES - 1] = '\0';
        result = zr_fail(ZR_ERR_INVALID, "%s", message.text);
    } else if (result == ZR_OK && message.kind == CONTROL && !part->control.local) {
        result = map_control(part, &message, fds, fds_count);
    } else if (result == ZR_OK && (message.kind == OUTBOXES || message.kind == INBOX)) {
        int *into = message.kind == INBOX ? part->sockets.inbox : part->sockets.outbox;
        *complete = message.kind == INBOX;
        for (; kept < fds_count && message.first + kept < joining->start->world; kept++)
            into[message.first + kept] = fds[kept];
    }
    for (; kept < fds_count; kept++)
        close(fds[kept]);
    return result;
}

static zr_result follow(const struct joining *joining)
{
    bool complete = false;
    zr_result result = connect_to_rank_0(joining);
    while (result == ZR_OK && !complete)
        result = take_message(joining, &complete);
    if (result == ZR_OK && !joining->part->control.local)
        result = zr_fail(ZR_ERR_PEER, "rank 0 sent no control block");
    return result;
}

/* ---- The run ------------------------------------------------------------------------------------------- */

/* Ends the run because a process has disconnected while its rank was needed. */
static void end_for_lost_rank(struct zr_local_part *part, unsigned rank)
{
    char reason[ZR_LOCAL_REASON_BYTES];
    struct zr_local_world *local = part->control.local;
    zr_local_describe_orphan(local, rank, reason);
    if (zr_local_end(local, &(struct zr_local_end){ZR_LOCAL_BY_LAUNCHER, part->first, ZR_ERR_PEER, reason}))
        zr_local_log("%s; the run ends", reason);
    atomic_store(&local->ranks[rank].ended, true);
    zr_local_wake(local);
}

/* Whether no other launcher needs this one. Rank 0's launcher remains until all others are gone, because it
 * watches the connections. */
static bool no_other_needs_this(struct zr_local_part *part)
{
    struct joining *joining = part->state;
    struct zr_local_world *local = part->control.local;
    bool alone = true;
    for (unsigned r = 0; r < local->world; r++) {
        if (part->links[r] >= 0 && link_closed(part->links[r])) {
            if (!atomic_load(&local->ranks[r].ended))
                end_for_lost_rank(part, r);
            close(part->links[r]);
            part->links[r] = -1;
        }
        alone &= part->links[r] < 0;
    }
    if (joining->start->rank != 0)
        return true;
    uint64_t now_ns = zr_os_now_ns();
    if (joining->failed_ns == 0 && atomic_load(&local->abort) != 0)
        joining->failed_ns = now_ns;
    return alone || (joining->failed_ns != 0 && now_ns - joining->failed_ns > FAREWELL_NS);
}

static int exit_code_of(zr_result result)
{
    return result == ZR_ERR_HOST_MEMORY || result == ZR_ERR_MEMORY || result == ZR_ERR_ADDRESSES ? EXIT_MEMORY
                                                                                                 : EXIT_USAGE;
}

int zr_local_join(const struct zr_launch_options *options, const struct zr_start *start)
{
    struct zr_local_part part = {
        .first = start->rank, .count = 1, .memory = {-1, -1, -1, -1}, .elsewhere = no_other_needs_this};
    struct joining joining = {.start = start, .part = &part, .limit_ns = JOIN_NS};
    int code;
    if (options->join_timeout_ns != 0 && options->join_timeout_ns < JOIN_NS)
        joining.limit_ns = options->join_timeout_ns;
    joining.deadline_ns = zr_os_now_ns() + joining.limit_ns;
    part.state = &joining;
    zr_local_sockets_clear(&part.sockets);
    for (unsigned r = 0; r < ZR_MAX_WORLD; r++)
        part.links[r] = -1;
    zr_result result = start->rank == 0 ? lead(&joining) : follow(&joining);
    if (result == ZR_OK) {
        code = zr_local_watch_over(options, &part);
        /* A process that never joined the run has created no files; existing ones may belong to another
         * run. */
        if (code != 0 && options->clean_up)
            options->clean_up(options->argument);
    } else {
        zr_local_log("rank %u: %s", start->rank, zr_last_error());
        code = exit_code_of(result);
    }
    for (unsigned r = 0; r < ZR_MAX_WORLD; r++)
        if (part.links[r] >= 0)
            close(part.links[r]);
    zr_local_sockets_close(&part.sockets);
    zr_local_control_end(&part.control);
    return code;
}
