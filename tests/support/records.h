/* records.h: an arena of host memory for the records of what a test program tests. */
#ifndef ZR_TEST_RECORDS_H
#define ZR_TEST_RECORDS_H

#include "alloc/zr.h"

static zr_backend *host;
static zr_arena *host_arena;

static inline zr_result records_begin(void)
{
    zr_result result = zr_backend_host_create(&host, NULL);
    if (result != ZR_OK)
        return result;
    return zr_arena_create(&host_arena, &(struct zr_arena_options){.backend = host, .name = "records"});
}

/* The bytes that nobody freed. */
static inline size_t records_end(void)
{
    size_t leaked = SIZE_MAX;
    zr_arena_destroy(host_arena, &leaked);
    return zr_backend_destroy(host) == ZR_OK ? leaked : SIZE_MAX;
}

#endif
