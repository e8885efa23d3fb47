/* module.c: loads modules and libraries of the system at run time. Uses the dynamic loader alone. */
#define _GNU_SOURCE
#include "alloc/base/system/os.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"

enum { PATH_ROOM = 4096 };

/* Cuts a path behind its last slash. */
static bool folder_of(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        slash[1] = '\0';
    return slash != NULL;
}

/* The folder that this program lies in, and that of this code, which may be a library: with a last slash. */
static bool program_folder(char *out, size_t room_bytes)
{
    ssize_t length = readlink("/proc/self/exe", out, room_bytes - 1);
    if (length <= 0)
        return false;
    out[length] = '\0';
    return folder_of(out);
}

static bool code_folder(char *out, size_t room_bytes)
{
    Dl_info info;
    return dladdr((void *)&zr_module_load, &info) != 0 && info.dli_fname &&
           (size_t)snprintf(out, room_bytes, "%s", info.dli_fname) < room_bytes && folder_of(out);
}

static void *open_in(const char *folder, const char *inner, const char *file, int scope)
{
    char path[PATH_ROOM];
    if ((size_t)snprintf(path, sizeof(path), "%s%s%s", folder, inner, file) >= sizeof(path))
        return NULL;
    return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | scope) : NULL;
}

zr_result zr_module_load(const char *file, const char *symbol, void **out)
{
    static const char *const inner[] = {"", "../lib/", "../bin/"};
    bool (*const folders[])(char *, size_t) = {program_folder, code_folder};
    char folder[PATH_ROOM];
    void *library = NULL;
    const char *why = NULL;
    *out = NULL;
    dlerror();
    for (size_t i = 0; i < 6 && !library && !why; i++)
        if (folders[i / 3](folder, sizeof(folder))) {
            /* Global: some libraries load parts of their own that expect to find them. */
            library = open_in(folder, inner[i % 3], file, RTLD_GLOBAL);
            why = library ? NULL : dlerror(); /* it is there, and does not load */
        }
    if (!library)
        return zr_fail(
            ZR_ERR_UNAVAILABLE, "%s: %s", file,
            why ? why : "was not found beside this program or beside zr's library: zr was built without it");
    *out = dlsym(library, symbol);
    if (!*out)
        return zr_fail(ZR_ERR_UNAVAILABLE, "%s lacks %s: its version differs", file, symbol);
    return ZR_OK;
}

/* ---- Libraries of the system --------------------------------------------------------------------------- */

/* A library in PyTorch's wheels: NVIDIA has a folder for all of CUDA 13, and one for each library of 12. */
static void *open_in_wheels(const char *packages, const char *file)
{
    static const char *const wheels[] = {"nvidia/cu13/lib/", "nvidia/cublas/lib/", "nvidia/nccl/lib/"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof wheels / sizeof *wheels && !library; i++)
        library = open_in(packages, wheels[i], file, RTLD_LOCAL);
    return library;
}

/* The folder of packages that the PyTorch of this process lies in. */
static int find_torch(struct dl_phdr_info *object, size_t bytes, void *packages)
{
    static const char torch[] = "/torch/lib/";
    const char *end = object->dlpi_name ? strstr(object->dlpi_name, torch) : NULL;
    (void)bytes;
    return end && (size_t)snprintf(packages, PATH_ROOM, "%.*s/", (int)(end - object->dlpi_name),
                                   object->dlpi_name) < PATH_ROOM;
}

/* Among the packages of the Pythons that lie beside a folder of programs. */
static void *open_beside_programs(const char *folder, int length, const char *file)
{
    enum { OLDEST = 8, NEWEST = 24 };
    char path[PATH_ROOM];
    void *library = NULL;
    for (unsigned i = 2 * OLDEST; i < 2 * (NEWEST + 1) && !library; i++) {
        int used = snprintf(path, sizeof path, "%.*s/../lib/python3.%u/%s-packages/", length, folder, i / 2,
                            i % 2 ? "dist" : "site");
        if (used > 0 && (size_t)used < sizeof path && access(path, X_OK) == 0)
            library = open_in_wheels(path, file);
    }
    return library;
}

static void *open_system(const char *file)
{
    char packages[PATH_ROOM];
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library || strchr(file, '/'))
        return library;
    if (dl_iterate_phdr(find_torch, packages))
        library = open_in_wheels(packages, file);
    for (const char *folder = zr_folder_programs(); *folder && !library;) {
        size_t length = strcspn(folder, ":");
        if (length > 0)
            library = open_beside_programs(folder, (int)length, file);
        folder += length + (folder[length] == ':');
    }
    return library;
}

zr_result zr_module_find(const char *const *names, const char *const *symbols, void **functions)
{
    void *library = NULL;
    for (size_t i = 0; names[i] && !library; i++)
        library = open_system(names[i]);
    if (!library) {
        const char *why = dlerror();
        return zr_fail(ZR_ERR_UNAVAILABLE, "%s", why ? why : names[0]);
    }
    for (size_t i = 0; symbols[i]; i++) {
        bool optional = symbols[i][0] == '?';
        functions[i] = dlsym(library, symbols[i] + optional);
        if (!functions[i] && !optional)
            return zr_fail(ZR_ERR_UNAVAILABLE, "%s lacks %s: it is too old", names[0], symbols[i]);
    }
    return ZR_OK;
}
