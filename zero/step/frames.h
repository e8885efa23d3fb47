/* frames.h: where the micro-batches that a rank holds at a time keep their activations, and how these reach
 * the ranks of a pipeline before and behind.
 *
 * A frame has a place for the output and the slots of each module of a part. Micro-batches take the frames of
 * a part by turns, as many as the order of the pipeline holds at once; without a pipeline there is one frame.
 * What comes from another rank is asked for by receive(), and waited for by the module that reads it.
 *
 * The frames are the trainer's. All calls are of the trainer's thread; those that return nothing but a place
 * wait for nobody. Private to zero/step/. */
#ifndef ZR_STEP_FRAMES_H
#define ZR_STEP_FRAMES_H

#include "zero/model/activations.h"
#include "zero/step/schedule.h"

struct zr_list_run;

/* Where a module has its output, and where it finds its input. */
struct zr_activation_place zr_frame_place(const zr_trainer *trainer, size_t module, unsigned micro_batch);

/* Carry out SEND and RECEIVE. What is sent is the channel's from then on; what is received is the activation
 * store's, there to be read when one of the next two has waited for it. */
zr_result zr_frame_send(const struct zr_list_run *run, const struct zr_action *action);
zr_result zr_frame_receive(const struct zr_list_run *run, const struct zr_action *action);

/* Before forward or backward of a module: waits for the input that comes from another rank; does nothing of
 * any other module. */
zr_result zr_frame_await_input(zr_trainer *trainer, size_t module, unsigned micro_batch);
/* Before backward of a part's last module: the gradient of what the part has handed on, waited for where it
 * comes from another rank, becomes the store's gradients[0]. */
zr_result zr_frame_take_gradient(zr_trainer *trainer, size_t module, unsigned micro_batch);
/* After backward of a part's first module: the gradient of its input waits in its frame, where the part
 * before is of this rank too. */
void zr_frame_leave_gradient(zr_trainer *trainer, size_t module, unsigned micro_batch);

#endif
