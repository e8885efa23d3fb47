/* fuzz_tcp.h: hostile ranks of a run over TCP, and strangers that connect to one.
 *
 * Frames: rank 0 of three sends, receives and cancels, and the other two send it frames, all as the file
 * says. Eight bytes make a step: what, which connection, and six numbers. Handshake: the first byte says
 * which messages are repaired so that the proof in them is right. */
#ifndef ZR_FUZZ_TCP_H
#define ZR_FUZZ_TCP_H

#include <sys/socket.h>

#include "alloc/base/error.h"
#include "tests/support/fuzz/fuzz_ground.h"
#include "zero/comm/message/tcp/inside.h"

enum { FUZZ_RANKS = 3, FUZZ_OPERATIONS = 64, FUZZ_ROOM = 1 << 20, FUZZ_TCP_STEPS = 256, FUZZ_GUARD = 64 };

struct fuzz_run {
    struct zr_tcp *tcp;
    int others[FUZZ_RANKS][3];           /* the other end of each connection, or -1 */
    uint64_t numbers[FUZZ_OPERATIONS];   /* of operations of rank 0 */
    size_t rooms_bytes[FUZZ_OPERATIONS]; /* of receives */
    unsigned count;
};

static char fuzz_rooms[FUZZ_OPERATIONS][FUZZ_ROOM + FUZZ_GUARD];

/* Rank 0 reads what has come, and the others read what rank 0 has said. */
static inline void fuzz_turn(struct fuzz_run *run)
{
    static char heard[1 << 16];
    for (unsigned i = 0; i < 2; i++) {
        zr_tcp_progress(run->tcp, 0);
        for (unsigned p = 1; p < FUZZ_RANKS; p++)
            for (unsigned s = 0; s < 3; s++)
                while (run->others[p][s] >= 0 &&
                       recv(run->others[p][s], heard, sizeof heard, MSG_DONTWAIT) > 0)
                    ;
    }
}

static inline void fuzz_say(struct fuzz_run *run, const int *fd, const void *data, size_t bytes)
{
    for (unsigned tries = 0; bytes > 0 && *fd >= 0 && tries < 64; tries++) {
        ssize_t some = send(*fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (some > 0) {
            bytes -= (size_t)some;
            data = (const char *)data + some;
        }
        fuzz_turn(run);
    }
}

static inline void fuzz_frame(struct fuzz_run *run, const unsigned char *step, const int *fd)
{
    static const char payload[ZR_TCP_PIECE_BYTES];
    uint64_t bytes = (uint64_t)step[4] << step[5] % 56, own = run->numbers[step[6] % FUZZ_OPERATIONS];
    struct zr_tcp_frame frame = {.kind = step[2] % 16,
                                 .tag = step[2] == ZR_TCP_BYE ? step[3] % 4
                                        : step[3] == 255      ? ZR_TCP_TAGS
                                                              : step[3],
                                 .bytes = step[2] == ZR_TCP_BEAT ? 0 : bytes,
                                 .message = step[6] & 128 ? step[6] : own,
                                 .offset =
                                     step[2] % 16 == ZR_TCP_DATA ? (uint64_t)(step[7] % 32) << 10 : step[7]};
    bool pays = frame.kind == ZR_TCP_SMALL || frame.kind == ZR_TCP_DATA;
    if (frame.kind == ZR_TCP_ANNOUNCE)
        frame.message = step[6];
    fuzz_say(run, fd, &frame, sizeof frame);
    if (pays)
        fuzz_say(run, fd, payload, bytes < sizeof payload ? bytes : sizeof payload);
}

/* Forgets the operation in a place, as a caller does that has given it up. */
static inline void fuzz_forget(struct fuzz_run *run, unsigned at)
{
    struct zr_tcp_operation *operation = zr_tcp_find(run->tcp, run->numbers[at]);
    if (operation && !operation->released)
        zr_tcp_withdraw(run->tcp, operation);
    run->numbers[at] = 0;
}

static inline void fuzz_post(struct fuzz_run *run, const unsigned char *step, unsigned peer)
{
    unsigned at = run->count++ % FUZZ_OPERATIONS;
    size_t bytes = (size_t)step[4] << step[5] % 20;
    struct zr_transport_message message = {.peer = peer,
                                           .data = fuzz_rooms[at],
                                           .bytes = bytes < FUZZ_ROOM ? bytes : FUZZ_ROOM,
                                           .tag = step[3],
                                           .any = step[0] == 'R' && step[6] & 1};
    fuzz_forget(run, at);
    run->rooms_bytes[at] = message.bytes;
    memset(fuzz_rooms[at] + message.bytes, 0x55, FUZZ_GUARD);
    if ((step[0] == 'R' ? zr_tcp_start_receive : zr_tcp_start_send)(run->tcp, &message, &run->numbers[at]) !=
        0)
        run->numbers[at] = 0;
}

/* Learns which operations have ended; none has written beyond its room. */
static inline bool fuzz_test_all(struct fuzz_run *run)
{
    static const char guard[FUZZ_GUARD] = {[0 ... FUZZ_GUARD - 1] = 0x55};
    bool good = true;
    for (unsigned i = 0; i < FUZZ_OPERATIONS; i++) {
        struct zr_tcp_operation *operation = zr_tcp_find(run->tcp, run->numbers[i]);
        good &= i >= run->count || memcmp(fuzz_rooms[i] + run->rooms_bytes[i], guard, sizeof guard) == 0;
        if (!operation || operation->released || operation->state < ZR_TCP_DONE)
            continue;
        good &=
            operation->state == ZR_TCP_FAILED || operation->sends || operation->bytes <= run->rooms_bytes[i];
        zr_tcp_release(run->tcp, operation);
        run->numbers[i] = 0;
    }
    return good;
}

/* What a peer can make this rank keep is bounded. */
static inline bool fuzz_bounded(const struct zr_tcp *tcp)
{
    bool good = true;
    for (unsigned p = 0; p < FUZZ_RANKS; p++) {
        const struct zr_tcp_peer *peer = &tcp->peers[p];
        unsigned small = 0, announced = 0;
        for (const struct zr_tcp_envelope *one = peer->unexpected; one; one = one->next) {
            small += one->small;
            announced += !one->small;
        }
        good &= small <= ZR_TCP_SMALL_WINDOW && announced == peer->envelopes &&
                announced <= ZR_TCP_ENVELOPE_WINDOW && peer->small_left <= ZR_TCP_SMALL_WINDOW &&
                peer->small_open <= ZR_TCP_SMALL_WINDOW && peer->small_received <= peer->small_open;
    }
    return good;
}

static inline bool fuzz_connect_all(struct fuzz_run *run)
{
    bool good = true;
    for (unsigned p = 1; p < FUZZ_RANKS; p++)
        for (unsigned s = 0; s < 3; s++) {
            int pair[2] = {-1, -1};
            good &= socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0;
            run->tcp->peers[p].streams[s].fd = pair[0];
            run->others[p][s] = pair[1];
        }
    return good && zr_tcp_watch_all(run->tcp) == ZR_OK;
}

/* All operations leave the table once the others are gone and the caller has given them up. */
static inline bool fuzz_all_settled(struct fuzz_run *run)
{
    unsigned left = 0;
    for (unsigned p = 1; p < FUZZ_RANKS; p++)
        zr_tcp_lose(run->tcp, p, "ends with the run");
    for (unsigned i = 0; i < FUZZ_OPERATIONS; i++)
        fuzz_forget(run, i);
    for (unsigned i = 0; i < run->tcp->chunks_count * ZR_TCP_CHUNK; i++)
        left += run->tcp->chunks[i / ZR_TCP_CHUNK][i % ZR_TCP_CHUNK].state != ZR_TCP_FREE;
    return left == 0;
}

static inline bool fuzz_tcp(const unsigned char *data, size_t bytes, zr_result *result)
{
    static struct fuzz_run run;
    const struct zr_tcp_options options = {.world = FUZZ_RANKS, .streams = 2, .rendezvous = ""};
    fuzz_set_pace(data, bytes);
    memset(&run, 0, sizeof run);
    bool good = zr_tcp_make(&run.tcp, &options) == ZR_OK && fuzz_connect_all(&run);
    *result = ZR_OK;
    for (size_t i = 0; good && i + 8 <= bytes && i < 8 * FUZZ_TCP_STEPS; i += 8) {
        const unsigned char *step = data + i;
        unsigned peer = 1 + step[1] % 2, stream = step[1] / 2 % 3;
        int *fd = &run.others[peer][stream];
        if (step[0] == 'F')
            fuzz_frame(&run, step, fd);
        else if (step[0] == 'J')
            fuzz_say(&run, fd, step, 8);
        else if (step[0] == 'R' || step[0] == 'S')
            fuzz_post(&run, step, peer);
        else if (step[0] == 'C')
            fuzz_forget(&run, step[6] % FUZZ_OPERATIONS);
        else if (step[0] == 'E' && *fd >= 0)
            *fd = close(*fd) - 1;
        fuzz_turn(&run);
        good = fuzz_test_all(&run) && fuzz_bounded(run.tcp);
    }
    for (unsigned p = 1; p < FUZZ_RANKS && good; p++)
        if (run.tcp->peers[p].lost)
            *result = zr_fail(ZR_ERR_FORMAT, "%s", run.tcp->peers[p].why);
    good = good && fuzz_all_settled(&run);
    for (unsigned p = 1; p < FUZZ_RANKS; p++)
        for (unsigned s = 0; s < 3; s++)
            if (run.others[p][s] >= 0)
                close(run.others[p][s]);
    zr_tcp_destroy(run.tcp);
    return good && fuzz_answer(*result);
}

/* ---- Handshakes ---------------------------------------------------------------------------------------- */

/* Makes the message in hand->in what a rank with the secret would send. */
static inline void fuzz_repair(struct zr_tcp_hand *hand)
{
    const struct zr_tcp_greeting greeting = {ZR_TCP_MAGIC, ZR_TCP_VERSION};
    struct zr_tcp_answer answer;
    struct zr_tcp_intro_message intro;
    struct zr_tcp_proof proof = {.secret = hand->secret, .a = hand->a, .c = hand->c};
    if (hand->want_bytes == sizeof answer) {
        memcpy(&answer, hand->in, sizeof answer);
        answer.greeting = greeting;
        proof.label = "zr-c";
        proof.c = answer.nonce;
        zr_tcp_mac(answer.mac, &proof);
        memcpy(hand->in, &answer, sizeof answer);
    } else if (hand->want_bytes == sizeof(struct zr_tcp_challenge)) {
        memcpy(hand->in, &greeting, sizeof greeting);
    } else if (hand->want_bytes == sizeof(struct zr_tcp_acceptance)) {
        proof.label = "zr-a";
        zr_tcp_mac(hand->in, &proof);
    } else {
        memcpy(&intro, hand->in, sizeof intro);
        proof.label = "zr-i";
        proof.introduction = &intro.introduction;
        zr_tcp_mac(intro.mac, &proof);
        memcpy(hand->in, &intro, sizeof intro);
    }
}

/* No connection is accepted without the proofs. */
static inline bool fuzz_handshake(const unsigned char *data, size_t bytes, zr_result *result)
{
    static const unsigned char secret[ZR_TCP_SECRET_BYTES] = "fuzz";
    struct zr_tcp_hand hand = {.secret = secret, .connects = bytes > 0 && data[0] & 1};
    enum zr_tcp_step step = zr_tcp_hand_begin(&hand);
    unsigned repaired = 0, count = 0;
    size_t at = 1;
    for (; step == ZR_TCP_GOES_ON && count < 4; count++) {
        memset(hand.in, 0, sizeof hand.in);
        if (at < bytes)
            memcpy(hand.in, data + at, bytes - at < hand.want_bytes ? bytes - at : hand.want_bytes);
        at += hand.want_bytes;
        if (bytes > 0 && data[0] >> (1 + count) & 1) {
            fuzz_repair(&hand);
            repaired++;
        }
        step = zr_tcp_hand_next(&hand);
    }
    bool passes = step == ZR_TCP_SUCCEEDS;
    if (passes && !hand.connects)
        zr_tcp_introduction_valid(&hand.introduction, 4);
    *result = passes ? ZR_OK : zr_fail(ZR_ERR_FORMAT, "%s", hand.why ? hand.why : "too many messages");
    return (!passes || hand.connects || repaired == count) && count <= 2 && fuzz_answer(*result);
}

#endif
