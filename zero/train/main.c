/* main.c: zr-train. Reads the arguments, checks the text, forks the ranks and waits for them. */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "zero/comm/message/mpi_start.h"
#include "zero/train/settings/args.h"
#include "zero/train/ask.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/train/data.h"
#include "zero/train/loop.h"
#include "zero/train/rank/card.h"
#include "zero/train/rehearse.h"
#include "zero/train/settings/outputs.h"
#include "zero/train/report/number.h"
#include "zero/train/report/report.h"
#include "zero/checkpoint/model_file.h"
#include "zero/train/report/terminal.h"

/* How long SIGTERM lets a step under way go on, if the ranks get on: who cannot wait so long sends it again.
 */
#define SAVE_WITHIN_NS (300 * UINT64_C(1000000000))

static struct zr_train_config config; /* survives the fork; read-only after parsing */

static void clean_up(void *argument)
{
    const struct zr_train_config *run = argument;
    zr_checkpoint_clean_up(run->save);
    zr_report_clean_up(run->json);
    zr_model_export_clean_up(run->export);
}

/* What is wrong with the text is said once, before any rank exists. */
static zr_result check_data(void)
{
    struct zr_data data;
    zr_result result =
        zr_data_open(&data, &(struct zr_data_options){.path = config.data,
                                                      .bytes = config.bytes,
                                                      .vocabulary = config.shape.vocabulary,
                                                      .sequence = config.shape.sequence,
                                                      .batch = config.shape.batch,
                                                      .data_ranks = zr_train_data_ranks(&config),
                                                      .micro_batches = config.micro_batches,
                                                      .seed = config.seed});
    if (result != ZR_OK)
        return result;
    result = zr_data_scan(&data);
    zr_data_close(&data);
    return result;
}

/* ZR_CONF is read before everything else, so that a mistake in it is not met halfway. Below 0: go on. */
static int check_options(void)
{
    char text[4096];
    if (zr_option_help_wanted()) {
        size_t bytes = zr_option_help(text, sizeof text);
        struct zr_file out = zr_file_borrow(STDOUT_FILENO, "standard output");
        zr_result result = zr_file_write(&out, text, bytes < sizeof text ? bytes : sizeof text - 1);
        if (result != ZR_OK)
            zr_say("%s", zr_last_error());
        return (int)zr_exit_of(result);
    }
    if (zr_option_result() != ZR_OK || zr_fault_result() != ZR_OK) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    return -1;
}

/* A descriptor 0, 1 or 2 that was closed would be given to the next file, be it the arena's own memory, and
 * the words for people would be written there. */
static void hold_standard_files(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

/* Says which stage --stage auto comes to. -1, or an exit code. */
static int pick_stage(void)
{
    struct zr_stage_pick pick;
    char number[ZR_NUMBER_ROOM];
    bool becomes_mpirun = config.by_mpi && config.start.kind == ZR_START_FORK && !config.dry_run;
    int code = zr_ask_stage(&config, &pick);
    if (code < 0 && zr_train_leads(&config) && !becomes_mpirun) /* whose rank 0 says it */
        zr_say("--stage auto is --stage %u here: its plan takes the fewest bytes, %s per rank", pick.stage,
               zr_number_grouped(number, pick.reserved_bytes));
    return code;
}

/* Says what --offload-ratio auto comes to. -1, or an exit code. */
static int pick_ratio(void)
{
    int code = zr_ask_ratio(&config);
    if (code < 0 && zr_train_leads(&config))
        zr_say("--offload-ratio auto is --offload-ratio %.15g here: what stays fits under --memory-limit",
               config.offload_ratio);
    return code;
}

/* Says where --speculative-update auto is none for want of room. -1, or an exit code. */
static int find_room(void)
{
    int code = zr_ask_speculation(&config);
    if (code < 0 && config.speculates_if_room && config.speculative_bytes == 0 && zr_train_leads(&config))
        zr_say(
            "--speculative-update auto: the optimizer's state twice is more than --nvme-limit or half of what is "
            "free in nvme:%s; the update waits for the norm, and a step for the disk",
            config.offload_folder);
    return code;
}

/* Prints what --zero-r auto has come to. -1, or an exit code. */
static int pick_all(void)
{
    struct zr_picks picks;
    int code = zr_ask_all(&config, &picks);
    if (code >= 0 || !zr_train_leads(&config))
        return code;
    zr_result result = zr_report_picks(&config, &picks);
    return result == ZR_OK ? -1 : (int)zr_exit_of(result);
}

/* Prints what another allocator would take. -1: it fits, or an exit code. */
static int weigh_policy(void)
{
    const struct zr_policy_use *use = &config.policy_use;
    char number[2][ZR_NUMBER_ROOM];
    int code = zr_ask_policy(&config);
    if (code >= 0 || config.policy == ZR_POLICY_ZR)
        return code;
    double stranded = 100 * (1 - (double)use->live_bytes / (double)use->reserved_bytes);
    if (use->fits && zr_train_leads(&config))
        zr_say("--policy %s: takes %s for %s, %.1f %% are stranded",
               zr_policy_name((enum zr_policy)config.policy), zr_number_bytes(number[0], use->reserved_bytes),
               zr_number_bytes(number[1], use->live_bytes), stranded);
    if (!use->fits && zr_train_leads(&config))
        zr_say(
            "--policy %s: finds no room under --memory-limit %zu, although no more than %s are in use at a time; give "
            "a higher limit, or leave --policy out: the byte plan keeps to places that leave no holes",
            zr_policy_name((enum zr_policy)config.policy), config.memory_limit_bytes,
            zr_number_bytes(number[0], use->live_bytes));
    return use->fits ? -1 : ZR_EXIT_MEMORY;
}

int main(int argc, char **argv)
{
    struct zr_checkpoint_hold hold;

    hold_standard_files();
    signal(SIGXFSZ, SIG_IGN); /* a file beyond ulimit -f is an error value, not a death */
    int code = check_options();
    if (code < 0)
        code = zr_args_parse(&config, argc, argv);
    if (code >= 0)
        return code;
    if ((code = zr_ask_tiers(&config)) >= 0)
        return code;
    if (config.picks_all && (code = pick_all()) >= 0)
        return code;
    if (config.stage == ZR_STAGE_AUTO && (code = pick_stage()) >= 0)
        return code;
    if ((code = zr_ask_cut(&config)) >= 0)
        return code;
    if (config.offload_ratio < 0 && (code = pick_ratio()) >= 0)
        return code;
    if ((code = find_room()) >= 0)
        return code;
    if ((code = zr_ask_logits(&config)) >= 0)
        return code;
    if ((code = weigh_policy()) >= 0)
        return code;
    zr_result result = zr_outputs_apart(&config);
    if (result == ZR_OK && config.dry_run)
        return zr_rehearse_run(&config);
    if (result == ZR_OK)
        result = check_data();
    if (result == ZR_OK)
        result = zr_outputs_check(&config);
    if (result == ZR_OK && (code = zr_rehearse_check_limit(&config)) >= 0)
        return code;
    if (result == ZR_OK)
        result = zr_checkpoint_hold(&hold, zr_train_leads(&config) ? config.save : "");
    if (result != ZR_OK) {
        zr_say("%s", zr_last_error());
        return (int)zr_exit_of(result);
    }
    zr_card_prepare(&config);
    code = zr_start_launch(&(struct zr_start_run){
        .start = &config.start,
        .join_mpi = config.by_mpi ? zr_mpi_run : NULL,
        .options = &(struct zr_launch_options){.struct_bytes = sizeof(struct zr_launch_options),
                                               .world = config.world,
                                               .rank_main = zr_train_rank,
                                               .argument = &config,
                                               .clean_up = clean_up,
                                               .save_within_ns = config.save[0] ? SAVE_WITHIN_NS : 0,
                                               .ends_process = true,
                                               .join_timeout_ns = config.comm_timeout * UINT64_C(1000000000)},
        .argv = argv,
    });
    zr_checkpoint_let_go(&hold, config.save);
    return code;
}
