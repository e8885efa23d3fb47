/* host_common.h: functions that the kinds of this machine's memory share. Private to alloc/backend/.
 *
 * Most are operations of a backend, with the contract of struct zr_backend_ops. Any thread. */
#ifndef ZR_HOST_COMMON_H
#define ZR_HOST_COMMON_H

#include "alloc/backend/backend.h"

#define ZR_HOST_HUGE_BYTES ((size_t)2 << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Reserves `bytes` of addresses without access, aligned to `alignment`. NULL, with errno: the system refused.
 */
char *zr_host_reserve_aligned(size_t bytes, size_t alignment);
/* ZR_ERR_ADDRESSES, with a message: the system refused `bytes` with this errno. */
zr_result zr_host_addresses_error(size_t bytes, int error);
/* Creates a file for granules that can be sealed. ZR_ERR_UNAVAILABLE: the system has no memfd.
 * ZR_ERR_HOST_MEMORY: no descriptor is left. */
ZR_PRIVATE_API zr_result zr_host_file(int *out);
/* The mappings that a backend may have: from ZR_CONF, or a little less than half of vm.max_map_count. */
size_t zr_host_vma_budget(void);
/* The capabilities and the limit of a kind, from the options that they share. */
struct zr_capabilities zr_host_capabilities(size_t granule_bytes);
size_t zr_host_limit(const struct zr_host_options *options, size_t granule_bytes);

zr_result zr_host_reserve(zr_backend *backend, size_t bytes, char **out);
void zr_host_release(zr_backend *backend, char *address, size_t bytes);
/* Of a kind whose memory needs no handle. */
zr_result zr_host_create_nothing(zr_backend *backend, struct zr_handle *handle);
void zr_host_destroy_nothing(zr_backend *backend, struct zr_handle *handle);
size_t zr_host_reserve_hint(zr_backend *backend, size_t limit_bytes);
zr_result zr_host_unmap(zr_backend *backend, char *address, size_t bytes);
zr_result zr_host_set_access(zr_backend *backend, char *address, size_t bytes);
zr_result zr_host_copy(zr_backend *backend, const struct zr_copy *copy);
zr_result zr_host_fill(zr_backend *backend, const struct zr_fill *fill);
zr_result zr_host_event_record(zr_backend *backend, uint64_t stream, struct zr_stream_point *out);
bool zr_host_event_done(zr_backend *backend, const struct zr_stream_point *event);
zr_result zr_host_event_wait(zr_backend *backend, const struct zr_stream_point *event);
zr_result zr_host_synchronize(zr_backend *backend);
zr_result zr_host_memory_info(zr_backend *backend, struct zr_backend_memory *out);
zr_result zr_host_lender_key(zr_backend *backend, char out[ZR_LENDER_KEY_BYTES]);

/* backend_private.c: the kind with private_memory in struct zr_host_options. *out is not NULL, and `options`
 * is complete. */
zr_result zr_backend_private_open(zr_backend **out, const struct zr_host_options *options,
                                  zr_lender_find *find);

#endif
