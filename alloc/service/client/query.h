/* query.h: what tools ask zrd, and the clients that it has. Private to the project. Any thread. */
#ifndef ZR_SERVICE_QUERY_H
#define ZR_SERVICE_QUERY_H

#include "alloc/service/client/protocol.h"
#include "alloc/zr.h"

/* One question and its answer. ZR_ERR_INVALID: zrd's refusal, in its words; ZR_ERR_PEER, ZR_ERR_TIMEOUT,
 * ZR_ERR_FORMAT. */
zr_result zr_service_ask(int connection, const struct zr_service_message *message,
                         struct zr_service_message *answer);

/* Gets each client, a message of kind ZR_SERVICE_CLIENT, in the order in which they came. */
typedef void zr_service_row(void *state, const struct zr_service_message *client);

enum zr_service_fresh {
    ZR_SERVICE_KNOWN = 0, /* what clients have idle is what they said last */
    ZR_SERVICE_ASKED,     /* they are asked, for the next question */
    ZR_SERVICE_AWAITED,   /* they are asked, and awaited for up to 0.2 s */
};
struct zr_service_question {
    enum zr_service_fresh fresh;
    uint64_t patience_ns; /* for each answer of zrd's; 0: 10 s */
};

/* All clients of the key's zrd, then the totals, of kind ZR_SERVICE_DONE. ZR_ERR_UNAVAILABLE: no zrd serves;
 * and as zr_service_ask(). */
zr_result zr_service_query(const char *key, const struct zr_service_question *question, zr_service_row *row,
                           void *state, struct zr_service_message *totals);

#endif
