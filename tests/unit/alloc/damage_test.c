/* damage_test.c: zr_arena_check() finds what was damaged on purpose, the options have the effect that their
 * help states, and the host backend gives back what was released: memory, files, and only its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/service/client/wire.h"
#include "alloc/base/error.h"
#include "alloc/core/arena.h"
#include "alloc/base/option.h"
#include "tests/support/blocks.h"
#include "tests/support/folder.h"
#include "tests/support/tap.h"

#define GRANULE ((size_t)64 << 10)

static void start(size_t limit_bytes)
{
    zr_backend_host_create(&backend, &(struct zr_host_options){.granule_bytes = GRANULE});
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = limit_bytes});
}

static void stop(void)
{
    tap_result(zr_arena_destroy(arena, NULL), ZR_OK, "the arena ends");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends");
}

/* ---- The check ----------------------------------------------------------------------------------------- */

static unsigned asserted;
static void count_assert(const char *condition, const char *file, int line)
{
    (void)condition, (void)file, (void)line;
    asserted++;
}

static void damage(size_t *number, const char *what)
{
    size_t before = *number;
    *number += 256;
    tap_result(zr_arena_check(arena), ZR_ERR_CORRUPT, "the check finds %s: %s", what, zr_last_error());
    *number = before;
    tap_result(zr_arena_check(arena), ZR_OK, "and is content without");
}

static void test_check(void)
{
    void *large;
    start(0);
    take_as(arena, 1000, ZR_TAG_PARAM, 0);
    char *large_block = take_as(arena, 3 * GRANULE, ZR_TAG_GRAD, 0);
    take_as(arena, GRANULE, ZR_TAG_OTHER, 0);
    zr_arena_free(arena, large_block);
    damage(&arena->live_bytes, "live bytes that are none");
    damage(&arena->requested_bytes, "requests that nobody made");
    damage(&arena->blocks_count, "blocks that are none");
    damage(&arena->live_by_tag_bytes[ZR_TAG_COMM], "a tag with too many bytes");
    damage(&arena->mapped_bytes, "memory that is not mapped");
    damage(&arena->lent_bytes, "granules that nobody borrowed");
    damage(&arena->reserved_bytes, "memory that nobody reserved");
    damage(&arena->granule_cache.bytes, "a cache that is empty");
    damage(&arena->first->bytes, "a extent that is too long");
    struct zr_zone *zone = &arena->zones[ZR_ZONE_WHOLE];
    struct zr_extent *gap = zr_bins_largest(&zone->gaps);
    gap->bin++;
    tap_result(zr_arena_check(arena), ZR_ERR_CORRUPT, "a gap under a wrong size: %s", zr_last_error());
    gap->bin--;
    zr_bins_remove(&zone->gaps, gap);
    gap->bin = zr_bins_index(gap->bytes);
    tap_result(zr_arena_check(arena), ZR_ERR_CORRUPT, "and one that is not filed: %s", zr_last_error());
    gap->bin = 0;
    zr_bins_add(&zone->gaps, gap);
    size_t granule = zone->first_bytes / GRANULE;
    zr_granules_set(arena->granules, granule, granule + 1, false);
    tap_result(zr_arena_check(arena), ZR_ERR_CORRUPT, "and a granule that is not in the books: %s",
               zr_last_error());
    zr_granules_set(arena->granules, granule, granule + 1, true);
    tap_result(zr_arena_check(arena), ZR_OK, "content again");
    stop();

    /* check:2 looks by itself whenever the mapped memory has changed. */
    for (unsigned level = 1; level <= 2; level++) {
        zr_option_set(level == 2 ? "check:2" : "check:1");
        start(0);
        asserted = 0;
        zr_assert_handler_set(count_assert);
        arena->blocks_count++;
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 4 * GRANULE}, &large);
        unsigned at_alloc = asserted;
        zr_arena_free(arena, large);
        zr_arena_trim(arena, 0, NULL);
        arena->blocks_count--;
        zr_assert_handler_set(NULL);
        tap_ok(at_alloc == level - 1 && asserted == 2 * (level - 1), "check:%u: %u damages seen", level,
               asserted);
        stop();
    }
    zr_option_set(NULL);
}

/* ---- Options ------------------------------------------------------------------------------------------- */

static void test_options(void)
{
    zr_option_set("granule:128k");
    zr_backend_sim_create(&backend, NULL);
    tap_is(backend->can.granule_bytes, 128 << 10,
           "granule:128k is the granule of a backend that asks for none");
    char local;
    struct zr_fill fill = {.to = &local, .bytes = 1};
    tap_result(zr_backend_fill(backend, &fill), ZR_ERR_INVALID, "check:1 looks at the addresses of a fill");
    zr_option_set("check:0");
    tap_result(zr_backend_fill(backend, &fill), ZR_OK, "check:0 does not");
    zr_option_set(NULL);
    zr_backend_destroy(backend);
}

/* ---- The host backend's files -------------------------------------------------------------------------- */

static size_t file_bytes(int fd)
{
    struct stat status = {0};
    fstat(fd, &status);
    return (size_t)status.st_blocks * 512;
}

static void test_giving_back(void)
{
    struct zr_segment segment;
    size_t count = 1, lead;
    int status = 1;
    start(0);
    char *block = take_as(arena, 4 * GRANULE, ZR_TAG_PARAM, 0);
    zr_block_export(arena, block, &segment, &count, &lead);
    zr_arena_set_granule_class(arena, block, 4 * GRANULE, ZR_GRANULE_MOVABLE);
    tap_is(file_bytes(segment.fd), 4 * GRANULE, "four granules take four granules of memory");
    memset(block, 'p', 4 * GRANULE);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        zr_arena_free(arena, block);
        zr_arena_trim(arena, 0, NULL);
        _exit(0);
    }
    waitpid(child, &status, 0);
    tap_ok(status == 0 && block[0] == 'p' && block[4 * GRANULE - 1] == 'p',
           "a child that gives granules back leaves its parent's alone");
    zr_arena_free(arena, block);
    tap_is(file_bytes(segment.fd), 4 * GRANULE, "a free keeps the memory");
    zr_arena_trim(arena, 0, NULL);
    tap_is(file_bytes(segment.fd), 0, "a trim gives it back to the system");
    struct zr_handle *handle = NULL;
    block = take_as(arena, GRANULE, ZR_TAG_PARAM, 0);
    strcpy(block, "here");
    tap_result(zr_backend_create(backend, SIZE_MAX - GRANULE + 1, &handle), ZR_ERR_MEMORY,
               "all bytes there are");
    tap_ok(!handle && strcmp(block, "here") == 0, "are refused, and what is there stays");
    stop();
}

static const struct zr_backend_ops *below;

static zr_result refuse_unmap(zr_backend *of, char *address, size_t bytes)
{
    (void)of, (void)address;
    return zr_fail(ZR_ERR_ADDRESSES, "no unmap of %zu bytes", bytes);
}

static void test_imports(void)
{
    struct zr_segment segment[2];
    size_t count = 1, lead = 1;
    void *imported = NULL, *none;
    int passed_on = inherited_descriptors();
    start(0);
    take_as(arena, GRANULE, ZR_TAG_PARAM, 0);
    char *block = take_as(arena, 2 * GRANULE, ZR_TAG_PARAM, 0);
    zr_block_export(arena, block, segment, &count, &lead);
    tap_is(lead, 0, "a block on a granule has no lead");
    strcpy(block, "one");
    int files = open_descriptors();
    segment[1] = segment[0];
    tap_result(zr_import(backend, segment, 2, &imported), ZR_OK, "one piece imported twice over");
    tap_is(open_descriptors(), files + 1, "takes one descriptor");
    tap_ok(imported && strcmp(imported, "one") == 0 && strcmp((char *)imported + 2 * GRANULE, "one") == 0,
           "and shows the same memory at both places");
    tap_is(inherited_descriptors(), passed_on, "exec closes its file");
    tap_result(zr_import_release(backend, arena->base), ZR_ERR_FOREIGN, "an arena is no import");
    struct zr_backend_ops ops = *(below = backend->ops);
    ops.unmap = refuse_unmap;
    backend->ops = &ops;
    tap_result(zr_import_release(backend, imported), ZR_ERR_ADDRESSES, "what cannot be unmapped");
    backend->ops = below;
    tap_result(zr_import_release(backend, imported), ZR_OK, "is released by another call");
    tap_is(open_descriptors(), files, "and closed");
    segment[1].bytes = SIZE_MAX - GRANULE + 1;
    tap_ok(zr_import(backend, segment, 2, &imported) == ZR_ERR_INVALID &&
               strstr(zr_last_error(), "exceed the address"),
           "more than the address space: %s", zr_last_error());
    segment[1].bytes = segment[0].bytes;
    segment[1].offset_bytes = (uint64_t)GRANULE << 20;
    tap_result(zr_import(backend, &segment[1], 1, &none), ZR_ERR_INVALID, "a piece behind the file's end");
    segment[1].offset_bytes = segment[0].offset_bytes;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", segment[0].fd);
    segment[1].fd = open(path, O_RDONLY | O_CLOEXEC);
    tap_result(zr_import(backend, &segment[1], 1, &none), ZR_ERR_INVALID,
               "a descriptor that cannot be written");
    tap_ok(strstr(zr_last_error(), "writing") != NULL, "is called that: %s", zr_last_error());
    close(segment[1].fd);
    segment[1].fd = 999;
    tap_result(zr_import(backend, segment, 2, &none), ZR_ERR_INVALID, "the second piece is bad");
    tap_is(open_descriptors(), files, "nothing stays of the first");
    stop();
}

static void *imported_once;
static _Atomic unsigned releases_ready, releases_good, releases_foreign;

static void *release_import(void *argument)
{
    atomic_fetch_add(&releases_ready, 1);
    while (atomic_load(&releases_ready) < 2)
        ;
    zr_result result = zr_import_release(backend, imported_once);
    atomic_fetch_add(&releases_good, result == ZR_OK);
    atomic_fetch_add(&releases_foreign, result == ZR_ERR_FOREIGN);
    return argument;
}

/* Of two releases of one import at once one is right, and the other hears that there is none. */
static void test_two_releases(void)
{
    enum { ROUNDS = 1000 };
    struct zr_segment segment;
    size_t count = 1, lead;
    unsigned rounds = 0;
    start(0);
    zr_block_export(arena, take_as(arena, GRANULE, ZR_TAG_PARAM, 0), &segment, &count, &lead);
    int files = open_descriptors();
    for (; rounds < ROUNDS && releases_good == rounds && releases_foreign == rounds; rounds++) {
        pthread_t thread;
        atomic_store(&releases_ready, 0);
        if (zr_import(backend, &segment, 1, &imported_once) != ZR_OK)
            break;
        pthread_create(&thread, NULL, release_import, NULL);
        release_import(NULL);
        pthread_join(thread, NULL);
    }
    tap_ok(rounds == ROUNDS && releases_good == ROUNDS && releases_foreign == ROUNDS,
           "%u imports released twice at once: %u were, %u were none", rounds, releases_good,
           releases_foreign);
    tap_is(open_descriptors(), files, "and no descriptor was closed twice");
    stop();
}

/* ---- Messages of the service --------------------------------------------------------------------------- */

/* What comes of a message with so many descriptors, `bytes` of it. */
static zr_result pass_message(const struct zr_service_message *message, size_t bytes, unsigned fds)
{
    int line[2];
    char room[600] = {0};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control = {
        .head = {.cmsg_len = CMSG_LEN(fds * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct msghdr header = {.msg_iov = &(struct iovec){room, bytes}, .msg_iovlen = 1};
    struct zr_service_packet packet;
    memcpy(room, message, sizeof *message);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0)
        return ZR_ERR_CORRUPT;
    for (unsigned i = 0; i < fds; i++)
        memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &line[0], sizeof(int));
    if (fds > 0)
        header.msg_control = &control, header.msg_controllen = CMSG_SPACE(fds * sizeof(int));
    zr_result result = zr_service_receive(line[1], &packet, 0);
    if (result == ZR_ERR_TIMEOUT && sendmsg(line[0], &header, 0) == (ssize_t)bytes)
        result = zr_service_receive(line[1], &packet, 0);
    if (result == ZR_OK) {
        result = zr_service_packet_check(line[1], &packet);
        if (packet.fds_count != (fds < ZR_SERVICE_FDS_MAX ? fds : ZR_SERVICE_FDS_MAX))
            result = ZR_ERR_CORRUPT;
        zr_service_packet_close(&packet);
    }
    close(line[0]);
    if (zr_service_receive(line[1], &packet, UINT64_MAX) != ZR_ERR_PEER)
        result = ZR_ERR_CORRUPT;
    close(line[1]);
    return result;
}

static void test_messages(void)
{
    enum { WHOLE = sizeof(struct zr_service_message) };
    static const struct {
        const char *words;
        unsigned kind, version, fds;
        size_t bytes;
        char sign; /* the last of the group's name */
        zr_result want;
    } rows[] = {{"the first kind", 1, 0, 0, WHOLE, 0, ZR_OK},
                {"the last kind", ZR_SERVICE_KIND_COUNT - 1, 0, 0, WHOLE, 0, ZR_OK},
                {"no kind", 0, 0, 0, WHOLE, 0, ZR_ERR_FORMAT},
                {"a kind beyond", ZR_SERVICE_KIND_COUNT, 0, 0, WHOLE, 0, ZR_ERR_FORMAT},
                {"one byte less", 1, 0, 0, WHOLE - 1, 0, ZR_ERR_FORMAT},
                {"one byte more", 1, 0, 0, WHOLE + 1, 0, ZR_ERR_FORMAT},
                {"less than a version", 1, 0, 0, 7, 0, ZR_ERR_FORMAT},
                {"another version, cut", 1, 1, 0, 8, 0, ZR_ERR_UNAVAILABLE},
                {"a text without an end", 1, 0, 0, WHOLE, 'x', ZR_ERR_FORMAT},
                {"a hello with a descriptor", ZR_SERVICE_HELLO, 0, 1, WHOLE, 0, ZR_ERR_FORMAT},
                {"a file without one", ZR_SERVICE_ADOPT, 0, 0, WHOLE, 0, ZR_ERR_FORMAT},
                {"a file", ZR_SERVICE_ADOPT, 0, 1, WHOLE, 0, ZR_OK},
                {"two files", ZR_SERVICE_ADOPT, 0, 2, WHOLE, 0, ZR_ERR_FORMAT},
                {"three", ZR_SERVICE_ADOPT, 0, 3, WHOLE, 0, ZR_ERR_FORMAT},
                {"an answer that may have one", ZR_SERVICE_GRANTED, 0, 1, WHOLE, 0, ZR_OK},
                {"and may not", ZR_SERVICE_DONE, 0, 0, WHOLE, 0, ZR_OK},
                {"and has two", ZR_SERVICE_DONE, 0, 2, WHOLE, 0, ZR_ERR_FORMAT}};
    int before = open_descriptors();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct zr_service_message message = zr_service_message_of((enum zr_service_kind)rows[i].kind);
        message.version = (uint16_t)(message.version + rows[i].version);
        memset(message.group, rows[i].sign, sizeof message.group);
        tap_result(pass_message(&message, rows[i].bytes, rows[i].fds), rows[i].want, "%s", rows[i].words);
        tap_is(open_descriptors(), before, "and nothing stays open");
    }
}

int main(void)
{
    test_check();
    test_options();
    test_giving_back();
    test_imports();
    test_messages();
    test_two_releases();
    return tap_done();
}
