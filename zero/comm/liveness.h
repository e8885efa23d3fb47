/* liveness.h: finds out which ranks still answer when a wait over a message transport has lasted too long.
 * One per process, for all its communicators. Private to message.c and mpi_start.c.
 *
 * A rank that waits for a second rank, which waits for a third, must not blame the second. Shortly before
 * its timeout a rank therefore asks all others; ranks that wait themselves answer with the ranks they wait
 * for. A rank that finds the lost rank reports it to the others before it exits, so that its own exit is
 * not taken for the cause. */
#ifndef ZR_LIVENESS_H
#define ZR_LIVENESS_H

#include "zero/comm/message/transport.h"
#include "zero/comm/zr_comm.h"
#include "zero/launch/control.h"

enum { ZR_LIVENESS_WORDS = ZR_MAX_WORLD / 64, ZR_LIVENESS_TEXT_BYTES = 256 };

/* A set of ranks, one bit each. */
struct zr_rank_set {
    uint64_t words[ZR_LIVENESS_WORDS];
};

static inline void zr_rank_set_add(struct zr_rank_set *set, unsigned rank)
{
    set->words[rank / 64] |= UINT64_C(1) << rank % 64;
}

static inline bool zr_rank_set_has(const struct zr_rank_set *set, unsigned rank)
{
    return set->words[rank / 64] >> rank % 64 & 1;
}

/* A message on the wire. */
struct zr_liveness_message {
    uint32_t kind, from;
    uint32_t result;            /* LOST: a zr_result; text has its message */
    struct zr_rank_set awaited; /* HERE: the ranks that the sender waits for */
    char text[ZR_LIVENESS_TEXT_BYTES];
    uint32_t round;                /* ASK_CALLS, CALLS: number of the check */
    struct zr_local_record record; /* CALLS only; other kinds are sent without it */
};

struct zr_liveness_operation {
    struct zr_transport_request request;
    struct zr_liveness_message message;
    bool under_way;
};

/* Guarded by the transport's lock. */
struct zr_liveness {
    struct zr_transport *transport;
    uint32_t tag;
    struct zr_rank_set awaited[ZR_MAX_WORLD]; /* by each rank that has answered */
    uint64_t answered_ns[ZR_MAX_WORLD];       /* time of the answer; 0: never */
    zr_result lost;                           /* not ZR_OK: another rank has reported a lost rank */
    char text[ZR_LIVENESS_TEXT_BYTES];
    struct zr_local_world *local;       /* has this rank's record and the answers; NULL: none */
    uint32_t round;                     /* this rank's last check; 0: none */
    uint32_t answered[ZR_MAX_WORLD][2]; /* the check that answers[round % 2] of a rank belongs to */
    uint64_t asked_ns;                  /* time of the last check */
    struct zr_liveness_operation inbox; /* receives from any rank while this rank listens */
    struct zr_liveness_operation outbox[ZR_MAX_WORLD]; /* one message per peer at a time; must be last: as
                                                        * many as there are ranks */
};

/* Starts and stops listening; stopping cancels pending messages. */
void zr_liveness_open(struct zr_liveness *liveness, struct zr_transport *transport, uint32_t tag);
void zr_liveness_close(struct zr_liveness *liveness);
/* Receives pending messages and answers them; `waits_for`: the ranks this process waits for. */
void zr_liveness_listen(struct zr_liveness *liveness, const struct zr_rank_set *waits_for);
/* Sends all other ranks a request for an answer. */
void zr_liveness_ask(struct zr_liveness *liveness);
/* Finds the rank that blocks a wait for `waits_for`, which is not empty. True: *out has not answered since
 * `asked_ns`. False: all have answered, and *out is one of `waits_for`. */
bool zr_liveness_find(const struct zr_liveness *liveness, const struct zr_rank_set *waits_for,
                      uint64_t asked_ns, unsigned *out);
/* Checks whether ranks are out of step (calls.h), at most once a second: compares their answers to the
 * last two requests and sends the next request. ZR_ERR_PEER names ranks and operations. */
zr_result zr_liveness_look(struct zr_liveness *liveness);
/* Reports a failure to all other ranks, waiting for a limited time. */
void zr_liveness_report(struct zr_liveness *liveness, zr_result result, const char *text);

#endif
