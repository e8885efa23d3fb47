/* compressed.c: decompresses gzip (RFC 1952) by zlib and zstd (RFC 8878) by libzstd, front to back. */
#include "defrag/tool/compressed.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "alloc/base/error.h"

enum { IN_BYTES = 1 << 16, OUT_BYTES = 1 << 17, GZIP_WINDOW = 16 + MAX_WBITS };

struct copying {
    const struct zr_file *from, *to;
    bool between; /* the last member or frame is complete */
    size_t in_bytes, in_next;
    uint64_t taken_bytes; /* of the file, before `in` */
    unsigned char in[IN_BYTES], out[OUT_BYTES];
};

static const unsigned char gzip_magic[] = {0x1f, 0x8b}, zstd_magic[] = {0x28, 0xb5, 0x2f, 0xfd};

static bool is_gzip(const unsigned char *head, size_t bytes)
{
    return bytes >= sizeof gzip_magic && memcmp(head, gzip_magic, sizeof gzip_magic) == 0;
}

static bool is_zstd(const unsigned char *head, size_t bytes)
{
    return bytes >= sizeof zstd_magic && memcmp(head, zstd_magic, sizeof zstd_magic) == 0;
}

bool zr_compressed_is(const unsigned char *head, size_t bytes)
{
    return is_gzip(head, bytes) || is_zstd(head, bytes);
}

/* The next part of the file; in_bytes is 0 at the end. */
static zr_result more(struct copying *own)
{
    own->taken_bytes += own->in_bytes;
    own->in_next = 0;
    return zr_file_read(own->from, own->in, sizeof own->in, &own->in_bytes);
}

static zr_result damaged(const struct copying *own, const char *how)
{
    return zr_fail(ZR_ERR_FORMAT, "'%s' is damaged near byte %llu of its compressed data (%s); copy it again",
                   own->from->name, (unsigned long long)(own->taken_bytes + own->in_next), how);
}

static zr_result copy(struct copying *own)
{
    zr_result result = ZR_OK;
    while (result == ZR_OK && own->in_bytes > 0) {
        result = zr_file_write(own->to, own->in, own->in_bytes);
        if (result == ZR_OK)
            result = more(own);
    }
    own->between = true;
    return result;
}

/* Takes from `in` and fills `out`; *out_bytes: how far. */
typedef zr_result step(struct copying *own, void *stream, size_t *out_bytes);

static zr_result run(struct copying *own, step *next, void *stream)
{
    zr_result result = ZR_OK;
    size_t out_bytes;
    own->between = true;
    while (result == ZR_OK && own->in_bytes > 0) {
        do { /* a full output may be followed by more without input */
            result = next(own, stream, &out_bytes);
            if (result == ZR_OK)
                result = zr_file_write(own->to, own->out, out_bytes);
        } while (result == ZR_OK &&
                 (own->in_next < own->in_bytes || (out_bytes == OUT_BYTES && !own->between)));
        if (result == ZR_OK)
            result = more(own);
    }
    return result;
}

static zr_result inflate_some(struct copying *own, void *state, size_t *out_bytes)
{
    z_stream *stream = state;
    *out_bytes = 0;
    if (own->between && own->in[own->in_next] == 0) { /* padding, as for gunzip */
        own->in_next++;
        return ZR_OK;
    }
    if (own->between)
        inflateReset(stream);
    stream->next_in = own->in + own->in_next;
    stream->avail_in = (uInt)(own->in_bytes - own->in_next);
    stream->next_out = own->out;
    stream->avail_out = OUT_BYTES;
    int got = inflate(stream, Z_NO_FLUSH);
    own->in_next = own->in_bytes - stream->avail_in;
    own->between = got == Z_STREAM_END;
    *out_bytes = OUT_BYTES - stream->avail_out;
    if (got == Z_MEM_ERROR)
        return zr_fail(ZR_ERR_MEMORY, "zlib has no memory for its window");
    return got == Z_OK || got == Z_STREAM_END || got == Z_BUF_ERROR
               ? ZR_OK
               : damaged(own, stream->msg ? stream->msg : "invalid data");
}

static zr_result inflate_all(struct copying *own)
{
    z_stream stream = {0};
    if (inflateInit2(&stream, GZIP_WINDOW) != Z_OK)
        return zr_fail(ZR_ERR_MEMORY, "zlib has no memory for its window");
    zr_result result = run(own, inflate_some, &stream);
    inflateEnd(&stream);
    return result;
}

static zr_result decompress_some(struct copying *own, void *stream, size_t *out_bytes)
{
    ZSTD_inBuffer in = {own->in, own->in_bytes, own->in_next};
    ZSTD_outBuffer out = {own->out, OUT_BYTES, 0};
    size_t left = ZSTD_decompressStream(stream, &out, &in);
    own->in_next = in.pos;
    own->between = left == 0;
    *out_bytes = out.pos;
    return ZSTD_isError(left) ? damaged(own, ZSTD_getErrorName(left)) : ZR_OK;
}

static zr_result decompress_all(struct copying *own)
{
    ZSTD_DStream *stream = ZSTD_createDStream();
    if (!stream)
        return zr_fail(ZR_ERR_MEMORY, "zstd has no memory for its window");
    zr_result result = run(own, decompress_some, stream);
    ZSTD_freeDStream(stream);
    return result;
}

zr_result zr_compressed_copy(const struct zr_file *from, const struct zr_file *to, bool *cut_short)
{
    static struct copying own;
    own = (struct copying){.from = from, .to = to};
    zr_result result = more(&own);
    if (result == ZR_OK)
        result = is_gzip(own.in, own.in_bytes)   ? inflate_all(&own)
                 : is_zstd(own.in, own.in_bytes) ? decompress_all(&own)
                                                 : copy(&own);
    *cut_short = result == ZR_OK && !own.between;
    return result;
}
