/* comm_circle.h: ranks that wait in a circle, in three groups, over any communicator of three ranks or more.
 */
#ifndef ZR_TEST_COMM_CIRCLE_H
#define ZR_TEST_COMM_CIRCLE_H

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "zero/comm/calls.h"

static inline zr_comm *circle_group(zr_comm *comm, const char *name, unsigned one, unsigned other)
{
    const unsigned ranks[] = {one, other};
    unsigned rank = zr_comm_rank(comm);
    zr_comm *group = NULL;
    if ((rank == one || rank == other) && zr_comm_group(&group, comm, ranks, 2, 0) == ZR_OK)
        zr_calls_name(group, name);
    return group;
}

/* 0 gathers with 1, which receives from 2, which is in a message to 0, and the others wait for all. What came
 * of it; zr_last_error() stays. */
static inline zr_result wait_in_circle(zr_comm *comm)
{
    static char bytes[8192];
    unsigned rank = zr_comm_rank(comm);
    zr_comm *data = circle_group(comm, "data", 0, 1), *pipeline = circle_group(comm, "pipeline", 1, 2),
            *tensor = circle_group(comm, "tensor", 0, 2);
    zr_ticket ticket = 0;
    zr_result result = zr_comm_barrier(comm);
    if (result == ZR_OK && rank == 0) {
        zr_comm_all_gather(
            data, &(struct zr_all_gather){.source = bytes, .destination = bytes, .shard_bytes = 4096},
            &ticket);
        result = zr_comm_wait(data, ticket);
    } else if (result == ZR_OK && rank == 1) {
        zr_comm_receive(pipeline, &(struct zr_transfer){.receive = bytes, .receive_bytes = 1234, .from = 1},
                        &ticket);
        result = zr_comm_wait(pipeline, ticket);
    } else if (result == ZR_OK) {
        result = zr_comm_barrier(rank == 2 ? tensor : comm);
    }
    char words[512];
    snprintf(words, sizeof words, "%s", zr_last_error());
    zr_comm *const groups[] = {data, pipeline, tensor};
    for (unsigned i = 0; i < 3; i++)
        zr_comm_destroy(groups[i]);
    return result == ZR_OK ? ZR_OK : zr_fail(result, "%s", words);
}

/* Whether zr_last_error() is what one of the three has to say. */
static inline bool names_the_circle(void)
{
    static const char *const ranks[] = {"rank 0 waits in all-gather #1 of group data (4,096 bytes); ",
                                        "rank 1 waits in receive #1 of group pipeline (1,234 bytes); ",
                                        "rank 2 waits in barrier #"},
                             *const others[] = {"rank 1 is in receive #1 of group pipeline (1,234 bytes)",
                                                "rank 2 is in barrier #",
                                                "rank 0 is in all-gather #1 of group data (4,096 bytes)"};
    const char *words = zr_last_error();
    for (unsigned i = 0; i < 3; i++)
        if (strstr(words, "out of step: ") && strstr(words, ranks[i]) && strstr(words, others[i]))
            return true;
    return false;
}

#endif
