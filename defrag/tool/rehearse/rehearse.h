/* rehearse.h: `zr rehearse` in parts: the command (rehearse.c), one run of the program (rehearse_run.c),
 * several runs (rehearse_runs.c), the figures of a run (rehearse_figures.c, rehearse_ranks.c,
 * rehearse_reads.c) and their words (rehearse_answer.c). Private to defrag/tool/. */
#ifndef ZR_TOOL_REHEARSE_H
#define ZR_TOOL_REHEARSE_H

#include <limits.h>
#include <signal.h>
#include <stdio.h>

#include "alloc/rehearse/account.h"
#include "alloc/rehearse/cards.h"
#include "defrag/report/call_site.h"
#include "defrag/tool/run/program.h"
#include "defrag/tool/tool.h"

/* What is simulated. */
struct zr_rehearse_device {
    const struct zr_card *card;
    uint64_t memory_bytes, context_bytes; /* of each device */
    uint64_t devices_count;
};

/* PyTorch's own count of a process on a device. */
struct zr_rehearse_torch {
    int process, device; /* process 0: there is no PyTorch */
    uint64_t allocated_bytes, reserved_bytes, failures_count;
    bool killed; /* it ended without Python's exit: the figures are the account's */
    char snapshot[PATH_MAX];
};

/* PyTorch processes and their devices, each with its device's use, in the order of ranks and devices. */
enum { ZR_REHEARSE_RANKS_MAX = ZR_ACCOUNT_PROCESSES_MAX };
struct zr_rehearse_ranks {
    unsigned count;
    struct zr_rehearse_rank {
        int process, rank; /* rank: -1: none */
        int device, machine_device;
        uint64_t allocated_bytes, reserved_bytes, failures_count; /* PyTorch's peaks and failed requests */
        char snapshot[PATH_MAX];
    } each[ZR_REHEARSE_RANKS_MAX];
    /* Of the machine's devices. */
    uint64_t peak_bytes[ZR_ACCOUNT_DEVICES_MAX], nccl_bytes[ZR_ACCOUNT_DEVICES_MAX],
        libraries_bytes[ZR_ACCOUNT_DEVICES_MAX];
};

enum {
    ZR_REHEARSE_SITES = 3,
    ZR_REHEARSE_CATEGORIES = 16,
    ZR_REHEARSE_OPTIONS = 8,
    ZR_REHEARSE_CALLS = 1024
};
struct zr_rehearse_site {
    uint64_t bytes;
    char category[32], words[ZR_FRAME_BYTES]; /* of the innermost frame that tells something */
};
/* Lines of the program that read what kernels would have made. */
enum { ZR_REHEARSE_READS = 32 };
struct zr_rehearse_read {
    uint64_t count, bytes;
    int sizes; /* 1: the operator makes a tensor of a size that it reads; 0: the program gets a value */
    char operator_name[64], place[ZR_FRAME_BYTES]; /* place: "FILE:LINE" */
};

/* Of the process and device whose request failed, or with the most reserved bytes. */
struct zr_rehearse_figures {
    int device; /* that needs the most memory */
    struct zr_account_device use;
    unsigned static_runtimes_count, torches_count; /* as in the account */
    struct zr_rehearse_torch torch;
    char version[48]; /* of PyTorch, where a Python program imported it; "": none did */
    uint64_t cupy_reserved_bytes, cupy_used_bytes; /* of CuPy's default pool at the program's end */
    bool is_cpu;                                   /* that PyTorch is a build without CUDA */
    /* At the peak, by its snapshot; the largest first. */
    struct zr_rehearse_site sites[ZR_REHEARSE_SITES];
    struct {
        uint64_t bytes;
        char name[32];
    } categories[ZR_REHEARSE_CATEGORIES];
    unsigned sites_count, categories_count;
    /* Those that make sizes first, then those with the most reads. */
    struct zr_rehearse_read reads[ZR_REHEARSE_READS];
    unsigned reads_count, size_reads_count;    /* lines; of them those that make sizes */
    uint64_t all_reads_count, all_reads_bytes; /* of all processes, PyTorch or not */
    /* That other allocators would have reserved for the same requests; 0: unknown. */
    uint64_t zr_bytes;
    struct zr_rehearse_option {
        uint64_t bytes;
        char conf[48]; /* of PYTORCH_CUDA_ALLOC_CONF: of each option the value that reserves the least */
    } options[ZR_REHEARSE_OPTIONS];
    unsigned options_count;
    struct zr_rehearse_ranks ranks;
    char unread[256]; /* why the snapshot gives no sites and replays; "": it does */
    /* Functions of NVIDIA's libraries without an answer, and libraries whose workspaces count as 0 bytes. */
    struct zr_rehearse_calls {
        struct zr_rehearse_call {
            uint64_t count;
            char name[64];
        } each[ZR_REHEARSE_CALLS];
        unsigned count;
    } calls, workspaces;
};

/* Reads the account, and the files `torch`, `ranks`, `reads` and `calls` in `folder`, and analyzes the
 * snapshot. */
zr_result zr_rehearse_read(struct zr_rehearse_figures *out, const struct zr_account *account,
                           const char *folder, zr_arena *arena);

/* Opens a file that processes of the program may have written, and removes its name. NULL: there is none. */
FILE *zr_rehearse_take_file(const char *folder, const char *name);

/* Reads the lines of zr_rehearse_ranks.py in `folder`. */
void zr_rehearse_ranks_read(struct zr_rehearse_ranks *out, const struct zr_account *account,
                            const char *folder);
/* The machine's number of a process's device. */
int zr_rehearse_ranks_device(const struct zr_rehearse_ranks *ranks, int process, int device);
/* A line, if there are several. */
void zr_rehearse_ranks_print(struct zr_text *text, const struct zr_rehearse_ranks *ranks);
/* "ranks": [..], "peaks": [..] */
void zr_rehearse_ranks_json(struct zr_text *text, const struct zr_rehearse_ranks *ranks,
                            uint64_t devices_count);

/* rehearse_reads.c: reads the lines of sitecustomize.py, and removes them. */
void zr_rehearse_reads_read(struct zr_rehearse_figures *out, const struct zr_account *account,
                            const char *folder);
void zr_rehearse_reads_print(struct zr_text *text, const struct zr_rehearse_figures *figures);
void zr_rehearse_reads_json(struct zr_text *text, const struct zr_rehearse_figures *figures);

/* WENT_ON: requests of PyTorch failed for good, and the program ended well. */
enum zr_rehearse_verdict {
    ZR_REHEARSE_FITS,
    ZR_REHEARSE_SHORT,
    ZR_REHEARSE_WENT_ON,
    ZR_REHEARSE_FAILED,
    ZR_REHEARSE_REFUSED,
    ZR_REHEARSE_UNUSED
};
struct zr_rehearse_answer {
    const struct zr_rehearse_device *device;
    const struct zr_rehearse_figures *figures;
    int status;          /* of the program, as waitpid() returns it */
    int interrupted;     /* as in struct zr_run_end */
    uint64_t ns;         /* that the program ran */
    uint64_t host_bytes; /* the most of the host's memory in its process, or in one that it waited for */
    const char *clock;   /* the seed; NULL: none */
    bool verbose;
    char traces[PATH_MAX]; /* the folder of the devices' traces; "": none */
    char tail[2048];       /* of the log, if the run has one */
};
enum zr_rehearse_verdict zr_rehearse_verdict(const struct zr_rehearse_answer *answer);
const char *zr_rehearse_verdict_name(const struct zr_rehearse_answer *answer);
/* What the request that failed misses; 0: the device refused none. */
uint64_t zr_rehearse_short_bytes(const struct zr_rehearse_answer *answer);
/* At most 18 lines, each begins with "zr: "; `verbose` adds the calls without an answer. */
void zr_rehearse_print(struct zr_text *text, const struct zr_rehearse_answer *answer);
/* The members of a JSON object. */
void zr_rehearse_json(struct zr_text *text, const struct zr_rehearse_answer *answer);

/* The options, and the program. */
struct zr_rehearse {
    struct zr_rehearse_device device;
    const char *device_name, *output, *json, *clock, *fill, *nonzero; /* NULL: not given */
    uint64_t keep_bytes;
    bool verbose, allocators;
    struct zr_program program;
    char library[PATH_MAX];
    sigset_t signals; /* that zr was started with */
};

/* One run of the program. */
struct zr_rehearse_run {
    char **command;
    const char *output;    /* folder for snapshots; NULL: they are removed with the run's other files */
    const char *allocator; /* PYTORCH_CUDA_ALLOC_CONF; NULL: the environment's */
    bool logged; /* standard output and standard error go to the file `log` beside the snapshots, not on */
};
/* The signals that interrupt a rehearsal. zr blocks them from its start on, since runs have folders to
 * remove. */
void zr_rehearse_interruptions(sigset_t *out);

/* Less than 0: *out has the answer, whose figures last until the next run. Else an exit code, after a
 * message; 128 and a signal's number: the signal came before the run. */
int zr_rehearse_run(struct zr_rehearse *rehearse, const struct zr_rehearse_run *run,
                    struct zr_rehearse_answer *out);

/* Several runs. */
struct zr_rehearse_plan {
    char **command;
    const char *find_max, *output; /* NULL: not given */
    struct zr_tool_texts sweeps;
};
/* Runs the plan and prints a row for each run on standard output, and its object into `json` if there is one.
 * Returns the exit code. */
int zr_rehearse_sweep(struct zr_rehearse *rehearse, const struct zr_rehearse_plan *plan,
                      struct zr_text *json);
/* Runs the command once more with each option of PyTorch's allocator, printing a line for each and a member
 * "allocators" of the answer's object into `json`, if there is one. Less than 0: all were run. */
int zr_rehearse_allocators(struct zr_rehearse *rehearse, char **command,
                           const struct zr_rehearse_answer *answer, struct zr_text *words,
                           struct zr_text *json);

#endif
