/* cuda_program.c: a program that uses CUDA and knows nothing of zr, for a library to be preloaded:
 * tests/system/preload_cuda.t. It prints what it found in words that are the same with and without one.
 *
 *   cuda_program WAY ROW [ARGUMENT]
 *
 * WAY is how it comes to the driver: `linked`, `dlsym`, or what a static cudart does: `proc` and `proc2`, by
 * cuGetProcAddress of either version, for the version that was current when each function came. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/preload/cuda/driver_api.h"
#include "alloc/rehearse/driver/emulator.h"

#define MEMBER(member, name, suffix, parameters) zr_cu_result(*member) parameters;
static struct {
    ZR_CUDA_FUNCTIONS(MEMBER) ZR_CUDA_REPLACED(MEMBER) ZR_CUDA_USED(MEMBER)
} cu;

#ifdef LINKED
#define DECLARE(member, name, suffix, parameters) extern zr_cu_result name##suffix parameters;
ZR_CUDA_FUNCTIONS(DECLARE)
ZR_CUDA_REPLACED(DECLARE)
ZR_CUDA_USED(DECLARE)
#define ADDRESS(member, name, suffix, parameters) (void *)name##suffix,
#else
#define ADDRESS(member, name, suffix, parameters) NULL,
#endif
#define ENTRY(member, name, suffix, parameters) {#name, #suffix},
static const struct {
    const char *name, *suffix;
} names[] = {ZR_CUDA_FUNCTIONS(ENTRY) ZR_CUDA_REPLACED(ENTRY) ZR_CUDA_USED(ENTRY)};
static void *const linked[] = {ZR_CUDA_FUNCTIONS(ADDRESS) ZR_CUDA_REPLACED(ADDRESS) ZR_CUDA_USED(ADDRESS)};
enum { NAMES_COUNT = sizeof names / sizeof *names, MIB = 1 << 20 };

static int failed;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("line %d: %s\n", __LINE__, #condition);                                                   \
            failed = 1;                                                                                      \
        }                                                                                                    \
    } while (0)

/* ---- The driver ---------------------------------------------------------------------------------------- */

/* The version of CUDA for which a static cudart asks for a function with this suffix. */
static int version_of(const char *name, const char *suffix)
{
    if (strcmp(suffix, "_v4") == 0)
        return 12050;
    if (strcmp(name, "cuGetProcAddress") == 0 && *suffix)
        return 12000;
    return strcmp(suffix, "_v2") == 0 ? 11020 : 11040;
}

static void *find(const char *way, void *library, size_t i)
{
    char whole[96];
    void *function = NULL;
    zr_cu_proc_status status;
    zr_cu_result (*proc)(const char *, void **, int, unsigned long long) = NULL;
    zr_cu_result (*proc2)(const char *, void **, int, unsigned long long, zr_cu_proc_status *) = NULL;
    snprintf(whole, sizeof whole, "%s%s", names[i].name, names[i].suffix);
    if (strcmp(way, "linked") == 0)
        return linked[i];
    if (strcmp(way, "dlsym") == 0)
        return dlsym(library, whole);
    unsigned long long flags =
        strcmp(names[i].suffix, "_ptsz") == 0 ? ZR_CU_PROC_PER_THREAD_STREAM : ZR_CU_PROC_LEGACY_STREAM;
    if (flags == ZR_CU_PROC_PER_THREAD_STREAM)
        return dlsym(library, whole); /* the rows for the legacy stream would go another way */
    *(void **)&proc = dlsym(library, "cuGetProcAddress");
    *(void **)&proc2 = dlsym(library, "cuGetProcAddress_v2");
    if (strcmp(way, "proc2") == 0)
        proc2(names[i].name, &function, version_of(names[i].name, names[i].suffix), flags, &status);
    else
        proc(names[i].name, &function, version_of(names[i].name, names[i].suffix), flags);
    return function;
}

static void load(const char *way)
{
    void *library = strcmp(way, "linked") == 0 ? NULL : dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; i < NAMES_COUNT; i++)
        ((void **)&cu)[i] = find(way, library, i);
    if (!cu.init || !cu.mem_alloc) {
        printf("no driver: %s\n", dlerror());
        exit(1);
    }
}

static zr_cu_context primary;

static zr_cu_result start(void)
{
    zr_cu_result code = cu.init(0);
    if (code == ZR_CU_SUCCESS)
        code = cu.context_retain(&primary, 0);
    return code == ZR_CU_SUCCESS ? cu.context_set(primary) : code;
}

static size_t free_bytes(void)
{
    size_t bytes = 0;
    cu.mem_info(&bytes, NULL);
    return bytes;
}

static unsigned seed = 1;
static unsigned draw(unsigned end)
{
    seed = seed * 1103515245u + 12345u;
    return (seed >> 8) % end;
}

/* True if all bytes have the value, looked at after `stream`. */
static int has(zr_cu_address address, size_t bytes, unsigned char value, zr_cu_stream stream)
{
    unsigned char *copy = malloc(bytes);
    int fine = cu.copy((uintptr_t)copy, address, bytes, stream) == 0 && cu.stream_synchronize(stream) == 0;
    fine = fine && copy[0] == value && memcmp(copy, copy + 1, bytes - 1) == 0;
    free(copy);
    return fine;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static void attributes(zr_cu_address base, size_t bytes)
{
    zr_cu_address start_of = 0, at = base + bytes / 2;
    size_t length = 0;
    unsigned type = 0;
    unsigned long long id = 0, other_id = 0;
    int ordinal = -1;
    zr_cu_context context = NULL;
    zr_cu_pool pool;
    CHECK(cu.address_range(&start_of, &length, at) == 0 && start_of == base && length == bytes);
    CHECK(cu.address_range(NULL, &length, base) == 0 && cu.address_range(&start_of, NULL, base) == 0);
    CHECK(cu.pointer_attribute(&type, ZR_CU_POINTER_MEMORY_TYPE, at) == 0 && type == 2);
    CHECK(cu.pointer_attribute(&context, ZR_CU_POINTER_CONTEXT, at) == 0 && context == primary);
    CHECK(cu.pointer_attribute(&id, ZR_CU_POINTER_BUFFER_ID, base) == 0);
    printf("a pool %u\n", cu.pointer_attribute(&pool, ZR_CU_POINTER_POOL, at));
    zr_cu_pointer_attribute which[] = {ZR_CU_POINTER_RANGE_START, ZR_CU_POINTER_RANGE_BYTES,
                                       ZR_CU_POINTER_DEVICE_ORDINAL, ZR_CU_POINTER_BUFFER_ID};
    void *values[] = {&start_of, &length, &ordinal, &other_id};
    start_of = length = 0;
    CHECK(cu.pointer_attributes(4, which, values, at) == 0 && start_of == base && length == bytes &&
          ordinal == 0 && id == other_id);
    /* Nothing of it is memory that a library could map or register by a handle. */
    unsigned long long types = 7;
    int ipc = 0;
    zr_cu_memory memory;
    CHECK(cu.pointer_attribute(&types, ZR_CU_POINTER_HANDLE_TYPES, at) == 0 && types == 0);
    CHECK(cu.pointer_attribute(&ipc, ZR_CU_POINTER_IPC_CAPABLE, at) == 0 && ipc);
    CHECK(cu.pointer_attribute(&start_of, ZR_CU_POINTER_MAPPING_START, at) == 0 && start_of == base);
    CHECK(cu.pointer_attribute(&length, ZR_CU_POINTER_MAPPING_BYTES, at) == 0 && length == bytes);
    CHECK(cu.pointer_attribute(&other_id, ZR_CU_POINTER_MEMORY_ID, base) == 0 &&
          cu.pointer_attribute(&types, ZR_CU_POINTER_MEMORY_ID, base + bytes - 1) == 0 && types == other_id);
    printf("a handle %u\n", cu.retain_handle(&memory, (void *)(uintptr_t)at));
    zr_cu_address again;
    if (cu.mem_free(base) == 0 && cu.mem_alloc(&again, bytes) == 0) {
        CHECK(cu.pointer_attribute(&other_id, ZR_CU_POINTER_BUFFER_ID, again) == 0 && other_id != id);
        CHECK(cu.mem_free(again) == 0);
    }
}

/* A synchronous copy within the device returns before it has ended, unless the memory is to be registered. */
static void synchronous_copies(void)
{
    int on = 1, is = 0;
    zr_cu_address block;
    CHECK(cu.mem_alloc(&block, 8 * MIB) == 0 && cu.fill_now(block, 4, 8 * MIB) == 0);
    CHECK(cu.pointer_attribute(&is, ZR_CU_POINTER_SYNC_MEMOPS, block) == 0 && !is);
    CHECK(cu.pointer_set(&on, ZR_CU_POINTER_SYNC_MEMOPS, block + 5) == 0);
    CHECK(cu.pointer_attribute(&is, ZR_CU_POINTER_SYNC_MEMOPS, block) == 0 && is);
    CHECK(cu.copy_now(block, block + 4 * MIB, MIB) == 0 && cu.stream_query(NULL) == 0);
    CHECK(cu.mem_free(block) == 0);
}

static void row_calls(const char *argument)
{
    static const size_t sizes[] = {1, 255, 512, 513, 4096, MIB, 2 * MIB, 3 * MIB + 5, 64 * MIB};
    zr_cu_address address, host_device;
    size_t before = free_bytes(), pitch = 0, total = 0;
    void *host;
    int stack;
    (void)argument;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK(cu.mem_alloc(&address, sizes[i]) == 0 && address % 256 == 0);
        CHECK(cu.fill_now(address, (unsigned char)i, sizes[i]) == 0 &&
              has(address, sizes[i], (unsigned char)i, NULL));
        attributes(address, sizes[i]);
    }
    printf("nothing: %u %u\n", cu.mem_alloc(&address, 0), cu.mem_alloc(NULL, 1));
    printf("free of nothing %u\n", cu.mem_free(0));
    CHECK(cu.mem_alloc(&address, 5000) == 0 && cu.mem_free(address) == 0);
    printf("twice %u\n", cu.mem_free(address));
    CHECK(cu.mem_alloc(&address, 5000) == 0);
    printf("inside %u, foreign %u\n", cu.mem_free(address + 256), cu.mem_free((uintptr_t)&stack));
    CHECK(cu.mem_free(address) == 0);
    printf("info of nothing %u\n", cu.mem_info(NULL, NULL));
    CHECK(cu.total_mem(&total, 0) == 0);
    printf("total %zu\n", total);
    CHECK(cu.mem_alloc_pitch(&address, &pitch, 1000, 7, 4) == 0);
    printf("pitch %zu\n", pitch);
    CHECK(cu.mem_free(address) == 0);
    printf("pitch of 3 %u\n", cu.mem_alloc_pitch(&address, &pitch, 1000, 7, 3));
    CHECK(cu.alloc_managed(&address, 5000, 1) == 0 && cu.mem_free(address) == 0);
    CHECK(cu.host_alloc(&host, 5000, 0) == 0 && cu.host_device_pointer(&host_device, host, 0) == 0 &&
          cu.host_free(host) == 0);
    CHECK(cu.mem_alloc(&address, MIB) == 0 && cu.context_set(NULL) == 0);
    printf("no context: %u %u %u %u\n", cu.mem_alloc(&host_device, 5), cu.mem_free(address),
           cu.mem_info(&total, &total), cu.address_range(&host_device, &total, address));
    CHECK(cu.context_set(primary) == 0 && cu.mem_free(address) == 0);
    printf("left %zd\n", (ssize_t)(before - free_bytes()));
    synchronous_copies();
}

static void *use_memory(void *argument)
{
    zr_cu_address held[16] = {0};
    size_t bytes[16] = {0};
    unsigned state = (unsigned)(uintptr_t)argument * 2654435761u;
    CHECK(cu.context_set(primary) == 0);
    for (int i = 0; i < 300; i++) {
        state = state * 1103515245u + 12345u;
        unsigned at = state >> 8 & 15;
        if (held[at]) {
            CHECK(has(held[at], bytes[at], (unsigned char)(uintptr_t)argument, NULL));
            CHECK(cu.mem_free(held[at]) == 0);
            held[at] = 0;
        } else {
            bytes[at] = 1 + (state >> 12) % 40000;
            CHECK(cu.mem_alloc(&held[at], bytes[at]) == 0);
            CHECK(cu.fill(held[at], (unsigned char)(uintptr_t)argument, bytes[at], NULL) == 0);
        }
    }
    for (int i = 0; i < 16; i++)
        CHECK(!held[i] || cu.mem_free(held[i]) == 0);
    return NULL;
}

static void row_threads(const char *argument)
{
    pthread_t threads[8];
    size_t before = free_bytes();
    (void)argument;
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, use_memory, (void *)(i + 1));
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    printf("left %zd\n", (ssize_t)(before - free_bytes()));
}

/* Frees while other streams work on the memory: what comes next there must not be overwritten. */
static void row_streams(const char *argument)
{
    enum { STREAMS = 6 };
    zr_cu_stream streams[STREAMS] = {NULL, (zr_cu_stream)2};
    size_t before;
    zr_cu_address warm;
    CHECK(cu.mem_alloc(&warm, 4096) == 0 && cu.mem_free(warm) == 0);
    before = free_bytes();
    for (int i = 2; i < STREAMS; i++)
        CHECK(cu.stream_new(&streams[i], i % 2 ? ZR_CU_STREAM_NON_BLOCKING : 0) == 0);
    for (int i = 0; i < (argument ? atoi(argument) : 300); i++) {
        size_t bytes = 1 + draw(3 * MIB);
        zr_cu_stream first = streams[draw(STREAMS)], second = streams[draw(STREAMS)];
        zr_cu_address old, new;
        if (cu.mem_alloc(&old, bytes) != 0)
            break;
        for (unsigned n = 1 + draw(4); n > 0; n--)
            CHECK(cu.fill(old, 0x55, bytes, first) == 0);
        if (i % 5 == 4 && first != streams[0] && first != streams[1]) {
            for (int k = 2; k < STREAMS; k++)
                if (streams[k] == first) {
                    CHECK(cu.stream_end(first) == 0); /* with work left */
                    CHECK(cu.stream_new_priority(&streams[k], k % 2 ? ZR_CU_STREAM_NON_BLOCKING : 0, 0) == 0);
                    second = second == first ? streams[k] : second;
                }
        }
        CHECK(cu.mem_free(old) == 0);
        CHECK(cu.mem_alloc(&new, bytes) == 0);
        CHECK(cu.fill(new, 0xaa, bytes, second) == 0);
        CHECK(has(new, bytes, 0xaa, second));
        CHECK(cu.context_synchronize() == 0 && has(new, bytes, 0xaa, second));
        CHECK(cu.mem_free(new) == 0);
    }
    for (int i = 2; i < STREAMS; i++)
        CHECK(cu.stream_end(streams[i]) == 0);
    CHECK(cu.context_synchronize() == 0);
    printf("left %zd\n", (ssize_t)(before - free_bytes()));
}

static zr_cu_result (*fill_own)(zr_cu_address, unsigned char, size_t, zr_cu_stream);

struct lent {
    zr_cu_address address;
    size_t bytes;
    int by_name; /* CU_STREAM_PER_THREAD in the legacy form, else the per-thread form */
};

static void fill_in_own(const struct lent *lent, unsigned char value, unsigned times)
{
    for (; times > 0; times--)
        CHECK((lent->by_name ? cu.fill(lent->address, value, lent->bytes, (zr_cu_stream)2)
                             : fill_own(lent->address, value, lent->bytes, NULL)) == 0);
}

static void *work_in_own(void *argument)
{
    CHECK(cu.context_set(primary) == 0);
    fill_in_own(argument, 0x55, 6);
    return NULL;
}

/* Memory that is freed while another thread's own default stream works on it. No other stream exists: that
 * threads have such streams shows in their use alone, or in what a library is linked with that is loaded
 * later. */
static void row_own(const char *argument)
{
    int by_name = strcmp(argument, "name") == 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&fill_own = dlsym(library, "cuMemsetD8Async_ptsz");
    if (strcmp(argument, "linked") == 0) {
        zr_cu_address first;
        CHECK(cu.mem_alloc(&first, MIB) == 0 && cu.mem_free(first) == 0);
        *(void **)&fill_own = dlsym(dlopen(getenv("OWN_STREAM"), RTLD_NOW), "fill_in_own_stream");
    }
    if (strcmp(argument, "asked") == 0)
        cu.proc_address("cuMemsetD8Async", (void **)&fill_own, 7000, ZR_CU_PROC_PER_THREAD_STREAM);
    for (int i = 0; i < 40; i++) {
        struct lent old = {.bytes = 1 + draw(3 * MIB), .by_name = by_name}, new = old;
        pthread_t thread;
        CHECK(cu.mem_alloc(&old.address, old.bytes) == 0);
        pthread_create(&thread, NULL, work_in_own, &old);
        pthread_join(thread, NULL);
        CHECK(cu.mem_free(old.address) == 0 && cu.mem_alloc(&new.address, new.bytes) == 0);
        fill_in_own(&new, 0xaa, 1);
        CHECK(cu.context_synchronize() == 0 && has(new.address, new.bytes, 0xaa, NULL));
        CHECK(cu.mem_free(new.address) == 0);
    }
}

/* The same in the order of streams, which events tie together. */
static void row_async(const char *argument)
{
    zr_cu_stream streams[3];
    zr_cu_event event;
    size_t before = free_bytes();
    (void)argument;
    for (int i = 0; i < 3; i++)
        CHECK(cu.stream_new(&streams[i], ZR_CU_STREAM_NON_BLOCKING) == 0);
    CHECK(cu.event_create(&event, ZR_CU_EVENT_DISABLE_TIMING) == 0);
    for (int i = 0; i < 200; i++) {
        size_t bytes = 1 + draw(3 * MIB);
        zr_cu_stream own = streams[draw(3)], other = i % 3 ? streams[draw(3)] : (zr_cu_stream)2;
        zr_cu_address block, next;
        CHECK(cu.alloc_async(&block, bytes, own) == 0);
        CHECK(cu.fill(block, 0x55, bytes, own) == 0);
        CHECK(cu.event_record(event, own) == 0 && cu.stream_wait_event(other, event, 0) == 0);
        for (unsigned n = 1 + draw(4); n > 0; n--)
            CHECK(cu.fill(block, 0x66, bytes, other) == 0);
        if (i % 7 == 0)
            CHECK(cu.context_synchronize() == 0 && cu.mem_free(block) == 0); /* which waits for nothing */
        else
            CHECK((other == (zr_cu_stream)2 ? cu.free_async_ptsz(block, NULL)
                                            : cu.free_async(block, other)) == 0);
        zr_cu_stream third = streams[draw(3)];
        CHECK(cu.alloc_async(&next, bytes, third) == 0);
        CHECK(cu.fill(next, 0xaa, bytes, third) == 0 && has(next, bytes, 0xaa, third));
        CHECK(cu.context_synchronize() == 0 && has(next, bytes, 0xaa, third));
        CHECK(cu.free_async(next, third) == 0);
    }
    printf("nothing %u, foreign %u\n", cu.alloc_async(NULL, 5, NULL), cu.free_async((uintptr_t)&event, NULL));
    CHECK(cu.context_synchronize() == 0 && cu.event_destroy(event) == 0);
    zr_cu_pool pool;
    CHECK(cu.pool_default(&pool, 0) == 0 && cu.pool_trim(pool, 0) == 0);
    printf("left %zd\n", (ssize_t)(before - free_bytes()));
}

static uint64_t pool_value(zr_cu_pool pool, zr_cu_pool_attribute which)
{
    uint64_t value = 0;
    CHECK(cu.pool_get(pool, which, &value) == 0);
    return value;
}

static void row_pools(const char *argument)
{
    zr_cu_pool_properties properties = {.type = ZR_CU_ALLOCATION_PINNED,
                                        .location = {ZR_CU_LOCATION_DEVICE, 0}};
    zr_cu_pool pool, found, bounded;
    zr_cu_address blocks[4], address;
    uint64_t threshold = 1 << 30, zero = 0;
    (void)argument;
    CHECK(cu.pool_create(&pool, &properties) == 0);
    properties.max_bytes = 64 * MIB; /* a promise that the driver keeps */
    CHECK(cu.pool_create(&bounded, &properties) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(cu.alloc_from_pool(&blocks[i], 4 * MIB, pool, NULL) == 0);
    CHECK(cu.pointer_attribute(&found, ZR_CU_POINTER_POOL, blocks[1] + 5) == 0 && found == pool);
    CHECK(cu.pool_set(pool, ZR_CU_POOL_RELEASE_THRESHOLD, &threshold) == 0);
    printf("threshold %llu\n", (unsigned long long)pool_value(pool, ZR_CU_POOL_RELEASE_THRESHOLD));
    printf("used %llu\n", (unsigned long long)pool_value(pool, ZR_CU_POOL_USED_NOW));
    CHECK(pool_value(pool, ZR_CU_POOL_RESERVED_NOW) >= 16 * MIB);
    CHECK(cu.free_async(blocks[0], NULL) == 0 && cu.free_async(blocks[1], NULL) == 0);
    CHECK(cu.context_synchronize() == 0);
    printf("used %llu, at most %llu\n", (unsigned long long)pool_value(pool, ZR_CU_POOL_USED_NOW),
           (unsigned long long)pool_value(pool, ZR_CU_POOL_USED_HIGH));
    CHECK(cu.pool_set(pool, ZR_CU_POOL_USED_HIGH, &zero) == 0);
    printf("at most %llu\n", (unsigned long long)pool_value(pool, ZR_CU_POOL_USED_HIGH));
    CHECK(cu.pool_trim(pool, 0) == 0);
    CHECK(cu.pool_make_current(0, pool) == 0 && cu.alloc_async(&address, MIB, NULL) == 0);
    CHECK(cu.pointer_attribute(&found, ZR_CU_POINTER_POOL, address) == 0 && found == pool);
    CHECK(cu.free_async(address, NULL) == 0);
    CHECK(cu.alloc_from_pool(&address, MIB, bounded, NULL) == 0);
    CHECK(cu.pointer_attribute(&found, ZR_CU_POINTER_POOL, address) == 0 && found == bounded);
    CHECK(cu.free_async(address, NULL) == 0 && cu.pool_destroy(bounded) == 0);
    CHECK(cu.pool_destroy(pool) == 0); /* with two blocks left */
    CHECK(cu.fill(blocks[2], 7, 4 * MIB, NULL) == 0 && has(blocks[2], 4 * MIB, 7, NULL));
    CHECK(cu.free_async(blocks[2], NULL) == 0 && cu.mem_free(blocks[3]) == 0);
}

/* Several contexts and devices. */
static void row_contexts(const char *argument)
{
    zr_cu_context own, second;
    zr_cu_address here, there, block, late;
    zr_cu_stream stream;
    int can = 0;
    (void)argument;
    CHECK(cu.mem_alloc(&here, MIB) == 0);
    CHECK(cu.context_new(&own, 0, 0) == 0); /* is current from here on */
    CHECK(cu.mem_alloc(&block, MIB) == 0 && cu.fill_now(here, 3, MIB) == 0 && has(here, MIB, 3, NULL));
    CHECK(cu.stream_new(&stream, ZR_CU_STREAM_NON_BLOCKING) == 0);
    for (int i = 0; i < 20; i++) {
        for (int n = 0; n < 4; n++)
            CHECK(cu.fill(block, 0x55, MIB, stream) == 0);
        CHECK(cu.context_set(primary) == 0 && cu.mem_free(block) == 0); /* from another context */
        CHECK(cu.mem_alloc(&late, MIB) == 0 && cu.fill_now(late, 0xaa, MIB) == 0);
        CHECK(cu.context_set(own) == 0 && cu.context_synchronize() == 0);
        CHECK(cu.context_set(primary) == 0 && has(late, MIB, 0xaa, NULL) && cu.mem_free(late) == 0);
        CHECK(cu.context_set(own) == 0 && cu.mem_alloc(&block, MIB) == 0);
    }
    CHECK(cu.mem_free(block) == 0 && cu.context_set(primary) == 0);
    size_t before = free_bytes();
    CHECK(cu.context_set(own) == 0 && cu.mem_alloc(&block, 40 * MIB) == 0 && cu.mem_free(here) == 0);
    CHECK(cu.context_end(own) == 0); /* and what was allocated in it */
    CHECK(cu.context_set(primary) == 0);
    printf("after the context %zd, a free %u\n", (ssize_t)(before - free_bytes()) / (4 * MIB),
           cu.mem_free(block));
    CHECK(cu.can_access_peer(&can, 1, 0) == 0);
    CHECK(cu.context_retain(&second, 1) == 0 && cu.context_set(second) == 0);
    CHECK(cu.mem_alloc(&there, MIB) == 0 && cu.fill_now(there, 9, MIB) == 0 && has(there, MIB, 9, NULL));
    int ordinal = -1;
    CHECK(cu.pointer_attribute(&ordinal, ZR_CU_POINTER_DEVICE_ORDINAL, there) == 0 && ordinal == 1);
    CHECK(cu.context_set(primary) == 0 && cu.mem_free(there) == 0);
    CHECK(cu.primary_reset(1) == 0 && cu.context_retain(&second, 1) == 0 && cu.context_set(second) == 0);
    CHECK(cu.mem_alloc(&there, MIB) == 0 && cu.mem_free(there) == 0 && cu.context_set(primary) == 0);
}

/* A device's work on another one's memory, what there is and what comes later. */
static void row_peers(const char *argument)
{
    zr_cu_context second;
    zr_cu_address here, later;
    (void)argument;
    CHECK(cu.mem_alloc(&here, MIB) == 0 && cu.fill_now(here, 7, MIB) == 0 && cu.context_synchronize() == 0);
    CHECK(cu.context_retain(&second, 1) == 0 && cu.context_set(second) == 0);
    printf("before: %u\n", cu.fill_now(here, 1, MIB));
    CHECK(cu.context_peer(primary, 0) == 0);
    CHECK(cu.fill_now(here, 8, MIB) == 0 && cu.context_synchronize() == 0 && has(here, MIB, 8, NULL));
    CHECK(cu.context_set(primary) == 0 && cu.mem_alloc(&later, 40 * MIB) == 0 && has(here, MIB, 8, NULL));
    CHECK(cu.context_set(second) == 0 && cu.fill_now(later, 9, 40 * MIB) == 0);
    printf("again: %u, the device itself: %u\n", cu.context_peer(primary, 0), cu.context_peer(second, 0));
    CHECK(cu.context_synchronize() == 0 && cu.mem_free(here) == 0 && cu.mem_free(later) == 0);
}

/* Copies between devices, which a program need not enable. */
static void row_neighbours(const char *argument)
{
    zr_cu_context second;
    zr_cu_address here, there;
    (void)argument;
    CHECK(cu.mem_alloc(&here, MIB) == 0 && cu.fill_now(here, 7, MIB) == 0 && cu.context_synchronize() == 0);
    CHECK(cu.context_retain(&second, 1) == 0 && cu.context_set(second) == 0);
    CHECK(cu.mem_alloc(&there, MIB) == 0 && cu.copy_now(there, here, MIB) == 0 && has(there, MIB, 7, NULL));
    CHECK(cu.fill_now(there, 6, MIB) == 0 && cu.context_synchronize() == 0);
    CHECK(cu.context_set(primary) == 0 && cu.copy_now(here, there, MIB) == 0 && has(here, MIB, 6, NULL));
    CHECK(cu.mem_free(here) == 0 && cu.mem_free(there) == 0);
}

static void row_full(const char *argument)
{
    enum { BYTES = 48 * MIB };
    zr_cu_address blocks[400], whole;
    size_t count = 0, total, before = free_bytes();
    zr_cu_result code = 0;
    (void)argument;
    while (count < 400 && (code = cu.mem_alloc(&blocks[count], BYTES)) == 0)
        count++;
    CHECK(cu.mem_info(NULL, &total) == 0);
    printf("full: %u, %s\n", code,
           count >= total * 9 / 10 / BYTES ? "as many as there is room for" : "too early");
    for (size_t i = 0; i < count; i++)
        CHECK(cu.mem_free(blocks[i]) == 0);
    CHECK(cu.mem_alloc(&whole, total / 10 * 9) == 0 && cu.mem_free(whole) == 0);
    printf("left %zd\n", (ssize_t)(before - free_bytes()));
}

/* Some of everything, for calls that fail: whatever they say, what was given can be given back. */
static void row_faults(const char *argument)
{
    zr_cu_address blocks[8] = {0}, late = 0;
    zr_cu_stream stream = NULL;
    (void)argument;
    zr_cu_result code = cu.stream_new(&stream, ZR_CU_STREAM_NON_BLOCKING);
    for (size_t i = 0; i < 8; i++) {
        zr_cu_result got = i % 4 == 3 ? cu.alloc_async(&blocks[i], (i + 1) * MIB, NULL)
                                      : cu.mem_alloc(&blocks[i], (i + 1) * MIB - 7);
        if (got != 0)
            blocks[i] = 0;
        code = code ? code : got;
    }
    for (size_t i = 0; i < 8; i++)
        for (int tries = 0; blocks[i] && tries < 3; tries++)
            if ((i % 4 == 3 ? cu.free_async(blocks[i], NULL) : cu.mem_free(blocks[i])) == 0)
                blocks[i] = 0;
    for (int tries = 0; tries < 3 && cu.mem_alloc(&late, 30 * MIB) != 0; tries++)
        late = 0;
    CHECK(late && cu.mem_free(late) == 0);
    if (cu.stream_query && stream)
        cu.stream_end(stream);
    for (size_t i = 0; i < 8; i++)
        CHECK(!blocks[i]);
    printf("%s\n", code ? "refused" : "clean");
}

static void row_fork(const char *argument)
{
    zr_cu_address address;
    int status = -1;
    (void)argument;
    CHECK(cu.mem_alloc(&address, MIB) == 0 && cu.fill(address, 1, MIB, NULL) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        zr_cu_address own = 0;
        size_t bytes;
        printf("child: %u %u %u\n", cu.mem_free(address), cu.mem_alloc(&own, 5), cu.mem_info(&bytes, &bytes));
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(has(address, MIB, 1, NULL) && cu.mem_free(address) == 0);
}

/* That this process has open. */
static unsigned descriptors_count(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* An open for which the driver refuses a call leaves what it found. What the driver itself does for its own
 * handles has no such calls. */
static void refuse_opens(zr_cu_ipc_handle handle)
{
    static const char *const calls[] = {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
                                        "cuMemSetAccess", "cuCtxPushCurrent"};
    const struct zr_emulator *emulator = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "zr_emulator");
    zr_cu_address address;
    for (unsigned i = 0; i < 5 && memcmp(&handle, "zr-cuda1", 8) == 0; i++)
        for (unsigned nth = 1; nth < 4; nth++) {
            unsigned descriptors = descriptors_count();
            struct zr_emulator_state before = emulator->state();
            emulator->fail(&(struct zr_emulator_fault){.call = calls[i], .nth = nth, .code = 2});
            zr_cu_result code = cu.ipc_open(&address, handle, 1);
            emulator->fail(&(struct zr_emulator_fault){.nth = 0});
            CHECK(code != 0 || cu.ipc_close(address) == 0);
            struct zr_emulator_state after = emulator->state();
            CHECK(descriptors_count() == descriptors && after.memories_count == before.memories_count);
            CHECK(after.mappings_count == before.mappings_count && after.stack_depth == before.stack_depth);
        }
}

/* Two processes: the parent of both has not begun with CUDA. */
static void row_ipc(const char *argument)
{
    struct {
        zr_cu_ipc_handle handle;
        size_t offset;
    } message;
    int to_child[2], to_parent[2], status = -1;
    enum { FEW = 8 };
    zr_cu_address others[3], address = 0, twice = 0;
    char byte = 0;
    (void)argument;
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(to_child[1]);
        close(to_parent[0]);
        CHECK(start() == 0 && read(to_child[0], &message, sizeof message) == sizeof message);
        CHECK(cu.ipc_open(&address, message.handle, 1) == 0 && cu.ipc_open(&twice, message.handle, 1) == 0);
        CHECK(address == twice && has(address, 40 * MIB, 0x11, NULL));
        CHECK(cu.fill_now(address + MIB, 0x22, MIB) == 0 && cu.context_synchronize() == 0);
        CHECK(cu.ipc_close(address) == 0 && has(address, MIB, 0x11, NULL) && cu.ipc_close(twice) == 0);
        printf("closed: %u\n", cu.ipc_close(address));
        refuse_opens(message.handle);
        unsigned opened = descriptors_count();
        printf("flags: %u\n", cu.ipc_open(&address, message.handle, 0));
        /* Behind the magic: the process, and its number in that; none has this one. */
        ((char *)&message.handle)[25] ^= 64;
        CHECK(memcmp(&message.handle, "zr-cuda1", 8) != 0 || cu.ipc_open(&address, message.handle, 1) != 0);
        ((char *)&message.handle)[25] ^= 64;
        /* Behind the process: the secret, which a block that is not exported lacks. */
        memset((char *)&message.handle + 32, 0, sizeof(uint64_t));
        CHECK(memcmp(&message.handle, "zr-cuda1", 8) != 0 || cu.ipc_open(&address, message.handle, 1) != 0);
        CHECK(descriptors_count() == opened);
        CHECK(write(to_parent[1], &byte, 1) == 1);
        fflush(stdout);
        _exit(failed);
    }
    close(to_child[0]);
    close(to_parent[1]);
    CHECK(start() == 0);
    for (int i = 0; i < 3; i++)
        CHECK(cu.mem_alloc(&others[i], 40 * MIB) == 0);
    CHECK(cu.fill_now(others[1], 0x11, 40 * MIB) == 0 && cu.context_synchronize() == 0);
    unsigned descriptors = descriptors_count();
    CHECK(cu.ipc_get(&message.handle, others[1]) == 0 && descriptors_count() < descriptors + FEW);
    CHECK(write(to_child[1], &message, sizeof message) == sizeof message);
    CHECK(read(to_parent[0], &byte, 1) == 1);
    CHECK(has(others[1], MIB, 0x11, NULL) && has(others[1] + MIB, MIB, 0x22, NULL) &&
          has(others[1] + 2 * MIB, MIB, 0x11, NULL));
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(descriptors_count() < descriptors + FEW);
    printf("own: %u\n", cu.ipc_open(&address, message.handle, 1));
    for (int i = 0; i < 3; i++)
        CHECK(cu.mem_free(others[i]) == 0);
}

static void row_info(const char *argument)
{
    zr_cu_address address = 0;
    size_t bytes, total, of_device;
    zr_cu_result code = argument ? cu.mem_alloc(&address, strtoull(argument, NULL, 0)) : 0;
    CHECK(cu.mem_info(&bytes, &total) == 0 && cu.total_mem(&of_device, 0) == 0);
    printf("%u %zu %zu %zu\n", code, bytes / MIB, total / MIB, of_device / MIB);
}

/* A free during a capture waits for its end. */
static void row_capture(const char *argument)
{
    zr_cu_stream captured, worker;
    zr_cu_address old, new, node;
    zr_cu_graph graph = NULL;
    zr_cu_graph_exec exec = NULL;
    zr_cu_capture_mode mode = ZR_CU_CAPTURE_RELAXED;
    enum { BYTES = 3 * MIB };
    (void)argument;
    CHECK(cu.stream_new(&captured, ZR_CU_STREAM_NON_BLOCKING) == 0);
    CHECK(cu.stream_new(&worker, ZR_CU_STREAM_NON_BLOCKING) == 0);
    CHECK(cu.mem_alloc(&old, BYTES) == 0 && cu.mem_alloc(&new, BYTES) == 0);
    CHECK(cu.capture_mode(&mode) == 0);
    CHECK(cu.capture_begin(captured, ZR_CU_CAPTURE_GLOBAL) == 0);
    CHECK(cu.fill(new, 5, BYTES, captured) == 0);
    CHECK(cu.fill(old, 0x55, BYTES, worker) == 0);
    CHECK(cu.alloc_async(&node, BYTES, captured) == 0 && cu.fill(node, 1, BYTES, captured) == 0 &&
          cu.free_async(node, captured) == 0);
    for (int i = 0; i < 20; i++) {
        zr_cu_address more;
        CHECK(cu.mem_alloc(&more, BYTES) == 0 && cu.fill(more, 0x55, BYTES, worker) == 0 &&
              cu.mem_free(more) == 0);
    }
    CHECK(cu.mem_free(old) == 0);
    printf("capture %u\n", cu.capture_end(captured, &graph));
    CHECK(graph && cu.graph_instantiate(&exec, graph, 0) == 0 && cu.graph_launch(exec, captured) == 0);
    CHECK(cu.mem_alloc(&old, BYTES) == 0 && cu.fill(old, 0xaa, BYTES, captured) == 0);
    CHECK(has(old, BYTES, 0xaa, captured) && has(new, BYTES, 5, captured));
    CHECK(cu.context_synchronize() == 0 && has(old, BYTES, 0xaa, captured));
    CHECK(cu.graph_exec_destroy(exec) == 0 && cu.graph_destroy(graph) == 0);
    CHECK(cu.mem_free(old) == 0 && cu.mem_free(new) == 0);
}

static int is_called(void *function, const char *name)
{
    Dl_info info;
    return function && dladdr(function, &info) && info.dli_sname && strcmp(info.dli_sname, name) == 0;
}

/* The version that was asked for is what comes. */
static void row_versions(const char *argument)
{
    void *old = NULL, *now = NULL, *none = (void *)1, *own = NULL;
    zr_cu_proc_status status;
    (void)argument;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(cu.proc_address_v2("cuCtxCreate", &old, 4000, 1, &status) == 0 && is_called(old, "cuCtxCreate_v2"));
    CHECK(cu.proc_address_v2("cuCtxCreate", &now, 11040, 1, &status) == 0 &&
          is_called(now, "cuCtxCreate_v3"));
    CHECK(cu.proc_address_v2("cuMemAllocAsync", &old, 11020, 2, &status) == 0 &&
          is_called(old, "cuMemAllocAsync_ptsz"));
    CHECK(cu.proc_address_v2("cuMemAllocAsync", &now, 11020, 1, &status) == 0 &&
          is_called(now, "cuMemAllocAsync"));
    printf("none: %u", cu.proc_address_v2("cuNothing", &none, 12000, 0, &status));
    printf(", %d\n", status);
    CHECK(cu.proc_address_v2("cuGetProcAddress", &own, 12000, 0, &status) == 0 &&
          own == dlsym(library, "cuGetProcAddress_v2"));
    CHECK(dlsym(library, "cuNothing") == NULL && dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "puts") == (void *)puts && dlsym(RTLD_NEXT, "puts") == (void *)puts);
    CHECK(dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5") != NULL);
}

static const struct {
    const char *name;
    void (*run)(const char *argument);
    int starts_itself;
} rows[] = {{"calls", row_calls, 0},       {"threads", row_threads, 0},
            {"streams", row_streams, 0},   {"own", row_own, 0},
            {"async", row_async, 0},       {"pools", row_pools, 0},
            {"contexts", row_contexts, 0}, {"full", row_full, 0},
            {"faults", row_faults, 0},     {"fork", row_fork, 0},
            {"ipc", row_ipc, 1},           {"info", row_info, 0},
            {"capture", row_capture, 0},   {"versions", row_versions, 0},
            {"peers", row_peers, 0},       {"neighbours", row_neighbours, 0}};

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    alarm(120); /* the two processes of one row wait for each other */
    load(argv[1]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, argv[2]) != 0)
            continue;
        zr_cu_result code = rows[i].starts_itself ? 0 : start();
        if (code != 0) {
            printf("no start: %u\n", code);
            return 0;
        }
        rows[i].run(argv[3]);
        printf("%s\n", failed ? "failed" : "done");
        return failed;
    }
    return 2;
}
