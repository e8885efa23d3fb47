/* service_query.h: what tools ask zrd, and the clients that it has. Private to the project. Any thread. */
#ifndef ZR_SERVICE_QUERY_H
#define ZR_SERVICE_QUERY_H

#include "alloc/backend/service_protocol.h"
#include "alloc/zr.h"

/* One question and its answer. ZR_ERR_INVALID: zrd's refusal, in its words; ZR_ERR_PEER, ZR_ERR_TIMEOUT,
 * ZR_ERR_FORMAT. */
zr_result zr_service_ask(int line, const struct zr_service_message *message,
                         struct zr_service_message *answer);

/* Gets each client, a message of kind ZR_SERVICE_CLIENT, in the order in which they came. */
typedef void zr_service_row(void *state, const struct zr_service_message *client);

/* All clients, then the totals, of kind ZR_SERVICE_DONE. `fresh`: those that can are first asked what they
 * have idle, which takes up to 0.2 s. ZR_ERR_UNAVAILABLE: no zrd serves; and as zr_service_ask(). */
zr_result zr_service_query(bool fresh, zr_service_row *row, void *state, struct zr_service_message *totals);

#endif
