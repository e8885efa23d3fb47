/* diff.c: `zr diff`: compares two files, lists growth, and checks conditions for CI. Uses defrag/report/. */
#include <inttypes.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "alloc/base/sort.h"
#include "defrag/report/expression.h"
#include "defrag/tool/input.h"

static const char help[] =
    "Compares two files of memory events: figures side by side, and the largest changes.\n"
    "\n"
    "Examples\n"
    "  zr diff before.pickle after.pickle\n"
    "  zr diff main.zrt branch.zrt --fail-if 'peak_reserved_bytes > 1.05x'\n"
    "  zr diff a.zrt b.zrt --fail-if 'stranded_ratio > 0.2, peak_live_bytes > +64MiB' --json\n"
    "  zr diff rank0.zrt rank1.zrt                  two ranks of a run\n"
    "  zr diff run.zrt --policy caching,zr          one file under two allocators\n"
    "\n"
    "zr diff A B [options]\n"
    "zr diff A --policy P,Q [options]\n"
    "  A, B            .zrt traces, PyTorch snapshots, RMM logs or MiniMalloc CSVs, of the same format or of two\n"
    "  --fail-if EXPR  exit 1 if any condition holds. Conditions are separated by commas: FIGURE OP VALUE. FIGURE is a\n"
    "                  name of the table, OP is >, >=, <, <=, == or !=, and VALUE is 1.05x (of A's), +5% or +64MiB (over\n"
    "                  A's), or a number or a size: 24G, 24GB, 1.5GiB\n"
    "  --policy P[,Q]  replays A under P, B (or A again) under Q, for the figures replay.*: zr, caching, expandable, bestfit\n"
    "  --capacity BYTES  of the simulated device of the replays (default: unlimited)\n"
    "  --device N      of snapshots of several devices (default: the one with the most events)\n"
    "  --json          JSON instead of a table\n"
    "\n"
    "Changes are in live bytes at each file's peak: by tag, and by the innermost Python frame if there are stacks.\n";

enum { GROWTH_SHOWN = 20, LABEL_BYTES = 160 };

struct settings {
    struct zr_tool_arguments arguments;
    struct zr_tool_reading reading;
    const char *fail_if, *policies; /* NULL: none */
    enum zr_policy policy[2];
    uint64_t capacity_bytes;
    bool json;
};

/* The live bytes with one label, at the peaks of the two files. */
struct growth {
    char label[LABEL_BYTES];
    uint64_t bytes[2];
};

struct view {
    struct zr_tool_input inputs[2];
    struct zr_replay_report replays[2];
    struct zr_compared sides[2];
    const char *policy_names[2]; /* NULL: none */
    struct zr_vector growth;     /* struct growth, the largest change first */
    struct zr_number_map labels;
    struct zr_text failed; /* the conditions that hold, as items of a JSON list */
    char failed_room[4096];
    unsigned failed_count;
};

/* ---- Growth -------------------------------------------------------------------------------------------- */

static zr_result add_block(struct view *view, unsigned side, const struct zr_range_record *block)
{
    struct growth growth = {.label = ""};
    char stack[ZR_FRAME_BYTES];
    bool framed = zr_tool_short_stack(&view->inputs[side].recording, block->stack, ZR_TOOL_COLUMNS, stack);
    const char *name = framed ? stack : zr_tag_name((zr_tag)block->tag);
    memcpy(growth.label, name, strnlen(name, sizeof growth.label - 1));
    uint64_t hash = zr_hash_text(growth.label);
    const uint32_t *known = zr_number_map_get(&view->labels, hash);
    zr_result result = ZR_OK;
    if (!known) {
        result = zr_number_map_put(&view->labels, hash, (uint32_t)view->growth.count);
        if (result == ZR_OK)
            result = zr_vector_add(&view->growth, &growth);
    }
    if (result == ZR_OK) {
        struct growth *own = zr_vector_at(&view->growth, *zr_number_map_get(&view->labels, hash));
        own->bytes[side] += block->bytes;
    }
    return result;
}

static zr_result add_peak(struct view *view, unsigned side)
{
    struct zr_tool_input *input = &view->inputs[side];
    struct zr_memory memory;
    zr_result result = zr_moment_reach(&memory, &input->recording, input->moments.peak.records_count, NULL);
    const struct zr_range_record *block = result == ZR_OK ? zr_extents_ceiling(&memory.blocks, 0) : NULL;
    for (; block && result == ZR_OK; block = zr_extents_next(&memory.blocks, block))
        result = add_block(view, side, block);
    zr_memory_end(&memory);
    return result;
}

static uint64_t change_of(const struct growth *growth)
{
    return growth->bytes[0] > growth->bytes[1] ? growth->bytes[0] - growth->bytes[1]
                                               : growth->bytes[1] - growth->bytes[0];
}

static bool changes_more(const void *a, const void *b)
{
    uint64_t one = change_of(a), other = change_of(b);
    return one != other ? one > other
                        : strcmp(((const struct growth *)a)->label, ((const struct growth *)b)->label) < 0;
}

/* ---- Conditions ---------------------------------------------------------------------------------------- */

static zr_result check(struct view *view, const char *expression)
{
    struct zr_condition condition;
    zr_text_start(&view->failed, NULL, view->failed_room, sizeof view->failed_room);
    do {
        zr_result result = zr_condition_read(&expression, &condition);
        if (result != ZR_OK)
            return result;
        for (unsigned side = 0; side < 2; side++)
            if (!zr_figure_known(condition.figure, &view->sides[side]))
                return zr_fail(ZR_ERR_INVALID, "'%s' does not contain %s", view->inputs[side].name,
                               condition.figure->name);
        if (!zr_condition_holds(&condition, condition.figure->get(&view->sides[0]),
                                condition.figure->get(&view->sides[1])))
            continue;
        zr_text_print(&view->failed, view->failed_count++ ? ", " : "");
        zr_text_json_string(&view->failed, condition.words, (size_t)condition.words_bytes);
    } while (*expression);
    return ZR_OK;
}

/* ---- Showing ------------------------------------------------------------------------------------------- */

static void json_figure(struct zr_text *text, const struct zr_figure *figure, const struct view *view)
{
    zr_text_print(text, "{\"name\": \"%s\"", figure->name);
    for (unsigned side = 0; side < 2; side++)
        if (zr_figure_known(figure, &view->sides[side]))
            zr_text_print(text, ", \"%s\": %.17g", side ? "b" : "a", figure->get(&view->sides[side]));
        else
            zr_text_print(text, ", \"%s\": null", side ? "b" : "a");
    zr_text_print(text, "}");
}

static void print_json(struct zr_text *text, const struct view *view)
{
    zr_text_print(text, "{\"version\": 1, ");
    zr_tool_json_words(text, "a", view->inputs[0].name);
    zr_text_print(text, ", ");
    zr_tool_json_words(text, "b", view->inputs[1].name);
    if (view->policy_names[0])
        zr_text_print(text, ", \"policies\": [\"%s\", \"%s\"]", view->policy_names[0], view->policy_names[1]);
    zr_text_print(text, ",\n \"figures\": [");
    for (const struct zr_figure *figure = zr_figures; figure->name; figure++) {
        zr_text_print(text, figure == zr_figures ? "\n  " : ",\n  ");
        json_figure(text, figure, view);
    }
    zr_text_print(text, "],\n \"growth\": [");
    for (size_t i = 0; i < view->growth.count; i++) {
        const struct growth *growth = zr_vector_at(&view->growth, i);
        zr_text_print(text, i ? ",\n  {" : "\n  {");
        zr_tool_json_words(text, "of", growth->label);
        zr_text_print(text, ", \"a_bytes\": %" PRIu64 ", \"b_bytes\": %" PRIu64 "}", growth->bytes[0],
                      growth->bytes[1]);
    }
    zr_text_print(text, "],\n \"failed\": [%s]}\n", view->failed_room);
}

static void print_value(struct zr_text *text, const struct zr_figure *figure, const struct zr_compared *side)
{
    char room[ZR_TOOL_NUMBER_ROOM];
    if (!zr_figure_known(figure, side))
        zr_text_print(text, " %12s", "not known");
    else if (figure->is_bytes)
        zr_text_print(text, " %12s", zr_tool_bytes(room, (uint64_t)figure->get(side)));
    else
        zr_text_print(text, " %12.6g", figure->get(side));
}

static void print_table(struct zr_text *text, const struct view *view)
{
    char room[3][ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "A: ");
    zr_text_put_plain(text, view->inputs[0].name);
    zr_text_print(text, "%s%s\nB: ", view->policy_names[0] ? " under " : "",
                  view->policy_names[0] ? view->policy_names[0] : "");
    zr_text_put_plain(text, view->inputs[1].name);
    zr_text_print(text, "%s%s", view->policy_names[1] ? " under " : "",
                  view->policy_names[1] ? view->policy_names[1] : "");
    zr_text_print(text, "\n%-26s %12s %12s %9s\n", "", "A", "B", "B / A");
    for (const struct zr_figure *figure = zr_figures; figure->name; figure++) {
        const struct zr_compared *sides = view->sides;
        bool known = zr_figure_known(figure, &sides[0]) && zr_figure_known(figure, &sides[1]);
        if (figure->needs_replay && !known)
            continue; /* the figure comes from a replay, and there is none without --policy */
        zr_text_print(text, "%-26s", figure->name);
        print_value(text, figure, &sides[0]);
        print_value(text, figure, &sides[1]);
        if (known && figure->get(&sides[0]) > 0)
            zr_text_print(text, " %9.4f\n", figure->get(&sides[1]) / figure->get(&sides[0]));
        else
            zr_text_print(text, "\n");
    }
    zr_text_print(text, "\n%12s %12s %13s  live at the peak\n", "A", "B", "change");
    for (size_t i = 0; i < view->growth.count && i < GROWTH_SHOWN; i++) {
        const struct growth *growth = zr_vector_at(&view->growth, i);
        zr_text_print(text, "%12s %12s %c%12s  ", zr_tool_bytes(room[0], growth->bytes[0]),
                      zr_tool_bytes(room[1], growth->bytes[1]),
                      growth->bytes[1] > growth->bytes[0]   ? '+'
                      : growth->bytes[1] < growth->bytes[0] ? '-'
                                                            : ' ',
                      zr_tool_bytes(room[2], change_of(growth)));
        zr_text_put_plain(text, growth->label);
        zr_text_print(text, "\n");
    }
    if (view->growth.count > GROWTH_SHOWN)
        zr_text_print(text, "and %zu more (--json has them)\n", view->growth.count - GROWTH_SHOWN);
}

/* Replays the side's file under its policy. */
static zr_result replay(struct view *view, unsigned side, const struct settings *settings, zr_arena *arena)
{
    const struct zr_tool_input *input = &view->inputs[side];
    struct zr_sequence sequence;
    zr_result result =
        zr_sequence_read(&sequence,
                         &(struct zr_read_options){.path = input->recording.path,
                                                   .unit_bytes = settings->reading.unit_bytes,
                                                   .device = zr_tool_device(settings->reading.device)},
                         arena);
    if (result == ZR_OK)
        result = zr_replay(&sequence,
                           &(struct zr_replay_options){.policy = settings->policy[side],
                                                       .capacity_bytes = settings->capacity_bytes,
                                                       .repeat = 1},
                           &view->replays[side]);
    zr_sequence_end(&sequence);
    view->sides[side].replay = &view->replays[side];
    view->policy_names[side] = zr_policy_name(settings->policy[side]);
    return result;
}

/* Reads one policy, or two separated by a comma. */
static bool read_policies(struct settings *settings)
{
    const char *at = settings->policies;
    for (unsigned side = 0; side < 2; side++) {
        size_t length = strcspn(at, ",");
        bool found = false;
        for (unsigned i = 0; i < ZR_POLICY_COUNT && !found; i++) {
            const char *name = zr_policy_name((enum zr_policy)i);
            found = strlen(name) == length && memcmp(name, at, length) == 0;
            settings->policy[side] = (enum zr_policy)i;
        }
        if (!found || (side == 1 && at[length])) {
            zr_tool_log(
                "diff: --policy takes one or two of zr, caching, expandable and bestfit, as in caching,zr");
            return false;
        }
        at += at[length] == ',' ? length + 1 : 0;
    }
    return true;
}

static zr_result work(void *state, zr_arena *arena, int *code)
{
    const struct settings *settings = state;
    struct view view;
    struct zr_tool_output out;
    zr_result result = ZR_OK;
    memset(&view, 0, sizeof view);
    zr_vector_init(&view.growth, arena, sizeof(struct growth));
    zr_number_map_init(&view.labels, arena);
    for (unsigned side = 0; side < 2; side++) {
        view.inputs[side].source.fd = -1;
        if (result == ZR_OK)
            result = zr_tool_input_open(
                &view.inputs[side],
                settings->arguments.files[side < (unsigned)settings->arguments.files_count ? side : 0],
                &settings->reading, arena);
        view.sides[side] =
            (struct zr_compared){&view.inputs[side].recording, &view.inputs[side].moments, NULL};
        if (result == ZR_OK && settings->policies)
            result = replay(&view, side, settings, arena);
        if (result == ZR_OK)
            result = add_peak(&view, side);
    }
    zr_sort_in_place(
        &(struct zr_sort_records){view.growth.items, view.growth.count, sizeof(struct growth), changes_more});
    if (result == ZR_OK && settings->fail_if)
        result = check(&view, settings->fail_if);
    if (result == ZR_OK) {
        zr_tool_output_start(&out);
        if (settings->json)
            print_json(&out.text, &view);
        else
            print_table(&out.text, &view);
        *code = zr_tool_output_end(&out);
        if (view.failed_count > 0)
            zr_tool_log("diff: --fail-if %s: %s", view.failed_count > 1 ? "these hold" : "this holds",
                        view.failed_room);
        if (*code == ZR_TOOL_FINE && view.failed_count > 0)
            *code = ZR_TOOL_THRESHOLD;
    }
    for (unsigned side = 0; side < 2; side++)
        zr_tool_input_end(&view.inputs[side]);
    zr_number_map_end(&view.labels);
    zr_vector_end(&view.growth);
    return result;
}

int zr_tool_diff(int argc, char **argv)
{
    struct settings settings = {.reading = {.device = UINT64_MAX}};
    const struct zr_tool_option options[] = {
        {"--fail-if", ZR_TOOL_TEXT, &settings.fail_if},
        {"--policy", ZR_TOOL_TEXT, &settings.policies},
        {"--capacity", ZR_TOOL_BYTES, &settings.capacity_bytes},
        {"--device", ZR_TOOL_COUNT, &settings.reading.device},
        {"--json", ZR_TOOL_FLAG, &settings.json},
        {NULL, ZR_TOOL_FLAG, NULL},
    };
    settings.arguments = (struct zr_tool_arguments){.help = help, .options = options, .takes_files = true};
    int code = zr_tool_parse(&settings.arguments, argc, argv);
    if (code >= 0)
        return code;
    bool alone = settings.arguments.files_count == 1 && settings.policies && strchr(settings.policies, ',');
    if (settings.arguments.files_count != 2 && !alone) {
        zr_tool_log("diff: two files, or one file and --policy P,Q, are required; see zr diff --help");
        return ZR_TOOL_USAGE;
    }
    if (settings.policies && !read_policies(&settings))
        return ZR_TOOL_USAGE;
    return zr_tool_with_memory(work, &settings);
}
