/* nccl_board.h: what the ranks of a communicator share: a file in the rehearsal's folder with a seat for each
 * rank and a mailbox for each pair. Private to alloc/rehearse/runtime/. */
#ifndef ZR_REHEARSE_NCCL_BOARD_H
#define ZR_REHEARSE_NCCL_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NCCL_RANKS_MAX = 64, NCCL_MAIL_BYTES = 1 << 20, NCCL_PAGE_BYTES = 4096, NCCL_NAME_BYTES = 128 };

/* What a rank has to say about a split. */
struct nccl_said {
    _Atomic uint64_t number; /* of the split, from 1 */
    int colour, key;
};

struct nccl_seat {
    _Atomic int pid; /* 0: the rank has not come */
    _Atomic bool left;
    uint64_t started; /* of the process: its number may serve another one later */
    int device;       /* of the machine */
    struct nccl_said said[2];
};

/* A message is in it while `sent` is `received` + 1. Only the sender changes `sent`, only the receiver
 * `received`. */
struct nccl_mailbox {
    _Atomic uint64_t sent, received;
    size_t bytes;
    bool zeros;                                     /* the data are, and are not there */
    bool known;                                     /* the sender's program made them, and no kernel */
    _Alignas(NCCL_PAGE_BYTES) unsigned char data[]; /* the board's mail_bytes */
};

/* Messages of collectives and those of ncclSend() have mailboxes of their own: a group may have both in any
 * order. */
enum nccl_kind { NCCL_COLLECTIVE, NCCL_PAIR, NCCL_KINDS };

struct nccl_board {
    struct nccl_seat *seats;
    unsigned char *boxes;
    size_t bytes, mail_bytes; /* mail_bytes: the longest message; less than a mebibyte among many ranks */
    int ranks, rank;
    char name[NCCL_NAME_BYTES];
};

/* Takes the rank's seat on the board of that name, which the first rank makes. 0: errno says why not. */
bool nccl_board_open(struct nccl_board *out, const char *name, int ranks, int rank, int device);
/* Others see that the rank has left; the memory goes. */
void nccl_board_close(struct nccl_board *board);
/* Removes the name, when all have come. */
void nccl_board_unlink(const struct nccl_board *board);
/* A rank that has not come; -1: all are there. */
int nccl_board_missing(const struct nccl_board *board);
/* The rank has come, and has left or its process has ended. */
bool nccl_board_is_gone(const struct nccl_board *board, int rank);
struct nccl_mailbox *nccl_board_box(const struct nccl_board *board, enum nccl_kind kind, int from, int to);

#endif
