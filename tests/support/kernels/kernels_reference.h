/* kernels_reference.h: every operation of the kernels in double precision, in the plainest way, for
 * kernels_test.c and gradients_test.c. Shapes and layouts are zr_kernels.h's. Inputs are double too, so that
 * finite differences can move them by less than a float can. */
#ifndef ZR_KERNELS_REFERENCE_H
#define ZR_KERNELS_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/zr_kernels.h"

/* The dearest operations do nothing where it is false: of runs that must have the bits of one that was
 * compared. */
static bool reference_wanted = true;

/* ---- Two bytes: by the definition of the formats, in double -------------------------------------------- */

/* What tells bf16 and fp16 apart: bits of the fraction, the least exponent of a normal number, the largest
 * number. */
struct reference_format {
    int fraction, least;
    double most;
};

static inline struct reference_format reference_format(enum zr_precision precision)
{
    return precision == ZR_PRECISION_BF16 ? (struct reference_format){7, -126, 0x1.fep127}
                                          : (struct reference_format){10, -14, 65504};
}

/* 2 to the exponent, from -1022 to 1023, at once: inputs of the tests are made by these in their millions. */
static inline double reference_power(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

static inline double reference_decode(uint16_t bits, enum zr_precision precision)
{
    struct reference_format f = reference_format(precision);
    int exponent = (bits & 0x7fff) >> f.fraction, fraction = bits & ((1 << f.fraction) - 1);
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 0x7fff >> f.fraction)
        return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * fraction * reference_power(f.least - f.fraction);
    return sign * (fraction + (1 << f.fraction)) * reference_power(exponent - 1 + f.least - f.fraction);
}

/* To the nearest, ties to even. A NaN becomes some quiet NaN. */
static inline uint16_t reference_encode(double x, enum zr_precision precision)
{
    struct reference_format f = reference_format(precision);
    uint16_t sign = signbit(x) ? 0x8000 : 0, infinity = (uint16_t)((0x7fff >> f.fraction) << f.fraction);
    if (isnan(x))
        return (uint16_t)(infinity | 1 << (f.fraction - 1));
    double size = fabs(x);
    if (size == 0)
        return sign;
    int exponent = ilogb(size) < f.least ? f.least : ilogb(size);
    double unit = isinf(size) ? 1 : reference_power(exponent - f.fraction),
           rounded = nearbyint(size / unit) * unit;
    if (rounded > f.most)
        return sign | infinity;
    if (rounded < reference_power(f.least))
        return (uint16_t)(sign | (int)(rounded / unit));
    exponent = ilogb(rounded);
    int fraction = (int)(rounded * reference_power(f.fraction - exponent)) - (1 << f.fraction);
    return (uint16_t)(sign | (exponent - f.least + 1) << f.fraction | fraction);
}

/* ---- Operations ---------------------------------------------------------------------------------------- */

/* What the operations share that take a model's embedding, and its head, apart. */
struct embedding_shape {
    const int32_t *tokens; /* [batch, sequence], each in [0, V) */
    size_t batch, sequence, channels;
};
struct head_shape { /* logits[rows, Vp] = x[rows, C] wte[Vp, C]^T, softmax over the first V, cross-entropy */
    const int32_t *targets; /* [rows] */
    size_t rows, channels, vocabulary, vocabulary_padded;
};

static inline void reference_embedding(const struct embedding_shape *s, const double *wte, const double *wpe,
                                       double *out)
{
    for (size_t row = 0; row < s->batch * s->sequence; row++)
        for (size_t c = 0; c < s->channels; c++)
            out[row * s->channels + c] =
                wte[(size_t)s->tokens[row] * s->channels + c] + wpe[row % s->sequence * s->channels + c];
}

/* Adds to dwte and dwpe. */
static inline void reference_embedding_backward(const struct embedding_shape *s, const double *d,
                                                double *dwte, double *dwpe)
{
    for (size_t row = 0; row < s->batch * s->sequence; row++)
        for (size_t c = 0; c < s->channels; c++) {
            dwte[(size_t)s->tokens[row] * s->channels + c] += d[row * s->channels + c];
            dwpe[row % s->sequence * s->channels + c] += d[row * s->channels + c];
        }
}

static inline void reference_layernorm(const struct zr_layernorm *s, const double *x, const double *w,
                                       const double *b, double *y, double *mean, double *rstd)
{
    for (size_t row = 0; row < s->rows; row++) {
        const double *in = x + row * s->channels;
        double sum = 0, squares = 0;
        for (size_t c = 0; c < s->channels; c++)
            sum += in[c];
        mean[row] = sum / (double)s->channels;
        for (size_t c = 0; c < s->channels; c++)
            squares += (in[c] - mean[row]) * (in[c] - mean[row]);
        rstd[row] = 1 / sqrt(squares / (double)s->channels + 1e-5);
        for (size_t c = 0; c < s->channels; c++)
            y[row * s->channels + c] = (in[c] - mean[row]) * rstd[row] * w[c] + b[c];
    }
}

static inline void reference_rmsnorm(const struct zr_rmsnorm_forward *s, const double *x, const double *w,
                                     double *y, double *rstd)
{
    for (size_t row = 0; row < s->rows; row++) {
        const double *in = x + row * s->channels;
        double squares = 0;
        for (size_t c = 0; c < s->channels; c++)
            squares += in[c] * in[c];
        rstd[row] = 1 / sqrt(squares / (double)s->channels + (double)s->epsilon);
        for (size_t c = 0; c < s->channels; c++)
            y[row * s->channels + c] = in[c] * rstd[row] * (w[c] + (double)s->w_offset);
    }
}

/* Adds to dx and dw. */
static inline void reference_rmsnorm_backward(const struct zr_rmsnorm_forward *s, const double *x,
                                              const double *w, const double *dy, double *dx, double *dw)
{
    for (size_t row = 0; row < s->rows; row++) {
        const double *in = x + row * s->channels, *d = dy + row * s->channels;
        double n = (double)s->channels, squares = 0, along = 0;
        for (size_t c = 0; c < s->channels; c++)
            squares += in[c] * in[c];
        double rstd = 1 / sqrt(squares / n + (double)s->epsilon);
        for (size_t c = 0; c < s->channels; c++)
            along += d[c] * (w[c] + (double)s->w_offset) * in[c] * rstd / n;
        for (size_t c = 0; c < s->channels; c++) {
            dx[row * s->channels + c] += rstd * (d[c] * (w[c] + (double)s->w_offset) - in[c] * rstd * along);
            dw[c] += d[c] * in[c] * rstd;
        }
    }
}

/* In place. */
static inline void reference_rotary(const struct zr_rotary *s, double theta, double *x)
{
    for (size_t row = 0; row < s->rows; row++)
        for (size_t head = 0; head < s->heads; head++)
            for (size_t i = 0; i < s->width / 2; i++) {
                size_t position = s->positions ? (size_t)s->positions[row] : row % s->sequence;
                double angle = (double)position * pow(theta, -2.0 * (double)i / (double)s->width);
                double *a = x + row * s->stride + head * (s->head_stride ? s->head_stride : s->width) + i,
                       *b = a + s->width / 2;
                double sine = s->inverse ? -sin(angle) : sin(angle), first = *a;
                *a = first * cos(angle) - *b * sine;
                *b = *b * cos(angle) + first * sine;
            }
}

static inline double reference_swiglu(double gate, double up)
{
    return gate / (1 + exp(-gate)) * up;
}

static inline double reference_swish_slope(double gate)
{
    double sigmoid = 1 / (1 + exp(-gate));
    return sigmoid * (1 + gate * (1 - sigmoid));
}

/* Adds to dx, dw and db. */
static inline void reference_layernorm_backward(const struct zr_layernorm *s, const double *x,
                                                const double *w, const double *dy, double *dx, double *dw,
                                                double *db)
{
    for (size_t row = 0; row < s->rows; row++) {
        const double *in = x + row * s->channels, *d = dy + row * s->channels;
        double n = (double)s->channels, mean = 0, variance = 0, plain = 0, along = 0;
        for (size_t c = 0; c < s->channels; c++)
            mean += in[c] / n;
        for (size_t c = 0; c < s->channels; c++)
            variance += (in[c] - mean) * (in[c] - mean) / n;
        double rstd = 1 / sqrt(variance + 1e-5);
        for (size_t c = 0; c < s->channels; c++) {
            plain += d[c] * w[c] / n;
            along += d[c] * w[c] * (in[c] - mean) * rstd / n;
        }
        for (size_t c = 0; c < s->channels; c++) {
            double normal = (in[c] - mean) * rstd;
            dx[row * s->channels + c] += rstd * (d[c] * w[c] - plain - normal * along);
            dw[c] += d[c] * normal;
            db[c] += d[c];
        }
    }
}

static inline void reference_linear(const struct zr_linear *s, const double *x, const double *w,
                                    const double *bias, double *y)
{
    if (!reference_wanted)
        return;
    for (size_t row = 0; row < s->rows; row++) {
        double *out = y + row * s->out;
        for (size_t o = 0; o < s->out; o++)
            out[o] = bias != NULL ? bias[o] : 0;
        for (size_t i = 0; i < s->in; i++)
            for (size_t o = 0; o < s->out; o++)
                out[o] += x[row * s->in + i] * w[i * s->out + o];
    }
}

/* dx is overwritten; dw and db are added to. */
static inline void reference_linear_backward(const struct zr_linear *s, const double *x, const double *w,
                                             const double *dy, double *dx, double *dw, double *db)
{
    if (!reference_wanted)
        return;
    for (size_t row = 0; row < s->rows; row++)
        for (size_t i = 0; i < s->in; i++) {
            double sum = 0;
            for (size_t o = 0; o < s->out; o++) {
                sum += dy[row * s->out + o] * w[i * s->out + o];
                dw[i * s->out + o] += x[row * s->in + i] * dy[row * s->out + o];
            }
            dx[row * s->in + i] = sum;
        }
    for (size_t row = 0; row < s->rows; row++)
        for (size_t o = 0; o < s->out; o++)
            db[o] += dy[row * s->out + o];
}

/* p[B, A, T, T] is always written. */
/* Elements of a row of q, k and v. */
static inline size_t reference_line(const struct zr_attention *s)
{
    return s->channels + 2 * (s->kv_heads ? s->channels / s->heads * s->kv_heads : s->channels);
}

/* Where in its row a head of queries has its keys. */
static inline size_t reference_keys(const struct zr_attention *s, size_t head)
{
    size_t group = s->kv_heads ? s->heads / s->kv_heads : 1;
    return s->channels + head / group * (s->channels / s->heads);
}

/* First token that token t of sequence b attends to. */
static inline size_t reference_first(const struct zr_attention *s, size_t b, size_t t)
{
    size_t window = s->window && t + 1 > s->window ? t + 1 - s->window : 0,
           document = s->positions ? t - (size_t)s->positions[b * s->sequence + t] : 0;
    return window > document ? window : document;
}

static inline double reference_scale(const struct zr_attention *s)
{
    return s->scale > 0 ? (double)s->scale : 1 / sqrt((double)(s->channels / s->heads));
}

/* Philox4x32-10 with its words one by one, as Salmon et al. write it: the word of a column. */
static inline uint32_t reference_word(const struct zr_dropout_draw *draw, size_t row, unsigned site,
                                      size_t column)
{
    uint64_t x[4] = {column / 4, (uint32_t)(draw->row + row), site, draw->step};
    for (uint32_t r = 0; r < 10; r++) {
        uint64_t a = x[0] * UINT64_C(0xd2511f53), b = x[2] * UINT64_C(0xcd9e8d57);
        uint32_t k0 = draw->key[0] + r * 0x9e3779b9u, k1 = draw->key[1] + r * 0xbb67ae85u;
        x[0] = (b >> 32) ^ x[1] ^ k0, x[1] = (uint32_t)b, x[2] = (a >> 32) ^ x[3] ^ k1, x[3] = (uint32_t)a;
    }
    return (uint32_t)x[column % 4];
}

/* Factor of the probability of key j for query t of head unit % heads. */
static inline double reference_kept(const struct zr_attention *s, size_t unit, size_t t, size_t j)
{
    double rate = (double)s->dropout.rate;
    return rate <= 0 ? 1
           : (double)reference_word(s->dropout.draw, unit / s->heads * s->sequence + t,
                                    s->dropout.site + (unsigned)(unit % s->heads), j) < floor(rate * 0x1p32)
               ? 0
               : 1 / (1 - rate);
}

static inline void reference_attention(const struct zr_attention *s, const double *qkv, double *out,
                                       double *lse, double *p)
{
    if (!reference_wanted)
        return;
    size_t width = s->channels / s->heads, line = reference_line(s), tokens = s->sequence;
    double scale = reference_scale(s);
    memset(p, 0, s->batch * s->heads * tokens * tokens * sizeof *p);
    for (size_t unit = 0; unit < s->batch * s->heads; unit++) {
        size_t b = unit / s->heads, head = unit % s->heads;
        const double *at = qkv + b * tokens * line, *q = at + head * width, *k = at + reference_keys(s, head);
        const double *v = k + (line - s->channels) / 2;
        for (size_t t = 0; t < tokens; t++) {
            double *row = p + (unit * tokens + t) * tokens, largest = -INFINITY, sum = 0;
            double *to = out + (b * tokens + t) * s->channels + head * width;
            size_t first = reference_first(s, b, t);
            for (size_t j = first; j <= t; j++) {
                for (size_t d = 0; d < width; d++)
                    row[j] += q[t * line + d] * k[j * line + d] * scale;
                largest = row[j] > largest ? row[j] : largest;
            }
            for (size_t j = first; j <= t; j++)
                sum += exp(row[j] - largest);
            lse[unit * tokens + t] = largest + log(sum);
            for (size_t j = first; j <= t; j++)
                row[j] = exp(row[j] - lse[unit * tokens + t]);
            for (size_t d = 0; d < width; d++) {
                to[d] = 0;
                for (size_t j = 0; j <= t; j++)
                    to[d] += row[j] * reference_kept(s, unit, t, j) * v[j * line + d];
            }
        }
    }
}

/* dqkv is overwritten. */
static inline void reference_attention_backward(const struct zr_attention *s, const double *qkv,
                                                const double *p, const double *dout, double *dqkv)
{
    if (!reference_wanted)
        return;
    size_t width = s->channels / s->heads, line = reference_line(s), tokens = s->sequence;
    double scale = reference_scale(s);
    memset(dqkv, 0, s->batch * tokens * line * sizeof *dqkv);
    for (size_t unit = 0; unit < s->batch * s->heads; unit++) {
        size_t b = unit / s->heads, head = unit % s->heads, at = b * tokens * line;
        size_t keys = at + reference_keys(s, head), values = keys + (line - s->channels) / 2;
        const double *q = qkv + at + head * width, *k = qkv + keys, *v = qkv + values;
        double *dq = dqkv + at + head * width, *dk = dqkv + keys, *dv = dqkv + values;
        for (size_t t = 0; t < tokens; t++) {
            const double *row = p + (unit * tokens + t) * tokens;
            const double *d_out = dout + (b * tokens + t) * s->channels + head * width;
            double delta = 0;
            for (size_t j = 0; j <= t; j++)
                for (size_t d = 0; d < width; d++)
                    delta += row[j] * reference_kept(s, unit, t, j) * d_out[d] * v[j * line + d];
            for (size_t j = 0; j <= t; j++) {
                double dp = 0, kept = reference_kept(s, unit, t, j);
                for (size_t d = 0; d < width; d++)
                    dp += d_out[d] * v[j * line + d] * kept;
                double ds = row[j] * (dp - delta) * scale;
                for (size_t d = 0; d < width; d++) {
                    dq[t * line + d] += ds * k[j * line + d];
                    dk[j * line + d] += ds * q[t * line + d];
                    dv[j * line + d] += row[j] * kept * d_out[d];
                }
            }
        }
    }
}

static inline double reference_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static inline double reference_gelu_slope(double x)
{
    double root = sqrt(2 / M_PI), t = tanh(root * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

/* losses[rows]; with dlogits (one row of Vp as scratch) also dx overwritten and dwte added to. */
static inline void reference_head(const struct head_shape *s, const double *x, const double *wte,
                                  double *losses, double scale, double *row, double *dx, double *dwte)
{
    if (!reference_wanted)
        return;
    for (size_t r = 0; r < s->rows; r++) {
        const double *in = x + r * s->channels;
        double largest = -INFINITY, sum = 0;
        for (size_t v = 0; v < s->vocabulary; v++) {
            row[v] = 0;
            for (size_t c = 0; c < s->channels; c++)
                row[v] += in[c] * wte[v * s->channels + c];
            largest = row[v] > largest ? row[v] : largest;
        }
        for (size_t v = 0; v < s->vocabulary; v++)
            sum += exp(row[v] - largest);
        losses[r] = largest + log(sum) - row[s->targets[r]];
        if (dx == NULL)
            continue;
        memset(dx + r * s->channels, 0, s->channels * sizeof *dx);
        for (size_t v = 0; v < s->vocabulary; v++) {
            double d = scale * (exp(row[v] - largest) / sum - (v == (size_t)s->targets[r]));
            for (size_t c = 0; c < s->channels; c++) {
                dx[r * s->channels + c] += d * wte[v * s->channels + c];
                dwte[v * s->channels + c] += d * in[c];
            }
        }
    }
}

/* ---- Optimizers ---------------------------------------------------------------------------------------- */

/* Moves the moments and returns what the rate multiplies. */
static inline double reference_adamw_step(const struct zr_adamw *how, double g, double p, double *m,
                                          double *v)
{
    g *= (double)how->gradient_scale;
    *m = how->beta1 * *m + (1 - (double)how->beta1) * g;
    *v = how->beta2 * *v + (1 - (double)how->beta2) * g * g;
    return *m / how->correction1 / (sqrt(*v / how->correction2) + how->epsilon) + how->weight_decay * p;
}

static inline void reference_adamw(const struct zr_adamw *how, double g, double *p, double *m, double *v)
{
    *p -= how->rate * reference_adamw_step(how, g, *p, m, v);
}

/* The update of a whole tensor, and the two sums of squares. */
static inline void reference_lamb(const struct zr_lamb *how, size_t n, const double *gradient, double *p,
                                  double *m, double *v, double squares[2])
{
    double *steps = malloc(n * sizeof *steps), trust = 1;
    squares[0] = squares[1] = 0;
    for (size_t i = 0; i < n; i++) {
        steps[i] = reference_adamw_step(&how->adam, gradient[i], p[i], &m[i], &v[i]);
        squares[0] += steps[i] * steps[i];
        squares[1] += p[i] * p[i];
    }
    if (squares[0] > 0 && squares[1] > 0)
        trust = fmin(fmax(sqrt(squares[1] / squares[0]), how->trust_min), how->trust_max);
    for (size_t i = 0; i < n; i++)
        p[i] -= how->adam.rate * trust * steps[i];
    free(steps);
}

/* The 256 values of a map of eight bits by their codes: decades of 2^i (signed) or 2^(i + 1) steps, as
 * published, of which the signed map lacks the first. */
static inline void reference_block8_map(bool is_signed, double values[256])
{
    unsigned count = 1;
    values[0] = 0;
    for (int decade = is_signed ? 1 : 0; decade < 7; decade++) {
        int steps = 1 << (decade + !is_signed);
        for (int step = 0; step < steps; step++)
            values[count++] = pow(10, decade - 6) * (0.1 + 0.9 * (2 * step + 1) / (2 * steps));
    }
    values[count++] = 1;
    for (unsigned i = 0; is_signed && i < count; i++)
        values[count + i] = -values[i];
}

/* A matrix's elements [first, first + n), as Adafactor sees them. */
struct reference_part {
    size_t n, first, columns;
    double gradient_scale;
};

static inline void reference_factor_sums(const struct reference_part *part, const double *gradient,
                                         double *rows, double *columns)
{
    for (size_t i = 0; i < part->n; i++) {
        double g = gradient[i] * part->gradient_scale;
        rows[(part->first + i) / part->columns] += g * g;
        columns[(part->first + i) % part->columns] += g * g;
    }
}

/* factors += share (sums / count + epsilon - factors) */
static inline void reference_factors(size_t n, const struct zr_adafactor *how, const double *sums,
                                     size_t count, double *factors)
{
    for (size_t i = 0; i < n; i++)
        factors[i] += (double)how->share * (sums[i] / (double)count + (double)how->epsilon1 - factors[i]);
}

static inline double reference_quotient(double gradient, double variance, double epsilon)
{
    return gradient / sqrt(fmax(variance, epsilon));
}

/* The update from the quotients u of a whole tensor; momentum NULL: none. */
static inline void reference_factored(const struct zr_adafactor *how, size_t n, const double *u,
                                      double *master, double *momentum)
{
    double factor = momentum ? (double)how->momentum_factor : 0;
    double updates = 0, masters = 0;
    for (size_t i = 0; i < n; i++) {
        updates += u[i] * u[i];
        masters += master[i] * master[i];
    }
    double alpha = how->relative
                       ? fmin(how->rate, how->step_max) * fmax(how->epsilon2, sqrt(masters / (double)n))
                       : (double)how->rate,
           clip = fmax(1, sqrt(updates / (double)n) / how->threshold);
    for (size_t i = 0; i < n; i++) {
        double change = alpha * u[i] / clip * (1 - factor) + (momentum ? factor * momentum[i] : 0);
        master[i] = master[i] * (1 - (double)how->rate * how->weight_decay) - change;
        if (momentum)
            momentum[i] = change;
    }
}

static inline void reference_orthogonalize(size_t rows, size_t columns, double *x, double *scratch)
{
    const bool tall = rows > columns;
    const size_t side = tall ? columns : rows, length = tall ? rows : columns, along = tall ? columns : 1,
                 across = tall ? 1 : columns;
    double squares = 0, *gram = scratch, *factor = gram + side * side, *next = factor + side * side;
    for (size_t i = 0; i < rows * columns; i++)
        squares += x[i] * x[i];
    for (size_t i = 0; i < rows * columns; i++)
        x[i] /= sqrt(squares) + 1e-7;
    for (int turn = 0; turn < 5; turn++) {
        memset(scratch, 0, (2 * side * side + rows * columns) * sizeof *scratch);
        for (size_t i = 0; i < side; i++)
            for (size_t j = 0; j < side; j++)
                for (size_t k = 0; k < length; k++)
                    gram[i * side + j] += x[i * across + k * along] * x[j * across + k * along];
        for (size_t i = 0; i < side; i++)
            for (size_t j = 0; j < side; j++) {
                factor[i * side + j] = -4.7750 * gram[i * side + j];
                for (size_t k = 0; k < side; k++)
                    factor[i * side + j] += 2.0315 * gram[i * side + k] * gram[k * side + j];
            }
        for (size_t i = 0; i < side; i++)
            for (size_t k = 0; k < length; k++) {
                next[i * across + k * along] = 3.4445 * x[i * across + k * along];
                for (size_t j = 0; j < side; j++)
                    next[i * across + k * along] += factor[i * side + j] * x[j * across + k * along];
            }
        memcpy(x, next, rows * columns * sizeof *x);
    }
}

#endif
