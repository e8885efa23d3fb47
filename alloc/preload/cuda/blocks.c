/* blocks.c: the program's blocks by address: a treap under one lock, with records in the library's own pages.
 * See cuda.h. */
#include <string.h>

#include "alloc/base/system/lock.h"
#include "alloc/base/slab.h"
#include "alloc/base/tree.h"
#include "alloc/preload/cuda/cuda.h"

/* `lock` guards all of these. */
static struct zr_lock lock;
static struct zr_slab records;
static struct zr_cuda_block *root;
static size_t reserved_count;
static uint64_t last_id;

/* ---- The treap ----------------------------------------------------------------------------------------- */

static bool before(const void *one, const void *other)
{
    return ((const struct zr_cuda_block *)one)->address < ((const struct zr_cuda_block *)other)->address;
}

static uint64_t priority(const void *record)
{
    uint64_t x = ((const struct zr_cuda_block *)record)->address * UINT64_C(0x9e3779b97f4a7c15);
    return (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

static const struct zr_tree_order by_address = {offsetof(struct zr_cuda_block, children), before, priority};

/* The last block that begins at or before the address; NULL: none. */
static struct zr_cuda_block *find_floor(uintptr_t address)
{
    return zr_tree_floor(by_address, root, &(struct zr_cuda_block){.address = address});
}

/* The block that begins there; NULL: none. */
static struct zr_cuda_block *find(uintptr_t address)
{
    struct zr_cuda_block *block = find_floor(address);
    return block && block->address == address ? block : NULL;
}

static void remove_block(struct zr_cuda_block *block, struct zr_cuda_block *out)
{
    zr_tree_remove(by_address, &root, block);
    *out = *block;
    if (block->arena)
        atomic_fetch_sub_explicit(&block->device->live_bytes, block->bytes, memory_order_relaxed);
    zr_slab_give(&records, block);
}

/* ---- The calls ----------------------------------------------------------------------------------------- */

bool zr_cuda_blocks_reserve(void)
{
    zr_lock_acquire(&lock);
    if (records.record_bytes == 0)
        zr_slab_init(&records, sizeof(struct zr_cuda_block), ZR_POOL_FAULTS);
    bool reserved = zr_slab_reserve(&records, reserved_count + 1);
    reserved_count += reserved;
    zr_lock_release(&lock);
    return reserved;
}

void zr_cuda_blocks_unreserve(void)
{
    zr_lock_acquire(&lock);
    reserved_count--;
    zr_lock_release(&lock);
}

void zr_cuda_blocks_put(const struct zr_cuda_block *block)
{
    zr_lock_acquire(&lock);
    struct zr_cuda_block *own = zr_slab_take(&records);
    reserved_count--;
    *own = *block;
    own->id = ++last_id;
    if (block->arena) {
        atomic_fetch_add_explicit(&block->device->live_bytes, block->bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&block->device->allocated_bytes, block->bytes, memory_order_relaxed);
    }
    zr_tree_insert(by_address, &root, own);
    zr_lock_release(&lock);
}

bool zr_cuda_blocks_find(zr_cu_address address, struct zr_cuda_block *out)
{
    zr_lock_acquire(&lock);
    const struct zr_cuda_block *best = find_floor((uintptr_t)address);
    bool found = best && address - best->address < best->bytes;
    if (found)
        *out = *best;
    zr_lock_release(&lock);
    return found;
}

bool zr_cuda_blocks_take(zr_cu_address address, struct zr_cuda_block *out)
{
    zr_lock_acquire(&lock);
    struct zr_cuda_block *block = find((uintptr_t)address);
    bool found = block && block->arena;
    if (found)
        remove_block(block, out);
    zr_lock_release(&lock);
    return found;
}

bool zr_cuda_blocks_close(zr_cu_address address, struct zr_cuda_block *out)
{
    zr_lock_acquire(&lock);
    struct zr_cuda_block *block = find((uintptr_t)address);
    bool found = block && !block->arena;
    if (found && --block->opened_count == 0)
        remove_block(block, out);
    else if (found)
        *out = *block;
    zr_lock_release(&lock);
    return found;
}

static struct zr_cuda_block *search(struct zr_cuda_block *tree,
                                    bool (*test)(const struct zr_cuda_block *, const void *),
                                    const void *argument)
{
    for (; tree; tree = tree->children[1]) {
        if (test(tree, argument))
            return tree;
        struct zr_cuda_block *found = search(tree->children[0], test, argument);
        if (found)
            return found;
    }
    return NULL;
}

struct owner {
    zr_cu_context context;
    struct zr_cuda_device *device;
};

static bool owns(const struct zr_cuda_block *block, const void *argument)
{
    const struct owner *owner = argument;
    return owner->context ? block->context == owner->context : block->device == owner->device;
}

bool zr_cuda_blocks_take_any(zr_cu_context context, struct zr_cuda_device *device, struct zr_cuda_block *out)
{
    struct owner owner = {context, device};
    zr_lock_acquire(&lock);
    struct zr_cuda_block *found = search(root, owns, &owner);
    if (found)
        remove_block(found, out);
    zr_lock_release(&lock);
    return found != NULL;
}

bool zr_cuda_blocks_change(uintptr_t address, void (*change)(struct zr_cuda_block *, void *), void *argument)
{
    zr_lock_acquire(&lock);
    struct zr_cuda_block *block = find(address);
    if (block)
        change(block, argument);
    zr_lock_release(&lock);
    return block != NULL;
}

bool zr_cuda_blocks_search(bool (*test)(const struct zr_cuda_block *, const void *), const void *argument,
                           struct zr_cuda_block *out)
{
    zr_lock_acquire(&lock);
    const struct zr_cuda_block *found = search(root, test, argument);
    if (found)
        *out = *found;
    zr_lock_release(&lock);
    return found != NULL;
}

bool zr_cuda_blocks_next(uintptr_t address, struct zr_cuda_block *out)
{
    const struct zr_cuda_block key = {.address = address};
    zr_lock_acquire(&lock);
    const struct zr_cuda_block *best = zr_tree_ceiling(by_address, root, &key);
    if (best)
        *out = *best;
    zr_lock_release(&lock);
    return best != NULL;
}

/* Resets the lock, which another thread of the parent may have held. The parent's blocks are not the child's.
 */
void zr_cuda_blocks_forked(void)
{
    memset(&lock, 0, sizeof lock);
    root = NULL;
}
