/* process.h: whether another process of this machine still lives. Private to the project. */
#ifndef ZR_PROCESS_H
#define ZR_PROCESS_H

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* What tells one process from all others; a plain value that may be sent to them. */
struct zr_process {
    uint64_t machine; /* of this boot and this space of process numbers; 0: not known */
    uint64_t started; /* in the kernel's ticks; 0: not known */
    int32_t pid;
};

ZR_PRIVATE_API void zr_process_self(struct zr_process *out);
/* False when the process has ended, reaped or not. True too when this process cannot tell: it runs on another
 * machine, or /proc is not there. */
ZR_PRIVATE_API bool zr_process_lives(const struct zr_process *process);
/* False: it cannot be told from here whether the process lives. */
bool zr_process_near(const struct zr_process *process);
/* When this process of this machine began, in the kernel's ticks; 0: there is none. */
uint64_t zr_process_started(int32_t pid);
/* Its state, as the kernel's letter of /proc/PID/stat: 'T' stopped, 't' stopped by a debugger; 0: there is
 * none. */
char zr_process_state(int32_t pid);
/* The processor time of its threads of this name, in the kernel's ticks. */
uint64_t zr_process_thread_ticks(int32_t pid, const char *name);
/* Of this process of this machine, which began it or was given it; 0: there is none. */
int32_t zr_process_parent(int32_t pid);

#endif
