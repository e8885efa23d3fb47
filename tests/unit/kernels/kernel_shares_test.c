/* kernel_shares_test.c: what tensor ranks do with shares of a vocabulary, of a batch's rows and of a softmax,
 * in every precision of every instruction set that this processor has: together the shares are the whole, in
 * bits where nothing is added in another order, and what is not finite in one share stays so. */
#include "tests/support/kernels/kernels_cases.h"

enum { SHARES_MAX = 4 };
static const double tolerance = 3e-6;

/* Sequences of several lengths, vocabularies and channels that fill no vector. */
static const struct shape shapes[] = {{1, 1, 3, 1, 8, 5, 5},
                                      {2, 5, 7, 1, 8, 17, 19},
                                      {3, 16, 33, 3, 8, 40, 41},
                                      {2, 33, 8, 2, 8, 257, 259},
                                      {4, 6, 20, 1, 8, 97, 97}};

/* Where `count` shares of n begin: from the second one on anywhere, in order; a share may be of nothing. */
static void cut(size_t n, unsigned count, size_t at[SHARES_MAX + 1])
{
    at[0] = 0;
    for (unsigned i = 1; i < count; i++)
        at[i] = at[i - 1] + random_bits() % (n - at[i - 1] + 1);
    at[count] = n;
}

static void *row_of(const struct tensor *t, size_t row, size_t channels)
{
    return (char *)t->at + row * channels * zr_precision_bytes(t->precision);
}

static bool same_bits(const struct tensor *a, const struct tensor *b)
{
    return memcmp(a->at, b->at, tensor_bytes(a)) == 0;
}

/* Each token's row comes from the one share that has it; gradients are added in the order of the rows. */
static double case_embedding(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s), channels = s->channels, at[SHARES_MAX + 1];
    const int32_t *tokens = random_tokens(rows, s->vocabulary);
    struct tensor *w = input_of(precision, s->padded * channels, 0, 1),
                  *dy = input_of(precision, rows * channels, 0, 1), *y = output_of(precision, dy->n),
                  *part = output_of(precision, dy->n), *dw = output_of(precision, w->n),
                  *parts = output_of(precision, w->n);
    struct zr_embedding_forward forward = {
        .rows = rows, .channels = channels, .tokens = tokens, .w = w->at, .y = y->at};
    struct zr_embedding_backward backward = {.rows = rows,
                                             .channels = channels,
                                             .tokens = tokens,
                                             .dy = dy->at,
                                             .dw = dw->at,
                                             .w_rows = s->padded};
    bool good = kernels->embedding_forward(c, &forward) == ZR_OK;
    for (int twice = 0; twice < 2; twice++, backward.accumulate = true)
        good = good && kernels->embedding_backward(c, &backward) == ZR_OK;
    for (unsigned count = 1; count <= SHARES_MAX; count++) {
        cut(s->padded, count, at);
        for (unsigned i = count; i-- > 0;) { /* so that no next share clears what is written beyond one */
            forward.first_row = backward.first_row = at[i];
            forward.w_rows = backward.w_rows = at[i + 1] - at[i];
            forward.w = row_of(w, at[i], channels), forward.y = part->at;
            backward.dw = row_of(parts, at[i], channels);
            for (int twice = 0; twice < 2; twice++)
                backward.accumulate = twice,
                good = good && kernels->embedding_backward(c, &backward) == ZR_OK;
            if (forward.w_rows == 0) /* which means all of them */
                continue;
            good = good && kernels->embedding_forward(c, &forward) == ZR_OK;
            for (size_t e = 0; e < y->n; e++) {
                size_t token = (size_t)tokens[e / channels];
                good = good &&
                       tensor_get(part, e) == (token >= at[i] && token < at[i + 1] ? tensor_get(y, e) : 0);
            }
        }
        for (unsigned i = 0; i < count; i++) { /* one share after the other, which keeps the rows of others */
            forward.first_row = at[i], forward.w_rows = at[i + 1] - at[i];
            forward.w = row_of(w, at[i], channels), forward.keeps = i > 0;
            good = good && (forward.w_rows == 0 || kernels->embedding_forward(c, &forward) == ZR_OK);
        }
        good = good && same_bits(part, y);
        forward.keeps = false;
        good = good && same_bits(parts, dw);
    }
    return good ? 0 : INFINITY;
}

/* A share of the rows beside a batch that has zeros in place of all others. */
static double case_positions(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s), channels = s->channels, w_rows = s->sequence + 2, at[SHARES_MAX + 1];
    struct tensor *w = input_of(precision, w_rows * channels, 0, 1),
                  *x = input_of(precision, rows * channels, 0, 1), *y = output_of(precision, x->n),
                  *all = output_of(precision, x->n), *alone = output_of(precision, x->n),
                  *dw = output_of(precision, w->n), *want = output_of(precision, w->n);
    struct zr_positions_forward forward = {
        .rows = rows, .sequence = s->sequence, .channels = channels, .w = w->at, .y = all->at};
    bool good = true;
    memcpy(all->at, x->at, tensor_bytes(x));
    memcpy(y->at, x->at, tensor_bytes(x));
    good = kernels->positions_forward(c, &forward) == ZR_OK;
    cut(rows, SHARES_MAX, at);
    for (unsigned i = 0; i < SHARES_MAX; i++) {
        size_t bytes = (size_t)((char *)row_of(x, at[i + 1], channels) - (char *)row_of(x, at[i], channels));
        struct zr_positions_backward backward = {.rows = rows,
                                                 .sequence = s->sequence,
                                                 .channels = channels,
                                                 .dy = alone->at,
                                                 .dw = want->at,
                                                 .w_rows = w_rows};
        forward.first_row = at[i], forward.rows = at[i + 1] - at[i], forward.y = row_of(y, at[i], channels);
        good = good && kernels->positions_forward(c, &forward) == ZR_OK;
        memset(alone->at, 0, tensor_bytes(alone));
        memcpy(row_of(alone, at[i], channels), row_of(x, at[i], channels), bytes);
        good = good && kernels->positions_backward(c, &backward) == ZR_OK;
        backward.first_row = at[i], backward.rows = at[i + 1] - at[i];
        backward.dy = row_of(x, at[i], channels), backward.dw = dw->at;
        good = good && kernels->positions_backward(c, &backward) == ZR_OK;
        for (size_t e = 0; e < dw->n; e++)
            good = good && tensor_get(dw, e) == tensor_get(want, e);
    }
    return good && same_bits(y, all) ? 0 : INFINITY;
}

/* A product's backward in two calls, dx before the gradients of the weights, is the one call. */
static double case_linear_in_two(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s), in = s->channels, out = s->padded;
    struct tensor *x = input_of(precision, rows * in, 0, 1), *w = input_of(precision, in * out, 0, 1),
                  *dy = input_of(precision, rows * out, 0, 1), *to[2][3];
    bool good = true;
    for (int i = 0; i < 2; i++)
        to[i][0] = output_of(precision, x->n), to[i][1] = output_of(precision, w->n),
        to[i][2] = output_of(precision, out);
    for (unsigned how = 0; how < 4; how++) { /* turned or not; fresh first, then added to */
        struct zr_linear_backward op = {.shape = {rows, in, out, how % 2, 0, 0, false},
                                        .x = x->at,
                                        .w = w->at,
                                        .dy = dy->at,
                                        .dx = to[0][0]->at,
                                        .dw = to[0][1]->at,
                                        .db = to[0][2]->at,
                                        .accumulate = how > 1};
        good = good && kernels->linear_backward(c, &op) == ZR_OK;
        op.dx = to[1][0]->at, op.dw = op.db = NULL;
        good = good && kernels->linear_backward(c, &op) == ZR_OK;
        op.dx = NULL, op.dw = to[1][1]->at, op.db = to[1][2]->at;
        good = good && kernels->linear_backward(c, &op) == ZR_OK;
        for (int i = 0; i < 3; i++)
            good = good && same_bits(to[0][i], to[1][i]);
    }
    return good ? 0 : INFINITY;
}

/* The losses and gradients of logits in shares: both calls of each, and what they are together between. */
static bool softmax(struct zr_kernel_context *c, struct zr_cross_entropy *shares, unsigned count,
                    struct zr_softmax_part *parts)
{
    size_t rows = shares->rows;
    bool good = true;
    for (unsigned i = 0; i < count; i++) {
        shares[i].parts = parts + i * rows;
        good = good && kernels->cross_entropy(c, &shares[i]) == ZR_OK;
    }
    good = good && kernels->softmax_merge(
                       c, &(struct zr_softmax_merge){rows, count, parts, parts + count * rows}) == ZR_OK;
    for (unsigned i = 0; i < count; i++) {
        shares[i].all = parts + count * rows;
        good = good && kernels->cross_entropy(c, &shares[i]) == ZR_OK;
    }
    return good;
}

/* A row of a share with one logit that is not finite, or with nothing else. */
enum spoiled { SPOILED_NONE, SPOILED_ONE, SPOILED_ALL, SPOILED_KINDS };

static void spoil(float *row, size_t width, enum spoiled how, float bad)
{
    size_t one = width > 0 ? random_bits() % width : 0;
    for (size_t v = 0; v < width; v++)
        row[v] = how == SPOILED_ALL || v == one ? bad : row[v];
}

/* Some columns, in a tensor of their own with padding. */
static struct zr_cross_entropy share_of(const struct zr_cross_entropy *all, const struct tensor *logits,
                                        size_t from, size_t to)
{
    struct zr_cross_entropy share = *all;
    share.first_column = from;
    share.columns = to - from;
    share.stride = share.columns + 1 + random_bits() % 3;
    share.logits = output(share.rows * share.stride)->at;
    for (size_t r = 0; r < share.rows; r++)
        memcpy((float *)share.logits + r * share.stride, logits->at + r * all->columns + from,
               share.columns * sizeof(float));
    return share;
}

/* NaN counts as infinite. */
static double apart(double a, double b)
{
    double difference = fabs(a - b);
    return isnan(difference) ? INFINITY : difference;
}

/* The gradient of a logit, an element of the precision in a row of floats. */
static double gradient_of(const struct zr_cross_entropy *op, size_t row, size_t column)
{
    struct tensor t = {.at = (float *)op->logits + row * op->stride, .precision = precision};
    return tensor_get(&t, column);
}

/* The largest difference between the gradients of a share and of all columns, and what padding is not zero.
 */
static double difference(const struct zr_cross_entropy *share, const struct zr_cross_entropy *all)
{
    double most = 0,
           unit = precision == ZR_PRECISION_FP32 ? 1 : 1e3; /* half a unit in the last place of 0.5 */
    for (size_t r = 0; r < share->rows; r++)
        for (size_t v = 0; v < share->stride; v++) {
            double want = v < share->columns ? gradient_of(all, r, share->first_column + v) : 0;
            most = worst(most, apart(gradient_of(share, r, v), want) / unit);
        }
    return most;
}

/* Logits of 200 to either side of zero, beside one call for all columns. The first share has nothing once. */
static double case_softmax(struct zr_kernel_context *c, const struct shape *s)
{
    static const float bad[] = {NAN, INFINITY};
    size_t rows = rows_of(s), n = s->vocabulary, at[SHARES_MAX + 1];
    struct zr_softmax_part *parts = calloc((SHARES_MAX + 1) * rows, sizeof *parts);
    struct tensor *logits = input(rows * n, 0, STEEP), *losses = output(rows), *own = output(rows);
    const struct zr_cross_entropy described = {.rows = rows,
                                               .columns = n,
                                               .targets = random_tokens(rows, n),
                                               .losses = losses->at,
                                               .gradient = true,
                                               .scale = 0.5f};
    struct zr_cross_entropy all = share_of(&described, logits, 0, n), shares[SHARES_MAX];
    bool good = kernels->cross_entropy(c, &all) == ZR_OK;
    double error = 0;
    for (unsigned turn = 0; turn < SPOILED_KINDS * SHARES_MAX; turn++) {
        unsigned count = turn / SPOILED_KINDS + 1;
        enum spoiled how = turn % SPOILED_KINDS;
        cut(n, count, at);
        if (turn == SPOILED_KINDS) /* of two */
            at[1] = 0;
        for (unsigned i = 0; i < count; i++) {
            shares[i] = share_of(&described, logits, at[i], at[i + 1]);
            shares[i].losses = own->at;
            for (size_t r = i; how != SPOILED_NONE && r < rows; r += count)
                spoil((float *)shares[i].logits + r * shares[i].stride, shares[i].columns, how,
                      bad[r / count % 2]);
        }
        good = good && softmax(c, shares, count, parts);
        for (size_t r = 0; r < rows; r++)
            if (how == SPOILED_NONE)
                error = worst(error, apart((double)own->at[r], (double)losses->at[r]) / STEEP);
            else
                good = good && (shares[r % count].columns == 0 || !isfinite(own->at[r]));
        for (unsigned i = 0; how == SPOILED_NONE && i < count; i++)
            error = worst(error, difference(&shares[i], &all));
    }
    free(parts);
    return good ? error / tolerance : INFINITY;
}

static const struct test_case cases[] = {{"embedding", case_embedding},
                                         {"positions", case_positions},
                                         {"linear in two calls", case_linear_in_two},
                                         {"softmax", case_softmax}};

static void test_isa(enum zr_isa isa)
{
    kernels = zr_kernels_cpu(isa);
    for (precision = 0; precision < ZR_PRECISION_COUNT; precision++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++)
                run_case(&cases[i], &shapes[j], j, isa);
}

int main(void)
{
    base_seed = run_seed();
    for_each_isa(test_isa);
    return tap_done();
}
