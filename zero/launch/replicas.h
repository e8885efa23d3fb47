/* replicas.h: changes of the number of replicas of a run, on the launcher's side. Private to zero/launch/.
 *
 * A replica leaves after a notice (SIGTERM to one of its ranks) or after the loss of one of its ranks; a
 * process that calls zr_launch_join() adds one. The launcher notes these events, the ranks stop after a step
 * and leave the state in its memory (zr_local_move()), and the launcher gives the ranks new numbers. Used by
 * its one thread. */
#ifndef ZR_LAUNCH_REPLICAS_H
#define ZR_LAUNCH_REPLICAS_H

#include "zero/launch/control.h"

struct zr_replicas {
    const struct zr_launch_replicas *options;
    struct zr_local_world *local;
    bool leaves[ZR_MAX_WORLD]; /* of the replicas: it leaves with the next change */
    unsigned leaving;          /* number of them */
    unsigned joining;          /* replicas that the next change adds */
    pid_t left[ZR_MAX_WORLD];  /* ranks that have left and have not been reaped */
    unsigned left_count;
    int door; /* socket of zr_launch_join(); -1: none */
};

void zr_replicas_init(struct zr_replicas *out, const struct zr_launch_replicas *options,
                      struct zr_local_world *local);
/* Opens the socket; a request there raises SIGIO. Without the socket, which is logged, no replica joins.
 * ZR_ERR_HOST_MEMORY: no descriptor is left. */
zr_result zr_replicas_open(struct zr_replicas *replicas);
void zr_replicas_close(struct zr_replicas *replicas);

/* Follows notices and answers requests to join. `ends`: the run is ending, so both are refused. */
void zr_replicas_serve(struct zr_replicas *replicas, bool ends);

/* After the loss of a rank that no restart is left for: true, its replica leaves with the next change; false,
 * its replica has to remain. */
bool zr_replicas_lose(struct zr_replicas *replicas, unsigned rank);

/* Numbers the ranks of the next world, moves `running` and the pids in the control block to the new numbers,
 * and tells each rank its own. All running ranks wait in zr_local_rejoin_as(). */
void zr_replicas_change(struct zr_replicas *replicas, bool *running);

#endif
