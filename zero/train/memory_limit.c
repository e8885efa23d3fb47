/* memory_limit.c: finds configurations that fit under --memory-limit. Uses byte plans (rank_plan.c). */
#include "zero/train/memory_limit.h"

#include <string.h>

#include "alloc/base/error.h"
#include "zero/train/rank/rank_plan.h"
#include "zero/train/settings/args.h"

/* Granules of a rehearsal that only counts live bytes. */
#define FINE_GRANULE_BYTES   ((size_t)2 << 20)
#define COARSE_GRANULE_BYTES ((size_t)1 << 30)
enum { COARSE_GRANULES = 1 << 16 };

/* The limit of device memory. Without --memory-limit only the host tier is limited. */
static size_t device_limit(const struct zr_train_config *config)
{
    return config->memory_limit_bytes ? config->memory_limit_bytes : SIZE_MAX - 1;
}

/* Maximum of --batch and --layers. */
static size_t max_of(enum zr_limit_size size)
{
    return size == ZR_LIMIT_BATCH ? (size_t)1 << 20 : 65536;
}

zr_result zr_limit_plan_largest(struct zr_byte_plan *out, const struct zr_train_config *config,
                                zr_arena *host_arena)
{
    unsigned pipeline = zr_train_pipeline(config);
    struct zr_byte_plan one;
    zr_result result = zr_rank_plan(out, config, 0, host_arena);
    for (unsigned p = 1; p <= pipeline && result == ZR_OK && config->world > 1; p++) {
        result = zr_rank_plan(&one, config, p < pipeline ? zr_train_first_rank(config, p) : config->world - 1,
                              host_arena);
        size_t host = one.host_reserved_bytes > out->host_reserved_bytes ? one.host_reserved_bytes
                                                                         : out->host_reserved_bytes;
        uint64_t nvme = one.nvme_bytes > out->nvme_bytes ? one.nvme_bytes : out->nvme_bytes;
        if (result == ZR_OK && one.peak_reserved_bytes > out->peak_reserved_bytes)
            *out = one;
        out->host_reserved_bytes = host; /* each tier's maximum over all ranks */
        out->nvme_bytes = nvme;
    }
    return result;
}

bool zr_limit_is_set(const struct zr_train_config *config)
{
    return config->memory_limit_bytes || config->host_limit_bytes || config->nvme_limit_bytes;
}

/* Whether a plan is within the limits of the tiers. */
static bool fits_tiers(const struct zr_train_config *config, const struct zr_byte_plan *plan)
{
    return (config->host_limit_bytes == 0 || plan->host_reserved_bytes <= config->host_limit_bytes) &&
           (config->nvme_limit_bytes == 0 || plan->nvme_bytes <= config->nvme_limit_bytes);
}

bool zr_limit_fits(const struct zr_train_config *config, const struct zr_byte_plan *plan)
{
    return (config->memory_limit_bytes == 0 || plan->peak_reserved_bytes <= device_limit(config)) &&
           fits_tiers(config, plan);
}

/* The plan of a configuration; SIZE_MAX bytes: beyond the address space or overflow. weigh() also returns
 * SIZE_MAX beyond the limits of the tiers. */
static zr_result weigh_all(struct zr_byte_plan *out, const struct zr_train_config *config,
                           zr_arena *host_arena)
{
    zr_result result = zr_shape_check(&config->shape);
    *out = (struct zr_byte_plan){.peak_reserved_bytes = SIZE_MAX};
    if (result == ZR_ERR_INVALID)
        return ZR_OK;
    if (result == ZR_OK)
        result = zr_limit_plan_largest(out, config, host_arena);
    if (result == ZR_ERR_ADDRESSES || result == ZR_ERR_MEMORY) {
        *out = (struct zr_byte_plan){.peak_reserved_bytes = SIZE_MAX};
        return ZR_OK;
    }
    return result;
}

static zr_result weigh(const struct zr_train_config *config, zr_arena *host_arena, size_t *out_bytes)
{
    struct zr_byte_plan plan;
    zr_result result = weigh_all(&plan, config, host_arena);
    *out_bytes = result == ZR_OK && fits_tiers(config, &plan) ? plan.peak_reserved_bytes : SIZE_MAX;
    return result;
}

/* Copies the configuration with `size` set to `value`. ZR_ERR_INVALID: no such model. */
static zr_result of_size(struct zr_train_config *out, const struct zr_train_config *config,
                         enum zr_limit_size size, size_t value, zr_arena *host_arena)
{
    *out = *config;
    *(size == ZR_LIMIT_BATCH ? &out->shape.batch : &out->shape.layers) = value;
    zr_result result = zr_train_check_stages(out);
    return result == ZR_OK ? zr_train_cut_stages(out, host_arena) : result;
}

/* The smallest number with which there is a model: a pipeline needs layers for its stages. */
static size_t smallest(const struct zr_train_config *config, enum zr_limit_size size)
{
    size_t most = size == ZR_LIMIT_LAYERS ? zr_stages_count(&config->stages) : 1;
    struct zr_train_config changed = *config;
    for (changed.shape.layers = 1; changed.shape.layers < most && zr_train_check_stages(&changed) != ZR_OK;)
        changed.shape.layers++;
    return size == ZR_LIMIT_LAYERS ? changed.shape.layers : 1;
}

zr_result zr_limit_most_live(size_t *out, const struct zr_train_config *config, size_t granule_bytes,
                             zr_arena *host_arena)
{
    zr_result result = ZR_OK;
    *out = 0;
    for (unsigned p = 0; p < zr_train_pipeline(config) && result == ZR_OK; p++) {
        size_t bytes;
        result =
            zr_rank_live_bytes(&bytes, config, zr_train_first_rank(config, p), granule_bytes, host_arena);
        *out = result == ZR_OK && bytes > *out ? bytes : *out;
    }
    return result;
}

/* Large granules make a rehearsal faster, and live bytes do not depend on them. */
static size_t coarse_granule_bytes(size_t limit_bytes)
{
    size_t granule_bytes = FINE_GRANULE_BYTES;
    while (granule_bytes < COARSE_GRANULE_BYTES && granule_bytes < limit_bytes / COARSE_GRANULES)
        granule_bytes *= 2;
    return granule_bytes;
}

/* Finds the largest number from `first` on whose live bytes are within the limit, which is near the result at
 * a fraction of the cost; first - 1: none. */
static zr_result guess(size_t *out, const struct zr_train_config *config, enum zr_limit_size size,
                       size_t first, zr_arena *host_arena)
{
    size_t granule_bytes = coarse_granule_bytes(device_limit(config));
    size_t beyond = 0, max_value = max_of(size);

    *out = first - 1;
    for (size_t value = first; *out < max_value && (beyond == 0 || beyond - *out > 1);) {
        struct zr_train_config changed;
        size_t bytes = SIZE_MAX;
        zr_result result = of_size(&changed, config, size, value, host_arena);
        if (result == ZR_OK)
            result = zr_limit_most_live(&bytes, &changed, granule_bytes, host_arena);
        if (result != ZR_OK && result != ZR_ERR_INVALID && result != ZR_ERR_ADDRESSES &&
            result != ZR_ERR_MEMORY)
            return result;
        if (result == ZR_OK && bytes <= device_limit(config))
            *out = value;
        else
            beyond = value;
        value = beyond ? *out + (beyond - *out) / 2 : *out < max_value / 2 ? 2 * *out : max_value;
    }
    return ZR_OK;
}

/* The next number to plan: from the estimate in growing steps, then bisection. */
static size_t next_value(size_t low, size_t beyond, size_t first, size_t max_value, size_t *step)
{
    size_t far = *step;
    if (low >= first && beyond)
        return low + (beyond - low) / 2;
    *step *= 2;
    if (low >= first)
        return max_value - low > far ? low + far : max_value;
    return beyond > far && beyond - far > first ? beyond - far : first;
}

zr_result zr_limit_find(struct zr_limit_found *out, const struct zr_train_config *config,
                        enum zr_limit_size size, zr_arena *host_arena)
{
    /* low fits, or is first - 1; beyond does not, 0: unknown */
    size_t first = smallest(config, size), low = first - 1, beyond = 0, max_value = max_of(size);
    size_t value, step = 1;
    zr_result result = guess(&value, config, size, first, host_arena);

    *out = (struct zr_limit_found){.smallest = first};
    for (value += value < first; result == ZR_OK && low < max_value && (beyond == 0 || beyond - low > 1);
         value = next_value(low, beyond, first, max_value, &step)) {
        struct zr_train_config changed;
        struct zr_byte_plan plan = {.peak_reserved_bytes = SIZE_MAX};
        result = of_size(&changed, config, size, value, host_arena);
        if (result == ZR_OK)
            result = weigh_all(&plan, &changed, host_arena);
        else if (result == ZR_ERR_INVALID || result == ZR_ERR_ADDRESSES || result == ZR_ERR_MEMORY)
            result = ZR_OK;
        if (result == ZR_OK && plan.peak_reserved_bytes <= device_limit(config) &&
            fits_tiers(config, &plan)) {
            low = value;
            out->reserved_bytes = plan.peak_reserved_bytes;
            out->host_bytes = plan.host_reserved_bytes;
            out->nvme_bytes = plan.nvme_bytes;
        } else if (result == ZR_OK) {
            beyond = value;
            out->beyond_reserved_bytes = plan.peak_reserved_bytes;
            out->beyond_host_bytes = plan.host_reserved_bytes;
            out->beyond_nvme_bytes = plan.nvme_bytes;
        }
    }
    out->value = low < first ? 0 : low;
    return result;
}

/* The search starts from chunks with the logits of all rows; larger chunks have no effect. */
zr_result zr_limit_logits(size_t *out, const struct zr_train_config *config, zr_arena *host_arena)
{
    struct zr_train_config changed = *config;
    size_t rows = config->shape.batch * zr_shape_own_sequence(&config->shape), bytes = SIZE_MAX;
    zr_result result = ZR_OK;
    changed.logits_bytes = ZR_LOGITS_BYTES_MIN;
    while (changed.logits_bytes < ZR_LOGITS_BYTES_MAX && zr_train_shape(&changed, 0).logits_rows < rows)
        changed.logits_bytes *= 2;
    while (result == ZR_OK && changed.logits_bytes > ZR_LOGITS_BYTES_MIN) {
        result = weigh(&changed, host_arena, &bytes);
        if (bytes <= device_limit(config))
            break;
        changed.logits_bytes /= 2;
    }
    *out = changed.logits_bytes;
    return result;
}

/* ---- Variations that fit ------------------------------------------------------------------------------- */

enum { TILES_MAX = 64 }; /* with more tiles, a tile is smaller than a bucket, and planning takes long */

struct search {
    const struct zr_train_config *config;
    zr_arena *host_arena;
    struct zr_limit_advice *advice;
};

/* Adds `config` to the list, once. */
static void note_choice(struct zr_limit_advice *advice, const struct zr_train_config *config, size_t bytes)
{
    struct zr_limit_choice choice = {.stage = config->stage,
                                     .recompute = (enum zr_recompute)config->shape.recompute,
                                     .reduce = (enum zr_reduce_when)config->reduce,
                                     .tiles = zr_shape_tiles(&config->shape),
                                     .batch = config->shape.batch,
                                     .layers = config->shape.layers,
                                     .reserved_bytes = bytes};
    for (size_t i = 0; i < advice->count; i++) {
        const struct zr_limit_choice *other = &advice->choices[i];
        if (other->stage == choice.stage && other->recompute == choice.recompute &&
            other->reduce == choice.reduce && other->tiles == choice.tiles && other->batch == choice.batch &&
            other->layers == choice.layers)
            return;
    }
    if (advice->count < ZR_LIMIT_CHOICES)
        advice->choices[advice->count++] = choice;
}

/* Adds `config` if it fits. */
static zr_result try_out(struct search *search, const struct zr_train_config *config, bool *fits)
{
    size_t bytes;
    zr_result result = weigh(config, search->host_arena, &bytes);
    *fits = result == ZR_OK && bytes <= device_limit(config);
    if (*fits)
        note_choice(search->advice, config, bytes);
    return result;
}

static unsigned highest_stage(const struct zr_train_config *config)
{
    unsigned highest = zr_train_highest_stage(config);
    return highest > config->stage ? highest : config->stage;
}

/* Tries the stages above the given one, in order; if none fits with ZR_REDUCE_ONCE, tries ZR_REDUCE_EACH. */
static zr_result try_stages(struct search *search, struct zr_train_config changed, bool *fits)
{
    zr_result result = ZR_OK;
    *fits = false;
    for (;;) {
        while (result == ZR_OK && !*fits && changed.stage < highest_stage(&changed)) {
            changed.stage++;
            result = try_out(search, &changed, fits);
        }
        if (result != ZR_OK || *fits || changed.world == 1 || changed.reduce != ZR_REDUCE_ONCE)
            return result;
        changed.reduce = ZR_REDUCE_EACH;
    }
}

/* Sets the highest stage, and ZR_REDUCE_EACH if that takes less than the requested mode. */
static zr_result take_highest_stage(struct search *search, struct zr_train_config *config)
{
    struct zr_train_config each = *config;
    size_t bytes, each_bytes;
    config->stage = highest_stage(config);
    each.reduce = ZR_REDUCE_EACH;
    each.stage = highest_stage(&each);
    if (each.stage == config->stage)
        return ZR_OK;
    zr_result result = weigh(config, search->host_arena, &bytes);
    if (result == ZR_OK)
        result = weigh(&each, search->host_arena, &each_bytes);
    if (result == ZR_OK && each_bytes < bytes)
        *config = each;
    return result;
}

/* Tries the recomputations above the given one, the smallest first. */
static zr_result try_recompute(struct search *search, struct zr_train_config changed, bool *fits)
{
    zr_result result = ZR_OK;
    *fits = false;
    while (result == ZR_OK && !*fits &&
           (changed.shape.recompute < ZR_RECOMPUTE_FULL || changed.shape.recompute_layers > 0)) {
        changed.shape.recompute += changed.shape.recompute < ZR_RECOMPUTE_FULL;
        changed.shape.recompute_layers = 0;
        result = try_out(search, &changed, fits);
    }
    return result;
}

/* Whether whole gradients or parameters are in transit, so that tiles save memory. */
static bool passes_through(const struct zr_train_config *config)
{
    return zr_shape_tensor(&config->shape) == 1 &&
           (config->offload_optimizer || (config->stage >= 2 && zr_train_shards(config) > 1));
}

/* Finds the minimum number of tiles that fits, above the given number. */
static zr_result try_tiles(struct search *search, struct zr_train_config requested, bool *fits)
{
    struct zr_train_config changed = requested, found = requested;
    zr_result result = ZR_OK;
    size_t bytes = 0, found_bytes = 0;
    *fits = false;
    for (changed.shape.tiles = zr_shape_tiles_below(&changed.shape, TILES_MAX + 1);
         result == ZR_OK && passes_through(&requested) &&
         zr_shape_tiles(&changed.shape) > zr_shape_tiles(&requested.shape);
         changed.shape.tiles = zr_shape_tiles_below(&changed.shape, changed.shape.tiles)) {
        result = weigh(&changed, search->host_arena, &bytes);
        if (result != ZR_OK || bytes > device_limit(&requested))
            break;
        *fits = true;
        found = changed;
        found_bytes = bytes;
    }
    if (*fits)
        note_choice(search->advice, &found, found_bytes);
    return result;
}

/* Finds the largest batch, or number of layers, below the given one. */
static zr_result try_size(struct search *search, struct zr_train_config changed, enum zr_limit_size size,
                          bool *fits)
{
    struct zr_limit_found found;
    zr_result result = zr_limit_find(&found, &changed, size, search->host_arena);
    *fits = false;
    if (result != ZR_OK || found.value == 0)
        return result;
    struct zr_train_config smaller;
    result = of_size(&smaller, &changed, size, found.value, search->host_arena);
    return result == ZR_OK ? try_out(search, &smaller, fits) : result;
}

/* Combines everything that saves memory, then reduces batch and layers. */
static zr_result try_together(struct search *search)
{
    struct zr_train_config changed = *search->config;
    bool fits = false;
    zr_result result;

    changed.shape.recompute = ZR_RECOMPUTE_FULL;
    changed.shape.recompute_layers = 0;
    result = try_stages(search, changed, &fits);
    if (result == ZR_OK && !fits)
        result = take_highest_stage(search, &changed);
    if (result == ZR_OK && !fits)
        result = try_tiles(search, changed, &fits);
    if (result == ZR_OK && !fits)
        result = try_size(search, changed, ZR_LIMIT_BATCH, &fits);
    changed.shape.batch = 1;
    if (result == ZR_OK && !fits)
        result = try_tiles(search, changed, &fits);
    if (result == ZR_OK && !fits && search->config->parameters == 0)
        result = try_size(search, changed, ZR_LIMIT_LAYERS, &fits);
    return result;
}

zr_result zr_limit_advise(struct zr_limit_advice *out, const struct zr_train_config *config,
                          zr_arena *host_arena)
{
    struct search search = {config, host_arena, out};
    bool stage = false, recompute = false, tiles = false, batch = false;
    zr_result result;

    memset(out, 0, sizeof *out);
    result = zr_limit_plan_largest(&out->plan, config, host_arena);
    out->fits = result == ZR_OK && zr_limit_fits(config, &out->plan);
    if (result != ZR_OK || out->fits)
        return result;
    result = try_stages(&search, *config, &stage);
    if (result == ZR_OK)
        result = try_recompute(&search, *config, &recompute);
    if (result == ZR_OK)
        result = try_tiles(&search, *config, &tiles);
    if (result == ZR_OK)
        result = try_size(&search, *config, ZR_LIMIT_BATCH, &batch);
    if (result == ZR_OK && !stage && !recompute && !tiles)
        result = try_together(&search);
    return result;
}
