/* module.h: parts of a program that are loaded when they are asked for. Private to the project.
 *
 * A module is a shared library beside the program or beside zr's library, for what must not be linked: it may
 * be absent, and so may be what it needs itself. It stays loaded to the end of the process. */
#ifndef ZR_MODULE_H
#define ZR_MODULE_H

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

/* Loads `file` from the folder of this program, or from ../lib or ../bin beside it, or else from those of the
 * library that this code is in, and finds `symbol` in it. ZR_ERR_UNAVAILABLE with the loader's words: it is
 * not there, or it needs something that is not. */
ZR_PRIVATE_API zr_result zr_module_load(const char *file, const char *symbol, void **out);

/* Finds a library by name (the first of `names` that is there, NULL-ended) and the functions of `symbols`
 * (NULL-ended) in it, in order; a missing one is ZR_ERR_UNAVAILABLE unless its name begins with '?'. Each
 * name is looked for where the system does (LD_LIBRARY_PATH is the user's way to say where), then in the
 * wheels that PyTorch brings: beside the PyTorch of this process, and beside the programs of PATH. */
ZR_PRIVATE_API zr_result zr_module_find(const char *const *names, const char *const *symbols,
                                        void **functions);

#endif
