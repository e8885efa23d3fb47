/* script.h: what a shell script that wraps a program starts. Private to defrag/tool/.
 *
 * Nothing of the script is run: assignments are followed from the first line to the last, whatever branch
 * they are in, and the last command that is an exec, or that passes the script's arguments on, is what it
 * starts. */
#ifndef ZR_SCRIPT_H
#define ZR_SCRIPT_H

#include <limits.h>
#include <stdbool.h>

/* The program that the script starts, as a path or a name in PATH. False: the file is no shell script, or
 * none of its commands names a program that is there. */
bool zr_script_target(const char *path, char out[PATH_MAX]);

#endif
