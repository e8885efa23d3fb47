/* cut_rectangles.h: rectangles of time and size, cut at random into lifetimes that fill them again: what the
 * packer's tests draw. The draws of a program come again from what random_state is set to. */
#ifndef ZR_CUT_RECTANGLES_H
#define ZR_CUT_RECTANGLES_H

#include "defrag/pack/pack_internal.h"

#define MAX_PIECES 500

struct piece {
    uint64_t side[2][2]; /* time, size: from, up to */
};

enum kind { STRAIGHT = 0, PINWHEELS, SHORT, KINDS_COUNT };
static struct piece pieces[MAX_PIECES + 4];
static uint64_t random_state = 20240607;

static inline uint64_t draw(uint64_t below)
{
    return zr_pack_random(&random_state) % below;
}

static inline uint64_t length_of(const struct piece *piece, unsigned axis)
{
    return piece->side[axis][1] - piece->side[axis][0];
}

/* Cuts a piece in two along an axis: anywhere, or in the middle half. */
static inline size_t cut_straight(struct piece *piece, unsigned axis, enum kind kind, size_t count)
{
    uint64_t length = length_of(piece, axis), margin = kind == SHORT ? length / 4 : 0;
    uint64_t at = piece->side[axis][0] + 1 + margin + draw(length - 1 - 2 * margin);
    pieces[count] = *piece;
    piece->side[axis][1] = pieces[count].side[axis][0] = at;
    return count + 1;
}

/* Four around a fifth, the one way or the other. */
static inline size_t cut_pinwheel(struct piece *piece, enum kind kind, size_t count)
{
    uint64_t at[2][4];
    bool turned = draw(2);
    for (unsigned axis = 0; axis < 2; axis++) {
        uint64_t length = length_of(piece, axis), margin = kind == SHORT ? length / 7 : 0;
        uint64_t a = 1 + margin + draw(length - 1 - 2 * margin),
                 b = 1 + margin + draw(length - 2 - 2 * margin);
        b += b >= a;
        at[axis][0] = piece->side[axis][0];
        at[axis][1] = at[axis][0] + (a < b ? a : b);
        at[axis][2] = at[axis][0] + (a < b ? b : a);
        at[axis][3] = piece->side[axis][1];
    }
    static const uint8_t parts[5][4] = {{0, 2, 0, 1}, {2, 3, 0, 2}, {1, 3, 2, 3}, {0, 1, 1, 3}, {1, 2, 1, 2}};
    for (unsigned p = 0; p < 5; p++) {
        const uint8_t *part = parts[p];
        unsigned from = turned ? 3u - part[1] : part[0], to = turned ? 3u - part[0] : part[1];
        *(p ? &pieces[count++] : piece) =
            (struct piece){{{at[0][from], at[0][to]}, {at[1][part[2]], at[1][part[3]]}}};
    }
    return count;
}

/* The piece to cut next: any, or the largest of four; of short lifetimes always one that is too large. */
static inline struct piece *choose(enum kind kind, size_t count)
{
    struct piece *best = &pieces[draw(count)];
    for (unsigned k = 0, more = kind == SHORT ? 15 : draw(2) ? 3 : 0; k < more; k++) {
        struct piece *other = &pieces[draw(count)];
        if (length_of(other, 0) * length_of(other, 1) > length_of(best, 0) * length_of(best, 1))
            best = other;
    }
    return best;
}

/* Cuts the rectangle into so many pieces, or a few more where pinwheels are cut; returns how many. */
static inline size_t cut(enum kind kind, size_t wanted, uint64_t time, uint64_t size)
{
    size_t count = 1;
    pieces[0] = (struct piece){{{0, time}, {0, size}}};
    while (count < wanted) {
        struct piece *piece = choose(kind, count);
        unsigned axis = kind == SHORT ? length_of(piece, 0) * 2 * size > length_of(piece, 1) * time ? 0 : 1
                                      : (unsigned)draw(2);
        if (kind != STRAIGHT && draw(2) && length_of(piece, 0) > 2 && length_of(piece, 1) > 2 &&
            count + 4 <= MAX_PIECES)
            count = cut_pinwheel(piece, kind, count);
        else if (length_of(piece, axis) > 1)
            count = cut_straight(piece, axis, kind, count);
    }
    return count;
}

static inline void shuffle(struct zr_buffer *buffers, size_t count)
{
    for (size_t i = count; i-- > 1;) {
        size_t j = draw(i + 1);
        struct zr_buffer swap = buffers[i];
        buffers[i] = buffers[j];
        buffers[j] = swap;
    }
}

#endif
