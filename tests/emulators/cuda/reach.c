/* reach.c: the memory that a running kernel may use. Device memory is closed to the processor; what a kernel
 * comes upon in order is opened, and all of it closed again when the kernel ends. See kernels.h. */
#define _GNU_SOURCE
#include "tests/emulators/cuda/kernels.h"

#include <stdlib.h>
#include <sys/mman.h>

static struct opened {
    uintptr_t low, high;
} * opened;
static size_t opened_count, opened_room;

/* With the bytes that the emulator's files have for it. */
static bool open_range(uintptr_t low, uintptr_t high, int fd, uint64_t offset_bytes)
{
    for (size_t i = 0; i < opened_count; i++)
        if (opened[i].low <= low && high <= opened[i].high)
            return true;
    if (mmap((void *)low, high - low, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             (off_t)offset_bytes) == MAP_FAILED)
        return false;
    if (opened_count == opened_room) {
        opened_room = opened_room ? 2 * opened_room : 64;
        opened = emu_must(realloc(opened, opened_room * sizeof *opened));
    }
    opened[opened_count++] = (struct opened){low, high};
    return true;
}

void emu_reach_end(void)
{
    while (opened_count) {
        const struct opened *last = &opened[--opened_count];
        if (mmap((void *)last->low, last->high - last->low, PROT_NONE,
                 MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
            abort();
    }
}

/* ---- Kinds of memory ----------------------------------------------------------------------------------- */

static const char *reach_mapping(const struct emu_execution *e, uintptr_t address, bool writes,
                                 struct emu_reach *out)
{
    zr_cu_address base;
    size_t bytes;
    zr_cu_location device = {ZR_CU_LOCATION_DEVICE, e->context->device};
    const struct emu_memory *memory = emu_mapping_at(address, &base, &bytes);
    if (!memory)
        return "where nothing is mapped";
    unsigned flags = emu_mapping_access(address, &device);
    if (!(flags & ZR_CU_ACCESS_READ))
        return "in a mapping that its device has no access to";
    out->low = base, out->high = base + bytes;
    out->writes = (flags & ZR_CU_ACCESS_READ_WRITE) == ZR_CU_ACCESS_READ_WRITE;
    if (writes && !out->writes)
        return "in a mapping that its device may only read";
    if (emu_mapping_access(address, &(zr_cu_location){.type = ZR_CU_LOCATION_HOST_NUMA}) != ZR_CU_ACCESS_NONE)
        return NULL; /* the processor has it open, and keeps it */
    return open_range(out->low, out->high, memory->file->fd, memory->offset_bytes)
               ? NULL
               : "in memory that the emulator cannot open";
}

static const char *reach_block(const struct emu_execution *e, uintptr_t address, bool writes,
                               struct emu_reach *out)
{
    const struct emu_block *block = emu_block_at(address);
    const struct emu_allocation *found = emu_allocation_at(address);
    if (!found || block->unmapped)
        return "in freed memory, or past the end of an allocation";
    if (emu_place(address, 1, e->context, writes ? EMU_WRITES : EMU_READS) != EMU_MAPPED)
        return "in memory that its device has no access to";
    if (found->context == e->context && e->start < found->ready)
        return "in memory of a pool before its stream has allocated it";
    out->low = found->address, out->high = found->address + found->bytes;
    out->writes = true;
    if (block->fd < 0)
        return NULL;
    return open_range(block->address, block->address + block->bytes, block->fd, block->offset_bytes)
               ? NULL
               : "in memory that the emulator cannot open";
}

/* What a test has put around the tensors that kernels may use. */
static struct emu_gone guards[EMU_GUARDS_MAX];
static size_t guards_count;

void emu_guard(zr_cu_address address, size_t bytes)
{
    struct emu_gone *last = guards_count ? &guards[guards_count - 1] : NULL;
    guards_count = bytes ? guards_count : 0;
    if (!bytes)
        return;
    if (guards_count == EMU_GUARDS_MAX)
        abort();
    guards[guards_count++] = (struct emu_gone){last, address, bytes};
}

/* What is left of the stretch around the address without the ranges; NULL, or the words. */
static const char *without(const struct emu_gone *ranges, const char *words, uintptr_t address,
                           struct emu_reach *out)
{
    for (const struct emu_gone *each = ranges; each; each = each->next) {
        uintptr_t low = each->address, high = low + each->bytes;
        if (low <= address && address < high)
            return words;
        if (high <= address && high > out->low)
            out->low = high;
        if (low > address && low < out->high)
            out->high = low;
    }
    return NULL;
}

/* Of the program's own memory a stretch that no device memory shares. */
enum { PAGEABLE_BYTES = 64 << 10 };

const char *emu_reach(const struct emu_execution *e, uintptr_t address, bool writes, struct emu_reach *out)
{
    zr_cu_address base;
    size_t bytes;
    const char *words;
    *out = (struct emu_reach){0};
    if (emu_reservation_at(address, &base, &bytes)) {
        words = reach_mapping(e, address, writes, out);
    } else if (emu_block_at(address)) {
        words = reach_block(e, address, writes, out);
    } else if (emu_device_address(address)) {
        words = "in freed memory, or past the end of an allocation";
    } else if (e->pageable && address >= PAGEABLE_BYTES) {
        out->low = address / PAGEABLE_BYTES * PAGEABLE_BYTES, out->high = out->low + PAGEABLE_BYTES;
        out->writes = true;
        words = NULL;
    } else {
        words = "where no device memory is";
    }
    if (!words)
        words = without(e->gone, "in memory that was freed or unmapped after the launch and before its end",
                        address, out);
    if (!words && guards_count)
        words = without(&guards[guards_count - 1], "before or behind what the test gave it", address, out);
    return words;
}
