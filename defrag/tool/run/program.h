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

/* ---- Wrapping shell scripts ---------------------------------------------------------------------------- */

/* No part of the script runs. The reader follows assignments from the first line to the last, in all
 * branches. The script's program is that of the last command that is an exec, or that passes the script's
 * arguments on. */

/* Finds the program that the script starts, as a path or a name in PATH. False: the file is not a shell
 * script, or none of its commands names an existing program. */
bool zr_script_target(const char *path, char out[PATH_MAX]);

#endif
