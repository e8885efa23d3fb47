/* layout.c: the flat partition of a parameter list into units and shards. */
#include "zero/engine/layout.h"

#include <string.h>

#include "alloc/base/sort.h"
#include "zero/comm/take.h"

static bool round_up(size_t value, size_t multiple, size_t *out)
{
    size_t rest = value % multiple;
    return !__builtin_add_overflow(value, rest ? multiple - rest : 0, out);
}

size_t zr_layout_covered(const struct zr_layout *layout, size_t unit, unsigned slot, size_t from, size_t to)
{
    const struct zr_layout_unit *u = &layout->units[unit];
    size_t (*whole)(const struct zr_parameter *) = u->optimizer->slots[slot].whole;
    size_t sum = 0;
    if (!u->optimizer->slots[slot].covers && !whole)
        return to - from;
    for (size_t i = 0; i < u->parameters_count; i++) {
        const struct zr_layout_parameter *p = &layout->parameters[u->first_parameter + i];
        struct zr_overlap overlap;
        if (whole && p->has_slot[slot])
            sum += p->offset >= from && p->offset < to ? whole(&p->parameter) : 0;
        else if (p->has_slot[slot] && zr_layout_overlap(p, from, to, &overlap))
            sum += overlap.count;
    }
    return sum;
}

size_t zr_layout_slot_bytes(const struct zr_layout *layout, size_t unit, unsigned slot, bool whole)
{
    const struct zr_layout_unit *u = &layout->units[unit];
    bool all = whole || u->optimizer->slots[slot].whole;
    size_t part = all ? u->padded_elements : u->shard_elements, most = 0;
    for (size_t from = 0; from < u->padded_elements; from += part) {
        size_t covered = zr_layout_covered(layout, unit, slot, from, from + part);
        most = covered > most ? covered : most;
    }
    return zr_slot_state_bytes(&u->optimizer->slots[slot], most);
}

size_t zr_layout_state_bytes(const struct zr_layout *layout, size_t unit, bool whole)
{
    size_t bytes = 0;
    for (unsigned s = 0; s < layout->units[unit].optimizer->slots_count; s++)
        bytes += zr_layout_slot_bytes(layout, unit, s, whole);
    return bytes;
}

bool zr_layout_overlap(const struct zr_layout_parameter *parameter, size_t from, size_t to,
                       struct zr_overlap *out)
{
    size_t first = parameter->offset > from ? parameter->offset : from;
    size_t end = parameter->offset + parameter->elements < to ? parameter->offset + parameter->elements : to;
    if (first >= end)
        return false;
    *out = (struct zr_overlap){.offset = first, .count = end - first};
    return true;
}

/* ---- Parts of tensors ---------------------------------------------------------------------------------- */

/* A parameter as a matrix; a vector is one row. Each row consists of runs, one per block, that are contiguous
 * in the whole tensor. */
struct matrix {
    size_t runs, run;                   /* runs per row, stored elements per run */
    size_t unpadded_rows, unpadded_run; /* runs per row and elements per run, without padding */
    size_t whole_columns, whole_block, first_row, first_column;
};

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static unsigned blocks_of(const struct zr_tensor_part *part)
{
    return part->blocks > 0 ? part->blocks : 1;
}

static struct matrix matrix_of(const struct zr_parameter *p)
{
    const struct zr_tensor_part *part = &p->part;
    bool vector = p->shape[1] == 0, is_part = part->whole[0] > 0;
    size_t rows = vector ? 1 : p->shape[0], columns = p->shape[!vector];
    if (!is_part)
        return (struct matrix){1, columns, rows, columns, columns, columns, 0, 0};
    size_t whole_columns = part->whole[!vector], first_column = part->first[!vector];
    struct matrix m = {.runs = blocks_of(part),
                       .unpadded_rows = vector ? 1 : min_size(rows, part->whole[0] - part->first[0]),
                       .whole_columns = whole_columns,
                       .first_row = vector ? 0 : part->first[0],
                       .first_column = first_column};
    m.run = columns / m.runs;
    m.whole_block = whole_columns / m.runs;
    m.unpadded_run = min_size(m.run, m.whole_block - first_column);
    if (m.run == m.whole_block && first_column == 0) { /* whole rows are contiguous as well */
        m.runs = 1;
        m.run = m.unpadded_run = m.whole_block = whole_columns;
    }
    return m;
}

/* Whether rows are contiguous in the whole tensor. */
static bool has_whole_rows(const struct matrix *m)
{
    return m->run == m->whole_columns;
}

static uint64_t whole_index(const struct matrix *m, size_t element)
{
    size_t run = element / m->run;
    return (m->first_row + run / m->runs) * (uint64_t)m->whole_columns + run % m->runs * m->whole_block +
           m->first_column + element % m->run;
}

size_t zr_layout_pieces(const struct zr_layout_parameter *parameter, size_t from, size_t to)
{
    struct matrix m = matrix_of(&parameter->parameter);
    struct zr_overlap overlap;
    if (!zr_layout_overlap(parameter, from, to, &overlap))
        return 0;
    size_t first = overlap.offset - parameter->offset, last = first + overlap.count - 1;
    return has_whole_rows(&m) ? 1 : last / m.run - first / m.run + 1;
}

struct zr_tensor_piece zr_layout_piece(const struct zr_layout_parameter *parameter, size_t from, size_t to,
                                       size_t index)
{
    struct matrix m = matrix_of(&parameter->parameter);
    struct zr_overlap overlap = {0};
    zr_layout_overlap(parameter, from, to, &overlap);
    size_t first = overlap.offset - parameter->offset, end = first + overlap.count;
    size_t start = (first / m.run + (has_whole_rows(&m) ? 0 : index)) * m.run;

    if (!has_whole_rows(&m)) {
        first = first > start ? first : start;
        end = min_size(end, start + m.unpadded_run);
    }
    end = min_size(end, m.unpadded_rows * m.runs * m.run);
    return (struct zr_tensor_piece){.offset = parameter->offset + first,
                                    .count = end > first ? end - first : 0,
                                    .global_index = parameter->global_index + whole_index(&m, first)};
}

uint64_t zr_layout_whole_index(const struct zr_layout_parameter *parameter, size_t element)
{
    struct matrix m = matrix_of(&parameter->parameter);
    return whole_index(&m, element);
}

static zr_result check_part(const struct zr_parameter *p)
{
    const struct zr_tensor_part *part = &p->part;
    bool vector = p->shape[1] == 0;
    unsigned blocks = blocks_of(part);
    size_t columns = p->shape[!vector], whole_columns = part->whole[!vector];
    if (part->whole[0] == 0)
        return ZR_OK;
    if (columns % blocks || whole_columns % blocks)
        return zr_fail(ZR_ERR_INVALID, "parameter %s: %u blocks do not divide %zu of %zu columns", p->name,
                       blocks, columns, whole_columns);
    if ((part->whole[1] == 0) == vector && part->first[!vector] < whole_columns / blocks &&
        (vector || part->first[0] < part->whole[0]))
        return ZR_OK;
    return zr_fail(ZR_ERR_INVALID, "parameter %s begins at [%zu, %zu], outside its tensor [%zu, %zu]",
                   p->name, part->first[0], part->first[1], part->whole[0], part->whole[1]);
}

/* Elements of the whole tensor; 0: overflow. */
static uint64_t whole_elements(const struct zr_parameter *p)
{
    struct zr_parameter whole = *p;
    if (p->part.whole[0] > 0)
        memcpy(whole.shape, p->part.whole, sizeof whole.shape);
    return zr_parameter_elements(&whole);
}

/* ---- Units ----------------------------------------------------------------------------------------------
 */

static zr_result no_beginning(const struct zr_parameter *p)
{
    return zr_fail(ZR_ERR_INVALID, "parameter %s continues a tensor that has no earlier part in the list",
                   p->name);
}

/* Sets the index of the tensor's first element among the model's elements. The first part of a tensor adds
 * the whole tensor to the count. */
static zr_result number_tensor(struct zr_layout *layout, struct zr_layout_parameter *parameter)
{
    const struct zr_parameter *p = &parameter->parameter;
    uint64_t whole = whole_elements(p);
    parameter->global_index = layout->elements;
    if (!p->part.continues)
        return whole > 0 && !__builtin_add_overflow(layout->elements, whole, &layout->elements)
                   ? ZR_OK
                   : zr_fail(ZR_ERR_INVALID,
                             "parameter %s: the number of elements of its tensor is 0 or overflows", p->name);
    const struct zr_layout_parameter *first = parameter; /* the first part is near: search backward */
    if (first == layout->parameters)
        return no_beginning(p);
    do
        first--;
    while (first > layout->parameters && strcmp(first->parameter.name, p->name) != 0);
    if (strcmp(first->parameter.name, p->name) != 0 ||
        memcmp(first->parameter.part.whole, p->part.whole, sizeof p->part.whole) != 0)
        return no_beginning(p);
    parameter->global_index = first->global_index;
    return ZR_OK;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t zr_layout_align(const struct zr_layout *layout, size_t unit)
{
    return larger(larger(ZR_SHARD_ALIGN_BYTES / layout->element_bytes,
                         zr_optimizer_block(layout->units[unit].optimizer)),
                  layout->block_elements);
}

/* Places the parameters of one unit and fills in its sizes and offsets. */
static zr_result lay_unit(struct zr_layout *layout, struct zr_layout_unit *unit, size_t index)
{
    size_t offset = 0, next = unit->first_parameter;
    size_t tensor_align =
        larger(larger(ZR_TENSOR_ALIGN_BYTES / layout->element_bytes, zr_optimizer_block(unit->optimizer)),
               layout->blocks_have_one_tensor ? layout->block_elements : 1);
    size_t align = zr_layout_align(layout, index) * layout->world;
    while (next < layout->parameters_count && layout->parameters[next].parameter.unit == index) {
        struct zr_layout_parameter *parameter = &layout->parameters[next];
        if (__builtin_add_overflow(layout->elements, parameter->parameter.left_out, &layout->elements))
            return zr_fail(ZR_ERR_INVALID, "parameter %s: the number of elements before it overflows",
                           parameter->parameter.name);
        if (parameter->parameter.left_out > 0)
            layout->part = parameter->parameter.name;
        parameter->elements = zr_parameter_elements(&parameter->parameter);
        if (!round_up(offset, tensor_align, &parameter->offset) || parameter->elements == 0 ||
            __builtin_add_overflow(parameter->offset, parameter->elements, &offset))
            return zr_fail(ZR_ERR_INVALID, "parameter %s: its number of elements is 0 or overflows",
                           parameter->parameter.name);
        zr_result result = check_part(&parameter->parameter);
        if (result == ZR_OK)
            result = number_tensor(layout, parameter);
        if (result != ZR_OK)
            return result;
        if (parameter->parameter.part.whole[0] > 0)
            layout->part = parameter->parameter.name;
        next++;
    }
    unit->parameters_count = next - unit->first_parameter;
    if (unit->parameters_count == 0)
        return zr_fail(ZR_ERR_INVALID, "unit %s has no parameters; sort parameters by unit", unit->unit.name);
    if (!round_up(offset, align, &unit->padded_elements))
        return zr_fail(ZR_ERR_INVALID, "unit %s is too large for %u ranks", unit->unit.name, layout->world);
    unit->shard_elements = unit->padded_elements / layout->world;
    unit->pool_offset = layout->pool_elements;
    unit->shard_offset = layout->shards_elements;
    if (__builtin_add_overflow(layout->padded_elements, unit->padded_elements, &layout->padded_elements))
        return zr_fail(ZR_ERR_INVALID, "the number of elements of the parameter list overflows");
    if (zr_unit_is_frozen(&unit->unit))
        return ZR_OK;
    layout->pool_elements += unit->padded_elements;
    layout->shards_elements += unit->shard_elements;
    return ZR_OK;
}

/* ---- Names --------------------------------------------------------------------------------------------- */

static bool before(const void *a, const void *b)
{
    const struct zr_layout_parameter *one = a, *other = b;
    int order = strcmp(one->parameter.name, other->parameter.name);
    return order != 0 ? order < 0 : one->parameter.part.continues < other->parameter.part.continues;
}

/* The name must be a valid key of a file of zr_engine_save(), and not one of the file's own keys. */
static zr_result check_name(const struct zr_parameter *parameter)
{
    const char *name = parameter->name;
    if (!memchr(name, '\0', sizeof parameter->name))
        return zr_fail(ZR_ERR_INVALID, "the parameter name '%.*s' is longer than %zu characters",
                       (int)sizeof parameter->name, name, sizeof parameter->name - 1);
    if (!name[0])
        return zr_fail(ZR_ERR_INVALID, "a parameter of unit %u has no name", parameter->unit);
    return strncmp(name, ZR_STATE_PREFIX, strlen(ZR_STATE_PREFIX)) == 0 || strcmp(name, "__metadata__") == 0
               ? zr_fail(ZR_ERR_INVALID, "the parameter name %s is reserved for the file of a saved state",
                         name)
               : ZR_OK;
}

/* Uses layout->parameters as scratch for sorting; the caller refills it in the list's order. */
static zr_result check_names(struct zr_layout *layout, const struct zr_parameter_list *list)
{
    struct zr_layout_parameter *sorted = layout->parameters;
    for (size_t u = 0; u < list->units_count; u++)
        if (!memchr(list->units[u].name, '\0', sizeof list->units[u].name))
            return zr_fail(ZR_ERR_INVALID, "the unit name '%.*s' is longer than %zu characters",
                           (int)sizeof list->units[u].name, list->units[u].name,
                           sizeof list->units[u].name - 1);
    for (size_t i = 0; i < list->parameters_count; i++) {
        zr_result result = check_name(&list->parameters[i]);
        if (result != ZR_OK)
            return result;
        sorted[i] = (struct zr_layout_parameter){.parameter = list->parameters[i]};
    }
    zr_sort_in_place(&(struct zr_sort_records){sorted, list->parameters_count, sizeof *sorted, before});
    for (size_t i = 1; i < list->parameters_count; i++)
        if (!sorted[i].parameter.part.continues &&
            strcmp(sorted[i - 1].parameter.name, sorted[i].parameter.name) == 0)
            return zr_fail(ZR_ERR_INVALID, "the parameter name %s is used twice", sorted[i].parameter.name);
    return ZR_OK;
}

/* Fills in which slots the unit's parameters have. */
static void find_slots(struct zr_layout *layout, const struct zr_layout_request *request, size_t unit)
{
    static const struct zr_parameter_group narrow = {.wide_state = false};
    const struct zr_layout_unit *u = &layout->units[unit];
    const struct zr_optimizer *optimizer = u->optimizer;
    for (size_t i = 0; i < u->parameters_count; i++) {
        struct zr_layout_parameter *p = &layout->parameters[u->first_parameter + i];
        const struct zr_parameter_group *group =
            request->groups ? &request->groups[p->parameter.group] : &narrow;
        for (unsigned s = 0; s < optimizer->slots_count; s++)
            p->has_slot[s] = !optimizer->slots[s].covers || optimizer->slots[s].covers(&p->parameter, group);
        p->needs_whole = optimizer->needs_whole && optimizer->needs_whole(&p->parameter, group);
    }
}

static const struct zr_optimizer *optimizer_of(const struct zr_layout_request *request, size_t unit)
{
    const struct zr_optimizer *optimizer =
        request->optimizer ? request->optimizer : zr_optimizer_of(ZR_OPTIMIZER_ADAMW);
    const struct zr_parameter_list *list = request->list;
    for (size_t i = 0; i < list->parameters_count && request->groups && optimizer->wide; i++)
        if (list->parameters[i].unit == unit && request->groups[list->parameters[i].group].wide_state)
            return optimizer->wide;
    return optimizer;
}

zr_result zr_layout_make(struct zr_layout *layout, const struct zr_layout_request *request)
{
    const struct zr_parameter_list *list = request->list;
    zr_arena *host_arena = request->host_arena;
    zr_result result;
    memset(layout, 0, sizeof *layout);
    if (list->parameters_count == 0 || list->units_count == 0 || request->world == 0)
        return zr_fail(ZR_ERR_INVALID, "a layout requires at least one parameter, one unit and one rank");
    layout->world = request->world;
    layout->element_bytes = zr_precision_bytes(request->precision);
    layout->block_elements = request->block_elements;
    layout->blocks_have_one_tensor = request->blocks_have_one_tensor;
    layout->host_arena = host_arena;
    layout->parameters_count = list->parameters_count;
    layout->units_count = list->units_count;
    result = zr_take(host_arena, ZR_TAG_OTHER, list->parameters_count, sizeof *layout->parameters,
                     (void **)&layout->parameters);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, list->units_count, sizeof *layout->units,
                         (void **)&layout->units);
    if (result == ZR_OK)
        result = check_names(layout, list);
    if (result != ZR_OK)
        goto unwind;
    for (size_t i = 0; i < list->parameters_count; i++)
        layout->parameters[i] = (struct zr_layout_parameter){.parameter = list->parameters[i]};
    for (size_t u = 0, next = 0; u < list->units_count; u++) {
        layout->units[u] = (struct zr_layout_unit){
            .unit = list->units[u], .first_parameter = next, .optimizer = optimizer_of(request, u)};
        result = lay_unit(layout, &layout->units[u], u);
        if (result != ZR_OK)
            goto unwind;
        find_slots(layout, request, u);
        next += layout->units[u].parameters_count;
        if (u + 1 == list->units_count && next != list->parameters_count) {
            result = zr_fail(ZR_ERR_INVALID,
                             "parameter %s belongs to no unit or is out of order; sort parameters by unit",
                             list->parameters[next].name);
            goto unwind;
        }
    }
    if (list->left_out > 0)
        layout->part = layout->parameters[0].parameter.name;
    if (!__builtin_add_overflow(layout->elements, list->left_out, &layout->elements))
        return ZR_OK;
    result = zr_fail(ZR_ERR_INVALID, "the number of elements after the last parameter overflows");

unwind:
    zr_layout_end(layout);
    return result;
}

void zr_layout_end(struct zr_layout *layout)
{
    zr_drop(layout->host_arena, &layout->units);
    zr_drop(layout->host_arena, &layout->parameters);
}
