/* cut.h: the part of a model on one pipeline rank, as a struct zr_model: the modules of its stages, stage by
 * stage, and the units that they read.
 *
 * A stage that receives from another rank begins with a port, and a stage that sends to one ends with a port.
 * A port is a module without forward, backward, units and slots. The output of the first port is the received
 * tensor, stored as the output of the module before it. Consecutive stages of one rank have no ports between
 * them.
 *
 * A unit that modules of several ranks read is stored on all of them. Their gradients are summed. In norms
 * and saved states only the first rank's copy counts. */
#ifndef ZR_MODEL_CUT_H
#define ZR_MODEL_CUT_H

#include <limits.h>

#include "zero/zr_zero.h"

#define ZR_NO_MODULE SIZE_MAX

struct zr_cut_part {
    unsigned stage;
    size_t first, end;      /* range of modules, without ports */
    size_t entry, exit;     /* ports; ZR_NO_MODULE: none */
    unsigned before, after; /* pipeline ranks that the part receives from and sends to */
    unsigned input_part;    /* part of this rank whose output the part reads; UINT_MAX: none, or a port */
    unsigned output_part;   /* part of this rank that reads the part's output; UINT_MAX: none, or a port */
};

struct zr_cut {
    struct zr_model model; /* the part */
    struct zr_cut_part parts[ZR_PIPELINE_PARTS_MAX];
    unsigned parts_count, stages_count, ranks, rank;
    bool shares;       /* some units are on other ranks too */
    unsigned *sharing; /* [sharing_count]: the ranks with the shared units, this rank included */
    unsigned sharing_count;
    /* Records, allocated from the host arena. */
    zr_arena *host_arena;
    struct zr_module *modules;
    struct zr_module_type *ports;
    unsigned ports_count;
    size_t *recomputing_before; /* [modules_count]: earlier modules of the whole model that can recompute */
    struct zr_unit *units;
    struct zr_parameter *parameters;
};

struct zr_cut_request {
    const struct zr_model *model; /* valid; must outlive the cut */
    const struct zr_pipeline *pipeline;
    unsigned ranks, rank; /* pipeline ranks */
    zr_arena *host_arena;
};

/* ZR_ERR_INVALID: the pipeline is inconsistent or does not match the model; zr_last_error() says where. */
zr_result zr_cut_open(struct zr_cut *out, const struct zr_cut_request *request);
void zr_cut_close(struct zr_cut *cut);

/* Whether the stages are placed as a V, two per rank / whether the gradients of parameters are computed apart
 * from those of inputs. */
static inline bool zr_pipeline_is_v(const struct zr_pipeline *pipeline)
{
    return pipeline->schedule == ZR_PIPELINE_VHALF || pipeline->schedule == ZR_PIPELINE_ZB_V;
}
static inline bool zr_pipeline_splits(const struct zr_pipeline *pipeline)
{
    return pipeline->schedule == ZR_PIPELINE_ZB_H1 || pipeline->schedule == ZR_PIPELINE_ZB_V;
}
/* Number of stages per rank / the rank of a stage. */
unsigned zr_pipeline_parts(const struct zr_pipeline *pipeline);
unsigned zr_pipeline_rank_of(const struct zr_pipeline *pipeline, unsigned ranks, unsigned stage);

static inline bool zr_module_is_port(const struct zr_module *module)
{
    return !module->type->forward;
}
/* Number of parts, at least 1 / unit `index` of a part / number of units of all parts. */
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
/* Unit `index` among the units of all parts. */
static inline unsigned zr_module_unit(const struct zr_module *module, unsigned index)
{
    return zr_module_parts(module) > 1 ? module->units[0] + index : module->units[index];
}
/* The module that computes the losses. */
static inline bool zr_module_is_last(const struct zr_module *module)
{
    return module->type->forward && module->type->output_columns == 0;
}
/* Whether a part's first module reads the output of another module. */
static inline bool zr_cut_part_has_input(const struct zr_cut_part *part)
{
    return part->entry != ZR_NO_MODULE || part->input_part != UINT_MAX;
}
/* The part of a module or port. */
unsigned zr_cut_part_of(const struct zr_cut *cut, size_t module);

#endif
