/* blocks.c: addresses with bytes behind them, for all memory of the emulated driver but virtual memory.
 * Device addresses come from regions that are reserved without access and kept, so that a pointer that was
 * freed is never taken for the program's own. See emulator.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGION_BYTES ((size_t)1 << 30)

struct region {
    struct region *next;
    zr_cu_address address;
    size_t granules;
    unsigned char taken[]; /* per granule */
};

static struct region *regions;
static struct emu_block **blocks; /* by address */
static size_t blocks_count, blocks_room;

/* ---- Device addresses ---------------------------------------------------------------------------------- */

/* A region has addresses for the whole device, so that addresses rise from the first allocation on. */
static struct region *add_region(size_t bytes)
{
    size_t g = emu.granularity_bytes, all = bytes + REGION_BYTES + emu.capacity_bytes;
    char *raw = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    struct region *made = emu_must(calloc(1, sizeof *made + all / g));
    made->next = regions;
    made->address = ((zr_cu_address)(uintptr_t)raw + g - 1) / g * g;
    made->granules = all / g - 1;
    return regions = made;
}

/* First fit. */
static bool take_in(struct region *region, size_t granules, zr_cu_address *out)
{
    size_t run = 0;
    for (size_t i = 0; i < region->granules; i++) {
        run = region->taken[i] ? 0 : run + 1;
        if (run == granules) {
            memset(&region->taken[i + 1 - granules], 1, granules);
            *out = region->address + (i + 1 - granules) * emu.granularity_bytes;
            return true;
        }
    }
    return false;
}

static bool take_addresses(size_t bytes, zr_cu_address *out)
{
    size_t granules = bytes / emu.granularity_bytes;
    for (struct region *each = regions; each; each = each->next)
        if (take_in(each, granules, out))
            return true;
    struct region *made = add_region(bytes);
    return made && take_in(made, granules, out);
}

static struct region *region_of(zr_cu_address address)
{
    struct region *each = regions;
    while (each &&
           (address < each->address || address - each->address >= each->granules * emu.granularity_bytes))
        each = each->next;
    return each;
}

bool emu_device_address(zr_cu_address address)
{
    return region_of(address);
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

/* The place of the first block that ends behind the address. */
static size_t place_of(zr_cu_address address)
{
    size_t low = 0, high = blocks_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle]->address + blocks[middle]->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct emu_block *emu_block_at(zr_cu_address address)
{
    size_t place = place_of(address);
    return place < blocks_count && blocks[place]->address <= address ? blocks[place] : NULL;
}

bool emu_host_block(zr_cu_address address)
{
    const struct emu_block *block = emu_block_at(address);
    return block && block->fd < 0 && !block->unmapped;
}

static struct emu_block *add(struct emu_block block)
{
    struct emu_block *made = emu_must(malloc(sizeof *made));
    size_t place = place_of(block.address);
    if (blocks_count == blocks_room) {
        blocks_room = blocks_room ? 2 * blocks_room : 64;
        blocks = emu_must(realloc(blocks, blocks_room * sizeof *blocks));
    }
    memmove(&blocks[place + 1], &blocks[place], (blocks_count++ - place) * sizeof *blocks);
    *made = block;
    return blocks[place] = made;
}

static size_t whole_granules(size_t bytes)
{
    size_t g = emu.granularity_bytes;
    return bytes > SIZE_MAX - g ? 0 : (bytes + g - 1) / g * g;
}

struct emu_block *emu_block_create(int device, size_t bytes)
{
    struct emu_block block = {.device = device, .bytes = whole_granules(bytes), .own_file = true};
    zr_cu_location location = {ZR_CU_LOCATION_DEVICE, device};
    if (block.bytes == 0 || !emu_take_bytes(device, block.bytes))
        return NULL;
    if (emu_file_take(block.bytes, location, &block.offset_bytes) != ZR_CU_SUCCESS ||
        !take_addresses(block.bytes, &block.address)) {
        emu_give_bytes(device, block.bytes);
        return NULL;
    }
    block.fd = emu_own_file.fd;
    emu_trace(EMU_TRACE_MAP, device, block.address, block.bytes);
    return add(block);
}

struct emu_block *emu_block_of_file(int fd, uint64_t offset_bytes, size_t bytes)
{
    struct emu_block block = {.device = -1, .fd = fd, .bytes = bytes, .offset_bytes = offset_bytes};
    return take_addresses(whole_granules(bytes), &block.address) ? add(block) : NULL;
}

struct emu_block *emu_block_of_host(void *address, size_t bytes)
{
    struct emu_block block = {.device = -1, .fd = -1, .program = address, .bytes = bytes};
    if (!address) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        if (bytes > SIZE_MAX / 2)
            return NULL;
        block.bytes = (bytes + page - 1) / page * page;
        address = mmap(NULL, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
        if (address == MAP_FAILED)
            return NULL;
    }
    block.address = (zr_cu_address)(uintptr_t)address;
    return add(block);
}

struct emu_block *emu_block_reserve(size_t bytes)
{
    struct emu_block block = {.device = -1, .fd = -1, .bytes = whole_granules(bytes), .unmapped = true};
    return block.bytes && take_addresses(block.bytes, &block.address) ? add(block) : NULL;
}

bool emu_block_map(struct emu_block *block, int device)
{
    zr_cu_location location = {ZR_CU_LOCATION_DEVICE, device};
    if (!emu_take_bytes(device, block->bytes))
        return false;
    if (emu_file_take(block->bytes, location, &block->offset_bytes) != ZR_CU_SUCCESS) {
        emu_give_bytes(device, block->bytes);
        return false;
    }
    block->device = device;
    block->fd = emu_own_file.fd;
    block->own_file = true;
    block->unmapped = false;
    emu_trace(EMU_TRACE_MAP, device, block->address, block->bytes);
    return true;
}

void emu_block_destroy(struct emu_block *block)
{
    size_t place = place_of(block->address), g = emu.granularity_bytes;
    struct region *region = region_of(block->address);
    memmove(&blocks[place], &blocks[place + 1], (--blocks_count - place) * sizeof *blocks);
    if (block->device >= 0)
        emu_give_bytes(block->device, block->bytes);
    emu_trace(EMU_TRACE_UNMAP, block->device, block->address, block->bytes);
    if (region)
        memset(&region->taken[(block->address - region->address) / g], 0, whole_granules(block->bytes) / g);
    if (block->own_file)
        emu_file_give(block->offset_bytes, block->bytes);
    else if (block->fd >= 0)
        close(block->fd);
    else if (!block->program && !block->unmapped)
        munmap((void *)(uintptr_t)block->address, block->bytes);
    free(block);
}
