/* trainable.c: see trainable.h. */
#include "zero/model/trainable.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zero/comm/take.h"
#include "zero/model/transformer.h"

/* ---- Patterns ------------------------------------------------------------------------------------------ */

bool zr_pattern_matches(const char *pattern, const char *name)
{
    const char *star = NULL,
               *retry = NULL; /* the last * and the first character after those that it stands for */
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            retry = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++retry;
        } else {
            return false;
        }
    }
    return pattern[strspn(pattern, "*")] == '\0';
}

static bool matches_any(const struct zr_patterns *patterns, const char *name)
{
    for (unsigned i = 0; i < patterns->count; i++)
        if (zr_pattern_matches(patterns->text[i], name))
            return true;
    return false;
}

/* Reads a factor of 0 to 1000; returns what follows it, NULL: not a factor. */
static const char *read_factor(const char *text, float *out)
{
    char *end;
    double number = strtod(text, &end);
    if (!strchr("0123456789.", text[0]) || end == text || !(number >= 0 && number <= 1000) ||
        memchr(text, 'x', (size_t)(end - text)))
        return NULL;
    *out = (float)number;
    return end;
}

const char *zr_group_rule_read(const char *text, struct zr_group_rule *out)
{
    static const char syntax[] =
        "not a group; give PATTERN:lr=F,decay=F, with one or both factors from 0 to 1000";
    const char *colon = strrchr(text, ':');
    *out = (struct zr_group_rule){.has_rate = false};
    if (!colon || colon == text || (size_t)(colon - text) >= sizeof out->pattern)
        return syntax;
    memcpy(out->pattern, text, (size_t)(colon - text));
    for (const char *at = colon; at && *at;) {
        bool rate = strncmp(at + 1, "lr=", 3) == 0, decay = strncmp(at + 1, "decay=", 6) == 0;
        if ((!rate && !decay) || (rate ? out->has_rate : out->has_decay))
            return syntax;
        out->has_rate |= rate;
        out->has_decay |= decay;
        at = read_factor(at + (rate ? 4 : 7), rate ? &out->factors.rate_factor : &out->factors.decay_factor);
        if (!at || (*at && *at != ','))
            return syntax;
    }
    return NULL;
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

/* The pattern of a value: the value, or the part before the factors of a group. */
static void pattern_of(const char *value, bool group, char out[ZR_PATTERN_ROOM])
{
    struct zr_group_rule rule;
    bool read = group && !zr_group_rule_read(value, &rule);
    snprintf(out, ZR_PATTERN_ROOM, "%s", read ? rule.pattern : value);
}

static zr_result check_patterns(const struct zr_parameter_list *list, const struct zr_patterns *patterns,
                                const char *option)
{
    for (unsigned i = 0; i < patterns->count; i++) {
        char pattern[ZR_PATTERN_ROOM];
        bool found = false;
        pattern_of(patterns->text[i], option[0] == 'g', pattern);
        for (size_t p = 0; p < list->parameters_count && !found; p++)
            found = zr_pattern_matches(pattern, list->parameters[p].name);
        if (!found)
            return zr_fail(
                ZR_ERR_INVALID, "--%s: no tensor of the model matches '%s'; its tensors are %s, %s, .., %s",
                option, pattern, list->parameters[0].name, list->parameters[list->parameters_count / 2].name,
                list->parameters[list->parameters_count - 1].name);
    }
    return ZR_OK;
}

bool zr_is_adapter(const char *name)
{
    return strstr(name, ".lora_A.") || strstr(name, ".lora_B.");
}

/* Adapters exist, and are not larger than their matrices. */
static zr_result check_adapters(const struct zr_parameter_list *list, const struct zr_lora *lora)
{
    bool found = false;
    for (size_t p = 0; p < list->parameters_count; p++) {
        const struct zr_parameter *parameter = &list->parameters[p];
        bool b = strstr(parameter->name, ".lora_B.") != NULL;
        size_t width = parameter->shape[!b];
        if (!zr_is_adapter(parameter->name))
            continue;
        found = true;
        if (lora->rank > width)
            return zr_fail(ZR_ERR_INVALID,
                           "--lora %u: the rank is above the width of the matrix of %s, %zu; give "
                           "at most %zu",
                           lora->rank, parameter->name, width, width);
    }
    return found ? ZR_OK
                 : zr_fail(ZR_ERR_INVALID, "--lora: no matrix of a block matches '%s'; names are such as %s",
                           lora->pattern, list->parameters[list->parameters_count / 2].name);
}

zr_result zr_trainable_check(const struct zr_transformer *transformer)
{
    const struct zr_trainable *trainable = transformer->shape.trainable;
    const struct zr_parameter_list *list = &transformer->model.list;
    bool trains = trainable && trainable->none;
    if (!trainable || transformer->shape.layers < trainable->layers)
        return ZR_OK;
    zr_result result = check_patterns(list, &trainable->groups, "group");
    if (result == ZR_OK)
        result = check_patterns(list, &trainable->frozen, "freeze");
    if (result == ZR_OK && trainable->lora.rank > 0)
        result = check_adapters(list, &trainable->lora);
    for (size_t u = 0; u < list->units_count; u++)
        trains |= !zr_unit_is_frozen(&list->units[u]);
    return result != ZR_OK || trains
               ? result
               : zr_fail(ZR_ERR_INVALID, "--freeze leaves no tensor to train; leave a pattern out");
}

/* ---- Groups -------------------------------------------------------------------------------------------- */

/* Index of a pair of factors, which is added if it is new; ZR_GROUPS_MAX: the table is full. */
static unsigned group_of(struct zr_optimizer_options *optimizer, struct zr_parameter_group factors)
{
    for (unsigned g = 0; g < optimizer->groups_count; g++)
        if (optimizer->groups[g].rate_factor == factors.rate_factor &&
            optimizer->groups[g].decay_factor == factors.decay_factor &&
            optimizer->groups[g].wide_state == factors.wide_state)
            return g;
    if (optimizer->groups_count == ZR_GROUPS_MAX)
        return ZR_GROUPS_MAX;
    optimizer->groups[optimizer->groups_count] = factors;
    return optimizer->groups_count++;
}

zr_result zr_trainable_groups(struct zr_transformer *transformer, struct zr_optimizer_options *optimizer)
{
    const struct zr_trainable *trainable = transformer->shape.trainable;
    const struct zr_optimizer_options given = *optimizer;
    if (!trainable || trainable->groups.count == 0)
        return ZR_OK;
    optimizer->groups_count = 0;
    for (size_t i = 0; i < transformer->model.list.parameters_count; i++) {
        struct zr_parameter *p = &transformer->parameters[i];
        struct zr_parameter_group factors = given.groups[p->group], defaults;
        if (given.groups_count == 0)
            factors =
                (struct zr_parameter_group){.rate_factor = 1, .decay_factor = p->group != ZR_GROUP_NO_DECAY};
        defaults = factors;
        for (unsigned r = 0; r < trainable->groups.count; r++) {
            struct zr_group_rule rule;
            if (zr_group_rule_read(trainable->groups.text[r], &rule) ||
                !zr_pattern_matches(rule.pattern, p->name))
                continue;
            factors = (struct zr_parameter_group){
                .rate_factor = rule.has_rate ? rule.factors.rate_factor : defaults.rate_factor,
                .decay_factor = rule.has_decay ? rule.factors.decay_factor : defaults.decay_factor,
                .wide_state = defaults.wide_state};
        }
        p->group = group_of(optimizer, factors);
        if (p->group == ZR_GROUPS_MAX)
            return zr_fail(ZR_ERR_INVALID,
                           "--group: the tensors have more than %d pairs of factors of learning rate and "
                           "weight decay; give fewer groups",
                           ZR_GROUPS_MAX);
    }
    return ZR_OK;
}

/* ---- Units --------------------------------------------------------------------------------------------- */

enum { NO_UNIT = UINT32_MAX };

/* The units that an original unit became. */
struct halves {
    unsigned frozen, trained; /* NO_UNIT: none */
    bool block;               /* the unit of a block */
};

/* New lists of a transformer. */
struct split {
    struct zr_transformer *transformer;
    struct zr_parameter *parameters;
    struct zr_unit *units;
    unsigned char *places; /* [parameters_count]: see zr_module.places */
    struct halves *halves; /* [units_count], by original unit */
    size_t parameters_count, units_count;
};

/* Parameters [first, end) of an original unit. */
struct unit_range {
    unsigned unit;
    size_t first, end;
};

static void add_parameter(struct split *split, const struct zr_parameter *parameter, size_t place)
{
    struct zr_parameter *p = &split->parameters[split->parameters_count];
    *p = *parameter;
    p->unit = (unsigned)split->units_count;
    split->places[split->parameters_count++] = (unsigned char)place;
}

/* Adds A and B of a block's matrix `matrix`, if they are adapted and in this half. */
static void add_adapter(struct split *split, const struct zr_parameter *matrix, unsigned index, bool frozen)
{
    const struct zr_transformer *t = split->transformer;
    const struct zr_architecture_table *table = t->table;
    const struct zr_trainable *trainable = t->shape.trainable;
    size_t in = matrix->shape[table->turned], out = matrix->shape[!table->turned],
           stem = strlen(matrix->name) - strlen("weight");
    if (!zr_pattern_matches(trainable->lora.pattern, matrix->name))
        return;
    for (unsigned b = 0; b < 2; b++) {
        struct zr_parameter p = {.shape = {b ? out : trainable->lora.rank, b ? trainable->lora.rank : in},
                                 .group = ZR_GROUP_MATRICES,
                                 .init_deviation = b ? 0 : 1 / sqrtf(3 * (float)in)};
        snprintf(p.name, sizeof p.name, "%.*slora_%c.weight", (int)stem, matrix->name, b ? 'B' : 'A');
        if (matches_any(&trainable->frozen, p.name) == frozen)
            add_parameter(split, &p, table->block_tensors + 2 * index + b);
    }
}

/* Adds the tensors of a unit that are frozen, or the others, as a unit. Returns its index. */
static unsigned add_half(struct split *split, struct unit_range range, bool frozen)
{
    struct zr_transformer *t = split->transformer;
    const struct zr_architecture_table *table = t->table;
    const struct zr_trainable *trainable = t->shape.trainable;
    struct zr_unit *half = &split->units[split->units_count];
    size_t before = split->parameters_count;
    for (size_t i = range.first; i < range.end; i++) {
        const struct zr_parameter *p = &t->parameters[i];
        if ((trainable->lora.rank > 0 || matches_any(&trainable->frozen, p->name)) == frozen)
            add_parameter(split, p, i - range.first);
    }
    for (unsigned i = 0; i < table->matrices_count && trainable->lora.rank > 0; i++)
        if (split->halves[range.unit].block && zr_block_has(&t->shape, table->matrices[i]))
            add_adapter(split, &t->parameters[range.first + zr_block_index(&t->shape, 0, table->matrices[i])],
                        i, frozen);
    if (split->parameters_count == before)
        return NO_UNIT;
    *half = t->units[range.unit];
    if (frozen)
        half->gradient_uses = 0;
    return (unsigned)split->units_count++;
}

static void split_unit(struct split *split, struct unit_range range)
{
    struct halves *halves = &split->halves[range.unit];
    halves->frozen = add_half(split, range, true);
    halves->trained = add_half(split, range, false);
    if (halves->frozen != NO_UNIT && halves->trained != NO_UNIT) {
        struct zr_unit *unit = &split->units[halves->frozen];
        size_t used = strlen(unit->name);
        snprintf(unit->name + used, sizeof unit->name - used, ".frozen");
    }
}

/* Replaces a module's units. */
static void split_module(struct split *split, size_t index)
{
    struct zr_transformer *t = split->transformer;
    struct zr_module old = t->modules[index], *module = &t->modules[index];
    unsigned char(*places)[ZR_UNIT_PARAMETERS_MAX] = &t->places[index * ZR_MODULE_UNITS_MAX];
    size_t at = 0;
    module->units_count = 0;
    for (unsigned i = 0; i < old.units_count; i++) {
        struct halves halves = split->halves[old.units[i]];
        if (halves.frozen != NO_UNIT)
            module->units[module->units_count++] = halves.frozen;
        if (halves.trained != NO_UNIT)
            module->units[module->units_count++] = halves.trained;
    }
    if (old.units_count > 1) /* units of one tensor each */
        return;
    module->places = places;
    while (split->parameters[at].unit != module->units[0])
        at++;
    for (unsigned i = 0; i < module->units_count; i++)
        for (size_t p = 0; at < split->parameters_count && split->parameters[at].unit == module->units[i];
             at++)
            places[i][p++] = split->places[at];
}

static zr_result take_lists(struct split *split)
{
    struct zr_transformer *t = split->transformer;
    const struct zr_parameter_list *list = &t->model.list;
    size_t modules = t->model.modules_count, adapters = 2 * ZR_BLOCK_MATRICES_MAX * t->shape.layers,
           parameters = list->parameters_count + (t->shape.trainable->lora.rank > 0 ? adapters : 0);
    zr_result result = zr_take(t->host_arena, ZR_TAG_OTHER, parameters, sizeof *split->parameters,
                               (void **)&split->parameters);
    if (result == ZR_OK)
        result = zr_take(t->host_arena, ZR_TAG_OTHER, 2 * list->units_count, sizeof *split->units,
                         (void **)&split->units);
    if (result == ZR_OK)
        result = zr_take(t->host_arena, ZR_TAG_OTHER, modules * ZR_MODULE_UNITS_MAX, sizeof *t->places,
                         (void **)&t->places);
    if (result == ZR_OK)
        result =
            zr_take(t->host_arena, ZR_TAG_OTHER, parameters, sizeof *split->places, (void **)&split->places);
    if (result == ZR_OK)
        result = zr_take(t->host_arena, ZR_TAG_OTHER, list->units_count, sizeof *split->halves,
                         (void **)&split->halves);
    return result;
}

static void split_units(struct split *split)
{
    struct zr_transformer *t = split->transformer;
    const struct zr_parameter_list *list = &t->model.list;
    memset(split->halves, 0, list->units_count * sizeof *split->halves);
    for (size_t m = 0; m < t->model.modules_count; m++)
        split->halves[t->modules[m].units[0]].block |= t->modules[m].type == &t->types[ZR_TYPE_BLOCK];
    for (struct unit_range range = {.end = 0}; range.end < list->parameters_count;) {
        range.first = range.end;
        range.unit = list->parameters[range.first].unit;
        while (range.end < list->parameters_count && list->parameters[range.end].unit == range.unit)
            range.end++;
        split_unit(split, range);
    }
    for (size_t m = 0; m < t->model.modules_count; m++)
        split_module(split, m);
}

zr_result zr_trainable_split(struct zr_transformer *transformer)
{
    struct zr_parameter_list *list = &transformer->model.list;
    const struct zr_trainable *trainable = transformer->shape.trainable;
    zr_arena *host_arena = transformer->host_arena;
    struct split split = {.transformer = transformer};
    for (size_t u = 0; u < list->units_count && trainable && trainable->none; u++)
        transformer->units[u].gradient_uses = 0;
    if (!zr_trainable_splits(trainable))
        return ZR_OK;
    zr_result result = take_lists(&split);
    if (result == ZR_OK) {
        struct zr_slot *slots = &transformer->slots[ZR_TYPE_BLOCK][transformer->table->adapter_slot];
        slots[0].columns = slots[1].columns = trainable->lora.rank;
        split_units(&split);
        zr_drop(host_arena, &transformer->parameters);
        zr_drop(host_arena, &transformer->units);
        list->parameters = transformer->parameters = split.parameters;
        list->units = transformer->units = split.units;
        list->parameters_count = split.parameters_count;
        list->units_count = split.units_count;
    } else {
        zr_drop(host_arena, &split.units);
        zr_drop(host_arena, &split.parameters);
    }
    zr_drop(host_arena, &split.halves);
    zr_drop(host_arena, &split.places);
    return result;
}
