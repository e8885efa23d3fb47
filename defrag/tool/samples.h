/* samples.h: what sampled objects tell of all objects (zr run --trace --small): estimates with standard
 * errors, in all and by the function that allocated. Private to defrag/tool/.
 *
 * A sample of n bytes was drawn with probability p = 1 - exp(-n / mean), independent of the others. The sum
 * of n / p over samples is an unbiased estimate of the bytes, and the sum of (1 - p) (n / p)^2 of its
 * variance (Horvitz and Thompson, 1952). */
#ifndef ZR_TOOL_SAMPLES_H
#define ZR_TOOL_SAMPLES_H

#include "defrag/tool/input.h"

struct zr_estimate {
    double bytes, variance, objects; /* estimates */
    uint64_t samples_count;
};

/* The samples with one label: a function. */
struct zr_sampled_site {
    char label[160];
    struct zr_estimate live, allocated; /* at the end; since the start */
};

struct zr_samples {
    uint64_t mean_bytes; /* one in so many bytes is a sample; 0: the recording has none */
    struct zr_estimate live, allocated;
    struct zr_vector sites; /* struct zr_sampled_site, the most live bytes first */

    /* private */
    struct zr_recording *recording;
    struct zr_vector objects; /* by number: the samples */
    struct zr_number_map addresses, labels;
};

/* Plays the recording. The caller ends *out in any case. */
zr_result zr_samples_find(struct zr_samples *out, struct zr_recording *recording, zr_arena *arena);
void zr_samples_end(struct zr_samples *samples);
/* Print nothing if the recording has no samples. The JSON is `, "samples": {..}`. */
void zr_samples_table(struct zr_text *text, const struct zr_samples *samples);
void zr_samples_json(struct zr_text *text, const struct zr_samples *samples);

#endif
