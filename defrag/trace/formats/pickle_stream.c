/* pickle_stream.c: delivers the items of long lists while a pickle is read, and forgets them. Uses
 * pickle_held.c.
 *
 * Picklers write a list, then up to a thousand items on the stack, then the opcode that appends them. A dict
 * item is complete when the next dict begins beside it, or when the items are appended. Its data is then at
 * the end of all arrays. If each list and dict inside the item equals an earlier one, they get the earlier
 * numbers, and the item's data is dropped. */
#include <string.h>

#include "alloc/base/error.h"
#include "defrag/trace/formats/pickle_held.h"

#define NOWHERE SIZE_MAX

/* Items with more containers inside are held without sharing. */
enum { SHARED_MAX = 1 << 16 };

static struct zr_pickle_value *on_stack(const struct zr_pickle *pickle, size_t height)
{
    return zr_vector_at(&pickle->stack, height);
}

static struct zr_pickle_container *container_at(const struct zr_pickle *pickle, uint64_t number)
{
    return zr_vector_at(&pickle->containers, number);
}

void zr_pickle_stream_start(struct zr_pickle *pickle)
{
    pickle->place = (struct zr_pickle_place){.outer = NOWHERE, .list = NOWHERE, .item = NOWHERE};
}

void zr_pickle_stream_lower(struct zr_pickle *pickle)
{
    struct zr_pickle_place *place = &pickle->place;
    if (place->outer != NOWHERE && place->outer >= pickle->stack.count)
        place->outer = NOWHERE;
    if (place->list != NOWHERE && place->list >= pickle->stack.count)
        place->list = NOWHERE;
    if (place->item != NOWHERE && place->item >= pickle->stack.count)
        place->item = NOWHERE;
}

/* ---- Sharing ------------------------------------------------------------------------------------------- */

/* The chunk of a container that has exactly one; else NULL. */
static const struct zr_pickle_chunk *only_chunk(const struct zr_pickle *pickle,
                                                const struct zr_pickle_container *container)
{
    if (container->first_chunk != container->last_chunk || container->first_chunk >= pickle->chunks.count)
        return NULL;
    const struct zr_pickle_chunk *chunk = zr_vector_at(&pickle->chunks, container->first_chunk);
    return chunk->first + (uint64_t)chunk->count <= pickle->items.count ? chunk : NULL;
}

/* The bytes of a container's items; NULL if they are not contiguous. */
static const void *content_of(const struct zr_pickle *pickle, uint64_t number, size_t *bytes)
{
    const struct zr_pickle_container *container = container_at(pickle, number);
    const struct zr_pickle_chunk *chunk = only_chunk(pickle, container);
    *bytes = 0;
    if (container->items_count == 0)
        return "";
    if (!chunk || chunk->count != container->items_count)
        return NULL;
    *bytes = chunk->count * sizeof(struct zr_pickle_value);
    return zr_vector_at(&pickle->items, chunk->first);
}

static uint64_t hash_of(uint64_t kind, const void *content, size_t bytes)
{
    const unsigned char *at = content;
    uint64_t hash = kind + 1, word;
    for (size_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

/* Replaces references to the item's own containers by their new numbers. */
static void rename_values(struct zr_pickle *pickle, uint64_t number)
{
    const struct zr_pickle_chunk *chunk = only_chunk(pickle, container_at(pickle, number));
    size_t first = pickle->place.containers;
    for (uint32_t i = 0; chunk && i < chunk->count; i++) {
        struct zr_pickle_value *value = zr_vector_at(&pickle->items, chunk->first + i);
        if (value->kind >= ZR_PICKLE_TUPLE && value->at >= first && value->at < pickle->containers.count)
            value->at = *(uint32_t *)zr_vector_at(&pickle->renamed, value->at - first);
    }
}

/* Finds an earlier container of equal content, or registers this one. *known: there is one. */
static zr_result find_equal(struct zr_pickle *pickle, uint64_t number, bool *known)
{
    size_t bytes, other_bytes;
    const void *content = content_of(pickle, number, &bytes);
    uint64_t kind = container_at(pickle, number)->kind;
    *known = false;
    if (!content || number >= UINT32_MAX)
        return ZR_OK;
    uint64_t hash = hash_of(kind, content, bytes);
    const uint32_t *found = zr_number_map_get(&pickle->known_containers, hash);
    if (!found)
        return zr_number_map_put(&pickle->known_containers, hash, (uint32_t)number);
    if (*found >= pickle->place.containers || container_at(pickle, *found)->kind != kind)
        return ZR_OK;
    const void *other = content_of(pickle, *found, &other_bytes);
    *known = other && other_bytes == bytes && memcmp(content, other, bytes) == 0;
    if (*known)
        *(uint32_t *)zr_vector_at(&pickle->renamed, number - pickle->place.containers) = *found;
    return ZR_OK;
}

/* Innermost containers have the highest numbers. *all: all content of the item was known. */
static zr_result share(struct zr_pickle *pickle, bool *all)
{
    size_t bytes, first = pickle->place.containers, count = pickle->containers.count - first;
    zr_result result = ZR_OK;
    bool known;
    *all = count <= SHARED_MAX && content_of(pickle, first, &bytes);
    pickle->renamed.count = 0;
    if (!*all)
        return ZR_OK;
    result = zr_vector_reserve(&pickle->renamed, count);
    for (size_t i = 0; i < count && result == ZR_OK; i++) {
        uint32_t number = (uint32_t)(first + i);
        zr_vector_add(&pickle->renamed, &number); /* reserved */
    }
    for (size_t i = count; i-- > 1 && result == ZR_OK;) {
        rename_values(pickle, first + i);
        result = find_equal(pickle, first + i, &known);
        *all &= known;
    }
    if (result == ZR_OK && count > 0)
        rename_values(pickle, first);
    return result;
}

/* ---- Items --------------------------------------------------------------------------------------------- */

/* Drops the item's data; memo entries then refer to the earlier containers. */
static zr_result drop_all(struct zr_pickle *pickle)
{
    const struct zr_pickle_place *place = &pickle->place;
    zr_result result = ZR_OK;
    for (size_t i = place->memo; i < pickle->memo.count && result == ZR_OK; i++) {
        struct zr_pickle_value value = zr_pickle_memo_get(pickle, i);
        if (value.kind < ZR_PICKLE_TUPLE || value.at < place->containers)
            continue;
        if (value.at == place->containers)
            value = (struct zr_pickle_value){0};
        else
            value.at = *(uint32_t *)zr_vector_at(&pickle->renamed, value.at - place->containers);
        result = zr_pickle_memo_set(pickle, i, value);
    }
    pickle->items.count = place->items;
    pickle->chunks.count = place->chunks;
    pickle->containers.count = place->containers;
    return result;
}

/* Drops the item's own fields, which are the last; nested containers stay. */
static void drop_fields(struct zr_pickle *pickle)
{
    struct zr_pickle_container *own = container_at(pickle, pickle->place.containers);
    const struct zr_pickle_chunk *chunk = only_chunk(pickle, own);
    if (!chunk || own->first_chunk + (size_t)1 != pickle->chunks.count ||
        chunk->first + (size_t)chunk->count != pickle->items.count || own->first_chunk < pickle->place.chunks)
        return;
    pickle->items.count = chunk->first;
    pickle->chunks.count = own->first_chunk;
    *own = (struct zr_pickle_container){ZR_PICKLE_NO_CHUNK, ZR_PICKLE_NO_CHUNK, 0, own->kind, false};
}

/* Delivers the completed item. An absent value replaces the item on the stack. */
static zr_result hand_over(struct zr_pickle *pickle)
{
    struct zr_pickle_place *place = &pickle->place;
    struct zr_pickle_value item = *on_stack(pickle, place->item);
    bool all;
    zr_result result = share(pickle, &all);
    if (result == ZR_OK)
        result =
            pickle->stream->take(pickle->stream->state, pickle, place->list_number, item, &pickle->stopped);
    *on_stack(pickle, place->item) = (struct zr_pickle_value){0};
    place->item = NOWHERE;
    if (result == ZR_OK && all)
        result = drop_all(pickle);
    else if (result == ZR_OK)
        drop_fields(pickle);
    return result;
}

/* Whether a value pushed now is in the list: directly on it, or on the mark on it. */
static bool in_list(const struct zr_pickle *pickle)
{
    const struct zr_pickle_place *place = &pickle->place;
    return place->list != NOWHERE &&
           (pickle->marks.count == place->list_marks ||
            (pickle->marks.count == place->list_marks + 1 && zr_pickle_floor(pickle) == place->list + 1));
}

zr_result zr_pickle_stream_next(struct zr_pickle *pickle)
{
    const struct zr_pickle_place *place = &pickle->place;
    bool beside = place->item != NOWHERE && place->item + 1 == pickle->stack.count && in_list(pickle);
    return beside ? hand_over(pickle) : ZR_OK;
}

/* The value of root[key] begins. */
static zr_result begin_outer(struct zr_pickle *pickle, size_t height)
{
    if (pickle->place.had_outer)
        return zr_pickle_wrong(pickle, "a dict has the same key twice");
    pickle->place.had_outer = true;
    pickle->place.outer = height;
    return ZR_OK;
}

static void begin_list(struct zr_pickle *pickle, size_t height, struct zr_pickle_value list)
{
    struct zr_pickle_place *place = &pickle->place;
    const struct zr_pickle_container *outer = container_at(pickle, on_stack(pickle, place->outer)->at);
    place->list = height;
    place->list_marks = pickle->marks.count;
    place->list_number = outer->items_count + (height - place->outer - 1);
    place->item = NOWHERE;
    container_at(pickle, list.at)->is_stream = true;
}

static void begin_item(struct zr_pickle *pickle, size_t height, struct zr_pickle_value item)
{
    struct zr_pickle_place *place = &pickle->place;
    place->item = height;
    place->items = pickle->items.count;
    place->chunks = pickle->chunks.count;
    place->containers = item.at;
    place->memo = pickle->memo.count;
}

zr_result zr_pickle_stream_pushed(struct zr_pickle *pickle, struct zr_pickle_value container)
{
    const struct zr_pickle_place *place = &pickle->place;
    size_t height = pickle->stack.count - 1, floor = zr_pickle_floor(pickle), marks = pickle->marks.count;
    if (!pickle->stream || pickle->stream->whole)
        return ZR_OK;
    if (container.kind == ZR_PICKLE_DICT) {
        if (place->item == NOWHERE && in_list(pickle) &&
            (height == place->list + 1 || floor == place->list + 1))
            begin_item(pickle, height, container);
        return ZR_OK;
    }
    if (container.kind != ZR_PICKLE_LIST)
        return ZR_OK;
    if (place->outer == NOWHERE)
        return marks == 1 && floor == 1 && height >= 2 && height % 2 == 0 &&
                       on_stack(pickle, 0)->kind == ZR_PICKLE_DICT &&
                       zr_pickle_text_is(pickle, *on_stack(pickle, height - 1), pickle->stream->key)
                   ? begin_outer(pickle, height)
                   : ZR_OK;
    if ((marks == 1 && height == place->outer + 1) || (marks == 2 && floor == place->outer + 1))
        begin_list(pickle, height, container);
    return ZR_OK;
}

zr_result zr_pickle_stream_append(struct zr_pickle *pickle, size_t first, bool *taken)
{
    struct zr_pickle_place *place = &pickle->place;
    zr_result result = ZR_OK;
    if (place->list == NOWHERE || first != place->list + 1)
        return ZR_OK;
    struct zr_pickle_value list = *on_stack(pickle, place->list);
    size_t end = pickle->stack.count;
    for (size_t i = first; i < end && result == ZR_OK && !pickle->stopped; i++) {
        struct zr_pickle_value value = *on_stack(pickle, i);
        if (i == place->item)
            result = hand_over(pickle);
        else if (value.kind != ZR_PICKLE_ABSENT)
            result = pickle->stream->take(pickle->stream->state, pickle, place->list_number, value,
                                          &pickle->stopped);
    }
    if (list.at < pickle->containers.count)
        container_at(pickle, list.at)->items_count += (uint32_t)(end - first);
    pickle->stack.count = first;
    place->item = NOWHERE;
    *taken = true;
    return result;
}

zr_result zr_pickle_stream_rest(struct zr_pickle *pickle)
{
    const struct zr_pickle_stream *stream = pickle->stream;
    struct zr_pickle_value list, item;
    uint64_t number = 0;
    zr_result result = ZR_OK;
    if (!stream)
        return ZR_OK;
    struct zr_pickle_field field = {.key = stream->key};
    zr_pickle_fields(pickle, pickle->root, &field, 1);
    struct zr_pickle_cursor lists = zr_pickle_cursor_of(pickle, field.value);
    for (; result == ZR_OK && !pickle->stopped && zr_pickle_next(pickle, &lists, &list); number++) {
        if (list.kind != ZR_PICKLE_LIST || list.at >= pickle->containers.count ||
            container_at(pickle, list.at)->is_stream)
            continue;
        struct zr_pickle_cursor items = zr_pickle_cursor_of(pickle, list);
        while (result == ZR_OK && !pickle->stopped && zr_pickle_next(pickle, &items, &item))
            result = stream->take(stream->state, pickle, number, item, &pickle->stopped);
    }
    return result;
}
