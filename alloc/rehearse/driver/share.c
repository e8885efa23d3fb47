/* share.c: the emulated driver's virtual memory in other processes, by file descriptor. See emulator.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/driver/inside.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The descriptor is an opening of the file of its own, whose position says where the piece begins: that
 * survives the way through a socket. */
/* The account of all processes has it from now on, and its header says under which number. */
static bool share(struct emu_memory *memory)
{
    if (memory->shared || memory->imported || memory->location.type != ZR_CU_LOCATION_DEVICE)
        return true;
    memory->shared = emu_share_begin(memory->location.id, memory->bytes);
    const zr_cu_location location = {memory->location.type, emu.machine_device[memory->location.id]};
    struct emu_header header = {EMU_HEADER_MAGIC, memory->bytes, location, memory->shared};
    return pwrite(memory->file->fd, &header, sizeof header,
                  (off_t)(memory->offset_bytes - EMU_HEADER_BYTES)) == sizeof header;
}

static zr_cu_result export_memory(int *out, struct emu_memory *memory)
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
    if (fd < 0 || !share(memory))
        return ZR_CU_OPERATING_SYSTEM;
    lseek(fd, (off_t)(memory->offset_bytes - EMU_HEADER_BYTES), SEEK_SET);
    memory->exported = true;
    *out = fd;
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemExportToShareableHandle(void *handle, zr_cu_memory which, zr_cu_handle_type type,
                                                 unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_export_handle, EMU_MEMORY);
    struct emu_memory *memory = emu_memory_of(which);
    if (code == ZR_CU_SUCCESS &&
        (!handle || !memory || flags || type != ZR_CU_HANDLE_POSIX_FD || memory->exported_as != type))
        code = ZR_CU_INVALID_VALUE;
    return emu_leave(code == ZR_CU_SUCCESS ? export_memory(handle, memory) : code);
}

static zr_cu_result import_memory(zr_cu_memory *out, int fd)
{
    struct emu_header header;
    struct stat status;
    off_t at = lseek(fd, 0, SEEK_CUR);
    if (at < 0 || fstat(fd, &status) != 0 ||
        pread(fd, &header, sizeof header, at) != (ssize_t)sizeof header || header.magic != EMU_HEADER_MAGIC)
        return ZR_CU_INVALID_VALUE;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return ZR_CU_OPERATING_SYSTEM;
    if (!emu_share_join(header.shared)) {
        close(own);
        return ZR_CU_INVALID_VALUE;
    }
    if (header.location.type == ZR_CU_LOCATION_DEVICE)
        header.location.id = emu_device_here(header.location.id);
    struct emu_file *file = emu_must(calloc(1, sizeof *file));
    struct emu_memory *memory = emu_must(calloc(1, sizeof *memory));
    *file = (struct emu_file){.fd = own, .users_count = 1};
    *memory = (struct emu_memory){.location = header.location,
                                  .bytes = header.bytes,
                                  .offset_bytes = (uint64_t)at + EMU_HEADER_BYTES,
                                  .file = file,
                                  .imported = true,
                                  .shared = header.shared};
    *out = emu_memory_add(memory);
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

/* For dma-buf, which a memfd is not. */
PUBLIC zr_cu_result cuMemGetHandleForAddressRange(void *out, zr_cu_address address, size_t bytes, int type,
                                                  unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_handle_for_range, EMU_CONTEXT);
    (void)address, (void)type, (void)flags;
    if (code == ZR_CU_SUCCESS)
        code = !out || bytes == 0 ? ZR_CU_INVALID_VALUE : ZR_CU_NOT_SUPPORTED;
    return emu_leave(code);
}
