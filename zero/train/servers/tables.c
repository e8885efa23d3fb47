/* tables.c: the model of a run as tables of parameter servers. See servers.h. */
#include "zero/train/servers/servers.h"

#include <stdio.h>
#include <string.h>

#include "zero/comm/take.h"
#include "zero/train/settings/args.h"

static struct zr_ps_table table_of(const struct zr_train_config *config, const struct zr_parameter_list *list,
                                   const struct zr_parameter *p, const struct zr_parameter_group *group)
{
    const unsigned gradients = list->units[p->unit].gradient_uses * config->micro_batches;
    struct zr_ps_table table = {
        .elements = p->shape[0] * (p->shape[1] > 0 ? p->shape[1] : 1),
        .precision = zr_train_differs(config) ? ZR_PRECISION_FP32 : zr_train_precision(config),
        .pushes = config->reduce == ZR_REDUCE_ONCE || zr_train_differs(config) ? 1 : gradients,
        .rate_factor = group->rate_factor,
        .decay_factor = group->decay_factor,
        .filled = true};
    snprintf(table.name, sizeof table.name, "%s", p->name);
    return table;
}

static void fill_tables(struct zr_served_tables *out, const struct zr_train_config *config,
                        const struct zr_parameter_list *list, const struct zr_optimizer_options *optimizer)
{
    size_t in_unit = 0;
    for (size_t i = 0; i < list->parameters_count; i++) {
        const struct zr_parameter *p = &list->parameters[i];
        in_unit = i > 0 && list->parameters[i - 1].unit == p->unit ? in_unit + 1 : 1;
        out->most = in_unit > out->most ? in_unit : out->most;
        out->numbers[i] = UINT32_MAX;
        if (zr_unit_is_frozen(&list->units[p->unit]))
            continue;
        out->numbers[i] = out->options.tables_count;
        out->tables[out->options.tables_count++] = table_of(config, list, p, &optimizer->groups[p->group]);
    }
}

zr_result zr_served_tables_make(struct zr_served_tables *out, const struct zr_train_config *config,
                                zr_arena *host_arena)
{
    struct zr_shape shape = zr_train_shape(config, 0);
    struct zr_optimizer_options optimizer = config->optimizer;
    struct zr_transformer transformer;
    *out = (struct zr_served_tables){.options = {.struct_bytes = sizeof out->options,
                                                 .workers = config->world,
                                                 .servers = config->servers,
                                                 .successors = config->max_restarts > 0,
                                                 .timing = config->timing,
                                                 .staleness = config->correction}};
    zr_result result = zr_transformer_open(&transformer, &shape, NULL, host_arena);
    if (result != ZR_OK)
        return result;
    result = zr_trainable_groups(&transformer, &optimizer);
    const struct zr_parameter_list *list = &transformer.model.list;
    out->parameters_count = list->parameters_count;
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, list->parameters_count, sizeof *out->tables,
                         (void **)&out->tables);
    if (result == ZR_OK)
        result = zr_take(host_arena, ZR_TAG_OTHER, list->parameters_count, sizeof *out->numbers,
                         (void **)&out->numbers);
    if (result == ZR_OK)
        fill_tables(out, config, list, &optimizer);
    out->options.tables = out->tables;
    optimizer.clip = 0;         /* with differences of parameters workers clip */
    optimizer.groups_count = 0; /* tables have the factors */
    memset(optimizer.groups, 0, sizeof optimizer.groups);
    out->options.optimizer = optimizer;
    zr_transformer_close(&transformer);
    return result;
}

void zr_served_tables_end(struct zr_served_tables *tables, zr_arena *host_arena)
{
    zr_drop(host_arena, &tables->numbers);
    zr_drop(host_arena, &tables->tables);
}
