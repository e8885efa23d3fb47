/* rehearse.c: `zr rehearse`: runs an unchanged CUDA program on a simulated device. See rehearse.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"
#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"
#include "defrag/tool/run/program.h"
#include "defrag/tool/run/run.h"

static const char help[] =
    "Runs a CUDA program without a GPU, on a simulated device, and tells how much memory it needs.\n"
    "\n"
    "Examples\n"
    "  zr rehearse -- python3 train.py                       does it fit an H100?\n"
    "  zr rehearse --device rtx4090 -- python3 train.py\n"
    "  zr rehearse --memory 24GiB --devices 2 -- ./program\n"
    "  zr rehearse --devices 4 -- torchrun --nproc-per-node 4 train.py\n"
    "\n"
    "zr rehearse [options] -- PROGRAM ARGUMENT..\n"
    "  --device NAME    the GPU: h100 (default), h200, gh200, b200, a100, a100-40gb, v100, l4, l40s, a10g, a6000, t4,\n"
    "                   rtx3090, rtx4090 or rtx5090\n"
    "  --memory BYTES   memory of each device (default: the GPU's)\n"
    "  --devices N      how many devices there are, 1 (default) to 8\n"
    "  --context BYTES  memory that each process takes of a device beside its allocations (default: an estimate for the GPU)\n"
    "  --keep BYTES     the longest copy to the device whose bytes can be read back (default 1MiB)\n"
    "  --clock SEED     work takes an estimate of its time on the GPU, varied by the seed, and no call waits for it: memory\n"
    "                   that another stream uses is reused as late as on a GPU (default: each call waits for its work)\n"
    "  --fill NUMBER    results of kernels read as NUMBER (default 0): 8 bytes as an integer, 4 as fp32, 2 as bf16\n"
    "  --nonzero SHARE  PyTorch's nonzero, unique and masks find this share of their elements, 0 (default) to 1\n"
    "  --output FOLDER  where PyTorch's snapshots go, for zr why and others (default: zr-rehearse.PID), and the file calls:\n"
    "                   functions of NVIDIA's libraries that the program called and that have no answer\n"
    "  --json FILE      the answer as JSON, too\n"
    "\n"
    "The program is not changed. Stand-ins for NVIDIA's libraries are preloaded: memory is counted and not there, kernels do\n"
    "nothing, and their results read as 0. PyTorch allocates, caches and fails as on the GPU, so the\n"
    "answer has PyTorch's own figures, the call sites that hold memory at the peak, and what other allocators would have\n"
    "reserved. The answer is uncertain if sizes follow from results of kernels: it names the lines of the program that read\n"
    "such results. Another --fill or --nonzero shows what depends on them.\n"
    "A program that does not fit is short by what the request that failed misses: later requests may need more.\n"
    "\n"
    "Several ranks: NCCL carries messages of at most --keep and 1 MiB between the processes of the machine and leaves zeros of\n"
    "longer ones. Its own buffers are counted, an estimate. CUDA_VISIBLE_DEVICES chooses among the devices. The answer is that\n"
    "of the rank that failed or reserved the most; --json and the snapshots have all.\n"
    "\n"
    "The answer goes to standard error. The exit code is the program's; 127: there is no such program, 126: it cannot be run.\n"
    "A program needs libcudart as a shared library: one that has the CUDA runtime inside is refused.\n";

enum { NOT_FOUND = 127, NOT_RUN = 126, DEVICES_MAX = ZR_ACCOUNT_DEVICES_MAX };

struct settings {
    struct zr_rehearse_device device;
    const char *device_name, *output, *json, *clock, *fill, *nonzero;
    uint64_t keep_bytes;
    char library[PATH_MAX], output_path[PATH_MAX];
    const struct zr_run_folder *folder;
    struct zr_account *account;
};

/* ---- The device ---------------------------------------------------------------------------------------- */

static int choose_device(struct settings *settings)
{
    struct zr_rehearse_device *device = &settings->device;
    char room[2][ZR_TOOL_NUMBER_ROOM], names[256] = "";
    device->card = zr_card_find(settings->device_name);
    if (!device->card) {
        for (size_t i = 0; zr_card_at(i); i++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                     zr_card_at(i)->name);
        zr_tool_log("rehearse: there is no device '%.40s'; give one of %s", settings->device_name, names);
        return ZR_TOOL_USAGE;
    }
    if (device->devices_count == 0 || device->devices_count > DEVICES_MAX) {
        zr_tool_log("rehearse: --devices takes 1 to %d, not %" PRIu64, DEVICES_MAX, device->devices_count);
        return ZR_TOOL_USAGE;
    }
    if (device->memory_bytes == 0)
        device->memory_bytes = (uint64_t)device->card->total_mib << 20;
    if (device->context_bytes == UINT64_MAX)
        device->context_bytes = (uint64_t)device->card->context_mib << 20;
    if (device->memory_bytes <= device->context_bytes) {
        zr_tool_log(
            "rehearse: a device of %s has no room beside a context of %s; give more --memory, or less --context",
            zr_tool_bytes(room[0], device->memory_bytes), zr_tool_bytes(room[1], device->context_bytes));
        return ZR_TOOL_USAGE;
    }
    return -1;
}

static int check_numbers(const struct settings *settings)
{
    const struct {
        const char *option, *text, *what;
        double least, most;
        bool whole;
    } rows[] = {{"--clock", settings->clock, "a whole number", 0, UINT32_MAX, true},
                {"--fill", settings->fill, "a number", -1e15, 1e15, false},
                {"--nonzero", settings->nonzero, "a number from 0 to 1", 0, 1, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *end = NULL;
        double number = rows[i].text ? strtod(rows[i].text, &end) : 0;
        if (!rows[i].text ||
            (end != rows[i].text && *end == '\0' && number >= rows[i].least && number <= rows[i].most &&
             (!rows[i].whole || strspn(rows[i].text, "0123456789") == strlen(rows[i].text))))
            continue;
        zr_tool_log("rehearse: %s takes %s, not '%.40s'", rows[i].option, rows[i].what, rows[i].text);
        return ZR_TOOL_USAGE;
    }
    return -1;
}

/* ---- The environment of the program -------------------------------------------------------------------- */

static bool set_number(const char *variable, uint64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    return setenv(variable, text, 1) == 0;
}

static bool set_or_not(const char *variable, const char *text)
{
    return (text ? setenv(variable, text, 1) : unsetenv(variable)) == 0;
}

static bool set_path(const char *variable, const char *folder, const char *file)
{
    char text[2 * PATH_MAX];
    snprintf(text, sizeof text, "%s/%s", folder, file);
    return setenv(variable, text, 1) == 0;
}

/* Runs in the process that becomes the program. */
static bool set_environment(void *argument)
{
    const struct settings *settings = argument;
    const struct zr_rehearse_device *device = &settings->device;
    char hook[PATH_MAX];
    snprintf(hook, sizeof hook, "%s", settings->library);
    *strrchr(hook, '/') = '\0';
    return zr_run_put_before("LD_PRELOAD", settings->library, ":") &&
           zr_run_put_before("PYTHONPATH", hook, ":") && zr_run_put_before("LD_LIBRARY_PATH", hook, ":") &&
           setenv("ZR_EMULATOR_CARD", device->card->name, 1) == 0 &&
           set_number("ZR_EMULATOR_MEMORY", device->memory_bytes) &&
           set_number("ZR_EMULATOR_CONTEXT", device->context_bytes) &&
           set_number("ZR_EMULATOR_DEVICES", device->devices_count) &&
           set_number("ZR_EMULATOR_KEEP", settings->keep_bytes) &&
           set_or_not("ZR_EMULATOR_CLOCK", settings->clock) &&
           set_or_not("ZR_EMULATOR_FILL", settings->fill) &&
           set_or_not("ZR_REHEARSE_NONZERO", settings->nonzero) &&
           set_path("ZR_EMULATOR_SHARED", settings->folder->path, "account") &&
           (!settings->output || set_path("ZR_REHEARSE_CALLS", settings->output_path, "calls")) &&
           setenv("ZR_REHEARSE_FOLDER", settings->output_path, 1) == 0;
}

static zr_result make_account(struct settings *settings)
{
    char path[2 * PATH_MAX], room[64];
    snprintf(path, sizeof path, "%s/account", settings->folder->path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *mapped = fd >= 0 && ftruncate(fd, sizeof *settings->account) == 0
                       ? mmap(NULL, sizeof *settings->account, PROT_READ, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (mapped == MAP_FAILED)
        return zr_fail(ZR_ERR_IO, "%s: %s", path, strerror_r(errno, room, sizeof room));
    settings->account = mapped;
    return ZR_OK;
}

static zr_result make_output(struct settings *settings)
{
    char name[32], room[64];
    snprintf(name, sizeof name, "zr-rehearse.%ld", (long)getpid());
    const char *folder = settings->output ? settings->output : name;
    if ((mkdir(folder, 0777) != 0 && errno != EEXIST) || !realpath(folder, settings->output_path))
        return zr_fail(ZR_ERR_IO, "%s: %s; give another --output", folder,
                       strerror_r(errno, room, sizeof room));
    return ZR_OK;
}

/* ---- The answer ---------------------------------------------------------------------------------------- */

struct finding {
    const struct settings *settings;
    struct zr_rehearse_answer answer;
};

static zr_result write_json(const struct finding *finding)
{
    struct zr_file file;
    struct zr_text text;
    char buffer[8192];
    zr_result result = zr_file_create(&file, finding->settings->json, ZR_CREATE_REPLACE);
    if (result != ZR_OK)
        return result;
    zr_text_start(&text, &file, buffer, sizeof buffer);
    zr_rehearse_json(&text, &finding->answer);
    result = zr_text_flush(&text);
    zr_result closed = zr_file_close(&file);
    return result == ZR_OK ? closed : result;
}

static zr_result find(void *state, zr_arena *arena, int *code)
{
    struct finding *finding = state;
    static struct zr_rehearse_figures figures;
    finding->answer.figures = &figures;
    zr_result result =
        zr_rehearse_read(&figures, finding->settings->account, finding->settings->output_path, arena);
    if (result != ZR_OK)
        return result;
    struct zr_file file;
    struct zr_text text;
    char buffer[8192];
    file = zr_file_borrow(STDERR_FILENO, "standard error");
    zr_text_start(&text, &file, buffer, sizeof buffer);
    zr_rehearse_print(&text, &finding->answer);
    zr_text_flush(&text);
    *code = ZR_TOOL_FINE;
    return finding->settings->json ? write_json(finding) : ZR_OK;
}

/* ---- The command --------------------------------------------------------------------------------------- */

static int run(struct settings *settings, const struct zr_program *program, char **command)
{
    static struct zr_run_folder folder;
    struct zr_run_end end = {0};
    zr_result result = zr_run_folder_make(&folder);
    settings->folder = &folder;
    if (result == ZR_OK)
        result = make_account(settings);
    if (result == ZR_OK)
        result = make_output(settings);
    int code = result == ZR_OK ? zr_run_watch(&(struct zr_run_start){.path = program->path,
                                                                     .command = command,
                                                                     .folder = &folder,
                                                                     .prepare = set_environment,
                                                                     .argument = settings},
                                              &end)
                               : zr_tool_fail(result);
    if (code < 0) {
        struct finding finding = {settings, {&settings->device, NULL, command, end.status, settings->clock}};
        code = zr_tool_with_memory(find, &finding);
        code = code == ZR_TOOL_FINE ? zr_run_end_alike(end.status) : code;
    }
    if (settings->account)
        munmap(settings->account, sizeof *settings->account);
    if (result == ZR_OK)
        rmdir(settings->output_path); /* if nothing was written there */
    zr_run_folder_remove(&folder);
    return code;
}

int zr_tool_rehearse(int argc, char **argv)
{
    static struct settings settings = {.device = {.devices_count = 1, .context_bytes = UINT64_MAX},
                                       .device_name = "h100",
                                       .keep_bytes = 1 << 20};
    static struct zr_program program;
    const struct zr_tool_option options[] = {
        {"--device", ZR_TOOL_TEXT, &settings.device_name},
        {"--memory", ZR_TOOL_BYTES, &settings.device.memory_bytes},
        {"--devices", ZR_TOOL_COUNT, &settings.device.devices_count},
        {"--context", ZR_TOOL_BYTES, &settings.device.context_bytes},
        {"--keep", ZR_TOOL_BYTES, &settings.keep_bytes},
        {"--clock", ZR_TOOL_TEXT, &settings.clock},
        {"--fill", ZR_TOOL_TEXT, &settings.fill},
        {"--nonzero", ZR_TOOL_TEXT, &settings.nonzero},
        {"--output", ZR_TOOL_TEXT, &settings.output},
        {"--json", ZR_TOOL_TEXT, &settings.json},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    struct zr_tool_arguments arguments = {.help = help, .options = options, .stops_at_file = true};
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code < 0)
        code = check_numbers(&settings);
    if (code < 0)
        code = choose_device(&settings);
    if (code >= 0)
        return code;
    if (arguments.files_count == 0) {
        zr_tool_log(
            "rehearse: the program is missing, as in zr rehearse -- python3 train.py; see zr rehearse --help");
        return ZR_TOOL_USAGE;
    }
    if (!zr_program_library("zr-rehearse/libzr_rehearse.so", settings.library)) {
        zr_tool_log(
            "rehearse: zr-rehearse/libzr_rehearse.so is not in ../lib of this program; install zr again");
        return NOT_RUN;
    }
    if (!zr_program_find(arguments.files[0], &program)) {
        zr_tool_log("rehearse: %s: %s", arguments.files[0], strerror(program.error));
        return program.error == ENOENT ? NOT_FOUND : NOT_RUN;
    }
    if (program.obstacle[0]) {
        zr_tool_log("rehearse: %s: the simulated device cannot be preloaded: %s", arguments.files[0],
                    program.obstacle);
        return NOT_RUN;
    }
    return run(&settings, &program, arguments.files);
}
