/* heap.c: the host heap: jemalloc divides extents into objects, and the zr arena supplies the extents.
 *
 * heap.mk puts every symbol of jemalloc under the prefix zr_je_, so that the program's malloc is not
 * replaced. The heap creates one jemalloc arena. Its extent hooks allocate each slab and each large object
 * from the zr arena as one block of exactly that size, and free the block as soon as it is empty (retain and
 * decay are off), so that the zr arena's statistics and tags include the heap and a small heap stays small.
 *
 * jemalloc keeps its records outside slabs and never writes to a free object. With poisoning, free objects
 * and the unused rest of a slab are therefore poisoned like an arena's free space, and this file instead of
 * jemalloc writes to objects (zeros, and the contents of a moved object). */
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

/* jemalloc's settings: no thread caches, no threads, no arenas of its own beyond the required one, no extra
 * page per large object for address colouring. */
extern const char *zr_je_malloc_conf;
const char *zr_je_malloc_conf = "narenas:1,tcache:false,background_thread:false,dss:disabled,retain:false,"
                                "dirty_decay_ms:0,muzzy_decay_ms:0,oversize_threshold:0";

/* heap.mk redirects jemalloc's reads of MALLOC_CONF and /etc/malloc.conf here, which find nothing: these
 * settings are for the program's own jemalloc, if any. */
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

/* heap.mk redirects the registration of jemalloc's fork handlers here. zr_heap_start() registers them after
 * the arena's handlers, so that they run first: jemalloc's locks precede the arena's in the lock order, but
 * jemalloc registers its handlers before main(). */
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

/* A block of which jemalloc has returned a part; the block is freed when all its bytes are returned. This
 * happens if a thread splits an extent that another thread has freed. The record is stored in the first
 * returned part. */
struct part {
    struct part *next; /* in the same bucket */
    void *block;
    size_t returned_bytes;
};
#define PART_BUCKETS 64

static struct {
    zr_arena *arena;             /* set before `flags`, cleared after `flags` */
    unsigned index;              /* number of jemalloc's arena */
    bool poison;                 /* ASan or Valgrind is told about free objects */
    _Atomic int flags;           /* for every call into jemalloc; 0: the heap is stopped */
    pthread_mutex_t change_lock; /* guards start and stop */
    pthread_mutex_t parts_lock;
    struct part *parts[PART_BUCKETS]; /* lock: parts_lock */
} heap = {.change_lock = PTHREAD_MUTEX_INITIALIZER, .parts_lock = PTHREAD_MUTEX_INITIALIZER};

/* State of the thread's current request: the extent that jemalloc obtained for it (jemalloc leaks the extent
 * if it has no memory for a record), and whether the arena refused an extent. */
static __thread void *new_extent __attribute__((tls_model("initial-exec")));
static __thread bool arena_refused __attribute__((tls_model("initial-exec")));

/* ---- Extent hooks --------------------------------------------------------------------------------------
 * jemalloc calls these under its own locks: they must not call jemalloc. True means failure or refusal. */

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
    new_extent = block;
    if (heap.poison && !*zero) /* zeroed extents hold jemalloc's records, to which it writes */
        zr_poison_free(block, bytes);
    return block;
}

/* Records a returned part of a block. True: all of the block is returned. */
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
    new_extent = block.address == new_extent ? NULL : new_extent;
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

/* Merges only parts of the same block, because each block is freed separately. */
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

static void register_fork(void)
{
    if (jemalloc_fork.before)
        pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* ---- Start and stop ------------------------------------------------------------------------------------ */

/* Calls jemalloc's control function with the arena's number in the name. Returns jemalloc's error number. */
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
    pthread_once(&fork_once, register_fork);
    pthread_mutex_lock(&heap.change_lock);
    if (heap.arena) {
        result = zr_fail(ZR_ERR_INVALID, "the heap is already started");
        goto unwind;
    }
    /* Created with jemalloc's default hooks and then switched, so that jemalloc's records of the arena are
     * not allocated from the arena itself. */
    int error = zr_je_mallctl("arenas.create", &heap.index, &index_bytes, NULL, 0);
    if (error != 0) {
        result = zr_fail(ZR_ERR_HOST_MEMORY,
                         "the system refused memory for the heap's records (error %d): see `ulimit -v` and "
                         "vm.max_map_count",
                         error);
        goto unwind;
    }
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

/* The flags of a started heap. 0, with an error: the heap is not started. */
static int get_flags(void)
{
    int flags = atomic_load_explicit(&heap.flags, memory_order_acquire);
    if (__builtin_expect(flags == 0, 0))
        zr_fail(ZR_ERR_INVALID, "the heap is not started: call zr_heap_start() first");
    return flags;
}

/* Returns NULL and sets the error, which includes the arena's message if the arena refused an extent. */
static void *fail_allocation(size_t bytes)
{
    char why[512] = "the system refused memory for its records, see `ulimit -v` and vm.max_map_count";
    if (arena_refused)
        snprintf(why, sizeof why, "%s", zr_last_error());
    arena_refused = false;
    zr_fail(ZR_ERR_MEMORY, "the host heap cannot allocate %zu bytes: %s", bytes, why);
    return NULL;
}

/* Rejects sizes beyond the address space, because jemalloc sets no message. */
static bool too_large(size_t bytes)
{
    if (bytes <= PTRDIFF_MAX)
        return false;
    zr_fail(ZR_ERR_INVALID, "an object of %zu bytes exceeds the address space", bytes);
    return true;
}

/* Handles jemalloc's result. After a failure, frees the extent that jemalloc obtained and leaked. */
static void *finish_call(void *object)
{
    if (__builtin_expect(!object && new_extent, 0))
        zr_arena_free(heap.arena, new_extent);
    new_extent = NULL;
    return object;
}

/* Allocates an object. NULL: failed, without a message. */
static void *allocate_object(size_t bytes, bool zero, int flags)
{
    if (__builtin_expect(!heap.poison, 1))
        return finish_call(zr_je_mallocx(bytes, flags | (zero ? MALLOCX_ZERO : 0)));
    void *object = finish_call(zr_je_mallocx(bytes, flags));
    if (object)
        zr_poison_block(object, bytes, bytes);
    return object && zero ? memset(object, 0, bytes) : object;
}

/* Reads the object, so that ASan or Valgrind reports an object that was already freed. */
static void probe(const void *object)
{
    (void)*(const volatile char *)object;
}

static void free_object(void *object, int flags)
{
    if (__builtin_expect(heap.poison, 0)) {
        probe(object);
        zr_poison_free(object, zr_je_sallocx(object, flags));
    }
    zr_je_dallocx(object, flags);
}

static void *allocate(size_t bytes, bool zero)
{
    int flags = get_flags();
    if (flags == 0 || too_large(bytes))
        return NULL;
    void *object = allocate_object(bytes ? bytes : 1, zero, flags);
    return object ? object : fail_allocation(bytes);
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

void zr_heap_free(void *object)
{
    int flags = object ? get_flags() : 0;
    if (flags)
        free_object(object, flags);
}
