/* account.h: the bytes of each device that are in use, in a file that all processes of a simulated machine
 * share (ZR_EMULATOR_SHARED). zr rehearse makes the file and reads it when they have ended. */
#ifndef ZR_REHEARSE_ACCOUNT_H
#define ZR_REHEARSE_ACCOUNT_H

#include <stdint.h>

enum {
    ZR_ACCOUNT_DEVICES_MAX = 64,
    ZR_ACCOUNT_PROCESSES_MAX = 64,
    ZR_ACCOUNT_PIECES_MAX = 16384,
    ZR_ACCOUNT_TORCHES_MAX = 256
};

struct zr_account_device {
    uint64_t peak_bytes;    /* in use by all processes at one time, with their contexts */
    uint64_t contexts_peak; /* at one time */
    uint64_t nccl_peak_bytes, nccl_refusals_count; /* of the others: those of NCCL's own buffers */
    /* Of the others: those that cuBLAS took for itself; its requests that were refused since the last one
     * that was granted. */
    uint64_t libraries_peak_bytes, libraries_refusals_count;
    /* The requests that found too few bytes: how many, the last one, unless it was granted later, and the one
     * before it that found the most missing. */
    uint64_t refusals_count;
    struct zr_account_refusal {
        uint64_t bytes, used_bytes;
    } last, largest;
};

/* lock: the file's first byte (fcntl), but for the lists' own process */
struct zr_account {
    struct zr_account_part {
        int pid;          /* 0: free */
        uint64_t started; /* its number may serve another process later */
        uint64_t used_bytes[ZR_ACCOUNT_DEVICES_MAX];
        uint64_t contexts_count[ZR_ACCOUNT_DEVICES_MAX], nccl_bytes[ZR_ACCOUNT_DEVICES_MAX],
            libraries_bytes[ZR_ACCOUNT_DEVICES_MAX];
    } parts[ZR_ACCOUNT_PROCESSES_MAX];
    /* Memory that was exported; 0 bytes: free. */
    struct zr_account_piece {
        uint64_t bytes, holders; /* a bit for each process */
        int device;
    } pieces[ZR_ACCOUNT_PIECES_MAX];
    uint32_t pieces_count;          /* that were ever used */
    uint32_t static_runtimes_count; /* programs that have the CUDA runtime inside, and were refused */
    uint32_t torches_count;         /* processes with PyTorch's CUDA libraries */
    /* What PyTorch's allocator has reported, of each process and device: what a process that was killed, or
     * ended without Python's exit, leaves. */
    struct zr_account_torch {
        int pid, rank, device; /* pid 0: free; rank: RANK of the environment; -1: none */
        uint64_t allocated_peak_bytes, reserved_peak_bytes;
    } torches[ZR_ACCOUNT_TORCHES_MAX];
    struct zr_account_device devices[ZR_ACCOUNT_DEVICES_MAX];
    uint64_t reads_count, reads_bytes; /* copies to the host of what kernels may have made */
};

#endif
