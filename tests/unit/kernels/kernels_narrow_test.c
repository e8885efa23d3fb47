/* kernels_narrow_test.c: the two-byte operations, bf16 and fp16, of every instruction set this processor has
 * against the double-precision reference on fresh random inputs and odd shapes, for 1, 2 and 3 threads with
 * the same bits; and the conversions, bit by bit.
 *
 * What is rounded once must be within half a unit of its last place of the exact result (plus what sums in
 * floats lose, as in kernels_test.c): `close_to`. What is made of rounded numbers (the probabilities inside
 * attention, the gradient of the logits) may differ by some units of the largest number: `units_of`. */
#include "tests/support/kernels/kernels_cases.h"

static const double float_tolerance = 3e-6;

static const struct shape shapes[] = {
#ifdef ZR_TEST_ON_CARD
    {1, 1, 15, 3, 9, 257, 320},  {1, 17, 8, 2, 9, 70, 72},   {2, 17, 12, 4, 33, 70, 96},
    {1, 35, 66, 2, 70, 97, 112}, {3, 33, 20, 4, 33, 70, 70}, {2, 64, 48, 3, 192, 257, 320},
#else
    {1, 1, 15, 3, 9, 257, 320},    {2, 3, 4, 4, 16, 5, 8},        {1, 17, 15, 3, 60, 257, 320},
    {3, 33, 20, 4, 33, 70, 70},    {2, 64, 48, 3, 192, 257, 320}, {1, 100, 130, 2, 257, 1000, 1024},
    {2, 150, 64, 2, 800, 97, 112}, {1, 13, 450, 5, 31, 300, 384},
#endif
};

/* Numbers for what works element by element. */
static size_t elements_of(const struct shape *s)
{
    size_t n = s->batch * s->sequence * s->wide;
    return (n < 9000 ? n : 9000) + 4099;
}

static struct tensor *narrow_input(size_t n, double middle, double spread)
{
    return input_of(precision, n, middle, spread);
}

static struct tensor *narrow_output(size_t n)
{
    return output_of(precision, n);
}

/* Half a unit in the last place, as a share of the number. */
static double half_unit(void)
{
    return precision == ZR_PRECISION_BF16 ? 0x1p-8 : 0x1p-11;
}

/* The worst of |got - real| over half a unit of real and what floats lose; 1 is all that is allowed. */
static double close_to(const struct tensor *got)
{
    double most = 0, largest = 1e-30, least = precision == ZR_PRECISION_BF16 ? 0x1p-134 : 0x1p-25;
    for (size_t i = 0; i < got->n; i++)
        largest = worst(largest, fabs(got->real[i]));
    for (size_t i = 0; i < got->n; i++) {
        double allowed = fabs(got->real[i]) * half_unit() + least + 1.01 * float_tolerance * largest;
        double share = fabs(tensor_get(got, i) - got->real[i]) / allowed;
        most = share <= most ? most : isnan(share) ? INFINITY : share;
    }
    return most;
}

static double units_of(const struct tensor *got, double units)
{
    return error_of(got) / (units * half_unit());
}

/* ---- Conversions --------------------------------------------------------------------------------------- */

static bool same_number(uint16_t got, uint16_t wanted)
{
    double a = reference_decode(got, precision), b = reference_decode(wanted, precision);
    uint16_t quiet = precision == ZR_PRECISION_BF16 ? 0x40 : 0x200;
    return isnan(b) ? isnan(a) && (got & quiet) != 0 : got == wanted;
}

static void *memory_of(size_t numbers, size_t number_bytes)
{
    void *memory = tensor_memory(64, (numbers * number_bytes + 63) / 64 * 64);
    if (memory == NULL)
        abort();
    return memory;
}

/* Every number of the format there and back; the middles between neighbours and their floats on both sides.
 */
static void check_all_numbers(struct zr_kernel_context *c)
{
    enum { COUNT = 1 << 16 };
    uint16_t *all = memory_of(COUNT, sizeof *all), *back = memory_of(4 * COUNT, sizeof *back);
    float *wide = memory_of(COUNT, sizeof *wide), *near = memory_of(4 * COUNT, sizeof *near);
    size_t wrong_wide = 0, wrong_back = 0, wrong_near = 0, n = 0;
    for (size_t i = 0; i < COUNT; i++)
        all[i] = (uint16_t)i;
    kernels->convert(c, &(struct zr_convert){COUNT, (struct zr_numbers){all, precision},
                                             (struct zr_numbers){wide, ZR_PRECISION_FP32}});
    kernels->convert(c, &(struct zr_convert){COUNT, (struct zr_numbers){wide, ZR_PRECISION_FP32},
                                             (struct zr_numbers){back, precision}});
    for (size_t i = 0; i < COUNT; i++) {
        double real = reference_decode(all[i], precision);
        wrong_wide +=
            isnan(real) ? !isnan(wide[i]) : (double)wide[i] != real || !signbit(wide[i]) != !signbit(real);
        wrong_back += !same_number(back[i], all[i]);
    }
    for (size_t i = 0; i < COUNT; i++) {
        double low = reference_decode((uint16_t)i, precision),
               high = reference_decode((uint16_t)(i + 1), precision);
        if (isnan(low) || isnan(high) || isinf(low))
            continue;
        if (isinf(high)) /* where the next number would be */
            high = 2 * low - reference_decode((uint16_t)(i - 1), precision);
        float middle = (float)((low + high) / 2);
        near[n++] = middle;
        near[n++] = nextafterf(middle, INFINITY);
        near[n++] = nextafterf(middle, -INFINITY);
    }
    kernels->convert(c, &(struct zr_convert){n, (struct zr_numbers){near, ZR_PRECISION_FP32},
                                             (struct zr_numbers){back, precision}});
    for (size_t i = 0; i < n; i++)
        wrong_near += !same_number(back[i], reference_encode((double)near[i], precision));
    tap_ok(wrong_wide == 0, "%s: all 65,536 numbers of %s widen exactly (%zu do not)", table_name(c->isa),
           zr_precision_name(precision), wrong_wide);
    tap_ok(wrong_back == 0, "%s: and come back (%zu do not)", table_name(c->isa), wrong_back);
    tap_ok(wrong_near == 0, "%s: %zu ties and their neighbours round to even (%zu do not)",
           table_name(c->isa), n, wrong_near);
    tensor_memory_free(all), tensor_memory_free(back), tensor_memory_free(wide), tensor_memory_free(near);
}

/* Any bits of a float: denormals, infinities and NaN among them. */
static void check_any_floats(struct zr_kernel_context *c)
{
    enum { COUNT = 300007 };
    float *any = memory_of(COUNT, sizeof *any);
    uint16_t *narrow = memory_of(COUNT, sizeof *narrow), *other = memory_of(COUNT, sizeof *other);
    static const uint32_t special[] = {0,          0x80000000, 1,          0x80000001, 0x007fffff,
                                       0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
                                       0x7f800001, 0x7fc00000, 0xffffffff, 0x7fbfffff, 0x477fefff,
                                       0x477ff000, 0x33000000, 0x33000001};
    size_t wrong = 0, wrong_other = 0;
    enum zr_precision others = precision == ZR_PRECISION_BF16 ? ZR_PRECISION_FP16 : ZR_PRECISION_BF16;
    for (size_t i = 0; i < COUNT; i++) {
        uint32_t bits = i < sizeof special / 4 ? special[i] : (uint32_t)random_bits();
        if (i % 3 == 1) /* near fp16's least and largest numbers */
            bits = (bits & 0x83ffffff) + (i % 2 ? 0x30000000 : 0x45000000);
        memcpy(&any[i], &bits, sizeof bits);
    }
    kernels->convert(c, &(struct zr_convert){COUNT, (struct zr_numbers){any, ZR_PRECISION_FP32},
                                             (struct zr_numbers){narrow, precision}});
    for (size_t i = 0; i < COUNT; i++)
        wrong += !same_number(narrow[i], reference_encode((double)any[i], precision));
    kernels->convert(c, &(struct zr_convert){COUNT, (struct zr_numbers){narrow, precision},
                                             (struct zr_numbers){other, others}});
    for (size_t i = 0; i < COUNT; i++) {
        uint16_t wanted = reference_encode(reference_decode(narrow[i], precision), others);
        wrong_other += isnan(reference_decode(wanted, others)) ? !isnan(reference_decode(other[i], others))
                                                               : other[i] != wanted;
    }
    tap_ok(wrong == 0, "%s: any float becomes the nearest %s (%zu do not)", table_name(c->isa),
           zr_precision_name(precision), wrong);
    tap_ok(wrong_other == 0, "%s: and %s the nearest %s (%zu do not)", table_name(c->isa),
           zr_precision_name(precision), zr_precision_name(others), wrong_other);
    tensor_memory_free(any), tensor_memory_free(narrow), tensor_memory_free(other);
}

/* ---- Cases --------------------------------------------------------------------------------------------- */

static double case_embedding(struct zr_kernel_context *c, const struct shape *s)
{
    struct embedding_shape e = {random_tokens(rows_of(s), s->vocabulary / 4 + 1), s->batch, s->sequence,
                                s->channels};
    size_t wpe_rows = s->sequence + 2;
    struct tensor *wte = narrow_input(s->padded * s->channels, 0, 1),
                  *wpe = narrow_input(wpe_rows * s->channels, 0, 1);
    struct tensor *out = narrow_output(rows_of(s) * s->channels),
                  *d = narrow_input(rows_of(s) * s->channels, 0, 1);
    struct tensor *dwte = narrow_output(wte->n), *dwpe = narrow_output(wpe->n);
    embed(kernels, c, &e, wte->at, wpe->at, out->at);
    reference_embedding(&e, wte->real, wpe->real, out->real);
    embed_backward(kernels, c, &e, d->at,
                   &(struct embedding_gradients){dwte->at, dwpe->at, s->padded, wpe_rows, false});
    reference_embedding_backward(&e, d->real, dwte->real, dwpe->real);
    double first = worst(close_to(dwte), close_to(dwpe));
    tensor_follow(dwte), tensor_follow(dwpe);
    embed_backward(kernels, c, &e, d->at,
                   &(struct embedding_gradients){dwte->at, dwpe->at, s->padded, wpe_rows, true});
    reference_embedding_backward(&e, d->real, dwte->real, dwpe->real);
    return worst(worst(first, close_to(out)), worst(close_to(dwte), close_to(dwpe)));
}

static double case_layernorm(struct zr_kernel_context *c, const struct shape *s)
{
    struct zr_layernorm l = {rows_of(s), s->channels, 0};
    size_t n = l.rows * l.channels;
    struct tensor *x = narrow_input(n, 0.5, 2), *w = narrow_input(l.channels, 1, 0.5),
                  *b = narrow_input(l.channels, 0, 1);
    struct tensor *y = narrow_output(n), *mean = output(l.rows), *rstd = output(l.rows),
                  *dy = narrow_input(n, 0, 1);
    struct tensor *dx = narrow_output(n), *dw = narrow_output(l.channels), *db = narrow_output(l.channels);
    kernels->layernorm_forward(
        c, &(struct zr_layernorm_forward){l, x->at, w->at, b->at, y->at, mean->at, rstd->at});
    reference_layernorm(&l, x->real, w->real, b->real, y->real, mean->real, rstd->real);
    kernels->layernorm_backward(c,
                                &(struct zr_layernorm_backward){l, x->at, w->at, mean->at, rstd->at, dy->at,
                                                                dx->at, dw->at, db->at, false, false});
    reference_layernorm_backward(&l, x->real, w->real, dy->real, dx->real, dw->real, db->real);
    double first = worst(close_to(dx), worst(close_to(dw), close_to(db)));
    tensor_follow(dx), tensor_follow(dw), tensor_follow(db);
    kernels->layernorm_backward(c,
                                &(struct zr_layernorm_backward){l, x->at, w->at, mean->at, rstd->at, dy->at,
                                                                dx->at, dw->at, db->at, true, true});
    reference_layernorm_backward(&l, x->real, w->real, dy->real, dx->real, dw->real, db->real);
    double second = worst(close_to(dx), worst(close_to(dw), close_to(db)));
    double stats = worst(error_beside(mean, x), error_of(rstd)) / float_tolerance;
    return worst(worst(first, second), worst(close_to(y), stats));
}

static double case_linear(struct zr_kernel_context *c, const struct shape *s)
{
    struct zr_linear l = {.rows = rows_of(s), .in = s->channels, .out = s->wide};
    struct tensor *x = narrow_input(l.rows * l.in, 0, 1), *w = narrow_input(l.in * l.out, 0, 1),
                  *bias = narrow_input(l.out, 0, 1);
    struct tensor *y = narrow_output(l.rows * l.out), *bare = narrow_output(y->n),
                  *dy = narrow_input(y->n, 0, 1);
    struct tensor *dx = narrow_output(x->n), *dw = narrow_output(w->n), *db = narrow_output(l.out),
                  *lone = narrow_output(x->n);
    kernels->linear_forward(c, &(struct zr_linear_forward){l, x->at, w->at, bias->at, y->at, false});
    kernels->linear_forward(c, &(struct zr_linear_forward){l, x->at, w->at, NULL, bare->at, false});
    reference_linear(&l, x->real, w->real, bias->real, y->real);
    reference_linear(&l, x->real, w->real, NULL, bare->real);
    kernels->linear_backward(c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, dx->at, dw->at, db->at,
                                                             false, false, false});
    reference_linear_backward(&l, x->real, w->real, dy->real, dx->real, dw->real, db->real);
    double first = worst(close_to(dx), worst(close_to(dw), close_to(db)));
    tensor_follow(dw), tensor_follow(db);
    kernels->linear_backward(
        c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, NULL, dw->at, NULL, false, true, false});
    kernels->linear_backward(
        c, &(struct zr_linear_backward){l, x->at, w->at, dy->at, lone->at, NULL, db->at, false, true, false});
    reference_linear_backward(&l, x->real, w->real, dy->real, lone->real, dw->real, db->real);
    double second = worst(close_to(lone), worst(close_to(dw), close_to(db)));
    return worst(worst(first, second), worst(close_to(y), close_to(bare)));
}

static double attention_with(struct zr_kernel_context *c, const struct shape *s, size_t kv_heads,
                             const int32_t *positions)
{
    struct zr_attention a = {.batch = s->batch,
                             .sequence = s->sequence,
                             .channels = s->channels,
                             .heads = s->heads,
                             .kv_heads = kv_heads,
                             .positions = positions};
    size_t rows = rows_of(s), square = s->batch * s->heads * s->sequence * s->sequence;
    struct tensor *qkv = attention_input(&a), *dout = narrow_input(rows * s->channels, 0, 1);
    struct tensor *out = narrow_output(rows * s->channels), *lse = output(s->batch * s->heads * s->sequence);
    struct tensor *p = narrow_output(square), *again = narrow_output(out->n), *lse_again = output(lse->n);
    struct tensor *dqkv = narrow_output(qkv->n), *made_again = narrow_output(qkv->n);
    kernels->attention_forward(c, &(struct zr_attention_forward){a, qkv->at, out->at, lse->at, p->at});
    kernels->attention_forward(c, &(struct zr_attention_forward){a, qkv->at, again->at, lse_again->at, NULL});
    kernels->attention_backward(
        c, &(struct zr_attention_backward){a, qkv->at, out->at, lse->at, p->at, dout->at, dqkv->at});
    kernels->attention_backward(
        c, &(struct zr_attention_backward){a, qkv->at, out->at, lse->at, NULL, dout->at, made_again->at});
    if (memcmp(out->at, again->at, tensor_bytes(out)) != 0 ||
        memcmp(lse->at, lse_again->at, lse->n * 4) != 0 ||
        memcmp(dqkv->at, made_again->at, tensor_bytes(dqkv)) != 0)
        return INFINITY; /* keeping p must not change a bit */
    reference_attention(&a, qkv->real, out->real, lse->real, p->real);
    reference_attention_backward(&a, qkv->real, p->real, dout->real, dqkv->real);
    return worst(worst(units_of(out, 2), error_of(lse) / float_tolerance),
                 worst(close_to(p), units_of(dqkv, 4)));
}

/* Each head with keys and values of its own, and all with those of one. */
static double case_attention(struct zr_kernel_context *c, const struct shape *s)
{
    return worst(attention_with(c, s, 0, NULL),
                 s->heads > 1 ? attention_with(c, s, 1, random_positions(s)) : 0);
}

#ifdef ZR_TEST_ON_CARD
/* Attention on tensor cores: heads of their three widths, sequences at the borders of their tiles and
 * fragments; a shape's last number is how many heads of keys there are (0: as many as of queries). */
static double case_tensor_cores(struct zr_kernel_context *c, const struct shape *s)
{
    return worst(attention_with(c, s, s->padded, NULL), attention_with(c, s, s->padded, random_positions(s)));
}

static double case_steep_attention(struct zr_kernel_context *c, const struct shape *s)
{
    return steep_attention(c, s, 4 * half_unit());
}

static void run_tensor_cores(void)
{
    static const struct shape shapes_of_cores[] = {
        {1, 129, 3 * 64, 3, 0, 0, 1},  {1, 65, 2 * 96, 2, 0, 0, 0},  {2, 64, 2 * 128, 2, 0, 0, 1},
        {1, 17, 96, 1, 0, 0, 0},       {1, 127, 128, 1, 0, 0, 0},    {3, 1, 4 * 64, 4, 0, 0, 2},
        {1, 257, 2 * 64, 2, 0, 0, 1},  {1, 257, 96, 1, 0, 0, 0},     {1, 257, 128, 1, 0, 0, 0},
        {2, 15, 4 * 96, 4, 0, 0, 2},   {1, 16, 64, 1, 0, 0, 0},      {2, 63, 6 * 64, 6, 0, 0, 2},
        {1, 128, 4 * 128, 4, 0, 0, 2}, {1, 129, 2 * 96, 2, 0, 0, 1}, {2, 65, 128, 1, 0, 0, 0},
        {1, 128, 64, 1, 0, 0, 0},      {1, 63, 3 * 128, 3, 0, 0, 1}, {1, 64, 96, 1, 0, 0, 0}};
    static const struct shape steep = {1, 200, 64, 1, 0, 0, 0};
    const size_t all = sizeof shapes_of_cores / sizeof *shapes_of_cores;
    for (size_t j = 0; j < shapes_taken(all, 6); j++)
        run_case(&(struct test_case){"attention on tensor cores", case_tensor_cores}, &shapes_of_cores[j],
                 300 + j, ZR_ISA_PLAIN);
    run_case(&(struct test_case){"steep attention on tensor cores", case_steep_attention}, &steep, 400,
             ZR_ISA_PLAIN);
}
#endif

static double case_elements(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = elements_of(s);
    struct tensor *x = narrow_input(n, 0, 6), *dy = narrow_input(n, 0, 1), *y = narrow_output(n),
                  *dx = narrow_output(n);
    struct tensor *sum = narrow_output(n), *in_place = in_out_of(precision, n, 0, 1),
                  *zeroed = narrow_output(n);
    struct tensor *copied = narrow_output(n);
    kernels->gelu_forward(c, &(struct zr_gelu_forward){n, x->at, y->at, ZR_GELU_TANH});
    kernels->gelu_backward(c, &(struct zr_gelu_backward){n, x->at, dy->at, dx->at, ZR_GELU_TANH});
    bool late_alike = true;
#ifdef ZR_TEST_ON_CARD /* elements that do not begin on 16 bytes */
    struct tensor *late = narrow_output(n);
    uint16_t *to = (uint16_t *)late->at + 1;
    kernels->gelu_forward(c, &(struct zr_gelu_forward){n - 1, (uint16_t *)x->at + 1, to, ZR_GELU_TANH});
    late_alike = memcmp(to, (uint16_t *)y->at + 1, tensor_bytes(y) - sizeof *to) == 0;
#endif
    kernels->add(c, &(struct zr_add){n, x->at, dy->at, sum->at});
    kernels->add(c, &(struct zr_add){n, in_place->at, dy->at, in_place->at});
    kernels->clear(c, &(struct zr_clear){tensor_bytes(zeroed), zeroed->at});
    kernels->convert(c, &(struct zr_convert){n, numbers(x), numbers(copied)});
    bool exact = memcmp(copied->at, x->at, tensor_bytes(x)) == 0;
    for (size_t i = 0; i < n; i++) {
        y->real[i] = reference_gelu(x->real[i]);
        dx->real[i] = dy->real[i] * reference_gelu_slope(x->real[i]);
        exact = exact && tensor_get(zeroed, i) == 0;
        exact = exact && ((uint16_t *)sum->at)[i] == reference_encode(x->real[i] + dy->real[i], precision);
        exact = exact &&
                ((uint16_t *)in_place->at)[i] == reference_encode(in_place->real[i] + dy->real[i], precision);
    }
    return exact && late_alike ? worst(close_to(y), close_to(dx)) : INFINITY;
}

static double case_head(struct zr_kernel_context *c, const struct shape *s)
{
    size_t rows = rows_of(s);
    struct head_shape h = {random_tokens(rows, s->vocabulary), rows, s->channels, s->vocabulary, s->padded};
    /* fp16 needs its loss scaled, or small probabilities have no bits left */
    double spread = 3 / sqrt((double)s->channels),
           scale = (precision == ZR_PRECISION_FP16 ? 256 : 1) / (double)rows;
    struct tensor *x = narrow_input(rows * s->channels, 0, 1),
                  *wte = narrow_input(s->padded * s->channels, 0, spread);
    struct tensor *losses = output(rows), *alone = output(rows), *row = output(s->padded);
    struct tensor *dx = narrow_output(x->n), *dwte = narrow_output(wte->n), *logits = output(s->vocabulary);
    run_head(kernels, c, &(struct head_call){h, x->at, wte->at, alone->at, 0, NULL, NULL, false, NULL});
    run_head(kernels, c,
             &(struct head_call){h, x->at, wte->at, losses->at, (float)scale, dx->at, dwte->at, false, NULL});
    kernels->linear_forward(
        c, &(struct zr_linear_forward){{.rows = 1, .in = h.channels, .out = h.vocabulary, .turned = true},
                                       x->at,
                                       wte->at,
                                       NULL,
                                       logits->at,
                                       true});
    bool same = memcmp(losses->at, alone->at, rows * sizeof(float)) == 0;
    reference_head(&h, x->real, wte->real, losses->real, (double)(float)scale, row->real, dx->real,
                   dwte->real);
    double first = worst(units_of(dx, 3), units_of(dwte, 3));
    tensor_follow(dwte);
    run_head(kernels, c,
             &(struct head_call){h, x->at, wte->at, losses->at, (float)scale, dx->at, dwte->at, true, NULL});
    reference_head(&h, x->real, wte->real, losses->real, (double)(float)scale, row->real, dx->real,
                   dwte->real);
    for (size_t v = 0; v < s->vocabulary; v++)
        for (size_t i = 0; i < s->channels; i++)
            logits->real[v] += x->real[i] * wte->real[v * s->channels + i];
    for (size_t i = s->vocabulary * s->channels; i < dwte->n; i++)
        same = same && tensor_get(dwte, i) == 0; /* padded rows have no gradient at all */
    double floats = worst(error_of(losses), error_of(logits)) / float_tolerance;
    return same ? worst(worst(first, floats), worst(units_of(dx, 3), units_of(dwte, 3))) : INFINITY;
}

static double case_steep(struct zr_kernel_context *c, const struct shape *s)
{
    return worst(steep_attention(c, s, 4 * half_unit()), steep_head(c, s, 16 * half_unit()));
}

/* The parameter is the new master, rounded once. */
static bool rounds_master(const struct tensor *parameter, const struct tensor *master)
{
    bool good = true;
    for (size_t i = 0; i < master->n; i++)
        good = good && ((uint16_t *)parameter->at)[i] == reference_encode((double)master->at[i], precision);
    return good;
}

static double case_adamw(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = elements_of(s) + 4096;
    struct zr_adamw how = {3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 1 - 0.9f * 0.9f, 1 - 0.95f * 0.95f,
                           NULL,  NULL};
    struct tensor *p = in_out(n, 0, 1), *g = narrow_input(n, 0, 1), *wide = input(n, 0, 1);
    struct tensor *m = in_out(n, 0, 1), *v = in_out(n, 0.5, 0.4), *small = narrow_output(n);
    bool good = true;
    for (int pass = 0; pass < 2; pass++) { /* a two-byte gradient, then an fp32 shard */
        const struct tensor *gradient = pass == 0 ? g : wide;
        kernels->update_adamw(
            c, &(struct zr_update_adamw){
                   how, (struct zr_update){n, numbers(gradient), p->at, m->at, v->at, numbers(small)}});
        good = good && rounds_master(small, p);
        for (size_t i = 0; i < n; i++) {
            double d = gradient->real[i] * how.gradient_scale;
            m->real[i] = how.beta1 * m->real[i] + (1 - (double)how.beta1) * d;
            v->real[i] = how.beta2 * v->real[i] + (1 - (double)how.beta2) * d * d;
            double step = m->real[i] / how.correction1 / (sqrt(v->real[i] / how.correction2) + how.epsilon);
            p->real[i] -= how.rate * (step + how.weight_decay * p->real[i]);
        }
    }
    double errors = worst(error_of(m), worst(error_of(v), error_of(p)));
    /* No two-byte parameter at all: the master alone. */
    kernels->update_adamw(
        c, &(struct zr_update_adamw){
               how, (struct zr_update){n, numbers(g), p->at, m->at, v->at, {NULL, precision}}});
    return good ? errors / float_tolerance : INFINITY;
}

static double case_sgd(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = elements_of(s) + 4096;
    struct zr_sgd how = {3e-2f, 0.9f, 0.1f, 0.5f, NULL, NULL};
    struct tensor *p = in_out(n, 0, 1), *g = narrow_input(n, 0, 1), *wide = input(n, 0, 1);
    struct tensor *m = in_out(n, 0, 1), *small = narrow_output(n), *alone = in_out(n, 0, 1);
    bool good = true;
    for (int pass = 0; pass < 2; pass++) {
        const struct tensor *gradient = pass == 0 ? g : wide;
        kernels->update_sgd(c, &(struct zr_update_sgd){how, (struct zr_update){n, numbers(gradient), p->at,
                                                                               m->at, NULL, numbers(small)}});
        good = good && rounds_master(small, p);
        for (size_t i = 0; i < n; i++) {
            m->real[i] = how.momentum_factor * m->real[i] + gradient->real[i] * how.gradient_scale +
                         how.weight_decay * p->real[i];
            p->real[i] -= how.rate * m->real[i];
        }
    }
    double errors = worst(error_of(m), error_of(p));
    tensor_follow(m);
    kernels->update_sgd(
        c, &(struct zr_update_sgd){
               how, (struct zr_update){n, numbers(wide), alone->at, m->at, NULL, {NULL, ZR_PRECISION_FP32}}});
    for (size_t i = 0; i < n; i++)
        alone->real[i] -= how.rate * (how.momentum_factor * m->real[i] + wide->real[i] * how.gradient_scale +
                                      how.weight_decay * alone->real[i]);
    return good ? worst(errors, error_of(alone)) / float_tolerance : INFINITY;
}

static double case_reductions(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = elements_of(s) + 5 * 4096, at = random_bits() % (n - 1);
    struct tensor *x = in_out_of(precision, n, 0, 3);
    uint16_t *bits = (uint16_t *)x->at, infinity = precision == ZR_PRECISION_BF16 ? 0x7f80 : 0x7c00;
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += x->real[i] * x->real[i];
    bool good = fabs(squares_of(kernels, c, n, numbers(x)) - squares) < 1e-12 * squares;
    good = good && squares_of(kernels, c, 0, numbers(x)) == 0;
    good = good && nonfinite_of(kernels, c, n, numbers(x)) == n;
    bits[n - 1] = infinity;
    good = good && nonfinite_of(kernels, c, n, numbers(x)) == n - 1;
    good = good && isinf(squares_of(kernels, c, n, numbers(x)));
    bits[at] = infinity | 0x8001; /* a NaN */
    good = good && nonfinite_of(kernels, c, n, numbers(x)) == at;
    return good ? 0 : INFINITY;
}

static double case_sum_in_order(struct zr_kernel_context *c, const struct shape *s)
{
    size_t n = elements_of(s) / 4, wrong = 0;
    struct tensor *to = narrow_output(n), *more = in_out_of(precision, n, 0, 1), *wide = in_out(n, 0, 1);
    const struct tensor *source[11];
    const void *from[11];
    (void)c;
    for (unsigned count = 1; count <= 11; count++) {
        source[count - 1] = narrow_input(n, 0, 1);
        from[count - 1] = source[count - 1]->at;
        struct zr_sum sum = {n, from, count, precision, 0.3f, false, numbers(to)};
        kernels->sum(NULL, &sum);
        sum.accumulate = true, sum.to = numbers(more);
        kernels->sum(NULL, &sum);
        sum.to = numbers(wide);
        kernels->sum(NULL, &sum);
        for (size_t i = 0; i < n; i++) {
            volatile float all = (float)source[0]->real[i]; /* every step rounds, as promised */
            for (unsigned k = 1; k < count; k++)
                all = all + (float)source[k]->real[i];
            all = all * 0.3f;
            volatile float narrow_sum = (float)more->real[i] + all, wide_sum = (float)wide->real[i] + all;
            wrong += ((uint16_t *)to->at)[i] != reference_encode((double)all, precision);
            wrong += ((uint16_t *)more->at)[i] != reference_encode((double)narrow_sum, precision);
            wrong += wide->at[i] != wide_sum;
        }
        tensor_follow(more), tensor_follow(wide);
    }
    struct tensor *itself = narrow_output(n); /* `to` among the sources */
    memcpy(itself->at, from[1], tensor_bytes(itself));
    const void *with_itself[2] = {from[0], itself->at};
    kernels->sum(NULL, &(struct zr_sum){n, with_itself, 2, precision, 1.0f, false, numbers(itself)});
    for (size_t i = 0; i < n; i++)
        wrong += ((uint16_t *)itself->at)[i] !=
                 reference_encode((double)((float)source[0]->real[i] + (float)source[1]->real[i]), precision);
    kernels->sum(NULL, &(struct zr_sum){n, NULL, 0, precision, 1.0f, false, numbers(itself)});
    for (size_t i = 0; i < n; i++)
        wrong += ((uint16_t *)itself->at)[i] != 0;
    return wrong != 0 ? INFINITY : 0;
}

/* ---- The driver ---------------------------------------------------------------------------------------- */

static const struct test_case cases[] = {
    {"embedding", case_embedding},
    {"layer norm", case_layernorm},
    {"linear", case_linear},
    {"attention", case_attention},
    {"element by element", case_elements},
    {"head", case_head},
    {"steep", case_steep},
    {"adamw", case_adamw},
    {"sgd", case_sgd},
    {"reductions", case_reductions},
    {"sum in order", case_sum_in_order},
};

/* More logits than the workspace holds at once: the rows come in chunks, and dwte is added up over them. */
static inline void check_chunks(enum zr_isa isa)
{
    static const struct shape wide = {1, 66, 3, 1, 3, 262100, 262144};
    struct zr_kernel_context context;
    unsigned threads = 2;
    bool intact = true;
    precision = ZR_PRECISION_BF16;
    if (!begin(&context, &wide, isa, &threads))
        return;
    double error = case_head(&context, &wide);
    intact = context_end(&context);
    tensors_finish(&intact);
    tap_ok(error <= 1 && intact, "%s: the head in chunks of rows is right (%.3f of the tolerance)",
           table_name(isa), error);
}

static void test_isa(enum zr_isa isa)
{
    kernels = table_of(isa);
#ifndef ZR_TEST_ON_CARD /* which takes all rows at once */
    if (isa == zr_isa_best())
        check_chunks(isa);
#endif
    for (precision = ZR_PRECISION_BF16; precision < ZR_PRECISION_COUNT; precision++) {
        struct zr_kernel_context context;
        unsigned threads = 2;
        if (!begin(&context, &shapes[0], isa, &threads))
            return;
        check_all_numbers(&context);
        check_any_floats(&context);
        context_end(&context);
#ifdef ZR_TEST_ON_CARD
        run_products(&(struct test_case){"linear", case_linear}, &(struct test_case){"head", case_head});
        run_tensor_cores();
#endif
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            for (size_t j = 0; j < SHAPES_TAKEN(2); j++)
                run_case(&cases[i], &shapes[j], j, isa);
#ifndef ZR_TEST_ON_CARD
        for (size_t i = 0; i < 6; i++) /* what goes by rows and columns */
            if (cases[i].run != case_elements)
                run_edges(&cases[i], isa);
#endif
    }
}

int main(void)
{
    base_seed = run_seed();
    for_each_isa(test_isa);
    return tap_done();
}
