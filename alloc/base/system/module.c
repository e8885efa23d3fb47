/* module.c: loads modules and libraries of the system at run time. Stands on the dynamic loader alone. */
#define _GNU_SOURCE
#include "alloc/base/system/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"

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

/* RTLD_GLOBAL: some libraries load parts of their own that expect to find them. */
static void *open_in(const char *folder, const char *inner, const char *file)
{
    char path[PATH_ROOM];
    if ((size_t)snprintf(path, sizeof(path), "%s%s%s", folder, inner, file) >= sizeof(path))
        return NULL;
    return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
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
            library = open_in(folder, inner[i % 3], file);
            why = library ? NULL : dlerror(); /* it is there, and does not load */
        }
    if (!library)
        return zr_fail(ZR_ERR_UNAVAILABLE, "%s: %s", file,
                       why ? why
                           : "is neither beside this program nor beside zr's library: it was built without");
    *out = dlsym(library, symbol);
    if (!*out)
        return zr_fail(ZR_ERR_UNAVAILABLE, "%s has no %s: it is of another version", file, symbol);
    return ZR_OK;
}

zr_result zr_module_find(const char *const *names, const char *const *symbols, void **functions)
{
    void *library = NULL;
    for (size_t i = 0; names[i] && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return zr_fail(ZR_ERR_UNAVAILABLE, "%s", dlerror());
    for (size_t i = 0; symbols[i]; i++) {
        bool optional = symbols[i][0] == '?';
        functions[i] = dlsym(library, symbols[i] + optional);
        if (!functions[i] && !optional)
            return zr_fail(ZR_ERR_UNAVAILABLE, "%s has no %s: it is too old", names[0], symbols[i]);
    }
    return ZR_OK;
}
