/* message.h: the message that ranks exchange once per step while gradients are being reduced. The message
 * includes signals: a separate message for signals would wait, after the step, for the all-gather of
 * parameters. */
#ifndef ZR_TRAIN_MESSAGE_H
#define ZR_TRAIN_MESSAGE_H

#include "kernels/zr_kernels.h"
#include "zero/comm/comm.h"
#include "zero/train/settings/args.h"

struct zr_step_message {
    double loss;
    enum zr_request_kind request; /* from a signal or rank 0's clock */
    int end_signal;               /* the signal that requests the end */
    bool yields;                  /* another run waits for this run's time slice */
    unsigned rank;                /* source of `refusals`; set by zr_step_message_gather() */
    struct zr_kernel_refusals refusals;
};

/* Combines the messages of all ranks: the mean loss, summed in rank order, the strongest request, and the
 * refusals of the first rank with any. Bit-identical on all ranks. Collective, with the errors of
 * zr_comm_host_all_gather(). Called by the thread that drives the engine. */
zr_result zr_step_message_gather(const struct zr_train_config *config, zr_comm *comm,
                                 const struct zr_step_message *mine, struct zr_step_message *out);

#endif
