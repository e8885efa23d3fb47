/* llama.c: the operations of LLaMA that GPT-2 has not: root mean square norm, rotary position embedding,
 * SwiGLU. Each cuts its work over the lent threads. The mathematics is loops_llama.h's. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/real.h"

static const struct zr_loops *loops_of(const struct zr_kernel_context *context)
{
    return zr_loops_of(context->isa, context->precision);
}

/* ---- Root mean square norm ----------------------------------------------------------------------------- */

struct rmsnorm_job {
    const struct zr_loops *loops;
    struct zr_rmsnorm_work work;
};

static void rmsnorm_forward_part(void *argument, unsigned part, unsigned parts)
{
    const struct rmsnorm_job *job = argument;
    size_t from, to;
    zr_part_range(job->work.rows, 1, part, parts, &from, &to);
    job->loops->rmsnorm_forward(&job->work, from, to);
}

void zr_cpu_rmsnorm_forward(struct zr_kernel_context *context, const struct zr_rmsnorm *args)
{
    zr_parallel_run(context, rmsnorm_forward_part,
                    &(struct rmsnorm_job){loops_of(context),
                                          {.rows = args->rows,
                                           .channels = args->channels,
                                           .epsilon = args->epsilon,
                                           .x = args->x,
                                           .w = args->w,
                                           .y = args->y,
                                           .rstd = args->rstd}});
}

static void rmsnorm_backward_part(void *argument, unsigned part, unsigned parts)
{
    const struct rmsnorm_job *job = argument;
    size_t from, to;
    zr_part_range(job->work.channels, ZR_LINE_ELEMENTS, part, parts, &from, &to);
    job->loops->rmsnorm_backward_columns(&job->work, from, to);
    zr_part_range(job->work.rows, 1, part, parts, &from, &to);
    job->loops->rmsnorm_backward_rows(&job->work, from, to);
}

void zr_cpu_rmsnorm_backward(struct zr_kernel_context *context, const struct zr_rmsnorm_backward *args)
{
    zr_parallel_run(context, rmsnorm_backward_part,
                    &(struct rmsnorm_job){loops_of(context),
                                          {.rows = args->rows,
                                           .channels = args->channels,
                                           .x = args->x,
                                           .w = args->w,
                                           .dy = args->dy,
                                           .rstd = (float *)args->rstd,
                                           .dx = args->dx,
                                           .dw = args->dw,
                                           .accumulate_dx = args->accumulate_dx,
                                           .accumulate = args->accumulate}});
}

/* ---- Rotary position embedding ------------------------------------------------------------------------- */

static void rotary_table_part(void *argument, unsigned part, unsigned parts)
{
    const struct zr_rotary_table *table = argument;
    size_t from, to, half = table->width / 2;
    zr_part_range(half, 1, part, parts, &from, &to);
    for (size_t i = from; i < to; i++) {
        double frequency = zr_real_exp(-2.0 * (double)i / (double)table->width * zr_real_log(table->theta));
        for (size_t t = 0; t < table->sequence; t++) {
            double sine, cosine;
            zr_real_sine_cosine((double)t * frequency, &sine, &cosine);
            table->cosines[t * half + i] = (float)cosine;
            table->sines[t * half + i] = (float)sine;
        }
    }
}

void zr_cpu_rotary_table(struct zr_kernel_context *context, const struct zr_rotary_table *args)
{
    zr_parallel_run(context, rotary_table_part, (void *)args);
}

struct rotary_job {
    const struct zr_loops *loops;
    const struct zr_rotary *args;
};

static void rotary_part(void *argument, unsigned part, unsigned parts)
{
    const struct rotary_job *job = argument;
    size_t from, to;
    zr_part_range(job->args->rows, 1, part, parts, &from, &to);
    job->loops->rotary(job->args, from, to);
}

void zr_cpu_rotary(struct zr_kernel_context *context, const struct zr_rotary *args)
{
    zr_parallel_run(context, rotary_part, &(struct rotary_job){loops_of(context), args});
}

/* ---- SwiGLU -------------------------------------------------------------------------------------------- */

struct swiglu_job {
    const struct zr_loops *loops;
    const struct zr_swiglu *forward; /* NULL: backward */
    const struct zr_swiglu_backward *backward;
};

static void swiglu_part(void *argument, unsigned part, unsigned parts)
{
    const struct swiglu_job *job = argument;
    size_t from, to;
    zr_part_range(job->forward ? job->forward->n : job->backward->n, ZR_GRAIN, part, parts, &from, &to);
    if (job->forward)
        job->loops->swiglu_forward(job->forward, from, to);
    else
        job->loops->swiglu_backward(job->backward, from, to);
}

void zr_cpu_swiglu_forward(struct zr_kernel_context *context, const struct zr_swiglu *args)
{
    zr_parallel_run(context, swiglu_part, &(struct swiglu_job){loops_of(context), args, NULL});
}

void zr_cpu_swiglu_backward(struct zr_kernel_context *context, const struct zr_swiglu_backward *args)
{
    zr_parallel_run(context, swiglu_part, &(struct swiglu_job){loops_of(context), NULL, args});
}
