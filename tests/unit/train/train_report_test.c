/* train_report_test.c: what a run says about itself: --json read back number by number, the tables, the log
 * across a resume, the chart, and the rate of each step. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/heap/heap.h"
#include "tests/support/folder.h"
#include "tests/support/records.h"
#include "tests/support/tap.h"
#include "zero/train/report/log.h"
#include "zero/train/report/number.h"
#include "zero/train/settings/args.h"
#include "zero/train/report/report.h"

static char folder[] = "/tmp/zr-report-XXXXXX";
static char path[128];
static char caught[1 << 16];

/* Runs between catch_start() and catch_end() land in `caught`, both outputs. */
static int saved[2];
static FILE *catch;

static void catch_start(void)
{
    fflush(stdout);
    catch = tmpfile();
    for (int i = 0; i < 2; i++) {
        saved[i] = dup(i + 1);
        dup2(fileno(catch), i + 1);
    }
}

static void catch_end(void)
{
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i + 1);
        close(saved[i]);
    }
    rewind(catch);
    caught[fread(caught, 1, sizeof caught - 1, catch)] = '\0';
    fclose(catch);
}

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

static const char *read_file(void)
{
    FILE *file = fopen(path, "r");
    caught[0] = '\0';
    if (file) {
        caught[fread(caught, 1, sizeof caught - 1, file)] = '\0';
        fclose(file);
    }
    return caught;
}

/* ---- A run to report ----------------------------------------------------------------------------------- */

enum { STEPS = 5 };
static struct zr_train_config config;
static struct zr_rank_report ranks[2];
static const double loss[STEPS] = {5.545177444479562, 0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308};
static const double seconds[STEPS] = {1.5, 0.25, 0.125, 0.0625, 1e-9};
static const char sample[] = "In the \"beginning\"\n\tof \\x00\xc3\xa9";

static struct zr_training_report make_run(void)
{
    config = (struct zr_train_config){
        .shape = {.layers = 2,
                  .hidden = 8,
                  .heads = 2,
                  .vocabulary = 256,
                  .vocabulary_padded = 256,
                  .sequence = 16,
                  .batch = 3},
        .bytes = true,
        .steps = STEPS,
        .world = 2,
        .stage = 1,
        .threads = 1,
        .sample = 10,
    };
    snprintf(config.data, sizeof config.data, "text.txt");
    snprintf(config.json, sizeof config.json, "%s", path);
    for (unsigned r = 0; r < 2; r++) {
        ranks[r] = (struct zr_rank_report){.rank = r,
                                           .planned_reserved_bytes = 8 << 20,
                                           .peak_reserved_bytes = 9 << 20,
                                           .peak_resident_bytes = 11111111,
                                           .resident_anonymous_bytes = 222222,
                                           .resident_shared_bytes = 333333,
                                           .stranded_bytes = 4444,
                                           .sent_elements_per_step = UINT64_C(9007199254740993),
                                           .received_bytes_per_step = UINT64_C(36028797018963972),
                                           .driver_calls_last_step = 17,
                                           .host_waits_last_step = 18,
                                           .comm_busy_ns = 1000,
                                           .comm_exposed_ns = 250};
        for (int tag = 0; tag < ZR_TAG_OTHER; tag++) {
            ranks[r].planned_by_tag_bytes[tag] = (size_t)tag << 33;
            ranks[r].peak_by_tag_bytes[tag] = (size_t)tag << 33;
            ranks[r].planned_bytes += (size_t)tag << 33;
        }
        ranks[r].peak_by_tag_bytes[ZR_TAG_OTHER] = 12345;
        ranks[r].peak_bytes = ranks[r].planned_bytes + 12345;
    }
    return (struct zr_training_report){.config = &config,
                                       .ranks = ranks,
                                       .world = 2,
                                       .parameters = 123456,
                                       .resumed_step = 7,
                                       .steps_count = STEPS,
                                       .loss = loss,
                                       .step_seconds = seconds,
                                       .tokens_per_second = 1234.5678901234567,
                                       .seconds = 2.5,
                                       .validated = true,
                                       .validation_loss = 2.0000000000000004,
                                       .sample = sample,
                                       .sample_bytes = sizeof sample - 1};
}

static bool tags_equal(json_t *object, const size_t by_tag_bytes[ZR_TAG_COUNT], size_t total)
{
    bool equal = json_object_size(object) == ZR_TAG_COUNT + 1;
    for (int tag = 0; tag < ZR_TAG_COUNT; tag++)
        equal &= (size_t)json_integer_value(json_object_get(object, zr_tag_name((zr_tag)tag))) ==
                 by_tag_bytes[tag];
    return equal && (size_t)json_integer_value(json_object_get(object, "total")) == total;
}

static void check_json(json_t *root)
{
    bool equal = json_array_size(json_object_get(root, "loss")) == STEPS &&
                 json_array_size(json_object_get(root, "loss_hex")) == STEPS &&
                 json_array_size(json_object_get(root, "step_seconds")) == STEPS;
    for (size_t i = 0; i < STEPS; i++) {
        equal &= json_number_value(json_array_get(json_object_get(root, "loss"), i)) == loss[i];
        equal &=
            strtod(json_string_value(json_array_get(json_object_get(root, "loss_hex"), i)), NULL) == loss[i];
        equal &= json_number_value(json_array_get(json_object_get(root, "step_seconds"), i)) == seconds[i];
    }
    tap_ok(equal, "losses and times have the same bits");
    tap_is(json_integer_value(json_object_get(root, "version")), 1, "version");
    tap_is(json_integer_value(json_object_get(root, "world_size")), 2, "world size");
    tap_is(json_integer_value(json_object_get(root, "stage")), 1, "stage");
    tap_is(json_integer_value(json_object_get(root, "parameters")), 123456, "parameters");
    tap_is(json_integer_value(json_object_get(root, "steps")), STEPS, "steps");
    tap_is(json_integer_value(json_object_get(root, "first_step")), 8, "first step after a resume");
    tap_ok(json_number_value(json_object_get(root, "tokens_per_second")) == 1234.5678901234567, "speed");
    tap_ok(json_number_value(json_object_get(root, "val_loss")) == 2.0000000000000004, "validation loss");
    tap_ok(strcmp(json_string_value(json_object_get(root, "sample")), sample) == 0,
           "the sample, quotes and all");
    tap_is(json_array_size(json_object_get(root, "ranks")), 2, "two ranks");
    for (unsigned r = 0; r < 2; r++) {
        json_t *rank = json_array_get(json_object_get(root, "ranks"), r);
        tap_is(json_integer_value(json_object_get(rank, "rank")), r, "rank %u", r);
        tap_ok(tags_equal(json_object_get(rank, "planned_bytes"), ranks[r].planned_by_tag_bytes,
                          ranks[r].planned_bytes),
               "its planned bytes by tag");
        tap_ok(
            tags_equal(json_object_get(rank, "peak_bytes"), ranks[r].peak_by_tag_bytes, ranks[r].peak_bytes),
            "its measured bytes by tag");
        tap_is(json_integer_value(json_object_get(rank, "peak_reserved_bytes")), 9 << 20, "reserved");
        tap_is(json_integer_value(json_object_get(rank, "peak_rss_bytes")), 11111111, "resident");
        tap_is(json_integer_value(json_object_get(rank, "sent_elements_per_step")), 9007199254740993,
               "elements sent, beyond 2^53");
        tap_is(json_integer_value(json_object_get(rank, "received_bytes_per_step")), 36028797018963972,
               "and bytes received");
        tap_is(json_integer_value(json_object_get(rank, "driver_calls_last_step")), 17, "driver calls");
        tap_is(json_integer_value(json_object_get(rank, "host_waits_last_step")), 18, "waits for a card");
    }
}

/* /dev/stdout is such a link where standard output is a file. */
static void test_json_through_link(const struct zr_training_report *run)
{
    char link_path[sizeof path];
    struct stat status;

    snprintf(link_path, sizeof link_path, "%s/link", folder);
    tap_ok(unlink(path) == 0 && symlink("run.json", link_path) == 0, "a link to where nothing is");
    snprintf(config.json, sizeof config.json, "%s", link_path);
    for (int time = 0; time < 2; time++) {
        tap_result(zr_report_json(run), ZR_OK, "the JSON is written through a link");
        tap_ok(lstat(link_path, &status) == 0 && S_ISLNK(status.st_mode), "which stays one");
        json_t *root = json_load_file(path, 0, NULL);
        tap_ok(root, "and is where it leads");
        json_decref(root);
    }
    snprintf(config.trace, sizeof config.trace, "%s", link_path);
    tap_result(zr_outputs_check(&config), ZR_ERR_IO, "a trace does not take a link's place");
    config.trace[0] = '\0';
    snprintf(config.export, sizeof config.export, "%s", link_path);
    tap_result(zr_outputs_check(&config), ZR_ERR_IO, "nor does an export");
    config.export[0] = '\0';
    unlink(link_path);
}

static void test_json(void)
{
    struct zr_training_report run = make_run();
    json_t *root;

    tap_result(zr_report_json(&run), ZR_OK, "the JSON is written");
    tap_is(folder_entries(folder), 1, "to one file");
    root = json_load_file(path, 0, NULL);
    if (tap_ok(root, "that any reader takes"))
        check_json(root);
    json_decref(root);
    const double bad[2] = {NAN, -INFINITY};
    run.loss = bad;
    run.step_seconds = seconds;
    run.steps_count = 2;
    run.validated = false;
    run.sample = NULL;
    zr_report_json(&run);
    root = json_load_file(path, 0, NULL);
    tap_ok(root && json_is_null(json_array_get(json_object_get(root, "loss"), 0)) &&
               json_is_null(json_array_get(json_object_get(root, "loss"), 1)) &&
               json_is_null(json_object_get(root, "val_loss")),
           "what is no number, or not known, is null");
    json_decref(root);
    run.steps_count = 0;
    zr_report_json(&run);
    root = json_load_file(path, 0, NULL);
    tap_ok(root && json_array_size(json_object_get(root, "loss")) == 0, "no steps at all");
    json_decref(root);
    test_json_through_link(&run);
    snprintf(config.json, sizeof config.json, "-");
    catch_start();
    zr_result result = zr_report_json(&run);
    catch_end();
    root = json_loads(caught, 0, NULL);
    tap_ok(!result && root, "- is standard output");
    json_decref(root);
    config.json[0] = '\0';
    tap_result(zr_report_json(&run), ZR_OK, "and none is asked for");
}

/* Every write, sync and rename fails in turn: the file of before stays, and nothing beside it. */
static void test_json_faults(void)
{
    static const enum zr_fault_site sites[] = {ZR_FAULT_OPEN, ZR_FAULT_WRITE, ZR_FAULT_SYNC, ZR_FAULT_RENAME};
    struct zr_training_report run = make_run();
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        zr_result result = ZR_ERR_IO;
        unsigned failures = 0;
        bool kept = true;
        for (uint64_t nth = 1; result; nth++) {
            write_file("before");
            zr_fault_set(sites[i], nth);
            result = zr_report_json(&run);
            zr_fault_set(sites[i], 0);
            if (result) {
                failures++;
                kept &=
                    strcmp(read_file(), "before") == 0 && folder_entries(folder) == 1 && result == ZR_ERR_IO;
            }
        }
        tap_ok(kept && failures >= 1, "%s fails %u times: the old file stays, alone",
               zr_fault_site_name(sites[i]), failures);
    }
    snprintf(config.json, sizeof config.json, "%s.none/x", path);
    tap_result(zr_report_json(&run), ZR_ERR_IO, "a folder that is not there");
    snprintf(config.json, sizeof config.json, "%s", path);
    char partial[160];
    snprintf(partial, sizeof partial, "%s.partial", path);
    rename(path, partial);
    zr_report_clean_up(path);
    tap_is(folder_entries(folder), 0, "what a killed run left is removed");
    zr_report_clean_up("");
    zr_report_clean_up("-");
}

/* ---- Tables -------------------------------------------------------------------------------------------- */

static bool is_ascii(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 128)
            return false;
    return true;
}

/* A rank that has less at its peak than planned, then more than at any moment of its plan. */
static void test_skipped(struct zr_training_report *run)
{
    run->steps_count = 2;
    run->all_skipped = true;
    catch_start();
    zr_report_end(run);
    catch_end();
    tap_ok(strstr(caught, "no step was updated") && !strstr(caught, "DIFFERS") &&
               !strstr(caught, "elements sent"),
           "of steps that were all skipped nothing is said that an update would show");
    ranks[1].peak_by_tag_bytes[ZR_TAG_GRAD] += 7;
    catch_start();
    zr_report_end(run);
    catch_end();
    tap_ok(strstr(caught, "rank 1 of 2, which differs") && strstr(caught, "DIFFERS"),
           "but what is above the plan is");
}

static void test_tables(void)
{
    struct zr_training_report run = make_run();
    setenv("LC_ALL", "C", 1);
    run.sample = "And God said";
    run.sample_bytes = strlen(run.sample);
    for (unsigned r = 0; r < 2; r++) {
        memcpy(ranks[r].tag_limits.by_tag_bytes, ranks[r].planned_by_tag_bytes,
               sizeof ranks[r].planned_by_tag_bytes);
        ranks[r].tag_limits.by_tag_bytes[ZR_TAG_GATHERED] = 98765432109;
        ranks[r].tag_limits.total_bytes = ranks[r].planned_bytes;
    }
    catch_start();
    zr_result planned = zr_report_plan(&config, 123456, ranks, 2), ended = zr_report_end(&run);
    catch_end();
    tap_ok(!planned && !ended, "plan and end are printed");
    tap_ok(is_ascii(caught), "in ASCII where the locale is C");
    tap_ok(!strchr(caught, '\033') && !strchr(caught, '\r'), "without colour off a terminal");
    tap_ok(strstr(caught, "Byte plan, each of 2 ranks") && strstr(caught, "8,589,934,592"),
           "the plan in exact bytes");
    tap_ok(strstr(caught, "\n  at other moments, at most: gathered 98,765,432,109\n"),
           "and what is more at other moments than at the peak");
    tap_ok(!strstr(caught, "DIFFERS") && strstr(caught, "as planned"), "planned and measured agree");
    tap_ok(strstr(caught, "75 % of communication hidden"), "communication hidden");
    tap_ok(strstr(caught, "And God said"), "the sample");
    tap_ok(strstr(caught, "\n  zr-train --steps 10 --save checkpoints\n"), "and the next command");
    run.sample = "aaaa bbbb  cccc\n\n"
                 "dddddddddddddddddddd eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee ffffffffffffffff gggggggg hhhh iiii "
                 "jjjj kkkk ll ";
    run.sample_bytes = strlen(run.sample);
    catch_start();
    zr_report_end(&run);
    catch_end();
    tap_ok(strstr(caught, "aaaa bbbb  cccc\n\ndddd") && strstr(caught, " gggggggg\nhhhh iiii jjjj kkkk ll"),
           "long lines of it are broken between words");
    ranks[1].peak_by_tag_bytes[ZR_TAG_GRAD] += 1;
    setenv("LC_ALL", "en_US.UTF-8", 1);
    catch_start();
    zr_report_end(&run);
    catch_end();
    tap_ok(strstr(caught, "rank 1 of 2, which differs") && strstr(caught, "DIFFERS"),
           "a rank whose bytes differ from its plan is shown");
    ranks[1].planned_by_tag_bytes[ZR_TAG_GRAD] += 1;
    ranks[1].planned_bytes += 1;
    catch_start();
    zr_report_end(&run);
    catch_end();
    tap_ok(strstr(caught, "rank 1 of 2, the largest") && !strstr(caught, "DIFFERS"),
           "else the largest, where they are of several sizes");
    tap_ok(strstr(caught, "─") && strstr(caught, "│"), "in UTF-8 where the locale says so");
    run.steps_count = 0;
    ranks[1].peak_by_tag_bytes[ZR_TAG_GRAD] -= 1;
    catch_start();
    zr_report_end(&run);
    catch_end();
    tap_ok(strstr(caught, "none was made") && !strstr(caught, "DIFFERS"),
           "without a step what is planned for one need not have been");
    tap_ok(strstr(caught, "as planned") && !strstr(caught, "Speed"),
           "what is kept is, and nothing had a speed");
    test_skipped(&run);
}

static void test_chart(void)
{
    char buffer[8192];
    struct zr_text text;
    double values[300];
    struct zr_chart chart = {.values = values, .count = 300, .first = 1, .columns = 40, .rows = 5};

    for (int i = 0; i < 300; i++)
        values[i] = 10 - i / 30.0;
    zr_text_start(&text, NULL, buffer, sizeof buffer);
    zr_chart_draw(&text, &chart);
    const char *first = strchr(buffer, '|'), *fifth = first;
    for (int i = 0; i < 4; i++)
        fifth = strchr(fifth + 1, '|');
    tap_ok(first[1] == '*' && fifth[30] == '*' && fifth[1] == ' ' && first[30] == ' ',
           "a line falls from left to right");
    for (unsigned columns = 0; columns < 200; columns += 13)
        for (size_t count = 0; count < 5; count++)
            for (int utf8 = 0; utf8 < 2; utf8++) {
                chart = (struct zr_chart){values, count, 1, columns, columns, utf8};
                zr_text_start(&text, NULL, buffer, sizeof buffer);
                zr_chart_draw(&text, &chart);
                if (text.result)
                    tap_ok(false, "%u columns, %zu values", columns, count);
            }
    values[0] = values[1] = NAN;
    zr_text_start(&text, NULL, buffer, sizeof buffer);
    zr_chart_draw(&text, &(struct zr_chart){values, 2, 1, 40, 5, true});
    tap_is(text.used_bytes, 0, "nothing to draw without a number");
    values[0] = values[1] = 3;
    zr_chart_draw(&text, &(struct zr_chart){values, 2, 1, 40, 5, true});
    tap_ok(text.used_bytes > 0 && !text.result, "a flat curve");
}

static void test_numbers(void)
{
    char out[ZR_NUMBER_ROOM];
    uint64_t state = 88172645463325252u;
    bool exact = true;
    for (int i = 0; i < 20000; i++) {
        double value;
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(&value, &state, sizeof value);
        exact &= !isfinite(value) || (strtod(zr_number_exact(out, value), NULL) == value &&
                                      strtod(zr_number_hex(out, value), NULL) == value);
    }
    tap_ok(exact, "20,000 random doubles come back from decimal and hexadecimal");
    tap_ok(strcmp(zr_number_bytes(out, 0), "0") == 0 && strcmp(zr_number_bytes(out, 1023), "1023 B") == 0 &&
               strcmp(zr_number_bytes(out, 1048575), "1.00 MiB") == 0 &&
               strcmp(zr_number_bytes(out, 1610612736), "1.50 GiB") == 0 &&
               strcmp(zr_number_bytes(out, UINT64_MAX), "16.0 EiB") == 0,
           "bytes");
    tap_ok(strcmp(zr_number_grouped(out, 0), "0") == 0 && strcmp(zr_number_grouped(out, 999), "999") == 0 &&
               strcmp(zr_number_grouped(out, 1000), "1,000") == 0 &&
               strcmp(zr_number_grouped(out, UINT64_MAX), "18,446,744,073,709,551,615") == 0,
           "grouped");
    tap_ok(strcmp(zr_number_counted(out, 850), "850") == 0 &&
               strcmp(zr_number_counted(out, 124439808), "124 M") == 0,
           "counted");
    tap_ok(strcmp(zr_number_seconds(out, 59.7), "1 min 00 s") == 0 &&
               strcmp(zr_number_seconds(out, 3725), "1 h 02 min") == 0 &&
               strcmp(zr_number_seconds(out, NAN), "?") == 0,
           "seconds");
}

/* ---- Log, progress, rate ------------------------------------------------------------------------------- */

static void log_steps(struct zr_log *log, uint64_t from, uint64_t to, double value)
{
    for (uint64_t step = from; step <= to; step++)
        zr_log_step(log, &(struct zr_step_line){.step = step,
                                                .loss = value,
                                                .validated = step % 2 == 0,
                                                .validation_loss = NAN,
                                                .live_bytes = 123});
}

/* The log's lines as "1:0.5 2:0.5 ..."; "broken" where one is no JSON. */
static const char *log_digest(void)
{
    static char digest[4096];
    char copy[16384];
    digest[0] = '\0';
    snprintf(copy, sizeof copy, "%s", read_file());
    char *rest = copy;
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        json_t *root = json_loads(line, 0, NULL);
        size_t used = strlen(digest);
        if (root)
            snprintf(digest + used, sizeof digest - used, "%lld:%g ",
                     (long long)json_integer_value(json_object_get(root, "step")),
                     json_number_value(json_object_get(root, "loss")));
        else
            snprintf(digest + used, sizeof digest - used, "broken ");
        json_decref(root);
    }
    return digest;
}

static void append(const char *text)
{
    FILE *file = fopen(path, "a");
    fputs(text, file);
    fclose(file);
}

static void test_log(void)
{
    struct zr_log log;
    write_file("old words\n");
    tap_result(zr_log_open(&log, path, 0), ZR_OK, "a log");
    log_steps(&log, 1, 4, 0.5);
    zr_log_close(&log);
    tap_ok(strcmp(log_digest(), "1:0.5 2:0.5 3:0.5 4:0.5 ") == 0, "starts anew, a line per step");
    tap_ok(strstr(read_file(), "\"val_loss\": null") && strstr(read_file(), "\"live_bytes\": 123"),
           "with its numbers");
    append("{\"step\": 5, \"lo");
    zr_log_open(&log, path, 2);
    log_steps(&log, 3, 5, 0.25);
    zr_log_close(&log);
    if (!tap_ok(strcmp(log_digest(), "1:0.5 2:0.5 3:0.25 4:0.25 5:0.25 ") == 0,
                "goes on after the step it resumes from, whatever came later"))
        tap_note("%s", log_digest());
    append("{\"step\": 6, \"lo");
    zr_log_open(&log, path, 9);
    log_steps(&log, 10, 10, 0.125);
    zr_log_close(&log);
    tap_ok(strcmp(log_digest(), "1:0.5 2:0.5 3:0.25 4:0.25 5:0.25 10:0.125 ") == 0,
           "a broken last line is cut off");
    zr_log_open(&log, path, 10);
    zr_fault_set(ZR_FAULT_WRITE, 1);
    tap_result(zr_log_step(&log, &(struct zr_step_line){.step = 11}), ZR_ERR_IO, "a full disk is told");
    zr_fault_set(ZR_FAULT_WRITE, 0);
    zr_log_close(&log);
    tap_ok(strstr(log_digest(), "10:0.125 ") && !strstr(log_digest(), "broken"), "and leaves whole lines");
    tap_result(zr_log_open(&log, "", 0), ZR_OK, "no log");
    tap_result(zr_log_step(&log, &(struct zr_step_line){.step = 11}), ZR_OK, "takes steps as well");
    zr_log_close(&log);
    tap_result(zr_log_open(&log, folder, 0), ZR_ERR_IO, "a folder is no log");
}

/* Many steps' lines, more than a piece of what the resume reads at a time. */
static void test_long_log(void)
{
    struct zr_log log;
    size_t lines = 0;
    zr_log_open(&log, path, 0);
    log_steps(&log, 1, 300, 0.1);
    zr_log_close(&log);
    for (uint64_t keep = 0; keep < 300; keep += 37) {
        zr_log_open(&log, path, 300 - keep);
        zr_log_close(&log);
        lines = 0;
        for (const char *at = read_file(); (at = strchr(at, '\n')); at++)
            lines++;
        if (lines != 300 - keep)
            tap_ok(false, "resumed at %llu: %zu lines", (unsigned long long)(300 - keep), lines);
    }
    tap_is(lines, 300 - 296, "a long log is cut where it should be");
    unlink(path);
}

static void test_progress(void)
{
    struct zr_progress progress;
    catch_start();
    zr_progress_start(&progress, 100, 1100);
    for (uint64_t step = 101; step <= 1100; step++)
        zr_progress_step(&progress, &(struct zr_step_line){.step = step,
                                                           .loss = 2,
                                                           .tokens_per_second = 1000,
                                                           .validated = step == 333,
                                                           .validation_loss = 2.125});
    zr_progress_break(&progress);
    catch_end();
    int lines = 0;
    for (const char *at = caught; (at = strchr(at, '\n')); at++)
        lines++;
    tap_ok(lines >= 19 && lines <= 22, "about twenty lines off a terminal (%d)", lines);
    tap_ok(strstr(caught, "step 101/1100") && strstr(caught, "step 1100/1100"),
           "the first and the last step among them");
    tap_ok(!strchr(caught, '\033') && !strchr(caught, '\r'), "plain ones");
    const char *first = strstr(caught, "  val 2.1250  ");
    tap_ok(first && !strstr(first + 1, "  val "), "the line after a validation has its loss, no other");
}

/* Where a run is to write is looked at before it starts, and nothing is made. */
static void test_outputs(void)
{
    static struct zr_train_config none;
    static const struct {
        const char *option, *tail, *word; /* word NULL: fine */
    } cases[] = {{"save", "", NULL},
                 {"save", "/new", NULL},
                 {"save", "/a/b/c/", NULL},
                 {"save", "/file", "not a folder"},
                 {"save", "/file/x", "not a folder"},
                 {"json", "/new", NULL},
                 {"json", "/file", NULL},
                 {"json", "", "is a folder"},
                 {"json", "/a/b", "does not exist"},
                 {"log", "/a/b", "does not exist"},
                 {"trace", "/file/x", "not a folder"}};
    snprintf(path, sizeof path, "%s/file", folder);
    write_file("x");
    size_t entries = folder_entries(folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config = none;
        char *field = cases[i].option[0] == 's'   ? config.save
                      : cases[i].option[0] == 'j' ? config.json
                      : cases[i].option[0] == 'l' ? config.log
                                                  : config.trace;
        snprintf(field, ZR_TRAIN_PATH_ROOM, "%s%s", folder, cases[i].tail);
        zr_result result = zr_outputs_check(&config);
        bool good = cases[i].word ? result == ZR_ERR_IO && strstr(zr_last_error(), cases[i].word) &&
                                        strstr(zr_last_error(), cases[i].option)
                                  : result == ZR_OK;
        if (!tap_ok(good, "--%s FOLDER%s %s", cases[i].option, cases[i].tail,
                    cases[i].word ? "is refused" : "is fine"))
            tap_note("%s", zr_last_error());
    }
    config = none;
    snprintf(config.json, sizeof config.json, "-");
    snprintf(config.log, sizeof config.log, "/dev/null");
    snprintf(config.save, sizeof config.save, "relative");
    tap_result(zr_outputs_check(&config), ZR_OK, "standard output, a device and a relative name");
    snprintf(config.export, sizeof config.export, "/dev/null");
    tap_result(zr_outputs_check(&config), ZR_ERR_IO, "a device is no place for an export");
    config.export[0] = '\0';
    snprintf(config.trace, sizeof config.trace, "/dev/null");
    tap_result(zr_outputs_check(&config), ZR_ERR_IO, "nor for a trace");
    config.trace[0] = '\0';
    snprintf(config.save, sizeof config.save, "/zr-none");
    tap_ok(zr_outputs_check(&config) == (access("/", W_OK) ? ZR_ERR_IO : ZR_OK), "a folder in the root");
    tap_is(folder_entries(folder), entries, "nothing was made");
}

/* Two options that lead to one place, there already (file, folder) or not (new). */
static void test_apart(void)
{
    static const struct {
        char *first, *second;
        const char *first_tail, *second_tail;
        bool apart;
    } cases[] = {{config.config_file, config.json, "/file", "/file", false},
                 {config.config_file, config.log, "/file", "//./file", false},
                 {config.data, config.trace, "/link", "/file", false},
                 {config.data, config.export, "/file", "/other", true},
                 {config.json, config.log, "/new", "/./new", false},
                 {config.json, config.log, "/new", "/new2", true},
                 {config.json, config.log, "/no/new", "/no/new", false},
                 {config.save, config.export, "/new", "/new", false},
                 {config.save, config.json, "/new//", "/new", false},
                 {config.save, config.trace, "", "/", false},
                 {config.save, config.resume, "", "/", true},
                 {config.save, config.resume, "/new", "/new", true},
                 {config.resume, config.export, "/file", "/file", false}};
    char link_path[sizeof path];
    snprintf(path, sizeof path, "%s/file", folder);
    write_file("x");
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    tap_ok(symlink("file", link_path) == 0, "a link to the file");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(&config, 0, sizeof config);
        snprintf(cases[i].first, ZR_TRAIN_PATH_ROOM, "%s%s", folder, cases[i].first_tail);
        snprintf(cases[i].second, ZR_TRAIN_PATH_ROOM, "%s%s", folder, cases[i].second_tail);
        tap_result(zr_outputs_apart(&config), cases[i].apart ? ZR_OK : ZR_ERR_INVALID,
                   "FOLDER%s and FOLDER%s %s", cases[i].first_tail, cases[i].second_tail,
                   cases[i].apart ? "are two" : "are one");
    }
    memset(&config, 0, sizeof config);
    snprintf(config.json, sizeof config.json, "/dev/null");
    snprintf(config.log, sizeof config.log, "/dev/null");
    tap_result(zr_outputs_apart(&config), ZR_OK, "a device takes what two write");
    unlink(link_path);
}

static void test_schedule(void)
{
    /* rates of steps 11, 55, 90, 91, 95 and 100 after a warm-up of 10 */
    static const struct {
        enum zr_rate_kind kind;
        double rates[6];
    } cases[] = {
        {ZR_RATE_COSINE, {0.99977156, 0.625, 0.27261527, 0.26835381, 0.25569709, 0.25}},
        {ZR_RATE_LINEAR, {0.99166667, 0.625, 0.33333333, 0.325, 0.29166667, 0.25}},
        {ZR_RATE_CONSTANT, {1, 1, 1, 1, 1, 1}},
        {ZR_RATE_WSD, {1, 1, 1, 0.925, 0.625, 0.25}},
        {ZR_RATE_INVERSE_SQRT, {0.95346259, 0.42640143, 0.33333333, 0.33149677, 0.32444284, 0.31622777}}};
    static const uint64_t steps[] = {11, 55, 90, 91, 95, 100};
    struct zr_train_config c = {
        .steps = 100, .warmup = 10, .rate = 1, .min_rate = 0.25f, .decay_share = 0.1f};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.rate_kind = cases[i].kind;
        const char *name = zr_schedule_of(c.rate_kind)->name;
        bool good = true;
        tap_ok(zr_schedule_rate(&c, 1) == 0.1f && zr_schedule_rate(&c, 5) == 0.5f &&
                   zr_schedule_rate(&c, 10) == 1,
               "%s: the warm-up climbs evenly", name);
        for (size_t s = 0; s < sizeof steps / sizeof *steps; s++)
            good &= fabs((double)zr_schedule_rate(&c, steps[s]) - cases[i].rates[s]) < 1e-6;
        tap_ok(good, "%s: rates as its formula says", name);
        tap_ok(zr_schedule_of(c.rate_kind)->ends == (zr_schedule_rate(&c, 1000) == 0.25f),
               "%s: the minimum after the last step, if it ends", name);
    }
    c = (struct zr_train_config){.steps = 1, .rate = 1, .min_rate = 0.5f};
    tap_ok(isfinite(zr_schedule_rate(&c, 1)), "a single step");
    c = (struct zr_train_config){.steps = 10, .warmup = 10, .rate = 1, .min_rate = 0.5f};
    tap_ok(zr_schedule_rate(&c, 10) == 1 && zr_schedule_rate(&c, 1) == 0.1f, "nothing but warm-up");
}

/* ---- --status and --tensorboard ------------------------------------------------------------------------ */

static void test_status(void)
{
    struct zr_status status;
    char partial[ZR_TRAIN_PATH_ROOM + 16], *line = caught;
    snprintf(path, sizeof path, "%s/status", folder);
    tap_result(zr_status_start(&status, path, 4, 10), ZR_OK, "a status file");
    status.written_ns = 0;
    zr_status_step(&status, &(struct zr_step_line){.step = 5, .validated = true, .validation_loss = 2.5});
    zr_status_step(&status, &(struct zr_step_line){.step = 6, .loss = 1.5});
    read_file();
    tap_ok(strstr(line, "\"step\": 5") && strstr(line, "\"state\": \"training\""),
           "is written at most ten times a second");
    tap_result(zr_status_end(&status, "done"), ZR_OK, "and at the end");
    size_t bytes = strlen(read_file());
    json_t *json = json_loads(line, 0, NULL);
    tap_ok(json && json_integer_value(json_object_get(json, "step")) == 6 &&
               json_integer_value(json_object_get(json, "steps")) == 10 &&
               json_real_value(json_object_get(json, "val_loss")) == 2.5 &&
               json_is_real(json_object_get(json, "seconds_left")) &&
               strcmp(json_string_value(json_object_get(json, "state")), "done") == 0,
           "one object with the last known validation loss");
    tap_ok(memchr(line, '\n', bytes) == line + bytes - 1, "on one line");
    json_decref(json);
    zr_report_name_partial(path, partial);
    tap_ok(access(partial, F_OK) != 0, "nothing is left beside it");
    zr_fault_set(ZR_FAULT_RENAME, 1);
    tap_result(zr_status_end(&status, "done"), ZR_ERR_IO, "a failed rename is told");
    zr_fault_set(ZR_FAULT_RENAME, 0);
    tap_ok(access(partial, F_OK) != 0 && strlen(read_file()) == bytes, "the file stays as it was");
}

int main(void)
{
    if (!mkdtemp(folder) || records_begin() != ZR_OK || zr_heap_start(host_arena) != ZR_OK)
        return 1;
    snprintf(path, sizeof path, "%s/run.json", folder);
    setenv("LC_ALL", "C", 1);
    test_json();
    test_json_faults();
    test_tables();
    test_chart();
    test_numbers();
    test_log();
    test_long_log();
    test_progress();
    test_schedule();
    test_status();
    test_outputs();
    test_apart();
    unlink(path);
    rmdir(folder);
    size_t leaked = 1;
    zr_heap_stop(&leaked);
    tap_is(leaked, 0, "no JSON is left in the heap");
    tap_is(records_end(), 0, "nor anything in the arena");
    return tap_done();
}
