/* zrd_test.c: zrd's side of each exchange, in one thread: what it answers, and that nothing stays with it of
 * a client that was refused, broke a rule or went at a rare moment; and the places where it listens. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/service/server/connection.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/folder.h"
#include "tests/support/tap.h"

#define MIB    ((uint64_t)1 << 20)
#define SECOND UINT64_C(1000000000)

/* Steps: a speaker's number, a letter (see take_step()) and what else it takes. What came: the speaker's
 * number and a letter (see hear()). zrd lends 64 MiB, and waits a second for an answer. */
static const struct row {
    const char *name, *steps, *came;
} rows[] = {
    {"a client comes and goes", "0O 0H0 0L4 0B4 0F", "0W0G0D"},
    {"a client goes with what it has", "0O 0H0 0F 0L4 0C 1O 1H0 1Lz", "0W0D0G1W1G"},
    {"one that its descriptors do not suffice for", "0O 0Hn 0H0 0Fn 0F", "0R0W0R0D"},
    {"one that holds what no process holds", "0O 0HT 0H0", "0R0W"},
    {"while zrd drains, one that holds nothing", "0O 0D 1O 1H0 1H1 0E", "0D1R1W0D"},
    {"and a lease", "0O 0H0 1O 1D 0L1 1E 0L1", "0W1D0R1D0G"},
    {"a client that registers twice", "0O 0H0 0H0", "0W0x0e0b"},
    {"or says something before it registers", "0O 0L1", "0x"},
    {"or what zrd says", "0O 0H0 0K", "0W0x0e0b"},
    {"or what there is not", "0O 0H0 0k", "0W0R0x0e0b"},
    {"or speaks another version", "0O 0V", "0R0x"},
    {"or says half a message", "0O 0Z", "0x"},
    {"or nothing for half a minute", "0O t", "0x"},
    {"a lease of nothing", "0O 0H0 0L0", "0W0x0e0b"},
    {"a lease beside another", "0O 0H0 0N 0Lz 1O 1H0 1L1 1L1", "0W0G1W0r1x1e1b"},
    {"a return of what is not held", "0O 0H0 0L1 0B2", "0W0G0x0e0b"},
    {"an answer to no question", "0O 0H0 0G", "0W0x0e0b"},
    {"a turn without a plan", "0O 0H0 0T", "0W0x0e0b"},
    {"files that are adopted", "0O 0H1 0A5 0A5", "0W0D0D"},
    {"what is no file", "0O 0H1 0A1", "0W0x0e0b"},
    {"a file that cannot be written", "0O 0H1 0A2", "0W0x0e0b"},
    {"a file that another zrd has taken", "0O 0H1 0A3", "0W0x0e0b"},
    {"a file of another client's", "0O 0H1 0F 1O 1H1 1A4", "0W0D1W1x1e1b"},
    {"a file of a connection that was lost", "0O 0H1 0F 0M 0C 0O 0H1 0A0 0U", "0W0D0W0D"},
    {"sixteen files, and one more",
     "0O 0H1 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0A5 0Fy 0A5",
     "0W0D0D0D0D0D0D0D0D0D0D0D0D0D0D0D0D0R0x0e0b"},
    {"memory that another process maps still", "0O 0H0 0F 0L4 0M 0C 1O 1H0 1Lz w 0U t 1Lz", "0W0D0G1W1R1G"},
    {"a client that does not answer", "0O 0H0 0F 0N 0Lz 1O 1H0 1L1 w 0v", "0W0D0G1W0r0x0e0b1G0v"},
    {"a client that goes with a question", "0O 0H0 0N 0Lz 1O 1H0 1L1 0C", "0W0G1W0r1G"},
    {"a client that goes while it waits", "0O 0H0 0N 0Lz 1O 1H0 1L1 1C 0B1 2O 2H0 2L1", "0W0G1W0r2W2G"},
    {"a limit, and one that sets nothing", "0O 0Q4 0Qn 1O 1H0 1L5 1L4", "0D0R1W1R1G"},
    {"a plan that another zrd has let in", "0O 0Hp 0T", "0W"},
    {"and one that no zrd lets in", "0O 0Hq", "0W0x0e0b"},
    {"and a turn beyond all numbers", "0O 0Hu", "0W"},
    {"what clients have", "0O 0H1 1O 1S", "0W1C"},
    {"and what they have idle, which is asked anew", "0O 0H0 0N 1O 1s0 0I4 1s0", "0W0i1C0i1C"},
    {"but not before it was answered", "0O 0H0 0N 1O 1s0 1s0", "0W0i1C1C"},
    {"what zrd has", "1O 1S", "1D"},
    {"its end", "0O 0X", "0DS"},
    {"a segment, and one of its name", "0O 0c4 0c4", "0D0R"},
    {"a segment without bytes, without a token", "0O 0c0 0cx", "0R0R"},
    {"a segment for a process with its token, and for one without", "0O 0c4 1O 1o4 1ox 1ow", "0D1D1R1R"},
    {"a segment counts", "0O 0c4 1O 1H0 1Lz 1L9", "0D1W1R1G"},
    {"waits for memory", "0O 0H0 0N 0Lz 1O 1c4 0B8", "0W0G0r1D"},
    {"is refused where there is none", "0O 0H0 0Lz 1O 1c4", "0W0G1R"},
    {"and ends with a process that waits for it", "0O 0H0 0N 0Lz 1O 1c4 1C 0B8 2O 2H0 2L8", "0W0G0r2W2G"},
    {"a quota of a group counts it, without its process, too", "0O 0Q8 1O 1c4 1C 2O 2H0 2L2 2L1",
     "0D1D2W2G2R"},
    {"a quota of a process counts its segments", "0O 0H0 1O 1q8 1c4 0L2 0L1", "0W1D1D0G0R"},
    {"segments are listed, and dropped", "0O 0c4 0l 0d4 0l 0d4", "0D0K0D0D0R"},
    {"a segment that no process writes", "0O 0c4 0C t 1O 1l 1C t 2O 2l", "0D1K2D"},
    {"a segment that its process reports to the next zrd", "0O 0c4 0d4 0a4 0l", "0D0D0D0K"},
    {"a file that is no segment", "0O 0H0 0F 0a4", "0W0D0R"},
    {"a client that keeps and registers", "0O 0c4 0H0", "0D0x"},
};

/* ---- Speakers ------------------------------------------------------------------------------------------ */

static struct zr_server server;
static struct zr_service_log nothing = {.fd = -1};
static char came[200];
static uint64_t clock_ns = 1000 * SECOND; /* of the rows: it stands still but for `w` and `t` */
static struct speaker {
    int line, bell, file;
    void *mapped;
} speakers[3];

static void drop(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void note(size_t number, char letter)
{
    size_t used = strlen(came);
    snprintf(came + used, sizeof came - used, "%zu%c", number, letter);
}

/* K: KEPT; W, D, G, R, C: WELCOME, DONE, GRANTED, REFUSED, CLIENT; r, e: RECLAIM, ENDED; x, b: the line and
 * the bell are hung up; f: a descriptor that exec would leave open. */
static void hear(struct speaker *speaker, int *socket)
{
    static const char letters[ZR_SERVICE_KIND_COUNT + 1] = "?...............WDGLRCryie.....K";
    struct zr_service_packet packet;
    size_t number = (size_t)(speaker - speakers);
    zr_result result;
    while (*socket >= 0 && (result = zr_service_receive(*socket, &packet, 0)) != ZR_ERR_TIMEOUT) {
        if (result != ZR_OK) {
            note(number, socket == &speaker->line ? 'x' : 'b');
            drop(socket);
            break;
        }
        bool good = zr_service_packet_check(*socket, &packet) == ZR_OK;
        note(number, good ? letters[packet.message.kind] : '?');
        if (packet.fds_count == 1) {
            int *slot = packet.message.kind == ZR_SERVICE_WELCOME ? &speaker->bell : &speaker->file;
            drop(slot);
            *slot = packet.fds[0];
            packet.fds[0] = -1;
        }
        zr_service_packet_close(&packet);
    }
}

/* zrd does what is to be done; `scarce`: it gets no descriptor meanwhile. */
static void serve(bool scarce)
{
    struct rlimit limit, none;
    getrlimit(RLIMIT_NOFILE, &limit);
    none = limit;
    none.rlim_cur = (rlim_t)dup(STDOUT_FILENO);
    close((int)none.rlim_cur);
    if (scarce)
        setrlimit(RLIMIT_NOFILE, &none);
    for (unsigned i = 0; i < 3; i++)
        zr_server_step(&server, 0);
    setrlimit(RLIMIT_NOFILE, &limit);
    for (struct speaker *speaker = speakers; speaker < speakers + 3; speaker++) {
        hear(speaker, &speaker->line);
        hear(speaker, &speaker->bell);
    }
}

/* 0: its own; 1: no file; 2: read-only; 3: emptied; 4: the first speaker's; 5: a new one. */
static int file_to_adopt(const struct speaker *speaker, char which)
{
    char path[40];
    int fd = which == '1' ? open("/dev/null", O_RDWR | O_CLOEXEC)
                          : memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (which == '3')
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW);
    if (which == '0' || which == '4') {
        close(fd);
        return fcntl(which == '0' ? speaker->file : speakers[0].file, F_DUPFD_CLOEXEC, 0);
    }
    if (which == '2') {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int other = open(path, O_RDONLY | O_CLOEXEC);
        close(fd);
        fd = other;
    }
    return fd;
}

static bool was_taken(int file)
{
    struct stat status;
    return fstat(file, &status) == 0 && status.st_size == 0 && fcntl(file, F_GET_SEALS) & F_SEAL_GROW;
}

static void say(struct speaker *speaker, char letter, char with)
{
    static const char letters[] = "?HFALBGNPTCISQDX";
    uint64_t bytes = with == 'z'   ? 64 * MIB
                     : with == 'T' ? ((uint64_t)1 << 50) + 1
                                   : (uint64_t)(with - '0') * MIB;
    const char *kind = strchr(letters, letter == 'E'   ? 'D'
                                       : letter == 'V' ? 'H'
                                       : letter == 's' ? 'S'
                                       : letter == 'q' ? 'Q'
                                                       : letter);
    struct zr_service_message message = zr_service_message_of(letter == 'k'   ? ZR_SERVICE_KIND_COUNT
                                                              : letter == 'K' ? ZR_SERVICE_DONE
                                                              : kind ? (enum zr_service_kind)(kind - letters)
                                                                     : ZR_SERVICE_KEEP_LIST);
    message.bytes = message.held_bytes = message.hard_bytes = bytes;
    message.flags = letter == 'E'                                     ? ZR_SERVICE_DRAIN_END
                    : letter == 'q' || (letter == 'Q' && with != 'n') ? ZR_SERVICE_SET_HARD
                                                                      : 0;
    message.pid = letter == 'q' ? getpid() : 0;
    if (letter == 's')
        message.flags = ZR_SERVICE_FRESH;
    if (with && strchr("pqu", with)) {
        message.run_count = 1;
        message.plan_base_bytes = with == 'q' ? 3 * MIB : MIB;
        message.plan_peak_bytes = 2 * MIB;
        message.bytes = message.held_bytes = 0;
        message.flags = ZR_SERVICE_IN_SLICE;
        message.slice = with == 'u' ? UINT64_MAX : 7;
    }
    if (strchr("colda", letter)) {
        static const char keeps[] = "colda";
        message.kind = (uint16_t)(ZR_SERVICE_KEEP_CREATE + (strchr(keeps, letter) - keeps));
        message.serial = letter == 'l' ? 0 : with == 'x' ? 0 : with == 'w' ? 6 : 5;
        message.held_bytes = message.count = message.flags = 0;
        strcpy(message.words, "shard");
    }
    strcpy(message.group, letter == 'q' ? "" : "a");
    message.version = (uint16_t)(message.version + (letter == 'V'));
    int fd = letter == 'A' ? file_to_adopt(speaker, with) : letter == 'a' ? file_to_adopt(speaker, '0') : -1;
    zr_service_send(speaker->line, &message, fd, true);
    drop(&fd);
}

/* O and C: connects, hangs up; M and U: maps its file, and maps it no more; v: whether that was taken; w: the
 * time for an answer passes; t: more time; Z: half a message; else a message, with so many MiB: see say(). */
static void take_step(const char *step)
{
    int pair[2];
    if (*step == 't' || *step == 'w') {
        clock_ns += *step == 't' ? 60 * SECOND : 2 * SECOND;
        return;
    }
    struct speaker *speaker = &speakers[*step - '0'];
    switch (step[1]) {
    case 'O':
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0) {
            speaker->line = pair[0];
            zr_server_admit(&server, pair[1]);
        }
        break;
    case 'C':
        drop(&speaker->line);
        drop(&speaker->bell);
        break;
    case 'M':
        speaker->mapped = ftruncate(speaker->file, 4096) == 0
                              ? mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, speaker->file, 0)
                              : NULL;
        break;
    case 'U':
        munmap(speaker->mapped, 4096);
        break;
    case 'v':
        note((size_t)(speaker - speakers), was_taken(speaker->file) ? 'v' : '?');
        break;
    case 'Z':
        send(speaker->line, &server, 7, MSG_NOSIGNAL);
        break;
    default:
        say(speaker, step[1], step[2]);
    }
}

static void start_server(void)
{
    memset(&server, 0, sizeof server);
    server.ledger.capacity_bytes = 64 * MIB;
    server.ledger.within_ns = SECOND;
    server.keep_for_ns = 100 * SECOND;
    zr_server_start(&server, &nothing);
    came[0] = '\0';
    for (unsigned i = 0; i < 3; i++)
        speakers[i] = (struct speaker){.line = -1, .bell = -1, .file = -1};
}

/* All hang up, and nothing is left of them. */
static bool end_server(int descriptors)
{
    for (unsigned i = 0; i < 3; i++) {
        drop(&speakers[i].line);
        drop(&speakers[i].bell);
        drop(&speakers[i].file);
    }
    server.keep_for_ns = 0;
    serve(false);
    bool good = server.connections_count + server.unregistered_count + server.left_count == 0 &&
                !server.connections && server.ledger.held_bytes + server.ledger.clients_count == 0;
    zr_server_end(&server);
    return good && open_descriptors() == descriptors;
}

static uint64_t rows_clock(void)
{
    return clock_ns;
}

static void test_rows(void)
{
    zr_os_clock_set(rows_clock);
    for (const struct row *row = rows; row < rows + sizeof rows / sizeof *rows; row++) {
        int descriptors = open_descriptors();
        start_server();
        for (const char *step = row->steps; *step; step += strcspn(step, " "), step += *step == ' ') {
            take_step(step);
            serve(step[1] && step[2] == 'n');
        }
        if (server.stop)
            strcat(came, "S");
        bool same = strcmp(came, row->came) == 0 && server.ledger.slice_number < 100,
             clean = end_server(descriptors);
        if (!tap_ok(same && clean, "%s", row->name))
            tap_note("came %s, %u clients, %d descriptors, were %d", came, server.connections_count,
                     open_descriptors(), descriptors);
    }
}

/* ---- Where it listens ---------------------------------------------------------------------------------- */

static char folder[] = "/tmp/zr-zrd-XXXXXX", place[80], lock[88];

static unsigned mode_of(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 ? status.st_mode & 0777 : 0;
}

static char connect_once(int *line)
{
    struct zr_service_packet packet = {0};
    int fd = -1;
    if (zr_service_connect(ZR_SERVICE_HOST, &fd) != ZR_OK)
        return '-';
    *line = fd;
    for (unsigned i = 0; i < 3; i++)
        zr_server_step(&server, 0);
    zr_result result = zr_service_receive(fd, &packet, 0);
    zr_service_packet_close(&packet);
    return result == ZR_OK && packet.message.kind == ZR_SERVICE_REFUSED ? 'R'
           : server.connections_count == 1                              ? '.'
                                                                        : '?';
}

/* Connections for which zrd has no descriptor are turned away, and the next one is served. */
static void test_scarce(void)
{
    static const unsigned kinds[] = {0, ZR_FAULT_DESCRIPTOR, ZR_FAULT_DESCRIPTOR | ZR_FAULT_TWICE,
                                     ZR_FAULT_DESCRIPTOR | ZR_FAULT_EINTR, 0};
    static const char wanted[] = ".R...";
    int descriptors = open_descriptors(), line = -1;
    start_server();
    bool good = zr_listener_open(&server.listener, ZR_SERVICE_HOST, &nothing) == ZR_OK &&
                zr_listener_start(&server.listener) == ZR_OK && zr_server_listen(&server) == ZR_OK;
    int listening = open_descriptors();
    for (unsigned i = 0; good && i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i])
            zr_fault_set(kinds[i], 2); /* the first is the connecting side's */
        char got = connect_once(&line);
        zr_fault_set(kinds[i] ? kinds[i] : ZR_FAULT_DESCRIPTOR, 0);
        drop(&line);
        for (unsigned step = 0; step < 3; step++)
            zr_server_step(&server, 0);
        good = got == wanted[i] && open_descriptors() == listening && server.spare >= 0;
        if (!good)
            tap_note("connection %u: %c, %d descriptors, were %d", i, got, open_descriptors(), listening);
    }
    tap_ok(good && end_server(descriptors),
           "a connection without a descriptor is turned away, the next one is served");
}

static zr_result check(struct zr_listener *listener, uint64_t now_ns, bool wanted)
{
    bool again = !wanted;
    zr_result result = zr_listener_check(listener, now_ns, &again, &nothing);
    return result == ZR_OK && again != wanted ? ZR_ERR_CORRUPT : result;
}

static void test_places(void)
{
    struct zr_listener listener, other;
    char shared[40], aside[48], number[24] = "";
    int descriptors = open_descriptors(), inherited = 0;
    for (int fd = 3; fd < 64; fd++)
        inherited -= fcntl(fd, F_GETFD) == 0;
    uint64_t now_ns = zr_os_now_ns();
    tap_ok(zr_listener_open(&listener, ZR_SERVICE_HOST, &nothing) == ZR_OK &&
               zr_listener_start(&listener) == ZR_OK,
           "zrd listens");
    int listening = open_descriptors();
    tap_ok(mode_of(place) == 0600 && mode_of(lock) == 0600, "at a socket and a lock of its user's alone");
    for (int fd = 3; fd < 64; fd++)
        inherited += fcntl(fd, F_GETFD) == 0;
    tap_ok(inherited == 0 && listener.due_ns == UINT64_MAX,
           "which exec closes, and looks when it is told to");
    tap_result(zr_listener_open(&other, ZR_SERVICE_HOST, &nothing), ZR_ERR_UNAVAILABLE,
               "no other zrd is beside it");
    snprintf(number, sizeof number, "process %d", (int)getpid());
    tap_ok(strstr(zr_last_error(), number) && open_descriptors() == listening, "and says which it is");
    drop(&listener.name); /* as where another user has the name */
    tap_result(zr_listener_open(&other, ZR_SERVICE_HOST, &nothing), ZR_ERR_UNAVAILABLE,
               "the lock keeps it away, too");
    tap_ok(strstr(zr_last_error(), number) && open_descriptors() == listening - 1 && mode_of(place) == 0600,
           "and names it");
    tap_result(check(&listener, now_ns, false), ZR_OK, "a notice of nothing");
    unlink(place);
    tap_result(check(&listener, now_ns, false), ZR_OK, "a socket that goes");
    tap_ok(listener.due_ns > now_ns && listener.due_ns < now_ns + SECOND, "is waited for");
    tap_result(check(&listener, listener.due_ns, true), ZR_OK, "and made again");
    tap_ok(mode_of(place) == 0600 && open_descriptors() == listening - 1 && listener.due_ns == UINT64_MAX,
           "as it was");
    snprintf(shared, sizeof shared, "%s/zr", folder);
    snprintf(aside, sizeof aside, "%s.aside", shared);
    rename(shared, aside);
    close(open(shared, O_CREAT | O_CLOEXEC, 0600));
    check(&listener, now_ns, false);
    tap_result(check(&listener, listener.due_ns, false), ZR_ERR_IO,
               "a folder that cannot be made again ends a zrd without a name");
    unlink(shared);
    tap_result(check(&listener, listener.due_ns, true), ZR_OK, "one that can is made");
    tap_ok(mode_of(place) == 0600 && mode_of(lock) == 0600 && open_descriptors() == listening - 1,
           "with both in it");
    drop(&listener.watch);
    tap_result(check(&listener, now_ns, false), ZR_OK, "a folder that cannot be watched");
    tap_is(listener.due_ns, now_ns + SECOND, "is looked at each second");
    unlink(place);
    close(open(place, O_CREAT | O_CLOEXEC, 0600));
    zr_listener_close(&listener);
    zr_listener_close(&listener);
    tap_ok(mode_of(place) == 0600 && open_descriptors() == descriptors,
           "at its end another's file stays, and no descriptor");
    tap_ok(zr_listener_open(&listener, ZR_SERVICE_HOST, &nothing) == ZR_OK &&
               zr_listener_start(&listener) == ZR_OK,
           "the next one takes its place");
    zr_listener_close(&listener);
    tap_ok(mode_of(place) == 0 && open_descriptors() == descriptors, "and leaves none");
}

/* ---- The file of limits -------------------------------------------------------------------------------- */

static void test_limits(void)
{
    static struct zr_limits limits;
    struct zr_service_message limit = {.flags = ZR_SERVICE_SET_HARD};
    char path[100], aside[108];
    struct rlimit whole;
    int descriptors = open_descriptors();
    start_server();
    zr_limits_name(&limits, place);
    snprintf(path, sizeof path, "%s.limits", place);
    snprintf(aside, sizeof aside, "%s.new", path);
    tap_result(zr_limits_note(&limits, &server.ledger, &limit), ZR_OK, "a limit is kept");
    tap_ok(mode_of(path) == 0600 && mode_of(aside) == 0,
           "in a file of its user's alone, and no other is left");
    for (unsigned i = 0; i < 2; i++) {
        limits.processes[i].pid = INT32_MAX;
        limits.processes[i].began = 1;
    }
    limits.processes_count = 2;
    limit.pid = INT32_MAX - 1;
    zr_limits_note(&limits, &server.ledger, &limit);
    tap_is(limits.processes_count, 0, "processes that are gone make room");
    getrlimit(RLIMIT_FSIZE, &whole);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 15, .rlim_max = whole.rlim_max});
    tap_result(zr_limits_note(&limits, &server.ledger, &limit), ZR_ERR_IO, "a full disk");
    setrlimit(RLIMIT_FSIZE, &whole);
    tap_ok(mode_of(path) == 0600 && mode_of(aside) == 0, "leaves the file that was there, and no other");
    unlink(path);
    mkdir(path, 0700);
    tap_result(zr_limits_note(&limits, &server.ledger, &limit), ZR_ERR_IO, "a folder of the file's name");
    tap_ok(mode_of(aside) == 0 && rmdir(path) == 0, "leaves none");
    tap_ok(end_server(descriptors), "nor a descriptor");
}

/* ---- A device's pieces --------------------------------------------------------------------------------- */

/* Lends a piece and shows it, with the nth call of the driver failing; *struck: there was one. */
static zr_result lend_struck(struct zr_device_pool *device_pool, const struct zr_emulator *emulator,
                             uint64_t nth, bool *struck)
{
    struct zr_pieces pieces = {0};
    struct zr_device_piece *piece;
    int fd;
    uint64_t before = emulator->calls(NULL);
    size_t granule = device_pool->backend->can.granule_bytes;
    emulator->fail(&(struct zr_emulator_fault){.nth = nth, .code = ZR_CU_OUT_OF_MEMORY});
    zr_result result = zr_device_pool_lend(device_pool, &pieces, (1 + nth % 100) * granule, &piece);
    if (result == ZR_OK)
        result = zr_piece_fd(device_pool, piece, &fd);
    if (result == ZR_OK)
        zr_piece_close_fd(device_pool, piece);
    *struck = emulator->calls(NULL) - before >= nth;
    emulator->fail(&(struct zr_emulator_fault){.nth = 0});
    bool found =
        pieces.first && zr_device_pool_find(device_pool, &pieces, pieces.first->number) == pieces.first;
    if (pieces.first)
        zr_device_pool_return(device_pool, &pieces, pieces.first);
    return pieces.bytes > 0 || (result == ZR_OK && !found) ? ZR_ERR_CORRUPT : result;
}

static void test_pieces(void)
{
    const struct zr_emulator *emulator = cuda_emulator_alone();
    struct zr_device_pool device_pool = {0};
    uint64_t total_bytes, nth = 0, refused = 0;
    bool struck = true, good;
    if (!emulator)
        return;
    good = zr_device_pool_open(&device_pool, 0, &total_bytes) == ZR_OK &&
           lend_struck(&device_pool, emulator, 1000, &struck) == ZR_OK;
    struct zr_emulator_state before = emulator->state();
    int descriptors = open_descriptors();
    for (struck = true; good && struck && nth < 100;) {
        bool no;
        zr_result result = lend_struck(&device_pool, emulator, ++nth, &struck);
        lend_struck(&device_pool, emulator, 1000,
                    &no); /* what the driver did not take back is given back again */
        struct zr_emulator_state after = emulator->state();
        refused += result != ZR_OK;
        good = result != ZR_ERR_CORRUPT && (struck || result == ZR_OK) &&
               after.memories_count == before.memories_count &&
               after.mappings_count == before.mappings_count &&
               after.reservations_count == before.reservations_count && open_descriptors() == descriptors &&
               device_pool.used_count == 1;
        if (!good)
            tap_note("call %d: %s, %zu memories, %zu mappings, %d descriptors", (int)nth,
                     zr_result_name(result), after.memories_count, after.mappings_count,
                     open_descriptors() - descriptors);
    }
    tap_ok(good && refused > 4 && !struck,
           "a piece for which a call of the driver fails is the device's again: %d calls", (int)nth);
    zr_device_pool_close(&device_pool);
}

int main(void)
{
    char command[100];
    if (!mkdtemp(folder))
        return 1;
    umask(0);
    zr_folder_temporary();
    zr_folders_set("/tmp", folder);
    snprintf(place, sizeof place, "%s/zr/service-host.sock", folder);
    snprintf(lock, sizeof lock, "%s.lock", place);
    test_rows();
    zr_os_clock_set(NULL);
    test_scarce();
    test_places();
    test_limits();
    test_pieces();
    snprintf(command, sizeof command, "rm -r %s*", folder);
    tap_is(system(command), 0, "the folder goes");
    return tap_done();
}
