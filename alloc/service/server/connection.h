/* connection.h: one connection of zrd. Private to alloc/service/. One thread. */
#ifndef ZR_SERVICE_CLIENT_RECORD_H
#define ZR_SERVICE_CLIENT_RECORD_H

#include "alloc/service/server/server.h"

struct zr_connection {
    struct zr_client client; /* first; in the ledger if `registered` */
    struct zr_server *server;
    struct zr_connection *next, *previous;
    struct zr_source requests_source, process_source;
    int requests, notifications, process; /* -1: none. process: a pidfd */
    int files[ZR_SERVICE_FILES_MAX];
    unsigned files_count;
    struct zr_pieces
        pieces; /* of a device's zrd; other held bytes were lent by an earlier zrd or by no zrd */
    bool registered;
    bool disconnected;                  /* disconnected at the end of the loop's step */
    bool revoked;                       /* its memory is revoked as well */
    char words[ZR_SERVICE_WORDS_BYTES]; /* the reason; "": the client closed the connection */
    /* Kept memory, see below. */
    bool keeps;                    /* uses a segment, so that it may be silent */
    bool waits;                    /* waits for the memory of a segment, whose account has it as `asker` */
    struct zr_connection *asker;   /* account: waits for the answer; NULL: none */
    struct zr_held *held;          /* account: the segment; NULL: none yet */
    struct zr_segment_shape shape; /* account: of the segment to create */
    uint64_t token;
    uint64_t messages_count, since_ns;
    uint64_t inquired_ns; /* when INQUIRE was sent; 0: answered */
};

/* Sends an answer or a notification; a client that does not read is disconnected. */
void zr_connection_send(struct zr_connection *connection, int socket,
                        const struct zr_service_message *message, int fd);
/* Disconnects the client at the end of the loop's step, for the first reason given. */
void zr_connection_disconnect(struct zr_server *server, struct zr_connection *connection, bool revoke,
                              const char *words);
/* Dispatches one message of the client. */
void zr_connection_dispatch(struct zr_server *server, struct zr_connection *connection,
                            struct zr_service_packet *packet);

/* Receives and dispatches all pending messages, including the end of the connection. */
void zr_connection_receive(struct zr_server *server, struct zr_connection *connection);

/* ---- A device's memory --------------------------------------------------------------------------------- */

/* Lends a piece of `bytes` to the client. */
zr_result zr_connection_lend(struct zr_connection *connection, uint64_t bytes, struct zr_device_piece **out);
/* Takes back a returned piece, by number. ZR_ERR_INVALID: the client does not hold the piece. */
zr_result zr_connection_return_piece(struct zr_connection *connection,
                                     const struct zr_service_message *message);
/* Frees the pieces of a process that has exited. False: the process lives; device memory cannot be revoked.
 */
bool zr_connection_release_pieces(struct zr_connection *connection);
/* Sends another descriptor of a piece that the client holds. */
void zr_connection_send_piece(struct zr_connection *connection, uint64_t number);

/* ---- Files --------------------------------------------------------------------------------------------- */

/* Creates a memory file and sends its descriptor. */
void zr_connection_make_file(struct zr_connection *connection);
/* Adopts a client's existing file. ZR_ERR_INVALID: not a memory file of zrd, or another client's file. */
zr_result zr_connection_adopt_file(struct zr_server *server, struct zr_connection *connection, int fd);
/* Resident bytes of the client's files. */
uint64_t zr_connection_resident_bytes(const struct zr_connection *connection);
/* Truncates and seals the files: their memory is freed, and access raises SIGBUS. */
void zr_connection_revoke_files(struct zr_connection *connection);
/* Frees the files' memory unless a process still maps it. False: a process does. */
bool zr_connection_release_files(struct zr_connection *connection);
/* Closes the descriptors only. */
void zr_connection_close_files(struct zr_connection *connection);

/* ---- Kept memory (kept.c) --------------------------------------------------------------------------- */

/* An account is a connection record without sockets, so the ledger lends, counts and limits a segment like a
 * client. It counts under the quotas of the process that created it, also after that process's death, until
 * the segment is dropped or no process has written it for keep_for_ns. */

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
