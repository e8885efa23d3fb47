/* comm_failures_test.c: what goes wrong, and what is said about it: mistakes of callers, ranks out of step or
 * silent, and every failing step of the making of a communicator and of a launch. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "alloc/base/system/os.h"
#include "tests/support/folder.h"
#include "tests/support/zero/comm_ranks.h"
#include "zero/launch/control.h"

/* What the processes of a test share. */
static struct {
    _Atomic unsigned ready;   /* ranks that have noted what they do */
    _Atomic unsigned told;    /* ranks that know which rank stands still */
    unsigned silent;          /* which rank stands still */
    _Atomic unsigned left;    /* ranks that have given up */
    _Atomic unsigned learned; /* by a rank that was late, as bits */
    bool of_data;             /* what it is late for is no host message */
} * board;

/* Until `number` has come to `want`; the limit is for what never happens. */
static void wait_for(const _Atomic unsigned *number, unsigned want)
{
    for (unsigned ms = 0; ms < 120000 && atomic_load(number) < want; ms++)
        usleep(1000);
}

/* ---- Mistakes ------------------------------------------------------------------------------------------ */

static void body_out_of_step(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    float source[64] = {0}, destination[64];
    zr_ticket ticket;
    struct zr_reduce_scatter operation = {
        .source = source, .destination = destination, .shard_elements = rank->rank == 1 ? 5 : 6, .scale = 1};
    check_ok(rank, zr_comm_reduce_scatter(comm, &operation, &ticket));
    check(rank, zr_comm_wait(comm, ticket) == ZR_ERR_PEER, "ranks out of step went on");
    check(rank, strstr(zr_last_error(), "out of step") != NULL, "words: %s", zr_last_error());
    check(rank, zr_comm_barrier(comm) == ZR_ERR_PEER, "a failed communicator went on");
    check(rank, zr_comm_reduce_scatter(comm, &operation, &ticket) == ZR_ERR_PEER && ticket == 0,
          "it took work");
    check_ok(rank, zr_comm_destroy(comm));
}

/* A rank that reads from one peer alone sees what the others run, too. The other one comes late, so that its
 * own failure does not end the communicator first. */
static void body_out_of_step_elsewhere(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    float buffer[64] = {0}, all[3 * 64];
    zr_ticket ticket;
    if (rank->rank == 2)
        usleep(20000);
    if (rank->rank == 2)
        check_ok(rank,
                 zr_comm_all_gather(comm,
                                    &(struct zr_all_gather){
                                        .source = buffer, .destination = all, .shard_bytes = sizeof buffer},
                                    &ticket));
    else
        check_ok(rank, zr_comm_broadcast(
                           comm, &(struct zr_broadcast){.buffer = buffer, .bytes = sizeof buffer, .root = 0},
                           &ticket));
    check(rank, zr_comm_wait(comm, ticket) == ZR_ERR_PEER, "ranks out of step went on");
    check_ok(rank, zr_comm_destroy(comm));
}

static void body_invalid(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    float one[16] = {1};
    zr_ticket ticket = 9;
    struct zr_reduce_scatter reduce = {.source = one, .destination = one, .shard_elements = SIZE_MAX / 8};
    struct zr_all_gather gather = {.source = one, .destination = NULL, .shard_bytes = 4};
    struct zr_all_reduce both = {.buffer = NULL, .shard_elements = 1};
    check(rank, zr_comm_reduce_scatter(comm, &reduce, &ticket) == ZR_ERR_INVALID && ticket == 0, "too large");
    check(rank, zr_comm_reduce_scatter(NULL, &reduce, &ticket) == ZR_ERR_INVALID, "no communicator");
    check(rank, zr_comm_reduce_scatter(comm, NULL, &ticket) == ZR_ERR_INVALID, "no operation");
    check(rank, zr_comm_all_gather(comm, &gather, NULL) == ZR_ERR_INVALID, "no destination");
    check(rank, zr_comm_all_reduce(comm, &both, NULL) == ZR_ERR_INVALID, "no buffer");
    check(rank, zr_comm_wait(comm, 12345) == ZR_ERR_INVALID, "a ticket never given out");
    check(rank, zr_comm_host_all_gather(comm, NULL, 4, one) == ZR_ERR_INVALID, "nothing to say");
    struct zr_transfer self = {.send = one, .send_bytes = 4, .to = rank->rank};
    struct zr_broadcast nobody = {.buffer = one, .bytes = 4, .root = rank->world};
    struct zr_all_reduce strange = {.buffer = one, .shard_elements = 1, .type = ZR_COMM_TYPE_COUNT};
    check(rank, zr_comm_send(comm, &self, NULL) == ZR_ERR_INVALID, "a send to itself");
    check(rank, zr_comm_receive(comm, NULL, NULL) == ZR_ERR_INVALID, "a receive of nothing known");
    check(rank, zr_comm_broadcast(comm, &nobody, NULL) == ZR_ERR_INVALID, "a root that is not there");
    check(rank, zr_comm_all_reduce(comm, &strange, NULL) == ZR_ERR_INVALID, "elements of no kind");
    struct zr_reduce_scatter grows = {.source = one,
                                      .destination = one,
                                      .shard_elements = 4,
                                      .scale = 1,
                                      .type = ZR_COMM_BF16,
                                      .wide = true};
    check(rank, zr_comm_reduce_scatter(comm, &grows, NULL) == ZR_ERR_INVALID, "wide and in place");
    reduce.shard_elements = 0;
    check(rank, zr_comm_reduce_scatter(comm, &reduce, &ticket) == ZR_OK && ticket == 0, "an empty shard");
    check_ok(rank, zr_comm_wait(comm, 0));
    check_ok(rank, zr_comm_host_all_gather(comm, NULL, 0, NULL));
    check_ok(rank, zr_comm_barrier(comm)); /* none of that has brought the ranks out of step */
    check_ok(rank, zr_comm_destroy(comm));
}

/* A rank that stands still is told from one that has died, and named. It does so until the others know. */
static void body_silent(struct environment *rank)
{
    enum { TIMEOUT_MS = 2000 };
    zr_comm *comm = NULL;
    struct zr_comm_options options = options_of(rank);
    options.timeout_ns = TIMEOUT_MS * UINT64_C(1000000);
    check_ok(rank, zr_comm_local_create(&comm, &options, rank->local, rank->rank));
    zr_local_set_status(rank->local, rank->rank, "lunch");
    atomic_fetch_add(&board->ready, 1);
    wait_for(&board->ready, rank->world); /* not in a barrier, which the time-out would be for, too */
    if (rank->rank == 1) {
        wait_for(&board->told, rank->world - 1);
    } else {
        uint64_t start_ns = zr_os_now_ns();
        zr_result result = zr_comm_barrier(comm);
        uint64_t took_ms = (zr_os_now_ns() - start_ns) / 1000000;
        check(rank, result == ZR_ERR_TIMEOUT, "%s", zr_result_name(result));
        check(rank, strstr(zr_last_error(), "rank 1 ") && strstr(zr_last_error(), "lunch"), "words: %s",
              zr_last_error());
        check(rank, took_ms >= TIMEOUT_MS && took_ms < 100 * TIMEOUT_MS, "after %llu ms",
              (unsigned long long)took_ms);
        atomic_fetch_add(&board->told, 1);
    }
    zr_comm_destroy(comm);
}

/* So is one that stands still before it has made its part of the communicator, by all, and once. */
static void body_silent_before(struct environment *rank)
{
    enum { TIMEOUT_MS = 2000 };
    zr_comm *comm = NULL;
    struct zr_comm_options options = options_of(rank);
    options.timeout_ns = TIMEOUT_MS * UINT64_C(1000000);
    atomic_fetch_add(&board->ready, 1);
    wait_for(&board->ready, rank->world);
    if (rank->rank == board->silent) {
        wait_for(&board->told, rank->world - 1);
        return;
    }
    char name[16];
    uint64_t start_ns = zr_os_now_ns();
    zr_result result = zr_comm_local_create(&comm, &options, rank->local, rank->rank);
    uint64_t took_ms = (zr_os_now_ns() - start_ns) / 1000000;
    snprintf(name, sizeof(name), "rank %u ", board->silent);
    check(rank, result == ZR_ERR_TIMEOUT, "%s", zr_result_name(result));
    check(rank, strstr(zr_last_error(), name), "words: %s", zr_last_error());
    check(rank, took_ms >= TIMEOUT_MS && took_ms < 100 * TIMEOUT_MS, "after %llu ms",
          (unsigned long long)took_ms);
    atomic_fetch_add(&board->told, 1);
}

static void test_silent_before(void)
{
    for (unsigned silent = 0; silent < 3; silent++) {
        board->ready = board->told = 0;
        board->silent = silent;
        tap_is(launch(&(struct test_case){.body = body_silent_before, .world = 3, .bucket_bytes = 128}), 0,
               "rank %u of 3 stands still before its communicator: named, after the time that was set",
               silent);
    }
}

static void test_mistakes(void)
{
    tap_is(launch(&(struct test_case){.body = body_out_of_step, .world = 3, .bucket_bytes = 128}), 1,
           "ranks out of step get an error with words");
    /* 1: the rank that finds it has ended the run for all. */
    int code =
        launch(&(struct test_case){.body = body_out_of_step_elsewhere, .world = 3, .bucket_bytes = 128});
    tap_ok(code == 0 || code == 1, "and those that read nothing from the rank that is");
    tap_is(launch(&(struct test_case){.body = body_invalid, .world = 2, .bucket_bytes = 128}), 0,
           "mistakes are refused and change nothing");
    tap_is(launch(&(struct test_case){.body = body_silent, .world = 3, .bucket_bytes = 128}), 0,
           "a rank that stands still is named after the time that was set");
    tap_is(zr_local_launch(&(struct zr_launch_options){.world = 0, .rank_main = run_rank}), 2,
           "0 ranks are refused");
}

/* ---- Strange messages ---------------------------------------------------------------------------------- */

enum { FDS_MAX = 8 };

/* What rank 1 sends in the place of its ring: rank 0's own message, changed. */
static const struct strange {
    const char *what;
    size_t bytes_less;  /* how much shorter it is */
    char magic_bits;    /* changed in its first byte */
    unsigned fds_count; /* descriptors beside it */
    bool few_fit;       /* the receiver has room for some of them */
    zr_result result;
    const char *words;
} stranges[] = {
    {"another rank's message", 0, 0, 1, false, ZR_ERR_PEER, "invalid part of its ring"},
    {"a message a byte too short", 1, 0, 1, false, ZR_ERR_PEER, "invalid part of its ring"},
    {"another program's message", 0, 1, 1, false, ZR_ERR_PEER, "invalid part of its ring"},
    {"a message without its descriptors", 0, 0, 0, false, ZR_ERR_PEER, "invalid part of its ring"},
    {"a message with more descriptors than the receiver may have", 0, 0, FDS_MAX, true, ZR_ERR_HOST_MEMORY,
     "ulimit -n"},
};
static const struct strange *strange;

/* Takes rank 0's message out of the inbox and sends it back. */
static void send_strange(const struct zr_local_sockets *sockets)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    char message[4096];
    int fds[FDS_MAX];
    struct iovec data = {message, sizeof message};
    struct msghdr header = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    data.iov_len = (size_t)recvmsg(sockets->inbox[1], &header, 0) - strange->bytes_less;
    message[0] = (char)(message[0] ^ strange->magic_bits);
    memcpy(fds, CMSG_DATA(&control.header), sizeof *fds);
    for (unsigned i = 1; i < FDS_MAX; i++)
        fds[i] = fds[0];
    memcpy(CMSG_DATA(&control.header), fds, sizeof fds);
    control.header.cmsg_len = CMSG_LEN(strange->fds_count * sizeof *fds);
    header.msg_controllen = strange->fds_count ? CMSG_SPACE(strange->fds_count * sizeof *fds) : 0;
    sendmsg(sockets->outbox[0], &header, 0);
    close(fds[0]);
}

static void body_strange(struct environment *rank)
{
    zr_comm *comm = NULL;
    struct zr_comm_options options = options_of(rank);
    struct rlimit limit;
    if (rank->rank == 1) {
        send_strange(zr_local_own_sockets());
        return;
    }
    int files = open_descriptors(), next = dup(0);
    size_t before_bytes = live_bytes(rank);
    close(next);
    getrlimit(RLIMIT_NOFILE, &limit);
    if (strange->few_fit)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next + 3, limit.rlim_max});
    zr_result result = zr_comm_local_create(&comm, &options, rank->local, rank->rank);
    setrlimit(RLIMIT_NOFILE, &limit);
    check(rank, result == strange->result && strstr(zr_last_error(), strange->words), "%s: %s",
          zr_result_name(result), zr_last_error());
    check(rank, open_descriptors() == files, "%d descriptors more", open_descriptors() - files);
    check(rank, live_bytes(rank) == before_bytes, "leak");
}

static void test_strange(void)
{
    for (size_t i = 0; i < sizeof stranges / sizeof *stranges; i++) {
        strange = &stranges[i];
        tap_is(launch(&(struct test_case){.body = body_strange, .world = 2, .bucket_bytes = 128}), 0,
               "%s: refused with words, and nothing of it is kept", strange->what);
    }
}

/* ---- Failing steps ------------------------------------------------------------------------------------- */

/* One rank fails while the communicator is made: all get an error, nothing leaks, and the next attempt works.
 * One that a signal interrupts does not fail. */
static void body_faults(struct environment *rank)
{
    static const unsigned sites[] = {ZR_FAULT_RESERVE,
                                     ZR_FAULT_CREATE,
                                     ZR_FAULT_MAP,
                                     ZR_FAULT_ACCESS,
                                     ZR_FAULT_METADATA,
                                     ZR_FAULT_THREAD,
                                     ZR_FAULT_DESCRIPTOR,
                                     ZR_FAULT_DESCRIPTOR | ZR_FAULT_TWICE,
                                     ZR_FAULT_RECEIVE | ZR_FAULT_EINTR,
                                     ZR_FAULT_SEND | ZR_FAULT_EINTR,
                                     ZR_FAULT_WAIT | ZR_FAULT_EINTR};
    unsigned failed = 0, interrupted = 0;
    int files = open_descriptors();
    size_t before_bytes = live_bytes(rank);
    for (size_t s = 0; s < sizeof(sites) / sizeof(*sites); s++) {
        for (uint64_t nth = 1; nth < 50; nth++) {
            zr_comm *comm = NULL;
            struct zr_comm_options options = options_of(rank);
            bool mine = rank->rank == nth % rank->world;
            zr_arena_trim(rank->arena, 0, NULL); /* so that the ring needs new granules */
            zr_fault_set(sites[s], mine ? nth : 0);
            zr_result result = zr_comm_local_create(&comm, &options, rank->local, rank->rank);
            bool struck = zr_fault_set(sites[s], 0) >= nth && mine;
            if (result == ZR_OK) {
                check_ok(rank, zr_comm_barrier(comm));
                check_ok(rank, zr_comm_destroy(comm));
                check(rank, live_bytes(rank) == before_bytes, "leak after a clean end");
                check(rank, open_descriptors() == files, "%s: %d descriptors more",
                      zr_fault_site_name(sites[s]), open_descriptors() - files);
                interrupted += struck;
                if ((sites[s] & ~0xffu) < ZR_FAULT_EINTR || nth == 12)
                    break;
                continue;
            }
            failed++;
            check(rank, comm == NULL && zr_last_error()[0],
                  "a failure without words, or with a communicator");
            check(rank, mine == (result != ZR_ERR_PEER), "site %s: %s (%s)", zr_fault_site_name(sites[s]),
                  zr_result_name(result), zr_last_error());
            check(rank, live_bytes(rank) == before_bytes, "site %s, pass %llu: %zu bytes leaked",
                  zr_fault_site_name(sites[s]), (unsigned long long)nth, live_bytes(rank) - before_bytes);
        }
    }
    check(rank, failed > 2, "only %u failures were provoked", failed);
    check(rank, interrupted > 0, "no call was interrupted");
}

static void body_meeting(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    check_ok(rank, zr_comm_barrier(comm));
    check_ok(rank, zr_comm_destroy(comm));
}

static void test_launch_faults(void)
{
    struct test_case test = {.body = body_meeting, .world = 4, .bucket_bytes = 128};
    static const unsigned sites[] = {
        ZR_FAULT_RESERVE, ZR_FAULT_CREATE,     ZR_FAULT_MAP,
        ZR_FAULT_ACCESS,  ZR_FAULT_METADATA,   ZR_FAULT_THREAD,
        ZR_FAULT_OPEN,    ZR_FAULT_DESCRIPTOR, ZR_FAULT_DESCRIPTOR | ZR_FAULT_TWICE};
    unsigned failed = 0, wrong = 0;
    for (size_t s = 0; s < sizeof(sites) / sizeof(*sites); s++)
        for (uint64_t nth = 1; nth < 8; nth++) {
            zr_fault_set(sites[s], nth);
            int code = launch(&test);
            bool struck = zr_fault_set(sites[s], 0) >= nth; /* else the launch has fewer such steps */
            failed += struck && code == 4;
            /* A small file of the system's that cannot be opened is done without. */
            wrong += struck && code != 4 && (code != 0 || (sites[s] & 0xff) != ZR_FAULT_DESCRIPTOR);
        }
    tap_is(wrong, 0, "every failing step of a launch gives exit code 4, or is done without");
    tap_ok(failed >= 6, "%u steps of a launch were made to fail", failed);
}

/* Rank 1 gives up while rank 0 is still to read what it laid out. What rank 0 learned, as bits. */
enum { DONE = 1, FAILED = 2, RIGHT = 4 };

static void body_left(struct environment *rank)
{
    zr_comm *comm = open_comm(rank);
    uint64_t mine = UINT64_C(0x1111111111111111) * (rank->rank + 1), all[2] = {0};
    if (rank->rank == 0) {
        usleep(100000);
        kill(getppid(), SIGQUIT);
        wait_for(&board->left, 1);
    }
    struct zr_all_gather gather = {.source = &mine, .destination = all, .shard_bytes = sizeof(mine)};
    zr_ticket ticket = 0;
    zr_result result = board->of_data ? zr_comm_all_gather(comm, &gather, &ticket)
                                      : zr_comm_host_all_gather(comm, &mine, sizeof(mine), all);
    result = result == ZR_OK ? zr_comm_wait(comm, ticket) : result;
    if (rank->rank == 0)
        board->learned =
            DONE | (result != ZR_OK ? FAILED : 0) | (all[1] == UINT64_C(0x2222222222222222) ? RIGHT : 0);
    zr_comm_destroy(comm);
    if (rank->rank == 1)
        atomic_fetch_add(&board->left, 1);
}

/* The launcher gives the ranks a moment to end, and then kills them: on a busy machine a rank may have to try
 * several times to be there before that. */
static void test_left(bool of_data)
{
    unsigned tries = 0;
    board->of_data = of_data;
    do {
        board->left = board->learned = 0;
        launch(&(struct test_case){
            .body = body_left, .world = 2, .bucket_bytes = 65536, .algorithm = ZR_COMM_RING});
    } while (!(board->learned & DONE) && ++tries < 30);
    tap_ok(board->learned & DONE, "a rank that is late comes to its %s", of_data ? "gather" : "exchange");
    tap_ok(board->learned & (FAILED | RIGHT),
           "which fails, or gives what the other one said: never what it left behind");
}

int main(void)
{
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        printf("Bail out! no page to share\n");
        return 1;
    }
    test_mistakes();
    test_silent_before();
    test_left(false);
    test_left(true);
    test_strange();
    tap_is(launch(&(struct test_case){.body = body_faults, .world = 3, .bucket_bytes = 200000}), 0,
           "every failing step of creation rolls back on all ranks");
    test_launch_faults();
    return tap_done();
}
