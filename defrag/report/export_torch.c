/* export_torch.c: writes a recording as a pickle in the form of PyTorch's snapshots, which
 * torch/cuda/_memory_viz.py reads. Uses memory.c.
 *
 * Uses protocol 4: dicts and lists of numbers and texts. Texts, frames and stacks are written once and named
 * by their memo afterwards, as PyTorch's files do. Blocks from before the window are in no event, only in the
 * segments. Mapped ranges of a .zrt become expandable
 * segments, mapped and unmapped in parts. */
#include "defrag/report/export.h"

#include <string.h>

#include "alloc/base/hash.h"
#include "defrag/trace/formats/torch_snapshot.h"

struct writing {
    const struct zr_export *own;
    struct zr_text *text;
    struct zr_memory memory;
    struct zr_number_map memo; /* of a hash of kind and content: the number in the pickle's memo */
};

/* ---- Pickle -------------------------------------------------------------------------------------------- */

static void put_op(struct zr_text *text, char op)
{
    zr_text_put(text, &op, 1);
}

static void put_little(struct zr_text *text, uint64_t number, unsigned bytes)
{
    char out[8];
    for (unsigned i = 0; i < bytes; i++)
        out[i] = (char)(number >> 8 * i);
    zr_text_put(text, out, bytes);
}

/* BININT2 or LONG1, in two's complement: a set top bit needs one more byte. */
static void put_number(struct zr_text *text, uint64_t number)
{
    unsigned bytes = 0;
    if (number <= 0xffff) {
        put_op(text, 'M');
        put_little(text, number, 2);
        return;
    }
    while (bytes < 8 && number >> 8 * bytes)
        bytes++;
    bool top = number >> (8 * bytes - 1) & 1;
    put_op(text, '\x8a');
    put_little(text, bytes + top, 1);
    put_little(text, number, bytes);
    if (top)
        put_op(text, 0);
}

/* Writes a reference to an object that is in the memo. False: there is none. */
static bool put_known(struct writing *writing, uint64_t content)
{
    const uint32_t *number = zr_number_map_get(&writing->memo, content);
    if (!number)
        return false;
    put_op(writing->text, *number < 256 ? 'h' : 'j'); /* BINGET, LONG_BINGET */
    put_little(writing->text, *number, *number < 256 ? 1 : 4);
    return true;
}

/* Puts the object that was just written into the memo. */
static void memoize(struct writing *writing, uint64_t content)
{
    put_op(writing->text, '\x94');
    zr_result result = zr_number_map_put(&writing->memo, content, (uint32_t)writing->memo.count);
    if (result != ZR_OK)
        writing->text->result = result;
}

enum content { TEXT, FRAME, STACK };

static uint64_t content_of(enum content kind, const void *data, size_t bytes)
{
    unsigned char first = (unsigned char)kind;
    return zr_hash_more(zr_hash_more(ZR_HASH_START, &first, 1), data, bytes);
}

/* Bytes outside ASCII become "?", because a pickle's text must be UTF-8. */
static void put_words(struct writing *writing, const char *words)
{
    struct zr_text *text = writing->text;
    size_t length = strnlen(words, 255);
    uint64_t content = content_of(TEXT, words, length);
    if (put_known(writing, content))
        return;
    put_op(text, '\x8c');
    put_little(text, length, 1);
    for (size_t i = 0; i < length; i++)
        put_op(text, (unsigned char)words[i] < 128 ? words[i] : '?');
    memoize(writing, content);
}

static void key_number(struct writing *writing, const char *key, uint64_t number)
{
    put_words(writing, key);
    put_number(writing->text, number);
}

static void key_words(struct writing *writing, const char *key, const char *words)
{
    put_words(writing, key);
    put_words(writing, words);
}

/* Opens a dict or list; end_dict() and end_list() close it. */
static void begin_dict(struct zr_text *text)
{
    zr_text_put(text, "}(", 2);
}

static void end_dict(struct zr_text *text)
{
    put_op(text, 'u');
}

static void begin_list(struct zr_text *text)
{
    zr_text_put(text, "](", 2);
}

static void end_list(struct zr_text *text)
{
    put_op(text, 'e');
}

/* A frame's text is "name (file:line)"; a missing part is empty. */
static void put_frame(struct writing *writing, char *frame)
{
    char *file = NULL, *line, *next = frame;
    uint64_t number = 0, content = content_of(FRAME, frame, strlen(frame));
    if (put_known(writing, content))
        return;
    while ((next = strstr(next, " (")) != NULL)
        file = next++;
    line = file ? strrchr(file, ':') : NULL;
    if (line)
        for (const char *digit = line + 1; *digit >= '0' && *digit <= '9' && number < UINT32_MAX; digit++)
            number = number * 10 + (uint64_t)(*digit - '0');
    if (line) {
        *file = *line = '\0';
        file += 2;
    }
    begin_dict(writing->text);
    key_words(writing, "name", frame);
    key_words(writing, "filename", line ? file : "");
    key_number(writing, "line", number);
    end_dict(writing->text);
    memoize(writing, content);
}

static void key_frames(struct writing *writing, uint32_t stack)
{
    struct zr_recording *recording = writing->own->recording;
    struct zr_frames frames = zr_recording_frames(recording, stack);
    char frame[ZR_FRAME_BYTES];
    uint64_t content = content_of(STACK, &stack, sizeof stack);
    put_words(writing, "frames");
    if (put_known(writing, content))
        return;
    begin_list(writing->text);
    while (zr_frames_next(&frames, recording, frame))
        put_frame(writing, frame);
    end_list(writing->text);
    memoize(writing, content);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

/* block_bytes: 0: the event has no block, or its size is unknown. */
static void put_event(struct writing *writing, const struct zr_record *record, const char *action,
                      uint64_t bytes, uint64_t block_bytes)
{
    struct zr_text *text = writing->text;
    bool refused = record->kind == ZR_RECORD_REFUSED;
    begin_dict(text);
    key_words(writing, "action", action);
    key_number(writing, refused ? "device_free" : "addr",
               !refused                           ? record->address
               : record->free_bytes != UINT64_MAX ? record->free_bytes
                                                  : 0);
    key_number(writing, "size", bytes);
    key_number(writing, "stream", record->stream);
    key_number(writing, "time_us", record->time_ns / 1000);
    if (block_bytes > 0 && block_bytes != zr_torch_round(bytes))
        key_number(writing, "block_size", block_bytes);
    key_frames(writing, record->stack);
    end_dict(text);
}

static zr_result take(void *state, const struct zr_record *record, bool *stop)
{
    struct writing *writing = state;
    const struct zr_range_record *block = zr_extents_floor(&writing->memory.blocks, record->address);
    bool own = block && block->address == record->address, pending = own && block->pending;
    uint64_t bytes = own && (record->kind == ZR_RECORD_FREE || record->kind == ZR_RECORD_FREE_ASKED)
                         ? block->requested_bytes
                         : record->bytes;
    uint64_t block_bytes = record->kind == ZR_RECORD_ALLOC ? record->reserved_bytes : own ? block->bytes : 0;
    (void)stop;
    zr_result result = zr_memory_apply(&writing->memory, record);
    if (result != ZR_OK || record->before)
        return result;
    switch (record->kind) {
    case ZR_RECORD_ALLOC:
        put_event(writing, record, "alloc", bytes, block_bytes);
        break;
    case ZR_RECORD_FREE_ASKED:
        put_event(writing, record, "free_requested", bytes, block_bytes);
        break;
    case ZR_RECORD_FREE:
        if (!pending)
            put_event(writing, record, "free_requested", bytes, block_bytes);
        put_event(writing, record, "free_completed", bytes, block_bytes);
        break;
    case ZR_RECORD_MAP:
        put_event(writing, record, record->unit_bytes ? "segment_map" : "segment_alloc", bytes, 0);
        break;
    case ZR_RECORD_UNMAP:
        put_event(writing, record,
                  record->unit_bytes || writing->own->recording->granule_bytes ? "segment_unmap"
                                                                               : "segment_free",
                  bytes, 0);
        break;
    case ZR_RECORD_REFUSED:
        put_event(writing, record, "oom", bytes, 0);
        break;
    default:
        break;
    }
    return writing->text->result;
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

static void put_block(struct writing *writing, const struct zr_memory_piece *piece)
{
    const struct zr_range_record *block = piece->block;
    begin_dict(writing->text);
    key_number(writing, "address", piece->address);
    key_number(writing, "size", piece->bytes);
    key_number(writing, "requested_size", block ? block->requested_bytes : 0);
    key_words(writing, "state",
              !block           ? "inactive"
              : block->pending ? "active_awaiting_free"
                               : "active_allocated");
    key_frames(writing, block ? block->stack : 0);
    end_dict(writing->text);
}

/* A segment's dict, without its blocks. */
static void put_segment(struct writing *writing, const struct zr_range_record *mapped)
{
    struct zr_text *text = writing->text;
    const struct zr_range_record *block = zr_extents_ceiling(&writing->memory.blocks, mapped->address);
    uint64_t live = 0, active = 0, requested = 0;
    for (; block && block->address < zr_range_end(mapped);
         block = zr_extents_next(&writing->memory.blocks, block)) {
        live += block->pending ? 0 : block->bytes;
        active += block->bytes;
        requested += block->pending ? 0 : block->requested_bytes;
    }
    key_number(writing, "device", 0);
    key_number(writing, "address", mapped->address);
    key_number(writing, "total_size", mapped->bytes);
    key_number(writing, "stream", mapped->stream);
    key_words(writing, "segment_type", mapped->pool & 1 ? "small" : "large");
    put_words(writing, "segment_pool_id"); /* (0, n) */
    put_number(text, 0);
    put_number(text, mapped->pool >> 1);
    put_op(text, '\x86');
    put_words(writing, "is_expandable");
    put_op(text, mapped->unit_bytes ? '\x88' : '\x89');
    key_number(writing, "allocated_size", live);
    key_number(writing, "active_size", active);
    key_number(writing, "requested_size", requested);
    key_frames(writing, 0);
}

static void put_segments(struct writing *writing)
{
    struct zr_memory_walk walk = zr_memory_walk_of(&writing->memory);
    struct zr_memory_piece piece;
    bool more = zr_memory_next(&walk, &piece);
    begin_list(writing->text);
    while (more) {
        const struct zr_range_record *mapped = piece.mapped;
        if (!mapped) {
            more = zr_memory_next(&walk, &piece);
            continue;
        }
        begin_dict(writing->text);
        put_segment(writing, mapped);
        put_words(writing, "blocks");
        begin_list(writing->text);
        for (; more && piece.mapped == mapped; more = zr_memory_next(&walk, &piece))
            put_block(writing, &piece);
        end_list(writing->text);
        end_dict(writing->text);
    }
    end_list(writing->text);
}

zr_result zr_export_torch(const struct zr_export *own, struct zr_text *text)
{
    struct writing writing = {.own = own, .text = text};
    zr_memory_init(&writing.memory, own->recording, own->arena);
    zr_number_map_init(&writing.memo, own->arena);
    zr_text_put(text, "\x80\x04", 2);
    begin_dict(text);
    put_words(&writing, "device_traces");
    begin_list(text);
    begin_list(text);
    zr_result result = zr_recording_play(own->recording, &(struct zr_recording_sink){take, &writing});
    end_list(text);
    end_list(text);
    put_words(&writing, "segments");
    if (result == ZR_OK)
        put_segments(&writing);
    put_words(&writing, "allocator_settings");
    begin_dict(text);
    put_words(&writing, "expandable_segments");
    put_op(text, own->recording->expandable || own->recording->granule_bytes ? '\x88' : '\x89');
    end_dict(text);
    end_dict(text);
    put_op(text, '.');
    zr_number_map_end(&writing.memo);
    zr_memory_end(&writing.memory);
    return result == ZR_OK ? text->result : result;
}
