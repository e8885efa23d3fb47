/* entry.c: what every call of the emulated driver passes first, and devices and contexts. See emulator.h. */
#define _GNU_SOURCE
#include "tests/emulators/cuda/emulator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

struct emu_settings emu = {.devices_count = 2,
                           .nodes_count = 1,
                           .version = 13000,
                           .granularity_bytes = (size_t)2 << 20,
                           .capacity_bytes = (size_t)16 << 30,
                           .work_ticks = 3,
                           .random = 1};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* lock: all of it */
static pid_t owner; /* 0: cuInit has not been called */
static struct zr_cu_context_st contexts[EMU_DEVICES_MOST];
static uint64_t calls_count[EMU_CALLS_COUNT], delay_ns[EMU_CALLS_COUNT];
static struct zr_emulator_fault fault;
static enum emu_call fault_call;
static bool fault_any;
static uint64_t fault_passes, without_context_count;
static int overrides[256], overridden[256]; /* of attributes */
static bool one_way;

static __thread struct zr_cu_context_st *stack[EMU_STACK_MOST];
static __thread size_t depth;

static const char *const names[] = {
#define NAME(member, name, suffix, parameters) #name,
    ZR_CUDA_FUNCTIONS(NAME) ZR_EMULATOR_EXTRAS(NAME) "launch",
#undef NAME
};

static enum emu_call find_call(const char *name)
{
    for (unsigned i = 0; i < EMU_CALLS_COUNT; i++)
        if (strcmp(names[i], name) == 0)
            return (enum emu_call)i;
    fprintf(stderr, "emulator: %s is no call of it\n", name);
    abort();
}

/* ---- Passing ------------------------------------------------------------------------------------------- */

static bool injected(enum emu_call call)
{
    uint64_t count = fault.count ? fault.count : 1;
    if (fault.nth == 0 || (!fault_any && call != fault_call))
        return false;
    uint64_t pass = ++fault_passes;
    return pass >= fault.nth && pass - fault.nth < count;
}

zr_cu_result emu_enter(enum emu_call call, enum emu_need need)
{
    uint64_t ns = __atomic_load_n(&delay_ns[call], __ATOMIC_RELAXED);
    if (ns)
        nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
    pthread_mutex_lock(&lock);
    calls_count[call]++;
    for (int i = 0; i < emu.devices_count; i++) {
        contexts[i].clock++;
        emu_run(&contexts[i]);
    }
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
    return current && need != EMU_INIT ? current->dead : ZR_CU_SUCCESS;
}

zr_cu_result emu_leave(zr_cu_result code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

struct zr_cu_context_st *emu_context(int device)
{
    return &contexts[device];
}

struct zr_cu_context_st *emu_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

/* Neighbours reach one another, unless it is one way only: 0 and 1, 2 and 3. */
bool emu_peers(int device, int peer)
{
    return device == peer || ((device ^ 1) == peer && (!one_way || device > peer));
}

static bool no_device(int device)
{
    return device < 0 || device >= emu.devices_count;
}

/* ---- The driver itself --------------------------------------------------------------------------------- */

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* ZR_EMULATOR_FAULT=cuMemMap:3:2 fails the third map with code 2. */
static void read_environment(void)
{
    char call[64];
    unsigned long long nth, code;
    const char *text = getenv("ZR_EMULATOR_FAULT");
    emu.devices_count = (int)setting("ZR_EMULATOR_DEVICES", (uint64_t)emu.devices_count);
    emu.version = (int)setting("ZR_EMULATOR_VERSION", (uint64_t)emu.version);
    emu.granularity_bytes = setting("ZR_EMULATOR_GRANULARITY", emu.granularity_bytes);
    emu.capacity_bytes = setting("ZR_EMULATOR_MEMORY", emu.capacity_bytes);
    emu.exact_ticks |= getenv("ZR_EMULATOR_TICKS") != NULL;
    emu.work_ticks = setting("ZR_EMULATOR_TICKS", emu.work_ticks);
    emu.random = setting("ZR_EMULATOR_SEED", emu.random) | 1;
    if (emu.devices_count > EMU_DEVICES_MOST)
        emu.devices_count = EMU_DEVICES_MOST;
    for (unsigned i = 0; i < EMU_CALLS_COUNT; i++)
        delay_ns[i] = setting("ZR_EMULATOR_DELAY_NS", delay_ns[i]);
    if (text && sscanf(text, "%63[^:]:%llu:%llu", call, &nth, &code) == 3) {
        fault = (struct zr_emulator_fault){.call = call, .nth = nth, .code = (zr_cu_result)code};
        fault_call = find_call(call);
    }
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
        for (int i = 0; i < EMU_DEVICES_MOST; i++)
            contexts[i].device = i;
        /* As NVIDIA's does for nvidia-modprobe. */
        pid_t child = setting("ZR_EMULATOR_FORKS", 0) ? fork() : -1;
        if (child == 0)
            _exit(0);
        if (child > 0)
            waitpid(child, NULL, 0);
        if (emu.devices_count == 0)
            code = ZR_CU_NO_DEVICE;
        else
            owner = getpid();
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDriverGetVersion(int *version)
{
    zr_cu_result code = emu_enter(EMU_driver_version, EMU_NOTHING);
    if (code == ZR_CU_SUCCESS)
        *version = emu.version;
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
    {ZR_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ZR_CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ZR_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {ZR_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
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

/* ---- Devices ------------------------------------------------------------------------------------------- */

PUBLIC zr_cu_result cuDeviceGetCount(int *count)
{
    zr_cu_result code = emu_enter(EMU_device_count, EMU_INIT);
    if (code == ZR_CU_SUCCESS)
        *count = emu.devices_count;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDeviceGet(zr_cu_device *device, int ordinal)
{
    zr_cu_result code = emu_enter(EMU_device_get, EMU_INIT);
    if (code == ZR_CU_SUCCESS && no_device(ordinal))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        *device = ordinal;
    return emu_leave(code);
}

static zr_cu_result attribute(zr_cu_attribute which, int *value)
{
    if ((unsigned)which >= 256)
        return ZR_CU_INVALID_VALUE;
    *value = which == ZR_CU_ATTRIBUTE_HOST_NUMA_ID ? 0 : 1;
    if (overridden[which])
        *value = overrides[which];
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuDeviceGetAttribute(int *value, zr_cu_attribute which, zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_device_attribute, EMU_INIT);
    if (code == ZR_CU_SUCCESS && no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    return emu_leave(code == ZR_CU_SUCCESS ? attribute(which, value) : code);
}

PUBLIC zr_cu_result cuDeviceCanAccessPeer(int *can, zr_cu_device device, zr_cu_device peer)
{
    zr_cu_result code = emu_enter(EMU_can_access_peer, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (no_device(device) || no_device(peer)))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        *can = device != peer && emu_peers(device, peer);
    return emu_leave(code);
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

PUBLIC zr_cu_result cuDevicePrimaryCtxRetain(zr_cu_context *context, zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_context_retain, EMU_INIT);
    if (code == ZR_CU_SUCCESS && no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS) {
        contexts[device].retained_count++;
        *context = &contexts[device];
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuDevicePrimaryCtxRelease_v2(zr_cu_device device)
{
    zr_cu_result code = emu_enter(EMU_context_release, EMU_INIT);
    if (code == ZR_CU_SUCCESS && no_device(device))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS && contexts[device].retained_count == 0)
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS)
        contexts[device].retained_count--;
    return emu_leave(code);
}

static bool no_context(const struct zr_cu_context_st *context)
{
    return context < contexts || context >= contexts + emu.devices_count || context->retained_count == 0;
}

PUBLIC zr_cu_result cuCtxPushCurrent_v2(zr_cu_context context)
{
    zr_cu_result code = emu_enter(EMU_context_push, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (no_context(context) || depth == EMU_STACK_MOST))
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS)
        stack[depth++] = context;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxPopCurrent_v2(zr_cu_context *context)
{
    zr_cu_result code = emu_enter(EMU_context_pop, EMU_INIT);
    if (code == ZR_CU_SUCCESS && depth == 0)
        code = ZR_CU_INVALID_CONTEXT;
    if (code == ZR_CU_SUCCESS) {
        depth--;
        if (context)
            *context = stack[depth];
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuCtxGetCurrent(zr_cu_context *context)
{
    zr_cu_result code = emu_enter(EMU_context_current, EMU_INIT);
    if (code == ZR_CU_SUCCESS)
        *context = emu_current();
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    zr_cu_result code = emu_enter(EMU_memory_info, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS) {
        if (total_bytes)
            *total_bytes = emu.capacity_bytes;
        if (free_bytes)
            *free_bytes = emu.capacity_bytes - emu_used_bytes(emu_current()->device);
    }
    return emu_leave(code);
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

static void control_fail(const struct zr_emulator_fault *wanted)
{
    pthread_mutex_lock(&lock);
    fault = *wanted;
    fault_any = !wanted->call;
    if (wanted->call)
        fault_call = find_call(wanted->call);
    fault_passes = 0;
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

static void control_attribute(zr_cu_attribute which, int value)
{
    pthread_mutex_lock(&lock);
    overridden[which] = 1;
    overrides[which] = value;
    pthread_mutex_unlock(&lock);
}

static void control_version(int version)
{
    pthread_mutex_lock(&lock);
    emu.version = version;
    pthread_mutex_unlock(&lock);
}

static void control_one_way(bool on)
{
    pthread_mutex_lock(&lock);
    one_way = on;
    pthread_mutex_unlock(&lock);
}

static void control_capacity(size_t bytes)
{
    pthread_mutex_lock(&lock);
    emu.capacity_bytes = bytes;
    pthread_mutex_unlock(&lock);
}

static struct zr_emulator_state control_state(void)
{
    struct zr_emulator_state state = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < emu.devices_count; i++)
        state.retained_count += contexts[i].retained_count;
    state.stack_depth = depth;
    state.without_context_count = without_context_count;
    emu_memory_state(&state);
    emu_work_state(&state);
    pthread_mutex_unlock(&lock);
    return state;
}

PUBLIC const struct zr_emulator zr_emulator = {
    .calls = control_calls,
    .fail = control_fail,
    .delay = control_delay,
    .work_ticks = control_work_ticks,
    .random_ticks = control_random_ticks,
    .attribute = control_attribute,
    .version = control_version,
    .capacity = control_capacity,
    .one_way = control_one_way,
    .state = control_state,
    .launch = emu_launch,
};
