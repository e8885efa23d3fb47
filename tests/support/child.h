/* child.h: a function in a forked child of a test program. */
#ifndef ZR_CHILD_H
#define ZR_CHILD_H

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Its exit status, or minus the signal that ended it: SIGALRM after `seconds`, or never with 0. */
static inline int in_child_within(int (*body)(void), unsigned seconds)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(seconds);
        _exit(body());
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline int in_child(int (*body)(void))
{
    return in_child_within(body, 0);
}

#endif
