/* ipc.h: what a handle of legacy IPC says, and the way by which descriptors come to another process.
 * Private to alloc/preload/cuda/. */
#ifndef ZR_PRELOAD_CUDA_IPC_H
#define ZR_PRELOAD_CUDA_IPC_H

#include "alloc/base/system/process.h"
#include "alloc/preload/cuda/cuda.h"

#define ZR_IPC_MAGIC "zr-cuda1"

/* The 64 bytes of a handle of ours; the driver's own begin otherwise. */
struct zr_ipc_handle {
    char magic[8];
    struct zr_process process; /* that has the memory */
    uint64_t secret;           /* by which it knows the block */
    uint64_t bytes;
    char rest[16];
};
_Static_assert(sizeof(struct zr_ipc_handle) == sizeof(zr_cu_ipc_handle), "a handle has 64 bytes");

/* The answer to a secret, followed by messages of up to ZR_IPC_SEGMENTS_MAX pieces: their lengths, and the
 * descriptors beside them. */
struct zr_ipc_answer {
    uint64_t segments_count; /* 0: there is no such block any more */
    uint64_t lead_bytes, bytes;
};
enum { ZR_IPC_SEGMENTS_MAX = 64, ZR_IPC_PATIENCE_S = 10 };

struct sockaddr_un;
/* The abstract name of the process's socket; returns the length of the address. */
unsigned zr_ipc_name(const struct zr_process *process, struct sockaddr_un *out);

/* Starts the thread that answers, unless it runs. False, with words: it cannot be. */
bool zr_ipc_serve(void);

/* Messages of pieces; false: the other side is gone, or says nothing that makes sense. */
bool zr_ipc_send(int socket, const struct zr_segment *segments, size_t count);
bool zr_ipc_receive(int socket, struct zr_segment *segments, size_t count);

#endif
