/* own_stream.c: a library that is linked with the driver and works in the calling thread's own default
 * stream. */
#include "alloc/preload/cuda/driver_api.h"

zr_cu_result cuMemsetD8Async_ptsz(zr_cu_address address, unsigned char value, size_t bytes,
                                  zr_cu_stream stream);

zr_cu_result fill_in_own_stream(zr_cu_address address, unsigned char value, size_t bytes,
                                zr_cu_stream stream);
zr_cu_result fill_in_own_stream(zr_cu_address address, unsigned char value, size_t bytes, zr_cu_stream stream)
{
    return cuMemsetD8Async_ptsz(address, value, bytes, stream);
}
