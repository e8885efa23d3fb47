/* optimizers.c: the rows of zero/engine/optimizer.c as options: defaults, refusals and help. See flags.h. */
#include "zero/engine/optimizer.h"

#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/system/file.h"
#include "zero/train/settings/flags.h"

static float *number_of(struct zr_optimizer_options *options, const struct zr_optimizer_number *number)
{
    return (float *)((char *)options + number->offset);
}

/* Words of a list, the last one after `last`. */
struct list {
    struct zr_text *text;
    const char *last; /* " or " */
    unsigned count, done;
};

static void add(struct list *list, const char *before, const char *word)
{
    const char *between = list->done == 0 ? "" : list->done + 1 == list->count ? list->last : ", ";
    zr_text_print(list->text, "%s%s%s", between, before, word);
    list->done++;
}

/* The options whose numbers an optimizer takes. */
static unsigned count_options(const struct zr_optimizer *optimizer)
{
    unsigned count = 0;
    for (unsigned n = 0; n < ZR_NUMBERS_COUNT; n++)
        count += optimizer->numbers[n].taken && zr_optimizer_numbers[n].option;
    return count;
}

void zr_optimizer_resolve(struct zr_train_config *config)
{
    const struct zr_optimizer *optimizer = zr_optimizer_of(config->optimizer.kind);
    struct zr_parameter_group *groups = config->optimizer.groups;
    if (!zr_flag_set(config, "lr"))
        config->rate = optimizer->rate;
    for (unsigned n = 0; n < ZR_NUMBERS_COUNT; n++)
        if (!zr_optimizer_numbers[n].option || !zr_flag_set(config, zr_optimizer_numbers[n].option))
            *number_of(&config->optimizer, &zr_optimizer_numbers[n]) = optimizer->numbers[n].fallback;
    if (zr_compression_sends_signs(&config->compression) && !zr_flag_set(config, "beta2"))
        config->optimizer.beta2 = 0.999f; /* as in 1-bit Adam: the variance stays */
    if (zr_compression_is_by(&config->compression, ZR_METHOD_ONEBIT) &&
        optimizer->numbers[ZR_NUMBER_TRUST_AVERAGE].taken && !zr_flag_set(config, "trust-average"))
        config->optimizer.trust_average = 0.9f; /* as in 1-bit LAMB */
    zr_compress_resolve(config);
    config->optimizer.groups_count = ZR_TRANSFORMER_GROUPS_COUNT; /* the table of options sets other rates */
    groups[ZR_GROUP_MATRICES].rate_factor = 1;
    groups[ZR_GROUP_MATRICES].decay_factor = 1;
    groups[ZR_GROUP_EMBEDDINGS].decay_factor = 1;
    groups[ZR_GROUP_EMBEDDINGS].wide_state = true;
    groups[ZR_GROUP_HEADS] = (struct zr_parameter_group){1, 1, optimizer->wide_heads};
}

bool zr_optimizer_ignores(const struct zr_train_config *config, const char *option)
{
    const struct zr_optimizer *optimizer = zr_optimizer_of(config->optimizer.kind);
    bool ignores = false;
    for (unsigned n = 0; n < ZR_NUMBERS_COUNT; n++)
        if (zr_optimizer_numbers[n].option && strcmp(zr_optimizer_numbers[n].option, option) == 0)
            ignores = !optimizer->numbers[n].taken;
    return ignores;
}

/* Message about the option of a number that the optimizer does not take. */
static const char *untaken_words(const struct zr_optimizer *optimizer, unsigned number)
{
    const char *option = zr_optimizer_numbers[number].option;
    char buffer[256];
    struct zr_text text;
    struct list takers = {&text, " or ", 0, 0}, others = {&text, " and ", count_options(optimizer), 0};
    zr_text_start(&text, NULL, buffer, sizeof buffer - 1);
    for (unsigned kind = 0; kind < ZR_OPTIMIZERS_COUNT; kind++)
        takers.count += zr_optimizer_of(kind)->numbers[number].taken;
    zr_text_print(&text, "--%s requires --optimizer ", option);
    for (unsigned kind = 0; kind < ZR_OPTIMIZERS_COUNT; kind++)
        if (zr_optimizer_of(kind)->numbers[number].taken)
            add(&takers, "", zr_optimizer_of(kind)->name);
    zr_text_print(&text, others.count > 0 ? "; %s takes " : "; leave it out", optimizer->name);
    for (unsigned n = 0; n < ZR_NUMBERS_COUNT; n++)
        if (optimizer->numbers[n].taken && zr_optimizer_numbers[n].option)
            add(&others, "--", zr_optimizer_numbers[n].option);
    buffer[text.used_bytes] = '\0';
    zr_fail(ZR_ERR_INVALID, "%s", buffer);
    return zr_last_error();
}

const char *zr_optimizer_conflict(const struct zr_train_config *config)
{
    const struct zr_optimizer *optimizer = zr_optimizer_of(config->optimizer.kind);
    const struct {
        bool on;
        const char *reason, *options;
    } excluded[] = {
        {config->shape.tensor > 1 || zr_shape_tiles(&config->shape) > 1, optimizer->not_in_parts,
         "--tp and --tile"},
        {config->speculative_bytes > 0, optimizer->not_ahead, "--speculative-update"},
    };
    for (size_t i = 0; i < sizeof excluded / sizeof *excluded; i++)
        if (excluded[i].on && excluded[i].reason) {
            zr_fail(ZR_ERR_INVALID, "--optimizer %s %s and excludes %s; give --optimizer adamw",
                    optimizer->name, excluded[i].reason, excluded[i].options);
            return zr_last_error();
        }
    if (optimizer->numbers[ZR_NUMBER_TRUST_MAX].taken &&
        config->optimizer.trust_max < config->optimizer.trust_min)
        return "--trust-max is below --trust-min; exchange them";
    for (unsigned n = 0; n < ZR_NUMBERS_COUNT; n++)
        if (zr_optimizer_numbers[n].option && !optimizer->numbers[n].taken &&
            zr_flag_given(config, zr_optimizer_numbers[n].option))
            return untaken_words(optimizer, n);
    return NULL;
}

enum { NUMBERS_OF_LINE = 5 }; /* in the help */

void zr_optimizers_help(struct zr_text *text)
{
    zr_text_print(text, "\nOptimizers, with the defaults of their options\n");
    for (unsigned kind = 0; kind < ZR_OPTIMIZERS_COUNT; kind++) {
        const struct zr_optimizer *optimizer = zr_optimizer_of(kind);
        zr_text_print(text, "  %-28s  %s\n  %-28s  lr %g", optimizer->name, optimizer->help, "",
                      (double)optimizer->rate);
        for (unsigned n = 0, on_line = 1; n < ZR_NUMBERS_COUNT; n++)
            if (optimizer->numbers[n].taken && zr_optimizer_numbers[n].option) {
                const bool fits = on_line % NUMBERS_OF_LINE > 0;
                zr_text_print(text, "%s%*s%s %g", fits ? ", " : ",\n", fits ? 0 : 32, "",
                              zr_optimizer_numbers[n].option, (double)optimizer->numbers[n].fallback);
                on_line++;
            }
        if (optimizer->not_in_parts)
            zr_text_print(text, "\n  %-28s  excludes --tp, --tile%s", "",
                          optimizer->not_ahead ? ", --speculative-update" : "");
        zr_text_print(text, "\n");
    }
}

void zr_optimizer_state_words(struct zr_text *text, const struct zr_train_config *config)
{
    const struct zr_optimizer *optimizer = zr_optimizer_with(&config->optimizer, zr_train_keeps(config));
    struct list slots = {text, " and ", optimizer->slots_count, 0};
    for (unsigned s = 0; s < optimizer->slots_count; s++)
        add(&slots, "", optimizer->slots[s].name);
}
