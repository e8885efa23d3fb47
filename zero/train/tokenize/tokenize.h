/* tokenize.h: the command `zr-train tokenize`: texts as shards of tokens, by a tokenizer.json. */
#ifndef ZR_TRAIN_TOKENIZE_H
#define ZR_TRAIN_TOKENIZE_H

#include "alloc/base/system/file.h"
#include "zero/text/growing.h"

/* Runs the command; argv[0] is "tokenize". Returns the exit code of zr-train after printing messages. Batches
 * of documents are encoded by several threads and written in the order of the files, so that the shards do
 * not depend on the number of threads. */
int zr_tokenize_main(int argc, char **argv);

/* ---- Documents (documents.c) --------------------------------------------------------------------------- */

/* Whole files, lines, or the lines of JSON of a .jsonl file. One thread per struct. */
struct zr_document {
    const char *path;
    uint64_t line; /* from 1; 0: the whole file */
    size_t at, bytes;
    bool json; /* an object whose key "text" has the document */
};

/* Reads files in order, a batch of documents at a time. */
struct zr_documents {
    char **paths; /* borrowed, [paths_count] */
    unsigned paths_count;
    bool by_line;              /* also of files that are not named *.jsonl */
    size_t batch_bytes;        /* a batch ends with the document that reaches them */
    struct zr_growing texts;   /* of the batch; documents refer to it by offset */
    struct zr_growing list;    /* of the batch: struct zr_document */
    uint64_t read_bytes;       /* of all files so far */
    unsigned path;             /* the present file */
    uint64_t line;             /* lines of it so far */
    struct zr_file file;       /* {.fd = -1}: not open yet */
    struct zr_growing pending; /* the part of a line that has been read */
    bool at_end;               /* the present file is read to its end */
};

/* Reads the next batch; an empty list is the end. Lines without text are left out. ZR_ERR_IO,
 * ZR_ERR_HOST_MEMORY; ZR_ERR_FORMAT: a document of more than 1 GiB. */
zr_result zr_documents_next(struct zr_documents *documents);
void zr_documents_close(struct zr_documents *documents);

/* The text of a document of the batch, which stays as long as the batch or, of JSON, until the caller has
 * called zr_heap_free(*owned). Any thread. ZR_ERR_FORMAT: the line is not an object with a text. */
zr_result zr_document_text(const struct zr_documents *documents, const struct zr_document *document,
                           const char **text, size_t *bytes, char **owned);

#endif
