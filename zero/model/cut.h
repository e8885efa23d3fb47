/* cut.h: the part of a model that a rank of a pipeline has: the modules of its stages, one stage after the
 * other, as a model of their own, with the units that they read.
 *
 * Where a stage's input comes from another rank, a port stands before its modules, and one behind them where
 * its output goes to one: modules without forward, backward, units and slots. The output of the first is what
 * is received, and is kept as the output of the module before it would have been. Two stages in a row on one
 * rank have no ports between them.
 *
 * A unit that modules of several ranks read is stored by all of them; the first one counts, others are
 * copies, and their gradients are added up. */
#ifndef ZR_MODEL_CUT_H
#define ZR_MODEL_CUT_H

#include <limits.h>

#include "zero/zr_zero.h"

#define ZR_NO_MODULE SIZE_MAX

struct zr_cut_part {
    unsigned stage;
    size_t first, end;      /* its modules, without ports */
    size_t entry, exit;     /* ports; ZR_NO_MODULE: none */
    unsigned before, after; /* ranks of the pipeline that it receives from, and sends to */
    unsigned input_part;    /* without an entry: the part whose output it reads; UINT_MAX: none, or a port */
    unsigned output_part;   /* likewise: the part that reads its output */
};

struct zr_cut {
    struct zr_model model; /* the part */
    struct zr_cut_part parts[ZR_PIPELINE_PARTS_MOST];
    unsigned parts_count, stages_count, ranks, rank;
    bool shares;       /* some unit of it is other ranks' too: */
    unsigned *sharing; /* these ranks', this one included */
    unsigned sharing_count;
    /* Records, of the host arena. */
    zr_arena *host_arena;
    struct zr_module *modules;
    struct zr_module_type *ports;
    unsigned ports_count;
    size_t *recomputing_before; /* [modules_count]: modules of the whole model before it that can recompute */
    struct zr_unit *units;
    struct zr_parameter *parameters;
};

/* What is cut, and for whom. */
struct zr_cut_request {
    const struct zr_model *model; /* checked; borrowed as long as the cut */
    const struct zr_pipeline *pipeline;
    unsigned ranks, rank; /* of the pipeline */
    zr_arena *host_arena;
};

/* ZR_ERR_INVALID: a pipeline that contradicts itself or the model; the words say where. */
zr_result zr_cut_open(struct zr_cut *out, const struct zr_cut_request *request);
void zr_cut_close(struct zr_cut *cut);

/* Stages of each rank, and the rank of a stage. */
unsigned zr_pipeline_parts(const struct zr_pipeline *pipeline);
unsigned zr_pipeline_rank_of(const struct zr_pipeline *pipeline, unsigned ranks, unsigned stage);

static inline bool zr_module_is_port(const struct zr_module *module)
{
    return !module->type->forward;
}
/* Parts, at least 1; the units that one of them reads, and those of all. */
static inline unsigned zr_module_parts(const struct zr_module *module)
{
    return module->type->parts > 1 ? module->type->parts : 1;
}
static inline unsigned zr_module_part_unit(const struct zr_module *module, unsigned part, unsigned index)
{
    return module->units[index] + part;
}
static inline unsigned zr_module_units(const struct zr_module *module)
{
    return zr_module_parts(module) * module->units_count;
}
/* Unit `index` of all. */
static inline unsigned zr_module_unit(const struct zr_module *module, unsigned index)
{
    return zr_module_parts(module) > 1 ? module->units[0] + index : module->units[index];
}
/* The model ends there, with losses. */
static inline bool zr_module_is_last(const struct zr_module *module)
{
    return module->type->forward && module->type->output_columns == 0;
}
/* Its first module reads an output: the one before it in the row. */
static inline bool zr_cut_part_has_input(const struct zr_cut_part *part)
{
    return part->entry != ZR_NO_MODULE || part->input_part != UINT_MAX;
}
/* The part that a module belongs to, ports included. */
unsigned zr_cut_part_of(const struct zr_cut *cut, size_t module);

#endif
