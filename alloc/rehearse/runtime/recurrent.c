/* recurrent.c: cuDNN's tensor descriptors, and where the weights of its recurrent networks lie: PyTorch makes
 * a network's parameters views of one buffer. See runtime.h.
 *
 * Source: NVIDIA's cuDNN documentation (cudnnSetRNNDescriptor_v8, cudnnGetRNNWeightParams). The order of the
 * weights is free: here each layer's matrices by their number, and behind those of all layers the biases. */
#include <stdlib.h>
#include <string.h>

#include "alloc/rehearse/runtime/runtime.h"

#define ANSWER __attribute__((visibility("default")))

/* cudnnStatus_t */
enum { DONE = 0, NO_MEMORY = 1002, WRONG = 2000 };

/* ---- Tensors ------------------------------------------------------------------------------------------- */

enum { DIMENSIONS_MAX = 8 };
struct tensor {
    int type, count, sizes[DIMENSIONS_MAX], strides[DIMENSIONS_MAX];
};

ANSWER int cudnnCreateTensorDescriptor(struct tensor **out);
int cudnnCreateTensorDescriptor(struct tensor **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? DONE : NO_MEMORY;
}

ANSWER int cudnnDestroyTensorDescriptor(struct tensor *tensor);
int cudnnDestroyTensorDescriptor(struct tensor *tensor)
{
    free(tensor);
    return DONE;
}

ANSWER int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int count, const int *sizes,
                                      const int *strides);
int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int count, const int *sizes,
                               const int *strides)
{
    if (count < 1 || count > DIMENSIONS_MAX)
        return WRONG;
    *tensor = (struct tensor){.type = type, .count = count};
    memcpy(tensor->sizes, sizes, (size_t)count * sizeof *sizes);
    memcpy(tensor->strides, strides, (size_t)count * sizeof *strides);
    return DONE;
}

ANSWER int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int most, int *type, int *count,
                                      int *sizes, int *strides);
int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int most, int *type, int *count, int *sizes,
                               int *strides)
{
    const size_t copied = (size_t)(most < tensor->count ? most : tensor->count);
    *type = tensor->type;
    *count = tensor->count;
    memcpy(sizes, tensor->sizes, copied * sizeof *sizes);
    memcpy(strides, tensor->strides, copied * sizeof *strides);
    return DONE;
}

/* ---- Recurrent networks -------------------------------------------------------------------------------- */

struct network {
    int cell, bias, two_ways, type, input, hidden, projection, layers;
};

ANSWER int cudnnCreateRNNDescriptor(struct network **out);
int cudnnCreateRNNDescriptor(struct network **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? DONE : NO_MEMORY;
}

ANSWER int cudnnDestroyRNNDescriptor(struct network *network);
int cudnnDestroyRNNDescriptor(struct network *network)
{
    free(network);
    return DONE;
}

ANSWER int cudnnSetRNNDescriptor_v8(struct network *network, int algorithm, int cell, int bias, int direction,
                                    int input_mode, int type, int precision, int math, int input, int hidden,
                                    int projection, int layers, const void *dropout, unsigned flags);
int cudnnSetRNNDescriptor_v8(struct network *network, int algorithm, int cell, int bias, int direction,
                             int input_mode, int type, int precision, int math, int input, int hidden,
                             int projection, int layers, const void *dropout, unsigned flags)
{
    (void)algorithm, (void)input_mode, (void)precision, (void)math, (void)dropout, (void)flags;
    *network = (struct network){cell, bias, direction == 1, type, input, hidden, projection, layers};
    return DONE;
}

/* Of a plain cell, an LSTM, a GRU. */
static int gates_of(const struct network *network)
{
    return network->cell < 2 ? 1 : network->cell == 2 ? 4 : 3;
}

static int projected(const struct network *network)
{
    return network->projection > 0 && network->projection < network->hidden;
}

struct shape {
    int rows, columns;
};

/* The matrix of a layer and direction: those for the input, those for the state before, the projection. */
static struct shape shape_of(const struct network *network, int layer, int number)
{
    const int ways = network->two_ways + 1, gates = gates_of(network);
    const int state = projected(network) ? network->projection : network->hidden;
    if (number < gates)
        return (struct shape){network->hidden, layer < ways ? network->input : state * ways};
    if (number < 2 * gates)
        return (struct shape){network->hidden, state};
    return projected(network) ? (struct shape){network->projection, network->hidden} : (struct shape){0, 0};
}

/* CUDNN_RNN_NO_BIAS 0, SINGLE_INP_BIAS 1, DOUBLE_BIAS 2, SINGLE_REC_BIAS 3. */
static bool has_bias(const struct network *network, int number)
{
    const int gates = gates_of(network);
    return number < gates ? network->bias == 1 || network->bias == 2
                          : number < 2 * gates && network->bias >= 2;
}

/* Elements before the matrix, or the bias, of that number in that layer; of them all with `layer` behind the
 * last. */
static size_t elements_before(const struct network *network, int layer, int number, bool biases)
{
    size_t sum = 0;
    for (int each = 0; each <= layer && each < network->layers * (network->two_ways + 1); each++)
        for (int of = 0; of <= 2 * gates_of(network) && (each < layer || of < number); of++) {
            const struct shape shape = shape_of(network, each, of);
            sum += !biases                 ? (size_t)shape.rows * (size_t)shape.columns
                   : has_bias(network, of) ? (size_t)network->hidden
                                           : 0;
        }
    return sum;
}

static size_t element_bytes(const struct network *network)
{
    return network->type == 0 ? 4 : network->type == 1 ? 8 : 2; /* CUDNN_DATA_FLOAT, DOUBLE, HALF, BFLOAT16 */
}

ANSWER int cudnnGetRNNWeightSpaceSize(const void *handle, const struct network *network, size_t *out);
int cudnnGetRNNWeightSpaceSize(const void *handle, const struct network *network, size_t *out)
{
    const int end = network->layers * (network->two_ways + 1);
    (void)handle;
    *out = element_bytes(network) *
           (elements_before(network, end, 0, false) + elements_before(network, end, 0, true));
    return DONE;
}

/* `layer` counts both directions. An address is NULL if there is no such matrix or bias. The
 * outputs of either may be missing. */
ANSWER int cudnnGetRNNWeightParams(const void *handle, const struct network *network, int layer, size_t bytes,
                                   char *weights, int number, struct tensor *matrix, void **matrix_at,
                                   struct tensor *bias, void **bias_at);
int cudnnGetRNNWeightParams(const void *handle, const struct network *network, int layer, size_t bytes,
                            char *weights, int number, struct tensor *matrix, void **matrix_at,
                            struct tensor *bias, void **bias_at)
{
    const struct shape shape = shape_of(network, layer, number);
    const size_t element = element_bytes(network);
    const size_t matrices = elements_before(network, network->layers * (network->two_ways + 1), 0, false);
    const size_t matrix_place = element * elements_before(network, layer, number, false);
    const size_t bias_place = element * (matrices + elements_before(network, layer, number, true));
    (void)handle, (void)bytes;
    if (matrix)
        *matrix = (struct tensor){
            network->type, 3, {1, shape.rows, shape.columns}, {shape.rows * shape.columns, shape.columns, 1}};
    if (matrix_at)
        *matrix_at = shape.rows ? weights + matrix_place : NULL;
    if (bias)
        *bias = (struct tensor){network->type, 3, {1, network->hidden, 1}, {network->hidden, 1, 1}};
    if (bias_at)
        *bias_at = has_bias(network, number) ? weights + bias_place : NULL;
    return DONE;
}
