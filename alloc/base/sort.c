/* sort.c: see sort.h. Numbered keys go least significant byte first, one pass per byte in which they differ.
 * Uses nothing. */
#include "alloc/base/sort.h"

#include <string.h>

void zr_sort_pairs(struct zr_sort_pair *pairs, struct zr_sort_pair *spare, size_t count)
{
    uint64_t differ = 0;
    struct zr_sort_pair *from = pairs, *to = spare;

    for (size_t i = 1; i < count; i++)
        differ |= pairs[i].key ^ pairs[0].key;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        size_t place[257] = {0};
        if ((differ >> shift & 0xff) == 0)
            continue;
        for (size_t i = 0; i < count; i++)
            place[(from[i].key >> shift & 0xff) + 1]++;
        for (unsigned byte = 1; byte < 256; byte++)
            place[byte] += place[byte - 1];
        for (size_t i = 0; i < count; i++)
            to[place[from[i].key >> shift & 0xff]++] = from[i];
        struct zr_sort_pair *swap = from;
        from = to;
        to = swap;
    }
    if (from != pairs)
        memcpy(pairs, from, count * sizeof *pairs);
}

static void *item(const struct zr_sort_records *records, size_t i)
{
    return (char *)records->items + i * records->item_bytes;
}

static void swap_items(const struct zr_sort_records *records, size_t i, size_t j)
{
    char *a = item(records, i), *b = item(records, j), piece[64];
    for (size_t left = records->item_bytes, bytes; left > 0; left -= bytes, a += bytes, b += bytes) {
        bytes = left < sizeof piece ? left : sizeof piece;
        memcpy(piece, a, bytes);
        memcpy(a, b, bytes);
        memcpy(b, piece, bytes);
    }
}

/* Of the first `count`, those below `root` are a heap already: the last in order on top. */
static void sift_down(const struct zr_sort_records *records, size_t root, size_t count)
{
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && records->before(item(records, child), item(records, child + 1)))
            child++;
        if (!records->before(item(records, root), item(records, child)))
            return;
        swap_items(records, root, child);
    }
}

void zr_sort_in_place(const struct zr_sort_records *records)
{
    for (size_t root = records->count / 2; root-- > 0;)
        sift_down(records, root, records->count);
    for (size_t end = records->count; end-- > 1;) {
        swap_items(records, 0, end);
        sift_down(records, 0, end);
    }
}
