/* click_data.c: samples of clicks with a known law, the text of Criteo's data sets, and the rank statistic.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "click.h"

static const char MAGIC[8] = "zrclick1";

/* Values of each field; Criteo's have the same span. */
static const uint32_t VOCABULARIES[CLICK_CATEGORIES] = {
    3,    4,    10,   16,    18,    24,    27,     100,    300,     300,     600,     600,      1500,
    2000, 3000, 5000, 12000, 15000, 90000, 140000, 280000, 2000000, 5000000, 8000000, 10000000, 20000000};

/* Mixes 64 bits (finalizer of splitmix64). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A bijection of 32 bits: different ranks of a field have different ids. */
static uint32_t mix32(uint32_t x)
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

int32_t click_log2(int32_t number)
{
    if (number <= 0)
        return 0;
    unsigned exponent = 31 - (unsigned)__builtin_clz((unsigned)number + 1);
    return (int32_t)((exponent << 16) + ((((uint64_t)number + 1) << 16) >> exponent) - 65536);
}

/* ---- A Zipf law ---------------------------------------------------------------------------------------- */

/* p(rank) ~ rank^-(1 + 3/64), constant within a 16th of an octave. */
enum { SLOTS = 4096, BINS = 512, HEAD = 16 };
struct zipf {
    uint32_t first[BINS], ranks[BINS]; /* ranks of a bin */
    uint16_t slots[SLOTS];             /* bins; each slot is equally likely */
};

static void zipf_init(struct zipf *zipf, uint32_t vocabulary)
{
    uint64_t sums[BINS + 1] = {0};
    unsigned bins = 0;
    for (uint32_t first = 1; first <= vocabulary && bins < BINS; bins++) {
        uint32_t octave = 31 - (uint32_t)__builtin_clz(first), ranks = first < HEAD ? 1 : 1u << (octave - 4);
        if (ranks > vocabulary - first + 1)
            ranks = vocabulary - first + 1;
        double middle = first + (ranks - 1) * 0.5, root = middle;
        for (unsigned i = 0; i < 6; i++)
            root = __builtin_sqrt(root); /* middle^(1/64) */
        sums[bins + 1] = sums[bins] + (uint64_t)(ranks * 0x1p40 / (middle * (root * root * root)));
        zipf->first[bins] = first;
        zipf->ranks[bins] = ranks;
        first += ranks;
    }
    for (unsigned slot = 0, bin = 0; slot < SLOTS; slot++) {
        while (sums[bin + 1] <= sums[bins] / SLOTS * slot)
            bin++;
        zipf->slots[slot] = (uint16_t)bin;
    }
}

/* ---- The law of a click -------------------------------------------------------------------------------- */

enum { FACTORS = 4, INTERCEPT = -90000 };

/* The logit in 1/65536: a weight per number and per value, and the products of hidden vectors of all pairs.
 */
static int32_t truth(const struct click_sample *sample, uint64_t seed)
{
    int64_t numbers = 0, values = 0, pairs = 0;
    int32_t sums[FACTORS] = {0};
    for (unsigned n = 0; n < CLICK_NUMBERS; n++)
        numbers += (int8_t)mix(seed * 64 + n) * (int64_t)(click_log2(sample->numbers[n]) - (7 << 16));
    for (unsigned field = 0; field < CLICK_CATEGORIES; field++) {
        uint64_t hidden = mix(mix(seed) ^ ((uint64_t)field << 32 | sample->ids[field]));
        unsigned weaker = field / 9; /* most values of large fields are too rare to be learned */
        values += (int16_t)hidden >> weaker;
        for (unsigned k = 0; k < FACTORS; k++) {
            int32_t factor = (int8_t)(hidden >> (16 + 8 * k)) >> weaker;
            sums[k] += factor;
            pairs -= factor * factor;
        }
    }
    for (unsigned k = 0; k < FACTORS; k++)
        pairs += (int64_t)sums[k] * sums[k];
    return (int32_t)(INTERCEPT + numbers / 2048 + values + pairs / 4);
}

/* Bernoulli(1 / (1 + e)), where e = (1 - logit / 1024)^1024 is exp(-logit) to 1 %. */
static int32_t is_clicked(int32_t logit, uint64_t random)
{
    double e = 1 - (double)logit / 65536 / 1024;
    for (unsigned i = 0; i < 10; i++)
        e *= e;
    return (double)(random >> 11) * 0x1p-53 * (1 + e) < 1;
}

static void draw(struct click_sample *out, const struct zipf *zipfs, uint64_t seed, uint64_t index)
{
    uint64_t place = mix(seed + 1) + index * 64;
    for (unsigned n = 0; n < CLICK_NUMBERS; n++) {
        uint64_t random = mix(place + n), top = UINT64_C(1) << (random >> 60);
        out->numbers[n] = (int32_t)(top - 1 + (random & (top - 1)));
    }
    for (unsigned field = 0; field < CLICK_CATEGORIES; field++) {
        uint64_t random = mix(place + CLICK_NUMBERS + field);
        const struct zipf *zipf = &zipfs[field];
        unsigned bin = zipf->slots[random >> 52];
        uint32_t rank = zipf->first[bin] + (uint32_t)((random & UINT32_MAX) * zipf->ranks[bin] >> 32);
        out->ids[field] = mix32(rank + field * 0x9e3779b9u);
    }
    out->truth = truth(out, seed);
    out->clicked = is_clicked(out->truth, mix(place + 63));
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static int failed(const char *path, const char *problem)
{
    fprintf(stderr, "click: %s: %s\n", path, problem);
    return 3;
}

/* Closes a file that was written; a short file does not stay. */
static int written(FILE *file, const char *path, bool good)
{
    good &= fclose(file) == 0;
    if (good)
        return 0;
    failed(path, strerror(errno));
    unlink(path);
    return 3;
}

int click_make(const char *path, const struct click_header *how)
{
    static struct zipf zipfs[CLICK_CATEGORIES];
    static struct click_sample samples[1024];
    struct click_header header = *how;
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    for (unsigned field = 0; field < CLICK_CATEGORIES; field++)
        zipf_init(&zipfs[field],
                  VOCABULARIES[field] < how->vocabulary_max ? VOCABULARIES[field] : how->vocabulary_max);
    FILE *file = fopen(path, "wb");
    if (!file)
        return failed(path, strerror(errno));
    bool good = fwrite(&header, sizeof header, 1, file) == 1;
    for (uint64_t first = 0, count; first < how->samples_count && good; first += count) {
        count = how->samples_count - first < 1024 ? how->samples_count - first : 1024;
        for (uint64_t i = 0; i < count; i++)
            draw(&samples[i], zipfs, how->seed, first + i);
        good = fwrite(samples, sizeof samples[0], count, file) == count;
    }
    return written(file, path, good);
}

/* Reads one line of Criteo's text; false: it is none. */
static bool parse(const char *line, struct click_sample *out)
{
    const char *at = line;
    char *end;
    for (unsigned field = 0; field < 1 + CLICK_NUMBERS + CLICK_CATEGORIES; field++) {
        bool is_hash = field > CLICK_NUMBERS, empty = *at == '\t' || *at == '\n';
        if (field > 0 && *at++ != '\t')
            return false;
        empty = *at == '\t' || *at == '\n';
        errno = 0;
        long value = empty ? is_hash ? 0 : CLICK_UNKNOWN : strtol(at, &end, is_hash ? 16 : 10);
        if (!empty &&
            (end == at || errno != 0 || *at == ' ' || (is_hash && (value < 0 || value > UINT32_MAX)) ||
             (!is_hash && (value <= INT32_MIN || value > INT32_MAX))))
            return false;
        at = empty ? at : end;
        if (is_hash)
            out->ids[field - 1 - CLICK_NUMBERS] = (uint32_t)value;
        else if (field > 0)
            out->numbers[field - 1] = (int32_t)value;
        else if ((out->clicked = (int32_t)value) != 0 && value != 1)
            return false;
    }
    return *at == '\n';
}

int click_convert(const char *text_path, const char *path)
{
    struct click_header header = {0};
    struct click_sample sample = {.truth = CLICK_UNKNOWN};
    char line[1024], problem[64];
    FILE *text = fopen(text_path, "r"), *file = text ? fopen(path, "wb") : NULL;
    if (!file) {
        failed(text ? path : text_path, strerror(errno));
        if (text)
            fclose(text);
        return 3;
    }
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    bool good = fwrite(&header, sizeof header, 1, file) == 1, is_text = true;
    while (good && fgets(line, sizeof line, text) && (is_text = parse(line, &sample))) {
        good = fwrite(&sample, sizeof sample, 1, file) == 1;
        header.samples_count++;
    }
    fclose(text);
    good = good && fseek(file, 0, SEEK_SET) == 0 && fwrite(&header, sizeof header, 1, file) == 1;
    if (is_text)
        return written(file, path, good);
    fclose(file);
    unlink(path);
    snprintf(problem, sizeof problem, "line %llu is not Criteo's format",
             (unsigned long long)header.samples_count + 1);
    return failed(text_path, problem);
}

bool click_open(struct click_file *file, const char *path)
{
    struct stat status;
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (file->descriptor < 0 || fstat(file->descriptor, &status) != 0)
        return failed(path, strerror(errno)), false;
    const struct click_header *header = &file->header;
    uint64_t bytes = (uint64_t)status.st_size - sizeof *header;
    if (pread(file->descriptor, &file->header, sizeof *header, 0) != (ssize_t)sizeof *header ||
        memcmp(header->magic, MAGIC, sizeof MAGIC) != 0)
        return failed(path, "is no file of samples: click make and click convert write them"), false;
    if (bytes % sizeof(struct click_sample) != 0 ||
        bytes / sizeof(struct click_sample) != header->samples_count)
        return failed(path, "its size and its number of samples differ: make it again"), false;
    return true;
}

bool click_read(const struct click_file *file, uint64_t first, unsigned count, struct click_sample *out)
{
    const size_t bytes = count * sizeof *out;
    off_t at = (off_t)(sizeof file->header + first * sizeof *out);
    bool good = pread(file->descriptor, out, bytes, at) == (ssize_t)bytes;
    for (unsigned i = 0; i < count && good; i++)
        good = out[i].clicked == 0 || out[i].clicked == 1;
    if (!good)
        fprintf(stderr, "click: a sample after %llu is damaged: make the file again\n",
                (unsigned long long)first);
    return good;
}

/* ---- AUC ----------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    float left = ((const struct click_score *)a)->score, right = ((const struct click_score *)b)->score;
    return (left > right) - (left < right);
}

double click_auc(struct click_score *scores, size_t count)
{
    double clicks = 0, ranks = 0; /* twice the ranks of samples with a click; equal scores share their mean */
    qsort(scores, count, sizeof *scores, compare);
    for (size_t first = 0, end; first < count; first = end) {
        size_t tied = 0;
        for (end = first; end < count && scores[end].score == scores[first].score; end++)
            tied += (size_t)scores[end].clicked;
        clicks += (double)tied;
        ranks += (double)tied * (double)(first + 1 + end);
        if (end == first) /* a NaN is equal to nothing */
            return 0;
    }
    const double pairs = clicks * ((double)count - clicks);
    return pairs > 0 ? (ranks / 2 - clicks * (clicks + 1) / 2) / pairs : 0.5;
}
