/* pickle.h: reads Python pickles that contain only data. Private to defrag/ and zero/checkpoint/.
 *
 * A pickle is a program for a stack machine. This reader supports the opcodes that build numbers, strings,
 * tuples, lists and dicts, and rejects all others: it imports, calls and executes nothing. The reader does
 * not recurse, and its memory stays within ZR_PICKLE_FACTOR times the file's bytes for any input.
 *
 * The file is read through a window, front to back. The reader can deliver the items of long lists one by one
 * and then forget them; texts, and lists and dicts of equal content, are held once. So memory depends on the
 * different content of a file, not on its length, except for 4 bytes for each object in the pickle's memo,
 * which any later byte may name. */
#ifndef ZR_PICKLE_H
#define ZR_PICKLE_H

#include "alloc/base/system/file.h"
#include "defrag/trace/number_map.h"
#include "defrag/trace/vector.h"

/* Max bytes per byte of the file, while the reader's arrays double. */
enum { ZR_PICKLE_FACTOR = 160 };

enum zr_pickle_kind {
    ZR_PICKLE_ABSENT = 0, /* no value: an empty memo entry, a missing key */
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
        uint64_t at; /* text: position of its bytes among the texts; container: its number */
    };
};

struct zr_pickle;

/* Delivers items instead of holding them: each item of the lists in root[key], a list of lists. `list` is the
 * list's number. The item is valid during the call; a list, tuple or dict inside the item has the same number
 * as any other of equal content, and stays. A call that sets *stop ends the reading. For a file that names an
 * item twice, the result is ZR_ERR_FORMAT with asked_spent true, unless `whole` is set. */
struct zr_pickle_stream {
    const char *key;
    bool whole; /* hold everything and deliver at the end: for files that name an item twice */
    zr_result (*take)(void *state, struct zr_pickle *pickle, uint64_t list, struct zr_pickle_value item,
                      bool *stop);
    void *state;
};

/* Where in the stack the stream's lists are built; SIZE_MAX: not yet known. */
struct zr_pickle_place {
    size_t outer, list, item; /* stack heights: of root[key], of the list in it, of the item in the list */
    size_t list_marks;        /* marks at the start of the list */
    uint64_t list_number;
    bool had_outer;
    size_t items, chunks, containers, memo; /* counts at the start of the item */
};

/* A pickle after reading. One thread at a time. */
struct zr_pickle {
    struct zr_pickle_value root; /* absent: the stream stopped the reading */
    const char *name;            /* the path, borrowed */
    uint64_t data_bytes;         /* the file's length */

    /* private */
    zr_arena *arena;
    struct zr_file file;
    unsigned char *window;            /* of the file; NULL after reading */
    size_t window_next, window_bytes; /* bytes consumed, bytes present */
    const struct zr_pickle_stream *stream;
    const struct zr_pickle_part *part; /* NULL: the whole file */
    struct zr_pickle_place place;
    bool stopped;
    bool read_whole;  /* for a second read */
    bool asked_spent; /* the file names an item that was already delivered: read it whole */
    struct zr_vector stack, marks;
    struct zr_vector memo;  /* uint32_t: pickle_held.h */
    struct zr_vector kept;  /* struct zr_pickle_value: memo entries other than texts and containers */
    struct zr_vector texts; /* bytes: for each text a length of 4 bytes and the bytes */
    struct zr_number_map known_texts;      /* from a hash to the text's position in units of 4 */
    struct zr_number_map known_containers; /* from a hash to the number */
    struct zr_vector renamed;              /* uint32_t: of one item's containers */
    struct zr_vector items;  /* struct zr_pickle_value: of all containers; a dict is key, value, key, .. */
    struct zr_vector chunks; /* struct chunk: linked ranges of items */
    struct zr_vector containers; /* struct container */
    uint64_t next_bytes;
    uint64_t steps_left; /* limit for traversals */
};

/* Reads a file; `stream` may be NULL. The caller owns *out until zr_pickle_end(). ZR_ERR_FORMAT, with the
 * position: not a pickle of protocols 2 to 5, a rejected opcode, or an invalid program. Errors of the
 * stream's call pass through. */
zr_result zr_pickle_read(struct zr_pickle *out, const char *path, const struct zr_pickle_stream *stream,
                         zr_arena *arena);
void zr_pickle_end(struct zr_pickle *pickle);

/* A pickle inside a file, with calls as data: a function is the text "module name"; a call is the tuple
 * (function, arguments); OrderedDict() is an empty dict; an object outside the pickle is the value that names
 * it; a change of an object by BUILD has no effect. Nothing is imported or called here either: the caller
 * checks the functions. */
struct zr_pickle_part {
    uint64_t at_bytes, bytes;
};
zr_result zr_pickle_read_calls(struct zr_pickle *out, const char *path, const struct zr_pickle_part *part,
                               zr_arena *arena);

/* Number of items of a list or tuple, including delivered ones; of pairs of a dict; 0 for anything else. */
uint64_t zr_pickle_count(const struct zr_pickle *pickle, struct zr_pickle_value container);

/* Iterates over a list or tuple. A pickle can name one list many times and so be larger than its file: after
 * a number of steps in proportion to the file, cursors end early and zr_pickle_exhausted() is true. */
struct zr_pickle_cursor {
    uint32_t chunk;
    uint32_t next, end; /* items */
};
struct zr_pickle_cursor zr_pickle_cursor_of(const struct zr_pickle *pickle, struct zr_pickle_value container);
bool zr_pickle_next(struct zr_pickle *pickle, struct zr_pickle_cursor *cursor, struct zr_pickle_value *out);
bool zr_pickle_exhausted(const struct zr_pickle *pickle);

/* Looks up `count` keys of a dict. Absent keys, and all keys of a value that is no dict, get
 * ZR_PICKLE_ABSENT. If a key occurs twice, the last one counts, as in Python. */
struct zr_pickle_field {
    const char *key;
    struct zr_pickle_value value;
};
void zr_pickle_fields(struct zr_pickle *pickle, struct zr_pickle_value dict, struct zr_pickle_field *fields,
                      unsigned count);
/* A text's bytes and a zero, valid until the next read or zr_pickle_end(). */
const char *zr_pickle_text(const struct zr_pickle *pickle, struct zr_pickle_value text);
bool zr_pickle_text_is(const struct zr_pickle *pickle, struct zr_pickle_value text, const char *words);

#endif
