/* state.c: an engine's state as one safetensors file: zr_engine_save() and zr_engine_load(). Above
 * replicas.c, whose segments it writes and reads.
 *
 * The file has the parameters under their names, then "optimizer.momentum.NAME" and
 * "optimizer.variance.NAME", each kind in order of the list and without padding. So the place of an element
 * depends neither on the stage nor on the number of ranks, every rank writes and reads its own part at once,
 * and the bytes are the same whoever wrote them. The header is made from the parameter list both times: a
 * file is accepted if it has that very header, and nothing in it needs to be believed. The checksum adds up
 * one hash per element, of its place and its bits, so that ranks can each add their part. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc/file.h"
#include "zero/engine.h"

enum {
    STATE_PATH_ROOM = 4096,
    STATE_PIECE_ELEMENTS = 16384, /* read at a time */
    STATE_WORDS_ROOM = 256,
    STATE_HEAD_ROOM = 192, /* of the part of the header with the numbers */
    STATE_ALIGN = 64,      /* the data starts on a multiple of it */
    STATE_KINDS_MAX = 3
};

/* What is in the header and not in the engine. */
struct numbers {
    uint64_t steps, checksum;
};

struct state {
    zr_engine *engine;
    struct zr_file file;
    unsigned kinds;         /* tensors per parameter: 3, or 2 for an optimizer without variance */
    uint64_t elements;      /* of each kind */
    uint64_t data_at_bytes; /* where the first tensor begins */
    float *piece;           /* [STATE_PIECE_ELEMENTS], for loading */
    struct numbers numbers;
};

/* ---- All ranks -------------------------------------------------------------------------------------------
 */

/* The same answer on every rank: ZR_OK, or the first failing rank's result and words. */
static zr_result agree(const struct zr_engine *engine, zr_result mine)
{
    uint8_t said = (uint8_t)mine, all[ZR_COMM_MAX_WORLD];
    char words[STATE_WORDS_ROOM] = "";
    zr_ticket ticket = 0;
    unsigned p = 0;

    if (engine->world == 1)
        return mine;
    if (mine != ZR_OK)
        snprintf(words, sizeof words, "%s", zr_last_error());
    zr_result result = zr_comm_exchange(engine->options.comm, &said, sizeof said, all);
    while (result == ZR_OK && p < engine->world && all[p] == ZR_OK)
        p++;
    if (result != ZR_OK || p == engine->world)
        return result;
    result =
        zr_comm_broadcast(engine->options.comm,
                          &(struct zr_broadcast){.buffer = words, .bytes = sizeof words, .root = p}, &ticket);
    if (result == ZR_OK)
        result = zr_comm_wait(engine->options.comm, ticket);
    if (result != ZR_OK)
        return result;
    words[sizeof words - 1] = '\0';
    return p == 0 ? zr_fail((zr_result)all[p], "%s", words)
                  : zr_fail((zr_result)all[p], "rank %u: %s", p, words);
}

/* The sum of all ranks' parts, and of what else counts. */
static zr_result add_up(const struct state *state, uint64_t mine, uint64_t *out)
{
    uint64_t all[ZR_COMM_MAX_WORLD] = {mine};
    zr_result result = ZR_OK;

    if (state->engine->world > 1)
        result = zr_comm_exchange(state->engine->options.comm, &mine, sizeof mine, all);
    *out = state->numbers.steps * UINT64_C(0xd6e8feb86659fd93);
    for (unsigned p = 0; p < state->engine->world; p++)
        *out += all[p];
    return result;
}

/* ---- The header ------------------------------------------------------------------------------------------
 */

/* The header passes through here: counted, written, or compared with what is there. */
struct header {
    const struct state *state;
    enum { HEADER_COUNT, HEADER_WRITE, HEADER_COMPARE } mode;
    uint64_t at_bytes;
    bool differs;
    zr_result result;
};

static void header_put(struct header *header, const char *text, size_t bytes)
{
    char there[1024];

    zr_assert(bytes <= sizeof there);
    if (header->result == ZR_OK && header->mode == HEADER_WRITE)
        header->result = zr_file_write_at(&header->state->file, header->at_bytes, text, bytes);
    if (header->result == ZR_OK && header->mode == HEADER_COMPARE && !header->differs) {
        header->result = zr_file_read_at(&header->state->file, header->at_bytes, there, bytes);
        header->differs = header->result == ZR_OK && memcmp(text, there, bytes) != 0;
    }
    header->at_bytes += bytes;
}

static const char *optimizer_name(const struct zr_engine *engine)
{
    return zr_engine_optimizer(engine) == ZR_OPTIMIZER_SGD ? "sgd" : "adamw";
}

/* The start of the header, of one length whatever the numbers are. */
static size_t print_head(const struct state *state, char out[STATE_HEAD_ROOM])
{
    int length = snprintf(out, STATE_HEAD_ROOM,
                          "{\"__metadata__\":{\"format\":\"zr-state\",\"version\":\"1\",\"optimizer\":\"%s\","
                          "\"steps\":\"%020" PRIu64 "\",\"checksum\":\"%016" PRIx64 "\"}",
                          optimizer_name(state->engine), state->numbers.steps, state->numbers.checksum);
    zr_assert(length > 0 && length < STATE_HEAD_ROOM);
    return (size_t)length;
}

static void put_tensor(struct header *header, unsigned kind, const struct zr_layout_parameter *parameter)
{
    static const char *const prefixes[STATE_KINDS_MAX] = {"", "optimizer.momentum.", "optimizer.variance."};
    const struct zr_parameter *p = &parameter->parameter;
    uint64_t first = (kind * header->state->elements + parameter->global_index) * sizeof(float);
    char line[1024], name[sizeof p->name + 32];
    struct zr_text text;

    snprintf(name, sizeof name, "%s%.*s", prefixes[kind], (int)sizeof p->name, p->name);
    zr_text_start(&text, NULL, line, sizeof line);
    zr_text_print(&text, ",");
    zr_text_json_string(&text, name, strlen(name));
    zr_text_print(&text, ":{\"dtype\":\"F32\",\"shape\":[%zu", p->shape[0]);
    if (p->shape[1] > 0)
        zr_text_print(&text, ",%zu", p->shape[1]);
    zr_text_print(&text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", first,
                  first + parameter->elements * sizeof(float));
    zr_assert(text.result == ZR_OK);
    header_put(header, line, text.used_bytes);
}

/* Passes the whole header, its length and its padding included. Every mode passes the same bytes but for the
 * numbers and the length, which the first pass, of mode HEADER_COUNT, finds out. */
static zr_result pass_header(struct header *header)
{
    static const char spaces[] = "                                                               ";
    const struct state *state = header->state;
    const struct zr_layout *layout = &state->engine->layout;
    uint64_t length = state->data_at_bytes - sizeof length;
    char head[STATE_HEAD_ROOM];

    _Static_assert(sizeof spaces == STATE_ALIGN, "one less than the alignment");
    header_put(header, (const char *)&length, sizeof length);
    header_put(header, head, print_head(state, head));
    for (unsigned kind = 0; kind < state->kinds; kind++)
        for (size_t i = 0; i < layout->parameters_count && header->result == ZR_OK && !header->differs; i++)
            put_tensor(header, kind, &layout->parameters[i]);
    header_put(header, "}", 1);
    header_put(header, spaces, (STATE_ALIGN - header->at_bytes % STATE_ALIGN) % STATE_ALIGN);
    return header->result;
}

static void state_start(struct state *out, zr_engine *engine)
{
    *out = (struct state){.engine = engine, .file = {.fd = -1}, .elements = zr_engine_elements(engine)};
    out->kinds = zr_engine_optimizer(engine) == ZR_OPTIMIZER_SGD ? 2 : STATE_KINDS_MAX;
    struct header header = {.state = out, .mode = HEADER_COUNT};
    pass_header(&header);
    out->data_at_bytes = header.at_bytes;
}

static zr_result check_call(const zr_engine *engine, const char *path)
{
    if (!engine || !path || !path[0])
        return zr_fail(ZR_ERR_INVALID, "saving and loading needs an engine and a path");
    if (engine->dry)
        return zr_fail(ZR_ERR_INVALID,
                       "an engine with the null kernels has nothing to save, and reads nothing");
    return ZR_OK;
}

/* ---- The elements ----------------------------------------------------------------------------------------
 */

static uint64_t checksum_of(uint64_t place, const float *values, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        uint64_t z = (place + i + 1) * UINT64_C(0x9e3779b97f4a7c15) + bits;
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        sum += z ^ (z >> 31);
    }
    return sum;
}

static float *tensor_of(const struct zr_shard_segment *segment, unsigned kind)
{
    return kind == 0 ? segment->parameter : kind == 1 ? segment->momentum : segment->variance;
}

enum transfer { STATE_SAVE, STATE_VERIFY, STATE_LOAD };

static zr_result transfer_run(const struct state *state, enum transfer how, uint64_t place, float *values,
                              size_t count, uint64_t *sum)
{
    for (size_t done = 0, part; done < count; done += part) {
        uint64_t at_bytes = state->data_at_bytes + (place + done) * sizeof(float);
        float *here = how == STATE_VERIFY ? state->piece : values + done;
        zr_result result;
        part = count - done < STATE_PIECE_ELEMENTS ? count - done : STATE_PIECE_ELEMENTS;
        result = how == STATE_SAVE ? zr_file_write_at(&state->file, at_bytes, here, part * sizeof(float))
                                   : zr_file_read_at(&state->file, at_bytes, here, part * sizeof(float));
        if (result != ZR_OK)
            return result;
        *sum += checksum_of(place + done, here, part);
    }
    return ZR_OK;
}

/* Everything that this rank owns to or from its place in the file; *sum gets its part of the checksum. */
static zr_result transfer_all(const struct state *state, enum transfer how, uint64_t *sum)
{
    zr_result result = ZR_OK;
    *sum = 0;
    for (size_t i = 0; i < zr_engine_segments_count(state->engine); i++) {
        struct zr_shard_segment segment;
        zr_engine_segment(state->engine, i, &segment);
        for (unsigned kind = 0; kind < state->kinds && result == ZR_OK; kind++)
            result = transfer_run(state, how, kind * state->elements + segment.global_index,
                                  tensor_of(&segment, kind), segment.count, sum);
    }
    return result;
}

/* ---- Saving ----------------------------------------------------------------------------------------------
 */

static zr_result sync_folder_of(const char *path)
{
    char folder[STATE_PATH_ROOM];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;

    if (!slash)
        return zr_path_sync_folder(".");
    memcpy(folder, path, length);
    folder[length] = '\0';
    return zr_path_sync_folder(length > 0 ? folder : "/");
}

/* Rank 0's part: the header, and the new file under its name. */
static zr_result finish(struct state *state, const char *partial, const char *path)
{
    zr_result result = pass_header(&(struct header){.state = state, .mode = HEADER_WRITE});
    if (result == ZR_OK)
        result = zr_file_sync(&state->file);
    if (result == ZR_OK)
        result = zr_path_rename(&(struct zr_rename){.from = partial, .to = path});
    return result == ZR_OK ? sync_folder_of(path) : result;
}

zr_result zr_engine_save(zr_engine *engine, const char *path)
{
    struct state state;
    char partial[STATE_PATH_ROOM];
    uint64_t mine = 0;
    zr_result result = check_call(engine, path);

    if (result != ZR_OK)
        return result;
    state_start(&state, engine);
    state.numbers.steps = zr_engine_steps_done(engine);
    if (snprintf(partial, sizeof partial, "%s.partial", path) >= (int)sizeof partial)
        return zr_fail(ZR_ERR_INVALID, "the path to save to is longer than %d bytes", STATE_PATH_ROOM - 9);
    result = zr_engine_settle(engine);
    if (result == ZR_OK) /* every rank empties it before any rank writes */
        result = zr_file_create(&state.file, partial, ZR_CREATE_REPLACE);
    result = agree(engine, result);
    if (result == ZR_OK) {
        result = transfer_all(&state, STATE_SAVE, &mine);
        result = result == ZR_OK ? zr_file_sync(&state.file) : result;
        result = agree(engine, result);
    }
    if (result == ZR_OK)
        result = add_up(&state, mine, &state.numbers.checksum);
    if (result == ZR_OK)
        result = agree(engine, engine->rank == 0 ? finish(&state, partial, path) : ZR_OK);
    zr_file_close(&state.file); /* synced before: nothing is left to go wrong */
    if (result != ZR_OK && engine->rank == 0)
        zr_path_unlink(partial);
    return result;
}

/* ---- Loading ---------------------------------------------------------------------------------------------
 */

static bool read_digits(const char *text, unsigned digits, unsigned base, uint64_t *out)
{
    *out = 0;
    for (unsigned i = 0; i < digits; i++) {
        const char *all = "0123456789abcdef", *digit = memchr(all, text[i], base);
        if (!digit || __builtin_mul_overflow(*out, base, out) ||
            __builtin_add_overflow(*out, (uint64_t)(digit - all), out))
            return false;
    }
    return true;
}

/* Takes the two numbers out of the header, which is then compared as a whole. */
static zr_result read_numbers(struct state *state)
{
    char head[STATE_HEAD_ROOM], there[STATE_HEAD_ROOM];
    size_t length = print_head(state, head);
    zr_result result = zr_file_read_at(&state->file, sizeof(uint64_t), there, length);
    const char *steps = there + length - strlen("00000000000000000000\",\"checksum\":\"0000000000000000\"}");

    if (result == ZR_OK &&
        (!read_digits(steps, 20, 10, &state->numbers.steps) ||
         !read_digits(there + length - strlen("0000000000000000\"}"), 16, 16, &state->numbers.checksum)))
        state->numbers = (struct numbers){0}; /* the comparison will tell */
    return result;
}

static zr_result open_to_load(struct state *state, const char *path)
{
    struct header header = {.state = state, .mode = HEADER_COMPARE};
    enum zr_path_kind kind = ZR_PATH_NONE;
    uint64_t bytes = 0, want = state->data_at_bytes + state->kinds * state->elements * sizeof(float);
    zr_result result = zr_take(state->engine->options.host_arena, ZR_TAG_OTHER, STATE_PIECE_ELEMENTS,
                               sizeof(float), (void **)&state->piece);
    if (result == ZR_OK)
        result = zr_path_kind_get(path, &kind);
    if (result == ZR_OK && kind == ZR_PATH_OTHER) /* opening a pipe would wait for its writer */
        return zr_fail(ZR_ERR_FORMAT, "'%s' is no file", path);
    if (result == ZR_OK)
        result = zr_file_open(&state->file, path);
    if (result == ZR_OK)
        result = zr_file_size(&state->file, &bytes);
    if (result == ZR_OK && bytes >= state->data_at_bytes)
        result = read_numbers(state);
    if (result == ZR_OK && bytes >= state->data_at_bytes)
        result = pass_header(&header);
    if (result != ZR_OK)
        return result;
    if (bytes < state->data_at_bytes || header.differs)
        return zr_fail(ZR_ERR_FORMAT,
                       "'%s' does not have the header of this model's state; it is no file of "
                       "zr_engine_save(), or one of another parameter list or optimizer (this is %s)",
                       path, optimizer_name(state->engine));
    if (bytes != want)
        return zr_fail(ZR_ERR_CORRUPT, "'%s' is damaged: it has %" PRIu64 " bytes, and should have %" PRIu64,
                       path, bytes, want);
    return ZR_OK;
}

/* One pass over the data on all ranks, which ends with the same answer on all of them. */
static zr_result load_pass(const struct state *state, enum transfer how, const char *path)
{
    uint64_t mine, sum = 0;
    zr_result result = agree(state->engine, transfer_all(state, how, &mine));
    if (result == ZR_OK)
        result = add_up(state, mine, &sum);
    if (result == ZR_OK && sum != state->numbers.checksum)
        return zr_fail(ZR_ERR_CORRUPT, "'%s' is damaged: it does not fit its checksum; load another file",
                       path);
    return result;
}

zr_result zr_engine_load(zr_engine *engine, const char *path)
{
    struct state state;
    zr_result result = check_call(engine, path);

    if (result != ZR_OK)
        return result;
    state_start(&state, engine);
    result = zr_engine_settle(engine);
    result = agree(engine, result == ZR_OK ? open_to_load(&state, path) : result);
    if (result == ZR_OK)
        result = load_pass(&state, STATE_VERIFY, path);
    if (result == ZR_OK)
        result = load_pass(&state, STATE_LOAD, path);
    if (result == ZR_OK)
        result = zr_engine_publish(engine, state.numbers.steps);
    zr_file_close(&state.file);
    zr_drop(engine->options.host_arena, &state.piece);
    return result;
}
