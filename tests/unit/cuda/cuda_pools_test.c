/* cuda_pools_test.c: the rules of the CUDA driver's memory pools, and of what streams wait for. Sources and
 * verdicts: tests/support/cuda/cuda_rules.h. */
#define _GNU_SOURCE
#include "tests/support/cuda/cuda_rules.h"

enum { LONG = 1000000 };

/* ---- Pools --------------------------------------------------------------------------------------------- */

static zr_cu_address pooled(const struct world *w, zr_cu_stream stream)
{
    zr_cu_address address = 0;
    if (w->all.alloc_async(&address, w->g, stream) != ZR_CU_SUCCESS)
        _exit(1);
    return address;
}

static zr_cu_pool pool_of(const struct world *w, uint64_t threshold)
{
    zr_cu_pool pool = NULL;
    if (w->all.pool_default(&pool, 0) != ZR_CU_SUCCESS ||
        w->all.pool_set(pool, ZR_CU_POOL_RELEASE_THRESHOLD, &threshold) != ZR_CU_SUCCESS)
        _exit(1);
    return pool;
}

static uint64_t pool_says(const struct world *w, zr_cu_pool pool, zr_cu_pool_attribute which)
{
    uint64_t value = 0;
    w->all.pool_get(pool, which, &value);
    return value;
}

/* Freed in stream order and allocated again: by the same stream at once, by another not under running work
 * unless it waits. */
static zr_cu_result reused_in_order(const struct world *w)
{
    zr_cu_stream stream = stream_of(w);
    zr_cu_address address = pooled(w, stream), again;
    w->emulator->work_ticks(LONG);
    MUST(w->emulator->launch(stream, address, w->g, 9));
    MUST(w->all.free_async(address, stream));
    again = pooled(w, stream);
    MUST(w->cu->fill(again, 1, w->g, stream));
    MUST(w->cu->context_synchronize());
    return good(again == address);
}

static zr_cu_result not_by_another_stream(const struct world *w)
{
    zr_cu_stream stream = stream_of(w), other = stream_of(w);
    zr_cu_address address = pooled(w, stream), again;
    w->emulator->work_ticks(LONG);
    MUST(w->emulator->launch(stream, address, w->g, 9));
    MUST(w->all.free_async(address, stream));
    again = pooled(w, other);
    return good(again != address);
}

/* By a stream that has waited for an event behind the free, or for one before it. */
static bool reused_after(const struct world *w, bool behind)
{
    zr_cu_stream stream = stream_of(w), other = stream_of(w);
    zr_cu_address address = pooled(w, stream), again = 0;
    zr_cu_event event;
    w->emulator->work_ticks(LONG);
    bool good = w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING) == ZR_CU_SUCCESS &&
                (behind || w->cu->event_record(event, stream) == ZR_CU_SUCCESS) &&
                w->emulator->launch(stream, address, w->g, 9) == ZR_CU_SUCCESS &&
                w->all.free_async(address, stream) == ZR_CU_SUCCESS &&
                (!behind || w->cu->event_record(event, stream) == ZR_CU_SUCCESS) &&
                w->all.stream_wait_event(other, event, 0) == ZR_CU_SUCCESS;
    again = pooled(w, other);
    return good && w->cu->fill(again, 1, w->g, other) == ZR_CU_SUCCESS &&
           w->cu->context_synchronize() == ZR_CU_SUCCESS && again == address;
}

static zr_cu_result by_a_stream_that_waited(const struct world *w)
{
    return good(reused_after(w, true));
}

static zr_cu_result by_one_that_waited_too_early(const struct world *w)
{
    return good(!reused_after(w, false));
}

/* Work that waits for another device's is over when that is, and no sooner. */
static zr_cu_result waited_for_a_peer(const struct world *w)
{
    zr_cu_address first = plain(w, w->g), second;
    zr_cu_context other;
    zr_cu_event event;
    if (w->devices_count < 2)
        return VERDICT_SKIPPED;
    w->emulator->work_ticks(LONG);
    MUST(w->emulator->launch(NULL, first, w->g, 9));
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, NULL));
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_push(other));
    MUST(w->all.mem_alloc(&second, w->g));
    zr_cu_stream stream = stream_of(w);
    MUST(w->all.stream_wait_event(stream, event, 0));
    w->emulator->work_ticks(1);
    MUST(w->cu->fill(second, 1, w->g, stream));
    bool early = w->all.stream_query(stream) == ZR_CU_SUCCESS;
    MUST(w->cu->stream_synchronize(stream));
    return early ? VERDICT_BROKEN : w->cu->event_query(event);
}

/* Another stream that uses what is not its, and has not waited. */
static zr_cu_result before_its_allocation(const struct world *w)
{
    zr_cu_stream stream = stream_of(w), other = stream_of(w);
    zr_cu_address first = plain(w, w->g), address;
    w->emulator->work_ticks(LONG);
    MUST(w->emulator->launch(stream, first, w->g, 9));
    address = pooled(w, stream);
    MUST(w->emulator->launch(other, address, w->g, 9));
    return w->cu->context_synchronize();
}

static zr_cu_result behind_its_free(const struct world *w)
{
    zr_cu_stream stream = stream_of(w), other = stream_of(w);
    zr_cu_address address = pooled(w, stream);
    w->emulator->work_ticks(LONG);
    MUST(w->emulator->launch(other, address, w->g, 9));
    MUST(w->all.free_async(address, stream));
    return w->cu->context_synchronize();
}

static zr_cu_result freed_out_of_order(const struct world *w)
{
    zr_cu_stream stream = stream_of(w);
    zr_cu_address address = pooled(w, stream);
    w->emulator->work_ticks(LONG);
    MUST(w->emulator->launch(stream, address, w->g, 9));
    MUST(w->all.mem_free(address));
    return w->cu->context_synchronize();
}

/* At a synchronisation a pool gives back what is above its threshold, and what it keeps is the device's use.
 */
static zr_cu_result threshold(const struct world *w)
{
    zr_cu_pool pool = pool_of(w, UINT64_MAX);
    size_t before = free_bytes(w), kept;
    MUST(w->all.free_async(pooled(w, NULL), NULL));
    MUST(w->cu->stream_synchronize(NULL));
    kept = before - free_bytes(w);
    pool_of(w, 0);
    MUST(w->cu->stream_synchronize(NULL));
    return good(kept >= w->g && free_bytes(w) == before && pool_says(w, pool, ZR_CU_POOL_RESERVED_NOW) == 0 &&
                pool_says(w, pool, ZR_CU_POOL_RESERVED_HIGH) == kept);
}

static zr_cu_result trimmed_in_part(const struct world *w)
{
    zr_cu_pool pool = pool_of(w, UINT64_MAX);
    zr_cu_address first = pooled(w, NULL), second = pooled(w, NULL);
    MUST(w->all.free_async(first, NULL));
    MUST(w->all.free_async(second, NULL));
    MUST(w->cu->stream_synchronize(NULL));
    MUST(w->all.pool_trim(pool, 1));
    return good(pool_says(w, pool, ZR_CU_POOL_RESERVED_NOW) == w->g);
}

static zr_cu_result trimmed(const struct world *w)
{
    zr_cu_pool pool = pool_of(w, UINT64_MAX);
    zr_cu_address used = pooled(w, NULL);
    MUST(w->all.free_async(pooled(w, NULL), NULL));
    MUST(w->cu->stream_synchronize(NULL));
    MUST(w->all.pool_trim(pool, 0));
    MUST(w->cu->fill(used, 1, w->g, NULL));
    return good(pool_says(w, pool, ZR_CU_POOL_USED_NOW) == w->g &&
                pool_says(w, pool, ZR_CU_POOL_RESERVED_NOW) == w->g);
}

/* What a pool keeps is nobody else's, until the pool itself is out of memory. */
static zr_cu_result kept_by_a_pool(const struct world *w)
{
    zr_cu_address address;
    size_t total, rest;
    pool_of(w, UINT64_MAX);
    MUST(w->all.total_mem(&total, 0));
    rest = free_bytes(w) / w->g * w->g;
    MUST(w->all.alloc_async(&address, rest, NULL));
    MUST(w->all.free_async(address, NULL));
    MUST(w->cu->stream_synchronize(NULL));
    MUST(w->all.alloc_async(&address, rest, stream_of(w)));
    MUST(w->all.free_async(address, NULL));
    MUST(w->cu->stream_synchronize(NULL));
    return w->all.mem_alloc(&address, w->g);
}

static zr_cu_result default_pool_destroyed(const struct world *w)
{
    return w->all.pool_destroy(pool_of(w, 0));
}

static const zr_cu_pool_properties of_device = {.type = ZR_CU_ALLOCATION_PINNED,
                                                .location = {ZR_CU_LOCATION_DEVICE, 0}};

static zr_cu_result own_pool(const struct world *w)
{
    zr_cu_pool pool, current, usual = pool_of(w, 0);
    zr_cu_address address;
    MUST(w->all.pool_create(&pool, &of_device));
    MUST(w->all.pool_make_current(0, pool));
    address = pooled(w, NULL);
    MUST(w->all.pointer_attribute(&current, ZR_CU_POINTER_POOL, address));
    if (current != pool)
        return VERDICT_BROKEN;
    MUST(w->all.pool_destroy(pool));
    MUST(w->all.pool_current(&current, 0));
    MUST(w->cu->fill(address, 1, w->g, NULL));
    MUST(w->all.free_async(address, NULL));
    MUST(w->cu->stream_synchronize(NULL));
    return good(current == usual);
}

static zr_cu_result destroyed_pool(const struct world *w)
{
    zr_cu_pool pool;
    zr_cu_address address;
    MUST(w->all.pool_create(&pool, &of_device));
    MUST(w->all.pool_destroy(pool));
    return ALL_REFUSED(w->all.alloc_from_pool(&address, 4096, pool, NULL), w->all.pool_destroy(pool),
                       w->all.pool_trim(pool, 0), w->all.pool_make_current(0, pool));
}

static zr_cu_result peer_of_a_pool(const struct world *w, bool access)
{
    zr_cu_access peer = {{ZR_CU_LOCATION_DEVICE, 1}, ZR_CU_ACCESS_READ_WRITE};
    zr_cu_address address = pooled(w, NULL);
    zr_cu_context other;
    if (w->devices_count < 2)
        return VERDICT_SKIPPED;
    if (access)
        MUST(w->all.pool_set_access(pool_of(w, 0), &peer, 1));
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_push(other));
    zr_cu_result code = w->cu->fill(address, 1, w->g, NULL);
    return code == ZR_CU_SUCCESS ? w->cu->context_synchronize() : code;
}

static zr_cu_result peer_with_pool_access(const struct world *w)
{
    return peer_of_a_pool(w, true);
}

static zr_cu_result peer_without_pool_access(const struct world *w)
{
    return peer_of_a_pool(w, false);
}

static zr_cu_result own_access_taken(const struct world *w)
{
    zr_cu_access access = {{ZR_CU_LOCATION_DEVICE, 0}, ZR_CU_ACCESS_NONE};
    return w->all.pool_set_access(pool_of(w, 0), &access, 1);
}

/* ---- The table -------------------------------------------------------------------------------------------
 */

static const struct rule rules[] = {
    {"a pool's memory serves its stream again at once", "MALLOC__ASYNC cuMemFreeAsync", reused_in_order,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"another stream not under running work", "TYPES CU_MEMPOOL_ATTR_REUSE_*", not_by_another_stream,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"or after an event", "TYPES CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES", by_a_stream_that_waited,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"before it is no help", "TYPES CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES",
     by_one_that_waited_too_early, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"a stream waits for another device's event", "STREAM cuStreamWaitEvent", waited_for_a_peer,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"a pool's memory is there when its stream is", "MALLOC__ASYNC cuMemAllocAsync", before_its_allocation,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"and no longer than its stream frees it", "MALLOC__ASYNC cuMemFreeAsync", behind_its_free,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"cuMemFree does not wait for a pool's", "MEM cuMemFree", freed_out_of_order, ZR_CU_ILLEGAL_ADDRESS,
     EMULATOR_ONLY},
    {"waiting returns what is above the threshold", "TYPES CU_MEMPOOL_ATTR_RELEASE_THRESHOLD", threshold,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"and a trim what is free", "MALLOC__ASYNC cuMemPoolTrimTo", trimmed, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"a trim keeps what it is told to", "MALLOC__ASYNC cuMemPoolTrimTo", trimmed_in_part, ZR_CU_SUCCESS,
     EMULATOR_ONLY},
    {"what a pool keeps is used", "TYPES CU_MEMPOOL_ATTR_RELEASE_THRESHOLD", kept_by_a_pool,
     ZR_CU_OUT_OF_MEMORY, EMULATOR_ONLY},
    {"a default pool stays", "MALLOC__ASYNC cuMemPoolDestroy", default_pool_destroyed, ZR_CU_INVALID_VALUE,
     0},
    {"a destroyed one lives for its memory, and the default is current", "MALLOC__ASYNC cuMemPoolDestroy",
     own_pool, ZR_CU_SUCCESS, 0},
    {"and takes no calls", "MALLOC__ASYNC cuMemPoolDestroy", destroyed_pool, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
    {"a pool's memory is a peer's with access", "MALLOC__ASYNC cuMemPoolSetAccess", peer_with_pool_access,
     ZR_CU_SUCCESS, 0},
    {"and not without", "MALLOC__ASYNC cuMemPoolSetAccess", peer_without_pool_access, ZR_CU_INVALID_VALUE, 0},
    {"the device's own access stays", "MALLOC__ASYNC cuMemPoolSetAccess", own_access_taken,
     ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
};

int main(void)
{
    return rules_run(rules, sizeof rules / sizeof *rules);
}
