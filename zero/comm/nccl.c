/* nccl.c: the communicator over NCCL, one process per GPU: loads the library, makes and ends communicators.
 * The operations are in nccl_run.c. What is said in the host's memory (exchanges, and the id that NCCL starts
 * from) goes through another communicator. */
#include "zero/comm/nccl.h"

#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/module.h"
#include "alloc/base/struct_bytes.h"
#include "zero/launch/start.h"
#include "zero/comm/take.h"

/* The library of this process: loaded once, kept to the end. */
static struct {
    pthread_mutex_t lock;
    const char *path; /* NULL: by the system's name */
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
    static const char *const symbols[] = {ZR_NCCL_FUNCTIONS(NAME) "ncclGetErrorString", NULL};
#undef NAME
    const char *names[] = {library.path ? library.path : "libnccl.so.2", library.path ? NULL : "libnccl.so",
                           NULL};
    void *functions[sizeof(symbols) / sizeof(*symbols)];
    int version = 0;
    zr_result result = zr_module_find(names, symbols, functions);
    if (result != ZR_OK)
        return zr_fail(result, "--comm nccl: %s; install NCCL (libnccl2), or use --comm local or mpi",
                       zr_last_error());
    /* The members are the list's, in its order, and all pointers to functions. */
    _Static_assert(sizeof(library.nccl) == sizeof(functions) - sizeof(void *), "one pointer for each name");
    memcpy(&library.nccl, functions, sizeof(library.nccl));
    if (library.nccl.version(&version) != 0 || version < ZR_NCCL_OLDEST_VERSION)
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "--comm nccl: libnccl.so.2 is of version %d, and %d is the oldest that will do",
                       version, ZR_NCCL_OLDEST_VERSION);
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

/* ---- Birth and end ------------------------------------------------------------------------------------- */

static void set_ring_class(struct nccl_comm *self, enum zr_granule_class granule_class)
{
    const struct zr_comm_options *options = &self->base.options;
    if (self->ring)
        zr_arena_set_granule_class(options->arena, self->ring,
                                   zr_comm_ring_bytes(self->base.world, options->bucket_bytes),
                                   granule_class);
}

/* After a failure work may be under way that never ends: it is aborted, and what it used is free then. */
static void nccl_close(struct zr_comm *comm)
{
    struct nccl_comm *self = (struct nccl_comm *)comm;
    if (self->comm && self->registration)
        self->nccl->deregister_memory(self->comm, self->registration);
    if (self->comm && comm->failure == ZR_OK)
        self->nccl->destroy(self->comm);
    else if (self->comm)
        self->nccl->abort(self->comm);
    if (self->talk)
        zr_comm_destroy(self->talk);
    set_ring_class(self, ZR_GRANULE_MOVABLE);
    if (self->ring)
        zr_arena_free(comm->options.arena, self->ring);
}

static zr_result nccl_host(struct zr_comm *comm, const struct zr_all_gather *op)
{
    struct zr_comm *talk = ((struct nccl_comm *)comm)->talk;
    return zr_comm_run_host(talk, op);
}

/* NCCL's own split is collective over all ranks of the parent; a new communicator is one of the members'. */
static zr_result nccl_group(struct zr_comm **out, struct zr_comm *base, const struct zr_comm_members *members)
{
    struct nccl_comm *parent = (struct nccl_comm *)base;
    struct zr_nccl_options options = {.comm = members->options,
                                      .local = base->local,
                                      .stream = parent->stream,
                                      .deterministic = parent->deterministic};
    struct zr_comm *talk;
    char words[ZR_COMM_MESSAGE_BYTES];
    zr_result result = zr_comm_group(&talk, parent->talk, members->ranks, members->count, 0);
    if (result != ZR_OK)
        return result;
    result = zr_comm_nccl_create(out, &options, talk);
    if (result == ZR_OK)
        return ZR_OK;
    snprintf(words, sizeof(words), "%s", zr_last_error());
    zr_comm_destroy(talk);
    return zr_fail(result, "%s", words);
}

static zr_result take_memory(struct nccl_comm **out, const struct zr_nccl_options *options, unsigned rank,
                             unsigned world)
{
    static const struct zr_comm_table table = {
        .name = "nccl", .run = zr_nccl_run, .host = nccl_host, .group = nccl_group, .close = nccl_close};
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

/* Every rank makes its part, or none has one: the first failure is all ranks'. */
static zr_result connect_all(struct nccl_comm *self, zr_result mine)
{
    struct {
        struct zr_nccl_id id;
        uint32_t result;
    } own = {.result = (uint32_t)mine}, all[ZR_MAX_WORLD];
    unsigned world = self->base.world;
    zr_nccl_result code = 0;
    if (mine == ZR_OK && self->base.rank == 0 && (code = self->nccl->get_id(&own.id)) != 0)
        own.result = ZR_ERR_UNAVAILABLE;
    zr_result result = zr_comm_host_all_gather(self->talk, &own, sizeof(own), all);
    if (result != ZR_OK || mine != ZR_OK)
        return result != ZR_OK ? result : mine;
    for (unsigned p = 0; p < world; p++)
        if (all[p].result != ZR_OK)
            return zr_fail(ZR_ERR_PEER, "rank %u could not make its part of the communicator: %s", p,
                           zr_result_name((zr_result)all[p].result));
    code = self->nccl->init(&self->comm, (int)world, all[0].id, (int)self->base.rank);
    if (code != 0)
        return zr_fail(ZR_ERR_UNAVAILABLE, "NCCL refused a communicator of %u ranks: %s", world,
                       self->nccl->error_text(code));
    if (self->ring && self->nccl->register_memory && self->nccl->deregister_memory &&
        self->nccl->register_memory(self->comm, self->ring,
                                    zr_comm_ring_bytes(world, self->base.options.bucket_bytes),
                                    &self->registration) != 0)
        self->registration = NULL; /* memory of a kind that it cannot register goes the longer way */
    set_ring_class(self, self->registration ? ZR_GRANULE_REGISTERED : ZR_GRANULE_MOVABLE);
    return ZR_OK;
}

zr_result zr_comm_nccl_create(zr_comm **out, const struct zr_nccl_options *options, zr_comm *talk)
{
    struct zr_nccl_options own;
    struct zr_comm_options own_comm;
    struct nccl_comm *self = NULL;
    if (!out || !options || !talk)
        return zr_fail(ZR_ERR_INVALID, "NCCL needs options, a place to go, and a communicator to start from");
    *out = NULL;
    unsigned rank = zr_comm_rank(talk), world = zr_comm_world(talk);
    zr_result result = ZR_STRUCT_COPY(zr_nccl_options, deterministic, &own, options);
    if (result == ZR_OK)
        result = ZR_STRUCT_COPY(zr_comm_options, algorithm, &own_comm, own.comm);
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
    result = connect_all(self, result);
    if (result == ZR_OK)
        result = zr_comm_thread_start(&self->base);
    if (result == ZR_OK) {
        *out = &self->base;
        return ZR_OK;
    }
    char words[ZR_COMM_MESSAGE_BYTES];
    snprintf(words, sizeof(words), "%s", zr_last_error());
    self->talk = NULL; /* the caller's still */
    zr_comm_destroy(&self->base);
    return zr_fail(result, "%s", words);
}
