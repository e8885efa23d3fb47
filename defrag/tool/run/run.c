/* run.c: `zr run`: runs an unchanged program with zr's malloc and CUDA memory. Uses program.c, run_watch.c
 * and run_report.c for the figures, and doctor.c for --strict. */
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
    "Runs a program, and every program that it starts, with zr's malloc; the programs are not changed.\n"
    "\n"
    "Examples\n"
    "  zr run -- python3 train.py\n"
    "  zr run --stats -- ./job                     five lines about its memory at the end\n"
    "  zr run --limit 8GiB -- ./server --port 80\n"
    "  zr run --trace blocks.zrt -- ./job && zr replay blocks.zrt\n"
    "\n"
    "zr run [options] -- PROGRAM ARGUMENT..\n"
    "  --malloc        preloads only libzr_malloc.so\n"
    "  --cuda          preloads only libzr_cuda.so; default: both\n"
    "  --limit BYTES   the most that the program may hold: beyond it malloc returns NULL. Blocks of 2 MiB count, touched\n"
    "                  or not; each process has its own limit, and so has each device in it. At least 16MiB; with\n"
    "                  --cuda 2MiB\n"
    "  --stats         at the end, on standard error: memory held at the peak, its live part, the memory that a caching\n"
    "                  allocator would have held for the same blocks, a verdict, the next command\n"
    "  --json FILE     the same as JSON, with the figures of each process\n"
    "  --service       takes memory from zrd, and starts zrd if none runs: see zr service --help\n"
    "  --device N      with --service: starts a zrd of GPU N, too, for memory of that device\n"
    "  --wait          with --service: a run with a byte plan (zr-train) waits until zrd has room for it\n"
    "  --trace FILE    writes each block above 32 KiB to FILE (.zrt), for zr replay; blocks of another process that the\n"
    "                  program starts go to FILE.PID. Blocks of device 0 go to FILE.gpu, with --cuda to FILE; blocks of\n"
    "                  device 1 to a FILE with .gpu1\n"
    "  --stacks N      records the call stack of one allocation in N in the traces and in the flight recorder's file, 1: of\n"
    "                  each; a stack takes some microseconds. It has the frames of C and C++, and of CPython 3.11 to 3.14\n"
    "  --small         with --trace: samples objects of up to 32 KiB, too, one in 512 KiB, with call stacks, to FILE.small;\n"
    "                  zr stats FILE.small estimates what they hold\n"
    "  --strict        exits with 2 instead of running a program that cannot be preloaded, or whose memory zr doctor finds to\n"
    "                  be missed; libzr_cuda.so stops a program whose CUDA driver has unknown ways to allocate memory\n"
    "\n"
    "The exit code is the program's; 127: there is no such program, 126: it cannot be run. LD_PRELOAD and ZR_CONF of the\n"
    "environment stay in effect after zr's additions. A program cannot be preloaded if it is static, set-user-ID, for\n"
    "another processor, or on a C library other than glibc; zr run says so, and zr doctor -- PROGRAM gives details.\n"
    "ZR_CONF=verbose:true makes each process report that zr serves it.\n"
    "\n"
    "A flight recorder keeps the last events of each arena, and writes them to TMPDIR, else /tmp, when an allocation fails: the\n"
    "error message names the file, for zr why. ZR_CONF=recorder:0 disables it.\n"
    "\n"
    "Without --stats and --json zr becomes the program. With them zr stays as its parent: it forwards signals that other\n"
    "processes send, stops when the program stops, and dies of the signal that ended the program. Each process keeps its\n"
    "counts in a file of the run, so a killed process has figures too, and writes its large blocks to a trace of at most\n"
    "64 MiB. The folder of these files (TMPDIR, else /tmp) is removed at the end; that of a killed run, by the next run.\n";

enum { NOT_FOUND = 127, NOT_RUN = 126 };

struct settings {
    bool malloc, cuda, small, strict, stats, service, wait;
    uint64_t limit_bytes, stacks;
    const char *trace, *json, *device, *malloc_library, *cuda_library;
    const struct zr_run_folder *folder; /* NULL: no figures are wanted */
};

/* ---- The environment ----------------------------------------------------------------------------------- */

/* Appends to ZR_CONF, where the later of two values wins. */
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
    return (old && strstr(old, library)) || zr_run_put_before("LD_PRELOAD", library, ":");
}

/* The process with this number writes FILE itself; exec keeps the number. */
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

/* Runs in the process that becomes the program. */
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
    /* Enables the flight recorder; the user's ZR_CONF follows, and can disable it. */
    if (!zr_run_put_before("ZR_CONF", "recorder:1m", ","))
        return false;
    if ((settings->limit_bytes > 0 && !add_number_to_conf("limit", settings->limit_bytes)) ||
        (settings->stacks > 0 && !add_number_to_conf("stacks", settings->stacks)) ||
        (settings->small && !add_to_conf("small:512k")) ||
        (settings->service && !add_to_conf("service:on")) ||
        (settings->wait && !add_to_conf("service_wait:true")))
        return false;
    return !settings->trace ||
           ((!settings->malloc || set_trace("ZR_TRACE", settings->trace, "")) &&
            (!settings->cuda || set_trace("ZR_CUDA_TRACE", settings->trace, settings->malloc ? ".gpu" : "")));
}

/* ---- The command --------------------------------------------------------------------------------------- */

/* Whether --limit is large enough to start. If not, prints the smallest sufficient limit. */
static bool has_room(const struct settings *settings)
{
    char limit[ZR_SIZE_EXACT_ROOM], min[ZR_SIZE_EXACT_ROOM];
    uint64_t granule_bytes = zr_option_get(ZR_OPTION_GRANULE);
    uint64_t min_bytes = settings->malloc ? ZR_USAGE_MIN_LIMIT_BYTES
                         : granule_bytes  ? granule_bytes
                                          : UINT64_C(2) << 20;
    if (settings->limit_bytes == 0 || settings->limit_bytes >= min_bytes)
        return true;
    zr_tool_log("run: --limit %s is too small: %s needs %s; give at least --limit %s",
                zr_size_print_exact(limit, settings->limit_bytes),
                settings->malloc ? "malloc's start" : "a device's first block",
                zr_size_print_exact(min, min_bytes), min);
    return false;
}

static int parse(struct settings *settings, struct zr_tool_arguments *arguments, int argc, char **argv)
{
    const struct zr_tool_option options[] = {
        {"--malloc", ZR_TOOL_FLAG, &settings->malloc},
        {"--cuda", ZR_TOOL_FLAG, &settings->cuda},
        {"--strict", ZR_TOOL_FLAG, &settings->strict},
        {"--limit", ZR_TOOL_BYTES, &settings->limit_bytes},
        {"--trace", ZR_TOOL_TEXT, &settings->trace},
        {"--stats", ZR_TOOL_FLAG, &settings->stats},
        {"--json", ZR_TOOL_TEXT, &settings->json},
        {"--stacks", ZR_TOOL_COUNT, &settings->stacks},
        {"--service", ZR_TOOL_FLAG, &settings->service},
        {"--device", ZR_TOOL_TEXT, &settings->device},
        {"--wait", ZR_TOOL_FLAG, &settings->wait},
        {"--small", ZR_TOOL_FLAG, &settings->small},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    *arguments = (struct zr_tool_arguments){.help = help, .options = options, .stops_at_file = true};
    int code = zr_tool_parse(arguments, argc, argv);
    if (code >= 0)
        return code;
    if (arguments->files_count == 0) {
        zr_tool_log("run: the program is missing, as in zr run -- python3 train.py; see zr run --help");
        return ZR_TOOL_USAGE;
    }
    if ((settings->device || settings->wait) && !settings->service) {
        zr_tool_log("run: --device and --wait require --service");
        return ZR_TOOL_USAGE;
    }
    if (!settings->malloc && !settings->cuda)
        settings->malloc = settings->cuda = true;
    if (settings->small && (!settings->trace || !settings->malloc)) {
        zr_tool_log("run: --small requires --trace, and excludes --cuda without --malloc");
        return ZR_TOOL_USAGE;
    }
    return has_room(settings) ? -1 : ZR_TOOL_USAGE;
}

/* Whether all memory of the program comes from zr, as far as zr doctor can tell. Prints each exception. */
static bool all_taken(const struct zr_program *program, const struct settings *settings)
{
    static struct zr_doctor doctor;
    bool taken = true;
    zr_doctor_look_at_program(&doctor, program, (struct zr_doctor_wanted){settings->malloc, settings->cuda});
    for (unsigned i = 0; i < doctor.count && i < ZR_DOCTOR_MAX; i++) {
        const struct zr_doctor_finding *finding = &doctor.findings[i];
        if (finding->verdict == ZR_DOCTOR_BAD)
            zr_tool_log("run: %s: %s", finding->name, finding->found);
        taken = taken && finding->verdict != ZR_DOCTOR_BAD;
    }
    return taken;
}

/* Becomes the program. Returns an exit code on failure. */
static int become(const struct zr_program *program, char **command)
{
    execv(program->path, command);
    int error = errno;
    zr_tool_log("run: %s: %s", program->path, strerror(error));
    return error == ENOENT ? NOT_FOUND : NOT_RUN;
}

/* The options that the next command must repeat, except --limit. */
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

/* Runs the program as a child, and prints its figures. */
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

/* The sanitizer that the environment preloads, which needs malloc for itself and must come first. NULL: none.
 */
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
            "run: libzr_malloc.so and libzr_cuda.so are missing in ../lib, relative to this program; install them there, in a path without blanks and colons");
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
    /* Checked here, because a preloaded program would only warn and use the C library's memory. */
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
