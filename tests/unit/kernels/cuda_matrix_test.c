/* cuda_matrix_test.c: the large matrix products of a card's table by cuBLASLt (kernels/cuda/matrix.c), on the
 * emulated library: when it is asked, what is done without it, and that what it refuses is said. What the
 * products come to is cuda_fp32_test.c's and cuda_narrow_test.c's matter. */
#define _GNU_SOURCE
#define ZR_TEST_ON_CARD
#include "tests/support/kernels/kernels_card.h"
#include "tests/support/tap.h"

enum { ROWS = 64, IN = 64, OUT = 72, ROOM = 2 * 72 * 72 };

static struct zr_lt_emulator *library;
static struct {
#define MEMBER(member, name, type, parameters) type(*member) parameters;
    ZR_LT_FUNCTIONS(MEMBER)
#undef MEMBER
} lt;
static const struct zr_kernels *table;
static struct zr_kernel_context context;
static float x[ROOM] __attribute__((aligned(64))), w[ROOM] __attribute__((aligned(64))),
    y[ROOM] __attribute__((aligned(64)));

static bool begin(void)
{
    static char workspace[33 << 20] __attribute__((aligned(64)));
    const struct zr_kernel_limits limits = {.rows = ROWS, .channels = IN};
    if (!card_begin() || !(library = card_library(true)))
        return false;
    void *file = dlopen(card_file("libcublasLt.so.13"), RTLD_NOW);
#define FIND(member, name, type, parameters) *(void **)&lt.member = dlsym(file, #name);
    ZR_LT_FUNCTIONS(FIND)
#undef FIND
    table = zr_kernels_cuda();
    context.workspace = workspace;
    context.workspace_bytes = table->workspace_bytes(&limits, ZR_ISA_PLAIN);
    for (unsigned i = 0; i < ROOM; i++)
        x[i] = (float)(i % 7) - 3, w[i] = (float)(i % 5) - 2;
    return context.workspace_bytes <= sizeof workspace;
}

/* y = x w from elements on: small whole numbers, whose sums are exact. */
static zr_result multiply(size_t skipped, size_t rows)
{
    struct zr_linear shape = {.rows = rows, .in = IN, .out = OUT};
    memset(y, 0xff, sizeof y);
    return card_waits(
        table->linear_forward(&context, &(struct zr_linear_forward){shape, x + skipped, w, NULL, y, false}));
}

static bool right(size_t skipped, size_t rows)
{
    bool good = true;
    for (size_t i = 0; i < rows * OUT; i++) {
        float sum = 0;
        for (size_t k = 0; k < IN; k++)
            sum += x[skipped + i / OUT * IN + k] * w[k * OUT + i % OUT];
        good = good && y[i] == sum;
    }
    return good;
}

/* Who makes which product, and what becomes of refusals. `made` and `chosen`: calls of the library. */
static const struct {
    const char *words;
    zr_lt_status choose, launch;
    size_t skipped, rows;
    unsigned calls, made, chosen, split, refused;
    zr_result result;
} products[] = {
    {"a large product is the library's, chosen once for its shape", 0, 0, 0, ROWS, 3, 3, 1, 3, 0, ZR_OK},
    {"a small one is not", 0, 0, 0, 8, 1, 0, 0, 0, 0, ZR_OK},
    {"nor one that begins between two lines of 16 bytes", 0, 0, 2, ROWS, 1, 0, 0, 0, 0, ZR_OK},
    {"what it refuses is asked once, made all the same, and counted", ZR_LT_NOT_SUPPORTED, 0, 0, ROWS, 3, 0,
     1, 0, 3, ZR_OK},
    {"so is what it has no algorithm for", ZR_LT_EMULATOR_NONE, 0, 0, ROWS, 3, 0, 1, 0, 3, ZR_OK},
    {"so is what it refuses when it is to be queued", 0, ZR_LT_INVALID_VALUE, 0, ROWS, 1, 0, 1, 0, 1, ZR_OK},
    {"but a card that fails is an error", 0, ZR_LT_EXECUTION_FAILED, 0, ROWS, 1, 0, 1, 0, 0,
     ZR_ERR_UNAVAILABLE},
};

static void test_products(void)
{
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        zr_result result = ZR_OK;
        bool good = true;
        *library = (struct zr_lt_emulator){.choose = products[i].choose, .launch = products[i].launch};
        if (table->open(&context) != ZR_OK)
            abort();
        for (unsigned call = 0; call < products[i].calls; call++) {
            result = multiply(products[i].skipped, products[i].rows);
            good = good && (result != ZR_OK || right(products[i].skipped, products[i].rows));
        }
        struct zr_kernel_refusals refusals = context.refusals;
        table->close(&context);
        tap_ok(good && result == products[i].result && library->products == products[i].made &&
                   library->choices == products[i].chosen && library->splits == products[i].split &&
                   library->unordered == 0 && refusals.count == products[i].refused &&
                   (!refusals.count || refusals.k == IN) && library->handles == 0 && library->objects == 0 &&
                   (products[i].choose != ZR_LT_EMULATOR_NONE || strstr(library->report, "is found")),
               "%s (%u made, %u chosen, %u split, %llu refused; %s)", products[i].words, library->products,
               library->choices, library->splits, (unsigned long long)refusals.count, library->report);
    }
    *library = (struct zr_lt_emulator){0};
}

static void test_words(void)
{
    char words[3][192];
    bool good = true;
    for (int i = 0; i < 3; i++) {
        library->create = i == 1 ? ZR_LT_NOT_INITIALIZED : 0;
        card_library(i != 2);
        good = good && table->open(&context) == ZR_OK && multiply(0, ROWS) == ZR_OK && right(0, ROWS);
        snprintf(words[i], sizeof words[i], "%s", table->products(&context));
        table->close(&context);
    }
    zr_option_prefer(ZR_OPTION_PRODUCTS, 0);
    for (int i = 0; i < ZR_PRECISION_COUNT; i++) {
        context.precision = (enum zr_precision)i;
        tap_result(table->open(&context), i == 0 ? ZR_OK : ZR_ERR_UNAVAILABLE, "without it %s is %s: %s",
                   zr_precision_name(context.precision), i == 0 ? "fine" : "refused",
                   i == 0 ? "" : zr_last_error());
        good = good && (i == 0 || (strstr(zr_last_error(), "pip install") && !context.library));
        table->close(&context);
    }
    context.precision = ZR_PRECISION_FP32;
    card_library(true);
    tap_ok(good && strstr(words[0], "cuBLASLt 13.0.2 on Emulated GPU (compute capability "),
           "the table says what multiplies: %s", words[0]);
    tap_ok(strstr(words[1], "own kernels (cuBLASLt does not start: status 1)"), "or why not: %s", words[1]);
    tap_ok(strstr(words[2], "own kernels (none: cannot open"), "or that it is not there: %s", words[2]);

    struct zr_kernel_context more[17];
    for (int i = 0; i < 17; i++) {
        more[i] = context;
        good = good && table->open(&more[i]) == (i < 16 ? ZR_OK : ZR_ERR_UNAVAILABLE);
    }
    tap_ok(good && strstr(zr_last_error(), "at most 16 kernel contexts"),
           "of 17 contexts the last is refused: %s", zr_last_error());
    table->close(&more[0]);
    tap_result(table->open(&more[16]), ZR_OK, "until another is closed");
    for (int i = 0; i < 17; i++)
        table->close(&more[i]);
    tap_is(library->handles, 0, "which leave nothing");
}

/* Many shapes: what is not remembered is chosen again. */
static void test_many_shapes(void)
{
    bool good = table->open(&context) == ZR_OK;
    for (size_t i = 0; i < 66; i++)
        good = good && multiply(0, ROWS + i) == ZR_OK && right(0, ROWS + i);
    table->close(&context);
    tap_ok(good && library->objects == 0 && library->handles == 0,
           "66 products in turn are right, and leave nothing");
}

/* One shape whose result lies dense, and then not. */
static void test_strides(void)
{
    struct zr_linear shape = {.rows = ROWS, .in = IN, .out = OUT, .y_stride = OUT + 8};
    bool good = table->open(&context) == ZR_OK && multiply(0, ROWS) == ZR_OK;
    struct zr_linear_forward call = {shape, x, w, NULL, y, false};
    good = good && card_waits(table->linear_forward(&context, &call)) == ZR_OK;
    for (size_t row = 1; row < ROWS; row++)
        memmove(y + row * OUT, y + row * shape.y_stride, OUT * sizeof *y);
    good = good && right(0, ROWS) && context.refusals.count == 0;
    table->close(&context);
    tap_ok(good, "a product has the stride of its own call");
}

/* One shape, and another bias each time. */
static void test_bias(void)
{
    static float bias[2][OUT] __attribute__((aligned(64)));
    struct zr_linear shape = {.rows = ROWS, .in = IN, .out = OUT};
    bool good = table->open(&context) == ZR_OK;
    for (unsigned i = 0; i < OUT; i++)
        bias[0][i] = 1, bias[1][i] = (float)i;
    for (unsigned i = 0; i < 2; i++) {
        struct zr_linear_forward call = {shape, x, w, bias[i], y, false};
        good = good && card_waits(table->linear_forward(&context, &call)) == ZR_OK;
        for (size_t at = 0; at < ROWS * OUT; at++)
            y[at] -= bias[i][at % OUT];
        good = good && right(0, ROWS);
    }
    good = good && context.refusals.count == 0;
    table->close(&context);
    tap_ok(good, "a product has the bias of its own call");
}

/* ---- What the library refuses ----------------------------------------------------------------------------
 */

struct call {
    unsigned type, epilogue, compute;
    int64_t leading, aux_leading; /* of AUX; 0: there is none */
    size_t a_bytes, workspace_less;
    bool other;
};
static const struct refusal {
    const char *words;
    zr_lt_status status;
    struct call call;
} refusals[] = {
    {"", ZR_LT_SUCCESS, {0}},
    {"is of type 1", ZR_LT_NOT_SUPPORTED, {.type = 1}},
    {"columns of A overlap", ZR_LT_INVALID_VALUE, {.leading = ROWS - 4}},
    {"do not begin on 16 bytes", ZR_LT_NOT_SUPPORTED, {.leading = ROWS + 1}},
    {"epilogue 32", ZR_LT_NOT_SUPPORTED, {.epilogue = 32}},
    {"AUX is at", ZR_LT_NOT_SUPPORTED, {.epilogue = ZR_LT_EPILOGUE_GELU_AUX}},
    {"columns of AUX are 68",
     ZR_LT_INVALID_VALUE,
     {.epilogue = ZR_LT_EPILOGUE_DGELU, .aux_leading = ROWS + 4}},
    {"columns of AUX are 56",
     ZR_LT_INVALID_VALUE,
     {.epilogue = ZR_LT_EPILOGUE_DGELU, .aux_leading = ROWS - 8}},
    {"192 with beta", ZR_LT_NOT_SUPPORTED, {.epilogue = ZR_LT_EPILOGUE_DGELU, .aux_leading = ROWS}},
    {"computed in 64", ZR_LT_NOT_SUPPORTED, {.compute = 64}},
    {"not on 16 bytes", ZR_LT_INVALID_VALUE, {.a_bytes = 8}},
    {"of workspace on 16 bytes, and has", ZR_LT_INVALID_VALUE, {.workspace_less = 1}},
    {"chosen for another product", ZR_LT_INVALID_VALUE, {.other = true}},
};

static zr_lt_status try_call(const struct call *call)
{
    static char scratch[2 * ROWS * ROWS * sizeof(float)] __attribute__((aligned(64)));
    const float one = 1;
    uint64_t room = sizeof scratch;
    zr_lt_handle handle;
    zr_lt_operation operation;
    zr_lt_layout a, b, other;
    zr_lt_preference preference;
    zr_lt_choice choice = {.state = ZR_LT_NOT_SUPPORTED};
    int count = 0;
    uint32_t epilogue = call->epilogue ? call->epilogue : ZR_LT_EPILOGUE_NONE, alignment = 16;
    lt.create(&handle);
    lt.operation_create(&operation, call->compute ? call->compute : ZR_LT_COMPUTE_FLOAT, ZR_LT_FLOAT);
    lt.operation_set(operation, ZR_LT_OPERATION_EPILOGUE, &epilogue, sizeof epilogue);
    if (call->aux_leading) {
        const void *aux = x;
        lt.operation_set(operation, ZR_LT_OPERATION_AUX, &aux, sizeof aux);
        lt.operation_set(operation, ZR_LT_OPERATION_AUX_LEADING, &call->aux_leading, sizeof(int64_t));
    }
    lt.layout_create(&a, call->type, ROWS, ROWS, call->leading ? call->leading : ROWS);
    lt.layout_create(&b, ZR_LT_FLOAT, ROWS, ROWS, ROWS);
    lt.layout_create(&other, ZR_LT_FLOAT, ROWS, ROWS, 2 * ROWS);
    lt.preference_create(&preference);
    for (unsigned i = 0; i < 4; i++)
        lt.preference_set(preference, ZR_LT_PREFERENCE_ALIGNMENT_A_BYTES + i, &alignment, sizeof alignment);
    lt.preference_set(preference, ZR_LT_PREFERENCE_WORKSPACE_BYTES, &room, sizeof room);
    zr_lt_status status = lt.choose(handle, operation, a, b, b, b, preference, 1, &choice, &count);
    if (status == ZR_LT_SUCCESS)
        status = lt.multiply(handle, operation, &one, (char *)x + call->a_bytes, call->other ? other : a, w,
                             b, &one, y, b, y, b, &choice.algorithm, scratch,
                             choice.workspace_bytes - call->workspace_less, NULL);
    lt.preference_destroy(preference);
    lt.layout_destroy(other);
    lt.layout_destroy(b);
    lt.layout_destroy(a);
    lt.operation_destroy(operation);
    lt.destroy(handle);
    return status;
}

static void test_refusals(void)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        library->report[0] = '\0';
        zr_lt_status status = try_call(&refusals[i].call);
        tap_ok(status == refusals[i].status && strstr(library->report, refusals[i].words),
               "the library says %u: %s", status, library->report);
    }
    zr_lt_preference preference;
    uint32_t narrow = 0;
    lt.preference_create(&preference);
    tap_is(lt.preference_set(preference, ZR_LT_PREFERENCE_WORKSPACE_BYTES, &narrow, 4), ZR_LT_INVALID_VALUE,
           "an attribute of another width");
    lt.preference_destroy(preference);
}

/* The last one: the device's context does not survive it. The library's kernels are under the driver's eyes.
 */
static void test_memory(void)
{
    card->attribute(ZR_CU_ATTRIBUTE_PAGEABLE_MEMORY, 0);
    bool opened = table->open(&context) == ZR_OK;
    zr_result result = multiply(0, ROWS);
    tap_ok(opened && result == ZR_ERR_UNAVAILABLE && strstr(card->report(), "kernel lt_multiply, thread ("),
           "the program's own memory: %s", card->report());
    table->close(&context);
}

int main(void)
{
    if (begin()) {
        test_products();
        test_words();
        test_many_shapes();
        test_strides();
        test_bias();
        test_refusals();
        test_memory();
    }
    return tap_done();
}
