/* large.h: objects above ZR_SMALL_BYTES: blocks of the large arena. Private to alloc/preload/.
 *
 * A block's size is of one of four classes per power of two; pages that its owner never touches take no
 * memory. A freed block is kept as it is for the next request of its size, so that its pages need not be
 * faulted in again, while the kept ones are within a limit and no older than a second. Then its pages go back
 * to the system and its addresses to the arena: free addresses of the arena hold no memory. Growing moves
 * pages, not bytes.
 *
 * Any thread. errno may change. */
#ifndef ZR_LARGE_H
#define ZR_LARGE_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/zr.h"

/* Before the first block, with zr_preload.large and its arena set. */
zr_result zr_large_start(void);
/* Around fork(): no other thread is inside. */
void zr_large_before_fork(void);
void zr_large_after_fork(bool child);

/* NULL: no memory, addresses, or the limit is reached. `alignment` is a power of two; up to a page comes by
 * itself. With `zero` the bytes read as zeros. */
void *zr_large_alloc(size_t bytes, size_t alignment, bool zero);
/* False: no block begins there, or it is free already. */
bool zr_large_free(void *block);
/* Why zr_large_free() would not free it. */
const char *zr_large_words(const void *pointer);
/* 0: no block begins there. */
size_t zr_large_bytes(const void *block);
/* The size that a request of `bytes` gets. */
size_t zr_large_class_bytes(size_t bytes);
/* The block with room for `bytes`, at its place or another; NULL: no memory, and the block is as it was. For
 * more than ZR_SMALL_BYTES. */
void *zr_large_resize(void *block, size_t bytes);
/* Addresses that no block will have any more: their marks go. Of another range's it does nothing. */
void zr_large_give_marks(const void *address, size_t bytes);
/* For the record: what jemalloc has now. */
void zr_large_note_small(size_t live_bytes, size_t held_bytes);
/* Gives the kept blocks back. Returns their bytes. */
size_t zr_large_trim(void);

struct zr_large_stats {
    size_t live_bytes, peak_live_bytes; /* as asked for, at most about 1 % more */
    size_t kept_bytes;                  /* freed, and not given back yet */
    size_t blocks_count;
    unsigned long long moved_bytes, copied_bytes; /* by growing, ever */
};
void zr_large_get_stats(struct zr_large_stats *out);

#endif
