/* follow_internal.h: the follower's records, shared by the files that work on them. Private to alloc/.
 *
 *   follow.c         the hot path: the step that a request is, and its place
 *   follow_plan.c    plans in and out of force, the observer, the checks
 *   follow_memory.c  granules that regions do not need, and granules kept for strays */
#ifndef ZR_FOLLOW_INTERNAL_H
#define ZR_FOLLOW_INTERNAL_H

#include "alloc/follow.h"

enum {
    ZR_FOLLOW_RECENT = 4, /* requests in a row that tell where a lane is */
    ZR_FOLLOW_PROBES = 8, /* in the table of places */
    ZR_FOLLOW_LOST = 32,  /* strays in a row that end a pass */
};

/* A step and the block on it. */
struct zr_slot {
    /* As it will be asked for: kind ZR_SPAN_PLANNED, place, requested bytes, stream, tag. Never changes while
     * the plan is in force, so readers without a lock may hold it. previous and next: among the lane's late
     * ones. */
    struct zr_span span;
    struct zr_follow_plan *plan;
    uint64_t seen_epoch; /* plan->epoch when its granules were last seen mapped; 0: never */
    size_t requested_bytes;
    uint32_t thread;
    uint32_t alignment_bytes;
    uint32_t hash;
    uint32_t alive_count; /* freed before so many steps on, counted from this one */
    uint32_t due_first;   /* of plan->due: the slots that are to be free when this step comes; up to the next
                             slot's */
    bool placed;
    bool late; /* live outside of its time */
};

struct zr_lane {
    struct zr_slot *slots, *end, *cursor;
    struct zr_slot *late;
    size_t late_count;
    uint32_t thread;
    bool any, any_stream;
    uint64_t stream;
    uint32_t recent[ZR_FOLLOW_RECENT]; /* hashes of the last requests that were not where the cursor was */
    uint32_t recent_count;
};

struct zr_follow_plan {
    struct zr_follow_plan *next; /* among the retired or the dead */
    size_t pages_bytes;          /* of this struct and all behind it */
    struct zr_span *region;
    uint64_t epoch; /* of unmaps in the region, from 1 */
    size_t live_count;
    size_t slots_count;
    struct zr_slot *slots; /* and one more, for its due_first */
    uint64_t *live;        /* bit per slot */
    uint32_t *due;
    struct zr_lane *lanes, *last_lane;
    size_t lanes_count;
    uint32_t *grams; /* of ZR_FOLLOW_RECENT hashes: the number of the slot where they end, and 1; 0: none */
    size_t grams_count;
    uint64_t *busy; /* scratch: bit per granule of the region */
};

struct zr_follow {
    struct zr_follow_plan *plan;    /* in force; NULL: none */
    struct zr_follow_plan *retired; /* replaced, with blocks that are still live */
    struct zr_follow_plan *dead;    /* without, their records until readers have passed */
    size_t pass_left;
    size_t strays_run; /* in a row */
    uint64_t pass_calls_count;
    struct zr_pass pass;
    struct zr_follow_counts counts;

    /* Of dynamic blocks, by zone: what those that came since the plan is in force hold now, and at most; what
     * is kept mapped for them. */
    struct zr_swing {
        size_t now_bytes, most_bytes, kept_bytes;
    } swings[ZR_ZONE_COUNT];
    bool settled;
    unsigned settled_count; /* times that strays made the driver map since: each keeps more */

    const struct zr_observer *observer;
    void *state;
    bool awake;
    bool work_due;
};

static inline bool zr_slot_live(const struct zr_follow_plan *plan, const struct zr_slot *slot)
{
    size_t number = (size_t)(slot - plan->slots);
    return plan->live[number / 64] >> (number % 64) & 1;
}

static inline struct zr_slot *zr_step_on(const struct zr_lane *lane, struct zr_slot *slot)
{
    return slot + 1 == lane->end ? lane->slots : slot + 1;
}

static inline struct zr_slot *zr_step_back(const struct zr_lane *lane, struct zr_slot *slot)
{
    return slot == lane->slots ? lane->end - 1 : slot - 1;
}

uint32_t zr_follow_hash(const struct zr_request *request, size_t alignment, uint32_t thread);
uint32_t zr_follow_gram(const uint32_t *hashes);
void zr_follow_begin_pass(struct zr_arena *arena);
/* The plan has no live block: its region becomes free space; the records wait for readers. */
void zr_follow_bury(struct zr_arena *arena, struct zr_follow_plan *plan);
/* A dynamic block came or went. */
void zr_follow_swing(struct zr_follow *follow, const struct zr_span *block, bool freed);

/* The granules under a span. */
static inline struct zr_stretch zr_granules_under(const struct zr_arena *arena, const struct zr_span *span)
{
    return (struct zr_stretch){span->offset_bytes / arena->granule_bytes,
                               (zr_span_end(span) - 1) / arena->granule_bytes + 1};
}

#endif
