/* kernels_card.h: the kernels' test programs on a card's table (ZR_TEST_ON_CARD), run by the emulated driver
 * or, with ZR_TEST_CUDA=card, on a card: every operation is waited for, the tests' tensors are the program's
 * own memory, which this card can use, and what were numbers of threads are seeds of the order in which the
 * card's threads run. */
#ifndef ZR_KERNELS_CARD_H
#define ZR_KERNELS_CARD_H

#include <pthread.h>

#include "alloc/base/option.h"
#include "kernels/cuda/cuda.h"
#include "tests/emulators/cublaslt/cublaslt_emulator.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/kernels/kernels_calls.h"

static const struct zr_emulator *card; /* NULL: it is a real one */
static const struct zr_cuda_driver *card_driver;
static struct zr_kernel_context *card_context; /* the open one */

static inline zr_result card_waits(zr_result result)
{
    zr_cu_result code = card_driver->stream_synchronize(NULL);
    if (result != ZR_OK)
        printf("# %s\n", zr_last_error());
    if (code != ZR_CU_SUCCESS)
        printf("# the driver says %u\n", code);
    return code == ZR_CU_SUCCESS ? result : ZR_ERR_UNAVAILABLE;
}

#define CARD_OPERATIONS(f)                                                                                   \
    f(embedding_forward) f(embedding_backward) f(positions_forward) f(positions_backward)                    \
        f(layernorm_forward) f(layernorm_backward) f(rmsnorm_forward) f(rmsnorm_backward) f(linear_forward)  \
            f(linear_backward) f(rotary_table) f(rotary) f(attention_forward) f(attention_backward)          \
                f(gelu_forward) f(gelu_backward) f(swiglu_forward) f(swiglu_backward) f(add)                 \
                    f(cross_entropy) f(softmax_merge) f(weigh_gradients) f(update_adamw) f(update_sgd)       \
                        f(sum_of_squares) f(find_nonfinite) f(checksum) f(init_normal) f(convert) f(clear)   \
                            f(copy_bytes) f(sum) f(residual_layernorm) f(residual_rmsnorm)                   \
                                f(gelu_bias_backward) f(linear_gelu_forward) f(linear_residual_forward)      \
                                    f(linear_gelu_backward) f(update_adamw8) f(block8_read) f(block8_write)  \
                                        f(factor_sums) f(factor_moments) f(factor_norm) f(update_factored)   \
                                            f(muon_direction) f(orthogonalize) f(apply_direction)            \
                                                f(lamb_norms) f(update_lamb) f(dropout) f(average)           \
                                                    f(outer_step) f(pack) f(unpack)
/* The processor's sum() does without a context. */
#define CARD_OPERATION(name)                                                                                 \
    static inline zr_result card_##name(struct zr_kernel_context *c, const struct zr_##name *args)           \
    {                                                                                                        \
        return card_waits(zr_kernels_cuda()->name(c ? c : card_context, args));                              \
    }
CARD_OPERATIONS(CARD_OPERATION)

static inline zr_result card_open(struct zr_kernel_context *context)
{
    if (card)
        card->random_ticks(context->parallel.threads);
    card_context = context;
    return zr_kernels_cuda()->open(context);
}

static inline void card_close(struct zr_kernel_context *context)
{
    zr_kernels_cuda()->close(context);
}

static inline size_t card_workspace_bytes(const struct zr_kernel_limits *limits, enum zr_isa isa)
{
    return zr_kernels_cuda()->workspace_bytes(limits, isa);
}

static inline size_t card_orthogonalize_bytes(const struct zr_orthogonalize *args)
{
    return zr_kernels_cuda()->orthogonalize_bytes(args);
}

#define CARD_SLOT(name) .name = card_##name,
static const struct zr_kernels card_table = {.workspace_bytes = card_workspace_bytes,
                                             .orthogonalize_bytes = card_orthogonalize_bytes,
                                             .open = card_open,
                                             .close = card_close,
                                             CARD_OPERATIONS(CARD_SLOT)};

/* A file beside the emulated driver's. */
static inline const char *card_file(const char *name)
{
    static char path[PATH_MAX + 64];
    const char *driver = cuda_emulator_path();
    snprintf(path, sizeof path, "%.*s%s", (int)(strrchr(driver, '/') + 1 - driver), driver, name);
    return path;
}

/* Contexts opened from now on have the emulated cuBLASLt, or none. Its record; NULL: it is not there. */
static bool card_has_library;
static inline struct zr_lt_emulator *card_library(bool on)
{
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s", card_file("libcublasLt.so.13"));
    void *library = dlopen(path, RTLD_NOW);
    card_has_library = on;
    zr_option_prefer(ZR_OPTION_PRODUCTS, !on); /* cases run with zr's own products, too */
    zr_cuda_matrix_library_set(on ? path : "none");
    return library ? dlsym(library, "zr_lt_emulator") : NULL;
}

/* ---- A real card ------------------------------------------------------------------------------------------
 */

enum {
    CARD_PAGE = 4096,
    CARD_STACK_BYTES = 8 << 20,
    CARD_HOST_POINTER_OF_REGISTERED = 91 /* CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
};
static zr_cu_result (*card_register)(void *address, size_t bytes, unsigned int flags);
static zr_cu_result (*card_unregister)(void *address);

/* Page-locked memory, which the card uses at the host's addresses. Not every card uses other memory of the
 * program (HMM is a matter of the kernel's configuration). */
static inline void *card_memory(size_t alignment, size_t bytes)
{
    size_t whole = (bytes / CARD_PAGE + 1) * CARD_PAGE;
    void *memory = alignment <= CARD_PAGE ? aligned_alloc(CARD_PAGE, whole) : NULL;
    if (memory && card_register(memory, whole, 0) != ZR_CU_SUCCESS) {
        free(memory);
        return NULL;
    }
    return memory;
}

static inline void card_memory_free(void *memory)
{
    if (memory)
        card_unregister(memory);
    free(memory);
}

/* With ZR_TEST_CUDA=card: the driver of this machine, and the kernels that nvcc has made. Where that driver
 * is the emulated one (tests/gpu_shot --emulated) ZR_CONF=kernels:emulated says so. */
static inline bool card_begin_real(void)
{
    zr_cu_context context;
    int same_addresses = 0;
    if (zr_cuda_driver_get(&card_driver) != ZR_OK ||
        zr_cuda_driver_find("cuMemHostRegister_v2", (void **)&card_register) != ZR_OK ||
        zr_cuda_driver_find("cuMemHostUnregister", (void **)&card_unregister) != ZR_OK) {
        tap_skip("%s", zr_last_error());
        return false;
    }
    if (zr_option_get(ZR_OPTION_KERNELS) == 1)
        zr_cuda_kernels_image_set("zr emulated image kernels.image\n");
    zr_cuda_matrix_library_set("none");
    zr_option_prefer(ZR_OPTION_PRODUCTS, 1);
    card_driver->device_attribute(&same_addresses, (zr_cu_attribute)CARD_HOST_POINTER_OF_REGISTERED, 0);
    if (!same_addresses)
        tap_skip("the card does not use page-locked memory at the host's addresses");
    tensor_memory = card_memory;
    tensor_memory_free = card_memory_free;
    return same_addresses && card_driver->context_retain(&context, 0) == ZR_CU_SUCCESS &&
           card_driver->context_push(context) == ZR_CU_SUCCESS;
}

/* Makes the emulated card this process's, without cuBLASLt. False, after a word of why: there is none. */
static inline bool card_begin(void)
{
    static char line[2 * PATH_MAX];
    zr_cu_context context;
    if (cuda_on_card())
        return card_begin_real();
    card = cuda_emulator_alone();
    if (!card || zr_cuda_driver_get(&card_driver) != ZR_OK)
        return false;
    card->attribute(ZR_CU_ATTRIBUTE_PAGEABLE_MEMORY, 1);
    snprintf(line, sizeof line, "zr emulated image %s\n", card_file("kernels.image"));
    zr_cuda_kernels_image_set(line);
    card_library(false);
    return card_driver->context_retain(&context, 0) == ZR_CU_SUCCESS &&
           card_driver->context_push(context) == ZR_CU_SUCCESS;
}

static inline void *card_run_there(void *argument)
{
    void (*run)(enum zr_isa isa);
    zr_cu_context context;
    memcpy(&run, argument, sizeof run);
    if (card_driver->context_retain(&context, 0) == ZR_CU_SUCCESS &&
        card_driver->context_push(context) == ZR_CU_SUCCESS)
        run(ZR_ISA_PLAIN);
    return NULL;
}

/* Runs the cases; on a real card in a thread whose stack it can write results to. */
static inline void card_run(void (*run)(enum zr_isa isa))
{
    pthread_attr_t attributes;
    pthread_t thread;
    if (!card_begin())
        return;
    if (card) {
        run(ZR_ISA_PLAIN);
        return;
    }
    void *stack = card_memory(CARD_PAGE, CARD_STACK_BYTES);
    bool runs = stack && pthread_attr_init(&attributes) == 0 &&
                pthread_attr_setstack(&attributes, stack, CARD_STACK_BYTES) == 0 &&
                pthread_create(&thread, &attributes, card_run_there, &run) == 0 &&
                pthread_join(thread, NULL) == 0;
    tap_ok(runs, "a thread with a page-locked stack");
}

#endif
