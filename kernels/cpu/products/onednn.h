/* onednn.h: one interface to oneDNN 2 (Debian 12) and oneDNN 3 (Debian 13).
 * A memory descriptor is a value in oneDNN 2 and an object in oneDNN 3: zero it first, and end each with
 * onednn_forget(). */
#ifndef ZR_ONEDNN_H
#define ZR_ONEDNN_H

#include <dnnl.h>
#include <stddef.h>

#if DNNL_VERSION_MAJOR >= 3

static inline dnnl_status_t onednn_describe(dnnl_memory_desc_t *out, const dnnl_dims_t sizes,
                                            dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(out, 2, sizes, type, strides);
}

static inline void onednn_forget(dnnl_memory_desc_t *description)
{
    if (*description)
        dnnl_memory_desc_destroy(*description);
    *description = NULL;
}

static inline dnnl_status_t onednn_memory(dnnl_memory_t *out, const dnnl_memory_desc_t *description,
                                          dnnl_engine_t engine, void *place)
{
    return dnnl_memory_create(out, *description, engine, place);
}

static inline size_t onednn_bytes(const dnnl_memory_desc_t *description)
{
    return dnnl_memory_desc_get_size(*description);
}

static inline dnnl_status_t onednn_scratchpad(dnnl_memory_desc_t *out, const_dnnl_primitive_desc_t primitive)
{
    return dnnl_memory_desc_clone(out, dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0));
}

/* The result is added to the destination. */
static inline dnnl_status_t onednn_append_sum(dnnl_post_ops_t operations)
{
    return dnnl_post_ops_append_sum(operations, 1.0f, 0, dnnl_data_type_undef);
}

static inline dnnl_status_t onednn_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                          const dnnl_memory_desc_t sides[3], dnnl_primitive_attr_t attributes)
{
    return dnnl_matmul_primitive_desc_create(out, engine, sides[0], sides[1], NULL, sides[2], attributes);
}

#else

static inline dnnl_status_t onednn_describe(dnnl_memory_desc_t *out, const dnnl_dims_t sizes,
                                            dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(out, 2, sizes, type, strides);
}

static inline void onednn_forget(dnnl_memory_desc_t *description)
{
    (void)description;
}

static inline dnnl_status_t onednn_memory(dnnl_memory_t *out, const dnnl_memory_desc_t *description,
                                          dnnl_engine_t engine, void *place)
{
    return dnnl_memory_create(out, description, engine, place);
}

static inline size_t onednn_bytes(const dnnl_memory_desc_t *description)
{
    return dnnl_memory_desc_get_size(description);
}

static inline dnnl_status_t onednn_scratchpad(dnnl_memory_desc_t *out, const_dnnl_primitive_desc_t primitive)
{
    *out = *dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0);
    return dnnl_success;
}

/* The result is added to the destination. */
static inline dnnl_status_t onednn_append_sum(dnnl_post_ops_t operations)
{
    return dnnl_post_ops_append_sum(operations, 1.0f);
}

static inline dnnl_status_t onednn_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                          const dnnl_memory_desc_t sides[3], dnnl_primitive_attr_t attributes)
{
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &sides[0], &sides[1], NULL, &sides[2]);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &matmul, attributes, engine, NULL)
                                  : status;
}

#endif

#endif
