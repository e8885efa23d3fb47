/* client.h: this process's part in the allocator service. Private to alloc/.
 *
 * With ZR_CONF=service:on or required, what a host backend creates is leased from zrd first: one message for
 * a handle, none while granules only move within an arena. A process is one client, whatever its backends. It
 * keeps count of what it holds, and tells zrd so when the connection has to be made anew. While there is no
 * zrd, `on` goes on alone and is counted once there is one; `required` waits a while, then fails.
 *
 * There is a zrd for the host's memory and one for each device, and this process is a client of each whose
 * memory it has. A device's zrd sends each piece of memory by descriptor, the host's a file for all.
 *
 * After fork() the child is another client, which holds nothing yet: what it has inherited stays its
 * parent's. A child of vfork() uses none of this.
 *
 * Any thread, but for those of the helper thread (alloc/service/client/helper.c), which hears the bell. */
#ifndef ZR_SERVICE_CLIENT_H
#define ZR_SERVICE_CLIENT_H

#include "alloc/backend/lender.h"
#include "alloc/service/client/protocol.h"
#include "alloc/zr.h"

/* What ZR_CONF says; never in a process that runs with other rights than its user's. */
bool zr_service_wanted(void);
bool zr_service_required(void);

/* This process as the client of one zrd; lives as long as the process. */
struct zr_service;
struct zr_service *zr_service_host(void);
/* By the zrd's key: a device's UUID, or "host". ZR_ERR_UNAVAILABLE: of too many devices. */
zr_result zr_service_of(const char *key, struct zr_service **out);
/* All that were asked for, the host's first; NULL: no more. */
struct zr_service *zr_service_next(const struct zr_service *after);

/* Finds the lender of a backend's memory (zr_lender_find) and registers the process with it. *out is NULL
 * without ZR_CONF=service, where nobody lends such memory, and where its zrd has no name and is not required.
 */
zr_result zr_service_find(zr_backend *backend, struct zr_lender **out);
/* The zrd that lends the backend's memory; NULL: none. */
struct zr_service *zr_service_of_backend(const zr_backend *backend);
struct zr_lender *zr_service_lender(struct zr_service *service);
/* Registers the process, once. ZR_ERR_UNAVAILABLE: required, and zrd is not there.
 */
zr_result zr_service_join(struct zr_service *service);

/* Of the host's: a file for granules, open for reading and writing: the caller's, from zrd where there is
 * one. */
zr_result zr_service_file(int *out);
/* Before the caller closes it. */
void zr_service_file_leave(int fd);
/* As struct zr_lender_ops has it. In a step beside another run's a lease may wait as long as that step. */
zr_result zr_service_lease(struct zr_service *service, size_t bytes, struct zr_lease *out);
/* Called by a thread whose lease waits for another run's step: after half a second, and when it is there.
 * NULL: nobody, as at the start. */
typedef void zr_service_put_off(void *state, bool waits);
void zr_service_on_put_off(struct zr_service *service, zr_service_put_off *put_off, void *state);
/* Another descriptor of a leased piece, the caller's to close. ZR_ERR_UNAVAILABLE: no zrd, or not the one
 * that has lent it. */
zr_result zr_service_piece(struct zr_service *service, uint64_t granule, int *out);
/* After their pages are gone. What another process leased (0, or this one's parent) is not counted. */
void zr_service_return(struct zr_service *service, size_t bytes, const struct zr_lease *lease);

/* Between these two what is returned to the host's zrd is told in few messages: at 64 MiB, and at the last
 * end. Each message wakes zrd up, which on a busy machine takes longer than to give a granule back. Pairs may
 * lie in others. */
void zr_service_gather_begin(void);
void zr_service_gather_end(void);

/* ---- Runs with a plan ---------------------------------------------------------------------------------- */

/* What this process will take of zrd's memory. Processes of one run have the same number. */
struct zr_service_plan {
    uint64_t base_bytes;  /* what stays between steps */
    uint64_t peak_bytes;  /* the most of a step, base included */
    uint64_t spill_bytes; /* of the base: what zr_helper_set_spill()'s function can give between steps */
    uint32_t run, run_count;
    uint32_t threads; /* that compute, where zr_service_claim() is called in its steps; 0: it is not */
    bool waits;       /* to be let in, where it does not fit now */
};
/* Hears now and then what is waited for. False: it waits no longer. */
typedef bool zr_service_waits(void *state, const char *words);

/* Before the memory is taken, once: waits until all of the run have said theirs and zrd lets it in. Without
 * zrd it is let in. ZR_ERR_MEMORY: it does not fit beside what others hold and plan, in zrd's words.
 * ZR_ERR_UNAVAILABLE: as of a lease. ZR_ERR_INTERRUPTED: `waits` ended it, here and of a turn. */
zr_result zr_service_plan(struct zr_service *service, const struct zr_service_plan *plan,
                          zr_service_waits *waits, void *state);
/* What another run lacks, which waits for this one's turn to end; 0: none waits. */
uint64_t zr_service_yield_bytes(const struct zr_service *service);
/* In a step: from here to the next zr_service_turn() this process holds `bytes` at most, of which it has
 * given back what was more. Another run may have the rest. */
void zr_service_claim(struct zr_service *service, size_t bytes);
/* Between two steps, or before the first: ends this process's part in the run's turn, and waits for the next
 * one, which comes once all of the run wait. Until then zrd takes what is idle. */
zr_result zr_service_turn(struct zr_service *service, zr_service_waits *waits, void *state);

/* Why the process is alone, of each zrd that it lacks; "" while it is a client, or takes no part. */
void zr_service_alone(char *words, size_t room_bytes);

/* ---- For the helper thread ----------------------------------------------------------------------------- */

/* From here on this process's bells are heard, and zrd may ask. */
void zr_service_listen(void);
/* What to poll; -1: nothing now. */
int zr_service_bell(const struct zr_service *service);
/* Hears what has come. True: *out is a RECLAIM to be met, or an INQUIRE, and then answered. */
bool zr_service_hear(struct zr_service *service, struct zr_service_message *out);
/* Whether a thread of this process waits for a lease: it may hold an arena, and zrd may make it wait for the
 * very memory that is to be given. */
bool zr_service_is_waiting(const struct zr_service *service);
/* The answer: `bytes` were returned for it. */
void zr_service_given(struct zr_service *service, const struct zr_service_message *reclaim, size_t bytes);
void zr_service_tell_idle(struct zr_service *service, size_t bytes);
/* Now and then: connects again if that is due. */
void zr_service_tick(struct zr_service *service);

#endif
