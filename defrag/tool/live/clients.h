/* clients.h: the clients of each zrd, for output by the tools. Private to defrag/tool/. One thread. */
#ifndef ZR_TOOL_CLIENTS_H
#define ZR_TOOL_CLIENTS_H

#include "alloc/service/client/query.h"
#include "defrag/tool/tool.h"

enum { ZR_CLIENTS_SHOWN = 64, ZR_SERVICES_SHOWN = 9 };

/* The clients of one zrd. */
struct zr_clients {
    char key[ZR_SERVICE_KEY_BYTES];                   /* "host", or a device's UUID */
    bool served;                                      /* the zrd answers */
    struct zr_service_message totals;                 /* bytes: the capacity; held_bytes: the sum */
    uint64_t idle_bytes;                              /* sum over clients that have reported */
    unsigned count;                                   /* number of rows */
    struct zr_service_message rows[ZR_CLIENTS_SHOWN]; /* largest held bytes first */
};

/* The zrd of the host, running or not, and each running zrd of a device. */
struct zr_services {
    unsigned count; /* 1 or more */
    struct zr_clients each[ZR_SERVICES_SHOWN];
};

/* The keys of this user's zrds: "host", then the devices that have a socket. A socket may be left over from a
 * zrd that exited. Returns the number of keys. */
unsigned zr_services_keys(char out[ZR_SERVICES_SHOWN][ZR_SERVICE_KEY_BYTES]);
/* `fresh` as in zr_service_query(). A zrd that does not answer within half a second counts as absent. */
void zr_services_read(struct zr_services *out, enum zr_service_fresh fresh);
/* The client with this process number; NULL: none. */
const struct zr_service_message *zr_clients_find(const struct zr_clients *clients, long pid);

enum { ZR_CLIENTS_LINE_ROOM = 200 };
/* Example: "zrd lends 74.1 MiB of 110 MiB to 2 processes; 12.0 MiB idle", with "of device e0e1e2e3" after the
 * name. */
const char *zr_clients_words(char out[ZR_CLIENTS_LINE_ROOM], const struct zr_clients *clients);
/* Example: "4.10 GiB held by pid 71 (python3), 4.00 GiB idle, reclaimable in 12 ms". */
const char *zr_client_words(char out[ZR_CLIENTS_LINE_ROOM], const struct zr_service_message *client);
/* Prints the host's object with the devices' objects inside, or null if no zrd serves. */
void zr_services_json(struct zr_text *text, const struct zr_services *services);
/* Prints one element of the array of clients. */
void zr_client_json(struct zr_text *text, const struct zr_service_message *client);

#endif
