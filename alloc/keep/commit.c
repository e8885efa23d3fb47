/* commit.c: generations of a segment: begin, write, commit, read. See zr_keep.h. Uses segment.c.
 *
 * A tensor in two places has the contents of the place with the largest generation up to the committed one.
 * The writer takes the other place: its generation becomes 0, then the data are written, then it gets the new
 * generation, which counts for readers once the word `committed` reaches it. A new writer clears generations
 * above that word before it begins one, and numbers are never used twice, so that a later commit does not
 * make the contents of a dead writer valid.
 *
 * A tensor in place is marked open while it is written; after that its generation tells whether the commit
 * followed. */
#include "alloc/keep/mapping.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/keep/holder.h"

/* The place with the contents of the generation `limit` or the last one before it; -1: none. */
static int place_of(const struct zr_segment_entry *entry, uint64_t limit, uint64_t *generation)
{
    int best = -1;
    *generation = 0;
    for (int place = 0; place < 2; place++) {
        uint64_t own = atomic_load_explicit(&entry->generations[place], memory_order_acquire);
        if (own > *generation && own <= limit) {
            *generation = own;
            best = place;
        }
    }
    return best;
}

static uint64_t committed_of(const zr_keep *keep)
{
    return atomic_load_explicit(&keep->header->committed, memory_order_acquire);
}

void zr_keep_recover(zr_keep *keep)
{
    uint64_t committed = committed_of(keep);
    struct zr_segment_entry *entry;
    for (uint32_t tensor = 0; (entry = zr_keep_entry(keep, tensor)); tensor++)
        for (unsigned place = 0; entry->places_count == 2 && place < 2; place++)
            if (atomic_load(&entry->generations[place]) > committed)
                zr_segment_store(&entry->generations[place], 0);
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

static zr_result check_begun(const zr_keep *keep, const char *call)
{
    zr_result result = zr_keep_check_writer(keep, call);
    return result != ZR_OK || keep->generation != 0
               ? result
               : zr_fail(ZR_ERR_INVALID, "%s: no generation of segment '%s' has begun: call zr_keep_begin()",
                         call, keep->shape.name);
}

static void end_generation(zr_keep *keep)
{
    keep->generation = 0;
    memset(keep->written, 0, keep->shape.tensors_max);
}

zr_result zr_keep_begin(zr_keep *keep, uint64_t *generation)
{
    zr_result result = zr_keep_check_writer(keep, "zr_keep_begin");
    if (result != ZR_OK)
        return result;
    if (keep->generation != 0)
        return zr_fail(ZR_ERR_INVALID,
                       "generation %llu of segment '%s' has begun already: commit or abandon it",
                       (unsigned long long)keep->generation, keep->shape.name);
    zr_holding_check(keep);
    uint64_t begun = atomic_load(&keep->header->begun), committed = committed_of(keep);
    keep->generation = (begun > committed ? begun : committed) + 1;
    zr_segment_store(&keep->header->begun, keep->generation);
    if (generation)
        *generation = keep->generation;
    return ZR_OK;
}

zr_result zr_keep_write(zr_keep *keep, uint32_t tensor, void **address)
{
    struct zr_keep_tensor_info info;
    uint64_t generation;
    if (!address)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_write: address is NULL");
    *address = NULL;
    zr_result result = check_begun(keep, "zr_keep_write");
    if (result == ZR_OK)
        result = zr_keep_tensor_get(keep, tensor, &info);
    if (result != ZR_OK)
        return result;
    struct zr_segment_entry *entry = zr_keep_entry(keep, tensor);
    int place = info.mode == ZR_KEEP_TWO_PLACES && place_of(entry, committed_of(keep), &generation) == 0;
    if (keep->written[tensor] == 0) {
        zr_segment_store(info.mode == ZR_KEEP_TWO_PLACES ? &entry->generations[place] : &entry->opened,
                         info.mode == ZR_KEEP_TWO_PLACES ? 0 : keep->generation);
        atomic_thread_fence(memory_order_seq_cst); /* readers see the mark before they see new contents */
        keep->written[tensor] = (uint8_t)(1 + place);
    }
    *address = zr_keep_at(keep, info.offset_bytes[place] - keep->shape.data_bytes);
    return ZR_OK;
}

zr_result zr_keep_commit(zr_keep *keep)
{
    struct zr_segment_entry *entry;
    zr_result result = check_begun(keep, "zr_keep_commit");
    if (result != ZR_OK)
        return result;
    for (uint32_t tensor = 0; (entry = zr_keep_entry(keep, tensor)); tensor++) {
        if (keep->written[tensor] == 0)
            continue;
        zr_segment_store(&entry->generations[keep->written[tensor] - 1], keep->generation);
        if (entry->places_count == 1)
            zr_segment_store(&entry->opened, 0);
    }
    zr_segment_store(&keep->header->committed, keep->generation);
    end_generation(keep);
    return ZR_OK;
}

zr_result zr_keep_abandon(zr_keep *keep)
{
    zr_result result = check_begun(keep, "zr_keep_abandon");
    if (result == ZR_OK)
        end_generation(keep);
    return result;
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

/* Contents of a tensor that has one place. */
static zr_result read_in_place(const zr_keep *keep, const struct zr_segment_entry *entry,
                               const struct zr_keep_tensor_info *info, struct zr_keep_view *out)
{
    uint64_t opened = atomic_load_explicit(&entry->opened, memory_order_acquire);
    out->generation = atomic_load_explicit(&entry->generations[0], memory_order_acquire);
    out->address = zr_keep_at(keep, info->offset_bytes[0] - keep->shape.data_bytes);
    if (opened != 0) {
        out->state = ZR_KEEP_OPEN;
        out->generation = opened;
        return zr_fail(
            ZR_ERR_CORRUPT,
            "tensor '%s' of segment '%s' was being written for generation %llu: redo that generation",
            info->name, keep->shape.name, (unsigned long long)opened);
    }
    if (out->generation == 0) {
        *out = (struct zr_keep_view){.bytes = info->bytes, .state = ZR_KEEP_EMPTY};
        return zr_fail(ZR_ERR_UNAVAILABLE, "tensor '%s' of segment '%s' was never committed", info->name,
                       keep->shape.name);
    }
    if (out->generation <= committed_of(keep))
        return ZR_OK;
    out->state = ZR_KEEP_AHEAD;
    return zr_fail(ZR_ERR_CORRUPT,
                   "tensor '%s' of segment '%s' has contents of generation %llu, which was not committed",
                   info->name, keep->shape.name, (unsigned long long)out->generation);
}

zr_result zr_keep_read(const zr_keep *keep, uint32_t tensor, struct zr_keep_view *out)
{
    struct zr_keep_tensor_info info;
    if (!out)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_read: out is NULL");
    zr_result result = zr_keep_tensor_get(keep, tensor, &info);
    if (result != ZR_OK)
        return result;
    const struct zr_segment_entry *entry = zr_keep_entry(keep, tensor);
    *out = (struct zr_keep_view){.bytes = info.bytes};
    if (info.mode == ZR_KEEP_IN_PLACE)
        return read_in_place(keep, entry, &info, out);
    uint64_t committed;
    int place;
    do { /* two commits in between may take both places */
        committed = committed_of(keep);
        place = place_of(entry, committed, &out->generation);
    } while (place < 0 && committed != committed_of(keep));
    if (place < 0) {
        out->state = ZR_KEEP_EMPTY;
        return zr_fail(ZR_ERR_UNAVAILABLE, "tensor '%s' of segment '%s' was never committed", info.name,
                       keep->shape.name);
    }
    out->address = zr_keep_at(keep, info.offset_bytes[place] - keep->shape.data_bytes);
    return ZR_OK;
}

zr_result zr_keep_read_check(const zr_keep *keep, uint32_t tensor, const struct zr_keep_view *view)
{
    const struct zr_segment_entry *entry = keep && view ? zr_keep_entry(keep, tensor) : NULL;
    if (!entry)
        return zr_fail(ZR_ERR_INVALID, "zr_keep_read_check: no segment, tensor or view");
    atomic_thread_fence(memory_order_acquire); /* the contents were read before */
    struct zr_keep_view now = {0};
    bool same = false;
    for (unsigned place = 0; entry->places_count == 2 && place < 2; place++)
        same |= atomic_load_explicit(&entry->generations[place], memory_order_relaxed) == view->generation;
    if (entry->places_count == 1) {
        zr_keep_read(keep, tensor, &now);
        same = now.generation == view->generation && now.state == view->state;
    }
    return same ? ZR_OK
                : zr_fail(ZR_ERR_PEER,
                          "the writer of segment '%s' overwrote a tensor during the read: read again",
                          keep->shape.name);
}
