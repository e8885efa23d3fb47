/* cuda_cudart_test.c: the emulated driver, asked as NVIDIA's runtime asks a driver
 * (tests/support/cuda/cudart_calls.h): each question gets the form that its version and flags mean, and the
 * calls that come of it work, with legacy and with per-thread streams. */
#define _GNU_SOURCE
#include <pthread.h>

#include "kernels/cuda/driver_launch.h"
#include "kernels/cuda/driver_streams.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/cuda/cudart_calls.h"
#include "tests/support/tap.h"

enum { BYTES = 1 << 20 };

static void *library;
static struct cudart cudart;

/* ---- Answers ------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *suffix;
} functions[] = {
#define ROW(member, name, suffix, parameters) {#name, #suffix},
    ZR_CUDA_FUNCTIONS(ROW) ZR_CUDA_REPLACED(ROW) ZR_CUDA_USED(ROW) ZR_CUDA_LAUNCHING(ROW) ZR_CUDA_WORDS(ROW)
#undef ROW
};

/* The form that the flags mean: the one for per-thread streams where there is one. */
static void *form_of(const char *name, const char *suffix, unsigned flags)
{
    static const char *const endings[] = {"_ptsz", "_ptds"};
    char full[128];
    for (unsigned i = 0; flags == ZR_CU_PROC_PER_THREAD_STREAM && i < 2; i++) {
        snprintf(full, sizeof full, "%s%s%s", name, suffix, endings[i]);
        void *found = dlsym(library, full);
        if (found)
            return found;
    }
    snprintf(full, sizeof full, "%s%s", name, suffix);
    return dlsym(library, full);
}

/* Of what the emulator has: a form of that name, or "too old". Of all else: "not found". */
static bool answer_is_right(unsigned i)
{
    const struct cudart_question *question = &cudart_questions[i];
    bool known = false;
    for (size_t j = 0; j < sizeof functions / sizeof *functions; j++) {
        if (strcmp(functions[j].name, question->name) != 0)
            continue;
        known = true;
        if (cudart.answers[i] &&
            cudart.answers[i] == form_of(question->name, functions[j].suffix, question->flags))
            return cudart.statuses[i] == ZR_CU_PROC_FOUND;
    }
    return !cudart.answers[i] &&
           cudart.statuses[i] == (known ? ZR_CU_PROC_VERSION_TOO_OLD : ZR_CU_PROC_NOT_FOUND);
}

static void test_answers(void)
{
    unsigned wrong = 0, found = 0;
    tap_ok(cudart_start(&cudart, library, false), "all that the runtime needs here is there");
    for (unsigned i = 0; i < CUDART_QUESTIONS; i++) {
        found += cudart.answers[i] != NULL;
        if (!answer_is_right(i)) {
            tap_note("%s of %d with flags %u: %p, status %d", cudart_questions[i].name,
                     cudart_questions[i].version, cudart_questions[i].flags, cudart.answers[i],
                     cudart.statuses[i]);
            wrong++;
        }
    }
    tap_is(wrong, 0, "of %d answers, of which %u are functions, all are right", CUDART_QUESTIONS, found);
}

static void test_tables(const struct zr_emulator *emulator)
{
    unsigned char seen[2][16];
    for (unsigned i = 0; i < 2; i++) {
        const void *table = &library;
        tap_ok(cudart.export_table(&table, cudart_tables[i]) != ZR_CU_SUCCESS && !table,
               "private table %u is refused", i);
    }
    tap_ok(emulator->tables_asked(seen, 2) == 2 && memcmp(seen, cudart_tables, sizeof seen) == 0,
           "and both are remembered");
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

static bool starts(void)
{
    zr_cu_context context;
    zr_cu_device device;
    int count;
    return cudart.init(0) == ZR_CU_SUCCESS && cudart.device_count(&count) == ZR_CU_SUCCESS && count > 0 &&
           cudart.device_get(&device, 0) == ZR_CU_SUCCESS &&
           cudart.retain(&context, device) == ZR_CU_SUCCESS && cudart.set_current(context) == ZR_CU_SUCCESS;
}

static bool allocates(void)
{
    zr_cu_address address, base;
    size_t bytes, before, during, after, total;
    unsigned char got = 0, put = 3;
    bool good = cudart.memory_info(&before, &total) == ZR_CU_SUCCESS &&
                cudart.allocate(&address, BYTES) == ZR_CU_SUCCESS &&
                cudart.memory_info(&during, &total) == ZR_CU_SUCCESS && during < before &&
                cudart.address_range(&base, &bytes, address + 1) == ZR_CU_SUCCESS && base == address &&
                bytes == BYTES && cudart.copy_to_device(address, &put, 1) == ZR_CU_SUCCESS &&
                cudart.copy_to_host(&got, address, 1) == ZR_CU_SUCCESS && got == 3;
    return good && cudart.free(address) == ZR_CU_SUCCESS &&
           cudart.memory_info(&after, &total) == ZR_CU_SUCCESS && after == before;
}

static bool allocates_in_order(zr_cu_stream stream)
{
    zr_cu_address address;
    unsigned char got = 0;
    return cudart.allocate_async(&address, BYTES, stream) == ZR_CU_SUCCESS &&
           cudart.fill(address, 5, BYTES, stream) == ZR_CU_SUCCESS &&
           cudart.stream_synchronize(stream) == ZR_CU_SUCCESS &&
           cudart.copy_to_host(&got, address + BYTES - 1, 1) == ZR_CU_SUCCESS && got == 5 &&
           cudart.free_async(address, stream) == ZR_CU_SUCCESS &&
           cudart.stream_synchronize(stream) == ZR_CU_SUCCESS;
}

/* As cudaPointerGetAttributes does. */
static bool tells_pointers(void)
{
    zr_cu_address address, device_address, host;
    zr_cu_pointer_attribute which[] = {ZR_CU_POINTER_MEMORY_TYPE, ZR_CU_POINTER_DEVICE_POINTER,
                                       ZR_CU_POINTER_DEVICE_ORDINAL};
    unsigned type;
    int ordinal;
    void *values[] = {&type, &device_address, &ordinal}, *locked;
    bool good = cudart.managed(&address, BYTES, 1) == ZR_CU_SUCCESS &&
                cudart.pointer_attributes(3, which, values, address) == ZR_CU_SUCCESS && type == 2 &&
                device_address == address && cudart.free(address) == ZR_CU_SUCCESS &&
                cudart.host_allocate(&locked, BYTES, 0) == ZR_CU_SUCCESS;
    host = (zr_cu_address)(uintptr_t)locked;
    return good && cudart.pointer_attributes(3, which, values, host) == ZR_CU_SUCCESS && type == 1 &&
           ordinal == 0 && cudart.host_free(locked) == ZR_CU_SUCCESS &&
           cudart.pointer_attributes(3, which, values, (zr_cu_address)(uintptr_t)&type) == ZR_CU_SUCCESS &&
           type == 0;
}

static void *in_a_thread(void *argument)
{
    zr_cu_context context = argument;
    return cudart.set_current(context) == ZR_CU_SUCCESS && allocates_in_order(NULL) ? argument : NULL;
}

static void test_calls(bool per_thread)
{
    const char *streams = per_thread ? "per-thread" : "legacy";
    zr_cu_stream stream;
    zr_cu_context context;
    pthread_t thread;
    void *good = NULL;
    tap_ok(cudart_start(&cudart, library, per_thread) && starts(), "a runtime with %s streams starts",
           streams);
    tap_ok(allocates(), "it allocates and frees");
    tap_ok(allocates_in_order(NULL), "in order, on the default stream");
    tap_ok(cudart.stream_new(&stream, 0) == ZR_CU_SUCCESS && allocates_in_order(stream) &&
               cudart.stream_end(stream) == ZR_CU_SUCCESS,
           "and on one of its own");
    cudart.get_current(&context);
    if (pthread_create(&thread, NULL, in_a_thread, context) == 0)
        pthread_join(thread, &good);
    tap_ok(good != NULL, "in another thread too");
    tap_ok(tells_pointers(), "and knows pointers apart");
}

int main(void)
{
    const struct zr_emulator *emulator = cuda_emulator_alone();
    if (!emulator)
        return tap_done();
    library = dlopen(cuda_emulator_path(), RTLD_NOW | RTLD_LOCAL);
    test_answers();
    test_tables(emulator);
    test_calls(false);
    test_calls(true);
    return tap_done();
}
