/* client.c: a program on zr's arena that takes and gives memory as it is told, for
 * tests/system/service.t: the host's, or with an argument the CUDA device's of that number.
 *
 * Orders come by line on standard input, each of which is answered by "ok", or by "no" and the words. What it
 * writes into its blocks is its process's number, and whatever it finds in memory that is new to it has to be
 * zeros or that number: anything else is another's. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/backend/backend.h"
#include "alloc/keep/zr_keep.h"
#include "alloc/service/client/client.h"
#include "alloc/zr.h"

enum { BLOCKS_MAX = 4096 };

static zr_backend *backend;
static zr_arena *arena;
static struct {
    uint32_t *at;
    size_t count;
} blocks[BLOCKS_MAX];
static unsigned blocks_count;
static uint64_t drawn;

static uint64_t draw(void)
{
    drawn += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = drawn;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint32_t own;

/* A device's memory is read and written through this. */
static uint32_t part[1 << 18];
static int device = -1; /* the host's */

static bool copy(void *to, const void *from, size_t count)
{
    return zr_backend_copy(backend, &(struct zr_copy){to, from, count * sizeof *part, 0}) == ZR_OK &&
           zr_backend_synchronize(backend) == ZR_OK;
}

static bool is_part_own(const uint32_t *at, size_t count, bool fresh)
{
    for (size_t i = 0; i < count; i += 512)
        if (at[i] != own && (at[i] != 0 || !fresh))
            return false;
    return true;
}

/* False: a byte of somebody else's. */
static bool is_own(const uint32_t *at, size_t count, bool fresh)
{
    bool good = device >= 0 || is_part_own(at, count, fresh);
    for (size_t i = 0, some; device >= 0 && good && i < count; i += some) {
        some = count - i < sizeof part / sizeof *part ? count - i : sizeof part / sizeof *part;
        good = copy(part, at + i, some) && is_part_own(part, some, fresh);
    }
    return good;
}

static bool make_own(uint32_t *at, size_t count)
{
    size_t most = sizeof part / sizeof *part;
    bool good = true;
    for (size_t i = 0; i < (device >= 0 ? most : count); i += 512)
        (device >= 0 ? part : at)[i] = own;
    for (size_t i = 0; device >= 0 && good && i < count; i += most)
        good = copy(at + i, part, count - i < most ? count - i : most);
    return good;
}

static const char *take(size_t bytes)
{
    void *at;
    if (blocks_count == BLOCKS_MAX)
        return "too many blocks";
    if (zr_arena_alloc(arena, &(struct zr_request){.bytes = bytes, .tag = ZR_TAG_OTHER}, &at) != ZR_OK)
        return zr_last_error();
    size_t count = bytes / sizeof(uint32_t);
    if (!is_own(at, count, true))
        return "bytes of another process";
    if (!make_own(at, count))
        return zr_last_error();
    blocks[blocks_count].at = at;
    blocks[blocks_count++].count = count;
    return NULL;
}

static const char *give(unsigned which)
{
    if (which >= blocks_count)
        return "no such block";
    bool good = is_own(blocks[which].at, blocks[which].count, false);
    if (zr_arena_free(arena, blocks[which].at) != ZR_OK)
        return zr_last_error();
    blocks[which] = blocks[--blocks_count];
    return good ? NULL : "bytes were lost";
}

/* Takes and gives at random, at most so many blocks at once. A refusal of memory is fine. */
static const char *churn(unsigned steps, unsigned most)
{
    const char *words = NULL;
    for (unsigned i = 0; i < steps && !words; i++) {
        if (draw() % 16 == 0)
            zr_arena_trim(arena, 0, NULL);
        if (blocks_count < most && draw() % 2) {
            words = take((size_t)(1 + draw() % 96) << 16);
            words = words && (strstr(words, "zrd has ") || strstr(words, "hard quota")) ? NULL : words;
        } else if (blocks_count > 0) {
            words = give((unsigned)(draw() % blocks_count));
        }
    }
    return words;
}

/* Another client reads the block through the descriptors of this one. */
static const char *share(void)
{
    struct zr_segment segments[256];
    size_t count = sizeof segments / sizeof *segments, lead;
    void *seen;
    if (zr_block_export(arena, blocks[0].at, segments, &count, &lead) != ZR_OK ||
        zr_import(backend, segments, count, &seen) != ZR_OK)
        return zr_last_error();
    bool good = is_own((uint32_t *)((char *)seen + lead), blocks[0].count, false);
    return zr_import_release(backend, seen) == ZR_OK && good ? NULL : "other bytes are seen";
}

static const char *give_all(void)
{
    const char *words = NULL;
    while (blocks_count > 0 && !words)
        words = give(blocks_count - 1);
    return words;
}

/* Every second block goes: what is idle then lies between blocks that stay. */
static const char *thin(void)
{
    const char *words = NULL;
    for (unsigned i = blocks_count; i > 1 && !words; i -= 2)
        words = give(i - 1);
    return words;
}

static const char *start_arena(void)
{
    blocks_count = 0;
    own = (uint32_t)getpid();
    drawn = own;
    if ((device < 0
             ? zr_backend_host_create(&backend, NULL)
             : zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.device = device})) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return zr_last_error();
    return NULL;
}

static bool has_socket(void)
{
    struct stat status;
    for (int fd = 0; fd < 1024; fd++)
        if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode))
            return true;
    return false;
}

/* A child that looks at what it has inherited, and takes memory of its own. Its orders come from here on. */
static const char *split(void)
{
    pid_t child = fork();
    if (child != 0) {
        int code = 0;
        waitpid(child, &code, 0);
        _exit(WIFEXITED(code) ? WEXITSTATUS(code) : 1);
    }
    if (has_socket())
        return "the child has its parent's connection";
    for (unsigned i = 0; i < blocks_count; i++)
        if (!is_own(blocks[i].at, blocks[i].count, false))
            return "what was inherited is not there";
    /* It may give back what it has inherited, which stays its parent's. */
    if (blocks_count > 1 && (give(blocks_count - 1) || zr_arena_trim(arena, 0, NULL) != ZR_OK))
        return "what was inherited cannot be freed";
    return start_arena();
}

/* ---- Kept memory --------------------------------------------------------------------------------------- */

static zr_keep *keep;
static const struct zr_keep_name shard = {"run/shard", 77};

/* A generation, whose number is in each of its words. */
static const char *step(void)
{
    uint64_t generation;
    void *words;
    if (zr_keep_begin(keep, &generation) != ZR_OK || zr_keep_write(keep, 0, &words) != ZR_OK)
        return zr_last_error();
    for (size_t i = 0; i < 1 << 20; i++)
        ((uint64_t *)words)[i] = generation;
    return zr_keep_commit(keep) == ZR_OK ? NULL : zr_last_error();
}

/* A segment with a tensor of 8 MiB in place. */
static const char *start_keeping(void)
{
    uint32_t tensor;
    const struct zr_keep_options options = {.name = shard.name, .token = shard.token, .bytes = 8 << 20};
    const struct zr_keep_tensor whole = {.name = "whole", .bytes = 8 << 20, .mode = ZR_KEEP_IN_PLACE};
    return zr_keep_create(&keep, &options) == ZR_OK && zr_keep_tensor_create(keep, &whole, &tensor) == ZR_OK
               ? step()
               : zr_last_error();
}

/* Continues the segment of a dead process, whose last generation is `number`. */
static const char *go_on(uint64_t number, uint64_t token)
{
    struct zr_keep_view view;
    if (zr_keep_open(&keep, &(struct zr_keep_name){shard.name, token}, ZR_KEEP_WRITE) != ZR_OK ||
        zr_keep_read(keep, 0, &view) != ZR_OK)
        return zr_last_error();
    for (size_t i = 0; i < 1 << 20; i++)
        if (((const uint64_t *)view.address)[i] != number)
            return "kept bytes were lost";
    return step();
}

static const char *run_command(const char *order)
{
    unsigned long long number = 0, second = 0;
    if (sscanf(order, "take %llu", &number) == 1)
        return take((size_t)number << 20);
    if (sscanf(order, "churn %llu %llu", &number, &second) == 2)
        return churn((unsigned)number, (unsigned)second);
    if (strcmp(order, "give") == 0)
        return give_all();
    if (strcmp(order, "thin") == 0)
        return thin();
    if (strcmp(order, "trim") == 0)
        return zr_arena_trim(arena, 0, NULL) == ZR_OK ? NULL : zr_last_error();
    if (strcmp(order, "look") == 0) {
        for (unsigned i = 0; i < blocks_count; i++)
            if (!is_own(blocks[i].at, blocks[i].count, false))
                return "bytes were lost";
        return NULL;
    }
    if (strcmp(order, "keep") == 0)
        return start_keeping();
    if (strcmp(order, "step") == 0)
        return step();
    if (sscanf(order, "go on after %llu with %llu", &number, &second) == 2)
        return go_on(number, second);
    if (strcmp(order, "share") == 0)
        return share();
    if (strcmp(order, "fork") == 0)
        return split();
    if (strcmp(order, "gather") == 0) /* as the helper thread while it gives memory back */
        return zr_service_gather_begin(), NULL;
    if (strcmp(order, "gathered") == 0)
        return zr_service_gather_end(), NULL;
    if (strcmp(order, "end") == 0)
        return zr_arena_destroy(arena, NULL) == ZR_OK && zr_backend_destroy(backend) == ZR_OK
                   ? NULL
                   : zr_last_error();
    return "no such order";
}

int main(int argc, char **argv)
{
    device = argc > 1 ? atoi(argv[1]) : -1;
    char line[128];
    const char *words = start_arena();
    printf("%s %s\n", words ? "no" : "ok", words ? words : "");
    fflush(stdout);
    while (!words && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        const char *failed = run_command(line);
        printf("%s %s\n", failed ? "no" : "ok", failed ? failed : "");
        fflush(stdout);
    }
    return words ? 4 : 0;
}
