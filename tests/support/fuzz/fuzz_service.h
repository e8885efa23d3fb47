/* fuzz_service.h: hostile clients of zrd: up to four connections that say what the file says, in any order,
 * with any descriptors. Four bytes make a step: what, which connection, and two numbers. Of the host's
 * memory, or of the emulated device's: there all connections are one process, which lives and keeps what it
 * holds. */
#ifndef ZR_FUZZ_SERVICE_H
#define ZR_FUZZ_SERVICE_H

#include <poll.h>
#include <sys/socket.h>

#include "alloc/base/error.h"
#include "alloc/service/server/runs.h"
#include "alloc/service/server/server.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/fuzz/fuzz_ground.h"

enum { FUZZ_SPEAKERS = 4, FUZZ_STEPS_MAX = 512 };

struct fuzz_speaker {
    int line, bell, file;
    uint64_t asked, piece; /* serial of the last RECLAIM, number of the last piece that came */
};

static inline void fuzz_drop(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Hears all there is; the bell and the file come with it. */
static inline void fuzz_listen(struct fuzz_speaker *speaker, int *where, char *ended)
{
    struct zr_service_packet packet;
    zr_result result;
    while (*where >= 0 && (result = zr_service_receive(*where, &packet, 0)) != ZR_ERR_TIMEOUT) {
        if (result != ZR_OK) {
            fuzz_drop(where);
            break;
        }
        if (packet.message.kind == ZR_SERVICE_ENDED)
            strcpy(ended, packet.message.words);
        if (packet.message.kind == ZR_SERVICE_RECLAIM)
            speaker->asked = packet.message.serial;
        if (packet.message.kind == ZR_SERVICE_GRANTED)
            speaker->piece = packet.message.count;
        int *slot = packet.message.kind == ZR_SERVICE_WELCOME ? &speaker->bell : &speaker->file;
        if (packet.fds_count == 1) {
            fuzz_drop(slot);
            *slot = packet.fds[0];
            packet.fds[0] = -1;
        }
        zr_service_packet_close(&packet);
    }
}

static inline void fuzz_speak(struct fuzz_speaker *speaker, const unsigned char *step)
{
    struct zr_service_message message = zr_service_message_of((enum zr_service_kind)(step[0] % 32));
    uint64_t number = (uint64_t)step[2] << step[3] % 64;
    if (speaker->line < 0)
        return;
    if (step[0] == 'P') { /* a packet of any length */
        send(speaker->line, &message, (size_t)step[2] % sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
        return;
    }
    message.version = (uint16_t)(step[0] == 'V' ? step[2] : ZR_SERVICE_VERSION);
    message.bytes = message.held_bytes = message.hard_bytes = message.soft_bytes = number;
    bool plan = !(step[1] & 16); /* not beside a digit */
    message.plan_base_bytes = plan ? number / 2 : 0;
    message.plan_peak_bytes = plan ? number : 0;
    if (message.kind == ZR_SERVICE_PLAN) /* what it could spill: nothing, its base, or what makes no sense */
        message.bytes = step[3] & 128 ? number : step[1] & 4 ? number / 2 : 0;
    message.run = 1;
    message.run_count = step[1] & 8 ? 2 : 1;
    message.reservation_bytes = message.slice = number;
    message.serial = step[3] & 64 ? speaker->asked : number;
    message.count = step[3] & 128 ? number : speaker->piece;
    message.flags = step[3];
    message.shares = step[2];
    message.pid = step[2] & 1 ? getpid() : 0;
    memset(message.group, 'a' + step[2] % 3, step[2] & 2 ? 3 : 0);
    memset(message.words, step[2], step[1] & 64 ? sizeof message.words : 0);
    if (message.kind >= ZR_SERVICE_KEEP_CREATE && message.kind <= ZR_SERVICE_KEEP_ADOPT && !(step[1] & 64)) {
        snprintf(message.words, sizeof message.words, "shard%u", step[2] % 3u);
        message.serial = step[1] & 8 ? number : 1 + step[3] % 2u;
        message.held_bytes = step[1] & 32 ? number : 0;
        message.count = step[1] & 4 ? number : 4;
    }
    int fd = message.kind == ZR_SERVICE_ADOPT || message.kind == ZR_SERVICE_KEEP_ADOPT || step[1] & 128
                 ? speaker->file
                 : -1;
    zr_service_send(speaker->line, &message, fd, true);
}

/* Runs are the sums of their members, and none is without. */
static inline bool fuzz_runs_add_up(const struct zr_ledger *ledger)
{
    for (const struct zr_run *run = ledger->runs; run; run = run->next) {
        uint64_t base = 0, peak = 0, held = 0;
        unsigned members = 0, resting = 0;
        for (const struct zr_client *client = ledger->clients; client; client = client->next)
            if (client->run == run) {
                base += client->plan_base_bytes;
                peak += client->plan_peak_bytes;
                held += client->held_bytes;
                members++;
                resting += client->paused;
            }
        if (base != run->base_bytes || peak != run->peak_bytes || held != run->held_bytes || members == 0 ||
            members != run->members_count || members > run->expected_count || resting != run->paused_count)
            return false;
    }
    return true;
}

/* What zrd says of itself adds up. */
static inline bool fuzz_adds_up(const struct zr_server *server)
{
    const struct zr_ledger *ledger = &server->ledger;
    uint64_t held = 0, groups = 0, waiting = 0, wanting = 0;
    unsigned count = 0, members = 0;
    for (const struct zr_client *client = ledger->clients; client; client = client->next) {
        held += client->held_bytes;
        wanting += client->wanted_bytes > 0;
        count++;
        if (client->peak_bytes < client->held_bytes || (client->left && client->wanted_bytes > 0))
            return false;
    }
    for (const struct zr_client *client = ledger->first_waiting; client; client = client->next_waiting)
        waiting++;
    for (const struct zr_group *group = ledger->groups; group; group = group->next) {
        groups += group->held_bytes;
        members += group->clients_count;
    }
    return fuzz_runs_add_up(ledger) && held == ledger->held_bytes && groups == held &&
           count == ledger->clients_count && members == count && waiting == wanting;
}

/* Descriptors that are open. */
static inline unsigned fuzz_open_count(void)
{
    struct pollfd all[256];
    unsigned count = 0;
    for (int i = 0; i < 256; i++)
        all[i] = (struct pollfd){.fd = i};
    poll(all, 256, 0);
    for (int i = 0; i < 256; i++)
        count += !(all[i].revents & POLLNVAL);
    return count;
}

static inline void fuzz_connect(struct zr_server *server, struct fuzz_speaker *speaker)
{
    int pair[2];
    if (speaker->line >= 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return;
    speaker->line = pair[0];
    zr_server_admit(server, pair[1]);
}

static inline void fuzz_hang_up(struct fuzz_speaker *speaker)
{
    fuzz_drop(&speaker->line);
    fuzz_drop(&speaker->bell);
    fuzz_drop(&speaker->file);
}

static inline bool fuzz_zrd(bool device, const unsigned char *data, size_t bytes, zr_result *result)
{
    static struct zr_server server;
    uint64_t memory_bytes;
    struct zr_service_log log = {.fd = -1};
    struct fuzz_speaker speakers[FUZZ_SPEAKERS];
    unsigned before = fuzz_open_count();
    char ended[ZR_SERVICE_WORDS_BYTES] = "";
    bool good = true;
    fuzz_set_pace(data, bytes);
    memset(&server, 0, sizeof server);
    server.ledger.capacity_bytes = device ? 8 << 20 : 64 << 20; /* a device's is filled */
    server.ledger.within_ns = 1000000;
    server.keep_for_ns = 3600 * UINT64_C(1000000000);
    for (unsigned i = 0; i < FUZZ_SPEAKERS; i++)
        speakers[i] = (struct fuzz_speaker){.line = -1, .bell = -1, .file = -1};
    good = (!device || zr_device_pool_open(&server.device_pool, 0, &memory_bytes) == ZR_OK) &&
           zr_server_start(&server, &log) == ZR_OK;
    for (size_t i = 0; good && i + 4 <= bytes && i < 4 * FUZZ_STEPS_MAX; i += 4) {
        struct fuzz_speaker *speaker = &speakers[data[i + 1] % FUZZ_SPEAKERS];
        if (data[i] == 'O')
            fuzz_connect(&server, speaker);
        else if (data[i] == 'C')
            fuzz_hang_up(speaker);
        else
            fuzz_speak(speaker, data + i);
        zr_server_step(&server, 0);
        for (unsigned s = 0; s < FUZZ_SPEAKERS; s++) {
            fuzz_listen(&speakers[s], &speakers[s].line, ended);
            fuzz_listen(&speakers[s], &speakers[s].bell, ended);
        }
        good = fuzz_adds_up(&server);
    }
    for (unsigned i = 0; i < FUZZ_SPEAKERS; i++)
        fuzz_hang_up(&speakers[i]);
    server.keep_for_ns = 0;
    for (unsigned i = 0; i < 4; i++)
        zr_server_step(&server, 0);
    good = good && (device || (server.connections_count == 0 && server.ledger.held_bytes == 0 &&
                               !server.ledger.clients));
    zr_server_end(&server);
    *result = ended[0] ? zr_fail(ZR_ERR_FORMAT, "%s", ended) : ZR_OK;
    return good && fuzz_open_count() == before && fuzz_answer(*result);
}

static inline bool fuzz_service(const unsigned char *data, size_t bytes, zr_result *result)
{
    return fuzz_zrd(false, data, bytes, result);
}

static inline bool fuzz_service_device(const unsigned char *data, size_t bytes, zr_result *result)
{
    static const unsigned char first[] = "O0  A0 ?G0  D0\020\021";
    static const struct zr_emulator *emulator;
    if (!emulator && (emulator = cuda_emulator()))
        fuzz_zrd(true, first, sizeof first - 1, result); /* what a driver opens stays open from here on */
    if (!emulator) {
        *result = zr_fail(ZR_ERR_FORMAT, "built without CUDA");
        return true;
    }
    bool good = fuzz_zrd(true, data, bytes, result);
    struct zr_emulator_state state = emulator->state();
    return good && state.memories_count == 0 && state.mappings_count == 0;
}

#endif
