/* durations.c: how long the emulated driver's work takes. See emulator.h. */
#include "alloc/rehearse/driver/inside.h"

/* xorshift64* */
uint64_t emu_draw(uint64_t end)
{
    emu.random ^= emu.random >> 12;
    emu.random ^= emu.random << 25;
    emu.random ^= emu.random >> 27;
    return (emu.random * UINT64_C(0x2545f4914f6cdd1d) >> 32) % end;
}

/* ---- Of the tests' card -------------------------------------------------------------------------------- */

enum { SLOWNESS_MAX = 8 };

/* Streams are slow or quick, and their work is long or short: what is submitted first may end last, but in
 * one stream. */
static uint64_t drawn_ticks(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream)
{
    uint64_t *slowness = stream ? &stream->slowness : &context->null_slowness;
    if (emu.exact_ticks)
        return emu.work_ticks;
    if (*slowness == 0)
        *slowness = 1 + emu_draw(SLOWNESS_MAX);
    return 1 + emu_draw(2 * emu.work_ticks * *slowness);
}

/* ---- Of a card of the table ---------------------------------------------------------------------------- */

/* What an empty kernel, copy or fill takes. */
#define START_SECONDS  2e-6
#define TICKS_A_SECOND 1e6

/* The device whose memory holds the address; -1: the host's. */
static int device_of(zr_cu_address address)
{
    const struct emu_allocation *found = emu_allocation_at(address);
    zr_cu_address base;
    size_t bytes;
    const struct emu_memory *memory = found ? NULL : emu_mapping_at(address, &base, &bytes);
    if (memory)
        return memory->location.type == ZR_CU_LOCATION_DEVICE ? memory->location.id : -1;
    return found && !emu_host_block(address) ? found->context->device : -1;
}

/* Latencies of a ring with NCCL's protocol for short messages, over NVLink and over PCIe, as NCCL's own model
 * of its time has them (src/graph/tuning.cc); bytes at the bandwidth of the link. */
static double seconds_of_transfer(const struct zr_emulator_transfer *transfer)
{
    enum { PCIE_5_GBS = 64 };
    const double base = 6.6e-6, hop = emu.card->peer_gbs > PCIE_5_GBS ? 0.6e-6 : 1e-6;
    return base + hop * transfer->hops + transfer->bytes / (1e9 * emu.card->peer_gbs);
}

/* Bytes that are read and written in the device's memory take its bandwidth, those between devices or of the
 * host the link's. */
static double seconds_of(const struct emu_work *work)
{
    double bandwidth = zr_card_bandwidth(emu.card), link = 1e9 * emu.card->link_gbs;
    double bytes = (double)work->bytes;
    if (work->kind == EMU_FILL)
        return bytes / bandwidth;
    if (work->kind == EMU_COPY)
        return device_of(work->to) == device_of(work->from) ? 2 * bytes / bandwidth : bytes / link;
    if (work->transfer.hops)
        return seconds_of_transfer(&work->transfer);
    double product = work->operations / zr_card_rate(emu.card, work->operand_bits ? work->operand_bits : 32);
    double moved = work->moved_bytes / bandwidth;
    return product > moved ? product : moved;
}

/* With a clock, from half to one and a half times as long as expected. */
static uint64_t card_ticks(const struct emu_work *work)
{
    uint64_t ticks = (uint64_t)((START_SECONDS + seconds_of(work)) * TICKS_A_SECOND);
    return emu.clocked ? ticks - ticks / 2 + emu_draw(ticks / 2 * 2 + 1) : ticks;
}

uint64_t emu_work_ticks(struct zr_cu_context_st *context, struct zr_cu_stream_st *stream,
                        const struct emu_work *work)
{
    return emu.timed ? card_ticks(work) : drawn_ticks(context, stream);
}

/* ---- Launches ahead ------------------------------------------------------------------------------------ */

zr_cu_result emu_launch_queued(struct zr_cu_context_st *context, uint64_t end)
{
    uint64_t *slot = &context->queued[context->queued_count++ % EMU_QUEUED_MAX], before = *slot;
    *slot = end;
    if (emu.clocked && context->clock < before) {
        context->clock = before;
        emu_run(context);
    }
    return context->dead;
}
