/* product.c: products of two-byte matrices, divided into blocks over the context's threads.
 *
 * A task is a block of the result (at most ROWS_MAX x COLUMNS_MAX). For each block of depth, the operands
 * are packed into panels that fit the L2 cache, multiplied and summed in floats; the result is rounded once.
 * Each element is the sum, in order, of the sums over blocks of depth, which depend on k only, so neither the
 * blocks nor the number of threads change a bit. Threads take tasks from a counter.
 *
 * Packing widens elements to floats (once per 64 to 384 multiplications), or pairs neighbours on processors
 * with two-byte arithmetic. */
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/panels.h"

#include <stdatomic.h>

enum { ROWS_MAX = 288, COLUMNS_MAX = 384, BLOCKS_PER_THREAD = 2, COLUMNS_MIN = 64 };

struct job {
    const struct zr_product *product;
    const struct zr_panels *panels;
    char *scratch;                    /* scratch of thread 0 */
    size_t rows, columns;             /* size of a block */
    size_t block_rows, block_columns; /* number of blocks */
    size_t units, depths;             /* units per block of depth, number of blocks of depth */
    atomic_size_t next;
};

/* A thread's memory: sums, left panels, right panels. */
enum {
    SUM_FLOATS = ROWS_MAX * COLUMNS_MAX,
    LEFT_FLOATS = ROWS_MAX * PANEL_LINE,
    RIGHT_FLOATS = PANEL_UNITS_MAX * COLUMNS_MAX
};

_Static_assert((SUM_FLOATS + LEFT_FLOATS + RIGHT_FLOATS) * sizeof(float) <= ZR_THREAD_SCRATCH_BYTES,
               "a thread's share of the workspace holds its block and panels");

static size_t over(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

/* The part of an operand for a block at depth [k, k + depth). */
static struct zr_panel_source source_of(const struct job *job, bool left, size_t lane, size_t lanes, size_t k)
{
    const struct zr_product *p = job->product;
    size_t step = job->units * job->panels->unit_depth, depth = p->k - k < step ? p->k - k : step;
    struct zr_panel_source source = {
        .lanes = lanes,
        .depth = depth,
        .units = zr_round_up(over(depth, job->panels->unit_depth), job->panels->grain),
        .precision = p->precision};
    if (left) {
        size_t stride = p->a_stride != 0 ? p->a_stride : p->a_turned ? p->m : p->k;
        source.lane_stride = p->a_turned ? 1 : stride;
        source.depth_stride = p->a_turned ? stride : 1;
        source.at = p->a;
    } else {
        size_t stride = p->b_stride != 0 ? p->b_stride : p->b_turned ? p->k : p->n;
        source.lane_stride = p->b_turned ? stride : 1;
        source.depth_stride = p->b_turned ? 1 : stride;
        source.at = p->b;
    }
    source.at += lane * source.lane_stride + k * source.depth_stride;
    return source;
}

struct block {
    size_t row, rows, column, columns;
    float *sums, *left, *right;
    size_t line; /* of sums */
};

static void multiply_depth(const struct job *job, const struct block *b, size_t k)
{
    const struct zr_panels *panels = job->panels;
    struct zr_panel_source left = source_of(job, true, b->row, b->rows, k),
                           right = source_of(job, false, b->column, b->columns, k);
    bool by_lane = panels->always_by_lane || left.depth_stride == 1;
    size_t left_panel = panels->rows * (by_lane ? PANEL_LINE : left.units),
           right_panel = panels->columns * right.units;
    panels->pack_left(&left, b->left);
    panels->pack_right(&right, b->right);
    for (size_t j = 0; j * panels->columns < b->columns; j++)
        for (size_t i = 0; i * panels->rows < b->rows; i++)
            panels->multiply(
                &(struct zr_panel_product){.left = b->left + i * left_panel,
                                           .right = b->right + j * right_panel,
                                           .units = left.units,
                                           .by_lane = by_lane,
                                           .c = b->sums + i * panels->rows * b->line + j * panels->columns,
                                           .c_stride = b->line,
                                           .accumulate = k > 0});
}

static void store_block(const struct job *job, const struct block *b)
{
    const struct zr_product *p = job->product;
    size_t c_stride = p->c_stride != 0 ? p->c_stride : p->n;
    struct zr_panel_store store = {.c = b->sums,
                                   .c_stride = b->line,
                                   .rows = b->rows,
                                   .columns = b->columns,
                                   .precision = p->precision,
                                   .bias = p->bias != NULL ? p->bias + b->column : NULL,
                                   .out = p->c,
                                   .out_stride = c_stride,
                                   .accumulate = p->accumulate};
    store.out.at = (char *)p->c.at + (b->row * c_stride + b->column) * zr_precision_bytes(p->c.precision);
    job->panels->store(&store);
}

static void product_part(void *argument, unsigned part, unsigned parts)
{
    struct job *job = argument;
    const struct zr_product *p = job->product;
    size_t blocks = job->block_rows * job->block_columns;
    struct block b = {.sums = (float *)(job->scratch + part * ZR_THREAD_SCRATCH_BYTES)};
    (void)parts;
    b.left = b.sums + SUM_FLOATS;
    b.right = b.left + LEFT_FLOATS;
    job->panels->begin();
    for (size_t i; (i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < blocks;) {
        b.row = i % job->block_rows * job->rows;
        b.column = i / job->block_rows * job->columns;
        b.rows = p->m - b.row < job->rows ? p->m - b.row : job->rows;
        b.columns = p->n - b.column < job->columns ? p->n - b.column : job->columns;
        b.line = zr_round_up(b.columns, job->panels->columns);
        for (size_t d = 0; d < job->depths; d++)
            multiply_depth(job, &b, d * job->units * job->panels->unit_depth);
        store_block(job, &b);
    }
    job->panels->end();
}

/* Chooses blocks of nearly equal size: enough for all threads, and wide enough to amortize packing. */
static void cut(struct job *job, unsigned threads)
{
    const struct zr_product *p = job->product;
    const struct zr_panels *panels = job->panels;
    size_t units = over(p->k, panels->unit_depth), rows_max = ROWS_MAX / panels->rows * panels->rows;
    job->depths = units == 0 ? 1 : over(units, PANEL_UNITS_MAX);
    job->units = zr_round_up(over(units, job->depths), 16);
    job->block_rows = over(p->m, rows_max);
    job->rows = zr_round_up(over(p->m, job->block_rows), panels->rows);
    job->block_rows = over(p->m, job->rows);
    size_t wanted = over((size_t)threads * BLOCKS_PER_THREAD, job->block_rows);
    size_t columns = zr_round_up(over(p->n, wanted), panels->columns);
    job->columns = columns < COLUMNS_MIN ? COLUMNS_MIN : columns > COLUMNS_MAX ? COLUMNS_MAX : columns;
    job->block_columns = over(p->n, job->columns);
}

zr_result zr_product_by(struct zr_kernel_context *context, const struct zr_product *product,
                        const struct zr_panels *panels)
{
    struct job job = {.product = product, .panels = panels};
    if (product->m == 0 || product->n == 0)
        return ZR_OK;
    job.scratch = zr_gemm_scratch(context);
    cut(&job, zr_context_threads(context));
    atomic_init(&job.next, 0);
    return zr_parallel_run(context, product_part, &job);
}

zr_result zr_product(struct zr_kernel_context *context, const struct zr_product *product)
{
    return zr_product_by(context, product, zr_panels_of(context->isa, product->precision));
}
