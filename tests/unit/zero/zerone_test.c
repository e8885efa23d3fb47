/* zerone_test.c: 0/1 Adam against plain arrays of all ranks in one process, to the bit: full, sent and local
 * steps, the end of local steps, their bytes, and the sum of what was sent; the schedule against counters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/tap.h"
#include "tests/support/zero/engine_rig.h"
#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/compress/compressor.h"
#include "zero/engine/momentum.h"
#include "zero/engine/zerone.h"

enum { WORLD_MAX = 3, UNITS = 3, UNIT = 1, ROWS = 41, COLUMNS = 31, MOST = 2048, STEPS = 40, UNSEEN = 10 };
enum kind { FULL, SENT, LOCAL };
static const struct zr_compression how = {
    .kinds = {{.on = false}, {.on = true, .method = ZR_METHOD_ZERONE}},
    .warmup_steps = 9,
    .zerone = {.variance_updates = 2, .local_steps = 5, .interval_max = 6}};
static const float beta1 = 0.9f, beta2 = 0.75f, epsilon = 1e-6f;
static const struct zr_kernels *kernels;

struct setting {
    unsigned world;
    enum zr_precision precision;
    struct left *left;  /* of the ranks that have saved; NULL: nothing is saved or loaded */
    const char *folder; /* of the files of errors */
    bool loads;
};

/* What two ranks have after local steps. */
enum { SAVED_STEPS = 24 };
struct left {
    float x[2][MOST], anchor[MOST], variance[MOST];
    size_t n;
};

/* ---- The schedule -------------------------------------------------------------------------------------- */

/* Counters, as a run would keep them. */
struct counters {
    uint64_t step, interval, updates, waited, exchange;
};

static enum kind next(struct counters *at, const struct zr_compression *by)
{
    uint64_t step = at->step++;
    if (step < by->warmup_steps) {
        if (++at->waited < at->interval)
            return SENT;
        at->waited = 0;
        if (++at->updates == by->zerone.variance_updates) {
            at->updates = 0;
            at->interval *= 2;
        }
        return FULL;
    }
    step -= by->warmup_steps;
    if (step > 0 && step % by->zerone.local_steps == 0 && at->exchange < by->zerone.interval_max)
        at->exchange =
            2 * at->exchange < by->zerone.interval_max ? 2 * at->exchange : by->zerone.interval_max;
    return (step + 1) % at->exchange == 0 ? SENT : LOCAL;
}

static void schedules(void)
{
    for (unsigned i = 0; i < 60; i++) {
        const struct zr_compression by = {.warmup_steps = 1 + i * 7 % 40,
                                          .zerone = {1 + i % 4, 1 + i % 9, 1 + i % 11}};
        struct counters at = {.interval = 1, .exchange = 1};
        uint64_t count[3] = {0};
        unsigned wrong = 0;
        for (uint64_t steps = 1; steps <= 120; steps++) {
            count[next(&at, &by)]++;
            struct zr_zerone_counts got = zr_zerone_counts(&by, steps);
            wrong += got.full != count[FULL] || got.sent != count[SENT] || got.local != count[LOCAL];
        }
        if (wrong || i == 59)
            tap_is(wrong, 0, "schedule %u has the steps of counters", i);
    }
}

/* ---- Plain arrays -------------------------------------------------------------------------------------- */

struct model {
    float x[WORLD_MAX][MOST], momentum[WORLD_MAX][MOST], buffer[WORLD_MAX][MOST], errors[WORLD_MAX][MOST];
    float gradient[WORLD_MAX][MOST], variance[MOST], anchor[MOST], owner[MOST], got[MOST];
    unsigned char narrow[WORLD_MAX][4 * MOST], packed[WORLD_MAX][4 * MOST];
    double sent[MOST], received[MOST];
    double rates, weights;
    unsigned updates, locals;
    size_t n, padded;
};

static float rate_of(unsigned step)
{
    return step % 7 == 4 ? 0 : 1e-2f / (float)(1 + step % 3);
}

static float value_of(unsigned rank, unsigned step, size_t i)
{
    uint64_t x = (rank * UINT64_C(1000003) + i) * UINT64_C(0x9e3779b97f4a7c15) + step * UINT64_C(77773);
    x ^= x >> 29;
    return i < UNSEEN ? 0 : (float)((double)(x % 20011) / 10000 - 1) / (float)(1 + (i >> 5) % 7 * 100);
}

static float correction(float beta, unsigned steps)
{
    return (float)(1 - pow((double)beta, steps));
}

static zr_result adamw(struct rig *rig, struct model *all, unsigned p, struct zr_adamw by,
                       struct zr_numbers gradient)
{
    by.epsilon = epsilon;
    by.gradient_scale = 1;
    return kernels->update_adamw(&rig->context, &(struct zr_update_adamw){by,
                                                                          {.n = all->n,
                                                                           .gradient = gradient,
                                                                           .master = all->x[p],
                                                                           .momentum = all->momentum[p],
                                                                           .variance = all->variance}});
}

static int full_step(struct rig *rig, const struct setting *setting, struct model *all, unsigned step)
{
    const void *from[WORLD_MAX];
    float before[MOST], after[MOST];
    for (unsigned p = 0; p < setting->world; p++)
        from[p] = all->narrow[p];
    struct zr_numbers mean = {all->packed[0], setting->precision};
    must(kernels->sum(&rig->context, &(struct zr_sum){all->n, from, setting->world, setting->precision,
                                                      1.0f / (float)setting->world, false, mean}) == ZR_OK);
    all->updates++;
    memcpy(before, all->variance, sizeof before);
    for (unsigned p = 0; p < setting->world; p++) {
        memcpy(all->variance, before, sizeof before);
        must(adamw(rig, all, p,
                   (struct zr_adamw){.rate = rate_of(step),
                                     .beta1 = beta1,
                                     .beta2 = beta2,
                                     .correction1 = correction(beta1, step + 1),
                                     .correction2 = correction(beta2, all->updates)},
                   mean) == ZR_OK);
        must(p == 0 || memcmp(all->variance, after, sizeof after) == 0);
        memcpy(after, all->variance, sizeof after);
    }
    return 0;
}

/* Before the first signs after a full step. */
static void raise(struct model *all, unsigned step)
{
    const double first = (double)correction(beta1, step),
                 factor = (double)correction(beta2, all->updates) / (first * first);
    for (size_t block = 0; block < all->padded; block += ZR_PACK_BLOCK) {
        double squares = 0;
        for (size_t i = block; i < block + ZR_PACK_BLOCK; i++)
            squares += (double)all->momentum[0][i] * (double)all->momentum[0][i];
        float least = (float)(factor * squares / ZR_PACK_BLOCK);
        for (size_t i = block; i < block + ZR_PACK_BLOCK; i++)
            if (all->variance[i] > 0 && all->variance[i] < least)
                all->variance[i] = least;
    }
}

/* Each rank moves its momentum. */
static int move(struct rig *rig, const struct setting *setting, struct model *all)
{
    for (unsigned p = 0; p < setting->world; p++) {
        must(adamw(rig, all, p,
                   (struct zr_adamw){.beta1 = beta1, .beta2 = 1, .correction1 = 1, .correction2 = 1},
                   (struct zr_numbers){all->narrow[p], setting->precision}) == ZR_OK);
        for (size_t i = 0; i < all->padded; i++)
            if (all->variance[i] == 0)
                all->momentum[p][i] = 0;
    }
    return 0;
}

static int apply(struct rig *rig, const struct setting *setting, struct model *all, float rate, float first)
{
    for (unsigned p = 0; p < setting->world; p++)
        must(adamw(rig, all, p,
                   (struct zr_adamw){.rate = rate,
                                     .beta1 = 1,
                                     .beta2 = 1,
                                     .correction1 = first,
                                     .correction2 = correction(beta2, all->updates)},
                   (struct zr_numbers){all->momentum[p], ZR_PRECISION_FP32}) == ZR_OK);
    return 0;
}

static int local_step(struct rig *rig, const struct setting *setting, struct model *all, unsigned step)
{
    const float rate = rate_of(step), first = correction(beta1, step + 1);
    const double weight = (double)rate / (double)first;
    if (all->weights == 0) {
        memcpy(all->anchor, all->x[0], sizeof all->anchor);
        memset(all->buffer, 0, sizeof all->buffer);
    }
    for (unsigned p = 0; p < setting->world; p++)
        for (size_t i = 0; i < all->padded; i++)
            all->buffer[p][i] += (float)weight * all->momentum[p][i];
    all->rates += (double)rate;
    all->weights += weight;
    all->locals++;
    return apply(rig, setting, all, rate, first);
}

static zr_result one_bit(struct rig *rig, struct model *all, const float *from, float *error, void *to)
{
    return kernels->pack(&rig->context,
                         &(struct zr_pack){.packing = ZR_PACKING_ONEBIT,
                                           .n = all->padded,
                                           .from = {(void *)(uintptr_t)from, ZR_PRECISION_FP32},
                                           .error = error,
                                           .to = to});
}

/* The exchange of momenta after the steps so far and one of this rate. */
static int exchange(struct rig *rig, const struct setting *setting, struct model *all, float rate,
                    float first)
{
    const void *from[WORLD_MAX];
    const struct zr_numbers to = {all->got, ZR_PRECISION_FP32};
    const double weight = (double)rate / (double)first, weights = all->weights + weight;
    for (unsigned p = 0; p < setting->world; p++) {
        for (size_t i = 0; i < all->padded; i++) {
            if (all->weights > 0)
                all->momentum[p][i] =
                    (all->buffer[p][i] + (float)weight * all->momentum[p][i]) / (float)weights;
            all->sent[i] += (double)all->momentum[p][i] / setting->world;
        }
        must(one_bit(rig, all, all->momentum[p], all->errors[p], all->packed[p]) == ZR_OK);
        from[p] = all->packed[p];
    }
    struct zr_unpack unpack = {.packing = ZR_PACKING_ONEBIT,
                               .n = all->padded,
                               .from = from,
                               .count = setting->world,
                               .scale = 1.0f / (float)setting->world,
                               .to = to};
    must(kernels->unpack(&rig->context, &unpack) == ZR_OK);
    must(one_bit(rig, all, all->got, all->owner, all->packed[0]) == ZR_OK);
    unpack.count = 1;
    unpack.scale = 1;
    must(kernels->unpack(&rig->context, &unpack) == ZR_OK);
    for (size_t i = 0; i < all->padded; i++) {
        bool moves = all->variance[i] > 0;
        all->got[i] = moves ? all->got[i] : 0;
        all->owner[i] = moves ? all->owner[i] : 0;
        all->received[i] += (double)all->got[i];
        for (unsigned p = 0; p < setting->world; p++)
            all->errors[p][i] = moves ? all->errors[p][i] : 0;
    }
    for (unsigned p = 0; p < setting->world; p++) {
        memcpy(all->momentum[p], all->got, sizeof all->got);
        if (all->weights > 0)
            memcpy(all->x[p], all->anchor, sizeof all->anchor);
    }
    if (all->weights > 0) {
        first = (float)((all->rates + (double)rate) / weights);
        rate = (float)(all->rates + (double)rate);
    }
    all->rates = all->weights = 0;
    all->locals = 0;
    return apply(rig, setting, all, rate, first);
}

/* ---- The engine ---------------------------------------------------------------------------------------- */

static zr_result create(struct rig *rig, const struct setting *setting)
{
    static struct zr_parameter parameters[UNITS];
    static struct zr_unit units[UNITS];
    for (unsigned u = 0; u < UNITS; u++) {
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        units[u].gradient_uses = 1;
        parameters[u] = (struct zr_parameter){
            .shape = {ROWS, COLUMNS}, .unit = u, .group = ZR_GROUP_NO_DECAY, .init_deviation = 0.1f};
        snprintf(parameters[u].name, sizeof parameters[u].name, "p%u", u);
    }
    return zr_engine_create(
        &rig->engine,
        &(struct zr_engine_options){.struct_bytes = sizeof(struct zr_engine_options),
                                    .arena = rig->arena,
                                    .host_arena = rig->arena,
                                    .kernels = kernels,
                                    .context = &rig->context,
                                    .comm = rig->comm,
                                    .list = {parameters, UNITS, units, UNITS, 0},
                                    .precision = setting->precision,
                                    .seed = 3,
                                    .optimizer = {.beta1 = beta1, .beta2 = beta2, .epsilon = epsilon},
                                    .compression = how});
}

static zr_result narrow(struct rig *rig, const float *from, size_t n, void *to)
{
    return kernels->convert(
        &rig->context,
        &(struct zr_convert){n, {(void *)(uintptr_t)from, ZR_PRECISION_FP32}, {to, rig->context.precision}});
}

/* One step of all units, and the bytes that it sent. */
static int engine_step(struct rig *rig, unsigned step, struct model *all, uint64_t *elements, uint64_t *bytes)
{
    struct zr_comm_counters before, after;
    struct zr_step_report report;
    unsigned rank = zr_comm_rank(rig->comm);
    zr_comm_counters_get(rig->comm, &before);
    for (unsigned u = 0; u < UNITS; u++) {
        void *base;
        bool accumulate;
        must(zr_engine_gradients(rig->engine, u, &base, &accumulate) == ZR_OK);
        must(narrow(rig, all->gradient[rank], all->n, base) == ZR_OK &&
             zr_engine_reduce(rig->engine, u) == ZR_OK);
    }
    must(zr_engine_step(rig->engine, rate_of(step), &report) == ZR_OK);
    must(zr_engine_synchronize(rig->engine) == ZR_OK);
    zr_comm_counters_get(rig->comm, &after);
    *elements = after.sent_elements - before.sent_elements;
    *bytes = after.sent_bytes - before.sent_bytes;
    return 0;
}

/* The engine has the bits of the arrays, and has lost nothing that it did not send. */
static int is_alike(struct rig *rig, const struct setting *setting, struct model *all)
{
    const struct zr_unit_state *state = &rig->engine->units[UNIT];
    unsigned rank = zr_comm_rank(rig->comm);
    size_t shard = rig->engine->layout.units[UNIT].shard_elements,
           each = zr_precision_bytes(setting->precision);
    must(memcmp(state->owned.master, all->x[rank], all->n * sizeof(float)) == 0);
    must(memcmp(state->owned.slots[0], all->momentum[rank], all->n * sizeof(float)) == 0);
    must(memcmp(state->owned.slots[1], all->variance, all->n * sizeof(float)) == 0);
    must(memcmp(zr_engine_errors(rig->engine, UNIT), all->errors[rank], all->padded * sizeof(float)) == 0);
    must(memcmp(zr_engine_owner_errors(rig->engine, UNIT), all->owner + rank * shard,
                shard * sizeof(float)) == 0);
    must(narrow(rig, all->x[rank], all->n, all->packed[0]) == ZR_OK);
    must(memcmp(state->whole, all->packed[0], all->n * each) == 0);
    for (size_t i = 0; i < all->padded; i++) {
        double kept = (double)all->owner[i];
        for (unsigned p = 0; p < setting->world; p++)
            kept += (double)all->errors[p][i] / setting->world;
        must(fabs(all->received[i] + kept - all->sent[i]) < 1e-4);
        must(i >= UNSEEN || all->received[i] == 0);
    }
    return 0;
}

/* Saves after local steps, beside what a state would have. */
static int leaves(struct rig *rig, const struct setting *setting, const struct model *all)
{
    struct left *left = setting->left;
    unsigned rank = zr_comm_rank(rig->comm);
    const struct zr_owned *owned = &rig->engine->units[UNIT].owned;
    must(rig->engine->local.count > 1);
    left->n = all->n;
    memcpy(left->x[rank], owned->master, all->n * sizeof(float));
    zr_engine_local_swap(rig->engine);
    must(zr_errors_save(rig->engine, setting->folder, 7) == ZR_OK);
    memcpy(left->anchor, owned->master, all->n * sizeof(float));
    memcpy(left->variance, owned->slots[1], all->n * sizeof(float));
    return 0;
}

/* Another number of ranks begins with the mean of the parameters, and no local step. */
static int moves(struct rig *rig, const struct setting *setting)
{
    const struct left *left = setting->left;
    double most = 0, apart = 0;
    must(create(rig, setting) == ZR_OK);
    const struct zr_owned *owned = &rig->engine->units[UNIT].owned;
    memcpy(owned->master, left->anchor, left->n * sizeof(float));
    memcpy(owned->slots[1], left->variance, left->n * sizeof(float));
    rig->engine->steps_done = SAVED_STEPS;
    must(zr_errors_load(rig->engine, setting->folder, 7, true) == ZR_OK);
    must(rig->engine->local.count == 0);
    for (size_t i = UNSEEN; i < left->n; i++) {
        double mean = ((double)left->x[0][i] + (double)left->x[1][i]) / 2;
        most = fmax(most, fabs(mean - (double)left->anchor[i]));
        apart = fmax(apart, fabs((double)owned->master[i] - mean));
    }
    must(most > 1e-3 && apart < 1e-6);
    return 0;
}

static int trains(struct rig *rig, const struct setting *setting)
{
    struct counters at = {.interval = 1, .exchange = 1};
    struct model *all;
    unsigned seen[3] = {0};
    bool was_full = false;
    must(create(rig, setting) == ZR_OK);
    must(zr_arena_alloc(rig->arena, &(struct zr_request){.bytes = sizeof *all, .tag = ZR_TAG_OTHER},
                        (void **)&all) == ZR_OK);
    memset(all, 0, sizeof *all);
    all->n = (size_t)ROWS * COLUMNS;
    all->padded = rig->engine->layout.units[UNIT].padded_elements;
    must(all->padded <= MOST && all->padded > all->n);
    for (unsigned p = 0; p < setting->world; p++)
        memcpy(all->x[p], rig->engine->units[UNIT].owned.master, all->n * sizeof(float));
    for (unsigned step = 0; step < STEPS; step++) {
        uint64_t elements, bytes;
        const enum kind kind = next(&at, &how);
        const float first = correction(beta1, step + 1);
        for (unsigned p = 0; p < setting->world; p++) {
            for (size_t i = 0; i < all->n; i++)
                all->gradient[p][i] = value_of(p, step, i);
            must(narrow(rig, all->gradient[p], all->n, all->narrow[p]) == ZR_OK);
        }
        int code = engine_step(rig, step, all, &elements, &bytes);
        must(code || bytes == (kind == FULL   ? elements * zr_precision_bytes(setting->precision)
                               : kind == SENT ? zr_pack_bytes(ZR_PACKING_ONEBIT, elements)
                                              : 0));
        must(code || (kind == LOCAL) == (elements == 0));
        if (kind != FULL && was_full)
            raise(all, step);
        if (!code && kind != FULL)
            code = move(rig, setting, all);
        code = code           ? code
               : kind == FULL ? full_step(rig, setting, all, step)
               : kind == SENT ? exchange(rig, setting, all, rate_of(step), first)
                              : local_step(rig, setting, all, step);
        code = code ? code : is_alike(rig, setting, all);
        if (!code && kind == LOCAL && step % 10 == 7) { /* as before a save */
            must(zr_engine_verify_replicas(rig->engine) == ZR_ERR_CORRUPT);
            must(zr_engine_end_local_steps(rig->engine) == ZR_OK);
            must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
            code = exchange(rig, setting, all, 0, 1);
            code = code ? code : is_alike(rig, setting, all);
            seen[LOCAL] += 100;
        }
        if (code)
            return code;
        if (setting->left && step + 1 == SAVED_STEPS) {
            code = leaves(rig, setting, all);
            zr_arena_free(rig->arena, all);
            return code;
        }
        was_full = kind == FULL;
        seen[kind]++;
    }
    must(seen[FULL] == 4 && seen[SENT] > 8 && seen[LOCAL] % 100 > 8 && seen[LOCAL] >= 100);
    must(zr_engine_end_local_steps(NULL) == ZR_ERR_INVALID);
    zr_arena_free(rig->arena, all);
    return 0;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct setting *setting = argument;
    struct rig rig;
    must(rig_open(&rig, &(struct rig_options){.local = local,
                                              .rank = rank,
                                              .isa = zr_isa_best(),
                                              .precision = setting->precision,
                                              .bucket_bytes = 2048,
                                              .granule_bytes = 64 << 10,
                                              .reserve_bytes = 256 << 20,
                                              .kernels = kernels}) == ZR_OK);
    int code = setting->loads ? moves(&rig, setting) : trains(&rig, setting);
    return rig_close(&rig) != 0 && code == 0 ? 101 : code;
}

int main(void)
{
    kernels = zr_kernels_cpu(zr_isa_best());
    schedules();
    for (unsigned i = 0; i < 4; i++) {
        struct setting setting = {.world = 2 + i / 2, .precision = (enum zr_precision)(i % 2)};
        tap_is(rig_launch(setting.world, rank_main, &setting), 0, "%u ranks, %s, %d steps", setting.world,
               zr_precision_name(setting.precision), STEPS);
    }
    char folder[] = "/tmp/zr-zerone-XXXXXX", path[64];
    struct setting setting = {2, ZR_PRECISION_FP32, .folder = mkdtemp(folder)};
    setting.left =
        mmap(NULL, sizeof *setting.left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tap_is(rig_launch(2, rank_main, &setting), 0, "2 ranks are saved after local steps");
    setting.world = 3;
    setting.loads = true;
    tap_is(rig_launch(3, rank_main, &setting), 0, "3 ranks begin with the mean of their parameters");
    for (unsigned r = 0; r < 2; r++) {
        snprintf(path, sizeof path, "%s/errors.%05u", folder, r);
        unlink(path);
    }
    rmdir(folder);
    munmap(setting.left, sizeof *setting.left);
    return tap_done();
}
