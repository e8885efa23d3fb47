/* cut.c: see cut.h. */
#include "zero/model/cut.h"

#include <string.h>

#include "zero/comm/take.h"

/* ---- Elements ------------------------------------------------------------------------------------------ */

uint64_t zr_parameter_elements(const struct zr_parameter *parameter)
{
    uint64_t elements;
    if (!parameter)
        return 0;
    if (parameter->shape[1] == 0)
        return parameter->shape[0];
    if (__builtin_mul_overflow((uint64_t)parameter->shape[0], (uint64_t)parameter->shape[1], &elements))
        return 0;
    return elements;
}

uint64_t zr_parameter_list_elements(const struct zr_parameter_list *list)
{
    uint64_t total = 0;
    for (size_t i = 0; list && i < list->parameters_count; i++) {
        uint64_t elements = zr_parameter_elements(&list->parameters[i]);
        if (elements == 0 || __builtin_add_overflow(total, elements, &total))
            return 0;
    }
    return total;
}

/* ---- Stages and ranks ---------------------------------------------------------------------------------- */

unsigned zr_pipeline_parts(const struct zr_pipeline *pipeline)
{
    return pipeline->interleave > 0 ? pipeline->interleave : zr_pipeline_is_v(pipeline) ? 2 : 1;
}

unsigned zr_pipeline_rank_of(const struct zr_pipeline *pipeline, unsigned ranks, unsigned stage)
{
    if (zr_pipeline_is_v(pipeline))
        return stage < ranks ? stage : 2 * ranks - 1 - stage;
    return stage % ranks;
}

/* Range of a stage's modules in the whole model. */
struct span {
    size_t first, end;
};

static struct span span_of(const struct zr_cut_request *request, unsigned stages, unsigned stage)
{
    const size_t *modules = request->pipeline->modules;
    size_t count = request->model->modules_count;
    struct span span = {0, 0};
    if (!modules)
        return (struct span){count * stage / stages, count * (stage + 1) / stages};
    for (unsigned s = 0; s < stage; s++)
        span.first += modules[s];
    span.end = span.first + modules[stage];
    return span;
}

static zr_result check(const struct zr_cut_request *request)
{
    const struct zr_pipeline *p = request->pipeline;
    size_t parts = zr_pipeline_parts(p), stages = parts * request->ranks, sum = 0;
    if ((unsigned)p->schedule >= ZR_PIPELINE_SCHEDULES)
        return zr_fail(ZR_ERR_INVALID, "unknown pipeline schedule %d", (int)p->schedule);
    if (p->vertical_sync && p->schedule != ZR_PIPELINE_PIPEDREAM)
        return zr_fail(ZR_ERR_INVALID, "vertical_sync requires the schedule pipedream");
    if (parts > ZR_PIPELINE_PARTS_MAX || stages > ZR_PIPELINE_STAGES_MAX ||
        (zr_pipeline_is_v(p) ? parts != 2 : p->schedule != ZR_PIPELINE_1F1B && parts != 1))
        return zr_fail(
            ZR_ERR_INVALID,
            "%zu stages for each of %u ranks are invalid: vhalf and zb-v have 2, 1f1b 1 to %d, the other schedules 1, and the "
            "maximum in all is %d",
            parts, request->ranks, ZR_PIPELINE_PARTS_MAX, ZR_PIPELINE_STAGES_MAX);
    if (stages > request->model->modules_count)
        return zr_fail(ZR_ERR_INVALID, "%zu pipeline stages exceed the model's %zu modules", stages,
                       request->model->modules_count);
    for (size_t s = 0; p->modules && s < stages; s++) {
        sum += p->modules[s];
        if (p->modules[s] == 0)
            return zr_fail(ZR_ERR_INVALID, "pipeline stage %zu of %zu has no module", s, stages);
    }
    return !p->modules || sum == request->model->modules_count
               ? ZR_OK
               : zr_fail(ZR_ERR_INVALID,
                         "the pipeline's stages have %zu modules in all, and the model has %zu", sum,
                         request->model->modules_count);
}

/* ---- Modules ------------------------------------------------------------------------------------------- */

static size_t add_port(struct zr_cut *cut, const struct zr_module_type *type)
{
    cut->ports[cut->ports_count] = *type;
    cut->modules[cut->model.modules_count] = (struct zr_module){.type = &cut->ports[cut->ports_count++]};
    return cut->model.modules_count++;
}

/* Appends a stage's modules and ports. */
static void add_part(struct zr_cut *cut, const struct zr_cut_request *request, unsigned stage)
{
    const struct zr_model *whole = request->model;
    const struct zr_pipeline *p = request->pipeline;
    struct span span = span_of(request, cut->stages_count, stage);
    size_t recomputing = 0;
    bool starts = stage == 0, ends = stage + 1 == cut->stages_count;
    struct zr_cut_part *part = &cut->parts[cut->parts_count++];
    *part = (struct zr_cut_part){.stage = stage,
                                 .entry = ZR_NO_MODULE,
                                 .exit = ZR_NO_MODULE,
                                 .before = starts ? cut->rank : zr_pipeline_rank_of(p, cut->ranks, stage - 1),
                                 .after = ends ? cut->rank : zr_pipeline_rank_of(p, cut->ranks, stage + 1),
                                 .input_part = UINT_MAX,
                                 .output_part = UINT_MAX};
    if (part->before != cut->rank) {
        const struct zr_module_type *type = whole->modules[span.first - 1].type;
        part->entry = add_port(cut, &(struct zr_module_type){.name = "input of the stage",
                                                             .output_columns = type->output_columns,
                                                             .output_tag = type->output_tag});
    }
    part->first = cut->model.modules_count;
    for (size_t m = 0; m < span.end; m++) {
        if (m >= span.first) {
            cut->recomputing_before[cut->model.modules_count] = recomputing;
            cut->modules[cut->model.modules_count++] = whole->modules[m];
        }
        recomputing += whole->modules[m].type->recomputes;
    }
    part->end = cut->model.modules_count;
    if (part->after != cut->rank)
        part->exit = add_port(cut, &(struct zr_module_type){.name = "output of the stage"});
}

/* Links parts whose stages are consecutive on this rank. */
static void join_parts(struct zr_cut *cut)
{
    for (unsigned i = 0; i < cut->parts_count; i++)
        for (unsigned j = 0; j < cut->parts_count; j++)
            if (cut->parts[j].stage == cut->parts[i].stage + 1 && cut->parts[i].exit == ZR_NO_MODULE) {
                cut->parts[i].output_part = j;
                cut->parts[j].input_part = i;
            }
}

unsigned zr_cut_part_of(const struct zr_cut *cut, size_t module)
{
    unsigned part = cut->parts_count;
    while (part-- > 1) {
        const struct zr_cut_part *p = &cut->parts[part];
        if (module >= (p->entry != ZR_NO_MODULE ? p->entry : p->first))
            break;
    }
    return part < cut->parts_count ? part : 0;
}

/* ---- Units --------------------------------------------------------------------------------------------- */

/* Modules and ranks that read a unit. */
struct readers {
    unsigned here;       /* number of modules on this rank */
    unsigned first_rank; /* rank of the first stage that reads it; UINT_MAX: none */
    bool several;        /* read by several ranks */
};

/* Fills in the readers of all units. */
static void find_readers(const struct zr_cut *cut, const struct zr_cut_request *request,
                         struct readers readers[])
{
    for (unsigned u = 0; u < request->model->list.units_count; u++)
        readers[u] = (struct readers){.first_rank = UINT_MAX};
    for (unsigned s = 0; s < cut->stages_count; s++) {
        struct span span = span_of(request, cut->stages_count, s);
        unsigned rank = zr_pipeline_rank_of(request->pipeline, request->ranks, s);
        for (size_t m = span.first; m < span.end; m++)
            for (unsigned i = 0; i < zr_module_units(&request->model->modules[m]); i++) {
                struct readers *r = &readers[zr_module_unit(&request->model->modules[m], i)];
                r->here += rank == request->rank;
                r->several |= r->first_rank != UINT_MAX && r->first_rank != rank;
                if (r->first_rank == UINT_MAX)
                    r->first_rank = rank;
            }
    }
}

/* The ranks that read a unit. */
static void find_ranks(const struct zr_cut *cut, const struct zr_cut_request *request, unsigned unit,
                       bool by_rank[])
{
    memset(by_rank, 0, request->ranks * sizeof *by_rank);
    for (unsigned s = 0; s < cut->stages_count; s++) {
        struct span span = span_of(request, cut->stages_count, s);
        unsigned rank = zr_pipeline_rank_of(request->pipeline, request->ranks, s);
        for (size_t m = span.first; m < span.end; m++)
            for (unsigned i = 0; i < zr_module_units(&request->model->modules[m]); i++)
                by_rank[rank] |= zr_module_unit(&request->model->modules[m], i) == unit;
    }
}

/* Checks that all shared units have the same ranks. */
static zr_result share(struct zr_cut *cut, const bool by_rank[], const char *name)
{
    unsigned count = 0;
    bool same = true;
    for (unsigned r = 0; r < cut->ranks; r++) {
        if (!by_rank[r])
            continue;
        same &= !cut->shares || (count < cut->sharing_count && cut->sharing[count] == r);
        if (!cut->shares)
            cut->sharing[count] = r;
        count++;
    }
    if (cut->shares && (!same || count != cut->sharing_count))
        return zr_fail(
            ZR_ERR_INVALID,
            "unit %s is shared by other pipeline ranks than earlier shared units; all shared units must have the "
            "same ranks",
            name);
    cut->shares = true;
    cut->sharing_count = count;
    return ZR_OK;
}

/* Elements of the whole tensor that begins with a parameter. */
static uint64_t whole_elements(const struct zr_parameter *p)
{
    struct zr_parameter whole = *p;
    if (p->part.continues)
        return 0;
    if (p->part.whole[0] > 0)
        memcpy(whole.shape, p->part.whole, sizeof whole.shape);
    return zr_parameter_elements(&whole);
}

/* Temporary arrays of add_units(). */
struct unit_tables {
    struct readers *readers; /* [units] of the whole model */
    unsigned *new_index;     /* [units] */
    bool *by_rank;           /* [ranks] */
};

/* Copies the units that this rank's modules read, in the model's order, and their parameters. */
static zr_result add_units(struct zr_cut *cut, const struct zr_cut_request *request,
                           const struct unit_tables *tables)
{
    const struct zr_parameter_list *whole = &request->model->list;
    struct zr_parameter_list *list = &cut->model.list;
    uint64_t left_out = 0;
    size_t next = 0;
    zr_result result = ZR_OK;
    find_readers(cut, request, tables->readers);
    for (unsigned u = 0; u < whole->units_count && result == ZR_OK; u++) {
        struct readers readers = tables->readers[u];
        bool shared = readers.several && !zr_unit_is_frozen(&whole->units[u]);
        if (shared && request->pipeline->schedule == ZR_PIPELINE_PIPEDREAM) /* the same on all ranks */
            result = zr_fail(
                ZR_ERR_INVALID,
                "unit %s is shared by pipeline ranks, and pipedream updates each stage by itself; use "
                "2bw, or a tensor of its own for each",
                whole->units[u].name);
        if (readers.here > 0) {
            tables->new_index[u] = (unsigned)list->units_count;
            cut->units[list->units_count] = whole->units[u];
            cut->units[list->units_count++].gradient_uses =
                zr_unit_is_frozen(&whole->units[u]) ? 0 : readers.here;
        }
        if (readers.here > 0 && shared && result == ZR_OK) {
            find_ranks(cut, request, u, tables->by_rank);
            result = share(cut, tables->by_rank, whole->units[u].name);
        }
        for (; next < whole->parameters_count && whole->parameters[next].unit == u; next++) {
            if (readers.here == 0) {
                left_out += whole_elements(&whole->parameters[next]);
                continue;
            }
            struct zr_parameter *p = &cut->parameters[list->parameters_count++];
            *p = whole->parameters[next];
            p->unit = tables->new_index[u];
            p->left_out = left_out;
            p->part.shared = shared;
            p->part.copy |= readers.first_rank != request->rank;
            left_out = 0;
        }
    }
    list->left_out = left_out;
    return result;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static zr_result take_records(struct zr_cut *cut, const struct zr_cut_request *request)
{
    const struct zr_model *whole = request->model;
    unsigned parts = zr_pipeline_parts(request->pipeline);
    zr_result result = zr_take(cut->host_arena, ZR_TAG_OTHER, whole->modules_count + 2 * parts,
                               sizeof *cut->modules, (void **)&cut->modules);
    if (result == ZR_OK)
        result = zr_take(cut->host_arena, ZR_TAG_OTHER, whole->modules_count + 2 * parts,
                         sizeof *cut->recomputing_before, (void **)&cut->recomputing_before);
    if (result == ZR_OK)
        result = zr_take(cut->host_arena, ZR_TAG_OTHER, 2 * parts, sizeof *cut->ports, (void **)&cut->ports);
    if (result == ZR_OK)
        result = zr_take(cut->host_arena, ZR_TAG_OTHER, whole->list.units_count, sizeof *cut->units,
                         (void **)&cut->units);
    if (result == ZR_OK)
        result = zr_take(cut->host_arena, ZR_TAG_OTHER, whole->list.parameters_count, sizeof *cut->parameters,
                         (void **)&cut->parameters);
    if (result == ZR_OK)
        result =
            zr_take(cut->host_arena, ZR_TAG_OTHER, cut->ranks, sizeof *cut->sharing, (void **)&cut->sharing);
    return result;
}

static zr_result cut_model(struct zr_cut *cut, const struct zr_cut_request *request,
                           const struct unit_tables *tables)
{
    for (unsigned s = 0; s < cut->stages_count; s++)
        if (zr_pipeline_rank_of(request->pipeline, cut->ranks, s) == cut->rank)
            add_part(cut, request, s);
    join_parts(cut);
    zr_result result = add_units(cut, request, tables);
    for (size_t m = 0; m < cut->model.modules_count; m++)
        for (unsigned i = 0; i < cut->modules[m].units_count; i++)
            cut->modules[m].units[i] = tables->new_index[cut->modules[m].units[i]];
    return result;
}

zr_result zr_cut_open(struct zr_cut *out, const struct zr_cut_request *request)
{
    struct unit_tables tables = {NULL, NULL, NULL};
    size_t units_count = request->model->list.units_count;
    zr_arena *host_arena = request->host_arena;
    memset(out, 0, sizeof *out);
    zr_result result = check(request);
    if (result != ZR_OK)
        return result;
    out->host_arena = host_arena;
    out->ranks = request->ranks;
    out->rank = request->rank;
    out->stages_count = request->ranks * zr_pipeline_parts(request->pipeline);
    out->model = *request->model;
    out->model.modules_count = 0;
    out->model.list = (struct zr_parameter_list){0};
    result = take_records(out, request);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, request->ranks, sizeof *tables.by_rank,
                         (void **)&tables.by_rank);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, units_count, sizeof *tables.new_index,
                         (void **)&tables.new_index);
    if (result == ZR_OK)
        result =
            zr_take(host_arena, ZR_TAG_OTHER, units_count, sizeof *tables.readers, (void **)&tables.readers);
    out->model.modules = out->modules;
    out->model.list.units = out->units;
    out->model.list.parameters = out->parameters;
    if (result == ZR_OK)
        result = cut_model(out, request, &tables);
    zr_drop(host_arena, &tables.readers);
    zr_drop(host_arena, &tables.new_index);
    zr_drop(host_arena, &tables.by_rank);
    if (result != ZR_OK)
        zr_cut_close(out);
    return result;
}

void zr_cut_close(struct zr_cut *cut)
{
    if (!cut->host_arena)
        return;
    zr_drop(cut->host_arena, &cut->sharing);
    zr_drop(cut->host_arena, &cut->parameters);
    zr_drop(cut->host_arena, &cut->units);
    zr_drop(cut->host_arena, &cut->ports);
    zr_drop(cut->host_arena, &cut->recomputing_before);
    zr_drop(cut->host_arena, &cut->modules);
    memset(cut, 0, sizeof *cut);
}
