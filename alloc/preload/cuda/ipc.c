/* ipc.c: legacy IPC handles of an arena's blocks, in the exporting and in the opening process. See cuda.h;
 * ipc_server.c sends the descriptors. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/ipc.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/slab.h"
#include "alloc/base/system/socket.h"

/* ---- Export -------------------------------------------------------------------------------------------- */

static void set_secret(struct zr_cuda_block *block, void *argument)
{
    uint64_t *secret = argument;
    if (block->secret == 0)
        block->secret = *secret;
    *secret = block->secret;
}

/* Sets the class of the block's granules. ZR_CU_NOT_SUPPORTED: the device cannot export. */
static zr_cu_result export_block(const struct zr_cuda_block *block)
{
    size_t count = 0, lead_bytes;
    zr_result result = zr_block_export(block->arena, (void *)block->address, NULL, &count, &lead_bytes);
    zr_block_export_end(block->arena,
                        (void *)block->address); /* the server exports again for each opening process */
    if (result == ZR_ERR_UNAVAILABLE)
        return ZR_CU_NOT_SUPPORTED;
    return count > 0 && zr_arena_set_granule_class(block->arena, (void *)block->address, block->bytes,
                                                   ZR_GRANULE_EXPORTED) == ZR_OK
               ? ZR_CU_SUCCESS
               : zr_cuda_code(result);
}

zr_cu_result cuIpcGetMemHandle(zr_cu_ipc_handle *out, zr_cu_address address)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    struct zr_ipc_handle handle = {.magic = ZR_IPC_MAGIC};
    if (!out || zr_cuda_forked() || !zr_cuda_blocks_find(address, &block) || !block.arena)
        return ZR_CUDA_PASS(ipc_get, out, address);
    if (block.pool)
        return ZR_CU_INVALID_VALUE; /* the driver refuses memory of its own pools too */
    zr_cu_result code = zr_cuda_enter(&call);
    if (code != ZR_CU_SUCCESS)
        return code;
    code = export_block(&block);
    zr_cuda_leave(&call);
    if (code == ZR_CU_SUCCESS &&
        (getrandom(&handle.secret, sizeof handle.secret, 0) < 0 || !zr_ipc_serve())) {
        zr_cuda_log("cuIpcGetMemHandle");
        code = ZR_CU_OUT_OF_MEMORY;
    }
    if (code == ZR_CU_SUCCESS && !zr_cuda_blocks_change(block.address, set_secret, &handle.secret))
        code = ZR_CU_INVALID_VALUE;
    if (code != ZR_CU_SUCCESS)
        return code;
    zr_process_self(&handle.process);
    handle.bytes = block.bytes;
    memcpy(out, &handle, sizeof *out);
    return ZR_CU_SUCCESS;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

unsigned zr_ipc_name(const struct zr_process *process, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "zr-cuda-%d-%llx", process->pid,
                          (unsigned long long)process->started);
    return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Connects to the exporting process of a handle, which must belong to this user. -1: the process has exited.
 */
static int connect_to_exporter(const struct zr_process *process)
{
    struct sockaddr_un name;
    struct ucred peer;
    socklen_t peer_bytes = sizeof peer;
    struct timeval timeout = {.tv_sec = ZR_IPC_TIMEOUT_S};
    unsigned length = zr_ipc_name(process, &name);
    int fd = zr_socket(AF_UNIX, SOCK_SEQPACKET);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    if (zr_connect(fd, (struct sockaddr *)&name, length) == 0 &&
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 && peer.uid == geteuid() &&
        (peer.pid == process->pid || !zr_process_near(process)))
        return fd;
    close(fd);
    return -1;
}

/* Receives the mappings. False: the peer has closed the connection, or sent an invalid message. */
static bool receive_segments(int socket, struct zr_segment *segments, size_t count)
{
    union {
        struct cmsghdr head;
        char buffer[CMSG_SPACE(ZR_IPC_SEGMENTS_MAX * sizeof(int))];
    } control;
    uint64_t lengths[ZR_IPC_SEGMENTS_MAX];
    int fds[ZR_IPC_SEGMENTS_MAX];
    for (size_t done = 0; done < count;) {
        size_t part = count - done < ZR_IPC_SEGMENTS_MAX ? count - done : ZR_IPC_SEGMENTS_MAX;
        struct iovec text = {lengths, part * sizeof *lengths};
        struct msghdr message = {
            .msg_iov = &text, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        ssize_t bytes = zr_receive(socket, &message, 0);
        const struct cmsghdr *head = bytes < 0 ? NULL : CMSG_FIRSTHDR(&message);
        size_t there = head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS
                           ? (head->cmsg_len - CMSG_LEN(0)) / sizeof *fds
                           : 0;
        if (there > 0)
            memcpy(fds, CMSG_DATA(head), there * sizeof *fds);
        for (size_t i = 0; i < there && i < part; i++)
            segments[done + i] = (struct zr_segment){.fd = fds[i], .bytes = lengths[i]};
        if (there != part || bytes != (ssize_t)text.iov_len || message.msg_flags & (MSG_CTRUNC | MSG_TRUNC))
            return false;
        done += part;
    }
    return true;
}

/* Checks an answer. A block has at most as many mappings as granules of 4 KiB. */
static bool is_valid_answer(const struct zr_ipc_answer *answer, const struct zr_ipc_handle *handle)
{
    return answer->segments_count > 0 && answer->bytes == handle->bytes && answer->bytes > 0 &&
           answer->bytes < (uint64_t)1 << 48 && answer->segments_count <= answer->bytes / 4096 + 2;
}

static zr_cu_result import(struct zr_cuda_device *device, int socket, const struct zr_ipc_handle *handle,
                           struct zr_cuda_block *out)
{
    struct zr_ipc_answer answer = {0};
    uint64_t mapped_bytes = 0;
    if (zr_send_packet(socket, &handle->secret, sizeof handle->secret, 0) != sizeof handle->secret ||
        zr_receive_packet(socket, &answer, sizeof answer, 0) != sizeof answer ||
        !is_valid_answer(&answer, handle))
        return ZR_CU_INVALID_VALUE;
    size_t capacity_bytes = answer.segments_count * sizeof(struct zr_segment);
    struct zr_segment *segments = zr_pages_take(capacity_bytes);
    if (!segments)
        return ZR_CU_OUT_OF_MEMORY;
    for (size_t i = 0; i < answer.segments_count; i++)
        segments[i].fd = -1;
    zr_cu_result code = ZR_CU_INVALID_VALUE;
    if (receive_segments(socket, segments, answer.segments_count)) {
        for (size_t i = 0; i < answer.segments_count; i++)
            if (__builtin_add_overflow(mapped_bytes, segments[i].bytes, &mapped_bytes))
                mapped_bytes = 0;
        if (answer.lead_bytes < mapped_bytes && answer.bytes <= mapped_bytes - answer.lead_bytes) {
            zr_result result = zr_import(device->backend, segments, answer.segments_count, &out->import);
            if (result != ZR_OK)
                zr_cuda_log("cuIpcOpenMemHandle");
            code = zr_cuda_code(result);
        }
    }
    for (size_t i = 0; i < answer.segments_count; i++)
        if (segments[i].fd >= 0)
            close(segments[i].fd);
    zr_pages_give(segments, capacity_bytes);
    out->address = (uintptr_t)out->import + answer.lead_bytes;
    out->bytes = answer.bytes;
    return code;
}

struct opened {
    const struct zr_ipc_handle *handle;
    zr_cu_context context;
};

static bool is_opened(const struct zr_cuda_block *block, const void *argument)
{
    const struct opened *opened = argument;
    return !block->arena && block->context == opened->context && block->secret == opened->handle->secret &&
           block->owner_pid == opened->handle->process.pid;
}

static void open_again(struct zr_cuda_block *block, void *argument)
{
    (void)argument;
    block->opened_count++;
}

static zr_cu_result open_handle(struct zr_cuda_call *call, const struct zr_ipc_handle *handle,
                                zr_cu_address *out)
{
    struct opened opened = {handle, call->context};
    struct zr_cuda_block block;
    if (zr_cuda_blocks_search(is_opened, &opened, &block) &&
        zr_cuda_blocks_change(block.address, open_again, NULL)) {
        *out = block.address;
        return ZR_CU_SUCCESS;
    }
    zr_cu_result code = zr_cuda_device_open(call->device);
    if (code != ZR_CU_SUCCESS)
        return code;
    if (!zr_cuda_blocks_reserve())
        return ZR_CU_OUT_OF_MEMORY;
    block = (struct zr_cuda_block){.context = call->context,
                                   .device = call->device,
                                   .secret = handle->secret,
                                   .owner_pid = handle->process.pid,
                                   .opened_count = 1};
    int socket = connect_to_exporter(&handle->process);
    code = socket < 0 ? (zr_cu_result)ZR_CU_INVALID_VALUE : import(call->device, socket, handle, &block);
    if (socket >= 0)
        close(socket);
    if (code == ZR_CU_SUCCESS) {
        zr_cuda_blocks_put(&block);
        *out = block.address;
    } else {
        zr_cuda_blocks_unreserve();
    }
    return code;
}

zr_cu_result cuIpcOpenMemHandle_v2(zr_cu_address *out, zr_cu_ipc_handle given, unsigned int flags)
{
    enum { LAZY_PEER_ACCESS = 1 };
    struct zr_ipc_handle handle;
    struct zr_cuda_call call;
    struct zr_process own;
    memcpy(&handle, &given, sizeof handle);
    if (zr_cuda_forked() || memcmp(handle.magic, ZR_IPC_MAGIC, sizeof handle.magic) != 0)
        return ZR_CUDA_PASS(ipc_open, out, given, flags);
    zr_cu_result code = zr_cuda_enter(&call);
    if (code != ZR_CU_SUCCESS)
        return code;
    zr_process_self(&own);
    if (!out || flags != LAZY_PEER_ACCESS)
        code = ZR_CU_INVALID_VALUE;
    else if (own.pid == handle.process.pid && own.started == handle.process.started)
        code = ZR_CU_INVALID_CONTEXT; /* a process cannot open its own handle */
    else
        code = open_handle(&call, &handle, out);
    zr_cuda_leave(&call);
    return code;
}

zr_cu_result cuIpcCloseMemHandle(zr_cu_address address)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    if (zr_cuda_forked() || !zr_cuda_blocks_close(address, &block))
        return ZR_CUDA_PASS(ipc_close, address);
    zr_cuda_enter_no_context(&call);
    if (block.opened_count == 0 && zr_import_release(block.device->backend, block.import) != ZR_OK)
        zr_cuda_log("cuIpcCloseMemHandle");
    zr_cuda_leave(&call);
    return ZR_CU_SUCCESS;
}
