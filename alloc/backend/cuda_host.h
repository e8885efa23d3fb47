/* cuda_host.h: this machine's memory for a CUDA device: the choice of the kind that the driver grants, and
 * the operations of page-locked pages. Private to alloc/backend/. Any thread.
 *
 * The kinds, best first:
 * - cuMemCreate() on a NUMA node: can move, be mapped twice and be exported. Refused in a container that
 *   blocks get_mempolicy, by drivers before CUDA 12.2, and on nodes without processors.
 * - cuMemCreate() without a node (CUDA 13): the same, but cannot be exported.
 * - anonymous pages, locked while they are mapped (cuMemHostRegister): an unmap loses the contents, and a
 *   handle is mapped once. Every driver has this kind.
 * A backend chooses once, when it is created. */
#ifndef ZR_CUDA_HOST_H
#define ZR_CUDA_HOST_H

#include "alloc/backend/backend.h"
#include "alloc/backend/cuda_driver.h"

enum zr_cuda_host_kind { ZR_CUDA_HOST_NODE, ZR_CUDA_HOST_ANYWHERE, ZR_CUDA_HOST_LOCKED };

struct zr_cuda_host {
    enum zr_cuda_host_kind kind;
    zr_cu_properties properties; /* for cuMemCreate(); locked pages: only the location, for messages */
    char description[96];        /* for messages */
};

struct zr_cuda_host_request {
    zr_cu_device device;
    int node; /* -1: the node closest to the device */
    zr_cu_handle_type exported_as;
};

/* Tries the kinds in turn with one granule each. The device's context is current. ZR_ERR_INVALID: a node
 * above 0 that the driver does not know. ZR_ERR_UNAVAILABLE: no kind is granted; the message says why for
 * each kind. */
zr_result zr_cuda_host_choose(const struct zr_cuda_driver *driver, const struct zr_cuda_host_request *request,
                              struct zr_cuda_host *out);

/* The smallest granule, from `least_bytes` on, with which `bytes` take at most a quarter of the mappings that
 * the process may have. The kernel does not join mappings of a driver's memory. */
size_t zr_cuda_host_granule(size_t bytes, size_t least_bytes);

/* The operations of a backend of locked pages, with the contract of struct zr_backend_ops. Addresses are
 * reserved as on the host. A handle is a number of bytes; setting access commits and locks its pages. */
zr_result zr_cuda_locked_create(zr_backend *backend, struct zr_handle *handle);
void zr_cuda_locked_destroy(zr_backend *backend, struct zr_handle *handle);
zr_result zr_cuda_locked_map(zr_backend *backend, char *address, const struct zr_handle *handle);
zr_result zr_cuda_locked_unmap(zr_backend *backend, char *address, size_t bytes);
zr_result zr_cuda_locked_set_access(zr_backend *backend, char *address, size_t bytes);

#endif
