/* arena_support.h: what the arena's test programs share: a backend of a given kind. */
#ifndef ZR_ARENA_SUPPORT_H
#define ZR_ARENA_SUPPORT_H

#include "alloc/zr.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)

struct setting {
    const char *name;
    bool host; /* else sim */
    size_t granule_bytes, limit_bytes;
    unsigned steps;
    bool small_pages; /* of the host */
};

static inline zr_backend *backend_of(const struct setting *setting)
{
    zr_backend *backend = NULL;
    const struct zr_host_options host = {.granule_bytes = setting->granule_bytes,
                                         .small_pages = setting->small_pages};
    const struct zr_sim_options sim = {.granule_bytes = setting->granule_bytes};
    if ((setting->host ? zr_backend_host_create(&backend, &host) : zr_backend_sim_create(&backend, &sim)) !=
        ZR_OK)
        tap_note("%s", zr_last_error());
    return backend;
}

#endif
