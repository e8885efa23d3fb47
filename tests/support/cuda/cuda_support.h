/* cuda_support.h: how the tests of the CUDA backend come to a driver: the emulated one beside the test
 * program, or, with ZR_TEST_CUDA=card, the machine's own. */
#ifndef ZR_CUDA_SUPPORT_H
#define ZR_CUDA_SUPPORT_H

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/backend/cuda_driver.h"
#include "alloc/rehearse/driver/emulator.h"
#include "tests/support/tap.h"

/* Which of a walk's driver calls fail in turn. ThreadSanitizer clears its shadow of every range that is
 * released, which takes minutes for all of them. */
#ifdef __SANITIZE_THREAD__
enum { EVERY_NTH = 31 };
#else
enum { EVERY_NTH = 1 };
#endif

static inline bool cuda_on_card(void)
{
    const char *where = getenv("ZR_TEST_CUDA");
    return where && strcmp(where, "card") == 0;
}

/* emulator/libcuda.so.1 in the folder of the running program. */
static inline const char *cuda_emulator_path(void)
{
    static char path[PATH_MAX + 32];
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "emulator/libcuda.so.1");
    return path;
}

/* Makes zr use the emulated driver, and returns its control; NULL (with zr_last_error()) where zr was built
 * without CUDA. Before zr's first CUDA call. */
static inline const struct zr_emulator *cuda_emulator(void)
{
    if (zr_cuda_driver_path_set(cuda_emulator_path()) != ZR_OK)
        return NULL;
    void *library = dlopen(cuda_emulator_path(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("Bail out! %s\n", dlerror());
        exit(1);
    }
    return dlsym(library, "zr_emulator");
}

/* For programs that do to the driver what only the emulated one takes: NULL, after a word of why, elsewhere.
 */
static inline const struct zr_emulator *cuda_emulator_alone(void)
{
    const struct zr_emulator *emulator = cuda_emulator();
    if (!emulator)
        tap_skip("%s", zr_last_error());
    else if (cuda_on_card())
        tap_skip("what these tests do to the driver is for the emulated one only");
    else
        return emulator;
    return NULL;
}

/* What cuda_on_card() says is used: false, after a word of why, where zr was built without CUDA or there is
 * no card. *emulator: NULL on a card. */
static inline bool cuda_driver(const struct zr_emulator **emulator)
{
    zr_backend *cuda = NULL;
    *emulator = cuda_on_card() ? NULL : cuda_emulator();
    zr_result result = zr_backend_cuda_create(&cuda, NULL);
    if (cuda)
        zr_backend_destroy(cuda);
    if (result == ZR_ERR_UNAVAILABLE)
        tap_skip("%s", zr_last_error());
    return result != ZR_ERR_UNAVAILABLE;
}

#endif
