/* init.c: the one initialiser, and the one reader of the environment. In a program that has other rights than
 * its caller (a set-user-ID program) no variable is set. */
#define _GNU_SOURCE
#include "alloc/base/init.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "alloc/base/system/folders.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic bool done;

static void initialise(void)
{
    zr_fault_read(secure_getenv("ZR_FAULT"));
    zr_option_read(secure_getenv("ZR_CONF"));
    zr_group_read(secure_getenv("ZR_GROUP"));
    zr_folders_read(secure_getenv("TMPDIR"), secure_getenv("XDG_RUNTIME_DIR"));
    zr_folders_programs_read(secure_getenv("PATH"));
    atomic_store_explicit(&done, true, memory_order_release);
}

void zr_init(void)
{
    if (!atomic_load_explicit(&done, memory_order_acquire))
        pthread_once(&once, initialise);
}
