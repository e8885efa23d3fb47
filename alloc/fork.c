/* fork.c: takes every lock before fork() and opens it on both sides after, outermost first: the list of
 * arenas, the arenas, the backends, liburcu's own, and last the error texts', which any of the others'
 * holders may want. Stands on error.c, index.c, arena.c and backend.c. */
#include "alloc/fork.h"

#include <pthread.h>

#include "alloc/arena_internal.h"
#include "alloc/backend.h"
#include "alloc/contiguous.h"
#include "alloc/error.h"
#include "alloc/index.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    zr_pools_before_fork();
    zr_arenas_before_fork();
    zr_backend_before_fork();
    zr_index_before_fork();
}

static void after_fork_parent(void)
{
    zr_index_after_fork_parent();
    zr_backend_after_fork();
    zr_arenas_after_fork();
    zr_pools_after_fork();
}

static void after_fork_child(void)
{
    zr_index_after_fork_child();
    zr_backend_after_fork();
    zr_arenas_after_fork_child();
    zr_pools_after_fork();
}

static void wire(void)
{
    zr_error_prepare();
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void zr_fork_prepare(void)
{
    pthread_once(&once, wire);
}
