/* replay.c: `zr replay`: runs sequences under several policies, and prints a table or JSON. Uses zr_defrag.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"
#include "defrag/replay/unplanned.h"
#include "defrag/tool/input.h"

static const char help[] =
    "Runs recorded sequences of allocations under several allocators, on simulated memory.\n"
    "\n"
    "Examples\n"
    "  zr replay snapshot.pickle\n"
    "  zr replay run.zrt --policy zr,caching --capacity 24GB\n"
    "  zr replay lifetimes.csv --unit 65536 --repeat 5 --json\n"
    "  zr replay run.zrt --repeat 8 --unplanned 1\n"
    "\n"
    "zr replay FILE.. [options]\n"
    "  FILE                 a .zrt trace, a PyTorch snapshot, an RMM log, a CSV of events or of lifetimes; - is standard input\n"
    "  --policy LIST        any of zr (zr's arena), caching (PyTorch's allocator), expandable (PyTorch's with expandable\n"
    "                       segments), bestfit (one growing range); default: all\n"
    "  --capacity BYTES     of the simulated device (default: unlimited). A policy that runs out of memory stops; the table\n"
    "                       and failed_at in the JSON show the event, and the exit code is 1\n"
    "  --granule BYTES      unit of physical memory (default 2MiB)\n"
    "  --unit BYTES         one unit of the sizes in a MiniMalloc CSV (default 1)\n"
    "  --device N           of a snapshot of several devices (default: the one with the most events)\n"
    "  --repeat N           runs the sequence N times, and frees all live blocks between repeats (default 1)\n"
    "  --unplanned PERCENT  adds one allocation after this share of the allocations: size and tag of a random allocation\n"
    "                       of the trace, lifetime (in events) of another; each repeat draws others\n"
    "  --no-wait            does not wait for the learner's thread between repeats: shows what a program as fast as a replay\n"
    "                       would get; the result depends on the machine\n"
    "  --seed N             of the random choices of --unplanned (default 1); every policy gets the same requests\n"
    "  --json               JSON instead of a table\n"
    "\n"
    "The lower bound is the largest sum of requested live bytes; a ratio is the peak of reserved bytes over the bound.\n"
    "The columns under \"last\" are for the last repeat: its times are a median and a mean, beside the mean of all repeats.\n"
    "A replay runs a step in milliseconds, so each repeat waits until zr's learner thread has finished, as if a step took\n"
    "its real time: \"waited\" is the total wait. If the repeats differ, the bound is that of the whole run, and the last\n"
    "repeat's ratio uses the bound of that repeat. caching and expandable apply a snapshot's\n"
    "allocator_settings; garbage_collection_threshold is caching's, and of --capacity.\n";

enum { SETTINGS_ROOM = 400 };

struct settings {
    struct zr_read_options read;
    struct zr_replay_options replay;
    uint64_t unplanned_percent, seed;
    bool policies[ZR_POLICY_COUNT];
    bool json;
};

struct result {
    const char *file;
    enum zr_policy policy;
    struct zr_replay_report report;
    const struct settings *settings;
    struct zr_torch_settings torch; /* of the file's allocator */
};

/* ---- Arguments ----------------------------------------------------------------------------------------- */

/* Marks the policies of a comma-separated list. */
static bool choose_policies(const char *list, bool chosen[ZR_POLICY_COUNT])
{
    memset(chosen, 0, ZR_POLICY_COUNT * sizeof *chosen);
    for (;;) {
        size_t length = strcspn(list, ",");
        bool found = false;
        for (unsigned i = 0; i < ZR_POLICY_COUNT; i++) {
            const char *name = zr_policy_name((enum zr_policy)i);
            if (strlen(name) == length && memcmp(name, list, length) == 0)
                found = chosen[i] = true;
        }
        if (!found) {
            zr_tool_log("replay: --policy has no '%.*s'; choose from zr, caching, expandable, bestfit",
                        length < 40 ? (int)length : 40, list);
            return false;
        }
        if (list[length] == '\0')
            return true;
        list += length + 1;
    }
}

static int parse(struct settings *settings, struct zr_tool_arguments *arguments, int argc, char **argv)
{
    const char *policies = "zr,caching,expandable,bestfit";
    char granule[ZR_SIZE_EXACT_ROOM];
    uint64_t granule_bytes = 0, capacity_bytes = UINT64_MAX, repeat = 1, device = UINT64_MAX;
    const struct zr_tool_option options[] = {
        {"--policy", ZR_TOOL_TEXT, &policies},
        {"--capacity", ZR_TOOL_BYTES, &capacity_bytes},
        {"--granule", ZR_TOOL_BYTES, &granule_bytes},
        {"--unit", ZR_TOOL_BYTES, &settings->read.unit_bytes},
        {"--device", ZR_TOOL_COUNT, &device},
        {"--repeat", ZR_TOOL_COUNT, &repeat},
        {"--unplanned", ZR_TOOL_COUNT, &settings->unplanned_percent},
        {"--no-wait", ZR_TOOL_FLAG, &settings->replay.no_wait},
        {"--seed", ZR_TOOL_COUNT, &settings->seed},
        {"--json", ZR_TOOL_FLAG, &settings->json},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    arguments->help = help;
    arguments->takes_files = true;
    arguments->options = options;
    int code = zr_tool_parse(arguments, argc, argv);
    if (code >= 0)
        return code;
    if (!choose_policies(policies, settings->policies))
        return ZR_TOOL_USAGE;
    if (granule_bytes & (granule_bytes - 1) || granule_bytes > UINT64_C(1) << 30 ||
        (granule_bytes > 0 && granule_bytes < 4096)) {
        zr_tool_log("replay: --granule %s is not a power of two from 4KiB to 1GiB",
                    zr_size_print_exact(granule, granule_bytes));
        return ZR_TOOL_USAGE;
    }
    if (capacity_bytes == 0) {
        zr_tool_log("replay: --capacity must be above 0; without --capacity the device is unlimited");
        return ZR_TOOL_USAGE;
    }
    if (repeat == 0 || repeat > 1000000) {
        zr_tool_log("replay: --repeat takes 1 to 1000000");
        return ZR_TOOL_USAGE;
    }
    if (settings->unplanned_percent > 100) {
        zr_tool_log("replay: --unplanned takes 0 to 100 per cent");
        return ZR_TOOL_USAGE;
    }
    settings->replay.capacity_bytes = capacity_bytes == UINT64_MAX ? 0 : capacity_bytes;
    settings->replay.granule_bytes = granule_bytes;
    settings->replay.repeat = (unsigned)repeat;
    settings->read.device = zr_tool_device(device);
    return -1;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static zr_result replay_file(const void *state, const char *path, struct zr_vector *results)
{
    const struct settings *settings = state;
    struct zr_read_options read = settings->read;
    struct zr_replay_options replay = settings->replay;
    struct zr_sequence sequence;
    struct zr_torch_settings settings_of_file = {0};
    struct zr_tool_source source;
    zr_result result = zr_tool_source_open(&source, path);
    read.path = source.path;
    sequence = (struct zr_sequence){0};
    if (result == ZR_OK)
        result = zr_sequence_read_settings(&sequence, &read, results->arena, &settings_of_file);
    if (result == ZR_OK && sequence.cut_short)
        zr_tool_log("'%s' is truncated: the replay has its first %zu events", path, sequence.events_count);
    zr_torch_settings_apply(&settings_of_file, &replay);
    for (unsigned i = 0; i < ZR_POLICY_COUNT && result == ZR_OK; i++) {
        struct result one = {
            .file = path, .policy = (enum zr_policy)i, .settings = settings, .torch = settings_of_file};
        if (!settings->policies[i])
            continue;
        char words[160];
        snprintf(words, sizeof words, "replaying %.100s under %s", path, zr_policy_name(one.policy));
        zr_tool_progress_say(words);
        replay.policy = one.policy;
        result = zr_replay_unplanned(&sequence, &replay, (unsigned)settings->unplanned_percent,
                                     settings->seed, &one.report);
        if (result == ZR_OK)
            result = zr_vector_add(results, &one);
    }
    zr_tool_progress_say(NULL);
    zr_sequence_end(&sequence);
    zr_tool_source_close(&source);
    return result;
}

/* ---- Showing ------------------------------------------------------------------------------------------- */

/* ",roundup_power2_divisions:" with one number, or a list if sizes differ; nothing if nothing is divided. */
static int divisions_words(char out[SETTINGS_ROOM], const uint32_t divisions[ZR_TORCH_DIVISIONS])
{
    unsigned last = ZR_TORCH_DIVISIONS - 1;
    for (; last > 0 && divisions[last] == divisions[last - 1]; last--)
        ;
    if (last == 0 && divisions[0] <= 1)
        return 0;
    int at = snprintf(out, SETTINGS_ROOM, ",roundup_power2_divisions:%s", last > 0 ? "[" : "");
    for (unsigned i = 0; i < last; i++)
        at += snprintf(out + at, SETTINGS_ROOM - (size_t)at, "%u:%u,", 1u << i, divisions[i]);
    return at + snprintf(out + at, SETTINGS_ROOM - (size_t)at, last > 0 ? ">:%u]" : "%u", divisions[last]);
}

/* The settings of the file that the models of PyTorch's allocator apply, as in PYTORCH_CUDA_ALLOC_CONF; "":
 * none. */
static const char *settings_words(char out[SETTINGS_ROOM], const struct zr_torch_settings *torch)
{
    int at = divisions_words(out, torch->divisions);
    out[at] = '\0';
    if (torch->max_split_bytes > 0)
        at += snprintf(out + at, SETTINGS_ROOM - (size_t)at, ",max_split_size_mb:%" PRIu64,
                       torch->max_split_bytes >> 20);
    if (torch->garbage_collection_threshold > 0)
        at += snprintf(out + at, SETTINGS_ROOM - (size_t)at, ",garbage_collection_threshold:%g",
                       torch->garbage_collection_threshold);
    return at > 0 ? out + 1 : out;
}

static double ratio(uint64_t bytes, uint64_t lower_bound_bytes)
{
    return lower_bound_bytes ? (double)bytes / (double)lower_bound_bytes : 0;
}

static void print_json(struct zr_text *text, const void *result)
{
    const struct result *one = result;
    const struct zr_replay_report *report = &one->report;
    char words[SETTINGS_ROOM];
    zr_tool_json_words(text, "file", one->file);
    zr_text_print(text, ", \"policy\": \"%s\", \"lower_bound_bytes\": %" PRIu64, zr_policy_name(one->policy),
                  report->lower_bound_bytes);
    zr_text_print(text, ", \"peak_reserved_bytes\": %" PRIu64 ", \"ratio\": %.9g",
                  report->peak_reserved_bytes, ratio(report->peak_reserved_bytes, report->lower_bound_bytes));
    zr_text_print(text, ", \"ratio_last_repeat\": %.9g",
                  ratio(report->peak_reserved_last_repeat_bytes, report->lower_bound_last_repeat_bytes));
    zr_text_print(text, ", \"driver_calls\": %" PRIu64 ", \"driver_calls_last_repeat\": %" PRIu64,
                  report->driver_calls, report->driver_calls_last_repeat);
    zr_text_print(text, ", \"ns_per_operation\": %.6g, \"ns_per_operation_mean\": %.6g",
                  report->ns_per_operation, report->ns_per_operation_mean);
    zr_text_print(text, ", \"ns_per_operation_all\": %.6g, \"waited_seconds\": %.6g, \"failed_at\": ",
                  report->ns_per_operation_all, (double)report->waited_ns / 1e9);
    if (report->failed_at == UINT64_MAX)
        zr_text_print(text, "null");
    else
        zr_text_print(text, "%" PRIu64, report->failed_at);
    if (one->torch.private_bytes)
        zr_text_print(text, ", \"private_bytes\": %" PRIu64, one->torch.private_bytes);
    if (one->settings->unplanned_percent > 0)
        zr_text_print(text, ", \"unplanned_percent\": %" PRIu64 ", \"seed\": %" PRIu64,
                      one->settings->unplanned_percent, one->settings->seed);
    if ((one->policy == ZR_POLICY_CACHING || one->policy == ZR_POLICY_EXPANDABLE) &&
        *settings_words(words, &one->torch))
        zr_text_print(text, ", \"allocator_settings\": \"%s\"", settings_words(words, &one->torch));
}

static void print_row(struct zr_text *text, const struct result *one)
{
    const struct zr_replay_report *report = &one->report;
    char peak[ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "  %-11s %12s", zr_policy_name(one->policy),
                  zr_tool_bytes(peak, report->peak_reserved_bytes));
    if (report->failed_at != UINT64_MAX) {
        zr_text_print(text, "  out of memory at event %" PRIu64 "\n", report->failed_at);
        return;
    }
    zr_text_print(text, "  %8.4f %8.4f %9" PRIu64 " %9" PRIu64 " %8.1f %8.1f %8.1f %8.2f s\n",
                  ratio(report->peak_reserved_bytes, report->lower_bound_bytes),
                  ratio(report->peak_reserved_last_repeat_bytes, report->lower_bound_last_repeat_bytes),
                  report->driver_calls, report->driver_calls_last_repeat, report->ns_per_operation,
                  report->ns_per_operation_mean, report->ns_per_operation_all,
                  (double)report->waited_ns / 1e9);
}

static void print_table(struct zr_text *text, const struct zr_vector *results)
{
    char lower[ZR_TOOL_NUMBER_ROOM], room[SETTINGS_ROOM];
    const char *file = NULL;
    for (size_t i = 0; i < results->count; i++) {
        const struct result *one = zr_vector_at(results, i);
        const struct zr_replay_report *report = &one->report;
        if (one->file != file) {
            zr_text_print(text, "%s", file ? "\n" : "");
            zr_text_put_plain(text, one->file);
            zr_text_print(text, "\n  lower bound %s\n", zr_tool_bytes(lower, report->lower_bound_bytes));
            if (one->settings->unplanned_percent > 0)
                zr_text_print(text, "  %" PRIu64 " %% of unplanned allocations; seed %" PRIu64 "\n",
                              one->settings->unplanned_percent, one->settings->seed);
            const char *words = settings_words(room, &one->torch);
            if (words[0])
                zr_text_print(text, "  caching and expandable apply the file's %s\n", words);
            if (one->torch.private_bytes)
                zr_text_print(text,
                              "  no policy has private pools (CUDA graphs, MemPool): %s of the file are in "
                              "some, and their blocks share memory with others here\n",
                              zr_tool_bytes(lower, one->torch.private_bytes));
            zr_text_print(text, "  %-11s %12s  %17s %19s %26s\n", "", "", "over lower bound", "driver calls",
                          "ns per operation");
            zr_text_print(text, "  %-11s %12s  %8s %8s %9s %9s %8s %8s %8s %8s\n", "policy", "peak", "all",
                          "last", "all", "last", "median", "mean", "all", "waited");
        }
        file = one->file;
        print_row(text, one);
    }
}

/* Exit code: a capacity that was too small for any policy counts as a failed threshold. */
static int threshold_of(const struct zr_vector *results)
{
    for (size_t i = 0; i < results->count; i++)
        if (((const struct result *)zr_vector_at(results, i))->report.failed_at != UINT64_MAX)
            return ZR_TOOL_THRESHOLD;
    return ZR_TOOL_FINE;
}

int zr_tool_replay(int argc, char **argv)
{
    struct settings settings = {.seed = 1};
    struct zr_tool_arguments arguments = {0};
    int code = parse(&settings, &arguments, argc, argv);
    if (code >= 0)
        return code;
    const struct zr_tool_job job = {.settings = &settings,
                                    .result_bytes = sizeof(struct result),
                                    .read = replay_file,
                                    .table = print_table,
                                    .json = print_json,
                                    .verdict = threshold_of};
    return zr_tool_run(&job, &arguments, settings.json);
}
