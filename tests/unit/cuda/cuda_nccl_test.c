/* cuda_nccl_test.c: NCCL and device memory, on the emulated driver and the emulated NCCL: what that one
 * reports of buffers, streams and calls in progress, by a planted mistake for each; the communicator over it,
 * whose operations no host waits for: order by streams alone, groups by a split, and a rank that is lost. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <time.h>

#include "tests/support/child.h"
#include "tests/emulators/nccl/nccl_emulator.h"
#include "tests/support/cuda/cuda_pieces.h"
#include "zero/comm/local/local.h"
#include "zero/comm/nccl.h"

enum { BYTES = 4096 };

static struct {
    const struct zr_nccl *nccl;
    struct mapped memory;
    struct zr_handle *other; /* a granule that is mapped nowhere */
    char *at;
    zr_nccl_comm comm;
    zr_cu_stream stream;
} scene;

static const char *nccl_path(void)
{
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%.*slibnccl.so.2",
             (int)(strrchr(cuda_emulator_path(), '/') + 1 - cuda_emulator_path()), cuda_emulator_path());
    return path;
}

static struct zr_nccl_emulator *library(void)
{
    return dlsym(dlopen(nccl_path(), RTLD_NOW), "zr_nccl_emulator");
}

static const char *reported(void)
{
    return library()->report;
}

/* A call of a communicator that does not block, waited for. */
static zr_nccl_result settled(zr_nccl_result code)
{
    while (code == ZR_NCCL_IN_PROGRESS)
        scene.nccl->async_error(scene.comm, &code);
    return code;
}

static void set_scene(int blocking)
{
    struct zr_nccl_id id;
    struct zr_nccl_config config = {sizeof config, (unsigned)ZR_NCCL_MAGIC, ZR_NCCL_CONFIG_VERSION, blocking,
                                    ZR_NCCL_NOT_SET};
    zr_cu_result (*create_stream)(zr_cu_stream *, unsigned);
    emulator = cuda_emulator_alone();
    if (!emulator || !freopen("/dev/null", "w", stderr))
        _exit(9);
    scene.memory = map_one(NULL);
    zr_cuda_driver_get(&cu);
    zr_cuda_driver_find("cuStreamCreate", (void **)&create_stream);
    zr_backend_enter(scene.memory.backend);
    zr_backend_create(scene.memory.backend, GRANULE, &scene.other);
    emulator->work_ticks(50);
    create_stream(&scene.stream, ZR_CU_STREAM_NON_BLOCKING);
    scene.at = scene.memory.range->address;
    zr_nccl_path_set(nccl_path());
    if (zr_nccl_get(&scene.nccl) != ZR_OK || scene.nccl->get_id(&id) != 0 ||
        settled(scene.nccl->init(&scene.comm, 1, id, 0, &config)) != 0)
        _exit(8);
}

static zr_nccl_result gather(char *from, char *to)
{
    return scene.nccl->all_gather(from, to, BYTES, ZR_NCCL_UINT8, scene.comm, scene.stream);
}

static unsigned char byte_at(const char *address)
{
    unsigned char byte = 0;
    cu->copy((zr_cu_address)(uintptr_t)&byte, (zr_cu_address)(uintptr_t)address, 1, NULL);
    cu->stream_synchronize(NULL);
    return byte;
}

static void fill(char *at, unsigned char value)
{
    cu->fill((zr_cu_address)(uintptr_t)at, value, BYTES, scene.stream);
}

static void map_other(void)
{
    unmap_one(&scene.memory);
    zr_backend_map(scene.memory.range, 0, scene.other);
    zr_backend_set_access(scene.memory.range, (struct zr_bounds){0, GRANULE});
}

/* ---- Mistakes: each in a process of its own, whose exit status is 0 where it was reported ----------------
 */

static int no_mistake(void)
{
    fill(scene.at, 7);
    int code = gather(scene.at, scene.at + BYTES);
    code |= (int)cu->stream_synchronize(scene.stream);
    code |= byte_at(scene.at + 2 * BYTES - 1) != 7;
    return code | settled(scene.nccl->finalize(scene.comm)) | scene.nccl->destroy(scene.comm);
}

/* The call has returned, and nothing is in the stream before it has settled. */
static int settle_late(void)
{
    zr_nccl_result code = gather(scene.at, scene.at + BYTES);
    fill(scene.at, 7);
    cu->stream_synchronize(scene.stream);
    bool early = code == ZR_NCCL_IN_PROGRESS && byte_at(scene.at + BYTES) == 0;
    code = settled(code);
    cu->stream_synchronize(scene.stream);
    return !early || code != 0 || byte_at(scene.at + BYTES) != 7;
}

static int call_in_progress(void)
{
    gather(scene.at, scene.at + BYTES);
    return gather(scene.at, scene.at + BYTES) != 4 || scene.nccl->destroy(scene.comm) != 4;
}

static int no_mistake_settled(void)
{
    fill(scene.at, 7);
    int code = settled(gather(scene.at, scene.at + BYTES)) | (int)cu->stream_synchronize(scene.stream);
    return code | (byte_at(scene.at + 2 * BYTES - 1) != 7) | settled(scene.nccl->finalize(scene.comm)) |
           scene.nccl->destroy(scene.comm);
}

static int abort_in_progress(void)
{
    gather(scene.at, scene.at + BYTES);
    return scene.nccl->abort(scene.comm);
}

static int ask_after_the_end(void)
{
    zr_nccl_result code = 0;
    scene.nccl->abort(scene.comm);
    return scene.nccl->async_error(scene.comm, &code) == 0;
}

/* Nothing has come when the call returns, nor while another stream is waited for. */
static int read_without_wait(void)
{
    fill(scene.at, 7);
    cu->stream_synchronize(scene.stream);
    gather(scene.at, scene.at + BYTES);
    bool early = byte_at(scene.at + BYTES) == 0;
    cu->stream_synchronize(scene.stream);
    return !early || byte_at(scene.at + BYTES) != 7;
}

static int unmap_too_early(void)
{
    gather(scene.at, scene.at + BYTES);
    unmap_one(&scene.memory);
    return cu->stream_synchronize(scene.stream) == 0;
}

static int map_others_too_early(void)
{
    gather(scene.at, scene.at + BYTES);
    map_other();
    return cu->stream_synchronize(scene.stream) == 0;
}

static int use_what_is_not_mapped(void)
{
    gather(scene.at, scene.at + 2 * GRANULE);
    return cu->stream_synchronize(scene.stream) == 0;
}

static int end_under_way(void)
{
    gather(scene.at, scene.at + BYTES);
    return scene.nccl->destroy(scene.comm) == 0;
}

static int use_no_stream(void)
{
    scene.stream = (zr_cu_stream)(uintptr_t)0x5a0;
    return gather(scene.at, scene.at + BYTES) == 0;
}

static const struct mistake {
    const char *words, *report;
    int (*make)(void);
    bool does_not_block;
} mistakes[] = {
    {"no mistake: bytes arrive, nothing is left", "", no_mistake, false},
    {"nor in a communicator that does not block", "", no_mistake_settled, true},
    {"what has not settled is not in the stream", "", settle_late, true},
    {"a call before the last one has settled", "a destruction while the communicator is in progress",
     call_in_progress, true},
    {"an abort is no mistake then", "", abort_in_progress, true},
    {"a communicator that has ended is used", "that has ended is asked", ask_after_the_end, true},
    {"a result that is read without a wait is not there", "", read_without_wait, false},
    {"a buffer that is unmapped too early", "freed or unmapped after the call", unmap_too_early, false},
    {"and other memory mapped in its place", "freed or unmapped after the call", map_others_too_early, false},
    {"a buffer that is not mapped", "none that its device may use", use_what_is_not_mapped, false},
    {"the end before what is under way", "work of it is in a stream", end_under_way, false},
    {"a stream of nobody", "none of the current context", use_no_stream, false},
};
static const struct mistake *chosen;

static int make_mistake(void)
{
    set_scene(!chosen->does_not_block);
    int code = chosen->make();
    return code ? code : strstr(reported(), chosen->report) && !chosen->report[0] == !reported()[0] ? 0 : 7;
}

/* ---- The communicator -----------------------------------------------------------------------------------
 */

enum task {
    TASK_WORKS,
    TASK_LOSES,
    TASK_ONE_CARD,
    TASK_DIES_STARTING,
    TASK_DIES_SPLITTING,
    TASK_DIES_LAUNCHING
};

struct rank {
    zr_backend *device, *host;
    zr_arena *arena, *host_arena;
    zr_comm *talk, *comm;
    char *block;
};

static zr_result open_rank(struct rank *r, struct zr_local_world *local, unsigned rank, unsigned device)
{
    struct zr_comm_options options = {.kernels = zr_kernels_cuda(), .bucket_bytes = BYTES};
    zr_result result = zr_backend_cuda_create(&r->device, &(struct zr_cuda_options){.device = (int)device});
    if (result == ZR_OK)
        result = zr_backend_enter(r->device);
    if (result == ZR_OK)
        result = zr_backend_host_create(&r->host, NULL);
    if (result == ZR_OK)
        result = zr_arena_create(&r->arena, &(struct zr_arena_options){.backend = r->device});
    if (result == ZR_OK)
        result = zr_arena_create(&r->host_arena, &(struct zr_arena_options){.backend = r->host});
    options.arena = r->arena;
    options.host_arena = r->host_arena;
    struct zr_comm_options talking = options;
    talking.arena = r->host_arena;
    talking.kernels = zr_kernels_cpu(ZR_ISA_PLAIN);
    if (result == ZR_OK)
        result = zr_comm_local_create(&r->talk, &talking, local, rank);
    if (result == ZR_OK)
        result = zr_arena_alloc(r->arena, &(struct zr_request){.bytes = 8 * BYTES, .tag = ZR_TAG_OTHER},
                                (void **)&r->block);
    if (result == ZR_OK)
        result = zr_comm_nccl_create(&r->comm, &(struct zr_nccl_options){.comm = &options, .local = local},
                                     r->talk);
    return result;
}

static unsigned close_rank(struct rank *r)
{
    size_t leaked_bytes = 0;
    zr_comm_destroy(r->comm);
    zr_arena_free(r->arena, r->block);
    zr_arena_destroy(r->arena, &leaked_bytes);
    zr_arena_destroy(r->host_arena, NULL);
    zr_backend_leave(r->device);
    zr_backend_destroy(r->device);
    zr_backend_destroy(r->host);
    return leaked_bytes > 0;
}

/* This rank's number + 1 is gathered: the wait is the stream's, and so is the read behind it. */
static unsigned gather_ranks(zr_comm *comm, char *block)
{
    unsigned wrong = 0, world = zr_comm_world(comm);
    char *own = block + zr_comm_rank(comm) * BYTES;
    zr_ticket ticket = 0;
    cu->fill((zr_cu_address)(uintptr_t)block, 0, world * BYTES, NULL);
    cu->fill((zr_cu_address)(uintptr_t)own, (unsigned char)(zr_comm_rank(comm) + 1), BYTES, NULL);
    struct zr_all_gather op = {.source = own, .destination = block, .shard_bytes = BYTES};
    wrong += zr_comm_all_gather(comm, &op, &ticket) != ZR_OK || zr_comm_wait(comm, ticket) != ZR_OK;
    for (unsigned p = 0; p < world; p++)
        wrong += byte_at(block + p * BYTES + BYTES - 1) != p + 1;
    return wrong;
}

static int works(struct rank *r, unsigned rank)
{
    unsigned wrong = 0;
    zr_comm *half;
    const unsigned ranks[] = {rank / 2 * 2, rank / 2 * 2 + 1};
    for (unsigned i = 0; i < 3; i++)
        wrong += gather_ranks(r->comm, r->block);
    wrong += zr_comm_split(&half, r->comm, ranks, 2, 0) != ZR_OK;
    wrong += gather_ranks(half, r->block);
    zr_comm_destroy(half);
    wrong += library()->splits != 1 || library()->registrations != 0;
    wrong += close_rank(r);
    return (int)wrong + (int)library()->communicators;
}

static bool names_rank_1(zr_result result)
{
    bool named = result == ZR_ERR_PEER && strstr(zr_last_error(), "rank 1 ");
    if (!named)
        fprintf(stderr, "# %s: %s\n", zr_result_name(result), zr_last_error());
    return named;
}

/* Rank 0 waits for its stream, not for its peer, and gets through. */
static int loses(struct rank *r, unsigned rank)
{
    zr_ticket ticket;
    struct zr_all_gather op = {.source = r->block, .destination = r->block, .shard_bytes = BYTES};
    if (gather_ranks(r->comm, r->block) > 0)
        return 1;
    if (rank == 1)
        _exit(0);
    zr_result result = zr_comm_all_gather(r->comm, &op, &ticket);
    if (result != ZR_OK || zr_comm_wait(r->comm, ticket) != ZR_OK)
        return 2;
    byte_at(r->block);
    bool named = names_rank_1(zr_comm_all_gather(r->comm, &op, &ticket));
    close_rank(r);
    return named && library()->communicators == 0 ? 0 : 3;
}

/* Rank 1 has died inside a call of NCCL, which rank 0 would be in for ever. */
static int outlives(struct rank *r, enum task task, zr_result opened, uint64_t began_ns)
{
    const unsigned ranks[] = {0, 1};
    zr_ticket ticket;
    zr_comm *group = NULL;
    struct zr_all_gather op = {.source = r->block, .destination = r->block, .shard_bytes = BYTES};
    zr_result result = opened;
    if (zr_os_now_ns() > began_ns + 15000000000u)
        return 7; /* the emulated library has ended a call that blocked */
    if (result == ZR_OK && task == TASK_DIES_SPLITTING)
        result = zr_comm_split(&group, r->comm, ranks, 2, 0);
    else if (result == ZR_OK)
        result = zr_comm_all_gather(r->comm, &op, &ticket);
    bool named = names_rank_1(result) && (opened == ZR_OK) == (task != TASK_DIES_STARTING);
    if (r->comm)
        close_rank(r);
    return named && library()->communicators == 0 ? 0 : 6;
}

static int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    enum task task = *(const enum task *)argument;
    struct rank r = {0};
    setenv("ZR_EMULATOR_DEVICES", "4", 1);
    emulator = cuda_emulator();
    zr_nccl_path_set(nccl_path());
    static const enum zr_nccl_doing deaths[] = {[TASK_DIES_STARTING] = ZR_NCCL_STARTING,
                                                [TASK_DIES_SPLITTING] = ZR_NCCL_SPLITTING,
                                                [TASK_DIES_LAUNCHING] = ZR_NCCL_LAUNCHING};
    const uint64_t began_ns = zr_os_now_ns();
    library()->silence_s = 15;
    if (rank == 1)
        library()->dies_at = deaths[task];
    zr_result result = open_rank(&r, local, rank, task == TASK_ONE_CARD ? 0 : rank);
    zr_cuda_driver_get(&cu);
    if (task == TASK_ONE_CARD)
        return result == ZR_ERR_UNAVAILABLE && strstr(zr_last_error(), "Duplicate GPU") &&
                       strstr(zr_last_error(), "--comm local")
                   ? 0
                   : 4;
    if (task >= TASK_DIES_STARTING)
        return outlives(&r, task, result, began_ns);
    if (result != ZR_OK)
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
    return result != ZR_OK ? 5 : task == TASK_LOSES ? loses(&r, rank) : works(&r, rank);
}

static int launch_ranks(unsigned world, enum task task)
{
    fflush(stdout);
    return zr_local_launch(
        &(struct zr_launch_options){.world = world, .rank_main = run_rank, .argument = &task});
}

int main(void)
{
    if (cuda_on_card()) {
        tap_skip("what these tests do to NCCL is for the emulated one only");
        return tap_done();
    }
    for (unsigned i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        chosen = &mistakes[i];
        tap_is(in_child_within(make_mistake, 60), 0, "%s: %s", chosen->words,
               chosen->report[0] ? chosen->report : "nothing is reported");
    }
    tap_is(launch_ranks(2, TASK_ONE_CARD), 0, "two ranks on one card are refused");
    tap_is(launch_ranks(4, TASK_WORKS), 0, "what is read behind a wait is there; groups come of a split");
    tap_is(launch_ranks(2, TASK_LOSES), 0, "a rank that is gone ends the stream's wait, and is named");
    tap_is(launch_ranks(2, TASK_DIES_STARTING), 0, "so it does in the start of a communicator,");
    tap_is(launch_ranks(2, TASK_DIES_SPLITTING), 0, "in a split,");
    tap_is(launch_ranks(2, TASK_DIES_LAUNCHING), 0, "and where the first operation connects the two");
    return tap_done();
}
