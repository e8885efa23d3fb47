/* granule_cache.c: lists of handles by size. Every handle holds a power of two of granules. Uses
 * backend.h. */
#include "alloc/core/granule_cache.h"

#include "alloc/base/error.h"

static unsigned size_of(const struct zr_granule_cache *cache, size_t bytes)
{
    return 63u - (unsigned)__builtin_clzl(bytes / cache->granule_bytes);
}

void zr_granule_cache_put(struct zr_granule_cache *cache, struct zr_handle *handle)
{
    zr_assert(handle->mappings_count == 0 && !handle->destroyed);
    zr_handle_list_push(&cache->sizes[size_of(cache, handle->bytes)], handle);
    cache->bytes += handle->bytes;
}

static struct zr_handle *take(struct zr_granule_cache *cache, unsigned size)
{
    struct zr_handle *handle = zr_handle_list_pop(&cache->sizes[size]);
    cache->bytes -= handle->bytes;
    return handle;
}

struct zr_handle *zr_granule_cache_take(struct zr_granule_cache *cache, size_t bytes)
{
    if (bytes < cache->granule_bytes || cache->bytes == 0)
        return NULL;
    for (unsigned size = size_of(cache, bytes) + 1; size-- > 0;)
        if (cache->sizes[size].first)
            return take(cache, size);
    return NULL;
}

struct zr_handle *zr_granule_cache_take_larger(struct zr_granule_cache *cache, size_t bytes)
{
    for (unsigned size = size_of(cache, bytes); size < ZR_GRANULE_CACHE_SIZES; size++)
        if (cache->sizes[size].first && cache->sizes[size].first->bytes >= bytes)
            return take(cache, size);
    return NULL;
}
