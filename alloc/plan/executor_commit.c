/* executor_commit.c: returns memory that a plan made idle to the driver. Uses supply.c. */
#include "alloc/base/error.h"
#include "alloc/plan/executor_internal.h"
#include "alloc/base/option.h"
#include "alloc/core/core.h"
#include "alloc/core/space.h"
#include "alloc/core/supply.h"

enum { TRIMMED_GRANULES = 16 }; /* released per hold of the lock */

/* Trims idle memory and releases the lock in between, so that other threads wait for a few granules at most.
 * False: the plan was replaced meanwhile. */
static bool trim_all(struct zr_arena *arena, const struct zr_executor *executor)
{
    uint64_t plans_count = executor->counts.plans_count;
    size_t piece_bytes = TRIMMED_GRANULES * arena->granule_bytes;
    for (;;) {
        size_t idle_bytes = arena->granule_cache.bytes + zr_space_idle_bytes(arena);
        bool last = idle_bytes <= piece_bytes;
        if (zr_trim(arena, last ? 0 : idle_bytes - piece_bytes) == 0 || last)
            return true;
        zr_lock_release(&arena->lock);
        zr_lock_acquire(&arena->lock);
        if (!executor->plan || executor->counts.plans_count != plans_count)
            return false;
    }
}

static void commit(struct zr_arena *arena, struct zr_executor *executor)
{
    zr_arena_flush_size_cache(arena); /* the plan serves the requests for which these blocks were kept */
    if (arena->asynchronous)
        zr_streams_wait(arena); /* once per plan: memory that streams still use cannot be trimmed */
    executor->committed = trim_all(arena, executor);
}

void zr_executor_commit(struct zr_arena *arena)
{
    if (!arena->executor || !arena->executor->plan)
        return;
    if (!arena->executor->committed)
        commit(arena, arena->executor);
    zr_executor_begin_pass(arena);
}
