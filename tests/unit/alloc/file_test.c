/* file_test.c: the file port, alloc/base/system/file.h: whole reads and writes over every kind of descriptor,
 * words that name the file, nothing half written, nothing left open. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/socket.h"
#include "tests/support/child.h"
#include "tests/support/faults.h"
#include "tests/support/folder.h"
#include "tests/support/refuse.h"
#include "tests/support/tap.h"
#include "tests/support/words.h"

static char scratch[64] = "/tmp/zr-file-test-XXXXXX";

/* A path in the scratch folder; two can be in use at once. */
static const char *in_scratch(const char *name)
{
    static char paths[2][512];
    static unsigned turn;
    char *path = paths[turn++ % 2];
    zr_path_join(path, sizeof paths[0], &(struct zr_path_parts){.folder = scratch, .name = name});
    return path;
}

static uint64_t size_of(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (uint64_t)status.st_size : UINT64_MAX;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static void test_read_and_write(void)
{
    struct zr_file file;
    char data[16] = {0};
    uint64_t bytes = 0;
    size_t got = 0;

    tap_result(zr_file_create(&file, in_scratch("a"), ZR_CREATE_REPLACE), ZR_OK, "create");
    tap_result(zr_file_write(&file, "hello", 5), ZR_OK, "write");
    tap_result(zr_file_write_at(&file, 8, "world", 5), ZR_OK, "write beyond the end");
    tap_result(zr_file_size(&file, &bytes), ZR_OK, "size");
    tap_is(bytes, 13, "the size counts the gap");
    tap_result(zr_file_read_at(&file, 0, data, 13), ZR_OK, "read back");
    tap_ok(memcmp(data, "hello\0\0\0world", 13) == 0, "the bytes are those written, the gap is zeros");
    tap_result(zr_file_resize(&file, 3), ZR_OK, "cut");
    tap_result(zr_file_read_at(&file, 1, data, 5), ZR_ERR_FORMAT, "reading past the end is told apart");
    tap_ok(words_have("ends at byte 3") && words_have("/a'"), "the words name the file and where it ends");
    tap_result(zr_file_sync(&file), ZR_OK, "sync");
    tap_result(zr_file_close(&file), ZR_OK, "close");
    tap_is(file.fd, -1, "a closed file says so");
    tap_result(zr_file_close(&file), ZR_OK, "closing twice does nothing");

    tap_result(zr_file_create(&file, in_scratch("a"), ZR_CREATE_NEW), ZR_ERR_IO, "a new file must be new");
    tap_result(zr_file_create(&file, in_scratch("a"), ZR_CREATE_APPEND), ZR_OK, "append");
    zr_file_write(&file, "lo", 2);
    zr_file_close(&file);
    tap_result(zr_file_open(&file, in_scratch("a")), ZR_OK, "open");
    tap_result(zr_file_read(&file, data, sizeof data, &got), ZR_OK, "read what there is");
    tap_ok(got == 5 && memcmp(data, "hello", 5) == 0, "append went on at the end");
    tap_result(zr_file_read(&file, data, sizeof data, &got), ZR_OK, "read at the end");
    tap_is(got, 0, "gives nothing");
    tap_result(zr_file_read_at(&file, UINT64_MAX - 2, data, 5), ZR_ERR_INVALID, "no offset wraps around");
    tap_result(zr_file_write(&file, "x", 1), ZR_ERR_IO, "a file opened for reading is not written");
    zr_file_close(&file);
    tap_result(zr_file_create(&file, in_scratch("a"), ZR_CREATE_REPLACE), ZR_OK, "create again");
    zr_file_close(&file);
    tap_is(size_of(in_scratch("a")), 0, "replacing empties");
}

static void test_bad_names(void)
{
    struct zr_file file;
    char longest[300];
    tap_result(zr_file_open(&file, "/no/such/file"), ZR_ERR_IO, "a missing file");
    tap_ok(words_have("'/no/such/file'") && words_have("No such file") && words_have("check the path"),
           "is named with its cause and a way out");
    tap_is(file.fd, -1, "and is a closed one");
    tap_result(zr_file_open(&file, scratch), ZR_ERR_IO, "a folder is no file");
    tap_ok(words_have("name a file"), "and the words say so");
    tap_result(zr_file_open_regular(&file, scratch), ZR_ERR_IO, "nor an ordinary one");
    tap_result(zr_file_open_regular(&file, "/dev/zero"), ZR_ERR_FORMAT, "a device is no ordinary file");
    tap_ok(words_have("'/dev/zero'") && words_have("regular") && file.fd == -1, "which is named");
    if (mkfifo(in_scratch("pipe"), 0600) == 0) {
        alarm(300); /* there is no writer: who waits for one is ended */
        tap_result(zr_file_open_regular(&file, in_scratch("pipe")), ZR_ERR_FORMAT,
                   "nor is a pipe, which is not waited for");
        alarm(0);
        int reader = open(in_scratch("pipe"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        tap_result(zr_file_create(&file, in_scratch("pipe"), ZR_CREATE_REPLACE), ZR_OK,
                   "a pipe is written to");
        tap_is(fcntl(file.fd, F_GETFL) & O_ACCMODE, O_WRONLY, "and not held open for reading as well");
        zr_file_close(&file);
        close(reader);
        zr_path_unlink(in_scratch("pipe"));
    } else {
        tap_skip("no pipes can be made here");
    }
    tap_result(zr_file_create(&file, scratch, ZR_CREATE_REPLACE), ZR_ERR_IO, "nor can it be created over");
    tap_result(zr_file_open(&file, ""), ZR_ERR_INVALID, "an empty name");
    tap_result(zr_file_open(&file, NULL), ZR_ERR_INVALID, "no name");
    memset(longest, 'x', sizeof longest);
    memcpy(longest, "/tmp/", 5);
    memcpy(longest + sizeof longest - 5, "tail", 5);
    tap_result(zr_file_open(&file, longest), ZR_ERR_IO, "a name that no file system takes");
    tap_ok(words_have("...") && words_have("tail'"), "shows its end");
    tap_result(zr_file_create(&file, in_scratch("a/b"), ZR_CREATE_REPLACE), ZR_ERR_IO,
               "a file used as a folder");
}

/* Writes the numbers 0.. byte by byte into a pipe, slowly at the start. */
static void *dribble(void *argument)
{
    int fd = *(int *)argument;
    for (unsigned i = 0; i < 5000; i++) {
        unsigned char byte = (unsigned char)(i * 7);
        if (write(fd, &byte, 1) != 1)
            break;
        if (i < 100)
            nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    }
    close(fd);
    return NULL;
}

/* Reads all of a pipe in small pieces after a while, checking the same numbers. */
static void *sip(void *argument)
{
    int fd = *(int *)argument;
    unsigned char piece[1500];
    size_t total = 0;
    ssize_t got;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    while ((got = read(fd, piece, sizeof piece)) != 0) {
        if (got < 0)
            continue;
        for (ssize_t i = 0; i < got; i++, total++)
            if (piece[i] != (unsigned char)(total * 7))
                return NULL;
    }
    return (void *)total;
}

static void on_alarm(int number)
{
    (void)number;
}

/* Nearly all of a thousand seconds pass from one look to the next. */
static uint64_t leaping_clock(void)
{
    static uint64_t now_ns;
    return now_ns += UINT64_C(999990000000);
}

static void test_interruptions(void)
{
    int ends[2];
    pthread_t thread;
    static unsigned char data[1 << 20];
    size_t got = 0;
    bool same = true;
    sigset_t alarm_set, before;
    struct sigaction action = {.sa_handler = on_alarm}; /* without SA_RESTART: calls end in EINTR */
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};

    sigaction(SIGALRM, &action, NULL);
    sigemptyset(&alarm_set);
    sigaddset(&alarm_set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_set, &before); /* the helper threads inherit it: signals come to us */
    tap_ok(pipe2(ends, O_CLOEXEC) == 0, "a pipe");
    pthread_create(&thread, NULL, dribble, &ends[1]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    struct zr_file file = zr_file_borrow(ends[0], "pipe");
    tap_result(zr_file_read(&file, data, sizeof data, &got), ZR_OK,
               "a pipe is read to its end through signals");
    tap_is(zr_poll(NULL, 0, 20), 0, "a wait that signals interrupt ends in its time");
    for (size_t i = 0; i < got; i++)
        same &= data[i] == (unsigned char)(i * 7);
    tap_ok(got == 5000 && same, "whole and in order");
    pthread_join(thread, NULL);
    close(ends[0]);

    pthread_sigmask(SIG_BLOCK, &alarm_set, NULL);
    tap_ok(pipe2(ends, O_CLOEXEC) == 0, "another pipe");
    pthread_create(&thread, NULL, sip, &ends[0]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7);
    file = zr_file_borrow(ends[1], "pipe");
    tap_result(zr_file_write(&file, data, sizeof data), ZR_OK, "a non-blocking pipe takes 1 MiB");
    setitimer(ITIMER_REAL, &never, NULL);
    close(ends[1]);
    void *read_bytes = NULL;
    pthread_join(thread, &read_bytes);
    tap_is((size_t)read_bytes, sizeof data, "and its reader gets all of it");
    close(ends[0]);

    zr_os_clock_set(leaping_clock);
    zr_fault_set(ZR_FAULT_WAIT | ZR_FAULT_EINTR, 1);
    signal(SIGALRM, SIG_DFL);
    alarm(60);
    tap_is(zr_poll(NULL, 0, 1000000), 0, "an interrupted wait goes on for what is left of its time");
    alarm(0);
    zr_fault_set(ZR_FAULT_WAIT | ZR_FAULT_EINTR, 0);
    zr_os_clock_set(NULL);

    signal(SIGPIPE, SIG_IGN);
    tap_ok(pipe2(ends, O_CLOEXEC) == 0, "a third pipe");
    close(ends[0]);
    file = zr_file_borrow(ends[1], "reader");
    tap_result(zr_file_write(&file, "x", 1), ZR_ERR_IO, "a reader that has gone is an error");
    tap_ok(words_have("'reader'") && words_have("closed the pipe"), "in words");
    close(ends[1]);
}

static void test_no_space(enum zr_create_mode mode)
{
    struct zr_file file;
    static char data[60000];
    struct rlimit before, small;

    tap_result(zr_file_create(&file, in_scratch("full"), mode), ZR_OK, "a file");
    zr_file_write(&file, data, 5000);
    zr_fault_set(ZR_FAULT_WRITE, 1);
    tap_result(zr_file_write(&file, data, 100), ZR_ERR_IO, "a write that finds no space");
    zr_fault_set(ZR_FAULT_WRITE, 0);
    tap_ok(words_have("No space left") && words_have("/full'") && words_have("free space"), "says so");
    tap_is(size_of(in_scratch("full")), 5000, "and leaves the file as it was");

    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 20000;
    setrlimit(RLIMIT_FSIZE, &small);
    tap_result(zr_file_write(&file, data, sizeof data), ZR_ERR_IO, "a write that fits only in part");
    setrlimit(RLIMIT_FSIZE, &before);
    tap_ok(words_have("ulimit -f"), "names the limit");
    tap_is(size_of(in_scratch("full")), 5000, "and its first part is cut off again");
    tap_result(zr_file_write(&file, data, 10), ZR_OK, "the file goes on");
    tap_is(size_of(in_scratch("full")), 5010, "where it was");
    zr_file_close(&file);
    zr_path_unlink(in_scratch("full"));
}

/* A file system that has names for all its files: there is one for a moment, or the file is none. */
static int without_nameless(void)
{
    struct zr_file file;
    struct stat status;
    int before = open_descriptors(), entries = folder_entries(scratch);
    bool good = refuse_call(SYS_openat, O_TMPFILE & ~O_DIRECTORY, EOPNOTSUPP) &&
                zr_file_create_nameless(&file, scratch) == ZR_OK && fstat(file.fd, &status) == 0 &&
                status.st_nlink == 0 && (status.st_mode & 0777) == 0600 &&
                fcntl(file.fd, F_GETFD) == FD_CLOEXEC && folder_entries(scratch) == entries;
    zr_file_close(&file);
    if (!good)
        return 1;
    good = refuse_call(SYS_unlink, 0, EROFS) && zr_file_create_nameless(&file, scratch) == ZR_ERR_IO &&
           words_have("read-only") && file.fd == -1;
    return good && open_descriptors() == before ? 0 : 2;
}

/* Each way to a descriptor: with the mode that the file gets, and closed by exec. */
static void test_openings(void)
{
    enum way { CREATE, NAMELESS, OPEN, LIST, SOCKET };
    static const struct {
        const char *words;
        enum way way;
        enum zr_create_mode mode;
        mode_t want;
    } ways[] = {{"a new file", CREATE, ZR_CREATE_NEW, 0666},
                {"one of its user's own", CREATE, ZR_CREATE_OWN, 0600},
                {"one in the place of another", CREATE, ZR_CREATE_REPLACE, 0666},
                {"one to append to", CREATE, ZR_CREATE_APPEND, 0666},
                {"one without a name", NAMELESS, ZR_CREATE_NEW, 0600},
                {"one that is there", OPEN, ZR_CREATE_NEW, 0644},
                {"a folder", LIST, ZR_CREATE_NEW, 0700},
                {"a socket", SOCKET, ZR_CREATE_NEW, 0777}};
    struct zr_file file;
    struct zr_folder folder;
    struct stat status;
    mode_t before = umask(0);
    int entries = folder_entries(scratch);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const char *path = in_scratch("opened");
        zr_result result = ZR_OK;
        int fd = -1;
        if (ways[i].way == OPEN)
            close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
        if (ways[i].way == LIST)
            result = zr_folder_open(&folder, scratch), fd = folder.fd;
        else if (ways[i].way == SOCKET)
            fd = zr_socket(AF_UNIX, SOCK_STREAM);
        else
            result = ways[i].way == CREATE     ? zr_file_create(&file, path, ways[i].mode)
                     : ways[i].way == NAMELESS ? zr_file_create_nameless(&file, scratch)
                                               : zr_file_open(&file, path),
            fd = file.fd;
        bool named = access(path, F_OK) == 0;
        tap_ok(result == ZR_OK && fstat(fd, &status) == 0 && (status.st_mode & 0777) == ways[i].want &&
                   fcntl(fd, F_GETFD) == FD_CLOEXEC &&
                   named == (ways[i].way == CREATE || ways[i].way == OPEN),
               "%s: mode %o, which exec closes", ways[i].words, status.st_mode & 0777);
        close(fd);
        zr_path_unlink(path);
        tap_is(folder_entries(scratch), entries, "and that is all");
    }
    umask(before);
    tap_is(in_child(without_nameless), 0, "one without a name, where each has one: and nothing left open");
    tap_is(folder_entries(scratch), entries + 1, "but the name that could not be removed");
    zr_path_remove_folder(scratch);
    mkdir(scratch, 0700);
}

/* ---- Paths --------------------------------------------------------------------------------------------- */

static void touch(const char *path)
{
    struct zr_file file;
    if (zr_file_create(&file, path, ZR_CREATE_REPLACE) == ZR_OK)
        zr_file_close(&file);
}

/* What is neither file nor folder keeps its name, whatever is to take it. */
static void test_replaceable(void)
{
    static const struct {
        const char *name;
        bool replaceable;
    } cases[] = {{"x/none", true}, {"x/new", true}, {"x/y", false}, {"x/pipe", false}, {"x/link", false}};
    bool replaceable;

    tap_ok(mkfifo(in_scratch("x/pipe"), 0600) == 0 && symlink("new", in_scratch("x/link")) == 0,
           "a pipe, and a link to a file");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zr_result result = zr_path_replaceable(in_scratch(cases[i].name), &replaceable);
        tap_ok(result == ZR_OK && replaceable == cases[i].replaceable, "%s %s be replaced", cases[i].name,
               cases[i].replaceable ? "may" : "may not");
    }
    touch(in_scratch("x/aside"));
    for (size_t i = 3; i < sizeof cases / sizeof *cases; i++) {
        tap_result(zr_path_rename(&(struct zr_rename){in_scratch("x/aside"), in_scratch(cases[i].name)}),
                   ZR_ERR_IO, "%s is not renamed over", cases[i].name);
        tap_ok(words_have("regular file"), "and the words have the way out");
        zr_path_replaceable(in_scratch(cases[i].name), &replaceable);
        tap_ok(!replaceable, "it is what it was");
        zr_path_unlink(in_scratch(cases[i].name));
    }
    tap_result(zr_path_unlink(in_scratch("x/aside")), ZR_OK, "what was to take its place is there still");
}

static void test_paths(void)
{
    static const struct {
        const char *path;
        enum zr_path_kind kind;
    } kinds[] = {{"x", ZR_PATH_FOLDER}, {"x/file", ZR_PATH_FILE}, {"x/file/below", ZR_PATH_NONE}};
    static const struct {
        struct zr_path_parts parts;
        const char *path; /* NULL: too long */
    } joins[] = {{{"abc", "def"}, "abc/def"}, {{"abc/", "def"}, "abc/def"}, {{"abc", "defg"}, NULL}};
    enum zr_path_kind kind;
    char path[8];
    uint64_t bytes = 0;

    tap_result(zr_path_make_folder(in_scratch("x/y//z"), false), ZR_ERR_IO, "folders above must exist");
    tap_result(zr_path_make_folder(in_scratch("x/y//z"), true), ZR_OK, "or are made");
    tap_result(zr_path_make_folder(in_scratch("x/y/z"), false), ZR_OK, "a folder that is there is fine");
    touch(in_scratch("x/file"));
    tap_result(zr_path_make_folder(in_scratch("x/file"), false), ZR_ERR_IO, "a file that is there is not");
    tap_result(zr_path_make_folder("", true), ZR_ERR_INVALID, "a folder without a name");

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        zr_path_kind_get(in_scratch(kinds[i].path), &kind);
        tap_is(kind, kinds[i].kind, "the kind of %s", kinds[i].path);
    }
    zr_path_kind_get("/dev/null", &kind);
    tap_is(kind, ZR_PATH_OTHER, "a device");

    tap_result(zr_path_rename(&(struct zr_rename){in_scratch("x/file"), in_scratch("x/new")}), ZR_OK,
               "rename");
    tap_is(size_of(in_scratch("x/file")), UINT64_MAX, "the old name is gone");
    tap_result(zr_path_rename(&(struct zr_rename){in_scratch("x/file"), in_scratch("x/b")}), ZR_ERR_IO,
               "renaming nothing");
    tap_ok(words_have("x/file'") && words_have("x/b'"), "names both");
    test_replaceable();
    tap_result(zr_path_sync_folder(in_scratch("x")), ZR_OK, "sync a folder");
    tap_result(zr_path_sync_folder(in_scratch("x/new")), ZR_ERR_IO, "a file is no folder to sync");
    static const char *const names[] = {"x/new", "x/y/", "x//y", "x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        tap_result(zr_path_sync_name(in_scratch(names[i])), ZR_OK, "sync the folder of %s", names[i]);
    tap_result(zr_path_sync_name("alone"), ZR_OK, "a name alone lies in the folder one is in");
    tap_result(zr_path_sync_name("/etc"), ZR_OK, "and what the root has in the root");
    tap_result(zr_path_sync_name(in_scratch("x/new/inside")), ZR_ERR_IO, "nothing lies in a file");
    tap_ok(words_have("new'"), "which is named");
    tap_result(zr_path_remove_folder(in_scratch("x")), ZR_ERR_IO, "a folder with a folder in it stays");
    tap_ok(words_have("'y'"), "and the words name that");
    tap_result(zr_path_remove_folder(in_scratch("x/y/z")), ZR_OK, "an empty folder goes");
    zr_path_remove_folder(in_scratch("x/y"));
    tap_result(zr_path_remove_folder(in_scratch("x")), ZR_OK, "with the files in it");
    tap_result(zr_path_remove_folder(in_scratch("x")), ZR_OK, "none is fine");
    tap_result(zr_path_unlink(in_scratch("x")), ZR_OK, "removing what is not there is fine");
    tap_result(zr_path_free_bytes(scratch, &bytes), ZR_OK, "space on the file system");
    tap_ok(bytes > 0, "there is some: %llu MB", (unsigned long long)(bytes / 1000000));
    tap_result(zr_path_free_bytes("/no/such", &bytes), ZR_ERR_IO, "none on a path that is not there");

    for (size_t i = 0; i < sizeof joins / sizeof *joins; i++) {
        zr_result result = zr_path_join(path, sizeof path, &joins[i].parts);
        tap_ok(joins[i].path ? result == ZR_OK && strcmp(path, joins[i].path) == 0 : result == ZR_ERR_INVALID,
               "%s and %s, joined with one slash if there is room", joins[i].parts.folder,
               joins[i].parts.name);
    }
}

static void test_listing(void)
{
    enum { FILES = 700 }; /* several buffers' worth */
    static unsigned char seen[FILES];
    struct zr_folder folder;
    struct zr_folder_entry entry;
    unsigned folders = 0, others = 0, count = 0, number;
    char name[64];

    zr_path_make_folder(in_scratch("list/folder"), true);
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "list/a-file-with-a-longer-name-%u", i);
        touch(in_scratch(name));
    }
    tap_ok(symlink("nowhere", in_scratch("list/link")) == 0, "a link");
    tap_result(zr_folder_open(&folder, in_scratch("list")), ZR_OK, "list a folder");
    for (; zr_folder_next(&folder, &entry) == ZR_OK && entry.name; count++) {
        folders += entry.kind == ZR_PATH_FOLDER && strcmp(entry.name, "folder") == 0;
        others += entry.kind == ZR_PATH_OTHER && strcmp(entry.name, "link") == 0;
        if (entry.kind == ZR_PATH_FILE && sscanf(entry.name, "a-file-with-a-longer-name-%u", &number) == 1 &&
            number < FILES)
            seen[number]++;
    }
    zr_folder_close(&folder);
    bool once = count == FILES + 2 && folders == 1 && others == 1;
    for (unsigned i = 0; i < FILES; i++)
        once &= seen[i] == 1;
    tap_ok(once, "every entry once, with its kind");
    zr_path_remove_folder(in_scratch("list/folder"));
    tap_result(zr_path_remove_folder(in_scratch("list")), ZR_OK, "all of them removed");
    tap_result(zr_folder_open(&folder, in_scratch("a")), ZR_ERR_IO, "a file cannot be listed");
    tap_is(folder.fd, -1, "and nothing is open");
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

static void test_text(void)
{
    struct zr_file file;
    struct zr_text text;
    char buffer[32], back[256] = {0};
    size_t got;

    zr_file_create(&file, in_scratch("text"), ZR_CREATE_APPEND);
    zr_text_start(&text, &file, buffer, sizeof buffer);
    for (unsigned i = 0; i < 10; i++)
        zr_text_print(&text, "line %u of ten\n", i);
    tap_result(zr_text_flush(&text), ZR_OK, "prints through a small buffer");
    zr_text_put(&text, "a piece of text that is longer than the whole buffer\n", 53);
    tap_result(zr_text_flush(&text), ZR_OK, "bytes of any length");
    zr_file_read_at(&file, 0, back, 14 * 10 + 53);
    tap_ok(strncmp(back, "line 0 of ten\nline 1 of ten\n", 28) == 0 &&
               strstr(back, "line 9 of ten\na piece") != NULL && strlen(back) == 193,
           "arrive whole and in order");

    tap_result(zr_text_print(&text, "%040d", 1), ZR_ERR_INVALID, "a print longer than the buffer is refused");
    tap_result(zr_text_print(&text, "more"), ZR_ERR_INVALID, "the first failure stays");
    tap_result(zr_text_flush(&text), ZR_ERR_INVALID, "and comes out of the flush");
    tap_is(size_of(in_scratch("text")), 193, "with nothing of it written");

    zr_text_start(&text, &file, buffer, sizeof buffer);
    zr_text_print(&text, "half a line");
    zr_fault_set(ZR_FAULT_WRITE, 1);
    tap_result(zr_text_flush(&text), ZR_ERR_IO, "a full disk fails the flush");
    zr_fault_set(ZR_FAULT_WRITE, 0);
    tap_is(size_of(in_scratch("text")), 193, "and half a line is not there");
    zr_file_read(&file, back, 1, &got);
    zr_file_close(&file);

    zr_text_start(&text, NULL, buffer, 8);
    tap_result(zr_text_print(&text, "%s", "1234567"), ZR_OK, "text in memory fills its buffer");
    tap_ok(strcmp(buffer, "1234567") == 0, "to the last byte");
    tap_result(zr_text_put(&text, "8", 1), ZR_ERR_INVALID, "and no further");
    tap_ok(strcmp(buffer, "1234567") == 0, "keeping what it has");
    zr_text_start(&text, NULL, buffer, sizeof buffer);
    tap_result(zr_text_put_plain(&text, "a\033[1m\n\xff\xc3\xa9"), ZR_OK, "what a terminal would act on");
    tap_ok(strcmp(buffer, "a?[1m??\xc3\xa9") == 0, "is put as plain text: %s", buffer);
    zr_text_start(&text, NULL, buffer, 1);
    tap_is(text.result, ZR_ERR_INVALID, "a buffer of one byte is none");
}

static void test_json(void)
{
    static const struct {
        const char *bytes;
        size_t length;
        const char *json;
    } cases[] = {
        {"plain", 5, "\"plain\""},
        {"", 0, "\"\""},
        {"q\"b\\n\nt\t", 8, "\"q\\\"b\\\\n\\nt\\t\""},
        {"\0\x1f\x7f", 3, "\"\\u0000\\u001f\\u007f\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xff", 1, "\"\xef\xbf\xbd\""},                                 /* no byte of UTF-8 */
        {"\xe2\x82", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* cut */
        {"\xc0\xaf", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* surrogate */
        {"\xf4\x90\x80\x80", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* above U+10FFFF */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char buffer[128];
        struct zr_text text;
        zr_text_start(&text, NULL, buffer, sizeof buffer);
        zr_text_json_string(&text, cases[i].bytes, cases[i].length);
        if (!tap_ok(strcmp(buffer, cases[i].json) == 0, "JSON string %zu", i))
            tap_note("got %s", buffer);
    }
}

/* ---- Faults -------------------------------------------------------------------------------------------- */

/* A small save: all that a checkpoint does. */
static zr_result save(void)
{
    struct zr_file file;
    zr_result result = zr_path_make_folder(in_scratch("save.new"), false);
    if (result != ZR_OK)
        return result;
    result = zr_file_create(&file, in_scratch("save.new/data"), ZR_CREATE_REPLACE);
    if (result == ZR_OK) {
        result = zr_file_write(&file, "data", 4);
        if (result == ZR_OK)
            result = zr_file_sync(&file);
        zr_file_close(&file);
    }
    if (result == ZR_OK)
        result = zr_path_sync_folder(in_scratch("save.new"));
    if (result == ZR_OK)
        result = zr_path_rename(&(struct zr_rename){in_scratch("save.new"), in_scratch("save")});
    if (result == ZR_OK)
        result = zr_path_sync_folder(scratch);
    if (result == ZR_OK)
        result = zr_file_open(&file, in_scratch("save/data"));
    if (result == ZR_OK) {
        char data[4];
        result = zr_file_read_at(&file, 0, data, sizeof data);
        zr_file_close(&file);
    }
    return result;
}

static zr_result save_anew(void *nothing)
{
    static const char *const left[] = {"save.new/data", "save.new", "save/data", "save"};
    (void)nothing;
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        remove(in_scratch(left[i]));
    return save();
}

/* Two ends of a connection. */
static zr_result connect_pair(int pair[2])
{
    const struct sockaddr_un address = {.sun_family = AF_UNIX}; /* the system gives it a name */
    struct sockaddr_un name;
    socklen_t bytes = sizeof name;
    int listening = zr_socket(AF_UNIX, SOCK_STREAM);
    pair[0] = listening < 0 ? -1 : zr_socket(AF_UNIX, SOCK_STREAM);
    bool good = pair[0] >= 0 &&
                bind(listening, (const struct sockaddr *)&address, sizeof address.sun_family) == 0 &&
                listen(listening, 1) == 0 && getsockname(listening, (struct sockaddr *)&name, &bytes) == 0 &&
                zr_connect(pair[0], (const struct sockaddr *)&name, bytes) == 0;
    pair[1] = good ? zr_accept(listening, 0) : -1;
    good = good && pair[1] >= 0;
    zr_result result = good ? ZR_OK : zr_fail(ZR_ERR_PEER, "no connection: %s", strerrorname_np(errno));
    good = good && fcntl(pair[1], F_GETFD) == FD_CLOEXEC;
    if (listening >= 0)
        close(listening);
    for (unsigned i = 0; i < 2 && !good; i++)
        if (pair[i] >= 0)
            close(pair[i]);
    return good || result != ZR_OK ? result : ZR_ERR_CORRUPT;
}

/* Bytes and a descriptor through a pair of sockets, and a wait for them. */
static zr_result pass_on(void *nothing)
{
    int pair[2], fd = -1;
    char words[6000], back[sizeof words];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {
        .head = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct msghdr message = {.msg_iov = &(struct iovec){words, 5},
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    zr_result result;
    (void)nothing;
    memset(words, 'w', sizeof words);
    memset(back, 0, sizeof back);
    if ((result = connect_pair(pair)) != ZR_OK)
        return result;
    memcpy(CMSG_DATA(&control.head), &pair[0], sizeof fd);
    struct pollfd ready = {.fd = pair[1], .events = POLLIN};
    size_t sent = 0, got = 0;
    for (ssize_t part = 1; part > 0 && sent<sizeof words; sent += part> 0 ? (size_t)part : 0)
        part = zr_send_packet(pair[0], words + sent, sizeof words - sent, 0);
    for (ssize_t part = 1; part > 0 && got < sent && zr_poll(&ready, 1, 1000) == 1;
         got += part > 0 ? (size_t)part : 0)
        part = zr_receive_bytes(pair[1], back + got, sizeof back - got, MSG_DONTWAIT);
    if (got == sizeof words && zr_send(pair[0], &message, 0) == 5 && zr_poll(&ready, 1, 1000) == 1) {
        message.msg_controllen = sizeof control;
        ssize_t last = zr_receive(pair[1], &message, MSG_DONTWAIT);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (last == 5 && head) {
            memcpy(&fd, CMSG_DATA(head), sizeof fd);
            result = memcmp(words, back, sizeof words) == 0 && !(message.msg_flags & MSG_CTRUNC)
                         ? ZR_OK
                         : ZR_ERR_CORRUPT;
        } else {
            result = zr_fail(ZR_ERR_PEER, "no message, or without its descriptor (%d)",
                             message.msg_flags & MSG_CTRUNC);
        }
    } else {
        result = zr_fail(ZR_ERR_PEER, "not all came: %s", strerrorname_np(errno));
    }
    if (fd >= 0)
        close(fd);
    close(pair[0]);
    close(pair[1]);
    return result;
}

static void test_faults(void)
{
    static const unsigned files[] = {ZR_FAULT_OPEN,
                                     ZR_FAULT_READ,
                                     ZR_FAULT_WRITE,
                                     ZR_FAULT_SYNC,
                                     ZR_FAULT_RENAME,
                                     ZR_FAULT_DESCRIPTOR,
                                     ZR_FAULT_DESCRIPTOR | ZR_FAULT_TWICE,
                                     ZR_FAULT_DESCRIPTOR | ZR_FAULT_EINTR,
                                     ZR_FAULT_READ | ZR_FAULT_EINTR,
                                     ZR_FAULT_READ | ZR_FAULT_SHORT,
                                     ZR_FAULT_WRITE | ZR_FAULT_EINTR,
                                     ZR_FAULT_WRITE | ZR_FAULT_SHORT,
                                     ZR_FAULT_SYNC | ZR_FAULT_EINTR};
    static const unsigned sockets[] = {ZR_FAULT_RECEIVE,
                                       ZR_FAULT_SEND,
                                       ZR_FAULT_DESCRIPTOR,
                                       ZR_FAULT_RECEIVE | ZR_FAULT_EINTR,
                                       ZR_FAULT_RECEIVE | ZR_FAULT_SHORT,
                                       ZR_FAULT_SEND | ZR_FAULT_EINTR,
                                       ZR_FAULT_DESCRIPTOR | ZR_FAULT_EINTR,
                                       ZR_FAULT_WAIT | ZR_FAULT_EINTR};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        fault_each("a save", files[i], save_anew, NULL);
    for (size_t i = 0; i < sizeof sockets / sizeof *sockets; i++)
        fault_each("a message", sockets[i], pass_on, NULL);
    zr_path_remove_folder(in_scratch("save"));
}

int main(void)
{
    if (!mkdtemp(scratch)) {
        tap_ok(false, "a scratch folder in /tmp");
        return tap_done();
    }
    int before = open_descriptors();
    test_read_and_write();
    test_bad_names();
    test_interruptions();
    test_no_space(ZR_CREATE_APPEND);
    test_no_space(ZR_CREATE_NEW);
    test_openings();
    test_paths();
    test_listing();
    test_text();
    test_json();
    test_faults();
    tap_is(open_descriptors(), before, "every descriptor was closed");
    tap_result(zr_path_remove_folder(scratch), ZR_OK, "the scratch folder is gone");
    return tap_done();
}
