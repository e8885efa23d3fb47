/* nccl_memory.c: what NCCL allocates on a device for itself, an estimate. See nccl.h.
 *
 * A connection has a buffer of its receiver for each protocol: LL (512 KiB), LL128 (4,800 KiB) and Simple
 * (NCCL_BUFFSIZE, 4 MiB by default), and a small one of its sender; each is rounded to the 2 MiB of
 * cuMemCreate(). NVIDIA/nccl#1685 has these sizes from a log: 10 MiB and 2 MiB. A ring connects each channel
 * to one neighbour on either side; ncclSend(), ncclRecv() and all-to-all connect a peer by the channels of a
 * pair. Connections are made by the first operation that needs them (since NCCL 2.22). Not estimated: trees,
 * NVLS. */
#include "alloc/rehearse/runtime/nccl.h"

#include <stdlib.h>
#include <string.h>

/* Channels of a ring and of a pair, by the card of ZR_EMULATOR_CARD, where cards have NVLink: rings by logs
 * in NVIDIA/nccl#1259 (H100), nccl-tests#100 (A100) and nccl#713 (V100: six rings, used twice); a pair has
 * the next power of two. GeForce cards do not reach one another: their buffers are in the host's memory. */
static const struct {
    const char *card;
    unsigned char ring, pair;
} cards[] = {
    {"h100", 24, 32},      {"h200", 24, 32}, {"gh200", 24, 32}, {"b200", 24, 32},  {"a100", 24, 32},
    {"a100-40gb", 24, 32}, {"v100", 12, 16}, {"rtx3090", 0, 0}, {"rtx4090", 0, 0}, {"rtx5090", 0, 0},
};
enum { PCI_CHANNELS = 2, GRANULE_BYTES = 2 << 20 };

static size_t setting(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static size_t in_granules(size_t bytes)
{
    return (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
}

static size_t connection_bytes(void)
{
    return in_granules(setting("NCCL_LL_BUFFSIZE", 512 << 10) + setting("NCCL_LL128_BUFFSIZE", 4800 << 10) +
                       setting("NCCL_BUFFSIZE", 4 << 20)) +
           GRANULE_BYTES;
}

/* The smallest of the card's number, the communicator's and the variable's. */
static size_t channels(int ring, int channels_max, const char *variable)
{
    const char *card = getenv("ZR_EMULATOR_CARD");
    size_t count = PCI_CHANNELS;
    for (size_t i = 0; card && i < sizeof cards / sizeof *cards; i++)
        if (strcmp(cards[i].card, card) == 0)
            count = ring ? cards[i].ring : cards[i].pair;
    if (channels_max > 0 && (size_t)channels_max < count)
        count = (size_t)channels_max;
    size_t limit = setting(variable, setting("NCCL_MAX_CTAS", count));
    return limit < count ? limit : count;
}

size_t nccl_memory_of_ring(int channels_max)
{
    return channels(1, channels_max, "NCCL_MAX_NCHANNELS") * connection_bytes();
}

size_t nccl_memory_of_peer(int channels_max)
{
    return channels(0, channels_max, "NCCL_MAX_P2P_NCHANNELS") * connection_bytes();
}
