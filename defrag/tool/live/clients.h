/* clients.h: the clients of each zrd, as the tools show them. Private to defrag/tool/. One thread. */
#ifndef ZR_TOOL_CLIENTS_H
#define ZR_TOOL_CLIENTS_H

#include "alloc/service/client/query.h"
#include "defrag/tool/tool.h"

enum { ZR_CLIENTS_SHOWN = 64, ZR_SERVICES_SHOWN = 9 };

/* Of one zrd. */
struct zr_clients {
    char key[ZR_SERVICE_KEY_BYTES];                   /* "host", or a device's UUID */
    bool served;                                      /* by a zrd that answers */
    struct zr_service_message totals;                 /* bytes: the capacity; held_bytes */
    uint64_t idle_bytes;                              /* of all that have told */
    unsigned count;                                   /* of rows */
    struct zr_service_message rows[ZR_CLIENTS_SHOWN]; /* those that hold most, the largest first */
};

/* Of the host's zrd, which may not serve, and of the devices' that do. */
struct zr_services {
    unsigned count; /* 1 or more */
    struct zr_clients each[ZR_SERVICES_SHOWN];
};

/* The keys of this user's zrds: "host", then of the devices that have a socket; a zrd that has ended may have
 * left one. Returns how many. */
unsigned zr_services_keys(char out[ZR_SERVICES_SHOWN][ZR_SERVICE_KEY_BYTES]);
/* `fresh` as zr_service_query() has it. A zrd that does not answer for half a second is none. */
void zr_services_read(struct zr_services *out, enum zr_service_fresh fresh);
/* The client with this number; NULL: it is none. */
const struct zr_service_message *zr_clients_find(const struct zr_clients *clients, long pid);

enum { ZR_CLIENTS_LINE_ROOM = 200 };
/* "zrd lends 74.1 MiB of 110 MiB to 2 processes; 12.0 MiB idle", with "of device e0e1e2e3" after its name. */
const char *zr_clients_words(char out[ZR_CLIENTS_LINE_ROOM], const struct zr_clients *clients);
/* "4.10 GiB held by pid 71 (python3), 4.00 GiB idle, reclaimable in 12 ms". */
const char *zr_client_words(char out[ZR_CLIENTS_LINE_ROOM], const struct zr_service_message *client);
/* An object, the host's with the devices' in it; or null where no zrd serves. */
void zr_services_json(struct zr_text *text, const struct zr_services *services);
/* A member of its array. */
void zr_client_json(struct zr_text *text, const struct zr_service_message *client);

#endif
