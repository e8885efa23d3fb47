/* pass.c: operations shared by the architectures: gathers and sums between tensor ranks, the embedding. */
#include <stdlib.h>
#include <string.h>

#include "zero/model/transformer.h"

/* ---- Between tensor ranks ------------------------------------------------------------------------------ */

struct zr_slot zr_slot_all_rows(const struct zr_shape *shape, const char *name)
{
    return (struct zr_slot){
        .name = name, .columns = shape->sequence_parallel ? shape->hidden : 0, .life = ZR_SLOT_TEMPORARY};
}

zr_result zr_pass_all_rows(struct zr_module_pass *pass, const void *own, unsigned slot, const void **all)
{
    zr_ticket ticket;
    *all = own;
    if (!zr_pass_shape(pass)->sequence_parallel)
        return ZR_OK;
    zr_result result = pass->slots[slot] ? ZR_OK : zr_module_take(pass, slot);
    *all = pass->slots[slot];
    if (result != ZR_OK || !zr_pass_opens(pass))
        return result;
    result = zr_comm_all_gather(
        pass->tensor,
        &(struct zr_all_gather){.source = own,
                                .destination = pass->slots[slot],
                                .shard_bytes = pass->own_rows * zr_pass_shape(pass)->hidden *
                                               zr_precision_bytes(pass->context->precision),
                                .type = (enum zr_comm_type)pass->context->precision,
                                .label = ZR_COMM_LABEL_NONE},
        &ticket);
    return result == ZR_OK ? zr_comm_wait(pass->tensor, ticket) : result;
}

void zr_pass_drop_rows(struct zr_module_pass *pass, unsigned slot)
{
    if (zr_pass_closes(pass))
        zr_module_drop(pass, slot);
}

zr_result zr_pass_open_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum, void *own, unsigned slot)
{
    *sum = (struct zr_pass_sum){.own = own, .part = own, .slot = slot};
    if (!zr_pass_shape(pass)->sequence_parallel)
        return ZR_OK;
    zr_result result = pass->slots[slot] ? ZR_OK : zr_module_take(pass, slot);
    sum->part = pass->slots[slot];
    return result;
}

zr_result zr_pass_start_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    size_t elements = pass->rows * shape->hidden / zr_shape_tensor(shape);
    if (zr_shape_tensor(shape) == 1 || !zr_pass_closes(pass))
        return ZR_OK;
    if (shape->sequence_parallel)
        return zr_comm_reduce_scatter(
            pass->tensor,
            &(struct zr_reduce_scatter){.source = sum->part,
                                        .destination = sum->own,
                                        .shard_elements = elements,
                                        .scale = 1,
                                        .type = (enum zr_comm_type)pass->context->precision,
                                        .label = ZR_COMM_LABEL_NONE},
            &sum->ticket);
    return zr_comm_all_reduce(pass->tensor,
                              &(struct zr_all_reduce){.buffer = sum->own,
                                                      .shard_elements = elements,
                                                      .scale = 1,
                                                      .type = (enum zr_comm_type)pass->context->precision,
                                                      .label = ZR_COMM_LABEL_NONE},
                              &sum->ticket);
}

zr_result zr_pass_end_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum)
{
    zr_result result = ZR_OK;
    if (!zr_pass_closes(pass))
        return ZR_OK;
    if (zr_shape_tensor(zr_pass_shape(pass)) > 1)
        result = zr_comm_wait(pass->tensor, sum->ticket);
    if (sum->part != sum->own)
        zr_module_drop(pass, sum->slot);
    return result;
}

zr_result zr_pass_close_sum(struct zr_module_pass *pass, struct zr_pass_sum *sum)
{
    zr_result result = zr_pass_start_sum(pass, sum);
    return result == ZR_OK ? zr_pass_end_sum(pass, sum) : result;
}

size_t zr_pass_layer(const struct zr_module_pass *pass)
{
    const char *dot = strrchr(pass->model->modules[pass->module].name, '.'); /* "h.12", "layers.12" */
    return dot ? strtoul(dot + 1, NULL, 10) : 0;
}

/* ---- The embedding ------------------------------------------------------------------------------------- */

zr_result zr_pass_embed(struct zr_module_pass *pass, unsigned slot)
{
    struct zr_vocabulary_share share = zr_pass_vocabulary(pass);
    struct zr_pass_sum sum;
    zr_result result = zr_pass_open_sum(pass, &sum, pass->y, slot);
    if (result == ZR_OK)
        result = pass->kernels->embedding_forward(
            pass->context, &(struct zr_embedding_forward){.rows = pass->rows,
                                                          .channels = zr_pass_shape(pass)->hidden,
                                                          .tokens = pass->inputs[ZR_INPUT_TOKENS],
                                                          .first_row = share.first,
                                                          .w_rows = share.rows,
                                                          .keeps = !zr_pass_opens(pass),
                                                          .w = pass->parameters[0][0],
                                                          .y = sum.part});
    return result == ZR_OK ? zr_pass_close_sum(pass, &sum) : result;
}

zr_result zr_pass_embed_backward(struct zr_module_pass *pass, unsigned slot)
{
    struct zr_vocabulary_share share = zr_pass_vocabulary(pass);
    const void *dy;
    if (!pass->gradients[0][0]) /* frozen */
        return ZR_OK;
    zr_result result = zr_pass_all_rows(pass, pass->dy, slot, &dy);
    if (result == ZR_OK)
        result = pass->kernels->embedding_backward(
            pass->context, &(struct zr_embedding_backward){.rows = pass->rows,
                                                           .channels = zr_pass_shape(pass)->hidden,
                                                           .tokens = pass->inputs[ZR_INPUT_TOKENS],
                                                           .dy = dy,
                                                           .dw = pass->gradients[0][0],
                                                           .first_row = share.first,
                                                           .w_rows = share.rows,
                                                           .accumulate = pass->accumulate[0]});
    zr_pass_drop_rows(pass, slot);
    return result;
}
