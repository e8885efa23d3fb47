/* backend_private.c: this machine's memory as private anonymous pages. Below backend.c; uses host_common.c.
 *
 * A page is committed on first touch, and a child after fork() has a copy of it. A handle only counts against
 * the limit, and an unmap loses its contents. For the preloaded malloc, whose blocks are mostly larger than
 * the part that their owners touch. */
#define _GNU_SOURCE
#include "alloc/backend/host_common.h"

#include "alloc/base/error.h"

/* The reserved addresses are private anonymous memory already. */
static zr_result private_map(zr_backend *backend, char *address, const struct zr_handle *handle)
{
    (void)backend, (void)address, (void)handle;
    return ZR_OK;
}

static void private_end(zr_backend *backend)
{
    zr_backend_end(backend);
    zr_pages_give(backend, sizeof *backend);
}

static const struct zr_backend_ops private_ops = {
    .version = ZR_BACKEND_VERSION,
    .name = "private",
    .end = private_end,
    .reserve = zr_host_reserve,
    .release = zr_host_release,
    .create = zr_host_create_nothing,
    .destroy = zr_host_destroy_nothing,
    .map = private_map,
    .unmap = zr_host_unmap,
    .set_access = zr_host_set_access,
    .copy = zr_host_copy,
    .fill = zr_host_fill,
    .event_record = zr_host_event_record,
    .event_done = zr_host_event_done,
    .event_wait = zr_host_event_wait,
    .synchronize = zr_host_synchronize,
    .memory_info = zr_host_memory_info,
    .reserve_hint = zr_host_reserve_hint,
    .lender_key = zr_host_lender_key,
};

zr_result zr_backend_private_open(zr_backend **out, const struct zr_host_options *options,
                                  zr_lender_find *find)
{
    size_t granule_bytes;
    zr_result result = zr_backend_granule(options->granule_bytes, &granule_bytes);
    if (result != ZR_OK)
        return result;
    zr_backend *backend = zr_pages_take(sizeof *backend);
    if (!backend)
        return ZR_ERR_HOST_MEMORY;
    backend->ops = &private_ops;
    backend->can = zr_host_capabilities(granule_bytes);
    backend->can.on_touch = true;
    backend->limit_bytes = zr_host_limit(options, granule_bytes);
    result = zr_backend_init(backend);
    if (result != ZR_OK) {
        zr_pages_give(backend, sizeof *backend);
        return result;
    }
    result = find ? find(backend, &backend->lender) : ZR_OK;
    if (result != ZR_OK) {
        private_end(backend);
        return result;
    }
    *out = backend;
    return ZR_OK;
}
