/* backends.c: the public creation of backends whose memory zrd may lend: see zr.h and client.h. */
#include "alloc/backend/backend.h"
#include "alloc/service/client/client.h"

zr_result zr_backend_host_create(zr_backend **out, const struct zr_host_options *options)
{
    return zr_backend_host_open(out, options, zr_service_find);
}

zr_result zr_backend_cuda_create(zr_backend **out, const struct zr_cuda_options *options)
{
    return zr_backend_cuda_open(out, options, zr_service_find);
}
