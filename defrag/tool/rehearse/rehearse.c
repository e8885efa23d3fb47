/* rehearse.c: `zr rehearse`, the command: its options, its program, its outputs. See rehearse.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "defrag/tool/input.h"
#include "defrag/tool/rehearse/rehearse.h"
#include "defrag/tool/run/run.h"

static const char help[] =
    "Runs a CUDA program without a GPU, on a simulated device, and tells how much memory it needs.\n"
    "\n"
    "Examples\n"
    "  zr rehearse -- python3 train.py                       does it fit an H100?\n"
    "  zr rehearse --device rtx4090 -- python3 train.py\n"
    "  zr rehearse --memory 24GiB --devices 2 -- ./program\n"
    "  zr rehearse --devices 4 -- torchrun --nproc-per-node 4 train.py\n"
    "  zr rehearse --sweep length=512,1024,2048 --find-max batch -- python3 train.py {batch} {length}\n"
    "\n"
    "zr rehearse [options] -- PROGRAM ARGUMENT..\n"
    "  --device NAME    the GPU: h100 (default), h200, gh200, b200, a100, a100-40gb, v100, l4, l40s, a10g, a6000, t4,\n"
    "                   rtx3090, rtx4090 or rtx5090\n"
    "  --memory BYTES   memory of each device (default: the GPU's)\n"
    "  --devices N      how many devices there are, 1 (default) to 64\n"
    "  --context BYTES  memory that each process takes of a device beside its allocations (default: an estimate for the GPU)\n"
    "  --keep BYTES     the longest copy to the device whose bytes can be read back (default 1MiB)\n"
    "  --clock SEED     work takes an estimate of its time on the GPU, varied by the seed, and no call waits for it: memory\n"
    "                   that another stream uses is reused as late as on a GPU (default: each call waits for its work)\n"
    "  --fill NUMBER    results of kernels read as NUMBER (default 0): 8 bytes as an integer, 4 as fp32, 2 as bf16\n"
    "  --nonzero SHARE  PyTorch's nonzero, unique and masks find this share of their elements, 0 (default) to 1\n"
    "  --sweep NAME=VALUE,VALUE..  runs the program with each value in place of {NAME} in its arguments, and prints a row for\n"
    "                   each; of several --sweep each combination is run\n"
    "  --find-max NAME[=LOW:HIGH]  the largest whole number in place of {NAME} that fits, 1 to 1048576 unless given: doubles\n"
    "                   it and halves the gap; with --sweep for each of its combinations\n"
    "  --allocators     runs the program once more with each option of PYTORCH_CUDA_ALLOC_CONF that may help: expandable\n"
    "                   segments, garbage collection, and splits and rounding by the sizes of the requests\n"
    "  --output FOLDER  where PyTorch's snapshots go, for zr why and others (default: zr-rehearse.PID); and, if given, a trace\n"
    "                   of each process and device, device0.PID.zrt, for all subcommands, and the file calls: functions of\n"
    "                   NVIDIA's libraries that the program called and that have no answer. Of several runs a folder each,\n"
    "                   1, 2 .., with the program's output as log (default: kept nowhere)\n"
    "  --json FILE      the answer as JSON, too\n"
    "  --verbose        the answer names the functions of the file calls\n"
    "\n"
    "The program is not changed. Stand-ins for NVIDIA's libraries are preloaded: memory is counted and not there, kernels do\n"
    "nothing, and their results read as 0; PyTorch's comparisons are computed from that. PyTorch allocates, caches and fails\n"
    "as on the GPU, so the answer has PyTorch's own figures, the call sites that hold memory at the peak, and what other\n"
    "allocators would have reserved. The answer is uncertain if sizes follow from results of kernels: it names the lines\n"
    "of the program that read such results. Another --fill or --nonzero shows what depends on them.\n"
    "A program that does not fit is short by what the request that failed misses: later requests may need more. A program\n"
    "that catches such a failure and ends well went on; --find-max counts that as no fit.\n"
    "A Python program needs zr's sitecustomize for call sites, which -I, -S and -E of python leave out.\n"
    "Workspaces of cuDNN, cuFFT, cuSOLVER and cuSPARSE count as 0 bytes, since NVIDIA publishes no sizes; the answer names\n"
    "those libraries if the program asked them. cuBLAS's are counted.\n"
    "A program that has the CUDA runtime inside, nvcc's default, needs its symbols: a stripped one is refused.\n"
    "\n"
    "Several ranks: NCCL carries messages of at most --keep and 1 MiB between the processes of the machine and leaves zeros of\n"
    "longer ones. Its own buffers are counted, an estimate. CUDA_VISIBLE_DEVICES chooses among the devices. The answer is that\n"
    "of the rank that failed or reserved the most; --json and the snapshots have all.\n"
    "\n"
    "The answer goes to standard error, rows to standard output. In an argument only braces around a NAME that was given are\n"
    "replaced. The exit code is the program's; 127: there is no such program, 126: it cannot be run. With --sweep and\n"
    "--find-max: 0 if each run fits, or some number does; 1 if one does not, or none does; 3 if the program fails for another\n"
    "reason than memory or uses no device, which stops the runs and shows the end of its output; 128 and the signal's number,\n"
    "as 130 for Ctrl-C.\n";

enum { NOT_FOUND = 127, NOT_RUN = 126, DEVICES_MAX = ZR_ACCOUNT_DEVICES_MAX };

/* ---- The device ---------------------------------------------------------------------------------------- */

static int choose_device(struct zr_rehearse *rehearse)
{
    struct zr_rehearse_device *device = &rehearse->device;
    char room[2][ZR_TOOL_NUMBER_ROOM], names[256] = "";
    device->card = zr_card_find(rehearse->device_name);
    if (!device->card) {
        for (size_t i = 0; zr_card_at(i); i++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                     zr_card_at(i)->name);
        zr_tool_log("rehearse: there is no device '%.40s'; give one of %s", rehearse->device_name, names);
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

static int check_numbers(const struct zr_rehearse *rehearse)
{
    const struct {
        const char *option, *text, *what;
        double least, most;
        bool whole;
    } rows[] = {{"--clock", rehearse->clock, "a whole number", 0, UINT32_MAX, true},
                {"--fill", rehearse->fill, "a number", -1e15, 1e15, false},
                {"--nonzero", rehearse->nonzero, "a number from 0 to 1", 0, 1, false}};
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

/* ---- The command --------------------------------------------------------------------------------------- */

struct outputs {
    struct zr_file words_file, json_file;
    struct zr_text words, json_text, *json; /* json: NULL without --json */
    char words_buffer[8192], json_buffer[8192];
};

/* One run in the terminal, with the answer on standard error. Less than 0: the program has run. */
static int run_once(struct zr_rehearse *rehearse, char **command, struct outputs *outputs, int *status)
{
    struct zr_rehearse_answer answer;
    char name[32];
    snprintf(name, sizeof name, "zr-rehearse.%ld", (long)getpid());
    const char *output = rehearse->output ? rehearse->output : name;
    int code =
        zr_rehearse_run(rehearse, &(struct zr_rehearse_run){.command = command, .output = output}, &answer);
    if (!rehearse->output)
        rmdir(output); /* if nothing was written there */
    if (code >= 0)
        return code;
    *status = answer.status;
    zr_rehearse_print(&outputs->words, &answer);
    zr_text_flush(&outputs->words);
    if (outputs->json) {
        zr_text_print(outputs->json, "{\"version\": 1, ");
        zr_rehearse_json(outputs->json, &answer);
    }
    if (rehearse->allocators && !answer.interrupted)
        code = zr_rehearse_allocators(rehearse, command, &answer, &outputs->words, outputs->json);
    if (outputs->json)
        zr_text_print(outputs->json, "}\n");
    return code;
}

/* Less than 0: there is no --json, or it is open. A run may take long, so this comes first. */
static int open_json(struct outputs *out, const char *path)
{
    zr_result result = path ? zr_file_create(&out->json_file, path, ZR_CREATE_REPLACE) : ZR_OK;
    if (result != ZR_OK)
        return zr_tool_fail(result);
    zr_text_start(&out->json_text, &out->json_file, out->json_buffer, sizeof out->json_buffer);
    out->json = path ? &out->json_text : NULL;
    return -1;
}

/* A file without a document goes. */
static zr_result close_json(struct outputs *outputs, const char *path)
{
    uint64_t bytes = 0;
    zr_result result = outputs->json ? zr_text_flush(outputs->json) : ZR_OK;
    if (outputs->json && outputs->json_file.regular && zr_file_size(&outputs->json_file, &bytes) == ZR_OK &&
        bytes == 0)
        unlink(path);
    zr_result closed = zr_file_close(&outputs->json_file);
    return result == ZR_OK ? closed : result;
}

static int run(struct zr_rehearse *rehearse, const struct zr_rehearse_plan *plan)
{
    static struct outputs outputs = {.json_file = {.fd = -1}};
    int status = 0;
    outputs.words_file = zr_file_borrow(STDERR_FILENO, "standard error");
    zr_text_start(&outputs.words, &outputs.words_file, outputs.words_buffer, sizeof outputs.words_buffer);
    int code = open_json(&outputs, rehearse->json);
    if (code >= 0)
        return code;
    code = plan->find_max || plan->sweeps.count > 0 ? zr_rehearse_sweep(rehearse, plan, outputs.json)
                                                    : run_once(rehearse, plan->command, &outputs, &status);
    zr_text_flush(&outputs.words);
    zr_result result = close_json(&outputs, rehearse->json);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    return code < 0 ? zr_run_end_alike(status) : code;
}

/* Less than 0: the program can be run. */
static int find_program(struct zr_rehearse *rehearse, const char *name)
{
    struct zr_program *program = &rehearse->program;
    if (!name) {
        zr_tool_log(
            "rehearse: the program is missing, as in zr rehearse -- python3 train.py; see zr rehearse --help");
        return ZR_TOOL_USAGE;
    }
    if (!zr_program_library("zr-rehearse/libzr_rehearse.so", rehearse->library)) {
        zr_tool_log(
            "rehearse: zr-rehearse/libzr_rehearse.so is not in ../lib of this program; install zr again");
        return NOT_RUN;
    }
    if (!zr_program_find(name, program)) {
        const size_t length = strlen(name);
        bool script = length > 3 && strcmp(name + length - 3, ".py") == 0;
        zr_tool_log("rehearse: %s: %s; give %s%s", name, strerror(program->error),
                    script ? "its interpreter, too: zr rehearse -- python3 "
                           : "a program's path, or its name in PATH",
                    script ? name : "");
        return program->error == ENOENT ? NOT_FOUND : NOT_RUN;
    }
    if (program->obstacle[0]) {
        zr_tool_log("rehearse: %s: the simulated device cannot be preloaded: %s", name, program->obstacle);
        return NOT_RUN;
    }
    return -1;
}

int zr_tool_rehearse(int argc, char **argv)
{
    static struct zr_rehearse rehearse = {.device = {.devices_count = 1, .context_bytes = UINT64_MAX},
                                          .device_name = "h100",
                                          .keep_bytes = 1 << 20};
    static struct zr_rehearse_plan plan;
    const struct zr_tool_option options[] = {
        {"--device", ZR_TOOL_TEXT, &rehearse.device_name},
        {"--memory", ZR_TOOL_BYTES, &rehearse.device.memory_bytes},
        {"--devices", ZR_TOOL_COUNT, &rehearse.device.devices_count},
        {"--context", ZR_TOOL_BYTES, &rehearse.device.context_bytes},
        {"--keep", ZR_TOOL_BYTES, &rehearse.keep_bytes},
        {"--clock", ZR_TOOL_TEXT, &rehearse.clock},
        {"--fill", ZR_TOOL_TEXT, &rehearse.fill},
        {"--nonzero", ZR_TOOL_TEXT, &rehearse.nonzero},
        {"--sweep", ZR_TOOL_TEXTS, &plan.sweeps},
        {"--find-max", ZR_TOOL_TEXT, &plan.find_max},
        {"--allocators", ZR_TOOL_FLAG, &rehearse.allocators},
        {"--output", ZR_TOOL_TEXT, &rehearse.output},
        {"--json", ZR_TOOL_TEXT, &rehearse.json},
        {"--verbose", ZR_TOOL_FLAG, &rehearse.verbose},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    struct zr_tool_arguments arguments = {.help = help, .options = options, .stops_at_file = true};
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code < 0)
        code = check_numbers(&rehearse);
    if (code < 0)
        code = choose_device(&rehearse);
    if (code < 0)
        code = find_program(&rehearse, arguments.files_count > 0 ? arguments.files[0] : NULL);
    if (code >= 0)
        return code;
    if (rehearse.allocators && (plan.find_max || plan.sweeps.count > 0)) {
        zr_tool_log("rehearse: --allocators cannot be used with --sweep or --find-max; set "
                    "PYTORCH_CUDA_ALLOC_CONF instead");
        return ZR_TOOL_USAGE;
    }
    plan.command = arguments.files;
    plan.output = rehearse.output;
    sigset_t interruptions;
    zr_rehearse_interruptions(&interruptions);
    sigprocmask(SIG_BLOCK, &interruptions, &rehearse.signals);
    return run(&rehearse, &plan);
}
