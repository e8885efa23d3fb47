/* report_timeline.c: the step timeline as text and for --json. */
#include <inttypes.h>
#include <stdio.h>

#include "zero/plan/timeline.h"
#include "zero/train/report/number.h"
#include "zero/train/report/report.h"
#include "zero/train/report/terminal.h"

enum { BAR_COLUMNS = 28, SHOWN_AT_EACH_END = 10 };

/* "312 T", "1.50 G"; the unit follows. */
static const char *with_prefix(char out[ZR_NUMBER_ROOM], double value)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    unsigned prefix = 0;
    for (; value >= 999.5 && prefix + 1 < sizeof prefixes / sizeof *prefixes; prefix++)
        value /= 1000;
    snprintf(out, ZR_NUMBER_ROOM, "%.*f %s",
             value >= 99.95   ? 0
             : value >= 9.995 ? 1
                              : 2,
             value, prefixes[prefix]);
    return out;
}

/* Derived numbers. */
struct figures {
    double step_seconds;
    double tokens_per_second;
    double computing_seconds;
    double hidden;      /* fraction of communication that overlaps with computing; 1 without any */
    double model_flops; /* operations of a rank's step */
    double utilisation; /* fraction of the rank's speed used for the model */
};

static struct figures figures_of(const struct zr_train_config *config, const struct zr_timeline *t)
{
    double model = zr_shape_flops(&config->shape) * config->micro_batches /
                   (double)zr_shape_tensor(&config->shape) / zr_train_mesh(config).pipeline,
           step = zr_timeline_step_seconds(t);
    return (struct figures){
        .step_seconds = step,
        .tokens_per_second = (double)zr_train_step_tokens(config) / step,
        .computing_seconds = t->step_seconds - t->waited_seconds,
        .hidden = t->comm_seconds > 0 ? 1 - t->waited_seconds / t->comm_seconds : 1,
        .model_flops = model,
        .utilisation = model / (step * config->flops_per_second),
    };
}

/* A tier other than device memory. */
struct tier {
    const char *name;
    double moved_bytes, bytes_per_second; /* per step; 0: unknown rate */
    double waited_seconds, wait_share;    /* fraction of the step */
    double needed_bytes_per_second;       /* rate at which its copies take as long as the rest of the step */
};
enum { TIERS = 2 };

static unsigned tiers_of(const struct zr_timeline *t, struct tier out[])
{
    const struct tier all[TIERS] = {{.name = "host",
                                     .moved_bytes = (double)t->host_moved_bytes,
                                     .bytes_per_second = t->clock.host_bytes_per_second,
                                     .waited_seconds = t->host_waited_seconds},
                                    {.name = "nvme",
                                     .moved_bytes = (double)t->nvme_moved_bytes,
                                     .bytes_per_second = t->clock.nvme_bytes_per_second,
                                     .waited_seconds = t->nvme_waited_seconds}};
    double step = zr_timeline_step_seconds(t);
    unsigned count = 0;
    for (unsigned i = 0; i < TIERS; i++) {
        if (all[i].moved_bytes <= 0)
            continue;
        struct tier *tier = &out[count++];
        *tier = all[i];
        tier->wait_share = tier->waited_seconds / step;
        tier->needed_bytes_per_second = tier->moved_bytes / (step - tier->waited_seconds);
    }
    return count;
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

/* Draws the position of a phase in the step. */
static void print_bar(struct zr_text_page *page, const struct zr_timeline_phase *phase, double scale_seconds)
{
    int from = (int)(phase->begin_seconds / scale_seconds * BAR_COLUMNS);
    int to = (int)(phase->end_seconds / scale_seconds * BAR_COLUMNS + 0.5);
    if (from == BAR_COLUMNS)
        from--;
    zr_text_print(&page->text, "  %*s", from, "");
    for (int i = from; i < (to > from ? to : from + 1); i++)
        zr_text_print(&page->text, "%s", page->terminal.utf8 ? "█" : "#");
    zr_text_print(&page->text, "\n");
}

static void print_phases(struct zr_text_page *page, const struct zr_timeline *t)
{
    double scale_seconds = t->step_seconds;
    for (int kind = ZR_ACTION_LOAD; kind < ZR_TIMELINE_KINDS; kind++)
        if (t->phases[kind].end_seconds > scale_seconds)
            scale_seconds = t->phases[kind].end_seconds;
    zr_text_print(&page->text, "  %-9s %12s  %12s  %12s   milliseconds\n", "", "begin", "end", "busy");
    for (int kind = ZR_ACTION_LOAD; kind < ZR_TIMELINE_KINDS; kind++) {
        const struct zr_timeline_phase *phase = &t->phases[kind];
        if (phase->count == 0)
            continue;
        zr_text_print(&page->text, "  %-9s %12.3f  %12.3f  %12.3f",
                      zr_action_kind_name((enum zr_action_kind)kind), 1e3 * phase->begin_seconds,
                      1e3 * phase->end_seconds, 1e3 * phase->busy_seconds);
        print_bar(page, phase, scale_seconds);
    }
}

/* Fraction of idle time of all pipeline ranks. */
static double idle_share(const struct zr_train_config *config, const struct zr_timeline *t)
{
    return 1 - t->walk.busy_seconds / (t->walk.seconds * config->stages.ranks);
}

static void print_idle(struct zr_text_page *page, const struct zr_train_config *config,
                       const struct zr_timeline *t)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    double formula =
        zr_pipeline_idle_share(&pipeline, config->stages.ranks, config->micro_batches, &t->walk.mean);
    zr_text_print(&page->text, "\n  the ranks of the pipeline are idle for %.1f %% of it",
                  100 * idle_share(config, t));
    if (formula >= 0)
        zr_text_print(&page->text, "; %.1f %% by %s's formula, of equal stages", 100 * formula,
                      zr_pipeline_schedule_name(config->stages.schedule));
}

static void print_tier(struct zr_text_page *page, const struct tier *tier)
{
    char number[3][ZR_NUMBER_ROOM];
    zr_text_print(&page->text, "\n  %s: %sB moved in a step", tier->name,
                  with_prefix(number[0], tier->moved_bytes));
    if (tier->bytes_per_second > 0)
        zr_text_print(&page->text, " at %sB/s, of which %.1f %% of the step are spent waiting",
                      with_prefix(number[1], tier->bytes_per_second), 100 * tier->wait_share);
    else
        zr_text_print(&page->text, " in no time: no --%s-bandwidth is known", tier->name);
    zr_text_print(&page->text, "; %sB/s take as long as all else",
                  with_prefix(number[2], tier->needed_bytes_per_second));
}

static void print_figures(struct zr_text_page *page, const struct zr_train_config *config,
                          const struct zr_timeline *t)
{
    struct figures f = figures_of(config, t);
    char number[2][ZR_NUMBER_ROOM];

    zr_text_print(&page->text, "  a step takes %.3f ms: %s tokens a second, of all ranks\n",
                  1e3 * f.step_seconds, zr_number_grouped(number[0], (uint64_t)(f.tokens_per_second + 0.5)));
    zr_text_print(&page->text, "  %.3f ms computing, %.3f ms waiting for others", 1e3 * f.computing_seconds,
                  1e3 * t->waited_seconds);
    if (t->comm_seconds > 0)
        zr_text_print(&page->text, "; %.1f %% of %.3f ms of communication hidden", 100 * f.hidden,
                      1e3 * t->comm_seconds);
    if (t->walk.seconds > 0)
        print_idle(page, config, t);
    /* Half of the bytes are copied out during forward, which is shorter than backward. */
    if (t->host_moved_bytes > 0 && config->offload_optimizer == ZR_TIER_NONE)
        zr_text_print(&page->text, "\n  copies of checkpoints cost nothing from %sB/s on",
                      with_prefix(number[0], (double)t->host_moved_bytes / 2 /
                                                 t->phases[ZR_ACTION_FORWARD].busy_seconds));
    struct tier tiers[TIERS];
    unsigned count = tiers_of(t, tiers);
    for (unsigned i = 0; i < count; i++)
        print_tier(page, &tiers[i]);
    zr_text_print(&page->text, "\n  the model gets %sFLOP/s of each rank, %.1f %% of its %sFLOP/s\n",
                  with_prefix(number[0], f.model_flops / f.step_seconds), 100 * f.utilisation,
                  with_prefix(number[1], config->flops_per_second));
}

/* Whether an event is listed. Events without duration (copies, norms, the optimizer) are not. */
static bool is_shown(const struct zr_timeline_event *event)
{
    return event->end_seconds > event->begin_seconds;
}

static size_t count_shown(const struct zr_timeline *t)
{
    size_t count = 0;
    for (size_t i = 0; i < t->events_count; i++)
        count += is_shown(&t->events[i]);
    return count;
}

/* Prints the start and the end of the list; the middle repeats. */
static void print_events(struct zr_text_page *page, const struct zr_timeline *t, bool several)
{
    size_t count = count_shown(t), shown = 0;

    zr_text_print(&page->text, "\n  %12s  %12s   one after the other\n", "begin", "end");
    for (size_t i = 0; i < t->events_count; i++) {
        const struct zr_timeline_event *event = &t->events[i];
        if (!is_shown(event))
            continue;
        shown++;
        if (count > 2 * SHOWN_AT_EACH_END + 1 && shown > SHOWN_AT_EACH_END &&
            shown <= count - SHOWN_AT_EACH_END) {
            if (shown == SHOWN_AT_EACH_END + 1)
                zr_text_print(&page->text, "  %12s  %12s   and %zu more, which --json has\n", "..", "..",
                              count - 2 * SHOWN_AT_EACH_END);
            continue;
        }
        zr_text_print(&page->text, "  %12.3f  %12.3f   %s %s", 1e3 * event->begin_seconds,
                      1e3 * event->end_seconds, zr_action_kind_name(event->kind), event->name);
        if (several)
            zr_text_print(&page->text, ", micro-batch %u", event->micro_batch + 1);
        zr_text_print(&page->text, "\n");
    }
}

zr_result zr_report_timeline(const struct zr_train_config *config, const struct zr_timeline *timeline)
{
    char number[2][ZR_NUMBER_ROOM], heading[160];
    struct zr_text_page page;

    zr_page_open(&page, config);
    snprintf(heading, sizeof heading, "Step timeline of a rank, at %sFLOP/s and %sB/s%s",
             with_prefix(number[0], config->flops_per_second),
             with_prefix(number[1], config->bytes_per_second),
             timeline->walk.seconds > 0 ? ", without waits for stages" : "");
    zr_page_heading(&page, heading);
    print_phases(&page, timeline);
    print_figures(&page, config, timeline);
    print_events(&page, timeline, config->micro_batches > 1);
    zr_text_print(&page.text, "\n");
    return zr_text_flush(&page.text);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static json_t *phases_object(const struct zr_timeline *t)
{
    json_t *phases = json_object();
    for (int kind = ZR_ACTION_LOAD; kind < ZR_TIMELINE_KINDS; kind++) {
        const struct zr_timeline_phase *phase = &t->phases[kind];
        if (kind != ZR_ACTION_LOAD && kind != ZR_ACTION_RELEASE) /* these take no time */
            json_object_set_new(phases, zr_action_kind_name((enum zr_action_kind)kind),
                                json_pack("{s:I, s:f, s:f, s:f}", "count", (json_int_t)phase->count, "begin",
                                          phase->begin_seconds, "end", phase->end_seconds, "busy",
                                          phase->busy_seconds));
    }
    return phases;
}

json_t *zr_report_timeline_json(const struct zr_train_config *config, const struct zr_timeline *t)
{
    struct figures f = figures_of(config, t);
    json_t *events = json_array();
    for (size_t i = 0; i < t->events_count; i++) {
        const struct zr_timeline_event *event = &t->events[i];
        json_array_append_new(events,
                              json_pack("{s:s, s:s, s:i, s:f, s:f}", "kind", zr_action_kind_name(event->kind),
                                        "unit", event->name, "micro_batch", (int)event->micro_batch, "begin",
                                        event->begin_seconds, "end", event->end_seconds));
    }
    json_t *object = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:o, s:o}", "flops_per_second",
        config->flops_per_second, "bytes_per_second", config->bytes_per_second, "step_seconds",
        f.step_seconds, "tokens_per_second", f.tokens_per_second, "computing_seconds", f.computing_seconds,
        "waiting_seconds", t->waited_seconds, "communication_seconds", t->comm_seconds,
        "communication_hidden", f.hidden, "flops", t->flops, "model_flops", f.model_flops, "utilisation",
        f.utilisation, "sent_bytes", (json_int_t)t->sent_bytes, "events_left_out", (json_int_t)t->left_out,
        "phases", phases_object(t), "events", events);
    struct tier tiers[TIERS];
    unsigned count = tiers_of(t, tiers);
    json_t *tiers_object = json_object();
    for (unsigned i = 0; i < count; i++)
        json_object_set_new(tiers_object, tiers[i].name,
                            json_pack("{s:f, s:f, s:f, s:f, s:f}", "moved_bytes", tiers[i].moved_bytes,
                                      "bytes_per_second", tiers[i].bytes_per_second, "waiting_seconds",
                                      tiers[i].waited_seconds, "wait_share", tiers[i].wait_share,
                                      "needed_bytes_per_second", tiers[i].needed_bytes_per_second));
    json_object_set_new(object, "tiers", tiers_object);
    if (t->walk.seconds > 0) {
        const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
        double formula =
            zr_pipeline_idle_share(&pipeline, config->stages.ranks, config->micro_batches, &t->walk.mean);
        json_object_set_new(object, "pipeline_seconds", json_real(t->walk.seconds));
        json_object_set_new(object, "pipeline_idle_share", json_real(idle_share(config, t)));
        json_object_set_new(object, "pipeline_idle_share_by_formula",
                            formula < 0 ? json_null() : json_real(formula));
    }
    return object;
}
