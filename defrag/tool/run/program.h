/* program.h: a program that is to be run, and whether a library can be preloaded before it. Private to
 * defrag/tool/. */
#ifndef ZR_PROGRAM_H
#define ZR_PROGRAM_H

#include <limits.h>
#include <stdbool.h>

struct zr_program {
    char path[PATH_MAX];
    char image[PATH_MAX]; /* what the kernel runs: the program, or a script's interpreter; "": not to be read
                           */
    char loader[256];     /* of that */
    int error;            /* errno, where there is none that can be run */
    bool refused;         /* it would not start at all, preloaded */
    char obstacle[256];   /* why it cannot be preloaded, in words; "": it can */
};

/* Finds what a shell would run, in PATH or at its path, and looks into it; of a script, into its interpreter.
 * False: `error` says why there is nothing to run. */
bool zr_program_find(const char *name, struct zr_program *out);

/* The library beside this program: in ../lib, or in a folder of it as Debian has them. False: nowhere. */
bool zr_program_library(const char *name, char out[PATH_MAX]);

#endif
