/* cuda_refusals_test.c: a CUDA driver that is absent, old, short of memory, unwilling, crashed, forked away
 * from or already gone: errors in words, exact counters, and no crash. On the emulated driver. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "tests/support/child.h"
#include "tests/support/cuda/cuda_pieces.h"

/* ---- A driver that is not what it should be; before this process loads one ----------------------------- */

static int says(zr_result wanted, const char *words)
{
    zr_backend *backend = (zr_backend *)1;
    zr_result result = zr_backend_cuda_create(&backend, NULL);
    if (result != wanted || backend || !strstr(zr_last_error(), words)) {
        printf("# %s: %s\n", zr_result_name(result), zr_last_error());
        fflush(stdout);
        return 1;
    }
    return 0;
}

static int no_library(void)
{
    zr_cuda_driver_path_set("libcuda-that-is-not-there.so.1");
    return says(ZR_ERR_UNAVAILABLE, "install the NVIDIA driver");
}

static int no_driver(void)
{
    zr_cuda_driver_path_set("libm.so.6");
    return says(ZR_ERR_UNAVAILABLE, "cuInit is missing");
}

static int old_driver(void)
{
    emulator->version(10010);
    return says(ZR_ERR_UNAVAILABLE, "it is for CUDA 10.1");
}

static int no_device(void)
{
    setenv("ZR_EMULATOR_DEVICES", "0", 1);
    return says(ZR_ERR_UNAVAILABLE, "CUDA_VISIBLE_DEVICES");
}

static int no_virtual_memory(void)
{
    emulator->attribute(ZR_CU_ATTRIBUTE_VIRTUAL_MEMORY, 0);
    return says(ZR_ERR_UNAVAILABLE, "virtual memory calls");
}

static int no_unified_addresses(void)
{
    emulator->attribute(ZR_CU_ATTRIBUTE_UNIFIED_ADDRESSING, 0);
    return says(ZR_ERR_UNAVAILABLE, "unified addresses");
}

static int far_peer(void)
{
    static const int peers[] = {2};
    zr_backend *backend;
    setenv("ZR_EMULATOR_DEVICES", "4", 1);
    return zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.peers = peers, .peers_count = 1}) !=
               ZR_ERR_UNAVAILABLE ||
           !strstr(zr_last_error(), "nvidia-smi topo");
}

static int no_descriptors(void)
{
    zr_backend *backend;
    struct zr_handle *handle;
    struct zr_segment segment;
    emulator->attribute(ZR_CU_ATTRIBUTE_POSIX_FD, 0);
    if (zr_backend_cuda_create(&backend, NULL) != ZR_OK || backend->can.exportable)
        return 1;
    zr_backend_create(backend, GRANULE, &handle);
    return zr_backend_export(backend, handle, &segment) != ZR_ERR_UNAVAILABLE;
}

static int no_pinned_memory(void)
{
    static const char *const words[] = {"device 0 cannot use memory", "host node 0: not before CUDA 12.2",
                                        "without a node: not before CUDA 13",
                                        "page-locked pages: CUDA_ERROR_NOT_PERMITTED", "--cap-add SYS_NICE"};
    zr_backend *backend;
    emulator->attribute(ZR_CU_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY, 0);
    emulator->host_memory(ZR_EMULATOR_HOST_NO_LOCK);
    int bad = zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.kind = ZR_CUDA_HOST}) !=
                  ZR_ERR_UNAVAILABLE ||
              backend;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        bad |= !strstr(zr_last_error(), words[i]);
    struct zr_emulator_state left = emulator->state();
    if (bad)
        tap_note("%s", zr_last_error());
    return bad || left.memories_count + left.retained_count + left.allocations_count > 0;
}

/* A later try may find the driver that an earlier one did not. */
static int found_later(void)
{
    int failed = no_library();
    zr_backend *backend;
    zr_cuda_driver_path_set(cuda_emulator_path());
    return failed || zr_backend_cuda_create(&backend, NULL) != ZR_OK ||
           zr_cuda_driver_path_set("elsewhere") != ZR_ERR_INVALID;
}

/* Loaded, or refused in words: not waited for. */
static int ask(void)
{
    zr_cuda_driver_get(&cu);
    return 0;
}

enum { PATIENCE_SECONDS = 120 };
static _Atomic bool begun, ended;

static void *load_slowly(void *argument)
{
    atomic_store(&begun, true);
    ask();
    atomic_store(&ended, true);
    return argument;
}

/* One thread sits in the driver's start while another forks, again and again. */
static int forks_beside_loading(void)
{
    pthread_t thread;
    int bad = 0;
    emulator->delay("cuInit", 300000000);
    pthread_create(&thread, NULL, load_slowly, NULL);
    while (!atomic_load(&begun))
        nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
    while (!bad && !atomic_load(&ended))
        bad = in_child_within(ask, PATIENCE_SECONDS);
    pthread_join(thread, NULL);
    return bad || !cu;
}

static int forks_as_it_loads(void)
{
    alarm(PATIENCE_SECONDS);
    setenv("ZR_EMULATOR_FORKS", "1", 1);
    return zr_cuda_driver_get(&cu) != ZR_OK;
}

static void test_unavailable(void)
{
    tap_is(in_child(no_library), 0, "no libcuda.so.1: an error with the way out");
    tap_is(in_child(no_driver), 0, "a library that is no driver");
    tap_is(in_child(old_driver), 0, "a driver before CUDA 10.2");
    tap_is(in_child(no_device), 0, "no device");
    tap_is(in_child(no_virtual_memory), 0, "a device without virtual memory management");
    tap_is(in_child(no_unified_addresses), 0, "a device without unified addresses");
    tap_is(in_child(far_peer), 0, "a peer without a link");
    tap_is(in_child(no_descriptors), 0, "a device that cannot export");
    tap_is(in_child(no_pinned_memory), 0, "a driver without pinned memory behind these calls");
    tap_is(in_child(found_later), 0, "a driver that comes later is found");
    tap_is(in_child(forks_beside_loading), 0, "children forked while a thread loads the driver ask for it");
    tap_is(in_child(forks_as_it_loads), 0, "a driver that forks as it starts");
}

/* ---- A driver that will not ---------------------------------------------------------------------------- */

static void test_shortage(void)
{
    zr_arena *arena;
    void *block;
    emulator->capacity(32 * GRANULE);
    zr_backend *backend = create(NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    zr_result result =
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 33 * GRANULE, .tag = ZR_TAG_GRAD}, &block);
    tap_ok(result == ZR_ERR_MEMORY && strstr(zr_last_error(), "CUDA_ERROR_OUT_OF_MEMORY"),
           "more than there is: %s", zr_last_error());
    tap_is(emulator->state().used_bytes, 0, "nothing of it is kept");
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = 32 * GRANULE, .tag = ZR_TAG_GRAD}, &block),
               ZR_OK, "all there is");
    zr_arena_free(arena, block);
    void *halves[64];
    for (unsigned i = 0; i < 64; i++)
        zr_arena_alloc(arena, &(struct zr_request){.bytes = GRANULE / 2, .tag = ZR_TAG_GRAD}, &halves[i]);
    for (unsigned i = 0; i < 64; i += 2)
        zr_arena_free(arena, halves[i]);
    result = zr_arena_alloc(arena, &(struct zr_request){.bytes = GRANULE, .tag = ZR_TAG_GRAD}, &block);
    const char *words = zr_last_error(), *help = strstr(words, "What would help: ");
    tap_ok(result == ZR_ERR_MEMORY && strstr(words, ": fragmentation. ") && help && !strstr(help, "granule"),
           "fragmented, and the device has no smaller granule: %s", words);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    emulator->capacity((size_t)16 << 30);
}

/* Handles and addresses that the driver will not take are offered again. */
static void test_debts(void)
{
    struct mapped made = map_one(NULL);
    struct zr_range *range;
    unmap_one(&made);
    always_fail("cuMemRelease", ZR_CU_UNKNOWN);
    tap_result(zr_backend_destroy_handle(made.backend, made.handle), ZR_OK, "a handle that the driver keeps");
    tap_is(made.backend->held_bytes, 0, "is out of the books");
    tap_is(emulator->state().memories_count, 1, "the driver has it");
    never_fail();
    zr_backend_reserve(made.backend, GRANULE, &range);
    tap_is(emulator->state().memories_count, 0, "with the next call it takes it back");
    always_fail("cuMemAddressFree", ZR_CU_UNKNOWN);
    tap_result(zr_backend_release(made.range), ZR_OK, "addresses that the driver keeps");
    tap_is(emulator->state().reservations_count, 2, "are with it");
    never_fail();
    zr_backend_release(range);
    tap_is(emulator->state().reservations_count, 0, "until the next call");
    tap_result(zr_backend_destroy(made.backend), ZR_OK, "the end");
    tap_ok(nothing_left(), "nothing is left");
}

static void fill_arena(zr_arena *arena, void *blocks[4])
{
    for (unsigned i = 0; i < 4; i++)
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 3 * GRANULE - 256, .tag = ZR_TAG_OTHER},
                       &blocks[i]);
}

static bool full_arena(zr_backend **backend, zr_arena **arena, void *blocks[4])
{
    if (zr_backend_cuda_create(backend, NULL) != ZR_OK ||
        zr_arena_create(arena, &(struct zr_arena_options){.backend = *backend}) != ZR_OK)
        return false;
    fill_arena(*arena, blocks);
    return true;
}

static void test_failed_trim(void)
{
    zr_arena *arena;
    void *blocks[4], *block;
    struct zr_arena_stats after;
    zr_backend *backend = create(NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    fill_arena(arena, blocks);
    emulator->fail(
        &(struct zr_emulator_fault){.call = "cuMemUnmap", .nth = 1, .count = 1, .code = ZR_CU_UNKNOWN});
    zr_arena_free(arena, blocks[1]);
    tap_is(zr_arena_trim(arena, 0, NULL), ZR_OK, "a trim whose unmap fails");
    tap_result(zr_arena_check(arena), ZR_OK, "leaves the arena sound");
    never_fail();
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = 9 * GRANULE, .tag = ZR_TAG_OTHER}, &block),
               ZR_OK, "which goes on");
    zr_arena_get_stats(arena, &after);
    tap_is(after.reserved_bytes, backend->held_bytes, "with exact books");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    tap_ok(nothing_left(), "nothing is left");
}

static void test_lasting_unmap_failure(void)
{
    zr_arena *arena;
    void *blocks[4];
    size_t leaked;
    zr_backend *backend = create(NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    fill_arena(arena, blocks);
    always_fail("cuMemUnmap", ZR_CU_UNKNOWN);
    zr_result result = zr_arena_destroy(arena, &leaked);
    tap_ok(result == ZR_ERR_UNAVAILABLE && strstr(zr_last_error(), "stay mapped"),
           "an arena that cannot be unmapped ends: %s", zr_last_error());
    tap_is(backend->held_bytes, 0, "the books are empty");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends too");
    never_fail();
    tap_ok(emulator->state().mappings_count > 0, "the driver has what it kept");
}

/* ---- In children: what would spoil this process -------------------------------------------------------- */

static int stranded_at_map(void)
{
    zr_arena *arena;
    void *blocks[4], *block;
    struct zr_arena_stats stats;
    zr_backend *backend;
    if (!full_arena(&backend, &arena, blocks))
        return 1;
    /* The error of cuMemSetAccess, the pop, then the push, the fence and the unmap of the way back. */
    uint64_t to_access = 0;
    for (uint64_t nth = 1; nth < 200 && !to_access; nth++) {
        emulator->fail(
            &(struct zr_emulator_fault){.nth = nth, .count = UINT64_MAX / 2, .code = ZR_CU_UNKNOWN});
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 4 * GRANULE, .tag = ZR_TAG_OTHER}, &block);
        never_fail();
        if (zr_arena_check(arena) != ZR_OK) {
            tap_note("%llu: %s", (unsigned long long)nth, zr_last_error());
            return 2;
        }
        if (block)
            to_access = nth;
        else
            zr_arena_trim(arena, 0, NULL);
    }
    zr_arena_get_stats(arena, &stats);
    if (!to_access || stats.reserved_bytes != backend->held_bytes)
        return 3;
    if (zr_arena_destroy(arena, NULL) != ZR_OK || zr_backend_destroy(backend) != ZR_OK)
        return 4;
    return nothing_left() ? 0 : 5;
}

/* A kernel writes where nothing is: every later call fails, and none crashes. */
static int dead_context(void)
{
    zr_arena *arena;
    void *block, *blocks[4];
    zr_backend *backend;
    struct zr_stream_point event;
    zr_cuda_driver_get(&cu);
    if (!full_arena(&backend, &arena, blocks))
        return 1;
    zr_backend_event_record(backend, 0, &event);
    launch(NULL, (const char *)4096, 8);
    if (zr_backend_synchronize(backend) != ZR_ERR_UNAVAILABLE ||
        !strstr(zr_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS") ||
        !strstr(zr_last_error(), "compute-sanitizer"))
        return 2;
    if (zr_arena_alloc(arena, &(struct zr_request){.bytes = 9 * GRANULE, .tag = ZR_TAG_OTHER}, &block) ==
        ZR_OK)
        return 3;
    if (!zr_backend_event_done(backend, &event) || zr_arena_free(arena, blocks[0]) != ZR_OK ||
        zr_arena_check(arena) != ZR_OK)
        return 4;
    zr_arena_destroy(arena, NULL);
    return zr_backend_destroy(backend) == ZR_OK ? 0 : 5;
}

/* A child of a process that uses CUDA: errors in words, and the parent's memory stays. */
static int use_after_fork(void)
{
    zr_arena *arena;
    void *blocks[4], *block;
    zr_backend *backend;
    int status = -1;
    if (!full_arena(&backend, &arena, blocks))
        return 1;
    size_t used_bytes = emulator->state().used_bytes;
    pid_t child = fork();
    if (child == 0) {
        zr_backend *own;
        if (zr_arena_alloc(arena, &(struct zr_request){.bytes = 9 * GRANULE, .tag = ZR_TAG_OTHER}, &block) !=
                ZR_ERR_UNAVAILABLE ||
            !strstr(zr_last_error(), "fork"))
            _exit(1);
        if (zr_backend_cuda_create(&own, NULL) != ZR_ERR_UNAVAILABLE)
            _exit(2);
        if (zr_arena_free(arena, blocks[0]) != ZR_OK || zr_arena_destroy(arena, NULL) != ZR_ERR_UNAVAILABLE)
            _exit(3);
        _exit(zr_backend_destroy(backend) == ZR_OK ? 0 : 4);
    }
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 10 + WEXITSTATUS(status);
    if (emulator->state().used_bytes != used_bytes || zr_arena_check(arena) != ZR_OK)
        return 2;
    zr_arena_destroy(arena, NULL);
    return zr_backend_destroy(backend) == ZR_OK && nothing_left() ? 0 : 3;
}

/* At a process's end the driver may be gone before the backend is. */
static int driver_gone(void)
{
    zr_arena *arena;
    void *blocks[4];
    zr_backend *backend;
    if (!full_arena(&backend, &arena, blocks))
        return 1;
    always_fail(NULL, ZR_CU_DEINITIALIZED);
    zr_arena_destroy(arena, NULL);
    return zr_backend_destroy(backend) == ZR_OK ? 0 : 2;
}

int main(void)
{
    emulator = cuda_emulator_alone();
    if (!emulator)
        return tap_done();
    /* Children first: this process must not have seen the driver. */
    test_unavailable();
    tap_is(in_child(stranded_at_map), 0,
           "calls that fail for good at every place of an extension, and recover");
    tap_is(in_child(dead_context), 0, "a crashed kernel: errors, no crash");
    tap_is(in_child(use_after_fork), 0, "a forked child: errors, and its parent's memory stays");
    tap_is(in_child(driver_gone), 0, "a driver that is shutting down");
    test_shortage();
    test_debts();
    test_failed_trim();
    tap_ok(nothing_left(), "the driver has everything back");
    test_lasting_unmap_failure();
    return tap_done();
}
