/* programs.c: what programs of one thread do with small objects: logic, trees, long numbers, terms, strings.
 */
#include <string.h>

#include "tests/bench/malloc/workloads.h"

/* ---- espresso: covers of cubes are split by a variable, down to a few cubes, and joined again ---- */

enum { CUBE_VARIABLES = 40, COVER_CUBES = 48, COVER_SPLITS = 8, COVERS_KEPT = 256, FREE = 2 };

struct cube {
    uint32_t weight, variables;
    unsigned char literal[]; /* 0, 1 or FREE */
};

struct cover {
    unsigned count, room;
    struct cube **cubes;
};

static struct cover *cover_new(void)
{
    struct cover *cover = take(sizeof *cover);
    *cover = (struct cover){.room = 4, .cubes = take(4 * sizeof *cover->cubes)};
    return cover;
}

static struct cube *cover_add(struct cover *cover, const struct cube *like)
{
    if (cover->count == cover->room) {
        cover->cubes = resize(cover->cubes, (cover->room *= 2) * sizeof *cover->cubes);
    }
    struct cube *cube = take(sizeof *cube + like->variables);
    memcpy(cube, like, sizeof *cube + like->variables);
    return cover->cubes[cover->count++] = cube;
}

static uint64_t cover_drop(struct cover *cover)
{
    uint64_t sum = 0;
    for (unsigned i = 0; cover && i < cover->count; i++) {
        sum += cover->cubes[i]->weight * (cover->cubes[i]->literal[cover->cubes[i]->variables - 1] + 1);
        free(cover->cubes[i]);
    }
    free(cover ? cover->cubes : NULL);
    free(cover);
    return sum;
}

static uint64_t cover_split(struct tally *tally, struct cover **kept, const struct cover *cover,
                            unsigned variable)
{
    uint64_t sum = cover->count;
    for (unsigned value = 0; value < 2 && variable < COVER_SPLITS && cover->count > 2; value++) {
        struct cover *half = cover_new();
        for (unsigned i = 0; i < cover->count; i++) {
            const struct cube *cube = cover->cubes[i];
            unsigned literal = cube->literal[variable % cube->variables];
            if (literal == value || literal == FREE) {
                struct cube *copy = cover_add(half, cube);
                copy->literal[variable % copy->variables] = FREE;
                copy->weight += value + 1;
            }
        }
        tally->operations += half->count + 2;
        sum = mixed(sum + value) + cover_split(tally, kept, half, variable + 1);
        struct cover **slot = &kept[sum % COVERS_KEPT];
        if (sum % 64 == 0) {
            tally->checksum += cover_drop(*slot);
            *slot = half;
        } else {
            tally->checksum += cover_drop(half);
        }
    }
    return sum;
}

struct tally workload_espresso(const struct run *run)
{
    struct cover *kept[COVERS_KEPT] = {0};
    struct tally tally = {0};
    uint64_t random = 11, rounds = scaled(run, 12000);
    for (uint64_t round = 0; round < rounds; round++) {
        struct cover *cover = cover_new();
        for (unsigned i = 0; i < COVER_CUBES; i++) {
            struct {
                struct cube cube;
                unsigned char literal[CUBE_VARIABLES];
            } drawn = {.cube = {.weight = i, .variables = 8 + below(&random, CUBE_VARIABLES - 8)}};
            for (unsigned j = 0; j < drawn.cube.variables; j++) {
                drawn.cube.literal[j] = (unsigned char)(below(&random, 4) % 3);
            }
            cover_add(cover, &drawn.cube);
        }
        tally.checksum += cover_split(&tally, kept, cover, 0);
        tally.checksum += cover_drop(cover);
    }
    for (unsigned i = 0; i < COVERS_KEPT; i++) {
        tally.checksum += cover_drop(kept[i]);
    }
    return tally;
}

/* ---- barnes: bodies sorted into a tree of octants, their masses summed, the tree dropped, the bodies moved
 * ---- */

enum { BODIES = 60000 };

struct octant {
    struct octant *inner[8]; /* all NULL: one body */
    uint32_t at[3], bodies;
    uint64_t mass;
};

static struct octant *octant_new(struct tally *tally, const uint32_t *at, uint64_t mass)
{
    struct octant *octant = take(sizeof *octant);
    *octant = (struct octant){.at = {at[0], at[1], at[2]}, .bodies = 1, .mass = mass};
    tally->operations++;
    return octant;
}

static unsigned octant_of(const uint32_t *at, unsigned level)
{
    unsigned bit = 31 - level;
    return (at[0] >> bit & 1) | (at[1] >> bit & 1) << 1 | (at[2] >> bit & 1) << 2;
}

static void octant_insert(struct tally *tally, struct octant **where, const uint32_t *at, uint64_t mass)
{
    for (unsigned level = 0; *where; level++) {
        struct octant *octant = *where;
        if (level == 32) {
            octant->mass += mass;
            return;
        }
        if (octant->bodies == 1) {
            struct octant *leaf = octant;
            octant = *where = octant_new(tally, leaf->at, 0);
            octant->inner[octant_of(leaf->at, level)] = leaf;
        }
        octant->bodies++;
        where = &octant->inner[octant_of(at, level)];
    }
    *where = octant_new(tally, at, mass);
}

static uint64_t octant_drop(struct octant *octant)
{
    if (!octant) {
        return 0;
    }
    uint64_t mass = octant->mass;
    for (unsigned i = 0; i < 8; i++) {
        mass += octant_drop(octant->inner[i]);
    }
    free(octant);
    return mass;
}

struct tally workload_barnes(const struct run *run)
{
    uint32_t(*bodies)[3] = take(BODIES * sizeof *bodies);
    struct tally tally = {.operations = 1};
    uint64_t random = 13, rounds = scaled(run, 36);
    for (unsigned i = 0; i < BODIES; i++) {
        for (unsigned j = 0; j < 3; j++) {
            bodies[i][j] = (uint32_t)xorshift64(&random) >> below(&random, 3);
        }
    }
    for (uint64_t round = 0; round < rounds; round++) {
        struct octant *root = NULL;
        for (unsigned i = 0; i < BODIES; i++) {
            octant_insert(&tally, &root, bodies[i], i);
            bodies[i][round % 3] += (uint32_t)(mixed(i) >> 40);
        }
        tally.checksum = mixed(tally.checksum + octant_drop(root) + bodies[round % BODIES][0]);
    }
    free(bodies);
    return tally;
}

/* ---- cfrac: long numbers, each result a new one, its operands dropped ---- */

struct number {
    uint16_t length, digits[];
};

static struct number *number_new(struct tally *tally, unsigned length)
{
    struct number *number = take(sizeof *number + length * sizeof *number->digits);
    number->length = (uint16_t)length;
    tally->operations++;
    return number;
}

static struct number *number_times(struct tally *tally, const struct number *a, const struct number *b)
{
    struct number *product = number_new(tally, a->length + b->length);
    memset(product->digits, 0, product->length * sizeof *product->digits);
    for (unsigned i = 0; i < a->length; i++) {
        uint32_t carry = 0;
        for (unsigned j = 0; j < b->length; j++) {
            carry += (uint32_t)a->digits[i] * b->digits[j] + product->digits[i + j];
            product->digits[i + j] = (uint16_t)carry;
            carry >>= 16;
        }
        product->digits[i + b->length] = (uint16_t)carry;
    }
    return product;
}

/* The digits from `first` on, `length` of them. */
static struct number *number_part(struct tally *tally, const struct number *a, unsigned first,
                                  unsigned length)
{
    struct number *part = number_new(tally, length);
    memcpy(part->digits, a->digits + first, length * sizeof *part->digits);
    return part;
}

/* Of equal lengths; a carry out of the last digit comes in at the first. Frees both. */
static struct number *number_plus(struct tally *tally, struct number *a, struct number *b)
{
    struct number *sum = number_new(tally, a->length);
    uint32_t carry = 0;
    for (unsigned i = 0; i < a->length; i++) {
        carry += (uint32_t)a->digits[i] + b->digits[i];
        sum->digits[i] = (uint16_t)carry;
        carry >>= 16;
    }
    sum->digits[0] = (uint16_t)(sum->digits[0] + carry);
    free(a);
    free(b);
    return sum;
}

/* x -> x * x + c, modulo 2^(16 length) - 1, near enough. */
struct tally workload_cfrac(const struct run *run)
{
    struct tally tally = {0};
    uint64_t steps = scaled(run, 1000000);
    for (unsigned length = 2; length < 10; length++) {
        struct number *x = number_new(&tally, length), *c = number_new(&tally, length);
        for (unsigned i = 0; i < length; i++) {
            x->digits[i] = (uint16_t)mixed(i);
            c->digits[i] = (uint16_t)mixed(i + length);
        }
        for (uint64_t i = 0; i < steps; i++) {
            struct number *square = number_times(&tally, x, x);
            struct number *low = number_part(&tally, square, 0, length);
            struct number *high = number_part(&tally, square, length, length);
            free(square);
            free(x);
            x = number_plus(&tally, low, high);
            x = number_plus(&tally, x, number_part(&tally, c, 0, length));
        }
        for (unsigned i = 0; i < length; i++) {
            tally.checksum = mixed(tally.checksum + x->digits[i]);
        }
        free(x);
        free(c);
    }
    return tally;
}

/* ---- lean: terms that share terms, with counts of references ---- */

enum { TERM_ROOTS = 1 << 16, TERM_DEPTH = 12, TERM_CHILDREN = 4 };

struct term {
    uint32_t references;
    uint16_t depth, children;
    uint64_t hash;
    struct term *child[];
};

static void term_release(struct term *term, struct tally *tally)
{
    if (--term->references) {
        return;
    }
    tally->checksum += term->hash;
    for (unsigned i = 0; i < term->children; i++) {
        term_release(term->child[i], tally);
    }
    free(term);
}

static struct term *term_new(struct term **roots, uint64_t *random, uint64_t name)
{
    unsigned children = below(random, TERM_CHILDREN + 1);
    struct term *term = take(sizeof *term + children * sizeof *term->child);
    *term = (struct term){.references = 1, .hash = mixed(name)};
    for (unsigned i = 0; i < children; i++) {
        struct term *child = roots[below(random, TERM_ROOTS)];
        if (child && child->depth < TERM_DEPTH) {
            child->references++;
            term->child[term->children++] = child;
            term->hash = mixed(term->hash + child->hash);
            term->depth = child->depth + 1 > term->depth ? child->depth + 1 : term->depth;
        }
    }
    return term;
}

static void *lean_thread(void *argument)
{
    struct worker *worker = argument;
    struct term **roots = take_zeroed(TERM_ROOTS, sizeof *roots);
    for (uint64_t i = 0; i < worker->steps + TERM_ROOTS; i++) {
        struct term **root =
            &roots[i < worker->steps ? below(&worker->random, TERM_ROOTS) : i - worker->steps];
        struct term *term = i < worker->steps ? term_new(roots, &worker->random, i) : NULL;
        if (*root) {
            term_release(*root, &worker->tally);
        }
        *root = term;
    }
    free(roots);
    worker->tally.operations = worker->steps;
    return NULL;
}

struct tally workload_lean(const struct run *run)
{
    return workers_run(run, 8000000, lean_thread, NULL);
}
