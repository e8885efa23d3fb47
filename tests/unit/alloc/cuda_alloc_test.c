/* cuda_alloc_test.c: the rules of the CUDA driver's own allocators that programs lean on: cuMemAlloc, pools,
 * managed and host memory, what a pointer says, contexts, and the way to a function by its name. Sources and
 * verdicts: tests/support/cuda_rules.h. */
#define _GNU_SOURCE
#include "tests/support/cuda_rules.h"

enum { LONG = 1000000, LEGACY = 1, PER_THREAD = 2 };

static zr_cu_address plain(const struct world *w, size_t bytes)
{
    zr_cu_address address = 0;
    if (w->all.mem_alloc(&address, bytes) != ZR_CU_SUCCESS)
        _exit(1); /* the verdict stays "broken" */
    return address;
}

static zr_cu_result good(bool what)
{
    return what ? ZR_CU_SUCCESS : VERDICT_BROKEN;
}

static size_t free_bytes(const struct world *w)
{
    size_t bytes = 0;
    w->all.mem_info(&bytes, NULL);
    return bytes;
}

/* ---- cuMemAlloc ---------------------------------------------------------------------------------------- */

static zr_cu_result nothing(const struct world *w)
{
    zr_cu_address address;
    size_t pitch;
    return ALL_REFUSED(w->all.mem_alloc(&address, 0), w->all.mem_alloc_pitch(&address, &pitch, 0, 4, 4),
                       w->all.alloc_async(&address, 0, NULL), w->all.alloc_managed(&address, 0, 1));
}

static zr_cu_result too_much(const struct world *w)
{
    zr_cu_address address;
    size_t total;
    MUST(w->all.total_mem(&total, 0));
    return ALL_REFUSED(w->all.mem_alloc(&address, total + 1), w->all.mem_alloc(&address, SIZE_MAX),
                       w->all.alloc_async(&address, total + 1, NULL),
                       w->all.alloc_async(&address, SIZE_MAX, NULL));
}

/* Where nothing was allocated, inside, and twice. */
static zr_cu_result foreign_free(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    zr_cu_result inside = w->all.mem_free(address + 256), host = w->all.mem_free((uintptr_t)&address);
    zr_cu_result virtual = w->all.mem_free(w->base);
    MUST(w->all.mem_free(address));
    return ALL_REFUSED(inside, host, virtual, w->all.mem_free(address), w->all.free_async(address, NULL));
}

static zr_cu_result boundaries(const struct world *w)
{
    for (size_t bytes = 1; bytes < 3 * w->g; bytes = 3 * bytes + 1)
        if (plain(w, bytes) % 256 != 0)
            return VERDICT_BROKEN;
    return ZR_CU_SUCCESS;
}

static zr_cu_result counted(const struct world *w)
{
    size_t before = free_bytes(w), during;
    zr_cu_address address = plain(w, 8 * w->g);
    during = free_bytes(w);
    MUST(w->all.mem_free(address));
    return good(before - during >= 8 * w->g && free_bytes(w) == before);
}

static zr_cu_result past_the_end(const struct world *w)
{
    zr_cu_address address = plain(w, 1000);
    plain(w, 1000);
    MUST(w->cu->fill(address, 1, 1000, NULL));
    return w->cu->fill(address, 1, 1001, NULL);
}

static zr_cu_result after_free(const struct world *w)
{
    zr_cu_address address = plain(w, 1000);
    char byte;
    plain(w, 1000);
    MUST(w->all.mem_free(address));
    return ALL_REFUSED(w->cu->fill(address, 1, 1, NULL), w->all.copy_to_host(&byte, address, 1),
                       w->all.copy_to_device(address, &byte, 1));
}

static zr_cu_result range(const struct world *w)
{
    zr_cu_address address = plain(w, 5000), base;
    size_t bytes;
    MUST(w->all.address_range(&base, &bytes, address + 4999));
    MUST(w->all.address_range(NULL, NULL, address));
    return good(base == address && bytes == 5000);
}

static zr_cu_result range_of_virtual(const struct world *w)
{
    zr_cu_address base;
    size_t bytes;
    MUST(map_at(w, 0, 1, memory_of(w, 1)));
    MUST(map_at(w, 1, 2, memory_of(w, 2)));
    MUST(w->all.address_range(&base, &bytes, w->base + 2 * w->g));
    return good(base == w->base + w->g && bytes == 2 * w->g);
}

static zr_cu_result range_of_nothing(const struct world *w)
{
    zr_cu_address base;
    size_t bytes;
    return w->all.address_range(&base, &bytes, (uintptr_t)&base);
}

static zr_cu_result pitch(const struct world *w)
{
    zr_cu_address address;
    size_t row;
    MUST(w->all.mem_alloc_pitch(&address, &row, 700, 3, 4));
    MUST(w->cu->fill(address, 1, 3 * row, NULL));
    return good(row >= 700 && row % 256 == 0);
}

static zr_cu_result pitch_of_odd_elements(const struct world *w)
{
    zr_cu_address address;
    size_t row;
    return w->all.mem_alloc_pitch(&address, &row, 700, 3, 3);
}

/* A kernel that still runs when its memory is freed. */
static zr_cu_result freed_while_working(const struct world *w)
{
    zr_cu_address address = plain(w, w->g);
    w->emulator->work_ticks(LONG);
    MUST(w->emulator->launch(NULL, address, w->g, 9));
    MUST(w->all.mem_free(address));
    return w->cu->context_synchronize();
}

static zr_cu_result freed_while_working_lazily(const struct world *w)
{
    w->emulator->lazy_free(true);
    return freed_while_working(w);
}

/* ---- Pools --------------------------------------------------------------------------------------------- */

static zr_cu_stream stream_of(const struct world *w)
{
    zr_cu_stream stream = NULL;
    if (w->all.stream_new(&stream, ZR_CU_STREAM_NON_BLOCKING) != ZR_CU_SUCCESS)
        _exit(1);
    return stream;
}

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

/* ---- Managed and host memory --------------------------------------------------------------------------- */

static zr_cu_result managed(const struct world *w)
{
    zr_cu_address address;
    char got;
    MUST(w->all.alloc_managed(&address, 4096, 1));
    *(char *)(uintptr_t)address = 41;
    MUST(w->all.copy_to_host(&got, address, 1));
    MUST(w->cu->fill(address + 1, 42, 1, NULL));
    MUST(w->cu->context_synchronize());
    return got == 41 && ((char *)(uintptr_t)address)[1] == 42 ? w->all.mem_free(address) : VERDICT_BROKEN;
}

static zr_cu_result managed_for_nobody(const struct world *w)
{
    zr_cu_address address;
    return w->all.alloc_managed(&address, 4096, 0);
}

/* A copy to page-locked memory is no more behind than any other work. */
static zr_cu_result page_locked(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    volatile char *host;
    MUST(w->all.host_alloc((void **)&host, 4096, 0));
    host[0] = 1;
    w->emulator->work_ticks(LONG);
    MUST(w->cu->fill(address, 7, 4096, NULL));
    MUST(w->cu->copy((uintptr_t)host, address, 4096, NULL));
    if (host[0] != 1)
        return VERDICT_BROKEN;
    MUST(w->cu->stream_synchronize(NULL));
    return host[0] == 7 ? w->all.host_free((void *)host) : VERDICT_BROKEN;
}

static zr_cu_result host_free_of_others(const struct world *w)
{
    void *own = malloc(4096);
    MUST(w->all.host_register(own, 4096, 0));
    return ALL_REFUSED(w->all.host_free(own), w->all.host_free((void *)(uintptr_t)plain(w, 4096)),
                       w->all.host_free(NULL));
}

static zr_cu_result registered_twice(const struct world *w)
{
    char *own = aligned_alloc(4096, 8192);
    MUST(w->all.host_register(own, 8192, 0));
    return w->all.host_register(own + 4096, 4096, 0);
}

static zr_cu_result not_registered(const struct world *w)
{
    return w->all.host_unregister(malloc(4096));
}

/* ---- Pointers ------------------------------------------------------------------------------------------ */

static zr_cu_result pointer_says(const struct world *w)
{
    zr_cu_address address = plain(w, 5000), start;
    zr_cu_context context;
    unsigned type;
    int ordinal, is_managed, ipc;
    unsigned long long id, next;
    size_t bytes;
    zr_cu_pointer_attribute which[] = {ZR_CU_POINTER_CONTEXT,     ZR_CU_POINTER_MEMORY_TYPE,
                                       ZR_CU_POINTER_BUFFER_ID,   ZR_CU_POINTER_DEVICE_ORDINAL,
                                       ZR_CU_POINTER_RANGE_START, ZR_CU_POINTER_RANGE_BYTES,
                                       ZR_CU_POINTER_IS_MANAGED,  ZR_CU_POINTER_IPC_CAPABLE};
    void *values[] = {&context, &type, &id, &ordinal, &start, &bytes, &is_managed, &ipc};
    MUST(w->all.pointer_attributes(sizeof which / sizeof *which, which, values, address + 99));
    MUST(w->all.mem_free(address));
    MUST(w->all.pointer_attribute(&next, ZR_CU_POINTER_BUFFER_ID, plain(w, 5000)));
    return good(context == w->context && type == 2 && ordinal == 0 && start == address && bytes == 5000 &&
                !is_managed && ipc && next != id);
}

/* Of virtual memory: no context, no legacy IPC, the reservation as the range. */
static zr_cu_result pointer_says_virtual(const struct world *w)
{
    zr_cu_address start;
    size_t bytes;
    int ipc;
    ONE_MAPPED;
    MUST(w->all.pointer_attribute(&ipc, ZR_CU_POINTER_IPC_CAPABLE, w->base + 5));
    MUST(w->all.pointer_attribute(&start, ZR_CU_POINTER_RANGE_START, w->base + 5));
    MUST(w->all.pointer_attribute(&bytes, ZR_CU_POINTER_RANGE_BYTES, w->base + 5));
    return good(!ipc && start == w->base && bytes == RANGE_GRANULES * w->g);
}

/* One question is refused, several are answered by nothing. */
static zr_cu_result pointer_of_nobody(const struct world *w)
{
    zr_cu_pointer_attribute which[] = {ZR_CU_POINTER_CONTEXT, ZR_CU_POINTER_MEMORY_TYPE};
    zr_cu_context context = w->context;
    unsigned type = 7;
    void *values[] = {&context, &type};
    MUST(w->all.pointer_attributes(2, which, values, (uintptr_t)&type));
    if (context || type)
        return VERDICT_BROKEN;
    return w->all.pointer_attribute(&type, ZR_CU_POINTER_MEMORY_TYPE, (uintptr_t)&type);
}

static zr_cu_result retained_handle(const struct world *w)
{
    zr_cu_memory again;
    zr_cu_properties properties;
    ONE_MAPPED;
    MUST(w->cu->release(first));
    MUST(w->all.retain_handle(&again, (void *)(uintptr_t)(w->base + 9)));
    MUST(w->all.handle_properties(&properties, again));
    MUST(w->cu->unmap(w->base, w->g));
    MUST(map_at(w, 3, 1, again));
    MUST(w->cu->release(again));
    return properties.exported_as == ZR_CU_HANDLE_POSIX_FD ? w->cu->release(again) : VERDICT_BROKEN;
}

static zr_cu_result handle_of_nothing(const struct world *w)
{
    zr_cu_memory memory;
    return ALL_REFUSED(w->all.retain_handle(&memory, (void *)(uintptr_t)w->base),
                       w->all.retain_handle(&memory, (void *)(uintptr_t)plain(w, 4096)));
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

/* Memory goes with its context; virtual memory is the device's, for all of its contexts. */
static zr_cu_result of_a_destroyed_context(const struct world *w)
{
    zr_cu_context second;
    zr_cu_address address;
    size_t before = free_bytes(w);
    MUST(w->all.context_new(&second, 0, 0));
    address = plain(w, w->g);
    MUST(w->all.context_end(second));
    if (free_bytes(w) != before)
        return VERDICT_BROKEN;
    return ALL_REFUSED(w->cu->fill(address, 1, 1, NULL), w->all.mem_free(address));
}

static zr_cu_result virtual_in_a_second_context(const struct world *w)
{
    zr_cu_context second;
    ONE_MAPPED;
    MUST(w->all.context_new(&second, 0, 0));
    MUST(fill_at(w, 0, 1));
    MUST(w->all.context_end(second));
    return fill_at(w, 0, 2);
}

static zr_cu_result destroyed_context(const struct world *w)
{
    zr_cu_context second;
    MUST(w->all.context_new(&second, 0, 0));
    MUST(w->all.context_end(second));
    return ALL_REFUSED(w->cu->context_push(second), w->all.context_set(second), w->all.context_end(second));
}

static zr_cu_result primary_destroyed(const struct world *w)
{
    return w->all.context_end(w->context);
}

static zr_cu_result freed_from_another_context(const struct world *w)
{
    zr_cu_address address = plain(w, w->g);
    zr_cu_context second;
    MUST(w->all.context_new(&second, 0, 0));
    return w->all.mem_free(address);
}

static zr_cu_result peer_of_plain(const struct world *w, bool access)
{
    zr_cu_address address = plain(w, w->g);
    zr_cu_context other;
    char got = 0;
    if (w->devices_count < 2)
        return VERDICT_SKIPPED;
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_push(other));
    if (access)
        MUST(w->all.context_peer(w->context, 0));
    MUST(w->all.copy_to_host(&got, address, 1));
    zr_cu_result code = w->cu->fill(address, 1, w->g, NULL);
    return code == ZR_CU_SUCCESS ? w->cu->context_synchronize() : code;
}

static zr_cu_result peer_enabled(const struct world *w)
{
    return peer_of_plain(w, true);
}

static zr_cu_result peer_not_enabled(const struct world *w)
{
    return peer_of_plain(w, false);
}

static zr_cu_result reset(const struct world *w)
{
    zr_cu_address address = plain(w, w->g);
    MUST(w->all.primary_reset(0));
    return w->cu->fill(address, 1, 1, NULL);
}

/* ---- Functions by name --------------------------------------------------------------------------------- */

static void *by_name(const struct world *w, const char *name, int version, unsigned long long flags)
{
    void *function = NULL;
    zr_cu_proc_status status;
    return w->all.proc_address_v2(name, &function, version, flags, &status) == ZR_CU_SUCCESS ? function
                                                                                             : NULL;
}

static zr_cu_result as_asked(const struct world *w)
{
    static const struct {
        const char *name, *form;
        int version;
        unsigned flags;
    } rows[] = {
        {"cuMemAlloc", "cuMemAlloc_v2", 3020, 0},
        {"cuMemAlloc", "cuMemAlloc_v2", 12000, LEGACY},
        {"cuCtxCreate", "cuCtxCreate_v2", 11030, 0},
        {"cuCtxCreate", "cuCtxCreate_v3", 11040, 0},
        {"cuCtxSynchronize", "cuCtxSynchronize", 12000, 0},
        {"cuCtxSynchronize", "cuCtxSynchronize_v2", 13000, 0}, /* with another parameter: not here */
        {"cuGetProcAddress", "cuGetProcAddress", 11030, 0},
        {"cuGetProcAddress", "cuGetProcAddress_v2", 12000, 0},
        {"cuMemAllocAsync", "cuMemAllocAsync", 12000, LEGACY},
        {"cuMemAllocAsync", "cuMemAllocAsync_ptsz", 12000, PER_THREAD},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", 12000, PER_THREAD},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020, PER_THREAD},
        {"cuMemFree", "cuMemFree_v2", 12000, PER_THREAD},
    };
    int version;
    MUST(w->cu->driver_version(&version));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].version <= version &&
            by_name(w, rows[i].name, rows[i].version, rows[i].flags) != dlsym(w->library, rows[i].form)) {
            tap_note("%s of %d is not %s", rows[i].name, rows[i].version, rows[i].form);
            return VERDICT_BROKEN;
        }
    return ZR_CU_SUCCESS;
}

static zr_cu_result too_old(const struct world *w)
{
    void *function = w->library;
    zr_cu_proc_status status;
    MUST(w->all.proc_address_v2("cuMemAllocAsync", &function, 10000, 0, &status));
    return good(!function && status == ZR_CU_PROC_VERSION_TOO_OLD);
}

static zr_cu_result unknown_name(const struct world *w)
{
    void *function = w->library;
    zr_cu_proc_status status;
    MUST(w->all.proc_address_v2("cuNoSuchCall", &function, 12000, 0, &status));
    return good(!function && status == ZR_CU_PROC_NOT_FOUND);
}

static zr_cu_result unknown_to_the_older(const struct world *w)
{
    void *function;
    return w->all.proc_address("cuNoSuchCall", &function, 11030, 0);
}

static zr_cu_result newer_than_the_driver(const struct world *w)
{
    void *function;
    zr_cu_proc_status status;
    return w->all.proc_address_v2("cuMemAlloc", &function, 999000, 0, &status);
}

static zr_cu_result private_table(const struct world *w)
{
    unsigned char seen[1][16], identifier[16] = "a private table";
    const void *table;
    zr_cu_result code = w->all.export_table(&table, identifier);
    bool same = w->emulator->tables_asked(seen, 1) == 1 && memcmp(seen, identifier, 16) == 0;
    return same ? code : VERDICT_BROKEN;
}

/* ---- All calls ----------------------------------------------------------------------------------------- */

/* A fault comes before a call looks at its arguments, so that any will do. */
static zr_cu_result faulty(const struct world *w)
{
    static const struct {
        const char *name, *form;
    } rows[] = {
#define ROW(member, name, suffix, parameters) {#name, #name #suffix},
        ZR_CUDA_TAKEN(ROW) ZR_CUDA_USED(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        zr_cu_result (*call)(long, long, long, long, long);
        *(void **)&call = dlsym(w->library, rows[i].form);
        w->emulator->fail(
            &(struct zr_emulator_fault){.call = rows[i].name, .nth = 1, .code = ZR_CU_NOT_PERMITTED});
        if (!call || call(0, 0, 0, 0, 0) != ZR_CU_NOT_PERMITTED) {
            tap_note("%s is not there or does not fail", rows[i].form);
            return VERDICT_BROKEN;
        }
    }
    return ZR_CU_SUCCESS;
}

static zr_cu_result without_a_context(const struct world *w)
{
    zr_cu_context popped;
    zr_cu_address address = plain(w, 4096), other;
    void *host;
    MUST(w->cu->context_pop(&popped));
    return ALL_REFUSED(w->all.mem_alloc(&other, 4096), w->all.mem_free(address),
                       w->all.alloc_async(&other, 4096, NULL), w->all.alloc_managed(&other, 4096, 1),
                       w->all.host_alloc(&host, 4096, 0), w->all.address_range(NULL, NULL, address),
                       w->all.fill_now(address, 1, 1), w->all.stream_query(NULL),
                       w->all.mem_info(NULL, NULL));
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static const struct rule rules[] = {
    {"no bytes are no allocation", "MEM cuMemAlloc; MALLOC__ASYNC cuMemAllocAsync", nothing,
     ZR_CU_INVALID_VALUE, 0},
    {"memory ends", "MEM cuMemAlloc", too_much, ZR_CU_OUT_OF_MEMORY, 0},
    {"a free is for what was allocated, from its start, once", "MEM cuMemFree", foreign_free,
     ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"memory lies on boundaries for any type", "MEM cuMemAlloc", boundaries, ZR_CU_SUCCESS, 0},
    {"and counts as used", "MEM cuMemGetInfo", counted, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"it has an end", "MEM cuMemsetD8Async", past_the_end, ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"and is gone after its free", "MEM cuMemFree", after_free, ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"an address tells its allocation; either answer may be left out", "MEM cuMemGetAddressRange", range,
     ZR_CU_SUCCESS, 0},
    {"of virtual memory the mapping", "UNIFIED CU_POINTER_ATTRIBUTE_RANGE_SIZE", range_of_virtual,
     ZR_CU_SUCCESS, 0},
    {"an address of the program's tells none", "MEM cuMemGetAddressRange", range_of_nothing, ZR_CU_NOT_FOUND,
     0},
    {"rows begin on boundaries", "MEM cuMemAllocPitch", pitch, ZR_CU_SUCCESS, 0},
    {"for elements of 4, 8 or 16 bytes", "MEM cuMemAllocPitch", pitch_of_odd_elements, ZR_CU_INVALID_VALUE,
     0},
    {"cuMemFree may wait for work, as here", "MEM cuMemFree", freed_while_working, ZR_CU_SUCCESS,
     EMULATOR_ONLY},
    {"and may not, as here", "MEM cuMemFree", freed_while_working_lazily, ZR_CU_ILLEGAL_ADDRESS,
     EMULATOR_ONLY},
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
    {"managed memory is the host's and the device's", "MEM cuMemAllocManaged", managed, ZR_CU_SUCCESS, 0},
    {"and says for whom", "MEM cuMemAllocManaged", managed_for_nobody, ZR_CU_INVALID_VALUE, 0},
    {"a copy to page-locked memory is late", "API synchronization behavior", page_locked, ZR_CU_SUCCESS,
     EMULATOR_ONLY},
    {"cuMemFreeHost is for cuMemHostAlloc", "MEM cuMemFreeHost", host_free_of_others, ZR_CU_INVALID_VALUE, 0},
    {"memory is registered once", "MEM cuMemHostRegister", registered_twice, 712, 0},
    {"before it is no longer", "MEM cuMemHostUnregister", not_registered, 713, 0},
    {"a pointer tells its context, kind, device, range, and an identifier of its own",
     "UNIFIED cuPointerGetAttributes", pointer_says, ZR_CU_SUCCESS, 0},
    {"virtual memory is not for legacy IPC; its range is the reservation", "UNIFIED cuPointerGetAttribute",
     pointer_says_virtual, ZR_CU_SUCCESS, 0},
    {"a pointer of nobody's tells nothing", "UNIFIED cuPointerGetAttribute(s)", pointer_of_nobody,
     ZR_CU_INVALID_VALUE, 0},
    {"a handle is had again from an address, and released", "VA cuMemRetainAllocationHandle", retained_handle,
     ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"of what cuMemCreate made", "VA cuMemRetainAllocationHandle", handle_of_nothing, ZR_CU_INVALID_VALUE, 0},
    {"memory goes with its context", "CTX cuCtxDestroy", of_a_destroyed_context, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
    {"virtual memory does not", "guide, Virtual Memory Management", virtual_in_a_second_context,
     ZR_CU_SUCCESS, 0},
    {"a destroyed context has no use", "CTX cuCtxDestroy", destroyed_context, ZR_CU_INVALID_CONTEXT,
     EMULATOR_ONLY},
    {"a primary one is not destroyed", "PRIMARY__CTX cuDevicePrimaryCtxRetain", primary_destroyed,
     ZR_CU_INVALID_CONTEXT, 0},
    {"any context frees", "UNIFIED overview: one address space", freed_from_another_context, ZR_CU_SUCCESS,
     0},
    {"a peer's kernels need peer access", "PEER__ACCESS cuCtxEnablePeerAccess", peer_not_enabled,
     ZR_CU_INVALID_VALUE, 0},
    {"and have it then", "PEER__ACCESS cuCtxEnablePeerAccess", peer_enabled, ZR_CU_SUCCESS, 0},
    {"a reset takes all", "PRIMARY__CTX cuDevicePrimaryCtxReset", reset, ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"a function is had in the form of the version that is named", "DRIVER__ENTRY__POINT cuGetProcAddress",
     as_asked, ZR_CU_SUCCESS, 0},
    {"before its first version it is too old", "DRIVER__ENTRY__POINT cuGetProcAddress", too_old,
     ZR_CU_SUCCESS, 0},
    {"an unknown one is NULL", "DRIVER__ENTRY__POINT cuGetProcAddress", unknown_name, ZR_CU_SUCCESS, 0},
    {"and was an error in 11.3", "the same of CUDA 11.7", unknown_to_the_older, ZR_CU_NOT_FOUND, 0},
    {"no version above the driver's", "DRIVER__ENTRY__POINT cuGetProcAddress of 13", newer_than_the_driver,
     ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"allocating, freeing and asking for memory need a context", "CTX overview", without_a_context,
     ZR_CU_INVALID_CONTEXT, 0},
    {"each call fails when it is told to", "emulator.h", faulty, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"private tables are refused, and remembered", "none: not documented", private_table, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
};

int main(void)
{
    return rules_run(rules, sizeof rules / sizeof *rules);
}
