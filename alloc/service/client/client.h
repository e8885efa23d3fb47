/* client.h: the process as a client of zrd. Private to alloc/.
 *
 * With ZR_CONF=service:on or required, a host backend leases each handle from zrd with one message. Moving
 * granules within an arena sends no message. A process is one client for all its backends. The client counts
 * the bytes it holds and reports them to zrd after a reconnect. Without a zrd, `on` allocates from the system
 * until a zrd starts and counts that memory; `required` waits up to a minute, then fails.
 *
 * The host's memory and each device have a zrd of their own, and the process is a client of each that lends
 * memory to it. A device's zrd sends a descriptor for each piece of memory, the host's zrd one file for all.
 *
 * After fork() the child is a new client without leases; inherited memory stays its parent's. A child of
 * vfork() must not call these functions. Any thread may call, except where the helper thread (helper.c),
 * which reads the notification socket, is named. */
#ifndef ZR_SERVICE_CLIENT_H
#define ZR_SERVICE_CLIENT_H

#include "alloc/backend/lender.h"
#include "alloc/service/client/protocol.h"
#include "alloc/zr.h"

/* ZR_CONF=service; always false in a setuid or setgid process. */
bool zr_service_wanted(void);
bool zr_service_required(void);

/* This process as the client of one zrd; never freed. */
struct zr_service;
struct zr_service *zr_service_host(void);
/* The client for a zrd's key: a device's UUID, or "host". ZR_ERR_UNAVAILABLE: too many devices. */
zr_result zr_service_of(const char *key, struct zr_service **out);
/* Iterates over all clients of this process, the host's first; NULL: no more. */
struct zr_service *zr_service_next(const struct zr_service *after);

/* Finds the lender of a backend's memory (zr_lender_find) and registers the process with it. *out is NULL
 * without ZR_CONF=service, for memory that no zrd lends, and for a device without a UUID under service:on. */
zr_result zr_service_find(zr_backend *backend, struct zr_lender **out);
/* The zrd that lends the backend's memory; NULL: none. */
struct zr_service *zr_service_of_backend(const zr_backend *backend);
struct zr_lender *zr_service_lender(struct zr_service *service);
/* Registers the process, once. ZR_ERR_UNAVAILABLE: zrd is required and does not answer. */
zr_result zr_service_join(struct zr_service *service);

/* A memory file of the host's zrd, or of the process without zrd, open for reading and writing. The caller
 * owns *out. */
zr_result zr_service_file(int *out);
/* Must be called before such a file is closed. */
void zr_service_file_leave(int fd);
/* See struct zr_lender_ops. While two runs compute at once, a lease may wait for the other run's step. */
zr_result zr_service_lease(struct zr_service *service, size_t bytes, struct zr_lease *out);
/* Called by a thread whose lease waits for another run's step: with true after half a second, with false when
 * the wait ends. NULL: no call (the initial state). */
typedef void zr_service_deferral(void *state, bool waits);
void zr_service_on_deferral(struct zr_service *service, zr_service_deferral *deferral, void *state);
/* Another descriptor of a leased piece; the caller closes it. ZR_ERR_UNAVAILABLE: no zrd runs, or another zrd
 * lent the piece. */
zr_result zr_service_piece(struct zr_service *service, uint64_t granule, int *out);
/* Returns a lease after its pages were released. A lease of another process (0, or the parent) is not
 * counted. */
void zr_service_return(struct zr_service *service, size_t bytes, const struct zr_lease *lease);

/* Between these calls returns to the host's zrd are batched: one message per 64 MiB and one at the end,
 * because waking zrd takes longer than releasing a granule. Pairs may nest. */
void zr_service_gather_begin(void);
void zr_service_gather_end(void);

/* ---- Runs with a plan ---------------------------------------------------------------------------------- */

/* The byte plan of this process. The processes of one run have the same run number. */
struct zr_service_plan {
    uint64_t base_bytes;  /* kept between steps */
    uint64_t peak_bytes;  /* peak of a step, including the base */
    uint64_t spill_bytes; /* part of the base that zr_helper_set_spill()'s function can swap out */
    uint32_t run, run_count;
    uint32_t threads; /* computing threads, if steps call zr_service_reserve(); else 0 */
    bool waits;       /* wait for admission if the plan does not fit now */
};
/* Called periodically during a wait, with the reason for the wait. False ends the wait. */
typedef bool zr_service_waits(void *state, const char *words);

/* Announces the plan, once, before the memory is allocated. Waits until all processes of the run have
 * announced theirs and zrd admits the run; without zrd succeeds at once. ZR_ERR_MEMORY: the plan does not fit
 * beside other clients and reservations; the message is zrd's. ZR_ERR_UNAVAILABLE: as of zr_service_lease().
 * ZR_ERR_INTERRUPTED: `waits` returned false. */
zr_result zr_service_plan(struct zr_service *service, const struct zr_service_plan *plan,
                          zr_service_waits *waits, void *state);
/* Bytes that a run waiting for the end of this time slice needs; 0: no run waits. */
uint64_t zr_service_yield_bytes(const struct zr_service *service);
/* Reserves at most `bytes` for the rest of the step, until the next zr_service_slice(); memory beyond was
 * returned before the call. zrd may lend the rest to another run. */
void zr_service_reserve(struct zr_service *service, size_t bytes);
/* Ends this process's part of the time slice, between two steps or before the first, and waits for the next
 * time slice, which begins after all processes of the run have called this. Meanwhile zrd may reclaim idle
 * memory. ZR_ERR_INTERRUPTED: `waits` returned false. */
zr_result zr_service_slice(struct zr_service *service, zr_service_waits *waits, void *state);

/* The reasons why the process runs without a zrd it wanted; "" while it is a client, or without
 * ZR_CONF=service. */
void zr_service_alone(char *words, size_t room_bytes);

/* ---- For the helper thread ----------------------------------------------------------------------------- */

/* Tells every zrd that this process now reads its notification sockets. */
void zr_service_listen(void);
/* The descriptor to poll; -1: none now. */
int zr_service_notifications(const struct zr_service *service);
/* Receives a notification. True: *out is a RECLAIM or an INQUIRE that the caller must answer. */
bool zr_service_receive_notification(struct zr_service *service, struct zr_service_message *out);
/* Whether a thread of this process waits for a lease. The thread may hold an arena's lock, and the lease may
 * wait for the memory that zrd requests. */
bool zr_service_is_waiting(const struct zr_service *service);
/* Answers a RECLAIM: `bytes` were returned. */
void zr_service_given(struct zr_service *service, const struct zr_service_message *reclaim, size_t bytes);
void zr_service_report_idle(struct zr_service *service, size_t bytes);
/* Reconnects if a retry is due; called periodically. */
void zr_service_tick(struct zr_service *service);

/* ---- The helper thread (helper.c) ---------------------------------------------------------------------- */

/* A process that is a client of zrd has one helper thread, which polls the notification sockets of all its
 * connections and returns idle memory. The thread does nothing else, because zrd disconnects a client that
 * misses the deadline. The thread starts at the first allocation that needs memory from zrd and whose caller
 * holds no locks; until then zrd requests no memory. A child after fork() starts its own thread. */

/* Swaps out up to `bytes` of memory in use to a tier of the caller, until `until_ns`. Returns the bytes that
 * were returned to zrd. The helper calls the function when zrd requests memory of a paused run. */
typedef size_t zr_helper_spill(void *state, size_t bytes, uint64_t until_ns);
/* Sets the function; NULL: none. Returns after a running call of the previous function has ended. Any thread
 * except the helper. */
void zr_helper_set_spill(zr_helper_spill *spill, void *state);

extern _Atomic bool zr_helper_started; /* the thread was started, or its start failed */
/* Called without locks. Keeps errno and the last error. */
void zr_helper_start(void);

#endif
