/* held_records.c: packs records. Uses vector.c and number_map.c. */
#include "defrag/trace/held_records.h"

#include <string.h>

#include "alloc/base/hash.h"
#include "defrag/trace/formats/torch_snapshot.h"
#include "defrag/trace/recording.h"

enum { CHUNK_RECORDS = 2048, RECENT_KINDS = 8 };

struct packed {
    uint64_t address, bytes, time_ns;
    uint32_t stack, rest;
};

/* The fields that most records share, without padding. */
struct rest {
    uint64_t free_bytes, total_bytes, unit_bytes, stream;
    uint64_t extra_bytes; /* reserved - requested bytes; UINT64_MAX: nothing is reserved */
    uint32_t thread, pool;
    uint8_t kind, tag, before, rounds; /* rounds: reserved bytes are zr_torch_round(bytes) */
    uint32_t unused;
};

void zr_held_records_init(struct zr_held_records *out, zr_arena *arena)
{
    *out = (struct zr_held_records){.arena = arena};
    zr_vector_init(&out->chunks, arena, sizeof(struct packed *));
    zr_vector_init(&out->rests, arena, sizeof(struct rest));
    zr_vector_init(&out->labels, arena, 1);
    zr_number_map_init(&out->places, arena);
}

void zr_held_records_end(struct zr_held_records *held)
{
    for (size_t i = 0; i < held->chunks.count; i++)
        zr_arena_free(held->arena, *(struct packed **)zr_vector_at(&held->chunks, i));
    zr_vector_end(&held->chunks);
    zr_vector_end(&held->rests);
    zr_vector_end(&held->labels);
    zr_number_map_end(&held->places);
    zr_held_records_init(held, held->arena);
}

static struct packed *packed_at(const struct zr_held_records *held, size_t index)
{
    struct packed *const *chunks = held->chunks.items;
    return &chunks[index / CHUNK_RECORDS][index % CHUNK_RECORDS];
}

static zr_result add_chunk(struct zr_held_records *held)
{
    void *chunk;
    zr_result result = zr_arena_alloc(
        held->arena,
        &(struct zr_request){.bytes = CHUNK_RECORDS * sizeof(struct packed), .tag = ZR_TAG_OTHER}, &chunk);
    if (result != ZR_OK)
        return result;
    result = zr_vector_add(&held->chunks, &chunk);
    if (result != ZR_OK)
        zr_arena_free(held->arena, chunk);
    return result;
}

/* *out: the index of an equal rest, old or new. A collision of hashes adds a rest. */
static zr_result find_rest(struct zr_held_records *held, const struct rest *rest, uint32_t *out)
{
    uint32_t *recent = &held->recent[rest->kind % RECENT_KINDS];
    if (*recent && memcmp(zr_vector_at(&held->rests, *recent - 1), rest, sizeof *rest) == 0) {
        *out = *recent - 1;
        return ZR_OK;
    }
    uint64_t hash = zr_hash_more(ZR_HASH_START, rest, sizeof *rest);
    const uint32_t *known = zr_number_map_get(&held->places, hash);
    *out = known ? *known : (uint32_t)held->rests.count;
    if (known && memcmp(zr_vector_at(&held->rests, *known), rest, sizeof *rest) != 0)
        *out = (uint32_t)held->rests.count;
    *recent = *out + 1;
    if (*out < held->rests.count)
        return ZR_OK;
    zr_result result = zr_vector_add(&held->rests, rest);
    return result == ZR_OK ? zr_number_map_put(&held->places, hash, *out) : result;
}

static zr_result add_label(struct zr_held_records *held, const char *label, struct packed *packed)
{
    size_t bytes = strlen(label) + 1;
    zr_result result = zr_vector_reserve(&held->labels, bytes);
    if (result != ZR_OK)
        return result;
    packed->address = held->labels.count;
    held->labels.count += bytes;
    memcpy(zr_vector_at(&held->labels, packed->address), label, bytes);
    return ZR_OK;
}

zr_result zr_held_records_add(struct zr_held_records *held, const struct zr_record *record)
{
    bool rounds = record->reserved_bytes > 0 && record->reserved_bytes == zr_torch_round(record->bytes);
    struct rest rest = {.free_bytes = record->free_bytes,
                        .total_bytes = record->total_bytes,
                        .unit_bytes = record->unit_bytes,
                        .stream = record->stream,
                        .extra_bytes = rounds                        ? 0
                                       : record->reserved_bytes == 0 ? UINT64_MAX
                                                                     : record->reserved_bytes - record->bytes,
                        .thread = record->thread,
                        .pool = record->pool,
                        .kind = record->kind,
                        .tag = record->tag,
                        .before = record->before,
                        .rounds = rounds};
    struct packed packed = {.address = record->address,
                            .bytes = record->bytes,
                            .time_ns = record->time_ns,
                            .stack = record->stack};
    zr_result result = held->count == held->chunks.count * CHUNK_RECORDS ? add_chunk(held) : ZR_OK;
    if (result == ZR_OK)
        result = find_rest(held, &rest, &packed.rest);
    if (result == ZR_OK && record->label)
        result = add_label(held, record->label, &packed);
    if (result == ZR_OK)
        *packed_at(held, held->count++) = packed;
    return result;
}

void zr_held_records_get(const struct zr_held_records *held, size_t index, struct zr_record *out)
{
    const struct packed *packed = packed_at(held, index);
    const struct rest *rest = zr_vector_at(&held->rests, packed->rest);
    *out = (struct zr_record){.kind = rest->kind,
                              .tag = rest->tag,
                              .before = rest->before,
                              .thread = rest->thread,
                              .stack = packed->stack,
                              .pool = rest->pool,
                              .time_ns = packed->time_ns,
                              .address = packed->address,
                              .bytes = packed->bytes,
                              .reserved_bytes = rest->rounds ? zr_torch_round(packed->bytes)
                                                : rest->extra_bytes == UINT64_MAX
                                                    ? 0
                                                    : packed->bytes + rest->extra_bytes,
                              .free_bytes = rest->free_bytes,
                              .total_bytes = rest->total_bytes,
                              .unit_bytes = rest->unit_bytes,
                              .stream = rest->stream};
    if (rest->kind == ZR_RECORD_MARK) {
        out->label = zr_vector_at(&held->labels, packed->address);
        out->address = 0;
    }
}
