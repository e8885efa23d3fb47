/* backend.h: physical memory: operations, capabilities and the contract of a backend. Private to zr.
 *
 * The contract is that of CUDA's virtual memory calls, the strictest, for every backend. A handle is mapped
 * whole, at offset 0, onto reserved addresses without a mapping. A new mapping has no access until access is
 * set. An unmap takes whole mappings, after the caller made sure that no stream uses them. A handle may be
 * destroyed while it is mapped, and lives until its last mapping ends. Lengths and offsets are multiples of
 * the granule. The front in backend.c checks every call before the implementation runs, so that a mistake
 * fails on a laptop and on sim as on a GPU. A failing call changes nothing; an unmap fails only where a
 * driver fails.
 *
 * Any thread may call. The backend's lock guards handles, mappings and ranges. */
#ifndef ZR_BACKEND_H
#define ZR_BACKEND_H

#include <pthread.h>

#include "alloc/base/slab.h"
#include "alloc/base/slots.h"
#include "alloc/base/compiler.h"
#include "alloc/backend/lender.h"
#include "alloc/zr.h"

/* The operations that cost driver time, in the order of zr_sim_options.call_ns. */
enum zr_backend_operation {
    ZR_BACKEND_RESERVE = 0,
    ZR_BACKEND_RELEASE, /* releases a range */
    ZR_BACKEND_CREATE,
    ZR_BACKEND_DESTROY,
    ZR_BACKEND_MAP,
    ZR_BACKEND_UNMAP,
    ZR_BACKEND_ACCESS,
    ZR_BACKEND_COPY, /* copies and fills */
    ZR_BACKEND_OPERATION_COUNT
};

struct zr_lender;

struct zr_capabilities {
    size_t granule_bytes;
    size_t least_granule_bytes; /* the min of granule_bytes */
    size_t vma_budget;          /* max mappings; those that the kernel joins count once; 0: no limit */
    bool host_visible;          /* the processor can read and write the memory */
    bool host_copies;           /* copies may have source or destination in the program's own memory */
    bool exportable;            /* other processes can map the memory */
    bool descriptors;     /* an export opens one descriptor for each handle, until zr_backend_export_end() */
    bool aliases;         /* one handle can be mapped at several addresses */
    bool on_touch;        /* memory is committed page by page on first touch */
    bool synchronous;     /* streams run in program order, so a free is complete when it returns */
    bool default_streams; /* CUDA's numbers: 1 is stream 0, and 2 is a different stream in each thread */
};

/* One granule, or a run of granules that was created together and is mapped as one. */
struct zr_handle {
    struct zr_handle *next; /* in the owner's list: a cache, or a list in progress */
    size_t bytes;
    uint64_t offset_bytes;   /* the backend's: offset in `object` */
    uintptr_t object;        /* the backend's: file or driver handle */
    uint32_t mappings_count; /* lock: backend->lock */
    bool destroyed;          /* the handle is destroyed and still mapped */
    bool imported;           /* memory of another process, which held_bytes does not count */
    bool vacant;             /* has no memory: see zr_backend_vacate() */
    bool created;            /* the owner's: created for the request with this `serial` */
    uint8_t granule_class;   /* the owner's: enum zr_granule_class */
    uint32_t lease;          /* the number in struct zr_lease; 0: no lease */
    uint64_t leased_granule; /* the granule in struct zr_lease */
    uint64_t serial;         /* 64 bits, so that an old number never equals the current request's */
};

struct zr_mapping {
    struct zr_handle *handle;
    size_t offset_bytes; /* within the range */
    bool access;
    bool notified; /* the owner's: the map callbacks were called for this mapping */
};

/* Reserved addresses. */
struct zr_range {
    struct zr_range *next; /* the backend's next range */
    zr_backend *backend;
    char *address;
    size_t bytes;
    size_t mappings_count;
    bool import; /* maps memory of another process; zr_import_release() releases the range */
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

/* A point in a stream. Only the backend uses `ticket`. */
struct zr_stream_point {
    uint64_t stream, ticket;
};

struct zr_backend_memory {
    size_t free_bytes, total_bytes; /* of the device or machine; SIZE_MAX: unlimited */
};

#define ZR_BACKEND_VERSION 1

/* The operations of a backend. The front has checked every argument. A function that returns void cannot
 * fail. */
struct zr_backend_ops {
    uint32_t version; /* ZR_BACKEND_VERSION */
    const char *name;

    /* Required. */
    void (*end)(zr_backend *backend); /* releases the backend itself */
    zr_result (*reserve)(zr_backend *backend, size_t bytes, char **out);
    void (*release)(zr_backend *backend, char *address, size_t bytes);
    zr_result (*create)(zr_backend *backend,
                        struct zr_handle *handle); /* handle->bytes is set; commits the memory */
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

    /* Optional: NULL if the backend lacks the operation. */
    /* Makes set_access() include another device. lock: backend->lock, except at creation */
    zr_result (*admit)(zr_backend *backend, int ordinal);
    zr_result (*stream_home)(zr_backend *backend, uint64_t stream,
                             bool *here); /* NULL: every stream belongs to the backend */
    zr_result (*memory_info)(zr_backend *backend, struct zr_backend_memory *out);
    zr_result (*export_fd)(zr_backend *backend, const struct zr_handle *handle, struct zr_segment *out);
    zr_result (*import_fd)(zr_backend *backend, const struct zr_segment *segment, struct zr_handle *out);
    void (*export_end)(zr_backend *backend, const struct zr_handle *handle);
    size_t (*reserve_hint)(zr_backend *backend,
                           size_t limit_bytes); /* recommended size of an arena's range */
    zr_result (*enter)(zr_backend *backend);    /* required with leave() */
    void (*leave)(zr_backend *backend);
    /* Return the handle's memory to the system, and commit memory again, with undefined contents. The handle
     * and its mapping stay. In between, the mapping has no access. */
    void (*vacate)(zr_backend *backend, struct zr_handle *handle);
    zr_result (*occupy)(zr_backend *backend, struct zr_handle *handle);
    /* The key of the zrd that lends this memory: "host" or a device's UUID; "": none. */
    zr_result (*lender_key)(zr_backend *backend, char out[ZR_LENDER_KEY_BYTES]);
};

struct zr_backend {
    const struct zr_backend_ops *ops;
    struct zr_capabilities can;
    const char *memory;  /* a description for messages, valid as long as the backend; NULL: ops->name */
    size_t limit_bytes;  /* limit of held_bytes; 0: none */
    uint64_t device;     /* a GPU's number, the same in every process; 0: unknown, or no GPU */
    size_t before_bytes; /* a GPU's bytes that were in use by all processes when the backend was created */
    struct zr_lender *lender; /* the lender of this backend's memory (lender.h); NULL: none */
    pthread_mutex_t lock;     /* covers all fields below */
    size_t held_bytes;        /* bytes of existing handles */
    size_t vmas_count;        /* mappings; those that the kernel joins count once; 0 without a budget */
    unsigned arenas_count;
    struct zr_range *ranges;
    struct zr_slab handles, mappings, chunks, range_records;
    pthread_mutex_t create_lock; /* for the implementation, around creation; acquired after `lock` */
    zr_backend *next, *previous; /* all backends of the process */
};

/* For implementations: initialize and destroy the front. The implementation owns `backend`, which is zeroed
 * except for ops, can and limit_bytes. */
zr_result zr_backend_init(zr_backend *backend);
void zr_backend_end(zr_backend *backend);
/* Derives the granule size from the options (0: unset), ZR_CONF and the default. */
zr_result zr_backend_granule(size_t requested_bytes, size_t *out);
/* Make the backend's device current for driver calls of the calling thread, and restore the previous device.
 * Called in pairs in one thread. Without effect on a backend without a device. */
ZR_PRIVATE_API zr_result zr_backend_enter(zr_backend *backend);
ZR_PRIVATE_API void zr_backend_leave(zr_backend *backend);
/* Bytes of existing handles. Any thread. */
size_t zr_backend_held_bytes(struct zr_backend *backend);
/* Raises the limit by `bytes`, in whole granules, for memory that a process cannot do without. Any thread. */
void zr_backend_raise_limit(zr_backend *backend, size_t bytes);
/* The mappings of all arenas, counted like can.vma_budget. */
size_t zr_backend_vmas_count(struct zr_backend *backend);

ZR_PRIVATE_API zr_result zr_backend_reserve(zr_backend *backend, size_t bytes, struct zr_range **out);
/* ZR_ERR_INVALID: the range still has mappings. */
ZR_PRIVATE_API zr_result zr_backend_release(struct zr_range *range);
/* For a range whose mappings the driver fails to unmap: drops the records of the range and of its mappings,
 * so that the owner can be destroyed. Returns the leaked bytes, which stay mapped. */
size_t zr_backend_abandon(struct zr_range *range);
/* ZR_ERR_MEMORY: the limit or the machine's memory is exhausted; the message says which. */
zr_result zr_backend_create(zr_backend *backend, size_t bytes, struct zr_handle **out);
/* ZR_ERR_INVALID: the handle was destroyed before. */
ZR_PRIVATE_API zr_result zr_backend_destroy_handle(zr_backend *backend, struct zr_handle *handle);
ZR_PRIVATE_API zr_result zr_backend_map(struct zr_range *range, size_t offset_bytes,
                                        struct zr_handle *handle);
/* A part of a range, on granule boundaries. */
struct zr_bounds {
    size_t offset_bytes, bytes;
};
ZR_PRIVATE_API zr_result zr_backend_unmap(struct zr_range *range, struct zr_bounds extent);
ZR_PRIVATE_API zr_result zr_backend_set_access(struct zr_range *range, struct zr_bounds extent);
/* Gives another device of this process access to all present and future mappings. Any thread. ZR_OK also if
 * all devices have access anyway. After a failure the device may have access to a part; a repeated call
 * continues. ZR_ERR_INVALID: no such device. ZR_ERR_UNAVAILABLE: the device cannot reach the memory. */
zr_result zr_backend_admit(zr_backend *backend, int ordinal);
/* Returns the memory under one whole mapping to the system and its lease to zrd. The addresses must not be
 * accessed until zr_backend_occupy() allocates memory there again, with undefined contents.
 * ZR_ERR_UNAVAILABLE: the backend has no such operation. ZR_ERR_INVALID: not one whole mapping with access,
 * or the handle has several mappings. */
zr_result zr_backend_vacate(struct zr_range *range, struct zr_bounds extent);
/* ZR_ERR_MEMORY, ZR_ERR_UNAVAILABLE: see zr_backend_create(); the mapping stays vacant. */
zr_result zr_backend_occupy(struct zr_range *range, struct zr_bounds extent);
zr_result zr_backend_copy(zr_backend *backend, const struct zr_copy *copy);
zr_result zr_backend_fill(zr_backend *backend, const struct zr_fill *fill);
ZR_PRIVATE_API zr_result zr_backend_event_record(zr_backend *backend, uint64_t stream,
                                                 struct zr_stream_point *out);
/* Whether all work before the event is complete. */
ZR_PRIVATE_API bool zr_backend_event_done(zr_backend *backend, const struct zr_stream_point *event);
zr_result zr_backend_event_wait(zr_backend *backend, const struct zr_stream_point *event);
/* zr_backend_cuda_create() and zr_backend_host_create() with a lender found by `find`; NULL: no lender. */
zr_result zr_backend_cuda_open(zr_backend **out, const struct zr_cuda_options *options, zr_lender_find *find);
zr_result zr_backend_host_open(zr_backend **out, const struct zr_host_options *options, zr_lender_find *find);
/* A part of a file that another module owns, in whole granules; see backend_file.c. */
struct zr_file_part {
    int fd; /* borrowed, open for reading and writing; must outlive the backend */
    uint64_t first_bytes;
    size_t bytes, granule_bytes;
};
/* A backend over a part of a file, with one range whose offsets are those of the part. */
zr_result zr_backend_file_create(zr_backend **out, const struct zr_file_part *part);
/* Waits for all streams of the device's primary context, not for those of other contexts. */
zr_result zr_backend_synchronize(zr_backend *backend);
/* Replaces an alias of the default stream by 0. ZR_ERR_INVALID: the per-thread default stream, which cannot
 * order memory. */
zr_result zr_backend_stream_default(uint64_t *stream);
static inline zr_result zr_backend_stream_name(const zr_backend *backend, uint64_t *stream)
{
    return __builtin_expect(*stream - 1 < 2 && backend->can.default_streams, 0)
               ? zr_backend_stream_default(stream)
               : ZR_OK;
}
/* ZR_ERR_INVALID: the stream belongs to another device or context, in which this backend cannot record events
 * and for which zr_backend_synchronize() does not wait. */
zr_result zr_backend_stream_check(zr_backend *backend, uint64_t stream);
/* Whether the stream belongs to another device or context, as far as the driver can tell. */
bool zr_backend_stream_elsewhere(zr_backend *backend, uint64_t stream);
/* Waits for all work submitted to the stream so far, by an event or else by synchronizing the device. After a
 * failure the stream's progress is unknown. */
zr_result zr_backend_stream_wait(zr_backend *backend, uint64_t stream);
zr_result zr_backend_memory_info(zr_backend *backend, struct zr_backend_memory *out);
zr_result zr_backend_export(zr_backend *backend, const struct zr_handle *handle, struct zr_segment *out);
/* Closes the descriptor that an export has opened for the handle, if can.descriptors. */
void zr_backend_export_end(zr_backend *backend, const struct zr_handle *handle);
ZR_PRIVATE_API zr_result zr_backend_import(zr_backend *backend, const struct zr_segment *segment,
                                           struct zr_handle **out);

/* The mapping that contains this byte of the range; NULL: none. Only the range's owner may call it. */
struct zr_mapping *zr_range_mapping(const struct zr_range *range, size_t offset_bytes);

/* The simulated time of a sim backend. */
uint64_t zr_sim_clock_ns(const zr_backend *backend);
void zr_sim_clock_advance(zr_backend *backend, uint64_t ns);

#endif
