/* sequence_test.c: traces of every kind read as sequences: what they say, what is refused, and that no file
 * whatever makes the readers crash, leak, or take memory out of proportion. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/file.h"
#include "defrag/trace/pickle.h"
#include "defrag/zr_defrag.h"
#include "tests/support/draws.h"
#include "tests/support/tap.h"

static char scratch[64] = "/tmp/zr-sequence-test-XXXXXX", path[128], trace_path[128];
static int file_fd;
static zr_backend *host;
static zr_arena *arena;
static struct zr_sequence sequence;

/* The file to be read: in memory, because the tests write it some ten thousand times. */
static void write_file(const void *data, size_t bytes)
{
    if (ftruncate(file_fd, 0) != 0 || pwrite(file_fd, data, bytes, 0) != (ssize_t)bytes)
        abort();
}

static zr_result read_device(const void *data, size_t bytes, int device)
{
    write_file(data, bytes);
    return zr_sequence_read(&sequence, &(struct zr_read_options){.path = path, .device = device}, arena);
}

static zr_result read_text(const char *text)
{
    return read_device(text, strlen(text), -1);
}

/* The sequence as words, "a0:100 f0 m": what a person would write down. */
static const char *shown(void)
{
    static char words[2000];
    size_t used = 0;
    words[0] = '\0';
    for (size_t i = 0; i < sequence.events_count && used < sizeof words - 60; i++) {
        const struct zr_event *event = &sequence.events[i];
        const char *space = i ? " " : "";
        int more = event->kind == ZR_EVENT_ALLOC
                       ? snprintf(words + used, sizeof words - used, "%sa%u:%llu", space, event->block,
                                  (unsigned long long)event->bytes)
                   : event->kind == ZR_EVENT_FREE
                       ? snprintf(words + used, sizeof words - used, "%sf%u", space, event->block)
                       : snprintf(words + used, sizeof words - used, "%sm", space);
        used += (size_t)more;
    }
    return words;
}

static void is_shown(const char *want, const char *words)
{
    if (!tap_ok(strcmp(shown(), want) == 0, "%s", words)) {
        tap_note("got  %s", shown());
        tap_note("want %s", want);
    }
}

static void refused(zr_result got, const char *part, const char *words)
{
    bool good = got == ZR_ERR_FORMAT && strstr(zr_last_error(), part) && sequence.events == NULL;
    if (!tap_ok(good, "refused: %s", words))
        tap_note("%s: %s", zr_result_name(got), zr_last_error());
    zr_sequence_end(&sequence);
}

static size_t live_bytes(void)
{
    struct zr_arena_stats stats;
    zr_arena_get_stats(arena, &stats);
    return stats.live_bytes;
}

/* ---- CSV ----------------------------------------------------------------------------------------------- */

static const char rmm[] = "Thread,Time,Action,Pointer,Size,Stream\n"
                          "140,10:00:00:000001,allocate,0x7f0000000000,1024,0x0\n"
                          "141,10:00:00:000002,allocate,0x7f0000000400,2048,0x55aa\n"
                          "140,10:00:00:000003,free,0x7e0000000000,4096,0x0\n"
                          "140,10:00:00:000004,allocate failure,(nil),99999999999,0x0\n"
                          "141,10:00:00:000005,free,0x7f0000000000,1024,0x0\n"
                          "140,10:00:00:000006,allocate,0x7f0000000000,512,(nil)\n"
                          "140,10:00:00:000007,allocate,(nil),0,0\n";

static void test_rmm(void)
{
    tap_result(read_text(rmm), ZR_OK, "an RMM log");
    tap_ok(strcmp(sequence.format, "rmm") == 0, "is told by its first line");
    is_shown("a0:4096 a1:1024 a2:2048 f0 f1 a3:512", "what is freed without an allocation was there before");
    tap_is(sequence.preface_count, 1, "and is the preface");
    tap_is(sequence.blocks_count, 4, "blocks are counted");
    tap_is(sequence.lower_bound_bytes, 4096 + 1024 + 2048, "the lower bound is the largest sum");
    tap_ok(sequence.events[1].thread == 0 && sequence.events[2].thread == 1 && sequence.events[4].thread == 1,
           "threads are numbered from 0");
    tap_is(sequence.events[2].stream, 0x55aa, "streams are kept");
    zr_sequence_end(&sequence);
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n"), "no allocation", "a log without a row");
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n1,2,resize,0x10,5,0\n"),
            "line 2: there is no action", "an action that there is not");
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n\n1,2,allocate,16,5kB,0\n"),
            "line 3: Size is '5kB'", "a size that is no number");
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,16\n"), "4 fields",
            "a short row");
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,16,5,0\n1,3,allocate,16,5,0\n"),
            "event 1 allocates an address that is live", "an address allocated twice");
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,16,5,0\n1,3,free,16,5,0\n1,3,"
                      "free,16,5,0\n"),
            "event 2 frees", "an address freed twice");
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,16,9223372036854775807,0\n"),
            "more live bytes", "half of all addresses");
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,16,18446744073709551615,0\n"),
            "more live bytes", "more bytes than there are addresses");
    refused(read_text("Thread,Time,Action,Pointer,Size,Stream\n1,2,allocate,16,18446744073709551616,0\n"),
            "64 bits", "a number that wraps around");
}

static void test_minimalloc(void)
{
    tap_result(read_text("id,lower,upper,size\n7,5,9,10\n3,0,5,20\n1,5,6,30\n2,4,4,99\n4,1,2,0\n"), ZR_OK,
               "a MiniMalloc CSV");
    tap_ok(strcmp(sequence.format, "minimalloc") == 0, "is told by its first line");
    is_shown("a0:20 f0 a1:30 a2:10 f1 f2", "at one moment frees come first, then allocations in order of id");
    tap_is(sequence.lower_bound_bytes, 40, "the lower bound");
    tap_is(sequence.preface_count, 0, "no preface");
    zr_sequence_end(&sequence);
    tap_result(read_text("\xef\xbb\xbfupper, size ,offset,lower,id\r\n9,10,77,5,7\r\n5,20,0,0,3\r\n"), ZR_OK,
               "columns in any order, one more, spaces, CR LF and a byte order mark");
    is_shown("a0:20 f0 a1:10 f1", "give the same");
    zr_sequence_end(&sequence);
    write_file("id,lower,upper,size\n1,0,1,3", 27);
    tap_result(
        zr_sequence_read(&sequence, &(struct zr_read_options){.path = path, .unit_bytes = 65536}, arena),
        ZR_OK, "a unit");
    tap_is(sequence.events[0].bytes, 3 * 65536, "multiplies the sizes; the last line needs no end");
    zr_sequence_end(&sequence);
    write_file("id,lower,upper,size\n1,0,1,281474976710657", 41);
    refused(zr_sequence_read(&sequence, &(struct zr_read_options){.path = path, .unit_bytes = 65536}, arena),
            "more than 64 bits", "a size that is too large in that unit");
    refused(read_text("id,lower,upper,size\n1,9,5,10\n"),
            "line 2: the buffer ends at 5, before it begins at 9", "a lifetime turned round");
    refused(read_text("id,lower,upper,size\n1,2,5\n"), "line 2: size is ''", "a missing field");
    refused(read_text("id,lower,upper,size,size\n1,2,5,1,1\n"), "more than one column 'size'",
            "a column twice");
    refused(read_text("id,lower,upper,size\n1,2,5,-4\n"), "not a whole number", "a negative size");
    refused(read_text("id,lower,upper\n1,2,5\n"), "neither a .zrt trace",
            "a column missing: nothing that is known");
    refused(read_text(""), "is empty", "an empty file");
    refused(read_text("hello, world\n"), "neither", "words");
    refused(read_device("id,lower,upper,size\n1,2,5,\0"
                        "7\n",
                        30, -1),
            "zero byte", "a zero byte in a line");
    tap_result(zr_sequence_read(&sequence, &(struct zr_read_options){.path = "/no/such/file"}, arena),
               ZR_ERR_IO, "a file that is not there");
    tap_ok(strstr(zr_last_error(), "/no/such/file"), "is named");
    tap_result(zr_sequence_read(&sequence, &(struct zr_read_options){.path = scratch}, arena), ZR_ERR_IO,
               "a folder");
    if (mkfifo(trace_path, 0600) != 0)
        tap_note("no pipe could be made");
    refused(zr_sequence_read(&sequence, &(struct zr_read_options){.path = trace_path}, arena),
            "no ordinary file", "a pipe, which nobody waits for");
    unlink(trace_path);
    tap_result(zr_sequence_read(&sequence, NULL, arena), ZR_ERR_INVALID, "no options");
    tap_result(zr_sequence_read(NULL, NULL, arena), ZR_ERR_INVALID, "nowhere to put it");
    zr_sequence_end(NULL);
}

static void test_long_lines(void)
{
    static char text[40000];
    size_t used = (size_t)snprintf(text, sizeof text, "id,lower,upper,size\n1,0,5,10");
    memset(text + used, ' ', 16000);
    snprintf(text + used + 16000, 100, "\n2,0,5,11\n");
    tap_result(read_text(text), ZR_OK, "a line of almost a buffer");
    is_shown("a0:10 a1:11 f0 f1", "is read, and the one after it");
    zr_sequence_end(&sequence);
    memset(text + used, ' ', sizeof text - used - 1);
    refused(read_text(text), "line 2", "a line of more than a buffer");
    memset(text + used, ',', 100);
    text[used + 100] = '\0';
    refused(read_text(text), "more than 32 fields", "more fields than any format has");
}

/* ---- Our own traces ------------------------------------------------------------------------------------ */

static void test_zrt(void)
{
    zr_backend *sim = NULL;
    zr_arena *traced = NULL;
    void *blocks[4] = {0};
    zr_backend_sim_create(&sim, NULL);
    zr_arena_create(&traced, &(struct zr_arena_options){.backend = sim, .name = "traced"});
    zr_arena_alloc(traced, &(struct zr_request){.bytes = 1000, .tag = ZR_TAG_PARAM}, &blocks[0]);
    zr_arena_alloc(traced, &(struct zr_request){.bytes = 2000, .tag = ZR_TAG_GRAD, .stream = 5}, &blocks[1]);
    zr_trace_start(traced, trace_path);
    zr_trace_mark(traced, "step 1");
    zr_arena_alloc(traced, &(struct zr_request){.bytes = 3000, .tag = ZR_TAG_COMM, .stream = 9}, &blocks[2]);
    zr_arena_free(traced, blocks[0]);
    zr_arena_alloc(traced, &(struct zr_request){.bytes = 64}, &blocks[3]);
    zr_trace_stop(traced);
    tap_result(zr_sequence_read(&sequence, &(struct zr_read_options){.path = trace_path}, arena), ZR_OK,
               "a trace of an arena");
    tap_ok(strcmp(sequence.format, "zrt") == 0, "is told by its first bytes");
    is_shown("a0:1000 a1:2000 m a2:3000 f0 a3:64", "what was there, the mark, and what came after");
    tap_is(sequence.preface_count, 2, "what was there is the preface");
    tap_ok(sequence.events[1].tag == ZR_TAG_GRAD && sequence.events[1].stream == 5 &&
               sequence.events[3].tag == ZR_TAG_COMM && sequence.events[3].stream == 9,
           "tags and streams are kept");
    tap_is(sequence.lower_bound_bytes, 6000, "the lower bound");
    zr_sequence_end(&sequence);
    zr_arena_destroy(traced, NULL);
    zr_backend_destroy(sim);
}

/* ---- Pickles: put together by hand --------------------------------------------------------------------- */

static unsigned char pickle[1 << 20];
static size_t pickle_bytes;

static void put(const void *data, size_t bytes)
{
    if (pickle_bytes > sizeof pickle || bytes > sizeof pickle - pickle_bytes)
        abort(); /* the test is wrong */
    memcpy(pickle + pickle_bytes, data, bytes);
    pickle_bytes += bytes;
}

static void op(int opcode)
{
    put(&(unsigned char){(unsigned char)opcode}, 1);
}

static void text(const char *words)
{
    op(0x8c);
    op((int)strlen(words));
    put(words, strlen(words));
}

static void number(uint64_t value)
{
    op(0x8a);
    op(8);
    put(&value, 8);
}

static void start(void)
{
    pickle_bytes = 0;
    put("\x80\x04", 2);
}

/* {"action": .., "addr": .., "size": .., "stream": 0} */
static void event(const char *action, uint64_t address, uint64_t bytes)
{
    op('}'), op('(');
    text("action"), text(action);
    text("addr"), number(address);
    text("size"), number(bytes);
    text("stream"), number(0);
    text("time_us"), op('G'), put("\0\0\0\0\0\0\0\0", 8);
    op('u');
}

static void block(uint64_t address, uint64_t bytes, uint64_t requested, const char *state)
{
    op('}'), op('(');
    text("address"), number(address);
    text("size"), number(bytes);
    text("requested_size"), number(requested);
    text("state"), text(state);
    op('u');
}

static void segment_start(uint64_t device, uint64_t address)
{
    op('}'), op('(');
    text("device"), number(device);
    text("address"), number(address);
    text("stream"), number(0);
    text("blocks"), op(']'), op('(');
}

static void segment_end(void)
{
    op('e'), op('u');
}

/* A snapshot of two devices: three events on the first, five on the second. */
static void snapshot(void)
{
    start();
    op('}'), op('(');
    text("segments"), op(']'), op('(');
    segment_start(1, 0x2000);
    block(0x2000, 512, 100, "active_allocated");     /* from before, and stays */
    block(0x2200, 512, 9999, "inactive");            /* stale numbers of free blocks do not matter */
    block(0x2400, 1024, 700, "active_allocated");    /* allocated in the window */
    block(0x2800, 512, 300, "active_awaiting_free"); /* from before, still used by a stream */
    segment_end();
    segment_start(0, 0x9000);
    block(0x9000, 512, 11, "active_allocated");
    segment_end();
    op('e');
    text("device_traces"), op(']'), op('(');
    op(']'), op('('), event("alloc", 0x9200, 5), event("free_requested", 0x9200, 5),
        event("free_completed", 0x9200, 5);
    op('e');
    op(']'), op('(');
    event("free_requested", 0x1000, 50);
    event("alloc", 0x2400, 700);
    event("segment_alloc", 0x700000, 2 << 20);
    event("free_completed", 0x1000, 50); /* from before */
    event("snapshot", 0, 0);
    op('e');
    op('e');
    op('u'), op('.');
}

static void test_torch(void)
{
    snapshot();
    tap_result(read_device(pickle, pickle_bytes, -1), ZR_OK, "a PyTorch snapshot");
    tap_ok(strcmp(sequence.format, "torch") == 0, "is told by its first bytes");
    is_shown("a0:50 a1:100 a2:300 a3:700 f0",
             "what was there before comes first, in address order, as requested");
    tap_is(sequence.preface_count, 3, "as the preface");
    tap_is(sequence.lower_bound_bytes, 50 + 100 + 300 + 700, "memory is live until free_completed");
    zr_sequence_end(&sequence);
    tap_result(read_device(pickle, pickle_bytes, 0), ZR_OK, "another device by number");
    is_shown("a0:11 a1:5 f1", "has its own events and segments");
    zr_sequence_end(&sequence);
    refused(read_device(pickle, pickle_bytes, 2), "no device 2", "a device that is not there");
}

/* A whole program, refused for `part`. */
static void program(const char *data, size_t bytes, const char *part, const char *words)
{
    refused(read_device(data, bytes, -1), part, words);
}
#define PROGRAM(data, part, words) program(data, sizeof data - 1, part, words)

static void test_programs(void)
{
    PROGRAM("\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL: it would import", "importing");
    PROGRAM("\x80\x02"
            "cos\nsystem\n(U\x02lstR.",
            "GLOBAL: it would import", "importing, the old way");
    PROGRAM("\x80\x02(R.", "REDUCE: it would call", "calling");
    PROGRAM("\x80\x02"
            "b.",
            "BUILD", "changing an object");
    PROGRAM("\x80\x02\x81.", "NEWOBJ", "making an object");
    PROGRAM("\x80\x02"
            "0.",
            "opcode 0x30", "an opcode that snapshots do not have");
    PROGRAM("\x80\x01N.", "protocol 2 to 5", "a protocol before 2");
    PROGRAM("\x80\x06N.", "protocol 2 to 5", "a protocol after 5");
    PROGRAM("\x80\x04", "beyond the end", "no program");
    PROGRAM("\x80\x04.", "other than one value", "stopping with nothing");
    PROGRAM("\x80\x04NN.", "other than one value", "stopping with two values");
    PROGRAM("\x80\x04(N.", "other than one value", "stopping with an open mark");
    PROGRAM("\x80\x04N.N", "the file goes on", "bytes after the end");
    PROGRAM("\x80\x04N.", "'segments' and 'device_traces'", "a program that gives something else");
    PROGRAM("\x80\x04"
            "a.",
            "too few values", "appending without a list");
    PROGRAM("\x80\x04]a.", "too few values", "appending nothing");
    PROGRAM("\x80\x04NNa.", "of another kind", "appending to what is no list");
    PROGRAM("\x80\x04}NNN(Nu.", "of another kind", "setting items of what is no dict");
    PROGRAM("\x80\x04}(Nu.", "a key has no value", "a key without a value");
    PROGRAM("\x80\x04(NNNd.", "a key has no value", "the same in one piece");
    PROGRAM("\x80\x04](Ns.", "too few values", "reaching below a mark");
    PROGRAM("\x80\x04](ee.", "there is no mark", "closing a mark twice");
    PROGRAM("\x80\x04((e.", "nothing to put the values into", "a mark with nothing below");
    PROGRAM("\x80\x04h\x05.", "never kept", "getting what was never kept");
    PROGRAM("\x80\x04N\x94j\xff\xff\xff\xff.", "never kept", "or far beyond it");
    PROGRAM("\x80\x04Nr\xff\xff\xff\x7f.", "no file of this length", "keeping under a giant number");
    PROGRAM("\x80\x04\x94.", "too few values", "keeping nothing");
    PROGRAM("\x80\x04X\xff\xff\xff\xff.", "beyond the end", "a giant text");
    PROGRAM("\x80\x05\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "beyond the end", "a text of 2^64 bytes");
    PROGRAM("\x80\x04\x8b\xff\xff\xff\xff.", "negative length", "a number of negative length");
    PROGRAM("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "beyond the end", "a giant frame");
    PROGRAM("\x80\x04}(\x8c\x08segmentsh\x00u.", "never kept", "a part of itself that is not kept yet");
}

/* A number is read as Python wrote it. */
static void test_numbers(void)
{
    static const struct {
        const char *data;
        size_t bytes;
        int64_t want;
    } numbers[] = {
        {"\x80\x02K\xff.", 5, 255},
        {"\x80\x02M\xff\xff.", 6, 65535},
        {"\x80\x02J\xfe\xff\xff\xff.", 8, -2},
        {"\x80\x02\x8a\x00.", 5, 0},
        {"\x80\x02\x8a\x01\xff.", 6, -1},
        {"\x80\x02\x8a\x02\xff\x00.", 7, 255},
        {"\x80\x02\x8b\x05\x00\x00\x00\x00\x00\x00\x00\x01.", 13, INT64_C(1) << 32},
        {"\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", 13, INT64_MAX},
        {"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00.", 14, INT64_MAX},
    };
    struct zr_pickle got;
    bool good = true;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        write_file(numbers[i].data, numbers[i].bytes);
        good = zr_pickle_read(&got, path, arena) == ZR_OK && got.root.kind == ZR_PICKLE_INTEGER &&
               got.root.integer == numbers[i].want && good;
        zr_pickle_end(&got);
    }
    tap_ok(good, "numbers of every length have their value");
    write_file("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.", 14);
    tap_ok(zr_pickle_read(&got, path, arena) == ZR_OK && got.root.kind == ZR_PICKLE_BIG,
           "one beyond 64 bits is told from all others");
    zr_pickle_end(&got);
}

/* ---- Hostile files ------------------------------------------------------------------------------------- */

/* Reads the pickle in the buffer; true if the memory that took was in proportion and all came back. */
static bool in_proportion(void)
{
    struct zr_arena_stats stats;
    zr_arena_reset_peaks(arena);
    size_t before = live_bytes();
    zr_result result = read_device(pickle, pickle_bytes, -1);
    zr_sequence_end(&sequence);
    zr_arena_get_stats(arena, &stats);
    size_t most = pickle_bytes * ZR_PICKLE_FACTOR + (256 << 10);
    bool good = (result == ZR_OK || result == ZR_ERR_FORMAT) && stats.peak_live_bytes - before <= most &&
                stats.live_bytes == before;
    if (!good)
        tap_note("%s: %s; %zu bytes took %zu", zr_result_name(result), zr_last_error(), pickle_bytes,
                 stats.peak_live_bytes - before);
    return good;
}

static void repeat(const char *ops, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put(ops, strlen(ops));
}

static void test_giants(void)
{
    static const char *const nests[] = {"(",     "]",   "}", ")",   "](",   "]\x94",
                                        "N\x85", "((t", "N", "]Na", "}NNs", "N\x94"};
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
        start();
        repeat(nests[i], 900000 / strlen(nests[i]));
        op('.');
        tap_ok(in_proportion(), "nearly a million bytes of opcodes, kind %zu: memory stays in proportion", i);
    }
    /* A list kept and named again and again: a file of n bytes that stands for n² things. */
    start();
    op('}'), op('('), text("device_traces"), op(']'), text("segments"), op(']'), op('(');
    segment_start(0, 0x1000);
    for (unsigned i = 0; i < 2000; i++)
        block(0x1000 + 512 * i, 512, 512, "active_allocated");
    segment_end();
    op(0x94);
    for (unsigned i = 0; i < 300000; i++)
        op('h'), op(0);
    op('e'), op('u'), op('.');
    tap_ok(in_proportion(), "a list named 300,000 times is not gone through 300,000 times");
    tap_ok(strstr(zr_last_error(), "over and over"), "and the words say why");
}

/* Reads a damaged file: any answer but a crash, a leak or one that contradicts itself. */
static bool survives(const unsigned char *data, size_t bytes)
{
    size_t before = live_bytes();
    zr_result result = read_device(data, bytes, -1);
    bool good = result == ZR_OK || result == ZR_ERR_FORMAT;
    uint64_t live = 0, most = 0;
    for (size_t i = 0; good && result == ZR_OK && i < sequence.events_count; i++) {
        const struct zr_event *one = &sequence.events[i];
        live += one->kind == ZR_EVENT_ALLOC ? one->bytes : one->kind == ZR_EVENT_FREE ? -one->bytes : 0;
        most = live > most ? live : most;
        good = one->block < sequence.blocks_count || one->kind == ZR_EVENT_MARK;
    }
    good = good && (result != ZR_OK || most == sequence.lower_bound_bytes);
    zr_sequence_end(&sequence);
    return good && live_bytes() == before;
}

static void fuzz(const char *name, const unsigned char *data, size_t bytes)
{
    static unsigned char damaged[1 << 17];
    unsigned bad = 0, rounds = 6000;
    if (!tap_ok(bytes > 0 && bytes <= sizeof damaged, "%s: %zu bytes to damage", name, bytes))
        return;
    size_t step = bytes / 400 + 1;
    for (size_t end = 0; end < bytes; end += step)
        bad += !survives(data, end);
    tap_is(bad, 0, "%s: cut anywhere", name);
    for (unsigned i = 0; i < rounds; i++) {
        memcpy(damaged, data, bytes);
        for (unsigned flips = 1 + (unsigned)(next_random() % 4); flips > 0; flips--)
            damaged[next_random() % bytes] ^= (unsigned char)(1u << next_random() % 8);
        bad += !survives(damaged, bytes);
    }
    tap_is(bad, 0, "%s: %u times with bits flipped", name, rounds);
    for (unsigned i = 0; i < rounds; i++) {
        memcpy(damaged, data, bytes);
        size_t from = next_random() % bytes, to = next_random() % bytes,
               most = bytes - (from > to ? from : to);
        memmove(damaged + to, damaged + from, next_random() % most + 1);
        damaged[next_random() % bytes] = (unsigned char)next_random();
        bad += !survives(damaged, bytes);
    }
    tap_is(bad, 0, "%s: %u times with parts moved", name, rounds);
}

static void test_fuzz(void)
{
    static const char minimalloc[] = "id,lower,upper,size\n7,5,9,10\n3,0,5,20\n1,5,6,30\n2,4,4,99\n";
    static unsigned char data[1 << 17];
    unsigned bad = 0;
    struct zr_file file;
    size_t got = 0;
    snapshot();
    memcpy(data, pickle, pickle_bytes);
    fuzz("snapshot", data, pickle_bytes);
    fuzz("RMM log", (const unsigned char *)rmm, sizeof rmm - 1);
    fuzz("MiniMalloc", (const unsigned char *)minimalloc, sizeof minimalloc - 1);
    test_zrt(); /* leaves its file behind */
    if (zr_file_open(&file, trace_path) == ZR_OK)
        zr_file_read(&file, data, sizeof data, &got), zr_file_close(&file);
    static unsigned char trace[1 << 17];
    memcpy(trace, data, got);
    fuzz("trace", trace, got);
    for (unsigned i = 0; i < 3000; i++) {
        size_t bytes = next_random() % 300 + 2;
        for (size_t at = 0; at < bytes; at++) /* mostly opcodes that are known */
            data[at] = next_random() % 4 ? (unsigned char)"()]}.N\x94\x85\x86KaesuthqldMJ"[next_random() % 21]
                                         : (unsigned char)next_random();
        memcpy(data, "\x80\x04", 2);
        bad += !survives(data, bytes);
    }
    tap_is(bad, 0, "3,000 random programs");
}

/* ---- Failures ------------------------------------------------------------------------------------------ */

/* Every allocation and read failing in turn gives an error and no leak. */
static void test_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_OPEN, ZR_FAULT_READ, ZR_FAULT_METADATA};
    snapshot();
    write_file(pickle, pickle_bytes);
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        unsigned nth = 0, bad = 0;
        zr_result result;
        do {
            size_t before = live_bytes();
            zr_fault_set(sites[i], ++nth);
            result =
                zr_sequence_read(&sequence, &(struct zr_read_options){.path = path, .device = -1}, arena);
            zr_fault_set(sites[i], 0);
            zr_sequence_end(&sequence);
            bad += live_bytes() != before;
        } while (result != ZR_OK && nth < 10000);
        tap_ok(result == ZR_OK && bad == 0, "site %s failing in turn, %u times: an error and no leak",
               zr_fault_site_name(sites[i]), nth - 1);
    }
}

static void test_small_arena(void)
{
    zr_backend *sim = NULL;
    zr_arena *small = NULL;
    unsigned bad = 0;
    snapshot();
    write_file(pickle, pickle_bytes);
    for (size_t granules = 1; granules < 20; granules++) {
        struct zr_arena_stats stats;
        zr_backend_host_create(
            &sim, &(struct zr_host_options){.granule_bytes = 4096, .limit_bytes = granules * 4096});
        zr_arena_create(&small, &(struct zr_arena_options){.backend = sim});
        zr_result result =
            zr_sequence_read(&sequence, &(struct zr_read_options){.path = path, .device = -1}, small);
        zr_sequence_end(&sequence);
        zr_arena_get_stats(small, &stats);
        bad += (result != ZR_OK && result != ZR_ERR_MEMORY) || stats.live_bytes != 0;
        zr_arena_destroy(small, NULL);
        zr_backend_destroy(sim);
    }
    tap_is(bad, 0, "an arena of 1 to 19 pages: no memory is an error value, and nothing leaks");
}

/* ---- Real files ---------------------------------------------------------------------------------------- */

static void test_shared(void)
{
    static const struct {
        const char *name, *format;
        uint64_t blocks, lower_bound_bytes;
    } files[] = {
        {"torch_medium_128_training.pickle", "torch", 0, 0},
        {"torch_medium_512_training.pickle", "torch", 0, 0},
        {"pangu_2.6B.csv", "minimalloc", 18692, 0},
        {"iopddl_S_1.csv", "minimalloc", 28526, 0},
        {"minimalloc_A.csv", "minimalloc", 0, 1048576},
    };
    const char *folder = getenv("ZR_TRACES") ? getenv("ZR_TRACES") : "../shared/traces";
    char name[512];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, files[i].name);
        if (access(name, R_OK) != 0) {
            tap_skip("no %s: ZR_TRACES names the folder", name);
            continue;
        }
        tap_result(zr_sequence_read(&sequence, &(struct zr_read_options){.path = name, .device = -1}, arena),
                   ZR_OK, "%s", files[i].name);
        tap_ok(sequence.format && strcmp(sequence.format, files[i].format) == 0 &&
                   (!files[i].blocks || sequence.blocks_count == files[i].blocks) &&
                   (!files[i].lower_bound_bytes || sequence.lower_bound_bytes == files[i].lower_bound_bytes),
               "has what its description says");
        zr_sequence_end(&sequence);
    }
}

int main(void)
{
    if (!mkdtemp(scratch) || zr_backend_host_create(&host, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = host}) != ZR_OK) {
        tap_ok(false, "a folder and an arena: %s", zr_last_error());
        return tap_done();
    }
    file_fd = memfd_create("trace", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file_fd);
    snprintf(trace_path, sizeof trace_path, "%s/trace", scratch);
    test_rmm();
    test_minimalloc();
    test_long_lines();
    test_zrt();
    test_torch();
    test_programs();
    test_numbers();
    test_giants();
    test_fuzz();
    test_faults();
    test_small_arena();
    test_shared();
    tap_is(live_bytes(), 0, "every record went back to the arena");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(host);
    zr_path_remove_folder(scratch);
    return tap_done();
}
