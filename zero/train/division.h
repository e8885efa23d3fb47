/* division.h: the micro-batches of a step, divided among data ranks as evenly as possible. Pure functions.
 *
 * Micro-batch g of a step is computed in round g / data_ranks by data rank g % data_ranks. All data ranks
 * have the same number of rounds, so that their collective operations match; in the last round some may have
 * a micro-batch without weight. */
#ifndef ZR_TRAIN_DIVISION_H
#define ZR_TRAIN_DIVISION_H

#include <stdbool.h>
#include <stdint.h>

struct zr_division {
    uint64_t micro_batches; /* of the step, at least data_ranks */
    unsigned data_ranks;    /* at least 1 */
};

/* Micro-batches that each data rank computes, those without weight included. */
static inline unsigned zr_division_rounds(struct zr_division division)
{
    return (unsigned)((division.micro_batches + division.data_ranks - 1) / division.data_ranks);
}

/* Those of a data rank that have weight: its first ones. */
static inline unsigned zr_division_weighted(struct zr_division division, unsigned data_rank)
{
    return (unsigned)((division.micro_batches - data_rank + division.data_ranks - 1) / division.data_ranks);
}

static inline bool zr_division_is_even(struct zr_division division)
{
    return division.micro_batches % division.data_ranks == 0;
}

#endif
