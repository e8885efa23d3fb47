/* pickle.h: reads Python pickles that are data alone. Private to defrag/.
 *
 * A pickle is a program for a stack machine. This reader knows the opcodes that build numbers, strings,
 * tuples, lists and dicts, and refuses every other one: nothing is imported, called or executed. Nothing
 * recurses, and memory stays within ZR_PICKLE_FACTOR times the file's bytes, whatever the file says.
 *
 * The file is read through a window, front to back. The items of long lists can be handed over one by one and
 * are then forgotten; what they share (texts, and lists and dicts of equal content) is held once. So memory
 * goes by what is different in a file, and not by its length, but for 4 bytes for each object that the file
 * itself keeps in its memo, since a later byte may name any of them. */
#ifndef ZR_PICKLE_H
#define ZR_PICKLE_H

#include "alloc/base/system/file.h"
#include "defrag/trace/number_map.h"
#include "defrag/trace/vector.h"

/* What reading takes at most, per byte of the file, while its arrays double. */
enum { ZR_PICKLE_FACTOR = 160 };

enum zr_pickle_kind {
    ZR_PICKLE_ABSENT = 0, /* no value at all: an empty memo, a missing key */
    ZR_PICKLE_NONE,
    ZR_PICKLE_BOOL,
    ZR_PICKLE_INTEGER,
    ZR_PICKLE_BIG, /* an integer beyond 64 bits */
    ZR_PICKLE_REAL,
    ZR_PICKLE_TEXT,
    ZR_PICKLE_TUPLE,
    ZR_PICKLE_LIST,
    ZR_PICKLE_DICT,
};

struct zr_pickle_value {
    uint32_t kind;       /* enum zr_pickle_kind */
    uint32_t text_bytes; /* of a text */
    union {
        int64_t integer; /* and bool */
        double real;
        uint64_t at; /* a text: where its bytes are among the texts; a container: its number */
    };
};

struct zr_pickle;

/* What is handed over instead of held: each item of the lists in root[key], which is a list of lists. `list`
 * is the list's number. The item is valid during the call; a list, tuple or dict inside it has the same
 * number as any other one of the same content, and stays. A call that sets *stop ends the reading. A file
 * that names an item twice is ZR_ERR_FORMAT, and asked_spent is true, unless it is read whole. */
struct zr_pickle_stream {
    const char *key;
    bool whole; /* hand over at the end and hold everything: for files that name an item twice */
    zr_result (*take)(void *state, struct zr_pickle *pickle, uint64_t list, struct zr_pickle_value item,
                      bool *stop);
    void *state;
};

/* Where in the stack the stream's lists are built; SIZE_MAX: nowhere as yet. */
struct zr_pickle_place {
    size_t outer, list, item; /* heights in the stack: of root[key], of the list in it, of the item in that */
    size_t list_marks;        /* marks when the list began */
    uint64_t list_number;
    bool had_outer;
    size_t items, chunks, containers, memo; /* what there was before the item */
};

/* A pickle that has been read. One thread at a time. */
struct zr_pickle {
    struct zr_pickle_value root; /* absent: the stream stopped the reading */
    const char *name;            /* the path, borrowed */
    uint64_t data_bytes;         /* the file's length */

    /* private */
    zr_arena *arena;
    struct zr_file file;
    unsigned char *window;            /* of the file; NULL once it is read */
    size_t window_next, window_bytes; /* what of it has been taken, what is there */
    const struct zr_pickle_stream *stream;
    struct zr_pickle_place place;
    bool stopped;
    bool read_whole;  /* for whoever reads it again */
    bool asked_spent; /* the file names an item that was handed over: read it whole */
    struct zr_vector stack, marks;
    struct zr_vector memo;  /* uint32_t: pickle_held.h */
    struct zr_vector kept;  /* struct zr_pickle_value: what the memo keeps besides texts and containers */
    struct zr_vector texts; /* bytes: of each text its length, in 4, and itself */
    struct zr_number_map known_texts;      /* from a hash to the text's place in units of 4 */
    struct zr_number_map known_containers; /* from a hash to the number */
    struct zr_vector renamed;              /* uint32_t: of an item's containers */
    struct zr_vector items;      /* struct zr_pickle_value: of all containers; dicts: key, value, key, .. */
    struct zr_vector chunks;     /* struct chunk: stretches of items, linked */
    struct zr_vector containers; /* struct container */
    uint64_t next_bytes;
    uint64_t steps_left; /* of going through it */
};

/* Reads a file; `stream`: NULL, or what is handed over. The caller owns *out until zr_pickle_end().
 * ZR_ERR_FORMAT, with the place: no pickle of protocols 2 to 5, an opcode that is refused, or a program that
 * makes no sense. A failure of the stream's. */
zr_result zr_pickle_read(struct zr_pickle *out, const char *path, const struct zr_pickle_stream *stream,
                         zr_arena *arena);
void zr_pickle_end(struct zr_pickle *pickle);

/* How many items a list or tuple has, those handed over included; how many pairs a dict; 0 for anything else.
 */
uint64_t zr_pickle_count(const struct zr_pickle *pickle, struct zr_pickle_value container);

/* Goes through a list or tuple. A pickle can name one list many times, and so be larger than its file: after
 * a number of steps in proportion to the file, cursors end early and zr_pickle_exhausted() is true. */
struct zr_pickle_cursor {
    uint32_t chunk;
    uint32_t next, end; /* items */
};
struct zr_pickle_cursor zr_pickle_cursor_of(const struct zr_pickle *pickle, struct zr_pickle_value container);
bool zr_pickle_next(struct zr_pickle *pickle, struct zr_pickle_cursor *cursor, struct zr_pickle_value *out);
bool zr_pickle_exhausted(const struct zr_pickle *pickle);

/* The values of `count` keys of a dict; absent ones, and all of what is no dict, get ZR_PICKLE_ABSENT. Of a
 * key that comes twice the last counts, as in Python. */
struct zr_pickle_field {
    const char *key;
    struct zr_pickle_value value;
};
void zr_pickle_fields(struct zr_pickle *pickle, struct zr_pickle_value dict, struct zr_pickle_field *fields,
                      unsigned count);
/* A text's bytes, without a zero at their end, until the next read or zr_pickle_end(). */
const char *zr_pickle_text(const struct zr_pickle *pickle, struct zr_pickle_value text);
bool zr_pickle_text_is(const struct zr_pickle *pickle, struct zr_pickle_value text, const char *words);

#endif
