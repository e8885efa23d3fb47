/* defrag_limits_test.c: the limits of defrag/, a table for each module, as alloc's limits_test.c. Those of
 * the program's options are in tests/system/tool.t, of pickles in sequence_test.c. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/backend/backend.h"
#include "alloc/plan/plan.h"
#include "defrag/pack/pack_internal.h"
#include "defrag/replay/unplanned.h"
#include "defrag/report/page/page_bands.h"
#include "defrag/trace/formats/csv.h"
#include "defrag/trace/formats/zrt.h"
#include "defrag/trace/recording.h"
#include "defrag/zr_defrag.h"
#include "tests/support/limits.h"

#define GIB       ((size_t)1 << 30)
#define ALL       ((size_t)1 << 62) /* bytes together */
#define INVALID   ZR_ERR_INVALID
#define FORMAT    ZR_ERR_FORMAT
#define DAMAGED   ZR_ERR_CORRUPT
#define ASK(name) static zr_result name(const struct limit *limit __attribute__((unused)), size_t value)

static zr_backend *backend;
static zr_arena *records;

static size_t limits_held(void)
{
    struct zr_arena_stats now;
    zr_arena_trim(records, 0, NULL);
    zr_arena_get_stats(records, &now);
    return now.live_bytes + now.blocks_count + now.reserved_bytes + zr_backend_held_bytes(backend) +
           backend->arenas_count;
}

/* ---- trace --------------------------------------------------------------------------------------------- */

static unsigned char file[8192]; /* a trace: its header, then events */
static size_t used;

static void put(size_t byte)
{
    file[used++] = (unsigned char)byte;
}

static void put_number(size_t number)
{
    for (; number > 127; number >>= 7)
        put((number & 127) | 128);
    put(number);
}

static void begin_file(void)
{
    static const struct zrt_header fresh = {.magic = ZRT_MAGIC,
                                            .header_bytes = sizeof fresh,
                                            .version = ZRT_VERSION,
                                            .granule_bytes = 4096,
                                            .base_address = GIB,
                                            .reserve_bytes = GIB,
                                            .arena = "a"};
    memset(file, 0, sizeof file);
    memcpy(file, &fresh, sizeof fresh);
    used = sizeof fresh;
}

/* What a reader says of it. */
static zr_result read_file(struct zrt_event *out)
{
    static struct zrt_reader reader;
    bool more;
    struct zrt_header *header = (struct zrt_header *)file;
    header->written_bytes = used - sizeof *header;
    zr_result result = zrt_open_memory(&reader, file, sizeof file);
    if (result == ZR_OK)
        result = zrt_next(&reader, out, &more);
    zrt_close(&reader);
    return result;
}

/* A field of the header, `with` bytes behind its begin. */
ASK(header)
{
    struct zrt_event event;
    bool wide = limit->with == offsetof(struct zrt_header, granule_bytes) ||
                limit->with == offsetof(struct zrt_header, reserve_bytes);
    begin_file();
    memcpy(file + limit->with, &value, wide ? sizeof(uint64_t) : sizeof(uint32_t));
    return read_file(&event);
}

enum { LABEL, MORE, FRAMES, STACK, BUILD_ID, EXTENSION, THREAD, TAG, RUN, BLOCK };

/* Its first byte, and what comes before the number, and so often behind it; FRAMES has no number. */
static const struct {
    unsigned char first, fill, extension;
    unsigned before_count;
    unsigned char before[12];
} parts[] = {[LABEL] = {ZRT_MARK, 'x', 0, 0, {0}},
             [MORE] = {ZRT_REFUSED | ZRT_HAS_CAUSE | ZRT_HAS_MORE, 1, 0, 11, {1, ZRT_CAUSE_SHORTAGE}},
             [FRAMES] = {ZRT_EXTENSION, 1, ZRT_STACK, 1, {1}},
             [STACK] = {ZRT_EXTENSION, 0, ZRT_STACK, 0, {0}},
             [BUILD_ID] = {ZRT_EXTENSION, 1, ZRT_MODULE, 3, {1, 1, 0}},
             [EXTENSION] = {ZRT_EXTENSION, 1, 0, 1, {99}},
             [THREAD] = {ZRT_BEGIN | ZRT_HAS_THREAD, 0, 0, 0, {0}},
             [TAG] = {ZRT_BEGIN | ZRT_HAS_TAG, 0, 0, 0, {0}},
             [RUN] = {ZRT_MAP, 0, 0, 1, {0}},
             [BLOCK] = {ZRT_ALLOC, 0, 0, 1, {0}}};

ASK(event)
{
    size_t part = limit->with, at = 0;
    struct zrt_event read = {0};
    begin_file();
    put(parts[part].first);
    put(0); /* nanoseconds */
    if (parts[part].extension) {
        put(parts[part].extension);
        at = used; /* a length of two bytes */
        used += 2;
    }
    for (unsigned i = 0; i < parts[part].before_count; i++)
        put(parts[part].before[i]);
    if (part != FRAMES)
        put_number(value);
    for (size_t i = 0; i < value && parts[part].fill; i++)
        put(parts[part].fill);
    if (parts[part].extension) {
        file[at] = (unsigned char)((used - at - 2) | 128);
        file[at + 1] = (unsigned char)((used - at - 2) >> 7);
    }
    zr_result result = read_file(&read);
    bool good = part != LABEL || strlen(read.label) == value;
    good =
        good && (part != FRAMES || read.frames_count == value) && (part != RUN || read.bytes == 4096 * value);
    return result == ZR_OK && !good ? ZR_ERR_IO : result;
}

/* A line of so many fields, or of so many bytes with its end. */
ASK(line)
{
    static struct zr_csv csv;
    static char text[2 * ZR_CSV_BUFFER_BYTES];
    char path[] = "/tmp/zr-limits-XXXXXX";
    bool more;
    memset(text, 'x', sizeof text);
    for (size_t i = 1; limit->with == 0 && i < value; i++)
        text[2 * i - 1] = ',';
    size_t bytes = limit->with ? value : 2 * value;
    text[bytes - 1] = '\n';
    int fd = mkstemp(path);
    zr_result result = write(fd, text, sizeof text) == sizeof text ? zr_csv_open(&csv, path) : ZR_ERR_IO;
    if (result == ZR_OK) {
        result = zr_csv_next(&csv, &more);
        zr_csv_close(&csv);
    }
    close(fd);
    unlink(path);
    return result == ZR_OK && csv.fields_count != (limit->with ? 1 : value) ? ZR_ERR_IO : result;
}

/* So many threads, or blocks of so many bytes together. */
ASK(raw)
{
    struct zr_numbering numbering;
    size_t count = limit->with ? 2 : value;
    zr_result result = ZR_OK;
    zr_numbering_init(&numbering, "made up", records);
    for (size_t i = 0; i < count && result == ZR_OK; i++)
        result = zr_numbering_take(&numbering, &(struct zr_record){.kind = ZR_RECORD_ALLOC,
                                                                   .address = 256 * (i + 1),
                                                                   .bytes = !limit->with ? 1
                                                                            : i          ? value - value / 2
                                                                                         : value / 2,
                                                                   .thread = limit->with ? 0 : (uint32_t)i});
    const struct zr_event *events = numbering.events.items;
    if (result == ZR_OK && events[count - 1].thread != (limit->with ? 0 : value - 1))
        result = ZR_ERR_IO;
    zr_numbering_end(&numbering);
    return result;
}

static const struct limit traces[] = {
    {"a header's bytes", header, sizeof(struct zrt_header), ZRT_HEADER_MAX, FORMAT, FORMAT, 0,
     offsetof(struct zrt_header, header_bytes)},
    {"a version", header, 1, ZRT_VERSION, FORMAT, FORMAT, 0, offsetof(struct zrt_header, version)},
    {"how a trace ended", header, 0, ZRT_STATE_COUNT - 1, 0, FORMAT, 0, offsetof(struct zrt_header, state)},
    {"what a trace is of", header, 0, ZRT_ORIGIN_COUNT - 1, 0, FORMAT, 0,
     offsetof(struct zrt_header, origin)},
    {"a granule", header, 1, ALL * 2, FORMAT, FORMAT, LIMIT_DOUBLES,
     offsetof(struct zrt_header, granule_bytes)},
    {"a range", header, 1, SIZE_MAX - GIB, FORMAT, FORMAT, 0, offsetof(struct zrt_header, reserve_bytes)},
    {"a label", event, 0, ZRT_LABEL_BYTES, 0, DAMAGED, 0, LABEL},
    {"further figures", event, 0, ZRT_MORE_MAX, 0, DAMAGED, 0, MORE},
    {"frames", event, 0, ZRT_FRAMES_MAX, 0, DAMAGED, 0, FRAMES},
    {"a stack's number", event, 1, ZRT_STACKS_MAX, DAMAGED, DAMAGED, 0, STACK},
    {"a build ID", event, 0, ZRT_BUILD_ID_BYTES, 0, DAMAGED, 0, BUILD_ID},
    {"an extension", event, 0, ZRT_EXTENSION_BYTES, 0, DAMAGED, 0, EXTENSION},
    {"a thread's number", event, 0, UINT32_MAX, 0, DAMAGED, 0, THREAD},
    {"a tag", event, 0, ZR_TAG_COUNT - 1, 0, DAMAGED, 0, TAG},
    {"granules of a run", event, 1, GIB / 4096, DAMAGED, DAMAGED, 0, RUN},
    {"a block", event, 1, GIB, DAMAGED, DAMAGED, 0, BLOCK},
    {"fields of a line", line, 1, ZR_CSV_FIELDS, 0, FORMAT, 0, 0},
    {"a line", line, 2, ZR_CSV_BUFFER_BYTES, 0, FORMAT, 0, 1},
    {"threads", raw, 1, 65536, 0, FORMAT, 0, 0},
    {"live bytes", raw, 2, ALL, 0, FORMAT, 0, 1},
};

/* ---- pack ---------------------------------------------------------------------------------------------- */

enum { BYTES, LIFE, FIRST, ALIGNMENT, CAPACITY, HEIGHT, GRAIN, MOMENTS, PERIOD };

/* Two buffers that are alive together, in a period of 100 or on a line. */
ASK(pack)
{
    size_t part = limit->with;
    struct zr_buffer two[2] = {{.lower = 1, .upper = 3, .bytes = 10},
                               {.lower = 2, .upper = 4, .bytes = 20, .id = 1}};
    struct zr_lifetimes set = {.buffers = two, .count = 2, .host_arena = records};
    struct zr_pack_report report = {0};
    uint64_t height = 0;
    set.period = part == LIFE || part == FIRST ? 100 : part == PERIOD ? value : 0;
    two[0].bytes = part == BYTES ? value - 20 : 10;
    two[1].upper = part == LIFE ? 2 + value : part == FIRST ? value + 1 : part == MOMENTS ? value : 4;
    two[1].lower = part == FIRST ? value : 2;
    zr_result result = zr_pack(&set,
                               &(struct zr_pack_options){.capacity_bytes = part == CAPACITY ? value : 0,
                                                         .alignment_bytes = part == ALIGNMENT ? value : 0,
                                                         .work = 1000},
                               &report);
    if (result != ZR_OK)
        return result;
    if (part == CAPACITY)
        return report.verdict == ZR_PACK_IMPOSSIBLE ? ZR_ERR_MEMORY : zr_pack_check(&set, value);
    if (part == HEIGHT)
        return zr_pack_check(&set, value);
    if (part < GRAIN)
        return zr_pack_check(&set, report.height_bytes);
    result = zr_pack_round(&set, part == GRAIN ? value : 1, &height);
    if (result == ZR_ERR_ADDRESSES) /* those for 2^32 moments */
        return ZR_OK;
    return result == ZR_OK ? zr_pack_check(&set, height) : result;
}

static const struct limit packs[] = {
    {"bytes together", pack, 20, ALL, 0, INVALID, 0, BYTES},
    {"a lifetime", pack, 1, 100, 0, INVALID, 0, LIFE},
    {"a birth", pack, 1, 99, 0, INVALID, 0, FIRST},
    {"an alignment", pack, 1, ALL / 2, 0, INVALID, 0, ALIGNMENT},
    {"a capacity", pack, 30, SIZE_MAX, ZR_ERR_MEMORY, 0, 0, CAPACITY},
    {"a height", pack, 30, SIZE_MAX, DAMAGED, 0, 0, HEIGHT},
    {"a grain", pack, 1, ALL / 2, INVALID, INVALID, 0, GRAIN},
    {"moments", pack, 3, UINT32_MAX, 0, INVALID, 0, MOMENTS},
    {"a period to round by", pack, 3, UINT32_MAX, INVALID, INVALID, 0, PERIOD},
};

/* ---- replay and learn ---------------------------------------------------------------------------------- */

enum { UNPLANNED, REPLAY_CAPACITY, REPLAY_BYTES, GRANULE };

/* Two blocks of a GiB. `with`: what is asked for, and above that the policy. */
ASK(replay)
{
    struct zr_event events[2] = {{.bytes = GIB}, {.bytes = GIB, .block = 1}};
    const struct zr_sequence sequence = {
        .events = events, .events_count = 2, .blocks_count = 2, .host_arena = records};
    size_t part = limit->with & 7;
    struct zr_replay_options options = {.policy = (enum zr_policy)(limit->with >> 3)};
    struct zr_replay_report report = {0};
    options.granule_bytes = part == GRANULE ? value : 0;
    options.capacity_bytes = part == REPLAY_CAPACITY ? value : 0;
    if (part == REPLAY_BYTES) {
        events[0].bytes = value - GIB;
        options.capacity_bytes = GIB; /* nothing of it is there */
    }
    zr_result result = zr_replay_unplanned(
        &sequence, &options, part == UNPLANNED ? (unsigned)value : part == REPLAY_BYTES, 1, &report);
    bool whole = report.failed_at == UINT64_MAX;
    return result == ZR_OK && part == REPLAY_CAPACITY && !whole ? ZR_ERR_MEMORY : result;
}

/* A pass of so many allocations, where there may be `with`. */
ASK(rehearsal)
{
    zr_backend *sim;
    zr_arena *arena;
    zr_rehearsal *made;
    bool found = false;
    void *block;
    zr_backend_sim_create(&sim, NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = sim});
    zr_result result = zr_rehearsal_create(&made, arena, limit->with, records);
    if (result == ZR_OK) {
        zr_rehearsal_pass(made);
        for (size_t i = 0; i < value; i++) {
            zr_arena_alloc(arena, &(struct zr_request){.bytes = 256}, &block);
            zr_arena_free(arena, block);
        }
        zr_rehearsal_pass(made);
        result = zr_rehearsal_place(made, &found);
        zr_rehearsal_destroy(made);
    }
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(sim);
    return result == ZR_OK && !found ? INVALID : result;
}

#define POLICY(what, policy) ((what) | (policy) << 3)
static const struct limit replays[] = {
    {"a granule", replay, 4096, GIB, INVALID, INVALID, LIMIT_DOUBLES, POLICY(GRANULE, ZR_POLICY_ZR)},
    {"a granule of caching", replay, 4096, GIB, INVALID, INVALID, LIMIT_DOUBLES,
     POLICY(GRANULE, ZR_POLICY_CACHING)},
    {"a granule of expandable", replay, 4096, GIB, INVALID, INVALID, LIMIT_DOUBLES,
     POLICY(GRANULE, ZR_POLICY_EXPANDABLE)},
    {"a granule of bestfit", replay, 4096, GIB, INVALID, INVALID, LIMIT_DOUBLES,
     POLICY(GRANULE, ZR_POLICY_BESTFIT)},
    {"unplanned allocations", replay, 0, 100, 0, INVALID, 0, UNPLANNED},
    {"bytes with unplanned ones", replay, 2 * GIB, ALL, 0, INVALID, 0, REPLAY_BYTES},
    {"a capacity", replay, 2 * GIB, SIZE_MAX, ZR_ERR_MEMORY, 0, 0, POLICY(REPLAY_CAPACITY, ZR_POLICY_ZR)},
    {"a capacity of caching", replay, 2 * GIB, SIZE_MAX, ZR_ERR_MEMORY, 0, 0,
     POLICY(REPLAY_CAPACITY, ZR_POLICY_CACHING)},
    {"a capacity of expandable", replay, (size_t)2060 << 20, SIZE_MAX, ZR_ERR_MEMORY, 0, 0,
     POLICY(REPLAY_CAPACITY, ZR_POLICY_EXPANDABLE)},
    {"a capacity of bestfit", replay, 2 * GIB, SIZE_MAX, ZR_ERR_MEMORY, 0, 0,
     POLICY(REPLAY_CAPACITY, ZR_POLICY_BESTFIT)},
    {"allocations of a pass", rehearsal, 1, 5, INVALID, INVALID, 0, 5},
    {"allocations of any pass", rehearsal, 1, 1 << 19, INVALID, INVALID, 0, SIZE_MAX},
};

/* ---- report ---------------------------------------------------------------------------------------- */

/* Stretches of addresses that stay apart. */
ASK(bands)
{
    struct zr_bands made;
    zr_bands_init(&made, records, 1);
    for (size_t i = 0; i < value; i++)
        zr_bands_add(&made, 8 * i, 8 * i + 1);
    bool apart = made.items.count == value;
    zr_bands_end(&made);
    return apart ? ZR_OK : FORMAT;
}

static const struct limit others[] = {
    {"bands of addresses", bands, 1, ZR_BANDS_MAX, 0, FORMAT, 0, 0},
};

int main(void)
{
    size_t leaked = 1;
    void *large;
    zr_backend_host_create(&backend, NULL);
    tap_result(zr_arena_create(&records, &(struct zr_arena_options){.backend = backend, .limit_bytes = GIB}),
               ZR_OK, "an arena for records");
    zr_arena_alloc(records, &(struct zr_request){.bytes = GIB / 2},
                   &large); /* the backend keeps a file for it */
    zr_arena_free(records, large);
    LIMITS_TEST(traces);
    LIMITS_TEST(packs);
    LIMITS_TEST(replays);
    LIMITS_TEST(others);
    tap_ok(zr_arena_destroy(records, &leaked) == ZR_OK && leaked == 0 && zr_backend_destroy(backend) == ZR_OK,
           "nothing is left");
    return tap_done();
}
