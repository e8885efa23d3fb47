/* torch_snapshot.c: live blocks as a snapshot in PyTorch's format, a pickle of protocol 2. See torch.h.
 *
 * A segment is a sequence of blocks of one device and stream with gaps below a granule: the memory that an
 * arena has mapped for the blocks. The gaps are written as free blocks. */
#include <string.h>

#include "alloc/base/system/file.h"
#include "alloc/preload/cuda/torch.h"

enum { BUFFER_BYTES = 8192, DEVICES_MAX = ZR_CUDA_DEVICES_MAX };

/* ---- A pickle ------------------------------------------------------------------------------------------ */

static void put_code(struct zr_text *text, char code)
{
    zr_text_put(text, &code, 1);
}

static void put_word(struct zr_text *text, const char *word)
{
    uint32_t length = (uint32_t)strlen(word);
    put_code(text, 'X'); /* BINUNICODE */
    zr_text_put(text, (const char *)&length, sizeof length);
    zr_text_put(text, word, length);
}

static void put_number(struct zr_text *text, const char *key, uint64_t number)
{
    char bytes[2 + 9] = {'\x8a', 9}; /* LONG1; the last byte, 0, makes the number positive */
    memcpy(bytes + 2, &number, sizeof number);
    put_word(text, key);
    zr_text_put(text, bytes, sizeof bytes);
}

static void put_text(struct zr_text *text, const char *key, const char *value)
{
    put_word(text, key);
    put_word(text, value);
}

static void put_empty_list(struct zr_text *text, const char *key)
{
    put_word(text, key);
    put_code(text, ']');
}

/* ---- Segments ------------------------------------------------------------------------------------------ */

static void put_block(struct zr_text *text, uintptr_t address, size_t bytes, size_t requested_bytes,
                      bool live)
{
    zr_text_put(text, "}(", 2);
    put_number(text, "address", address);
    put_number(text, "size", bytes);
    put_number(text, "requested_size", requested_bytes);
    put_text(text, "state", live ? "active_allocated" : "inactive");
    put_empty_list(text, "frames");
    put_code(text, 'u');
}

/* A block's size in the snapshot: a multiple of 512. */
static size_t rounded(const struct zr_cuda_block *block)
{
    return (block->bytes + 511) & ~(size_t)511;
}

/* The first block of an arena at or after the address, and its rounded bytes. */
static bool next_block(uintptr_t address, struct zr_cuda_block *block, size_t *bytes)
{
    while (zr_cuda_blocks_next(address, block)) {
        if (block->arena) {
            *bytes = rounded(block);
            return true;
        }
        address = block->address + block->bytes;
    }
    return false;
}

struct segment {
    size_t total_bytes, live_bytes, requested_bytes;
};

/* Iterates over the segment that begins with `block` and sets `block` to the first block of the next segment.
 * False: this was the last segment. With a text the blocks are written. */
static bool walk_segment(struct zr_cuda_block *block, size_t *bytes, struct zr_text *text,
                         struct segment *out)
{
    const struct zr_cuda_device *device = block->device;
    uintptr_t start = block->address, end = start;
    uint64_t stream = block->stream;
    bool more = true;
    *out = (struct segment){0};
    while (more && block->device == device && block->stream == stream &&
           block->address - end < (size_t)2 << 20) {
        if (text && block->address > end)
            put_block(text, end, block->address - end, 0, false);
        if (text)
            put_block(text, block->address, *bytes, block->bytes, true);
        out->live_bytes += *bytes;
        out->requested_bytes += block->bytes;
        end = block->address + *bytes;
        more = next_block(end, block, bytes);
    }
    out->total_bytes = end - start;
    return more;
}

static void put_segment(struct zr_text *text, struct zr_cuda_block *block, size_t *bytes, bool *more)
{
    struct zr_cuda_block ahead = *block;
    size_t ahead_bytes = *bytes;
    struct segment segment;
    walk_segment(&ahead, &ahead_bytes, NULL, &segment);
    zr_text_put(text, "}(", 2);
    put_number(text, "device", (uint64_t)block->device->ordinal);
    put_number(text, "address", block->address);
    put_number(text, "total_size", segment.total_bytes);
    put_number(text, "allocated_size", segment.live_bytes);
    put_number(text, "active_size", segment.live_bytes);
    put_number(text, "requested_size", segment.requested_bytes);
    put_number(text, "stream", block->stream == (uintptr_t)block->device->idle ? 0 : block->stream);
    put_text(text, "segment_type", "large");
    put_word(text, "segment_pool_id");
    zr_text_put(text, "K\0K\0\x86", 5); /* (0, 0) */
    put_word(text, "is_expandable");
    put_code(text, '\x88'); /* True */
    put_empty_list(text, "frames");
    put_word(text, "blocks");
    zr_text_put(text, "](", 2);
    *more = walk_segment(block, bytes, text, &segment);
    zr_text_put(text, "eu", 2);
}

/* ---- The file ------------------------------------------------------------------------------------------ */

int zr_torch_snapshot(const char *path)
{
    char buffer[BUFFER_BYTES];
    struct zr_file file;
    struct zr_text text;
    struct zr_cuda_block block;
    struct zr_cuda_call call;
    size_t bytes = 0;
    zr_result result = zr_file_create(&file, path, ZR_CREATE_REPLACE);
    if (result != ZR_OK)
        return (int)result;
    zr_text_start(&text, &file, buffer, sizeof buffer);
    zr_cuda_enter_no_context(&call);
    zr_text_put(&text, "\x80\x02}(", 4);
    put_word(&text, "segments");
    zr_text_put(&text, "](", 2);
    for (bool more = next_block(0, &block, &bytes); more;)
        put_segment(&text, &block, &bytes, &more);
    put_code(&text, 'e');
    put_word(&text, "device_traces");
    zr_text_put(&text, "](", 2);
    for (int i = 0; i < DEVICES_MAX; i++)
        put_code(&text, ']');
    put_code(&text, 'e');
    put_word(&text, "allocator_settings");
    zr_text_put(&text, "}u.", 3);
    zr_cuda_leave(&call);
    result = zr_text_flush(&text);
    zr_result closed = zr_file_close(&file);
    return (int)(result == ZR_OK ? closed : result);
}
