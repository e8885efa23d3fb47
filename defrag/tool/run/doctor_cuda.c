/* doctor_cuda.c: see doctor.h: how a file of a program takes device memory, and whether libzr_cuda.so serves
 * it. Uses doctor_elf.c and the table of alloc/preload/cuda/memory_calls.h, which libzr_cuda.so uses itself.
 *
 * An imported driver function is replaced, passed on to the driver (with the reason), or missed. It is missed
 * if libzr_cuda.so does not know its version, or if the program defines it. A statically linked runtime has
 * no symbols, but its file contains the names of libcuda.so and of driver functions. Libraries with a caching
 * allocator are recognised by their paths. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "alloc/preload/cuda/driver_api.h"
#include "alloc/preload/cuda/memory_calls.h"
#include "defrag/tool/run/doctor.h"

/* Functions of the CUDA runtime, which call the driver. A file that uses the shared runtime imports them. */
static const struct zr_cuda_memory_call runtime_calls[] = {
    {"cudaMalloc", NULL},
    {"cudaMallocPitch", NULL},
    {"cudaMalloc3D", NULL},
    {"cudaMallocAsync", NULL},
    {"cudaMallocFromPoolAsync", NULL},
    {"cudaFree", NULL},
    {"cudaFreeAsync", NULL},
    {"cudaMemGetInfo", NULL},
    {"cudaIpcGetMemHandle", NULL},
    {"cudaIpcOpenMemHandle", NULL},
    {"cudaMallocHost", "host memory"},
    {"cudaHostAlloc", "host memory"},
    {"cudaHostRegister", "host memory"},
    {"cudaMallocManaged", "managed memory"},
    {"cudaMallocArray", "only the driver knows the layout of arrays"},
    {"cudaMalloc3DArray", "only the driver knows the layout of arrays"},
    {"cudaMallocMipmappedArray", "only the driver knows the layout of arrays"},
};
enum {
    RUNTIME_CALLS_COUNT = sizeof runtime_calls / sizeof *runtime_calls,
    CALLS_MAX = ZR_CUDA_MEMORY_CALLS_COUNT > RUNTIME_CALLS_COUNT ? (int)ZR_CUDA_MEMORY_CALLS_COUNT
                                                                 : (int)RUNTIME_CALLS_COUNT
};

/* The table of the driver or of the runtime. */
struct call_table {
    const struct zr_cuda_memory_call *items;
    size_t count;
    bool of_driver; /* the names have versions */
};
static const struct call_table driver = {zr_cuda_memory_calls, ZR_CUDA_MEMORY_CALLS_COUNT, true};
static const struct call_table runtime = {runtime_calls, RUNTIME_CALLS_COUNT, false};

/* ---- Names --------------------------------------------------------------------------------------------- */

/* Length of a name without its version (_v2) and default-stream suffix (_ptsz, _ptds). */
static size_t base_length(const char *name)
{
    size_t length = strlen(name);
    if (length > 5 && (strcmp(name + length - 5, "_ptsz") == 0 || strcmp(name + length - 5, "_ptds") == 0))
        length -= 5;
    if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' && name[length - 1] >= '0' &&
        name[length - 1] <= '9')
        length -= 3;
    return length;
}

/* Index in the table; the table's count: not in it. */
static size_t way_of(const struct call_table *ways, const char *name)
{
    size_t length = base_length(name), i = 0;
    while (i < ways->count &&
           (strlen(ways->items[i].name) != length || memcmp(ways->items[i].name, name, length) != 0))
        i++;
    return i;
}

/* Whether libzr_cuda.so replaces this version of the function. */
static bool is_replaced(const char *name)
{
#define NAME(member, name, suffix, parameters) #name #suffix,
    static const char *const names[] = {ZR_CUDA_REPLACED(NAME)};
#undef NAME
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* Names separated by commas, up to the capacity. */
struct names {
    char text[240];
    size_t used;
    unsigned count, left_out;
};

static void add_name(struct names *names, const char *name, const char *behind)
{
    size_t room = sizeof names->text - names->used;
    int length = snprintf(names->text + names->used, room, "%s%s%s", names->count ? ", " : "", name, behind);
    names->count++;
    if (length > 0 && (size_t)length < room - 16 && names->left_out == 0) {
        names->used += (size_t)length;
    } else {
        names->left_out++;
        snprintf(names->text + names->used, room, " and %u more", names->left_out);
    }
}

/* ---- Calls of a file ----------------------------------------------------------------------------------- */

/* Adds three findings, for the calls of a table that the file imports: replaced, passed on, missed. False:
 * the file imports none. */
static bool add_calls(struct zr_doctor *doctor, const struct zr_doctor_file *file,
                      const struct call_table *ways)
{
    bool used[CALLS_MAX] = {false};
    struct names replaced = {0}, passed = {0}, missed = {0};
    struct zr_doctor_symbol symbol;
    for (size_t at = 0; zr_doctor_next_symbol(file, &at, &symbol);) {
        size_t way = symbol.defined ? ways->count : way_of(ways, symbol.name);
        if (way == ways->count)
            continue;
        used[way] = true;
        if (ways->of_driver && !ways->items[way].why && !is_replaced(symbol.name))
            add_name(&missed, symbol.name, "");
        else if (!ways->items[way].why)
            add_name(&replaced, symbol.name, "");
    }
    for (size_t i = 0; i < ways->count; i++) {
        const char *why = ways->items[i].why, *next = NULL;
        for (size_t k = i + 1; k < ways->count && !next; k++)
            next = used[k] ? ways->items[k].why : NULL;
        char behind[120] = "";
        if (used[i] && why &&
            (!next || strcmp(next, why) != 0)) /* print the reason of equal neighbours once */
            snprintf(behind, sizeof behind, " (%s)", why);
        if (used[i] && why)
            add_name(&passed, ways->items[i].name, behind);
    }
    if (replaced.count > 0)
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, file->name, "replaced: %s%s", replaced.text,
                      ways->of_driver ? "" : ", by a CUDA runtime");
    if (passed.count > 0)
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, file->name, "passed on to the driver: %s", passed.text);
    if (missed.count > 0)
        zr_doctor_add(doctor, ZR_DOCTOR_BAD, file->name, "missed: %s, of a version unknown to libzr_cuda.so",
                      missed.text);
    return replaced.count + passed.count + missed.count > 0;
}

/* Adds findings for driver functions that the file defines itself. */
static void add_definitions(struct zr_doctor *doctor, const struct zr_doctor_file *file)
{
    struct names names = {0};
    struct zr_doctor_symbol symbol;
    for (size_t at = 0; zr_doctor_next_symbol(file, &at, &symbol);) {
        size_t way = symbol.defined ? way_of(&driver, symbol.name) : driver.count;
        if (way < driver.count && !driver.items[way].why)
            add_name(&names, symbol.name, "");
    }
    if (names.count > 0 && file->is_program)
        zr_doctor_add(
            doctor, ZR_DOCTOR_BAD, file->name,
            "missed: the program defines %s itself, and its symbols precede those of a preloaded library",
            names.text);
    else if (names.count > 0)
        zr_doctor_add(
            doctor, ZR_DOCTOR_NOTE, file->name,
            "it defines the driver's %s: libzr_cuda.so precedes it, but its own calls may bypass libzr_cuda.so",
            names.text);
}

static void add_cache(struct zr_doctor *doctor, const struct zr_doctor_file *file)
{
    const struct zr_cuda_cache *cache = zr_cuda_cache_of(file->path);
    if (!cache)
        return;
    struct zr_doctor_finding *finding = zr_doctor_add(
        doctor, ZR_DOCTOR_NOTE, file->name,
        "%s keeps freed device memory itself: zr allocates its segments, but does not see the free memory inside them%s%s",
        cache->product, cache->off ? "" : "; ", cache->off ? "" : cache->advice);
    if (cache->off)
        snprintf(finding->type, sizeof finding->type, "%s zr run -- PROGRAM", cache->off);
}

void zr_doctor_cuda_paths(struct zr_doctor *doctor, const struct zr_doctor_file *file)
{
    if (strncmp(file->name, "libcuda.so", strlen("libcuda.so")) == 0) {
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, file->name, "the CUDA driver; libzr_cuda.so precedes it");
        return;
    }
    bool calls = add_calls(doctor, file, &driver);
    calls = add_calls(doctor, file, &runtime) || calls;
    add_definitions(doctor, file);
    if (zr_doctor_defines(file, "cudaMalloc"))
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, file->name,
                      "replaced: a CUDA runtime, which looks up driver functions by name");
    else if (!calls && zr_doctor_contains(file, "libcuda.so") &&
             (zr_doctor_contains(file, "cuGetProcAddress") || zr_doctor_contains(file, "cuMemAlloc")))
        zr_doctor_add(
            doctor, ZR_DOCTOR_FINE, file->name,
            "replaced: it looks up driver functions by name, as a statically linked CUDA runtime does");
    add_cache(doctor, file);
}
