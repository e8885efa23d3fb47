/* error_file.c: what a rank whose gradients have errors (zero/engine/errors.h) has beside the state: the
 * errors and velocities, and after local steps (zero/engine/zerone.h) its masters, momenta and buffers, in a
 * file of its own in the step's folder, and in that of rank 0 the parameters, if these are no rounded masters
 * (onebit, differences), and with low rank the matrices Q. Numbers are floats in the order of the parameter
 * list, so another number of ranks can read them: rank r of M adds the errors and velocities of the former
 * ranks r, r + M, .., and their sums stay what they were. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/engine/compression.h"
#include "zero/engine/errors.h"
#include "zero/engine/low_rank.h"
#include "zero/engine/momentum.h"
#include "zero/engine/onebit.h"
#include "zero/engine/update.h"
#include "zero/engine/zerone.h"

/* Of the first kinds each rank has its own; owners are those of zero/engine/momentum.h, and each file has the
 * part of its rank. Sections: units up to the end of their last tensor, and the padding behind it, which is
 * in the scales of its blocks and depends on the number of ranks. */
enum {
    ERRORS,
    VELOCITIES,
    MASTERS,
    MOMENTA,
    BUFFERS,
    OWN_KINDS,
    PARAMETERS = OWN_KINDS,
    FACTORS,
    OWNERS,
    KINDS
};
enum { PIECE = 16384, SECTIONS = 2 * KINDS };

struct header {
    char magic[8];
    uint64_t world, rank, method, warmup_steps;
    uint64_t state_checksum; /* of the state in the same folder */
    struct zr_local_steps local;
    uint64_t counts[SECTIONS]; /* numbers of each section: tensors, then padding */
    uint64_t checksums[SECTIONS];
    uint64_t checksum; /* of all of the above */
};
static const char magic[8] = "zr-error";

static uint64_t checksum_of(const struct header *header)
{
    return zr_state_checksum(0, header, offsetof(struct header, checksum) / sizeof(uint32_t));
}

struct error_file {
    zr_engine *engine;
    struct zr_file file;
    struct header header;
    float *piece;      /* [2 * PIECE]: numbers of the file, and those that they are added to */
    bool reads, saved; /* the step has been saved with such files */
    uint64_t sum;
};

bool zr_errors_exist(const zr_engine *engine)
{
    bool trains = false; /* else it has no gradients, and reads masters as its parameters */
    for (size_t u = 0; u < engine->layout.units_count; u++)
        trains |= !zr_engine_is_frozen(engine, u);
    bool errors = zr_engine_keeps_errors(engine) && engine->steps_done > zr_engine_errors_first(engine),
         replicas =
             zr_engine_keeps_replicas(engine) && !zr_engine_is_onebit(engine) && engine->steps_done > 0;
    return trains && (errors || replicas);
}

/* Errors of momentum are not those of gradients. Another rank has other matrices Q, and only a run of
 * differences has parameters here. The number of updates of zerone's variance is part of its correction. */
static uint64_t method_of(const struct zr_engine *engine)
{
    enum { OF_MOMENTUM = 1 << 8, OF_DIFFERENCES = 1 << 9, OF_RANK = 1 << 10 };
    const bool low_rank = zr_engine_sends_by(engine, ZR_METHOD_LOW_RANK);
    const float rank = engine->options.compression.kinds[ZR_COMPRESSED_GRADIENTS].parameter;
    return engine->options.compression.kinds[ZR_COMPRESSED_GRADIENTS].method +
           (engine->exchanges_momentum ? OF_MOMENTUM : 0u) +
           (zr_engine_keeps_replicas(engine) ? OF_DIFFERENCES : 0u) +
           (zr_engine_is_zerone(engine) ? engine->options.compression.zerone.variance_updates * OF_RANK
                                        : 0u) +
           (low_rank ? (uint64_t)rank * OF_RANK : 0u);
}

/* The part of the unit that a rank of `world` owns, up to its last tensor: errors of padding are 0. */
static struct zr_overlap owned_part(const struct zr_engine *engine, size_t unit, size_t used,
                                    const struct header *file)
{
    size_t align = zr_layout_align(&engine->layout, unit), all = align * file->world,
           shard = (used + all - 1) / all * align, from = shard * file->rank;
    if (!engine->exchanges_momentum || from >= used)
        return (struct zr_overlap){0, 0};
    return (struct zr_overlap){from, used - from < shard ? used - from : shard};
}

/* The part of a unit that is in a section of a file. */
static struct zr_overlap part_of(const struct zr_engine *engine, size_t unit, unsigned section,
                                 const struct header *file)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    const struct zr_layout_parameter *last =
        &engine->layout.parameters[u->first_parameter + u->parameters_count - 1];
    size_t used = last->offset + last->elements, factors;
    const unsigned kind = section % KINDS;
    zr_engine_low_rank_factors(engine, unit, &factors);
    if (kind == FACTORS)
        return (struct zr_overlap){0, section < KINDS ? factors : 0};
    if (zr_engine_is_frozen(engine, unit) || (kind == VELOCITIES && !engine->compression.velocity) ||
        (kind == ERRORS && !zr_engine_keeps_errors(engine)) ||
        (kind == PARAMETERS && !zr_engine_keeps_replicas(engine)) || (kind == OWNERS && section >= KINDS))
        return (struct zr_overlap){0, 0};
    if (kind >= MASTERS && kind <= BUFFERS)
        return (struct zr_overlap){0, file->local.count > 0 && section < KINDS ? used : 0};
    if (kind == OWNERS)
        return owned_part(engine, unit, used, file);
    return section < KINDS ? (struct zr_overlap){0, used}
                           : (struct zr_overlap){used, u->padded_elements - used};
}

/* Whether a section is the same on all ranks, and in the file of rank 0; other sections are added. */
static bool is_common(unsigned section)
{
    return section % KINDS == PARAMETERS || section % KINDS == FACTORS;
}

static uint64_t count_of(const struct zr_engine *engine, unsigned section, const struct header *file)
{
    uint64_t sum = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++)
        sum += part_of(engine, u, section, file).count;
    return file->rank == 0 || !is_common(section) ? sum : 0;
}

/* Where this rank has numbers of a section, and which of the unit's. */
static struct zr_numbers memory_of(const struct zr_engine *engine, size_t unit, unsigned section,
                                   struct zr_overlap *here)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    *here = (struct zr_overlap){0, u->padded_elements};
    switch (section % KINDS) {
    case PARAMETERS:
        return (struct zr_numbers){engine->units[unit].whole, engine->options.precision};
    case FACTORS:
        return (struct zr_numbers){zr_engine_low_rank_factors(engine, unit, &here->count), ZR_PRECISION_FP32};
    case VELOCITIES:
        return (struct zr_numbers){engine->compression.velocity + u->pool_offset, ZR_PRECISION_FP32};
    case MASTERS: /* exchanged with the anchor, which is in the state */
        return (struct zr_numbers){zr_engine_anchor(engine, unit), ZR_PRECISION_FP32};
    case MOMENTA:
        return (struct zr_numbers){engine->units[unit].owned.slots[0], ZR_PRECISION_FP32};
    case BUFFERS:
        return (struct zr_numbers){zr_engine_buffer(engine, unit), ZR_PRECISION_FP32};
    case OWNERS:
        *here = (struct zr_overlap){engine->rank * u->shard_elements, u->shard_elements};
        return (struct zr_numbers){zr_engine_owner_errors(engine, unit), ZR_PRECISION_FP32};
    default:
        return (struct zr_numbers){zr_engine_errors(engine, unit), ZR_PRECISION_FP32};
    }
}

/* Writes `part` of a unit, whose index in the file is `place`, or reads it and stores, or adds, what this
 * rank has of it. */
static zr_result transfer_piece(struct error_file *io, size_t unit, unsigned section, struct zr_overlap part,
                                uint64_t place)
{
    struct zr_overlap here;
    struct zr_numbers numbers = memory_of(io->engine, unit, section, &here);
    uint64_t at_bytes = sizeof io->header + place * sizeof(float);
    size_t first = part.offset > here.offset ? part.offset : here.offset,
           end = part.offset + part.count < here.offset + here.count ? part.offset + part.count
                                                                     : here.offset + here.count;
    zr_result result = ZR_OK;
    if (!io->reads) /* which has all of it */
        result = zr_engine_get_floats(io->engine, unit, zr_numbers_at(numbers, first - here.offset),
                                      part.count, io->piece);
    if (result == ZR_OK)
        result = io->reads ? zr_file_read_at(&io->file, at_bytes, io->piece, part.count * sizeof(float))
                           : zr_file_write_at(&io->file, at_bytes, io->piece, part.count * sizeof(float));
    if (result != ZR_OK)
        return result;
    io->sum += zr_state_checksum(place, io->piece, part.count);
    if (!io->reads || first >= end)
        return ZR_OK;
    float *mine = io->piece + (first - part.offset), *errors = io->piece + PIECE;
    numbers = zr_numbers_at(numbers, first - here.offset);
    if (!is_common(section))
        result = zr_engine_get_floats(io->engine, unit, numbers, end - first, errors);
    for (size_t i = 0; !is_common(section) && i < end - first; i++)
        mine[i] += errors[i];
    return result == ZR_OK ? zr_engine_put_floats(io->engine, unit, mine, end - first, numbers) : result;
}

static zr_result transfer(struct error_file *io, unsigned section)
{
    struct zr_engine *engine = io->engine;
    uint64_t place = 0;
    zr_result result = ZR_OK;
    if (io->header.counts[section] == 0)
        return ZR_OK;
    for (unsigned before = 0; before < section; before++)
        place += io->header.counts[before];
    io->sum = 0;
    for (size_t u = 0; u < engine->layout.units_count; u++) {
        struct zr_overlap whole = part_of(engine, u, section, &io->header);
        for (size_t done = 0, part; done < whole.count && result == ZR_OK; done += part, place += part) {
            part = whole.count - done < PIECE ? whole.count - done : PIECE;
            result = transfer_piece(io, u, section, (struct zr_overlap){whole.offset + done, part}, place);
        }
    }
    if (!io->reads)
        io->header.checksums[section] = io->sum;
    return result == ZR_OK && io->sum != io->header.checksums[section]
               ? zr_fail(ZR_ERR_FORMAT,
                         "errors of rank %" PRIu64 " are damaged: their checksum does not match; "
                         "resume another step",
                         io->header.rank)
               : result;
}

static zr_result path_of(char out[ZR_CHECKPOINT_PATH_ROOM], const char *folder, uint64_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "errors.%05" PRIu64, rank);
    return zr_path_join(out, ZR_CHECKPOINT_PATH_ROOM, &(struct zr_path_parts){folder, name});
}

static zr_result take_piece(struct error_file *io)
{
    return zr_take(io->engine->options.host_arena, ZR_TAG_OTHER, (size_t)2 * PIECE, sizeof(float),
                   (void **)&io->piece);
}

zr_result zr_errors_save(zr_engine *engine, const char *folder, uint64_t state_checksum)
{
    char path[ZR_CHECKPOINT_PATH_ROOM];
    struct error_file io = {.engine = engine,
                            .file = {.fd = -1},
                            .header = {.world = engine->world,
                                       .rank = engine->rank,
                                       .method = method_of(engine),
                                       .warmup_steps = zr_engine_warmup_steps(engine),
                                       .state_checksum = state_checksum,
                                       .local = engine->local}};
    if (!zr_errors_exist(engine))
        return ZR_OK;
    memcpy(io.header.magic, magic, sizeof magic);
    zr_result result = take_piece(&io);
    if (result == ZR_OK)
        result = path_of(path, folder, engine->rank);
    if (result == ZR_OK)
        result = zr_file_create(&io.file, path, ZR_CREATE_NEW);
    for (unsigned s = 0; s < SECTIONS; s++)
        io.header.counts[s] = count_of(engine, s, &io.header);
    for (unsigned s = 0; s < SECTIONS && result == ZR_OK; s++)
        result = transfer(&io, s);
    io.header.checksum = checksum_of(&io.header);
    if (result == ZR_OK)
        result = zr_file_write_at(&io.file, 0, &io.header, sizeof io.header);
    if (result == ZR_OK)
        result = zr_file_sync(&io.file);
    zr_result closed = zr_file_close(&io.file);
    zr_drop(engine->options.host_arena, &io.piece);
    return result == ZR_OK ? closed : result;
}

/* Opens and checks the file of a former rank. */
static zr_result open_file(struct error_file *io, const char *path, uint64_t rank, uint64_t state_checksum)
{
    struct header *h = &io->header;
    enum zr_path_kind kind;
    zr_result result = zr_path_kind_get(path, &kind);
    if (result == ZR_OK && kind == ZR_PATH_NONE)
        result =
            io->saved
                ? zr_fail(ZR_ERR_FORMAT, "'%s' is missing beside its manifest; resume another step", path)
            : zr_engine_sends_by(io->engine, ZR_METHOD_LARGEST) || zr_engine_is_zerone(io->engine)
                ? zr_fail(ZR_ERR_FORMAT,
                          "'%s' is missing: a step has errors of the gradients that were sent; if none were "
                          "compressed, leave --compress out, or give a method with a warm-up",
                          path)
                : zr_fail(ZR_ERR_FORMAT,
                          "'%s' is missing: a step after the warm-up has errors of the gradients that were "
                          "sent; if none were compressed, give --compress-warmup %" PRIu64 " or more",
                          path, io->engine->steps_done);
    if (result == ZR_OK)
        result = zr_file_open_regular(&io->file, path);
    if (result == ZR_OK)
        result = zr_file_read_at(&io->file, 0, h, sizeof *h);
    if (result != ZR_OK)
        return result;
    bool right = memcmp(h->magic, magic, sizeof magic) == 0 && h->checksum == checksum_of(h) &&
                 h->rank == rank && h->world > rank && h->world <= ZR_MAX_WORLD &&
                 h->state_checksum == state_checksum;
    if (right && h->method != method_of(io->engine))
        return zr_fail(
            ZR_ERR_INVALID,
            "'%s' is of another method or rank of --compress, of onebit at another stage, or of zerone "
            "with another --zerone-variance; "
            "resume with those that wrote it",
            path);
    for (unsigned s = 0; s < SECTIONS; s++)
        right = right &&
                ((s >= KINDS && h->world != io->engine->world) || h->counts[s] == count_of(io->engine, s, h));
    if (!right)
        return zr_fail(ZR_ERR_FORMAT, "'%s' is not of the step's state, or damaged; resume another step",
                       path);
    return h->warmup_steps == zr_engine_warmup_steps(io->engine) || !zr_engine_is_onebit(io->engine)
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID,
                         "'%s' is of a run whose variance settled in %" PRIu64 " steps, and keeps its "
                         "correction; resume with --compress-warmup %" PRIu64,
                         path, h->warmup_steps, h->warmup_steps);
}

/* Before numbers are added. Momenta of another number of ranks are not read. */
static zr_result clear_locals(const struct error_file *io)
{
    const struct zr_engine *engine = io->engine;
    const struct zr_engine_options *o = &engine->options;
    if (io->header.local.count == 0)
        return ZR_OK;
    zr_result result = o->kernels->clear(
        o->context,
        &(struct zr_clear){2 * engine->layout.pool_elements * sizeof *engine->anchors, engine->anchors});
    for (size_t u = 0; u < engine->layout.units_count && io->header.world == engine->world && result == ZR_OK;
         u++)
        if (!zr_engine_is_frozen(engine, u))
            result = o->kernels->clear(
                o->context, &(struct zr_clear){engine->layout.units[u].padded_elements * sizeof(float),
                                               engine->units[u].owned.slots[0]});
    return result;
}

/* Whether this rank reads a section of a former rank's file. */
static bool reads_section(const struct error_file *io, unsigned section)
{
    const struct header *h = &io->header;
    const unsigned kind = section % KINDS;
    const bool same = h->world == io->engine->world, own = h->rank % io->engine->world == io->engine->rank;
    if (kind == BUFFERS)
        return own || !same;
    return (kind >= OWN_KINDS || own) && (section < KINDS || same) &&
           (same || (kind != MASTERS && kind != MOMENTA));
}

zr_result zr_errors_load(zr_engine *engine, const char *folder, uint64_t state_checksum, bool saved)
{
    char path[ZR_CHECKPOINT_PATH_ROOM];
    struct error_file io = {.engine = engine, .file = {.fd = -1}, .reads = true, .saved = saved};
    /* The parameters of a run without differences are rounded masters. */
    if (!zr_errors_exist(engine) || (!saved && !zr_engine_keeps_errors(engine)))
        return ZR_OK;
    zr_result result = take_piece(&io);
    /* The file of rank 0 has the parameters, and says how many files there are; each has what its rank owned.
     */
    for (uint64_t rank = 0, world = 1, next; rank < world && result == ZR_OK; rank = next) {
        next = rank == 0 && engine->rank > 0 ? engine->rank : rank + engine->world;
        if (engine->exchanges_momentum)
            next = rank + 1;
        result = path_of(path, folder, rank);
        if (result == ZR_OK)
            result = open_file(&io, path, rank, state_checksum);
        world = io.header.world;
        if (result == ZR_OK && rank == 0)
            result = clear_locals(&io);
        for (unsigned s = 0; s < SECTIONS && result == ZR_OK; s++)
            if (reads_section(&io, s))
                result = transfer(&io, s);
        zr_file_close(&io.file);
    }
    if (result == ZR_OK && io.header.local.count > 0) {
        engine->local = io.header.local;
        result = zr_engine_local_resume(engine, io.header.world);
    }
    zr_drop(engine->options.host_arena, &io.piece);
    return result;
}
