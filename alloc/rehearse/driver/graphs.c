/* graphs.c: what captures have recorded, and its replay. A replay is the recorded work in lanes: what was
 * recorded in one stream is in one order, and in others as events said; how long each piece takes is drawn
 * again, so that a missing wait shows. The lane where the capture began is the stream of the launch, others
 * have streams of their own. Memory that a capture allocates has an address from then on, bytes from the
 * first launch on until the last that could launch it is destroyed. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdlib.h>
#include <string.h>

struct memory {
    struct memory *next;
    struct emu_block *block;
    size_t bytes;
    struct zr_cu_context_st *context;
    unsigned users_count; /* graphs, instantiated or not */
    bool live;            /* allocated by a launch, or within the capture, and not freed */
};

struct node {
    struct node *next;
    struct emu_work work;             /* of a copy, fill or kernel */
    struct memory *allocated, *freed; /* else one of these */
    uint64_t lane;
    const struct node *awaited; /* of a wait (EMU_WAIT); NULL: all that was before the launch */
    struct emu_point point;     /* where the last replay has it, as seen in its lane */
};

struct zr_cu_graph_st {
    struct zr_cu_graph_st *next;
    struct node *first, **end;
    size_t length;
    uint64_t origin;          /* the first lane */
    bool with_memory, in_use; /* in_use: instantiated */
};

struct zr_cu_graph_exec_st {
    struct zr_cu_graph_exec_st *next;
    struct zr_cu_graph_st *nodes; /* a copy, owned */
    struct zr_cu_graph_st *of;
    struct lane {
        struct lane *next;
        uint64_t number;
        struct zr_cu_stream_st *stream;
    } * lanes;                        /* but for the first */
    struct emu_point before;          /* of the launch under way */
    struct zr_cu_context_st *context; /* of the last launch; NULL: there was none */
    struct emu_point end;             /* of it */
    bool frees_first; /* a launch first frees what the launch before it has allocated and left */
};

static struct memory *memories;
static struct zr_cu_graph_st *graphs;
static struct zr_cu_graph_exec_st *execs;

/* ---- Graphs -------------------------------------------------------------------------------------------- */

static struct zr_cu_graph_st *new_list(uint64_t origin)
{
    struct zr_cu_graph_st *made = emu_must(calloc(1, sizeof *made));
    made->end = &made->first;
    made->origin = origin;
    return made;
}

struct zr_cu_graph_st *emu_graph_new(uint64_t lane)
{
    struct zr_cu_graph_st *made = new_list(lane);
    made->next = graphs;
    return graphs = made;
}

size_t emu_graph_length(const struct zr_cu_graph_st *graph)
{
    return graph->length;
}

static void append(struct zr_cu_graph_st *graph, struct node node)
{
    struct node *made = emu_must(malloc(sizeof *made));
    struct memory *memory = node.allocated ? node.allocated : node.freed;
    *made = node;
    made->next = NULL;
    *graph->end = made;
    graph->end = &made->next;
    graph->length++;
    if (made->work.launch)
        emu_launch_hold(made->work.launch);
    if (memory) {
        memory->users_count++;
        graph->with_memory = true;
    }
}

void emu_graph_append(struct zr_cu_graph_st *graph, uint64_t lane, const struct emu_work *work)
{
    append(graph, (struct node){.lane = lane, .work = *work});
}

void emu_graph_wait(struct zr_cu_graph_st *graph, uint64_t lane, uint64_t of, size_t behind)
{
    struct node wait = {.lane = lane, .work = {.kind = EMU_WAIT}};
    const struct node *each = graph->first;
    for (size_t i = 0; i < behind; i++, each = each->next)
        if (each->lane == of)
            wait.awaited = each;
    append(graph, wait);
}

/* Those of the copy wait for its own. */
static void copy_nodes(struct zr_cu_graph_st *to, const struct zr_cu_graph_st *from)
{
    struct node **copies = emu_must(calloc(from->length + 1, sizeof *copies));
    size_t count = 0;
    for (const struct node *each = from->first; each; each = each->next) {
        struct node **at = to->end;
        append(to, *each);
        copies[count++] = *at;
        size_t i = 0;
        for (const struct node *other = from->first; other != each->awaited; other = other->next)
            i++;
        (*at)->awaited = each->awaited ? copies[i] : NULL;
    }
    free(copies);
}

/* In the order in which they were recorded: the lane has one. */
zr_cu_result emu_graph_append_all(struct zr_cu_graph_st *to, uint64_t lane, const struct zr_cu_graph_st *from)
{
    if (from->with_memory)
        return ZR_CU_NOT_SUPPORTED;
    for (const struct node *each = from->first; each; each = each->next)
        if (each->work.kind != EMU_WAIT)
            emu_graph_append(to, lane, &each->work);
    return ZR_CU_SUCCESS;
}

static bool no_graph(const struct zr_cu_graph_st *graph)
{
    const struct zr_cu_graph_st *each = graphs;
    while (each && each != graph)
        each = each->next;
    return !each;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static struct memory *memory_at(zr_cu_address address)
{
    struct memory *each = memories;
    while (each && each->block->address != address)
        each = each->next;
    return each;
}

static void bury(struct memory *memory)
{
    struct memory **link = &memories;
    if (memory->live || memory->users_count)
        return;
    while (*link != memory)
        link = &(*link)->next;
    *link = memory->next;
    emu_block_destroy(memory->block);
    free(memory);
}

static void come_alive(struct memory *memory, uint64_t ready)
{
    memory->live = true;
    emu_allocation_add((struct emu_allocation){.address = memory->block->address,
                                               .bytes = memory->bytes,
                                               .kind = EMU_GRAPH,
                                               .block = memory->block,
                                               .context = memory->context,
                                               .ready = ready});
}

void emu_graph_memory_give(struct emu_allocation *allocation)
{
    struct memory *memory = memory_at(allocation->address);
    memory->live = false;
    bury(memory);
}

/* The record of a live one goes. */
static void die(struct memory *memory)
{
    struct emu_allocation *allocation = memory->live ? emu_allocation_at(memory->block->address) : NULL;
    if (allocation) {
        emu_allocation_freed(allocation);
        emu_allocation_remove(allocation);
    }
    memory->live = false;
}

zr_cu_result emu_graph_allocate(struct zr_cu_graph_st *graph, uint64_t lane, zr_cu_address *out, size_t bytes,
                                struct zr_cu_context_st *context)
{
    struct emu_block *block = emu_block_reserve(bytes);
    if (!block)
        return ZR_CU_OUT_OF_MEMORY;
    struct memory *made = emu_must(calloc(1, sizeof *made));
    *made = (struct memory){.next = memories, .block = block, .bytes = bytes, .context = context};
    memories = made;
    come_alive(made, 0);
    append(graph, (struct node){.lane = lane, .allocated = made});
    *out = block->address;
    return ZR_CU_SUCCESS;
}

zr_cu_result emu_graph_free(struct zr_cu_graph_st *graph, uint64_t lane, zr_cu_address address)
{
    struct memory *memory = memory_at(address);
    if (!memory || !memory->live)
        return ZR_CU_INVALID_VALUE;
    append(graph, (struct node){.lane = lane, .freed = memory});
    die(memory);
    return ZR_CU_SUCCESS;
}

/* What the capture allocated and did not free has no use until a launch. */
void emu_graph_end_recording(struct zr_cu_graph_st *graph)
{
    for (struct node *each = graph->first; each; each = each->next)
        if (each->allocated)
            die(each->allocated);
}

static void drop_nodes(struct zr_cu_graph_st *graph)
{
    for (struct node *each = graph->first, *next; each; each = next) {
        struct memory *memory = each->allocated ? each->allocated : each->freed;
        next = each->next;
        if (memory) {
            memory->users_count--;
            bury(memory);
        }
        if (each->work.launch)
            emu_launch_drop(each->work.launch);
        free(each);
    }
    free(graph);
}

void emu_graph_drop(struct zr_cu_graph_st *graph)
{
    struct zr_cu_graph_st **link = &graphs;
    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    for (struct zr_cu_graph_exec_st *each = execs; each; each = each->next)
        each->of = each->of == graph ? NULL : each->of;
    drop_nodes(graph);
}

PUBLIC zr_cu_result cuGraphDestroy(zr_cu_graph graph)
{
    zr_cu_result code = emu_enter(EMU_graph_destroy, EMU_INIT);
    if (code == ZR_CU_SUCCESS && no_graph(graph))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS)
        emu_graph_drop(graph);
    return emu_leave(code);
}

/* ---- Instantiated graphs ------------------------------------------------------------------------------- */

static bool no_exec(const struct zr_cu_graph_exec_st *exec)
{
    const struct zr_cu_graph_exec_st *each = execs;
    while (each && each != exec)
        each = each->next;
    return !each;
}

size_t emu_graphs_count(void)
{
    size_t count = 0;
    for (const struct zr_cu_graph_st *each = graphs; each; each = each->next)
        count++;
    for (const struct zr_cu_graph_exec_st *each = execs; each; each = each->next)
        count++;
    return count;
}

/* A graph that allocates is instantiated once at a time. */
static zr_cu_result instantiate(zr_cu_graph_exec *out, struct zr_cu_graph_st *graph)
{
    if (!out || no_graph(graph))
        return ZR_CU_INVALID_VALUE;
    if (graph->with_memory && graph->in_use)
        return ZR_CU_NOT_SUPPORTED;
    struct zr_cu_graph_exec_st *made = emu_must(calloc(1, sizeof *made));
    *made = (struct zr_cu_graph_exec_st){.next = execs, .nodes = new_list(graph->origin), .of = graph};
    copy_nodes(made->nodes, graph);
    graph->in_use = true;
    *out = execs = made;
    return ZR_CU_SUCCESS;
}

/* CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH */
enum { AUTO_FREE_ON_LAUNCH = 1 };

PUBLIC zr_cu_result cuGraphInstantiateWithFlags(zr_cu_graph_exec *out, zr_cu_graph graph,
                                                unsigned long long flags)
{
    zr_cu_result code = emu_enter(EMU_graph_instantiate, EMU_CONTEXT);
    if (code == ZR_CU_SUCCESS)
        code = instantiate(out, graph);
    if (code == ZR_CU_SUCCESS)
        (*out)->frees_first = flags & AUTO_FREE_ON_LAUNCH;
    return emu_leave(code);
}

PUBLIC zr_cu_result cuGraphExecDestroy(zr_cu_graph_exec exec)
{
    zr_cu_result code = emu_enter(EMU_graph_exec_destroy, EMU_INIT);
    if (code == ZR_CU_SUCCESS && no_exec(exec))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS) {
        struct zr_cu_graph_exec_st **link = &execs;
        while (*link != exec)
            link = &(*link)->next;
        *link = exec->next;
        if (exec->of)
            exec->of->in_use = false;
        drop_nodes(exec->nodes);
        for (struct lane *each = exec->lanes, *next; each; each = next) {
            next = each->next;
            free(each->stream);
            free(each);
        }
        free(exec);
    }
    return emu_leave(code);
}

/* Memory that the last launch left allocated is not allocated again; all else gets its bytes. */
static zr_cu_result prepare(const struct zr_cu_graph_exec_st *exec)
{
    for (const struct node *each = exec->nodes->first; each; each = each->next)
        if (each->allocated && each->allocated->live && exec->frees_first)
            die(each->allocated);
        else if (each->allocated && each->allocated->live)
            return ZR_CU_INVALID_VALUE;
        else if (each->allocated && each->allocated->block->unmapped &&
                 !emu_block_map(each->allocated->block, each->allocated->context->device))
            return ZR_CU_OUT_OF_MEMORY;
    return ZR_CU_SUCCESS;
}

/* What a node's lane is in a launch to the stream. */
static struct zr_cu_stream_st *stream_of(struct zr_cu_graph_exec_st *exec, uint64_t number,
                                         struct zr_cu_stream_st *stream)
{
    struct lane *each = exec->lanes;
    if (number == exec->nodes->origin)
        return stream;
    while (each && each->number != number)
        each = each->next;
    if (each)
        return each->stream;
    struct lane *made = emu_must(malloc(sizeof *made));
    *made = (struct lane){exec->lanes, number, emu_stream_hidden(exec->context)};
    exec->lanes = made;
    return made->stream;
}

static void wait_for(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, struct emu_point point)
{
    emu_submit(context, stream,
               (struct emu_work){.kind = EMU_WAIT,
                                 .awaits = context,
                                 .awaits_end = point.end,
                                 .awaits_number = point.number,
                                 .awaits_blocking = point.blocking});
}

static void submit(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, struct emu_work work)
{
    if (work.host_from) {
        work.staged = emu_must(malloc(work.bytes));
        memcpy(work.staged, (void *)(uintptr_t)work.from, work.bytes);
        work.from = 0;
        work.host_from = false;
    }
    work.unchecked = true;
    emu_submit(context, stream, work);
}

static void replay(struct zr_cu_graph_exec_st *exec, struct zr_cu_stream_st *stream, struct node *node)
{
    struct zr_cu_context_st *context = exec->context;
    stream = stream_of(exec, node->lane, stream);
    if (node->allocated)
        come_alive(node->allocated, emu_stream_end(context, stream));
    else if (node->freed)
        die(node->freed);
    else if (node->work.kind == EMU_WAIT)
        wait_for(context, stream, node->awaited ? node->awaited->point : exec->before);
    else
        submit(context, stream, node->work);
    node->point = emu_stream_point(context, stream);
}

/* Behind the launch before, in whatever stream that was. */
static zr_cu_result launch(struct zr_cu_graph_exec_st *exec, struct zr_cu_context_st *context,
                           struct zr_cu_stream_st *stream)
{
    zr_cu_result code = prepare(exec);
    if (code != ZR_CU_SUCCESS)
        return code;
    if (exec->context == context)
        wait_for(context, stream, exec->end);
    exec->context = context;
    exec->before = emu_stream_point(context, stream);
    for (struct node *each = exec->nodes->first; each; each = each->next)
        replay(exec, stream, each);
    exec->end = emu_stream_point(context, stream);
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuGraphLaunch(zr_cu_graph_exec exec, zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_graph_launch, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    if (code == ZR_CU_SUCCESS && no_exec(exec))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && emu_no_stream(&stream, context))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && !emu_captured_launch(context, stream, exec->nodes, &code))
        code = launch(exec, context, stream);
    return emu_leave(code);
}
