/* state_test.c: an engine's state as a file, from the inside: what is refused leaves memory as it was,
 * whatever is wrong with the file; names that JSON must escape; both optimizers. tests/system/install.t has
 * ranks, stages and faults. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "tests/support/zero/engine_rig.h"
#include "tests/support/seed.h"
#include "tests/support/tap.h"
#include "zero/zr_zero.h"

static const struct zr_parameter parameters[] = {
    {.name = "a \"quoted\" \\ name\n",
     .shape = {7, 11},
     .unit = 0,
     .group = ZR_GROUP_DECAY,
     .init_deviation = 0.5f},
    {.name = "one", .shape = {1, 0}, .unit = 0, .group = ZR_GROUP_NO_DECAY, .init_mean = 1},
    {.name = "not UTF-8: \xff\xc0",
     .shape = {129, 0},
     .unit = 1,
     .group = ZR_GROUP_NO_DECAY,
     .init_deviation = 0.1f},
};
static const struct zr_unit units[] = {{"first", 1}, {"second", 1}};
enum { ELEMENTS = 7 * 11 + 1 + 129, ROOM = 1 << 16 };

static char folder[] = "/tmp/zr-state-XXXXXX", path[64];

/* Of the next rigs; the tests before last are of fp32. */
static enum zr_precision precision;

/* One rank. `parameters_list` has as many parameters as the one above. */
static void make_rig(struct rig *rig, const struct zr_parameter *list, enum zr_optimizer_kind kind,
                     const struct zr_kernels *kernels)
{
    zr_result result = rig_open(
        rig, &(struct rig_options){
                 .isa = ZR_ISA_PLAIN, .precision = precision, .bucket_bytes = 4096, .kernels = kernels});
    tap_ok(rig->backend != NULL, "a backend");
    tap_ok(rig->arena != NULL, "an arena");
    tap_result(result, ZR_OK, "a communicator of one, and kernels");
    tap_result(zr_engine_create(&rig->engine,
                                &(struct zr_engine_options){
                                    .arena = rig->arena,
                                    .host_arena = rig->arena,
                                    .kernels = kernels,
                                    .context = &rig->context,
                                    .comm = rig->comm,
                                    .list = {list, sizeof parameters / sizeof *parameters, units, 2},
                                    .precision = precision,
                                    .seed = 5,
                                    .optimizer = {.kind = kind,
                                                  .beta1 = 0.9f,
                                                  .beta2 = 0.99f,
                                                  .epsilon = 1e-6f,
                                                  .momentum_factor = 0.9f}}),
               ZR_OK, "an engine");
}

static void end_rig(struct rig *rig)
{
    tap_is(rig_close(rig), 0, "nothing is left in the arena");
}

/* All values that a file has, in a row. */
struct values {
    float parameter[ELEMENTS], momentum[ELEMENTS], variance[ELEMENTS];
    uint64_t steps;
};

static void walk(struct rig *rig, struct values *values, bool set)
{
    for (size_t i = 0; i < zr_engine_segments_count(rig->engine); i++) {
        struct zr_shard_segment s;
        zr_engine_segment(rig->engine, i, &s);
        struct {
            float *ours, *theirs;
        } pairs[] = {
            {values->parameter, s.parameter}, {values->momentum, s.momentum}, {values->variance, s.variance}};
        for (unsigned k = 0; k < 3; k++) {
            if (!pairs[k].theirs)
                continue;
            float *ours = pairs[k].ours + s.global_index;
            memcpy(set ? pairs[k].theirs : ours, set ? ours : pairs[k].theirs, s.count * sizeof(float));
        }
    }
    if (set)
        zr_engine_publish(rig->engine, values->steps);
    values->steps = zr_engine_steps_done(rig->engine);
}

static struct values take_values(struct rig *rig)
{
    struct values values;
    memset(&values, 0, sizeof values);
    walk(rig, &values, false);
    return values;
}

static struct values random_values(uint64_t steps)
{
    struct values values;
    float *all = values.parameter; /* the three follow one another */
    memset(&values, 0, sizeof values);
    for (size_t i = 0; i < 3 * ELEMENTS; i++)
        all[i] = (float)drand48() - 0.5f;
    values.steps = steps;
    return values;
}

static size_t slurp(char *out)
{
    int fd = open(path, O_RDONLY);
    ssize_t got = fd < 0 ? 0 : read(fd, out, ROOM);
    close(fd);
    return got < 0 ? 0 : (size_t)got;
}

static void spit(const char *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        tap_ok(false, "writing %s", path);
    close(fd);
}

/* Whether a file is refused and nothing has changed in memory. */
static bool refused(struct rig *rig, const char *data, size_t bytes)
{
    struct values before = take_values(rig), after;
    spit(data, bytes);
    zr_result result = zr_engine_load(rig->engine, path);
    after = take_values(rig);
    return result == ZR_ERR_FORMAT && memcmp(&before, &after, sizeof after) == 0;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void check_round_trip(enum zr_optimizer_kind kind)
{
    struct values saved = random_values(UINT64_C(12345678901234567890)), other = random_values(3), got;
    struct rig rig;
    if (kind == ZR_OPTIMIZER_SGD)
        memset(saved.variance, 0, sizeof saved.variance);
    make_rig(&rig, parameters, kind, zr_kernels_cpu(ZR_ISA_PLAIN));
    walk(&rig, &saved, true);
    tap_result(zr_engine_save(rig.engine, path), ZR_OK, "saved, optimizer %d", (int)kind);
    walk(&rig, &other, true);
    tap_result(zr_engine_load(rig.engine, path), ZR_OK, "loaded");
    got = take_values(&rig);
    tap_ok(memcmp(&got, &saved, sizeof got) == 0, "every value and the steps are what they were");
    end_rig(&rig);
}

/* Flips each bit of the header and many of the data, cuts the file everywhere, puts things behind it. */
static void check_damage(void)
{
    static char good[ROOM], bad[ROOM + 1];
    size_t bytes, kept = 0, cuts = 0;
    struct rig rig;
    make_rig(&rig, parameters, ZR_OPTIMIZER_ADAMW, zr_kernels_cpu(ZR_ISA_PLAIN));
    tap_result(zr_engine_save(rig.engine, path), ZR_OK, "a good file");
    bytes = slurp(good);
    tap_ok(bytes > 3 * ELEMENTS * 4 && bytes < ROOM, "of %zu bytes", bytes);
    for (size_t i = 0; i < bytes; i++) {
        memcpy(bad, good, bytes);
        bad[i] = (char)(bad[i] ^ (1 << (i * 5 % 8)));
        kept += refused(&rig, bad, bytes);
    }
    tap_is(kept, bytes, "a flipped bit in any byte is refused, and memory is as it was");
    for (size_t i = 0; i < bytes; i += 7)
        cuts += !refused(&rig, good, i);
    tap_is(cuts, 0, "and so is a file cut anywhere");
    memcpy(bad, good, bytes);
    bad[bytes] = 0;
    tap_ok(refused(&rig, bad, bytes + 1), "or with a byte more");
    spit(good, bytes);
    tap_result(zr_engine_load(rig.engine, path), ZR_OK, "the good one still loads");
    end_rig(&rig);
}

static void check_others(void)
{
    struct zr_parameter renamed[3];
    char pipe_path[80];
    struct rig rig;
    memcpy(renamed, parameters, sizeof renamed);
    renamed[1].name[0] = 'u';
    make_rig(&rig, parameters, ZR_OPTIMIZER_SGD, zr_kernels_cpu(ZR_ISA_PLAIN));
    tap_result(zr_engine_load(rig.engine, path), ZR_ERR_FORMAT, "a file of AdamW is not for SGD: %s",
               zr_last_error());
    tap_result(zr_engine_save(rig.engine, path), ZR_OK, "saved by SGD");
    tap_result(zr_engine_save(NULL, path), ZR_ERR_INVALID, "no engine");
    tap_result(zr_engine_save(rig.engine, NULL), ZR_ERR_INVALID, "no path");
    tap_result(zr_engine_load(rig.engine, ""), ZR_ERR_INVALID, "an empty path");
    char *longest = malloc(8192);
    memset(longest, 'x', 8191);
    longest[8191] = '\0';
    tap_result(zr_engine_save(rig.engine, longest), ZR_ERR_INVALID, "a path that is too long");
    free(longest);
    tap_result(zr_engine_load(rig.engine, folder), ZR_ERR_IO, "a folder is no file");
    tap_result(zr_engine_load(rig.engine, "/nowhere/at/all"), ZR_ERR_IO, "a file that is not there");
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    if (mkfifo(pipe_path, 0600) == 0)
        tap_result(zr_engine_load(rig.engine, pipe_path), ZR_ERR_FORMAT,
                   "nor is a pipe, which is not waited for");
    struct stat status;
    tap_result(zr_engine_save(rig.engine, pipe_path), ZR_ERR_IO, "no file takes a pipe's name");
    tap_ok(lstat(pipe_path, &status) == 0 && S_ISFIFO(status.st_mode), "which stays one");
    unlink(pipe_path);
    end_rig(&rig);
    make_rig(&rig, renamed, ZR_OPTIMIZER_SGD, zr_kernels_cpu(ZR_ISA_PLAIN));
    tap_result(zr_engine_load(rig.engine, path), ZR_ERR_FORMAT, "nor is one of other names");
    end_rig(&rig);
    make_rig(&rig, parameters, ZR_OPTIMIZER_SGD, zr_kernels_null());
    tap_result(zr_engine_save(rig.engine, path), ZR_ERR_INVALID, "a dry run saves nothing");
    tap_result(zr_engine_load(rig.engine, path), ZR_ERR_INVALID, "and loads nothing");
    end_rig(&rig);
}

/* Each read fails in turn. Before the first value changes that is ZR_ERR_IO, and nothing has; afterwards it
 * is ZR_ERR_CORRUPT, and the next load makes all whole. */
static void check_reads(void)
{
    struct values saved = random_values(7), other = random_values(3), got;
    size_t untouched = 0, torn = 0, wrong = 0;
    struct rig rig;
    make_rig(&rig, parameters, ZR_OPTIMIZER_ADAMW, zr_kernels_cpu(ZR_ISA_PLAIN));
    walk(&rig, &saved, true);
    tap_result(zr_engine_save(rig.engine, path), ZR_OK, "a file to read");
    for (uint64_t nth = 1;; nth++) {
        walk(&rig, &other, true);
        zr_fault_set(ZR_FAULT_READ, nth);
        zr_result result = zr_engine_load(rig.engine, path);
        zr_fault_set(ZR_FAULT_READ, 0);
        got = take_values(&rig);
        if (result == ZR_OK)
            break;
        bool same = memcmp(&got, &other, sizeof got) == 0;
        untouched += result == ZR_ERR_IO && same;
        torn += result == ZR_ERR_CORRUPT && strstr(zr_last_error(), "load again");
        wrong += result == ZR_ERR_CORRUPT ? untouched == 0 : result != ZR_ERR_IO || !same;
    }
    tap_ok(memcmp(&got, &saved, sizeof got) == 0, "a load after all the failed ones");
    tap_is(wrong, 0, "what failed says whether something has changed");
    tap_ok(untouched > 0 && torn > 0, "%zu reads failed before, %zu while values changed", untouched, torn);
    end_rig(&rig);
}

/* What one precision has saved, another loads: the masters, to the bit; and fp16 its loss scale again. */
static void check_precisions(void)
{
    const struct zr_loss_scale odd = {.scale = 384,
                                      .good_steps = 77,
                                      .hysteresis_left = 3,
                                      .skipped_in_row = 1,
                                      .skipped_steps = UINT64_C(1) << 40};
    struct zr_loss_scale got;
    struct values before = {.steps = 12}, after;
    struct rig rig;

    for (size_t e = 0; e < ELEMENTS; e++) { /* numbers that two bytes do not have */
        before.parameter[e] = (float)drand48();
        before.momentum[e] = (float)drand48() * 1e-8f;
        before.variance[e] = (float)drand48() * 1e8f;
    }
    for (enum zr_precision saves = ZR_PRECISION_FP32; saves < ZR_PRECISION_COUNT; saves++) {
        precision = saves;
        make_rig(&rig, parameters, ZR_OPTIMIZER_ADAMW, zr_kernels_cpu(ZR_ISA_PLAIN));
        walk(&rig, &before, true);
        tap_result(zr_engine_set_scaling(rig.engine, &odd), ZR_OK, "a loss scale");
        tap_result(zr_engine_save(rig.engine, path), ZR_OK, "%s saves", zr_precision_name(saves));
        end_rig(&rig);
        for (precision = ZR_PRECISION_FP32; precision < ZR_PRECISION_COUNT; precision++) {
            memset(&after, 0, sizeof after);
            make_rig(&rig, parameters, ZR_OPTIMIZER_ADAMW, zr_kernels_cpu(ZR_ISA_PLAIN));
            tap_result(zr_engine_load(rig.engine, path), ZR_OK, "%s loads", zr_precision_name(precision));
            walk(&rig, &after, false);
            tap_ok(memcmp(&after, &before, sizeof after) == 0, "the same masters and moments");
            zr_engine_scaling(rig.engine, &got);
            bool kept = got.scale == odd.scale && got.good_steps == odd.good_steps &&
                        got.hysteresis_left == odd.hysteresis_left &&
                        got.skipped_in_row == odd.skipped_in_row && got.skipped_steps == odd.skipped_steps;
            tap_ok(kept == (saves == ZR_PRECISION_FP16), "the loss scale is %s",
                   saves == ZR_PRECISION_FP16 ? "the saved one" : "a new one");
            tap_ok(zr_engine_loss_scale(rig.engine) == (precision == ZR_PRECISION_FP16 ? got.scale : 1),
                   "and counts in fp16 alone");
            end_rig(&rig);
        }
    }
    precision = ZR_PRECISION_FP16;
    make_rig(&rig, parameters, ZR_OPTIMIZER_ADAMW, zr_kernels_cpu(ZR_ISA_PLAIN));
    struct zr_loss_scale wrong = odd;
    wrong.scale = -1;
    tap_result(zr_engine_set_scaling(rig.engine, &wrong), ZR_ERR_INVALID, "a scale below nothing");
    wrong = odd;
    wrong.hysteresis_left = 0;
    tap_result(zr_engine_set_scaling(rig.engine, &wrong), ZR_ERR_INVALID, "and no step left to skip");
    end_rig(&rig);
    precision = ZR_PRECISION_FP32;
}

int main(void)
{
    srand48((long)run_seed());
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/state", folder);
    check_round_trip(ZR_OPTIMIZER_ADAMW);
    check_round_trip(ZR_OPTIMIZER_SGD);
    check_damage();
    check_others();
    check_reads();
    check_precisions();
    /* A name alone is a file of the working folder. */
    if (chdir(folder) == 0) {
        struct rig rig;
        make_rig(&rig, parameters, ZR_OPTIMIZER_ADAMW, zr_kernels_cpu(ZR_ISA_PLAIN));
        tap_result(zr_engine_save(rig.engine, "alone"), ZR_OK, "a path without a folder");
        tap_ok(access("alone", R_OK) == 0 && access("alone.partial", F_OK) != 0,
               "is there, and nothing beside it");
        unsigned failures = 0, left = 0;
        for (zr_result result = ZR_ERR_IO; result != ZR_OK && failures < 20; failures += result != ZR_OK) {
            zr_fault_set(ZR_FAULT_WRITE, failures + 1);
            result = zr_engine_save(rig.engine, "alone");
            zr_fault_set(ZR_FAULT_WRITE, 0);
            left += access("alone.partial", F_OK) == 0;
        }
        tap_ok(failures > 1 && left == 0, "nor after a full disk, at %u places", failures);
        end_rig(&rig);
        unlink("alone");
    }
    unlink(path);
    tap_ok(rmdir(folder) == 0, "nothing is left in the folder");
    return tap_done();
}
