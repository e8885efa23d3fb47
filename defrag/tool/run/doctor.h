/* doctor.h: what `zr doctor` finds, for the command itself and for `zr run --strict`. Private to
 * defrag/tool/.
 */
#ifndef ZR_TOOL_DOCTOR_H
#define ZR_TOOL_DOCTOR_H

#include <limits.h>

#include "defrag/tool/run/program.h"
#include "defrag/tool/tool.h"

enum zr_doctor_verdict {
    ZR_DOCTOR_FINE = 0,
    ZR_DOCTOR_NOTE, /* works, but not as well as it could; or cannot be known */
    ZR_DOCTOR_BAD   /* does not work; of a program: memory that is missed */
};

struct zr_doctor_finding {
    enum zr_doctor_verdict verdict;
    char name[64];
    char found[320];
    char type[160]; /* what to type; "": nothing */
};

enum { ZR_DOCTOR_MOST = 96 };

struct zr_doctor {
    struct zr_doctor_finding findings[ZR_DOCTOR_MOST];
    unsigned count; /* beyond the most: that many were found, and of the last the worst is here */
    struct zr_doctor_finding left_out;
};

/* Adds one and returns it, for more words. */
struct zr_doctor_finding *zr_doctor_add(struct zr_doctor *doctor, enum zr_doctor_verdict verdict,
                                        const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The machine, the limits of this process, the preloaded library. */
void zr_doctor_look_at_system(struct zr_doctor *doctor);
/* The libraries that are to be preloaded. */
struct zr_doctor_wanted {
    bool malloc, cuda;
};
/* A program that can be found: whether it can be preloaded; then, of its file and of each library that its
 * loader would load, the ways in which they take memory that is wanted. Nothing of the program is run. */
void zr_doctor_look_at_program(struct zr_doctor *doctor, const struct zr_program *program,
                               struct zr_doctor_wanted wanted);

/* A file of the program, mapped. */
struct zr_doctor_file {
    const char *path, *name; /* the name is its last part */
    const char *data;
    size_t bytes;
    bool is_program; /* its symbols come before those of a preloaded library */
    /* Its dynamic symbols and their strings: see doctor_elf.c. */
    const char *strings;
    size_t strings_bytes;
    const void *symbols;
    size_t symbols_count;
};
struct zr_doctor_symbol {
    const char *name; /* in the file */
    bool defined;     /* by the file, for others to use; else it uses another's */
};
/* The dynamic symbol at *at, from 0 on, or the next that has a name; false: there is none. */
bool zr_doctor_next_symbol(const struct zr_doctor_file *file, size_t *at, struct zr_doctor_symbol *out);
/* Whether the file defines the dynamic symbol, for others to use. */
bool zr_doctor_defines(const struct zr_doctor_file *file, const char *symbol);
/* Whether it has a dynamic symbol of that name, its own or another's. */
bool zr_doctor_names(const struct zr_doctor_file *file, const char *symbol);
/* Whether the bytes are anywhere in it. */
bool zr_doctor_contains(const struct zr_doctor_file *file, const char *text);
/* False: it cannot be read. */
bool zr_doctor_open(struct zr_doctor_file *out, const char *path);
void zr_doctor_close(struct zr_doctor_file *file);

/* One function for each library that is preloaded: adds how a file takes the memory that the library serves,
 * and whether it is served. */
void zr_doctor_malloc_paths(struct zr_doctor *doctor, const struct zr_doctor_file *file);
void zr_doctor_cuda_paths(struct zr_doctor *doctor, const struct zr_doctor_file *file);

#endif
