/* compress_test.c: packed collectives against the kernels' packing of what all ranks have, to the bit, with
 * their bytes by formula; and an engine that sends packed numbers: its parameters are the packed masters of
 * all ranks, whatever the stage, and its gradients are packed sums in rank order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/tap.h"
#include "tests/support/zero/engine_rig.h"
#include "zero/checkpoint/checkpoint_inside.h"
#include "zero/compress/compressor.h"
#include "zero/engine/errors.h"
#include "zero/engine/onebit.h"

enum { WORLD_MAX = 4, BLOCKS = 3, SHARD_MAX = BLOCKS * ZR_PACK_BLOCK, ALL = WORLD_MAX * SHARD_MAX };

struct setting {
    unsigned world, stage, node_ranks; /* node_ranks 0: gradients in one hop, no secondary shards */
    size_t shard;
    enum zr_precision precision;
    enum zr_packing packing;
    enum zr_packing between; /* of the second hop; ZR_PACKING_ONEBIT: as `packing` */
    bool differs;            /* parameters are sent as differences, gradients plainly */
    bool lamb;
    unsigned fallen; /* steps of onebit before an error above the tolerance; 0: never */
    int (*body)(struct rig *rig, const struct setting *setting);
    const char *folder; /* of errors */
    unsigned former;    /* ranks whose errors are in the folder; 0: those of this run are saved */
};

static const struct zr_kernels *kernels;

/* Values over several orders of magnitude. */
static float value_of(unsigned rank, size_t element, unsigned round)
{
    uint64_t x = (rank * UINT64_C(1000003) + element) * UINT64_C(0x9e3779b97f4a7c15) + round;
    x ^= x >> 31;
    return (float)((double)(x % 20011) / 10000 - 1) / (float)(1 + (element >> 5) % 7 * 100);
}

static zr_result take(struct rig *rig, size_t elements, void *out)
{
    return zr_arena_alloc(rig->arena,
                          &(struct zr_request){.bytes = elements * sizeof(float), .tag = ZR_TAG_OTHER}, out);
}

static zr_result narrow(struct rig *rig, const float *from, size_t n, void *to)
{
    return kernels->convert(&rig->context,
                            &(struct zr_convert){.n = n,
                                                 .from = {(void *)(uintptr_t)from, ZR_PRECISION_FP32},
                                                 .to = {to, rig->context.precision}});
}

/* What a rank has in `round`, from element `first` on, in the setting's precision. */
static zr_result fill(struct rig *rig, unsigned rank, unsigned round, size_t n, float *floats, void *to)
{
    for (size_t i = 0; i < n; i++)
        floats[i] = value_of(rank, i, round);
    return narrow(rig, floats, n, to);
}

static zr_result pack(struct rig *rig, enum zr_packing packing, size_t n, const void *from, float *error,
                      void *to)
{
    return kernels->pack(&rig->context,
                         &(struct zr_pack){.packing = packing,
                                           .n = n,
                                           .from = {(void *)(uintptr_t)from, rig->context.precision},
                                           .error = error,
                                           .to = to});
}

static zr_result unpack(struct rig *rig, const struct zr_unpack *unpack)
{
    return kernels->unpack(&rig->context, unpack);
}

/* Buffers of one rank. */
struct buffers {
    float *floats, *error, *wanted_error;
    void *source, *got, *want;
    char *packed;
};

static zr_result take_buffers(struct rig *rig, struct buffers *b)
{
    void *all[7];
    for (unsigned i = 0; i < 7; i++) {
        zr_result result = take(rig, 4 * (size_t)ALL, &all[i]);
        if (result != ZR_OK)
            return result;
        memset(all[i], 0, ALL * sizeof(float));
    }
    *b = (struct buffers){all[0], all[1], all[2], all[3], all[4], all[5], all[6]};
    return ZR_OK;
}

static void give_back(struct rig *rig, struct buffers *b)
{
    void *const all[] = {b->floats, b->error, b->wanted_error, b->source, b->got, b->want, b->packed};
    for (unsigned i = 0; i < 7; i++)
        zr_arena_free(rig->arena, all[i]);
}

static uint64_t sent_bytes(struct rig *rig, uint64_t *elements)
{
    struct zr_comm_counters counters;
    zr_comm_counters_get(rig->comm, &counters);
    *elements = counters.sent_elements;
    return counters.sent_bytes;
}

/* ---- Packed collectives -------------------------------------------------------------------------------- */

static int gathers(struct rig *rig, const struct setting *setting, struct zr_compressor *by,
                   struct buffers *b)
{
    unsigned rank = zr_comm_rank(rig->comm);
    size_t shard = setting->shard, each = zr_precision_bytes(setting->precision),
           packed = zr_pack_bytes(setting->packing, shard);
    uint64_t elements[2], before = sent_bytes(rig, &elements[0]);
    struct zr_compressed op = {.packing = setting->packing,
                               .shard_elements = shard,
                               .from = {b->source, setting->precision},
                               .to = {b->got, setting->precision},
                               .scale = 1};
    zr_ticket ticket;
    for (unsigned p = 0; p < setting->world; p++)
        must(fill(rig, p, 0, shard, b->floats, (char *)b->want + p * shard * each) == ZR_OK);
    memcpy(b->source, (char *)b->want + rank * shard * each, shard * each);
    must(zr_compressed_gather(by, &op, &ticket) == ZR_OK && zr_comm_wait(rig->comm, ticket) == ZR_OK);
    must(sent_bytes(rig, &elements[1]) - before == (setting->world - 1) * packed);
    must(elements[1] - elements[0] == (setting->world - 1) * shard);
    /* Shards of whole blocks are the packed whole. */
    bool whole = shard % ZR_PACK_BLOCK == 0;
    size_t n = whole ? setting->world * shard : shard;
    for (unsigned p = 0; p < (whole ? 1 : setting->world); p++) {
        char *at = (char *)b->want + p * shard * each;
        const void *from = b->packed;
        must(pack(rig, setting->packing, n, at, NULL, b->packed) == ZR_OK);
        must(unpack(rig, &(struct zr_unpack){.packing = setting->packing,
                                             .n = n,
                                             .from = &from,
                                             .count = 1,
                                             .scale = 1,
                                             .to = {at, setting->precision}}) == ZR_OK);
    }
    must(memcmp(b->got, b->want, setting->world * shard * each) == 0);
    return 0;
}

/* Twice, with the error of the first sum in the second one. */
static int sums(struct rig *rig, const struct setting *setting, struct zr_compressor *by, struct buffers *b)
{
    unsigned rank = zr_comm_rank(rig->comm), world = setting->world;
    size_t shard = setting->shard, each = zr_precision_bytes(setting->precision),
           packed = zr_pack_bytes(setting->packing, shard);
    for (unsigned round = 0; round < 2; round++) {
        const void *from[WORLD_MAX];
        uint64_t elements[2], before = sent_bytes(rig, &elements[0]);
        bool wide = round == 1;
        struct zr_numbers to = {b->got, wide ? ZR_PRECISION_FP32 : setting->precision};
        struct zr_compressed op = {.packing = setting->packing,
                                   .shard_elements = shard,
                                   .from = {b->source, setting->precision},
                                   .to = to,
                                   .error = b->error,
                                   .scale = 0.25f,
                                   .accumulate = wide};
        zr_ticket ticket;
        memset(b->got, 0, shard * sizeof(float));
        memset(b->want, 0, shard * sizeof(float));
        for (unsigned p = 0; p < world; p++) { /* what rank p packs for this rank, with its error for it */
            char *at = b->packed + p * packed;
            must(fill(rig, p, round, world * shard, b->floats, b->source) == ZR_OK);
            must(pack(rig, setting->packing, shard, (char *)b->source + rank * shard * each,
                      b->wanted_error + p * shard, at) == ZR_OK);
            from[p] = at;
        }
        to.at = b->want;
        must(unpack(rig, &(struct zr_unpack){.packing = setting->packing,
                                             .n = shard,
                                             .from = from,
                                             .count = world,
                                             .scale = 0.25f,
                                             .accumulate = wide,
                                             .to = to}) == ZR_OK);
        must(fill(rig, rank, round, world * shard, b->floats, b->source) == ZR_OK);
        must(zr_compressed_sum(by, &op, &ticket) == ZR_OK && zr_comm_wait(rig->comm, ticket) == ZR_OK);
        must(sent_bytes(rig, &elements[1]) - before == (world - 1) * packed);
        must(memcmp(b->got, b->want, shard * zr_precision_bytes(to.precision)) == 0);
    }
    return 0;
}

static int collectives(struct rig *rig, const struct setting *setting)
{
    struct zr_compressor by;
    struct buffers b;
    must(take_buffers(rig, &b) == ZR_OK);
    struct zr_compressor_options options = {
        .comm = rig->comm,
        .arena = rig->arena,
        .host_arena = rig->arena,
        .kernels = kernels,
        .context = &rig->context,
        .staging_bytes = zr_compressed_sum_bytes(setting->packing, setting->shard, 1, setting->world)};
    must(zr_compressor_init(&by, &options) == ZR_OK);
    int code = gathers(rig, setting, &by, &b);
    code = code ? code : sums(rig, setting, &by, &b);
    struct zr_compressed large = {.packing = setting->packing, .shard_elements = 9 * SHARD_MAX};
    must(code || zr_compressed_sum(&by, &large, NULL) == ZR_ERR_INVALID);
    zr_compressor_fini(&by);
    give_back(rig, &b);
    return code;
}

/* ---- An engine ----------------------------------------------------------------------------------------- */

enum { UNITS = 8, FROZEN = 5, STEPS = 3 };
static struct zr_parameter parameters[UNITS];
static struct zr_unit units[UNITS];

static void name_units(void)
{
    for (unsigned u = 0; u < UNITS; u++) {
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        units[u].gradient_uses = u != FROZEN;
        parameters[u] = (struct zr_parameter){
            .shape = {41, 31 + u % 2}, .unit = u, .group = ZR_GROUP_DECAY, .init_deviation = 0.1f};
        snprintf(parameters[u].name, sizeof parameters[u].name, "p%u", u);
    }
}

static const float rate = 1e-2f, beta1 = 0.9f, beta2 = 0.99f, epsilon = 1e-6f;
enum { ONEBIT_STEPS = 10, ONEBIT_WARMUP = 3, ONEBIT_UNIT = 1, ONEBIT_MAX = 2048 };

static struct zr_optimizer_options optimizer_of(const struct setting *setting)
{
    struct zr_optimizer_options options = {.beta1 = beta1, .beta2 = beta2, .epsilon = epsilon};
    if (setting->lamb) {
        options.kind = ZR_OPTIMIZER_LAMB;
        options.trust_max = 10;
        options.trust_average = 0.9f;
    }
    return options;
}

static zr_result create_engine(struct rig *rig, const struct setting *setting)
{
    const bool onebit = setting->packing == ZR_PACKING_ONEBIT, differs = setting->differs;
    return zr_engine_create(
        &rig->engine,
        &(struct zr_engine_options){
            .struct_bytes = sizeof(struct zr_engine_options),
            .arena = rig->arena,
            .host_arena = rig->arena,
            .kernels = kernels,
            .context = &rig->context,
            .comm = rig->comm,
            .list = {parameters, UNITS, units, UNITS, 0},
            .stage = setting->stage,
            .precision = setting->precision,
            .seed = 3,
            .optimizer = optimizer_of(setting),
            .compression = {.kinds = {{!onebit, .packing = setting->packing, .differences = differs},
                                      {!differs, .packing = setting->packing, .between = setting->between,
                                       .method = onebit ? ZR_METHOD_ONEBIT : ZR_METHOD_PACKED}},
                            .node_ranks = setting->node_ranks,
                            .secondary_shards = setting->node_ranks > 0,
                            .warmup_steps = ONEBIT_WARMUP,
                            .check_steps = setting->fallen,
                            .tolerance = setting->fallen ? 1e-9 : 0}});
}

static unsigned sharded; /* gathers within a node */

/* The gathered unit is the packed rounded masters of all ranks. */
static int parameters_are_packed_masters(struct rig *rig, const struct setting *setting, unsigned unit,
                                         struct buffers *b)
{
    struct zr_engine *engine = rig->engine;
    size_t shard = engine->layout.units[unit].shard_elements, n = shard * setting->world,
           each = zr_precision_bytes(setting->precision);
    const struct zr_owned *owned = &engine->units[unit].owned;
    const void *base, *from = b->packed;
    must(n <= ALL && shard % ZR_PACK_BLOCK == 0);
    must(zr_comm_host_all_gather(rig->comm, owned->master, shard * sizeof(float), b->floats) == ZR_OK);
    must(narrow(rig, b->floats, n, b->want) == ZR_OK);
    must(pack(rig, setting->packing, n, b->want, NULL, b->packed) == ZR_OK);
    must(unpack(rig, &(struct zr_unpack){.packing = setting->packing,
                                         .n = n,
                                         .from = &from,
                                         .count = 1,
                                         .scale = 1,
                                         .to = {b->want, setting->precision}}) == ZR_OK);
    for (unsigned again = 0; again < 2; again++) {
        uint64_t elements, before = sent_bytes(rig, &elements);
        must(zr_engine_gather(engine, unit, &base) == ZR_OK);
        must(memcmp(base, b->want, n * each) == 0);
        zr_engine_release(engine, unit);
        bool in_node = setting->node_ranks && again && !engine->units[unit].resident;
        must(!in_node || sent_bytes(rig, &elements) == before); /* sent by the node's communicator */
        sharded += in_node;
    }
    return 0;
}

/* Hands a unit's gradients over; its reduced shard is the unpacked sum of all ranks. */
static int gradients_are_packed_sums(struct rig *rig, const struct setting *setting, unsigned unit,
                                     unsigned step, struct buffers *b)
{
    struct zr_engine *engine = rig->engine;
    unsigned rank = zr_comm_rank(rig->comm), world = setting->world;
    size_t shard = engine->layout.units[unit].shard_elements, n = zr_parameter_elements(&parameters[unit]),
           each = zr_precision_bytes(setting->precision), packed = zr_pack_bytes(setting->packing, shard);
    const void *from[WORLD_MAX];
    void *base;
    bool accumulate;
    for (unsigned p = 0; p < world; p++) {
        memset(b->source, 0, world * shard * each);
        must(fill(rig, p, step, n, b->floats, b->source) == ZR_OK);
        from[p] = b->packed + p * packed;
        must(pack(rig, setting->packing, shard, (char *)b->source + rank * shard * each, NULL,
                  b->packed + p * packed) == ZR_OK);
    }
    unsigned count = world;
    enum zr_packing last = setting->packing;
    if (setting->node_ranks) { /* the sums of nodes, packed again */
        count = world / setting->node_ranks;
        last = setting->between != ZR_PACKING_ONEBIT ? setting->between : last;
        for (unsigned k = 0; k < count; k++) {
            char *at = b->packed + k * packed;
            must(unpack(rig, &(struct zr_unpack){.packing = setting->packing,
                                                 .n = shard,
                                                 .from = from + k * setting->node_ranks,
                                                 .count = setting->node_ranks,
                                                 .scale = 1,
                                                 .to = {b->floats, ZR_PRECISION_FP32}}) == ZR_OK);
            must(kernels->pack(&rig->context, &(struct zr_pack){.packing = last,
                                                                .n = shard,
                                                                .from = {b->floats, ZR_PRECISION_FP32},
                                                                .to = at}) == ZR_OK);
            from[k] = at;
        }
    }
    must(unpack(rig, &(struct zr_unpack){.packing = last,
                                         .n = shard,
                                         .from = from,
                                         .count = count,
                                         .scale = 1.0f / (float)world,
                                         .to = {b->want, setting->precision}}) == ZR_OK);
    must(zr_engine_gradients(engine, unit, &base, &accumulate) == ZR_OK);
    must(fill(rig, rank, step, n, b->floats, base) == ZR_OK);
    must(zr_engine_reduce(engine, unit) == ZR_OK);
    must(zr_engine_synchronize(engine) == ZR_OK);
    must(memcmp(engine->units[unit].reduced.at, b->want, shard * each) == 0);
    return 0;
}

/* As after a load: parameters are made of masters again, and a frozen unit keeps its values. */
static int publishes(struct rig *rig, const struct setting *setting, struct buffers *b)
{
    size_t bytes = rig->engine->layout.units[FROZEN].padded_elements * zr_precision_bytes(setting->precision);
    const void *base;
    for (unsigned round = 0; round < 2; round++) {
        must(zr_engine_gather(rig->engine, FROZEN, &base) == ZR_OK);
        must(round == 0 || memcmp(b->got, base, bytes) == 0);
        memcpy(b->got, base, bytes);
        zr_engine_release(rig->engine, FROZEN);
        must(round == 1 || zr_engine_publish(rig->engine, STEPS) == ZR_OK);
    }
    return parameters_are_packed_masters(rig, setting, 0, b);
}

/* A NaN makes a scale NaN; the message has the number of the rank that sent it. */
static int finds_the_sender_s_nan(struct rig *rig)
{
    struct zr_step_report report;
    for (unsigned u = 0; u < UNITS; u++) {
        float *base;
        bool accumulate;
        size_t each = zr_precision_bytes(rig->context.precision);
        if (!units[u].gradient_uses)
            continue;
        must(zr_engine_gradients(rig->engine, u, (void **)&base, &accumulate) == ZR_OK);
        memset(base, 0, zr_parameter_elements(&parameters[u]) * each);
        if (u == 3 && zr_comm_rank(rig->comm) == 2) /* not the owner */
            memset((char *)base + 700 * each, 0xff, each);
        must(zr_engine_reduce(rig->engine, u) == ZR_OK);
    }
    must(zr_engine_step(rig->engine, rate, &report) == ZR_ERR_CORRUPT);
    must(strstr(zr_last_error(), "gradient of p3 is not finite (element 700)"));
    return 0;
}

static int trains(struct rig *rig, const struct setting *setting)
{
    struct buffers b;
    struct zr_step_report report;
    must(take_buffers(rig, &b) == ZR_OK);
    must(create_engine(rig, setting) == ZR_OK);
    for (unsigned step = 0; step < STEPS; step++) {
        for (unsigned u = 0; u < UNITS; u++) {
            int code = units[u].gradient_uses ? parameters_are_packed_masters(rig, setting, u, &b) : 0;
            code = code == 0 && units[u].gradient_uses ? gradients_are_packed_sums(rig, setting, u, step, &b)
                                                       : code;
            if (code)
                return code;
        }
        must(zr_engine_step(rig->engine, 1e-2f, &report) == ZR_OK);
    }
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    int code = publishes(rig, setting, &b);
    must(!setting->node_ranks || sharded > 0);
    give_back(rig, &b);
    return code ? code : finds_the_sender_s_nan(rig);
}

/* ---- The meter ----------------------------------------------------------------------------------------- */

enum { CHECKED = 2 }; /* steps between checks: of unit 1 after two steps */

static zr_result pack_nothing(struct zr_kernel_context *context, const struct zr_pack *args)
{
    (void)context;
    memset(args->to, 0, zr_pack_bytes(args->packing, args->n));
    return ZR_OK;
}

/* The packing of rank 0 loses its numbers. All ranks find it after two steps, and send plain numbers from
 * the third step on; with the packing of all ranks right, the error is below a hundredth. */
static int falls_back(struct rig *rig, const struct setting *setting)
{
    struct buffers b;
    struct zr_step_report report;
    struct zr_compression_check check;
    struct zr_kernels wrong = *kernels;
    const bool fails = setting->fallen > 0;
    unsigned rank = zr_comm_rank(rig->comm), world = setting->world;
    wrong.pack = fails && rank == 0 ? pack_nothing : kernels->pack;
    struct zr_engine_options options = {
        .struct_bytes = sizeof options,
        .arena = rig->arena,
        .host_arena = rig->arena,
        .kernels = &wrong,
        .context = &rig->context,
        .comm = rig->comm,
        .list = {parameters, UNITS, units, UNITS, 0},
        .stage = setting->stage,
        .precision = setting->precision,
        .seed = 3,
        .optimizer = {.beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-6f},
        .compression = {.kinds = {{true, ZR_PACKING_INT8}, {true, ZR_PACKING_INT8}},
                        .node_ranks = setting->node_ranks,
                        .check_steps = CHECKED,
                        .tolerance = 0.3}};
    must(take_buffers(rig, &b) == ZR_OK && zr_engine_create(&rig->engine, &options) == ZR_OK);
    size_t shard = rig->engine->layout.units[1].shard_elements, each = zr_precision_bytes(setting->precision);
    for (unsigned step = 0; step < 2 * CHECKED; step++) {
        for (unsigned u = 0; u < UNITS; u++) {
            void *gradients, *base;
            bool accumulate;
            size_t n = zr_parameter_elements(&parameters[u]);
            if (!units[u].gradient_uses)
                continue;
            must(zr_engine_gather(rig->engine, u, (const void **)&base) == ZR_OK);
            const struct zr_owned *owned = &rig->engine->units[u].owned;
            must(narrow(rig, owned->master, shard, b.want) == ZR_OK);
            bool exact = memcmp((char *)base + rank * shard * each, b.want, shard * each) == 0;
            must(!fails || rank > 0 || step < 1 || exact == (step >= CHECKED + (setting->stage < 3)));
            zr_engine_release(rig->engine, u);
            must(zr_engine_gradients(rig->engine, u, &gradients, &accumulate) == ZR_OK);
            must(fill(rig, rank, step, n, b.floats, gradients) == ZR_OK);
            must(zr_engine_reduce(rig->engine, u) == ZR_OK);
        }
        must(zr_engine_step(rig->engine, 1e-2f, &report) == ZR_OK);
        zr_engine_get_compression_check(rig->engine, &check);
        must(check.steps == (step + 1) / CHECKED * CHECKED);
        for (unsigned kind = 0; kind < ZR_COMPRESSED_KINDS; kind++) {
            must(check.full_since[kind] == (fails && check.steps ? CHECKED : 0));
            must(step + 1 != CHECKED || (fails ? check.error[kind] > 0.3 : check.error[kind] < 0.01));
        }
    }
    must(check.sent_bytes == (fails ? 1 : 2) * (world - 1) * shard * each);
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    give_back(rig, &b);
    return 0;
}

/* ---- One bit ------------------------------------------------------------------------------------------- */

/* One unit of all ranks, in one process. */
struct simulated {
    float gradient[ONEBIT_MAX], master[ONEBIT_MAX], momentum[ONEBIT_MAX], variance[ONEBIT_MAX];
    float errors[WORLD_MAX][ONEBIT_MAX];
    float before[ONEBIT_MAX], fresh[ONEBIT_MAX], trust[2]; /* LAMB's */
    unsigned char parameters[4 * ONEBIT_MAX], gradients[WORLD_MAX][4 * ONEBIT_MAX], sum[4 * ONEBIT_MAX];
    unsigned char packed[WORLD_MAX][4 * ONEBIT_MAX];
};

static bool sends_signs(const struct setting *setting, unsigned step)
{
    return setting->packing == ZR_PACKING_ONEBIT && step >= ONEBIT_WARMUP &&
           (!setting->fallen || step < setting->fallen);
}

static int simulated_gradients(struct rig *rig, const struct setting *setting, unsigned step, size_t n,
                               size_t padded, struct simulated *all)
{
    const void *from[WORLD_MAX];
    const float scale = 1.0f / (float)setting->world;
    const struct zr_numbers to = {all->sum, setting->precision};
    for (unsigned p = 0; p < setting->world; p++) {
        memset(all->gradients[p], 0, sizeof all->gradients[p]);
        must(fill(rig, p, step, n, all->gradient, all->gradients[p]) == ZR_OK);
        from[p] = all->gradients[p];
    }
    if (!sends_signs(setting, step)) { /* the first such sum has what the signs left out */
        for (unsigned p = 0; p < setting->world; p++) {
            struct zr_numbers sum = {all->gradients[p], setting->precision},
                              wide = {all->gradient, ZR_PRECISION_FP32};
            must(kernels->convert(&rig->context, &(struct zr_convert){padded, sum, wide}) == ZR_OK);
            for (size_t i = 0; i < padded; i++)
                all->gradient[i] += all->errors[p][i];
            must(narrow(rig, all->gradient, padded, all->gradients[p]) == ZR_OK);
            memset(all->errors[p], 0, sizeof all->errors[p]);
        }
        must(kernels->sum(&rig->context, &(struct zr_sum){padded, from, setting->world, setting->precision,
                                                          scale, false, to}) == ZR_OK);
        return 0;
    }
    for (unsigned p = 0; p < setting->world; p++) {
        must(pack(rig, ZR_PACKING_ONEBIT, padded, all->gradients[p], all->errors[p], all->packed[p]) ==
             ZR_OK);
        from[p] = all->packed[p];
    }
    must(unpack(rig, &(struct zr_unpack){.packing = ZR_PACKING_ONEBIT,
                                         .n = padded,
                                         .from = from,
                                         .count = setting->world,
                                         .scale = scale,
                                         .to = to}) == ZR_OK);
    return 0;
}

static double mean_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum / (double)n;
}

/* LAMB's update of a tensor, whose sums each rank makes of its shard; lamb_test.c has their model. */
static int simulated_lamb(struct rig *rig, const struct setting *setting, const struct zr_adamw *how,
                          double fresh_correction, size_t n, size_t shard, struct simulated *all)
{
    const struct zr_optimizer_options options = optimizer_of(setting);
    const struct zr_optimizer *optimizer = zr_optimizer_with(&options, ZR_KEEPS_NOTHING);
    const bool signs = how->beta2 >= 1;
    double squares[2 * WORLD_MAX] = {0};
    const struct zr_tensor_sums sums = {.squares = squares, .parts = setting->world, .stride = 2};
    memcpy(all->before, all->momentum, sizeof all->before);
    struct zr_optimizer_call call = {.options = &options,
                                     .kernels = kernels,
                                     .context = &rig->context,
                                     .rate = how->rate,
                                     .gradient_scale = 1,
                                     .correction1 = how->correction1,
                                     .correction2 = how->correction2,
                                     .fresh_correction = (float)fresh_correction,
                                     .keeps_variance = signs};
    for (unsigned part = 0; part <= setting->world; part++) { /* last: the update of all */
        const size_t first = part < setting->world ? part * shard : 0, left = n > first ? n - first : 0;
        const float trust = part == setting->world ? optimizer->trust(&options, &sums, signs, all->trust) : 0;
        call.n = part < setting->world && shard < left ? shard : left;
        call.gradient = zr_numbers_at((struct zr_numbers){all->sum, setting->precision}, first);
        call.master = all->master + first;
        call.before = signs ? all->before + first : NULL;
        call.slots[0] = all->momentum + first;
        call.slots[1] = all->variance + first;
        call.slots[ZR_LAMB_FRESH] = all->fresh + first;
        call.trust = &trust;
        must((part < setting->world ? optimizer->sum(&call, squares + 2 * part) : optimizer->update(&call)) ==
             ZR_OK);
    }
    return 0;
}

/* What the updates of all ranks do, each with its shard. */
static int simulated_update(struct rig *rig, const struct setting *setting, unsigned step, size_t n,
                            size_t padded, struct simulated *all)
{
    bool signs = sends_signs(setting, step);
    double share = (1 - (double)beta1) / (1 + (double)beta1);
    size_t shard = padded / setting->world;
    for (size_t first = 0; signs && step == ONEBIT_WARMUP && first < padded; first += ZR_PACK_BLOCK) {
        double block = mean_of(all->variance + first, ZR_PACK_BLOCK),
               whole = mean_of(all->variance + first / shard * shard, shard);
        float least = (float)(share * share * (block > 0 ? block : whole));
        for (size_t i = first; i < first + ZR_PACK_BLOCK; i++)
            all->variance[i] = all->variance[i] > least ? all->variance[i] : least;
    }
    double settled = signs                                      ? ONEBIT_WARMUP
                     : !setting->fallen || step < ONEBIT_WARMUP ? step + 1
                                                                : ONEBIT_WARMUP + step + 1 - setting->fallen;
    const struct zr_adamw how = {.rate = rate,
                                 .beta1 = beta1,
                                 .beta2 = signs ? 1 : beta2,
                                 .epsilon = epsilon,
                                 .gradient_scale = 1,
                                 .correction1 = (float)(1 - pow(beta1, step + 1)),
                                 .correction2 = (float)(1 - pow(beta2, settled))};
    if (signs && step == ONEBIT_WARMUP)
        memcpy(all->fresh, all->variance, sizeof all->fresh);
    if (setting->lamb)
        must(simulated_lamb(rig, setting, &how, 1 - pow(beta2, step + 1), n, shard, all) == 0);
    else
        must(kernels->update_adamw(&rig->context,
                                   &(struct zr_update_adamw){how,
                                                             {.n = n,
                                                              .gradient = {all->sum, setting->precision},
                                                              .master = all->master,
                                                              .momentum = all->momentum,
                                                              .variance = all->variance}}) == ZR_OK);
    if (!signs && setting->packing == ZR_PACKING_ONEBIT) {
        must(narrow(rig, all->master, padded, all->parameters) == ZR_OK);
        return 0;
    }
    const void *from = all->packed[0];
    const struct zr_numbers replica = {all->parameters, setting->precision};
    must(kernels->pack(&rig->context, &(struct zr_pack){.packing = setting->packing,
                                                        .n = padded,
                                                        .from = {all->master, ZR_PRECISION_FP32},
                                                        .minus = replica,
                                                        .to = all->packed[0]}) == ZR_OK);
    must(unpack(rig, &(struct zr_unpack){setting->packing, padded, &from, 1, 1, true, replica}) == ZR_OK);
    return 0;
}

/* Ten steps of an engine have the bits of the simulated ranks, and send the bytes of the formula: of onebit,
 * or of packed differences of parameters and plain gradients. */
static int onebit_trains(struct rig *rig, const struct setting *setting)
{
    struct simulated *all;
    struct zr_step_report report;
    unsigned rank = zr_comm_rank(rig->comm);
    must(create_engine(rig, setting) == ZR_OK);
    struct zr_engine *engine = rig->engine;
    size_t shard = engine->layout.units[ONEBIT_UNIT].shard_elements, padded = shard * setting->world,
           n = zr_parameter_elements(&parameters[ONEBIT_UNIT]), each = zr_precision_bytes(setting->precision);
    must(padded <= ONEBIT_MAX && take(rig, sizeof *all / sizeof(float), &all) == ZR_OK);
    memset(all, 0, sizeof *all);
    must(zr_comm_host_all_gather(rig->comm, engine->units[ONEBIT_UNIT].owned.master, shard * sizeof(float),
                                 all->master) == ZR_OK);
    must(narrow(rig, all->master, padded, all->parameters) == ZR_OK);
    for (unsigned step = 0; step < ONEBIT_STEPS; step++) {
        uint64_t elements[2], before = sent_bytes(rig, &elements[0]);
        for (unsigned u = 0; u < UNITS; u++) {
            void *base;
            bool accumulate;
            if (!units[u].gradient_uses)
                continue;
            must(zr_engine_gradients(engine, u, &base, &accumulate) == ZR_OK);
            must(fill(rig, rank, step, zr_parameter_elements(&parameters[u]), all->gradient, base) == ZR_OK);
            must(zr_engine_reduce(engine, u) == ZR_OK);
        }
        must(zr_engine_step(engine, rate, &report) == ZR_OK && zr_engine_synchronize(engine) == ZR_OK);
        const uint64_t sums = setting->lamb ? 4 * (UNITS - 1) * (setting->world - 1) : 0;
        uint64_t bytes = sent_bytes(rig, &elements[1]) - before - sums * sizeof(float),
                 count = elements[1] - elements[0] - sums;
        must(bytes == (setting->packing != ZR_PACKING_ONEBIT
                           ? zr_pack_bytes(setting->packing, count / 2) + count / 2 * each
                       : sends_signs(setting, step) ? zr_pack_bytes(ZR_PACKING_ONEBIT, count)
                                                    : count * each));
        int code = simulated_gradients(rig, setting, step, n, padded, all);
        code = code ? code : simulated_update(rig, setting, step, n, padded, all);
        if (code)
            return code;
        const struct zr_unit_state *state = &engine->units[ONEBIT_UNIT];
        size_t from = rank * shard, mine = n < from ? 0 : n - from < shard ? n - from : shard;
        must(memcmp(state->whole, all->parameters, n * each) == 0);
        must(memcmp(state->owned.master, all->master + from, mine * sizeof(float)) == 0);
        must(memcmp(state->owned.slots[1], all->variance + from, mine * sizeof(float)) == 0);
        must(!setting->lamb || memcmp(state->owned.slots[ZR_LAMB_TRUST], all->trust, sizeof all->trust) == 0);
        must(!engine->errors ||
             memcmp(zr_engine_errors(engine, ONEBIT_UNIT), all->errors[rank], padded * sizeof(float)) == 0);
    }
    must(zr_engine_verify_replicas(engine) == ZR_OK);
    zr_arena_free(rig->arena, all);
    return 0;
}

/* ---- One bit at stage 0 -------------------------------------------------------------------------------- */

enum { UNSEEN = 10 }; /* numbers without gradients in the warm-up */

struct followed {
    float gradient[ONEBIT_MAX], momentum[ONEBIT_MAX], master[ONEBIT_MAX], variance[ONEBIT_MAX];
    float errors[WORLD_MAX * ONEBIT_MAX], owned[ONEBIT_MAX];
    double moved[ONEBIT_MAX], received[ONEBIT_MAX]; /* sums of the ranks' mean momentum / of what they got */
    unsigned char narrow[4 * ONEBIT_MAX];
};

/* One step of all units. The norm of steps that send momentum is that of the ranks' mean square. */
static int step_once(struct rig *rig, const struct setting *setting, unsigned step, struct followed *all)
{
    struct zr_step_report report;
    double squares = 0;
    for (unsigned u = 0; u < UNITS; u++)
        for (unsigned p = 0; p < setting->world && units[u].gradient_uses; p++)
            for (size_t i = 0; i < zr_parameter_elements(&parameters[u]); i++)
                squares += pow((double)value_of(p, i, step), 2) / setting->world;
    for (unsigned u = 0; u < UNITS; u++) {
        void *base;
        bool accumulate;
        if (!units[u].gradient_uses)
            continue;
        must(zr_engine_gradients(rig->engine, u, &base, &accumulate) == ZR_OK);
        must(fill(rig, zr_comm_rank(rig->comm), step, zr_parameter_elements(&parameters[u]), all->gradient,
                  base) == ZR_OK);
        if (step < ONEBIT_WARMUP)
            memset(base, 0, UNSEEN * zr_precision_bytes(rig->context.precision));
        must(zr_engine_reduce(rig->engine, u) == ZR_OK);
    }
    must(zr_engine_step(rig->engine, rate, &report) == ZR_OK && zr_engine_synchronize(rig->engine) == ZR_OK);
    must(step < ONEBIT_WARMUP || fabs(report.gradient_norm / sqrt(squares) - 1) < 1e-3);
    return 0;
}

/* What the ranks got and their errors are what their gradients have moved the momentum by. */
static int sums_are_kept(struct rig *rig, const struct setting *setting, unsigned step, size_t n,
                         struct followed *all)
{
    struct zr_engine *engine = rig->engine;
    const float *momentum = engine->units[ONEBIT_UNIT].owned.slots[0];
    size_t shard = engine->layout.units[ONEBIT_UNIT].shard_elements, padded = shard * setting->world;
    for (unsigned p = 0; p < setting->world; p++) {
        const struct zr_convert back = {
            n, {all->narrow, setting->precision}, {all->gradient, ZR_PRECISION_FP32}};
        must(fill(rig, p, step, n, all->gradient, all->narrow) == ZR_OK);
        must(kernels->convert(&rig->context, &back) == ZR_OK);
        for (size_t i = UNSEEN; i < n; i++)
            all->moved[i] +=
                ((double)beta1 * (double)all->momentum[i] + (1 - (double)beta1) * (double)all->gradient[i]) /
                setting->world;
    }
    must(zr_comm_host_all_gather(rig->comm, zr_engine_errors(engine, ONEBIT_UNIT), padded * sizeof(float),
                                 all->errors) == ZR_OK);
    must(zr_comm_host_all_gather(rig->comm, zr_engine_owner_errors(engine, ONEBIT_UNIT),
                                 shard * sizeof(float), all->owned) == ZR_OK);
    for (size_t i = 0; i < padded; i++) {
        double sum = (double)all->owned[i];
        all->received[i] += (double)momentum[i];
        for (unsigned p = 0; p < setting->world; p++)
            sum += (double)all->errors[p * padded + i] / setting->world;
        must(fabs(all->received[i] + sum - all->moved[i]) < 1e-5);
        must(i >= UNSEEN || (momentum[i] == 0 && sum == 0)); /* padding too, which nothing moves */
    }
    return 0;
}

static int momentum_trains(struct rig *rig, const struct setting *setting)
{
    struct followed *all;
    must(create_engine(rig, setting) == ZR_OK && take(rig, sizeof *all / sizeof(float), &all) == ZR_OK);
    memset(all, 0, sizeof *all);
    const struct zr_unit_state *state = &rig->engine->units[ONEBIT_UNIT];
    const struct zr_owned *owned = &state->owned;
    size_t n = zr_parameter_elements(&parameters[ONEBIT_UNIT]), each = zr_precision_bytes(setting->precision);
    for (unsigned step = 0; step < ONEBIT_STEPS; step++) {
        uint64_t elements[2], before = sent_bytes(rig, &elements[0]);
        memcpy(all->momentum, owned->slots[0], n * sizeof(float));
        memcpy(all->master, owned->master, n * sizeof(float));
        memcpy(all->variance, owned->slots[1], n * sizeof(float));
        int code = step_once(rig, setting, step, all);
        uint64_t bytes = sent_bytes(rig, &elements[1]) - before, count = elements[1] - elements[0];
        must(bytes == (step < ONEBIT_WARMUP ? count * each : zr_pack_bytes(ZR_PACKING_ONEBIT, count)));
        code = code || step < ONEBIT_WARMUP ? code : sums_are_kept(rig, setting, step, n, all);
        if (code || step < ONEBIT_WARMUP) {
            must(code == 0);
            continue;
        }
        for (size_t first = 0; step == ONEBIT_WARMUP && first < n; first += ZR_PACK_BLOCK) {
            double squares = 0;
            for (size_t i = first; i < first + ZR_PACK_BLOCK; i++)
                squares += (double)all->momentum[i] * (double)all->momentum[i];
            float least = (float)(squares / ZR_PACK_BLOCK);
            for (size_t i = first; i < first + ZR_PACK_BLOCK; i++)
                if (all->variance[i] > 0 && all->variance[i] < least)
                    all->variance[i] = least;
        }
        must(memcmp(owned->slots[1], all->variance, n * sizeof(float)) == 0);
        memcpy(all->momentum, owned->slots[0], n * sizeof(float));
        const struct zr_adamw how = {.rate = rate,
                                     .beta1 = 1,
                                     .beta2 = 1,
                                     .epsilon = epsilon,
                                     .gradient_scale = 1,
                                     .correction1 = (float)(1 - pow(beta1, step + 1)),
                                     .correction2 = (float)(1 - pow(beta2, ONEBIT_WARMUP))};
        const struct zr_update numbers = {.n = n,
                                          .gradient = {all->momentum, ZR_PRECISION_FP32},
                                          .master = all->master,
                                          .momentum = all->momentum,
                                          .variance = all->variance};
        must(kernels->update_adamw(&rig->context, &(struct zr_update_adamw){how, numbers}) == ZR_OK);
        must(memcmp(owned->master, all->master, n * sizeof(float)) == 0);
        must(narrow(rig, all->master, n, all->narrow) == ZR_OK);
        must(memcmp(state->whole, all->narrow, n * each) == 0);
    }
    must(zr_engine_verify_replicas(rig->engine) == ZR_OK);
    zr_arena_free(rig->arena, all);
    return 0;
}

/* Errors of another number of ranks: rank r adds those of the ranks r, r + world .. */
static int errors_move(struct rig *rig, const struct setting *setting)
{
    unsigned rank = zr_comm_rank(rig->comm), former = setting->former;
    must(create_engine(rig, setting) == ZR_OK);
    rig->engine->steps_done = ONEBIT_WARMUP + 1;
    must(former == 0 || zr_errors_load(rig->engine, setting->folder, 7, true) == ZR_OK);
    for (unsigned u = 0; u < UNITS; u++) {
        float *errors = zr_engine_errors(rig->engine, u);
        for (size_t i = 0; units[u].gradient_uses && i < zr_parameter_elements(&parameters[u]); i++) {
            float sum = 0;
            for (unsigned r = rank; r < (former ? former : rank + 1); r += setting->world)
                sum += value_of(r, i, u);
            must(former == 0 || errors[i] == sum);
            errors[i] = sum;
        }
        size_t shard = rig->engine->layout.units[u].shard_elements;
        for (size_t i = 0; setting->stage == 0 && units[u].gradient_uses && i < shard; i++) {
            bool used = rank * shard + i < zr_parameter_elements(&parameters[u]);
            float *own = &zr_engine_owner_errors(rig->engine, u)[i],
                  want = used ? value_of(9, rank * shard + i, u) : 0; /* of each element, one */
            must(former == 0 || *own == want);
            *own = want;
        }
    }
    return former == 0 && zr_errors_save(rig->engine, setting->folder, 7) != ZR_OK ? 50 : 0;
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct setting *setting = argument;
    struct rig rig;
    if (rig_open(&rig, &(struct rig_options){.local = local,
                                             .rank = rank,
                                             .isa = zr_isa_best(),
                                             .precision = setting->precision,
                                             .bucket_bytes = 2048,
                                             .granule_bytes = 64 << 10,
                                             .reserve_bytes = 256 << 20,
                                             .kernels = kernels}) != ZR_OK) {
        fprintf(stderr, "# rank %u: %s\n", rank, zr_last_error());
        return 100;
    }
    int code = setting->body(&rig, setting);
    return rig_close(&rig) != 0 && code == 0 ? 101 : code;
}

static void run(struct setting setting, const char *what)
{
    tap_is(rig_launch(setting.world, rank_main, &setting), 0, "%u ranks, %s, %s%s%s", setting.world,
           zr_precision_name(setting.precision), zr_packing_name(setting.packing), what[0] ? ", " : "", what);
}

int main(void)
{
    static const size_t shards[] = {SHARD_MAX, ZR_PACK_BLOCK, 77};
    kernels = zr_kernels_cpu(zr_isa_best());
    name_units();
    for (unsigned packing = 0; packing < ZR_PACKINGS_COUNT; packing++)
        for (unsigned i = 0; i < 3; i++)
            run((struct setting){.world = 2 + i,
                                 .shard = shards[i],
                                 .precision = (enum zr_precision)i,
                                 .packing = (enum zr_packing)packing,
                                 .body = collectives},
                "collectives");
    for (unsigned stage = 1; stage <= 3; stage++)
        for (unsigned precision = 0; precision < 2; precision++)
            run((struct setting){.world = 3,
                                 .stage = stage,
                                 .precision = (enum zr_precision)precision,
                                 .packing = stage == 2 ? ZR_PACKING_INT4 : ZR_PACKING_INT8,
                                 .body = trains},
                stage == 1   ? "stage 1"
                : stage == 2 ? "stage 2"
                             : "stage 3");
    for (unsigned precision = 0; precision < 2; precision++)
        run((struct setting){.world = 4,
                             .stage = 3,
                             .node_ranks = 2,
                             .precision = (enum zr_precision)precision,
                             .packing = precision ? ZR_PACKING_INT8 : ZR_PACKING_INT4,
                             .between = precision ? ZR_PACKING_INT4_ROTATED : ZR_PACKING_ONEBIT,
                             .body = trains},
            "two nodes");
    for (unsigned i = 0; i < 8; i++)
        run((struct setting){.world = i < 6 ? 3 : 4,
                             .stage = 1 + i % 3,
                             .node_ranks = i < 6 ? 0 : 2,
                             .precision = (enum zr_precision)(i % 2),
                             .packing = ZR_PACKING_INT8,
                             .fallen = i != 3,
                             .body = falls_back},
            i == 3 ? "an error below the tolerance" : "an error above the tolerance ends packing");
    for (unsigned i = 0; i < 2; i++)
        run((struct setting){.world = 3,
                             .stage = 1,
                             .precision = (enum zr_precision)i,
                             .packing = ZR_PACKING_INT4,
                             .differs = true,
                             .body = onebit_trains},
            "differences of parameters, ten steps at stage 1");
    for (unsigned i = 0; i < 2; i++)
        run((struct setting){.world = 2 + i,
                             .stage = 1,
                             .fallen = 6 * i,
                             .lamb = true,
                             .precision = (enum zr_precision)i,
                             .packing = ZR_PACKING_ONEBIT,
                             .body = onebit_trains},
            "ten steps of LAMB at stage 1");
    for (unsigned i = 0; i < 6; i++)
        run((struct setting){.world = 2 + i / 2 % 2,
                             .stage = 1,
                             .fallen = i < 4 ? 0 : 6,
                             .precision = (enum zr_precision)(i % 2),
                             .packing = ZR_PACKING_ONEBIT,
                             .body = onebit_trains},
            i < 4 ? "ten steps at stage 1" : "six steps, then full precision");
    for (unsigned i = 0; i < 4; i++) {
        const unsigned former = 2 + i / 2 * 2;
        char folder[] = "/tmp/zr-compress-XXXXXX", path[64];
        struct setting setting = {former, .stage = i % 2, .packing = ZR_PACKING_ONEBIT, .body = errors_move};
        setting.folder = mkdtemp(folder);
        run(setting, "errors are saved");
        setting.world = 3;
        setting.former = former;
        run(setting, former == 2 ? "the sums of two ranks' errors are kept" : "of four");
        for (unsigned r = 0; r < former; r++) {
            snprintf(path, sizeof path, "%s/errors.%05u", folder, r);
            unlink(path);
        }
        rmdir(folder);
    }
    for (unsigned i = 0; i < 4; i++)
        run((struct setting){.world = 2 + i % 3,
                             .stage = 0,
                             .precision = (enum zr_precision)(i % 2),
                             .packing = ZR_PACKING_ONEBIT,
                             .body = momentum_trains},
            "ten steps at stage 0");
    return tap_done();
}
