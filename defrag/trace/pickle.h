/* pickle.h: reads Python pickles that are data alone. Private to defrag/.
 *
 * A pickle is a program for a stack machine. This reader knows the opcodes that build numbers, strings,
 * tuples, lists and dicts, and refuses every other one: nothing is imported, called or executed. Nothing
 * recurses, and memory stays within ZR_PICKLE_FACTOR times the file's bytes, whatever the file says. */
#ifndef ZR_PICKLE_H
#define ZR_PICKLE_H

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
        uint64_t at; /* a text: where its bytes are in the file; a container: its number */
    };
};

/* A pickle that has been read. One thread at a time. */
struct zr_pickle {
    struct zr_pickle_value root;
    const char *name; /* the path, borrowed */
    const unsigned char *data;
    size_t data_bytes;

    /* private */
    struct zr_vector stack, marks, memo;
    struct zr_vector items;      /* struct zr_pickle_value: of all containers; dicts: key, value, key, .. */
    struct zr_vector chunks;     /* struct chunk: stretches of items, linked */
    struct zr_vector containers; /* struct container */
    uint64_t next_bytes;
    uint64_t steps_left; /* of going through it */
};

/* Reads a file whole. The caller owns *out until zr_pickle_end(). ZR_ERR_FORMAT, with the place: no pickle of
 * protocols 2 to 5, an opcode that is refused, or a program that makes no sense. */
zr_result zr_pickle_read(struct zr_pickle *out, const char *path, zr_arena *arena);
void zr_pickle_end(struct zr_pickle *pickle);

/* How many items a list or tuple has, how many pairs a dict; 0 for anything else. */
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
bool zr_pickle_text_is(const struct zr_pickle *pickle, struct zr_pickle_value text, const char *words);

#endif
