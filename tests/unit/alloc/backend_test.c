/* backend_test.c: the conformance suite of the backends. The same calls run on host, sim and cuda (on the
 * emulated driver, or on a card with ZR_TEST_CUDA=card), and every rule of the contract in
 * alloc/backend/backend.h is broken once and must be refused, with nothing changed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/folder.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

/* The pinned ones are what is left when the driver refuses those before. */
enum kind { HOST, PRIVATE, SIM, CUDA, CUDA_PINNED, CUDA_WITHOUT_NODE, CUDA_LOCKED, KINDS };
static const char *const kind_names[] = {
    "host", "private", "sim", "cuda", "cuda, pinned", "cuda, pinned without a node", "cuda, locked pages"};
static size_t granule_bytes;
static const struct zr_emulator *emulator; /* NULL: on a card, or built without CUDA */

static zr_result try_to_create(zr_backend **out, enum kind kind, size_t limit_bytes)
{
    switch (kind) {
    case HOST:
    case PRIVATE:
        return zr_backend_host_create(out, &(struct zr_host_options){.granule_bytes = granule_bytes,
                                                                     .limit_bytes = limit_bytes,
                                                                     .private_memory = kind == PRIVATE});
    case SIM:
        return zr_backend_sim_create(
            out, &(struct zr_sim_options){.granule_bytes = granule_bytes, .capacity_bytes = limit_bytes});
    default:
        if (emulator && kind > CUDA)
            emulator->host_memory((enum zr_emulator_host)(kind - CUDA_PINNED));
        return zr_backend_cuda_create(
            out, &(struct zr_cuda_options){.kind = kind == CUDA ? ZR_CUDA_DEVICE : ZR_CUDA_HOST,
                                           .numa_node = -1,
                                           .granule_bytes = granule_bytes,
                                           .limit_bytes = limit_bytes});
    }
}

static zr_backend *create(enum kind kind, size_t limit_bytes)
{
    zr_backend *backend = NULL;
    tap_result(try_to_create(&backend, kind, limit_bytes), ZR_OK, "%s: a backend", kind_names[kind]);
    return backend;
}

/* Whether there is such a backend here; says why not. */
static bool available(enum kind kind)
{
    zr_backend *backend;
    zr_result result = try_to_create(&backend, kind, 0);
    if (result == ZR_ERR_UNAVAILABLE && !emulator)
        tap_skip("%s: %s", kind_names[kind], zr_last_error());
    zr_backend_destroy(backend);
    return result != ZR_ERR_UNAVAILABLE || emulator;
}

static struct zr_handle *handle_of(zr_backend *backend, size_t granules)
{
    struct zr_handle *handle;
    tap_result(zr_backend_create(backend, granules * granule_bytes, &handle), ZR_OK,
               "%s: a handle of %zu granules", backend->ops->name, granules);
    return handle;
}

static struct zr_bounds granules(size_t first, size_t count)
{
    return (struct zr_bounds){first * granule_bytes, count * granule_bytes};
}

static void test_handles(enum kind kind)
{
    const char *name = kind_names[kind];
    zr_backend *backend = create(kind, 10 * granule_bytes);
    struct zr_handle *handle, *more = NULL;
    tap_result(zr_backend_create(backend, 0, &handle), ZR_ERR_INVALID, "%s: an empty handle", name);
    tap_result(zr_backend_create(backend, granule_bytes + 4096, &handle), ZR_ERR_INVALID,
               "%s: a part of a granule", name);
    handle = handle_of(backend, 8);
    tap_result(zr_backend_create(backend, 3 * granule_bytes, &more), ZR_ERR_MEMORY, "%s: beyond the limit",
               name);
    tap_ok(more == NULL && strstr(zr_last_error(), "limit"), "%s: the words say so: %s", name,
           zr_last_error());
    tap_result(zr_backend_destroy(backend), ZR_ERR_INVALID, "%s: handles keep a backend alive", name);
    tap_result(zr_backend_destroy_handle(backend, handle), ZR_OK, "%s: destroyed", name);
    tap_result(zr_backend_destroy_handle(backend, handle), ZR_ERR_INVALID, "%s: destroyed twice", name);
    zr_backend_destroy_handle(backend, handle_of(backend, 10));
    tap_is(backend->held_bytes, 0, "%s: nothing is held", name);
    tap_result(zr_backend_destroy(backend), ZR_OK, "%s: the end", name);
}

/* Lives that leave nothing behind: neither addresses nor descriptors. */
static void test_lives(enum kind kind)
{
    enum { LIVES = 8 };
    zr_backend *backend;
    struct zr_resident before, after;
    int descriptors = open_descriptors(), passed_on = inherited_descriptors(), kept = 0;
    zr_os_resident(&before);
    for (unsigned i = 0; i < LIVES; i++) {
        try_to_create(&backend, kind, 0);
        kept += inherited_descriptors() - passed_on;
        zr_backend_destroy(backend);
    }
    zr_os_resident(&after);
    tap_ok(open_descriptors() == descriptors && kept == 0, "%s: no descriptor is left, or passed on",
           kind_names[kind]);
    tap_ok(after.address_bytes < before.address_bytes + LIVES * (1 << 20), "%s: nor addresses: %zu KiB",
           kind_names[kind], (after.address_bytes - before.address_bytes) >> 10);
}

static void test_ranges(enum kind kind)
{
    const char *name = kind_names[kind];
    const struct {
        const char *words;
        size_t bytes;
        zr_result result;
    } cases[] = {{"no addresses", 0, ZR_ERR_INVALID},
                 {"half a granule", granule_bytes / 2, ZR_ERR_INVALID},
                 {"2^62 bytes", (size_t)1 << 62, ZR_ERR_ADDRESSES}};
    zr_backend *backend = create(kind, 0);
    struct zr_range *range = NULL;
    for (unsigned i = 0; i < 3; i++)
        tap_result(zr_backend_reserve(backend, cases[i].bytes, &range), cases[i].result, "%s: %s", name,
                   cases[i].words);
    tap_ok(range == NULL, "%s: gives NULL", name);
    tap_result(zr_backend_reserve(backend, 16 * granule_bytes, &range), ZR_OK, "%s: a range", name);
    tap_ok((uintptr_t)range->address % granule_bytes == 0, "%s: on a granule", name);
    tap_result(zr_backend_destroy(backend), ZR_ERR_INVALID, "%s: ranges keep a backend alive", name);
    tap_result(zr_backend_release(range), ZR_OK, "%s: released", name);
    tap_result(zr_backend_destroy(backend), ZR_OK, "%s: the end", name);
}

/* Each broken rule is followed by a look at the pages, so that a refusal that did something is found. */
static void test_mappings(enum kind kind)
{
    const char *name = kind_names[kind];
    zr_backend *backend = create(kind, 0);
    struct zr_range *range;
    struct zr_handle *one = handle_of(backend, 1), *run = handle_of(backend, 4);
    zr_backend_reserve(backend, 1024 * granule_bytes, &range);

    tap_result(zr_backend_map(range, 4096, one), ZR_ERR_INVALID, "%s: an offset inside a granule", name);
    tap_result(zr_backend_map(range, 1024 * granule_bytes, one), ZR_ERR_INVALID, "%s: past the range", name);
    tap_result(zr_backend_map(range, 1021 * granule_bytes, run), ZR_ERR_INVALID, "%s: half past the range",
               name);
    tap_result(zr_backend_map(range, SIZE_MAX & ~(granule_bytes - 1), run), ZR_ERR_INVALID, "%s: an overflow",
               name);
    tap_result(zr_backend_map(range, 4 * granule_bytes, run), ZR_OK, "%s: a run of four", name);
    for (size_t at = 4; at < 8; at++)
        tap_result(zr_backend_map(range, at * granule_bytes, one), ZR_ERR_INVALID,
                   "%s: onto granule %zu of it", name, at - 4);
    tap_result(zr_backend_map(range, 8 * granule_bytes, one), ZR_OK, "%s: right behind it", name);
    tap_result(zr_backend_map(range, 3 * granule_bytes, one), backend->can.aliases ? ZR_OK : ZR_ERR_INVALID,
               "%s: the same granule at a second address", name);
    if (!backend->can.aliases) { /* another one, then, and the same story */
        struct zr_handle *other = handle_of(backend, 1);
        zr_backend_map(range, 3 * granule_bytes, other);
        zr_backend_destroy_handle(backend, other);
    }

    tap_result(zr_backend_set_access(range, granules(5, 1)), ZR_ERR_INVALID, "%s: access to a part", name);
    tap_result(zr_backend_set_access(range, granules(2, 2)), ZR_ERR_INVALID, "%s: access to a gap", name);
    tap_result(zr_backend_set_access(range, (struct zr_bounds){3 * granule_bytes, 6 * granule_bytes}), ZR_OK,
               "%s: access to three mappings in a row", name);
    tap_result(zr_backend_unmap(range, granules(4, 2)), ZR_ERR_INVALID, "%s: an unmap of half a run", name);
    tap_result(zr_backend_unmap(range, granules(6, 2)), ZR_ERR_INVALID, "%s: of its second half", name);
    tap_result(zr_backend_unmap(range, granules(9, 1)), ZR_ERR_INVALID, "%s: where nothing is mapped", name);
    tap_result(zr_backend_unmap(range, granules(3, 0)), ZR_ERR_INVALID, "%s: of nothing", name);
    tap_result(zr_backend_unmap(range, granules(1020, 8)), ZR_ERR_INVALID, "%s: past the end", name);
    tap_is(range->mappings_count, 3, "%s: all three are still there", name);
    tap_result(zr_backend_release(range), ZR_ERR_INVALID, "%s: a range with mappings stays", name);

    /* A handle outlives its destruction for as long as it is mapped. */
    size_t held = backend->held_bytes;
    tap_result(zr_backend_destroy_handle(backend, one), ZR_OK, "%s: destroyed while mapped twice", name);
    tap_result(zr_backend_map(range, 20 * granule_bytes, one), ZR_ERR_INVALID, "%s: not mapped again", name);
    tap_result(zr_backend_destroy_handle(backend, one), ZR_ERR_INVALID, "%s: nor destroyed again", name);
    tap_result(zr_backend_unmap(range, granules(3, 1)), ZR_OK, "%s: one mapping goes", name);
    held -= backend->can.aliases ? 0 : granule_bytes;
    tap_is(backend->held_bytes, held, "%s: its memory lives for the other", name);
    tap_result(zr_backend_unmap(range, granules(4, 5)), ZR_OK, "%s: two mappings in one call", name);
    tap_is(backend->held_bytes, held - granule_bytes, "%s: and then not", name);
    tap_result(zr_backend_map(range, 100 * granule_bytes, run), ZR_OK, "%s: a run moves", name);
    zr_backend_unmap(range, granules(100, 4));
    zr_backend_destroy_handle(backend, run);
    tap_result(zr_backend_release(range), ZR_OK, "%s: an empty range goes", name);
    tap_result(zr_backend_destroy(backend), ZR_OK, "%s: the end", name);
}

static void test_copies(enum kind kind)
{
    const char *name = kind_names[kind];
    zr_backend *backend = create(kind, 0);
    struct zr_range *range;
    struct zr_handle *one = handle_of(backend, 2);
    zr_backend_reserve(backend, 16 * granule_bytes, &range);
    zr_backend_map(range, 0, one);
    struct zr_handle *last = handle_of(backend, 1);
    zr_backend_map(range, 15 * granule_bytes, last);
    zr_backend_set_access(range, granules(15, 1));
    char *at = range->address;
    struct zr_copy copy = {.to = at + granule_bytes, .from = at, .bytes = granule_bytes};
    tap_result(zr_backend_copy(backend, &copy), ZR_ERR_INVALID, "%s: a copy before access is set", name);
    tap_result(zr_backend_fill(backend, &(struct zr_fill){.to = at, .bytes = 8}), ZR_ERR_INVALID,
               "%s: a fill likewise", name);
    zr_backend_set_access(range, granules(0, 2));
    tap_result(zr_backend_fill(backend, &(struct zr_fill){.to = at, .value = 7, .bytes = granule_bytes}),
               ZR_OK, "%s: a fill", name);
    tap_result(zr_backend_copy(backend, &copy), ZR_OK, "%s: a copy", name);
    zr_backend_synchronize(backend);
    char ends[2] = {0};
    for (unsigned i = 0; i < 2 && kind != SIM;
         i++) /* into this program's memory, which the kind may not see */
        if (backend->can.host_visible)
            ends[i] = at[granule_bytes + i * (granule_bytes - 1)];
        else
            zr_backend_copy(backend,
                            &(struct zr_copy){&ends[i], at + granule_bytes + i * (granule_bytes - 1), 1, 0});
    zr_backend_synchronize(backend);
    if (kind != SIM)
        tap_ok(ends[0] == 7 && ends[1] == 7, "%s: the bytes have come", name);
    copy.bytes = granule_bytes + 1;
    tap_result(zr_backend_copy(backend, &copy), ZR_ERR_INVALID, "%s: one byte into what is not mapped", name);
    struct zr_fill fill = {.to = at + 16 * granule_bytes - 8, .bytes = 8};
    tap_result(zr_backend_fill(backend, &fill), ZR_OK, "%s: up to the range's end", name);
    fill.bytes = 9;
    tap_result(zr_backend_fill(backend, &fill), ZR_ERR_INVALID, "%s: and no further", name);
    copy.to = NULL;
    tap_result(zr_backend_copy(backend, &copy), ZR_ERR_INVALID, "%s: to NULL", name);
    copy.bytes = 0;
    tap_result(zr_backend_copy(backend, &copy), ZR_OK, "%s: of nothing", name);
    struct zr_stream_point event;
    tap_result(zr_backend_event_record(backend, kind < CUDA ? 3 : 0, &event), ZR_OK, "%s: an event", name);
    tap_ok(zr_backend_event_done(backend, &event) || !backend->can.synchronous, "%s: is done", name);
    tap_result(zr_backend_event_wait(backend, &event), ZR_OK, "%s: can be waited for", name);
    tap_result(zr_backend_synchronize(backend), ZR_OK, "%s: synchronises", name);
    struct zr_backend_memory memory;
    tap_result(zr_backend_memory_info(backend, &memory), ZR_OK, "%s: knows its memory", name);
    tap_ok(memory.total_bytes > 0 && memory.free_bytes <= memory.total_bytes, "%s: sensibly", name);
    zr_backend_unmap(range, granules(0, 2));
    zr_backend_unmap(range, granules(15, 1));
    zr_backend_destroy_handle(backend, one);
    zr_backend_destroy_handle(backend, last);
    zr_backend_release(range);
    tap_result(zr_backend_destroy(backend), ZR_OK, "%s: the end", name);
}

/* Random maps and unmaps beside an array that says what should be where. */
static void test_random(enum kind kind, uint64_t seed)
{
    enum { SLOTS = 2000, HANDLES = 40, STEPS = 6000 };
    static const size_t sizes[] = {1, 1, 1, 2, 4, 16, 600};
    const char *name = kind_names[kind];
    zr_backend *backend = create(kind, 0);
    struct zr_range *range;
    struct zr_handle *handles[HANDLES];
    struct zr_handle *want[SLOTS] = {0};
    size_t first_of[SLOTS] = {0};
    unsigned wrong = 0;
    zr_backend_reserve(backend, SLOTS * granule_bytes, &range);
    for (unsigned i = 0; i < HANDLES; i++)
        wrong += zr_backend_create(backend, sizes[i % (kind == SIM ? 7 : 6)] * granule_bytes, &handles[i]) !=
                 ZR_OK;
    srandom((unsigned)seed);
    for (unsigned step = 0; step < STEPS; step++) {
        struct zr_handle *handle = handles[(unsigned)random() % HANDLES];
        size_t at = (size_t)random() % SLOTS, count = handle->bytes / granule_bytes;
        bool free_there = at + count <= SLOTS && (backend->can.aliases || handle->mappings_count == 0);
        for (size_t i = 0; free_there && i < count; i++)
            free_there = !want[at + i];
        if (want[at] && random() % 2) {
            count = want[at]->bytes / granule_bytes;
            size_t first = first_of[at];
            wrong += zr_backend_unmap(range, granules(first, count)) != ZR_OK;
            for (size_t i = 0; i < count; i++)
                want[first + i] = NULL;
            continue;
        }
        wrong += (zr_backend_map(range, at * granule_bytes, handle) == ZR_OK) != free_there;
        for (size_t i = 0; free_there && i < count; i++) {
            want[at + i] = handle;
            first_of[at + i] = at;
        }
        size_t look = (size_t)random() % SLOTS;
        const struct zr_mapping *mapping = zr_range_mapping(range, look * granule_bytes);
        wrong += (mapping ? mapping->handle : NULL) != want[look];
    }
    tap_is(wrong, 0, "%s: %d random maps and unmaps agree with the model (seed %llu)", name, STEPS,
           (unsigned long long)seed);
    for (size_t at = 0; at < SLOTS; at++)
        if (want[at] && first_of[at] == at)
            zr_backend_unmap(range, granules(at, want[at]->bytes / granule_bytes));
    for (unsigned i = 0; i < HANDLES; i++)
        zr_backend_destroy_handle(backend, handles[i]);
    tap_is(backend->vmas_count, 0, "%s: no mapping is left", name);
    tap_is(zr_slab_live_count(&backend->chunks) + zr_slab_live_count(&backend->mappings) +
               zr_slab_live_count(&backend->handles),
           0, "%s: no record either", name);
    zr_backend_release(range);
    tap_result(zr_backend_destroy(backend), ZR_OK, "%s: the end", name);
}

/* ---- What only one of them has ------------------------------------------------------------------------- */

static void test_host(void)
{
    zr_backend *backend = create(HOST, 0);
    struct zr_range *range;
    struct zr_handle *a = handle_of(backend, 1), *b = handle_of(backend, 1);
    zr_backend_reserve(backend, 16 * granule_bytes, &range);
    zr_backend_map(range, 0, a);
    zr_backend_map(range, granule_bytes, b);
    zr_backend_set_access(range, granules(0, 2));
    tap_is(backend->vmas_count, 1, "host: handles in a row are one mapping to the kernel");
    strcpy(range->address, "moves");
    zr_backend_unmap(range, granules(0, 1));
    unsigned char resident;
    tap_ok(mincore(range->address, 4096, &resident) == 0, "host: the addresses stay reserved");
    zr_backend_map(range, 9 * granule_bytes, a);
    zr_backend_map(range, 11 * granule_bytes, a);
    zr_backend_set_access(range, granules(9, 1));
    zr_backend_set_access(range, granules(11, 1));
    tap_ok(strcmp(range->address + 9 * granule_bytes, "moves") == 0, "host: bytes move with their granule");
    range->address[11 * granule_bytes] = 'M';
    tap_ok(range->address[9 * granule_bytes] == 'M', "host: two addresses, one granule");
    zr_backend_unmap(range, granules(9, 1));
    zr_backend_unmap(range, granules(11, 1));
    zr_backend_unmap(range, granules(1, 1));
    zr_backend_destroy_handle(backend, a);
    zr_backend_destroy_handle(backend, b);
    zr_backend_release(range);
    zr_backend_destroy(backend);

    tap_result(zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = 3 << 20}),
               ZR_ERR_INVALID, "host: a granule of 3 MiB");
    tap_result(zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = 512}),
               ZR_ERR_INVALID, "host: a granule below the page");
    tap_result(zr_backend_host_create(NULL, NULL), ZR_ERR_INVALID, "host: to nowhere");
}

static int advice_error; /* what the third of the calls that commit memory gets, and those after it */
static unsigned advice_count;

int madvise(void *address, size_t bytes, int advice)
{
    if (advice_error && advice == 23 /* MADV_POPULATE_WRITE */ && ++advice_count > 2) {
        errno = advice_error;
        return -1;
    }
    return (int)syscall(SYS_madvise, address, bytes, advice);
}

static long blocks_of(zr_backend *backend, const struct zr_handle *handle)
{
    struct zr_segment segment;
    struct stat status = {0};
    zr_backend_export(backend, handle, &segment);
    fstat(segment.fd, &status);
    return status.st_blocks;
}

/* A handle larger than what is committed at once, with half of it there; and files of a limited length. */
static void test_committing(void)
{
    const size_t bytes = (size_t)48 << 20;
    zr_backend *backend = create(HOST, 0);
    struct zr_handle *small = handle_of(backend, 1), *large = NULL;
    struct rlimit before, limit;
    long blocks = blocks_of(backend, small);
    advice_error = ENOMEM;
    tap_result(zr_backend_create(backend, bytes, &large), ZR_ERR_MEMORY, "host: the last third is refused");
    tap_ok(advice_count == 3 && blocks_of(backend, small) == blocks && backend->held_bytes == granule_bytes,
           "host: the others are given back: %ld blocks", blocks_of(backend, small) - blocks);
    advice_error = EINVAL;
    tap_result(zr_backend_create(backend, bytes, &large), ZR_OK, "host: an old kernel has another way");
    tap_is(blocks_of(backend, small) - blocks, bytes / 512, "host: to all of it");
    advice_error = 0;
    zr_backend_destroy_handle(backend, large);
    tap_is(blocks_of(backend, small), blocks, "host: which goes, too");
    zr_backend_destroy_handle(backend, small);
    zr_backend_destroy(backend);

    backend = create(HOST, 0);
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 2 * granule_bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
    zr_result results[2] = {zr_backend_create(backend, 2 * granule_bytes, &large),
                            zr_backend_create(backend, granule_bytes, &small)};
    setrlimit(RLIMIT_FSIZE, &before);
    tap_result(results[0], ZR_OK, "host: a file of as many bytes as `ulimit -f` has");
    tap_ok(results[1] == ZR_ERR_MEMORY && strstr(zr_last_error(), "ulimit -f"), "host: and no more: %s",
           zr_last_error());
    zr_backend_destroy_handle(backend, large);
    tap_result(zr_backend_destroy(backend), ZR_OK, "host: the end");
}

/* Memory goes from under a mapping, and comes again. */
static void test_vacating(void)
{
    zr_backend *backend = create(HOST, 3 * granule_bytes);
    struct zr_range *range;
    struct zr_handle *two = handle_of(backend, 2), *one = handle_of(backend, 1), *more = NULL;
    const struct {
        const char *words;
        struct zr_bounds extent;
    } none[] = {{"a part of a mapping", granules(0, 1)}, {"two mappings", granules(0, 3)},
                {"what is not mapped", granules(5, 1)},  {"no access", granules(2, 1)},
                {"past the end", granules(7, 2)},        {"half a granule", {0, granule_bytes / 2}}};
    zr_backend_reserve(backend, 8 * granule_bytes, &range);
    zr_backend_map(range, 0, two);
    zr_backend_map(range, 2 * granule_bytes, one);
    zr_backend_set_access(range, granules(0, 2));
    range->address[granule_bytes] = 'x';
    size_t vmas = backend->vmas_count;
    tap_is(vmas, 2, "host: memory in a row with access and without is two mappings to the kernel");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        tap_result(zr_backend_vacate(range, none[i].extent), ZR_ERR_INVALID, "host: %s cannot go",
                   none[i].words);
        tap_result(zr_backend_occupy(range, none[i].extent), ZR_ERR_INVALID, "host: nor come");
    }
    tap_result(zr_backend_occupy(range, granules(0, 2)), ZR_ERR_INVALID, "host: what has not gone");
    tap_ok(range->address[granule_bytes] == 'x' && backend->held_bytes == 3 * granule_bytes &&
               backend->vmas_count == vmas,
           "host: nothing has changed");
    tap_result(zr_backend_vacate(range, granules(0, 2)), ZR_OK, "host: two granules go");
    tap_result(zr_backend_vacate(range, granules(0, 2)), ZR_ERR_INVALID, "host: once");
    tap_is(backend->held_bytes, granule_bytes, "host: nobody holds them");
    tap_result(zr_backend_fill(backend, &(struct zr_fill){.to = range->address, .bytes = 1}), ZR_ERR_INVALID,
               "host: nobody can write there");
    tap_result(zr_backend_create(backend, 2 * granule_bytes, &more), ZR_OK, "host: others have the memory");
    zr_backend_destroy_handle(backend, more);
    zr_fault_set(ZR_FAULT_CREATE, 1);
    tap_result(zr_backend_occupy(range, granules(0, 2)), ZR_ERR_MEMORY, "host: there is none to come");
    zr_fault_set(ZR_FAULT_CREATE, 0);
    tap_is(backend->held_bytes, granule_bytes, "host: and none is held");
    zr_fault_set(ZR_FAULT_ACCESS, 1);
    tap_result(zr_backend_occupy(range, granules(0, 2)), ZR_ERR_ADDRESSES, "host: it comes without access");
    zr_fault_set(ZR_FAULT_ACCESS, 0);
    tap_is(backend->held_bytes, granule_bytes, "host: and goes again");
    for (unsigned i = 0; i < 2; i++) {
        tap_result(zr_backend_occupy(range, granules(0, 2)), ZR_OK, "host: it comes");
        tap_ok(range->address[granule_bytes] == 0 && backend->held_bytes == 3 * granule_bytes &&
                   backend->vmas_count == vmas,
               "host: empty, and counts again");
        range->address[granule_bytes] = 'y';
        zr_backend_vacate(range, granules(0, 2));
    }
    zr_backend_unmap(range, granules(0, 3));
    zr_backend_destroy_handle(backend, two);
    zr_backend_destroy_handle(backend, one);
    tap_is(backend->held_bytes, 0, "host: what has gone is not counted twice at its end");
    zr_backend_release(range);
    tap_result(zr_backend_destroy(backend), ZR_OK, "host: the end");
    backend = create(SIM, 0);
    zr_backend_reserve(backend, granule_bytes, &range);
    tap_result(zr_backend_vacate(range, granules(0, 1)), ZR_ERR_UNAVAILABLE, "sim: keeps what it has");
    zr_backend_release(range);
    zr_backend_destroy(backend);
}

/* A run may begin and end in chunks that are not there yet. */
static void test_slots(void)
{
    struct zr_slab pool;
    struct zr_slots slots;
    bool enough = true;
    zr_slab_init(&pool, sizeof(struct zr_slot_chunk), ZR_POOL_FAULTS);
    zr_slots_init(&slots, &pool, 4 * ZR_SLOTS_PER_CHUNK);
    for (unsigned i = 0; i < 100; i++) {
        enough &= zr_slots_reserve(&slots, 1) && pool.spare_count >= 2;
        zr_slab_take(&pool);
    }
    tap_ok(enough, "each run has records for both of its ends");
    zr_slots_end(&slots);
    zr_slab_end(&pool);
}

static unsigned asked_count; /* times that this process asked how much memory the machine has left */

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    unsigned mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, unsigned) : 0;
    va_end(list);
    asked_count += strcmp(path, "/proc/meminfo") == 0;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* The machine is asked anew after each 64 MiB at the latest. */
static void test_headroom(void)
{
    const size_t bytes = (size_t)8 << 20;
    zr_backend *backend;
    struct zr_handle *handle;
    unsigned counts[2];
    zr_backend_host_create(&backend, NULL);
    for (unsigned i = 0; i < 10; i++) {
        zr_result result = zr_backend_create(backend, bytes, &handle);
        counts[i > 0] = asked_count;
        if (result != ZR_OK)
            break;
        zr_backend_destroy_handle(backend, handle);
    }
    tap_ok(counts[0] > 0 && counts[1] > counts[0], "host: the machine is asked %u times before 80 MiB",
           counts[1]);
    zr_backend_destroy(backend);
}

static void test_private(void)
{
    zr_backend *backend = create(PRIVATE, 0);
    struct zr_range *range;
    struct zr_handle *handle = handle_of(backend, 16);
    zr_backend_reserve(backend, 16 * granule_bytes, &range);
    zr_backend_map(range, 0, handle);
    zr_backend_set_access(range, granules(0, 16));
    unsigned char resident[256];
    mincore(range->address, 16 * granule_bytes, resident);
    tap_ok(!(resident[0] & 1) && !(resident[255] & 1), "private: no page is there before it is touched");
    strcpy(range->address, "parent");
    pid_t child = fork();
    if (child == 0) {
        bool copy = strcmp(range->address, "parent") == 0;
        strcpy(range->address, "child");
        _exit(copy ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    tap_ok(status == 0 && strcmp(range->address, "parent") == 0, "private: a child has a copy");
    zr_backend_unmap(range, granules(0, 16));
    zr_backend_map(range, 0, handle);
    zr_backend_set_access(range, granules(0, 16));
    tap_ok(range->address[0] == 0, "private: unmapped memory is gone");
    zr_backend_unmap(range, granules(0, 16));
    zr_backend_destroy_handle(backend, handle);
    zr_backend_release(range);
    tap_result(zr_backend_destroy(backend), ZR_OK, "private: the end");
}

static void test_sim(void)
{
    zr_backend *backend;
    struct zr_range *range;
    struct zr_handle *handle;
    zr_backend_sim_create(
        &backend, &(struct zr_sim_options){.call_ns = {1, 20, 300, 4000, 50000, 600000, 7000000, 80000000}});
    zr_backend_reserve(backend, 64 << 20, &range);
    zr_backend_create(backend, 2 << 20, &handle);
    zr_backend_map(range, 0, handle);
    zr_backend_set_access(range, (struct zr_bounds){0, 2 << 20});
    zr_backend_fill(backend, &(struct zr_fill){.to = range->address, .bytes = 1});
    zr_backend_unmap(range, (struct zr_bounds){0, 2 << 20});
    zr_backend_destroy_handle(backend, handle);
    zr_backend_release(range);
    tap_is(zr_sim_clock_ns(backend), 87654321, "sim: each call takes the time it was given");
    char local;
    tap_result(zr_backend_fill(backend, &(struct zr_fill){.to = &local, .bytes = 1}), ZR_ERR_INVALID,
               "sim: real memory is not its memory");
    void *out;
    tap_result(zr_import(backend, &(struct zr_segment){.bytes = 2 << 20}, 1, &out), ZR_ERR_UNAVAILABLE,
               "sim: nothing to share");
    tap_result(zr_backend_destroy(backend), ZR_OK, "sim: the end");
}

int main(void)
{
    uint64_t seed = run_seed();
    if (!cuda_on_card())
        emulator = cuda_emulator();
    for (enum kind kind = HOST; kind < (emulator ? KINDS : CUDA_WITHOUT_NODE); kind++) {
        granule_bytes = kind < CUDA ? (size_t)64 << 10 : (size_t)2 << 20;
        if (kind >= CUDA && !available(kind))
            continue;
        test_handles(kind);
        test_lives(kind);
        test_ranges(kind);
        test_mappings(kind);
        test_copies(kind);
        test_random(kind, seed);
    }
    granule_bytes = (size_t)64 << 10;
    test_host();
    test_headroom();
    test_committing();
    test_vacating();
    test_slots();
    test_private();
    test_sim();
    if (emulator) {
        struct zr_emulator_state state = emulator->state();
        tap_is(state.memories_count + state.mappings_count + state.reservations_count + state.events_count, 0,
               "cuda: the driver has everything back");
        tap_is(state.retained_count + state.stack_depth, 0, "cuda: and no context is held");
        tap_is(state.without_context_count, 0, "cuda: no call was made without a context");
    }
    return tap_done();
}
