/* action_list.c: lists of actions: see actions.h. */
#include "zero/engine/actions.h"

#include <string.h>

void zr_engine_actions_add(struct zr_engine *engine, struct zr_engine_actions *list,
                           enum zr_engine_action_kind kind, size_t unit)
{
    zr_arena *host_arena = engine->options.host_arena;
    if (list->result == ZR_OK && list->count == list->capacity) {
        size_t capacity = list->capacity > 0 ? 2 * list->capacity : 16;
        struct zr_engine_action *more;
        list->result = zr_take(host_arena, ZR_TAG_OTHER, capacity, sizeof *more, (void **)&more);
        if (list->result != ZR_OK)
            return;
        if (list->count > 0)
            memcpy(more, list->actions, list->count * sizeof *more);
        zr_drop(host_arena, &list->actions);
        list->actions = more;
        list->capacity = capacity;
    }
    if (list->result == ZR_OK)
        list->actions[list->count++] = (struct zr_engine_action){kind, (unsigned)unit};
}

void zr_engine_actions_drop(struct zr_engine *engine, struct zr_engine_actions *list)
{
    zr_drop(engine->options.host_arena, &list->actions);
    *list = (struct zr_engine_actions){.count = 0};
}

void zr_engine_actions_replace(struct zr_engine *engine, struct zr_engine_actions *list,
                               const struct zr_engine_actions *by)
{
    zr_engine_actions_drop(engine, list);
    *list = *by;
}
