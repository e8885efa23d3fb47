/* heap.c: the host heap: jemalloc for the small sizes, the arena for everything it is made of.
 *
 * heap.mk puts every symbol of jemalloc under zr_je_, so that the program's malloc stays what it was. One
 * jemalloc arena is made for us; its extent hooks take each slab and each large object from the zr arena as
 * one block of exactly that size and give it back as soon as it is empty (retain and decay are off), so that
 * the arena's free extents, statistics and tags tell the truth and a small heap stays small.
 *
 * jemalloc keeps its records of a slab elsewhere and never writes into a free object. So free objects, and
 * what is left of a slab, are poisoned like an arena's free space; what jemalloc would write into an object
 * itself (zeros, the contents of one that moves) is then written here. */
#define _GNU_SOURCE
#include "alloc/heap/heap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define JEMALLOC_NO_RENAME
#include <jemalloc/jemalloc.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/poison.h"

/* jemalloc's functions under the prefix. */
void *zr_je_mallocx(size_t bytes, int flags);
void *zr_je_rallocx(void *object, size_t bytes, int flags);
void zr_je_dallocx(void *object, int flags);
size_t zr_je_sallocx(const void *object, int flags);
size_t zr_je_nallocx(size_t bytes, int flags);
int zr_je_mallctl(const char *name, void *old_value, size_t *old_bytes, void *new_value, size_t new_bytes);

/* jemalloc's settings: no thread caches (flags say so too), no threads, no arenas of its own beyond the one
 * it cannot do without, no address colouring that costs a page per large object. */
extern const char *zr_je_malloc_conf;
const char *zr_je_malloc_conf = "narenas:1,tcache:false,background_thread:false,dss:disabled,retain:false,"
                                "dirty_decay_ms:0,muzzy_decay_ms:0,oversize_threshold:0";

/* MALLOC_CONF and /etc/malloc.conf are meant for the program's own jemalloc, if it has one: heap.mk leads our
 * copy here instead, and there is nothing to read. */
char *zr_je_secure_getenv(const char *name);
ssize_t zr_je_readlink(const char *path, char *buffer, size_t bytes);

char *zr_je_secure_getenv(const char *name)
{
    (void)name;
    return NULL;
}

ssize_t zr_je_readlink(const char *path, char *buffer, size_t bytes)
{
    (void)path, (void)buffer, (void)bytes;
    return -1;
}

/* jemalloc's handlers around fork(), registered before main(), would run after the arena's and lock the other
 * way round: its locks come before the arena's. heap.mk leads the registration here, and zr_heap_start()
 * makes it once the arena has made its own. */
int zr_je_pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void));

static struct {
    void (*before)(void), (*parent)(void), (*child)(void);
} jemalloc_fork;

int zr_je_pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    jemalloc_fork.before = before;
    jemalloc_fork.parent = parent;
    jemalloc_fork.child = child;
    return 0;
}

/* A block of which jemalloc has given a part back: it is freed when all of it has come. That takes an extent
 * which one thread freed and another split before it went. The record lies in the first part that came back.
 */
struct part {
    struct part *next; /* of the same bucket */
    void *block;
    size_t returned_bytes;
};
#define PART_BUCKETS 64

static struct {
    zr_arena *arena;             /* set before flags, cleared after */
    unsigned index;              /* of jemalloc's arena */
    bool poison;                 /* free objects are reported to ASan or Valgrind */
    _Atomic int flags;           /* for every call into jemalloc; 0: the heap is stopped */
    pthread_mutex_t change_lock; /* start and stop */
    pthread_mutex_t parts_lock;
    struct part *parts[PART_BUCKETS]; /* lock: parts_lock */
} heap = {.change_lock = PTHREAD_MUTEX_INITIALIZER, .parts_lock = PTHREAD_MUTEX_INITIALIZER};

/* Of the request under way: the extent that jemalloc has got for it, which it forgets where it cannot record
 * it, and that the arena had none. */
static __thread void *fresh __attribute__((tls_model("initial-exec")));
static __thread bool arena_refused __attribute__((tls_model("initial-exec")));

/* ---- Extent hooks --------------------------------------------------------------------------------------
 * Called by jemalloc under its own locks: they must not come back to it. True means failure or refusal. */

static void *extent_alloc(extent_hooks_t *hooks, void *new_address, size_t bytes, size_t alignment,
                          bool *zero, bool *commit, unsigned index)
{
    struct zr_request request = {.bytes = bytes, .alignment = alignment, .tag = ZR_TAG_OTHER};
    void *block = NULL;
    (void)hooks, (void)index;
    if (new_address)
        return NULL;
    arena_refused = zr_arena_alloc(heap.arena, &request, &block) != ZR_OK;
    if (arena_refused)
        return NULL;
    if (*zero)
        memset(block, 0, bytes);
    *commit = true;
    fresh = block;
    if (heap.poison && !*zero) /* jemalloc's own are asked for as zeros, and it writes to them */
        zr_poison_free(block, bytes);
    return block;
}

/* Notes that a part of a block came back; true when that was the last of it. */
static bool part_returned(const struct zr_block_info *block, void *address, size_t bytes)
{
    struct part **link = &heap.parts[((uintptr_t)block->address >> 12) % PART_BUCKETS];
    pthread_mutex_lock(&heap.parts_lock);
    while (*link && (*link)->block != block->address)
        link = &(*link)->next;
    struct part *part = *link;
    if (!part) {
        part = *link = address;
        if (heap.poison)
            zr_poison_clear(address, sizeof *part);
        *part = (struct part){.block = block->address};
    }
    part->returned_bytes += bytes;
    zr_assert(part->returned_bytes <= block->bytes);
    bool whole = part->returned_bytes == block->bytes;
    if (whole)
        *link = part->next;
    pthread_mutex_unlock(&heap.parts_lock);
    return whole;
}

static bool extent_dalloc(extent_hooks_t *hooks, void *address, size_t bytes, bool committed, unsigned index)
{
    struct zr_block_info block;
    (void)hooks, (void)committed, (void)index;
    if (zr_arena_find(heap.arena, address, &block) != ZR_OK)
        return true;
    bool whole = address == block.address && bytes == block.bytes;
    fresh = block.address == fresh ? NULL : fresh;
    if (!whole && !part_returned(&block, address, bytes))
        return false;
    return zr_arena_free(heap.arena, block.address) != ZR_OK;
}

static void extent_destroy(extent_hooks_t *hooks, void *address, size_t bytes, bool committed, unsigned index)
{
    extent_dalloc(hooks, address, bytes, committed, index);
}

static bool extent_split(extent_hooks_t *hooks, void *address, size_t bytes, size_t first_bytes,
                         size_t second_bytes, bool committed, unsigned index)
{
    (void)hooks, (void)address, (void)bytes, (void)first_bytes, (void)second_bytes, (void)committed,
        (void)index;
    return false;
}

/* Only the parts of one block may become one again: two blocks are freed one by one. */
static bool extent_merge(extent_hooks_t *hooks, void *first, size_t first_bytes, void *second,
                         size_t second_bytes, bool committed, unsigned index)
{
    struct zr_block_info one, other;
    (void)hooks, (void)first_bytes, (void)second_bytes, (void)committed, (void)index;
    return zr_arena_find(heap.arena, first, &one) != ZR_OK ||
           zr_arena_find(heap.arena, second, &other) != ZR_OK || one.address != other.address;
}

static extent_hooks_t extent_hooks = {
    .alloc = extent_alloc,
    .dalloc = extent_dalloc,
    .destroy = extent_destroy,
    .split = extent_split,
    .merge = extent_merge,
};

/* ---- Fork ---------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&heap.change_lock);
    jemalloc_fork.before();
    pthread_mutex_lock(&heap.parts_lock);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&heap.parts_lock);
    jemalloc_fork.parent();
    pthread_mutex_unlock(&heap.change_lock);
}

static void after_fork_child(void)
{
    pthread_mutex_unlock(&heap.parts_lock);
    jemalloc_fork.child();
    pthread_mutex_unlock(&heap.change_lock);
}

static void wire_fork(void)
{
    if (jemalloc_fork.before)
        pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* ---- Start and stop ------------------------------------------------------------------------------------ */

/* jemalloc's control of a name with our arena's number in it. Returns its error number. */
static int arena_control(const char *format, void *old_value, size_t old_bytes, void *new_value,
                         size_t new_bytes) __attribute__((format(printf, 1, 0)));

static int arena_control(const char *format, void *old_value, size_t old_bytes, void *new_value,
                         size_t new_bytes)
{
    char name[64];
    snprintf(name, sizeof name, format, heap.index);
    return zr_je_mallctl(name, old_value, old_value ? &old_bytes : NULL, new_value, new_bytes);
}

zr_result zr_heap_start(zr_arena *arena)
{
    zr_result result = ZR_OK;
    static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
    size_t index_bytes = sizeof heap.index;
    extent_hooks_t *hooks = &extent_hooks;

    if (!arena)
        return zr_fail(ZR_ERR_INVALID, "zr_heap_start: arena is NULL");
    pthread_once(&fork_once, wire_fork);
    pthread_mutex_lock(&heap.change_lock);
    if (heap.arena) {
        result = zr_fail(ZR_ERR_INVALID, "the heap is already started");
        goto unwind;
    }
    /* Created with jemalloc's own hooks and switched over: its records of the arena must not land in it. */
    int error = zr_je_mallctl("arenas.create", &heap.index, &index_bytes, NULL, 0);
    if (error != 0) {
        result = zr_fail(ZR_ERR_HOST_MEMORY,
                         "the system refused memory for the heap's records (error %d): see `ulimit -v` and "
                         "vm.max_map_count",
                         error);
        goto unwind;
    }
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the value is the pointer */
    error = arena_control("arena.%u.extent_hooks", NULL, 0, &hooks, sizeof hooks);
    if (error != 0) {
        arena_control("arena.%u.destroy", NULL, 0, NULL, 0);
        result = zr_fail(ZR_ERR_UNAVAILABLE, "jemalloc refused the heap's extent hooks (error %d)", error);
        goto unwind;
    }
    heap.arena = arena;
    heap.poison = zr_option_get(ZR_OPTION_POISON) && zr_poison_wanted();
    atomic_store(&heap.flags, MALLOCX_ARENA(heap.index) | MALLOCX_TCACHE_NONE);
unwind:
    pthread_mutex_unlock(&heap.change_lock);
    return result;
}

zr_result zr_heap_stop(size_t *leaked_bytes)
{
    zr_result result = ZR_OK;
    uint64_t epoch = 1;
    size_t small_bytes = 0, large_bytes = 0;

    if (leaked_bytes)
        *leaked_bytes = 0;
    pthread_mutex_lock(&heap.change_lock);
    if (!heap.arena) {
        result = zr_fail(ZR_ERR_INVALID, "the heap is not started");
        goto unwind;
    }
    atomic_store(&heap.flags, 0);
    zr_je_mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    arena_control("stats.arenas.%u.small.allocated", &small_bytes, sizeof small_bytes, NULL, 0);
    arena_control("stats.arenas.%u.large.allocated", &large_bytes, sizeof large_bytes, NULL, 0);
    if (leaked_bytes)
        *leaked_bytes = small_bytes + large_bytes;
    int error = arena_control("arena.%u.destroy", NULL, 0, NULL, 0);
    if (error != 0)
        result = zr_fail(ZR_ERR_CORRUPT, "jemalloc failed to destroy the heap (error %d)", error);
    heap.arena = NULL;
    memset(heap.parts, 0, sizeof heap.parts);
unwind:
    pthread_mutex_unlock(&heap.change_lock);
    return result;
}

/* ---- Objects ------------------------------------------------------------------------------------------- */

/* The flags of a running heap, 0 with words otherwise. */
static int running(void)
{
    int flags = atomic_load_explicit(&heap.flags, memory_order_acquire);
    if (__builtin_expect(flags == 0, 0))
        zr_fail(ZR_ERR_INVALID, "the heap is not started: call zr_heap_start() first");
    return flags;
}

/* NULL with the arena's own words behind ours, if it was the arena that refused. */
static void *refused(size_t bytes)
{
    char why[512] = "the system refused memory for its records, see `ulimit -v` and vm.max_map_count";
    if (arena_refused)
        snprintf(why, sizeof why, "%s", zr_last_error());
    arena_refused = false;
    zr_fail(ZR_ERR_MEMORY, "the host heap cannot allocate %zu bytes: %s", bytes, why);
    return NULL;
}

/* A size that no machine has; jemalloc's own check would leave no words. */
static bool too_large(size_t bytes)
{
    if (bytes <= PTRDIFF_MAX)
        return false;
    zr_fail(ZR_ERR_INVALID, "an object of %zu bytes exceeds the address space", bytes);
    return true;
}

/* What jemalloc has answered: where that is nothing, no extent was taken for it. */
static void *answered(void *object)
{
    if (__builtin_expect(!object && fresh, 0))
        zr_arena_free(heap.arena, fresh);
    fresh = NULL;
    return object;
}

/* NULL without words. */
static void *take(size_t bytes, bool zero, int flags)
{
    if (__builtin_expect(!heap.poison, 1))
        return answered(zr_je_mallocx(bytes, flags | (zero ? MALLOCX_ZERO : 0)));
    void *object = answered(zr_je_mallocx(bytes, flags));
    if (object)
        zr_poison_block(object, bytes, bytes);
    return object && zero ? memset(object, 0, bytes) : object;
}

/* Freed before: reported here. */
static void touch(const void *object)
{
    (void)*(const volatile char *)object;
}

static void give(void *object, int flags)
{
    if (__builtin_expect(heap.poison, 0)) {
        touch(object);
        zr_poison_free(object, zr_je_sallocx(object, flags));
    }
    zr_je_dallocx(object, flags);
}

static void *allocate(size_t bytes, bool zero)
{
    int flags = running();
    if (flags == 0 || too_large(bytes))
        return NULL;
    void *object = take(bytes ? bytes : 1, zero, flags);
    return object ? object : refused(bytes);
}

void *zr_heap_alloc(size_t bytes)
{
    return allocate(bytes, false);
}

void *zr_heap_zalloc(size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) {
        zr_fail(ZR_ERR_INVALID, "%zu objects of %zu bytes overflow", count, bytes);
        return NULL;
    }
    return allocate(total, true);
}

/* Objects from here on have an extent of their own. */
#define LARGE_BYTES ((size_t)16 << 10)

/* Another object with the contents; NULL where that cannot be had. */
static void *move(void *old, size_t old_bytes, size_t bytes, int flags)
{
    void *object = take(bytes, false, flags);
    if (!object)
        return NULL;
    if (heap.poison) /* the requested size is unknown */
        zr_poison_clear(old, old_bytes);
    memcpy(object, old, old_bytes < bytes ? old_bytes : bytes);
    give(old, flags);
    return object;
}

void *zr_heap_realloc(void *old, size_t bytes)
{
    void *object = NULL;
    if (!old)
        return allocate(bytes, false);
    int flags = running();
    if (flags == 0 || too_large(bytes))
        return NULL;
    bytes = bytes ? bytes : 1;
    if (__builtin_expect(heap.poison, 0))
        touch(old);
    size_t old_bytes = zr_je_sallocx(old, flags);
    /* Shrinking a large object in place would waste the rest of its block. */
    if (heap.poison || (old_bytes >= LARGE_BYTES && zr_je_nallocx(bytes, flags) < old_bytes))
        object = move(old, old_bytes, bytes, flags);
    if (!object && !heap.poison)
        object = answered(zr_je_rallocx(old, bytes, flags));
    return object ? object : refused(bytes);
}

void zr_heap_free(void *object)
{
    int flags = object ? running() : 0;
    if (flags)
        give(object, flags);
}
