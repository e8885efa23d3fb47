/* cuda_test.c: what only the CUDA backend has: other people's contexts, fences before unmaps, events in
 * turns, a driver that is absent, old, forked, dead or unwilling, peers, pinned memory, and memory shared
 * between processes. On the emulated driver; the rules it enforces are in cuda_emulator_test.c. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "alloc/backend.h"
#include "tests/cuda_support.h"
#include "tests/tap.h"

#define GRANULE ((size_t)2 << 20)
#define FOREVER 1000000 /* ticks: until somebody waits */

static const struct zr_emulator *emulator;
static const struct zr_cuda_driver *cu;
static zr_cu_result (*get_current)(zr_cu_context *);
static zr_cu_result (*stream_create)(zr_cu_stream *, unsigned int);
static zr_cu_result (*stream_destroy)(zr_cu_stream);

static void find_driver(void)
{
    void *library = dlopen(cuda_emulator_path(), RTLD_NOW);
    zr_cuda_driver_get(&cu);
    get_current = dlsym(library, "cuCtxGetCurrent");
    stream_create = dlsym(library, "cuStreamCreate");
    stream_destroy = dlsym(library, "cuStreamDestroy_v2");
}

static zr_backend *create(const struct zr_cuda_options *options)
{
    zr_backend *backend = NULL;
    zr_result result = zr_backend_cuda_create(&backend, options);
    if (result != ZR_OK)
        tap_ok(false, "a backend: %s", zr_last_error());
    return backend;
}

/* A range with one granule mapped at its start, with access. */
struct mapped {
    zr_backend *backend;
    struct zr_range *range;
    struct zr_handle *handle;
};

static struct mapped map_one(const struct zr_cuda_options *options)
{
    struct mapped made = {.backend = create(options)};
    zr_backend_reserve(made.backend, 16 * GRANULE, &made.range);
    zr_backend_create(made.backend, GRANULE, &made.handle);
    zr_backend_map(made.range, 0, made.handle);
    zr_backend_set_access(made.range, (struct zr_extent){0, GRANULE});
    return made;
}

static zr_result unmap_one(struct mapped *made)
{
    return zr_backend_unmap(made->range, (struct zr_extent){0, GRANULE});
}

static void end(struct mapped *made)
{
    zr_backend_destroy_handle(made->backend, made->handle);
    tap_result(zr_backend_release(made->range), ZR_OK, "the range goes");
    tap_result(zr_backend_destroy(made->backend), ZR_OK, "the backend goes");
}

static bool nothing_left(void)
{
    struct zr_emulator_state state = emulator->state();
    return state.memories_count + state.mappings_count + state.reservations_count + state.events_count +
               state.used_bytes ==
           0;
}

/* Runs the body in a child that has not seen the driver yet; its answer, or -1 for a child that crashed. */
static int in_child(int (*body)(void))
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(body());
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- A driver that is not what it should be; before this process loads one ------------------------------
 */

static int says(zr_result wanted, const char *words)
{
    zr_backend *backend = (zr_backend *)1;
    zr_result result = zr_backend_cuda_create(&backend, NULL);
    if (result != wanted || backend || !strstr(zr_last_error(), words)) {
        printf("# %s: %s\n", zr_result_name(result), zr_last_error());
        fflush(stdout);
        return 1;
    }
    return 0;
}

static int no_library(void)
{
    zr_cuda_driver_path_set("libcuda-that-is-not-there.so.1");
    return says(ZR_ERR_UNAVAILABLE, "install the NVIDIA driver");
}

static int no_driver(void)
{
    zr_cuda_driver_path_set("libm.so.6");
    return says(ZR_ERR_UNAVAILABLE, "it lacks cuInit");
}

static int old_driver(void)
{
    emulator->version(10010);
    return says(ZR_ERR_UNAVAILABLE, "it is for CUDA 10.1");
}

static int no_device(void)
{
    setenv("ZR_EMULATOR_DEVICES", "0", 1);
    return says(ZR_ERR_UNAVAILABLE, "CUDA_VISIBLE_DEVICES");
}

static int no_virtual_memory(void)
{
    emulator->attribute(ZR_CU_ATTRIBUTE_VIRTUAL_MEMORY, 0);
    return says(ZR_ERR_UNAVAILABLE, "virtual memory calls");
}

static int no_unified_addresses(void)
{
    emulator->attribute(ZR_CU_ATTRIBUTE_UNIFIED_ADDRESSING, 0);
    return says(ZR_ERR_UNAVAILABLE, "unified addresses");
}

static int far_peer(void)
{
    static const int peers[] = {2};
    zr_backend *backend;
    setenv("ZR_EMULATOR_DEVICES", "4", 1);
    return zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.peers = peers, .peers_count = 1}) !=
               ZR_ERR_UNAVAILABLE ||
           !strstr(zr_last_error(), "nvidia-smi topo");
}

static int no_descriptors(void)
{
    zr_backend *backend;
    struct zr_handle *handle;
    struct zr_segment segment;
    emulator->attribute(ZR_CU_ATTRIBUTE_POSIX_FD, 0);
    if (zr_backend_cuda_create(&backend, NULL) != ZR_OK || backend->can.exportable)
        return 1;
    zr_backend_create(backend, GRANULE, &handle);
    return zr_backend_export(backend, handle, &segment) != ZR_ERR_UNAVAILABLE;
}

static int no_pinned_memory(void)
{
    zr_backend *backend;
    emulator->attribute(ZR_CU_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY, 0);
    return zr_backend_cuda_create(&backend, &(struct zr_cuda_options){.kind = ZR_CUDA_HOST}) !=
               ZR_ERR_UNAVAILABLE ||
           !strstr(zr_last_error(), "CUDA 12.2");
}

/* A later try may find the driver that an earlier one did not. */
static int found_later(void)
{
    int failed = no_library();
    zr_backend *backend;
    zr_cuda_driver_path_set(cuda_emulator_path());
    return failed || zr_backend_cuda_create(&backend, NULL) != ZR_OK ||
           zr_cuda_driver_path_set("elsewhere") != ZR_ERR_INVALID;
}

static void test_unavailable(void)
{
    tap_is(in_child(no_library), 0, "no libcuda.so.1: an error with the way out");
    tap_is(in_child(no_driver), 0, "a library that is no driver");
    tap_is(in_child(old_driver), 0, "a driver before CUDA 10.2");
    tap_is(in_child(no_device), 0, "no device");
    tap_is(in_child(no_virtual_memory), 0, "a device without virtual memory management");
    tap_is(in_child(no_unified_addresses), 0, "a device without unified addresses");
    tap_is(in_child(far_peer), 0, "a peer without a link");
    tap_is(in_child(no_descriptors), 0, "a device that cannot export");
    tap_is(in_child(no_pinned_memory), 0, "a driver without pinned memory behind these calls");
    tap_is(in_child(found_later), 0, "a driver that comes later is found");
}

/* ---- Options ------------------------------------------------------------------------------------------- */

static void test_options(void)
{
    static const int stranger[] = {5}, far[] = {1};
    zr_backend *backend;
    struct refusal {
        struct zr_cuda_options options;
        zr_result result;
        const char *what;
    } refusals[] = {
        {{.device = 2}, ZR_ERR_INVALID, "a device that is not there"},
        {{.device = -1}, ZR_ERR_INVALID, "a negative device"},
        {{.kind = (enum zr_cuda_kind)7}, ZR_ERR_INVALID, "no kind of memory"},
        {{.granule_bytes = 3 << 20}, ZR_ERR_INVALID, "a granule of 3 MiB"},
        {{.granule_bytes = 1 << 20}, ZR_ERR_INVALID, "a granule below the granularity"},
        {{.kind = ZR_CUDA_HOST, .numa_node = 9}, ZR_ERR_INVALID, "a node that is not there"},
        {{.peers = stranger, .peers_count = 1}, ZR_ERR_INVALID, "a peer that is not there"},
        {{.peers_count = 1}, ZR_ERR_INVALID, "peers without a list"},
        {{.peers = stranger, .peers_count = 1000}, ZR_ERR_INVALID, "a thousand peers"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        zr_result result = zr_backend_cuda_create(&backend, &refusals[i].options);
        tap_ok(result == refusals[i].result && !backend, "%s: %s", refusals[i].what, zr_last_error());
    }
    tap_result(zr_backend_cuda_create(NULL, NULL), ZR_ERR_INVALID, "to nowhere");
    backend = create(&(struct zr_cuda_options){.granule_bytes = 8 << 20, .peers = far, .peers_count = 1});
    tap_is(backend->can.granule_bytes, 8 << 20, "a granule of several granularities");
    zr_backend_destroy(backend);
    struct zr_handle *handle;
    backend = create(&(struct zr_cuda_options){.limit_bytes = GRANULE - 1});
    tap_result(zr_backend_create(backend, GRANULE, &handle), ZR_ERR_MEMORY, "a limit below one granule");
    zr_backend_destroy(backend);
    backend = create(NULL);
    tap_is(backend->can.granule_bytes, GRANULE, "the recommended granule");
    zr_backend_destroy(backend);
    tap_is(emulator->state().retained_count, 0, "no context is held after");
}

/* ---- Contexts ------------------------------------------------------------------------------------------ */

static void use_everything(struct mapped *made)
{
    struct zr_stream_point event;
    struct zr_backend_memory memory;
    struct zr_segment segment;
    char byte = 0;
    zr_backend_fill(made->backend, &(struct zr_fill){.to = made->range->address, .value = 3, .bytes = 9});
    zr_backend_copy(made->backend, &(struct zr_copy){.to = &byte, .from = made->range->address, .bytes = 1});
    zr_backend_event_record(made->backend, 0, &event);
    zr_backend_event_done(made->backend, &event);
    zr_backend_event_wait(made->backend, &event);
    zr_backend_memory_info(made->backend, &memory);
    zr_backend_export(made->backend, made->handle, &segment);
    zr_backend_synchronize(made->backend);
    unmap_one(made);
}

static void test_contexts(void)
{
    zr_cu_context other, current = (zr_cu_context)1, popped;
    struct mapped made = map_one(NULL);
    use_everything(&made);
    get_current(&current);
    tap_ok(current == NULL, "a thread without a context has none after");
    end(&made);

    cu->context_retain(&other, 1);
    cu->context_push(other);
    made = map_one(NULL);
    use_everything(&made);
    get_current(&current);
    tap_ok(current == other && emulator->state().stack_depth == 1, "another device's context stays current");
    end(&made);
    cu->context_pop(&popped);
    cu->context_release(1);
    tap_is(emulator->state().without_context_count, 0, "zr made no memory call without a context");
}

/* ---- Fences -------------------------------------------------------------------------------------------- */

/* Launches in the primary context of device 0, as a user's kernel would be. */
static zr_cu_result launch(zr_cu_stream stream, const char *address, size_t bytes)
{
    zr_cu_context context, popped;
    cu->context_retain(&context, 0);
    cu->context_push(context);
    zr_cu_result code = emulator->launch(stream, (zr_cu_address)(uintptr_t)address, bytes, 0xee);
    cu->context_pop(&popped);
    cu->context_release(0);
    return code;
}

static zr_cu_stream new_stream(void)
{
    zr_cu_context context, popped;
    zr_cu_stream stream = NULL;
    cu->context_retain(&context, 0);
    cu->context_push(context);
    stream_create(&stream, ZR_CU_STREAM_NON_BLOCKING);
    cu->context_pop(&popped);
    cu->context_release(0);
    return stream;
}

static void drop_stream(zr_cu_stream stream)
{
    zr_cu_context context, popped;
    cu->context_retain(&context, 0);
    cu->context_push(context);
    stream_destroy(stream);
    cu->context_pop(&popped);
    cu->context_release(0);
}

static void test_fences(void)
{
    struct mapped made = map_one(NULL);
    zr_cu_stream stream = new_stream();
    zr_cu_context other, popped;
    emulator->work_ticks(FOREVER);
    launch(stream, made.range->address, GRANULE);
    tap_is(emulator->state().pending_count, 1, "a kernel runs in a stream that waits for no other");
    tap_result(unmap_one(&made), ZR_OK, "its memory is unmapped");
    tap_result(zr_backend_synchronize(made.backend), ZR_OK, "after the kernel, which did not crash");

    zr_backend_map(made.range, 0, made.handle);
    zr_backend_set_access(made.range, (struct zr_extent){0, GRANULE});
    launch(stream, made.range->address, GRANULE);
    cu->context_retain(&other, 1);
    cu->context_push(other);
    tap_result(unmap_one(&made), ZR_OK, "the same with another device current");
    tap_result(zr_backend_synchronize(made.backend), ZR_OK, "its owner was waited for");
    cu->context_pop(&popped);
    cu->context_release(1);
    emulator->work_ticks(3);
    drop_stream(stream);
    end(&made);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static void test_events(void)
{
    enum { MANY = 70000 };
    static struct zr_stream_point events[MANY];
    struct mapped made = map_one(NULL);
    struct zr_stream_point event;
    unsigned wrong = 0;
    emulator->work_ticks(FOREVER);
    launch(NULL, made.range->address, 1);
    zr_backend_event_record(made.backend, 0, &event);
    tap_ok(!zr_backend_event_done(made.backend, &event), "an event behind a kernel is not done");
    tap_result(zr_backend_event_wait(made.backend, &event), ZR_OK, "it can be waited for");
    tap_ok(zr_backend_event_done(made.backend, &event), "then it is");

    for (unsigned i = 0; i < 1000; i++) {
        launch(NULL, made.range->address, 1);
        wrong += zr_backend_event_record(made.backend, 0, &event) != ZR_OK;
        wrong += zr_backend_event_done(made.backend, &event);
        wrong += zr_backend_event_wait(made.backend, &event) != ZR_OK;
    }
    tap_is(wrong, 0, "1,000 times");
    tap_is(emulator->state().events_count, 1, "with one event of the driver's");

    for (unsigned i = 0; i < 1000; i++) {
        launch(NULL, made.range->address, 1);
        zr_backend_event_record(made.backend, 0, &event);
        zr_backend_synchronize(made.backend);
    }
    tap_ok(emulator->state().events_count <= 2, "events that nobody asks for are found again (%zu)",
           emulator->state().events_count);

    launch(NULL, made.range->address, 1);
    for (unsigned i = 0; i < 300; i++)
        zr_backend_event_record(made.backend, 0, &events[i]);
    for (unsigned i = 0; i < 300; i++)
        wrong += zr_backend_event_done(made.backend, &events[i]);
    tap_is(wrong, 0, "300 events behind one kernel are all pending");
    zr_backend_event_wait(made.backend, &events[150]);
    for (unsigned i = 0; i < 300; i++)
        wrong += !zr_backend_event_done(made.backend, &events[i]);
    tap_is(wrong, 0, "and all done with it");
    tap_result(zr_backend_event_record(made.backend, 0xdead, &event), ZR_ERR_INVALID,
               "a stream that is none: %s", zr_last_error());
    char byte;
    struct zr_copy copy = {.to = &byte, .from = made.range->address, .bytes = 1, .stream = 0xdead};
    tap_result(zr_backend_copy(made.backend, &copy), ZR_ERR_INVALID, "a copy in it: %s", zr_last_error());

    launch(NULL, made.range->address, 1);
    for (unsigned i = 0; i < MANY; i++)
        wrong += zr_backend_event_record(made.backend, 0, &events[i]) != ZR_OK;
    tap_is(wrong, 0, "%d pending events: the last ones wait for their stream", MANY);
    tap_ok(zr_backend_event_done(made.backend, &events[MANY - 1]) &&
               zr_backend_event_done(made.backend, &events[0]),
           "so that all of them are done");
    emulator->work_ticks(3);
    unmap_one(&made);
    end(&made);
    tap_is(emulator->state().events_count, 0, "none is left after the backend");
}

/* ---- Peers and pinned memory --------------------------------------------------------------------------- */

/* Reads the first byte from device 1's side; -1 where it may not. */
static int read_on_peer(const char *address)
{
    zr_cu_context context, popped;
    unsigned char byte = 0;
    cu->context_retain(&context, 1);
    cu->context_push(context);
    zr_cu_result code = cu->copy((zr_cu_address)(uintptr_t)&byte, (zr_cu_address)(uintptr_t)address, 1, NULL);
    cu->context_synchronize();
    cu->context_pop(&popped);
    cu->context_release(1);
    return code == ZR_CU_SUCCESS ? byte : -1;
}

static void test_peers(void)
{
    static const int peers[] = {1};
    struct mapped made = map_one(NULL);
    zr_backend_fill(made.backend, &(struct zr_fill){.to = made.range->address, .value = 8, .bytes = 1});
    zr_backend_synchronize(made.backend);
    tap_is(read_on_peer(made.range->address), -1, "a device that is no peer reads nothing");
    unmap_one(&made);
    end(&made);
    made = map_one(&(struct zr_cuda_options){.peers = peers, .peers_count = 1});
    zr_backend_fill(made.backend, &(struct zr_fill){.to = made.range->address, .value = 8, .bytes = 1});
    zr_backend_synchronize(made.backend);
    tap_is(read_on_peer(made.range->address), 8, "a peer reads what the device wrote");
    unmap_one(&made);
    end(&made);
}

static void test_pinned(void)
{
    struct mapped made = map_one(&(struct zr_cuda_options){.kind = ZR_CUDA_HOST, .numa_node = -1});
    char *at = made.range->address;
    tap_ok(made.backend->can.host_visible, "pinned memory is seen by the processor");
    strcpy(at, "written by the processor");
    zr_backend_copy(made.backend, &(struct zr_copy){.to = at + 4096, .from = at, .bytes = 25});
    zr_backend_synchronize(made.backend);
    tap_ok(strcmp(at + 4096, "written by the processor") == 0, "copied by the device, read by the processor");
    unmap_one(&made);
    zr_backend_map(made.range, 3 * GRANULE, made.handle);
    zr_backend_set_access(made.range, (struct zr_extent){3 * GRANULE, GRANULE});
    tap_ok(strcmp(at + 3 * GRANULE, "written by the processor") == 0, "the granule moves with its bytes");
    zr_backend_unmap(made.range, (struct zr_extent){3 * GRANULE, GRANULE});
    end(&made);
}

/* ---- Between processes --------------------------------------------------------------------------------- */

struct parcel {
    struct zr_segment segments[8];
    size_t count, lead_bytes, bytes;
};

static bool send_parcel(int socket, const struct parcel *parcel)
{
    char control[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec bytes = {(void *)parcel, sizeof *parcel};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = CMSG_SPACE(parcel->count * sizeof(int))};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(parcel->count * sizeof(int));
    for (size_t i = 0; i < parcel->count; i++)
        memcpy(CMSG_DATA(header) + i * sizeof(int), &parcel->segments[i].fd, sizeof(int));
    return sendmsg(socket, &message, 0) == (ssize_t)sizeof *parcel;
}

static bool receive_parcel(int socket, struct parcel *parcel)
{
    char control[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec bytes = {parcel, sizeof *parcel};
    struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, 0) != (ssize_t)sizeof *parcel)
        return false;
    for (size_t i = 0; i < parcel->count; i++)
        memcpy(&parcel->segments[i].fd, CMSG_DATA(CMSG_FIRSTHDR(&message)) + i * sizeof(int), sizeof(int));
    return true;
}

static bool device_byte(zr_backend *backend, char *address, unsigned char want)
{
    unsigned char got = 0;
    zr_backend_copy(backend, &(struct zr_copy){.to = &got, .from = address, .bytes = 1});
    zr_backend_synchronize(backend);
    return got == want;
}

/* The other process: imports, reads the ends, writes the middle. */
static int importer(int socket)
{
    struct parcel parcel;
    zr_backend *backend;
    void *imported;
    if (!receive_parcel(socket, &parcel) || zr_backend_cuda_create(&backend, NULL) != ZR_OK ||
        zr_import(backend, parcel.segments, parcel.count, &imported) != ZR_OK)
        return 1;
    for (size_t i = 0; i < parcel.count; i++)
        close(parcel.segments[i].fd);
    char *block = (char *)imported + parcel.lead_bytes;
    if (!device_byte(backend, block, 11) || !device_byte(backend, block + parcel.bytes - 1, 12))
        return 2;
    zr_backend_fill(backend, &(struct zr_fill){.to = block + parcel.bytes / 2, .value = 13, .bytes = 1});
    zr_backend_synchronize(backend);
    if (zr_import_release(backend, imported) != ZR_OK || zr_backend_destroy(backend) != ZR_OK)
        return 3;
    return emulator->state().memories_count == 0 ? 0 : 4;
}

/* Forks before this process has seen the driver; see main(). */
static pid_t start_importer(int *socket)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        close(pair[0]);
        _exit(importer(pair[1]));
    }
    close(pair[1]);
    *socket = pair[0];
    return child;
}

static void test_sharing(pid_t child, int socket)
{
    zr_arena *arena;
    void *small, *block = NULL;
    int status = -1;
    struct parcel parcel = {.count = 8, .bytes = 5 * GRANULE + 12345};
    zr_backend *backend = create(NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    zr_arena_alloc(arena, &(struct zr_request){.bytes = GRANULE + 777, .tag = ZR_TAG_OTHER}, &small);
    zr_arena_alloc(arena, &(struct zr_request){.bytes = parcel.bytes, .tag = ZR_TAG_PARAM}, &block);
    char *at = block;
    zr_backend_fill(backend, &(struct zr_fill){.to = at, .value = 11, .bytes = 1});
    zr_backend_fill(backend, &(struct zr_fill){.to = at + parcel.bytes - 1, .value = 12, .bytes = 1});
    zr_backend_synchronize(backend);
    tap_result(zr_block_export(arena, block, parcel.segments, &parcel.count, &parcel.lead_bytes), ZR_OK,
               "a block is exported in %zu pieces", parcel.count);
    tap_ok(parcel.lead_bytes > 0 && parcel.count > 1, "it begins inside the first");
    tap_ok(send_parcel(socket, &parcel), "the descriptors go to another process");
    waitpid(child, &status, 0);
    tap_is(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0, "which reads it, writes to it and lets go of it");
    tap_ok(device_byte(backend, at + parcel.bytes / 2, 13), "what it wrote is here");
    int fd = parcel.segments[0].fd;
    tap_ok((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0, "a descriptor does not reach programs that are started");
    zr_arena_destroy(arena, NULL);
    tap_ok(fcntl(fd, F_GETFD) < 0, "and goes with its memory");
    struct zr_handle *handle;
    struct zr_segment wrong = {.fd = STDIN_FILENO, .bytes = GRANULE};
    tap_result(zr_backend_import(backend, &wrong, &handle), ZR_ERR_INVALID, "what is no memory: %s",
               zr_last_error());
    wrong.offset_bytes = GRANULE;
    tap_result(zr_backend_import(backend, &wrong, &handle), ZR_ERR_INVALID, "a piece from its middle");
    zr_backend_destroy(backend);
    close(socket);
}

/* ---- A driver that will not --------------------------------------------------------------------------- */

static void always_fail(const char *call, zr_cu_result code)
{
    emulator->fail(
        &(struct zr_emulator_fault){.call = call, .nth = 1, .count = UINT64_MAX / 2, .code = code});
}

static void never_fail(void)
{
    emulator->fail(&(struct zr_emulator_fault){0});
}

static void test_shortage(void)
{
    zr_arena *arena;
    void *block;
    emulator->capacity(32 * GRANULE);
    zr_backend *backend = create(NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    zr_result result =
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 33 * GRANULE, .tag = ZR_TAG_GRAD}, &block);
    tap_ok(result == ZR_ERR_MEMORY && strstr(zr_last_error(), "CUDA_ERROR_OUT_OF_MEMORY"),
           "more than there is: %s", zr_last_error());
    tap_is(emulator->state().used_bytes, 0, "nothing of it is kept");
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = 32 * GRANULE, .tag = ZR_TAG_GRAD}, &block),
               ZR_OK, "all there is");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    emulator->capacity((size_t)16 << 30);
}

/* Handles and addresses that the driver will not take are offered again. */
static void test_debts(void)
{
    struct mapped made = map_one(NULL);
    struct zr_range *range;
    unmap_one(&made);
    always_fail("cuMemRelease", ZR_CU_UNKNOWN);
    tap_result(zr_backend_destroy_handle(made.backend, made.handle), ZR_OK, "a handle that the driver keeps");
    tap_is(made.backend->held_bytes, 0, "is out of the books");
    tap_is(emulator->state().memories_count, 1, "the driver has it");
    never_fail();
    zr_backend_reserve(made.backend, GRANULE, &range);
    tap_is(emulator->state().memories_count, 0, "with the next call it takes it back");
    always_fail("cuMemAddressFree", ZR_CU_UNKNOWN);
    tap_result(zr_backend_release(made.range), ZR_OK, "addresses that the driver keeps");
    tap_is(emulator->state().reservations_count, 2, "are with it");
    never_fail();
    zr_backend_release(range);
    tap_is(emulator->state().reservations_count, 0, "until the next call");
    tap_result(zr_backend_destroy(made.backend), ZR_OK, "the end");
    tap_ok(nothing_left(), "nothing is left");
}

static void fill_arena(zr_arena *arena, void *blocks[4])
{
    for (unsigned i = 0; i < 4; i++)
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 3 * GRANULE - 256, .tag = ZR_TAG_OTHER},
                       &blocks[i]);
}

static void test_failed_trim(void)
{
    zr_arena *arena;
    void *blocks[4], *block;
    struct zr_arena_stats after;
    zr_backend *backend = create(NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    fill_arena(arena, blocks);
    emulator->fail(
        &(struct zr_emulator_fault){.call = "cuMemUnmap", .nth = 1, .count = 1, .code = ZR_CU_UNKNOWN});
    zr_arena_free(arena, blocks[1]);
    tap_is(zr_arena_trim(arena, 0, NULL), ZR_OK, "a trim whose unmap fails");
    tap_result(zr_arena_check(arena), ZR_OK, "leaves the arena sound");
    never_fail();
    tap_result(zr_arena_alloc(arena, &(struct zr_request){.bytes = 9 * GRANULE, .tag = ZR_TAG_OTHER}, &block),
               ZR_OK, "which goes on");
    zr_arena_get_stats(arena, &after);
    tap_is(after.reserved_bytes, backend->held_bytes, "with exact books");
    zr_arena_destroy(arena, NULL);
    zr_backend_destroy(backend);
    tap_ok(nothing_left(), "nothing is left");
}

static void test_lasting_unmap_failure(void)
{
    zr_arena *arena;
    void *blocks[4];
    size_t leaked;
    zr_backend *backend = create(NULL);
    zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend});
    fill_arena(arena, blocks);
    always_fail("cuMemUnmap", ZR_CU_UNKNOWN);
    zr_result result = zr_arena_destroy(arena, &leaked);
    tap_ok(result == ZR_ERR_UNAVAILABLE && strstr(zr_last_error(), "stay mapped"),
           "an arena that cannot be unmapped ends: %s", zr_last_error());
    tap_is(backend->held_bytes, 0, "the books are empty");
    tap_result(zr_backend_destroy(backend), ZR_OK, "the backend ends too");
    never_fail();
    tap_ok(emulator->state().mappings_count > 0, "the driver has what it kept");
}

/* ---- In children: what would spoil this process ------------------------------------------------------- */

static int stranded_at_map(void)
{
    zr_arena *arena;
    void *blocks[4], *block;
    struct zr_arena_stats stats;
    zr_backend *backend;
    if (zr_backend_cuda_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 1;
    fill_arena(arena, blocks);
    /* The error of cuMemSetAccess, the pop, then the push, the fence and the unmap of the way back. */
    uint64_t to_access = 0;
    for (uint64_t nth = 1; nth < 200 && !to_access; nth++) {
        emulator->fail(
            &(struct zr_emulator_fault){.nth = nth, .count = UINT64_MAX / 2, .code = ZR_CU_UNKNOWN});
        zr_arena_alloc(arena, &(struct zr_request){.bytes = 4 * GRANULE, .tag = ZR_TAG_OTHER}, &block);
        never_fail();
        if (zr_arena_check(arena) != ZR_OK) {
            tap_note("%llu: %s", (unsigned long long)nth, zr_last_error());
            return 2;
        }
        if (block)
            to_access = nth;
        else
            zr_arena_trim(arena, 0, NULL);
    }
    zr_arena_get_stats(arena, &stats);
    if (!to_access || stats.reserved_bytes != backend->held_bytes)
        return 3;
    if (zr_arena_destroy(arena, NULL) != ZR_OK || zr_backend_destroy(backend) != ZR_OK)
        return 4;
    return nothing_left() ? 0 : 5;
}

/* A kernel writes where nothing is: every later call fails, and none crashes. */
static int dead_context(void)
{
    zr_arena *arena;
    void *block, *blocks[4];
    zr_backend *backend;
    struct zr_stream_point event;
    find_driver();
    if (zr_backend_cuda_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 1;
    fill_arena(arena, blocks);
    zr_backend_event_record(backend, 0, &event);
    launch(NULL, (const char *)4096, 8);
    if (zr_backend_synchronize(backend) != ZR_ERR_UNAVAILABLE ||
        !strstr(zr_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS") ||
        !strstr(zr_last_error(), "compute-sanitizer"))
        return 2;
    if (zr_arena_alloc(arena, &(struct zr_request){.bytes = 9 * GRANULE, .tag = ZR_TAG_OTHER}, &block) ==
        ZR_OK)
        return 3;
    if (!zr_backend_event_done(backend, &event) || zr_arena_free(arena, blocks[0]) != ZR_OK ||
        zr_arena_check(arena) != ZR_OK)
        return 4;
    zr_arena_destroy(arena, NULL);
    return zr_backend_destroy(backend) == ZR_OK ? 0 : 5;
}

/* A child of a process that uses CUDA: errors in words, and the parent's memory stays. */
static int use_after_fork(void)
{
    zr_arena *arena;
    void *blocks[4], *block;
    zr_backend *backend;
    int status = -1;
    if (zr_backend_cuda_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 1;
    fill_arena(arena, blocks);
    size_t used_bytes = emulator->state().used_bytes;
    pid_t child = fork();
    if (child == 0) {
        zr_backend *own;
        if (zr_arena_alloc(arena, &(struct zr_request){.bytes = 9 * GRANULE, .tag = ZR_TAG_OTHER}, &block) !=
                ZR_ERR_UNAVAILABLE ||
            !strstr(zr_last_error(), "fork"))
            _exit(1);
        if (zr_backend_cuda_create(&own, NULL) != ZR_ERR_UNAVAILABLE)
            _exit(2);
        if (zr_arena_free(arena, blocks[0]) != ZR_OK || zr_arena_destroy(arena, NULL) != ZR_ERR_UNAVAILABLE)
            _exit(3);
        _exit(zr_backend_destroy(backend) == ZR_OK ? 0 : 4);
    }
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 10 + WEXITSTATUS(status);
    if (emulator->state().used_bytes != used_bytes || zr_arena_check(arena) != ZR_OK)
        return 2;
    zr_arena_destroy(arena, NULL);
    return zr_backend_destroy(backend) == ZR_OK && nothing_left() ? 0 : 3;
}

/* At a process's end the driver may be gone before the backend is. */
static int driver_gone(void)
{
    zr_arena *arena;
    void *blocks[4];
    zr_backend *backend;
    if (zr_backend_cuda_create(&backend, NULL) != ZR_OK ||
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend}) != ZR_OK)
        return 1;
    fill_arena(arena, blocks);
    always_fail(NULL, ZR_CU_DEINITIALIZED);
    zr_arena_destroy(arena, NULL);
    return zr_backend_destroy(backend) == ZR_OK ? 0 : 2;
}

static int slow_driver(void)
{
    struct timespec before, after;
    zr_backend *backend;
    struct zr_handle *handle;
    if (zr_backend_cuda_create(&backend, NULL) != ZR_OK)
        return 1;
    emulator->delay("cuMemCreate", 20000000);
    clock_gettime(CLOCK_MONOTONIC, &before);
    zr_backend_create(backend, GRANULE, &handle);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long ns = (after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec;
    return ns >= 20000000 ? 0 : 2;
}

int main(void)
{
    int socket = -1;
    emulator = cuda_emulator();
    if (!emulator) {
        tap_skip("%s", zr_last_error());
        return tap_done();
    }
    if (cuda_on_card()) {
        tap_skip("what these tests do to the driver is for the emulated one only");
        return tap_done();
    }
    /* Children first: this process must not have seen the driver. */
    pid_t other = start_importer(&socket);
    test_unavailable();
    tap_is(in_child(stranded_at_map), 0,
           "calls that fail for good at every place of an extension, and recover");
    tap_is(in_child(dead_context), 0, "a crashed kernel: errors, no crash");
    tap_is(in_child(use_after_fork), 0, "a forked child: errors, and its parent's memory stays");
    tap_is(in_child(driver_gone), 0, "a driver that is shutting down");
    tap_is(in_child(slow_driver), 0, "the emulator can be slow");
    find_driver();
    test_sharing(other, socket);
    test_options();
    test_contexts();
    test_fences();
    test_events();
    test_peers();
    test_pinned();
    test_shortage();
    test_debts();
    test_failed_trim();
    tap_ok(nothing_left(), "the driver has everything back");
    test_lasting_unmap_failure();
    return tap_done();
}
