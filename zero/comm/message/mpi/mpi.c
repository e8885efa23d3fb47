/* mpi.c: the module that carries messages over MPI. Built with mpicc into libzr_comm_mpi.so and loaded by
 * mpi_start.c for --comm mpi; zr-train itself does not need MPI.
 *
 * It only uses non-blocking messages between two ranks, on its own communicator, so that message.c can sum
 * in rank order and leave every wait. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "zero/comm/message/transport.h"

#define MAX_BYTES ((size_t)1 << 30) /* MPI's counts are ints */

_Static_assert(sizeof(MPI_Request) <= sizeof(struct zr_transport_request), "a request fits its room");

static MPI_Comm comm; /* one per process, like MPI itself */

/* Copies MPI's message into `why`. Returns 0 for success. */
static int keep_error(struct zr_transport *transport, const char *what, int error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (error == MPI_SUCCESS)
        return 0;
    MPI_Error_string(error, text, &length);
    snprintf(transport->why, sizeof(transport->why), "%s: %.300s", what, text);
    return -1;
}

static int mpi_send(struct zr_transport *transport, const struct zr_transport_message *message,
                    struct zr_transport_request *request)
{
    return keep_error(transport, "MPI_Isend",
                      MPI_Isend(message->data, (int)message->bytes, MPI_BYTE, (int)message->peer,
                                (int)message->tag, comm, (MPI_Request *)request->room));
}

static int mpi_receive(struct zr_transport *transport, const struct zr_transport_message *message,
                       struct zr_transport_request *request)
{
    return keep_error(transport, "MPI_Irecv",
                      MPI_Irecv(message->data, (int)message->bytes, MPI_BYTE,
                                message->any ? MPI_ANY_SOURCE : (int)message->peer, (int)message->tag, comm,
                                (MPI_Request *)request->room));
}

static int mpi_test(struct zr_transport *transport, struct zr_transport_request *request, bool *done,
                    size_t *bytes)
{
    int flag = 0, count = 0;
    MPI_Status status;
    memset(&status, 0, sizeof(status));
    int error = MPI_Test((MPI_Request *)request->room, &flag, &status);
    *done = error != MPI_SUCCESS || flag;
    if (error == MPI_SUCCESS && flag)
        MPI_Get_count(&status, MPI_BYTE, &count);
    *bytes = count > 0 ? (size_t)count : 0;
    return keep_error(transport, "MPI_Test", error);
}

static void mpi_cancel(struct zr_transport *transport, struct zr_transport_request *request)
{
    (void)transport;
    MPI_Cancel((MPI_Request *)request->room);
    MPI_Request_free((MPI_Request *)request->room);
}

static int mpi_close(struct zr_transport *transport)
{
    MPI_Comm_free(&comm);
    return keep_error(transport, "MPI_Finalize", MPI_Finalize());
}

/* Fills in which ranks of the run are on this host. */
static int find_host(struct zr_transport *out)
{
    MPI_Comm host = MPI_COMM_NULL;
    int ranks, first, rank = (int)out->rank;
    int error = MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_size(host, &ranks);
    if (error == MPI_SUCCESS)
        error = MPI_Allreduce(&rank, &first, 1, MPI_INT, MPI_MIN, host);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_free(&host);
    if (error != MPI_SUCCESS)
        return keep_error(out, "MPI_Comm_split_type", error);
    out->host_first = (unsigned)first;
    out->host_ranks = (unsigned)ranks;
    return 0;
}

static const char *thread_level(int level)
{
    return level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED";
}

__attribute__((visibility("default"))) int zr_transport_open(struct zr_transport *out)
{
    int rank, world, level = 0, error, found = 0, *most_tag = NULL;
    memset(out, 0, sizeof(*out));
    out->version = ZR_TRANSPORT_VERSION;
    out->name = "mpi";
    error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (error != MPI_SUCCESS)
        return keep_error(out, "MPI_Init_thread", error);
    if (level < MPI_THREAD_SERIALIZED) {
        snprintf(out->why, sizeof(out->why), "this MPI grants %s, but MPI_THREAD_SERIALIZED is required",
                 thread_level(level));
        return -1;
    }
    error = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_rank(comm, &rank);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_size(comm, &world);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_get_attr(comm, MPI_TAG_UB, &most_tag, &found);
    if (error != MPI_SUCCESS)
        return keep_error(out, "MPI_Comm_dup", error);
    out->rank = (unsigned)rank;
    out->world = (unsigned)world;
    out->most_bytes = MAX_BYTES;
    out->tags_count = found && *most_tag < INT_MAX ? (uint32_t)*most_tag + 1 : INT_MAX;
    out->send = mpi_send;
    out->receive = mpi_receive;
    out->test = mpi_test;
    out->cancel = mpi_cancel;
    out->close = mpi_close;
    return find_host(out);
}
