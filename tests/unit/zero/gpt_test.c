/* gpt_test.c: zr-train's model and engine against a GPT-2 trainer of its own, written here in double
 * precision on the reference operations: same first values, same batches, twenty steps of AdamW with
 * clipping. And what the model's memory comes to: nothing left behind, whichever of its allocations fails. */
#define _GNU_SOURCE
#include "alloc/base/fault.h"
#include "kernels/dropout.h"
#include "tests/support/kernels/kernels_reference.h"
#include "tests/support/tap.h"
#include "tests/support/zero/trainer_rig.h"
#include "zero/plan/plan.h"

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
    STEPS = 20,
    GRANULE = 16 << 10 /* the rig's */
};

static const struct zr_shape shape = {.layers = L,
                                      .hidden = C,
                                      .heads = A,
                                      .vocabulary = V,
                                      .vocabulary_padded = VP,
                                      .sequence = T,
                                      .batch = B};
/* ---- The trainer in double precision ------------------------------------------------------------------- */

/* Where each parameter lies in one long vector, in the order of the list. */
static size_t at[4 + 12 * L], total;

static void lay_out(const struct rig *rig)
{
    struct zr_transformer transformer;
    if (zr_transformer_open(&transformer, &shape, NULL, rig->host_arena) != ZR_OK)
        return;
    const struct zr_parameter_list *list = &transformer.model.list;
    total = 0;
    for (size_t i = 0; i < list->parameters_count; i++) {
        at[i] = total;
        total += zr_parameter_elements(&list->parameters[i]);
    }
    zr_transformer_close(&transformer);
}

struct kept {
    double in[N], normal1[N], mean1[ROWS], rstd1[ROWS], qkv[3 * N], mixed[N], lse[B * A * T],
        p[B * A * T * T];
    double middle[N], normal2[N], mean2[ROWS], rstd2[ROWS], wide[ROWS * WIDE], active[ROWS * WIDE];
};

static const struct zr_layernorm norm = {ROWS, C, 0};
static const struct zr_linear qkv_shape = {.rows = ROWS, .in = C, .out = 3 * C},
                              proj_shape = {.rows = ROWS, .in = C, .out = C},
                              fc_shape = {.rows = ROWS, .in = C, .out = WIDE},
                              down_shape = {.rows = ROWS, .in = WIDE, .out = C};
static const struct zr_attention attention = {.batch = B, .sequence = T, .channels = C, .heads = A};

/* Factors of dropout: of the embeddings, then of the two branches of each layer. */
static double masks[1 + 2 * L][N];

static void find_masks(const struct rig *rig)
{
    const struct zr_shape *own = &rig->state.transformer.shape;
    const struct zr_dropout_draw draw = {.key = {RIG_SEED, 0}, .step = rig->step};
    float factors[4];
    for (unsigned site = 0; site < 1 + 2 * L; site++)
        for (size_t i = 0; i < N; i++) {
            const struct zr_dropout how = {
                .site = site, .rate = site ? own->residual_dropout : own->embedding_dropout, .draw = &draw};
            zr_dropout_factors(&how, i / C, i % C / 4, factors);
            masks[site][i] = (double)factors[i % 4];
        }
}

static void mask(double *x, const double *from, size_t site)
{
    for (size_t i = 0; i < N; i++)
        x[i] = from[i] * masks[site][i];
}

/* Site of the first branch of the layer whose tensors begin with `first`. */
static size_t site_of(size_t first)
{
    return 1 + 2 * ((first - 2) / 12);
}

static void block_forward(struct kept *k, const double *w, size_t first, double *x)
{
    double out[N];
    memcpy(k->in, x, sizeof k->in);
    reference_layernorm(&norm, x, w + at[first], w + at[first + 1], k->normal1, k->mean1, k->rstd1);
    reference_linear(&qkv_shape, k->normal1, w + at[first + 2], w + at[first + 3], k->qkv);
    reference_attention(&attention, k->qkv, k->mixed, k->lse, k->p);
    reference_linear(&proj_shape, k->mixed, w + at[first + 4], w + at[first + 5], out);
    mask(out, out, site_of(first));
    for (size_t i = 0; i < N; i++)
        k->middle[i] = x[i] + out[i];
    reference_layernorm(&norm, k->middle, w + at[first + 6], w + at[first + 7], k->normal2, k->mean2,
                        k->rstd2);
    reference_linear(&fc_shape, k->normal2, w + at[first + 8], w + at[first + 9], k->wide);
    for (size_t i = 0; i < ROWS * WIDE; i++)
        k->active[i] = reference_gelu(k->wide[i]);
    reference_linear(&down_shape, k->active, w + at[first + 10], w + at[first + 11], out);
    mask(out, out, site_of(first) + 1);
    for (size_t i = 0; i < N; i++)
        x[i] = k->middle[i] + out[i];
}

static void block_backward(const struct kept *k, const double *w, double *g, size_t first, double *d)
{
    static double wide[ROWS * WIDE], normal[N], mixed[N], qkv[3 * N], input[N], branch[N];
    mask(branch, d, site_of(first) + 1);
    reference_linear_backward(&down_shape, k->active, w + at[first + 10], branch, wide, g + at[first + 10],
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
    mask(branch, d, site_of(first));
    reference_linear_backward(&proj_shape, k->mixed, w + at[first + 4], branch, mixed, g + at[first + 4],
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
static double reference_pass(const struct rig *rig, const double *w, double *g)
{
    static struct kept kept[L];
    static double x[N], normal[N], mean[ROWS], rstd[ROWS], losses[ROWS], row[VP], dn[N], d[N];
    size_t last = 2 + 12 * L;
    double sum = 0;

    const struct embedding_shape embedding = {rig->tokens, B, T, C};
    const struct head_shape head = {rig->targets, ROWS, C, V, VP};

    find_masks(rig);
    reference_embedding(&embedding, w + at[0], w + at[1], x);
    mask(x, x, 0);
    for (size_t l = 0; l < L; l++)
        block_forward(&kept[l], w, 2 + 12 * l, x);
    reference_layernorm(&norm, x, w + at[last], w + at[last + 1], normal, mean, rstd);
    reference_head(&head, normal, w + at[0], losses, 1.0 / ROWS, row, dn, g + at[0]);
    memset(d, 0, sizeof d);
    reference_layernorm_backward(&norm, x, w + at[last], dn, d, g + at[last], g + at[last + 1]);
    for (size_t l = L; l-- > 0;)
        block_backward(&kept[l], w, g, 2 + 12 * l, d);
    mask(d, d, 0);
    reference_embedding_backward(&embedding, d, g + at[0], g + at[1]);
    for (size_t r = 0; r < ROWS; r++)
        sum += losses[r];
    return sum / ROWS;
}

/* ---- The model under test ------------------------------------------------------------------------------ */

static zr_result gpt_open(struct rig *rig, enum zr_recompute recompute)
{
    struct zr_shape with = shape;
    with.recompute = recompute;
    return rig_open(rig, &with);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void test_against_reference(void)
{
    struct rig rig;
    struct rig_distance far;

    tap_result(gpt_open(&rig, ZR_RECOMPUTE_NONE), ZR_OK, "a model on one rank");
    lay_out(&rig);
    tap_is(zr_engine_elements(rig.state.engine), total, "it has the elements of its list");
    tap_result(rig_compare(&rig, reference_pass, STEPS, &far), ZR_OK, "%d steps", STEPS);
    tap_ok(far.loss < 1e-5, "losses are a double-precision trainer's within 1e-5 (worst %.1e)", far.loss);
    tap_ok(far.norm < 1e-4, "so are the gradient norms, within 1e-4 of themselves (worst %.1e)", far.norm);
    tap_ok(far.first_loss != far.last_loss, "the loss moves: %.4f to %.4f", far.first_loss, far.last_loss);
    tap_is(rig_close(&rig), 0, "nothing is left behind");
}

/* With recomputation, whose second forward drops the same elements. */
static void test_dropout(void)
{
    struct zr_shape with = shape;
    struct rig rig;
    struct rig_distance far;
    with.recompute = ZR_RECOMPUTE_FULL;
    with.residual_dropout = 1;
    tap_result(rig_open(&rig, &with), ZR_ERR_INVALID, "a dropout of 1 drops everything");
    rig_close(&rig);
    with.embedding_dropout = 0.1f, with.residual_dropout = 0.25f;
    tap_result(rig_open(&rig, &with), ZR_OK, "a model with dropout");
    lay_out(&rig);
    tap_result(rig_compare(&rig, reference_pass, STEPS, &far), ZR_OK, "%d steps", STEPS);
    tap_ok(
        far.loss < 1e-5 && far.norm < 1e-4,
        "losses and gradient norms are those of a double-precision trainer with the same masks (worst %.1e, %.1e)",
        far.loss, far.norm);
    tap_is(rig_close(&rig), 0, "nothing is left behind");
}

/* ---- Tensors that are not trained as the others ---------------------------------------------------------
 */

/* Of a run with the rules below. */
static void halved(const struct zr_parameter *parameter, double *rate, double *decay)
{
    if (strncmp(parameter->name, "h.0.", 4) == 0) {
        *rate *= 0.5;
        *decay = 0;
    }
    if (strstr(parameter->name, "ln_")) {
        *rate = 3 * (double)rig_rate;
        *decay = strncmp(parameter->name, "h.0.", 4) != 0 && parameter->shape[1] > 0;
    }
}

static void test_groups(void)
{
    struct zr_trainable trainable = {.groups = {3, {"h.0.*:lr=0.5,decay=0", "nothing", "*ln_*:lr=3"}}};
    struct zr_shape with = shape;
    struct rig rig;
    struct rig_distance far;
    with.trainable = &trainable;
    tap_result(rig_open(&rig, &with), ZR_ERR_INVALID, "a group that no tensor is in");
    tap_ok(strstr(zr_last_error(), "'nothing'") && strstr(zr_last_error(), "wte.weight"), "named: %s",
           zr_last_error());
    tap_is(rig_close(&rig), 0, "nothing is left behind");
    strcpy(trainable.groups.text[1], "wpe.weight:decay=1");
    tap_result(rig_open(&rig, &with), ZR_OK, "two groups by names");
    lay_out(&rig);
    rig_factors = halved;
    tap_result(rig_compare(&rig, reference_pass, STEPS, &far), ZR_OK, "%d steps", STEPS);
    rig_factors = NULL;
    tap_ok(far.loss < 1e-5 && far.norm < 1e-4,
           "losses and norms are those of a double-precision trainer with these factors (worst %.1e, %.1e)",
           far.loss, far.norm);
    tap_is(rig_close(&rig), 0, "nothing is left behind");
}

static size_t trained_beside_adapters(const struct zr_transformer *transformer)
{
    size_t count = 0;
    for (size_t p = 0; p < transformer->model.list.parameters_count; p++)
        count += !zr_unit_is_frozen(&transformer->units[transformer->parameters[p].unit]) &&
                 !zr_is_adapter(transformer->parameters[p].name);
    return count;
}

/* A model with frozen tensors or adapters against the plain model's reference. */
static void compare_trainable(const struct zr_trainable *trainable, const char *words)
{
    struct zr_shape with = shape;
    struct rig rig;
    struct rig_distance far;
    with.trainable = trainable;
    for (enum zr_recompute recompute = ZR_RECOMPUTE_NONE; recompute <= ZR_RECOMPUTE_FULL; recompute++) {
        with.recompute = recompute;
        tap_result(rig_open(&rig, &with), ZR_OK, "%s, recompute %d: a model", words, recompute);
        lay_out(&rig);
        size_t elements = zr_engine_elements(rig.state.engine);
        float *before = calloc(elements, sizeof *before);
        rig_read(&rig, before);
        tap_result(rig_compare(&rig, rig_trainable_reference, STEPS, &far), ZR_OK, "%d steps", STEPS);
        tap_ok(far.loss < 1e-5 && far.norm < 1e-4 && far.first_loss != far.last_loss,
               "losses and norms are a double-precision trainer's (worst %.1e, %.1e)", far.loss, far.norm);
        size_t moved = rig_moved(&rig, before, true), trained = rig_moved(&rig, before, false);
        moved += trainable->lora.rank > 0 ? trained_beside_adapters(&rig.state.transformer) : 0;
        tap_ok(moved == 0 && trained > 0, "%zu frozen elements and %zu others have other values", moved,
               trained);
        free(before);
        tap_is(rig_close(&rig), 0, "nothing is left behind");
    }
}

static void test_trainable(void)
{
    static const struct {
        const char *words;
        struct zr_trainable trainable;
    } rows[] = {
        {"frozen embeddings and a block", {.frozen = {2, {"w?e.weight", "h.1.*"}}}},
        {"frozen biases", {.frozen = {1, {"*.bias"}}}},
        {"frozen matrices and a norm's weight", {.frozen = {2, {"h.?.*c_*.weight", "ln_f.weight"}}}},
        {"only the first block's attention", {.frozen = {4, {"w*", "h.1.*", "h.0.mlp*", "*ln_*"}}}},
        {"adapters of attention", {.lora = {3, 6, "*attn*"}}},
        {"adapters of everything", {.lora = {2, 1, "*"}}},
        {"adapters of one block, A frozen", {.lora = {5, 9, "h.1.*"}, .frozen = {1, {"*.lora_A.*"}}}},
    };
    struct zr_trainable nothing = {.frozen = {1, {"*"}}};
    struct zr_shape with = shape;
    struct rig rig;
    rig_plain = reference_pass;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        compare_trainable(&rows[i].trainable, rows[i].words);
    with.trainable = &nothing;
    tap_result(rig_open(&rig, &with), ZR_ERR_INVALID, "nothing to train: %s", zr_last_error());
    tap_is(rig_close(&rig), 0, "nothing is left behind");
}

/* Holds a step to its claims. */
struct reserved {
    struct rig *rig;
    const struct zr_plan_reservations *reservations;
    size_t most_bytes;
    unsigned said, beyond;
};

static size_t reserved_in(struct rig *rig)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(rig->arena, &stats);
    return stats.reserved_bytes;
}

static void hold(void *state, const struct zr_action *action, bool done)
{
    struct reserved *reserved = state;
    reserved->beyond += reserved_in(reserved->rig) > reserved->most_bytes;
    if (done)
        zr_arena_trim(reserved->rig->arena, 0, NULL);
    if (!done || action->kind != ZR_ACTION_BACKWARD)
        return;
    size_t place = zr_plan_reservations_place(&reserved->rig->state.trainer->step, action);
    size_t most = reserved->reservations->most_bytes[place];
    reserved->beyond += reserved_in(reserved->rig) > most;
    reserved->said += most < reserved->most_bytes;
    reserved->most_bytes = most;
}

/* A step, and an evaluation after it, take no more than what each backward says. */
static void test_claims(void)
{
    for (enum zr_recompute recompute = ZR_RECOMPUTE_NONE; recompute <= ZR_RECOMPUTE_FULL; recompute++) {
        struct rig rig;
        struct zr_byte_plan plan = {0};
        struct zr_shape deep = shape;
        struct zr_plan_reservations reservations = {0};
        zr_rehearsal *places = NULL;
        double loss, gradient_norm;
        deep.layers = 8;
        deep.recompute = recompute;
        zr_result result = rig_open(&rig, &deep);
        reservations.host_arena = rig.host_arena;
        if (result == ZR_OK)
            result = zr_plan_make(&plan, &(struct zr_plan_request){.shape = deep,
                                                                   .places = &places,
                                                                   .reservations = &reservations,
                                                                   .world = 1,
                                                                   .threads = 1,
                                                                   .bucket_bytes = 4096,
                                                                   .granule_bytes = GRANULE,
                                                                   .isa = zr_isa_best(),
                                                                   .host_arena = rig.host_arena});
        if (result == ZR_OK)
            result = zr_rehearsal_install(places, rig.arena);
        zr_rehearsal_destroy(places);
        const struct zr_actions *list = &rig.state.trainer->step;
        tap_ok(list->actions[0].kind == ZR_ACTION_LOAD && reservations.count == list->count,
               "recompute %d: claims from the micro-batch that is loaded on", recompute);
        for (unsigned step = 1; step <= 3 && result == ZR_OK; step++)
            result = rig_train(&rig, step, &loss, &gradient_norm);
        struct reserved reserved = {
            .rig = &rig, .reservations = &reservations, .most_bytes = plan.peak_reserved_bytes};
        rig.state.trainer->observe = hold;
        rig.state.trainer->observe_state = &reserved;
        if (result == ZR_OK)
            result = rig_train(&rig, 4, &loss, &gradient_norm);
        if (result == ZR_OK)
            result = zr_trainer_evaluate(rig.state.trainer, ROWS, &loss);
        reserved.beyond += reserved_in(&rig) > reserved.most_bytes;
        tap_ok(result == ZR_OK && reserved.beyond == 0 &&
                   (reserved.said > 2 || recompute == ZR_RECOMPUTE_FULL),
               "recompute %d: %u times a step takes less from there on, and does (%u times not)", recompute,
               reserved.said, reserved.beyond);
        zr_plan_reservations_end(&reservations);
        tap_is(rig_close(&rig), 0, "recompute %d: nothing is left behind", recompute);
    }
}

/* A plan, and what comes of it where a pass of a fault site fails. */
struct claiming {
    struct rig *rig;
    bool wants_claims;
    enum zr_fault_site site;
    uint64_t nth; /* the pass that fails; 0: none */
    uint64_t passes;
    bool placed;
    size_t claims_count, left_bytes;
    size_t most_bytes; /* from the first claim on */
};

/* The records of claims have an arena of their own, whose first memory they are. */
static zr_result claim(struct claiming *claiming)
{
    struct rig *rig = claiming->rig;
    struct zr_plan_reservations reservations = {0};
    struct zr_byte_plan plan;
    struct zr_arena_stats before, after;
    zr_rehearsal *places = NULL;
    zr_result result =
        zr_arena_create(&reservations.host_arena,
                        &(struct zr_arena_options){.backend = rig->backend, .reserve_bytes = 1 << 20});
    if (result != ZR_OK)
        return result;
    zr_arena_get_stats(rig->host_arena, &before);
    zr_fault_set(claiming->site, claiming->nth);
    result = zr_plan_make(
        &plan, &(struct zr_plan_request){.shape = shape,
                                         .places = &places,
                                         .reservations = claiming->wants_claims ? &reservations : NULL,
                                         .world = 1,
                                         .threads = 1,
                                         .bucket_bytes = 4096,
                                         .granule_bytes = GRANULE,
                                         .isa = zr_isa_best(),
                                         .host_arena = rig->host_arena});
    claiming->passes = zr_fault_set(claiming->site, 0);
    claiming->placed = places != NULL;
    claiming->claims_count = reservations.count;
    claiming->most_bytes = reservations.count > 0 ? reservations.most_bytes[reservations.count - 1] : 0;
    zr_rehearsal_destroy(places);
    zr_plan_reservations_end(&reservations);
    zr_arena_destroy(reservations.host_arena, &claiming->left_bytes);
    zr_arena_get_stats(rig->host_arena, &after);
    claiming->left_bytes += after.live_bytes - before.live_bytes;
    return result;
}

/* Memory runs out at each place while claims are found, which is behind all that a plan without them does:
 * then there is no plan, or one without places and claims, or the arena has found other memory. */
static void test_claims_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_CREATE, ZR_FAULT_MAP, ZR_FAULT_ACCESS,
                                               ZR_FAULT_METADATA};
    enum { EACH = 32, STRIDE = 7 }; /* records have many passes: the first of them, and some of the others */
    struct rig rig;
    tap_result(gpt_open(&rig, ZR_RECOMPUTE_NONE), ZR_OK, "a model whose claims are to be found");
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        struct claiming without = {.rig = &rig, .site = sites[s]}, with = without;
        unsigned count = 0, failed = 0, bare = 0, same = 0;
        size_t left_bytes = 0;
        with.wants_claims = true;
        zr_result result = claim(&with); /* it takes what the next ones find */
        if (result == ZR_OK)
            result = claim(&without);
        if (result == ZR_OK)
            result = claim(&with);
        for (uint64_t nth = without.passes + 1; result == ZR_OK && nth <= with.passes;
             nth += nth < without.passes + EACH ? 1 : STRIDE) {
            struct claiming with_fault = with;
            with_fault.nth = nth;
            bool made = claim(&with_fault) == ZR_OK, none = !with_fault.placed && !with_fault.claims_count;
            failed += !made && none;
            bare += made && none;
            same += made && with_fault.placed && with_fault.claims_count == with.claims_count &&
                    with_fault.most_bytes == with.most_bytes;
            left_bytes += with_fault.left_bytes;
            count++;
        }
        tap_ok(count > 0 && count == failed + bare + same && left_bytes == 0,
               "%s fails while claims are found, %u times: no plan %u times, no claims %u, all the same %u; "
               "%zu bytes left behind",
               zr_fault_site_name(sites[s]), count, failed, bare, same, left_bytes);
    }
    tap_is(rig_close(&rig), 0, "nothing is left behind");
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
                                          .granule_bytes = GRANULE,
                                          .isa = zr_isa_best()};
        struct zr_arena_stats stats;
        uint64_t calls = 0;
        bool same = true;
        tap_result(gpt_open(&rig, recompute), ZR_OK, "recompute %d: a model", recompute);
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
            rig_train(&rig, step, &loss, &gradient_norm);
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

    tap_result(gpt_open(&rig, ZR_RECOMPUTE_FULL), ZR_OK, "a model to spoil");
    tap_result(rig_train(&rig, 1, &loss, &gradient_norm), ZR_OK, "a good step");
    zr_engine_segment(rig.state.engine, 2 + 12 + 8, &segment); /* h.1.mlp.c_fc.weight */
    float before = segment.parameter[7];
    segment.parameter[7] = NAN;
    tap_result(rig_train(&rig, 2, &loss, &gradient_norm), ZR_ERR_CORRUPT,
               "a parameter that is NaN ends the run");
    tap_ok(strstr(zr_last_error(), "h.1.mlp.c_fc.weight"), "the words name it: %s", zr_last_error());
    segment.parameter[7] = 3e38f;
    segment.parameter[8] = 3e38f;
    tap_result(rig_train(&rig, 2, &loss, &gradient_norm), ZR_ERR_CORRUPT,
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
            zr_result result = gpt_open(&rig, ZR_RECOMPUTE_NONE);
            if (result == ZR_OK)
                result = rig_train(&rig, 1, &loss, &gradient_norm);
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
    static const struct {
        const char *words;
        size_t field, value;
    } bad[] = {
        {"no layers", offsetof(struct zr_shape, layers), 0},
        {"no hidden", offsetof(struct zr_shape, hidden), 0},
        {"no heads", offsetof(struct zr_shape, heads), 0},
        {"heads that do not divide", offsetof(struct zr_shape, heads), 3},
        {"no vocabulary", offsetof(struct zr_shape, vocabulary), 0},
        {"padding below the vocabulary", offsetof(struct zr_shape, vocabulary_padded), V - 1},
        {"no sequence", offsetof(struct zr_shape, sequence), 0},
        {"no batch", offsetof(struct zr_shape, batch), 0},
        {"a batch beyond addresses", offsetof(struct zr_shape, batch), SIZE_MAX / 8},
        {"hidden beyond addresses", offsetof(struct zr_shape, hidden), (size_t)1 << 40},
        {"layers beyond counting", offsetof(struct zr_shape, layers), SIZE_MAX},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct zr_shape with = shape;
        *(size_t *)(void *)((char *)&with + bad[i].field) = bad[i].value;
        tap_result(zr_shape_check(&with), ZR_ERR_INVALID, "%s", bad[i].words);
    }
    tap_result(zr_shape_check(&shape), ZR_OK, "a good shape");
}

int main(void)
{
    test_shapes();
    test_against_reference();
    test_dropout();
    test_groups();
    test_trainable();
    test_recompute();
    test_claims();
    test_claims_faults();
    test_blame();
    test_faults();
    return tap_done();
}
