/* server.c: the process of a parameter server. See servers.h. */
#include "zero/train/servers/servers.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "zero/comm/take.h"
#include "zero/train/rank/kept.h"
#include "zero/train/rank/rank_plan.h"
#include "zero/train/report/number.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"

#define MIB      ((size_t)1 << 20)
#define SILENT_S 60u /* at most: a replica is lost after this time, and workers wait meanwhile */

/* What a server process owns. */
struct server {
    const struct zr_train_config *config;
    unsigned number;
    struct zr_rank records; /* its backend and host_arena */
    struct zr_served_tables tables;
    zr_arena *arena;
    const struct zr_kernels *kernels;
    struct zr_kernel_context context;
    bool context_open;
    zr_keep *keep;
    struct zr_kept_memory kept;
    zr_ps_server *server;
    struct zr_server_entry entry;
};

static zr_result open_kept(struct server *server)
{
    const struct zr_ps_bytes *plan = &server->entry.planned;
    char name[ZR_KEEP_NAME_BYTES];
    snprintf(name, sizeof name, "server-%u", server->number);
    const struct zr_keep_name segment = {name,
                                         (uint64_t)getppid()}; /* the keeper, the same for a successor */
    zr_result result = zr_keep_open(&server->keep, &segment, ZR_KEEP_WRITE);
    if (result == ZR_ERR_FOREIGN)
        result = zr_keep_create(
            &server->keep,
            &(struct zr_keep_options){.name = name,
                                      .token = segment.token,
                                      .bytes = 2 * (plan->master + plan->optimizer + plan->gradients +
                                                    plan->messages + plan->log + plan->records) +
                                               64 * MIB,
                                      .granule_bytes = 2 * MIB});
    if (result == ZR_OK)
        result = zr_keep_begin(server->keep, NULL);
    server->kept = (struct zr_kept_memory){zr_rank_kept_tensor, server->keep};
    return result;
}

static zr_result open_kernels(struct server *server)
{
    const struct zr_kernel_limits limits = {.threads = 1};
    enum zr_isa isa;
    zr_result result = zr_rank_choose_isa(&isa);
    if (result != ZR_OK)
        return result;
    server->kernels = zr_kernels_cpu(isa);
    server->context =
        (struct zr_kernel_context){.parallel = {.threads = 1},
                                   .isa = isa,
                                   .precision = zr_train_precision(server->config),
                                   .workspace_bytes = server->kernels->workspace_bytes(&limits, isa)};
    result = zr_take(server->arena, ZR_TAG_WORKSPACE, server->context.workspace_bytes, 1,
                     &server->context.workspace);
    if (result == ZR_OK)
        result = server->kernels->open(&server->context);
    server->context_open = result == ZR_OK;
    return result;
}

static zr_result write_entry(const struct server *server)
{
    return zr_file_write_at(&server->config->served->board, server->number * sizeof server->entry,
                            &server->entry, sizeof server->entry);
}

static unsigned silent_s(const struct zr_train_config *config)
{
    return config->comm_timeout < SILENT_S ? config->comm_timeout : SILENT_S;
}

/* The keeper replaces the replica, as one that has been killed. */
static void end_replica(void *state)
{
    const struct server *server = state;
    const unsigned copy = zr_served_copy(server->config, server->number);
    struct zr_server_entry entry;
    zr_say("server %u: its replica has not answered for %u s and is ended", server->number,
           silent_s(server->config));
    if (zr_file_read_at(&server->config->served->board, copy * sizeof entry, &entry, sizeof entry) == ZR_OK &&
        entry.process > 0)
        kill(entry.process, SIGKILL);
}

static zr_result open_server(struct server *server, bool joins)
{
    const struct zr_train_config *config = server->config;
    const struct zr_served_run *run = config->served;
    const unsigned number = server->number, place = number % config->servers;
    zr_result result = write_entry(server);
    if (result == ZR_OK)
        result = zr_rank_open_records(&server->records, config);
    if (result == ZR_OK)
        result = zr_served_tables_make(&server->tables, config, server->records.host_arena);
    if (result == ZR_OK)
        result = zr_ps_server_plan(&server->tables.options, place, server->records.host_arena,
                                   &server->entry.planned);
    if (result == ZR_OK)
        result = zr_arena_create(
            &server->arena, &(struct zr_arena_options){.backend = server->records.backend, .name = "server"});
    if (result == ZR_OK)
        result = open_kernels(server);
    if (result == ZR_OK && !config->replicas)
        result = open_kept(server);
    return result == ZR_OK
               ? zr_ps_server_create(
                     &server->server,
                     &(struct zr_ps_server_options){
                         .struct_bytes = sizeof(struct zr_ps_server_options),
                         .common = server->tables.options,
                         .server = place,
                         .listener = run->listeners[number],
                         .arena = server->arena,
                         .kernels = server->kernels,
                         .context = &server->context,
                         .kept = server->keep ? &server->kept : NULL,
                         .primary = joins ? run->addresses[zr_served_copy(config, number)] : NULL,
                         .replicated = config->replicas && !joins,
                         .silent = {silent_s(config) * UINT64_C(1000000000), end_replica, server}})
               : result;
}

/* Writes to the board what the server has, and that it has its state. */
static zr_result measure(struct server *server)
{
    struct zr_arena_stats stats, kept = {0};
    zr_result result = zr_arena_get_stats(server->arena, &stats);
    if (result == ZR_OK && server->keep)
        result = zr_arena_get_stats(zr_keep_arena(server->keep), &kept);
    for (unsigned tag = 0; tag < ZR_TAG_COUNT && result == ZR_OK; tag++)
        server->entry.measured_by_tag_bytes[tag] = stats.live_by_tag_bytes[tag] + kept.live_by_tag_bytes[tag];
    server->entry.has_state = true;
    return result == ZR_OK ? write_entry(server) : result;
}

static zr_result close_server(struct server *server)
{
    zr_arena *host_arena = server->records.host_arena;
    zr_ps_server_destroy(server->server);
    zr_keep_close(server->keep);
    if (server->context_open)
        server->kernels->close(&server->context);
    zr_drop(server->arena, &server->context.workspace);
    if (server->arena)
        zr_arena_destroy(server->arena, NULL);
    if (host_arena)
        zr_served_tables_end(&server->tables, host_arena);
    return zr_rank_close(&server->records);
}

static void say_joined(const struct server *server)
{
    struct zr_ps_state state;
    char bytes[ZR_NUMBER_ROOM];
    zr_ps_server_get_state(server->server, &state);
    zr_say(
        "server %u is a replica with the state of its other copy: %s; requests have paused for %.3f s in all",
        server->number, zr_number_bytes(bytes, state.joined_bytes), (double)state.paused_ns / 1e9);
}

int zr_server_main(const struct zr_train_config *config, unsigned number, enum zr_server_role role)
{
    struct server server = {.config = config, .number = number, .entry.process = getpid()};
    zr_result result = open_server(&server, role != ZR_SERVER_FIRST);
    if (result == ZR_OK && role == ZR_SERVER_SUCCEEDS)
        say_joined(&server);
    if (result == ZR_OK)
        result = measure(&server);
    if (result == ZR_OK)
        result = zr_ps_server_run(server.server);
    if (result != ZR_OK)
        zr_say("server %u: %s", number, zr_last_error());
    zr_result closed = close_server(&server);
    if (closed != ZR_OK)
        zr_say("server %u: %s", number, zr_last_error());
    return (int)zr_exit_of(result != ZR_OK ? result : closed);
}
