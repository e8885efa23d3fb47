/* cuda_table_test.c: a card's table (kernels/cuda/cuda.c) as a program uses it, on the emulated driver: in
 * device memory to the byte, queued in a stream behind other work, and what it refuses. What its operations
 * compute is cuda_fp32_test.c's and its neighbours' matter. */
#define _GNU_SOURCE
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/cuda.h"
#include "tests/support/cuda/cuda_calls.h"
#include "tests/support/cuda/cuda_support.h"
#include "tests/support/kernels/kernels_calls.h"
#include "tests/support/kernels/kernels_reference.h"

enum { ROWS = 37, CHANNELS = 45, NUMBERS = ROWS * CHANNELS };

static const struct zr_emulator *emulator;
static const struct zr_cuda_driver *cu;
static struct cuda_calls all;
static const struct zr_kernels *table;
static struct zr_kernel_context context;

static void *device(size_t bytes)
{
    zr_cu_address address = 0;
    if (all.mem_alloc(&address, bytes) != ZR_CU_SUCCESS)
        abort();
    return (void *)(uintptr_t)address;
}

static zr_cu_address address_of(const void *pointer)
{
    return (zr_cu_address)(uintptr_t)pointer;
}

static bool begin(void)
{
    static char line[PATH_MAX + 64];
    zr_cu_context primary;
    emulator = cuda_emulator_alone();
    if (!emulator || zr_cuda_driver_get(&cu) != ZR_OK)
        return false;
    cuda_calls_find(&all, dlopen(cuda_emulator_path(), RTLD_NOW));
    cu->context_retain(&primary, 0);
    cu->context_push(primary);
    all.stream_new((zr_cu_stream *)&context.stream, ZR_CU_STREAM_NON_BLOCKING);
    table = zr_kernels_cuda();
    context.workspace_bytes = table->workspace_bytes(&(struct zr_kernel_limits){0}, ZR_ISA_PLAIN);
    context.workspace = device(context.workspace_bytes);
    zr_cuda_kernels_image_set(NULL);
    tap_result(table->open(&context), ZR_ERR_UNAVAILABLE, "no kernels in this build: said when it opens");
    tap_result(table->add(&context, &(struct zr_add){0}), ZR_ERR_INVALID, "and nothing runs");
    snprintf(line, sizeof line, "zr emulated image %.*skernels.image\n",
             (int)(strrchr(cuda_emulator_path(), '/') + 1 - cuda_emulator_path()), cuda_emulator_path());
    zr_cuda_kernels_image_set(line);
    zr_cuda_matrix_library_set("none");
    tap_result(table->open(&context), ZR_OK, "with an image it opens");
    return context.library != NULL;
}

/* Two norms, each in its own memory: the second reads what the first makes, and begins when that has ended.
 */
static void test_stream(void)
{
    float host[NUMBERS], ones[CHANNELS], zeros[CHANNELS], mean[ROWS], rstd[ROWS];
    static double x[NUMBERS], y[NUMBERS], w[CHANNELS], b[CHANNELS], stats[2 * ROWS];
    struct zr_layernorm shape = {ROWS, CHANNELS, 0};
    void *in = device(sizeof host), *out = device(sizeof host), *weights = device(sizeof ones),
         *bias = device(sizeof zeros), *means = device(sizeof mean), *rstds = device(sizeof rstd);
    double most = 0;
    for (unsigned i = 0; i < NUMBERS; i++)
        x[i] = host[i] = (float)(i * 7 % 23) - 11;
    for (unsigned c = 0; c < CHANNELS; c++) {
        w[c] = ones[c] = 1 + (float)c / CHANNELS;
        b[c] = zeros[c] = (float)(c % 3);
    }
    cu->copy(address_of(in), address_of(host), sizeof host, context.stream);
    cu->copy(address_of(weights), address_of(ones), sizeof ones, context.stream);
    cu->copy(address_of(bias), address_of(zeros), sizeof zeros, context.stream);
    struct zr_layernorm_forward norm = {shape, in, weights, bias, out, means, rstds}, again = norm;
    again.x = out, again.y = in;
    bool queued = table->layernorm_forward(&context, &norm) == ZR_OK &&
                  table->layernorm_forward(&context, &again) == ZR_OK;
    tap_ok(queued && emulator->state().pending_count >= 2, "operations are queued, and have not ended");
    cu->copy(address_of(host), address_of(in), sizeof host, context.stream);
    cu->stream_synchronize(context.stream);
    reference_layernorm(&shape, x, w, b, y, stats, stats + ROWS);
    reference_layernorm(&shape, y, w, b, x, stats, stats + ROWS);
    for (unsigned i = 0; i < NUMBERS; i++)
        most = fmax(most, fabs(host[i] - x[i]));
    tap_ok(most < 1e-5, "two norms in a stream, in memory to the byte (%.1e off)", most);
}

/* What a step's gradients are worth, beside the same in the oracle's arithmetic: squares of ranks and units
 * of all sizes, that clip or not, with a loss scale, that are not finite. */
static void test_weight(void)
{
    enum { RANKS = 3, UNITS = 5 };
    static const struct {
        const char *words;
        double loss_scale, clip, first; /* first: in the place of the first square; 0: what is drawn */
    } cases[] = {{"not clipped", 1, 0, 0},           {"clipped", 1, 1, 0},
                 {"far below the limit", 1, 1e9, 0}, {"scaled and clipped", 1024, 0.1, 0},
                 {"infinite", 1, 1, INFINITY},       {"no number", 8, 1, NAN}};
    double *squares = device(RANKS * UNITS * sizeof(double));
    struct zr_gradient_weight *weight = device(sizeof *weight), got, again;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double host[RANKS * UNITS];
        long double sum = 0;
        for (unsigned k = 0; k < RANKS * UNITS; k++)
            host[k] = pow(10, (double)(k * 7 % 11) - 5) * (1 + 0.01 * k);
        host[0] = cases[i].first != 0 ? cases[i].first : host[0];
        for (unsigned k = 0; k < RANKS * UNITS; k++)
            sum += host[k];
        double norm = (double)sqrtl(sum) / cases[i].loss_scale, clip = cases[i].clip;
        double factor = clip > 0 && norm > clip ? clip / norm : 1;
        struct zr_weigh_gradients args = {UNITS, RANKS, squares, cases[i].loss_scale, clip, weight};
        cu->copy(address_of(squares), address_of(host), sizeof host, context.stream);
        zr_result result = table->weigh_gradients(&context, &args);
        cu->copy(address_of(&got), address_of(weight), sizeof got, context.stream);
        cu->stream_synchronize(context.stream);
        args.squares = host;
        args.weight = &again;
        zr_kernels_cpu(ZR_ISA_PLAIN)->weigh_gradients(NULL, &args);
        if (cases[i].first != 0)
            tap_ok(result == ZR_OK && got.skips == 1 && again.skips == 1, "a norm that is %s: skipped",
                   cases[i].words);
        else
            tap_ok(result == ZR_OK && !got.skips && fabs(got.norm - norm) <= 1e-14 * norm &&
                       fabs(got.clip_scale - factor) <= 1e-7 * factor &&
                       fabs(got.scale * cases[i].loss_scale - factor) <= 1e-6 * factor &&
                       got.norm == again.norm && got.scale == again.scale &&
                       got.clip_scale == again.clip_scale,
                   "gradients that are %s: norm %.17g, clipped by %g, scaled by %g; the processor's bits",
                   cases[i].words, got.norm, (double)got.clip_scale, (double)got.scale);
    }
}

/* The processor's table: what it makes of the same numbers. */
static const struct zr_kernels *host_begin(struct zr_kernel_context *host)
{
    const struct zr_kernels *cpu = zr_kernels_cpu(ZR_ISA_PLAIN);
    *host = (struct zr_kernel_context){.parallel = {.threads = 1}, .precision = ZR_PRECISION_BF16};
    host->workspace_bytes = cpu->workspace_bytes(
        &(struct zr_kernel_limits){.rows = 1, .channels = 1, .threads = 1}, ZR_ISA_PLAIN);
    host->workspace = aligned_alloc(64, (host->workspace_bytes + 63) / 64 * 64);
    if (!host->workspace || cpu->open(host) != ZR_OK)
        abort();
    return cpu;
}

static void host_end(struct zr_kernel_context *host)
{
    zr_kernels_cpu(ZR_ISA_PLAIN)->close(host);
    free(host->workspace);
}

static double squares_on_host(size_t n, uint16_t *numbers)
{
    struct zr_kernel_context host;
    double sum = squares_of(host_begin(&host), &host, n, (struct zr_numbers){numbers, ZR_PRECISION_BF16});
    host_end(&host);
    return sum;
}

/* Data that end on each byte of a word, and of a block. */
static void test_checksums(void)
{
    enum { MOST = CUDA_CHECKSUM_BLOCK + 9 };
    struct zr_kernel_context host;
    const struct zr_kernels *cpu = host_begin(&host);
    static unsigned char bytes[MOST];
    void *data = device(MOST);
    uint64_t *sum = device(sizeof *sum), got = 0;
    unsigned wrong = 0;
    for (size_t i = 0; i < MOST; i++)
        bytes[i] = (unsigned char)(i * 7 % 251 + 1);
    cu->copy(address_of(data), address_of(bytes), MOST, context.stream);
    for (size_t n = 0; n <= MOST; n += n == 17 ? CUDA_CHECKSUM_BLOCK - 17 - 8 : 1) {
        zr_result result = table->checksum(&context, &(struct zr_checksum){n, data, sum});
        cu->copy(address_of(&got), address_of(sum), sizeof got, context.stream);
        cu->stream_synchronize(context.stream);
        wrong += result != ZR_OK || got != checksum_of(cpu, &host, n, bytes);
    }
    host_end(&host);
    tap_is(wrong, 0, "checksums of data that end anywhere are the processor's");
}

/* Padding behind columns that are whole turns of a block of threads. */
static void test_padding(void)
{
    enum { COLUMNS = 2048, STRIDE = COLUMNS + 8 };
    float row[STRIDE], *logits = device(sizeof row), *loss = device(sizeof *loss);
    int32_t *target = device(sizeof *target);
    const struct zr_cross_entropy op = {.rows = 1,
                                        .columns = COLUMNS,
                                        .stride = STRIDE,
                                        .targets = target,
                                        .logits = logits,
                                        .losses = loss,
                                        .gradient = true,
                                        .scale = 1};
    unsigned wrong = 0;
    for (size_t i = 0; i < STRIDE; i++)
        row[i] = 1;
    cu->copy(address_of(logits), address_of(row), sizeof row, context.stream);
    cu->copy(address_of(target), address_of(&(int32_t){3}), sizeof *target, context.stream);
    zr_result result = table->cross_entropy(&context, &op);
    cu->copy(address_of(row), address_of(logits), sizeof row, context.stream);
    cu->stream_synchronize(context.stream);
    for (size_t i = COLUMNS; i < STRIDE; i++)
        wrong += row[i] != 0;
    tap_ok(result == ZR_OK && row[0] > 0 && wrong == 0, "gradients of padding behind whole turns are 0");
}

/* A sum of squares over several rounds of partial results: numbers so far apart that another order of adding
 * has other bits, beside the tree in plain words, and the processor's. */
static void test_rounds(void)
{
    enum { BLOCK = 4096, GROUP = 64 * BLOCK, COUNT = 4096 * BLOCK + 67 * BLOCK + 77 };
    size_t bytes = (size_t)COUNT * 2;
    uint16_t *numbers = malloc(bytes);
    double *sum = device(sizeof *sum), got = 0, want = 0, group = 0;
    void *x = device(bytes);
    for (size_t i = 0; i < COUNT; i++)
        numbers[i] = (uint16_t)(0x3f80 + i % 100 + i / 64 % 40 * 128); /* bf16 from 1 to 2^40 */
    for (size_t block = 0; block < COUNT; block += BLOCK) {
        double sums[32] = {0};
        for (size_t i = block; i < block + BLOCK && i < COUNT; i++) {
            double number = ldexp(1 + (double)(i % 100) / 128, (int)(i / 64 % 40));
            sums[(i - block) % 32] += number * number;
        }
        for (unsigned half = 16; half > 0; half /= 2)
            for (unsigned j = 0; j < half; j++)
                sums[j] += sums[j + half];
        group += sums[0];
        if ((block + BLOCK) % GROUP == 0 || block + BLOCK >= COUNT) {
            want += group;
            group = 0;
        }
    }
    cu->copy(address_of(x), address_of(numbers), bytes, context.stream);
    zr_result result =
        table->sum_of_squares(&context, &(struct zr_sum_of_squares){COUNT, {x, ZR_PRECISION_BF16}, sum});
    cu->copy(address_of(&got), address_of(sum), sizeof got, context.stream);
    cu->stream_synchronize(context.stream);
    tap_ok(result == ZR_OK && got == want && squares_on_host(COUNT, numbers) == want,
           "17,051,725 squares add up to the tree's bits (%.17g), as on the processor", got);
    all.mem_free(address_of(x));
    free(numbers);
}

static void test_refusals(void)
{
    struct zr_attention wide = {.batch = 1, .sequence = 4, .channels = 257, .heads = 1};
    tap_result(table->attention_forward(&context, &(struct zr_attention_forward){.shape = wide}),
               ZR_ERR_INVALID, "heads of more than 256 numbers");
    wide = (struct zr_attention){.sequence = 4, .channels = 256, .heads = 1};
    tap_result(table->attention_forward(&context, &(struct zr_attention_forward){.shape = wide}), ZR_OK,
               "of 256 they are possible");
    static const void *none[129];
    tap_result(table->sum(&context, &(struct zr_sum){.n = 0, .from = none, .count = 129}), ZR_ERR_INVALID,
               "sums of more sources than a launch takes");
    tap_result(table->sum(&context, &(struct zr_sum){.n = 0, .from = none, .count = 128}), ZR_OK,
               "of as many they are possible");
    tap_result(table->sum(NULL, &(struct zr_sum){.n = 1, .count = 1}), ZR_ERR_INVALID,
               "a sum without a context");
    tap_result(table->linear_forward(&context, &(struct zr_linear_forward){.shape = {(size_t)1 << 33, 1, 1}}),
               ZR_ERR_INVALID, "products larger than a grid");
    tap_result(table->add(&context, &(struct zr_add){0}), ZR_OK, "nothing to add is fine");
    struct zr_kernel_context small = context;
    small.workspace_bytes--;
    tap_result(table->open(&small), ZR_ERR_INVALID, "a workspace that is too small");
    small.workspace_bytes++;
    small.precision = ZR_PRECISION_COUNT;
    tap_result(table->open(&small), ZR_ERR_INVALID, "a precision that there is none");
}

/* The last one: the device's context does not survive it. */
static void test_wrong_memory(void)
{
    float *whole = device(NUMBERS * sizeof(float)), *short_one = device((NUMBERS - 1) * sizeof(float));
    zr_result queued =
        table->gelu_forward(&context, &(struct zr_gelu_forward){NUMBERS, whole, short_one, ZR_GELU_TANH});
    zr_cu_result code = cu->stream_synchronize(context.stream);
    tap_ok(queued == ZR_OK && code == ZR_CU_ILLEGAL_ADDRESS &&
               strstr(emulator->report(), "kernel gelu_forward_fp32, thread ("),
           "one number past the end: %s", emulator->report());
    tap_result(table->add(&context, &(struct zr_add){1, whole, whole, whole}), ZR_ERR_UNAVAILABLE,
               "and the next operation says so");
}

/* ---- Sums of columns ----------------------------------------------------------------------------------- */

enum { COLUMN_ROWS_MAX = 4 * CUDA_COLUMN_ROWS, COLUMNS_MAX = 150, ROOM = COLUMN_ROWS_MAX * COLUMNS_MAX + 1 };
static float column_x[ROOM], column_dy[ROOM];

static bool sums_right(const float *device_sums, const double *want, size_t n)
{
    float got[COLUMNS_MAX];
    cu->copy(address_of(got), address_of(device_sums), n * sizeof *got, context.stream);
    cu->stream_synchronize(context.stream);
    for (size_t c = 0; c < n; c++)
        if ((double)got[c] != want[c])
            return false;
    return true;
}

/* Small whole numbers and halves, whose sums are exact in any order: of one part and of several, on 16 bytes
 * and between, onto what is there. */
static void test_columns(void)
{
    static const struct {
        size_t rows, columns, skipped;
    } shapes[] = {{0, 5, 0},
                  {1, 33, 0},
                  {CUDA_COLUMN_ROWS, 40, 0},
                  {CUDA_COLUMN_ROWS + 1, 132, 0},
                  {COLUMN_ROWS_MAX - 5, COLUMNS_MAX, 0},
                  {3 * CUDA_COLUMN_ROWS, 36, 1}};
    float *x = device(sizeof column_x), *dy = device(sizeof column_dy),
          *w = device(COLUMNS_MAX * sizeof(float)), *dx = device(sizeof column_x),
          *dw = device(COLUMNS_MAX * sizeof(float)), *db = device(COLUMNS_MAX * sizeof(float)),
          *mean = device(COLUMN_ROWS_MAX * sizeof(float)), *rstd = device(COLUMN_ROWS_MAX * sizeof(float)),
          half[2][COLUMN_ROWS_MAX];
    for (size_t i = 0; i < ROOM; i++)
        column_x[i] = (float)(i * 7 % 13) - 6, column_dy[i] = (float)(i * 5 % 11) - 5;
    for (size_t i = 0; i < COLUMN_ROWS_MAX; i++)
        half[0][i] = (float)(i % 3), half[1][i] = 0.5f * (float)(i % 2 + 1);
    cu->copy(address_of(x), address_of(column_x), sizeof column_x, context.stream);
    cu->copy(address_of(dy), address_of(column_dy), sizeof column_dy, context.stream);
    cu->copy(address_of(mean), address_of(half[0]), sizeof half[0], context.stream);
    cu->copy(address_of(rstd), address_of(half[1]), sizeof half[1], context.stream);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const size_t rows = shapes[i].rows, n = shapes[i].columns, skipped = shapes[i].skipped;
        double normal[COLUMNS_MAX] = {0}, root[COLUMNS_MAX] = {0}, plain[COLUMNS_MAX] = {0};
        for (size_t at = 0; at < rows * n; at++) {
            double v = (double)column_x[skipped + at], g = (double)column_dy[skipped + at],
                   r = (double)half[1][at / n];
            normal[at % n] += g * (v - (double)half[0][at / n]) * r;
            root[at % n] += g * v * r;
            plain[at % n] += g;
        }
        struct zr_layernorm_backward layer = {
            .shape = {rows, n}, x + skipped, w, mean, rstd, dy + skipped, dx, dw, db};
        struct zr_rmsnorm_backward rms = {rows, n,  x + skipped, w,     dy + skipped, rstd,
                                          dx,   dw, false,       false, {0},          0};
        struct zr_linear_backward linear = {
            .shape = {.rows = rows, .in = 1, .out = n}, .dy = dy + skipped, .db = db};
        bool right = table->layernorm_backward(&context, &layer) == ZR_OK && sums_right(dw, normal, n) &&
                     sums_right(db, plain, n);
        right = right && table->rmsnorm_backward(&context, &rms) == ZR_OK && sums_right(dw, root, n);
        right = right && table->linear_backward(&context, &linear) == ZR_OK && sums_right(db, plain, n);
        for (size_t c = 0; c < n; c++)
            plain[c] *= 2, normal[c] += root[c];
        layer.accumulate = linear.accumulate = true;
        right = right && table->linear_backward(&context, &linear) == ZR_OK && sums_right(db, plain, n);
        right = right && table->layernorm_backward(&context, &layer) == ZR_OK && sums_right(dw, normal, n);
        tap_ok(right, "sums of %zu columns over %zu rows%s", n, rows,
               skipped ? ", between lines of 16 bytes" : "");
    }
}

int main(void)
{
    if (begin()) {
        test_stream();
        test_columns();
        test_rounds();
        test_checksums();
        test_padding();
        test_weight();
        test_refusals();
        test_wrong_memory();
        table->close(&context);
    }
    return tap_done();
}
