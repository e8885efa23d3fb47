/* cuda_nccl_test.c: NCCL and device memory, on the emulated driver and the emulated NCCL: what that one
 * reports of buffers, registrations and streams, by a planted mistake for each; the communicator over it,
 * whose operations no host waits for: order by streams alone, groups by a split, and a rank that is lost. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <time.h>

#include "tests/support/child.h"
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

/* What the emulated NCCL has reported last. */
static const char *reported(void)
{
    struct control {
        int version;
        unsigned counts[4];
        int silence_s;
        unsigned splits;
        char report[256];
    } *control = dlsym(dlopen(nccl_path(), RTLD_NOW), "zr_nccl_emulator");
    return control->report;
}

static void set_scene(void)
{
    struct zr_nccl_id id;
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
        scene.nccl->init(&scene.comm, 1, id, 0) != 0)
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
    void *handle;
    fill(scene.at, 7);
    int code = scene.nccl->register_memory(scene.comm, scene.at, GRANULE, &handle);
    code |= gather(scene.at, scene.at + BYTES);
    code |= (int)cu->stream_synchronize(scene.stream);
    code |= byte_at(scene.at + 2 * BYTES - 1) != 7;
    code |= scene.nccl->deregister_memory(scene.comm, handle);
    return code | scene.nccl->destroy(scene.comm);
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

static int register_what_is_not_mapped(void)
{
    void *handle;
    return scene.nccl->register_memory(scene.comm, scene.at, 2 * GRANULE, &handle) == 0;
}

static int move_what_is_registered(void)
{
    void *handle;
    scene.nccl->register_memory(scene.comm, scene.at, GRANULE, &handle);
    map_other();
    return scene.nccl->send(scene.at, 1, ZR_NCCL_UINT8, 0, scene.comm, scene.stream) == 0 ||
           scene.nccl->deregister_memory(scene.comm, handle) == 0;
}

static int end_while_registered(void)
{
    void *handle;
    scene.nccl->register_memory(scene.comm, scene.at, GRANULE, &handle);
    return scene.nccl->destroy(scene.comm) == 0;
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

static int deregister_twice(void)
{
    void *handle;
    scene.nccl->register_memory(scene.comm, scene.at, GRANULE, &handle);
    scene.nccl->deregister_memory(scene.comm, handle);
    return scene.nccl->deregister_memory(scene.comm, handle) == 0;
}

static const struct mistake {
    const char *words, *report;
    int (*make)(void);
} mistakes[] = {
    {"no mistake: bytes arrive, nothing is left", "", no_mistake},
    {"a result that is read without a wait is not there", "", read_without_wait},
    {"a buffer that is unmapped too early", "freed or unmapped after the call", unmap_too_early},
    {"and other memory mapped in its place", "freed or unmapped after the call", map_others_too_early},
    {"a buffer that is not mapped", "none that its device may use", use_what_is_not_mapped},
    {"what is registered is not mapped", "not all are mapped", register_what_is_not_mapped},
    {"registered memory that has moved", "unmapped before it was deregistered", move_what_is_registered},
    {"the end before what is registered", "registered with it still", end_while_registered},
    {"the end before what is under way", "work of it is in a stream", end_under_way},
    {"a stream of nobody", "none of the current context", use_no_stream},
    {"what is deregistered twice", "no registration", deregister_twice},
};
static const struct mistake *chosen;

static int make_mistake(void)
{
    set_scene();
    int code = chosen->make();
    return code ? code : strstr(reported(), chosen->report) && !chosen->report[0] == !reported()[0] ? 0 : 7;
}

/* ---- The communicator -----------------------------------------------------------------------------------
 */

enum task { TASK_WORKS, TASK_LOSES, TASK_ONE_CARD };

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
    wrong += ((unsigned *)dlsym(dlopen(nccl_path(), RTLD_NOW), "zr_nccl_emulator"))[6] != 1; /* splits */
    return (int)(wrong + close_rank(r));
}

/* Rank 0 waits for its stream, not for its peer, and gets through. */
static int loses(struct rank *r, unsigned rank)
{
    zr_ticket ticket;
    struct zr_all_gather op = {.source = r->block, .destination = r->block, .shard_bytes = BYTES};
    if (rank == 1)
        _exit(0);
    zr_result result = zr_comm_all_gather(r->comm, &op, &ticket);
    if (result != ZR_OK || zr_comm_wait(r->comm, ticket) != ZR_OK)
        return 2;
    byte_at(r->block);
    result = zr_comm_all_gather(r->comm, &op, &ticket);
    bool named = result == ZR_ERR_PEER && strstr(zr_last_error(), "rank 1 ");
    if (!named)
        fprintf(stderr, "# %s: %s\n", zr_result_name(result), zr_last_error());
    close_rank(r);
    return named ? 0 : 3;
}

static int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    enum task task = *(const enum task *)argument;
    struct rank r = {0};
    setenv("ZR_EMULATOR_DEVICES", "4", 1);
    emulator = cuda_emulator();
    zr_nccl_path_set(nccl_path());
    zr_result result = open_rank(&r, local, rank, task == TASK_ONE_CARD ? 0 : rank);
    zr_cuda_driver_get(&cu);
    if (task == TASK_ONE_CARD)
        return result == ZR_ERR_UNAVAILABLE && strstr(reported(), "both on device 0") ? 0 : 4;
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
    return tap_done();
}
