/* symbols.c: see input.h. Uses libdw of elfutils for ELF and DWARF, including separate debug files in
 * /usr/lib/debug. Uses no network. */
#include "defrag/tool/input.h"

#include <dlfcn.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <gelf.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "defrag/tool/tool.h"

enum { FILES_MAX = 256, KNOWN = 4096 };

/* A file as a module of its own libdw session; every session starts at address 0. */
struct file {
    char *path;
    Dwfl *session;
    Dwfl_Module *module;  /* NULL: the file cannot be used */
    const char *obstacle; /* why the file cannot be used; NULL: not opened yet */
};

/* __cxa_demangle(): returns a malloc'ed string, or NULL for a name that is not C++. */
typedef char *demangle(const char *name, char *room, size_t *room_bytes, int *status);

/* A cached frame, because libdw takes up to a millisecond for one. */
struct known {
    const struct file *file; /* NULL: none */
    uint64_t file_offset;
    char words[ZR_FRAME_BYTES]; /* "": the frame has no name */
};

struct zr_symbols {
    struct file files[FILES_MAX];
    struct known known[KNOWN]; /* direct-mapped by hash */
    demangle *demangle;        /* NULL: no C++ runtime is present, so names remain mangled */
    unsigned files_count;
};

static char *debug_path; /* elfutils' default */
static const Dwfl_Callbacks callbacks = {.find_elf = dwfl_build_id_find_elf,
                                         .find_debuginfo = dwfl_standard_find_debuginfo,
                                         .section_address = dwfl_offline_section_address,
                                         .debuginfo_path = &debug_path};

struct zr_symbols *zr_symbols_make(void)
{
    unsetenv("DEBUGINFOD_URLS"); /* libdw would query these servers */
    struct zr_symbols *symbols = calloc(1, sizeof *symbols);
    void *runtime = symbols ? dlopen("libstdc++.so.6", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (runtime) /* never closed */
        symbols->demangle = (demangle *)(uintptr_t)dlsym(runtime, "__cxa_demangle");
    return symbols;
}

/* Reports the first file that could not be used for this reason. */
static void report(const struct zr_symbols *symbols, const char *obstacle)
{
    const struct file *first = NULL;
    unsigned count = 0;
    for (unsigned i = 0; i < symbols->files_count; i++)
        if (symbols->files[i].obstacle && strcmp(symbols->files[i].obstacle, obstacle) == 0) {
            first = first ? first : &symbols->files[i];
            count++;
        }
    if (count == 1)
        zr_tool_log("'%s' is %s: its frames are offsets", first->path, obstacle);
    else if (count > 1)
        zr_tool_log("'%s' and %u more are %s: their frames are offsets", first->path, count - 1, obstacle);
}

void zr_symbols_end(struct zr_symbols *symbols)
{
    if (!symbols)
        return;
    report(symbols, "missing");
    report(symbols, "from another build");
    for (unsigned i = 0; i < symbols->files_count; i++) {
        if (symbols->files[i].session)
            dwfl_end(symbols->files[i].session);
        free(symbols->files[i].path);
    }
    free(symbols);
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static bool is_of_build(Dwfl_Module *module, const struct zr_frame_place *place)
{
    const unsigned char *bits;
    GElf_Addr address;
    int bytes = dwfl_module_build_id(module, &bits, &address);
    return place->build_id_bytes == 0 || bytes <= 0 ||
           ((unsigned)bytes == place->build_id_bytes &&
            memcmp(bits, place->build_id, place->build_id_bytes) == 0);
}

static void open_file(struct file *file, const struct zr_frame_place *place)
{
    struct stat status;
    /* A path in a trace is untrusted: open no device and no pipe. */
    int fd = stat(place->path, &status) == 0 && S_ISREG(status.st_mode)
                 ? open(place->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
                 : -1;
    file->obstacle = fd < 0 ? "missing" : NULL;
    file->session = fd < 0 ? NULL : dwfl_begin(&callbacks);
    if (!file->session) {
        if (fd >= 0)
            close(fd);
        return;
    }
    dwfl_report_begin(file->session);
    file->module = dwfl_report_elf(file->session, file->path, file->path, fd, 0, false);
    dwfl_report_end(file->session, NULL, NULL);
    if (!file->module) /* otherwise libdw owns the descriptor */
        close(fd);
    else if (!is_of_build(file->module, place)) {
        file->module = NULL;
        file->obstacle = "from another build";
    }
}

static struct file *file_of(struct zr_symbols *symbols, const struct zr_frame_place *place)
{
    for (unsigned i = 0; i < symbols->files_count; i++)
        if (strcmp(symbols->files[i].path, place->path) == 0)
            return &symbols->files[i];
    if (symbols->files_count == FILES_MAX || place->path[0] != '/')
        return NULL;
    struct file *file = &symbols->files[symbols->files_count];
    file->path = strdup(place->path);
    if (!file->path)
        return NULL;
    symbols->files_count++;
    open_file(file, place);
    return file;
}

/* ---- Names --------------------------------------------------------------------------------------------- */

/* Converts an offset in the file to an address in the session. */
static bool address_of(Dwfl_Module *module, uint64_t file_offset, GElf_Addr *out)
{
    GElf_Addr bias;
    GElf_Phdr program;
    size_t count;
    Elf *elf = dwfl_module_getelf(module, &bias);
    if (!elf || elf_getphdrnum(elf, &count) != 0)
        return false;
    for (size_t i = 0; i < count; i++)
        if (gelf_getphdr(elf, (int)i, &program) && program.p_type == PT_LOAD &&
            file_offset - program.p_offset < program.p_filesz) {
            *out = file_offset - program.p_offset + program.p_vaddr + bias;
            return true;
        }
    return false;
}

/* Queries libdw for the name. */
static void query_name(const struct zr_symbols *symbols, const struct file *file, struct known *out)
{
    GElf_Addr address;
    GElf_Off offset;
    GElf_Sym symbol;
    int line = 0;
    out->words[0] = '\0';
    if (!file->module || !address_of(file->module, out->file_offset, &address))
        return;
    const char *name = dwfl_module_addrinfo(file->module, address, &offset, &symbol, NULL, NULL, NULL);
    Dwfl_Line *found = dwfl_module_getsrc(file->module, address);
    const char *source = found ? dwfl_lineinfo(found, NULL, &line, NULL, NULL, NULL) : NULL;
    if (!name)
        return;
    char *words =
        symbols->demangle && strncmp(name, "_Z", 2) == 0 ? symbols->demangle(name, NULL, NULL, NULL) : NULL;
    name = words ? words : name;
    if (source) {
        size_t bytes = strlen(source);
        snprintf(out->words, sizeof out->words, "%.200s (%s:%d)", name,
                 bytes > 220 ? source + (bytes - 220) : source, line);
    } else {
        snprintf(out->words, sizeof out->words, "%.200s (%.200s+0x%" PRIx64 ")", name,
                 strrchr(file->path, '/') + 1, out->file_offset);
    }
    free(words);
}

static bool name_frame(void *state, const struct zr_frame_place *place, char *out, size_t room_bytes)
{
    struct zr_symbols *symbols = state;
    struct file *file = file_of(symbols, place);
    if (!file)
        return false;
    uint64_t hash = (place->file_offset + (uint64_t)(file - symbols->files)) * UINT64_C(0x9e3779b97f4a7c15);
    struct known *known = &symbols->known[(hash >> 32) % KNOWN];
    if (known->file != file || known->file_offset != place->file_offset) {
        known->file = file;
        known->file_offset = place->file_offset;
        query_name(symbols, file, known);
    }
    snprintf(out, room_bytes, "%s", known->words);
    return known->words[0] != '\0';
}

struct zr_frame_namer zr_symbols_namer(struct zr_symbols *symbols)
{
    return (struct zr_frame_namer){.name = symbols ? name_frame : NULL, .state = symbols};
}
