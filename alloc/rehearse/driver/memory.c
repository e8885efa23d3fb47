/* memory.c: the emulated driver's virtual memory: reservations, handles, mappings and access. Every rule that
 * NVIDIA states for these calls is enforced here. See emulator.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/driver/inside.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_MEMORY 0x5a000000ull

struct mapping {
    struct emu_memory *memory; /* NULL: free record */
    zr_cu_address address;
    size_t bytes;
    uint8_t access[EMU_DEVICES_MAX]; /* zr_cu_access_flags */
    uint8_t host_access;
};

struct reservation {
    struct reservation *next;
    zr_cu_address address;
    size_t bytes;
    uint32_t *slots; /* per granularity: index + 1 of the mapping; 0: none */
    size_t slots_bytes;
    size_t mappings_count;
};

/* The emulator's lock covers all of it. */
struct emu_file emu_own_file = {.fd = -1};
static uint64_t next_offset;
static struct emu_memory **memories; /* by handle value; NULL: released */
static size_t memories_count, memories_room, live_memories_count;
static struct mapping *mappings;
static uint32_t mappings_count, mappings_room, free_mapping = UINT32_MAX;
static size_t live_mappings_count;
static struct reservation *reservations;
static uint64_t rdma_count;

void emu_memory_state(struct zr_emulator_state *out)
{
    out->memories_count = live_memories_count;
    out->mappings_count = live_mappings_count;
    out->rdma_count = rdma_count;
    for (const struct reservation *each = reservations; each; each = each->next)
        out->reservations_count++;
}

void *emu_must(void *pointer)
{
    if (!pointer)
        abort();
    return pointer;
}

static bool granular(uint64_t value)
{
    return value % emu.granularity_bytes == 0;
}

/* ---- Reservations -------------------------------------------------------------------------------------- */

static struct reservation *reservation_of(zr_cu_address address)
{
    struct reservation *each = reservations;
    while (each && (address < each->address || address - each->address >= each->bytes))
        each = each->next;
    return each;
}

/* The reservation that holds all of the bytes, NULL if none does. */
static struct reservation *containing(zr_cu_address address, size_t bytes)
{
    struct reservation *found = reservation_of(address);
    return found && bytes <= found->bytes - (address - found->address) ? found : NULL;
}

static char *pointer(zr_cu_address address)
{
    return (char *)(uintptr_t)address;
}

static zr_cu_result reserve(zr_cu_address *address, size_t bytes, size_t alignment)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), all;
    if (bytes == 0 || bytes % page != 0 || (alignment & (alignment - 1)) != 0)
        return ZR_CU_INVALID_VALUE;
    if (alignment < emu.granularity_bytes)
        alignment = emu.granularity_bytes;
    if (alignment > SIZE_MAX / 2 || __builtin_add_overflow(bytes, 2 * alignment, &all))
        return ZR_CU_OUT_OF_MEMORY;
    char *raw = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return ZR_CU_OUT_OF_MEMORY;
    char *aligned = (char *)(((uintptr_t)raw + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (((uintptr_t)aligned & alignment) == 0) /* aligned as asked for, and no better */
        aligned += alignment;
    if (aligned > raw)
        munmap(raw, (size_t)(aligned - raw));
    if (raw + all > aligned + bytes)
        munmap(aligned + bytes, (size_t)(raw + all - aligned) - bytes);
    struct reservation *made = emu_must(calloc(1, sizeof *made));
    size_t slots = bytes / emu.granularity_bytes + 1;
    *made = (struct reservation){.next = reservations,
                                 .address = (zr_cu_address)(uintptr_t)aligned,
                                 .bytes = bytes,
                                 .slots_bytes = slots * sizeof *made->slots};
    made->slots = mmap(NULL, made->slots_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made->slots == MAP_FAILED)
        abort();
    reservations = made;
    *address = made->address;
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemAddressReserve(zr_cu_address *address, size_t bytes, size_t alignment,
                                        zr_cu_address hint, unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_reserve, EMU_MEMORY);
    (void)hint;
    if (code == ZR_CU_SUCCESS)
        code = !address || flags ? ZR_CU_INVALID_VALUE : reserve(address, bytes, alignment);
    return emu_leave(code);
}

static zr_cu_result address_free(zr_cu_address address, size_t bytes)
{
    struct reservation **link = &reservations;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct reservation *found = *link;
    if (!found || found->bytes != bytes || found->mappings_count > 0)
        return ZR_CU_INVALID_VALUE;
    *link = found->next;
    munmap(pointer(address), bytes);
    munmap(found->slots, found->slots_bytes);
    free(found);
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemAddressFree(zr_cu_address address, size_t bytes)
{
    zr_cu_result code = emu_enter(EMU_address_free, EMU_MEMORY);
    return emu_leave(code == ZR_CU_SUCCESS ? address_free(address, bytes) : code);
}

/* ---- The file ------------------------------------------------------------------------------------------ */

zr_cu_result emu_file_take(size_t bytes, zr_cu_location location, uint64_t *offset_bytes)
{
    struct emu_header header = {EMU_HEADER_MAGIC, bytes, location, 0};
    uint64_t at = next_offset;
    if (emu_own_file.fd < 0)
        emu_own_file.fd = memfd_create("emulated GPU", MFD_CLOEXEC);
    if (ftruncate(emu_own_file.fd, (off_t)(at + EMU_HEADER_BYTES + bytes)) != 0 ||
        pwrite(emu_own_file.fd, &header, sizeof header, (off_t)at) != sizeof header)
        return ZR_CU_OPERATING_SYSTEM;
    next_offset = at + EMU_HEADER_BYTES + bytes;
    *offset_bytes = at + EMU_HEADER_BYTES;
    return ZR_CU_SUCCESS;
}

static void punch(int fd, uint64_t offset_bytes, size_t bytes)
{
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(offset_bytes - EMU_HEADER_BYTES),
              (off_t)(bytes + EMU_HEADER_BYTES));
}

void emu_file_give(uint64_t offset_bytes, size_t bytes)
{
    punch(emu_own_file.fd, offset_bytes, bytes);
}

/* What another use of the memory may have left there. */
static void soil(uint64_t offset_bytes, size_t bytes)
{
    static char left[65536];
    memset(left, 0xdb, sizeof left);
    for (size_t done = 0; done < bytes; done += sizeof left)
        if (pwrite(emu_own_file.fd, left, sizeof left, (off_t)(offset_bytes + done)) != sizeof left)
            abort();
}

/* ---- Handles ------------------------------------------------------------------------------------------- */

struct emu_memory *emu_memory_of(zr_cu_memory handle)
{
    uint64_t index = handle - FIRST_MEMORY;
    return handle >= FIRST_MEMORY && index < memories_count ? memories[index] : NULL;
}

zr_cu_memory emu_memory_add(struct emu_memory *memory)
{
    if (memories_count == memories_room) {
        memories_room = memories_room ? memories_room * 2 : 1024;
        memories = emu_must(realloc(memories, memories_room * sizeof *memories));
    }
    memories[memories_count] = memory;
    memory->handles_count = 1;
    memory->handle = FIRST_MEMORY + memories_count++;
    live_memories_count++;
    return memory->handle;
}

static void free_memory(struct emu_memory *memory)
{
    live_memories_count--;
    bool last = memory->shared && emu_share_leave(memory->shared);
    if (memory->location.type == ZR_CU_LOCATION_DEVICE && !memory->imported && !memory->shared)
        emu_give_bytes(memory->location.id, memory->bytes);
    if (last)
        punch(memory->file->fd, memory->offset_bytes, memory->bytes);
    if (memory->imported) {
        if (--memory->file->users_count == 0) {
            close(memory->file->fd);
            free(memory->file);
        }
    } else if (!memory->exported) {
        emu_file_give(memory->offset_bytes, memory->bytes);
    }
    free(memory);
}

/* What is wrong with the properties; ZR_CU_SUCCESS if nothing is. */
static zr_cu_result check_properties(const zr_cu_properties *properties)
{
    if (!properties || properties->type != ZR_CU_ALLOCATION_PINNED || properties->windows_only)
        return ZR_CU_INVALID_VALUE;
    if (properties->exported_as != ZR_CU_HANDLE_NONE && properties->exported_as != ZR_CU_HANDLE_POSIX_FD)
        return ZR_CU_NOT_SUPPORTED;
    switch (properties->location.type) {
    case ZR_CU_LOCATION_DEVICE:
        return properties->location.id < 0 || properties->location.id >= emu.devices_count
                   ? ZR_CU_INVALID_DEVICE
                   : ZR_CU_SUCCESS;
    case ZR_CU_LOCATION_HOST:
        return properties->exported_as == ZR_CU_HANDLE_NONE &&
                       emu_attribute_of(ZR_CU_ATTRIBUTE_HOST_VIRTUAL_MEMORY)
                   ? ZR_CU_SUCCESS
                   : ZR_CU_INVALID_VALUE;
    case ZR_CU_LOCATION_HOST_NUMA:
        return properties->location.id < 0 || properties->location.id >= emu.nodes_count ? ZR_CU_INVALID_VALUE
                                                                                         : ZR_CU_SUCCESS;
    default:
        return ZR_CU_INVALID_VALUE;
    }
}

PUBLIC zr_cu_result cuMemGetAllocationGranularity(size_t *bytes, const zr_cu_properties *properties,
                                                  zr_cu_granularity which)
{
    zr_cu_result code = emu_enter(EMU_granularity, EMU_INIT);
    if (code == ZR_CU_SUCCESS)
        code = check_properties(properties);
    if (code == ZR_CU_SUCCESS && (!bytes || (unsigned)which > ZR_CU_GRANULARITY_RECOMMENDED))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        *bytes = emu.granularity_bytes;
    return emu_leave(code);
}

static zr_cu_result create(zr_cu_memory *out, size_t bytes, const zr_cu_properties *properties)
{
    zr_cu_result code = check_properties(properties);
    int device = properties->location.id;
    bool on_device = properties->location.type == ZR_CU_LOCATION_DEVICE;
    if (code != ZR_CU_SUCCESS)
        return code;
    if (bytes == 0 || !granular(bytes))
        return ZR_CU_INVALID_VALUE;
    if (properties->location.type == ZR_CU_LOCATION_HOST_NUMA) {
        if (!emu_attribute_of(ZR_CU_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY))
            return ZR_CU_NOT_SUPPORTED;
        if (emu.host_memory >= ZR_EMULATOR_HOST_NO_NODE)
            return ZR_CU_NOT_PERMITTED;
    }
    if (on_device && !emu_take_bytes(device, bytes))
        return ZR_CU_OUT_OF_MEMORY;
    uint64_t at;
    code = emu_file_take(bytes, properties->location, &at);
    if (code != ZR_CU_SUCCESS) {
        if (on_device)
            emu_give_bytes(device, bytes);
        return code;
    }
    if (emu.dirty)
        soil(at, bytes);
    rdma_count += properties->flags.rdma;
    struct emu_memory *memory = emu_must(calloc(1, sizeof *memory));
    *memory = (struct emu_memory){.location = properties->location,
                                  .exported_as = properties->exported_as,
                                  .bytes = bytes,
                                  .offset_bytes = at,
                                  .file = &emu_own_file};
    *out = emu_memory_add(memory);
    emu_spend(EMU_CREATE_NS);
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemCreate(zr_cu_memory *out, size_t bytes, const zr_cu_properties *properties,
                                unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_create, EMU_MEMORY);
    if (code == ZR_CU_SUCCESS)
        code = !out || !properties || flags ? ZR_CU_INVALID_VALUE : create(out, bytes, properties);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemRelease(zr_cu_memory handle)
{
    zr_cu_result code = emu_enter(EMU_release, EMU_MEMORY);
    struct emu_memory *memory = emu_memory_of(handle);
    if (code == ZR_CU_SUCCESS && !memory)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && --memory->handles_count == 0) {
        memories[handle - FIRST_MEMORY] = NULL;
        if (memory->mappings_count == 0)
            free_memory(memory);
    }
    return emu_leave(code);
}

/* ---- Mappings ------------------------------------------------------------------------------------------ */

static uint32_t take_mapping(void)
{
    if (free_mapping != UINT32_MAX) {
        uint32_t index = free_mapping;
        free_mapping = (uint32_t)mappings[index].bytes;
        return index;
    }
    if (mappings_count == mappings_room) {
        mappings_room = mappings_room ? mappings_room * 2 : 1024;
        mappings = emu_must(realloc(mappings, mappings_room * sizeof *mappings));
    }
    return mappings_count++;
}

static uint32_t *slot_of(struct reservation *reservation, zr_cu_address address)
{
    return &reservation->slots[(address - reservation->address) / emu.granularity_bytes];
}

static struct mapping *mapping_at(struct reservation *reservation, zr_cu_address address)
{
    uint32_t index = *slot_of(reservation, address);
    return index ? &mappings[index - 1] : NULL;
}

/* A program that maps memory itself has each mapping as a block. */
static void trace(const struct mapping *mapping, enum emu_traced first, enum emu_traced then)
{
    const zr_cu_location *of = &mapping->memory->location;
    const int device = of->type == ZR_CU_LOCATION_DEVICE ? of->id : -1;
    emu_trace(first, device, mapping->address, mapping->bytes);
    emu_trace(then, device, mapping->address, mapping->bytes);
}

static zr_cu_result map(zr_cu_address address, size_t bytes, struct emu_memory *memory)
{
    struct reservation *reservation = containing(address, bytes);
    if (!reservation || !memory || bytes == 0 || !granular(address) || !granular(bytes) ||
        bytes > memory->bytes)
        return ZR_CU_INVALID_VALUE;
    for (size_t done = 0; done < bytes; done += emu.granularity_bytes)
        if (mapping_at(reservation, address + done))
            return ZR_CU_INVALID_VALUE;
    uint32_t index = take_mapping();
    mappings[index] = (struct mapping){.memory = memory, .address = address, .bytes = bytes};
    for (size_t done = 0; done < bytes; done += emu.granularity_bytes)
        *slot_of(reservation, address + done) = index + 1;
    memory->mappings_count++;
    reservation->mappings_count++;
    live_mappings_count++;
    trace(&mappings[index], EMU_TRACE_MAP, EMU_TRACE_ALLOC);
    emu_spend(EMU_MAP_NS);
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemMap(zr_cu_address address, size_t bytes, size_t offset, zr_cu_memory memory,
                             unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_map, EMU_MEMORY);
    if (code == ZR_CU_SUCCESS)
        code = offset != 0 || flags != 0 ? ZR_CU_INVALID_VALUE : map(address, bytes, emu_memory_of(memory));
    return emu_leave(code);
}

/* True when the bytes are whole mappings without a gap in one reservation. */
static bool whole_mappings(zr_cu_address address, size_t bytes)
{
    struct reservation *reservation = containing(address, bytes);
    if (!reservation || bytes == 0)
        return false;
    for (size_t done = 0; done < bytes;) {
        const struct mapping *mapping = mapping_at(reservation, address + done);
        if (!mapping || mapping->address != address + done || mapping->bytes > bytes - done)
            return false;
        done += mapping->bytes;
    }
    return true;
}

static void forget(struct reservation *reservation, struct mapping *mapping)
{
    struct emu_memory *memory = mapping->memory;
    trace(mapping, EMU_TRACE_FREE, EMU_TRACE_UNMAP);
    for (size_t done = 0; done < mapping->bytes; done += emu.granularity_bytes)
        *slot_of(reservation, mapping->address + done) = 0;
    if (mapping->host_access &&
        mmap(pointer(mapping->address), mapping->bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
    mapping->memory = NULL;
    mapping->bytes = free_mapping;
    free_mapping = (uint32_t)(mapping - mappings);
    reservation->mappings_count--;
    live_mappings_count--;
    if (--memory->mappings_count == 0 && memory->handles_count == 0)
        free_memory(memory);
}

PUBLIC zr_cu_result cuMemUnmap(zr_cu_address address, size_t bytes)
{
    zr_cu_result code = emu_enter(EMU_unmap, EMU_MEMORY);
    if (code == ZR_CU_SUCCESS && !whole_mappings(address, bytes))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        struct reservation *reservation = reservation_of(address);
        emu_unmapped(address, bytes);
        for (size_t done = 0; done < bytes;) {
            struct mapping *mapping = mapping_at(reservation, address + done);
            done += mapping->bytes;
            forget(reservation, mapping);
            emu_spend(EMU_UNMAP_NS);
        }
    }
    return emu_leave(code);
}

/* ---- Access -------------------------------------------------------------------------------------------- */

static zr_cu_result check_access(const struct mapping *mapping, const zr_cu_access *access)
{
    const zr_cu_location *of = &mapping->memory->location;
    if (access->flags != ZR_CU_ACCESS_NONE && access->flags != ZR_CU_ACCESS_READ &&
        access->flags != ZR_CU_ACCESS_READ_WRITE)
        return ZR_CU_INVALID_VALUE;
    switch (access->location.type) {
    case ZR_CU_LOCATION_DEVICE:
        if (access->location.id < 0 || access->location.id >= emu.devices_count)
            return ZR_CU_INVALID_DEVICE;
        return of->type == ZR_CU_LOCATION_DEVICE && !emu_peers(access->location.id, of->id)
                   ? ZR_CU_INVALID_DEVICE
                   : ZR_CU_SUCCESS;
    case ZR_CU_LOCATION_HOST:
        return of->type == ZR_CU_LOCATION_DEVICE ? ZR_CU_INVALID_VALUE : ZR_CU_SUCCESS;
    case ZR_CU_LOCATION_HOST_NUMA:
        return of->type == ZR_CU_LOCATION_HOST_NUMA ? ZR_CU_SUCCESS : ZR_CU_INVALID_VALUE;
    default:
        return ZR_CU_INVALID_VALUE;
    }
}

static void give_access(struct mapping *mapping, const zr_cu_access *access)
{
    if (access->location.type == ZR_CU_LOCATION_DEVICE) {
        mapping->access[access->location.id] = (uint8_t)access->flags;
        return;
    }
    int protection = access->flags == ZR_CU_ACCESS_NONE   ? PROT_NONE
                     : access->flags == ZR_CU_ACCESS_READ ? PROT_READ
                                                          : PROT_READ | PROT_WRITE;
    mapping->host_access = true;
    if (mmap(pointer(mapping->address), mapping->bytes, protection, MAP_SHARED | MAP_FIXED,
             mapping->memory->file->fd, (off_t)mapping->memory->offset_bytes) == MAP_FAILED)
        abort();
}

static zr_cu_result set_access(zr_cu_address address, size_t bytes, const zr_cu_access *access, size_t count)
{
    if (!access || count == 0 || !whole_mappings(address, bytes))
        return ZR_CU_INVALID_VALUE;
    struct reservation *reservation = reservation_of(address);
    for (unsigned pass = 0; pass < 2; pass++) /* look at everything before anything is done */
        for (size_t done = 0; done < bytes;) {
            struct mapping *mapping = mapping_at(reservation, address + done);
            for (size_t i = 0; i < count; i++) {
                zr_cu_result code = pass ? ZR_CU_SUCCESS : check_access(mapping, &access[i]);
                if (code != ZR_CU_SUCCESS)
                    return code;
                if (pass)
                    give_access(mapping, &access[i]);
            }
            if (pass)
                emu_spend(EMU_ACCESS_NS);
            done += mapping->bytes;
        }
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemSetAccess(zr_cu_address address, size_t bytes, const zr_cu_access *access,
                                   size_t count)
{
    zr_cu_result code = emu_enter(EMU_set_access, EMU_MEMORY);
    return emu_leave(code == ZR_CU_SUCCESS ? set_access(address, bytes, access, count) : code);
}

/* ---- What is where ------------------------------------------------------------------------------------- */

bool emu_reservation_at(zr_cu_address address, zr_cu_address *base, size_t *bytes)
{
    const struct reservation *found = reservation_of(address);
    if (found) {
        *base = found->address;
        *bytes = found->bytes;
    }
    return found;
}

static const struct mapping *find_mapping(zr_cu_address address)
{
    struct reservation *found = reservation_of(address);
    return found ? mapping_at(found, address) : NULL;
}

struct emu_memory *emu_mapping_at(zr_cu_address address, zr_cu_address *base, size_t *bytes)
{
    const struct mapping *found = find_mapping(address);
    if (!found)
        return NULL;
    *base = found->address;
    *bytes = found->bytes;
    return found->memory;
}

unsigned emu_mapping_access(zr_cu_address address, const zr_cu_location *location)
{
    const struct mapping *found = find_mapping(address);
    if (location->type == ZR_CU_LOCATION_DEVICE)
        return found->access[location->id];
    return found->host_access ? ZR_CU_ACCESS_READ_WRITE : ZR_CU_ACCESS_NONE;
}

/* A handle more, also of memory whose handles were all released. */
PUBLIC zr_cu_result cuMemRetainAllocationHandle(zr_cu_memory *out, void *address)
{
    zr_cu_result code = emu_enter(EMU_retain_handle, EMU_MEMORY);
    const struct mapping *found = find_mapping((zr_cu_address)(uintptr_t)address);
    if (code == ZR_CU_SUCCESS && (!out || !found))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        struct emu_memory *memory = found->memory;
        memory->handles_count++;
        memories[memory->handle - FIRST_MEMORY] = memory;
        *out = memory->handle;
    }
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemGetAllocationPropertiesFromHandle(zr_cu_properties *out, zr_cu_memory handle)
{
    zr_cu_result code = emu_enter(EMU_handle_properties, EMU_INIT);
    const struct emu_memory *memory = emu_memory_of(handle);
    if (code == ZR_CU_SUCCESS && (!out || !memory))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        *out = (zr_cu_properties){.type = ZR_CU_ALLOCATION_PINNED,
                                  .exported_as = memory->exported_as,
                                  .location = memory->location};
    return emu_leave(code);
}

PUBLIC zr_cu_result cuMemGetAccess(unsigned long long *flags, const zr_cu_location *location,
                                   zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_access_of, EMU_INIT);
    if (code == ZR_CU_SUCCESS && (!flags || !location || !find_mapping(address)))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && location->type == ZR_CU_LOCATION_DEVICE && emu_no_device(location->id))
        code = ZR_CU_INVALID_DEVICE;
    if (code == ZR_CU_SUCCESS)
        *flags = emu_mapping_access(address, location);
    return emu_leave(code);
}
