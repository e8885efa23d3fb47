/* pickle.c: the stack machine, without the opcodes that act. Uses pickle_held.c and alloc/base/system/file.c.
 *
 * Opcodes and their meaning: Python's Lib/pickletools.py. */
#include "defrag/trace/formats/pickle_held.h"

#include <string.h>

#include "alloc/base/error.h"

/* A pickler writes at least two bytes for an item, so four steps a byte are ample for its own data. */
enum { STEPS_PER_BYTE = 4 };

enum { WINDOW_BYTES = 64 << 10, TAKEN_MAX = WINDOW_BYTES / 2 };

enum opcode {
    OP_MARK = '(',
    OP_EMPTY_TUPLE = ')',
    OP_STOP = '.',
    OP_BINFLOAT = 'G',
    OP_BINPERSID = 'Q',
    OP_REDUCE = 'R',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_BINUNICODE = 'X',
    OP_EMPTY_LIST = ']',
    OP_APPEND = 'a',
    OP_DICT = 'd',
    OP_APPENDS = 'e',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_LIST = 'l',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_SETITEM = 's',
    OP_TUPLE = 't',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_PROTO = 0x80,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_LONG4 = 0x8b,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINUNICODE8 = 0x8d,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
};

/* Rejected opcodes, for messages: their names in pickletools, and their effect. */
static const struct {
    unsigned opcode;
    const char *words;
} refused[] = {
    {'c', "GLOBAL: it would import"},
    {0x93, "STACK_GLOBAL: it would import"},
    {'R', "REDUCE: it would call a function"},
    {'i', "INST: it would make an object"},
    {'o', "OBJ: it would make an object"},
    {0x81, "NEWOBJ: it would make an object"},
    {0x92, "NEWOBJ_EX: it would make an object"},
    {'b', "BUILD: it would change an object"},
    {'P', "PERSID: it would ask the program for an object"},
    {'Q', "BINPERSID: it would ask the program for an object"},
    {0x82, "EXT1: it would import"},
    {0x83, "EXT2: it would import"},
    {0x84, "EXT4: it would import"},
    {0x97, "NEXT_BUFFER: data outside the file"},
    {0x98, "READONLY_BUFFER: data outside the file"},
    {'B', "BINBYTES: bytes"},
    {'C', "SHORT_BINBYTES: bytes"},
    {0x8e, "BINBYTES8: bytes"},
    {0x96, "BYTEARRAY8: bytes"},
    {0x8f, "EMPTY_SET: a set"},
    {0x90, "ADDITEMS: a set"},
    {0x91, "FROZENSET: a set"},
    {OP_PROTO, "PROTO: a program inside the program"},
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'I', "INT: text of protocol 0"},
    {'L', "LONG: text of protocol 0"},
    {'F', "FLOAT: text of protocol 0"},
    {'S', "STRING: text of protocol 0"},
    {'V', "UNICODE: text of protocol 0"},
    {'g', "GET: text of protocol 0"},
    {'p', "PUT: text of protocol 0"},
    {'T', "BINSTRING: text of Python 2"},
    {'U', "SHORT_BINSTRING: text of Python 2"},
};

static zr_result refuse(const struct zr_pickle *pickle, unsigned opcode)
{
    const char *words = "not an opcode of Python";
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].opcode == opcode)
            words = refused[i].words;
    return zr_fail(ZR_ERR_FORMAT,
                   "'%s': byte %llu is the opcode 0x%02x (%s). A pickle is a program; only those that build "
                   "plain data are read",
                   pickle->name, (unsigned long long)pickle->next_bytes - 1, opcode, words);
}

static zr_result wrong(const struct zr_pickle *pickle, const char *what)
{
    return zr_pickle_wrong(pickle, what);
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

/* Checks that the file has that many bytes left; fails with a message. */
static zr_result has(struct zr_pickle *pickle, uint64_t bytes)
{
    return bytes <= pickle->data_bytes - pickle->next_bytes
               ? ZR_OK
               : wrong(pickle, "a value extends beyond the end of the file");
}

/* Moves the window so that it has `bytes` bytes, at most its length. */
static zr_result fill(struct zr_pickle *pickle, size_t bytes)
{
    size_t left = pickle->window_bytes - pickle->window_next, got = 0;
    memmove(pickle->window, pickle->window + pickle->window_next, left);
    zr_result result;
    if (pickle->part) {
        uint64_t rest = pickle->data_bytes - pickle->next_bytes - left;
        got = rest < WINDOW_BYTES - left ? (size_t)rest : WINDOW_BYTES - left;
        result = zr_file_read_at(&pickle->file, pickle->part->at_bytes + pickle->next_bytes + left,
                                 pickle->window + left, got);
    } else {
        result = zr_file_read(&pickle->file, pickle->window + left, WINDOW_BYTES - left, &got);
    }
    pickle->window_next = 0;
    pickle->window_bytes = left + got;
    if (result == ZR_OK && left + got < bytes)
        return wrong(pickle, "a value extends beyond the end of the file");
    return result;
}

/* The next `bytes` of the program, at most TAKEN_MAX, valid until the next take(); NULL, with a message: the
 * file ends. */
static const unsigned char *take(struct zr_pickle *pickle, size_t bytes)
{
    if (pickle->window_bytes - pickle->window_next < bytes &&
        (has(pickle, bytes) != ZR_OK || fill(pickle, bytes) != ZR_OK))
        return NULL;
    const unsigned char *data = pickle->window + pickle->window_next;
    pickle->window_next += bytes;
    pickle->next_bytes += bytes;
    return data;
}

/* Copies the next `bytes`, any number, to `out`; NULL: skips them. */
static zr_result take_into(struct zr_pickle *pickle, uint64_t bytes, char *out)
{
    zr_result result = has(pickle, bytes);
    while (bytes > 0 && result == ZR_OK) {
        size_t part = bytes < TAKEN_MAX ? (size_t)bytes : TAKEN_MAX;
        const unsigned char *data = take(pickle, part);
        if (!data)
            return ZR_ERR_FORMAT;
        if (out)
            memcpy(out, data, part);
        out = out ? out + part : NULL;
        bytes -= part;
    }
    return result;
}

static uint64_t little_endian(const unsigned char *data, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)data[i] << (8 * i);
    return value;
}

/* Reads an unsigned number of `bytes` bytes. */
static zr_result take_number(struct zr_pickle *pickle, unsigned bytes, uint64_t *out)
{
    const unsigned char *data = take(pickle, bytes);
    if (!data)
        return ZR_ERR_FORMAT;
    *out = little_endian(data, bytes);
    return ZR_OK;
}

/* ---- The stack ----------------------------------------------------------------------------------------- */

static struct zr_pickle_value *top(const struct zr_pickle *pickle)
{
    return zr_vector_at(&pickle->stack, pickle->stack.count - 1);
}

size_t zr_pickle_floor(const struct zr_pickle *pickle)
{
    return pickle->marks.count ? *(const uint32_t *)zr_vector_at(&pickle->marks, pickle->marks.count - 1) : 0;
}

static zr_result need(const struct zr_pickle *pickle, size_t count)
{
    return pickle->stack.count - zr_pickle_floor(pickle) >= count
               ? ZR_OK
               : wrong(pickle, "too few values are on the stack");
}

static zr_result push(struct zr_pickle *pickle, struct zr_pickle_value value)
{
    return zr_vector_add(&pickle->stack, &value);
}

static zr_result push_integer(struct zr_pickle *pickle, int64_t integer)
{
    return push(pickle, (struct zr_pickle_value){.kind = ZR_PICKLE_INTEGER, .integer = integer});
}

static zr_result push_text(struct zr_pickle *pickle, uint64_t bytes)
{
    struct zr_pickle_value value;
    char *room = NULL;
    zr_result result = has(pickle, bytes);
    if (result == ZR_OK)
        result = zr_pickle_text_room(pickle, bytes, &room);
    if (result == ZR_OK)
        result = take_into(pickle, bytes, room);
    if (result == ZR_OK)
        result = zr_pickle_text_add(pickle, bytes, &value);
    return result == ZR_OK ? push(pickle, value) : result;
}

/* Pushes a two's complement number of any length; with more than TAKEN_MAX bytes it is beyond 64 bits. */
static zr_result push_long(struct zr_pickle *pickle, uint64_t bytes)
{
    if (bytes > TAKEN_MAX) {
        zr_result result = take_into(pickle, bytes, NULL);
        return result == ZR_OK ? push(pickle, (struct zr_pickle_value){.kind = ZR_PICKLE_BIG}) : result;
    }
    const unsigned char *data = take(pickle, bytes);
    if (!data)
        return ZR_ERR_FORMAT;
    if (bytes == 0)
        return push_integer(pickle, 0);
    bool negative = data[bytes - 1] & 0x80;
    uint64_t value = negative ? ~UINT64_C(0) : 0;
    for (uint64_t i = 0; i < bytes; i++) {
        if (i < 8)
            value = (value & ~(UINT64_C(0xff) << (8 * i))) | (uint64_t)data[i] << (8 * i);
        else if (data[i] != (negative ? 0xff : 0))
            return push(pickle, (struct zr_pickle_value){.kind = ZR_PICKLE_BIG});
    }
    if (((value >> 63) & 1) != negative)
        return push(pickle, (struct zr_pickle_value){.kind = ZR_PICKLE_BIG});
    return push_integer(pickle, (int64_t)value);
}

static zr_result push_real(struct zr_pickle *pickle)
{
    const unsigned char *data = take(pickle, 8);
    uint64_t bits = 0;
    struct zr_pickle_value value = {.kind = ZR_PICKLE_REAL};
    if (!data)
        return ZR_ERR_FORMAT;
    for (unsigned i = 0; i < 8; i++)
        bits = bits << 8 | data[i];
    memcpy(&value.real, &bits, sizeof bits);
    return push(pickle, value);
}

static zr_result push_mark(struct zr_pickle *pickle)
{
    uint32_t height = (uint32_t)pickle->stack.count;
    return zr_vector_add(&pickle->marks, &height);
}

/* Pops the last mark; *first is the index of the values above it. */
static zr_result pop_mark(struct zr_pickle *pickle, size_t *first)
{
    if (pickle->marks.count == 0)
        return wrong(pickle, "there is no mark");
    *first = zr_pickle_floor(pickle);
    pickle->marks.count--;
    return ZR_OK;
}

/* ---- Containers ---------------------------------------------------------------------------------------- */

static zr_result push_container(struct zr_pickle *pickle, enum zr_pickle_kind kind)
{
    struct zr_pickle_value value;
    zr_result result = kind == ZR_PICKLE_DICT ? zr_pickle_stream_next(pickle) : ZR_OK;
    if (result == ZR_OK)
        result = zr_pickle_container_add(pickle, kind, &value);
    if (result == ZR_OK)
        result = push(pickle, value);
    return result == ZR_OK ? zr_pickle_stream_pushed(pickle, value) : result;
}

/* Moves the values from `first` on into the container below them. */
static zr_result append_to(struct zr_pickle *pickle, enum zr_pickle_kind kind, size_t first)
{
    if (first <= zr_pickle_floor(pickle) || first > pickle->stack.count)
        return wrong(pickle, "there is nothing to put the values into");
    const struct zr_pickle_value *to = zr_vector_at(&pickle->stack, first - 1);
    if (to->kind != kind)
        return wrong(pickle, "values go into something of another kind");
    if (kind == ZR_PICKLE_DICT && (pickle->stack.count - first) % 2 != 0)
        return wrong(pickle, "a key has no value");
    struct zr_pickle_value container = *to;
    bool taken = false;
    zr_result result = kind == ZR_PICKLE_LIST ? zr_pickle_stream_append(pickle, first, &taken) : ZR_OK;
    return result == ZR_OK && !taken ? zr_pickle_append(pickle, container, first) : result;
}

/* Makes a container of the values from `first` on. */
static zr_result collect(struct zr_pickle *pickle, enum zr_pickle_kind kind, size_t first)
{
    if (kind == ZR_PICKLE_DICT && (pickle->stack.count - first) % 2 != 0)
        return wrong(pickle, "a key has no value");
    struct zr_pickle_value value;
    zr_result result = zr_pickle_container_add(pickle, kind, &value);
    if (result == ZR_OK)
        result = zr_pickle_append(pickle, value, first);
    return result == ZR_OK ? push(pickle, value) : result;
}

static zr_result collect_marked(struct zr_pickle *pickle, enum zr_pickle_kind kind)
{
    size_t first = 0;
    zr_result result = pop_mark(pickle, &first);
    return result == ZR_OK ? collect(pickle, kind, first) : result;
}

static zr_result append_marked(struct zr_pickle *pickle, enum zr_pickle_kind kind)
{
    size_t first = 0;
    zr_result result = pop_mark(pickle, &first);
    return result == ZR_OK ? append_to(pickle, kind, first) : result;
}

/* Uses the last `count` values: makes a tuple, or (tuple false) adds them to the container below them. */
static zr_result use_last(struct zr_pickle *pickle, size_t count, enum zr_pickle_kind kind)
{
    bool tuple = kind == ZR_PICKLE_TUPLE;
    zr_result result = need(pickle, count + !tuple);
    if (result != ZR_OK)
        return result;
    size_t first = pickle->stack.count - count;
    return tuple ? collect(pickle, kind, first) : append_to(pickle, kind, first);
}

/* ---- The memo ------------------------------------------------------------------------------------------ */

static zr_result get(struct zr_pickle *pickle, unsigned number_bytes)
{
    uint64_t number = 0;
    zr_result result = take_number(pickle, number_bytes, &number);
    if (result != ZR_OK)
        return result;
    struct zr_pickle_value value = zr_pickle_memo_get(pickle, number);
    if (value.kind == ZR_PICKLE_ABSENT)
        return wrong(pickle, "a memo entry is read that was never written");
    return push(pickle, value);
}

static zr_result put(struct zr_pickle *pickle, uint64_t number)
{
    zr_result result = need(pickle, 1);
    if (result != ZR_OK)
        return result;
    /* Picklers count up. A file of n bytes has fewer than n memo entries, so this bounds the memory. */
    if (number >= pickle->data_bytes)
        return wrong(pickle, "a memo number exceeds the file's length");
    return zr_pickle_memo_set(pickle, number, *top(pickle));
}

static zr_result put_numbered(struct zr_pickle *pickle, unsigned number_bytes)
{
    uint64_t number = 0;
    zr_result result = take_number(pickle, number_bytes, &number);
    return result == ZR_OK ? put(pickle, number) : result;
}

/* ---- Calls as data ------------------------------------------------------------------------------------- */

/* Pushes "module name" of the two lines. */
static zr_result push_function(struct zr_pickle *pickle)
{
    enum { ROOM = 128 };
    char name[ROOM], *room = NULL;
    size_t used = 0;
    struct zr_pickle_value value;
    for (unsigned lines = 0; lines < 2;) {
        const unsigned char *byte = take(pickle, 1);
        if (!byte)
            return ZR_ERR_FORMAT;
        lines += *byte == '\n';
        if (lines == 2)
            break;
        if (used == sizeof name)
            return wrong(pickle, "the name of a function is too long");
        name[used++] = *byte == '\n' ? ' ' : (char)*byte;
    }
    zr_result result = zr_pickle_text_room(pickle, used, &room);
    if (result == ZR_OK) {
        memcpy(room, name, used);
        result = zr_pickle_text_add(pickle, used, &value);
    }
    return result == ZR_OK ? push(pickle, value) : result;
}

/* Function and arguments become a tuple; OrderedDict() a dict. */
static zr_result call(struct zr_pickle *pickle)
{
    zr_result result = need(pickle, 2);
    if (result != ZR_OK)
        return result;
    size_t first = pickle->stack.count - 2;
    const struct zr_pickle_value *function = zr_vector_at(&pickle->stack, first);
    if (!zr_pickle_text_is(pickle, *function, "collections OrderedDict"))
        return collect(pickle, ZR_PICKLE_TUPLE, first);
    if (zr_pickle_count(pickle, *top(pickle)) > 0)
        return wrong(pickle, "an OrderedDict has arguments");
    pickle->stack.count = first;
    return push_container(pickle, ZR_PICKLE_DICT);
}

static zr_result run_call(struct zr_pickle *pickle, unsigned opcode)
{
    zr_result result = ZR_OK;
    if (opcode == OP_GLOBAL)
        return push_function(pickle);
    if (opcode == OP_REDUCE)
        return call(pickle);
    if (opcode == OP_BINPERSID)
        return need(pickle, 1);
    result = need(pickle, 2);
    pickle->stack.count -= result == ZR_OK;
    return result;
}

/* ---- Opcodes ------------------------------------------------------------------------------------------- */

/* Opcodes with a number of `number_bytes`. */
static zr_result run_with_number(struct zr_pickle *pickle, unsigned opcode, unsigned number_bytes)
{
    uint64_t number = 0;
    zr_result result = take_number(pickle, number_bytes, &number);
    if (result != ZR_OK)
        return result;
    switch (opcode) {
    case OP_BININT:
        return push_integer(pickle, (int32_t)(uint32_t)number);
    case OP_BININT1:
    case OP_BININT2:
        return push_integer(pickle, (int64_t)number);
    case OP_LONG1:
        return push_long(pickle, number);
    case OP_LONG4:
        return number >> 31 ? wrong(pickle, "a number has a negative length") : push_long(pickle, number);
    case OP_FRAME:
        return number <= pickle->data_bytes - pickle->next_bytes
                   ? ZR_OK
                   : wrong(pickle, "a frame extends beyond the end of the file");
    default: /* texts */
        return push_text(pickle, number);
    }
}

/* Opcodes that work on the stack. */
static zr_result run_on_stack(struct zr_pickle *pickle, unsigned opcode)
{
    switch (opcode) {
    case OP_MARK:
        return push_mark(pickle);
    case OP_EMPTY_LIST:
        return push_container(pickle, ZR_PICKLE_LIST);
    case OP_EMPTY_DICT:
        return push_container(pickle, ZR_PICKLE_DICT);
    case OP_EMPTY_TUPLE:
        return push_container(pickle, ZR_PICKLE_TUPLE);
    case OP_APPEND:
        return use_last(pickle, 1, ZR_PICKLE_LIST);
    case OP_SETITEM:
        return use_last(pickle, 2, ZR_PICKLE_DICT);
    case OP_TUPLE1:
    case OP_TUPLE2:
    case OP_TUPLE3:
        return use_last(pickle, opcode - OP_TUPLE1 + 1, ZR_PICKLE_TUPLE);
    case OP_APPENDS:
        return append_marked(pickle, ZR_PICKLE_LIST);
    case OP_SETITEMS:
        return append_marked(pickle, ZR_PICKLE_DICT);
    case OP_LIST:
        return collect_marked(pickle, ZR_PICKLE_LIST);
    case OP_DICT:
        return collect_marked(pickle, ZR_PICKLE_DICT);
    case OP_TUPLE:
        return collect_marked(pickle, ZR_PICKLE_TUPLE);
    case OP_MEMOIZE:
        return put(pickle, pickle->memo.count);
    case OP_GLOBAL:
    case OP_REDUCE:
    case OP_BINPERSID:
    case OP_BUILD:
        return pickle->part ? run_call(pickle, opcode) : refuse(pickle, opcode);
    default:
        return refuse(pickle, opcode);
    }
}

static zr_result run(struct zr_pickle *pickle, unsigned opcode)
{
    switch (opcode) {
    case OP_BININT1:
    case OP_LONG1:
    case OP_SHORT_BINUNICODE:
        return run_with_number(pickle, opcode, 1);
    case OP_BININT2:
        return run_with_number(pickle, opcode, 2);
    case OP_BININT:
    case OP_LONG4:
    case OP_BINUNICODE:
        return run_with_number(pickle, opcode, 4);
    case OP_BINUNICODE8:
    case OP_FRAME:
        return run_with_number(pickle, opcode, 8);
    case OP_BINFLOAT:
        return push_real(pickle);
    case OP_NONE:
        return push(pickle, (struct zr_pickle_value){.kind = ZR_PICKLE_NONE});
    case OP_NEWTRUE:
    case OP_NEWFALSE:
        return push(pickle,
                    (struct zr_pickle_value){.kind = ZR_PICKLE_BOOL, .integer = opcode == OP_NEWTRUE});
    case OP_BINGET:
        return get(pickle, 1);
    case OP_LONG_BINGET:
        return get(pickle, 4);
    case OP_BINPUT:
        return put_numbered(pickle, 1);
    case OP_LONG_BINPUT:
        return put_numbered(pickle, 4);
    default:
        return run_on_stack(pickle, opcode);
    }
}

static zr_result run_all(struct zr_pickle *pickle)
{
    const unsigned char *head = take(pickle, 2);
    if (!head)
        return ZR_ERR_FORMAT;
    if (head[0] != OP_PROTO || head[1] < 2 || head[1] > 5)
        return wrong(pickle, "no pickle of protocol 2 to 5 begins");
    for (;;) {
        const unsigned char *opcode = take(pickle, 1);
        if (!opcode)
            return ZR_ERR_FORMAT;
        if (*opcode == OP_STOP)
            break;
        zr_result result = run(pickle, *opcode);
        if (result != ZR_OK || pickle->stopped)
            return result;
    }
    if (pickle->stack.count != 1 || pickle->marks.count != 0)
        return wrong(pickle, "the program stops with other than one value");
    if (pickle->next_bytes != pickle->data_bytes)
        return wrong(pickle, "the program stops before the end of the file");
    pickle->root = *top(pickle);
    return ZR_OK;
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static zr_result start(struct zr_pickle *pickle, const char *path)
{
    void *window;
    zr_result result = zr_file_open(&pickle->file, path);
    if (result == ZR_OK)
        result = zr_file_size(&pickle->file, &pickle->data_bytes);
    if (result == ZR_OK && pickle->part) {
        bool inside = pickle->part->at_bytes <= pickle->data_bytes &&
                      pickle->part->bytes <= pickle->data_bytes - pickle->part->at_bytes;
        pickle->data_bytes = inside ? pickle->part->bytes : 0;
    }
    if (result == ZR_OK && (pickle->data_bytes == 0 || pickle->data_bytes >= UINT32_MAX))
        result = zr_fail(ZR_ERR_FORMAT,
                         "'%s' has %llu bytes of a pickle: it must be more than 0 and less than 4 GiB", path,
                         (unsigned long long)pickle->data_bytes);
    if (result == ZR_OK)
        result = zr_arena_alloc(pickle->arena,
                                &(struct zr_request){.bytes = WINDOW_BYTES, .tag = ZR_TAG_OTHER}, &window);
    if (result != ZR_OK)
        return result;
    pickle->window = window;
    pickle->steps_left = pickle->data_bytes * STEPS_PER_BYTE + 4096;
    zr_pickle_stream_start(pickle);
    return ZR_OK;
}

/* Frees the memory that only reading needs. */
static void end_reading(struct zr_pickle *pickle)
{
    zr_vector_end(&pickle->stack);
    zr_vector_end(&pickle->marks);
    zr_vector_end(&pickle->memo);
    zr_vector_end(&pickle->kept);
    zr_vector_end(&pickle->renamed);
    zr_number_map_end(&pickle->known_texts);
    zr_number_map_end(&pickle->known_containers);
    if (pickle->window)
        zr_arena_free(pickle->arena, pickle->window);
    pickle->window = NULL;
    zr_file_close(&pickle->file);
}

static zr_result read_pickle(struct zr_pickle *out)
{
    zr_arena *arena = out->arena;
    const char *path = out->name;
    zr_vector_init(&out->stack, arena, sizeof(struct zr_pickle_value));
    zr_vector_init(&out->marks, arena, sizeof(uint32_t));
    zr_vector_init(&out->memo, arena, sizeof(uint32_t));
    zr_vector_init(&out->kept, arena, sizeof(struct zr_pickle_value));
    zr_vector_init(&out->renamed, arena, sizeof(uint32_t));
    zr_vector_init(&out->texts, arena, 1);
    zr_vector_init(&out->items, arena, sizeof(struct zr_pickle_value));
    zr_vector_init(&out->chunks, arena, sizeof(struct zr_pickle_chunk));
    zr_vector_init(&out->containers, arena, sizeof(struct zr_pickle_container));
    zr_number_map_init(&out->known_texts, arena);
    zr_number_map_init(&out->known_containers, arena);
    zr_result result = start(out, path);
    if (result == ZR_OK)
        result = run_all(out);
    if (result == ZR_OK && !out->stopped)
        result = zr_pickle_stream_rest(out);
    end_reading(out);
    if (result != ZR_OK)
        zr_pickle_end(out);
    return result;
}

zr_result zr_pickle_read(struct zr_pickle *out, const char *path, const struct zr_pickle_stream *stream,
                         zr_arena *arena)
{
    *out = (struct zr_pickle){.name = path, .arena = arena, .stream = stream, .file = {.fd = -1}};
    return read_pickle(out);
}

zr_result zr_pickle_read_calls(struct zr_pickle *out, const char *path, const struct zr_pickle_part *part,
                               zr_arena *arena)
{
    *out = (struct zr_pickle){.name = path, .arena = arena, .part = part, .file = {.fd = -1}};
    zr_result result = read_pickle(out);
    out->part = NULL;
    return result;
}

void zr_pickle_end(struct zr_pickle *pickle)
{
    zr_vector_end(&pickle->texts);
    zr_vector_end(&pickle->items);
    zr_vector_end(&pickle->chunks);
    zr_vector_end(&pickle->containers);
    pickle->root = (struct zr_pickle_value){0};
}
