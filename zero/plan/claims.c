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
    zr_result result =
        zr_take(claims->host_arena, ZR_TAG_OTHER, count, sizeof *claims->at, (void **)&claims->at);
    claims->count = result == ZR_OK ? count : 0;
    return result == ZR_OK ? zr_arena_trim(arena, 0, NULL) : result;
}

/* Nothing goes between two of these calls, so what is reserved is the most that was under blocks. */
void zr_plan_claims_note(struct zr_plan_claims *claims, zr_arena *arena, size_t place)
{
    if (place >= claims->count)
        return;
    claims->at[place].most_bytes = reserved_bytes(arena);
    zr_arena_trim(arena, 0, NULL);
    claims->at[place].held_bytes = reserved_bytes(arena);
}

void zr_plan_claims_close(struct zr_plan_claims *claims, zr_arena *arena)
{
    size_t most = reserved_bytes(arena);
    for (size_t i = 0; i < claims->count; i++) {
        size_t reached = claims->at[i].most_bytes;
        most = most > claims->at[i].held_bytes ? most : claims->at[i].held_bytes;
        claims->at[i].most_bytes = most;
        most = most > reached ? most : reached;
    }
}

void zr_plan_claims_end(struct zr_plan_claims *claims)
{
    if (claims->host_arena)
        zr_drop(claims->host_arena, &claims->at);
    claims->count = 0;
}
