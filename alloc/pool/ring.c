/* ring.c: buffers of constant size, acquired in order. Uses the arena, backend.h's events and os.h's
 * waits; zr.h has the contract.
 *
 * A thread whose next buffer is acquired sleeps on the count of releases. The ring's record has its own
 * pages, and the buffers are one block of the arena. */
#define _GNU_SOURCE
#include "alloc/core/arena.h"
#include "alloc/core/space.h"
#include "alloc/base/system/os.h"

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/fork.h"

/* Max sleep between checks of an acquired buffer, and of a stream's event. */
static const uint64_t held_check_ns = 1000000000ull, stream_check_ns = 50000;

struct buffer {
    uint64_t stream;              /* the stream that used it last */
    struct zr_stream_point point; /* recorded at the release */
    bool acquired;
    bool used;     /* a stream may still use the buffer */
    bool recorded; /* `point` is valid; if not, only waiting for the stream shows that the use has ended */
    uint32_t release_number; /* number of the last release */
};

struct zr_ring {
    /* Set at creation. */
    zr_arena *arena;
    zr_backend *backend;
    struct zr_map_callback map_callback;
    char *memory;
    size_t stride_bytes, memory_bytes, record_bytes;
    unsigned buffers_count;
    struct zr_ring *younger, *older; /* list of all rings; lock: rings_lock */

    _Atomic uint32_t releases; /* changes need the lock; waiting threads sleep on it without */
    struct zr_lock lock;       /* covers all fields below */
    unsigned next;             /* the next buffer to acquire */
    unsigned acquired_count, waiting_count;
    struct buffer buffers[];
};

/* ---- All rings of the process -------------------------------------------------------------------------- */

static pthread_mutex_t rings_lock = PTHREAD_MUTEX_INITIALIZER;
static struct zr_ring *rings; /* lock: rings_lock */

static void before_fork(struct zr_fork_locks *locks)
{
    pthread_mutex_lock(&rings_lock);
    for (struct zr_ring *ring = rings; ring; ring = ring->older)
        zr_fork_take(locks, &ring->lock);
}

static void after_fork(struct zr_fork_locks *locks)
{
    for (struct zr_ring *ring = rings; ring; ring = ring->older) {
        if (locks->child) /* the child has no waiting threads */
            ring->waiting_count = 0;
        zr_fork_give(locks, &ring->lock);
    }
    pthread_mutex_unlock(&rings_lock);
}

static void enlist(struct zr_ring *ring)
{
    static const struct zr_fork_room room = {.before = before_fork, .after = after_fork};
    zr_fork_register(ZR_FORK_RINGS, &room);
    pthread_mutex_lock(&rings_lock);
    ring->older = rings;
    if (rings)
        rings->younger = ring;
    rings = ring;
    pthread_mutex_unlock(&rings_lock);
}

static void delist(struct zr_ring *ring)
{
    pthread_mutex_lock(&rings_lock);
    *(ring->younger ? &ring->younger->older : &rings) = ring->older;
    if (ring->older)
        ring->older->younger = ring->younger;
    pthread_mutex_unlock(&rings_lock);
}

/* ---- Create and destroy -------------------------------------------------------------------------------- */

static bool compute_sizes(const struct zr_ring_options *options, size_t *stride_bytes, size_t *memory_bytes)
{
    size_t alignment = options->alignment ? options->alignment : ZR_UNIT_BYTES;
    if (options->buffer_bytes == 0 || options->buffers_count == 0 || (alignment & (alignment - 1)) != 0 ||
        options->buffer_bytes > PTRDIFF_MAX - alignment)
        return false;
    *stride_bytes = zr_round_up(options->buffer_bytes, alignment);
    return !__builtin_mul_overflow(*stride_bytes, options->buffers_count, memory_bytes);
}

zr_result zr_ring_create(zr_ring **out, const struct zr_ring_options *options)
{
    struct zr_ring_options own;
    size_t stride_bytes, memory_bytes, record_bytes;
    void *memory;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_ring_create: out is NULL");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_ring_options, map_callback, &own, options);
    if (result != ZR_OK)
        return result;
    options = &own;
    if (!options->arena)
        return zr_fail(ZR_ERR_INVALID, "zr_ring_create: arena is NULL");
    if (!compute_sizes(options, &stride_bytes, &memory_bytes) ||
        __builtin_mul_overflow((size_t)options->buffers_count, sizeof(struct buffer), &record_bytes))
        return zr_fail(ZR_ERR_INVALID,
                       "zr_ring_create: invalid options: %u buffers of %zu bytes aligned to %zu",
                       options->buffers_count, options->buffer_bytes, options->alignment);
    record_bytes += sizeof(struct zr_ring);
    zr_ring *ring = zr_pages_take(record_bytes);
    if (!ring)
        return ZR_ERR_HOST_MEMORY;
    result = zr_arena_alloc(
        options->arena,
        &(struct zr_request){.bytes = memory_bytes, .alignment = options->alignment, .tag = options->tag},
        &memory);
    if (result != ZR_OK) {
        zr_pages_give(ring, record_bytes);
        return result;
    }
    if (options->map_callback.mapped)
        result = options->map_callback.mapped(options->map_callback.argument, memory, memory_bytes);
    if (result != ZR_OK) {
        zr_arena_free(options->arena, memory);
        zr_pages_give(ring, record_bytes);
        return zr_fail(result, "the map callback of a ring rejected its %zu bytes (%s)", memory_bytes,
                       zr_result_name(result));
    }
    ring->arena = options->arena;
    ring->backend = zr_arena_backend(options->arena);
    ring->map_callback = options->map_callback;
    ring->memory = memory;
    ring->stride_bytes = stride_bytes;
    ring->memory_bytes = memory_bytes;
    ring->record_bytes = record_bytes;
    ring->buffers_count = options->buffers_count;
    enlist(ring);
    *out = ring;
    return ZR_OK;
}

static zr_result wait_for(zr_backend *backend, const struct buffer *buffer)
{
    if (!buffer->used)
        return ZR_OK;
    return buffer->recorded ? zr_backend_event_wait(backend, &buffer->point)
                            : zr_backend_stream_wait(backend, buffer->stream);
}

zr_result zr_ring_destroy(zr_ring *ring)
{
    if (!ring)
        return ZR_OK;
    zr_lock_acquire(&ring->lock);
    unsigned acquired = ring->acquired_count, waiting = ring->waiting_count;
    zr_lock_release(&ring->lock);
    if (acquired + waiting > 0)
        return zr_fail(ZR_ERR_INVALID,
                       "cannot destroy a ring: %u buffers are acquired and %u threads wait for one", acquired,
                       waiting);
    /* If waiting for a stream fails, the arena delays the reuse of the memory until the stream has passed. */
    for (unsigned i = 0; i < ring->buffers_count; i++) {
        const struct buffer *buffer = &ring->buffers[i];
        if (wait_for(ring->backend, buffer) != ZR_OK &&
            zr_block_use(ring->arena, ring->memory, buffer->stream) != ZR_OK)
            return zr_fail(
                ZR_ERR_UNAVAILABLE,
                "cannot destroy the ring yet: stream %#llx may still use its memory; call zr_ring_destroy() again",
                (unsigned long long)buffer->stream);
    }
    if (ring->map_callback.unmapping)
        ring->map_callback.unmapping(ring->map_callback.argument, ring->memory, ring->memory_bytes);
    zr_result result = zr_arena_free(ring->arena, ring->memory);
    delist(ring);
    zr_pages_give(ring, ring->record_bytes);
    return result;
}

/* ---- Buffers ------------------------------------------------------------------------------------------- */

enum verdict { ACQUIRED, HELD, IN_USE };

/* Acquires the next buffer if it is free. *found gets a copy of its earlier state. lock: ring->lock */
static enum verdict try_next(zr_ring *ring, uint64_t stream, struct buffer *found, void **out)
{
    struct buffer *buffer = &ring->buffers[ring->next];
    /* Retry an event that the driver refused at the release: a later point in the stream serves as well. */
    if (buffer->used && !buffer->acquired && !buffer->recorded && buffer->stream != stream)
        buffer->recorded = zr_backend_event_record(ring->backend, buffer->stream, &buffer->point) == ZR_OK;
    *found = *buffer;
    if (buffer->acquired)
        return HELD;
    if (buffer->used && buffer->stream != stream &&
        !(buffer->recorded && zr_backend_event_done(ring->backend, &buffer->point)))
        return IN_USE;
    buffer->used = buffer->used && buffer->stream == stream;
    buffer->acquired = true;
    *out = ring->memory + ring->next * ring->stride_bytes;
    ring->next = (ring->next + 1) % ring->buffers_count;
    ring->acquired_count++;
    return ACQUIRED;
}

/* Waits for the stream of a buffer's last release, and marks the buffer unused unless another thread has used
 * it since. */
static zr_result wait_for_stream(zr_ring *ring, const struct buffer *found, unsigned number)
{
    zr_result result = wait_for(ring->backend, found);
    if (result != ZR_OK || found->recorded)
        return result;
    zr_lock_acquire(&ring->lock);
    struct buffer *buffer = &ring->buffers[number];
    if (!buffer->acquired && buffer->release_number == found->release_number)
        buffer->used = false;
    zr_lock_release(&ring->lock);
    return ZR_OK;
}

zr_result zr_ring_acquire(zr_ring *ring, uint64_t stream, uint64_t timeout_ns, void **out)
{
    zr_result result = ZR_OK;
    struct buffer found;
    if (out)
        *out = NULL;
    if (!ring || !out)
        return zr_fail(ZR_ERR_INVALID, "zr_ring_acquire: ring or out is NULL");
    result = zr_backend_stream_name(ring->backend, &stream);
    if (result != ZR_OK)
        return result;
    uint64_t start_ns = timeout_ns && timeout_ns != ZR_RING_WAIT ? zr_os_now_ns() : 0;
    zr_lock_acquire(&ring->lock);
    for (;;) {
        unsigned number = ring->next;
        enum verdict verdict = try_next(ring, stream, &found, out);
        if (verdict == ACQUIRED || result != ZR_OK)
            break;
        uint64_t left_ns = timeout_ns;
        if (timeout_ns && timeout_ns != ZR_RING_WAIT) {
            uint64_t passed_ns = zr_os_now_ns() - start_ns;
            left_ns = passed_ns < timeout_ns ? timeout_ns - passed_ns : 0;
        }
        if (left_ns == 0) {
            result = zr_fail(ZR_ERR_TIMEOUT, "the next of %u buffers was not free within %llu ns: it is %s",
                             ring->buffers_count, (unsigned long long)timeout_ns,
                             verdict == HELD ? "acquired" : "in use by another stream");
            break;
        }
        uint32_t seen = atomic_load(&ring->releases);
        uint64_t check_ns = verdict == HELD ? held_check_ns : stream_check_ns;
        ring->waiting_count++;
        zr_lock_release(&ring->lock);
        if (verdict == IN_USE && timeout_ns == ZR_RING_WAIT)
            result = wait_for_stream(ring, &found, number);
        else
            zr_word_wait(&ring->releases, seen, left_ns < check_ns ? left_ns : check_ns);
        zr_lock_acquire(&ring->lock);
        ring->waiting_count--;
    }
    zr_lock_release(&ring->lock);
    return *out ? ZR_OK : result;
}

zr_result zr_ring_release(zr_ring *ring, void *address, uint64_t stream)
{
    if (!ring)
        return zr_fail(ZR_ERR_INVALID, "zr_ring_release: ring is NULL");
    size_t offset = (size_t)((char *)address - ring->memory);
    if (offset >= ring->memory_bytes || offset % ring->stride_bytes != 0)
        return zr_fail(ZR_ERR_FOREIGN, "no buffer of the ring begins at %p", address);
    zr_result result = zr_backend_stream_name(ring->backend, &stream);
    if (result != ZR_OK)
        return result;
    struct buffer *buffer = &ring->buffers[offset / ring->stride_bytes];
    struct buffer after = {.stream = stream, .used = !ring->backend->can.synchronous};
    if (after.used)
        after.recorded = zr_backend_event_record(ring->backend, stream, &after.point) == ZR_OK;
    if (after.used && !after.recorded && zr_backend_stream_elsewhere(ring->backend, stream))
        return zr_backend_stream_check(ring->backend, stream);
    zr_lock_acquire(&ring->lock);
    bool acquired = buffer->acquired;
    if (acquired) {
        ring->acquired_count--;
        after.release_number = atomic_fetch_add(&ring->releases, 1) + 1;
        *buffer = after;
    }
    bool wake = ring->waiting_count > 0;
    zr_lock_release(&ring->lock);
    if (!acquired)
        return zr_fail(ZR_ERR_DOUBLE_FREE, "cannot release the buffer at %p: it is not acquired", address);
    if (wake)
        zr_word_wake_all(&ring->releases);
    return ZR_OK;
}
