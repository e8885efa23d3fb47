/* nccl_test.c: the communicator over NCCL, on the emulated libnccl.so.2 beside this program: every operation
 * against plain sums in rank order when deterministic, within rounding when the sums are NCCL's own, and what
 * it says when NCCL is missing, too old, or a rank has gone. Memory is the host's; on a GPU nothing of this
 * has run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/emulators/nccl/nccl_emulator.h"
#include "tests/support/zero/comm_groups.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"
#include "zero/comm/nccl.h"

#ifdef ZR_TEST_NCCL_HEADER
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* the header is also C++ */
#include ZR_TEST_NCCL_HEADER
#pragma GCC diagnostic pop
#endif

/* ---- The declarations ---------------------------------------------------------------------------------- */

#ifdef ZR_TEST_NCCL_HEADER
#define AGREES(theirs, ours)                                                                                 \
    {                                                                                                        \
#theirs, (long long)(theirs), (long long)(ours)                                                      \
    }

static void test_declarations(void)
{
    const ncclConfig_t newest = NCCL_CONFIG_INITIALIZER;
    const struct {
        const char *what;
        long long theirs, ours;
    } pairs[] = {
        AGREES(ncclUint8, ZR_NCCL_UINT8),
        AGREES(ncclFloat16, ZR_NCCL_FP16),
        AGREES(ncclFloat32, ZR_NCCL_FP32),
        AGREES(ncclBfloat16, ZR_NCCL_BF16),
        AGREES(ncclSum, ZR_NCCL_SUM),
        AGREES(ncclAvg, ZR_NCCL_AVERAGE),
        AGREES(ncclSuccess, 0),
        AGREES(ncclInProgress, ZR_NCCL_IN_PROGRESS),
        AGREES(ncclRemoteError, ZR_NCCL_REMOTE_ERROR),
        AGREES(ncclScalarHostImmediate, ZR_NCCL_SCALAR_ON_HOST),
        AGREES(offsetof(ncclConfig_t, magic), offsetof(struct zr_nccl_config, magic)),
        AGREES(offsetof(ncclConfig_t, version), offsetof(struct zr_nccl_config, version)),
        AGREES(offsetof(ncclConfig_t, blocking), offsetof(struct zr_nccl_config, blocking)),
        AGREES((int)newest.magic, ZR_NCCL_MAGIC),
        AGREES(newest.minCTAs, ZR_NCCL_NOT_SET),
        AGREES(sizeof(ncclUniqueId), sizeof(struct zr_nccl_id)),
        AGREES(sizeof(ncclComm_t), sizeof(zr_nccl_comm)),
        AGREES(sizeof(ncclResult_t), sizeof(zr_nccl_result)),
        AGREES(sizeof(ncclDataType_t), sizeof(int)),
        AGREES(sizeof(ncclRedOp_t), sizeof(int)),
        AGREES(sizeof(cudaStream_t), sizeof(void *)),
    };
    tap_note("compared with " ZR_TEST_NCCL_HEADER);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++)
        tap_is(pairs[i].ours, pairs[i].theirs, "%s as declared here", pairs[i].what);
}
#else
static void test_declarations(void)
{
    tap_skip("no nccl.h to compare the declarations with");
}
#endif

/* ---- Ranks --------------------------------------------------------------------------------------------- */

struct task {
    uint64_t seed;
    size_t bucket_bytes;
    bool deterministic;
    bool loses;             /* rank 1 goes in the middle, */
    bool stands_still;      /* or stands still until the others know */
    _Atomic unsigned *told; /* ranks that know */
};

static const char *emulator_path(void)
{
    static char path[PATH_MAX + 32];
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "emulator/libnccl.so.2");
    return path;
}

static struct zr_nccl_emulator *control(void)
{
    void *library = dlopen(emulator_path(), RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, "zr_nccl_emulator") : NULL;
}

/* Sums whose order is not ours: close, and the same on all ranks. */
static unsigned check_close(zr_comm *comm, uint64_t seed)
{
    enum { SHARD = 1021 };
    unsigned world = zr_comm_world(comm), rank = zr_comm_rank(comm), wrong = 0;
    struct trial t = {.comm = comm, .rank = rank, .world = world};
    static const float scales[] = {1, 0, 0.37f, 0.5f}; /* 0: the mean; the last need operators of their own */
    float *buffer = malloc(world * SHARD * sizeof(float));
    for (size_t s = 0; s < sizeof(scales) / sizeof(*scales); s++) {
        float scale = scales[s] == 0 ? 1.0f / (float)world : scales[s];
        zr_ticket ticket = 0;
        trial_fill(&t, ZR_COMM_FP32, buffer, world * SHARD, seed + s);
        struct zr_all_reduce op = {.buffer = buffer, .shard_elements = SHARD, .scale = scale};
        wrong += zr_comm_all_reduce(comm, &op, &ticket) != ZR_OK || zr_comm_wait(comm, ticket) != ZR_OK;
        for (size_t i = 0; i < world * SHARD; i++) {
            double sum = 0, size = 0;
            for (unsigned p = 0; p < world; p++) {
                sum += trial_value(ZR_COMM_FP32, seed + s, p, i);
                size += fabs((double)trial_value(ZR_COMM_FP32, seed + s, p, i));
            }
            wrong += fabs((double)buffer[i] - sum * (double)scale) > size * (double)scale * 1e-6;
        }
        struct zr_reduce_scatter scatter = {
            .source = buffer, .destination = buffer, .shard_elements = 1, .scale = scale};
        wrong +=
            zr_comm_reduce_scatter(comm, &scatter, &ticket) != ZR_OK || zr_comm_wait(comm, ticket) != ZR_OK;
    }
    wrong += control()->report[0] != '\0'; /* as of an operator that is not given back */
    free(buffer);
    return wrong;
}

/* Until all ranks but the one that is lost know of it. */
static void await_told(const _Atomic unsigned *told, unsigned world)
{
    for (unsigned ms = 0; *told + 1 < world && ms < 120000; ms++)
        usleep(1000);
}

static int work(zr_comm *comm, const struct task *task, unsigned rank)
{
    if (task->loses) {
        char byte = 1, all[8];
        zr_ticket ticket = 0;
        if (rank == 1) {
            if (task->stands_still)
                await_told(task->told, zr_comm_world(comm));
            _exit(0);
        }
        control()->silence_s = 1;
        struct zr_all_gather op = {.source = &byte, .destination = all, .shard_bytes = 1};
        zr_result result = zr_comm_all_gather(comm, &op, &ticket);
        if (result == ZR_OK)
            result = zr_comm_wait(comm, ticket);
        bool right = result == (task->stands_still ? ZR_ERR_TIMEOUT : ZR_ERR_PEER) &&
                     strstr(zr_last_error(), "all-gather") && strstr(zr_last_error(), "rank 1 ");
        if (!right)
            fprintf(stderr, "# rank %u: %s: %s\n", rank, zr_result_name(result), zr_last_error());
        (*task->told)++;
        await_told(task->told, zr_comm_world(comm)); /* or another may see this rank's end first */
        return right ? 0 : 1;
    }
    if (task->deterministic) {
        unsigned failures =
            trial_operations(comm, &(struct trial_options){.seed = task->seed, .counts_direct = true});
        if (zr_comm_world(comm) % 4 == 0)
            failures += mesh_operations(comm, task->seed, true); /* one stream */
        return failures > 0;
    }
    return check_close(comm, task->seed) > 0;
}

static int run_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct task *task = argument;
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    zr_comm *talk = NULL, *comm = NULL;
    size_t leaked_bytes = 0;
    struct zr_nccl_emulator *emulator = control();
    if (!emulator || zr_backend_host_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 4;
    struct zr_comm_options large = {.arena = arena,
                                    .host_arena = arena,
                                    .kernels = zr_kernels_cpu(zr_isa_best()),
                                    .bucket_bytes = task->bucket_bytes};
    struct zr_nccl_options options = {.comm = &large, .local = local, .deterministic = task->deterministic};
    struct zr_comm_options small = large;
    small.bucket_bytes = 4096;
    if (task->stands_still)
        small.timeout_ns = 2000000000u;
    if (zr_comm_local_create(&talk, &small, local, rank) != ZR_OK ||
        zr_comm_nccl_create(&comm, &options, talk) != ZR_OK) {
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
        return 1;
    }
    int code = work(comm, task, rank);
    unsigned collectives = emulator->collectives, registrations = emulator->registrations;
    if (!task->loses && (registrations != 0 || (collectives == 0 && !task->deterministic)))
        code = 2;
    zr_comm_destroy(comm);
    if (emulator->communicators != 0)
        code = 3;
    zr_arena_destroy(arena, &leaked_bytes);
    zr_backend_destroy(backend);
    return leaked_bytes > 0 ? 5 : code;
}

static int launch(unsigned world, struct task task)
{
    fflush(stdout);
    return zr_local_launch(
        &(struct zr_launch_options){.world = world, .rank_main = run_rank, .argument = &task});
}

/* In a child each: a library stays as it was found. */
static int refused(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct zr_nccl *nccl;
    const int *version = argument;
    (void)local, (void)rank;
    if (*version == 0) {
        zr_nccl_path_set("/nonexistent/libnccl.so.2");
    } else {
        struct zr_nccl_emulator *emulator = control();
        if (!emulator)
            return 9;
        emulator->version = *version;
    }
    zr_result result = zr_nccl_get(&nccl);
    bool words = strstr(zr_last_error(), "nccl") && strstr(zr_last_error(), *version ? "version" : "install");
    return result == ZR_ERR_UNAVAILABLE && !nccl && words ? 0 : 1;
}

static int launch_refused(int version)
{
    fflush(stdout);
    return zr_local_launch(
        &(struct zr_launch_options){.world = 1, .rank_main = refused, .argument = &version});
}

int main(void)
{
    uint64_t seed = run_seed();
    test_declarations();
    zr_nccl_path_set(emulator_path());
    for (unsigned world = 1; world <= 8; world += world < 4 ? 1 : 4) {
        tap_is(launch(world, (struct task){.seed = seed, .bucket_bytes = 4096, .deterministic = true}), 0,
               "%u ranks, deterministic: every operation in rank order, to the bit", world);
        tap_is(launch(world, (struct task){.seed = seed, .bucket_bytes = 65536}), 0,
               "%u ranks, NCCL's own sums: within rounding", world);
    }
    _Atomic unsigned *told =
        mmap(NULL, 2 * sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct task loses = {.bucket_bytes = 4096, .loses = true, .told = told};
    tap_ok(told != MAP_FAILED && launch(3, loses) == 0,
           "a rank that is gone ends the others' waits, and is named");
    loses.told++, loses.stands_still = true;
    tap_ok(told != MAP_FAILED && launch(3, loses) == 0, "and so does one that stands still");
    tap_is(launch_refused(0), 0, "without libnccl.so.2: a result and words");
    tap_is(launch_refused(20000), 0, "too old a one: a result and its version");
    return tap_done();
}
