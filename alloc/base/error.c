/* error.c: the words of each thread's last failure, the names of results and tags, and assertions. Uses
 * slab.c.
 *
 * A thread that never fails has no text at all; the first failure takes it a record of 1 KiB, which goes back
 * when the thread ends. The library's thread-local state is one pointer, in the initial-exec model: it fits
 * the little room that a dlopened library gets, and reading it calls no allocator. */
#define _GNU_SOURCE
#define ZR_ERROR_C /* defines zr_fail() */
#include "alloc/base/error.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/system/file.h"
#include "alloc/base/slab.h"

enum { TEXT_BYTES = 1024 };

struct error_text {
    char words[TEXT_BYTES];
};

static __thread struct error_text *text_of_thread __attribute__((tls_model("initial-exec")));

/* Shared by the threads for whom the system has no record left: better mixed words than none. */
static struct error_text text_of_last_resort;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct zr_slab texts; /* lock: lock */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its destructor gives the record back */
static bool key_made;

static void give_text(void *text)
{
    text_of_thread = NULL;
    pthread_mutex_lock(&lock);
    zr_slab_give(&texts, text);
    pthread_mutex_unlock(&lock);
}

/* A child of fork() may have been forked while another thread held the lock. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void prepare(void)
{
    zr_slab_init(&texts, sizeof(struct error_text), ZR_POOL_NO_FAULTS);
    key_made = pthread_key_create(&key, give_text) == 0;
    pthread_atfork(before_fork, after_fork, after_fork);
}

void zr_error_prepare(void)
{
    pthread_once(&once, prepare);
}

static struct error_text *take_text(void)
{
    struct error_text *text = NULL;
    zr_error_prepare();
    pthread_mutex_lock(&lock);
    if (key_made && zr_slab_reserve(&texts, 1))
        text = zr_slab_take(&texts);
    pthread_mutex_unlock(&lock);
    if (text && pthread_setspecific(key, text) != 0) {
        give_text(text);
        text = NULL;
    }
    return text;
}

zr_result zr_fail(zr_result result, const char *format, ...)
{
    int saved_errno = errno;
    char words[TEXT_BYTES]; /* an argument may be zr_last_error() itself */
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    zr_make_plain(words); /* a file or a name may say anything */
    if (!text_of_thread) {
        /* A system that has no record for the words makes take_text() fail with words of its own. */
        text_of_thread = &text_of_last_resort;
        text_of_thread = take_text();
    }
    memcpy(text_of_thread ? text_of_thread : &text_of_last_resort, words, strlen(words) + 1);
    errno = saved_errno;
    return result;
}

const char *zr_last_error(void)
{
    return text_of_thread ? text_of_thread->words : text_of_last_resort.words;
}

/* ---- Assertions ---------------------------------------------------------------------------------------- */

static _Atomic(zr_assert_handler) handler;

void zr_assert_handler_set(zr_assert_handler new_handler)
{
    atomic_store(&handler, new_handler);
}

void zr_assert_failed(const char *condition, const char *file, int line)
{
    zr_assert_handler chosen = atomic_load(&handler);
    zr_fail(ZR_ERR_CORRUPT, "assertion failed: %s (%s:%d)", condition, file, line);
    if (chosen) {
        chosen(condition, file, line);
        return;
    }
    const char *words = zr_last_error();
    if (write(STDERR_FILENO, "zr: ", 4) < 0 || write(STDERR_FILENO, words, strlen(words)) < 0 ||
        write(STDERR_FILENO, "\n", 1) < 0)
        abort();
    abort();
}

/* ---- Names ----------------------------------------------------------------------------------------------
 */

static const char *const result_names[ZR_RESULT_COUNT] = {
    [ZR_OK] = "ok",
    [ZR_ERR_INVALID] = "invalid",
    [ZR_ERR_MEMORY] = "memory",
    [ZR_ERR_HOST_MEMORY] = "host_memory",
    [ZR_ERR_ADDRESSES] = "addresses",
    [ZR_ERR_UNAVAILABLE] = "unavailable",
    [ZR_ERR_FOREIGN] = "foreign",
    [ZR_ERR_DOUBLE_FREE] = "double_free",
    [ZR_ERR_CORRUPT] = "corrupt",
    [ZR_ERR_IO] = "io",
    [ZR_ERR_FORMAT] = "format",
    [ZR_ERR_PEER] = "peer",
    [ZR_ERR_TIMEOUT] = "timeout",
    [ZR_ERR_INTERRUPTED] = "interrupted",
    [ZR_ERR_TAG_LIMIT] = "tag limit",
};

static const char *const tag_names[ZR_TAG_COUNT] = {
    [ZR_TAG_PARAM] = "param",           [ZR_TAG_GRAD] = "grad",         [ZR_TAG_OPTIMIZER] = "optimizer",
    [ZR_TAG_MASTER] = "master",         [ZR_TAG_GATHERED] = "gathered", [ZR_TAG_CHECKPOINT] = "checkpoint",
    [ZR_TAG_ACTIVATION] = "activation", [ZR_TAG_COMM] = "comm",         [ZR_TAG_WORKSPACE] = "workspace",
    [ZR_TAG_OFFLOAD] = "offload",       [ZR_TAG_OTHER] = "other",
};

const char *zr_result_name(zr_result result)
{
    return (unsigned)result < ZR_RESULT_COUNT ? result_names[result] : "unknown";
}

const char *zr_tag_name(zr_tag tag)
{
    return (unsigned)tag < ZR_TAG_COUNT ? tag_names[tag] : NULL;
}
