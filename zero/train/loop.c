/* loop.c: the training loop: batches in, steps, evaluation, saves, signals, and the report at the end. */
#include "zero/train/loop.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"
#include "alloc/base/system/os.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/train/report/log.h"
#include "zero/train/report/progress.h"
#include "zero/train/prove.h"
#include "zero/checkpoint/model_file.h"
#include "zero/train/sample.h"
#include "zero/train/schedule.h"
#include "zero/train/spill.h"
#include "zero/train/report/terminal.h"
#include "zero/train/turns.h"

/* What a run remembers of its steps. */
struct history {
    uint64_t resumed_step;
    size_t count;           /* steps done by this process */
    double *loss, *seconds; /* [steps asked for]; from the heap */
    bool validated;
    double validation_loss;
    uint64_t saved_step;          /* UINT64_MAX: none */
    uint64_t rolled_back_updates; /* of a speculative update */
    bool counted;                 /* what a step sends and receives is known: one was not skipped */
    uint64_t sent_elements_per_step, received_bytes_per_step, driver_calls_last_step, host_waits_last_step;
    uint64_t host_moved_bytes_per_step, nvme_moved_bytes_per_step; /* of one step */
    uint64_t host_waited_ns, nvme_waited_ns;                       /* in all steps */
    struct zr_comm_counters comm_before;                           /* when the first step began */
    uint64_t started_ns;
    bool ended;        /* a signal asked for the end */
    uint64_t since_ns; /* where the seconds of the step under way begin: where those of the last one ended */
};

struct loop {
    struct zr_rank rank;
    struct history history;
    struct zr_log log;
    uint64_t log_ended_step; /* the step whose line could not be written; 0: none */
    zr_result log_result;    /* what that was */
    struct zr_progress progress;
    struct zr_prove *prove; /* NULL: not asked for */
    bool resuming;          /* a checkpoint is being read: what is damaged is a file */
    bool refusal_said;
    bool yields; /* its turn after the step, by agreement */
    bool alike;  /* the failure at hand is that of all ranks, in the same words */
};

static bool speaks(const struct loop *loop)
{
    return loop->rank.rank == 0;
}

/* What a rank tells the others once a step: one message, while the gradients are still being reduced. A
 * message of its own for signals would wait, behind the step, for the parameters that still spread. */
struct word {
    double loss;
    enum zr_request_kind request;
    bool yields;   /* another run waits for the turn of this one */
    unsigned rank; /* whose refusals these are */
    struct zr_kernel_refusals refusals;
};

/* The mean of the losses, added in rank order, the strongest request and the refusals of the first rank that
 * has any: the same bits everywhere. */
static zr_result agree(struct loop *loop, struct word mine, struct word *agreed)
{
    struct word all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(loop->rank.comm, &mine, sizeof mine, all);
    if (result != ZR_OK)
        return result;
    *agreed = (struct word){0};
    struct zr_mesh_shape mesh = zr_train_mesh(loop->rank.config);
    for (unsigned r = 0; r < loop->rank.config->ranks; r++) {
        if (zr_mesh_place_of(mesh, r).tensor == 0) /* those of one group have one loss, or of a pipeline 0 */
            agreed->loss += all[r].loss;
        if (all[r].request > agreed->request)
            agreed->request = all[r].request;
        agreed->yields = agreed->yields || all[r].yields;
        if (agreed->refusals.count == 0) {
            agreed->rank = r;
            agreed->refusals = all[r].refusals;
        }
    }
    agreed->loss /= mesh.data;
    return ZR_OK;
}

static zr_result validate(struct loop *loop)
{
    struct zr_rank *rank = &loop->rank;
    zr_trainer *trainer = rank->state.trainer;
    struct word mean;
    double sum = 0;
    zr_result result;

    for (uint64_t round = 0; round < zr_data_validation_rounds(&rank->data); round++) {
        struct zr_data_place place = {.step = round, .rank = rank->place.data};
        size_t count;
        double loss;
        result = zr_data_validation(&rank->data, &place, zr_trainer_input(trainer, ZR_INPUT_TOKENS),
                                    zr_trainer_input(trainer, ZR_INPUT_TARGETS), &count);
        if (result != ZR_OK)
            return result;
        if (count == 0 && !zr_engine_gathers(rank->state.engine))
            continue; /* else it has to take part, on whatever batch is there */
        result = zr_trainer_evaluate(trainer, (count ? count : 1) * rank->config->shape.sequence, &loss);
        if (result != ZR_OK)
            return result;
        sum += count ? loss * (double)count : 0;
    }
    result = agree(loop, (struct word){.loss = sum}, &mean);
    if (result != ZR_OK)
        return result;
    loop->history.validated = true;
    loop->history.validation_loss =
        mean.loss * zr_train_mesh(rank->config).data / (double)rank->data.validation_windows;
    return ZR_OK;
}

static struct zr_checkpoint checkpoint_of(const struct loop *loop, const char *folder)
{
    const struct zr_train_config *config = loop->rank.config;
    return (struct zr_checkpoint){.folder = folder,
                                  .engine = loop->rank.state.engine,
                                  .comm = loop->rank.comm,
                                  .shape = loop->rank.state.transformer.shape,
                                  .seed = config->seed,
                                  .stage = config->stage,
                                  .micro_batches = config->micro_batches,
                                  .keep = config->keep};
}

static zr_result save(struct loop *loop, uint64_t step)
{
    struct zr_checkpoint checkpoint = checkpoint_of(loop, loop->rank.config->save);
    zr_result result;

    if (!loop->rank.config->save[0] || loop->history.saved_step == step)
        return ZR_OK;
    zr_local_busy(loop->rank.local, loop->rank.rank, true);
    result = zr_checkpoint_save(&checkpoint, step);
    zr_local_busy(loop->rank.local, loop->rank.rank, false);
    loop->alike = result != ZR_OK;
    if (result != ZR_OK)
        return result;
    loop->history.saved_step = step;
    if (speaks(loop)) {
        zr_progress_break(&loop->progress);
        zr_say("saved step %" PRIu64 " in %s", step, loop->rank.config->save);
    }
    return ZR_OK;
}

/* The model as one file, when the last step is done. */
static zr_result export(struct loop *loop)
{
    const struct zr_train_config *config = loop->rank.config;
    zr_result result;

    if (!config->export[0] || loop->history.ended)
        return ZR_OK;
    zr_local_busy(loop->rank.local, loop->rank.rank, true);
    result = zr_model_export(&(struct zr_model_file){.path = config->export,
                                                     .engine = loop->rank.state.engine,
                                                     .comm = loop->rank.comm,
                                                     .shape = loop->rank.state.transformer.shape});
    zr_local_busy(loop->rank.local, loop->rank.rank, false);
    loop->alike = result != ZR_OK;
    if (result == ZR_OK && speaks(loop)) {
        zr_progress_break(&loop->progress);
        zr_say("exported to %s", config->export);
    }
    return result;
}

/* What makes the large matrix products, where there is a choice. */
static void say_products(const struct loop *loop)
{
    const struct zr_kernels *kernels = loop->rank.kernels;
    if (kernels->products)
        zr_say("matrix products are made by %s", kernels->products(&loop->rank.state.context));
}

/* A refusal is no failure; but the ranks' products may differ in their last bits from then on, and a step
 * takes longer. */
static void say_refused(struct loop *loop, const struct word *agreed)
{
    if (agreed->refusals.count == 0 || loop->refusal_said)
        return;
    loop->refusal_said = true;
    if (!speaks(loop))
        return;
    zr_progress_break(&loop->progress);
    zr_say("rank %u: %s refuses products, first one of %zu x %zu x %zu (is its memory at an end?); they are "
           "computed without it: slower, and with other last bits",
           agreed->rank, loop->rank.kernels->host_visible ? "oneDNN" : "cuBLASLt", agreed->refusals.m,
           agreed->refusals.n, agreed->refusals.k);
}

/* A step under way. */
struct step {
    struct loop *loop;
    uint64_t number;
    struct zr_step_line *line;
    enum zr_request_kind request; /* what signals had asked for by the time that the ranks spoke */
};

/* Each micro-batch has a number of its own in the data's order. */
static zr_result load_batch(void *state, unsigned micro_batch)
{
    const struct step *step = state;
    struct zr_rank *rank = &step->loop->rank;
    zr_trainer *trainer = rank->state.trainer;
    struct zr_data_place place = {.step = (step->number - 1) * rank->config->micro_batches + micro_batch + 1,
                                  .rank = rank->place.data};
    return zr_data_train(&rank->data, &place, zr_trainer_input(trainer, ZR_INPUT_TOKENS),
                         zr_trainer_input(trainer, ZR_INPUT_TARGETS));
}

static zr_result rate_of_step(void *state, float *rate)
{
    const struct step *step = state;
    *rate = zr_schedule_rate(step->loop->rank.config, step->number);
    return ZR_OK;
}

/* The ranks speak while the gradients are still being reduced. */
static zr_result before_update(void *state, double loss, float *rate)
{
    struct step *step = state;
    struct loop *loop = step->loop;
    struct word agreed, mine = {.loss = loss,
                                .request = zr_local_own_request(loop->rank.local),
                                .yields = zr_turns_wanted(),
                                .refusals = loop->rank.state.context.refusals};
    zr_result result = agree(loop, mine, &agreed);
    if (result != ZR_OK)
        return result;
    step->line->loss = agreed.loss;
    step->request = agreed.request;
    loop->yields = agreed.yields;
    say_refused(loop, &agreed);
    *rate = zr_schedule_rate(loop->rank.config, step->number);
    step->line->rate = *rate;
    loop->alike = true; /* from here on the ranks find what is wrong, a gradient, together */
    return ZR_OK;
}

/* One step of arithmetic: batches, forward, backward, update. */
static zr_result train_step(struct step *step)
{
    struct loop *loop = step->loop;
    struct zr_step_line *line = step->line;
    struct zr_step_report report;
    loop->alike = false;
    zr_result result =
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
    loop->history.rolled_back_updates += report.rolled_back;
    if (loop->rank.config->precision == ZR_PRECISION_FP16)
        line->loss_scale = (double)report.loss_scale;
    return ZR_OK;
}

/* What was skipped is no failure, and is seen. */
static void say_skipped(struct loop *loop, const struct zr_step_line *line)
{
    struct zr_loss_scale scaling;
    zr_engine_scaling(loop->rank.state.engine, &scaling);
    zr_progress_break(&loop->progress);
    zr_say("step %" PRIu64 " is skipped: with a loss scale of %g a gradient is not finite in fp16 (%" PRIu64
           " skipped so far); the scale is now %g",
           line->step, line->loss_scale, scaling.skipped_steps, (double)scaling.scale);
}

/* Whether something that is no part of the step comes between it and the next. */
static bool pauses_after(const struct loop *loop, uint64_t step, enum zr_request_kind request)
{
    const struct zr_train_config *config = loop->rank.config;
    return step == config->steps || request != ZR_REQUEST_NONE ||
           (config->eval_every && step % config->eval_every == 0) ||
           (config->save_every && step % config->save_every == 0);
}

/* Of both tiers. */
static uint64_t backend_calls(const struct zr_rank *rank)
{
    struct zr_arena_stats stats[2] = {{0}};
    zr_arena_get_stats(rank->arena, &stats[0]);
    if (rank->host_tier)
        zr_arena_get_stats(rank->host_tier, &stats[1]);
    return stats[0].backend_calls_count + stats[1].backend_calls_count;
}

/* A step with its clock and counters around it. Its seconds run from its start to the next one's; where
 * something else comes between them, to the moment when all that the step has sent has arrived. */
static zr_result measured_step(struct loop *loop, uint64_t step, struct zr_step_line *line,
                               enum zr_request_kind *request)
{
    struct zr_rank *rank = &loop->rank;
    struct history *history = &loop->history;
    struct zr_arena_stats after;
    struct zr_comm_counters sent_before, sent_after;
    struct step under_way = {.loop = loop, .number = step, .line = line};
    /* A delayed update sends what it has found in the step after the one that began it. */
    bool first =
        !history->counted && (!rank->config->delayed_update || zr_engine_is_late(rank->state.engine));
    uint64_t rolled_back_before = history->rolled_back_updates;
    uint64_t moved = zr_trainer_state_moved_bytes(&rank->state),
             waited_ns = zr_trainer_state_copies_exposed_ns(&rank->state), calls_count = backend_calls(rank);
    struct zr_state_file_report file_before, file_after;
    /* What the update before it moves is counted there, and not in the step that is counted. */
    zr_result result =
        first && rank->config->delayed_update ? zr_engine_synchronize(rank->state.engine) : ZR_OK;

    if (result != ZR_OK)
        return result;
    zr_trainer_state_counters_get(&rank->state, &sent_before);
    zr_engine_get_file_report(rank->state.engine, &file_before);
    result = train_step(&under_way);
    *request = under_way.request;
    if (result == ZR_OK && (first || pauses_after(loop, step, *request)))
        result = zr_engine_synchronize(rank->state.engine);
    if (result != ZR_OK)
        return result;
    history->host_waited_ns += zr_trainer_state_copies_exposed_ns(&rank->state) - waited_ns;
    zr_engine_get_file_report(rank->state.engine, &file_after);
    history->nvme_waited_ns += file_after.waited_ns - file_before.waited_ns;
    zr_arena_get_stats(rank->arena, &after);
    zr_trainer_state_counters_get(&rank->state, &sent_after);
    if (first &&
        !line->skipped) { /* a skipped step sends less; of a file one that is rolled back moves more */
        history->counted = rolled_back_before == history->rolled_back_updates || !rank->offload_file.folder;
        history->sent_elements_per_step = sent_after.sent_elements - sent_before.sent_elements;
        history->received_bytes_per_step = sent_after.received_bytes - sent_before.received_bytes;
        history->host_moved_bytes_per_step = zr_trainer_state_moved_bytes(&rank->state) - moved;
        history->nvme_moved_bytes_per_step = file_after.moved_bytes - file_before.moved_bytes;
    }
    history->host_waits_last_step = rank->state.trainer->host_waits;
    history->driver_calls_last_step = backend_calls(rank) - calls_count;
    uint64_t now_ns = zr_os_now_ns();
    line->step = step;
    line->step_seconds = (double)(now_ns - history->since_ns) * 1e-9;
    history->since_ns = now_ns;
    line->tokens_per_second = (double)zr_train_step_tokens(rank->config) / line->step_seconds;
    line->live_bytes = after.live_bytes;
    line->reserved_bytes = after.reserved_bytes;
    history->loss[history->count] = line->loss;
    history->seconds[history->count] = line->step_seconds;
    history->count++;
    return ZR_OK;
}

/* What signals asked for, agreed on by all ranks. */
static zr_result follow_request(struct loop *loop, uint64_t step, enum zr_request_kind request)
{
    zr_result result = ZR_OK;
    if (request == ZR_REQUEST_NONE)
        return ZR_OK;
    if (speaks(loop) && !loop->rank.config->save[0] && request != ZR_REQUEST_END) {
        zr_progress_break(&loop->progress);
        zr_say("a signal asks for a save, and there is no folder to save to; give --save DIR");
    }
    if (request != ZR_REQUEST_END)
        result = save(loop, step);
    loop->history.ended = request != ZR_REQUEST_SAVE;
    if (speaks(loop) && loop->history.ended) {
        zr_progress_break(&loop->progress);
        zr_say("ended by a signal after step %" PRIu64, step);
    }
    return result;
}

/* A log that cannot be written, on a full disk, costs the log and not the run: that goes on and saves, says
 * so again at its end, and has another exit code. */
static void write_log(struct loop *loop, const struct zr_step_line *line)
{
    zr_result result = zr_log_step(&loop->log, line);
    if (result == ZR_OK)
        return;
    loop->log_result = result;
    loop->log_ended_step = line->step;
    zr_progress_break(&loop->progress);
    zr_say("after step %" PRIu64 ": %s; the run goes on without its log", line->step, zr_last_error());
    zr_log_close(&loop->log);
}

/* A comparison that fails does so on all ranks alike. */
static zr_result prove(struct loop *loop, const struct zr_step_line *line)
{
    zr_result result =
        zr_prove_step(loop->prove, &(struct zr_prove_step){line->step, line->loss, line->gradient_norm});
    loop->alike = result == ZR_ERR_CORRUPT;
    return result;
}

static zr_result run_steps(struct loop *loop)
{
    const struct zr_train_config *config = loop->rank.config;
    zr_result result = ZR_OK;

    zr_trainer_state_counters_get(&loop->rank.state, &loop->history.comm_before);
    loop->history.since_ns = zr_os_now_ns();
    for (uint64_t step = loop->history.resumed_step + 1; step <= config->steps && !loop->history.ended;
         step++) {
        struct zr_step_line line = {0};
        enum zr_request_kind request = ZR_REQUEST_NONE;
        char note[32];
        snprintf(note, sizeof note, "step %" PRIu64, step);
        zr_local_set_status(loop->rank.local, loop->rank.rank, note);
        zr_trace_mark(loop->rank.arena, note);
        result = measured_step(loop, step, &line, &request);
        if (result == ZR_OK && config->eval_every &&
            (step % config->eval_every == 0 || step == config->steps)) {
            result = validate(loop);
            line.validated = true;
            line.validation_loss = loop->history.validation_loss;
        }
        if (result == ZR_OK && loop->prove)
            result = prove(loop, &line);
        if (result != ZR_OK)
            return result;
        if (speaks(loop) && line.skipped)
            say_skipped(loop, &line);
        if (speaks(loop)) {
            zr_progress_step(&loop->progress, &line);
            write_log(loop, &line);
        }
        if (config->save_every && step % config->save_every == 0)
            result = save(loop, step);
        if (result == ZR_OK)
            result = follow_request(loop, step, request);
        if (result != ZR_OK)
            return result;
        if (loop->yields && step < config->steps && !loop->history.ended)
            result = zr_turns_next(&loop->rank);
        if (result != ZR_OK)
            return result;
        if (loop->yields || pauses_after(loop, step, request))
            loop->history.since_ns = zr_os_now_ns();
    }
    if (!loop->history.ended) /* fewer steps may be asked for than the checkpoint has seen */
        result = save(loop, loop->history.resumed_step + loop->history.count);
    return result == ZR_OK ? export(loop) : result;
}

static double tokens_per_second(const struct loop *loop)
{
    const struct history *history = &loop->history;
    size_t skip = history->count > 2 ? 2 : 0; /* the first steps touch the memory */
    double seconds = 0;
    for (size_t i = skip; i < history->count; i++)
        seconds += history->seconds[i];
    if (seconds <= 0)
        return 0;
    return (double)((history->count - skip) * zr_train_step_tokens(loop->rank.config)) / seconds;
}

static void measure_host_tier(const struct loop *loop, struct zr_rank_report *report)
{
    struct zr_arena_stats stats;
    double seconds = 0;
    if (!loop->rank.host_tier)
        return;
    zr_arena_get_stats(loop->rank.host_tier, &stats);
    for (size_t i = 0; i < loop->history.count; i++)
        seconds += loop->history.seconds[i];
    report->peak_host_tier_bytes = stats.peak_live_bytes;
    report->peak_host_tier_reserved_bytes = stats.peak_reserved_bytes;
    memcpy(report->peak_host_tier_by_tag_bytes, stats.peak_by_tag_bytes,
           sizeof report->peak_host_tier_by_tag_bytes);
    report->host_moved_bytes = loop->history.host_moved_bytes_per_step;
    report->host_wait_share = seconds > 0 ? (double)loop->history.host_waited_ns * 1e-9 / seconds : 0;
}

static void measure_file(const struct loop *loop, struct zr_rank_report *report)
{
    struct zr_state_file_report file;
    struct zr_late_report late;
    double seconds = 0;
    zr_engine_get_file_report(loop->rank.state.engine, &file);
    for (size_t i = 0; i < loop->history.count; i++)
        seconds += loop->history.seconds[i];
    report->nvme_bytes = file.file_bytes;
    report->nvme_moved_bytes = loop->history.nvme_moved_bytes_per_step;
    zr_engine_get_late_report(loop->rank.state.engine, &late);
    report->late_computing_seconds = late.computing_seconds;
    report->late_waiting_seconds = late.waiting_seconds;
    report->nvme_wait_share = seconds > 0 ? (double)loop->history.nvme_waited_ns * 1e-9 / seconds : 0;
}

static void measure(const struct loop *loop, struct zr_rank_report *report)
{
    const struct zr_rank *rank = &loop->rank;
    struct zr_arena_stats stats, host;
    struct zr_comm_counters counters;
    struct zr_resident resident = {0};

    zr_arena_get_stats(rank->arena, &stats);
    zr_arena_get_stats(rank->host_arena, &host);
    zr_trainer_state_counters_get(&rank->state, &counters);
    if (zr_os_resident(&resident) != ZR_OK)
        resident.peak_bytes = 0;
    memcpy(report->peak_by_tag_bytes, stats.peak_by_tag_bytes, sizeof report->peak_by_tag_bytes);
    memcpy(report->kept_by_tag_bytes, stats.live_by_tag_bytes, sizeof report->kept_by_tag_bytes);
    report->peak_by_tag_bytes[ZR_TAG_OTHER] += host.peak_live_bytes;
    report->peak_bytes = stats.peak_live_bytes + host.peak_live_bytes;
    report->peak_reserved_bytes = stats.peak_reserved_bytes + host.peak_reserved_bytes;
    report->peak_host_reserved_bytes = host.peak_reserved_bytes;
    report->peak_resident_bytes = resident.peak_bytes;
    report->resident_anonymous_bytes = resident.anonymous_bytes;
    report->resident_shared_bytes = resident.shared_bytes;
    report->stranded_bytes = stats.stranded_bytes;
    measure_host_tier(loop, report);
    measure_file(loop, report);
    zr_spill_get_report(rank, &report->spill);
    report->sent_elements_per_step = loop->history.sent_elements_per_step;
    report->received_bytes_per_step = loop->history.received_bytes_per_step;
    report->host_waits_last_step = loop->history.host_waits_last_step;
    report->driver_calls_last_step = loop->history.driver_calls_last_step;
    report->graph_steps = rank->state.trainer->graph.launches_count;
    report->comm_busy_ns = counters.busy_ns - loop->history.comm_before.busy_ns;
    report->comm_exposed_ns = counters.exposed_ns - loop->history.comm_before.exposed_ns;
}

/* Text for the end: made by all ranks alike, shown by rank 0. */
static zr_result make_sample(struct loop *loop, struct zr_text *text)
{
    const struct zr_train_config *config = loop->rank.config;
    if (config->sample == 0 || loop->history.ended)
        return ZR_OK;
    return zr_sample_make(&(struct zr_sample_options){.trainer = loop->rank.state.trainer,
                                                      .shape = config->shape,
                                                      .bytes = config->bytes,
                                                      .prompt = config->prompt,
                                                      .count = config->sample,
                                                      .temperature = config->temperature,
                                                      .seed = config->seed},
                          text);
}

static zr_result report_end(struct loop *loop)
{
    const struct zr_train_config *config = loop->rank.config;
    struct zr_rank_report mine = loop->rank.reports[loop->rank.rank];
    size_t room = 4096 + 12 * config->sample + 4 * sizeof config->prompt; /* numbers of tokens, or \xHH */
    char *buffer = zr_heap_alloc(room);
    struct zr_text text;
    zr_result result = buffer ? ZR_OK : ZR_ERR_HOST_MEMORY;

    if (result == ZR_OK) {
        zr_text_start(&text, NULL, buffer, room);
        result = make_sample(loop, &text);
    }
    if (result == ZR_OK) {
        measure(loop, &mine);
        result = zr_rank_exchange_reports(&loop->rank, &mine);
    }
    if (result == ZR_OK && speaks(loop)) {
        struct zr_run_report run = {.config = config,
                                    .ranks = loop->rank.reports,
                                    .host_arena = loop->rank.host_arena,
                                    .world = config->ranks,
                                    .parameters = zr_engine_elements(loop->rank.state.engine),
                                    .resumed_step = loop->history.resumed_step,
                                    .steps_count = loop->history.count,
                                    .rolled_back_updates = loop->history.rolled_back_updates,
                                    .all_skipped = loop->history.count > 0 && !loop->history.counted,
                                    .loss = loop->history.loss,
                                    .step_seconds = loop->history.seconds,
                                    .tokens_per_second = tokens_per_second(loop),
                                    .seconds = (double)(zr_os_now_ns() - loop->history.started_ns) * 1e-9,
                                    .validated = loop->history.validated,
                                    .validation_loss = loop->history.validation_loss,
                                    .timeline = config->flops_per_second > 0 ? &loop->rank.timeline : NULL,
                                    .sample = text.used_bytes ? buffer : NULL,
                                    .sample_bytes = text.used_bytes};
        if (config->precision == ZR_PRECISION_FP16)
            zr_engine_scaling(loop->rank.state.engine, &run.scaling);
        zr_progress_break(&loop->progress);
        result = zr_report_end(&run);
        if (result == ZR_OK)
            result = zr_report_json(&run);
    }
    zr_heap_free(buffer);
    return result;
}

/* Other batches than those the checkpoint was made with are allowed, and change what the run does. */
static void say_other_batches(const struct loop *loop, const struct zr_checkpoint_origin *origin)
{
    const struct zr_train_config *config = loop->rank.config;
    uint64_t ours = zr_train_step_tokens(config);
    if (origin->step_tokens == 0 || !speaks(loop))
        return; /* none, or none that says */
    if (origin->micro_batches != config->micro_batches)
        zr_say("it was made with --accumulate %" PRIu64 ", this run has %u", origin->micro_batches,
               config->micro_batches);
    if (origin->step_tokens != ours)
        zr_say("its steps had %" PRIu64 " tokens each, those of this run have %" PRIu64
               ": losses and the order of the data differ from a run that goes on as it was",
               origin->step_tokens, ours);
}

static zr_result resume(struct loop *loop)
{
    struct zr_checkpoint checkpoint = checkpoint_of(loop, loop->rank.config->resume);
    struct zr_checkpoint_origin origin = {0};
    zr_result result;
    if (!loop->rank.config->resume[0])
        return ZR_OK;
    loop->resuming = true;
    checkpoint.origin = &origin;
    result = zr_checkpoint_resume(&checkpoint, &loop->history.resumed_step);
    loop->alike = result != ZR_OK;
    if (result != ZR_OK)
        return result;
    loop->resuming = false;
    if (strcmp(loop->rank.config->resume, loop->rank.config->save) == 0)
        loop->history.saved_step = loop->history.resumed_step;
    if (speaks(loop) && loop->history.resumed_step)
        zr_say("resumed after step %" PRIu64 " from %s", loop->history.resumed_step,
               loop->rank.config->resume);
    else if (speaks(loop))
        zr_say("starts from the parameters in %s", loop->rank.config->resume);
    if (speaks(loop) && origin.passed_over)
        zr_say("%s also has step %" PRIu64
               ", which is not whole: its manifest.json is missing; it was passed "
               "over",
               loop->rank.config->resume, origin.passed_over);
    say_other_batches(loop, &origin);
    return ZR_OK;
}

/* --resume takes the newest step of a folder, be it of another run: better said before this one than found
 * out after it. */
static zr_result look_for_later_steps(const struct loop *loop)
{
    const char *folder = loop->rank.config->save;
    uint64_t step;
    bool found;
    zr_result result = folder[0] ? zr_checkpoint_newest(folder, &found, &step) : ZR_OK;
    if (result == ZR_OK && folder[0] && found && step > loop->history.resumed_step)
        zr_say("%s already has a checkpoint of step %" PRIu64
               ", and --resume takes the newest; to keep runs apart, save to another folder",
               folder, step);
    return result;
}

static zr_result run(struct loop *loop, struct zr_local_world *local, unsigned rank)
{
    const struct zr_train_config *config = loop->rank.config;
    struct history *history = &loop->history;
    zr_result result = zr_rank_open(&loop->rank, config, local, rank);
    loop->alike = result == ZR_ERR_CORRUPT; /* the replicas differ */
    if (result == ZR_OK)
        result = resume(loop);
    if (result != ZR_OK)
        return result;
    size_t steps = config->steps > history->resumed_step ? config->steps - history->resumed_step : 0;
    if (steps > 0) {
        history->loss = zr_heap_zalloc(steps, sizeof *history->loss);
        history->seconds = zr_heap_zalloc(steps, sizeof *history->seconds);
        if (!history->loss || !history->seconds)
            return zr_fail(ZR_ERR_HOST_MEMORY,
                           "no memory for the losses of %zu steps, 16 bytes each; give fewer --steps, --save "
                           "them and --resume for the rest",
                           steps);
    }
    if (speaks(loop)) {
        result = look_for_later_steps(loop);
        if (result == ZR_OK)
            result = zr_log_open(&loop->log, config->log, history->resumed_step);
        if (result != ZR_OK)
            return result;
        say_products(loop);
        zr_progress_start(&loop->progress, history->resumed_step, config->steps);
    }
    result = zr_prove_open(&loop->prove, &loop->rank);
    if (result == ZR_OK)
        result = run_steps(loop);
    if (result == ZR_OK)
        result = report_end(loop);
    if (result == ZR_OK && loop->prove && speaks(loop))
        zr_prove_print(loop->prove);
    return result;
}

/* What ended the run, said once however many ranks it has met. */
static void say_failure(const struct loop *loop, zr_result result)
{
    uint64_t step = loop->history.resumed_step + loop->history.count;
    char who[32] = "", when[48] = "";

    /* Of a lost peer and of a run cut short the launcher has said which and why; mpirun does not say so much.
     */
    if (loop->rank.config->ranks > 1 && !loop->rank.config->by_mpi &&
        (result == ZR_ERR_PEER || result == ZR_ERR_INTERRUPTED))
        return;
    if (!zr_local_first_message(loop->rank.local, zr_last_error()))
        return;
    if (loop->rank.config->ranks > 1 && loop->rank.comm && !loop->alike)
        snprintf(who, sizeof who, "rank %u: ", loop->rank.rank);
    if (step > 0)
        snprintf(when, sizeof when, "after step %" PRIu64 ": ", step);
    if (result == ZR_ERR_TAG_LIMIT)
        zr_say("%s%sbeyond the byte plan: %s (--over-plan continue); what was saved is whole", who, when,
               zr_last_error());
    else
        zr_say("%s%s%s", who, when, zr_last_error());
    zr_local_message_logged(loop->rank.local);
}

/* A check that failed in the run is no bad input; a damaged checkpoint is. */
static enum zr_exit exit_of(const struct loop *loop, zr_result result)
{
    return result == ZR_ERR_CORRUPT && !loop->resuming ? ZR_EXIT_FAILED : zr_exit_of(result);
}

int zr_train_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    struct loop loop = {.rank = {.config = argument, .rank = rank, .data = {.file = {.fd = -1}}},
                        .history = {.saved_step = UINT64_MAX, .started_ns = zr_os_now_ns()},
                        .log = {.file = {.fd = -1}}};
    zr_result result = run(&loop, local, rank), closed;

    if (speaks(&loop))
        zr_progress_break(&loop.progress);
    if (result != ZR_OK)
        say_failure(&loop, result);
    closed = zr_log_close(&loop.log);
    if (closed != ZR_OK && result == ZR_OK) {
        zr_local_first_message(local, zr_last_error()); /* the launcher need not tell how this rank ended */
        zr_say("%s", zr_last_error());
        zr_local_message_logged(local);
        result = closed;
    }
    if (loop.log_result != ZR_OK && result == ZR_OK) {
        zr_local_first_message(local, loop.rank.config->log);
        zr_say("--log '%s' lacks step %" PRIu64 " and those after it; all else is as asked for",
               loop.rank.config->log, loop.log_ended_step);
        zr_local_message_logged(local);
        result = loop.log_result;
    }
    zr_heap_free(loop.history.seconds);
    zr_heap_free(loop.history.loss);
    zr_prove_close(loop.prove);
    closed = zr_rank_close(&loop.rank);
    if (closed != ZR_OK) {
        zr_say("rank %u: %s", rank, zr_last_error());
        if (result == ZR_OK)
            result = closed;
    }
    return (int)exit_of(&loop, result);
}
