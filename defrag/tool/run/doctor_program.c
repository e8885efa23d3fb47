/* doctor_program.c: see doctor.h: checks a program and the libraries that its loader would load. Uses
 * doctor_elf.c.
 *
 * The loader lists the libraries (`LOADER --preload OURS --list PROGRAM`), so no code of the program runs.
 * Allocators inside a file are recognised by strings that they contain. A renamed and stripped allocator is
 * not found. */
#define _GNU_SOURCE
#include "defrag/tool/run/doctor.h"
#include "defrag/tool/run/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Allocators ---------------------------------------------------------------------------------------- */

/* Strings in a file that contains the allocator: a symbol or a message. */
static const struct {
    const char *mark, *name;
} allocators[] = {{"<jemalloc>: ", "jemalloc"},          {"tcmalloc: large alloc", "tcmalloc"},
                  {"mi_heap_malloc", "mimalloc"},        {"mimalloc: ", "mimalloc"},
                  {"partition_alloc", "PartitionAlloc"}, {"snmalloc", "snmalloc"},
                  {"rpmalloc_initialize", "rpmalloc"}};

/* NULL: no known allocator. */
static const char *allocator_of(const struct zr_doctor_file *file)
{
    for (size_t i = 0; i < sizeof allocators / sizeof *allocators; i++)
        if (zr_doctor_contains(file, allocators[i].mark))
            return allocators[i].name;
    return NULL;
}

void zr_doctor_malloc_paths(struct zr_doctor *doctor, const struct zr_doctor_file *file)
{
    static const char *const private_names[] = {"mi_malloc", "tc_malloc", "je_malloc", "_rjem_malloc",
                                                "rpmalloc"};
    const char *allocator = allocator_of(file);
    bool defines = zr_doctor_defines(file, "malloc");
    if (defines && file->is_program) {
        zr_doctor_add(
            doctor, ZR_DOCTOR_BAD, file->name,
            "missed: the program contains its own malloc (%s), which comes before any preloaded one",
            allocator ? allocator : "of an unknown kind");
        return;
    }
    if (defines) {
        zr_doctor_add(doctor, ZR_DOCTOR_FINE, file->name,
                      "replaced: its malloc (%s) comes after the preloaded one",
                      allocator ? allocator : "of an unknown kind");
        for (size_t i = 0; i < sizeof private_names / sizeof *private_names; i++)
            if (zr_doctor_defines(file, private_names[i]))
                zr_doctor_add(doctor, ZR_DOCTOR_NOTE, file->name, "missed where it is called as %s",
                              private_names[i]);
        return;
    }
    if (allocator)
        zr_doctor_add(
            doctor, ZR_DOCTOR_BAD, file->name,
            "missed: it contains %s for internal use; calls to that allocator are not visible from outside",
            allocator);
}

/* ---- Libraries of the program -------------------------------------------------------------------------- */

/* Reads the output of `LOADER --preload LIBRARIES --list PROGRAM`, which runs no code of the program. False:
 * the loader refused, and `out` has its reason. */
static bool list_libraries(const struct zr_program *program, const char *library, char *out,
                           size_t room_bytes)
{
    int ends[2], status = -1;
    size_t used = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        unsetenv("LD_PRELOAD");
        execl(program->loader, program->loader, "--preload", library, "--list", program->image, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    ssize_t got;
    while (child > 0 && used + 1 < room_bytes &&
           ((got = read(ends[0], out + used, room_bytes - 1 - used)) > 0 || (got < 0 && errno == EINTR)))
        used += got > 0 ? (size_t)got : 0;
    out[used] = '\0';
    close(ends[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void look_at_file(struct zr_doctor *doctor, const char *path, bool is_program,
                         struct zr_doctor_wanted wanted)
{
    struct zr_doctor_file file;
    if (!zr_doctor_open(&file, path)) {
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, path, "the file is unreadable: its allocator is unknown");
        return;
    }
    file.is_program = is_program;
    if (wanted.malloc)
        zr_doctor_malloc_paths(doctor, &file);
    if (wanted.cuda)
        zr_doctor_cuda_paths(doctor, &file);
    if (is_program && (zr_doctor_names(&file, "dlopen") || zr_doctor_names(&file, "dlmopen")))
        zr_doctor_add(
            doctor, ZR_DOCTOR_NOTE, file.name,
            "it loads libraries with dlopen(): these are not checked here; with --cuda alone, libraries with RTLD_DEEPBIND bypass zr");
    zr_doctor_close(&file);
}

/* Parses "name => path (address)" or "path (address)". NULL: no path in the line. */
static char *path_in(char *line)
{
    char *arrow = strstr(line, " => "), *path = arrow ? arrow + 4 : line + strspn(line, " \t");
    char *end = strstr(path, " (0x");
    if (path[0] != '/' || !end)
        return NULL;
    *end = '\0';
    return path;
}

/* Whether the path is a part of the C library or its loader, which define the replaced malloc. */
static bool is_system_library(const char *path)
{
    static const char *const names[] = {"libc.so.6",       "libm.so.6",  "libdl.so.2",
                                        "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"};
    const char *name = strrchr(path, '/') + 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* The libraries to preload, as a list for the loader. */
struct preloads {
    char paths[2][PATH_MAX], list[2 * PATH_MAX];
    bool seen[2];
    unsigned count;
};

static void choose_preloads(struct preloads *out, struct zr_doctor_wanted wanted)
{
    *out = (struct preloads){0};
    if (wanted.malloc && zr_program_library("libzr_malloc.so", out->paths[out->count]))
        out->count++;
    if (wanted.cuda && zr_program_library("libzr_cuda.so", out->paths[out->count]))
        out->count++;
    for (unsigned i = 0; i < out->count; i++)
        snprintf(out->list + strlen(out->list), sizeof out->list - strlen(out->list), "%s%s", i ? ":" : "",
                 out->paths[i]);
}

static bool is_preload(struct preloads *preloads, const char *path)
{
    bool found = false;
    for (unsigned i = 0; i < preloads->count; i++)
        if (strcmp(path, preloads->paths[i]) == 0)
            found = preloads->seen[i] = true;
    return found;
}

static void look_at_libraries(struct zr_doctor *doctor, const struct zr_program *program,
                              struct zr_doctor_wanted wanted)
{
    static char list[256 << 10];
    static struct preloads preloads;
    unsigned count = 0;
    choose_preloads(&preloads, wanted);
    bool listed = preloads.count > 0 && list_libraries(program, preloads.list, list, sizeof list);
    char *rest = list, *line;
    while (listed && (line = strsep(&rest, "\n"))) {
        char *missing = strstr(line, " => not found"), *path = path_in(line);
        if (missing) {
            *missing = '\0';
            zr_doctor_add(doctor, ZR_DOCTOR_BAD, line + strspn(line, " \t"),
                          "the loader does not find this library");
        }
        if (path && !is_preload(&preloads, path) && !is_system_library(path)) {
            count++;
            look_at_file(doctor, path, false, wanted);
        }
    }
    if (!listed && preloads.count > 0) {
        list[strcspn(list, "\n")] = '\0';
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "libraries", "the loader does not list them: %s", list);
        return;
    }
    for (unsigned i = 0; i < preloads.count; i++)
        if (!preloads.seen[i])
            zr_doctor_add(doctor, ZR_DOCTOR_BAD, "preload", "the loader does not load %s before this program",
                          strrchr(preloads.paths[i], '/') + 1);
    zr_doctor_add(doctor, ZR_DOCTOR_FINE, "libraries", "%u besides the C library, looked at for allocators",
                  count);
}

/* Follows scripts that wrap each other, to the program at the end. */
static void follow_scripts(struct zr_doctor *doctor, struct zr_program *program)
{
    enum { SCRIPTS_MAX = 8 };
    char target[PATH_MAX];
    for (unsigned i = 0; i < SCRIPTS_MAX && zr_script_target(program->path, target); i++) {
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "script", "%s is a script that starts %s", program->path,
                      target);
        if (!zr_program_find(target, program))
            return;
    }
}

void zr_doctor_look_at_program(struct zr_doctor *doctor, const struct zr_program *named,
                               struct zr_doctor_wanted wanted)
{
    struct zr_program last = *named;
    const struct zr_program *program = &last;
    follow_scripts(doctor, &last);
    if (program->obstacle[0]) {
        zr_doctor_add(doctor, ZR_DOCTOR_BAD, "preload", "%s: %s", program->path, program->obstacle);
        return;
    }
    if (!program->image[0]) {
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "preload", "%s is unreadable: its kind is unknown",
                      program->path);
        return;
    }
    zr_doctor_add(doctor, ZR_DOCTOR_FINE, "preload", "%s can be preloaded", program->image);
    if (strcmp(program->image, program->path) != 0)
        zr_doctor_add(doctor, ZR_DOCTOR_NOTE, "script",
                      "%s is a script: the program that it starts is not checked", program->path);
    look_at_file(doctor, program->image, true, wanted);
    look_at_libraries(doctor, program, wanted);
}
