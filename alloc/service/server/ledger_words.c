/* ledger_words.c: texts of sizes and clients, and the estimated speed of a reclaim; see ledger.h. */
#include <stdio.h>

#include "alloc/base/sizes.h"
#include "alloc/service/server/ledger.h"

const char *zr_ledger_bytes(char out[ZR_LEDGER_NUMBER_ROOM], uint64_t bytes)
{
    return zr_size_print(out, bytes);
}

void zr_ledger_describe(const struct zr_ledger *ledger, char *out, size_t room_bytes)
{
    enum { SHOWN = 4 };
    char number[ZR_LEDGER_NUMBER_ROOM];
    const struct zr_client *last = NULL;
    size_t used = 0;
    out[0] = '\0';
    for (unsigned i = 0; i < SHOWN && used < room_bytes; i++) {
        const struct zr_client *largest = NULL;
        for (const struct zr_client *client = ledger->clients; client; client = client->next) {
            bool after = !last || client->held_bytes < last->held_bytes ||
                         (client->held_bytes == last->held_bytes && client->number > last->number);
            if (client->held_bytes > 0 && after && (!largest || client->held_bytes > largest->held_bytes))
                largest = client;
        }
        if (!largest)
            break;
        int length =
            snprintf(out + used, room_bytes - used, "%spid %d (%s) %s", i ? ", " : "", (int)largest->pid,
                     largest->program, zr_ledger_bytes(number, largest->held_bytes));
        used += length > 0 ? (size_t)length : 0;
        last = largest;
    }
}

uint64_t zr_ledger_reclaim_ns(const struct zr_ledger *ledger, const struct zr_client *client)
{
    double bytes = (double)client->given_bytes, ns = (double)client->given_ns;
    for (const struct zr_client *other = ledger->clients; other && client->given_bytes == 0;
         other = other->next) {
        bytes += (double)other->given_bytes;
        ns += (double)other->given_ns;
    }
    return bytes > 0 ? (uint64_t)((double)client->idle_bytes / bytes * ns) : 0;
}
