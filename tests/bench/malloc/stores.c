/* stores.c: text and stores: blocks that grow by realloc beside small ones that stay. */
#include <string.h>

#include "tests/bench/malloc/workloads.h"

/* ---- redis: a table of strings under strings, some with a time at which they go ---- */

enum { KEYS = 300000 };

struct entry {
    struct entry *next;
    char *key;
    uint64_t *value; /* a block */
    uint64_t expires;
};

struct store {
    struct entry **buckets;
    size_t buckets_count, entries;
    uint64_t random, now;
    struct tally tally;
};

static size_t key_write(char *text, uint64_t number)
{
    size_t length = 0;
    memcpy(text, "session:", 8);
    for (length = 8; number; number /= 10) {
        text[length++] = (char)('0' + number % 10);
    }
    text[length++] = 0;
    return length;
}

static uint64_t key_hash(const char *key)
{
    uint64_t hash = 0;
    for (; *key; key++) {
        hash = hash * 31 + (unsigned char)*key;
    }
    return mixed(hash);
}

static struct entry **store_find(struct store *store, const char *key)
{
    struct entry **at = &store->buckets[key_hash(key) & (store->buckets_count - 1)];
    while (*at && strcmp((*at)->key, key)) {
        at = &(*at)->next;
    }
    return at;
}

static void store_remove(struct store *store, struct entry **at)
{
    struct entry *entry = *at;
    *at = entry->next;
    store->tally.checksum += block_drop(entry->value) + (unsigned char)entry->key[8];
    free(entry->key);
    free(entry);
    store->entries--;
}

static void store_double(struct store *store)
{
    struct entry **old = store->buckets;
    size_t count = store->buckets_count;
    store->buckets_count *= 2;
    store->buckets = take_zeroed(store->buckets_count, sizeof *old);
    for (size_t i = 0; i < count; i++) {
        for (struct entry *entry = old[i], *next; entry; entry = next) {
            next = entry->next;
            struct entry **at = &store->buckets[key_hash(entry->key) & (store->buckets_count - 1)];
            entry->next = *at;
            *at = entry;
        }
    }
    free(old);
    store->tally.operations++;
}

static void store_set(struct store *store, struct entry **at, const char *key, size_t key_bytes)
{
    size_t bytes = power_law(&store->random, 16, 9);
    struct entry *entry = *at;
    if (!entry) {
        entry = *at = take(sizeof *entry);
        *entry = (struct entry){.key = memcpy(take(key_bytes), key, key_bytes)};
        store->entries++;
        store->tally.operations += 2;
    }
    store->tally.checksum += block_drop(entry->value);
    entry->value = block_new(bytes, (uint32_t)store->now);
    entry->expires = below(&store->random, 4) ? UINT64_MAX : store->now + below(&store->random, KEYS);
    store->tally.operations++;
}

static void store_request(struct store *store)
{
    char key[32];
    size_t key_bytes = key_write(key, 1 + below(&store->random, KEYS));
    uint32_t what = below(&store->random, 20);
    struct entry **at = store_find(store, key);
    if (*at && (*at)->expires <= store->now) {
        store_remove(store, at);
        at = store_find(store, key);
    }
    if (what < 10) {
        store_set(store, at, key, key_bytes);
    } else if (*at && what < 17) {
        store->tally.checksum += block_read((*at)->value);
    } else if (*at && what < 19) {
        uint64_t **value = &(*at)->value;
        size_t bytes = block_bytes(*value) + 8 + below(&store->random, 100);
        *value = block_resize(*value, bytes, (uint32_t)store->now, &store->tally.checksum);
        store->tally.operations++;
    } else if (*at) {
        store_remove(store, at);
    }
    if (store->entries > store->buckets_count) {
        store_double(store);
    }
}

struct tally workload_redis(const struct run *run)
{
    struct store store = {
        .buckets = take_zeroed(16, sizeof *store.buckets), .buckets_count = 16, .random = 17};
    uint64_t steps = scaled(run, 2000000);
    for (; store.now < steps; store.now++) {
        store_request(&store);
    }
    for (size_t i = 0; i < store.buckets_count; i++) {
        while (store.buckets[i]) {
            store_remove(&store, &store.buckets[i]);
        }
    }
    free(store.buckets);
    return store.tally;
}

/* ---- strings: many that grow side by side, doubling, and are cut to their lengths once they are whole ----
 */

struct text {
    char *bytes;
    size_t length, room, whole;
};

static void text_add(struct text *text, const char *more, size_t length)
{
    if (text->length + length > text->room) {
        text->room = text->length + length > 2 * text->room ? text->length + length : 2 * text->room;
        text->bytes = resize(text->bytes, text->room);
    }
    memcpy(text->bytes + text->length, more, length);
    text->length += length;
}

static uint64_t text_sum(const struct text *text)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < text->length; i += workloads_strict ? 1 : 61) {
        sum = sum * 31 + (unsigned char)text->bytes[i];
    }
    return sum;
}

struct tally workload_strings(const struct run *run)
{
    enum { TEXTS = 4000, PIECE = 64 };
    struct text *texts = take_zeroed(TEXTS, sizeof *texts);
    struct tally tally = {.operations = 1};
    uint64_t random = 19, steps = scaled(run, 14000000);
    char piece[2 * PIECE];
    for (unsigned i = 0; i < sizeof piece; i++) {
        piece[i] = (char)('a' + i % 26);
    }
    for (uint64_t i = 0; i < steps; i++) {
        struct text *text = &texts[below(&random, TEXTS)];
        if (text->length >= text->whole) {
            tally.checksum += text_sum(text);
            free(text->bytes);
            *text = (struct text){.whole = power_law(&random, 64, 14)};
        }
        size_t room = text->room;
        text_add(text, piece + below(&random, PIECE), 1 + below(&random, PIECE));
        tally.operations += room != text->room;
        if (text->length >= text->whole) {
            text->bytes = resize(text->bytes, text->room = text->length);
            tally.operations++;
        }
    }
    for (unsigned i = 0; i < TEXTS; i++) {
        tally.checksum += text_sum(&texts[i]);
        free(texts[i].bytes);
    }
    free(texts);
    return tally;
}

/* ---- json: documents are written, read into trees, some of which last for a while, and freed ---- */

enum { DOCUMENTS = 64, DOCUMENT_DEPTH = 9 };

struct value {
    char *name, *string; /* NULL: none */
    uint64_t number;
    unsigned count, room;
    struct value **items;
};

static void document_write(struct text *text, uint64_t *random, unsigned depth)
{
    uint32_t what = depth < 3 ? 0 : depth == DOCUMENT_DEPTH ? 9 : below(random, 10);
    if (what < 4) {
        text_add(text, "[", 1);
        for (uint32_t left = 1 + below(random, 8); left; left--) {
            document_write(text, random, depth + 1);
        }
        text_add(text, "]", 1);
        return;
    }
    text_add(text, what < 7 ? "\"" : "=", 1);
    for (uint32_t left = 1 + below(random, what < 7 ? 40 : 8); left; left--) {
        char digit = (char)('0' + below(random, 10));
        text_add(text, &digit, 1);
    }
    text_add(text, ",", 1);
}

static char *name_copy(const char *from, size_t length)
{
    char *name = take(length + 1);
    memcpy(name, from, length);
    name[length] = 0;
    return name;
}

static struct value *document_read(const char **at, struct tally *tally)
{
    struct value *value = take_zeroed(1, sizeof *value);
    char sign = *(*at)++;
    value->name = name_copy("attribute", 3 + (size_t)(*at)[0] % 7);
    tally->operations += 2;
    if (sign != '[') {
        size_t length = strcspn(*at, ",");
        if (sign == '"') {
            value->string = name_copy(*at, length);
            tally->operations++;
        } else {
            value->number = strtoull(*at, NULL, 10);
        }
        *at += length + 1;
        return value;
    }
    while (**at != ']') {
        if (value->count == value->room) {
            value->room = value->room ? 2 * value->room : 2;
            value->items = resize(value->items, value->room * sizeof *value->items);
            tally->operations++;
        }
        value->items[value->count++] = document_read(at, tally);
    }
    ++*at;
    return value;
}

static uint64_t document_drop(struct value *value)
{
    if (!value) {
        return 0;
    }
    uint64_t sum = value->number + (unsigned char)value->name[2];
    for (unsigned i = 0; i < value->count; i++) {
        sum = mixed(sum + document_drop(value->items[i]));
    }
    for (const char *byte = value->string; byte && *byte; byte++) {
        sum = sum * 31 + (unsigned char)*byte;
    }
    free(value->items);
    free(value->string);
    free(value->name);
    free(value);
    return sum;
}

struct tally workload_json(const struct run *run)
{
    struct value *documents[DOCUMENTS] = {0};
    struct tally tally = {0};
    uint64_t random = 23, rounds = scaled(run, 600);
    for (uint64_t round = 0; round < rounds; round++) {
        struct text text = {0};
        document_write(&text, &random, 0);
        text_add(&text, "", 1);
        struct value **slot = &documents[below(&random, DOCUMENTS)];
        tally.checksum += document_drop(*slot);
        const char *at = text.bytes;
        *slot = document_read(&at, &tally);
        free(text.bytes);
    }
    for (unsigned i = 0; i < DOCUMENTS; i++) {
        tally.checksum += document_drop(documents[i]);
    }
    return tally;
}
