/* ledger.h: the leases of zrd's clients, their quotas, pending requests and reclaim. Private to
 * alloc/service/.
 *
 * The ledger uses no sockets and no clock: the caller passes the time, and the ledger sends through struct
 * zr_ledger_calls, whose functions add and remove no client. Only one thread uses the ledger.
 *
 * Hard quotas are never exceeded. Memory beyond a soft quota is lent, but pending requests within soft quotas
 * are granted first. A group's soft quota is its share of the capacity, unless one was set. If memory is
 * short, zrd asks clients for idle memory one after another: first those beyond their soft quota, then those
 * with the max bytes per share. A client that does not answer within `within_ns` is disconnected. A request
 * is granted or refused within `within_ns`, except for a run that computes beside another: such a run repeats
 * its request until the other run's step has ended. */
#ifndef ZR_SERVICE_LEDGER_H
#define ZR_SERVICE_LEDGER_H

#include "alloc/service/client/protocol.h"
#include "alloc/base/slab.h"
#include "alloc/zr.h"

struct zr_group {
    struct zr_group *next;
    char name[ZR_SERVICE_GROUP_BYTES];
    uint64_t held_bytes, hard_bytes, soft_bytes; /* 0: no such quota */
    uint32_t shares;
    unsigned clients_count;
    bool kept; /* its quotas were set: the group stays when it has no client */
};

/* A client's pending request besides a lease; see runs.h. */
enum zr_awaited { ZR_AWAITS_NOTHING = 0, ZR_AWAITS_ADMISSION, ZR_AWAITS_SLICE };

struct zr_client {
    struct zr_client *next; /* by number */
    struct zr_group *group;
    struct zr_run *run; /* NULL: no plan */
    uint64_t plan_base_bytes, plan_peak_bytes;
    uint64_t plan_spill_bytes; /* part of the base that can be swapped out while paused */
    bool spill_exhausted;      /* the last swap-out of this pause returned nothing */
    enum zr_awaited awaits;
    uint64_t awaits_until_ns; /* when to answer LATER */
    bool paused;              /* paused: between two steps, without the time slice */
    bool slice_unreported;    /* its run's time slice has begun; the answer is pending */
    uint64_t number;
    uint64_t owner; /* kept memory: the number of the client whose process writes it; 0: no such client */
    int32_t pid;
    bool is_segment; /* no process: a segment of kept memory */
    bool listens;    /* reads notifications, so it can be sent RECLAIM */
    bool left;       /* its process has exited, and another process still maps its memory */
    char program[ZR_SERVICE_PROGRAM_BYTES];
    uint64_t held_bytes, peak_bytes, hard_bytes, soft_bytes;
    /* The pending lease; 0 bytes: none. */
    struct zr_client *next_waiting;
    uint64_t wanted_bytes, wanted_serial, wanted_until_ns;
    bool unmet;    /* the lease fits, but allocating the memory failed */
    bool deferred; /* deferred: another run's step has precedence; answer LATER at the deadline */
    /* Lower ranks are granted first: 0: within its plan; 1: within its soft quota; 2: beyond. */
    unsigned wanted_priority;
    /* The pending RECLAIM; 0 bytes: none. */
    uint64_t reclaim_bytes, reclaim_serial, reclaim_until_ns;
    uint64_t reclaim_round;
    bool reclaim_spills; /* includes memory in use, to be swapped out */
    /* Bytes returned for RECLAIMs and the time they took, to estimate the client's speed. */
    uint64_t reclaim_sent_ns, given_bytes, given_ns, returned_bytes;
    uint64_t idle_bytes; /* last reported */
    bool idle_known;
};

/* Exceeds the memory of any machine; sums of a few such numbers do not overflow. */
#define ZR_LEDGER_BYTES_MAX (UINT64_C(1) << 54)

struct zr_ledger;
struct zr_ledger_calls {
    /* Answers a lease: granted, or refused with the last error's message. False: allocating the granted
     * memory failed with the last error's message; nothing was sent, and the ledger tries again. */
    bool (*answer)(struct zr_ledger *ledger, struct zr_client *client, zr_result result);
    /* Sends RECLAIM with reclaim_bytes and reclaim_serial. */
    void (*ask)(struct zr_ledger *ledger, struct zr_client *client);
    /* The client missed its deadline. The callee removes it, now or soon, which frees its memory. */
    void (*end)(struct zr_ledger *ledger, struct zr_client *client, const char *words);
    /* Answers `awaits`: ZR_SERVICE_GRANTED, _LATER with a reason, or _REFUSED with the last error's message.
     */
    void (*reply)(struct zr_ledger *ledger, struct zr_client *client, enum zr_service_kind kind,
                  const char *words);
    /* Sends YIELD: another run waits for the time slice and lacks `bytes`. */
    void (*yield)(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes);
};

struct zr_ledger {
    const struct zr_ledger_calls *calls;
    uint64_t capacity_bytes, held_bytes, within_ns;
    uint64_t process_hard_bytes;      /* default hard quota of a process; 0: none */
    uint64_t least_bytes, most_bytes; /* bounds of the capacity: a granule, all memory; 0: unknown */
    char device_option[56];           /* " --device UUID", for the commands in messages; "": the host's zrd */
    bool draining;
    struct zr_client *clients;
    struct zr_group *groups;
    struct zr_client *first_waiting;
    unsigned clients_count, groups_count;
    uint64_t number, serial, round;
    uint64_t due_ns; /* the earliest deadline; UINT64_MAX: none */
    struct zr_slab group_records, run_records;
    /* See runs.h. */
    struct zr_run *runs;
    uint64_t slice_ns;   /* length of a time slice while others wait */
    uint64_t settled_ns; /* no time slice begins before: clients of an earlier zrd reconnect one by one */
    bool settling;       /* settled_ns is in the future */
    uint64_t queue_number, slice_number;
    unsigned processors;   /* available to runs that compute at once */
    uint64_t again_ns;     /* when all clients may be asked again; 0: not needed */
    char unmet_words[160]; /* the error of the last `unmet` lease */
};

void zr_ledger_start(struct zr_ledger *ledger);
void zr_ledger_end(struct zr_ledger *ledger);

/* Adds a client, which the caller owns, with pid, program and held_bytes set. Its bytes count even beyond
 * quotas. ZR_ERR_HOST_MEMORY. ZR_ERR_UNAVAILABLE: zrd is draining, and the client has no bytes. */
zr_result zr_ledger_add(struct zr_ledger *ledger, struct zr_client *client, const char *group);
/* Grants pending leases that fit now; called after the functions of runs.h. */
void zr_ledger_serve(struct zr_ledger *ledger, uint64_t now_ns);
/* Removes a client and frees its bytes. May grant pending requests. */
void zr_ledger_remove(struct zr_ledger *ledger, struct zr_client *client, uint64_t now_ns);
/* The client's process has exited; its bytes stay counted. */
void zr_ledger_leave(struct zr_ledger *ledger, struct zr_client *client, uint64_t now_ns);

/* Requests a lease; the answer comes now or later. ZR_ERR_INVALID: bad bytes, or a lease is pending. */
zr_result zr_ledger_lease(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes, uint64_t serial,
                          uint64_t now_ns);
/* Returns leased bytes. ZR_ERR_INVALID: more than the client has. */
zr_result zr_ledger_return(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes,
                           uint64_t now_ns);
/* Ends the pending RECLAIM `serial`. ZR_ERR_INVALID: no such RECLAIM is pending. */
zr_result zr_ledger_given(struct zr_ledger *ledger, struct zr_client *client, uint64_t serial,
                          uint64_t now_ns);
/* Handles expired deadlines: disconnects clients and refuses requests. Returns the next deadline; UINT64_MAX:
 * none.
 */
uint64_t zr_ledger_tick(struct zr_ledger *ledger, uint64_t now_ns);

/* Sets the quotas that message->flags names, of a process (pid) or else a group, or the capacity.
 * ZR_ERR_INVALID: no such process, or a soft quota above the hard one. After success `words` tells which
 * bytes are held beyond the limit, or is "". */
zr_result zr_ledger_limit(struct zr_ledger *ledger, const struct zr_service_message *message, char *words,
                          size_t room_bytes, uint64_t now_ns);
/* ZR_ERR_INVALID: below a granule, or more than the memory of the machine or device. */
zr_result zr_ledger_check_capacity(const struct zr_ledger *ledger, uint64_t bytes);
/* Removes all quotas of groups, before the first client. */
void zr_ledger_unlimit(struct zr_ledger *ledger);
/* Stops lending and asks all clients for idle memory; or lends again. */
void zr_ledger_drain(struct zr_ledger *ledger, bool draining, uint64_t now_ns);

/* The bytes of all pending RECLAIMs. */
uint64_t zr_ledger_reclaim_bytes(const struct zr_ledger *ledger);
/* Asks clients other than `wanting` for `missing` bytes beyond pending RECLAIMs, each once per round; with
 * `unplanned` only clients without a plan. True: a RECLAIM is pending. */
bool zr_ledger_reclaim(struct zr_ledger *ledger, const struct zr_client *wanting, uint64_t missing_bytes,
                       bool unplanned, uint64_t now_ns);
/* Asks a paused client to swap out `bytes`. */
void zr_ledger_ask_spill(struct zr_ledger *ledger, struct zr_client *client, uint64_t bytes, uint64_t now_ns);
/* Schedules zr_ledger_tick() for `at_ns`, or earlier. */
static inline void zr_ledger_due(struct zr_ledger *ledger, uint64_t at_ns)
{
    if (at_ns < ledger->due_ns)
        ledger->due_ns = at_ns;
}
/* Estimated time to return the client's idle bytes, from its own measured speed or all clients'; 0: unknown.
 */
uint64_t zr_ledger_reclaim_ns(const struct zr_ledger *ledger, const struct zr_client *client);
/* The group's soft quota: the value set, else its share of the capacity. */
uint64_t zr_ledger_soft_bytes(const struct zr_ledger *ledger, const struct zr_group *group);
/* Writes the largest clients, as "pid 71 (python3) 4.1 GiB, ..", truncated to room_bytes. */
void zr_ledger_describe(const struct zr_ledger *ledger, char *out, size_t room_bytes);
enum { ZR_LEDGER_NUMBER_ROOM = 32 };
/* zr_size_print() of alloc/base/sizes.h. */
const char *zr_ledger_bytes(char out[ZR_LEDGER_NUMBER_ROOM], uint64_t bytes);

#endif
