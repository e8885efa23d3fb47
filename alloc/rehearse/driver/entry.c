/* entry.c: what every call of the emulated driver passes first, its start and its control. See emulator.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/driver/inside.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct emu_settings emu = {.devices_count = 2,
                           .nodes_count = 1,
                           .version = 13000,
                           .capability = 90,
                           .granularity_bytes = (size_t)2 << 20,
                           .capacity_bytes = (size_t)16 << 30,
                           .work_ticks = 3,
                           .random = 1,
                           .keep_bytes = SIZE_MAX};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* lock: all of it */
static pid_t owner; /* 0: cuInit has not been called */
static uint64_t calls_count[EMU_CALLS_COUNT], delay_ns[EMU_CALLS_COUNT];
static struct zr_emulator_fault fault;
static uint64_t fault_passes, without_context_count, waits_count, memory_ns;
static unsigned questions_count; /* whether work has ended, one after the other */

static const char *const names[] = {
#define NAME(member, name, suffix, parameters) #name,
    ZR_CUDA_FUNCTIONS(NAME) ZR_CUDA_REPLACED(NAME) ZR_CUDA_USED(NAME) ZR_CUDA_LAUNCHING(NAME)
        ZR_CUDA_WORDS(NAME) "launch",
#undef NAME
};

/* The name, which lives as long as the emulator. */
static const char *known(const char *name)
{
    for (unsigned i = 0; i < EMU_CALLS_COUNT; i++)
        if (strcmp(names[i], name) == 0)
            return names[i];
    fprintf(stderr, "emulator: %s is no call of it\n", name);
    abort();
}

/* ---- Passing ------------------------------------------------------------------------------------------- */

static bool injected(enum emu_call call)
{
    uint64_t count = fault.count ? fault.count : 1;
    if (fault.nth == 0 || (fault.call && strcmp(fault.call, names[call]) != 0))
        return false;
    uint64_t pass = ++fault_passes;
    return pass >= fault.nth && pass - fault.nth < count;
}

/* Lets so much time pass in every context. */
static void tick(uint64_t ticks)
{
    if (owner != getpid()) /* work that a parent has submitted is the parent's */
        return;
    for (struct zr_cu_context_st *each = emu_contexts; each; each = each->next) {
        each->clock += ticks;
        emu_run(each);
    }
}

void emu_pause(void)
{
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    pthread_mutex_lock(&lock);
}

void emu_host_waits(enum emu_call call)
{
    const char *path = getenv("ZR_EMULATOR_WAITS");
    FILE *file = path && *path ? fopen(path, "a") : NULL;
    waits_count++;
    if (!file)
        return;
    const uint64_t launches_count = calls_count[EMU_launch_kernel] + calls_count[EMU_launch_config];
    fprintf(file, "%d %s %" PRIu64 "\n", (int)getpid(), names[call], launches_count);
    fclose(file);
}

/* A program that asks again and again whether work has ended lets time pass. */
static uint64_t ticks_of(enum emu_call call)
{
    enum { PATIENCE = 64, DOUBLINGS_MAX = 20 };
    unsigned more = 0;
    if (call != EMU_event_query && call != EMU_stream_query)
        questions_count = 0;
    else if (++questions_count > PATIENCE)
        more = questions_count - PATIENCE;
    return UINT64_C(1) << (more < DOUBLINGS_MAX ? more : DOUBLINGS_MAX);
}

/* Calls that return when the device has ended what it was asked for. */
static const bool waiting_calls[EMU_CALLS_COUNT] = {
    [EMU_stream_synchronize] = true, [EMU_event_synchronize] = true, [EMU_context_synchronize] = true,
    [EMU_copy_now] = true,           [EMU_copy_to_device] = true,    [EMU_copy_to_host] = true,
    [EMU_fill_now] = true,
};

zr_cu_result emu_enter(enum emu_call call, enum emu_need need)
{
    uint64_t ns = __atomic_load_n(&delay_ns[call], __ATOMIC_RELAXED);
    if (ns)
        nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
    pthread_mutex_lock(&lock);
    calls_count[call]++;
    if (waiting_calls[call])
        emu_host_waits(call);
    tick(ticks_of(call));
    if (injected(call))
        return fault.code;
    if (need == EMU_NOTHING)
        return ZR_CU_SUCCESS;
    if (owner != getpid())
        return ZR_CU_NOT_INITIALIZED;
    struct zr_cu_context_st *current = emu_current();
    if (need == EMU_MEMORY && !current)
        without_context_count++;
    if (need == EMU_CONTEXT && !current)
        return ZR_CU_INVALID_CONTEXT;
    if (current && need != EMU_INIT && current->gone)
        return ZR_CU_CONTEXT_IS_DESTROYED;
    if (current && need != EMU_INIT && current->dead)
        return current->dead;
    return emu_capture_check(call);
}

/* What is left of a tick counts for the next. */
void emu_spend(uint64_t ns)
{
    enum { TICK_NS = 1000 };
    uint64_t before = memory_ns / TICK_NS;
    memory_ns += ns;
    if (emu.costs)
        tick(memory_ns / TICK_NS - before);
}

zr_cu_result emu_leave(zr_cu_result code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- The driver itself --------------------------------------------------------------------------------- */

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* Programs ask before cuInit, too. */
int emu_version(void)
{
    return owner ? emu.version : (int)setting("ZR_EMULATOR_VERSION", (uint64_t)emu.version);
}

/* ZR_EMULATOR_FAULT=cuMemMap:3:2 fails the third map with code 2. */
static void read_environment(void)
{
    char call[64];
    unsigned long long nth, code;
    const char *text = getenv("ZR_EMULATOR_FAULT"), *loading = getenv("CUDA_MODULE_LOADING");
    const char *card = getenv("ZR_EMULATOR_CARD");
    emu.card = card ? zr_card_find(card) : NULL;
    emu.keep_bytes = setting("ZR_EMULATOR_KEEP", emu.keep_bytes);
    emu.devices_count = (int)setting("ZR_EMULATOR_DEVICES", (uint64_t)emu.devices_count);
    emu.version = (int)setting("ZR_EMULATOR_VERSION", (uint64_t)emu.version);
    emu.granularity_bytes = setting("ZR_EMULATOR_GRANULARITY", emu.granularity_bytes);
    emu.capacity_bytes = setting("ZR_EMULATOR_MEMORY", emu.capacity_bytes);
    emu.context_bytes = setting("ZR_EMULATOR_CONTEXT", 0);
    emu.exact_ticks |= getenv("ZR_EMULATOR_TICKS") != NULL;
    emu.work_ticks = setting("ZR_EMULATOR_TICKS", emu.work_ticks);
    emu.random = setting("ZR_EMULATOR_SEED", emu.random) | 1;
    emu.races = (unsigned)setting("ZR_EMULATOR_RACES", 2);
    emu.dirty = setting("ZR_EMULATOR_DIRTY", 0) != 0;
    emu.lazy_free |= setting("ZR_EMULATOR_LAZY_FREE", 0) != 0;
    emu.capability = (int)setting("ZR_EMULATOR_CAPABILITY", (uint64_t)emu.capability);
    emu.host_memory = (enum zr_emulator_host)setting("ZR_EMULATOR_HOST", emu.host_memory);
    emu.costs |= setting("ZR_EMULATOR_COSTS", 0) != 0;
    const char *clock = getenv("ZR_EMULATOR_CLOCK"), *fill = getenv("ZR_EMULATOR_FILL");
    emu.timed = emu.card && !emu.exact_ticks;
    emu.clocked = emu.timed && clock;
    if (emu.clocked)
        emu.random = strtoull(clock, NULL, 0) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    emu.fill = fill ? strtod(fill, NULL) : 0;
    emu.lazy = !loading || strcmp(loading, "EAGER") != 0;
    emu.launches_path = getenv("ZR_EMULATOR_LAUNCHES");
    if (emu.devices_count > EMU_DEVICES_MAX)
        emu.devices_count = EMU_DEVICES_MAX;
    emu.devices_count =
        emu_visible_devices(getenv("CUDA_VISIBLE_DEVICES"), emu.devices_count, emu.machine_device);
    for (unsigned i = 0; i < EMU_CALLS_COUNT; i++)
        delay_ns[i] = setting("ZR_EMULATOR_DELAY_NS", delay_ns[i]);
    if (text && sscanf(text, "%63[^:]:%llu:%llu", call, &nth, &code) == 3) {
        fault = (struct zr_emulator_fault){.call = known(call), .nth = nth, .code = (zr_cu_result)code};
    }
}

/* A child finds the lock free: other threads do not exist there. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

PUBLIC zr_cu_result cuInit(unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_init, EMU_NOTHING);
    if (code == ZR_CU_SUCCESS && flags != 0)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && owner && owner != getpid())
        code = ZR_CU_NOT_INITIALIZED; /* a child of a process that has used CUDA */
    if (code == ZR_CU_SUCCESS && !owner) {
        read_environment();
        emu_trace_begin(&emu);
        emu_contexts_begin();
        const char *shared = getenv("ZR_EMULATOR_SHARED");
        if (shared && *shared && !emu_account_share(shared))
            code = ZR_CU_OPERATING_SYSTEM;
        /* As NVIDIA's does for nvidia-modprobe. */
        pid_t child = setting("ZR_EMULATOR_FORKS", 0) ? fork() : -1;
        if (child == 0)
            _exit(0);
        if (child > 0)
            waitpid(child, NULL, 0);
        if (emu.devices_count == 0)
            code = ZR_CU_NO_DEVICE;
        if (code == ZR_CU_SUCCESS) {
            owner = getpid();
            pthread_atfork(before_fork, after_fork, after_fork);
        }
    }
    return emu_leave(code);
}

/* Other threads may still run, and write into a trace. */
__attribute__((destructor)) static void end(void)
{
    pthread_mutex_lock(&lock);
    emu_trace_end();
    pthread_mutex_unlock(&lock);
}

PUBLIC zr_cu_result cuDriverGetVersion(int *version)
{
    zr_cu_result code = emu_enter(EMU_driver_version, EMU_NOTHING);
    if (code == ZR_CU_SUCCESS)
        *version = emu_version();
    return emu_leave(code);
}

static const struct {
    zr_cu_result code;
    const char *name, *text;
} errors[] = {
    {ZR_CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {ZR_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {ZR_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {ZR_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {ZR_CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {ZR_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {ZR_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {ZR_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {ZR_CU_CONTEXT_IN_USE, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "primary context already active"},
    {ZR_CU_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {ZR_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {ZR_CU_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {ZR_CU_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {ZR_CU_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {ZR_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ZR_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ZR_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {ZR_CU_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "part or all of the memory is not page-locked"},
    {ZR_CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {ZR_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {ZR_CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {ZR_CU_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {ZR_CU_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {ZR_CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {ZR_CU_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static zr_cu_result describe(zr_cu_result which, const char **name, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == which) {
            *name = errors[i].name;
            *text = errors[i].text;
            return ZR_CU_SUCCESS;
        }
    *name = *text = NULL;
    return ZR_CU_INVALID_VALUE;
}

PUBLIC zr_cu_result cuGetErrorName(zr_cu_result which, const char **name)
{
    const char *text;
    zr_cu_result code = emu_enter(EMU_error_name, EMU_NOTHING);
    return emu_leave(code == ZR_CU_SUCCESS ? describe(which, name, &text) : code);
}

PUBLIC zr_cu_result cuGetErrorString(zr_cu_result which, const char **text)
{
    const char *name;
    zr_cu_result code = emu_enter(EMU_error_text, EMU_NOTHING);
    return emu_leave(code == ZR_CU_SUCCESS ? describe(which, &name, text) : code);
}

/* ---- Control ------------------------------------------------------------------------------------------- */

static uint64_t control_calls(const char *call)
{
    uint64_t count = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < EMU_CALLS_COUNT; i++)
        count += call && strcmp(call, names[i]) != 0 ? 0 : calls_count[i];
    pthread_mutex_unlock(&lock);
    return count;
}

static uint64_t control_host_waits(void)
{
    pthread_mutex_lock(&lock);
    uint64_t count = waits_count;
    pthread_mutex_unlock(&lock);
    return count;
}

static void control_fail(const struct zr_emulator_fault *wanted)
{
    pthread_mutex_lock(&lock);
    fault = *wanted;
    if (wanted->call)
        fault.call = known(wanted->call);
    fault_passes = 0;
    pthread_mutex_unlock(&lock);
}

static void control_forget(zr_cu_address address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    emu_write_early(address, bytes);
    emu_forget(address, bytes);
    pthread_mutex_unlock(&lock);
}

static void control_delay(const char *call, uint64_t ns)
{
    for (unsigned i = 0; i < EMU_CALLS_COUNT; i++)
        if (!call || strcmp(call, names[i]) == 0)
            __atomic_store_n(&delay_ns[i], ns, __ATOMIC_RELAXED);
}

static void control_work_ticks(uint64_t ticks)
{
    pthread_mutex_lock(&lock);
    emu.work_ticks = ticks;
    emu.exact_ticks = true;
    pthread_mutex_unlock(&lock);
}

static void control_random_ticks(uint64_t seed)
{
    pthread_mutex_lock(&lock);
    emu.work_ticks = 3;
    emu.exact_ticks = false;
    emu.random = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    pthread_mutex_unlock(&lock);
}

/* One setting. */
#define CONTROL(name, parameters, action)                                                                    \
    static void control_##name parameters                                                                    \
    {                                                                                                        \
        pthread_mutex_lock(&lock);                                                                           \
        action;                                                                                              \
        pthread_mutex_unlock(&lock);                                                                         \
    }
CONTROL(attribute, (zr_cu_attribute which, int value), emu_attribute_set(which, value))
CONTROL(version, (int version), emu.version = version)
CONTROL(one_way, (bool on), emu_contexts_one_way(on))
CONTROL(lazy_free, (bool on), emu.lazy_free = on)
CONTROL(host_memory, (enum zr_emulator_host refused), emu.host_memory = refused)
CONTROL(late_loading, (bool on), emu.lazy = on)
CONTROL(costs, (bool on), emu.costs = on)
CONTROL(capacity, (size_t bytes), emu.capacity_bytes = bytes)
CONTROL(poll, (uint64_t ticks), tick(ticks))
CONTROL(torch, (int device, uint64_t allocated_bytes, uint64_t reserved_bytes),
        emu_account_torch(device, allocated_bytes, reserved_bytes))
CONTROL(nccl, (int device, int64_t bytes, bool refused), emu_account_nccl(device, bytes, refused))
#undef CONTROL

static struct zr_emulator_state control_state(void)
{
    struct zr_emulator_state state = {0};
    pthread_mutex_lock(&lock);
    state.used_bytes = emu_used_bytes();
    state.without_context_count = without_context_count;
    state.memory_ns = memory_ns;
    emu_contexts_state(&state);
    emu_memory_state(&state);
    emu_allocations_state(&state);
    emu_pools_state(&state);
    emu_streams_state(&state);
    emu_work_state(&state);
    pthread_mutex_unlock(&lock);
    return state;
}

static uint64_t control_mapped(zr_cu_address address)
{
    pthread_mutex_lock(&lock);
    zr_cu_address base;
    size_t bytes;
    const struct emu_memory *memory = emu_mapping_at(address, &base, &bytes);
    uint64_t number = memory ? memory->handle : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

static void control_pass(void)
{
    pthread_mutex_lock(&lock);
    tick(1);
    pthread_mutex_unlock(&lock);
}

static void control_guard(const void *address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    emu_guard((zr_cu_address)address, bytes);
    pthread_mutex_unlock(&lock);
}

static int control_device(void)
{
    pthread_mutex_lock(&lock);
    int device = emu_current() ? emu_current()->device : -1;
    pthread_mutex_unlock(&lock);
    return device;
}

static bool control_stream_is_here(zr_cu_stream stream)
{
    pthread_mutex_lock(&lock);
    bool here = emu_current() && !emu_no_stream(&stream, emu_current());
    pthread_mutex_unlock(&lock);
    return here;
}

static uint64_t control_ticks(void)
{
    pthread_mutex_lock(&lock);
    uint64_t ticks = emu_current() ? emu_current()->clock : 0;
    pthread_mutex_unlock(&lock);
    return ticks;
}

PUBLIC const struct zr_emulator zr_emulator = {
    .calls = control_calls,
    .host_waits = control_host_waits,
    .fail = control_fail,
    .delay = control_delay,
    .work_ticks = control_work_ticks,
    .random_ticks = control_random_ticks,
    .attribute = control_attribute,
    .version = control_version,
    .capacity = control_capacity,
    .one_way = control_one_way,
    .lazy_free = control_lazy_free,
    .host_memory = control_host_memory,
    .late_loading = control_late_loading,
    .costs = control_costs,
    .tables_asked = emu_tables_asked,
    .state = control_state,
    .launch = emu_launch,
    .report = emu_launch_report,
    .work = emu_library_work,
    .reach = emu_library_reach,
    .read = emu_read,
    .write = emu_write,
    .clear = emu_clear,
    .known = emu_known,
    .note = emu_known_note,
    .poll = control_poll,
    .nccl = control_nccl,
    .torch = control_torch,
    .started = emu_process_started,
    .pass = control_pass,
    .guard = control_guard,
    .mapped = control_mapped,
    .device = control_device,
    .stream_is_here = control_stream_is_here,
    .ticks = control_ticks,
    .forget = control_forget,
};
