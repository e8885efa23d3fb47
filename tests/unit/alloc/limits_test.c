/* limits_test.c: the limits of alloc/, a table for each module: the least and the most are granted, one below
 * and one beyond are refused, and nothing stays of either (tests/support/limits.h). What waits at a limit
 * goes on when just enough has come back. Limits of a GPU are in cuda_test.c, of sizes as text in
 * option_test.c. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "alloc/backend/backend.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/system/process.h"
#include "alloc/core/arena.h"
#include "alloc/core/space.h"
#include "alloc/telemetry/command.h"
#include "alloc/telemetry/trace_format.h"
#include "alloc/plan/plan.h"
#include "alloc/pool/contiguous.h"
#include "alloc/keep/holder.h"
#include "alloc/service/server/limits.h"
#include "alloc/service/server/runs.h"
#include "tests/support/blocks.h"
#include "tests/support/limits.h"

#define GRANULE   ((size_t)64 << 10)
#define GIB       ((size_t)1 << 30)
#define ADDRESSES ((size_t)1 << 54)
#define BYTES_MAX ((size_t)PTRDIFF_MAX - 2 * GRANULE)
#define INVALID   ZR_ERR_INVALID
#define MEMORY    ZR_ERR_MEMORY
#define CUT       ZR_ERR_FORMAT
#define ASK(name) static zr_result name(const struct limit *limit __attribute__((unused)), size_t value)

static struct zr_ledger ledger;
static zr_backend *own_backend; /* of one question, as the arena */
static zr_arena *own;

static size_t limits_held(void)
{
    zr_arena_trim(arena, 0, NULL);
    struct zr_arena_stats now = stats();
    return now.live_bytes + now.requested_bytes + now.reserved_bytes + now.pending_bytes + now.blocks_count +
           zr_backend_held_bytes(backend) + backend->arenas_count + ledger.held_bytes + ledger.clients_count +
           ledger.groups_count;
}

enum kind { SIM, HOST, PRIVATE };

static zr_result begin_backend(enum kind kind, size_t granule_bytes, size_t limit_bytes)
{
    own = NULL;
    return kind == SIM
               ? zr_backend_sim_create(&own_backend, &(struct zr_sim_options){.granule_bytes = granule_bytes,
                                                                              .capacity_bytes = limit_bytes})
               : zr_backend_host_create(&own_backend,
                                        &(struct zr_host_options){.granule_bytes = granule_bytes,
                                                                  .limit_bytes = limit_bytes,
                                                                  .private_memory = kind == PRIVATE});
}

static zr_result begin(enum kind kind, struct zr_arena_options options)
{
    zr_result result = begin_backend(kind, GRANULE, 0);
    options.backend = own_backend;
    return result == ZR_OK ? zr_arena_create(&own, &options) : result;
}

/* Nothing may be left in the arena or the backend. */
static zr_result end(zr_result result, bool good)
{
    size_t leaked = 0;
    struct zr_arena_stats left = {0};
    for (unsigned i = 0; own && i < 2; i++) { /* at the first, streams are asked how far they are */
        zr_arena_trim(own, 0, NULL);
        zr_backend_synchronize(own_backend);
    }
    for (unsigned i = 0; own && i < ZR_TAG_COUNT; i++)
        good = good && own->promised_by_tag_bytes[i] == 0;
    if (own)
        good = zr_arena_check(own) == ZR_OK && zr_arena_get_stats(own, &left) == ZR_OK && good;
    good = zr_arena_destroy(own, &leaked) == ZR_OK &&
           leaked + left.reserved_bytes + left.pending_bytes == 0 && good;
    good = (!own_backend || zr_backend_held_bytes(own_backend) + zr_backend_vmas_count(own_backend) == 0) &&
           good;
    good = zr_backend_destroy(own_backend) == ZR_OK && good;
    own = NULL;
    own_backend = NULL;
    return good ? result : ZR_ERR_CORRUPT;
}

static const char *letters(size_t length)
{
    static char text[4096];
    memset(text, 'x', length);
    text[length] = '\0';
    return text;
}

/* Whether all letters have arrived. */
static zr_result whole(const char *got, size_t length)
{
    return strcmp(got, letters(length)) == 0 ? ZR_OK : CUT;
}

/* ---- base ---------------------------------------------------------------------------------------------- */

ASK(option)
{
    char text[64];
    uint64_t got = 0;
    snprintf(text, sizeof text, "%s:%zu", limit->name, value);
    zr_result result = zr_option_set(text);
    bool good = result != ZR_OK || (zr_option_find(limit->name, &got) && got == value);
    zr_option_set(NULL);
    return good ? result : ZR_ERR_CORRUPT;
}

enum { WORDS, GROUP_NAME, ARENA_NAME };

ASK(text)
{
    zr_group_set(letters(value));
    begin(SIM, (struct zr_arena_options){.name = letters(value)});
    zr_fail(ZR_ERR_IO, "%s", letters(value));
    return end(whole(limit->with == WORDS        ? zr_last_error()
                     : limit->with == GROUP_NAME ? zr_option_group()
                                                 : own->name,
                     value),
               true);
}

static const struct limit base[] = {
    {"check", option, 0, 3, 0, INVALID, 0, 0},
    {"granule", option, 1, GIB, 0, INVALID, LIMIT_DOUBLES, 0},
    {"recorder", option, 0, GIB, 0, INVALID, 0, 0},
    {"small", option, 0, 1 << 30, 0, INVALID, 0, 0},
    {"stacks", option, 0, UINT32_MAX, 0, INVALID, 0, 0},
    {"vma_budget", option, 0, UINT32_MAX, 0, INVALID, 0, 0},
    {"limit", option, 0, SIZE_MAX, 0, 0, 0, 0},
    {"the words of a failure", text, 0, 1023, 0, CUT, 0, WORDS},
    {"a group's name", text, 0, 47, 0, CUT, 0, GROUP_NAME},
    {"an arena's name", text, 0, 31, 0, CUT, 0, ARENA_NAME},
};

/* ---- backend ------------------------------------------------------------------------------------------- */

ASK(granule)
{
    zr_result result = begin_backend((enum kind)limit->with, value, 0);
    return end(result, result != ZR_OK || own_backend->can.granule_bytes == value);
}

ASK(range)
{
    struct zr_range *made;
    begin_backend(SIM, limit->with, 0);
    zr_result result = zr_backend_reserve(own_backend, value, &made);
    return end(result, result != ZR_OK || zr_backend_release(made) == ZR_OK);
}

/* So many ranges of the largest size: what is reserved for one that is refused goes. */
ASK(ranges)
{
    struct zr_range *made[8];
    size_t count = 0;
    bool good = true;
    begin_backend(SIM, GIB, 0);
    zr_result result = ZR_OK;
    while (count < value && (result = zr_backend_reserve(own_backend, ADDRESSES, &made[count])) == ZR_OK)
        count++;
    while (count > 0)
        good = zr_backend_release(made[--count]) == ZR_OK && good;
    return end(result, good);
}

ASK(handle)
{
    struct zr_handle *made;
    begin_backend(SIM, limit->with, 0);
    zr_result result = zr_backend_create(own_backend, value, &made);
    return end(result, result != ZR_OK || zr_backend_destroy_handle(own_backend, made) == ZR_OK);
}

/* So many granules in handles of one. */
static zr_result handles(size_t count)
{
    struct zr_handle *made[16];
    size_t had = 0;
    zr_result result = ZR_OK;
    while (had < count && (result = zr_backend_create(own_backend, GRANULE, &made[had])) == ZR_OK)
        had++;
    bool good = zr_backend_held_bytes(own_backend) == had * GRANULE;
    while (had > 0)
        zr_backend_destroy_handle(own_backend, made[--had]);
    return end(result, good);
}

/* A granule of so many bytes that there may be. */
ASK(capacity)
{
    begin_backend((enum kind)limit->with, GRANULE, value);
    return handles(1);
}

/* Of eight granules, and a part of one. */
ASK(held)
{
    begin_backend((enum kind)limit->with, GRANULE, 9 * GRANULE - 1);
    return handles(value);
}

/* A handle of `with` granules at the granule of that number, of a range of 16. */
ASK(place)
{
    struct zr_range *made;
    struct zr_handle *run;
    const struct zr_bounds extent = {value * GRANULE, limit->with * GRANULE};
    begin_backend(SIM, GRANULE, 0);
    zr_backend_reserve(own_backend, 16 * GRANULE, &made);
    zr_backend_create(own_backend, limit->with * GRANULE, &run);
    zr_result result = zr_backend_map(made, extent.offset_bytes, run);
    bool good = zr_backend_set_access(made, extent) == result && zr_backend_unmap(made, extent) == result;
    zr_backend_destroy_handle(own_backend, run);
    return end(result, zr_backend_release(made) == ZR_OK && good);
}

/* So many mappings that do not continue one another, of eight. */
ASK(mappings)
{
    struct zr_range *made;
    struct zr_handle *one;
    size_t count = 0;
    zr_option_set("vma_budget:8");
    zr_result result = begin_backend(HOST, GRANULE, 0);
    zr_option_set(NULL);
    zr_backend_reserve(own_backend, 64 * GRANULE, &made);
    for (size_t i = 0; i < value; i++) {
        zr_backend_create(own_backend, GRANULE, &one);
        result = zr_backend_map(made, 2 * i * GRANULE, one);
        count += result == ZR_OK;
        zr_backend_destroy_handle(own_backend, one);
    }
    bool good = zr_backend_vmas_count(own_backend) == count;
    for (size_t i = 0; i < count; i++)
        zr_backend_unmap(made, (struct zr_bounds){2 * i * GRANULE, GRANULE});
    return end(result, zr_backend_release(made) == ZR_OK && good);
}

/* So many bytes of a file of four granules, from the granule `with`. */
ASK(import)
{
    void *address = NULL;
    int fd = memfd_create("limits", MFD_CLOEXEC);
    const struct zr_segment segment = {.fd = fd, .offset_bytes = limit->with * GRANULE, .bytes = value};
    begin_backend(HOST, GRANULE, 0);
    zr_result result =
        ftruncate(fd, (off_t)(4 * GRANULE)) != 0 ? ZR_ERR_IO : zr_import(own_backend, &segment, 1, &address);
    bool good = zr_import_release(own_backend, address) == ZR_OK && (result == ZR_OK) == (address != NULL);
    close(fd);
    return end(result, good);
}

static const struct limit backends[] = {
    {"a granule of sim", granule, 4096, GIB, INVALID, INVALID, LIMIT_DOUBLES, SIM},
    {"a granule of the host", granule, 4096, GIB, INVALID, INVALID, LIMIT_DOUBLES, HOST},
    {"a granule of private memory", granule, 4096, GIB, INVALID, INVALID, LIMIT_DOUBLES, PRIVATE},
    {"a granule of a power of two", granule, 4096, GIB, INVALID, INVALID, 1, HOST},
    {"a range", range, GIB, ADDRESSES, INVALID, ZR_ERR_ADDRESSES, GIB, GIB},
    {"a range of whole granules", range, GRANULE, 64 * GRANULE, INVALID, INVALID, 4096, GRANULE},
    {"ranges", ranges, 1, 3, 0, ZR_ERR_ADDRESSES, 0, 0},
    {"a handle", handle, GIB, ADDRESSES, INVALID, MEMORY, GIB, GIB},
    {"a handle of whole granules", handle, GRANULE, 64 * GRANULE, INVALID, INVALID, 4096, GRANULE},
    {"a capacity of sim", capacity, GRANULE, SIZE_MAX, MEMORY, 0, 0, SIM},
    {"a limit of the host", capacity, GRANULE, SIZE_MAX, MEMORY, 0, 0, HOST},
    {"a limit of private memory", capacity, GRANULE, SIZE_MAX, MEMORY, 0, 0, PRIVATE},
    {"granules within a capacity", held, 0, 8, 0, MEMORY, 0, SIM},
    {"granules within the host's limit", held, 0, 8, 0, MEMORY, 0, HOST},
    {"granules within a limit of private memory", held, 0, 8, 0, MEMORY, 0, PRIVATE},
    {"the place of a granule", place, 0, 15, INVALID, INVALID, 0, 1},
    {"the place of four", place, 0, 12, INVALID, INVALID, 0, 4},
    {"the place of sixteen", place, 0, 0, INVALID, INVALID, 0, 16},
    {"mappings within their budget", mappings, 0, 8, 0, ZR_ERR_ADDRESSES, 0, 0},
    {"an import", import, GRANULE, 4 * GRANULE, INVALID, INVALID, GRANULE, 0},
    {"an import of a file's end", import, GRANULE, GRANULE, INVALID, INVALID, GRANULE, 3},
};

/* ---- core and front ------------------------------------------------------------------------------------ */

static zr_result block_of(zr_arena *from, struct zr_request request)
{
    void *block = &block;
    zr_result result = zr_arena_alloc(from, &request, &block);
    if (result == ZR_OK && request.alignment > 0 && (uintptr_t)block % request.alignment != 0)
        result = ZR_ERR_CORRUPT;
    return result != ZR_OK ? block ? ZR_ERR_CORRUPT : result : zr_arena_free(from, block);
}

enum { BYTES, ALIGNMENT, TAG };

/* A request, one of whose numbers is asked for. */
ASK(request)
{
    zr_result result =
        block_of(arena, (struct zr_request){.bytes = limit->with == BYTES ? value : 1,
                                            .alignment = limit->with == ALIGNMENT ? value : 0,
                                            .tag = limit->with == TAG ? (zr_tag)value : ZR_TAG_GRAD});
    return result == ZR_ERR_ADDRESSES ? ZR_OK : result; /* of which there is a limit, too */
}

enum { LIMIT, RESERVE, THREADS };

ASK(options)
{
    begin_backend(SIM, limit->with == RESERVE ? GIB : GRANULE, 0);
    zr_result result = zr_arena_create(
        &own, &(struct zr_arena_options){.backend = own_backend,
                                         .limit_bytes = limit->with == LIMIT ? value : 0,
                                         .reserve_bytes = limit->with == RESERVE ? value : 0,
                                         .threads = limit->with == THREADS ? (unsigned)value : 0});
    return end(result == ZR_OK ? block_of(own, (struct zr_request){.bytes = GRANULE}) : result, true);
}

/* `with`: an arena of eight granules of memory, or of addresses. */
static const struct zr_arena_options eight[] = {{.limit_bytes = 8 * GRANULE}, {.reserve_bytes = 8 * GRANULE}};

ASK(block)
{
    begin(SIM, eight[limit->with]);
    return end(block_of(own, (struct zr_request){.bytes = value}), true);
}

/* So many granules, in blocks of one. The last is refused, and can be had once another has come back. */
ASK(granules)
{
    void *blocks[16];
    size_t had = 0;
    zr_result result = ZR_OK;
    struct zr_arena_stats now;
    const struct zr_request one = {.bytes = GRANULE};
    begin(limit->with & 2 ? HOST : SIM, eight[limit->with & 1]);
    while (had < value && (result = zr_arena_alloc(own, &one, &blocks[had])) == ZR_OK)
        had++;
    zr_arena_get_stats(own, &now);
    bool good =
        now.live_bytes == had * GRANULE && now.reserved_bytes == had * GRANULE && now.blocks_count == had;
    if (result != ZR_OK)
        good =
            good && zr_arena_free(own, blocks[3]) == ZR_OK && zr_arena_alloc(own, &one, &blocks[3]) == ZR_OK;
    while (had > 0)
        zr_arena_free(own, blocks[--had]);
    return end(result, good);
}

/* Streams that have a record, each for memory that it may still use. */
ASK(streams)
{
    void *block;
    bool good = true;
    zr_backend_sim_create(&own_backend,
                          &(struct zr_sim_options){.granule_bytes = GRANULE, .work_ns = 1000000});
    zr_arena_create(&own, &(struct zr_arena_options){.backend = own_backend});
    for (size_t i = 1; i <= value; i++)
        good =
            zr_arena_alloc(own, &(struct zr_request){.bytes = GRANULE, .stream = i + 2}, &block) == ZR_OK &&
            zr_arena_free(own, block) == ZR_OK && good;
    return end(own->streams_count == value ? ZR_OK : CUT, good);
}

/* The byte of that number belongs to a block of one byte. */
ASK(interior)
{
    struct zr_block_info info;
    char *block = take(1);
    zr_result result = zr_arena_find(arena, block + value, &info);
    zr_arena_free(arena, block);
    return result;
}

/* A class, or so many bytes of one, of four granules. */
ASK(granule_class)
{
    struct zr_arena_stats now;
    begin(SIM, (struct zr_arena_options){0});
    char *four = take_as(own, 4 * GRANULE, ZR_TAG_GRAD, 0);
    bool movable = limit->with && value == ZR_GRANULE_MOVABLE;
    zr_result result = zr_arena_set_granule_class(
        own, four, limit->with ? 1 : value, limit->with ? (enum zr_granule_class)value : ZR_GRANULE_FIXED);
    zr_arena_get_stats(own, &now);
    size_t want = result != ZR_OK || movable ? 0 : zr_round_up(limit->with ? 1 : value, GRANULE);
    bool good = now.unmovable_bytes == want;
    zr_arena_set_granule_class(own, four, 4 * GRANULE, ZR_GRANULE_MOVABLE);
    return end(result, zr_arena_free(own, four) == ZR_OK && good);
}

ASK(map_callbacks)
{
    struct zr_map_callback callback[8] = {0};
    zr_result result = ZR_OK;
    size_t count = 0;
    for (; count < value && result == ZR_OK; count += result == ZR_OK) {
        callback[count].argument = &callback[count];
        result = zr_arena_add_map_callback(arena, &callback[count]);
    }
    while (count > 0)
        if (zr_arena_remove_map_callback(arena, &callback[--count]) != ZR_OK)
            return ZR_ERR_CORRUPT;
    return result;
}

/* Places for the segments of a block of one. */
ASK(segments)
{
    struct zr_segment out[2];
    struct zr_arena_stats now;
    size_t count = value, lead;
    begin(HOST, (struct zr_arena_options){0});
    char *one = take_as(own, GRANULE, ZR_TAG_GRAD, 0);
    zr_result result = zr_block_export(own, one, out, &count, &lead);
    zr_arena_get_stats(own, &now);
    bool good = count == 1 && now.unmovable_bytes == (result == ZR_OK ? GRANULE : 0);
    zr_arena_set_granule_class(own, one, 1, ZR_GRANULE_MOVABLE);
    return end(result, zr_arena_free(own, one) == ZR_OK && good);
}

/* Idle bytes that a trim leaves, of eight granules. */
ASK(kept)
{
    size_t released = 0, want = value < 8 * GRANULE ? 8 * GRANULE - value / GRANULE * GRANULE : 0;
    begin(SIM, (struct zr_arena_options){0});
    zr_arena_free(own, take_as(own, 8 * GRANULE, ZR_TAG_GRAD, 0));
    zr_arena_trim(own, value, &released);
    return end(ZR_OK, released == want);
}

static const struct limit arenas[] = {
    {"a block", request, 1, BYTES_MAX, INVALID, INVALID, 0, BYTES},
    {"an alignment", request, 1, GRANULE, 0, INVALID, LIMIT_DOUBLES, ALIGNMENT},
    {"a tag", request, 0, ZR_TAG_COUNT - 1, INVALID, INVALID, 0, TAG},
    {"an arena's limit", options, GRANULE, SIZE_MAX, INVALID, 0, 0, LIMIT},
    {"a reservation", options, 1, ADDRESSES, 0, ZR_ERR_ADDRESSES, 0, RESERVE},
    {"threads", options, 0, ZR_STRIPES_MAX + 1, 0, INVALID, 0, THREADS},
    {"a block within an arena's limit", block, 1, 8 * GRANULE, INVALID, MEMORY, 0, 0},
    {"a block within an arena's addresses", block, 1, 8 * GRANULE, INVALID, ZR_ERR_ADDRESSES, 0, 1},
    {"granules within an arena's limit", granules, 0, 8, 0, MEMORY, 0, 0},
    {"granules within an arena's addresses", granules, 0, 8, 0, ZR_ERR_ADDRESSES, 0, 1},
    {"granules within the limit of one on the host", granules, 0, 8, 0, MEMORY, 0, 2},
    {"streams with a record", streams, 0, ZR_STREAMS_MAX, 0, CUT, 0, 0},
    {"the bytes that belong to a block", interior, 0, 255, ZR_ERR_FOREIGN, ZR_ERR_FOREIGN, 0, 0},
    {"a granule's class", granule_class, 0, ZR_GRANULE_CLASS_COUNT - 1, INVALID, INVALID, 0, 1},
    {"the bytes of a class", granule_class, 1, 4 * GRANULE, 0, ZR_ERR_FOREIGN, 0, 0},
    {"map callbacks", map_callbacks, 0, ZR_MAP_CALLBACKS_MAX, 0, INVALID, 0, 0},
    {"segments", segments, 1, 2, INVALID, 0, 0, 0},
    {"what a trim keeps: nothing", kept, 0, GRANULE - 1, 0, 0, 0, 0},
    {"what a trim keeps: some", kept, GRANULE, 8 * GRANULE - 1, 0, 0, 0, 0},
    {"what a trim keeps: all", kept, 8 * GRANULE, SIZE_MAX, 0, 0, 0, 0},
};

/* ---- debug --------------------------------------------------------------------------------------------- */

/* A block (`with` 2 and 3: an entry) where the tag (1 and 3: all tags) may have 16 KiB. */
ASK(tag_limit)
{
    struct zr_tag_limits most;
    zr_contiguous *pool = NULL;
    zr_entry entry = 0;
    void *block = NULL;
    memset(&most, 0xff, sizeof most);
    *(limit->with & 1 ? &most.total_bytes : &most.by_tag_bytes[ZR_TAG_GRAD]) = 16 << 10;
    begin(SIM, (struct zr_arena_options){0});
    char *before = take_as(own, 256, ZR_TAG_GRAD, 0);
    zr_arena_set_tag_limits(own, &most);
    if (limit->with & 2)
        zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = own, .tag = ZR_TAG_GRAD});
    zr_result result =
        pool ? zr_contiguous_append(pool, &(struct zr_entry_request){.bytes = value}, &entry, NULL)
             : zr_arena_alloc(own, &(struct zr_request){.bytes = value, .tag = ZR_TAG_GRAD}, &block);
    zr_arena_get_high_water(own, &most);
    bool good = most.by_tag_bytes[ZR_TAG_GRAD] == 256 + (result == ZR_OK ? zr_round_up(value, 256) : 0);
    if (pool)
        good = zr_contiguous_free(pool, entry) == ZR_OK && zr_contiguous_destroy(pool, NULL) == ZR_OK && good;
    zr_arena_free(own, block);
    zr_arena_free(own, before);
    return end(result, good);
}

ASK(command)
{
    char line[128];
    struct zr_command read;
    int length = limit->with ? snprintf(line, sizeof line, "stacks %zu", value)
                             : snprintf(line, sizeof line, "mark %s", letters(value));
    zr_result result = zr_command_read(&read, line, (size_t)length);
    return result != ZR_OK ? result
           : limit->with   ? (read.arena == value ? ZR_OK : CUT)
                           : whole(read.text, value);
}

/* The label of a mark, behind its length, is what a trace ends with. */
ASK(mark)
{
    char text[1024] = "", path[] = "/tmp/zr-limits-XXXXXX";
    size_t count = 0;
    close(mkstemp(path));
    begin(SIM, (struct zr_arena_options){0});
    zr_trace_start(own, path);
    zr_trace_mark(own, letters(value));
    zr_trace_stop(own);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(text, 1, sizeof text, file) : 0;
    fclose(file);
    unlink(path);
    while (count < got && text[got - 1 - count] == 'x')
        count++;
    return end(count == value ? ZR_OK : CUT, got > count && (size_t)text[got - 1 - count] == count);
}

static const struct limit debug[] = {
    {"a tag's limit", tag_limit, 1, (16 << 10) - 256, INVALID, ZR_ERR_TAG_LIMIT, 0, 0},
    {"the limit of all tags", tag_limit, 1, (16 << 10) - 256, INVALID, ZR_ERR_TAG_LIMIT, 0, 1},
    {"a tag's limit, of a pool", tag_limit, 1, (16 << 10) - 256, INVALID, ZR_ERR_TAG_LIMIT, 0, 2},
    {"the limit of all tags, of a pool", tag_limit, 1, (16 << 10) - 256, INVALID, ZR_ERR_TAG_LIMIT, 0, 3},
    {"a command's label", command, 1, ZR_COMMAND_MARK_BYTES, INVALID, INVALID, 0, 0},
    {"a command's number", command, 0, 999999, 0, INVALID, 0, 1},
    {"a mark's label", mark, 0, ZRT_LABEL_BYTES, 0, CUT, 0, 0},
};

/* ---- plan ---------------------------------------------------------------------------------------------- */

enum { SEQUENCES, CURSOR, ALIVE, OFFSET, ALIGNED, STEP_BYTES, STEP_TAG, PAGE };

/* A plan of a sequence of two steps, but for one number. */
ASK(plan)
{
    static struct zr_plan_step steps[ZR_PLAN_SEQUENCES + 1];
    static struct zr_plan_sequence sequences[ZR_PLAN_SEQUENCES + 1];
    size_t part = limit->with, count = part == SEQUENCES ? value : 1;
    const uint32_t pages[4] = {0, 1, (uint32_t)value, 1};
    for (size_t i = 0; i <= ZR_PLAN_SEQUENCES; i++) {
        steps[i] = (struct zr_plan_step){.request = {.bytes = 256, .alignment = 256}, .alive_count = 1};
        sequences[i] = (struct zr_plan_sequence){.first = i,
                                                 .count = part == SEQUENCES ? 1 : 2,
                                                 .thread = (uint32_t)i,
                                                 .cursor = part == CURSOR ? value : 0};
    }
    steps[1].alive_count = part == ALIVE ? (uint32_t)value : 1;
    steps[1].offset_bytes = part == OFFSET ? value : 0;
    steps[1].request.alignment = part == ALIGNED ? value : 256;
    steps[1].request.bytes = part == STEP_BYTES ? value : 256;
    steps[1].request.tag = part == STEP_TAG ? (zr_tag)value : ZR_TAG_GRAD;
    begin(SIM, (struct zr_arena_options){0});
    return end(zr_arena_install_plan(own, &(struct zr_plan){.steps = steps,
                                                            .steps_count = part == SEQUENCES ? count : 2,
                                                            .sequences = sequences,
                                                            .sequences_count = count,
                                                            .region_bytes = 4 * GRANULE,
                                                            .pages = part == PAGE ? pages : NULL,
                                                            .pages_count = part == PAGE ? 2 : 0}),
               true);
}

static const struct limit plans[] = {
    {"sequences of a plan", plan, 1, ZR_PLAN_SEQUENCES, INVALID, INVALID, 0, SEQUENCES},
    {"the step that comes next", plan, 0, 1, 0, INVALID, 0, CURSOR},
    {"the steps of a lifetime", plan, 1, 2, INVALID, INVALID, 0, ALIVE},
    {"a step's offset", plan, 0, 4 * GRANULE - 256, 0, INVALID, 256, OFFSET},
    {"a step's alignment", plan, 256, GRANULE, INVALID, INVALID, LIMIT_DOUBLES, ALIGNED},
    {"a step's bytes", plan, 1, 4 * GRANULE, INVALID, INVALID, 0, STEP_BYTES},
    {"a step's tag", plan, 0, ZR_TAG_COUNT - 1, 0, INVALID, 0, STEP_TAG},
    {"the page of a granule", plan, 0, 1, 0, INVALID, 0, PAGE},
};

/* ---- pool ---------------------------------------------------------------------------------------------- */

/* An entry in a pool of its own. */
static zr_result entry_of(struct zr_contiguous_options options, struct zr_entry_request request)
{
    zr_contiguous *pool;
    zr_entry made = 1;
    void *address = &made;
    struct zr_contiguous_stats now;
    options.arena = arena;
    zr_result result = zr_contiguous_create(&pool, &options);
    if (result != ZR_OK)
        return result;
    result = zr_contiguous_append(pool, &request, &made, &address);
    bool good = (result == ZR_OK) == (made != 0) && (result == ZR_OK) == (address != NULL) &&
                (request.alignment == 0 || (uintptr_t)address % request.alignment == 0);
    zr_contiguous_free(pool, made);
    zr_contiguous_get_stats(pool, &now);
    good = now.live_bytes + now.requested_bytes + now.mapped_bytes + now.pending_bytes + now.entries_count ==
               0 &&
           good;
    good = zr_contiguous_check(pool) == ZR_OK && good;
    return zr_contiguous_destroy(pool, NULL) == ZR_OK && good ? result : ZR_ERR_CORRUPT;
}

/* In a pool of four granules of addresses. */
ASK(entry)
{
    return entry_of((struct zr_contiguous_options){.tag = limit->with == TAG ? (zr_tag)value : ZR_TAG_GRAD,
                                                   .reserve_bytes = 4 * GRANULE},
                    (struct zr_entry_request){.bytes = limit->with == BYTES ? value : 1,
                                              .alignment = limit->with == ALIGNMENT ? value : 0});
}

/* The last is refused, and can be had once another has gone. */
ASK(entries)
{
    static const struct zr_entry_request least = {.bytes = 16, .alignment = 16};
    zr_contiguous *pool;
    zr_entry made = 0, last = 0;
    size_t count = 0, leaked = 0;
    zr_result result = ZR_OK;
    zr_contiguous_create(&pool, &(struct zr_contiguous_options){.arena = arena});
    for (; count < value && (result = zr_contiguous_append(pool, &least, &made, NULL)) == ZR_OK; count++)
        last = made;
    bool good = result == ZR_OK || (zr_contiguous_free(pool, last) == ZR_OK &&
                                    zr_contiguous_append(pool, &least, &last, NULL) == ZR_OK);
    good = zr_contiguous_destroy(pool, &leaked) == ZR_OK && good && leaked == 16 * count;
    return good ? result : ZR_ERR_CORRUPT;
}

enum { BUFFERS, BUFFER, BUFFER_ALIGNMENT, RING_TAG };

/* All of its buffers are acquired, and none is left; one comes back, and is there. */
ASK(ring)
{
    zr_ring *made = NULL;
    void *buffers[300], *none;
    unsigned count = 0;
    struct zr_ring_options options = {.arena = arena,
                                      .tag = limit->with == RING_TAG ? (zr_tag)value : ZR_TAG_COMM,
                                      .buffer_bytes = limit->with == BUFFER ? value : 1,
                                      .buffers_count = limit->with == BUFFERS ? (unsigned)value : 2,
                                      .alignment = limit->with == BUFFER_ALIGNMENT ? value : 0};
    zr_result result = zr_ring_create(&made, &options);
    if (result != ZR_OK) /* more than the addresses is another matter */
        return result == ZR_ERR_ADDRESSES ? ZR_OK : result;
    size_t alignment = options.alignment ? options.alignment : 256;
    bool good = stats().requested_bytes ==
                (options.buffer_bytes + alignment - 1) / alignment * alignment * options.buffers_count;
    while (count < 300 && zr_ring_acquire(made, 0, 0, &buffers[count]) == ZR_OK) {
        good = good && (options.alignment == 0 || (uintptr_t)buffers[count] % options.alignment == 0);
        count++;
    }
    good = good && count == options.buffers_count && zr_ring_acquire(made, 0, 0, &none) == ZR_ERR_TIMEOUT &&
           zr_ring_release(made, buffers[0], 0) == ZR_OK && zr_ring_acquire(made, 0, 0, &none) == ZR_OK &&
           none == buffers[0];
    while (count > 0)
        zr_ring_release(made, buffers[--count], 0);
    return zr_ring_destroy(made) == ZR_OK && good ? ZR_OK : ZR_ERR_CORRUPT;
}

static const struct limit pools[] = {
    {"an entry", entry, 1, 4 * GRANULE, INVALID, ZR_ERR_ADDRESSES, 0, BYTES},
    {"an entry's alignment", entry, 16, GRANULE, INVALID, INVALID, LIMIT_DOUBLES, ALIGNMENT},
    {"an entry's tag", entry, 0, ZR_TAG_COUNT - 1, 0, INVALID, 0, TAG},
    {"entries", entries, 1, 1 << 20, 0, ZR_ERR_HOST_MEMORY, 0, 0},
    {"buffers", ring, 1, 299, INVALID, 0, 0, BUFFERS},
    {"a buffer", ring, 1, BYTES_MAX / 2 & ~(size_t)255, INVALID, INVALID, 0, BUFFER},
    {"a buffer's alignment", ring, 1, GRANULE, 0, INVALID, LIMIT_DOUBLES, BUFFER_ALIGNMENT},
    {"a ring's tag", ring, 0, ZR_TAG_COUNT - 1, 0, INVALID, 0, RING_TAG},
};

/* ---- service ------------------------------------------------------------------------------------------- */

static zr_result answered; /* ZR_ERR_TIMEOUT: not yet */
static enum zr_service_kind replied;

static bool answer(struct zr_ledger *of, struct zr_client *client, zr_result result)
{
    (void)of, (void)client;
    answered = result;
    return true;
}

static void reply(struct zr_ledger *of, struct zr_client *client, enum zr_service_kind kind, const char *text)
{
    (void)of, (void)client, (void)text;
    replied = kind;
}

static void start_ledger(uint64_t capacity_bytes)
{
    static const struct zr_ledger_calls calls = {.answer = answer, .reply = reply};
    ledger = (struct zr_ledger){
        .calls = &calls, .capacity_bytes = capacity_bytes, .within_ns = 1000, .least_bytes = 10};
    zr_ledger_start(&ledger);
    answered = ZR_ERR_TIMEOUT;
    replied = 0;
}

/* Holders go; nothing stays with the ledger. */
static zr_result end_ledger(zr_result result, bool good)
{
    while (ledger.clients)
        zr_ledger_remove(&ledger, ledger.clients, 0);
    zr_ledger_unlimit(&ledger);
    good = ledger.held_bytes + ledger.clients_count + ledger.groups_count == 0 && !ledger.runs && good;
    zr_ledger_end(&ledger);
    return good ? result : ZR_ERR_CORRUPT;
}

enum { ALONE, PROCESS, EACH, GROUP, CAPACITY };

/* Beside 100 bytes that it holds, a process has 900 left of its quota, of that of each, of its group, of all.
 */
ASK(lease)
{
    uint64_t held = limit->with == ALONE ? 0 : 100;
    struct zr_client client = {.pid = 1, .held_bytes = held};
    start_ledger(limit->with == CAPACITY ? 1000 : SIZE_MAX);
    ledger.process_hard_bytes = limit->with == EACH ? 1000 : 0;
    zr_ledger_add(&ledger, &client, "a");
    client.hard_bytes = limit->with == PROCESS ? 1000 : 0;
    client.group->hard_bytes = limit->with == GROUP ? 1000 : 0;
    zr_result result = zr_ledger_lease(&ledger, &client, value, 1, 0);
    zr_ledger_tick(&ledger, 1000); /* it has waited, for nobody */
    result = result != ZR_OK ? result : answered;
    held += result == ZR_OK ? value : 0;
    return end_ledger(result, client.held_bytes == held && client.group->held_bytes == held &&
                                  ledger.held_bytes == held);
}

ASK(returned)
{
    struct zr_client client = {.pid = 1, .held_bytes = 100};
    start_ledger(1000);
    zr_ledger_add(&ledger, &client, "a");
    zr_result result = zr_ledger_return(&ledger, &client, value, 0);
    return end_ledger(result, ledger.held_bytes == 100 - (result == ZR_OK ? value : 0));
}

ASK(client)
{
    struct zr_client made = {.pid = 1, .held_bytes = value};
    start_ledger(1000);
    return end_ledger(zr_ledger_add(&ledger, &made, "a"), true);
}

ASK(groups)
{
    static struct zr_client clients[4097];
    zr_result result = ZR_OK;
    start_ledger(1000);
    for (size_t i = 0; i < value && result == ZR_OK; i++) {
        char number[24];
        snprintf(number, sizeof number, "%zu", i);
        clients[i] = (struct zr_client){.pid = 1};
        result = zr_ledger_add(&ledger, &clients[i], number);
    }
    return end_ledger(result, true);
}

ASK(quota)
{
    char text[ZR_SERVICE_WORDS_BYTES];
    struct zr_service_message message = {.flags = (uint32_t)limit->with,
                                         .bytes = value,
                                         .hard_bytes = limit->with == ZR_SERVICE_SET_HARD ? value : 0,
                                         .soft_bytes = limit->with == ZR_SERVICE_SET_SOFT ? value : 0,
                                         .shares = (uint32_t)value,
                                         .group = "a"};
    start_ledger(1000);
    return end_ledger(zr_ledger_limit(&ledger, &message, text, sizeof text, 0), true);
}

enum { MEMBERS, PEAK, BASE, SPILL };

/* A plan, of which each number has a limit; beside the capacity, where that is small. */
ASK(run_plan)
{
    struct zr_client made = {.pid = 1};
    struct zr_run_plan numbers = {
        .base_bytes = limit->with == PEAK ? 0 : 10, .peak_bytes = 20, .key = 1, .count = 1};
    if (limit->with == MEMBERS)
        numbers.count = (uint32_t)value;
    else
        *(limit->with == PEAK   ? &numbers.peak_bytes
          : limit->with == BASE ? &numbers.base_bytes
                                : &numbers.spill_bytes) = value;
    start_ledger(limit->most == 1000 ? 1000 : SIZE_MAX);
    zr_ledger_add(&ledger, &made, "a");
    zr_result result = zr_run_join(&ledger, &made, &numbers, 0);
    zr_ledger_serve(&ledger, 0);
    bool let_in = replied == ZR_SERVICE_GRANTED || numbers.count > 1;
    return end_ledger(result == ZR_OK && !let_in ? MEMORY : result, true);
}

enum { PROCESSES, FILE_BYTES, IN_CAPACITY, IN_GROUP, IN_PROCESS };

/* A file of limits that has so many lines or bytes, or so large a number in one; a damaged one is set aside
 * as a whole. */
ASK(file)
{
    static struct zr_limits limits;
    static char text[(1 << 20) + 16];
    struct zr_service_log log = {.fd = -1};
    char path[] = "/tmp/zr-limits-XXXXXX", from[48], bad[64];
    size_t kind = limit->with, count = kind == PROCESSES ? value : 1, used;
    close(mkstemp(path));
    snprintf(from, sizeof from, "%s.limits", path);
    snprintf(bad, sizeof bad, "%s.bad", from);
    used =
        (size_t)snprintf(text, sizeof text, "zrd limits 1\ncapacity %zu instead of 1000\ngroup %zu 0 1 a\n",
                         kind == IN_CAPACITY ? value : 500, kind == IN_GROUP ? value : 500);
    for (size_t i = 0; i < count; i++)
        used +=
            (size_t)sprintf(text + used, "process %d %llu %zu 0\n", (int)getpid(),
                            (unsigned long long)zr_process_started(getpid()), kind == IN_PROCESS ? value : 5);
    for (; kind == FILE_BYTES && used + 4 < value; used++)
        text[used] = '\n';
    used += (size_t)sprintf(text + used, "end\n");
    FILE *to = fopen(from, "we");
    fwrite(text, 1, used, to);
    fclose(to);
    start_ledger(1000);
    zr_limits_name(&limits, path);
    limits.processes_count = 0;
    zr_limits_load(&limits, &ledger, &log);
    bool good = limits.is_written, aside = unlink(bad) == 0;
    size_t got = limits.processes_count;
    bool all =
        ledger.groups_count == 1 && got > 0 && ledger.capacity_bytes == (kind == IN_CAPACITY ? value : 500);
    bool none = ledger.groups_count + got == 0 && ledger.capacity_bytes == 1000;
    unlink(path), unlink(from);
    return end_ledger(!good                               ? ZR_ERR_IO
                      : kind == PROCESSES && got != value ? CUT
                                                          : ZR_OK,
                      aside != good && (good ? all : none));
}

ASK(limits_path)
{
    struct zr_limits limits;
    zr_limits_name(&limits, letters(value));
    return limits.path[0] ? whole(strtok(limits.path, "."), value) : CUT;
}

/* Lines of one kind that are written at once. */
ASK(burst)
{
    struct zr_service_log log = {.fd = memfd_create("limits", MFD_CLOEXEC)};
    struct stat status = {0};
    for (size_t i = 0; i < value; i++)
        zr_service_log(&log, "line %zu", i % 10);
    fstat(log.fd, &status);
    close(log.fd);
    return (size_t)status.st_size == value * strlen("2000-01-01 00:00:00 zrd: line 0\n") ? ZR_OK : CUT;
}

enum { SEGMENT_BYTES, SEGMENT_TENSORS, SEGMENT_NAME };

ASK(kept_segment)
{
    struct zr_segment_shape shape;
    char name[64] = "";
    memset(name, 'a', limit->with == SEGMENT_NAME ? value : 1);
    return zr_segment_plan(
        &(struct zr_keep_options){.name = name,
                                  .bytes = limit->with == SEGMENT_BYTES ? value : 1,
                                  .tensors_max = limit->with == SEGMENT_TENSORS ? (unsigned)value : 1},
        &shape);
}

ASK(held_segments)
{
    struct zr_kept_holder holder;
    char name[24];
    zr_result result = ZR_OK;
    zr_kept_holder_init(&holder);
    for (size_t i = 0; result == ZR_OK && i < value; i++) {
        struct zr_segment_shape shape = {.bytes = 1};
        snprintf(name, sizeof name, "%zu", i);
        strcpy(shape.name, name);
        result = zr_kept_holder_check_new(&holder, name, 1);
        if (result == ZR_OK)
            zr_kept_holder_add(&holder, 1, &shape, -1);
    }
    zr_kept_holder_fini(&holder);
    return result;
}

static const struct limit service[] = {
    {"a segment of kept memory", kept_segment, 1, (size_t)1 << 50, INVALID, INVALID, 0, SEGMENT_BYTES},
    {"its tensors", kept_segment, 0, ZR_SEGMENT_TENSORS_MAX, 0, INVALID, 0, SEGMENT_TENSORS},
    {"its name", kept_segment, 1, ZR_KEEP_NAME_BYTES - 1, INVALID, INVALID, 0, SEGMENT_NAME},
    {"segments that a holder has", held_segments, 0, ZR_HELD_MAX, 0, ZR_ERR_HOST_MEMORY, 0, 0},
    {"a lease", lease, 1, ADDRESSES, INVALID, INVALID, 0, ALONE},
    {"a lease within a process's quota", lease, 1, 900, INVALID, MEMORY, 0, PROCESS},
    {"a lease within each process's quota", lease, 1, 900, INVALID, MEMORY, 0, EACH},
    {"a lease within a group's quota", lease, 1, 900, INVALID, MEMORY, 0, GROUP},
    {"a lease within the capacity", lease, 1, 900, INVALID, MEMORY, 0, CAPACITY},
    {"what comes back", returned, 0, 100, 0, INVALID, 0, 0},
    {"what a process holds", client, 0, (size_t)1 << 50, 0, INVALID, 0, 0},
    {"groups", groups, 1, 4096, 0, ZR_ERR_HOST_MEMORY, 0, 0},
    {"a hard quota", quota, 0, ADDRESSES, 0, INVALID, 0, ZR_SERVICE_SET_HARD},
    {"a soft quota", quota, 0, ADDRESSES, 0, INVALID, 0, ZR_SERVICE_SET_SOFT},
    {"shares", quota, 1, 1000000, INVALID, INVALID, 0, ZR_SERVICE_SET_SHARES},
    {"a capacity", quota, 10, ADDRESSES, INVALID, INVALID, 0, ZR_SERVICE_SET_CAPACITY},
    {"members of a run", run_plan, 1, 4096, INVALID, INVALID, 0, MEMBERS},
    {"a plan's peak", run_plan, 1, (size_t)1 << 50, INVALID, INVALID, 0, PEAK},
    {"a plan's base", run_plan, 0, 20, 0, INVALID, 0, BASE},
    {"what of a base can be swapped out", run_plan, 0, 10, 0, INVALID, 0, SPILL},
    {"a plan within the capacity", run_plan, 1, 1000, INVALID, MEMORY, 0, PEAK},
    {"processes in the file of limits", file, 1, ZR_LIMITS_PROCESSES_MAX, 0, CUT, 0, PROCESSES},
    {"the file's bytes", file, 200, (1 << 20) - 1, 0, ZR_ERR_IO, 0, FILE_BYTES},
    {"a capacity in the file", file, 10, ADDRESSES, 0, ZR_ERR_IO, 0, IN_CAPACITY},
    {"a group's quota in the file", file, 1, ADDRESSES, 0, ZR_ERR_IO, 0, IN_GROUP},
    {"a process's quota in the file", file, 0, ADDRESSES, 0, ZR_ERR_IO, 0, IN_PROCESS},
    {"the path of the socket", limits_path, 1, ZR_LIMITS_PATH_ROOM - sizeof ".limits", 0, CUT, 0, 0},
    {"lines of a kind in the log", burst, 1, ZR_LOG_BURST, 0, CUT, 0, 0},
};

/* ---- What waits at a limit ----------------------------------------------------------------------------- */

static void test_lease_waits(void)
{
    struct zr_client rich = {.pid = 1, .held_bytes = 900}, poor = {.pid = 2};
    start_ledger(1000);
    zr_ledger_add(&ledger, &rich, "a");
    zr_ledger_add(&ledger, &poor, "b");
    rich.reclaim_bytes = 50; /* it is about to give */
    rich.reclaim_until_ns = UINT64_MAX;
    zr_ledger_lease(&ledger, &poor, 150, 1, 0);
    zr_ledger_return(&ledger, &rich, 49, 1);
    tap_ok(answered == ZR_ERR_TIMEOUT && poor.held_bytes == 0,
           "a lease of 150 bytes waits where 149 are free");
    zr_ledger_return(&ledger, &rich, 1, 2);
    tap_ok(answered == ZR_OK && poor.held_bytes == 150 && ledger.held_bytes == 1000,
           "and is granted with one more");
    tap_result(end_ledger(ZR_OK, true), ZR_OK, "nothing stays");
}

int main(void)
{
    zr_backend_sim_create(&backend, &(struct zr_sim_options){.granule_bytes = GRANULE});
    tap_result(zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}), ZR_OK, "an arena");
    LIMITS_TEST(base);
    LIMITS_TEST(backends);
    LIMITS_TEST(arenas);
    LIMITS_TEST(debug);
    LIMITS_TEST(plans);
    LIMITS_TEST(pools);
    LIMITS_TEST(service);
    test_lease_waits();
    tap_ok(zr_arena_destroy(arena, NULL) == ZR_OK && zr_backend_destroy(backend) == ZR_OK, "nothing is left");
    return tap_done();
}
