/* script.h: finds the program that a wrapping shell script starts. Private to defrag/tool/.
 *
 * No part of the script runs. The reader follows assignments from the first line to the last, in all
 * branches. The script's program is that of the last command that is an exec, or that passes the script's
 * arguments on. */
#ifndef ZR_SCRIPT_H
#define ZR_SCRIPT_H

#include <limits.h>
#include <stdbool.h>

/* Finds the program that the script starts, as a path or a name in PATH. False: the file is not a shell
 * script, or none of its commands names an existing program. */
bool zr_script_target(const char *path, char out[PATH_MAX]);

#endif
