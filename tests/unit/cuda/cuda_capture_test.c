/* cuda_capture_test.c: the rules of the CUDA driver where a stream is captured into a graph. Sources and
 * verdicts: tests/support/cuda/cuda_rules.h. */
#define _GNU_SOURCE
#include <pthread.h>

#include "tests/support/cuda/cuda_rules.h"

enum {
    LONG = 1000000,
    SAME_THREAD = 908,
    UNJOINED = 904,
    ISOLATION = 905,
    MERGE = 902,
    CAPTURED_EVENT = 907
};

static zr_cu_stream capturing(const struct world *w, zr_cu_capture_mode mode)
{
    zr_cu_stream stream = stream_of(w);
    if (w->all.capture_begin(stream, mode) != ZR_CU_SUCCESS)
        _exit(1);
    return stream;
}

static int byte_at(const struct world *w, zr_cu_address address)
{
    unsigned char got = 0;
    zr_cu_result code = w->cu->context_synchronize();
    if (code == ZR_CU_SUCCESS)
        code = w->all.copy_to_host(&got, address, 1);
    return code == ZR_CU_SUCCESS ? got : -1;
}

/* Ends the capture and makes a graph of it. */
static zr_cu_result ended_with(const struct world *w, zr_cu_stream stream, unsigned long long flags,
                               zr_cu_graph_exec *out)
{
    zr_cu_graph graph;
    MUST(w->all.capture_end(stream, &graph));
    MUST(w->all.graph_instantiate(out, graph, flags));
    return w->all.graph_destroy(graph);
}

static zr_cu_result ended(const struct world *w, zr_cu_stream stream, zr_cu_graph_exec *out)
{
    return ended_with(w, stream, 0, out);
}

/* ---- Recording and replay ------------------------------------------------------------------------------ */

static zr_cu_result replayed(const struct world *w)
{
    zr_cu_address from = plain(w, 4096), to = plain(w, 4096);
    MUST(w->all.fill_now(to, 1, 4096));
    MUST(w->cu->context_synchronize());
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    zr_cu_capture_status status;
    zr_cu_graph_exec graph;
    MUST(w->all.stream_capturing(stream, &status));
    MUST(w->cu->fill(from, 7, 4096, stream));
    MUST(w->cu->copy(to, from, 4096, stream));
    MUST(w->cu->fill(from, 9, 4096, stream));
    MUST(ended(w, stream, &graph));
    if (status != ZR_CU_CAPTURE_ACTIVE || byte_at(w, to) != 1)
        return VERDICT_BROKEN;
    for (int i = 0; i < 2; i++) {
        MUST(w->all.graph_launch(graph, stream));
        if (byte_at(w, to) != 7 || byte_at(w, from) != 9)
            return VERDICT_BROKEN;
        MUST(w->all.fill_now(to, 1, 4096));
    }
    return w->all.graph_exec_destroy(graph);
}

/* A replay reads and writes at the addresses of the capture: what was freed meanwhile is not there. */
static zr_cu_result replayed_on_freed(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    plain(w, 4096);
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    zr_cu_graph_exec graph;
    MUST(w->cu->fill(address, 7, 4096, stream));
    MUST(ended(w, stream, &graph));
    MUST(w->all.mem_free(address));
    MUST(w->all.graph_launch(graph, stream));
    return w->cu->context_synchronize();
}

/* Other memory behind the same address is fine. */
static zr_cu_result replayed_on_remapped(const struct world *w)
{
    zr_cu_graph_exec graph;
    char got = 0;
    ONE_MAPPED;
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    MUST(w->cu->fill(w->base, 7, w->g, stream));
    MUST(ended(w, stream, &graph));
    MUST(w->cu->unmap(w->base, w->g));
    MUST(map_at(w, 0, 1, memory_of(w, 1)));
    MUST(access_at(w, 0, 1));
    MUST(w->all.graph_launch(graph, stream));
    MUST(w->cu->context_synchronize());
    MUST(w->all.copy_to_host(&got, w->base, 1));
    return good(got == 7);
}

/* Memory of a capture: its address at once, its bytes with the launch, and the same every time. */
static zr_cu_result allocated_in_capture(const struct world *w)
{
    zr_cu_address out = plain(w, 4096), address;
    zr_cu_graph_exec graph;
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    MUST(w->all.alloc_async(&address, w->g, stream));
    MUST(w->cu->fill(address, 7, w->g, stream));
    MUST(w->cu->copy(out, address, 4096, stream));
    MUST(w->all.free_async(address, stream));
    MUST(ended(w, stream, &graph));
    for (int i = 0; i < 3; i++)
        MUST(w->all.graph_launch(graph, stream));
    if (byte_at(w, out) != 7)
        return VERDICT_BROKEN;
    return w->all.graph_exec_destroy(graph);
}

static zr_cu_result left_allocated(const struct world *w, bool freed, unsigned long long flags)
{
    zr_cu_address address;
    zr_cu_graph_exec graph;
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    MUST(w->all.alloc_async(&address, w->g, stream));
    MUST(w->cu->fill(address, 7, w->g, stream));
    MUST(ended_with(w, stream, flags, &graph));
    MUST(w->all.graph_launch(graph, stream));
    if (byte_at(w, address) != 7)
        return VERDICT_BROKEN;
    if (freed)
        MUST(w->all.free_async(address, stream));
    return w->all.graph_launch(graph, stream);
}

static zr_cu_result left_and_freed(const struct world *w)
{
    return left_allocated(w, true, 0);
}

static zr_cu_result left_and_launched(const struct world *w)
{
    return left_allocated(w, false, 0);
}

static zr_cu_result left_and_freed_by_launch(const struct world *w)
{
    const unsigned long long auto_free_on_launch = 1;
    return left_allocated(w, false, auto_free_on_launch);
}

static zr_cu_result before_the_launch(const struct world *w)
{
    zr_cu_address address;
    zr_cu_graph_exec graph;
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    MUST(w->all.alloc_async(&address, w->g, stream));
    MUST(ended(w, stream, &graph));
    return ALL_REFUSED(w->cu->fill(address, 7, w->g, stream), w->all.free_async(address, stream));
}

/* A capture frees what captures have allocated. */
static zr_cu_result freed_in_capture(const struct world *w)
{
    zr_cu_address address;
    zr_cu_stream stream = stream_of(w);
    MUST(w->all.alloc_async(&address, w->g, stream));
    MUST(w->all.capture_begin(stream, ZR_CU_CAPTURE_GLOBAL));
    return w->all.free_async(address, stream);
}

/* ---- What a capture forbids ---------------------------------------------------------------------------- */

struct thread {
    const struct world *w;
    zr_cu_capture_mode mode;
    zr_cu_stream stream;
    zr_cu_event event;
    zr_cu_result (*program)(struct thread *own);
    zr_cu_result code;
};

static void *run_thread(void *argument)
{
    struct thread *own = argument;
    own->code = own->w->cu->context_push(own->w->context);
    if (own->code == ZR_CU_SUCCESS)
        own->code = own->w->all.capture_mode(&own->mode);
    if (own->code == ZR_CU_SUCCESS)
        own->code = own->program(own);
    return NULL;
}

static zr_cu_result in_thread(struct thread *other)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_thread, other) != 0)
        return VERDICT_BROKEN;
    pthread_join(thread, NULL);
    return other->code;
}

static zr_cu_result allocates(struct thread *own)
{
    zr_cu_address address;
    return own->w->all.mem_alloc(&address, 4096);
}

static zr_cu_result asks(struct thread *own)
{
    return own->w->cu->event_query(own->event);
}

static zr_cu_result ends(struct thread *own)
{
    zr_cu_graph graph;
    return own->w->all.capture_end(own->stream, &graph);
}

/* Which of the three modes of a capture forbids what to its own thread and to another one, by that thread's
 * own mode. */
static zr_cu_result modes(const struct world *w)
{
    for (unsigned i = 0; i < 18; i++) {
        zr_cu_capture_mode begun = i % 3, own = i / 3 % 3, before = own;
        bool other_thread = i / 9;
        bool refused = own != ZR_CU_CAPTURE_RELAXED &&
                       (other_thread ? own == ZR_CU_CAPTURE_GLOBAL && begun == ZR_CU_CAPTURE_GLOBAL
                                     : begun != ZR_CU_CAPTURE_RELAXED);
        struct thread thread = {.w = w, .mode = own, .program = allocates};
        zr_cu_stream stream = capturing(w, begun);
        zr_cu_graph graph;
        zr_cu_result code;
        if (other_thread) {
            code = in_thread(&thread);
        } else {
            MUST(w->all.capture_mode(&before));
            code = allocates(&thread);
            MUST(w->all.capture_mode(&before));
        }
        zr_cu_result end = w->all.capture_end(stream, &graph);
        if ((code == ZR_CU_STREAM_CAPTURE_UNSUPPORTED) != refused ||
            (end == ZR_CU_CAPTURE_INVALIDATED) != refused) {
            tap_note("begun as %u, thread in %u, %s thread: %u, end %u", begun, own,
                     other_thread ? "another" : "the same", code, end);
            return VERDICT_BROKEN;
        }
    }
    return ZR_CU_SUCCESS;
}

static zr_cu_result unsafe(const struct world *w)
{
    zr_cu_event event;
    zr_cu_address address = plain(w, 4096), other;
    zr_cu_graph graph;
    void *host;
    int i = 0;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    for (zr_cu_result code = ZR_CU_STREAM_CAPTURE_UNSUPPORTED; code == ZR_CU_STREAM_CAPTURE_UNSUPPORTED;
         i++) {
        zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_THREAD_LOCAL);
        switch (i) {
        case 0:
            code = w->all.mem_free(address);
            break;
        case 1:
            code = w->all.host_alloc(&host, 4096, 0);
            break;
        case 2:
            code = w->all.mem_alloc(&other, 4096);
            break;
        case 3:
            code = w->cu->event_query(event);
            break;
        case 4:
            code = w->cu->context_synchronize();
            break;
        default:
            return ZR_CU_STREAM_CAPTURE_UNSUPPORTED;
        }
        if (w->all.capture_end(stream, &graph) != ZR_CU_CAPTURE_INVALIDATED)
            return VERDICT_BROKEN;
    }
    tap_note("call %d is not refused", i - 1);
    return VERDICT_BROKEN;
}

static zr_cu_result mapped_meanwhile(const struct world *w)
{
    zr_cu_graph_exec graph;
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    ONE_MAPPED;
    MUST(w->cu->fill(w->base, 7, w->g, stream));
    MUST(ended(w, stream, &graph));
    MUST(w->all.graph_launch(graph, stream));
    return good(byte_at(w, w->base) == 7);
}

static zr_cu_result watched(const struct world *w)
{
    struct thread watchdog = {.w = w, .program = asks};
    MUST(w->cu->event_create(&watchdog.event, ZR_CU_EVENT_DISABLE_TIMING));
    capturing(w, ZR_CU_CAPTURE_GLOBAL);
    return in_thread(&watchdog);
}

static zr_cu_result ended_elsewhere(const struct world *w)
{
    struct thread other = {.w = w, .program = ends};
    other.stream = capturing(w, ZR_CU_CAPTURE_THREAD_LOCAL);
    return in_thread(&other);
}

static zr_cu_result relaxed_ended_elsewhere(const struct world *w)
{
    struct thread other = {.w = w, .program = ends};
    other.stream = capturing(w, ZR_CU_CAPTURE_RELAXED);
    return in_thread(&other);
}

static zr_cu_result waited_for(const struct world *w)
{
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_RELAXED);
    return ALL_REFUSED(w->cu->stream_synchronize(stream), w->all.stream_query(stream),
                       w->cu->context_synchronize());
}

static zr_cu_result after_a_break(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_RELAXED);
    zr_cu_capture_status status;
    if (w->cu->stream_synchronize(stream) == ZR_CU_SUCCESS)
        return VERDICT_BROKEN;
    MUST(w->all.stream_capturing(stream, &status));
    if (status != ZR_CU_CAPTURE_BROKEN)
        return VERDICT_BROKEN;
    zr_cu_graph graph = (zr_cu_graph)1;
    zr_cu_result fill = w->cu->fill(address, 1, 1, stream), end = w->all.capture_end(stream, &graph);
    MUST(w->cu->fill(address, 1, 1, stream));
    return fill == end && !graph ? end : VERDICT_BROKEN;
}

static zr_cu_result on_the_null_stream(const struct world *w)
{
    return w->all.capture_begin(NULL, ZR_CU_CAPTURE_GLOBAL);
}

/* The NULL stream would wait for a blocking one. */
static zr_cu_result beside_the_null_stream(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    zr_cu_stream stream;
    zr_cu_graph graph;
    zr_cu_capture_status status;
    MUST(w->all.stream_new(&stream, 0));
    MUST(w->all.capture_begin(stream, ZR_CU_CAPTURE_RELAXED));
    zr_cu_result question = w->all.stream_capturing(NULL, &status);
    zr_cu_result code = w->cu->fill(address, 1, 1, NULL);
    return question == code && w->all.capture_end(stream, &graph) == ZR_CU_CAPTURE_INVALIDATED
               ? code
               : VERDICT_BROKEN;
}

static zr_cu_result beside_a_stream_that_does_not_wait(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    capturing(w, ZR_CU_CAPTURE_RELAXED);
    return w->cu->fill(address, 1, 1, NULL);
}

/* ---- Several streams ----------------------------------------------------------------------------------- */

/* A second stream waits for the first, works, and the first waits for it or does not. */
enum join { NOT, TOO_EARLY, WHOLE };

static zr_cu_result forked(const struct world *w, enum join joined)
{
    zr_cu_address from = plain(w, 4096), to = plain(w, 4096);
    zr_cu_event fork, back;
    zr_cu_stream other = stream_of(w);
    zr_cu_graph_exec exec;
    zr_cu_graph graph;
    MUST(w->cu->event_create(&fork, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_create(&back, ZR_CU_EVENT_DISABLE_TIMING));
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    MUST(w->cu->fill(from, 5, 4096, stream));
    MUST(w->cu->event_record(fork, stream));
    MUST(w->all.stream_wait_event(other, fork, 0));
    MUST(w->cu->event_record(back, other));
    MUST(w->cu->copy(to, from, 4096, other));
    if (joined == WHOLE)
        MUST(w->cu->event_record(back, other));
    if (joined != NOT)
        MUST(w->all.stream_wait_event(stream, back, 0));
    if (joined != WHOLE)
        return w->all.capture_end(stream, &graph);
    MUST(w->cu->fill(from, 6, 4096, stream));
    MUST(ended(w, stream, &exec));
    MUST(w->all.graph_launch(exec, other));
    return good(byte_at(w, to) == 5 && byte_at(w, from) == 6);
}

static zr_cu_result forked_and_joined(const struct world *w)
{
    return forked(w, WHOLE);
}

static zr_cu_result forked_only(const struct world *w)
{
    return ALL_REFUSED(forked(w, NOT), forked(w, TOO_EARLY));
}

/* A copy in a second stream, and a fill after the fork of what it copies: nothing orders the two, in the
 * graph as outside. In `ordered` ones the copy comes behind. How often it has what the fill writes. */
static int copies_behind(const struct world *w, bool ordered, int launches)
{
    zr_cu_address from = plain(w, 4096), to = plain(w, 4096);
    zr_cu_event fork, back;
    zr_cu_stream other = stream_of(w);
    zr_cu_graph_exec exec;
    int behind = 0;
    w->cu->event_create(&fork, ZR_CU_EVENT_DISABLE_TIMING);
    w->cu->event_create(&back, ZR_CU_EVENT_DISABLE_TIMING);
    zr_cu_stream stream = capturing(w, ZR_CU_CAPTURE_GLOBAL);
    w->cu->fill(from, 5, 4096, stream);
    w->cu->event_record(fork, stream);
    w->cu->fill(from, 6, 4096, stream);
    if (ordered)
        w->cu->event_record(fork, stream);
    w->all.stream_wait_event(other, fork, 0);
    w->cu->copy(to, from, 4096, other);
    w->cu->event_record(back, other);
    w->all.stream_wait_event(stream, back, 0);
    if (ended(w, stream, &exec) != ZR_CU_SUCCESS)
        return -1;
    for (int i = 0; i < launches; i++) {
        if (w->all.graph_launch(exec, stream) != ZR_CU_SUCCESS)
            return -1;
        behind += byte_at(w, to) == 6;
    }
    return w->all.graph_exec_destroy(exec) == ZR_CU_SUCCESS ? behind : -1;
}

static zr_cu_result unordered_in_a_graph(const struct world *w)
{
    int behind = copies_behind(w, false, 64);
    return good(behind > 0 && behind < 64);
}

static zr_cu_result ordered_in_a_graph(const struct world *w)
{
    return good(copies_behind(w, true, 64) == 64);
}

static zr_cu_result waits_for_outside(const struct world *w)
{
    zr_cu_event event;
    zr_cu_address address = plain(w, 4096);
    zr_cu_stream other = stream_of(w);
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->fill(address, 1, 1, other));
    MUST(w->cu->event_record(event, other));
    return w->all.stream_wait_event(capturing(w, ZR_CU_CAPTURE_GLOBAL), event, 0);
}

static zr_cu_result merged(const struct world *w)
{
    zr_cu_event event;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, capturing(w, ZR_CU_CAPTURE_GLOBAL)));
    return w->all.stream_wait_event(capturing(w, ZR_CU_CAPTURE_GLOBAL), event, 0);
}

static zr_cu_result captured_event(const struct world *w)
{
    zr_cu_event event;
    MUST(w->cu->event_create(&event, ZR_CU_EVENT_DISABLE_TIMING));
    MUST(w->cu->event_record(event, capturing(w, ZR_CU_CAPTURE_RELAXED)));
    return ALL_REFUSED(w->cu->event_query(event), w->cu->event_synchronize(event));
}

/* ---- Words -------------------------------------------------------------------------------------------- */

/* A word of a device's, its first value, and what a second stream sets it to one after the other. */
struct word_case {
    uint32_t first, awaited, set[2];
};

/* A stream waits for the word: whether it goes on with the last of the values and not with the one before. */
static zr_cu_result awaited(const struct world *w, struct word_case c, bool graph)
{
    zr_cu_address word = plain(w, 4096), byte = plain(w, 4096);
    zr_cu_stream setter = stream_of(w), stream = graph ? capturing(w, ZR_CU_CAPTURE_GLOBAL) : stream_of(w);
    zr_cu_graph_exec exec;
    if (!graph) {
        MUST(w->all.word_write(setter, word, c.first, 0));
        MUST(w->cu->stream_synchronize(setter));
    }
    MUST(w->all.word_wait(stream, word, c.awaited, 0));
    MUST(w->cu->fill(byte, 7, 1, stream));
    if (graph)
        MUST(ended(w, stream, &exec));
    for (int launch = 0; launch < (graph ? 2 : 1); launch++) {
        if (graph) {
            MUST(w->all.word_write(setter, word, c.first, 0));
            MUST(w->cu->stream_synchronize(setter));
            MUST(w->all.graph_launch(exec, stream));
        }
        for (int i = 0; i < 2; i++) {
            MUST(w->all.word_write(setter, word, c.set[i], 0));
            MUST(w->cu->stream_synchronize(setter));
            zr_cu_result now = i ? w->cu->stream_synchronize(stream) : w->all.stream_query(stream);
            if (now != (i ? ZR_CU_SUCCESS : ZR_CU_NOT_READY))
                return VERDICT_BROKEN;
        }
    }
    return good(byte_at(w, byte) == 7);
}

static zr_cu_result word_awaited(const struct world *w)
{
    MUST(awaited(w, (struct word_case){0, 3, {2, 3}}, false));
    return awaited(w, (struct word_case){0, 3, {2, 100}}, false);
}

static zr_cu_result word_around_the_end(const struct world *w)
{
    return awaited(w, (struct word_case){0xfffffff0u, 5, {0xffffffffu, 6}}, false);
}

static zr_cu_result word_in_a_graph(const struct world *w)
{
    return awaited(w, (struct word_case){0, 3, {2, 3}}, true);
}

static zr_cu_result words_elsewhere(const struct world *w)
{
    static uint32_t own;
    zr_cu_address word = plain(w, 4096), pageable = (zr_cu_address)(uintptr_t)&own;
    zr_cu_stream stream = stream_of(w);
    return ALL_REFUSED(w->all.word_wait(stream, word + 2, 0, 0), w->all.word_write(stream, word + 2, 0, 0),
                       w->all.word_wait(stream, pageable, 0, 0), w->all.word_write(stream, pageable, 0, 0));
}

/* What the emulator counts as a wait of the host's: a copy to pageable memory, a synchronize call; not work
 * between places that the device sees, nor a question. */
static zr_cu_result host_waits(const struct world *w)
{
    static char pageable[16];
    zr_cu_address from = plain(w, 4096), to = plain(w, 4096);
    zr_cu_stream stream = stream_of(w);
    void *pinned;
    MUST(w->all.host_alloc(&pinned, 4096, 0));
    uint64_t before = w->emulator->host_waits();
    MUST(w->cu->fill(from, 1, 4096, stream));
    MUST(w->cu->copy(to, from, 4096, stream));
    MUST(w->cu->copy((zr_cu_address)(uintptr_t)pinned, to, 4096, stream));
    w->all.stream_query(stream);
    uint64_t none = w->emulator->host_waits();
    MUST(w->cu->copy((zr_cu_address)(uintptr_t)pageable, to, sizeof pageable, stream));
    uint64_t one = w->emulator->host_waits();
    MUST(w->cu->stream_synchronize(stream));
    return good(none == before && one == before + 1 && w->emulator->host_waits() == before + 2);
}

/* ---- The table -------------------------------------------------------------------------------------------
 */

static const struct rule rules[] = {
    {"work is recorded, and run by each launch", "STREAM cuStreamBeginCapture", replayed, ZR_CU_SUCCESS, 0},
    {"at the addresses that it had", "GRAPH cuGraphLaunch", replayed_on_freed, ZR_CU_ILLEGAL_ADDRESS,
     EMULATOR_ONLY},
    {"whatever lies there", "torch_memory_saver #22", replayed_on_remapped, ZR_CU_SUCCESS, 0},
    {"a capture allocates and frees", "guide, Graph Memory Nodes", allocated_in_capture, ZR_CU_SUCCESS, 0},
    {"what a launch leaves allocated may be freed outside", "guide, Graph Memory Nodes", left_and_freed,
     ZR_CU_SUCCESS, 0},
    {"and must, before the next launch", "guide, Graph Memory Nodes", left_and_launched, ZR_CU_INVALID_VALUE,
     0},
    {"or the launch frees it, if the graph was made so", "guide, Graph Memory Nodes",
     left_and_freed_by_launch, ZR_CU_SUCCESS, 0},
    {"it is not there before the first", "guide, Graph Memory Nodes", before_the_launch, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
    {"a capture frees no pool's memory", "GRAPH cuGraphAddMemFreeNode", freed_in_capture, ZR_CU_INVALID_VALUE,
     0},
    {"who may call what meanwhile is a matter of both modes", "STREAM cuThreadExchangeStreamCaptureMode",
     modes, ZR_CU_SUCCESS, 0},
    {"to free, allocate, ask and wait are such calls (some unstated)",
     "STREAM cuThreadExchangeStreamCaptureMode; PyTorch #87794", unsafe, ZR_CU_STREAM_CAPTURE_UNSUPPORTED, 0},
    {"to map memory is none, in the strictest mode", "PyTorch #128068, #194767", mapped_meanwhile,
     ZR_CU_SUCCESS, 0},
    {"in other threads too", "PyTorch's capture_error_mode", watched, ZR_CU_STREAM_CAPTURE_UNSUPPORTED, 0},
    {"a capture ends in its thread", "STREAM cuStreamBeginCapture", ended_elsewhere, SAME_THREAD, 0},
    {"unless it is relaxed", "STREAM cuStreamBeginCapture", relaxed_ended_elsewhere, ZR_CU_SUCCESS, 0},
    {"nobody waits for it, relaxed or not", "guide, Prohibited and Unhandled Operations", waited_for,
     ZR_CU_STREAM_CAPTURE_UNSUPPORTED, 0},
    {"broken it takes nothing and ends without a graph", "guide, Invalidation", after_a_break,
     ZR_CU_CAPTURE_INVALIDATED, 0},
    {"the NULL stream is not captured", "STREAM cuStreamBeginCapture", on_the_null_stream,
     ZR_CU_STREAM_CAPTURE_UNSUPPORTED, 0},
    {"nor used beside a blocking one that is", "guide, Prohibited and Unhandled Operations",
     beside_the_null_stream, ZR_CU_CAPTURE_IMPLICIT, 0},
    {"others do not mind", "TYPES CU_STREAM_NON_BLOCKING", beside_a_stream_that_does_not_wait, ZR_CU_SUCCESS,
     0},
    {"a stream that waits is captured too", "guide, Cross-stream Dependencies and Events", forked_and_joined,
     ZR_CU_SUCCESS, 0},
    {"and must be waited for", "TYPES CUDA_ERROR_STREAM_CAPTURE_UNJOINED", forked_only, UNJOINED, 0},
    {"in the graph events order its work", "guide, Cross-stream Dependencies and Events", ordered_in_a_graph,
     ZR_CU_SUCCESS, 0},
    {"and nothing else does", "guide, Graph Structure", unordered_in_a_graph, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"a stream waits until a word is as large", "MEMOP cuStreamWaitValue32", word_awaited, ZR_CU_SUCCESS, 0},
    {"modulo 2^32", "MEMOP CU_STREAM_WAIT_VALUE_GEQ", word_around_the_end, ZR_CU_SUCCESS, 0},
    {"in each launch of a graph anew", "GRAPH cuGraphAddBatchMemOpNode", word_in_a_graph, ZR_CU_SUCCESS, 0},
    {"it lies on four bytes that the device sees", "MEMOP cuStreamWaitValue32", words_elsewhere,
     ZR_CU_INVALID_VALUE, 0},
    {"each wait of the host's is counted", "guide, Asynchronous Concurrent Execution", host_waits,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"a capture waits for nothing outside", "TYPES CUDA_ERROR_STREAM_CAPTURE_ISOLATION", waits_for_outside,
     ISOLATION, 0},
    {"two are not merged", "TYPES CUDA_ERROR_STREAM_CAPTURE_MERGE", merged, MERGE, 0},
    {"an event of a capture is not asked", "TYPES CUDA_ERROR_CAPTURED_EVENT", captured_event, CAPTURED_EVENT,
     0},
};

int main(void)
{
    return rules_run(rules, sizeof rules / sizeof *rules);
}
