/* phases.c: figures between marks, and categories by patterns. See phases.h. */
#include "defrag/report/phases.h"

#include <stdio.h>

enum { FRAMES_MAX = 64 };

static struct zr_phase *current(struct zr_phases *phases)
{
    return zr_vector_at(&phases->list, phases->now);
}

zr_result zr_phases_init(struct zr_phases *out, struct zr_recording *recording,
                         const struct zr_memory *memory, const regex_t *patterns, unsigned patterns_count)
{
    *out = (struct zr_phases){
        .recording = recording, .memory = memory, .patterns = patterns, .patterns_count = patterns_count};
    zr_vector_init(&out->list, recording->arena, sizeof(struct zr_phase));
    zr_number_map_init(&out->labels, recording->arena);
    zr_number_map_init(&out->categories, recording->arena);
    return zr_vector_add(&out->list, &(struct zr_phase){0});
}

void zr_phases_end(struct zr_phases *phases)
{
    zr_number_map_end(&phases->categories);
    zr_number_map_end(&phases->labels);
    zr_vector_end(&phases->list);
}

/* ---- Categories ---------------------------------------------------------------------------------------- */

static unsigned match(const struct zr_phases *phases, uint32_t stack)
{
    struct zr_frames frames = zr_recording_frames(phases->recording, stack);
    unsigned best = phases->patterns_count;
    char frame[ZR_FRAME_BYTES];
    for (unsigned i = 0; i < FRAMES_MAX && stack && zr_frames_next(&frames, phases->recording, frame); i++)
        for (unsigned pattern = 0; pattern < best; pattern++)
            if (regexec(&phases->patterns[pattern], frame, 0, NULL, 0) == 0)
                best = pattern;
    return best;
}

static zr_result category_of(struct zr_phases *phases, uint32_t stack, uint64_t **out)
{
    const uint32_t *known = zr_number_map_get(&phases->categories, stack);
    unsigned category = known ? *known : match(phases, stack);
    *out = &phases->by_bytes[category];
    return known ? ZR_OK : zr_number_map_put(&phases->categories, stack, category);
}

static zr_result note_block(struct zr_phases *phases, const struct zr_record *record)
{
    uint64_t *bytes;
    if (record->kind == ZR_RECORD_ALLOC) {
        zr_result result = category_of(phases, record->stack, &bytes);
        *bytes += record->reserved_bytes > record->bytes ? record->reserved_bytes : record->bytes;
        current(phases)->allocations_count += !record->before;
        return result;
    }
    const struct zr_range_record *block = zr_extents_floor(&phases->memory->blocks, record->address);
    if (!block || block->address != record->address || block->pending)
        return ZR_OK; /* zr_moment_reach() reports an unknown block */
    zr_result result = category_of(phases, block->stack, &bytes);
    *bytes -= block->bytes < *bytes ? block->bytes : *bytes;
    return result;
}

/* ---- Phases -------------------------------------------------------------------------------------------- */

/* The state before the record belongs to the phase so far. */
static void note_most(struct zr_phases *phases)
{
    struct zr_phase *phase = current(phases);
    if (phases->memory->live_bytes > phase->most_live_bytes) {
        phase->most_live_bytes = phases->memory->live_bytes;
        for (unsigned i = 0; i <= phases->patterns_count; i++)
            phase->by_bytes[i] = phases->by_bytes[i];
    }
    if (phases->memory->reserved_bytes > phase->most_reserved_bytes)
        phase->most_reserved_bytes = phases->memory->reserved_bytes;
}

static zr_result begin_phase(struct zr_phases *phases, const char *label)
{
    struct zr_phase phase = {0};
    uint64_t hash = 0;
    snprintf(phase.label, sizeof phase.label, "%s", label ? label : "");
    for (const char *at = phase.label; *at; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    const uint32_t *known = zr_number_map_get(&phases->labels, hash);
    phases->now = known ? *known : phases->list.count;
    zr_result result = known ? ZR_OK : zr_vector_add(&phases->list, &phase);
    if (!known && result == ZR_OK)
        result = zr_number_map_put(&phases->labels, hash, (uint32_t)phases->now);
    if (result == ZR_OK)
        current(phases)->marks_count++;
    else
        phases->now = 0;
    return result;
}

/* Ends a run of unmaps at the first record that is none. */
static void note_map(struct zr_phases *phases, const struct zr_record *record)
{
    bool tries = record->kind == ZR_RECORD_MAP || record->kind == ZR_RECORD_REFUSED;
    if (record->kind == ZR_RECORD_UNMAP) {
        if (!phases->unmapping)
            phases->unmap_stack = record->stack;
        phases->unmapping = true;
        return;
    }
    if (phases->unmapping && tries && record->stack && record->stack == phases->unmap_stack)
        current(phases)->retries_count++;
    else if (phases->unmapping)
        current(phases)->flushes_count++;
    phases->unmapping = false;
}

zr_result zr_phases_take(struct zr_phases *phases, const struct zr_record *record)
{
    note_most(phases);
    note_map(phases, record);
    switch (record->kind) {
    case ZR_RECORD_MARK:
        return begin_phase(phases, record->label);
    case ZR_RECORD_ALLOC:
    case ZR_RECORD_FREE_ASKED:
    case ZR_RECORD_FREE:
        return note_block(phases, record);
    default:
        return ZR_OK;
    }
}

void zr_phases_finish(struct zr_phases *phases)
{
    note_most(phases);
    current(phases)->flushes_count += phases->unmapping;
    phases->unmapping = false;
}
