/* status.c: ranks exchange results; see mesh.h. */
#include "zero/comm/mesh.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"

#define TEXT_BYTES 512

/* Sends the message of rank `from` to every rank, in pieces that fit `all` for the whole world. */
static zr_result share_message(zr_comm *comm, unsigned from, char message[TEXT_BYTES], char *all,
                               size_t all_bytes)
{
    size_t piece = all_bytes / zr_comm_world(comm);
    piece = piece < TEXT_BYTES ? piece : TEXT_BYTES;
    for (size_t done = 0; done < TEXT_BYTES; done += piece) {
        size_t part = TEXT_BYTES - done < piece ? TEXT_BYTES - done : piece;
        zr_result result = zr_comm_host_all_gather(comm, message + done, part, all);
        if (result)
            return result;
        memcpy(message + done, all + from * part, part);
    }
    message[TEXT_BYTES - 1] = '\0';
    return ZR_OK;
}

zr_result zr_comm_all_status(zr_comm *comm, zr_result mine)
{
    unsigned world = zr_comm_world(comm);
    char message[TEXT_BYTES] = "", all[16384];
    uint8_t said = (uint8_t)mine;

    if (world == 1)
        return mine;
    if (world > sizeof all)
        return zr_fail(ZR_ERR_INVALID, "%u ranks cannot agree on one result: this version has room for %zu",
                       world, sizeof all);
    if (mine)
        snprintf(message, sizeof message, "%s", zr_last_error());
    zr_result result = zr_comm_host_all_gather(comm, &said, sizeof said, all);
    if (result)
        return result;
    for (unsigned p = 0; p < world; p++) {
        zr_result theirs = (zr_result)(uint8_t)all[p];
        if (theirs == ZR_OK)
            continue;
        result = share_message(comm, p, message, all, sizeof all);
        if (result)
            return result;
        return p == 0 ? zr_fail(theirs, "%s", message) : zr_fail(theirs, "rank %u: %s", p, message);
    }
    return ZR_OK;
}
