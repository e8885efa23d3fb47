/* trainable.h: which tensors of a bundled model a run trains, and how: parameter groups, frozen tensors and
 * adapters (LoRA). A pattern is compared with whole names of tensors: * stands for any characters, ? for one.
 */
#ifndef ZR_MODEL_TRAINABLE_H
#define ZR_MODEL_TRAINABLE_H

#include "zero/zr_zero.h"

enum { ZR_PATTERNS_MAX = 16, ZR_PATTERN_ROOM = 96 };

/* Values of an option that may be repeated. */
struct zr_patterns {
    unsigned count;
    char text[ZR_PATTERNS_MAX][ZR_PATTERN_ROOM];
};

/* Low-rank adapters (Hu et al., LoRA, 2021) of the matrices of blocks that match the pattern. The product of
 * an adapted matrix is y = x W + (alpha / rank) (x A) B, with A [rank, in] and B [out, rank] as stored. A
 * starts with normal values of the variance that PEFT's uniform values have, 1 / (3 in), and B with zeros.
 * All other tensors are frozen. Backward computes x A again, so that adapters keep no activations. */
struct zr_lora {
    unsigned rank; /* 0: no adapters */
    float alpha;
    char pattern[ZR_PATTERN_ROOM];
};

struct zr_trainable {
    struct zr_patterns groups; /* see zr_group_rule_read(); the last rule that matches a tensor counts */
    struct zr_patterns frozen; /* patterns of tensors that keep their values */
    bool none;                 /* all tensors are frozen: the run only reads the model */
    struct zr_lora lora;
    size_t layers; /* of the run's model: plans of fewer layers may lack the tensors of a pattern */
};

/* Whether some units have frozen and trained tensors. NULL: no. */
static inline bool zr_trainable_splits(const struct zr_trainable *trainable)
{
    return trainable && (trainable->frozen.count > 0 || trainable->lora.rank > 0);
}

/* A rule of a parameter group, as text: PATTERN:lr=F,decay=F, with at least one of the two. */
struct zr_group_rule {
    char pattern[ZR_PATTERN_ROOM];
    bool has_rate, has_decay;
    struct zr_parameter_group factors; /* of the learning rate and the weight decay */
};
/* Returns NULL, or a message without the text. */
const char *zr_group_rule_read(const char *text, struct zr_group_rule *out);

bool zr_pattern_matches(const char *pattern, const char *name);

/* Whether a tensor with this name is an adapter's. */
bool zr_is_adapter(const char *name);

struct zr_transformer;
/* Applies shape.trainable to the lists of a transformer: adds adapters, freezes units, and a unit with frozen
 * and trained tensors becomes two units of the same module. */
zr_result zr_trainable_split(struct zr_transformer *transformer);
/* ZR_ERR_INVALID: a pattern matches no tensor, or nothing is trained. Models with fewer layers than the run's
 * are not checked. */
zr_result zr_trainable_check(const struct zr_transformer *transformer);
/* Replaces the optimizer's groups by those of shape.trainable, and sets each parameter's group. Does nothing
 * without rules. ZR_ERR_INVALID: more than ZR_GROUPS_MAX pairs of factors. */
zr_result zr_trainable_groups(struct zr_transformer *transformer, struct zr_optimizer_options *optimizer);

#endif
