/* pack_peer.h: a peer of zr_pack(), to measure it by: MiniMalloc's algorithm, written anew from what is
 * published of it (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine
 * Learning", ASPLOS 2023). Not in the product. One thread; for at most PEER_MAX items.
 *
 * Canonical solutions: items are placed one by one, each as low as those already there allow, in rising order
 * of (offset, rank); the rank comes from a static order. Dominance: nothing is placed so high that another
 * item that is left would fit below it. Spatial inference: what is left of a section must fit above its
 * floor, which is where the lowest of it can lie; an item that was passed over must come to lie on one that
 * is left (which prunes more than the floor alone). Decomposition: where no item that is left crosses a
 * moment, both sides are searched for themselves. The static orders take turns, in each round with twice the
 * steps of the one before; which orders is this file's choice. */
#ifndef ZR_TESTS_PACK_PEER_H
#define ZR_TESTS_PACK_PEER_H

#include <string.h>
#include <time.h>

#include "defrag/pack/pack_internal.h"

#define PEER_MAX        512
#define PEER_FIRST_TURN 4096 /* steps of each order's first turn */

/* By W, the length of a life; A, that times the size; T, the fullest moment of the life; more goes first. */
static const char *const peer_orders[] = {"WAT", "TAW", "TWA", "AWT"};
#define PEER_ORDERS (sizeof peer_orders / sizeof *peer_orders)

struct peer {
    const struct zr_pack_problem *problem;
    uint64_t capacity, steps, turn_end; /* steps done; the turn ends at so many */
    double until_s;                     /* of this thread's CPU time */
    uint64_t lowest[PEER_MAX]; /* by item: no lower, given those placed; where it lies, once placed */
    uint16_t rank[PEER_MAX];
    bool placed[PEER_MAX];
    uint16_t near[PEER_MAX][PEER_MAX], near_count[PEER_MAX]; /* by item: those it shares a moment with */
    uint64_t floor[PEER_MAX], rest[PEER_MAX];                /* by section, of the present step */
    uint16_t stack[PEER_MAX];
    uint32_t stack_count, trail_count;
    struct {
        uint64_t lowest;
        uint16_t item;
    } trail[PEER_MAX * PEER_MAX];
};

enum peer_verdict { PEER_NONE = 0, PEER_FOUND, PEER_TURN_OVER };

/* Items that are left, by the beginning of their lives, and the (offset, rank) placed last. */
struct peer_left {
    const uint16_t *items;
    uint32_t count;
    uint64_t offset;
    uint16_t rank;
};

static enum peer_verdict peer_solve(struct peer *peer, const struct peer_left *left);

/* ---- Orders -------------------------------------------------------------------------------------------- */

static double peer_key(const struct zr_pack_problem *problem, const struct zr_buffer *buffers, uint32_t item,
                       char letter)
{
    const struct zr_buffer *buffer = &buffers[problem->buffer[item]];
    double width = (double)(buffer->upper - buffer->lower);
    return letter == 'W'   ? width
           : letter == 'A' ? width * (double)problem->units[item]
                           : (double)problem->hottest[item];
}

static bool peer_goes_before(const struct peer *peer, const struct zr_buffer *buffers, const char *order,
                             const uint32_t pair[2])
{
    for (; *order; order++) {
        double a = peer_key(peer->problem, buffers, pair[0], *order),
               b = peer_key(peer->problem, buffers, pair[1], *order);
        if (a != b)
            return a > b;
    }
    return pair[0] < pair[1];
}

static void peer_rank(struct peer *peer, const struct zr_buffer *buffers, const char *order)
{
    for (uint32_t i = 0; i < peer->problem->count; i++) {
        peer->rank[i] = 0;
        for (uint32_t k = 0; k < peer->problem->count; k++)
            peer->rank[i] += k != i && peer_goes_before(peer, buffers, order, (uint32_t[]){k, i});
    }
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static double peer_seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool peer_turn_over(struct peer *peer)
{
    if (peer->steps % 4096 == 0 && peer_seconds(CLOCK_THREAD_CPUTIME_ID) >= peer->until_s)
        peer->turn_end = peer->steps;
    return peer->steps >= peer->turn_end;
}

static bool peer_place(struct peer *peer, uint16_t item)
{
    uint64_t top = peer->lowest[item] + peer->problem->units[item];
    peer->placed[item] = true;
    peer->stack[peer->stack_count++] = item;
    for (uint32_t k = 0; k < peer->near_count[item]; k++) {
        uint16_t other = peer->near[item][k];
        if (peer->placed[other] || peer->lowest[other] >= top)
            continue;
        peer->trail[peer->trail_count].lowest = peer->lowest[other];
        peer->trail[peer->trail_count++].item = other;
        peer->lowest[other] = top;
        if (top + peer->problem->units[other] > peer->capacity)
            return false;
    }
    return true;
}

static void peer_go_back(struct peer *peer, uint32_t stack_count, uint32_t trail_count)
{
    while (peer->stack_count > stack_count)
        peer->placed[peer->stack[--peer->stack_count]] = false;
    while (peer->trail_count > trail_count) {
        peer->trail_count--;
        peer->lowest[peer->trail[peer->trail_count].item] = peer->trail[peer->trail_count].lowest;
    }
}

/* True if the turn to lie where it is was an item's before; it will lie on one of those that are left. */
static bool peer_passed(const struct peer *peer, const struct peer_left *left, uint16_t item)
{
    uint64_t lowest = peer->lowest[item];
    return lowest < left->offset || (lowest == left->offset && peer->rank[item] < left->rank);
}

/* How low an item that was passed over can lie at best: on another one that is left. */
static uint64_t peer_rest_on(const struct peer *peer, const struct peer_left *left, uint16_t item)
{
    uint64_t best = peer->capacity;
    for (uint32_t k = 0; k < peer->near_count[item]; k++) {
        uint16_t other = peer->near[item][k];
        if (peer->placed[other])
            continue;
        uint64_t lowest = peer->lowest[other];
        uint64_t top = (lowest > left->offset ? lowest : left->offset) + peer->problem->units[other];
        best = top < best ? top : best;
    }
    return best;
}

/* False if some section cannot hold what is left of it. */
static bool peer_infer(struct peer *peer, const struct peer_left *left)
{
    const struct zr_pack_problem *problem = peer->problem;
    uint32_t first = left->count ? problem->first[left->items[0]] : 0, last = first;
    for (uint32_t k = 0; k < left->count; k++) {
        uint16_t item = left->items[k];
        for (; last < problem->last[item]; last++) {
            peer->floor[last] = UINT64_MAX;
            peer->rest[last] = 0;
        }
        uint64_t floor = peer_passed(peer, left, item) ? peer_rest_on(peer, left, item) : peer->lowest[item];
        for (uint32_t s = problem->first[item]; s < problem->last[item]; s++) {
            peer->rest[s] += problem->units[item];
            peer->floor[s] = floor < peer->floor[s] ? floor : peer->floor[s];
        }
    }
    for (uint32_t s = first; s < last; s++)
        if (peer->rest[s] && peer->floor[s] + peer->rest[s] > peer->capacity)
            return false;
    return true;
}

/* Those that may be placed next, in the order to try them; returns how many. */
static uint32_t peer_candidates(const struct peer *peer, const struct peer_left *left, uint16_t *out)
{
    uint64_t lowest_top = UINT64_MAX;
    uint32_t count = 0;
    for (uint32_t k = 0; k < left->count; k++) {
        uint64_t top = peer->lowest[left->items[k]] + peer->problem->units[left->items[k]];
        lowest_top = top < lowest_top ? top : lowest_top;
    }
    for (uint32_t k = 0; k < left->count; k++) {
        uint16_t item = left->items[k];
        uint64_t lowest = peer->lowest[item];
        if (lowest >= lowest_top || peer_passed(peer, left, item))
            continue;
        uint32_t at = count++;
        for (; at > 0 && (peer->lowest[out[at - 1]] > lowest || (peer->lowest[out[at - 1]] == lowest &&
                                                                 peer->rank[out[at - 1]] > peer->rank[item]));
             at--)
            out[at] = out[at - 1];
        out[at] = item;
    }
    return count;
}

/* One part that no moment cuts in two. */
static enum peer_verdict peer_step(struct peer *peer, const struct peer_left *left)
{
    uint16_t candidates[PEER_MAX], rest[PEER_MAX];
    uint32_t stack_count = peer->stack_count, trail_count = peer->trail_count;
    enum peer_verdict verdict = PEER_NONE;

    uint32_t count = peer_candidates(peer, left, candidates);
    for (uint32_t c = 0; c < count && verdict == PEER_NONE; c++) {
        uint16_t item = candidates[c];
        struct peer_left next = {rest, 0, peer->lowest[item], peer->rank[item]};
        if (peer_turn_over(peer))
            return PEER_TURN_OVER;
        peer->steps++;
        for (uint32_t k = 0; k < left->count; k++)
            if (left->items[k] != item)
                rest[next.count++] = left->items[k];
        if (peer_place(peer, item))
            verdict = peer_solve(peer, &next);
        if (verdict != PEER_FOUND)
            peer_go_back(peer, stack_count, trail_count);
    }
    return verdict;
}

/* What is left, part by part. */
static enum peer_verdict peer_solve(struct peer *peer, const struct peer_left *left)
{
    const struct zr_pack_problem *problem = peer->problem;
    enum peer_verdict verdict = peer_infer(peer, left) ? PEER_FOUND : PEER_NONE;
    for (uint32_t begin = 0, end; begin < left->count && verdict == PEER_FOUND; begin = end) {
        uint32_t reach = problem->last[left->items[begin]];
        for (end = begin + 1; end < left->count && problem->first[left->items[end]] < reach; end++)
            if (problem->last[left->items[end]] > reach)
                reach = problem->last[left->items[end]];
        verdict =
            peer_step(peer, &(struct peer_left){left->items + begin, end - begin, left->offset, left->rank});
    }
    return verdict;
}

/* ---- Turns --------------------------------------------------------------------------------------------- */

static void peer_fill(struct peer *peer, uint16_t *by_begin)
{
    const struct zr_pack_problem *problem = peer->problem;
    for (uint32_t i = 0; i < problem->count; i++) {
        uint32_t at = i;
        for (; at > 0 && problem->first[by_begin[at - 1]] > problem->first[i]; at--)
            by_begin[at] = by_begin[at - 1];
        by_begin[at] = (uint16_t)i;
        peer->near_count[i] = 0;
        for (uint32_t k = 0; k < problem->count; k++)
            if (k != i && problem->first[i] < problem->last[k] && problem->first[k] < problem->last[i])
                peer->near[i][peer->near_count[i]++] = (uint16_t)k;
    }
}

/* What a run may take, whichever ends first, and what it took; the time is this thread's on a core. */
struct peer_spent {
    uint64_t steps;
    double cpu_s;
};

/* Looks for a placement within a capacity in units until one is found, none is left, or `most` is spent.
 * True, and offsets in the buffers, when found. */
static bool peer_pack(const struct zr_pack_problem *problem, struct zr_buffer *buffers, uint64_t capacity,
                      const struct peer_spent *most, struct peer_spent *spent)
{
    static struct peer peer;
    uint16_t by_begin[PEER_MAX];
    enum peer_verdict verdict = PEER_TURN_OVER;
    double from_s = peer_seconds(CLOCK_THREAD_CPUTIME_ID);

    memset(&peer, 0, sizeof peer);
    peer.problem = problem;
    peer.capacity = capacity;
    peer.until_s = from_s + most->cpu_s;
    *spent = (struct peer_spent){0};
    peer_fill(&peer, by_begin);
    for (uint64_t turn = 0;
         verdict == PEER_TURN_OVER && spent->steps < most->steps && spent->cpu_s < most->cpu_s; turn++) {
        uint64_t steps = (uint64_t)PEER_FIRST_TURN << turn / PEER_ORDERS;
        memset(peer.lowest, 0, sizeof peer.lowest);
        memset(peer.placed, 0, sizeof peer.placed);
        peer.stack_count = peer.trail_count = 0;
        peer.turn_end = peer.steps + (steps < most->steps - peer.steps ? steps : most->steps - peer.steps);
        peer_rank(&peer, buffers, peer_orders[turn % PEER_ORDERS]);
        verdict = peer_solve(&peer, &(struct peer_left){by_begin, problem->count, 0, 0});
        *spent = (struct peer_spent){peer.steps, peer_seconds(CLOCK_THREAD_CPUTIME_ID) - from_s};
    }
    for (uint32_t i = 0; i < problem->count; i++)
        buffers[problem->buffer[i]].offset_bytes = peer.lowest[i] * problem->unit_bytes;
    return verdict == PEER_FOUND;
}

#endif
