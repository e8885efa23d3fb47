/* fuzz_ground.h: what the fuzzers' targets stand on: a clock that the file decides, files in memory, and what
 * is looked at after every run. */
#ifndef ZR_FUZZ_GROUND_H
#define ZR_FUZZ_GROUND_H

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/base/system/os.h"
#include "tests/support/fuzz/fuzz_heap.h"

enum { FUZZ_MAX = 1 << 14 }; /* bytes of an input */

/* Files in memory that a path leads to. */
enum { FUZZ_PLACES = 10 };
struct fuzz_place {
    int fd;
    char path[32];
};
static struct fuzz_place fuzz_places[FUZZ_PLACES];
#define fuzz_path (fuzz_places[0].path)

static zr_backend *fuzz_backend;
static zr_arena *fuzz_arena;

/* Time runs by what is read of it, at a pace that the file decides: whoever keeps to a budget of time breaks
 * off at every place there is, and does so again from the same file. */
static _Atomic uint64_t fuzz_now_ns = 1, fuzz_pace_ns = 1;

static inline uint64_t fuzz_clock(void)
{
    return atomic_fetch_add(&fuzz_now_ns, fuzz_pace_ns);
}

static inline void fuzz_set_pace(const unsigned char *data, size_t bytes)
{
    uint64_t hash = bytes;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ data[i]) * 1099511628211u;
    fuzz_pace_ns = UINT64_C(1) << (hash >> 40) % 32;
}

static inline bool fuzz_ground_start(void)
{
    bool good =
        zr_backend_host_create(&fuzz_backend, &(struct zr_host_options){.granule_bytes = 65536}) == ZR_OK &&
        zr_arena_create(&fuzz_arena, &(struct zr_arena_options){.backend = fuzz_backend,
                                                                .limit_bytes = (size_t)256 << 20}) == ZR_OK;
    for (unsigned i = 0; i < FUZZ_PLACES && good; i++) {
        struct fuzz_place *place = &fuzz_places[i];
        place->fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(place->path, sizeof place->path, "/proc/self/fd/%d", place->fd);
        good = place->fd >= 0;
    }
    zr_os_clock_set(fuzz_clock);
    return good;
}

static inline void fuzz_ground_end(void)
{
    for (unsigned i = 0; i < FUZZ_PLACES; i++)
        close(fuzz_places[i].fd);
    zr_os_clock_set(NULL);
    zr_arena_destroy(fuzz_arena, NULL);
    zr_backend_destroy(fuzz_backend);
}

static inline size_t fuzz_arena_bytes(zr_arena *arena)
{
    struct zr_arena_stats stats = {0};
    if (arena)
        zr_arena_get_stats(arena, &stats);
    return stats.live_bytes;
}

static inline bool fuzz_write_place(unsigned at, const void *data, size_t bytes)
{
    const struct fuzz_place *place = &fuzz_places[at];
    return ftruncate(place->fd, 0) == 0 && pwrite(place->fd, data, bytes, 0) == (ssize_t)bytes;
}

static inline bool fuzz_write(const unsigned char *data, size_t bytes)
{
    fuzz_set_pace(data, bytes);
    return fuzz_write_place(0, data, bytes);
}

/* Some inputs are several files, one after the other: this ends each but the last. */
#define FUZZ_END "\xf0ZR\x0f"
struct fuzz_part {
    const unsigned char *data;
    size_t bytes;
};

/* Always `most` parts, the last ones empty where the input has fewer. */
static inline void fuzz_split(const unsigned char *data, size_t bytes, struct fuzz_part *parts, unsigned most)
{
    for (unsigned i = 0; i < most; i++) {
        const unsigned char *end = i + 1 < most ? memmem(data, bytes, FUZZ_END, sizeof FUZZ_END - 1) : NULL;
        parts[i] = (struct fuzz_part){data, end ? (size_t)(end - data) : bytes};
        size_t used = parts[i].bytes + (end ? sizeof FUZZ_END - 1 : 0);
        data += used;
        bytes -= used;
    }
}

/* ---- What every run has to keep to --------------------------------------------------------------------- */

/* Words for people are one line, and no command to a terminal, whatever the file says. */
static inline bool fuzz_plain_words(void)
{
    const unsigned char *at = (const unsigned char *)zr_last_error();
    bool plain = *at != '\0';
    for (; *at; at++)
        plain &= *at >= ' ' && *at != 0x7f && !(at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0);
    return plain;
}

/* Results that a hostile file may lead to. */
static inline bool fuzz_answer(zr_result result)
{
    return result == ZR_OK ||
           ((result == ZR_ERR_FORMAT || result == ZR_ERR_CORRUPT || result == ZR_ERR_MEMORY) &&
            fuzz_plain_words());
}

/* Memory before a run. */
struct fuzz_watch {
    zr_arena *arena; /* NULL: the heap alone */
    size_t arena_bytes, heap_bytes;
};

static inline struct fuzz_watch fuzz_watch_start(zr_arena *arena)
{
    fuzz_heap_peak_bytes = fuzz_heap_live_bytes;
    fuzz_heap_refused = false;
    return (struct fuzz_watch){arena, fuzz_arena_bytes(arena), fuzz_heap_live_bytes};
}

/* All of it came back, and there was never more than a file of that length can need: the buffers that every
 * run has, and of each of its bytes what jansson makes of an empty array. */
static inline bool fuzz_watch_end(const struct fuzz_watch *watch, size_t file_bytes)
{
    return fuzz_heap_live_bytes == watch->heap_bytes &&
           fuzz_arena_bytes(watch->arena) == watch->arena_bytes && !fuzz_heap_refused &&
           fuzz_heap_peak_bytes - watch->heap_bytes <= ((size_t)1 << 20) + 128 * file_bytes;
}

#endif
