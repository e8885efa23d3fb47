/* frames.c: see frames.h. */
#include "zero/step/frames.h"

#include <limits.h>

#include "zero/step/module_pass.h"
#include "zero/step/trainer.h"

/* Index of a micro-batch's frame. Pipeline only. */
static unsigned frame_of(const zr_trainer *trainer, unsigned part, unsigned micro_batch)
{
    return trainer->first_frame[part] +
           (trainer->flow.first_micro_batch + micro_batch) % trainer->order.held_max[part];
}

struct zr_activation_place zr_frame_place(const zr_trainer *trainer, size_t module, unsigned micro_batch)
{
    size_t count = trainer->model->modules_count;
    if (!trainer->pipelined)
        return (struct zr_activation_place){module, module > 0 ? module - 1 : ZR_NO_MODULE};
    unsigned p = zr_cut_part_of(&trainer->cut, module);
    const struct zr_cut_part *part = &trainer->cut.parts[p];
    struct zr_activation_place place = {frame_of(trainer, p, micro_batch) * count + module, ZR_NO_MODULE};
    if (module == part->first && part->input_part != UINT_MAX)
        place.input = frame_of(trainer, part->input_part, micro_batch) * count + module - 1;
    else if (module > part->first || (module == part->first && part->entry != ZR_NO_MODULE))
        place.input = place.at - 1;
    return place;
}

zr_result zr_frame_await_input(zr_trainer *trainer, size_t module, unsigned micro_batch)
{
    unsigned p = trainer->pipelined ? zr_cut_part_of(&trainer->cut, module) : 0;
    const struct zr_cut_part *part = &trainer->cut.parts[p];
    if (!trainer->pipelined || module != part->first || part->entry == ZR_NO_MODULE)
        return ZR_OK;
    return zr_channel_await(&trainer->channels, &trainer->channels.parts[p].input,
                            &trainer->inputs[frame_of(trainer, p, micro_batch)]);
}

void zr_frames_drop(zr_trainer *trainer)
{
    for (unsigned f = 0; f < trainer->messages_count; f++) {
        zr_drop(trainer->channels.arena, &trainer->inputs[f].packed);
        zr_drop(trainer->channels.arena, &trainer->gradients[f].packed);
    }
}

/* The block of an output of the run's rows, or of its gradient. */
static struct zr_channel_block block_of(const struct zr_list_run *run, size_t output,
                                        const struct zr_action *action, void *block)
{
    const zr_trainer *trainer = run->trainer;
    const struct zr_engine_options *o = &trainer->engine->options;
    size_t rows = run->rows / zr_model_row_ranks(trainer->model);
    return (struct zr_channel_block){.block = block,
                                     .elements = rows * trainer->model->modules[output].type->output_columns,
                                     .precision = o->precision,
                                     .packing = o->compression.activations[action->backward]};
}

zr_result zr_frame_send(const struct zr_list_run *run, const struct zr_action *action)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    unsigned p = zr_cut_part_of(&trainer->cut, action->index);
    struct zr_part_channels *channels = &trainer->channels.parts[p];
    void **place = &store->gradients[0];
    size_t output = action->index;
    if (!action->backward) {
        output--;
        place = &store->outputs[zr_frame_place(trainer, output, action->micro_batch).at];
    }
    struct zr_channel_block block = block_of(run, output, action, *place);
    *place = NULL;
    return zr_channel_send(&trainer->channels,
                           action->backward ? &channels->input_gradient : &channels->output, &block);
}

zr_result zr_frame_receive(const struct zr_list_run *run, const struct zr_action *action)
{
    zr_trainer *trainer = run->trainer;
    struct zr_activations *store = &trainer->activations;
    unsigned p = zr_cut_part_of(&trainer->cut, action->index),
             frame = frame_of(trainer, p, action->micro_batch);
    struct zr_part_channels *channels = &trainer->channels.parts[p];
    size_t output = action->index - action->backward;
    struct zr_activation_place place = zr_frame_place(trainer, output, action->micro_batch);
    zr_result result = action->backward
                           ? zr_activations_take_gradient(store, place.at, &store->incoming[frame])
                           : zr_activations_take(store, place, true);
    if (result != ZR_OK)
        return result;
    struct zr_channel_block block =
        block_of(run, output, action, action->backward ? store->incoming[frame] : store->outputs[place.at]);
    return zr_channel_receive(&trainer->channels,
                              action->backward ? &channels->output_gradient : &channels->input, &block,
                              action->backward ? &trainer->gradients[frame] : &trainer->inputs[frame]);
}

zr_result zr_frame_take_gradient(zr_trainer *trainer, size_t module, unsigned micro_batch)
{
    unsigned p = trainer->pipelined ? zr_cut_part_of(&trainer->cut, module) : 0, frame;
    const struct zr_cut_part *part = &trainer->cut.parts[p];
    zr_result result = ZR_OK;
    if (!trainer->pipelined || module + 1 != part->end || zr_trainer_is_last(trainer, module))
        return ZR_OK;
    frame = frame_of(trainer, p, micro_batch);
    if (part->exit != ZR_NO_MODULE)
        result = zr_channel_await(&trainer->channels, &trainer->channels.parts[p].output_gradient,
                                  &trainer->gradients[frame]);
    trainer->activations.gradients[0] = trainer->activations.incoming[frame];
    trainer->activations.incoming[frame] = NULL;
    return result;
}

void zr_frame_leave_gradient(zr_trainer *trainer, size_t module, unsigned micro_batch)
{
    unsigned p = trainer->pipelined ? zr_cut_part_of(&trainer->cut, module) : 0;
    const struct zr_cut_part *part = &trainer->cut.parts[p];
    if (!trainer->pipelined || module != part->first || part->input_part == UINT_MAX)
        return;
    trainer->activations.incoming[frame_of(trainer, part->input_part, micro_batch)] =
        trainer->activations.gradients[0];
    trainer->activations.gradients[0] = NULL;
}
