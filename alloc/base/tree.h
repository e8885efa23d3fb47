/* tree.h: treaps, whose nodes are the caller's records. Header only. Private to zr.
 *
 * A node's priority is a hash of its key or is drawn with the record. The shape follows from the keys and
 * priorities, so nothing is rebalanced, and no function recurses. All functions are inlined, so an order that
 * is a constant costs no call. */
#ifndef ZR_TREE_H
#define ZR_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/base/error.h"

/* Two nodes of a tree are never equal. */
struct zr_tree_order {
    size_t children; /* offset of the two children, before and after, in a record */
    bool (*before)(const void *one, const void *other);
    uint64_t (*priority)(const void *record);
};

#define ZR_TREE_INLINE static inline __attribute__((always_inline))
/* A root or a child; the caller's types are pointers to the record. */
typedef void *__attribute__((may_alias)) zr_tree_link;

ZR_TREE_INLINE zr_tree_link *zr_tree_child(struct zr_tree_order order, void *record, bool after)
{
    return (zr_tree_link *)(void *)((char *)record + order.children) + after;
}

ZR_TREE_INLINE void zr_tree_insert(struct zr_tree_order order, void *root, void *record)
{
    zr_tree_link *link = root,
                 *sides[2] = {zr_tree_child(order, record, false), zr_tree_child(order, record, true)};
    uint64_t own = order.priority(record);
    while (*link && order.priority(*link) > own)
        link = zr_tree_child(order, *link, order.before(*link, record));
    void *rest = *link;
    *link = record;
    /* Split the subtree into the records before and after the new one. */
    while (rest) {
        if (order.before(rest, record)) {
            *sides[0] = rest;
            sides[0] = zr_tree_child(order, rest, true);
            rest = *sides[0];
        } else {
            *sides[1] = rest;
            sides[1] = zr_tree_child(order, rest, false);
            rest = *sides[1];
        }
    }
    *sides[0] = *sides[1] = NULL;
}

/* The record must be in the tree, with the key under which it was inserted. */
ZR_TREE_INLINE void zr_tree_remove(struct zr_tree_order order, void *root, void *record)
{
    zr_tree_link *link = root;
    while (*link != record) {
        zr_assert(*link != NULL);
        link = zr_tree_child(order, *link, order.before(*link, record));
    }
    void *smaller = *zr_tree_child(order, record, false), *larger = *zr_tree_child(order, record, true);
    while (smaller && larger) {
        if (order.priority(smaller) > order.priority(larger)) {
            *link = smaller;
            link = zr_tree_child(order, smaller, true);
            smaller = *link;
        } else {
            *link = larger;
            link = zr_tree_child(order, larger, false);
            larger = *link;
        }
    }
    *link = smaller ? smaller : larger;
}

/* The first record that is not before the key; NULL: none. */
ZR_TREE_INLINE void *zr_tree_ceiling(struct zr_tree_order order, void *tree, const void *key)
{
    void *found = NULL;
    while (tree) {
        bool before = order.before(tree, key);
        found = before ? found : tree;
        tree = *zr_tree_child(order, tree, before);
    }
    return found;
}

/* The last record that is not after the key; NULL: none. */
ZR_TREE_INLINE void *zr_tree_floor(struct zr_tree_order order, void *tree, const void *key)
{
    void *found = NULL;
    while (tree) {
        bool after = order.before(key, tree);
        found = after ? found : tree;
        tree = *zr_tree_child(order, tree, !after);
    }
    return found;
}

#endif
