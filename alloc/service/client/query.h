/* query.h: requests of tools to zrd, and the list of zrd's clients. Private to the project. Any thread. */
#ifndef ZR_SERVICE_QUERY_H
#define ZR_SERVICE_QUERY_H

#include "alloc/service/client/protocol.h"
#include "alloc/zr.h"

/* Sends one request and receives its answer. ZR_ERR_INVALID: zrd refuses, with zrd's message. ZR_ERR_PEER,
 * ZR_ERR_TIMEOUT, ZR_ERR_FORMAT. */
zr_result zr_service_ask(int connection, const struct zr_service_message *message,
                         struct zr_service_message *answer);

/* Called for each client, a message of kind ZR_SERVICE_CLIENT, in order of registration. */
typedef void zr_service_row(void *state, const struct zr_service_message *client);

enum zr_service_fresh {
    ZR_SERVICE_KNOWN = 0, /* idle bytes are the last reported values */
    ZR_SERVICE_ASKED,     /* zrd sends INQUIRE, for the next query */
    ZR_SERVICE_AWAITED,   /* zrd sends INQUIRE, and the query waits up to 0.2 s for the answers */
};
struct zr_service_question {
    enum zr_service_fresh fresh;
    uint64_t patience_ns; /* timeout of each answer; 0: 10 s */
};

/* Lists all clients of the key's zrd, then returns the totals, of kind ZR_SERVICE_DONE. ZR_ERR_UNAVAILABLE:
 * no zrd runs. Other errors: see zr_service_ask(). */
zr_result zr_service_query(const char *key, const struct zr_service_question *question, zr_service_row *row,
                           void *state, struct zr_service_message *totals);

#endif
