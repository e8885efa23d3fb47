/* message.c: see message.h. */
#include "zero/train/message.h"

#include "zero/comm/mesh.h"

zr_result zr_step_message_gather(const struct zr_train_config *config, zr_comm *comm,
                                 const struct zr_step_message *mine, struct zr_step_message *out)
{
    struct zr_step_message all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(comm, mine, sizeof *mine, all);
    if (result != ZR_OK)
        return result;
    *out = (struct zr_step_message){0};
    struct zr_mesh_shape mesh = zr_train_mesh(config);
    for (unsigned r = 0; r < config->world; r++) {
        if (zr_mesh_place_of(mesh, r).tensor == 0) /* ranks of one tensor group have the same loss; other
                                                    * pipeline ranks have 0 */
            out->loss += all[r].loss;
        if (all[r].request > out->request)
            out->request = all[r].request;
        if (out->end_signal == 0)
            out->end_signal = all[r].end_signal;
        out->yields = out->yields || all[r].yields;
        if (out->refusals.count == 0) {
            out->rank = r;
            out->refusals = all[r].refusals;
        }
    }
    out->loss /= mesh.data;
    return ZR_OK;
}
