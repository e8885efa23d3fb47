/* bench_nvme.c: the offload file beside fio, on the same blocks of the disk, at the same depth and block
 * size, turn by turn: reads, writes, and both at once, as an update has them. Medians of the turns, and of
 * the turns' ratios, since the disk's own rate changes from turn to turn; also what the threads reach that
 * stand in for io_uring, and an update that computes nothing. bench_nvme [FOLDER [DEPTH]]; by default build/
 * and the depth that is measured at start. No test: it never fails on time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/zr.h"
#include "zero/file_io/nvme_inside.h"
#include "zero/file_io/nvme_pipeline.h"

enum { TURNS = 5, OPERATION_BYTES = 16 << 20, UNDER_WAY = 3 };
static const uint64_t file_bytes = (uint64_t)1 << 30, turn_ns = 1000000000;
static const char *const names[] = {"read", "write", "read and write"}, *const fio_names[] = {"read", "write",
                                                                                              "rw"};

static const char *folder = "build";
static zr_arena *arena;
static char *memory;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void must(zr_result result)
{
    if (result == ZR_OK)
        return;
    fprintf(stderr, "%s\n", zr_last_error());
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static double median(double *values)
{
    qsort(values, TURNS, sizeof *values, by_size);
    return values[TURNS / 2];
}

static void hear(void *state, const char *words)
{
    (void)state;
    printf("# %s\n", words);
}

static zr_nvme_io *open_file(bool threads, unsigned depth)
{
    zr_nvme_io *io;
    struct zr_nvme_buffer buffer = {memory, 2 * UNDER_WAY * OPERATION_BYTES};
    must(zr_nvme_open(&io, &(struct zr_nvme_options){.folder = {folder, false},
                                                     .file_bytes = file_bytes,
                                                     .host_arena = arena,
                                                     .buffers = &buffer,
                                                     .buffers_count = 1,
                                                     .depth = depth,
                                                     .threads = threads,
                                                     .log = hear}));
    return io;
}

/* Goes through the file for a while: `kind` 0 reads, 1 writes, 2 does both, in one half each. So many
 * operations per direction are under way. limit_ns 0: once through the file. Bytes per second. */
static double ours(zr_nvme_io *io, unsigned kind, uint64_t limit_ns)
{
    zr_nvme_event events[2][UNDER_WAY] = {{0}};
    uint64_t start_ns = now_ns(), moved_bytes = 0, room_bytes = kind == 2 ? file_bytes / 2 : file_bytes;
    for (uint64_t at = 0, n = 0; limit_ns ? now_ns() - start_ns < limit_ns : at < file_bytes;
         at += OPERATION_BYTES, n++) {
        for (unsigned write = 0; write < 2; write++) {
            zr_nvme_event *event = &events[write][n % UNDER_WAY];
            if (kind != 2 && kind != write)
                continue;
            must(zr_nvme_wait(io, *event));
            struct zr_nvme_extent extent = {at % room_bytes + (kind == 2 && write ? room_bytes : 0),
                                            memory + (write * UNDER_WAY + n % UNDER_WAY) * OPERATION_BYTES,
                                            OPERATION_BYTES, 0};
            must((write ? zr_nvme_write : zr_nvme_read)(io, &extent, event));
            moved_bytes += OPERATION_BYTES;
        }
    }
    must(zr_nvme_synchronize(io));
    return (double)moved_bytes / ((double)(now_ns() - start_ns) * 1e-9);
}

/* The same by fio on the same file, whose only name is that of the descriptor; 0: there is no fio. */
static double theirs(const zr_nvme_io *io, unsigned kind, unsigned depth, size_t piece_bytes)
{
    char command[512], line[8192] = "", *field = line;
    double rates[2] = {0};
    snprintf(command, sizeof command,
             "fio --name=zr --filename=/proc/%d/fd/%d --size=%llu --bs=%zu --iodepth=%u --rw=%s --direct=1 "
             "--ioengine=io_uring --fixedbufs=1 --time_based --runtime=%u --output-format=terse "
             "--terse-version=3 2>/dev/null",
             (int)getpid(), io->file.fd, (unsigned long long)file_bytes, piece_bytes, depth, fio_names[kind],
             (unsigned)(turn_ns / 1000000000));
    FILE *pipe = popen(command, "r");
    if (pipe && !fgets(line, sizeof line, pipe))
        line[0] = '\0';
    if (pipe)
        pclose(pipe);
    /* Fields 7 and 48 are KiB per second read and written. */
    for (unsigned i = 1; field && i <= 48; i++) {
        char *end = strchr(field, ';');
        if (i == 7 || i == 48)
            rates[i == 48] = strtod(field, NULL) * 1024;
        field = end ? end + 1 : NULL;
    }
    return rates[0] + rates[1];
}

/* Every byte once through three buffers. */
static double pipeline_rate(zr_nvme_io *io)
{
    struct zr_nvme_unit units[64];
    unsigned count = 0;
    void *data;
    for (uint64_t at = 0; at < file_bytes && count < 64; at += 2 * OPERATION_BYTES)
        units[count++] = (struct zr_nvme_unit){at, 2 * OPERATION_BYTES};
    struct zr_nvme_pipeline pipeline = {.io = io,
                                        .units = units,
                                        .units_count = count,
                                        .buffers_count = 3,
                                        .buffer_bytes = (size_t)2 * OPERATION_BYTES,
                                        .buffers = memory};
    uint64_t start_ns = now_ns();
    must(zr_nvme_pipeline_begin(&pipeline));
    for (unsigned i = 0; i < count; i++) {
        must(zr_nvme_pipeline_take(&pipeline, &data));
        must(zr_nvme_pipeline_give(&pipeline, true));
    }
    must(zr_nvme_pipeline_end(&pipeline));
    return 2.0 * (double)count * 2 * OPERATION_BYTES / ((double)(now_ns() - start_ns) * 1e-9);
}

static void compare(unsigned depth)
{
    struct zr_nvme_report report;
    zr_nvme_io *ring = open_file(false, depth);
    zr_nvme_get_report(ring, &report);
    zr_nvme_io *threads = open_file(true, report.depth < 8 ? report.depth : 8);
    printf(
        "%s in '%s': depth %u, pieces of %zu KiB, blocks of %zu, O_DIRECT %s, buffers registered %s; %.0f MB/s "
        "when measured at start\n",
        report.ring ? "io_uring" : "threads", folder, report.depth, report.piece_bytes >> 10,
        report.align_bytes, report.direct ? "yes" : "no", report.registered ? "yes" : "no",
        report.bytes_per_second * 1e-6);
    ours(ring, 1, 0); /* blocks that were never written are another matter */
    ours(threads, 1, 0);
    for (unsigned kind = 0; kind < 3; kind++) {
        double rates[4][TURNS], ratios[TURNS];
        for (unsigned i = 0; i < TURNS; i++) {
            rates[0][i] = ours(ring, kind, turn_ns);
            rates[1][i] = theirs(ring, kind, report.depth, report.piece_bytes);
            rates[2][i] = ours(threads, kind, turn_ns);
            rates[3][i] = kind == 2 ? pipeline_rate(ring) : 0;
            ratios[i] = rates[1][i] > 0 ? rates[0][i] / rates[1][i] : 0;
        }
        double mine = median(rates[0]), fio = median(rates[1]);
        /* median() has sorted them */
        printf("%-15s %6.0f MB/s (%.0f to %.0f)   fio %6.0f (%.0f to %.0f)", names[kind], mine * 1e-6,
               rates[0][0] * 1e-6, rates[0][TURNS - 1] * 1e-6, fio * 1e-6, rates[1][0] * 1e-6,
               rates[1][TURNS - 1] * 1e-6);
        printf(fio > 0 ? ": %.2f of it" : ": there is none here", median(ratios));
        printf("   threads %6.0f", median(rates[2]) * 1e-6);
        if (kind == 2)
            printf("   pipeline %6.0f", median(rates[3]) * 1e-6);
        printf("\n");
    }
    must(zr_nvme_close(threads));
    must(zr_nvme_close(ring));
}

int main(int argc, char **argv)
{
    zr_backend *backend;
    struct zr_arena_options options = {.struct_bytes = sizeof options};
    struct zr_request request = {
        .bytes = 2 * UNDER_WAY * OPERATION_BYTES, .alignment = 65536, .tag = ZR_TAG_OFFLOAD};
    void *block;
    folder = argc > 1 ? argv[1] : folder;
    must(zr_backend_host_create(&backend, NULL));
    options.backend = backend;
    must(zr_arena_create(&arena, &options));
    must(zr_arena_alloc(arena, &request, &block));
    memory = memset(block, 1, request.bytes);
    compare(argc > 2 ? (unsigned)atoi(argv[2]) : 0);
    zr_arena_free(arena, memory);
    must(zr_arena_destroy(arena, NULL));
    must(zr_backend_destroy(backend));
    return 0;
}
