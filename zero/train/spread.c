/* spread.c: files in memory of several launchers get the same contents, see zr_spread(). */
#include "zero/train/moved.h"

#include "alloc/base/error.h"
#include "alloc/heap/heap.h"

enum { PIECE_BYTES = 64 << 10 };

/* What this rank has written. */
struct written {
    struct zr_file_extent *pieces; /* [count] */
    size_t count;
};

static zr_result list(struct written *out, const struct zr_file *file)
{
    struct zr_file_extent piece;
    *out = (struct written){NULL, 0};
    for (uint64_t at = 0; (piece = zr_file_next_extent(file, PIECE_BYTES, at)).bytes > 0;
         at = piece.at + piece.bytes)
        out->count++;
    out->pieces = zr_heap_zalloc(out->count + 1, sizeof *out->pieces);
    if (!out->pieces)
        return ZR_ERR_HOST_MEMORY;
    for (size_t i = 0; i < out->count; i++)
        out->pieces[i] = zr_file_next_extent(file, PIECE_BYTES,
                                             i > 0 ? out->pieces[i - 1].at + out->pieces[i - 1].bytes : 0);
    return ZR_OK;
}

/* Adds bytes of another rank to a file. Where both have written, both have written the same, and what a rank
 * has not written is 0. */
static zr_result add(const struct zr_file *file, struct zr_file_extent extent, const unsigned char *theirs,
                     unsigned char *room)
{
    uint64_t size;
    zr_result result = zr_file_size(file, &size);
    if (result == ZR_OK && size < extent.at + extent.bytes)
        result = zr_file_resize(file, extent.at + extent.bytes);
    if (result == ZR_OK)
        result = zr_file_read_at(file, extent.at, room, extent.bytes);
    for (size_t i = 0; i < extent.bytes; i++)
        room[i] |= theirs[i];
    return result == ZR_OK ? zr_file_write_at(file, extent.at, room, extent.bytes) : result;
}

struct spread {
    const struct zr_rank *rank;
    const struct zr_file *file;
    struct zr_spread_part part;
    struct written written;
    unsigned char *room; /* [2][PIECE_BYTES] */
};

/* Brings the bytes that a rank has written to the files of the others. A rank that fails takes part to the
 * end. */
static zr_result bring(const struct spread *spread, unsigned root)
{
    const struct zr_rank *rank = spread->rank;
    const struct zr_file *file = spread->file;
    unsigned char *room = spread->room;
    struct zr_file_extent all[ZR_MAX_WORLD];
    zr_result result = ZR_OK, failed = ZR_OK;
    for (size_t i = 0; result == ZR_OK; i++) {
        zr_ticket ticket;
        const struct zr_file_extent mine =
            i < spread->written.count ? spread->written.pieces[i] : (struct zr_file_extent){0, 0};
        result = zr_comm_host_all_gather(rank->comm, &mine, sizeof mine, all);
        if (result != ZR_OK || all[root].bytes == 0)
            break;
        if (rank->rank == root && failed == ZR_OK)
            failed = zr_file_read_at(file, mine.at, room, mine.bytes);
        result = zr_comm_broadcast(
            rank->comm, &(struct zr_broadcast){.buffer = room, .bytes = all[root].bytes, .root = root},
            &ticket);
        if (result == ZR_OK)
            result = zr_comm_wait(rank->comm, ticket);
        if (result == ZR_OK && failed == ZR_OK && rank->rank != root && spread->part.takes)
            failed = add(file, all[root], room, room + PIECE_BYTES);
    }
    return result == ZR_OK ? failed : result;
}

zr_result zr_spread(const struct zr_rank *rank, const struct zr_file *file, struct zr_spread_part part)
{
    struct spread spread = {
        .rank = rank, .file = file, .part = part, .room = zr_heap_alloc((size_t)2 * PIECE_BYTES)};
    zr_result result = part.gives ? list(&spread.written, file) : ZR_OK;
    if (result == ZR_OK && !spread.room)
        result = ZR_ERR_HOST_MEMORY;
    result = zr_comm_all_status(rank->comm, result);
    for (unsigned r = 0; r < rank->config->world && result == ZR_OK; r++)
        result = zr_comm_all_status(rank->comm, bring(&spread, r));
    zr_heap_free(spread.written.pieces);
    zr_heap_free(spread.room);
    return result;
}
