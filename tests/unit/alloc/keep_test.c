/* keep_test.c: kept memory: writers that die at every store of a commit and at random, successors, leases,
 * readers, damage, the arena, and the launcher as a holder. `keep_test kills N` kills N writers at random. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/keep/holder.h"
#include "tests/support/child.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"

enum { GRANULE = 64 << 10, BYTES = 16 * GRANULE, TENSOR = GRANULE + 1000, WORDS = TENSOR / 8, KILLS = 20 };
enum { FIRST, SECOND, PLACE, TENSORS }; /* two in two places, one in place */

static zr_keep *keep;   /* the reader or writer of this process */
static int file = -1;   /* the segment's, for children */
static uint64_t strike; /* the store at which the child dies; 0: none */
static int ready[2];    /* a pipe: a child's commits */

static zr_result make(void)
{
    const struct zr_keep_options options = {.name = "run/shard-0",
                                            .bytes = BYTES,
                                            .granule_bytes = GRANULE,
                                            .tensors_max = 8,
                                            .holder = ZR_KEEP_HOLDER_NONE};
    zr_result result = zr_keep_create(&keep, &options);
    for (uint32_t i = 0, tensor; result == ZR_OK && i < TENSORS; i++) {
        char name[8] = {"abc"[i]};
        result = zr_keep_tensor_create(
            keep,
            &(struct zr_keep_tensor){
                .name = name, .coordinates = {i}, .bytes = TENSOR, .mode = i == PLACE ? ZR_KEEP_IN_PLACE : 0},
            &tensor);
    }
    return result;
}

static void fill(uint64_t *words, uint64_t generation, size_t count)
{
    for (size_t i = 0; i < count; i++)
        words[i] = generation * 1000003 + i;
}

/* The generation that the contents belong to; 0: of several. */
static uint64_t generation_of(const uint64_t *words)
{
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] - i != words[0])
            return 0;
    return words[0] / 1000003;
}

/* One step: every tensor is rewritten. `whole` false: the process dies within the data. */
static int step(bool whole)
{
    uint64_t generation;
    if (zr_keep_begin(keep, &generation) != ZR_OK)
        return 1;
    for (uint32_t i = 0; i < TENSORS; i++) {
        void *words;
        if (zr_keep_write(keep, i, &words) != ZR_OK)
            return 1;
        fill(words, generation, whole || i < TENSORS - 1 ? WORDS : WORDS / 2);
    }
    if (!whole)
        kill(getpid(), SIGKILL);
    return zr_keep_commit(keep) != ZR_OK;
}

/* ---- Deaths -------------------------------------------------------------------------------------------- */

static int die_at_store(void)
{
    if (zr_keep_attach(&keep, file, ZR_KEEP_WRITE) != ZR_OK)
        return 2;
    zr_fault_set(ZR_FAULT_KEPT, strike);
    return step(true);
}

static int die_amid_data(void)
{
    return zr_keep_attach(&keep, file, ZR_KEEP_WRITE) == ZR_OK ? step(false) : 2;
}

/* What a reader sees after the death: `at_least` is committed, and the two tensors are of one generation. */
static bool is_whole(uint64_t at_least)
{
    struct zr_keep_view views[TENSORS];
    struct zr_keep_info info;
    zr_keep_get_info(keep, &info);
    bool good = info.generation >= at_least;
    for (uint32_t i = FIRST; i <= SECOND; i++)
        good = good && zr_keep_read(keep, i, &views[i]) == ZR_OK && views[i].generation == info.generation &&
               generation_of(views[i].address) == info.generation &&
               zr_keep_read_check(keep, i, &views[i]) == ZR_OK;
    zr_result result = zr_keep_read(keep, PLACE, &views[PLACE]);
    uint64_t own = views[PLACE].address ? generation_of(views[PLACE].address) : 0;
    if (views[PLACE].state == ZR_KEEP_COMMITTED)
        return good && result == ZR_OK && own == info.generation;
    return good && result == ZR_ERR_CORRUPT && views[PLACE].generation > info.generation &&
           (views[PLACE].state == ZR_KEEP_OPEN || own == views[PLACE].generation);
}

static uint64_t committed(void)
{
    struct zr_keep_info info;
    zr_keep_get_info(keep, &info);
    return info.generation;
}

/* The parent becomes a reader of a segment with one committed generation. */
static bool begin_reading(void)
{
    bool good = make() == ZR_OK && step(true) == 0;
    file = dup(zr_keep_fd(keep));
    zr_keep_close(keep);
    return good && zr_keep_attach(&keep, file, ZR_KEEP_READ) == ZR_OK;
}

static void end_reading(void)
{
    zr_keep_close(keep);
    close(file);
}

static void test_deaths(void)
{
    unsigned deaths = 0;
    bool good = true;
    tap_ok(begin_reading(), "a segment with a committed generation");
    for (strike = 1;; strike++) {
        uint64_t before = committed();
        int end = in_child(die_at_store);
        good = good && is_whole(before);
        if (end != -SIGKILL) {
            good = good && end == 0 && committed() > before && is_whole(committed());
            break;
        }
        deaths++;
        good = good && committed() == before && in_child(die_amid_data) == -SIGKILL && is_whole(before);
    }
    tap_ok(
        good,
        "a writer dies before every store of a commit, and within the data: the committed generation is whole");
    tap_is(
        deaths, 9,
        "stores of a commit of three tensors: begin, three marks, three generations, one closed, the word");
    end_reading();
}

/* The child commits until it is killed. */
static int write_on(void)
{
    if (zr_keep_attach(&keep, file, ZR_KEEP_WRITE) != ZR_OK)
        return 2;
    while (step(true) == 0 && write(ready[1], "", 1) == 1)
        ;
    return 1;
}

/* A child of which the parent has seen `steps` steps. */
static pid_t start_writer(unsigned steps)
{
    char byte;
    if (pipe2(ready, O_CLOEXEC) != 0)
        return -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(write_on());
    close(ready[1]);
    while (steps > 0 && read(ready[0], &byte, 1) == 1)
        steps--;
    return steps == 0 ? child : -1;
}

static void end_writer(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
}

static void test_random_deaths(unsigned count)
{
    bool good = true;
    uint64_t random = run_seed();
    tap_ok(begin_reading(), "a segment for %u writers", count);
    for (unsigned i = 0; good && i < count; i++) {
        uint64_t before = committed();
        unsigned steps = 1 + (unsigned)(xorshift64(&random) % 4);
        pid_t child = start_writer(steps);
        good = child > 0;
        end_writer(child);
        good = good && is_whole(before + steps);
    }
    tap_ok(good, "%u writers are killed at random: each leaves a whole generation to the next", count);
    end_reading();
}

/* ---- Successors ---------------------------------------------------------------------------------------- */

/* Generations that a dead writer did not commit stay invalid after its successor's commits. */
static void test_successor(void)
{
    struct zr_keep_info info;
    struct zr_keep_view view;
    struct zr_keep_tensor_info tensor;
    uint64_t generation;
    void *address, *block;
    tap_ok(begin_reading(), "a segment for a successor");
    for (strike = 1; strike <= 8; strike++)
        in_child(die_at_store); /* the last one has new generations in the table */
    zr_keep_close(keep);
    tap_result(zr_keep_attach(&keep, file, ZR_KEEP_WRITE), ZR_OK, "the lease of a dead writer is free");
    zr_keep_get_info(keep, &info);
    tap_ok(info.generation == 1 && info.lease == 10 && info.writer_pid == getpid() &&
               info.tensors_count == TENSORS,
           "the table and the generation are the dead writer's");
    zr_keep_begin(keep, &generation);
    tap_is(generation, info.begun_generation + 1, "its generations are not used again");
    tap_is(generation, 9, "committed or not");
    zr_keep_write(keep, SECOND, &address);
    fill(address, generation, WORDS);
    tap_ok(zr_keep_commit(keep) == ZR_OK && committed() == generation, "a commit of one tensor");
    zr_keep_read(keep, FIRST, &view);
    tap_ok(view.generation == 1 && generation_of(view.address) == 1,
           "leaves the others at their last committed generation");
    zr_keep_tensor_get(keep, FIRST, &tensor);
    tap_ok(tensor.coordinates[0] == FIRST && strcmp(tensor.name, "a") == 0 && tensor.bytes == TENSOR,
           "a tensor has its name and coordinates");
    struct zr_arena_stats stats;
    zr_arena_get_stats(zr_keep_arena(keep), &stats);
    tap_ok(stats.blocks_count == TENSORS && stats.unmovable_bytes == stats.mapped_bytes,
           "the arena has the tensors as blocks, on granules that do not move");
    const struct zr_request request = {.bytes = 2 * TENSOR};
    bool apart = true;
    tap_result(zr_arena_alloc(zr_keep_arena(keep), &request, &block), ZR_OK, "and serves other blocks");
    for (uint32_t i = 0; i < TENSORS; i++) {
        zr_keep_read(keep, i, &view);
        apart = apart && ((const char *)view.address + TENSOR <= (char *)block ||
                          (char *)block + 2 * TENSOR <= (const char *)view.address);
    }
    tap_ok(apart, "beside the tensors");
    tap_result(zr_arena_check(zr_keep_arena(keep)), ZR_OK, "the arena's records are good");
    end_reading();
}

static void test_lease(void)
{
    zr_keep *other = NULL;
    char words[24];
    tap_ok(begin_reading(), "a segment for two writers");
    pid_t child = start_writer(1);
    snprintf(words, sizeof words, "process %d,", (int)child);
    tap_result(zr_keep_attach(&other, file, ZR_KEEP_WRITE), ZR_ERR_UNAVAILABLE, "a second writer is refused");
    tap_ok(strstr(zr_last_error(), words), "by a message that names the first: %s", zr_last_error());
    end_writer(child);
    tap_result(zr_keep_attach(&other, file, ZR_KEEP_WRITE), ZR_OK, "until the first is dead");
    zr_keep_close(other);
    tap_result(zr_keep_attach(&other, file, ZR_KEEP_WRITE), ZR_OK, "or has closed the segment");
    zr_keep_close(other);
    end_reading();
}

/* A child that can still write keeps the lease, and cannot use it. */
static int child_of_writer(void)
{
    uint64_t generation;
    char byte;
    bool refused = zr_keep_begin(keep, &generation) == ZR_ERR_INVALID;
    close(ready[1]);
    return read(ready[0], &byte, 1) == 0 && refused ? 0 : 1;
}

static void test_fork(void)
{
    int status;
    zr_keep *other;
    tap_ok(make() == ZR_OK && pipe2(ready, O_CLOEXEC) == 0, "a segment for a writer that forks");
    file = dup(zr_keep_fd(keep));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(child_of_writer());
    zr_keep_close(keep);
    tap_result(zr_keep_attach(&other, file, ZR_KEEP_WRITE), ZR_ERR_UNAVAILABLE, "its child keeps the lease");
    close(ready[1]);
    close(ready[0]);
    waitpid(child, &status, 0);
    tap_is(status, 0, "cannot write itself");
    tap_result(zr_keep_attach(&keep, file, ZR_KEEP_WRITE), ZR_OK, "and releases the lease when it exits");
    end_reading();
}

/* ---- Readers ------------------------------------------------------------------------------------------- */

static void test_reader(void)
{
    zr_keep *reader;
    struct zr_keep_view view, open;
    void *address;
    tap_ok(make() == ZR_OK && zr_keep_attach(&reader, zr_keep_fd(keep), ZR_KEEP_READ) == ZR_OK,
           "a reader beside the writer");
    tap_result(zr_keep_read(reader, FIRST, &view), ZR_ERR_UNAVAILABLE, "nothing was committed");
    tap_ok(view.state == ZR_KEEP_EMPTY && !view.address, "so there is nothing to read");
    step(true);
    zr_keep_read(reader, FIRST, &view);
    step(true);
    tap_result(zr_keep_read_check(reader, FIRST, &view), ZR_OK, "contents stay for a commit after the next");
    zr_keep_begin(keep, NULL);
    zr_keep_write(keep, FIRST, &address);
    tap_result(zr_keep_read_check(reader, FIRST, &view), ZR_ERR_PEER,
               "and not longer, which a reader can tell");
    fill(address, 42, 1);
    tap_is(*(const uint64_t *)view.address / 1000003, 42, "the place is the writer's");
    tap_ok(zr_keep_read(reader, PLACE, &view) == ZR_OK && view.generation == 2, "a tensor in place is read");
    zr_keep_write(keep, PLACE, &address);
    tap_result(zr_keep_read_check(reader, PLACE, &view), ZR_ERR_PEER, "until it is written");
    tap_result(zr_keep_read(reader, PLACE, &open), ZR_ERR_CORRUPT, "when it is open");
    tap_ok(open.state == ZR_KEEP_OPEN && open.generation == 3, "for a generation");
    tap_result(zr_keep_abandon(keep), ZR_OK, "which is abandoned");
    zr_keep_read(reader, FIRST, &view);
    tap_ok(view.generation == 2 && generation_of(view.address) == 2, "the committed contents stay");
    tap_result(zr_keep_begin(reader, NULL), ZR_ERR_INVALID, "a reader does not write");
    tap_result(zr_keep_commit(keep), ZR_ERR_INVALID, "a commit needs a generation");
    zr_keep_close(reader);
    zr_keep_close(keep);
}

/* ---- Damage -------------------------------------------------------------------------------------------- */

static void test_damage(void)
{
    struct zr_segment_shape shape;
    struct zr_keep_tensor_info info;
    zr_keep *other;
    tap_ok(begin_reading(), "a segment to damage");
    tap_is(zr_segment_inspect(file, &shape), ZR_OK, "is good before");
    struct zr_segment_shape bad[] = {shape, shape, shape, shape, shape};
    bad[0].magic++;
    bad[1].version++;
    bad[2].bytes += GRANULE;
    bad[3].data_bytes = 0;
    bad[4].granule_bytes = 3;
    unsigned refused = 0;
    for (unsigned i = 0; i < 5; i++)
        refused += pwrite(file, &bad[i], sizeof *bad, 0) == sizeof *bad &&
                   zr_keep_attach(&other, file, ZR_KEEP_READ) == ZR_ERR_FORMAT;
    tap_is(refused, 5, "a damaged header is refused");
    pwrite(file, &shape, sizeof shape, 0);
    uint64_t far = UINT64_MAX - 100;
    pwrite(file, &far, sizeof far, ZR_SEGMENT_HEADER_BYTES + offsetof(struct zr_segment_entry, offset_bytes));
    tap_result(zr_keep_tensor_get(keep, FIRST, &info), ZR_ERR_CORRUPT, "a damaged entry is noticed");
    tap_result(zr_keep_attach(&other, file, ZR_KEEP_WRITE), ZR_ERR_CORRUPT, "by a successor, too");
    far = 2 * (uint64_t)ZR_SEGMENT_TENSORS_MAX;
    pwrite(file, &far, sizeof far, offsetof(struct zr_segment_header, tensors_count));
    tap_ok(zr_keep_tensor_find(keep, "nothing", &(uint32_t){0}) == ZR_ERR_FOREIGN,
           "a count beyond the table is cut");
    tap_ok(ftruncate(file, 0) != 0 && ftruncate(file, 4 * BYTES) != 0 &&
               fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) != 0,
           "its length and seals are fixed");
    end_reading();
    int plain = memfd_create("plain", MFD_CLOEXEC);
    tap_result(zr_keep_attach(&other, plain, ZR_KEEP_READ), ZR_ERR_FORMAT, "another file is no segment");
    close(plain);
}

static void test_options(void)
{
    static const struct {
        struct zr_keep_options options;
        const char *words;
    } rows[] = {{{.name = NULL, .bytes = 1}, "name"},
                {{.name = "a b", .bytes = 1}, "name"},
                {{.name = "12345678901234567890123456789012345678901234567890", .bytes = 1}, "name"},
                {{.name = "a"}, "1 byte"},
                {{.name = "a", .bytes = 1, .granule_bytes = 4096}, "granule"},
                {{.name = "a", .bytes = 1, .tensors_max = UINT32_MAX}, "tensors"}};
    unsigned refused = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct zr_keep_options options = rows[i].options;
        options.holder = ZR_KEEP_HOLDER_NONE;
        refused +=
            zr_keep_create(&keep, &options) == ZR_ERR_INVALID && strstr(zr_last_error(), rows[i].words);
    }
    tap_is(refused, sizeof rows / sizeof *rows, "bad options are refused, with words");
    tap_result(make(), ZR_OK, "good ones are not");
    uint32_t tensor;
    struct zr_keep_tensor options = {.name = "a", .bytes = 8};
    tap_result(zr_keep_tensor_create(keep, &options, &tensor), ZR_ERR_INVALID, "a name is used once");
    options.name = "large";
    options.bytes = BYTES;
    tap_result(zr_keep_tensor_create(keep, &options, &tensor), ZR_ERR_ADDRESSES, "a segment can be full");
    tap_is(zr_keep_tensor_find(keep, "large", &tensor), ZR_ERR_FOREIGN, "and has no tensor then");
    zr_keep_close(keep);
}

/* ---- The launcher -------------------------------------------------------------------------------------- */

static const struct zr_keep_name shard = {"run/shard-1", 77};

static int first_rank(void)
{
    const struct zr_keep_options options = {
        .name = shard.name, .token = shard.token, .bytes = BYTES, .granule_bytes = GRANULE};
    uint32_t tensor;
    void *address;
    if (zr_keep_create(&keep, &options) != ZR_OK ||
        zr_keep_tensor_create(keep, &(struct zr_keep_tensor){.name = "a", .bytes = TENSOR}, &tensor) !=
            ZR_OK ||
        zr_keep_begin(keep, NULL) != ZR_OK || zr_keep_write(keep, tensor, &address) != ZR_OK)
        return 1;
    fill(address, 1, WORDS);
    zr_keep_commit(keep);
    return kill(getpid(), SIGKILL);
}

static int successor(void)
{
    struct zr_keep_view view;
    const struct zr_keep_name wrong = {shard.name, 78}, other = {"run/shard-2", 77};
    bool good = zr_keep_open(&keep, &wrong, ZR_KEEP_READ) == ZR_ERR_FOREIGN &&
                zr_keep_open(&keep, &other, ZR_KEEP_READ) == ZR_ERR_FOREIGN &&
                zr_keep_open(&keep, &shard, ZR_KEEP_WRITE) == ZR_OK &&
                zr_keep_read(keep, 0, &view) == ZR_OK && generation_of(view.address) == 1;
    good = good && zr_keep_drop(&shard) == ZR_ERR_INVALID;
    zr_keep_close(keep);
    return good && zr_keep_drop(&shard) == ZR_OK &&
                   zr_keep_open(&keep, &shard, ZR_KEEP_READ) == ZR_ERR_FOREIGN
               ? 0
               : 1;
}

/* Runs a rank and serves it until it ends. */
static int run_rank(struct zr_kept_holder *holder, const int door[2], int (*body)(void))
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        zr_holding_set_door(door[1]);
        _exit(body());
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        poll(&(struct pollfd){.fd = door[0], .events = POLLIN}, 1, 20);
        zr_kept_holder_serve(holder, door[0]);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_launcher(void)
{
    struct zr_kept_holder holder;
    int door[2];
    zr_kept_holder_init(&holder);
    tap_is(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, door), 0, "a launcher's door");
    tap_is(run_rank(&holder, door, first_rank), -SIGKILL, "a rank keeps a shard there, and is killed");
    tap_is(holder.count, 1, "the launcher has its memory");
    struct zr_service_message kept = zr_kept_holder_next(&holder, 0);
    tap_ok(kept.kind == ZR_SERVICE_KEPT && kept.count == 1 && !(kept.flags & ZR_SERVICE_KEEP_WRITES) &&
               kept.slice == 1 && strcmp(kept.words, shard.name) == 0,
           "with one committed generation and no writer");
    tap_is(run_rank(&holder, door, successor), 0,
           "a successor with the name and the token maps it, and drops it");
    tap_is(holder.count, 0, "the launcher has none then");
    send(door[1], "half a message", 14, 0);
    zr_kept_holder_serve(&holder, door[0]);
    tap_is(run_rank(&holder, door, first_rank), -SIGKILL,
           "a message that brings no socket is no end of the door");
    zr_kept_holder_fini(&holder);
    close(door[0]);
    close(door[1]);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "kills") == 0) {
        test_random_deaths((unsigned)atoi(argv[2]));
        return tap_done();
    }
    test_deaths();
    test_random_deaths(KILLS);
    test_successor();
    test_lease();
    test_fork();
    test_reader();
    test_damage();
    test_options();
    test_launcher();
    return tap_done();
}
