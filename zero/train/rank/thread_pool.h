/* thread_pool.h: the compute threads of a rank, lent to the kernels as a struct zr_parallel.
 *
 * The thread that calls run() is part 0 and works along; part i always runs on the same thread. A pool
 * belongs to one process: create it after the fork. */
#ifndef ZR_THREAD_POOL_H
#define ZR_THREAD_POOL_H

#include "alloc/zr.h"
#include "kernels/zr_kernels.h"

typedef struct zr_thread_pool zr_thread_pool;

struct zr_thread_pool_options {
    zr_arena *host_arena; /* records and stacks, tag other */
    unsigned threads;     /* of this rank, the calling one included; at least 1 */
    unsigned ranks_here;  /* ranks of this machine. Waits spin for a moment only when ranks_here * threads fit
                           * the  cores; otherwise a waiting thread gives its core up at once. 0: 1 */
};

/* Starts threads - 1 workers. On success *out owns them until zr_thread_pool_destroy().
 * ZR_ERR_INVALID: no arena or no thread. ZR_ERR_UNAVAILABLE and the arena's errors: a thread did not start;
 * the ones before it have been ended again. */
zr_result zr_thread_pool_create(zr_thread_pool **out, const struct zr_thread_pool_options *options);
/* Ends the workers. NULL does nothing. No run() may be going on. */
void zr_thread_pool_destroy(zr_thread_pool *pool);

/* What to put into a kernel context; valid as long as the pool. One run() at a time, from any one thread. */
struct zr_parallel zr_thread_pool_parallel(zr_thread_pool *pool);

#endif
