/* bench_service.c: what a lease costs: a message to zrd and its answer, and the memory behind it.
 *
 * zrd runs beside, in a folder of this program's own. Leases alone, one client; four clients at once;
 * granules with their memory, on the service and on the host backend alone; 1 GiB idle that zrd asks back. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/service/client/client.h"
#include "alloc/service/client/query.h"
#include "alloc/service/client/wire.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"

enum { LEASES = 20000, CLIENTS = 4, GRANULES = 64, IDLE_MIB = 1024, PASSES = 5 };
static uint64_t times_ns[LEASES];

static int by_time(const void *first, const void *second)
{
    const uint64_t *a = first, *b = second;
    return (*a > *b) - (*a < *b);
}

static void print_row(const char *name, size_t count, uint64_t all_ns)
{
    qsort(times_ns, count, sizeof *times_ns, by_time);
    printf("  %-44s %9.1f %9.1f %12.0f\n", name, (double)times_ns[count / 2] / 1000,
           (double)times_ns[count * 99 / 100] / 1000, (double)count / ((double)all_ns / 1e9));
}

/* Leases and returns a granule, LEASES times. */
static bool lease_and_return(void)
{
    struct zr_lease lease;
    for (size_t i = 0; i < LEASES; i++) {
        uint64_t start_ns = zr_os_now_ns();
        if (zr_service_lease(zr_service_host(), (size_t)2 << 20, &lease) != ZR_OK)
            return false;
        times_ns[i] = zr_os_now_ns() - start_ns;
        zr_service_return(zr_service_host(), (size_t)2 << 20, &lease);
    }
    return true;
}

static void bench_leases(void)
{
    uint64_t start_ns = zr_os_now_ns();
    if (lease_and_return())
        print_row("a lease of 2 MiB, one client", LEASES, zr_os_now_ns() - start_ns);
    fflush(stdout);
    start_ns = zr_os_now_ns();
    pid_t clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        if ((clients[i] = fork()) == 0)
            _exit(!lease_and_return());
    int code = 0, failed = 0;
    for (int i = 0; i < CLIENTS; i++)
        failed |= waitpid(clients[i], &code, 0) < 0 || code;
    double seconds = (double)(zr_os_now_ns() - start_ns) / 1e9;
    printf("  %-44s %9s %9s %12.0f%s\n", "four clients, all together", "", "", LEASES * CLIENTS / seconds,
           failed ? "  (one has failed)" : "");
}

static void bench_granules(const char *name)
{
    struct zr_handle *handles[GRANULES];
    zr_backend *backend;
    if (zr_backend_host_create(&backend, NULL) != ZR_OK)
        return;
    for (int pass = 0; pass < 2; pass++) { /* the first warms the machine's memory up */
        uint64_t first_ns = zr_os_now_ns();
        for (size_t i = 0; i < GRANULES; i++) {
            uint64_t start_ns = zr_os_now_ns();
            if (zr_backend_create(backend, (size_t)2 << 20, &handles[i]) != ZR_OK)
                return;
            times_ns[i] = zr_os_now_ns() - start_ns;
        }
        uint64_t all_ns = zr_os_now_ns() - first_ns;
        for (size_t i = 0; i < GRANULES; i++)
            zr_backend_destroy_handle(backend, handles[i]);
        if (pass > 0)
            print_row(name, GRANULES, all_ns);
    }
    zr_backend_destroy(backend);
}

static void nothing(void *state, const struct zr_service_message *client)
{
    (void)state, (void)client;
}

/* All that zrd has lent comes back, from when it is asked to that. 0: it does not. */
static uint64_t drain_ns(void)
{
    struct zr_service_message drain = zr_service_message_of(ZR_SERVICE_DRAIN), answer;
    int line;
    if (zr_service_connect(ZR_SERVICE_HOST, &line) != ZR_OK)
        return 0;
    uint64_t start_ns = zr_os_now_ns(), taken_ns = 0;
    zr_result result = zr_service_ask(line, &drain, &answer);
    while (
        result == ZR_OK && taken_ns < UINT64_C(10000000000) &&
        (result = zr_service_query(ZR_SERVICE_HOST, &(struct zr_service_question){.fresh = ZR_SERVICE_KNOWN},
                                   nothing, NULL, &answer)) == ZR_OK) {
        taken_ns = zr_os_now_ns() - start_ns;
        if (answer.held_bytes == 0)
            break;
        usleep(200);
    }
    drain.flags = ZR_SERVICE_DRAIN_END;
    zr_service_ask(line, &drain, &answer);
    close(line);
    return taken_ns;
}

/* A GiB in blocks of a granule, used and freed. */
static void bench_reclaim(void)
{
    static void *blocks[IDLE_MIB / 2];
    zr_backend *backend;
    zr_arena *arena;
    if (zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return;
    for (size_t pass = 0; pass < PASSES; pass++) {
        for (size_t i = 0; i < IDLE_MIB / 2; i++) {
            if (zr_arena_alloc(arena, &(struct zr_request){.bytes = (size_t)2 << 20}, &blocks[i]) != ZR_OK)
                return;
            memset(blocks[i], 1, (size_t)2 << 20);
        }
        for (size_t i = 0; i < IDLE_MIB / 2; i++)
            zr_arena_free(arena, blocks[i]);
        usleep(100000); /* the thread that hears zrd has begun */
        times_ns[pass] = drain_ns();
    }
    qsort(times_ns, PASSES, sizeof *times_ns, by_time);
    printf("  %-44s %9.1f %9.1f   ms: median, most of %d\n", "1 GiB idle, back for being asked",
           (double)times_ns[PASSES / 2] / 1e6, (double)times_ns[PASSES - 1] / 1e6, PASSES);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

static pid_t start_zrd(const char *folder)
{
    const char *build = getenv("BUILD");
    char program[512];
    snprintf(program, sizeof program, "%s/bin/zrd", build ? build : "build");
    setenv("XDG_RUNTIME_DIR", folder, 1);
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, "--log", "/dev/null", (char *)NULL);
        _exit(127);
    }
    return child;
}

int main(void)
{
    char folder[] = "/tmp/zr-bench-XXXXXX", left[64], words[512] = "";
    if (!mkdtemp(folder))
        return 1;
    pid_t zrd = start_zrd(folder);
    zr_option_set("service:on");
    for (int i = 0; i < 400; i++) { /* until it listens */
        zr_service_join(zr_service_host());
        zr_service_alone(words, sizeof words);
        if (!words[0])
            break;
        usleep(20000);
    }
    printf("  %-44s %9s %9s %12s\n", words, "median us", "99 %", "per second");
    if (!words[0]) {
        bench_leases();
        bench_granules("a granule with its memory, from zrd");
        bench_reclaim();
    }
    zr_option_set("service:off");
    bench_granules("the same without zrd");
    kill(zrd, SIGTERM);
    waitpid(zrd, NULL, 0);
    snprintf(left, sizeof left, "rm -rf %s", folder);
    return system(left) != 0;
}
