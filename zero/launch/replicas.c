/* replicas.c: see replicas.h. */
#define _GNU_SOURCE
#include "zero/launch/replicas.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/socket.h"

enum { ANSWER_ROOM = 160, ANSWER_MS = 60000 };

void zr_replicas_init(struct zr_replicas *out, const struct zr_launch_replicas *options,
                      struct zr_local_world *local)
{
    *out = (struct zr_replicas){.options = options, .local = local, .door = -1};
}

static unsigned count(const struct zr_replicas *replicas)
{
    return replicas->local->world / (replicas->options->inner * replicas->options->outer);
}

/* The replica of a rank. */
static unsigned replica_of(const struct zr_replicas *replicas, unsigned rank)
{
    return rank / replicas->options->inner % count(replicas);
}

static unsigned next_count(const struct zr_replicas *replicas)
{
    return count(replicas) - replicas->leaving + replicas->joining;
}

static void want_change(struct zr_replicas *replicas)
{
    atomic_store(&replicas->local->resize_wanted, true);
}

/* Whether a replica can leave: the others are enough. */
static bool leave(struct zr_replicas *replicas, unsigned replica)
{
    if (replicas->local->apart) {
        if (replica == 0 || count(replicas) <= replicas->options->least)
            return false;
        uint8_t none = ZR_LOCAL_REMAINS;
        atomic_compare_exchange_strong(&replicas->local->leaves, &none, ZR_LOCAL_HAS_NOTICE);
        return true;
    }
    if (replicas->leaves[replica])
        return true;
    if (next_count(replicas) <= replicas->options->least)
        return false;
    replicas->leaves[replica] = true;
    replicas->leaving++;
    want_change(replicas);
    return true;
}

bool zr_replicas_lose(struct zr_replicas *replicas, unsigned rank)
{
    return leave(replicas, replica_of(replicas, rank));
}

/* ---- Notices ------------------------------------------------------------------------------------------- */

static void follow_notice(struct zr_replicas *replicas, int32_t pid)
{
    unsigned rank = 0, world = replicas->local->world;
    while (rank < world && atomic_load(&replicas->local->ranks[rank].pid) != pid)
        rank++;
    if (rank == world) /* it has left */
        return;
    if (leave(replicas, replica_of(replicas, rank)))
        zr_local_log("rank %u (pid %d) got SIGTERM: its replica leaves at the end of the step", rank,
                     (int)pid);
    else
        zr_local_log(
            "rank %u (pid %d) got SIGTERM, and stays: %u replicas have to remain%s; SIGTERM to pid %d ends the "
            "run",
            rank, (int)pid, replicas->options->least,
            replicas->local->apart ? ", and the one with the rendezvous" : "", (int)getpid());
}

/* ---- Requests to join ---------------------------------------------------------------------------------- */

/* The launcher's socket, a name that ends with its process. */
static socklen_t name_of(pid_t launcher, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "zr-launcher-%d", (int)launcher);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

void zr_replicas_close(struct zr_replicas *replicas)
{
    if (replicas->door >= 0)
        close(replicas->door);
    replicas->door = -1;
}

zr_result zr_replicas_open(struct zr_replicas *replicas)
{
    struct sockaddr_un name;
    socklen_t bytes = name_of(getpid(), &name);
    replicas->door = zr_fault_no_descriptor() ? -1 : zr_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
    if (replicas->door < 0)
        return zr_fail(ZR_ERR_HOST_MEMORY,
                       "no file descriptor is left for requests to join: raise `ulimit -n`");
    if (bind(replicas->door, (const struct sockaddr *)&name, bytes) != 0 || listen(replicas->door, 8) != 0) {
        zr_local_log("the socket for requests to join cannot be opened (error %d); no replica can join",
                     errno);
        zr_replicas_close(replicas);
        return ZR_OK;
    }
    fcntl(replicas->door, F_SETOWN, getpid());
    fcntl(replicas->door, F_SETFL, O_ASYNC | O_NONBLOCK);
    return ZR_OK;
}

/* Answers one request. The first byte of an answer is '+' if a replica will join. */
static void answer(struct zr_replicas *replicas, int client, bool ends)
{
    char text[ANSWER_ROOM];
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t bytes = sizeof peer;
    if (getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != getuid()) {
        snprintf(text, sizeof text, "-the run is another user's");
    } else if (ends) {
        snprintf(text, sizeof text, "-the run is ending");
    } else if (next_count(replicas) >= replicas->options->most) {
        snprintf(text, sizeof text, "-the run has %u replicas, the most that it takes", next_count(replicas));
    } else {
        replicas->joining++;
        want_change(replicas);
        snprintf(text, sizeof text, "+%u", next_count(replicas));
        zr_local_log("a replica joins at the end of the step, as pid %d requests: there are %u then",
                     (int)peer.pid, next_count(replicas));
    }
    zr_send_packet(client, text, strlen(text),
                   MSG_DONTWAIT | MSG_NOSIGNAL); /* a client that is gone needs none */
}

void zr_replicas_serve(struct zr_replicas *replicas, bool ends)
{
    if (!replicas->options->by_events)
        return;
    for (unsigned i = 0; i < ZR_MAX_WORLD; i++) {
        int32_t pid =
            atomic_load(&replicas->local->notices[i]) ? atomic_exchange(&replicas->local->notices[i], 0) : 0;
        if (pid && !ends)
            follow_notice(replicas, pid);
    }
    for (int client; replicas->door >= 0 && (client = zr_accept(replicas->door, SOCK_CLOEXEC)) >= 0;
         close(client))
        answer(replicas, client, ends);
}

zr_result zr_launch_join(int launcher, unsigned *replicas)
{
    struct sockaddr_un name;
    socklen_t bytes = name_of((pid_t)launcher, &name);
    char text[ANSWER_ROOM] = "";
    ssize_t got = -1;
    int client = zr_socket(AF_UNIX, SOCK_SEQPACKET);
    if (client < 0)
        return zr_fail(ZR_ERR_HOST_MEMORY, "no file descriptor is left: raise `ulimit -n`");
    if (zr_connect(client, (const struct sockaddr *)&name, bytes) == 0) {
        struct pollfd wait = {.fd = client, .events = POLLIN};
        if (zr_poll(&wait, 1, ANSWER_MS) > 0)
            got = zr_receive_packet(client, text, sizeof text - 1, 0);
    }
    close(client);
    if (got <= 0)
        return zr_fail(ZR_ERR_INVALID, "pid %d is not the launcher of a run that replicas can join",
                       launcher);
    if (text[0] != '+')
        return zr_fail(ZR_ERR_INVALID, "no replica joins: %s", text + 1);
    *replicas = (unsigned)strtoul(text + 1, NULL, 10);
    return ZR_OK;
}

/* ---- The change ---------------------------------------------------------------------------------------- */

/* Without events: the last replicas leave, or new ones come after them. */
static unsigned follow_schedule(struct zr_replicas *replicas, unsigned wanted)
{
    for (unsigned d = wanted; d < count(replicas); d++)
        replicas->leaves[d] = true;
    return wanted;
}

uint8_t zr_local_gather_leave(struct zr_local_world *local)
{
    const uint8_t leaves = atomic_load(&local->leaves);
    atomic_store(&local->gathered, leaves);
    return leaves;
}

/* The notice that was gathered has had its effect. */
static void forget_gathered(struct zr_local_world *local)
{
    if (atomic_exchange(&local->gathered, ZR_LOCAL_REMAINS) != ZR_LOCAL_REMAINS)
        atomic_store(&local->leaves, ZR_LOCAL_REMAINS);
}

unsigned zr_local_agree_to_leave(struct zr_local_world *local, const struct zr_launch_replicas *options,
                                 const uint8_t *wants)
{
    const unsigned count = local->world / (options->inner * options->outer);
    uint8_t replica_wants[ZR_MAX_WORLD] = {ZR_LOCAL_REMAINS};
    unsigned leaving = 0;
    for (unsigned r = 0; r < local->world; r++) {
        const unsigned d = r / options->inner % count;
        replica_wants[d] = wants[r] > replica_wants[d] ? wants[r] : replica_wants[d];
        atomic_store(&local->leaving[d], false);
    }
    for (uint8_t why = ZR_LOCAL_STANDS_IN; why > ZR_LOCAL_REMAINS; why--)
        for (unsigned d = 1; d < count && count - leaving > options->least; d++)
            if (replica_wants[d] == why) {
                atomic_store(&local->leaving[d], true);
                leaving++;
            }
    if (leaving == 0)
        forget_gathered(local);
    return leaving;
}

/* What the ranks of several launchers have agreed on. */
static void follow_agreement(struct zr_replicas *replicas)
{
    for (unsigned d = 0; replicas->local->apart && d < count(replicas); d++) {
        replicas->leaves[d] = atomic_load(&replicas->local->leaving[d]);
        replicas->leaving += replicas->leaves[d];
    }
    forget_gathered(replicas->local);
}

/* The pids of the world before, which the new one replaces. */
struct before {
    int32_t pids[ZR_MAX_WORLD];
    bool running[ZR_MAX_WORLD];
};

static void take(const struct zr_replicas *replicas, bool *running, struct before *out)
{
    for (unsigned r = 0; r < ZR_MAX_WORLD; r++) {
        out->pids[r] = r < replicas->local->world ? atomic_load(&replicas->local->ranks[r].pid) : 0;
        out->running[r] = running[r];
        running[r] = false;
    }
}

void zr_replicas_change(struct zr_replicas *replicas, bool *running)
{
    const unsigned inner = replicas->options->inner, outer = replicas->options->outer, old = count(replicas);
    struct zr_local_world *local = replicas->local;
    const uint32_t moved = atomic_load(&local->moved);
    follow_agreement(replicas);
    const unsigned wanted = moved > 1 ? follow_schedule(replicas, moved - 1) : next_count(replicas);
    struct before before;
    take(replicas, running, &before);
    zr_local_set_world(local, wanted * inner * outer);
    for (unsigned r = 0; r < local->world; r++)
        atomic_store(&local->ranks[r].pid, 0);
    for (unsigned d = 0, to = 0; d < old; d++) {
        for (unsigned i = 0; i < inner * outer; i++) {
            unsigned from = (i / inner * old + d) * inner + i % inner,
                     rank = (i / inner * wanted + to) * inner + i % inner;
            local->next[from] = replicas->leaves[d] ? ZR_LOCAL_LEAVES : rank;
            if (replicas->leaves[d]) {
                if (before.running[from])
                    replicas->left[replicas->left_count++] = before.pids[from];
                continue;
            }
            atomic_store(&local->ranks[rank].pid, before.pids[from]);
            running[rank] = before.running[from];
        }
        to += !replicas->leaves[d];
    }
    memset(replicas->leaves, 0, sizeof replicas->leaves);
    replicas->leaving = replicas->joining = 0;
    atomic_store(&local->resize_wanted, false);
    atomic_store(&local->hosts, 0);
    atomic_store(&local->sizes, atomic_load(&local->sizes) + 1);
}
