/* trace_stacks.c: call stacks and modules in a trace (see trace_put.h). Uses stacks.c and file.c.
 *
 * Modules are read from /proc/self/maps when a stack has an address outside all known modules. The loader is
 * not asked: a thread that waits for the arena's lock may hold the loader's lock. */
#include "alloc/telemetry/trace_put.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/system/file.h"
#include "alloc/base/slab.h"
#include "alloc/telemetry/python.h"
#include "alloc/telemetry/stacks.h"

enum { MODULES_MAX = 2048, LINE_BYTES = 4352, ELF_BYTES = 4096, PATH_BYTES_MAX = 800, PAGE_BYTES = 4096 };

struct range {
    uint64_t start, end;
};

struct zr_trace_stacks {
    unsigned char written[(ZRT_STACKS_MAX + 8) / 8];   /* one bit for each stack number */
    unsigned char frames[(ZRT_FRAME_NUMBERS + 8) / 8]; /* and for each Python frame */
    struct range modules[MODULES_MAX];                 /* modules in the trace, the latest last */
    unsigned modules_count;
    char line[LINE_BYTES];
    _Alignas(8) unsigned char elf[ELF_BYTES]; /* the first bytes of a module's file */
};

static bool is_known(const struct zr_trace_stacks *stacks, struct range range)
{
    for (unsigned i = stacks->modules_count; i-- > 0;)
        if (range.start >= stacks->modules[i].start && range.end <= stacks->modules[i].end)
            return true;
    return false;
}

/* ---- Modules ------------------------------------------------------------------------------------------- */

struct module {
    struct range range;
    uint64_t file_offset;
    const char *path;
    unsigned build_id_bytes;
    unsigned char build_id[ZRT_BUILD_ID_BYTES];
};

/* Finds the GNU note with the build ID. */
static void find_build_id(struct module *module, const unsigned char *notes, size_t bytes)
{
    ElfW(Nhdr) note;
    for (size_t at = 0; at + sizeof note <= bytes;) {
        memcpy(&note, notes + at, sizeof note);
        size_t name_at = at + sizeof note, data_at = name_at + ((size_t)note.n_namesz + 3) / 4 * 4;
        if (note.n_namesz > bytes || note.n_descsz > bytes || data_at + note.n_descsz > bytes)
            return;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(notes + name_at, "GNU", 4) == 0 &&
            note.n_descsz <= ZRT_BUILD_ID_BYTES) {
            memcpy(module->build_id, notes + data_at, note.n_descsz);
            module->build_id_bytes = note.n_descsz;
            return;
        }
        at = data_at + ((size_t)note.n_descsz + 3) / 4 * 4;
    }
}

/* Reads the build ID from the file's first page, where linkers put headers and notes. No ID if the file was
 * removed. */
static void read_build_id(struct zr_trace_stacks *stacks, struct module *module)
{
    struct zr_file file;
    size_t got = 0;
    ElfW(Ehdr) header;
    if (module->path[0] != '/' || zr_file_open_regular(&file, module->path) != ZR_OK)
        return;
    if (zr_file_read(&file, stacks->elf, sizeof stacks->elf, &got) != ZR_OK)
        got = 0;
    zr_file_close(&file);
    if (got < sizeof header)
        return;
    memcpy(&header, stacks->elf, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(ElfW(Phdr)))
        return;
    for (size_t i = 0; i < header.e_phnum && module->build_id_bytes == 0; i++) {
        ElfW(Phdr) program;
        if (header.e_phoff > got || i >= (got - header.e_phoff) / sizeof program)
            return;
        memcpy(&program, stacks->elf + header.e_phoff + i * sizeof program, sizeof program);
        if (program.p_type == PT_NOTE && program.p_offset < got && program.p_filesz <= got - program.p_offset)
            find_build_id(module, stacks->elf + program.p_offset, program.p_filesz);
    }
}

static void write_module(struct zr_trace_stacks *stacks, struct zr_trace *trace, struct module *module)
{
    unsigned char data[ZRT_EXTENSION_BYTES], *at = data;
    size_t path_bytes = strnlen(module->path, PATH_BYTES_MAX);
    if (stacks->modules_count == MODULES_MAX)
        return;
    read_build_id(stacks, module);
    at = zrt_put_varint(at, module->range.start);
    at = zrt_put_varint(at, module->range.end - module->range.start);
    at = zrt_put_varint(at, module->file_offset);
    at = zrt_put_varint(at, module->build_id_bytes);
    memcpy(at, module->build_id, module->build_id_bytes);
    memcpy(at + module->build_id_bytes, module->path, path_bytes);
    zr_trace_write_extension(trace, ZRT_MODULE, data,
                             (size_t)(at - data) + module->build_id_bytes + path_bytes);
    stacks->modules[stacks->modules_count++] = module->range;
}

/* Parses "start-end perms offset device inode   path". */
static void parse_line(struct zr_trace_stacks *stacks, struct zr_trace *trace)
{
    struct module module = {.path = ""};
    char permissions[5];
    int path_at = 0;
    if (sscanf(stacks->line, "%lx-%lx %4s %lx %*s %*s %n", &module.range.start, &module.range.end,
               permissions, &module.file_offset, &path_at) < 4 ||
        permissions[2] != 'x' || is_known(stacks, module.range))
        return;
    if (path_at > 0 && strlen(stacks->line + path_at) <= PATH_BYTES_MAX)
        module.path = stacks->line + path_at;
    write_module(stacks, trace, &module);
}

static void write_new_modules(struct zr_trace_stacks *stacks, struct zr_trace *trace)
{
    char part[512];
    size_t got = 1, used = 0;
    struct zr_file file;
    if (zr_file_open(&file, "/proc/self/maps") != ZR_OK)
        return;
    while (zr_file_read(&file, part, sizeof part, &got) == ZR_OK && got > 0)
        for (size_t i = 0; i < got; i++) {
            stacks->line[used] = part[i];
            if (part[i] == '\n') {
                stacks->line[used] = '\0';
                parse_line(stacks, trace);
                used = 0;
            } else if (used < sizeof stacks->line - 1) {
                used++;
            }
        }
    zr_file_close(&file);
}

static void write_frame(struct zr_trace_stacks *stacks, struct zr_trace *trace, uint64_t frame)
{
    unsigned char data[10 + ZR_PYTHON_TEXT_BYTES];
    uint64_t number = frame - ZRT_FRAME_ADDRESS;
    const char *text = zr_python_text(frame);
    if (!text || number > ZRT_FRAME_NUMBERS || stacks->frames[number / 8] & 1u << number % 8)
        return;
    stacks->frames[number / 8] |= (unsigned char)(1u << number % 8);
    unsigned char *at = zrt_put_varint(data, number);
    size_t bytes = strlen(text);
    memcpy(at, text, bytes);
    zr_trace_write_extension(trace, ZRT_FRAME, data, (size_t)(at - data) + bytes);
}

/* Writes the modules and Python frames of all addresses. An address outside all files gets a module of one
 * page, so that the next stack does not search for it again. */
static void write_modules(struct zr_trace_stacks *stacks, struct zr_trace *trace, struct zr_call_stack stack)
{
    bool searched = false;
    for (unsigned i = 0; i < stack.count; i++) {
        struct range at = {stack.addresses[i], stack.addresses[i] + 1};
        if (at.start >= ZRT_FRAME_ADDRESS) {
            write_frame(stacks, trace, at.start);
            continue;
        }
        if (is_known(stacks, at))
            continue;
        if (!searched)
            write_new_modules(stacks, trace);
        searched = true;
        uint64_t page = at.start / PAGE_BYTES * PAGE_BYTES;
        if (!is_known(stacks, at) && page <= UINT64_MAX - PAGE_BYTES)
            write_module(stacks, trace, &(struct module){.range = {page, page + PAGE_BYTES}, .path = ""});
    }
}

/* ---- Stacks -------------------------------------------------------------------------------------------- */

static void write_stack(struct zr_trace *trace, uint32_t number, struct zr_call_stack stack)
{
    unsigned char data[ZRT_EXTENSION_BYTES], *at = zrt_put_varint(data, number);
    uint64_t before = 0;
    _Static_assert(10 * (ZR_STACK_FRAMES + 1) <= ZRT_EXTENSION_BYTES, "a stack fits into an extension");
    for (unsigned i = 0; i < stack.count; before = stack.addresses[i++])
        at = zrt_put_varint(at, zrt_zigzag(stack.addresses[i], before));
    zr_trace_write_extension(trace, ZRT_STACK, data, (size_t)(at - data));
}

void zr_trace_stacks_write(struct zr_trace_stacks **out, struct zr_trace *trace, uint32_t number)
{
    unsigned char data[10];
    struct zr_call_stack stack = zr_call_stack_get(number);
    if (stack.count == 0 || (!*out && !(*out = zr_pages_take_unforked(sizeof **out))))
        return;
    struct zr_trace_stacks *stacks = *out;
    if (!(stacks->written[number / 8] & 1u << number % 8)) {
        write_modules(stacks, trace, stack);
        write_stack(trace, number, stack);
        stacks->written[number / 8] |= (unsigned char)(1u << number % 8);
    }
    zr_trace_write_extension(trace, ZRT_WITH, data, (size_t)(zrt_put_varint(data, number) - data));
}

void zr_trace_stacks_end(struct zr_trace_stacks *stacks)
{
    if (stacks)
        zr_pages_give(stacks, sizeof *stacks);
}
