/* visits.c: one allocation of each kind between two marks, for tests/bench/visits.py to step through: a hit
 * in the size cache, a place in mapped memory, and a hit of a plan. The arena is warm. */
#include <stdio.h>
#include <string.h>

#include "alloc/zr.h"
#include "defrag/zr_defrag.h"

enum { BYTES = 3 << 20, OTHER_BYTES = 5 << 20 };

static zr_arena *arena, *host_arena;

void visits_begin(void)
{
    __asm__ volatile("");
}

void visits_end(void)
{
    __asm__ volatile("");
}

static void *take(size_t bytes)
{
    void *block = NULL;
    if (zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_GRAD}, &block) != ZR_OK)
        fprintf(stderr, "visits: %s\n", zr_last_error());
    return block;
}

static void *watched_take(size_t bytes)
{
    visits_begin();
    void *block = take(bytes);
    visits_end();
    return block;
}

/* Another size than those that the size cache holds, smaller than a mapped free extent. */
static void take_mapped(void)
{
    void *kept[8];
    for (unsigned i = 0; i < 8; i++)
        kept[i] = take(OTHER_BYTES + (i << 12));
    for (unsigned i = 0; i < 8; i++)
        zr_arena_free(arena, kept[i]);
    zr_arena_free(arena, watched_take(BYTES - 4096));
}

/* Freed between live blocks, so that nothing merges with it. */
static void take_cached(void)
{
    void *before = take(BYTES), *one = take(BYTES), *after = take(BYTES);
    zr_arena_free(arena, one);
    one = watched_take(BYTES);
    zr_arena_free(arena, before);
    zr_arena_free(arena, one);
    zr_arena_free(arena, after);
}

static bool make_plan(void)
{
    zr_rehearsal *rehearsal = NULL;
    bool found = false;
    if (zr_rehearsal_create(&rehearsal, arena, 8, host_arena) != ZR_OK)
        return false;
    for (unsigned pass = 0; pass < 2; pass++) {
        zr_rehearsal_pass(rehearsal);
        void *one = take(BYTES), *other = take(OTHER_BYTES);
        zr_arena_free(arena, one);
        zr_arena_free(arena, other);
    }
    bool placed = zr_rehearsal_place(rehearsal, &found) == ZR_OK && found &&
                  zr_rehearsal_install(rehearsal, arena) == ZR_OK;
    zr_rehearsal_destroy(rehearsal);
    return placed;
}

static void take_planned(void)
{
    for (unsigned pass = 0; pass < 3; pass++) {
        zr_rehearsal_rewind(arena);
        void *one = pass == 2 ? watched_take(BYTES) : take(BYTES), *other = take(OTHER_BYTES);
        zr_arena_free(arena, one);
        zr_arena_free(arena, other);
    }
}

int main(int count, char **words)
{
    const char *kind = count > 1 ? words[1] : "";
    zr_backend *backend = NULL;
    if (zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK ||
        zr_arena_create(&host_arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 1;
    zr_arena_free(arena, take(64 << 20)); /* mapped from here on */
    if (strcmp(kind, "cache") == 0)
        take_cached();
    else if (strcmp(kind, "mapped") == 0)
        take_mapped();
    else if (strcmp(kind, "plan") == 0 && make_plan())
        take_planned();
    else
        return 2;
    return 0;
}
