/* module.c: loads modules and libraries of the system at run time. Stands on the dynamic loader alone. */
#define _GNU_SOURCE
#include "alloc/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/error.h"

enum { PATH_ROOM = 4096 };

/* The folder that this program lies in, with its last slash. */
static bool own_folder(char *out, size_t room_bytes)
{
    ssize_t length = readlink("/proc/self/exe", out, room_bytes - 1);
    if (length <= 0)
        return false;
    out[length] = '\0';
    char *slash = strrchr(out, '/');
    if (!slash)
        return false;
    slash[1] = '\0';
    return true;
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
    char folder[PATH_ROOM];
    const char *why;
    *out = NULL;
    if (!own_folder(folder, sizeof(folder)))
        return zr_fail(ZR_ERR_UNAVAILABLE, "%s: /proc does not say where this program lies", file);
    dlerror();
    void *library = open_in(folder, "", file);
    why = library ? NULL : dlerror();
    if (!library && !why) {
        library = open_in(folder, "../lib/", file);
        why = library ? NULL : dlerror();
    }
    if (!library)
        return zr_fail(ZR_ERR_UNAVAILABLE, "%s: %s", file,
                       why ? why : "is not beside this program: it was built without");
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
