/* service.c: `zr service`: starts, stops, shows and limits zrd. Uses alloc/service/client/wire.c.
 *
 * `start` runs the zrd in this program's folder in a session of its own, with its log in the folder of the
 * socket, and waits until zrd answers. `drain` waits until all clients have answered zrd's requests. A device
 * number needs the driver, which knows the UUID.
 *
 * JSON of `status`: {"version": 1, "clients": [{"pid", "program", "group", "held_bytes", "resident_bytes",
 * "peak_bytes", "waiting_bytes", "hard_bytes", "soft_bytes", "idle_bytes", "reclaim_ns", "plan_base_bytes",
 * "plan_peak_bytes", "in_turn", "turn", "claim_bytes", "shares", "messages", "listens", "left"}..], "pid",
 * "capacity_bytes", "lent_bytes", "process_hard_bytes", "within_ms", "draining", "devices": [{"device", and
 * the same}..]}. The outer members describe the host's zrd (zeros if none serves); with --device, they
 * describe the zrd of that device, and there is no list of devices. 0 means no quota, no plan, no time slice.
 * `turn` is the number of the run. `claim_bytes` are the bytes that the run may still take in its time slice.
 * `reclaim_ns` is the expected time to return `idle_bytes` (0: not measured). `left`: the process exited and
 * a child holds the memory, or, for a device, the connection ended and the process lives. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend/lender.h"
#include "alloc/service/client/wire.h"
#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "defrag/tool/live/clients.h"
#include "defrag/tool/tool.h"

#define END_NS   UINT64_C(10000000000)
#define START_NS UINT64_C(10000000000)

static const char help[] =
    "Controls zrd, which shares this machine's memory among several programs: it lends memory, with quotas, and takes it back.\n"
    "\n"
    "Examples\n"
    "  zr service start --capacity 16GiB           zrd in the background\n"
    "  ZR_CONF=service:on zr-train ..              a program that takes its host memory from zrd\n"
    "  zr service status                           the clients and their memory\n"
    "  zr service limit --pid 4711 --hard 4GiB     a process never gets more\n"
    "  zr service limit --group web --shares 3     three parts of contended memory, where others get one\n"
    "  zr service drain                            takes back idle memory, and lends no more\n"
    "  zr service drain --end                      lends again\n"
    "  zr service start --device 0                 another zrd, for the memory of a GPU\n"
    "  zr service keep list                        segments of kept memory, also of runs that have ended\n"
    "  zr service keep drop run7/shard-0           frees one\n"
    "  zr service stop                             programs keep running with the memory that they have\n"
    "\n"
    "zr service start [--capacity BYTES] [--within MS] [--turn MS] [--processors N]\n"
    "    [--process-hard BYTES] [--keep-for SECONDS]\n"
    "zr service status [--json]\n"
    "zr service limit --pid N|--group NAME [--hard BYTES] [--soft BYTES] [--shares N]\n"
    "zr service limit --capacity BYTES\n"
    "zr service drain [--end]\n"
    "zr service keep list [--json]\n"
    "zr service keep drop NAME\n"
    "zr service stop\n"
    "Each but keep takes --device N|UUID for the zrd of a GPU instead of the host's\n"
    "\n"
    "  start   options as in zrd --help\n"
    "  status  the clients of the host's memory and of each GPU's; exit code 1: no zrd serves\n"
    "  limit   sets quotas of a process, or of a group (ZR_GROUP of a program, else its control group's name); 0 removes one\n"
    "  drain   exit code 1: some memory is still held. --end lends again; the zrd of a GPU needs --device here, too\n"
    "  keep    segments whose contents survive their writer's death; drop refuses while a process writes the segment\n";

/* ---- Requests to zrd ----------------------------------------------------------------------------------- */

/* Reads the value of --device; NULL: not given. */
static zr_result read_key(const char *device, char key[ZR_SERVICE_KEY_BYTES])
{
    strcpy(key, ZR_SERVICE_HOST);
    return device ? zr_cuda_device_find(device, NULL, key) : ZR_OK;
}

static zr_result ask_once(const char *key, const struct zr_service_message *message,
                          struct zr_service_message *answer)
{
    int fd;
    zr_result result = zr_service_connect(key, &fd);
    if (result != ZR_OK)
        return result;
    result = zr_service_ask(fd, message, answer);
    close(fd);
    return result;
}

/* ---- start, stop --------------------------------------------------------------------------------------- */

/* Finds zrd in the folder of this program. */
static zr_result find_zrd(char *out, size_t room_bytes)
{
    ssize_t length = readlink("/proc/self/exe", out, room_bytes - 1);
    out[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(out, '/');
    if (!slash || (size_t)(slash - out) + 5 >= room_bytes)
        return zr_fail(ZR_ERR_UNAVAILABLE, "cannot find the folder of this program");
    strcpy(slash + 1, "zrd");
    return access(out, X_OK) == 0
               ? ZR_OK
               : zr_fail(ZR_ERR_UNAVAILABLE, "'%s' does not exist: install it beside zr", out);
}

/* Never returns: becomes zrd in a session of its own, with its messages in a log file. */
static _Noreturn void become_zrd(const char *program, char **arguments, const char *log)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int file = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    setsid();
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(file >= 0 ? file : null, STDERR_FILENO);
    execv(program, arguments);
    _exit(127);
}

/* Reports that zrd exited, with the last lines of its log. */
static zr_result ended_at_once(int status, const char *log)
{
    char text[1024];
    struct zr_file file;
    uint64_t bytes = 0;
    size_t got = 0;
    zr_result result = zr_file_open(&file, log);
    if (result == ZR_OK)
        result = zr_file_size(&file, &bytes);
    uint64_t start = bytes > sizeof text - 1 ? bytes - (sizeof text - 1) : 0;
    if (result == ZR_OK)
        result = zr_file_read_at(&file, start, text, (size_t)(bytes - start));
    got = result == ZR_OK ? (size_t)(bytes - start) : 0;
    zr_file_close(&file);
    while (got > 0 && text[got - 1] == '\n')
        got--;
    text[got] = '\0';
    const char *line = strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
    bool usage = WIFEXITED(status) && WEXITSTATUS(status) == 2;
    return strncmp(line, "zrd: ", 5) == 0
               ? zr_fail(usage ? ZR_ERR_INVALID : ZR_ERR_UNAVAILABLE, "%s", line + 5)
               : zr_fail(ZR_ERR_UNAVAILABLE, "zrd exited at once: see the end of '%s'", log);
}

/* Waits until zrd answers or exits. */
static zr_result await_zrd(const char *key, pid_t child, const char *log)
{
    uint64_t start_ns = zr_os_now_ns();
    struct zr_service_message status = zr_service_message_of(ZR_SERVICE_STATUS), answer;
    status.serial = UINT64_MAX;
    while (zr_os_now_ns() - start_ns < START_NS) {
        int code;
        if (ask_once(key, &status, &answer) == ZR_OK && answer.pid == child)
            return ZR_OK;
        if (waitpid(child, &code, WNOHANG) == child)
            return ended_at_once(code, log);
        usleep(5000);
    }
    return zr_fail(ZR_ERR_UNAVAILABLE, "zrd does not answer: see the end of '%s'", log);
}

enum { ARGUMENTS_MAX = 20, LOG_ROOM = ZR_FOLDER_BYTES + 16 + ZR_SERVICE_KEY_BYTES };

/* The process number of a running zrd; 0: none runs. ZR_ERR_UNAVAILABLE: a zrd of another release runs. */
static zr_result find_running(const char *key, int32_t *pid)
{
    struct zr_service_message status = zr_service_message_of(ZR_SERVICE_STATUS), answer;
    int fd;
    status.serial = UINT64_MAX;
    *pid = 0;
    if (zr_service_connect(key, &fd) != ZR_OK)
        return ZR_OK;
    zr_result result = zr_service_ask(fd, &status, &answer);
    close(fd);
    *pid = result == ZR_OK ? answer.pid : 0;
    return result == ZR_ERR_UNAVAILABLE ? result : ZR_OK;
}

static bool is_served(const char *key)
{
    int32_t pid;
    return find_running(key, &pid) == ZR_OK && pid != 0;
}

/* `arguments` are zrd's; this function fills in the first. */
static zr_result start_zrd(const char *key, char *arguments[ARGUMENTS_MAX], int32_t *pid, char log[LOG_ROOM])
{
    char program[1024], folder[ZR_FOLDER_BYTES];
    zr_result result = find_zrd(program, sizeof program);
    if (result == ZR_OK)
        result = zr_folder_runtime(folder, true);
    if (result != ZR_OK)
        return result;
    bool host = strcmp(key, ZR_SERVICE_HOST) == 0;
    snprintf(log, LOG_ROOM, "%s/zrd%s%s.log", folder, host ? "" : "-", host ? "" : key);
    static char option[] = "--log";
    unsigned count = 1;
    while (arguments[count])
        count++;
    arguments[0] = program;
    arguments[count] = option;
    arguments[count + 1] = log;
    pid_t child = fork();
    if (child == 0)
        become_zrd(program, arguments, log);
    *pid = child;
    /* NOLINTNEXTLINE(clang-analyzer-*): arguments are not read after this call */
    return child > 0 ? await_zrd(key, child, log) : zr_fail(ZR_ERR_UNAVAILABLE, "cannot start a process");
}

zr_result zr_tool_service_need(bool start, const char *device)
{
    static char option[] = "--device";
    char *arguments[ARGUMENTS_MAX] = {NULL}, log[LOG_ROOM], key[ZR_SERVICE_KEY_BYTES];
    int32_t pid = 0;
    zr_result result = read_key(device, key);
    if (result == ZR_OK)
        result = find_running(key, &pid);
    if (result != ZR_OK || pid != 0)
        return result;
    arguments[1] = device ? option : NULL;
    arguments[2] = (char *)(uintptr_t)device;
    return start ? start_zrd(key, arguments, &pid, log) : ZR_ERR_UNAVAILABLE;
}

static int start(int argc, char **argv)
{
    enum { DEVICE = 6, VALUES };
    const char *values[VALUES] = {NULL};
    static const char *const names[] = {"--capacity",   "--within",   "--process-hard", "--turn",
                                        "--processors", "--keep-for", "--device"};
    const struct zr_tool_option options[] = {
        {names[0], ZR_TOOL_TEXT, &values[0]},           {names[1], ZR_TOOL_TEXT, &values[1]},
        {names[2], ZR_TOOL_TEXT, &values[2]},           {names[3], ZR_TOOL_TEXT, &values[3]},
        {names[4], ZR_TOOL_TEXT, &values[4]},           {names[5], ZR_TOOL_TEXT, &values[5]},
        {names[DEVICE], ZR_TOOL_TEXT, &values[DEVICE]}, {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments parsed = {.help = help, .options = options};
    char *arguments[ARGUMENTS_MAX] = {NULL}, log[LOG_ROOM];
    char key[ZR_SERVICE_KEY_BYTES];
    unsigned count = 1;
    int32_t pid;
    int code = zr_tool_parse(&parsed, argc, argv);
    if (code >= 0)
        return code;
    zr_result result = read_key(values[DEVICE], key);
    if (result == ZR_OK)
        result = find_running(key, &pid);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    if (pid != 0) {
        zr_tool_log("service: zrd runs already, as process %" PRId32, pid);
        return ZR_TOOL_FINE;
    }
    for (unsigned i = 0; i < VALUES; i++)
        if (values[i]) {
            arguments[count++] = (char *)(uintptr_t)names[i];
            arguments[count++] = (char *)(uintptr_t)values[i];
        }
    result = start_zrd(key, arguments, &pid, log);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    zr_tool_log("service: zrd is process %" PRId32 "; its log is '%s'", pid, log);
    return ZR_TOOL_FINE;
}

/* ---- status -------------------------------------------------------------------------------------------- */

static void table_client(struct zr_text *text, const struct zr_service_message *client)
{
    char number[6][ZR_TOOL_NUMBER_ROOM];
    bool plan = client->plan_peak_bytes > 0;
    zr_text_print(text, "%8" PRId32 " %-16.16s %-12.12s %6" PRIu32 " %10s %10s %10s %10s %10s %10s%s%s\n",
                  client->pid, client->program, client->group, client->shares,
                  zr_tool_bytes(number[0], client->held_bytes), zr_tool_bytes(number[1], client->peak_bytes),
                  plan ? zr_tool_bytes(number[2], client->plan_peak_bytes) : "-",
                  client->flags & ZR_SERVICE_IDLE_KNOWN ? zr_tool_bytes(number[3], client->idle_bytes) : "-",
                  client->soft_bytes ? zr_tool_bytes(number[4], client->soft_bytes) : "-",
                  client->hard_bytes ? zr_tool_bytes(number[5], client->hard_bytes) : "-",
                  client->bytes                                    ? "  waits for more"
                  : plan && !(client->flags & ZR_SERVICE_IN_SLICE) ? "  waits for its time slice"
                                                                   : "",
                  client->flags & ZR_SERVICE_LEFT ? "  exited; a child of it holds this" : "");
}

struct listing {
    struct zr_text *text;
    bool json, any;
};

static void show_client(void *state, const struct zr_service_message *client)
{
    struct listing *listing = state;
    if (listing->json) {
        zr_text_print(listing->text, listing->any ? ",\n " : "");
        zr_client_json(listing->text, client);
    } else {
        if (!listing->any)
            zr_text_print(listing->text, "%8s %-16s %-12s %6s %10s %10s %10s %10s %10s %10s\n", "pid",
                          "program", "group", "shares", "held", "peak", "planned", "idle", "soft", "hard");
        table_client(listing->text, client);
    }
    listing->any = true;
}

/* Prints a table and a line, or the members of a JSON object. False: that zrd does not serve. */
static bool show_one(struct zr_text *text, const char *key, bool json)
{
    struct zr_service_message totals;
    char number[2][ZR_TOOL_NUMBER_ROOM];
    bool host = strcmp(key, ZR_SERVICE_HOST) == 0, draining;
    if (!is_served(key))
        return false;
    zr_text_print(text, json ? "\"clients\": [" : "");
    if (zr_service_query(key, &(struct zr_service_question){.fresh = ZR_SERVICE_AWAITED}, show_client,
                         &(struct listing){text, json, false}, &totals) != ZR_OK)
        totals = zr_service_message_of(ZR_SERVICE_DONE);
    draining = totals.flags & ZR_SERVICE_DRAINING;
    if (json)
        zr_text_print(text,
                      "], \"pid\": %" PRId32 ", \"capacity_bytes\": %" PRIu64 ", \"lent_bytes\": %" PRIu64
                      ", \"process_hard_bytes\": %" PRIu64 ", \"within_ms\": %" PRIu32 ", \"draining\": %s",
                      totals.pid, totals.bytes, totals.held_bytes, totals.hard_bytes, totals.within_ms,
                      totals.flags & ZR_SERVICE_DRAINING ? "true" : "false");
    else
        zr_text_print(
            text, "%s of %s%s%s are lent to %" PRIu64 " processes by zrd, process %" PRId32 "%s%s%s%s%s%s\n",
            zr_tool_bytes(number[0], totals.held_bytes), zr_tool_bytes(number[1], totals.bytes),
            host ? "" : " of device ", host ? "" : key, totals.count, totals.pid,
            draining ? ", which is draining (zr service drain --end" : "",
            draining && !host ? " --device " : "", draining && !host ? key : "",
            draining ? " lends again)" : "", totals.words[0] ? "\n" : "", totals.words);
    return true;
}

/* Shows the object of one zrd, or the host's with the devices' inside. */
static int show_status(int argc, char **argv)
{
    bool json = false, any = false;
    const char *device = NULL;
    const struct zr_tool_option options[] = {
        {"--json", ZR_TOOL_FLAG, &json}, {"--device", ZR_TOOL_TEXT, &device}, {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = help, .options = options};
    struct zr_tool_output out;
    char keys[ZR_SERVICES_SHOWN][ZR_SERVICE_KEY_BYTES];
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    zr_result result = read_key(device, keys[0]);
    if (result != ZR_OK)
        return zr_tool_fail(result);
    unsigned count = device ? 1 : zr_services_keys(keys), shown = 0;
    zr_tool_output_start(&out);
    zr_text_print(&out.text, json ? "{\"version\": 1, " : "");
    any = show_one(&out.text, keys[0], json);
    if (json && !any)
        zr_text_print(&out.text, "\"clients\": [], \"pid\": 0, \"capacity_bytes\": 0, \"lent_bytes\": 0");
    zr_text_print(&out.text, json && !device ? ",\n \"devices\": [" : "");
    for (unsigned i = 1; i < count; i++) {
        if (!is_served(keys[i]))
            continue;
        if (json)
            zr_text_print(&out.text, "%s{\"device\": \"%s\", ", shown++ ? ",\n " : "", keys[i]);
        any |= show_one(&out.text, keys[i], json);
        zr_text_print(&out.text, json ? "}" : "");
    }
    zr_text_print(&out.text, !json ? "" : device ? "}\n" : "]}\n");
    if (any)
        return zr_tool_output_end(&out);
    is_served(keys[0]); /* sets the error message */
    return zr_tool_fail(ZR_ERR_UNAVAILABLE);
}

/* ---- limit, drain, stop -------------------------------------------------------------------------------- */

#define NOT_GIVEN UINT64_MAX

static int limit(int argc, char **argv)
{
    uint64_t pid = 0, hard = NOT_GIVEN, soft = NOT_GIVEN, shares = NOT_GIVEN, capacity = NOT_GIVEN;
    const char *group = NULL, *device = NULL;
    char key[ZR_SERVICE_KEY_BYTES];
    const struct zr_tool_option options[] = {
        {"--pid", ZR_TOOL_COUNT, &pid},       {"--group", ZR_TOOL_TEXT, &group},
        {"--hard", ZR_TOOL_BYTES, &hard},     {"--soft", ZR_TOOL_BYTES, &soft},
        {"--shares", ZR_TOOL_COUNT, &shares}, {"--capacity", ZR_TOOL_BYTES, &capacity},
        {"--device", ZR_TOOL_TEXT, &device},  {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = help, .options = options};
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_LIMIT), answer;
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    if ((group && strlen(group) >= sizeof message.group) || pid > INT32_MAX ||
        (shares != NOT_GIVEN && shares > UINT32_MAX)) {
        zr_tool_log(
            "limit: a group's name has at most %zu letters, and --pid and --shares must be small numbers",
            sizeof message.group - 1);
        return ZR_TOOL_USAGE;
    }
    if ((hard != NOT_GIVEN || soft != NOT_GIVEN || shares != NOT_GIVEN) && (pid == 0) == !group) {
        zr_tool_log(
            "limit: --hard, --soft and --shares need a process or a group: give --pid N or --group NAME%s",
            group ? ", not both" : "");
        return ZR_TOOL_USAGE;
    }
    if (hard == NOT_GIVEN && soft == NOT_GIVEN && shares == NOT_GIVEN && capacity == NOT_GIVEN) {
        zr_tool_log("limit: no limit is given: give --hard, --soft, --shares or --capacity");
        return ZR_TOOL_USAGE;
    }
    message.pid = (int32_t)pid;
    snprintf(message.group, sizeof message.group, "%s", group ? group : "");
    message.flags = (hard != NOT_GIVEN ? ZR_SERVICE_SET_HARD : 0u) |
                    (soft != NOT_GIVEN ? ZR_SERVICE_SET_SOFT : 0u) |
                    (shares != NOT_GIVEN ? ZR_SERVICE_SET_SHARES : 0u) |
                    (capacity != NOT_GIVEN ? ZR_SERVICE_SET_CAPACITY : 0u);
    message.hard_bytes = hard;
    message.soft_bytes = soft;
    message.shares = (uint32_t)shares;
    message.bytes = capacity;
    if (!(message.flags & ZR_SERVICE_SET_HARD))
        message.hard_bytes = 0;
    if (!(message.flags & ZR_SERVICE_SET_SOFT))
        message.soft_bytes = 0;
    if (!(message.flags & ZR_SERVICE_SET_CAPACITY))
        message.bytes = 0;
    zr_result result = read_key(device, key);
    if (result == ZR_OK)
        result = ask_once(key, &message, &answer);
    if (result == ZR_OK && answer.words[0])
        zr_tool_log("service: %s", answer.words);
    return zr_tool_fail(result);
}

static int drain(int argc, char **argv)
{
    bool end = false;
    const char *device = NULL;
    char key[ZR_SERVICE_KEY_BYTES];
    const struct zr_tool_option options[] = {
        {"--end", ZR_TOOL_FLAG, &end}, {"--device", ZR_TOOL_TEXT, &device}, {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = help, .options = options};
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DRAIN), answer;
    struct zr_service_message status = zr_service_message_of(ZR_SERVICE_STATUS);
    char number[ZR_TOOL_NUMBER_ROOM];
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    message.flags = end ? ZR_SERVICE_DRAIN_END : 0;
    zr_result result = read_key(device, key);
    if (result == ZR_OK)
        result = ask_once(key, &message, &answer);
    if (result != ZR_OK || end)
        return zr_tool_fail(result);
    status.serial = UINT64_MAX;
    result = ask_once(key, &status, &answer);
    uint64_t start_ns = zr_os_now_ns(), within_ns = (uint64_t)answer.within_ms * 1000000, held = 0;
    while (result == ZR_OK && (held = answer.held_bytes) > 0 && answer.flags & ZR_SERVICE_ASKING &&
           zr_os_now_ns() - start_ns < within_ns) {
        usleep(10000);
        result = ask_once(key, &status, &answer);
    }
    if (result != ZR_OK)
        return zr_tool_fail(result);
    if (held == 0)
        return ZR_TOOL_FINE;
    zr_tool_log("service: %s are still in use; zr service status shows by which processes",
                zr_tool_bytes(number, held));
    return ZR_TOOL_THRESHOLD;
}

/* Stops the zrd at the other end and waits for its exit. */
static zr_result stop_one(int fd)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_STOP), answer;
    struct zr_service_packet none;
    zr_result result = zr_service_ask(fd, &message, &answer);
    if (result == ZR_OK && answer.words[0])
        zr_tool_log("service: %s", answer.words);
    if (result == ZR_OK && zr_service_receive(fd, &none, END_NS) == ZR_ERR_TIMEOUT)
        result = zr_fail(ZR_ERR_TIMEOUT,
                         "zrd, process %" PRId32 ", has not exited yet: end it with `kill -9 %" PRId32 "`",
                         zr_service_peer(fd), zr_service_peer(fd));
    close(fd);
    return result;
}

/* A second zrd, of an older release, may listen at the other address: zr_service_connect() finds it next. */
static int stop(int argc, char **argv)
{
    const char *device = NULL;
    char key[ZR_SERVICE_KEY_BYTES];
    const struct zr_tool_option options[] = {{"--device", ZR_TOOL_TEXT, &device}, {NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = help, .options = options};
    int fd, code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    zr_result result = read_key(device, key);
    if (result == ZR_OK)
        result = zr_service_connect(key, &fd);
    if (result == ZR_OK)
        result = stop_one(fd);
    if (result == ZR_OK && zr_service_connect(key, &fd) == ZR_OK)
        result = stop_one(fd);
    return zr_tool_fail(result);
}

static int keep(int argc, char **argv)
{
    return zr_tool_service_keep(argc, argv, help);
}

int zr_tool_service(int argc, char **argv)
{
    static struct {
        const char *name;
        int (*run)(int argc, char **argv);
        char whole[16]; /* the command's name in messages */
    } commands[] = {{"start", start, "service start"},         {"stop", stop, "service stop"},
                    {"status", show_status, "service status"}, {"limit", limit, "service limit"},
                    {"drain", drain, "service drain"},         {"keep", keep, "service keep"}};
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            argv[1] = commands[i].whole;
            return commands[i].run(argc - 1, argv + 1);
        }
    const struct zr_tool_option options[] = {{NULL, ZR_TOOL_FLAG, NULL}};
    struct zr_tool_arguments arguments = {.help = help, .options = options};
    int code = zr_tool_parse(&arguments, argc, argv);
    if (code >= 0)
        return code;
    zr_tool_log(
        "service: a command is missing: start, stop, status, limit, drain or keep; see zr service --help");
    return ZR_TOOL_USAGE;
}
