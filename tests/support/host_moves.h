/* host_moves.h: what moving granules on the host backend costs, beside copying them: measured once, for the
 * test that bounds it and the benchmark that prints it.
 *
 * A move is what the arena does with a hole: unmap here, map there, set access. The copy is of the same bytes
 * between the same two places, both mapped, in huge pages and touched before: the cheapest copy there is. */
#ifndef ZR_HOST_MOVES_H
#define ZR_HOST_MOVES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/backend/backend.h"

enum { MOVES_ROUNDS = 15, MOVES_PAGE_BYTES = 4096 };

/* Medians over MOVES_ROUNDS, of the whole amount. */
struct moves {
    size_t bytes, granule_bytes, granules_count;
    size_t huge_bytes;       /* of both places, in huge pages: less where the system had none left */
    double copy_ns;          /* granule by granule */
    double singles_ns;       /* one handle for each granule: three calls for each */
    double singles_touch_ns; /* and the first access to every page at its new place */
    double run_ns;           /* one handle for all: three calls */
    double run_touch_ns;
};

struct moves_scene {
    zr_backend *backend;
    struct zr_range *range;    /* two places of `bytes` */
    struct zr_handle **single; /* one for each granule */
    struct zr_handle *run;     /* as large as all of them */
    size_t bytes, granule_bytes, count;
    volatile unsigned char sum; /* keeps the reads */
};

/* Of this thread's processor time: one thread moves and copies, and what others do meanwhile is not counted.
 */
static inline double moves_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static inline int moves_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double moves_median(double *samples)
{
    qsort(samples, MOVES_ROUNDS, sizeof *samples, moves_by_value);
    return samples[MOVES_ROUNDS / 2];
}

static inline zr_result moves_place(struct moves_scene *scene, size_t offset_bytes, struct zr_handle *handle)
{
    zr_result result = zr_backend_map(scene->range, offset_bytes, handle);
    return result == ZR_OK
               ? zr_backend_set_access(scene->range, (struct zr_bounds){offset_bytes, handle->bytes})
               : result;
}

/* Every handle of the scene to the place at `to`, from the place at `from`. */
static inline zr_result moves_move(struct moves_scene *scene, bool run, size_t from, size_t to)
{
    size_t step = run ? scene->bytes : scene->granule_bytes;
    zr_result result = ZR_OK;
    for (size_t at = 0; at < scene->bytes && result == ZR_OK; at += step) {
        result = zr_backend_unmap(scene->range, (struct zr_bounds){from + at, step});
        if (result == ZR_OK)
            result = moves_place(scene, to + at, run ? scene->run : scene->single[at / scene->granule_bytes]);
    }
    return result;
}

static inline void moves_touch(struct moves_scene *scene, size_t offset_bytes)
{
    for (size_t at = 0; at < scene->bytes; at += MOVES_PAGE_BYTES)
        scene->sum ^= (unsigned char)scene->range->address[offset_bytes + at]++;
}

/* Moves to and fro; *ns and *touch_ns get the medians. Ends with everything unmapped. */
static inline zr_result moves_time(struct moves_scene *scene, bool run, double *ns, double *touch_ns)
{
    double moved[MOVES_ROUNDS], touched[MOVES_ROUNDS];
    size_t from = 0, to = scene->bytes, step = run ? scene->bytes : scene->granule_bytes;
    zr_result result = ZR_OK;
    for (size_t at = 0; at < scene->bytes && result == ZR_OK; at += step)
        result = moves_place(scene, at, run ? scene->run : scene->single[at / step]);
    if (result == ZR_OK)
        memset(scene->range->address, 1, scene->bytes);
    for (unsigned round = 0; round < MOVES_ROUNDS && result == ZR_OK; round++) {
        double start = moves_now_ns();
        result = moves_move(scene, run, from, to);
        moved[round] = moves_now_ns() - start;
        if (result != ZR_OK)
            break;
        moves_touch(scene, to);
        touched[round] = moves_now_ns() - start;
        size_t swap = from;
        from = to;
        to = swap;
    }
    if (result == ZR_OK) {
        *ns = moves_median(moved);
        *touch_ns = moves_median(touched);
        result = zr_backend_unmap(scene->range, (struct zr_bounds){from, scene->bytes});
    }
    return result;
}

/* What this process has of shared memory in huge pages. */
static inline size_t moves_huge_bytes(void)
{
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "ShmemPmdMapped: %zu", &kib) != 1)
        ;
    if (file)
        fclose(file);
    return kib << 10;
}

/* The copy that a move saves: between the run and the singles, both warm. */
static inline zr_result moves_time_copy(struct moves_scene *scene, double *ns, size_t *huge_bytes)
{
    double copied[MOVES_ROUNDS];
    zr_result result = moves_place(scene, 0, scene->run);
    for (size_t at = 0; at < scene->bytes && result == ZR_OK; at += scene->granule_bytes)
        result = moves_place(scene, scene->bytes + at, scene->single[at / scene->granule_bytes]);
    if (result != ZR_OK)
        return result;
    char *one = scene->range->address, *other = one + scene->bytes;
    memset(one, 1, 2 * scene->bytes);
    *huge_bytes = moves_huge_bytes();
    for (unsigned round = 0; round < MOVES_ROUNDS; round++) {
        double start = moves_now_ns();
        for (size_t at = 0; at < scene->bytes; at += scene->granule_bytes)
            memcpy((round % 2 ? one : other) + at, (round % 2 ? other : one) + at, scene->granule_bytes);
        copied[round] = moves_now_ns() - start;
        scene->sum ^= (unsigned char)(round % 2 ? one : other)[round];
    }
    *ns = moves_median(copied);
    return zr_backend_unmap(scene->range, (struct zr_bounds){0, 2 * scene->bytes});
}

static inline zr_result moves_prepare(struct moves_scene *scene)
{
    zr_result result = zr_backend_reserve(scene->backend, 2 * scene->bytes, &scene->range);
    if (result == ZR_OK)
        result = zr_backend_create(scene->backend, scene->bytes, &scene->run);
    for (size_t i = 0; i < scene->count && result == ZR_OK; i++)
        result = zr_backend_create(scene->backend, scene->granule_bytes, &scene->single[i]);
    /* Neighbours must not continue one another, as moved granules do not: every second one from the end. */
    for (size_t i = 0; i < scene->count / 2 && result == ZR_OK; i += 2) {
        struct zr_handle *swap = scene->single[i];
        scene->single[i] = scene->single[scene->count - 1 - i];
        scene->single[scene->count - 1 - i] = swap;
    }
    return result;
}

/* Measures with `bytes` in each of two places (so twice that is needed). */
static inline zr_result moves_measure(struct moves *out, size_t bytes)
{
    struct moves_scene scene = {.bytes = bytes};
    zr_result result = zr_backend_host_create(&scene.backend, NULL);
    if (result != ZR_OK)
        return result;
    scene.granule_bytes = scene.backend->can.granule_bytes;
    scene.count = bytes / scene.granule_bytes;
    scene.single = calloc(scene.count, sizeof(struct zr_handle *));
    *out =
        (struct moves){.bytes = bytes, .granule_bytes = scene.granule_bytes, .granules_count = scene.count};
    result = scene.single ? moves_prepare(&scene) : ZR_ERR_HOST_MEMORY;
    if (result == ZR_OK)
        result = moves_time(&scene, false, &out->singles_ns, &out->singles_touch_ns);
    if (result == ZR_OK)
        result = moves_time(&scene, true, &out->run_ns, &out->run_touch_ns);
    if (result == ZR_OK)
        result = moves_time_copy(&scene, &out->copy_ns, &out->huge_bytes);
    /* A failure leaves the backend to the end of the program. */
    for (size_t i = 0; i < scene.count && result == ZR_OK; i++)
        result = zr_backend_destroy_handle(scene.backend, scene.single[i]);
    if (result == ZR_OK)
        result = zr_backend_destroy_handle(scene.backend, scene.run);
    if (result == ZR_OK)
        result = zr_backend_release(scene.range);
    if (result == ZR_OK)
        result = zr_backend_destroy(scene.backend);
    free(scene.single);
    return result;
}

#endif
