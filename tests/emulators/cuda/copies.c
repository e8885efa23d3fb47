/* copies.c: asynchronous copies to shared memory, which come as late as a card may bring them: when their
 * thread waits for them. Until then there are ones in every bit, a NaN of every precision, so that what is
 * read too soon shows; that other threads meet a barrier before they read is races.c's matter. See kernels.h.
 * Compiled without sanitizers, like threads.c. */
#include "tests/emulators/cuda/kernels.h"

#include <string.h>

enum { THREADS_MAX = 1024, COPIES_MAX = 64 };

static struct copies {
    unsigned count;
    struct {
        void *to;
        const void *from; /* NULL: zeros */
        size_t bytes;
    } each[COPIES_MAX];
} copies[THREADS_MAX];

void emu_copies_begin(unsigned thread)
{
    copies[thread].count = 0;
}

bool emu_copies_add(unsigned thread, void *to, const void *from, size_t bytes)
{
    struct copies *own = &copies[thread];
    if (own->count == COPIES_MAX)
        return false;
    memset(to, 0xff, bytes);
    own->each[own->count].to = to;
    own->each[own->count].from = from;
    own->each[own->count++].bytes = bytes;
    return true;
}

void emu_copies_wait(unsigned thread)
{
    struct copies *own = &copies[thread];
    for (unsigned i = 0; i < own->count; i++) {
        if (own->each[i].from)
            memcpy(own->each[i].to, own->each[i].from, own->each[i].bytes);
        else
            memset(own->each[i].to, 0, own->each[i].bytes);
    }
    own->count = 0;
}
