/* segment.h: the file of a segment: its header, its table, seals and the lease. Private to the project.
 *
 * The file is a memfd whose length is sealed. The first page is the header; the table of tensors follows,
 * then, from data_bytes on, the arena's granules. The table lies in the kept memory, so a descriptor is all
 * that a successor needs. Every process that maps the file may write to it: sizes and offsets are checked at
 * each use and read from the mapping once.
 *
 * The lease is a lock of an open file description (F_OFD_SETLK) on the first byte. The kernel releases it
 * when the last descriptor and the last mapping of that description are gone, so it lasts as long as a
 * process can write through it: to the death of the writer and of its forked children. */
#ifndef ZR_KEEP_SEGMENT_H
#define ZR_KEEP_SEGMENT_H

#include <stdatomic.h>

#include "alloc/keep/zr_keep.h"

enum {
    ZR_SEGMENT_VERSION = 1,
    ZR_SEGMENT_HEADER_BYTES = 4096,
    ZR_SEGMENT_GRANULE_MIN = 64 << 10,
    ZR_SEGMENT_TENSORS_DEFAULT = 1024,
    ZR_SEGMENT_TENSORS_MAX = 1 << 20
};
#define ZR_SEGMENT_MAGIC     UINT64_C(0x3167657370656b7a) /* "zkepseg1" */
#define ZR_SEGMENT_BYTES_MAX (UINT64_C(1) << 50)

/* One kept tensor. All fields but the atomic ones are constant once tensors_count includes the entry. */
struct zr_segment_entry {
    char name[ZR_KEEP_TENSOR_NAME_BYTES];
    uint64_t coordinates[ZR_KEEP_COORDINATES];
    uint64_t bytes;
    uint64_t offset_bytes, stride_bytes; /* of the first place in the data; from it to the second */
    uint32_t places_count, tag;
    /* Of each place: the generation of its contents; 0: none, or being written. */
    _Atomic uint64_t generations[2];
    _Atomic uint64_t opened; /* in place: the generation that is being written; 0: closed */
};
_Static_assert(sizeof(struct zr_segment_entry) == 152, "the same in every build");

/* The constant part of the header. */
struct zr_segment_shape {
    uint64_t magic;
    uint32_t version, tensors_max;
    uint64_t bytes, data_bytes, granule_bytes; /* data_bytes: where the data begin */
    char name[ZR_KEEP_NAME_BYTES];
};

struct zr_segment_header {
    struct zr_segment_shape shape;
    _Atomic uint64_t committed; /* the word that commits a generation */
    _Atomic uint64_t begun;     /* the last generation that was begun */
    _Atomic uint64_t tensors_count;
    _Atomic uint64_t lease; /* counts writers */
    _Atomic int32_t writer_pid;
};
_Static_assert(sizeof(struct zr_segment_header) <= ZR_SEGMENT_HEADER_BYTES, "one page");

/* A segment's table begins behind the header's page. */
static inline struct zr_segment_entry *zr_segment_entries(const struct zr_segment_header *header)
{
    return (struct zr_segment_entry *)((char *)(uintptr_t)header + ZR_SEGMENT_HEADER_BYTES);
}

/* The caller's numbers as a shape. ZR_ERR_INVALID: a bad name, size, granule or number of tensors. */
zr_result zr_segment_plan(const struct zr_keep_options *options, struct zr_segment_shape *out);
/* Creates the sealed file of a shape. The caller owns *fd. ZR_ERR_UNAVAILABLE: no memfd. ZR_ERR_HOST_MEMORY:
 * no descriptor. ZR_ERR_MEMORY: the file cannot be so long. */
zr_result zr_segment_make(const struct zr_segment_shape *shape, int *fd);
/* Reads the header of a file. ZR_ERR_FORMAT: not a segment, not sealed, damaged, or of another version. */
zr_result zr_segment_inspect(int fd, struct zr_segment_shape *out);
/* Opens the file again, as a description of its own. ZR_ERR_UNAVAILABLE: /proc is not mounted. */
zr_result zr_segment_reopen(int fd, bool writes, int *out);
/* Acquires the lease for the description. ZR_ERR_UNAVAILABLE: a writer lives. */
zr_result zr_segment_lease(int fd);
/* Whether a writer of another description lives. */
bool zr_segment_is_leased(int fd);
/* ZR_ERR_INVALID, with a message: not a name of a segment. */
zr_result zr_segment_check_name(const char *name);

/* Stores to the header or the table, in the order of the calls. The fault site "kept" kills the process
 * before a store. */
void zr_segment_store(_Atomic uint64_t *word, uint64_t value);

#endif
