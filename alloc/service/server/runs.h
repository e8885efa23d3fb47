/* runs.h: runs with a plan: who is let in, and whose turn it is. Private to alloc/service/.
 *
 * A run is one holder or several that compute together, and so rest together. Its plan says what stays
 * between steps (base) and the most of a step (peak). It is let in if what stays of all runs, the largest
 * step part among them and what is held without a plan fit the capacity: then each can have its turn, though
 * not all at once. In its turn a run may take its peak, else its base: nobody else is lent what that
 * reserves.
 *
 * Turns are given in the order in which they were asked for. A run keeps its turn while nobody waits; else it
 * is asked to yield once it has had turn_ns. What others hold idle is reclaimed then, and so no run waits for
 * memory in the middle of a step that another needs to end its own.
 *
 * A run that says in its step what it takes at most from there on (its claim), and how many threads compute,
 * need not have the memory alone: where there are processors for both, the next one's turn begins at once,
 * and follows. What a run claims is kept from all that follow it, so the one whose turn began first always
 * ends its step; one that follows gets what is beyond that, and waits for it in its step. Whose step ends
 * follows the others in its next one.
 *
 * Of some bases a part can go to a disk while the run rests (spill). Such a run is let in by what it cannot
 * give, and where the next turn does not fit beside what rests, those that rest are asked for that part.
 * While it rests, what such a run holds is kept for it and no more; its turn comes with its peak. */
#ifndef ZR_SERVICE_RUNS_H
#define ZR_SERVICE_RUNS_H

#include "alloc/service/server/ledger.h"

struct zr_run {
    struct zr_run *next; /* as they came */
    uint32_t key;        /* of its members; 0: it has one */
    unsigned expected_count, members_count, resting_count;
    uint64_t base_bytes, peak_bytes, held_bytes, spill_bytes; /* sums over its members */
    bool admitted, in_turn, yields;                           /* yields: it was asked to */
    bool waits; /* to be let in, where it does not fit now: it would alone */
    bool told;  /* that it waits */
    bool begun; /* it has had a turn: what stays between steps is there */
    uint64_t turn_since_ns;
    uint64_t turn;        /* its turn's number: lower ones come first */
    uint64_t claim_bytes; /* what it takes at most until that ends */
    unsigned threads;     /* that compute, of a run of one member that says its claims; 0: it does not */
    uint64_t queued;      /* its number in the order of waiting for a turn; 0: it does not wait */
};

struct zr_run_plan {
    uint64_t base_bytes, peak_bytes; /* of the holder */
    uint64_t spill_bytes;            /* of its base, that it can give while it rests */
    uint32_t key, count;             /* of its run */
    unsigned threads;                /* as of struct zr_run */
    bool waits;                      /* to be let in, for as long as it takes */
    bool admitted, in_turn;          /* by another zrd: counted, and asked nothing */
    uint64_t turn, claim_bytes;      /* where it is in its turn by that */
};

/* The holder, which is in the ledger, declares its plan, or asks for the answer again. The answer comes once
 * all of its run have. ZR_ERR_INVALID: no plan that makes sense. ZR_ERR_HOST_MEMORY. */
zr_result zr_run_join(struct zr_ledger *ledger, struct zr_holder *holder, const struct zr_run_plan *plan,
                      uint64_t now_ns);
/* The holder rests, and wants its run's next turn. ZR_ERR_INVALID: it was not let in. */
zr_result zr_run_turn(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t now_ns);
/* In its turn the holder takes `bytes` at most from here on. ZR_ERR_INVALID: it has no turn, or has not said
 * that it does this. */
zr_result zr_run_claim(struct zr_holder *holder, uint64_t bytes);
/* The holder's part of its run is over; what it holds is held without a plan. */
void zr_run_leave(struct zr_ledger *ledger, struct zr_holder *holder);

/* Lets in who fits, refuses who cannot, gives turns, asks for them. */
void zr_runs_serve(struct zr_ledger *ledger, uint64_t now_ns);
/* Tells those that have waited for a while to ask again. */
void zr_runs_tick(struct zr_ledger *ledger, uint64_t now_ns);

/* What the holder may hold by its plan now; 0: it has none that holds. */
uint64_t zr_run_allows(const struct zr_holder *holder);
/* Whether the holder's run computes beside one whose turn began before. */
bool zr_run_follows(const struct zr_ledger *ledger, const struct zr_holder *holder);
/* Of what is free, what the holder may have by its plan: beside what runs claim that it follows. */
uint64_t zr_run_free(const struct zr_ledger *ledger, const struct zr_holder *holder, uint64_t free_bytes);
/* Asks for the turns of those whose turn began before, and for its own: it lacks what they could claim no
 * more, and nobody may have waited for a turn. Whether one was asked. */
bool zr_run_ask_before(struct zr_ledger *ledger, const struct zr_holder *holder);
/* What the runs that were let in need so that the largest step can still be had. */
uint64_t zr_runs_need(const struct zr_ledger *ledger);
/* Whether runs compute beside one another, whose turns end with their steps. */
bool zr_runs_beside(const struct zr_ledger *ledger);
/* What may be lent beyond plans once they have. */
uint64_t zr_runs_spare(const struct zr_ledger *ledger);
/* Of what is free, what may be lent to the holder beyond its plan. */
uint64_t zr_runs_unreserved(const struct zr_ledger *ledger, uint64_t free_bytes);

#endif
