/* ranks.c: curves of live memory, and their distances from the median. See ranks.h. */
#include "defrag/report/ranks.h"

#include <stdio.h>

#include "alloc/base/sort.h"

void zr_curve_init(struct zr_curve *out, uint64_t records_count, zr_arena *arena)
{
    *out = (struct zr_curve){.records_count = records_count};
    zr_vector_init(&out->points, arena, sizeof(struct zr_curve_point));
}

void zr_curve_end(struct zr_curve *curve)
{
    zr_vector_end(&curve->points);
}

static void raise(uint64_t *most, uint64_t bytes)
{
    if (bytes > *most)
        *most = bytes;
}

zr_result zr_curve_take(struct zr_curve *curve, const struct zr_record *record,
                        const struct zr_memory *memory)
{
    uint64_t live = memory->live_bytes + memory->pending_bytes;
    uint64_t part = curve->records_count ? curve->seen_count * ZR_CURVE_PARTS / curve->records_count : 0;
    struct zr_vector *points = &curve->points;
    curve->seen_count++;
    if (points->count > 0)
        raise(&((struct zr_curve_point *)zr_vector_at(points, points->count - 1))->most_bytes, live);
    raise(&curve->parts[part < ZR_CURVE_PARTS ? part : ZR_CURVE_PARTS - 1], live);
    if (record->kind != ZR_RECORD_MARK || record->before)
        return ZR_OK;
    struct zr_curve_point point = {.most_bytes = live};
    snprintf(point.label, sizeof point.label, "%s", record->label ? record->label : "");
    return zr_vector_add(points, &point);
}

/* ---- Comparing ----------------------------------------------------------------------------------------- */

static uint64_t most_at(const struct zr_vector *curves, size_t rank, size_t point, bool by_marks)
{
    const struct zr_curve *curve = zr_vector_at(curves, rank);
    return by_marks ? ((const struct zr_curve_point *)zr_vector_at(&curve->points, point))->most_bytes
                    : curve->parts[point];
}

/* The lower median, so that of two ranks the larger one is odd. */
static uint64_t median_at(const struct zr_vector *curves, size_t point, bool by_marks,
                          struct zr_sort_pair *pairs)
{
    for (size_t rank = 0; rank < curves->count; rank++)
        pairs[rank] = (struct zr_sort_pair){.key = most_at(curves, rank, point, by_marks)};
    zr_sort_pairs(pairs, pairs + curves->count, curves->count);
    return pairs[(curves->count - 1) / 2].key;
}

static uint64_t distance(uint64_t one, uint64_t other)
{
    return one > other ? one - other : other - one;
}

static size_t points_of(const struct zr_vector *curves, bool *by_marks)
{
    size_t least = SIZE_MAX;
    for (size_t rank = 0; rank < curves->count; rank++) {
        const struct zr_curve *curve = zr_vector_at(curves, rank);
        least = curve->points.count < least ? curve->points.count : least;
    }
    *by_marks = least >= 2;
    return *by_marks ? least : ZR_CURVE_PARTS;
}

bool zr_ranks_compare(const struct zr_vector *curves, struct zr_odd_rank *out, zr_result *result)
{
    struct zr_vector pairs, distances; /* struct zr_sort_pair; uint64_t: the largest of each rank */
    uint64_t largest = 0, others = 0;
    *out = (struct zr_odd_rank){0};
    zr_vector_init(&pairs, curves->arena, sizeof(struct zr_sort_pair));
    zr_vector_init(&distances, curves->arena, sizeof(uint64_t));
    *result = zr_vector_reserve(&pairs, 2 * curves->count);
    for (size_t rank = 0; rank < curves->count && *result == ZR_OK; rank++)
        *result = zr_vector_add(&distances, &(uint64_t){0});
    size_t points = points_of(curves, &out->by_marks);
    for (size_t point = 0; point < points && *result == ZR_OK && curves->count > 1; point++) {
        uint64_t median = median_at(curves, point, out->by_marks, pairs.items);
        for (size_t rank = 0; rank < curves->count; rank++) {
            uint64_t bytes = most_at(curves, rank, point, out->by_marks), far = distance(bytes, median);
            raise(zr_vector_at(&distances, rank), far);
            if (far > largest) {
                largest = far;
                out->rank = rank;
                out->largest_bytes = bytes;
                out->usual_bytes = median;
            }
        }
    }
    for (size_t rank = 0; rank < curves->count && largest > 0; rank++)
        if (rank != out->rank)
            raise(&others, *(const uint64_t *)zr_vector_at(&distances, rank));
    for (size_t point = 0; point < points && largest > others; point++) {
        out->others_bytes = median_at(curves, point, out->by_marks, pairs.items);
        out->most_bytes = most_at(curves, out->rank, point, out->by_marks);
        out->point = point;
        if (distance(out->most_bytes, out->others_bytes) > others)
            break;
    }
    const struct zr_curve *odd = largest > others ? zr_vector_at(curves, out->rank) : NULL;
    if (odd && out->by_marks)
        out->label = ((const struct zr_curve_point *)zr_vector_at(&odd->points, out->point))->label;
    zr_vector_end(&distances);
    zr_vector_end(&pairs);
    return odd != NULL;
}
