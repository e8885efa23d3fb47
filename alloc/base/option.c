/* option.c: the table of options and its reader. Reads ZR_CONF and ZR_GROUP at the first call. */
#define _GNU_SOURCE
#include "alloc/base/option.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"

enum option_type { TYPE_WHOLE, TYPE_BYTES, TYPE_BOOL, TYPE_CHOICE };

struct option_row {
    const char *name;
    enum option_type type;
    uint64_t fallback, least, most;
    const char *choices[6]; /* TYPE_CHOICE: the value is the place */
    const char *help;
};

static const struct option_row table[ZR_OPTION_COUNT] = {
    [ZR_OPTION_CHECK] =
        {"check",
         TYPE_WHOLE,
         1,
         0,
         3,
         {0},
         "consistency checks; 0: assertions; 1: calls; 2: the arena after each change of its mapped memory; 3: canaries past every block, and double frees of small objects under zr run"},
    [ZR_OPTION_GRANULE] = {"granule",
                           TYPE_BYTES,
                           0,
                           0,
                           UINT64_C(1) << 30,
                           {0},
                           "unit of physical memory, a power of two such as 64k; 0: 2m"},
    [ZR_OPTION_HUGE_PAGES] =
        {"huge_pages", TYPE_BOOL, 1, 0, 1, {0}, "use huge pages where the kernel grants them"},
    [ZR_OPTION_ISA] = {"isa",
                       TYPE_CHOICE,
                       0,
                       0,
                       5,
                       {"auto", "plain", "avx2", "avx512", "avx512_bf16", "amx"},
                       "instruction set of the kernels; auto: the best that the processor has"},
    [ZR_OPTION_KERNELS] =
        {"kernels",
         TYPE_CHOICE,
         0,
         0,
         1,
         {"embedded", "emulated"},
         "kernels on a GPU; embedded: nvcc's output; emulated: kernels.image of the emulated driver"},
    [ZR_OPTION_LIMIT] = {"limit",
                         TYPE_BYTES,
                         0,
                         0,
                         UINT64_MAX,
                         {0},
                         "bytes that a program under zr run may hold; 0: no limit"},
    [ZR_OPTION_POISON] = {"poison", TYPE_BOOL, 1, 0, 1, {0}, "report free space to ASan and Valgrind"},
    [ZR_OPTION_PRODUCTS] =
        {"products",
         TYPE_CHOICE,
         0,
         0,
         1,
         {"library", "any"},
         "bf16 and fp16 products on a GPU; library: require cuBLASLt; any: zr's own kernel if cuBLASLt is missing, many times slower"},
    [ZR_OPTION_PUBLISH] =
        {"publish",
         TYPE_CHOICE,
         0,
         0,
         2,
         {"auto", "off", "on"},
         "show the process to zr ps and zr attach; on: at once; auto: when an arena holds 64 MiB, or zr attach asks"},
    [ZR_OPTION_RECORDER] =
        {"recorder",
         TYPE_BYTES,
         0,
         0,
         UINT64_C(1) << 30,
         {0},
         "bytes of each arena's ring of last events, written to a file in TMPDIR when an allocation fails; 0: none"},
    [ZR_OPTION_SMALL] =
        {"small",
         TYPE_BYTES,
         0,
         0,
         UINT64_C(1) << 30,
         {0},
         "samples objects of up to 32 KiB in a trace of zr run, one in so many bytes, with call stacks; 0: none"},
    [ZR_OPTION_STACKS] = {"stacks",
                          TYPE_WHOLE,
                          0,
                          0,
                          UINT32_MAX,
                          {0},
                          "record the call stack of one allocation in N in traces; 0: none"},
    [ZR_OPTION_SERVICE] =
        {"service",
         TYPE_CHOICE,
         0,
         0,
         2,
         {"off", "on", "required"},
         "lease memory from zrd, GPU memory from the GPU's zrd; on: continue without zrd if none runs; required: fail"},
    [ZR_OPTION_SERVICE_WAIT] =
        {"service_wait",
         TYPE_BOOL,
         0,
         0,
         1,
         {0},
         "zr-train waits until its plan fits beside zrd's other runs, instead of failing"},
    [ZR_OPTION_VERBOSE] = {"verbose",
                           TYPE_BOOL,
                           0,
                           0,
                           1,
                           {0},
                           "a library under zr run reports on standard error that it is loaded"},
    [ZR_OPTION_VMA_BUDGET] =
        {"vma_budget",
         TYPE_WHOLE,
         0,
         0,
         UINT32_MAX,
         {0},
         "mappings that the host backend may hold; 0: less than half of vm.max_map_count"},
};

static _Atomic uint64_t values[ZR_OPTION_COUNT];
static bool is_given[ZR_OPTION_COUNT]; /* by ZR_CONF; written by read_environment() */
static char bad_words[300]; /* why ZR_CONF was refused; "" if it was not. Written by read_environment() */
static bool help_wanted;
static char group_name[48]; /* written by read_environment() */

static void put_defaults(void)
{
    for (unsigned i = 0; i < ZR_OPTION_COUNT; i++) {
        atomic_store(&values[i], table[i].fallback);
        is_given[i] = false;
    }
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

struct piece {
    const char *text;
    size_t length;
};

static bool piece_is(struct piece piece, const char *word)
{
    return strlen(word) == piece.length && memcmp(word, piece.text, piece.length) == 0;
}

static bool read_whole(struct piece value, uint64_t *out)
{
    uint64_t number = 0;
    size_t i = 0;
    for (; i < value.length && value.text[i] >= '0' && value.text[i] <= '9'; i++)
        if (__builtin_mul_overflow(number, 10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(value.text[i] - '0'), &number))
            return false;
    *out = number;
    return i > 0 && i == value.length;
}

static bool read_value(const struct option_row *row, struct piece value, uint64_t *out)
{
    switch (row->type) {
    case TYPE_BYTES:
        return !zr_size_read(value.text, value.length, out) && *out >= row->least && *out <= row->most;
    case TYPE_BOOL:
        if (piece_is(value, "true") || piece_is(value, "on") || piece_is(value, "1"))
            *out = 1;
        else if (piece_is(value, "false") || piece_is(value, "off") || piece_is(value, "0"))
            *out = 0;
        else
            return false;
        return true;
    case TYPE_CHOICE:
        for (uint64_t i = 0; i <= row->most; i++)
            if (piece_is(value, row->choices[i])) {
                *out = i;
                return true;
            }
        return false;
    default:
        return read_whole(value, out) && *out >= row->least && *out <= row->most;
    }
}

static zr_result read_one(struct piece item)
{
    const char *colon = memchr(item.text, ':', item.length);
    struct piece name = {item.text, colon ? (size_t)(colon - item.text) : item.length};
    for (unsigned i = 0; i < ZR_OPTION_COUNT; i++) {
        if (!piece_is(name, table[i].name))
            continue;
        struct piece value = {colon ? colon + 1 : "", colon ? item.length - name.length - 1 : 0};
        uint64_t number = 0;
        const char *words =
            table[i].type == TYPE_BYTES ? zr_size_read(value.text, value.length, &number) : NULL;
        if (words)
            return zr_fail(ZR_ERR_INVALID, "ZR_CONF: `%.*s` of %s %s",
                           value.length < 40 ? (int)value.length : 40, value.text, table[i].name, words);
        if (!read_value(&table[i], value, &number) ||
            (i == ZR_OPTION_GRANULE && (number & (number - 1)) != 0))
            return zr_fail(ZR_ERR_INVALID,
                           "ZR_CONF: invalid value `%.*s` for %s (%s); ZR_CONF=help lists all options",
                           (int)value.length, value.text, table[i].name, table[i].help);
        atomic_store(&values[i], number);
        is_given[i] = true;
        return ZR_OK;
    }
    return zr_fail(ZR_ERR_INVALID, "ZR_CONF: unknown option `%.*s`; ZR_CONF=help lists all options",
                   (int)name.length, name.text);
}

static zr_result read_all(const char *text)
{
    zr_result result = ZR_OK;
    put_defaults();
    help_wanted = false;
    while (result == ZR_OK && text && *text) {
        struct piece item = {text, strcspn(text, ",")};
        if (piece_is(item, "help"))
            help_wanted = true;
        else if (item.length > 0)
            result = read_one(item);
        text += item.length + (text[item.length] == ',');
    }
    if (result != ZR_OK)
        put_defaults();
    return result;
}

void zr_group_name(char *out, size_t room_bytes, const char *text)
{
    size_t used = 0;
    for (; *text && used < room_bytes - 1; text++)
        out[used++] = (unsigned char)*text > ' ' && (unsigned char)*text < 0x7f ? *text : '_';
    out[used] = '\0';
}

static void read_environment(void)
{
    const char *group = secure_getenv("ZR_GROUP");
    zr_group_name(group_name, sizeof group_name, group ? group : "");
    if (read_all(secure_getenv("ZR_CONF")) != ZR_OK)
        snprintf(bad_words, sizeof bad_words, "%s", zr_last_error());
}

static void prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
}

void zr_group_set(const char *text)
{
    prepare();
    zr_group_name(group_name, sizeof group_name, text);
}

/* ---- Asking -------------------------------------------------------------------------------------------- */

uint64_t zr_option_get(enum zr_option_name name)
{
    prepare();
    return atomic_load_explicit(&values[name], memory_order_relaxed);
}

void zr_option_prefer(enum zr_option_name name, uint64_t value)
{
    prepare();
    if (!is_given[name])
        atomic_store(&values[name], value);
}

const char *zr_option_group(void)
{
    prepare();
    return group_name;
}

bool zr_option_find(const char *name, uint64_t *out)
{
    for (unsigned i = 0; i < ZR_OPTION_COUNT; i++)
        if (strcmp(table[i].name, name) == 0) {
            *out = zr_option_get((enum zr_option_name)i);
            return true;
        }
    return false;
}

zr_result zr_option_result(void)
{
    prepare();
    return bad_words[0] ? zr_fail(ZR_ERR_INVALID, "%s", bad_words) : ZR_OK;
}

bool zr_option_help_wanted(void)
{
    prepare();
    return help_wanted;
}

zr_result zr_option_set(const char *text)
{
    prepare();
    bad_words[0] = '\0';
    return read_all(text);
}

size_t zr_option_help(char *out, size_t room_bytes)
{
    size_t used = 0;
    for (unsigned i = 0; i < ZR_OPTION_COUNT; i++) {
        const struct option_row *row = &table[i];
        char range[96] = "", size[ZR_SIZE_EXACT_ROOM];
        if (row->type == TYPE_CHOICE)
            for (uint64_t c = 0; c <= row->most; c++)
                snprintf(range + strlen(range), sizeof range - strlen(range), "%s%s", c ? "|" : "",
                         row->choices[c]);
        else if (row->type == TYPE_BOOL)
            snprintf(range, sizeof range, "true|false");
        else if (row->type == TYPE_BYTES && row->most == UINT64_MAX)
            snprintf(range, sizeof range, "SIZE");
        else if (row->type == TYPE_BYTES)
            snprintf(range, sizeof range, "0..%s", zr_size_print_exact(size, row->most));
        else
            snprintf(range, sizeof range, "%llu..%llu", (unsigned long long)row->least,
                     (unsigned long long)row->most);
        char fallback[24];
        snprintf(fallback, sizeof fallback, "%llu", (unsigned long long)row->fallback);
        const char *shown = row->type == TYPE_CHOICE ? row->choices[row->fallback]
                            : row->type == TYPE_BOOL ? (row->fallback ? "true" : "false")
                                                     : fallback;
        int length =
            snprintf(used < room_bytes ? out + used : NULL, used < room_bytes ? room_bytes - used : 0,
                     "%s:%s  (default %s)  %s\n", row->name, range, shown, row->help);
        used += length > 0 ? (size_t)length : 0;
    }
    used += (size_t)snprintf(used < room_bytes ? out + used : NULL, used < room_bytes ? room_bytes - used : 0,
                             "\n" ZR_SIZE_HELP);
    return used;
}

/* ---- Option structs of callers ------------------------------------------------------------------------- */

zr_result zr_struct_copy(void *own, size_t own_bytes, size_t first_bytes, const void *given, const char *name)
{
    const unsigned char *bytes = given;
    size_t given_bytes = 0;
    memset(own, 0, own_bytes);
    if (!given)
        return ZR_OK;
    memcpy(&given_bytes, given, sizeof given_bytes);
    if (given_bytes == 0)
        given_bytes = first_bytes;
    if (given_bytes < sizeof given_bytes || given_bytes > PTRDIFF_MAX)
        return zr_fail(ZR_ERR_INVALID,
                       "struct %s: struct_bytes is %zu; set it to the struct's sizeof, or to 0", name,
                       given_bytes);
    for (size_t i = own_bytes; i < given_bytes; i++)
        if (bytes[i] != 0)
            return zr_fail(
                ZR_ERR_INVALID,
                "struct %s of %zu bytes: byte %zu is not 0, and this zr knows only %zu bytes: the program was built against a newer zr, or struct_bytes is wrong",
                name, given_bytes, i, own_bytes);
    memcpy(own, given, given_bytes < own_bytes ? given_bytes : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return ZR_OK;
}
