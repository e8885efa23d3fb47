/* report_stages.c: pipeline stages and the plans of their ranks, as text and for --json. */
#include <stdio.h>

#include "zero/plan/timeline.h"
#include "zero/train/report/number.h"
#include "zero/train/report/report.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"

/* "3", or for several stages "2 + 2". */
static void describe_layers(char *out, size_t size, const struct zr_train_config *config, unsigned rank)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    size_t used = 0;
    for (unsigned s = 0; s < zr_stages_count(&config->stages); s++) {
        if (zr_pipeline_rank_of(&pipeline, config->stages.ranks, s) != rank)
            continue;
        used += (size_t)snprintf(out + used, size - used, "%s%u", used > 0 ? " + " : "",
                                 config->stages.layers[s]);
    }
}

/* Maximum micro-batches that a rank holds, summed over its stages. */
static zr_result count_held(const struct zr_train_config *config, unsigned rank, zr_arena *host_arena,
                            unsigned *out)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    struct zr_pipeline_order order;
    unsigned now = 0;
    *out = 0;
    zr_result result = zr_pipeline_order_make(
        &order, &(struct zr_pipeline_request){&pipeline, config->stages.ranks, rank, config->micro_batches,
                                              host_arena, 0, 0, false});
    for (size_t i = 0; result == ZR_OK && i < order.count; i++) {
        now += (unsigned)zr_pipeline_holds(&order, &order.items[i]);
        *out = now > *out ? now : *out;
    }
    if (result == ZR_OK && zr_pipeline_is_asynchronous(&pipeline))
        *out = order.held_max[0]; /* the order of a step begins in earlier ones */
    if (result == ZR_OK)
        zr_pipeline_order_end(&order);
    return result;
}

/* Versions of the parameters in an asynchronous pipeline, and how old those are that gradients are of. */
static void describe_versions(struct zr_text_page *page, const struct zr_pipeline *pipeline, unsigned ranks)
{
    unsigned stale = zr_pipeline_stashed(pipeline, ranks, 0);
    if (zr_pipeline_stashed(pipeline, ranks, ranks - 1) != stale)
        zr_text_print(
            &page->text,
            "  gradients are of parameters %u to 0 updates old, from the first stage to the last; %u to 1 "
            "versions are kept\n",
            stale, stale + 1);
    else if (zr_pipeline_is_asynchronous(pipeline))
        zr_text_print(&page->text,
                      "  gradients are of parameters %u update%s old; %u versions are kept by every stage\n",
                      stale, stale == 1 ? "" : "s", stale + 1);
}

zr_result zr_report_stages(const struct zr_train_config *config, const struct zr_rank_report *ranks,
                           zr_arena *host_arena)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    char number[3][ZR_NUMBER_ROOM], layers[64], heading[96];
    struct zr_text_page page;
    unsigned held;
    zr_result result = ZR_OK;
    if (config->stages.ranks <= 1)
        return ZR_OK;
    zr_page_open(&page, config);
    snprintf(heading, sizeof heading, "Stages of the pipeline, %s, %u micro-batches",
             zr_pipeline_schedule_name(config->stages.schedule), config->micro_batches);
    zr_page_heading(&page, heading);
    zr_text_print(&page.text, "  %4s  %-14s %10s %10s %10s %10s  %s\n", "rank", "layers", "state",
                  "checkpoint", "activation", "total", "micro-batches held");
    for (unsigned r = 0; r < config->stages.ranks && result == ZR_OK; r++) {
        const struct zr_rank_report *rank = &ranks[zr_train_first_rank(config, r)];
        const size_t *by_tag = rank->planned_by_tag_bytes;
        char total[ZR_NUMBER_ROOM];
        describe_layers(layers, sizeof layers, config, r);
        result = count_held(config, r, host_arena, &held);
        zr_text_print(&page.text, "  %4u  %-14s %10s %10s %10s %10s  %u\n", zr_train_first_rank(config, r),
                      layers,
                      zr_number_bytes(number[0], zr_report_state_bytes(rank->planned_kept_by_tag_bytes)),
                      zr_number_bytes(number[1], by_tag[ZR_TAG_CHECKPOINT]),
                      zr_number_bytes(number[2], by_tag[ZR_TAG_ACTIVATION]),
                      zr_number_bytes(total, rank->planned_bytes), held);
    }
    describe_versions(&page, &pipeline, config->stages.ranks);
    if (config->flops_per_second == 0) /* else the timeline follows */
        zr_text_print(&page.text, "\n");
    zr_result flushed = zr_text_flush(&page.text);
    return result == ZR_OK ? flushed : result;
}

json_t *zr_report_stages_json(const struct zr_train_config *config, const struct zr_rank_report *ranks,
                              const struct zr_timeline *timeline, zr_arena *host_arena)
{
    const struct zr_pipeline pipeline = zr_stages_pipeline(&config->stages, NULL);
    json_t *array = json_array();
    for (unsigned r = 0; r < config->stages.ranks; r++) {
        const struct zr_rank_report *rank = &ranks[zr_train_first_rank(config, r)];
        json_t *layers = json_array();
        for (unsigned s = 0; s < zr_stages_count(&config->stages); s++)
            if (zr_pipeline_rank_of(&pipeline, config->stages.ranks, s) == r)
                json_array_append_new(layers, json_integer(config->stages.layers[s]));
        unsigned held;
        if (count_held(config, r, host_arena, &held) != ZR_OK)
            held = 0;
        json_t *object = json_pack("{s:i, s:o, s:i, s:I, s:I}", "rank", (int)zr_train_first_rank(config, r),
                                   "layers", layers, "micro_batches_held", (int)held, "planned_bytes",
                                   (json_int_t)rank->planned_bytes, "reserved_bytes",
                                   (json_int_t)rank->planned_reserved_bytes);
        unsigned stale = zr_pipeline_stashed(&pipeline, config->stages.ranks, r);
        json_object_set_new(object, "parameter_versions", json_integer(stale + 1));
        json_object_set_new(object, "staleness", json_integer(stale));
        if (timeline && timeline->walk.seconds > 0)
            json_object_set_new(object, "idle_share",
                                json_real(1 - timeline->walk.rank_seconds[r] / timeline->walk.seconds));
        json_array_append_new(array, object);
    }
    return array;
}
