/* comm_synchronize_test.c: a gather whose source stays ends before its readers do. A reader is held in the
 * middle of its copy, while the rank that it reads from settles and overwrites the source, or ends and gives
 * the memory away: the reader has what was gathered all the same. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/base/system/os.h"
#include "tests/support/zero/comm_ranks.h"

enum { WORLD = 3, READER = 1, PAGE_BYTES = 4096, SHARD_BYTES = 4 << 20, PATIENCE_MS = 120000, HELD_MS = 100 };

/* What the ranks share besides. */
static struct shared {
    _Atomic bool reading; /* the reader is in the middle of rank 0's shard */
    _Atomic bool asked;   /* rank 0 is about to settle, or to end */
    _Atomic bool going_on;
} * shared;

static void nap_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static bool wait_for(const _Atomic bool *flag)
{
    for (unsigned ms = 0; ms < PATIENCE_MS && !atomic_load(flag); ms++)
        nap_ms(1);
    return atomic_load(flag);
}

static char *held_page; /* the reader's */

/* The copy has come to a page that cannot be written: it waits here until rank 0 has asked, and a while. */
static void hold(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    if ((char *)info->si_addr < held_page || (char *)info->si_addr >= held_page + PAGE_BYTES) {
        signal(signal_number, SIG_DFL);
        return;
    }
    atomic_store(&shared->reading, true);
    wait_for(&shared->asked);
    nap_ms(HELD_MS);
    atomic_store(&shared->going_on, true);
    mprotect(held_page, PAGE_BYTES, PROT_READ | PROT_WRITE);
}

static void hold_at(char *address)
{
    struct sigaction action = {.sa_sigaction = hold, .sa_flags = SA_SIGINFO};
    held_page = address + (-(uintptr_t)address & (PAGE_BYTES - 1));
    sigaction(SIGSEGV, &action, NULL);
    mprotect(held_page, PAGE_BYTES, PROT_NONE);
}

static size_t count_wrong(const char *all)
{
    size_t wrong = 0;
    for (size_t i = 0; i < (size_t)SHARD_BYTES * WORLD; i++)
        wrong += all[i] != (char)(1 + i / SHARD_BYTES);
    return wrong;
}

enum way { SETTLES, MEETS, ENDS };

/* Another operation of all. */
static void gather_again(struct environment *rank, zr_comm *comm)
{
    char mine = 0, all[WORLD];
    zr_ticket ticket = 0;
    check_ok(rank, zr_comm_all_gather(
                       comm, &(struct zr_all_gather){.source = &mine, .destination = all, .shard_bytes = 1},
                       &ticket));
    check_ok(rank, zr_comm_wait(comm, ticket));
}

/* Rank 0 has what it gathered; the reader has not. */
static void go_on(struct environment *rank, zr_comm **comm, char *mine, enum way way)
{
    check(rank, wait_for(&shared->reading), "nobody is held");
    check(rank, !atomic_load(&shared->going_on), "the gather has waited for its readers");
    atomic_store(&shared->asked, true);
    if (way == SETTLES)
        check_ok(rank, zr_comm_synchronize(*comm));
    if (way == MEETS)
        gather_again(rank, *comm);
    if (way == ENDS) {
        check_ok(rank, zr_comm_destroy(*comm));
        *comm = NULL;
    }
    check(rank, atomic_load(&shared->going_on), "the source is free while it is read");
    memset(mine, 0xee, SHARD_BYTES);
}

static void gather(struct environment *rank, enum way way)
{
    zr_comm *comm = open_comm(rank);
    char *mine = take(rank, SHARD_BYTES), *all = take(rank, (size_t)SHARD_BYTES * WORLD);
    memset(mine, 1 + (int)rank->rank, SHARD_BYTES);
    memset(all, 0, (size_t)SHARD_BYTES * WORLD);
    check_ok(rank, zr_comm_barrier(comm)); /* all have what they say they have */
    if (rank->rank == READER)
        hold_at(all + SHARD_BYTES / 2); /* of rank 0's shard */
    zr_ticket ticket;
    check_ok(rank, zr_comm_all_gather(comm,
                                      &(struct zr_all_gather){.source = mine,
                                                              .destination = all,
                                                              .shard_bytes = SHARD_BYTES,
                                                              .source_stays = true},
                                      &ticket));
    check_ok(rank, zr_comm_wait(comm, ticket));
    if (rank->rank == 0)
        go_on(rank, &comm, mine, way);
    else if (way == MEETS)
        gather_again(rank, comm);
    size_t wrong = count_wrong(all);
    check(rank, wrong == 0, "%zu bytes are not those that were gathered", wrong);
    zr_arena_free(rank->arena, mine);
    if (rank->rank == 0) /* the memory goes while others may still look */
        check_ok(rank, zr_arena_trim(rank->arena, 0, NULL));
    zr_arena_free(rank->arena, all);
    if (comm)
        check_ok(rank, zr_comm_destroy(comm));
    signal(SIGSEGV, SIG_DFL);
}

static void body_settles(struct environment *rank)
{
    gather(rank, SETTLES);
}

static void body_meets(struct environment *rank)
{
    gather(rank, MEETS);
}

static void body_ends(struct environment *rank)
{
    gather(rank, ENDS);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*body)(struct environment *rank);
    } ways[] = {{"settles and overwrites what it gathered", body_settles},
                {"meets the others again and overwrites it", body_meets},
                {"ends and gives its memory away", body_ends}};
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return tap_done();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        memset(shared, 0, sizeof *shared);
        tap_is(
            launch(&(struct test_case){
                .body = ways[i].body, .world = WORLD, .bucket_bytes = 1 << 16, .algorithm = ZR_COMM_DIRECT}),
            0, "a slow reader has what was gathered from a rank that %s", ways[i].name);
    }
    return tap_done();
}
