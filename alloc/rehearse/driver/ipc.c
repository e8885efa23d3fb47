/* ipc.c: the emulated driver's legacy IPC: a handle names the process, its file and the place there, and
 * another process of the emulator opens that file. See emulator.h. */
#define _GNU_SOURCE
#include "alloc/rehearse/driver/inside.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAZY_PEER_ACCESS = 1 };

/* In the 64 bytes of a handle. */
struct content {
    uint64_t magic, offset_bytes, bytes, id;
    uint64_t started; /* when the process was: its number may serve another one later */
    int pid, fd, device, reserved;
};
_Static_assert(sizeof(struct content) <= sizeof(zr_cu_ipc_handle), "a handle has room for it");

/* What this process has opened, each as often as it says. */
struct opened {
    struct opened *next;
    struct content content;
    struct zr_cu_context_st *context;
    zr_cu_address address;
    unsigned users_count;
};

static struct opened *all_opened;

PUBLIC zr_cu_result cuIpcGetMemHandle(zr_cu_ipc_handle *out, zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_ipc_get, EMU_CONTEXT);
    const struct emu_allocation *found = emu_allocation_at(address);
    if (code == ZR_CU_SUCCESS && (!out || !found || found->kind != EMU_PLAIN))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        struct content content = {.magic = EMU_HEADER_MAGIC,
                                  .offset_bytes =
                                      found->block->offset_bytes + (found->address - found->block->address),
                                  .bytes = found->bytes,
                                  .id = found->id,
                                  .started = emu_process_started(getpid()),
                                  .pid = getpid(),
                                  .fd = found->block->fd,
                                  .device = emu.machine_device[found->context->device]};
        memset(out, 0, sizeof *out);
        memcpy(out, &content, sizeof content);
    }
    return emu_leave(code);
}

static zr_cu_result open_file(const struct content *content, zr_cu_address *out)
{
    struct zr_cu_context_st *context = emu_current();
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", content->pid, content->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return EMU_MAP_FAILED;
    struct emu_block *block = emu_block_of_file(fd, content->offset_bytes, content->bytes);
    if (!block) {
        close(fd);
        return ZR_CU_OUT_OF_MEMORY;
    }
    emu_allocation_add((struct emu_allocation){.address = block->address,
                                               .bytes = content->bytes,
                                               .kind = EMU_IMPORTED,
                                               .block = block,
                                               .context = context});
    struct opened *made = emu_must(calloc(1, sizeof *made));
    *made = (struct opened){.next = all_opened,
                            .content = *content,
                            .context = context,
                            .address = block->address,
                            .users_count = 1};
    all_opened = made;
    *out = block->address;
    return ZR_CU_SUCCESS;
}

/* The same process has the address already; a second opening in a context is the first one's. */
static zr_cu_result open_handle(zr_cu_address *out, const zr_cu_ipc_handle *handle, unsigned flags)
{
    struct content content;
    memcpy(&content, handle, sizeof content);
    if (!out || flags != LAZY_PEER_ACCESS)
        return ZR_CU_INVALID_VALUE;
    if (content.magic != EMU_HEADER_MAGIC || content.device < 0 || content.device >= EMU_DEVICES_MAX)
        return ZR_CU_INVALID_HANDLE;
    if (content.pid == getpid())
        return ZR_CU_INVALID_CONTEXT;
    if (content.started != emu_process_started(content.pid))
        return ZR_CU_INVALID_HANDLE;
    if (!emu_peers(emu_current()->device, emu_device_here(content.device)))
        return EMU_PEER_UNSUPPORTED;
    for (struct opened *each = all_opened; each; each = each->next) {
        if (memcmp(&each->content, &content, sizeof content) != 0)
            continue;
        if (each->context != emu_current() && each->context->device == emu_current()->device)
            return ZR_CU_INVALID_CONTEXT;
        if (each->context == emu_current()) {
            each->users_count++;
            *out = each->address;
            return ZR_CU_SUCCESS;
        }
    }
    return open_file(&content, out);
}

PUBLIC zr_cu_result cuIpcOpenMemHandle_v2(zr_cu_address *out, zr_cu_ipc_handle handle, unsigned int flags)
{
    zr_cu_result code = emu_enter(EMU_ipc_open, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? open_handle(out, &handle, flags) : code);
}

void emu_ipc_forget(zr_cu_address address)
{
    struct opened **link = &all_opened;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct opened *found = *link;
    if (found) {
        *link = found->next;
        free(found);
    }
}

PUBLIC zr_cu_result cuIpcCloseMemHandle(zr_cu_address address)
{
    zr_cu_result code = emu_enter(EMU_ipc_close, EMU_CONTEXT);
    struct opened *found = all_opened;
    while (found && found->address != address)
        found = found->next;
    if (code == ZR_CU_SUCCESS && !found)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && --found->users_count == 0)
        code = emu_free_imported(address);
    return emu_leave(code);
}
