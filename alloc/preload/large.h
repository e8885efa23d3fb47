/* large.h: objects above ZR_SMALL_BYTES: blocks of the large arena. Private to alloc/preload/.
 *
 * Block sizes have four classes per power of two; untouched pages of a block take no memory. A freed block is
 * kept with its pages for the next request of its size, which avoids page faults, while kept blocks are
 * within a limit and no older than a second. Then its pages are discarded and its addresses return to the
 * arena: free addresses of the arena hold no memory. Growing moves pages instead of copying bytes.
 *
 * Any thread. errno may change. */
#ifndef ZR_LARGE_H
#define ZR_LARGE_H

#include <stdbool.h>
#include <stddef.h>

#include "alloc/zr.h"

/* Called before the first block, with zr_preload.large and its arena set. */
zr_result zr_large_start(void);

/* Allocates a block. NULL: no memory, no addresses, or the limit is reached. `alignment` is a power of two;
 * blocks are always aligned to a page. With `zero` the bytes read as zeros. */
void *zr_large_alloc(size_t bytes, size_t alignment, bool zero);
/* Frees a block. False: no block begins there, or it was already freed. */
bool zr_large_free(void *block);
/* The reason why zr_large_free() returned false, as text. */
const char *zr_large_reason(const void *pointer);
/* The usable size of a block. 0: no block begins there. */
size_t zr_large_bytes(const void *block);
/* The size that a request of `bytes` gets. */
size_t zr_large_class_bytes(size_t bytes);
/* Resizes a block to `bytes`, above ZR_SMALL_BYTES; the address may change. NULL: no memory, and the block is
 * unchanged. */
void *zr_large_resize(void *block, size_t bytes);
/* Frees the marks of addresses that no block uses again. Ignores addresses of other ranges. */
void zr_large_free_marks(const void *address, size_t bytes);
/* Updates the figures of jemalloc's small objects. */
void zr_large_note_small(size_t live_bytes, size_t held_bytes);
/* Releases the kept blocks. Returns their bytes. */
size_t zr_large_trim(void);

struct zr_large_stats {
    size_t live_bytes, peak_live_bytes; /* as requested */
    size_t kept_bytes;                  /* freed and not yet discarded */
    size_t blocks_count;
    unsigned long long moved_bytes, copied_bytes; /* by growing, since the start */
};
void zr_large_get_stats(struct zr_large_stats *out);

#endif
