/* cuda_processes_test.c: the rules of the CUDA driver where memory is another process's too. Sources and
 * verdicts: tests/support/cuda/cuda_rules.h. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/socket.h>

#include "alloc/backend/backend.h"
#include "alloc/service/client/wire.h"
#include "tests/support/cuda/cuda_rules.h"

static int byte_at(const struct world *w, zr_cu_address address)
{
    unsigned char got = 0;
    zr_cu_result code = w->cu->context_synchronize();
    if (code == ZR_CU_SUCCESS)
        code = w->all.copy_to_host(&got, address, 1);
    return code == ZR_CU_SUCCESS ? got : -1;
}

static zr_cu_result opened_here(const struct world *w)
{
    zr_cu_ipc_handle handle;
    zr_cu_address address;
    MUST(w->all.ipc_get(&handle, plain(w, 4096)));
    return w->all.ipc_open(&address, handle, 1);
}

static zr_cu_result of_other_kinds(const struct world *w)
{
    zr_cu_ipc_handle handle;
    zr_cu_address pooled, managed;
    ONE_MAPPED;
    MUST(w->all.alloc_async(&pooled, 4096, NULL));
    MUST(w->all.alloc_managed(&managed, 4096, 1));
    return ALL_REFUSED(w->all.ipc_get(&handle, w->base), w->all.ipc_get(&handle, pooled),
                       w->all.ipc_get(&handle, managed), w->all.ipc_get(&handle, (uintptr_t)&handle));
}

/* The program of a second process, which has a driver of its own: it gets the handle by a socket, and writes
 * 8 where it has read 7. */
static zr_cu_result open_elsewhere(int peer)
{
    struct world w = {0};
    zr_cu_ipc_handle handle;
    zr_cu_address address = 0, again = 0;
    unsigned char got = 0;
    MUST(prepare(&w, cuda_on_card()));
    if (read(peer, &handle, sizeof handle) != sizeof handle)
        return VERDICT_BROKEN;
    zr_cu_result flags = w.all.ipc_open(&address, handle, 0);
    MUST(w.all.ipc_open(&address, handle, 1));
    MUST(w.all.ipc_open(&again, handle, 1));
    MUST(w.all.copy_to_host(&got, address, 1));
    MUST(w.cu->fill(address, 8, 4096, NULL));
    MUST(w.cu->context_synchronize());
    zr_cu_result freed = w.all.mem_free(address), shared = w.all.ipc_get(&handle, address);
    MUST(w.all.ipc_close(address));
    MUST(w.cu->fill(again, 8, 1, NULL));
    MUST(w.all.ipc_close(again));
    if (got != 7 || again != address)
        return VERDICT_BROKEN;
    return ALL_REFUSED(flags, freed, shared, w.all.ipc_close(again), w.cu->fill(address, 8, 1, NULL));
}

struct process {
    pid_t pid;
    int end;
};

static struct process start(const char *option)
{
    struct process out = {.pid = -1};
    int ends[2];
    char number[16];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return out;
    snprintf(number, sizeof number, "%d", ends[1]);
    out.end = ends[0];
    out.pid = fork();
    if (out.pid == 0) {
        close(ends[0]);
        execl("/proc/self/exe", "cuda_processes_test", option, number, (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    return out;
}

/* What open_elsewhere() returns, run by a fresh process. */
static zr_cu_result shared(const struct world *w)
{
    zr_cu_address address = plain(w, 4096);
    zr_cu_ipc_handle handle;
    zr_cu_result code = VERDICT_BROKEN;
    struct process other = start("--open");
    MUST(w->cu->fill(address, 7, 4096, NULL));
    MUST(w->cu->context_synchronize());
    MUST(w->all.ipc_get(&handle, address));
    if (write(other.end, &handle, sizeof handle) != sizeof handle ||
        read(other.end, &code, sizeof code) != sizeof code)
        code = VERDICT_BROKEN;
    waitpid(other.pid, NULL, 0);
    return byte_at(w, address + 4095) == 8 ? code : VERDICT_BROKEN;
}

/* ---- Memory of a dead process -------------------------------------------------------------------------- */

/* The program of a process that fills a block, exports it and waits to be killed. */
static int export_and_wait(int peer)
{
    struct zr_service_message message = zr_service_message_of(ZR_SERVICE_DONE);
    struct zr_segment segment;
    size_t count = 1, lead;
    struct world w = {0};
    zr_backend *backend;
    zr_arena *arena;
    void *block;
    if (prepare(&w, cuda_on_card()) != ZR_CU_SUCCESS || zr_backend_cuda_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK ||
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 4096}, &block) != ZR_OK ||
        zr_backend_fill(backend, &(struct zr_fill){block, 7, 4096, 0}) != ZR_OK ||
        zr_backend_synchronize(backend) != ZR_OK ||
        zr_block_export(arena, block, &segment, &count, &lead) != ZR_OK)
        return 1;
    message.bytes = segment.bytes;
    message.serial = lead;
    zr_service_send(peer, &message, segment.fd, false);
    return read(peer, &message, 1) == 1;
}

/* A survivor has the memory of a process that was killed, by the descriptor that it got before. */
static zr_cu_result survives(const struct world *w)
{
    struct zr_service_packet packet;
    unsigned char got[4096] = {0};
    zr_backend *backend = NULL;
    void *seen = NULL;
    struct process other = start("--export");
    zr_result result = zr_service_receive(other.end, &packet, UINT64_C(60000000000));
    kill(other.pid, SIGKILL);
    waitpid(other.pid, NULL, 0);
    struct zr_segment segment = {packet.fds[0], 0, packet.message.bytes};
    (void)w;
    if (result == ZR_OK && packet.fds_count == 1)
        result = zr_backend_cuda_create(&backend, NULL);
    if (result == ZR_OK)
        result = zr_import(backend, &segment, 1, &seen);
    zr_service_packet_close(&packet);
    if (result == ZR_OK)
        result = zr_backend_copy(backend,
                                 &(struct zr_copy){got, (char *)seen + packet.message.serial, sizeof got, 0});
    if (result == ZR_OK)
        result = zr_backend_synchronize(backend);
    bool whole = got[0] == 7 && memcmp(got, got + 1, sizeof got - 1) == 0;
    if (seen)
        zr_import_release(backend, seen);
    if (backend)
        zr_backend_destroy(backend);
    return result == ZR_OK && whole ? ZR_CU_SUCCESS : VERDICT_BROKEN;
}

/* A process that allocates as many granules as each byte that it gets says, and answers how many are used. */
static void allocate_on_demand(int peer)
{
    struct world w = {0};
    zr_cu_address address;
    size_t free_bytes, total;
    unsigned char granules, used;
    if (prepare(&w, false) != ZR_CU_SUCCESS)
        return;
    while (read(peer, &granules, 1) == 1) {
        if ((granules && w.all.mem_alloc(&address, granules * w.g) != ZR_CU_SUCCESS) ||
            w.all.mem_info(&free_bytes, &total) != ZR_CU_SUCCESS)
            return;
        used = (unsigned char)((total - free_bytes) / w.g);
        if (write(peer, &used, 1) != 1)
            return;
    }
}

static unsigned allocate_there(const struct process *process, unsigned char granules)
{
    unsigned char used = 255;
    return write(process->end, &granules, 1) == 1 && read(process->end, &used, 1) == 1 ? used : 255;
}

/* Two processes, of which one is killed. */
static zr_cu_result one_account(const struct world *w)
{
    char path[] = "/tmp/zr_emulator_XXXXXX";
    int fd = mkstemp(path);
    (void)w;
    setenv("ZR_EMULATOR_SHARED", path, 1);
    struct process a = start("--account"), b = start("--account");
    bool good_before = allocate_there(&a, 3) == 3 && allocate_there(&b, 2) == 5 && allocate_there(&a, 0) == 5;
    kill(a.pid, SIGKILL);
    waitid(P_PID, (id_t)a.pid, &(siginfo_t){0}, WEXITED | WNOWAIT);
    bool good_after = allocate_there(&b, 1) == 3;
    waitpid(a.pid, NULL, 0);
    close(b.end);
    waitpid(b.pid, NULL, 0);
    close(fd);
    unlink(path);
    return good(good_before && good_after);
}

/* ---- The table -------------------------------------------------------------------------------------------
 */

static const struct rule rules[] = {
    {"legacy IPC is for other processes", "MEM cuIpcOpenMemHandle", opened_here, ZR_CU_INVALID_CONTEXT, 0},
    {"and for cuMemAlloc's memory", "MEM cuIpcGetMemHandle; guide, Virtual Memory Management", of_other_kinds,
     ZR_CU_INVALID_VALUE, 0},
    {"where it is opened with its one flag, as often as closed, and neither freed nor passed on",
     "MEM cuIpcOpenMemHandle", shared, ZR_CU_INVALID_VALUE, 0},
    {"processes share a device's memory, and it survives them", "MEM cuMemGetInfo", one_account,
     ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"exported memory lives as long as a process has its descriptor",
     "VA cuMemExportToShareableHandle, cuMemRelease", survives, ZR_CU_SUCCESS, EMULATOR_ONLY},
};

int main(int count, char **arguments)
{
    if (count > 2 && strcmp(arguments[1], "--account") == 0) {
        allocate_on_demand(atoi(arguments[2]));
        return 0;
    }
    if (count > 2 && strcmp(arguments[1], "--export") == 0)
        return export_and_wait(atoi(arguments[2]));
    if (count > 2 && strcmp(arguments[1], "--open") == 0) {
        int peer = atoi(arguments[2]);
        zr_cu_result code = open_elsewhere(peer);
        return write(peer, &code, sizeof code) == sizeof code ? 0 : 1;
    }
    return rules_run(rules, sizeof rules / sizeof *rules);
}
