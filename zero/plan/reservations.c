/* reservations.c: see reservations.h. */
#include "zero/plan/reservations.h"

#include "zero/comm/take.h"

static size_t reserved_bytes(zr_arena *arena)
{
    struct zr_arena_stats stats = {0};
    zr_arena_get_stats(arena, &stats);
    return stats.reserved_bytes;
}

zr_result zr_plan_reservations_begin(struct zr_plan_reservations *reservations, zr_arena *arena, size_t count)
{
    zr_result result = zr_take(reservations->host_arena, ZR_TAG_OTHER, count,
                               sizeof *reservations->most_bytes, (void **)&reservations->most_bytes);
    reservations->count = result == ZR_OK ? count : 0;
    return result == ZR_OK ? zr_arena_trim(arena, 0, NULL) : result;
}

/* The arena frees nothing between calls, so the reserved bytes are the maximum since the last call. */
void zr_plan_reservations_note(struct zr_plan_reservations *reservations, zr_arena *arena, size_t place)
{
    if (place >= reservations->count)
        return;
    reservations->most_bytes[place] = reserved_bytes(arena);
    zr_arena_trim(arena, 0, NULL);
}

void zr_plan_reservations_note_after(struct zr_plan_reservations *reservations, zr_arena *arena)
{
    size_t reserved = reserved_bytes(arena);
    reservations->after_bytes = reserved > reservations->after_bytes ? reserved : reservations->after_bytes;
    zr_arena_trim(arena, 0, NULL);
}

/* Converts the maximum at each action into the maximum from the action to the end. */
void zr_plan_reservations_close(struct zr_plan_reservations *reservations)
{
    size_t max_bytes = reservations->after_bytes;
    for (size_t i = 0; i < reservations->count; i++) {
        size_t reached = reservations->most_bytes[i];
        reservations->most_bytes[i] = max_bytes;
        max_bytes = max_bytes > reached ? max_bytes : reached;
    }
}

void zr_plan_reservations_end(struct zr_plan_reservations *reservations)
{
    if (reservations->host_arena)
        zr_drop(reservations->host_arena, &reservations->most_bytes);
    reservations->count = 0;
}
