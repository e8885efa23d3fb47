/* loops_optimizers.h: optimizers. Part of loops_body.h. Only AdamW fuses operations; the others have the same
 * bits on every instruction set. */

VF_INLINE vf update_gradient(const struct zr_update *u, size_t i, size_t n)
{
    return u->gradient.precision == ZR_PRECISION_FP32 ? vf_get((const float *)u->gradient.at + i, n)
                                                      : el_get((const el *)u->gradient.at + i, n);
}

VF_INLINE void update_parameter(const struct zr_update *u, size_t i, size_t n, vf value)
{
    vf_put(u->master + i, n, value);
    if (u->parameter.at != NULL)
        el_put((el *)u->parameter.at + i, n, value);
}

static void update_adamw(const void *args, size_t from, size_t to)
{
    const struct formula_adamw how = formula_adamw_of(&((const struct zr_update_adamw *)args)->how);
    const struct zr_update *u = &((const struct zr_update_adamw *)args)->numbers;
    for (size_t i = from; i < to; i += VF_LANES) {
        size_t left = to - i;
        vf m = vf_get(u->momentum + i, left), v = vf_get(u->variance + i, left);
        vf p = formula_adamw(&how, update_gradient(u, i, left), vf_get(u->master + i, left), &m, &v);
        vf_put(u->momentum + i, left, m);
        vf_put(u->variance + i, left, v);
        update_parameter(u, i, left, p);
    }
}

static void update_sgd(const void *args, size_t from, size_t to)
{
    const struct zr_sgd *how = &((const struct zr_update_sgd *)args)->how;
    const struct zr_update *u = &((const struct zr_update_sgd *)args)->numbers;
    const vf gradient_scale = vf_set(how->gradient_scale), momentum = vf_set(how->momentum_factor);
    const vf rate = vf_set(how->rate), decay = vf_set(how->weight_decay);
    for (size_t i = from; i < to; i += VF_LANES) {
        size_t left = to - i;
        vf p = vf_get(u->master + i, left), gradient = update_gradient(u, i, left) * gradient_scale;
        vf m = momentum * vf_get(u->momentum + i, left) + gradient + decay * p;
        vf_put(u->momentum + i, left, m);
        update_parameter(u, i, left, p - rate * m);
    }
}
