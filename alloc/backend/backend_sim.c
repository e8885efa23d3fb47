/* backend_sim.c: a simulated clock and capacity, without memory. Below backend.c.
 *
 * Addresses are numbers and must not be dereferenced. backend.c has checked every call; this file counts
 * time. */
#include "alloc/backend/backend.h"

#include <stdatomic.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/fork.h"

#define SIM_FIRST_ADDRESS ((uintptr_t)1 << 46)
#define SIM_LAST_ADDRESS  ((uintptr_t)1 << 56)
/* The default size of an arena's range: all addresses of a process on x86-64, or this many granules. */
#define SIM_RANGE_BYTES    ((size_t)1 << 47)
#define SIM_RANGE_GRANULES ((size_t)1 << 26)

struct sim_backend {
    zr_backend front; /* first, because it is cast */
    uint64_t call_ns[ZR_BACKEND_OPERATION_COUNT];
    uint64_t work_ns; /* time from the recording of a point to its passing */
    _Atomic uint64_t clock_ns;
    uintptr_t next_address;       /* lock: front.lock */
    _Atomic uint64_t next_offset; /* of the next handle; handles created in order are adjacent */
};

static void spend(zr_backend *backend, enum zr_backend_operation operation)
{
    struct sim_backend *sim = (struct sim_backend *)backend;
    atomic_fetch_add_explicit(&sim->clock_ns, sim->call_ns[operation], memory_order_relaxed);
}

uint64_t zr_sim_clock_ns(const zr_backend *backend)
{
    return atomic_load(&((const struct sim_backend *)backend)->clock_ns);
}

void zr_sim_clock_advance(zr_backend *backend, uint64_t ns)
{
    atomic_fetch_add(&((struct sim_backend *)backend)->clock_ns, ns);
}

/* Advances the clock to the time, unless it is past it. */
static void move_clock(zr_backend *backend, uint64_t until_ns)
{
    struct sim_backend *sim = (struct sim_backend *)backend;
    uint64_t now = atomic_load(&sim->clock_ns);
    while (now < until_ns && !atomic_compare_exchange_weak(&sim->clock_ns, &now, until_ns))
        ;
}

static void sim_end(zr_backend *backend)
{
    zr_backend_end(backend);
    zr_pages_give(backend, sizeof(struct sim_backend));
}

static zr_result sim_reserve(zr_backend *backend, size_t bytes, char **out)
{
    struct sim_backend *sim = (struct sim_backend *)backend;
    spend(backend, ZR_BACKEND_RESERVE);
    if (bytes > SIM_LAST_ADDRESS - sim->next_address)
        return zr_fail(ZR_ERR_ADDRESSES, "fewer than %zu bytes of simulated addresses are left", bytes);
    *out = (char *)sim->next_address;
    /* Ranges end on multiples of the largest granule, so that every range starts on one. */
    const uintptr_t unit = (uintptr_t)1 << 30;
    sim->next_address = (sim->next_address + bytes + unit - 1) & ~(unit - 1);
    return ZR_OK;
}

static void sim_release(zr_backend *backend, char *address, size_t bytes)
{
    (void)address, (void)bytes;
    spend(backend, ZR_BACKEND_RELEASE);
}

static zr_result sim_create(zr_backend *backend, struct zr_handle *handle)
{
    struct sim_backend *sim = (struct sim_backend *)backend;
    spend(backend, ZR_BACKEND_CREATE);
    handle->offset_bytes = atomic_fetch_add(&sim->next_offset, handle->bytes);
    return ZR_OK;
}

static void sim_destroy(zr_backend *backend, struct zr_handle *handle)
{
    (void)handle;
    spend(backend, ZR_BACKEND_DESTROY);
}

static zr_result sim_map(zr_backend *backend, char *address, const struct zr_handle *handle)
{
    (void)address, (void)handle;
    spend(backend, ZR_BACKEND_MAP);
    return ZR_OK;
}

static zr_result sim_unmap(zr_backend *backend, char *address, size_t bytes)
{
    (void)address, (void)bytes;
    spend(backend, ZR_BACKEND_UNMAP);
    return ZR_OK;
}

static zr_result sim_set_access(zr_backend *backend, char *address, size_t bytes)
{
    (void)address, (void)bytes;
    spend(backend, ZR_BACKEND_ACCESS);
    return ZR_OK;
}

static zr_result sim_copy(zr_backend *backend, const struct zr_copy *copy)
{
    (void)copy;
    spend(backend, ZR_BACKEND_COPY);
    return ZR_OK;
}

static zr_result sim_fill(zr_backend *backend, const struct zr_fill *fill)
{
    (void)fill;
    spend(backend, ZR_BACKEND_COPY);
    return ZR_OK;
}

static zr_result sim_event_record(zr_backend *backend, uint64_t stream, struct zr_stream_point *out)
{
    (void)stream;
    out->ticket = zr_sim_clock_ns(backend) + ((struct sim_backend *)backend)->work_ns;
    return ZR_OK;
}

static bool sim_event_done(zr_backend *backend, const struct zr_stream_point *event)
{
    return event->ticket <= zr_sim_clock_ns(backend);
}

static zr_result sim_event_wait(zr_backend *backend, const struct zr_stream_point *event)
{
    move_clock(backend, event->ticket);
    return ZR_OK;
}

static zr_result sim_synchronize(zr_backend *backend)
{
    move_clock(backend, zr_sim_clock_ns(backend) + ((struct sim_backend *)backend)->work_ns);
    return ZR_OK;
}

static zr_result sim_memory_info(zr_backend *backend, struct zr_backend_memory *out)
{
    pthread_mutex_lock(&backend->lock);
    out->total_bytes = backend->limit_bytes ? backend->limit_bytes : SIZE_MAX;
    out->free_bytes = backend->limit_bytes ? backend->limit_bytes - backend->held_bytes : SIZE_MAX;
    pthread_mutex_unlock(&backend->lock);
    return ZR_OK;
}

static size_t sim_reserve_hint(zr_backend *backend, size_t limit_bytes)
{
    size_t max_bytes = backend->can.granule_bytes * SIM_RANGE_GRANULES;
    if (max_bytes > SIM_RANGE_BYTES)
        max_bytes = SIM_RANGE_BYTES;
    return limit_bytes && limit_bytes < max_bytes / 16 ? limit_bytes * 16 : max_bytes;
}

static const struct zr_backend_ops sim_ops = {
    .version = ZR_BACKEND_VERSION,
    .name = "sim",
    .end = sim_end,
    .reserve = sim_reserve,
    .release = sim_release,
    .create = sim_create,
    .destroy = sim_destroy,
    .map = sim_map,
    .unmap = sim_unmap,
    .set_access = sim_set_access,
    .copy = sim_copy,
    .fill = sim_fill,
    .event_record = sim_event_record,
    .event_done = sim_event_done,
    .event_wait = sim_event_wait,
    .synchronize = sim_synchronize,
    .memory_info = sim_memory_info,
    .reserve_hint = sim_reserve_hint,
};

zr_result zr_backend_sim_create(zr_backend **out, const struct zr_sim_options *options)
{
    struct zr_sim_options own;
    size_t granule_bytes;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "creating a backend: `out` is NULL");
    *out = NULL;
    zr_result result = ZR_STRUCT_COPY(zr_sim_options, call_ns, &own, options);
    options = &own;
    if (result == ZR_OK)
        result = zr_backend_granule(options->granule_bytes, &granule_bytes);
    if (result != ZR_OK)
        return result;
    struct sim_backend *sim = zr_pages_take(sizeof *sim);
    if (!sim)
        return ZR_ERR_HOST_MEMORY;
    sim->front.ops = &sim_ops;
    sim->front.can = (struct zr_capabilities){
        .granule_bytes = granule_bytes, .aliases = true, .synchronous = options->work_ns == 0};
    sim->front.limit_bytes = options->capacity_bytes & ~(granule_bytes - 1);
    if (options->capacity_bytes && !sim->front.limit_bytes)
        sim->front.limit_bytes = 1; /* below one granule: no handle fits */
    sim->next_address = SIM_FIRST_ADDRESS;
    sim->work_ns = options->work_ns;
    memcpy(sim->call_ns, options->call_ns, sizeof sim->call_ns);
    result = zr_backend_init(&sim->front);
    if (result != ZR_OK) {
        zr_pages_give(sim, sizeof *sim);
        return result;
    }
    *out = &sim->front;
    return ZR_OK;
}
