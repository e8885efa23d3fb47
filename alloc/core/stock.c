/* stock.c: lists of handles by size. Every handle holds a power of two of granules. Stands on backend.h. */
#include "alloc/core/stock.h"

#include "alloc/base/error.h"

static unsigned size_of(const struct zr_stock *stock, size_t bytes)
{
    return 63u - (unsigned)__builtin_clzl(bytes / stock->granule_bytes);
}

void zr_stock_put(struct zr_stock *stock, struct zr_handle *handle)
{
    zr_assert(handle->mappings_count == 0 && !handle->destroyed);
    zr_handle_list_push(&stock->sizes[size_of(stock, handle->bytes)], handle);
    stock->bytes += handle->bytes;
}

static struct zr_handle *take(struct zr_stock *stock, unsigned size)
{
    struct zr_handle *handle = zr_handle_list_pop(&stock->sizes[size]);
    stock->bytes -= handle->bytes;
    return handle;
}

struct zr_handle *zr_stock_take(struct zr_stock *stock, size_t bytes)
{
    if (bytes < stock->granule_bytes || stock->bytes == 0)
        return NULL;
    for (unsigned size = size_of(stock, bytes) + 1; size-- > 0;)
        if (stock->sizes[size].first)
            return take(stock, size);
    return NULL;
}

struct zr_handle *zr_stock_take_larger(struct zr_stock *stock, size_t bytes)
{
    for (unsigned size = size_of(stock, bytes); size < ZR_STOCK_SIZES; size++)
        if (stock->sizes[size].first && stock->sizes[size].first->bytes >= bytes)
            return take(stock, size);
    return NULL;
}
