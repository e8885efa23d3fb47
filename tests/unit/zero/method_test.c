/* method_test.c: gradients that are sent by low rank, or the largest of them, at every stage: what all ranks
 * have sent and their last errors are the sum of their gradients; a mean of low rank arrives as it is; the
 * largest numbers of each shard arrive, and no others; and the bytes are those of the formulas. */
#include <math.h>
#include <string.h>

#include "tests/support/tap.h"
#include "tests/support/zero/engine_rig.h"
#include "zero/engine/errors.h"
#include "zero/engine/low_rank.h"

/* Each unit has a matrix, a vector, and a matrix that is no smaller as P and Q. */
enum { UNITS = 4, PER_UNIT = 3, PARAMETERS = UNITS * PER_UNIT, WORLD_MAX = 3, STEPS = 6, MAX = 4096 };
enum { ROWS = 40, COLUMNS = 16, RANK = 2 }; /* a rank of 0 is RANK, too */
static const size_t shapes[PER_UNIT][2] = {{ROWS, COLUMNS}, {COLUMNS, 0}, {2, 2}};

struct setting {
    unsigned world, stage;
    enum zr_compression_method method;
    float parameter, momentum, clip;
    uint64_t warmup_steps;
};

static struct zr_parameter parameters[PARAMETERS];
static struct zr_unit units[UNITS];
static const struct zr_kernels *kernels;

static void name_units(void)
{
    for (unsigned u = 0; u < UNITS; u++) {
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        units[u].gradient_uses = 1;
        for (unsigned i = 0; i < PER_UNIT; i++) {
            struct zr_parameter *p = &parameters[u * PER_UNIT + i];
            *p = (struct zr_parameter){.shape = {shapes[i][0], shapes[i][1]}, .unit = u};
            snprintf(p->name, sizeof p->name, "u%u.%u", u, i);
        }
    }
}

static float value_of(unsigned rank, unsigned unit, size_t element, unsigned step)
{
    uint64_t x = ((rank * UINT64_C(31) + unit) * UINT64_C(1000003) + element) * UINT64_C(0x9e3779b97f4a7c15) +
                 step * UINT64_C(77);
    x ^= x >> 29;
    float value = (float)((double)(x % 20011) / 10000 - 1);
    return unit == UNITS - 1 ? rintf(4 * value) : value / (float)(1 + element % 5); /* equal ones, too */
}

/* The matrices of the first steps have the rank RANK, and the sum of the ranks', too. */
static float gradient_of(unsigned rank, unsigned unit, unsigned tensor, size_t element, unsigned step)
{
    float sum = 0;
    if (step > 2 || tensor > 0)
        return value_of(rank, unit, element + tensor * 1000, step);
    for (unsigned r = 0; r < RANK; r++)
        sum += value_of(rank, unit, element / COLUMNS + r * 100, step + 50) *
               value_of(9, unit, element % COLUMNS + r * 100, step + 60);
    return sum;
}

/* One unit of all ranks. */
struct whole {
    float gradient[WORLD_MAX][MAX], velocity[WORLD_MAX][MAX], before[WORLD_MAX][MAX], after[WORLD_MAX][MAX];
    float all[WORLD_MAX * MAX], mean[MAX];
};
struct totals {
    double given[UNITS][MAX], sent[UNITS][MAX];
};

static void fill(const struct zr_engine *engine, unsigned rank, unsigned unit, unsigned step, float *to)
{
    for (unsigned i = 0; i < PER_UNIT; i++) {
        size_t n = shapes[i][0] * (shapes[i][1] ? shapes[i][1] : 1);
        float *at = to + zr_engine_offset(engine, unit * PER_UNIT + i);
        for (size_t e = 0; e < n; e++)
            at[e] = gradient_of(rank, unit, i, e, step);
    }
}

/* What arrived is the mean of the largest numbers, and the errors are the others. */
static int largest_arrived(const struct setting *setting, struct whole *w, size_t shard, double share)
{
    size_t count = (size_t)ceil(share * (double)shard);
    for (unsigned p = 0; p < setting->world; p++) {
        double squares = 0;
        for (size_t i = 0; i < shard * setting->world; i++)
            squares += (double)w->gradient[p][i] * (double)w->gradient[p][i];
        double limit = (double)setting->clip / sqrt(setting->world), norm = sqrt(squares);
        float scale = setting->clip > 0 && norm > limit ? (float)(limit / norm) : 1;
        for (size_t i = 0; i < shard * setting->world; i++) {
            w->velocity[p][i] = setting->momentum * w->velocity[p][i] + scale * w->gradient[p][i];
            w->before[p][i] += w->velocity[p][i];
        }
    }
    for (size_t first = 0; first < shard * setting->world; first += shard) {
        float sums[MAX] = {0};
        for (unsigned p = 0; p < setting->world; p++) {
            float least = INFINITY, most = 0;
            size_t sent = 0;
            for (size_t i = first; i < first + shard; i++) {
                const float v = w->before[p][i], magnitude = fabsf(v);
                if (w->after[p][i] == v) { /* zeros, too */
                    most = magnitude > most ? magnitude : most;
                    continue;
                }
                must(w->after[p][i] == 0);
                least = magnitude < least ? magnitude : least;
                sums[i - first] += v;
                w->velocity[p][i] = setting->momentum > 0 ? 0 : w->velocity[p][i];
                sent++;
            }
            must(sent <= count && (sent == count || most == 0) && most <= least);
        }
        for (size_t i = 0; i < shard; i++)
            must(w->mean[first + i] == sums[i] * (1.0f / (float)setting->world));
    }
    return 0;
}

/* A mean of low rank arrives as it is. */
static int mean_arrived(const struct setting *setting, const struct whole *w, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double mean = 0;
        for (unsigned p = 0; p < setting->world; p++)
            mean += (double)w->gradient[p][i] / setting->world;
        must(fabs(mean - (double)w->mean[i]) < 5e-5);
    }
    return 0;
}

/* Errors of all ranks. */
static int gather_errors(struct rig *rig, unsigned unit, struct whole *w, float to[WORLD_MAX][MAX])
{
    const unsigned world = zr_comm_world(rig->comm);
    const size_t padded = rig->engine->layout.units[unit].padded_elements;
    must(zr_comm_host_all_gather(rig->comm, zr_engine_errors(rig->engine, unit), padded * sizeof(float),
                                 w->all) == ZR_OK);
    for (unsigned p = 0; p < world; p++)
        memcpy(to[p], w->all + p * padded, padded * sizeof(float));
    return 0;
}

/* After the sum of a unit in a step. */
static int check_unit(struct rig *rig, const struct setting *setting, unsigned unit, unsigned step,
                      struct whole *w, struct totals *totals)
{
    struct zr_engine *engine = rig->engine;
    const size_t shard = engine->layout.units[unit].shard_elements, padded = shard * setting->world;
    double share = (double)setting->parameter;
    must(zr_comm_host_all_gather(rig->comm, engine->units[unit].reduced.at, shard * sizeof(float), w->mean) ==
         ZR_OK);
    must(setting->stage > 0 || memcmp(engine->units[unit].written, w->mean, padded * sizeof(float)) == 0);
    must(gather_errors(rig, unit, w, w->after) == 0);
    for (unsigned p = 0; p < setting->world; p++) {
        memset(w->gradient[p], 0, sizeof w->gradient[p]);
        fill(engine, p, unit, step, w->gradient[p]);
        for (size_t i = 0; i < padded; i++)
            totals->given[unit][i] += (double)w->gradient[p][i];
    }
    for (size_t i = 0; i < padded; i++)
        totals->sent[unit][i] += (double)w->mean[i] * setting->world;
    if (setting->method == ZR_METHOD_LOW_RANK)
        return step <= setting->warmup_steps ? mean_arrived(setting, w, padded) : 0;
    if (step < setting->warmup_steps)
        share = 0.25 * pow(share / 0.25, (double)step / (double)setting->warmup_steps);
    return largest_arrived(setting, w, shard, share);
}

static uint64_t sent_bytes(const struct rig *rig)
{
    struct zr_comm_counters counters;
    zr_comm_counters_get(rig->comm, &counters);
    return counters.sent_bytes;
}

/* Bytes that a rank sends for the gradients of a step without a warm-up. */
static uint64_t formula(const struct zr_engine *engine, const struct setting *setting)
{
    const uint64_t others = setting->world - 1, all = setting->world;
    uint64_t p = (RANK * ROWS + COLUMNS + 4 + others) / all, q = (RANK * COLUMNS + others) / all,
             count =
                 (uint64_t)ceil((double)setting->parameter * (double)engine->layout.units[0].shard_elements);
    return UNITS * others *
           (setting->method == ZR_METHOD_LOW_RANK ? 2 * sizeof(float) * (p + q)
                                                  : 8 * count * (setting->stage == 0 ? all : 1));
}

static int trains(struct rig *rig, const struct setting *setting)
{
    struct whole *w;
    struct totals *totals;
    struct zr_step_report report;
    const unsigned rank = zr_comm_rank(rig->comm);
    struct zr_engine_options options = {
        .struct_bytes = sizeof options,
        .arena = rig->arena,
        .host_arena = rig->arena,
        .kernels = kernels,
        .context = &rig->context,
        .comm = rig->comm,
        .list = {parameters, PARAMETERS, units, UNITS, 0},
        .stage = setting->stage,
        .seed = 3,
        .optimizer = {.kind = ZR_OPTIMIZER_SGD, .momentum_factor = setting->momentum, .clip = setting->clip},
        .compression = {.kinds[ZR_COMPRESSED_GRADIENTS] = {true, .method = setting->method,
                                                           .parameter = setting->parameter},
                        .warmup_steps = setting->warmup_steps}};
    const struct zr_request requests[] = {{.bytes = UNITS * sizeof *w, .tag = ZR_TAG_OTHER},
                                          {.bytes = sizeof *totals, .tag = ZR_TAG_OTHER}};
    must(zr_arena_alloc(rig->arena, &requests[0], (void **)&w) == ZR_OK);
    must(zr_arena_alloc(rig->arena, &requests[1], (void **)&totals) == ZR_OK);
    memset(w, 0, requests[0].bytes);
    memset(totals, 0, requests[1].bytes);
    must(zr_engine_create(&rig->engine, &options) == ZR_OK);
    struct zr_engine *engine = rig->engine;
    must(engine->layout.units[0].padded_elements <= MAX);
    for (unsigned u = 0; u < UNITS; u++) { /* ranks begin with the same Q */
        size_t count;
        const float *q = zr_engine_low_rank_factors(engine, u, &count);
        must(count == (setting->method == ZR_METHOD_LOW_RANK ? RANK * COLUMNS : 0));
        must(zr_comm_host_all_gather(rig->comm, q, count * sizeof *q, w->all) == ZR_OK);
        for (unsigned p = 0; p < setting->world; p++)
            must(count == 0 || memcmp(w->all + p * count, q, count * sizeof *q) == 0);
    }
    for (unsigned step = 0; step < STEPS; step++) {
        must(zr_engine_synchronize(engine) == ZR_OK); /* parameters of the step before */
        uint64_t before = sent_bytes(rig);
        for (unsigned u = 0; u < UNITS; u++) {
            void *base;
            bool accumulate;
            must(gather_errors(rig, u, &w[u], w[u].before) == 0);
            must(zr_engine_gradients(engine, u, &base, &accumulate) == ZR_OK);
            fill(engine, rank, u, step, base);
            must(zr_engine_reduce(engine, u) == ZR_OK);
        }
        must(zr_engine_synchronize(engine) == ZR_OK);
        must(step < setting->warmup_steps || sent_bytes(rig) - before == formula(engine, setting));
        for (unsigned u = 0; u < UNITS; u++) {
            int code = check_unit(rig, setting, u, step, &w[u], totals);
            if (code)
                return code;
        }
        must(zr_engine_step(engine, 1e-3f, &report) == ZR_OK);
        const struct zr_owned *owned = &engine->units[0].owned; /* the senders have applied the momentum */
        size_t owned_count = owned->to < ROWS * COLUMNS ? owned->to : ROWS * COLUMNS;
        must(setting->momentum == 0 || owned->from > 0 ||
             memcmp(owned->slots[0], w[0].mean, owned_count * sizeof(float)) == 0);
    }
    must(zr_engine_verify_replicas(engine) == ZR_OK);
    for (unsigned u = 0; u < UNITS && setting->momentum == 0 && setting->clip == 0; u++)
        for (size_t i = 0; i < engine->layout.units[u].padded_elements; i++) {
            double errors = 0;
            for (unsigned p = 0; p < setting->world; p++)
                errors += (double)w[u].after[p][i];
            must(fabs(totals->given[u][i] - totals->sent[u][i] - errors) < 1e-4);
        }
    zr_arena_free(rig->arena, totals);
    zr_arena_free(rig->arena, w);
    return 0;
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct setting *setting = argument;
    struct rig rig;
    if (rig_open(&rig, &(struct rig_options){.local = local,
                                             .rank = rank,
                                             .isa = zr_isa_best(),
                                             .precision = ZR_PRECISION_FP32,
                                             .bucket_bytes = 2048,
                                             .granule_bytes = 64 << 10,
                                             .reserve_bytes = 256 << 20,
                                             .kernels = kernels}) != ZR_OK) {
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
        return 100;
    }
    int code = trains(&rig, setting);
    return rig_close(&rig) != 0 && code == 0 ? 101 : code;
}

int main(void)
{
    static const struct setting settings[] = {
        {.method = ZR_METHOD_LOW_RANK, .parameter = RANK},
        {.method = ZR_METHOD_LOW_RANK, .warmup_steps = 2},
        {.method = ZR_METHOD_LARGEST, .parameter = 0.05f},
        {.method = ZR_METHOD_LARGEST, .parameter = 0.05f, .momentum = 0.5f, .warmup_steps = 3},
        {.method = ZR_METHOD_LARGEST, .parameter = 0.2f, .clip = 5}};
    kernels = zr_kernels_cpu(zr_isa_best());
    name_units();
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (unsigned stage = 0; stage < 4; stage++) {
            struct setting setting = settings[i];
            setting.stage = stage;
            setting.world = 2 + (unsigned)(i + stage) % 2;
            tap_is(rig_launch(setting.world, rank_main, &setting), 0,
                   "%s of %g, %u ranks, stage %u, momentum %g, clip %g, warm-up %u",
                   setting.method == ZR_METHOD_LARGEST ? "largest numbers" : "low rank",
                   (double)setting.parameter, setting.world, stage, (double)setting.momentum,
                   (double)setting.clip, (unsigned)setting.warmup_steps);
        }
    return tap_done();
}
