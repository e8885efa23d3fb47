/* page_bands.c: used addresses as bands. Uses a sorted array, because bands are few. */
#include "defrag/report/page/page_bands.h"

#include <string.h>

enum { DISTANCE_MIN = 4096 };

void zr_bands_init(struct zr_bands *bands, zr_arena *arena, uint64_t distance_bytes)
{
    *bands = (struct zr_bands){.distance_bytes = distance_bytes};
    zr_vector_init(&bands->items, arena, sizeof(struct zr_band));
}

void zr_bands_end(struct zr_bands *bands)
{
    zr_vector_end(&bands->items);
}

static struct zr_band *band_at(const struct zr_bands *bands, size_t index)
{
    return zr_vector_at(&bands->items, index);
}

/* The first band that ends after an address. */
static size_t first_beyond(const struct zr_bands *bands, uint64_t address)
{
    size_t low = 0, high = bands->items.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (band_at(bands, middle)->end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool close_to(const struct zr_bands *bands, uint64_t end, uint64_t begin)
{
    return begin <= end || begin - end <= bands->distance_bytes;
}

/* Merges close neighbours from `index` on; with `all`, up to the end. */
static void join(struct zr_bands *bands, size_t index, bool all)
{
    size_t to = index, from = index + 1, count = bands->items.count;
    for (; from < count; from++) {
        struct zr_band *left = band_at(bands, to), *right = band_at(bands, from);
        if (close_to(bands, left->end, right->begin)) {
            if (right->end > left->end)
                left->end = right->end;
        } else if (all) {
            *band_at(bands, ++to) = *right;
        } else {
            break;
        }
    }
    if (from > to + 1 && from < count)
        memmove(band_at(bands, to + 1), band_at(bands, from), (count - from) * sizeof(struct zr_band));
    bands->items.count = to + 1 + (count - from);
}

zr_result zr_bands_add(struct zr_bands *bands, uint64_t begin, uint64_t end)
{
    size_t index = first_beyond(bands, begin), count = bands->items.count;
    if (end <= begin)
        return ZR_OK;
    if (index > 0 && close_to(bands, band_at(bands, index - 1)->end, begin))
        index--;
    struct zr_band *band = index < count ? band_at(bands, index) : NULL;
    if (band && close_to(bands, end, band->begin) && close_to(bands, band->end, begin)) {
        bool longer = end > band->end;
        band->begin = begin < band->begin ? begin : band->begin;
        band->end = longer ? end : band->end;
        if (longer)
            join(bands, index, false);
        return ZR_OK;
    }
    zr_result result = zr_vector_add(&bands->items, &(struct zr_band){0});
    if (result != ZR_OK)
        return result;
    memmove(band_at(bands, index) + 1, band_at(bands, index), (count - index) * sizeof(struct zr_band));
    *band_at(bands, index) = (struct zr_band){.begin = begin, .end = end};
    while (bands->items.count > ZR_BANDS_MAX) {
        uint64_t distance = bands->distance_bytes;
        bands->distance_bytes = distance < DISTANCE_MIN     ? DISTANCE_MIN
                                : distance > UINT64_MAX / 4 ? UINT64_MAX
                                                            : distance * 4;
        join(bands, 0, true);
    }
    return ZR_OK;
}

void zr_bands_settle(struct zr_bands *bands)
{
    bands->bytes = 0;
    for (size_t i = 0; i < bands->items.count; i++) {
        struct zr_band *band = band_at(bands, i);
        band->place = bands->bytes;
        bands->bytes += band->end - band->begin;
    }
}

bool zr_bands_part(const struct zr_bands *bands, uint64_t begin, uint64_t end, struct zr_band_part *out)
{
    size_t index = first_beyond(bands, begin);
    const struct zr_band *band = index < bands->items.count ? band_at(bands, index) : NULL;
    if (!band || band->begin >= end || end <= begin)
        return false;
    uint64_t from = begin > band->begin ? begin : band->begin, to = end < band->end ? end : band->end;
    *out = (struct zr_band_part){.place = band->place + (from - band->begin), .bytes = to - from, .next = to};
    return true;
}
