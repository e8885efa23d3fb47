/* doctor_system.c: see doctor.h: checks the machine and this process's limits, which a program would inherit.
 * Uses alloc/base/system/os.h. */
#define _GNU_SOURCE
#include "defrag/tool/run/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/sizes.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "defrag/trace/live.h"

/* ---- The kernel ---------------------------------------------------------------------------------------- */

static void look_at_kernel(struct zr_doctor *doctor)
{
    struct utsname system;
    unsigned major = 0, minor = 0;
    if (uname(&system) != 0 || sscanf(system.release, "%u.%u", &major, &minor) != 2) {
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "kernel", "its version is unknown");
        return;
    }
    unsigned version = major * 1000 + minor;
    if (version < 4017)
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "kernel",
                      "Linux %u.%u: before 4.17 another mapping may take the addresses of a block that grew",
                      major, minor);
    else
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, "kernel", "Linux %u.%u (4.17 or later is needed)", major,
                      minor);
}

/* System calls that a seccomp filter may forbid, and zr's behaviour without each. */
static void look_at_calls(struct zr_doctor *doctor)
{
    static const char *const without[] = {
        "freed memory is returned by new mappings, which is slower", "a block that grows is copied",
        "zr's own arenas cannot share memory; a program's malloc works without it",
        "locks wait less efficiently"};
    static const char *const names[] = {"madvise", "mremap", "memfd_create", "membarrier"};
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int failed = 0, memfd = -1;
    if (pages == MAP_FAILED) {
        zr_doctor_add(doctor, ZR_DOCTOR_BAD, "mmap", "the system gives no memory: %s", strerror(errno));
        return;
    }
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        long got = i == 0   ? madvise(pages, page_bytes, MADV_DONTNEED)
                   : i == 1 ? (mremap(pages, page_bytes, page_bytes, 0) == MAP_FAILED ? -1 : 0)
                   : i == 2 ? (memfd = (int)syscall(SYS_memfd_create, "zr", 1))
                            : syscall(SYS_membarrier, 0, 0, 0);
        if (got >= 0)
            continue;
        failed++;
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, names[i], "the system refuses it (%s): %s", strerror(errno),
                      without[i]);
    }
    if (memfd >= 0)
        close(memfd);
    munmap(pages, 2 * page_bytes);
    if (!failed)
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, "calls",
                      "madvise, mremap, memfd_create and membarrier are allowed");
}

static bool read_line(const char *path, char *out, size_t room_bytes)
{
    size_t got = zr_read_text(path, out, room_bytes);
    out[strcspn(out, "\n")] = '\0';
    return got > 0;
}

static void look_at_huge_pages(struct zr_doctor *doctor)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    char line[128];
    if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) {
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "huge pages", "disabled for this process and its children");
    } else if (!read_line(path, line, sizeof line)) {
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "huge pages",
                      "this kernel has none: touching large blocks is slower");
    } else if (strstr(line, "[never]")) {
        struct zr_doctor_finding *finding =
            zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "huge pages", "never: touching large blocks is slower");
        snprintf(finding->type, sizeof finding->type, "echo madvise | sudo tee %s", path);
    } else {
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, "huge pages", "%s", line);
    }
}

static void look_at_maps(struct zr_doctor *doctor)
{
    enum { USUAL = 65530 };
    char line[64];
    if (!read_line("/proc/sys/vm/max_map_count", line, sizeof line))
        return;
    long count = strtol(line, NULL, 10);
    if (count >= USUAL) {
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, "vm.max_map_count", "%ld", count);
        return;
    }
    struct zr_doctor_finding *finding = zr_doctor_add(
        doctor, ZR_DOCTOR_NOTE, "vm.max_map_count",
        "%ld: each block that grew takes one, up to 16,384; a program's own mappings count, too", count);
    snprintf(finding->type, sizeof finding->type, "sudo sysctl vm.max_map_count=%d", USUAL);
}

/* ---- Limits -------------------------------------------------------------------------------------------- */

static void look_at_memory(struct zr_doctor *doctor)
{
    struct zr_machine machine;
    char limit[ZR_TOOL_NUMBER_ROOM], used[ZR_TOOL_NUMBER_ROOM];
    zr_os_machine(&machine);
    zr_tool_bytes(limit, machine.memory_bytes);
    zr_size_print_in(used, machine.memory_available_bytes, machine.memory_bytes);
    zr_doctor_add(doctor, ZR_DOCTOR_FINE, "memory", "%s, %s of it available", limit, used);
    if (machine.overcommit_strict) {
        struct zr_doctor_finding *finding = zr_doctor_add(
            doctor, ZR_DOCTOR_NOTE, "overcommit",
            "vm.overcommit_memory is 2: the kernel counts every page that could be touched; %s are left",
            zr_tool_bytes(limit, machine.commit_left_bytes));
        snprintf(finding->type, sizeof finding->type, "sudo sysctl vm.overcommit_memory=0");
    } else {
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, "overcommit", "the kernel counts pages when they are touched");
    }
    if (machine.cgroup_limit_bytes == 0) {
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, "cgroup", "no memory limit");
        return;
    }
    zr_tool_bytes(limit, machine.cgroup_limit_bytes);
    zr_size_print_in(used, machine.cgroup_used_bytes, machine.cgroup_limit_bytes);
    bool close_to_it = machine.cgroup_used_bytes > machine.cgroup_limit_bytes / 10 * 9;
    struct zr_doctor_finding *finding = zr_doctor_add(
        doctor, close_to_it ? ZR_DOCTOR_NOTE : ZR_DOCTOR_FINE, "cgroup",
        "%s of a limit of %s are used; at the limit the kernel kills the program, and malloc never returns NULL",
        used, limit);
    if (close_to_it)
        snprintf(finding->type, sizeof finding->type, "zr run --limit %" PRIu64 "MiB -- PROGRAM",
                 (machine.cgroup_limit_bytes >> 20) / 10 * 9);
}

static void look_at_ulimits(struct zr_doctor *doctor)
{
    static const struct {
        int which;
        const char *name, *words, *type;
        enum zr_doctor_verdict verdict;
        rlim_t min; /* the smallest acceptable limit */
    } limits[] = {
        {RLIMIT_AS, "ulimit -v",
         "the arenas reserve addresses: below this limit jemalloc serves a program without zr's arenas",
         "ulimit -v unlimited", ZR_DOCTOR_BAD, RLIM_INFINITY},
        {RLIMIT_DATA, "ulimit -d", "private memory counts when it is mapped, touched or not",
         "ulimit -d unlimited", ZR_DOCTOR_NOTE, RLIM_INFINITY},
        {RLIMIT_FSIZE, "ulimit -f", "a trace ends at this size", "ulimit -f unlimited", ZR_DOCTOR_NOTE,
         (rlim_t)64 << 20},
        {RLIMIT_STACK, "ulimit -s", "each thread stack takes as much of the address space", "ulimit -s 8192",
         ZR_DOCTOR_NOTE, 0}};
    unsigned bad = 0;
    struct rlimit limit;
    char text[ZR_TOOL_NUMBER_ROOM];
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if (getrlimit(limits[i].which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
            limit.rlim_cur >= limits[i].min)
            continue;
        bad++;
        struct zr_doctor_finding *finding =
            zr_doctor_add(doctor, limits[i].verdict, limits[i].name, "%s: %s",
                          zr_tool_bytes(text, limit.rlim_cur), limits[i].words);
        snprintf(finding->type, sizeof finding->type, "%s", limits[i].type);
    }
    if (!bad)
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, "ulimits", "no limit interferes");
}

/* ---- The library --------------------------------------------------------------------------------------- */

static void look_at_library(struct zr_doctor *doctor, const char *name)
{
    char library[PATH_MAX];
    struct statvfs system;
    if (!zr_program_library(name, library)) {
        zr_doctor_add(doctor, ZR_DOCTOR_BAD, name, "it is missing in ../lib, relative to this program");
        return;
    }
    if (access(library, R_OK) != 0)
        zr_doctor_add(doctor, ZR_DOCTOR_BAD, name, "%s: %s", library, strerror(errno));
    else if (statvfs(library, &system) == 0 && system.f_flag & ST_NOEXEC)
        zr_doctor_add(doctor, ZR_DOCTOR_BAD, name,
                      "%s lies on a file system that is mounted noexec: the loader refuses it", library);
    else if (strpbrk(library, " :"))
        zr_doctor_add(doctor, ZR_DOCTOR_BAD, name, "%s: LD_PRELOAD cannot contain blanks or colons", library);
    else
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, name, "%s", library);
}

static void look_at_environment(struct zr_doctor *doctor)
{
    static const char *const variables[] = {"LD_PRELOAD", "ZR_CONF", "LD_AUDIT"};
    const char *folder = getenv("TMPDIR");
    folder = folder && folder[0] == '/' ? folder : "/tmp";
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value && *value)
            zr_doctor_add(doctor, ZR_DOCTOR_NOTE, variables[i], "%s: stays in effect after zr's additions",
                          value);
    }
    if (access(folder, W_OK | X_OK) != 0) {
        struct zr_doctor_finding *finding =
            zr_doctor_add(doctor, ZR_DOCTOR_BAD, "figures",
                          "%s: %s: zr run --stats has no place for its files", folder, strerror(errno));
        snprintf(finding->type, sizeof finding->type, "export TMPDIR=FOLDER");
    }
}

/* Checks the folder where zr ps, top and attach find programs. */
static void look_at_live_folder(struct zr_doctor *doctor)
{
    char path[ZR_FOLDER_BYTES];
    if (zr_live_folder(path) == ZR_OK) {
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, "zr ps", "%s: programs publish their memory there", path);
        return;
    }
    struct zr_doctor_finding *finding = zr_doctor_add(
        doctor, ZR_DOCTOR_NOTE, "zr ps", "no program can publish its memory: %s", zr_last_error());
    snprintf(finding->type, sizeof finding->type, "export XDG_RUNTIME_DIR=$(mktemp -d)");
}

void zr_doctor_look_at_system(struct zr_doctor *doctor)
{
    look_at_library(doctor, "libzr_malloc.so");
    look_at_library(doctor, "libzr_cuda.so");
    look_at_environment(doctor);
    look_at_live_folder(doctor);
    look_at_kernel(doctor);
    look_at_calls(doctor);
    look_at_huge_pages(doctor);
    look_at_memory(doctor);
    look_at_ulimits(doctor);
    look_at_maps(doctor);
}
