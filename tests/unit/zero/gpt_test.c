/* gpt_test.c: zr-train's model and engine against a GPT-2 trainer of its own, written here in double
 * precision on the reference operations: same first values, same batches, twenty steps of AdamW with
 * clipping. And what the model's memory comes to: nothing left behind, whichever of its allocations fails. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/fault.h"
#include "tests/support/kernels_reference.h"
#include "tests/support/shape_list.h"
#include "tests/support/tap.h"
#include "zero/plan/plan.h"
#include "zero/step/trainer_state.h"

enum {
    L = 2,
    C = 20,
    A = 4,
    T = 9,
    B = 3,
    V = 61,
    VP = 64,
    ROWS = B * T,
    N = ROWS * C,
    WIDE = 4 * C,
    STEPS = 20
};

static const struct zr_shape shape = {.layers = L,
                                      .hidden = C,
                                      .heads = A,
                                      .vocabulary = V,
                                      .vocabulary_padded = VP,
                                      .sequence = T,
                                      .batch = B};
static const struct zr_optimizer_options adamw = {
    .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .clip = 0.5f};
static const float rate = 3e-3f;

/* ---- The trainer in double precision ------------------------------------------------------------------- */

/* Where each parameter lies in one long vector, in the order of the list. */
static size_t at[4 + 12 * L], elements[4 + 12 * L], total;
static bool decays[4 + 12 * L];

static void lay_out(void)
{
    struct zr_parameter parameters[4 + 12 * L];
    struct zr_unit units[3 + L];
    shape_describe(&shape, parameters, units);
    total = 0;
    for (size_t i = 0; i < 4 + 12 * L; i++) {
        at[i] = total;
        elements[i] = zr_parameter_elements(&parameters[i]);
        decays[i] = parameters[i].shape[1] != 0;
        total += elements[i];
    }
}

struct kept {
    double in[N], normal1[N], mean1[ROWS], rstd1[ROWS], qkv[3 * N], mixed[N], lse[B * A * T],
        p[B * A * T * T];
    double middle[N], normal2[N], mean2[ROWS], rstd2[ROWS], wide[ROWS * WIDE], active[ROWS * WIDE];
};

static int32_t tokens[ROWS], targets[ROWS];
static const struct zr_embedding embedding = {tokens, B, T, C};
static const struct zr_layernorm norm = {ROWS, C};
static const struct zr_linear qkv_shape = {.rows = ROWS, .in = C, .out = 3 * C},
                              proj_shape = {.rows = ROWS, .in = C, .out = C},
                              fc_shape = {.rows = ROWS, .in = C, .out = WIDE},
                              down_shape = {.rows = ROWS, .in = WIDE, .out = C};
static const struct zr_attention attention = {B, T, C, A, 0};
static const struct zr_head head = {targets, ROWS, C, V, VP};

static void block_forward(struct kept *k, const double *w, size_t first, double *x)
{
    double out[N];
    memcpy(k->in, x, sizeof k->in);
    reference_layernorm(&norm, x, w + at[first], w + at[first + 1], k->normal1, k->mean1, k->rstd1);
    reference_linear(&qkv_shape, k->normal1, w + at[first + 2], w + at[first + 3], k->qkv);
    reference_attention(&attention, k->qkv, k->mixed, k->lse, k->p);
    reference_linear(&proj_shape, k->mixed, w + at[first + 4], w + at[first + 5], out);
    for (size_t i = 0; i < N; i++)
        k->middle[i] = x[i] + out[i];
    reference_layernorm(&norm, k->middle, w + at[first + 6], w + at[first + 7], k->normal2, k->mean2,
                        k->rstd2);
    reference_linear(&fc_shape, k->normal2, w + at[first + 8], w + at[first + 9], k->wide);
    for (size_t i = 0; i < ROWS * WIDE; i++)
        k->active[i] = reference_gelu(k->wide[i]);
    reference_linear(&down_shape, k->active, w + at[first + 10], w + at[first + 11], out);
    for (size_t i = 0; i < N; i++)
        x[i] = k->middle[i] + out[i];
}

static void block_backward(const struct kept *k, const double *w, double *g, size_t first, double *d)
{
    static double wide[ROWS * WIDE], normal[N], mixed[N], qkv[3 * N], input[N];
    reference_linear_backward(&down_shape, k->active, w + at[first + 10], d, wide, g + at[first + 10],
                              g + at[first + 11]);
    for (size_t i = 0; i < ROWS * WIDE; i++)
        wide[i] *= reference_gelu_slope(k->wide[i]);
    reference_linear_backward(&fc_shape, k->normal2, w + at[first + 8], wide, normal, g + at[first + 8],
                              g + at[first + 9]);
    memset(input, 0, sizeof input);
    reference_layernorm_backward(&norm, k->middle, w + at[first + 6], normal, input, g + at[first + 6],
                                 g + at[first + 7]);
    for (size_t i = 0; i < N; i++)
        d[i] += input[i];
    reference_linear_backward(&proj_shape, k->mixed, w + at[first + 4], d, mixed, g + at[first + 4],
                              g + at[first + 5]);
    memset(qkv, 0, sizeof qkv);
    reference_attention_backward(&attention, k->qkv, k->p, mixed, qkv);
    reference_linear_backward(&qkv_shape, k->normal1, w + at[first + 2], qkv, normal, g + at[first + 2],
                              g + at[first + 3]);
    memset(input, 0, sizeof input);
    reference_layernorm_backward(&norm, k->in, w + at[first], normal, input, g + at[first],
                                 g + at[first + 1]);
    for (size_t i = 0; i < N; i++)
        d[i] += input[i];
}

/* The mean loss of the batch; g gets the gradients of all parameters. */
static double reference_pass(const double *w, double *g)
{
    static struct kept kept[L];
    static double x[N], normal[N], mean[ROWS], rstd[ROWS], losses[ROWS], row[VP], dn[N], d[N];
    size_t last = 2 + 12 * L;
    double sum = 0;

    memset(g, 0, total * sizeof *g);
    reference_embedding(&embedding, w + at[0], w + at[1], x);
    for (size_t l = 0; l < L; l++)
        block_forward(&kept[l], w, 2 + 12 * l, x);
    reference_layernorm(&norm, x, w + at[last], w + at[last + 1], normal, mean, rstd);
    reference_head(&head, normal, w + at[0], losses, 1.0 / ROWS, row, dn, g + at[0]);
    memset(d, 0, sizeof d);
    reference_layernorm_backward(&norm, x, w + at[last], dn, d, g + at[last], g + at[last + 1]);
    for (size_t l = L; l-- > 0;)
        block_backward(&kept[l], w, g, 2 + 12 * l, d);
    reference_embedding_backward(&embedding, d, g + at[0], g + at[1]);
    for (size_t r = 0; r < ROWS; r++)
        sum += losses[r];
    return sum / ROWS;
}

/* Returns the norm before clipping. */
static double reference_step(double *w, const double *g, double *m, double *v, int step)
{
    double squares = 0, scale = 1, b1 = (double)adamw.beta1, b2 = (double)adamw.beta2;
    for (size_t i = 0; i < total; i++)
        squares += g[i] * g[i];
    if (sqrt(squares) > (double)adamw.clip)
        scale = (double)adamw.clip / sqrt(squares);
    for (size_t p = 0; p < 4 + 12 * L; p++)
        for (size_t i = at[p]; i < at[p] + elements[p]; i++) {
            double gi = g[i] * scale;
            m[i] = b1 * m[i] + (1 - b1) * gi;
            v[i] = b2 * v[i] + (1 - b2) * gi * gi;
            double update =
                m[i] / (1 - pow(b1, step)) / (sqrt(v[i] / (1 - pow(b2, step))) + (double)adamw.epsilon);
            w[i] -= (double)rate * (update + (decays[p] ? (double)adamw.weight_decay * w[i] : 0));
        }
    return sqrt(squares);
}

/* ---- The model under test ------------------------------------------------------------------------------ */

struct rig {
    zr_backend *backend;
    zr_arena *arena, *host_arena;
    zr_comm *comm;
    struct zr_trainer_state state;
};

static zr_result rig_open(struct rig *rig, enum zr_recompute recompute)
{
    struct zr_shape with = shape;
    const struct zr_kernels *kernels = zr_kernels_cpu(zr_isa_best());
    zr_result result;
    memset(rig, 0, sizeof *rig);
    with.recompute = recompute;
    result = zr_backend_host_create(&rig->backend, &(struct zr_host_options){.granule_bytes = 64 << 10});
    if (result == ZR_OK)
        result = zr_arena_create(
            &rig->arena, &(struct zr_arena_options){.backend = rig->backend, .reserve_bytes = 64 << 20});
    if (result == ZR_OK)
        result = zr_arena_create(
            &rig->host_arena, &(struct zr_arena_options){.backend = rig->backend, .reserve_bytes = 64 << 20});
    if (result == ZR_OK)
        result = zr_comm_null_create(
            &rig->comm,
            &(struct zr_comm_options){
                .arena = rig->arena, .host_arena = rig->host_arena, .kernels = kernels, .bucket_bytes = 4096},
            0, 1);
    if (result == ZR_OK)
        result = zr_trainer_state_open(&rig->state,
                                       &(struct zr_trainer_state_options){.arena = rig->arena,
                                                                          .host_arena = rig->host_arena,
                                                                          .kernels = kernels,
                                                                          .isa = zr_isa_best(),
                                                                          .parallel = {.threads = 1},
                                                                          .comm = rig->comm,
                                                                          .shape = with,
                                                                          .seed = 5,
                                                                          .optimizer = adamw});
    return result;
}

/* Ends the rig; returns the bytes that were left behind. */
static size_t rig_close(struct rig *rig)
{
    size_t tensors = 0, records = 0;
    zr_trainer_state_close(&rig->state);
    if (rig->comm)
        zr_comm_destroy(rig->comm);
    if (rig->arena)
        zr_arena_destroy(rig->arena, &tensors);
    if (rig->host_arena)
        zr_arena_destroy(rig->host_arena, &records);
    if (rig->backend)
        zr_backend_destroy(rig->backend);
    return tensors + records;
}

static void random_batch(unsigned step, struct rig *rig)
{
    unsigned short state[3] = {(unsigned short)step, 77, 3};
    for (size_t i = 0; i < ROWS; i++) {
        tokens[i] = (int32_t)(nrand48(state) % V);
        targets[i] = (int32_t)(nrand48(state) % V);
    }
    memcpy(zr_trainer_input(rig->state.trainer, ZR_INPUT_TOKENS), tokens, sizeof tokens);
    memcpy(zr_trainer_input(rig->state.trainer, ZR_INPUT_TARGETS), targets, sizeof targets);
}

struct asked {
    struct rig *rig;
    unsigned step;
    double loss;
};

static zr_result load(void *state, unsigned micro_batch)
{
    const struct asked *asked = state;
    (void)micro_batch;
    random_batch(asked->step, asked->rig);
    return ZR_OK;
}

static zr_result update(void *state, double loss, float *the_rate)
{
    ((struct asked *)state)->loss = loss;
    *the_rate = rate;
    return ZR_OK;
}

static zr_result one_step(struct rig *rig, unsigned step, double *loss, double *gradient_norm)
{
    struct zr_step_report report = {0};
    struct asked asked = {rig, step, NAN};
    zr_result result =
        zr_trainer_step(rig->state.trainer, &(struct zr_step_calls){&asked, load, update}, &report);
    *loss = asked.loss;
    *gradient_norm = report.gradient_norm;
    return result;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void test_against_reference(void)
{
    struct rig rig;
    double worst_loss = 0, worst_norm = 0, first = 0, last = 0;
    lay_out();
    double *w = calloc(4 * total, sizeof *w), *g = w + total, *m = g + total, *v = m + total;

    tap_result(rig_open(&rig, ZR_RECOMPUTE_NONE), ZR_OK, "a model on one rank");
    tap_is(zr_engine_elements(rig.state.engine), total, "it has the elements of its list");
    for (size_t i = 0; i < zr_engine_segments_count(rig.state.engine); i++) {
        struct zr_shard_segment segment;
        zr_engine_segment(rig.state.engine, i, &segment);
        for (size_t e = 0; e < segment.count; e++)
            w[segment.global_index + e] = (double)segment.parameter[e];
    }
    for (unsigned step = 1; step <= STEPS; step++) {
        double loss, gradient_norm;
        zr_result result = one_step(&rig, step, &loss, &gradient_norm);
        if (result != ZR_OK) {
            tap_result(result, ZR_OK, "step %u", step);
            break;
        }
        double want = reference_pass(w, g), want_norm = reference_step(w, g, m, v, (int)step);
        worst_loss = fmax(worst_loss, fabs(loss - want));
        worst_norm = fmax(worst_norm, fabs(gradient_norm - want_norm) / want_norm);
        first = step == 1 ? loss : first;
        last = loss;
    }
    tap_ok(worst_loss < 1e-5, "%d losses are a double-precision trainer's within 1e-5 (worst %.1e)", STEPS,
           worst_loss);
    tap_ok(worst_norm < 1e-4, "so are the gradient norms, within 1e-4 of themselves (worst %.1e)",
           worst_norm);
    tap_ok(first != last, "the loss moves: %.4f to %.4f", first, last);
    tap_is(rig_close(&rig), 0, "nothing is left behind");
    free(w);
}

/* The three ways to recompute: same bits; each plan is what the run measures, and its places call no driver.
 */
static void test_recompute(void)
{
    double want[3] = {0};
    for (enum zr_recompute recompute = ZR_RECOMPUTE_NONE; recompute <= ZR_RECOMPUTE_FULL; recompute++) {
        struct rig rig;
        struct zr_byte_plan plan;
        zr_rehearsal *places = NULL;
        struct zr_plan_request request = {.shape = shape,
                                          .places = &places,
                                          .world = 1,
                                          .threads = 1,
                                          .bucket_bytes = 4096,
                                          .granule_bytes = 64 << 10,
                                          .isa = zr_isa_best()};
        struct zr_arena_stats stats;
        uint64_t calls = 0;
        bool same = true;
        tap_result(rig_open(&rig, recompute), ZR_OK, "recompute %d: a model", recompute);
        request.shape.recompute = recompute;
        request.host_arena = rig.host_arena;
        tap_result(zr_plan_make(&plan, &request), ZR_OK, "recompute %d: a plan", recompute);
        tap_ok(places != NULL && zr_rehearsal_install(places, rig.arena) == ZR_OK, "recompute %d: its places",
               recompute);
        zr_rehearsal_destroy(places);
        for (unsigned step = 1; step <= 3; step++) {
            double loss = NAN, gradient_norm;
            zr_arena_get_stats(rig.arena, &stats);
            calls = step == 2 ? stats.backend_calls_count : calls;
            one_step(&rig, step, &loss, &gradient_norm);
            same &= recompute == ZR_RECOMPUTE_NONE || memcmp(&loss, &want[step - 1], sizeof loss) == 0;
            if (recompute == ZR_RECOMPUTE_NONE)
                want[step - 1] = loss;
        }
        tap_ok(same && isfinite(want[2]), "recompute %d: losses to the bit", recompute);
        zr_arena_get_stats(rig.arena, &stats);
        tap_is(stats.backend_calls_count, calls, "recompute %d: no driver call after the first step",
               recompute);
        tap_ok(memcmp(plan.peak_by_tag_bytes, stats.peak_by_tag_bytes, sizeof plan.peak_by_tag_bytes) == 0,
               "recompute %d: the plan's tags are what was measured", recompute);
        tap_is(stats.peak_reserved_bytes, plan.peak_reserved_bytes, "recompute %d: and so are the granules",
               recompute);
        tap_is(rig_close(&rig), 0, "recompute %d: nothing is left behind", recompute);
    }
}

/* A value that is not finite is found where it arose. */
static void test_blame(void)
{
    struct rig rig;
    double loss, gradient_norm;
    struct zr_shard_segment segment;

    tap_result(rig_open(&rig, ZR_RECOMPUTE_FULL), ZR_OK, "a model to spoil");
    tap_result(one_step(&rig, 1, &loss, &gradient_norm), ZR_OK, "a good step");
    zr_engine_segment(rig.state.engine, 2 + 12 + 8, &segment); /* h.1.mlp.c_fc.weight */
    float before = segment.parameter[7];
    segment.parameter[7] = NAN;
    tap_result(one_step(&rig, 2, &loss, &gradient_norm), ZR_ERR_CORRUPT,
               "a parameter that is NaN ends the run");
    tap_ok(strstr(zr_last_error(), "h.1.mlp.c_fc.weight"), "the words name it: %s", zr_last_error());
    segment.parameter[7] = 3e38f;
    segment.parameter[8] = 3e38f;
    tap_result(one_step(&rig, 2, &loss, &gradient_norm), ZR_ERR_CORRUPT,
               "so does an activation that overflows");
    tap_ok(strstr(zr_last_error(), "h.1."), "the words name the place: %s", zr_last_error());
    segment.parameter[7] = segment.parameter[8] = before;
    tap_result(zr_trainer_evaluate(rig.state.trainer, (B + 1) * T, &loss), ZR_ERR_INVALID,
               "a batch above the shape's");
    float logits[V];
    tap_result(zr_trainer_answer(rig.state.trainer, 0, 0, logits), ZR_ERR_INVALID, "logits after no token");
    tap_result(zr_trainer_answer(rig.state.trainer, T, T, logits), ZR_ERR_INVALID, "logits after too many");
    tap_is(rig_close(&rig), 0, "nothing is left behind after all that");
}

/* Each allocation of a model's life fails in turn; a failing step can be followed by its end at any point. */
static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_RESERVE, ZR_FAULT_CREATE, ZR_FAULT_MAP,
                                               ZR_FAULT_ACCESS, ZR_FAULT_METADATA};
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        size_t leaked = 0, failures = 0;
        for (uint64_t nth = 1;; nth++) {
            struct rig rig;
            double loss, gradient_norm;
            zr_fault_set(sites[s], nth);
            zr_result result = rig_open(&rig, ZR_RECOMPUTE_NONE);
            if (result == ZR_OK)
                result = one_step(&rig, 1, &loss, &gradient_norm);
            zr_fault_set(sites[s], 0);
            leaked += rig_close(&rig);
            if (result == ZR_OK)
                break;
            failures++;
        }
        tap_ok(failures > 0 && leaked == 0, "%s: %zu passes failed in turn, %zu bytes left behind",
               zr_fault_site_name(sites[s]), failures, leaked);
    }
}

static void test_shapes(void)
{
    const struct {
        const char *words;
        struct zr_shape shape;
    } bad[] = {
        {"no layers",
         {.layers = 0,
          .hidden = 8,
          .heads = 2,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = 1}},
        {"no hidden",
         {.layers = 1,
          .hidden = 0,
          .heads = 2,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = 1}},
        {"no heads",
         {.layers = 1,
          .hidden = 8,
          .heads = 0,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = 1}},
        {"heads that do not divide",
         {.layers = 1,
          .hidden = 8,
          .heads = 3,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = 1}},
        {"no vocabulary",
         {.layers = 1,
          .hidden = 8,
          .heads = 2,
          .vocabulary = 0,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = 1}},
        {"padding below the vocabulary",
         {.layers = 1,
          .hidden = 8,
          .heads = 2,
          .vocabulary = 10,
          .vocabulary_padded = 9,
          .sequence = 4,
          .batch = 1}},
        {"no sequence",
         {.layers = 1,
          .hidden = 8,
          .heads = 2,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 0,
          .batch = 1}},
        {"no batch",
         {.layers = 1,
          .hidden = 8,
          .heads = 2,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = 0}},
        {"a batch beyond addresses",
         {.layers = 1,
          .hidden = 8,
          .heads = 2,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = SIZE_MAX / 8}},
        {"hidden beyond addresses",
         {.layers = 1,
          .hidden = (size_t)1 << 40,
          .heads = 2,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = 1}},
        {"layers beyond counting",
         {.layers = SIZE_MAX,
          .hidden = 8,
          .heads = 2,
          .vocabulary = 10,
          .vocabulary_padded = 10,
          .sequence = 4,
          .batch = 1}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        tap_result(zr_shape_check(&bad[i].shape), ZR_ERR_INVALID, "%s", bad[i].words);
    tap_result(zr_shape_check(&shape), ZR_OK, "a good shape");
}

int main(void)
{
    test_shapes();
    test_against_reference();
    test_recompute();
    test_blame();
    test_faults();
    return tap_done();
}
