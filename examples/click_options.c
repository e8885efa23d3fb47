/* click_options.c: the command line of click. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "click.h"

int click_usage(const char *problem, const char *word)
{
    fprintf(
        stderr,
        "%s%s%sclick make FILE SAMPLES [SEED [VALUES]]  draws samples; VALUES: at most so many per field\n"
        "click convert TEXT FILE                 reads Criteo's text\n"
        "click train FILE [options]\n"
        "  --workers N --servers S  0 servers: all in one process\n"
        "  --ps TIMING              " ZR_PS_TIMING_NAMES "\n"
        "  --staleness RULE         none|divide\n"
        "  --batch N                samples of a worker's step: 512\n"
        "  --rate F --dense-rate F  of Adagrad for rows: 0.02; of Adam for the others: 0.001\n"
        "  --memory-limit BYTES     of rows in memory; --file FOLDER: for the others\n"
        "  --rows N                 rows at most: four for each sample\n"
        "  --seed N --samples N     of first values: 1; to train on: all but the last tenth of the file\n"
        "  --eval-every N           samples between evaluations: a tenth of all\n"
        "  --target AUC             prints the time to it\n"
        "  --sleep-ms F --slow W:X  a step sleeps; a step of worker W for X times as long\n"
        "  --json                   prints one object\n",
        problem, word, *problem ? "\n" : "");
    return 2;
}

bool click_number_read(const char *text, double least, double most, double *out)
{
    static const char units[] = "KMG";
    char *end;
    double value = strtod(text, &end);
    const char *unit = end != text && *end ? strchr(units, *end) : NULL;
    if (unit && strcmp(end + 1, "iB") == 0) {
        for (const char *at = units; at <= unit; at++)
            value *= 1024;
        end += 3;
    }
    *out = value;
    return end != text && *end == 0 && value >= least && value <= most;
}

enum { WORKERS, SERVERS, BATCH, RATE, DENSE_RATE, LIMIT, ROWS, SEED, SAMPLES, EVERY, TARGET, SLEEP, NUMBERS };
enum { PS = NUMBERS, STALENESS, FOLDER, SLOW, JSON, OPTIONS };
static const struct {
    const char *name;
    double fallback, least, most;
} numbers_of[NUMBERS] = {{"workers", 1, 1, 128},
                         {"servers", 0, 0, ZR_PS_SERVERS_MAX},
                         {"batch", 512, 1, 65536},
                         {"rate", 0.02, 1e-9, 1e9},
                         {"dense-rate", 0.001, 0, 1e9},
                         {"memory-limit", 0, 0, 1e15},
                         {"rows", 0, 1, ZR_TABLE_ROWS_MAX},
                         {"seed", 1, 0, 1e15},
                         {"samples", 0, 1, 1e15},
                         {"eval-every", 0, 1, 1e15},
                         {"target", 0, 0, 1},
                         {"sleep-ms", 0, 0, 1e6}};

int click_options_read(struct click_options *out, int argc, char **argv)
{
    struct option names[OPTIONS + 1] = {[PS] = {"ps", required_argument, NULL, PS},
                                        [STALENESS] = {"staleness", required_argument, NULL, STALENESS},
                                        [FOLDER] = {"file", required_argument, NULL, FOLDER},
                                        [SLOW] = {"slow", required_argument, NULL, SLOW},
                                        [JSON] = {"json", no_argument, NULL, JSON}};
    double numbers[NUMBERS];
    char end;
    for (int i = 0; i < NUMBERS; i++) {
        names[i] = (struct option){numbers_of[i].name, required_argument, NULL, i};
        numbers[i] = numbers_of[i].fallback;
    }
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) >= 0;) {
        bool good = option == FOLDER || option == JSON;
        if (option < NUMBERS)
            good = click_number_read(optarg, numbers_of[option].least, numbers_of[option].most,
                                     &numbers[option]);
        else if (option == PS)
            good = zr_ps_timing_read(&out->run.timing, optarg) == ZR_OK;
        else if (option == STALENESS)
            good = zr_ps_staleness_read(&out->run.staleness, optarg) == ZR_OK;
        else if (option == SLOW)
            good = sscanf(optarg, "%u:%lf%c", &out->slow_worker, &out->slow_factor, &end) == 2;
        else if (option == FOLDER)
            out->run.folder = optarg;
        out->json |= option == JSON;
        if (option == '?')
            return click_usage("", "");
        if (!good)
            return click_usage("click: not a value of this option, or out of range: ", optarg);
    }
    if (optind + 1 != argc)
        return click_usage("click: train requires one FILE", "");
    if (out->run.timing.kind != ZR_PS_SYNC && numbers[SERVERS] == 0)
        return click_usage("click: --ps requires --servers", "");
    if (!click_open(&out->file, argv[optind]))
        return 3;
    const uint64_t all = out->file.header.samples_count, tenth = (all + 9) / 10;
    out->test_count = tenth < CLICK_TEST_MAX ? tenth : CLICK_TEST_MAX;
    out->train_count = all - out->test_count;
    out->run.workers = (unsigned)numbers[WORKERS];
    out->run.servers = (unsigned)numbers[SERVERS];
    out->run.batch = (unsigned)numbers[BATCH];
    out->run.rate = (float)numbers[RATE];
    out->run.dense_factor = (float)(numbers[DENSE_RATE] / numbers[RATE]);
    out->run.seed = (uint64_t)numbers[SEED];
    out->run.memory_limit_bytes = (size_t)numbers[LIMIT];
    out->run.rows_limit = numbers[ROWS] > 0 ? (uint64_t)numbers[ROWS] : 4 * all + 100000;
    out->sleep_ms = numbers[SLEEP];
    out->target = numbers[TARGET];
    uint64_t samples = numbers[SAMPLES] > 0 && numbers[SAMPLES] < (double)out->train_count
                           ? (uint64_t)numbers[SAMPLES]
                           : out->train_count;
    out->steps = samples / out->run.workers / out->run.batch;
    if (out->run.timing.kind == ZR_PS_GEO)
        out->steps -= out->steps % out->run.timing.parameter;
    out->eval_every = numbers[EVERY] > 0 ? (uint64_t)numbers[EVERY] : samples / 10;
    if (out->steps == 0 || samples / out->eval_every >= CLICK_POINTS_MAX)
        return click_usage(
            "click: no step, or more than 64 evaluations: change --batch, --samples or --eval-every", "");
    return 0;
}
