/* handshake.c: the proof that both sides of a new connection have the run's secret. wire.h has the order of
 * its messages; join.c carries them. */
#include <string.h>
#include <sys/random.h>

#include "zero/comm/message/tcp/inside.h"

enum { BEGUN, CHALLENGED, ANSWERED, ACCEPTED };

static const struct zr_tcp_greeting greeting = {ZR_TCP_MAGIC, ZR_TCP_VERSION};

static enum zr_tcp_step fail(struct zr_tcp_hand *hand, const char *why)
{
    hand->why = why;
    return ZR_TCP_FAILS;
}

static enum zr_tcp_step go_on(struct zr_tcp_hand *hand, unsigned state, size_t want_bytes)
{
    hand->state = state;
    hand->want_bytes = want_bytes;
    return ZR_TCP_GOES_ON;
}

static void say(struct zr_tcp_hand *hand, const void *message, size_t bytes)
{
    memcpy(hand->out, message, bytes);
    hand->out_bytes = bytes;
}

static bool draw(unsigned char *nonce)
{
    return getrandom(nonce, ZR_TCP_NONCE_BYTES, 0) == ZR_TCP_NONCE_BYTES;
}

static void prove(const struct zr_tcp_hand *hand, const char *label, bool introduces, unsigned char *out)
{
    zr_tcp_mac(out, &(struct zr_tcp_proof){.secret = hand->secret,
                                           .label = label,
                                           .a = hand->a,
                                           .c = hand->c,
                                           .introduction = introduces ? &hand->introduction : NULL});
}

static bool proves(const struct zr_tcp_hand *hand, const char *label, bool introduces,
                   const unsigned char *mac)
{
    unsigned char own[ZR_TCP_MAC_BYTES];
    prove(hand, label, introduces, own);
    return zr_tcp_mac_equal(own, mac);
}

enum zr_tcp_step zr_tcp_hand_begin(struct zr_tcp_hand *hand)
{
    struct zr_tcp_challenge challenge = {.greeting = greeting};
    hand->out_bytes = 0;
    if (hand->connects)
        return go_on(hand, BEGUN, sizeof challenge);
    if (!draw(hand->a))
        return fail(hand, "the system provides no random numbers");
    memcpy(challenge.nonce, hand->a, sizeof hand->a);
    say(hand, &challenge, sizeof challenge);
    return go_on(hand, CHALLENGED, sizeof(struct zr_tcp_answer));
}

static const char *greeting_problem(const struct zr_tcp_greeting *other)
{
    return other->magic != greeting.magic       ? "it is not a rank of zr"
           : other->version != greeting.version ? "it has another version of zr"
                                                : NULL;
}

/* The side that connects: proves the secret first. */
static enum zr_tcp_step take_challenge(struct zr_tcp_hand *hand)
{
    struct zr_tcp_challenge challenge;
    struct zr_tcp_answer answer = {.greeting = greeting};
    memcpy(&challenge, hand->in, sizeof challenge);
    const char *problem = greeting_problem(&challenge.greeting);
    if (problem || !draw(hand->c))
        return fail(hand, problem ? problem : "the system provides no random numbers");
    memcpy(hand->a, challenge.nonce, sizeof hand->a);
    memcpy(answer.nonce, hand->c, sizeof hand->c);
    prove(hand, "zr-c", false, answer.mac);
    say(hand, &answer, sizeof answer);
    return go_on(hand, ANSWERED, sizeof(struct zr_tcp_acceptance));
}

static enum zr_tcp_step take_answer(struct zr_tcp_hand *hand)
{
    struct zr_tcp_answer answer;
    struct zr_tcp_acceptance acceptance = {{0}};
    memcpy(&answer, hand->in, sizeof answer);
    memcpy(hand->c, answer.nonce, sizeof hand->c);
    const char *problem = greeting_problem(&answer.greeting);
    if (problem || !proves(hand, "zr-c", false, answer.mac))
        return fail(hand, problem ? problem : "it has another secret");
    prove(hand, "zr-a", false, acceptance.mac);
    say(hand, &acceptance, sizeof acceptance);
    return go_on(hand, ACCEPTED, sizeof(struct zr_tcp_intro_message));
}

static enum zr_tcp_step take_acceptance(struct zr_tcp_hand *hand)
{
    struct zr_tcp_acceptance acceptance;
    struct zr_tcp_intro_message message = {.introduction = hand->introduction};
    memcpy(&acceptance, hand->in, sizeof acceptance);
    if (!proves(hand, "zr-a", false, acceptance.mac))
        return fail(hand, "it has another secret");
    prove(hand, "zr-i", true, message.mac);
    say(hand, &message, sizeof message);
    return ZR_TCP_SUCCEEDS;
}

static enum zr_tcp_step take_introduction(struct zr_tcp_hand *hand)
{
    struct zr_tcp_intro_message message;
    memcpy(&message, hand->in, sizeof message);
    hand->introduction = message.introduction;
    return proves(hand, "zr-i", true, message.mac) ? ZR_TCP_SUCCEEDS : fail(hand, "it has another secret");
}

enum zr_tcp_step zr_tcp_hand_next(struct zr_tcp_hand *hand)
{
    hand->out_bytes = 0;
    switch (hand->state) {
    case BEGUN:
        return take_challenge(hand);
    case CHALLENGED:
        return take_answer(hand);
    case ANSWERED:
        return take_acceptance(hand);
    default:
        return take_introduction(hand);
    }
}

bool zr_tcp_introduction_valid(const struct zr_tcp_introduction *introduction, unsigned world)
{
    return introduction->world == world && introduction->rank < world && introduction->streams >= 1 &&
           introduction->streams <= ZR_TCP_STREAMS_MAX && introduction->stream <= introduction->streams &&
           (introduction->family == 4 || introduction->family == 6) && introduction->port > 0 &&
           introduction->port <= UINT16_MAX && memchr(introduction->host, 0, sizeof introduction->host);
}
