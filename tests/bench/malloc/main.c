/* main.c: malloc_workloads NAME [THREADS] [SCALE] runs a workload and prints a line of JSON; `list` prints
 * their names; `check` runs each at a tenth of its size, compares all contents, and holds the checksums to
 * those stored here. Linked with libc and threads alone: the allocator is libc's or the preloaded one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/malloc/workloads.h"

static const struct workload workloads[] = {
    {"larson", workload_larson, 2, 0xe8b5e15d309a6403, false},
    {"xmalloc", workload_xmalloc, 2, 0xeb082882c6e7618e, false},
    {"mstress", workload_mstress, 2, 0x281e52a71fea7398, false},
    {"rptest", workload_rptest, 2, 0x3e4c631bb1a9b947, false},
    {"cache-scratch", workload_cache_scratch, 2, 0x12695c8ada76c690, false},
    {"cache-thrash", workload_cache_thrash, 2, 0x0000000018519600, false},
    {"glibc-simple", workload_glibc_simple, 1, 0x13520881b1247a60, false},
    {"glibc-thread", workload_glibc_thread, 2, 0xc30048c826e40328, false},
    {"alloc-test", workload_alloc_test, 1, 0x32422278571cfb57, false},
    {"sh6", workload_sh6, 1, 0x5062edf7d042d400, false},
    {"sh8", workload_sh8, 2, 0x73e4576c863858a6, false},
    {"malloc-large", workload_malloc_large, 1, 0x9edd88109d716dba, false},
    {"espresso", workload_espresso, 1, 0x2f67e9afacb9a438, false},
    {"barnes", workload_barnes, 1, 0xb4a892565ea245be, false},
    {"cfrac", workload_cfrac, 1, 0x5e11ac12107befb4, false},
    {"lean", workload_lean, 2, 0x535c4235b03581a9, false},
    {"redis", workload_redis, 1, 0x4087be8c2fa35da4, false},
    {"strings", workload_strings, 1, 0xaf0c1996447e2a18, false},
    {"json", workload_json, 1, 0x730bf4c86837031d, false},
    {"grow", workload_grow, 1, 0x91c16fc8bf20e51e, true},
    {"server-large", workload_server_large, 1, 0x56bc0573b189c150, true},
    {"server-small", workload_server_small, 1, 0xe5f2488bec00dfc1, true},
};
enum { WORKLOADS = sizeof workloads / sizeof *workloads };

/* The most that was resident since exec: wait4's figure begins with that of the process that forked. */
static uint64_t peak_bytes(void)
{
    static char text[4096];
    FILE *file = fopen("/proc/self/status", "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = 0;
    const char *line = strstr(text, "VmHWM:");
    if (!line) {
        die("/proc/self/status has no VmHWM");
    }
    fclose(file);
    return strtoull(line + 6, NULL, 10) * 1024;
}

static int one(const struct workload *workload, const struct run *run)
{
    double before = seconds_now();
    struct tally tally = workload->run(run);
    double seconds = tally.seconds > 0 ? tally.seconds : seconds_now() - before;
    printf("{\"name\": \"%s\", \"operations\": %" PRIu64 ", \"seconds\": %.6f, \"checksum\": \"%016" PRIx64
           "\", "
           "\"peak_bytes\": %" PRIu64,
           workload->name, tally.operations, seconds, tally.checksum, peak_bytes());
    if (tally.rss_bytes[0]) {
        printf(", \"live_bytes\": %" PRIu64 ", \"rss_bytes\": [%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]",
               tally.live_bytes, tally.rss_bytes[0], tally.rss_bytes[1], tally.rss_bytes[2]);
    }
    return puts("}") < 0;
}

static int check(void)
{
    int failed = 0;
    workloads_strict = true;
    for (unsigned i = 0; i < WORKLOADS; i++) {
        const struct workload *workload = &workloads[i];
        struct tally tally = workload->run(&(struct run){.threads = workload->threads, .scale = 0.1});
        if (tally.checksum != workload->checksum) {
            printf("%s: checksum 0x%016" PRIx64 ", stored is 0x%016" PRIx64 "\n", workload->name,
                   tally.checksum, workload->checksum);
            failed = 1;
        }
    }
    puts(failed ? "malloc_workloads: an allocator's blocks have changed, or a workload has"
                : "all checksums hold");
    return failed;
}

static int usage(void)
{
    fprintf(stderr, "usage: malloc_workloads NAME [THREADS] [SCALE] | list | check; NAME: ");
    for (unsigned i = 0; i < WORKLOADS; i++) {
        fprintf(stderr, "%s%s", workloads[i].name, i + 1 < WORKLOADS ? ", " : "\n");
    }
    return 2;
}

int main(int count, char **words)
{
    const char *name = count > 1 ? words[1] : "";
    if (!strcmp(name, "check") && count == 2) {
        return check();
    }
    for (unsigned i = 0; i < WORKLOADS; i++) {
        if (!strcmp(name, "list") && !workloads[i].part) {
            puts(workloads[i].name);
        }
        if (!strcmp(name, workloads[i].name)) {
            struct run run = {.threads =
                                  count > 2 ? (unsigned)strtoul(words[2], NULL, 10) : workloads[i].threads,
                              .scale = count > 3 ? strtod(words[3], NULL) : 1};
            return run.threads && run.threads <= 1024 && run.scale > 0 && count <= 4
                       ? one(&workloads[i], &run)
                       : usage();
        }
    }
    return strcmp(name, "list") ? usage() : 0;
}
