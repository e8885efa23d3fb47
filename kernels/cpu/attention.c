/* attention.c: causal attention on the context's threads. A task is one head of one sequence; threads take
 * tasks from a counter. loops_attention.h has the inner loops. */
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>

struct attention_job {
    const struct zr_loops *loops;
    const struct zr_attention_forward *forward; /* NULL: backward */
    const struct zr_attention_backward *backward;
    float *scratch;
    size_t scratch_floats, units;
    atomic_size_t next;
};

static void attention_part(void *argument, unsigned part, unsigned parts)
{
    struct attention_job *job = argument;
    float *scratch = job->scratch + part * job->scratch_floats;
    (void)parts;
    for (size_t unit; (unit = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->units;) {
        if (job->forward)
            job->loops->attention_forward(job->forward, unit, scratch);
        else
            job->loops->attention_backward(job->backward, unit, scratch);
    }
}

static zr_result attention_run(struct zr_kernel_context *context, const struct zr_attention *shape,
                               struct attention_job *job)
{
    job->loops = zr_loops_of[context->isa][context->precision];
    job->scratch_floats = zr_attention_scratch_floats(shape->sequence, shape->channels / shape->heads);
    zr_result result = zr_context_scratch(
        context, zr_context_threads(context) * job->scratch_floats * sizeof(float), (void **)&job->scratch);
    if (result != ZR_OK)
        return result;
    job->units = shape->batch * (job->backward && shape->kv_heads ? shape->kv_heads : shape->heads);
    atomic_init(&job->next, 0);
    return zr_parallel_run(context, attention_part, job);
}

zr_result zr_cpu_attention_forward(struct zr_kernel_context *context, const struct zr_attention_forward *args)
{
    return attention_run(context, &args->shape, &(struct attention_job){.forward = args});
}

zr_result zr_cpu_attention_backward(struct zr_kernel_context *context,
                                    const struct zr_attention_backward *args)
{
    return attention_run(context, &args->shape, &(struct attention_job){.backward = args});
}
