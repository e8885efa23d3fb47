/* doctor_elf.c: see doctor.h: maps a program or library and reads its symbols. Files may be damaged: every
 * offset is checked. */
#define _GNU_SOURCE
#include "defrag/tool/run/doctor.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct part {
    const char *data; /* NULL: no such section */
    size_t bytes;
    uint32_t link;
};

static bool has(const struct zr_doctor_file *file, uint64_t offset, uint64_t bytes)
{
    return offset <= file->bytes && bytes <= file->bytes - offset;
}

static const Elf64_Ehdr *header_of(const struct zr_doctor_file *file)
{
    const Elf64_Ehdr *header = (const void *)file->data;
    bool good = has(file, 0, sizeof *header) && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
                header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_shentsize == sizeof(Elf64_Shdr) &&
                header->e_shoff % 8 == 0 &&
                has(file, header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr));
    return good ? header : NULL;
}

static struct part section(const struct zr_doctor_file *file, uint32_t number)
{
    const Elf64_Ehdr *header = header_of(file);
    if (!header || number >= header->e_shnum)
        return (struct part){0};
    const Elf64_Shdr *own = (const Elf64_Shdr *)(const void *)(file->data + header->e_shoff) + number;
    return has(file, own->sh_offset, own->sh_size)
               ? (struct part){file->data + own->sh_offset, own->sh_size, own->sh_link}
               : (struct part){0};
}

static struct part dynamic_symbols(const struct zr_doctor_file *file)
{
    const Elf64_Ehdr *header = header_of(file);
    for (uint32_t i = 0; header && i < header->e_shnum; i++) {
        const Elf64_Shdr *own = (const Elf64_Shdr *)(const void *)(file->data + header->e_shoff) + i;
        if (own->sh_type == SHT_DYNSYM && own->sh_offset % 8 == 0)
            return section(file, i);
    }
    return (struct part){0};
}

bool zr_doctor_next_symbol(const struct zr_doctor_file *file, size_t *at, struct zr_doctor_symbol *out)
{
    while (*at < file->symbols_count) {
        const Elf64_Sym *own = (const Elf64_Sym *)file->symbols + (*at)++;
        if (own->st_name == 0 || own->st_name >= file->strings_bytes ||
            !memchr(file->strings + own->st_name, '\0', file->strings_bytes - own->st_name))
            continue;
        *out = (struct zr_doctor_symbol){file->strings + own->st_name, own->st_shndx != SHN_UNDEF};
        return true;
    }
    return false;
}

bool zr_doctor_defines(const struct zr_doctor_file *file, const char *symbol)
{
    struct zr_doctor_symbol own;
    for (size_t at = 0; zr_doctor_next_symbol(file, &at, &own);)
        if (own.defined && strcmp(own.name, symbol) == 0)
            return true;
    return false;
}

bool zr_doctor_names(const struct zr_doctor_file *file, const char *symbol)
{
    size_t length = strlen(symbol) + 1;
    const char *at = file->strings, *end = at + file->strings_bytes;
    while (at && at < end && (at = memmem(at, (size_t)(end - at), symbol, length))) {
        if (at > file->strings && at[-1] == '\0')
            return true;
        at++;
    }
    return false;
}

bool zr_doctor_contains(const struct zr_doctor_file *file, const char *text)
{
    return memmem(file->data, file->bytes, text, strlen(text)) != NULL;
}

bool zr_doctor_open(struct zr_doctor_file *out, const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *out = (struct zr_doctor_file){.path = path, .name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path};
    void *data = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
        data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0)
        close(fd);
    if (data == MAP_FAILED)
        return false;
    out->data = data;
    out->bytes = (size_t)status.st_size;
    struct part symbols = dynamic_symbols(out), strings = section(out, symbols.link);
    out->symbols = symbols.data;
    out->symbols_count = symbols.bytes / sizeof(Elf64_Sym);
    out->strings = strings.data;
    out->strings_bytes = strings.bytes;
    return true;
}

void zr_doctor_close(struct zr_doctor_file *file)
{
    if (file->data)
        munmap((void *)file->data, file->bytes);
    *file = (struct zr_doctor_file){0};
}
