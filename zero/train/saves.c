/* saves.c: see saves.h. */
#include "zero/train/saves.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/system/os.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/model_file.h"
#include "zero/engine/engine.h"
#include "zero/train/rank/kept.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/flags.h"
#include "zero/train/settings/args.h"
#include "zero/train/servers/servers.h"

/* The library and GPU of matrix products; "": no choice of library. */
static const char *products_of(const struct zr_saves *saves)
{
    const struct zr_kernels *kernels = saves->rank->kernels;
    return kernels->products ? kernels->products(&saves->rank->state.context) : "";
}

static struct zr_checkpoint_course course_of(const struct zr_saves *saves, uint64_t step)
{
    const struct zr_train_config *config = saves->rank->config;
    const struct zr_data *data = &saves->rank->data;
    struct zr_checkpoint_course course = {.steps = config->steps,
                                          .warmup = config->warmup,
                                          .rate = (double)config->rate,
                                          .min_rate = (double)config->min_rate,
                                          .decay_share = (double)config->decay_share,
                                          .dropout = (double)config->shape.residual_dropout,
                                          .attention_dropout = (double)config->shape.attention_dropout,
                                          .data_order = data->order,
                                          .data_rows = zr_data_rows_after(data, step),
                                          .data_sequence = config->shape.sequence,
                                          .data_tokens = data->tokens_count,
                                          .data_checksum = data->checksum};
    snprintf(course.schedule, sizeof course.schedule, "%s", zr_schedule_of(config->rate_kind)->name);
    snprintf(course.products, sizeof course.products, "%s", products_of(saves));
    return course;
}

struct zr_checkpoint zr_saves_checkpoint(const struct zr_saves *saves, const char *folder, uint64_t step)
{
    const struct zr_train_config *config = saves->rank->config;
    const bool served = saves->rank->served != NULL; /* a worker saves and loads the model by itself */
    return (struct zr_checkpoint){.folder = folder,
                                  .engine = saves->rank->state.engine,
                                  .comm = served ? saves->rank->mesh.group : saves->rank->comm,
                                  .group_comm = saves->rank->mesh.group,
                                  .group = served ? 0 : saves->rank->place.group,
                                  .groups = served ? 1 : config->groups,
                                  .shape = saves->rank->state.transformer.shape,
                                  .seed = config->seed,
                                  .stage = config->stage,
                                  .micro_batches = config->micro_batches,
                                  .step_tokens = zr_train_step_tokens(config),
                                  .course = course_of(saves, step),
                                  .keep = config->keep};
}

/* Shows when the next save is due after a save of `step`. */
static void note_next(struct zr_saves *saves, uint64_t step)
{
    const struct zr_train_config *config = saves->rank->config;
    struct zr_progress *progress = saves->progress;
    uint64_t every = config->save_every, next = every ? (step / every + 1) * every : config->steps;
    if (!config->save[0])
        return;
    saves->due_ns = zr_os_now_ns() + config->save_seconds * UINT64_C(1000000000);
    progress->save_step = next < config->steps ? next : config->steps;
    progress->save_ns = config->save_seconds ? saves->due_ns : 0;
}

void zr_saves_start(struct zr_saves *saves)
{
    note_next(saves, saves->resumed_step);
}

bool zr_saves_due(const struct zr_saves *saves)
{
    const struct zr_train_config *config = saves->rank->config;
    const struct zr_background_save *background = &saves->background;
    return (zr_background_save_has_ended(background) && background->result != ZR_OK) ||
           (config->save[0] && config->save_seconds && zr_os_now_ns() >= saves->due_ns);
}

/* A step is saved. */
static void note_saved(struct zr_saves *saves, uint64_t step)
{
    if (!saves->rank->served) /* a successor resumes what the run has resumed */
        zr_local_set_restart_point(saves->rank->local, step);
    if (zr_rank_logs(saves->rank)) {
        zr_progress_break(saves->progress);
        zr_say("saved step %" PRIu64 " in %s", step, saves->rank->config->save);
    }
}

zr_result zr_saves_finish(struct zr_saves *saves)
{
    const struct zr_rank *rank = saves->rank;
    const uint64_t start_ns = zr_os_now_ns();
    if (!saves->background.under_way)
        return ZR_OK;
    zr_local_busy(rank->local, rank->rank, true);
    zr_result result = zr_background_save_end(&saves->background);
    zr_local_busy(rank->local, rank->rank, false);
    saves->stopped_ns += zr_os_now_ns() - start_ns;
    if (result == ZR_OK)
        note_saved(saves, saves->background.step);
    return result;
}

void zr_saves_look(struct zr_saves *saves)
{
    if (zr_background_save_has_ended(&saves->background) && saves->background.result == ZR_OK)
        zr_saves_finish(saves);
}

void zr_saves_close(struct zr_saves *saves)
{
    if (!saves->background.under_way)
        return;
    if (zr_background_save_end(&saves->background) == ZR_OK)
        note_saved(saves, saves->background.step);
    else if (zr_rank_logs(saves->rank))
        zr_say("step %" PRIu64 " is not saved: %s", saves->background.step, zr_last_error());
}

/* Copies the state, and starts the thread that saves it. */
static zr_result save_copy(struct zr_saves *saves, struct zr_checkpoint *checkpoint, uint64_t step)
{
    struct zr_rank *rank = saves->rank;
    zr_result result = zr_engine_snapshot(rank->state.engine, rank->mesh.saves, &checkpoint->engine);
    checkpoint->comm = rank->mesh.saves;
    checkpoint->group_comm = NULL; /* no groups */
    if (result == ZR_OK)
        result = zr_background_save_start(&saves->background, checkpoint, step, rank->host_arena);
    return zr_comm_all_status(rank->comm, result);
}

zr_result zr_saves_save(struct zr_saves *saves, uint64_t step)
{
    const struct zr_train_config *config = saves->rank->config;
    struct zr_checkpoint checkpoint = zr_saves_checkpoint(saves, config->save, step);
    if (!config->save[0] || saves->saved_step == step)
        return ZR_OK;
    zr_result result = zr_saves_finish(saves);
    if (result != ZR_OK)
        return result;
    if (saves->by_clock && !zr_flag_given(config, "keep"))
        checkpoint.replaced = saves->clock_step;
    const uint64_t start_ns = zr_os_now_ns();
    zr_local_busy(saves->rank->local, saves->rank->rank, true);
    result = config->save_background ? save_copy(saves, &checkpoint, step)
             : saves->rank->served   ? zr_served_save(saves->rank, &checkpoint, step)
                                     : zr_checkpoint_save(&checkpoint, step);
    zr_local_busy(saves->rank->local, saves->rank->rank, false);
    saves->stopped_ns += zr_os_now_ns() - start_ns;
    saves->count++;
    if (result != ZR_OK)
        return result;
    saves->saved_step = step;
    saves->clock_step = saves->by_clock ? step : saves->clock_step;
    note_next(saves, step);
    if (!config->save_background)
        note_saved(saves, step);
    return ZR_OK;
}

zr_result zr_saves_export(struct zr_saves *saves)
{
    const struct zr_train_config *config = saves->rank->config;
    zr_result result = ZR_OK;

    if (!config->export[0])
        return ZR_OK;
    zr_local_busy(saves->rank->local, saves->rank->rank, true);
    if (saves->rank->place.group == 0) /* all groups have the same parameters */
        result = zr_model_export(&(struct zr_model_file){.path = config->export,
                                                         .engine = saves->rank->state.engine,
                                                         .comm = saves->rank->mesh.group,
                                                         .source = config->model,
                                                         .part_bytes = config->export_part_bytes,
                                                         .shape = saves->rank->state.transformer.shape});
    if (config->groups > 1)
        result = zr_comm_all_status(saves->rank->comm, result);
    zr_local_busy(saves->rank->local, saves->rank->rank, false);
    if (result == ZR_OK && zr_rank_logs(saves->rank)) {
        zr_progress_break(saves->progress);
        zr_say("exported to %s", config->export);
    }
    return result;
}

/* Prints a different batch. A batch size other than the checkpoint's is allowed: it changes the run. */
static void say_other_batches(const struct zr_saves *saves, const struct zr_checkpoint_origin *origin)
{
    const struct zr_train_config *config = saves->rank->config;
    uint64_t ours = zr_train_step_tokens(config);
    if (origin->step_tokens == 0)
        return; /* the checkpoint records none */
    if (origin->micro_batches != config->micro_batches &&
        (config->global_batch == 0 || origin->step_tokens != ours))
        zr_say("the checkpoint was made with --accumulate %" PRIu64 ", this run has %u%s",
               origin->micro_batches, config->micro_batches,
               origin->step_tokens != ours ? ""
               : saves->rank->data.order != ZR_DATA_ORDER_BATCHES
                   ? ": a step has the same sequences, and the same loss up to rounding"
                   : ": in the data order of the older zr-train that saved it, a step has other sequences");
    if (origin->step_tokens != ours)
        zr_say("steps of the checkpoint had %" PRIu64 " tokens each, steps of this run have %" PRIu64
               ": losses and the order of the data differ from those of an unchanged run",
               origin->step_tokens, ours);
}

/* Whether --resume and --save name the same folder. Ranks of another launcher may spell it differently;
 * all of them save a step, or none does. */
static zr_result saves_to_resumed_folder(const struct zr_saves *saves, bool *out)
{
    const struct zr_train_config *config = saves->rank->config;
    bool mine = zr_local_restart_point(saves->rank->local) > 0 || strcmp(config->resume, config->save) == 0,
         all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(saves->rank->comm, &mine, sizeof mine, all);
    *out = mine;
    for (unsigned p = 0; p < zr_comm_world(saves->rank->comm) && result == ZR_OK; p++)
        *out = *out && all[p];
    return result;
}

/* Writes an option that differs: " --lr 0.002 (it had 0.001)". */
static void put_other(struct zr_text *text, const char *option, double ours, double theirs)
{
    if (ours != theirs)
        zr_text_print(text, "%s --%s %.6g (it had %.6g)", text->used_bytes ? "," : "", option, ours, theirs);
}

/* Prints changed settings of the learning rate that matter from here on. */
static void say_other_rate(const struct zr_saves *saves, const struct zr_checkpoint_course *course)
{
    const struct zr_train_config *config = saves->rank->config;
    struct zr_train_config theirs = *config;
    uint64_t next = saves->resumed_step + 1;
    struct zr_text text;
    char message[512];

    zr_text_start(&text, NULL, message, sizeof message - 1);
    for (unsigned kind = 0; kind < ZR_RATES_COUNT; kind++)
        if (strcmp(course->schedule, zr_schedule_of((enum zr_rate_kind)kind)->name) == 0)
            theirs.rate_kind = (enum zr_rate_kind)kind;
    theirs.steps = course->steps;
    theirs.warmup = course->warmup;
    theirs.rate = (float)course->rate;
    theirs.min_rate = (float)course->min_rate;
    theirs.decay_share = (float)course->decay_share;
    bool ends = zr_schedule_of(config->rate_kind)->ends || zr_schedule_of(theirs.rate_kind)->ends;
    if (config->rate_kind != theirs.rate_kind)
        zr_text_print(&text, " --schedule-lr %s (it had %s)", zr_schedule_of(config->rate_kind)->name,
                      zr_schedule_of(theirs.rate_kind)->name);
    put_other(&text, "lr", (double)config->rate, course->rate);
    if (config->warmup > saves->resumed_step || theirs.warmup > saves->resumed_step ||
        config->rate_kind != ZR_RATE_CONSTANT || theirs.rate_kind != ZR_RATE_CONSTANT)
        put_other(&text, "warmup", (double)config->warmup, (double)course->warmup);
    if (config->rate_kind == ZR_RATE_WSD && theirs.rate_kind == ZR_RATE_WSD)
        put_other(&text, "decay-share", (double)config->decay_share, course->decay_share);
    if (ends) {
        put_other(&text, "min-lr", (double)config->min_rate, course->min_rate);
        put_other(&text, "steps", (double)config->steps, (double)course->steps);
    }
    message[text.used_bytes] = '\0';
    if (text.used_bytes)
        zr_say("the learning rate continues with other settings than the checkpoint's:%s; step %" PRIu64
               " has %.3g instead of %.3g",
               message, next, (double)zr_schedule_rate(config, next),
               (double)zr_schedule_rate(&theirs, next));
}

static void say_other_dropout(const struct zr_saves *saves, const struct zr_checkpoint_course *course)
{
    const struct zr_shape *shape = &saves->rank->config->shape;
    const struct {
        const char *option;
        double ours, theirs;
    } rates[] = {{"dropout", (double)shape->residual_dropout, course->dropout},
                 {"attention-dropout", (double)shape->attention_dropout, course->attention_dropout}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i].ours != rates[i].theirs)
            zr_say("the run continues with --%s %.6g; the checkpoint had %.6g", rates[i].option,
                   rates[i].ours, rates[i].theirs);
}

static void say_other_data(const struct zr_saves *saves, const struct zr_checkpoint_course *course)
{
    const struct zr_data *data = &saves->rank->data;
    if (data->order == ZR_DATA_ORDER_BATCHES)
        zr_say("%s was saved by an older zr-train, whose data order continues: with another --accumulate, "
               "steps of the same number of tokens have other sequences",
               saves->source);
    if (course->data_tokens == 0 ||
        (course->data_tokens == data->tokens_count && course->data_checksum == data->checksum))
        return;
    zr_say("--data '%s'%s is not the data of the checkpoint (which had %" PRIu64 " tokens, this has %" PRIu64
           "%s): steps have other sequences, and validation text may have been trained on",
           data->files.files[0].path, data->files.files_count > 1 ? " with others" : "", course->data_tokens,
           data->tokens_count, course->data_tokens == data->tokens_count ? ", with other values" : "");
}

/* Prints another library or GPU. The library chooses an algorithm by GPU and version, and another algorithm
 * may add in another order. */
static void say_other_products(const struct zr_saves *saves, const struct zr_checkpoint_course *course)
{
    const char *ours = products_of(saves);
    if (!course->products[0] || strcmp(course->products, ours) == 0)
        return;
    zr_say("matrix products of the checkpoint used %s, this run uses %s: the last bits may differ from "
           "the run that saved%s",
           course->products, ours[0] ? ours : "the processor",
           saves->rank->config->deterministic
               ? "; --deterministic makes resumed runs equal to each other, not to the run that saved"
               : "");
}

/* Continues in the order of the data that the checkpoint used, or starts the order of --data-order. Of an
 * epoch that the checkpoint left in the middle the rest is read, each window once, whatever the ranks and
 * batches. */
static zr_result set_data_order(struct zr_saves *saves, const struct zr_checkpoint_origin *origin)
{
    const struct zr_checkpoint_course *course = &origin->course;
    struct zr_data *data = &saves->rank->data;
    uint64_t sequence = data->options.sequence, rows = course->data_rows;
    if (course->data_order > ZR_DATA_ORDER_LATEST || (saves->resumed_step && course->data_order == 0))
        return zr_fail(ZR_ERR_FORMAT,
                       "--resume '%s': its data order is %" PRIu64
                       ", but this zr-train supports 1 to %d; resume it with the zr-train that saved it",
                       saves->source, course->data_order, ZR_DATA_ORDER_LATEST);
    if (course->data_order == ZR_DATA_ORDER_BATCHES && saves->rank->config->global_batch > 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "--resume '%s' was saved by an older zr-train, whose order of the data depends on the number of "
            "ranks; leave --global-batch, --resize and --elastic out",
            saves->source);
    bool was_epochs = course->data_order == ZR_DATA_ORDER_EPOCHS,
         changes = zr_flag_given(saves->rank->config, "data-order") &&
                   was_epochs != (data->order == ZR_DATA_ORDER_EPOCHS);
    if (course->data_order && !changes)
        zr_data_set_order(data, (enum zr_data_order)course->data_order);
    if (was_epochs && course->data_sequence && course->data_sequence != sequence)
        rows = (uint64_t)((unsigned __int128)rows * course->data_sequence / sequence);
    zr_data_resume(data, saves->resumed_step, changes ? 0 : rows);
    return ZR_OK;
}

/* With other rows per step than the checkpoint's, the epochs of --epochs end after another step than the one
 * that was computed from the data. */
static zr_result check_epochs(const struct zr_saves *saves)
{
    const struct zr_train_config *config = saves->rank->config;
    uint64_t steps = config->passes ? zr_data_steps_of(&saves->rank->data, config->passes) : 0;
    return steps == 0 || steps == config->steps
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID,
                         "--epochs %" PRIu64 " counts steps of %" PRIu64
                         " tokens, and steps of the checkpoint had another number; give --steps %" PRIu64
                         ", after which the epochs end",
                         config->passes, zr_train_step_tokens(config), steps);
}

/* Prints the place in the epochs. */
static void say_epochs(const struct zr_saves *saves)
{
    const struct zr_data *data = &saves->rank->data;
    uint64_t rows = zr_data_rows_after(data, saves->resumed_step);
    if (data->order == ZR_DATA_ORDER_EPOCHS)
        zr_say("an epoch is %" PRIu64 " windows of %zu tokens%s; the next step begins at window %" PRIu64
               " of epoch %" PRIu64,
               data->windows, data->options.sequence,
               data->sources[0].slots ? ", those of the largest source" : "", rows % data->windows + 1,
               rows / data->windows + 1);
}

/* The checkpoint to resume from: after a restart the last one of this run. */
static void find_source(struct zr_saves *saves)
{
    const struct zr_train_config *config = saves->rank->config;
    uint64_t saved = zr_local_restart_point(saves->rank->local);
    if (saved > 0)
        snprintf(saves->source, sizeof saves->source, "%s/step-%08" PRIu64, config->save, saved);
    else
        snprintf(saves->source, sizeof saves->source, "%s", config->resume);
}

/* The course of a rank that has kept it, for ranks whose kept memory is lost. */
static zr_result share_course(struct zr_saves *saves, struct zr_kept_course *course)
{
    struct zr_kept_course all[ZR_MAX_WORLD];
    const unsigned world = zr_comm_world(saves->rank->comm);
    if (saves->rank->config->redundancy < 2)
        return ZR_OK;
    zr_result result = zr_comm_host_all_gather(saves->rank->comm, course, sizeof *course, all);
    for (unsigned r = world; r-- > 0 && result == ZR_OK;) {
        saves->shares |= all[r].data_order == 0;
        saves->from = all[r].data_order ? r : saves->from;
    }
    if (result == ZR_OK && course->data_order == 0)
        zr_say("rank %u: its kept memory is lost; it continues from the copy of its state",
               saves->rank->rank);
    if (result == ZR_OK)
        *course = all[saves->from];
    return result;
}

void zr_saves_take_course(struct zr_saves *saves, const struct zr_kept_course *course)
{
    struct zr_data *data = &saves->rank->data;
    saves->resumed_step = course->resumed_step;
    zr_data_set_order(data, (enum zr_data_order)course->data_order);
    zr_data_resume(data, course->data_steps, course->data_rows);
}

zr_result zr_saves_keep_course(struct zr_saves *saves, bool reads)
{
    const struct zr_data *data = &saves->rank->data;
    struct zr_kept_course *course;
    zr_result result = zr_rank_kept_take(saves->rank, "course", sizeof *course, (void **)&course);
    if (result != ZR_OK || !course)
        return result;
    if (!reads) {
        *course =
            (struct zr_kept_course){saves->resumed_step, data->order, data->steps_before, data->rows_before};
        return ZR_OK;
    }
    result = share_course(saves, course);
    if (result != ZR_OK)
        return result;
    zr_saves_take_course(saves, course);
    return ZR_OK;
}

zr_result zr_saves_resume(struct zr_saves *saves)
{
    find_source(saves);
    struct zr_checkpoint checkpoint = zr_saves_checkpoint(saves, saves->source, 0);
    struct zr_checkpoint_origin origin = {0};
    bool same_place = false;
    zr_result result;
    if (!saves->source[0]) {
        if (zr_rank_logs(saves->rank))
            say_epochs(saves);
        return zr_saves_keep_course(saves, false);
    }
    checkpoint.origin = &origin;
    checkpoint.assumed_shape = saves->rank->config->assume_shape;
    checkpoint.any_seed = saves->rank->config->command != ZR_COMMAND_TRAIN;
    result = zr_checkpoint_resume(&checkpoint, &saves->resumed_step);
    if (saves->rank->config->command != ZR_COMMAND_TRAIN) /* it does not continue the run */
        return result;
    if (result == ZR_OK)
        result = saves_to_resumed_folder(saves, &same_place);
    if (result == ZR_OK)
        result = set_data_order(saves, &origin);
    if (result == ZR_OK)
        result = check_epochs(saves);
    if (result != ZR_OK)
        return result;
    if (same_place)
        saves->saved_step = saves->resumed_step;
    result = zr_saves_keep_course(saves, false);
    if (result != ZR_OK)
        return result;
    if (!zr_rank_logs(saves->rank))
        return ZR_OK;
    say_epochs(saves);
    if (saves->resumed_step == 0) {
        zr_say("starts from the parameters in %s", saves->source);
        if (origin.dropout > 0)
            zr_say(
                "its config.json has a dropout of %g, which this run lacks: --dropout sets that of embeddings, and of "
                "attention's output and the MLP's, --attention-dropout that of attention's probabilities",
                origin.dropout);
        return ZR_OK;
    }
    zr_say("resumed after step %" PRIu64 " from %s", saves->resumed_step, saves->source);
    if (origin.passed_over)
        zr_say("%s also has step %" PRIu64
               ", which is incomplete: its manifest.json is missing; it was skipped",
               saves->source, origin.passed_over);
    if (origin.groups > 0 && origin.groups != checkpoint.groups)
        zr_say(
            "the checkpoint has %u groups, this run has %u: group g continues with the state of group g modulo %u",
            origin.groups, checkpoint.groups, origin.groups);
    say_other_batches(saves, &origin);
    say_other_data(saves, &origin.course);
    say_other_dropout(saves, &origin.course);
    say_other_products(saves, &origin.course);
    if (origin.course.steps)
        say_other_rate(saves, &origin.course);
    return ZR_OK;
}

zr_result zr_saves_continue(struct zr_saves *saves)
{
    uint64_t saved = zr_local_restart_point(saves->rank->local);
    saves->saved_step = saved > 0 ? saved : UINT64_MAX;
    zr_result result = zr_saves_keep_course(saves, true);
    if (result == ZR_OK && zr_rank_logs(saves->rank))
        zr_say("continues after step %" PRIu64 " from kept memory",
               zr_engine_steps_done(saves->rank->state.engine));
    return result;
}

zr_result zr_saves_look_for_later(const struct zr_saves *saves)
{
    const char *folder = saves->rank->config->save;
    uint64_t step;
    bool found;
    zr_result result = folder[0] ? zr_checkpoint_newest(folder, &found, &step) : ZR_OK;
    if (result == ZR_OK && folder[0] && found && step > saves->resumed_step)
        zr_say("%s already has a checkpoint of step %" PRIu64
               ", and --resume takes the newest; give another folder to keep the runs apart",
               folder, step);
    return result;
}
