/* pipeline_test.c: in which order ranks of a pipeline take micro-batches, what they hold and how long they
 * are idle; that no schedule's lists wait for one another for ever, with two blocks on each way; what part of
 * a model each rank has. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/records.h"
#include "tests/support/tap.h"
#include "zero/model/transformer.h"
#include "zero/step/schedule.h"

enum { RANKS_MAX = 8, BATCHES_MAX = 33, TEXT_BYTES = 4096 };

/* ---- Orders -------------------------------------------------------------------------------------------- */

static const struct {
    const char *words;
    struct zr_pipeline pipeline;
    unsigned ranks, rank, micro_batches, begun, following;
    const char *want; /* F, B and the micro-batch; a stroke for each part after the first */
} written[] = {
    {"1f1b, the first", {.schedule = ZR_PIPELINE_1F1B}, 3, 0, 4, 0, 0, "F0 F1 F2 B0 F3 B1 B2 B3 "},
    {"1f1b, the last", {.schedule = ZR_PIPELINE_1F1B}, 3, 2, 4, 0, 0, "F0 B0 F1 B1 F2 B2 F3 B3 "},
    {"1f1b, few micro-batches", {.schedule = ZR_PIPELINE_1F1B}, 4, 0, 2, 0, 0, "F0 F1 B0 B1 "},
    {"2bw, filled", {.schedule = ZR_PIPELINE_2BW}, 3, 0, 3, 0, 2, "F0 F1 F2 B0 F3 B1 F4 B2 "},
    {"2bw, between", {.schedule = ZR_PIPELINE_2BW}, 3, 0, 3, 2, 2, "F2 B0 F3 B1 F4 B2 "},
    {"2bw, drained", {.schedule = ZR_PIPELINE_2BW}, 3, 0, 3, 2, 0, "F2 B0 B1 B2 "},
    {"2bw, the last", {.schedule = ZR_PIPELINE_2BW}, 3, 2, 3, 0, 2, "F0 B0 F1 B1 F2 B2 "},
    {"pipedream, filled", {.schedule = ZR_PIPELINE_PIPEDREAM}, 3, 0, 1, 0, 2, "F0 F1 F2 B0 "},
    {"pipedream, between", {.schedule = ZR_PIPELINE_PIPEDREAM}, 3, 0, 1, 2, 2, "F2 B0 "},
    {"pipedream, nearly drained", {.schedule = ZR_PIPELINE_PIPEDREAM}, 3, 0, 1, 2, 1, "B0 "},
    {"naive", {.schedule = ZR_PIPELINE_NAIVE}, 3, 0, 2, 0, 0, "F0 B0 F1 B1 "},
    {"gpipe", {.schedule = ZR_PIPELINE_GPIPE}, 3, 2, 3, 0, 0, "F0 F1 F2 B0 B1 B2 "},
    {"interleaved, the last",
     {.schedule = ZR_PIPELINE_1F1B, .interleave = 2},
     2,
     1,
     2,
     0,
     0,
     "F0 F1 F0' B0' F1' B1' B0 B1 "},
    {"vhalf, the last", {.schedule = ZR_PIPELINE_VHALF}, 2, 1, 2, 0, 0, "F0 F0' B0' B0 F1 F1' B1' B1 "},
    {"vhalf, the first", {.schedule = ZR_PIPELINE_VHALF}, 2, 0, 2, 0, 0, "F0 F1 F0' B0' B0 F1' B1' B1 "},
    {"zb-h1, the first",
     {.schedule = ZR_PIPELINE_ZB_H1},
     3,
     0,
     4,
     0,
     0,
     "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3 "},
    {"zb-h1, the last",
     {.schedule = ZR_PIPELINE_ZB_H1},
     3,
     2,
     4,
     0,
     0,
     "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3 "},
    {"zb-v, the first",
     {.schedule = ZR_PIPELINE_ZB_V},
     2,
     0,
     3,
     0,
     0,
     "F0 F1 F0' B0' F1' B1' B0 W0' B1 F2 W1' W0 F2' B2' W1 W2' B2 W2 "},
};

static void test_written(void)
{
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        struct zr_pipeline_order order;
        char text[TEXT_BYTES] = "";
        zr_result result = zr_pipeline_order_make(
            &order, &(struct zr_pipeline_request){&written[i].pipeline, written[i].ranks, written[i].rank,
                                                  written[i].micro_batches, host_arena, written[i].begun,
                                                  written[i].following, false});
        for (size_t k = 0; result == ZR_OK && k < order.count; k++) {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%c%u%s ", "FBW"[order.items[k].kind],
                     order.items[k].micro_batch, order.items[k].part ? "'" : "");
        }
        if (!tap_ok(result == ZR_OK && strcmp(text, written[i].want) == 0, "%s", written[i].words))
            tap_note("got  %s\nwant %s", text, written[i].want);
        zr_pipeline_order_end(&order);
    }
    struct zr_pipeline_order order;
    tap_result(
        zr_pipeline_order_make(&order, &(struct zr_pipeline_request){&(struct zr_pipeline){.interleave = 2},
                                                                     3, 0, 4, host_arena, 0, 0, false}),
        ZR_ERR_INVALID, "rounds of 3 do not divide 4 micro-batches");
    tap_ok(strstr(zr_last_error(), "the nearest that fit are 6") != NULL, "which says what does");
}

/* What a rank may hold at most, of all its parts. */
static unsigned held_bound(const struct zr_pipeline *pipeline, unsigned ranks, unsigned rank,
                           unsigned batches)
{
    unsigned parts = zr_pipeline_parts(pipeline);
    switch (pipeline->schedule) {
    case ZR_PIPELINE_NAIVE:
        return 1;
    case ZR_PIPELINE_GPIPE:
        return batches;
    case ZR_PIPELINE_VHALF:
        return ranks + 1;
    case ZR_PIPELINE_ZB_H1:
        return ranks;
    case ZR_PIPELINE_ZB_V:
        return 2 * ranks;
    case ZR_PIPELINE_2BW:
    case ZR_PIPELINE_PIPEDREAM:
        return ranks - rank;
    default:
        return parts == 1 ? ranks - rank : 2 * (ranks - 1 - rank) + (parts - 1) * ranks + 1;
    }
}

/* Every micro-batch once through each part, forward before backward, in order. */
static unsigned count_wrong(const struct zr_pipeline_request *request)
{
    unsigned next[ZR_PIPELINE_KINDS][ZR_PIPELINE_PARTS_MAX] = {{0}}, held = 0, wrong = 0;
    struct zr_pipeline_order order;
    if (zr_pipeline_order_make(&order, request) != ZR_OK)
        return 1;
    for (size_t i = 0; i < order.count; i++) {
        const struct zr_pipeline_item *item = &order.items[i];
        wrong += item->micro_batch != next[item->kind][item->part]++;
        wrong += item->kind > 0 && item->micro_batch >= next[item->kind - 1][item->part];
        held += (unsigned)zr_pipeline_holds(&order, item);
        wrong += held > held_bound(request->pipeline, request->ranks, request->rank, request->micro_batches);
    }
    for (unsigned part = 0; part < zr_pipeline_parts(request->pipeline); part++)
        for (unsigned kind = 0; kind <= order.last; kind++)
            wrong += next[kind][part] != request->micro_batches;
    zr_pipeline_order_end(&order);
    return wrong;
}

/* Whether a schedule takes a number of micro-batches. */
static bool takes(const struct zr_pipeline *pipeline, unsigned ranks, unsigned batches)
{
    return pipeline->schedule == ZR_PIPELINE_2BW         ? batches >= ranks
           : pipeline->schedule == ZR_PIPELINE_PIPEDREAM ? batches == 1
                                                         : pipeline->interleave <= 1 || batches % ranks == 0;
}

static void test_orders(const char *words, const struct zr_pipeline *pipeline)
{
    static struct zr_pipeline_times times[ZR_PIPELINE_STAGES_MAX];
    unsigned wrong = 0, stuck = 0, far = 0;
    for (unsigned s = 0; s < ZR_PIPELINE_STAGES_MAX; s++)
        times[s] =
            (struct zr_pipeline_times){.seconds = {1, pipeline->schedule == ZR_PIPELINE_ZB_V ? 1 : 2, 1}};
    for (unsigned ranks = 2; ranks <= RANKS_MAX; ranks++)
        for (unsigned batches = 1; batches < BATCHES_MAX; batches++) {
            struct zr_pipeline_request request = {pipeline, ranks, 0, batches, host_arena, 0, 0, false};
            struct zr_pipeline_walk walk;
            double formula = zr_pipeline_idle_share(pipeline, ranks, batches, &times[0]);
            if (!takes(pipeline, ranks, batches))
                continue;
            for (request.rank = 0; request.rank < ranks; request.rank++)
                wrong += count_wrong(&request);
            stuck += zr_pipeline_walk(&walk, &request, times) != ZR_OK;
            double idle = 1 - walk.busy_seconds / (walk.seconds * ranks);
            far += zr_pipeline_is_asynchronous(pipeline) && fabs(idle) > 1e-9;
            if (pipeline->schedule == ZR_PIPELINE_ZB_V && batches >= 2 * ranks) /* the first forwards */
                far += walk.seconds - walk.busy_seconds / ranks > ranks;
            far += formula >= 0 && (idle < 0.999 * formula || idle > 1.001 * formula);
        }
    tap_ok(wrong == 0 && stuck == 0 && far == 0,
           "%s: each micro-batch once, in order, as few held as are said, idle as the formula says", words);
}

/* ---- Lists --------------------------------------------------------------------------------------------- */

/* A rank of a pipeline that goes through its list. */
struct walker {
    struct zr_cut cut;
    struct zr_pipeline_order order;
    struct zr_actions schedule;
    size_t at;
};

/* A way between two stages, by the stage in front: messages sent, and asked for. */
struct way {
    unsigned sent, asked, needed;
};
static struct way ways[2][ZR_PIPELINE_STAGES_MAX];

static zr_result open_walker(struct walker *w, const struct zr_model *model,
                             const struct zr_pipeline *pipeline, unsigned ranks, unsigned rank,
                             unsigned batches)
{
    memset(w, 0, sizeof *w);
    zr_result result =
        zr_cut_open(&w->cut, &(struct zr_cut_request){model, pipeline, ranks, rank, host_arena});
    if (result == ZR_OK)
        result =
            zr_pipeline_order_make(&w->order, &(struct zr_pipeline_request){pipeline, ranks, rank, batches,
                                                                            host_arena, 0, 0, false});
    if (result == ZR_OK)
        result = zr_schedule_step(&w->schedule, &(struct zr_schedule_request){.model = &w->cut.model,
                                                                              .micro_batches = batches,
                                                                              .cut = &w->cut,
                                                                              .order = &w->order,
                                                                              .host_arena = host_arena});
    return result;
}

static void close_walker(struct walker *w)
{
    zr_actions_drop(&w->schedule);
    zr_pipeline_order_end(&w->order);
    zr_cut_close(&w->cut);
}

/* Whether an action can end: a send when the one before it on its way was asked for, a module when what it
 * reads was sent. */
static bool can_end(const struct walker *w, const struct zr_action *action)
{
    const struct zr_cut_part *part = &w->cut.parts[zr_cut_part_of(&w->cut, action->index)];
    const struct way *in = &ways[0][part->stage - (part->stage > 0)], *back = &ways[1][part->stage];
    bool last = zr_module_is_last(&w->cut.model.modules[part->end - 1]);
    if (action->kind == ZR_ACTION_SEND) {
        const struct way *out = action->backward ? &ways[1][part->stage - 1] : &ways[0][part->stage];
        return out->sent < 1 || out->asked + 1 > out->sent;
    }
    if (action->kind == ZR_ACTION_FORWARD && action->index == part->first && part->entry != ZR_NO_MODULE)
        return in->sent > action->micro_batch;
    if (action->kind == ZR_ACTION_BACKWARD && action->index == part->end - 1 && part->exit != ZR_NO_MODULE)
        return back->sent > action->micro_batch;
    return !(action->kind == ZR_ACTION_BACKWARD && last && action->index == part->first &&
             part->entry != ZR_NO_MODULE) ||
           in->sent > action->micro_batch;
}

static void end_action(const struct walker *w, const struct zr_action *action)
{
    const struct zr_cut_part *part = &w->cut.parts[zr_cut_part_of(&w->cut, action->index)];
    if (action->kind == ZR_ACTION_SEND)
        (action->backward ? &ways[1][part->stage - 1] : &ways[0][part->stage])->sent++;
    if (action->kind == ZR_ACTION_RECEIVE)
        (action->backward ? &ways[1][part->stage] : &ways[0][part->stage - 1])->asked++;
}

/* Whether all ranks come to the ends of their lists. */
static bool all_end(struct walker walkers[], unsigned ranks)
{
    bool moved = true, done = false;
    memset(ways, 0, sizeof ways);
    while (moved && !done) {
        moved = false;
        done = true;
        for (unsigned r = 0; r < ranks; r++) {
            struct walker *w = &walkers[r];
            for (; w->at < w->schedule.count && can_end(w, &w->schedule.actions[w->at]);
                 w->at++, moved = true)
                end_action(w, &w->schedule.actions[w->at]);
            done &= w->at == w->schedule.count;
        }
    }
    return done;
}

/* Backward passes that begin while an input is received, which with weights keeps ranks of a GPU waiting. */
static unsigned count_early(const struct walker *w)
{
    unsigned pending = 0, early = 0;
    for (size_t i = 0; i < w->schedule.count && w->order.last == ZR_PIPELINE_WEIGHTS; i++) {
        const struct zr_action *action = &w->schedule.actions[i];
        pending += action->kind == ZR_ACTION_RECEIVE && !action->backward;
        for (unsigned p = 0; p < w->cut.parts_count; p++)
            pending -= action->kind == ZR_ACTION_FORWARD && action->index == w->cut.parts[p].first &&
                       w->cut.parts[p].entry != ZR_NO_MODULE;
        early += action->kind == ZR_ACTION_BACKWARD && pending > 0;
    }
    return early;
}

static void test_lists(const char *words, const struct zr_pipeline *pipeline)
{
    const struct zr_shape shape = {.layers = 24,
                                   .hidden = 64,
                                   .heads = 2,
                                   .vocabulary = 192,
                                   .vocabulary_padded = 192,
                                   .sequence = 8,
                                   .batch = 2,
                                   .variant = {.untied = pipeline->schedule == ZR_PIPELINE_PIPEDREAM}};
    static struct walker walkers[RANKS_MAX];
    struct zr_transformer transformer;
    unsigned stuck = 0;
    zr_result result = zr_transformer_open(&transformer, &shape, NULL, host_arena);
    for (unsigned ranks = 2; ranks <= RANKS_MAX && result == ZR_OK; ranks++)
        for (unsigned batches = 1; batches < BATCHES_MAX && result == ZR_OK; batches++) {
            if (!takes(pipeline, ranks, batches))
                continue;
            for (unsigned r = 0; r < ranks && result == ZR_OK; r++)
                result = open_walker(&walkers[r], &transformer.model, pipeline, ranks, r, batches);
            stuck += result == ZR_OK && !all_end(walkers, ranks);
            for (unsigned r = 0; r < ranks; r++) {
                stuck += count_early(&walkers[r]);
                close_walker(&walkers[r]);
            }
        }
    zr_transformer_close(&transformer);
    tap_ok(result == ZR_OK && stuck == 0, "%s: no lists wait for one another", words);
}

/* ---- Parts of a model ---------------------------------------------------------------------------------- */

/* Modules that can recompute, counted in the whole model up to each module here. */
static unsigned wrong_counts(const struct zr_cut *cut, const struct zr_model *whole)
{
    unsigned wrong = 0;
    for (unsigned p = 0; p < cut->parts_count; p++) {
        const struct zr_cut_part *part = &cut->parts[p];
        size_t first = whole->modules_count * part->stage / cut->stages_count;
        for (size_t m = part->first; m < part->end; m++) {
            size_t before = 0;
            for (size_t k = 0; k < first + m - part->first; k++)
                before += whole->modules[k].type->recomputes;
            wrong += cut->recomputing_before[m] != before;
        }
    }
    return wrong;
}

/* The ranks' parts are the model: each tensor is stored, and counts once; only what is shared is there twice.
 */
static void test_parts(const char *words, const struct zr_pipeline *pipeline, bool tied)
{
    const struct zr_shape shape = {.layers = 9,
                                   .hidden = 32,
                                   .heads = 2,
                                   .vocabulary = 100,
                                   .vocabulary_padded = 128,
                                   .sequence = 8,
                                   .batch = 1,
                                   .architecture = ZR_ARCH_LLAMA,
                                   .tied = tied};
    enum { RANKS = 4 };
    struct zr_transformer transformer;
    uint64_t counted = 0;
    unsigned wrong = 0, copies = 0, uses = 0;
    zr_result result = zr_transformer_open(&transformer, &shape, NULL, host_arena);
    const struct zr_parameter_list *whole = &transformer.model.list;
    for (unsigned r = 0; r < RANKS && result == ZR_OK; r++) {
        struct zr_cut cut;
        uint64_t at = 0;
        result =
            zr_cut_open(&cut, &(struct zr_cut_request){&transformer.model, pipeline, RANKS, r, host_arena});
        if (result != ZR_OK)
            break;
        for (size_t i = 0; i < cut.model.list.parameters_count; i++) {
            const struct zr_parameter *p = &cut.model.list.parameters[i];
            uint64_t before = 0;
            at += p->left_out;
            for (size_t k = 0; strcmp(whole->parameters[k].name, p->name) != 0; k++)
                before += zr_parameter_elements(&whole->parameters[k]);
            wrong += at != before || p->part.copy > p->part.shared;
            at += zr_parameter_elements(p);
            counted += p->part.copy ? 0 : zr_parameter_elements(p);
            copies += p->part.copy;
        }
        wrong += at + cut.model.list.left_out != zr_parameter_list_elements(whole);
        for (size_t u = 0; u < cut.model.list.units_count; u++)
            uses += cut.model.list.units[u].gradient_uses;
        wrong += wrong_counts(&cut, &transformer.model);
        wrong += cut.shares && (cut.sharing_count != 2 || cut.sharing[0] != 0 || cut.sharing[1] != RANKS - 1);
        zr_cut_close(&cut);
    }
    for (size_t u = 0; u < whole->units_count; u++)
        uses -= whole->units[u].gradient_uses;
    bool apart = tied && !zr_pipeline_is_v(pipeline);
    tap_ok(result == ZR_OK && wrong == 0 && uses == 0 && counted == zr_parameter_list_elements(whole) &&
               copies == apart,
           "%s: the parts are the model, %u copies", words, copies);
    zr_transformer_close(&transformer);
}

/* The first unit is read by three ranks, the second by the first two of them. */
static void test_shared_by_others(const struct zr_model *model)
{
    static const size_t stages[] = {2, 1, 2};
    struct zr_pipeline pipeline = {.modules = stages};
    struct zr_module modules[5];
    struct zr_model other = *model;
    struct zr_cut cut;
    memcpy(modules, model->modules, sizeof modules);
    modules[2].units[0] = 0;
    modules[2].units[1] = 1;
    modules[2].units_count = 2;
    modules[4].units[0] = 0;
    other.modules = modules;
    tap_result(zr_cut_open(&cut, &(struct zr_cut_request){&other, &pipeline, 3, 0, host_arena}),
               ZR_ERR_INVALID, "units that are shared by three ranks and by two: %s", zr_last_error());
}

static void test_refused(void)
{
    const struct zr_shape shape = {.layers = 2,
                                   .hidden = 32,
                                   .heads = 2,
                                   .vocabulary = 100,
                                   .vocabulary_padded = 128,
                                   .sequence = 8,
                                   .batch = 1};
    static const size_t none[] = {2, 0, 3}, few[] = {1, 1, 1};
    static const struct {
        const char *words;
        struct zr_pipeline pipeline;
        unsigned ranks;
    } refused[] = {{"no such schedule", {.schedule = ZR_PIPELINE_SCHEDULES}, 2},
                   {"gpipe with two stages per rank", {.schedule = ZR_PIPELINE_GPIPE, .interleave = 2}, 2},
                   {"vhalf with three", {.schedule = ZR_PIPELINE_VHALF, .interleave = 3}, 1},
                   {"more stages than modules", {.interleave = 2}, 3},
                   {"a stage without modules", {.modules = none}, 3},
                   {"modules that are no stage's", {.modules = few}, 3},
                   {"pipedream with a tied embedding", {.schedule = ZR_PIPELINE_PIPEDREAM}, 3},
                   {"2bw with vertical sync", {.schedule = ZR_PIPELINE_2BW, .vertical_sync = true}, 2}};
    struct zr_transformer transformer;
    struct zr_cut cut;
    tap_result(zr_transformer_open(&transformer, &shape, NULL, host_arena), ZR_OK, "a model of five modules");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        tap_result(
            zr_cut_open(&cut, &(struct zr_cut_request){&transformer.model, &refused[i].pipeline,
                                                       refused[i].ranks, refused[i].ranks / 2, host_arena}),
            ZR_ERR_INVALID, "%s", refused[i].words);
    test_shared_by_others(&transformer.model);
    zr_transformer_close(&transformer);
}

/* As many stages as there are modules, or as there may be, and one more. */
static void test_limits(void)
{
    const struct zr_shape deep = {.layers = ZR_PIPELINE_STAGES_MAX,
                                  .hidden = 4,
                                  .heads = 1,
                                  .vocabulary = 64,
                                  .vocabulary_padded = 64,
                                  .sequence = 1,
                                  .batch = 1};
    struct zr_shape five = deep;
    five.layers = 2;
    struct zr_shape untied = five;
    untied.variant.untied = 1;
    static const size_t exact[] = {1, 1, 3}, more[] = {2, 1, 3};
    const struct {
        const char *words;
        const struct zr_shape *shape;
        struct zr_pipeline pipeline;
        unsigned ranks;
        zr_result result;
    } rows[] = {{"a stage for each module", &five, {0}, 5, ZR_OK},
                {"one more", &five, {0}, 6, ZR_ERR_INVALID},
                {"vhalf with two of each rank", &five, {.schedule = ZR_PIPELINE_VHALF}, 2, ZR_OK},
                {"and one rank more", &five, {.schedule = ZR_PIPELINE_VHALF}, 3, ZR_ERR_INVALID},
                {"stages that have all modules", &five, {.modules = exact}, 3, ZR_OK},
                {"and one that is not there", &five, {.modules = more}, 3, ZR_ERR_INVALID},
                {"the most of a rank", &deep, {.interleave = ZR_PIPELINE_PARTS_MAX}, 2, ZR_OK},
                {"one more", &deep, {.interleave = ZR_PIPELINE_PARTS_MAX + 1}, 2, ZR_ERR_INVALID},
                {"the most in all", &deep, {0}, ZR_PIPELINE_STAGES_MAX, ZR_OK},
                {"one more", &deep, {0}, ZR_PIPELINE_STAGES_MAX + 1, ZR_ERR_INVALID},
                {"the last schedule", &untied, {.schedule = ZR_PIPELINE_SCHEDULES - 1}, 2, ZR_OK}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct zr_transformer transformer;
        struct zr_cut cut = {0};
        zr_result result = zr_transformer_open(&transformer, rows[i].shape, NULL, host_arena);
        if (result == ZR_OK)
            result = zr_cut_open(&cut, &(struct zr_cut_request){&transformer.model, &rows[i].pipeline,
                                                                rows[i].ranks, 0, host_arena});
        tap_result(result, rows[i].result, "%s", rows[i].words);
        if (result == ZR_OK)
            zr_cut_close(&cut);
        zr_transformer_close(&transformer);
    }
}

int main(void)
{
    static const struct {
        const char *words;
        struct zr_pipeline pipeline;
    } all[] = {{"naive", {.schedule = ZR_PIPELINE_NAIVE}},
               {"gpipe", {.schedule = ZR_PIPELINE_GPIPE}},
               {"1f1b", {.schedule = ZR_PIPELINE_1F1B}},
               {"interleaved by 2", {.schedule = ZR_PIPELINE_1F1B, .interleave = 2}},
               {"interleaved by 3", {.schedule = ZR_PIPELINE_1F1B, .interleave = 3}},
               {"vhalf", {.schedule = ZR_PIPELINE_VHALF}},
               {"zb-h1", {.schedule = ZR_PIPELINE_ZB_H1}},
               {"zb-v", {.schedule = ZR_PIPELINE_ZB_V}},
               {"2bw", {.schedule = ZR_PIPELINE_2BW}},
               {"pipedream", {.schedule = ZR_PIPELINE_PIPEDREAM}}};
    tap_result(records_begin(), ZR_OK, "memory for records");
    test_written();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        test_orders(all[i].words, &all[i].pipeline);
        test_lists(all[i].words, &all[i].pipeline);
        test_parts(all[i].words, &all[i].pipeline, false);
        if (all[i].pipeline.schedule != ZR_PIPELINE_PIPEDREAM)
            test_parts(all[i].words, &all[i].pipeline, true);
    }
    test_refused();
    test_limits();
    tap_is(records_end(), 0, "nothing is left behind");
    return tap_done();
}
