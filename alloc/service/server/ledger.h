/* ledger.h: who holds how much of zrd's memory, who may have more, who waits, and who is asked to yield.
 * Private to alloc/service/.
 *
 * It knows no sockets and no clock: times come in, and what is to be said goes out through three functions.
 * Only one thread uses it. The three functions add and remove no holder.
 *
 * Hard quotas are never passed. Memory beyond a soft one is lent, but those that stay within theirs come
 * first where several wait. A group's soft quota is its share of the capacity unless one was set. Where
 * memory is short, holders are asked one after another, those beyond their soft quota first, then those that
 * hold most for their shares. Each has `within_ns` from when it is asked; whoever has not answered by then is
 * ended. Nobody waits longer for memory than that either: a request is granted or refused `within_ns` after
 * it came; but for a run that computes beside another, which is told to ask again until that one's step has
 * ended. */
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
    unsigned holders_count;
    bool kept; /* somebody has set its quotas: stays when nobody is in it */
};

/* What a holder has asked for besides memory; see runs.h. */
enum zr_awaited { ZR_AWAITS_NOTHING = 0, ZR_AWAITS_ADMISSION, ZR_AWAITS_TURN };

struct zr_holder {
    struct zr_holder *next; /* by number */
    struct zr_group *group;
    struct zr_run *run; /* NULL: it has no plan */
    uint64_t plan_base_bytes, plan_peak_bytes;
    uint64_t plan_spill_bytes; /* of its base: what it can give while it rests */
    bool spills_no_more;       /* it has given nothing for being asked to, in this rest */
    enum zr_awaited awaits;
    uint64_t awaits_until_ns; /* then it is told to ask again */
    bool rests;               /* between two steps, for its turn */
    bool turn_untold;         /* its run has its turn, and it has not heard so */
    uint64_t number;
    int32_t pid;
    bool listens; /* can be asked */
    bool left; /* its process is gone, and another one maps its memory still: it can be asked for nothing */
    char program[ZR_SERVICE_PROGRAM_BYTES];
    uint64_t held_bytes, peak_bytes, hard_bytes, soft_bytes;
    /* Its request under way; 0 bytes: none. */
    struct zr_holder *next_waiting;
    uint64_t wanted_bytes, wanted_serial, wanted_until_ns;
    bool unmet;   /* there was room for it, and the memory could not be had */
    bool put_off; /* another run's step comes first: when its time is over it is to ask again */
    /* Those of a lower rank come first: 0: its plan has it; 1: within its soft quota; 2: beyond. */
    unsigned wants_rank;
    /* What it was asked for and has not answered; 0 bytes: nothing. */
    uint64_t asked_bytes, asked_serial, asked_until_ns;
    uint64_t asked_round;
    bool asked_spill; /* for what is in use, too */
    /* What it has given for being asked, in which time: how fast it is. */
    uint64_t asked_ns, given_bytes, given_ns, returned_bytes;
    uint64_t idle_bytes; /* that it has told */
    bool idle_known;
};

/* No machine has more; sums of a few such numbers have room. */
#define ZR_LEDGER_BYTES_MOST (UINT64_C(1) << 54)

struct zr_ledger;
struct zr_ledger_calls {
    /* The answer to a request: granted, or refused with the last error's words. False: what was to be
     * granted cannot be had now, for the last error's words, and nothing was said: it is tried again. */
    bool (*answer)(struct zr_ledger *ledger, struct zr_holder *holder, zr_result result);
    /* asked_bytes, asked_serial: false: it cannot be told, and is being ended. */
    void (*ask)(struct zr_ledger *ledger, struct zr_holder *holder);
    /* It has not answered. The receiver removes it, now or soon, and counts its memory as free from then on.
     */
    void (*end)(struct zr_ledger *ledger, struct zr_holder *holder, const char *words);
    /* The answer to what it awaits: ZR_SERVICE_GRANTED, _LATER with words, _REFUSED with the last error's. */
    void (*reply)(struct zr_ledger *ledger, struct zr_holder *holder, enum zr_service_kind kind,
                  const char *words);
    /* Its run's turn is wanted by another that lacks so many bytes. */
    void (*yield)(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes);
};

struct zr_ledger {
    const struct zr_ledger_calls *calls;
    uint64_t capacity_bytes, held_bytes, within_ns;
    uint64_t process_hard_bytes;      /* of each process without one of its own; 0: none */
    uint64_t least_bytes, most_bytes; /* of a capacity: a granule, what there is; 0: not known */
    char device_option[56]; /* " --device UUID", which each zr service needs to reach this zrd; "": the host's
                             */
    bool draining;
    struct zr_holder *holders;
    struct zr_group *groups;
    struct zr_holder *first_waiting;
    unsigned holders_count, groups_count;
    uint64_t number, serial, round;
    uint64_t due_ns; /* nothing is late before; UINT64_MAX: nothing will be */
    struct zr_slab group_records, run_records;
    /* See runs.h. */
    struct zr_run *runs;
    uint64_t turn_ns;    /* how long a run may keep its turn while others wait */
    uint64_t settled_ns; /* no turns before: clients of a zrd that has ended come back one by one */
    bool settling;       /* it is before that */
    uint64_t queue_number, turn_number;
    unsigned processors;   /* for runs that compute at once */
    uint64_t again_ns;     /* when everybody may be asked again; 0: no need */
    char unmet_words[160]; /* why the last that is `unmet` is */
};

void zr_ledger_start(struct zr_ledger *ledger);
void zr_ledger_end(struct zr_ledger *ledger);

/* The holder is the caller's; pid, program and held_bytes are set. What it holds counts, whatever the quotas.
 * ZR_ERR_HOST_MEMORY; ZR_ERR_UNAVAILABLE: the service is draining, and it holds nothing. */
zr_result zr_ledger_add(struct zr_ledger *ledger, struct zr_holder *holder, const char *group);
/* Answers what can be answered: after one of runs.h's calls. */
void zr_ledger_serve(struct zr_ledger *ledger, uint64_t now_ns);
/* Its memory is free from here on. Who waits may be answered. */
void zr_ledger_remove(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t now_ns);
/* Its process is gone; what it holds stays counted. */
void zr_ledger_leave(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t now_ns);

/* Answers now, or later. ZR_ERR_INVALID: no request that makes sense. */
zr_result zr_ledger_lease(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes, uint64_t serial,
                          uint64_t now_ns);
/* ZR_ERR_INVALID: more than it holds. */
zr_result zr_ledger_return(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes,
                           uint64_t now_ns);
/* ZR_ERR_INVALID: it was not asked so. */
zr_result zr_ledger_given(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t serial,
                          uint64_t now_ns);
/* Ends whoever is late, refuses who has waited long enough. Returns when it is due again; UINT64_MAX: never.
 */
uint64_t zr_ledger_tick(struct zr_ledger *ledger, uint64_t now_ns);

/* Sets the quotas that message->flags names, of a process (pid), else of a group by name, or the capacity.
 * ZR_ERR_INVALID, with words: there is no such process, or a soft quota above a hard one. The words of a
 * success, in `words`, say what is held beyond it. */
zr_result zr_ledger_limit(struct zr_ledger *ledger, const struct zr_service_message *message, char *words,
                          size_t room_bytes, uint64_t now_ns);
/* ZR_ERR_INVALID, with words: less than a granule, or more than the machine or the device has. */
zr_result zr_ledger_check_capacity(const struct zr_ledger *ledger, uint64_t bytes);
/* Takes all quotas of groups away. No holders are there yet. */
void zr_ledger_unlimit(struct zr_ledger *ledger);
/* Lends no more, and asks everybody for what is idle; or lends again. */
void zr_ledger_drain(struct zr_ledger *ledger, bool draining, uint64_t now_ns);

/* What holders were asked for and have not answered yet. */
uint64_t zr_ledger_asked_bytes(const struct zr_ledger *ledger);
/* Asks others than `wanting` for `missing` bytes beyond what is coming, each once in this round of asking;
 * `unplanned`: those alone that have no plan. True: something is coming. */
bool zr_ledger_press(struct zr_ledger *ledger, const struct zr_holder *wanting, uint64_t missing_bytes,
                     bool unplanned, uint64_t now_ns);
/* Asks a holder that rests for `bytes` of what it has in use. */
void zr_ledger_ask_spill(struct zr_ledger *ledger, struct zr_holder *holder, uint64_t bytes, uint64_t now_ns);
/* zr_ledger_tick() is wanted then, if not before. */
static inline void zr_ledger_due(struct zr_ledger *ledger, uint64_t at_ns)
{
    if (at_ns < ledger->due_ns)
        ledger->due_ns = at_ns;
}
/* How long it would take to give back what it has idle, by what was measured of it, else of all; 0: unknown.
 */
uint64_t zr_ledger_reclaim_ns(const struct zr_ledger *ledger, const struct zr_holder *holder);
/* The soft quota that holds for the group: what was set, else its share. */
uint64_t zr_ledger_soft_bytes(const struct zr_ledger *ledger, const struct zr_group *group);
/* "pid 71 (python3) 4.1 GiB, ..": the largest holders, cut to the room. */
void zr_ledger_describe(const struct zr_ledger *ledger, char *out, size_t room_bytes);
enum { ZR_LEDGER_NUMBER_ROOM = 32 };
/* zr_size_print() of alloc/base/sizes.h. */
const char *zr_ledger_bytes(char out[ZR_LEDGER_NUMBER_ROOM], uint64_t bytes);

#endif
