/* fuzz_ps.h: hostile clients of a parameter server.
 *
 * Four connections send requests as the file says; sixteen bytes make a step: what, which connection, and
 * the numbers of a request, which is honest unless byte 13 changes it. The server must go on. */
#ifndef ZR_FUZZ_PS_H
#define ZR_FUZZ_PS_H

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "alloc/base/error.h"
#include "tests/support/fuzz/fuzz_ground.h"
#include "zero/ps/wire.h"
#include "zero/table/zr_table.h"

enum { FUZZ_PS_CLIENTS = 4, FUZZ_PS_STEPS = 64, FUZZ_PS_WIDTH = 2 };

struct fuzz_ps {
    zr_ps_server *server;
    int clients[FUZZ_PS_CLIENTS];
    uint64_t hash;
    bool refused; /* the server has closed a connection */
};

/* The server reads what has come, and the clients what it has answered. */
static inline bool fuzz_ps_turn(struct fuzz_ps *run)
{
    static char heard[1 << 14];
    bool ended, good = true;
    for (unsigned i = 0; i < 4 && good; i++) {
        zr_result result = zr_ps_server_serve(run->server, 0, &ended);
        good = result == ZR_OK || result == ZR_ERR_MEMORY;
        for (unsigned c = 0; c < FUZZ_PS_CLIENTS; c++) {
            ssize_t some = 1;
            while (run->clients[c] >= 0 && some > 0)
                some = recv(run->clients[c], heard, sizeof heard, MSG_DONTWAIT);
            if (run->clients[c] < 0 || (some < 0 && errno == EAGAIN))
                continue;
            run->clients[c] = close(run->clients[c]) - 1;
            run->refused = true;
        }
    }
    return good;
}

/* Numbers of a step count from a blank, so that a good file is a text. */
static inline void fuzz_ps_request(struct fuzz_ps *run, const unsigned char *text, int fd)
{
    static char payload[1 << 12];
    unsigned char step[16];
    for (unsigned i = 0; i < 16; i++)
        step[i] = (unsigned char)(text[i] - ' ');
    const unsigned items = step[12] % 4, table = step[6] % 3, kind = step[2] % 12;
    const bool rows = table == 1, reads = kind == ZR_PS_PULL || kind == ZR_PS_READ;
    const uint64_t count = step[9] % 24, number = FUZZ_PS_WIDTH * sizeof(float),
                   bytes = rows    ? count * (8 + (reads ? 0 : number))
                           : reads ? 0
                                   : count * sizeof(float);
    struct zr_ps_frame frame = {.magic = ZR_PS_MAGIC,
                                .kind = kind,
                                .sequence = step[4],
                                .number = kind == ZR_PS_HELLO ? run->hash : step[11],
                                .clock = step[5],
                                .worker = step[3] < 250 ? step[3] % 3 : ZR_PS_OBSERVER - step[3] % 2,
                                .items_count = items,
                                .content = step[10],
                                .done = step[11] & 1,
                                .rate = (float)step[15] / 16,
                                .scale = 1};
    struct zr_ps_wire_item item = {
        .table = table, .index = step[7], .first = rows ? 0 : step[8], .count = count, .bytes = bytes};
    if (step[13] & 1)
        item.count = (uint64_t)step[9] << step[14] % 64;
    if (step[13] & 2)
        item.first = (uint64_t)step[8] << step[14] % 64;
    if (step[13] & 4)
        item.bytes = (uint64_t)step[15] << step[14] % 64;
    frame.bytes = items * (sizeof item + zr_ps_padded(bytes));
    if (step[13] & 8)
        frame.bytes = (uint64_t)step[15] << step[14] % 64;
    if (step[13] & 16)
        frame.items_count = (uint32_t)step[15] << step[14] % 32;
    size_t sent = frame.bytes < sizeof payload ? (size_t)frame.bytes : sizeof payload;
    memset(payload, step[15] & 3, sizeof payload);
    for (unsigned i = 0; i < items; i++)
        memcpy(payload + i * sizeof item, &item, sizeof item);
    send(fd, &frame, sizeof frame, MSG_DONTWAIT | MSG_NOSIGNAL);
    send(fd, payload, sent, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static inline int fuzz_ps_listen(struct sockaddr_un *address, socklen_t *bytes)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    *bytes = sizeof *address;
    /* A name that the system chooses, in no folder. */
    if (fd >= 0 &&
        (bind(fd, (struct sockaddr *)address, sizeof address->sun_family) != 0 ||
         listen(fd, FUZZ_PS_CLIENTS) != 0 || getsockname(fd, (struct sockaddr *)address, bytes) != 0))
        fd = close(fd) - 1;
    return fd;
}

static inline bool fuzz_ps(const unsigned char *data, size_t bytes, zr_result *result)
{
    static const struct zr_table_options rows = {.width = FUZZ_PS_WIDTH, .rows_limit = 64, .batch_max = 64};
    static const struct zr_ps_table tables[] = {{.name = "a", .elements = 20, .filled = true, .pushes = 2},
                                                {.name = "b", .rows = &rows},
                                                {.name = "c", .elements = 3}};
    static _Alignas(64) char workspace[4 << 20];
    static const struct zr_ps_timing timings[] = {
        {ZR_PS_SYNC, 0}, {ZR_PS_ASYNC, 0}, {ZR_PS_HALF_ASYNC, 0}, {ZR_PS_SSP, 1}};
    const struct zr_kernels *kernels = zr_kernels_cpu(ZR_ISA_PLAIN);
    struct zr_kernel_context context = {.parallel = {.threads = 1},
                                        .workspace = workspace,
                                        .workspace_bytes = sizeof workspace,
                                        .isa = ZR_ISA_PLAIN};
    const struct zr_ps_options options = {.workers = 2,
                                          .servers = 1,
                                          .timing = timings[bytes > 0 ? data[0] % 4 : 0],
                                          .optimizer = {.kind = ZR_OPTIMIZER_SGD},
                                          .tables = tables,
                                          .tables_count = 3,
                                          .message_bytes = 4096};
    struct fuzz_ps run = {.clients = {-1, -1, -1, -1}};
    struct zr_ps_setup setup;
    struct sockaddr_un address;
    socklen_t address_bytes;
    int listener = fuzz_ps_listen(&address, &address_bytes);
    fuzz_set_pace(data, bytes);
    bool good = listener >= 0 && kernels->open(&context) == ZR_OK &&
                zr_ps_setup_init(&setup, &options, fuzz_arena) == ZR_OK;
    run.hash = good ? setup.hash : 0;
    if (good)
        zr_ps_setup_fini(&setup);
    good = good &&
           zr_ps_server_create(&run.server, &(struct zr_ps_server_options){.common = options,
                                                                           .listener = listener,
                                                                           .arena = fuzz_arena,
                                                                           .kernels = kernels,
                                                                           .context = &context}) == ZR_OK;
    *result = ZR_OK;
    for (size_t i = 1; good && i + 16 <= bytes && i < 16 * FUZZ_PS_STEPS; i += 16) {
        const unsigned char *step = data + i;
        int *fd = &run.clients[step[1] % FUZZ_PS_CLIENTS];
        if (*fd < 0 && (*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0)
            good = connect(*fd, (struct sockaddr *)&address, address_bytes) == 0;
        if (step[0] == 'X')
            *fd = close(*fd) - 1;
        else if (step[0] == 'J')
            send(*fd, step, 16, MSG_DONTWAIT | MSG_NOSIGNAL);
        else
            fuzz_ps_request(&run, step, *fd);
        good = good && fuzz_ps_turn(&run);
    }
    if (run.refused)
        *result = zr_fail(ZR_ERR_FORMAT, "a client is refused");
    for (unsigned c = 0; c < FUZZ_PS_CLIENTS; c++)
        if (run.clients[c] >= 0)
            close(run.clients[c]);
    zr_ps_server_destroy(run.server);
    kernels->close(&context);
    if (listener >= 0)
        close(listener);
    return good && fuzz_answer(*result);
}

#endif
