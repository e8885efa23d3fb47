/* torch_settings.c: the settings in a PYTORCH_CUDA_ALLOC_CONF. Rules and their source: the notes "CUDA
 * semantics, Memory management" of PyTorch's documentation; for lists of divisions also what PyTorch 2.15
 * shows in the settings of a snapshot. */
#include <stdlib.h>
#include <string.h>

#include "defrag/trace/recording.h"

/* The text after "key:" and spaces; NULL: there is none. */
static const char *value_of(const char *words, const char *key)
{
    const char *at = strstr(words, key);
    if (!at)
        return NULL;
    at += strlen(key);
    return at + strspn(at, " ");
}

/* The position of a size in a table by powers of two from 1 MiB on. */
static unsigned position_of(uint64_t mib)
{
    unsigned log = mib ? 63 - (unsigned)__builtin_clzll(mib) : 0;
    return log < ZR_TORCH_DIVISIONS ? log : ZR_TORCH_DIVISIONS - 1;
}

/* One number for all sizes, or a list of MIB:DIVISIONS. The first pair holds for smaller sizes too, and ">"
 * for all sizes above the last one. */
static void read_divisions(const char *at, uint32_t divisions[ZR_TORCH_DIVISIONS])
{
    bool is_list = *at == '[';
    unsigned from = 0, next = 0;
    for (at += is_list; *at && *at != ']'; at += *at == ',') {
        bool above = is_list && at[strspn(at, " ")] == '>';
        unsigned last = is_list && !above ? position_of(strtoull(at, NULL, 10)) : ZR_TORCH_DIVISIONS - 1;
        at += is_list ? strcspn(at, ":,]") : 0;
        uint64_t count = strtoull(at + (*at == ':'), NULL, 10);
        for (unsigned i = above ? next : from < last ? from : last; i <= last; i++)
            divisions[i] = count < 1024 ? (uint32_t)count : 0;
        if (!is_list)
            return;
        from = ZR_TORCH_DIVISIONS;
        next = last + 1;
        at += strcspn(at, ",]");
    }
}

void zr_torch_settings_read(const char *words, struct zr_torch_settings *settings)
{
    const char *split = value_of(words, "max_split_size_mb:"),
               *divisions = value_of(words, "roundup_power2_divisions:"),
               *threshold = value_of(words, "garbage_collection_threshold:");
    uint64_t mib = split ? strtoull(split, NULL, 10) : 0;
    double share = threshold ? strtod(threshold, NULL) : 0;
    if (mib > 0 && mib < UINT64_C(1) << 30)
        settings->max_split_bytes = mib << 20;
    if (divisions)
        read_divisions(divisions, settings->divisions);
    if (share > 0 && share < 1) /* else PyTorch does not start */
        settings->garbage_collection_threshold = share;
}
