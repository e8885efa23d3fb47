/* why_reasons.c: evidence and remedies of zr why in words. Uses defrag/report/reason.h. */
#include "defrag/tool/why_reasons.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "defrag/report/call_site.h"
#include "defrag/tool/input.h"

/* HOLDERS_IN_WORDS: so that reasons, holders and first remedies fit on a terminal of 24 lines. */
enum { FRAMES_SHOWN = 48, WORDS_BYTES = 800, SITE_COLUMNS = 56, HOLDERS_SHOWN = 10, HOLDERS_IN_WORDS = 5 };

/* The sizes of a reason as text. */
struct sizes {
    char bytes[ZR_TOOL_NUMBER_ROOM], of[ZR_TOOL_NUMBER_ROOM], most[ZR_TOOL_NUMBER_ROOM],
        live[ZR_TOOL_NUMBER_ROOM], missing[ZR_TOOL_NUMBER_ROOM], capacity[ZR_TOOL_NUMBER_ROOM];
};

static struct sizes sizes_of(const struct zr_reason_scene *scene, const struct zr_reason_evidence *one)
{
    struct sizes sizes;
    zr_tool_bytes(sizes.bytes, one->bytes);
    zr_tool_bytes(sizes.of, one->of_bytes);
    zr_tool_bytes(sizes.most, one->most_bytes);
    zr_tool_bytes(sizes.live, one->live_bytes);
    zr_tool_bytes(sizes.missing, scene->reasoning->missing_bytes);
    zr_tool_bytes(sizes.capacity, scene->question->capacity_bytes);
    return sizes;
}

static bool is_torch(const struct zr_reason_scene *scene)
{
    return scene->recording->kind == ZR_RECORDING_TORCH;
}

/* " (workspace, stream 0, forward (model.py:40))". */
static void put_site(char *out, size_t room, const struct zr_reason_scene *scene,
                     const struct zr_reason_evidence *one)
{
    char stack[ZR_FRAME_BYTES];
    bool has = one->stack && zr_tool_short_stack(scene->recording, one->stack, SITE_COLUMNS, stack);
    if (is_torch(scene))
        snprintf(out, room, "%s%.300s", has ? " by " : "", has ? stack : "");
    else
        snprintf(out, room, " (%s, stream %" PRIu64 "%s%.300s)", zr_tag_name((zr_tag)one->tag), one->stream,
                 has ? ", " : "", has ? stack : "");
}

static void say_pool(char *out, const struct zr_reason_scene *scene, const struct zr_reason_evidence *one,
                     const struct sizes *sizes)
{
    char stack[ZR_FRAME_BYTES] = "";
    if (one->blocks_count == 0) {
        if (is_torch(scene))
            snprintf(out, WORDS_BYTES, "a free run is long enough, but belongs to another pool");
        else
            snprintf(out, WORDS_BYTES, "a contiguous pool keeps %s without blocks", sizes->bytes);
        return;
    }
    bool has = one->stack && zr_tool_short_stack(scene->recording, one->stack, SITE_COLUMNS, stack);
    /* The number is that of (0, N), or of (N, M) in base 65599. */
    snprintf(
        out, WORDS_BYTES,
        "%s are free in %" PRIu64
        " private pool%s (CUDA graphs, MemPool), which only their owners use; the largest is (%u, %u)%s%.300s",
        sizes->bytes, one->blocks_count, one->blocks_count == 1 ? "" : "s", one->pool / 65599,
        one->pool % 65599, has ? ", mapped by " : "", has ? stack : "");
}

static void say_option(char *out, const struct zr_reason_scene *scene, const struct sizes *sizes)
{
    const struct zr_torch_settings *settings = &scene->recording->settings;
    char bytes[ZR_TOOL_NUMBER_ROOM];
    if (settings->max_split_bytes > 0)
        snprintf(
            out, WORDS_BYTES,
            "max_split_size of %s keeps larger blocks whole: %s of their bytes are beyond the requests in them",
            zr_tool_bytes(bytes, settings->max_split_bytes), sizes->bytes);
    else
        snprintf(out, WORDS_BYTES, "roundup_power2_divisions adds %s to the requests of %s", sizes->bytes,
                 sizes->of);
}

static void say_twins(char *out, const struct zr_reason_scene *scene, const struct zr_twins *twins,
                      const struct sizes *sizes)
{
    char again[ZR_TOOL_NUMBER_ROOM], weights[ZR_FRAME_BYTES] = "", stack[ZR_FRAME_BYTES] = "";
    zr_tool_short_stack(scene->recording, twins->weights->stack, SITE_COLUMNS, weights);
    zr_tool_short_stack(scene->recording, twins->again->stack, SITE_COLUMNS, stack);
    snprintf(out, WORDS_BYTES, "%s of %s are live, weights twice: %s by %.200s beside those by %.200s",
             sizes->live, sizes->of, zr_tool_bytes(again, twins->again->bytes), stack, weights);
}

/* The evidence of a reason, in one line. */
static void say_evidence(char *out, const struct zr_reason_scene *scene, const struct zr_reason_evidence *one)
{
    struct sizes sizes = sizes_of(scene, one);
    char site[400];
    struct zr_twins twins;
    put_site(site, sizeof site, scene, one);
    switch (one->reason) {
    case ZR_REASON_PENDING:
        snprintf(out, WORDS_BYTES, "%s are freed, and a stream may still use them", sizes.bytes);
        break;
    case ZR_REASON_UNMOVABLE:
        snprintf(out, WORDS_BYTES, "%s are free on granules that are registered, exported or fixed",
                 sizes.bytes);
        break;
    case ZR_REASON_POOL:
        say_pool(out, scene, one, &sizes);
        break;
    case ZR_REASON_STREAM:
        snprintf(out, WORDS_BYTES, "%s are free in segments of other streams than %" PRIu64, sizes.bytes,
                 scene->question->stream);
        break;
    case ZR_REASON_LEAK:
        snprintf(out, WORDS_BYTES,
                 "%" PRIu64 " blocks of up to %s%s came over the recording and stayed: %s live%s; growth %s",
                 one->blocks_count, sizes.most, site, sizes.live,
                 one->sites_count > 1 ? ", and other lines" : "", sizes.bytes);
        break;
    case ZR_REASON_SPIKE:
        snprintf(out, WORDS_BYTES, "one block of %s%s is %s larger than any other", sizes.most, site,
                 sizes.of);
        break;
    case ZR_REASON_LIMIT:
        zr_tool_bytes(sizes.of, scene->reasoning->culprit_bytes);
        snprintf(out, WORDS_BYTES, "%s more than the %s of %s leaves", sizes.missing,
                 scene->cause == ZRT_CAUSE_TAG_LIMIT ? "tag's limit" : "limit", sizes.of);
        break;
    case ZR_REASON_ADDRESSES:
        snprintf(out, WORDS_BYTES,
                 scene->cause == ZRT_CAUSE_MAPPINGS ? "the system's mappings are exhausted"
                                                    : "the arena's addresses are exhausted, not its memory");
        break;
    case ZR_REASON_OTHER_PROCESS:
        snprintf(out, WORDS_BYTES,
                 "%s of the device's %s are held outside (processes, contexts, libraries), and %s is missing",
                 sizes.bytes, sizes.of, sizes.missing);
        break;
    case ZR_REASON_FRAGMENTATION:
        snprintf(out, WORDS_BYTES, "%s are free in pieces between live blocks",
                 one->of_bytes ? sizes.of : sizes.bytes);
        break;
    case ZR_REASON_OPTION:
        say_option(out, scene, &sizes);
        break;
    case ZR_REASON_CACHED:
        snprintf(out, WORDS_BYTES,
                 "%s of %s reserved are free and cached: other libraries and processes cannot have them",
                 sizes.bytes, sizes.of);
        break;
    case ZR_REASON_FREE:
        snprintf(out, WORDS_BYTES, "%s of %s reserved are free", sizes.bytes, sizes.of);
        break;
    case ZR_REASON_FLUSH:
        snprintf(out, WORDS_BYTES,
                 "%s were returned to the driver in %" PRIu64
                 " calls, and mapped again, with at most %s reserved",
                 sizes.bytes, one->blocks_count, sizes.of);
        break;
    default:
        if (is_torch(scene) && zr_holders_twins(scene->holders, &twins))
            say_twins(out, scene, &twins, &sizes);
        else if (one->live_bytes)
            snprintf(out, WORDS_BYTES, "%s of %s are live, and %s %s%s", sizes.live, sizes.of,
                     scene->reasoning->missing_bytes ? sizes.missing : "the request",
                     scene->reasoning->missing_bytes ? "is missing"
                                                     : "exceeds what an allocator can use of the rest",
                     scene->total_known || !is_torch(scene) ? ""
                                                            : "; --total BYTES of the card shows others");
        else
            snprintf(out, WORDS_BYTES, "%s more than there is", sizes.missing);
    }
}

/* Whether a replay with the change has shown that the request fits. */
static bool fits(const struct zr_reason_scene *scene, const char *change)
{
    for (unsigned i = 0; i < scene->remedies->count; i++)
        if (strcmp(scene->remedies->list[i].change, change) == 0)
            return scene->remedies->list[i].fits;
    return false;
}

/* Whether the largest holder is activations of an evaluation, of several blocks. */
static bool keeps_evaluation(const struct zr_reason_scene *scene)
{
    const struct zr_holder *largest = scene->holders->count > 0 ? zr_vector_at(scene->holders, 0) : NULL;
    return largest && largest->evaluates && largest->role == ZR_ROLE_FORWARD && largest->blocks_count > 1;
}

/* For PyTorch: what to write where. NULL: the advice for zr. */
static const char *torch_change(const struct zr_reason_scene *scene, const struct zr_reason_evidence *one)
{
    const struct zr_recording *recording = scene->recording;
    struct zr_twins twins;
    enum zr_role role;
    switch (one->reason) {
    case ZR_REASON_FRAGMENTATION:
        return recording->expandable || (fits(scene, "zr") && !fits(scene, "expandable"))
                   ? "zr's memory: zr run --cuda -- PROGRAM, or the plug-in; expandable segments do not suffice"
                   : "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    case ZR_REASON_LEAK:
        role = zr_role_of(scene->recording, one->stack);
        if (role == ZR_ROLE_LOADING || role == ZR_ROLE_OPTIMIZER)
            return "del model and optimizer of a round before the next one makes its own; an exception's traceback keeps them, too";
        return "keep numbers, not tensors: .item() or .detach() there, or .cpu() for outputs";
    case ZR_REASON_POOL:
        return "capture the graphs with one pool (pool=torch.cuda.graph_pool_handle()), or capture fewer shapes";
    case ZR_REASON_PENDING:
        return "wait for the stream before the request, or keep tensors until wait_stream() instead of record_stream()";
    case ZR_REASON_STREAM:
        return "torch.cuda.empty_cache() after the work on that stream, or make the temporaries on the request's stream";
    case ZR_REASON_OTHER_PROCESS:
        return "nvidia-smi shows them: end them, or take another card";
    case ZR_REASON_SPIKE:
        return "compute it in parts (chunks of the sequence or the batch), or in 16 bits";
    case ZR_REASON_OPTION:
        return recording->settings.max_split_bytes == 0 ? "leave out roundup_power2_divisions"
               : fits(scene, "no options")              ? "leave out max_split_size_mb"
                                           : "leave out max_split_size_mb, and set expandable_segments:True";
    case ZR_REASON_CACHED:
        return "torch.cuda.empty_cache() before they allocate, or garbage_collection_threshold:0.8";
    case ZR_REASON_FLUSH:
        return "leave out torch.cuda.empty_cache() in the loop";
    case ZR_REASON_SHORTAGE:
        return !zr_holders_twins(scene->holders, &twins)
                   ? keeps_evaluation(scene)
                         ? "evaluate under torch.no_grad() or inference_mode(): activations are kept for a backward"
                         : NULL
               : twins.again->is_file
                   ? "torch.load(.., map_location=\"cpu\"), or delete the checkpoint after load_state_dict()"
                   : "free the first copy before the second is made";
    default:
        return NULL;
    }
}

/* Advice for the reason. */
static const char *change_for(const struct zr_reason_scene *scene, const struct zr_reason_evidence *one)
{
    static const char *const changes[ZR_REASON_COUNT] = {
        [ZR_REASON_PENDING] =
            "let the streams pass before the request: synchronize, or end a capture that holds them",
        [ZR_REASON_UNMOVABLE] =
            "deregister buffers that are free (zr_arena_set_granule_class()), or register fewer",
        [ZR_REASON_POOL] = "trim the pool (zr_contiguous_trim()), or let it keep less (keep_bytes)",
        [ZR_REASON_STREAM] = "allocate on that stream, or empty the allocator's cache",
        [ZR_REASON_LEAK] = "find which code keeps them; more memory only delays the failure",
        [ZR_REASON_SPIKE] = "split it into parts",
        [ZR_REASON_LIMIT] = "raise the limit by at least that much",
        [ZR_REASON_ADDRESSES] = "reserve more addresses (reserve_bytes)",
        [ZR_REASON_OTHER_PROCESS] = "end them, or give each process its share (a limit)",
        [ZR_REASON_FRAGMENTATION] =
            "allocate long-lived blocks first, use smaller granules, or make requests that fit below",
        [ZR_REASON_SHORTAGE] = "a smaller batch, recomputing activations, more ranks or more memory",
        [ZR_REASON_OPTION] = "leave out the option",
        [ZR_REASON_FREE] = "none: what is free is reused or returned",
        [ZR_REASON_FLUSH] = "keep the memory from step to step"};
    const char *torch = is_torch(scene) ? torch_change(scene, one) : NULL;
    if (torch)
        return torch;
    if (scene->reasoning->segments && one == scene->reasoning->list)
        return "let zr serve that allocator's blocks directly (PYTORCH_NO_CUDA_MEMORY_CACHING=1, or its equivalent)";
    if (one->reason == ZR_REASON_ADDRESSES && scene->cause == ZRT_CAUSE_MAPPINGS)
        return "larger granules (ZR_CONF=granule:BYTES)";
    return changes[one->reason];
}

/* Whether the replays decide the advice for the reason. */
static bool waits(const struct zr_reason_scene *scene, const struct zr_reason_evidence *one)
{
    return scene->replaying && is_torch(scene) &&
           (one->reason == ZR_REASON_FRAGMENTATION || one->reason == ZR_REASON_OPTION);
}

static void print_change(struct zr_text *text, const struct zr_reason_scene *scene)
{
    char words[WORDS_BYTES];
    snprintf(words, sizeof words, "change: %s", change_for(scene, scene->reasoning->list));
    zr_tool_put_wrapped(text, 0, 2, words);
}

void zr_reasons_print(struct zr_text *text, const struct zr_reason_scene *scene)
{
    const struct zr_reasoning *own = scene->reasoning;
    char words[WORDS_BYTES], line[WORDS_BYTES + 300];
    for (unsigned i = 0; i < own->count; i++) {
        const struct zr_reason_evidence *one = &own->list[i];
        say_evidence(words, scene, one);
        snprintf(
            line, sizeof line, "%s%s: %s%s", i ? "also: " : "reason: ", zr_reason_name(one->reason), words,
            i == 0 && own->segments
                ? "; all live blocks have sizes that are powers of two, as from a caching allocator: free memory inside these blocks is not visible here"
                : "");
        zr_tool_put_wrapped(text, 0, 2, line);
        if (i == 0 && !waits(scene, one))
            print_change(text, scene);
    }
}

void zr_reasons_print_replayed(struct zr_text *text, const struct zr_reason_scene *scene)
{
    struct zr_reason_scene before = *scene;
    before.replaying = true;
    if (scene->reasoning->count > 0 && waits(&before, scene->reasoning->list))
        print_change(text, scene);
}

/* ---- Holders ------------------------------------------------------------------------------------------- */

unsigned zr_holders_sum(struct zr_category sums[ZR_CATEGORIES_MAX], const struct zr_vector *holders)
{
    unsigned count = 0, at;
    for (size_t i = 0; i < holders->count; i++) {
        const struct zr_holder *holder = zr_vector_at(holders, i);
        const char *name = zr_holder_category(holder);
        for (at = 0; at < count && strcmp(sums[at].name, name) != 0; at++)
            ;
        if (at == ZR_CATEGORIES_MAX)
            continue;
        if (at == count)
            sums[count++] = (struct zr_category){name, 0};
        sums[at].bytes += holder->bytes - holder->before_bytes;
        for (; at > 0 && sums[at].bytes > sums[at - 1].bytes; at--) {
            struct zr_category one = sums[at];
            sums[at] = sums[at - 1];
            sums[at - 1] = one;
        }
    }
    return count;
}

void zr_holders_print(struct zr_text *text, const struct zr_reason_scene *scene)
{
    struct zr_category sums[ZR_CATEGORIES_MAX];
    char room[ZR_TOOL_NUMBER_ROOM], stack[ZR_FRAME_BYTES], line[WORDS_BYTES];
    const size_t holders_count = scene->holders->count;
    uint64_t rest_bytes = 0;
    if (holders_count == 0)
        return;
    unsigned count = zr_holders_sum(sums, scene->holders);
    int at = snprintf(line, sizeof line, "Live then:");
    for (unsigned i = 0; i < count; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, "%s %s %s", i ? "," : "", sums[i].name,
                       zr_tool_bytes(room, sums[i].bytes));
    zr_text_print(text, "\n");
    zr_tool_put_wrapped(text, 0, 2, line);
    for (size_t i = 0; i < holders_count; i++) {
        const struct zr_holder *holder = zr_vector_at(scene->holders, i);
        if (i >= HOLDERS_IN_WORDS && holders_count > HOLDERS_IN_WORDS + 1) {
            rest_bytes += holder->bytes;
            continue;
        }
        at = snprintf(line, sizeof line, "  %10s in %" PRIu64 " block%s  %s  ",
                      zr_tool_bytes(room, holder->bytes), holder->blocks_count,
                      holder->blocks_count == 1 ? "" : "s", zr_holder_category(holder));
        zr_text_print(text, "%s", line);
        if (zr_tool_short_stack(scene->recording, holder->stack, ZR_TOOL_COLUMNS - (size_t)at, stack))
            zr_text_put_plain(text, stack);
        else
            zr_text_print(text, "(no stack: earlier)");
        zr_text_print(text, "\n");
    }
    if (rest_bytes > 0)
        zr_text_print(text, "  %10s at %zu other call sites (--json has the largest)\n",
                      zr_tool_bytes(room, rest_bytes), holders_count - HOLDERS_IN_WORDS);
}

void zr_growth_print(struct zr_text *text, const struct zr_reason_scene *scene)
{
    struct zr_category sums[ZR_CATEGORIES_MAX];
    char room[2][ZR_TOOL_NUMBER_ROOM], stack[ZR_FRAME_BYTES], line[WORDS_BYTES];
    unsigned count = zr_holders_sum(sums, scene->growers);
    int at = scene->to[0]
                 ? snprintf(line, sizeof line, "Growth from mark '%s' to '%s':", scene->from, scene->to)
                 : snprintf(line, sizeof line, "Growth over the recording:");
    for (unsigned i = 0; i < count; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, "%s %s %s", i ? "," : "", sums[i].name,
                       zr_tool_bytes(room[0], sums[i].bytes));
    if (count == 0)
        snprintf(line + at, sizeof line - (size_t)at, " none");
    zr_text_print(text, "\n");
    zr_tool_put_wrapped(text, 0, 2, line);
    for (size_t i = 0; i < scene->growers->count && i < HOLDERS_SHOWN; i++) {
        const struct zr_holder *one = zr_vector_at(scene->growers, i);
        at = snprintf(line, sizeof line, "  %10s%s%s in %" PRIu64 " block%s  %s  ",
                      zr_tool_bytes(room[0], one->bytes - one->before_bytes),
                      one->before_bytes ? " more than " : "",
                      one->before_bytes ? zr_tool_bytes(room[1], one->before_bytes) : "", one->blocks_count,
                      one->blocks_count == 1 ? "" : "s", zr_holder_category(one));
        zr_text_print(text, "%s", line);
        if (zr_tool_short_stack(scene->recording, one->stack, ZR_TOOL_COLUMNS - (size_t)at, stack))
            zr_text_put_plain(text, stack);
        zr_text_print(text, "\n");
    }
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void json_stack(struct zr_text *text, struct zr_recording *recording, uint32_t stack)
{
    struct zr_frames frames = zr_recording_frames(recording, stack);
    char frame[ZR_FRAME_BYTES];
    zr_text_print(text, "[");
    for (unsigned i = 0; i < FRAMES_SHOWN && stack && zr_frames_next(&frames, recording, frame); i++) {
        zr_text_print(text, i ? ", " : "");
        zr_text_json_string(text, frame, strlen(frame));
    }
    zr_text_print(text, "]");
}

void zr_reasons_json(struct zr_text *text, const struct zr_reason_scene *scene)
{
    char words[WORDS_BYTES];
    zr_text_print(text, ",\n \"reasons\": [");
    for (unsigned i = 0; i < scene->reasoning->count; i++) {
        const struct zr_reason_evidence *one = &scene->reasoning->list[i];
        const char *change = change_for(scene, one);
        say_evidence(words, scene, one);
        zr_text_print(text, "%s\n  {\"reason\": \"%s\", \"bytes\": %" PRIu64 ", \"evidence\": ", i ? "," : "",
                      zr_reason_name(one->reason), one->bytes);
        zr_text_json_string(text, words, strlen(words));
        zr_text_print(text, ", \"stack\": ");
        json_stack(text, scene->recording, one->stack);
        zr_text_print(text, ", \"remedy\": ");
        zr_text_json_string(text, change, strlen(change));
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]");
}

void zr_holders_json(struct zr_text *text, const struct zr_reason_scene *scene)
{
    struct zr_category sums[ZR_CATEGORIES_MAX];
    unsigned count = zr_holders_sum(sums, scene->holders);
    zr_text_print(text, ",\n \"categories\": {");
    for (unsigned i = 0; i < count; i++)
        zr_text_print(text, "%s\"%s\": %" PRIu64, i ? ", " : "", sums[i].name, sums[i].bytes);
    zr_text_print(text, "},\n \"holders\": [");
    for (size_t i = 0; i < scene->holders->count && i < HOLDERS_SHOWN; i++) {
        const struct zr_holder *holder = zr_vector_at(scene->holders, i);
        zr_text_print(
            text, "%s\n  {\"bytes\": %" PRIu64 ", \"blocks\": %" PRIu64 ", \"category\": \"%s\", \"stack\": ",
            i ? "," : "", holder->bytes, holder->blocks_count, zr_holder_category(holder));
        json_stack(text, scene->recording, holder->stack);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]");
}

static void json_label(struct zr_text *text, const char *key, const char *label)
{
    zr_text_print(text, "\"%s\": ", key);
    if (label[0])
        zr_text_json_string(text, label, strlen(label));
    else
        zr_text_print(text, "null");
}

void zr_growth_json(struct zr_text *text, const struct zr_reason_scene *scene)
{
    struct zr_category sums[ZR_CATEGORIES_MAX];
    unsigned count = zr_holders_sum(sums, scene->growers);
    zr_text_print(text, ",\n \"growth\": {");
    json_label(text, "from", scene->from);
    zr_text_print(text, ", ");
    json_label(text, "to", scene->to);
    zr_text_print(text, ", \"categories\": {");
    for (unsigned i = 0; i < count; i++)
        zr_text_print(text, "%s\"%s\": %" PRIu64, i ? ", " : "", sums[i].name, sums[i].bytes);
    zr_text_print(text, "},\n  \"sites\": [");
    for (size_t i = 0; i < scene->growers->count && i < HOLDERS_SHOWN; i++) {
        const struct zr_holder *one = zr_vector_at(scene->growers, i);
        zr_text_print(text, "%s\n  {\"grown_bytes\": %" PRIu64 ", \"before_bytes\": %" PRIu64, i ? "," : "",
                      one->bytes - one->before_bytes, one->before_bytes);
        zr_text_print(text, ", \"bytes\": %" PRIu64 ", \"before_blocks\": %" PRIu64 ", \"blocks\": %" PRIu64,
                      one->bytes, one->before_blocks_count, one->blocks_count);
        zr_text_print(text, ", \"category\": \"%s\", \"stack\": ", zr_holder_category(one));
        json_stack(text, scene->recording, one->stack);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]}");
}
