/* main.c: zrd, the allocator service: command line, start and signals. Uses server.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/backend/lender.h"
#include "alloc/base/error.h"
#include "alloc/base/option.h"
#include "alloc/base/sizes.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/service/server/connection.h"

enum {
    EXIT_USAGE = 2,
    EXIT_INPUT = 3,
    WITHIN_MS = 5000,
    WITHIN_MAX_MS = 600000,
    SLICE_MS = 500,
    KEEP_S = 3600,
    KEEP_MAX_S = 365 * 86400,
    PROCESSORS_MAX = 1 << 20
};

static const char help[] =
    "Lends one machine's memory to several programs of one user, with quotas, and gets it back.\n"
    "\n"
    "Examples\n"
    "  zrd                                      in the foreground, as systemd wants it\n"
    "  zrd --capacity 16GiB --within 2000\n"
    "  zr service start                         in the background\n"
    "  ZR_CONF=service:on zr-train ..           a program that takes its memory from there\n"
    "\n"
    "  --device N            a GPU's memory in place of the host's: its number, or its UUID; one zrd for each\n"
    "  --capacity BYTES      what may be lent in all, from a granule to all that there is; 7/8 of the machine, control group\n"
    "                        or GPU by itself\n"
    "  --within MS           how long a program has to give back what is asked for; 5000\n"
    "  --turn MS             length of a time slice while another run waits; 500\n"
    "  --processors N        processors that runs may use at once; all by default, 1: time slices\n"
    "  --process-hard BYTES  what each process may hold; no limit by itself\n"
    "  --keep-for SECONDS    how long a segment of kept memory stays that no process writes; 3600\n"
    "  --log FILE            standard error by itself\n"
    "  --version, -V         the version\n"
    "\n" ZR_SIZE_HELP
    "zr service status shows who holds what, zr service limit sets quotas. SIGTERM ends it: programs go on with\n"
    "what they have, and register again with the next zrd.\n";

struct settings {
    uint64_t capacity_bytes, within_ms, slice_ms, process_hard_bytes, processors, keep_s;
    const char *log, *device;
};

/* Writes a text to a descriptor: alloc/ uses no stdio streams. */
static bool put(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool put(int fd, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return length >= 0 && (size_t)length < sizeof text &&
           zr_write_all(fd, ZR_PRESENT_POSITION, text, (size_t)length);
}

static void print_error(const char *words)
{
    put(STDERR_FILENO, "zrd: %s\n", words);
}

/* ---- The command line ---------------------------------------------------------------------------------- */

static bool read_size(const char *name, const char *text, uint64_t *out)
{
    const char *problem = zr_size_read(text, strlen(text), out);
    if (!problem && *out > UINT64_C(1) << 54)
        problem = "is out of range: the maximum is 16 PiB";
    if (problem)
        put(STDERR_FILENO, "zrd: %s '%.40s' %s; see zrd --help\n", name, text, problem);
    return !problem;
}

static bool read_count(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && errno == 0 && *end == '\0';
}

static bool read_milliseconds(const char *text, uint64_t *out)
{
    return read_count(text, out) && *out >= 10 && *out <= WITHIN_MAX_MS;
}

/* Returns the exit code; below 0: continue. */
static int read_arguments(struct settings *settings, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool good = value != NULL;
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
            return put(STDOUT_FILENO, "%s", help) ? 0 : EXIT_INPUT;
        if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
            return put(STDOUT_FILENO, "zrd %s\n", ZR_VERSION_STRING) ? 0 : EXIT_INPUT;
        uint64_t *size = strcmp(name, "--capacity") == 0       ? &settings->capacity_bytes
                         : strcmp(name, "--process-hard") == 0 ? &settings->process_hard_bytes
                                                               : NULL;
        if (size && value && !read_size(name, value, size))
            return EXIT_USAGE;
        if (size)
            good = good && (size != &settings->capacity_bytes || *size > 0);
        else if (strcmp(name, "--within") == 0)
            good = good && read_milliseconds(value, &settings->within_ms);
        else if (strcmp(name, "--turn") == 0)
            good = good && read_milliseconds(value, &settings->slice_ms);
        else if (strcmp(name, "--processors") == 0)
            good = good && read_count(value, &settings->processors) && settings->processors > 0 &&
                   settings->processors <= PROCESSORS_MAX;
        else if (strcmp(name, "--keep-for") == 0)
            good = good && read_count(value, &settings->keep_s) && settings->keep_s > 0 &&
                   settings->keep_s <= KEEP_MAX_S;
        else if (strcmp(name, "--log") == 0)
            settings->log = value;
        else if (strcmp(name, "--device") == 0)
            settings->device = value;
        else
            good = false;
        if (!good) {
            put(STDERR_FILENO, "zrd: %s %s: invalid value; see zrd --help\n", name, value ? value : "");
            return EXIT_USAGE;
        }
        i++;
    }
    return -1;
}

/* Memory of the machine or of the control group, the smaller of both; 0: unknown. */
static uint64_t memory_of_machine(void)
{
    struct zr_machine machine;
    zr_os_machine(&machine);
    uint64_t bytes = machine.memory_bytes;
    if (machine.cgroup_limit_bytes && (bytes == 0 || machine.cgroup_limit_bytes < bytes))
        bytes = machine.cgroup_limit_bytes;
    return bytes;
}

static unsigned processors_of_machine(void)
{
    struct zr_machine machine;
    zr_os_machine(&machine);
    return machine.cores_count;
}

/* ---- The service --------------------------------------------------------------------------------------- */

static int open_signals(void)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Raises the limit of descriptors, of which a client takes four or more. By syscall number, because
 * alloc/preload/ replaces the C library's functions. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, NULL);
    }
}

/* Opens the listener for the zrd's key and the device's memory, and sets the capacity. */
static zr_result open_device(struct zr_server *server, const char *device, struct zr_service_log *log)
{
    struct zr_ledger *ledger = &server->ledger;
    char key[ZR_SERVICE_KEY_BYTES] = ZR_SERVICE_HOST;
    size_t granule_bytes = 0;
    int ordinal;
    zr_result result = zr_backend_granule(0, &granule_bytes);
    ledger->least_bytes = granule_bytes;
    ledger->most_bytes = device ? 0 : memory_of_machine();
    if (result == ZR_OK)
        result = device ? zr_cuda_device_find(device, &ordinal, key) : ZR_OK;
    if (result == ZR_OK)
        result = zr_listener_open(&server->listener, key, log);
    if (result == ZR_OK && device)
        result = zr_device_pool_open(&server->device_pool, ordinal, &ledger->most_bytes);
    if (result == ZR_OK && device) {
        ledger->least_bytes = server->device_pool.backend->can.granule_bytes;
        snprintf(ledger->device_option, sizeof ledger->device_option, " --device %s", key);
    }
    if (result == ZR_OK && ledger->capacity_bytes > 0)
        result = zr_ledger_check_capacity(ledger, ledger->capacity_bytes);
    else if (result == ZR_OK)
        ledger->capacity_bytes = ledger->most_bytes ? ledger->most_bytes / 8 * 7 : UINT64_C(1) << 50;
    return result;
}

static zr_result serve(struct zr_server *server, const char *device, struct zr_service_log *log)
{
    char capacity[ZR_LEDGER_NUMBER_ROOM];
    const char *path = server->listener.address.sun_path;
    int signals = open_signals();
    zr_result result = open_device(server, device, log);
    if (result == ZR_OK)
        result = zr_server_start(server, log);
    if (result != ZR_OK)
        return result;
    zr_limits_name(&server->limits, path);
    zr_limits_load(&server->limits, &server->ledger, log);
    result = zr_listener_start(&server->listener);
    if (result == ZR_OK)
        result = zr_server_listen(server);
    if (result == ZR_OK && signals >= 0)
        result = zr_server_stop_by(server, signals);
    if (result == ZR_OK) {
        zr_service_log(log, "lends %s at %s", zr_ledger_bytes(capacity, server->ledger.capacity_bytes), path);
        while (!server->stop)
            zr_server_step(server, -1);
        zr_kept_report_lost(server);
        zr_service_log(log, "ends");
    }
    zr_server_end(server);
    return result;
}

int main(int argc, char **argv)
{
    static struct zr_server server;
    struct settings settings = {.within_ms = WITHIN_MS, .slice_ms = SLICE_MS, .keep_s = KEEP_S};
    struct zr_service_log log;
    int code = read_arguments(&settings, argc, argv);
    if (code >= 0)
        return code;
    if (zr_option_result() != ZR_OK) {
        print_error(zr_last_error());
        return EXIT_INPUT;
    }
    if (!zr_service_log_open(&log, settings.log)) {
        put(STDERR_FILENO, "zrd: cannot open '%s' (error %d)\n", settings.log, errno);
        return EXIT_INPUT;
    }
    umask(077);
    raise_descriptors();
    server.ledger.capacity_bytes = settings.capacity_bytes;
    server.ledger.process_hard_bytes = settings.process_hard_bytes;
    server.ledger.within_ns = settings.within_ms * 1000000;
    server.ledger.slice_ns = settings.slice_ms * 1000000;
    server.keep_for_ns = settings.keep_s * 1000000000;
    server.ledger.processors = settings.processors ? (unsigned)settings.processors : processors_of_machine();
    zr_result result = serve(&server, settings.device, &log);
    if (result != ZR_OK)
        print_error(zr_last_error());
    zr_service_log_close(&log);
    return result == ZR_OK ? 0 : result == ZR_ERR_INVALID ? EXIT_USAGE : EXIT_INPUT;
}
