/* wire.h: what two ranks exchange over TCP, byte for byte. Private to zero/comm/message/tcp/.
 *
 * All numbers are little-endian. Two ranks share 1 + N connections: the first carries envelopes, small
 * messages and control frames in order, the other N carry pieces of large messages. The higher rank connects.
 *
 *   Handshake of a connection, before anything else is read. C connects, A accepts.
 *     A -> C  challenge   greeting, 32 random bytes a
 *     C -> A  answer      greeting, 32 random bytes c, HMAC(secret, "zr-c", a, c)
 *     A -> C  acceptance  HMAC(secret, "zr-a", a, c)
 *     C -> A  introduction, HMAC(secret, "zr-i", a, c, introduction)
 *   HMAC is HMAC-SHA256. C says nothing about itself before A has proved that it has the secret.
 *
 *   Rendezvous. The ranks above 0 introduce themselves to rank 0, each with the address at which it accepts.
 *   Rank 0 answers with a reply; its text is the reason of a refusal, or the run's number, the generation and
 *   one introduction per rank follow. This connection becomes the first between the two. Each rendezvous of a
 *   run makes a new generation; a rank refuses connections of another run or generation.
 *
 *   Frames. struct zr_tcp_frame, then `bytes` bytes if the kind has a payload. */
#ifndef ZR_TCP_WIRE_H
#define ZR_TCP_WIRE_H

#include <stdint.h>

enum {
    ZR_TCP_VERSION = 3,
    ZR_TCP_NONCE_BYTES = 32,
    ZR_TCP_MAC_BYTES = 32,
    ZR_TCP_HOST_BYTES = 64,
    ZR_TCP_TEXT_BYTES = 160,
    ZR_TCP_SMALL_BYTES = 8 << 10,  /* maximum of a message whose bytes follow its envelope */
    ZR_TCP_SMALL_WINDOW = 16,      /* small messages to a peer that it has not credited */
    ZR_TCP_ENVELOPE_WINDOW = 1024, /* announced messages to a peer that it has not cleared */
    ZR_TCP_PIECE_BYTES = 256 << 10,
    ZR_TCP_STREAMS_MAX = 16,
    ZR_TCP_TAGS = 1 << 20,
};
#define ZR_TCP_MAGIC      UINT32_C(0x7a727463)
#define ZR_TCP_MOST_BYTES (UINT64_C(1) << 40) /* of a message */

struct zr_tcp_greeting {
    uint32_t magic, version;
};

struct zr_tcp_challenge {
    struct zr_tcp_greeting greeting;
    unsigned char nonce[ZR_TCP_NONCE_BYTES];
};

struct zr_tcp_answer {
    struct zr_tcp_greeting greeting;
    unsigned char nonce[ZR_TCP_NONCE_BYTES], mac[ZR_TCP_MAC_BYTES];
};

struct zr_tcp_acceptance {
    unsigned char mac[ZR_TCP_MAC_BYTES];
};

/* A rank, the connection that it makes, and where it accepts connections of higher ranks. */
struct zr_tcp_introduction {
    uint32_t rank, world;
    uint32_t stream, streams; /* number of this connection, 0: the first; N */
    uint64_t run;             /* number of the run; 0: not known yet, at the rendezvous */
    uint32_t generation;      /* of this connection / at the rendezvous: the last one that the rank knows */
    uint32_t restarts;        /* of the run, as far as the rank knows */
    uint64_t point;           /* see zr_local_set_restart_point() */
    uint64_t machine;         /* equal for ranks of one host */
    uint32_t family, port;    /* 4 or 6 */
    unsigned char address[16];
    char host[ZR_TCP_HOST_BYTES]; /* name, ends with a 0 */
};

struct zr_tcp_intro_message {
    struct zr_tcp_introduction introduction;
    unsigned char mac[ZR_TCP_MAC_BYTES];
};

struct zr_tcp_reply {
    uint32_t refused;    /* 1: `text` is the reason */
    uint32_t world;      /* introductions that follow */
    uint64_t run, point; /* the largest of all ranks, as restarts */
    uint32_t generation, restarts;
    char text[ZR_TCP_TEXT_BYTES]; /* ends with a 0 */
};

enum zr_tcp_kind {
    ZR_TCP_SMALL = 1, /* a message with its bytes: tag, bytes */
    ZR_TCP_ANNOUNCE,  /* a message whose bytes wait to be cleared: tag, bytes, message */
    ZR_TCP_CLEAR,     /* answers an announcement, once its receive is there: message, receive */
    ZR_TCP_DATA,      /* a piece of a cleared message: receive, offset, bytes. Not on the first connection */
    ZR_TCP_CREDIT,    /* so many small messages have been received: bytes */
    ZR_TCP_WITHDRAW,  /* the sender has cancelled an announced message: message */
    ZR_TCP_BEAT,      /* the sender lives */
    ZR_TCP_BYE,       /* the sender leaves: its last frame. Tag: enum zr_tcp_bye */
    ZR_TCP_KINDS
};

/* Why a rank leaves: it has all it needs from the others / it has failed, and ends the run / it has lost a
 * rank, and meets the others again. */
enum zr_tcp_bye { ZR_TCP_BYE_LEAVES = 0, ZR_TCP_BYE_FAILS, ZR_TCP_BYE_RETURNS };

struct zr_tcp_frame {
    uint32_t kind, tag;
    uint64_t bytes;
    uint64_t message; /* number of an operation of the sending rank (CLEAR: of the receiving one) / of DATA:
                       * of the receive */
    uint64_t offset;  /* of DATA: of the piece in the message. Of CLEAR: number of the receive */
};

_Static_assert(sizeof(struct zr_tcp_frame) == 32, "a frame has no padding");
_Static_assert(sizeof(struct zr_tcp_introduction) == 136, "an introduction has no padding");
_Static_assert(sizeof(struct zr_tcp_answer) == 72, "an answer has no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structures are sent as they are");

#endif
