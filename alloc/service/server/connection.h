/* connection.h: one connection of zrd. Private to alloc/service/. One thread. */
#ifndef ZR_SERVICE_CLIENT_RECORD_H
#define ZR_SERVICE_CLIENT_RECORD_H

#include "alloc/service/server/server.h"

struct zr_client {
    struct zr_holder holder; /* first; in the ledger if `registered` */
    struct zr_server *server;
    struct zr_client *next, *previous;
    struct zr_source line_source, process_source;
    int line, bell, process; /* -1: none. process: a pidfd */
    int files[ZR_SERVICE_FILES_MAX];
    unsigned files_count;
    struct zr_pieces
        pieces; /* of a device's zrd; other held bytes were lent by an earlier zrd or by no zrd */
    bool registered;
    bool doomed;                        /* disconnected at the end of the loop's step */
    bool revoked;                       /* its memory is revoked as well */
    char words[ZR_SERVICE_WORDS_BYTES]; /* the reason; "": the client closed the connection */
    uint64_t messages_count, since_ns;
    uint64_t inquired_ns; /* when INQUIRE was sent; 0: answered */
};

/* Sends an answer or a notification; a client that does not read is disconnected. */
void zr_client_say(struct zr_client *client, int socket, const struct zr_service_message *message, int fd);
/* Disconnects the client at the end of the loop's step, for the first reason given. */
void zr_client_doom(struct zr_server *server, struct zr_client *client, bool revoke, const char *words);
/* Dispatches one message of the client. */
void zr_client_obey(struct zr_server *server, struct zr_client *client, struct zr_service_parcel *parcel);

/* Receives and dispatches all pending messages, including the end of the connection. */
void zr_client_hear(struct zr_server *server, struct zr_client *client);

/* ---- A device's memory --------------------------------------------------------------------------------- */

/* Lends a piece of `bytes` to the client. */
zr_result zr_client_lend(struct zr_client *client, uint64_t bytes, struct zr_device_piece **out);
/* Takes back a returned piece, by number. ZR_ERR_INVALID: the client does not hold the piece. */
zr_result zr_client_take_back(struct zr_client *client, const struct zr_service_message *message);
/* Frees the pieces of a process that has exited. False: the process lives; device memory cannot be revoked.
 */
bool zr_client_release_pieces(struct zr_client *client);
/* Sends another descriptor of a piece that the client holds. */
void zr_client_send_piece(struct zr_client *client, uint64_t number);

/* ---- Files --------------------------------------------------------------------------------------------- */

/* Creates a memory file and sends its descriptor. */
void zr_client_make_file(struct zr_client *client);
/* Adopts a client's existing file. ZR_ERR_INVALID: not a memory file of zrd, or another client's file. */
zr_result zr_client_adopt_file(struct zr_server *server, struct zr_client *client, int fd);
/* Resident bytes of the client's files. */
uint64_t zr_client_resident_bytes(const struct zr_client *client);
/* Truncates and seals the files: their memory is freed, and access raises SIGBUS. */
void zr_client_revoke_files(struct zr_client *client);
/* Frees the files' memory unless a process still maps it. False: a process does. */
bool zr_client_release_files(struct zr_client *client);
/* Closes the descriptors only. */
void zr_client_close_files(struct zr_client *client);

#endif
