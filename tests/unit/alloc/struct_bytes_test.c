/* struct_bytes_test.c: option structs of programs that were built against an older or a newer header: each
 * entry reads what the caller has and no byte behind it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "defrag/zr_defrag.h"
#include "kernels/zr_kernels.h"
#include "tests/support/blocks.h"
#include "tests/support/tap.h"
#include "zero/comm/zr_comm.h"
#include "zero/table/zr_table.h"

enum { NEWER_BYTES = 24 }; /* that a newer header has more */

static char csv[] = "/tmp/zr-struct-bytes-XXXXXX"; /* a file for zr_sequence_read() */

/* ---- Each entry: the least of its struct that it needs, and a call that takes back what it made ---------
 */

static void fill_host(void *options)
{
    (void)options;
}
static zr_result call_host(const void *options)
{
    zr_backend *made = NULL;
    zr_result result = zr_backend_host_create(&made, options);
    zr_backend_destroy(made);
    return result;
}

static zr_result call_sim(const void *options)
{
    zr_backend *made = NULL;
    zr_result result = zr_backend_sim_create(&made, options);
    zr_backend_destroy(made);
    return result;
}

static void fill_arena(void *options)
{
    ((struct zr_arena_options *)options)->backend = backend;
}
static zr_result call_arena(const void *options)
{
    zr_arena *made = NULL;
    zr_result result = zr_arena_create(&made, options);
    zr_arena_destroy(made, NULL);
    return result;
}

static void fill_pool(void *options)
{
    ((struct zr_contiguous_options *)options)->arena = arena;
}
static zr_result call_pool(const void *options)
{
    zr_contiguous *made = NULL;
    zr_result result = zr_contiguous_create(&made, options);
    zr_contiguous_destroy(made, NULL);
    return result;
}

static void fill_ring(void *options)
{
    struct zr_ring_options *ring = options;
    ring->arena = arena;
    ring->buffer_bytes = 4096;
    ring->buffers_count = 2;
}
static zr_result call_ring(const void *options)
{
    zr_ring *made = NULL;
    zr_result result = zr_ring_create(&made, options);
    zr_ring_destroy(made);
    return result;
}

static void fill_learner(void *options)
{
    ((struct zr_learner_options *)options)->arena = arena;
}
static zr_result call_learner(const void *options)
{
    zr_learner *made = NULL;
    zr_result result = zr_learner_create(&made, options);
    zr_learner_destroy(made);
    return result;
}

static void fill_read(void *options)
{
    ((struct zr_read_options *)options)->path = csv;
}
static zr_result call_read(const void *options)
{
    struct zr_sequence sequence = {0};
    zr_result result = zr_sequence_read(&sequence, options, arena);
    zr_sequence_end(&sequence);
    return result;
}

static zr_result call_replay(const void *options)
{
    struct zr_replay_report report;
    struct zr_sequence sequence = {0};
    zr_sequence_read(&sequence, &(struct zr_read_options){.path = csv}, arena);
    zr_result result = zr_replay(&sequence, options, &report);
    zr_sequence_end(&sequence);
    return result;
}

static zr_result call_pack(const void *options)
{
    struct zr_pack_report report;
    struct zr_lifetimes lifetimes = {.host_arena = arena};
    return zr_pack(&lifetimes, options, &report);
}

static void fill_comm(void *options)
{
    struct zr_comm_options *comm = options;
    comm->arena = comm->host_arena = arena;
    comm->kernels = zr_kernels_null();
    comm->bucket_bytes = 4096;
}
static zr_result call_comm(const void *options)
{
    zr_comm *made = NULL;
    zr_result result = zr_comm_null_create(&made, options, 0, 2);
    zr_comm_destroy(made);
    return result;
}

static void fill_table(void *options)
{
    struct zr_table_options *table = options;
    table->arena = arena;
    table->name = "options";
    table->width = 1;
    table->rows_limit = 100;
}
static zr_result call_table(const void *options)
{
    zr_table *made = NULL;
    zr_result result = zr_table_create(&made, options);
    zr_table_close(made);
    return result;
}

#define UP_TO(type, field) (offsetof(struct type, field) + sizeof(((struct type *)0)->field))
static const struct entry {
    const char *name;
    size_t bytes, least_bytes;
    void (*fill)(void *options);
    zr_result (*call)(const void *options);
} entries[] = {
    {"zr_host_options", sizeof(struct zr_host_options), UP_TO(zr_host_options, struct_bytes), fill_host,
     call_host},
    {"zr_sim_options", sizeof(struct zr_sim_options), UP_TO(zr_sim_options, struct_bytes), fill_host,
     call_sim},
    {"zr_arena_options", sizeof(struct zr_arena_options), UP_TO(zr_arena_options, backend), fill_arena,
     call_arena},
    {"zr_contiguous_options", sizeof(struct zr_contiguous_options), UP_TO(zr_contiguous_options, arena),
     fill_pool, call_pool},
    {"zr_ring_options", sizeof(struct zr_ring_options), UP_TO(zr_ring_options, buffers_count), fill_ring,
     call_ring},
    {"zr_learner_options", sizeof(struct zr_learner_options), UP_TO(zr_learner_options, arena), fill_learner,
     call_learner},
    {"zr_read_options", sizeof(struct zr_read_options), UP_TO(zr_read_options, path), fill_read, call_read},
    {"zr_replay_options", sizeof(struct zr_replay_options), UP_TO(zr_replay_options, struct_bytes), fill_host,
     call_replay},
    {"zr_pack_options", sizeof(struct zr_pack_options), UP_TO(zr_pack_options, struct_bytes), fill_host,
     call_pack},
    {"zr_comm_options", sizeof(struct zr_comm_options), UP_TO(zr_comm_options, bucket_bytes), fill_comm,
     call_comm},
    {"zr_table_options", sizeof(struct zr_table_options), UP_TO(zr_table_options, rows_limit), fill_table,
     call_table},
};

/* ---- The sizes of a caller's struct -------------------------------------------------------------------- */

/* The last `bytes` before a page that nobody may read, filled for the entry. */
static void *at_the_end(char *page, size_t page_bytes, const struct entry *entry, size_t bytes)
{
    char whole[512] = {0};
    char *options = page + page_bytes - bytes;
    entry->fill(whole);
    memcpy(options, whole, bytes);
    memcpy(options, &bytes, sizeof bytes);
    return options;
}

static void test_entry(const struct entry *entry, char *page, size_t page_bytes)
{
    size_t bytes = entry->bytes, none = 0, one = 1;
    char *options = at_the_end(page, page_bytes, entry, bytes);
    tap_result(entry->call(options), ZR_OK, "struct %s of this release", entry->name);
    memcpy(options, &none, sizeof none);
    tap_result(entry->call(options), ZR_OK, "struct %s whose struct_bytes is 0", entry->name);
    memcpy(options, &one, sizeof one);
    tap_result(entry->call(options), ZR_ERR_INVALID, "struct %s of one byte is refused", entry->name);
    options = at_the_end(page, page_bytes, entry, entry->least_bytes);
    tap_result(entry->call(options), ZR_OK, "struct %s that ends after the fields it needs", entry->name);
    options = at_the_end(page, page_bytes, entry, bytes + NEWER_BYTES);
    tap_result(entry->call(options), ZR_OK, "struct %s of a newer release, with nothing new set",
               entry->name);
    options[bytes + NEWER_BYTES - 1] = 1;
    tap_result(entry->call(options), ZR_ERR_INVALID, "struct %s with something set that is not known",
               entry->name);
    char sizes[2][32];
    snprintf(sizes[0], sizeof sizes[0], "of %zu bytes", bytes + NEWER_BYTES);
    snprintf(sizes[1], sizeof sizes[1], "knows only %zu bytes", bytes);
    tap_ok(strstr(zr_last_error(), entry->name) && strstr(zr_last_error(), sizes[0]) &&
               strstr(zr_last_error(), sizes[1]),
           "the words name it and both sizes: %s", zr_last_error());
}

int main(void)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    char *page = mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const char text[] = "id,lower,upper,size\n1,0,1,4096\n";
    int fd = mkstemp(csv);
    tap_ok(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1, "a file of one buffer is written");
    close(fd);
    mprotect(page + page_bytes, page_bytes, PROT_NONE);
    zr_backend_host_create(&backend, NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .name = "options"});
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        test_entry(&entries[i], page, page_bytes);
    size_t least = sizeof least;
    void *launch = memcpy(page + page_bytes - least, &least, sizeof least);
    tap_is((size_t)zr_launch(launch, ZR_CARRIER_LOCAL, NULL), 2,
           "a struct zr_launch_options without rank_main");
    tap_is(stats().live_bytes, 0, "nothing is left of any of them");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    unlink(csv);
    return tap_done();
}
