/* cuda_host.h: this machine's memory for a CUDA device: which kind the driver grants here, and the operations
 * of the kind that is made of page-locked pages. Private to alloc/backend/. Any thread.
 *
 * The kinds, the best first:
 *  - cuMemCreate() on a NUMA node: moves, is mapped twice, goes to other processes. A container that blocks
 *    get_mempolicy refuses it, as do drivers before CUDA 12.2 and nodes without processors.
 *  - cuMemCreate() without a node (CUDA 13): the same, but for other processes.
 *  - anonymous pages, locked while they are mapped (cuMemHostRegister): an unmap loses the contents, and a
 *    handle is mapped once. Any driver has it.
 *
 * A backend chooses once, when it is created. */
#ifndef ZR_CUDA_HOST_H
#define ZR_CUDA_HOST_H

#include "alloc/backend/backend.h"
#include "alloc/backend/cuda_driver.h"

enum zr_cuda_host_kind { ZR_CUDA_HOST_NODE, ZR_CUDA_HOST_ANYWHERE, ZR_CUDA_HOST_LOCKED };

struct zr_cuda_host {
    enum zr_cuda_host_kind kind;
    zr_cu_properties properties; /* for cuMemCreate(); of locked pages the location alone, for words */
    char words[96];              /* what the memory is */
};

struct zr_cuda_host_request {
    zr_cu_device device;
    int node; /* -1: the one closest to the device */
    zr_cu_handle_type exported_as;
};

/* Tries the kinds in turn with one granule each. The device's context is current. ZR_ERR_INVALID: a node
 * above 0 that the driver does not know. ZR_ERR_UNAVAILABLE: no kind is granted; the words say why each is
 * not. */
zr_result zr_cuda_host_choose(const struct zr_cuda_driver *driver, const struct zr_cuda_host_request *request,
                              struct zr_cuda_host *out);

/* The granule by which `bytes` take a quarter of the mappings that the process may have, or less: a mapping
 * of a driver's memory is one of the kernel's, however it lies. Not below `least_bytes`. */
size_t zr_cuda_host_granule(size_t bytes, size_t least_bytes);

/* Operations of a backend of locked pages, with the contract of struct zr_backend_ops; addresses are reserved
 * as on the host. A handle is a number of bytes; the pages come, and are locked, when access is set. */
zr_result zr_cuda_locked_create(zr_backend *backend, struct zr_handle *handle);
void zr_cuda_locked_destroy(zr_backend *backend, struct zr_handle *handle);
zr_result zr_cuda_locked_map(zr_backend *backend, char *address, const struct zr_handle *handle);
zr_result zr_cuda_locked_unmap(zr_backend *backend, char *address, size_t bytes);
zr_result zr_cuda_locked_set_access(zr_backend *backend, char *address, size_t bytes);

#endif
