/* clock.c: simulated times of operations; see clock.h. */
#include "zero/comm/clock.h"

void zr_comm_clock_wait(struct zr_comm_clock *clock, const struct zr_comm_clock_queue *queue,
                        zr_ticket ticket, zr_ticket submitted)
{
    /* If a later ticket has reused the element, the later submission has waited for this ticket. */
    double left = queue->ends_seconds[ticket % ZR_COMM_QUEUE_COUNT] - zr_comm_clock_now(clock);
    if (ticket > 0 && ticket + ZR_COMM_QUEUE_COUNT > submitted && left > 0)
        clock->waited_seconds += left;
}

/* An operation starts after its submission and after the end of all earlier operations. */
void zr_comm_clock_submit(struct zr_comm_clock *clock, struct zr_comm_clock_queue *queue,
                          const struct zr_comm_clock_operation *operation)
{
    if (operation->ticket > ZR_COMM_QUEUE_COUNT) /* capacity of the queue */
        zr_comm_clock_wait(clock, queue, operation->ticket - ZR_COMM_QUEUE_COUNT, operation->ticket - 1);
    const uint64_t bytes =
        operation->bytes > operation->received_bytes ? operation->bytes : operation->received_bytes;
    double seconds = (double)bytes / operation->bytes_per_second, now = zr_comm_clock_now(clock);
    double begin = now > operation->ready_seconds ? now : operation->ready_seconds;
    clock->begin_seconds = begin > queue->end_seconds ? begin : queue->end_seconds;
    clock->end_seconds = queue->end_seconds = clock->begin_seconds + seconds;
    if (clock->end_seconds > clock->idle_seconds)
        clock->idle_seconds = clock->end_seconds;
    queue->ends_seconds[operation->ticket % ZR_COMM_QUEUE_COUNT] = clock->end_seconds;
    clock->busy_seconds += seconds;
    clock->sent_bytes += operation->bytes;
    if (clock->submitted && seconds > 0)
        clock->submitted(clock->state, operation->label);
}

double zr_comm_clock_disk(struct zr_comm_clock *clock, enum zr_clock_file file, uint64_t bytes)
{
    if (!clock || clock->nvme_bytes_per_second <= 0)
        return 0;
    double *own = &clock->disk_idle_seconds[file], *other = &clock->disk_idle_seconds[!file];
    double now = zr_comm_clock_now(clock), begin = now > *own ? now : *own,
           seconds = (double)bytes / clock->nvme_bytes_per_second, shared = *other - begin;
    shared = shared < 0 ? 0 : shared < seconds ? shared : seconds;
    *other += shared;
    return *own = begin + seconds + shared;
}

double zr_comm_clock_wait_until(struct zr_comm_clock *clock, double end_seconds)
{
    double left = clock ? end_seconds - zr_comm_clock_now(clock) : 0;
    if (left <= 0)
        return 0;
    clock->waited_seconds += left;
    return left;
}

double zr_comm_clock_wait_disk(struct zr_comm_clock *clock, double end_seconds)
{
    double waited = zr_comm_clock_wait_until(clock, end_seconds);
    if (clock)
        clock->nvme_waited_seconds += waited;
    return waited;
}

double zr_comm_clock_update_ahead(struct zr_comm_clock *clock, double ready_seconds, size_t elements)
{
    double begin = zr_comm_clock_now(clock);
    begin = begin > ready_seconds ? begin : ready_seconds;
    begin = begin > clock->update_idle_seconds ? begin : clock->update_idle_seconds;
    double seconds = clock->updates_per_second > 0 ? (double)elements / clock->updates_per_second : 0;
    return clock->update_idle_seconds = begin + seconds;
}

/* The update counts as a wait, because `flops` counts the work of another thread. */
void zr_comm_clock_update(struct zr_comm_clock *clock, size_t elements)
{
    if (clock && clock->updates_per_second > 0)
        clock->waited_seconds += (double)elements / clock->updates_per_second;
}
