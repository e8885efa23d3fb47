/* compressed.h: the plain content of a file that may be compressed by gzip or zstd. Private to defrag/tool/.
 *
 * The copy takes a fixed amount of memory for any input: the buffers, and the decompressor's window, which is
 * limited to 128 MiB. */
#ifndef ZR_COMPRESSED_H
#define ZR_COMPRESSED_H

#include "alloc/base/system/file.h"

enum { ZR_COMPRESSED_HEAD_BYTES = 4 };

/* Whether a file that begins with these bytes is compressed by gzip or zstd. */
bool zr_compressed_is(const unsigned char *head, size_t bytes);

/* Appends the content of `from`, from its present position on, to `to`, at its present position. A file that
 * is not compressed is copied. Members and frames that follow each other are one content, as for gunzip and
 * unzstd. *cut_short: the file ends within its compressed data, and the content is complete up to there.
 * ZR_ERR_FORMAT: the data is damaged, or needs a larger window. ZR_ERR_MEMORY. */
zr_result zr_compressed_copy(const struct zr_file *from, const struct zr_file *to, bool *cut_short);

#endif
