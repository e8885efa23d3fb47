/* liveness.h: who answers, and who does not, when a wait over a message transport has lasted too long.
 * Private to message.c and mpi_start.c; one of a process, whatever communicators it has.
 *
 * A rank that waits for one that waits for a third must not name the second. So a rank whose time is nearly
 * over asks all the others; those that wait themselves answer, and say for whom. Whoever finds out who is
 * lost reports it to the others before it ends, so that its own end is not taken for the cause. */
#ifndef ZR_LIVENESS_H
#define ZR_LIVENESS_H

#include "zero/comm/message/transport.h"
#include "zero/comm/zr_comm.h"
#include "zero/launch/control.h"

enum { ZR_LIVENESS_WORDS = ZR_MAX_WORLD / 64, ZR_LIVENESS_TEXT_BYTES = 256 };

/* Ranks, a bit each. */
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

/* What goes over the wire. */
struct zr_liveness_message {
    uint32_t kind, from;
    uint32_t result;            /* LOST: a zr_result, and its words */
    uint64_t hash;              /* FIRST, LOGGED: of what is to be logged */
    struct zr_rank_set awaited; /* HERE */
    char text[ZR_LIVENESS_TEXT_BYTES];
    uint32_t round;                /* ASK_CALLS, CALLS: which look this is for */
    struct zr_local_record record; /* CALLS, and sent with no other */
};

struct zr_liveness_operation {
    struct zr_transport_request request;
    struct zr_liveness_message message;
    bool under_way;
};

/* One call at a time: the lock of the transport. */
struct zr_liveness {
    struct zr_transport *transport;
    uint32_t tag;
    struct zr_rank_set awaited[ZR_MAX_WORLD]; /* by those that have answered */
    uint64_t answered_ns[ZR_MAX_WORLD];       /* when; 0: never */
    uint64_t first[ZR_MAX_WORLD];             /* hash of what a rank would log; 0: nothing */
    uint64_t logged;                          /* hash of what one has logged; 0: nothing */
    zr_result lost;                           /* not ZR_OK: another rank has reported who is lost */
    char text[ZR_LIVENESS_TEXT_BYTES];
    struct zr_local_world *local;       /* this rank's own record, and its answers; NULL: none */
    uint32_t round;                     /* the last look of this rank that others were asked for; 0: none */
    uint32_t answered[ZR_MAX_WORLD][2]; /* the round that answers[round % 2] of a rank is of */
    uint64_t asked_ns;                  /* when that was */
    struct zr_liveness_operation inbox; /* from anyone; under way as long as this rank listens */
    struct zr_liveness_operation outbox[ZR_MAX_WORLD]; /* to each peer one at a time; last, and as many as
                                                           there are */
};

/* Starts to listen, and stops; what is under way is given up. */
void zr_liveness_open(struct zr_liveness *liveness, struct zr_transport *transport, uint32_t tag);
void zr_liveness_close(struct zr_liveness *liveness);
/* Takes in what has come, and answers; `waits_for` is whom this process waits for. */
void zr_liveness_listen(struct zr_liveness *liveness, const struct zr_rank_set *waits_for);
/* Asks all the others to answer. */
void zr_liveness_ask(struct zr_liveness *liveness);
/* The rank that the wait for `waits_for`, which is not empty, hangs on: true if it has not answered since
 * `asked_ns`. False: all have, and *out is one of those that are waited for. */
bool zr_liveness_find(const struct zr_liveness *liveness, const struct zr_rank_set *waits_for,
                      uint64_t asked_ns, unsigned *out);
/* Whether the ranks are out of step (zero/comm/calls.h), at most once a second: looks at what they have
 * answered to the last two questions, and asks the next. ZR_ERR_PEER, with the ranks and what they are in. */
zr_result zr_liveness_look(struct zr_liveness *liveness);
/* Reports a failure to all the others, as well as can be done in a moment; that this rank is about to log
 * something, or has done so. */
void zr_liveness_report(struct zr_liveness *liveness, zr_result result, const char *text);
void zr_liveness_report_log(struct zr_liveness *liveness, uint64_t hash, bool logged);

#endif
