/* sweep_test.c: what is swept away while its owner lives. Ranks whose launchers are several hear of a death
 * at different moments, so one may sweep while another is about to give its save the name of a whole step. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/tap.h"
#include "zero/checkpoint/checkpoint.h"

/* Files enough that a sweep takes far longer than a rename. */
enum { FILES = 64, ROUNDS = 12 };

static char runs[64], partial[96], whole[96];

static void file_name(char out[128], const char *folder, int i)
{
    snprintf(out, 128, "%s/shard-%05d", folder, i);
}

static bool make_files(const char *folder)
{
    char name[128];
    if (mkdir(folder, 0700) != 0)
        return false;
    for (int i = 0; i < FILES; i++) {
        file_name(name, folder, i);
        int fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        if (fd < 0)
            return false;
        close(fd);
    }
    return true;
}

static int count_files(const char *folder)
{
    char name[128];
    int count = 0;
    for (int i = 0; i < FILES; i++) {
        file_name(name, folder, i);
        count += access(name, F_OK) == 0;
    }
    return count;
}

static void remove_files(const char *folder)
{
    char name[128];
    for (int i = 0; i < FILES; i++) {
        file_name(name, folder, i);
        unlink(name);
    }
    rmdir(folder);
}

static int sweep(void)
{
    zr_checkpoint_clean_up(runs);
    return 0;
}

/* Gives the save its name as soon as it is no longer whole, or without a look. True: a step by that name is
 * there, and not all of it. */
static bool hollow_step(bool looks)
{
    fflush(stdout);
    pid_t sweeper = fork();
    if (sweeper == 0)
        _exit(sweep());
    int status = 0;
    bool ended = sweeper < 0;
    while (looks && !ended && count_files(partial) == FILES)
        ended = waitpid(sweeper, &status, WNOHANG) == sweeper;
    bool named = rename(partial, whole) == 0;
    bool swept = sweeper > 0 && (ended || waitpid(sweeper, &status, 0) == sweeper) && status == 0;
    int left = count_files(whole);
    remove_files(whole);
    return !swept || left != (named ? FILES : 0);
}

static void test_live_owner(void)
{
    int hollow = 0, made = 0;
    for (int round = 0; round < ROUNDS; round++) {
        made += make_files(partial);
        hollow += hollow_step(round % 2 == 0);
        sweep();
    }
    tap_is(made, ROUNDS, "saves of %d files each are swept away while they get their names", FILES);
    tap_is(hollow, 0, "a step that has its name is whole, and one that is being swept away gets none");
}

/* A sweeper that died left the name that it had given. */
static void test_dead_sweeper(void)
{
    char left[128];
    snprintf(left, sizeof left, "%s/.step-00000007.removed", runs);
    for (int both = 0; both < 2; both++) {
        bool made = make_files(left) && (!both || make_files(partial));
        sweep();
        tap_ok(made && access(left, F_OK) != 0 && access(partial, F_OK) != 0,
               both ? "and beside another save of that step" : "what a dead sweeper has left is swept away");
    }
}

int main(void)
{
    char folder[] = "/tmp/zr-sweep-XXXXXX";
    if (!mkdtemp(folder))
        return 1;
    snprintf(runs, sizeof runs, "%s", folder);
    snprintf(partial, sizeof partial, "%s/.step-00000007.partial", runs);
    snprintf(whole, sizeof whole, "%s/step-00000007", runs);
    test_live_owner();
    test_dead_sweeper();
    tap_is(rmdir(runs), 0, "nothing else is there");
    return tap_done();
}
