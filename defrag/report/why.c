/* why.c: whether a request fits in a state of memory. Uses memory.c and PyTorch's constants. */
#include "defrag/report/why.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/sort.h"
#include "defrag/replay/torch_rules.h"

#define EXPANDABLE_PAGE (UINT64_C(20) << 20) /* PyTorch's kLargeBuffer */

const char *zr_verdict_name(enum zr_verdict verdict)
{
    static const char *const names[] = {"fits", "shortage", "fragmentation", "stream", "pool", "pending"};
    return names[verdict];
}

/* ---- The rules of the file's allocator ----------------------------------------------------------------- */

struct rules {
    uint64_t bytes;        /* the request with rounding */
    uint64_t driver_bytes; /* requested from the driver if no run fits */
    uint64_t stream;
    uint32_t pool;
    bool by_stream; /* runs belong to a stream and a pool */
    uint64_t
        stuck_bytes; /* releasable by their look, but not returned: see `released` in struct zr_question */
};

static uint64_t round_to(uint64_t bytes, uint64_t unit)
{
    return bytes > UINT64_MAX - unit ? UINT64_MAX - unit : (bytes + unit - 1) / unit * unit;
}

static struct rules rules_of(const struct zr_memory *memory, const struct zr_question *question)
{
    const struct zr_recording *recording = memory->recording;
    struct rules rules = {.bytes = round_to(question->size_bytes, recording->rounds_bytes),
                          .stream = question->stream,
                          .stuck_bytes = question->released ? memory->releasable_bytes : 0};
    if (recording->kind == ZR_RECORDING_TORCH) {
        bool small = zr_torch_is_small(rules.bytes);
        rules.by_stream = true;
        rules.pool = small;
        if (recording->expandable)
            rules.driver_bytes = round_to(rules.bytes, small ? ZR_TORCH_SMALL_BUFFER : EXPANDABLE_PAGE);
        else
            rules.driver_bytes = rules.bytes > UINT64_MAX / 2 ? rules.bytes : zr_torch_segment(rules.bytes);
    } else {
        rules.driver_bytes = round_to(rules.bytes, recording->granule_bytes ? recording->granule_bytes : 1);
    }
    return rules;
}

static bool own_run(const struct rules *rules, const struct zr_range_record *mapped)
{
    return !rules->by_stream || (mapped->stream == rules->stream && mapped->pool == rules->pool);
}

struct runs {
    uint64_t own, other_stream, other_pool; /* the longest runs */
};

static struct runs find_runs(const struct zr_memory *memory, const struct rules *rules)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    struct runs runs = {0};
    while (zr_memory_next(&walk, &piece)) {
        if (piece.block || !piece.mapped)
            continue;
        uint64_t *longest = own_run(rules, piece.mapped)            ? &runs.own
                            : piece.mapped->stream != rules->stream ? &runs.other_stream
                                                                    : &runs.other_pool;
        if (piece.bytes > *longest)
            *longest = piece.bytes;
    }
    return runs;
}

static uint64_t less(uint64_t from, uint64_t bytes)
{
    return from > bytes ? from - bytes : 0;
}

/* Reserved bytes that the allocator keeps if it needs more. */
static uint64_t held_bytes(const struct zr_memory *memory, const struct rules *rules)
{
    return memory->reserved_bytes - less(memory->releasable_bytes, rules->stuck_bytes);
}

static bool fits(const struct zr_memory *memory, const struct rules *rules, uint64_t capacity_bytes)
{
    return find_runs(memory, rules).own >= rules->bytes ||
           less(capacity_bytes, held_bytes(memory, rules)) >= rules->driver_bytes;
}

/* Whether the request would fit if pending memory were free: in a run of free and pending pieces, or in the
 * segments or granules without other blocks. */
static bool fits_without_pending(const struct zr_memory *memory, const struct rules *rules,
                                 uint64_t capacity_bytes)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    const struct zr_range_record *mapped = NULL;
    uint64_t low = 0, end = 0, kept_bytes = memory->reserved_bytes;
    bool more = true, open = false;
    while (more) {
        more = zr_memory_next(&walk, &piece);
        bool free_piece = more && piece.mapped && (!piece.block || piece.block->pending);
        if (open && (!free_piece || piece.mapped != mapped || piece.address != end)) {
            uint64_t unit = mapped->unit_bytes, begin = mapped->address;
            if (own_run(rules, mapped) && end - low >= rules->bytes)
                return true;
            if (unit == 0 && end - low >= mapped->bytes)
                kept_bytes -= mapped->bytes;
            else if (unit > 0 && (end - begin) / unit * unit > round_to(low - begin, unit))
                kept_bytes -= (end - begin) / unit * unit - round_to(low - begin, unit);
            open = false;
        }
        if (free_piece && !open) {
            low = piece.address;
            mapped = piece.mapped;
            open = true;
        }
        end = piece.address + piece.bytes;
    }
    return less(capacity_bytes, kept_bytes) >= rules->driver_bytes;
}

void zr_why_answer(struct zr_answer *out, const struct zr_memory *memory, const struct zr_question *question)
{
    struct rules rules = rules_of(memory, question);
    struct runs runs = find_runs(memory, &rules);
    *out = (struct zr_answer){.size_bytes = rules.bytes,
                              .free_bytes =
                                  less(question->capacity_bytes, memory->live_bytes + memory->pending_bytes),
                              .largest_free_run_bytes = runs.own,
                              .releasable_bytes = memory->releasable_bytes,
                              .unreserved_bytes = less(question->capacity_bytes, memory->reserved_bytes),
                              .pending_bytes = memory->pending_bytes,
                              .live_bytes = memory->live_bytes};
    if (fits(memory, &rules, question->capacity_bytes))
        out->verdict = ZR_VERDICT_FITS;
    else if (runs.other_stream >= rules.bytes)
        out->verdict = ZR_VERDICT_STREAM;
    else if (runs.other_pool >= rules.bytes)
        out->verdict = ZR_VERDICT_POOL;
    else if (memory->pending_bytes > 0 && fits_without_pending(memory, &rules, question->capacity_bytes))
        out->verdict = ZR_VERDICT_PENDING;
    else
        out->verdict = out->free_bytes >= rules.bytes ? ZR_VERDICT_FRAGMENTATION : ZR_VERDICT_SHORTAGE;
}

/* ---- Pins ---------------------------------------------------------------------------------------------- */

/* Adjacent blocks that share segments or granules with no other block. */
struct cluster {
    size_t first, end;   /* indices into the pieces */
    uint64_t cost_bytes; /* bytes of its blocks */
    uint64_t gain_bytes; /* releasable bytes without these blocks */
};

struct choice {
    const struct rules *rules;
    struct zr_vector pieces;   /* struct zr_memory_piece, in address order */
    struct zr_vector clusters; /* struct cluster */
    size_t first, end;         /* the cheapest window: pieces of one run, long enough */
    uint64_t cost_bytes;       /* of the window; UINT64_MAX: none */
};

static uint64_t cost_of(const struct zr_memory_piece *piece)
{
    return piece->block ? piece->bytes : 0;
}

/* Finds windows in pieces [first, end) of one run: for each first piece, the fewest that suffice. */
static void find_window(struct choice *choice, size_t first, size_t end)
{
    const struct zr_memory_piece *pieces = choice->pieces.items;
    uint64_t bytes = 0, cost = 0;
    for (size_t low = first, high = first; low < end; low++) {
        for (; high < end && bytes < choice->rules->bytes; high++) {
            bytes += pieces[high].bytes;
            cost += cost_of(&pieces[high]);
        }
        if (bytes < choice->rules->bytes)
            return;
        if (cost < choice->cost_bytes) {
            choice->first = low;
            choice->end = high;
            choice->cost_bytes = cost;
        }
        bytes -= pieces[low].bytes;
        cost -= cost_of(&pieces[low]);
    }
}

static zr_result find_clusters(struct choice *choice, size_t first, size_t end)
{
    const struct zr_memory_piece *pieces = choice->pieces.items;
    const struct zr_range_record *mapped = pieces[first].mapped;
    uint64_t unit = mapped->unit_bytes ? mapped->unit_bytes : mapped->bytes, high = 0;
    struct cluster cluster = {0};
    zr_result result = ZR_OK;
    for (size_t i = first; i < end && result == ZR_OK; i++) {
        if (!pieces[i].block || pieces[i].address < mapped->address)
            continue;
        uint64_t low = (pieces[i].address - mapped->address) / unit * unit;
        uint64_t top = round_to(pieces[i].address + pieces[i].bytes - mapped->address, unit);
        if (cluster.cost_bytes > 0 && low >= high) {
            result = zr_vector_add(&choice->clusters, &cluster);
            cluster.cost_bytes = 0;
        }
        if (cluster.cost_bytes == 0)
            cluster = (struct cluster){.first = i, .gain_bytes = top - low};
        else if (top > high)
            cluster.gain_bytes += top - high;
        cluster.cost_bytes += pieces[i].bytes;
        cluster.end = i + 1;
        high = top;
    }
    return result == ZR_OK && cluster.cost_bytes > 0 ? zr_vector_add(&choice->clusters, &cluster) : result;
}

/* Orders by gain per cost, descending. */
static bool cheaper(const void *a, const void *b)
{
    const struct cluster *one = a, *other = b;
    double left = (double)one->cost_bytes * (double)other->gain_bytes;
    double right = (double)other->cost_bytes * (double)one->gain_bytes;
    return left != right ? left < right : one->first < other->first;
}

static zr_result look_at(struct choice *choice, const struct zr_memory *memory)
{
    struct zr_memory_walk walk = zr_memory_walk_of(memory);
    struct zr_memory_piece piece;
    zr_result result = ZR_OK;
    while (result == ZR_OK && zr_memory_next(&walk, &piece))
        if (piece.mapped)
            result = zr_vector_add(&choice->pieces, &piece);
    const struct zr_memory_piece *pieces = choice->pieces.items;
    for (size_t first = 0, end; first < choice->pieces.count && result == ZR_OK; first = end) {
        for (end = first + 1; end < choice->pieces.count && pieces[end].mapped == pieces[first].mapped;)
            end++;
        if (own_run(choice->rules, pieces[first].mapped))
            find_window(choice, first, end);
        result = find_clusters(choice, first, end);
    }
    if (result == ZR_OK)
        zr_sort_in_place(&(struct zr_sort_records){choice->clusters.items, choice->clusters.count,
                                                   sizeof(struct cluster), cheaper});
    return result;
}

static zr_result add_pins(struct zr_vector *pins, const struct choice *choice, size_t first, size_t end)
{
    const struct zr_memory_piece *pieces = choice->pieces.items;
    zr_result result = ZR_OK;
    for (size_t i = first; i < end && result == ZR_OK; i++) {
        const struct zr_range_record *block = pieces[i].block;
        if (block)
            result = zr_vector_add(pins,
                                   &(struct zr_pin){block->address, block->bytes, block->requested_bytes,
                                                    block->stream, block->stack, block->tag, block->pending});
    }
    return result;
}

static zr_result choose(struct zr_vector *pins, struct choice *choice, const struct zr_memory *memory,
                        uint64_t capacity_bytes)
{
    const struct cluster *clusters = choice->clusters.items;
    uint64_t have_bytes = less(capacity_bytes, held_bytes(memory, choice->rules)), cost_bytes = 0;
    size_t count = 0;
    for (; count < choice->clusters.count && have_bytes < choice->rules->driver_bytes; count++) {
        have_bytes += clusters[count].gain_bytes;
        cost_bytes += clusters[count].cost_bytes;
    }
    if (choice->cost_bytes != UINT64_MAX &&
        (have_bytes < choice->rules->driver_bytes || choice->cost_bytes <= cost_bytes))
        return add_pins(pins, choice, choice->first, choice->end);
    if (have_bytes < choice->rules->driver_bytes)
        return ZR_OK;
    zr_result result = ZR_OK;
    for (size_t i = count; i-- > 0 && result == ZR_OK;) {
        if (have_bytes - clusters[i].gain_bytes >= choice->rules->driver_bytes)
            have_bytes -= clusters[i].gain_bytes; /* redundant: drop the cluster */
        else
            result = add_pins(pins, choice, clusters[i].first, clusters[i].end);
    }
    return result;
}

static bool larger(const void *a, const void *b)
{
    const struct zr_pin *one = a, *other = b;
    return one->bytes != other->bytes ? one->bytes > other->bytes : one->address < other->address;
}

static zr_result add_pending(struct zr_vector *pins, const struct zr_memory *memory)
{
    zr_result result = ZR_OK;
    const struct zr_range_record *block = zr_extents_ceiling(&memory->blocks, 0);
    for (; block && result == ZR_OK; block = zr_extents_next(&memory->blocks, block))
        if (block->pending)
            result =
                zr_vector_add(pins, &(struct zr_pin){block->address, block->bytes, block->requested_bytes,
                                                     block->stream, block->stack, block->tag, true});
    return result;
}

zr_result zr_why_pins(struct zr_vector *pins, struct zr_memory *memory, const struct zr_question *question,
                      enum zr_verdict verdict, bool *proved)
{
    struct rules rules = rules_of(memory, question);
    struct choice choice = {.rules = &rules, .cost_bytes = UINT64_MAX};
    zr_arena *arena = pins->arena;
    zr_result result;
    *proved = false;
    zr_vector_init(&choice.pieces, arena, sizeof(struct zr_memory_piece));
    zr_vector_init(&choice.clusters, arena, sizeof(struct cluster));
    if (verdict == ZR_VERDICT_PENDING) {
        result = add_pending(pins, memory);
    } else {
        result = look_at(&choice, memory);
        if (result == ZR_OK)
            result = choose(pins, &choice, memory, question->capacity_bytes);
    }
    for (size_t i = 0; i < pins->count && result == ZR_OK; i++) {
        const struct zr_pin *pin = zr_vector_at(pins, i);
        zr_memory_remove(memory, zr_extents_floor(&memory->blocks, pin->address));
    }
    zr_sort_in_place(&(struct zr_sort_records){pins->items, pins->count, sizeof(struct zr_pin), larger});
    if (result == ZR_OK && pins->count > 0)
        *proved = fits(memory, &rules, question->capacity_bytes);
    zr_vector_end(&choice.clusters);
    zr_vector_end(&choice.pieces);
    return result;
}
