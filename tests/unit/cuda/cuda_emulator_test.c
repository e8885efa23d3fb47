/* cuda_emulator_test.c: the rules of the CUDA driver that zr leans on where memory is created, mapped, opened
 * to devices and shared. Sources and verdicts: tests/support/cuda/cuda_rules.h. cuda_work_test.c has
 * contexts, streams, events and work. */
#define _GNU_SOURCE
#include <fcntl.h>

#include "tests/support/cuda/cuda_rules.h"

/* ---- Creation ------------------------------------------------------------------------------------------ */

static zr_cu_result half_a_granule(const struct world *w)
{
    zr_cu_properties properties = on_device(0);
    zr_cu_memory memory;
    return w->cu->create(&memory, w->g / 2, &properties, 0);
}

static zr_cu_result no_such_device(const struct world *w)
{
    zr_cu_properties properties = on_device(w->devices_count);
    zr_cu_memory memory;
    return w->cu->create(&memory, w->g, &properties, 0);
}

static zr_cu_result too_much(const struct world *w)
{
    zr_cu_properties properties = on_device(0);
    size_t free_bytes, total_bytes;
    zr_cu_memory memory;
    MUST(w->cu->memory_info(&free_bytes, &total_bytes));
    return w->cu->create(&memory, (total_bytes / w->g + 1) * w->g, &properties, 0);
}

static zr_cu_result no_such_node(const struct world *w)
{
    zr_cu_properties properties = on_device(0);
    properties.location = (zr_cu_location){ZR_CU_LOCATION_HOST_NUMA, 4000};
    zr_cu_memory memory;
    return w->cu->create(&memory, w->g, &properties, 0);
}

/* ---- Reservation --------------------------------------------------------------------------------------- */

static zr_cu_result odd_reservation(const struct world *w)
{
    zr_cu_address address;
    return w->cu->reserve(&address, 4097, 0, 0, 0);
}

static zr_cu_result odd_alignment(const struct world *w)
{
    zr_cu_address address;
    return w->cu->reserve(&address, w->g, 3 * w->g, 0, 0);
}

static zr_cu_result all_addresses(const struct world *w)
{
    zr_cu_address address;
    return w->cu->reserve(&address, (size_t)1 << 62, 0, 0, 0);
}

static zr_cu_result part_of_reservation(const struct world *w)
{
    return w->cu->address_free(w->base, w->g);
}

static zr_cu_result reservation_in_use(const struct world *w)
{
    ONE_MAPPED;
    return w->cu->address_free(w->base, RANGE_GRANULES * w->g);
}

static zr_cu_result reservation_twice(const struct world *w)
{
    MUST(w->cu->address_free(w->base, RANGE_GRANULES * w->g));
    return w->cu->address_free(w->base, RANGE_GRANULES * w->g);
}

/* ---- Mapping ------------------------------------------------------------------------------------------- */

/* Whole granules, of a reservation. */
static zr_cu_result odd_mappings(const struct world *w)
{
    zr_cu_memory memory = memory_of(w, 2);
    return ALL_REFUSED(w->cu->map(w->base + w->g / 2, w->g, 0, memory, 0),
                       w->cu->map(w->base, w->g / 2, 0, memory, 0), map_at(w, RANGE_GRANULES - 1, 2, memory),
                       map_at(w, 0, 0, memory));
}

static zr_cu_result outside(const struct world *w)
{
    zr_cu_memory memory = memory_of(w, 1);
    MUST(w->cu->address_free(w->base, RANGE_GRANULES * w->g));
    return w->cu->map(w->base, w->g, 0, memory, 0);
}

static zr_cu_result onto_a_mapping(const struct world *w)
{
    zr_cu_memory memory = memory_of(w, 3);
    MUST(map_at(w, 0, 3, memory));
    return ALL_REFUSED(map_at(w, 0, 3, memory), map_at(w, 2, 3, memory));
}

static zr_cu_result more_than_there_is(const struct world *w)
{
    return map_at(w, 0, 2, memory_of(w, 1));
}

static zr_cu_result twice(const struct world *w)
{
    char got = 0;
    ONE_MAPPED;
    MUST(map_at(w, 4, 1, first));
    MUST(access_at(w, 4, 1));
    MUST(fill_at(w, 0, 42));
    MUST(w->cu->copy((zr_cu_address)(uintptr_t)&got, w->base + 4 * w->g, 1, NULL));
    MUST(w->cu->context_synchronize());
    return got == 42 ? ZR_CU_SUCCESS : VERDICT_BROKEN;
}

static zr_cu_result after_release(const struct world *w)
{
    zr_cu_memory memory = memory_of(w, 1);
    int fd;
    MUST(w->cu->release(memory));
    return ALL_REFUSED(map_at(w, 0, 1, memory), w->cu->release(memory),
                       w->cu->export_handle(&fd, memory, ZR_CU_HANDLE_POSIX_FD, 0));
}

static zr_cu_result released_while_mapped(const struct world *w)
{
    ONE_MAPPED;
    MUST(w->cu->release(first));
    return fill_at(w, 0, 1);
}

/* ---- Unmapping ----------------------------------------------------------------------------------------- */

/* From the middle of a mapping on, to the middle of one, across a gap, and where nothing is. */
static zr_cu_result not_whole(const struct world *w)
{
    MUST(map_at(w, 0, 2, memory_of(w, 2)));
    MUST(map_at(w, 2, 1, memory_of(w, 1)));
    MUST(map_at(w, 4, 1, memory_of(w, 1)));
    return ALL_REFUSED(w->cu->unmap(w->base, w->g), w->cu->unmap(w->base + w->g, 2 * w->g),
                       w->cu->unmap(w->base + 2 * w->g, 3 * w->g), w->cu->unmap(w->base + 3 * w->g, w->g),
                       w->cu->unmap(w->base, 0));
}

static zr_cu_result several_at_once(const struct world *w)
{
    MUST(map_at(w, 0, 1, memory_of(w, 1)));
    MUST(map_at(w, 1, 2, memory_of(w, 2)));
    MUST(map_at(w, 3, 1, memory_of(w, 1)));
    MUST(access_at(w, 0, 4));
    MUST(w->cu->unmap(w->base, 4 * w->g));
    return map_at(w, 1, 1, memory_of(w, 1));
}

/* Only on the emulator: a card needs a kernel for it, and the loser is this process. */
static zr_cu_result unmapped_while_working(const struct world *w, bool fence)
{
    ONE_MAPPED;
    w->emulator->work_ticks(1000000);
    MUST(w->emulator->launch(NULL, w->base, w->g, 9));
    if (fence)
        MUST(w->cu->context_synchronize());
    MUST(w->cu->unmap(w->base, w->g));
    return w->cu->context_synchronize();
}

static zr_cu_result under_running_work(const struct world *w)
{
    return unmapped_while_working(w, false);
}

static zr_cu_result fenced(const struct world *w)
{
    return unmapped_while_working(w, true);
}

/* The work would write into what took the place. */
static zr_cu_result replaced_under_running_work(const struct world *w)
{
    ONE_MAPPED;
    zr_cu_memory second = memory_of(w, 1);
    w->emulator->work_ticks(1000000);
    MUST(w->emulator->launch(NULL, w->base, w->g, 9));
    MUST(w->cu->unmap(w->base, w->g));
    map_at(w, 0, 1, second);
    access_at(w, 0, 1);
    return w->cu->context_synchronize();
}

static zr_cu_result fenced_on_the_wrong_device(const struct world *w)
{
    zr_cu_context other, popped;
    ONE_MAPPED;
    w->emulator->work_ticks(1000000);
    MUST(w->emulator->launch(NULL, w->base, w->g, 9));
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_push(other));
    MUST(w->cu->context_synchronize());
    MUST(w->cu->unmap(w->base, w->g));
    MUST(w->cu->context_pop(&popped));
    return w->cu->context_synchronize();
}

/* ---- Access -------------------------------------------------------------------------------------------- */

static zr_cu_result without_access(const struct world *w)
{
    ONE_MAPPED;
    MUST(map_at(w, 1, 1, memory_of(w, 1)));
    MUST(w->cu->unmap(w->base, w->g));
    MUST(map_at(w, 0, 1, first));
    return ALL_REFUSED(fill_at(w, 0, 1), fill_at(w, 1, 1));
}

static zr_cu_result accessed_as(const struct world *w, zr_cu_access access)
{
    MUST(map_at(w, 0, 1, memory_of(w, 1)));
    return w->cu->set_access(w->base, w->g, &access, 1);
}

/* To a part of a mapping, to a gap behind one, and to nothing. */
static zr_cu_result access_to_a_part(const struct world *w)
{
    MUST(map_at(w, 0, 2, memory_of(w, 2)));
    return ALL_REFUSED(access_at(w, 0, 1), access_at(w, 0, 3), access_at(w, 0, 0));
}

static zr_cu_result read_only(const struct world *w)
{
    MUST(accessed_as(w, (zr_cu_access){{ZR_CU_LOCATION_DEVICE, 0}, ZR_CU_ACCESS_READ}));
    return fill_at(w, 0, 1);
}

static zr_cu_result unreachable_peer(const struct world *w)
{
    for (int peer = 1; peer < w->devices_count; peer++) {
        int can = 1;
        MUST(w->cu->can_access_peer(&can, peer, 0));
        if (!can)
            return accessed_as(w, (zr_cu_access){{ZR_CU_LOCATION_DEVICE, peer}, ZR_CU_ACCESS_READ_WRITE});
    }
    return VERDICT_SKIPPED;
}

static zr_cu_result access_for_no_device(const struct world *w)
{
    return accessed_as(w, (zr_cu_access){{ZR_CU_LOCATION_DEVICE, w->devices_count}, ZR_CU_ACCESS_READ_WRITE});
}

static zr_cu_result host_access_to_device_memory(const struct world *w)
{
    return accessed_as(w, (zr_cu_access){{ZR_CU_LOCATION_HOST_NUMA, 0}, ZR_CU_ACCESS_READ_WRITE});
}

static zr_cu_result peer_without_access(const struct world *w)
{
    zr_cu_context other;
    if (w->devices_count < 2)
        return VERDICT_SKIPPED;
    ONE_MAPPED;
    MUST(w->cu->context_retain(&other, 1));
    MUST(w->cu->context_push(other));
    return fill_at(w, 0, 1);
}

/* ---- Sharing ------------------------------------------------------------------------------------------- */

static zr_cu_result unshareable(const struct world *w)
{
    zr_cu_properties properties = on_device(0);
    zr_cu_memory memory;
    int fd;
    properties.exported_as = ZR_CU_HANDLE_NONE;
    MUST(w->cu->create(&memory, w->g, &properties, 0));
    return w->cu->export_handle(&fd, memory, ZR_CU_HANDLE_POSIX_FD, 0);
}

static zr_cu_result import_of_nothing(const struct world *w)
{
    zr_cu_memory memory;
    int fd;
    MUST(w->cu->export_handle(&fd, memory_of(w, 1), ZR_CU_HANDLE_POSIX_FD, 0));
    close(fd);
    return w->cu->import_handle(&memory, (void *)(intptr_t)fd, ZR_CU_HANDLE_POSIX_FD);
}

static zr_cu_result import_of_a_file(const struct world *w)
{
    zr_cu_memory memory;
    int fd = open("/dev/zero", O_RDWR);
    return w->cu->import_handle(&memory, (void *)(intptr_t)fd, ZR_CU_HANDLE_POSIX_FD);
}

/* The importer's handle is one more: the memory outlives its creator's. */
static zr_cu_result shared(const struct world *w)
{
    zr_cu_memory memory;
    char got = 0;
    int fd;
    ONE_MAPPED;
    MUST(w->cu->export_handle(&fd, first, ZR_CU_HANDLE_POSIX_FD, 0));
    MUST(w->cu->import_handle(&memory, (void *)(intptr_t)fd, ZR_CU_HANDLE_POSIX_FD));
    close(fd);
    MUST(fill_at(w, 0, 77));
    MUST(w->cu->unmap(w->base, w->g));
    MUST(w->cu->release(first));
    MUST(map_at(w, 5, 1, memory));
    MUST(access_at(w, 5, 1));
    MUST(w->cu->copy((zr_cu_address)(uintptr_t)&got, w->base + 5 * w->g, 1, NULL));
    MUST(w->cu->context_synchronize());
    return got == 77 ? w->cu->release(memory) : VERDICT_BROKEN;
}

/* ---- Host memory --------------------------------------------------------------------------------------- */

static zr_cu_result create_on(const struct world *w, zr_cu_location_type type, zr_cu_memory *out)
{
    zr_cu_properties properties = {.type = ZR_CU_ALLOCATION_PINNED, .location = {type, 0}};
    return w->cu->create(out, w->g, &properties, 0);
}

static zr_cu_result node_not_permitted(const struct world *w)
{
    zr_cu_memory memory;
    w->emulator->host_memory(ZR_EMULATOR_HOST_NO_NODE);
    MUST(create_on(w, ZR_CU_LOCATION_HOST, &memory));
    return create_on(w, ZR_CU_LOCATION_HOST_NUMA, &memory);
}

static zr_cu_result host_before_13(const struct world *w)
{
    zr_cu_memory memory;
    int has = 1;
    w->emulator->host_memory(ZR_EMULATOR_HOST_NO_CREATE);
    MUST(w->cu->device_attribute(&has, ZR_CU_ATTRIBUTE_HOST_VIRTUAL_MEMORY, 0));
    return has ? VERDICT_BROKEN : create_on(w, ZR_CU_LOCATION_HOST, &memory);
}

static zr_cu_result locking_not_permitted(const struct world *w)
{
    static char pages[1 << 16] __attribute__((aligned(4096)));
    MUST(w->cu->register_host(pages, sizeof pages, ZR_CU_REGISTER_PORTABLE));
    MUST(w->cu->unregister_host(pages));
    w->emulator->host_memory(ZR_EMULATOR_HOST_NO_LOCK);
    return w->cu->register_host(pages, sizeof pages, ZR_CU_REGISTER_PORTABLE);
}

static zr_cu_result node_access_without_a_node(const struct world *w)
{
    zr_cu_memory memory;
    zr_cu_access node = {{ZR_CU_LOCATION_HOST_NUMA, 0}, ZR_CU_ACCESS_READ_WRITE};
    if (create_on(w, ZR_CU_LOCATION_HOST, &memory) != ZR_CU_SUCCESS)
        return VERDICT_SKIPPED; /* a card's driver before CUDA 13 */
    MUST(map_at(w, 0, 1, memory));
    return w->cu->set_access(w->base, w->g, &node, 1);
}

/* ---- Time ---------------------------------------------------------------------------------------------- */

static zr_cu_result costs(const struct world *w)
{
    zr_cu_memory two[] = {memory_of(w, 1), memory_of(w, 3)};
    MUST(map_at(w, 0, 1, two[0]));
    MUST(map_at(w, 1, 3, two[1]));
    MUST(access_at(w, 0, 4));
    MUST(w->cu->unmap(w->base, 4 * w->g));
    return good(w->emulator->state().memory_ns == 2 * (193000 + 1450 + 36000 + 26000));
}

/* Work of 100 us is under way: whether it has ended after a memory was created. */
static bool ends_meanwhile(const struct world *w, bool on)
{
    w->emulator->costs(on);
    w->emulator->work_ticks(100);
    w->cu->fill(w->base, 1, w->g, NULL);
    memory_of(w, 1);
    bool ended = w->all.stream_query(NULL) == ZR_CU_SUCCESS;
    w->cu->context_synchronize();
    return ended;
}

static zr_cu_result costs_move_the_clock(const struct world *w)
{
    ONE_MAPPED;
    return good(!ends_meanwhile(w, false) && ends_meanwhile(w, true));
}

/* ---- The table ----------------------------------------------------------------------------------------- */

static const struct rule rules[] = {
    {"sizes are multiples of the granularity", "VA cuMemCreate", half_a_granule, ZR_CU_INVALID_VALUE, 0},
    {"the device must be there", "VA cuMemCreate", no_such_device, ZR_CU_INVALID_DEVICE, 0},
    {"memory ends", "VA cuMemCreate", too_much, ZR_CU_OUT_OF_MEMORY, 0},
    {"HOST_NUMA needs a real node", "VA cuMemCreate", no_such_node, ZR_CU_INVALID_VALUE, 0},
    {"reservations are whole pages", "VA cuMemAddressReserve", odd_reservation, ZR_CU_INVALID_VALUE, 0},
    {"alignments are powers of two", "VA cuMemAddressReserve", odd_alignment, ZR_CU_INVALID_VALUE, 0},
    {"addresses end", "VA cuMemAddressReserve", all_addresses, ZR_CU_OUT_OF_MEMORY, 0},
    {"reservations are freed whole", "VA cuMemAddressFree", part_of_reservation, ZR_CU_INVALID_VALUE, 0},
    {"and empty (unstated: stackoverflow.com/questions/70604546 asks)", "taken for a rule",
     reservation_in_use, ZR_CU_INVALID_VALUE, 0},
    {"and once", "VA cuMemAddressFree: ptr must match", reservation_twice, ZR_CU_INVALID_VALUE, 0},
    {"map: whole granules of a reservation", "VA cuMemMap", odd_mappings, ZR_CU_INVALID_VALUE, 0},
    {"map: that is still there", "VA cuMemMap", outside, ZR_CU_INVALID_VALUE, 0},
    {"map: not onto a mapping, nor onto the end of one", "VA cuMemMap", onto_a_mapping, ZR_CU_INVALID_VALUE,
     0},
    {"map: not more than the memory", "VA cuMemMap", more_than_there_is, ZR_CU_INVALID_VALUE, 0},
    {"one memory at two addresses is fine", "guide, Virtual Aliasing Support", twice, ZR_CU_SUCCESS, 0},
    {"no handle after release", "VA cuMemRelease: undefined", after_release, ZR_CU_INVALID_VALUE,
     EMULATOR_ONLY},
    {"memory lives for its mappings", "VA cuMemRelease", released_while_mapped, ZR_CU_SUCCESS, 0},
    {"unmap: whole mappings without a gap", "VA cuMemUnmap; PyTorch #188008", not_whole, ZR_CU_INVALID_VALUE,
     0},
    {"unmap and access: several mappings in a row are fine",
     "NVIDIA's blog, Introducing Low-Level GPU Virtual Memory Management", several_at_once, ZR_CU_SUCCESS, 0},
    {"unmap: not under running work", "PyTorch #196258", under_running_work, ZR_CU_ILLEGAL_ADDRESS,
     EMULATOR_ONLY},
    {"unmap: nor with another mapping in its place", "PyTorch #196258", replaced_under_running_work,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"unmap: fine behind a fence", "PyTorch #197159", fenced, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"unmap: the owner's fence, not another device's", "PyTorch #196258", fenced_on_the_wrong_device,
     ZR_CU_ILLEGAL_ADDRESS, EMULATOR_ONLY},
    {"a mapping has no access, nor has its successor", "VA cuMemMap and cuMemUnmap", without_access,
     ZR_CU_INVALID_VALUE, 0},
    {"access: whole mappings without a gap", "VA cuMemSetAccess", access_to_a_part, ZR_CU_INVALID_VALUE, 0},
    {"read access is no write access", "VA cuMemSetAccess", read_only, ZR_CU_INVALID_VALUE, 0},
    {"access: for a peer in reach", "VA cuMemSetAccess; PyTorch #174030", unreachable_peer,
     ZR_CU_INVALID_DEVICE, 0},
    {"access: for a device that is there", "VA cuMemSetAccess", access_for_no_device, ZR_CU_INVALID_DEVICE,
     0},
    {"access: the host's to host memory only", "VA cuMemSetAccess", host_access_to_device_memory,
     ZR_CU_INVALID_VALUE, 0},
    {"access: a peer's must be set", "FBGEMM #1875", peer_without_access, ZR_CU_INVALID_VALUE, 0},
    {"export: only what was made for it", "VA cuMemCreate, requestedHandleTypes", unshareable,
     ZR_CU_INVALID_VALUE, 0},
    {"import: only what was exported", "VA cuMemImportFromShareableHandle", import_of_a_file,
     ZR_CU_INVALID_VALUE, 0},
    {"import: a descriptor that is open", "VA cuMemImportFromShareableHandle", import_of_nothing,
     ZR_CU_INVALID_VALUE, 0},
    {"an import keeps the memory alive", "VA cuMemRelease", shared, ZR_CU_SUCCESS, 0},
    {"memory on a node may not be permitted", "NCCL, NCCL_CUMEM_HOST_ENABLE: containers", node_not_permitted,
     ZR_CU_NOT_PERMITTED, EMULATOR_ONLY},
    {"host memory without a node: not before CUDA 13", "TYPES CUdevice_attribute 145", host_before_13,
     ZR_CU_INVALID_VALUE, EMULATOR_ONLY},
    {"locking pages may not be permitted", "MEM cuMemHostRegister", locking_not_permitted,
     ZR_CU_NOT_PERMITTED, EMULATOR_ONLY},
    {"access: a node's to memory of a node only", "VA cuMemSetAccess", node_access_without_a_node,
     ZR_CU_INVALID_VALUE, 0},
    {"each handle takes its time", "kvcached, on an A100", costs, ZR_CU_SUCCESS, EMULATOR_ONLY},
    {"in which the device works on", "emulator.h", costs_move_the_clock, ZR_CU_SUCCESS, EMULATOR_ONLY},
};

/* For `make gpu-check`: whether there is a card to compare with; says why not. */
static int card_present(void)
{
    const struct zr_cuda_driver *cu;
    int count = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        puts("1..0 # SKIP no GPU: libcuda.so.1 is absent");
    else if (zr_cuda_driver_get(&cu) != ZR_OK)
        printf("1..0 # SKIP no GPU: %s\n", zr_last_error());
    else if (cu->device_count(&count) != ZR_CU_SUCCESS || count == 0)
        puts("1..0 # SKIP no GPU: the driver sees no device");
    return count > 0 ? 0 : 1;
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "--card-present") == 0)
        return card_present();
    return rules_run(rules, sizeof rules / sizeof *rules);
}
