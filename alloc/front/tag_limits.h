/* tag_limits.h: limits per tag and in all. Private to alloc/. Of an arena with arena->bounded set, under its
 * lock, unless a declaration says otherwise. */
#ifndef ZR_FRONT_TAG_LIMITS_H
#define ZR_FRONT_TAG_LIMITS_H

#include "alloc/core/arena.h"
#include "alloc/telemetry/report.h"

/* ZR_ERR_TAG_LIMIT, with words, if a request that came to so many bytes is above a tag limit. */
zr_result zr_tag_limit_check(struct zr_arena *arena, const struct zr_request *request, size_t bytes);
/* What a trace says of such a request. */
struct zr_refusal zr_tag_limit_refusal(const struct zr_arena *arena, const struct zr_request *request,
                                       size_t bytes);
/* The tag's bytes have grown. */
void zr_tag_limit_note(struct zr_arena *arena, unsigned tag);
/* The check for an entry of a pool, without the lock; of any arena. What was promised (0: the arena is not
 * bounded) counts until it is taken back from promised_by_tag_bytes. */
zr_result zr_tag_limit_promise(struct zr_arena *arena, const struct zr_request *request, size_t bytes,
                               size_t *promised_bytes);

#endif
