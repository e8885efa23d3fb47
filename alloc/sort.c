/* sort.c: least significant byte first, one pass per byte in which the keys differ. Stands on nothing. */
#include "alloc/sort.h"

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
