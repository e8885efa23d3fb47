/* bench_service.c: what a lease costs: a message to zrd and its answer, and the memory behind it.
 *
 * zrd runs beside, in a folder of this program's own. Three rows: leases alone, one client; four clients at
 * once; granules with their memory, on the service and on the host backend alone. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/backend/service_client.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"

enum { LEASES = 20000, CLIENTS = 4, GRANULES = 64 };
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
static bool lease(void)
{
    uint32_t number;
    for (size_t i = 0; i < LEASES; i++) {
        uint64_t start_ns = zr_os_now_ns();
        if (zr_service_lease((size_t)2 << 20, &number) != ZR_OK)
            return false;
        times_ns[i] = zr_os_now_ns() - start_ns;
        zr_service_return((size_t)2 << 20, number);
    }
    return true;
}

static void bench_leases(void)
{
    uint64_t start_ns = zr_os_now_ns();
    if (lease())
        print_row("a lease of 2 MiB, one client", LEASES, zr_os_now_ns() - start_ns);
    fflush(stdout);
    start_ns = zr_os_now_ns();
    pid_t clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        if ((clients[i] = fork()) == 0)
            _exit(!lease());
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
        zr_service_join();
        zr_service_alone(words, sizeof words);
        if (!words[0])
            break;
        usleep(20000);
    }
    printf("  %-44s %9s %9s %12s\n", words, "median us", "99 %", "per second");
    if (!words[0]) {
        bench_leases();
        bench_granules("a granule with its memory, from zrd");
    }
    zr_option_set("service:off");
    bench_granules("the same without zrd");
    kill(zrd, SIGTERM);
    waitpid(zrd, NULL, 0);
    snprintf(left, sizeof left, "rm -rf %s", folder);
    return system(left) != 0;
}
