/* cuda_test.c: what only the CUDA backend has: other people's contexts, fences before unmaps, events in
 * turns, peers and pinned memory. On the emulated driver; the rules it enforces are in cuda_emulator_test.c,
 * a driver that refuses in cuda_refusals_test.c, memory shared between processes in cuda_share_test.c. */
#include "alloc/backend/lender.h"
#include "alloc/base/option.h"
#include "tests/support/cuda/cuda_pieces.h"

#define FOREVER 1000000 /* ticks: until somebody waits */

static zr_cu_result (*get_current)(zr_cu_context *);
static zr_cu_result (*stream_create)(zr_cu_stream *, unsigned int);
static zr_cu_result (*stream_destroy)(zr_cu_stream);

static void find_driver(void)
{
    void *library = dlopen(cuda_emulator_path(), RTLD_NOW);
    zr_cuda_driver_get(&cu);
    get_current = dlsym(library, "cuCtxGetCurrent");
    stream_create = dlsym(library, "cuStreamCreate");
    stream_destroy = dlsym(library, "cuStreamDestroy_v2");
}

/* ---- Options ------------------------------------------------------------------------------------------- */

static void test_options(void)
{
    static const int stranger[] = {5}, far[] = {1};
    int many[63];
    for (size_t i = 0; i < sizeof many / sizeof *many; i++)
        many[i] = 1;
    zr_backend *backend;
    struct refusal {
        struct zr_cuda_options options;
        zr_result result;
        const char *what;
    } refusals[] = {
        {{.device = 2}, ZR_ERR_INVALID, "a device that is not there"},
        {{.device = -1}, ZR_ERR_INVALID, "a negative device"},
        {{.kind = (enum zr_cuda_kind)7}, ZR_ERR_INVALID, "no kind of memory"},
        {{.granule_bytes = 3 << 20}, ZR_ERR_INVALID, "a granule of 3 MiB"},
        {{.granule_bytes = 1 << 20}, ZR_ERR_INVALID, "a granule below the granularity"},
        {{.kind = ZR_CUDA_HOST, .numa_node = 9}, ZR_ERR_INVALID, "a node that is not there"},
        {{.peers = stranger, .peers_count = 1}, ZR_ERR_INVALID, "a peer that is not there"},
        {{.peers_count = 1}, ZR_ERR_INVALID, "peers without a list"},
        {{.peers = many, .peers_count = 63}, ZR_ERR_INVALID, "a peer more than there can be"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        zr_result result = zr_backend_cuda_create(&backend, &refusals[i].options);
        tap_ok(result == refusals[i].result && !backend, "%s: %s", refusals[i].what, zr_last_error());
    }
    tap_result(zr_backend_cuda_create(NULL, NULL), ZR_ERR_INVALID, "to nowhere");
    backend = create(&(struct zr_cuda_options){.peers = many, .peers_count = 62});
    tap_ok(backend, "as many peers as there can be");
    zr_backend_destroy(backend);
    backend = create(&(struct zr_cuda_options){.granule_bytes = 8 << 20, .peers = far, .peers_count = 1});
    tap_is(backend->can.granule_bytes, 8 << 20, "a granule of several granularities");
    struct zr_range *range;
    tap_result(zr_backend_reserve(backend, 8 << 20, &range), ZR_OK, "addresses for one");
    tap_is((uintptr_t)range->address % (8 << 20), 0, "begin where a granule may");
    zr_backend_release(range);
    zr_backend_destroy(backend);
    struct zr_handle *handle;
    backend = create(&(struct zr_cuda_options){.limit_bytes = GRANULE - 1});
    tap_result(zr_backend_create(backend, GRANULE, &handle), ZR_ERR_MEMORY, "a limit below one granule");
    zr_backend_destroy(backend);
    backend = create(NULL);
    tap_is(backend->can.granule_bytes, GRANULE, "the recommended granule");
    zr_backend_destroy(backend);
    tap_is(emulator->state().retained_count, 0, "no context is held after");
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

static void use_everything(struct mapped *made)
{
    struct zr_stream_point event;
    struct zr_backend_memory memory;
    struct zr_segment segment;
    char byte = 0;
    zr_backend_fill(made->backend, &(struct zr_fill){.to = made->range->address, .value = 3, .bytes = 9});
    zr_backend_copy(made->backend, &(struct zr_copy){.to = &byte, .from = made->range->address, .bytes = 1});
    zr_backend_event_record(made->backend, 0, &event);
    zr_backend_event_done(made->backend, &event);
    zr_backend_event_wait(made->backend, &event);
    zr_backend_memory_info(made->backend, &memory);
    zr_backend_export(made->backend, made->handle, &segment);
    zr_backend_synchronize(made->backend);
    unmap_one(made);
}

static void test_contexts(void)
{
    zr_cu_context other, current = (zr_cu_context)1, popped;
    struct mapped made = map_one(NULL);
    use_everything(&made);
    get_current(&current);
    tap_ok(current == NULL, "a thread without a context has none after");
    end(&made);

    cu->context_retain(&other, 1);
    cu->context_push(other);
    made = map_one(NULL);
    use_everything(&made);
    get_current(&current);
    tap_ok(current == other && emulator->state().stack_depth == 1, "another device's context stays current");
    end(&made);
    cu->context_pop(&popped);
    cu->context_release(1);
    tap_is(emulator->state().without_context_count, 0, "zr made no memory call without a context");
}

/* ---- Fences -------------------------------------------------------------------------------------------- */

static zr_cu_stream new_stream(void)
{
    zr_cu_context context, popped;
    zr_cu_stream stream = NULL;
    cu->context_retain(&context, 0);
    cu->context_push(context);
    stream_create(&stream, ZR_CU_STREAM_NON_BLOCKING);
    cu->context_pop(&popped);
    cu->context_release(0);
    return stream;
}

static void drop_stream(zr_cu_stream stream)
{
    zr_cu_context context, popped;
    cu->context_retain(&context, 0);
    cu->context_push(context);
    stream_destroy(stream);
    cu->context_pop(&popped);
    cu->context_release(0);
}

static void *take(zr_arena *arena, size_t bytes, zr_cu_stream stream)
{
    void *block = NULL;
    tap_result(zr_arena_alloc(arena,
                              &(struct zr_request){.bytes = bytes, .stream = (uint64_t)(uintptr_t)stream},
                              &block),
               ZR_OK, "%zu MiB", bytes >> 20);
    return block;
}

/* Granules are unmapped when the stream that used them has passed, whatever other streams do. */
static void test_fences(void)
{
    zr_backend *backend = create(&(struct zr_cuda_options){.limit_bytes = 6 * GRANULE});
    zr_arena *arena = NULL;
    zr_cu_stream busy = new_stream(), brief = new_stream(), late = new_stream(), other = new_stream();
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .reserve_bytes = 2048 * GRANULE});
    void *kept = take(arena, GRANULE, busy), *first = take(arena, 2 * GRANULE, brief);
    take(arena, GRANULE, other); /* a wall: gaps are larger than granules */
    void *second = take(arena, 2 * GRANULE, late);
    emulator->work_ticks(FOREVER);
    launch(busy, kept, GRANULE);
    emulator->work_ticks(FOREVER / 3);
    launch(brief, first, 2 * GRANULE);
    zr_arena_free(arena, first);
    zr_arena_trim(arena, 0, NULL); /* asks, so that there is an event */
    emulator->work_ticks(FOREVER / 2);
    launch(late, second, 2 * GRANULE);
    zr_arena_free(arena, second);
    uint64_t waits = emulator->calls("cuCtxSynchronize"), unmaps = emulator->calls("cuMemUnmap");
    void *block = take(arena, 2 * GRANULE - 512, other);
    tap_ok(block && emulator->calls("cuMemUnmap") > unmaps, "memory of a stream that has passed is unmapped");
    tap_is(emulator->calls("cuCtxSynchronize"), waits, "and the device is not waited for");
    tap_is(emulator->state().pending_count, 2, "nor are the other streams");
    tap_ok(take(arena, 2 * GRANULE - 1024, other) != NULL, "then the next that passes");
    tap_is(emulator->state().pending_count, 1, "and no other");
    tap_result(zr_arena_check(arena), ZR_OK, "sound: %s", zr_last_error());
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "an arena that ends");
    tap_is(emulator->state().pending_count, 0, "waits for them all");
    tap_result(zr_backend_synchronize(backend), ZR_OK, "nothing crashed");
    emulator->work_ticks(3);
    drop_stream(busy);
    drop_stream(brief);
    drop_stream(late);
    drop_stream(other);
    zr_backend_destroy(backend);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static void test_events(void)
{
    enum { MANY = 70000 };
    static struct zr_stream_point events[MANY];
    struct mapped made = map_one(NULL);
    struct zr_stream_point event;
    unsigned wrong = 0;
    emulator->work_ticks(FOREVER);
    launch(NULL, made.range->address, 1);
    zr_backend_event_record(made.backend, 0, &event);
    tap_ok(!zr_backend_event_done(made.backend, &event), "an event behind a kernel is not done");
    tap_result(zr_backend_event_wait(made.backend, &event), ZR_OK, "it can be waited for");
    tap_ok(zr_backend_event_done(made.backend, &event), "then it is");

    for (unsigned i = 0; i < 1000; i++) {
        launch(NULL, made.range->address, 1);
        wrong += zr_backend_event_record(made.backend, 0, &event) != ZR_OK;
        wrong += zr_backend_event_done(made.backend, &event);
        wrong += zr_backend_event_wait(made.backend, &event) != ZR_OK;
    }
    tap_is(wrong, 0, "1,000 times");
    tap_is(emulator->state().events_count, 1, "with one event of the driver's");

    for (unsigned i = 0; i < 1000; i++) {
        launch(NULL, made.range->address, 1);
        zr_backend_event_record(made.backend, 0, &event);
        zr_backend_synchronize(made.backend);
    }
    tap_ok(emulator->state().events_count <= 2, "events that nobody asks for are found again (%zu)",
           emulator->state().events_count);

    launch(NULL, made.range->address, 1);
    for (unsigned i = 0; i < 300; i++)
        zr_backend_event_record(made.backend, 0, &events[i]);
    for (unsigned i = 0; i < 300; i++)
        wrong += zr_backend_event_done(made.backend, &events[i]);
    tap_is(wrong, 0, "300 events behind one kernel are all pending");
    zr_backend_event_wait(made.backend, &events[150]);
    for (unsigned i = 0; i < 300; i++)
        wrong += !zr_backend_event_done(made.backend, &events[i]);
    tap_is(wrong, 0, "and all done with it");
    tap_result(zr_backend_event_record(made.backend, 0xdead, &event), ZR_ERR_INVALID,
               "a stream that is none: %s", zr_last_error());
    char byte;
    struct zr_copy copy = {.to = &byte, .from = made.range->address, .bytes = 1, .stream = 0xdead};
    tap_result(zr_backend_copy(made.backend, &copy), ZR_ERR_INVALID, "a copy in it: %s", zr_last_error());

    launch(NULL, made.range->address, 1);
    for (unsigned i = 0; i < MANY; i++)
        wrong += zr_backend_event_record(made.backend, 0, &events[i]) != ZR_OK;
    tap_is(wrong, 0, "%d pending events: the last ones wait for their stream", MANY);
    tap_ok(zr_backend_event_done(made.backend, &events[MANY - 1]) &&
               zr_backend_event_done(made.backend, &events[0]),
           "so that all of them are done");
    emulator->work_ticks(3);
    unmap_one(&made);
    end(&made);
    tap_is(emulator->state().events_count, 0, "none is left after the backend");
}

/* ---- Peers and pinned memory --------------------------------------------------------------------------- */

/* Reads the first byte from device 1's side; -1 where it may not. */
static int read_on_peer(const char *address)
{
    zr_cu_context context, popped;
    unsigned char byte = 0;
    cu->context_retain(&context, 1);
    cu->context_push(context);
    zr_cu_result code = cu->copy((zr_cu_address)(uintptr_t)&byte, (zr_cu_address)(uintptr_t)address, 1, NULL);
    cu->context_synchronize();
    cu->context_pop(&popped);
    cu->context_release(1);
    return code == ZR_CU_SUCCESS ? byte : -1;
}

/* A fill in device 1's context, as a kernel that runs there would write. */
static zr_cu_result write_on_peer(const char *address, unsigned char value)
{
    zr_cu_context context, popped;
    cu->context_retain(&context, 1);
    cu->context_push(context);
    zr_cu_result code = cu->fill((zr_cu_address)(uintptr_t)address, value, 1, NULL);
    cu->context_synchronize();
    cu->context_pop(&popped);
    cu->context_release(1);
    return code;
}

static int read_by_owner(zr_backend *backend, const char *address)
{
    unsigned char byte = 0;
    zr_backend_copy(backend, &(struct zr_copy){.to = &byte, .from = address, .bytes = 1});
    return zr_backend_synchronize(backend) == ZR_OK ? byte : -1;
}

/* A peer reaches the device's memory; whether the device reaches its peer's is another matter. */
static void test_one_way(void)
{
    static const int zero[] = {0}, one[] = {1};
    zr_backend *backend;
    emulator->one_way(true);
    tap_result(zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.peers = one, .peers_count = 1}),
               ZR_OK, "a peer that the device cannot reach itself");
    zr_backend_destroy(backend);
    tap_result(zr_backend_cuda_create(
                   &backend, &(struct zr_cuda_options){.device = 1, .peers = zero, .peers_count = 1}),
               ZR_ERR_UNAVAILABLE, "and one that cannot reach the device: %s", zr_last_error());
    zr_backend_destroy(backend);
    emulator->one_way(false);
}

/* One that comes later has what is mapped, by then and after. */
static void test_admitted(void)
{
    struct mapped made = map_one(NULL);
    struct zr_handle *second;
    zr_backend_create(made.backend, GRANULE, &second);
    zr_backend_map(made.range, 5 * GRANULE, second);
    zr_backend_set_access(made.range, (struct zr_bounds){5 * GRANULE, GRANULE});
    uint64_t sets = emulator->calls("cuMemSetAccess");
    tap_is(write_on_peer(made.range->address, 9), ZR_CU_INVALID_VALUE, "before it is admitted it has none");
    tap_result(zr_backend_admit(made.backend, 5), ZR_ERR_INVALID, "a device that is not there: %s",
               zr_last_error());
    always_fail("cuMemSetAccess", ZR_CU_OUT_OF_MEMORY);
    tap_result(zr_backend_admit(made.backend, 1), ZR_ERR_ADDRESSES, "a driver that refuses: %s",
               zr_last_error());
    never_fail();
    tap_result(zr_backend_admit(made.backend, 1), ZR_OK, "then");
    tap_is(emulator->calls("cuMemSetAccess") - sets, 3, "a call for each stretch");
    tap_ok(write_on_peer(made.range->address, 9) == ZR_CU_SUCCESS &&
               write_on_peer(made.range->address + 5 * GRANULE, 9) == ZR_CU_SUCCESS,
           "it has what is mapped");
    unmap_one(&made);
    zr_backend_map(made.range, 0, made.handle);
    zr_backend_set_access(made.range, (struct zr_bounds){0, GRANULE});
    tap_is(write_on_peer(made.range->address, 9), ZR_CU_SUCCESS, "and what is mapped later");
    zr_backend_unmap(made.range, (struct zr_bounds){5 * GRANULE, GRANULE});
    zr_backend_destroy_handle(made.backend, second);
    unmap_one(&made);
    end(&made);
}

/* Network cards write into memory that was created for that, where the device can. */
static void test_rdma(void)
{
    for (int can = 0; can < 2; can++) {
        uint64_t before = emulator->state().rdma_count;
        emulator->attribute(ZR_CU_ATTRIBUTE_RDMA_VIRTUAL_MEMORY, can);
        struct mapped made = map_one(NULL);
        tap_is(emulator->state().rdma_count - before, (uint64_t)can, "memory for RDMA, on a device that %s",
               can ? "has it" : "has none");
        unmap_one(&made);
        end(&made);
    }
}

/* A device by its number, or by its UUID in any writing. */
static void test_names(void)
{
    static const char *const bad[] = {"",  "-1", "+1", "1x", "0x1", "4097", "GPU-", "99999999999999999999",
                                      "zz"};
    static const struct {
        const char *before;
        unsigned at; /* of the sign that is another */
        char sign;   /* 0: none is */
        bool upper, good;
    } rows[] = {{"", 0, 0, false, true},     {"", 0, 0, true, true},       {"GPU-", 0, 0, true, true},
                {"MIG-", 0, 0, false, true}, {"XYZ-", 0, 0, false, false}, {"", 8, '0', false, false},
                {"", 9, '-', false, false},  {"", 35, 'g', false, false},  {"", 35, 'G', false, false}};
    char key[ZR_LENDER_KEY_BYTES], found[ZR_LENDER_KEY_BYTES], text[64];
    int ordinal = -1;
    tap_result(zr_cuda_device_key(1, key), ZR_OK, "the UUID of a device");
    tap_ok(zr_cuda_device_find("1", &ordinal, found) == ZR_OK && ordinal == 1 && strcmp(found, key) == 0,
           "is found by its number: %s", found);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(text, sizeof text, "%s%s", rows[i].before, key);
        char *uuid = text + strlen(rows[i].before);
        for (char *at = uuid; *at && rows[i].upper; at++)
            *at = *at >= 'a' && *at <= 'f' ? (char)(*at - 'a' + 'A') : *at;
        if (rows[i].sign)
            uuid[rows[i].at] = rows[i].sign;
        ordinal = -1;
        zr_result result = zr_cuda_device_find(text, &ordinal, found);
        tap_ok(rows[i].good ? result == ZR_OK && ordinal == 1 && strcmp(found, key) == 0
                            : result == ZR_ERR_INVALID && ordinal == -1,
               "%s names %s", text, rows[i].good ? "it" : "none");
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        tap_result(zr_cuda_device_find(bad[i], &ordinal, found), ZR_ERR_INVALID, "'%s' names none", bad[i]);
    const char *hex = "abcdefab-cdef-abcd-efab-cdefabcdefab";
    tap_ok(zr_cuda_device_find("ABCDEFAB-CDEF-ABCD-EFAB-CDEFABCDEFAB", NULL, found) == ZR_OK &&
               strcmp(found, hex) == 0 && zr_cuda_device_find(hex, &ordinal, found) == ZR_ERR_INVALID,
           "a UUID of no device here is a key, and no device");
}

static void test_peers(void)
{
    static const int peers[] = {1};
    struct mapped made = map_one(NULL);
    zr_backend_fill(made.backend, &(struct zr_fill){.to = made.range->address, .value = 8, .bytes = 1});
    zr_backend_synchronize(made.backend);
    tap_is(read_on_peer(made.range->address), -1, "a device that is no peer reads nothing");
    tap_ok(write_on_peer(made.range->address, 9) != ZR_CU_SUCCESS, "nor does it write");
    tap_is(read_by_owner(made.backend, made.range->address), 8, "what was there stays");
    unmap_one(&made);
    end(&made);
    made = map_one(&(struct zr_cuda_options){.peers = peers, .peers_count = 1});
    zr_backend_fill(made.backend, &(struct zr_fill){.to = made.range->address, .value = 8, .bytes = 1});
    zr_backend_synchronize(made.backend);
    tap_is(read_on_peer(made.range->address), 8, "a peer reads what the device wrote");
    tap_is(write_on_peer(made.range->address, 9), ZR_CU_SUCCESS, "and writes");
    tap_is(read_by_owner(made.backend, made.range->address), 9, "which the device reads");
    unmap_one(&made);
    end(&made);
}

/* A node that is there, without a node where the driver gives none, or locked pages. */
static void test_host_kinds(void)
{
    static const struct {
        int closest, asked;
        enum zr_emulator_host refused;
        const char *words;
        bool exportable, aliases;
    } rows[] = {
        {0, 0, ZR_EMULATOR_HOST_ALL, "host node 0", true, true},
        {3, 0, ZR_EMULATOR_HOST_ALL, "host node 0", true, true},
        {-1, -1, ZR_EMULATOR_HOST_ALL, "host node 0", true, true}, /* a system without nodes */
        {3, -1, ZR_EMULATOR_HOST_ALL, "without a node (host node 3: CUDA_ERROR_INVALID_VALUE)", false, true},
        {0, -1, ZR_EMULATOR_HOST_NO_NODE, "without a node (host node 0: CUDA_ERROR_NOT_PERMITTED)", false,
         true},
        {0, -1, ZR_EMULATOR_HOST_NO_CREATE, "page-locked pages", false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        emulator->attribute(ZR_CU_ATTRIBUTE_HOST_NUMA_ID, rows[i].closest);
        emulator->host_memory(rows[i].refused);
        zr_backend *backend =
            create(&(struct zr_cuda_options){.kind = ZR_CUDA_HOST, .numa_node = rows[i].asked});
        const struct zr_capabilities *can = &backend->can;
        tap_ok(strstr(backend->memory, rows[i].words), "host memory is that of %s", backend->memory);
        tap_ok(can->exportable == rows[i].exportable && can->aliases == rows[i].aliases &&
                   can->host_visible && can->vma_budget > 0,
               "with what it can do");
        zr_backend_destroy(backend);
    }
    emulator->host_memory(ZR_EMULATOR_HOST_ALL);
    emulator->attribute(ZR_CU_ATTRIBUTE_HOST_NUMA_ID, 0);
}

/* Each granule is a mapping of the process: of much memory they are longer. */
static void test_host_granules(void)
{
    static const size_t gib = (size_t)1 << 30;
    static const struct {
        size_t expected_bytes, limit_bytes, granule_bytes, wanted_bytes;
    } rows[] = {{gib, 0, 0, GRANULE},
                {0, gib, 0, GRANULE},
                {2048 * gib, gib, 0, 512 * GRANULE},
                {0, 2048 * gib, 0, 512 * GRANULE},
                {gib, 2048 * gib, 0, GRANULE},
                {2048 * gib, 0, GRANULE, GRANULE},
                {2000 * GRANULE, 0, 0, GRANULE},
                {2001 * GRANULE, 0, 0, 2 * GRANULE}};
    zr_option_set("vma_budget:8000");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        zr_backend *backend = create(&(struct zr_cuda_options){.struct_bytes = sizeof(struct zr_cuda_options),
                                                               .kind = ZR_CUDA_HOST,
                                                               .expected_bytes = rows[i].expected_bytes,
                                                               .limit_bytes = rows[i].limit_bytes,
                                                               .granule_bytes = rows[i].granule_bytes});
        tap_is(backend->can.granule_bytes, rows[i].wanted_bytes, "the granule of %zu MiB, limit %zu",
               rows[i].expected_bytes >> 20, rows[i].limit_bytes >> 20);
        zr_backend_destroy(backend);
    }
    zr_option_set(NULL);
}

/* A driver that locks no more pages, or does not let go of some: nothing has changed, and work goes on. */
static void test_locked_pages(void)
{
    struct zr_handle *handles[3];
    struct zr_range *range;
    emulator->host_memory(ZR_EMULATOR_HOST_NO_CREATE);
    zr_backend *backend = create(&(struct zr_cuda_options){.kind = ZR_CUDA_HOST, .granule_bytes = GRANULE});
    zr_backend_reserve(backend, 16 * GRANULE, &range);
    for (size_t i = 0; i < 3; i++) {
        zr_backend_create(backend, GRANULE, &handles[i]);
        zr_backend_map(range, i * GRANULE, handles[i]);
    }
    struct zr_bounds all = {0, 3 * GRANULE};
    emulator->fail(
        &(struct zr_emulator_fault){.call = "cuMemHostRegister", .nth = 3, .code = ZR_CU_OUT_OF_MEMORY});
    tap_result(zr_backend_set_access(range, all), ZR_ERR_MEMORY, "the third is not locked: %s",
               zr_last_error());
    tap_is(emulator->state().allocations_count, 0, "no other stays locked");
    never_fail();
    tap_result(zr_backend_set_access(range, all), ZR_OK, "all three");
    tap_is(emulator->state().allocations_count, 3, "are locked, each for itself");
    strcpy(range->address + GRANULE, "stays");
    emulator->fail(
        &(struct zr_emulator_fault){.call = "cuMemHostUnregister", .nth = 3, .code = ZR_CU_UNKNOWN});
    tap_result(zr_backend_unmap(range, all), ZR_ERR_ADDRESSES, "the third stays locked: %s", zr_last_error());
    never_fail();
    tap_is(emulator->state().allocations_count, 3, "so do the others");
    char *at = range->address + GRANULE;
    zr_backend_copy(backend, &(struct zr_copy){.to = at + 64, .from = at, .bytes = 6});
    zr_backend_synchronize(backend);
    tap_ok(strcmp(at + 64, "stays") == 0, "and the device works on them");
    tap_result(zr_backend_unmap(range, all), ZR_OK, "then they go");
    tap_is(emulator->state().allocations_count, 0, "all three");
    zr_backend_map(range, 0, handles[0]);
    zr_backend_set_access(range, (struct zr_bounds){0, GRANULE});
    tap_is(range->address[64], 0, "what comes next is empty");
    zr_backend_unmap(range, (struct zr_bounds){0, GRANULE});
    for (size_t i = 0; i < 3; i++)
        zr_backend_destroy_handle(backend, handles[i]);
    zr_backend_release(range);
    zr_backend_destroy(backend);
    emulator->host_memory(ZR_EMULATOR_HOST_ALL);
}

static void test_pinned(int node)
{
    struct mapped made =
        map_one(&(struct zr_cuda_options){.kind = ZR_CUDA_HOST, .numa_node = node, .granule_bytes = GRANULE});
    char *at = made.range->address;
    tap_ok(made.backend->can.host_visible, "pinned memory of node %d is seen by the processor", node);
    strcpy(at, "written by the processor");
    zr_backend_copy(made.backend, &(struct zr_copy){.to = at + 4096, .from = at, .bytes = 25});
    zr_backend_synchronize(made.backend);
    tap_ok(strcmp(at + 4096, "written by the processor") == 0, "copied by the device, read by the processor");
    unmap_one(&made);
    zr_backend_map(made.range, 3 * GRANULE, made.handle);
    zr_backend_set_access(made.range, (struct zr_bounds){3 * GRANULE, GRANULE});
    tap_ok(strcmp(at + 3 * GRANULE, "written by the processor") == 0, "the granule moves with its bytes");
    zr_backend_unmap(made.range, (struct zr_bounds){3 * GRANULE, GRANULE});
    end(&made);
}

int main(void)
{
    emulator = cuda_emulator_alone();
    if (!emulator)
        return tap_done();
    find_driver();
    test_options();
    test_contexts();
    test_fences();
    test_events();
    test_names();
    test_peers();
    test_one_way();
    test_admitted();
    test_rdma();
    test_host_kinds();
    test_host_granules();
    test_locked_pages();
    test_pinned(-1);
    test_pinned(0);
    tap_ok(nothing_left(), "the driver has everything back");
    return tap_done();
}
