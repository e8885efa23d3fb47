/* shards.c: see shards.h. */
#include "zero/train/tokenize/shards.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"

#define PARTIAL ".partial"
enum { PIECE_TOKENS = 8192 };

static void put(unsigned char *at, unsigned bytes, uint32_t number)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char)(number >> 8 * i);
}

static zr_result start(struct zr_shards *shards)
{
    unsigned char header[ZR_SHARD_HEADER_BYTES] = {0};
    int length = snprintf(shards->path, sizeof shards->path, "%s/%s_%06u.bin" PARTIAL, shards->folder,
                          shards->name, shards->shards_count);
    if (length >= ZR_SHARD_PATH_ROOM) {
        shards->path[0] = '\0';
        return zr_fail(ZR_ERR_INVALID, "'%.200s': the path is too long", shards->folder);
    }
    zr_result result = zr_file_create(&shards->file, shards->path, ZR_CREATE_REPLACE);
    if (!result)
        result = zr_file_write(&shards->file, header, sizeof header); /* overwritten in finish() */
    shards->shards_count++;
    shards->shard_count = 0;
    return result;
}

zr_result zr_shards_finish(struct zr_shards *shards)
{
    unsigned char head[12];
    char path[sizeof shards->path];
    if (shards->file.fd < 0)
        return ZR_OK;
    put(head, 4, shards->token_bytes == 2 ? ZR_SHARD_MAGIC : ZR_SHARD_WIDE_MAGIC);
    put(head + 4, 4, shards->token_bytes == 2 ? 1 : 7);
    put(head + 8, 4, (uint32_t)shards->shard_count);
    snprintf(path, sizeof path, "%.*s", (int)(strlen(shards->path) - strlen(PARTIAL)), shards->path);
    zr_result result = zr_file_write_at(&shards->file, 0, head, sizeof head), closed;
    if (!result)
        result = zr_file_sync(&shards->file);
    closed = zr_file_close(&shards->file);
    shards->file.fd = -1;
    result = result ? result : closed;
    if (!result)
        result = zr_path_rename(&(struct zr_rename){.from = shards->path, .to = path});
    if (!result)
        result = zr_path_sync_name(path);
    if (!result)
        shards->path[0] = '\0';
    return result;
}

zr_result zr_shards_add(struct zr_shards *shards, const int32_t *tokens, size_t count)
{
    unsigned char piece[PIECE_TOKENS * 4];
    zr_result result = ZR_OK;
    while (count > 0 && !result) {
        if (shards->file.fd >= 0 && shards->shard_count == shards->shard_tokens)
            result = zr_shards_finish(shards);
        if (!result && shards->file.fd < 0)
            result = start(shards);
        if (result)
            break;
        uint64_t left = shards->shard_tokens - shards->shard_count;
        size_t now = count < PIECE_TOKENS ? count : PIECE_TOKENS;
        now = now < left ? now : (size_t)left;
        for (size_t i = 0; i < now; i++)
            put(piece + i * shards->token_bytes, shards->token_bytes, (uint32_t)tokens[i]);
        result = zr_file_write(&shards->file, piece, now * shards->token_bytes);
        shards->shard_count += now;
        shards->tokens_count += now;
        tokens += now;
        count -= now;
    }
    return result;
}

void zr_shards_clean_up(const struct zr_shards *shards)
{
    if (shards->path[0])
        unlink(shards->path);
}
