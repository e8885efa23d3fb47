/* number.c: formats numbers for reports, logs and the progress line. */
#include "zero/train/report/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/sizes.h"

const char *zr_number_exact(char out[ZR_NUMBER_ROOM], double value)
{
    if (!isfinite(value))
        return strcpy(out, "null");
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, ZR_NUMBER_ROOM, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return out;
}

const char *zr_number_hex(char out[ZR_NUMBER_ROOM], double value)
{
    snprintf(out, ZR_NUMBER_ROOM, "%a", value);
    return out;
}

const char *zr_number_bytes(char out[ZR_NUMBER_ROOM], uint64_t bytes)
{
    return zr_size_print(out, bytes);
}

const char *zr_number_grouped(char out[ZR_NUMBER_ROOM], uint64_t value)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value), used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

const char *zr_number_counted(char out[ZR_NUMBER_ROOM], double value)
{
    static const char *const units[] = {"", " k", " M", " B", " T"};
    unsigned unit = 0;

    for (; value >= 999.5 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1000;
    int decimals = (unit == 0 && value == floor(value)) || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(out, ZR_NUMBER_ROOM, "%.*f%s", decimals, value, units[unit]);
    return out;
}

const char *zr_number_seconds(char out[ZR_NUMBER_ROOM], double seconds)
{
    if (!(seconds >= 0) || seconds > 1e9)
        return strcpy(out, "?");
    unsigned long long whole = (unsigned long long)(seconds + 0.5);
    if (seconds < 9.95)
        snprintf(out, ZR_NUMBER_ROOM, "%.1f s", seconds);
    else if (whole < 60)
        snprintf(out, ZR_NUMBER_ROOM, "%llu s", whole);
    else if (whole < 3600)
        snprintf(out, ZR_NUMBER_ROOM, "%llu min %02llu s", whole / 60, whole % 60);
    else
        snprintf(out, ZR_NUMBER_ROOM, "%llu h %02llu min", whole / 3600, whole / 60 % 60);
    return out;
}
