/* remedies.h: changes that would have made the request fit, each proved by a replay of the preceding events.
 * Private to defrag/. */
#ifndef ZR_REMEDIES_H
#define ZR_REMEDIES_H

#include "defrag/report/why.h"
#include "defrag/trace/recording.h"

enum { ZR_REMEDIES_MAX = 10, ZR_REMEDY_WHERE_BYTES = 64 };

struct zr_remedy {
    /* "zr", "plan", "caching", "expandable", "bestfit", "one stream", "pending", "capacity", "no options" */
    const char *change;
    bool fits;
    uint64_t peak_reserved_bytes; /* if it fits: the peak within the capacity; else: the least that the change
                                     needs */
    uint64_t short_bytes;         /* 0 if it fits */
    char where[ZR_REMEDY_WHERE_BYTES]; /* the last mark before the event that found no room; "": none */
};

struct zr_remedies {
    struct zr_remedy list[ZR_REMEDIES_MAX];
    unsigned count;
    const char *left_out[ZR_REMEDIES_MAX]; /* changes that exceeded the limit on replays */
    unsigned left_out_count;
};

/* What follows the search for remedies. */
struct zr_remedies_watch {
    void (*say)(const char *words); /* before each replay; NULL after the last one */
    void (*found)(void *state, const struct zr_remedy *remedy); /* NULL: nothing follows */
    void *state;
};

/* The records before a moment, as requests for replays. */
struct zr_requests {
    struct zr_numbering numbering;
    struct zr_vector marks; /* remedies.c */
};
/* Allocates nothing, so it cannot fail. */
void zr_requests_init(struct zr_requests *out, const char *path, zr_arena *arena);
void zr_requests_end(struct zr_requests *requests);
/* Errors as zr_numbering_take(). */
zr_result zr_requests_take(struct zr_requests *requests, const struct zr_record *record);

/* What PyTorch's caching allocator would have reserved with each option, without a limit on memory; with a
 * garbage_collection_threshold of the capacity. The options' values come from the requests:
 *   max_split_size_mb         each power of two, from 32 MiB on, with requests between it and the next
 *   roundup_power2_divisions  2, 4, .. until the rounding changes nothing
 *   garbage_collection_threshold  each tenth of the capacity above the most that was requested */
enum { ZR_SWEEP_MAX = 64 };
struct zr_sweep {
    struct {
        char option[48]; /* "max_split_size_mb:64"; "default", "as recorded" */
        uint64_t peak_reserved_bytes, driver_calls;
    } list[ZR_SWEEP_MAX];
    unsigned count;
};
/* Errors as zr_replay(). `say` as below; may be NULL. */
zr_result zr_remedies_sweep(struct zr_sweep *out, const struct zr_requests *requests,
                            const struct zr_recording *recording, uint64_t capacity_bytes,
                            void (*say)(const char *words));

/* Replays the requests that led to the memory, and then the question's request, under each policy within the
 * capacity, the cheapest first:
 *   bestfit, expandable, caching, zr  the policies of zr replay
 *   capacity    the file's own policy with the least capacity that is enough
 *   no options  caching without the file's allocator_settings
 *   one stream  the file's own policy, with all blocks on one stream; if there are several streams
 *   plan        zr after earlier repeats of the sequence, so that it follows a learned plan
 *   pending     the file's own policy, with pending blocks freed first; if there are any
 *
 * All replays together run at most `events_max` events (0: any number). A change is left out if its first
 * replay would exceed that; the search for the least capacity then ends earlier, with more than the least.
 *
 * Adds the request to the requests. `watch`, if not NULL, follows the search. */
zr_result zr_remedies_find(struct zr_remedies *out, struct zr_requests *requests,
                           const struct zr_memory *memory, const struct zr_question *question,
                           uint64_t events_max, const struct zr_remedies_watch *watch);

#endif
