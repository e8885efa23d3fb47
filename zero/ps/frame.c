/* frame.c: checks of requests: every number of a client is checked before it is used. */
#include <string.h>

#include "zero/ps/wire.h"

bool zr_ps_frame_valid(const struct zr_ps_setup *setup, const struct zr_ps_frame *frame)
{
    return frame->magic == ZR_PS_MAGIC && frame->kind >= ZR_PS_HELLO && frame->kind < ZR_PS_KINDS &&
           frame->bytes <= setup->message_bytes &&
           frame->items_count <= frame->bytes / sizeof(struct zr_ps_wire_item) &&
           (frame->items_count > 0) == (frame->bytes > 0) &&
           (frame->items_count == 0 || (frame->kind >= ZR_PS_FILL && frame->kind <= ZR_PS_PUSH)) &&
           (frame->worker < setup->options.workers || frame->worker == ZR_PS_OBSERVER ||
            frame->worker == ZR_PS_REPLICA);
}

/* Bytes of an item's data in the request and of its answer; false: the item is invalid. */
static bool sizes_of(const struct zr_ps_setup *setup, unsigned server, const struct zr_ps_frame *frame,
                     const struct zr_ps_wire_item *item, uint64_t *data, uint64_t *answer)
{
    const struct zr_ps_entry *entry = &setup->entries[item->table];
    bool reads = frame->kind == ZR_PS_PULL || frame->kind == ZR_PS_READ,
         wide = (frame->kind == ZR_PS_READ && frame->content > ZR_PS_PARAMETERS) || frame->kind == ZR_PS_FILL;
    if (entry->width > 0) {
        uint64_t row = (uint64_t)entry->width * sizeof(float);
        *data = item->count * (sizeof(uint64_t) + (reads ? 0 : row));
        *answer = reads ? item->count * row : 0;
        return item->count <= setup->message_bytes / (sizeof(uint64_t) + row) &&
               item->count <= entry->rows_max && item->first == 0 &&
               (frame->kind == ZR_PS_PULL || frame->kind == ZR_PS_PUSH);
    }
    struct zr_ps_part part =
        zr_ps_part_of(entry->table.elements, setup->options.servers, item->table, server);
    uint64_t bytes = item->count * (wide ? sizeof(float) : zr_precision_bytes(entry->table.precision));
    *data = reads ? 0 : bytes;
    *answer = reads ? bytes : 0;
    return (item->count > 0 || frame->kind == ZR_PS_FILL) && item->first >= part.first &&
           item->count <= part.count && item->first - part.first <= part.count - item->count &&
           (frame->kind != ZR_PS_PUSH || item->count == part.count);
}

bool zr_ps_request_valid(const struct zr_ps_setup *setup, unsigned server, struct zr_ps_request request,
                         size_t *reply_bytes)
{
    const struct zr_ps_frame *frame = request.frame;
    uint64_t at = zr_ps_first_data(request), data, answer;
    const unsigned contents = ZR_PS_SLOT + setup->optimizer->slots_count;
    *reply_bytes = 0;
    if (!zr_ps_frame_valid(setup, frame) || frame->content >= contents ||
        (frame->kind == ZR_PS_PUSH && !(frame->rate >= 0 && frame->rate <= 3e38f)))
        return false;
    for (unsigned i = 0; i < frame->items_count; i++) {
        struct zr_ps_wire_item item;
        memcpy(&item, request.payload + i * sizeof item, sizeof item);
        if (item.table >= setup->options.tables_count || item.index >= setup->entries[item.table].pushes ||
            !sizes_of(setup, server, frame, &item, &data, &answer) || item.bytes != data ||
            data > frame->bytes - at || zr_ps_padded(data) > frame->bytes - at ||
            zr_ps_padded(answer) > setup->message_bytes - *reply_bytes)
            return false;
        at += zr_ps_padded(data);
        *reply_bytes += zr_ps_padded(answer);
    }
    return at == frame->bytes;
}

struct zr_ps_view zr_ps_view_of(const struct zr_ps_setup *setup, struct zr_ps_request request, unsigned i,
                                size_t *at)
{
    struct zr_ps_view view = {.data = request.payload + *at};
    bool reads = request.frame->kind == ZR_PS_PULL || request.frame->kind == ZR_PS_READ,
         wide = request.frame->kind == ZR_PS_READ && request.frame->content > ZR_PS_PARAMETERS;
    memcpy(&view.item, request.payload + i * sizeof view.item, sizeof view.item);
    view.entry = &setup->entries[view.item.table];
    *at += zr_ps_padded(view.item.bytes);
    if (reads)
        view.reply_bytes =
            zr_ps_padded(view.item.count * (view.entry->width ? view.entry->width * sizeof(float)
                                            : wide            ? sizeof(float)
                                                   : zr_precision_bytes(view.entry->table.precision)));
    return view;
}
