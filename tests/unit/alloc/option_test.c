/* option_test.c: the small things everything stands on: options, fault sites, record pools, error texts. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "alloc/base/sizes.h"
#include "alloc/base/slab.h"
#include "tests/support/tap.h"

static void test_options(void)
{
    char help[4096];
    tap_is(zr_option_get(ZR_OPTION_CHECK), 1, "check is 1 by itself");
    tap_result(zr_option_set("check:3,isa:avx2,granule:64k,poison:off"), ZR_OK, "a list of options");
    tap_ok(zr_option_get(ZR_OPTION_CHECK) == 3 && zr_option_get(ZR_OPTION_ISA) == 2 &&
               zr_option_get(ZR_OPTION_GRANULE) == 65536 && zr_option_get(ZR_OPTION_POISON) == 0,
           "is read");
    static const char *const bad[] = {
        "chek:3",      "check:4",    "check:-1", "check:",         "check",
        "check:3x",    "isa:sse9",   "isa:",     "poison:maybe",   "granule:3m",
        "granule:99g", "granule:1x", ":",        "check:3,nope:1", "granule:18446744073709551617"};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        zr_option_set("check:2");
        tap_result(zr_option_set(bad[i]), ZR_ERR_INVALID, "`%s` is refused: %s", bad[i], zr_last_error());
        tap_is(zr_option_get(ZR_OPTION_CHECK), 1, "and leaves the defaults");
    }
    zr_option_set("publish:off");
    zr_option_prefer(ZR_OPTION_PUBLISH, 2);
    tap_is(zr_option_get(ZR_OPTION_PUBLISH), 1, "a program's own default does not overrule ZR_CONF");
    zr_option_set("check:2");
    zr_option_prefer(ZR_OPTION_PUBLISH, 2);
    tap_is(zr_option_get(ZR_OPTION_PUBLISH), 2, "and holds where ZR_CONF says nothing");
    tap_result(zr_option_set("help"), ZR_OK, "help");
    tap_ok(zr_option_help_wanted(), "is wanted");
    size_t length = zr_option_help(help, sizeof help);
    tap_ok(length == strlen(help) && strstr(help, "vma_budget") && strstr(help, "avx512_bf16"), "lists all");
    tap_ok(strstr(help, "granule:0..1GiB ") && strstr(help, "limit:SIZE ") && strstr(help, "1.5GiB"),
           "sizes have units there: %s", help);
    char cut[10];
    tap_ok(zr_option_help(cut, sizeof cut) == length && strlen(cut) == 9, "and is cut to the room there is");
    tap_result(zr_option_set(NULL), ZR_OK, "the defaults again");
    tap_ok(!zr_option_help_wanted(), "no help");
    char group[8] = "";
    zr_group_name(group, 4, "a b\xc3");
    tap_ok(memcmp(group, "a_b\0\0\0\0", 7) == 0, "a group's name is cut to its room: %s", group);
    zr_group_name(group, sizeof group, "a\x7f\n~");
    tap_ok(strcmp(group, "a__~") == 0, "and has no other signs: %s", group);
}

static const char *read_text(const char *text, uint64_t *out)
{
    return zr_size_read(text, strlen(text), out);
}

static void test_sizes_read(void)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"1", 1},
                {"1b", 1},
                {"16G", 17179869184},
                {"16g", 17179869184},
                {"16GiB", 17179869184},
                {"16gib", 17179869184},
                {"16GB", 16000000000},
                {"16gb", 16000000000},
                {"1.5GiB", 1610612736},
                {"1.5g", 1610612736},
                {"1.50000000000000000000GiB", 1610612736},
                {"1.75TB", 1750000000000},
                {"0.001KB", 1},
                {"0.5k", 512},
                {"3KB", 3000},
                {"2m", 2097152},
                {"1TiB", 1099511627776},
                {"1P", 1125899906842624},
                {"15EiB", 17293822569102704640u},
                {"1.000000000000000001EB", 1000000000000000001},
                {"18446744073709551615", UINT64_MAX}};
    static const struct {
        const char *text, *words;
    } bad[] = {{"", "not a size"},
               {"GiB", "not a size"},
               {"x", "not a size"},
               {"+1", "not a size"},
               {" 1", "not a size"},
               {"nan", "not a size"},
               {"-1", "not negative"},
               {"-16G", "not negative"},
               {"1 KiB", "unknown unit"},
               {"1KiB ", "unknown unit"},
               {"1GiBs", "unknown unit"},
               {"1Gi", "unknown unit"},
               {"1iB", "unknown unit"},
               {"1Q", "unknown unit"},
               {"1e9", "unknown unit"},
               {"0x10", "unknown unit"},
               {"1.5.5GiB", "unknown unit"},
               {"1.GiB", "no digit"},
               {"1.5", "not a whole number of bytes"},
               {"1.1GiB", "not a whole number of bytes"},
               {"0.0001KB", "not a whole number of bytes"},
               {"16777215.9999999999TiB", "not a whole number of bytes"},
               {"1.00000000000000000001EB", "not a whole number of bytes"},
               {"18446744073709551616", "more than 2^64 - 1"},
               {"16777216TiB", "more than 2^64 - 1"},
               {"16E", "more than 2^64 - 1"},
               {"99999999999999999999999999999999999999999999G", "more than 2^64 - 1"}};
    uint64_t bytes;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        tap_ok(!read_text(good[i].text, &bytes) && bytes == good[i].bytes, "%s is a size", good[i].text);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bytes = 7;
        const char *problem = read_text(bad[i].text, &bytes);
        tap_ok(problem && bytes == 7 && strstr(problem, bad[i].words) && strstr(problem, "16GB (of 1000)"),
               "'%s' is refused: %s", bad[i].text, problem ? problem : "no");
    }
    tap_ok(!zr_size_read("64kiB,check:3", 5, &bytes) && bytes == 65536, "what follows is not read");
    tap_ok(zr_option_set("granule:64KiB,limit:1.5GB,recorder:1M") == ZR_OK &&
               zr_option_get(ZR_OPTION_GRANULE) == 65536 && zr_option_get(ZR_OPTION_LIMIT) == 1500000000 &&
               zr_option_get(ZR_OPTION_RECORDER) == 1048576,
           "ZR_CONF's sizes are the same");
    tap_ok(zr_option_set("limit:1.1GiB") == ZR_ERR_INVALID &&
               strstr(zr_last_error(), "ZR_CONF: `1.1GiB` of limit is not a whole"),
           "and refused in the same words: %s", zr_last_error());
    zr_option_set(NULL);
}

static void test_sizes_printed(void)
{
    static const struct {
        uint64_t bytes, largest_bytes;
        const char *text;
    } rows[] = {{0, 0, "0"},
                {1, 1, "1 B"},
                {1023, 1023, "1023 B"},
                {1024, 1024, "1.00 KiB"},
                {10234, 10234, "9.99 KiB"},
                {10235, 10235, "10.0 KiB"},
                {102348, 102348, "99.9 KiB"},
                {102349, 102349, "100 KiB"},
                {1047552, 1047552, "1023 KiB"},
                {1048575, 1048575, "1.00 MiB"},
                {1610612736, 1610612736, "1.50 GiB"},
                {16208536928256, 16208536928256, "14.7 TiB"}, /* 15457664 MiB */
                {UINT64_MAX, UINT64_MAX, "16.0 EiB"},
                {0, 1 << 30, "0"},
                {16789798912, 16208536928256, "0.015 TiB"},
                {268435456, 1610612736, "0.250 GiB"},
                {600000, 1 << 30, "0.001 GiB"},
                {500000, 1 << 30, "488 KiB"},
                {1610612736, 1 << 20, "1536 MiB"}};
    char out[ZR_SIZE_ROOM], exact[ZR_SIZE_EXACT_ROOM];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        zr_size_print_in(out, rows[i].bytes, rows[i].largest_bytes);
        tap_ok(strcmp(out, rows[i].text) == 0, "%llu beside %llu is %s: %s",
               (unsigned long long)rows[i].bytes, (unsigned long long)rows[i].largest_bytes, rows[i].text,
               out);
    }
    tap_ok(strcmp(zr_size_print(out, 9663676416), "9.00 GiB") == 0, "a size alone is in its own unit");
    static const struct {
        uint64_t bytes;
        const char *text;
    } options[] = {{0, "0"},
                   {1023, "1023"},
                   {1000, "1KB"},
                   {1024, "1KiB"},
                   {4194304, "4MiB"},
                   {64000000, "64MB"},
                   {1048576000, "1000MiB"},
                   {1610612736, "1536MiB"},
                   {UINT64_C(1) << 60, "1EiB"},
                   {UINT64_MAX, "18446744073709551615"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        uint64_t again = 1;
        zr_size_print_exact(exact, options[i].bytes);
        tap_ok(strcmp(exact, options[i].text) == 0 && !read_text(exact, &again) && again == options[i].bytes,
               "exactly %s, and so it is read again: %s", options[i].text, exact);
    }
}

/* What a program of its own makes of the environment. */
static void test_environment(char *self)
{
    setenv("ZR_CONF", "chekc:1", 1);
    setenv("ZR_FAULT", "create:1,write:short:1,map:short:1,read:short:x,junk", 1);
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "environment", (char *)NULL);
        _exit(99);
    }
    waitpid(child, &status, 0);
    tap_is(WEXITSTATUS(status), 0, "a bad ZR_CONF is an error value, and ZR_FAULT fails the first creation");
}

static int in_environment(void)
{
    zr_backend *backend;
    zr_arena *arena;
    void *block;
    if (zr_backend_sim_create(&backend, NULL) != ZR_ERR_INVALID || !strstr(zr_last_error(), "chekc"))
        return 1;
    if (zr_fault_result() != ZR_ERR_INVALID || !strstr(zr_last_error(), "\"map:short:1\""))
        return 5;
    if (zr_fault_part(ZR_FAULT_WRITE, 9) != 1)
        return 6;
    zr_option_set(NULL);
    if (zr_backend_sim_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 2;
    if (zr_arena_alloc(arena, &(struct zr_request){.bytes = 1}, &block) != ZR_ERR_MEMORY)
        return 3;
    return zr_arena_alloc(arena, &(struct zr_request){.bytes = 1}, &block) == ZR_OK ? 0 : 4;
}

static void test_faults(void)
{
    zr_fault_set(ZR_FAULT_SYNC, 3);
    tap_ok(!zr_fault(ZR_FAULT_SYNC) && !zr_fault(ZR_FAULT_SYNC), "two passes are good");
    tap_ok(zr_fault(ZR_FAULT_SYNC), "the third fails");
    tap_ok(!zr_fault(ZR_FAULT_SYNC), "the fourth does not");
    tap_is(zr_fault_set(ZR_FAULT_SYNC, 0), 4, "there were four");
    zr_fault_set(ZR_FAULT_SYNC | ZR_FAULT_TWICE, 2);
    bool first = zr_fault(ZR_FAULT_SYNC), second = zr_fault(ZR_FAULT_SYNC), third = zr_fault(ZR_FAULT_SYNC);
    tap_ok(!first && second && third && !zr_fault(ZR_FAULT_SYNC), "one that fails twice, from the second on");
    tap_is(zr_fault_set(ZR_FAULT_SYNC | ZR_FAULT_TWICE, 0), 4, "of four, too");
    zr_fault_set(ZR_FAULT_READ | ZR_FAULT_EINTR, 2);
    first = zr_fault_interrupts(ZR_FAULT_READ);
    tap_ok(!first && zr_fault_interrupts(ZR_FAULT_READ) && errno == EINTR &&
               !zr_fault_interrupts(ZR_FAULT_READ) && !zr_fault_interrupts(ZR_FAULT_WRITE),
           "a call that is interrupted");
    zr_fault_set(ZR_FAULT_READ | ZR_FAULT_EINTR, 0);
    static const size_t parts[][2] = {{0, 0},    {1, 1},       {2, 1},         {4102, 1},
                                      {4103, 1}, {4104, 4103}, {1 << 20, 4103}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        zr_fault_set(ZR_FAULT_READ | ZR_FAULT_SHORT, 1);
        tap_is(zr_fault_part(ZR_FAULT_READ, parts[i][0]), parts[i][1], "of %zu bytes", parts[i][0]);
    }
    zr_fault_set(ZR_FAULT_READ | ZR_FAULT_SHORT, 0);
    tap_ok(strcmp(zr_fault_site_name(ZR_FAULT_WRITE | ZR_FAULT_SHORT), "write:short") == 0 &&
               strcmp(zr_fault_site_name(ZR_FAULT_MAP | ZR_FAULT_SHORT), "unknown") == 0,
           "kinds have names, where a site has them");
    tap_ok(strcmp(zr_fault_site_name(ZR_FAULT_METADATA), "metadata") == 0, "sites have names");
    tap_ok(strcmp(zr_fault_site_name(ZR_FAULT_SITE_COUNT), "unknown") == 0, "others have not");
}

static void test_records(void)
{
    enum { COUNT = 5000 };
    static uint64_t *records[COUNT];
    struct zr_slab pool;
    unsigned wrong = 0;
    zr_slab_init(&pool, 40, ZR_POOL_FAULTS);
    for (unsigned i = 0; i < COUNT; i++) {
        wrong += !zr_slab_reserve(&pool, 1 + i % 3);
        records[i] = zr_slab_take(&pool);
        for (unsigned w = 0; w < 5; w++)
            records[i][w] = i;
    }
    for (unsigned i = 0; i < COUNT; i += 2)
        zr_slab_give(&pool, records[i]);
    for (unsigned i = 1; i < COUNT; i += 2)
        for (unsigned w = 0; w < 5; w++)
            wrong += records[i][w] != i;
    tap_is(wrong, 0, "records keep their bytes beside others that come and go");
    tap_is(zr_slab_live_count(&pool), COUNT / 2, "half are live");
    zr_fault_set(ZR_FAULT_METADATA, 1);
    tap_ok(!zr_slab_reserve(&pool, 1), "an injected failure");
    tap_ok(strstr(zr_last_error(), "records") != NULL, "has words");
    zr_fault_set(ZR_FAULT_METADATA, 0);
    tap_ok(zr_slab_reserve(&pool, 100000), "a large reservation");
    tap_ok(pool.spare_count >= 100000, "is there");
    zr_slab_end(&pool);
    tap_ok(pool.slabs == NULL && pool.spare_count == 0, "the end gives all back");
    zr_slab_reserve(&pool, 1);
    while (pool.spare_count > 1)
        zr_slab_take(&pool);
    zr_slab_reserve(&pool, 2);
    while (pool.spare_count > 0)
        zr_slab_take(&pool);
    tap_ok(pool.fresh <= pool.fresh_end, "the last record of a slab is taken before those of the next");
    zr_slab_end(&pool);
}

static void *fail_apart(void *argument)
{
    zr_fail(ZR_ERR_IO, "thread %d", *(int *)argument);
    usleep(1000);
    char want[32];
    snprintf(want, sizeof want, "thread %d", *(int *)argument);
    return strcmp(zr_last_error(), want) == 0 ? NULL : argument;
}

static const char *seen_condition;
static void on_assert(const char *condition, const char *file, int line)
{
    (void)file, (void)line;
    seen_condition = condition;
}

static void test_errors(void)
{
    enum { THREADS = 16 };
    pthread_t threads[THREADS];
    int numbers[THREADS];
    unsigned wrong = 0;
    errno = EDOM;
    tap_result(zr_fail(ZR_ERR_IO, "%s", "one"), ZR_ERR_IO, "a failure returns its result");
    tap_is(errno, EDOM, "and leaves errno");
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, fail_apart, &numbers[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += result != NULL;
    }
    tap_is(wrong, 0, "each thread has its own words");
    tap_ok(strcmp(zr_last_error(), "one") == 0, "and so has this one");
    zr_fail(ZR_ERR_IO, "because: %s", zr_last_error());
    tap_ok(strcmp(zr_last_error(), "because: one") == 0, "words can quote the last ones");
    char longest[4000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    zr_fail(ZR_ERR_IO, "%s", longest);
    tap_is(strlen(zr_last_error()), 1023, "long words are cut");
    zr_assert_handler_set(on_assert);
    zr_assert(1 + 1 == 3);
    zr_assert_handler_set(NULL);
    tap_ok(seen_condition && strcmp(seen_condition, "1 + 1 == 3") == 0, "an assertion reaches its handler");
    tap_ok(strcmp(zr_result_name(ZR_ERR_DOUBLE_FREE), "double_free") == 0 &&
               strcmp(zr_result_name((zr_result)99), "unknown") == 0 &&
               strcmp(zr_result_name((zr_result)-1), "unknown") == 0,
           "results have names");
    unsigned named = 0;
    for (int tag = 0; tag < ZR_TAG_COUNT; tag++)
        named += zr_tag_name((zr_tag)tag) != NULL;
    tap_ok(named == ZR_TAG_COUNT && !zr_tag_name(ZR_TAG_COUNT) && !zr_tag_name((zr_tag)-1), "tags too");
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "environment") == 0)
        return in_environment();
    test_options();
    test_sizes_read();
    test_sizes_printed();
    test_environment(arguments[0]);
    test_errors();
    test_records();
    test_faults();
    return tap_done();
}
