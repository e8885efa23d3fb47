/* cards.h: the GPUs that can be rehearsed, one row each. zr rehearse lists them, the simulated device answers
 * from them. */
#ifndef ZR_REHEARSE_CARDS_H
#define ZR_REHEARSE_CARDS_H

#include <stdbool.h>
#include <stddef.h>

struct zr_card {
    const char *name;   /* as --device takes it */
    const char *title;  /* as the driver gives it */
    unsigned total_mib; /* that cudaMemGetInfo reports */
    /* An estimate of what a process takes beside its allocations: context, and the loaded kernels of a
     * framework. */
    unsigned context_mib;
    int capability; /* 90: 9.0 */
    int processors, clock_mhz, memory_clock_mhz, bus_bits, level_2_mib;
    int link_gbs;      /* to the host, one way, in 10^9 bytes a second */
    int peer_gbs;      /* to other devices, one way: NVLink's, or the host's link */
    int tensor_tflops; /* of dense 16-bit matrix products */
};

/* NULL: there is no such card. */
const struct zr_card *zr_card_find(const char *name);
/* In the order of the table; NULL: there are no more. */
const struct zr_card *zr_card_at(size_t index);
/* Bytes a second of its memory. */
double zr_card_bandwidth(const struct zr_card *card);
/* Operations a second on numbers of so many bits, at most: 64-bit ones at half the rate of 32-bit ones. */
double zr_card_rate(const struct zr_card *card, int bits);
/* A value of CUdevice_attribute; false: the table does not decide it. */
bool zr_card_attribute(const struct zr_card *card, int which, int *value);

#endif
