/* cuda_kernels_test.c: kernels on the emulated driver: modules and launches, what threads do together, and
 * the report that each mistake of a kernel gets. The kernels are tests/support/cuda/cuda_kernel_rules.cu,
 * compiled for the processor alone: on a card nothing of this is tried. */
#define _GNU_SOURCE
#include <math.h>

#include "tests/support/cuda/cuda_kernel_rules.h"
#include "tests/support/cuda/cuda_rules.h"

enum { NUMBERS = 1024, SEEDS = 20 };

static const char *image_line(void)
{
    static char line[PATH_MAX + 64];
    const char *path = cuda_emulator_path();
    snprintf(line, sizeof line, "zr emulated image %.*srules.image\n", (int)(strrchr(path, '/') + 1 - path),
             path);
    return line;
}

/* A launch of blocks x threads of one kernel. */
struct shape {
    unsigned blocks, threads, shared_bytes;
};

static zr_cu_function function_of(const struct world *w, const char *kernel)
{
    static zr_cu_module module;
    zr_cu_function function = NULL;
    if (!module && w->all.module_load(&module, image_line()) != ZR_CU_SUCCESS)
        _exit(1);
    w->all.module_function(&function, module, kernel);
    return function;
}

static zr_cu_result start(const struct world *w, const char *kernel, struct shape s,
                          const struct rule_arguments *arguments, zr_cu_stream stream)
{
    struct rule_arguments copy = *arguments;
    void *list[] = {&copy};
    zr_cu_result code = w->all.launch_kernel(function_of(w, kernel), s.blocks, 1, 1, s.threads, 1, 1,
                                             s.shared_bytes, stream, list, NULL);
    memset(&copy, 0xff, sizeof copy); /* it was copied */
    return code;
}

/* Numbers 0, 1, 2, .. on the device. */
static zr_cu_address numbers_on(const struct world *w, size_t count)
{
    float host[NUMBERS];
    zr_cu_address address = plain(w, count * sizeof *host);
    for (size_t i = 0; i < count; i++)
        host[i] = (float)i;
    if (w->all.copy_to_device(address, host, count * sizeof *host) != ZR_CU_SUCCESS ||
        w->cu->context_synchronize() != ZR_CU_SUCCESS) /* streams do not wait for it */
        _exit(1);
    return address;
}

static float number_at(const struct world *w, zr_cu_address address, size_t i)
{
    float got = -1;
    w->all.copy_to_host(&got, address + i * sizeof got, sizeof got);
    return got;
}

static float *pointer(zr_cu_address address)
{
    return (float *)(uintptr_t)address;
}

/* ---- Mistakes of kernels --------------------------------------------------------------------------------
 */

static zr_cu_result missing_wait(const struct world *w);
static zr_cu_result freed_before(const struct world *w);
static zr_cu_result destroyed_stream(const struct world *w);
static zr_cu_result no_arguments(const struct world *w);

/* What a kernel is reported with: the code that ends its context or is the launch's, and the words. x and y
 * have as many numbers as one block has threads. */
static const struct mistake {
    const char *kernel;
    struct shape shape;
    zr_cu_result code;
    const char *thread, *words;                     /* thread NULL: any */
    zr_cu_result (*program)(const struct world *w); /* NULL: the kernel alone */
} mistakes[] = {
    {"copy_numbers",
     {1, 64, 0},
     719,
     NULL,
     "of kernel add_number: neither waits for the other",
     missing_wait},
    {"read_one", {1, 1, 0}, 700, "thread (0, 0, 0)", "in freed memory", freed_before},
    {"add_number", {1, 32, 0}, 400, NULL, "its stream is destroyed", destroyed_stream},
    {"add_number", {1, 32, 0}, 1, NULL, "it takes one argument, and gets none", no_arguments},
    {"no_bound", {2, 64, 0}, 700, "of block (1, 0, 0)", "past the end of an allocation", NULL},
    {"read_one",
     {1, 1, 0},
     700,
     "thread (0, 0, 0) of block (0, 0, 0)",
     "past the end of an allocation",
     NULL},
    {"misaligned", {1, 2, 0}, 716, "thread (", "no multiple of that", NULL},
    {"no_barrier", {1, 64, 0}, 719, NULL, "of shared memory", NULL},
    {"no_second_barrier", {1, 64, 0}, 719, NULL, "of its block: 4 bytes at", NULL},
    {"no_warp_barrier", {1, 32, 0}, 719, NULL, "of shared memory", NULL},
    {"same_number", {1, 33, 0}, 719, NULL, "races with a write of its block", NULL},
    {"blocks_meet", {2, 32, 0}, 719, "thread (0, 0, 0)", "of another block", NULL},
    {"not_written", {1, 64, 0}, 719, NULL, "reads shared memory that its block has not written", NULL},
    {"past_dynamic",
     {1, 64, 252},
     700,
     "thread (63, 0, 0)",
     "past the end of the dynamic shared memory",
     NULL},
    {"left_out", {1, 64, 0}, 719, "thread (7, 0, 0)", "has ended without the barrier", NULL},
    {"two_barriers", {1, 64, 0}, 719, NULL, "and others at that of line", NULL},
    {"half_a_warp", {1, 48, 0}, 719, NULL, "which does not take part", NULL},
    {"past_the_warp", {1, 32, 0}, 719, NULL, "shuffles past the warp", NULL},
    {"in_a_branch", {1, 32, 0}, 719, NULL, "which is elsewhere", NULL},
    {"not_in_mask", {1, 32, 0}, 719, NULL, "of which it is none", NULL},
    {"masks_differ", {1, 32, 0}, 719, NULL, "or has another mask", NULL},
    {"matrix_of_half_a_warp", {1, 48, 0}, 719, NULL, "in a warp without lane 16", NULL},
    {"copy_without_barrier", {1, 64, 1024}, 719, NULL, "of shared memory", NULL},
    {"into_constants", {1, 1, 0}, 700, NULL, "in the module's constants", NULL},
};
static const struct mistake *mistake;

static bool reported(const struct world *w, const char *kernel, const char *thread, const char *words)
{
    const char *report = w->emulator->report();
    bool good = strstr(report, kernel) && (!thread || strstr(report, thread)) && strstr(report, words);
    if (!good)
        printf("# reported: %s\n", report);
    return good;
}

/* A kernel reads what one in another stream is changing. */
static zr_cu_result missing_wait(const struct world *w)
{
    zr_cu_stream first = stream_of(w), second = stream_of(w);
    zr_cu_address x = numbers_on(w, 64), y = numbers_on(w, 64);
    struct rule_arguments add = {.x = pointer(x), .n = 64, .number = 1},
                          copy = {.x = pointer(y), .y = pointer(x), .n = 64};
    w->emulator->work_ticks(1000);
    MUST(start(w, "add_number", mistake->shape, &add, first));
    MUST(start(w, "copy_numbers", mistake->shape, &copy, second));
    return w->cu->context_synchronize();
}

static zr_cu_result freed_before(const struct world *w)
{
    zr_cu_address x = numbers_on(w, 64), y = numbers_on(w, 64);
    struct rule_arguments arguments = {.x = pointer(x), .y = pointer(y), .n = 3};
    MUST(w->all.mem_free(y));
    MUST(start(w, "read_one", mistake->shape, &arguments, NULL));
    return w->cu->context_synchronize();
}

static zr_cu_result destroyed_stream(const struct world *w)
{
    zr_cu_stream stream = stream_of(w);
    zr_cu_address x = numbers_on(w, 32);
    struct rule_arguments arguments = {.x = pointer(x), .n = 32};
    MUST(w->all.stream_end(stream));
    return start(w, "add_number", mistake->shape, &arguments, stream);
}

static zr_cu_result no_arguments(const struct world *w)
{
    return w->all.launch_kernel(function_of(w, "add_number"), 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

static zr_cu_result run_mistake(const struct world *w)
{
    if (mistake->program) {
        zr_cu_result code = mistake->program(w);
        return reported(w, mistake->kernel, mistake->thread, mistake->words) ? code : VERDICT_BROKEN;
    }
    zr_cu_address x = numbers_on(w, mistake->shape.threads), y = numbers_on(w, mistake->shape.threads);
    struct rule_arguments arguments = {.x = pointer(x), .y = pointer(y), .n = mistake->shape.threads};
    MUST(start(w, mistake->kernel, mistake->shape, &arguments, NULL));
    zr_cu_result code = w->cu->context_synchronize();
    if (!reported(w, mistake->kernel, mistake->thread, mistake->words))
        return VERDICT_BROKEN;
    return w->cu->context_synchronize() == code ? code : VERDICT_BROKEN; /* it stays */
}

/* ---- Memory that is gone --------------------------------------------------------------------------------
 */

static zr_cu_result freed_meanwhile(const struct world *w)
{
    zr_cu_address x = numbers_on(w, 64), y = numbers_on(w, 64);
    struct rule_arguments arguments = {.x = pointer(x), .y = pointer(y), .n = 3};
    w->emulator->lazy_free(true);
    w->emulator->work_ticks(1000);
    MUST(start(w, "read_one", (struct shape){1, 1, 0}, &arguments, NULL));
    MUST(w->all.mem_free(y));
    zr_cu_address again = plain(w, 64 * sizeof(float));
    zr_cu_result code = w->cu->context_synchronize();
    return again == y && reported(w, "read_one", "thread (0, 0, 0)", "after the launch") ? code
                                                                                         : VERDICT_BROKEN;
}

static zr_cu_result unmapped_meanwhile(const struct world *w)
{
    ONE_MAPPED;
    struct rule_arguments arguments = {.x = pointer(w->base + 4096)};
    MUST(fill_at(w, 0, 0));
    w->emulator->work_ticks(1000);
    MUST(start(w, "no_bound", (struct shape){1, 32, 0}, &arguments, NULL));
    MUST(w->cu->unmap(w->base, w->g));
    MUST(map_at(w, 0, 1, memory_of(w, 1)));
    MUST(access_at(w, 0, 1));
    zr_cu_result code = w->cu->context_synchronize();
    return reported(w, "no_bound", NULL, "freed or unmapped after the launch") ? code : VERDICT_BROKEN;
}

static zr_cu_result not_mapped(const struct world *w)
{
    ONE_MAPPED;
    struct rule_arguments arguments = {.x = pointer(w->base + w->g - 16 * sizeof(float))};
    MUST(start(w, "no_bound", (struct shape){1, 32, 0}, &arguments, NULL));
    zr_cu_result code = w->cu->context_synchronize();
    return reported(w, "no_bound", NULL, "where nothing is mapped") ? code : VERDICT_BROKEN;
}

static zr_cu_result only_readable(const struct world *w)
{
    zr_cu_access access = {{ZR_CU_LOCATION_DEVICE, 0}, ZR_CU_ACCESS_READ};
    struct rule_arguments arguments = {.x = pointer(w->base)};
    MUST(map_at(w, 0, 1, memory_of(w, 1)));
    MUST(w->cu->set_access(w->base, w->g, &access, 1));
    MUST(start(w, "no_bound", (struct shape){1, 32, 0}, &arguments, NULL));
    zr_cu_result code = w->cu->context_synchronize();
    return reported(w, "no_bound", NULL, "may only read") ? code : VERDICT_BROKEN;
}

static zr_cu_result programs_own(const struct world *w)
{
    float host[32] = {0};
    struct rule_arguments arguments = {.x = host};
    MUST(start(w, "no_bound", (struct shape){1, 32, 0}, &arguments, NULL));
    zr_cu_result code = w->cu->context_synchronize();
    return reported(w, "no_bound", NULL, "where no device memory is") ? code : VERDICT_BROKEN;
}

static zr_cu_result before_its_pool(const struct world *w)
{
    zr_cu_stream first = stream_of(w), second = stream_of(w);
    zr_cu_address x = 0;
    w->emulator->work_ticks(1000);
    MUST(w->emulator->launch(first, w->base, 0, 0)); /* work that the allocation is behind */
    MUST(w->all.alloc_async(&x, 128, first));
    struct rule_arguments arguments = {.x = pointer(x)};
    MUST(start(w, "no_bound", (struct shape){1, 32, 0}, &arguments, second));
    return w->cu->context_synchronize();
}

/* ---- In order -------------------------------------------------------------------------------------------
 */

/* Memory of every kind: an allocation, a mapping, page-locked, and pageable where the device can. */
static zr_cu_result kinds_of_memory(const struct world *w)
{
    void *locked;
    static float own[64];
    ONE_MAPPED;
    MUST(fill_at(w, 0, 0));
    MUST(w->all.host_alloc(&locked, sizeof own, 0));
    memset(locked, 0, sizeof own);
    w->emulator->attribute(ZR_CU_ATTRIBUTE_PAGEABLE_MEMORY, 1);
    float *kinds[] = {pointer(numbers_on(w, 64)), pointer(w->base), locked, own};
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct rule_arguments arguments = {.x = kinds[i], .n = 64, .number = 0.5f};
        MUST(start(w, "add_number", (struct shape){2, 32, 0}, &arguments, NULL));
    }
    MUST(w->cu->context_synchronize());
    return good(number_at(w, (zr_cu_address)(uintptr_t)kinds[0], 63) == 63.5f &&
                number_at(w, w->base, 63) == 0.5f && ((float *)locked)[63] == 0.5f && own[63] == 0.5f);
}

static zr_cu_result together(const struct world *w)
{
    zr_cu_address x = numbers_on(w, 64), y = numbers_on(w, 256), counter = plain(w, 8), sums = plain(w, 16);
    unsigned long long counted = 0;
    struct rule_arguments arguments = {
        .x = pointer(sums), .y = pointer(y), .counter = (unsigned long long *)(uintptr_t)counter};
    MUST(w->all.fill_now(counter, 0, 8));
    MUST(start(w, "sum_blocks", (struct shape){4, 64, 64 * sizeof(float)}, &arguments, NULL));
    arguments.x = pointer(x);
    MUST(start(w, "exchange", (struct shape){1, 32, 0}, &arguments, NULL));
    bool right = number_at(w, x, 0) == 1 && number_at(w, x, 15) == 1 && number_at(w, x, 16) == 16;
    for (unsigned i = 0; i < 4; i++)
        right = right && number_at(w, sums, i) == (float)(64 * 64 * i + 63 * 32);
    MUST(start(w, "hand_on", (struct shape){1, 32, 0}, &arguments, NULL));
    right = right && number_at(w, x, 0) == 31 && number_at(w, x, 31) == 0;
    MUST(start(w, "count", (struct shape){3, 50, 0}, &arguments, NULL));
    right = right && number_at(w, x, 0) == 31 + 150;
    MUST(w->all.copy_to_host(&counted, counter, 8));
    return good(right && counted == 150 * 149 / 2);
}

static zr_cu_result matrices(const struct world *w)
{
    enum { N = 16 };
    zr_cu_address x = numbers_on(w, 288);
    struct rule_arguments arguments = {.x = pointer(x)};
    bool right = true;
    int m[N][N];
    for (int i = 0; i < N * N; i++)
        m[i / N][i % N] = i * 7 % 13 - 6;
    MUST(start(w, "multiply", (struct shape){1, 32, 0}, &arguments, NULL));
    for (unsigned i = 0; i < N * 8; i++) {
        int product = 0, turned = 0;
        for (unsigned k = 0; k < N; k++) {
            product += m[i / 8][k] * m[k][i % 8];
            turned += m[i / 8][k] * m[i % 8][k];
        }
        right = right && number_at(w, x, i) == (float)product && number_at(w, x, N * 8 + i) == (float)turned;
    }
    for (unsigned lane = 0; lane < 32; lane++)
        right = right && number_at(w, x, 2 * N * 8 + lane) == 1;
    return good(right);
}

static zr_cu_result late_copies(const struct world *w)
{
    zr_cu_address x = numbers_on(w, 96), y = numbers_on(w, 128);
    struct rule_arguments arguments = {.x = pointer(x), .y = pointer(y), .n = 128};
    MUST(start(w, "copy_late", (struct shape){1, 32, 1024}, &arguments, NULL));
    return good(number_at(w, x, 31) == 125 && isnan(number_at(w, x, 32 + 31)) &&
                number_at(w, x, 64 + 31) == 0);
}

/* A kernel reads what another stream's makes, behind its event: for no seed stale numbers, or a report. */
static zr_cu_result waited_for(const struct world *w)
{
    zr_cu_stream first = stream_of(w), second = stream_of(w);
    zr_cu_address x = numbers_on(w, 64), y = plain(w, 64 * sizeof(float));
    zr_cu_event made;
    unsigned stale = 0;
    w->cu->event_create(&made, ZR_CU_EVENT_DISABLE_TIMING);
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        struct rule_arguments add = {.x = pointer(x), .n = 64, .number = 1},
                              copy = {.x = pointer(y), .y = pointer(x), .n = 64};
        w->emulator->random_ticks(seed);
        start(w, "add_number", (struct shape){1, 64, 0}, &add, first);
        w->cu->event_record(made, first);
        w->all.stream_wait_event(second, made, 0);
        start(w, "copy_numbers", (struct shape){1, 64, 0}, &copy, second);
        w->cu->context_synchronize();
        stale += number_at(w, y, 0) != (float)seed;
    }
    return good(stale == 0);
}

static zr_cu_result captured(const struct world *w)
{
    zr_cu_stream stream = stream_of(w);
    zr_cu_address x = numbers_on(w, 64);
    zr_cu_graph graph;
    zr_cu_graph_exec exec;
    struct rule_arguments arguments = {.x = pointer(x), .n = 64, .number = 2};
    MUST(w->all.capture_begin(stream, ZR_CU_CAPTURE_GLOBAL));
    MUST(start(w, "add_number", (struct shape){1, 64, 0}, &arguments, stream));
    MUST(w->all.capture_end(stream, &graph));
    bool before = number_at(w, x, 5) == 5;
    MUST(w->all.graph_instantiate(&exec, graph, 0));
    MUST(w->all.graph_destroy(graph));
    for (int i = 0; i < 3; i++)
        MUST(w->all.graph_launch(exec, stream));
    MUST(w->cu->stream_synchronize(stream));
    MUST(w->all.graph_exec_destroy(exec));
    return good(before && number_at(w, x, 5) == 11);
}

/* ---- Modules and launches -------------------------------------------------------------------------------
 */

static zr_cu_result no_images(const struct world *w)
{
    zr_cu_module module;
    return good(w->all.module_load(&module, "\x7f"
                                            "ELF") == ZR_CU_NO_BINARY &&
                w->all.module_load(&module, "zr emulated image /nowhere.image\n") == ZR_CU_INVALID_IMAGE);
}

static zr_cu_result libraries(const struct world *w)
{
    zr_cu_library library;
    zr_cu_kernel kernel;
    zr_cu_function function;
    zr_cu_address x = numbers_on(w, 32);
    struct rule_arguments arguments = {.x = pointer(x), .n = 32, .number = 1};
    void *list[] = {&arguments};
    zr_cu_launch_config config = {1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};
    MUST(w->all.library_load(&library, image_line(), NULL, NULL, 0, NULL, NULL, 0));
    MUST(w->all.library_kernel(&kernel, library, "add_number"));
    MUST(w->all.kernel_function(&function, kernel));
    MUST(w->all.launch_config(&config, function, list, NULL));
    MUST(w->all.library_unload(library)); /* the launch keeps it */
    bool ran = number_at(w, x, 31) == 32;
    return ran ? w->all.launch_config(&config, function, list, NULL) : VERDICT_BROKEN;
}

static zr_cu_result no_such_name(const struct world *w)
{
    zr_cu_module module;
    zr_cu_function function;
    MUST(w->all.module_load(&module, image_line()));
    return w->all.module_function(&function, module, "no_such_kernel");
}

static zr_cu_result after_unload(const struct world *w)
{
    zr_cu_module module;
    zr_cu_function function;
    int most;
    MUST(w->all.module_load(&module, image_line()));
    MUST(w->all.module_function(&function, module, "add_number"));
    MUST(w->all.module_unload(module));
    return ALL_REFUSED(w->all.module_function(&function, module, "add_number"), w->all.module_unload(module),
                       w->all.function_get(&most, ZR_CU_FUNCTION_THREADS_MAX, function));
}

static zr_cu_result odd_launches(const struct world *w)
{
    struct rule_arguments a = {0};
    return ALL_REFUSED(start(w, "add_number", (struct shape){0, 32, 0}, &a, NULL),
                       start(w, "add_number", (struct shape){1, 0, 0}, &a, NULL),
                       start(w, "add_number", (struct shape){1, 257, 0}, &a, NULL),
                       start(w, "exchange", (struct shape){1, 65, 0}, &a, NULL),
                       start(w, "add_number", (struct shape){1, 32, (48 << 10) + 1}, &a, NULL));
}

/* More shared memory than 48 KB is asked for; more than a block can have is not there. */
static zr_cu_result much_shared(const struct world *w)
{
    zr_cu_function function = function_of(w, "past_dynamic");
    zr_cu_address x = numbers_on(w, 32);
    struct rule_arguments arguments = {.x = pointer(x), .n = 32};
    int bytes = 0, threads = 0;
    MUST(w->all.function_set(function, ZR_CU_FUNCTION_DYNAMIC_SHARED_MAX, 100 << 10));
    MUST(w->all.function_get(&bytes, ZR_CU_FUNCTION_DYNAMIC_SHARED_MAX, function));
    MUST(w->all.function_get(&threads, ZR_CU_FUNCTION_THREADS_MAX, function));
    MUST(start(w, "past_dynamic", (struct shape){1, 32, 100 << 10}, &arguments, NULL));
    MUST(w->cu->context_synchronize());
    if (bytes != 100 << 10 || threads != 256)
        return VERDICT_BROKEN;
    return w->all.function_set(function, ZR_CU_FUNCTION_DYNAMIC_SHARED_MAX, 300 << 10);
}

/* A kernel is loaded by its first launch, which waits for the context. */
static zr_cu_result loaded_late(const struct world *w)
{
    zr_cu_address x = numbers_on(w, 32);
    struct rule_arguments arguments = {.x = pointer(x), .n = 32};
    uint64_t waits[4] = {w->emulator->host_waits()};
    w->emulator->late_loading(true);
    for (unsigned i = 1; i < 4; i++) {
        MUST(start(w, i < 3 ? "add_number" : "exchange", (struct shape){1, 32, 0}, &arguments, NULL));
        waits[i] = w->emulator->host_waits();
    }
    return good(waits[1] == waits[0] + 1 && waits[2] == waits[1] && waits[3] == waits[2] + 1);
}

static const struct rule rules[] = {
    {"a kernel is loaded late, and its first launch waits", "guide, Lazy Loading", loaded_late, ZR_CU_SUCCESS,
     EMULATOR_ONLY},
    {"memory that is freed while the kernel runs", "MEM cuMemFree", freed_meanwhile, ZR_CU_ILLEGAL_ADDRESS,
     EMULATOR_ONLY},
    {"memory that is replaced while the kernel runs", "PyTorch #196258", unmapped_meanwhile,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"a place past a mapping", "VA cuMemMap", not_mapped, ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"writing where a device may read", "VA cuMemSetAccess", only_readable, ZR_CU_ILLEGAL_ADDRESS,
     EMULATOR_ONLY},
    {"the program's own memory", "guide, Heterogeneous Memory Management", programs_own,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"a pool's memory before its stream has it", "MALLOC__ASYNC cuMemAllocAsync", before_its_pool,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"memory of every kind is fine", "UNIFIED", kinds_of_memory, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"barriers, shuffles, votes, atomics, shared memory", "guide, C++ Language Extensions", together,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"products of matrices by a warp, in PTX's fragments", "PTX, mma.m16n8k16, ldmatrix", matrices,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"copies that come when they are waited for", "PTX, cp.async", late_copies, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"streams that wait", "STREAM cuStreamWaitEvent", waited_for, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"a captured kernel", "GRAPH cuGraphLaunch", captured, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"images: only what has kernels for the device", "MODULE cuModuleLoadData", no_images, ZR_CU_SUCCESS,
     EMULATOR_ONLY},
    {"libraries live for their launches", "LIBRARY cuLibraryUnload", libraries, ZR_CU_INVALID_HANDLE,
     EMULATOR_ONLY},
    {"functions: only those there are", "MODULE cuModuleGetFunction", no_such_name, ZR_CU_NOT_FOUND,
     EMULATOR_ONLY},
    {"none of a module that is unloaded", "MODULE cuModuleUnload", after_unload, ZR_CU_INVALID_HANDLE,
     EMULATOR_ONLY},
    {"launches: shapes that there are", "EXEC cuLaunchKernel", odd_launches, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
    {"shared memory that was asked for", "EXEC cuFuncSetAttribute", much_shared, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
};

int main(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* a first launch that waits would stand for a missing wait */
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes && !cuda_on_card(); i++) {
        const struct rule rule = {.program = run_mistake};
        mistake = &mistakes[i];
        if (zr_cuda_driver_path_set(cuda_emulator_path()) == ZR_OK)
            tap_is(verdict_of(&rule, false), mistake->code, "%s: %s", mistake->kernel, mistake->words);
    }
    return rules_run(rules, sizeof rules / sizeof *rules);
}
