/* main.c: the program zr-train: parses the arguments, checks the data, forks the ranks and waits for them. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "zero/comm/mesh.h"
#include "zero/train/settings/args.h"
#include "zero/train/resolve_options.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/train/data.h"
#include "zero/train/rank/kept.h"
#include "zero/train/rank/rank.h"
#include "zero/train/rehearse.h"
#include "zero/train/report/number.h"
#include "zero/train/report/report.h"
#include "zero/checkpoint/model_file.h"
#include "zero/train/report/terminal.h"
#include "zero/train/servers/servers.h"
#include "zero/train/tokenize/tokenize.h"

/* Maximum time that SIGTERM lets the current step continue while ranks make progress; a second SIGTERM
 * ends the run at once. */
#define SAVE_WITHIN_NS (300 * UINT64_C(1000000000))

static struct zr_train_config config; /* survives the fork; read-only after parsing */
static struct zr_data data;           /* likewise, for ranks that are threads */

static void clean_up(void *argument)
{
    const struct zr_train_config *run = argument;
    zr_checkpoint_clean_up(run->save);
    zr_report_clean_up(run->json);
    zr_report_clean_up(run->status);
    zr_model_export_clean_up(run->export);
}

/* Reports problems of the data once, before any rank exists. Ranks that are threads share the open data. */
static zr_result check_data(void)
{
    struct zr_data_options options = zr_rank_data_options(&config);
    zr_result result = zr_data_open(&data, &options);
    if (result != ZR_OK)
        return result;
    result = zr_data_scan(&data);
    if (config.ranks_as == ZR_RANKS_AS_THREADS)
        config.data_of_ranks = &data;
    else
        zr_data_close(&data);
    return result;
}

/* Checks ZR_CONF before anything else uses it. Returns -1 to continue, or an exit code. */
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

/* Opens descriptors 0, 1 and 2 if they are closed. Otherwise the next file would get one of them, possibly
 * the arena's memory file, and messages would be written to it. */
static void hold_standard_files(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

/* Prints the result of --stage auto. Returns -1, or an exit code. */
static int resolve_stage(void)
{
    struct zr_stage_choice choice;
    char number[ZR_NUMBER_ROOM];
    bool becomes_mpirun = config.by_mpi && config.start.kind == ZR_START_FORK && !config.dry_run;
    int code = zr_resolve_stage(&config, &choice);
    if (code < 0 && zr_train_leads(&config) && !becomes_mpirun) /* under mpirun, rank 0 prints it */
        zr_say("--stage auto: takes --stage %u, whose plan takes the fewest bytes, %s per rank", choice.stage,
               zr_number_grouped(number, choice.reserved_bytes));
    return code;
}

/* Prints the result of --offload-ratio auto. Returns -1, or an exit code. */
static int resolve_ratio(void)
{
    int code = zr_resolve_offload_ratio(&config);
    if (code < 0 && zr_train_leads(&config))
        zr_say(
            "--offload-ratio auto: takes --offload-ratio %.15g; the device-resident rest fits --memory-limit",
            config.offload_ratio);
    return code;
}

/* Prints a message if --speculative-update auto lacks disk space. Returns -1, or an exit code. */
static int find_space(void)
{
    int code = zr_resolve_speculative_update(&config);
    if (code < 0 && config.speculates_if_room && config.speculative_bytes == 0 && zr_train_leads(&config))
        zr_say("--speculative-update auto: two copies of the optimizer state exceed --nvme-limit or half of "
               "the free space in nvme:%s; updates wait for the norm, and steps for the disk",
               config.offload_folder);
    return code;
}

/* Prints the result of --zero-r auto. Returns -1, or an exit code. */
static int resolve_strategy(void)
{
    struct zr_strategies found;
    int code = zr_resolve_strategy(&config, &found);
    if (code >= 0 || !zr_train_leads(&config))
        return code;
    zr_result result = zr_report_strategies(&config, &found);
    return result == ZR_OK ? -1 : (int)zr_exit_of(result);
}

/* Prints the memory under another allocator. Returns -1 if the plan fits, else an exit code. */
static int weigh_policy(void)
{
    const struct zr_policy_use *use = &config.policy_use;
    char number[2][ZR_NUMBER_ROOM];
    int code = zr_resolve_policy(&config);
    if (code >= 0 || config.policy == ZR_POLICY_ZR)
        return code;
    double stranded = 100 * (1 - (double)use->live_bytes / (double)use->reserved_bytes);
    if (use->fits && zr_train_leads(&config))
        zr_say("--policy %s: reserves %s for %s, %.1f %% is stranded",
               zr_policy_name((enum zr_policy)config.policy), zr_number_bytes(number[0], use->reserved_bytes),
               zr_number_bytes(number[1], use->live_bytes), stranded);
    if (!use->fits && zr_train_leads(&config))
        zr_say("--policy %s: finds no room under --memory-limit %zu, although at most %s are live; give a "
               "higher limit, or leave --policy out: zr's placement plan leaves no holes",
               zr_policy_name((enum zr_policy)config.policy), config.memory_limit_bytes,
               zr_number_bytes(number[0], use->live_bytes));
    return use->fits ? -1 : ZR_EXIT_MEMORY;
}

/* Refuses --redundancy 2 without kept memory. Returns -1, or an exit code. */
static int check_copies(void)
{
    const char *mode = config.redundancy > 1 ? zr_rank_kept_words(&config) : NULL;
    if (mode && zr_train_leads(&config))
        zr_say(
            "--redundancy 2 requires kept memory, which cannot be combined with %s; leave one of the two out",
            mode);
    return mode ? ZR_EXIT_USAGE : -1;
}

/* Checks --memory-limit, also for the fewest replicas, whose plan is the largest. Returns -1, or an exit
 * code. */
static int check_limit(void)
{
    static struct zr_train_config fewest;
    int code = zr_rehearse_check_limit(&config);
    if (code >= 0 || !zr_train_changes_size(&config))
        return code;
    fewest = config;
    zr_train_set_replicas(&fewest, zr_train_replica_range(&config).least);
    code = zr_rehearse_check_limit(&fewest);
    if (code >= 0)
        zr_say("this is the plan of %u data replicas, the fewest of --%s", zr_train_data_ranks(&fewest),
               config.elastic[0] ? "elastic" : "resize");
    return code;
}

int main(int argc, char **argv)
{
    struct zr_checkpoint_hold hold;
    static struct zr_served_run served;

    hold_standard_files();
    signal(SIGXFSZ, SIG_IGN); /* a write beyond ulimit -f returns an error */
    int code = check_options();
    if (code < 0 && argc > 1 && strcmp(argv[1], "tokenize") == 0)
        code = zr_tokenize_main(argc - 1, argv + 1);
    if (code < 0)
        code = zr_args_parse(&config, argc, argv);
    if (code >= 0)
        return code;
    if ((code = zr_measure_tiers(&config)) >= 0)
        return code;
    if (config.finds_strategy && (code = resolve_strategy()) >= 0)
        return code;
    if (config.stage == ZR_STAGE_AUTO && (code = resolve_stage()) >= 0)
        return code;
    if ((code = zr_resolve_pipeline_cut(&config)) >= 0)
        return code;
    if (config.offload_ratio < 0 && (code = resolve_ratio()) >= 0)
        return code;
    if ((code = find_space()) >= 0)
        return code;
    if ((code = zr_resolve_logits_bytes(&config)) >= 0)
        return code;
    if ((code = weigh_policy()) >= 0)
        return code;
    if ((code = check_copies()) >= 0)
        return code;
    zr_result result = zr_outputs_apart(&config);
    if (result == ZR_OK && config.dry_run)
        return zr_rehearse_run(&config);
    if (result == ZR_OK && config.command == ZR_COMMAND_TRAIN)
        result = check_data();
    if (result == ZR_OK)
        result = zr_outputs_check(&config);
    if (result == ZR_OK && (code = check_limit()) >= 0)
        return code;
    if (result == ZR_OK)
        result = zr_checkpoint_hold(&hold, zr_train_leads(&config) ? config.save : "");
    if (result != ZR_OK) {
        zr_say("%s", zr_last_error());
        return (int)zr_exit_of(result);
    }
    zr_card_prepare(&config);
    if (zr_train_is_served(&config) && zr_served_start(&served, &config) != ZR_OK) {
        zr_say("%s", zr_last_error());
        zr_served_stop(&served, true);
        zr_checkpoint_let_go(&hold, config.save);
        return ZR_EXIT_MEMORY;
    }
    code = zr_start_launch(&(struct zr_start_run){
        .start = &config.start,
        .join_mpi = config.by_mpi ? zr_mpi_run : NULL,
        .run_tcp = config.comm == ZR_CARRIER_TCP ? zr_tcp_run : NULL,
        .options =
            &(struct zr_launch_options){
                .struct_bytes = sizeof(struct zr_launch_options),
                .world = config.world,
                .rank_main = zr_train_rank,
                .argument = &config,
                .clean_up = clean_up,
                .save_within_ns = config.save[0] ? SAVE_WITHIN_NS : 0,
                .ends_process = true,
                .max_restarts = config.max_restarts,
                .apart = zr_train_repeats(&config),
                .leaves = zr_train_is_free(&config) && config.timing.kind != ZR_PS_SSP,
                .threads = config.ranks_as == ZR_RANKS_AS_THREADS,
                .replicas = zr_train_launch_replicas(&config),
                .rendezvous = config.rendezvous[0] ? config.rendezvous : NULL,
                .secret_file = config.secret_file[0] ? config.secret_file : NULL,
                .tcp_streams = config.tcp_streams,
                .heartbeat_ns = (uint64_t)(config.heartbeat * 1e9),
                .rejoin_timeout_ns =
                    config.comm == ZR_CARRIER_TCP ? (uint64_t)(config.rejoin_within * 1e9) : 0,
                .join_timeout_ns = config.comm_timeout * UINT64_C(1000000000)},
        .argv = argv,
    });
    if (config.served)
        zr_served_stop(&served, code != ZR_EXIT_OK);
    zr_checkpoint_let_go(&hold, config.save);
    return code;
}
