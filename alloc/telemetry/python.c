/* python.c: reads the frames of CPython (see python.h). Uses slab.c.
 *
 * The table of texts has no lock, as that of stacks.c: a thread reserves a number and its text, and then sets
 * the slot. A thread that loses this race wastes both. */
#define _GNU_SOURCE
#include "alloc/telemetry/python.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/slab.h"

enum { FRAMES_MAX = 1 << 15, SLOTS = 1 << 16, TEXTS_BYTES = FRAMES_MAX * 96 };
/* Bounds against damaged lists: interpreters and threads, Python frames of a stack, bytes of a line table. */
enum { LIST_MAX = 1024, DEPTH_MAX = 256, LINES_MAX = 1 << 16 };
/* Walks without a readable frame after which the layout counts as unknown. */
enum { TRIES_MAX = 64 };

/* ---- Layouts ------------------------------------------------------------------------------------------- */

/* Offsets in bytes. */
struct layout {
    uint32_t interpreters_head, next_interpreter, threads_head; /* of the runtime and an interpreter */
    uint32_t next_thread, thread_id, current_frame;             /* of a thread's state */
    uint32_t previous, code, instruction, owner;                /* of a frame */
    uint32_t file, name, lines, first_line, bytecode;           /* of a code object */
    uint32_t text_bytes, text_data, data_bytes, data;           /* of a text and of a bytes object */
    uint32_t held_frame; /* 3.11, 3.12: current_frame points to a record that has the frame here */
    uint32_t entry;      /* 3.11: a flag of an entry frame; 0: an entry frame has an owner of at least 3 */
    bool indirect;
};

/* 64-bit builds without Py_DEBUG, by minor version from 3.11 on; sizeof and offsetof in CPython's headers. */
static const struct layout known[] = {
    {40, 0, 16, 8, 152, 56, 48, 32, 56, 69, 112, 128, 136, 72, 184, 16, 48, 16, 32, 8, 68, true},
    {40, 0, 72, 8, 136, 56, 8, 0, 56, 70, 112, 128, 136, 68, 192, 16, 40, 16, 32, 0, 0, true},
};

/* Where _PyRuntime publishes each offset, as an index of its words, in the order of struct layout. */
enum { PUBLISHED_COUNT = 19, PUBLISHED_WORDS = 81, COOKIE_WORD = 0, VERSION_WORD = 1 };
static const uint8_t published[][PUBLISHED_COUNT] = {
    {5, 8, 9, 21, 24, 23, 29, 30, 31, 33, 35, 37, 38, 39, 43, 69, 70, 65, 66},
    {5, 8, 9, 24, 27, 26, 32, 33, 34, 36, 40, 42, 43, 44, 48, 79, 80, 75, 76},
};
enum { FIRST_MINOR = 11, FIRST_PUBLISHED = 13, OFFSET_MAX = 1 << 20 };

static struct {
    struct zr_python_symbols symbols;
    struct layout layout;
    _Atomic bool on;
    _Atomic unsigned misses_count; /* walks without a readable frame, while none was read */
    _Atomic bool proved;           /* a frame was read */
    _Atomic bool given_up;
} python;

/* Copies memory of this process. False: it is not mapped. */
static bool peek(uintptr_t from, void *out, size_t bytes)
{
    struct iovec local = {out, bytes}, remote = {(void *)from, bytes};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

static uintptr_t peek_pointer(uintptr_t from)
{
    uintptr_t value;
    return peek(from, &value, sizeof value) ? value : 0;
}

static bool read_published(struct layout *out, unsigned minor)
{
    uint64_t words[PUBLISHED_WORDS];
    uint32_t *fields = (uint32_t *)out;
    if (minor - FIRST_PUBLISHED >= sizeof published / sizeof *published ||
        !peek(python.symbols.runtime, words, sizeof words) ||
        memcmp(&words[COOKIE_WORD], "xdebugpy", sizeof *words) != 0 ||
        words[VERSION_WORD] >> 16 != (3 << 8 | minor))
        return false;
    *out = (struct layout){0};
    for (unsigned i = 0; i < PUBLISHED_COUNT; i++) {
        uint64_t offset = words[published[minor - FIRST_PUBLISHED][i]];
        if (offset >= OFFSET_MAX)
            return false;
        fields[i] = (uint32_t)offset;
    }
    return true;
}

zr_result zr_python_use(const struct zr_python_symbols *symbols)
{
    unsigned long version = 0;
    atomic_store(&python.on, false);
    python.symbols = *symbols;
    if (!peek(symbols->version, &version, sizeof version))
        return zr_fail(ZR_ERR_UNAVAILABLE,
                       "call stacks have no Python frames: process_vm_readv failed (error %d)", errno);
    unsigned major = version >> 24 & 0xff, minor = version >> 16 & 0xff;
    bool good = major == 3 && minor >= FIRST_MINOR;
    if (good && minor < FIRST_PUBLISHED)
        python.layout = known[minor - FIRST_MINOR];
    else
        good = good && read_published(&python.layout, minor);
    if (!good)
        return zr_fail(
            ZR_ERR_UNAVAILABLE,
            "call stacks have no Python frames: the layout of CPython %u.%u is unknown (3.11 to 3.14 are known)",
            major, minor);
    atomic_store(&python.misses_count, 0);
    atomic_store(&python.proved, false);
    atomic_store_explicit(&python.on, true, memory_order_release);
    return ZR_OK;
}

zr_result zr_python_find(void)
{
    static const char *const names[] = {"_PyRuntime",  "Py_Version",     "_PyEval_EvalFrameDefault",
                                        "PyCode_Type", "PyUnicode_Type", "PyBytes_Type"};
    struct zr_python_symbols symbols;
    uintptr_t *fields = (uintptr_t *)&symbols;
    if (atomic_load(&python.on) || atomic_load(&python.given_up) || !dlsym(RTLD_DEFAULT, names[0]))
        return ZR_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(fields[i] = (uintptr_t)dlsym(RTLD_DEFAULT, names[i])))
            return zr_fail(
                ZR_ERR_UNAVAILABLE,
                "call stacks have no Python frames: this CPython lacks %s (3.11 to 3.14 are known)",
                names[i]);
    return zr_python_use(&symbols);
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

static struct texts {
    _Atomic uint32_t slots[SLOTS]; /* number; 0: none */
    uint64_t hashes[FRAMES_MAX + 1];
    uint32_t places[FRAMES_MAX + 1]; /* of the text */
    char characters[TEXTS_BYTES];
    _Atomic uint32_t numbers_count, used_bytes;
} * _Atomic shared_texts;

static struct texts *texts_get(void)
{
    struct texts *texts = atomic_load_explicit(&shared_texts, memory_order_acquire), *none = NULL;
    if (texts)
        return texts;
    texts = zr_pages_take(sizeof *texts);
    if (texts && !atomic_compare_exchange_strong(&shared_texts, &none, texts)) {
        zr_pages_give(texts, sizeof *texts);
        texts = none;
    }
    return texts;
}

const char *zr_python_text(uint64_t frame)
{
    struct texts *texts = atomic_load_explicit(&shared_texts, memory_order_acquire);
    uint64_t number = frame - ZR_PYTHON_FRAME;
    return texts && number > 0 && number <= FRAMES_MAX && number <= atomic_load(&texts->numbers_count)
               ? texts->characters + texts->places[number]
               : NULL;
}

static bool is_full(struct texts *texts)
{
    return atomic_load(&texts->used_bytes) > TEXTS_BYTES - ZR_PYTHON_TEXT_BYTES ||
           atomic_load(&texts->numbers_count) >= FRAMES_MAX;
}

/* Adds a text and returns its number; 0: the table became full. */
static uint32_t add_text(struct texts *texts, uint64_t hash, const char *text)
{
    size_t bytes = strlen(text) + 1;
    uint32_t place = atomic_fetch_add(&texts->used_bytes, (uint32_t)bytes);
    uint32_t number = atomic_fetch_add(&texts->numbers_count, 1) + 1;
    if (place > TEXTS_BYTES - bytes || number > FRAMES_MAX)
        return 0;
    memcpy(texts->characters + place, text, bytes);
    texts->places[number] = place;
    texts->hashes[number] = hash;
    return number;
}

/* ---- Objects ------------------------------------------------------------------------------------------- */

static bool has_type(uintptr_t object, uintptr_t type)
{
    return object % sizeof(void *) == 0 && peek_pointer(object + sizeof(uintptr_t)) == type;
}

/* Copies the end of a text of ASCII characters; another text becomes "?". */
static void copy_text(uintptr_t text, char *out, size_t capacity)
{
    size_t bytes = 0;
    strcpy(out, "?");
    if (!has_type(text, python.symbols.text_type) || !(bytes = peek_pointer(text + python.layout.text_bytes)))
        return;
    size_t copied = bytes < capacity ? bytes : capacity - 1;
    if (bytes > LINES_MAX || !peek(text + python.layout.text_data + bytes - copied, out, copied))
        copied = strlen(strcpy(out, "?"));
    out[copied] = '\0';
    for (size_t i = 0; i < copied; i++)
        if (out[i] < ' ' || out[i] > '~')
            strcpy(out, "?"), copied = 0;
}

/* A number of the line table: six bits a byte, low ones first, bit 6 set on all but the last. */
static unsigned get_number(const unsigned char *bytes, size_t count, size_t *at)
{
    unsigned value = 0, shift = 0;
    for (; *at < count && shift < 30; shift += 6) {
        unsigned char byte = bytes[(*at)++];
        value |= (byte & 63u) << shift;
        if (!(byte & 64))
            break;
    }
    return value;
}

/* The line of an instruction, by the location table of CPython 3.11 and later (Objects/locations.md): entries
 * of a byte with bit 7, code and length in units, and the columns. */
static int line_of(uintptr_t lines, int line, size_t instruction)
{
    unsigned char bytes[4096];
    size_t count = peek_pointer(lines + python.layout.data_bytes), at = 0, unit = 0;
    if (!has_type(lines, python.symbols.bytes_type))
        return line;
    count = count < sizeof bytes ? count : sizeof bytes; /* beyond, the line is that of the last entry read */
    if (!peek(lines + python.layout.data, bytes, count))
        return line;
    while (at < count && unit <= instruction) {
        unsigned code = bytes[at] >> 3 & 15, units = (bytes[at] & 7) + 1, coded;
        at++;
        if (code >= 10 && code <= 12) {
            line += (int)code - 10;
        } else if (code == 13 || code == 14) {
            coded = get_number(bytes, count, &at);
            line += coded & 1 ? -(int)(coded >> 1) : (int)(coded >> 1);
        }
        unit += units;
        while (at < count && !(bytes[at] & 128))
            at++;
    }
    return line;
}

/* The parts of a code object that identify a frame. */
struct code {
    uintptr_t object, file, name, lines;
    int first_line;
};

static bool read_code(uintptr_t object, struct code *out)
{
    const struct layout *layout = &python.layout;
    uint32_t end = layout->lines > layout->name ? layout->lines : layout->name;
    unsigned char bytes[512];
    end = (end > layout->file ? end : layout->file) + (uint32_t)sizeof(uintptr_t);
    if (object % sizeof(void *) != 0 || end > sizeof bytes || layout->first_line > end - sizeof(int) ||
        !peek(object, bytes, end) ||
        memcmp(bytes + sizeof(uintptr_t), &python.symbols.code_type, sizeof(uintptr_t)) != 0)
        return false;
    out->object = object;
    memcpy(&out->file, bytes + layout->file, sizeof out->file);
    memcpy(&out->name, bytes + layout->name, sizeof out->name);
    memcpy(&out->lines, bytes + layout->lines, sizeof out->lines);
    memcpy(&out->first_line, bytes + layout->first_line, sizeof out->first_line);
    return true;
}

static uint32_t make_text(struct texts *texts, const struct code *code, size_t instruction, uint64_t hash)
{
    char text[ZR_PYTHON_TEXT_BYTES], name[96], file[140];
    copy_text(code->name, name, sizeof name);
    copy_text(code->file, file, sizeof file);
    snprintf(text, sizeof text, "%s (%s:%d)", name, file,
             line_of(code->lines, code->first_line, instruction));
    return add_text(texts, hash, text);
}

/* The number of the frame's text, which exists once; 0: no memory, or a new text and a full table. The system
 * calls that make a text are not paid again for each frame of a full table. */
static uint32_t number_of(const struct code *code, size_t instruction)
{
    const uint64_t key[] = {code->object, code->file, code->name, code->lines, (uint64_t)code->first_line,
                            instruction};
    struct texts *texts = texts_get();
    uint64_t hash = 0;
    uint32_t added = 0;
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        hash = (hash ^ key[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    for (size_t at = hash % SLOTS; texts; at = (at + 1) % SLOTS) {
        uint32_t found = atomic_load_explicit(&texts->slots[at], memory_order_acquire);
        if (found == 0) {
            if (added == 0 && !is_full(texts))
                added = make_text(texts, code, instruction, hash);
            if (added == 0 || atomic_compare_exchange_strong(&texts->slots[at], &found, added))
                return added;
        }
        if (texts->hashes[found] == hash)
            return found;
    }
    return 0;
}

/* ---- Frames -------------------------------------------------------------------------------------------- */

static bool is_own(uintptr_t thread)
{
    return thread && peek_pointer(thread + python.layout.thread_id) == (uintptr_t)pthread_self();
}

/* The calling thread's state; 0: Python does not know the thread. */
static uintptr_t own_state(void)
{
    static __thread uintptr_t latest __attribute__((tls_model("initial-exec")));
    const struct layout *layout = &python.layout;
    unsigned left = LIST_MAX;
    if (is_own(latest))
        return latest;
    uintptr_t interpreter = peek_pointer(python.symbols.runtime + layout->interpreters_head);
    for (; interpreter && left; interpreter = peek_pointer(interpreter + layout->next_interpreter)) {
        uintptr_t thread = peek_pointer(interpreter + layout->threads_head);
        for (; thread && left; left--, thread = peek_pointer(thread + layout->next_thread))
            if (is_own(thread))
                return latest = thread;
        left -= left > 0;
    }
    return 0;
}

struct zr_python_walk zr_python_begin(void)
{
    struct zr_python_walk walk = {.left = DEPTH_MAX};
    int error = errno;
    if (!atomic_load_explicit(&python.on, memory_order_acquire))
        return walk;
    uintptr_t state = own_state();
    if (state)
        walk.frame = peek_pointer(state + python.layout.current_frame);
    if (walk.frame && python.layout.indirect)
        walk.frame = peek_pointer(walk.frame + python.layout.held_frame);
    errno = error;
    return walk;
}

bool zr_python_is_evaluator(uintptr_t function)
{
    return function == python.symbols.evaluator && atomic_load_explicit(&python.on, memory_order_relaxed);
}

/* Turns Python frames off if the first walks read none: the layout differs from that of its version. */
static void judge(bool good)
{
    if (atomic_load_explicit(&python.proved, memory_order_relaxed))
        return;
    if (good)
        atomic_store(&python.proved, true);
    else if (atomic_fetch_add(&python.misses_count, 1) + 1 >= TRIES_MAX) {
        atomic_store(&python.given_up, true);
        atomic_store(&python.on, false);
    }
}

bool zr_python_is_given_up(void)
{
    return atomic_load(&python.given_up);
}

unsigned zr_python_frames(struct zr_python_walk *walk, uint64_t *out, unsigned room)
{
    enum { SPECIAL_OWNER = 3 }; /* of the frame by which a call of the evaluator begins, from 3.12 on */
    const struct layout *layout = &python.layout;
    unsigned count = 0;
    bool entry = false, good = walk->frame == 0;
    int error = errno;
    while (walk->frame && walk->left > 0 && !entry) {
        unsigned char bytes[96];
        uintptr_t previous, object, instruction;
        struct code code;
        walk->left--;
        if (layout->owner >= sizeof bytes || layout->previous > sizeof bytes - sizeof previous ||
            layout->code > sizeof bytes - sizeof object ||
            layout->instruction > sizeof bytes - sizeof instruction ||
            !peek(walk->frame, bytes, sizeof bytes)) {
            walk->frame = 0;
            break;
        }
        memcpy(&previous, bytes + layout->previous, sizeof previous);
        memcpy(&object, bytes + layout->code, sizeof object);
        memcpy(&instruction, bytes + layout->instruction, sizeof instruction);
        entry = layout->entry ? bytes[layout->entry] != 0 : bytes[layout->owner] >= SPECIAL_OWNER;
        bool special = entry && !layout->entry;
        walk->frame = previous;
        if (special)
            continue;
        if (!read_code(object & ~(uintptr_t)7, &code)) { /* 3.14 marks references in low bits */
            walk->frame = 0;
            break;
        }
        good = true;
        uintptr_t first = code.object + layout->bytecode;
        uint32_t number = number_of(&code, instruction >= first ? (instruction - first) / 2 : 0);
        if (number && count < room)
            out[count++] = ZR_PYTHON_FRAME | number;
    }
    if (walk->left == 0)
        walk->frame = 0;
    judge(good);
    errno = error;
    return count;
}
