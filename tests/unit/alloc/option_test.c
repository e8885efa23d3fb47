/* option_test.c: the small things everything stands on: options, fault sites, record pools, error texts. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "alloc/base/slab.h"
#include "tests/support/tap.h"

static void test_options(void)
{
    char help[2048];
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
    char cut[10];
    tap_ok(zr_option_help(cut, sizeof cut) == length && strlen(cut) == 9, "and is cut to the room there is");
    tap_result(zr_option_set(NULL), ZR_OK, "the defaults again");
    tap_ok(!zr_option_help_wanted(), "no help");
}

/* What a program of its own makes of the environment. */
static void test_environment(char *self)
{
    setenv("ZR_CONF", "chekc:1", 1);
    setenv("ZR_FAULT", "create:1,junk,map:x", 1);
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
    if (zr_fault_result() != ZR_ERR_INVALID || !strstr(zr_last_error(), "junk"))
        return 5;
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
    tap_result(zr_fail(ZR_ERR_IO, "%s", "one"), ZR_ERR_IO, "a failure returns its result");
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
    test_environment(arguments[0]);
    test_errors();
    test_records();
    test_faults();
    return tap_done();
}
