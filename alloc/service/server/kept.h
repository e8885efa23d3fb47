/* kept.h: kept memory that zrd holds: segments of alloc/keep, each with an account in the ledger. Private to
 * alloc/service/. One thread.
 *
 * An account is a connection record without sockets, so the ledger lends, counts and limits a segment like a
 * client. It counts under the quotas of the process that created it, also after that process's death, until
 * the segment is dropped or no process has written it for keep_for_ns. */
#ifndef ZR_SERVICE_KEPT_H
#define ZR_SERVICE_KEPT_H

#include "alloc/service/server/connection.h"

/* Dispatches one KEEP message. `group`: the group of a new segment. */
void zr_kept_dispatch(struct zr_server *server, struct zr_connection *connection,
                      struct zr_service_packet *packet, const char *group);
/* A new client's quota counts the segments that its process has. */
void zr_kept_own(struct zr_server *server, const struct zr_client *client);
/* The ledger's answer for an account; see struct zr_ledger_calls. */
bool zr_kept_answer(struct zr_server *server, struct zr_connection *account, zr_result result);
/* Before a connection or an account is destroyed: cancels its requests, drops its segment. */
void zr_kept_forget(struct zr_server *server, struct zr_connection *connection);
/* Drops segments that no process has written for too long. */
void zr_kept_check(struct zr_server *server, uint64_t now_ns);
/* The next time for zr_kept_check(); UINT64_MAX: there are no segments. */
uint64_t zr_kept_due_ns(const struct zr_server *server);
/* Logs which segments end with zrd. Returns their number. */
unsigned zr_kept_report_lost(struct zr_server *server);

#endif
