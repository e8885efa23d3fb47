/* ipc_server.c: the thread that sends descriptors of exported blocks to other processes of this user. The
 * first export starts the thread, with its own stack and all signals blocked. A child after fork() has no
 * such thread and exports nothing. See ipc.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/ipc.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/base/slab.h"
#include "alloc/base/system/socket.h"

enum { STACK_BYTES = 256 << 10, QUEUE_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int listener = -1; /* lock: `lock`; the server thread uses the descriptor without the lock */

/* ---- One request --------------------------------------------------------------------------------------- */

/* Sends the mappings. False: the peer has closed the connection. */
static bool send_segments(int socket, const struct zr_segment *segments, size_t count)
{
    union {
        struct cmsghdr head;
        char buffer[CMSG_SPACE(ZR_IPC_SEGMENTS_MAX * sizeof(int))];
    } control;
    uint64_t lengths[ZR_IPC_SEGMENTS_MAX];
    int fds[ZR_IPC_SEGMENTS_MAX];
    for (size_t done = 0; done < count;) {
        size_t part = count - done < ZR_IPC_SEGMENTS_MAX ? count - done : ZR_IPC_SEGMENTS_MAX;
        for (size_t i = 0; i < part; i++) {
            lengths[i] = segments[done + i].bytes;
            fds[i] = segments[done + i].fd;
        }
        memset(&control, 0, sizeof control);
        struct iovec text = {lengths, part * sizeof *lengths};
        struct msghdr message = {.msg_iov = &text,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = CMSG_SPACE(part * sizeof *fds)};
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(part * sizeof *fds);
        memcpy(CMSG_DATA(head), fds, part * sizeof *fds);
        if (zr_send(socket, &message, 0) != (ssize_t)text.iov_len)
            return false;
        done += part;
    }
    return true;
}

static bool has_secret(const struct zr_cuda_block *block, const void *secret)
{
    return block->arena && block->secret == *(const uint64_t *)secret;
}

/* The block's mappings, in an array of whole pages; NULL: the export failed. */
static struct zr_segment *segments_of(const struct zr_cuda_block *block, size_t *count, size_t *lead_bytes)
{
    *count = 0;
    zr_block_export(block->arena, (void *)block->address, NULL, count, lead_bytes);
    size_t capacity = *count;
    struct zr_segment *segments = capacity > 0 ? zr_pages_take(capacity * sizeof *segments) : NULL;
    if (segments &&
        (zr_block_export(block->arena, (void *)block->address, segments, count, lead_bytes) != ZR_OK ||
         *count != capacity)) {
        zr_pages_give(segments, capacity * sizeof *segments);
        segments = NULL;
    }
    return segments;
}

static void answer(int socket)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    struct zr_ipc_answer reply = {0};
    struct zr_segment *segments = NULL;
    uint64_t secret;
    size_t count = 0, lead_bytes = 0;
    if (zr_receive_packet(socket, &secret, sizeof secret, 0) != sizeof secret || secret == 0)
        return;
    zr_cuda_enter_no_context(&call); /* keeps the block's device open until the descriptors are sent */
    if (zr_cuda_blocks_search(has_secret, &secret, &block))
        segments = segments_of(&block, &count, &lead_bytes);
    if (segments)
        reply = (struct zr_ipc_answer){count, lead_bytes, block.bytes};
    if (zr_send_packet(socket, &reply, sizeof reply, 0) == sizeof reply && segments)
        send_segments(socket, segments, count);
    if (segments)
        zr_block_export_end(block.arena, (void *)block.address);
    zr_cuda_leave(&call);
    if (segments)
        zr_pages_give(segments, count * sizeof *segments);
}

static void *serve(void *argument)
{
    int fd = (int)(intptr_t)argument;
    for (;;) {
        struct ucred peer;
        socklen_t peer_bytes = sizeof peer;
        struct timeval timeout = {.tv_sec = ZR_IPC_TIMEOUT_S};
        int socket = zr_accept(fd, 0);
        if (socket < 0) {
            if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
                return NULL; /* the program has closed the socket */
            usleep(1000);
            continue;
        }
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
        if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 && peer.uid == geteuid())
            answer(socket);
        close(socket);
    }
}

/* ---- Start and fork ------------------------------------------------------------------------------------ */

static bool start(void)
{
    static struct zr_thread thread; /* never joined */
    static struct zr_stack stack;
    struct zr_process own;
    struct sockaddr_un name;
    zr_process_self(&own);
    unsigned length = zr_ipc_name(&own, &name);
    int fd = zr_socket(AF_UNIX, SOCK_SEQPACKET);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, length) != 0 || listen(fd, QUEUE_MAX) != 0) {
        zr_fail(ZR_ERR_UNAVAILABLE, "cannot create the socket for other processes: %s",
                strerrorname_np(errno));
        goto unwind;
    }
    stack = (struct zr_stack){zr_pages_take(STACK_BYTES), STACK_BYTES};
    if (!stack.pages)
        goto unwind;
    if (zr_thread_start_on(&thread, stack, serve, (void *)(intptr_t)fd) != ZR_OK) {
        zr_pages_give(stack.pages, stack.bytes);
        goto unwind;
    }
    listener = fd;
    return true;
unwind:
    if (fd >= 0)
        close(fd);
    return false;
}

bool zr_ipc_serve(void)
{
    pthread_mutex_lock(&lock);
    bool serves = listener >= 0 || start();
    pthread_mutex_unlock(&lock);
    return serves;
}

void zr_cuda_ipc_forked(void)
{
    pthread_mutex_init(&lock, NULL);
    if (listener >= 0)
        close(listener);
    listener = -1;
}
