/* sort.h: a stable sort of numbered keys that allocates nothing (the library's qsort may). Private to zr. */
#ifndef ZR_SORT_H
#define ZR_SORT_H

#include <stddef.h>
#include <stdint.h>

struct zr_sort_pair {
    uint64_t key;
    uint32_t value;
};

/* Sorts by rising key; equal keys keep their order. `spare` is scratch of as many pairs. Any thread. */
void zr_sort_pairs(struct zr_sort_pair *pairs, struct zr_sort_pair *spare, size_t count);

#endif
