/* parameters.c: the number of elements of a parameter. */
#include "zero/zr_zero.h"

uint64_t zr_parameter_elements(const struct zr_parameter *parameter)
{
    uint64_t elements;
    if (!parameter)
        return 0;
    if (parameter->shape[1] == 0)
        return parameter->shape[0];
    if (__builtin_mul_overflow((uint64_t)parameter->shape[0], (uint64_t)parameter->shape[1], &elements))
        return 0;
    return elements;
}

uint64_t zr_parameter_list_elements(const struct zr_parameter_list *list)
{
    uint64_t total = 0;
    for (size_t i = 0; list && i < list->parameters_count; i++) {
        uint64_t elements = zr_parameter_elements(&list->parameters[i]);
        if (elements == 0 || __builtin_add_overflow(total, elements, &total))
            return 0;
    }
    return total;
}
