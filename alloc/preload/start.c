/* start.c: start of the library: the ranges, jemalloc's memory, the bootstrap buffer, fork. See preload.h. */
#define _GNU_SOURCE
#include "alloc/service/client/client.h"
#include "alloc/preload/preload.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/sizes.h"
#include "alloc/base/system/file.h"
#include "alloc/core/arena.h"
#include "alloc/telemetry/python.h"
#include "alloc/telemetry/stacks.h"
#include "alloc/preload/control.h"
#include "alloc/preload/large.h"
#include "alloc/preload/pages.h"
#include "alloc/preload/usage.h"
#include "alloc/preload/measuring.h"
#include "alloc/preload/sampling.h"

struct zr_preload zr_preload;

void zr_preload_abort(const char *call, const void *pointer, const char *reason)
{
    zr_say("%s(%p): %s", call, pointer, reason);
    abort();
}

void zr_preload_report(void)
{
    zr_say("%s", zr_last_error());
}

/* ---- The bootstrap buffer ------------------------------------------------------------------------------ */

static struct {
    _Alignas(64) char bytes[64 << 10];
    _Atomic size_t used;
} bootstrap;

void *zr_bootstrap_alloc(size_t bytes, size_t alignment)
{
    enum { HEAD = 16 };
    alignment = alignment < HEAD ? HEAD : alignment;
    if (bytes > sizeof bootstrap.bytes || alignment > sizeof bootstrap.bytes)
        return NULL;
    size_t total_bytes = ((bytes + HEAD - 1) & ~(size_t)(HEAD - 1)) + HEAD + alignment;
    size_t at = atomic_fetch_add(&bootstrap.used, total_bytes);
    if (at + total_bytes > sizeof bootstrap.bytes)
        return NULL;
    char *object = bootstrap.bytes + at + HEAD;
    object += -(uintptr_t)object & (alignment - 1);
    memcpy(object - sizeof bytes, &bytes, sizeof bytes);
    return object;
}

bool zr_bootstrap_has(const void *pointer)
{
    return (uintptr_t)pointer - (uintptr_t)bootstrap.bytes < sizeof bootstrap.bytes;
}

size_t zr_bootstrap_bytes(const void *pointer)
{
    size_t bytes;
    memcpy(&bytes, (const char *)pointer - sizeof bytes, sizeof bytes);
    return bytes;
}

/* ---- The next allocator -------------------------------------------------------------------------------- */

const struct zr_next_malloc *zr_next_malloc(void)
{
    static struct zr_next_malloc next;
    static _Atomic bool found;
    if (!atomic_load_explicit(&found, memory_order_acquire)) {
        *(void **)&next.free = dlsym(RTLD_NEXT, "free");
        *(void **)&next.realloc = dlsym(RTLD_NEXT, "realloc");
        *(void **)&next.usable_size = dlsym(RTLD_NEXT, "malloc_usable_size");
        atomic_store_explicit(&found, true, memory_order_release);
    }
    return &next;
}

/* ---- jemalloc's memory --------------------------------------------------------------------------------- */

/* preload.mk redirects jemalloc's system calls here. jemalloc has its default settings, but no memory of
 * sbrk(). */
extern const char *zr_je_malloc_conf;
const char *zr_je_malloc_conf = "dss:disabled";

char *zr_je_secure_getenv(const char *name);
ssize_t zr_je_readlink(const char *path, char *buffer, size_t bytes);
int zr_je_pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void));
void *zr_je_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
int zr_je_munmap(void *address, size_t bytes);
int zr_je_madvise(void *address, size_t bytes, int advice);
int zr_je_clock_gettime(clockid_t clock, struct timespec *out);

/* Hides MALLOC_CONF, which configures the program's own jemalloc, if any. */
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

/* Set while jemalloc makes a thread's cache, because jemalloc does not check whether that allocation failed.
 */
static __thread bool is_making_cache __attribute__((tls_model("initial-exec")));

/* preload.mk redirects the calls of jemalloc's tsd.c and ctl.c here. */
#define MAKE_CACHE(name)                                                                                     \
    bool __real_zr_je_je_##name(void *thread);                                                               \
    bool __wrap_zr_je_je_##name(void *thread);                                                               \
    bool __wrap_zr_je_je_##name(void *thread)                                                                \
    {                                                                                                        \
        is_making_cache = true;                                                                              \
        bool failed = __real_zr_je_je_##name(thread);                                                        \
        is_making_cache = false;                                                                             \
        return failed;                                                                                       \
    }
MAKE_CACHE(tsd_tcache_enabled_data_init)
MAKE_CACHE(tsd_tcache_data_init)

/* Allocates a block of the small arena. A thread's cache (24 KiB) may exceed the limit. */
static void *take_block(const struct zr_request *request)
{
    void *block = NULL;
    zr_result result = zr_arena_alloc(zr_preload.small_arena, request, &block);
    if (result != ZR_OK && is_making_cache) {
        zr_backend_raise_limit(zr_preload.small_arena->backend, request->bytes);
        result = zr_arena_alloc(zr_preload.small_arena, request, &block);
    }
    return result == ZR_OK ? block : NULL;
}

/* Serves jemalloc's mappings as blocks of the small arena. */
void *zr_je_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (unlikely(zr_measuring.on))
        zr_measuring_tick(true);
    if (!zr_preload.small_arena || flags & MAP_FIXED)
        return mmap(address, bytes, protection, flags, fd, offset);
    size_t granule_bytes = (size_t)2 << 20;
    struct zr_request request = {.bytes = bytes,
                                 .alignment = bytes >= granule_bytes ? granule_bytes : ZR_PAGE_BYTES,
                                 .tag = ZR_TAG_OTHER};
    void *block = address ? NULL : take_block(&request);
    if (!block) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return block;
}

/* Discards the pages but keeps the addresses. jemalloc retains its memory and unmaps only the ends of an
 * aligned mapping, and memory that it has no record for. */
int zr_je_munmap(void *address, size_t bytes)
{
    if (!zr_preload.small_arena)
        return munmap(address, bytes);
    return zr_pages_discard(address, bytes, false) ? 0 : -1;
}

/* zr_pages_discard() also works where madvise is forbidden. */
int zr_je_madvise(void *address, size_t bytes, int advice)
{
    if (advice == MADV_DONTNEED)
        return zr_pages_discard(address, bytes, false) ? 0 : -1;
    return madvise(address, bytes, advice);
}

/* jemalloc reads the clock from time to time behind its thread caches, so the call serves as a tick. */
int zr_je_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (unlikely(zr_measuring.on))
        zr_measuring_tick(false);
    return clock_gettime(clock, out);
}

/* ---- fork ---------------------------------------------------------------------------------------------- */

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

static void before_fork(void)
{
    zr_control_before_fork();
    jemalloc_fork.before();
}

static void after_fork_parent(void)
{
    jemalloc_fork.parent();
    zr_control_after_fork(false);
}

static void after_fork_child(void)
{
    jemalloc_fork.child();
    zr_control_after_fork(true);
    if (zr_sampling.on)
        zr_sampling_after_fork_in_child();
    if (zr_measuring.on)
        zr_measuring_after_fork_in_child();
}

/* ---- Start --------------------------------------------------------------------------------------------- */

/* Whether the kernel counts every writable page against its commit limit. */
static bool overcommit_is_strict(void)
{
    char digit[2];
    return zr_read_text("/proc/sys/vm/overcommit_memory", digit, sizeof digit) == 1 && digit[0] == '2';
}

/* The bytes of addresses per arena. Addresses cost only large.c's marks, few of which are touched. `ulimit
 * -d` counts those marks and limits the memory, so more addresses than that limit are useless. */
static size_t range_bytes(void)
{
    struct rlimit data;
    long pages = sysconf(_SC_PHYS_PAGES);
    size_t memory_bytes = pages > 0 ? (size_t)pages * ZR_PAGE_BYTES : (size_t)8 << 30;
    size_t max_bytes = overcommit_is_strict() ? memory_bytes : memory_bytes * 8, bytes = (size_t)4 << 30;
    if (getrlimit(RLIMIT_DATA, &data) == 0 && data.rlim_cur < max_bytes)
        max_bytes = data.rlim_cur;
    while (bytes < max_bytes && bytes < (size_t)1 << 44)
        bytes *= 2;
    return bytes;
}

static zr_result start_arena(const struct zr_arena_options *options, zr_arena **out, struct zr_span *span)
{
    zr_result result = zr_arena_create(out, options);
    if (result == ZR_OK) {
        *span = (struct zr_span){(uintptr_t)(*out)->base, (*out)->range_bytes};
        (*out)->canary_bytes =
            0; /* a canary would remain after the block's pages are discarded; blocks are whole pages */
        zr_arena_note_debug(*out);
    }
    return result;
}

static zr_result start_arenas(void)
{
    struct rlimit limit;
    zr_backend *backend = NULL;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return zr_fail(ZR_ERR_ADDRESSES, "`ulimit -v` limits this process's addresses");
    zr_result result = zr_option_result();
    if (result == ZR_OK)
        result = zr_backend_host_create(
            &backend, &(struct zr_host_options){.private_memory = true,
                                                .limit_bytes = (size_t)zr_option_get(ZR_OPTION_LIMIT)});
    struct zr_arena_options options = {.backend = backend, .name = "large", .reserve_bytes = range_bytes()};
    if (result == ZR_OK)
        result = start_arena(&options, &zr_preload.large_arena, &zr_preload.large);
    if (result == ZR_OK)
        result = zr_large_start();
    options.name = "small";
    if (result == ZR_OK)
        result = start_arena(&options, &zr_preload.small_arena, &zr_preload.small);
    if (result == ZR_OK)
        zr_preload.small_arena->inner = true; /* jemalloc allocates from it while holding locks */
    return result;
}

static __attribute__((destructor)) void end(void)
{
    if (zr_python_is_given_up())
        zr_say(
            "call stacks have no Python frames: the memory of this CPython has another layout than its version");
    zr_sampling_end();
    zr_measuring_end();
}

/* Rejects a limit with which jemalloc would crash later. */
static void check_limit(void)
{
    uint64_t limit = zr_option_get(ZR_OPTION_LIMIT);
    if (limit == 0 || limit >= ZR_USAGE_MIN_LIMIT_BYTES)
        return;
    char text[ZR_SIZE_EXACT_ROOM];
    zr_say("ZR_CONF=limit:%s is too small: malloc needs %zuMiB to start; give at least limit:%zuMiB",
           zr_size_print_exact(text, limit), ZR_USAGE_MIN_LIMIT_BYTES >> 20, ZR_USAGE_MIN_LIMIT_BYTES >> 20);
    _exit(2);
}

static void start(void)
{
    char path[4096];
    check_limit();
    if (start_arenas() != ZR_OK) {
        zr_say("%s: jemalloc serves this process without zr's arena", zr_last_error());
        zr_preload.large_arena = zr_preload.small_arena = NULL;
        zr_preload.large = (struct zr_span){0};
        zr_preload.small = (struct zr_span){0};
        zr_preload.passive = true;
    }
    char reason[512];
    zr_service_alone(reason, sizeof reason);
    if (!zr_preload.passive && reason[0])
        zr_say("%s; process %ld continues without zrd", reason, (long)getpid());
    zr_preload.checked = zr_option_get(ZR_OPTION_CHECK) >= ZR_CHECK_BYTES;
    zr_measuring_start();
    if (!zr_preload.passive && zr_option_get(ZR_OPTION_SMALL) &&
        zr_measuring_trace_path(".small", path, sizeof path))
        zr_sampling_start(zr_preload.small_arena, path);
    zr_preload.sampled = zr_sampling.on;
    if (!zr_preload.checked && !zr_preload.sampled)
        zr_preload.fast = zr_preload.small;
    if (zr_stacks_every() > 0 && zr_python_find() != ZR_OK)
        zr_say("%s", zr_last_error());
    if (zr_option_get(ZR_OPTION_VERBOSE))
        zr_say("libzr_malloc.so serves process %ld (%s)", (long)getpid(), program_invocation_name);
    /* The first allocation starts jemalloc, which sets its fork handlers. These handlers are registered after
     * the arenas' and therefore run before them: jemalloc locks its mutexes before it calls an arena. */
    zr_je_free(zr_je_malloc(1));
    if (jemalloc_fork.before)
        pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* A call of the starting thread itself must not wait for the lock that it holds. */
bool zr_preload_start(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static _Atomic pid_t starter;
    int error = errno;
    if (zr_preload_ready())
        return true;
    pid_t self = gettid();
    if (atomic_load(&starter) == self)
        return false;
    pthread_mutex_lock(&lock);
    if (!zr_preload_ready()) {
        atomic_store(&starter, self);
        start();
        atomic_store(&starter, 0);
        atomic_store_explicit(&zr_preload.ready, true, memory_order_release);
        zr_small_open();
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return true;
}

/* Usually runs before the program has threads; an earlier allocation starts the library sooner. */
static __attribute__((constructor)) void start_early(void)
{
    zr_preload_start();
}
