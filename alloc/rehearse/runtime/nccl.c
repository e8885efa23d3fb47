/* nccl.c: NCCL (libnccl.so.2) between the processes of a rehearsal: communicators, groups and messages of
 * pairs. See nccl.h. */
#include "alloc/rehearse/runtime/nccl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/rehearse/driver/emulator.h"

/* That of PyTorch 2.15. */
enum { VERSION = 23007 };
enum { NO_COLOUR = -1, CONFIG_MAGIC = (int)0xcafebeef, NOT_SET = -2147483647 - 1, RESULTS_COUNT = 9 };
/* For ranks that do not come: PyTorch's default for a collective. */
#define START_NS (600 * UINT64_C(1000000000))

struct id {
    char name[NCCL_NAME_BYTES];
};

/* ncclConfig_t of 2.18; later members are behind it. */
struct config {
    size_t bytes;
    unsigned magic, version;
    int blocking, cluster, channels_min, channels_max;
    const char *network;
    int shares_with_parent;
};

static _Thread_local struct nccl_work *group;
static _Thread_local struct nccl_communicator *starting;
static _Thread_local int depth;

/* ---- Pairs and groups ---------------------------------------------------------------------------------- */

static int wait_for_ranks(struct nccl_communicator *comm);

/* What a group defers to its end: starts, and messages of pairs. */
static int submit_group(void)
{
    int code = NCCL_SUCCESS;
    while (starting) {
        struct nccl_communicator *comm = starting;
        starting = comm->next;
        int started = wait_for_ranks(comm);
        code = code == NCCL_SUCCESS ? started : code;
    }
    while (group) {
        struct nccl_work *work = group;
        group = work->next;
        int submitted = nccl_work_submit(work);
        code = code == NCCL_SUCCESS ? submitted : code;
    }
    return code;
}

/* Messages of a group and a stream are under way together. */
static int transfer(struct nccl_communicator *comm, struct nccl_message message, size_t count, int type,
                    zr_cu_stream stream)
{
    struct nccl_work **link = &group;
    if (!comm || !nccl_type_bytes(type) || message.peer < 0 || message.peer >= comm->board.ranks)
        return nccl_fail(NCCL_INVALID_ARGUMENT,
                         "a message without a communicator, or with a wrong type or peer");
    message.bytes = count * nccl_type_bytes(type);
    while (*link && ((*link)->comm != comm || (*link)->stream != stream))
        link = &(*link)->next;
    if (!*link) {
        *link = nccl_work_create(comm, message.sends ? "ncclSend" : "ncclRecv", stream);
        (*link)->kind = NCCL_PAIR;
    }
    nccl_work_add(*link, message);
    return depth > 0 ? NCCL_SUCCESS : submit_group();
}

NCCL_ANSWER int ncclSend(const void *from, size_t count, int type, int peer, struct nccl_communicator *comm,
                         zr_cu_stream stream)
{
    return transfer(comm,
                    (struct nccl_message){.at = (zr_cu_address)(uintptr_t)from, .peer = peer, .sends = true},
                    count, type, stream);
}

NCCL_ANSWER int ncclRecv(void *to, size_t count, int type, int peer, struct nccl_communicator *comm,
                         zr_cu_stream stream)
{
    return transfer(comm, (struct nccl_message){.at = (zr_cu_address)(uintptr_t)to, .peer = peer}, count,
                    type, stream);
}

NCCL_ANSWER int ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

NCCL_ANSWER int ncclGroupEnd(void)
{
    if (depth == 0)
        return nccl_fail(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    return --depth > 0 ? NCCL_SUCCESS : submit_group();
}

/* ---- Communicators ------------------------------------------------------------------------------------- */

NCCL_ANSWER int ncclGetVersion(int *version)
{
    *version = VERSION;
    return NCCL_SUCCESS;
}

NCCL_ANSWER int ncclGetUniqueId(struct id *id)
{
    static atomic_uint count;
    *id = (struct id){0};
    snprintf(id->name, sizeof id->name, "nccl-%d-%llx-%u", (int)getpid(),
             (unsigned long long)zr_emulator.started(getpid()), atomic_fetch_add(&count, 1));
    return NCCL_SUCCESS;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* Two ranks of one device: the first of them; -1: there are none. */
static int same_device(const struct nccl_board *board)
{
    for (int i = 0; i < board->ranks; i++)
        for (int j = 0; j < i; j++)
            if (board->seats[i].device == board->seats[j].device)
                return j;
    return -1;
}

static int wait_for_ranks(struct nccl_communicator *comm)
{
    const struct nccl_board *board = &comm->board;
    const uint64_t start = nccl_now_ns();
    for (;;) { /* a rank that has left may have come last: others are looked for afterwards */
        int gone = nccl_comm_gone(comm, NULL), missing = nccl_board_missing(board);
        if (missing < 0)
            break;
        if (gone >= 0) {
            nccl_comm_say_gone(comm, gone, "its start");
            return nccl_fail(NCCL_REMOTE_ERROR, "rank %d has ended while rank %d was to come", gone, missing);
        }
        if (nccl_now_ns() - start > START_NS)
            return nccl_fail(NCCL_SYSTEM_ERROR, "rank %d has not come within ten minutes", missing);
        nap();
    }
    if (board->rank == 0)
        nccl_board_unlink(board);
    int twice = same_device(board);
    if (twice >= 0)
        return nccl_fail(NCCL_INVALID_USAGE,
                         "Duplicate GPU detected : rank %d and another are both on CUDA device %x", twice,
                         (unsigned)board->seats[twice].device << 12);
    return NCCL_SUCCESS;
}

static struct nccl_communicator *allocate(const struct config *config)
{
    struct nccl_communicator *comm = calloc(1, sizeof *comm);
    if (!comm)
        abort();
    comm->users_count = 1;
    if (config && config->magic == (unsigned)CONFIG_MAGIC && config->channels_max != NOT_SET)
        comm->channels_max = config->channels_max;
    return comm;
}

/* Takes a seat; others are waited for later. NULL on error. The device is the current one. */
static struct nccl_communicator *join(int ranks, const char *name, int rank, const struct config *config)
{
    struct nccl_communicator *comm = allocate(config);
    if (cudaFree(NULL) == 0 && cuCtxGetCurrent(&comm->context) == ZR_CU_SUCCESS &&
        cuCtxGetDevice(&comm->device) == ZR_CU_SUCCESS &&
        nccl_board_open(&comm->board, name, ranks, rank,
                        emulated_attribute(ZR_CU_ATTRIBUTE_PCI_BUS, comm->device)))
        return comm;
    nccl_fail(NCCL_SYSTEM_ERROR, "a communicator needs a device and the rehearsal's folder: %s",
              strerror(errno));
    free(comm);
    return NULL;
}

static int end(struct nccl_communicator *comm)
{
    atomic_store(&comm->aborted, 1); /* for works of a context that has ended */
    nccl_comm_release_buffers(comm);
    nccl_board_close(&comm->board);
    nccl_comm_drop(comm);
    return NCCL_SUCCESS;
}

NCCL_ANSWER int ncclCommInitRankConfig(struct nccl_communicator **out, int ranks, struct id id, int rank,
                                       const struct config *config)
{
    *out = NULL;
    if (ranks < 1 || ranks > NCCL_RANKS_MAX || rank < 0 || rank >= ranks)
        return nccl_fail(NCCL_INVALID_ARGUMENT, "rank %d of %d: a rehearsal has at most %d ranks", rank,
                         ranks, NCCL_RANKS_MAX);
    struct nccl_communicator *comm = join(ranks, id.name, rank, config);
    if (!comm)
        return NCCL_SYSTEM_ERROR;
    *out = comm;
    if (depth > 0) {
        comm->next = starting;
        starting = comm;
        return NCCL_SUCCESS;
    }
    int code = wait_for_ranks(comm);
    if (code != NCCL_SUCCESS) {
        end(comm);
        *out = NULL;
    }
    return code;
}

NCCL_ANSWER int ncclCommInitRank(struct nccl_communicator **out, int ranks, struct id id, int rank)
{
    return ncclCommInitRankConfig(out, ranks, id, rank, NULL);
}

NCCL_ANSWER int ncclCommInitRankScalable(struct nccl_communicator **out, int ranks, int rank, int ids_count,
                                         struct id *ids, const struct config *config)
{
    return ids_count > 0 ? ncclCommInitRankConfig(out, ranks, ids[0], rank, config)
                         : nccl_fail(NCCL_INVALID_ARGUMENT, "a communicator without an identifier");
}

/* All ranks are this process's. */
NCCL_ANSWER int ncclCommInitAll(struct nccl_communicator **out, int count, const int *devices)
{
    int before = 0, made = 0, code = NCCL_SUCCESS;
    struct nccl_communicator *outer = starting;
    struct id id;
    ncclGetUniqueId(&id);
    cudaGetDevice(&before);
    ncclGroupStart();
    for (; made < count && code == NCCL_SUCCESS; made += code == NCCL_SUCCESS) {
        int device = devices ? devices[made] : made;
        if (cudaSetDevice(device) != 0)
            code = nccl_fail(NCCL_INVALID_ARGUMENT, "there is no device %d", device);
        else
            code = ncclCommInitRank(&out[made], count, id, made);
    }
    if (code != NCCL_SUCCESS)
        starting = outer;
    while (code != NCCL_SUCCESS && made > 0) {
        end(out[--made]);
        out[made] = NULL;
    }
    int ended = ncclGroupEnd();
    cudaSetDevice(before);
    return code == NCCL_SUCCESS ? ended : code;
}

/* What the ranks of the parent say about this split. Two places suffice: a rank that says something about the
 * next one has read all about this. */
static int hear(struct nccl_communicator *parent, int colour, int key)
{
    const struct nccl_board *board = &parent->board;
    const uint64_t number = ++parent->splits_count, start = nccl_now_ns();
    struct nccl_said *mine = &board->seats[board->rank].said[number % 2];
    mine->colour = colour;
    mine->key = key;
    atomic_store(&mine->number, number);
    for (int rank = 0; rank < board->ranks; rank++)
        for (;;) {
            bool gone = nccl_board_is_gone(board, rank);
            if (atomic_load(&board->seats[rank].said[number % 2].number) >= number)
                break;
            if (gone || atomic_load(&parent->aborted) || nccl_now_ns() - start > START_NS) {
                nccl_comm_say_gone(parent, rank, "a split");
                return nccl_fail(NCCL_REMOTE_ERROR, "rank %d has not come to a split", rank);
            }
            nap();
        }
    return NCCL_SUCCESS;
}

/* Those of one colour, by their keys. */
NCCL_ANSWER int ncclCommSplit(struct nccl_communicator *parent, int colour, int key,
                              struct nccl_communicator **out, const struct config *config)
{
    char name[NCCL_NAME_BYTES];
    int rank = 0, ranks = 0;
    if (!parent || (colour < 0 && colour != NO_COLOUR))
        return nccl_fail(NCCL_INVALID_ARGUMENT, "a split without a communicator, or with a wrong colour");
    *out = NULL;
    int code = hear(parent, colour, key);
    if (code != NCCL_SUCCESS || colour == NO_COLOUR)
        return code;
    for (int i = 0; i < parent->board.ranks; i++) {
        const struct nccl_said *said = &parent->board.seats[i].said[parent->splits_count % 2];
        ranks += said->colour == colour;
        rank += said->colour == colour && (said->key < key || (said->key == key && i < parent->board.rank));
    }
    int length = snprintf(name, sizeof name, "%s.%llu.%d", parent->board.name,
                          (unsigned long long)parent->splits_count, colour);
    if (length >= (int)sizeof name)
        return nccl_fail(NCCL_INVALID_USAGE, "a communicator was split too often");
    cuCtxPushCurrent_v2(parent->context);
    struct nccl_communicator *comm = join(ranks, name, rank, config);
    cuCtxPopCurrent_v2(NULL);
    if (!comm)
        return NCCL_SYSTEM_ERROR;
    comm->shared = config && config->magic == (unsigned)CONFIG_MAGIC && config->shares_with_parent == 1;
    if (config == NULL)
        comm->channels_max = parent->channels_max;
    *out = comm;
    code = wait_for_ranks(comm);
    if (code != NCCL_SUCCESS) {
        end(comm);
        *out = NULL;
    }
    return code;
}

/* False: the context has ended, and its works with it. */
static bool context_lives(const struct nccl_communicator *comm)
{
    int device;
    if (cuCtxPushCurrent_v2(comm->context) != ZR_CU_SUCCESS)
        return false;
    bool lives = cuCtxGetDevice(&device) == ZR_CU_SUCCESS;
    cuCtxPopCurrent_v2(NULL);
    return lives;
}

NCCL_ANSWER int ncclCommFinalize(struct nccl_communicator *comm)
{
    if (!comm)
        return nccl_fail(NCCL_INVALID_ARGUMENT, "an end without a communicator");
    /* The device's clock may be far behind: ever more time passes. */
    const uint64_t most_ticks = 1 << 20;
    for (uint64_t ticks = 1;
         atomic_load(&comm->works_count) > 0 && !atomic_load(&comm->aborted) && context_lives(comm);
         ticks = ticks < most_ticks ? 2 * ticks : ticks) {
        zr_emulator.poll(ticks);
        nap();
    }
    return NCCL_SUCCESS;
}

NCCL_ANSWER int ncclCommDestroy(struct nccl_communicator *comm)
{
    int code = comm ? ncclCommFinalize(comm) : NCCL_SUCCESS;
    return comm && code == NCCL_SUCCESS ? end(comm) : code;
}

/* Work in streams ends as it is. */
NCCL_ANSWER int ncclCommAbort(struct nccl_communicator *comm)
{
    if (!comm)
        return NCCL_SUCCESS;
    atomic_store(&comm->aborted, 1);
    zr_emulator.poll(0); /* no step is under way afterwards, and none looks at the board */
    return end(comm);
}

NCCL_ANSWER int ncclCommGetAsyncError(struct nccl_communicator *comm, int *error)
{
    if (!comm)
        return nccl_fail(NCCL_INVALID_ARGUMENT, "a question without a communicator");
    *error = atomic_load(&comm->error);
    return NCCL_SUCCESS;
}

NCCL_ANSWER int ncclCommCount(const struct nccl_communicator *comm, int *out)
{
    *out = comm ? comm->board.ranks : 0;
    return comm ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

NCCL_ANSWER int ncclCommUserRank(const struct nccl_communicator *comm, int *out)
{
    *out = comm ? comm->board.rank : 0;
    return comm ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

/* The second and the fourth statistic are bytes that can be released, which these cannot. */
NCCL_ANSWER int ncclCommMemStats(struct nccl_communicator *comm, int which, uint64_t *out)
{
    enum { PERSISTENT = 2, TOTAL = 3 };
    *out = comm && (which == PERSISTENT || which == TOTAL) ? comm->buffers_bytes : 0;
    return comm ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

/* ---- Memory of the program's --------------------------------------------------------------------------- */

NCCL_ANSWER int ncclMemAlloc(void **out, size_t bytes)
{
    return cudaMalloc(out, bytes) == 0 ? NCCL_SUCCESS
                                       : nccl_fail(NCCL_CUDA_ERROR, "out of memory for %zu bytes", bytes);
}

NCCL_ANSWER int ncclMemFree(void *pointer)
{
    return cudaFree(pointer) == 0 ? NCCL_SUCCESS : NCCL_CUDA_ERROR;
}

NCCL_ANSWER int ncclCommRegister(const struct nccl_communicator *comm, void *data, size_t bytes,
                                 void **handle)
{
    *handle = data;
    return comm && data && bytes > 0 ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

NCCL_ANSWER int ncclCommWindowRegister(struct nccl_communicator *comm, void *data, size_t bytes,
                                       void **window, int flags)
{
    (void)flags;
    return ncclCommRegister(comm, data, bytes, window);
}

NCCL_ANSWER int ncclWinGetUserPtr(struct nccl_communicator *comm, void *window, void **out)
{
    *out = window;
    return comm ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

/* ---- What is not there --------------------------------------------------------------------------------- */

#define NOT_THERE(name)                                                                                      \
    NCCL_ANSWER int name(void);                                                                              \
    int name(void)                                                                                           \
    {                                                                                                        \
        return nccl_fail(NCCL_INVALID_USAGE, "%s is not simulated", #name);                                  \
    }
NOT_THERE(ncclCommGetUniqueId)
NOT_THERE(ncclCommGrow)
NOT_THERE(ncclCommShrink)
NOT_THERE(ncclCommRevoke)
NOT_THERE(ncclCommSuspend)
NOT_THERE(ncclCommResume)
NOT_THERE(ncclDevCommCreate)
NOT_THERE(ncclGetPeerDevicePointer)
NOT_THERE(ncclGetLsaMultimemDevicePointer)
NOT_THERE(ncclPutSignal)
NOT_THERE(ncclSignal)
NOT_THERE(ncclWaitSignal)
NOT_THERE(ncclGroupSimulateEnd)

NCCL_ANSWER const char *ncclGetLastError(struct nccl_communicator *comm)
{
    (void)comm;
    return nccl_last_words();
}

NCCL_ANSWER const char *ncclGetErrorString(int code)
{
    static const char *const words[RESULTS_COUNT] = {"no error",
                                                     "unhandled cuda error",
                                                     "unhandled system error",
                                                     "internal error",
                                                     "invalid argument",
                                                     "invalid usage",
                                                     "remote process exited or there was a network error",
                                                     "NCCL operation in progress",
                                                     "timeout"};
    return code >= 0 && code < RESULTS_COUNT ? words[code] : "unknown result code";
}
