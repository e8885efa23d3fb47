/* launch.c: the emulated driver's modules, functions and launches. A module's image is the line
 * "zr emulated image PATH": a shared object of .cu sources compiled for the processor
 * (kernels/cuda/device_processor.h). See emulator.h. */
#define _GNU_SOURCE
#include "tests/emulators/cuda/kernels.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a device of compute capability 9.0. */
enum { THREADS_MAX = 1024, BLOCK_Z_MAX = 64, GRID_YZ_MAX = 65535 };
enum { SHARED_WITHOUT_ASKING = 48 << 10, SHARED_MAX = 227 << 10 };

struct zr_cu_function_st {
    const struct zr_device_kernel *kernel;
    struct zr_cu_module_st *module;
    size_t shared_most_bytes;
    unsigned loaded; /* a bit for each device where it was launched */
};

struct zr_cu_module_st {
    struct zr_cu_module_st *next;
    struct zr_cu_context_st *context; /* NULL: a library, for every context */
    void *object;
    const struct zr_device_image *image;
    size_t users_count; /* the program, and launches that have not ended */
    bool unloaded;
    size_t functions_count;
    struct zr_cu_function_st functions[];
};

static struct zr_cu_module_st *modules;
static char report[512];

const char *emu_launch_report(void)
{
    return report;
}

void emu_report(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(report, sizeof report, format, list);
    va_end(list);
    fprintf(stderr, "emulator: %s\n", report);
}

/* ---- Modules ------------------------------------------------------------------------------------------- */

static void module_drop(struct zr_cu_module_st *module)
{
    struct zr_cu_module_st **link = &modules;
    if (--module->users_count)
        return;
    while (*link != module)
        link = &(*link)->next;
    *link = module->next;
    dlclose(module->object);
    free(module);
}

static zr_cu_result load(struct zr_cu_module_st **out, const void *bytes, struct zr_cu_context_st *context)
{
    char path[PATH_MAX];
    if (!out || !bytes)
        return ZR_CU_INVALID_VALUE;
    if (sscanf(bytes, "zr emulated image %4095[^\n]", path) != 1)
        return ZR_CU_NO_BINARY;
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct zr_device_image *image = object ? dlsym(object, "zr_device_image") : NULL;
    if (!image || image->version != ZR_DEVICE_IMAGE_VERSION) {
        fprintf(stderr, "emulator: no image of kernels: %s\n", object ? path : dlerror());
        if (object)
            dlclose(object);
        return ZR_CU_INVALID_IMAGE;
    }
    size_t count = (size_t)(image->kernels_end - image->kernels);
    struct zr_cu_module_st *made = emu_must(calloc(1, sizeof *made + count * sizeof *made->functions));
    made->next = modules;
    made->context = context;
    made->object = object;
    made->image = image;
    made->users_count = 1;
    made->functions_count = count;
    for (size_t i = 0; i < count; i++)
        made->functions[i] = (struct zr_cu_function_st){&image->kernels[i], made, SHARED_WITHOUT_ASKING, 0};
    *out = modules = made;
    return ZR_CU_SUCCESS;
}

static bool no_module(const struct zr_cu_module_st *module, bool library)
{
    const struct zr_cu_module_st *each = modules;
    while (each && each != module)
        each = each->next;
    return !each || each->unloaded || !each->context != library ||
           (each->context && each->context != emu_current());
}

static zr_cu_result unload(struct zr_cu_module_st *module, bool library)
{
    if (no_module(module, library))
        return ZR_CU_INVALID_HANDLE;
    module->unloaded = true;
    module_drop(module);
    return ZR_CU_SUCCESS;
}

static zr_cu_result find(struct zr_cu_function_st **out, struct zr_cu_module_st *module, const char *name,
                         bool library)
{
    if (!out || !name)
        return ZR_CU_INVALID_VALUE;
    if (no_module(module, library))
        return ZR_CU_INVALID_HANDLE;
    for (size_t i = 0; i < module->functions_count; i++)
        if (strcmp(module->functions[i].kernel->name, name) == 0) {
            *out = &module->functions[i];
            return ZR_CU_SUCCESS;
        }
    return ZR_CU_NOT_FOUND;
}

static bool no_function(const struct zr_cu_function_st *function)
{
    const struct zr_cu_module_st *each = modules;
    while (each && (function < each->functions || function >= each->functions + each->functions_count ||
                    each->unloaded))
        each = each->next;
    return !each || (each->context && each->context != emu_current());
}

PUBLIC zr_cu_result cuModuleLoadData(zr_cu_module *out, const void *image)
{
    zr_cu_result code = emu_enter(EMU_module_load, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? load(out, image, emu_current()) : code);
}

PUBLIC zr_cu_result cuModuleUnload(zr_cu_module module)
{
    zr_cu_result code = emu_enter(EMU_module_unload, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? unload(module, false) : code);
}

PUBLIC zr_cu_result cuModuleGetFunction(zr_cu_function *out, zr_cu_module module, const char *name)
{
    zr_cu_result code = emu_enter(EMU_module_function, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? find(out, module, name, false) : code);
}

/* A library is a module of no context; options are for what is compiled when it is loaded. */
PUBLIC zr_cu_result cuLibraryLoadData(zr_cu_library *out, const void *image, void *jit_options,
                                      void **jit_values, unsigned int jit_count, void *options, void **values,
                                      unsigned int count)
{
    zr_cu_result code = emu_enter(EMU_library_load, EMU_INIT);
    (void)jit_options, (void)jit_values, (void)options, (void)values;
    if (code == ZR_CU_SUCCESS && (jit_count || count))
        code = ZR_CU_NOT_SUPPORTED;
    return emu_leave(code == ZR_CU_SUCCESS ? load((struct zr_cu_module_st **)out, image, NULL) : code);
}

PUBLIC zr_cu_result cuLibraryUnload(zr_cu_library library)
{
    zr_cu_result code = emu_enter(EMU_library_unload, EMU_INIT);
    return emu_leave(code == ZR_CU_SUCCESS ? unload((struct zr_cu_module_st *)library, true) : code);
}

PUBLIC zr_cu_result cuLibraryGetKernel(zr_cu_kernel *out, zr_cu_library library, const char *name)
{
    zr_cu_result code = emu_enter(EMU_library_kernel, EMU_INIT);
    return emu_leave(code == ZR_CU_SUCCESS ? find((struct zr_cu_function_st **)out,
                                                  (struct zr_cu_module_st *)library, name, true)
                                           : code);
}

PUBLIC zr_cu_result cuKernelGetFunction(zr_cu_function *out, zr_cu_kernel kernel)
{
    zr_cu_result code = emu_enter(EMU_kernel_function, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && (!out || no_function((struct zr_cu_function_st *)kernel)))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS)
        *out = (struct zr_cu_function_st *)kernel;
    return emu_leave(code);
}

/* ---- Functions ----------------------------------------------------------------------------------------- */

PUBLIC zr_cu_result cuFuncGetAttribute(int *value, zr_cu_function_attribute which, zr_cu_function function)
{
    zr_cu_result code = emu_enter(EMU_function_get, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && no_function(function))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && !value)
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && which == ZR_CU_FUNCTION_THREADS_MAX)
        *value = (int)function->kernel->threads_max;
    else if (code == ZR_CU_SUCCESS && which == ZR_CU_FUNCTION_DYNAMIC_SHARED_MAX)
        *value = (int)function->shared_most_bytes;
    else if (code == ZR_CU_SUCCESS)
        code = ZR_CU_NOT_SUPPORTED;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuFuncSetAttribute(zr_cu_function function, zr_cu_function_attribute which, int value)
{
    zr_cu_result code = emu_enter(EMU_function_set, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && no_function(function))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS &&
        (which != ZR_CU_FUNCTION_DYNAMIC_SHARED_MAX || value < 0 || value > SHARED_MAX))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        function->shared_most_bytes = (size_t)value;
    return emu_leave(code);
}

/* ---- Launches ------------------------------------------------------------------------------------------ */

void emu_launch_hold(struct emu_launch *launch)
{
    launch->users_count++;
}

void emu_launch_drop(struct emu_launch *launch)
{
    if (--launch->users_count)
        return;
    module_drop(launch->module);
    free(launch->arguments);
    free(launch);
}

/* "kernel NAME blocks.x .y .z threads.x .y .z shared-bytes argument-in-hexadecimal" */
void emu_launch_write(const struct emu_launch *launch, FILE *file)
{
    const unsigned char *argument = launch->arguments;
    fprintf(file, "kernel %s %u %u %u %u %u %u %zu ", launch->kernel->name, launch->blocks.x,
            launch->blocks.y, launch->blocks.z, launch->threads.x, launch->threads.y, launch->threads.z,
            launch->shared_bytes);
    for (size_t i = 0; i < launch->kernel->arguments_bytes; i++)
        fprintf(file, "%02x", argument[i]);
    fputc('\n', file);
}

static bool odd_shape(const zr_cu_launch_config *c, const struct zr_cu_function_st *function)
{
    uint64_t threads = (uint64_t)c->block_x * c->block_y;
    return !c->grid_x || !c->grid_y || !c->grid_z || !c->block_x || !c->block_y || !c->block_z ||
           c->grid_x > INT_MAX || c->grid_y > GRID_YZ_MAX || c->grid_z > GRID_YZ_MAX ||
           c->block_x > THREADS_MAX || c->block_y > THREADS_MAX || c->block_z > BLOCK_Z_MAX ||
           threads * c->block_z > function->kernel->threads_max ||
           c->shared_bytes > function->shared_most_bytes;
}

static zr_cu_result refuse(zr_cu_result code, const struct zr_cu_function_st *function, const char *words)
{
    emu_report("kernel %s is not launched: %s", function->kernel->name, words);
    return code;
}

/* CUDA C++ Programming Guide, Lazy Loading: to load a kernel may require the context to be synchronised. */
static zr_cu_result load_first(struct zr_cu_function_st *function, struct zr_cu_context_st *context)
{
    unsigned device = 1u << context->device;
    if (!emu.lazy || function->loaded & device)
        return ZR_CU_SUCCESS;
    function->loaded |= device;
    emu_host_waits(EMU_launch_kernel);
    return emu_wait_until(context, context->last);
}

static zr_cu_result launch(const zr_cu_launch_config *c, struct zr_cu_function_st *function, void **arguments,
                           void **extra)
{
    struct zr_cu_context_st *context = emu_current();
    zr_cu_stream stream = c ? c->stream : NULL;
    zr_cu_result code;
    if (!c || extra || c->attributes_count)
        return ZR_CU_INVALID_VALUE;
    if (no_function(function))
        return ZR_CU_INVALID_HANDLE;
    if (emu_no_stream(&stream, context))
        return refuse(ZR_CU_INVALID_HANDLE, function, "its stream is destroyed, or another context's");
    if (!arguments || !arguments[0])
        return refuse(ZR_CU_INVALID_VALUE, function, "it takes one argument, and gets none");
    if (odd_shape(c, function))
        return refuse(ZR_CU_INVALID_VALUE, function, "there is no grid or block of that shape");
    struct emu_launch *made = emu_must(calloc(1, sizeof *made));
    *made = (struct emu_launch){.users_count = 1,
                                .module = function->module,
                                .kernel = function->kernel,
                                .blocks = {c->grid_x, c->grid_y, c->grid_z},
                                .threads = {c->block_x, c->block_y, c->block_z},
                                .shared_bytes = c->shared_bytes,
                                .arguments = emu_must(malloc(function->kernel->arguments_bytes))};
    made->module->users_count++;
    memcpy(made->arguments, arguments[0], function->kernel->arguments_bytes);
    struct emu_work work = {.kind = EMU_KERNEL, .launch = made};
    if (!emu_captured(context, stream, &work, &code)) {
        code = load_first(function, context);
        if (code == ZR_CU_SUCCESS)
            emu_submit(context, stream, work);
    }
    emu_launch_drop(made);
    return code;
}

PUBLIC zr_cu_result cuLaunchKernelEx(const zr_cu_launch_config *config, zr_cu_function function,
                                     void **arguments, void **extra)
{
    zr_cu_result code = emu_enter(EMU_launch_config, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? launch(config, function, arguments, extra) : code);
}

PUBLIC zr_cu_result cuLaunchKernel(zr_cu_function function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, zr_cu_stream stream,
                                   void **arguments, void **extra)
{
    zr_cu_launch_config config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                                  block_z, shared_bytes, stream, NULL,    0};
    zr_cu_result code = emu_enter(EMU_launch_kernel, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? launch(&config, function, arguments, extra) : code);
}

zr_cu_result emu_kernel_run(struct zr_cu_context_st *context, const struct emu_work *work)
{
    struct emu_execution e = {.context = context,
                              .launch = work->launch,
                              .image = work->launch->module->image,
                              .gone = work->gone,
                              .start = work->start,
                              .end = work->end,
                              .pageable = emu_attribute_of(ZR_CU_ATTRIBUTE_PAGEABLE_MEMORY)};
    zr_cu_result code = emu_threads_run(&e);
    emu_reach_end();
    return code;
}

void emu_trace_begin(const struct emu_settings *settings)
{
    (void)settings;
}

void emu_trace(enum emu_traced what, int device, zr_cu_address address, size_t bytes)
{
    (void)what, (void)device, (void)address, (void)bytes;
}

void emu_trace_end(void)
{
}

void emu_trace_refused(int machine_device, size_t bytes, size_t free_bytes)
{
    (void)machine_device, (void)bytes, (void)free_bytes;
}
