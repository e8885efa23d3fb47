/* messages.h: what ranks exchange once per step while gradients are being reduced: losses, requests,
 * refusals. It includes signals: a separate message for them would wait, after the step, for the all-gather
 * of parameters.
 *
 * An asynchronous pipeline ends a step on each stage at its own time. There the exchange runs beside the next
 * steps, and a step's message is complete `lag` steps later, when all stages have ended the step: no rank
 * waits for another one.
 *
 * Workers of parameter servers that do not wait for one another (zr_train_is_free()) write their messages to
 * the board, a file of the run. A step's message is complete when all have written theirs. So do workers that
 * may have successors: a successor reads what its predecessor has written, and writes no message twice. */
#ifndef ZR_TRAIN_MESSAGES_H
#define ZR_TRAIN_MESSAGES_H

#include "zero/train/settings/args.h"

struct zr_message {
    double loss;
    enum zr_request_kind request; /* from a signal or rank 0's clock */
    int end_signal;               /* the signal that requested the end */
    bool resizes;                 /* events want another number of replicas */
    bool yields;                  /* another run waits for this run's time slice */
    double windows;               /* of an evaluation's loss */
    unsigned sender;              /* set by the exchange */
    unsigned left;                /* ranks that have left the run; set by the exchange */
    uint64_t clock, gathers;      /* of a worker that may have a successor: as the message is sent */
    unsigned rank;                /* source of `refusals`; set by the exchange */
    struct zr_kernel_refusals refusals;
};

struct zr_messages {
    const struct zr_train_config *config;
    zr_comm *comm;            /* all ranks of the run */
    unsigned lag;             /* 0: a step waits for its message */
    struct zr_message *slots; /* [lag + 1][1 + world]: a step's own message, then those of all ranks */
    zr_ticket *tickets;       /* [lag + 1] */
    uint64_t sent, taken;     /* numbers of messages */
    unsigned rank;
    const struct zr_file *board; /* NULL: messages travel through `comm` */
    bool free;                   /* workers do not wait for the messages of the board */
    bool repeats;                /* `comm` is that of zr_comm_posted_create() */
    uint64_t board_at;
};

/* Collective, as every call of this file. `deferred`: with an asynchronous pipeline messages may lag; false
 * if the communicator cannot read host memory. `config` and `comm` are borrowed until zr_messages_close(). */
zr_result zr_messages_open(struct zr_messages *out, const struct zr_train_config *config, zr_comm *comm,
                           bool deferred);
void zr_messages_close(struct zr_messages *messages); /* allowed for a struct of zeros */
/* Sends a step's message. One that a predecessor has sent stays, and replaces *mine. */
zr_result zr_messages_send(struct zr_messages *messages, struct zr_message *mine);

/* What a worker's predecessor has left. */
struct zr_messages_left {
    bool some;              /* it has sent messages */
    uint64_t steps;         /* whose part in the servers' tables is complete */
    bool ends;              /* the work after the last of these may not be */
    struct zr_message last; /* of this step, if `ends` */
};
/* Finds it by the worker's clock, and continues there: zr_messages_take() returns the messages of all these
 * steps again. */
zr_result zr_messages_succeed(struct zr_messages *messages, uint64_t clock, struct zr_messages_left *out);
/* Whether the next message is complete, or, `ends`, must be waited for because no step follows; with a board
 * `ends` has no effect. */
bool zr_messages_is_due(const struct zr_messages *messages, bool ends);
/* Combines the messages of all ranks of the earliest step that was not taken: the mean loss, summed in rank
 * order, the strongest request, and the refusals of the first rank with any. Bit-identical on all ranks.
 * Errors of zr_comm_wait(). */
zr_result zr_messages_take(struct zr_messages *messages, struct zr_message *out);

/* Reads the losses that this rank has sent, of the first `count` messages. Requires a board; local. */
zr_result zr_messages_own_losses(const struct zr_messages *messages, size_t count, double *out);

/* Sends a message and waits for all. Not between a message and its zr_messages_take(). */
zr_result zr_messages_exchange(struct zr_messages *messages, struct zr_message *mine, struct zr_message *out);

#endif
