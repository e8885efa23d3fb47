/* option.h: the settings of the library, one table; and option structs of callers that were built against
 * another release. Private to the project.
 *
 * The settings come from ZR_CONF ("check:3,isa:avx2"), read once. A bad ZR_CONF leaves every option at its
 * default and is reported by zr_option_result(), which backends and zr-train ask first; the library itself
 * prints nothing. */
#ifndef ZR_OPTION_H
#define ZR_OPTION_H

#include <stddef.h>

#include "alloc/base/compiler.h"
#include "alloc/zr.h"

enum zr_option_name {
    ZR_OPTION_CHECK = 0,  /* see enum zr_check_level */
    ZR_OPTION_GRANULE,    /* bytes, where a backend's options leave it open; 0: 2 MiB */
    ZR_OPTION_HUGE_PAGES, /* bool */
    ZR_OPTION_ISA,        /* 0 auto, 1 plain, 2 avx2, 3 avx512, 4 avx512_bf16, 5 amx */
    ZR_OPTION_KERNELS,    /* of a card: 0 those in the library, 1 the emulated driver's image; see cuda.h of
                             kernels */
    ZR_OPTION_LIMIT,      /* bytes that a preloaded program may hold; 0: no limit */
    ZR_OPTION_POISON,     /* bool: tell ASan and Valgrind which space is free */
    ZR_OPTION_PRODUCTS,   /* of two-byte matrices on a card: 0 cuBLASLt's, 1 zr's own where that is missing */
    ZR_OPTION_PUBLISH,    /* 0 auto: above 64 MiB, 1 never, 2 at once; see serve.h */
    ZR_OPTION_RECORDER,   /* bytes of each arena's ring of events; 0: none; see recorder.h */
    ZR_OPTION_SMALL,      /* mean bytes between two samples of small objects under zr run; 0: none */
    ZR_OPTION_STACKS,     /* one allocation in so many has its call stack taken; 0: none; see stacks.h */
    ZR_OPTION_SERVICE,    /* 0 off, 1 on, 2 required; see client.h of alloc/backend */
    ZR_OPTION_SERVICE_WAIT, /* bool: a plan that zrd does not let in now waits until it does */
    ZR_OPTION_VERBOSE,      /* bool: a preloaded library says that it is there */
    ZR_OPTION_VMA_BUDGET,   /* mappings the host backend may hold; 0: from vm.max_map_count */
    ZR_OPTION_COUNT
};

/* The ladder of ZR_OPTION_CHECK: each level includes those below. Arguments are checked at every level. */
enum zr_check_level {
    ZR_CHECK_NONE = 0,  /* assertions only */
    ZR_CHECK_CALLS = 1, /* the backend's front checks addresses of copies and fills (the default) */
    ZR_CHECK_ARENA = 2, /* zr_arena_check() after every change of the mapped memory */
    ZR_CHECK_BYTES = 3, /* a canary past each block's end, verified when it is freed */
};

/* Any thread. */
ZR_PRIVATE_API uint64_t zr_option_get(enum zr_option_name name);
/* A program's own default, which ZR_CONF overrules. Not while an arena lives. */
void zr_option_prefer(enum zr_option_name name, uint64_t value);
/* A group's name as the allocator service has it: what is blank or no ASCII becomes '_', and what has no room
 * is cut. */
void zr_group_name(char *out, size_t room_bytes, const char *text);
/* The group that the allocator service counts this process to: ZR_GROUP, "" where there is none. Any thread.
 */
const char *zr_option_group(void);
/* Sets that group, for tests. */
void zr_group_set(const char *text);
/* By its name in ZR_CONF; false: no such option. */
bool zr_option_find(const char *name, uint64_t *out);
/* ZR_ERR_INVALID, with words, if ZR_CONF could not be understood. */
zr_result zr_option_result(void);
/* True for ZR_CONF=help: the program should print zr_option_help() and end. */
bool zr_option_help_wanted(void);
/* Writes the table as text, cut at `room_bytes` with the final zero; returns the length of the whole. */
size_t zr_option_help(char *out, size_t room_bytes);
/* Sets the options from such a text, for tests: NULL or "" puts the defaults back. Not while an arena lives.
 */
zr_result zr_option_set(const char *text);

/* ---- Option structs of callers ------------------------------------------------------------------------- */

/* Copies an option struct of the caller's, which begins with its struct_bytes, into the library's own; what
 * the caller's lacks is 0, and all of it if `given` is NULL. Reads no byte behind what the caller has.
 * ZR_ERR_INVALID, with the struct's name: struct_bytes is no size of it, or a byte that this release does not
 * know is not 0. `first_bytes`: the struct as the first release had it. A field that a later release adds
 * begins behind the sizeof that the struct had, never in its padding, which callers need not clear. */
ZR_PRIVATE_API zr_result zr_struct_copy(void *own, size_t own_bytes, size_t first_bytes, const void *given,
                                        const char *name);

/* zr_struct_copy() of `struct type` into `own`; `last` is the last field of its first release. */
#define ZR_STRUCT_COPY(type, last, own, given)                                                               \
    zr_struct_copy((own), sizeof(struct type),                                                               \
                   offsetof(struct type, last) + sizeof(((struct type *)0)->last), (given), #type)

#endif
