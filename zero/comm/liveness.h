/* liveness.h: who answers, and who does not, when a wait over a transport has lasted too long. Private to
 * message.c.
 *
 * A rank that waits for one that waits for a third must not blame the second. So a rank whose timeout is
 * nearly over asks all the others; those that wait themselves answer, and say for whom. Whoever finds out who
 * is lost tells the others before it ends, so that its own end is not taken for the cause. */
#ifndef ZR_ROLL_CALL_H
#define ZR_ROLL_CALL_H

#include "zero/comm/transport.h"
#include "zero/comm/zr_comm.h"

enum { ZR_ROLL_WORDS = ZR_MAX_WORLD / 64, ZR_ROLL_TEXT_BYTES = 160 };

/* Ranks, a bit each. */
struct zr_rank_set {
    uint64_t words[ZR_ROLL_WORDS];
};

static inline void zr_rank_set_add(struct zr_rank_set *set, unsigned rank)
{
    set->words[rank / 64] |= UINT64_C(1) << rank % 64;
}

static inline bool zr_rank_set_has(const struct zr_rank_set *set, unsigned rank)
{
    return set->words[rank / 64] >> rank % 64 & 1;
}

/* What goes over the wire. */
struct zr_roll_note {
    uint32_t kind, from;
    uint64_t number;            /* ASK: of this call; HERE: of the call that it answers */
    struct zr_rank_set awaited; /* HERE */
    uint32_t result;            /* LOST: a zr_result, and its words */
    char text[ZR_ROLL_TEXT_BYTES];
};

struct zr_roll_letter {
    struct zr_transport_request request;
    struct zr_roll_note note;
    bool under_way;
};

/* Used by the thread that runs operations alone. */
struct zr_roll {
    struct zr_transport *transport;
    struct zr_roll_letter inbox;   /* from anyone; under way as long as this rank listens */
    struct zr_roll_letter *outbox; /* [world], borrowed; to each peer one at a time */
    struct zr_rank_set *awaited;   /* [world], borrowed: of those that have answered */
    struct zr_rank_set answered;   /* this call */
    uint64_t number;               /* of the last call */
    bool asked;                    /* a call is open */
    zr_result lost;                /* not ZR_OK: another rank has told who is lost */
    char text[ZR_ROLL_TEXT_BYTES];
};

/* Starts to listen, and stops; what is under way is given up. */
void zr_roll_open(struct zr_roll *roll, struct zr_transport *transport);
void zr_roll_close(struct zr_roll *roll);
/* Takes in what has come, and answers; `waits_for` is whom this rank waits for. */
void zr_roll_listen(struct zr_roll *roll, const struct zr_rank_set *waits_for);
/* Opens a call, or asks once more; ends it, since what was waited for has come. */
void zr_roll_ask(struct zr_roll *roll);
void zr_roll_forget(struct zr_roll *roll);
/* The rank that the wait for `waits_for`, which is not empty, hangs on: true if it has not answered. False:
 * all have, and *out is one of those that are waited for. */
bool zr_roll_find(const struct zr_roll *roll, const struct zr_rank_set *waits_for, unsigned *out);
/* Tells all the others of a failure, as well as can be done in a moment. */
void zr_roll_tell(struct zr_roll *roll, zr_result result, const char *text);

#endif
