/* graph.h: a step as a graph of the card's. When a step has called no driver for memory, all that it asks for
 * lies where it lay: the next one is recorded while it is asked for, then launched, and from then on a step
 * is its inputs, its rates and one launch. Its bits are those of a step that is asked for. Private to
 * zero/step/.
 *
 * What the graph refers to stays: granules that are mapped when it is made are fixed while it is there. A
 * step that has another loss scale is recorded anew, for that is an argument. Where streams do not order all
 * of the step (see zr_engine_defers()) there are no graphs. The trainer's thread. */
#ifndef ZR_STEP_GRAPH_H
#define ZR_STEP_GRAPH_H

#include "alloc/zr.h"

struct zr_trainer;

struct zr_step_graph {
    bool wanted;
    void *graph;           /* NULL: none */
    float loss_scale;      /* that it was recorded with */
    uint64_t calls_count;  /* of the arena's backend, when the step under way began */
    bool steady;           /* the last step was asked for, and had none */
    bool records, repeats; /* the step under way */
    uint64_t launches_count;
};

/* From now on steps are graphs when they can be / no more: what there is goes, and the granules may move. */
zr_result zr_step_graph_want(struct zr_trainer *trainer, bool wanted);

/* Before a step: decides whether it is recorded, or repeats the graph. Collective. */
zr_result zr_step_graph_begin(struct zr_trainer *trainer);
/* All of the step has been asked for, or is in the graph: it is launched. Does nothing of a step that is
 * neither. */
zr_result zr_step_graph_launch(struct zr_trainer *trainer);
/* After it, well or not: what was being recorded is dropped. */
void zr_step_graph_end(struct zr_trainer *trainer, bool well);
/* The graph goes; the next steady step makes another. */
void zr_step_graph_drop(struct zr_trainer *trainer);

#endif
