/* serving_test.c: a process that shows its memory: where it listens, what it leaves when it cannot begin,
 * when it forks and when it ends, and who is heard. Each part runs in a child, which shows nothing yet. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "alloc/base/system/file.h"
#include "alloc/zr.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/tap.h"

static char folder[] = "/tmp/zr-serving-XXXXXX";
static zr_arena *arena;

static unsigned mode_of(const char *kind)
{
    char path[80];
    struct stat status;
    snprintf(path, sizeof path, "%s/zr/%ld.%s", folder, (long)getpid(), kind);
    return lstat(path, &status) == 0 ? status.st_mode & 0777 : 0;
}

/* An arena that grows, so that what is due begins. */
static bool grow(void)
{
    static zr_backend *backend;
    void *block;
    if (!backend && (zr_backend_host_create(&backend, &(struct zr_host_options){0}) != ZR_OK ||
                     zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK))
        return false;
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = 4 << 20, .tag = ZR_TAG_OTHER}, &block) ==
           ZR_OK;
}

static int join(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/zr/%ld.sock", folder, (long)getpid());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 ? fd : -1;
}

/* The answer's first letter; '-': hung up. `line` NULL: nothing more is asked. */
static char ask(int fd, const char *line)
{
    char text[1200] = "-";
    if (line && send(fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
        return '-';
    ssize_t got = recv(fd, text, sizeof text - 1, 0);
    return got > 0 ? text[0] : '-';
}

static bool hangs_up(int fd, int wait_ms)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, wait_ms) == 1;
}

static int begins(void)
{
    int inherited = 0;
    for (int fd = 3; fd < 300; fd++)
        inherited -= fcntl(fd, F_GETFD) == 0;
    umask(0);
    zr_option_set("publish:on");
    bool good = grow() && mode_of("sock") == 0600 && mode_of("live") == 0600;
    for (int fd = 3; fd < 300; fd++)
        inherited += fcntl(fd, F_GETFD) == 0;
    int line = join();
    good = good && inherited == 0 && ask(line, "stats\n") == 'o' && hangs_up(line, 10000);
    struct stat status; /* low numbers are what programs close */
    good = good && fstat(200, &status) == 0 && S_ISSOCK(status.st_mode);
    return !good;
}

/* Each step that fails in turn: nothing stays, and what is asked for works. */
static int cannot_begin(void)
{
    static const unsigned sites[] = {ZR_FAULT_OPEN, ZR_FAULT_WRITE, ZR_FAULT_THREAD};
    int code = 0;
    for (unsigned i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            zr_option_set("publish:on");
            int before = open_descriptors();
            zr_fault_set(sites[i], 1);
            bool good = grow() && mode_of("sock") == 0 && mode_of("live") == 0;
            zr_fault_set(sites[i], 0);
            zr_arena_destroy(arena, NULL);
            _exit(!good || open_descriptors() > before + 1); /* the backend's file */
        }
        int status;
        waitpid(child, &status, 0);
        code |= status;
    }
    return code != 0;
}

/* A child has neither the socket nor the files, and takes them from nobody. */
static int in_childs_child(void)
{
    struct stat status;
    return fstat(200, &status) == 0;
}

static int forks(void)
{
    zr_option_set("publish:on");
    bool good = grow();
    good = good && in_child(in_childs_child) == 0 && mode_of("sock") == 0600 && mode_of("live") == 0600;
    pid_t child = fork();
    if (child == 0)
        exit(0); /* with the library's end */
    waitpid(child, NULL, 0);
    return !(good && mode_of("sock") == 0600 && ask(join(), "stats\n") == 'o');
}

/* Of sixteen that are silent the longest makes room for the next: unless all have had their second meanwhile.
 */
static int hears(void)
{
    int lines[17], next = 0;
    bool good = false;
    zr_option_set("publish:on");
    for (unsigned tries = 0; grow() && !good && tries < 20; tries++) {
        for (unsigned i = 0; i < 16; i++)
            lines[i] = join();
        next = join();
        good = ask(next, "stats\n") == 'o' && hangs_up(lines[0], 100) && !hangs_up(lines[15], 0);
        close(next);
        for (unsigned i = 0; i < 16; i++)
            close(lines[i]);
    }
    return !good;
}

/* One at a time is attached, and keeps its place; whoever comes after it records anew. */
static int attaches(void)
{
    char line[100];
    int first, other, silent[20];
    bool good;
    zr_option_set("publish:on");
    good = grow();
    snprintf(line, sizeof line, "attach 0 %s/trace.zrt\n", folder);
    first = join(), other = join();
    good = good && ask(first, line) == 'o' && ask(other, line) == 'n';
    for (unsigned i = 0; i < 20; i++)
        silent[i] = join();
    good = good && ask(first, "mark here\n") == 'o' && shutdown(first, SHUT_WR) == 0 &&
           ask(first, NULL) == 'o' && hangs_up(first, 10000);
    for (unsigned i = 0; i < 20; i++)
        close(silent[i]);
    first = join();
    return !(good && ask(first, line) == 'o' && shutdown(first, SHUT_WR) == 0 && ask(first, NULL) == 'o');
}

/* A small process looks for a request, once, and takes it away. */
static int is_asked(void)
{
    char path[80];
    snprintf(path, sizeof path, "%s/zr/%ld.ask", folder, (long)getpid());
    bool good = grow() && mode_of("sock") == 0;
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    for (unsigned tries = 0; good && mode_of("sock") == 0 && tries < 300; tries++) {
        poll(NULL, 0, 12);
        good = grow();
    }
    return !(good && mode_of("sock") == 0600 && mode_of("ask") == 0);
}

int main(void)
{
    char command[100];
    if (!mkdtemp(folder))
        return 1;
    zr_folder_temporary();
    zr_folders_set("/tmp", folder);
    tap_is(in_child_within(begins, 60), 0,
           "a process listens at files of its user's alone, which exec closes");
    tap_is(in_child_within(cannot_begin, 60), 0, "one that cannot leaves nothing");
    tap_is(in_child_within(forks, 60), 0, "a child leaves its parent's files and socket alone");
    tap_is(in_child_within(hears, 60), 0, "the longest silent makes room");
    tap_is(in_child_within(attaches, 60), 0, "whoever is attached stays, and is followed by the next");
    tap_is(in_child_within(is_asked, 60), 0, "a request is looked for and taken away");
    snprintf(command, sizeof command, "rm -r %s", folder);
    tap_is(system(command), 0, "the folder goes");
    return tap_done();
}
