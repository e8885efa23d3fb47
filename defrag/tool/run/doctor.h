/* doctor.h: the findings of `zr doctor`, for the subcommand and for `zr run --strict`. Private to
 * defrag/tool/. */
#ifndef ZR_TOOL_DOCTOR_H
#define ZR_TOOL_DOCTOR_H

#include <limits.h>

#include "defrag/tool/run/program.h"
#include "defrag/tool/tool.h"

enum zr_doctor_verdict {
    ZR_DOCTOR_FINE = 0,
    ZR_DOCTOR_NOTE, /* works, but could work better; or unknown */
    ZR_DOCTOR_BAD   /* does not work; for a program: some memory is missed */
};

struct zr_doctor_finding {
    enum zr_doctor_verdict verdict;
    char name[64];
    char found[320];
    char type[160]; /* the command that fixes the problem; "": none */
};

enum { ZR_DOCTOR_MAX = 96 };

struct zr_doctor {
    struct zr_doctor_finding findings[ZR_DOCTOR_MAX];
    unsigned count; /* number of all findings; beyond the capacity, the last element is the worst of those
                       left out */
    struct zr_doctor_finding left_out;
};

/* Appends a finding and returns it, so that the caller can extend its text. */
struct zr_doctor_finding *zr_doctor_add(struct zr_doctor *doctor, enum zr_doctor_verdict verdict,
                                        const char *name, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Checks the machine, the limits of this process, and the preloaded library. */
void zr_doctor_look_at_system(struct zr_doctor *doctor);
/* The libraries to be preloaded. */
struct zr_doctor_wanted {
    bool malloc, cuda;
};
/* Checks a program: whether it can be preloaded, and how its file and each library that its loader would load
 * take the kinds of memory in `wanted`. Does not run the program. */
void zr_doctor_look_at_program(struct zr_doctor *doctor, const struct zr_program *program,
                               struct zr_doctor_wanted wanted);

/* A mapped ELF file of the program. */
struct zr_doctor_file {
    const char *path, *name; /* name: the last part of the path */
    const char *data;
    size_t bytes;
    bool is_program; /* the program itself, whose symbols precede those of a preloaded library */
    /* The dynamic symbols and their strings; see doctor_elf.c. */
    const char *strings;
    size_t strings_bytes;
    const void *symbols;
    size_t symbols_count;
};
struct zr_doctor_symbol {
    const char *name; /* points into the file */
    bool defined;     /* the file exports the symbol; otherwise it imports the symbol */
};
/* The dynamic symbol at *at (start with 0) or the next one with a name; false: the end. */
bool zr_doctor_next_symbol(const struct zr_doctor_file *file, size_t *at, struct zr_doctor_symbol *out);
/* Whether the file exports the symbol. */
bool zr_doctor_defines(const struct zr_doctor_file *file, const char *symbol);
/* Whether the file exports or imports the symbol. */
bool zr_doctor_names(const struct zr_doctor_file *file, const char *symbol);
/* Whether the file contains the text. */
bool zr_doctor_contains(const struct zr_doctor_file *file, const char *text);
/* False: the file is unreadable. */
bool zr_doctor_open(struct zr_doctor_file *out, const char *path);
void zr_doctor_close(struct zr_doctor_file *file);

/* One function for each preloaded library: adds findings about how a file takes that library's kind of
 * memory, and whether the library serves it. */
void zr_doctor_malloc_paths(struct zr_doctor *doctor, const struct zr_doctor_file *file);
void zr_doctor_cuda_paths(struct zr_doctor *doctor, const struct zr_doctor_file *file);

#endif
