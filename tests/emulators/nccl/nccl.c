/* nccl.c: an emulated libnccl.so.2, on which the NCCL communicator runs where there is no GPU. Ranks are
 * processes of this machine; data passes through a file of mailboxes in /dev/shm, one for each pair. Strict
 * about groups, ranks, types and sizes. Sums are taken from the last rank to the first: NCCL promises no
 * order, and whoever counts on rank order must notice.
 *
 * A communicator whose configuration says so does not block, as the library's: its calls return
 * ncclInProgress, what they began goes on in ncclCommGetAsyncError(), and until that says otherwise the
 * communicator takes no other call but an abort. A first operation between two ranks connects them: it is in
 * progress until both have come.
 *
 * In a process with the emulated driver (tests/emulators/cuda) work is the stream's: a call returns at once,
 * the bytes move when the stream has come to it and the peers have, and nothing ends it but that or an abort.
 * What is wrong with a buffer is reported on standard error, and ends the context as a wrong kernel does, or
 * refuses the call: see report(). Without that driver memory is the host's, and work
 * ends inside the call that starts it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "alloc/rehearse/driver/emulator.h"
#include "tests/emulators/nccl/nccl_emulator.h"

#define PUBLIC __attribute__((visibility("default")))

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { UINT8 = 1, FP16 = 6, FP32 = 7, BF16 = 9, SUM = 0, AVERAGE = 4, FIRST_OWN_SUM = 100 };
enum { MAIL_BYTES = 32 << 10, MAX_PARTS = 256, MAX_RANKS = 16, NO_COLOUR = -1, NOT_SET = -2147483647 - 1 };
PUBLIC struct zr_nccl_emulator zr_nccl_emulator = {.version = 22809, .silence_s = 120};
static struct zr_nccl_emulator *const control = &zr_nccl_emulator;

struct mailbox {
    _Alignas(64) _Atomic unsigned full;
    size_t bytes; /* of the whole message, to see that both sides mean the same */
    char data[MAIL_BYTES];
};

struct id {
    char name[128];
};

/* ncclConfig_t of NCCL 2.14; later fields are left alone. */
struct config {
    size_t bytes;
    unsigned magic, version;
    int blocking, unused;
};

/* What ranks tell each other at a start and at a split. */
struct said {
    struct id id;
    int device, colour, key;
};

struct comm {
    int rank, ranks, device; /* device: -1: memory is the host's */
    bool blocking, has_ended;
    struct mailbox *mail;          /* [from * ranks + to] */
    _Atomic unsigned char *linked; /* [from * ranks + to]: behind the mail, from has begun to connect */
    size_t mail_bytes;
    struct id id;
    bool has_sum;                            /* the one operator that can be made at a time */
    float scale;                             /* of it */
    _Atomic int error, aborted, outstanding; /* outstanding: works in streams */
    /* In progress: the work that is to be done or launched, the group that is made. */
    enum zr_nccl_doing doing;
    struct work *pending;
    void *stream;
    struct said mine, all[MAX_RANKS];
    struct comm *child, **out;
    struct comm *next; /* of those that have ended: nobody may use them, and they stay to say so */
};

/* A message to or from a peer. */
struct part {
    char *data;
    size_t bytes, done;
    int peer, sends, staged; /* staged: in the emulator's own memory */
};

/* What one call, or one group of calls, comes to. */
struct work {
    struct comm *comm;
    struct part parts[MAX_PARTS];
    int count, begun;
    struct timespec moved; /* when bytes were last */
    /* At the start `own_bytes` are copied, at the end [ranks][elements] in `all` are added up into `to`. */
    const char *own_from;
    char *own_to, *all, *to;
    size_t own_bytes, elements;
    int type, sum;
    const char *name;
};

static _Thread_local struct work *grouped;
static _Thread_local void *grouped_stream;
static _Thread_local int depth;

static int report(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int report(int code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(control->report, sizeof control->report, format, list);
    va_end(list);
    fprintf(stderr, "emulated NCCL: %s\n", control->report);
    return code;
}

/* The emulated driver of this process; NULL: memory is the host's. */
static const struct zr_emulator *driver(void)
{
    static _Thread_local const struct zr_emulator *found;
    static _Thread_local bool looked; /* the search goes through all folders of libraries */
    void *library = looked ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    looked = true;
    if (library)
        found = dlsym(library, "zr_emulator");
    return found && found->device() >= 0 ? found : NULL;
}

static size_t type_bytes(int type)
{
    return type == UINT8 ? 1 : type == FP32 ? 4 : type == FP16 || type == BF16 ? 2 : 0;
}

/* ---- Carrying out -------------------------------------------------------------------------------------- */

static void get(const struct zr_emulator *emulator, const char *from, void *to, size_t bytes)
{
    if (emulator)
        emulator->read((zr_cu_address)(uintptr_t)from, to, bytes);
    else if (bytes > 0)
        memcpy(to, from, bytes);
}

static void put(const struct zr_emulator *emulator, char *to, const void *from, size_t bytes)
{
    if (emulator)
        emulator->write((zr_cu_address)(uintptr_t)to, from, bytes);
    else if (bytes > 0)
        memcpy(to, from, bytes);
}

/* One chunk of a message, if its mailbox is ready; messages of a pair go one after the other. */
static int move(const struct zr_emulator *emulator, struct comm *comm, struct part *part)
{
    int me = comm->rank, ranks = comm->ranks;
    struct mailbox *box = &comm->mail[part->sends ? me * ranks + part->peer : part->peer * ranks + me];
    size_t left = part->bytes - part->done, some = left < MAIL_BYTES ? left : MAIL_BYTES;
    if (part->staged)
        emulator = NULL;
    if (atomic_load(&box->full) != (unsigned)!part->sends)
        return 0;
    if (!part->sends && box->bytes != part->bytes)
        return -1;
    if (part->sends) {
        get(emulator, part->data + part->done, box->data, some);
        box->bytes = part->bytes;
    } else {
        put(emulator, part->data + part->done, box->data, some);
    }
    part->done += some;
    atomic_store(&box->full, (unsigned)part->sends);
    return 1;
}

static int is_first(const struct work *work, int index)
{
    for (int i = 0; i < index; i++)
        if (work->parts[i].done < work->parts[i].bytes && work->parts[i].peer == work->parts[index].peer &&
            work->parts[i].sends == work->parts[index].sends)
            return 0;
    return 1;
}

static void begin(const struct zr_emulator *emulator, struct work *work)
{
    char *copy = malloc(work->own_bytes + 1);
    if (!copy)
        abort();
    get(emulator, work->own_from, copy, work->own_bytes);
    put(work->all ? NULL : emulator, work->own_to, copy, work->own_bytes);
    free(copy);
    work->begun = 1;
}

static void fold(const struct zr_emulator *emulator, const struct work *work);

/* All that can be moved now: how much was, and through *left how many messages are not. -1: sizes differ. */
static int move_all(const struct zr_emulator *emulator, struct work *work, int *left)
{
    int any = 0;
    *left = 0;
    for (int i = 0; i < work->count; i++) {
        struct part *part = &work->parts[i];
        if (part->done == part->bytes)
            continue;
        int result = is_first(work, i) ? move(emulator, work->comm, part) : 0;
        if (result < 0)
            return -1;
        any |= result;
        *left += part->done < part->bytes;
    }
    return any;
}

static int end_work(struct work *work, int code)
{
    free(work->all);
    free(work);
    return code;
}

/* A part of it, in the host's memory: IN_PROGRESS, or how it has ended. */
static int advance(struct work *work)
{
    struct timespec now;
    int left = 0, any;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!work->begun) {
        work->moved = now;
        begin(NULL, work);
    }
    if ((any = move_all(NULL, work, &left)) < 0)
        return end_work(work, INVALID_USAGE);
    if (any)
        work->moved = now;
    if (left > 0 && now.tv_sec - work->moved.tv_sec > control->silence_s)
        return end_work(work, REMOTE_ERROR);
    if (left > 0)
        return IN_PROGRESS;
    if (work->all)
        fold(NULL, work);
    return end_work(work, OK);
}

static int in_reach(const struct zr_emulator *emulator, const struct work *work, const char *at, size_t bytes,
                    int writes)
{
    const char *why = bytes > 0 ? emulator->reach((zr_cu_address)(uintptr_t)at, bytes, writes) : NULL;
    if (why)
        report(0, "%s of rank %d %s %zu bytes at %p: that memory %s", work->name, work->comm->rank,
               writes ? "writes" : "reads", bytes, (void *)(uintptr_t)at, why);
    return !why;
}

/* All of its device memory, at every step: nobody may take it away before the end. */
static int all_in_reach(const struct zr_emulator *emulator, const struct work *work)
{
    size_t unit = type_bytes(work->type);
    int fine = in_reach(emulator, work, work->own_from, work->own_bytes, 0) &&
               (work->all || in_reach(emulator, work, work->own_to, work->own_bytes, 1)) &&
               (!work->all || in_reach(emulator, work, work->to, work->elements * unit, 1));
    for (int i = 0; i < work->count && fine; i++)
        fine = work->parts[i].staged ||
               in_reach(emulator, work, work->parts[i].data, work->parts[i].bytes, !work->parts[i].sends);
    return fine;
}

/* While there are communicators: a card works on while its program waits for something else. */
static struct {
    pthread_mutex_t lock; /* users_count */
    unsigned users_count;
    pthread_t thread;
    _Atomic int works, stopping; /* works: in streams, of all communicators */
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *work_on(void *emulator)
{
    while (!engine.stopping) {
        if (engine.works > 0)
            ((const struct zr_emulator *)emulator)->pass();
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return NULL;
}

static void engine_take(const struct zr_emulator *emulator)
{
    pthread_mutex_lock(&engine.lock);
    if (engine.users_count++ == 0) {
        engine.stopping = 0;
        if (pthread_create(&engine.thread, NULL, work_on, (void *)(uintptr_t)emulator) != 0)
            abort();
    }
    pthread_mutex_unlock(&engine.lock);
}

static void engine_give(void)
{
    pthread_mutex_lock(&engine.lock);
    if (--engine.users_count == 0) {
        engine.stopping = 1;
        pthread_join(engine.thread, NULL);
    }
    pthread_mutex_unlock(&engine.lock);
}

/* In its stream. */
static enum zr_emulator_step step(void *state)
{
    struct work *work = state;
    static const struct zr_emulator *emulator;
    int left = 0, wrong = 0;
    if (!emulator)
        emulator = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "zr_emulator");
    if (!work->comm->aborted && !all_in_reach(emulator, work))
        wrong = 1;
    if (!work->comm->aborted && !wrong) {
        if (!work->begun)
            begin(emulator, work);
        if (move_all(emulator, work, &left) < 0) {
            work->comm->error = INVALID_USAGE;
            wrong = 1;
            report(0, "%s of rank %d: a peer means another size", work->name, work->comm->rank);
        }
        if (!wrong && left > 0)
            return ZR_EMULATOR_AGAIN;
        if (!wrong && work->all)
            fold(emulator, work);
    }
    work->comm->outstanding--;
    engine.works--;
    end_work(work, 0);
    return wrong ? ZR_EMULATOR_WRONG : ZR_EMULATOR_DONE;
}

/* ---- Submitting ---------------------------------------------------------------------------------------- */

/* Whether all of its peers have come, too. */
static bool is_connected(const struct work *work)
{
    const struct comm *comm = work->comm;
    bool all = true;
    for (int i = 0; i < work->count; i++) {
        int peer = work->parts[i].peer;
        atomic_store(&comm->linked[comm->rank * comm->ranks + peer], 1);
        all = all && atomic_load(&comm->linked[peer * comm->ranks + comm->rank]);
    }
    return all;
}

static int submit(struct work *work, void *stream)
{
    const struct zr_emulator *emulator = driver();
    work->comm->outstanding++;
    engine.works++;
    if (emulator->work(stream, step, work, (struct zr_emulator_transfer){0}) == ZR_CU_SUCCESS)
        return OK;
    work->comm->outstanding--;
    engine.works--;
    return end_work(work, 1); /* ncclUnhandledCudaError */
}

static int go_on(struct comm *comm);

/* Begins what goes on in go_on(). */
static int set_about(struct comm *comm, enum zr_nccl_doing what, struct work *work)
{
    int code;
    if (control->dies_at == what)
        _exit(0);
    comm->doing = what;
    comm->pending = work;
    if (!comm->blocking)
        return IN_PROGRESS;
    while ((code = go_on(comm)) == IN_PROGRESS)
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    return code;
}

/* Whether the communicator takes a call. */
static int check(const struct comm *comm, const char *name)
{
    if (!comm)
        return report(INVALID_ARGUMENT, "%s without a communicator", name);
    if (comm->has_ended)
        return report(INVALID_ARGUMENT, "%s of a communicator that has ended", name);
    return comm->doing ? report(INVALID_ARGUMENT, "%s while the communicator is in progress", name) : OK;
}

static int launch(struct work *work, void *stream)
{
    int code = check(work->comm, work->name);
    if (code == OK && driver() && !driver()->stream_is_here(stream))
        code = report(INVALID_ARGUMENT, "%s in a stream that is none of the current context", work->name);
    if (code != OK)
        return end_work(work, code);
    work->comm->stream = stream;
    return set_about(work->comm, ZR_NCCL_LAUNCHING, work);
}

static struct work *work_of(struct comm *comm, const char *name)
{
    struct work *made = calloc(1, sizeof *made);
    if (!made)
        abort();
    made->comm = comm;
    made->name = name;
    return made;
}

static int add(struct work *work, void *data, size_t bytes, int peer, int sends)
{
    struct comm *comm = work->comm;
    if (peer < 0 || peer >= comm->ranks || peer == comm->rank || (!data && bytes > 0) ||
        work->count == MAX_PARTS)
        return INVALID_ARGUMENT;
    work->parts[work->count++] =
        (struct part){.data = data, .bytes = bytes, .peer = peer, .sends = sends, .staged = 0};
    return OK;
}

/* ---- Groups and transfers ------------------------------------------------------------------------------ */

PUBLIC int ncclGroupStart(void)
{
    depth++;
    return OK;
}

PUBLIC int ncclGroupEnd(void)
{
    if (depth == 0)
        return INVALID_USAGE;
    if (--depth > 0 || !grouped)
        return OK;
    struct work *work = grouped;
    grouped = NULL;
    return launch(work, grouped_stream);
}

static int transfer(struct comm *comm, struct part part, int type, void *stream)
{
    control->transfers++;
    if (!comm || !type_bytes(type))
        return INVALID_ARGUMENT;
    if (comm->has_ended)
        return check(comm, "a transfer");
    if (depth > 0 && grouped && (grouped->comm != comm || grouped_stream != stream))
        return INVALID_USAGE; /* groups of several communicators or streams are not emulated */
    struct work *work = depth > 0 && grouped ? grouped : work_of(comm, part.sends ? "a send" : "a receive");
    int code = add(work, part.data, part.bytes * type_bytes(type), part.peer, part.sends);
    if (depth > 0) {
        grouped = work;
        grouped_stream = stream;
        return code;
    }
    return code == OK ? launch(work, stream) : end_work(work, code);
}

PUBLIC int ncclSend(const void *data, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    return transfer(comm,
                    (struct part){.data = (void *)(uintptr_t)data, .bytes = count, .peer = peer, .sends = 1},
                    type, stream);
}

PUBLIC int ncclRecv(void *data, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    return transfer(comm, (struct part){.data = data, .bytes = count, .peer = peer}, type, stream);
}

/* ---- Collectives --------------------------------------------------------------------------------------- */

/* Everybody's `bytes` at from + p * step go to p; what comes lies at to + p * to_step. NULL: nothing. */
struct crossing {
    const char *from;
    size_t step;
    char *to;
    size_t to_step, bytes;
};

static int cross(struct work *work, struct crossing c, void *stream)
{
    int code = depth > 0 ? INVALID_USAGE : OK; /* collectives in groups are not emulated */
    for (int p = 0; p < work->comm->ranks && code == OK; p++)
        if (p != work->comm->rank) {
            if (c.from)
                code = add(work, (char *)(uintptr_t)c.from + (size_t)p * c.step, c.bytes, p, 1);
            if (c.to && code == OK) {
                code = add(work, c.to + (size_t)p * c.to_step, c.bytes, p, 0);
                work->parts[work->count - 1].staged = work->all != NULL;
            }
        }
    return code == OK ? launch(work, stream) : end_work(work, code);
}

static struct work *collective(struct comm *comm, const char *name, int type)
{
    control->collectives++;
    return comm && type_bytes(type) ? work_of(comm, name) : NULL;
}

PUBLIC int ncclAllGather(const void *from, void *to, size_t count, int type, struct comm *comm, void *stream)
{
    struct work *work = collective(comm, "an all-gather", type);
    size_t bytes = count * type_bytes(type);
    if (!work)
        return INVALID_ARGUMENT;
    work->own_from = from;
    work->own_to = (char *)to + (size_t)comm->rank * bytes;
    work->own_bytes = bytes;
    return cross(work, (struct crossing){work->own_to, 0, to, bytes, bytes}, stream);
}

PUBLIC int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct comm *comm,
                         void *stream)
{
    struct work *work = collective(comm, "a broadcast", type);
    size_t bytes = count * type_bytes(type);
    if (!work || root < 0 || root >= comm->ranks)
        return work ? end_work(work, INVALID_ARGUMENT) : INVALID_ARGUMENT;
    if (comm->rank == root) {
        work->own_from = from;
        work->own_to = to;
        work->own_bytes = bytes;
        return cross(work, (struct crossing){to, 0, NULL, 0, bytes}, stream);
    }
    int code = add(work, to, bytes, root, 0);
    return code == OK ? launch(work, stream) : end_work(work, code);
}

static float load(int type, const char *at)
{
    uint32_t bits = 0;
    float value;
    _Float16 half;
    if (type == FP16) {
        memcpy(&half, at, 2);
        return (float)half;
    }
    memcpy((char *)&bits + (type == BF16 ? 2 : 0), at, type == BF16 ? 2 : 4);
    memcpy(&value, &bits, 4);
    return value;
}

static void store(int type, char *at, float value)
{
    uint32_t bits;
    _Float16 half = (_Float16)value;
    memcpy(&bits, &value, 4);
    if (type == BF16)
        bits += 0x7fff + (bits >> 16 & 1);
    if (type == FP16)
        memcpy(at, &half, 2);
    else
        memcpy(at, (char *)&bits + (type == BF16 ? 2 : 0), type == BF16 ? 2 : 4);
}

/* Sums [ranks][elements] into `to`, from the last rank to the first. */
static void fold(const struct zr_emulator *emulator, const struct work *work)
{
    size_t unit = type_bytes(work->type);
    float scale = work->sum >= FIRST_OWN_SUM ? work->comm->scale : 1;
    char *sums = malloc(work->elements * unit + 1);
    if (!sums)
        abort();
    for (size_t i = 0; i < work->elements; i++) {
        float total = 0;
        for (int p = work->comm->ranks - 1; p >= 0; p--)
            total += scale * load(work->type, work->all + ((size_t)p * work->elements + i) * unit);
        store(work->type, sums + i * unit, work->sum == AVERAGE ? total / (float)work->comm->ranks : total);
    }
    put(emulator, work->to, sums, work->elements * unit);
    free(sums);
}

/* Of `elements`, of which each peer p has its own at from + p * step. */
static int sum_up(struct work *work, const char *from, size_t step_bytes, void *stream)
{
    struct comm *comm = work->comm;
    size_t bytes = work->elements * type_bytes(work->type);
    work->all = malloc(bytes * (size_t)comm->ranks + 1);
    if (!work->all)
        abort();
    work->own_from = from + (size_t)comm->rank * step_bytes;
    work->own_to = work->all + (size_t)comm->rank * bytes;
    work->own_bytes = bytes;
    return cross(work, (struct crossing){from, step_bytes, work->all, bytes, bytes}, stream);
}

PUBLIC int ncclReduceScatter(const void *from, void *to, size_t count, int type, int sum, struct comm *comm,
                             void *stream)
{
    struct work *work = collective(comm, "a reduce-scatter", type);
    if (!work)
        return INVALID_ARGUMENT;
    work->to = to, work->elements = count, work->type = type, work->sum = sum;
    return sum_up(work, from, count * type_bytes(type), stream);
}

PUBLIC int ncclAllReduce(const void *from, void *to, size_t count, int type, int sum, struct comm *comm,
                         void *stream)
{
    struct work *work = collective(comm, "an all-reduce", type);
    if (!work)
        return INVALID_ARGUMENT;
    work->to = to, work->elements = count, work->type = type, work->sum = sum;
    return sum_up(work, from, 0, stream);
}

PUBLIC int ncclRedOpCreatePreMulSum(int *sum, void *scalar, int type, int residence, struct comm *comm)
{
    if (type != FP32 || residence != 1)
        return INVALID_ARGUMENT;
    if (comm->has_sum)
        return report(INVALID_USAGE, "an operator is made while the one before it is there");
    comm->has_sum = true;
    memcpy(&comm->scale, scalar, sizeof(comm->scale));
    *sum = FIRST_OWN_SUM;
    return OK;
}

PUBLIC int ncclRedOpDestroy(int sum, struct comm *comm)
{
    if (sum != FIRST_OWN_SUM || !comm || !comm->has_sum)
        return INVALID_ARGUMENT;
    comm->has_sum = false;
    return OK;
}

/* ---- Communicators ------------------------------------------------------------------------------------- */

PUBLIC int ncclGetVersion(int *version)
{
    *version = control->version;
    return OK;
}

PUBLIC int ncclGetUniqueId(struct id *id)
{
    static unsigned count;
    memset(id, 0, sizeof(*id));
    snprintf(id->name, sizeof(id->name), "/zr-nccl-%d-%u", (int)getpid(), count++);
    return OK;
}

/* A gather of what the ranks have to say. */
static struct work *say(struct comm *comm)
{
    struct work *work = work_of(comm, "a start");
    for (int p = 0; p < comm->ranks; p++)
        if (p != comm->rank) {
            add(work, &comm->mine, sizeof comm->mine, p, 1);
            add(work, &comm->all[p], sizeof comm->mine, p, 0);
        }
    work->own_from = (char *)&comm->mine;
    work->own_to = (char *)&comm->all[comm->rank];
    work->own_bytes = sizeof comm->mine;
    return work;
}

static int end(struct comm *comm)
{
    static struct comm *_Atomic ended;
    if (comm->device >= 0)
        engine_give();
    if (comm->doing && comm->pending)
        end_work(comm->pending, 0);
    munmap(comm->mail, comm->mail_bytes);
    comm->has_ended = true;
    comm->next = atomic_exchange(&ended, comm);
    control->communicators--;
    return OK;
}

/* A communicator that is to start. */
static int make(struct comm **out, int ranks, int rank, const struct id *id)
{
    const size_t pairs = (size_t)(ranks * ranks), bytes = pairs * (sizeof(struct mailbox) + 1);
    int fd = shm_open(id->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return SYSTEM_ERROR;
    void *mail = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    struct comm *comm = calloc(1, sizeof(*comm));
    if (mail == MAP_FAILED || !comm)
        return SYSTEM_ERROR;
    *comm = (struct comm){.rank = rank,
                          .ranks = ranks,
                          .blocking = true,
                          .mail = mail,
                          .linked = (void *)((struct mailbox *)mail + pairs),
                          .mail_bytes = bytes,
                          .id = *id,
                          .device = driver() ? driver()->device() : -1};
    comm->mine.device = comm->device;
    if (comm->device >= 0)
        engine_take(driver());
    control->communicators++;
    *out = comm;
    return OK;
}

/* All are there: the name can go. */
static int started(struct comm *comm)
{
    if (comm->rank == 0)
        shm_unlink(comm->id.name);
    for (int p = 0; p < comm->ranks; p++)
        if (p != comm->rank && comm->device >= 0 && comm->all[p].device == comm->device)
            return report(INVALID_USAGE,
                          "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x", comm->rank,
                          p, (unsigned)comm->device << 12);
    return OK;
}

/* Those of one colour, by their keys. */
static int make_child(struct comm *parent)
{
    const struct said *all = parent->all, *mine = &parent->mine;
    int rank = 0, ranks = 0, first = parent->rank;
    for (int p = 0; p < parent->ranks; p++)
        if (all[p].colour == mine->colour) {
            bool before = all[p].key < mine->key || (all[p].key == mine->key && p < parent->rank);
            ranks++;
            rank += before;
            if (all[p].key < all[first].key || (all[p].key == all[first].key && p < first))
                first = p;
        }
    control->splits++;
    int code = make(&parent->child, ranks, rank, &all[first].id);
    if (code == OK) {
        parent->child->blocking = false;
        set_about(parent->child, ZR_NCCL_STARTING, say(parent->child));
    }
    return code;
}

/* One step of what the communicator is at; a group's pointer is there when its start has ended, as the
 * library's. */
static int step_on(struct comm *comm)
{
    int code = OK;
    switch (comm->doing) {
    case ZR_NCCL_STARTING:
        code = advance(comm->pending);
        return code == OK ? started(comm) : code;
    case ZR_NCCL_SPLITTING:
        if (!comm->child && (code = advance(comm->pending)) == OK) {
            comm->pending = NULL;
            code = comm->mine.colour == NO_COLOUR ? OK : make_child(comm);
        }
        if (code == OK && comm->child && (code = go_on(comm->child)) == OK) {
            comm->child->blocking = comm->blocking;
            *comm->out = comm->child;
        }
        return code;
    case ZR_NCCL_LAUNCHING:
        if (!driver())
            return advance(comm->pending);
        return is_connected(comm->pending) ? submit(comm->pending, comm->stream) : IN_PROGRESS;
    case ZR_NCCL_FINALIZING:
        return comm->outstanding > 0 ? IN_PROGRESS : OK;
    case ZR_NCCL_DOING_NOTHING:
        break;
    }
    return comm->error;
}

static int go_on(struct comm *comm)
{
    int code = step_on(comm);
    if (code == IN_PROGRESS)
        return code;
    comm->doing = ZR_NCCL_DOING_NOTHING;
    comm->pending = NULL;
    comm->child = NULL;
    comm->error = code;
    return code;
}

PUBLIC int ncclCommInitRankConfig(struct comm **out, int ranks, struct id id, int rank,
                                  const struct config *config)
{
    struct comm *comm;
    if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks || id.name[0] != '/')
        return INVALID_ARGUMENT;
    if (config && (config->bytes < sizeof *config || config->magic != 0xcafebeef || config->version < 21400 ||
                   config->version > (unsigned)control->version ||
                   (config->blocking != 0 && config->blocking != 1 && config->blocking != NOT_SET)))
        return report(INVALID_ARGUMENT, "a configuration that no version of the library has");
    int code = make(&comm, ranks, rank, &id);
    if (code != OK)
        return code;
    comm->blocking = !config || config->blocking != 0;
    *out = comm;
    code = set_about(comm, ZR_NCCL_STARTING, say(comm));
    if (code != OK && code != IN_PROGRESS) {
        end(comm);
        *out = NULL;
    }
    return code;
}

/* Collective over the parent. */
PUBLIC int ncclCommSplit(struct comm *parent, int colour, int key, struct comm **out, void *config)
{
    int code = check(parent, "a split");
    if (code != OK)
        return code;
    if (!out || config || (colour < 0 && colour != NO_COLOUR) || depth > 0)
        return INVALID_ARGUMENT;
    *out = NULL;
    parent->out = out;
    parent->mine.colour = colour;
    parent->mine.key = key;
    ncclGetUniqueId(&parent->mine.id);
    return set_about(parent, ZR_NCCL_SPLITTING, say(parent));
}

PUBLIC int ncclCommFinalize(struct comm *comm)
{
    int code = check(comm, "an end");
    return code == OK ? set_about(comm, ZR_NCCL_FINALIZING, NULL) : code;
}

PUBLIC int ncclCommDestroy(struct comm *comm)
{
    int code = check(comm, "a destruction");
    if (code == OK && comm->outstanding > 0)
        code = report(INVALID_USAGE, "a communicator ends while work of it is in a stream");
    return code == OK ? end(comm) : code;
}

/* Its work ends as it is. */
PUBLIC int ncclCommAbort(struct comm *comm)
{
    if (!comm || comm->has_ended)
        return report(INVALID_ARGUMENT, "an abort of a communicator that has ended");
    comm->aborted = 1;
    driver(); /* passes the driver's lock: no step of it is under way any more */
    if (comm->child)
        ncclCommAbort(comm->child);
    return end(comm);
}

PUBLIC int ncclCommGetAsyncError(struct comm *comm, int *error)
{
    if (!comm || comm->has_ended)
        return report(INVALID_ARGUMENT, "a communicator that has ended is asked how it is");
    *error = comm->doing ? go_on(comm) : comm->error;
    return OK;
}

PUBLIC int ncclCommRegister(struct comm *comm, void *data, size_t bytes, void **handle)
{
    int code = check(comm, "a registration");
    control->registrations++;
    *handle = data;
    return code == OK && bytes > 0 ? OK : INVALID_ARGUMENT;
}

PUBLIC const char *ncclGetLastError(struct comm *comm)
{
    (void)comm;
    return control->report;
}

PUBLIC const char *ncclGetErrorString(int error)
{
    static const char *const texts[] = {"no error",       "unhandled CUDA error", "system error",
                                        "internal error", "invalid argument",     "invalid usage",
                                        "remote error",   "in progress"};
    return error >= 0 && error < 8 ? texts[error] : "unknown error";
}
