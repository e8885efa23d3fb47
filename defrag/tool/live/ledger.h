/* ledger.h: accounts for the memory of a process: rows sum to a total that the kernel or a driver counts, and
 * the difference is a row of its own. Private to defrag/tool/. */
#ifndef ZR_TOOL_LEDGER_H
#define ZR_TOOL_LEDGER_H

#include "defrag/trace/live.h"

enum {
    ZR_LEDGER_ROWS = 40,
    ZR_LEDGER_OTHERS = 8 /* processes with a row of their own */
};

struct zr_ledger_row {
    const char *name; /* a literal, a tag's name, or an element of the ledger's `programs` */
    bool is_tag;      /* the row has the live bytes of that tag */
    int64_t bytes;    /* below 0: bytes that other rows count and the total does not */
    long pid;         /* of a row for another process, whose program is `name`; 0: none */
};

struct zr_memory_ledger {
    uint64_t total_bytes; /* as the kernel or the driver counts */
    struct zr_ledger_row rows[ZR_LEDGER_ROWS];
    unsigned rows_count;
    char programs[ZR_LEDGER_OTHERS][ZR_PUBLISHED_NAME_BYTES]; /* printable ASCII; rows point here, so the
                                                                 struct must not be copied */
};

/* Bytes of the total that no row has. 0 or more. */
int64_t zr_ledger_residual(const struct zr_memory_ledger *ledger);

/* Compares the kernel's count of resident memory with the process's host arenas and its mappings. *out gets
 * no arena rows if there are no arenas. *cached_bytes: memory that arenas hold unmapped, which no resident
 * count contains. ZR_ERR_IO: /proc is unreadable. */
zr_result zr_ledger_host(struct zr_memory_ledger *out, uint64_t *cached_bytes, const struct zr_live *live);
/* Compares the driver's count of used device memory with the arenas of `backend`, the memory that other
 * processes publish for the device (up to a second old), and the memory in use before this process opened the
 * device. */
void zr_ledger_device(struct zr_memory_ledger *out, const struct zr_live *live, uint64_t backend);

#endif
