/* why.c: `zr why`: explains why an allocation failed, which blocks prevent it, and which changes would help.
 * Uses defrag/report/. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/report/call_site.h"
#include "defrag/report/ranks.h"
#include "defrag/report/remedies.h"
#include "defrag/tool/input.h"
#include "defrag/tool/live/clients.h"
#include "defrag/tool/why_reasons.h"

static const char help[] =
    "Explains why an allocation found no room, which blocks stand in its way, and what would have helped.\n"
    "\n"
    "Examples\n"
    "  zr why run.zrt                              the last refused allocation; if none was refused, what memory went to\n"
    "  zr why snapshot.pickle --total 24GiB        with the memory that others hold of a card of 24 GiB\n"
    "  zr why snapshot.pickle --size 2GiB          whether 2 GiB would have fitted at the end\n"
    "  zr why run.zrt --growth                     what grew between the marks of the first and of the last step\n"
    "  zr why snapshot.pickle --size 2GiB --at peak --capacity 24GB\n"
    "  zr why rank*.pickle                         the reasons of each rank, which is the odd one, and where it parts\n"
    "\n"
    "zr why FILE.. [options]\n"
    "  FILE              a .zrt trace, a PyTorch snapshot, an RMM log, a CSV of events or of lifetimes; - is standard input;\n"
    "                    or the number of a process: each of its arenas; 4711/large is one arena\n"
    "  --size BYTES      of the request (default: of the last refused one)\n"
    "  --at MOMENT       " ZR_MOMENT_WORDS " (default: the failure, or else the end)\n"
    "  --capacity BYTES  of the device or the limit (default: reserved plus free memory at the failure, if the snapshot has\n"
    "                    it; else the most that was reserved)\n"
    "  --total BYTES     of the device: what is neither reserved nor free at the failure is held by others\n"
    "  --stream S        of the request (default: that of the refused one, or 0)\n"
    "  --device N        of a snapshot of several devices, or all (default: the first with a refusal, or the most events)\n"
    "  --growth          what grew, by line of code and category: from the first mark to the last (user_metadata, annotate,\n"
    "                    zr_mark), or over the recording; nothing is replayed\n"
    "  --sweep           what PyTorch's allocator would have reserved with each option of PYTORCH_CUDA_ALLOC_CONF; the options'\n"
    "                    values come from the sizes of the file's requests\n"
    "  --no-replay       reasons, blocks in the way, no changes replayed\n"
    "  --replays EVENTS  the most events that all replays run (default 400000000, under a minute)\n"
    "  --unit BYTES      one unit of the sizes in a MiniMalloc CSV (default 1)\n"
    "  --json            JSON instead of text\n"
    "\n"
    "The verdict follows the rules of the file's own allocator: fits, shortage (less is free than requested), fragmentation\n"
    "(enough is free, but not in one piece), stream or pool (a free run is long enough, but belongs to another one), pending\n"
    "(freed memory that a stream may still use would be enough). Each change is replayed from the file's first event, with\n"
    "zr, with zr after it has learned a plan, with PyTorch's allocator and others.\n"
    "\n"
    "Of a failure, and of a file without one, zr why lists the reasons with their bytes and evidence, the largest first:\n"
    "shortage, fragmentation, stream, pool, pending, leak (call sites that only grow), limit, addresses, unmovable, spike,\n"
    "other process, option (a setting of the allocator); without a failure also cached or free, and flush (returned and\n"
    "mapped again).\n"
    "The allocator's own cause, which the flight recorder's file (zr run) has, comes first. Leak and spike are guesses from the\n"
    "allocations before the failure.\n";

/* REPLAYED_EVENTS: about 40 seconds of replays; see try_all() in remedies.c. */
enum {
    DEVICES_MAX = 64,
    PINS_SHOWN = 16,
    FRAMES_SHOWN = 48,
    LINE_ROOM = 800,
    SITE_COLUMNS = 32,
    REPLAYED_EVENTS = 400000000
};

struct settings {
    struct zr_tool_arguments arguments;
    struct zr_tool_reading reading;
    const char *at;
    uint64_t size_bytes, capacity_bytes, stream, total_bytes;
    uint64_t replayed_events; /* the limit on replays */
    const char *device;       /* NULL: one of them */
    bool json, no_replay, growth, sweep, all_devices;
    bool no_pins; /* for the page of zr report */
};

/* The question and the answer for one file. */
struct view {
    struct zr_tool_input input;
    struct zr_question question;
    struct zr_answer answer;
    struct zr_remedies remedies;
    struct zr_sweep sweep;         /* with --sweep */
    struct zr_reasoning reasoning; /* of a failure */
    struct zr_vector pins;         /* struct zr_pin */
    struct zr_vector holders;      /* struct zr_holder: of a failure, or of growth .. */
    struct zr_vector growers;      /* .. who holds more and more, */
    char from[ZR_GROWTH_MARK_BYTES], to[ZR_GROWTH_MARK_BYTES]; /* between these marks; "": none */
    uint64_t records_count;
    uint64_t total_bytes; /* of the device; 0: unknown */
    bool of_failure, of_growth, capacity_assumed, pins_proved;
    bool replaying; /* the remedies are not yet known */
    bool follows;   /* another view */
};

/* ---- The question -------------------------------------------------------------------------------------- */

/* The capacity that the refusal implies: the limit, or reserved plus free device memory; 0: unknown. */
static uint64_t capacity_of(const struct zrt_refusal *refusal)
{
    uint64_t most = UINT64_MAX;
    if (refusal->cause == ZRT_CAUSE_UNKNOWN || refusal->cause == ZRT_CAUSE_TAG_LIMIT)
        return 0;
    if (refusal->limit_bytes)
        most = refusal->limit_bytes;
    if (refusal->device_bytes && refusal->has_more &&
        refusal->device_free_bytes <= UINT64_MAX - refusal->reserved_bytes &&
        refusal->reserved_bytes + refusal->device_free_bytes < most)
        most = refusal->reserved_bytes + refusal->device_free_bytes;
    return most < UINT64_MAX ? most : 0;
}

static zr_result ask(struct view *view, const struct settings *settings)
{
    const struct zr_moments *moments = &view->input.moments;
    const struct zr_record *refused = &moments->refused;
    struct zr_question *question = &view->question;
    view->of_failure = moments->has_failure && !settings->at && settings->size_bytes == 0;
    view->of_growth = settings->size_bytes == 0 && !moments->has_failure;
    view->total_bytes = settings->total_bytes ? settings->total_bytes : moments->refused.total_bytes;
    bool at_failure = moments->has_failure && (!settings->at || strcmp(settings->at, "failure") == 0);
    zr_result result = zr_moment_find(moments, &view->input.recording,
                                      settings->at ? settings->at
                                      : at_failure ? "failure"
                                                   : "now",
                                      &view->records_count);
    if (result != ZR_OK)
        return result;
    question->size_bytes = settings->size_bytes ? settings->size_bytes : refused->bytes;
    question->stream = settings->stream != UINT64_MAX ? settings->stream
                       : moments->has_failure         ? refused->stream
                                                      : 0;
    question->stack = view->of_failure ? refused->stack : 0;
    question->released = view->of_failure && view->input.recording.kind == ZR_RECORDING_TORCH;
    question->capacity_bytes = settings->capacity_bytes;
    if (question->capacity_bytes > 0)
        return ZR_OK;
    if (!view->input.recording.has_maps)
        return zr_fail(ZR_ERR_INVALID, "'%s' does not contain the amount of memory: give --capacity BYTES",
                       view->input.name);
    const struct zrt_refusal *refusal = &moments->refusal;
    uint64_t reserved_bytes = moments->failure.figures.reserved_bytes;
    if (at_failure && (question->capacity_bytes = capacity_of(refusal)) > 0)
        return ZR_OK;
    if (at_failure && refused->free_bytes != UINT64_MAX &&
        refused->free_bytes <= UINT64_MAX - reserved_bytes) {
        question->capacity_bytes = reserved_bytes + refused->free_bytes;
        return ZR_OK;
    }
    view->capacity_assumed = true;
    question->capacity_bytes = moments->peak_reserved_bytes;
    return ZR_OK;
}

/* A file without maps has no free extents, so a replay with best fit answers. */
static void answer_by_replay(struct view *view, const struct zr_memory *memory)
{
    struct zr_answer *answer = &view->answer;
    uint64_t used = memory->live_bytes + memory->pending_bytes, capacity = view->question.capacity_bytes;
    *answer = (struct zr_answer){.size_bytes = view->question.size_bytes,
                                 .free_bytes = capacity > used ? capacity - used : 0,
                                 .unreserved_bytes = capacity > used ? capacity - used : 0,
                                 .live_bytes = memory->live_bytes};
    answer->verdict =
        answer->free_bytes >= answer->size_bytes ? ZR_VERDICT_FRAGMENTATION : ZR_VERDICT_SHORTAGE;
    for (unsigned i = 0; i < view->remedies.count; i++)
        if (strcmp(view->remedies.list[i].change, "bestfit") == 0 && view->remedies.list[i].fits)
            answer->verdict = ZR_VERDICT_FITS;
}

/* What the records before the moment lead to. */
struct passing {
    struct zr_memory memory;
    struct zr_requests requests;
    struct zr_growth growth;
    struct zr_curve curve;
    bool replays; /* the requests are needed */
};

static zr_result pass(void *state, const struct zr_record *record, bool *stop)
{
    struct passing *passing = state;
    (void)stop;
    zr_result result = passing->replays ? zr_requests_take(&passing->requests, record) : ZR_OK;
    if (result == ZR_OK)
        result = zr_curve_take(&passing->curve, record, &passing->memory);
    return result == ZR_OK ? zr_growth_take(&passing->growth, record) : result;
}

/* The most that this process reserved, which shows others if it is more than the capacity at the failure; a
 * smaller capacity of the user's shows nothing. */
static uint64_t most_reserved(const struct view *view, const struct settings *settings)
{
    uint64_t most = view->input.moments.peak_reserved_bytes;
    return settings->capacity_bytes && settings->capacity_bytes < most ? settings->capacity_bytes : most;
}

static bool replays(const struct view *view, const struct settings *settings)
{
    return view->input.recording.has_maps && !view->of_growth && !settings->no_replay && !settings->growth;
}

static zr_result find_remedies(struct view *view, struct passing *passing, const struct settings *settings,
                               const struct zr_remedies_watch *watch)
{
    return zr_remedies_find(&view->remedies, &passing->requests, &passing->memory, &view->question,
                            settings->replayed_events, watch);
}

/* The verdict, the reasons, and who holds what. */
static zr_result answer(struct view *view, struct passing *passing, const struct settings *settings)
{
    struct zr_recording *recording = &view->input.recording;
    const struct zr_memory *memory = &passing->memory;
    zr_result result = zr_moment_reach(&passing->memory, recording, view->records_count,
                                       &(struct zr_recording_sink){pass, passing});
    if (result == ZR_OK && !recording->has_maps && !view->of_growth)
        result = find_remedies(view, passing, settings, NULL); /* the verdict needs them */
    if (result != ZR_OK)
        return result;
    if (recording->has_maps)
        zr_why_answer(&view->answer, memory, &view->question);
    else
        answer_by_replay(view, memory);
    if (!view->of_failure && !view->of_growth)
        return ZR_OK;
    result = zr_reason_find(&view->reasoning, &passing->growth,
                            &(struct zr_failure){.recording = recording,
                                                 .refusal = &view->input.moments.refusal,
                                                 .question = &view->question,
                                                 .answer = &view->answer,
                                                 .total_bytes = view->total_bytes,
                                                 .peak_reserved_bytes = most_reserved(view, settings),
                                                 .tag = view->input.moments.refused.tag});
    memcpy(view->from, passing->growth.from, sizeof view->from);
    memcpy(view->to, passing->growth.to, sizeof view->to);
    if (result == ZR_OK)
        result = zr_growth_list(&passing->growth, &view->growers);
    return result == ZR_OK ? zr_holders_find(&view->holders, &passing->growth) : result;
}

/* The blocks in the way; removes them from the memory. */
static zr_result find_pins(struct view *view, struct passing *passing)
{
    if (view->of_growth || !view->input.recording.has_maps || view->answer.verdict == ZR_VERDICT_FITS)
        return ZR_OK;
    return zr_why_pins(&view->pins, &passing->memory, &view->question, view->answer.verdict,
                       &view->pins_proved);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void json_stack(struct zr_text *text, struct zr_recording *recording, uint32_t stack)
{
    struct zr_frames frames = zr_recording_frames(recording, stack);
    char frame[ZR_FRAME_BYTES];
    zr_text_print(text, "[");
    for (unsigned i = 0; i < FRAMES_SHOWN && zr_frames_next(&frames, recording, frame); i++) {
        zr_text_print(text, i ? ", " : "");
        zr_text_json_string(text, frame, strlen(frame));
    }
    zr_text_print(text, "]");
}

static void json_pins(struct zr_text *text, struct view *view)
{
    zr_text_print(text, " \"pins\": [");
    for (size_t i = 0; i < view->pins.count; i++) {
        const struct zr_pin *pin = zr_vector_at(&view->pins, i);
        zr_text_print(text,
                      "%s\n  {\"address\": %" PRIu64 ", \"bytes\": %" PRIu64
                      ", \"tag\": \"%s\", \"stream\": %" PRIu64,
                      i ? "," : "", pin->address, pin->bytes, zr_tag_name((zr_tag)pin->tag), pin->stream);
        zr_text_print(text, ", \"pending\": %s, \"stack\": ", pin->pending ? "true" : "false");
        json_stack(text, &view->input.recording, pin->stack);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "],\n");
}

static void json_reason(struct zr_text *text, const struct zr_reasoning *own)
{
    if (own->reason == ZR_REASON_NONE) {
        zr_text_print(text, ", \"reason\": null");
        return;
    }
    zr_text_print(text, ",\n \"reason\": \"%s\", \"missing_bytes\": %" PRIu64 ", \"culprit_bytes\": %" PRIu64,
                  zr_reason_name(own->reason), own->missing_bytes, own->culprit_bytes);
    zr_text_print(text, ", \"segments\": %s", own->segments ? "true" : "false");
    const struct zr_reason_evidence *first = own->list;
    if (own->reason == ZR_REASON_LEAK || own->reason == ZR_REASON_SPIKE)
        zr_text_print(text,
                      ", \"kind\": {\"tag\": \"%s\", \"stream\": %" PRIu64 ", \"blocks\": %" PRIu64
                      ", \"live_bytes\": %" PRIu64 ", \"most_bytes\": %" PRIu64 "}",
                      zr_tag_name((zr_tag)first->tag), first->stream, first->blocks_count, first->live_bytes,
                      first->most_bytes);
}

static struct zr_reason_scene scene_of(struct view *view)
{
    return (struct zr_reason_scene){.recording = &view->input.recording,
                                    .reasoning = &view->reasoning,
                                    .question = &view->question,
                                    .cause = view->input.moments.refusal.cause,
                                    .holders = &view->holders,
                                    .growers = &view->growers,
                                    .from = view->from,
                                    .to = view->to,
                                    .remedies = &view->remedies,
                                    .replaying = view->replaying,
                                    .total_known = view->total_bytes > 0};
}

static void json_sweep(struct zr_text *text, const struct view *view)
{
    zr_text_print(text, ",\n \"sweep\": {");
    for (unsigned i = 0; i < view->sweep.count; i++)
        zr_text_print(text, "%s\"%s\": %" PRIu64, i ? ", " : "", view->sweep.list[i].option,
                      view->sweep.list[i].peak_reserved_bytes);
    zr_text_print(text, "},\n \"sweep_driver_calls\": {");
    for (unsigned i = 0; i < view->sweep.count; i++)
        zr_text_print(text, "%s\"%s\": %" PRIu64, i ? ", " : "", view->sweep.list[i].option,
                      view->sweep.list[i].driver_calls);
    zr_text_print(text, "}");
}

static void json_clients(struct zr_text *text, const struct view *view)
{
    static struct zr_services services;
    if (view->of_failure)
        zr_services_read(&services, ZR_SERVICE_AWAITED);
    zr_text_print(text, ",\n \"service\": ");
    zr_services_json(text, &services);
}

static void print_json(struct zr_text *text, struct view *view)
{
    const struct zr_answer *answer = &view->answer;
    bool maps = view->input.recording.has_maps;
    zr_text_print(text, "\"verdict\": \"%s\", \"size_bytes\": %" PRIu64 ", \"free_bytes\": %" PRIu64 ", ",
                  zr_verdict_name(answer->verdict), view->question.size_bytes, answer->free_bytes);
    zr_tool_json_number(text, "largest_free_run_bytes", answer->largest_free_run_bytes, maps);
    zr_text_print(text, ",\n");
    json_pins(text, view);
    zr_text_print(text, " \"remedies\": [");
    for (unsigned i = 0; i < view->remedies.count; i++) {
        const struct zr_remedy *remedy = &view->remedies.list[i];
        zr_text_print(text, "%s\n  {\"change\": \"%s\", \"fits\": %s, \"peak_reserved_bytes\": %" PRIu64,
                      i ? "," : "", remedy->change, remedy->fits ? "true" : "false",
                      remedy->peak_reserved_bytes);
        zr_text_print(text, ", \"short_bytes\": %" PRIu64 ", \"where\": ", remedy->short_bytes);
        if (remedy->where[0])
            zr_text_json_string(text, remedy->where, strlen(remedy->where));
        else
            zr_text_print(text, "null");
        zr_text_print(text, "}");
    }
    zr_text_print(text, "],\n \"not_replayed\": [");
    for (unsigned i = 0; i < view->remedies.left_out_count; i++)
        zr_text_print(text, "%s\"%s\"", i ? ", " : "", view->remedies.left_out[i]);
    zr_text_print(text, "],\n \"capacity_bytes\": %" PRIu64 ", \"capacity_assumed\": %s",
                  view->question.capacity_bytes, view->capacity_assumed ? "true" : "false");
    zr_text_print(text, ", \"stream\": %" PRIu64 ", \"events\": %" PRIu64 ", \"pins_proved\": %s, ",
                  view->question.stream, view->records_count, view->pins_proved ? "true" : "false");
    zr_tool_json_number(text, "releasable_bytes", answer->releasable_bytes, maps);
    zr_text_print(text, ", ");
    zr_tool_json_number(text, "pending_bytes", answer->pending_bytes, view->input.recording.has_pending);
    struct zr_reason_scene scene = scene_of(view);
    if (view->input.recording.devices_count > 0)
        zr_text_print(text, ", \"device\": %d, \"devices\": %d", view->input.recording.device,
                      view->input.recording.devices_count);
    json_reason(text, &view->reasoning);
    zr_reasons_json(text, &scene);
    zr_holders_json(text, &scene);
    zr_growth_json(text, &scene);
    if (view->sweep.count > 0)
        json_sweep(text, view);
    json_clients(text, view);
    zr_text_print(text, "}");
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

static const char *reason(const struct view *view)
{
    const struct zr_answer *answer = &view->answer;
    switch (answer->verdict) {
    case ZR_VERDICT_FITS:
        if (view->of_failure && view->reasoning.reason != ZR_REASON_NONE)
            return "enough is free; the reason above kept the request out";
        if (view->of_failure)
            return "there is room: the request was refused for another reason (a limit of its tag, addresses, another process), or more was free than is assumed";
        return answer->largest_free_run_bytes >= answer->size_bytes ? "a free run is long enough"
               : view->input.recording.has_maps                     ? "after releasable memory is returned"
                                                                    : "by replaying the log with best fit";
    case ZR_VERDICT_SHORTAGE:
        return "less is free than requested";
    case ZR_VERDICT_FRAGMENTATION:
        return "enough is free, but not in one piece";
    case ZR_VERDICT_STREAM:
        return "a free run is long enough, but belongs to another stream";
    case ZR_VERDICT_POOL:
        return "a free run is long enough, but belongs to another pool";
    default:
        return "freed memory that a stream may still use would be enough";
    }
}

static void print_pins(struct zr_text *text, struct view *view)
{
    char room[ZR_TOOL_NUMBER_ROOM], stack[ZR_FRAME_BYTES];
    uint64_t bytes = 0;
    for (size_t i = 0; i < view->pins.count; i++)
        bytes += ((const struct zr_pin *)zr_vector_at(&view->pins, i))->bytes;
    if (view->pins.count == 0)
        return;
    zr_text_print(text, "\n%zu block%s of %s in all: without %s it would fit%s\n", view->pins.count,
                  view->pins.count == 1 ? "" : "s", zr_tool_bytes(room, bytes),
                  view->pins.count == 1 ? "it" : "them", view->pins_proved ? "" : " nearly");
    for (size_t i = 0; i < view->pins.count && i < PINS_SHOWN; i++) {
        const struct zr_pin *pin = zr_vector_at(&view->pins, i);
        zr_text_print(text, "  0x%-16" PRIx64 " %10s  %s%s", pin->address, zr_tool_bytes(room, pin->bytes),
                      zr_tag_name((zr_tag)pin->tag), pin->pending ? ", pending" : "");
        if (zr_tool_short_stack(&view->input.recording, pin->stack, SITE_COLUMNS, stack)) {
            zr_text_print(text, "  ");
            zr_text_put_plain(text, stack);
        }
        zr_text_print(text, "\n");
    }
    if (view->pins.count > PINS_SHOWN)
        zr_text_print(text, "  and %zu more (--json has them)\n", view->pins.count - PINS_SHOWN);
}

static void print_remedy(struct zr_text *text, const struct zr_remedy *remedy)
{
    char room[ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "  %-11s ", remedy->change);
    if (remedy->fits)
        zr_text_print(text, "fits%s %s", strcmp(remedy->change, "capacity") == 0 ? " in" : ", reserving",
                      zr_tool_bytes(room, remedy->peak_reserved_bytes));
    else
        zr_text_print(text, "short by %s", zr_tool_bytes(room, remedy->short_bytes));
    if (!remedy->fits && remedy->where[0]) {
        zr_text_print(text, " in ");
        zr_text_put_plain(text, remedy->where);
    }
    zr_text_print(text, "\n");
}

/* Shows each remedy when its replay ends. */
static void show_remedy(void *state, const struct zr_remedy *remedy)
{
    struct zr_text *text = state;
    zr_tool_progress_say(NULL);
    print_remedy(text, remedy);
    zr_text_flush(text);
}

/* What the limit left out, and the change that the replays decide. */
static void end_remedies(struct zr_text *text, struct view *view)
{
    const struct zr_remedies *all = &view->remedies;
    for (unsigned i = 0; i < all->left_out_count; i++)
        zr_text_print(text, "%s%s", i ? ", " : "  not replayed, beyond --replays: ", all->left_out[i]);
    zr_text_print(text, all->left_out_count ? "\n" : "");
    if (!view->replaying)
        return;
    view->replaying = false;
    struct zr_reason_scene scene = scene_of(view);
    zr_reasons_print_replayed(text, &scene);
}

static void print_sweep(struct zr_text *text, const struct view *view)
{
    char room[ZR_TOOL_NUMBER_ROOM];
    if (view->sweep.count > 0)
        zr_text_print(text, "\nReserved at most with PYTORCH_CUDA_ALLOC_CONF, replayed without a limit\n");
    for (unsigned i = 0; i < view->sweep.count; i++)
        zr_text_print(text, "  %-32s %10s  %8" PRIu64 " driver calls\n", view->sweep.list[i].option,
                      zr_tool_bytes(room, view->sweep.list[i].peak_reserved_bytes),
                      view->sweep.list[i].driver_calls);
}

/* For a failure: the current clients of the allocator service. */
static void print_clients(struct zr_text *text, const struct view *view)
{
    static struct zr_services services;
    char words[ZR_CLIENTS_LINE_ROOM];
    if (!view->of_failure)
        return;
    zr_services_read(&services, ZR_SERVICE_AWAITED);
    for (unsigned s = 0; s < services.count; s++) {
        const struct zr_clients *clients = &services.each[s];
        if (!clients->served || clients->count == 0)
            continue;
        zr_text_print(text, "now %s:\n", zr_clients_words(words, clients));
        for (unsigned i = 0; i < clients->count && i < PINS_SHOWN; i++)
            zr_text_print(text, "  %s\n", zr_client_words(words, &clients->rows[i]));
    }
}

static void print_title(struct zr_text *text, const struct view *view)
{
    char words[LINE_ROOM], room[ZR_TOOL_NUMBER_ROOM], device[80] = "";
    const struct zr_recording *recording = &view->input.recording;
    if (recording->devices_count > 1)
        snprintf(device, sizeof device, ", on device %d of 0 to %d (--device)", recording->device,
                 recording->devices_count - 1);
    if (view->of_growth)
        snprintf(words, sizeof words, "%.500s: no request was refused; after %" PRIu64 " events%s",
                 view->input.name, view->records_count, device);
    else
        snprintf(words, sizeof words, "%.500s: %s%s on stream %" PRIu64 ", after %" PRIu64 " events%s",
                 view->input.name, zr_tool_bytes(room, view->question.size_bytes),
                 view->of_failure ? ", refused," : "", view->question.stream, view->records_count, device);
    zr_tool_put_wrapped(text, 0, 2, words);
}

static void print_free(struct zr_text *text, const struct view *view)
{
    const struct zr_answer *answer = &view->answer;
    char words[LINE_ROOM], room[5][ZR_TOOL_NUMBER_ROOM];
    int at = snprintf(words, sizeof words, "free %s of %s%s", zr_tool_bytes(room[0], answer->free_bytes),
                      zr_tool_bytes(room[1], view->question.capacity_bytes),
                      view->capacity_assumed ? " (most reserved; --capacity sets it)" : "");
    if (view->input.recording.has_maps)
        at += snprintf(words + at, sizeof words - (size_t)at,
                       "; the longest free run %s, releasable %s, not reserved %s",
                       zr_tool_bytes(room[2], answer->largest_free_run_bytes),
                       zr_tool_bytes(room[3], answer->releasable_bytes),
                       zr_tool_bytes(room[4], answer->unreserved_bytes));
    if (answer->pending_bytes > 0)
        snprintf(words + at, sizeof words - (size_t)at, ", pending %s",
                 zr_tool_bytes(room[2], answer->pending_bytes));
    zr_tool_put_wrapped(text, 2, 2, words);
}

/* What is known before any replay. */
static void print_reasons(struct zr_text *text, struct view *view, const struct settings *settings)
{
    struct zr_reason_scene scene = scene_of(view);
    char words[LINE_ROOM];
    print_title(text, view);
    zr_reasons_print(text, &scene);
    snprintf(words, sizeof words, "%s: %s", zr_verdict_name(view->answer.verdict), reason(view));
    if (!view->of_growth)
        zr_tool_put_wrapped(text, 0, 2, words);
    print_free(text, view);
    if (!settings->growth)
        zr_holders_print(text, &scene);
    if (settings->growth || view->of_growth)
        zr_growth_print(text, &scene);
}

/* ---- The subcommand ------------------------------------------------------------------------------------ */

/* What is known before any replay, and the list of remedies' head. */
static void print_first(struct zr_text *text, struct view *view, const struct settings *settings)
{
    zr_text_print(text, view->follows ? "\n" : "");
    print_reasons(text, view, settings);
    if (view->replaying || view->remedies.count > 0)
        zr_text_print(text, "\nWith a change, replayed from the first event on\n");
    for (unsigned i = 0; i < view->remedies.count; i++)
        print_remedy(text, &view->remedies.list[i]);
    zr_text_flush(text);
}

/* Finds everything; in words (text is not NULL) prints each part when it is known. */
static zr_result explain(struct view *view, struct passing *passing, const struct settings *settings,
                         struct zr_text *text)
{
    const struct zr_remedies_watch watch = {zr_tool_progress_say, text ? show_remedy : NULL, text};
    zr_result result = answer(view, passing, settings);
    if (result != ZR_OK)
        return result;
    view->replaying =
        view->input.recording.has_maps && !view->of_growth && !settings->no_replay && !settings->growth;
    if (text)
        print_first(text, view, settings);
    if (view->replaying)
        result = find_remedies(view, passing, settings, &watch);
    if (text)
        end_remedies(text, view);
    if (result == ZR_OK && settings->sweep)
        result = zr_remedies_sweep(&view->sweep, &passing->requests, &view->input.recording,
                                   view->question.capacity_bytes, zr_tool_progress_say);
    if (text && result == ZR_OK)
        print_sweep(text, view);
    if (result == ZR_OK && !settings->growth && !settings->no_pins)
        result = find_pins(view, passing);
    if (text && result == ZR_OK) {
        print_pins(text, view);
        print_clients(text, view);
    }
    return result;
}

/* Explains what was read; *curve is the caller's to end. */
static zr_result look_at_input(struct view *view, const struct settings *settings, zr_arena *arena,
                               struct zr_text *text, struct zr_curve *curve)
{
    struct passing passing = {0};
    zr_result result = ask(view, settings);
    if (result != ZR_OK)
        return result;
    passing.replays = replays(view, settings) || !view->input.recording.has_maps || settings->sweep;
    zr_curve_init(&passing.curve, view->records_count, arena);
    zr_requests_init(&passing.requests, view->input.recording.path, arena);
    zr_growth_init(&passing.growth, &view->input.recording, &passing.memory, view->records_count,
                   view->of_failure ? view->input.moments.failure_marks_count
                                    : view->input.moments.marks_count);
    result = explain(view, &passing, settings, text);
    *curve = passing.curve;
    zr_growth_end(&passing.growth);
    zr_requests_end(&passing.requests);
    zr_memory_end(&passing.memory);
    return result;
}

static void begin_view(struct view *view, struct zr_curve *curve, zr_arena *arena)
{
    zr_curve_init(curve, 0, arena);
    zr_vector_init(&view->pins, arena, sizeof(struct zr_pin));
    zr_vector_init(&view->holders, arena, sizeof(struct zr_holder));
    zr_vector_init(&view->growers, arena, sizeof(struct zr_holder));
}

/* Explains a file, or one device of it; *curve is the caller's to end. */
static zr_result look(struct view *view, const char *file, const struct settings *settings, zr_arena *arena,
                      struct zr_text *text, struct zr_curve *curve)
{
    begin_view(view, curve, arena);
    zr_result result = zr_tool_input_open(&view->input, file, &settings->reading, arena);
    return result == ZR_OK ? look_at_input(view, settings, arena, text, curve) : result;
}

static void end_answer(struct view *view)
{
    zr_vector_end(&view->pins);
    zr_vector_end(&view->holders);
    zr_vector_end(&view->growers);
}

static void end_view(struct view *view)
{
    end_answer(view);
    zr_tool_input_end(&view->input);
}

/* ---- The page of zr report ----------------------------------------------------------------------------- */

zr_result zr_why_reasons(struct zr_tool_input *input, struct zr_text *text, zr_arena *arena)
{
    static const struct settings settings = {.stream = UINT64_MAX, .no_replay = true, .no_pins = true};
    struct view view = {.input = *input}; /* moved there and back: only one of the two is used at a time */
    struct zr_curve curve;
    if (!input->recording.has_maps)
        return ZR_OK;
    begin_view(&view, &curve, arena);
    zr_result result = look_at_input(&view, &settings, arena, NULL, &curve);
    if (result == ZR_OK) {
        struct zr_reason_scene scene = scene_of(&view);
        zr_reasons_json(text, &scene);
        result = text->result;
    }
    zr_curve_end(&curve);
    end_answer(&view);
    *input = view.input;
    return result;
}

/* ---- Several files ------------------------------------------------------------------------------------- */

/* What is looked at: ranks, devices of a file, arenas of a process. */
struct looking {
    const struct settings *settings;
    zr_arena *arena;
    struct zr_tool_names names;
    struct zr_vector views;    /* struct view; room is reserved, because a view must not move */
    struct zr_vector curves;   /* struct zr_curve: of each file */
    struct zr_text *text;      /* NULL: JSON, printed at the end */
    size_t looked;             /* files or devices so far */
    int device, devices_count; /* of the last file: shown, in the file */
    bool is_list, has_ranks, has_odd;
    struct zr_odd_rank odd;
};

static zr_result look_at(struct looking *own, const char *file, const struct settings *settings,
                         zr_result accepted)
{
    struct zr_curve curve;
    bool follows = own->looked++ > 0;
    struct view *view = memset(zr_vector_at(&own->views, own->views.count), 0, sizeof(struct view));
    own->views.count++;
    view->input.source.fd = -1;
    view->follows = follows;
    zr_result result = look(view, file, settings, own->arena, own->text, &curve);
    if (result == ZR_OK && own->has_ranks)
        result = zr_vector_add(&own->curves, &curve);
    else
        zr_curve_end(&curve);
    own->device = view->input.recording.device;
    own->devices_count = view->input.recording.devices_count;
    if (own->text || (result == accepted && result != ZR_OK)) { /* it is printed, or there is nothing */
        end_view(view);
        own->views.count--;
    }
    return result == accepted ? ZR_OK : result;
}

/* After the first view: the other devices of its file that have events or segments. */
static zr_result look_at_devices(struct looking *own)
{
    struct settings settings = *own->settings;
    zr_result result = look_at(own, zr_tool_name(&own->names, 0), &settings, ZR_OK);
    const int first = own->device, count = own->devices_count;
    for (int device = 0; device < count && device < DEVICES_MAX && result == ZR_OK; device++) {
        settings.reading.device = (uint64_t)device;
        if (device != first)
            result = look_at(own, zr_tool_name(&own->names, 0), &settings, ZR_ERR_FORMAT);
    }
    return result;
}

static void print_ranks(const struct looking *own, struct zr_text *text)
{
    const struct zr_odd_rank odd = own->odd;
    const bool found = own->has_odd;
    char words[LINE_ROOM], place[160], room[4][ZR_TOOL_NUMBER_ROOM];
    if (found && odd.by_marks)
        snprintf(place, sizeof place, "mark '%s'", odd.label);
    else
        snprintf(place, sizeof place, "sixteenth %zu of the events", odd.point + 1);
    if (!own->text) {
        zr_text_print(text, ",\n \"odd_rank\": ");
        if (!found) {
            zr_text_print(text, "null");
            return;
        }
        zr_text_print(text, "{");
        zr_tool_json_words(text, "file", zr_tool_name(&own->names, odd.rank));
        zr_text_print(text, ", ");
        zr_tool_json_words(text, "parted_at", place);
        zr_text_print(text, ", \"bytes\": %" PRIu64 ", \"others_bytes\": %" PRIu64 "}", odd.most_bytes,
                      odd.others_bytes);
        return;
    }
    if (found)
        snprintf(
            words, sizeof words,
            "%.400s is the odd one of %zu: it parts at %s, where it has up to %s live and the median is %s; later up to %s beside %s",
            zr_tool_name(&own->names, odd.rank), own->curves.count, place,
            zr_tool_bytes(room[0], odd.most_bytes), zr_tool_bytes(room[1], odd.others_bytes),
            zr_tool_bytes(room[2], odd.largest_bytes), zr_tool_bytes(room[3], odd.usual_bytes));
    else
        snprintf(words, sizeof words,
                 "none of the %zu is the odd one: no distance from the median stands out", own->curves.count);
    zr_text_print(text, "\n");
    zr_tool_put_wrapped(text, 0, 2, words);
}

static void print_all_json(struct looking *own, struct zr_text *text)
{
    zr_text_print(text, "{\"version\": 1, %s", own->is_list ? "\"results\": [" : "");
    for (size_t i = 0; i < own->views.count; i++) {
        struct view *view = zr_vector_at(&own->views, i);
        if (own->is_list) {
            zr_text_print(text, i ? ",\n {" : "\n {");
            zr_tool_json_words(text, "file", view->input.name);
            zr_text_print(text, ", ");
        }
        print_json(text, view);
    }
    zr_text_print(text, own->is_list ? "\n]" : "");
    if (own->has_ranks)
        print_ranks(own, text);
    zr_text_print(text, own->is_list ? "}\n" : "\n");
}

static zr_result look_at_all(struct looking *own)
{
    zr_result result = zr_vector_reserve(&own->views, own->names.list.count + DEVICES_MAX);
    if (result == ZR_OK && own->settings->all_devices)
        return look_at_devices(own);
    for (size_t i = 0; i < own->names.list.count && result == ZR_OK; i++)
        result = look_at(own, zr_tool_name(&own->names, i), own->settings, ZR_OK);
    if (result == ZR_OK && own->has_ranks)
        own->has_odd = zr_ranks_compare(&own->curves, &own->odd, &result);
    return result;
}

static zr_result work(void *state, zr_arena *arena, int *code)
{
    const struct settings *settings = state;
    struct looking own = {.settings = settings, .arena = arena};
    struct zr_tool_output out;
    zr_tool_output_start(&out);
    own.text = settings->json ? NULL : &out.text; /* words are printed as they are found */
    zr_vector_init(&own.views, arena, sizeof(struct view));
    zr_vector_init(&own.curves, arena, sizeof(struct zr_curve));
    zr_result result = zr_tool_names_make(&own.names, &settings->arguments, arena);
    own.has_ranks = settings->arguments.files_count > 1 && !own.names.has_process;
    own.is_list = own.names.has_process || settings->all_devices || own.has_ranks;
    if (result == ZR_OK)
        result = look_at_all(&own);
    if (result == ZR_OK && settings->json)
        print_all_json(&own, &out.text);
    if (result == ZR_OK && !settings->json && own.has_ranks)
        print_ranks(&own, &out.text);
    if (result == ZR_OK || !settings->json)
        *code = zr_tool_output_end(&out);
    for (size_t i = 0; i < own.views.count; i++)
        end_view(zr_vector_at(&own.views, i));
    for (size_t i = 0; i < own.curves.count; i++)
        zr_curve_end(zr_vector_at(&own.curves, i));
    zr_vector_end(&own.curves);
    zr_vector_end(&own.views);
    zr_tool_names_end(&own.names);
    return result;
}

int zr_tool_why(int argc, char **argv)
{
    struct settings settings = {.reading = {.device = UINT64_MAX, .held = true},
                                .replayed_events = REPLAYED_EVENTS,
                                .stream = UINT64_MAX};
    const struct zr_tool_option options[] = {
        {"--size", ZR_TOOL_BYTES, &settings.size_bytes},
        {"--at", ZR_TOOL_TEXT, &settings.at},
        {"--capacity", ZR_TOOL_BYTES, &settings.capacity_bytes},
        {"--stream", ZR_TOOL_COUNT, &settings.stream},
        {"--device", ZR_TOOL_TEXT, &settings.device},
        {"--total", ZR_TOOL_BYTES, &settings.total_bytes},
        {"--sweep", ZR_TOOL_FLAG, &settings.sweep},
        {"--growth", ZR_TOOL_FLAG, &settings.growth},
        {"--no-replay", ZR_TOOL_FLAG, &settings.no_replay},
        {"--replays", ZR_TOOL_COUNT, &settings.replayed_events},
        {"--unit", ZR_TOOL_BYTES, &settings.reading.unit_bytes},
        {"--json", ZR_TOOL_FLAG, &settings.json},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    settings.arguments = (struct zr_tool_arguments){.help = help, .options = options, .takes_files = true};
    int code = zr_tool_parse(&settings.arguments, argc, argv);
    if (code >= 0)
        return code;
    settings.no_replay |= settings.arguments.files_count > 1; /* of ranks the reasons are compared */
    if (settings.arguments.files_count > 1)
        settings.reading.held = false; /* of many ranks only one is in memory */
    settings.all_devices = settings.device && strcmp(settings.device, "all") == 0;
    if (settings.all_devices && settings.arguments.files_count > 1) {
        zr_tool_log("why: --device all takes one file");
        return ZR_TOOL_USAGE;
    }
    if (settings.device && !settings.all_devices) {
        char *end;
        settings.reading.device = strtoull(settings.device, &end, 10);
        if (end == settings.device || *end || *settings.device == '-') {
            zr_tool_log("why: --device takes a number or all, not '%.40s'", settings.device);
            return ZR_TOOL_USAGE;
        }
    }
    return zr_tool_with_memory(work, &settings);
}
