/* blocks.c: the program's blocks by address: a treap under one lock, with records in the library's own pages.
 * See cuda.h. */
#include <string.h>

#include "alloc/base/system/lock.h"
#include "alloc/base/slab.h"
#include "alloc/preload/cuda/cuda.h"

/* `lock` guards all of these. */
static struct zr_lock lock;
static struct zr_slab records;
static struct zr_cuda_block *root;
static size_t reserved_count;
static uint64_t last_id;

/* ---- The treap ----------------------------------------------------------------------------------------- */

/* A pseudo-random priority derived from the address. */
static uint64_t priority(const struct zr_cuda_block *block)
{
    uint64_t x = block->address * UINT64_C(0x9e3779b97f4a7c15);
    return (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* Splits a tree into the blocks below the address and the others. */
static void split(struct zr_cuda_block *tree, uintptr_t address, struct zr_cuda_block **below,
                  struct zr_cuda_block **rest)
{
    while (tree) {
        if (tree->address < address) {
            *below = tree;
            below = &tree->right;
            tree = tree->right;
        } else {
            *rest = tree;
            rest = &tree->left;
            tree = tree->left;
        }
    }
    *below = *rest = NULL;
}

/* Joins two trees; all blocks of the first are below those of the second. */
static struct zr_cuda_block *join(struct zr_cuda_block *first, struct zr_cuda_block *second)
{
    struct zr_cuda_block *tree = NULL, **link = &tree;
    while (first && second) {
        if (priority(first) > priority(second)) {
            *link = first;
            link = &first->right;
            first = first->right;
        } else {
            *link = second;
            link = &second->left;
            second = second->left;
        }
    }
    *link = first ? first : second;
    return tree;
}

static void insert(struct zr_cuda_block *block)
{
    struct zr_cuda_block **link = &root;
    while (*link && priority(*link) >= priority(block))
        link = block->address < (*link)->address ? &(*link)->left : &(*link)->right;
    split(*link, block->address, &block->left, &block->right);
    *link = block;
}

/* The link to the block that begins at the address, or a link that is NULL. */
static struct zr_cuda_block **find_link(uintptr_t address)
{
    struct zr_cuda_block **link = &root;
    while (*link && (*link)->address != address)
        link = address < (*link)->address ? &(*link)->left : &(*link)->right;
    return link;
}

static void remove_block(struct zr_cuda_block **link, struct zr_cuda_block *out)
{
    struct zr_cuda_block *block = *link;
    *link = join(block->left, block->right);
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
    if (block->arena)
        atomic_fetch_add_explicit(&block->device->live_bytes, block->bytes, memory_order_relaxed);
    insert(own);
    zr_lock_release(&lock);
}

bool zr_cuda_blocks_find(zr_cu_address address, struct zr_cuda_block *out)
{
    const struct zr_cuda_block *best = NULL;
    zr_lock_acquire(&lock);
    for (const struct zr_cuda_block *each = root; each;) {
        if (each->address <= address)
            best = each;
        each = address < each->address ? each->left : each->right;
    }
    bool found = best && address - best->address < best->bytes;
    if (found)
        *out = *best;
    zr_lock_release(&lock);
    return found;
}

bool zr_cuda_blocks_take(zr_cu_address address, struct zr_cuda_block *out)
{
    zr_lock_acquire(&lock);
    struct zr_cuda_block **link = find_link((uintptr_t)address);
    bool found = *link && (*link)->arena;
    if (found)
        remove_block(link, out);
    zr_lock_release(&lock);
    return found;
}

bool zr_cuda_blocks_close(zr_cu_address address, struct zr_cuda_block *out)
{
    zr_lock_acquire(&lock);
    struct zr_cuda_block **link = find_link((uintptr_t)address);
    bool found = *link && !(*link)->arena;
    if (found && --(*link)->opened_count == 0)
        remove_block(link, out);
    else if (found)
        *out = **link;
    zr_lock_release(&lock);
    return found;
}

static struct zr_cuda_block *search(struct zr_cuda_block *tree,
                                    bool (*test)(const struct zr_cuda_block *, const void *),
                                    const void *argument)
{
    for (; tree; tree = tree->right) {
        if (test(tree, argument))
            return tree;
        struct zr_cuda_block *found = search(tree->left, test, argument);
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
        remove_block(find_link(found->address), out);
    zr_lock_release(&lock);
    return found != NULL;
}

bool zr_cuda_blocks_change(uintptr_t address, void (*change)(struct zr_cuda_block *, void *), void *argument)
{
    zr_lock_acquire(&lock);
    struct zr_cuda_block *block = *find_link(address);
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
    const struct zr_cuda_block *best = NULL;
    zr_lock_acquire(&lock);
    for (const struct zr_cuda_block *each = root; each;) {
        if (each->address >= address)
            best = each;
        each = each->address >= address ? each->left : each->right;
    }
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
