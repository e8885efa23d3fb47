/* rehearse_ranks.c: processes that share simulated devices, for tests/system/rehearse_device.t.
 * rehearse_ranks MODE: two ranks of NCCL on two devices ("carry", "long", "late", "timed", "dead", "twice"),
 * twelve
 * ("many"), a program that forks ("fork"), one whose child is killed ("killed"), or the devices that it sees
 * ("visible"). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct id {
    char bytes[128];
};
int cudaGetDeviceCount(int *count);
int cudaDeviceGetPCIBusId(char *text, int bytes, int device);
int cudaSetDevice(int device);
int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *pointer);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaStreamCreate(void **out);
int cudaStreamQuery(void *stream);
int cudaEventCreate(void **out);
int cudaEventRecord(void *event, void *stream);
int cudaEventElapsedTime(float *ms, void *begin, void *end);
int cudaStreamSynchronize(void *stream);
struct extent {
    unsigned x, y, z;
};
int cudaLaunchKernel(const void *function, struct extent grid, struct extent block, void **arguments,
                     size_t shared_bytes, void *stream);
int ncclGetUniqueId(struct id *out);
int ncclCommInitRank(void **out, int ranks, struct id id, int rank);
int ncclCommSplit(void *comm, int colour, int key, void **out, void *config);
int ncclCommCount(void *comm, int *out);
int ncclCommDestroy(void *comm);
int ncclCommAbort(void *comm);
int ncclCommGetAsyncError(void *comm, int *out);
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream);
int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm,
                  void *stream);
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, void *comm,
                      void *stream);
int ncclRedOpCreatePreMulSum(int *operation, void *scalar, int type, int residence, void *comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream);
int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream);

enum { ANY = 4, RANKS = 2, UINT8 = 1, INT64 = 4, HALF = 6, FLOAT = 7, BFLOAT = 9 };
enum { SUM, PRODUCT, MAX, MIN, AVERAGE };
enum { ROOM = 4 << 20, OUT = 2 << 20 }; /* of the buffer; where results go */

static struct {
    void *comm, *stream;
    char *buffer;      /* on the device */
    int rank, ends[2]; /* ends: of a pipe */
} own;

static void put(size_t at, const void *data, size_t bytes)
{
    cudaMemcpy(own.buffer + at, data, bytes, ANY);
}

static void get(void *data, size_t at, size_t bytes)
{
    cudaStreamSynchronize(own.stream);
    cudaMemcpy(data, own.buffer + at, bytes, ANY);
}

/* The bytes that rank 0 has sent, at the end of a message of so many. */
static int broadcast(size_t bytes)
{
    static char host[OUT];
    memset(host, own.rank ? 1 : 7, bytes);
    for (size_t at = 0; at < bytes; at += 1 << 20)
        put(OUT + at, host, bytes - at < 1 << 20 ? bytes - at : 1 << 20);
    if (ncclBroadcast(own.buffer + OUT, own.buffer + OUT, bytes, UINT8, 0, own.comm, own.stream) != 0)
        exit(1);
    get(host, OUT, bytes);
    return host[bytes - 1];
}

static float reduce(int operation, float value)
{
    put(0, &value, sizeof value);
    ncclAllReduce(own.buffer, own.buffer + OUT, 1, FLOAT, operation, own.comm, own.stream);
    get(&value, OUT, sizeof value);
    return value;
}

static unsigned reduce_short(int type, unsigned short value)
{
    put(0, &value, sizeof value);
    ncclAllReduce(own.buffer, own.buffer, 1, type, SUM, own.comm, own.stream);
    get(&value, 0, sizeof value);
    return value;
}

static void carry(void)
{
    long long numbers[2 * RANKS] = {-5 - own.rank, 7, 1LL << 60, own.rank}, gathered[RANKS], scattered = 0;
    float scalar = 0.5F;
    int operation, count = 0;
    void *half;
    printf("broadcast %d", broadcast(1024));
    printf(" sum %g product %g max %g average %g", reduce(SUM, (float)(3 + own.rank)),
           reduce(PRODUCT, (float)(3 + own.rank)), reduce(MAX, (float)(3 + own.rank)),
           reduce(AVERAGE, (float)(3 + own.rank)));
    ncclRedOpCreatePreMulSum(&operation, &scalar, FLOAT, 1, own.comm);
    printf(" scaled %g", reduce(operation, 3));
    printf(" half %x brain %x", reduce_short(HALF, 0x3c00), reduce_short(BFLOAT, 0x3f80));
    put(0, numbers, sizeof numbers);
    ncclAllReduce(own.buffer, own.buffer, 1, INT64, MIN, own.comm, own.stream);
    ncclAllGather(own.buffer, own.buffer + OUT, 1, INT64, own.comm, own.stream);
    get(gathered, OUT, sizeof gathered);
    ncclReduceScatter(own.buffer + 2 * sizeof *numbers, own.buffer + OUT, 1, INT64, SUM, own.comm,
                      own.stream);
    get(&scattered, OUT, sizeof scattered);
    printf(" minimum %lld %lld scattered %lld", gathered[0], gathered[1], scattered);
    ncclGroupStart();
    ncclRecv(own.buffer + OUT, 1, INT64, !own.rank, own.comm, own.stream);
    ncclSend(own.buffer + 3 * sizeof *numbers, 1, INT64, !own.rank, own.comm, own.stream);
    ncclGroupEnd();
    get(&scattered, OUT, sizeof scattered);
    ncclCommSplit(own.comm, own.rank, 0, &half, NULL);
    ncclCommCount(half, &count);
    ncclCommDestroy(half);
    printf(" received %lld split %d\n", scattered, count);
}

/* Rank 0 waits for a message in one stream and launches much in another before it sends what rank 1 waits
 * for; rank 1 waits for rank 0 on the host. */
static void be_late(void)
{
    enum { LAUNCHES = 2000, BLOCKS = 1 << 24, THREADS = 1024 };
    const struct extent threads = {THREADS, 1, 1};
    const long long sent = 7;
    long long arrived = 0;
    void *stream;
    char byte = 0;
    put(OUT, &sent, sizeof sent);
    cudaStreamCreate(&stream);
    cudaLaunchKernel((void *)be_late, (struct extent){BLOCKS, 1, 1}, threads, NULL, 0, stream);
    if (own.rank == 0)
        ncclRecv(own.buffer, 1, INT64, 1, own.comm, own.stream);
    for (int i = 0; own.rank == 0 && i < LAUNCHES; i++)
        cudaLaunchKernel((void *)be_late, (struct extent){1, 1, 1}, threads, NULL, 0, stream);
    if (own.rank == 1)
        ncclRecv(own.buffer, 1, INT64, 0, own.comm, stream);
    ncclSend(own.buffer + OUT, 1, INT64, !own.rank, own.comm, stream);
    cudaMemcpyAsync(own.buffer + ANY * sizeof sent, own.buffer, sizeof sent, ANY,
                    own.rank ? stream : own.stream);
    if (own.rank == 0)
        get(&arrived, ANY * sizeof sent, sizeof arrived);
    if ((own.rank ? read(own.ends[0], &byte, 1) : write(own.ends[1], &byte, 1)) == 1)
        printf("in time %lld\n", arrived);
}

/* Rank 1 dies; rank 0 asks for the error instead of waiting for its stream. */
static void die(void)
{
    int error = 0;
    if (own.rank == 1)
        raise(SIGKILL);
    ncclAllReduce(own.buffer, own.buffer, 1, FLOAT, SUM, own.comm, own.stream);
    while (cudaStreamQuery(own.stream) != 0 && error == 0)
        ncclCommGetAsyncError(own.comm, &error);
    ncclCommAbort(own.comm);
    printf("error %d, then %d\n", error, cudaStreamSynchronize(own.stream));
}

/* Microseconds of an all-reduce and of a broadcast of 1 GiB. */
static void time_both(void)
{
    void *block, *event[3];
    float sum_ms = 0, ms = 0;
    cudaMalloc(&block, (size_t)1 << 30);
    for (int i = 0; i < 3; i++)
        cudaEventCreate(&event[i]);
    reduce(SUM, 0); /* the other rank is there */
    cudaEventRecord(event[0], own.stream);
    ncclAllReduce(block, block, 1 << 28, FLOAT, SUM, own.comm, own.stream);
    cudaEventRecord(event[1], own.stream);
    ncclBroadcast(block, block, 1 << 28, FLOAT, 0, own.comm, own.stream);
    cudaEventRecord(event[2], own.stream);
    cudaStreamSynchronize(own.stream);
    cudaEventElapsedTime(&sum_ms, event[0], event[1]);
    cudaEventElapsedTime(&ms, event[1], event[2]);
    printf("%.0f %.0f us\n", 1000 * sum_ms, 1000 * ms);
}

static int be_rank(const char *mode, int rank, struct id id)
{
    own.rank = rank;
    cudaSetDevice(strcmp(mode, "twice") == 0 ? 0 : rank);
    int code = ncclCommInitRank(&own.comm, RANKS, id, rank);
    if (code) {
        printf("rank %d: error %d\n", rank, code);
        return 1;
    }
    cudaStreamCreate(&own.stream);
    cudaMalloc((void **)&own.buffer, ROOM);
    if (strcmp(mode, "dead") == 0) {
        die();
        return 0;
    }
    if (strcmp(mode, "timed") == 0)
        time_both();
    else if (strcmp(mode, "late") == 0)
        be_late();
    else if (strcmp(mode, "long") == 0)
        printf("broadcast %d, then %d\n", broadcast((1 << 20) + 1), broadcast(1 << 20));
    else
        carry();
    return ncclCommDestroy(own.comm);
}

/* The standard output of one rank after the other's. */
static int start_ranks(const char *mode)
{
    int status, code = 0;
    struct id id;
    ncclGetUniqueId(&id);
    if (pipe(own.ends) != 0)
        return 1;
    pid_t child = fork();
    if (child == 0)
        exit(be_rank(mode, 1, id));
    code = be_rank(mode, 0, id);
    waitpid(child, &status, 0);
    return code;
}

/* Each rank sums up the numbers from 1 to the number of ranks. */
static void meet_many(void)
{
    enum { MANY = 12 };
    struct id id;
    int status, good = 0;
    ncclGetUniqueId(&id);
    for (int rank = 0; rank < MANY; rank++) {
        if (fork() != 0)
            continue;
        cudaSetDevice(rank);
        if (ncclCommInitRank(&own.comm, MANY, id, rank) != 0 || cudaStreamCreate(&own.stream) != 0 ||
            cudaMalloc((void **)&own.buffer, ROOM) != 0)
            exit(0);
        exit((int)reduce(SUM, (float)(rank + 1)));
    }
    while (wait(&status) > 0)
        good += WIFEXITED(status) && WEXITSTATUS(status) == MANY * (MANY + 1) / 2;
    printf("sums %d x %d\n", MANY * (MANY + 1) / 2, good);
}

/* A process that has begun with CUDA meets one that is killed with a context, after its peak. */
static void meet_killed(void)
{
    int ends[2], count;
    char byte = 0;
    size_t free_bytes, total_bytes;
    void *block;
    if (pipe(ends) != 0)
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        if (read(ends[0], &byte, 1) == 1 && cudaMalloc(&block, 1000 << 20) == 0 && cudaFree(block) == 0)
            raise(SIGKILL);
        exit(1);
    }
    cudaGetDeviceCount(&count);
    if (write(ends[1], &byte, 1) != 1)
        exit(1);
    waitpid(child, NULL, 0);
    cudaMemGetInfo(&free_bytes, &total_bytes);
    printf("in use %zu MiB\n", (total_bytes - free_bytes) >> 20);
}

static void meet_fork(void)
{
    void *block;
    printf("parent %d\n", cudaMalloc(&block, 1 << 20));
    pid_t child = fork();
    if (child == 0) {
        printf("child %d\n", cudaSetDevice(0));
        exit(0);
    }
    waitpid(child, NULL, 0);
}

static void show_visible(void)
{
    int count = 0, code = cudaGetDeviceCount(&count);
    char bus[32];
    void *block;
    printf("code %d", code);
    for (int i = 0; code == 0 && i < count; i++) {
        cudaDeviceGetPCIBusId(bus, sizeof bus, i);
        cudaSetDevice(i);
        cudaMalloc(&block, (size_t)(100 * (i + 1)) << 20);
        printf(" %s", bus);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(mode, "visible") == 0)
        show_visible();
    else if (strcmp(mode, "fork") == 0)
        meet_fork();
    else if (strcmp(mode, "killed") == 0)
        meet_killed();
    else if (strcmp(mode, "many") == 0)
        meet_many();
    else
        return start_ranks(mode);
    return 0;
}
