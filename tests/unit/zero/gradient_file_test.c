/* gradient_file_test.c: shards of gradients that wait in the offload file: both passes and single reads find
 * what was reduced, whatever order and however slow the disk is; which units go there, and where their
 * extents lie; failures of the disk have words and leave nothing. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/fault.h"
#include "alloc/base/system/os.h"
#include "tests/support/folder.h"
#include "tests/support/tap.h"
#include "tests/support/zero/engine_rig.h"
#include "zero/engine/gradients.h"

enum { UNITS = 10, BLOCK = 4096 };
static struct zr_parameter parameters[UNITS];
static struct zr_unit units[UNITS];
static char folder[] = "/tmp/zr-gradients-XXXXXX";

/* Unit 0 has two gradients in a step; unit 3 is so large that all others have room in staging beside it. */
static void make_list(void)
{
    for (unsigned u = 0; u < UNITS; u++) {
        units[u].gradient_uses = u == 0 ? 2 : 1;
        snprintf(units[u].name, sizeof units[u].name, "u%u", u);
        parameters[u] =
            (struct zr_parameter){.shape = {u == 3 ? 600 : 3 + u, 47}, .unit = u, .init_deviation = 0.1f};
        snprintf(parameters[u].name, sizeof parameters[u].name, "u%u.weight", u);
    }
}

struct plan {
    unsigned world, stage, micro_batches;
    enum zr_precision precision;
    bool scattered, delayed;
    unsigned filed; /* units in the file */
};
static const struct plan plans[] = {{1, 0, 1, ZR_PRECISION_FP32, false, false, UNITS - 1},
                                    {1, 3, 1, ZR_PRECISION_BF16, false, false, UNITS - 1},
                                    {2, 1, 1, ZR_PRECISION_FP32, false, false, UNITS - 1},
                                    {3, 2, 1, ZR_PRECISION_BF16, false, false, UNITS - 1},
                                    {2, 2, 2, ZR_PRECISION_BF16, false, false, 0},
                                    {1, 0, 1, ZR_PRECISION_BF16, true, false, 0},
                                    {2, 1, 1, ZR_PRECISION_FP32, false, true, 0}};

/* A clock that goes a second each time that it is read: a transfer that stalls does so for some ten looks.
 * Whoever asks meanwhile for the times of a delayed update is not told of more than there was. */
static const zr_engine *timed;
static _Atomic bool mistold;
static uint64_t hasty_clock(void)
{
    static _Atomic uint64_t now_ns;
    struct zr_delayed_report delayed = {0};
    if (timed)
        zr_engine_get_delayed_report(timed, &delayed);
    mistold |= delayed.computing_seconds > 1e6;
    return now_ns += 1000000000;
}

/* ---- Gradients ----------------------------------------------------------------------------------------- */

/* Eighths, of which sums are exact in two bytes, and so is the mean of equal ones. */
static float value_of(unsigned step, unsigned unit, size_t i)
{
    return (float)((i * 7 + unit * 13 + step * 5) % 61) / 8;
}

static void put(void *base, size_t at, enum zr_precision precision, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (precision == ZR_PRECISION_FP32)
        ((float *)base)[at] = value;
    else
        ((uint16_t *)base)[at] = (uint16_t)(bits >> 16);
}

static zr_result backward(zr_engine *engine, const struct plan *plan, unsigned step)
{
    zr_result result = ZR_OK;
    for (unsigned use = 0; use < (UNITS + 1) * plan->micro_batches && result == ZR_OK; use++) {
        unsigned unit = use % (UNITS + 1) == 0 ? 0 : UNITS - use % (UNITS + 1);
        void *base;
        bool adds;
        result = zr_engine_gradients(engine, unit, &base, &adds);
        for (size_t i = 0; result == ZR_OK && i < zr_parameter_elements(&parameters[unit]); i++)
            put(base, zr_engine_offset(engine, unit) + i, plan->precision, value_of(step, unit, i));
        if (result == ZR_OK)
            result = zr_engine_reduce(engine, unit);
    }
    return result;
}

/* Whether a unit that is in the file has in memory what its ranks were given; others are not looked at. */
static bool is_there(const zr_engine *engine, const struct plan *plan, unsigned step, unsigned unit)
{
    const struct zr_layout_unit *u = &engine->layout.units[unit];
    size_t count = zr_parameter_elements(&parameters[unit]), from = engine->rank * u->shard_elements;
    struct zr_numbers shard = engine->units[unit].reduced;
    if (engine->units[unit].place != &zr_gradients_filed)
        return true;
    for (size_t i = 0; i < u->shard_elements; i++) {
        float want = 0, is = 0;
        put(&want, 0, plan->precision, from + i < count ? value_of(step, unit, from + i) : 0);
        memcpy(&is, zr_numbers_at(shard, i).at, zr_precision_bytes(plan->precision));
        if (memcmp(&is, &want, zr_precision_bytes(plan->precision)) != 0)
            return false;
    }
    return true;
}

/* A pass over all; and single ones, in another order. */
static int find_them(zr_engine *engine, const struct plan *plan, unsigned step)
{
    unsigned wrong = 0;
    must(zr_engine_gradients_begin(engine) == ZR_OK);
    for (unsigned u = 0; u < UNITS; u++) {
        must(zr_gradient_do(engine->units[u].place->take, engine, u) == ZR_OK);
        wrong += !is_there(engine, plan, step, u);
        must(zr_gradient_do(engine->units[u].place->give, engine, u) == ZR_OK);
    }
    must(zr_engine_gradients_end(engine) == ZR_OK);
    for (unsigned i = 0; i < UNITS; i++) {
        unsigned u = i * 7 % UNITS;
        must(zr_gradient_do(engine->units[u].place->fetch, engine, u) == ZR_OK);
        wrong += !is_there(engine, plan, step, u);
    }
    must(wrong == 0);
    return 0;
}

/* Extents in whole blocks behind the store's, none over another; three slots of the largest. */
static int check_places(const zr_engine *engine, const struct plan *plan)
{
    const struct zr_gradient_file *file = &engine->gradient_file;
    uint64_t end = zr_state_file_base(&engine->state_tier->store);
    size_t largest = 0;
    unsigned filed = 0;
    for (unsigned u = 0; u < UNITS; u++) {
        size_t bytes = engine->layout.units[u].shard_elements * engine->gradient_bytes;
        bytes = engine->units[u].place == &zr_gradients_filed ? (bytes + BLOCK - 1) / BLOCK * BLOCK : 0;
        must(file->extents[u].bytes == bytes);
        must(!file->placed || file->extents[u].offset_bytes == end);
        end += bytes;
        largest = bytes > largest ? bytes : largest;
        filed += bytes > 0;
    }
    must(filed == plan->filed && file->placed == (filed > 0));
    must(file->slot_bytes == largest && file->bytes == end - zr_state_file_base(&engine->state_tier->store));
    return 0;
}

/* ---- An engine ----------------------------------------------------------------------------------------- */

struct opened {
    struct rig rig;
    zr_arena *host;
    struct zr_offload_file file;
};

static zr_result open_rank(struct opened *out, struct zr_local_world *local, unsigned rank,
                           const struct plan *plan)
{
    zr_result result = rig_open(&out->rig, &(struct rig_options){.local = local,
                                                                 .rank = rank,
                                                                 .isa = ZR_ISA_PLAIN,
                                                                 .precision = plan->precision,
                                                                 .bucket_bytes = 4096,
                                                                 .granule_bytes = 64 << 10,
                                                                 .reserve_bytes = 64 << 20,
                                                                 .kernels = zr_kernels_cpu(ZR_ISA_PLAIN)});
    out->file = (struct zr_offload_file){.folder = folder, .force = true, .depth = 4};
    return result != ZR_OK
               ? result
               : zr_arena_create(&out->host, &(struct zr_arena_options){.backend = out->rig.backend,
                                                                        .reserve_bytes = 64 << 20});
}

static zr_result open_engine(struct opened *opened, const struct plan *plan)
{
    struct rig *rig = &opened->rig;
    return zr_engine_create(
        &rig->engine,
        &(struct zr_engine_options){
            .struct_bytes = sizeof(struct zr_engine_options),
            .arena = rig->arena,
            .host_arena = rig->arena,
            .kernels = rig->kernels,
            .context = &rig->context,
            .comm = rig->comm,
            .list = {parameters, UNITS, units, UNITS},
            .stage = plan->stage,
            .micro_batches = plan->micro_batches,
            .precision = plan->precision,
            .optimizer = {.kind = ZR_OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f},
            .scattered_gradients = plan->scattered,
            .offload = {
                .host = opened->host, .optimizer = true, .file = &opened->file, .delayed = plan->delayed}});
}

static int close_rank(struct opened *opened)
{
    size_t leaked = 1;
    zr_engine_destroy(opened->rig.engine);
    opened->rig.engine = NULL;
    must(zr_arena_destroy(opened->host, &leaked) == ZR_OK && leaked == 0);
    must(rig_close(&opened->rig) == 0);
    return 0;
}

/* A step and its delayed update, whose first read stalls: that is the update's waiting, and not its
 * computing. */
static int time_update(zr_engine *engine)
{
    struct zr_step_report report;
    struct zr_delayed_report delayed;
    timed = engine;
    zr_os_clock_set(hasty_clock);
    zr_fault_set(ZR_FAULT_DISK_STALL, 1);
    zr_result result = zr_engine_step(engine, 0.01f, &report);
    if (result == ZR_OK)
        result = zr_engine_synchronize(engine);
    zr_fault_set(ZR_FAULT_DISK_STALL, 0);
    zr_os_clock_set(NULL);
    zr_engine_get_delayed_report(engine, &delayed);
    must(result == ZR_OK && delayed.waiting_seconds >= 1);
    must(delayed.computing_seconds >= 1 && delayed.computing_seconds < 1e6 && !mistold);
    timed = NULL;
    return 0;
}

static int go_through(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    struct zr_step_report report;
    struct opened opened;
    must(open_rank(&opened, local, rank, plan) == ZR_OK && open_engine(&opened, plan) == ZR_OK);
    zr_engine *engine = opened.rig.engine;
    for (unsigned step = 0; step < 3; step++) {
        if (plan->world == 1 && step == 0) { /* the first write, or the last, which goes to the last slot */
            zr_os_clock_set(hasty_clock);
            zr_fault_set(ZR_FAULT_DISK_STALL, plan->stage == 0 ? 1 : UNITS - 1);
        }
        must(backward(engine, plan, step) == ZR_OK);
        for (unsigned u = UNITS; u-- > 0;)
            must(zr_engine_end_reduction(engine, u) == ZR_OK);
        must(find_them(engine, plan, step) == 0);
        zr_fault_set(ZR_FAULT_DISK_STALL, 0);
        zr_os_clock_set(NULL);
        if (plan->delayed && step == 0)
            must(time_update(engine) == 0);
        else
            must(zr_engine_step(engine, 0.01f, &report) == ZR_OK && !report.skipped);
        must(check_places(engine, plan) == 0);
    }
    must(folder_entries(folder) == 0);
    return close_rank(&opened);
}

static int fail_everywhere(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct plan *plan = argument;
    const enum zr_fault_site sites[] = {ZR_FAULT_DISK_READ, ZR_FAULT_DISK_WRITE};
    for (unsigned s = 0; s < 2; s++) {
        unsigned failures = 0;
        for (bool clean = false; !clean; failures += !clean) {
            struct zr_step_report report;
            struct opened opened;
            must(open_rank(&opened, local, rank, plan) == ZR_OK && open_engine(&opened, plan) == ZR_OK);
            zr_fault_set(sites[s], failures + 1);
            zr_result result = backward(opened.rig.engine, plan, 0);
            if (result == ZR_OK)
                result = zr_engine_step(opened.rig.engine, 0.01f, &report);
            clean = result == ZR_OK;
            must(clean || (result == ZR_ERR_IO && strstr(zr_last_error(), folder)));
            zr_fault_set(sites[s], 0);
            must(close_rank(&opened) == 0);
        }
        must(failures >= UNITS - 1); /* at least one for each that is in the file */
    }
    return 0;
}

int main(void)
{
    alarm(120);
    make_list();
    if (!tap_ok(mkdtemp(folder) != NULL, "a folder"))
        return tap_done();
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        struct plan plan = plans[i];
        tap_is(rig_launch(plan.world, go_through, &plan), 0,
               "%u ranks, stage %u, %s, %u micro-batches%s%s: %u of %u units in the file, and back",
               plan.world, plan.stage, zr_precision_name(plan.precision), plan.micro_batches,
               plan.scattered ? ", scattered" : "", plan.delayed ? ", delayed" : "", plan.filed, UNITS);
    }
    struct plan plan = plans[1];
    tap_is(rig_launch(1, fail_everywhere, &plan), 0, "the disk fails at each place: words, and nothing left");
    tap_is(folder_entries(folder), 0, "nothing is left in the folder");
    rmdir(folder);
    return tap_done();
}
