/* graph.h: a training step as a CUDA graph. After a step without driver calls for memory, addresses repeat:
 * the next step is captured and launched as a graph, and each later step copies its inputs and rates and
 * launches the graph again. Results have the bits of a step without a graph. Private to zero/step/; trainer's
 * thread only.
 *
 * Granules that are mapped when the graph is captured remain fixed while the graph exists. The loss scale is
 * an argument of captured kernels, so a new loss scale requires a new graph. Steps are captured only if
 * streams order all their work (zr_engine_defers()). */
#ifndef ZR_STEP_GRAPH_H
#define ZR_STEP_GRAPH_H

#include "alloc/zr.h"

struct zr_trainer;

struct zr_step_graph {
    bool wanted;
    void *graph;          /* NULL: none */
    float loss_scale;     /* captured loss scale */
    uint64_t calls_count; /* driver calls of the arena's backend at the begin of the current step */
    bool steady;          /* the last step ran without a graph and without driver calls */
    enum {
        ZR_GRAPH_NONE,
        ZR_GRAPH_RECORDS,
        ZR_GRAPH_REPEATS,
        ZR_GRAPH_STATES
    } now; /* the current step is captured / launches the graph */
    uint64_t launches_count;
};

/* Enables or disables graphs for the next steps. Disabling destroys the graph and releases the granules. */
zr_result zr_step_graph_want(struct zr_trainer *trainer, bool wanted);

/* Before a step: decides whether it is captured or launches the graph. Collective. */
zr_result zr_step_graph_begin(struct zr_trainer *trainer);
/* Ends the capture / launches the graph. */
zr_result zr_step_graph_record(struct zr_trainer *trainer);
zr_result zr_step_graph_launch(struct zr_trainer *trainer);
/* After a step; a failed step (`well` false) drops an unfinished capture. */
void zr_step_graph_end(struct zr_trainer *trainer, bool well);
/* Destroys the graph; the next steady step captures another. */
void zr_step_graph_drop(struct zr_trainer *trainer);

#endif
