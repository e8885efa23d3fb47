/* service_log_test.c: zrd's log: a flood of lines of one kind leaves the others there, and a full file is
 * kept as the generation before. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/service/server/log.h"
#include "tests/support/folder.h"
#include "tests/support/tap.h"

static char folder[] = "/tmp/zr-log-XXXXXX", path[64], before[64], text[4 << 20];

static size_t read_log(const char *from)
{
    FILE *file = fopen(from, "re");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[got] = '\0';
    if (file)
        fclose(file);
    return got;
}

static unsigned count(const char *words)
{
    unsigned found = 0;
    for (const char *at = text; (at = strstr(at, words)); at++)
        found++;
    return found;
}

static void test_flood(void)
{
    enum { LINES = 20000 };
    struct zr_service_log log;
    tap_ok(zr_service_log_open(&log, path), "a log");
    zr_service_log(&log, "lends 64 MiB");
    for (int i = 0; i < LINES; i++)
        zr_service_log(&log, "rejects user %d (pid %d): not the user of this zrd", i % 7, i);
    zr_service_log(&log, "drains");
    zr_service_log_close(&log);
    read_log(path);
    unsigned written = count(": rejects user"), left_out = 0;
    const char *words = " similar lines were omitted: rejects user";
    for (const char *at = text; (at = strstr(at, words)); at++) {
        const char *number = at;
        while (number[-1] >= '0' && number[-1] <= '9')
            number--;
        left_out += (unsigned)atoi(number);
        written--;
    }
    tap_ok(written >= ZR_LOG_BURST && written < LINES / 10, "of %d lines of one kind %u are written", LINES,
           written);
    tap_is(written + left_out, LINES, "and the others counted");
    tap_ok(count("lends 64 MiB") == 1 && count("drains") == 1, "other lines are all there");
}

/* Lines of which each is of another kind than those before, `words`: the last one's. */
static void write_lines(struct zr_service_log *log, int first, int end, char words[29])
{
    char padding[600];
    memset(padding, '.', sizeof padding - 1);
    padding[sizeof padding - 1] = '\0';
    strcpy(words, "a line of its own kind: aaaa");
    for (int i = first; i < end; i++) {
        for (int at = 0, rest = i; at < 4; at++, rest /= 16)
            words[27 - at] = (char)('a' + rest % 16);
        zr_service_log(log, "%s %s", words, padding);
    }
}

static void test_generations(void)
{
    struct zr_service_log log;
    char words[29];
    struct stat now, old;
    struct rlimit whole;
    tap_ok(zr_service_log_open(&log, path), "it goes on");
    write_lines(&log, 0, 2500, words);
    tap_ok(stat(path, &now) == 0 && stat(before, &old) == 0, "a full file is moved");
    tap_ok(now.st_size > 0 && old.st_size > 1 << 20 && old.st_size < (1 << 20) + 2000, "which has a MiB");
    read_log(before);
    tap_ok(count("lends 64 MiB") == 1, "and the first line");
    read_log(path);
    tap_ok(count(words) == 1, "the last is in the new one");
    getrlimit(RLIMIT_NOFILE, &whole);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_max = whole.rlim_max});
    write_lines(&log, 2500, 5000, words);
    setrlimit(RLIMIT_NOFILE, &whole);
    read_log(path);
    tap_ok(count(words) == 1, "without a descriptor for a new one the full one stays, under its name");
    unlink(path);
    zr_service_log(&log, "goes on");
    read_log(path);
    tap_ok(count("goes on") == 1, "one that was removed is made again");
    zr_service_log_close(&log);
}

/* A disk that is full within a line: the line is taken back, and counted once there is room. */
static void test_full(void)
{
    struct zr_service_log log;
    struct rlimit whole;
    char padding[1000];
    memset(padding, '.', sizeof padding - 1);
    padding[sizeof padding - 1] = '\0';
    tap_ok(zr_service_log_open(&log, path), "a log");
    zr_service_log(&log, "%s", padding);
    size_t before_bytes = read_log(path);
    tap_ok(before_bytes == strlen(text) && text[before_bytes - 1] == '\n',
           "a long line is cut, and has an end");
    getrlimit(RLIMIT_FSIZE, &whole);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = before_bytes + 5, .rlim_max = whole.rlim_max});
    zr_service_log(&log, "one");
    zr_service_log(&log, "another");
    setrlimit(RLIMIT_FSIZE, &whole);
    tap_ok(read_log(path) == before_bytes && log.lost_count == 2, "half a line is taken back");
    zr_service_log(&log, "room");
    read_log(path);
    tap_ok(count("\n2 lines could not be written here\n") == 1 && count("room") == 1 && log.lost_count == 0,
           "what is missing is counted");
    zr_service_log_close(&log);
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/log", folder);
    snprintf(before, sizeof before, "%s/log.1", folder);
    int descriptors = open_descriptors();
    test_flood();
    test_generations();
    test_full();
    tap_is(open_descriptors(), descriptors, "no descriptor is left");
    unlink(path);
    unlink(before);
    rmdir(folder);
    return tap_done();
}
