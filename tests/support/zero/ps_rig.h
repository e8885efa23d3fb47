/* ps_rig.h: what the tests of parameter servers share: a run of servers and workers on Unix sockets, each a
 * thread with an arena and kernels of its own, or a process. */
#ifndef ZR_PS_RIG_H
#define ZR_PS_RIG_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/folder.h"
#include "tests/support/tap.h"
#include "zero/ps/zr_ps.h"

enum { PS_SERVERS = 4, PS_WORKERS = 8 };
static pthread_mutex_t ps_lock = PTHREAD_MUTEX_INITIALIZER; /* no server ends while it is being stopped */

/* Memory and kernels of a thread or process. */
struct ps_ground {
    zr_backend *backend;
    zr_arena *arena;
    struct zr_kernel_context context;
};

static inline zr_result ps_ground_open(struct ps_ground *ground)
{
    const struct zr_kernel_limits limits = {8, 8, 8, 1, 1, 0, 0};
    const struct zr_kernels *kernels = zr_kernels_cpu(zr_isa_best());
    *ground =
        (struct ps_ground){.context = {.parallel = {.threads = 1},
                                       .isa = zr_isa_best(),
                                       .workspace_bytes = kernels->workspace_bytes(&limits, zr_isa_best())}};
    zr_result result =
        zr_backend_host_create(&ground->backend, &(struct zr_host_options){.granule_bytes = 0});
    if (result == ZR_OK)
        result =
            zr_arena_create(&ground->arena, &(struct zr_arena_options){.backend = ground->backend,
                                                                       .reserve_bytes = (size_t)1 << 33});
    if (result == ZR_OK)
        result = zr_arena_alloc(
            ground->arena,
            &(struct zr_request){.bytes = ground->context.workspace_bytes, .tag = ZR_TAG_WORKSPACE},
            &ground->context.workspace);
    return result == ZR_OK ? kernels->open(&ground->context) : result;
}

/* Bytes that were not freed. */
static inline size_t ps_ground_close(struct ps_ground *ground)
{
    size_t leaked = 0;
    zr_kernels_cpu(zr_isa_best())->close(&ground->context);
    zr_arena_free(ground->arena, ground->context.workspace);
    zr_arena_destroy(ground->arena, &leaked);
    zr_backend_destroy(ground->backend);
    return leaked;
}

struct ps_run {
    struct zr_ps_options options;
    char addresses[PS_SERVERS][80], replicas[PS_SERVERS][80];
    const char *at[PS_SERVERS], *replica_at[PS_SERVERS];
    unsigned drivers; /* threads of workers; 0: one each */
    bool replicated;
    zr_ps_server *_Atomic servers[2 * PS_SERVERS];
    int listeners[2 * PS_SERVERS];
    pthread_t threads[2 * PS_SERVERS];
    zr_result results[2 * PS_SERVERS];
    size_t leaked[2 * PS_SERVERS];
};

struct ps_seat {
    struct ps_run *run;
    unsigned server;
    bool replica;
};

static inline void *ps_serve(void *argument)
{
    struct ps_seat seat = *(struct ps_seat *)argument;
    struct ps_run *run = seat.run;
    struct ps_ground ground;
    zr_ps_server *server = NULL;
    unsigned at = seat.server + (seat.replica ? PS_SERVERS : 0);
    free(argument);
    zr_result result = ps_ground_open(&ground);
    if (result == ZR_OK)
        result = zr_ps_server_create(
            &server, &(struct zr_ps_server_options){.common = run->options,
                                                    .server = seat.server,
                                                    .listener = run->listeners[at],
                                                    .arena = ground.arena,
                                                    .kernels = zr_kernels_cpu(zr_isa_best()),
                                                    .context = &ground.context,
                                                    .primary = seat.replica ? run->at[seat.server] : NULL,
                                                    .replicated = run->replicated && !seat.replica});
    run->servers[at] = server;
    if (result == ZR_OK)
        result = zr_ps_server_run(server);
    if (result != ZR_OK)
        tap_note("server %u: %s", seat.server, zr_last_error());
    run->results[at] = result;
    if (run->replicated) /* a worker that connects to a server that has ended is refused */
        close(run->listeners[at]);
    pthread_mutex_lock(&ps_lock);
    pthread_mutex_unlock(&ps_lock);
    zr_ps_server_destroy(server);
    run->leaked[at] = ps_ground_close(&ground);
    return NULL;
}

/* Names the servers in a folder and listens. */
static inline zr_result ps_run_listen(struct ps_run *run, const char *folder)
{
    zr_result result = ZR_OK;
    for (unsigned s = 0; s < run->options.servers && result == ZR_OK; s++) {
        snprintf(run->addresses[s], sizeof run->addresses[s], "unix:%s/s%u", folder, s);
        snprintf(run->replicas[s], sizeof run->replicas[s], "unix:%s/r%u", folder, s);
        run->at[s] = run->addresses[s];
        run->replica_at[s] = run->replicas[s];
        result = zr_ps_listen(&run->listeners[s], run->at[s], NULL);
        if (result == ZR_OK && run->replicated)
            result = zr_ps_listen(&run->listeners[PS_SERVERS + s], run->replica_at[s], NULL);
    }
    return result;
}

static inline void ps_run_start_one(struct ps_run *run, unsigned server, bool replica)
{
    struct ps_seat *seat = malloc(sizeof *seat);
    *seat = (struct ps_seat){run, server, replica};
    pthread_create(&run->threads[server + (replica ? PS_SERVERS : 0)], NULL, ps_serve, seat);
}

static inline zr_result ps_run_start(struct ps_run *run, const char *folder)
{
    zr_result result = ps_run_listen(run, folder);
    for (unsigned s = 0; s < run->options.servers && result == ZR_OK; s++) {
        if (run->replicated)
            ps_run_start_one(run, s, true);
        ps_run_start_one(run, s, false);
    }
    return result;
}

/* Stops a primary, once it runs, and waits for its end. */
static inline void ps_run_stop(struct ps_run *run, unsigned server)
{
    pthread_mutex_lock(&ps_lock);
    zr_ps_server_stop(run->servers[server]);
    pthread_mutex_unlock(&ps_lock);
    pthread_join(run->threads[server], NULL);
    run->servers[server] = NULL;
}

/* Waits for the servers, once every worker has left; false: one failed or leaked. */
static inline bool ps_run_end(struct ps_run *run)
{
    bool good = true;
    for (unsigned i = 0; i < 2 * PS_SERVERS; i++) {
        if (i % PS_SERVERS >= run->options.servers || (i >= PS_SERVERS && !run->replicated))
            continue;
        if (run->servers[i] || !run->replicated)
            pthread_join(run->threads[i], NULL);
        if (!run->replicated)
            close(run->listeners[i]);
        good &= run->results[i] == ZR_OK && run->leaked[i] == 0;
    }
    return good;
}

static inline zr_result ps_join(zr_ps_worker **out, const struct ps_run *run, uint32_t worker,
                                zr_arena *arena)
{
    return zr_ps_worker_create(
        out, &(struct zr_ps_worker_options){.common = run->options,
                                            .worker = worker,
                                            .addresses = run->at,
                                            .replicas = run->replicated ? run->replica_at : NULL,
                                            .arena = arena});
}

#endif
