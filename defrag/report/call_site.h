/* call_site.h: what the frames of a stack tell: which belong to an allocator, and what the code does; which
 * call sites hold the live blocks. Private to defrag/. */
#ifndef ZR_CALL_SITE_H
#define ZR_CALL_SITE_H

#include "defrag/report/memory.h"

/* Whether a frame belongs to an allocator or has no information. */
bool zr_frame_is_noise(const char *frame);

/* The frame that stands for a stack: its innermost one of a program's Python, or else of a library's Python,
 * or else the innermost that is not noise. False: the stack has no such frame. */
bool zr_site_frame(struct zr_recording *recording, uint32_t stack, char out[ZR_FRAME_BYTES]);

/* What the innermost telling frame does; from the names of PyTorch's functions and files. */
enum zr_role {
    ZR_ROLE_UNKNOWN = 0,
    ZR_ROLE_LOADING,   /* weights: a checkpoint, or a module's initial values */
    ZR_ROLE_OPTIMIZER, /* state of an optimizer */
    ZR_ROLE_BACKWARD,
    ZR_ROLE_FORWARD,
};
enum zr_role zr_role_of(struct zr_recording *recording, uint32_t stack);
/* "parameters", "optimizer state", "gradients", "activations"; "other" if unknown. */
const char *zr_role_name(enum zr_role role);

/* The blocks of one tag and role, and of stacks with one zr_site_frame(), at a point in time. */
struct zr_holder {
    uint64_t bytes, blocks_count;
    uint64_t before_bytes, before_blocks_count; /* of growth: at the earlier point */
    uint32_t stack;                             /* one of them; 0: unknown */
    uint8_t tag;
    enum zr_role role;
    bool is_file;   /* torch.load() made them: a checkpoint */
    bool evaluates; /* a function validates, evaluates or predicts */
    bool temporary; /* none lives in two phases of a step: growth.h */
};

/* Finds the holder of a stack. */
struct zr_holder_finder {
    struct zr_recording *recording; /* borrowed */
    struct zr_vector *holders;      /* struct zr_holder; borrowed */
    struct zr_number_map stacks, sites;
};
/* Allocates nothing, so it cannot fail. */
void zr_holder_finder_init(struct zr_holder_finder *out, struct zr_recording *recording,
                           struct zr_vector *holders);
void zr_holder_finder_end(struct zr_holder_finder *finder);
/* *out is valid until the next call. `like` has stack, tag and temporary. Returns the arena's error. */
zr_result zr_holder_find(struct zr_holder_finder *finder, const struct zr_holder *like,
                         struct zr_holder **out);
/* The category of a holder: its tag, or "temporary", or else its role. */
const char *zr_holder_category(const struct zr_holder *holder);
/* Weights that are held twice: a holder of at least an eighth of all bytes, with blocks of the same average
 * size as those of another one that loads weights, and at least half as many. False: none. */
struct zr_twins {
    const struct zr_holder *weights, *again; /* again: the checkpoint, or the later one */
};
bool zr_holders_twins(const struct zr_vector *holders, struct zr_twins *out);

#endif
