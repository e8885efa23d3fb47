/* saves.c: see saves.h. */
#include "zero/train/saves.h"

#include <inttypes.h>
#include <string.h>

#include "alloc/base/system/os.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/model_file.h"
#include "zero/train/report/terminal.h"

static struct zr_checkpoint checkpoint_of(const struct zr_saves *saves, const char *folder)
{
    const struct zr_train_config *config = saves->rank->config;
    return (struct zr_checkpoint){.folder = folder,
                                  .engine = saves->rank->state.engine,
                                  .comm = saves->rank->comm,
                                  .shape = saves->rank->state.transformer.shape,
                                  .seed = config->seed,
                                  .stage = config->stage,
                                  .micro_batches = config->micro_batches,
                                  .keep = config->keep};
}

/* When the next save comes, after one of `step`. */
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
    return config->save[0] && config->save_seconds && zr_os_now_ns() >= saves->due_ns;
}

zr_result zr_saves_save(struct zr_saves *saves, uint64_t step)
{
    struct zr_checkpoint checkpoint = checkpoint_of(saves, saves->rank->config->save);
    zr_result result;

    if (!saves->rank->config->save[0] || saves->saved_step == step)
        return ZR_OK;
    zr_local_busy(saves->rank->local, saves->rank->rank, true);
    result = zr_checkpoint_save(&checkpoint, step);
    zr_local_busy(saves->rank->local, saves->rank->rank, false);
    if (result != ZR_OK)
        return result;
    saves->saved_step = step;
    note_next(saves, step);
    if (zr_rank_logs(saves->rank)) {
        zr_progress_break(saves->progress);
        zr_say("saved step %" PRIu64 " in %s", step, saves->rank->config->save);
    }
    return ZR_OK;
}

zr_result zr_saves_export(struct zr_saves *saves)
{
    const struct zr_train_config *config = saves->rank->config;
    zr_result result;

    if (!config->export[0])
        return ZR_OK;
    zr_local_busy(saves->rank->local, saves->rank->rank, true);
    result = zr_model_export(&(struct zr_model_file){.path = config->export,
                                                     .engine = saves->rank->state.engine,
                                                     .comm = saves->rank->comm,
                                                     .shape = saves->rank->state.transformer.shape});
    zr_local_busy(saves->rank->local, saves->rank->rank, false);
    if (result == ZR_OK && zr_rank_logs(saves->rank)) {
        zr_progress_break(saves->progress);
        zr_say("exported to %s", config->export);
    }
    return result;
}

/* Other batches than those the checkpoint was made with are allowed, and change what the run does. */
static void say_other_batches(const struct zr_saves *saves, const struct zr_checkpoint_origin *origin)
{
    const struct zr_train_config *config = saves->rank->config;
    uint64_t ours = zr_train_step_tokens(config);
    if (origin->step_tokens == 0 || !zr_rank_logs(saves->rank))
        return; /* none, or none that says */
    if (origin->micro_batches != config->micro_batches)
        zr_say("it was made with --accumulate %" PRIu64 ", this run has %u", origin->micro_batches,
               config->micro_batches);
    if (origin->step_tokens != ours)
        zr_say("its steps had %" PRIu64 " tokens each, those of this run have %" PRIu64
               ": losses and the order of the data differ from a run that goes on as it was",
               origin->step_tokens, ours);
}

/* Whether what is resumed is what --save names. Ranks that were started one by one may spell it differently,
 * and all of them save a step, or none. */
static zr_result saves_where_it_resumes(const struct zr_saves *saves, bool *out)
{
    const struct zr_train_config *config = saves->rank->config;
    bool mine = strcmp(config->resume, config->save) == 0, all[ZR_MAX_WORLD];
    zr_result result = zr_comm_host_all_gather(saves->rank->comm, &mine, sizeof mine, all);
    *out = mine;
    for (unsigned p = 0; p < zr_comm_world(saves->rank->comm) && result == ZR_OK; p++)
        *out = *out && all[p];
    return result;
}

zr_result zr_saves_resume(struct zr_saves *saves)
{
    struct zr_checkpoint checkpoint = checkpoint_of(saves, saves->rank->config->resume);
    struct zr_checkpoint_origin origin = {0};
    bool same_place = false;
    zr_result result;
    if (!saves->rank->config->resume[0])
        return ZR_OK;
    checkpoint.origin = &origin;
    result = zr_checkpoint_resume(&checkpoint, &saves->resumed_step);
    if (result == ZR_OK)
        result = saves_where_it_resumes(saves, &same_place);
    if (result != ZR_OK)
        return result;
    if (same_place)
        saves->saved_step = saves->resumed_step;
    if (zr_rank_logs(saves->rank) && saves->resumed_step)
        zr_say("resumed after step %" PRIu64 " from %s", saves->resumed_step, saves->rank->config->resume);
    else if (zr_rank_logs(saves->rank))
        zr_say("starts from the parameters in %s", saves->rank->config->resume);
    if (zr_rank_logs(saves->rank) && origin.passed_over)
        zr_say("%s also has step %" PRIu64
               ", which is not whole: its manifest.json is missing; it was passed "
               "over",
               saves->rank->config->resume, origin.passed_over);
    say_other_batches(saves, &origin);
    return ZR_OK;
}

zr_result zr_saves_look_for_later(const struct zr_saves *saves)
{
    const char *folder = saves->rank->config->save;
    uint64_t step;
    bool found;
    zr_result result = folder[0] ? zr_checkpoint_newest(folder, &found, &step) : ZR_OK;
    if (result == ZR_OK && folder[0] && found && step > saves->resumed_step)
        zr_say("%s already has a checkpoint of step %" PRIu64
               ", and --resume takes the newest; to keep runs apart, save to another folder",
               folder, step);
    return result;
}
