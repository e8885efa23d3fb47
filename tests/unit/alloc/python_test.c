/* python_test.c: Python's frames out of a made-up CPython, whole and damaged. tests/system/stacks.t has real
 * ones. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/telemetry/python.h"
#include "tests/support/random.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { WORDS = 1024, DEPTH = 5, ROOM = 16, ROUNDS = 20000 };
/* Indices of words. A frame has 12 words, a code object 24, a text 16. */
enum {
    RUNTIME = 0,
    INTERPRETER = 96,
    THREAD = 112,
    FRAMES = 128,
    CODE = FRAMES + 12 * (DEPTH + 1),
    NAME = CODE + 24,
    FILE_NAME = NAME + 16,
    LINES = FILE_NAME + 16,
    VERSION = LINES + 16
};
enum { TYPE_CODE = 0x100, TYPE_TEXT = 0x200, TYPE_BYTES = 0x300, EVALUATOR = 0x400 };

static uint64_t memory[WORDS];
static uint64_t *hole; /* a page that is not mapped */

static uint64_t at(unsigned word)
{
    return (uintptr_t)&memory[word];
}

static void put_text(unsigned word, const char *text)
{
    memory[word + 1] = TYPE_TEXT;
    memory[word + 2] = strlen(text);
    memcpy(&memory[word + 5], text, strlen(text) + 1);
}

/* CPython of the minor version with five frames, of which the last two are of another call of the evaluator.
 */
static zr_result make(unsigned minor)
{
    static const uint8_t places[][19] = {
        {5, 8, 9, 21, 24, 23, 29, 30, 31, 33, 35, 37, 38, 39, 43, 69, 70, 65, 66},
        {5, 8, 9, 24, 27, 26, 32, 33, 34, 36, 40, 42, 43, 44, 48, 79, 80, 75, 76},
    };
    static const uint64_t offsets[19] = {8 * 90, 0,   8,   0,  8,   16, 8,  0,  56, 70,
                                         112,    128, 136, 68, 184, 16, 40, 16, 32};
    static const unsigned char lines[] = {0x80 | 10 << 3, 0, 0, 0x80 | 11 << 3, 0, 0, 0x80 | 13 << 3, 5};
    const struct zr_python_symbols symbols = {at(RUNTIME), at(VERSION), EVALUATOR,
                                              TYPE_CODE,   TYPE_TEXT,   TYPE_BYTES};
    memset(memory, 0, sizeof memory);
    memcpy(&memory[RUNTIME], "xdebugpy", 8);
    memory[RUNTIME + 1] = memory[VERSION] = 3u << 24 | minor << 16 | 0x1f0;
    for (unsigned i = 0; i < 19 && minor >= 13 && minor <= 14; i++)
        memory[RUNTIME + places[minor - 13][i]] = offsets[i];
    memory[RUNTIME + 90] = at(INTERPRETER);
    memory[INTERPRETER + 1] = at(THREAD);
    memory[THREAD + 1] = (uintptr_t)pthread_self();
    memory[THREAD + 2] = at(FRAMES);
    for (unsigned i = 0; i <= DEPTH; i++) {
        uint64_t *frame = &memory[FRAMES + 12 * i];
        frame[0] = at(CODE);
        frame[1] = i < DEPTH ? at(FRAMES + 12 * (i + 1)) : 0;
        frame[7] = at(CODE) + 184 + 2 * (i % 3);
        ((unsigned char *)frame)[70] = i == 3 ? 3 : 0; /* the entry frame of a call */
    }
    memory[CODE + 1] = TYPE_CODE;
    memory[CODE + 14] = at(FILE_NAME);
    memory[CODE + 16] = at(NAME);
    memory[CODE + 17] = at(LINES);
    ((uint32_t *)&memory[CODE])[17] = 10;
    put_text(NAME, "Holder.keep");
    put_text(FILE_NAME, "/a/b.py");
    memory[LINES + 1] = TYPE_BYTES;
    memory[LINES + 2] = sizeof lines;
    memcpy(&memory[LINES + 4], lines, sizeof lines);
    return zr_python_use(&symbols);
}

static void test_whole(unsigned minor)
{
    static const char *const texts[] = {"Holder.keep (/a/b.py:10)", "Holder.keep (/a/b.py:11)",
                                        "Holder.keep (/a/b.py:9)"};
    uint64_t frames[ROOM];
    tap_result(make(minor), ZR_OK, "3.%u is known", minor);
    struct zr_python_walk walk = zr_python_begin();
    unsigned count = zr_python_frames(&walk, frames, ROOM);
    tap_is(count, 3, "the first call of the evaluator has three frames");
    for (unsigned i = 0; i < count; i++)
        tap_ok(strcmp(zr_python_text(frames[i]), texts[i]) == 0, "one is %s", zr_python_text(frames[i]));
    tap_is(zr_python_frames(&walk, frames, ROOM), 2, "the second has two");
    tap_ok(walk.frame == 0 && zr_python_frames(&walk, frames, ROOM) == 0, "there are no more");
    tap_ok(zr_python_is_evaluator(EVALUATOR) && !zr_python_is_evaluator(EVALUATOR + 1),
           "the evaluator is known");
    put_text(NAME, "k\xc3\xa9");
    memory[CODE + 14] = (uintptr_t)hole;
    walk = zr_python_begin();
    tap_ok(zr_python_frames(&walk, frames, 1) == 1 && strcmp(zr_python_text(frames[0]), "? (?:10)") == 0,
           "texts that cannot be read are marks, and the room is kept");
}

/* Any word may be anything: the walk ends, and each frame has a text of plain characters. */
static void test_damaged(void)
{
    uint64_t seed = run_seed(), frames[ROOM];
    bool good = true;
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (make(13) != ZR_OK)
            break;
        for (unsigned i = 0; i < 1 + round % 3; i++) {
            uint64_t drawn = xorshift64(&seed), what = xorshift64(&seed);
            const uint64_t values[] = {what, at(what % WORDS), at(what % WORDS) + what % 8, (uintptr_t)hole,
                                       0,    what % 300};
            memory[RUNTIME + (drawn % 3 ? INTERPRETER : 0) + drawn / 3 % (VERSION - INTERPRETER)] =
                values[what / 7 % 6];
        }
        struct zr_python_walk walk = zr_python_begin();
        for (unsigned calls = 0; walk.frame && calls < ROOM; calls++) {
            unsigned count = zr_python_frames(&walk, frames, ROOM);
            good = good && count <= ROOM;
            for (unsigned i = 0; i < count; i++)
                for (const char *text = zr_python_text(frames[i]); text && *text; text++)
                    good = good && *text >= ' ' && *text <= '~';
        }
    }
    tap_ok(good, "damaged frames end a walk, and no text has other than plain characters");
}

static void test_unknown(void)
{
    uint64_t frames[1];
    tap_result(make(15), ZR_ERR_UNAVAILABLE, "3.15 is not known");
    tap_result(make(10), ZR_ERR_UNAVAILABLE, "nor is 3.10");
    tap_is(zr_python_begin().frame, 0, "they have no frames");
    make(13);
    memory[RUNTIME + 30] = 1 << 20;
    const struct zr_python_symbols symbols = {at(RUNTIME), at(VERSION), EVALUATOR,
                                              TYPE_CODE,   TYPE_TEXT,   TYPE_BYTES};
    tap_result(zr_python_use(&symbols), ZR_ERR_UNAVAILABLE, "an offset beyond all structures");
    make(13);
    memory[CODE + 1] = TYPE_TEXT;
    for (unsigned i = 0; i < 64; i++) {
        struct zr_python_walk walk = zr_python_begin();
        zr_python_frames(&walk, frames, 1);
    }
    tap_ok(zr_python_begin().frame == 0 && zr_python_is_given_up(),
           "a layout that no frame fits is given up");
    tap_ok(zr_python_text(ZR_PYTHON_FRAME) == NULL && zr_python_text(UINT64_MAX) == NULL,
           "other numbers have no text");
}

int main(void)
{
    hole = mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    test_whole(13);
    test_whole(14);
    test_unknown();
    test_damaged();
    return tap_done();
}
