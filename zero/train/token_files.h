/* token_files.h: files of tokens, read as one list of tokens in the order of their names.
 *
 * Formats, by content: text (its bytes are the tokens), llm.c's shards (version 1: two bytes per token,
 * version 7: four), Megatron's indexed datasets (NAME.bin with NAME.idx), and numbers without a header if
 * their type is given. At most 16 files are open at a time. One thread per struct. */
#ifndef ZR_TRAIN_TOKEN_FILES_H
#define ZR_TRAIN_TOKEN_FILES_H

#include "alloc/base/system/file.h"

/* --data-type: the numbers of files without a header. */
enum zr_token_type { ZR_TOKENS_AUTO = 0, ZR_TOKENS_UINT16, ZR_TOKENS_UINT32, ZR_TOKENS_INT64 };

enum { ZR_TOKEN_FILES_MAX = 1 << 16, ZR_TOKEN_FILES_OPEN = 16 };

struct zr_token_file {
    const char *path;
    uint64_t first, count; /* tokens: those of earlier files, its own */
    uint64_t lead_bytes;   /* before the first token */
    unsigned token_bytes;  /* 1, 2, 4 or 8; little-endian */
};

struct zr_token_files {
    bool text; /* one token per byte */
    enum zr_token_type type;
    size_t vocabulary; /* upper bound of tokens */
    uint64_t count;    /* tokens of all files */
    uint64_t bytes;    /* of all tokens */
    size_t files_count;
    struct zr_token_file *files; /* [files_count]; with the paths in pages of its own; NULL: closed */
    bool shares;                 /* the pages are another list's */
    char *path_end;              /* behind the last path */
    struct zr_file open[ZR_TOKEN_FILES_OPEN]; /* file i is at i modulo their number, if it is open */
    size_t open_file[ZR_TOKEN_FILES_OPEN];    /* the file's number + 1; 0: none */
};

/* Opens an empty list; `out` is zeros with text, type and vocabulary set. ZR_ERR_HOST_MEMORY. Close it in any
 * case; a struct of zeros is closed. */
zr_result zr_token_files_open(struct zr_token_files *out);
/* Opens a list with the files of another, which outlives it and is not changed. Threads may share one. */
void zr_token_files_share(struct zr_token_files *out, const struct zr_token_files *of);
void zr_token_files_close(struct zr_token_files *files);

/* Adds the files of a pattern, sorted by name: a path in which * and ? stand for characters of one folder's
 * or file's name, or the common name of Megatron's two files. Checks type, header and size. ZR_ERR_IO,
 * ZR_ERR_FORMAT: the message names the file and the fix; the list may have some of the pattern's files. */
zr_result zr_token_files_add(struct zr_token_files *files, const char *pattern);

/* Whether a file has tokens, by the header of a shard or an index beside it. False if there is no such file.
 */
bool zr_token_files_has_tokens(const char *path);

/* Reads tokens first .. first + count - 1. ZR_ERR_FORMAT: a token beyond the vocabulary, or a file that has
 * become shorter. */
zr_result zr_token_files_read(struct zr_token_files *files, uint64_t first, size_t count, int32_t *out);
/* Asks the system to read these tokens into its cache meanwhile. */
void zr_token_files_prefetch(struct zr_token_files *files, uint64_t first, uint64_t count);

/* Checks that tokens are in the vocabulary: all of them, or of more than a GiB evenly spaced pieces of about
 * a GiB in total; other tokens are checked when they are read. ZR_ERR_FORMAT: the message names a bad token.
 */
zr_result zr_token_files_scan(struct zr_token_files *files);
/* A hash of samples of the tokens, which identifies the list. */
zr_result zr_token_files_checksum(struct zr_token_files *files, uint64_t *out);

#endif
