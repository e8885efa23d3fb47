/* rehearse_run.c: one run of `zr rehearse`: the program with its environment, and what is left of it. See
 * rehearse.h. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"
#include "defrag/tool/run/run.h"

/* Of one run. */
struct settings {
    const struct zr_rehearse *rehearse;
    const struct zr_rehearse_run *run;
    char output_path[PATH_MAX];
    struct zr_run_folder folder;
    struct zr_account *account;
};

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

/* Standard output and standard error go to the file. */
static bool redirect(const char *folder)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/log", folder);
    int fd = zr_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    bool done = fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0 && dup2(fd, STDERR_FILENO) >= 0;
    if (fd >= 0)
        close(fd);
    return done;
}

/* PyTorch prefers the newer name of the variable. */
static bool set_allocator(const char *options)
{
    return unsetenv("PYTORCH_ALLOC_CONF") == 0 && setenv("PYTORCH_CUDA_ALLOC_CONF", options, 1) == 0;
}

/* Kernels that PyTorch and CuPy compile at run time are no kernels here, and a later run on a GPU would load
 * them. */
static bool keep_no_kernels(void)
{
    return setenv("USE_PYTORCH_KERNEL_CACHE", "0", 1) == 0 && setenv("CUPY_CACHE_IN_MEMORY", "1", 1) == 0;
}

/* Runs in the process that becomes the program. */
static bool set_environment(void *argument)
{
    const struct settings *settings = argument;
    const struct zr_rehearse *rehearse = settings->rehearse;
    const struct zr_rehearse_device *device = &rehearse->device;
    char hook[PATH_MAX];
    snprintf(hook, sizeof hook, "%s", rehearse->library);
    *strrchr(hook, '/') = '\0';
    return zr_run_put_before("LD_PRELOAD", rehearse->library, ":") &&
           zr_run_put_before("PYTHONPATH", hook, ":") && zr_run_put_before("LD_LIBRARY_PATH", hook, ":") &&
           setenv("ZR_EMULATOR_CARD", device->card->name, 1) == 0 &&
           set_number("ZR_EMULATOR_MEMORY", device->memory_bytes) &&
           set_number("ZR_EMULATOR_CONTEXT", device->context_bytes) &&
           set_number("ZR_EMULATOR_DEVICES", device->devices_count) &&
           set_number("ZR_EMULATOR_KEEP", rehearse->keep_bytes) &&
           set_or_not("ZR_EMULATOR_CLOCK", rehearse->clock) &&
           set_or_not("ZR_EMULATOR_FILL", rehearse->fill) &&
           set_or_not("ZR_REHEARSE_NONZERO", rehearse->nonzero) && keep_no_kernels() &&
           set_path("ZR_EMULATOR_SHARED", settings->folder.path, "account") &&
           set_path("ZR_REHEARSE_CALLS", settings->folder.path, "calls") &&
           setenv("ZR_REHEARSE_LINES", settings->folder.path, 1) == 0 &&
           setenv("ZR_REHEARSE_FOLDER", settings->output_path, 1) == 0 &&
           (!rehearse->output || setenv("ZR_REHEARSE_TRACES", settings->output_path, 1) == 0) &&
           (!settings->run->allocator || set_allocator(settings->run->allocator)) &&
           (!settings->run->logged || redirect(settings->output_path));
}

/* ---- One run ------------------------------------------------------------------------------------------- */

static zr_result make_account(struct settings *settings)
{
    char path[2 * PATH_MAX], room[64];
    snprintf(path, sizeof path, "%s/account", settings->folder.path);
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
    const char *folder = settings->run->output ? settings->run->output : settings->folder.path;
    char room[64];
    if ((mkdir(folder, 0777) != 0 && errno != EEXIST) || !realpath(folder, settings->output_path))
        return zr_fail(ZR_ERR_IO, "%s: %s; give another --output", folder,
                       strerror_r(errno, room, sizeof room));
    return ZR_OK;
}

/* The functions without an answer, for a user who gave the folder. */
static void write_calls(const struct zr_rehearse_figures *figures, const char *folder)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/calls", folder);
    FILE *file = figures->calls.count > 0 ? fopen(path, "we") : NULL;
    for (unsigned i = 0; file && i < figures->calls.count; i++)
        fprintf(file, "%s %" PRIu64 "\n", figures->calls.each[i].name, figures->calls.each[i].count);
    if (file)
        fclose(file);
}

/* A trace could not be made, on a full disk for example. */
static bool has_trace(const char *folder, int device)
{
    char prefix[24];
    bool found = false;
    DIR *names = opendir(folder);
    snprintf(prefix, sizeof prefix, "device%d.", device);
    for (struct dirent *each; names && !found && (each = readdir(names));)
        found = strncmp(each->d_name, prefix, strlen(prefix)) == 0 && strstr(each->d_name, ".zrt");
    if (names)
        closedir(names);
    return found;
}

static void read_tail(struct zr_rehearse_answer *out, const char *folder)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/log", folder);
    int fd = zr_open(path, O_RDONLY, 0);
    const off_t bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0, room = sizeof out->tail - 1;
    ssize_t got = fd >= 0 ? zr_read_all(fd, bytes > room ? bytes - room : 0, out->tail, (size_t)room) : 0;
    out->tail[got > 0 ? got : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

struct finding {
    const struct settings *settings;
    struct zr_rehearse_figures *figures;
};

static zr_result find(void *state, zr_arena *arena, int *code)
{
    struct finding *finding = state;
    *code = ZR_TOOL_FINE;
    return zr_rehearse_read(finding->figures, finding->settings->account, finding->settings->folder.path,
                            arena);
}

static int watch(struct settings *settings, struct zr_rehearse_answer *out)
{
    static struct zr_rehearse_figures figures;
    const struct zr_rehearse *rehearse = settings->rehearse;
    const struct zr_rehearse_run *run = settings->run;
    struct zr_run_end end = {0};
    int code = zr_run_watch(&(struct zr_run_start){.path = rehearse->program.path,
                                                   .command = run->command,
                                                   .folder = &settings->folder,
                                                   .prepare = set_environment,
                                                   .argument = settings,
                                                   .signals = &rehearse->signals},
                            &end);
    if (code >= 0)
        return code;
    code = zr_tool_with_memory(find, &(struct finding){settings, &figures});
    if (code != ZR_TOOL_FINE)
        return code;
    *out = (struct zr_rehearse_answer){.device = &rehearse->device,
                                       .figures = &figures,
                                       .status = end.status,
                                       .interrupted = end.interrupted,
                                       .ns = end.ns,
                                       .host_bytes = end.peak_resident_bytes,
                                       .clock = rehearse->clock,
                                       .verbose = rehearse->verbose};
    if (run->logged)
        read_tail(out, settings->output_path);
    if (run->output && rehearse->output) {
        write_calls(&figures, settings->output_path);
        if (has_trace(settings->output_path, figures.device))
            memcpy(out->traces, settings->output_path, sizeof out->traces);
    }
    return -1;
}

/* A signal that came between two runs, while a snapshot was analysed; less than 1: none. */
static int pending_interruption(void)
{
    sigset_t signals;
    zr_rehearse_interruptions(&signals);
    return sigtimedwait(&signals, NULL, &(struct timespec){0});
}

void zr_rehearse_interruptions(sigset_t *out)
{
    sigemptyset(out);
    sigaddset(out, SIGINT);
    sigaddset(out, SIGTERM);
    sigaddset(out, SIGHUP);
}

int zr_rehearse_run(struct zr_rehearse *rehearse, const struct zr_rehearse_run *run,
                    struct zr_rehearse_answer *out)
{
    struct settings settings = {.rehearse = rehearse, .run = run};
    const int number = pending_interruption();
    if (number > 0)
        return 128 + number;
    zr_result result = zr_run_folder_make(&settings.folder);
    if (result == ZR_OK)
        result = make_account(&settings);
    if (result == ZR_OK)
        result = make_output(&settings);
    int code = result == ZR_OK ? watch(&settings, out) : zr_tool_fail(result);
    if (settings.account)
        munmap(settings.account, sizeof *settings.account);
    zr_run_folder_remove(&settings.folder);
    return code;
}
