/* cuda_events.c: reuses the driver's events. Uses cuda_driver.c and slab.c. */
#include "alloc/backend/cuda_events.h"

#include "alloc/base/error.h"
#include "alloc/base/slab.h"

/* The max number of pending points. When all are in use, recording a point waits for the stream instead. */
#define SLOTS_MAX ((uint32_t)1 << 16)
#define SLOT_BITS 16
#define NO_SLOT   UINT32_MAX
/* How many of the oldest events are queried before another event is created, and how many of these may be
 * pending. */
enum { SWEEP_COUNT = 8, SWEEP_PENDING = 2 };
/* The ticket of a point that was complete when it was recorded. */
enum { TICKET_COMPLETE = 0 };

struct zr_cuda_event_slot {
    zr_cu_event event;
    uint64_t generation; /* of the ticket that the slot serves, from 1 on */
    uint32_t next, previous;
    uint32_t waiters_count; /* threads that wait without the lock; above 0: do not reuse the event */
    bool pending;
};

zr_result zr_cuda_events_init(struct zr_cuda_events *events, const struct zr_cuda_driver *driver)
{
    *events =
        (struct zr_cuda_events){.driver = driver, .free = NO_SLOT, .oldest = NO_SLOT, .newest = NO_SLOT};
    if (pthread_mutex_init(&events->lock, NULL) != 0)
        return zr_fail(ZR_ERR_HOST_MEMORY, "the system refused to create a mutex");
    events->slots = zr_pages_take(SLOTS_MAX * sizeof *events->slots);
    if (!events->slots) {
        pthread_mutex_destroy(&events->lock);
        return ZR_ERR_HOST_MEMORY;
    }
    return ZR_OK;
}

void zr_cuda_events_end(struct zr_cuda_events *events, bool with_driver)
{
    if (!events->slots)
        return;
    for (uint32_t i = 0; with_driver && i < events->slots_count; i++)
        if (events->driver->event_destroy(events->slots[i].event) != ZR_CU_SUCCESS)
            events->driver->event_destroy(events->slots[i].event); /* the context's end frees the rest */
    zr_pages_give(events->slots, SLOTS_MAX * sizeof *events->slots);
    events->slots = NULL;
    pthread_mutex_destroy(&events->lock);
}

/* ---- Lists; lock: events->lock ------------------------------------------------------------------------- */

static void append(struct zr_cuda_events *events, uint32_t index)
{
    struct zr_cuda_event_slot *slot = &events->slots[index];
    slot->pending = true;
    slot->next = NO_SLOT;
    slot->previous = events->newest;
    if (events->newest != NO_SLOT)
        events->slots[events->newest].next = index;
    else
        events->oldest = index;
    events->newest = index;
}

/* The point is complete, so holders of its ticket no longer need the slot. */
static void retire(struct zr_cuda_events *events, uint32_t index)
{
    struct zr_cuda_event_slot *slot = &events->slots[index];
    if (slot->previous != NO_SLOT)
        events->slots[slot->previous].next = slot->next;
    else
        events->oldest = slot->next;
    if (slot->next != NO_SLOT)
        events->slots[slot->next].previous = slot->previous;
    else
        events->newest = slot->previous;
    slot->pending = false;
    slot->next = events->free;
    events->free = index;
}

static void sweep(struct zr_cuda_events *events)
{
    uint32_t index = events->oldest;
    unsigned pending = 0;
    for (unsigned i = 0; i < SWEEP_COUNT && pending < SWEEP_PENDING && index != NO_SLOT; i++) {
        struct zr_cuda_event_slot *slot = &events->slots[index];
        uint32_t next = slot->next;
        if (slot->waiters_count == 0 && events->driver->event_query(slot->event) == ZR_CU_SUCCESS)
            retire(events, index);
        else
            pending++;
        index = next;
    }
}

/* Takes a slot with a driver's event out of its list. NO_SLOT: all are pending, or the driver refused
 * (*code). */
static uint32_t take(struct zr_cuda_events *events, zr_cu_result *code)
{
    *code = ZR_CU_SUCCESS;
    if (events->free == NO_SLOT)
        sweep(events);
    uint32_t index = events->free;
    if (index != NO_SLOT) {
        events->free = events->slots[index].next;
        return index;
    }
    if (events->slots_count == SLOTS_MAX)
        return NO_SLOT;
    *code =
        events->driver->event_create(&events->slots[events->slots_count].event, ZR_CU_EVENT_DISABLE_TIMING);
    return *code == ZR_CU_SUCCESS ? events->slots_count++ : NO_SLOT;
}

/* The slot that serves the ticket; NULL: the ticket's point is complete. */
static struct zr_cuda_event_slot *find(struct zr_cuda_events *events, uint64_t ticket)
{
    struct zr_cuda_event_slot *slot = &events->slots[ticket & (SLOTS_MAX - 1)];
    return slot->pending && slot->generation == ticket >> SLOT_BITS ? slot : NULL;
}

/* ---- Record, query, wait ------------------------------------------------------------------------------- */

zr_result zr_cuda_events_record(struct zr_cuda_events *events, zr_cu_stream stream, uint64_t *ticket)
{
    zr_cu_result code;
    *ticket = TICKET_COMPLETE;
    pthread_mutex_lock(&events->lock);
    uint32_t index = take(events, &code);
    if (index != NO_SLOT) {
        struct zr_cuda_event_slot *slot = &events->slots[index];
        code = events->driver->event_record(slot->event, stream);
        if (code == ZR_CU_SUCCESS) {
            slot->generation++;
            append(events, index);
            *ticket = slot->generation << SLOT_BITS | index;
        } else {
            slot->next = events->free;
            events->free = index;
        }
    }
    pthread_mutex_unlock(&events->lock);
    if (index == NO_SLOT && code == ZR_CU_SUCCESS)
        code = events->driver->stream_synchronize(stream);
    return code == ZR_CU_SUCCESS
               ? ZR_OK
               : zr_cuda_error(code, ZR_ERR_INVALID, "an event in stream %p", (void *)stream);
}

bool zr_cuda_events_done(struct zr_cuda_events *events, uint64_t ticket)
{
    bool done = true;
    pthread_mutex_lock(&events->lock);
    struct zr_cuda_event_slot *slot = find(events, ticket);
    if (slot) {
        zr_cu_result code = events->driver->event_query(slot->event);
        if (code == ZR_CU_SUCCESS && slot->waiters_count == 0)
            retire(events, (uint32_t)(slot - events->slots));
        done = code == ZR_CU_SUCCESS || zr_cuda_context_dead(code);
    }
    pthread_mutex_unlock(&events->lock);
    return done;
}

zr_result zr_cuda_events_wait(struct zr_cuda_events *events, uint64_t ticket)
{
    pthread_mutex_lock(&events->lock);
    struct zr_cuda_event_slot *slot = find(events, ticket);
    if (!slot) {
        pthread_mutex_unlock(&events->lock);
        return ZR_OK;
    }
    slot->waiters_count++;
    pthread_mutex_unlock(&events->lock);
    zr_cu_result code = events->driver->event_synchronize(slot->event);
    pthread_mutex_lock(&events->lock);
    slot->waiters_count--;
    if (code == ZR_CU_SUCCESS && slot->waiters_count == 0 && find(events, ticket))
        retire(events, (uint32_t)(slot - events->slots));
    pthread_mutex_unlock(&events->lock);
    return code == ZR_CU_SUCCESS ? ZR_OK : zr_cuda_error(code, ZR_ERR_INVALID, "to wait for an event");
}
