/* device.c: the arena of each device, created at its first allocation, and the entry and exit of each call.
 * See cuda.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/service/client/client.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"

static struct zr_cuda_device devices[ZR_CUDA_DEVICES_MAX];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
/* Read lock: every call that may use an arena. Write lock: the end of a device. */
static pthread_rwlock_t devices_lock = PTHREAD_RWLOCK_INITIALIZER;
static _Atomic bool uses_many_streams, settled, uses_cuda, forked, is_broken;
static pthread_mutex_t settling = PTHREAD_MUTEX_INITIALIZER;
/* A bit for each device that may access this device's memory. Written under `making`. */
static _Atomic uint64_t admitted[ZR_CUDA_DEVICES_MAX];

/* ---- Codes and messages -------------------------------------------------------------------------------- */

zr_cu_result zr_cuda_code(zr_result result)
{
    switch (result) {
    case ZR_OK:
        return ZR_CU_SUCCESS;
    case ZR_ERR_MEMORY:
    case ZR_ERR_HOST_MEMORY:
    case ZR_ERR_ADDRESSES:
    case ZR_ERR_TAG_LIMIT:
        return ZR_CU_OUT_OF_MEMORY;
    case ZR_ERR_INVALID:
    case ZR_ERR_FOREIGN:
    case ZR_ERR_DOUBLE_FREE:
        return ZR_CU_INVALID_VALUE;
    default:
        return ZR_CU_UNKNOWN;
    }
}

void zr_cuda_log(const char *call)
{
    if (zr_option_get(ZR_OPTION_VERBOSE))
        zr_say("%s: %s", call, zr_last_error());
}

void zr_cuda_report_broken(const char *condition, const char *file, int line)
{
    if (!atomic_exchange(&is_broken, true))
        zr_say("%s:%d: assertion %s failed: the CUDA driver serves all further allocations", file, line,
               condition);
}

/* ---- A call -------------------------------------------------------------------------------------------- */

struct zr_cuda_device *zr_cuda_device_at(int ordinal)
{
    return &devices[ordinal];
}

/* The current context and its device. ZR_CU_INVALID_CONTEXT: no context is current. */
static zr_cu_result current_context(zr_cu_context *context, zr_cu_device *device)
{
    if (!zr_cuda_find_driver() || zr_cuda_forked())
        return ZR_CU_NOT_INITIALIZED;
    zr_cu_result code = ZR_CUDA_PASS(context_get, context);
    if (code == ZR_CU_SUCCESS && !*context)
        code = ZR_CU_INVALID_CONTEXT;
    return code == ZR_CU_SUCCESS ? ZR_CUDA_PASS(context_device, device) : code;
}

zr_cu_result zr_cuda_enter(struct zr_cuda_call *call)
{
    zr_cu_context context = NULL;
    zr_cu_device device = -1;
    zr_cu_result code = current_context(&context, &device);
    if (code != ZR_CU_SUCCESS)
        return code;
    if (device < 0 || device >= ZR_CUDA_DEVICES_MAX)
        return ZR_CU_NOT_SUPPORTED;
    zr_cuda_enter_no_context(call);
    call->context = context;
    call->device = &devices[device];
    return ZR_CU_SUCCESS;
}

/* Makes the device's primary context current. The context is retained once, until it is reset. */
static zr_cu_result push_primary(struct zr_cuda_device *device, zr_cu_context *out)
{
    zr_cu_result code = ZR_CU_SUCCESS;
    pthread_mutex_lock(&making);
    if (!device->driver && zr_cuda_driver_get(&device->driver) != ZR_OK)
        code = ZR_CU_NOT_INITIALIZED;
    else if (!device->retained)
        code = device->driver->context_retain(&device->retained, (zr_cu_device)(device - devices));
    *out = device->retained;
    pthread_mutex_unlock(&making);
    return code == ZR_CU_SUCCESS ? device->driver->context_push(*out) : code;
}

zr_cu_result zr_cuda_enter_device(struct zr_cuda_call *call, int ordinal)
{
    zr_cu_context context = NULL;
    zr_cu_device current = -1;
    zr_cu_result code = current_context(&context, &current);
    if (code == ZR_CU_SUCCESS && current == ordinal)
        return zr_cuda_enter(call);
    if (code != ZR_CU_SUCCESS && code != ZR_CU_INVALID_CONTEXT)
        return code;
    code = push_primary(&devices[ordinal], &context);
    if (code != ZR_CU_SUCCESS)
        return code;
    zr_cuda_enter_no_context(call);
    call->context = context;
    call->device = &devices[ordinal];
    call->pushed = true;
    return ZR_CU_SUCCESS;
}

void zr_cuda_enter_no_context(struct zr_cuda_call *call)
{
    *call = (struct zr_cuda_call){.mode = ZR_CU_CAPTURE_RELAXED};
    if (ZR_CUDA_PASS(capture_mode, &call->mode) != ZR_CU_SUCCESS)
        call->mode = ZR_CU_CAPTURE_RELAXED;
    pthread_rwlock_rdlock(&devices_lock);
}

void zr_cuda_leave(const struct zr_cuda_call *call)
{
    zr_cu_capture_mode mode = call->mode;
    zr_cu_context popped;
    pthread_rwlock_unlock(&devices_lock);
    ZR_CUDA_PASS(capture_mode, &mode);
    if (call->pushed)
        call->device->driver->context_pop(&popped);
}

/* ---- The driver functions that the arena calls --------------------------------------------------------- */

/* An event recorded in a captured stream becomes a part of the graph, and a synchronization breaks the
 * capture: these functions refuse both, and the arena tries again later. */
static const struct zr_cuda_driver *plain; /* set before the functions below are called */

static zr_cu_result guarded_record(zr_cu_event event, zr_cu_stream stream)
{
    return zr_cuda_stream_capturing(stream) ? (zr_cu_result)ZR_CU_STREAM_CAPTURE_UNSUPPORTED
                                            : plain->event_record(event, stream);
}

static zr_cu_result guarded_stream_synchronize(zr_cu_stream stream)
{
    return zr_cuda_stream_capturing(stream) ? (zr_cu_result)ZR_CU_STREAM_CAPTURE_UNSUPPORTED
                                            : plain->stream_synchronize(stream);
}

static zr_cu_result guarded_context_synchronize(void)
{
    zr_cu_context context = NULL;
    if (zr_cuda_real.context_get(&context) == ZR_CU_SUCCESS && zr_cuda_capturing(context))
        return ZR_CU_STREAM_CAPTURE_UNSUPPORTED;
    return plain->context_synchronize();
}

zr_result __real_zr_cuda_driver_get(const struct zr_cuda_driver **out);
zr_result __wrap_zr_cuda_driver_get(const struct zr_cuda_driver **out);
/* The linker redirects the backend's call here. */
zr_result __wrap_zr_cuda_driver_get(const struct zr_cuda_driver **out)
{
    static struct zr_cuda_driver guarded;
    static _Atomic bool copied;
    const struct zr_cuda_driver *driver;
    zr_result result = __real_zr_cuda_driver_get(&driver);
    if (result != ZR_OK)
        return result;
    if (!atomic_load_explicit(&copied, memory_order_acquire)) { /* `making` is held */
        plain = driver;
        guarded = *driver;
        guarded.event_record = guarded_record;
        guarded.stream_synchronize = guarded_stream_synchronize;
        guarded.context_synchronize = guarded_context_synchronize;
        atomic_store_explicit(&copied, true, memory_order_release);
    }
    *out = &guarded;
    return ZR_OK;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static bool can_access(const struct zr_cuda_driver *driver, int ordinal, int owner)
{
    int can = 0;
    return ordinal != owner && driver->can_access_peer(&can, ordinal, owner) == ZR_CU_SUCCESS && can;
}

/* Lets a device access the owner's present and future memory. lock: making */
static zr_cu_result admit_peer(int ordinal, int owner)
{
    atomic_fetch_or(&admitted[owner], UINT64_C(1) << ordinal);
    zr_result result =
        atomic_load(&devices[owner].ready) ? zr_backend_admit(devices[owner].backend, ordinal) : ZR_OK;
    if (result != ZR_OK)
        zr_cuda_log("access for a peer");
    return zr_cuda_code(result);
}

/* Lets the device and the other devices in use access each other's memory: a program may copy between two
 * devices without enabling peer access. Devices not in use get no access, because a peer mapping slows down
 * every launch. lock: making */
static void admit_peers(const struct zr_cuda_driver *driver, int ordinal)
{
    for (int i = 0; i < ZR_CUDA_DEVICES_MAX; i++) {
        if (!atomic_load(&devices[i].ready) && !atomic_load(&devices[i].passed_on))
            continue;
        if (can_access(driver, ordinal, i))
            admit_peer(ordinal, i);
        if (can_access(driver, i, ordinal))
            admit_peer(i, ordinal);
    }
}

static size_t peers_of(int owner, int peers[ZR_CUDA_DEVICES_MAX])
{
    uint64_t users = atomic_load(&admitted[owner]);
    size_t found = 0;
    for (int i = 0; i < ZR_CUDA_DEVICES_MAX; i++)
        if (users >> i & 1)
            peers[found++] = i;
    return found;
}

static zr_cu_result device_of(zr_cu_context context, zr_cu_device *out)
{
    zr_cu_context popped;
    const struct zr_cuda_driver *driver;
    if (zr_cuda_driver_get(&driver) != ZR_OK)
        return ZR_CU_NOT_INITIALIZED;
    zr_cu_result code = driver->context_push(context);
    if (code != ZR_CU_SUCCESS)
        return code;
    code = zr_cuda_real.context_device(out);
    driver->context_pop(&popped);
    return code;
}

/* Enables peer access for the driver's memory, and for zr's memory by its mappings. */
zr_cu_result cuCtxEnablePeerAccess(zr_cu_context peer, unsigned int flags)
{
    enum { ENABLED_ALREADY = 704 };
    zr_cu_device user = -1, owner = -1;
    zr_cu_result code = ZR_CUDA_PASS(context_peer, peer, flags);
    if ((code != ZR_CU_SUCCESS && code != ENABLED_ALREADY) || zr_cuda_forked() ||
        ZR_CUDA_PASS(context_device, &user) != ZR_CU_SUCCESS || device_of(peer, &owner) != ZR_CU_SUCCESS ||
        user < 0 || owner < 0 || user >= ZR_CUDA_DEVICES_MAX || owner >= ZR_CUDA_DEVICES_MAX)
        return code;
    pthread_rwlock_rdlock(&devices_lock);
    pthread_mutex_lock(&making);
    zr_cu_result admitted_code = admit_peer(user, owner);
    pthread_mutex_unlock(&making);
    pthread_rwlock_unlock(&devices_lock);
    return admitted_code == ZR_CU_SUCCESS ? code : admitted_code;
}

static zr_result create_idle_stream(struct zr_cuda_device *device)
{
    const struct zr_cuda_driver *driver = device->driver;
    zr_cu_context popped;
    zr_cu_result code = driver->context_retain(&device->primary, device->ordinal);
    if (code == ZR_CU_SUCCESS) {
        code = driver->context_push(device->primary);
        if (code == ZR_CU_SUCCESS) {
            code = zr_cuda_real.stream_new(&device->idle, ZR_CU_STREAM_NON_BLOCKING);
            driver->context_pop(&popped);
        }
        driver->context_release(device->ordinal); /* the backend retains the context */
    }
    return code == ZR_CU_SUCCESS ? ZR_OK
                                 : zr_fail(ZR_ERR_MEMORY, "the driver refused a stream: error %u", code);
}

static void destroy_parts(struct zr_cuda_device *device)
{
    zr_cu_context popped;
    zr_learner_destroy(device->learner);
    if (device->arena)
        zr_arena_destroy(device->arena, NULL);
    if ((device->idle || device->gather) && device->driver->context_push(device->primary) == ZR_CU_SUCCESS) {
        if (device->idle)
            zr_cuda_real.stream_end(device->idle);
        if (device->gather)
            zr_cuda_real.stream_end(device->gather);
        device->driver->context_pop(&popped);
    }
    if (device->backend)
        zr_backend_destroy(device->backend);
    device->learner = NULL;
    device->arena = NULL;
    device->backend = NULL;
    device->idle = NULL;
    device->gather = NULL;
}

static zr_result create_parts(struct zr_cuda_device *device)
{
    int peers[ZR_CUDA_DEVICES_MAX];
    char name[16], suffix[16] = "";
    struct zr_cuda_options options = {
        .device = device->ordinal, .limit_bytes = (size_t)zr_option_get(ZR_OPTION_LIMIT), .peers = peers};
    zr_result result = zr_option_result();
    if (result == ZR_OK)
        result = zr_cuda_driver_get(&device->driver);
    if (result != ZR_OK)
        return result;
    admit_peers(device->driver, device->ordinal);
    options.peers_count = peers_of(device->ordinal, peers);
    result = zr_backend_cuda_create(&device->backend, &options);
    snprintf(name, sizeof name, "gpu%d", device->ordinal);
    if (result == ZR_OK)
        result = create_idle_stream(device);
    if (result == ZR_OK)
        result = zr_arena_create(&device->arena,
                                 &(struct zr_arena_options){.backend = device->backend, .name = name});
    if (result != ZR_OK)
        return result;
    if (device->ordinal > 0)
        snprintf(suffix, sizeof suffix, ".gpu%d", device->ordinal);
    if (zr_trace_start_requested(device->arena, "ZR_CUDA_TRACE", suffix) != ZR_OK)
        zr_say("%s: this process writes no trace", zr_last_error());
    /* The arena also works without a learner. */
    if (zr_learner_create(&device->learner, &(struct zr_learner_options){.arena = device->arena}) != ZR_OK)
        device->learner = NULL;
    return ZR_OK;
}

static void report_no_zrd(void)
{
    char reason[512];
    zr_service_alone(reason, sizeof reason);
    if (reason[0])
        zr_say("%s; process %ld continues without zrd", reason, (long)getpid());
}

zr_cu_result zr_cuda_device_open(struct zr_cuda_device *device)
{
    zr_result result = ZR_OK;
    if (atomic_load(&device->passed_on) || atomic_load(&is_broken))
        return ZR_CU_NOT_SUPPORTED;
    if (atomic_load_explicit(&device->ready, memory_order_acquire))
        return ZR_CU_SUCCESS;
    zr_cuda_note_used();
    pthread_mutex_lock(&making);
    if (!atomic_load(&device->ready) && !atomic_load(&device->passed_on)) {
        device->ordinal = (int)(device - devices);
        result = create_parts(device);
        if (result == ZR_OK) {
            zr_cuda_figures_start(device);
            atomic_store_explicit(&device->ready, true, memory_order_release);
        } else {
            destroy_parts(device);
        }
        if (result == ZR_OK && device->backend->lender)
            report_no_zrd();
        /* After a temporary failure, or without a required zrd, the next allocation tries again. */
        if (result == ZR_ERR_UNAVAILABLE && zr_service_wanted() && zr_service_required()) {
            zr_say("%s", zr_last_error());
        } else if (result == ZR_ERR_UNAVAILABLE || result == ZR_ERR_INVALID) {
            zr_say("%s: the CUDA driver serves device %d", zr_last_error(), device->ordinal);
            atomic_store(&device->passed_on, true);
        } else if (result != ZR_OK) {
            zr_cuda_log("the arena of a device");
        }
    }
    bool passed_on = atomic_load(&device->passed_on);
    pthread_mutex_unlock(&making);
    return passed_on ? (zr_cu_result)ZR_CU_NOT_SUPPORTED : zr_cuda_code(result);
}

void zr_cuda_device_end(int ordinal, void (*end_users)(struct zr_cuda_device *device))
{
    if (ordinal < 0 || ordinal >= ZR_CUDA_DEVICES_MAX || zr_cuda_forked())
        return;
    struct zr_cuda_device *device = &devices[ordinal];
    pthread_rwlock_wrlock(&devices_lock);
    pthread_mutex_lock(&making);
    device->retained = NULL;
    pthread_mutex_unlock(&making);
    if (atomic_load(&device->ready)) {
        end_users(device);
        atomic_store(&device->ready, false);
        destroy_parts(device);
        zr_cuda_figures_note(device);
    }
    pthread_rwlock_unlock(&devices_lock);
}

void zr_cuda_device_disable(int ordinal, const char *why)
{
    if (!atomic_exchange(&devices[ordinal].passed_on, true))
        zr_say("%s: the CUDA driver serves further allocations on device %d", why, ordinal);
}

/* ---- Many streams -------------------------------------------------------------------------------------- */

bool zr_cuda_many_streams(void)
{
    return atomic_load_explicit(&uses_many_streams, memory_order_acquire);
}

/* Waits for the device's default stream or, if that fails, for the whole primary context. */
static void wait_for_default_stream(const struct zr_cuda_device *device)
{
    zr_cu_context popped;
    if (device->driver->context_push(device->primary) != ZR_CU_SUCCESS)
        return;
    zr_cu_result code = device->driver->stream_synchronize(NULL);
    if (!zr_cuda_wait_is_over(code))
        code = device->driver->context_synchronize();
    device->driver->context_pop(&popped);
    if (!zr_cuda_wait_is_over(code))
        zr_say("cannot synchronize device %d: error %u; kernels may still use memory that was freed before",
               device->ordinal, code);
}

void zr_cuda_set_many_streams(void)
{
    if (atomic_load_explicit(&settled, memory_order_acquire) || zr_cuda_forked())
        return;
    pthread_mutex_lock(&settling); /* no thread uses a second stream before the wait ends */
    if (!atomic_exchange(&uses_many_streams, true)) {
        pthread_rwlock_rdlock(&devices_lock);
        for (int i = 0; i < ZR_CUDA_DEVICES_MAX; i++)
            if (atomic_load_explicit(&devices[i].ready, memory_order_acquire))
                wait_for_default_stream(&devices[i]);
        pthread_rwlock_unlock(&devices_lock);
        zr_cuda_thunks_done();
        atomic_store_explicit(&settled, true, memory_order_release);
    }
    pthread_mutex_unlock(&settling);
}

/* ---- fork ---------------------------------------------------------------------------------------------- */

bool zr_cuda_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

void zr_cuda_devices_forked(void)
{
    if (atomic_load(&uses_cuda))
        atomic_store(&forked, true);
    pthread_mutex_init(&making, NULL);
    pthread_mutex_init(&settling, NULL);
    pthread_rwlock_init(&devices_lock, NULL);
}

void zr_cuda_note_used(void)
{
    atomic_store_explicit(&uses_cuda, true, memory_order_relaxed);
}
