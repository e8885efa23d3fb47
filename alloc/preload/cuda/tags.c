/* tags.c: names that a program gives to blocks (zr_torch_tag()). See cuda.h. */
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/lock.h"
#include "alloc/preload/cuda/cuda.h"

enum { NAMES_MAX = UINT8_MAX, NAME_BYTES = 32 };

/* A name with its number is never changed, so readers need no lock. Number 0 has no name. */
static struct zr_lock lock; /* guards additions */
static struct {
    char name[NAME_BYTES];
    zr_tag tag;
} names[NAMES_MAX + 1];
static _Atomic unsigned last_name;
static __thread uint8_t own_tag __attribute__((tls_model("initial-exec")));

static zr_tag tag_of(const char *name)
{
    unsigned tag = 0;
    while (tag < ZR_TAG_COUNT && strcmp(zr_tag_name((zr_tag)tag), name) != 0)
        tag++;
    return tag < ZR_TAG_COUNT ? (zr_tag)tag : ZR_TAG_OTHER;
}

/* The number of a name, which is added if it is new; 0: there are too many. lock: held */
static unsigned number_of(const char *name)
{
    unsigned last = atomic_load_explicit(&last_name, memory_order_relaxed), number = 1;
    while (number <= last && strcmp(names[number].name, name) != 0)
        number++;
    if (number <= last)
        return number;
    if (number > NAMES_MAX)
        return 0;
    strcpy(names[number].name, name);
    names[number].tag = tag_of(name);
    atomic_store_explicit(&last_name, number, memory_order_release);
    return number;
}

zr_result zr_cuda_tag_set(const char *name)
{
    unsigned number = 0;
    if (name && (!*name || strlen(name) >= NAME_BYTES))
        return zr_fail(ZR_ERR_INVALID, "tag `%s`: a name has 1 to %d bytes", name, NAME_BYTES - 1);
    if (name) {
        zr_lock_acquire(&lock);
        number = number_of(name);
        zr_lock_release(&lock);
        if (number == 0)
            return zr_fail(ZR_ERR_INVALID, "tag `%s`: this process already has %d names", name, NAMES_MAX);
    }
    own_tag = (uint8_t)number;
    return ZR_OK;
}

uint8_t zr_cuda_tag(void)
{
    return own_tag;
}

const char *zr_cuda_tag_name(uint8_t tag)
{
    return tag ? names[tag].name : NULL;
}

zr_tag zr_cuda_tag_of_arena(uint8_t tag)
{
    return tag ? names[tag].tag : ZR_TAG_OTHER;
}

void zr_cuda_tags_forked(void)
{
    memset(&lock, 0, sizeof lock);
}
