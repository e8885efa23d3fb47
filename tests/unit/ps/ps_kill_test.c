/* ps_kill_test.c: servers and workers that are killed (kill -9). A server dies before any of its stores to
 * kept memory (ZR_FAULT=kept), a worker after any of its requests, and connections at any message; a
 * successor continues, or the other copy of a replicated server, which gets a new replica. At the end the
 * tables have the bits of a run without kills: no acknowledged push is lost, and none is applied twice. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "alloc/base/fault.h"
#include "tests/support/seed.h"
#include "tests/support/zero/ps_rig.h"
#include "zero/table/zr_table.h"

enum { WORKERS = 2, STEPS = 3, LARGE = 66000, SMALL = 300, IDS = 64, WIDTH = 4 };
enum { MEMORIES = 32, MEMORY_BYTES = 4 << 20 };

/* Kept memory: shared pages of the test, which a successor finds by name. */
static struct memory {
    char names[MEMORIES][48];
    char bytes[MEMORIES][MEMORY_BYTES];
    uint64_t stores, passes;   /* of the fault sites in the run */
    _Atomic uint64_t armed[2]; /* of a copy of a replicated server: dies before this store from now on */
} * memory;

static char folder[48];

static zr_result take(void *state, const struct zr_kept_request *request, void **out)
{
    (void)state;
    for (unsigned i = 0; i < MEMORIES; i++) {
        if (memory->names[i][0] && strcmp(memory->names[i], request->name) != 0)
            continue;
        snprintf(memory->names[i], sizeof memory->names[i], "%s", request->name);
        *out = memory->bytes[i];
        return request->bytes <= MEMORY_BYTES ? ZR_OK : ZR_ERR_MEMORY;
    }
    return ZR_ERR_MEMORY;
}

/* What goes wrong in a run; zeros: nothing. */
struct plan {
    uint64_t store, again; /* the first server dies before this store, its successor before that of its own */
    unsigned victim, part; /* this worker is replaced after this part of its script, from 1 */
    unsigned site;         /* of the server, or of the workers if `clients`: this pass fails */
    uint64_t pass;
    bool clients;
    unsigned steps;
    unsigned kills; /* of a server and its replica by turns, in as many further steps as it takes */
};

static const struct zr_kept_memory kept = {take, NULL};
static const struct zr_table_options rows = {.width = WIDTH,
                                             .optimizer = ZR_TABLE_ADAGRAD,
                                             .epsilon = 1e-8f,
                                             .init_range = 0.5f,
                                             .rows_limit = 4096,
                                             .batch_max = 4096,
                                             .seed = 7};
static const struct zr_table_options plain_rows = {
    .width = WIDTH, .optimizer = ZR_TABLE_SGD, .rows_limit = 4096, .batch_max = 4096, .seed = 7};

static const struct zr_ps_table tables[] = {
    {.name = "large", .elements = LARGE, .rate_factor = 1, .decay_factor = 1, .filled = true},
    {.name = "twice", .elements = SMALL, .pushes = 2, .rate_factor = 1},
    {.name = "rows", .rows = &rows, .rate_factor = 1}};
static const struct zr_ps_table plain_tables[] = {
    {.name = "large", .elements = LARGE, .rate_factor = 1, .decay_factor = 1, .filled = true},
    {.name = "twice", .elements = SMALL, .pushes = 2, .rate_factor = 1},
    {.name = "rows", .rows = &plain_rows, .rate_factor = 1}};
enum { TABLES = sizeof tables / sizeof *tables };

/* ---- Processes ------------------------------------------------------------------------------------------
 */

/* A server that dies before store number `nth` from its first request on; 0: never. */
static int serve(const struct ps_run *run, const struct plan *plan, uint64_t nth)
{
    const bool strikes = plan->pass > 0 && !plan->clients;
    struct ps_ground ground;
    zr_ps_server *server;
    if (ps_ground_open(&ground) != ZR_OK)
        return 1;
    zr_result result =
        zr_ps_server_create(&server, &(struct zr_ps_server_options){.common = run->options,
                                                                    .listener = run->listeners[0],
                                                                    .arena = ground.arena,
                                                                    .kernels = zr_kernels_cpu(zr_isa_best()),
                                                                    .context = &ground.context,
                                                                    .kept = &kept});
    zr_fault_set(ZR_FAULT_KEPT, nth);
    if (strikes)
        zr_fault_set(plan->site, plan->pass);
    if (result == ZR_OK)
        result = zr_ps_server_run(server);
    if (strikes)
        memory->passes = zr_fault_set(plan->site, 0);
    if (result != ZR_OK)
        tap_note("server: %s", zr_last_error());
    memory->stores = zr_fault_set(ZR_FAULT_KEPT, 0);
    return result != ZR_OK;
}

/* Forks servers until one ends by itself. */
static int watch(const struct ps_run *run, const struct plan *plan)
{
    const uint64_t deaths[] = {plan->store, plan->again, 0};
    int status = -1;
    for (unsigned i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(serve(run, plan, deaths[i]));
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            break;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* ---- The script of the workers --------------------------------------------------------------------------
 */

static float number_of(unsigned worker, unsigned step, size_t i)
{
    return (float)((i * 7 + worker * 13 + step * 29) % 101) / 64 - 0.7f;
}

struct numbers {
    float large[LARGE], small[SMALL], rows[IDS * WIDTH];
    uint64_t ids[IDS];
};

static struct zr_ps_item item_of(struct numbers *n, unsigned table)
{
    return table == 0   ? (struct zr_ps_item){.table = 0, .values = n->large}
           : table == 1 ? (struct zr_ps_item){.table = 1, .values = n->small}
                        : (struct zr_ps_item){.table = 2, .ids = n->ids, .ids_count = IDS, .values = n->rows};
}

static void draw(struct numbers *n, unsigned worker, unsigned step)
{
    for (size_t i = 0; i < LARGE; i++)
        n->large[i] = number_of(worker, step, i);
    for (size_t i = 0; i < SMALL; i++)
        n->small[i] = number_of(worker, step, i + 1);
    for (size_t i = 0; i < IDS; i++)
        n->ids[i] = (i * i + worker + step) % 41;
    for (size_t i = 0; i < IDS * WIDTH; i++)
        n->rows[i] = number_of(worker, step, i + 2);
}

/* Parts of a step; a worker that is to die does so after one of them. */
enum part { PULL, PUSH, PUSH_AGAIN, PUSH_ROWS, END, PARTS };

static zr_result do_part(zr_ps_worker *worker, const struct ps_run *run, struct numbers *n, unsigned number,
                         enum part part)
{
    const bool groups = run->options.timing.kind == ZR_PS_SYNC || run->options.timing.kind == ZR_PS_SSP;
    struct zr_ps_item items[3];
    unsigned step = (unsigned)zr_ps_worker_clock(worker);
    if (part != END)
        draw(n, number, step);
    for (unsigned t = 0; t < TABLES; t++)
        items[t] = item_of(n, t);
    struct zr_ps_push push = {.rate = 0.01f, .batch = {.items = items, .items_count = 1}};
    switch (part) {
    case PULL:
        return zr_ps_pull(worker, &(struct zr_ps_batch){items, TABLES});
    case PUSH:
        push.batch.items_count = 2; /* with the small table: one request changes both */
        return zr_ps_push(worker, &push);
    case PUSH_AGAIN:
        push.batch.items = &items[1];
        return groups ? zr_ps_push(worker, &push) : ZR_OK;
    case PUSH_ROWS:
        push.batch.items = &items[2];
        return zr_ps_push(worker, &push);
    default:
        return zr_ps_end_step(worker);
    }
}

static zr_result fill(zr_ps_worker *worker, struct numbers *n)
{
    struct zr_ps_item item = item_of(n, 0);
    for (size_t i = 0; i < LARGE; i++)
        n->large[i] = (float)i / LARGE;
    return zr_ps_fill(worker, &(struct zr_ps_filling){.batch = {&item, 1}, .done = true});
}

/* Everything that tables have at the end. */
struct result {
    float contents[4][LARGE + SMALL], rows[IDS * WIDTH];
};

static zr_result read_all(zr_ps_worker *observer, const struct ps_run *run, struct numbers *n,
                          struct result *out)
{
    unsigned contents = run->options.timing.kind == ZR_PS_GEO ? 2 : 4;
    zr_result result = ZR_OK;
    for (unsigned c = 0; c < contents && result == ZR_OK; c++) {
        const struct zr_ps_item items[] = {{.table = 0, .values = out->contents[c]},
                                           {.table = 1, .values = out->contents[c] + LARGE}};
        result = zr_ps_read(observer, c, &(struct zr_ps_batch){items, 2});
    }
    for (size_t i = 0; i < IDS; i++)
        n->ids[i] = i;
    const struct zr_ps_item item = {.table = 2, .ids = n->ids, .ids_count = IDS, .values = out->rows};
    return result == ZR_OK ? zr_ps_pull(observer, &(struct zr_ps_batch){&item, 1}) : result;
}

/* ---- Copies of a server that die by turns ---------------------------------------------------------------
 */

/* Two processes, a server and its replica, in any order. */
static struct pair {
    struct ps_run *run;
    pid_t pids[2];
    unsigned primary, victim, kills, broken, max, steps;
    uint64_t random;
} pair;

/* Serves until the end, or until a store that the test arms. Says on `door` that it has its state. */
static int serve_copy(unsigned copy, bool joins, int door, uint64_t failing)
{
    const struct ps_run *run = pair.run;
    struct ps_ground ground;
    zr_ps_server *server;
    bool ended = false;
    if (ps_ground_open(&ground) != ZR_OK)
        return 1;
    zr_fault_set(ZR_FAULT_RECEIVE, failing);
    zr_result result = zr_ps_server_create(
        &server,
        &(struct zr_ps_server_options){.common = run->options,
                                       .listener = run->listeners[copy * PS_SERVERS],
                                       .arena = ground.arena,
                                       .kernels = zr_kernels_cpu(zr_isa_best()),
                                       .context = &ground.context,
                                       .primary = joins ? (copy ? run->at : run->replica_at)[0] : NULL,
                                       .replicated = !joins});
    zr_fault_set(ZR_FAULT_RECEIVE, 0);
    if (result == ZR_OK && write(door, "", 1) != 1)
        result = ZR_ERR_IO;
    close(door);
    while (result == ZR_OK && !ended) {
        uint64_t nth = atomic_exchange(&memory->armed[copy], 0);
        if (nth > 0)
            zr_fault_set(ZR_FAULT_KEPT, nth);
        result = zr_ps_server_serve(server, -1, &ended);
    }
    if (result != ZR_OK && failing == 0)
        tap_note("copy %u: %s", copy, zr_last_error());
    return result != ZR_OK;
}

/* Starts a copy and waits until it has its state; false: it ends before that. */
static bool start_copy(unsigned copy, bool joins, uint64_t failing)
{
    int door[2], *listener = &pair.run->listeners[copy * PS_SERVERS];
    char byte;
    if (pipe(door) != 0)
        return false;
    atomic_store(&memory->armed[copy], 0);
    pair.pids[copy] = fork();
    if (pair.pids[copy] == 0) {
        close(door[0]);
        close(pair.run->listeners[!copy * PS_SERVERS]);
        _exit(serve_copy(copy, joins, door[1], failing));
    }
    close(door[1]);
    close(*listener); /* clients are refused once the copy is dead */
    *listener = -1;
    bool good = read(door[0], &byte, 1) == 1;
    close(door[0]);
    return good;
}

static bool start_pair(void)
{
    pair.primary = pair.victim = pair.kills = pair.broken = 0;
    return start_copy(0, false, 0) && start_copy(1, true, 0);
}

static bool end_pair(void)
{
    const pid_t first = pair.pids[pair.primary], second = pair.pids[!pair.primary];
    int status = 1;
    bool good = waitpid(first, &status, 0) == first && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    kill(second, SIGKILL); /* it ends two seconds after its last request */
    return waitpid(second, &status, 0) == second && good;
}

static void arm_victim(void)
{
    pair.victim = pair.kills % 2 == 0 ? pair.primary : !pair.primary;
    atomic_store(&memory->armed[pair.victim], 1 + splitmix64(&pair.random) % 60);
}

/* Replaces the victim, if it has died, and names the next one. The first attempt of some new replicas loses
 * its connection. */
static zr_result mend_pair(void)
{
    const unsigned dead = pair.victim;
    int status;
    if (pair.kills >= pair.max || waitpid(pair.pids[dead], &status, WNOHANG) == 0)
        return ZR_OK;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        return ZR_ERR_UNAVAILABLE;
    pair.kills++;
    pair.primary = dead == pair.primary ? !dead : pair.primary;
    for (unsigned attempt = 0; attempt < 2; attempt++) {
        uint64_t failing = attempt == 0 && pair.kills % 3 == 0 ? 1 + splitmix64(&pair.random) % 12 : 0;
        zr_result result = zr_ps_listen(&pair.run->listeners[dead * PS_SERVERS],
                                        (dead ? pair.run->replica_at : pair.run->at)[0], NULL);
        if (result == ZR_OK && start_copy(dead, true, failing))
            break;
        pair.broken++;
        if (failing == 0 || waitpid(pair.pids[dead], &status, 0) != pair.pids[dead])
            return ZR_ERR_UNAVAILABLE;
    }
    if (pair.kills < pair.max)
        arm_victim();
    return ZR_OK;
}

/* One thread is all workers, part by part. A victim is destroyed without a word, as its death would do. */
static zr_result drive(const struct ps_run *run, struct result *out, const struct plan *plan)
{
    const bool strikes = plan->pass > 0 && plan->clients;
    static struct numbers numbers;
    static float pulled[WORKERS][LARGE]; /* in the step */
    struct ps_ground ground;
    zr_ps_worker *workers[WORKERS] = {NULL}, *observer = NULL;
    unsigned parts = 0;
    zr_result result = ps_ground_open(&ground);
    for (unsigned w = 0; w < WORKERS && result == ZR_OK; w++)
        result = ps_join(&workers[w], run, w, ground.arena);
    if (result == ZR_OK)
        result = fill(workers[0], &numbers);
    if (strikes)
        zr_fault_set(plan->site, plan->pass);
    if (plan->kills > 0)
        arm_victim();
    for (unsigned i = 0; result == ZR_OK && (i < plan->steps * PARTS * WORKERS || pair.kills < plan->kills ||
                                             i % (PARTS * WORKERS) > 0);
         i++) {
        unsigned w = i % WORKERS;
        enum part part = (enum part)(i / WORKERS % PARTS);
        result = do_part(workers[w], run, &numbers, w, part);
        pair.steps = i / PARTS / WORKERS + 1;
        if (part == PULL)
            memcpy(pulled[w], numbers.large, sizeof pulled[w]);
        if (result == ZR_OK && plan->kills > 0)
            result = mend_pair();
        if (result == ZR_OK && plan->part > 0 && w == plan->victim && ++parts == plan->part) {
            zr_ps_worker_destroy(workers[w]);
            workers[w] = NULL;
            result = ps_join(&workers[w], run, w, ground.arena);
            for (unsigned p = 0; p <= part && part != END && result == ZR_OK; p++) {
                result = do_part(workers[w], run, &numbers, w, (enum part)p);
                if (p == PULL && run->options.timing.kind == ZR_PS_SYNC &&
                    memcmp(numbers.large, pulled[w], sizeof pulled[w]) != 0)
                    result = ZR_ERR_CORRUPT;
            }
        }
    }
    if (result == ZR_OK)
        result = ps_join(&observer, run, ZR_PS_OBSERVER, ground.arena);
    if (result == ZR_OK)
        result = read_all(observer, run, &numbers, out);
    for (unsigned w = 0; w < WORKERS; w++) {
        if (result == ZR_OK)
            result = zr_ps_leave(workers[w], w);
        zr_ps_worker_destroy(workers[w]);
    }
    if (strikes)
        memory->passes = zr_fault_set(plan->site, 0);
    zr_ps_worker_destroy(observer);
    if (result != ZR_OK)
        tap_note("%s", zr_last_error());
    ps_ground_close(&ground);
    return result;
}

static bool run_once(struct ps_run *run, struct result *out, const struct plan *plan)
{
    int status = 0;
    memset(memory, 0, offsetof(struct memory, bytes));
    madvise(memory, sizeof *memory, MADV_REMOVE);
    memset(out, 0, sizeof *out);
    if (ps_run_listen(run, folder) != ZR_OK)
        return false;
    pid_t child = fork();
    if (child == 0)
        _exit(watch(run, plan));
    bool good = drive(run, out, plan) == ZR_OK;
    if (!good)
        kill(child, SIGTERM);
    good &= waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    close(run->listeners[0]);
    return good;
}

/* A run of a server with a replica, which are killed by turns. */
static bool run_pair(struct ps_run *run, struct result *out, const struct plan *plan)
{
    pair.run = run;
    pair.max = plan->kills;
    memset(memory, 0, offsetof(struct memory, bytes));
    memset(out, 0, sizeof *out);
    run->replicated = true;
    bool good = ps_run_listen(run, folder) == ZR_OK && start_pair() && drive(run, out, plan) == ZR_OK;
    if (!good)
        kill(pair.pids[pair.primary], SIGKILL);
    good &= end_pair();
    run->replicated = false;
    return good;
}

static struct result want, got;

static bool same_bits(struct ps_run *run, const struct plan *plan)
{
    bool same = run_once(run, &got, plan) && memcmp(&got, &want, sizeof want) == 0;
    if (!same)
        tap_note("store %llu, then %llu; worker %u, part %u; site %s of %s, pass %llu",
                 (unsigned long long)plan->store, (unsigned long long)plan->again, plan->victim, plan->part,
                 zr_fault_site_name(plan->site), plan->clients ? "workers" : "the server",
                 (unsigned long long)plan->pass);
    return same;
}

/* A connection is lost at a message, on either side; *count messages in all. */
static bool lose_connections(struct ps_run *run, unsigned stride, uint64_t first, unsigned *count)
{
    static const unsigned sites[] = {ZR_FAULT_SEND, ZR_FAULT_RECEIVE, ZR_FAULT_RECEIVE | ZR_FAULT_SHORT};
    bool good = true;
    for (unsigned i = 0; i < 6 && good; i++)
        for (uint64_t pass = first; good; pass += stride, ++*count) {
            good = same_bits(
                run, &(struct plan){.steps = STEPS, .site = sites[i % 3], .clients = i < 3, .pass = pass});
            if (memory->passes < pass)
                break;
        }
    return good;
}

static const struct kind {
    const char *name;
    struct zr_ps_timing timing;
    bool geo;
} kinds[] = {{"sync", {ZR_PS_SYNC, 0}, false},
             {"ssp:1", {ZR_PS_SSP, 1}, false},
             {"async", {ZR_PS_ASYNC, 0}, false},
             {"geo:1", {ZR_PS_GEO, 1}, true}};

static struct ps_run run_of(const struct kind *kind)
{
    return (struct ps_run){.options = {.workers = WORKERS,
                                       .servers = 1,
                                       .timing = kind->timing,
                                       .optimizer = {.kind = ZR_OPTIMIZER_ADAMW,
                                                     .beta1 = 0.9f,
                                                     .beta2 = 0.95f,
                                                     .epsilon = 1e-8f,
                                                     .weight_decay = 0.1f},
                                       .tables = kind->geo ? plain_tables : tables,
                                       .tables_count = TABLES,
                                       .message_bytes = 512 << 10}};
}

/* Each death is followed by a new replica that has its state before the next one. */
static void check_pair(uint64_t *random, unsigned kills)
{
    for (unsigned k = 0; k<sizeof kinds / sizeof *kinds; k += kills> 4 ? 1 : 2) {
        struct ps_run run = run_of(&kinds[k]);
        pair.random = splitmix64(random);
        bool good = run_pair(&run, &got, &(struct plan){.kills = kills});
        good = good && run_once(&run, &want, &(struct plan){.steps = pair.steps}) &&
               memcmp(&got, &want, sizeof want) == 0;
        tap_ok(good && pair.kills == kills,
               "%s: servers and replicas killed by turns, %u times in %u steps: the same bits", kinds[k].name,
               pair.kills, pair.steps);
        tap_ok(kills <= 4 || pair.broken > 0, "%s: %u new replicas lost their connection", kinds[k].name,
               pair.broken);
    }
}

int main(void)
{
    const unsigned stride = run_stride(151);
    uint64_t random = run_seed();
    snprintf(folder, sizeof folder, "/tmp/zr-ps-XXXXXX");
    memory = mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !mkdtemp(folder))
        return 1;
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct ps_run run = run_of(&kinds[k]);
        const unsigned step = stride == 1 && k > 0 ? 3 : stride; /* all timings store by the same code */
        unsigned kills = 0, lost = 0;
        bool good = run_once(&run, &want, &(struct plan){.steps = STEPS});
        const uint64_t stores = memory->stores;
        tap_ok(good && stores > 20, "%s: a run without kills has %llu stores", kinds[k].name,
               (unsigned long long)stores);
        for (uint64_t nth = 1 + splitmix64(&random) % step; good && nth <= stores; nth += step, kills++)
            good = same_bits(&run, &(struct plan){.steps = STEPS,
                                                  .store = nth,
                                                  .again = nth % 2 ? 1 + splitmix64(&random) % 6 : 0});
        tap_ok(good && kills > 0, "%s: servers killed before a store, %u times: the same bits", kinds[k].name,
               kills);
        if (k % 2 == 0) {
            good = good && lose_connections(&run, stride > 1 ? 67 : 1, 1 + splitmix64(&random) % 9, &lost);
            tap_ok(good && lost > 0, "%s: connections lost at a message, %u times: the same bits",
                   kinds[k].name, lost);
        }
        run.options.successors = true;
        for (unsigned part = 1; good && part <= STEPS * PARTS; part += stride > 1 ? 7 : 1)
            good = same_bits(&run, &(struct plan){.steps = STEPS, .victim = part % WORKERS, .part = part});
        tap_ok(good, "%s: a worker is replaced in the middle of a step: the same pulls and bits",
               kinds[k].name);
    }
    check_pair(&random, stride > 1 ? 4 : 50);
    rmdir(folder);
    return tap_done();
}
