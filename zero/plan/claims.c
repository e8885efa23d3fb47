/* claims.c: see claims.h. */
#include "zero/plan/claims.h"

#include "zero/comm/take.h"

static size_t reserved_bytes(zr_arena *arena)
{
    struct zr_arena_stats stats = {0};
    zr_arena_get_stats(arena, &stats);
    return stats.reserved_bytes;
}

zr_result zr_plan_claims_begin(struct zr_plan_claims *claims, zr_arena *arena, size_t count)
{
    zr_result result = zr_take(claims->host_arena, ZR_TAG_OTHER, count, sizeof *claims->most_bytes,
                               (void **)&claims->most_bytes);
    claims->count = result == ZR_OK ? count : 0;
    return result == ZR_OK ? zr_arena_trim(arena, 0, NULL) : result;
}

/* The arena frees nothing between calls, so the reserved bytes are the maximum since the last call. */
void zr_plan_claims_note(struct zr_plan_claims *claims, zr_arena *arena, size_t place)
{
    if (place >= claims->count)
        return;
    claims->most_bytes[place] = reserved_bytes(arena);
    zr_arena_trim(arena, 0, NULL);
}

void zr_plan_claims_note_after(struct zr_plan_claims *claims, zr_arena *arena)
{
    size_t reserved = reserved_bytes(arena);
    claims->after_bytes = reserved > claims->after_bytes ? reserved : claims->after_bytes;
    zr_arena_trim(arena, 0, NULL);
}

/* Converts the maximum at each action into the maximum from the action to the end. */
void zr_plan_claims_close(struct zr_plan_claims *claims)
{
    size_t max_bytes = claims->after_bytes;
    for (size_t i = 0; i < claims->count; i++) {
        size_t reached = claims->most_bytes[i];
        claims->most_bytes[i] = max_bytes;
        max_bytes = max_bytes > reached ? max_bytes : reached;
    }
}

void zr_plan_claims_end(struct zr_plan_claims *claims)
{
    if (claims->host_arena)
        zr_drop(claims->host_arena, &claims->most_bytes);
    claims->count = 0;
}
