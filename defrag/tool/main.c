/* main.c: zr, the fragmentation tools. Finds the subcommand and hands over. */
#include <signal.h>
#include <stdio.h>
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
    "  zr replay run.zrt --policy zr --capacity 80GB    would it fit\n"
    "  zr pack lifetimes.csv -o placed.csv              the best fixed placement\n"
    "  zr run --stats -- python3 train.py               a program with zr's malloc, and five lines about it\n"
    "  zr doctor -- python3 train.py                    whether it can run so, and what to type\n"
    "\n"
    "zr SUBCOMMAND [options]\n"
    "\n"
    "Subcommands\n"
    "  stats     what was live, reserved, stranded, when\n"
    "  why       why an allocation found no room, and what would help\n"
    "  map       what lies where\n"
    "  diff      two files side by side, with conditions for CI\n"
    "  export    in other programs' formats\n"
    "  import    other programs' files as a .zrt trace\n"
    "  report    one HTML page: memory over time, every block, the holders\n"
    "  replay    runs a recorded sequence under several allocators\n"
    "  pack      places lifetimes at fixed offsets\n"
    "  run       runs a program with zr's malloc\n"
    "  doctor    says whether programs can run on zr's malloc here\n"
    "  ps        the running processes whose memory zr manages\n"
    "  ledger    where all of such a process's memory is, row by row\n"
    "  top       shows them in the terminal: by tag, what lies where, the largest holders\n"
    "  serve     the same figures for Prometheus\n"
    "  snapshot  writes what one of them holds now\n"
    "  attach    records what one of them allocates and frees\n"
    "  record    the same, started, marked and ended by three commands\n"
    "  service   one owner of the machine's memory for several programs: zrd\n"
    "\n"
    "Each has --help, and where zr is installed a page: man zr-stats. zr completion bash prints a script for the shell.\n"
    "zr --version, or -V, prints the version.\n"
    "\n" ZR_SIZE_HELP "Exit codes: 0 fine, 1 a threshold failed, 2 usage, 3 bad input, 4 out of memory.\n";

static const struct zr_tool_subcommand subcommands[] = {
    /* clang-format off: one a line */
    {"replay", zr_tool_replay},
    {"pack", zr_tool_pack},
    {"run", zr_tool_preload},
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
    unsigned least = 3;
    for (size_t i = 0; subcommands[i].name; i++)
        if (zr_tool_distance(name, subcommands[i].name) < least) {
            nearest = subcommands[i].name;
            least = zr_tool_distance(name, nearest);
        }
    if (nearest)
        zr_tool_log("%s is no subcommand; did you mean zr %s? See zr --help", name, nearest);
    else
        zr_tool_log("%s is no subcommand; see zr --help", name);
    return ZR_TOOL_USAGE;
}

/* ZR_CONF and ZR_FAULT are read before everything else. Below 0: go on. */
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
    if (strcmp(argv[1], "run") != 0)              /* whose program has what its starter wants */
        signal(SIGPIPE, SIG_DFL);                 /* a reader that goes ends this one without words */
    if (strcmp(argv[1], "help") == 0 && argc > 2) /* zr help NAME is zr NAME --help */
        return run(2, (char *[]){argv[2], "--help", NULL});
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return print(help);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0) {
        char version[40];
        snprintf(version, sizeof version, "zr %d.%d\n", ZR_VERSION_MAJOR, ZR_VERSION_MINOR);
        return print(version);
    }
    if (strcmp(argv[1], "manual") == 0)
        return zr_tool_manual(argc - 1, argv + 1, subcommands, help);
    if (strcmp(argv[1], "completion") == 0)
        return zr_tool_completion(argc - 1, argv + 1, subcommands);
    return run(argc - 1, argv + 1);
}
