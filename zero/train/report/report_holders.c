/* report_holders.c: prints clients and reservations of zrd's memory for a run that does not fit; see
 * report.h. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "alloc/service/client/query.h"
#include "zero/train/report/number.h"
#include "zero/train/report/report.h"
#include "zero/train/report/terminal.h"

#define MIN_BYTES ((uint64_t)1 << 20)

static void show_line(const char *line, int length)
{
    zr_show(2, line, (size_t)length);
}

static void show_holder(void *state, const struct zr_service_message *client)
{
    char line[256], held[ZR_NUMBER_ROOM], planned[ZR_NUMBER_ROOM], idle[ZR_NUMBER_ROOM], within[64] = "";
    bool *any = state;
    if (client->pid == getpid() || (client->held_bytes < MIN_BYTES && client->plan_peak_bytes == 0))
        return; /* skips launchers, which have almost no memory */
    if (!*any)
        zr_say("not enough memory under zrd; current holders and reservations:");
    if (!*any)
        show_line(line, snprintf(line, sizeof line, "%10s  %-16s %-16s %12s %12s %12s\n", "pid", "program",
                                 "group", "held", "planned", "reclaimable"));
    *any = true;
    if (client->idle_bytes > 0 && client->reclaim_ns > 0)
        snprintf(within, sizeof within, " in %.0f ms", (double)client->reclaim_ns / 1e6);
    show_line(
        line,
        snprintf(line, sizeof line, "%10" PRId32 "  %-16s %-16.16s %12s %12s %12s%s\n", client->pid,
                 client->program, client->group, zr_number_bytes(held, client->held_bytes),
                 client->plan_peak_bytes ? zr_number_bytes(planned, client->plan_peak_bytes) : "-",
                 client->flags & ZR_SERVICE_IDLE_KNOWN ? zr_number_bytes(idle, client->idle_bytes) : "?",
                 within));
}

void zr_report_holders(const char *key)
{
    struct zr_service_message totals;
    bool any = false;
    zr_service_query(key, &(struct zr_service_question){.fresh = ZR_SERVICE_AWAITED}, show_holder, &any,
                     &totals);
}
