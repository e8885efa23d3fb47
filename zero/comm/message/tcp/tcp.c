/* tcp.c: the functions of a TCP transport, its life and the thread that keeps its connections alive. */
#define _GNU_SOURCE
#include "zero/comm/message/tcp/tcp.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "zero/comm/message/tcp/inside.h"
#include "zero/comm/take.h"
#include "zero/launch/zr_launch.h"

enum { GRANULE_BYTES = 256 << 10, CLOSE_WAIT_MS = 10, LOST_WORDS = ZR_MAX_WORLD / 64 };
#define RESERVE_BYTES ((size_t)4 << 30) /* addresses only */

static struct zr_tcp *of(struct zr_transport *transport)
{
    return transport->state;
}

/* ---- Functions of the transport ------------------------------------------------------------------------ */

static int say_why(struct zr_tcp *tcp, const char *why)
{
    snprintf(tcp->transport->why, sizeof tcp->transport->why, "%s", why);
    return -1;
}

static bool valid(struct zr_tcp *tcp, const struct zr_transport_message *message)
{
    return message->tag < ZR_TCP_TAGS && message->bytes <= ZR_TCP_MOST_BYTES &&
           (message->any || (message->peer < tcp->world && message->peer != tcp->rank));
}

static int start(struct zr_transport *transport, const struct zr_transport_message *message,
                 struct zr_transport_request *request, bool sends)
{
    struct zr_tcp *tcp = of(transport);
    uint64_t number = 0;
    if (!valid(tcp, message))
        return say_why(tcp, "a message with a rank, tag or length out of range");
    pthread_mutex_lock(&tcp->lock);
    int failed =
        sends ? zr_tcp_start_send(tcp, message, &number) : zr_tcp_start_receive(tcp, message, &number);
    if (failed)
        say_why(tcp, tcp->peers[message->peer].lost ? tcp->peers[message->peer].why : zr_last_error());
    memcpy(request->room, &number, sizeof number);
    pthread_mutex_unlock(&tcp->lock);
    return failed;
}

static int tcp_send(struct zr_transport *transport, const struct zr_transport_message *message,
                    struct zr_transport_request *request)
{
    return start(transport, message, request, true);
}

static int tcp_receive(struct zr_transport *transport, const struct zr_transport_message *message,
                       struct zr_transport_request *request)
{
    return start(transport, message, request, false);
}

static struct zr_tcp_operation *operation_of(struct zr_tcp *tcp, const struct zr_transport_request *request)
{
    uint64_t number;
    memcpy(&number, request->room, sizeof number);
    return zr_tcp_find(tcp, number);
}

static int tcp_test(struct zr_transport *transport, struct zr_transport_request *request, bool *done,
                    size_t *bytes)
{
    struct zr_tcp *tcp = of(transport);
    int failed = 0;
    pthread_mutex_lock(&tcp->lock);
    struct zr_tcp_operation *operation = operation_of(tcp, request);
    if (operation && operation->state < ZR_TCP_DONE)
        zr_tcp_progress(tcp, 0);
    *done = !operation || operation->state >= ZR_TCP_DONE;
    *bytes = operation && !operation->sends ? operation->bytes : 0;
    if (!operation)
        failed = say_why(tcp, "a message that has ended before");
    else if (operation->state == ZR_TCP_FAILED)
        failed = say_why(tcp, operation->why ? operation->why : tcp->peers[operation->peer].why);
    if (operation && *done)
        zr_tcp_release(tcp, operation);
    pthread_mutex_unlock(&tcp->lock);
    return failed;
}

static void tcp_cancel(struct zr_transport *transport, struct zr_transport_request *request)
{
    struct zr_tcp *tcp = of(transport);
    pthread_mutex_lock(&tcp->lock);
    struct zr_tcp_operation *operation = operation_of(tcp, request);
    if (operation)
        zr_tcp_withdraw(tcp, operation);
    pthread_mutex_unlock(&tcp->lock);
}

static void tcp_lost(struct zr_transport *transport, uint64_t *ranks)
{
    struct zr_tcp *tcp = of(transport);
    pthread_mutex_lock(&tcp->lock);
    zr_tcp_progress(tcp, 0);
    memset(ranks, 0, LOST_WORDS * sizeof *ranks);
    for (unsigned p = 0; p < tcp->world; p++)
        ranks[p / 64] |= (uint64_t)tcp->peers[p].lost << p % 64;
    pthread_mutex_unlock(&tcp->lock);
}

/* ---- Life ---------------------------------------------------------------------------------------------- */

/* Answers for this rank while it computes. */
static void *keep_alive(void *argument)
{
    struct zr_tcp *tcp = argument;
    while (!atomic_load(&tcp->stops)) {
        zr_word_wait(&tcp->stops, 0, tcp->heartbeat_ns / 4);
        pthread_mutex_lock(&tcp->lock);
        zr_tcp_progress(tcp, 0);
        pthread_mutex_unlock(&tcp->lock);
    }
    return NULL;
}

void zr_tcp_destroy(struct zr_tcp *tcp)
{
    zr_backend *backend = tcp->backend;
    zr_arena *arena = tcp->arena;
    if (tcp->threaded) {
        atomic_store(&tcp->stops, 1);
        zr_word_wake_all(&tcp->stops);
        zr_thread_join(&tcp->thread);
    }
    for (unsigned p = 0; tcp->peers && p < tcp->world; p++)
        for (unsigned i = 0; i < zr_tcp_wires(tcp); i++)
            if (tcp->peers[p].streams[i].fd >= 0)
                close(tcp->peers[p].streams[i].fd);
    if (tcp->epoll >= 0)
        close(tcp->epoll);
    pthread_mutex_destroy(&tcp->lock);
    zr_arena_destroy(arena, NULL); /* with all records */
    zr_backend_destroy(backend);
}

void zr_tcp_abort(struct zr_transport *transport, bool fails)
{
    struct zr_tcp *tcp = of(transport);
    pthread_mutex_lock(&tcp->lock);
    if (!tcp->closing)
        zr_tcp_say_bye(tcp, fails ? ZR_TCP_BYE_FAILS : ZR_TCP_BYE_RETURNS);
    pthread_mutex_unlock(&tcp->lock);
    zr_tcp_destroy(tcp);
    transport->state = NULL;
}

/* `parts`: ranks that have left are not lost. */
static enum zr_tcp_loss find_loss(struct zr_tcp *tcp, bool parts, char *words)
{
    enum zr_tcp_loss loss = ZR_TCP_ALL_THERE;
    for (unsigned p = 0; p < tcp->world; p++) {
        const struct zr_tcp_peer *peer = &tcp->peers[p];
        const enum zr_tcp_loss its = !peer->lost || (parts && peer->left) ? ZR_TCP_ALL_THERE
                                     : peer->failed                       ? ZR_TCP_RANK_FAILED
                                     : peer->returns                      ? ZR_TCP_RANK_RETURNS
                                                                          : ZR_TCP_RANK_LOST;
        if (its > loss)
            snprintf(words, ZR_TRANSPORT_WHY_BYTES, "%s", peer->why);
        loss = its > loss ? its : loss;
    }
    return loss;
}

enum zr_tcp_loss zr_tcp_find_loss(struct zr_transport *transport, char *words)
{
    struct zr_tcp *tcp = of(transport);
    pthread_mutex_lock(&tcp->lock);
    zr_tcp_progress(tcp, 0);
    const enum zr_tcp_loss loss = find_loss(tcp, false, words);
    pthread_mutex_unlock(&tcp->lock);
    return loss;
}

/* Whether each other rank has left or is lost, and has this rank's BYE. */
static bool all_left(const struct zr_tcp *tcp)
{
    for (unsigned p = 0; p < tcp->world; p++)
        if (p != tcp->rank && !tcp->peers[p].lost && (!tcp->peers[p].left || tcp->peers[p].bye.queued))
            return false;
    return true;
}

enum zr_tcp_loss zr_tcp_part(struct zr_transport *transport, char *words)
{
    struct zr_tcp *tcp = of(transport);
    pthread_mutex_lock(&tcp->lock);
    zr_tcp_say_bye(tcp, ZR_TCP_BYE_LEAVES);
    while (!all_left(tcp)) {
        pthread_mutex_unlock(&tcp->lock);
        pthread_mutex_lock(&tcp->lock);
        zr_tcp_progress(tcp, CLOSE_WAIT_MS);
    }
    const enum zr_tcp_loss loss = find_loss(tcp, true, words);
    pthread_mutex_unlock(&tcp->lock);
    zr_tcp_abort(transport, false);
    return loss;
}

static int tcp_close(struct zr_transport *transport)
{
    return zr_tcp_part(transport, transport->why) == ZR_TCP_ALL_THERE ? 0 : -1;
}

static void init_peer(struct zr_tcp *tcp, unsigned p)
{
    struct zr_tcp_peer *peer = &tcp->peers[p];
    for (unsigned i = 0; i <= ZR_TCP_STREAMS_MAX; i++) {
        peer->streams[i].fd = -1;
        peer->streams[i].peer = p;
        peer->streams[i].number = i;
    }
    peer->small_left = ZR_TCP_SMALL_WINDOW;
    peer->beat.frame.kind = ZR_TCP_BEAT;
    peer->bye.frame.kind = ZR_TCP_BYE;
    snprintf(peer->host, sizeof peer->host, "?");
}

/* Each connection is a descriptor. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

zr_result zr_tcp_make(struct zr_tcp **out, const struct zr_tcp_options *options)
{
    zr_backend *backend;
    zr_arena *arena = NULL;
    struct zr_tcp *tcp = NULL;
    zr_result result = zr_backend_host_create(
        &backend, &(struct zr_host_options){.granule_bytes = GRANULE_BYTES, .small_pages = true});
    if (result != ZR_OK)
        return result;
    result = zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                                .name = "tcp",
                                                                .reserve_bytes = RESERVE_BYTES,
                                                                .limit_bytes = RESERVE_BYTES});
    if (result == ZR_OK)
        result = zr_take(arena, ZR_TAG_COMM, 1, sizeof *tcp, (void **)&tcp);
    if (result != ZR_OK) {
        zr_arena_destroy(arena, NULL);
        zr_backend_destroy(backend);
        return result;
    }
    *tcp =
        (struct zr_tcp){.local = options->local,
                        .rank = options->rank,
                        .world = options->world,
                        .streams = options->streams ? options->streams : ZR_TCP_STREAMS,
                        .backend = backend,
                        .arena = arena,
                        .epoll = epoll_create1(EPOLL_CLOEXEC),
                        .clock_ns = zr_os_now_ns(),
                        .heartbeat_ns = options->heartbeat_ns ? options->heartbeat_ns : ZR_TCP_HEARTBEAT_NS};
    tcp->looked_ns = tcp->ticked_ns = tcp->clock_ns;
    pthread_mutex_init(&tcp->lock, NULL);
    *out = tcp;
    result = zr_take(arena, ZR_TAG_COMM, tcp->world, sizeof *tcp->peers, (void **)&tcp->peers);
    if (result == ZR_OK) {
        memset(tcp->peers, 0, tcp->world * sizeof *tcp->peers);
        for (unsigned p = 0; p < tcp->world; p++)
            init_peer(tcp, p);
        result = zr_take(arena, ZR_TAG_COMM, ZR_TCP_SCRATCH, 1, (void **)&tcp->scratch);
    }
    if (result == ZR_OK && tcp->epoll < 0)
        result = zr_fail(ZR_ERR_UNAVAILABLE, "no file descriptor is left: raise `ulimit -n`");
    return result;
}

zr_result zr_tcp_watch_all(struct zr_tcp *tcp)
{
    tcp->looked_ns = zr_os_now_ns();
    for (unsigned p = 0; p < tcp->world; p++) {
        tcp->peers[p].heard_ns = tcp->peers[p].said_ns = tcp->clock_ns;
        for (unsigned i = 0; p != tcp->rank && i < zr_tcp_wires(tcp); i++) {
            struct epoll_event event = {.events = EPOLLIN, .data.ptr = &tcp->peers[p].streams[i]};
            if (epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, tcp->peers[p].streams[i].fd, &event) != 0)
                return zr_fail(ZR_ERR_UNAVAILABLE, "the system watches no more connections: epoll: raise "
                                                   "/proc/sys/fs/epoll/max_user_watches");
        }
    }
    return ZR_OK;
}

zr_result zr_tcp_open(struct zr_transport *out, const struct zr_tcp_options *options)
{
    struct zr_tcp *tcp = NULL;
    if (!out || options->world == 0 || options->world > ZR_MAX_WORLD || options->rank >= options->world ||
        options->streams > ZR_TCP_STREAMS_MAX || !options->rendezvous)
        return zr_fail(ZR_ERR_INVALID,
                       "zr_tcp_open() requires a rank of at most %d, HOST:PORT, and at most %d "
                       "streams",
                       ZR_MAX_WORLD, ZR_TCP_STREAMS_MAX);
    raise_descriptors();
    zr_result result = zr_tcp_make(&tcp, options);
    if (result == ZR_OK)
        result = zr_tcp_join(tcp, options);
    if (result == ZR_OK)
        result = zr_tcp_watch_all(tcp);
    if (result == ZR_OK)
        result = zr_thread_start(&tcp->thread, tcp->arena, 0, keep_alive, tcp);
    if (result != ZR_OK) {
        if (tcp)
            zr_tcp_destroy(tcp);
        return result;
    }
    tcp->threaded = true;
    *out = (struct zr_transport){.version = ZR_TRANSPORT_VERSION,
                                 .name = "tcp",
                                 .state = tcp,
                                 .rank = tcp->rank,
                                 .world = tcp->world,
                                 .host_first = tcp->host_first,
                                 .host_ranks = tcp->host_ranks,
                                 .most_bytes = ZR_TCP_MOST_BYTES,
                                 .tags_count = ZR_TCP_TAGS,
                                 .send = tcp_send,
                                 .receive = tcp_receive,
                                 .test = tcp_test,
                                 .cancel = tcp_cancel,
                                 .close = tcp_close,
                                 .lost = tcp_lost};
    tcp->transport = out;
    return ZR_OK;
}
