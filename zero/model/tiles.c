/* tiles.c: tiles of a pass, and execution of a block, whole or tile by tile. */
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

struct zr_vocabulary_share zr_pass_vocabulary(const struct zr_module_pass *pass)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    return zr_pass_is_whole(pass) ? zr_shape_vocabulary(shape)
                                  : zr_shape_vocabulary_tile(shape, zr_pass_tile(pass));
}

unsigned zr_pass_parameter(const struct zr_module_pass *pass, unsigned tensor)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    const struct zr_block_product *product =
        &zr_shape_table(shape)->products[pass->part / zr_shape_tiles(shape)];
    if (zr_pass_is_whole(pass))
        return tensor;
    return tensor - (zr_pass_tile(pass) > 0 ? product->tiled : product->first);
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

/* ---- A block ------------------------------------------------------------------------------------------- */

/* Range of products that a pass runs: all of them, or one. */
struct products {
    unsigned first, end;
};

static struct products products_of(const struct zr_module_pass *pass)
{
    unsigned product = pass->part / zr_shape_tiles(zr_pass_shape(pass));
    return zr_pass_is_whole(pass) ? (struct products){0, ZR_BLOCK_PRODUCTS}
                                  : (struct products){product, product + 1};
}

/* Without y, the last product is skipped, because only y depends on it. */
zr_result zr_pass_block(struct zr_module_pass *pass)
{
    const struct zr_block_steps *steps = &zr_shape_table(zr_pass_shape(pass))->block;
    struct products now = products_of(pass);
    zr_result result = ZR_OK;
    for (unsigned p = now.first; p < now.end && (pass->y || p < ZR_PRODUCT_NARROW) && result == ZR_OK; p++) {
        if (zr_pass_opens(pass))
            result = steps->before(pass, p);
        if (result == ZR_OK)
            result = steps->multiply(pass, p);
        if (result == ZR_OK && zr_pass_closes(pass))
            result = steps->after(pass, p);
    }
    return result;
}

zr_result zr_pass_block_backward(struct zr_module_pass *pass)
{
    const struct zr_block_steps *steps = &zr_shape_table(zr_pass_shape(pass))->block;
    struct products now = products_of(pass);
    zr_result result = ZR_OK;
    for (unsigned p = now.end; p-- > now.first && result == ZR_OK;) {
        if (zr_pass_opens(pass))
            result = steps->take_gradients(pass, p);
        if (result == ZR_OK)
            result = steps->multiply_back(pass, p);
        if (result == ZR_OK && zr_pass_closes(pass))
            result = steps->go_back(pass, p);
    }
    return result;
}
