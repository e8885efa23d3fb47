/* lender.h: the owner from whom a backend leases its physical memory: the allocator service; and the keys
 * that tell the owners of devices apart. Private to the project.
 *
 * alloc/service/client implements the operations; a backend finds its lender when it is opened. A backend
 * without one creates memory on the process's own account. Any thread. */
#ifndef ZR_LENDER_H
#define ZR_LENDER_H

#include "alloc/zr.h"

enum { ZR_LENDER_KEY_BYTES = 40 };

/* One lease of memory, which goes back as a whole. */
struct zr_lease {
    uint32_t number;  /* of this process's leases; 0: none */
    uint64_t granule; /* a device's: which piece of the lender's it is; 0: the process creates it */
    int fd;           /* a device's: to be imported, the receiver's to close; -1: none came */
};

struct zr_lender;

struct zr_lender_ops {
    /* Leases `bytes` as one piece. ZR_ERR_MEMORY: a quota or the machine, in the lender's words.
     * ZR_ERR_UNAVAILABLE: the lender has ended this process's leases, or is required and not there. */
    zr_result (*lease)(struct zr_lender *lender, size_t bytes, struct zr_lease *out);
    /* After the pages are gone. A lease of another process (number 0, or a parent's) is ignored. */
    void (*take_back)(struct zr_lender *lender, size_t bytes, const struct zr_lease *lease);
    /* Another descriptor of a leased piece of a device, the caller's to close. */
    zr_result (*piece)(struct zr_lender *lender, uint64_t granule, int *out);
    /* A file for the host's granules, open for reading and writing, the caller's to close; file_leave() is
     * called before that. */
    zr_result (*file)(struct zr_lender *lender, int *out);
    void (*file_leave)(struct zr_lender *lender, int fd);
};

struct zr_lender {
    const struct zr_lender_ops *ops;
};

/* Finds the lender of an opened backend's memory; *out is NULL where there is none. Called once, before the
 * backend creates memory. A failure: the backend must not be used. */
typedef zr_result zr_lender_find(zr_backend *backend, struct zr_lender **out);

/* ---- Keys of devices (cuda_device.c) ------------------------------------------------------------------- */

/* A number names another device in each process (CUDA_VISIBLE_DEVICES); a UUID, of a GPU or of a part of one
 * (MIG), the same in all. */

/* The device's UUID: 32 small hexadecimal digits and four dashes, as nvidia-smi -L shows it after "GPU-".
 * ZR_ERR_UNAVAILABLE: no driver, or one before CUDA 11.4; ZR_ERR_INVALID: no such device. */
zr_result zr_cuda_device_key(int ordinal, char out[ZR_LENDER_KEY_BYTES]);
/* By what people write: a number of this process's, or a UUID, after "GPU-" or "MIG-" or without. Without
 * `ordinal` a UUID is taken as it is, and needs no driver. Errors as above. */
zr_result zr_cuda_device_find(const char *text, int *ordinal, char key[ZR_LENDER_KEY_BYTES]);

#endif
