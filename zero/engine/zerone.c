/* zerone.c: see zerone.h. */
#include "zero/engine/zerone.h"

#include <string.h>

#include "zero/engine/actions.h"

enum { MOMENTUM }; /* slot of AdamW */

/* ---- The schedule -------------------------------------------------------------------------------------- */

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

struct zr_zerone_counts zr_zerone_counts(const struct zr_compression *how, uint64_t steps)
{
    const uint64_t moving = smaller(steps, how->warmup_steps), fixed = steps - moving;
    struct zr_zerone_counts out = {0};
    for (uint64_t begin = 0, interval = 1, count; begin < moving; begin += count, interval *= 2) {
        count = smaller(moving - begin, how->zerone.variance_updates * interval);
        out.full += count / interval;
    }
    out.sent = moving - out.full;
    for (uint64_t begin = 0, interval = 1, end; begin < fixed; begin = end, interval *= 2) {
        bool last = interval >= how->zerone.interval_max;
        interval = last ? how->zerone.interval_max : interval;
        end = last ? fixed : smaller(fixed, begin + how->zerone.local_steps);
        out.sent += end / interval - begin / interval;
    }
    out.local = steps - out.full - out.sent;
    return out;
}

static struct zr_zerone_counts counts(const struct zr_engine *engine, uint64_t steps)
{
    return zr_zerone_counts(&engine->options.compression, steps);
}

bool zr_engine_was_full(const struct zr_engine *engine)
{
    uint64_t steps = engine->steps_done;
    return steps > 0 && counts(engine, steps).full > counts(engine, steps - 1).full;
}

bool zr_engine_is_full(const struct zr_engine *engine)
{
    return zr_engine_is_zerone(engine) && !engine->simulated &&
           counts(engine, engine->steps_done + 1).full > counts(engine, engine->steps_done).full;
}

bool zr_engine_is_local(const struct zr_engine *engine)
{
    return zr_engine_is_zerone(engine) && !engine->simulated &&
           counts(engine, engine->steps_done + 1).local > counts(engine, engine->steps_done).local;
}

uint64_t zr_engine_variance_updates(const struct zr_engine *engine)
{
    return counts(engine, engine->steps_done + 1).full;
}

/* ---- Local steps --------------------------------------------------------------------------------------- */

float *zr_engine_anchor(const struct zr_engine *engine, size_t unit)
{
    return engine->anchors + engine->layout.units[unit].pool_offset;
}

float *zr_engine_buffer(const struct zr_engine *engine, size_t unit)
{
    return zr_engine_anchor(engine, unit) + engine->layout.pool_elements;
}

/* The weight of the step's momentum: its update is the rate times momentum / correction. */
static double weight_of(const struct zr_engine_run *run)
{
    return (double)run->rate / (double)run->update.correction1;
}

/* Whether the anchor and the buffer have numbers. */
static bool has_anchor(const struct zr_engine *engine)
{
    return (float)engine->local.weights > 0;
}

void zr_engine_local_keep(const struct zr_engine_run *run, size_t unit)
{
    const struct zr_engine *engine = run->engine;
    const struct zr_owned *owned = &engine->units[unit].owned;
    const float *momentum = owned->slots[MOMENTUM];
    const float weight = (float)weight_of(run);
    size_t n = owned->to - owned->from;
    float *buffer = zr_engine_buffer(engine, unit);
    const bool adds = has_anchor(engine);
    if (!adds)
        memcpy(zr_engine_anchor(engine, unit), owned->master, n * sizeof *buffer);
    for (size_t i = 0; i < n; i++)
        buffer[i] = (adds ? buffer[i] : 0) + weight * momentum[i];
}

void zr_engine_local_mean(const struct zr_engine_run *run, size_t unit)
{
    const struct zr_engine *engine = run->engine;
    const struct zr_owned *owned = &engine->units[unit].owned;
    float *momentum = owned->slots[MOMENTUM];
    const float weight = (float)weight_of(run), all = (float)(engine->local.weights + weight_of(run));
    if (!has_anchor(engine))
        return;
    for (size_t i = 0; i < owned->to - owned->from; i++)
        momentum[i] = (zr_engine_buffer(engine, unit)[i] + weight * momentum[i]) / all;
}

void zr_engine_local_return(const struct zr_engine *engine, size_t unit)
{
    const struct zr_owned *owned = &engine->units[unit].owned;
    if (has_anchor(engine))
        memcpy(owned->master, zr_engine_anchor(engine, unit),
               (owned->to - owned->from) * sizeof *owned->master);
}

void zr_engine_local_span(const struct zr_engine_run *run, struct zr_engine_update *update)
{
    const double rates = run->engine->local.rates + (double)run->rate,
                 weights = run->engine->local.weights + weight_of(run);
    if (!has_anchor(run->engine))
        return;
    update->rate = (float)rates;
    update->correction1 = (float)(rates / weights);
}

void zr_engine_local_count(const struct zr_engine_run *run)
{
    struct zr_local_steps *local = &run->engine->local;
    if (!zr_engine_is_local(run->engine)) {
        *local = (struct zr_local_steps){0};
        return;
    }
    local->count++;
    local->rates += (double)run->rate;
    local->weights += weight_of(run);
}

void zr_engine_local_swap(const struct zr_engine *engine)
{
    for (size_t u = 0; u < engine->layout.units_count && engine->local.count > 0; u++) {
        const struct zr_owned *owned = &engine->units[u].owned;
        float *anchor = zr_engine_anchor(engine, u);
        for (size_t i = 0; engine->units[u].steps > 0 && i < owned->to - owned->from; i++) {
            float master = owned->master[i];
            owned->master[i] = anchor[i];
            anchor[i] = master;
        }
    }
}
