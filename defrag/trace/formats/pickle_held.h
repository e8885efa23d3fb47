/* pickle_held.h: what a pickle's reader holds: texts, containers, the memo, and what is handed over. Private
 * to the noun pickle. */
#ifndef ZR_PICKLE_HELD_H
#define ZR_PICKLE_HELD_H

#include "defrag/trace/formats/pickle.h"

#define ZR_PICKLE_NO_CHUNK UINT32_MAX

/* Items [first, first + count), then the next chunk's. */
struct zr_pickle_chunk {
    uint32_t first, count, next;
};

struct zr_pickle_container {
    uint32_t first_chunk, last_chunk;
    uint32_t items_count;
    uint16_t kind;  /* enum zr_pickle_kind */
    bool is_stream; /* its items are handed over */
};

/* ZR_ERR_FORMAT, with the place. */
zr_result zr_pickle_wrong(const struct zr_pickle *pickle, const char *what);
/* The height below which operations may not reach: that of the last mark. */
size_t zr_pickle_floor(const struct zr_pickle *pickle);
zr_result zr_pickle_push(struct zr_pickle *pickle, struct zr_pickle_value value);

/* Texts: room for one of `bytes` bytes, which the caller fills in; then the value, which is the same for
 * every text of the same bytes. */
zr_result zr_pickle_text_room(struct zr_pickle *pickle, uint64_t bytes, char **out);
zr_result zr_pickle_text_add(struct zr_pickle *pickle, uint64_t bytes, struct zr_pickle_value *out);

/* Containers: a new, empty one; the stack's values from `first` on to the end of one, off the stack. */
zr_result zr_pickle_container_add(struct zr_pickle *pickle, enum zr_pickle_kind kind,
                                  struct zr_pickle_value *out);
zr_result zr_pickle_append(struct zr_pickle *pickle, struct zr_pickle_value to, size_t first);

/* The memo. An absent value: never kept. To set an absent value: what was kept is handed over, and asking for
 * it is noted. */
zr_result zr_pickle_memo_set(struct zr_pickle *pickle, uint64_t number, struct zr_pickle_value value);
struct zr_pickle_value zr_pickle_memo_get(struct zr_pickle *pickle, uint64_t number);

/* The stream (pickle_stream.c). Before a dict is pushed: the item before it is at its end. */
void zr_pickle_stream_start(struct zr_pickle *pickle);
zr_result zr_pickle_stream_next(struct zr_pickle *pickle);
/* After a container was pushed. */
zr_result zr_pickle_stream_pushed(struct zr_pickle *pickle, struct zr_pickle_value container);
/* Values from `first` on go into the list below them: *taken: they are handed over, and off the stack. */
zr_result zr_pickle_stream_append(struct zr_pickle *pickle, size_t first, bool *taken);
/* The stack has become lower. */
void zr_pickle_stream_lower(struct zr_pickle *pickle);
/* At the end: lists of root[key] that were built in an unusual order. */
zr_result zr_pickle_stream_rest(struct zr_pickle *pickle);

#endif
