/* join.c: how the ranks of a TCP run find each other. Ranks above 0 introduce themselves to rank 0 at the
 * rendezvous and learn all addresses; then each rank connects to all lower ranks. wire.h has the messages.
 *
 * One thread makes all connections of a rank at the same time. Connections whose other side has not proved
 * the secret are bounded in number and time; the listening socket is closed once all ranks are there.
 *
 * After the loss of a rank all ranks meet again, each in its own time. Each has the run's number, unless its
 * process was started for this rendezvous, and the last generation that it knows; rank 0, which may be a new
 * process too, gives the next one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/hash.h"
#include "alloc/base/system/process.h"
#include "alloc/base/system/socket.h"
#include "zero/comm/message/tcp/address.h"
#include "zero/comm/message/tcp/inside.h"
#include "zero/comm/take.h"
#include "zero/launch/zr_launch.h"

enum { ACCEPTS = 64, DIALS = 16, DOORS = ACCEPTS + DIALS, POLL_MS = 50, REFUSALS_MAX = 3, WHY_BYTES = 200 };
#define SHAKE_NS 5000000000ull /* time for a stranger to prove that it has the secret */
#define RETRY_NS 50000000ull
#define DIAL_NS  2000000000ull /* time for a connection: the system sends again after 1 s */

enum phase { CLOSED = 0, CONNECTING, SHAKING, REPLY };

/* A connection that is being made. */
struct door {
    enum phase phase;
    int fd;
    bool dials, proved;
    unsigned peer, stream;
    uint64_t deadline_ns; /* of a stranger, or of a connection that is being made */
    struct zr_tcp_hand hand;
    size_t sent_bytes, have_bytes; /* of hand.out / of what comes next */
    struct zr_tcp_reply reply;
};

struct join {
    struct zr_tcp *tcp;
    const struct zr_tcp_options *options;
    int listener;
    bool known; /* the table is there */
    uint64_t run, deadline_ns, retry_ns;
    uint64_t known_ns; /* when the table was there */
    uint64_t point;
    uint32_t generation, restarts;
    unsigned refusals, strangers, attempts;
    char why[WHY_BYTES]; /* of the last connection that failed; "": none */
    zr_result result;    /* not ZR_OK: why no more attempts make sense, in zr_last_error() */
    struct zr_tcp_introduction own, table[ZR_MAX_WORLD];
    struct door doors[DOORS];
};

/* ---- Doors --------------------------------------------------------------------------------------------- */

static void close_door(struct door *door)
{
    close(door->fd);
    door->phase = CLOSED;
}

static struct door *find_door(struct join *join, bool dials)
{
    for (unsigned i = dials ? ACCEPTS : 0; i < (dials ? DOORS : ACCEPTS); i++)
        if (join->doors[i].phase == CLOSED)
            return &join->doors[i];
    return NULL;
}

/* A connection that this rank makes has failed: it is made again. */
static void retry(struct join *join, struct door *door, const char *why)
{
    snprintf(join->why, sizeof join->why, "%s", why);
    join->retry_ns = zr_os_now_ns() + RETRY_NS;
    close_door(door);
}

static void give_up(struct join *join, struct door *door, const char *why)
{
    zr_result result = door->reply.refused ? ZR_ERR_INVALID : ZR_ERR_UNAVAILABLE;
    join->result = zr_fail(result, "--comm tcp: rank %u cannot join the run at %s: %s", join->tcp->rank,
                           join->options->rendezvous, why);
    close_door(door);
}

/* Whether the other side of a connection has closed it; data may be left to read. */
static bool is_closed(int fd)
{
    struct pollfd closed = {.fd = fd, .events = POLLRDHUP};
    return zr_poll(&closed, 1, 0) > 0;
}

/* The other side has ended the connection. */
static void end_door(struct join *join, struct door *door)
{
    if (!door->dials) {
        join->strangers++;
        close_door(door);
    } else if (door->phase == REPLY) {
        give_up(join, door, "rank 0 has ended before all ranks were there");
    } else if (door->hand.out_bytes > 0 && ++join->refusals >= REFUSALS_MAX) {
        give_up(join, door,
                "the other side does not accept this rank's secret; give all ranks the same --secret-file");
    } else {
        retry(join, door, "the connection was closed");
    }
}

/* A finished connection becomes a stream. */
static void install(struct join *join, struct door *door, unsigned peer, unsigned stream)
{
    join->tcp->peers[peer].streams[stream].fd = door->fd;
    door->phase = CLOSED;
}

/* ---- The side that accepts ----------------------------------------------------------------------------- */

/* Also finds a cut link while a rank waits for the table. */
static void tune(const struct join *join, int fd)
{
    zr_tcp_tune(fd, ZR_TCP_LOST_BEATS * join->tcp->heartbeat_ns);
}

static void accept_door(struct join *join)
{
    struct door *door = find_door(join, false);
    int fd = door ? zr_accept(join->listener, SOCK_NONBLOCK) : -1;
    if (fd < 0)
        return;
    memset(door, 0, sizeof *door);
    door->fd = fd;
    door->phase = SHAKING;
    door->deadline_ns = zr_os_now_ns() + SHAKE_NS;
    tune(join, fd);
    door->hand.secret = join->options->secret;
    if (zr_tcp_hand_begin(&door->hand) == ZR_TCP_FAILS)
        close_door(door);
}

/* Tells a rank with the secret why it is refused. A reply fits every socket's buffer. */
static void refuse(struct door *door, const char *format, unsigned a, unsigned b)
{
    struct zr_tcp_reply reply = {.refused = 1};
    snprintf(reply.text, sizeof reply.text, format, a, b);
    ssize_t sent = zr_send_packet(door->fd, &reply, sizeof reply, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* the rank finds the connection closed */
    close_door(door);
}

/* Whether a rank is at the rendezvous already. After a loss the later connection of a rank counts: the
 * earlier one may be cut. */
static bool is_there(const struct join *join, const struct zr_tcp_introduction *other)
{
    int *fd = &join->tcp->peers[other->rank].streams[0].fd;
    if (*fd < 0 || (other->generation == 0 && !is_closed(*fd)))
        return *fd >= 0;
    close(*fd);
    *fd = -1;
    return false;
}

/* A rank comes again after the table was sent: the others cannot reach the process that had it. */
static void begin_again(struct join *join, struct door *door)
{
    join->result = zr_fail(ZR_ERR_PEER, "--comm tcp: rank %u on host %s was lost while the ranks connected",
                           door->hand.introduction.rank, join->table[door->hand.introduction.rank].host);
    close_door(door);
}

/* A rank at the rendezvous. A new process of rank 0 learns the run's number from the others. */
static void welcome(struct join *join, struct door *door)
{
    const struct zr_tcp_introduction *other = &door->hand.introduction;
    struct zr_tcp *tcp = join->tcp;
    if (other->run != 0 && join->own.run == 0 && !join->known)
        join->own.run = join->run = other->run;
    if (other->world != tcp->world)
        refuse(door, "it has %u ranks, and rank 0 has %u; give all the same --ranks", other->world,
               tcp->world);
    else if (other->streams != tcp->streams)
        refuse(door, "it has --tcp-streams %u, and rank 0 has %u", other->streams, tcp->streams);
    else if (!zr_tcp_introduction_valid(other, tcp->world) || other->rank == 0 || other->stream != 0)
        refuse(door, "rank %u of %u is not a rank above 0", other->rank, tcp->world);
    else if (other->run != 0 && other->run != join->run)
        refuse(door, "rank %u of %u belongs to another run", other->rank, tcp->world);
    else if (join->known && join->options->local)
        begin_again(join, door);
    else if (is_there(join, other))
        refuse(door, "another process is rank %u of %u already", other->rank, tcp->world);
    else {
        join->table[other->rank] = *other;
        join->generation = other->generation > join->generation ? other->generation : join->generation;
        join->restarts = other->restarts > join->restarts ? other->restarts : join->restarts;
        join->point = other->point > join->point ? other->point : join->point;
        install(join, door, other->rank, 0);
    }
}

static void admit(struct join *join, struct door *door)
{
    const struct zr_tcp_introduction *other = &door->hand.introduction;
    struct zr_tcp *tcp = join->tcp;
    bool valid = zr_tcp_introduction_valid(other, tcp->world) && other->run == join->run && join->known &&
                 other->generation == join->generation && other->rank > tcp->rank &&
                 other->streams == tcp->streams;
    if (tcp->rank == 0 && other->stream == 0)
        welcome(join, door);
    else if (valid && tcp->peers[other->rank].streams[other->stream].fd < 0)
        install(join, door, other->rank, other->stream);
    else
        close_door(door);
}

/* Sends all of `bytes` before the deadline. */
static bool send_all(const struct join *join, int fd, const void *data, size_t bytes)
{
    for (size_t sent = 0; sent < bytes && zr_os_now_ns() < join->deadline_ns;) {
        ssize_t some =
            zr_send_packet(fd, (const char *)data + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (some > 0)
            sent += (size_t)some;
        else if (errno == EAGAIN)
            zr_poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, POLL_MS);
        else if (errno != EINTR)
            return false;
        if (sent == bytes)
            return true;
    }
    return bytes == 0;
}

/* The table is there. A successor of this process continues from here. */
static void learn(struct join *join)
{
    struct zr_local_world *local = join->options->local;
    join->known = true;
    join->known_ns = zr_os_now_ns();
    if (!local)
        return;
    atomic_store(&local->run, join->run);
    atomic_store(&local->generation, join->generation);
    if (atomic_load(&local->restarts) < join->restarts)
        atomic_store(&local->restarts, join->restarts);
    zr_local_set_restart_point(local, join->point);
}

/* Rank 0: sends the table once all ranks are there. */
static void reply_to_all(struct join *join)
{
    struct zr_tcp *tcp = join->tcp;
    bool all = true;
    for (unsigned p = 1; p < tcp->world; p++) {
        int *fd = &tcp->peers[p].streams[0].fd;
        if (*fd >= 0 && join->options->local && is_closed(*fd)) {
            close(*fd);
            *fd = -1;
        }
        all &= *fd >= 0;
    }
    if (!all)
        return;
    join->generation++;
    learn(join);
    struct zr_tcp_reply reply = {.world = tcp->world,
                                 .run = join->run,
                                 .point = join->point,
                                 .generation = join->generation,
                                 .restarts = join->restarts};
    for (unsigned p = 1; p < tcp->world && join->result == ZR_OK; p++)
        if (!send_all(join, tcp->peers[p].streams[0].fd, &reply, sizeof reply) ||
            !send_all(join, tcp->peers[p].streams[0].fd, join->table, tcp->world * sizeof *join->table))
            join->result =
                zr_fail(ZR_ERR_PEER, "--comm tcp: rank %u on host %s has ended before all ranks were there",
                        p, join->table[p].host);
}

/* ---- The side that connects ---------------------------------------------------------------------------- */

/* The next connection to make: the rendezvous first. False: none is missing. */
static bool next_missing(const struct join *join, unsigned *peer, unsigned *stream)
{
    const struct zr_tcp *tcp = join->tcp;
    for (*peer = 0; *peer < tcp->rank && (join->known || *peer == 0); ++*peer)
        for (*stream = 0; *stream < zr_tcp_wires(tcp) && (join->known || *stream == 0); ++*stream) {
            bool made = tcp->peers[*peer].streams[*stream].fd >= 0;
            for (unsigned i = ACCEPTS; i < DOORS && !made; i++)
                made = join->doors[i].phase != CLOSED && join->doors[i].peer == *peer &&
                       join->doors[i].stream == *stream;
            if (!made)
                return true;
        }
    return false;
}

static void dial(struct join *join)
{
    unsigned peer, stream;
    struct door *door;
    while (zr_os_now_ns() >= join->retry_ns && next_missing(join, &peer, &stream) &&
           (door = find_door(join, true)) != NULL) {
        struct zr_tcp_address address;
        memset(door, 0, sizeof *door);
        door->dials = true;
        door->peer = peer;
        door->stream = stream;
        if (peer > 0)
            zr_tcp_address_of(&address, &join->table[peer]);
        else if (zr_tcp_resolve(&address, join->options->rendezvous, join->attempts++) != ZR_OK) {
            snprintf(join->why, sizeof join->why, "%s", zr_last_error());
            join->retry_ns = zr_os_now_ns() + 10 * RETRY_NS;
            return;
        }
        door->fd = zr_socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK);
        if (door->fd < 0) {
            join->result = zr_fail(ZR_ERR_UNAVAILABLE, "--comm tcp: no socket: %s", strerrordesc_np(errno));
            return;
        }
        door->phase = CONNECTING;
        door->deadline_ns = zr_os_now_ns() + DIAL_NS;
        if (zr_connect(door->fd, &address.any, address.bytes) != 0 && errno != EINPROGRESS)
            retry(join, door, strerrordesc_np(errno));
    }
}

/* The first connection shows which address of this host reaches the run: it accepts there. */
static bool open_own(struct join *join, struct door *door)
{
    if (join->listener < 0 && zr_tcp_listen_beside(&join->listener, door->fd) != ZR_OK) {
        join->result = zr_fail(ZR_ERR_UNAVAILABLE, "%s", zr_last_error());
        return false;
    }
    zr_tcp_introduce_address(&join->own, join->listener);
    return true;
}

/* Whether a socket has connected to itself: the system gave it the port that nothing listens at. */
static bool is_itself(int fd)
{
    struct zr_tcp_address own = {.bytes = sizeof own.six}, other = own;
    return getsockname(fd, &own.any, &own.bytes) == 0 && getpeername(fd, &other.any, &other.bytes) == 0 &&
           own.bytes == other.bytes && memcmp(&own.six, &other.six, own.bytes) == 0;
}

static void connected(struct join *join, struct door *door)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(door->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0) {
        retry(join, door, error ? strerrordesc_np(error) : "the connection failed");
        return;
    }
    if (is_itself(door->fd)) {
        retry(join, door, "nothing accepts there");
        return;
    }
    tune(join, door->fd);
    if (!open_own(join, door)) {
        close_door(door);
        return;
    }
    door->phase = SHAKING;
    door->hand.secret = join->options->secret;
    door->hand.connects = true;
    door->hand.introduction = join->own;
    door->hand.introduction.stream = door->stream;
    door->hand.introduction.run = join->run;
    if (join->known)
        door->hand.introduction.generation = join->generation;
    zr_tcp_hand_begin(&door->hand);
}

static void take_reply(struct join *join, struct door *door)
{
    struct zr_tcp *tcp = join->tcp;
    if (door->reply.refused != 0 || door->reply.world != tcp->world || door->reply.run == 0) {
        door->reply.text[sizeof door->reply.text - 1] = '\0';
        give_up(join, door, door->reply.refused ? door->reply.text : "the table of rank 0 is damaged");
        return;
    }
    for (unsigned p = 0; p < tcp->world; p++)
        if (!zr_tcp_introduction_valid(&join->table[p], tcp->world) || join->table[p].rank != p) {
            give_up(join, door, "the table of rank 0 is damaged");
            return;
        }
    join->run = door->reply.run;
    join->point = door->reply.point;
    join->generation = door->reply.generation;
    join->restarts = door->reply.restarts;
    learn(join);
    install(join, door, 0, 0);
}

/* ---- All of them --------------------------------------------------------------------------------------- */

/* Where the next bytes of a door go. */
static char *next_place(struct join *join, struct door *door, size_t *bytes)
{
    size_t head_bytes = sizeof door->reply, have = door->have_bytes;
    if (door->phase == SHAKING) {
        *bytes = door->hand.want_bytes - have;
        return (char *)door->hand.in + have;
    }
    if (have < head_bytes) {
        *bytes = head_bytes - have;
        return (char *)&door->reply + have;
    }
    *bytes = head_bytes + join->tcp->world * sizeof *join->table - have;
    return (char *)join->table + (have - head_bytes);
}

/* A message of the other side is there. */
static void take_message(struct join *join, struct door *door)
{
    door->have_bytes = 0;
    if (door->phase == REPLY) {
        take_reply(join, door);
        return;
    }
    enum zr_tcp_step step = zr_tcp_hand_next(&door->hand);
    door->sent_bytes = 0;
    door->proved = step == ZR_TCP_SUCCEEDS;
    if (step == ZR_TCP_FAILS && door->dials) {
        give_up(join, door, door->hand.why);
    } else if (step == ZR_TCP_FAILS) {
        join->strangers++;
        close_door(door);
    } else if (door->proved && !door->dials) {
        admit(join, door);
    }
}

/* Sends what there is to send. False: the connection takes no more, or has been closed. */
static bool flush(struct join *join, struct door *door)
{
    while (door->phase == SHAKING && door->sent_bytes < door->hand.out_bytes) {
        ssize_t bytes = zr_send_packet(door->fd, door->hand.out + door->sent_bytes,
                                       door->hand.out_bytes - door->sent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (bytes > 0)
            door->sent_bytes += (size_t)bytes;
        else if (errno == EAGAIN)
            return false;
        else if (errno != EINTR) {
            end_door(join, door);
            return false;
        }
    }
    if (door->phase == SHAKING && door->proved && door->dials) {
        if (door->peer == 0 && door->stream == 0)
            door->phase = REPLY;
        else
            install(join, door, door->peer, door->stream);
    }
    return door->phase != CLOSED;
}

static void pump(struct join *join, struct door *door)
{
    while (flush(join, door)) {
        size_t bytes;
        char *place = next_place(join, door, &bytes);
        ssize_t got = zr_receive_bytes(door->fd, place, bytes, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN)
            return;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            end_door(join, door);
            return;
        }
        door->have_bytes += (size_t)got;
        bool refused =
            door->phase == REPLY && door->have_bytes == sizeof door->reply && door->reply.refused != 0;
        if ((size_t)got == bytes &&
            (refused || door->phase != REPLY || door->have_bytes > sizeof door->reply))
            take_message(join, door);
    }
}

/* Closes connections of strangers that are silent, and those that are not made. What strangers had sent has
 * been read: this rank may be the slow one. */
static void close_late(struct join *join)
{
    uint64_t now_ns = zr_os_now_ns();
    for (unsigned i = 0; i < ACCEPTS; i++)
        if (join->doors[i].phase != CLOSED && now_ns > join->doors[i].deadline_ns) {
            join->strangers++;
            close_door(&join->doors[i]);
        }
    for (unsigned i = ACCEPTS; i < DOORS; i++)
        if (join->doors[i].phase == CONNECTING && now_ns > join->doors[i].deadline_ns)
            retry(join, &join->doors[i], "the connection was not answered");
}

/* One look at all connections. */
static void attend(struct join *join)
{
    struct pollfd polls[DOORS + 1];
    unsigned which[DOORS + 1], count = 0;
    for (unsigned i = 0; i < DOORS; i++) {
        struct door *door = &join->doors[i];
        if (door->phase == CLOSED)
            continue;
        bool writes = door->phase == CONNECTING || door->sent_bytes < door->hand.out_bytes;
        which[count] = i;
        polls[count++] = (struct pollfd){.fd = door->fd, .events = writes ? POLLOUT : POLLIN};
    }
    /* A rank above 0 judges introductions by the table, so others wait in the backlog until it is there. */
    if (join->listener >= 0 && (join->known || join->tcp->rank == 0) && find_door(join, false)) {
        which[count] = DOORS;
        polls[count++] = (struct pollfd){.fd = join->listener, .events = POLLIN};
    }
    if (zr_poll(polls, count, POLL_MS) < 0)
        return;
    for (unsigned i = 0; i < count; i++) {
        if (polls[i].revents == 0)
            continue;
        if (which[i] == DOORS)
            accept_door(join);
        else if (join->doors[which[i]].phase == CONNECTING)
            connected(join, &join->doors[which[i]]);
        if (which[i] < DOORS && join->doors[which[i]].phase != CLOSED)
            pump(join, &join->doors[which[i]]);
    }
    close_late(join);
}

/* Whether a connection of a rank is missing, of the first `wires`. */
static bool lacks(const struct zr_tcp *tcp, unsigned p, unsigned wires)
{
    unsigned i = 0;
    while (i < wires && p != tcp->rank && tcp->peers[p].streams[i].fd >= 0)
        i++;
    return i < wires && p != tcp->rank;
}

/* The first rank with a missing connection; world: none. */
static unsigned first_missing(const struct join *join)
{
    unsigned p = 0;
    while (p < join->tcp->world && !lacks(join->tcp, p, zr_tcp_wires(join->tcp)))
        p++;
    return p;
}

/* A rank may be lost before the table was sent or after it. */
static void note_missing(const struct join *join)
{
    for (unsigned p = 1; join->options->missing && join->tcp->rank == 0 && p < join->tcp->world; p++)
        join->options->missing[p] = lacks(join->tcp, p, join->known ? zr_tcp_wires(join->tcp) : 1);
}

static zr_result fail_late(const struct join *join)
{
    char strangers[80] = "";
    if (join->strangers > 0)
        snprintf(strangers, sizeof strangers, "; %u connections without the secret were closed",
                 join->strangers);
    return zr_fail(ZR_ERR_UNAVAILABLE, "--comm tcp: rank %u has not joined the run at %s in time%s%s%s",
                   first_missing(join), join->options->rendezvous, join->why[0] ? ": " : "", join->why,
                   strangers);
}

/* After the loss of a rank: one that had connected is lost while the others connect. They need not wait until
 * it is silent for too long. */
static zr_result check_lost(const struct join *join)
{
    const struct zr_local_world *local = join->options->local;
    const bool again = local && atomic_load(&local->restarts) > 0;
    for (unsigned p = 0; again && join->known && p < join->tcp->world; p++)
        if (join->tcp->peers[p].streams[0].fd >= 0 && is_closed(join->tcp->peers[p].streams[0].fd))
            return zr_fail(ZR_ERR_PEER, "--comm tcp: rank %u on host %s was lost while the ranks connected",
                           p, join->table[p].host);
    return ZR_OK;
}

/* Whether the ranks may still connect. */
static zr_result check_time(const struct join *join)
{
    const struct zr_local_world *local = join->options->local;
    uint64_t now_ns = zr_os_now_ns();
    if (now_ns > join->deadline_ns)
        return fail_late(join);
    if (local && atomic_load(&local->restarting))
        return zr_fail(ZR_ERR_PEER, "--comm tcp: a rank of this host was lost while the ranks connected");
    if (local && join->known && now_ns - join->known_ns > ZR_TCP_LOST_BEATS * join->tcp->heartbeat_ns)
        return zr_fail(ZR_ERR_PEER, "--comm tcp: rank %u on host %s does not connect%s%s",
                       first_missing(join), join->table[first_missing(join)].host, join->why[0] ? ": " : "",
                       join->why);
    return check_lost(join);
}

/* Keeps names and hosts of the ranks. */
static void name_peers(struct join *join)
{
    struct zr_tcp *tcp = join->tcp;
    tcp->host_first = tcp->world;
    for (unsigned p = 0; p < tcp->world; p++) {
        memcpy(tcp->peers[p].host, join->table[p].host, sizeof tcp->peers[p].host);
        if (join->table[p].machine != join->own.machine)
            continue;
        tcp->host_ranks++;
        if (tcp->host_first == tcp->world)
            tcp->host_first = p;
    }
}

static zr_result begin(struct join *join)
{
    struct zr_tcp *tcp = join->tcp;
    struct zr_process process;
    zr_process_self(&process);
    struct zr_local_world *local = join->options->local;
    join->own = (struct zr_tcp_introduction){.rank = tcp->rank, .world = tcp->world, .streams = tcp->streams};
    if (local) {
        join->own.run = join->run = atomic_load(&local->run);
        join->own.generation = join->generation = atomic_load(&local->generation);
        join->own.restarts = join->restarts = atomic_load(&local->restarts);
        join->own.point = join->point = zr_local_restart_point(local);
    }
    if (gethostname(join->own.host, sizeof join->own.host - 1) != 0)
        snprintf(join->own.host, sizeof join->own.host, "?");
    join->own.machine = zr_hash_next(process.machine, zr_hash_text(join->own.host));
    join->deadline_ns =
        zr_os_now_ns() + (join->options->join_timeout_ns ? join->options->join_timeout_ns : ZR_TCP_JOIN_NS);
    if (tcp->rank > 0)
        return ZR_OK;
    unsigned char number[ZR_TCP_SECRET_BYTES];
    zr_result result = zr_tcp_secret_make(number);
    if (join->run == 0) {
        memcpy(&join->run, number, sizeof join->run);
        join->run |= 1; /* 0 is no number */
    }
    if (result == ZR_OK && join->listener < 0)
        result = zr_tcp_listen(&join->listener, join->options->rendezvous, NULL);
    if (result == ZR_OK) {
        fcntl(join->listener, F_SETFL, O_NONBLOCK);
        zr_tcp_introduce_address(&join->own, join->listener);
        join->table[0] = join->own;
    }
    return result;
}

zr_result zr_tcp_join(struct zr_tcp *tcp, const struct zr_tcp_options *options)
{
    struct join *join;
    zr_result result = zr_take(tcp->arena, ZR_TAG_COMM, 1, sizeof *join, (void **)&join);
    if (result != ZR_OK)
        return result;
    memset(join, 0, sizeof *join);
    join->tcp = tcp;
    join->options = options;
    join->listener = options->rank == 0 ? options->listener : -1;
    result = begin(join);
    while (result == ZR_OK && (!join->known || first_missing(join) < tcp->world)) {
        if (tcp->rank == 0 && !join->known)
            reply_to_all(join);
        dial(join);
        if (join->result == ZR_OK)
            attend(join);
        result = join->result;
        if (result == ZR_OK && first_missing(join) < tcp->world)
            result = check_time(join);
    }
    if (result == ZR_OK)
        name_peers(join);
    else
        note_missing(join);
    for (unsigned i = 0; i < DOORS; i++)
        if (join->doors[i].phase != CLOSED)
            close_door(&join->doors[i]);
    if (join->listener >= 0) {
        if (!options->local)
            shutdown(join->listener, SHUT_RDWR); /* the launcher has a copy of the descriptor */
        close(join->listener);
    }
    zr_drop(tcp->arena, &join);
    return result;
}
