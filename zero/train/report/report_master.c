/* report_master.c: what --master costs: copies between threads, and times of rank 0. See report.h. */
#include "zero/train/report/report.h"

#include "zero/train/report/number.h"
#include "zero/train/report/terminal.h"

/* The parts of a step: the other ranks copy the parameters of rank 0, which sums gradients and updates. */
enum { REPLICATES, GATHERS, UPDATES, PARTS };
static const char *const names[PARTS] = {"replicate", "gather", "update"};

/* Bytes that all ranks send in a step. */
struct copied {
    uint64_t planned[UPDATES], measured[UPDATES]; /* of parameters, by rank 0; of gradients, by the others */
};

static struct copied copied_of(const struct zr_rank_report *ranks, unsigned world)
{
    struct copied sum = {{0}, {0}};
    for (unsigned r = 0; r < world; r++) {
        sum.planned[r == 0 ? REPLICATES : GATHERS] += ranks[r].planned_sent_bytes;
        sum.measured[r == 0 ? REPLICATES : GATHERS] += ranks[r].sent_bytes_per_step;
    }
    return sum;
}

void zr_report_master_plan(struct zr_text_page *page, const struct zr_rank_report *ranks, unsigned world)
{
    static const char *const words[UPDATES] = {"of parameters, copied from rank 0 to the others per step",
                                               "of gradients, copied to rank 0 per step"};
    const struct copied copied = copied_of(ranks, world);
    char number[2][ZR_NUMBER_ROOM];
    for (unsigned part = 0; part < UPDATES; part++)
        zr_text_print(&page->text, "  %-11s %10s  %18s  %s\n", names[part],
                      zr_number_bytes(number[0], copied.planned[part]),
                      zr_number_grouped(number[1], copied.planned[part]), words[part]);
}

/* Mean seconds of the parts in a step, and their shares of it. The other ranks copy at the same time. */
static void measure(const struct zr_training_report *run, double seconds[PARTS], double shares[PARTS])
{
    uint64_t parts_ns[PARTS] = {0, run->ranks[0].gather_ns, run->ranks[0].update_ns};
    double all = 0;
    for (unsigned r = 0; r < run->world; r++)
        if (run->ranks[r].replicate_ns > parts_ns[REPLICATES])
            parts_ns[REPLICATES] = run->ranks[r].replicate_ns;
    for (size_t i = 0; i < run->steps_count; i++)
        all += run->step_seconds[i];
    for (unsigned part = 0; part < PARTS; part++) {
        seconds[part] = run->steps_count ? (double)parts_ns[part] * 1e-9 / (double)run->steps_count : 0;
        shares[part] = all > 0 ? (double)parts_ns[part] * 1e-9 / all : 0;
    }
}

void zr_report_master_speed(struct zr_text_page *page, const struct zr_training_report *run)
{
    const struct copied copied = copied_of(run->ranks, run->world);
    char number[UPDATES][ZR_NUMBER_ROOM];
    double seconds[PARTS], shares[PARTS];
    measure(run, seconds, shares);
    zr_text_print(&page->text, "  per step:");
    for (unsigned part = 0; part < PARTS; part++)
        zr_text_print(&page->text, " %s %.3g ms, %.1f %%%s", names[part], 1e3 * seconds[part],
                      100 * shares[part], part + 1 < PARTS ? ";" : "\n");
    if (!zr_run_updated(run))
        return;
    zr_text_print(&page->text, "  %s bytes of parameters and %s of gradients copied per step%s\n",
                  zr_number_grouped(number[0], copied.measured[REPLICATES]),
                  zr_number_grouped(number[1], copied.measured[GATHERS]),
                  copied.measured[REPLICATES] == copied.planned[REPLICATES] &&
                          copied.measured[GATHERS] == copied.planned[GATHERS]
                      ? ", as planned"
                      : "");
}

json_t *zr_report_master_json(const struct zr_rank_report *ranks, unsigned world,
                              const struct zr_training_report *run)
{
    const struct copied copied = copied_of(ranks, world);
    double seconds[PARTS], shares[PARTS];
    json_t *object = json_object();
    if (run)
        measure(run, seconds, shares);
    for (unsigned part = 0; part < (run ? PARTS : UPDATES); part++) {
        json_t *own = json_object();
        if (part < UPDATES)
            json_object_set_new(own, "planned_bytes_per_step",
                                json_integer((json_int_t)copied.planned[part]));
        if (part < UPDATES && run)
            json_object_set_new(own, "bytes_per_step",
                                zr_run_updated(run) ? json_integer((json_int_t)copied.measured[part])
                                                    : json_null());
        if (run) {
            json_object_set_new(own, "seconds_per_step", json_real(seconds[part]));
            json_object_set_new(own, "share", json_real(shares[part]));
        }
        json_object_set_new(object, names[part], own);
    }
    return object;
}
