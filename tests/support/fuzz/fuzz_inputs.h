/* fuzz_inputs.h: what the fuzzers start from: a good file of every kind of trace, of tokens and of settings,
 * made by hand. fuzz_model_inputs.h has the others. */
#ifndef ZR_FUZZ_INPUTS_H
#define ZR_FUZZ_INPUTS_H

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "alloc/zr.h"

enum { FUZZ_MAX = 1 << 14 };

struct fuzz_input {
    size_t bytes;
    unsigned char data[FUZZ_MAX];
};

static inline void fuzz_put(struct fuzz_input *input, const void *data, size_t bytes)
{
    if (bytes > FUZZ_MAX - input->bytes)
        abort();
    memcpy(input->data + input->bytes, data, bytes);
    input->bytes += bytes;
}

/* ---- Pickles, in the two ways that the readers meet ---------------------------------------------------- */

static inline void fuzz_op(struct fuzz_input *input, int opcode)
{
    fuzz_put(input, &(unsigned char){(unsigned char)opcode}, 1);
}

static inline void fuzz_text(struct fuzz_input *input, const char *text, int protocol)
{
    uint32_t length = (uint32_t)strlen(text);
    fuzz_op(input, protocol < 4 ? 'X' : 0x8c);
    fuzz_put(input, &length, protocol < 4 ? 4 : 1);
    fuzz_put(input, text, length);
    if (protocol >= 4)
        fuzz_op(input, 0x94);
}

static inline void fuzz_number(struct fuzz_input *input, uint64_t value)
{
    if (value < 256) {
        fuzz_op(input, 'K');
        fuzz_put(input, &value, 1);
    } else if (value < 65536) {
        fuzz_op(input, 'M');
        fuzz_put(input, &value, 2);
    } else if (value < INT32_MAX) {
        fuzz_op(input, 'J');
        fuzz_put(input, &value, 4);
    } else {
        fuzz_put(input, "\x8a\x08", 2);
        fuzz_put(input, &value, 8);
    }
}

static inline void fuzz_field(struct fuzz_input *input, const char *key, uint64_t value, int protocol)
{
    fuzz_text(input, key, protocol);
    fuzz_number(input, value);
}

static inline void fuzz_snapshot(struct fuzz_input *input, int protocol)
{
    static const struct {
        const char *action;
        uint64_t address, bytes;
    } events[] = {{"alloc", 0x7f0000200000, 5000},          {"free_requested", 0x7f0000000000, 1000},
                  {"free_completed", 0x7f0000000000, 1000}, {"alloc", 0x7f0000000000, 900},
                  {"segment_map", 0x7f0000400000, 2097152}, {"free_completed", 0x7f0000200000, 5000}};
    const uint64_t base = 0x7f0000000000;
    input->bytes = 0;
    fuzz_op(input, 0x80), fuzz_op(input, protocol);
    fuzz_put(input, "}(", 2);
    fuzz_text(input, "segments", protocol);
    fuzz_put(input, "](}(", 4);
    fuzz_field(input, "device", 0, protocol);
    fuzz_field(input, "address", base, protocol);
    fuzz_field(input, "total_size", 2 << 21, protocol);
    fuzz_field(input, "stream", 0, protocol);
    fuzz_text(input, "blocks", protocol);
    fuzz_put(input, "](", 2);
    for (unsigned i = 0; i < 3; i++) {
        fuzz_put(input, "}(", 2);
        fuzz_field(input, "address", base + i * (1 << 20), protocol);
        fuzz_field(input, "size", 1 << 20, protocol);
        fuzz_field(input, "requested_size", 1000 + i * 70000, protocol);
        fuzz_text(input, "state", protocol);
        fuzz_text(input, i == 1 ? "inactive" : "active_allocated", protocol);
        fuzz_op(input, 'u');
    }
    fuzz_put(input, "eue", 3);
    fuzz_text(input, "device_traces", protocol);
    fuzz_put(input, "](](", 4);
    for (unsigned i = 0; i < sizeof events / sizeof *events; i++) {
        fuzz_put(input, "}(", 2);
        fuzz_text(input, "action", protocol);
        fuzz_text(input, events[i].action, protocol);
        fuzz_field(input, "addr", events[i].address, protocol);
        fuzz_field(input, "size", events[i].bytes, protocol);
        fuzz_field(input, "stream", i % 2 ? 0 : 77, protocol);
        fuzz_op(input, 'u');
    }
    fuzz_put(input, "eeu.", 4);
}

/* ---- A trace whose writer was killed ------------------------------------------------------------------- */

/* A child traces an arena and dies by -9 in the middle; false where the trace cannot be had. */
static inline bool fuzz_killed_trace(struct fuzz_input *input, const char *path)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        zr_backend *backend;
        zr_arena *arena;
        void *held[24] = {0};
        if (zr_backend_sim_create(&backend, NULL) != ZR_OK ||
            zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK ||
            zr_trace_start(arena, path) != ZR_OK)
            _exit(1);
        for (unsigned i = 0; i < 300; i++) {
            void **one = &held[i * 7 % 24];
            zr_arena_free(arena, *one);
            zr_arena_alloc(arena,
                           &(struct zr_request){
                               .bytes = 1 + i * i * 911 % 9000000, .tag = (zr_tag)(i % 11), .stream = i % 3},
                           one);
            if (i % 60 == 0)
                zr_trace_mark(arena, "step");
        }
        kill(getpid(), SIGKILL);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, input->data, FUZZ_MAX) : -1;
    if (fd >= 0)
        close(fd);
    input->bytes = got > 0 ? (size_t)got : 0;
    return got > 0;
}

/* ---- Texts and shards ---------------------------------------------------------------------------------- */

static const char fuzz_rmm[] = "Thread,Time,Action,Pointer,Size,Stream\n"
                               "140,10:00:00:000001,allocate,0x7f0000000000,1024,0x0\n"
                               "141,10:00:00:000002,allocate,0x7f0000000400,2048,0x55aa\n"
                               "140,10:00:00:000003,free,0x7e0000000000,4096,0x0\n"
                               "140,10:00:00:000004,allocate failure,(nil),99999999999,0x0\n"
                               "141,10:00:00:000005,free,0x7f0000000000,1024,0x0\n"
                               "140,10:00:00:000006,allocate,0x7f0000000000,512,(nil)\n";
static const char fuzz_minimalloc[] =
    "id,lower,upper,size\n7,5,9,10\n3,0,5,20\n1,5,6,30\n2,4,4,99\n9,0,9,8\n";
static const char fuzz_lifetimes[] =
    "\xef\xbb\xbfupper, size ,offset,lower,id\r\n9,10,77,5,7\r\n5,20,0,0,3\r\n"
    "12,4096,0,2,4\r\n3,1,0,1,5";
static const char fuzz_settings[] = "check:3,granule:256k,huge_pages:false,isa:avx2,vma_budget:1000";

/* A log, compressed by gzip or zstd. */
static inline void fuzz_compressed_log(struct fuzz_input *input, bool gzip)
{
    z_stream stream = {.next_in = (unsigned char *)(uintptr_t)fuzz_rmm,
                       .avail_in = sizeof fuzz_rmm - 1,
                       .next_out = input->data,
                       .avail_out = FUZZ_MAX};
    if (!gzip) {
        input->bytes = ZSTD_compress(input->data, FUZZ_MAX, fuzz_rmm, sizeof fuzz_rmm - 1, 3);
        return;
    }
    if (deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK ||
        deflate(&stream, Z_FINISH) != Z_STREAM_END)
        abort();
    input->bytes = stream.total_out;
    deflateEnd(&stream);
}

static inline void fuzz_shard(struct fuzz_input *input)
{
    int32_t header[256] = {20240520, 1, 300};
    uint16_t tokens[300];
    for (unsigned i = 0; i < 300; i++)
        tokens[i] = (uint16_t)(i * 977 % 50257);
    input->bytes = 0;
    fuzz_put(input, header, sizeof header);
    fuzz_put(input, tokens, sizeof tokens);
}

/* ---- Clients of zrd: see fuzz_service.h ---------------------------------------------------------------- */

/* Two clients: files, leases that make the second wait for the first, its answer, the end. A is HELLO, B
 * FILE, D LEASE, E RETURN, F GIVEN, G LISTEN. */
static const char fuzz_two_clients[] = "O0  O1  A0 ?A1 ?B0  G0  D0\040\024G1  B1  D1\050\024E0\040\024"
                                       "F0\001\100"
                                       "D1\001\024"
                                       "E1\001\024"
                                       "C0  C1  ";
/* A message that was expected, one that was not, a large one in two pieces, and one that is sent. */
static const char fuzz_messages[] =
    "R0 \1\10\3  F0\1\1\10\3  F0\1\2\10\3  R0 \2\10\3  T       R0 \3\10\14  F0\2\3\10\14\1 "
    "F2\4 \10\13\2 F2\4 \10\13\2\20S0 \1\10\17  F0\3   \3\1T       F0\7     F0\10     ";
static const char fuzz_shake[] = "\377 a stranger that knows the secret, by turns";
/* Two workers of a parameter server: fill, pulls, pushes of dense tables and rows, the end of a step. */
static const char fuzz_two_workers[] =
    " F ! !          (F!!!!          (F \" \"    4 !!  (F # #   \")  !  (F % $ \"  #  !  "
    "(F!%!\" \"  #  !  (F!%!# !  '  !  (F & %          (F!&!$          (F # &!!  %  \"  "
    "(F ( '          (F $ (    4\" !  (F!'!%      !   (F ' )          (";
/* Quotas, a view, a drain and its end: L is LIMIT, K STATUS, M DRAIN, N STOP. */
static const char fuzz_a_tool[] = "O0  O1  A0 ?D0\040\024L1\002\004K1  M1  M1\001\020K1  N1  C1  C0  ";
/* Two runs that take turns, of which one can spill, then one of two ranks: H is PLAN, I TURN; !, $ and so on
 * are connections with a plan. */
static const char fuzz_two_runs[] =
    "O0  O1  O2  O3  A0 ?A1 ?A2 ?A3 ?G0  G1  H$\050\024I   D0\050\024H!\050\024I!  "
    "E0\024\024I   D1\050\024I!  H*\004\024H+\004\024I*  I+  C2  C0  C1  C3  ";
/* Kept memory: a segment of two connections, dropped and reported again; Z is KEEP_CREATE, then OPEN, LIST,
 * DROP and ADOPT. */
static const char fuzz_two_shards[] =
    "O0  O1  Z0\001\025[1\001\025[1\002\025\\1  Z1\002\024]0\001\025^0\001\025"
    "Z2\001\033O2  A2\001\025D2\040\024Z2\001\034C1  C0  ";
/* A device's: two pieces, one again by its number, both given back; then a client that ends with one. */
static const char fuzz_two_pieces[] = "O0  A0 ?G0  D0\020\021B0  E0\020\021D0\020\021"
                                      "C0  O1  A1\020\021D1\020\021E1\020\021C1  ";

#endif
