/* pickle_held.h: the data that a pickle's reader holds: texts, containers, the memo, and the stream of
 * delivered items. Private to pickle*.c. */
#ifndef ZR_PICKLE_HELD_H
#define ZR_PICKLE_HELD_H

#include "defrag/trace/formats/pickle.h"

#define ZR_PICKLE_NO_CHUNK UINT32_MAX

/* Items [first, first + count), followed by the next chunk's. */
struct zr_pickle_chunk {
    uint32_t first, count, next;
};

struct zr_pickle_container {
    uint32_t first_chunk, last_chunk;
    uint32_t items_count;
    uint16_t kind;  /* enum zr_pickle_kind */
    bool is_stream; /* its items are delivered */
};

/* Returns ZR_ERR_FORMAT, with the position in the file. */
zr_result zr_pickle_wrong(const struct zr_pickle *pickle, const char *what);
/* The stack height of the last mark, below which operations may not reach. */
size_t zr_pickle_floor(const struct zr_pickle *pickle);

/* Texts. Makes room for `bytes` bytes, which the caller fills in; then returns the value, which is equal for
 * equal texts. */
zr_result zr_pickle_text_room(struct zr_pickle *pickle, uint64_t bytes, char **out);
zr_result zr_pickle_text_add(struct zr_pickle *pickle, uint64_t bytes, struct zr_pickle_value *out);

/* Containers. Adds an empty one; moves the stack's values from `first` on to the end of a container. */
zr_result zr_pickle_container_add(struct zr_pickle *pickle, enum zr_pickle_kind kind,
                                  struct zr_pickle_value *out);
zr_result zr_pickle_append(struct zr_pickle *pickle, struct zr_pickle_value to, size_t first);

/* The memo. An absent value means that nothing was kept. Setting an absent value means that the object was
 * delivered; a later lookup is recorded. */
zr_result zr_pickle_memo_set(struct zr_pickle *pickle, uint64_t number, struct zr_pickle_value value);
struct zr_pickle_value zr_pickle_memo_get(struct zr_pickle *pickle, uint64_t number);

/* The stream (pickle_stream.c). Called before a dict is pushed: the item before it is complete. */
void zr_pickle_stream_start(struct zr_pickle *pickle);
zr_result zr_pickle_stream_next(struct zr_pickle *pickle);
/* Called after a container was pushed. */
zr_result zr_pickle_stream_pushed(struct zr_pickle *pickle, struct zr_pickle_value container);
/* Appends values from `first` on to the list below them; *taken: they were delivered and popped. */
zr_result zr_pickle_stream_append(struct zr_pickle *pickle, size_t first, bool *taken);
/* Called after the stack became lower. */
void zr_pickle_stream_lower(struct zr_pickle *pickle);
/* Called at the end: delivers lists of root[key] that were built in an unusual order. */
zr_result zr_pickle_stream_rest(struct zr_pickle *pickle);

#endif
