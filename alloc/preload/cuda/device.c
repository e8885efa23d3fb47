/* device.c: the arena of each device, made at its first allocation, and what a call passes first and last.
 * See cuda.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/service/client/client.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"

static struct zr_cuda_device devices[ZR_CUDA_DEVICES_MAX];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
/* Read by every call on an arena, written by what ends one. */
static pthread_rwlock_t life = PTHREAD_RWLOCK_INITIALIZER;
static _Atomic bool many, settled, used, forked, broken;
static pthread_mutex_t settling = PTHREAD_MUTEX_INITIALIZER;
/* The devices that may use a device's memory: a bit for each. Written under `making`. */
static _Atomic uint64_t admitted[ZR_CUDA_DEVICES_MAX];

/* ---- Words --------------------------------------------------------------------------------------------- */

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

/* A mistake of zr's own: what there is goes on, and the driver serves what comes. */
static void note_broken(const char *condition, const char *file, int line)
{
    if (!atomic_exchange(&broken, true))
        zr_say("%s:%d: assertion %s failed: the CUDA driver serves all further allocations", file, line,
               condition);
}

/* ---- A call -------------------------------------------------------------------------------------------- */

struct zr_cuda_device *zr_cuda_device_at(int ordinal)
{
    return &devices[ordinal];
}

/* The current context and its device; INVALID_CONTEXT: there is none. */
static zr_cu_result find_current(zr_cu_context *context, zr_cu_device *device)
{
    if (!zr_cuda_see() || zr_cuda_forked())
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
    zr_cu_result code = find_current(&context, &device);
    if (code != ZR_CU_SUCCESS)
        return code;
    if (device < 0 || device >= ZR_CUDA_DEVICES_MAX)
        return ZR_CU_NOT_SUPPORTED;
    zr_cuda_keep(call);
    call->context = context;
    call->device = &devices[device];
    return ZR_CU_SUCCESS;
}

/* Makes the device's primary context current, which is retained once for as long as it is not reset. */
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
    zr_cu_result code = find_current(&context, &current);
    if (code == ZR_CU_SUCCESS && current == ordinal)
        return zr_cuda_enter(call);
    if (code != ZR_CU_SUCCESS && code != ZR_CU_INVALID_CONTEXT)
        return code;
    code = push_primary(&devices[ordinal], &context);
    if (code != ZR_CU_SUCCESS)
        return code;
    zr_cuda_keep(call);
    call->context = context;
    call->device = &devices[ordinal];
    call->pushed = true;
    return ZR_CU_SUCCESS;
}

void zr_cuda_keep(struct zr_cuda_call *call)
{
    *call = (struct zr_cuda_call){.mode = ZR_CU_CAPTURE_RELAXED};
    if (ZR_CUDA_PASS(capture_mode, &call->mode) != ZR_CU_SUCCESS)
        call->mode = ZR_CU_CAPTURE_RELAXED;
    pthread_rwlock_rdlock(&life);
}

void zr_cuda_leave(const struct zr_cuda_call *call)
{
    zr_cu_capture_mode mode = call->mode;
    zr_cu_context popped;
    pthread_rwlock_unlock(&life);
    ZR_CUDA_PASS(capture_mode, &mode);
    if (call->pushed)
        call->device->driver->context_pop(&popped);
}

/* ---- The driver that the arena sees -------------------------------------------------------------------- */

/* An event in a stream that is being captured becomes a part of the graph, and a wait for more than one ends
 * the capture: both are refused, and the arena tries again later. */
static const struct zr_cuda_driver *plain; /* set before it is used */

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
/* The linker leads the backend's call here. */
zr_result __wrap_zr_cuda_driver_get(const struct zr_cuda_driver **out)
{
    static struct zr_cuda_driver guarded;
    static _Atomic bool copied;
    const struct zr_cuda_driver *driver;
    zr_result result = __real_zr_cuda_driver_get(&driver);
    if (result != ZR_OK)
        return result;
    if (!atomic_load_explicit(&copied, memory_order_acquire)) { /* only ever under `making` */
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

static bool reaches(const struct zr_cuda_driver *driver, int ordinal, int owner)
{
    int can = 0;
    return ordinal != owner && driver->can_access_peer(&can, ordinal, owner) == ZR_CU_SUCCESS && can;
}

/* The device may use the owner's memory, what there is of it and what will be. lock: making */
static zr_cu_result admit(int ordinal, int owner)
{
    atomic_fetch_or(&admitted[owner], UINT64_C(1) << ordinal);
    zr_result result =
        atomic_load(&devices[owner].ready) ? zr_backend_admit(devices[owner].backend, ordinal) : ZR_OK;
    if (result != ZR_OK)
        zr_cuda_log("access for a peer");
    return zr_cuda_code(result);
}

/* A mapping that a peer has makes every launch slower, and a process of one device needs none. With memory on
 * two devices a program may copy from the one to the other, which it need not enable. lock: making */
static void admit_neighbours(const struct zr_cuda_driver *driver, int ordinal)
{
    for (int i = 0; i < ZR_CUDA_DEVICES_MAX; i++) {
        if (!atomic_load(&devices[i].ready) && !atomic_load(&devices[i].passed_on))
            continue;
        if (reaches(driver, ordinal, i))
            admit(ordinal, i);
        if (reaches(driver, i, ordinal))
            admit(i, ordinal);
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

/* What the driver gives its own memory by this, ours gets by its mappings. */
zr_cu_result cuCtxEnablePeerAccess(zr_cu_context peer, unsigned int flags)
{
    enum { ENABLED_ALREADY = 704 };
    zr_cu_device user = -1, owner = -1;
    zr_cu_result code = ZR_CUDA_PASS(context_peer, peer, flags);
    if ((code != ZR_CU_SUCCESS && code != ENABLED_ALREADY) || zr_cuda_forked() ||
        ZR_CUDA_PASS(context_device, &user) != ZR_CU_SUCCESS || device_of(peer, &owner) != ZR_CU_SUCCESS ||
        user < 0 || owner < 0 || user >= ZR_CUDA_DEVICES_MAX || owner >= ZR_CUDA_DEVICES_MAX)
        return code;
    pthread_rwlock_rdlock(&life);
    pthread_mutex_lock(&making);
    zr_cu_result admitted_code = admit(user, owner);
    pthread_mutex_unlock(&making);
    pthread_rwlock_unlock(&life);
    return admitted_code == ZR_CU_SUCCESS ? code : admitted_code;
}

static zr_result open_stream(struct zr_cuda_device *device)
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
        driver->context_release(device->ordinal); /* the backend keeps it */
    }
    return code == ZR_CU_SUCCESS ? ZR_OK
                                 : zr_fail(ZR_ERR_MEMORY, "the driver refused a stream: error %u", code);
}

static void end_parts(struct zr_cuda_device *device)
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

static zr_result open_parts(struct zr_cuda_device *device)
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
    admit_neighbours(device->driver, device->ordinal);
    options.peers_count = peers_of(device->ordinal, peers);
    result = zr_backend_cuda_create(&device->backend, &options);
    snprintf(name, sizeof name, "gpu%d", device->ordinal);
    if (result == ZR_OK)
        result = open_stream(device);
    if (result == ZR_OK)
        result = zr_arena_create(&device->arena,
                                 &(struct zr_arena_options){.backend = device->backend, .name = name});
    if (result != ZR_OK)
        return result;
    if (device->ordinal > 0)
        snprintf(suffix, sizeof suffix, ".gpu%d", device->ordinal);
    if (zr_trace_as_asked(device->arena, "ZR_CUDA_TRACE", suffix) != ZR_OK)
        zr_say("%s: this process writes no trace", zr_last_error());
    /* Without one it goes, too. */
    if (zr_learner_create(&device->learner, &(struct zr_learner_options){.arena = device->arena}) != ZR_OK)
        device->learner = NULL;
    return ZR_OK;
}

static void say_alone(void)
{
    char words[512];
    zr_service_alone(words, sizeof words);
    if (words[0])
        zr_say("%s; process %ld continues without zrd", words, (long)getpid());
}

zr_cu_result zr_cuda_device_open(struct zr_cuda_device *device)
{
    zr_result result = ZR_OK;
    if (atomic_load(&device->passed_on) || atomic_load(&broken))
        return ZR_CU_NOT_SUPPORTED;
    if (atomic_load_explicit(&device->ready, memory_order_acquire))
        return ZR_CU_SUCCESS;
    zr_cuda_note_used();
    pthread_mutex_lock(&making);
    if (!atomic_load(&device->ready) && !atomic_load(&device->passed_on)) {
        device->ordinal = (int)(device - devices);
        result = open_parts(device);
        if (result == ZR_OK) {
            zr_cuda_figures_start(device);
            atomic_store_explicit(&device->ready, true, memory_order_release);
        } else {
            end_parts(device);
        }
        if (result == ZR_OK && device->backend->lender)
            say_alone();
        /* What may pass is tried again at the next allocation, as is a zrd that has to be there. */
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

static void (*_Atomic device_end)(struct zr_cuda_device *);

void zr_cuda_at_device_end(void (*end)(struct zr_cuda_device *device))
{
    atomic_store(&device_end, end);
}

void zr_cuda_device_end(int ordinal)
{
    struct zr_cuda_block block;
    if (ordinal < 0 || ordinal >= ZR_CUDA_DEVICES_MAX || zr_cuda_forked())
        return;
    struct zr_cuda_device *device = &devices[ordinal];
    pthread_rwlock_wrlock(&life);
    pthread_mutex_lock(&making);
    device->retained = NULL;
    pthread_mutex_unlock(&making);
    if (atomic_load(&device->ready)) {
        while (zr_cuda_blocks_take_any(NULL, device, &block))
            if (!block.arena)
                zr_import_release(device->backend, block.import);
            else if (block.pool)
                zr_cuda_pool_count(block.pool, block.bytes, false);
        zr_cuda_deferred_forget(device);
        void (*end)(struct zr_cuda_device *) = atomic_load(&device_end);
        if (end)
            end(device);
        atomic_store(&device->ready, false);
        zr_cuda_streams_forget(device->primary);
        end_parts(device);
        zr_cuda_figures_note(device);
    }
    pthread_rwlock_unlock(&life);
}

void zr_cuda_device_give_up(int ordinal, const char *why)
{
    if (!atomic_exchange(&devices[ordinal].passed_on, true))
        zr_say("%s: the CUDA driver serves further allocations on device %d", why, ordinal);
}

/* ---- Many streams -------------------------------------------------------------------------------------- */

bool zr_cuda_many_streams(void)
{
    return atomic_load_explicit(&many, memory_order_acquire);
}

/* Behind all that the device's default stream was given; where that cannot be said, behind all of the
 * context. */
static void settle(const struct zr_cuda_device *device)
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

void zr_cuda_go_many(void)
{
    if (atomic_load_explicit(&settled, memory_order_acquire) || zr_cuda_forked())
        return;
    pthread_mutex_lock(&settling); /* no thread uses a second stream before the wait has ended */
    if (!atomic_exchange(&many, true)) {
        pthread_rwlock_rdlock(&life);
        for (int i = 0; i < ZR_CUDA_DEVICES_MAX; i++)
            if (atomic_load_explicit(&devices[i].ready, memory_order_acquire))
                settle(&devices[i]);
        pthread_rwlock_unlock(&life);
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

/* Locks may be held by threads that the child does not have. What there is of CUDA is not the child's. */
static void in_child(void)
{
    if (atomic_load(&used))
        atomic_store(&forked, true);
    pthread_mutex_init(&making, NULL);
    pthread_mutex_init(&settling, NULL);
    pthread_rwlock_init(&life, NULL);
    zr_cuda_thunks_forked();
    zr_cuda_blocks_forked();
    zr_cuda_pools_forked();
    zr_cuda_streams_forked();
    zr_cuda_ipc_forked();
    zr_cuda_figures_forked();
}

void zr_cuda_note_used(void)
{
    atomic_store_explicit(&used, true, memory_order_relaxed);
}

static __attribute__((constructor)) void start(void)
{
    zr_assert_handler_set(note_broken);
    pthread_atfork(NULL, NULL, in_child);
    if (zr_option_get(ZR_OPTION_VERBOSE))
        zr_say("libzr_cuda.so serves process %ld (%s)", (long)getpid(), program_invocation_name);
    zr_cuda_paths_start();
}
