/* shape_list.h: the parameters and units of a model's shape, in arrays of a test's own. */
#ifndef ZR_TEST_SHAPE_LIST_H
#define ZR_TEST_SHAPE_LIST_H

#include <string.h>

#include "zero/model/transformer.h"

/* Of a GPT-2. */
static inline size_t shape_parameters_count(const struct zr_shape *shape)
{
    return 4 + 12 * shape->layers;
}

static inline size_t shape_units_count(const struct zr_shape *shape)
{
    return 3 + shape->layers;
}

static inline void shape_describe(const struct zr_shape *shape, struct zr_parameter *parameters,
                                  struct zr_unit *units)
{
    struct zr_transformer transformer = {0};
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    if (zr_backend_host_create(&backend, NULL) == ZR_OK &&
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "shape"}) == ZR_OK &&
        zr_transformer_open(&transformer, shape, NULL, arena) == ZR_OK) {
        const struct zr_parameter_list *list = &transformer.model.list;
        memcpy(parameters, list->parameters, list->parameters_count * sizeof *parameters);
        memcpy(units, list->units, list->units_count * sizeof *units);
    }
    zr_transformer_close(&transformer);
    if (arena)
        zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

#endif
