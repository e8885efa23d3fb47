/* preloaded_test.c: libzr_malloc.so before a program that knows nothing of zr
 * (tests/support/preload_calls.c), and the record that it leaves. What people do with it is in
 * tests/system/preload.t and run.t; here is what the mutants need. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/preload/usage.h"
#include "tests/support/tap.h"

static char library[4096], calls[4096], forbid[4096];

static void find(char out[4096], const char *name)
{
    const char *build = getenv("BUILD");
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", build ? build : "build", name);
    if (!realpath(path, out))
        out[0] = '\0';
}

/* The status of the program as waitpid() has it, with the library before it. */
static int run(const char *const command[])
{
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_PRELOAD", library, 1);
        execv(command[0], (char **)command);
        _exit(99);
    }
    waitpid(child, &status, 0);
    return status;
}

static void test_calls(void)
{
    static const struct {
        const char *conf, *what, *number, *seconds;
        int status;
    } runs[] = {{"", "calls", NULL, NULL, 0},
                {"", "foreign", NULL, NULL, 0},
                {"", "threads", "20", "120", 0},
                {"", "twice", "100000", NULL, SIGABRT},
                {"", "wild", "100000", NULL, SIGABRT},
                {"", "stale", "9000000", NULL, SIGABRT},
                {"check:3", "calls", NULL, NULL, 0},
                {"check:3", "threads", "10", "120", 0},
                {"check:3", "twice", "8", NULL, SIGABRT},
                {"check:3", "twice", "30000", NULL, SIGABRT}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        setenv("ZR_CONF", runs[i].conf, 1);
        tap_is(run((const char *[]){calls, runs[i].what, runs[i].number, runs[i].seconds, NULL}),
               runs[i].status, "preload_calls %s %s ends as it should %s", runs[i].what,
               runs[i].number ? runs[i].number : "", runs[i].conf);
    }
    unsetenv("ZR_CONF");
    int status = run((const char *[]){forbid, "madvise=ENOSYS,mremap,mincore", calls, "calls", NULL});
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        tap_skip("no filter of calls can be set here");
    else
        tap_is(status, 0, "every call where madvise and mremap are refused");
}

/* A book in a folder of its own, as zr run makes it. */
static struct zr_usage_table *make_book(char folder[64])
{
    char path[128];
    strcpy(folder, "/tmp/zr-test-XXXXXX");
    if (!mkdtemp(folder))
        return NULL;
    snprintf(path, sizeof path, "%s/" ZR_USAGE_FILE, folder);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    void *book = fd >= 0 && ftruncate(fd, sizeof(struct zr_usage_table)) == 0
                     ? mmap(NULL, sizeof(struct zr_usage_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
    close(fd);
    if (book == MAP_FAILED)
        return NULL;
    struct zr_usage_table *out = book;
    out->magic = ZR_USAGE_MAGIC;
    out->version = ZR_USAGE_VERSION;
    out->record_bytes = sizeof(struct zr_usage);
    setenv("ZR_RECORD", folder, 1);
    return out;
}

static void remove_book(const char *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    unsetenv("ZR_RECORD");
    tap_is(system(command), 0, "the folder goes");
}

/* 2,000 blocks of 40,000 to 420,000 bytes, of which each tenth stays to the end. */
static void test_record(void)
{
    enum { COUNT = 2000, STEPS = 20 };
    char folder[64], path[128];
    struct stat status;
    uint64_t all = 0, left = 0, most = UINT64_C(8) << 20;
    for (unsigned i = 0; i < COUNT; i++) {
        all += 40000 + i % STEPS * 20000;
        left += i % 10 ? 0 : 40000 + i % STEPS * 20000;
    }
    tap_is(run((const char *[]){calls, "kept", NULL}), 0,
           "memory that the system does not take back is used again");
    struct zr_usage_table *book = make_book(folder);
    tap_ok(book != NULL, "a book");
    if (!book)
        return;
    tap_is(run((const char *[]){calls, "returns", NULL}), 0,
           "a program that holds much and gives most of it back");
    const struct zr_usage_figures *figures = &book->records[0].memory[ZR_USAGE_HOST];
    tap_is(book->taken_count, 1, "one record");
    tap_is(book->records[0].state, ZR_USAGE_ENDED, "which says that its process has ended");
    tap_ok(book->records[0].traced && book->best_trace > 0, "and that there is a trace");
    tap_ok(figures->traced_peak_bytes >= all && figures->traced_peak_bytes < all + all / 80,
           "large blocks at the peak: %llu for %llu", (unsigned long long)figures->traced_peak_bytes,
           (unsigned long long)all);
    tap_ok(figures->peak_held_bytes >= all && figures->peak_held_bytes < all + all / 50 &&
               figures->live_at_peak_bytes <= figures->peak_held_bytes,
           "all at the peak, live and held");
    tap_ok(figures->live_bytes >= left && figures->held_bytes >= figures->live_bytes &&
               figures->held_bytes < left + left / 6 + most,
           "little at the end: %llu live of %llu held", (unsigned long long)figures->live_bytes,
           (unsigned long long)figures->held_bytes);
    tap_ok(book->sums[0].held_bytes == 0 && book->sums[0].live_bytes == 0 &&
               book->sums[0].peak_held_bytes >= all - (1 << 20),
           "the sums have had it, and have it no more");
    tap_is(run((const char *[]){calls, "threads", "20", "120", NULL}), 0, "threads, and twenty children");
    tap_is(book->taken_count, 22, "each has a record");
    unsigned gone = 0;
    for (unsigned i = 2; i < 22; i++)
        gone += book->records[i].state != ZR_USAGE_ENDED && book->records[i].memory[0].peak_held_bytes > 0;
    tap_is(gone, 20, "with what it had from its parent");
    tap_ok(book->sums[0].held_bytes < UINT64_MAX / 2, "the sums never go below nothing");
    tap_is(run((const char *[]){calls, "inside", NULL}), 0, "a fork beside a thread that is inside jemalloc");
    tap_ok(book->taken_count == 24 && book->records[23].state == ZR_USAGE_ENDED &&
               book->records[23].memory[ZR_USAGE_HOST].peak_held_bytes >= 30000000,
           "the child's small objects are in its record");
    book->taken_count = ZR_USAGE_COUNT - 1;
    for (unsigned i = 0; i < 2; i++)
        tap_is(run((const char *[]){calls, "foreign", NULL}), 0, "a program has the last record, or none");
    snprintf(path, sizeof path, "%s/" ZR_USAGE_FILE, folder);
    tap_ok(stat(path, &status) == 0 && status.st_size == (off_t)sizeof *book &&
               book->records[ZR_USAGE_COUNT - 1].state == ZR_USAGE_ENDED,
           "and none is written behind the last");
    munmap(book, sizeof *book);
    remove_book(folder);
}

int main(void)
{
#ifdef ZR_TEST_SANITIZED
    tap_skip("a library with a sanitizer cannot be preloaded");
    return tap_done();
#endif
    find(library, "lib/libzr_malloc.so");
    find(calls, "tests/preload_calls");
    find(forbid, "tests/forbid");
    test_calls();
    test_record();
    return tap_done();
}
