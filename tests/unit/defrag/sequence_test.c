/* sequence_test.c: traces of every kind read as sequences: what they say, what is refused, and that no pickle
 * takes memory out of proportion. Hostile files of all kinds are fuzz_test.c's. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "defrag/trace/formats/pickle.h"
#include "defrag/zr_defrag.h"
#include "tests/support/folder.h"
#include "tests/support/records.h"
#include "tests/support/tap.h"

static char scratch[64] = "/tmp/zr-sequence-test-XXXXXX", path[128], trace_path[128];
static int file_fd, descriptors;
static struct zr_sequence sequence;

/* The file to be read is in memory. */
static void write_file(const void *data, size_t bytes)
{
    if (ftruncate(file_fd, 0) != 0 || pwrite(file_fd, data, bytes, 0) != (ssize_t)bytes)
        abort();
}

static zr_result read_path(const char *name)
{
    return zr_sequence_read(&sequence, &(struct zr_read_options){.path = name, .device = -1}, host_arena);
}

static zr_result read_bytes(const void *data, size_t bytes)
{
    write_file(data, bytes);
    return read_path(path);
}

static zr_result read_text(const char *text)
{
    return read_bytes(text, strlen(text));
}

static zr_result read_in_units(const char *text, uint64_t unit_bytes)
{
    struct zr_read_options options = {.path = path, .unit_bytes = unit_bytes};
    write_file(text, strlen(text));
    return zr_sequence_read(&sequence, &options, host_arena);
}

/* What was read: its format, the sequence as words, "a0:100 f0 m", as a person would write them down, how
 * many of them the preface has, and the largest sum of bytes. The sequence ends here. */
static void is_read(zr_result result, const char *format, const char *want, uint64_t preface_count,
                    uint64_t lower_bound_bytes, const char *words)
{
    char got[2000] = "";
    for (size_t i = 0, used = 0; i < sequence.events_count && used < sizeof got - 60; i++) {
        const struct zr_event *event = &sequence.events[i];
        const char kind = event->kind == ZR_EVENT_ALLOC ? 'a' : event->kind == ZR_EVENT_FREE ? 'f' : 'm';
        used += (size_t)sprintf(got + used, "%s%c", i ? " " : "", kind);
        if (kind != 'm')
            used += (size_t)sprintf(got + used, "%u", event->block);
        if (kind == 'a')
            used += (size_t)sprintf(got + used, ":%llu", (unsigned long long)event->bytes);
    }
    bool good = result == ZR_OK && strcmp(sequence.format, format) == 0 && strcmp(got, want) == 0 &&
                sequence.preface_count == preface_count && sequence.lower_bound_bytes == lower_bound_bytes;
    if (!tap_ok(good, "%s", words))
        tap_note("%s: got %s, preface %llu, lower bound %llu; want %s", zr_last_error(), got,
                 (unsigned long long)sequence.preface_count, (unsigned long long)sequence.lower_bound_bytes,
                 want);
    zr_sequence_end(&sequence);
}

static void refused(zr_result got, const char *part, const char *words)
{
    bool good = got == ZR_ERR_FORMAT && strstr(zr_last_error(), part) && sequence.events == NULL &&
                open_descriptors() == descriptors;
    if (!tap_ok(good, "refused: %s", words))
        tap_note("%s: %s", zr_result_name(got), zr_last_error());
    zr_sequence_end(&sequence);
}

/* ---- CSV ----------------------------------------------------------------------------------------------- */

#define RMM        "Thread,Time,Action,Pointer,Size,Stream\n"
#define MINIMALLOC "id,lower,upper,size\n"

static void test_rmm(void)
{
    static const char log[] = RMM "140,10:00:00:000001,allocate,0x7f0000000000,1024,0x0\n"
                                  "141,10:00:00:000002,allocate,0x7f0000000400,2048,0x55aa\n"
                                  "140,10:00:00:000003,free,0x7e0000000000,4096,0x0\n"
                                  "140,10:00:00:000004,allocate failure,(nil),99999999999,0x0\n"
                                  "141,10:00:00:000005,free,0x7f0000000000,1024,0x0\n"
                                  "140,10:00:00:000006,allocate,0x7f0000000000,512,(nil)\n"
                                  "140,10:00:00:000007,allocate,(nil),0,0\n";
    is_read(read_text(log), "rmm", "a0:4096 a1:1024 a2:2048 f0 f1 a3:512", 1, 4096 + 1024 + 2048,
            "an RMM log: what is freed without an allocation was there before, and is the preface");
    tap_result(read_text(log), ZR_OK, "again");
    tap_is(sequence.blocks_count, 4, "blocks are counted");
    tap_ok(sequence.events[1].thread == 0 && sequence.events[2].thread == 1 && sequence.events[4].thread == 1,
           "threads are numbered from 0");
    tap_is(sequence.events[2].stream, 0x55aa, "streams are kept");
    zr_sequence_end(&sequence);
}

/* As many threads as a trace can number, and one more. */
static void test_threads(void)
{
    enum { THREADS = 65536, ROW = 32 };
    char *text = malloc((THREADS + 2) * ROW);
    size_t used = (size_t)sprintf(text, "%s", RMM);
    for (unsigned i = 0; i < THREADS; i++)
        used += (size_t)sprintf(text + used, "%u,1,allocate,%u,1,0\n", i, (i + 1) * 16);
    tap_result(read_text(text), ZR_OK, "65,536 threads");
    tap_is(sequence.events[THREADS - 1].thread, THREADS - 1, "each with its number");
    zr_sequence_end(&sequence);
    sprintf(text + used, "%u,1,allocate,8,1,0\n", THREADS);
    refused(read_text(text), "more than 65,536 threads", "and one more");
    free(text);
}

static void test_minimalloc(void)
{
    is_read(read_text(MINIMALLOC "7,5,9,10\n3,0,5,20\n1,5,6,30\n2,4,4,99\n4,1,2,0\n"), "minimalloc",
            "a0:20 f0 a1:30 a2:10 f1 f2", 0, 40,
            "a MiniMalloc CSV: at one moment frees come first, then allocations in order of id");
    is_read(read_text("\xef\xbb\xbfupper, size ,offset,lower,id\r\n9,10,77,5,7\r\n5,20,0,0,3\r\n"),
            "minimalloc", "a0:20 f0 a1:10 f1", 0, 20,
            "columns in any order, one more, spaces, CR LF and a byte order mark");
    is_read(read_in_units(MINIMALLOC "1,0,1,3", 65536), "minimalloc", "a0:196608 f0", 0, 196608,
            "a unit multiplies the sizes; the last line needs no end");
    is_read(read_text("id,lower,upper,size,alignment,hint,gaps\nb,0,2,3,8,-1,\na,0,1,4,,,\n"), "minimalloc",
            "a0:3 a1:4 f1 f0", 0, 7, "ids that are names come in order of their rows");
    refused(read_text(MINIMALLOC ",0,1,3\n"), "a number or a name", "a buffer without an id");
    refused(read_text("id,lower,upper,size,gaps\n1,0,9,3,4-5\n"), "gaps is '4-5'", "gaps");
    refused(read_text("id,lower,upper,size,hint\n1,0,9,3,64\n"), "hint is '64'", "a hint");
    refused(read_text("id,lower,upper,size,alignment\n1,0,9,3,0\n"), "1 or more", "an alignment of 0");
    refused(read_in_units(MINIMALLOC "1,0,1,281474976710657", 65536), "more than 64 bits",
            "a size that is too large in that unit");
}

/* A line may be almost as long as the buffer that it is read into. */
static void test_long_lines(void)
{
    static char text[40000];
    size_t used = (size_t)snprintf(text, sizeof text, MINIMALLOC "1,0,5,10");
    memset(text + used, ' ', 16000);
    snprintf(text + used + 16000, 100, "\n2,0,5,11\n");
    is_read(read_text(text), "minimalloc", "a0:10 a1:11 f0 f1", 0, 21,
            "a line of almost a buffer is read, and the one after it");
    memset(text + used, ' ', sizeof text - used - 1);
    refused(read_text(text), "line 2", "a line of more than a buffer");
}

/* Texts and the words of their refusal. What else is wrong with a row of numbers is pack_test.c's. */
static void test_refused_texts(void)
{
    static const struct {
        const char *text, *part, *words;
    } texts[] = {
        {RMM, "no allocation", "a log without a row"},
        {RMM "1,2,resize,0x10,5,0\n", "line 2: there is no action", "an action that there is not"},
        {RMM "\n1,2,allocate,16,5kB,0\n", "line 3: Size is '5kB'", "a size that is no number"},
        {RMM "1,2,allocate,16\n", "4 fields", "a short row"},
        {RMM "1,2,allocate,16,5,0\n1,3,allocate,16,5,0\n", "event 1 allocates an address that is live",
         "an address allocated twice"},
        {RMM "1,2,allocate,16,5,0\n1,3,free,16,5,0\n1,3,free,16,5,0\n", "event 2 frees",
         "an address freed twice"},
        {RMM "1,2,allocate,16,9223372036854775807,0\n", "more live bytes", "half of all addresses"},
        {RMM "1,2,allocate,16,18446744073709551615,0\n", "more live bytes",
         "more bytes than there are addresses"},
        {MINIMALLOC "1,9,5,10\n", "line 2: the buffer ends at 5, before it begins at 9",
         "a lifetime turned round"},
        {MINIMALLOC "1,2,5\n", "line 2: size is ''", "a missing field"},
        {"id,lower,upper\n1,2,5\n", "neither a .zrt trace", "a column missing: nothing that is known"},
        {"", "is empty", "an empty file"},
        {"hello, world\n", "neither", "words"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        refused(read_text(texts[i].text), texts[i].part, texts[i].words);
    tap_ok(read_text(MINIMALLOC "1,2,5,8\n2,3,4") == ZR_OK && sequence.cut_short &&
               sequence.blocks_count == 1,
           "the end of a file may cut a row, which is left out");
    zr_sequence_end(&sequence);
    refused(read_bytes(MINIMALLOC "1,2,5,\0", sizeof MINIMALLOC + 6), "zero byte", "a zero byte in a line");
}

static void test_wrong_paths(void)
{
    tap_result(read_path("/no/such/file"), ZR_ERR_IO, "a file that is not there");
    tap_ok(strstr(zr_last_error(), "/no/such/file"), "is named");
    tap_result(read_path(scratch), ZR_ERR_IO, "a folder");
    if (mkfifo(trace_path, 0600) != 0)
        tap_note("no pipe could be made");
    refused(read_path(trace_path), "no ordinary file", "a pipe, which nobody waits for");
    unlink(trace_path);
    tap_result(zr_sequence_read(&sequence, NULL, host_arena), ZR_ERR_INVALID, "no options");
    tap_result(zr_sequence_read(NULL, NULL, host_arena), ZR_ERR_INVALID, "nowhere to put it");
    zr_sequence_end(NULL);
}

/* ---- Our own traces ------------------------------------------------------------------------------------ */

static void test_zrt(void)
{
    zr_backend *sim = NULL;
    zr_arena *traced = NULL;
    void *blocks[4] = {0};
    static const struct zr_request requests[] = {{.bytes = 1000, .tag = ZR_TAG_PARAM},
                                                 {.bytes = 2000, .tag = ZR_TAG_GRAD, .stream = 5},
                                                 {.bytes = 3000, .tag = ZR_TAG_COMM, .stream = 9},
                                                 {.bytes = 64}};
    zr_backend_sim_create(&sim, NULL);
    zr_arena_create(&traced, &(struct zr_arena_options){.backend = sim, .name = "traced"});
    zr_arena_alloc(traced, &requests[0], &blocks[0]);
    zr_arena_alloc(traced, &requests[1], &blocks[1]);
    zr_trace_start(traced, trace_path);
    zr_trace_mark(traced, "step 1");
    zr_arena_alloc(traced, &requests[2], &blocks[2]);
    zr_arena_free(traced, blocks[0]);
    zr_arena_alloc(traced, &requests[3], &blocks[3]);
    zr_trace_stop(traced);
    is_read(read_path(trace_path), "zrt", "a0:1000 a1:2000 m a2:3000 f0 a3:64", 2, 6000,
            "a trace of an arena: what was there as the preface, the mark, and what came after");
    tap_result(read_path(trace_path), ZR_OK, "again");
    tap_ok(sequence.events[1].tag == ZR_TAG_GRAD && sequence.events[1].stream == 5 &&
               sequence.events[3].tag == ZR_TAG_COMM && sequence.events[3].stream == 9,
           "tags and streams are kept");
    zr_sequence_end(&sequence);
    zr_arena_destroy(traced, NULL);
    zr_backend_destroy(sim);
}

/* ---- Pickles ------------------------------------------------------------------------------------------- */

static char pickle[1 << 20];
static size_t pickle_bytes;

static void put(const void *data, size_t bytes)
{
    if (bytes > sizeof pickle - pickle_bytes)
        abort(); /* the test is wrong */
    memcpy(pickle + pickle_bytes, data, bytes);
    pickle_bytes += bytes;
}

/* Puts together what stands for something like "{size 5 blocks [1 2]}": names, numbers, lists and dicts. */
static void compose(const char *words)
{
    for (size_t length; *words; words += length) {
        uint64_t number = strtoull(words, NULL, 0);
        length = strcspn(words, " ][}{");
        if (length == 0) {
            const char *built = *words == '[' ? "](" : *words == '{' ? "}(" : *words == ']' ? "e" : "u";
            put(built, *words == ' ' ? 0 : strlen(built));
            length = 1;
        } else if (*words >= '0' && *words <= '9') {
            put("\x8a\x08", 2);
            put(&number, 8);
        } else {
            put((char[]){'\x8c', (char)length}, 2);
            put(words, length);
        }
    }
}

static void start_pickle(void)
{
    pickle_bytes = 0;
    put("\x80\x04", 2);
}

static void snapshot(void)
{
    start_pickle();
    /* Two devices. Of the second one, a block from before that stays, a free one, whose stale numbers do not
     * matter, one allocated in the window, and one from before that a stream still uses. */
    compose("{segments [{device 1 address 0x2000 total_size 0x200000 stream 0 blocks ["
            "{address 0x2000 size 512 requested_size 100 state active_allocated}"
            "{address 0x2200 size 512 requested_size 9999 state inactive}"
            "{address 0x2400 size 1024 requested_size 700 state active_allocated}"
            "{address 0x2800 size 512 requested_size 300 state active_awaiting_free}]}"
            "{device 0 address 0x9000 total_size 0x200000 stream 0 blocks ["
            "{address 0x9000 size 512 requested_size 11 state active_allocated}]}]");
    compose("device_traces ["
            "[{action alloc addr 0x9200 size 5 stream 0}"
            "{action free_requested addr 0x9200 size 5 stream 0}"
            "{action free_completed addr 0x9200 size 5 stream 0}]"
            "[{action free_requested addr 0x1000 size 50 stream 0}"
            "{action alloc addr 0x2400 size 700 stream 0 time_us ");
    put("G\0\0\0\0\0\0\0\0", 9);
    compose("}{action segment_alloc addr 0x700000 size 0x200000 stream 0}"
            "{action free_completed addr 0x1000 size 50 stream 0}"
            "{action snapshot addr 0 size 0 stream 0}]]}");
    put(".", 1);
}

static void test_torch(void)
{
    struct zr_read_options options = {.path = path, .device = 0};
    snapshot();
    is_read(read_bytes(pickle, pickle_bytes), "torch", "a0:50 a1:100 a2:300 a3:700 f0", 3,
            50 + 100 + 300 + 700,
            "a PyTorch snapshot: what was there before is the preface, in address order, as requested");
    is_read(zr_sequence_read(&sequence, &options, host_arena), "torch", "a0:11 a1:5 f1", 1, 16,
            "another device by number has its own events and segments");
    options.device = 2;
    refused(zr_sequence_read(&sequence, &options, host_arena), "no device 2", "a device that is not there");
}

/* A whole program, refused for `part`. */
#define PROGRAM(data, part, words) refused(read_bytes(data, sizeof data - 1), part, words)

static void test_programs(void)
{
    PROGRAM("\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL: it would import", "importing");
    PROGRAM("\x80\2cos\nsystem\n(U\x02lstR.", "GLOBAL: it would import", "importing, the old way");
    PROGRAM("\x80\x02(R.", "REDUCE: it would call", "calling");
    PROGRAM("\x80\2b.", "BUILD", "changing an object");
    PROGRAM("\x80\x02\x81.", "NEWOBJ", "making an object");
    PROGRAM("\x80\0020.", "opcode 0x30", "an opcode that snapshots do not have");
    PROGRAM("\x80\x01N.", "protocol 2 to 5", "a protocol before 2");
    PROGRAM("\x80\x06N.", "protocol 2 to 5", "a protocol after 5");
    PROGRAM("\x80\x04", "beyond the end", "no program");
    PROGRAM("\x80\x04.", "other than one value", "stopping with nothing");
    PROGRAM("\x80\x04NN.", "other than one value", "stopping with two values");
    PROGRAM("\x80\x04(N.", "other than one value", "stopping with an open mark");
    PROGRAM("\x80\x04N.N", "before the end of the file", "bytes after the end");
    PROGRAM("\x80\x04].", "neither segments nor events", "a list of no segments");
    PROGRAM("\x80\x04N.", "'segments' and 'device_traces'", "a program that gives something else");
    PROGRAM("\x80\4a.", "too few values", "appending without a list");
    PROGRAM("\x80\x04]a.", "too few values", "appending nothing");
    PROGRAM("\x80\x04NNa.", "of another kind", "appending to what is no list");
    PROGRAM("\x80\x04}NNN(Nu.", "of another kind", "setting items of what is no dict");
    PROGRAM("\x80\x04}(Nu.", "a key has no value", "a key without a value");
    PROGRAM("\x80\x04(NNNd.", "a key has no value", "the same in one piece");
    PROGRAM("\x80\x04](Ns.", "too few values", "reaching below a mark");
    PROGRAM("\x80\x04](ee.", "there is no mark", "closing a mark twice");
    PROGRAM("\x80\x04((e.", "nothing to put the values into", "a mark with nothing below");
    PROGRAM("\x80\x04h\x05.", "never written", "getting what was never kept");
    PROGRAM("\x80\x04N\x94j\xff\xff\xff\xff.", "never written", "or far beyond it");
    PROGRAM("\x80\x04Nr\xff\xff\xff\x7f.", "the file's length", "keeping under a giant number");
    PROGRAM("\x80\x04\x94.", "too few values", "keeping nothing");
    PROGRAM("\x80\x04X\xff\xff\xff\xff.", "beyond the end", "a giant text");
    PROGRAM("\x80\x05\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "beyond the end", "a text of 2^64 bytes");
    PROGRAM("\x80\x04\x8b\xff\xff\xff\xff.", "negative length", "a number of negative length");
    PROGRAM("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "beyond the end", "a giant frame");
    PROGRAM("\x80\x04}(\x8c\x08segmentsh\x00u.", "never written", "a part of itself that is not kept yet");
}

/* A number is read as Python wrote it. */
static void test_numbers(void)
{
    static const struct {
        const char *data;
        size_t bytes;
        int64_t want; /* 0: beyond 64 bits, which is told from all others */
    } numbers[] = {
        {"K\xff.", 3, 255},
        {"M\xff\xff.", 4, 65535},
        {"J\xfe\xff\xff\xff.", 6, -2},
        {"\x8a\x01\xff.", 4, -1},
        {"\x8a\x02\xff\x00.", 5, 255},
        {"\x8b\x05\x00\x00\x00\x00\x00\x00\x00\x01.", 11, INT64_C(1) << 32},
        {"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", 11, INT64_MAX},
        {"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00.", 12, INT64_MAX},
        {"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.", 12, 0},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct zr_pickle got;
        start_pickle();
        put(numbers[i].data, numbers[i].bytes);
        write_file(pickle, pickle_bytes);
        bool good =
            zr_pickle_read(&got, path, NULL, host_arena) == ZR_OK &&
            (numbers[i].want ? got.root.kind == ZR_PICKLE_INTEGER && got.root.integer == numbers[i].want
                             : got.root.kind == ZR_PICKLE_BIG);
        tap_ok(good, "number %zu has its value, %lld", i, (long long)numbers[i].want);
        zr_pickle_end(&got);
    }
}

/* Reads the pickle that is made; true if the memory that took was in proportion and all came back. */
static bool in_proportion(void)
{
    struct zr_arena_stats stats;
    zr_arena_reset_peaks(host_arena);
    zr_result result = read_bytes(pickle, pickle_bytes);
    zr_sequence_end(&sequence);
    zr_arena_get_stats(host_arena, &stats);
    bool good = (result == ZR_OK || result == ZR_ERR_FORMAT) && stats.live_bytes == 0 &&
                stats.peak_live_bytes <= pickle_bytes * ZR_PICKLE_FACTOR + (256 << 10);
    if (!good)
        tap_note("%s: %s; %zu bytes took %zu", zr_result_name(result), zr_last_error(), pickle_bytes,
                 stats.peak_live_bytes);
    return good;
}

static void test_giants(void)
{
    static const char *const nests[] = {"(",     "]",   "}", ")",   "](",   "]\x94",
                                        "N\x85", "((t", "N", "]Na", "}NNs", "N\x94"};
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
        start_pickle();
        while (pickle_bytes < 900000)
            put(nests[i], strlen(nests[i]));
        put(".", 1);
        tap_ok(in_proportion(), "nearly a million bytes of opcodes, kind %zu: memory stays in proportion", i);
    }
    /* A list kept and named again and again: a file of n bytes that stands for n² things. */
    start_pickle();
    compose("{device_traces [] segments [{device 0 address 0x1000 total_size 0x200000 stream 0 blocks [");
    for (unsigned i = 0; i < 2000; i++) {
        char block[100];
        snprintf(block, sizeof block, "{address %u size 512 requested_size 512 state active_allocated}",
                 0x1000 + 512 * i);
        compose(block);
    }
    compose("]}");
    put("\x94", 1);
    for (unsigned i = 0; i < 300000; i++)
        put("h\0", 2);
    compose("]}");
    put(".", 1);
    tap_ok(in_proportion(), "a list named 300,000 times is not gone through 300,000 times");
    tap_ok(strstr(zr_last_error(), "over and over"), "and the words say why");
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

/* Every allocation and read failing in turn gives an error and no leak; each time in an arena of its own,
 * which has no memory yet. */
static void fail_each(const char *what)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_OPEN, ZR_FAULT_READ, ZR_FAULT_METADATA,
                                               ZR_FAULT_CREATE, ZR_FAULT_MAP};
    struct zr_read_options options = {.path = path, .device = -1};
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        unsigned nth = 0, leaked = 0;
        zr_result result = ZR_OK;
        do {
            zr_arena *own;
            size_t left = 1;
            if (zr_arena_create(&own, &(struct zr_arena_options){.backend = host}) != ZR_OK)
                break;
            zr_fault_set(sites[i], ++nth);
            result = zr_sequence_read(&sequence, &options, own);
            zr_fault_set(sites[i], 0);
            zr_sequence_end(&sequence);
            zr_arena_destroy(own, &left);
            leaked += left != 0 || open_descriptors() != descriptors;
        } while (result != ZR_OK && nth < 10000);
        tap_ok(result == ZR_OK && nth > 1 && leaked == 0,
               "%s: site %s failing in turn, %u times: an error and no leak", what,
               zr_fault_site_name(sites[i]), nth - 1);
    }
}

static void test_faults(void)
{
    static const char lifetimes[] = MINIMALLOC "1,0,2,10\n2,1,3,20\n",
                      log[] = RMM "1,00:00:00.1,allocate,0x10,100,0\n1,00:00:00.2,free,0x10,100,0\n";
    snapshot();
    write_file(pickle, pickle_bytes);
    fail_each("a snapshot");
    write_file(lifetimes, sizeof lifetimes - 1);
    fail_each("lifetimes");
    write_file(log, sizeof log - 1);
    fail_each("a log");
}

int main(void)
{
    if (!mkdtemp(scratch) || records_begin() != ZR_OK) {
        tap_ok(false, "a folder and an arena: %s", zr_last_error());
        return tap_done();
    }
    file_fd = memfd_create("trace", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file_fd);
    snprintf(trace_path, sizeof trace_path, "%s/trace", scratch);
    descriptors = open_descriptors();
    test_rmm();
    test_threads();
    test_minimalloc();
    test_long_lines();
    test_refused_texts();
    test_wrong_paths();
    test_zrt();
    test_torch();
    test_programs();
    test_numbers();
    test_giants();
    test_faults();
    tap_is(records_end(), 0, "every record went back to the arena");
    zr_path_remove_folder(scratch);
    return tap_done();
}
