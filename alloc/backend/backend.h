/* backend.h: where physical memory comes from: operations, capabilities, and the contract. Private to zr.
 *
 * The contract is that of CUDA's virtual memory driver calls, the strictest there is, whatever lies below:
 * a handle is mapped whole, at offset 0, onto addresses of a reservation that hold no mapping; a new mapping
 * has no access until it is set; an unmap takes whole mappings, after its caller
 * has seen to it that no stream works there; a handle may be destroyed while it is mapped
 * and lives until its last mapping goes. Lengths and offsets are multiples of the granule. The front in
 * backend.c checks all of it before any backend sees the call, so that a mistake fails on a laptop and on sim
 * as it would on a GPU. A failing call changes nothing; an unmap fails only where a driver does.
 *
 * Any thread may call; handles, mappings and ranges are guarded by the backend's lock. */
#ifndef ZR_BACKEND_H
#define ZR_BACKEND_H

#include <pthread.h>

#include "alloc/base/slab.h"
#include "alloc/base/slots.h"
#include "alloc/base/private_api.h"
#include "alloc/zr.h"

/* The operations that cost driver time; the order of zr_sim_options.call_ns. */
enum zr_backend_operation {
    ZR_BACKEND_RESERVE = 0,
    ZR_BACKEND_RELEASE, /* of a range */
    ZR_BACKEND_CREATE,
    ZR_BACKEND_DESTROY,
    ZR_BACKEND_MAP,
    ZR_BACKEND_UNMAP,
    ZR_BACKEND_ACCESS,
    ZR_BACKEND_COPY, /* and fill */
    ZR_BACKEND_OPERATION_COUNT
};

struct zr_service;

struct zr_capabilities {
    size_t granule_bytes;
    size_t least_granule_bytes; /* what granule_bytes could be at least */
    size_t vma_budget;          /* mappings that do not continue their neighbour; 0: no limit */
    bool host_visible;          /* the processor can read and write the memory */
    bool host_copies;           /* copies may begin or end in the program's own memory */
    bool exportable;            /* another process can map it */
    bool descriptors;           /* an export opens one for each handle, until zr_backend_export_end() */
    bool aliases;               /* one handle can be mapped at several addresses */
    bool on_touch;              /* a granule takes memory where it is touched, and none while nobody has */
    bool synchronous;           /* streams run in program order: a free is complete when it returns */
    bool default_streams;       /* 1 is stream 0, and 2 another one in each thread, as CUDA numbers them */
};

/* One granule, or a run of granules created together that moves as one. */
struct zr_handle {
    struct zr_handle *next; /* for whoever owns the handle: a cache, a list under way */
    size_t bytes;
    uint64_t offset_bytes;   /* the backend's: place in `object` */
    uintptr_t object;        /* the backend's: file, driver handle */
    uint32_t mappings_count; /* lock: backend->lock */
    bool destroyed;          /* lives for its mappings only */
    bool imported;           /* another process's memory: not counted as held */
    bool vacant;             /* its memory is with the system: see zr_backend_vacate() */
    bool created;            /* its owner's: fresh from the driver for the request that `serial` counts */
    uint8_t granule_class;   /* its owner's: enum zr_granule_class */
    uint32_t lease;          /* of the allocator service; 0: none. See service_client.h */
    uint64_t leased_granule; /* the same */
    uint64_t serial;         /* never wraps: an old one would pass for the request under way */
};

struct zr_mapping {
    struct zr_handle *handle;
    size_t offset_bytes; /* in the range */
    bool access;
    bool notified; /* its owner's: the owner's map callbacks know of it */
};

/* Reserved addresses. */
struct zr_range {
    struct zr_range *next; /* of the backend */
    zr_backend *backend;
    char *address;
    size_t bytes;
    size_t mappings_count;
    bool import; /* holds another process's memory: zr_import_release() may end it */
    struct zr_slots slots;
};

struct zr_copy {
    void *to;
    const void *from;
    size_t bytes;
    uint64_t stream;
};

struct zr_fill {
    void *to;
    unsigned char value;
    size_t bytes;
    uint64_t stream;
};

/* A point in a stream. `ticket` is the backend's. */
struct zr_stream_point {
    uint64_t stream, ticket;
};

struct zr_backend_memory {
    size_t free_bytes, total_bytes; /* of the device or machine; SIZE_MAX: no end */
};

#define ZR_BACKEND_VERSION 1

/* What a backend provides. The front has checked every argument. Those that return nothing cannot fail. */
struct zr_backend_ops {
    uint32_t version; /* ZR_BACKEND_VERSION */
    const char *name;

    /* Required. */
    void (*end)(zr_backend *backend); /* releases the backend itself */
    zr_result (*reserve)(zr_backend *backend, size_t bytes, char **out);
    void (*release)(zr_backend *backend, char *address, size_t bytes);
    zr_result (*create)(zr_backend *backend,
                        struct zr_handle *handle);                  /* bytes is set; memory is committed */
    void (*destroy)(zr_backend *backend, struct zr_handle *handle); /* after its last mapping */
    zr_result (*map)(zr_backend *backend, char *address, const struct zr_handle *handle);
    zr_result (*unmap)(zr_backend *backend, char *address, size_t bytes);
    zr_result (*set_access)(zr_backend *backend, char *address, size_t bytes);
    zr_result (*copy)(zr_backend *backend, const struct zr_copy *copy);
    zr_result (*fill)(zr_backend *backend, const struct zr_fill *fill);
    zr_result (*event_record)(zr_backend *backend, uint64_t stream, struct zr_stream_point *out);
    bool (*event_done)(zr_backend *backend, const struct zr_stream_point *event);
    zr_result (*event_wait)(zr_backend *backend, const struct zr_stream_point *event);
    zr_result (*synchronize)(zr_backend *backend);

    /* Optional: NULL where a backend has none. */
    /* Has set_access() include another device from now on. lock: backend->lock, but at creation */
    zr_result (*admit)(zr_backend *backend, int ordinal);
    zr_result (*stream_home)(zr_backend *backend, uint64_t stream, bool *here); /* NULL: all are here */
    zr_result (*memory_info)(zr_backend *backend, struct zr_backend_memory *out);
    zr_result (*export_fd)(zr_backend *backend, const struct zr_handle *handle, struct zr_segment *out);
    zr_result (*import_fd)(zr_backend *backend, const struct zr_segment *segment, struct zr_handle *out);
    void (*export_end)(zr_backend *backend, const struct zr_handle *handle);
    size_t (*reserve_hint)(zr_backend *backend, size_t limit_bytes); /* a good size for an arena's range */
    zr_result (*enter)(zr_backend *backend);                         /* leave() comes with it */
    void (*leave)(zr_backend *backend);
    /* The handle's memory goes back to the system / comes again, its contents undefined. The handle and its
     * mapping, which has no access meanwhile, stay. */
    void (*vacate)(zr_backend *backend, struct zr_handle *handle);
    zr_result (*occupy)(zr_backend *backend, struct zr_handle *handle);
};

struct zr_backend {
    const struct zr_backend_ops *ops;
    struct zr_capabilities can;
    const char *memory;  /* where it is, in words, as long as the backend; NULL: the name says it */
    size_t limit_bytes;  /* of held_bytes; 0: none */
    uint64_t device;     /* of a card: the same number in every process; 0: not known, or no card */
    size_t before_bytes; /* of a card: in use when the backend was made, by anybody */
    struct zr_service
        *service;         /* what is created is leased from there: service_client.h; NULL: from nobody */
    pthread_mutex_t lock; /* everything below */
    size_t held_bytes;    /* handles created and not gone */
    size_t pieces_count;  /* stretches of mappings that continue one another: what a VMA is on the host;
                             0 without a budget */
    unsigned arenas_count;
    struct zr_range *ranges;
    struct zr_slab handles, mappings, chunks, range_records;
    pthread_mutex_t create_lock; /* the implementation's own, around creation; taken after `lock` if both */
    zr_backend *next, *previous; /* all backends of the process, for fork */
};

/* For the implementations: sets up and tears down the front. `backend` is theirs, zeroed but for ops, can and
 * limit_bytes. */
zr_result zr_backend_init(zr_backend *backend);
void zr_backend_end(zr_backend *backend);
/* The granule size that an implementation's options, ZR_CONF and the default come to. */
zr_result zr_backend_granule(size_t asked_bytes, size_t *out);
/* Makes the backend's device the one that the calling thread's own calls of its driver are for / what it was
 * before. In pairs, in one thread; a backend without a device does nothing. */
ZR_PRIVATE_API zr_result zr_backend_enter(zr_backend *backend);
ZR_PRIVATE_API void zr_backend_leave(zr_backend *backend);
/* What the handles come to that were created and are not gone. Any thread. */
size_t zr_backend_held_bytes(struct zr_backend *backend);
/* Allows so many bytes beyond the limit, in whole granules, for what a process cannot do without. Any thread.
 */
void zr_backend_raise_limit(zr_backend *backend, size_t bytes);
/* Stretches of mappings held now, all arenas together, to compare with can.vma_budget. */
size_t zr_backend_pieces_count(struct zr_backend *backend);

ZR_PRIVATE_API zr_result zr_backend_reserve(zr_backend *backend, size_t bytes, struct zr_range **out);
/* ZR_ERR_INVALID while anything is mapped in it. */
ZR_PRIVATE_API zr_result zr_backend_release(struct zr_range *range);
/* For a range whose mappings the driver will not take back: forgets it and them, so that the counters are
 * right and its owner can end. Returns the bytes that stay mapped, out of anyone's reach. */
size_t zr_backend_abandon(struct zr_range *range);
/* ZR_ERR_MEMORY: the limit or the machine; the words say which. */
zr_result zr_backend_create(zr_backend *backend, size_t bytes, struct zr_handle **out);
/* ZR_ERR_INVALID: destroyed before. */
ZR_PRIVATE_API zr_result zr_backend_destroy_handle(zr_backend *backend, struct zr_handle *handle);
ZR_PRIVATE_API zr_result zr_backend_map(struct zr_range *range, size_t offset_bytes,
                                        struct zr_handle *handle);
/* A part of a range, on granule boundaries. */
struct zr_bounds {
    size_t offset_bytes, bytes;
};
ZR_PRIVATE_API zr_result zr_backend_unmap(struct zr_range *range, struct zr_bounds extent);
ZR_PRIVATE_API zr_result zr_backend_set_access(struct zr_range *range, struct zr_bounds extent);
/* Another device of this process may read and write what is mapped, and what will be. Any thread. ZR_OK also
 * where every device may already. A failure: it may reach a part; a second call gives it the rest.
 * ZR_ERR_INVALID: no such device; ZR_ERR_UNAVAILABLE: it does not reach the memory. */
zr_result zr_backend_admit(zr_backend *backend, int ordinal);
/* The memory under one whole mapping goes back to the system and its lease to zrd; nobody may touch the
 * addresses until zr_backend_occupy() has made it anew, its contents undefined. ZR_ERR_UNAVAILABLE: the
 * backend cannot. ZR_ERR_INVALID: no whole mapping with access, or the handle is mapped elsewhere too. */
zr_result zr_backend_vacate(struct zr_range *range, struct zr_bounds extent);
/* ZR_ERR_MEMORY, ZR_ERR_UNAVAILABLE: as of zr_backend_create(); it stays vacant. */
zr_result zr_backend_occupy(struct zr_range *range, struct zr_bounds extent);
zr_result zr_backend_copy(zr_backend *backend, const struct zr_copy *copy);
zr_result zr_backend_fill(zr_backend *backend, const struct zr_fill *fill);
ZR_PRIVATE_API zr_result zr_backend_event_record(zr_backend *backend, uint64_t stream,
                                                 struct zr_stream_point *out);
/* True when everything before the event is complete. */
ZR_PRIVATE_API bool zr_backend_event_done(zr_backend *backend, const struct zr_stream_point *event);
zr_result zr_backend_event_wait(zr_backend *backend, const struct zr_stream_point *event);
/* zr_backend_cuda_create() of a backend that leases from nobody, whatever ZR_CONF says. */
zr_result zr_backend_cuda_open(zr_backend **out, const struct zr_cuda_options *options);
/* Waits for all streams of the device's own context, and for no others. */
zr_result zr_backend_synchronize(zr_backend *backend);
/* Makes the stream the one name that the backend has for it. ZR_ERR_INVALID, with words: it names another one
 * in each thread, and memory is ordered by streams that all threads know. */
zr_result zr_backend_stream_default(uint64_t *stream);
static inline zr_result zr_backend_stream_name(const zr_backend *backend, uint64_t *stream)
{
    return __builtin_expect(*stream - 1 < 2 && backend->can.default_streams, 0)
               ? zr_backend_stream_default(stream)
               : ZR_OK;
}
/* ZR_ERR_INVALID, with words: the stream is another device's or context's, where no event of this backend can
 * be recorded and for which zr_backend_synchronize() does not wait. */
zr_result zr_backend_stream_check(zr_backend *backend, uint64_t stream);
/* True if it is, as far as the driver can tell. */
bool zr_backend_stream_elsewhere(zr_backend *backend, uint64_t stream);
/* Waits for all that the stream was given before, with an event or, where that cannot be, for the device. A
 * failure: nobody knows what it has passed. */
zr_result zr_backend_stream_wait(zr_backend *backend, uint64_t stream);
zr_result zr_backend_memory_info(zr_backend *backend, struct zr_backend_memory *out);
zr_result zr_backend_export(zr_backend *backend, const struct zr_handle *handle, struct zr_segment *out);
/* Closes a descriptor that the export has left with the handle, if there is one for each. */
void zr_backend_export_end(zr_backend *backend, const struct zr_handle *handle);
ZR_PRIVATE_API zr_result zr_backend_import(zr_backend *backend, const struct zr_segment *segment,
                                           struct zr_handle **out);

/* The mapping over this byte of the range, NULL if none. For the range's owner, who alone maps in it. */
struct zr_mapping *zr_range_mapping(const struct zr_range *range, size_t offset_bytes);

/* The simulated time of a sim backend. */
uint64_t zr_sim_clock_ns(const zr_backend *backend);
void zr_sim_clock_advance(zr_backend *backend, uint64_t ns);

#endif
