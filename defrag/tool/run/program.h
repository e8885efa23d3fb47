/* program.h: finds a program, and checks whether a library can be preloaded before it. Private to
 * defrag/tool/. */
#ifndef ZR_PROGRAM_H
#define ZR_PROGRAM_H

#include <limits.h>
#include <stdbool.h>

struct zr_program {
    char path[PATH_MAX];
    char image[PATH_MAX]; /* the file that the kernel runs: the program, or a script's interpreter; "":
                             unreadable */
    char loader[256];     /* of `image` */
    int error;            /* errno, if no program can be run */
    bool refused;         /* the program would not start with a preloaded library */
    char obstacle[256];   /* why no library can be preloaded; "": one can */
};

/* Finds the program that a shell would run, in PATH or at its path, and reads its headers; for a script, it
 * reads the headers of the interpreter. False: `error` says why there is no program. */
bool zr_program_find(const char *name, struct zr_program *out);

/* Finds a library relative to this program: in ../lib, or in Debian's subfolder of ../lib. False: it is
 * missing. */
bool zr_program_library(const char *name, char out[PATH_MAX]);

#endif
