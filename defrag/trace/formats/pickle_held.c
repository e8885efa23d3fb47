/* pickle_held.c: the texts, containers and memo of a pickle, and their traversal. Uses vector.c and
 * number_map.c.
 *
 * A hostile file may refer to the number of a delivered container, which is reused. So every use of a number
 * checks its bounds. */
#include "defrag/trace/formats/pickle_held.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"

zr_result zr_pickle_wrong(const struct zr_pickle *pickle, const char *what)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s' is no pickle that is read here: before byte %llu %s", pickle->name,
                   (unsigned long long)pickle->next_bytes, what);
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

enum { TEXT_UNIT = 4 }; /* a text follows its length of as many bytes */

zr_result zr_pickle_text_room(struct zr_pickle *pickle, uint64_t bytes, char **out)
{
    zr_result result = zr_vector_reserve(&pickle->texts, bytes + 2 * TEXT_UNIT);
    if (result == ZR_OK)
        *out = (char *)pickle->texts.items + pickle->texts.count + TEXT_UNIT;
    return result;
}

zr_result zr_pickle_text_add(struct zr_pickle *pickle, uint64_t bytes, struct zr_pickle_value *out)
{
    size_t at = pickle->texts.count;
    char *place = (char *)pickle->texts.items + at;
    uint32_t length = (uint32_t)bytes;
    uint64_t hash = zr_hash_more(ZR_HASH_START, place + TEXT_UNIT, bytes);
    const uint32_t *known = zr_number_map_get(&pickle->known_texts, hash);
    memcpy(place, &length, TEXT_UNIT);
    *out = (struct zr_pickle_value){.kind = ZR_PICKLE_TEXT, .text_bytes = length};
    if (known) {
        const char *other = (char *)pickle->texts.items + (size_t)*known * TEXT_UNIT;
        if (memcmp(other, place, TEXT_UNIT + bytes) == 0) {
            out->at = (uint64_t)*known * TEXT_UNIT + TEXT_UNIT;
            return ZR_OK;
        }
    }
    memset(place + TEXT_UNIT + bytes, 0, TEXT_UNIT); /* reserved */
    pickle->texts.count = (at + TEXT_UNIT + bytes + TEXT_UNIT) / TEXT_UNIT * TEXT_UNIT;
    out->at = at + TEXT_UNIT;
    return known ? ZR_OK : zr_number_map_put(&pickle->known_texts, hash, (uint32_t)(at / TEXT_UNIT));
}

const char *zr_pickle_text(const struct zr_pickle *pickle, struct zr_pickle_value text)
{
    return text.kind == ZR_PICKLE_TEXT ? (const char *)pickle->texts.items + text.at : "";
}

bool zr_pickle_text_is(const struct zr_pickle *pickle, struct zr_pickle_value text, const char *words)
{
    return text.kind == ZR_PICKLE_TEXT && strlen(words) == text.text_bytes &&
           memcmp(zr_pickle_text(pickle, text), words, text.text_bytes) == 0;
}

/* ---- Containers ---------------------------------------------------------------------------------------- */

zr_result zr_pickle_container_add(struct zr_pickle *pickle, enum zr_pickle_kind kind,
                                  struct zr_pickle_value *out)
{
    struct zr_pickle_container container = {ZR_PICKLE_NO_CHUNK, ZR_PICKLE_NO_CHUNK, 0, (uint16_t)kind, false};
    *out = (struct zr_pickle_value){.kind = kind, .at = pickle->containers.count};
    return zr_vector_add(&pickle->containers, &container);
}

zr_result zr_pickle_append(struct zr_pickle *pickle, struct zr_pickle_value to, size_t first)
{
    size_t count = pickle->stack.count - first;
    if (count == 0)
        return ZR_OK;
    if (to.at >= pickle->containers.count)
        return zr_pickle_wrong(pickle, "values are added to a container that was already delivered");
    zr_result result = zr_vector_reserve(&pickle->items, count);
    if (result == ZR_OK)
        result = zr_vector_reserve(&pickle->chunks, 1);
    if (result != ZR_OK)
        return result;
    struct zr_pickle_container *container = zr_vector_at(&pickle->containers, to.at);
    if (container->is_stream)
        return zr_pickle_wrong(pickle, "a list of delivered items continues elsewhere");
    struct zr_pickle_chunk *last = container->last_chunk < pickle->chunks.count
                                       ? zr_vector_at(&pickle->chunks, container->last_chunk)
                                       : NULL;
    if (!last || last->first + last->count != pickle->items.count) {
        struct zr_pickle_chunk chunk = {(uint32_t)pickle->items.count, 0, ZR_PICKLE_NO_CHUNK};
        uint32_t number = (uint32_t)pickle->chunks.count;
        zr_vector_add(&pickle->chunks, &chunk); /* reserved */
        if (last)
            last->next = number;
        else
            container->first_chunk = number;
        container->last_chunk = number;
        last = zr_vector_at(&pickle->chunks, number);
    }
    memcpy(zr_vector_at(&pickle->items, pickle->items.count), zr_vector_at(&pickle->stack, first),
           count * sizeof(struct zr_pickle_value));
    pickle->items.count += count;
    last->count += (uint32_t)count;
    container->items_count += (uint32_t)count;
    pickle->stack.count = first;
    zr_pickle_stream_lower(pickle);
    return ZR_OK;
}

/* ---- The memo ------------------------------------------------------------------------------------------ */

/* A memo entry: a kind in 3 bits, a number in the others. */
enum { MEMO_ABSENT = 0, MEMO_TEXT, MEMO_TUPLE, MEMO_LIST, MEMO_DICT, MEMO_OTHER, MEMO_SPENT };
enum { MEMO_BITS = 29 };

zr_result zr_pickle_memo_set(struct zr_pickle *pickle, uint64_t number, struct zr_pickle_value value)
{
    uint64_t kind = MEMO_OTHER, at = pickle->kept.count;
    zr_result result = ZR_OK;
    if (value.kind == ZR_PICKLE_ABSENT) {
        kind = MEMO_SPENT;
        at = 0;
    } else if (value.kind == ZR_PICKLE_TEXT) {
        kind = MEMO_TEXT;
        at = value.at / TEXT_UNIT;
    } else if (value.kind >= ZR_PICKLE_TUPLE) {
        kind = value.kind - ZR_PICKLE_TUPLE + MEMO_TUPLE;
        at = value.at;
    } else {
        result = zr_vector_add(&pickle->kept, &value);
    }
    if (result == ZR_OK && at >> MEMO_BITS)
        return zr_pickle_wrong(pickle, "the memo is full");
    if (result == ZR_OK && number >= pickle->memo.count) {
        size_t more = number + 1 - pickle->memo.count;
        result = zr_vector_reserve(&pickle->memo, more);
        if (result == ZR_OK) {
            memset(zr_vector_at(&pickle->memo, pickle->memo.count), 0, more * sizeof(uint32_t));
            pickle->memo.count += more;
        }
    }
    if (result == ZR_OK)
        *(uint32_t *)zr_vector_at(&pickle->memo, number) = (uint32_t)(kind << MEMO_BITS | at);
    return result;
}

struct zr_pickle_value zr_pickle_memo_get(struct zr_pickle *pickle, uint64_t number)
{
    if (number >= pickle->memo.count)
        return (struct zr_pickle_value){0};
    uint32_t code = *(const uint32_t *)zr_vector_at(&pickle->memo, number), kind = code >> MEMO_BITS;
    uint64_t at = code & ((UINT32_C(1) << MEMO_BITS) - 1);
    struct zr_pickle_value value = {0};
    if (kind == MEMO_TEXT) {
        value = (struct zr_pickle_value){.kind = ZR_PICKLE_TEXT, .at = at * TEXT_UNIT};
        memcpy(&value.text_bytes, (const char *)pickle->texts.items + value.at - TEXT_UNIT, TEXT_UNIT);
    } else if (kind == MEMO_OTHER) {
        value = *(const struct zr_pickle_value *)zr_vector_at(&pickle->kept, at);
    } else if (kind == MEMO_SPENT) {
        pickle->asked_spent = true;
    } else if (kind != MEMO_ABSENT && at < pickle->containers.count) {
        value = (struct zr_pickle_value){.kind = kind - MEMO_TUPLE + ZR_PICKLE_TUPLE, .at = at};
    }
    return value;
}

/* ---- Traversal ----------------------------------------------------------------------------------------- */

static const struct zr_pickle_container *container_of(const struct zr_pickle *pickle,
                                                      struct zr_pickle_value value)
{
    return value.kind >= ZR_PICKLE_TUPLE && value.at < pickle->containers.count
               ? zr_vector_at(&pickle->containers, value.at)
               : NULL;
}

uint64_t zr_pickle_count(const struct zr_pickle *pickle, struct zr_pickle_value value)
{
    const struct zr_pickle_container *container = container_of(pickle, value);
    return !container                     ? 0
           : value.kind == ZR_PICKLE_DICT ? container->items_count / 2
                                          : container->items_count;
}

struct zr_pickle_cursor zr_pickle_cursor_of(const struct zr_pickle *pickle, struct zr_pickle_value value)
{
    const struct zr_pickle_container *container = container_of(pickle, value);
    return (struct zr_pickle_cursor){.chunk = container ? container->first_chunk : ZR_PICKLE_NO_CHUNK};
}

bool zr_pickle_next(struct zr_pickle *pickle, struct zr_pickle_cursor *cursor, struct zr_pickle_value *out)
{
    if (cursor->next == cursor->end) {
        if (cursor->chunk >= pickle->chunks.count)
            return false;
        const struct zr_pickle_chunk *chunk = zr_vector_at(&pickle->chunks, cursor->chunk);
        cursor->next = chunk->first;
        cursor->end = chunk->first + chunk->count;
        cursor->chunk = chunk->next;
    }
    if (pickle->steps_left == 0 || cursor->next >= pickle->items.count)
        return false;
    pickle->steps_left--;
    *out = *(const struct zr_pickle_value *)zr_vector_at(&pickle->items, cursor->next++);
    return true;
}

bool zr_pickle_exhausted(const struct zr_pickle *pickle)
{
    return pickle->steps_left == 0;
}

void zr_pickle_fields(struct zr_pickle *pickle, struct zr_pickle_value dict, struct zr_pickle_field *fields,
                      unsigned count)
{
    struct zr_pickle_value key, value;
    for (unsigned i = 0; i < count; i++)
        fields[i].value = (struct zr_pickle_value){0};
    if (dict.kind != ZR_PICKLE_DICT)
        return;
    struct zr_pickle_cursor cursor = zr_pickle_cursor_of(pickle, dict);
    unsigned at = 0; /* most dicts have the keys in the order of the fields */
    while (zr_pickle_next(pickle, &cursor, &key) && zr_pickle_next(pickle, &cursor, &value))
        for (unsigned tries = 0; tries < count; tries++) {
            struct zr_pickle_field *field = &fields[at];
            at = at + 1 < count ? at + 1 : 0;
            if (zr_pickle_text_is(pickle, key, field->key)) {
                field->value = value;
                break;
            }
        }
}
