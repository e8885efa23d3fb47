/* shape.c: chooses the shape of a GPT from its number of parameters.
 *
 * For each width, the best number of layers is tried. The cost of a shape adds two terms: the distance
 * from the requested number of parameters, and the distance from the usual proportions of published
 * models, which grow in width faster than in depth: 64 channels per layer at 1e8 parameters, 128 at 1e10,
 * 256 at 1e12. */
#include "zero/train/settings/args.h"

#include <math.h>

enum { WIDEST = 1 << 20, MAX_LAYERS = 65536 };

/* Channels per head; the width is a multiple of this number. */
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
        /* a deviation of 1 % in parameters costs as much as half a doubling of the proportion */
        double cost = 50 * miss + fabs(log2(hidden / layers / usual));
        if (cost >= best || layers > MAX_LAYERS || width / head_channels(width) % zr_shape_tensor(shape))
            continue;
        best = cost;
        shape->layers = (size_t)layers;
        shape->hidden = width;
        shape->heads = width / head_channels(width);
    }
}
