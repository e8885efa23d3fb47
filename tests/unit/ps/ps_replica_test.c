/* ps_replica_test.c: a server, its replica and clients that send frames by hand, one step at a time: a client
 * hears of a slow replica, no push is acknowledged by two primaries, and none is lost in silence. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdatomic.h>

#include "alloc/base/system/os.h"
#include "tests/support/zero/ps_rig.h"
#include "zero/ps/link.h"
#include "zero/ps/wire.h"

enum { ELEMENTS = 300000 };
#define HANG_NS   UINT64_C(20000000000)
#define SILENT_NS UINT64_C(200000000)
static char folder[48];
static uint64_t hash; /* of the options */

/* ---- Clients ------------------------------------------------------------------------------------------- */

static struct push {
    struct zr_ps_frame frame;
    struct zr_ps_wire_item item;
    float numbers[ELEMENTS];
} push = {.frame = {.magic = ZR_PS_MAGIC,
                    .kind = ZR_PS_PUSH,
                    .sequence = 1,
                    .bytes = sizeof push - sizeof push.frame,
                    .items_count = 1,
                    .rate = 1,
                    .scale = 1},
          .item = {.count = ELEMENTS, .bytes = sizeof push.numbers}};

static uint64_t hash_of(const struct ps_run *run, zr_arena *arena)
{
    struct zr_ps_setup setup;
    const bool good = zr_ps_setup_init(&setup, &run->options, arena) == ZR_OK;
    const uint64_t out = good ? setup.hash : 0;
    zr_ps_setup_fini(&setup);
    return out;
}

static bool sends(struct zr_ps_link *link, const void *data, size_t bytes)
{
    struct iovec part = {(void *)data, bytes};
    return zr_ps_link_send(link, &part, 1, zr_os_now_ns() + HANG_NS) == ZR_OK;
}

static bool takes(struct zr_ps_link *link, void *data, size_t bytes)
{
    return zr_ps_link_receive(link, data, bytes, zr_os_now_ns() + HANG_NS) == ZR_OK;
}

static bool receives(struct zr_ps_link *link, enum zr_ps_kind kind)
{
    struct zr_ps_frame frame;
    return takes(link, &frame, sizeof frame) && frame.kind == kind && frame.content == ZR_OK;
}

/* The number of the client's last change, of a reply; 0: none has arrived. */
static uint64_t last_change(struct zr_ps_link *link)
{
    struct zr_ps_frame frame;
    return takes(link, &frame, sizeof frame) && frame.kind == ZR_PS_REPLY ? frame.number : 0;
}

/* Connects and says HELLO; `lost`: the client cannot connect to the primary. */
static bool greets(struct zr_ps_link *link, const char *address, uint32_t worker, bool lost)
{
    const struct zr_ps_frame hello = {
        .magic = ZR_PS_MAGIC, .kind = ZR_PS_HELLO, .worker = worker, .number = hash, .content = lost};
    return zr_ps_link_open(link, &(struct zr_ps_dial){address, NULL, zr_os_now_ns() + HANG_NS}) == ZR_OK &&
           sends(link, &hello, sizeof hello);
}

/* ---- A replica that does not read ---------------------------------------------------------------------- */

/* The state, an answer and a push are larger than the buffers of a socket. */
static bool hears(struct ps_run *run)
{
    static struct push pull;
    const struct zr_ps_frame step = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_END_STEP, .sequence = 2},
                             again = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_END_STEP, .sequence = 3},
                             leave = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_LEAVE, .sequence = 4};
    const struct zr_ps_frame bye = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_BYE};
    struct zr_ps_link client = {.fd = -1}, replica = {.fd = -1};
    pull = (struct push){.frame = push.frame, .item.count = ELEMENTS};
    pull.frame.kind = ZR_PS_PULL;
    pull.frame.bytes = sizeof pull.item;
    bool good = greets(&client, run->at[0], 0, false) && receives(&client, ZR_PS_REPLY) &&
                sends(&client, &pull, sizeof pull.frame + sizeof pull.item) &&
                greets(&replica, run->at[0], ZR_PS_REPLICA, false) && receives(&replica, ZR_PS_REPLY) &&
                receives(&client, ZR_PS_REPLY) && takes(&client, pull.numbers, sizeof pull.numbers) &&
                sends(&client, &push, sizeof push) && receives(&client, ZR_PS_HELD);
    zr_ps_link_close(&replica);
    while (good && !receives(&client, ZR_PS_REPLY))
        good = client.fd >= 0;
    /* A successor may end a step again that its predecessor has ended, which changes nothing. */
    good = good && sends(&client, &step, sizeof step) && last_change(&client) == 2 &&
           sends(&client, &again, sizeof again) && last_change(&client) == 2 &&
           sends(&client, &leave, sizeof leave) && last_change(&client) == 4 &&
           sends(&client, &bye, sizeof bye);
    zr_ps_link_close(&client);
    return good;
}

/* ---- Two primaries ------------------------------------------------------------------------------------- */

struct copy {
    struct ps_run *run;
    bool joins;
    struct ps_ground ground;
    zr_ps_server *server;
    _Atomic bool over; /* it has been created, or has failed */
    unsigned ended;    /* silent replicas */
};

static void count_silent(void *state)
{
    ((struct copy *)state)->ended++;
}

static void *create(void *argument)
{
    struct copy *copy = argument;
    if (ps_ground_open(&copy->ground) != ZR_OK ||
        zr_ps_server_create(&copy->server, &(struct zr_ps_server_options){
                                               .common = copy->run->options,
                                               .listener = copy->run->listeners[copy->joins * PS_SERVERS],
                                               .arena = copy->ground.arena,
                                               .kernels = zr_kernels_cpu(zr_isa_best()),
                                               .context = &copy->ground.context,
                                               .primary = copy->joins ? copy->run->at[0] : NULL,
                                               .silent = {SILENT_NS, count_silent, copy}}) != ZR_OK)
        tap_note("%s", zr_last_error());
    atomic_store(&copy->over, true);
    return NULL;
}

static bool destroy(struct copy *copy)
{
    zr_ps_server_destroy(copy->server);
    copy->server = NULL;
    return ps_ground_close(&copy->ground) == 0;
}

/* Serves until the client has its answer. */
static bool answers(zr_ps_server *server, struct zr_ps_link *client)
{
    bool ended;
    while (poll(&(struct pollfd){.fd = client->fd, .events = POLLIN}, 1, 0) == 0)
        if (zr_ps_server_serve(server, 10, &ended) != ZR_OK)
            return false;
    return receives(client, ZR_PS_REPLY);
}

/* Listens and creates both copies. */
static zr_result create_both(struct copy *primary, struct copy *replica)
{
    pthread_t thread;
    bool ended;
    zr_result result = ps_run_listen(primary->run, folder);
    create(primary);
    pthread_create(&thread, NULL, create, replica);
    while (!atomic_load(&replica->over))
        zr_ps_server_serve(primary->server, 1, &ended);
    pthread_join(thread, NULL);
    return result;
}

/* What a primary finds after its replica has acknowledged a step of a client and has died. */
enum found { A_STEP_BEFORE, A_STEP_AFTER, A_NEW_REPLICA, NOTHING, CASES };

static bool is_replaced(struct ps_run *run, enum found found)
{
    const struct zr_ps_frame step = {.magic = ZR_PS_MAGIC, .kind = ZR_PS_END_STEP, .sequence = 1};
    struct zr_ps_frame other = step;
    struct copy primary = {.run = run}, replica = {.run = run, .joins = true};
    struct zr_ps_link clients[3] = {{.fd = -1}, {.fd = -1}, {.fd = -1}};
    struct zr_ps_state state;
    bool ended, good = create_both(&primary, &replica) == ZR_OK;
    zr_result result = ZR_OK;
    other.worker = 1;
    good = good && greets(&clients[0], run->at[0], 0, false) && answers(primary.server, &clients[0]) &&
           (found != A_STEP_BEFORE || sends(&clients[0], &step, sizeof step)) &&
           (found != A_NEW_REPLICA || greets(&clients[2], run->at[0], ZR_PS_REPLICA, false)) &&
           greets(&clients[1], run->replica_at[0], 1, true) && answers(replica.server, &clients[1]) &&
           sends(&clients[1], &other, sizeof other) && answers(replica.server, &clients[1]);
    good &= destroy(&replica);
    good = good && (found != A_STEP_AFTER || sends(&clients[0], &step, sizeof step));
    for (unsigned i = 0; i < 100 && result == ZR_OK; i++)
        result = zr_ps_server_serve(primary.server, 10, &ended);
    zr_ps_server_get_state(primary.server, &state);
    if (!good || result != ZR_ERR_PEER || state.clock_max != 0)
        tap_note("case %d: %d, result %d, clock %d: %s", found, good, result, (int)state.clock_max,
                 zr_last_error());
    for (unsigned i = 0; i < 3; i++)
        zr_ps_link_close(&clients[i]);
    for (unsigned i = 0; i < 2; i++)
        close(run->listeners[i * PS_SERVERS]);
    return destroy(&primary) && good && result == ZR_ERR_PEER && state.clock_max == 0;
}

/* ---- A replica that is left behind --------------------------------------------------------------------- */

static void *serve(void *server)
{
    zr_ps_server_run(server);
    return NULL;
}

/* A primary goes on without a silent replica and dies; the worker, whose changes are lost, refuses the
 * replica. */
static bool is_refused(struct ps_run *run, zr_arena *arena)
{
    struct copy copies[2] = {{.run = run}, {.run = run, .joins = true}};
    const struct zr_ps_item item = {.values = push.numbers};
    const struct zr_ps_push step = {{&item, 1}, 1, 1};
    pthread_t thread;
    zr_ps_worker *worker = NULL;
    bool good = create_both(&copies[0], &copies[1]) == ZR_OK;
    for (unsigned i = 0; i < 2; i++) {
        pthread_create(&thread, NULL, serve, copies[i].server);
        if (i == 0)
            good = good && ps_join(&worker, run, 0, arena) == ZR_OK &&
                   zr_ps_fill(worker, &(struct zr_ps_filling){.batch = {&item, 1}, .done = true}) == ZR_OK &&
                   zr_ps_push(worker, &step) == ZR_OK;
        else
            good =
                zr_ps_push(worker, &step) == ZR_ERR_PEER && good && strstr(zr_last_error(), "lacks changes");
        zr_ps_server_stop(copies[i].server);
        pthread_join(thread, NULL);
        good = destroy(&copies[i]) && good;
        close(run->listeners[i * PS_SERVERS]);
    }
    zr_ps_worker_destroy(worker);
    return good && copies[0].ended == 1 && copies[1].ended == 0;
}

int main(void)
{
    struct ps_run run = {.options = {.workers = 1,
                                     .servers = 1,
                                     .timing = {ZR_PS_ASYNC, 0},
                                     .optimizer = {.kind = ZR_OPTIMIZER_SGD},
                                     .tables = &(struct zr_ps_table){.name = "t", .elements = ELEMENTS},
                                     .tables_count = 1}};
    struct ps_ground ground;
    bool good = true;
    snprintf(folder, sizeof folder, "/tmp/zr-ps-XXXXXX");
    if (!mkdtemp(folder) || ps_ground_open(&ground) != ZR_OK)
        return 1;
    hash = hash_of(&run, ground.arena);
    tap_ok(ps_run_start(&run, folder) == ZR_OK && hears(&run) && ps_run_end(&run),
           "a primary answers, reads and says that it lives while a replica is slow to receive its state");
    run.replicated = true; /* two sockets */
    run.options.workers = 2;
    hash = hash_of(&run, ground.arena);
    for (enum found found = 0; found < CASES; found++)
        good &= is_replaced(&run, found);
    tap_ok(good,
           "a primary ends whose replica has taken over and has died, before it acknowledges a request");
    run.options.workers = 1;
    good = is_refused(&run, ground.arena);
    if (!good)
        tap_note("%s", zr_last_error());
    tap_ok(good, "a worker refuses a copy without a change that was acknowledged");
    tap_is(ps_ground_close(&ground), 0, "nothing leaks");
    rmdir(folder);
    return tap_done();
}
