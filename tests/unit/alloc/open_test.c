/* open_test.c: while one thread waits in a call of the driver, the others free and allocate: each kind of
 * call stops until they have. A lock that was held across it would end the test by its alarm. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

#include "alloc/core/arena.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)
enum { CAPACITY = 16, AMPLE = 64, PATIENCE_S = 300, WORK_NS = 1000 };

static zr_backend *backend;
static zr_arena *arena;
static void *large, *small; /* eight granules, and a part of one, of the thread that goes on */

/* ---- Driver calls that stop ---------------------------------------------------------------------------- */

enum call { CREATE, DESTROY, MAP, SET_ACCESS, UNMAP, EVENT_WAIT };

static const struct zr_backend_ops *below;
static _Atomic int stopped_at = -1; /* enum call; once */
static sem_t inside, go_on;

static void stop_in(enum call call)
{
    int expected = call;
    if (!atomic_compare_exchange_strong(&stopped_at, &expected, -1))
        return;
    sem_post(&inside);
    sem_wait(&go_on);
}

static zr_result create(zr_backend *of, struct zr_handle *handle)
{
    stop_in(CREATE);
    return below->create(of, handle);
}

static void destroy(zr_backend *of, struct zr_handle *handle)
{
    stop_in(DESTROY);
    below->destroy(of, handle);
}

static zr_result map(zr_backend *of, char *address, const struct zr_handle *handle)
{
    stop_in(MAP);
    return below->map(of, address, handle);
}

static zr_result set_access(zr_backend *of, char *address, size_t bytes)
{
    stop_in(SET_ACCESS);
    return below->set_access(of, address, bytes);
}

static zr_result unmap(zr_backend *of, char *address, size_t bytes)
{
    stop_in(UNMAP);
    return below->unmap(of, address, bytes);
}

static zr_result event_wait(zr_backend *of, const struct zr_stream_point *point)
{
    stop_in(EVENT_WAIT);
    return below->event_wait(of, point);
}

/* ---- What leads to them -------------------------------------------------------------------------------- */

static void *take(size_t bytes, uint64_t stream)
{
    void *block = NULL;
    if (zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .stream = stream}, &block) != ZR_OK)
        tap_note("%zu bytes: %s", bytes, zr_last_error());
    return block;
}

static zr_result take_grad(size_t bytes)
{
    void *block;
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_GRAD, .stream = 1},
                          &block);
}

/* More than is mapped: from the driver, and all that the tag may have. */
static bool grow(void)
{
    return take_grad(4 * GRANULE) == ZR_OK;
}

/* More than the driver has: from under what was freed, which no gap takes whole. */
static bool steal(void)
{
    return take(10 * GRANULE, 1) != NULL;
}

static bool trim(void)
{
    size_t bytes;
    return zr_arena_trim(arena, 0, &bytes) == ZR_OK && bytes > 0;
}

static const struct scene {
    const char *name;
    enum call call;
    bool (*act)(void);
    bool frees_first; /* two parts of three granules, and one of them by another stream */
} scenes[] = {
    {"creates memory", CREATE, grow, false},   {"maps it", MAP, grow, false},
    {"gives access", SET_ACCESS, grow, false}, {"takes granules from free space", UNMAP, steal, true},
    {"maps them elsewhere", MAP, steal, true}, {"unmaps to trim", UNMAP, trim, true},
    {"destroys to trim", DESTROY, trim, true}, {"waits for a stream", EVENT_WAIT, steal, true},
};

static bool acted;

static void *act(void *argument)
{
    const struct scene *scene = argument;
    acted = scene->act();
    return NULL;
}

static void play(const struct scene *scene)
{
    struct zr_backend_ops ops;
    pthread_t thread;
    void *parts[2], *walls[2];
    bool waits = scene->call == EVENT_WAIT;
    tap_result(zr_backend_sim_create(&backend,
                                     &(struct zr_sim_options){
                                         .granule_bytes = GRANULE,
                                         .capacity_bytes = (scene->frees_first ? CAPACITY : AMPLE) * GRANULE,
                                         .work_ns = waits ? WORK_NS : 0}),
               ZR_OK, "%s: a backend", scene->name);
    below = backend->ops;
    ops = *below;
    ops.create = create, ops.destroy = destroy, ops.map = map, ops.unmap = unmap;
    ops.set_access = set_access, ops.event_wait = event_wait;
    backend->ops = &ops;
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    struct zr_tag_limits tag_limits;
    memset(&tag_limits, 0xff, sizeof tag_limits);
    tag_limits.by_tag_bytes[ZR_TAG_GRAD] = 4 * GRANULE;
    zr_arena_set_tag_limits(arena, &tag_limits);
    large = take(2 * GRANULE, 1);
    for (unsigned i = 0; i < 2; i++) {
        parts[i] = take(5 * GRANULE, waits ? 2 : 1);
        walls[i] = take(GRANULE, 1);
    }
    small = take(GRANULE / 64, 1);
    void *other = take(GRANULE / 64, 1);
    for (unsigned i = 0; i < 2 && scene->frees_first; i++)
        zr_arena_free(arena, parts[i]);
    atomic_store(&stopped_at, scene->call);
    pthread_create(&thread, NULL, act, (void *)scene);
    sem_wait(&inside);
    struct zr_block_info info;
    bool found = zr_arena_find(arena, large, &info) == ZR_OK;
    bool freed = zr_arena_free(arena, small) == ZR_OK && zr_arena_free(arena, large) == ZR_OK;
    void *again = take(GRANULE / 64, 1);
    zr_result refused = scene->act == grow ? take_grad(GRANULE / 64) : ZR_ERR_TAG_LIMIT;
    sem_post(&go_on);
    pthread_join(thread, NULL);
    tap_result(refused, ZR_ERR_TAG_LIMIT, "%s: bytes that are being mapped count for their tag", scene->name);
    tap_ok(found && freed && again, "%s: meanwhile another searches, frees and allocates", scene->name);
    tap_ok(acted, "%s: and it has what it asked for", scene->name);
    tap_result(zr_arena_check(arena), ZR_OK, "%s: sound: %s", scene->name, zr_last_error());
    zr_arena_free(arena, again);
    zr_arena_free(arena, other);
    for (unsigned i = 0; i < 2; i++)
        zr_arena_free(arena, walls[i]);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

int main(void)
{
    alarm(PATIENCE_S);
    sem_init(&inside, 0, 0);
    sem_init(&go_on, 0, 0);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        play(&scenes[i]);
    return tap_done();
}
