/* shape.c: chooses the shape of a GPT from its number of parameters.
 *
 * Of all widths, each with the number of layers that comes closest, the one that is best in two ways at once:
 * near the number that was asked for, and near the proportion of published models of that size, which grow
 * wider faster than deeper: 64 channels per layer at 1e8 parameters, 128 at 1e10, 256 at 1e12. */
#include "zero/train/settings/shape.h"

#include <math.h>

enum { WIDEST = 1 << 20, MOST_LAYERS = 65536 };

/* Channels of a head: what the width is a multiple of. */
static size_t head_channels(size_t hidden)
{
    return hidden >= 4096 ? 128 : hidden >= 256 ? 64 : hidden >= 64 ? 16 : 4;
}

static double count(const struct zr_shape *shape, double layers, double hidden)
{
    struct zr_shape other = *shape;
    other.layers = (size_t)layers;
    other.hidden = (size_t)hidden;
    other.heads = other.hidden / head_channels(other.hidden);
    return zr_shape_elements(&other);
}

void zr_shape_choose(struct zr_shape *shape, double parameters)
{
    double usual = 64 * exp2((log10(parameters) - 8) / 2), best = INFINITY;
    for (size_t width = 4; width <= WIDEST; width += head_channels(width)) {
        double hidden = (double)width, one = count(shape, 1, hidden) - count(shape, 0, hidden);
        double layers = fmax(1, round((parameters - count(shape, 0, hidden)) / one));
        double miss = fabs(count(shape, layers, hidden) / parameters - 1);
        /* a hundredth of the parameters weighs as much as half a doubling of the proportion */
        double cost = 50 * miss + fabs(log2(hidden / layers / usual));
        if (cost >= best || layers > MOST_LAYERS || width / head_channels(width) % zr_shape_tensor(shape))
            continue;
        best = cost;
        shape->layers = (size_t)layers;
        shape->hidden = width;
        shape->heads = width / head_channels(width);
    }
}
