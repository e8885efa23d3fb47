/* train_args_test.c: the command line of zr-train: each option with good and with bad values, the words that
 * a bad one gets, and the way back from a configuration to a command line. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "tests/support/tap.h"
#include "zero/engine/optimizer.h"
#include "zero/file_io/nvme_io.h"
#include "zero/file_io/nvme_pipeline.h"
#include "zero/train/rank/kept.h"
#include "zero/train/rank/rank_plan.h"
#include "zero/train/settings/flags.h"

static char words[32768]; /* what the last parse said on stdout and stderr */
static struct zr_train_config config;

/* Splits `line` at single spaces and parses it, with both outputs going to a file. */
static int parse(const char *line)
{
    static char copy[8192];
    char *argv[128], *rest = copy;
    int argc = 0, saved[2], code;
    FILE *catch = tmpfile();

    snprintf(copy, sizeof copy, "zr-train %s", line);
    for (char *word; (word = strsep(&rest, " ")) && argc < 127;)
        if (*word)
            argv[argc++] = strcmp(word, "''") == 0 ? (char *)"" : word;
    argv[argc] = NULL;
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        saved[i] = dup(i + 1);
        dup2(fileno(catch), i + 1);
    }
    code = zr_args_parse(&config, argc, argv);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i + 1);
        close(saved[i]);
    }
    rewind(catch);
    words[fread(words, 1, sizeof words - 1, catch)] = '\0';
    fclose(catch);
    return code;
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

/* Every bad line ends with 2, in one line that names the option, its value and the way out. */
static const struct {
    const char *line, *say[3];
} refused[] = {
    {"", {"--data", "missing", "--dry-run"}},
    {"--data", {"--data", "needs a value"}},
    {"--data --steps 3", {"--data", "needs a value"}},
    {"--data= ", {"--data", "empty"}},
    {"--steps 3", {"--data", "missing"}},
    {"--data x --steps 0", {"--steps 0", "out of range", "1 to"}},
    {"--data x --steps -1", {"--steps -1", "out of range"}},
    {"--data x --steps 1e3", {"--steps 1e3", "not a whole number"}},
    {"--data x --steps 99999999999999999999", {"--steps", "out of range"}},
    {"--data x --steps -", {"--steps -", "not a whole number"}},
    {"--data x --memory-limit -1", {"--memory-limit -1", "out of range"}},
    {"--data x --steps 0x10", {"--steps 0x10"}},
    {"--data x --export -", {"--export", "need a file"}},
    {"--data x --clip 1e-60", {"--clip 1e-60", "too small", "give 0"}},
    {"--data x --lr 1e-310", {"--lr 1e-310", "too small", "give 0"}},
    {"--data x --steps ''", {"--steps", "not a whole number"}},
    {"--data x --batch 0", {"--batch 0", "out of range"}},
    {"--data x --seq 0", {"--seq 0"}},
    {"--data x --seq 2.5", {"--seq 2.5"}},
    {"--data x --layers 0", {"--layers 0"}},
    {"--data x --hidden 0", {"--hidden 0"}},
    {"--data x --heads 0", {"--heads 0"}},
    {"--data x --hidden 130 --heads 4", {"--heads 4", "--hidden 130", "128"}},
    {"--data x --hidden 3 --heads 4", {"--heads 4", "--hidden 3", "--hidden 4"}},
    {"--data x --tp 3 --ranks 4", {"--tp 3", "--tp 2", "--ranks 6"}},
    {"--dry-run --world-size 400 --tp 7", {"--tp 7", "--tp 5", "--world-size 406"}},
    {"--data x --tp 8 --ranks 8 --heads 4", {"attention heads", "--tp 4", "--heads 8"}},
    {"--data x --tp 4 --ranks 4 --arch llama --heads 4 --kv-heads 2", {"keys", "--tp 2", "--kv-heads 4"}},
    {"--data x --tp 4 --ranks 4 --arch llama --ffn 34", {"feed-forward", "--tp 2", "--ffn 36"}},
    {"--data x --tp 4 --ranks 4 --sequence-parallel --seq 66", {"tokens", "--tp 2", "--seq 68"}},
    {"--data x --tp 12 --ranks 12 --heads 132 --hidden 132 --vocab 60", {"vocabulary", "--tp 11"}},
    {"--data x --sequence-parallel", {"--sequence-parallel", "--tp 2"}},
    {"--data x --ranks 0", {"--ranks 0", "out of range", "1 to 256"}},
    {"--data x --ranks 257", {"--ranks 257", "1 to 256"}},
    {"--data x --ranks two", {"--ranks two"}},
    {"--data x --stage 2 --reduce once", {"--reduce once", "--stage 1", "--reduce each"}},
    {"--data x --reduce twice", {"--reduce twice", "each|once"}},
    {"--data x --accumulate 0", {"--accumulate 0", "1 to"}},
    {"--data x --optimizer adam", {"--optimizer adam", "adamw|sgd"}},
    {"--data x --momentum 1", {"--momentum 1", "out of range"}},
    {"--data x --lr-vectors -1", {"--lr-vectors -1", "out of range"}},
    {"--data x --stage 4", {"--stage 4", "not a valid choice"}},
    {"--data x --stage", {"--stage", "needs a value"}},
    {"--data x --recompute some", {"--recompute some", "none|selective|full"}},
    {"--data x --recompute none|full", {"not a valid choice"}},
    {"--data x --precision fp4", {"--precision fp4", "not a valid choice"}},
    {"--data x --precision fp8 --seq 15 --batch 1",
     {"--precision fp8", "multiples of 16", "--precision bf16"}},
    {"--data x --ranks 2 --pp 2 --schedule 2bw --accumulate 2 --vertical-sync",
     {"--vertical-sync", "--schedule pipedream"}},
    {"--data x --vertical-sync", {"--vertical-sync", "--pp 2"}},
    {"--data x --compress-warmup soon", {"--compress-warmup soon", "or auto"}},
    {"--data x --ranks 2 --compress topk:0.1 --compress-warmup auto", {"--compress-warmup auto", "powersgd"}},
    {"--data x --ranks 2 --compress powersgd:2 --compress-warmup auto --optimizer sgd",
     {"--compress-warmup auto", "--optimizer adamw"}},
    {"--data x --precision fp8 --loss-scale 8", {"--loss-scale", "--precision fp16"}},
    {"--data x --comm nccl", {"--comm nccl", "--backend cuda"}},
    {"--data x --device 1", {"--device", "--backend cuda"}},
    {"--data x --backend cuda --comm mpi --cuda-graph", {"--cuda-graph", "leave it out"}},
    {"--data x --backend cuda --comm mpi --ranks 2 --pp 2", {"--pp", "--comm nccl"}},
    {"--data x --backend cuda --ranks 2 --pp 2", {"--pp", "--comm nccl"}},
    {"--data x --backend cuda --stage 1 --offload-optimizer cpu --cuda-graph",
     {"--cuda-graph", "--offload-optimizer"}},
    {"--data x --backend cuda --stage 1 --offload-optimizer cpu --speculative-update 1GiB",
     {"--speculative-update"}},
    {"--data x --offload-optimizer cpu --offload-buffers 4", {"--offload-buffers", "nvme:DIR"}},
    {"--data x --offload-optimizer nvme:/x --offload-buffers 2", {"--offload-buffers 2", "3 to 16"}},
    {"--data x --backend sim", {"--backend sim", "--dry-run"}},
    {"--data x --world-size 4", {"--world-size", "--dry-run"}},
    {"--dry-run --world-size 0", {"--world-size 0"}},
    {"--data x --threads 1025", {"--threads 1025"}},
    {"--data x --bucket-bytes 4095", {"--bucket-bytes 4095", "4096"}},
    {"--data x --bucket-bytes 4KiBs", {"--bucket-bytes 4KiBs", "KiB"}},
    {"--data x --bucket-bytes 2GiB", {"--bucket-bytes 2GiB", "out of range"}},
    {"--data x --bucket-bytes 99999999TiB", {"--bucket-bytes", "out of range", "16GB (of 1000)"}},
    {"--data x --memory-limit 1.1GiB", {"--memory-limit 1.1GiB", "not a whole number of bytes"}},
    {"--data x --memory-limit 5", {"--memory-limit 5", "out of range"}},
    {"--data x --memory-limit much", {"--memory-limit much"}},
    {"--dry-run --flops 1e12", {"--flops", "--bandwidth", "both"}},
    {"--dry-run --bandwidth 1e9", {"--flops", "--bandwidth", "both"}},
    {"--dry-run --flops 0 --bandwidth 1e9", {"--flops 0", "out of range"}},
    {"--dry-run --flops 1e12 --bandwidth fast", {"--bandwidth fast", "not a rate", "25GB"}},
    {"--dry-run --flops 1e12 --bandwidth 2EB", {"--bandwidth 2EB", "out of range"}},
    {"--find-max batch", {"--find-max", "--memory-limit"}},
    {"--find-max width --memory-limit 1GB", {"--find-max width", "batch|layers"}},
    {"--find-max layers --params 1e6 --memory-limit 1GB", {"--find-max layers", "--params"}},
    {"--data x --seed x", {"--seed x"}},
    {"--data x --lr nan", {"--lr nan", "not a number"}},
    {"--data x --lr inf", {"--lr inf"}},
    {"--data x --lr 1e999", {"--lr 1e999"}},
    {"--data x --lr -1", {"--lr -1", "out of range"}},
    {"--data x --lr 0x1p-3", {"--lr 0x1p-3"}},
    {"--data x --lr fast", {"--lr fast"}},
    {"--data x --lr ''", {"--lr"}},
    {"--data x --lr 1e-4 --min-lr 1e-3", {"--min-lr", "--lr"}},
    {"--data x --warmup 300", {"--warmup", "--steps"}},
    {"--data x --momentum 0.5", {"--momentum", "--optimizer sgd"}},
    {"--data x --optimizer sgd --beta1 0.5", {"--beta1", "--optimizer adamw"}},
    {"--data x --optimizer sgd --beta2 0.5", {"--beta2", "--optimizer adamw"}},
    {"--data x --schedule-lr constant --min-lr 0", {"--min-lr", "--schedule-lr cosine, linear or wsd"}},
    {"--data x --prompt In", {"--prompt", "--sample N"}},
    {"--data x --temperature 0", {"--temperature", "--sample N"}},
    {"--data x --keep 2", {"--keep", "--save DIR"}},
    {"--data x --schedule-lr step", {"--schedule-lr step", "cosine|linear|constant"}},
    {"--data x --weight-decay 11", {"--weight-decay 11"}},
    {"--data x --beta1 1", {"--beta1 1", "out of range"}},
    {"--data x --beta2 1.5", {"--beta2 1.5"}},
    {"--data x --clip -1", {"--clip -1"}},
    {"--data x --eval-every -5", {"--eval-every -5"}},
    {"--data x --save-every 5", {"--save-every", "--save DIR"}},
    {"--data x --save-every 5m", {"--save-every", "--save DIR"}},
    {"--data x --save s --save-every 5d", {"--save-every 5d", "neither steps nor a time"}},
    {"--data x --save s --save-every m", {"--save-every m", "neither steps nor a time"}},
    {"--data x --config", {"--config", "needs a value"}},
    {"--data x --config ''", {"--config", "empty"}},
    {"--data x --save ''", {"--save", "empty"}},
    {"--data x --resume ''", {"--resume", "empty"}},
    {"--data x --log -", {"--log"}},
    {"--data x --trace -", {"--trace"}},
    {"--data x --sample 1000001", {"--sample 1000001"}},
    {"--data x --temperature cold", {"--temperature cold"}},
    {"--data x --vocab 1", {"--vocab 1", "out of range"}},
    {"--data x --vocab words", {"--vocab words", "byte"}},
    {"--data x --vocab bytes", {"--vocab bytes", "byte"}},
    {"--data x --dry-run=yes", {"--dry-run", "takes no value"}},
    {"--data x --step 3", {"--step;", "did you mean --steps"}},
    {"--data x --voc byte", {"--voc;", "did you mean --vocab"}},
    {"--data x --recompue full", {"did you mean --recompute"}},
    {"--data x --bacth 3", {"did you mean --batch"}},
    {"--data x --zzzzzzzzz", {"--zzzzzzzzz", "unknown option", "--help"}},
    {"--data x "
     "--"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "aaa"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 1",
     {"unknown option"}},
    {"--data x extra", {"'extra'", "not an option"}},
    {"-d x", {"'-d'"}},
    {"--data x --", {"'--'"}},
    {"--data x --=3", {"unknown option"}},
    {"--dry-run --layers 65536 --hidden 1048576 --seq 1048576 --batch 1048576 --heads 1", {""}},
};

static void test_refusals(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int code = parse(refused[i].line);
        bool good = code == ZR_EXIT_USAGE && strncmp(words, "zr-train: ", 10) == 0 && strchr(words, '\n') &&
                    strchr(words, '\n')[1] == '\0';
        for (int k = 0; k < 3 && refused[i].say[k]; k++)
            good &= strstr(words, refused[i].say[k]) != NULL;
        if (!tap_ok(good, "refused: %.60s", refused[i].line))
            tap_note("code %d, words: %s", code, words);
    }
}

/* Settings that decide what an engine is; each one excludes or requires some of the others. */
static const char *const settings[] = {
    "--ranks-as threads",
    "--ranks-as threads --master",
    "--tp 2",
    "--cp 2",
    "--pp 2",
    "--pp 2 --schedule zb-h1",
    "--pp 2 --schedule 2bw",
    "--stage 0",
    "--stage 1",
    "--stage 2",
    "--stage 3",
    "--tile 2",
    "--sequence-parallel",
    "--groups 2 --outer diloco:4",
    "--outer-delay 1",
    "--partition-activations",
    "--checkpoint-offload",
    "--offload-optimizer cpu",
    "--offload-optimizer nvme:/tmp",
    "--offload-param cpu",
    "--offload-param nvme:/tmp",
    "--offload-ratio 0.5",
    "--delayed-update",
    "--speculative-update 1MiB",
    "--no-contiguous",
    "--no-constant-buffers",
    "--reduce once",
    "--compress gradients:int8",
    "--compress parameters:int8",
    "--compress onebit",
    "--compress zerone",
    "--compress powersgd:2",
    "--compress topk:0.1",
    "--compress sdp4bit",
    "--compress activations:int8",
    "--compress hpz",
    "--compress-warmup 2000",
    "--compress-check 2",
    "--node-size 2",
    "--backend cuda",
    "--cuda-graph",
    "--comm ps",
    "--max-restarts 2",
    "--redundancy 2",
    "--elastic 1:4",
    "--optimizer sgd",
    "--optimizer lamb",
    "--optimizer adafactor",
    "--optimizer muon",
    "--clip 0",
    "--ema 0.9",
    "--noise-scale 0.9",
    "--precision bf16",
    "--precision fp16",
    "--freeze wte*",
    "--lora 2",
    "--save s --save-background",
};

/* Every pair of settings is taken or refused with words, and the engine of what is taken can be planned. */
static void test_pairs(void)
{
    static const char *const bases[] = {"", "--stage 1 --offload-optimizer cpu", "--accumulate 4 --stage 1"};
    const size_t count = sizeof settings / sizeof *settings;
    unsigned taken = 0, refusals = 0, wrong = 0;
    zr_backend *backend = NULL;
    zr_arena *arena = NULL;
    bool ready = zr_backend_host_create(&backend, NULL) == ZR_OK &&
                 zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend,
                                                                    .reserve_bytes = 1 << 30}) == ZR_OK;
    for (size_t n = 0; ready && n < sizeof bases / sizeof *bases * count * count; n++) {
        const size_t first = n % count, second = n / count % count;
        char line[256];
        size_t bytes;
        if (first > second)
            continue;
        snprintf(line, sizeof line,
                 "--data x --threads 1 --ranks 4 --layers 4 --hidden 16 --heads 2 --seq 4 %s %s %s",
                 bases[n / count / count], settings[first], settings[second]);
        const int code = parse(line);
        bool right = code == ZR_EXIT_USAGE && strchr(words, '\n') && strchr(words, '\n')[1] == '\0';
        refusals += right;
        if (code < 0) {
            const char *kept = config.redundancy > 1 ? zr_rank_kept_words(&config) : NULL;
            right = kept || zr_rank_live_bytes(&bytes, &config, 0, 4096, arena) == ZR_OK;
            taken += right;
        }
        wrong += !right;
        if (!right)
            tap_note("%s: code %d, %s", line, code, code < 0 ? zr_last_error() : words);
    }
    tap_ok(wrong == 0 && taken > 1000 && refusals > 1000, "pairs of settings: %u taken, %u refused, %u wrong",
           taken, refusals, wrong);
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
}

/* No rule says what another one says. */
static void test_rules(void)
{
    const struct zr_mode_table *table = &zr_exclusions;
    unsigned pairs = 0, twice = 0;
    static unsigned char seen[256][256];
    for (const struct zr_rule *rule = table->rules; rule < table->rules + table->rules_count; rule++)
        for (const unsigned char *other = rule->others; !rule->needs && *other; other++, pairs++) {
            const bool again = seen[rule->mode][*other]++ || seen[*other][rule->mode];
            twice += again;
            if (again)
                tap_note("%s and %s exclude each other twice", table->names[rule->mode],
                         table->names[*other]);
        }
    tap_ok(twice == 0 && pairs > 100, "%u pairs of modes exclude each other, each in one rule", pairs);
}

/* ---- Good values --------------------------------------------------------------------------------------- */

static void test_defaults(void)
{
    tap_is(parse("--data x"), -1, "a data file is enough");
    tap_ok(strcmp(config.data, "x") == 0 && config.bytes, "text as bytes");
    tap_is(config.shape.vocabulary, 256, "256 entries");
    tap_is(config.shape.vocabulary_padded, 256, "without padding");
    tap_is(config.world, 1, "one rank");
    tap_ok(config.threads >= 1, "at least one thread");
    tap_is(config.warmup, 20, "warm-up is a tenth of the steps");
    tap_ok(config.min_rate == config.rate / 10, "the least rate is a tenth");
    tap_ok(config.optimizer.epsilon > 0 && config.optimizer.beta1 == 0.9f, "AdamW is set");
    tap_ok(!config.dry_run && config.backend == ZR_TRAIN_HOST && config.memory_limit_bytes == 0,
           "nothing else is asked for");
    static const struct {
        const char *line;
        uint64_t warmup;
    } rows[] = {{"--data x --steps 1", 0},    {"--data x --steps 7", 3},
                {"--data x --steps 39", 19},  {"--data x --steps 150", 20},
                {"--data x --steps 990", 99}, {"--data x --steps 1000000", 100}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        tap_ok(parse(rows[i].line) == -1 && config.warmup == rows[i].warmup, "%s: %llu steps of warm-up",
               rows[i].line, (unsigned long long)rows[i].warmup);
    tap_is(parse("--data x --ranks 200"), -1, "more ranks than cores");
    tap_is(config.threads, 1, "one thread each");
    tap_is(parse("--data x --lr 0"), -1, "a rate of zero");
    tap_ok(config.min_rate == 0, "stays zero");
    for (size_t i = 0; i < zr_flags_count; i++)
        if (!zr_flags[i].help || !zr_flags[i].group)
            tap_ok(false, "--%s has help and a group", zr_flags[i].name);
}

/* Each row of the optimizers: its name, its defaults, and the options that it does not take. */
static void test_optimizers(void)
{
    const char *name = ZR_OPTIMIZER_NAMES;
    for (unsigned kind = 0; kind < ZR_OPTIMIZERS_COUNT; kind++, name += strcspn(name, "|") + 1) {
        const struct zr_optimizer *row = zr_optimizer_of(kind);
        char line[128];
        bool right =
            strlen(row->name) == strcspn(name, "|") && strncmp(row->name, name, strlen(row->name)) == 0;
        snprintf(line, sizeof line, "--data x --optimizer %s", row->name);
        right &= parse(line) == -1 && config.optimizer.kind == kind && config.rate == row->rate;
        for (unsigned n = 0; n < ZR_NUMBERS_COUNT; n++) {
            const struct zr_optimizer_number *number = &zr_optimizer_numbers[n];
            const float value = *(const float *)((const char *)&config.optimizer + number->offset);
            right &= value == row->numbers[n].fallback && (row->numbers[n].taken || value == 0);
        }
        for (unsigned n = 0; n < ZR_NUMBERS_COUNT; n++) {
            if (!zr_optimizer_numbers[n].option)
                continue;
            const bool signs = n == ZR_NUMBER_TRUST_AVERAGE && row->numbers[n].taken;
            snprintf(line, sizeof line, "--data x --optimizer %s --%s 0.25%s", row->name,
                     zr_optimizer_numbers[n].option,
                     signs ? " --ranks 2 --stage 1 --compress gradients:onebit" : "");
            right &= parse(line) == (row->numbers[n].taken ? -1 : 2);
            right &= row->numbers[n].taken || strstr(words, "requires --optimizer ");
        }
        tap_ok(right, "--optimizer %s: its defaults, and the options that it takes", row->name);
    }
}

static void test_every_option(void)
{
    tap_is(
        parse(
            "--data d --steps 7 --batch 3 --seq 33 --layers 5 --hidden 96 --heads 6 --vocab 50257 --ranks 3 "
            "--stage 1 --recompute full --threads 2 --bucket-bytes 64KiB --seed 42 --save s --save-every 5 "
            "--resume r --lr 3e-4 --min-lr 1e-5 --warmup 2 --schedule-lr linear --weight-decay 0.01 --beta1 "
            "0.8 --beta2 0.99 --clip 0.5 --eval-every 4 --sample 11 --prompt 11,7 --temperature 0.7 --log l "
            "--json - --trace t --backend host --memory-limit 2GiB --precision fp32 --comm local"),
        -1, "all options at once");
    tap_ok(config.steps == 7 && config.shape.batch == 3 && config.shape.sequence == 33 &&
               config.shape.layers == 5 && config.shape.hidden == 96 && config.shape.heads == 6,
           "the shape");
    tap_ok(!config.bytes && config.shape.vocabulary == 50257 && config.shape.vocabulary_padded == 50304,
           "GPT-2's vocabulary, padded to 64");
    tap_ok(config.world == 3 && config.stage == 1 && config.threads == 2 && config.bucket_bytes == 65536 &&
               config.shape.recompute == ZR_RECOMPUTE_FULL && config.memory_limit_bytes == 2147483648u,
           "ranks and memory");
    tap_ok(config.seed == 42 && config.rate == 3e-4f && config.min_rate == 1e-5f && config.warmup == 2 &&
               config.rate_kind == ZR_RATE_LINEAR && config.optimizer.weight_decay == 0.01f &&
               config.optimizer.beta1 == 0.8f && config.optimizer.beta2 == 0.99f &&
               config.optimizer.clip == 0.5f,
           "the optimizer");
    tap_ok(strcmp(config.save, "s") == 0 && strcmp(config.resume, "r") == 0 && strcmp(config.log, "l") == 0 &&
               strcmp(config.json, "-") == 0 && strcmp(config.trace, "t") == 0 && config.save_every == 5 &&
               config.eval_every == 4,
           "the files");
    tap_ok(config.sample == 11 && strcmp(config.prompt, "11,7") == 0 && config.temperature == 0.7f,
           "the text");
    tap_is(parse("--data x --save s"), -1, "checkpoints without a number of steps between them");
    tap_ok(config.save_every == 0 && config.save_seconds == 600, "every ten minutes");
    tap_is(parse("--data x --save s --save-every 2h"), -1, "a time");
    tap_ok(config.save_every == 0 && config.save_seconds == 7200, "of two hours");
    tap_is(parse("--data x --save-every 0"), -1, "none, and nowhere to");
    tap_ok(config.save_every == 0 && config.save_seconds == 0, "at the end alone");
    tap_is(parse("--data=a=b --steps=9 --prompt="), -1, "values after an equals sign");
    tap_ok(strcmp(config.data, "a=b") == 0 && config.steps == 9, "are read to their end");
    tap_is(parse("--data x --steps 3 --steps 4"), -1, "the last one wins");
    tap_is(config.steps, 4, "four steps");
    tap_is(parse("--data x --sample 1 --prompt -dash"), -1, "a value may start with one dash");
    tap_is(parse("--data x --vocab 300 --sample 1 --prompt 5,,299"), -1, "a prompt of tokens");
    tap_is(parse("--data x --vocab 300 --prompt 300"), 2, "one beyond the vocabulary");
    tap_is(parse("--data x --vocab 300 --prompt In"), 2, "words where tokens are wanted");
    tap_is(parse("--data x --vocab 300 --prompt -1"), 2, "a token below 0");
    tap_is(parse("--data x --vocab 300 --prompt 99999999999999999999"), 2, "a token beyond any number");
    tap_is(parse("--dry-run --world-size 1024 --backend sim"), -1, "a byte plan needs no data");
    tap_ok(config.dry_run && config.backend == ZR_TRAIN_SIM && config.world == 1024, "and any world");
    tap_is(parse("--find-max layers --memory-limit 1GB --world-size 8"), -1, "the largest is looked for");
    tap_ok(config.finds_max && config.dry_run && config.world == 8, "in a dry run");
    tap_is(parse("--dry-run --flops 312e12 --bandwidth 25e9"), -1, "speeds for the timeline");
    tap_ok(config.flops_per_second == 312e12 && config.bytes_per_second == 25e9, "as they are given");
    tap_is(parse("--dry-run --flops 312e12 --bandwidth 25GB --offload-optimizer cpu --host-bandwidth 1.5g"),
           -1, "rates as sizes");
    tap_ok(config.bytes_per_second == 25e9 && config.host_bytes_per_second == 1610612736,
           "are read as every size");
}

/* ---- Exact limits -------------------------------------------------------------------------------------- */

static unsigned refusals;

/* The option with a value is taken and comes back as it was, or refused. */
static void try_value(const struct zr_flag *flag, const char *value, bool is_good)
{
    char buffer[64] = "";
    struct zr_text text;
    int code = zr_flag_store_in(flag, &config, value);
    zr_text_start(&text, NULL, buffer, sizeof buffer);
    if (code < 0)
        zr_flag_print(&text, flag, &config);
    bool narrow = flag->kind == ZR_FLAG_REAL && flag->room_bytes == sizeof(float);
    bool same = !is_good || (narrow ? strtof(buffer, NULL) == strtof(value, NULL)
                                    : strtod(buffer, NULL) == strtod(value, NULL));
    if (is_good && same && code < 0)
        code = zr_flag_store_in(flag, &config, buffer + 1); /* what is printed is taken again */
    refusals += !is_good;
    if (code != (is_good ? -1 : 2) || !same)
        tap_ok(false, "--%s %s: %d, and comes back as%s", flag->name, value, code, buffer);
}

/* Whole numbers are compared as such: 2^53 + 1 is no double. */
static void test_limits(void)
{
    char value[48];
    unsigned ranges = 0;
    parse("--data x");
    for (size_t i = 0; i < zr_flags_count; i++) {
        const struct zr_flag *flag = &zr_flags[i];
        bool whole = flag->kind == ZR_FLAG_COUNT || flag->kind == ZR_FLAG_BYTES ||
                     flag->kind == ZR_FLAG_ROOM || flag->kind == ZR_FLAG_VOCAB;
        if (!whole && flag->kind != ZR_FLAG_REAL && flag->kind != ZR_FLAG_RATE && flag->kind != ZR_FLAG_RATIO)
            continue;
        ranges++;
        for (int beyond = -1; beyond <= 1 && whole; beyond++) {
            snprintf(value, sizeof value, "%llu", (unsigned long long)flag->max + (unsigned long long)beyond);
            try_value(flag, value, beyond <= 0);
            snprintf(value, sizeof value, "%lld", (long long)flag->min + beyond);
            try_value(flag, value, beyond >= 0);
        }
        for (int end = 0; end < 2 && !whole; end++) {
            double limit = end ? flag->max : flag->min,
                   step = (end ? 1 : -1) * (limit != 0 ? limit * 1e-7 : 1e-30);
            snprintf(value, sizeof value, "%.17g", limit);
            try_value(flag, value, true);
            snprintf(value, sizeof value, "%.17g", limit + step);
            try_value(flag, value, false);
        }
    }
    tap_ok(ranges > 40 && refusals > 80, "the least and the most of %u options, and what is beyond", ranges);
    static const struct {
        const char *name;
        double max;
    } modules[] = {{"ranks", ZR_MAX_WORLD},
                   {"interleave", ZR_PIPELINE_PARTS_MAX},
                   {"offload-buffers", ZR_NVME_BUFFERS_MAX},
                   {"nvme-depth", ZR_NVME_DEPTH_MAX},
                   {"loss-scale", ZR_LOSS_SCALE_MAX},
                   {"min-loss-scale", ZR_LOSS_SCALE_MAX}};
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        tap_ok(zr_flag_find(modules[i].name)->max == modules[i].max, "--%s: as much as its module takes",
               modules[i].name);
    /* Options beside others: the last that fits, and the first that does not. */
    static const char *const pairs[][2] = {
        {"--data x --heads 4 --hidden 4", "--data x --heads 5 --hidden 4"},
        {"--data x --ranks 4 --tp 4 --heads 4", "--data x --ranks 3 --tp 4 --heads 4"},
        {"--data x --ranks 8 --tp 8 --heads 8", "--data x --ranks 8 --tp 8 --heads 4"},
        {"--data x --ranks 2 --tp 2 --sequence-parallel --seq 2",
         "--data x --ranks 2 --tp 2 --sequence-parallel --seq 1"},
        {"--data x --arch llama --heads 4 --kv-heads 4", "--data x --arch llama --heads 4 --kv-heads 5"},
        {"--data x --warmup 200", "--data x --warmup 201"},
        {"--data x --lr 1e-4 --min-lr 1e-4", "--data x --lr 1e-4 --min-lr 1.0001e-4"},
        {"--data x --recompute full:4", "--data x --recompute full:5"},
        {"--data x --layers 65536 --recompute full:65536", "--data x --layers 65536 --recompute full:65537"},
        {"--data x --recompute full:1", "--data x --recompute full:0"},
        {"--data x --ranks 65 --bucket-bytes 4096", "--data x --ranks 66 --bucket-bytes 4096"},
        {"--data x --ranks 66 --bucket-bytes 4160", "--data x --ranks 66 --bucket-bytes 4159"},
        {"--data x --ranks 4 --pp 4 --pipeline-cut equal", "--data x --ranks 5 --pp 5 --pipeline-cut equal"},
        {"--data x --ranks 6 --pp 6", "--data x --ranks 7 --pp 7"},
        {"--data x --ranks 2 --pp 2 --interleave 3 --accumulate 2",
         "--data x --ranks 2 --pp 2 --interleave 4 --accumulate 2"},
        {"--data x --ranks 2 --pp 2 --interleave 2 --accumulate 4",
         "--data x --ranks 2 --pp 2 --interleave 2 --accumulate 3"},
        {"--data x --ranks 2 --pp 2", "--data x --ranks 1 --pp 2"},
        {"--data x --vocab 300 --sample 1 --prompt 299", "--data x --vocab 300 --sample 1 --prompt 300"},
        {"--data x --precision fp16 --min-loss-scale 65536",
         "--data x --precision fp16 --min-loss-scale 65537"},
        {"--data x --tile 128", "--data x --tile 129"},
        {"--data x --save s --save-every 1000000000000", "--data x --save s --save-every 1000000000001"},
        {"--dry-run --world-size 1048576", "--dry-run --world-size 1048577"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        int good = parse(pairs[i][0]);
        if (good != -1)
            tap_note("%s", words);
        int bad = parse(pairs[i][1]);
        tap_ok(good == -1 && bad == 2, "%s: taken; %s: refused", pairs[i][0] + 2, pairs[i][1] + 2);
    }
}

static void test_help(void)
{
    tap_is(parse("--help"), 0, "help ends with 0");
    tap_ok(strstr(words, "Examples") && strstr(words, "Examples") < strstr(words, "--vocab"),
           "examples first");
    for (size_t i = 0; i < zr_flags_count; i++) {
        char name[64];
        snprintf(name, sizeof name, "\n  --%s", zr_flags[i].name);
        if (!strstr(words, name))
            tap_ok(false, "help has --%s", zr_flags[i].name);
    }
    size_t longest = 0;
    for (const char *at = words; *at; at += strcspn(at, "\n") + (at[strcspn(at, "\n")] != '\0'))
        longest = strcspn(at, "\n") > longest ? strcspn(at, "\n") : longest;
    tap_ok(longest <= 110, "no line of the help is longer than 110 (%zu)", longest);
    tap_ok(parse("-h") == 0 && parse("--data x --help") == 0, "asked for anywhere");
    tap_ok(parse("--version") == 0 && strcmp(words, "zr-train " ZR_VERSION_STRING "\n") == 0, "the version");
}

static void test_long_values(void)
{
    static char line[8192];
    static char path[5000];
    char *argv[] = {(char *)"zr-train", (char *)"--data", path, NULL};
    memset(path, 'x', 4095);
    tap_is(zr_args_parse(&config, 3, argv), -1, "a path of 4,095 bytes");
    memset(path, 'x', 4096);
    snprintf(line, sizeof line, "--data %s", path);
    tap_is(parse(line), 2, "one of 4,096 is refused");
    tap_ok(strlen(words) < 1024, "in few words");
}

/* ---- Back to a command line ---------------------------------------------------------------------------- */

static void test_print(void)
{
    char buffer[8192];
    struct zr_text text;
    char *argv[] = {(char *)"zr-train",
                    (char *)"--data",
                    (char *)"it's a text.txt",
                    (char *)"--stage",
                    (char *)"1",
                    (char *)"--steps",
                    (char *)"5",
                    (char *)"--lr",
                    (char *)"0.0003",
                    (char *)"--json",
                    (char *)"-",
                    (char *)"--vocab",
                    (char *)"byte",
                    (char *)"--schedule-lr",
                    (char *)"constant",
                    NULL};

    tap_is(zr_args_parse(&config, 15, argv), -1, "a run");
    zr_text_start(&text, NULL, buffer, sizeof buffer);
    zr_args_print(&text, &config,
                  (struct zr_args_change[]){{"steps", "10"}, {"save", "out dir"}, {"lr", NULL}}, 3);
    const char *want =
        "zr-train --data 'it'\\''s a text.txt' --vocab byte --steps 10 --stage 1 --schedule-lr constant "
        "--save 'out dir'";
    if (!tap_ok(strcmp(buffer, want) == 0, "comes back as a command, with changes"))
        tap_note("%s", buffer);
}

static void test_exits(void)
{
    tap_is(zr_exit_of(ZR_OK), 0, "fine");
    tap_is(zr_exit_of(ZR_ERR_INVALID), 2, "usage");
    tap_is(zr_exit_of(ZR_ERR_FORMAT), 3, "bad input");
    tap_is(zr_exit_of(ZR_ERR_IO), 3, "a file");
    tap_is(zr_exit_of(ZR_ERR_MEMORY), 4, "memory");
    tap_is(zr_exit_of(ZR_ERR_ADDRESSES), 4, "addresses");
    tap_is(zr_exit_of(ZR_ERR_PEER), 1, "a lost rank");
}

int main(void)
{
    test_refusals();
    test_pairs();
    test_rules();
    test_defaults();
    test_optimizers();
    test_every_option();
    test_limits();
    test_help();
    test_long_values();
    test_print();
    test_exits();
    return tap_done();
}
