/* multiply.cu: the products of the emulated cuBLASLt (cublaslt_emulator.h): a thread has a result, or its
 * part of the sum. */
#include "kernels/cuda/element.h"
#include "kernels/fp8.h"
#include "tests/emulators/cublaslt/cublaslt_emulator.h"

DEVICE float operand_get(const struct zr_numbers *numbers, unsigned kind, size_t i)
{
    return kind ? zr_fp8_value(((const uint8_t *)numbers->at)[i], (enum zr_fp8)kind) : number_get(numbers, i);
}

DEVICE void finish(const struct lt_product *p, size_t i, float sum)
{
    size_t row = i % p->m, at = i / p->m * p->c_leading + row;
    sum *= p->alpha;
    if (p->a_scale)
        sum *= *p->a_scale;
    if (p->b_scale)
        sum *= *p->b_scale;
    if (p->beta != 0)
        sum += p->beta * number_get(&p->c, at);
    if (p->bias.at)
        sum += number_get(&p->bias, row);
    if (p->aux.at) {
        size_t kept = i / p->m * p->aux_leading + row;
        if (!p->backward)
            number_put(&p->aux, kept, sum);
        sum *= p->backward ? formula_gelu_slope(number_get(&p->aux, kept)) : formula_gelu_gate(sum);
    }
    number_put(&p->d, at, sum);
}

KERNEL(lt_multiply, struct lt_product, LT_THREADS)
{
    size_t results = (size_t)a.m * a.n;
    EACH(i, results * a.parts)
    {
        size_t row = i % results % a.m, column = i % results / a.m, part = i / results;
        float sum = 0;
        for (size_t k = a.k * part / a.parts; k < a.k * (part + 1) / a.parts; k++)
            sum = fmaf(
                operand_get(&a.a, a.a_kind, a.a_turned ? row * a.a_leading + k : k * a.a_leading + row),
                operand_get(&a.b, a.b_kind, a.b_turned ? k * a.b_leading + column : column * a.b_leading + k),
                sum);
        if (a.parts > 1)
            a.partial[i] = sum;
        else
            finish(&a, i, sum);
    }
}

KERNEL(lt_together, struct lt_product, LT_THREADS)
{
    size_t results = (size_t)a.m * a.n;
    EACH(i, results)
    {
        float sum = 0;
        for (unsigned part = 0; part < a.parts; part++)
            sum += a.partial[part * results + i];
        finish(&a, i, sum);
    }
}
