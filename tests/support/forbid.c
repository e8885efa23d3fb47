/* forbid.c: runs a program for which the kernel refuses some calls: forbid CALL[=ERROR],.. PROGRAM ARGUMENT..
 *
 * ERROR is EPERM where none is named. What a container's or a service's filter does, from before the loader
 * on. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name;
    unsigned number;
} calls[] = {{"madvise", SYS_madvise},
             {"mremap", SYS_mremap},
             {"memfd_create", SYS_memfd_create},
             {"membarrier", SYS_membarrier},
             {"mincore", SYS_mincore},
             {"openat", SYS_openat},
             {"clone3", SYS_clone3},
             {"prctl", SYS_prctl},
             {"getrusage", SYS_getrusage},
             {"kill", SYS_kill},
             {"fallocate", SYS_fallocate},
             {"fsync", SYS_fsync},
             {"io_uring_setup", SYS_io_uring_setup}};

enum { CALLS = sizeof calls / sizeof *calls };
static const struct {
    const char *name;
    unsigned number;
} errors[] = {{"EPERM", EPERM}, {"ENOSYS", ENOSYS}, {"EINVAL", EINVAL}, {"ENOMEM", ENOMEM}};

static unsigned error_of(const char *name)
{
    for (unsigned i = 0; name && i < sizeof errors / sizeof *errors; i++)
        if (strcmp(name, errors[i].name) == 0)
            return errors[i].number;
    return name ? 0 : EPERM;
}

int main(int argc, char **argv)
{
    struct sock_filter filter[2 + 2 * CALLS] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned short count = 1;
    for (char *word = argc > 2 ? strtok(argv[1], ",") : NULL; word; word = strtok(NULL, ",")) {
        char *error = strchr(word, '=');
        unsigned before = count;
        if (error)
            *error++ = '\0';
        for (unsigned i = 0; i < CALLS && count + 2u < 2 + 2 * CALLS; i++)
            if (strcmp(word, calls[i].name) == 0) {
                filter[count++] =
                    (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 1);
                filter[count++] =
                    (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error_of(error));
            }
        if (count == before || error_of(error) == 0)
            return fprintf(stderr, "forbid: %s: no call, or no error, that is known here\n", word), 2;
    }
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = count, .filter = filter};
    if (count < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return perror("forbid"), 77;
    execvp(argv[2], argv + 2);
    return perror(argv[2]), 127;
}
