/* server.c: one block that grows a long way, and a server that was busy and goes idle. */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/malloc/workloads.h"

#define MIB ((size_t)1 << 20)

/* ---- grow: from 1 MiB to 1 GiB in steps of 1 MiB; the calls are timed, what they give is written between
 * them ---- */

struct tally workload_grow(const struct run *run)
{
    enum { PAGE = 4096 };
    uint64_t most = scaled(run, 1024);
    struct tally tally = {.operations = most, .seconds = 1e-9};
    unsigned char *block = NULL;
    for (uint64_t mib = 1; mib <= most; mib++) {
        double before = seconds_now();
        block = resize(block, mib * MIB);
        tally.seconds += seconds_now() - before;
        for (size_t at = (mib - 1) * MIB; at < mib * MIB; at += PAGE) {
            *(uint64_t *)(block + at) = mixed(at);
        }
    }
    for (size_t at = 0; at < most * MIB; at += PAGE) {
        if (*(uint64_t *)(block + at) != mixed(at)) {
            die("realloc has changed a page");
        }
        tally.checksum += *(uint64_t *)(block + at);
    }
    free(block);
    return tally;
}

/* ---- server: overlapping lifetimes around 300 MiB with peaks of 600, at the last of which four fifths are
 * freed ---- */

struct server {
    uint64_t **blocks;
    size_t count, live_bytes;
    uint64_t random;
    size_t least_bytes;
    unsigned doublings; /* the sizes are drawn evenly by their logarithm */
    struct tally tally;
};

static uint64_t resident_bytes(void)
{
    char text[128] = {0};
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    unsigned long pages = 0;
    if (file < 0 || read(file, text, sizeof text - 1) <= 0 || sscanf(text, "%*u %lu", &pages) != 1) {
        die("/proc/self/statm cannot be read");
    }
    close(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void server_take(struct server *server)
{
    size_t base = server->least_bytes << below(&server->random, server->doublings);
    size_t bytes = base + below(&server->random, (uint32_t)base);
    server->blocks[server->count] = block_new(bytes, (uint32_t)server->tally.operations++);
    server->count++;
    server->live_bytes += bytes;
}

static void server_drop(struct server *server, size_t which)
{
    uint64_t *block = server->blocks[which];
    server->blocks[which] = server->blocks[--server->count];
    server->live_bytes -= block_bytes(block);
    server->tally.checksum += block_drop(block);
}

/* Beside the wave: a request's own blocks come and go, so that holes of all sizes lie among the survivors. */
static void server_load(struct server *server, size_t live_bytes, uint64_t steps)
{
    for (uint64_t i = 0; i < steps; i++) {
        /* Up and down four times, and up to the peak once more. */
        uint64_t phase = 9 * i * 1024 / steps, rise = phase / 1024 % 2 ? 1024 - phase % 1024 : phase % 1024;
        size_t target = live_bytes + live_bytes * rise / 1024;
        do {
            server_take(server);
        } while (server->live_bytes < target);
        while (server->live_bytes > target) {
            server_drop(server, below(&server->random, (uint32_t)server->count));
        }
    }
}

static void server_idle(struct server *server, double until)
{
    while (seconds_now() < until) {
        uint64_t *request[16];
        for (unsigned i = 0; i < 16; i++) {
            request[i] = block_new(i ? power_law(&server->random, 32, 5) : 64 * 1024, i);
        }
        for (unsigned i = 0; i < 16; i++) {
            block_drop(request[i]);
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

/* With workloads_strict nobody waits. */
static struct tally server_run(const struct run *run, struct server server, uint64_t steps)
{
    size_t live_bytes = scaled(run, 300) * MIB;
    server.blocks = take(4 * live_bytes / server.least_bytes * sizeof *server.blocks);
    server.random = 29;
    server_load(&server, live_bytes, scaled(run, steps));
    server.tally.rss_bytes[0] = resident_bytes();
    for (size_t left = server.count / 5; server.count > left;) {
        server_drop(&server, below(&server.random, (uint32_t)server.count));
    }
    server.tally.live_bytes = server.live_bytes;
    double freed = seconds_now();
    if (!workloads_strict) {
        server_idle(&server, freed + 1);
        server.tally.rss_bytes[1] = resident_bytes();
        server_idle(&server, freed + 30);
        server.tally.rss_bytes[2] = resident_bytes();
    }
    while (server.count) {
        server_drop(&server, server.count - 1);
    }
    free(server.blocks);
    return server.tally;
}

/* 16 KiB to 8 MiB. */
struct tally workload_server_large(const struct run *run)
{
    return server_run(run, (struct server){.least_bytes = 16 * 1024, .doublings = 9}, 20000);
}

/* 16 to 2,048 bytes. */
struct tally workload_server_small(const struct run *run)
{
    return server_run(run, (struct server){.least_bytes = 16, .doublings = 7}, 4000000);
}
