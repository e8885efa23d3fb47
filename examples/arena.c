/* arena.c: an arena in 30 lines. Requires only libzr:
 *     cc -I. examples/arena.c -o arena build/lib/libzr.a -pthread */
#include <stdio.h>
#include <string.h>

#include "alloc/zr.h"

int main(void)
{
    zr_arena *arena = NULL;
    struct zr_arena_stats stats;
    void *weights = NULL, *scratch = NULL;

    struct zr_arena_options options = {.struct_bytes = sizeof options, .name = "example"};
    if (zr_backend_host_create(&options.backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &options) != ZR_OK ||
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 5 << 20, .tag = ZR_TAG_PARAM}, &weights) !=
            ZR_OK ||
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 100, .tag = ZR_TAG_WORKSPACE}, &scratch) !=
            ZR_OK) {
        fprintf(stderr, "%s\n", zr_last_error());
        return 4;
    }
    memset(weights, 1, 5 << 20);
    zr_arena_get_stats(arena, &stats);
    printf("%zu blocks, %zu bytes live, %zu reserved, %zu of them parameters\n", stats.blocks_count,
           stats.live_bytes, stats.reserved_bytes, stats.live_by_tag_bytes[ZR_TAG_PARAM]);
    zr_arena_free(arena, scratch);
    zr_arena_free(arena, weights);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(options.backend);
    return 0;
}
