/* service_client_test.c: this process as a client of a zrd that a thread of the test plays: what the client
 * says to each answer, to none and to what no zrd may say, and which descriptors each exchange leaves. Each
 * row runs in a child, which is a client that has said nothing yet. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/service/client/client.h"
#include "alloc/service/client/wire.h"
#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/option.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/tap.h"

#define MIB ((size_t)1 << 20)

struct row {
    const char *name,
        *calls; /* one letter a call: see make_call(); '@' first: of a device's zrd, '*': it is required */
    const char *answers;      /* one letter a request: see answer(); NULL: nobody listens */
    const char *came, *heard; /* results of the calls; messages that were heard: see note_heard() */
    int left;                 /* descriptors that the client keeps */
};

static const struct row rows[] = {
    {"a lease comes and goes", "jlb", "wg", "..", "H0L1B1", 2},
    {"a second join says nothing", "jj", "w", "..", "H0", 2},
    {"a process that nobody serves", "ja", NULL, ".\"", "", 0},
    {"which goes on alone", "jla", NULL, "..\"", "", 0},
    {"unless a zrd is required", "*jl", NULL, "UU", "", 0},
    {"a process that is turned away", "jla", "r", "..\"", "H0", 0},
    {"a refusal with a descriptor", "jl", "R", "..", "H0", 0},
    {"a welcome without a bell", "jl", "W", "..", "H0", 0},
    {"a welcome of another release", "jl", "v", "..", "H0", 0},
    {"a welcome that is cut", "jl", "s", "..", "H0", 0},
    {"another answer than a welcome", "jl", "g", "..", "H0", 0},
    {"and one with a descriptor", "jl", "f", "..", "H0", 0},
    {"no welcome", "jl", "x", "..", "H0", 0},
    {"a process that is served is not alone", "ja", "w", "._", "H0", 2},
    {"a lease that is refused", "jlla", "wrg", ".M._", "H0L1L1", 2},
    {"and one without a known reason", "jl", "wu", ".U", "H0L1", 2},
    {"and one with a reason that there is not", "jl", "wU", ".U", "H0L1", 2},
    {"a zrd that goes during a lease", "jl", "wxwg", "..", "H0L1H0L1", 2},
    {"a lease with half an answer", "jl", "wswg", "..", "H0L1H0L1", 2},
    {"a lease with another's answer", "jl", "wdwg", "..", "H0L1H0L1", 2},
    {"and one with a descriptor", "jl", "wfwg", "..", "H0L1H0L1", 2},
    {"a zrd that goes three times", "jl", "wxwxwx", "..", "H0L1H0L1H0L1", 2},
    {"and is required", "*jl", "wxwxwx", ".U", "H0L1H0L1H0L1", 2},
    {"the next zrd hears what is held", "jlll", "wggxwg", "....", "H0L1L1L1H2L1", 2},
    {"a zrd that goes between two leases", "jlht", "wqw", "..-", "H0L1H1", 2},
    {"a lease that waits for another's step", "ojl", "wllg", ".+-.", "H0L1L1L1", 2},
    {"and is refused then", "ojl", "wlr", ".+-M", "H0L1L1", 2},
    {"and whose zrd goes", "ojl", "wlx", ".+-.", "H0L1L1H0", 0},
    {"which nobody wants to hear", "jl", "wlg", "..", "H0L1L1", 2},
    {"a file", "jf", "wf", "..", "H0F", 2},
    {"a file that does not come", "jf", "wd", ".H", "H0F", 2},
    {"a file that is refused", "jf", "wr", ".M", "H0F", 2},
    {"a file without zrd", "jf", "r", "..", "H0", 0},
    {"the next zrd gets the files", "jFFl", "wffxwddg", "....", "H0FFL1H0AAL1", 2},
    {"but not those that were left", "jFFml", "wffxwdg", "....", "H0FFL1H0AL1", 2},
    {"a zrd that does not take one", "jFl", "wfxwr", "...", "H0FL1H0A", 0},
    {"and says that the leases are over", "jFll", "wfxwe", "..UU", "H0FL1H0A", 0},
    {"leases that are over", "jlal", "we", ".U\"U", "H0L1", 0},
    {"which the bell tells", "jlhl", "wEg", "..-U", "H0L1", 0},
    {"a plan and turns", "PThTh", "wgygg", "..Y.-", "H0P1/3TT", 2},
    {"the next zrd hears of both", "PTl", "wggxwg", "...", "H0P1/3TL1H0p1/3t7/3L1", 2},
    {"and of what is claimed", "PTcl", "wggxwg", "...", "H0P1/3TC2L1H0p1/3t7/2L1", 2},
    {"a plan that is refused", "Pl", "wrg", "M.", "H0P1/3L1", 2},
    {"and not told to the next zrd", "Pl", "wrxwg", "M.", "H0P1/3L1H0L1", 2},
    {"a plan that has to wait", "P", "wllg", "ww.", "H0P1/3P1/3P1/3", 2},
    {"a turn that is waited for no more", "PnT", "wgl", ".wI", "H0P1/3T", 2},
    {"a turn without zrd", "PTl", "wgx", "...", "H0P1/3TH0p1/3", 0},
    {"what is asked back", "Njlhg", "wkg", "..!", "H0nL1G9", 2},
    {"and what is idle", "jNlhi", "wKg", "..!", "H0NL1I5", 2},
    {"is no question of the next zrd's", "Njlhlg", "wkgxwg", "..!.", "H0nL1L1H1nL1", 2},
    {"returns that are gathered", "jll(bb)", "wgg", "...", "H0L1L1B2", 2},
    {"to the outermost end", "jll(b(b)b)", "wgg", "...", "H0L1L1B3", 2},
    {"or to 64 MiB", "jM(bl)", "wgg", "...", "H0L64B64L1", 2},
    {"and told once", "jll(bl)", "wggxwg", "....", "H0L1L1L1H1L1", 2},
    {"a program that takes the line's number", "jl1l", "wgwg", "...", "H0L1H1L1", 2},
    {"or the bell's", "jl2hl", "wgg", "..-.", "H0L1L1", 1},
    {"a child has neither, and returns nothing", "jlkb", "wg", "..c", "H0L1B1", 2},
    {"and tells a zrd of its own at once", "jl(K", "wqwg", "..c", "H0L1H0L1B1", 2},
    {"a piece of a device", "@jlp(b)", "wGf", "...", "H0L1FB1", 2},
    {"which zrd does not share any more", "@jp", "wd", ".U", "H0F", 2},
    {"or has not lent", "@jp", "wr", ".M", "H0F", 2},
    {"a device without zrd", "@jlp", "r", "..U", "H0", 0},
};

/* ---- The zrd ------------------------------------------------------------------------------------------- */

static struct {
    int listening, line, bell; /* -1: none */
    const char *answers;       /* what is left of them; NULL: what is wanted */
    char heard[200];
    _Atomic bool over;
} zrd;

static void note(char list[200], const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(char list[200], const char *format, ...)
{
    size_t used = strlen(list);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(list + used, 200 - used, format, arguments);
    va_end(arguments);
}

static void drop(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static unsigned mib(uint64_t bytes)
{
    return (unsigned)(bytes / MIB);
}

static void note_heard(const struct zr_service_packet *packet)
{
    static const char letters[] = "?HFALBGNPTCI";
    const struct zr_service_message *message = &packet->message;
    bool good = zr_service_packet_check(zrd.line, packet) == ZR_OK && message->kind < sizeof letters - 1;
    note(zrd.heard, "%c", good ? letters[message->kind] : '?');
    if (message->kind == ZR_SERVICE_LEASE || message->kind == ZR_SERVICE_RETURN)
        note(zrd.heard, "%u", mib(message->bytes));
    if (message->kind == ZR_SERVICE_GIVEN)
        note(zrd.heard, "%u", (unsigned)message->serial);
    if (message->kind == ZR_SERVICE_IDLE)
        note(zrd.heard, "%u", mib(message->bytes));
    if (message->kind == ZR_SERVICE_RESERVE)
        note(zrd.heard, "%u", mib(message->reservation_bytes));
    if (message->kind == ZR_SERVICE_PLAN)
        note(zrd.heard, "%u/%u", mib(message->plan_base_bytes), mib(message->plan_peak_bytes));
    if (message->kind != ZR_SERVICE_HELLO)
        return;
    note(zrd.heard, "%u%s", mib(message->held_bytes), message->flags & ZR_SERVICE_LISTENS ? "n" : "");
    if (message->plan_peak_bytes > 0)
        note(zrd.heard, "p%u/%u", mib(message->plan_base_bytes), mib(message->plan_peak_bytes));
    if (message->flags & ZR_SERVICE_IN_SLICE)
        note(zrd.heard, "t%u/%u", (unsigned)message->slice, mib(message->reservation_bytes));
}

static void ring(enum zr_service_kind kind, const char *words)
{
    struct zr_service_message message = zr_service_message_of(kind);
    message.serial = 9;
    message.bytes = MIB;
    strcpy(message.words, words);
    zr_service_send(zrd.bell, &message, -1, true);
}

static char wanted_answer(const struct zr_service_message *request)
{
    return request->kind == ZR_SERVICE_HELLO   ? 'w'
           : request->kind == ZR_SERVICE_FILE  ? 'f'
           : request->kind == ZR_SERVICE_ADOPT ? 'd'
                                               : 'g';
}

/* w: WELCOME, W: without a bell; g: GRANTED, G: with a descriptor; d: DONE, f: with a file; l: LATER; r:
 * REFUSED, R: with a descriptor, u and U: for no reason that there is; v: another version; s: a part of a
 * message; x: hangs up; q: GRANTED, and then hangs up; e: ENDED on the bell, and then hangs up. Before
 * another: E, y, k, K: ENDED, YIELD, RECLAIM, INQUIRE on the bell. */
static void answer(const struct zr_service_message *request)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_GRANTED);
    int fd = -1, pair[2];
    char how = zrd.answers ? 'x' : wanted_answer(request);
    while (zrd.answers && *zrd.answers && strchr("EykK", how = *zrd.answers++))
        ring(how == 'E'   ? ZR_SERVICE_ENDED
             : how == 'y' ? ZR_SERVICE_YIELD
             : how == 'k' ? ZR_SERVICE_RECLAIM
                          : ZR_SERVICE_INQUIRE,
             "over");
    if (strchr("wWvs", how))
        message.kind = ZR_SERVICE_WELCOME;
    if (strchr("rRuU", how))
        message.kind = ZR_SERVICE_REFUSED;
    if (strchr("df", how))
        message.kind = ZR_SERVICE_DONE;
    if (how == 'l')
        message.kind = ZR_SERVICE_LATER;
    if (how == 'v')
        message.version++;
    message.result = how == 'u' ? ZR_OK : how == 'U' ? (uint32_t)ZR_RESULT_COUNT : (uint32_t)ZR_ERR_MEMORY;
    message.within_ms = 5000;
    message.slice = 7;
    message.bytes = request->bytes;
    strcpy(message.words, how == 'l' ? "it waits" : "a refusal");
    if (strchr("wv", how) && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0) {
        drop(&zrd.bell);
        zrd.bell = pair[0];
        fd = pair[1];
    } else if (strchr("RGf", how)) {
        fd = memfd_create("test", MFD_CLOEXEC);
    }
    bool over = strchr("xqe", how);
    if (how == 'e')
        ring(ZR_SERVICE_ENDED, "over");
    if (over)
        drop(&zrd.bell);
    if (how == 's')
        send(zrd.line, &message, 100, MSG_NOSIGNAL);
    else if (how != 'x' && how != 'e')
        over = zr_service_send(zrd.line, &message, fd, true) != ZR_OK || over;
    if (over) {
        drop(&zrd.line);
        drop(&zrd.bell);
    }
    drop(&fd);
}

static void hear(void)
{
    struct zr_service_packet packet;
    zr_result result = zr_service_receive(zrd.line, &packet, 0);
    if (result != ZR_OK && result != ZR_ERR_TIMEOUT) {
        drop(&zrd.line);
        drop(&zrd.bell);
    }
    if (result != ZR_OK)
        return;
    note_heard(&packet);
    enum zr_service_kind kind = packet.message.kind;
    if (kind <= ZR_SERVICE_LEASE || kind == ZR_SERVICE_PLAN || kind == ZR_SERVICE_SLICE)
        answer(&packet.message);
    zr_service_packet_close(&packet);
}

static void *play(void *nothing)
{
    for (;;) {
        bool over = atomic_load(&zrd.over);
        struct pollfd fds[2] = {{.fd = zrd.line, .events = POLLIN}, {.fd = zrd.listening, .events = POLLIN}};
        int ready = poll(fds, 2, over ? 0 : 1);
        if (fds[0].revents)
            hear();
        else if (fds[1].revents && zrd.line < 0)
            zrd.line = accept4(zrd.listening, NULL, NULL, SOCK_CLOEXEC);
        else if (ready <= 0 && over)
            break;
    }
    drop(&zrd.line);
    drop(&zrd.bell);
    return nothing;
}

static bool listen_for(const char *key)
{
    struct sockaddr_un address;
    zrd.line = zrd.bell = -1;
    zrd.listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return zr_service_address(key, &address, true) == ZR_OK &&
           (unlink(address.sun_path) == 0 || errno == ENOENT) &&
           bind(zrd.listening, (const struct sockaddr *)&address, sizeof address) == 0 &&
           listen(zrd.listening, 4) == 0;
}

/* ---- The client ---------------------------------------------------------------------------------------- */

static struct {
    struct zr_service *service;
    struct zr_lease lease;
    size_t bytes; /* of the lease */
    struct zr_service_message asked;
    int files[4], foreign; /* foreign: a file of the program's own, where a socket of the client's was */
    unsigned files_count, waits;
    char came[200];
} own;

static void note_result(zr_result result)
{
    note(own.came, "%c",
         result == ZR_OK                ? '.'
         : result == ZR_ERR_UNAVAILABLE ? 'U'
         : result == ZR_ERR_MEMORY      ? 'M'
         : result == ZR_ERR_HOST_MEMORY ? 'H'
         : result == ZR_ERR_INTERRUPTED ? 'I'
                                        : '?');
}

static void put_off(void *state, bool waits)
{
    (void)state;
    note(own.came, waits ? "+" : "-");
}

static bool wait_on(void *state, const char *words)
{
    (void)state;
    note(own.came, strcmp(words, "it waits") == 0 ? "w" : "?");
    return own.waits > 0 && own.waits-- > 0;
}

static void lease(size_t bytes)
{
    struct zr_lease got;
    note_result(zr_service_lease(own.service, bytes, &got));
    if (got.number > 0)
        own.lease = got;
    own.bytes = bytes;
    drop(&got.fd);
}

static void leave(int fd)
{
    zr_service_file_leave(fd);
    close(fd);
}

static void take_file(bool keep)
{
    int fd = -1;
    zr_result result = zr_service_file(&fd);
    note_result(result);
    if (result == ZR_OK && keep) {
        own.files[own.files_count++] = fd;
    } else if (result == ZR_OK) {
        leave(fd);
    }
}

/* In a child of the client's. */
static int count_in_child(void)
{
    zr_service_return(own.service, MIB, &own.lease);
    return zr_service_notifications(own.service) < 0 ? open_descriptors() : -1;
}

static int return_in_child(void)
{
    lease(MIB);
    zr_service_return(own.service, own.bytes, &own.lease);
    return strcmp(own.came, "...") == 0 ? 0 : 1;
}

static void take_over(int fd)
{
    own.foreign = fd;
    dup3(zrd.listening, fd, O_CLOEXEC);
}

static void make_call(char letter)
{
    static const struct zr_service_plan plan = {
        .base_bytes = MIB, .peak_bytes = 3 * MIB, .run_count = 1, .threads = 1};
    char words[500];
    int fd;
    switch (letter) {
    case 'j':
        note_result(zr_service_join(own.service));
        break;
    case 'l': /* a MiB */
        lease(MIB);
        break;
    case 'M': /* much */
        lease(64 * MIB);
        break;
    case 'b': /* back */
        zr_service_return(own.service, own.bytes, &own.lease);
        break;
    case 'f': /* a file, which is closed */
        take_file(false);
        break;
    case 'F': /* or kept */
        take_file(true);
        break;
    case 'm': /* the first that is kept, no more */
        leave(own.files[0]);
        own.files[0] = own.files[--own.files_count];
        break;
    case 'p':
        note_result(zr_service_piece(own.service, 4, &fd));
        drop(&fd);
        break;
    case 'o':
        zr_service_on_deferral(own.service, put_off, NULL);
        break;
    case 'n': /* waits for no answer */
        own.waits = 0;
        break;
    case 'P':
        note_result(zr_service_plan(own.service, &plan, wait_on, NULL));
        break;
    case 'T':
        note_result(zr_service_slice(own.service, wait_on, NULL));
        break;
    case 'c':
        zr_service_reserve(own.service, 2 * MIB);
        break;
    case 'N':
        zr_service_listen();
        break;
    case 'h': /* hears the bell */
        note(own.came, zr_service_receive_notification(own.service, &own.asked) ? "!"
                       : zr_service_yield_bytes(own.service) == MIB             ? "Y"
                                                                                : "-");
        break;
    case 'g':
        zr_service_given(own.service, &own.asked, 0);
        break;
    case 'i':
        zr_service_report_idle(own.service, 5 * MIB);
        break;
    case 't':
        zr_service_tick(own.service);
        break;
    case 'a': /* why it is alone */
        zr_service_alone(words, sizeof words);
        note(own.came, words[0] ? "\"" : "_");
        break;
    case '(':
        zr_service_gather_begin();
        break;
    case ')':
        zr_service_gather_end();
        break;
    case '1': /* the program opens a file of its own where the line was, */
        take_over(zr_service_notifications(own.service) - 1);
        break;
    case '2': /* or the bell */
        take_over(zr_service_notifications(own.service));
        break;
    case 'k':
        note(own.came, in_child(count_in_child) == open_descriptors() - 2 ? "c" : "?");
        break;
    case 'K':
        note(own.came, in_child(return_in_child) == 0 ? "c" : "?");
        break;
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static const struct row *row;
static unsigned fault;
static uint64_t fault_nth;

/* Makes the row's calls; returns the descriptors that the client keeps. */
static int make_calls(void)
{
    bool device = *row->calls == '@', required = *row->calls == '*';
    const char *key = device ? "GPU-1" : ZR_SERVICE_HOST;
    pthread_t player;
    int inherited = inherited_descriptors();
    if (required)
        zr_option_set("service:required");
    own.waits = 9;
    own.foreign = -1;
    zr_service_of(key, &own.service);
    zrd.answers = row->answers;
    bool listens = fault || row->answers;
    if (listens && !listen_for(key))
        return -1;
    int before = open_descriptors();
    if (listens)
        pthread_create(&player, NULL, play, NULL);
    zr_fault_set(fault, fault ? fault_nth : 0);
    for (const char *at = row->calls + (device || required); *at; at++)
        make_call(*at);
    atomic_store(&zrd.over, true);
    if (listens)
        pthread_join(player, NULL);
    int bell = zr_service_notifications(own.service); /* where programs seldom look */
    bool good = inherited_descriptors() == inherited && (bell < 0 || bell > 200);
    if (own.foreign >= 0) {
        good = good && fcntl(own.foreign, F_GETFD) == FD_CLOEXEC;
        close(own.foreign);
    }
    for (unsigned i = 0; i < own.files_count; i++)
        leave(own.files[i]);
    return good ? open_descriptors() - before : -1;
}

/* Time stands still: nobody's patience ends, and what is to be tried again later is not. */
static uint64_t standing_clock(void)
{
    return 1;
}

static int run_row(void)
{
    zr_os_clock_set(standing_clock);
    int left = make_calls();
    bool good = left == row->left && strcmp(own.came, row->came) == 0 && strcmp(zrd.heard, row->heard) == 0;
    if (!good)
        tap_note("%s: came %s, heard %s, %d descriptors more", row->calls, own.came, zrd.heard, left);
    return !good;
}

static void test_rows(void)
{
    for (row = rows; row < rows + sizeof rows / sizeof *rows; row++)
        tap_is(in_child_within(run_row, 60), 0, "%s", row->name);
}

/* ---- Faults -------------------------------------------------------------------------------------------- */

enum { WRONG = 1, CLEAN };

/* With one pass of a fault site struck, on either side: each call ends, and no descriptor stays but those of
 * a connection. */
static int run_struck(void)
{
    int left = make_calls();
    uint64_t passes = zr_fault_set(fault, 0);
    bool interrupted = (fault & ~0xffu) == ZR_FAULT_EINTR;
    bool good = left == (zr_service_notifications(own.service) >= 0 ? 2 : 0) && !strchr(own.came, '?') &&
                (!interrupted || strcmp(own.came, row->came) == 0);
    if (!good)
        tap_note("%s:%llu: came %s, heard %s, %d descriptors more", zr_fault_site_name(fault),
                 (unsigned long long)fault_nth, own.came, zrd.heard, left);
    return !good ? WRONG : passes < fault_nth ? CLEAN : 0;
}

static void test_faults(void)
{
    static const struct row calls[] = {{.calls = "jlfFlbPT", .came = "......."},
                                       {.calls = "@jlpb", .came = "..."}};
    static const unsigned sites[] = {ZR_FAULT_DESCRIPTOR,
                                     ZR_FAULT_DESCRIPTOR | ZR_FAULT_TWICE,
                                     ZR_FAULT_RECEIVE,
                                     ZR_FAULT_RECEIVE | ZR_FAULT_TWICE,
                                     ZR_FAULT_SEND,
                                     ZR_FAULT_RECEIVE | ZR_FAULT_EINTR,
                                     ZR_FAULT_SEND | ZR_FAULT_EINTR,
                                     ZR_FAULT_WAIT | ZR_FAULT_EINTR};
    for (unsigned i = 0; i < sizeof sites / sizeof *sites; i++)
        for (row = calls; row < calls + 2; row++) {
            int result = 0;
            fault = sites[i];
            for (fault_nth = 1; result == 0 && fault_nth < 200; fault_nth++)
                result = in_child_within(run_struck, 60);
            tap_is(result, CLEAN, "%s: %s in turn, %llu times", row->calls, zr_fault_site_name(fault),
                   (unsigned long long)fault_nth - 2);
        }
    fault = 0;
}

static int count_services(void)
{
    struct zr_service *first = NULL, *again = NULL, *other;
    char key[] = "GPU-a";
    int count = 0;
    for (; zr_service_of(key, &other) == ZR_OK; key[4]++, count++)
        first = first ? first : other;
    zr_service_of("GPU-a", &again);
    for (other = NULL; (other = zr_service_next(other));)
        count += 100;
    return first && again == first && first != zr_service_host() && count == 1716 ? 0 : 1;
}

int main(void)
{
    static char folder[] = "/tmp/zr-client-XXXXXX", name[] = "a\tprogram\x7f";
    char command[64];
    if (!mkdtemp(folder))
        return 1;
    program_invocation_short_name = name; /* which no zrd would take */
    zr_folder_temporary();
    zr_folders_set("/tmp", folder);
    test_rows();
    test_faults();
    tap_is(in_child(count_services), 0, "a process has memory of sixteen devices' zrd, and of the host's");
    snprintf(command, sizeof command, "rm -r %s", folder);
    tap_is(system(command), 0, "the folder goes");
    return tap_done();
}
