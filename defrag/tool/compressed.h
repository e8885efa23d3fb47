/* compressed.h: the plain content of a file that may be compressed. Private to defrag/tool/.
 *
 *   gzip (RFC 1952)  members that follow each other are one content, as for gunzip
 *   zstd (RFC 8878)  frames that follow each other are one content, as for unzstd; a window is at most
 *                    128 MiB, the default limit of unzstd
 *
 * The first bytes of a file decide, not its name. Readers of traces read a file several times and in parts,
 * so the content is copied once to a file without a name (input.c), and the readers know nothing of
 * compression.
 *
 * The copy takes a fixed amount of memory for any input: the buffers, and the decompressor's window. The disk
 * limits the content: a few bytes can become gigabytes. */
#ifndef ZR_COMPRESSED_H
#define ZR_COMPRESSED_H

#include "alloc/base/system/file.h"

enum { ZR_COMPRESSED_HEAD_BYTES = 4 };

/* Whether a file that begins with these bytes is compressed by gzip or zstd. */
bool zr_compressed_is(const unsigned char *head, size_t bytes);

/* Appends the content of `from`, from its present position on, to `to`, at its present position. A file that
 * is not compressed is copied. One thread at a time.
 *
 * *cut_short: the file ends within its compressed data, and the content is complete up to there.
 * ZR_ERR_FORMAT: the data is damaged, or needs a larger window. ZR_ERR_MEMORY. */
zr_result zr_compressed_copy(const struct zr_file *from, const struct zr_file *to, bool *cut_short);

#endif
