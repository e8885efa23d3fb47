/* tcp_start.c: ranks of a run over TCP: those that are forked here, or one rank of those that meet at a
 * rendezvous. tcp/ has the transport; launch/launch.c forks and watches the processes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "zero/comm/mesh.h"
#include "zero/comm/message/message.h"
#include "zero/comm/message/tcp/tcp.h"
#include "zero/launch/control.h"
#include "zero/launch/start.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_MEMORY = 4 };
#define RETRY_NS UINT64_C(50000000) /* between two rendezvous */
#define LOOK_NS  UINT64_C(5000000)

zr_result zr_tcp_check(const struct zr_start *start, bool rendezvous)
{
    if (rendezvous && start->kind == ZR_START_FORK)
        return zr_fail(ZR_ERR_INVALID,
                       "--rendezvous requires the rank of this process: --rank R of --ranks N, or RANK "
                       "and WORLD_SIZE in the environment");
    if (!rendezvous && start->kind != ZR_START_FORK && start->world > 1)
        return zr_fail(
            ZR_ERR_INVALID,
            "--comm tcp: %s and %s are set, so the ranks need a place to meet; give --rendezvous HOST:PORT, "
            "an address of the host of rank 0, or unset both to fork the ranks here",
            start->rank_name, start->world_name);
    return ZR_OK;
}

/* Set before the fork. */
static struct {
    struct zr_tcp_options options;
    struct zr_launch_options launch; /* the caller's */
    char address[ZR_TCP_ADDRESS_BYTES];
    struct zr_transport transport; /* of the rank */
    bool open;
} tcp;

/* ---- Connections --------------------------------------------------------------------------------------- */

static void nap(uint64_t ns)
{
    _Atomic uint32_t unused = 0;
    zr_word_wait(&unused, 0, ns);
}

static uint64_t heartbeat_ns(void)
{
    return tcp.options.heartbeat_ns ? tcp.options.heartbeat_ns : ZR_TCP_HEARTBEAT_NS;
}

/* Time beyond that for lost ranks, for launchers that stand in for them. */
static uint64_t stand_in_ns(void)
{
    return 4 * ZR_TCP_LOST_BEATS * heartbeat_ns();
}

static bool is_elastic(void)
{
    return tcp.launch.rendezvous && tcp.launch.replicas.by_events;
}

/* The time for all ranks to meet. */
static uint64_t limit_ns(bool again)
{
    const uint64_t join_ns = tcp.launch.join_timeout_ns;
    if (again)
        return tcp.launch.rejoin_timeout_ns + (is_elastic() && tcp.options.rank > 0 ? stand_in_ns() : 0);
    return join_ns > 0 && join_ns < ZR_TCP_JOIN_NS ? join_ns : ZR_TCP_JOIN_NS;
}

/* Rank 0: asks the launcher to stand in for the ranks that have not come. False: their replicas cannot leave.
 */
static bool ask_for_stand_ins(struct zr_local_world *local, const bool *missing)
{
    const struct zr_launch_replicas *replicas = &tcp.launch.replicas;
    const unsigned inner = replicas->inner, count = local->world / (inner * replicas->outer);
    bool leaves[ZR_MAX_WORLD] = {false};
    unsigned left = count;
    for (unsigned r = 0; r < local->world; r++)
        if (missing[r] && !leaves[r / inner % count]) {
            leaves[r / inner % count] = true;
            left--;
        }
    if (leaves[0] || left < replicas->least)
        return false;
    return zr_local_ask_to_stand_in(local, missing);
}

/* Connects to all ranks. If ranks are replaced, repeats what fails: the ranks do not begin at the same time,
 * and others may be lost meanwhile. */
static zr_result connect_all(struct zr_local_world *local, unsigned rank)
{
    bool missing[ZR_MAX_WORLD], asks = is_elastic() && atomic_load(&local->restarts) > 0 && rank == 0;
    tcp.options.rank = rank;
    tcp.options.world = local->world;
    uint64_t until_ns = zr_os_now_ns() + limit_ns(atomic_load(&local->restarts) > 0), now_ns;
    zr_result result;
    for (;;) {
        struct zr_tcp_options options = tcp.options;
        now_ns = zr_os_now_ns();
        options.join_timeout_ns = now_ns < until_ns ? until_ns - now_ns : 1;
        options.missing = missing;
        memset(missing, 0, sizeof missing);
        if (options.local && options.listener >= 0)
            options.listener = fcntl(options.listener, F_DUPFD_CLOEXEC, 0); /* for the next rendezvous */
        result = zr_tcp_open(&tcp.transport, &options);
        now_ns = zr_os_now_ns();
        if (result != ZR_OK && asks && now_ns >= until_ns && ask_for_stand_ins(local, missing)) {
            asks = false;
            until_ns = now_ns + stand_in_ns();
        }
        if (result == ZR_OK || result == ZR_ERR_INVALID || !options.local || now_ns >= until_ns)
            break;
        if (atomic_load(&local->restarting)) {
            result = zr_local_await_restart(local, rank, NULL);
            if (result != ZR_OK)
                break;
            until_ns = zr_os_now_ns() + limit_ns(true);
            asks = is_elastic() && rank == 0;
        }
        nap(RETRY_NS);
    }
    if (result != ZR_OK)
        return result;
    zr_message_join(&tcp.transport);
    tcp.open = true;
    return ZR_OK;
}

static void disconnect(bool fails)
{
    if (!tcp.open)
        return;
    zr_message_leave();
    zr_tcp_abort(&tcp.transport, fails);
    tcp.open = false;
}

/* Waits until this rank has seen the loss of a rank: another rank's report arrives before. A rank that has
 * failed ends the run. */
static bool lost(struct zr_local_world *local)
{
    char words[ZR_TRANSPORT_WHY_BYTES];
    uint64_t until_ns = zr_os_now_ns() + 2 * ZR_TCP_LOST_BEATS * heartbeat_ns();
    enum zr_tcp_loss loss = ZR_TCP_ALL_THERE;
    if (!tcp.open || zr_local_is_out_of_step(local) ||
        (!is_elastic() && atomic_load(&local->restarts) >= tcp.launch.max_restarts))
        return false;
    while (loss == ZR_TCP_ALL_THERE && zr_os_now_ns() < until_ns && atomic_load(&local->abort) == 0) {
        loss = zr_tcp_find_loss(&tcp.transport, words);
        if (loss == ZR_TCP_ALL_THERE)
            nap(LOOK_NS);
    }
    return loss == ZR_TCP_RANK_LOST || loss == ZR_TCP_RANK_RETURNS || atomic_load(&local->restarting);
}

/* Leaves the old world with all its ranks, after which each has what it needs for the next one. A rank that
 * is lost here is replaced in the next world, unless another one has lost it before: that one does not know
 * that the state is complete, and all stay in the old world. */
static zr_result part_in_peace(struct zr_local_world *local, char *words)
{
    zr_message_leave();
    tcp.open = false;
    const enum zr_tcp_loss loss = zr_tcp_part(&tcp.transport, words);
    if (loss == ZR_TCP_RANK_RETURNS)
        zr_local_undo_move(local);
    if (loss != ZR_TCP_RANK_FAILED)
        return ZR_OK;
    zr_local_log("rank %u: %s", tcp.options.rank, words);
    zr_local_message_logged(local);
    return zr_fail(ZR_ERR_PEER, "%s", words);
}

/* Closes all connections, so that each other rank sees a loss too, and makes them again. */
static zr_result rejoin(struct zr_local_world *local, unsigned rank)
{
    char words[ZR_TRANSPORT_WHY_BYTES] = "a rank was lost";
    const unsigned sizes = zr_local_sizes(local);
    zr_result result = ZR_OK;
    if (tcp.open && atomic_load(&local->resizing))
        result = part_in_peace(local, words);
    else if (tcp.open)
        zr_tcp_find_loss(&tcp.transport, words);
    disconnect(false);
    if (result == ZR_OK)
        result = zr_local_await_restart(local, rank, words);
    if (result == ZR_OK && zr_local_sizes(local) != sizes)
        rank = local->next[rank];
    if (result != ZR_OK || rank == ZR_LOCAL_LEAVES)
        return result;
    result = connect_all(local, rank);
    if (result != ZR_OK) {
        zr_local_log("rank %u: %s, and was not back within %.4g s: %s", rank, words,
                     (double)tcp.launch.rejoin_timeout_ns * 1e-9, zr_last_error());
        zr_local_message_logged(local);
    }
    return result;
}

static const struct zr_local_ties ties = {lost, rejoin};

/* A rank that succeeds leaves the run and waits for the others to leave; the connections of a failed rank
 * close, which ends the others' waits. */
static int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    (void)argument;
    tcp.options.local = tcp.launch.max_restarts > 0 ? local : NULL;
    if (tcp.options.local)
        zr_local_set_ties(&ties);
    if (rank > 0 && tcp.options.listener >= 0) {
        close(tcp.options.listener);
        tcp.options.listener = -1;
    }
    if (connect_all(local, rank) != ZR_OK) {
        zr_local_log("%s", zr_last_error());
        zr_local_message_logged(local);
        return EXIT_FAILED;
    }
    int code = tcp.launch.rank_main(local, rank, tcp.launch.argument);
    if (code != 0 || !tcp.open) {
        disconnect(true);
        return code;
    }
    zr_message_leave();
    if (tcp.transport.close(&tcp.transport) != 0) {
        code = EXIT_FAILED;
        if (tcp.launch.rendezvous) /* else the launcher reports the lost rank */
            zr_local_log("rank %u: %s", rank, tcp.transport.why);
    }
    return code;
}

/* ---- Launches ------------------------------------------------------------------------------------------ */

/* Ranks that are forked here meet at a port of this host that the system chooses, with a secret of their own.
 */
static zr_result prepare_fork(void)
{
    zr_result result = zr_tcp_secret_make(tcp.options.secret);
    if (result == ZR_OK)
        result = zr_tcp_listen(&tcp.options.listener, "127.0.0.1:0", tcp.address);
    if (result != ZR_OK)
        result = zr_tcp_listen(&tcp.options.listener, "[::1]:0", tcp.address);
    tcp.options.rendezvous = tcp.address;
    return result;
}

static zr_result prepare_rendezvous(void)
{
    const char *text = zr_start_secret();
    tcp.options.rendezvous = tcp.launch.rendezvous;
    zr_result result = zr_tcp_rendezvous_find(tcp.launch.rendezvous);
    if (result != ZR_OK)
        return result;
    if (tcp.launch.secret_file)
        return zr_tcp_secret_from_file(tcp.options.secret, tcp.launch.secret_file);
    if (text)
        return zr_tcp_secret_from_text(tcp.options.secret, text, strlen(text));
    return zr_fail(ZR_ERR_INVALID,
                   "--rendezvous requires --secret-file FILE, the same file on all hosts, or ZR_SECRET "
                   "in the environment: without it no rank is accepted");
}

static int stand_in(const struct zr_local_world *local, unsigned rank);

/* One rank, watched by this process. `from`: the control block of the launcher that stands in for the rank's
 * own; NULL: this is the rank's own. */
static int watch_rank(const struct zr_launch_options *options, unsigned rank,
                      const struct zr_local_world *from)
{
    struct zr_local_part part = {.first = rank, .count = 1, .stand_in = rank == 0 ? stand_in : NULL};
    struct zr_launch_options own = *options;
    int code = EXIT_MEMORY;
    if (options->replicas.by_events && rank > 0)
        own.clean_up = NULL; /* rank 0 may go on, and write what this would remove */
    zr_local_sockets_clear(&part.sockets);
    if (zr_local_control_make(&part.control, options->world) == ZR_OK) {
        part.control.local->apart = options->replicas.inner > 0;
        if (from) {
            part.control.local->leaves = ZR_LOCAL_STANDS_IN;
            zr_local_set_world(part.control.local, from->world);
            atomic_store(&part.control.local->sizes, atomic_load(&from->sizes));
        }
        code = zr_local_watch_over(&own, &part);
    } else
        zr_local_log("rank %u: %s", rank, zr_last_error());
    if (code != 0 && own.clean_up)
        own.clean_up(own.argument);
    zr_local_control_end(&part.control);
    return code;
}

static int stand_in(const struct zr_local_world *local, unsigned rank)
{
    struct zr_launch_options own = tcp.launch;
    own.rank_main = run_rank;
    return watch_rank(&own, rank, local);
}

int zr_tcp_run(const struct zr_launch_options *options, const struct zr_start *start)
{
    if (options->world == 1)
        return zr_local_launch(options);
    tcp.launch = *options;
    if (tcp.launch.rejoin_timeout_ns == 0)
        tcp.launch.rejoin_timeout_ns = ZR_TCP_JOIN_NS;
    struct zr_launch_options own = tcp.launch;
    tcp.options = (struct zr_tcp_options){.world = options->world,
                                          .streams = options->tcp_streams,
                                          .heartbeat_ns = options->heartbeat_ns,
                                          .join_timeout_ns = options->join_timeout_ns,
                                          .listener = -1};
    own.rank_main = run_rank; /* clean_up still has the caller's argument */
    if ((options->rendezvous ? prepare_rendezvous() : prepare_fork()) != ZR_OK) {
        zr_local_log("%s", zr_last_error());
        return EXIT_USAGE;
    }
    int code = options->rendezvous ? watch_rank(&own, start->rank, NULL) : zr_local_launch(&own);
    if (tcp.options.listener >= 0)
        close(tcp.options.listener);
    explicit_bzero(tcp.options.secret, sizeof tcp.options.secret);
    return code;
}
