/* memory.c: the emulated driver's virtual memory: reservations, handles, mappings, access, and sharing by
 * file descriptor. Every rule that NVIDIA states for these calls is enforced here. See emulator.h. */
#define _GNU_SOURCE
#include "tests/emulators/cuda/emulator.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
/* A shared piece begins with a page that says what it is. */
#define HEADER_BYTES 4096
#define HEADER_MAGIC 0x7a72656d756c6131ull
#define FIRST_MEMORY 0x5a000000ull

struct file {
    int fd;
    size_t users_count; /* imported: memories in it */
};

struct memory {
    zr_cu_location location;
    zr_cu_handle_type exported_as;
    size_t bytes;
    uint64_t offset_bytes; /* in the file */
    struct file *file;
    size_t mappings_count;
    bool released; /* lives for its mappings only */
    bool imported;
    bool exported; /* others may hold it: its bytes stay */
};

struct header {
    uint64_t magic, bytes;
    zr_cu_location location;
};

struct mapping {
    struct memory *memory; /* NULL: free record */
    zr_cu_address address;
    size_t bytes;
    uint8_t access[EMU_DEVICES_MOST]; /* zr_cu_access_flags */
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
static struct file own_file = {.fd = -1};
static uint64_t next_offset;
static struct memory **memories; /* by handle value; NULL: released */
static size_t memories_count, memories_room, live_memories_count;
static struct mapping *mappings;
static uint32_t mappings_count, mappings_room, free_mapping = UINT32_MAX;
static size_t live_mappings_count;
static struct reservation *reservations;
static size_t used_bytes[EMU_DEVICES_MOST];
static uint64_t rdma_count;

size_t emu_used_bytes(int device)
{
    return used_bytes[device];
}

void emu_memory_state(struct zr_emulator_state *out)
{
    out->memories_count = live_memories_count;
    out->mappings_count = live_mappings_count;
    out->rdma_count = rdma_count;
    for (const struct reservation *each = reservations; each; each = each->next)
        out->reservations_count++;
    for (int i = 0; i < EMU_DEVICES_MOST; i++)
        out->used_bytes += used_bytes[i];
}

static void *must(void *pointer)
{
    if (!pointer)
        abort(); /* a test's own memory: nothing to be polite about */
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
    struct reservation *made = must(calloc(1, sizeof *made));
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

/* ---- Handles ------------------------------------------------------------------------------------------- */

static struct memory *memory_of(zr_cu_memory handle)
{
    uint64_t index = handle - FIRST_MEMORY;
    return handle >= FIRST_MEMORY && index < memories_count ? memories[index] : NULL;
}

static zr_cu_memory add_memory(struct memory *memory)
{
    if (memories_count == memories_room) {
        memories_room = memories_room ? memories_room * 2 : 1024;
        memories = must(realloc(memories, memories_room * sizeof *memories));
    }
    memories[memories_count] = memory;
    live_memories_count++;
    return FIRST_MEMORY + memories_count++;
}

static void free_memory(struct memory *memory)
{
    live_memories_count--;
    if (memory->location.type == ZR_CU_LOCATION_DEVICE && !memory->imported)
        used_bytes[memory->location.id] -= memory->bytes;
    if (memory->imported) {
        if (--memory->file->users_count == 0) {
            close(memory->file->fd);
            free(memory->file);
        }
    } else if (!memory->exported) {
        fallocate(memory->file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)memory->offset_bytes,
                  (off_t)memory->bytes);
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
        return properties->exported_as == ZR_CU_HANDLE_NONE ? ZR_CU_SUCCESS : ZR_CU_INVALID_VALUE;
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
    if (on_device && bytes > emu.capacity_bytes - used_bytes[device])
        return ZR_CU_OUT_OF_MEMORY;
    if (own_file.fd < 0)
        own_file.fd = memfd_create("emulated GPU", MFD_CLOEXEC);
    uint64_t at = next_offset;
    if (ftruncate(own_file.fd, (off_t)(at + HEADER_BYTES + bytes)) != 0)
        return ZR_CU_OPERATING_SYSTEM;
    if (properties->exported_as != ZR_CU_HANDLE_NONE) {
        struct header header = {HEADER_MAGIC, bytes, properties->location};
        if (pwrite(own_file.fd, &header, sizeof header, (off_t)at) != sizeof header)
            return ZR_CU_OPERATING_SYSTEM;
    }
    next_offset = at + HEADER_BYTES + bytes;
    rdma_count += properties->flags.rdma;
    struct memory *memory = must(calloc(1, sizeof *memory));
    *memory = (struct memory){.location = properties->location,
                              .exported_as = properties->exported_as,
                              .bytes = bytes,
                              .offset_bytes = at + HEADER_BYTES,
                              .file = &own_file};
    if (on_device)
        used_bytes[device] += bytes;
    *out = add_memory(memory);
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
    struct memory *memory = memory_of(handle);
    if (code == ZR_CU_SUCCESS && !memory)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        memories[handle - FIRST_MEMORY] = NULL;
        memory->released = true;
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
        mappings = must(realloc(mappings, mappings_room * sizeof *mappings));
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

static zr_cu_result map(zr_cu_address address, size_t bytes, struct memory *memory)
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
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemMap(zr_cu_address address, size_t bytes, size_t offset, zr_cu_memory memory,
                             unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_map, EMU_MEMORY);
    if (code == ZR_CU_SUCCESS)
        code = offset != 0 || flags != 0 ? ZR_CU_INVALID_VALUE : map(address, bytes, memory_of(memory));
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
    struct memory *memory = mapping->memory;
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
    if (--memory->mappings_count == 0 && memory->released)
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
    case ZR_CU_LOCATION_HOST_NUMA:
        return of->type == ZR_CU_LOCATION_DEVICE ? ZR_CU_INVALID_VALUE : ZR_CU_SUCCESS;
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

/* ---- Contents ------------------------------------------------------------------------------------------ */

enum emu_place emu_place(zr_cu_address address, size_t bytes, int device, zr_cu_access_flags flags)
{
    struct reservation *reservation = reservation_of(address);
    if (!reservation)
        return address ? EMU_HOST : EMU_NOWHERE;
    if (bytes > reservation->bytes - (address - reservation->address))
        return EMU_NOWHERE;
    for (size_t done = 0; done < bytes;) {
        const struct mapping *mapping = mapping_at(reservation, address + done);
        if (!mapping || (mapping->access[device] & (unsigned)flags) != (unsigned)flags)
            return EMU_NOWHERE;
        done = mapping->address + mapping->bytes - address;
    }
    return EMU_MAPPED;
}

/* One stretch that lies in one mapping: its place in the file, and how long it is. */
static size_t stretch(zr_cu_address address, size_t bytes, int *fd, off_t *offset)
{
    const struct mapping *mapping = mapping_at(reservation_of(address), address);
    size_t inside = address - mapping->address, left = mapping->bytes - inside;
    *fd = mapping->memory->file->fd;
    *offset = (off_t)(mapping->memory->offset_bytes + inside);
    return bytes < left ? bytes : left;
}

void emu_read(zr_cu_address address, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        int fd;
        off_t offset;
        size_t part = stretch(address + done, bytes - done, &fd, &offset);
        ssize_t got = pread(fd, (char *)out + done, part, offset);
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
        size_t part = stretch(address + done, count - done, &fd, &offset);
        ssize_t put = pwrite(fd, (const char *)bytes + done, part, offset);
        if (put <= 0)
            abort();
        done += (size_t)put;
    }
}

/* ---- Other processes ----------------------------------------------------------------------------------- */

/* The descriptor is an opening of the file of its own, whose position says where the piece begins: that
 * survives the way through a socket. */
static zr_cu_result export_memory(int *out, struct memory *memory)
{
    char name[64] = "/proc/self/fd/";
    int number = memory->file->fd;
    char digits[16], *digit = digits + sizeof digits - 1;
    *digit = 0;
    do
        *--digit = (char)('0' + number % 10);
    while (number /= 10);
    strcat(name, digit);
    int fd = open(name, O_RDWR);
    if (fd < 0)
        return ZR_CU_OPERATING_SYSTEM;
    lseek(fd, (off_t)(memory->offset_bytes - HEADER_BYTES), SEEK_SET);
    memory->exported = true;
    *out = fd;
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemExportToShareableHandle(void *handle, zr_cu_memory which, zr_cu_handle_type type,
                                                 unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_export_handle, EMU_MEMORY);
    struct memory *memory = memory_of(which);
    if (code == ZR_CU_SUCCESS &&
        (!handle || !memory || flags || type != ZR_CU_HANDLE_POSIX_FD || memory->exported_as != type))
        code = ZR_CU_INVALID_VALUE;
    return emu_leave(code == ZR_CU_SUCCESS ? export_memory(handle, memory) : code);
}

static zr_cu_result import_memory(zr_cu_memory *out, int fd)
{
    struct header header;
    struct stat status;
    off_t at = lseek(fd, 0, SEEK_CUR);
    if (at < 0 || fstat(fd, &status) != 0 ||
        pread(fd, &header, sizeof header, at) != (ssize_t)sizeof header || header.magic != HEADER_MAGIC)
        return ZR_CU_INVALID_VALUE;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return ZR_CU_OPERATING_SYSTEM;
    struct file *file = must(calloc(1, sizeof *file));
    struct memory *memory = must(calloc(1, sizeof *memory));
    *file = (struct file){.fd = own, .users_count = 1};
    *memory = (struct memory){.location = header.location,
                              .bytes = header.bytes,
                              .offset_bytes = (uint64_t)at + HEADER_BYTES,
                              .file = file,
                              .imported = true};
    *out = add_memory(memory);
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemImportFromShareableHandle(zr_cu_memory *out, void *handle, zr_cu_handle_type type)
{
    zr_cu_result code = emu_enter(EMU_import_handle, EMU_MEMORY);
    if (code == ZR_CU_SUCCESS)
        code = !out || type != ZR_CU_HANDLE_POSIX_FD ? ZR_CU_INVALID_VALUE
                                                     : import_memory(out, (int)(intptr_t)handle);
    return emu_leave(code);
}
