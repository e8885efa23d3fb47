/* loop.c: the training loop: batches, steps, evaluation, signals, and the report at the end. */
#include "zero/train/rank/rank.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "alloc/base/system/os.h"
#include "zero/comm/posted.h"
#include "zero/engine/meter.h"
#include "zero/engine/served.h"
#include "zero/train/rank/kept.h"
#include "zero/train/report/log.h"
#include "zero/train/history.h"
#include "zero/train/loop.h"
#include "zero/train/messages.h"
#include "zero/train/moved.h"
#include "zero/train/noise.h"
#include "zero/train/saves.h"
#include "zero/train/settings/args.h"
#include "zero/train/servers/servers.h"
#include "zero/train/report/terminal.h"

/* When a rank has ended this many steps after a change of size, all ranks have ended one. */
enum { KEPT_STEPS = 2 };

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* The request of signals on which all ranks agreed. */
struct agreed_request {
    enum zr_request_kind kind;
    int end_signal; /* the signal that requested the end */
};

/* The first of --log, --tensorboard and --status that could not be written. */
struct lost_log {
    const char *option, *path;
    uint64_t step; /* that it lacks */
    zr_result result;
};

struct loop {
    struct zr_rank rank;
    struct zr_history history;
    struct zr_saves saves;
    struct zr_log log;
    struct zr_events events;
    struct zr_status status;
    struct lost_log lost;
    struct zr_progress progress;
    struct zr_noise noise;
    struct zr_prove *prove; /* NULL: not requested */
    bool resuming;          /* while resuming, a failure means a damaged checkpoint */
    bool refusal_printed;
    bool norm_mattered; /* the last step was clipped or skipped, so the next one waits for its norm */
    int ended;          /* the signal that requested the end; 0: none */
    bool restarts;      /* another rank was lost, and is replaced */
    bool resizes;       /* events change the number of replicas after the step, by agreement */
    struct zr_messages_left left;   /* by the predecessor of a worker */
    struct zr_moved moved;          /* its step, and the sizes so far; read after a change of size */
    bool yields;                    /* the run yields its time slice after the step, by agreement */
    struct agreed_request noted;    /* with a board: see note_request() */
    uint64_t meets_at;              /* likewise; 0: no request */
    struct agreed_request deferred; /* until the pipeline has drained */
    struct zr_messages messages;
    double steps_seconds;             /* of all steps, with evaluations and meetings */
    uint64_t agreed_step, shown_step; /* the last steps whose messages have arrived / that are in the logs */
    struct zr_step_line *lines;       /* [messages.lag + 1]: of the last steps, whose messages may lag */
    bool alike; /* the current failure is the same, with the same message, on all ranks */
};

static bool speaks(const struct loop *loop)
{
    return zr_rank_logs(&loop->rank);
}

/* Saves a step. A failure occurs on all ranks with the same message. */
static zr_result save(struct loop *loop, uint64_t step)
{
    zr_assert(zr_trainer_is_drained(loop->rank.state.trainer));
    zr_result result = zr_saves_save(&loop->saves, step);
    loop->alike = result != ZR_OK;
    return result;
}

/* Waits for a save in the background, likewise. */
static zr_result finish_save(struct loop *loop)
{
    zr_result result = zr_saves_finish(&loop->saves);
    loop->alike = result != ZR_OK;
    return result;
}

/* With --ema: exchanges the weights and their average, before and after a use of the average; with --outer
 * the weights and those of the last synchronisation. */
static zr_result exchange_average(struct loop *loop)
{
    return zr_train_keeps(loop->rank.config) != ZR_KEEPS_NOTHING
               ? zr_engine_exchange_average(loop->rank.state.engine)
               : ZR_OK;
}

/* Evaluates the weights that the engine has. */
static zr_result validate_weights(struct loop *loop)
{
    struct zr_rank *rank = &loop->rank;
    zr_trainer *trainer = rank->state.trainer;
    struct zr_message mean;
    const struct zr_batch batch = zr_rank_batch(rank);
    double sum = 0, windows = 0;
    zr_result result;

    for (uint64_t round = 0; round < zr_data_validation_rounds(&rank->data); round++) {
        struct zr_data_place place = {.step = round,
                                      .data_rank = zr_train_data_rank(rank->config, rank->place)};
        size_t count;
        double loss;
        result = zr_batch_validation(&batch, &place, &count);
        if (result != ZR_OK)
            return result;
        /* A rank without a window evaluates one row of the current batch: all ranks take part, because
         * whether an evaluation is a collective differs between pipeline stages. */
        result = zr_trainer_evaluate(
            trainer, (count ? count : 1) * zr_shape_own_sequence(&rank->config->shape), &loss);
        if (result != ZR_OK)
            return result;
        sum += count ? loss * (double)count : 0;
        windows += (double)count;
    }
    result =
        zr_messages_exchange(&loop->messages, &(struct zr_message){.loss = sum, .windows = windows}, &mean);
    if (result != ZR_OK)
        return result;
    loop->history.validated = true;
    /* The windows of a rank that has left are not evaluated. */
    loop->history.validation_loss = mean.loss * (zr_train_data_ranks(rank->config) - mean.left) /
                                    (mean.left > 0 ? mean.windows : (double)rank->data.validation_windows);
    return ZR_OK;
}

static zr_result validate(struct loop *loop)
{
    zr_result result = exchange_average(loop);
    if (result == ZR_OK)
        result = validate_weights(loop);
    return result == ZR_OK ? exchange_average(loop) : result;
}

/* Prints the library of large matrix products, if there is a choice. */
static void say_products(const struct loop *loop)
{
    const struct zr_kernels *kernels = loop->rank.kernels;
    if (kernels->products)
        zr_say("matrix products use %s", kernels->products(&loop->rank.state.context));
    if (!kernels->host_visible && loop->rank.state.context.precision != ZR_PRECISION_FP32 &&
        loop->rank.config->shape.attention_dropout > 0)
        zr_say("attention with dropout of its probabilities runs without tensor cores; --attention-dropout 0 "
               "leaves that dropout out");
}

/* Prints refused products. A refused product is not a failure, but takes longer and may change the last bits
 * of results. */
static void say_refused(struct loop *loop, const struct zr_message *agreed)
{
    if (agreed->refusals.count == 0 || loop->refusal_printed)
        return;
    loop->refusal_printed = true;
    if (!speaks(loop))
        return;
    zr_progress_break(&loop->progress);
    zr_say("rank %u: %s refuses products, first %zu x %zu x %zu (possibly out of memory); they are "
           "computed without it: slower, and with other last bits",
           agreed->rank, loop->rank.kernels->host_visible ? "oneDNN" : "cuBLASLt", agreed->refusals.m,
           agreed->refusals.n, agreed->refusals.k);
}

/* State of the current step. */
struct step {
    struct loop *loop;
    uint64_t number;
    struct zr_step_line *line;
    enum zr_request_kind request; /* requests known when the ranks exchanged messages */
    int end_signal;
};

static zr_result load_batch(void *state, unsigned micro_batch)
{
    const struct step *step = state;
    struct zr_rank *rank = &step->loop->rank;
    const struct zr_batch batch = zr_rank_batch(rank);
    unsigned per_step = rank->config->micro_batches;
    struct zr_data_place place = {.step = step->number + micro_batch / per_step,
                                  .data_rank = zr_train_data_rank(rank->config, rank->place),
                                  .micro_batch = micro_batch % per_step};
    if (!zr_trainer_weighs(rank->state.trainer, place.micro_batch))
        place.micro_batch = 0; /* without weight, and of a row that the files have */
    zr_rank_draw(rank, &rank->state, &place);
    return zr_batch_train(&batch, &place);
}

static zr_result rate_of_step(void *state, float *rate)
{
    const struct step *step = state;
    *rate = zr_schedule_rate(step->loop->rank.config, step->number);
    return ZR_OK;
}

/* The request that this rank reports. The clock of one rank decides when a save is due, so that all ranks
 * save the same step. */
static enum zr_request_kind own_request(struct loop *loop)
{
    enum zr_request_kind request = zr_local_own_request(loop->rank.local);
    loop->saves.by_clock = request == ZR_REQUEST_NONE && loop->rank.rank == 0 && zr_saves_due(&loop->saves);
    return loop->saves.by_clock ? ZR_REQUEST_SAVE : request;
}

static struct zr_step_line *line_of(const struct loop *loop, uint64_t step)
{
    return &loop->lines[step % (loop->messages.lag + 1)];
}

/* Notes the mean loss of the next step whose messages are complete. Of a board's steps there is a line of the
 * current one only. */
static void note_loss(struct loop *loop, const struct step *step, double loss)
{
    loop->agreed_step++;
    if (!loop->messages.free || (step && loop->agreed_step == step->number))
        line_of(loop, loop->agreed_step)->loss = loss;
    loop->history.loss[loop->agreed_step - loop->saves.resumed_step - 1] = loss;
}

/* Whether a worker with a board waits for pushes of the others, so that it cannot meet them after any step.
 */
static bool waits_for_workers(const struct loop *loop)
{
    const enum zr_ps_timing_kind kind = loop->rank.config->timing.kind;
    return kind != ZR_PS_ASYNC && kind != ZR_PS_GEO;
}

/* Workers that wait for pushes meet after the same step: S + 2 steps after the first message with a request.
 * In that step a worker has pulled parameters with the pushes of S + 1 steps before, at which all messages of
 * the step before these had been written. */
static void note_request(struct loop *loop, const struct zr_message *agreed)
{
    if (!waits_for_workers(loop) || agreed->request <= loop->noted.kind)
        return;
    if (loop->meets_at == 0)
        loop->meets_at = loop->agreed_step + loop->rank.config->timing.parameter + 2;
    loop->noted = (struct agreed_request){agreed->request, agreed->end_signal};
}

/* Exchanges messages with the other ranks while the gradients are being reduced. With an asynchronous
 * pipeline the messages of earlier steps arrive. */
static zr_result before_update(void *state, double loss, float *rate)
{
    struct step *step = state;
    struct loop *loop = step->loop;
    struct zr_message agreed, mine = {.loss = loss,
                                      .request = own_request(loop),
                                      .end_signal = zr_local_end_signal(loop->rank.local),
                                      .clock = zr_served_worker_clock(&loop->rank),
                                      .resizes = zr_local_wants_resize(loop->rank.local),
                                      .yields = zr_slices_wanted(&loop->rank),
                                      .refusals = loop->rank.state.context.refusals};
    bool ends = zr_trainer_is_drained(loop->rank.state.trainer);
    zr_served_sleep(&loop->rank);
    zr_result result = zr_messages_send(&loop->messages, &mine);
    if (loop->messages.free)
        step->line->loss = loss;
    if (result == ZR_OK && loop->messages.free &&
        !waits_for_workers(loop)) { /* the worker meets the others after the step */
        step->request = mine.request;
        step->end_signal = mine.end_signal;
    }
    while (result == ZR_OK && zr_messages_is_due(&loop->messages, ends)) {
        result = zr_messages_take(&loop->messages, &agreed);
        if (result != ZR_OK)
            break;
        note_loss(loop, step, agreed.loss);
        if (loop->messages.free)
            note_request(loop, &agreed);
        else if (agreed.request > step->request) {
            step->request = agreed.request;
            step->end_signal = agreed.end_signal;
        }
        loop->yields = agreed.yields && !loop->messages.free;
        loop->resizes = agreed.resizes;
        say_refused(loop, &agreed);
    }
    if (result != ZR_OK)
        return result;
    if (loop->meets_at > 0 && step->number >= loop->meets_at) {
        step->request = loop->noted.kind;
        step->end_signal = loop->noted.end_signal;
        loop->noted.kind = ZR_REQUEST_NONE;
        loop->meets_at = 0;
    }
    *rate = zr_schedule_rate(loop->rank.config, step->number);
    step->line->rate = *rate;
    loop->alike =
        loop->messages.lag == 0 &&
        !loop->messages
             .free; /* from here on all ranks detect errors, such as a non-finite gradient, together */
    return ZR_OK;
}

static void measure_noise(struct loop *loop, struct zr_step_line *line)
{
    const struct zr_train_config *config = loop->rank.config;
    struct zr_gradient_squares squares;
    zr_engine_get_gradient_squares(loop->rank.state.engine, &squares);
    zr_noise_add(&loop->noise,
                 &(struct zr_noise_step){
                     .decay = config->noise_decay,
                     .small = {squares.small, (double)(config->shape.batch * config->shape.sequence)},
                     .large = {squares.large, (double)zr_train_step_tokens(config)}});
    line->measures_noise = true;
    line->gradient_square = zr_noise_square(&loop->noise);
    line->gradient_variance = zr_noise_variance(&loop->noise);
    line->noise_scale = zr_noise_scale(&loop->noise);
}

/* Computes a step: batches, forward, backward, update. */
static zr_result train_step(struct step *step)
{
    struct loop *loop = step->loop;
    struct zr_step_line *line = step->line;
    struct zr_step_report report;
    loop->alike = false;
    zr_served_set_rate(&loop->rank, zr_schedule_rate(loop->rank.config, step->number));
    bool speculates = loop->rank.config->speculative_bytes && !loop->norm_mattered;
    zr_result result = ZR_OK;
    if (speculates)
        result =
            zr_engine_speculate(loop->rank.state.engine, zr_schedule_rate(loop->rank.config, step->number));
    if (result == ZR_OK)
        result = zr_trainer_step(
            loop->rank.state.trainer,
            &(struct zr_step_calls){
                .state = step, .load = load_batch, .update = before_update, .rate = rate_of_step},
            &report);
    loop->alike = loop->alike && result == ZR_ERR_CORRUPT;
    if (result != ZR_OK)
        return result;
    line->gradient_norm = report.gradient_norm;
    line->skipped = report.skipped;
    loop->norm_mattered = report.skipped || report.clip_scale < 1;
    loop->history.speculative_updates += speculates && loop->rank.state.engine->speculation.units_count > 0;
    loop->history.rolled_back_updates += report.rolled_back;
    if (loop->rank.config->precision == ZR_PRECISION_FP16)
        line->loss_scale = (double)report.loss_scale;
    if (loop->rank.config->noise_decay > 0)
        measure_noise(loop, line);
    zr_engine_get_compression_check(loop->rank.state.engine, &line->compression);
    line->checks_compression = !report.skipped && line->compression.steps > 0 &&
                               line->compression.steps == zr_engine_steps_done(loop->rank.state.engine);
    return ZR_OK;
}

/* Prints a skipped step, which is not a failure. */
static void say_skipped(struct loop *loop, const struct zr_step_line *line)
{
    struct zr_loss_scale scaling;
    zr_engine_scaling(loop->rank.state.engine, &scaling);
    zr_progress_break(&loop->progress);
    zr_say("step %" PRIu64 " is skipped: with a loss scale of %g a gradient is not finite in fp16 (%" PRIu64
           " skipped so far); the scale is now %g",
           line->step, line->loss_scale, scaling.skipped_steps, (double)scaling.scale);
}

/* Prints that a kind is no longer packed. */
static void say_full_precision(struct loop *loop, const struct zr_step_line *line)
{
    const struct zr_compression_check *check = &line->compression;
    for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
        if (!line->checks_compression || check->full_since[kind] != check->steps ||
            !(check->error[kind] > loop->rank.config->compress_tolerance))
            continue;
        zr_progress_break(&loop->progress);
        zr_say("step %" PRIu64
               ": packing %s has a relative error of %.3g, above --compress-tolerance %g; from "
               "the next step on they are sent in full precision",
               line->step, zr_compressed_kind_name((enum zr_compressed_kind)kind), check->error[kind],
               loop->rank.config->compress_tolerance);
    }
}

/* Prints that the warm-up of gradients has ended. */
static void say_settled(struct loop *loop, const struct zr_step_line *line)
{
    const struct zr_compression_check *check = &line->compression;
    if (line->skipped || check->warmup_steps == 0 ||
        check->warmup_steps != zr_engine_steps_done(loop->rank.state.engine))
        return;
    zr_progress_break(&loop->progress);
    zr_say("step %" PRIu64
           ": the variance has settled, %.3f times that of 1 / (1 - beta2) steps ago; gradients "
           "are sent compressed from the next step on",
           line->step, check->variance_ratio);
}

/* Whether other work follows the step before the next one begins. */
static bool pauses_after(const struct loop *loop, uint64_t step, enum zr_request_kind request)
{
    const struct zr_train_config *config = loop->rank.config;
    return step == config->steps || request != ZR_REQUEST_NONE ||
           (config->eval_every && step % config->eval_every == 0) ||
           (config->save_every && step % config->save_every == 0);
}

/* Number of steps that follow a step directly. An asynchronous pipeline begins their micro-batches early. */
static unsigned steps_before_pause(const struct loop *loop, uint64_t step)
{
    const struct zr_train_config *config = loop->rank.config;
    uint64_t steps = config->steps - step;
    const uint64_t every[] = {config->eval_every, config->save_every};
    for (unsigned i = 0; i < sizeof every / sizeof *every; i++) {
        uint64_t left = every[i] ? (every[i] - step % every[i]) % every[i] : steps;
        steps = left < steps ? left : steps;
    }
    return loop->deferred.kind != ZR_REQUEST_NONE || loop->yields ? 0
           : steps < UINT_MAX                                     ? (unsigned)steps
                                                                  : UINT_MAX;
}

/* Requests wait until an asynchronous pipeline has drained, and until groups have ended an exchange. */
static void defer(struct loop *loop, struct agreed_request *request)
{
    if (request->kind > loop->deferred.kind)
        loop->deferred = *request;
    *request = loop->deferred;
    if (zr_trainer_is_drained(loop->rank.state.trainer))
        loop->deferred.kind = ZR_REQUEST_NONE;
    else
        request->kind = ZR_REQUEST_NONE;
}

/* Runs and measures a step. Its seconds end at the next step's start or, if other work follows, when all
 * its messages have arrived. */
static zr_result measured_step(struct loop *loop, uint64_t step, struct zr_step_line *line,
                               struct agreed_request *request)
{
    struct step under_way = {.loop = loop, .number = step, .line = line};
    struct zr_history_step measured;
    zr_result result = zr_history_step_begin(&loop->history, &measured);
    if (result != ZR_OK)
        return result;
    line->step = step;
    zr_trainer_expect_steps(loop->rank.state.trainer, steps_before_pause(loop, step));
    result = train_step(&under_way);
    *request = (struct agreed_request){under_way.request, under_way.end_signal};
    defer(loop, request);
    bool drained = loop->messages.lag > 0 && zr_trainer_is_drained(loop->rank.state.trainer);
    if (result == ZR_OK && (measured.first || drained || pauses_after(loop, step, request->kind)))
        result = zr_engine_synchronize(loop->rank.state.engine);
    if (result == ZR_OK)
        zr_history_step_end(&loop->history, &measured, line);
    return result;
}

static const char *signal_name(const struct loop *loop)
{
    return loop->ended == SIGINT ? "SIGINT" : loop->ended == SIGHUP ? "SIGHUP" : "SIGTERM";
}

/* Saves, ends the run, or both, as requested. Saves print their own message. */
static zr_result follow_request(struct loop *loop, uint64_t step, struct agreed_request request)
{
    bool saves = loop->rank.config->save[0], ends = request.kind == ZR_REQUEST_SAVE_AND_END;
    if (request.kind == ZR_REQUEST_NONE)
        return ZR_OK;
    if (speaks(loop) && !saves && !ends) {
        zr_progress_break(&loop->progress);
        zr_say("SIGUSR1 requests a save, but --save DIR is not given");
    }
    zr_result result = save(loop, step);
    if (result == ZR_OK && ends)
        result = finish_save(loop);
    if (result != ZR_OK || !ends)
        return result;
    loop->ended = request.end_signal;
    zr_local_request_followed(loop->rank.local, request.end_signal);
    if (speaks(loop)) {
        zr_progress_break(&loop->progress);
        zr_say("ended by %s after step %" PRIu64, signal_name(loop), step);
    }
    return ZR_OK;
}

/* Prints the last line of a run that a signal ended without a save. */
static void say_nothing_saved(const struct loop *loop)
{
    const struct zr_train_config *config = loop->rank.config;
    if (loop->ended && speaks(loop) && (!config->save[0] || config->export[0]))
        zr_say("%s: nothing was %s", signal_name(loop),
               config->save[0] ? "exported" : "saved; with --save DIR a run that a signal ends is saved");
}

/* Writes a step to --log, --tensorboard and --status. If one cannot be written (a full disk), the run
 * continues without it, reports that again at its end, and has another exit code. */
static void write_log(struct loop *loop, const struct zr_step_line *line)
{
    const struct zr_train_config *config = loop->rank.config;
    const struct lost_log logs[] = {{"log", config->log, line->step, ZR_OK},
                                    {"tensorboard", config->tensorboard, line->step, ZR_OK},
                                    {"status", config->status, line->step, ZR_OK}};
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        zr_result result = i == 0   ? zr_log_step(&loop->log, line)
                           : i == 1 ? zr_events_step(&loop->events, line)
                                    : zr_status_step(&loop->status, line);
        if (result == ZR_OK)
            continue;
        if (loop->lost.result == ZR_OK)
            loop->lost = logs[i];
        loop->lost.result = result;
        zr_progress_break(&loop->progress);
        zr_say("after step %" PRIu64 ": %s; the run continues without its %s", line->step, zr_last_error(),
               logs[i].option);
        if (i == 0)
            zr_log_close(&loop->log);
        else if (i == 1)
            zr_events_close(&loop->events);
        else
            loop->status.path = NULL;
    }
}

/* Compares a step with the dense run. A failed comparison fails on all ranks. */
static zr_result prove(struct loop *loop, const struct zr_step_line *line)
{
    zr_result result =
        zr_prove_step(loop->prove, &(struct zr_prove_step){.number = line->step,
                                                           .loss = line->loss,
                                                           .gradient_norm = line->gradient_norm,
                                                           .loss_scale = line->loss_scale,
                                                           .skipped = line->skipped});
    loop->alike = result == ZR_ERR_CORRUPT;
    return result;
}

/* Shows a step whose message has arrived. */
static void show(struct loop *loop, const struct zr_step_line *line)
{
    if (!speaks(loop))
        return;
    if (line->skipped)
        say_skipped(loop, line);
    say_full_precision(loop, line);
    say_settled(loop, line);
    zr_progress_step(&loop->progress, line);
    write_log(loop, line);
}

/* Shows all steps up to `step` whose messages have arrived. */
static void show_agreed(struct loop *loop, uint64_t step)
{
    while (loop->shown_step < loop->agreed_step) {
        const uint64_t shown = ++loop->shown_step, index = shown - loop->saves.resumed_step - 1;
        const struct zr_step_line past = {.step = shown,
                                          .loss = loop->history.loss[index],
                                          .rate = (double)zr_schedule_rate(loop->rank.config, shown),
                                          .step_seconds = loop->history.seconds[index],
                                          .tokens_per_second =
                                              (double)zr_train_step_tokens(loop->rank.config) /
                                              loop->history.seconds[index]};
        show(loop, loop->messages.free && shown != step ? &past : line_of(loop, shown));
    }
}

static bool evaluates_after(const struct zr_train_config *config, uint64_t step)
{
    return config->eval_every && (step % config->eval_every == 0 || step == config->steps);
}

/* After a restart: evaluates and saves the last step, whose rank may have died before it did so. */
static zr_result finish_step(struct loop *loop, uint64_t step)
{
    const struct zr_train_config *config = loop->rank.config;
    struct step last = {.loop = loop, .number = step};
    zr_result result = ZR_OK;
    if (zr_local_restarts(loop->rank.local) == 0 || step == loop->moved.step)
        return ZR_OK;
    if (evaluates_after(config, step)) {
        result = load_batch(&last, 0); /* of a rank without a window */
        if (result == ZR_OK)
            result = validate(loop);
    }
    return result == ZR_OK && config->save_every && step % config->save_every == 0 ? save(loop, step)
                                                                                   : result;
}

/* ---- Workers that do not wait for one another ---------------------------------------------------------- */

struct meeting {
    uint64_t step;
    struct agreed_request request;
    bool scheduled;
};

/* All workers of a run with a board meet: in a scheduled meeting after the same step, or after a signal of an
 * asynchronous run, each after its current step. They follow the strongest request, in the state of the
 * slowest worker's step, to which *step is set if they end. A scheduled meeting lasts until all have come to
 * it. */
static zr_result meet(struct loop *loop, uint64_t *step, bool scheduled, struct agreed_request *request)
{
    const unsigned world = loop->rank.config->world;
    struct meeting mine = {*step, *request, scheduled}, all[ZR_MAX_WORLD];
    for (bool complete = false; !complete;) {
        struct zr_message agreed;
        zr_result result = zr_comm_host_all_gather(loop->rank.comm, &mine, sizeof mine, all);
        while (result == ZR_OK && zr_messages_is_due(&loop->messages, true)) {
            result = zr_messages_take(&loop->messages, &agreed);
            if (result == ZR_OK)
                note_loss(loop, NULL, agreed.loss);
        }
        uint64_t slowest = *step;
        complete = true;
        *request = mine.request;
        for (unsigned r = 0; r < world && result == ZR_OK; r++) {
            slowest = all[r].step < slowest ? all[r].step : slowest;
            complete = complete && all[r].scheduled && all[r].step == *step;
            if (all[r].request.kind > request->kind)
                *request = all[r].request;
        }
        if (result == ZR_OK && request->kind == ZR_REQUEST_SAVE) {
            result = follow_request(loop, slowest, *request);
            mine.request.kind = request->kind = ZR_REQUEST_NONE;
        }
        if (result != ZR_OK)
            return result;
        if (request->kind == ZR_REQUEST_SAVE_AND_END) {
            *step = slowest;
            return ZR_OK;
        }
        complete = complete || !scheduled;
    }
    return ZR_OK;
}

/* ---- Changes of size ----------------------------------------------------------------------------------- */

/* Whether the number of replicas changes after a step, by --resize or by events. */
static bool changes_size(const struct loop *loop, uint64_t step)
{
    const struct zr_train_config *config = loop->rank.config;
    const unsigned scheduled = zr_train_scheduled(config, step);
    return step < config->steps && !loop->ended &&
           (scheduled > 0 ? scheduled != zr_train_data_ranks(config) : loop->resizes);
}

/* Hands the state over if the size changes after a step; run() then ends, and begins again in the next size.
 */
static zr_result change_size(struct loop *loop, uint64_t step)
{
    bool changes = changes_size(loop, step);
    zr_result result = changes ? zr_moved_agree(&loop->rank, &changes) : ZR_OK;
    if (result != ZR_OK || !changes)
        return result;
    loop->moved.step = step;
    result = zr_moved_write(&loop->saves, &loop->history, &loop->moved);
    loop->alike = result != ZR_OK;
    if (result != ZR_OK)
        return result;
    loop->rank.moved = true;
    zr_local_move(loop->rank.local, zr_train_scheduled(loop->rank.config, step));
    return ZR_OK;
}

/* After a restart events may want a change before the ranks have exchanged a step's messages. */
static zr_result agree_on_size(struct loop *loop)
{
    struct zr_message agreed = {.resizes = false},
                      mine = {.resizes = zr_local_wants_resize(loop->rank.local)};
    if (!loop->rank.config->elastic[0] || zr_local_restarts(loop->rank.local) == 0)
        return ZR_OK;
    zr_result result = zr_messages_exchange(&loop->messages, &mine, &agreed);
    loop->resizes = agreed.resizes;
    return result;
}

/* Reads what the ranks of the size before have left, unless kept memory has the state, and notes the size. */
static zr_result take_over(struct loop *loop, bool moves)
{
    struct zr_rank *rank = &loop->rank;
    zr_result result = moves ? zr_moved_read(&loop->saves, &loop->history, &loop->moved) : ZR_OK;
    if (result == ZR_OK && moves)
        result = zr_saves_keep_course(&loop->saves, false);
    if (loop->moved.sizes.count == 0)
        zr_sizes_add(&loop->moved.sizes, loop->saves.resumed_step, zr_train_data_ranks(rank->config));
    if (moves)
        zr_sizes_add(&loop->moved.sizes, loop->moved.step, zr_train_data_ranks(rank->config));
    if (result == ZR_OK && zr_rank_logs(rank))
        result = zr_moved_note(rank, &loop->moved);
    return result == ZR_OK ? agree_on_size(loop) : result;
}

/* Of a worker that was killed: takes the messages of its predecessor's steps, and ends the last of them, as
 * the others have, or will. What both do alike is taken from the messages that the predecessor has left. */
static zr_result succeed(struct loop *loop, uint64_t step)
{
    struct zr_message agreed;
    zr_result result = ZR_OK;
    loop->agreed_step = loop->saves.resumed_step;
    while (result == ZR_OK && zr_messages_is_due(&loop->messages, true)) {
        result = zr_messages_take(&loop->messages, &agreed);
        if (result != ZR_OK)
            break;
        note_loss(loop, NULL, agreed.loss);
        if (loop->messages.free)
            note_request(loop, &agreed);
    }
    struct agreed_request request = {ZR_REQUEST_NONE, 0};
    if (waits_for_workers(loop) && loop->meets_at > 0 && loop->meets_at <= step) {
        if (loop->meets_at == step)
            request = loop->noted;
        loop->noted.kind = ZR_REQUEST_NONE;
        loop->meets_at = 0;
    } else if (!waits_for_workers(loop)) {
        request = (struct agreed_request){loop->left.last.request, loop->left.last.end_signal};
    }
    if (result != ZR_OK || !loop->left.ends)
        return result;
    uint64_t met = step;
    if (loop->messages.free && pauses_after(loop, step, request.kind))
        result =
            meet(loop, &met, waits_for_workers(loop) || pauses_after(loop, step, ZR_REQUEST_NONE), &request);
    if (result == ZR_OK && request.kind != ZR_REQUEST_SAVE_AND_END)
        result = finish_step(loop, step);
    return result == ZR_OK && loop->messages.free ? follow_request(loop, met, request) : result;
}

static zr_result run_steps(struct loop *loop)
{
    const struct zr_train_config *config = loop->rank.config;
    zr_result result;

    const uint64_t began_ns = zr_os_now_ns();
    zr_history_start(&loop->history);
    zr_saves_start(&loop->saves);
    loop->agreed_step = loop->shown_step = loop->saves.resumed_step + loop->history.count;
    if (loop->left.some)
        result = succeed(loop, loop->shown_step);
    else
        result = finish_step(loop, loop->shown_step);
    if (result == ZR_OK)
        result = change_size(loop, loop->shown_step);
    if (result != ZR_OK || loop->rank.moved)
        return result;
    zr_history_skip(&loop->history);
    for (uint64_t step = loop->shown_step + 1; step <= config->steps && !loop->ended; step++) {
        struct zr_step_line *line = line_of(loop, step);
        struct agreed_request request = {ZR_REQUEST_NONE, 0};
        char note[32];
        snprintf(note, sizeof note, "step %" PRIu64, step);
        zr_local_set_status(loop->rank.local, loop->rank.rank, note);
        zr_trace_mark(loop->rank.arena, note);
        *line = (struct zr_step_line){0};
        result = measured_step(loop, step, line, &request);
        if (result == ZR_OK)
            result = zr_served_after_step(&loop->rank, step);
        uint64_t met = step;
        if (result == ZR_OK && loop->messages.free && pauses_after(loop, step, request.kind))
            result = meet(loop, &met, waits_for_workers(loop) || pauses_after(loop, step, ZR_REQUEST_NONE),
                          &request);
        bool ends =
            loop->messages.free && request.kind == ZR_REQUEST_SAVE_AND_END; /* after different steps */
        if (result == ZR_OK && !ends && evaluates_after(config, step)) {
            result = validate(loop);
            line->validated = true;
            line->validation_loss = loop->history.validation_loss;
        }
        if (result == ZR_OK && loop->prove)
            result = prove(loop, line);
        if (result != ZR_OK)
            return result;
        show_agreed(loop, step);
        zr_saves_look(&loop->saves);
        if (config->save_every && step % config->save_every == 0 && !ends)
            result = save(loop, step);
        if (result == ZR_OK)
            result = follow_request(loop, met, request);
        if (result != ZR_OK)
            return result;
        if (loop->yields && step < config->steps && !loop->ended &&
            zr_trainer_is_drained(loop->rank.state.trainer))
            result = zr_slices_next(&loop->rank);
        if (result == ZR_OK && (speaks(loop) || zr_train_is_apart(config)) &&
            step >= loop->moved.step + KEPT_STEPS)
            result = zr_moved_end(&loop->rank);
        if (result == ZR_OK)
            result = change_size(loop, step);
        if (result != ZR_OK || loop->rank.moved)
            return result;
        if (loop->yields || pauses_after(loop, step, request.kind))
            zr_history_skip(&loop->history);
    }
    loop->steps_seconds = (double)(zr_os_now_ns() - began_ns) * 1e-9;
    if (loop->ended)
        return ZR_OK;
    /* --steps may be below the checkpoint's step. */
    result = save(loop, loop->saves.resumed_step + loop->history.count);
    if (result == ZR_OK)
        result = finish_save(loop);
    if (result != ZR_OK)
        return result;
    result = zr_served_settle(&loop->rank);
    if (result == ZR_OK)
        result = zr_engine_end_local_steps(loop->rank.state.engine); /* before export and sample */
    if (result == ZR_OK && config->export[0])
        result = exchange_average(loop);
    if (result == ZR_OK)
        result = zr_saves_export(&loop->saves);
    if (result == ZR_OK && config->export[0])
        result = exchange_average(loop);
    loop->alike = result != ZR_OK;
    return result;
}

/* Generates the text for the end: all ranks generate it, and rank 0 prints it. After a run, a tokenizer that
 * cannot be read is no reason to lose the run's end: the text is shown as numbers. */
static zr_result make_sample(struct loop *loop, const struct zr_sample_options *options, struct zr_text *text)
{
    zr_result result = exchange_average(loop);
    if (result == ZR_OK) {
        result = zr_sample_make(options, text);
        zr_result back = exchange_average(loop);
        result = result == ZR_OK ? back : result;
    }
    /* The prompt does not fit the model, or a logit is not a number, on all ranks. */
    if (result != ZR_ERR_FORMAT && result != ZR_ERR_CORRUPT)
        return result;
    if (speaks(loop)) {
        zr_progress_break(&loop->progress);
        zr_say("%s; there is no sample", zr_last_error());
    }
    text->used_bytes = 0;
    return ZR_OK;
}

/* Opens the sample's options, and its buffer of *size bytes. */
static zr_result open_sample(struct loop *loop, struct zr_sample_options *options, char **buffer,
                             size_t *size)
{
    zr_result result = zr_sample_open(options, &loop->rank);
    if (result != ZR_OK && speaks(loop)) {
        zr_progress_break(&loop->progress);
        zr_say("%s; the sample has token numbers", zr_last_error());
    }
    *size = zr_sample_room(options);
    *buffer = zr_heap_alloc(*size);
    return *buffer ? ZR_OK : ZR_ERR_HOST_MEMORY;
}

/* After an end by a signal that cut a text or an evaluation. */
static void follow_end(struct loop *loop)
{
    int end_signal = zr_local_end_signal(loop->rank.local);
    if (end_signal)
        zr_local_request_followed(loop->rank.local, end_signal);
}

static zr_result report_end(struct loop *loop)
{
    const struct zr_train_config *config = loop->rank.config;
    struct zr_rank_report mine = loop->rank.reports[loop->rank.rank];
    struct zr_sample_options sample = {.tokenizer = NULL};
    struct zr_text text = {.used_bytes = 0};
    char *buffer = NULL;
    size_t size;
    zr_result result = ZR_OK;

    if (config->sample && !loop->ended) {
        result = open_sample(loop, &sample, &buffer, &size);
        if (result == ZR_OK) {
            zr_text_start(&text, NULL, buffer, size);
            result = make_sample(loop, &sample, &text);
        }
        zr_sample_close(&sample);
        follow_end(loop);
    }
    if (result == ZR_OK)
        result = zr_served_touch(loop->rank.state.engine);
    if (result == ZR_OK) {
        zr_history_measure(&loop->history, &mine);
        result = zr_rank_exchange_reports(&loop->rank, &mine);
    }
    struct zr_served_report served;
    double *own = NULL;
    if (result == ZR_OK && speaks(loop))
        result = zr_served_report(&loop->rank, &served);
    if (result == ZR_OK && speaks(loop) && loop->messages.free) {
        own = zr_heap_alloc((loop->history.count + 1) * sizeof *own);
        result = own ? zr_messages_own_losses(&loop->messages, loop->history.count, own) : ZR_ERR_HOST_MEMORY;
    }
    if (result == ZR_OK && speaks(loop)) {
        const bool stepped = loop->history.all.seconds > 0;
        struct zr_training_report run = {
            .config = config,
            .ranks = loop->rank.reports,
            .host_arena = loop->rank.host_arena,
            .world = config->world,
            .parameters = zr_engine_elements(loop->rank.state.engine),
            .resumed_step = loop->saves.resumed_step,
            .steps_count = loop->history.count,
            .speculative_updates = loop->history.speculative_updates,
            .rolled_back_updates = loop->history.rolled_back_updates,
            .idle = loop->history.count > 0 && !stepped,
            .all_skipped = stepped && !loop->history.measured,
            .sizes = &loop->moved.sizes,
            .loss = loop->history.loss,
            .step_seconds = loop->history.seconds,
            .worker_loss = own,
            .tokens_per_second =
                loop->messages.free
                    ? (double)(loop->history.count * zr_train_step_tokens(config)) / loop->steps_seconds
                    : zr_history_tokens_per_second(&loop->history),
            .seconds = (double)(zr_os_now_ns() - loop->history.started_ns) * 1e-9,
            .saves_count = loop->saves.count,
            .saves_seconds = (double)loop->saves.stopped_ns * 1e-9,
            .validated = loop->history.validated,
            .validation_loss = loop->history.validation_loss,
            .timeline = config->flops_per_second > 0 ? &loop->rank.timeline : NULL,
            .served = loop->rank.served ? &served : NULL,
            .sample = text.used_bytes ? buffer : NULL,
            .sample_bytes = text.used_bytes};
        if (config->precision == ZR_PRECISION_FP16)
            zr_engine_scaling(loop->rank.state.engine, &run.scaling);
        zr_engine_get_compression_check(loop->rank.state.engine, &run.compression);
        zr_progress_break(&loop->progress);
        result = zr_report_end(&run);
        if (result == ZR_OK)
            result = zr_report_json(&run);
    }
    zr_heap_free(own);
    zr_heap_free(buffer);
    return result;
}

/* A command that does not train, of the weights that validation uses. */
static zr_result run_command(struct loop *loop)
{
    zr_result result = exchange_average(loop);
    if (result == ZR_OK)
        result =
            (loop->rank.config->command == ZR_COMMAND_EVAL ? zr_evaluate_run : zr_prompts_run)(&loop->rank);
    loop->alike = result == ZR_ERR_FORMAT || result == ZR_ERR_CORRUPT;
    follow_end(loop);
    return result;
}

static zr_result run(struct loop *loop, struct zr_local_world *local, unsigned rank)
{
    const struct zr_train_config *config = loop->rank.config;
    zr_result result = zr_rank_open(&loop->rank, config, local, rank);
    if (result == ZR_OK)
        result = zr_messages_open(&loop->messages, config, loop->rank.comm,
                                  !loop->rank.state.engine->host_invisible);
    if (result == ZR_OK && !(loop->lines = zr_heap_alloc((loop->messages.lag + 1) * sizeof *loop->lines)))
        result = ZR_ERR_HOST_MEMORY;
    loop->alike = result == ZR_ERR_CORRUPT; /* the replicas differ */
    if (result != ZR_OK)
        return result;
    const bool continues = zr_engine_recovered(loop->rank.state.engine);
    bool moves = false;
    if (!continues)
        result = zr_moved_find(&loop->rank, &moves);
    if (result == ZR_OK)
        result = zr_moved_read_course(&loop->moved, &loop->rank);
    if (result == ZR_OK && moves)
        zr_saves_take_course(&loop->saves, &loop->moved.course);
    else if (result == ZR_OK)
        result = (continues ? zr_saves_continue : zr_saves_resume)(&loop->saves);
    if (!continues && !moves)
        loop->moved = (struct zr_moved){.step = 0};
    loop->alike = loop->resuming = result != ZR_OK;
    if (config->command != ZR_COMMAND_TRAIN)
        return result == ZR_OK ? run_command(loop) : result;
    if (result == ZR_OK)
        result = zr_served_begin(&loop->rank, zr_engine_steps_done(loop->rank.state.engine));
    uint64_t resumed = loop->saves.resumed_step, done = continues
                                                            ? zr_engine_steps_done(loop->rank.state.engine)
                                                        : moves ? loop->moved.step
                                                                : resumed;
    if (result == ZR_OK && zr_local_restarts(local) > 0)
        result = zr_messages_succeed(&loop->messages, zr_served_worker_clock(&loop->rank), &loop->left);
    if (loop->left.some)
        done = resumed + loop->left.steps;
    if (result == ZR_OK)
        result =
            zr_history_open(&loop->history, &loop->rank,
                            config->steps > resumed ? config->steps - resumed : 0, (size_t)(done - resumed));
    if (result == ZR_OK && loop->saves.shares)
        result = zr_history_share(&loop->history, loop->saves.from);
    if (result == ZR_OK)
        result = take_over(loop, moves);
    if (result != ZR_OK)
        return result;
    if (speaks(loop)) {
        if (zr_local_restarts(local) == 0)
            result = zr_saves_look_for_later(&loop->saves);
        if (result == ZR_OK)
            result = zr_log_open(&loop->log, config->log, done);
        if (result == ZR_OK)
            result = zr_events_open(&loop->events, config->tensorboard, done);
        if (result == ZR_OK)
            result = zr_status_start(&loop->status, config->status, done, config->steps);
        if (result != ZR_OK)
            return result;
        if (zr_local_restarts(local) == 0)
            say_products(loop);
        const char *words = zr_rank_kept_words(config);
        if (zr_local_restarts(local) == 0 && words && words[0])
            zr_say("--%s: no memory is kept with %s, so a restart continues from the last save",
                   config->max_restarts > 0 ? "max-restarts" : "elastic", words);
        if (zr_local_restarts(local) > 0 && loop->rank.keep && !continues && !moves)
            zr_say(
                "kept memory%s has no step to which all ranks can return; the run continues after step %" PRIu64,
                config->redundancy > 1 ? " with its copies" : "", done);
        zr_card_say_memory(&loop->rank);
        if (moves && !changes_size(loop, done))
            zr_say("step %" PRIu64 " begins with %u data replica%s, %.2f s after the steps stopped", done + 1,
                   zr_train_data_ranks(config), zr_train_data_ranks(config) == 1 ? "" : "s",
                   (double)zr_local_restart_ns(local) * 1e-9);
        else if (!moves && zr_local_restart_ns(local) > 0 && done < config->steps &&
                 !changes_size(loop, done))
            zr_say("step %" PRIu64 " begins %.2f s after the loss of a rank", done + 1,
                   (double)zr_local_restart_ns(local) * 1e-9);
        zr_progress_start(&loop->progress, done, config->steps);
        loop->progress.exchange_steps = config->outer.period / config->outer.fragments;
    }
    result = zr_prove_open(&loop->prove, &loop->rank);
    if (result == ZR_OK)
        result = run_steps(loop);
    if (loop->rank.moved)
        return result;
    if (result == ZR_OK)
        result = report_end(loop);
    if (result == ZR_OK && zr_train_repeats(config)) /* its successor has nothing left to do */
        result = zr_comm_posted_leave(&config->served->posts, rank);
    if (result == ZR_OK)
        result = zr_served_leave(&loop->rank);
    if (result == ZR_OK && loop->prove && speaks(loop))
        zr_prove_print(loop->prove);
    if (result == ZR_OK)
        say_nothing_saved(loop);
    return result;
}

/* Prints the reason for the end of the run, once per run. */
static void say_failure(const struct loop *loop, zr_result result)
{
    uint64_t step = loop->saves.resumed_step + loop->history.count;
    char who[32] = "", when[48] = "";

    /* The launcher has printed a lost peer or an interrupted run, unless others watch the other ranks. */
    if (loop->rank.config->world > 1 && !zr_train_spans_hosts(loop->rank.config) &&
        (result == ZR_ERR_PEER || result == ZR_ERR_INTERRUPTED) && !zr_local_is_out_of_step(loop->rank.local))
        return;
    /* Stages that update by themselves find different numbers that are not finite, of one cause. */
    bool apart = loop->messages.lag > 0 && result == ZR_ERR_CORRUPT;
    if (!zr_local_first_message(loop->rank.local, apart ? "not finite" : zr_last_error()))
        return;
    if (loop->rank.config->world > 1 && loop->rank.comm && !loop->alike)
        snprintf(who, sizeof who, "rank %u: ", loop->rank.rank);
    if (step > 0 && loop->rank.config->command == ZR_COMMAND_TRAIN)
        snprintf(when, sizeof when, "after step %" PRIu64 ": ", step);
    if (result == ZR_ERR_TAG_LIMIT)
        zr_say("%s%sbeyond the byte plan: %s (--over-plan continue); what was saved is whole", who, when,
               zr_last_error());
    else
        zr_say("%s%s%s", who, when, zr_last_error());
    zr_local_message_logged(loop->rank.local);
}

/* A failed check during the run has exit code 1; a damaged checkpoint has 3. */
static enum zr_exit exit_of(const struct loop *loop, zr_result result)
{
    return result == ZR_ERR_CORRUPT && !loop->resuming ? ZR_EXIT_FAILED : zr_exit_of(result);
}

/* Whether a signal ended a run that waited to be admitted. This run has nothing to save. */
static bool ended_before_admission(const struct loop *loop, zr_result result)
{
    int signal_number = zr_local_end_signal(loop->rank.local);
    if (result != ZR_ERR_INTERRUPTED || loop->rank.comm || signal_number == 0)
        return false;
    zr_local_request_followed(loop->rank.local, signal_number);
    return true;
}

/* Closes the logs, and writes the final state of --status. Returns the first failure. */
static zr_result close_logs(struct loop *loop, zr_result result)
{
    char state[32] = "failed";
    if (loop->restarts || loop->rank.moved)
        snprintf(state, sizeof state, "%s", loop->restarts ? "restarting" : "resizing");
    else if (result == ZR_OK)
        snprintf(state, sizeof state, "%s%s", loop->ended ? "ended by " : "done",
                 loop->ended ? signal_name(loop) : "");
    zr_result closed[] = {zr_log_close(&loop->log), zr_events_close(&loop->events),
                          zr_status_end(&loop->status, state)};
    return closed[0] != ZR_OK ? closed[0] : closed[1] != ZR_OK ? closed[1] : closed[2];
}

/* Reports what a run that has ended lacks: the end of a log, or the steps of a log that could not be
 * written. */
static zr_result say_lost_logs(struct loop *loop, zr_result closed)
{
    struct zr_local_world *local = loop->rank.local;
    if (closed != ZR_OK) {
        /* The launcher need not report this rank's exit after this message. */
        zr_local_first_message(local, zr_last_error());
        zr_say("%s", zr_last_error());
        zr_local_message_logged(local);
        return closed;
    }
    if (loop->lost.result != ZR_OK) {
        zr_local_first_message(local, loop->lost.path);
        zr_say("--%s '%s' lacks step %" PRIu64 " and later steps; the run is otherwise complete",
               loop->lost.option, loop->lost.path, loop->lost.step);
        zr_local_message_logged(local);
    }
    return loop->lost.result;
}

/* Runs the rank up to the end of the run, to the loss of another rank that is replaced, or to a change of
 * size: *rejoins. */
static int run_until_lost(struct zr_local_world *local, unsigned rank, struct zr_train_config *config,
                          bool *rejoins)
{
    struct loop loop = {.rank = {.config = config, .local = local, .rank = rank},
                        .history = {.rank = &loop.rank, .started_ns = zr_os_now_ns()},
                        .saves = {.rank = &loop.rank, .progress = &loop.progress, .saved_step = UINT64_MAX},
                        .log = {.file = {.fd = -1}},
                        .events = {.file = {.fd = -1}}};
    if (zr_train_changes_size(config))
        zr_train_set_replicas(config, zr_local_world(local) / zr_train_replica_ranks(config));
    zr_result result = run(&loop, local, rank), closed;

    loop.restarts = result == ZR_ERR_PEER && zr_local_is_restarting(local);
    *rejoins = loop.restarts || loop.rank.moved;
    if (speaks(&loop))
        zr_progress_break(&loop.progress);
    if (result != ZR_OK && !loop.restarts)
        say_failure(&loop, result);
    closed = close_logs(&loop, result);
    if (result == ZR_OK)
        result = say_lost_logs(&loop, closed);
    bool early = ended_before_admission(&loop, result);
    zr_saves_close(&loop.saves);
    zr_local_fail(local, rank, early ? 0 : (int)exit_of(&loop, result));
    zr_history_close(&loop.history);
    zr_prove_close(loop.prove);
    zr_messages_close(&loop.messages);
    if (loop.lines)
        zr_heap_free(loop.lines);
    closed = zr_rank_close(&loop.rank);
    if (closed != ZR_OK) {
        zr_say("rank %u: %s", rank, zr_last_error());
        if (result == ZR_OK)
            result = closed;
    }
    return early ? 0 : (int)exit_of(&loop, result);
}

int zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    bool rejoins;
    int code;
    struct zr_train_config *config = argument;
    const bool succeeds = zr_train_repeats(config) && zr_local_restarts(local) > 0;
    if (succeeds && (zr_local_leaves(local, rank) || zr_comm_posted_has_left(&config->served->posts, rank)))
        return zr_served_lose(config, local, rank);
    while (true) {
        code = run_until_lost(local, rank, argument, &rejoins);
        if (!rejoins)
            return code;
        if (zr_local_rejoin_as(local, &rank) != ZR_OK)
            return code == 0 ? ZR_EXIT_FAILED : code;
        if (rank == ZR_LOCAL_LEAVES)
            return 0;
    }
}
