/* shape.h: the shape of a GPT with about so many parameters. */
#ifndef ZR_TRAIN_SHAPE_H
#define ZR_TRAIN_SHAPE_H

#include "zero/model/transformer.h"

/* Fills in layers, hidden and heads so that the model has about `parameters` of them, with proportions that
 * are usual for the size, and heads that tensor ranks divide; all else of it is read. Deterministic. */
void zr_shape_choose(struct zr_shape *shape, double parameters);

#endif
