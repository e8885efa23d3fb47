/* sample.h: text from the model, one token after the other: top-k 40, a temperature, and a counter-based
 * generator, so that the same model and seed give the same text. */
#ifndef ZR_TRAIN_SAMPLE_H
#define ZR_TRAIN_SAMPLE_H

#include "alloc/base/system/file.h"
#include "zero/model/transformer.h"

struct zr_sample_options {
    zr_trainer *trainer; /* borrowed; its tokens are overwritten */
    struct zr_shape shape;
    bool bytes;         /* tokens are bytes: the text is shown; else token numbers are */
    const char *prompt; /* "": a newline (bytes) or token 0. With tokens: numbers, spaces between */
    size_t count;       /* tokens to make */
    float temperature;  /* 0: always the likeliest */
    uint64_t seed;
};

/* Prints prompt and text into `out`; control bytes other than newline and tab are shown as \xHH, broken UTF-8
 * likewise. Every rank may call it alike (the model's calls are the same on all). ZR_ERR_HOST_MEMORY. */
zr_result zr_sample_make(const struct zr_sample_options *options, struct zr_text *out);

#endif
