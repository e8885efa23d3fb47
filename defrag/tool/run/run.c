/* run.c: `zr run`: a program with zr's malloc and CUDA memory in the place of its own, and not a line of it
 * changed. Stands on program.c, on run_watch.c and run_report.c for the figures, and on doctor.c for
 * --strict. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/option.h"
#include "alloc/base/sizes.h"
#include "defrag/tool/run/doctor.h"
#include "defrag/tool/run/program.h"
#include "defrag/tool/run/run.h"
#include "defrag/tool/tool.h"

static const char help[] =
    "Runs a program with zr's malloc, and every program that it starts; nothing of them is changed.\n"
    "\n"
    "Examples\n"
    "  zr run -- python3 train.py\n"
    "  zr run --stats -- ./job                     five lines about its memory at the end\n"
    "  zr run --limit 8GiB -- ./server --port 80\n"
    "  zr run --trace blocks.zrt -- ./job && zr replay blocks.zrt\n"
    "\n"
    "zr run [options] -- PROGRAM ARGUMENT..\n"
    "  --malloc        preloads libzr_malloc.so alone\n"
    "  --cuda          preloads libzr_cuda.so alone; neither of the two: both\n"
    "  --limit BYTES   what the program may hold: a malloc beyond returns NULL. Blocks of 2 MiB are counted, touched\n"
    "                  or not; each process has a limit of its own, and so has each device in it. At least 16MiB; with\n"
    "                  --cuda 2MiB\n"
    "  --stats         at the end, on standard error: what was held at the peak, what of it was live, what a caching\n"
    "                  allocator would have held for the same blocks, a verdict, the next command\n"
    "  --json FILE     the same as JSON, with the figures of each process\n"
    "  --service       its memory comes from zrd, which is started where none runs: see zr service --help\n"
    "  --device N      with --service: a zrd of GPU N is started too, for what the program holds there\n"
    "  --wait          with --service: a run with a plan (zr-train) that zrd has no room for now waits until it has\n"
    "  --trace FILE    writes each block above 32 KiB to FILE (.zrt), as zr replay reads it; that of another process\n"
    "                  that the program starts to FILE.PID. Blocks of device 0 go to FILE.gpu, with --cuda to FILE; those\n"
    "                  of device 1 to a FILE with .gpu1\n"
    "  --stacks N      call stacks of one allocation in N in the traces and in the flight recorder's file, 1: of each; a\n"
    "                  stack takes some microseconds\n"
    "  --strict        ends with 2, and does not run the program, where it cannot be preloaded or zr doctor finds memory of\n"
    "                  it that is missed; libzr_cuda.so ends it where its CUDA driver has ways to memory that are not known\n"
    "\n"
    "The exit code is the program's; 127: there is no such program, 126: it cannot be run. LD_PRELOAD and ZR_CONF of the\n"
    "environment stay in force behind what zr adds. A program cannot be preloaded if it is static, set-user-ID, for\n"
    "another processor, or on a C library other than glibc; zr run says so, and zr doctor -- PROGRAM says more.\n"
    "ZR_CONF=verbose:true has each process say that it is served.\n"
    "\n"
    "A flight recorder keeps the last events of each arena, and writes them to TMPDIR, else /tmp, when an allocation fails: the\n"
    "words of the failure name the file, for zr why. ZR_CONF=recorder:0 turns it off.\n"
    "\n"
    "Without --stats and --json zr becomes the program. With them it stays beside it: signals that are sent to zr go on\n"
    "to the program, zr stops when the program stops, and dies of the signal that ended it. Each process counts in a file\n"
    "of the run, so a process that is killed has figures too, and writes its large blocks to a trace of at most 64 MiB\n"
    "there. The folder (TMPDIR, else /tmp) goes when the program has ended; that of a run that was killed, with the next.\n";

enum { NOT_FOUND = 127, NOT_RUN = 126 };

struct settings {
    bool malloc, cuda, strict, stats, service, wait;
    uint64_t limit_bytes, stacks;
    const char *trace, *json, *device, *malloc_library, *cuda_library;
    const struct zr_run_folder *folder; /* NULL: no figures are wanted */
};

/* ---- The environment ----------------------------------------------------------------------------------- */

/* Puts `first` before what the variable has. */
static bool put_before(const char *variable, const char *first, const char *separator)
{
    const char *old = getenv(variable);
    char value[16384];
    int length = snprintf(value, sizeof value, "%s%s%s", first, old && *old ? separator : "", old ? old : "");
    return length < (int)sizeof value && setenv(variable, value, 1) == 0;
}

/* Of two values the later one holds: what is asked for here. */
static bool add_to_conf(const char *item)
{
    const char *conf = getenv("ZR_CONF");
    char value[16384];
    int length = snprintf(value, sizeof value, "%s%s%s", conf ? conf : "", conf && *conf ? "," : "", item);
    return length < (int)sizeof value && setenv("ZR_CONF", value, 1) == 0;
}

static bool preload(const char *library)
{
    const char *old = getenv("LD_PRELOAD");
    return (old && strstr(old, library)) || put_before("LD_PRELOAD", library, ":");
}

/* Whoever has this number writes FILE itself: an exec keeps it. */
static bool set_trace(const char *variable, const char *file, const char *suffix)
{
    char trace[PATH_MAX + 64], folder[PATH_MAX];
    const char *slash = file[0] == '/' || !getcwd(folder, sizeof folder) ? "" : "/";
    int length = snprintf(trace, sizeof trace, "%ld:%s%s%s%s", (long)getpid(), *slash ? folder : "", slash,
                          file, suffix);
    return length < (int)sizeof trace && setenv(variable, trace, 1) == 0;
}

static bool add_number_to_conf(const char *option, uint64_t number)
{
    char item[40];
    snprintf(item, sizeof item, "%s:%" PRIu64, option, number);
    return add_to_conf(item);
}

/* In the process that becomes the program. */
static bool set_environment(void *argument)
{
    const struct settings *settings = argument;
    if ((settings->cuda && !preload(settings->cuda_library)) ||
        (settings->malloc && !preload(settings->malloc_library)))
        return false;
    if (settings->strict && setenv("ZR_STRICT", "1", 1) != 0)
        return false;
    if (settings->folder ? setenv("ZR_RECORD", settings->folder->path, 1) != 0 : unsetenv("ZR_RECORD") != 0)
        return false;
    /* The flight recorder is on, unless the user's own ZR_CONF behind it says otherwise. */
    if (!put_before("ZR_CONF", "recorder:1m", ","))
        return false;
    if ((settings->limit_bytes > 0 && !add_number_to_conf("limit", settings->limit_bytes)) ||
        (settings->stacks > 0 && !add_number_to_conf("stacks", settings->stacks)) ||
        (settings->service && !add_to_conf("service:on")) ||
        (settings->wait && !add_to_conf("service_wait:true")))
        return false;
    return !settings->trace ||
           ((!settings->malloc || set_trace("ZR_TRACE", settings->trace, "")) &&
            (!settings->cuda || set_trace("ZR_CUDA_TRACE", settings->trace, settings->malloc ? ".gpu" : "")));
}

/* ---- The command --------------------------------------------------------------------------------------- */

/* Whether --limit leaves room for a start; else says the least that does. */
static bool has_room(const struct settings *settings)
{
    char limit[ZR_SIZE_EXACT_ROOM], least[ZR_SIZE_EXACT_ROOM];
    uint64_t granule_bytes = zr_option_get(ZR_OPTION_GRANULE);
    uint64_t least_bytes = settings->malloc ? ZR_USAGE_LEAST_LIMIT_BYTES
                           : granule_bytes  ? granule_bytes
                                            : UINT64_C(2) << 20;
    if (settings->limit_bytes == 0 || settings->limit_bytes >= least_bytes)
        return true;
    zr_tool_log("run: --limit %s is too small: %s needs %s; give at least --limit %s",
                zr_size_print_exact(limit, settings->limit_bytes),
                settings->malloc ? "malloc's start" : "a device's first block",
                zr_size_print_exact(least, least_bytes), least);
    return false;
}

static int parse(struct settings *settings, struct zr_tool_arguments *arguments, int argc, char **argv)
{
    const struct zr_tool_option options[] = {
        {"--malloc", ZR_TOOL_FLAG, &settings->malloc},   {"--cuda", ZR_TOOL_FLAG, &settings->cuda},
        {"--strict", ZR_TOOL_FLAG, &settings->strict},   {"--limit", ZR_TOOL_BYTES, &settings->limit_bytes},
        {"--trace", ZR_TOOL_WORDS, &settings->trace},    {"--stats", ZR_TOOL_FLAG, &settings->stats},
        {"--json", ZR_TOOL_WORDS, &settings->json},      {"--stacks", ZR_TOOL_COUNT, &settings->stacks},
        {"--service", ZR_TOOL_FLAG, &settings->service}, {"--device", ZR_TOOL_WORDS, &settings->device},
        {"--wait", ZR_TOOL_FLAG, &settings->wait},       {NULL, ZR_TOOL_FLAG, NULL},
    };
    *arguments = (struct zr_tool_arguments){.help = help, .options = options, .stops_at_file = true};
    int code = zr_tool_parse(arguments, argc, argv);
    if (code >= 0)
        return code;
    if (arguments->files_count == 0) {
        zr_tool_log("run: name a program, as in zr run -- python3 train.py; see zr run --help");
        return ZR_TOOL_USAGE;
    }
    if ((settings->device || settings->wait) && !settings->service) {
        zr_tool_log("run: --device and --wait are of --service; give it too, or leave them out");
        return ZR_TOOL_USAGE;
    }
    if (!settings->malloc && !settings->cuda)
        settings->malloc = settings->cuda = true;
    return has_room(settings) ? -1 : ZR_TOOL_USAGE;
}

/* Whether all of its memory comes from zr, as far as can be seen; else what does not is said. */
static bool all_taken(const struct zr_program *program, const struct settings *settings)
{
    static struct zr_doctor doctor;
    bool taken = true;
    zr_doctor_look_at_program(&doctor, program, (struct zr_doctor_wanted){settings->malloc, settings->cuda});
    for (unsigned i = 0; i < doctor.count && i < ZR_DOCTOR_MOST; i++) {
        const struct zr_doctor_finding *finding = &doctor.findings[i];
        if (finding->verdict == ZR_DOCTOR_BAD)
            zr_tool_log("run: %s: %s", finding->name, finding->found);
        taken = taken && finding->verdict != ZR_DOCTOR_BAD;
    }
    return taken;
}

/* Becomes the program. Returns the exit code where that failed. */
static int become(const struct zr_program *program, char **command)
{
    execv(program->path, command);
    int error = errno;
    zr_tool_log("run: %s: %s", program->path, strerror(error));
    return error == ENOENT ? NOT_FOUND : NOT_RUN;
}

/* What the next command has to repeat, beside --limit. */
static void put_options(const struct settings *settings, char *out, size_t room_bytes)
{
    char stacks[40] = "";
    if (settings->stacks > 0)
        snprintf(stacks, sizeof stacks, " --stacks %" PRIu64, settings->stacks);
    snprintf(out, room_bytes, "%s%s%s%s%s%s%s%s", settings->malloc && !settings->cuda ? " --malloc" : "",
             settings->cuda && !settings->malloc ? " --cuda" : "", settings->strict ? " --strict" : "",
             settings->service ? " --service" : "", settings->device ? " --device " : "",
             settings->device ? settings->device : "", settings->wait ? " --wait" : "", stacks);
}

/* Runs it beside zr, and shows its figures. */
static int run_with_figures(struct settings *settings, const struct zr_program *program, char **command)
{
    static struct zr_run_folder folder;
    struct zr_run_end end;
    if (zr_run_folder_make(&folder) != ZR_OK)
        return zr_tool_fail(ZR_ERR_IO);
    char options[256];
    put_options(settings, options, sizeof options);
    settings->folder = &folder;
    const struct zr_run_start start = {.path = program->path,
                                       .command = command,
                                       .folder = &folder,
                                       .prepare = set_environment,
                                       .argument = settings};
    int code = zr_run_watch(&start, &end);
    bool shown = code >= 0 || zr_run_show(&(struct zr_run_report){.command = command,
                                                                  .trace = settings->trace,
                                                                  .json = settings->json,
                                                                  .stats = settings->stats,
                                                                  .malloc = settings->malloc,
                                                                  .options = options,
                                                                  .limit_bytes = settings->limit_bytes,
                                                                  .folder = &folder,
                                                                  .end = &end});
    zr_run_folder_remove(&folder);
    settings->folder = NULL;
    if (code >= 0)
        return code;
    code = zr_run_end_alike(end.status);
    return code == 0 && !shown ? ZR_TOOL_INPUT : code;
}

/* A sanitizer that the environment preloads wants malloc for itself, and to come first. NULL: none. */
static const char *preloaded_sanitizer(void)
{
    static const char *const names[] = {"libasan", "libtsan", "liblsan", "libhwasan", "libclang_rt"};
    const char *preload = getenv("LD_PRELOAD");
    for (size_t i = 0; preload && i < sizeof names / sizeof *names; i++)
        if (strstr(preload, names[i]))
            return names[i];
    return NULL;
}

int zr_tool_preload(int argc, char **argv)
{
    struct settings settings = {0};
    struct zr_tool_arguments arguments;
    struct zr_program program;
    char malloc_library[PATH_MAX], cuda_library[PATH_MAX];
    int code = parse(&settings, &arguments, argc, argv);
    if (code >= 0)
        return code;
    char **command = arguments.files;
    if (!zr_program_library("libzr_malloc.so", malloc_library) ||
        !zr_program_library("libzr_cuda.so", cuda_library) || strpbrk(malloc_library, " :") ||
        strpbrk(cuda_library, " :")) {
        zr_tool_log(
            "run: no libzr_malloc.so and libzr_cuda.so beside this program, in ../lib, where they are "
            "installed, under a name without blanks and colons");
        return ZR_TOOL_USAGE;
    }
    settings.malloc_library = malloc_library;
    settings.cuda_library = cuda_library;
    if (!zr_program_find(command[0], &program)) {
        zr_tool_log("run: %s: %s", command[0], strerror(program.error));
        return program.error == ENOENT ? NOT_FOUND : NOT_RUN;
    }
    if (preloaded_sanitizer()) {
        zr_tool_log(
            "run: LD_PRELOAD has %s, a sanitizer, which needs malloc for itself: unset it to run on zr",
            preloaded_sanitizer());
        return ZR_TOOL_USAGE;
    }
    if (program.obstacle[0]) {
        zr_tool_log("run: %s: %s%s", command[0], program.obstacle,
                    settings.strict || program.refused ? ""
                    : settings.stats || settings.json
                        ? "; it runs with its own malloc, and there are no figures"
                        : "; it runs with its own malloc");
        return settings.strict || program.refused ? ZR_TOOL_USAGE : become(&program, command);
    }
    zr_result served = settings.service ? zr_tool_service_need(true, NULL) : ZR_OK;
    if (served == ZR_OK && settings.device)
        served = zr_tool_service_need(true, settings.device);
    if (served != ZR_OK)
        return zr_tool_fail(served);
    /* A preloaded program would only say so, and run on the C library's memory. */
    if (!settings.service && zr_option_get(ZR_OPTION_SERVICE) == 2 &&
        zr_tool_service_need(false, NULL) != ZR_OK)
        return zr_tool_fail(ZR_ERR_UNAVAILABLE);
    if (settings.strict && !all_taken(&program, &settings))
        return ZR_TOOL_USAGE;
    if (settings.stats || settings.json)
        return run_with_figures(&settings, &program, command);
    if (!set_environment(&settings)) {
        zr_tool_log("run: the environment is too large");
        return ZR_TOOL_USAGE;
    }
    return become(&program, command);
}
