/* export_pprof.c: writes the live blocks at one point in time as a profile for Go's pprof
 * (github.com/google/pprof, proto/profile.proto). Uses memory.c.
 *
 * Texts, functions and locations are written when they first occur, so only their numbers are held in memory.
 */
#include "defrag/report/export.h"

#include <string.h>

#include "alloc/base/hash.h"

enum { TYPE = 1, SAMPLE = 2, LOCATION = 4, FUNCTION = 5, TEXT = 6 }; /* fields of Profile */
enum { FRAMES_MAX = 64, MESSAGE_ROOM = 1024 };

/* A message in progress; fields beyond its capacity are dropped. */
struct message {
    unsigned char bytes[MESSAGE_ROOM];
    size_t used;
};

struct writing {
    const struct zr_export *own;
    struct zr_text *text;
    struct zr_number_map places; /* a frame's hash: its number */
    uint64_t texts_count, places_count;
    zr_result result;
};

static void put_varint(struct message *message, uint64_t number)
{
    do {
        if (message->used == MESSAGE_ROOM)
            return;
        message->bytes[message->used++] = (unsigned char)(number & 0x7f) | (number > 0x7f ? 0x80 : 0);
        number >>= 7;
    } while (number);
}

static void put_field(struct message *message, unsigned field, uint64_t number)
{
    put_varint(message, field << 3);
    put_varint(message, number);
}

static void put_bytes(struct message *message, unsigned field, const void *bytes, size_t count)
{
    put_varint(message, field << 3 | 2);
    put_varint(message, count);
    count = count < MESSAGE_ROOM - message->used ? count : MESSAGE_ROOM - message->used;
    memcpy(message->bytes + message->used, bytes, count);
    message->used += count;
}

/* Writes a field of the profile outside the message. */
static void emit(struct writing *writing, unsigned field, const void *bytes, size_t count)
{
    struct message head = {.used = 0};
    put_varint(&head, field << 3 | 2);
    put_varint(&head, count);
    zr_text_put(writing->text, (const char *)head.bytes, head.used);
    zr_text_put(writing->text, bytes, count);
}

static uint64_t text_of(struct writing *writing, const char *words)
{
    emit(writing, TEXT, words, strlen(words));
    return writing->texts_count++;
}

/* The number of a frame's location, from 1. */
static uint64_t place_of(struct writing *writing, const char *frame)
{
    uint64_t hash = zr_hash_text(frame);
    struct message function = {.used = 0}, line = {.used = 0}, place = {.used = 0};
    const uint32_t *known = zr_number_map_get(&writing->places, hash);
    if (known)
        return *known;
    uint64_t number = ++writing->places_count;
    writing->result = zr_number_map_put(&writing->places, hash, (uint32_t)number);
    put_field(&function, 1, number);
    put_field(&function, 2, text_of(writing, frame));
    emit(writing, FUNCTION, function.bytes, function.used);
    put_field(&line, 1, number);
    put_field(&place, 1, number);
    put_bytes(&place, 4, line.bytes, line.used);
    emit(writing, LOCATION, place.bytes, place.used);
    return number;
}

static void put_sample(struct writing *writing, const struct zr_range_record *block)
{
    struct zr_recording *recording = writing->own->recording;
    struct zr_frames frames = zr_recording_frames(recording, block->stack);
    struct message sample = {.used = 0}, places = {.used = 0}, values = {.used = 0};
    char frame[ZR_FRAME_BYTES];
    for (unsigned i = 0; i < FRAMES_MAX && zr_frames_next(&frames, recording, frame); i++)
        put_varint(&places, place_of(writing, frame));
    put_varint(&places, place_of(writing, zr_tag_name((zr_tag)block->tag))); /* the outermost */
    put_varint(&values, block->bytes);
    put_varint(&values, 1);
    put_bytes(&sample, 1, places.bytes, places.used);
    put_bytes(&sample, 2, values.bytes, values.used);
    emit(writing, SAMPLE, sample.bytes, sample.used);
}

static void put_type(struct writing *writing, const char *name, const char *unit)
{
    struct message type = {.used = 0};
    put_field(&type, 1, text_of(writing, name));
    put_field(&type, 2, text_of(writing, unit));
    emit(writing, TYPE, type.bytes, type.used);
}

zr_result zr_export_pprof(const struct zr_export *own, struct zr_text *text)
{
    struct writing writing = {.own = own, .text = text};
    struct zr_memory memory;
    zr_number_map_init(&writing.places, own->arena);
    zr_result result = zr_moment_reach(&memory, own->recording, own->records_count, NULL);
    text_of(&writing, "");
    put_type(&writing, "inuse_space", "bytes");
    put_type(&writing, "inuse_objects", "count");
    const struct zr_range_record *block = result == ZR_OK ? zr_extents_ceiling(&memory.blocks, 0) : NULL;
    for (; block && writing.result == ZR_OK; block = zr_extents_next(&memory.blocks, block))
        put_sample(&writing, block);
    zr_memory_end(&memory);
    zr_number_map_end(&writing.places);
    if (result == ZR_OK)
        result = writing.result;
    return result == ZR_OK ? text->result : result;
}
