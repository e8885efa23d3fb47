/* preload_calls.c: a program that knows nothing of zr and calls malloc's family in every way: run with a
 * malloc preloaded, by tests/system/preload.t.
 *
 *   calls          every call, its alignment, its errors; contents through every change of size
 *   foreign        the C library's own malloc's objects are freed and resized by whoever serves malloc here
 *   threads N S    eight threads allocate while one forks N times, and each child allocates and frees; every
 *                  object's contents are checked whenever it is touched; a child that takes longer than S
 *                  seconds (300) dies
 *   denied         the same as calls, once seccomp refuses madvise, mremap and memfd_create
 *   kept           large objects are freed and taken again, once it refuses mmap, too: no memory is lost
 *   stale          frees an object that is aligned to 4 MiB, and once more when its memory is another's
 *   twice, wild    frees an object of that many bytes twice; frees a pointer into its middle: must not return
 *   returns        holds many large objects, frees them, and prints what stays resident, in MiB
 *   control        every call of jemalloc's control interface, while four threads allocate, some of them
 *                  inside functions that jemalloc calls; one that does not return within a minute is named
 *   inside         forks while another thread is inside a call of jemalloc's; the child holds 30 MB of small
 * objects small          small objects until one is refused, and 9 more; prints how many there were before */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define JEMALLOC_NO_RENAME
#include <jemalloc/jemalloc.h>

#pragma GCC diagnostic ignored "-Wuse-after-free"
#pragma GCC diagnostic ignored "-Wfree-nonheap-object"
#pragma GCC diagnostic ignored "-Walloc-size-larger-than="

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            dprintf(2, "line %d: %s\n", __LINE__, #condition);                                               \
            _exit(3);                                                                                        \
        }                                                                                                    \
    } while (0)

static volatile size_t hidden_max = SIZE_MAX;

static const size_t sizes[] = {0,       1,
                               7,       8,
                               15,      16,
                               17,      100,
                               1000,    4095,
                               4096,    4097,
                               14336,   14337,
                               32767,   32768,
                               32769,   40960,
                               40961,   65536,
                               100000,  131072,
                               131073,  262144,
                               1 << 20, (1 << 20) + 1,
                               2 << 20, (2 << 20) + 1,
                               5000000};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* ---- Contents ------------------------------------------------------------------------------------------ */

/* Bytes that say whose they are, on every page and at both ends. */
static void fill(unsigned char *object, size_t bytes, unsigned salt)
{
    for (size_t i = 0; i < bytes; i += 512)
        object[i] = (unsigned char)(i / 512 * 7 + salt);
    if (bytes > 0 && (bytes - 1) % 512)
        object[bytes - 1] = (unsigned char)(bytes + salt);
}

static void look(const unsigned char *object, size_t bytes, size_t kept, unsigned salt)
{
    for (size_t i = 0; i < kept; i += 512)
        CHECK(object[i] == (unsigned char)(i / 512 * 7 + salt));
    if (kept == bytes && bytes > 0 && (bytes - 1) % 512)
        CHECK(object[bytes - 1] == (unsigned char)(bytes + salt));
}

static void look_for_zeros(const unsigned char *object, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += bytes < 65536 ? 1 : 64)
        CHECK(object[i] == 0);
}

/* ---- Every call ---------------------------------------------------------------------------------------- */

static void aligned(void)
{
    for (size_t alignment = 1; alignment <= (size_t)64 << 20; alignment *= 2)
        for (unsigned i = 0; i<SIZES; i += alignment> 1 << 20 ? 7 : 1) {
            void *object = NULL;
            if (alignment >= sizeof(void *)) {
                CHECK(posix_memalign(&object, alignment, sizes[i]) == 0);
                CHECK((uintptr_t)object % alignment == 0 && malloc_usable_size(object) >= sizes[i]);
                fill(object, sizes[i], 3);
                object = realloc(object, sizes[i] + 5000);
                look(object, sizes[i] + 5000, sizes[i] ? sizes[i] - 1 : 0, 3);
                free(object);
            }
            object = aligned_alloc(alignment, sizes[i]);
            CHECK(object && (uintptr_t)object % alignment == 0);
            free(object);
        }
    void *few[64]; /* neighbours: the first of a page would be aligned anyhow */
    for (unsigned i = 0; i < 64; i++)
        CHECK(posix_memalign(&few[i], 16, i % 9) == 0 && (uintptr_t)few[i] % 16 == 0);
    for (unsigned i = 0; i < 64; i++)
        free(few[i]);
    void *object = (void *)&sizes;
    CHECK(posix_memalign(&object, 3, 10) == EINVAL && posix_memalign(&object, 12, 10) == EINVAL);
    CHECK(posix_memalign(&object, 0, 10) == EINVAL && object == (void *)&sizes);
    object = memalign(24, 10); /* means 32 */
    CHECK((uintptr_t)object % 32 == 0);
    free(object);
    object = valloc(10);
    CHECK((uintptr_t)object % 4096 == 0);
    free(object);
    object = pvalloc(4097);
    CHECK((uintptr_t)object % 4096 == 0 && malloc_usable_size(object) >= 8192);
    free(object);
}

static void errors(void)
{
    errno = 0;
    CHECK(!malloc(hidden_max) && errno == ENOMEM);
    errno = 0;
    CHECK(!malloc(hidden_max / 2 + 1) && errno == ENOMEM);
    errno = 0;
    CHECK(!calloc(hidden_max / 2, 3) && errno == ENOMEM);
    errno = 0;
    CHECK(!malloc((size_t)1 << 46) && errno == ENOMEM);
    errno = 0;
    char *object = malloc(100000);
    fill((unsigned char *)object, 100000, 1);
    CHECK(!realloc(object, hidden_max - 4096) && errno == ENOMEM);
    CHECK(!reallocarray(object, hidden_max / 2, 3) && errno == ENOMEM);
    look((unsigned char *)object, 100000, 100000, 1);
    void *out = NULL;
    CHECK(posix_memalign(&out, 64, hidden_max - 64) == ENOMEM && !out);
    CHECK(!aligned_alloc(64, hidden_max) && !memalign((size_t)1 << 62, 8));
    errno = 77;
    free(object);
    free(malloc(10));
    free(malloc(40 << 20));
    free(NULL);
    CHECK(errno == 77 && malloc_usable_size(NULL) == 0);
}

static void resized(void)
{
    for (unsigned from = 0; from < SIZES; from++)
        for (unsigned to = 0; to < SIZES; to++) {
            unsigned char *object = malloc(sizes[from]);
            CHECK(object && malloc_usable_size(object) >= sizes[from]);
            CHECK((uintptr_t)object % (sizes[from] >= 16 ? 16 : 8) == 0);
            fill(object, sizes[from], from);
            unsigned char *moved = realloc(object, sizes[to]);
            if (sizes[to] == 0) {
                CHECK(!moved); /* freed, as glibc does */
                continue;
            }
            size_t kept = sizes[from] < sizes[to] ? sizes[from] : sizes[to];
            CHECK(moved && malloc_usable_size(moved) >= sizes[to]);
            look(moved, sizes[from], kept ? kept - (kept != sizes[from]) : 0, from);
            fill(moved, sizes[to], to);
            object = calloc(1, sizes[from]);
            look_for_zeros(object, sizes[from]);
            fill(object, sizes[from], 9);
            look(moved, sizes[to], sizes[to], to);
            free(object);
            free(moved);
        }
    unsigned char *object = malloc(1 << 20);
    fill(object, 1 << 20, 5);
    for (size_t bytes = 3 << 19; bytes <= (size_t)256 << 20; bytes += bytes / 3) {
        object = realloc(object, bytes);
        look(object, bytes, 1 << 20, 5);
        object[bytes - 1] = 1;
    }
    object = realloc(object, 1 << 20);
    look(object, 1 << 20, 1 << 20, 5);
    object = realloc(object, 100);
    look(object, 1 << 20, 100, 5);
    free(object);
}

static void about_memory(void)
{
    void *object = malloc(50 << 20);
    struct mallinfo2 info = mallinfo2();
    CHECK(info.uordblks + info.hblkhd >= (size_t)50 << 20);
    free(object);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    malloc_trim(0);
    FILE *nowhere = fopen("/dev/null", "w");
    CHECK(malloc_info(0, nowhere) == 0 && malloc_info(1, nowhere) == EINVAL);
    fclose(nowhere);
}

static void every_call(void)
{
    aligned();
    errors();
    resized();
    about_memory();
}

static void foreign(void)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    void *(*their_malloc)(size_t);
    *(void **)&their_malloc = dlsym(libc, "malloc");
    CHECK(libc && their_malloc);
    for (unsigned i = 0; i < SIZES; i++) {
        unsigned char *object = their_malloc(sizes[i]);
        CHECK(object && malloc_usable_size(object) >= sizes[i]);
        fill(object, sizes[i], i);
        object = realloc(object, 2 * sizes[i] + 1);
        look(object, 2 * sizes[i] + 1, sizes[i] ? sizes[i] - 1 : 0, i);
        free(object);
        free(their_malloc(sizes[i]));
    }
}

/* ---- Threads and forks --------------------------------------------------------------------------------- */

enum { SLOTS = 64 };
static atomic_bool over;

struct worker {
    unsigned seed;
    unsigned char *objects[SLOTS];
    size_t bytes[SLOTS];
    unsigned salts[SLOTS];
};

static unsigned draw(struct worker *worker)
{
    worker->seed = worker->seed * 1664525u + 1013904223u;
    return worker->seed >> 8;
}

static size_t draw_bytes(struct worker *worker)
{
    unsigned kind = draw(worker) % 100;
    return 1 + draw(worker) % (kind < 90 ? 2000u : kind < 98 ? 100000u : 3000000u);
}

static void step(struct worker *worker)
{
    unsigned i = draw(worker) % SLOTS;
    unsigned char *old = worker->objects[i];
    if (old)
        look(old, worker->bytes[i], worker->bytes[i], worker->salts[i]);
    if (old && draw(worker) % 3) {
        free(old);
        worker->objects[i] = NULL;
        return;
    }
    size_t bytes = draw_bytes(worker), kept = old && worker->bytes[i] < bytes ? worker->bytes[i] : bytes;
    bool zero = !old && draw(worker) % 2;
    unsigned char *object = old ? realloc(old, bytes) : zero ? calloc(bytes, 1) : malloc(bytes);
    CHECK(object);
    if (zero)
        look_for_zeros(object, bytes);
    if (old)
        look(object, worker->bytes[i], kept - (kept != worker->bytes[i]), worker->salts[i]);
    worker->salts[i] = draw(worker);
    fill(object, bytes, worker->salts[i]);
    worker->objects[i] = object;
    worker->bytes[i] = bytes;
}

static void drop(struct worker *worker)
{
    for (unsigned i = 0; i < SLOTS; i++)
        free(worker->objects[i]);
}

static void *work(void *argument)
{
    struct worker worker = {.seed = (unsigned)(uintptr_t)argument};
    while (!over)
        step(&worker);
    drop(&worker);
    return NULL;
}

static void forks(unsigned count, unsigned seconds)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct worker own = {.seed = 99};
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    for (unsigned i = 0; i < count; i++) {
        int status;
        for (unsigned k = 0; k < 10; k++)
            step(&own);
        pid_t child = fork();
        if (child == 0) {
            alarm(seconds); /* a deadlock is a death */
            for (unsigned k = 0; k < 100; k++)
                step(&own);
            drop(&own);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    over = true;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    drop(&own);
}

/* ---- A system that refuses ----------------------------------------------------------------------------- */

static void deny(bool mmap_too)
{
#define REFUSE(call)                                                                                         \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (call), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(SYS_madvise),
        REFUSE(SYS_mremap),
        REFUSE(SYS_memfd_create),
        REFUSE(SYS_membarrier),
        REFUSE(mmap_too ? SYS_mmap : SYS_membarrier),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* ---- Memory that goes back ----------------------------------------------------------------------------- */

static size_t resident_mib(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*u %lu", &pages) == 1);
    fclose(file);
    return pages >> 8;
}

static void returns(void)
{
    enum { COUNT = 2000 };
    static unsigned char *objects[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        size_t bytes = 40000 + (size_t)i % 20 * 20000;
        objects[i] = malloc(bytes);
        memset(objects[i], 1, bytes);
    }
    printf("%zu", resident_mib());
    for (unsigned i = 0; i < COUNT; i++)
        if (i % 10)
            free(objects[i]);
    printf(" %zu\n", resident_mib());
}

/* Memory that cannot go back is used again. */
static void kept(void)
{
    enum { COUNT = 24, ROUNDS = 50 };
    unsigned char *objects[COUNT];
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            objects[i] = malloc(1 << 20);
            CHECK(objects[i]);
            memset(objects[i], 1, 1 << 20);
        }
        if (round == 1)
            deny(true);
        for (unsigned i = 0; i < COUNT; i++)
            free(objects[i]);
    }
    CHECK(resident_mib() < 4 * COUNT);
}

/* ---- jemalloc's control interface ---------------------------------------------------------------------- */

int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));
int mallctlnametomib(const char *, size_t *, size_t *) __attribute__((weak));
int mallctlbymib(const size_t *, size_t, void *, size_t *, void *, size_t) __attribute__((weak));
void malloc_stats_print(void (*)(void *, const char *), void *, const char *) __attribute__((weak));
void *mallocx(size_t, int) __attribute__((weak));
void dallocx(void *, int) __attribute__((weak));

static const char *_Atomic stage = "start";
static struct worker own = {.seed = 7};

/* A thread: jemalloc holds signals back while it starts one of its own. */
static void *watch(void *argument)
{
    sleep(60);
    char line[100]; /* nothing that allocates */
    int length = snprintf(line, sizeof line, "%s does not return\n", stage);
    _exit(write(2, line, (size_t)length) < 0 || argument ? 4 : 5);
}

/* Written with `bytes` of the value; then some work, so that malloc has something to say. */
static int set(const char *name, unsigned long value, size_t bytes)
{
    stage = name;
    int error = mallctl(name, NULL, NULL, bytes ? &value : NULL, bytes);
    for (unsigned i = 0; i < 50; i++)
        step(&own);
    return error;
}

static unsigned get_number(const char *name)
{
    unsigned value = 0;
    size_t bytes = sizeof value;
    stage = name;
    CHECK(mallctl(name, &value, &bytes, NULL, 0) == 0);
    return value;
}

/* All that allocates, and asks, in a function that jemalloc calls. */
static void ask_inside(void)
{
    free(malloc(100));
    free(calloc(1, 3 << 20));
    CHECK(mallinfo2().fordblks < SIZE_MAX / 2);
    malloc_trim(0);
    uint64_t epoch = 1;
    int error = mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    CHECK(error == 0 || error == EAGAIN);
}

static void write_nothing(void *argument, const char *text)
{
    (void)argument;
    if (strstr(text, "Version"))
        ask_inside();
}

static void call_each(void)
{
    static const struct {
        const char *name;
        unsigned long value;
        size_t bytes;
    } plain[] = {{"background_thread", 1, 1},
                 {"max_background_threads", 2, sizeof(size_t)},
                 {"epoch", 1, sizeof(uint64_t)},
                 {"thread.tcache.flush", 0, 0},
                 {"thread.tcache.enabled", 0, 1},
                 {"thread.tcache.enabled", 1, 1},
                 {"thread.idle", 0, 0},
                 {"thread.arena", 0, sizeof(unsigned)},
                 {"arena.0.decay", 0, 0},
                 {"arena.0.purge", 0, 0},
                 {"arena.4096.decay", 0, 0},
                 {"arena.4096.purge", 0, 0},
                 {"arena.0.dirty_decay_ms", 10, sizeof(ssize_t)},
                 {"arenas.muzzy_decay_ms", 10, sizeof(ssize_t)},
                 {"stats.mutexes.reset", 0, 0},
                 {"background_thread", 0, 1}};
    size_t mib[8], length = 8, count = 0, bytes = sizeof count;
    for (unsigned i = 0; i < sizeof plain / sizeof *plain; i++)
        CHECK(set(plain[i].name, plain[i].value, plain[i].bytes) == 0);
    CHECK(set("prof.active", 1, 1) != 0 && set("no.such.name", 0, 0) == ENOENT);
    CHECK(get_number("arenas.narenas") > 0);
    unsigned long cache = get_number("tcache.create");
    CHECK(set("tcache.flush", cache, sizeof(unsigned)) == 0 &&
          set("tcache.destroy", cache, sizeof(unsigned)) == 0);
    stage = "mallctlbymib";
    CHECK(mallctlnametomib("stats.arenas.0.small.allocated", mib, &length) == 0);
    CHECK(mallctlbymib(mib, length, &count, &bytes, NULL, 0) == 0);
    stage = "malloc_stats_print";
    malloc_stats_print(write_nothing, NULL, "");
    stage = "mallinfo2, malloc_info, malloc_trim";
    ask_inside();
    FILE *file = fopen("/dev/null", "w");
    CHECK(file && malloc_info(0, file) == 0);
    fclose(file);
}

static void *switch_background(void *argument)
{
    for (unsigned char on = 1; !over; on ^= 1, usleep(100))
        CHECK(mallctl("background_thread", NULL, NULL, &on, 1) == 0);
    return argument;
}

/* Forks beside a thread that is inside the control interface nearly always. */
static void fork_beside(void)
{
    pthread_t thread;
    int status;
    stage = "background_thread beside fork";
    CHECK(pthread_create(&thread, NULL, switch_background, NULL) == 0);
    for (unsigned i = 0; i < 8; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            ask_inside();
            for (unsigned k = 0; k < 100; k++)
                step(&own);
            _exit(mallctl("arena.0.purge", NULL, NULL, NULL, 0));
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    over = true;
    pthread_join(thread, NULL);
    over = false;
}

/* A program's extent hook runs under its arena's locks, allocates, and waits for a lock of the program's,
 * under which others allocate. */
static pthread_mutex_t programs_lock = PTHREAD_MUTEX_INITIALIZER;

static void *map_extent(extent_hooks_t *hooks, void *at, size_t bytes, size_t alignment, bool *zero,
                        bool *commit, unsigned arena)
{
    (void)hooks, (void)arena;
    char *got =
        at ? MAP_FAILED
           : mmap(NULL, bytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *zero = *commit = true;
    return got == MAP_FAILED ? NULL : got + (-(uintptr_t)got & (alignment - 1));
}

static bool split_extent(extent_hooks_t *hooks, void *at, size_t bytes, size_t first_bytes,
                         size_t second_bytes, bool committed, unsigned arena)
{
    (void)hooks, (void)at, (void)committed, (void)arena;
    return first_bytes + second_bytes != bytes;
}

static atomic_bool merging;

/* Under a lock that jemalloc takes for its statistics. */
static bool merge_extents(extent_hooks_t *hooks, void *at, size_t bytes, void *next, size_t next_bytes,
                          bool committed, unsigned arena)
{
    (void)hooks, (void)next_bytes, (void)committed, (void)arena;
    ask_inside();
    merging = true;
    pthread_mutex_lock(&programs_lock);
    pthread_mutex_unlock(&programs_lock);
    merging = false;
    return (char *)at + bytes != next;
}

static void *use_arena(void *argument)
{
    void *objects[8];
    while (!over) {
        for (unsigned i = 0; i < 8; i++)
            CHECK(
                (objects[i] = mallocx(4 << 20, MALLOCX_ARENA(*(unsigned *)argument) | MALLOCX_TCACHE_NONE)));
        for (unsigned i = 0; i < 8; i++)
            dallocx(objects[i], MALLOCX_TCACHE_NONE);
    }
    return NULL;
}

static void hook_extents(void)
{
    static extent_hooks_t hooks = {.alloc = map_extent, .split = split_extent, .merge = merge_extents},
                          *given = &hooks;
    unsigned arena;
    size_t bytes = sizeof arena;
    char name[64];
    pthread_t thread;
    stage = "arenas.create with extent hooks";
    CHECK(mallctl("arenas.create", &arena, &bytes, &given, sizeof given) == 0);
    stage = "malloc beside extent hooks";
    CHECK(pthread_create(&thread, NULL, use_arena, &arena) == 0);
    for (unsigned i = 0; i < 5; i++) {
        pthread_mutex_lock(&programs_lock);
        while (!merging)
            usleep(100);
        for (unsigned k = 0; k < 400; k++) /* more memory than ever: zr run --stats looks */
            CHECK(malloc(10000));
        pthread_mutex_unlock(&programs_lock);
        usleep(1000);
    }
    over = true;
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "arena.%u.%s", arena, (const char *[]){"purge", "reset", "destroy"}[i]);
        CHECK(set(name, 0, 0) == 0);
    }
}

static void control(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS], watcher;
    CHECK(mallctl && mallctlnametomib && mallctlbymib && malloc_stats_print && mallocx && dallocx);
    CHECK(pthread_create(&watcher, NULL, watch, NULL) == 0);
    CHECK(set("background_thread", 1, 1) == 0); /* jemalloc's first memory: more to note than ever after */
    for (unsigned round = 0; round < 2; round++) {
        over = false;
        for (uintptr_t i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
        for (unsigned i = 0; i < 4 && round == 0; i++)
            call_each();
        if (round == 1)
            hook_extents();
        over = true;
        for (unsigned i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        over = false;
        if (round == 0)
            fork_beside();
    }
    drop(&own);
}

/* ---- A fork while a thread is inside ------------------------------------------------------------------- */

static int is_inside[2], goes_on[2];

static void wait_inside(void *argument, const char *text)
{
    static _Atomic bool has_waited;
    char byte = 0;
    (void)argument, (void)text;
    if (!atomic_exchange(&has_waited, true))
        CHECK(write(is_inside[1], &byte, 1) == 1 && read(goes_on[0], &byte, 1) == 1);
}

static void *print_statistics(void *argument)
{
    malloc_stats_print(wait_inside, NULL, NULL);
    return argument;
}

static void inside(void)
{
    pthread_t thread;
    int status;
    char byte = 0;
    CHECK(pipe(is_inside) == 0 && pipe(goes_on) == 0);
    CHECK(pthread_create(&thread, NULL, print_statistics, NULL) == 0 && read(is_inside[0], &byte, 1) == 1);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        for (unsigned i = 0; i < 3000; i++)
            CHECK(memset(malloc(10000), 1, 10000));
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(goes_on[1], &byte, 1) == 1 && pthread_join(thread, NULL) == 0);
}

/* ---- Small objects under a limit ----------------------------------------------------------------------- */

static void *take_and_free(void *argument)
{
    void *object = malloc(10);
    printf(" %d", object != NULL);
    free(object);
    return argument;
}

static void small(unsigned threads)
{
    static char output[1000];
    static void *first[200];
    size_t count = 0;
    pthread_t thread;
    setvbuf(stdout, output, _IOFBF, sizeof output);
    for (unsigned i = 0; i < 200; i++)
        first[i] = malloc(i % 2 ? 300 : 1000);
    while (malloc(1000))
        count++;
    for (unsigned i = 0; i < 9; i++)
        CHECK(!malloc(1000) && errno == ENOMEM);
    printf("%zu", count);
    for (unsigned i = 0; i < 200; i++)
        free(first[i]); /* for what the C library allocates for a thread */
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&thread, NULL, take_and_free, NULL) == 0)
            pthread_join(thread, NULL);
    printf("\n");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    size_t number = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    for (int fd = 0; fd < 256; fd++) /* which none can be that was open before */
        CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0 || fcntl(fd, F_GETFD) < 0);
    if (strcmp(what, "denied") == 0)
        deny(false);
    if (strcmp(what, "calls") == 0 || strcmp(what, "denied") == 0) {
        every_call();
    } else if (strcmp(what, "foreign") == 0) {
        foreign();
    } else if (strcmp(what, "threads") == 0) {
        forks((unsigned)number, argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 300);
    } else if (strcmp(what, "twice") == 0) {
        char *volatile object = malloc(number);
        free(object);
        free(object);
        return 4;
    } else if (strcmp(what, "stale") == 0) {
        for (unsigned i = 0; i < 8; i++) { /* one of them begins behind its memory's begin */
            char *volatile object = aligned_alloc(4 << 20, number);
            free(object);
            if (malloc(number + (4 << 20)) != object)
                free(object);
        }
        return 4;
    } else if (strcmp(what, "wild") == 0) {
        char *volatile object = malloc(number);
        free(object + 4096);
        return 4;
    } else if (strcmp(what, "returns") == 0) {
        returns();
    } else if (strcmp(what, "kept") == 0) {
        kept();
    } else if (strcmp(what, "control") == 0) {
        control();
    } else if (strcmp(what, "inside") == 0) {
        inside();
    } else if (strcmp(what, "small") == 0) {
        small((unsigned)number);
    } else {
        return 2;
    }
    return 0;
}
