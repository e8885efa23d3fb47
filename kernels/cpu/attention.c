/* attention.c: causal attention over the lent threads. A head of one sequence is one piece of work; threads
 * take the next from a counter. The mathematics is loops_attention.h's. */
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>

struct attention_job {
    const struct zr_loops *loops;
    struct zr_attention_work work;
    float *scratch;
    size_t scratch_floats, units;
    bool backward;
    atomic_size_t next;
};

static void attention_part(void *argument, unsigned part, unsigned parts)
{
    struct attention_job *job = argument;
    float *scratch = job->scratch + part * job->scratch_floats;
    (void)parts;
    for (size_t unit; (unit = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->units;) {
        if (job->backward)
            job->loops->attention_backward(&job->work, unit, scratch);
        else
            job->loops->attention_forward(&job->work, unit, scratch);
    }
}

static void attention_run(struct zr_kernel_context *context, struct attention_job *job)
{
    const struct zr_attention *shape = &job->work.shape;
    job->loops = zr_loops_of(context->isa, context->precision);
    unsigned threads = context->parallel.threads == 0 ? 1 : context->parallel.threads;
    job->scratch_floats = zr_attention_scratch_floats(shape->sequence, shape->channels / shape->heads);
    job->scratch = zr_context_scratch(context, threads * job->scratch_floats * sizeof(float));
    job->units = shape->batch * (job->backward && shape->kv_heads ? shape->kv_heads : shape->heads);
    atomic_init(&job->next, 0);
    zr_parallel_run(context, attention_part, job);
}

void zr_cpu_attention_forward(struct zr_kernel_context *context, const struct zr_attention *shape,
                              const void *qkv, void *out, float *lse, void *p)
{
    struct attention_job job = {.work = {.shape = *shape, .qkv = qkv, .out = out, .lse = lse, .p = p}};
    attention_run(context, &job);
}

void zr_cpu_attention_backward(struct zr_kernel_context *context, const struct zr_attention *shape,
                               const void *qkv, const void *out, const float *lse, const void *p,
                               const void *dout, void *dqkv)
{
    struct attention_job job = {.work = {.shape = *shape,
                                         .qkv = qkv,
                                         .dout = dout,
                                         .kept = p,
                                         .out = (void *)out,
                                         .lse = (float *)lse,
                                         .dqkv = dqkv},
                                .backward = true};
    attention_run(context, &job);
}
