/* host_common.c: functions that the kinds of this machine's memory share: addresses, access, copies, events
 * (complete at once), and the machine's memory. Uses alloc/base. */
#define _GNU_SOURCE
#include "alloc/backend/host_common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"

/* ---- Addresses ----------------------------------------------------------------------------------------- */

/* The addresses that this process may still map; UINT64_MAX: no limit. */
static uint64_t addresses_left(void)
{
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    char text[64] = "";
    if (zr_read_text("/proc/self/statm", text, sizeof text) > 0)
        sscanf(text, "%llu", &pages);
    uint64_t used_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used_bytes ? limit.rlim_cur - used_bytes : 0;
}

zr_result zr_host_addresses_error(size_t bytes, int error)
{
    uint64_t left = addresses_left();
    if (left != UINT64_MAX)
        return zr_fail(
            ZR_ERR_ADDRESSES,
            "the system refused %zu bytes of addresses: `ulimit -v` leaves this process %llu; type `ulimit -v unlimited`, or use a smaller limit",
            bytes, (unsigned long long)left);
    return zr_fail(ZR_ERR_ADDRESSES,
                   "the system refused %zu bytes of addresses (error %d): see vm.max_map_count and "
                   "vm.overcommit_memory",
                   bytes, error);
}

/* Reserves `bytes` of addresses without access, aligned to `alignment`. NULL, with errno: the system refused.
 */
char *zr_host_reserve_aligned(size_t bytes, size_t alignment)
{
    size_t all;
    if (__builtin_add_overflow(bytes, alignment, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    char *raw = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    char *aligned = (char *)(((uintptr_t)raw + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (aligned > raw)
        munmap(raw, (size_t)(aligned - raw));
    if (raw + all > aligned + bytes)
        munmap(aligned + bytes, (size_t)(raw + all - (aligned + bytes)));
    return aligned;
}

zr_result zr_host_reserve(zr_backend *backend, size_t bytes, char **out)
{
    size_t granule_bytes = backend->can.granule_bytes;
    *out = zr_host_reserve_aligned(bytes,
                                   granule_bytes > ZR_HOST_HUGE_BYTES ? granule_bytes : ZR_HOST_HUGE_BYTES);
    return *out ? ZR_OK : zr_host_addresses_error(bytes, errno);
}

void zr_host_release(zr_backend *backend, char *address, size_t bytes)
{
    (void)backend;
    munmap(address, bytes);
}

zr_result zr_host_create_nothing(zr_backend *backend, struct zr_handle *handle)
{
    (void)backend, (void)handle;
    return ZR_OK;
}

void zr_host_destroy_nothing(zr_backend *backend, struct zr_handle *handle)
{
    (void)backend, (void)handle;
}

/* Eight times the limit or the machine's memory. At most half of what `ulimit -v` leaves, because other
 * arenas and libraries need addresses too. */
size_t zr_host_reserve_hint(zr_backend *backend, size_t limit_bytes)
{
    struct zr_machine machine = {0};
    size_t granule_bytes = backend->can.granule_bytes;
    uint64_t left = addresses_left();
    zr_os_machine_under("", &machine);
    uint64_t max_bytes = limit_bytes ? limit_bytes : machine.memory_bytes;
    if (max_bytes == 0 || max_bytes > (uint64_t)1 << 43)
        max_bytes = (uint64_t)1 << 43;
    uint64_t bytes = max_bytes * 8;
    if (bytes < (uint64_t)64 << 20)
        bytes = (uint64_t)64 << 20;
    if (bytes > left / 2)
        bytes = left / 2;
    bytes = (bytes + granule_bytes - 1) & ~((uint64_t)granule_bytes - 1);
    return (size_t)bytes;
}

zr_result zr_host_unmap(zr_backend *backend, char *address, size_t bytes)
{
    (void)backend;
    if (mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
        address)
        return zr_host_addresses_error(bytes, errno);
    return ZR_OK;
}

zr_result zr_host_set_access(zr_backend *backend, char *address, size_t bytes)
{
    (void)backend;
    if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0)
        return zr_host_addresses_error(bytes, errno);
    return ZR_OK;
}

zr_result zr_host_file(int *out)
{
    *out = zr_fault_no_descriptor() ? -1 : memfd_create("zr", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return *out >= 0
               ? ZR_OK
               : zr_fail(
                     errno == EMFILE || errno == ENFILE ? ZR_ERR_HOST_MEMORY : ZR_ERR_UNAVAILABLE,
                     "the system refused a memfd (error %d): Linux 3.17 or later and a free file descriptor (`ulimit -n`) are required",
                     errno);
}

/* A mapping and the gap beside it are one VMA each, and the rest of the process needs some. */
size_t zr_host_vma_budget(void)
{
    unsigned long long max_maps = 65530;
    char text[32] = "";
    uint64_t budget = zr_option_get(ZR_OPTION_VMA_BUDGET);
    if (budget)
        return (size_t)budget;
    if (zr_read_text("/proc/sys/vm/max_map_count", text, sizeof text) > 0)
        sscanf(text, "%llu", &max_maps);
    return max_maps > 8192 ? (size_t)(max_maps - 4096) / 2 : 2048;
}

struct zr_capabilities zr_host_capabilities(size_t granule_bytes)
{
    return (struct zr_capabilities){.granule_bytes = granule_bytes,
                                    .vma_budget = zr_host_vma_budget(),
                                    .host_visible = true,
                                    .synchronous = true};
}

size_t zr_host_limit(const struct zr_host_options *options, size_t granule_bytes)
{
    size_t limit_bytes = options->limit_bytes & ~(granule_bytes - 1);
    return options->limit_bytes && !limit_bytes ? 1 : limit_bytes; /* below one granule: no handle fits */
}

/* ---- Copies and events --------------------------------------------------------------------------------- */

zr_result zr_host_copy(zr_backend *backend, const struct zr_copy *copy)
{
    (void)backend;
    memmove(copy->to, copy->from, copy->bytes);
    return ZR_OK;
}

zr_result zr_host_fill(zr_backend *backend, const struct zr_fill *fill)
{
    (void)backend;
    memset(fill->to, fill->value, fill->bytes);
    return ZR_OK;
}

zr_result zr_host_event_record(zr_backend *backend, uint64_t stream, struct zr_stream_point *out)
{
    (void)backend, (void)stream, (void)out;
    return ZR_OK;
}

bool zr_host_event_done(zr_backend *backend, const struct zr_stream_point *event)
{
    (void)backend, (void)event;
    return true;
}

zr_result zr_host_event_wait(zr_backend *backend, const struct zr_stream_point *event)
{
    (void)backend, (void)event;
    return ZR_OK;
}

zr_result zr_host_synchronize(zr_backend *backend)
{
    (void)backend;
    return ZR_OK;
}

zr_result zr_host_memory_info(zr_backend *backend, struct zr_backend_memory *out)
{
    struct zr_machine machine = {0};
    (void)backend;
    zr_os_machine_under("", &machine);
    out->total_bytes = machine.memory_bytes ? machine.memory_bytes : SIZE_MAX;
    out->free_bytes = machine.memory_bytes ? machine.memory_available_bytes : SIZE_MAX;
    if (machine.cgroup_limit_bytes && machine.cgroup_limit_bytes < out->total_bytes) {
        uint64_t left = machine.cgroup_limit_bytes > machine.cgroup_used_bytes
                            ? machine.cgroup_limit_bytes - machine.cgroup_used_bytes
                            : 0;
        out->total_bytes = machine.cgroup_limit_bytes;
        out->free_bytes = left < out->free_bytes ? left : out->free_bytes;
    }
    return ZR_OK;
}

zr_result zr_host_lender_key(zr_backend *backend, char out[ZR_LENDER_KEY_BYTES])
{
    (void)backend;
    strcpy(out, "host");
    return ZR_OK;
}
