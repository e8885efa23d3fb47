/* cards.c: the table of cards, and the limits that follow from a compute capability. See cards.h.
 *
 * Sources: NVIDIA's data sheets for the link to the host, NVLink (half of both directions; a bridge of two
 * cards does not count) and the peak of dense 16-bit products summed in 32 bits; these and deviceQuery
 * outputs for processors, clocks, bus and cache; the CUDA C++ Programming Guide's table "Technical
 * Specifications per Compute Capability" for the limits. Total memory is the capacity that PyTorch's
 * out-of-memory messages name for the card. */
#include "alloc/rehearse/cards.h"

#include <string.h>

/* clang-format off: one card a line */
static const struct zr_card cards[] = {
    /* name, title, total, context, capability, SMs, MHz, memory, bus, L2, link, peer, TFLOPS */
    {"h100", "NVIDIA H100 80GB HBM3", 81009, 520, 90, 132, 1980, 2619, 5120, 50, 64, 450, 989},
    {"h200", "NVIDIA H200", 143165, 520, 90, 132, 1980, 3201, 6144, 50, 64, 450, 989},
    {"gh200", "NVIDIA GH200 480GB", 96768, 520, 90, 132, 1980, 2619, 6144, 50, 450, 450, 989},
    {"b200", "NVIDIA B200", 182630, 620, 100, 148, 1965, 3996, 8192, 126, 64, 900, 2250},
    {"a100", "NVIDIA A100-SXM4-80GB", 81050, 420, 80, 108, 1410, 1593, 5120, 40, 32, 300, 312},
    {"a100-40gb", "NVIDIA A100-SXM4-40GB", 40335, 420, 80, 108, 1410, 1215, 5120, 40, 32, 300, 312},
    {"v100", "Tesla V100-SXM2-32GB", 32492, 310, 70, 80, 1530, 877, 4096, 6, 16, 150, 125},
    {"l4", "NVIDIA L4", 22559, 250, 89, 58, 2040, 6251, 192, 48, 32, 32, 121},
    {"l40s", "NVIDIA L40S", 45466, 380, 89, 142, 2520, 9001, 384, 96, 32, 32, 362},
    {"a10g", "NVIDIA A10G", 22508, 280, 86, 80, 1710, 6251, 384, 6, 32, 32, 70},
    {"a6000", "NVIDIA RTX A6000", 48579, 280, 86, 84, 1800, 8001, 384, 6, 32, 32, 155},
    {"t4", "Tesla T4", 15094, 110, 75, 40, 1590, 5001, 256, 4, 16, 16, 65},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 24259, 280, 86, 82, 1695, 9751, 384, 6, 32, 32, 71},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 24207, 370, 89, 128, 2520, 10501, 384, 72, 32, 32, 165},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 32123, 480, 120, 170, 2407, 14001, 512, 96, 64, 64, 210},
};
static const struct limits {
    int capability, threads_of_processor, blocks_of_processor, shared_kib_of_processor, shared_optin_kib;
} limits[] = {
    {70, 2048, 32, 96, 96},  {75, 1024, 16, 64, 64},   {80, 2048, 32, 164, 163},  {86, 1536, 16, 100, 99},
    {89, 1536, 24, 100, 99}, {90, 2048, 32, 228, 227}, {100, 2048, 32, 228, 227}, {120, 1536, 24, 100, 99},
};
/* Of every card in the table: numbers of enum CUdevice_attribute_enum in cuda.h. */
static const struct {
    int which, value;
} common[] = {
    {1, 1024},  {2, 1024}, {3, 1024},        {4, 64},     {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152},
    {9, 65536}, {10, 32},  {11, 2147483647}, {12, 65536}, {14, 512},       {15, 1},    {17, 0},    {18, 0},
    {19, 1},    {20, 0},   {31, 1},          {32, 1},     {34, 0},         {35, 0},    {40, 3},    {41, 1},
    {50, 0},    {78, 1},   {79, 1},          {80, 1},     {82, 65536},     {83, 1},    {84, 0},    {89, 1},
    {90, 1},    {91, 1},   {95, 1},          {111, 1024}, {115, 1},
};
/* clang-format on */

enum {
    CLOCK = 13,
    PROCESSORS = 16,
    MEMORY_CLOCK = 36,
    BUS = 37,
    LEVEL_2 = 38,
    THREADS_OF_PROCESSOR = 39,
    MAJOR = 75,
    MINOR = 76,
    SHARED_OF_PROCESSOR = 81,
    SHARED_OPTIN = 97,
    BLOCKS_OF_PROCESSOR = 106,
    CLUSTERS = 120
};

const struct zr_card *zr_card_at(size_t index)
{
    return index < sizeof cards / sizeof *cards ? &cards[index] : NULL;
}

const struct zr_card *zr_card_find(const char *name)
{
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (strcmp(cards[i].name, name) == 0)
            return &cards[i];
    return NULL;
}

static const struct limits *limits_of(const struct zr_card *card)
{
    const struct limits *each = limits;
    while (each->capability != card->capability)
        each++;
    return each;
}

bool zr_card_attribute(const struct zr_card *card, int which, int *value)
{
    const struct limits *of = limits_of(card);
    const struct {
        int which, value;
    } own[] = {{CLOCK, card->clock_mhz * 1000},
               {PROCESSORS, card->processors},
               {MEMORY_CLOCK, card->memory_clock_mhz * 1000},
               {BUS, card->bus_bits},
               {LEVEL_2, card->level_2_mib << 20},
               {THREADS_OF_PROCESSOR, of->threads_of_processor},
               {MAJOR, card->capability / 10},
               {MINOR, card->capability % 10},
               {SHARED_OF_PROCESSOR, of->shared_kib_of_processor << 10},
               {SHARED_OPTIN, of->shared_optin_kib << 10},
               {BLOCKS_OF_PROCESSOR, of->blocks_of_processor},
               {CLUSTERS, card->capability >= 90}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i].which == which)
            return *value = own[i].value, true;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (common[i].which == which)
            return *value = common[i].value, true;
    return false;
}

double zr_card_bandwidth(const struct zr_card *card)
{
    return 2e6 * card->memory_clock_mhz * card->bus_bits / 8;
}

double zr_card_rate(const struct zr_card *card, int bits)
{
    const int cores = card->capability >= 86 ? 128 : 64; /* of a processor; two operations a cycle each */
    const double single = 2e6 * card->clock_mhz * card->processors * cores;
    if (bits <= 16)
        return 1e12 * card->tensor_tflops * (bits < 16 && card->capability >= 89 ? 2 : 1);
    return bits <= 32 ? single : single / 2;
}
