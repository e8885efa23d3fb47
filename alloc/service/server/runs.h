/* runs.h: admission and time slices of runs with a byte plan. Private to alloc/service/.
 *
 * A run is one client, or several that compute together and pause together. Its plan has the bytes kept
 * between steps (base) and the peak of a step. The step part is peak less base. A run is admitted if the
 * bases of all runs, the largest step part and the memory held without a plan fit the capacity, so that each
 * run can have a time slice. In its time slice a run may hold its peak, otherwise its base; zrd reserves
 * these bytes for it.
 *
 * Time slices begin in the order of requests. A run keeps its time slice while no run waits; otherwise zrd
 * sends YIELD after turn_ns. zrd then reclaims idle memory of the other runs, so no run waits within a step
 * for memory that another run needs to end its own step.
 *
 * A run that sends RESERVE and its number of threads can compute beside others: if the processors suffice,
 * the next run's time slice begins at once, and that run follows. The bytes that a run reserves are kept from
 * all runs that follow it, so the run whose time slice began first always finishes its step; a following run
 * waits within its step for other memory. Finishing a step moves the run to the end of the queue.
 *
 * A part of some bases can be swapped out to a disk while the run is paused (spill). Admission counts only
 * the remainder of such a base. If the next time slice does not fit beside paused runs, zrd asks paused runs
 * to swap out the remainder. While the run is paused, only its held bytes are reserved for it; its time slice
 * restores its peak. */
#ifndef ZR_SERVICE_RUNS_H
#define ZR_SERVICE_RUNS_H

#include "alloc/service/server/ledger.h"

struct zr_run {
    struct zr_run *next; /* in order of arrival */
    uint32_t key;        /* the members' run number; 0: one member */
    unsigned expected_count, members_count, paused_count;
    uint64_t base_bytes, peak_bytes, held_bytes, spill_bytes; /* sums over its members */
    bool admitted, in_slice, yields;                          /* yields: YIELD was sent */
    bool waits;    /* for admission: it fits the capacity, but not now */
    bool reported; /* LATER was sent */
    bool begun;    /* it had a time slice, so its base is allocated */
    uint64_t slice_since_ns;
    uint64_t slice;             /* its time slice's number; lower numbers have precedence */
    uint64_t reservation_bytes; /* the max bytes it will hold until the time slice ends */
    unsigned threads;           /* computing threads of a run with one member that sends RESERVE; else 0 */
    uint64_t queued;            /* its position in the queue for a time slice; 0: not queued */
};

struct zr_run_plan {
    uint64_t base_bytes, peak_bytes;   /* of the client */
    uint64_t spill_bytes;              /* part of the base that can be swapped out */
    uint32_t key, count;               /* of the run */
    unsigned threads;                  /* see struct zr_run */
    bool waits;                        /* wait for admission without a deadline */
    bool admitted, in_slice;           /* by an earlier zrd: counted without a new admission */
    uint64_t slice, reservation_bytes; /* of a time slice that the earlier zrd granted */
};

/* Registers the plan of a client in the ledger, or repeats the request. The answer comes after all members of
 * the run have called this. ZR_ERR_INVALID: an invalid plan. ZR_ERR_HOST_MEMORY. */
zr_result zr_run_join(struct zr_ledger *ledger, struct zr_client *client, const struct zr_run_plan *plan,
                      uint64_t now_ns);
/* Pauses the client and requests its run's next time slice. ZR_ERR_INVALID: the run is not admitted. */
zr_result zr_run_slice(struct zr_ledger *ledger, struct zr_client *client, uint64_t now_ns);
/* Reserves at most `bytes` for the rest of the client's step. ZR_ERR_INVALID: no time slice, or a plan
 * without threads. */
zr_result zr_run_reserve(struct zr_client *client, uint64_t bytes);
/* Removes the client from its run; its bytes count as held without a plan. */
void zr_run_leave(struct zr_ledger *ledger, struct zr_client *client);

/* Admits or refuses runs, begins time slices and sends YIELD. */
void zr_runs_serve(struct zr_ledger *ledger, uint64_t now_ns);
/* Answers LATER to clients whose wait exceeded its time. */
void zr_runs_tick(struct zr_ledger *ledger, uint64_t now_ns);

/* The bytes that the client's plan allows now; 0: no admitted plan. */
uint64_t zr_run_allows(const struct zr_client *client);
/* Whether the client's run computes beside a run whose time slice began earlier. */
bool zr_run_follows(const struct zr_ledger *ledger, const struct zr_client *client);
/* The part of `free_bytes` outside the reservations of runs that the client's run follows. */
uint64_t zr_run_free(const struct zr_ledger *ledger, const struct zr_client *client, uint64_t free_bytes);
/* Sends YIELD to the client's run and to runs that it follows, because the client lacks memory that they have
 * reserved. True: YIELD was sent to at least one run. */
bool zr_run_ask_before(struct zr_ledger *ledger, const struct zr_client *client);
/* The bytes that admitted runs need so that the largest step fits. */
uint64_t zr_runs_need(const struct zr_ledger *ledger);
/* Whether runs compute beside one another; then their time slices end with their steps. */
bool zr_runs_beside(const struct zr_ledger *ledger);
/* The bytes that may be lent beyond all plans. */
uint64_t zr_runs_spare(const struct zr_ledger *ledger);
/* The part of `free_bytes` that may be lent to the client beyond its plan. */
uint64_t zr_runs_unreserved(const struct zr_ledger *ledger, uint64_t free_bytes);

#endif
