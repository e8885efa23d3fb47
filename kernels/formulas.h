/* formulas.h: formulas of single numbers, shared by kernels/cpu/, where a number is a vector of floats, and
 * kernels/cuda/, where it is a float. Products and sums are rounded separately; only num_fma() is fused.
 * Before including this file, define
 *
 *   FORMULA                 the specifiers of a function
 *
 *   num, num_of(float)      the type of a number, and its conversion from a float
 *
 *   num_fma(a, b, c)        a b + c, rounded once
 *
 *   num_exp(x), num_sqrt(x)
 *
 *   num_max(a, b)           the larger; b where either is NaN */
#ifndef ZR_KERNELS_FORMULAS_H
#define ZR_KERNELS_FORMULAS_H

/* ---- GELU, in its tanh form ---------------------------------------------------------------------------- */

#define FORMULA_GELU_ROOT  0.7978845608f /* sqrt(2 / pi) */
#define FORMULA_GELU_CUBIC 0.044715f

/* gelu(x) / x. (1 + tanh u) / 2 is 1 / (1 + e^-2u): one exponential, and no cancellation where tanh nears -1.
 */
FORMULA num formula_gelu_gate(num x)
{
    num u = x * num_fma(x * x, num_of(FORMULA_GELU_ROOT * FORMULA_GELU_CUBIC), num_of(FORMULA_GELU_ROOT));
    return num_of(1.0f) / (num_of(1.0f) + num_exp(num_of(-2.0f) * u));
}

FORMULA num formula_gelu_slope(num x)
{
    num gate = formula_gelu_gate(x);
    num slope = num_fma(x * x, num_of(6.0f * FORMULA_GELU_ROOT * FORMULA_GELU_CUBIC),
                        num_of(2.0f * FORMULA_GELU_ROOT));
    return num_fma(x * slope, gate * (num_of(1.0f) - gate), gate);
}

/* ---- Other activations --------------------------------------------------------------------------------- */

/* 1 for x above 0, else 0; between the two for x below 1e-37 */
FORMULA num formula_step(num x)
{
    return num_max(num_of(0.0f) - num_max(num_of(-1.0f), x * num_of(-1e37f)), num_of(0.0f));
}

/* (1 + erf(x / sqrt(2))) / 2: Abramowitz and Stegun, 7.1.26, with an error below 1e-7. `density` is
 * exp(-x^2 / 2). */
FORMULA num formula_normal_share(num x, num density)
{
    num size = num_max(x, num_of(0.0f) - x),
        t = num_of(1.0f) / num_fma(size, num_of(0.3275911f * 0.7071067812f), num_of(1.0f));
    num sum = num_fma(t, num_of(1.061405429f), num_of(-1.453152027f));
    sum = num_fma(sum, t, num_of(1.421413741f));
    sum = num_fma(sum, t, num_of(-0.284496736f));
    sum = num_fma(sum, t, num_of(0.254829592f));
    num tail = num_of(0.5f) * sum * t * density; /* beyond |x| */
    num half = num_of(0.5f) - tail, positive = formula_step(x);
    return num_of(0.5f) + half * (positive + positive - num_of(1.0f));
}

FORMULA num formula_gelu_density(num x)
{
    return num_exp(num_of(-0.5f) * x * x);
}

FORMULA num formula_activate(enum zr_activation activation, num x)
{
    if (activation == ZR_RELU)
        return num_max(num_of(0.0f), x); /* NaN stays */
    if (activation == ZR_GELU_ERF)
        return x * formula_normal_share(x, formula_gelu_density(x));
    return x * formula_gelu_gate(x);
}

FORMULA num formula_activation_slope(enum zr_activation activation, num x)
{
    if (activation == ZR_GELU_TANH)
        return formula_gelu_slope(x);
    if (activation == ZR_RELU)
        return formula_step(x);
    num density = formula_gelu_density(x);
    return num_fma(x * density, num_of(0.3989422804f), formula_normal_share(x, density));
}

/* ---- SwiGLU -------------------------------------------------------------------------------------------- */

FORMULA num formula_sigmoid(num x)
{
    return num_of(1.0f) / (num_of(1.0f) + num_exp(num_of(0.0f) - x));
}

FORMULA num formula_swiglu(bool gelu, num gate, num up)
{
    return gate * (gelu ? formula_gelu_gate(gate) : formula_sigmoid(gate)) * up;
}

/* Gradients of gate and up. */
FORMULA void formula_swiglu_backward(bool gelu, num gate, num up, num d, num *dgate, num *dup)
{
    num s = gelu ? formula_gelu_gate(gate) : formula_sigmoid(gate);
    *dup = d * gate * s;
    *dgate =
        gelu ? d * up * formula_gelu_slope(gate) : d * up * s * num_fma(gate, num_of(1.0f) - s, num_of(1.0f));
}

/* ---- Norms --------------------------------------------------------------------------------------------- */

/* Gradient of x. g: dy w; normal: normalized x; plain, along: means over the row of g and of g normal. */
FORMULA num formula_layernorm_backward(num rstd, num g, num normal, num plain, num along)
{
    return rstd * (g - plain - normal * along);
}

FORMULA num formula_rmsnorm_backward(num rstd, num g, num normal, num along)
{
    return rstd * (g - normal * along);
}

/* ---- Rotary position embedding ------------------------------------------------------------------------- */

FORMULA void formula_turn(num *a, num *b, num cosine, num sine)
{
    num first = *a;
    *a = first * cosine - *b * sine;
    *b = *b * cosine + first * sine;
}

/* ---- Optimizers ---------------------------------------------------------------------------------------- */

/* Constants derived from struct zr_adamw. */
struct formula_adamw {
    num gradient_scale, beta1, beta2, rest1, rest2, inverse1, inverse2, epsilon, rate, decay;
};

FORMULA struct formula_adamw formula_adamw_of(const struct zr_adamw *how)
{
    struct formula_adamw f;
    f.gradient_scale = num_of(how->gradient_scale);
    f.beta1 = num_of(how->beta1);
    f.beta2 = num_of(how->beta2);
    f.rest1 = num_of(1.0f - how->beta1);
    f.rest2 = num_of(1.0f - how->beta2);
    f.inverse1 = num_of(1.0f / how->correction1);
    f.inverse2 = num_of(1.0f / how->correction2);
    f.epsilon = num_of(how->epsilon);
    f.rate = num_of(-how->rate);
    f.decay = num_of(how->weight_decay);
    return f;
}

FORMULA void formula_adamw_move(const struct formula_adamw *f, num gradient, num *momentum, num *variance)
{
    gradient = gradient * f->gradient_scale;
    *momentum = num_fma(f->beta1, *momentum, f->rest1 * gradient);
    *variance = num_fma(f->beta2, *variance, f->rest2 * gradient * gradient);
}

/* What the rate multiplies. */
FORMULA num formula_adamw_step(const struct formula_adamw *f, num p, num momentum, num variance)
{
    return num_fma(f->decay, p, momentum * f->inverse1 / (num_sqrt(variance * f->inverse2) + f->epsilon));
}

/* Returns the new parameter. */
FORMULA num formula_adamw(const struct formula_adamw *f, num gradient, num p, num *momentum, num *variance)
{
    formula_adamw_move(f, gradient, momentum, variance);
    return num_fma(f->rate, formula_adamw_step(f, p, *momentum, *variance), p);
}

/* Adafactor's update before clipping. */
FORMULA num formula_factored(num gradient, num variance, num least)
{
    return gradient / num_sqrt(num_max(least, variance));
}

/* The average of steps with another one. */
FORMULA num formula_averaged(num momentum, num step, num factor, num rest)
{
    return factor * momentum + rest * step;
}

/* A second moment moved by `share` towards the gradient's square and epsilon1. */
FORMULA num formula_moved(num variance, num gradient, num share, num epsilon)
{
    return variance + share * (gradient * gradient + epsilon - variance);
}

/* Muon, with g the scaled gradient. Returns the direction. */
FORMULA num formula_muon(num g, num factor, num *momentum)
{
    *momentum = factor * *momentum + g;
    return g + factor * *momentum;
}

#endif
