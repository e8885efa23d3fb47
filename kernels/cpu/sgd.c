/* sgd.c: SGD with momentum. Memory decides its speed, so one loop over the compiler's own vectors serves all
 * instruction sets. */
#include "kernels/zr_sgd.h"

#include <string.h>

#include "kernels/cpu/context.h"

enum { LANES = 8, SGD_GRAIN = 64 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

struct sgd_job {
    const struct zr_sgd *how;
    size_t n;
    float *parameter, *momentum;
    const float *g;
};

static void update(const struct zr_sgd *how, size_t n, float *restrict parameter, const float *restrict g,
                   float *restrict momentum)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes p, m, gradient;
        memcpy(&p, parameter + i, sizeof p);
        memcpy(&m, momentum + i, sizeof m);
        memcpy(&gradient, g + i, sizeof gradient);
        m = how->momentum_factor * m + gradient * how->gradient_scale + how->weight_decay * p;
        p = p - how->rate * m;
        memcpy(parameter + i, &p, sizeof p);
        memcpy(momentum + i, &m, sizeof m);
    }
    for (; i < n; i++) {
        momentum[i] = how->momentum_factor * momentum[i] + g[i] * how->gradient_scale +
                      how->weight_decay * parameter[i];
        parameter[i] = parameter[i] - how->rate * momentum[i];
    }
}

static void sgd_part(void *argument, unsigned part, unsigned parts)
{
    const struct sgd_job *job = argument;
    size_t from, to;
    zr_part_range(job->n, SGD_GRAIN, part, parts, &from, &to);
    update(job->how, to - from, job->parameter + from, job->g + from, job->momentum + from);
}

void zr_kernel_sgd(struct zr_kernel_context *context, const struct zr_sgd *how, size_t n, float *parameter,
                   const float *g, float *momentum)
{
    zr_parallel_run(context, sgd_part, &(struct sgd_job){how, n, parameter, momentum, g});
}
