/* shards.h: writes tokens as llm.c's shards: a header of 256 int32 (magic, version, tokens), then the tokens,
 * little-endian, in two or four bytes. A shard is written beside its name, synced and renamed, so that a name
 * always has a whole shard. One thread per struct. */
#ifndef ZR_TRAIN_SHARDS_H
#define ZR_TRAIN_SHARDS_H

#include "alloc/base/system/file.h"

enum {
    ZR_SHARD_MAGIC = 20240520,      /* version 1: two bytes per token */
    ZR_SHARD_WIDE_MAGIC = 20240801, /* version 7: four */
    ZR_SHARD_HEADER_BYTES = 1024,
    ZR_SHARD_PATH_ROOM = 4096
};

struct zr_shards {
    const char *folder, *name;          /* borrowed: DIR/NAME_000000.bin, .. */
    unsigned token_bytes;               /* 2 or 4 */
    uint64_t shard_tokens;              /* maximum of a shard, below 1 << 31 */
    uint64_t tokens_count;              /* of all shards */
    unsigned shards_count;              /* started so far */
    uint64_t shard_count;               /* tokens of the open shard */
    struct zr_file file;                /* the open shard; {.fd = -1}: none */
    char path[ZR_SHARD_PATH_ROOM + 16]; /* of the open shard while it is written; "": none */
};

/* Appends tokens. ZR_ERR_IO. */
zr_result zr_shards_add(struct zr_shards *shards, const int32_t *tokens, size_t count);
/* Completes the open shard, if any. */
zr_result zr_shards_finish(struct zr_shards *shards);
/* Removes the open shard. Async-signal-safe. */
void zr_shards_clean_up(const struct zr_shards *shards);

#endif
