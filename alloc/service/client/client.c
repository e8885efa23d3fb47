/* client.c: see client.h. Uses wire.c and host_common.c.
 *
 * Two locks. `request_lock` is held from a request to its answer, which may take as long as another client
 * has to return memory, or as another run's step. A thread with this lock may reconnect. `send_lock` is held
 * for one message at most. Messages without an answer (RETURN, GIVEN) need only `send_lock`, so the helper
 * thread can return memory while a request waits. A message is sent and its bytes are counted under one hold
 * of `send_lock`, so that a new zrd counts each byte once. */
#define _GNU_SOURCE
#include "alloc/service/client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/backend/host_common.h"
#include "alloc/service/client/wire.h"
#include "alloc/base/error.h"
#include "alloc/base/system/fork.h"
#include "alloc/base/option.h"
#include "alloc/base/system/os.h"

#define ANSWER_NS      UINT64_C(2000000000)  /* limit for answers that zrd sends at once */
#define REQUIRED_NS    UINT64_C(60000000000) /* limit of a wait for a required zrd: a restart takes less */
#define RETRY_NS       UINT64_C(500000000)
#define WAIT_NS        UINT64_C(20000000) /* first wait for a required zrd; then doubled */
#define WAIT_MAX_NS    UINT64_C(1000000000)
#define HUNG_NS        UINT64_C(30000000000) /* time before the next try if zrd runs and does not answer */
#define MARGIN_NS      UINT64_C(2000000000)  /* beyond the time that zrd allows for a lease */
#define GATHER_BYTES   ((uint64_t)64 << 20)
#define DESCRIPTOR_MIN 200 /* the lowest number used: programs that close unknown descriptors begin below */

enum state { NOT_TRIED = 0, JOINED, NO_ZRD, ENDED };

/* A program may close the library's descriptor and open another file with its number: the inode tells. */
struct socket_fd {
    int fd; /* -1: none */
    dev_t device;
    ino_t inode;
};

struct zr_service {
    struct zr_lender lender;
    char key[ZR_SERVICE_KEY_BYTES]; /* set once */
    pthread_mutex_t request_lock;   /* taken before send_lock */
    pthread_mutex_t send_lock;      /* for all fields below */
    struct socket_fd requests, notifications;
    enum state state;
    bool joined_once; /* a zrd was running and may start again: worth a wait */
    bool broken;      /* the request socket failed; reconnect */
    uint64_t held_bytes;
    uint64_t returned_bytes; /* batched returns that were not yet sent to zrd */
    unsigned gathering_count;
    uint64_t connection_number,
        notified_number; /* of this connection, and of the one with the last notification */
    uint64_t again_ns;   /* when to try to connect again */
    uint64_t within_ns;
    uint64_t serial;               /* of requests */
    struct zr_service_plan plan;   /* valid if `admitted` */
    zr_service_deferral *deferral; /* request_lock */
    void *deferral_state;          /* request_lock */
    bool admitted, in_slice;
    uint64_t slice, reservation_bytes; /* the time slice's number, and the max held until its end */
    _Atomic uint64_t yield_bytes;      /* bytes that a waiting run lacks */
    int files[ZR_SERVICE_FILES_MAX];
    unsigned files_count;
    char words[ZR_SERVICE_WORDS_BYTES]; /* reason of NO_ZRD or ENDED */
    _Atomic uint32_t lease;             /* number of this process's leases, above 0; new in a child */
    _Atomic bool waiting;               /* a thread waits for a lease */
    _Atomic int notifications_fd;       /* notifications.fd, for the helper to poll */
};

enum { SERVICES_MAX = 17 };
static const struct zr_lender_ops lender_ops;

/* One client per zrd, the host's first, then devices' in order of use. The array is static, so no client is
 * created or freed while a thread uses it. */
static struct zr_service services[SERVICES_MAX] = {
    [0 ... SERVICES_MAX - 1] = {.lender = {&lender_ops},
                                .request_lock = PTHREAD_MUTEX_INITIALIZER,
                                .send_lock = PTHREAD_MUTEX_INITIALIZER,
                                .requests = {.fd = -1},
                                .notifications = {.fd = -1},
                                .notifications_fd = -1,
                                .lease = 1},
    [0].key = ZR_SERVICE_HOST};
static _Atomic unsigned services_count = 1;
static _Atomic bool listens; /* a thread reads the notification sockets */
static pid_t own_process;    /* the process that these clients belong to */

bool zr_service_wanted(void)
{
    return zr_option_get(ZR_OPTION_SERVICE) != 0 && !getauxval(AT_SECURE);
}

bool zr_service_required(void)
{
    return zr_option_get(ZR_OPTION_SERVICE) == 2;
}

/* ---- Sockets ------------------------------------------------------------------------------------------- */

/* Moves the descriptor to a high number, which programs seldom close, if one is free. */
static struct socket_fd socket_of(int fd)
{
    struct stat status;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, DESCRIPTOR_MIN);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    if (fstat(fd, &status) != 0)
        memset(&status, 0, sizeof status);
    return (struct socket_fd){fd, status.st_dev, status.st_ino};
}

static bool is_own_socket(const struct socket_fd *one)
{
    struct stat status;
    return one->fd >= 0 && fstat(one->fd, &status) == 0 && status.st_dev == one->device &&
           status.st_ino == one->inode;
}

static void close_socket(struct socket_fd *one)
{
    if (is_own_socket(one))
        close(one->fd);
    one->fd = -1;
}

/* send_lock */
static void disconnect(struct zr_service *client)
{
    atomic_store(&client->notifications_fd, -1);
    close_socket(&client->requests);
    close_socket(&client->notifications);
    client->broken = false;
    client->returned_bytes = 0; /* the next HELLO reports held_bytes */
    if (client->state == JOINED)
        client->state = NO_ZRD;
}

/* send_lock. The reconnecting thread closes the socket later, since a request may still wait on it. */
static void send_or_break(struct zr_service *client, const struct zr_service_message *message)
{
    if (client->state != JOINED || client->broken)
        return;
    if (!is_own_socket(&client->requests)) {
        client->broken = true;
    } else if (zr_service_send(client->requests.fd, message, -1, false) != ZR_OK) {
        client->broken = true;
        shutdown(client->requests.fd, SHUT_RDWR);
    }
}

/* ---- fork() -------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
    for (unsigned i = 0; i < SERVICES_MAX; i++)
        pthread_mutex_lock(&services[i].send_lock);
}

/* send_lock. Called in a child after fork(), which has one thread. */
static void reset_in_child(struct zr_service *client)
{
    disconnect(client);
    pthread_mutex_init(&client->request_lock, NULL); /* the thread that held the lock is not in the child */
    client->state = NOT_TRIED;
    client->held_bytes = 0;
    client->gathering_count = 0;
    client->admitted = client->in_slice = false;
    atomic_store(&client->yield_bytes, 0);
    atomic_store(&client->waiting, false);
    client->files_count = 0;
    atomic_fetch_add(&client->lease, 1);
}

static void after_fork(bool child)
{
    if (child) {
        own_process = getpid();
        atomic_store(&listens, false);
    }
    for (unsigned i = SERVICES_MAX; i-- > 0;) {
        if (child)
            reset_in_child(&services[i]);
        pthread_mutex_unlock(&services[i].send_lock);
    }
}

static void prepare(void)
{
    static const struct zr_fork_room room = {.close = before_fork, .open = after_fork};
    own_process = getpid();
    zr_fork_register(ZR_FORK_SERVICE, &room);
}

/* False in a child of vfork(), or of a clone() that ran no fork handlers. */
static bool is_own_process(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
    return own_process == getpid();
}

/* ---- One client per zrd -------------------------------------------------------------------------------- */

struct zr_service *zr_service_host(void)
{
    return &services[0];
}

zr_result zr_service_of(const char *key, struct zr_service **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for services_count and keys */
    zr_result result = ZR_OK;
    *out = NULL;
    pthread_mutex_lock(&lock);
    unsigned count = atomic_load(&services_count), i = 0;
    while (i < count && strcmp(services[i].key, key) != 0)
        i++;
    if (i == SERVICES_MAX) {
        result = zr_fail(ZR_ERR_UNAVAILABLE, "a process can lease from at most %d devices' zrds",
                         SERVICES_MAX - 1);
    } else if (i == count) {
        snprintf(services[i].key, sizeof services[i].key, "%s", key);
        atomic_store(&services_count, count + 1);
    }
    if (result == ZR_OK)
        *out = &services[i];
    pthread_mutex_unlock(&lock);
    return result;
}

zr_result zr_service_find(zr_backend *backend, struct zr_lender **out)
{
    char key[ZR_LENDER_KEY_BYTES] = "";
    struct zr_service *client;
    *out = NULL;
    if (!zr_service_wanted() || !backend->ops->lender_key)
        return ZR_OK;
    zr_result result = backend->ops->lender_key(backend, key);
    if (result != ZR_OK && !zr_service_required())
        return ZR_OK; /* the driver does not identify the device */
    if (result != ZR_OK || key[0] == '\0')
        return result;
    result = zr_service_of(key, &client);
    if (result == ZR_OK)
        result = zr_service_join(client);
    if (result == ZR_OK)
        *out = &client->lender;
    return result;
}

struct zr_service *zr_service_of_backend(const zr_backend *backend)
{
    return (struct zr_service *)backend->lender; /* lender is the first member */
}

struct zr_lender *zr_service_lender(struct zr_service *client)
{
    return &client->lender;
}

struct zr_service *zr_service_next(const struct zr_service *after)
{
    unsigned next = after ? (unsigned)(after - services) + 1 : 0;
    return next < atomic_load(&services_count) ? &services[next] : NULL;
}

static bool is_host(const struct zr_service *client)
{
    return client == &services[0];
}

/* ---- The end of the leases ----------------------------------------------------------------------------- */

/* send_lock. Ends the leases forever: zrd has revoked the memory. */
static void end(struct zr_service *client, const char *words)
{
    disconnect(client);
    client->state = ENDED;
    snprintf(client->words, sizeof client->words, "%s", words);
}

/* send_lock. Whether zrd has ended the leases: zrd sends ENDED with the reason before it closes the
 * connection. Other messages of a lost connection are dropped. */
static bool receive_end(struct zr_service *client, int notifications)
{
    struct zr_service_packet packet;
    bool ended = false;
    while (!ended && zr_service_receive(notifications, &packet, 0) == ZR_OK) {
        ended = zr_service_packet_check(notifications, &packet) == ZR_OK &&
                packet.message.kind == ZR_SERVICE_ENDED;
        if (ended)
            end(client, packet.message.words);
        zr_service_packet_close(&packet);
    }
    return ended;
}

/* ---- Registering --------------------------------------------------------------------------------------- */

/* Receives a message of the kind (for GRANTED also LATER), or fails with zrd's message if zrd refuses. */
static zr_result receive_answer(int requests, enum zr_service_kind kind, uint64_t timeout_ns,
                                struct zr_service_packet *out)
{
    zr_result result = zr_service_receive(requests, out, timeout_ns);
    if (result == ZR_OK)
        result = zr_service_packet_check(requests, out);
    bool later = kind == ZR_SERVICE_GRANTED && out->message.kind == ZR_SERVICE_LATER;
    if (result == ZR_OK && out->message.kind != ZR_SERVICE_REFUSED && out->message.kind != kind && !later)
        result = zr_fail(ZR_ERR_FORMAT, "zrd sent an unexpected answer");
    if (result == ZR_OK && out->message.kind == ZR_SERVICE_REFUSED)
        result = zr_fail(out->message.result && out->message.result < ZR_RESULT_COUNT
                             ? (zr_result)out->message.result
                             : ZR_ERR_UNAVAILABLE,
                         "%s", out->message.words);
    if (result != ZR_OK)
        zr_service_packet_close(out);
    return result;
}

static void write_plan(const struct zr_service *client, struct zr_service_message *out)
{
    out->plan_base_bytes = client->plan.base_bytes;
    out->plan_peak_bytes = client->plan.peak_bytes;
    out->bytes = client->plan.spill_bytes;
    out->run = client->plan.run;
    out->run_count = client->plan.run_count;
    out->count = client->plan.threads;
}

/* Registers and hands over the files. If zrd rejects a file, it ends the leases: see receive_end(). */
static zr_result send_hello(struct zr_service *client, int requests, struct zr_service_packet *welcome)
{
    struct zr_service_message hello = zr_service_message_of(ZR_SERVICE_HELLO);
    struct zr_service_message adopt = zr_service_message_of(ZR_SERVICE_ADOPT);
    struct zr_service_packet done;
    hello.held_bytes = client->held_bytes;
    hello.flags = atomic_load(&listens) ? ZR_SERVICE_LISTENS : 0;
    if (client->admitted) {
        write_plan(client, &hello);
        hello.flags |= client->in_slice ? ZR_SERVICE_IN_SLICE : 0;
        hello.slice = client->slice;
        hello.reservation_bytes = client->reservation_bytes;
    }
    snprintf(hello.program, sizeof hello.program, "%s", program_invocation_short_name);
    for (char *at = hello.program; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = '?';
    snprintf(hello.group, sizeof hello.group, "%s", zr_option_group());
    zr_result result = zr_service_send(requests, &hello, -1, false);
    if (result == ZR_OK || result == ZR_ERR_PEER) /* zrd may have refused the connection with a reason */
        result = receive_answer(requests, ZR_SERVICE_WELCOME, ANSWER_NS, welcome);
    for (unsigned i = 0; result == ZR_OK && i < client->files_count; i++) {
        result = zr_service_send(requests, &adopt, client->files[i], false);
        if (result == ZR_OK)
            result = receive_answer(requests, ZR_SERVICE_DONE, ANSWER_NS, &done);
        if (result == ZR_OK)
            zr_service_packet_close(&done);
    }
    if (result != ZR_OK && welcome->fds_count > 0) {
        receive_end(client, welcome->fds[0]);
        zr_service_packet_close(welcome);
    }
    return result;
}

/* request_lock and send_lock. Connects and registers. On failure the state is NO_ZRD or ENDED, and
 * client->words has the reason. */
static zr_result join(struct zr_service *client)
{
    struct zr_service_packet welcome = {0};
    int requests = -1;
    if (is_own_socket(&client->notifications) && receive_end(client, client->notifications.fd))
        return zr_fail(ZR_ERR_UNAVAILABLE, "%s", client->words);
    disconnect(client);
    zr_result result = zr_service_connect(client->key, &requests);
    if (result == ZR_OK)
        result = send_hello(client, requests, &welcome);
    if (result != ZR_OK) {
        if (requests >= 0)
            close(requests);
        if (client->state == ENDED)
            return zr_fail(ZR_ERR_UNAVAILABLE, "%s", client->words);
        client->state = NO_ZRD;
        client->again_ns = zr_os_now_ns() + (result == ZR_ERR_TIMEOUT ? HUNG_NS : RETRY_NS);
        snprintf(client->words, sizeof client->words, "%s", zr_last_error());
        return result;
    }
    client->requests = socket_of(requests);
    client->notifications = socket_of(welcome.fds[0]);
    client->within_ns = (uint64_t)welcome.message.within_ms * 1000000;
    client->state = JOINED;
    client->connection_number++;
    client->joined_once = true;
    client->words[0] = '\0';
    atomic_store(&client->notifications_fd, client->notifications.fd);
    return ZR_OK;
}

/* request_lock, also during waits; acquires and releases send_lock. After success the state is JOINED or
 * NO_ZRD. */
static zr_result connect_or_wait(struct zr_service *client)
{
    uint64_t start_ns = zr_os_now_ns(), wait_ns = WAIT_NS;
    zr_result result = ZR_OK;
    for (;;) {
        pthread_mutex_lock(&client->send_lock);
        uint64_t now_ns = zr_os_now_ns();
        if (client->state == ENDED) {
            result = zr_fail(ZR_ERR_UNAVAILABLE, "%s", client->words);
        } else if (client->state == JOINED && !client->broken) {
            result = ZR_OK;
        } else if (client->state == NO_ZRD && !zr_service_required() && now_ns < client->again_ns) {
            result = ZR_OK;
        } else {
            result = join(client);
            if (client->state != ENDED && !zr_service_required())
                result = ZR_OK;
            else if (result != ZR_OK)
                result = zr_fail(ZR_ERR_UNAVAILABLE, "%s", client->words);
        }
        bool again = client->state == NO_ZRD && result != ZR_OK && now_ns - start_ns < REQUIRED_NS &&
                     client->joined_once;
        pthread_mutex_unlock(&client->send_lock);
        if (!again)
            return result;
        nanosleep(&(struct timespec){.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000}, NULL);
        wait_ns = 2 * wait_ns < WAIT_MAX_NS ? 2 * wait_ns : WAIT_MAX_NS;
    }
}

zr_result zr_service_join(struct zr_service *client)
{
    if (!is_own_process())
        return ZR_OK;
    pthread_mutex_lock(&client->request_lock);
    zr_result result = connect_or_wait(client);
    pthread_mutex_unlock(&client->request_lock);
    return result;
}

void zr_service_alone(char *words, size_t room_bytes)
{
    size_t used = 0;
    words[0] = '\0';
    for (struct zr_service *client = services; client && used < room_bytes;
         client = zr_service_next(client)) {
        pthread_mutex_lock(&client->send_lock);
        bool no_zrd = client->state == NO_ZRD || client->state == ENDED;
        int length = snprintf(words + used, room_bytes - used, "%s%s", used && no_zrd ? "; " : "",
                              no_zrd ? client->words : "");
        used += length > 0 ? (size_t)length : 0;
        pthread_mutex_unlock(&client->send_lock);
    }
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* request_lock. Sends one request and receives its answer. ZR_ERR_PEER: zrd has exited or does not answer;
 * the caller may repeat the request. */
static zr_result request_once(struct zr_service *client, struct zr_service_message *message,
                              enum zr_service_kind kind, struct zr_service_packet *answer)
{
    pthread_mutex_lock(&client->send_lock);
    message->serial = ++client->serial;
    int requests = client->requests.fd;
    send_or_break(client, message);
    bool sent = !client->broken;
    uint64_t timeout_ns = client->within_ns + MARGIN_NS;
    pthread_mutex_unlock(&client->send_lock);
    zr_result result = sent ? receive_answer(requests, kind, timeout_ns, answer) : ZR_ERR_PEER;
    if (result == ZR_ERR_PEER || result == ZR_ERR_TIMEOUT || result == ZR_ERR_FORMAT) {
        pthread_mutex_lock(&client->send_lock);
        client->broken = true;
        pthread_mutex_unlock(&client->send_lock);
        return ZR_ERR_PEER;
    }
    return result;
}

/* request_lock. Sends a request, and repeats it if zrd was restarted meanwhile. *no_zrd: no zrd runs. */
static zr_result request(struct zr_service *client, struct zr_service_message *message,
                         enum zr_service_kind kind, struct zr_service_packet *answer, bool *no_zrd)
{
    zr_result result = ZR_ERR_PEER;
    for (unsigned tries = 0; result == ZR_ERR_PEER && tries < 3; tries++) {
        result = connect_or_wait(client);
        pthread_mutex_lock(&client->send_lock);
        *no_zrd = client->state == NO_ZRD;
        pthread_mutex_unlock(&client->send_lock);
        if (result != ZR_OK || *no_zrd)
            return result;
        result = request_once(client, message, kind, answer);
    }
    if (result != ZR_ERR_PEER)
        return result;
    *no_zrd = !zr_service_required();
    return *no_zrd
               ? ZR_OK
               : zr_fail(ZR_ERR_UNAVAILABLE, "zrd does not answer; ZR_CONF=service:required requires zrd");
}

void zr_service_on_deferral(struct zr_service *client, zr_service_deferral *deferral, void *state)
{
    pthread_mutex_lock(&client->request_lock);
    client->deferral = deferral;
    client->deferral_state = state;
    pthread_mutex_unlock(&client->request_lock);
}

zr_result zr_service_lease(struct zr_service *client, size_t bytes, struct zr_lease *out)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_LEASE);
    struct zr_service_packet answer = {0};
    bool no_zrd = false, deferral = false;
    *out = (struct zr_lease){.fd = -1};
    if (!is_own_process())
        return ZR_OK;
    message.bytes = bytes;
    pthread_mutex_lock(&client->request_lock);
    atomic_store(&client->waiting, true);
    zr_result result;
    for (;;) {
        result = request(client, &message, ZR_SERVICE_GRANTED, &answer, &no_zrd);
        if (result != ZR_OK || no_zrd || answer.message.kind != ZR_SERVICE_LATER)
            break;
        if (client->deferral && !deferral)
            client->deferral(client->deferral_state, true);
        deferral = true;
    }
    if (client->deferral && deferral)
        client->deferral(client->deferral_state, false);
    atomic_store(&client->waiting, false);
    if (result == ZR_OK) {
        pthread_mutex_lock(&client->send_lock);
        client->held_bytes += bytes;
        pthread_mutex_unlock(&client->send_lock);
        out->number = atomic_load(&client->lease);
        if (!no_zrd && answer.fds_count == 1) {
            out->fd = answer.fds[0];
            out->granule = answer.message.count;
        }
    }
    pthread_mutex_unlock(&client->request_lock);
    return result;
}

/* send_lock */
static void send_return(struct zr_service *client, uint64_t granule)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_RETURN);
    message.bytes = client->returned_bytes;
    message.count = granule;
    client->returned_bytes = 0;
    if (message.bytes > 0)
        send_or_break(client, &message);
}

void zr_service_return(struct zr_service *client, size_t bytes, const struct zr_lease *lease)
{
    int error = errno;
    if (lease->number == 0 || lease->number != atomic_load(&client->lease) || !is_own_process())
        return;
    pthread_mutex_lock(&client->send_lock);
    client->held_bytes -= bytes;
    client->returned_bytes += bytes;
    if (client->gathering_count == 0 || client->returned_bytes >= GATHER_BYTES || !is_host(client))
        send_return(client, lease->granule);
    pthread_mutex_unlock(&client->send_lock);
    errno = error;
}

void zr_service_gather_begin(void)
{
    struct zr_service *client = zr_service_host();
    pthread_mutex_lock(&client->send_lock);
    client->gathering_count++;
    pthread_mutex_unlock(&client->send_lock);
}

void zr_service_gather_end(void)
{
    struct zr_service *client = zr_service_host();
    pthread_mutex_lock(&client->send_lock);
    if (client->gathering_count > 0 && --client->gathering_count == 0)
        send_return(client, 0);
    pthread_mutex_unlock(&client->send_lock);
}

/* ---- Runs with a plan ---------------------------------------------------------------------------------- */

/* Repeats the request until it is granted, no zrd runs, or `waits` returns false. */
static zr_result request_and_wait(struct zr_service *client, struct zr_service_message *message,
                                  zr_service_waits *waits, void *state)
{
    struct zr_service_packet answer = {0};
    bool no_zrd = false;
    zr_result result;
    do {
        pthread_mutex_lock(&client->request_lock);
        result = request(client, message, ZR_SERVICE_GRANTED, &answer, &no_zrd);
        if (result == ZR_OK && (no_zrd || answer.message.kind == ZR_SERVICE_GRANTED)) {
            pthread_mutex_lock(&client->send_lock);
            client->admitted = true;
            client->in_slice = client->in_slice || message->kind == ZR_SERVICE_SLICE || no_zrd;
            client->slice = no_zrd ? 0 : answer.message.slice;
            client->reservation_bytes = client->plan.peak_bytes;
            pthread_mutex_unlock(&client->send_lock);
        }
        pthread_mutex_unlock(&client->request_lock);
        if (result == ZR_OK && !no_zrd && answer.message.kind == ZR_SERVICE_LATER &&
            !waits(state, answer.message.words))
            result = zr_fail(ZR_ERR_INTERRUPTED, "interrupted by a signal: %s", answer.message.words);
    } while (result == ZR_OK && !no_zrd && answer.message.kind == ZR_SERVICE_LATER);
    return result;
}

zr_result zr_service_plan(struct zr_service *client, const struct zr_service_plan *plan,
                          zr_service_waits *waits, void *state)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_PLAN);
    if (!is_own_process())
        return ZR_OK;
    pthread_mutex_lock(&client->send_lock);
    client->plan = *plan;
    write_plan(client, &message);
    message.flags = plan->waits ? ZR_SERVICE_WAITS : 0;
    pthread_mutex_unlock(&client->send_lock);
    return request_and_wait(client, &message, waits, state);
}

uint64_t zr_service_yield_bytes(const struct zr_service *client)
{
    return atomic_load_explicit(&client->yield_bytes, memory_order_relaxed);
}

void zr_service_reserve(struct zr_service *client, size_t bytes)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_RESERVE);
    message.reservation_bytes = bytes;
    pthread_mutex_lock(&client->send_lock);
    client->reservation_bytes = bytes;
    send_or_break(client, &message);
    pthread_mutex_unlock(&client->send_lock);
}

zr_result zr_service_slice(struct zr_service *client, zr_service_waits *waits, void *state)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_SLICE);
    if (!is_own_process())
        return ZR_OK;
    pthread_mutex_lock(&client->send_lock);
    client->in_slice = false;
    atomic_store(&client->yield_bytes, 0);
    pthread_mutex_unlock(&client->send_lock);
    return request_and_wait(client, &message, waits, state);
}

/* ---- Pieces of a device -------------------------------------------------------------------------------- */

zr_result zr_service_piece(struct zr_service *client, uint64_t granule, int *out)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_FILE);
    struct zr_service_packet answer = {0};
    bool no_zrd = true;
    message.count = granule;
    pthread_mutex_lock(&client->request_lock);
    zr_result result =
        is_own_process() ? request(client, &message, ZR_SERVICE_DONE, &answer, &no_zrd) : ZR_OK;
    pthread_mutex_unlock(&client->request_lock);
    if (result == ZR_OK && (no_zrd || answer.fds_count != 1))
        result = zr_fail(ZR_ERR_UNAVAILABLE,
                         "the zrd that lent this memory has ended, so the memory cannot be exported");
    *out = result == ZR_OK ? answer.fds[0] : -1;
    return result;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

zr_result zr_service_file(int *out)
{
    struct zr_service *client = zr_service_host();
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_FILE);
    struct zr_service_packet answer;
    bool no_zrd = true;
    if (!is_own_process())
        return zr_host_file(out);
    pthread_mutex_lock(&client->request_lock);
    zr_result result = request(client, &message, ZR_SERVICE_DONE, &answer, &no_zrd);
    if (result == ZR_OK && no_zrd)
        result = zr_host_file(out);
    else if (result == ZR_OK && answer.fds_count == 1)
        *out = answer.fds[0];
    else if (result == ZR_OK)
        result = zr_fail(ZR_ERR_HOST_MEMORY, "no descriptor of zrd's file was received: raise `ulimit -n`");
    pthread_mutex_lock(&client->send_lock);
    if (result == ZR_OK && client->files_count < ZR_SERVICE_FILES_MAX)
        client->files[client->files_count++] = *out;
    pthread_mutex_unlock(&client->send_lock);
    pthread_mutex_unlock(&client->request_lock);
    return result;
}

void zr_service_file_leave(int fd)
{
    struct zr_service *client = zr_service_host();
    pthread_mutex_lock(&client->send_lock);
    for (unsigned i = 0; i < client->files_count; i++)
        if (client->files[i] == fd)
            client->files[i--] = client->files[--client->files_count];
    pthread_mutex_unlock(&client->send_lock);
}

/* ---- Notifications ------------------------------------------------------------------------------------- */

void zr_service_listen(void)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_LISTEN);
    atomic_store(&listens, true);
    for (struct zr_service *client = services; client; client = zr_service_next(client)) {
        pthread_mutex_lock(&client->send_lock);
        send_or_break(client, &message);
        pthread_mutex_unlock(&client->send_lock);
    }
}

int zr_service_notifications(const struct zr_service *client)
{
    return atomic_load(&client->notifications_fd);
}

bool zr_service_is_waiting(const struct zr_service *client)
{
    return atomic_load(&client->waiting);
}

bool zr_service_receive_notification(struct zr_service *client, struct zr_service_message *out)
{
    struct zr_service_packet packet;
    bool reclaim = false; /* RECLAIM or INQUIRE */
    pthread_mutex_lock(&client->send_lock);
    int fd = client->notifications.fd;
    if (is_own_socket(&client->notifications)) {
        zr_result result = zr_service_receive(fd, &packet, 0);
        if (result == ZR_OK && zr_service_packet_check(fd, &packet) == ZR_OK) {
            *out = packet.message;
            client->notified_number = client->connection_number;
            reclaim = out->kind == ZR_SERVICE_RECLAIM || out->kind == ZR_SERVICE_INQUIRE;
            if (out->kind == ZR_SERVICE_YIELD)
                atomic_store(&client->yield_bytes, out->bytes ? out->bytes : 1);
            if (out->kind == ZR_SERVICE_ENDED)
                end(client, out->words);
        } else if (result != ZR_ERR_TIMEOUT) {
            atomic_store(&client->notifications_fd, -1);
            client->broken = client->state == JOINED;
        }
        zr_service_packet_close(&packet);
    } else {
        atomic_store(&client->notifications_fd, -1);
    }
    pthread_mutex_unlock(&client->send_lock);
    return reclaim;
}

/* send_lock. Drops an answer to a notification of an earlier connection: zrd disconnects a client that sends
 * an answer without a request. */
static void answer_notification(struct zr_service *client, const struct zr_service_message *message)
{
    if (client->notified_number == client->connection_number)
        send_or_break(client, message);
}

void zr_service_given(struct zr_service *client, const struct zr_service_message *reclaim, size_t bytes)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_GIVEN);
    message.serial = reclaim->serial;
    message.bytes = bytes;
    pthread_mutex_lock(&client->send_lock);
    answer_notification(client, &message);
    pthread_mutex_unlock(&client->send_lock);
}

void zr_service_report_idle(struct zr_service *client, size_t bytes)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_IDLE);
    message.bytes = bytes;
    pthread_mutex_lock(&client->send_lock);
    answer_notification(client, &message);
    pthread_mutex_unlock(&client->send_lock);
}

void zr_service_tick(struct zr_service *client)
{
    /* Another thread has a request pending and reconnects itself. */
    if (pthread_mutex_trylock(&client->request_lock) != 0)
        return;
    pthread_mutex_lock(&client->send_lock);
    if ((client->state == JOINED && client->broken) ||
        (client->state == NO_ZRD && zr_os_now_ns() >= client->again_ns))
        join(client);
    pthread_mutex_unlock(&client->send_lock);
    pthread_mutex_unlock(&client->request_lock);
}

/* ---- The lender of backends ---------------------------------------------------------------------------- */

static zr_result lend(struct zr_lender *lender, size_t bytes, struct zr_lease *out)
{
    return zr_service_lease((struct zr_service *)lender, bytes, out);
}

static void take_back(struct zr_lender *lender, size_t bytes, const struct zr_lease *lease)
{
    zr_service_return((struct zr_service *)lender, bytes, lease);
}

static zr_result lend_piece(struct zr_lender *lender, uint64_t granule, int *out)
{
    return zr_service_piece((struct zr_service *)lender, granule, out);
}

static zr_result lend_file(struct zr_lender *lender, int *out)
{
    (void)lender; /* only the host's zrd lends files */
    return zr_service_file(out);
}

static void leave_file(struct zr_lender *lender, int fd)
{
    (void)lender;
    zr_service_file_leave(fd);
}

static const struct zr_lender_ops lender_ops = {
    .lease = lend, .take_back = take_back, .piece = lend_piece, .file = lend_file, .file_leave = leave_file};
