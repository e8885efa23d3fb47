/* vector.c: growing arrays. Uses the arena. */
#include "defrag/trace/vector.h"

#include <string.h>

#include "alloc/base/error.h"

enum { ROOM_FIRST = 64 };

void zr_vector_end(struct zr_vector *vector)
{
    if (vector->items)
        zr_arena_free(vector->arena, vector->items);
    zr_vector_init(vector, vector->arena, vector->item_bytes);
}

zr_result zr_vector_reserve(struct zr_vector *vector, size_t count)
{
    size_t need, bytes, room = vector->room ? vector->room * 2 : ROOM_FIRST;
    void *items;
    if (__builtin_add_overflow(vector->count, count, &need))
        return zr_fail(ZR_ERR_INVALID, "an array has too many items");
    if (need <= vector->room)
        return ZR_OK;
    if (room < need)
        room = need;
    if (__builtin_mul_overflow(room, vector->item_bytes, &bytes))
        return zr_fail(ZR_ERR_INVALID, "an array of %zu items overflows the address space", room);
    zr_result result =
        zr_arena_alloc(vector->arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &items);
    if (result != ZR_OK)
        return result;
    if (vector->items) {
        memcpy(items, vector->items, vector->count * vector->item_bytes);
        zr_arena_free(vector->arena, vector->items);
    }
    vector->items = items;
    vector->room = room;
    return ZR_OK;
}

zr_result zr_vector_add(struct zr_vector *vector, const void *item)
{
    zr_result result = vector->count < vector->room ? ZR_OK : zr_vector_reserve(vector, 1);
    if (result == ZR_OK)
        memcpy(zr_vector_at(vector, vector->count++), item, vector->item_bytes);
    return result;
}
