/* sizes.c: reads and prints sizes in bytes; see sizes.h. Uses the C library alone. */
#include "alloc/base/sizes.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* ---- Reading ------------------------------------------------------------------------------------------- */

enum { DECIMALS_MAX = 19 };
#define FORMS "; give a size such as 1048576, 16G or 16GiB (powers of 1024), 16GB (of 1000) or 1.5GiB"

static bool is_digit(char sign)
{
    return sign >= '0' && sign <= '9';
}

/* In lower case; anything else stays what it is. */
static char lower(char sign)
{
    return sign >= 'A' && sign <= 'Z' ? (char)(sign + ('a' - 'A')) : sign;
}

/* The bytes of a unit; 0: it is none. */
static uint64_t unit_bytes(const char *unit, size_t length)
{
    static const char letters[] = "kmgtpe";
    if (length == 0 || (length == 1 && lower(unit[0]) == 'b'))
        return 1;
    const char *letter = memchr(letters, lower(unit[0]), sizeof letters - 1);
    bool decimal = length == 2 && lower(unit[1]) == 'b';
    bool binary = length == 1 || (length == 3 && lower(unit[1]) == 'i' && lower(unit[2]) == 'b');
    if (!letter || (!decimal && !binary))
        return 0;
    uint64_t bytes = 1;
    for (const char *at = letters; at <= letter; at++)
        bytes *= decimal ? 1000 : 1024;
    return bytes;
}

const char *zr_size_read(const char *text, size_t length, uint64_t *out)
{
    size_t at = 0, decimals = 0;
    uint64_t whole = 0, part = 0, scale = 1, bytes; /* part / scale stands behind the point */
    bool beyond = false, too_fine = false;
    while (at < length && is_digit(text[at])) {
        uint64_t digit = (uint64_t)(text[at++] - '0');
        beyond |= __builtin_mul_overflow(whole, UINT64_C(10), &whole) ||
                  __builtin_add_overflow(whole, digit, &whole);
    }
    if (at == 0)
        return length > 1 && text[0] == '-' && is_digit(text[1])
                   ? "is out of range: a size is not negative" FORMS
                   : "is not a size" FORMS;
    if (at < length && text[at] == '.') {
        for (at++; at < length && is_digit(text[at]); at++, decimals++) {
            if (decimals >= DECIMALS_MAX) {
                too_fine |= text[at] != '0';
                continue;
            }
            part = part * 10 + (uint64_t)(text[at] - '0');
            scale *= 10;
        }
        if (decimals == 0)
            return "has no digit after the decimal point" FORMS;
    }
    uint64_t unit = unit_bytes(text + at, length - at);
    if (unit == 0)
        return "has an unknown unit" FORMS;
    unsigned __int128 fraction = (unsigned __int128)part * unit;
    if (too_fine || fraction % scale != 0)
        return "is not a whole number of bytes" FORMS;
    if (beyond || __builtin_mul_overflow(whole, unit, &bytes) ||
        __builtin_add_overflow(bytes, (uint64_t)(fraction / scale), &bytes))
        return "is out of range: more than 2^64 - 1 bytes" FORMS;
    *out = bytes;
    return NULL;
}

/* ---- Printing ------------------------------------------------------------------------------------------ */

static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

/* Where a size would have five digits, the next unit begins. */
static unsigned unit_of(uint64_t bytes)
{
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= (unit ? 1023.5 : 1024) && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1024;
    return unit;
}

static const char *print(char out[ZR_SIZE_ROOM], uint64_t bytes, unsigned unit)
{
    double value = (double)bytes;
    for (unsigned i = 0; i < unit; i++)
        value /= 1024;
    int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : value >= 0.9995 ? 2 : 3;
    snprintf(out, ZR_SIZE_ROOM, "%.*f %s", decimals, value, units[unit]);
    return out;
}

const char *zr_size_print_in(char out[ZR_SIZE_ROOM], uint64_t bytes, uint64_t largest_bytes)
{
    unsigned own = unit_of(bytes), unit = unit_of(largest_bytes);
    double least = 0.0005;
    for (unsigned i = 0; i < unit; i++)
        least *= 1024;
    if (bytes == 0)
        return strcpy(out, "0");
    return print(out, bytes, unit > own && (double)bytes < least ? own : unit);
}

const char *zr_size_print(char out[ZR_SIZE_ROOM], uint64_t bytes)
{
    return zr_size_print_in(out, bytes, bytes);
}

const char *zr_size_print_exact(char out[ZR_SIZE_EXACT_ROOM], uint64_t bytes)
{
    static const char letters[] = "KMGTPE";
    uint64_t binary = bytes, decimal = bytes;
    unsigned binary_unit = 0, decimal_unit = 0;
    for (; binary > 0 && binary % 1024 == 0 && binary_unit < sizeof letters - 1; binary_unit++)
        binary /= 1024;
    for (; decimal > 0 && decimal % 1000 == 0 && decimal_unit < sizeof letters - 1; decimal_unit++)
        decimal /= 1000;
    if (binary_unit > 0 && binary <= decimal)
        snprintf(out, ZR_SIZE_EXACT_ROOM, "%" PRIu64 "%ciB", binary, letters[binary_unit - 1]);
    else if (decimal_unit > 0)
        snprintf(out, ZR_SIZE_EXACT_ROOM, "%" PRIu64 "%cB", decimal, letters[decimal_unit - 1]);
    else
        snprintf(out, ZR_SIZE_EXACT_ROOM, "%" PRIu64, bytes);
    return out;
}
