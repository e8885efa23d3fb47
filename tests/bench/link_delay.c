/* link_delay.c: a link with a delay, for bench_requests.py: a library that is loaded before libc and keeps
 * each request to a parameter server back for ZR_LINK_DELAY_US, in the thread that sends it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "zero/ps/wire.h"

ssize_t sendmsg(int socket, const struct msghdr *message, int flags)
{
    static ssize_t (*next)(int, const struct msghdr *, int);
    static long delay_us;
    if (!next) {
        const char *text = getenv("ZR_LINK_DELAY_US");
        delay_us = text ? atol(text) : 0;
        next = (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    }
    const struct zr_ps_frame *frame = message->msg_iov->iov_base;
    if (delay_us > 0 && message->msg_iov->iov_len >= sizeof *frame && frame->magic == ZR_PS_MAGIC &&
        frame->kind < ZR_PS_REPLY)
        nanosleep(&(struct timespec){delay_us / 1000000, delay_us % 1000000 * 1000}, NULL);
    return next(socket, message, flags);
}
