/* tiles.c: tiles of a pass and of the vocabulary. */
#include "zero/model/cut.h"
#include "zero/model/transformer.h"

bool zr_pass_is_whole(const struct zr_module_pass *pass)
{
    return zr_module_parts(&pass->model->modules[pass->module]) == 1;
}

/* Whether a pass runs the first tile of a product or the whole module. Forward runs tiles in order, backward
 * in reverse. */
static bool begins(const struct zr_module_pass *pass)
{
    return zr_pass_is_whole(pass) || zr_pass_tile(pass) == 0;
}

static bool ends(const struct zr_module_pass *pass)
{
    return zr_pass_is_whole(pass) || zr_pass_tile(pass) + 1 == zr_shape_tiles(zr_pass_shape(pass));
}

bool zr_pass_opens(const struct zr_module_pass *pass)
{
    return zr_pass_is_backward(pass) ? ends(pass) : begins(pass);
}

bool zr_pass_closes(const struct zr_module_pass *pass)
{
    return zr_pass_is_backward(pass) ? begins(pass) : ends(pass);
}

static struct zr_vocabulary_share vocabulary_rows(const struct zr_shape *shape, size_t first, size_t rows)
{
    size_t left = shape->vocabulary > first ? shape->vocabulary - first : 0;
    return (struct zr_vocabulary_share){.first = first, .rows = rows, .columns = left < rows ? left : rows};
}

struct zr_vocabulary_share zr_shape_vocabulary(const struct zr_shape *shape)
{
    size_t tensor = zr_shape_tensor(shape), rows = (shape->vocabulary_padded + tensor - 1) / tensor;
    return vocabulary_rows(shape, rows * shape->tensor_rank, rows);
}

struct zr_vocabulary_share zr_shape_vocabulary_tile(const struct zr_shape *shape, unsigned tile)
{
    struct zr_vocabulary_share share = zr_shape_vocabulary(shape);
    size_t tiles = zr_shape_tiles(shape), from = share.rows * tile / tiles,
           end = share.rows * (tile + 1) / tiles;
    return vocabulary_rows(shape, share.first + from, end - from);
}

struct zr_vocabulary_share zr_pass_vocabulary(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    return zr_pass_is_whole(pass) ? zr_shape_vocabulary(shape)
                                  : zr_shape_vocabulary_tile(shape, zr_pass_tile(pass));
}

void *zr_pass_columns(const struct zr_module_pass *pass, struct zr_linear *linear, const void *y)
{
    if (zr_pass_is_whole(pass) || !y)
        return (void *)y;
    if (linear->y_stride == 0)
        linear->y_stride = linear->out;
    linear->out /= zr_shape_tiles(zr_pass_shape(pass));
    return (char *)y + zr_pass_tile(pass) * linear->out * zr_precision_bytes(pass->context->precision);
}
