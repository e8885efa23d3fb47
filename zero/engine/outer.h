/* outer.h: groups of ranks that train apart and exchange outer gradients every few steps: DiLoCo
 * (https://arxiv.org/abs/2311.08105) and Streaming DiLoCo (https://arxiv.org/abs/2501.18512). Private to
 * zero/.
 *
 * The state of a unit has two more slots: the anchor, which is the unit's parameters after its last
 * synchronisation, and the momentum of the outer optimizer. Both are equal in all groups. The trainable units
 * are in fragments, unit i in fragment i modulo their number. A fragment is synchronised every
 * zr_outer.period steps, and one of the fragments every period / fragments steps.
 *
 * EXCHANGE writes anchor - master of the elements that this rank updates to a pool of the arena (tag comm)
 * and starts an operation of zr_outer.comm, which replaces them by the mean over groups, in the order of
 * groups. Packed, each rank adds the packed differences of its part and sends the packed mean. MERGE, delay
 * steps later, moves anchor and master (zr_outer_step) and publishes the parameters as after an update.
 * Without a delay MERGE makes the exchanges itself, and the pool has two units instead of a fragment. */
#ifndef ZR_ENGINE_OUTER_H
#define ZR_ENGINE_OUTER_H

#include "zero/compress/compressor.h"
#include "zero/zr_zero.h"

struct zr_engine;

struct zr_outer_unit {
    bool synchronised; /* false: the unit is frozen */
    unsigned fragment;
    size_t at, shard; /* place in the pool, and elements of each group's part of an exchange */
    zr_ticket ticket;
    struct zr_compressed sum, gather; /* until the ticket has been waited for */
};

struct zr_outer_state {
    struct zr_outer_unit *units; /* [units_count]; NULL: the engine has no groups */
    float *pool;
    struct zr_compressor compressor; /* of a packed exchange */
    bool pending;                    /* an exchange was started and is not merged */
    uint64_t merges;                 /* of fragments, by this process */
    uint64_t planned_bytes;          /* that the exchanges so far send, by zr_outer_bytes() */
};

zr_result zr_outer_open(struct zr_engine *engine);
/* Waits for an exchange that is under way. */
void zr_outer_close(struct zr_engine *engine);

/* ZR_ACTION_EXCHANGE / ZR_ACTION_MERGE, after the step is counted. Steps without a synchronisation do
 * nothing. Collective over the group and over zr_outer.comm. */
zr_result zr_outer_exchange(struct zr_engine *engine);
zr_result zr_outer_merge(struct zr_engine *engine);

/* Bytes that this rank sends while each unit is synchronised once: 2 (G - 1) / G of its masters in fp32, or
 * as many packed numbers, each unit padded to G equal parts. 0 without groups. */
uint64_t zr_outer_bytes(const struct zr_engine *engine);

struct zr_outer_report {
    uint64_t merges;        /* of fragments */
    uint64_t round_bytes;   /* zr_outer_bytes() */
    uint64_t step_bytes;    /* that sums of gradients over groups in each step would send per step */
    uint64_t planned_bytes; /* of the exchanges so far */
    uint64_t sent_bytes, received_bytes; /* counted by the communicator */
};
/* Waits for exchanges that are under way. Zeros without groups. */
void zr_outer_get_report(const struct zr_engine *engine, struct zr_outer_report *out);

#endif
