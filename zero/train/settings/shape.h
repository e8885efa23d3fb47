/* shape.h: chooses the shape of a GPT from its number of parameters. */
#ifndef ZR_TRAIN_SHAPE_H
#define ZR_TRAIN_SHAPE_H

#include "zero/model/transformer.h"

/* Sets layers, hidden and heads so that the model has about `parameters` parameters and the usual
 * proportions of its size, with heads that the tensor ranks divide. Reads the other fields. Deterministic. */
void zr_shape_choose(struct zr_shape *shape, double parameters);

#endif
