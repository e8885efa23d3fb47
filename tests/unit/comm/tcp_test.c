/* tcp_test.c: the transport over TCP between forked ranks on loopback: messages, lost ranks, strangers; and
 * every operation of a communicator over it. Each rank reports on stderr and by its exit status. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "alloc/base/system/process.h"
#include "tests/support/seed.h"
#include "tests/support/zero/comm_operations.h"
#include "tests/support/zero/comm_ranks.h"
#include "zero/comm/message/tcp/inside.h"
#include "zero/launch/zr_launch.h"

enum { MESSAGES = 64, LARGE = 1 << 20 };
#define SECOND UINT64_C(1000000000)

struct peer {
    struct zr_transport transport;
    unsigned rank, world, failures;
};

struct meeting {
    void (*body)(struct peer *peer); /* NULL: opening is all, and has to fail */
    unsigned world, streams;
    uint64_t heartbeat_ns, join_ns;
    unsigned forger;                           /* this rank has another secret; 0: none */
    void (*before)(struct sockaddr_in *where); /* in the parent, before a rank accepts; NULL: none */
};

static pid_t *pids; /* shared: of each rank */

/* ---- Ranks --------------------------------------------------------------------------------------------- */

static int be_rank(const struct meeting *meeting, const struct zr_tcp_options *options)
{
    struct peer peer = {.rank = options->rank, .world = options->world};
    struct zr_tcp_options own = *options;
    alarm(120);
    own.secret[0] ^= meeting->forger && meeting->forger == own.rank;
    if (own.rank > 0) {
        close(own.listener);
        own.listener = -1;
    }
    zr_result result = zr_tcp_open(&peer.transport, &own);
    if (!meeting->body) {
        fprintf(stderr, "# rank %u: %s\n", own.rank, zr_last_error());
        return result == ZR_OK ||
               !strstr(zr_last_error(), own.rank == 0 ? "rank 1 has not joined" : "secret");
    }
    check(&peer, result == ZR_OK, "%s", zr_last_error());
    if (result != ZR_OK)
        return CHECKS_FAILED;
    meeting->body(&peer);
    return peer.failures > 0 ? CHECKS_FAILED : 0;
}

/* How many ranks have failed; a rank that a signal ended has not. */
static unsigned meet_ranks(const struct meeting *meeting)
{
    char where[ZR_TCP_ADDRESS_BYTES];
    struct zr_tcp_options options = {.world = meeting->world,
                                     .streams = meeting->streams,
                                     .heartbeat_ns = meeting->heartbeat_ns,
                                     .join_timeout_ns = meeting->join_ns,
                                     .rendezvous = where,
                                     .secret = {1, 2, 3}};
    unsigned failed = 0;
    if (zr_tcp_listen(&options.listener, "127.0.0.1:0", where) != ZR_OK)
        return meeting->world;
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    getsockname(options.listener, (struct sockaddr *)&address, &bytes);
    if (meeting->before)
        meeting->before(&address);
    fflush(stdout);
    for (options.rank = 0; options.rank < meeting->world; options.rank++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(be_rank(meeting, &options));
        pids[options.rank] = pid;
    }
    close(options.listener);
    for (unsigned r = 0; r < meeting->world; r++) {
        int status;
        failed += waitpid(pids[r], &status, 0) != pids[r] ||
                  (WIFEXITED(status) && WEXITSTATUS(status) != 0) ||
                  (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL);
        for (unsigned other = r + 1; other < meeting->world && failed > 0; other++)
            kill(pids[other], SIGKILL); /* one that is stopped would stay */
    }
    return failed;
}

static void leave(struct peer *peer)
{
    check(peer, peer->transport.close(&peer->transport) == 0, "close: %s", peer->transport.why);
}

/* ---- Messages ------------------------------------------------------------------------------------------ */

static struct zr_transport_request post(struct peer *peer, bool sends, unsigned with, uint32_t tag,
                                        void *data, size_t bytes)
{
    struct zr_transport_request request = {0};
    struct zr_transport *t = &peer->transport;
    struct zr_transport_message message = {
        .peer = with, .data = data, .bytes = bytes, .tag = tag, .any = with == peer->rank};
    check(peer, (sends ? t->send : t->receive)(t, &message, &request) == 0, "post: %s", t->why);
    return request;
}

/* Leaves the core to the other ranks. */
static void give_way(unsigned *turns)
{
    _Atomic uint32_t unused = 0;
    if (++*turns < 20)
        sched_yield();
    else
        zr_word_wait(&unused, 0, 200000);
}

/* Waits for a message: its bytes, or -1. */
static long end(struct peer *peer, struct zr_transport_request *request)
{
    bool done = false;
    size_t bytes = 0;
    unsigned turns = 0;
    int failed = 0;
    while (!done) {
        failed = peer->transport.test(&peer->transport, request, &done, &bytes);
        if (!done)
            give_way(&turns);
    }
    return failed ? -1 : (long)bytes;
}

static unsigned char byte_of(unsigned from, uint32_t tag, unsigned number, size_t at)
{
    return (unsigned char)(from * 131 + tag * 31 + number * 7 + at * 2654435761u / 65536);
}

static const size_t sizes[] = {0,
                               1,
                               31,
                               ZR_TCP_SMALL_BYTES,
                               ZR_TCP_SMALL_BYTES + 1,
                               ZR_TCP_PIECE_BYTES - 1,
                               ZR_TCP_PIECE_BYTES + 1,
                               0,
                               LARGE + 7,
                               3};
enum { SIZES = sizeof sizes / sizeof *sizes, TAGS = 2 };

/* All sends of a rank are there before its receives, which take the tags the other way round. */
static void body_messages(struct peer *peer)
{
    static struct zr_transport_request sends[8][TAGS][SIZES];
    unsigned char *data = malloc(sizeof(unsigned char) * TAGS * SIZES * (LARGE + 16)),
                  *room = malloc(LARGE + 16);
    for (unsigned tag = 0; tag < TAGS; tag++)
        for (unsigned i = 0; i < SIZES; i++) {
            unsigned char *from = data + (tag * SIZES + i) * (LARGE + 16);
            for (size_t at = 0; at < sizes[i]; at++)
                from[at] = byte_of(peer->rank, tag, i, at);
            for (unsigned p = 0; p < peer->world; p++)
                if (p != peer->rank)
                    sends[p][tag][i] = post(peer, true, p, tag, from, sizes[i]);
        }
    for (unsigned p = 0; p < peer->world; p++)
        for (unsigned tag = TAGS; p != peer->rank && tag-- > 0;)
            for (unsigned i = 0; i < SIZES; i++) {
                size_t wrong = 0;
                struct zr_transport_request request = post(peer, false, p, tag, room, LARGE + 16);
                long bytes = end(peer, &request);
                check(peer, bytes == (long)sizes[i], "%ld bytes of %zu", bytes, sizes[i]);
                for (size_t at = 0; at < sizes[i]; at++)
                    wrong += room[at] != byte_of(p, tag, i, at);
                check(peer, wrong == 0, "%zu bytes of message %u from %u are wrong", wrong, i, p);
            }
    for (unsigned p = 0; p < peer->world; p++)
        for (unsigned i = 0; p != peer->rank && i < TAGS * SIZES; i++)
            check(peer, end(peer, &sends[p][i / SIZES][i % SIZES]) == 0, "send: %s", peer->transport.why);
    leave(peer);
    free(data);
    free(room);
}

/* Rank 0 takes messages of all ranks as they come; each rank's are in order. More are sent than fit the
 * credit. */
static void body_any(struct peer *peer)
{
    unsigned seen[8] = {0};
    uint32_t message[2], texts[MESSAGES][2];
    struct zr_transport_request sends[MESSAGES];
    for (unsigned i = 0; peer->rank > 0 && i < MESSAGES; i++) {
        texts[i][0] = peer->rank;
        texts[i][1] = i;
        sends[i] = post(peer, true, 0, 5, texts[i], sizeof texts[i]);
    }
    for (unsigned i = 0; peer->rank == 0 && i < (peer->world - 1) * MESSAGES; i++) {
        struct zr_transport_request request = post(peer, false, 0, 5, message, sizeof message);
        check(peer, end(peer, &request) == sizeof message, "receive: %s", peer->transport.why);
        check(peer, message[0] < 8 && message[1] == seen[message[0]]++, "%u of rank %u", message[1],
              message[0]);
    }
    for (unsigned i = 0; peer->rank > 0 && i < MESSAGES; i++)
        check(peer, end(peer, &sends[i]) == 0, "send: %s", peer->transport.why);
    leave(peer);
}

/* Rank 0 receives what rank 1 sent last first, and one message of which only the head has room. */
static void body_blocked(struct peer *peer)
{
    static char large[LARGE], room[LARGE];
    struct zr_transport_request requests[MESSAGES + 2];
    unsigned count = 0;
    if (peer->rank == 1) {
        requests[count++] = post(peer, true, 0, 1, large, LARGE);
        for (unsigned i = 0; i < MESSAGES; i++)
            requests[count++] = post(peer, true, 0, 2, large, 100);
        requests[count++] = post(peer, true, 0, 3, large, 100);
        while (count > 0)
            check(peer, end(peer, &requests[--count]) == 0, "send: %s", peer->transport.why);
    } else {
        for (unsigned i = 0; i < MESSAGES + 2; i++) {
            requests[0] = post(peer, false, 1,
                               i == 0          ? 3
                               : i <= MESSAGES ? 2
                                               : 1,
                               room, i <= MESSAGES ? 100 : 50);
            long bytes = end(peer, &requests[0]);
            check(peer, bytes == (i <= MESSAGES ? 100 : -1), "%ld bytes of message %u", bytes, i);
        }
        check(peer, strstr(peer->transport.why, "longer"), "%s", peer->transport.why);
    }
    leave(peer);
}

static void cancel(struct peer *peer, struct zr_transport_request *request)
{
    peer->transport.cancel(&peer->transport, request);
}

/* What was cancelled matches nothing. The message of tag 2 comes after the cancelled one. */
static void body_cancelled(struct peer *peer)
{
    static char first[LARGE], second[LARGE];
    struct zr_transport_request requests[2];
    if (peer->rank == 1) {
        requests[0] = post(peer, true, 0, 1, first, LARGE);
        cancel(peer, &requests[0]);
        memset(second, 2, LARGE);
        requests[0] = post(peer, true, 0, 1, second, LARGE);
        requests[1] = post(peer, true, 0, 2, second, 8);
        for (unsigned i = 0; i < 2; i++)
            check(peer, end(peer, &requests[i]) == 0, "send: %s", peer->transport.why);
    } else {
        requests[1] = post(peer, false, 1, 2, first, 8);
        cancel(peer, &requests[1]);
        requests[1] = post(peer, false, 1, 2, second, 8);
        check(peer, end(peer, &requests[1]) == 8 && second[7] == 2, "a cancelled receive took the message");
        requests[0] = post(peer, false, 1, 1, first, LARGE);
        check(peer, end(peer, &requests[0]) == LARGE && first[LARGE - 1] == 2,
              "a cancelled message has come");
    }
    leave(peer);
}

/* A message is cancelled while its bytes move: its receive fails, and later messages come. The receiver stops
 * itself once it has cleared the message, so the sender finds the connection full. */
static void body_cut(struct peer *peer)
{
    static char first[32 * LARGE], second[32 * LARGE];
    struct zr_transport_request request;
    struct zr_tcp *tcp = peer->transport.state;
    uint64_t ranks[ZR_MAX_WORLD / 64];
    unsigned turns = 0;
    bool done = false;
    size_t bytes, wrong = 0;
    if (peer->rank == 1) {
        request = post(peer, true, 0, 1, first, sizeof first);
        while (zr_process_state(pids[0]) != 'T')
            give_way(&turns);
        while (!done && !(tcp->peers[0].cleared.first && tcp->peers[0].streams[1].blocked)) {
            peer->transport.test(&peer->transport, &request, &done, &bytes);
            give_way(&turns);
        }
        check(peer, !done, "the connection takes %zu bytes", sizeof first);
        cancel(peer, &request);
        memset(first, 7, sizeof first); /* what is freed may change */
        kill(pids[0], SIGCONT);
        request = post(peer, true, 0, 1, second, sizeof second);
        check(peer, end(peer, &request) == 0, "send: %s", peer->transport.why);
    } else {
        while (!tcp->peers[1].unexpected) {
            peer->transport.lost(&peer->transport, ranks);
            give_way(&turns);
        }
        request = post(peer, false, 1, 1, first, sizeof first);
        raise(SIGSTOP);
        check(peer, end(peer, &request) == -1 && strstr(peer->transport.why, "cancelled"), "%s",
              peer->transport.why);
        request = post(peer, false, 1, 1, second, sizeof second);
        check(peer, end(peer, &request) == sizeof second, "receive: %s", peer->transport.why);
        for (size_t i = 0; i < sizeof first; i += 61)
            wrong += first[i] != 0 || second[i] != 0;
        check(peer, wrong == 0, "%zu bytes are wrong", wrong);
    }
    leave(peer);
}

/* ---- Lost ranks ---------------------------------------------------------------------------------------- */

static void wait_lost(struct peer *peer, unsigned rank)
{
    uint64_t ranks[ZR_MAX_WORLD / 64] = {0};
    unsigned turns = 0;
    while (!(ranks[0] >> rank & 1)) {
        peer->transport.lost(&peer->transport, ranks);
        give_way(&turns);
    }
    check(peer, ranks[0] == UINT64_C(1) << rank, "lost: %llx", (unsigned long long)ranks[0]);
}

/* Survivors exchange messages after rank 2 is gone. */
static void exchange(struct peer *peer, unsigned lost)
{
    static char out[100000], in[8][100000];
    struct zr_transport_request requests[16];
    unsigned count = 0;
    memset(out, (int)peer->rank + 1, sizeof out);
    for (unsigned p = 0; p < peer->world; p++) {
        if (p == peer->rank || p == lost)
            continue;
        requests[count++] = post(peer, false, p, 9, in[p], sizeof in[p]);
        requests[count++] = post(peer, true, p, 9, out, sizeof out);
    }
    while (count > 0)
        check(peer, end(peer, &requests[--count]) >= 0, "exchange: %s", peer->transport.why);
    for (unsigned p = 0; p < peer->world; p++)
        check(peer, p == peer->rank || p == lost || in[p][99999] == (char)(p + 1), "bytes of rank %u", p);
}

static void body_killed(struct peer *peer)
{
    static char large[LARGE];
    struct zr_transport *t = &peer->transport;
    struct zr_transport_request requests[3];
    if (peer->rank == 2) {
        for (unsigned i = 0; i < 3; i++) { /* all have begun to wait for this rank */
            requests[0] = post(peer, false, 2, 3, large, 1);
            end(peer, &requests[0]);
        }
        requests[0] = post(peer, true, 0, 4, large, 16);
        end(peer, &requests[0]);
        raise(SIGKILL);
    }
    requests[0] = post(peer, false, 2, 7, large, 16);
    requests[1] = post(peer, true, 2, 8, large, LARGE);
    requests[2] = post(peer, true, 2, 3, large, 1);
    check(peer, end(peer, &requests[2]) == 0, "%s", t->why);
    /* Rank 0 writes to the dead rank before it reads what that rank has sent. */
    for (unsigned turns = 0; peer->rank == 0 && zr_process_state(pids[2]) != 'Z';)
        give_way(&turns);
    for (unsigned i = 0; peer->rank == 0 && i < 3; i++) {
        struct zr_transport_request dropped;
        t->send(t, &(struct zr_transport_message){.peer = 2, .tag = 8, .data = large, .bytes = 16}, &dropped);
    }
    requests[2] = post(peer, false, peer->rank, 6, large, 16); /* from any: continues */
    check(peer, end(peer, &requests[0]) == -1 && strstr(t->why, "rank 2 on host") && strstr(t->why, "closed"),
          "%s", t->why);
    check(peer, end(peer, &requests[1]) == -1 && strstr(t->why, "rank 2"), "%s", t->why);
    check(peer,
          t->send(t, &(struct zr_transport_message){.peer = 2, .data = large, .bytes = 1}, &requests[0]) ==
              -1,
          "a message to a lost rank");
    wait_lost(peer, 2);
    if (peer->rank == 0) { /* its last words are there */
        requests[0] = post(peer, false, 2, 4, large, 16);
        check(peer, end(peer, &requests[0]) == 16, "the last message of a rank: %s", t->why);
    }
    for (unsigned i = 0; i < 20; i++)
        exchange(peer, 2);
    bool done = true;
    size_t bytes;
    check(peer, t->test(t, &requests[2], &done, &bytes) == 0 && !done, "a receive from any rank: %s", t->why);
    cancel(peer, &requests[2]);
    exchange(peer, 2);
    check(peer, t->close(t) == -1 && strstr(t->why, "rank 2"), "close: %s", t->why);
}

/* Rank 1 stops: its connections stay, and its signs of life do not. */
static void body_stopped(struct peer *peer)
{
    char byte = 1;
    exchange(peer, peer->world);
    if (peer->rank == 1)
        raise(SIGSTOP);
    struct zr_transport_request request = post(peer, false, 1, 7, &byte, 1);
    check(peer, end(peer, &request) == -1 && strstr(peer->transport.why, "not answered"), "%s",
          peer->transport.why);
    wait_lost(peer, 1);
    exchange(peer, 1);
    if (peer->rank == 0) {
        exchange(peer, 1);
        kill(pids[1], SIGKILL);
    } else {
        exchange(peer, 1);
    }
    zr_tcp_abort(&peer->transport, false);
}

/* Rank 0 computes: it calls no function of the transport, whose thread finds that rank 1 has stopped. */
static void body_computing(struct peer *peer)
{
    struct zr_tcp *tcp = peer->transport.state;
    unsigned turns = 0;
    bool lost = false;
    if (peer->rank == 1)
        raise(SIGSTOP);
    while (!lost) {
        give_way(&turns);
        pthread_mutex_lock(&tcp->lock);
        lost = tcp->peers[1].lost;
        pthread_mutex_unlock(&tcp->lock);
    }
    kill(pids[1], SIGKILL);
    zr_tcp_abort(&peer->transport, false);
}

/* A rank that fails says so, so that no rank waits for its successor. */
static void body_failed(struct peer *peer)
{
    char words[ZR_TRANSPORT_WHY_BYTES] = "";
    enum zr_tcp_loss loss = ZR_TCP_ALL_THERE;
    unsigned turns = 0;
    while (peer->rank == 0 && (loss = zr_tcp_find_loss(&peer->transport, words)) == ZR_TCP_ALL_THERE)
        give_way(&turns);
    check(peer, peer->rank == 1 || (loss == ZR_TCP_RANK_FAILED && strstr(words, "has failed")), "%s", words);
    zr_tcp_abort(&peer->transport, true);
}

/* A change of size: rank 2 is killed before it leaves, or, of four, has lost rank 3 before the others. */
static void body_parted(struct peer *peer)
{
    char words[ZR_TRANSPORT_WHY_BYTES] = "";
    const bool returns = peer->world == 4;
    exchange(peer, peer->world);
    if (peer->rank == peer->world - 1)
        raise(SIGKILL);
    if (peer->rank == 2) {
        zr_tcp_abort(&peer->transport, false);
        return;
    }
    const enum zr_tcp_loss loss = zr_tcp_part(&peer->transport, words);
    check(peer,
          loss == (returns ? ZR_TCP_RANK_RETURNS : ZR_TCP_RANK_LOST) && strstr(words, "rank 2 on host") &&
              strstr(words, returns ? "it has lost a rank" : "has been killed"),
          "loss %d: %s", (int)loss, words);
}

/* ---- Strangers and hostile ranks ----------------------------------------------------------------------- */

enum { STRANGERS = 70 }; /* more than rank 0 hears at a time */
static int strangers[STRANGERS];

static void come_first(struct sockaddr_in *where)
{
    static const char junk[100] = "GET / HTTP/1.1";
    const struct zr_tcp_answer answer = {.greeting = {ZR_TCP_MAGIC, ZR_TCP_VERSION}}; /* and no proof */
    for (unsigned i = 0; i < STRANGERS; i++) {
        strangers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(strangers[i], (struct sockaddr *)where, sizeof *where) != 0)
            fprintf(stderr, "# a stranger: %s\n", strerror(errno));
        if (i % 3 == 1)
            send(strangers[i], junk, sizeof junk, MSG_NOSIGNAL);
        if (i % 3 == 2)
            send(strangers[i], &answer, sizeof answer, MSG_NOSIGNAL);
    }
}

/* What a stranger has heard. */
static ssize_t heard(int fd)
{
    char room[200];
    ssize_t bytes, sum = 0;
    while ((bytes = recv(fd, room, sizeof room, 0)) > 0)
        sum += bytes;
    close(fd);
    return sum;
}

static void body_nothing(struct peer *peer)
{
    exchange(peer, peer->world);
    leave(peer);
}

static const struct {
    struct zr_tcp_frame frame;
    const char *words;
    unsigned stream;
} hostile[] = {
    {{.kind = 77}, "unknown kind", 0},
    {{.kind = ZR_TCP_DATA, .bytes = 8}, "wrong connection", 0},
    {{.kind = ZR_TCP_BEAT}, "wrong connection", 1},
    {{.kind = ZR_TCP_SMALL, .bytes = ZR_TCP_SMALL_BYTES + 1}, "out of range", 0},
    {{.kind = ZR_TCP_SMALL, .tag = ZR_TCP_TAGS}, "out of range", 0},
    {{.kind = ZR_TCP_ANNOUNCE, .bytes = ZR_TCP_MOST_BYTES + 1}, "out of range", 0},
    {{.kind = ZR_TCP_DATA, .bytes = ZR_TCP_PIECE_BYTES + 1}, "out of range", 1},
    {{.kind = ZR_TCP_CREDIT, .bytes = 1}, "credit", 0},
};
static unsigned hostile_number;

/* Rank 1 has the secret, and says what no rank says. */
static void body_hostile(struct peer *peer)
{
    char byte;
    struct zr_tcp *tcp = peer->transport.state;
    if (peer->rank == 1) {
        send(tcp->peers[0].streams[hostile[hostile_number].stream].fd, &hostile[hostile_number].frame,
             sizeof hostile[0].frame, MSG_NOSIGNAL);
        wait_lost(peer, 0);
    } else {
        struct zr_transport_request request = post(peer, false, 1, 7, &byte, 1);
        check(peer, end(peer, &request) == -1 && strstr(peer->transport.why, hostile[hostile_number].words),
              "%s", peer->transport.why);
    }
    zr_tcp_abort(&peer->transport, false);
}

/* ---- The rendezvous after a loss ----------------------------------------------------------------------- */

static const unsigned char by_hand_secret[ZR_TCP_SECRET_BYTES] = "by hand";

/* A connection to rank 0 with this introduction, and the handshake. */
static int dial(const struct sockaddr_in *where, const struct zr_tcp_introduction *introduction)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct zr_tcp_hand hand = {.secret = by_hand_secret, .connects = true, .introduction = *introduction};
    enum zr_tcp_step step = zr_tcp_hand_begin(&hand);
    if (connect(fd, (const struct sockaddr *)where, sizeof *where) != 0)
        step = ZR_TCP_FAILS;
    while (step == ZR_TCP_GOES_ON &&
           recv(fd, hand.in, hand.want_bytes, MSG_WAITALL) == (ssize_t)hand.want_bytes) {
        step = zr_tcp_hand_next(&hand);
        send(fd, hand.out, hand.out_bytes, MSG_NOSIGNAL);
    }
    return fd;
}

/* Introduces itself at the rendezvous: the reply. */
static int introduce(const struct sockaddr_in *where, const struct zr_tcp_introduction *introduction,
                     struct zr_tcp_reply *reply)
{
    int fd = dial(where, introduction);
    memset(reply, 0, sizeof *reply);
    recv(fd, reply, sizeof *reply, MSG_WAITALL);
    return fd;
}

/* What ranks 1 and 2 say to rank 0, by hand. */
static int be_others(const struct sockaddr_in *where)
{
    struct peer self = {.rank = 1, .world = 3};
    struct zr_tcp_reply reply;
    struct zr_tcp_introduction own = {.rank = 1,
                                      .world = 3,
                                      .streams = 1,
                                      .run = 9,
                                      .generation = 6,
                                      .restarts = 2,
                                      .point = 30,
                                      .family = 4,
                                      .port = 1,
                                      .host = "hand"};
    int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connect(stranger, (const struct sockaddr *)where, sizeof *where);
    send(stranger, &(struct zr_tcp_answer){.greeting = {ZR_TCP_MAGIC, ZR_TCP_VERSION}},
         sizeof(struct zr_tcp_answer), MSG_NOSIGNAL);
    check(&self, heard(stranger) == sizeof(struct zr_tcp_challenge), "a stranger at a rejoin");
    introduce(where, &own, &reply);
    check(&self, reply.refused && strstr(reply.text, "another run"), "another run: '%s'", reply.text);
    own.run = 7;
    int earlier = dial(where, &own), first = dial(where, &own);
    check(&self, heard(earlier) == 0, "the earlier of two connections");
    own.rank = 2;
    own.generation = 5;
    int second = introduce(where, &own, &reply);
    check(&self,
          !reply.refused && reply.run == 7 && reply.generation == 7 && reply.restarts == 2 &&
              reply.point == 30,
          "the reply: '%s', generation %u", reply.text, reply.generation);
    own.stream = 1;
    for (; own.generation < 7; own.generation++)
        check(&self, heard(dial(where, &own)) == 0, "generation %u was accepted", own.generation);
    own.run = 8;
    check(&self, heard(dial(where, &own)) == 0, "a connection of another run was accepted");
    own.run = 7;
    for (; own.rank > 0; own.rank--)
        dial(where, &own);
    heard(first); /* until rank 0 has ended */
    heard(second);
    return self.failures > 0;
}

/* Rank 1 has all its connections to rank 0, and rank 2 is lost after the table was sent. */
static int be_lost(const struct sockaddr_in *where)
{
    struct zr_tcp_reply reply;
    struct zr_tcp_introduction own = {
        .rank = 1, .world = 3, .streams = 1, .run = 7, .family = 4, .port = 1, .host = "hand"};
    int first = dial(where, &own);
    own.rank = 2;
    int second = introduce(where, &own, &reply);
    own.generation = reply.generation;
    own.rank = own.stream = 1;
    dial(where, &own);
    close(second);
    heard(first); /* until rank 0 has ended */
    return 0;
}

/* Rank 0 meets the others again, which a child is. Returns its result, and the child's exit status. */
static zr_result meet_by_hand(struct zr_local_world *local, bool *missing,
                              int (*others)(const struct sockaddr_in *where), int *status)
{
    struct zr_transport transport;
    struct sockaddr_in address;
    char where[ZR_TCP_ADDRESS_BYTES];
    struct zr_tcp_options options = {.world = 3,
                                     .streams = 1,
                                     .join_timeout_ns = 20 * SECOND,
                                     .rendezvous = where,
                                     .local = local,
                                     .missing = missing};
    memcpy(options.secret, by_hand_secret, sizeof options.secret);
    zr_result result = zr_tcp_listen(&options.listener, "127.0.0.1:0", where);
    if (result != ZR_OK)
        return result;
    getsockname(options.listener, (struct sockaddr *)&address, &(socklen_t){sizeof address});
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(others(&address));
    result = zr_tcp_open(&transport, &options);
    if (result == ZR_OK)
        zr_tcp_abort(&transport, false);
    waitpid(pid, status, 0);
    return result;
}

/* Rank 0 has a successor, which knows the run's number and an older generation than rank 1; later it loses a
 * rank. */
static void test_generations(void)
{
    struct zr_local_control control;
    bool missing[3] = {false};
    int status = -1;
    if (zr_local_control_make(&control, 3) != ZR_OK) {
        tap_ok(false, "no control block");
        return;
    }
    atomic_store(&control.local->run, 7);
    atomic_store(&control.local->generation, 4);
    zr_result result = meet_by_hand(control.local, NULL, be_others, &status);
    tap_is(result, ZR_OK, "a new process of rank 0 meets the others again");
    tap_is(status, 0, "connections of another run or generation are refused");
    tap_ok(atomic_load(&control.local->generation) == 7 && zr_local_restarts(control.local) == 2 &&
               zr_local_restart_point(control.local) == 30,
           "the ranks agree on the newest generation, restart and save");
    result = meet_by_hand(control.local, missing, be_lost, &status);
    tap_ok(result == ZR_ERR_PEER && strstr(zr_last_error(), "rank 2 on host hand was lost while"),
           "a rank that is lost while the others connect: %s", zr_last_error());
    tap_ok(missing[2], "is missing");
    zr_local_control_end(&control);
}

/* ---- Communicators ------------------------------------------------------------------------------------- */

static int run_operations(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct test_case *test = argument;
    zr_backend *backend;
    zr_arena *arena;
    zr_comm *comm;
    size_t leaked_bytes = 0;
    if (zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 4;
    struct zr_comm_options options = {.arena = arena,
                                      .host_arena = arena,
                                      .kernels = zr_kernels_cpu(zr_isa_best()),
                                      .bucket_bytes = test->bucket_bytes,
                                      .algorithm = test->algorithm};
    if (zr_comm_create(&comm, &options, local, rank) != ZR_OK) {
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
        return 1;
    }
    unsigned failures = strcmp(zr_comm_name(comm), "tcp") != 0;
    failures += trial_operations(comm, &(struct trial_options){.seed = test->seed});
    zr_comm_destroy(comm);
    zr_arena_destroy(arena, &leaked_bytes);
    zr_backend_destroy(backend);
    return failures > 0 || leaked_bytes > 0 ? CHECKS_FAILED : 0;
}

enum { RESTARTS = 2 };

/* Ranks that lose rank 0 in their first life and rank 2 in the next: all have the same sum afterwards, and
 * the survivors their processes. */
static int run_restarts(struct zr_local_world *local, unsigned rank, void *argument)
{
    struct environment env = {.local = local, .rank = rank, .world = 3};
    unsigned life = zr_local_restarts(local), lives = 0;
    int32_t pid = getpid(), before[3] = {0};
    (void)argument;
    check_ok(&env, zr_backend_host_create(&env.backend, NULL));
    check_ok(&env, zr_arena_create(&env.arena, &(struct zr_arena_options){.backend = env.backend}));
    for (; life <= RESTARTS; life++, lives++) {
        zr_comm *comm = NULL;
        int32_t all[3] = {0};
        check(&env, zr_local_restarts(local) == life, "restart %u", zr_local_restarts(local));
        check_ok(&env, zr_comm_create(&comm,
                                      &(struct zr_comm_options){.arena = env.arena,
                                                                .host_arena = env.arena,
                                                                .kernels = zr_kernels_cpu(zr_isa_best()),
                                                                .bucket_bytes = 4096},
                                      local, rank));
        if (!comm)
            return CHECKS_FAILED;
        check_ok(&env, zr_comm_host_all_gather(comm, &pid, sizeof pid, all));
        for (unsigned p = 0; p < 3 && lives > 0; p++)
            check(&env, (all[p] == before[p]) == (p != (life == 1 ? 0 : 2)), "pid of rank %u", p);
        memcpy(before, all, sizeof all);
        if (life < RESTARTS && rank == (life == 0 ? 0 : 2))
            raise(SIGKILL);
        zr_result result = ZR_OK;
        while (life < RESTARTS && result == ZR_OK)
            result = zr_comm_barrier(comm);
        check(&env, life == RESTARTS || (result == ZR_ERR_PEER && zr_local_is_restarting(local)), "%s",
              zr_last_error());
        zr_comm_destroy(comm);
        if (life < RESTARTS)
            check_ok(&env, zr_local_rejoin(local, rank));
    }
    return env.failures > 0 ? CHECKS_FAILED : 0;
}

static void test_restarts(void)
{
    char name[] = "tcp_test", *argv[] = {name, NULL};
    fflush(stdout);
    tap_is(zr_launch(&(struct zr_launch_options){.struct_bytes = sizeof(struct zr_launch_options),
                                                 .world = 3,
                                                 .rank_main = run_restarts,
                                                 .max_restarts = RESTARTS},
                     ZR_CARRIER_TCP, argv),
           0, "killed ranks are replaced, also the one that accepts the others");
}

static void test_operations(unsigned world, size_t bucket_bytes, enum zr_comm_algorithm algorithm)
{
    char name[] = "tcp_test", *argv[] = {name, NULL};
    struct test_case test = {
        .world = world, .bucket_bytes = bucket_bytes, .algorithm = algorithm, .seed = run_seed()};
    fflush(stdout);
    tap_is(
        zr_launch(&(struct zr_launch_options){.world = world, .rank_main = run_operations, .argument = &test},
                  ZR_CARRIER_TCP, argv),
        0, "%u ranks: every operation over TCP, buckets of %zu", world, bucket_bytes);
}

int main(void)
{
    pids = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tap_is(meet_ranks(&(struct meeting){.body = body_messages, .world = 3}), 0, "order, tags and sizes");
    tap_is(meet_ranks(&(struct meeting){.body = body_messages, .world = 2, .streams = 5}), 0,
           "over five streams");
    tap_is(meet_ranks(&(struct meeting){.body = body_any, .world = 4}), 0, "messages from any rank");
    tap_is(meet_ranks(&(struct meeting){.body = body_blocked, .world = 2}), 0, "no tag blocks another one");
    tap_is(meet_ranks(&(struct meeting){.body = body_cancelled, .world = 2}), 0, "cancelled messages");
    tap_is(meet_ranks(&(struct meeting){.body = body_cut, .world = 2, .streams = 1}), 0,
           "a message that is cancelled while it moves");
    tap_is(meet_ranks(&(struct meeting){.body = body_killed, .world = 4}), 0,
           "a killed rank: the others continue");
    tap_is(meet_ranks(&(struct meeting){.body = body_stopped, .world = 3, .heartbeat_ns = SECOND * 3 / 10}),
           0, "a stopped rank is lost after five heartbeats of 300 ms");
    tap_is(meet_ranks(&(struct meeting){.body = body_computing, .world = 2, .heartbeat_ns = SECOND / 10}), 0,
           "a stopped rank is lost while the other one computes");
    tap_is(meet_ranks(&(struct meeting){.body = body_failed, .world = 2}), 0,
           "a rank that fails ends the run");
    tap_is(meet_ranks(&(struct meeting){.body = body_parted, .world = 3}), 0,
           "a rank that is killed while all leave is lost");
    tap_is(meet_ranks(&(struct meeting){.body = body_parted, .world = 4}), 0,
           "a rank that had lost another one says so");
    tap_is(meet_ranks(&(struct meeting){.body = body_nothing, .world = 3, .before = come_first}), 0,
           "ranks meet among strangers");
    ssize_t most = 0;
    for (unsigned i = 0; i < STRANGERS; i++) {
        ssize_t bytes = heard(strangers[i]);
        most = bytes > most ? bytes : most;
    }
    tap_is(most, (ssize_t)sizeof(struct zr_tcp_challenge), "a stranger hears no more than the challenge");
    tap_is(meet_ranks(&(struct meeting){.world = 2, .forger = 1, .join_ns = SECOND / 2}), 0,
           "another secret: both sides refuse, and say so");
    unsigned failed = 0;
    for (hostile_number = 0; hostile_number < sizeof hostile / sizeof *hostile; hostile_number++)
        failed += meet_ranks(&(struct meeting){.body = body_hostile, .world = 2});
    tap_is(failed, 0, "frames that break the protocol end their sender");
    test_generations();
    test_restarts();
    test_operations(2, 65536, ZR_COMM_AUTO);
    test_operations(3, 4096, ZR_COMM_RING);
    return tap_done();
}
