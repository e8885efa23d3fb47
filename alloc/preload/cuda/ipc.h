/* ipc.h: the content of a legacy IPC handle, and the messages that send descriptors to another process.
 * Private to alloc/preload/cuda/. */
#ifndef ZR_PRELOAD_CUDA_IPC_H
#define ZR_PRELOAD_CUDA_IPC_H

#include "alloc/base/system/process.h"
#include "alloc/preload/cuda/cuda.h"

#define ZR_IPC_MAGIC "zr-cuda1"

/* The 64 bytes of zr's handle; the driver's handles do not begin with ZR_IPC_MAGIC. */
struct zr_ipc_handle {
    char magic[8];
    struct zr_process process; /* the exporting process */
    uint64_t secret;           /* names the block in that process */
    uint64_t bytes;
    char rest[16];
};
_Static_assert(sizeof(struct zr_ipc_handle) == sizeof(zr_cu_ipc_handle), "a handle has 64 bytes");

/* The answer to a secret. Messages of up to ZR_IPC_SEGMENTS_MAX mappings follow: their lengths, with the
 * descriptors as ancillary data. */
struct zr_ipc_answer {
    uint64_t segments_count; /* 0: no block has the secret */
    uint64_t lead_bytes, bytes;
};
enum { ZR_IPC_SEGMENTS_MAX = 64, ZR_IPC_TIMEOUT_S = 10 };

struct sockaddr_un;
/* The abstract name of the process's socket; returns the length of the address. */
unsigned zr_ipc_name(const struct zr_process *process, struct sockaddr_un *out);

/* Starts the server thread unless it runs. False, with zr_last_error(): the start failed. */
bool zr_ipc_serve(void);

#endif
