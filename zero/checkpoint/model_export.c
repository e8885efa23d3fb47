/* model_export.c: writes a model as one file, all ranks at once; see model_file.h. */
#include <inttypes.h>
#include <unistd.h>

#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/comm/mesh.h"
#include "zero/checkpoint/model_file.h"

void zr_model_export_clean_up(const char *path)
{
    char partial[ZR_STATE_PATH_ROOM];
    if (path[0] && zr_state_partial(path, partial))
        unlink(partial);
}

/* zr_state_model.rows: rows without padding of the vocabulary. */
static uint64_t rows(const struct zr_parameter *parameter, size_t index, const void *whose)
{
    const struct zr_shape *shape = whose;
    return zr_model_file_pads(parameter, index) ? shape->vocabulary : parameter->shape[0];
}

/* zr_state_model.say */
static void say_notes(struct zr_safetensors_header *header, const void *whose)
{
    const struct zr_shape *shape = whose;
    zr_safetensors_note(header, "format", "pt");
    zr_safetensors_note(header, "n_head", "%zu", shape->heads);
    if (shape->architecture == ZR_ARCH_LLAMA) {
        zr_safetensors_note(header, "n_kv_head", "%zu", shape->kv_heads);
        zr_safetensors_note(header, "rope_theta", "%.17g", shape->rope_theta);
        zr_safetensors_note(header, "norm_epsilon", "%.17g", shape->norm_epsilon);
    }
}

zr_result zr_model_export(const struct zr_model_file *file)
{
    struct zr_shape shape = file->shape;
    zr_shape_complete(&shape);
    const struct zr_state_model model = {.rows = rows, .say = say_notes, .whose = &shape};
    struct zr_whole whole;
    zr_result result =
        zr_comm_all_status(file->comm, zr_whole_open(&whole, file->engine, &file->shape, file->comm));
    if (result == ZR_OK)
        result = zr_state_write(
            file->engine, &(struct zr_state_file){.path = file->path, .model = &model, .parts = whole.given},
            NULL);
    zr_whole_close(&whole);
    return result;
}
