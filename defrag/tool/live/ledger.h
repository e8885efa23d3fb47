/* ledger.h: where the memory of a process is: rows that close with a total that somebody else counts, what is
 * left being a row of its own. Private to defrag/tool/. */
#ifndef ZR_TOOL_LEDGER_H
#define ZR_TOOL_LEDGER_H

#include "defrag/trace/live.h"

enum {
    ZR_LEDGER_ROWS = 40,
    ZR_LEDGER_OTHERS = 8 /* processes with a row each */
};

struct zr_ledger_row {
    const char *name; /* a literal, a tag's, or in the ledger's own programs */
    bool is_tag;      /* what is live with that tag */
    int64_t bytes;    /* below 0: bytes that the rows have and the total has not */
    long pid;         /* another process's row, `name` being its program; 0: none */
};

struct zr_memory_ledger {
    uint64_t total_bytes; /* the kernel's, or the device's */
    struct zr_ledger_row rows[ZR_LEDGER_ROWS];
    unsigned rows_count;
    char programs[ZR_LEDGER_OTHERS][ZR_PUBLISHED_NAME_BYTES]; /* plain; rows point here: no copies */
};

/* A row with no bytes is left out. */
void zr_ledger_row_add(struct zr_memory_ledger *ledger, struct zr_ledger_row row);
/* Bytes of the total that no row has. 0 or more. */
int64_t zr_ledger_residual(const struct zr_memory_ledger *ledger);

/* What is resident in the process, by the kernel's count, against its arenas of host memory and its mappings.
 * *out gets no arenas' rows where there are none. *cached_bytes: what arenas hold and have not mapped, which
 * no process's resident memory has. ZR_ERR_IO: /proc does not say. */
zr_result zr_ledger_host(struct zr_memory_ledger *out, uint64_t *cached_bytes, const struct zr_live *live);
/* What is used of a device, by its driver's count, against the arenas of `backend`, what other processes show
 * that they hold there (as of a second ago), and what was in use before this one came. */
void zr_ledger_device(struct zr_memory_ledger *out, const struct zr_live *live, uint64_t backend);

#endif
