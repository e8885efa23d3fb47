/* head.c: the tied head: logits, softmax and cross-entropy in one, a chunk of rows at a time.
 *
 * The logits of a chunk live in the workspace as floats (at most 64 MiB, or one row) and are replaced by
 * their gradient in place; at two bytes that fills the first half of each row. Chunks are of equal size as
 * near as can be and follow one another in the gradient of wte. */
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>

struct softmax_job {
    const struct zr_loops *loops;
    const struct zr_head *shape;
    float *logits, *losses;
    size_t first_row, rows;
    float scale;
    bool gradient;
    atomic_size_t next;
};

static void softmax_part(void *argument, unsigned part, unsigned parts)
{
    struct softmax_job *job = argument;
    const struct zr_head *shape = job->shape;
    (void)part;
    (void)parts;
    for (size_t r; (r = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->rows;) {
        float *logits = job->logits + r * shape->vocabulary_padded;
        struct zr_softmax_row row = {.logits = logits,
                                     .gradient = job->gradient ? logits : NULL,
                                     .vocabulary = shape->vocabulary,
                                     .padded = shape->vocabulary_padded,
                                     .target = (size_t)shape->targets[job->first_row + r],
                                     .scale = job->scale};
        job->losses[job->first_row + r] = job->loops->softmax_row(&row);
    }
}

static const void *row_of(const struct zr_kernel_context *context, const void *tensor, size_t row,
                          size_t columns)
{
    return (const char *)tensor + row * columns * zr_precision_bytes(context->precision);
}

/* The chunk's rows of dx, and its share of dwte; the logits hold their gradient now. */
static void head_backward(struct zr_kernel_context *context, const struct softmax_job *chunk, const void *x,
                          const void *wte, void *dx, void *dwte, bool accumulate)
{
    const struct zr_head *shape = chunk->shape;
    size_t line = shape->vocabulary_padded * sizeof(float) / zr_precision_bytes(context->precision);
    zr_cpu_multiply(
        context, &(struct zr_matrices){.m = chunk->rows,
                                       .n = shape->channels,
                                       .k = shape->vocabulary_padded,
                                       .a = chunk->logits,
                                       .a_stride = line,
                                       .b = wte,
                                       .c = (void *)row_of(context, dx, chunk->first_row, shape->channels)});
    zr_cpu_multiply(context, &(struct zr_matrices){.m = shape->vocabulary_padded,
                                                   .n = shape->channels,
                                                   .k = chunk->rows,
                                                   .a_turned = true,
                                                   .accumulate = accumulate,
                                                   .a = chunk->logits,
                                                   .a_stride = line,
                                                   .b = row_of(context, x, chunk->first_row, shape->channels),
                                                   .c = dwte});
}

void zr_cpu_head_loss(struct zr_kernel_context *context, const struct zr_head *shape, const void *x,
                      const void *wte, float *losses, float scale, void *dx, void *dwte, bool accumulate)
{
    size_t row_bytes = shape->vocabulary_padded * sizeof(float), most = ZR_LOGITS_BYTES / row_bytes;
    size_t chunk_rows = most == 0 ? 1 : most, chunks = (shape->rows + chunk_rows - 1) / chunk_rows;
    size_t each = chunks == 0 ? 0 : (shape->rows + chunks - 1) / chunks;
    struct softmax_job job = {.loops = zr_loops_of(context->isa, context->precision),
                              .shape = shape,
                              .logits = zr_context_scratch(context, each * row_bytes),
                              .losses = losses,
                              .scale = scale,
                              .gradient = dx != NULL};
    for (size_t first = 0; first < shape->rows; first += each) {
        job.first_row = first;
        job.rows = shape->rows - first < each ? shape->rows - first : each;
        zr_cpu_multiply(context, &(struct zr_matrices){.m = job.rows,
                                                       .n = shape->vocabulary_padded,
                                                       .k = shape->channels,
                                                       .b_turned = true,
                                                       .floats = true,
                                                       .a = row_of(context, x, first, shape->channels),
                                                       .b = wte,
                                                       .c = job.logits});
        atomic_init(&job.next, 0);
        zr_parallel_run(context, softmax_part, &job);
        if (dx != NULL)
            head_backward(context, &job, x, wte, dx, dwte, accumulate || first > 0);
    }
}

struct logits_job {
    const struct zr_loops *loops;
    const struct zr_head *shape;
    const void *x, *wte;
    float *logits;
};

static void logits_part(void *argument, unsigned part, unsigned parts)
{
    const struct logits_job *job = argument;
    size_t from, to, channels = job->shape->channels;
    zr_part_range(job->shape->vocabulary, 64, part, parts, &from, &to);
    for (size_t v = from; v < to; v++)
        job->logits[v] = job->loops->dot(channels, job->x,
                                         (const char *)job->wte + v * channels * job->loops->element_bytes);
}

void zr_cpu_head_logits(struct zr_kernel_context *context, const struct zr_head *shape, const void *x_row,
                        const void *wte, float *logits)
{
    zr_parallel_run(
        context, logits_part,
        &(struct logits_job){zr_loops_of(context->isa, context->precision), shape, x_row, wte, logits});
}
