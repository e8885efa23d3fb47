/* child.c: see rehearse.h. */
#include "zero/train/rehearse.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "zero/train/rank/rank.h"
#include "zero/train/report/terminal.h"

static int answer_end = -1; /* in the child of zr_child_ask(): the write end of the pipe for its answer */

int zr_child_here(const struct zr_train_config *config, zr_child_work *work)
{
    struct zr_rank rank;
    zr_result result = zr_rank_open_records(&rank, config);
    if (result == ZR_OK)
        result = work(config, rank.host_arena);
    if (result != ZR_OK && config->start.rank == 0)
        zr_say("%s", zr_last_error());
    zr_result closed = zr_rank_close(&rank);
    if (closed != ZR_OK)
        zr_say("%s", zr_last_error());
    return (int)zr_exit_of(result != ZR_OK ? result : closed);
}

int zr_child_run(const struct zr_train_config *config, zr_child_work *work)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(zr_child_here(config, work));
    }
    while (child > 0 && waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return child < 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

zr_result zr_child_answer(const void *answer, size_t bytes)
{
    return zr_write_all(answer_end, ZR_PRESENT_POSITION, answer, bytes)
               ? ZR_OK
               : zr_fail(ZR_ERR_IO, "the result of a child process could not be sent");
}

int zr_child_ask(const struct zr_train_config *config, const char *option, zr_child_work *work, void *out,
                 size_t bytes)
{
    int ends[2], code = -1;
    if (pipe(ends) != 0) {
        zr_say("%s: cannot create a pipe (error %d)", option, errno);
        return ZR_EXIT_MEMORY;
    }
    answer_end = ends[1];
    int status = zr_child_run(config, work);
    close(ends[1]);
    if (status < 0)
        zr_say("%s: cannot fork a process to plan in (error %d)", option, errno);
    if (status != ZR_EXIT_OK || zr_read_all(ends[0], ZR_PRESENT_POSITION, out, bytes) != (ssize_t)bytes)
        code = status > 0 ? status : ZR_EXIT_MEMORY;
    close(ends[0]);
    return code;
}
