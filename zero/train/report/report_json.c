/* report_json.c: --json, written member by member, so that memory does not grow with the number of ranks.
 * The data goes to FILE.partial and is renamed, so that readers never see a partial file. */
#define _GNU_SOURCE
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "zero/engine/meter.h"
#include "zero/train/report/number.h"
#include "zero/train/report/report.h"

/* ---- Output -------------------------------------------------------------------------------------------- */

struct json_output {
    struct zr_file file;
    struct zr_text text;
    bool to_partial; /* the file has the name `partial`; false: stdout, or written in place */
    bool begun, failed;
    char partial[ZR_TRAIN_PATH_ROOM + 16];
    char buffer[8192];
};

void zr_report_name_partial(const char *path, char out[ZR_TRAIN_PATH_ROOM + 16])
{
    size_t length = strnlen(path, ZR_TRAIN_PATH_ROOM - 1);
    memcpy(out, path, length);
    memcpy(out + length, ".partial", sizeof ".partial");
}

static zr_result output_open(struct json_output *out, const char *path)
{
    zr_result result = ZR_OK;

    *out = (struct json_output){.to_partial = false};
    json_set_alloc_funcs(zr_heap_alloc, zr_heap_free);
    if (strcmp(path, "-") == 0) {
        out->file = zr_file_borrow(STDOUT_FILENO, "standard output");
    } else {
        zr_report_name_partial(path, out->partial);
        /* A device, pipe or link is written in place: /dev/stdout, >(jq .) */
        result = zr_path_replaceable(path, &out->to_partial);
        if (!result)
            result = zr_file_create(&out->file, out->to_partial ? out->partial : path, ZR_CREATE_REPLACE);
    }
    if (!result)
        zr_text_start(&out->text, &out->file, out->buffer, sizeof out->buffer);
    return result;
}

static zr_result output_close(struct json_output *out, const char *path)
{
    zr_text_print(&out->text, "%s", "\n}\n");
    zr_result result = zr_text_flush(&out->text);
    if (!result && out->failed)
        result = zr_fail(ZR_ERR_MEMORY, "no memory to write %s", path);
    if (strcmp(path, "-") == 0)
        return result;
    if (!result && out->to_partial)
        result = zr_file_sync(&out->file);
    zr_result closed = zr_file_close(&out->file);
    result = result ? result : closed;
    if (!result && out->to_partial)
        result = zr_path_rename(&(struct zr_rename){out->partial, path});
    if (result && out->to_partial)
        unlink(out->partial);
    return result;
}

void zr_report_clean_up(const char *path)
{
    char partial[ZR_TRAIN_PATH_ROOM + 16];
    if (!path[0] || strcmp(path, "-") == 0)
        return;
    zr_report_name_partial(path, partial);
    unlink(partial);
}

/* ---- Values -------------------------------------------------------------------------------------------- */

static int append(const char *bytes, size_t count, void *state)
{
    return zr_text_print(state, "%.*s", (int)count, bytes) == ZR_OK ? 0 : -1;
}

/* Takes ownership of the value; NULL means out of memory. */
static void dump(struct json_output *out, json_t *value)
{
    out->failed |= json_dump_callback(value, append, &out->text, JSON_ENCODE_ANY) != 0;
    json_decref(value);
}

/* Adds a member to the file's object. */
static void add(struct json_output *out, const char *key, json_t *value)
{
    zr_text_print(&out->text, "%s\"%s\": ", out->begun ? ",\n" : "{", key);
    out->begun = true;
    dump(out, value);
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *count_of(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *tags(const size_t by_tag_bytes[ZR_TAG_COUNT], int tags_count, size_t total)
{
    json_t *object = json_object();
    for (int tag = 0; tag < tags_count; tag++)
        json_object_set_new(object, zr_tag_name((zr_tag)tag), count_of(by_tag_bytes[tag]));
    json_object_set_new(object, "total", count_of(total));
    return object;
}

/* Bytes kept between steps; `state` is the sum that ZeRO's formulas describe. */
static json_t *kept(const size_t by_tag_bytes[ZR_TAG_COUNT])
{
    size_t total = 0;
    for (int tag = 0; tag < ZR_TAG_OTHER; tag++)
        total += by_tag_bytes[tag];
    json_t *object = tags(by_tag_bytes, ZR_TAG_OTHER, total);
    json_object_set_new(object, "state", count_of(zr_report_state_bytes(by_tag_bytes)));
    return object;
}

static json_t *list(const double *values, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, number(values[i]));
    return array;
}

static json_t *hex_list(const double *values, size_t count)
{
    char text[ZR_NUMBER_ROOM];
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_string(zr_number_hex(text, values[i])));
    return array;
}

/* ---- Ranks --------------------------------------------------------------------------------------------- */

/* Selects the known numbers of ranks. */
struct ranks_view {
    const struct zr_train_config *config;
    const struct zr_rank_report *ranks;
    unsigned world;
    bool measured; /* measured numbers are known; false: only planned ones */
    bool sent;     /* sent elements are known; false if no step was updated */
};

static void set_measured(json_t *object, const struct ranks_view *view, const struct zr_rank_report *rank)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"peak_reserved_bytes", rank->peak_reserved_bytes},
                  {"peak_host_reserved_bytes", rank->peak_host_reserved_bytes},
                  {"peak_rss_bytes", rank->peak_resident_bytes},
                  {"rss_anonymous_bytes", rank->resident_anonymous_bytes},
                  {"rss_shared_bytes", rank->resident_shared_bytes},
                  {"stranded_bytes", rank->stranded_bytes},
                  {"driver_calls_last_step", rank->driver_calls_last_step},
                  {"host_waits_last_step", rank->host_waits_last_step},
                  {"graph_steps", rank->graph_steps},
                  {"comm_busy_ns", rank->comm_busy_ns},
                  {"comm_exposed_ns", rank->comm_exposed_ns}};
    json_object_set_new(object, "received_bytes_per_step",
                        view->sent ? count_of(rank->received_bytes_per_step) : json_null());
    json_object_set_new(object, "sent_bytes_per_step",
                        view->sent ? count_of(rank->sent_bytes_per_step) : json_null());
    json_object_set_new(object, "peak_bytes", tags(rank->peak_by_tag_bytes, ZR_TAG_COUNT, rank->peak_bytes));
    json_object_set_new(object, "persistent_bytes", kept(rank->kept_by_tag_bytes));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(object, counts[i].key, count_of(counts[i].value));
}

static json_t *nvme_tier(const struct ranks_view *view, const struct zr_rank_report *rank)
{
    json_t *nvme = json_pack("{s:I, s:I}", "planned_bytes", (json_int_t)rank->planned_nvme_bytes,
                             "planned_moved_bytes_per_step", (json_int_t)rank->planned_nvme_moved_bytes);
    if (view->measured) {
        json_object_set_new(nvme, "peak_bytes", count_of(rank->nvme_bytes));
        json_object_set_new(nvme, "moved_bytes_per_step", count_of(rank->nvme_moved_bytes));
        json_object_set_new(nvme, "wait_share", number(rank->nvme_wait_share));
    }
    return nvme;
}

/* Tiers other than device memory. */
static json_t *tiers(const struct ranks_view *view, const struct zr_rank_report *rank)
{
    json_t *host = json_pack("{s:I, s:I, s:I}", "planned_bytes", (json_int_t)rank->planned_host_bytes,
                             "planned_reserved_bytes", (json_int_t)rank->planned_host_reserved_bytes,
                             "planned_moved_bytes_per_step", (json_int_t)rank->planned_host_moved_bytes);
    json_object_set_new(host, "planned_by_tag_bytes",
                        tags(rank->planned_host_by_tag_bytes, ZR_TAG_OTHER, rank->planned_host_bytes));
    if (view->measured) {
        json_object_set_new(
            host, "peak_by_tag_bytes",
            tags(rank->peak_host_tier_by_tag_bytes, ZR_TAG_OTHER, rank->peak_host_tier_bytes));
        json_object_set_new(host, "peak_reserved_bytes", count_of(rank->peak_host_tier_reserved_bytes));
        json_object_set_new(host, "peak_bytes", count_of(rank->peak_host_tier_bytes));
        json_object_set_new(host, "moved_bytes_per_step", count_of(rank->host_moved_bytes));
        json_object_set_new(host, "wait_share", number(rank->host_wait_share));
    }
    json_t *all = json_pack("{s:o}", "host", host);
    if (rank->planned_nvme_bytes > 0)
        json_object_set_new(all, "nvme", nvme_tier(view, rank));
    return all;
}

static json_t *spilled(const struct zr_spill_report *spill)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o}", "planned_bytes", (json_int_t)spill->planned_bytes,
                     "spilled_bytes", (json_int_t)spill->spilled_bytes, "most_bytes",
                     (json_int_t)spill->most_bytes, "times", (json_int_t)spill->times, "write_seconds",
                     number(spill->write_seconds), "read_seconds", number(spill->read_seconds));
}

/* The exchanges of a rank with other groups. */
static json_t *exchanged(const struct ranks_view *view, const struct zr_outer_report *outer)
{
    json_t *object = json_pack("{s:o}", "round_bytes", count_of(outer->round_bytes));
    if (view->measured) {
        json_object_set_new(object, "planned_bytes", count_of(outer->planned_bytes));
        json_object_set_new(object, "sent_bytes", count_of(outer->sent_bytes));
        json_object_set_new(object, "received_bytes", count_of(outer->received_bytes));
    }
    return object;
}

static json_t *rank_object(const struct ranks_view *view, const struct zr_rank_report *rank)
{
    json_t *object =
        json_pack("{s:i, s:I, s:I}", "rank", (int)rank->rank, "whole_parameters",
                  (json_int_t)rank->whole_parameters, "whole_gradients", (json_int_t)rank->whole_gradients);
    json_object_set_new(object, "planned_bytes",
                        tags(rank->planned_by_tag_bytes, ZR_TAG_COUNT, rank->planned_bytes));
    json_object_set_new(object, "planned_most_bytes",
                        tags(rank->tag_limits.by_tag_bytes, ZR_TAG_OTHER, rank->tag_limits.total_bytes));
    json_object_set_new(object, "planned_persistent_bytes", kept(rank->planned_kept_by_tag_bytes));
    json_object_set_new(object, "planned_reserved_bytes", count_of(rank->planned_reserved_bytes));
    json_object_set_new(object, "sent_elements_per_step",
                        view->sent ? count_of(rank->sent_elements_per_step) : json_null());
    json_object_set_new(object, "planned_sent_bytes_per_step", count_of(rank->planned_sent_bytes));
    if (rank->planned_full_bytes > 0) {
        json_object_set_new(object, "planned_mean_sent_bytes",
                            number(zr_report_mean_sent(view->config, rank)));
        if (view->measured)
            json_object_set_new(object, "mean_sent_bytes", number(rank->mean_sent_bytes));
    }
    json_object_set_new(object, "planned_check_bytes", count_of(rank->planned_check_bytes));
    if (rank->planned_host_bytes > 0)
        json_object_set_new(object, "tiers", tiers(view, rank));
    if (view->measured)
        set_measured(object, view, rank);
    if (view->measured && rank->delayed_computing_seconds > 0)
        json_object_set_new(object, "delayed_update",
                            json_pack("{s:o, s:o}", "computing_seconds",
                                      number(rank->delayed_computing_seconds), "waiting_seconds",
                                      number(rank->delayed_waiting_seconds)));
    if (rank->outer.round_bytes > 0)
        json_object_set_new(object, "outer", exchanged(view, &rank->outer));
    if (view->config->save_background)
        json_object_set_new(object, "planned_snapshot_bytes", count_of(rank->planned_snapshot_bytes));
    if (view->config->redundancy > 1) {
        json_t *copies = json_pack("{s:o}", "planned_bytes", count_of(rank->planned_backup_bytes));
        if (view->measured) {
            json_object_set_new(copies, "sent_bytes_per_step", count_of(rank->backup.image_bytes));
            json_object_set_new(copies, "copies", count_of(rank->backup.count));
            json_object_set_new(copies, "waited_seconds_per_step", number(zr_report_copy_wait(rank)));
        }
        json_object_set_new(object, "redundancy", copies);
    }
    if (view->measured && rank->spill.planned_bytes > 0)
        json_object_set_new(object, "spill", spilled(&rank->spill));
    return object;
}

/* The last check of compression. */
static json_t *checked(const struct zr_compression_check *check)
{
    json_t *object =
        json_pack("{s:o, s:o}", "updates", count_of(check->steps), "sent_bytes", count_of(check->sent_bytes));
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++)
        json_object_set_new(object, zr_compressed_kind_name((enum zr_compressed_kind)kind),
                            json_pack("{s:o, s:o}", "error", number(check->error[kind]), "full_since",
                                      count_of(check->full_since[kind])));
    return object;
}

static void add_ranks(struct json_output *out, const struct ranks_view *view)
{
    zr_text_print(&out->text, ",\n\"ranks\": [");
    for (unsigned r = 0; r < view->world; r++) {
        zr_text_print(&out->text, r ? ",\n " : "\n ");
        dump(out, rank_object(view, &view->ranks[r]));
    }
    zr_text_print(&out->text, "\n]");
}

/* ---- Reports of runs and plans ------------------------------------------------------------------------- */

static void add_shape(struct json_output *out, const struct zr_train_config *config, uint64_t parameters,
                      unsigned world)
{
    const struct zr_shape *shape = &config->shape;
    add(out, "version", count_of(1));
    add(out, "world_size", count_of(world));
    add(out, "stage", count_of(config->stage));
    add(out, "parameters", count_of(parameters));
    add(out, "arch", json_string(zr_architecture_name(shape->architecture)));
    add(out, "layers", count_of(shape->layers));
    add(out, "hidden", count_of(shape->hidden));
    add(out, "heads", count_of(shape->heads));
    add(out, "accumulate", count_of(config->micro_batches));
    add(out, "precision", json_string(zr_train_precision_name(config)));
    if (shape->fp8) {
        unsigned all;
        add(out, "fp8_matrices", count_of(zr_shape_fp8_matrices(shape, &all)));
    }
    if (config->logits_bytes)
        add(out, "logits_rows", count_of(zr_train_shape(config, 0).logits_rows));
    if (config->outer.period > 0)
        add(out, "outer",
            json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:s}", "method", "diloco", "groups",
                      (int)config->groups, "steps", (int)config->outer.period, "fragments",
                      (int)config->outer.fragments, "delay", (int)config->outer.delay, "lr",
                      (double)config->outer.rate, "momentum", (double)config->outer.momentum, "mix",
                      (double)config->outer.mix, "packing",
                      config->outer.packing == ZR_PACKING_ONEBIT ? "fp32"
                                                                 : zr_packing_name(config->outer.packing)));
    if (config->policy != ZR_POLICY_ZR)
        add(out, "policy",
            json_pack("{s:s, s:I, s:I}", "name", zr_policy_name((enum zr_policy)config->policy),
                      "reserved_bytes", (json_int_t)config->policy_use.reserved_bytes, "live_bytes",
                      (json_int_t)config->policy_use.live_bytes));
}

static json_t *sizes_of(const struct zr_sizes *sizes)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < sizes->count; i++)
        json_array_append_new(list, json_pack("{s:o, s:o}", "step", count_of(sizes->at[i].step), "replicas",
                                              count_of(sizes->at[i].replicas)));
    return list;
}

zr_result zr_report_json(const struct zr_training_report *run)
{
    const char *path = run->config->json;
    struct json_output out;

    if (!path[0])
        return ZR_OK;
    zr_result result = output_open(&out, path);
    if (result)
        return result;
    add_shape(&out, run->config, run->parameters, run->world);
    add(&out, "steps", count_of(run->steps_count));
    add(&out, "first_step", count_of(run->resumed_step + 1));
    if (zr_train_changes_size(run->config))
        add(&out, "sizes", sizes_of(run->sizes));
    add(&out, "loss", list(run->loss, run->steps_count));
    add(&out, "loss_hex", hex_list(run->loss, run->steps_count));
    add(&out, "tokens_per_second", number(run->tokens_per_second));
    add(&out, "seconds", number(run->seconds));
    add(&out, "step_seconds", list(run->step_seconds, run->steps_count));
    if (run->saves_count > 0)
        add(&out, "saves",
            json_pack("{s:i, s:o}", "count", (int)run->saves_count, "stopped_seconds",
                      number(run->saves_seconds)));
    add(&out, "val_loss", run->validated ? number(run->validation_loss) : json_null());
    if (run->scaling.scale > 0) {
        add(&out, "loss_scale", number((double)run->scaling.scale));
        add(&out, "skipped_steps", count_of(run->scaling.skipped_steps));
    }
    if (run->config->compress_check)
        add(&out, "compression_check", checked(&run->compression));
    if (zr_train_warmup_settles(run->config))
        add(&out, "compress_warmup",
            json_pack("{s:o, s:o}", "updates", count_of(run->compression.warmup_steps), "ratio",
                      number(run->compression.variance_ratio)));
    if (run->config->speculative_bytes)
        add(&out, "speculative_updates", count_of(run->speculative_updates));
    if (run->config->speculative_bytes)
        add(&out, "rolled_back_updates", count_of(run->rolled_back_updates));
    if (run->sample)
        add(&out, "sample", json_stringn(run->sample, run->sample_bytes));
    if (run->timeline)
        add(&out, "timeline", zr_report_timeline_json(run->config, run->timeline));
    if (run->config->stages.ranks > 1)
        add(&out, "pipeline", zr_report_stages_json(run->config, run->ranks, run->timeline, run->host_arena));
    if (run->worker_loss)
        add(&out, "worker_loss", list(run->worker_loss, run->steps_count));
    if (run->served)
        add(&out, "servers", zr_report_servers_json(run->config, run->served, run->host_arena));
    if (run->config->master)
        add(&out, "master", zr_report_master_json(run->ranks, run->world, run));
    add_ranks(&out, &(struct ranks_view){run->config, run->ranks, run->world, true, zr_run_updated(run)});
    return output_close(&out, path);
}

static json_t *found_object(const struct zr_train_config *config, const struct zr_limit_found *found)
{
    bool known = found->beyond_reserved_bytes != 0 && found->beyond_reserved_bytes != SIZE_MAX;
    return json_pack("{s:s, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I}", "size",
                     config->find_max == ZR_LIMIT_BATCH ? "batch" : "layers", "value",
                     (json_int_t)found->value, "memory_limit_bytes", (json_int_t)config->memory_limit_bytes,
                     "reserved_bytes", (json_int_t)found->reserved_bytes, "one_more_reserved_bytes",
                     known ? count_of(found->beyond_reserved_bytes) : json_null(), "host_reserved_bytes",
                     (json_int_t)found->host_bytes, "one_more_host_reserved_bytes",
                     (json_int_t)found->beyond_host_bytes, "nvme_bytes", (json_int_t)found->nvme_bytes,
                     "one_more_nvme_bytes", (json_int_t)found->beyond_nvme_bytes);
}

/* Adds whether the plan fits under --memory-limit, and variations that fit. */
static void add_advice(struct json_output *out, const struct zr_train_config *config,
                       const struct zr_limit_advice *advice)
{
    static const char *const recompute[] = {"none", "selective", "full"};
    json_t *would_fit = json_array();
    add(out, "memory_limit_bytes", count_of(config->memory_limit_bytes));
    add(out, "planned_reserved_bytes", count_of(advice->plan.peak_reserved_bytes));
    if (config->host_limit_bytes) {
        add(out, "host_limit_bytes", count_of(config->host_limit_bytes));
        add(out, "planned_host_reserved_bytes", count_of(advice->plan.host_reserved_bytes));
    }
    add(out, "fits", json_boolean(advice->fits));
    for (size_t i = 0; i < advice->count; i++) {
        const struct zr_limit_choice *choice = &advice->choices[i];
        json_array_append_new(
            would_fit, json_pack("{s:i, s:s, s:s, s:i, s:I, s:I, s:I}", "stage", (int)choice->stage, "reduce",
                                 (enum zr_reduce_when)choice->reduce == ZR_REDUCE_ONCE ? "once" : "each",
                                 "recompute", recompute[choice->recompute], "tile", (int)choice->tiles,
                                 "batch", (json_int_t)choice->batch, "layers", (json_int_t)choice->layers,
                                 "reserved_bytes", (json_int_t)choice->reserved_bytes));
    }
    add(out, "would_fit", would_fit);
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
    add_shape(&out, config, plan->parameters, config->world);
    add(&out, "steps", count_of(0));
    add(&out, "dry_run", json_boolean(config->dry_run || config->finds_max));
    if (plan->found)
        add(&out, "find_max", found_object(config, plan->found));
    if (plan->advice)
        add_advice(&out, config, plan->advice);
    if (plan->timeline)
        add(&out, "timeline", zr_report_timeline_json(config, plan->timeline));
    if (config->stages.ranks > 1 && plan->ranks)
        add(&out, "pipeline", zr_report_stages_json(config, plan->ranks, plan->timeline, plan->host_arena));
    if (config->comm == ZR_TRAIN_COMM_PS)
        add(&out, "servers", zr_report_servers_json(config, NULL, plan->host_arena));
    if (config->master && plan->ranks)
        add(&out, "master", zr_report_master_json(plan->ranks, config->world, NULL));
    add_ranks(&out, &(struct ranks_view){config, plan->ranks, plan->ranks ? config->world : 0, false, true});
    return output_close(&out, config->json);
}

zr_result zr_report_json_evaluation(const struct zr_train_config *config,
                                    const struct zr_evaluation *evaluation)
{
    const double loss = evaluation->nats / (double)evaluation->tokens;
    struct json_output out;
    if (!config->json[0])
        return ZR_OK;
    zr_result result = output_open(&out, config->json);
    if (result)
        return result;
    add(&out, "version", count_of(1));
    add(&out, "world_size", count_of(config->world));
    add(&out, "loss", number(loss));
    add(&out, "perplexity", number(exp(loss)));
    add(&out, "bits_per_byte",
        evaluation->has_bytes ? number(zr_report_bits_per_byte(evaluation)) : json_null());
    add(&out, "tokens", count_of(evaluation->tokens));
    add(&out, "bytes", evaluation->has_bytes ? count_of(evaluation->bytes) : json_null());
    add(&out, "windows", count_of(evaluation->windows));
    add(&out, "sequence", count_of(config->shape.sequence));
    add(&out, "stride", count_of(config->stride));
    add(&out, "seconds", number(evaluation->seconds));
    return output_close(&out, config->json);
}
