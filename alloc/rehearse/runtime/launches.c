/* launches.c: modules, functions and launches of a driver whose kernels do nothing: a launch is checked and
 * takes its time. The kernels' part of alloc/rehearse/driver/inside.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>

/* A module, library, kernel or function is an address that is not NULL and that nothing reads. */
static char handle;

void emu_launch_hold(struct emu_launch *launch)
{
    (void)launch;
}

void emu_launch_drop(struct emu_launch *launch)
{
    (void)launch;
}

void emu_launch_write(const struct emu_launch *launch, FILE *file)
{
    (void)launch;
    fputs("kernel\n", file);
}

zr_cu_result emu_kernel_run(struct zr_cu_context_st *context, const struct emu_work *work)
{
    (void)context, (void)work;
    return ZR_CU_SUCCESS;
}

const char *emu_launch_report(void)
{
    return "";
}

void emu_guard(zr_cu_address address, size_t bytes)
{
    (void)address, (void)bytes;
}

static zr_cu_result make(enum emu_call call, enum emu_need need, void **out, const void *of)
{
    zr_cu_result code = emu_enter(call, need);
    if (code == ZR_CU_SUCCESS && (!out || !of))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        *out = &handle;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuModuleLoadData(zr_cu_module *out, const void *image)
{
    return make(EMU_module_load, EMU_CONTEXT, (void **)out, image);
}

PUBLIC zr_cu_result cuModuleLoad(zr_cu_module *out, const char *path);
PUBLIC zr_cu_result cuModuleLoad(zr_cu_module *out, const char *path)
{
    return make(EMU_module_load, EMU_CONTEXT, (void **)out, path);
}

PUBLIC zr_cu_result cuModuleUnload(zr_cu_module module)
{
    return make(EMU_module_unload, EMU_CONTEXT, &(void *){NULL}, module);
}

PUBLIC zr_cu_result cuModuleGetFunction(zr_cu_function *out, zr_cu_module module, const char *name)
{
    return make(EMU_module_function, EMU_CONTEXT, (void **)out, name ? module : NULL);
}

PUBLIC zr_cu_result cuLibraryLoadData(zr_cu_library *out, const void *image, void *jit_options,
                                      void **jit_values, unsigned int jit_count, void *options, void **values,
                                      unsigned int count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return make(EMU_library_load, EMU_INIT, (void **)out, image);
}

PUBLIC zr_cu_result cuLibraryUnload(zr_cu_library library)
{
    return make(EMU_library_unload, EMU_INIT, &(void *){NULL}, library);
}

PUBLIC zr_cu_result cuLibraryGetKernel(zr_cu_kernel *out, zr_cu_library library, const char *name)
{
    return make(EMU_library_kernel, EMU_INIT, (void **)out, name ? library : NULL);
}

PUBLIC zr_cu_result cuKernelGetFunction(zr_cu_function *out, zr_cu_kernel kernel)
{
    return make(EMU_kernel_function, EMU_CONTEXT, (void **)out, kernel);
}

/* An unknown attribute of a kernel that nothing has compiled: the least that a kernel can need. */
PUBLIC zr_cu_result cuFuncGetAttribute(int *value, zr_cu_function_attribute which, zr_cu_function function)
{
    zr_cu_result code = emu_enter(EMU_function_get, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS && (!value || !function))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        *value = which == ZR_CU_FUNCTION_THREADS_MAX ? emu_attribute_of(1) : 0;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuFuncSetAttribute(zr_cu_function function, zr_cu_function_attribute which, int value)
{
    (void)which, (void)value;
    return make(EMU_function_set, EMU_CONTEXT, &(void *){NULL}, function);
}

/* An estimate: each thread of a kernel that is not known reads and writes 16 bytes, the widest access there
 * is. */
#define BYTES_OF_THREAD 32.0

/* Nothing is carried out, but the stream has the work's time. */
static zr_cu_result work_in(zr_cu_stream stream, struct emu_work work)
{
    struct zr_cu_context_st *context = emu_current();
    zr_cu_result code;
    work.kind = EMU_KERNEL;
    if (emu_no_stream(&stream, context))
        return ZR_CU_INVALID_HANDLE;
    if (emu_captured(context, stream, &work, &code))
        return code;
    emu_submit(context, stream, work);
    return emu_launch_queued(context, emu_stream_end(context, stream));
}

static zr_cu_result launch(enum emu_call call, const zr_cu_launch_config *c, zr_cu_function function)
{
    const zr_cu_attribute threads_max = 1, shared_optin = 97;
    zr_cu_result code = emu_enter(call, EMU_CONTEXT);
    if (code != ZR_CU_SUCCESS)
        return emu_leave(code);
    zr_cu_stream stream = c ? c->stream : NULL;
    double blocks = c ? (double)c->grid_x * c->grid_y * c->grid_z : 0;
    uint64_t threads = c ? (uint64_t)c->block_x * c->block_y * c->block_z : 0;
    if (!function || !c || !c->grid_x || !c->grid_y || !c->grid_z || threads == 0 ||
        threads > (uint64_t)emu_attribute_of(threads_max) ||
        c->shared_bytes > (unsigned)emu_attribute_of(shared_optin))
        code = ZR_CU_INVALID_VALUE;
    return emu_leave(
        code == ZR_CU_SUCCESS
            ? work_in(stream, (struct emu_work){.moved_bytes = BYTES_OF_THREAD * (double)threads * blocks})
            : code);
}

/* Work of a library: see runtime.h. */
zr_cu_result cuRehearseWork(zr_cu_stream stream, double moved_bytes, double operations, int operand_bits);
PUBLIC zr_cu_result cuRehearseWork(zr_cu_stream stream, double moved_bytes, double operations,
                                   int operand_bits)
{
    zr_cu_result code = emu_enter(EMU_launch, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? work_in(stream, (struct emu_work){.moved_bytes = moved_bytes,
                                                                               .operations = operations,
                                                                               .operand_bits = operand_bits})
                                           : code);
}

/* See runtime.h. */
bool cuRehearseMade(zr_cu_address to, zr_cu_address from, size_t bytes);
PUBLIC bool cuRehearseMade(zr_cu_address to, zr_cu_address from, size_t bytes)
{
    zr_cu_result code = emu_enter(EMU_pointer_attribute, EMU_NOTHING);
    bool made = code == ZR_CU_SUCCESS && emu_device_address(from) && !emu_device_address(to) &&
                !emu_known_still(from, bytes);
    if (made)
        emu_account_read(bytes);
    emu_leave(code);
    return made;
}

void cuRehearseLibrary(zr_cu_device device, int64_t bytes, bool refused);
PUBLIC void cuRehearseLibrary(zr_cu_device device, int64_t bytes, bool refused)
{
    if (emu_enter(EMU_context_get, EMU_INIT) == ZR_CU_SUCCESS && !emu_no_device(device))
        emu_account_library(device, bytes, refused);
    emu_leave(ZR_CU_SUCCESS);
}

/* What the bytes read as, for zr_rehearse_values.py. False: no program wrote and nothing computed them. */
bool cuRehearsePeek(zr_cu_address address, void *out, size_t bytes);
PUBLIC bool cuRehearsePeek(zr_cu_address address, void *out, size_t bytes)
{
    bool known = emu_enter(EMU_pointer_attribute, EMU_CONTEXT) == ZR_CU_SUCCESS &&
                 emu_place(address, bytes, emu_current(), EMU_READS | EMU_COPIES) == EMU_MAPPED &&
                 emu_known_value(address, bytes);
    if (known) {
        emu_read(address, out, bytes);
        emu_known_fill(address, out, bytes, -1);
    }
    emu_leave(ZR_CU_SUCCESS);
    return known;
}

/* The bytes, which a kernel makes, read as these (data NULL: as the pattern) until the program writes there.
 */
static void compute(zr_cu_address address, const void *data, size_t bytes, const uint64_t *pattern)
{
    if (emu_enter(EMU_pointer_attribute, EMU_CONTEXT) == ZR_CU_SUCCESS &&
        emu_place(address, bytes, emu_current(), EMU_WRITES | EMU_COPIES) == EMU_MAPPED) {
        if (data)
            emu_write(address, data, bytes);
        emu_known_compute(address, bytes, pattern);
    }
    emu_leave(ZR_CU_SUCCESS);
}

void cuRehearsePoke(zr_cu_address address, const void *data, size_t bytes);
PUBLIC void cuRehearsePoke(zr_cu_address address, const void *data, size_t bytes)
{
    compute(address, data, bytes, NULL);
}

/* An element of at most eight bytes, again and again up to eight. */
void cuRehearseUniform(zr_cu_address address, size_t bytes, uint64_t pattern);
PUBLIC void cuRehearseUniform(zr_cu_address address, size_t bytes, uint64_t pattern)
{
    compute(address, NULL, bytes, &pattern);
}

void cuRehearseCount(int64_t count);
PUBLIC void cuRehearseCount(int64_t count)
{
    emu_count_expected = count;
}

PUBLIC zr_cu_result cuLaunchKernelEx(const zr_cu_launch_config *config, zr_cu_function function,
                                     void **arguments, void **extra)
{
    (void)arguments, (void)extra;
    return launch(EMU_launch_config, config, function);
}

PUBLIC zr_cu_result cuLaunchKernel(zr_cu_function function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, zr_cu_stream stream,
                                   void **arguments, void **extra)
{
    zr_cu_launch_config config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                                  block_z, shared_bytes, stream, NULL,    0};
    (void)arguments, (void)extra;
    return launch(EMU_launch_kernel, &config, function);
}
