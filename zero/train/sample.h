/* sample.h: generates text token by token with top-k 40, a temperature and a counter-based generator; the
 * same model and seed give the same text. */
#ifndef ZR_TRAIN_SAMPLE_H
#define ZR_TRAIN_SAMPLE_H

#include "alloc/base/system/file.h"
#include "zero/model/transformer.h"

struct zr_sample_options {
    zr_trainer *trainer; /* borrowed; its inputs are overwritten */
    struct zr_shape shape;
    bool bytes;         /* tokens are bytes and shown as text; else token numbers are shown */
    const char *prompt; /* "": a newline (bytes) or token 0. For tokens: numbers separated by spaces */
    size_t count;       /* tokens to generate */
    float temperature;  /* 0: always the likeliest token */
    uint64_t seed;
};

/* Prints prompt and text into `out`; control bytes except newline and tab, and invalid UTF-8, are shown as
 * \xHH. Every rank calls it with the same options, since the model's calls are collective.
 * ZR_ERR_HOST_MEMORY. */
zr_result zr_sample_make(const struct zr_sample_options *options, struct zr_text *out);

#endif
