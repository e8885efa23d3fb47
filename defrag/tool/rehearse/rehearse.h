/* rehearse.h: `zr rehearse` in parts: the device and the program (rehearse.c), the figures of a rehearsal
 * (rehearse_figures.c, rehearse_ranks.c) and their words (rehearse_answer.c). Private to defrag/tool/. */
#ifndef ZR_TOOL_REHEARSE_H
#define ZR_TOOL_REHEARSE_H

#include <limits.h>

#include "alloc/rehearse/account.h"
#include "alloc/rehearse/cards.h"
#include "defrag/report/call_site.h"
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
    uint64_t peak_bytes[ZR_ACCOUNT_DEVICES_MAX], nccl_bytes[ZR_ACCOUNT_DEVICES_MAX]; /* of the machine's */
};

enum { ZR_REHEARSE_SITES = 3, ZR_REHEARSE_CATEGORIES = 16 };
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

/* Of the process and device with the most reserved bytes. */
struct zr_rehearse_figures {
    int device; /* that needs the most memory */
    struct zr_account_device use;
    unsigned static_runtimes_count;
    struct zr_rehearse_torch torch;
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
    uint64_t expandable_bytes, best_bytes, zr_bytes;
    char best_option[48];
    struct zr_rehearse_ranks ranks;
    char unread[256]; /* why the snapshot gives no sites and replays; "": it does */
};

/* Reads the account, and the lines of sitecustomize.py in `folder`, and analyzes the snapshot. */
zr_result zr_rehearse_read(struct zr_rehearse_figures *out, const struct zr_account *account,
                           const char *folder, zr_arena *arena);

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

struct zr_rehearse_answer {
    const struct zr_rehearse_device *device;
    const struct zr_rehearse_figures *figures;
    char **command;
    int status;        /* of the program, as waitpid() returns it */
    const char *clock; /* the seed; NULL: none */
};
/* rehearse_reads.c: reads the lines of sitecustomize.py, and removes them. */
void zr_rehearse_reads_read(struct zr_rehearse_figures *out, const struct zr_account *account,
                            const char *folder);
void zr_rehearse_reads_print(struct zr_text *text, const struct zr_rehearse_figures *figures);
void zr_rehearse_reads_json(struct zr_text *text, const struct zr_rehearse_figures *figures);

/* At most twelve lines, each begins with "zr: ". */
void zr_rehearse_print(struct zr_text *text, const struct zr_rehearse_answer *answer);
void zr_rehearse_json(struct zr_text *text, const struct zr_rehearse_answer *answer);

#endif
