/* backend_cuda_absent.c: replaces the CUDA backend and driver in a build with CUDA=0. Programs link, and get
 * an error that says what to do. */
#include "alloc/backend/backend.h"
#include "alloc/backend/lender.h"
#include "alloc/backend/cuda_driver.h"
#include "alloc/base/error.h"

static zr_result absent(void)
{
    return zr_fail(ZR_ERR_UNAVAILABLE,
                   "this zr was built with CUDA=0: build it without CUDA=0; no toolkit is needed");
}

zr_result zr_backend_cuda_open(zr_backend **out, const struct zr_cuda_options *options, zr_lender_find *find)
{
    (void)options, (void)find;
    if (out)
        *out = NULL;
    return absent();
}

zr_result zr_cuda_device_key(int ordinal, char out[ZR_LENDER_KEY_BYTES])
{
    (void)ordinal, (void)out;
    return absent();
}

zr_result zr_cuda_device_find(const char *text, int *ordinal, char key[ZR_LENDER_KEY_BYTES])
{
    (void)text, (void)ordinal, (void)key;
    return absent();
}

zr_result zr_cuda_driver_get(const struct zr_cuda_driver **out)
{
    *out = NULL;
    return absent();
}

zr_result zr_cuda_driver_path_set(const char *file)
{
    (void)file;
    return absent();
}

zr_result zr_cuda_driver_find(const char *name, void **out)
{
    (void)name;
    *out = NULL;
    return absent();
}

zr_result zr_cuda_error(zr_cu_result code, zr_result otherwise, const char *format, ...)
{
    (void)code, (void)otherwise, (void)format;
    return absent();
}
