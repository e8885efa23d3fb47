/* frames.h: frames of the activation store for the micro-batches in progress, and their transfer between
 * pipeline ranks.
 *
 * A frame has a place for the output and the slots of each module of a part. Micro-batches use the frames of
 * a part round-robin; the order of the pipeline determines their number. Without a pipeline there is one
 * frame. zr_frame_receive() starts a transfer from another rank; the module that reads the tensor waits for
 * it.
 *
 * The trainer owns the frames. All calls are on the trainer's thread. Private to zero/step/. */
#ifndef ZR_STEP_FRAMES_H
#define ZR_STEP_FRAMES_H

#include "zero/model/activations.h"
#include "zero/step/schedule.h"

struct zr_list_run;

/* Places of a module's output and input. Does not block. */
struct zr_activation_place zr_frame_place(const zr_trainer *trainer, size_t module, unsigned micro_batch);

/* The actions SEND and RECEIVE. A sent block belongs to the channel from then on, a received block to the
 * activation store; it can be read after one of the next two functions. */
zr_result zr_frame_send(const struct zr_list_run *run, const struct zr_action *action);
zr_result zr_frame_receive(const struct zr_list_run *run, const struct zr_action *action);

/* Frees packed messages that were not read, because their pass failed. */
void zr_frames_drop(zr_trainer *trainer);

/* Before forward or backward of a module: waits for its input if another rank sends it. */
zr_result zr_frame_await_input(zr_trainer *trainer, size_t module, unsigned micro_batch);
/* Before backward of a part's last module: makes the gradient of the part's output the store's gradients[0];
 * waits for it if another rank sends it. */
zr_result zr_frame_take_gradient(zr_trainer *trainer, size_t module, unsigned micro_batch);
/* After backward of a part's first module: leaves the gradient of its input in the frame if the previous part
 * is on this rank. Does not block. */
void zr_frame_leave_gradient(zr_trainer *trainer, size_t module, unsigned micro_batch);

#endif
