/* lifecycle.c: the library's start, fork, and the ends of contexts and devices. See cuda.h. */
#define _GNU_SOURCE
#include "alloc/preload/cuda/cuda.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/preload/cuda/torch.h"

/* ---- The ends of contexts and devices ------------------------------------------------------------------ */

/* Frees the context's blocks, because the driver frees all memory of a destroyed context. */
zr_cu_result cuCtxDestroy_v2(zr_cu_context context)
{
    struct zr_cuda_block block;
    struct zr_cuda_call call = {0};
    if (zr_cuda_forked() || !context || !zr_cuda_find_driver())
        return ZR_CUDA_PASS(context_end, context);
    bool ours = zr_cuda_context_known(context);
    while (ours && zr_cuda_blocks_take_any(context, NULL, &block)) {
        zr_cuda_enter_no_context(&call);
        if (block.arena)
            zr_cuda_block_end(&block, true, NULL);
        else
            zr_import_release(block.device->backend, block.import);
        zr_cuda_leave(&call);
    }
    if (ours)
        zr_cuda_streams_forget(context);
    zr_cu_result code = ZR_CUDA_PASS(context_end, context);
    if (ours && code == ZR_CU_SUCCESS)
        zr_cuda_context_forget(context);
    return code;
}

/* Ends everything that uses the device's backend. */
static void end_users(struct zr_cuda_device *device)
{
    struct zr_cuda_block block;
    while (zr_cuda_blocks_take_any(NULL, device, &block))
        if (!block.arena)
            zr_import_release(device->backend, block.import);
        else if (block.pool)
            zr_cuda_pool_count(block.pool, block.bytes, false);
    zr_cuda_deferred_forget(device);
    zr_torch_device_end(device);
    zr_cuda_streams_forget(device->primary);
}

zr_cu_result cuDevicePrimaryCtxReset_v2(zr_cu_device device)
{
    zr_cuda_device_end(device, end_users);
    return ZR_CUDA_PASS(primary_reset, device);
}

/* ---- Start and fork ------------------------------------------------------------------------------------ */

/* Resets locks that other threads of the parent may have held. The child must not use the parent's CUDA
 * state. */
static void in_child(void)
{
    zr_cuda_devices_forked();
    zr_cuda_thunks_forked();
    zr_cuda_tags_forked();
    zr_cuda_blocks_forked();
    zr_cuda_pools_forked();
    zr_cuda_streams_forked();
    zr_cuda_ipc_forked();
    zr_cuda_figures_forked();
}

static __attribute__((constructor)) void start(void)
{
    zr_assert_handler_set(zr_cuda_report_broken);
    pthread_atfork(NULL, NULL, in_child);
    if (zr_option_get(ZR_OPTION_VERBOSE))
        zr_say("libzr_cuda.so serves process %ld (%s)", (long)getpid(), program_invocation_name);
    zr_cuda_paths_start();
}
