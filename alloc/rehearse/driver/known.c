/* known.c: which bytes of the devices the program has written, by copies and fills. A kernel may have made
 * all others; they read as ZR_EMULATOR_FILL. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>
#include <string.h>

/* By address, disjoint. */
static struct range {
    zr_cu_address start, end;
    uint64_t launches_count;  /* when it was written */
    bool uniform;             /* kernels made them, and they read as the pattern; else as the memory */
    unsigned char pattern[8]; /* from an address on that eight divides */
} * ranges;
static size_t ranges_count, ranges_room;
static uint64_t launches_count;

__thread int64_t emu_count_expected = -1;

void emu_known_launch(void)
{
    launches_count++;
}

/* The first that ends behind the address. */
static size_t place_of(zr_cu_address address)
{
    size_t low = 0, high = ranges_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Puts `count` ranges in the place of those from `at` to before `to`. */
static void replace(size_t at, size_t to, const struct range *with, size_t count)
{
    size_t wanted = ranges_count - (to - at) + count;
    if (wanted > ranges_room) {
        ranges_room = 2 * wanted;
        ranges = emu_must(realloc(ranges, ranges_room * sizeof *ranges));
    }
    if (ranges_count > to)
        memmove(&ranges[at + count], &ranges[to], (ranges_count - to) * sizeof *ranges);
    if (count)
        memcpy(&ranges[at], with, count * sizeof *ranges);
    ranges_count = wanted;
}

static void put(zr_cu_address address, size_t bytes, const struct range *middle)
{
    const zr_cu_address end = address + bytes;
    size_t at = place_of(address), to = at, count = 0;
    struct range with[3];
    while (to < ranges_count && ranges[to].start < end)
        to++;
    if (to > at && ranges[at].start < address)
        with[count] = ranges[at], with[count++].end = address;
    if (middle)
        with[count] = *middle, with[count].start = address, with[count++].end = end;
    if (to > at && ranges[to - 1].end > end)
        with[count] = ranges[to - 1], with[count++].start = end;
    if (count || to > at)
        replace(at, to, with, count);
}

void emu_known_add(zr_cu_address address, size_t bytes)
{
    put(address, bytes, &(struct range){.launches_count = launches_count});
}

void emu_known_compute(zr_cu_address address, size_t bytes, const uint64_t *pattern)
{
    struct range range = {.uniform = pattern};
    if (pattern)
        memcpy(range.pattern, pattern, sizeof range.pattern);
    put(address, bytes, &range);
}

void emu_known_forget(zr_cu_address address, size_t bytes)
{
    put(address, bytes, NULL);
}

void emu_known_note(zr_cu_address address, size_t bytes, bool known)
{
    if (emu.card && known)
        emu_known_add(address, bytes);
    else if (emu.card)
        emu_known_forget(address, bytes);
}

/* The bytes from the address on, at most so many, that are alike: known, or not. */
static size_t range_at(zr_cu_address address, size_t bytes, const struct range **in)
{
    size_t at = place_of(address);
    const struct range *next = at < ranges_count ? &ranges[at] : NULL;
    bool inside = next && next->start <= address;
    size_t length = !next ? bytes : (inside ? next->end : next->start) - address;
    *in = inside ? next : NULL;
    return length < bytes ? length : bytes;
}

/* Since the launch `since` or later. */
static bool known_since(zr_cu_address address, size_t bytes, uint64_t since)
{
    const struct range *in;
    for (size_t done = 0; done < bytes;) {
        size_t part = range_at(address + done, bytes - done, &in);
        if (!in || in->uniform || in->launches_count < since)
            return false;
        done += part;
    }
    return true;
}

bool emu_known(zr_cu_address address, size_t bytes)
{
    return known_since(address, bytes, 0);
}

bool emu_known_still(zr_cu_address address, size_t bytes)
{
    return known_since(address, bytes, launches_count);
}

/* Whether every byte was written by the program, or computed. */
bool emu_known_value(zr_cu_address address, size_t bytes)
{
    const struct range *in;
    for (size_t done = 0; done < bytes;) {
        size_t part = range_at(address + done, bytes - done, &in);
        if (!in)
            return false;
        done += part;
    }
    return true;
}

/* ---- What reads in the place of a result --------------------------------------------------------------- */

/* Of the size that results of such a copy have: integers of 64 bits, which sizes and indexes are; 32-bit
 * floating point numbers, which losses are; bfloat16; bytes. A count is an integer in any case. */
static size_t set_element(unsigned char out[8], size_t bytes, int64_t count)
{
    const double value = count >= 0 ? (double)count : emu.fill;
    const int64_t whole = (int64_t)(value < 0 ? value - 0.5 : value + 0.5);
    const float single = (float)value;
    const size_t element = bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1;
    if (element == 8 || element == 1 || count >= 0)
        memcpy(out, &whole, element);
    else if (element == 4)
        memcpy(out, &single, element);
    else
        memcpy(out, (const char *)&single + 2, element);
    return element;
}

void emu_known_fill(zr_cu_address address, unsigned char *out, size_t bytes, int64_t count)
{
    unsigned char element[8];
    const struct range *in;
    const size_t element_bytes = set_element(element, bytes, count);
    for (size_t done = 0, part; done < bytes; done += part) {
        part = range_at(address + done, bytes - done, &in);
        for (size_t i = done; count < 0 && in && in->uniform && i < done + part; i++)
            out[i] = in->pattern[(address + i) % sizeof in->pattern];
        for (size_t i = done; (count >= 0 || (!in && emu.fill != 0)) && i < done + part; i++)
            out[i] = element[i % element_bytes];
    }
}
