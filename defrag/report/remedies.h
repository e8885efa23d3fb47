/* remedies.h: what would have fitted, each change proved by replaying what came before the question with it.
 * Private to defrag/. */
#ifndef ZR_REMEDIES_H
#define ZR_REMEDIES_H

#include "defrag/report/why.h"

enum { ZR_REMEDIES_MOST = 10, ZR_REMEDY_WHERE_BYTES = 64 };

struct zr_remedy {
    const char
        *change; /* "zr", "plan", "caching", "expandable", "bestfit", "one stream", "pending", "capacity" */
    bool fits;
    uint64_t peak_reserved_bytes;      /* where it fits: within the capacity; else: the least that it needs */
    uint64_t short_bytes;              /* 0 where it fits */
    char where[ZR_REMEDY_WHERE_BYTES]; /* the last mark before the event that found no room; "": none */
};

struct zr_remedies {
    struct zr_remedy list[ZR_REMEDIES_MOST];
    unsigned count;
};

/* Replays the first `records_count` records and then the request, under each policy within the capacity:
 *   zr, caching, expandable, bestfit  the policies of zr replay
 *   plan        zr with the sequence gone through before, so that it follows what it learned
 *   one stream  the file's own policy, with all on one stream; where there are several
 *   pending     the file's own policy, with what is pending freed first; where something is
 *   capacity    the file's own policy with the least capacity that will do
 * say(words), where it is not NULL, hears what is being tried. */
zr_result zr_remedies_find(struct zr_remedies *out, struct zr_recording *recording, uint64_t records_count,
                           const struct zr_question *question, zr_arena *arena,
                           void (*say)(const char *words));

#endif
