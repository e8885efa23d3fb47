/* client.h: one connection of zrd's. Private to alloc/service/. */
#ifndef ZR_SERVICE_CLIENT_RECORD_H
#define ZR_SERVICE_CLIENT_RECORD_H

#include "alloc/service/server/server.h"

struct zr_client {
    struct zr_holder holder; /* first; in the ledger if `registered` */
    struct zr_server *server;
    struct zr_client *next, *previous;
    struct zr_source line_source, process_source;
    int line, bell, process; /* -1: none. process: a pidfd */
    int files[ZR_SERVICE_FILES_MOST];
    unsigned files_count;
    struct zr_pieces pieces; /* of a device's; what else it holds it has made itself, or another zrd */
    bool registered;
    bool doomed;                        /* over at the end of the step */
    bool revoked;                       /* and its memory is taken, whatever it does with it */
    char words[ZR_SERVICE_WORDS_BYTES]; /* why; "": it has hung up */
    uint64_t messages_count, since_ns;
    uint64_t inquired_ns; /* when it was asked what it has idle; 0: it has answered */
};

/* A request's answer or a word on the bell; who does not read is over. */
void zr_client_say(struct zr_client *client, int socket, const struct zr_service_message *message, int fd);
/* Is over at the end of the step; the first reason counts. */
void zr_client_doom(struct zr_server *server, struct zr_client *client, bool revoke, const char *words);
/* One message of its. */
void zr_client_obey(struct zr_server *server, struct zr_client *client, struct zr_service_parcel *parcel);

/* Hears all that it has said, its end included. */
void zr_client_hear(struct zr_server *server, struct zr_client *client);

/* ---- A device's memory --------------------------------------------------------------------------------- */

/* A piece of so many bytes for it. */
zr_result zr_client_lend(struct zr_client *client, uint64_t bytes, struct zr_device_piece **out);
/* What it gives back, by number. ZR_ERR_INVALID: it does not hold that. */
zr_result zr_client_take_back(struct zr_client *client, const struct zr_service_message *message);
/* False: the process lives, and may use what it has: no zrd can take a device's memory from it. */
bool zr_client_release_pieces(struct zr_client *client);
/* Another descriptor of a piece that it holds. */
void zr_client_send_piece(struct zr_client *client, uint64_t number);

/* ---- Files --------------------------------------------------------------------------------------------- */

/* Makes a file and sends it. */
void zr_client_make_file(struct zr_client *client);
/* Takes what the client says is its file. ZR_ERR_INVALID: it is none of zrd's kind, or another's. */
zr_result zr_client_adopt_file(struct zr_server *server, struct zr_client *client, int fd);
/* What its files take of the machine's memory. */
uint64_t zr_client_resident_bytes(const struct zr_client *client);
/* The memory is the system's again, and who touches it still gets SIGBUS. */
void zr_client_revoke_files(struct zr_client *client);
/* Gives the files' memory back unless somebody maps it still. False: somebody does. */
bool zr_client_release_files(struct zr_client *client);
/* Closes them, no more. */
void zr_client_close_files(struct zr_client *client);

#endif
