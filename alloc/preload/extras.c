/* extras.c: glibc's statistics and settings, and jemalloc's own function names for programs linked with
 * jemalloc; the control interface is in control.c. See preload.h. */
#define _GNU_SOURCE
#include "alloc/preload/preload.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JEMALLOC_NO_RENAME
#include <jemalloc/jemalloc.h>

#include "alloc/preload/control.h"
#include "alloc/preload/large.h"

/* ---- glibc's ------------------------------------------------------------------------------------------- */

struct usage {
    size_t live_bytes, small_resident_bytes;
    struct zr_large_stats large;
};

static struct usage usage_now(void)
{
    struct usage usage = {0};
    struct zr_control_figures small;
    if (!zr_preload_start())
        return usage;
    zr_control_figures(&small);
    if (!zr_preload.passive)
        zr_large_get_stats(&usage.large);
    usage.live_bytes = small.live_bytes + usage.large.live_bytes;
    usage.small_resident_bytes = small.resident_bytes;
    return usage;
}

ZR_EXPORT struct mallinfo2 mallinfo2(void)
{
    struct usage usage = usage_now();
    size_t small_live = usage.live_bytes - usage.large.live_bytes;
    return (struct mallinfo2){
        .arena = usage.small_resident_bytes,
        .hblks = usage.large.blocks_count,
        .hblkhd = usage.large.live_bytes,
        .uordblks = small_live,
        .fordblks = usage.small_resident_bytes > small_live ? usage.small_resident_bytes - small_live : 0,
        .keepcost = usage.large.kept_bytes};
}

ZR_EXPORT struct mallinfo mallinfo(void)
{
    struct mallinfo2 all = mallinfo2();
    return (struct mallinfo){.arena = (int)all.arena,
                             .hblks = (int)all.hblks,
                             .hblkhd = (int)all.hblkhd,
                             .uordblks = (int)all.uordblks,
                             .fordblks = (int)all.fordblks,
                             .keepcost = (int)all.keepcost};
}

ZR_EXPORT int malloc_trim(size_t pad)
{
    (void)pad;
    if (!zr_preload_start())
        return 0;
    struct zr_control_figures before, after;
    zr_control_figures(&before);
    bool given = !zr_preload.passive && zr_large_trim() > 0;
    zr_control_purge();
    zr_control_figures(&after);
    return given || after.resident_bytes < before.resident_bytes;
}

/* glibc's settings have no effect here. 1: accepted, as glibc answers for every setting that it knows. */
ZR_EXPORT int mallopt(int which, int value)
{
    (void)value;
    return (which >= -8 && which <= -1) || which == 1;
}

ZR_EXPORT void malloc_stats(void)
{
    struct usage usage = usage_now();
    fprintf(
        stderr,
        "zr: %zu bytes live, %zu of them in %zu large blocks (at most %zu); small objects hold %zu resident; "
        "%zu freed and kept\n",
        usage.live_bytes, usage.large.live_bytes, usage.large.blocks_count, usage.large.peak_live_bytes,
        usage.small_resident_bytes, usage.large.kept_bytes);
}

ZR_EXPORT int malloc_info(int options, FILE *stream)
{
    struct usage usage = usage_now();
    if (options != 0)
        return EINVAL;
    return fprintf(
               stream,
               "<malloc version=\"1\">\n<total type=\"live\" size=\"%zu\"/>\n<total type=\"large\" count=\"%zu\" "
               "size=\"%zu\"/>\n<system type=\"small\" size=\"%zu\"/>\n<system type=\"kept\" "
               "size=\"%zu\"/>\n</malloc>\n",
               usage.live_bytes, usage.large.blocks_count, usage.large.live_bytes, usage.small_resident_bytes,
               usage.large.kept_bytes) < 0
               ? -1
               : 0;
}

/* ---- jemalloc's ---------------------------------------------------------------------------------------- */

/* Whether the flags request only alignment and zeros. Other flags name a cache or an arena of jemalloc. */
static bool is_plain(int flags)
{
    return (flags & ~0x7f) == 0;
}

ZR_EXPORT void *mallocx(size_t bytes, int flags)
{
    if (!zr_preload_start())
        return NULL;
    if (!is_plain(flags) || zr_preload.passive) {
        void *object = zr_object_fresh(zr_je_mallocx(bytes, flags));
        return object ? object : zr_object_refused(bytes);
    }
    return zr_object_alloc(bytes, (size_t)1 << (flags & 0x3f), flags & MALLOCX_ZERO);
}

ZR_EXPORT void *rallocx(void *object, size_t bytes, int flags)
{
    size_t old_bytes = zr_object_bytes(object);
    if (zr_is_small(object) && !zr_preload.checked && (!is_plain(flags) || bytes <= ZR_SMALL_BYTES)) {
        void *moved = zr_je_rallocx(object, bytes, flags);
        return moved ? moved : zr_object_refused(bytes);
    }
    void *moved = mallocx(bytes, flags);
    if (!moved)
        return NULL;
    memcpy(moved, object, old_bytes < bytes ? old_bytes : bytes);
    free(object);
    return moved;
}

ZR_EXPORT size_t xallocx(void *object, size_t bytes, size_t extra, int flags)
{
    return zr_is_small(object) ? zr_je_xallocx(object, bytes, extra, flags) : zr_object_bytes(object);
}

ZR_EXPORT size_t sallocx(const void *object, int flags)
{
    return zr_is_small(object) ? zr_je_sallocx(object, flags) : zr_object_bytes(object);
}

ZR_EXPORT void dallocx(void *object, int flags)
{
    if (zr_is_small(object) && !zr_preload.checked)
        zr_je_dallocx(object, flags);
    else
        zr_object_free(object);
}

ZR_EXPORT void sdallocx(void *object, size_t bytes, int flags)
{
    if (zr_is_small(object) && !zr_preload.checked)
        zr_je_sdallocx(object, bytes, flags);
    else
        zr_object_free(object);
}

ZR_EXPORT size_t nallocx(size_t bytes, int flags)
{
    zr_preload_start();
    return bytes > ZR_SMALL_BYTES && bytes <= PTRDIFF_MAX / 2 && is_plain(flags) && !zr_preload.passive
               ? zr_large_class_bytes(bytes)
               : zr_je_nallocx(bytes, flags);
}
