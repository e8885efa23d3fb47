/* json_file.h: a JSON file of settings that is read by paths of keys, such as "optimizer.params.lr", and the
 * problems found in it, each with its line. Private to config.c and model.c. One thread; one file at a time.
 */
#ifndef ZR_TRAIN_JSON_FILE_H
#define ZR_TRAIN_JSON_FILE_H

#include <jansson.h>

#include "alloc/base/system/file.h"

enum { ZR_JSON_PATH_ROOM = 160 };

struct zr_json_file {
    const char *option;      /* "--config", for messages; borrowed */
    const char *name;        /* borrowed */
    char *text;              /* pages with the file, its values and the problems */
    json_t *root;            /* an object; borrowed */
    struct zr_text problems; /* a line each: "  line 3: optimizer.type: ..." */
    unsigned problems_count;
};

/* Reads and parses a file. ZR_ERR_IO, ZR_ERR_FORMAT: the message names file and line. Close it in any case.
 */
zr_result zr_json_file_open(struct zr_json_file *out, const char *option, const char *name);
/* Releases all values. */
void zr_json_file_close(struct zr_json_file *file);

/* The value at a path; NULL: none, or null. */
json_t *zr_json_file_get(const struct zr_json_file *file, const char *path);
/* Whether a value is a number, or a string with one, such as "1e9". */
bool zr_json_number(const json_t *value, double *out);

/* Adds a problem with the value at a path. Returns ZR_ERR_INVALID. */
zr_result zr_json_file_refuse(struct zr_json_file *file, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* ZR_ERR_INVALID if there are problems: the message has the first one. */
zr_result zr_json_file_result(const struct zr_json_file *file);

#endif
