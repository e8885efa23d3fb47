/* thread_pool.h: the compute threads of a rank, passed to kernels as a struct zr_parallel. The thread that
 * calls run() executes part 0; part i always runs on the same thread. A pool belongs to one process:
 * create it after the fork. */
#ifndef ZR_THREAD_POOL_H
#define ZR_THREAD_POOL_H

#include "alloc/zr.h"
#include "kernels/zr_kernels.h"

typedef struct zr_thread_pool zr_thread_pool;

struct zr_thread_pool_options {
    zr_arena *host_arena; /* for records and stacks, tag other */
    unsigned threads;     /* threads of this rank including the caller; at least 1 */
    unsigned ranks_here;  /* ranks of this machine. Waiting threads spin briefly if ranks_here * threads
                           * fit the cores, else yield at once. 0: 1 */
};

/* Starts threads - 1 workers. On success *out owns them until zr_thread_pool_destroy(). ZR_ERR_INVALID: no
 * arena or no thread. ZR_ERR_UNAVAILABLE and the arena's errors: a thread did not start; the earlier ones
 * were stopped. */
zr_result zr_thread_pool_create(zr_thread_pool **out, const struct zr_thread_pool_options *options);
/* Stops the workers; no run() may be in progress. NULL: no effect. */
void zr_thread_pool_destroy(zr_thread_pool *pool);

/* For a kernel context; valid as long as the pool. One run() at a time, from any thread. */
struct zr_parallel zr_thread_pool_parallel(zr_thread_pool *pool);

#endif
