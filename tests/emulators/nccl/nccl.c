/* nccl.c: an emulated libnccl.so.2, on which the NCCL communicator runs where there is no GPU. Ranks are
 * processes of this machine; data passes through a file of mailboxes in /dev/shm, one for each pair. Strict
 * about groups, ranks, types and sizes; work ends inside the call that starts it. Sums are taken from the
 * last rank to the first: NCCL promises no order, and whoever counts on rank order must notice. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

enum { OK = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { UINT8 = 1, FP16 = 6, FP32 = 7, BF16 = 9, SUM = 0, AVERAGE = 4, FIRST_OWN_SUM = 100 };
enum { MAIL_BYTES = 32 << 10, MOST_OPERATIONS = 1024, MOST_RANKS = 16 };

/* For the test: what has been called, what ncclGetVersion() says, and when a silent rank is one that is gone.
 */
PUBLIC struct {
    int version;
    unsigned collectives, transfers, registrations, communicators;
    int silence_s;
} zr_nccl_emulator = {.version = 22809, .silence_s = 120};

struct mailbox {
    _Alignas(64) _Atomic unsigned full;
    size_t bytes; /* of the whole message, to see that both sides mean the same */
    char data[MAIL_BYTES];
};

struct id {
    char name[128];
};

struct comm {
    int rank, ranks;
    struct mailbox *mail; /* [from * ranks + to] */
    size_t mail_bytes;
    char name[128];
    float scale; /* of the one operator that can be made at a time */
    int error;
};

struct operation {
    struct comm *comm;
    char *data;
    size_t bytes, done;
    int peer, sends;
};

static _Thread_local struct operation queue[MOST_OPERATIONS];
static _Thread_local int queued, depth;

static size_t type_bytes(int type)
{
    return type == UINT8 ? 1 : type == FP32 ? 4 : type == FP16 || type == BF16 ? 2 : 0;
}

/* One chunk of an operation, if its mailbox is ready; messages of a pair go one after the other. */
static int move(struct operation *op)
{
    int me = op->comm->rank, ranks = op->comm->ranks;
    struct mailbox *box = &op->comm->mail[op->sends ? me * ranks + op->peer : op->peer * ranks + me];
    size_t left = op->bytes - op->done, some = left < MAIL_BYTES ? left : MAIL_BYTES;
    if (atomic_load(&box->full) != (unsigned)!op->sends)
        return 0;
    if (!op->sends && box->bytes != op->bytes)
        return -1;
    if (op->sends) {
        memcpy(box->data, op->data + op->done, some);
        box->bytes = op->bytes;
    } else {
        memcpy(op->data + op->done, box->data, some);
    }
    op->done += some;
    atomic_store(&box->full, (unsigned)op->sends);
    return 1;
}

static int is_first(int index)
{
    for (int i = 0; i < index; i++)
        if (queue[i].done < queue[i].bytes && queue[i].peer == queue[index].peer &&
            queue[i].sends == queue[index].sends)
            return 0;
    return 1;
}

static int run_queue(void)
{
    struct timespec moved, now;
    int left = queued, count = queued;
    clock_gettime(CLOCK_MONOTONIC, &moved);
    queued = 0;
    while (left > 0) {
        int any = 0;
        left = 0;
        for (int i = 0; i < count; i++) {
            if (queue[i].done == queue[i].bytes)
                continue;
            int result = is_first(i) ? move(&queue[i]) : 0;
            if (result < 0)
                return queue[i].comm->error = INVALID_USAGE;
            any |= result;
            left += queue[i].done < queue[i].bytes;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (any)
            moved = now;
        else if (now.tv_sec - moved.tv_sec > zr_nccl_emulator.silence_s)
            return queue[0].comm->error = REMOTE_ERROR;
        else
            nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
    }
    return OK;
}

static int add(struct comm *comm, void *data, size_t bytes, int peer, int sends)
{
    if (!comm || peer < 0 || peer >= comm->ranks || peer == comm->rank || (!data && bytes > 0) ||
        queued == MOST_OPERATIONS)
        return INVALID_ARGUMENT;
    queue[queued++] =
        (struct operation){.comm = comm, .data = data, .bytes = bytes, .peer = peer, .sends = sends};
    return depth > 0 ? OK : run_queue();
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
    return --depth > 0 ? OK : run_queue();
}

PUBLIC int ncclSend(const void *data, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    (void)stream;
    zr_nccl_emulator.transfers++;
    return type_bytes(type) ? add(comm, (void *)data, count * type_bytes(type), peer, 1) : INVALID_ARGUMENT;
}

PUBLIC int ncclRecv(void *data, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    (void)stream;
    zr_nccl_emulator.transfers++;
    return type_bytes(type) ? add(comm, data, count * type_bytes(type), peer, 0) : INVALID_ARGUMENT;
}

/* ---- Collectives --------------------------------------------------------------------------------------- */

/* Everybody's `bytes` at from + p * step go to p; what comes lies at to + p * to_step. NULL: nothing. */
static int cross(struct comm *comm, const char *from, size_t step, char *to, size_t to_step, size_t bytes)
{
    if (!comm || depth > 0)
        return INVALID_USAGE; /* collectives in groups are not emulated */
    depth++;
    for (int p = 0; p < comm->ranks; p++)
        if (p != comm->rank) {
            if (from)
                add(comm, (char *)from + (size_t)p * step, bytes, p, 1);
            if (to)
                add(comm, to + (size_t)p * to_step, bytes, p, 0);
        }
    return ncclGroupEnd();
}

PUBLIC int ncclAllGather(const void *from, void *to, size_t count, int type, struct comm *comm, void *stream)
{
    size_t bytes = count * type_bytes(type);
    (void)stream;
    zr_nccl_emulator.collectives++;
    memmove((char *)to + (size_t)comm->rank * bytes, from, bytes);
    return cross(comm, (char *)to + (size_t)comm->rank * bytes, 0, to, bytes, bytes);
}

PUBLIC int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct comm *comm,
                         void *stream)
{
    size_t bytes = count * type_bytes(type);
    (void)stream;
    zr_nccl_emulator.collectives++;
    if (root < 0 || root >= comm->ranks)
        return INVALID_ARGUMENT;
    if (comm->rank == root) {
        memmove(to, from, bytes);
        return cross(comm, to, 0, NULL, 0, bytes);
    }
    return add(comm, to, bytes, root, 0);
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

/* Sums [ranks][count] into `to`, from the last rank to the first. */
static void fold(struct comm *comm, int type, int sum, const char *all, size_t count, char *to)
{
    size_t unit = type_bytes(type);
    float scale = sum >= FIRST_OWN_SUM ? comm->scale : 1;
    for (size_t i = 0; i < count; i++) {
        float total = 0;
        for (int p = comm->ranks - 1; p >= 0; p--)
            total += scale * load(type, all + ((size_t)p * count + i) * unit);
        store(type, to + i * unit, sum == AVERAGE ? total / (float)comm->ranks : total);
    }
}

PUBLIC int ncclReduceScatter(const void *from, void *to, size_t count, int type, int sum, struct comm *comm,
                             void *stream)
{
    size_t bytes = count * type_bytes(type);
    char *all = malloc(bytes * (size_t)comm->ranks + 1);
    (void)stream;
    zr_nccl_emulator.collectives++;
    memcpy(all + (size_t)comm->rank * bytes, (const char *)from + (size_t)comm->rank * bytes, bytes);
    int result = all ? cross(comm, from, bytes, all, bytes, bytes) : SYSTEM_ERROR;
    if (result == OK)
        fold(comm, type, sum, all, count, to);
    free(all);
    return result;
}

PUBLIC int ncclAllReduce(const void *from, void *to, size_t count, int type, int sum, struct comm *comm,
                         void *stream)
{
    size_t bytes = count * type_bytes(type);
    char *all = malloc(bytes * (size_t)comm->ranks + 1);
    (void)stream;
    zr_nccl_emulator.collectives++;
    memcpy(all + (size_t)comm->rank * bytes, from, bytes);
    int result = all ? cross(comm, from, 0, all, bytes, bytes) : SYSTEM_ERROR;
    if (result == OK)
        fold(comm, type, sum, all, count, to);
    free(all);
    return result;
}

PUBLIC int ncclRedOpCreatePreMulSum(int *sum, void *scalar, int type, int residence, struct comm *comm)
{
    if (type != FP32 || residence != 1)
        return INVALID_ARGUMENT;
    memcpy(&comm->scale, scalar, sizeof(comm->scale));
    *sum = FIRST_OWN_SUM;
    return OK;
}

PUBLIC int ncclRedOpDestroy(int sum, struct comm *comm)
{
    return sum == FIRST_OWN_SUM && comm ? OK : INVALID_ARGUMENT;
}

/* ---- Communicators ------------------------------------------------------------------------------------- */

PUBLIC int ncclGetVersion(int *version)
{
    *version = zr_nccl_emulator.version;
    return OK;
}

PUBLIC int ncclGetUniqueId(struct id *id)
{
    static unsigned count;
    memset(id, 0, sizeof(*id));
    snprintf(id->name, sizeof(id->name), "/zr-nccl-%d-%u", (int)getpid(), count++);
    return OK;
}

PUBLIC int ncclCommInitRank(struct comm **out, int ranks, struct id id, int rank)
{
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks || id.name[0] != '/')
        return INVALID_ARGUMENT;
    size_t bytes = (size_t)(ranks * ranks) * sizeof(struct mailbox);
    int fd = shm_open(id.name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return SYSTEM_ERROR;
    void *mail = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    struct comm *comm = calloc(1, sizeof(*comm));
    if (mail == MAP_FAILED || !comm)
        return SYSTEM_ERROR;
    *comm = (struct comm){.rank = rank, .ranks = ranks, .mail = mail, .mail_bytes = bytes};
    memcpy(comm->name, id.name, sizeof(comm->name));
    char nothing = 0, all[MOST_RANKS];
    int result = ranks > 1 ? cross(comm, &nothing, 0, all, 1, 1) : OK; /* all are there: the name can go */
    if (rank == 0)
        shm_unlink(id.name);
    zr_nccl_emulator.communicators++;
    *out = comm;
    return result;
}

static int end(struct comm *comm)
{
    munmap(comm->mail, comm->mail_bytes);
    free(comm);
    zr_nccl_emulator.communicators--;
    return OK;
}

PUBLIC int ncclCommDestroy(struct comm *comm)
{
    return comm ? end(comm) : INVALID_ARGUMENT;
}

PUBLIC int ncclCommAbort(struct comm *comm)
{
    return comm ? end(comm) : INVALID_ARGUMENT;
}

PUBLIC int ncclCommGetAsyncError(struct comm *comm, int *error)
{
    *error = comm->error;
    return OK;
}

PUBLIC int ncclCommRegister(struct comm *comm, void *data, size_t bytes, void **handle)
{
    if (!comm || !data || bytes == 0)
        return INVALID_ARGUMENT;
    zr_nccl_emulator.registrations++;
    *handle = data;
    return OK;
}

PUBLIC int ncclCommDeregister(struct comm *comm, void *handle)
{
    if (!comm || !handle)
        return INVALID_ARGUMENT;
    zr_nccl_emulator.registrations--;
    return OK;
}

PUBLIC const char *ncclGetErrorString(int error)
{
    static const char *const texts[] = {"no error",       "unhandled CUDA error", "system error",
                                        "internal error", "invalid argument",     "invalid usage",
                                        "remote error"};
    return error >= 0 && error < 7 ? texts[error] : "unknown error";
}
