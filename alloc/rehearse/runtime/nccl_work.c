/* nccl_work.c: what NCCL's calls come to in a stream: messages that are carried, sums, and the memory that
 * NCCL takes for itself. See nccl.h. */
#include "alloc/rehearse/runtime/nccl.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/rehearse/driver/emulator.h"

#define SECOND_NS   UINT64_C(1000000000)
#define LOOK_NS     (SECOND_NS / 10) /* between two looks for processes that have ended */
#define PATIENCE_NS (30 * SECOND_NS) /* with one that has ended, for a program that does not read errors */

static _Thread_local char last_words[256];

int nccl_fail(int code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(last_words, sizeof last_words, format, list);
    va_end(list);
    return code;
}

uint64_t nccl_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

size_t nccl_longest_bytes(const struct nccl_communicator *comm)
{
    const char *keep = getenv("ZR_EMULATOR_KEEP");
    size_t bytes = keep && *keep ? strtoull(keep, NULL, 0) : NCCL_MAIL_BYTES;
    return bytes < comm->board.mail_bytes ? bytes : comm->board.mail_bytes;
}

const char *nccl_last_words(void)
{
    return last_words;
}

/* ---- Lifetimes ----------------------------------------------------------------------------------------- */

void nccl_comm_drop(struct nccl_communicator *comm)
{
    if (atomic_fetch_sub(&comm->users_count, 1) == 1)
        free(comm);
}

static void destroy(struct nccl_work *work)
{
    free(work->messages);
    free(work->all);
    free(work);
}

/* Works that wait go on while the program does something else: a GPU would. The thread lives as long as the
 * process. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    bool there;                /* lock */
    unsigned long works_count; /* lock: in streams, of all communicators */
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .wanted = PTHREAD_COND_INITIALIZER};

static void *work_on(void *unused)
{
    (void)unused;
    /* Time passes in a program that calls nothing, as when it waits for another rank on the host. */
    enum { IDLE_LOOKS = 50, TICKS = 1000 };
    uint64_t calls_count = 0;
    for (unsigned idle = 0;;) {
        pthread_mutex_lock(&engine.lock);
        while (engine.works_count == 0)
            pthread_cond_wait(&engine.wanted, &engine.lock);
        pthread_mutex_unlock(&engine.lock);
        const uint64_t count = zr_emulator.calls(NULL);
        idle = count == calls_count ? idle + 1 : 0;
        calls_count = count;
        zr_emulator.poll(idle > IDLE_LOOKS ? TICKS : 0);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return NULL;
}

static void count_work(struct nccl_communicator *comm, int change)
{
    pthread_t thread;
    atomic_fetch_add(&comm->works_count, change);
    pthread_mutex_lock(&engine.lock);
    engine.works_count += (unsigned long)change;
    if (!engine.there && pthread_create(&thread, NULL, work_on, NULL) == 0) {
        engine.there = true;
        pthread_detach(thread);
    }
    pthread_cond_signal(&engine.wanted);
    pthread_mutex_unlock(&engine.lock);
}

/* ---- Carrying out, under the driver's lock ------------------------------------------------------------- */

int nccl_comm_gone(struct nccl_communicator *comm, const struct nccl_work *work)
{
    uint64_t now = nccl_now_ns();
    if (now - comm->looked < LOOK_NS)
        return -1;
    comm->looked = now;
    for (size_t i = 0; work && i < work->messages_count; i++)
        if (!work->messages[i].done && nccl_board_is_gone(&comm->board, work->messages[i].peer))
            return work->messages[i].peer;
    for (int rank = 0; !work && rank < comm->board.ranks; rank++)
        if (nccl_board_is_gone(&comm->board, rank))
            return rank;
    return -1;
}

void nccl_comm_say_gone(const struct nccl_communicator *comm, int rank, const char *what)
{
    fprintf(stderr, "zr: NCCL: rank %d waits in %s for rank %d, whose process %d has ended\n",
            comm->board.rank, what, rank, (int)comm->board.seats[rank].pid);
}

/* Whether the work has waited long enough for a rank that is gone. rank: one that was gone before its
 * messages were looked for; -1: none. */
static bool is_hopeless(struct nccl_communicator *comm, const struct nccl_work *work, int rank)
{
    bool waits = false;
    for (size_t i = 0; rank >= 0 && i < work->messages_count; i++)
        waits = waits || (!work->messages[i].done && work->messages[i].peer == rank);
    if (waits && comm->missed == 0) {
        comm->missed = nccl_now_ns();
        atomic_store(&comm->error, NCCL_REMOTE_ERROR);
        nccl_comm_say_gone(comm, rank, work->name);
    }
    return comm->missed && nccl_now_ns() - comm->missed > PATIENCE_NS;
}

static bool is_zero(const unsigned char *data, size_t bytes)
{
    return bytes == 0 || (data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0);
}

/* Zeros take no memory of the host. */
static void put(zr_cu_address to, const unsigned char *data, size_t bytes, bool zeros, bool known)
{
    zr_emulator.note(to, bytes, known);
    if (zeros)
        zr_emulator.clear(to, bytes);
    else
        zr_emulator.write(to, data, bytes);
}

static bool in_reach(const struct nccl_work *work, zr_cu_address at, size_t bytes, bool writes)
{
    const char *why = bytes > 0 ? zr_emulator.reach(at, bytes, writes) : NULL;
    if (why)
        fprintf(stderr, "zr: NCCL: %s of rank %d %s %zu bytes at %#llx: that memory %s\n", work->name,
                work->comm->board.rank, writes ? "writes" : "reads", bytes, (unsigned long long)at, why);
    return !why;
}

/* Whether the memory of what is not done is there. */
static bool all_in_reach(const struct nccl_work *work)
{
    bool own = work->begun || (in_reach(work, work->own_from, work->own_bytes, false) &&
                               (work->all || in_reach(work, work->own_to, work->own_bytes, true)));
    for (size_t i = 0; own && i < work->messages_count; i++) {
        const struct nccl_message *message = &work->messages[i];
        own = message->done || message->stage || in_reach(work, message->at, message->bytes, !message->sends);
    }
    return own && (!work->all || in_reach(work, work->result,
                                          work->elements * nccl_type_bytes(work->reduction.type), true));
}

static void begin_work(struct nccl_work *work)
{
    work->begun = true;
    work->known = zr_emulator.known(work->own_from, work->own_bytes);
    if (work->all) {
        zr_emulator.read(work->own_from, work->all + (size_t)work->comm->board.rank * work->own_bytes,
                         work->own_bytes);
    } else if (work->own_from != work->own_to && work->own_bytes > nccl_longest_bytes(work->comm)) {
        put(work->own_to, NULL, work->own_bytes, true, false);
    } else if (work->own_from != work->own_to && work->own_bytes > 0) {
        unsigned char *copy = malloc(work->own_bytes);
        if (!copy)
            abort();
        zr_emulator.read(work->own_from, copy, work->own_bytes);
        put(work->own_to, copy, work->own_bytes, is_zero(copy, work->own_bytes), work->known);
        free(copy);
    }
}

/* Messages of a pair go in the order of the calls. */
static bool send_now(const struct nccl_message *message, struct nccl_mailbox *box)
{
    if (atomic_load(&box->sent) != message->turn || atomic_load(&box->received) != message->turn)
        return false;
    zr_emulator.read(message->at, box->data, message->bytes);
    box->bytes = message->bytes;
    box->zeros = is_zero(box->data, message->bytes);
    box->known = zr_emulator.known(message->at, message->bytes);
    atomic_store(&box->sent, message->turn + 1);
    return true;
}

static bool receive_now(struct nccl_work *work, const struct nccl_message *message, struct nccl_mailbox *box)
{
    if (atomic_load(&box->sent) != message->turn + 1 || atomic_load(&box->received) != message->turn)
        return false;
    size_t bytes = box->bytes < message->bytes ? box->bytes : message->bytes;
    if (box->bytes != message->bytes) {
        fprintf(stderr, "zr: NCCL: rank %d expects %zu bytes of rank %d in %s, which sends %zu\n",
                work->comm->board.rank, message->bytes, message->peer, work->name, box->bytes);
        atomic_store(&work->comm->error, NCCL_INVALID_USAGE);
    }
    if (message->stage) {
        memcpy(message->stage, box->data, bytes);
        work->known = work->known && box->known;
    } else {
        put(message->at, box->data, bytes, box->zeros, box->known);
    }
    atomic_store(&box->received, message->turn + 1);
    return true;
}

/* How many messages have not arrived. */
static size_t carry(struct nccl_work *work)
{
    const struct nccl_board *board = &work->comm->board;
    size_t left = 0;
    for (size_t i = 0; i < work->messages_count; i++) {
        struct nccl_message *message = &work->messages[i];
        if (message->done)
            continue;
        int from = message->sends ? board->rank : message->peer,
            to = message->sends ? message->peer : board->rank;
        struct nccl_mailbox *box = nccl_board_box(board, work->kind, from, to);
        if (message->lost && !message->sends)
            put(message->at, NULL, message->bytes, true, false);
        message->done =
            message->lost || (message->sends ? send_now(message, box) : receive_now(work, message, box));
        left += !message->done;
    }
    return left;
}

static void finish_reduction(const struct nccl_work *work)
{
    const size_t bytes = work->elements * nccl_type_bytes(work->reduction.type);
    nccl_reduce(&work->reduction, work->all, work->all, work->comm->board.ranks, work->elements);
    put(work->result, work->all, bytes, is_zero(work->all, bytes), work->known);
}

static enum zr_emulator_step step(void *state)
{
    struct nccl_work *work = state;
    struct nccl_communicator *comm = work->comm;
    enum zr_emulator_step end = ZR_EMULATOR_DONE;
    if (!atomic_load(&comm->aborted)) {
        if (!all_in_reach(work)) {
            end = ZR_EMULATOR_WRONG;
        } else {
            if (!work->begun)
                begin_work(work);
            int gone = nccl_comm_gone(comm, work);
            size_t left = carry(work);
            if (left > 0 && !is_hopeless(comm, work, gone))
                return ZR_EMULATOR_AGAIN;
            if (left == 0 && work->all)
                finish_reduction(work);
        }
    }
    count_work(comm, -1);
    destroy(work);
    nccl_comm_drop(comm);
    return end;
}

/* ---- NCCL's own memory --------------------------------------------------------------------------------- */

/* Connects the ring (peer -1) or a peer. Call with the communicator's context current. */
static int connect(struct nccl_communicator *comm, int peer)
{
    zr_cu_memory *buffers = &comm->buffers[1 + peer];
    size_t bytes =
        peer < 0 ? nccl_memory_of_ring(comm->channels_max) : nccl_memory_of_peer(comm->channels_max);
    zr_cu_properties properties = {.type = ZR_CU_ALLOCATION_PINNED,
                                   .location = {.type = ZR_CU_LOCATION_DEVICE, .id = comm->device}};
    if (*buffers || bytes == 0 || comm->shared || comm->board.ranks == 1 || peer == comm->board.rank)
        return NCCL_SUCCESS;
    zr_cu_result code = cuMemCreate(buffers, bytes, &properties, 0);
    zr_emulator.nccl(comm->device, (int64_t)bytes, code != ZR_CU_SUCCESS);
    if (code != ZR_CU_SUCCESS)
        return nccl_fail(NCCL_CUDA_ERROR, "Failed to CUDA calloc %zu bytes", bytes);
    comm->buffers_bytes += bytes;
    return NCCL_SUCCESS;
}

void nccl_comm_release_buffers(struct nccl_communicator *comm)
{
    const bool current = cuCtxPushCurrent_v2(comm->context) == ZR_CU_SUCCESS;
    for (int i = 0; i < 1 + NCCL_RANKS_MAX; i++)
        if (comm->buffers[i] && cuMemRelease(comm->buffers[i]) == ZR_CU_SUCCESS)
            comm->buffers[i] = 0;
    zr_emulator.nccl(comm->device, -(int64_t)comm->buffers_bytes, false);
    comm->buffers_bytes = 0;
    if (current)
        cuCtxPopCurrent_v2(NULL);
}

/* ---- Submitting ---------------------------------------------------------------------------------------- */

/* Both directions of the link carry messages at one time. */
static struct zr_emulator_transfer transfer_of_pairs(const struct nccl_work *work)
{
    double bytes[2] = {0, 0};
    for (size_t i = 0; i < work->messages_count; i++)
        bytes[work->messages[i].sends] += (double)work->messages[i].bytes;
    return (struct zr_emulator_transfer){.bytes = bytes[0] > bytes[1] ? bytes[0] : bytes[1], .hops = 1};
}

/* A graph that is being captured has no record of the work: nothing is carried when it runs. */
static int put_in_stream(struct nccl_work *work)
{
    struct nccl_communicator *comm = work->comm;
    zr_cu_capture_status capturing = ZR_CU_CAPTURE_NONE;
    int code = NCCL_SUCCESS;
    if (work->kind == NCCL_COLLECTIVE)
        code = connect(comm, -1);
    for (size_t i = 0; work->kind == NCCL_PAIR && i < work->messages_count && code == NCCL_SUCCESS; i++)
        code = connect(comm, work->messages[i].peer);
    cuStreamIsCapturing(work->stream, &capturing);
    if (work->transfer.hops == 0)
        work->transfer = transfer_of_pairs(work);
    if (code != NCCL_SUCCESS || capturing != ZR_CU_CAPTURE_NONE) {
        destroy(work);
        return code;
    }
    for (size_t i = 0; i < work->messages_count; i++) {
        struct nccl_message *message = &work->messages[i];
        if (!message->lost)
            message->turn = comm->turns[work->kind][message->sends][message->peer]++;
    }
    atomic_fetch_add(&comm->users_count, 1);
    count_work(comm, 1);
    if (zr_emulator.work(work->stream, step, work, work->transfer) == ZR_CU_SUCCESS)
        return NCCL_SUCCESS;
    count_work(comm, -1);
    nccl_comm_drop(comm);
    destroy(work);
    return nccl_fail(NCCL_CUDA_ERROR, "the stream is none of the communicator's device");
}

int nccl_work_submit(struct nccl_work *work)
{
    zr_cu_context context = work->comm->context;
    if (cuCtxPushCurrent_v2(context) != ZR_CU_SUCCESS) {
        destroy(work);
        return nccl_fail(NCCL_CUDA_ERROR, "the communicator's context has ended");
    }
    int code = put_in_stream(work);
    cuCtxPopCurrent_v2(NULL);
    return code;
}

struct nccl_work *nccl_work_create(struct nccl_communicator *comm, const char *name, zr_cu_stream stream)
{
    struct nccl_work *made = calloc(1, sizeof *made);
    if (!made)
        abort();
    made->comm = comm;
    made->name = name;
    made->stream = stream;
    return made;
}

void nccl_work_add(struct nccl_work *work, struct nccl_message message)
{
    if (message.bytes == 0)
        return;
    message.lost = message.bytes > nccl_longest_bytes(work->comm);
    struct nccl_message *grown = realloc(work->messages, (work->messages_count + 1) * sizeof message);
    if (!grown)
        abort();
    work->messages = grown;
    work->messages[work->messages_count++] = message;
}
