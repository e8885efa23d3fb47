/* state.c: writes and reads the files of state.h; zr_engine_save() and zr_engine_load(). Both construct
 * the header from the parameter list. A file is accepted only if its header is identical, so nothing in it
 * needs to be trusted. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/hash.h"
#include "alloc/base/system/file.h"
#include "zero/comm/mesh.h"
#include "zero/checkpoint/state.h"
#include "zero/engine/engine.h"
#include "zero/engine/kept.h"
#include "zero/engine/update.h"

enum {
    PATH_BYTES_MAX = 4095 - (int)sizeof ".partial",
    STATE_PIECE_ELEMENTS = 16384, /* elements read at a time */
    STATE_KINDS_MAX = 1 + ZR_SLOTS_MAX,
    STEPS_DIGITS = 20,    /* decimal */
    CHECKSUM_DIGITS = 16, /* hexadecimal, as for the words of the loss scale */
    SCALE_WORDS = 3
};

/* Numbers in the header that are not in the engine. */
struct numbers {
    uint64_t steps, checksum;
    uint64_t scale[SCALE_WORDS]; /* struct zr_loss_scale; zeros: not fp16 */
};

struct state {
    zr_engine *engine;
    const struct zr_state_model *model;    /* NULL: the whole state */
    const struct zr_parameter_list *whole; /* NULL: the engine's own list */
    zr_comm *comm;
    unsigned rank, world;
    size_t count; /* parameters in the file */
    struct zr_file file;
    bool in_place;                         /* see struct zr_state_file */
    unsigned kinds;                        /* parameters, then the optimizer's slots; 1 for a model */
    uint64_t elements;                     /* of the parameters */
    uint64_t kind_at[STATE_KINDS_MAX + 1]; /* elements before a kind's, and of all */
    struct zr_safetensors_contents contents;
    uint64_t data_at_bytes;                     /* offset of the first tensor */
    uint64_t steps_at_bytes, checksum_at_bytes; /* offsets of the numbers */
    uint64_t scale_at_bytes;
    float *piece; /* [STATE_PIECE_ELEMENTS], for loading, and if the host cannot read tensors */
    struct numbers numbers;
};

/* ---- All ranks ----------------------------------------------------------------------------------------- */

/* Sums the ranks' checksums and adds the numbers of the header. */
static zr_result add_up(const struct state *state, uint64_t mine, uint64_t *out)
{
    uint64_t all[ZR_MAX_WORLD] = {mine};
    zr_result result = ZR_OK;

    if (state->world > 1)
        result = zr_comm_host_all_gather(state->comm, &mine, sizeof mine, all);
    *out = state->numbers.steps * UINT64_C(0xd6e8feb86659fd93);
    for (unsigned i = 0; i < SCALE_WORDS; i++) /* odd factors preserve every bit */
        *out += state->numbers.scale[i] * (UINT64_C(0x9fb21c651e98df25) + 2 * i);
    for (unsigned p = 0; p < state->world; p++)
        *out += all[p];
    return result;
}

struct digest {
    uint64_t words[2];
};

/* A sink that hashes the header. */
static zr_result digest_header(void *whose, uint64_t at_bytes, const char *data, size_t bytes)
{
    (void)at_bytes;
    uint64_t *digest = whose;
    *digest = zr_hash_more(*digest, data, bytes);
    return ZR_OK;
}

/* Checks that all ranks write the same file: the same path and header. Otherwise each would leave an
 * incomplete file and report success. */
static zr_result check_same_file(const struct state *state, const char *path)
{
    struct digest mine = {{0, 0}}, all[ZR_MAX_WORLD];
    zr_result result;

    if (state->world == 1)
        return ZR_OK;
    if (!state->in_place) /* a file in memory has a name per process */
        mine.words[0] = zr_hash_more(0, path, strlen(path) + 1);
    result = zr_safetensors_put(&state->contents, state->data_at_bytes,
                                &(struct zr_safetensors_sink){digest_header, &mine.words[1]});
    if (result == ZR_OK)
        result = zr_comm_host_all_gather(state->comm, &mine, sizeof mine, all);
    for (unsigned r = 1; r < state->world && result == ZR_OK; r++) {
        if (all[r].words[0] != all[0].words[0])
            return zr_fail(
                ZR_ERR_INVALID,
                "rank %u saves to another path than rank 0; give all ranks the same path (here '%s')", r,
                path);
        if (all[r].words[1] != all[0].words[1])
            return zr_fail(ZR_ERR_INVALID,
                           "rank %u would save another parameter list, number of steps or loss scale than "
                           "rank 0; make them agree (zr_engine_publish(), zr_engine_set_scaling())",
                           r);
    }
    return result;
}

/* ---- The loss scale ------------------------------------------------------------------------------------ */

static void note_scaling(struct state *state)
{
    struct zr_loss_scale scaling;
    uint32_t bits;
    if (zr_engine_precision(state->engine) != ZR_PRECISION_FP16)
        return;
    zr_engine_scaling(state->engine, &scaling);
    memcpy(&bits, &scaling.scale, sizeof bits);
    state->numbers.scale[0] = (uint64_t)bits << 32 | scaling.good_steps;
    state->numbers.scale[1] = (uint64_t)scaling.hysteresis_left << 32 | scaling.skipped_in_row;
    state->numbers.scale[2] = scaling.skipped_steps;
}

/* Restores the loss scale. A state of another precision has none, and the engine keeps its own. */
static zr_result take_scaling(const struct state *state, const struct zr_state_source *source)
{
    const uint64_t *words = state->numbers.scale;
    struct zr_loss_scale scaling = {.good_steps = (unsigned)words[0],
                                    .hysteresis_left = (unsigned)(words[1] >> 32),
                                    .skipped_in_row = (unsigned)words[1],
                                    .skipped_steps = words[2]};
    uint32_t bits = (uint32_t)(words[0] >> 32);
    memcpy(&scaling.scale, &bits, sizeof bits);
    if (bits == 0 || zr_engine_set_scaling(state->engine, &scaling) == ZR_OK)
        return ZR_OK;
    return zr_fail(ZR_ERR_FORMAT, "'%s' is damaged: %s; %s", source->path, zr_last_error(), source->remedy);
}

/* ---- The header ---------------------------------------------------------------------------------------- */

static const struct zr_parameter *listed(const struct state *state, size_t index)
{
    return state->whole ? &state->whole->parameters[index]
                        : &state->engine->layout.parameters[index].parameter;
}

static bool is_frozen(const struct state *state, size_t index)
{
    unsigned unit = listed(state, index)->unit;
    return state->whole ? zr_unit_is_frozen(&state->whole->units[unit])
                        : zr_engine_is_frozen(state->engine, unit);
}

/* The optimizer's slot of a kind; NULL: the kind is the parameters. */
static const struct zr_optimizer_slot *slot_of(const struct state *state, unsigned kind)
{
    return kind == 0 ? NULL : &state->engine->optimizer->slots[kind - 1];
}

/* Whether the file has a tensor of a kind for a parameter. */
static bool has_kind(const struct state *state, size_t index, unsigned kind)
{
    const struct zr_engine *engine = state->engine;
    const struct zr_parameter *p = listed(state, index);
    if (kind == 0 || is_frozen(state, index))
        return kind == 0;
    const struct zr_optimizer_slot *slot = slot_of(state, kind);
    return !slot->covers || slot->covers(p, &engine->options.optimizer.groups[p->group]);
}

/* Name of a parameter in a model's file; "": not in the file. */
static const char *model_name(const struct state *state, const struct zr_parameter *parameter,
                              char room[ZR_SAFETENSORS_NAME_MAX])
{
    return state->model && state->model->name ? state->model->name(parameter, room, state->model->whose)
                                              : parameter->name;
}

/* Elements of a kind of parameter `index` in the file, without padding rows. */
static uint64_t elements_in_file(const struct state *state, size_t index, unsigned kind)
{
    const struct zr_parameter *p = listed(state, index);
    char room[ZR_SAFETENSORS_NAME_MAX];
    if (!model_name(state, p, room)[0] || !has_kind(state, index, kind))
        return 0;
    if (kind > 0 && slot_of(state, kind)->whole)
        return slot_of(state, kind)->whole(p);
    uint64_t rows = state->model ? state->model->rows(p, index, state->model->whose) : p->shape[0];
    return rows * (p->shape[1] ? p->shape[1] : 1);
}

/* Whether parameter `index` is in the tensor of the one before it. */
static bool joins(const struct state *state, size_t index)
{
    return state->model && state->model->joins && index < state->count &&
           state->model->joins(listed(state, index), state->model->whose);
}

/* The text has the same length for all numbers. */
static void say_notes(struct zr_safetensors_header *header, struct state *state)
{
    const uint64_t *scale = state->numbers.scale;

    if (state->model) {
        state->model->say(header, state->model->whose);
    } else {
        zr_safetensors_note(header, "format", "zr-state");
        zr_safetensors_note(header, "version", "2");
        zr_safetensors_note(header, "optimizer", "%s", state->engine->optimizer->name);
        zr_safetensors_note(header, "steps", "%020" PRIu64, state->numbers.steps);
        state->steps_at_bytes = zr_safetensors_at(header) - STEPS_DIGITS;
    }
    zr_safetensors_note(header, state->model ? ZR_STATE_MODEL_CHECKSUM : "checksum", "%016" PRIx64,
                        state->numbers.checksum);
    state->checksum_at_bytes = zr_safetensors_at(header) - CHECKSUM_DIGITS;
    if (state->model)
        return;
    zr_safetensors_note(header, "loss_scale", "%016" PRIx64 "%016" PRIx64 "%016" PRIx64, scale[0], scale[1],
                        scale[2]);
    state->scale_at_bytes = zr_safetensors_at(header) - (uint64_t)SCALE_WORDS * CHECKSUM_DIGITS;
}

/* zr_safetensors_contents.say */
static void say_contents(struct zr_safetensors_header *header, void *whose)
{
    struct state *state = whose;
    const struct zr_optimizer *optimizer = state->engine->optimizer;
    char name[ZR_SAFETENSORS_NAME_MAX], room[ZR_SAFETENSORS_NAME_MAX];
    uint64_t first = 0;

    say_notes(header, state);
    for (unsigned kind = 0; kind < state->kinds; kind++)
        for (size_t i = 0; i < state->count; i++) {
            const struct zr_parameter *p = listed(state, i);
            const char *own = model_name(state, p, room);
            if (!own[0] || !has_kind(state, i, kind) || joins(state, i))
                continue;
            int length = kind == 0 ? 0
                                   : snprintf(name, sizeof name, ZR_STATE_PREFIX "%s.",
                                              optimizer->slots[kind - 1].name);
            length += snprintf(name + length, sizeof name - (size_t)length, "%s", own);
            bool is_vector = kind > 0 && slot_of(state, kind)->whole;
            uint64_t elements = elements_in_file(state, i, kind), columns = is_vector ? 0 : p->shape[1];
            for (size_t next = i + 1; joins(state, next); next++)
                elements += elements_in_file(state, next, kind);
            zr_assert(length >= 0 && (size_t)length < sizeof name);
            zr_safetensors_tensor(header,
                                  &(struct zr_safetensors_entry){.name = name,
                                                                 .name_bytes = (size_t)length,
                                                                 .rows = elements / (columns ? columns : 1),
                                                                 .columns = columns,
                                                                 .first = first});
            first += elements;
        }
}

/* A sink that compares the header with the file's. */
static zr_result compare(void *whose, uint64_t at_bytes, const char *data, size_t bytes)
{
    const struct state *state = whose;
    char *there = (char *)state->piece;
    zr_assert(bytes <= STATE_PIECE_ELEMENTS * sizeof *state->piece);
    zr_result result = zr_file_read_at(&state->file, at_bytes, there, bytes);
    return result == ZR_OK && memcmp(data, there, bytes) != 0 ? ZR_ERR_FORMAT : result;
}

static void state_start(struct state *out, zr_engine *engine, const struct zr_state_model *model,
                        const struct zr_state_parts *parts)
{
    *out = (struct state){.engine = engine,
                          .model = model,
                          .whole = parts ? parts->whole : NULL,
                          .comm = parts ? parts->comm : engine->options.comm,
                          .count = parts ? parts->whole->parameters_count : engine->layout.parameters_count,
                          .file = {.fd = -1}};
    out->rank = zr_comm_rank(out->comm);
    out->world = zr_comm_world(out->comm);
    for (size_t i = 0; i < out->count; i++)
        out->elements += elements_in_file(out, i, 0);
    out->kinds = model ? 1 : 1 + engine->optimizer->slots_count;
    for (unsigned kind = 0; kind < out->kinds; kind++) {
        out->kind_at[kind + 1] = out->kind_at[kind];
        for (size_t i = 0; i < out->count; i++)
            out->kind_at[kind + 1] += elements_in_file(out, i, kind);
    }
    out->contents = (struct zr_safetensors_contents){say_contents, out};
    out->data_at_bytes = zr_safetensors_data_at(&out->contents);
}

static uint64_t file_bytes(const struct state *state)
{
    return state->data_at_bytes + state->kind_at[state->kinds] * sizeof(float);
}

uint64_t zr_state_bytes(zr_engine *engine, const struct zr_state_parts *parts)
{
    struct state state;
    state_start(&state, engine, NULL, parts);
    return file_bytes(&state);
}

/* Checks a call; the result is the same on every rank. Only a call that changes the engine requires that no
 * unit is in use. */
static zr_result check_call(zr_engine *engine, const char *call, const char *path,
                            const struct zr_state_parts *parts, bool changes)
{
    zr_result result = ZR_OK;
    if (!engine)
        return zr_engine_check_call(engine, call, path);
    if (engine->simulated)
        return zr_fail(ZR_ERR_INVALID, "an engine with null kernels cannot save or load");
    if (engine->layout.part && !parts)
        result = zr_fail(ZR_ERR_INVALID,
                         "%s() requires whole tensors, but the engine only has a part of tensor %s", call,
                         engine->layout.part);
    else if (!path || !path[0])
        result = zr_fail(ZR_ERR_INVALID, "%s() requires a path", call);
    else if (strlen(path) > PATH_BYTES_MAX)
        result = zr_fail(ZR_ERR_INVALID, "%s(): the path is longer than %d bytes", call, PATH_BYTES_MAX);
    if (result == ZR_OK)
        result = zr_engine_check_between_steps(engine, call);
    if (result == ZR_OK && changes)
        result = zr_engine_check_unused(engine, call);
    result = zr_comm_all_status(parts ? parts->comm : engine->options.comm, result);
    if (result == ZR_OK && changes)
        zr_engine_kept_invalidate(engine);
    return result == ZR_OK ? zr_engine_catch_up(engine) : result;
}

/* ---- The elements -------------------------------------------------------------------------------------- */

uint64_t zr_state_checksum(uint64_t place, const void *words, size_t count)
{
    const char *from = words;
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + i * sizeof bits, sizeof bits);
        uint64_t z = (place + i + 1) * UINT64_C(0x9e3779b97f4a7c15) + bits;
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        sum += z ^ (z >> 31);
    }
    return sum;
}

enum transfer { STATE_SAVE, STATE_VERIFY, STATE_LOAD };

/* Values of a unit to or from their place in the file. */
struct run {
    size_t unit, count;
    struct zr_numbers values;
    const struct zr_optimizer_slot *slot; /* not NULL: `values` are its blocks */
    uint64_t place;
};

/* Copies values from element `at` of a run to host floats, or back. */
static zr_result get(const struct state *state, const struct run *run, size_t at, size_t count, float *to)
{
    if (!run->slot)
        return zr_engine_get_floats(state->engine, run->unit, zr_numbers_at(run->values, at), count, to);
    void *blocks = (char *)run->values.at + zr_slot_state_bytes(run->slot, at);
    return zr_engine_get_blocks(state->engine, &(struct zr_state_blocks){run->unit, count, run->slot, blocks},
                                to);
}

static zr_result put(const struct state *state, const struct run *run, size_t at, size_t count,
                     const float *from)
{
    if (!run->slot)
        return zr_engine_put_floats(state->engine, run->unit, from, count, zr_numbers_at(run->values, at));
    void *blocks = (char *)run->values.at + zr_slot_state_bytes(run->slot, at);
    return zr_engine_put_blocks(state->engine, from,
                                &(struct zr_state_blocks){run->unit, count, run->slot, blocks});
}

static zr_result transfer_run(const struct state *state, enum transfer how, const struct run *run,
                              uint64_t *sum)
{
    for (size_t done = 0, part; done < run->count; done += part) {
        uint64_t at_bytes = state->data_at_bytes + (run->place + done) * sizeof(float);
        bool copies =
            state->engine->host_invisible || run->slot || run->values.precision != ZR_PRECISION_FP32;
        float *here = how == STATE_VERIFY || copies ? state->piece : (float *)run->values.at + done;
        zr_result result = ZR_OK;
        part = run->count - done < STATE_PIECE_ELEMENTS ? run->count - done : STATE_PIECE_ELEMENTS;
        if (copies && how == STATE_SAVE)
            result = get(state, run, done, part, here);
        if (result == ZR_OK)
            result = how == STATE_SAVE ? zr_file_write_at(&state->file, at_bytes, here, part * sizeof(float))
                                       : zr_file_read_at(&state->file, at_bytes, here, part * sizeof(float));
        if (result == ZR_OK && copies && how == STATE_LOAD)
            result = put(state, run, done, part, here);
        if (result != ZR_OK)
            return result;
        *sum += zr_state_checksum(run->place + done, here, part);
    }
    return ZR_OK;
}

/* A position in the file's list: parameter `index`, and the elements of each kind before it. */
struct cursor {
    size_t index;
    uint64_t first[STATE_KINDS_MAX];
};

static void step(const struct state *state, struct cursor *at)
{
    for (unsigned kind = 0; kind < state->kinds; kind++)
        at->first[kind] += elements_in_file(state, at->index, kind);
    if (++at->index == state->count)
        *at = (struct cursor){.index = 0};
}

/* Moves to the parameter with this name. An engine's parameters are in file order, or nearly. */
static zr_result find(const struct state *state, const char *name, struct cursor *at)
{
    for (size_t tries = 0; tries < state->count; tries++) {
        if (strcmp(listed(state, at->index)->name, name) == 0)
            return ZR_OK;
        step(state, at);
    }
    return zr_fail(ZR_ERR_INVALID, "the engine's parameter %s is not in the model's list", name);
}

/* An engine that only reads the model lacks state that a file may have: it is read for the checksum. */
static bool reads_for_checksum(const struct state *state, enum transfer how, size_t index, unsigned kind)
{
    return how != STATE_SAVE && state->whole && has_kind(state, index, kind);
}

/* Transfers a slot of a whole tensor: the rank with the tensor's first element saves and verifies it, and
 * every rank loads it. */
static zr_result transfer_whole(const struct state *state, enum transfer how,
                                const struct zr_layout_parameter *p, const struct run *run, uint64_t *sum)
{
    const struct zr_overlap shard = zr_engine_shard(state->engine, run->unit);
    bool first = zr_overlap_has(shard, p->offset);
    uint64_t others = 0;
    return first || how == STATE_LOAD ? transfer_run(state, how, run, first ? sum : &others) : ZR_OK;
}

/* Transfers a run of a parameter from element `first` on, in as many parts as the file has it in. */
static zr_result transfer_values(const struct state *state, enum transfer how, const struct zr_parameter *p,
                                 uint64_t first, const struct run *run, uint64_t *sum)
{
    const struct zr_state_model *model = state->model;
    zr_result result = ZR_OK;
    if (!model || !model->place)
        return transfer_run(state, how, run, sum);
    for (size_t done = 0; done < run->count && result == ZR_OK;) {
        struct run part = *run;
        uint64_t adjacent;
        int64_t place = model->place(p, first + done, &adjacent, model->whose);
        part.count = adjacent < run->count - done ? (size_t)adjacent : run->count - done;
        part.values = zr_numbers_at(run->values, done);
        part.place = run->place - first + (uint64_t)place;
        result = transfer_run(state, how, &part, sum);
        done += part.count;
    }
    return result;
}

/* Transfers this rank's part of a parameter to or from its place in the file. */
static zr_result transfer_parameter(const struct state *state, enum transfer how,
                                    const struct zr_layout_parameter *p, const struct cursor *at,
                                    uint64_t *sum)
{
    const struct zr_engine *engine = state->engine;
    struct zr_owned owned;
    zr_result result = zr_engine_take_owned(state->engine, p->parameter.unit, &owned);
    const struct zr_optimizer *optimizer = engine->layout.units[p->parameter.unit].optimizer;
    const struct zr_overlap shard = zr_engine_shard(engine, p->parameter.unit);
    size_t from = shard.offset, end = from + shard.count;
    uint64_t there = elements_in_file(state, at->index, 0);

    for (size_t k = 0, pieces = zr_layout_pieces(p, from, end); k < pieces && result == ZR_OK; k++) {
        struct zr_tensor_piece piece = zr_layout_piece(p, from, end, k);
        uint64_t first = piece.global_index - p->global_index, left = first < there ? there - first : 0;
        size_t count = piece.count < left ? piece.count : (size_t)left;
        for (unsigned kind = 0; kind < state->kinds && result == ZR_OK && count > 0; kind++) {
            struct run run = {.unit = p->parameter.unit,
                              .count = count,
                              .place = state->kind_at[kind] + at->first[kind] + first};
            size_t skip = piece.offset - owned.from;
            if (kind > 0 && optimizer->slots[kind - 1].whole)
                continue;
            if (kind == 0) {
                run.values = zr_numbers_at(zr_owned_values(&owned), skip);
            } else {
                const struct zr_optimizer_slot *slot = &optimizer->slots[kind - 1];
                run.slot = zr_slot_is_plain(slot) ? NULL : slot;
                run.values =
                    (struct zr_numbers){zr_owned_slot(engine, p, &owned, kind - 1, skip), ZR_PRECISION_FP32};
            }
            if (run.values.at || reads_for_checksum(state, how, at->index, kind))
                result = transfer_values(state, run.values.at ? how : STATE_VERIFY, listed(state, at->index),
                                         first, &run, sum);
        }
    }
    for (unsigned s = 0; s < optimizer->slots_count && s + 1 < state->kinds && result == ZR_OK; s++) {
        struct run run = {.unit = p->parameter.unit,
                          .count = elements_in_file(state, at->index, s + 1),
                          .values = {zr_owned_slot(engine, p, &owned, s, 0), ZR_PRECISION_FP32},
                          .place = state->kind_at[s + 1] + at->first[s + 1]};
        if (optimizer->slots[s].whole && (run.values.at || reads_for_checksum(state, how, at->index, s + 1)))
            result = transfer_whole(state, run.values.at ? how : STATE_VERIFY, p, &run, sum);
    }
    zr_result given = zr_engine_give_owned(state->engine, p->parameter.unit, how == STATE_LOAD);
    return result == ZR_OK ? given : result;
}

/* Transfers everything that this rank owns; *sum receives its part of the checksum. A part that another
 * engine saves is loaded here too, but only the other engine counts it. */
static zr_result transfer_all(const struct state *state, enum transfer how, uint64_t *sum)
{
    const struct zr_layout *layout = &state->engine->layout;
    struct cursor at = {.index = 0};
    zr_result result = ZR_OK;

    *sum = 0;
    for (size_t i = 0; i < layout->parameters_count && result == ZR_OK; i++) {
        const struct zr_layout_parameter *p = &layout->parameters[i];
        uint64_t copied = 0;
        if (p->parameter.part.copy && how == STATE_SAVE)
            continue;
        result = find(state, p->parameter.name, &at);
        if (result == ZR_OK)
            result = transfer_parameter(state, how, p, &at, p->parameter.part.copy ? &copied : sum);
    }
    return result;
}

/* ---- Saving -------------------------------------------------------------------------------------------- */

bool zr_state_partial(const char *path, char out[ZR_STATE_PATH_ROOM])
{
    static const char tail[] = ".partial";
    size_t length = strlen(path);
    if (length + sizeof tail > ZR_STATE_PATH_ROOM)
        return false;
    memcpy(out, path, length + 1);
    memcpy(out + length, tail, sizeof tail);
    return true;
}

/* Rank 0 creates the file at its full size, so that a full disk is detected before the others write. */
static zr_result create(struct state *state, const char *partial, const char *path)
{
    enum zr_path_kind kind;
    uint64_t free_bytes;
    zr_result result = zr_path_kind_get(path, &kind);

    if (state->in_place) {
        result = zr_file_create(&state->file, path, ZR_CREATE_NOT);
        return result == ZR_OK ? zr_file_resize(&state->file, file_bytes(state)) : result;
    }
    if (result == ZR_OK && kind != ZR_PATH_NONE && kind != ZR_PATH_FILE)
        return zr_fail(ZR_ERR_IO, "cannot write '%s': it is not a regular file; give another name", path);
    if (result == ZR_OK)
        result = zr_file_create(&state->file, partial, ZR_CREATE_REPLACE);
    if (result == ZR_OK && zr_path_free_bytes(partial, &free_bytes) == ZR_OK &&
        free_bytes < file_bytes(state))
        return zr_fail(ZR_ERR_IO,
                       "cannot write '%s': it needs %" PRIu64 " bytes, but the file system has %" PRIu64
                       " left; free space there, or give another path",
                       path, file_bytes(state), free_bytes);
    return result == ZR_OK ? zr_file_resize(&state->file, file_bytes(state)) : result;
}

/* Completes the file on rank 0, after all ranks have written: writes the header, syncs, renames the file. */
static zr_result finish(struct state *state, const char *partial, const char *path)
{
    zr_result result = zr_safetensors_put(&state->contents, state->data_at_bytes,
                                          &(struct zr_safetensors_sink){zr_safetensors_write, &state->file});
    if (state->in_place)
        return result;
    if (result == ZR_OK)
        result = zr_file_sync(&state->file);
    if (result == ZR_OK)
        result = zr_path_rename(&(struct zr_rename){.from = partial, .to = path});
    return result == ZR_OK ? zr_path_sync_name(path) : result;
}

/* Writes the whole file. After a failure on one rank, no other rank waits. */
static zr_result write_all(struct state *state, const char *partial, const char *path)
{
    zr_comm *comm = state->comm;
    bool first = state->rank == 0;
    uint64_t mine = 0;
    zr_result result = zr_engine_synchronize(state->engine);

    if (result == ZR_OK && first)
        result = create(state, partial, path);
    result = zr_comm_all_status(comm, result);
    if (result == ZR_OK && !first) {
        result = zr_file_create(&state->file, partial, ZR_CREATE_NOT);
        if (result != ZR_OK)
            result = zr_fail(result, "%s; rank 0 has created it: give a folder that all ranks share",
                             zr_last_error());
    }
    if (result == ZR_OK) {
        result = transfer_all(state, STATE_SAVE, &mine);
        result = result == ZR_OK && !state->in_place ? zr_file_sync(&state->file) : result;
    }
    result = zr_comm_all_status(comm, result);
    if (result == ZR_OK)
        result = add_up(state, mine, &state->numbers.checksum);
    return zr_comm_all_status(comm, result == ZR_OK && first ? finish(state, partial, path) : result);
}

zr_result zr_state_write(zr_engine *engine, const struct zr_state_file *file, uint64_t *checksum)
{
    struct state state;
    char partial[ZR_STATE_PATH_ROOM];
    zr_result result = check_call(engine, "zr_engine_save", file->path, file->parts, false);

    if (result != ZR_OK)
        return result;
    state_start(&state, engine, file->model, file->parts);
    if (!file->model) {
        state.numbers.steps = zr_engine_steps_done(engine);
        note_scaling(&state);
    }
    state.in_place = file->in_place;
    if (file->in_place)
        snprintf(partial, sizeof partial, "%s", file->path);
    else
        zr_assert(zr_state_partial(file->path, partial)); /* shorter than PATH_BYTES_MAX */
    result = check_same_file(&state, file->path);
    if (result != ZR_OK)
        return result;
    if (engine->host_invisible || zr_engine_is_low_precision(engine) ||
        zr_optimizer_block(engine->optimizer) > 1)
        result = zr_take(engine->options.host_arena, ZR_TAG_OTHER, STATE_PIECE_ELEMENTS, sizeof(float),
                         (void **)&state.piece);
    result = zr_comm_all_status(state.comm, result);
    if (result == ZR_OK) {
        result = write_all(&state, partial, file->path);
        zr_file_close(&state.file); /* synced before, so it cannot lose data */
        if (result != ZR_OK && state.rank == 0 && !file->in_place)
            zr_path_unlink(partial);
    }
    zr_drop(engine->options.host_arena, &state.piece);
    if (checksum)
        *checksum = state.numbers.checksum;
    return result;
}

zr_result zr_engine_save(zr_engine *engine, const char *path)
{
    zr_result result = engine ? zr_engine_end_local_steps(engine) : ZR_OK;
    return result == ZR_OK ? zr_state_write(engine, &(struct zr_state_file){.path = path}, NULL) : result;
}

/* ---- Loading ------------------------------------------------------------------------------------------- */

static zr_result read_digits(const struct state *state, uint64_t at_bytes, size_t digits, unsigned base,
                             uint64_t *out)
{
    char text[STEPS_DIGITS];
    zr_result result = zr_file_read_at(&state->file, at_bytes, text, digits);

    *out = 0;
    for (size_t i = 0; i < digits && result == ZR_OK; i++) {
        const char *all = "0123456789abcdef", *digit = memchr(all, text[i], base);
        if (!digit || __builtin_mul_overflow(*out, base, out) ||
            __builtin_add_overflow(*out, (uint64_t)(digit - all), out))
            result = ZR_ERR_FORMAT;
    }
    return result;
}

/* Reads the numbers from the header and compares the header with the expected one. */
static zr_result check_header(struct state *state, const struct zr_state_source *source)
{
    zr_result result = read_digits(state, state->steps_at_bytes, STEPS_DIGITS, 10, &state->numbers.steps);
    if (result == ZR_OK)
        result = read_digits(state, state->checksum_at_bytes, CHECKSUM_DIGITS, 16, &state->numbers.checksum);
    for (unsigned i = 0; i < SCALE_WORDS && result == ZR_OK; i++)
        result = read_digits(state, state->scale_at_bytes + (uint64_t)i * CHECKSUM_DIGITS, CHECKSUM_DIGITS,
                             16, &state->numbers.scale[i]);
    if (result == ZR_OK)
        result = zr_safetensors_put(&state->contents, state->data_at_bytes,
                                    &(struct zr_safetensors_sink){compare, state});
    if (result == ZR_ERR_FORMAT)
        return zr_fail(
            ZR_ERR_FORMAT,
            "'%s' does not have the header of this model's state: it is damaged, not a file of "
            "zr_engine_save(), or has another parameter list, other frozen tensors or another optimizer "
            "(this is %s); %s",
            source->path, state->engine->optimizer->name, source->remedy);
    return result;
}

static zr_result open_to_load(struct state *state, const struct zr_state_source *source)
{
    uint64_t bytes = 0;
    zr_result result = zr_take(state->engine->options.host_arena, ZR_TAG_OTHER, STATE_PIECE_ELEMENTS,
                               sizeof(float), (void **)&state->piece);
    if (result == ZR_OK)
        result = zr_file_open_regular(&state->file, source->path);
    if (result == ZR_OK)
        result = zr_file_size(&state->file, &bytes);
    if (result == ZR_OK)
        result = check_header(state, source);
    if (result == ZR_OK && bytes != file_bytes(state))
        return zr_fail(ZR_ERR_FORMAT, "'%s' is damaged: it has %" PRIu64 " bytes instead of %" PRIu64 "; %s",
                       source->path, bytes, file_bytes(state), source->remedy);
    if (result == ZR_OK && source->checksum && *source->checksum != state->numbers.checksum)
        return zr_fail(ZR_ERR_FORMAT, "'%s' is not the file of its manifest: its checksum differs; %s",
                       source->path, source->remedy);
    return result;
}

/* Passes over the data on all ranks once, with the same result on all of them. */
static zr_result load_pass(const struct state *state, enum transfer how, const struct zr_state_source *source)
{
    uint64_t mine, sum = 0;
    zr_result result = zr_comm_all_status(state->comm, transfer_all(state, how, &mine));
    if (result == ZR_OK)
        result = add_up(state, mine, &sum);
    if (result == ZR_OK && sum != state->numbers.checksum)
        return zr_fail(ZR_ERR_FORMAT, "'%s' is damaged: its checksum does not match; %s", source->path,
                       source->remedy);
    return result;
}

/* Loads the values. A verified file may still change or disappear now; ZR_ERR_CORRUPT then reports that
 * part of the values may be new. */
static zr_result replace_values(const struct state *state, const struct zr_state_source *source)
{
    zr_result result = load_pass(state, STATE_LOAD, source);
    if (result == ZR_OK)
        result = zr_comm_all_status(state->comm, zr_engine_publish(state->engine, state->numbers.steps));
    if (result == ZR_OK || result == ZR_ERR_PEER)
        return result;
    return zr_fail(ZR_ERR_CORRUPT, "part of the values may be new, load again: %s", zr_last_error());
}

zr_result zr_state_read(zr_engine *engine, const struct zr_state_source *source)
{
    struct state state;
    zr_result result = check_call(engine, "zr_engine_load", source->path, source->parts, true);

    if (result != ZR_OK)
        return result;
    state_start(&state, engine, NULL, source->parts);
    result = zr_engine_synchronize(engine);
    result = zr_comm_all_status(state.comm, result == ZR_OK ? open_to_load(&state, source) : result);
    if (result == ZR_OK)
        result = load_pass(&state, STATE_VERIFY, source);
    if (result == ZR_OK)
        result = take_scaling(&state, source);
    if (result == ZR_OK)
        result = replace_values(&state, source);
    zr_file_close(&state.file);
    zr_drop(engine->options.host_arena, &state.piece);
    return result;
}

zr_result zr_engine_load(zr_engine *engine, const char *path)
{
    return zr_state_read(engine, &(struct zr_state_source){.path = path, .remedy = "load another file"});
}
