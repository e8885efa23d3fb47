/* report_json.c: --json, a stream of small prints; written to FILE.partial and renamed, so that whoever waits
 * for the file never reads half of it. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "zero/train/number.h"
#include "zero/train/report.h"

/* ---- Where it goes ------------------------------------------------------------------------------------- */

struct json_output {
    struct zr_file file;
    struct zr_text text;
    bool aside; /* a file of ours under `partial`, else standard output */
    char partial[ZR_TRAIN_PATH_ROOM + 16];
    char buffer[8192];
};

static void name_partial(const char *path, char out[ZR_TRAIN_PATH_ROOM + 16])
{
    size_t length = strnlen(path, ZR_TRAIN_PATH_ROOM - 1);
    memcpy(out, path, length);
    memcpy(out + length, ".partial", sizeof ".partial");
}

static zr_result output_open(struct json_output *out, const char *path)
{
    zr_result result = ZR_OK;

    out->aside = false;
    if (strcmp(path, "-") == 0) {
        out->file = zr_file_borrow(STDOUT_FILENO, "standard output");
    } else {
        name_partial(path, out->partial);
        /* A device, a pipe or a link is not renamed over: /dev/stdout, >(jq .) */
        result = zr_path_replaceable(path, &out->aside);
        if (!result)
            result = zr_file_create(&out->file, out->aside ? out->partial : path, ZR_CREATE_REPLACE);
    }
    if (!result)
        zr_text_start(&out->text, &out->file, out->buffer, sizeof out->buffer);
    return result;
}

static zr_result output_close(struct json_output *out, const char *path)
{
    zr_result result = zr_text_flush(&out->text);
    if (strcmp(path, "-") == 0)
        return result;
    if (!result && out->aside)
        result = zr_file_sync(&out->file);
    zr_result closed = zr_file_close(&out->file);
    result = result ? result : closed;
    if (!result && out->aside)
        result = zr_path_rename(&(struct zr_rename){out->partial, path});
    if (result && out->aside)
        unlink(out->partial);
    return result;
}

void zr_report_clean_up(const char *path)
{
    char partial[ZR_TRAIN_PATH_ROOM + 16];
    if (!path[0] || strcmp(path, "-") == 0)
        return;
    name_partial(path, partial);
    unlink(partial);
}

/* ---- What it says -------------------------------------------------------------------------------------- */

static void print_tags(struct zr_text *text, const char *key, const size_t by_tag_bytes[ZR_TAG_COUNT],
                       size_t total)
{
    zr_text_print(text, "\"%s\": {", key);
    for (int tag = 0; tag < ZR_TAG_COUNT; tag++)
        zr_text_print(text, "\"%s\": %zu, ", zr_tag_name((zr_tag)tag), by_tag_bytes[tag]);
    zr_text_print(text, "\"total\": %zu}", total);
}

/* What is kept between steps; the state alone is what ZeRO's formulas speak of. */
static void print_kept(struct zr_text *text, const char *key, const size_t by_tag_bytes[ZR_TAG_COUNT])
{
    size_t total = 0;
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++)
        total += by_tag_bytes[tag];
    zr_text_print(text, "\"%s\": {", key);
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++)
        zr_text_print(text, "\"%s\": %zu, ", zr_tag_name((zr_tag)tag), by_tag_bytes[tag]);
    zr_text_print(text, "\"state\": %zu, \"total\": %zu}", zr_report_state_bytes(by_tag_bytes), total);
}

/* What the plan holds a run to. */
static void print_tag_limits(struct zr_text *text, const struct zr_tag_limits *tag_limits)
{
    zr_text_print(text, "\"planned_most_bytes\": {");
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++)
        zr_text_print(text, "\"%s\": %zu, ", zr_tag_name((zr_tag)tag), tag_limits->by_tag_bytes[tag]);
    zr_text_print(text, "\"total\": %zu}", tag_limits->total_bytes);
}

/* What there is to say of ranks. */
struct ranks_view {
    const struct zr_rank_report *ranks;
    unsigned world;
    bool measured; /* else planned alone */
    bool sent;     /* elements are known: of a run none of whose steps was updated they are not */
};

static void print_travelling(struct zr_text *text, const struct ranks_view *view, const char *name,
                             uint64_t count)
{
    if (view->sent)
        zr_text_print(text, ", \"%s\": %" PRIu64, name, count);
    else
        zr_text_print(text, ", \"%s\": null", name);
}

static void print_rank(struct zr_text *text, const struct ranks_view *view, const struct zr_rank_report *rank)
{
    zr_text_print(text,
                  "{\"rank\": %u, \"whole_parameters\": %" PRIu64 ", \"whole_gradients\": %" PRIu64 ",\n   ",
                  rank->rank, rank->whole_parameters, rank->whole_gradients);
    print_tags(text, "planned_bytes", rank->planned_by_tag_bytes, rank->planned_bytes);
    zr_text_print(text, ",\n   ");
    print_tag_limits(text, &rank->tag_limits);
    zr_text_print(text, ",\n   ");
    print_kept(text, "planned_persistent_bytes", rank->planned_kept_by_tag_bytes);
    zr_text_print(text, ",\n   \"planned_reserved_bytes\": %zu", rank->planned_reserved_bytes);
    print_travelling(text, view, "sent_elements_per_step", rank->sent_elements_per_step);
    if (view->measured) {
        print_travelling(text, view, "received_bytes_per_step", rank->received_bytes_per_step);
        zr_text_print(text, ",\n   ");
        print_tags(text, "peak_bytes", rank->peak_by_tag_bytes, rank->peak_bytes);
        zr_text_print(text, ",\n   ");
        print_kept(text, "persistent_bytes", rank->kept_by_tag_bytes);
        zr_text_print(text,
                      ",\n   \"peak_reserved_bytes\": %zu, \"peak_host_reserved_bytes\": %zu, "
                      "\"peak_rss_bytes\": %zu, \"rss_anonymous_bytes\": %zu, "
                      "\"rss_shared_bytes\": %zu, \"stranded_bytes\": %zu",
                      rank->peak_reserved_bytes, rank->peak_host_reserved_bytes, rank->peak_resident_bytes,
                      rank->resident_anonymous_bytes, rank->resident_shared_bytes, rank->stranded_bytes);
        zr_text_print(text,
                      ",\n   \"driver_calls_last_step\": %" PRIu64 ", \"comm_busy_ns\": %" PRIu64
                      ", \"comm_exposed_ns\": %" PRIu64,
                      rank->driver_calls_last_step, rank->comm_busy_ns, rank->comm_exposed_ns);
    }
    zr_text_print(text, "}");
}

static void print_ranks(struct zr_text *text, const struct ranks_view *view)
{
    zr_text_print(text, " \"ranks\": [");
    for (unsigned r = 0; r < view->world; r++) {
        zr_text_print(text, r ? ",\n  " : "\n  ");
        print_rank(text, view, &view->ranks[r]);
    }
    zr_text_print(text, "\n ]}\n");
}

static void print_list(struct zr_text *text, const char *key, const double *values, size_t count, bool hex)
{
    char number[ZR_NUMBER_ROOM];
    zr_text_print(text, " \"%s\": [", key);
    for (size_t i = 0; i < count; i++) {
        zr_text_print(text, "%s", i == 0 ? "" : i % 8 ? ", " : ",\n  ");
        if (hex)
            zr_text_print(text, "\"%s\"", zr_number_hex(number, values[i]));
        else
            zr_text_print(text, "%s", zr_number_exact(number, values[i]));
    }
    zr_text_print(text, "],\n");
}

static void print_head(struct zr_text *text, const struct zr_train_config *config, uint64_t parameters,
                       unsigned world)
{
    const struct zr_shape *shape = &config->shape;
    zr_text_print(text, "{\"version\": 1, \"world_size\": %u, \"stage\": %u, \"parameters\": %" PRIu64 ",\n",
                  world, config->stage, parameters);
    zr_text_print(text, " \"layers\": %zu, \"hidden\": %zu, \"heads\": %zu, \"accumulate\": %u,\n",
                  shape->layers, shape->hidden, shape->heads, config->micro_batches);
    zr_text_print(text, " \"precision\": \"%s\",\n", zr_precision_name((enum zr_precision)config->precision));
}

zr_result zr_report_json(const struct zr_run_report *run)
{
    const char *path = run->config->json;
    struct json_output out;
    struct zr_text *text = &out.text;
    char number[2][ZR_NUMBER_ROOM];

    if (!path[0])
        return ZR_OK;
    zr_result result = output_open(&out, path);
    if (result)
        return result;
    print_head(text, run->config, run->parameters, run->world);
    zr_text_print(text, " \"steps\": %zu, \"first_step\": %" PRIu64 ",\n", run->steps_count,
                  run->resumed_step + 1);
    print_list(text, "loss", run->loss, run->steps_count, false);
    print_list(text, "loss_hex", run->loss, run->steps_count, true);
    zr_text_print(text, " \"tokens_per_second\": %s, \"seconds\": %s,\n",
                  zr_number_exact(number[0], run->tokens_per_second),
                  zr_number_exact(number[1], run->seconds));
    print_list(text, "step_seconds", run->step_seconds, run->steps_count, false);
    zr_text_print(text, " \"val_loss\": %s,\n",
                  run->validated ? zr_number_exact(number[0], run->validation_loss) : "null");
    if (run->scaling.scale > 0)
        zr_text_print(text, " \"loss_scale\": %s, \"skipped_steps\": %" PRIu64 ",\n",
                      zr_number_exact(number[0], (double)run->scaling.scale), run->scaling.skipped_steps);
    if (run->sample) {
        zr_text_print(text, " \"sample\": ");
        zr_text_json_string(text, run->sample, run->sample_bytes);
        zr_text_print(text, ",\n");
    }
    zr_report_print_timeline(text, run->config, run->timeline);
    print_ranks(text, &(struct ranks_view){run->ranks, run->world, true, zr_run_updated(run)});
    return output_close(&out, path);
}

static void print_found(struct zr_text *text, const struct zr_train_config *config,
                        const struct zr_limit_found *found)
{
    zr_text_print(text,
                  " \"find_max\": {\"size\": \"%s\", \"value\": %zu, \"memory_limit_bytes\": %zu, "
                  "\"reserved_bytes\": %zu, \"one_more_reserved_bytes\": ",
                  config->find_max == ZR_LIMIT_BATCH ? "batch" : "layers", found->value,
                  config->memory_limit_bytes, found->reserved_bytes);
    if (found->beyond_reserved_bytes == 0 || found->beyond_reserved_bytes == SIZE_MAX)
        zr_text_print(text, "null},\n");
    else
        zr_text_print(text, "%zu},\n", found->beyond_reserved_bytes);
}

/* Whether it fits under --memory-limit, and what would. */
static void print_advice(struct zr_text *text, const struct zr_train_config *config,
                         const struct zr_limit_advice *advice)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    zr_text_print(text, " \"memory_limit_bytes\": %zu, \"planned_reserved_bytes\": %zu, \"fits\": %s,\n",
                  config->memory_limit_bytes, advice->plan.peak_reserved_bytes,
                  advice->fits ? "true" : "false");
    zr_text_print(text, " \"would_fit\": [");
    for (size_t i = 0; i < advice->count; i++) {
        const struct zr_limit_choice *choice = &advice->choices[i];
        zr_text_print(
            text,
            "%s{\"stage\": %u, \"reduce\": \"%s\", \"recompute\": \"%s\", \"batch\": %zu, \"layers\": %zu, "
            "\"reserved_bytes\": %zu}",
            i ? ",\n  " : "\n  ", choice->stage,
            (enum zr_reduce_when)choice->reduce == ZR_REDUCE_ONCE ? "once" : "each",
            recompute[choice->recompute], choice->batch, choice->layers, choice->reserved_bytes);
    }
    zr_text_print(text, "],\n");
}

zr_result zr_report_json_plan(const struct zr_plan_report *plan)
{
    const struct zr_train_config *config = plan->config;
    struct json_output out;

    if (!config->json[0])
        return ZR_OK;
    zr_result result = output_open(&out, config->json);
    if (result)
        return result;
    print_head(&out.text, config, plan->parameters, config->ranks);
    zr_text_print(&out.text, " \"steps\": 0, \"dry_run\": %s,\n",
                  config->dry_run || config->finds_max ? "true" : "false");
    if (plan->found)
        print_found(&out.text, config, plan->found);
    if (plan->advice)
        print_advice(&out.text, config, plan->advice);
    zr_report_print_timeline(&out.text, config, plan->timeline);
    print_ranks(&out.text, &(struct ranks_view){plan->ranks, plan->ranks ? config->ranks : 0, false, true});
    return output_close(&out, config->json);
}
