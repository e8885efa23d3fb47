/* main.c: the program `zr`: finds the subcommand and calls it. The exit codes are enum zr_tool_exit of
 * tool.h. */
#include <signal.h>
#include <string.h>

#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "alloc/base/sizes.h"
#include "defrag/tool/tool.h"

static const char help[] =
    "Explains and replays memory: traces of zr, PyTorch snapshots, RMM logs, lifetimes as CSV.\n"
    "\n"
    "Examples\n"
    "  zr stats snapshot.pickle                         what is live, reserved and stranded\n"
    "  zr replay snapshot.pickle                        how much each allocator would have reserved\n"
    "  zr replay run.zrt --policy zr --capacity 80GB    whether the trace fits\n"
    "  zr pack lifetimes.csv -o placed.csv              the best fixed placement\n"
    "  zr run --stats -- python3 train.py               a program with zr's malloc, and five lines about its memory\n"
    "  zr doctor -- python3 train.py                    whether zr run works for a program, and the command to type\n"
    "\n"
    "zr SUBCOMMAND [options]\n"
    "\n"
    "Subcommands\n"
    "  stats     shows live, reserved and stranded memory over time\n"
    "  why       explains why an allocation failed, and what would help\n"
    "  map       draws the blocks and free extents of memory by address\n"
    "  diff      compares two files, with conditions for CI\n"
    "  export    writes a trace in another program's format\n"
    "  import    makes a .zrt trace of another program's file\n"
    "  report    writes one HTML page: memory over time, every block, the largest holders\n"
    "  replay    runs a recorded sequence under several allocators\n"
    "  pack      places buffers of known lifetimes at fixed offsets\n"
    "  run       runs a program with zr's malloc\n"
    "  rehearse  runs a CUDA program without a GPU: how much memory it needs, and whether it fits\n"
    "  doctor    checks whether programs can run on zr's malloc here\n"
    "  ps        lists the running processes whose memory zr manages\n"
    "  ledger    accounts for all memory of a process, row by row\n"
    "  top       shows processes in the terminal: memory by tag, by address, the largest holders\n"
    "  serve     serves the figures of all processes to Prometheus\n"
    "  snapshot  writes the current blocks of a process to a file\n"
    "  attach    records the allocations and frees of a process\n"
    "  record    starts, marks and ends a recording with three commands\n"
    "  service   controls zrd, which shares one machine's memory among several programs\n"
    "\n"
    "Each subcommand has --help. An installed zr has manual pages: man zr-stats. zr completion bash prints a completion script.\n"
    "zr --version, or -V, prints the version.\n"
    "\n" ZR_SIZE_HELP "Exit codes: 0 success, 1 a threshold failed, 2 usage, 3 bad input, 4 out of memory.\n";

static const struct zr_tool_subcommand subcommands[] = {
    /* One entry a line: Makefile reads the names. */
    /* clang-format off */
    {"replay", zr_tool_replay},
    {"pack", zr_tool_pack},
    {"run", zr_tool_preload},
    {"rehearse", zr_tool_rehearse},
    {"doctor", zr_tool_doctor},
    {"stats", zr_tool_stats},
    {"map", zr_tool_map},
    {"why", zr_tool_why},
    {"diff", zr_tool_diff},
    {"export", zr_tool_export},
    {"import", zr_tool_import},
    {"ps", zr_tool_ps},
    {"ledger", zr_tool_ledger},
    {"snapshot", zr_tool_snapshot},
    {"attach", zr_tool_attach},
    {"record", zr_tool_record},
    {"report", zr_tool_report},
    {"top", zr_tool_top},
    {"serve", zr_tool_serve},
    {"service", zr_tool_service},
    {NULL, NULL},
    /* clang-format on */
};

bool zr_tool_has(const char *name)
{
    for (size_t i = 0; subcommands[i].name; i++)
        if (strcmp(name, subcommands[i].name) == 0)
            return true;
    return false;
}

static int unknown(const char *name)
{
    const char *nearest = NULL;
    unsigned min = 3;
    for (size_t i = 0; subcommands[i].name; i++)
        if (zr_tool_distance(name, subcommands[i].name) < min) {
            nearest = subcommands[i].name;
            min = zr_tool_distance(name, nearest);
        }
    if (nearest)
        zr_tool_log("there is no subcommand %s; did you mean zr %s? See zr --help", name, nearest);
    else
        zr_tool_log("there is no subcommand %s; see zr --help", name);
    return ZR_TOOL_USAGE;
}

/* Checks ZR_CONF and ZR_FAULT before anything else. Returns an exit code, or less than 0 to continue. */
static int check_options(void)
{
    char text[4096];
    if (zr_option_help_wanted()) {
        struct zr_tool_output out;
        size_t bytes = zr_option_help(text, sizeof text);
        zr_tool_output_start(&out);
        zr_text_put(&out.text, text, bytes < sizeof text ? bytes : sizeof text - 1);
        return zr_tool_output_end(&out);
    }
    return zr_option_result() == ZR_OK && zr_fault_result() == ZR_OK ? -1 : zr_tool_fail(ZR_ERR_INVALID);
}

static int print(const char *text)
{
    struct zr_tool_output out;
    zr_tool_output_start(&out);
    zr_text_put(&out.text, text, strlen(text));
    return zr_tool_output_end(&out);
}

static int run(int argc, char **argv)
{
    for (size_t i = 0; subcommands[i].name; i++)
        if (strcmp(argv[0], subcommands[i].name) == 0)
            return subcommands[i].run(argc, argv);
    return unknown(argv[0]);
}

int main(int argc, char **argv)
{
    int code = check_options();
    if (code >= 0)
        return code;
    if (argc < 2) {
        zr_tool_log("a subcommand is missing; see zr --help");
        return ZR_TOOL_USAGE;
    }
    if (strcmp(argv[1], "run") != 0)              /* zr run: stdin, stdout and stderr belong to the program */
        signal(SIGPIPE, SIG_DFL);                 /* a closed reader of stdout ends zr without a message */
    if (strcmp(argv[1], "help") == 0 && argc > 2) /* zr help NAME means zr NAME --help */
        return run(2, (char *[]){argv[2], "--help", NULL});
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return print(help);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0)
        return print("zr " ZR_VERSION_STRING "\n");
    if (strcmp(argv[1], "manual") == 0)
        return zr_tool_manual(argc - 1, argv + 1, subcommands, help);
    if (strcmp(argv[1], "completion") == 0)
        return zr_tool_completion(argc - 1, argv + 1, subcommands);
    return run(argc - 1, argv + 1);
}
