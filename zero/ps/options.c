/* options.c: see options.h. */
#include "zero/ps/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "zero/comm/take.h"
#include "zero/ps/wire.h"
#include "zero/table/zr_table.h"

enum { ROWS_MAX = 131072 }; /* the default of zr_table_options.batch_max */

/* ---- Names --------------------------------------------------------------------------------------------- */

/* The number after "NAME:"; false: the text is another one. */
static bool number_after(const char *text, const char *name, double *out)
{
    size_t bytes = strlen(name);
    char *end;
    if (strncmp(text, name, bytes) != 0 || text[bytes] != ':' || !strchr("0123456789.", text[bytes + 1]) ||
        text[bytes + 1] == '\0')
        return false;
    *out = strtod(text + bytes + 1, &end);
    return *end == '\0' && isfinite(*out);
}

zr_result zr_ps_timing_read(struct zr_ps_timing *out, const char *text)
{
    static const char *const names[ZR_PS_TIMINGS_COUNT] = {"sync", "async", "half-async", "geo", "ssp"};
    if (!out || !text)
        return zr_fail(ZR_ERR_INVALID, "%s: out or text is NULL", __func__);
    for (unsigned kind = 0; kind < ZR_PS_TIMINGS_COUNT; kind++) {
        double number = 0;
        bool counts = kind == ZR_PS_GEO || kind == ZR_PS_SSP, least = kind == ZR_PS_GEO;
        if (counts ? !number_after(text, names[kind], &number) : strcmp(text, names[kind]) != 0)
            continue;
        if (counts && (number < least || number > (least ? 1e9 : ZR_PS_SSP_MAX) || number != floor(number)))
            break;
        *out = (struct zr_ps_timing){(enum zr_ps_timing_kind)kind, (unsigned)number};
        return ZR_OK;
    }
    return zr_fail(ZR_ERR_INVALID,
                   "%s is no timing of parameter servers; give %s with K from 1, S from 0 to %d", text,
                   ZR_PS_TIMING_NAMES, ZR_PS_SSP_MAX);
}

zr_result zr_ps_staleness_read(struct zr_ps_staleness *out, const char *text)
{
    double lambda = 0;
    if (!out || !text)
        return zr_fail(ZR_ERR_INVALID, "%s: out or text is NULL", __func__);
    *out = (struct zr_ps_staleness){.kind = ZR_PS_STALE_NONE};
    if (strcmp(text, "none") == 0)
        return ZR_OK;
    if (strcmp(text, "divide") == 0)
        out->kind = ZR_PS_STALE_DIVIDE;
    else if (number_after(text, "dc", &lambda) && lambda <= 1e9)
        *out = (struct zr_ps_staleness){ZR_PS_STALE_COMPENSATE, (float)lambda};
    else
        return zr_fail(ZR_ERR_INVALID, "%s is no rule of staleness; give %s with LAMBDA from 0", text,
                       ZR_PS_STALENESS_NAMES);
    return ZR_OK;
}

/* ---- Ranges -------------------------------------------------------------------------------------------- */

/* Part p of table t is at server (p + t) mod servers, so small tables are spread. */
struct zr_ps_part zr_ps_part_of(size_t elements, unsigned servers, unsigned table, unsigned server)
{
    size_t part = (server + servers - table % servers) % servers,
           blocks = (elements + ZR_PS_BLOCK - 1) / ZR_PS_BLOCK,
           whole = (blocks + servers - 1) / servers * ZR_PS_BLOCK;
    if (part > 0 && whole > elements / part)
        return (struct zr_ps_part){elements, 0};
    size_t first = part * whole, left = elements - first;
    return (struct zr_ps_part){first, left < whole ? left : whole};
}

zr_result zr_ps_range(const struct zr_ps_options *options, unsigned table, unsigned server,
                      struct zr_ps_part *out)
{
    if (!options || !out || !options->tables || table >= options->tables_count ||
        server >= options->servers || options->servers > ZR_PS_SERVERS_MAX)
        return zr_fail(ZR_ERR_INVALID, "%s: there is no table %u of server %u", __func__, table, server);
    *out = zr_ps_part_of(options->tables[table].elements, options->servers, table, server);
    return ZR_OK;
}

/* ---- The copy ------------------------------------------------------------------------------------------ */

static zr_result check_timing(const struct zr_ps_options *o)
{
    const struct zr_ps_timing *timing = &o->timing;
    bool arrives = timing->kind == ZR_PS_ASYNC || timing->kind == ZR_PS_HALF_ASYNC;
    if (timing->kind >= ZR_PS_TIMINGS_COUNT || (timing->kind == ZR_PS_GEO && timing->parameter == 0) ||
        (timing->kind == ZR_PS_SSP && timing->parameter > ZR_PS_SSP_MAX))
        return zr_fail(ZR_ERR_INVALID, "parameter servers: timing %d with %u is out of range", timing->kind,
                       timing->parameter);
    if (o->staleness.kind > ZR_PS_STALE_COMPENSATE || !(o->staleness.lambda >= 0) ||
        !isfinite(o->staleness.lambda))
        return zr_fail(ZR_ERR_INVALID, "parameter servers: staleness rule %d with %g is out of range",
                       o->staleness.kind, (double)o->staleness.lambda);
    if (o->staleness.kind != ZR_PS_STALE_NONE && !arrives)
        return zr_fail(ZR_ERR_INVALID,
                       "parameter servers: a staleness rule requires the timing async or half-async");
    return ZR_OK;
}

static zr_result check_numbers(const struct zr_ps_options *o)
{
    const struct zr_optimizer *optimizer = zr_optimizer_of(o->optimizer.kind);
    if (o->workers < 1 || o->workers > ZR_PS_WORKERS_MAX || o->servers < 1 || o->servers > ZR_PS_SERVERS_MAX)
        return zr_fail(ZR_ERR_INVALID, "%u workers and %u servers; from 1 to %d and %d are possible",
                       o->workers, o->servers, ZR_PS_WORKERS_MAX, ZR_PS_SERVERS_MAX);
    if (!o->tables || o->tables_count < 1 || o->tables_count > ZR_PS_TABLES_MAX)
        return zr_fail(ZR_ERR_INVALID, "parameter servers have 1 to %d tables, not %u", ZR_PS_TABLES_MAX,
                       o->tables_count);
    if (!optimizer || optimizer->prepares || zr_optimizer_block(optimizer) > 1 ||
        o->optimizer.average_decay > 0)
        return zr_fail(
            ZR_ERR_INVALID,
            "parameter servers update parts of tensors: use adamw or sgd, without a moving average");
    if (o->optimizer.clip != 0)
        return zr_fail(ZR_ERR_INVALID,
                       "parameter servers update before the norm of all gradients is known: clip must be 0");
    return check_timing(o);
}

static zr_result check_table(const struct zr_ps_options *o, unsigned t)
{
    const struct zr_ps_table *table = &o->tables[t];
    if (!memchr(table->name, 0, sizeof table->name) || table->name[0] == '\0')
        return zr_fail(ZR_ERR_INVALID, "table %u has no name of 1 to 63 bytes", t);
    for (unsigned other = 0; other < t; other++)
        if (strcmp(o->tables[other].name, table->name) == 0)
            return zr_fail(ZR_ERR_INVALID, "two tables have the name %s", table->name);
    if ((table->elements == 0) != (table->rows != NULL) || table->elements > SIZE_MAX / 64)
        return zr_fail(ZR_ERR_INVALID,
                       "table %s: give `elements` of a dense table, or `rows` of a sparse one", table->name);
    if (table->precision >= ZR_PRECISION_COUNT || !isfinite(table->rate_factor) ||
        !isfinite(table->decay_factor) || table->pushes > 1 << 20)
        return zr_fail(ZR_ERR_INVALID, "table %s: a number is out of range", table->name);
    if (table->precision != ZR_PRECISION_FP32 && (table->rows || o->timing.kind == ZR_PS_GEO))
        return zr_fail(ZR_ERR_INVALID, "table %s: rows and differences are fp32", table->name);
    if (table->rows && (table->pushes > 1 || o->staleness.kind == ZR_PS_STALE_COMPENSATE || table->filled))
        return zr_fail(ZR_ERR_INVALID, "table %s: rows have one push in a step, no compensation and no fill",
                       table->name);
    if (table->rows && (table->rows->width < 1 || table->rows->width > ZR_TABLE_WIDTH_MAX ||
                        (o->timing.kind == ZR_PS_GEO && table->rows->optimizer != ZR_TABLE_SGD)))
        return zr_fail(ZR_ERR_INVALID, "table %s: the width is out of range, or geo and not ZR_TABLE_SGD",
                       table->name);
    return ZR_OK;
}

static uint64_t hash_of(const struct zr_ps_setup *setup)
{
    const struct zr_ps_options *o = &setup->options;
    uint64_t hash = zr_hash_next(ZR_HASH_START, ZR_PS_VERSION);
    const uint64_t numbers[] = {o->workers,          o->servers,           o->timing.kind,
                                o->timing.parameter, o->staleness.kind,    o->optimizer.kind,
                                o->tables_count,     setup->message_bytes, o->successors};
    const float floats[] = {o->staleness.lambda,  o->optimizer.beta1,           o->optimizer.beta2,
                            o->optimizer.epsilon, o->optimizer.momentum_factor, o->optimizer.weight_decay};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        hash = zr_hash_next(hash, numbers[i]);
    hash = zr_hash_more(hash, floats, sizeof floats);
    for (unsigned t = 0; t < o->tables_count; t++) {
        const struct zr_ps_table *table = &setup->entries[t].table;
        const float factors[] = {table->rate_factor, table->decay_factor};
        hash = zr_hash_more(hash, table->name, strlen(table->name) + 1);
        hash = zr_hash_next(zr_hash_next(hash, table->elements), table->precision);
        hash = zr_hash_next(zr_hash_next(hash, setup->entries[t].pushes), setup->entries[t].width);
        hash = zr_hash_next(hash, setup->entries[t].rows_max);
        hash = zr_hash_more(zr_hash_next(hash, table->filled), factors, sizeof factors);
    }
    return hash | 1;
}

/* The largest part of a table with its item, or the caller's number. */
static size_t message_bytes(const struct zr_ps_setup *setup)
{
    size_t most = ZR_PS_MESSAGE_MIN;
    for (unsigned t = 0; t < setup->options.tables_count && setup->options.message_bytes == 0; t++) {
        size_t bytes = zr_ps_part_of(setup->entries[t].table.elements, setup->options.servers, 0, 0).count *
                           sizeof(float) +
                       2 * sizeof(struct zr_ps_wire_item);
        most = bytes > most ? bytes : most;
    }
    return setup->options.message_bytes ? setup->options.message_bytes & ~(size_t)63
                                        : (most + 63) & ~(size_t)63;
}

zr_result zr_ps_setup_init(struct zr_ps_setup *out, const struct zr_ps_options *options, zr_arena *arena)
{
    *out = (struct zr_ps_setup){.arena = arena};
    if (!options || !arena)
        return zr_fail(ZR_ERR_INVALID, "parameter servers: the options or the arena are NULL");
    if (options->struct_bytes != 0 && options->struct_bytes != sizeof *options)
        return zr_fail(ZR_ERR_INVALID, "struct zr_ps_options of another release: %zu bytes instead of %zu",
                       options->struct_bytes, sizeof *options);
    zr_result result = check_numbers(options);
    for (unsigned t = 0; t < options->tables_count && result == ZR_OK; t++)
        result = check_table(options, t);
    if (result == ZR_OK)
        result =
            zr_take(arena, ZR_TAG_OTHER, options->tables_count, sizeof *out->entries, (void **)&out->entries);
    if (result != ZR_OK)
        return result;
    out->options = *options;
    out->options.tables = NULL;
    out->options.secret = NULL;
    out->has_secret = options->secret != NULL;
    if (options->secret)
        memcpy(out->secret, options->secret, sizeof out->secret);
    out->optimizer = zr_optimizer_of(options->optimizer.kind);
    for (unsigned t = 0; t < options->tables_count; t++) {
        const struct zr_ps_table *table = &options->tables[t];
        out->entries[t] = (struct zr_ps_entry){
            .table = *table,
            .pushes = table->pushes && zr_ps_groups(&options->timing) ? table->pushes : 1,
            .width = table->rows ? (unsigned)table->rows->width : 0,
            .rows_max = table->rows && table->rows->batch_max ? table->rows->batch_max : ROWS_MAX};
    }
    out->message_bytes = message_bytes(out);
    out->hash = hash_of(out);
    if (out->message_bytes >= 4096 && out->message_bytes <= SIZE_MAX / 1024)
        return ZR_OK;
    zr_ps_setup_fini(out);
    return zr_fail(ZR_ERR_INVALID, "message_bytes is %zu; at least 4,096 are required",
                   options->message_bytes);
}

void zr_ps_setup_fini(struct zr_ps_setup *setup)
{
    explicit_bzero(setup->secret, sizeof setup->secret);
    if (setup->arena)
        zr_drop(setup->arena, &setup->entries);
}
