/* work.c: the emulated driver's copies, fills and kernels. Work is kept until the context's clock has reached
 * its end, and carried out then: see emulator.h. */
#include "alloc/rehearse/driver/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((size_t)64 << 10)

void emu_work_state(struct zr_emulator_state *out)
{
    for (const struct zr_cu_context_st *each = emu_contexts; each; each = each->next)
        for (const struct emu_work *work = each->pending; work; work = work->next)
            out->pending_count++;
}

/* ---- Writing down -------------------------------------------------------------------------------------- */

static bool only_written_down(const struct emu_work *work)
{
    return emu.launches_path &&
           (work->kind == EMU_KERNEL || work->kind == EMU_FILL || (work->kind == EMU_COPY && !work->staged));
}

/* "fill BYTES", "copy BYTES", or a kernel's line. */
static void write_down(const struct emu_work *work)
{
    FILE *file = fopen(emu.launches_path, "ae");
    if (!file)
        return;
    if (work->kind == EMU_KERNEL)
        emu_launch_write(work->launch, file);
    else
        fprintf(file, "%s %zu\n", work->kind == EMU_FILL ? "fill" : "copy", work->bytes);
    fclose(file);
}

/* ---- Carrying out -------------------------------------------------------------------------------------- */

static void copy_now(zr_cu_address to, zr_cu_address from, size_t bytes)
{
    unsigned char *piece = malloc(PIECE_BYTES);
    for (size_t done = 0; piece && done < bytes;) {
        size_t part = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        emu_read(from + done, piece, part);
        emu_write(to + done, piece, part);
        done += part;
    }
    free(piece);
}

static void fill_now(zr_cu_address to, unsigned char value, size_t bytes)
{
    unsigned char *piece = malloc(PIECE_BYTES);
    if (!piece)
        abort();
    memset(piece, value, PIECE_BYTES);
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        emu_write(to + done, piece, part);
        done += part;
    }
    free(piece);
}

/* A copy to the program's memory. */
static void read_back(const struct emu_work *work)
{
    unsigned char *to = (unsigned char *)(uintptr_t)work->to;
    emu_read(work->from, to, work->bytes);
    if (emu.card && emu_device_address(work->from))
        emu_known_fill(work->from, to, work->bytes, work->count);
}

/* What the memory behind the work's destination gets from bytes of the program's or of a device. */
static void write_now(const struct emu_work *work)
{
    bool zeros = work->kind == EMU_FILL && work->value == 0 && !work->host_to;
    if (work->bytes > emu.keep_bytes || (zeros && emu.keep_bytes != SIZE_MAX))
        emu_clear(work->to, work->bytes);
    else if (work->staged)
        emu_write(work->to, work->staged, work->bytes);
    else if (emu.card && work->kind == EMU_COPY && emu_host_block(work->to))
        read_back(work);
    else if (work->kind == EMU_COPY)
        copy_now(work->to, work->from, work->bytes);
    else
        fill_now(work->to, work->value, work->bytes);
}

static bool in_reach(const struct zr_cu_context_st *context, const struct emu_work *work)
{
    return !work->invalid && (work->host_to || emu_backed(work->to, work->bytes, context, EMU_WRITES)) &&
           (!work->from || work->host_from || emu_backed(work->from, work->bytes, context, EMU_READS));
}

/* What a library's work has brought since the copy was submitted. */
static void note_arrival(const struct emu_work *work)
{
    if (emu.card && work->kind == EMU_COPY && work->bytes <= emu.keep_bytes && emu_device_address(work->to) &&
        !emu_known(work->to, work->bytes) && emu_known(work->from, work->bytes))
        emu_known_add(work->to, work->bytes);
}

static void carry_out(struct zr_cu_context_st *context, const struct emu_work *work)
{
    if (work->kind == EMU_WAIT || work->kind == EMU_AWAIT_WORD) { /* it was not held up */
    } else if (only_written_down(work)) {
    } else if (work->kind == EMU_KERNEL) {
        zr_cu_result code = emu_kernel_run(context, work);
        context->dead = code == ZR_CU_SUCCESS ? context->dead : code;
    } else if (work->kind == EMU_LIBRARY) { /* its step has done it */
    } else if (!in_reach(context, work)) {
        context->dead = ZR_CU_ILLEGAL_ADDRESS;
    } else if (work->kind == EMU_WRITE_WORD) {
        emu_word_set(work->to, work->word);
    } else if (!work->written) {
        write_now(work);
        note_arrival(work);
    }
}

static void end_work(struct emu_work *work)
{
    for (struct emu_gone *each = work->gone, *next; each; each = next) {
        next = each->next;
        free(each);
    }
    if (work->launch)
        emu_launch_drop(work->launch);
    free(work->staged);
    free(work);
}

static struct library_step {
    struct zr_cu_context_st *context;
    const struct emu_work *work;
} stepping; /* which step is under way */

const char *emu_library_reach(zr_cu_address address, size_t bytes, bool writes)
{
    for (const struct emu_gone *each = stepping.work->gone; each; each = each->next)
        if (each->address < address + bytes && address < each->address + each->bytes)
            return "was freed or unmapped after the call and before its end";
    return emu_backed(address, bytes, stepping.context, writes ? EMU_WRITES : EMU_READS)
               ? NULL
               : "is none that its device may use";
}

/* True: what a library has to do goes on. */
static bool library_goes_on(struct zr_cu_context_st *context, const struct emu_work *work)
{
    stepping = (struct library_step){context, work};
    enum zr_emulator_step step = work->step(work->state);
    if (step == ZR_EMULATOR_WRONG)
        context->dead = ZR_CU_ILLEGAL_ADDRESS;
    return step == ZR_EMULATOR_AGAIN;
}

/* The word that the work waits for has not come. */
static bool stalls(struct zr_cu_context_st *context, const struct emu_work *work)
{
    if (work->kind != EMU_AWAIT_WORD)
        return false;
    if (in_reach(context, work))
        return (int32_t)(emu_word(work->to) - work->word) < 0;
    context->dead = ZR_CU_ILLEGAL_ADDRESS;
    return false;
}

/* Whether the work is the stream's, or the NULL stream's, which waits for it. */
static bool is_of(const struct emu_work *work, uint64_t number, bool blocking)
{
    return work->number == number || (work->blocking && blocking && (work->number == 0 || number == 0));
}

static bool is_pending(const struct zr_cu_context_st *context, struct emu_point point)
{
    const struct emu_work *each = context->pending;
    while (each && each->end <= point.end && !is_of(each, point.number, point.blocking))
        each = each->next;
    return each && each->end <= point.end;
}

bool emu_reached(const struct zr_cu_context_st *context, struct emu_point point)
{
    return context->clock >= point.end && !is_pending(context, point);
}

/* By what goes on before it: what its time has come for waits for that alone. */
static bool is_held_up(struct zr_cu_context_st *context, const struct emu_work *work)
{
    const struct emu_work *each = context->pending;
    while (each != work && !is_of(each, work->number, work->blocking))
        each = each->next;
    if (each != work)
        return true;
    if (work->kind == EMU_WAIT) {
        const struct emu_point point = {work->awaits_end, work->awaits_number, work->awaits_blocking};
        if (work->awaits->clock < point.end)
            work->awaits->clock = point.end;
        emu_run(work->awaits);
        for (each = work->awaits->pending; each && each != work && each->end <= point.end; each = each->next)
            if (is_of(each, point.number, point.blocking))
                return true;
        return false;
    }
    return stalls(context, work) || (work->kind == EMU_LIBRARY && library_goes_on(context, work));
}

void emu_run(struct zr_cu_context_st *context)
{
    struct emu_work **link = &context->pending;
    if (context->running)
        return;
    context->running = true;
    while (*link && ((*link)->end <= context->clock || context->dead)) {
        struct emu_work *work = *link;
        if (!context->dead && is_held_up(context, work)) {
            work->stalled = true;
            link = &work->next;
            continue;
        }
        *link = work->next;
        if (context->latest == work)
            context->latest = NULL;
        if (!context->dead)
            carry_out(context, work);
        else
            link = &context->pending;
        end_work(work);
    }
    context->running = false;
}

void emu_drop_work(struct zr_cu_context_st *context)
{
    for (struct emu_work *work = context->pending, *next; work; work = next) {
        next = work->next;
        end_work(work);
    }
    context->pending = context->latest = NULL;
    if (context->clock < context->last)
        context->clock = context->last;
}

static bool meets(const struct emu_work *work, zr_cu_address address, size_t bytes)
{
    return (work->to < address + bytes && address < work->to + work->bytes) ||
           (work->from && work->from < address + bytes && address < work->from + work->bytes);
}

static bool has_contents(const struct emu_work *work)
{
    return (work->kind == EMU_COPY || work->kind == EMU_FILL) && !work->written;
}

void emu_write_early(zr_cu_address address, size_t bytes)
{
    for (struct zr_cu_context_st *each = emu_contexts; each; each = each->next) {
        struct emu_work *end = each->pending;
        bool held = false;
        for (struct emu_work *work = each->pending; work; work = work->next)
            if (has_contents(work) && meets(work, address, bytes))
                end = work->next;
        for (struct emu_work *work = each->pending; work != end; work = work->next) {
            held = held || work->kind == EMU_LIBRARY || work->kind == EMU_AWAIT_WORD;
            if (!has_contents(work))
                continue;
            if (!held && in_reach(each, work))
                write_now(work);
            work->written = !held || (work->to < address + bytes && address < work->to + work->bytes);
        }
    }
}

static uint64_t left(const struct zr_cu_context_st *context, uint64_t end)
{
    return end > context->clock ? end - context->clock : 0;
}

/* What a kernel uses shows when it runs. */
static void add_gone(struct emu_work *work, zr_cu_address address, size_t bytes)
{
    struct emu_gone *made = emu_must(malloc(sizeof *made));
    *made = (struct emu_gone){work->gone, address, bytes};
    work->gone = made;
}

void emu_unmapped_after(zr_cu_address address, size_t bytes, struct zr_cu_context_st *context, uint64_t end)
{
    if (emu.card)
        emu_known_forget(address, bytes);
    for (struct zr_cu_context_st *each = emu_contexts; each; each = each->next)
        for (struct emu_work *work = each->pending; work; work = work->next)
            if (left(each, work->end) <= left(context, end) && !work->stalled)
                continue;
            else if (work->kind == EMU_KERNEL || work->kind == EMU_LIBRARY)
                add_gone(work, address, bytes);
            else if (meets(work, address, bytes))
                each->dead = ZR_CU_ILLEGAL_ADDRESS;
}

void emu_unmapped(zr_cu_address address, size_t bytes)
{
    if (emu_contexts)
        emu_unmapped_after(address, bytes, emu_contexts, 0);
}

static void move_on(struct zr_cu_context_st *context, uint64_t end)
{
    if (context->clock < end)
        context->clock = end;
    emu_run(context);
}

zr_cu_result emu_wait_for(struct zr_cu_context_st *context, struct emu_point point)
{
    move_on(context, point.end);
    while (!context->dead && !emu_reached(context, point)) {
        emu_pause();
        emu_run(context);
    }
    emu_pools_settle(context->device);
    return context->dead;
}

zr_cu_result emu_wait_until(struct zr_cu_context_st *context, uint64_t end)
{
    move_on(context, end);
    while (!context->dead && context->pending && context->pending->end <= end) {
        emu_pause();
        emu_run(context);
    }
    emu_pools_settle(context->device);
    return context->dead;
}

/* ---- Submitting ---------------------------------------------------------------------------------------- */

/* Memory of a pool is there when its stream is, and for others once they have waited for that. */
static bool too_early(const struct zr_cu_context_st *context, zr_cu_address address, uint64_t start)
{
    const struct emu_allocation *found = address ? emu_allocation_at(address) : NULL;
    return found && left(context, start) < left(found->context, found->ready);
}

/* What was not looked at before: a kernel's addresses, and those of a graph. Virtual memory is looked at when
 * the work runs. */
static bool nowhere(const struct zr_cu_context_st *context, const struct emu_work *work)
{
    return work->unchecked &&
           ((emu_device_address(work->to) &&
             emu_place(work->to, work->bytes, context, EMU_WRITES) != EMU_MAPPED) ||
            (emu_device_address(work->from) &&
             emu_place(work->from, work->bytes, context, EMU_READS | EMU_COPIES) != EMU_MAPPED));
}

static void insert(struct zr_cu_context_st *context, const struct emu_work *work)
{
    struct emu_work *made = emu_must(malloc(sizeof *made)), **link = &context->pending;
    *made = *work;
    if (made->launch)
        emu_launch_hold(made->launch);
    if (context->latest && context->latest->end <= made->end)
        link = &context->latest->next;
    context->latest = made;
    while (*link && (*link)->end <= made->end)
        link = &(*link)->next;
    made->next = *link;
    *link = made;
}

/* Gives the work its place in the stream. */
static void schedule(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, struct emu_work *work)
{
    uint64_t start = emu_stream_end(context, stream);
    work->number = emu_stream_number(stream);
    work->blocking = emu_stream_blocks(stream);
    if (start < context->clock)
        start = context->clock;
    if (work->kind == EMU_WAIT) {
        uint64_t other = context->clock + left(work->awaits, work->awaits_end);
        work->end = start > other ? start : other;
    } else {
        work->start = start;
        work->end = start + emu_work_ticks(context, stream, work);
        work->invalid = too_early(context, work->to, start) || too_early(context, work->from, start) ||
                        nowhere(context, work);
    }
    if (!stream)
        context->null_last = work->end;
    else
        stream->last = work->end;
    if (stream && !stream->non_blocking && work->end > context->blocking_last)
        context->blocking_last = work->end;
    if (work->end > context->last)
        context->last = work->end;
}

void emu_submit(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream, struct emu_work work)
{
    if (only_written_down(&work))
        write_down(&work);
    schedule(context, stream, &work);
    if (work.kind == EMU_KERNEL || work.kind == EMU_LIBRARY)
        emu_known_launch();
    if (work.kind != EMU_KERNEL || work.launch)
        insert(context, &work);
    if (emu.timed && !emu.clocked)
        move_on(context, work.end);
}

/* Between two places of the program's, or to one: done when the call returns. */
static zr_cu_result copy_to_host(const struct zr_cu_context_st *context, const struct emu_work *work)
{
    if (work->host_from)
        memmove((void *)(uintptr_t)work->to, (void *)(uintptr_t)work->from, work->bytes);
    else if (emu_place(work->from, work->bytes, context, EMU_READS | EMU_COPIES) == EMU_MAPPED)
        read_back(work);
    return ZR_CU_SUCCESS;
}

/* What is known of the destination's contents once the copy has been made. */
static void note_contents(const struct emu_work *work)
{
    bool known = work->bytes <= emu.keep_bytes &&
                 (!emu_device_address(work->from) || emu_known(work->from, work->bytes));
    if (!emu.card || !emu_device_address(work->to))
        return;
    if (known)
        emu_known_add(work->to, work->bytes);
    else
        emu_known_forget(work->to, work->bytes);
}

/* Whether a synchronous copy or fill is behind when the call returns: not between two places on devices. */
static bool ends_at_once(zr_cu_address address)
{
    const struct emu_allocation *found = emu_allocation_at(address);
    return emu_current()->flags & ZR_CU_CONTEXT_SYNC_MEMOPS ||
           (found && (found->kind == EMU_PAGE_LOCKED || found->kind == EMU_REGISTERED || found->sync_copies));
}

zr_cu_result emu_copy(zr_cu_address to, zr_cu_address from, size_t bytes, zr_cu_stream stream, bool now)
{
    struct zr_cu_context_st *context = emu_current();
    struct emu_work work = {
        .kind = EMU_COPY, .to = to, .from = from, .bytes = bytes, .count = emu_count_expected};
    zr_cu_result code;
    if (emu_no_stream(&stream, context))
        return ZR_CU_INVALID_HANDLE;
    if (bytes == 0)
        return ZR_CU_SUCCESS;
    enum emu_place to_place = emu_place(to, bytes, context, EMU_WRITES | EMU_COPIES);
    enum emu_place from_place = emu_place(from, bytes, context, EMU_READS | EMU_COPIES);
    if (to_place == EMU_NOWHERE || from_place == EMU_NOWHERE)
        return ZR_CU_INVALID_VALUE;
    work.host_to = to_place == EMU_HOST;
    work.host_from = from_place == EMU_HOST;
    if (emu_captured(context, stream, &work, &code))
        return code;
    if (!now && (work.host_to || work.host_from))
        emu_host_waits(EMU_copy);
    if (work.host_to) {
        if (emu.timed)
            schedule(context, stream, &work);
        code = emu_wait_for(context, emu_stream_point(context, stream));
        return code == ZR_CU_SUCCESS ? copy_to_host(context, &work) : code;
    }
    note_contents(&work);
    if (work.host_from) {
        size_t kept = bytes > emu.keep_bytes ? 1 : bytes;
        work.staged = emu_must(malloc(kept));
        memcpy(work.staged, (void *)(uintptr_t)from, kept);
        work.from = 0;
        work.host_from = false;
    }
    emu_submit(context, stream, work);
    if (now && (ends_at_once(to) || ends_at_once(from)))
        return emu_wait_for(context, emu_stream_point(context, stream));
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemcpyAsync(zr_cu_address to, zr_cu_address from, size_t bytes, zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_copy, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? emu_copy(to, from, bytes, stream, false) : code);
}

zr_cu_result emu_fill(zr_cu_address to, unsigned char value, size_t bytes, zr_cu_stream stream, bool now)
{
    struct zr_cu_context_st *context = emu_current();
    struct emu_work work = {.kind = EMU_FILL, .to = to, .bytes = bytes, .value = value};
    zr_cu_result code;
    if (emu_no_stream(&stream, context))
        return ZR_CU_INVALID_HANDLE;
    enum emu_place place = emu_place(to, bytes, context, EMU_WRITES);
    work.host_to = place == EMU_HOST && emu_attribute_of(ZR_CU_ATTRIBUTE_PAGEABLE_MEMORY);
    if (place != EMU_MAPPED && !work.host_to)
        return ZR_CU_INVALID_VALUE;
    if (emu_captured(context, stream, &work, &code))
        return code;
    if (emu.card)
        emu_known_add(to, bytes);
    emu_submit(context, stream, work);
    if (now && ends_at_once(to))
        return emu_wait_for(context, emu_stream_point(context, stream));
    return ZR_CU_SUCCESS;
}

PUBLIC zr_cu_result cuMemsetD8Async(zr_cu_address to, unsigned char value, size_t bytes, zr_cu_stream stream)
{
    zr_cu_result code = emu_enter(EMU_fill, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? emu_fill(to, value, bytes, stream, false) : code);
}

static zr_cu_result launch(zr_cu_stream stream, struct emu_work work)
{
    zr_cu_result code = emu_enter(EMU_launch, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    if (code == ZR_CU_SUCCESS && emu_no_stream(&stream, context))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && !emu_captured(context, stream, &work, &code))
        emu_submit(context, stream, work);
    return emu_leave(code);
}

/* Unlike a fill, a kernel's addresses are looked at only while it runs. */
zr_cu_result emu_launch(zr_cu_stream stream, zr_cu_address address, size_t bytes, unsigned char value)
{
    return launch(stream,
                  (struct emu_work){
                      .kind = EMU_FILL, .unchecked = true, .to = address, .bytes = bytes, .value = value});
}

zr_cu_result emu_library_work(zr_cu_stream stream, enum zr_emulator_step (*step)(void *state), void *state,
                              struct zr_emulator_transfer transfer)
{
    return launch(stream,
                  (struct emu_work){.kind = EMU_LIBRARY, .step = step, .state = state, .transfer = transfer});
}

/* ---- Words --------------------------------------------------------------------------------------------- */

/* Of page-locked memory of the program's, which other processes may see, or of a device's. */
static zr_cu_result word(enum emu_call call, zr_cu_stream stream, struct emu_work work, unsigned flags)
{
    zr_cu_result code = emu_enter(call, EMU_CONTEXT);
    struct zr_cu_context_st *context = emu_current();
    work.bytes = sizeof work.word;
    if (code == ZR_CU_SUCCESS && emu_no_stream(&stream, context))
        code = ZR_CU_INVALID_HANDLE;
    if (code == ZR_CU_SUCCESS && (flags || work.to % sizeof work.word ||
                                  emu_place(work.to, work.bytes, context, EMU_WRITES) != EMU_MAPPED))
        code = ZR_CU_INVALID_VALUE;
    if (code == ZR_CU_SUCCESS && !emu_captured(context, stream, &work, &code))
        emu_submit(context, stream, work);
    return emu_leave(code);
}

PUBLIC zr_cu_result cuStreamWaitValue32_v2(zr_cu_stream stream, zr_cu_address address, uint32_t value,
                                           unsigned int flags)
{
    return word(EMU_word_wait, stream,
                (struct emu_work){.kind = EMU_AWAIT_WORD, .to = address, .word = value}, flags);
}

PUBLIC zr_cu_result cuStreamWriteValue32_v2(zr_cu_stream stream, zr_cu_address address, uint32_t value,
                                            unsigned int flags)
{
    return word(EMU_word_write, stream,
                (struct emu_work){.kind = EMU_WRITE_WORD, .to = address, .word = value}, flags);
}

/* ---- Synchronous forms --------------------------------------------------------------------------------- */

/* In the NULL stream, or for programs made so in the thread's own. */
static zr_cu_result copy_in(enum emu_call call, zr_cu_address to, zr_cu_address from, size_t bytes,
                            uintptr_t stream)
{
    zr_cu_result code = emu_enter(call, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? emu_copy(to, from, bytes, (zr_cu_stream)stream, true) : code);
}

static zr_cu_result fill_in(zr_cu_address to, unsigned char value, size_t bytes, uintptr_t stream)
{
    zr_cu_result code = emu_enter(EMU_fill_now, EMU_CONTEXT);
    return emu_leave(code == ZR_CU_SUCCESS ? emu_fill(to, value, bytes, (zr_cu_stream)stream, true) : code);
}

#define ADDRESS(pointer) ((zr_cu_address)(uintptr_t)(pointer))
#define FORMS(suffix, stream)                                                                                \
    PUBLIC zr_cu_result cuMemcpy##suffix(zr_cu_address to, zr_cu_address from, size_t bytes)                 \
    {                                                                                                        \
        return copy_in(EMU_copy_now, to, from, bytes, stream);                                               \
    }                                                                                                        \
    PUBLIC zr_cu_result cuMemcpyHtoD_v2##suffix(zr_cu_address to, const void *from, size_t bytes)            \
    {                                                                                                        \
        return copy_in(EMU_copy_to_device, to, ADDRESS(from), bytes, stream);                                \
    }                                                                                                        \
    PUBLIC zr_cu_result cuMemcpyDtoH_v2##suffix(void *to, zr_cu_address from, size_t bytes)                  \
    {                                                                                                        \
        return copy_in(EMU_copy_to_host, ADDRESS(to), from, bytes, stream);                                  \
    }                                                                                                        \
    PUBLIC zr_cu_result cuMemsetD8_v2##suffix(zr_cu_address to, unsigned char value, size_t bytes)           \
    {                                                                                                        \
        return fill_in(to, value, bytes, stream);                                                            \
    }
FORMS(, 0)
FORMS(_ptds, ZR_CU_STREAM_PER_THREAD)

static zr_cu_stream own(zr_cu_stream stream)
{
    return stream ? stream : (zr_cu_stream)(uintptr_t)ZR_CU_STREAM_PER_THREAD;
}

static const zr_cu_launch_config *own_config(const zr_cu_launch_config *config, zr_cu_launch_config *room)
{
    if (!config)
        return NULL;
    *room = *config;
    room->stream = own(config->stream);
    return room;
}

#define FORM(name, suffix, legacy, parameters, arguments)                                                    \
    PUBLIC zr_cu_result name##suffix parameters                                                              \
    {                                                                                                        \
        return name##legacy arguments;                                                                       \
    }
EMU_PER_THREAD(FORM)
