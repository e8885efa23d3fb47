/* sort.h: sorts that allocate nothing (the library's qsort may): a stable one of numbered keys, and one of
 * any records, in place. Private to zr. */
#ifndef ZR_SORT_H
#define ZR_SORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/compiler.h"

struct zr_sort_pair {
    uint64_t key;
    uint32_t value;
};

/* Sorts by rising key; equal keys keep their order. `spare` is scratch of as many pairs. Any thread. */
void zr_sort_pairs(struct zr_sort_pair *pairs, struct zr_sort_pair *spare, size_t count);

/* Heapsort of items[count] of item_bytes each: no scratch, and no worse on hostile input. Equal ones come in
 * any order, the same in every run. Any thread. */
struct zr_sort_records {
    void *items;
    size_t count, item_bytes;
    bool (*before)(const void *a, const void *b);
};
ZR_PRIVATE_API void zr_sort_in_place(const struct zr_sort_records *records);

#endif
