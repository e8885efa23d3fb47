/* action_list.c: lists of actions: see action_list.h. */
#include "zero/engine/action_list.h"

#include <string.h>

#include "zero/comm/take.h"

enum { FIRST_CAPACITY = 64 };

const char *zr_action_kind_name(enum zr_action_kind kind)
{
    static const char *const names[ZR_ACTION_KINDS] = {
        [ZR_ACTION_LOAD] = "load",         [ZR_ACTION_GATHER] = "gather",
        [ZR_ACTION_FORWARD] = "forward",   [ZR_ACTION_STORE] = "store",
        [ZR_ACTION_FETCH] = "fetch",       [ZR_ACTION_RECOMPUTE] = "recompute",
        [ZR_ACTION_BACKWARD] = "backward", [ZR_ACTION_RELEASE] = "release",
        [ZR_ACTION_REDUCE] = "reduce",     [ZR_ACTION_SEND] = "send",
        [ZR_ACTION_RECEIVE] = "receive",   [ZR_ACTION_DRAIN] = "drain",
        [ZR_ACTION_RATE] = "rate",         [ZR_ACTION_LOSSES] = "losses",
        [ZR_ACTION_AGREE] = "agree",       [ZR_ACTION_INPUTS] = "inputs",
        [ZR_ACTION_RECORD] = "record",     [ZR_ACTION_LAUNCH] = "launch",
        [ZR_ACTION_READ] = "read",         [ZR_ACTION_BEGIN] = "begin",
        [ZR_ACTION_COLLECT] = "collect",   [ZR_ACTION_NORM] = "norm",
        [ZR_ACTION_WEIGH] = "weigh",       [ZR_ACTION_REPEAT] = "repeat",
        [ZR_ACTION_READERS] = "readers",   [ZR_ACTION_SKIP] = "skip",
        [ZR_ACTION_OPEN] = "open",         [ZR_ACTION_GATHER_SUMS] = "gather-sums",
        [ZR_ACTION_TAKE] = "take",         [ZR_ACTION_UPDATE] = "update",
        [ZR_ACTION_PREPARE] = "prepare",   [ZR_ACTION_KEEP] = "keep",
        [ZR_ACTION_CONFIRM] = "confirm",   [ZR_ACTION_GIVE] = "give",
        [ZR_ACTION_CLEAR] = "clear",       [ZR_ACTION_PUT] = "put",
        [ZR_ACTION_PUBLISH] = "publish",   [ZR_ACTION_CLOSE] = "close",
        [ZR_ACTION_COUNT] = "count",       [ZR_ACTION_SETTLE] = "settle",
        [ZR_ACTION_LAND] = "land",         [ZR_ACTION_HAND_OVER] = "hand-over",
        [ZR_ACTION_DECIDE] = "decide",     [ZR_ACTION_COMMIT] = "commit",
        [ZR_ACTION_BACK_UP] = "back-up",   [ZR_ACTION_BACKED_UP] = "backed-up",
        [ZR_ACTION_AWAIT] = "await",       [ZR_ACTION_UNDO] = "undo",
        [ZR_ACTION_WEIGHTS] = "weights",   [ZR_ACTION_STASH] = "stash",
        [ZR_ACTION_EXCHANGE] = "exchange", [ZR_ACTION_MERGE] = "merge",
        [ZR_ACTION_CLOCK] = "clock"};
    return names[kind];
}

void zr_actions_add(struct zr_actions *list, struct zr_action action)
{
    if (list->result == ZR_OK && list->count == list->capacity) {
        size_t capacity = list->capacity > 0 ? 2 * list->capacity : FIRST_CAPACITY;
        struct zr_action *more;
        list->result = zr_take(list->host_arena, ZR_TAG_OTHER, capacity, sizeof *more, (void **)&more);
        if (list->result != ZR_OK)
            return;
        if (list->count > 0)
            memcpy(more, list->actions, list->count * sizeof *more);
        zr_drop(list->host_arena, &list->actions);
        list->actions = more;
        list->capacity = capacity;
    }
    if (list->result == ZR_OK)
        list->actions[list->count++] = action;
}

void zr_actions_drop(struct zr_actions *list)
{
    if (list->host_arena)
        zr_drop(list->host_arena, &list->actions);
    list->count = list->capacity = 0;
}

void zr_actions_derive(struct zr_actions *out, const struct zr_actions *from,
                       const struct zr_action_transform *by)
{
    out->result = out->result == ZR_OK ? from->result : out->result;
    for (size_t i = 0; i < from->count; i++) {
        struct zr_action action = from->actions[i];
        const struct zr_action_rule *rule = by->rules;
        while (rule->of != ZR_ACTION_NONE && rule->of != action.kind)
            rule++;
        if (rule->of == ZR_ACTION_NONE && !by->drops)
            zr_actions_add(out, action);
        for (const enum zr_action_kind *kind = rule->by; *kind != ZR_ACTION_NONE; kind++) {
            action.kind = *kind;
            zr_actions_add(out, action);
        }
    }
}

void zr_actions_change(struct zr_actions *list, const struct zr_action_transform *by)
{
    struct zr_actions changed = {.host_arena = list->host_arena};
    zr_actions_derive(&changed, list, by);
    zr_actions_drop(list);
    *list = changed;
}
