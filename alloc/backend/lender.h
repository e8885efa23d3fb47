/* lender.h: the lender from which a backend leases its physical memory: the allocator service. And the keys
 * that identify the lenders of devices. Private to the project.
 *
 * alloc/service/client implements the operations. A backend finds its lender when it is opened. A backend
 * without a lender creates memory on the process's own account. Any thread. */
#ifndef ZR_LENDER_H
#define ZR_LENDER_H

#include "alloc/zr.h"

enum { ZR_LENDER_KEY_BYTES = 40 };

/* A lease of memory, which is returned as a whole. */
struct zr_lease {
    uint32_t number;  /* among this process's leases; 0: no lease */
    uint64_t granule; /* device: the lender's number of the memory; 0: the process creates it */
    int fd;           /* device: to import; the receiver closes it; -1: none */
};

struct zr_lender;

struct zr_lender_ops {
    /* Leases `bytes` as one piece. ZR_ERR_MEMORY: a quota or the machine refuses; the message is the
     * lender's. ZR_ERR_UNAVAILABLE: the lender has ended this process's leases, or is required and does not
     * run. */
    zr_result (*lease)(struct zr_lender *lender, size_t bytes, struct zr_lease *out);
    /* Ends a lease whose memory is already released. A lease of another process (number 0, or a parent's) is
     * ignored. */
    void (*take_back)(struct zr_lender *lender, size_t bytes, const struct zr_lease *lease);
    /* Another descriptor of a leased piece of a device's memory; the caller closes it. */
    zr_result (*piece)(struct zr_lender *lender, uint64_t granule, int *out);
    /* A file for the host's granules, open for reading and writing; the caller calls file_leave(), then
     * closes it. */
    zr_result (*file)(struct zr_lender *lender, int *out);
    void (*file_leave)(struct zr_lender *lender, int fd);
};

struct zr_lender {
    const struct zr_lender_ops *ops;
};

/* Finds the lender of an opened backend's memory; *out is NULL if there is none. Called once, before the
 * backend creates memory. After a failure the backend must not be used. */
typedef zr_result zr_lender_find(zr_backend *backend, struct zr_lender **out);

/* ---- Keys of devices (cuda_device.c) ------------------------------------------------------------------- */

/* A device's number may differ between processes (CUDA_VISIBLE_DEVICES). The UUID of a GPU, or of a part of
 * one (MIG), is the same in all processes. */

/* The device's UUID: 32 lower-case hexadecimal digits and four dashes, as nvidia-smi -L shows it after
 * "GPU-". ZR_ERR_UNAVAILABLE: no driver, or one before CUDA 11.4; ZR_ERR_INVALID: no such device. */
zr_result zr_cuda_device_key(int ordinal, char out[ZR_LENDER_KEY_BYTES]);
/* Finds a device by a number in this process, or by a UUID with or without "GPU-" or "MIG-". If `ordinal` is
 * NULL, the UUID is not checked and needs no driver. Errors as for zr_cuda_device_key(). */
zr_result zr_cuda_device_find(const char *text, int *ordinal, char key[ZR_LENDER_KEY_BYTES]);

#endif
