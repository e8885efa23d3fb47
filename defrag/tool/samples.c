/* samples.c: estimates from sampled objects (see samples.h). Uses recording.c. */
#include "defrag/tool/samples.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc/base/hash.h"
#include "alloc/base/sort.h"

enum { SITES_SHOWN = 20 };

struct object {
    uint64_t bytes, mean_bytes;
    uint32_t site;
};

static void add(struct zr_estimate *estimate, const struct object *object, int sign)
{
    double p = -expm1(-(double)object->bytes / (double)object->mean_bytes), bytes = (double)object->bytes / p;
    estimate->bytes += sign * bytes;
    estimate->variance += sign * (1 - p) * bytes * bytes;
    estimate->objects += sign / p;
    estimate->samples_count += (uint64_t)(int64_t)sign;
}

static zr_result site_of(struct zr_samples *samples, const struct zr_record *record, uint32_t *out)
{
    struct zr_sampled_site site = {.label = "unknown"};
    char stack[ZR_FRAME_BYTES];
    if (zr_tool_short_stack(samples->recording, record->stack, sizeof stack, stack))
        snprintf(site.label, sizeof site.label, "%.159s", stack);
    uint64_t hash = zr_hash_text(site.label);
    const uint32_t *known = zr_number_map_get(&samples->labels, hash);
    *out = known ? *known : (uint32_t)samples->sites.count;
    if (known)
        return ZR_OK;
    zr_result result = zr_number_map_put(&samples->labels, hash, *out);
    return result == ZR_OK ? zr_vector_add(&samples->sites, &site) : result;
}

static zr_result take(void *state, const struct zr_record *record, bool *stop)
{
    struct zr_samples *samples = state;
    struct object object = {record->bytes, record->sample_bytes, 0};
    (void)stop;
    uint32_t *number = zr_number_map_get(&samples->addresses, record->address);
    if (record->kind == ZR_RECORD_FREE && number && *number) {
        const struct object *freed = zr_vector_at(&samples->objects, *number - 1);
        add(&samples->live, freed, -1);
        add(&((struct zr_sampled_site *)zr_vector_at(&samples->sites, freed->site))->live, freed, -1);
        *number = 0;
    }
    if (record->kind != ZR_RECORD_ALLOC || record->sample_bytes == 0 || record->bytes == 0)
        return ZR_OK;
    zr_result result = site_of(samples, record, &object.site);
    if (result == ZR_OK)
        result = zr_vector_add(&samples->objects, &object);
    if (result == ZR_OK)
        result = zr_number_map_put(&samples->addresses, record->address, (uint32_t)samples->objects.count);
    if (result != ZR_OK)
        return result;
    struct zr_sampled_site *site = zr_vector_at(&samples->sites, object.site);
    samples->mean_bytes = object.mean_bytes;
    struct zr_estimate *const estimates[] = {&samples->live, &samples->allocated, &site->live,
                                             &site->allocated};
    for (size_t i = 0; i < sizeof estimates / sizeof *estimates; i++)
        add(estimates[i], &object, 1);
    return ZR_OK;
}

static bool holds_more(const void *a, const void *b)
{
    const struct zr_sampled_site *one = a, *other = b;
    return one->live.bytes != other->live.bytes ? one->live.bytes > other->live.bytes
                                                : one->allocated.bytes > other->allocated.bytes;
}

zr_result zr_samples_find(struct zr_samples *out, struct zr_recording *recording, zr_arena *arena)
{
    *out = (struct zr_samples){.recording = recording};
    zr_vector_init(&out->sites, arena, sizeof(struct zr_sampled_site));
    zr_vector_init(&out->objects, arena, sizeof(struct object));
    zr_number_map_init(&out->addresses, arena);
    zr_number_map_init(&out->labels, arena);
    if (recording->kind != ZR_RECORDING_ZRT)
        return ZR_OK;
    zr_result result = zr_recording_play(recording, &(struct zr_recording_sink){take, out});
    if (result == ZR_OK)
        zr_sort_in_place(&(struct zr_sort_records){out->sites.items, out->sites.count,
                                                   sizeof(struct zr_sampled_site), holds_more});
    return result;
}

void zr_samples_end(struct zr_samples *samples)
{
    zr_number_map_end(&samples->labels);
    zr_number_map_end(&samples->addresses);
    zr_vector_end(&samples->objects);
    zr_vector_end(&samples->sites);
}

/* ---- Output -------------------------------------------------------------------------------------------- */

static double error_of(const struct zr_estimate *estimate)
{
    return estimate->variance > 0 ? sqrt(estimate->variance) : 0;
}

static void print_row(struct zr_text *text, const struct zr_sampled_site *site)
{
    char number[3][ZR_TOOL_NUMBER_ROOM];
    zr_text_print(text, "  %12s %12s %12s %9" PRIu64 "  %s\n",
                  zr_tool_bytes(number[0], (uint64_t)fmax(site->live.bytes, 0)),
                  zr_tool_bytes(number[1], (uint64_t)error_of(&site->live)),
                  zr_tool_bytes(number[2], (uint64_t)site->allocated.bytes), site->live.samples_count,
                  site->label);
}

void zr_samples_table(struct zr_text *text, const struct zr_samples *samples)
{
    char number[ZR_TOOL_NUMBER_ROOM];
    struct zr_sampled_site all = {.label = "all", .live = samples->live, .allocated = samples->allocated};
    if (samples->mean_bytes == 0)
        return;
    zr_text_print(
        text, "\n  Estimates from %" PRIu64 " samples, one in %s; +-: the standard error of what is live\n",
        samples->allocated.samples_count, zr_tool_bytes(number, samples->mean_bytes));
    zr_text_print(text, "  %12s %12s %12s %9s  %s\n", "live", "+-", "allocated", "samples", "allocated by");
    print_row(text, &all);
    for (size_t i = 0; i < samples->sites.count && i < SITES_SHOWN; i++)
        print_row(text, zr_vector_at(&samples->sites, i));
}

static void json_estimate(struct zr_text *text, const char *name, const struct zr_estimate *estimate)
{
    zr_text_print(
        text, "\"%s\": {\"samples\": %" PRIu64 ", \"bytes\": %.0f, \"error_bytes\": %.0f, \"objects\": %.0f}",
        name, estimate->samples_count, fmax(estimate->bytes, 0), error_of(estimate),
        fmax(estimate->objects, 0));
}

void zr_samples_json(struct zr_text *text, const struct zr_samples *samples)
{
    if (samples->mean_bytes == 0)
        return;
    zr_text_print(text, ",\n \"samples\": {\"mean_bytes\": %" PRIu64 ", ", samples->mean_bytes);
    json_estimate(text, "live", &samples->live);
    zr_text_print(text, ", ");
    json_estimate(text, "allocated", &samples->allocated);
    zr_text_print(text, ", \"sites\": [");
    for (size_t i = 0; i < samples->sites.count; i++) {
        const struct zr_sampled_site *site = zr_vector_at(&samples->sites, i);
        zr_text_print(text, "%s\n  {", i ? "," : "");
        zr_tool_json_words(text, "of", site->label);
        zr_text_print(text, ", ");
        json_estimate(text, "live", &site->live);
        zr_text_print(text, ", ");
        json_estimate(text, "allocated", &site->allocated);
        zr_text_print(text, "}");
    }
    zr_text_print(text, "]}");
}
