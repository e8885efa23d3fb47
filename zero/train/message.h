/* message.h: what a rank tells the others once a step, while the gradients are still being reduced: one
 * message for all of it, since one of its own for signals would wait, behind the step, for the parameters
 * that are still on their way. */
#ifndef ZR_TRAIN_MESSAGE_H
#define ZR_TRAIN_MESSAGE_H

#include "kernels/zr_kernels.h"
#include "zero/comm/comm.h"
#include "zero/train/settings/args.h"

struct zr_step_message {
    double loss;
    enum zr_request_kind request; /* of a signal, or of rank 0's clock */
    int end_signal;               /* the signal, where it asks for the end */
    bool yields;                  /* another run waits for the turn of this one */
    unsigned rank;                /* whose refusals these are; set by the call below */
    struct zr_kernel_refusals refusals;
};

/* The messages of all ranks as one: the mean of the losses, added in rank order, the strongest request, and
 * the refusals of the first rank that has any. The same bits everywhere. Collective; its failures are those
 * of zr_comm_host_all_gather(). The thread that drives the engine. */
zr_result zr_step_message_gather(const struct zr_train_config *config, zr_comm *comm,
                                 const struct zr_step_message *mine, struct zr_step_message *out);

#endif
