/* cuda_rules.h: rules of the CUDA driver, each a small program with the verdict that is stated for it and the
 * page or project that states it. Every program runs in a process of its own.
 *
 * Here the emulated driver must give the stated verdict. With ZR_TEST_CUDA=card each program runs on the
 * emulator and on the machine's own driver, and the two verdicts are compared: an emulator that allows what a
 * card refuses would let mistakes through and fails; one that is stricter than the card is noted.
 *
 * Sources: VA = docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html, and the same with INITIALIZE,
 * ERROR, DEVICE, PRIMARY__CTX, CTX, MEM, MALLOC__ASYNC, UNIFIED, STREAM, EVENT, GRAPH,
 * PEER__ACCESS, DRIVER__ENTRY__POINT and TYPES in place of VA; runtime API =
 * docs.nvidia.com/cuda/cuda-runtime-api; guide = CUDA C++ Programming Guide. What no page states is taken for
 * a rule where breaking it is a mistake anyway. */
#ifndef ZR_TEST_CUDA_RULES_H
#define ZR_TEST_CUDA_RULES_H

#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/cuda/cuda_calls.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/tap.h"

/* On the emulator there is a device that the first cannot reach. */
enum { RANGE_GRANULES = 8, RULES_DEVICES = 3, VERDICT_BROKEN = 5000, VERDICT_SKIPPED = 5001 };

/* What a program finds: device 0's context current, a reservation, and no memory yet. */
struct world {
    const struct zr_cuda_driver *cu;
    struct cuda_calls all;              /* by which programs allocate */
    const struct zr_emulator *emulator; /* NULL on a card */
    void *library;
    zr_cu_context context;
    zr_cu_address base;
    size_t g; /* the granularity */
    int devices_count;
};

#define MUST(call)                                                                                           \
    do {                                                                                                     \
        if ((call) != ZR_CU_SUCCESS)                                                                         \
            return VERDICT_BROKEN;                                                                           \
    } while (0)

static inline zr_cu_properties on_device(int device)
{
    return (zr_cu_properties){.type = ZR_CU_ALLOCATION_PINNED,
                              .exported_as = ZR_CU_HANDLE_POSIX_FD,
                              .location = {ZR_CU_LOCATION_DEVICE, device}};
}

static inline zr_cu_memory memory_of(const struct world *w, size_t granules)
{
    zr_cu_properties properties = on_device(0);
    zr_cu_memory memory = 0;
    if (w->cu->create(&memory, granules * w->g, &properties, 0) != ZR_CU_SUCCESS)
        _exit(1); /* the verdict stays "broken" */
    return memory;
}

static inline zr_cu_result map_at(const struct world *w, size_t granule, size_t granules, zr_cu_memory memory)
{
    return w->cu->map(w->base + granule * w->g, granules * w->g, 0, memory, 0);
}

static const zr_cu_access device_access = {{ZR_CU_LOCATION_DEVICE, 0}, ZR_CU_ACCESS_READ_WRITE};

static inline zr_cu_result access_at(const struct world *w, size_t granule, size_t granules)
{
    return w->cu->set_access(w->base + granule * w->g, granules * w->g, &device_access, 1);
}

static inline zr_cu_result fill_at(const struct world *w, size_t granule, unsigned char value)
{
    zr_cu_result code = w->cu->fill(w->base + granule * w->g, value, w->g, NULL);
    return code == ZR_CU_SUCCESS ? w->cu->context_synchronize() : code;
}

/* A mapped granule with access at place 0, and one more handle. */
#define ONE_MAPPED                                                                                           \
    zr_cu_memory first = memory_of(w, 1);                                                                    \
    MUST(map_at(w, 0, 1, first));                                                                            \
    MUST(access_at(w, 0, 1))

/* Of calls that are all to be refused the first that is not, else the first one's code. */
static inline zr_cu_result most_lenient(const zr_cu_result *codes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (codes[i] == ZR_CU_SUCCESS)
            return codes[i];
    return codes[0];
}

#define ALL_REFUSED(...)                                                                                     \
    most_lenient((const zr_cu_result[]){__VA_ARGS__},                                                        \
                 sizeof((const zr_cu_result[]){__VA_ARGS__}) / sizeof(zr_cu_result))

/* ---- Programs that allocate -----------------------------------------------------------------------------
 */

static inline zr_cu_address plain(const struct world *w, size_t bytes)
{
    zr_cu_address address = 0;
    if (w->all.mem_alloc(&address, bytes) != ZR_CU_SUCCESS)
        _exit(1); /* the verdict stays "broken" */
    return address;
}

static inline zr_cu_result good(bool what)
{
    return what ? ZR_CU_SUCCESS : VERDICT_BROKEN;
}

static inline size_t free_bytes(const struct world *w)
{
    size_t bytes = 0;
    w->all.mem_info(&bytes, NULL);
    return bytes;
}

static inline zr_cu_stream stream_of(const struct world *w)
{
    zr_cu_stream stream = NULL;
    if (w->all.stream_new(&stream, ZR_CU_STREAM_NON_BLOCKING) != ZR_CU_SUCCESS)
        _exit(1);
    return stream;
}

/* ---- Rules --------------------------------------------------------------------------------------------- */

enum where { ANYWHERE, EMULATOR_ONLY };

struct rule {
    const char *name, *source;
    zr_cu_result (*program)(const struct world *w);
    zr_cu_result verdict;
    enum where where;
};

/* ---- Running ------------------------------------------------------------------------------------------- */

static inline zr_cu_result prepare(struct world *w, bool card)
{
    const char *path = card ? "libcuda.so.1" : cuda_emulator_path();
    zr_cu_properties properties = on_device(0);
    zr_cu_device device;
    char devices[16];
    snprintf(devices, sizeof devices, "%d", RULES_DEVICES);
    setenv("ZR_EMULATOR_DEVICES", devices, 1); /* a card does not read it */
    if (zr_cuda_driver_path_set(path) != ZR_OK || zr_cuda_driver_get(&w->cu) != ZR_OK)
        return VERDICT_BROKEN;
    w->library = dlopen(path, RTLD_NOW);
    cuda_calls_find(&w->all, w->library);
    w->emulator = card ? NULL : dlsym(w->library, "zr_emulator");
    MUST(w->cu->device_count(&w->devices_count));
    MUST(w->cu->device_get(&device, 0));
    MUST(w->cu->context_retain(&w->context, device));
    MUST(w->cu->context_push(w->context));
    MUST(w->cu->granularity(&w->g, &properties, ZR_CU_GRANULARITY_MINIMUM));
    return w->cu->reserve(&w->base, RANGE_GRANULES * w->g, 0, 0, 0);
}

/* The verdict of one program in a process of its own. */
static inline zr_cu_result verdict_of(const struct rule *rule, bool card)
{
    zr_cu_result *verdict = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *verdict = VERDICT_BROKEN;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct world w = {0};
        zr_cu_result code = prepare(&w, card);
        *verdict = code == ZR_CU_SUCCESS ? rule->program(&w) : code;
        _exit(0);
    }
    waitpid(child, NULL, 0);
    zr_cu_result got = *verdict;
    munmap(verdict, 4096);
    return got;
}

static inline void compare_with_card(const struct rule *rule, zr_cu_result emulated)
{
    if (rule->where == EMULATOR_ONLY) {
        tap_skip("%s: not tried on a card (%s)", rule->name, rule->source);
        return;
    }
    zr_cu_result card = verdict_of(rule, true);
    if (card == VERDICT_SKIPPED) {
        tap_skip("%s: needs more devices", rule->name);
        return;
    }
    bool lenient = emulated == ZR_CU_SUCCESS && card != ZR_CU_SUCCESS;
    tap_ok(!lenient && card != VERDICT_BROKEN, "%s: emulator %u, card %u%s (%s)", rule->name, emulated, card,
           card == emulated        ? ""
           : card == ZR_CU_SUCCESS ? ": the emulator is stricter"
                                   : ": refused by both, with other codes",
           rule->source);
}

/* Every rule is a test. What a program returns. */
static inline int rules_run(const struct rule *rules, size_t count)
{
    if (zr_cuda_driver_path_set(cuda_emulator_path()) != ZR_OK) {
        tap_skip("%s", zr_last_error());
        return tap_done();
    }
    for (size_t i = 0; i < count; i++) {
        zr_cu_result emulated = verdict_of(&rules[i], false);
        if (cuda_on_card())
            compare_with_card(&rules[i], emulated);
        else
            tap_is(emulated, rules[i].verdict, "%s (%s)", rules[i].name, rules[i].source);
    }
    return tap_done();
}

#endif
