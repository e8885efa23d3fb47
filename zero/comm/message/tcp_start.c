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

/* Connects to all ranks. If ranks are replaced, repeats what fails: the ranks do not begin at the same time,
 * and others may be lost meanwhile. */
static zr_result connect_all(struct zr_local_world *local, unsigned rank)
{
    uint64_t limit_ns = atomic_load(&local->restarts) > 0 ? tcp.launch.rejoin_timeout_ns
                        : tcp.launch.join_timeout_ns      ? tcp.launch.join_timeout_ns
                                                          : ZR_TCP_JOIN_NS;
    uint64_t until_ns = zr_os_now_ns() + limit_ns, now_ns;
    zr_result result;
    for (;;) {
        struct zr_tcp_options options = tcp.options;
        now_ns = zr_os_now_ns();
        options.join_timeout_ns = now_ns < until_ns ? until_ns - now_ns : 1;
        if (options.local && options.listener >= 0)
            options.listener = fcntl(options.listener, F_DUPFD_CLOEXEC, 0); /* for the next rendezvous */
        result = zr_tcp_open(&tcp.transport, &options);
        if (result == ZR_OK || result == ZR_ERR_INVALID || !options.local || now_ns >= until_ns)
            break;
        if (atomic_load(&local->restarting)) {
            result = zr_local_await_restart(local, rank, NULL);
            if (result != ZR_OK)
                break;
            until_ns = zr_os_now_ns() + tcp.launch.rejoin_timeout_ns;
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
    uint64_t beat_ns = tcp.options.heartbeat_ns ? tcp.options.heartbeat_ns : ZR_TCP_HEARTBEAT_NS;
    uint64_t until_ns = zr_os_now_ns() + 2 * ZR_TCP_LOST_BEATS * beat_ns;
    enum zr_tcp_loss loss = ZR_TCP_ALL_THERE;
    if (!tcp.open || zr_local_is_out_of_step(local) ||
        atomic_load(&local->restarts) >= tcp.launch.max_restarts)
        return false;
    while (loss == ZR_TCP_ALL_THERE && zr_os_now_ns() < until_ns && atomic_load(&local->abort) == 0) {
        loss = zr_tcp_find_loss(&tcp.transport, words);
        if (loss == ZR_TCP_ALL_THERE)
            nap(LOOK_NS);
    }
    return loss == ZR_TCP_RANK_LOST || atomic_load(&local->restarting);
}

/* Closes all connections, so that each other rank sees a loss too, and makes them again. */
static zr_result rejoin(struct zr_local_world *local, unsigned rank)
{
    char words[ZR_TRANSPORT_WHY_BYTES] = "a rank was lost";
    if (tcp.open)
        zr_tcp_find_loss(&tcp.transport, words);
    disconnect(false);
    zr_result result = zr_local_await_restart(local, rank, words);
    if (result != ZR_OK)
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
    tcp.options.rank = rank;
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

/* One rank, watched by this process. */
static int watch_rank(const struct zr_launch_options *options, unsigned rank)
{
    struct zr_local_part part = {.first = rank, .count = 1, .memory = {-1, -1, -1, -1}};
    int code = EXIT_MEMORY;
    zr_local_sockets_clear(&part.sockets);
    if (zr_local_control_make(&part.control, options->world) == ZR_OK)
        code = zr_local_watch_over(options, &part);
    else
        zr_local_log("rank %u: %s", rank, zr_last_error());
    if (code != 0 && options->clean_up)
        options->clean_up(options->argument);
    zr_local_control_end(&part.control);
    return code;
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
    int code = options->rendezvous ? watch_rank(&own, start->rank) : zr_local_launch(&own);
    if (tcp.options.listener >= 0)
        close(tcp.options.listener);
    explicit_bzero(tcp.options.secret, sizeof tcp.options.secret);
    return code;
}
