/* static_runtime.c: the CUDA runtime that a program or a module has inside: nvcc's default, and CuPy's. Its
 * functions are in the object's symbol table unless the object is stripped. Each of them that
 * libzr_rehearse.so has, too, becomes a jump there. See runtime.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/rehearse/runtime/runtime.h"

/* A jump to the address behind it. */
#if defined(__x86_64__)
static const unsigned char jump[] = {0xff, 0x25, 0, 0, 0, 0}; /* jmp *0(%rip) */
#elif defined(__aarch64__)
static const unsigned char jump[] = {0x50, 0, 0, 0x58, 0, 2, 0x1f, 0xd6}; /* ldr x16, .+8; br x16 */
#else
#error "a jump of this processor is needed here"
#endif
enum { JUMP_BYTES = sizeof jump + sizeof(void *) };

/* ---- One object ---------------------------------------------------------------------------------------- */

/* An object's file, mapped. */
struct image {
    const char *bytes;
    size_t bytes_count;
};

static const void *part(const struct image *image, uint64_t offset, uint64_t bytes)
{
    return offset <= image->bytes_count && bytes <= image->bytes_count - offset ? image->bytes + offset
                                                                                : NULL;
}

/* Where a system forbids to write code, the function stays: the answer is "refused" then. */
static void replace(unsigned char *function, const void *target)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *first = function - (uintptr_t)function % page;
    const size_t bytes = (size_t)(function - first) + JUMP_BYTES;
    if (mprotect(first, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return;
    memcpy(function, jump, sizeof jump);
    memcpy(function + sizeof jump, &target, sizeof target);
    __builtin___clear_cache((char *)function, (char *)function + JUMP_BYTES);
    mprotect(first, bytes, PROT_READ | PROT_EXEC);
}

struct symbols {
    const ElfW(Shdr) * sections;
    unsigned sections_count;
    const ElfW(Sym) * first;
    size_t count;
    const char *names;
    size_t names_bytes;
};

/* False: the object is stripped, or no ELF file. */
static bool find_symbols(struct symbols *out, const struct image *image)
{
    const ElfW(Ehdr) *header = part(image, 0, sizeof *header);
    if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
        return false;
    const ElfW(Shdr) *sections = part(image, header->e_shoff, (uint64_t)header->e_shnum * sizeof *sections);
    for (unsigned i = 0; sections && i < header->e_shnum; i++) {
        const ElfW(Shdr) *table = &sections[i], *strings = &sections[table->sh_link % header->e_shnum];
        if (table->sh_type != SHT_SYMTAB)
            continue;
        *out = (struct symbols){sections,
                                header->e_shnum,
                                part(image, table->sh_offset, table->sh_size),
                                table->sh_size / sizeof *out->first,
                                part(image, strings->sh_offset, strings->sh_size),
                                strings->sh_size};
        return out->first && out->names && out->names_bytes && out->names[out->names_bytes - 1] == '\0';
    }
    return false;
}

static const char *name_of(const struct symbols *symbols, size_t i)
{
    const size_t at = symbols->first[i].st_name;
    return at < symbols->names_bytes ? symbols->names + at : "";
}

static bool is_code(const struct symbols *symbols, const ElfW(Sym) * one)
{
    if (ELF64_ST_TYPE(one->st_info) != STT_FUNC || one->st_size < JUMP_BYTES ||
        one->st_shndx >= symbols->sections_count)
        return false;
    const ElfW(Shdr) *section = &symbols->sections[one->st_shndx];
    return section->sh_flags & SHF_EXECINSTR && one->st_value >= section->sh_addr &&
           one->st_value - section->sh_addr + one->st_size <= section->sh_size;
}

/* A function of that name that is not of the runtime, a wrapper of the program for example, stays. */
static void replace_all(const struct symbols *symbols, ElfW(Addr) base, void *ours)
{
    static const char mark[] = "libcudart_static_"; /* of the runtime's private functions */
    bool has_runtime = false;
    for (size_t i = 0; i < symbols->count && !has_runtime; i++)
        has_runtime = strncmp(name_of(symbols, i), mark, sizeof mark - 1) == 0;
    for (size_t i = 0; i < symbols->count && has_runtime; i++) {
        const ElfW(Sym) *each = &symbols->first[i];
        const char *name = name_of(symbols, i);
        if (strncmp(name + (strncmp(name, "__", 2) == 0 ? 2 : 0), "cuda", 4) != 0 || !is_code(symbols, each))
            continue;
        void *target = dlsym(ours, name);
        if (target)
            replace((unsigned char *)(uintptr_t)(base + each->st_value), target); // NOLINT
    }
}

/* The object stays loaded meanwhile. */
static void look_into(const char *path, void *ours)
{
    void *handle = dlopen(path && *path ? path : NULL, RTLD_LAZY | RTLD_NOLOAD);
    struct link_map *map = NULL;
    struct stat about;
    struct symbols symbols;
    if (!handle)
        return;
    int file = open(path && *path ? path : "/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file >= 0 && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && fstat(file, &about) == 0 &&
        about.st_size > 0) {
        struct image image = {mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0),
                              (size_t)about.st_size};
        if (image.bytes != MAP_FAILED) {
            if (find_symbols(&symbols, &image))
                replace_all(&symbols, map->l_addr, ours);
            munmap((void *)(uintptr_t)image.bytes, image.bytes_count);
        }
    }
    if (file >= 0)
        close(file);
    dlclose(handle);
}

/* ---- The objects of the process ------------------------------------------------------------------------ */

struct objects {
    char **paths; /* in the order of loading */
    size_t count, room;
    unsigned long long loads; /* how many were loaded since the program began */
};

static int add_path(struct dl_phdr_info *info, size_t bytes, void *state)
{
    struct objects *objects = state;
    (void)bytes;
    objects->loads = info->dlpi_adds;
    if (objects->count == objects->room) {
        objects->room = 2 * objects->room + 64;
        char **paths = realloc(objects->paths, objects->room * sizeof *paths);
        if (!paths)
            return 1;
        objects->paths = paths;
    }
    objects->paths[objects->count] = strdup(info->dlpi_name);
    return objects->paths[objects->count++] == NULL;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Another thread of the parent may have held it: the child looks into that object again. */
static void in_child(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Of all objects that were loaded since the last call. */
__attribute__((visibility("default"), constructor)) void zr_rehearse_replace_runtimes(void);
void zr_rehearse_replace_runtimes(void)
{
    static unsigned long long loads; /* lock: lock */
    struct objects objects = {0};
    Dl_info info;
    void *ours = dladdr(jump, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!ours)
        return;
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(add_path, &objects);
    const unsigned long long added = objects.loads - loads;
    for (size_t i = 0; i < objects.count; i++)
        if (i + added >= objects.count)
            look_into(objects.paths[i], ours);
    loads = objects.loads;
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < objects.count; i++)
        free(objects.paths[i]);
    free(objects.paths);
    dlclose(ours);
}
