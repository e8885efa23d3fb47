/* device.c: what communicators do to tensors that the host does not see: copies and sums are the kernels', in
 * the stream that the engine's kernels are in. Operations run in the call that submits them, so that they
 * come after what was asked for before, and nothing else is needed. Below local.c and null.c. */
#include <string.h>

#include "zero/comm/comm.h"

zr_result zr_comm_context(struct zr_comm *comm, struct zr_kernel_context **out)
{
    const struct zr_kernels *kernels = comm->options.kernels;
    zr_result result = ZR_OK;
    *out = NULL;
    if (kernels->host_visible)
        return ZR_OK;
    if (!comm->context_open)
        result = kernels->open(&comm->context); /* zeros: the default stream, and no workspace */
    comm->context_open = result == ZR_OK;
    *out = &comm->context;
    return result;
}

void zr_comm_context_close(struct zr_comm *comm)
{
    if (comm->context_open)
        comm->options.kernels->close(&comm->context);
    comm->context_open = false;
}

static zr_result copy(struct zr_comm *comm, const struct zr_copy_bytes *args)
{
    struct zr_kernel_context *context;
    zr_result result = zr_comm_context(comm, &context);
    return result == ZR_OK ? comm->options.kernels->copy_bytes(context, args) : result;
}

zr_result zr_comm_copy(struct zr_comm *comm, void *to, const void *from, size_t bytes)
{
    if (!comm->options.kernels->host_visible)
        return to == from ? ZR_OK
                          : copy(comm, &(struct zr_copy_bytes){.bytes = bytes, .from = from, .to = to});
    memmove(to, from, bytes);
    return ZR_OK;
}

zr_result zr_comm_end_copies(struct zr_comm *comm)
{
    return comm->options.kernels->host_visible ? ZR_OK : copy(comm, &(struct zr_copy_bytes){.waits = true});
}
