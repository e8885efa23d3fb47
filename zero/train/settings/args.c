/* args.c: parses the command line by the table in flags.c and resolves the settings that it leaves open. Runs
 * before the fork and keeps no memory. */
#define _GNU_SOURCE
#include "zero/train/settings/args.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/os.h"
#include "zero/comm/mesh.h"
#include "zero/comm/zr_comm.h"
#include "zero/engine/optimizer.h"
#include "zero/train/settings/config.h"
#include "zero/train/settings/flags.h"
#include "zero/train/memory_limit.h"
#include "zero/train/rank/rank.h"
#include "zero/train/report/terminal.h"

enum zr_exit zr_exit_of(zr_result result)
{
    switch (result) {
    case ZR_OK:
        return ZR_EXIT_OK;
    case ZR_ERR_INVALID:
    case ZR_ERR_UNAVAILABLE:
        return ZR_EXIT_USAGE;
    case ZR_ERR_IO:
    case ZR_ERR_FORMAT:
    case ZR_ERR_CORRUPT:
        return ZR_EXIT_INPUT;
    case ZR_ERR_MEMORY:
    case ZR_ERR_HOST_MEMORY:
    case ZR_ERR_ADDRESSES:
    case ZR_ERR_TAG_LIMIT:
        return ZR_EXIT_MEMORY;
    default:
        return ZR_EXIT_FAILED;
    }
}

/* ---- The command line ---------------------------------------------------------------------------------- */

/* Damerau-Levenshtein distance of two option names; 33 if one is longer than 32 letters. */
static unsigned distance(const char *a, const char *b)
{
    size_t rows = strlen(a), columns = strlen(b);
    unsigned table[33][33];
    if (rows > 32 || columns > 32)
        return 33;
    for (size_t i = 0; i <= rows; i++)
        for (size_t j = 0; j <= columns; j++) {
            unsigned best = (unsigned)(i == 0 ? j : i);
            if (i > 0 && j > 0) {
                best = table[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
                best = table[i - 1][j] + 1 < best ? table[i - 1][j] + 1 : best;
                best = table[i][j - 1] + 1 < best ? table[i][j - 1] + 1 : best;
            }
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                table[i - 2][j - 2] + 1 < best)
                best = table[i - 2][j - 2] + 1;
            table[i][j] = best;
        }
    return table[rows][columns];
}

static int unknown(const char *name)
{
    const char *nearest = NULL;
    size_t length = strlen(name);
    unsigned best = length / 3 + 2;

    for (size_t i = 0; i < zr_flags_count; i++) {
        const char *known = zr_flags[i].name;
        bool starts = length >= 3 && strncmp(known, name, length) == 0;
        unsigned far = starts ? 0 : distance(name, known);
        if (far < best) {
            best = far;
            nearest = known;
        }
    }
    if (nearest)
        zr_say("unknown option --%.100s; did you mean --%s?", name, nearest);
    else
        zr_say("unknown option --%.100s; zr-train --help lists the options", name);
    return ZR_EXIT_USAGE;
}

static int print_error(int code)
{
    if (code == ZR_EXIT_USAGE)
        zr_say("%s", zr_last_error());
    return code;
}

/* Exit code of --help and --version; a full disk is a failure. */
static int shown(zr_result result)
{
    if (result != ZR_OK)
        zr_say("%s", zr_last_error());
    return (int)zr_exit_of(result);
}

/* --join: asks the run, and prints its answer. */
static int join(const struct zr_flag *flag, struct zr_train_config *config, const char *value)
{
    unsigned replicas;
    int code = zr_flag_store_in(flag, config, value);
    if (code >= 0)
        return print_error(code);
    zr_result result = zr_launch_join((int)config->join, &replicas);
    if (result != ZR_OK)
        zr_say("--join %d: %s", (int)config->join, zr_last_error());
    else
        zr_say("a replica joins at the end of the step: there are %u then", replicas);
    return (int)zr_exit_of(result);
}

/* Splits "--name=value", looks the option up and stores its value. */
static int find_and_store(struct zr_train_config *config, int argc, char **argv, int *at)
{
    char name[128];
    const char *argument = argv[(*at)++], *equals = strchr(argument, '='), *value;

    if (strcmp(argument, "-h") == 0)
        argument = "--help";
    if (strcmp(argument, "-V") == 0)
        argument = "--version";
    if (argument[0] != '-' || argument[1] != '-' || argument[2] == '\0') {
        zr_say("'%.200s' is not an option; options look like --steps 100 (zr-train --help lists them)",
               argument);
        return ZR_EXIT_USAGE;
    }
    size_t length = equals ? (size_t)(equals - argument) - 2 : strlen(argument) - 2;
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), argument + 2);

    const struct zr_flag *flag = zr_flag_find(name);
    if (!flag)
        return unknown(name);
    bool takes = flag->argument || flag->choices;
    value = equals ? equals + 1 : NULL;
    if (!takes && value)
        return print_error(zr_flag_wrong(flag, NULL, "takes no value; give --%s alone", name));
    if (takes && !value) {
        /* "--save --steps 3": the value of --save is missing */
        if (*at >= argc || strncmp(argv[*at], "--", 2) == 0)
            return print_error(zr_flag_wrong(flag, NULL, "needs a value: --%s %s", name,
                                             flag->argument ? flag->argument : flag->choices));
        value = argv[(*at)++];
    }
    if (strcmp(flag->name, "join") == 0)
        return join(flag, config, value);
    if (zr_flag_repeats(flag) && !config->given[zr_flag_index(flag)]) /* replaces the list of --config */
        memset((char *)config + flag->offset, 0, flag->room_bytes);
    config->given[zr_flag_index(flag)] = true;
    if (flag->kind == ZR_FLAG_HELP)
        return shown(zr_help_print());
    if (flag->kind == ZR_FLAG_VERSION)
        return shown(zr_version_print());
    return print_error(zr_flag_store_in(flag, config, value));
}

static int read_arguments(struct zr_train_config *config, int argc, char **argv)
{
    int code = -1, at = 1;
    config->command = argc > 1 && strcmp(argv[1], "sample") == 0 ? ZR_COMMAND_SAMPLE
                      : argc > 1 && strcmp(argv[1], "eval") == 0 ? ZR_COMMAND_EVAL
                                                                 : ZR_COMMAND_TRAIN;
    for (at += config->command != ZR_COMMAND_TRAIN; at < argc && code < 0;)
        if (config->command == ZR_COMMAND_EVAL && argv[at][0] != '-')
            code = print_error(zr_flag_store("data", config, argv[at++]));
        else
            code = find_and_store(config, argc, argv, &at);
    return code;
}

static int store_defaults(struct zr_train_config *config)
{
    int code = -1;
    for (size_t i = 0; i < zr_flags_count && code < 0; i++)
        if (zr_flags[i].fallback)
            code = zr_flag_store_in(&zr_flags[i], config, zr_flags[i].fallback);
    return code;
}

/* ---- Settings that the command line leaves open -------------------------------------------------------- */

static void resolve_loss_scaling(struct zr_train_config *config)
{
    config->loss_scaling.constant = config->loss_scale > 0;
    config->loss_scaling.initial =
        config->loss_scale > 0 ? config->loss_scale : ldexpf(1, (int)config->loss_scale_power);
}

/* Whether MPI carries the host messages: NCCL starts up over host messages, and mpirun may have started ranks
 * on several machines. */
static bool uses_mpi(struct zr_train_config *config)
{
    const struct zr_start *start = &config->start;
    config->by_mpi |= config->comm == ZR_TRAIN_COMM_NCCL && start->mpi &&
                      (start->nodes > 1 || start->local_world < start->world);
    return config->by_mpi;
}

/* --rank R of --ranks N stands for RANK and WORLD_SIZE of a launcher. */
static zr_result read_start(struct zr_train_config *config)
{
    struct zr_start *start = &config->start;
    zr_result result = zr_start_read(start);
    if (result != ZR_OK || !zr_flag_given(config, "rank"))
        return result;
    if (start->kind != ZR_START_FORK)
        return zr_fail(ZR_ERR_INVALID,
                       "--rank %u cannot be combined with %s in the environment; leave one of the two "
                       "out",
                       config->rank, start->rank_name);
    if (!config->rendezvous[0] || config->rank >= config->world)
        return zr_fail(ZR_ERR_INVALID, "--rank %u requires --rendezvous, and --ranks N above it",
                       config->rank);
    start->kind = ZR_START_RANK;
    start->rank = config->rank;
    start->world = config->world;
    start->rank_name = "--rank";
    start->world_name = "--ranks";
    return ZR_OK;
}

/* Determines the number of ranks from the command line or the launcher that started this process. */
static int count_ranks(struct zr_train_config *config)
{
    config->by_mpi = config->comm == ZR_CARRIER_MPI;
    bool tcp = config->comm == ZR_CARRIER_TCP;
    if (!config->dry_run &&
        (read_start(config) != ZR_OK ||
         zr_start_check(&config->start,
                        tcp                ? ZR_START_OVER_TCP
                        : uses_mpi(config) ? ZR_START_OVER_MPI
                                           : ZR_START_OVER_MEMORY,
                        zr_flag_given(config, "ranks") ? config->world : 0, &config->world) != ZR_OK ||
         (tcp && zr_tcp_check(&config->start, config->rendezvous[0]) != ZR_OK))) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    config->ranks_here = config->start.local_world ? config->start.local_world : config->world;
    if (config->dry_run && config->world_size)
        config->world = config->world_size;
    return -1;
}

/* Presets of --zero-r. All recompute fully, with a contiguous pool for checkpoints and constant-size
 * buffers. */
static const struct zero_r {
    const char *name;
    unsigned stage;
    bool partition, offload;
} zero_r[] = {{"C1", 1, false, false},
              {"C2", 1, true, false},
              {"C3", 2, false, false},
              {"C4", 2, true, false},
              {"C5", 2, true, true}};

/* Text of an option that contradicts the preset; NULL: none. */
static const char *contradicts(const struct zr_train_config *config, const struct zero_r *preset)
{
    if (zr_flag_given(config, "stage") && config->stage != preset->stage)
        return "a different --stage";
    if (zr_flag_given(config, "recompute") &&
        (config->shape.recompute != ZR_RECOMPUTE_FULL || config->shape.recompute_layers > 0))
        return "a --recompute other than full";
    if (config->checkpoints.partition && !preset->partition)
        return "--partition-activations";
    if (config->checkpoint_offload && !preset->offload)
        return "--checkpoint-offload";
    if (config->checkpoints.scattered)
        return "--no-contiguous";
    return config->growing_buffers ? "--no-constant-buffers" : NULL;
}

static int apply_zero_r(struct zr_train_config *config)
{
    if (!zr_flag_given(config, "zero-r"))
        return -1;
    if (config->zero_r == sizeof zero_r / sizeof *zero_r) {
        config->finds_strategy = true;
        return -1;
    }
    const struct zero_r *preset = &zero_r[config->zero_r];
    const char *message = contradicts(config, preset);
    if (message) {
        zr_say("--zero-r %s means --stage %u --recompute full%s%s and contradicts %s; leave one of them out",
               preset->name, preset->stage, preset->partition ? " --partition-activations" : "",
               preset->offload ? " --checkpoint-offload" : "", message);
        return ZR_EXIT_USAGE;
    }
    config->stage = preset->stage;
    config->shape.recompute = ZR_RECOMPUTE_FULL;
    config->shape.recompute_layers = 0;
    config->checkpoints.partition = preset->partition;
    config->checkpoint_offload = preset->offload;
    return -1;
}

/* --speculative-update auto: speculates if the state is in a file, where a second copy costs no memory. Ranks
 * of another launcher do not speculate: they check the disk independently and would all count the same free
 * space. */
static void resolve_speculation(struct zr_train_config *config)
{
    if (config->speculative_bytes != SIZE_MAX)
        return;
    config->speculative_bytes = 0;
    config->speculates_if_room = config->offload_optimizer == ZR_TIER_NVME &&
                                 config->offload_parameters != ZR_TIER_NVME && !config->delayed_update &&
                                 config->backend != ZR_TRAIN_CUDA && !config->finds_max &&
                                 !zr_optimizer_of(config->optimizer.kind)->not_ahead &&
                                 config->start.kind == ZR_START_FORK && !config->by_mpi;
}

/* Sets the size of the chunks of logits. On a GPU it is the largest useful size; with a limit the smallest,
 * until zr_resolve_logits_bytes() has found a size that fits. */
static void resolve_logits(struct zr_train_config *config)
{
    if (config->backend == ZR_TRAIN_CUDA && config->logits_bytes == 0)
        config->logits_bytes = config->memory_limit_bytes ? ZR_LOGITS_BYTES_MIN : ZR_LOGITS_BYTES_MAX;
}

/* Defaults of a plan without data: GPT-2's vocabulary and context, since --params plans a model for text
 * in tokens. If the ranks run elsewhere, the number of threads does not depend on this machine. */
static void resolve_plan(struct zr_train_config *config)
{
    enum { GPT2_VOCABULARY = 50257, GPT2_SEQUENCE = 1024, PLANNED_THREADS = 1 };
    bool of_text = config->dry_run && config->parameters > 0 && !config->data[0];
    config->plans_vocabulary = of_text && !zr_flag_given(config, "vocab");
    config->plans_sequence = of_text && !zr_flag_given(config, "seq");
    config->plans_threads = config->dry_run && config->world_size && config->threads == 0;
    if (config->plans_vocabulary) {
        config->shape.vocabulary = GPT2_VOCABULARY;
        config->bytes = false;
    }
    if (config->plans_sequence)
        config->shape.sequence = GPT2_SEQUENCE;
    if (config->plans_threads)
        config->threads = PLANNED_THREADS;
}

/* A tenth of the steps, 20 to 100. With fewer than 20 steps the loss jumps in the first steps; more than 100
 * have no benefit. */
static uint64_t default_warmup(uint64_t steps)
{
    uint64_t max_steps = steps / 2 < 100 ? steps / 2 : 100, tenth = steps / 10 > 20 ? steps / 10 : 20;
    return tenth < max_steps ? tenth : max_steps;
}

/* Sets the steps of --epochs from the data and the rows of a step. Returns -1, or an exit code. */
static int count_epoch_steps(struct zr_train_config *config)
{
    struct zr_data data;
    struct zr_data_options options = zr_rank_data_options(config);
    if (!config->passes || options.data_ranks == 0 || zr_exclusions_check_epochs(config) != ZR_OK)
        return -1; /* zr_args_together() refuses the ranks and the options */
    zr_result result = zr_data_open(&data, &options);
    if (result != ZR_OK) {
        zr_say("%s", zr_last_error());
        return (int)zr_exit_of(result);
    }
    if (data.sources[0].slots)
        result =
            zr_fail(ZR_ERR_INVALID, "--epochs requires --data without weights, with which each source has "
                                    "epochs of its own; give --steps");
    config->steps = zr_data_steps_of(&data, config->passes);
    zr_data_close(&data);
    if (result != ZR_OK)
        zr_say("%s", zr_last_error());
    return result == ZR_OK ? -1 : (int)zr_exit_of(result);
}

/* Commands that do not train need no gradients, no optimizer state except that of --ema or --outer, and no
 * activations for backward. */
static void resolve_reading(struct zr_train_config *config)
{
    if (config->command == ZR_COMMAND_TRAIN)
        return;
    config->trainable.none = zr_train_keeps(config) == ZR_KEEPS_NOTHING;
    config->shape.recompute = ZR_RECOMPUTE_FULL;
    config->shape.recompute_layers = 0;
}

/* Resolves the settings that the command line leaves open. */
static void resolve(struct zr_train_config *config)
{
    struct zr_shape *shape = &config->shape;

    shape->vocabulary_padded = (shape->vocabulary + 63) / 64 * 64;
    if (config->parameters > 0)
        zr_shape_choose(shape, config->parameters);
    zr_shape_complete(shape);
    shape->trainable = &config->trainable;
    config->trainable.layers = shape->layers;
    if (config->trainable.lora.rank > 0 && config->trainable.lora.alpha == 0)
        config->trainable.lora.alpha = 2 * (float)config->trainable.lora.rank;
    if (zr_flag_given(config, "dropout"))
        shape->embedding_dropout = shape->residual_dropout;
    shape->fp8 = config->precision == ZR_TRAIN_FP8;
    if (config->min_rate < 0)
        config->min_rate = config->rate / 10;
    if (config->outer.mix < 0)
        config->outer.mix = config->outer.delay > 0 ? 0.5f : 0;
    if (config->warmup == UINT64_MAX)
        config->warmup = default_warmup(config->steps);
    if (config->threads == 0) {
        struct zr_machine machine;
        zr_os_machine(&machine);
        config->threads = machine.cores_count / config->ranks_here;
    }
    if (config->threads == 0)
        config->threads = 1;
    config->checkpoints.no_ring = config->growing_buffers;
    if (config->growing_buffers)
        config->bucket_bytes = SIZE_MAX / 8; /* larger than any unit */
    if (config->stages.ranks > 1)
        zr_stages_cut_equally(&config->stages, shape->layers);
    resolve_speculation(config);
    resolve_logits(config);
    resolve_loss_scaling(config);
    resolve_reading(config);
    zr_compress_take_hosts(config);
}

/* Refuses options of other commands than this one. Returns -1, or an exit code. */
static int check_command(const struct zr_train_config *config)
{
    enum {
        SAMPLES = 1 << ZR_COMMAND_SAMPLE,
        EVALUATES = 1 << ZR_COMMAND_EVAL,
        TRAINS = 1 << ZR_COMMAND_TRAIN
    };
    static const struct {
        const char *option;
        unsigned without; /* the commands that lack it */
    } rows[] = {{"data", SAMPLES},
                {"steps", SAMPLES | EVALUATES},
                {"epochs", SAMPLES | EVALUATES},
                {"save", SAMPLES | EVALUATES},
                {"export", SAMPLES | EVALUATES},
                {"log", SAMPLES | EVALUATES},
                {"status", SAMPLES | EVALUATES},
                {"tensorboard", SAMPLES | EVALUATES},
                {"prove", SAMPLES | EVALUATES},
                {"dry-run", SAMPLES | EVALUATES},
                {"find-max", SAMPLES | EVALUATES},
                {"global-batch", SAMPLES | EVALUATES},
                {"resize", SAMPLES | EVALUATES},
                {"elastic", SAMPLES | EVALUATES},
                {"json", SAMPLES},
                {"sample", EVALUATES},
                {"prompt", EVALUATES},
                {"prompts", EVALUATES | TRAINS},
                {"stride", SAMPLES | TRAINS}};
    static const char *const names[] = {"a run of zr-train", "zr-train sample", "zr-train eval"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].without & 1u << config->command && zr_flag_given(config, rows[i].option)) {
            zr_say("%s does not take --%s; leave it out", names[config->command], rows[i].option);
            return ZR_EXIT_USAGE;
        }
    if (config->command == ZR_COMMAND_EVAL && !config->data[0]) {
        zr_say("zr-train eval requires files: zr-train eval --model DIR FILE..");
        return ZR_EXIT_USAGE;
    }
    if (config->command == ZR_COMMAND_EVAL && strstr(config->data, ":weight=")) {
        zr_say("zr-train eval counts each token once; leave :weight=F out");
        return ZR_EXIT_USAGE;
    }
    if (config->command != ZR_COMMAND_TRAIN && !config->model[0] && !config->resume[0]) {
        zr_say("%s requires --model DIR, or --resume DIR with the options of that run",
               names[config->command]);
        return ZR_EXIT_USAGE;
    }
    return -1;
}

/* zr-train sample: one sequence. Neither it nor zr-train eval validates on other text. */
static int resolve_command(struct zr_train_config *config)
{
    int code = check_command(config);
    if (config->command != ZR_COMMAND_TRAIN)
        config->eval_every = 0;
    if (config->command == ZR_COMMAND_SAMPLE) {
        config->shape.batch = 1;
        config->sample = config->sample ? config->sample : 200;
    }
    if (config->stride == 0)
        config->stride = config->shape.sequence;
    return code;
}

static void start(struct zr_train_config *out, int argc, char **argv)
{
    memset(out, 0, sizeof *out);
    out->program = argc > 0 && argv[0][0] ? argv[0] : "zr-train";
    out->min_rate = -1;
    out->outer.mix = -1;
    out->warmup = UINT64_MAX;
    store_defaults(out);
}

/* Prints the problems of the file of --config. */
static void say_problems(const char *path, const struct zr_config_rest *rest)
{
    if (rest->problems_count < 2) {
        zr_say("%s", zr_last_error());
        return;
    }
    zr_say("--config '%.200s': %u problems:", path, rest->problems_count);
    zr_show(STDERR_FILENO, rest->problems, strlen(rest->problems));
}

/* Reads the file. Its settings replace the defaults; the command line is then parsed again and overrides
 * them. */
static int read_config_file(struct zr_train_config *out, struct zr_config_rest *rest, int argc, char **argv)
{
    char path[ZR_TRAIN_PATH_ROOM];
    zr_result result;

    memcpy(path, out->config_file, sizeof path);
    start(out, argc, argv);
    result = zr_config_read(path, out, rest);
    if (result != ZR_OK) {
        say_problems(path, rest);
        return (int)zr_exit_of(result);
    }
    return read_arguments(out, argc, argv);
}

int zr_args_parse(struct zr_train_config *out, int argc, char **argv)
{
    struct zr_config_rest rest = {.least_ratio = -1, .start_ratio = -1};
    int code;

    start(out, argc, argv);
    code = read_arguments(out, argc, argv);
    if (code < 0 && out->config_file[0])
        code = read_config_file(out, &rest, argc, argv);
    if (code >= 0)
        return code;
    out->finds_max = zr_flag_given(out, "find-max");
    out->dry_run |= out->finds_max;
    code = count_ranks(out);
    if (code >= 0)
        return code;
    if (zr_flag_given(out, "find-max") && out->find_max == ZR_LIMIT_BATCH &&
        (rest.train_batch || rest.has_batch)) {
        zr_say("--find-max batch searches for the batch; remove %s from the file of --config",
               rest.train_batch ? "train_batch_size" : "train_micro_batch_size_per_gpu");
        return ZR_EXIT_USAGE;
    }
    if (out->config_file[0])
        zr_config_assume(&rest, out);
    zr_optimizer_resolve(out);
    if (zr_config_resolve(&rest, out) != ZR_OK) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    code = apply_zero_r(out);
    if (code >= 0)
        return code;
    code = zr_train_read_model(out);
    if (code >= 0)
        return code;
    resolve_plan(out);
    code = resolve_command(out);
    if (code >= 0)
        return code;
    if (out->command == ZR_COMMAND_TRAIN && zr_train_resolve_rows(out) != ZR_OK) {
        zr_say("%s", zr_last_error());
        return ZR_EXIT_USAGE;
    }
    code = count_epoch_steps(out);
    if (code >= 0)
        return code;
    const char *message = zr_servers_resolve(out);
    if (message) {
        zr_say("%s", message);
        return ZR_EXIT_USAGE;
    }
    resolve(out);
    code = zr_args_together(out);
    if (code < 0)
        code = zr_args_check_bucket(out);
    if (code < 0 && out->config_file[0] && zr_train_leads(out))
        zr_config_say(&rest, out);
    return code;
}
