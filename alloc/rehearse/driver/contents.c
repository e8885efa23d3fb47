/* contents.c: where the bytes of the emulated driver's memory lie, who may use them, and how they are read
 * and written. See emulator.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/driver/inside.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether the context may use the allocation so. Copies between devices go through the host where they must;
 * kernels and fills need a peer's access. */
static bool allowed(const struct emu_allocation *allocation, const struct zr_cu_context_st *context,
                    unsigned use)
{
    int device = context->device;
    switch (allocation->kind) {
    case EMU_PLAIN:
    case EMU_IMPORTED:
        return use & EMU_COPIES || allocation->context->device == device ||
               context->peers >> allocation->context->device & 1;
    case EMU_POOLED:
    case EMU_GRAPH:
        return (emu_pool_access(allocation, device) & use & EMU_WRITES) == (use & EMU_WRITES);
    default:
        return true;
    }
}

static enum emu_place place_in_block(zr_cu_address address, size_t bytes,
                                     const struct zr_cu_context_st *context, unsigned use)
{
    const struct emu_allocation *found = emu_allocation_at(address);
    if (!found || bytes > found->bytes - (address - found->address) || !allowed(found, context, use))
        return EMU_NOWHERE;
    return EMU_MAPPED;
}

static enum emu_place place_in_mappings(zr_cu_address address, size_t bytes, zr_cu_address base, size_t whole,
                                        const struct zr_cu_context_st *context, unsigned use)
{
    zr_cu_location device = {ZR_CU_LOCATION_DEVICE, context->device};
    unsigned flags = use & EMU_WRITES;
    if (bytes > whole - (address - base))
        return EMU_NOWHERE;
    for (size_t done = 0; done < bytes;) {
        zr_cu_address start;
        size_t length;
        if (!emu_mapping_at(address + done, &start, &length) ||
            (emu_mapping_access(address + done, &device) & flags) != flags)
            return EMU_NOWHERE;
        done = start + length - address;
    }
    return EMU_MAPPED;
}

enum emu_place emu_place(zr_cu_address address, size_t bytes, const struct zr_cu_context_st *context,
                         unsigned use)
{
    zr_cu_address base;
    size_t whole;
    if (emu_reservation_at(address, &base, &whole))
        return place_in_mappings(address, bytes, base, whole, context, use);
    if (emu_block_at(address))
        return place_in_block(address, bytes, context, use);
    return address && !emu_device_address(address) ? EMU_HOST : EMU_NOWHERE;
}

bool emu_backed(zr_cu_address address, size_t bytes, const struct zr_cu_context_st *context, unsigned use)
{
    zr_cu_address base;
    size_t whole;
    const struct emu_block *block = emu_block_at(address);
    if (block)
        return !block->unmapped && bytes <= block->bytes - (address - block->address);
    return emu_reservation_at(address, &base, &whole) &&
           place_in_mappings(address, bytes, base, whole, context, use) == EMU_MAPPED;
}

/* One range that lies in one piece, and how long it is: in a file, or (fd -1) where the address says. */
static size_t range_at(zr_cu_address address, size_t bytes, int *fd, off_t *offset)
{
    const struct emu_block *block = emu_block_at(address);
    zr_cu_address base;
    size_t whole;
    uint64_t start;
    *offset = 0;
    if (block) {
        *fd = block->fd;
        base = block->address;
        whole = block->bytes;
        start = block->offset_bytes;
    } else {
        const struct emu_memory *memory = emu_mapping_at(address, &base, &whole);
        if (!memory) {
            *fd = -1;
            return bytes;
        }
        *fd = memory->file->fd;
        start = memory->offset_bytes;
    }
    *offset = (off_t)(start + (address - base));
    return bytes < whole - (address - base) ? bytes : whole - (address - base);
}

/* Whether bytes may have been written in a piece of addresses; some pieces share an entry. lock: the
 * emulator's. */
enum { PIECE_BYTES = 2 << 20, PIECES = 1 << 16 };
static bool written[PIECES];

static bool *written_at(zr_cu_address address)
{
    return &written[address / PIECE_BYTES % PIECES];
}

static size_t end_of_piece(zr_cu_address address, size_t most)
{
    size_t left = PIECE_BYTES - address % PIECE_BYTES;
    return left < most ? left : most;
}

void emu_read(zr_cu_address address, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        int fd;
        off_t offset;
        size_t part = range_at(address + done, bytes - done, &fd, &offset);
        ssize_t got = (ssize_t)part;
        if (fd < 0)
            memcpy((char *)out + done, (void *)(uintptr_t)(address + done), part);
        else
            got = pread(fd, (char *)out + done, part, offset);
        if (got <= 0)
            abort();
        done += (size_t)got;
    }
}

void emu_write(zr_cu_address address, const void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        int fd;
        off_t offset;
        size_t part = range_at(address + done, end_of_piece(address + done, count - done), &fd, &offset);
        ssize_t put = (ssize_t)part;
        *written_at(address + done) = true;
        if (fd < 0)
            memcpy((void *)(uintptr_t)(address + done), (const char *)bytes + done, part);
        else
            put = pwrite(fd, (const char *)bytes + done, part, offset);
        if (put <= 0)
            abort();
        done += (size_t)put;
    }
}

void emu_clear(zr_cu_address address, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        int fd;
        off_t offset;
        size_t part = range_at(address + done, bytes - done, &fd, &offset);
        if (fd < 0)
            memset((void *)(uintptr_t)(address + done), 0, part);
        else if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)part) != 0)
            abort();
        done += part;
    }
}

void emu_forget(zr_cu_address address, size_t bytes)
{
    emu_known_forget(address, bytes);
    for (size_t done = 0; done < bytes;) {
        int fd;
        off_t offset;
        size_t part = range_at(address + done, end_of_piece(address + done, bytes - done), &fd, &offset);
        if (*written_at(address + done) && fd >= 0)
            emu_clear(address + done, part);
        done += part;
    }
}

/* Page-locked memory is where the address says; that of a device is written at once by the system. */
static _Atomic uint32_t *place_of_word(zr_cu_address address)
{
    int fd;
    off_t offset;
    range_at(address, sizeof(uint32_t), &fd, &offset);
    return fd < 0 ? (_Atomic uint32_t *)(uintptr_t)address : NULL;
}

uint32_t emu_word(zr_cu_address address)
{
    _Atomic uint32_t *place = place_of_word(address);
    uint32_t word;
    if (place)
        return atomic_load(place);
    emu_read(address, &word, sizeof word);
    return word;
}

void emu_word_set(zr_cu_address address, uint32_t word)
{
    _Atomic uint32_t *place = place_of_word(address);
    if (place)
        atomic_store(place, word);
    else
        emu_write(address, &word, sizeof word);
}
