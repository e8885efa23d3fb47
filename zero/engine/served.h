/* served.h: units whose masters and optimizer state parameter servers keep and update: see struct zr_servers.
 * Private to engine/.
 *
 * A worker's step has no update: gathers pull a unit's parameters once per step, reductions push its
 * gradients, as a call of their path (gradients.h), and CLOCK ends the step. These calls travel in the thread
 * of engine->copies, in the order of the step, while the step computes: the ticket of a pull is
 * parameter_copy, for which the unit's gather waits, and that of a push gradient_copy, for which the unit's
 * next gradients and the end of the step wait. They read and write the pools of parameters and gradients, so
 * they take no memory. CLOCK is the last call of a step and is waited for: between steps none is under way,
 * and no pull overtakes it.
 *
 * The state of a unit is in memory (tag offload) while the unit is taken, so that saves, loads and initial
 * values work as with an offload file (state_served.c). */
#ifndef ZR_ENGINE_SERVED_H
#define ZR_ENGINE_SERVED_H

#include "zero/engine/engine.h"

static inline bool zr_engine_is_served(const struct zr_engine *engine)
{
    return engine->options.servers.on;
}

/* Starts to pull the parameters of a unit and of the next three, if they were not pulled in this step and are
 * not frozen. */
zr_result zr_served_pull(struct zr_engine *engine, size_t unit);
/* Computes the squares of a unit's gradients, and starts to push the gradients if they are finite / adds the
 * squares to those of the step's earlier pushes. */
zr_result zr_served_push(struct zr_engine *engine, size_t unit);
zr_result zr_served_push_each(struct zr_engine *engine, size_t unit);
/* Waits for all calls under way, before the step's thread calls the servers. No effect without servers. */
zr_result zr_served_await(struct zr_engine *engine);
/* Takes the memory of a save once, between steps: that of the unit with the most state. A byte plan and every
 * run do this, so that their peaks agree with and without a save. No effect without servers. */
zr_result zr_served_touch(struct zr_engine *engine);
/* Ends the step at the servers; the next gathers pull. */
zr_result zr_served_clock(struct zr_engine *engine, float rate);

#endif
