/* nccl.c: the communicator over NCCL, one process per GPU: loads the library, creates and destroys
 * communicators. nccl_run.c has the operations. Host messages, and the ID that NCCL starts from, use
 * another communicator. */
#include "zero/comm/nccl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "alloc/base/option.h"
#include "kernels/streams.h"
#include "zero/launch/start.h"
#include "zero/comm/take.h"

/* The library, loaded once per process and never unloaded. */
static struct {
    pthread_mutex_t lock;
    const char *path; /* NULL: the standard name */
    bool loaded;
    struct zr_nccl nccl;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

void zr_nccl_path_set(const char *path)
{
    library.path = path;
}

static zr_result load(void)
{
#define NAME(member, name, optional, parameters) optional #name,
    static const char *const symbols[] = {ZR_NCCL_FUNCTIONS(NAME) "ncclGetErrorString", "ncclGetLastError",
                                          NULL};
#undef NAME
    const char *names[] = {library.path ? library.path : "libnccl.so.2", library.path ? NULL : "libnccl.so",
                           NULL};
    void *functions[sizeof(symbols) / sizeof(*symbols)];
    int version = 0;
    zr_result result = zr_module_find(names, symbols, functions);
    if (result != ZR_OK)
        return zr_fail(result, "--comm nccl: %s; install NCCL (libnccl2), or use --comm local or mpi",
                       zr_last_error());
    /* The struct's members are function pointers in the order of the list. */
    _Static_assert(sizeof(library.nccl) == sizeof(functions) - sizeof(void *), "one pointer for each name");
    memcpy(&library.nccl, functions, sizeof(library.nccl));
    if (library.nccl.version(&version) != 0 || version < ZR_NCCL_OLDEST_VERSION)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "--comm nccl: libnccl.so.2 has version %d, but zr requires %d or later", version,
                       ZR_NCCL_OLDEST_VERSION);
    library.loaded = true;
    return ZR_OK;
}

zr_result zr_nccl_get(const struct zr_nccl **out)
{
    pthread_mutex_lock(&library.lock);
    zr_result result = library.loaded ? ZR_OK : load();
    *out = result == ZR_OK ? &library.nccl : NULL;
    pthread_mutex_unlock(&library.lock);
    return result;
}

/* Origin of a communicator: a split of `parent`, or a new one. */
struct nccl_origin {
    struct nccl_comm *parent; /* NULL: not a group */
    bool splits;
    int colour;
};

/* ---- Creation and destruction -------------------------------------------------------------------------- */

/* Ends all operations; aborts those that cannot end. */
static void end_watched(struct nccl_comm *self)
{
    pthread_mutex_lock(&self->watch->lock);
    if (self->comm && self->base.failure != ZR_OK)
        self->nccl->abort(self->comm);
    self->comm = self->base.failure != ZR_OK ? NULL : self->comm;
    pthread_mutex_unlock(&self->watch->lock);
    zr_nccl_watch_remove(self);
    zr_nccl_watch_stop(self);
    self->watch = NULL;
}

/* Destroys the communicator. After a failure some work may never end; an abort ends the work and frees its
 * resources. */
static void nccl_close(struct zr_comm *comm)
{
    struct nccl_comm *self = (struct nccl_comm *)comm;
    if (self->watch)
        end_watched(self);
    if (self->comm && comm->failure == ZR_OK &&
        zr_nccl_settle(self, self->comm, self->nccl->finalize(self->comm), "end") == ZR_OK)
        self->nccl->destroy(self->comm);
    else if (self->comm)
        self->nccl->abort(self->comm);
    zr_comm_context_close(comm); /* before the stream that it uses */
    if (comm->options.beside)
        comm->options.kernels->streams->destroy(comm->options.beside);
    comm->options.beside = NULL;
    if (self->talk)
        zr_comm_destroy(self->talk);
    if (self->ring)
        zr_arena_free(comm->options.arena, self->ring);
}

static zr_result nccl_host(struct zr_comm *comm, const struct zr_all_gather *op)
{
    struct zr_comm *talk = ((struct nccl_comm *)comm)->talk;
    return zr_comm_run_host(talk, op);
}

/* Ends the run through the communicator of host messages. */
static void nccl_abandon(struct zr_comm *comm, const char *why)
{
    zr_comm_abandon(((struct nccl_comm *)comm)->talk, why);
}

static zr_result create(zr_comm **out, const struct zr_nccl_options *options, zr_comm *talk,
                        const struct nccl_origin *origin);

/* NCCL's split is collective over the parent's ranks, so it is used only if all of them create a group. */
static zr_result nccl_group(struct zr_comm **out, struct zr_comm *base, const struct zr_comm_members *members)
{
    struct nccl_comm *parent = (struct nccl_comm *)base;
    struct zr_nccl_options options = {.comm = members->options,
                                      .local = base->local,
                                      .stream = base->options.stream,
                                      .deterministic = parent->deterministic};
    struct zr_comm *talk;
    char message[ZR_COMM_MESSAGE_BYTES];
    zr_result result = zr_comm_synchronize(base);
    if (result == ZR_OK)
        result = zr_comm_group(&talk, parent->talk, members->ranks, members->count, 0);
    if (result != ZR_OK)
        return result;
    result = create(out, &options, talk,
                    &(struct nccl_origin){.parent = parent,
                                          .splits = members->everyone && parent->nccl->split,
                                          .colour = (int)members->ranks[0]});
    if (result == ZR_OK)
        return ZR_OK;
    snprintf(message, sizeof(message), "%s", zr_last_error());
    zr_comm_destroy(talk);
    return zr_fail(result, "%s", message);
}

static zr_result take_memory(struct nccl_comm **out, const struct zr_nccl_options *options, unsigned rank,
                             unsigned world)
{
    static const struct zr_comm_table table = {.name = "nccl",
                                               .talks = true,
                                               .run = zr_nccl_run,
                                               .host = nccl_host,
                                               .group = nccl_group,
                                               .abandon = nccl_abandon,
                                               .close = nccl_close};
    void *block;
    size_t records_bytes = sizeof(struct nccl_comm) + world * sizeof(void *);
    size_t ring_bytes = zr_comm_ring_bytes(world, options->comm->bucket_bytes);
    zr_result result = zr_arena_alloc(
        options->comm->host_arena, &(struct zr_request){.bytes = records_bytes, .tag = ZR_TAG_OTHER}, &block);
    if (result != ZR_OK)
        return result;
    struct nccl_comm *self = memset(block, 0, records_bytes);
    zr_comm_open(&self->base, &table, options->comm);
    self->base.rank = rank;
    self->base.world = world;
    self->base.local = options->local;
    self->backend = zr_arena_backend(options->comm->arena);
    self->stream = options->stream;
    self->deterministic = options->deterministic;
    self->slot_bytes = zr_comm_slot_bytes(world, options->comm->bucket_bytes);
    self->each_bytes = self->slot_bytes / (world > 1 ? world - 1 : 1) / 64 * 64;
    self->from = (const void **)(self + 1);
    *out = self;
    return zr_take(options->comm->arena, ZR_TAG_COMM, ring_bytes, 1, (void **)&self->ring);
}

/* Creates NCCL's communicator from rank 0's ID. */
static zr_result start(struct nccl_comm *self, const struct zr_nccl_id *id)
{
    struct zr_nccl_config config = {.bytes = sizeof config,
                                    .magic = (unsigned)ZR_NCCL_MAGIC,
                                    .version = ZR_NCCL_CONFIG_VERSION,
                                    .blocking = 0,
                                    .padding = ZR_NCCL_NOT_SET};
    zr_nccl_result code =
        self->nccl->init(&self->comm, (int)self->base.world, *id, (int)self->base.rank, &config);
    zr_result result = zr_nccl_settle(self, self->comm, code, "start");
    if (result != ZR_OK && self->comm)
        self->nccl->abort(self->comm);
    self->comm = result == ZR_OK ? self->comm : NULL;
    return result;
}

/* The split runs while the parent is in progress; a failed split is a failure of the parent. */
static zr_result split(struct nccl_comm *self, const struct nccl_origin *origin)
{
    struct nccl_comm *parent = origin->parent;
    zr_nccl_comm made = NULL;
    if (parent->watch)
        pthread_mutex_lock(&parent->watch->lock);
    zr_result result = parent->comm ? ZR_OK : zr_fail(ZR_ERR_PEER, "the group's parent has been aborted");
    if (result == ZR_OK) {
        zr_nccl_result code =
            parent->nccl->split(parent->comm, origin->colour, (int)self->base.rank, &made, NULL);
        result = zr_nccl_settle(parent, parent->comm, code, "split");
        if (result == ZR_OK)
            result = zr_nccl_settle(self, made, ZR_NCCL_IN_PROGRESS, "split");
        char message[ZR_COMM_MESSAGE_BYTES];
        snprintf(message, sizeof message, "%s", zr_last_error());
        if (result != ZR_OK)
            zr_nccl_fail(parent, result, message);
        if (result != ZR_OK && made)
            parent->nccl->abort(made);
    }
    self->comm = result == ZR_OK ? made : NULL;
    if (parent->watch)
        pthread_mutex_unlock(&parent->watch->lock);
    return result;
}

/* All ranks create their part, or none does: the first failure counts for all. */
static zr_result connect_all(struct nccl_comm *self, zr_result mine, const struct nccl_origin *origin)
{
    struct {
        struct zr_nccl_id id;
        uint32_t result;
    } own = {.result = (uint32_t)mine}, all[ZR_MAX_WORLD];
    unsigned world = self->base.world;
    if (mine == ZR_OK && self->base.rank == 0 && self->nccl->get_id(&own.id) != 0)
        own.result = ZR_ERR_UNAVAILABLE;
    zr_result result = zr_comm_host_all_gather(self->talk, &own, sizeof(own), all);
    if (result != ZR_OK || mine != ZR_OK)
        return result != ZR_OK ? result : mine;
    for (unsigned p = 0; p < world; p++)
        if (all[p].result != ZR_OK)
            return zr_fail(ZR_ERR_PEER, "rank %u failed to create its part of the communicator: %s", p,
                           zr_result_name((zr_result)all[p].result));
    return origin->splits ? split(self, origin) : start(self, &all[0].id);
}

/* Opens a stream and a watching thread for operations, unless the host can read the memory and waits for each
 * operation. */
static zr_result open_beside(struct nccl_comm *self, const struct nccl_origin *origin)
{
    if (self->base.options.kernels->host_visible)
        return ZR_OK;
    zr_result result = zr_cuda_driver_get(&self->driver);
    if (result == ZR_OK)
        result = self->base.options.kernels->streams->create(&self->base.options.beside, true);
    self->stream = self->base.options.beside;
    if (result != ZR_OK || !origin->parent)
        return result == ZR_OK ? zr_nccl_watch_start(self) : result;
    self->watch = origin->parent->watch;
    zr_nccl_watch_add(self);
    return ZR_OK;
}

zr_result zr_comm_nccl_create(zr_comm **out, const struct zr_nccl_options *options, zr_comm *talk)
{
    return create(out, options, talk, &(struct nccl_origin){.parent = NULL});
}

static zr_result create(zr_comm **out, const struct zr_nccl_options *options, zr_comm *talk,
                        const struct nccl_origin *origin)
{
    struct zr_nccl_options own;
    struct zr_comm_options own_comm;
    struct nccl_comm *self = NULL;
    if (!out || !options || !talk)
        return zr_fail(ZR_ERR_INVALID,
                       "zr_comm_nccl_create() requires out, options and a communicator to start from");
    *out = NULL;
    unsigned rank = zr_comm_rank(talk), world = zr_comm_world(talk);
    zr_result result = ZR_STRUCT_COPY(zr_nccl_options, deterministic, &own, options);
    if (result == ZR_OK)
        result = ZR_STRUCT_COPY(zr_comm_options, algorithm, &own_comm, own.comm);
    own_comm.stream = own.stream;
    own_comm.beside = NULL; /* see open_beside() */
    own.comm = &own_comm;
    options = &own;
    if (result == ZR_OK)
        result = zr_comm_options_check(options->comm, rank, world);
    if (result == ZR_OK)
        result = take_memory(&self, options, rank, world);
    if (!self)
        return result;
    self->talk = talk;
    self->base.run_rank = talk->run_rank;
    if (result == ZR_OK)
        result = zr_nccl_get(&self->nccl);
    result = connect_all(self, result, origin);
    if (result == ZR_OK)
        result = open_beside(self, origin);
    if (result == ZR_OK)
        result = zr_comm_thread_start(&self->base);
    if (result == ZR_OK) {
        *out = &self->base;
        return ZR_OK;
    }
    char message[ZR_COMM_MESSAGE_BYTES];
    snprintf(message, sizeof(message), "%s", zr_last_error());
    self->talk = NULL; /* still owned by the caller */
    zr_comm_destroy(&self->base);
    return zr_fail(result, "%s", message);
}
