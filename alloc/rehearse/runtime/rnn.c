/* rnn.c: recurrent networks of cuDNN: where a program finds their weights, and what they keep for the
 * backward pass. Numbers and parameters are those of NVIDIA's cuDNN API reference. See runtime.h. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "alloc/rehearse/runtime/runtime.h"

#define ANSWER __attribute__((visibility("default")))

enum { SUCCESS = 0, ALLOCATION_FAILED = 2000 };
enum { HALF = 2, DOUBLE = 1, BFLOAT16 = 9 }; /* cudnnDataType_t; the others have four bytes */
enum cell { RELU, TANH, LSTM, GRU };         /* cudnnRNNMode_t */

struct extents {
    size_t rows, columns;
};

/* A descriptor of any kind: cudnnTensorStruct, cudnnRNNStruct, cudnnRNNDataStruct. */
struct cudnn {
    enum cell cell;
    int data_type;
    bool with_bias;
    int directions, layers;
    size_t inputs, hidden, outputs; /* outputs: of the projection, or the hidden features */
    size_t rows;                    /* of data: positions of all sequences */
    struct extents extents;         /* of a tensor */
};

static int create(struct cudnn **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? SUCCESS : ALLOCATION_FAILED;
}

static int destroy(struct cudnn *descriptor)
{
    free(descriptor);
    return SUCCESS;
}

#define DESCRIPTOR(kind)                                                                                     \
    ANSWER int cudnnCreate##kind(struct cudnn **out);                                                        \
    int cudnnCreate##kind(struct cudnn **out)                                                                \
    {                                                                                                        \
        return create(out);                                                                                  \
    }                                                                                                        \
    ANSWER int cudnnDestroy##kind(struct cudnn *descriptor);                                                 \
    int cudnnDestroy##kind(struct cudnn *descriptor)                                                         \
    {                                                                                                        \
        return destroy(descriptor);                                                                          \
    }
DESCRIPTOR(TensorDescriptor)
DESCRIPTOR(RNNDescriptor)
DESCRIPTOR(RNNDataDescriptor)

static size_t bytes_of(int data_type)
{
    return data_type == DOUBLE ? 8 : data_type == HALF || data_type == BFLOAT16 ? 2 : 4;
}

ANSWER int cudnnSetRNNDescriptor_v8(struct cudnn *rnn, int algorithm, int cell, int bias, int direction,
                                    int input_mode, int data_type, int precision, int mathematics,
                                    int32_t inputs, int32_t hidden, int32_t projected, int32_t layers,
                                    void *dropout, uint32_t flags);
int cudnnSetRNNDescriptor_v8(struct cudnn *rnn, int algorithm, int cell, int bias, int direction,
                             int input_mode, int data_type, int precision, int mathematics, int32_t inputs,
                             int32_t hidden, int32_t projected, int32_t layers, void *dropout, uint32_t flags)
{
    (void)algorithm, (void)input_mode, (void)precision, (void)mathematics, (void)dropout, (void)flags;
    *rnn = (struct cudnn){.cell = (enum cell)cell,
                          .data_type = data_type,
                          .with_bias = bias != 0,
                          .directions = 1 + (direction != 0),
                          .layers = layers,
                          .inputs = (size_t)inputs,
                          .hidden = (size_t)hidden,
                          .outputs = (size_t)(projected > 0 ? projected : hidden)};
    return SUCCESS;
}

ANSWER int cudnnSetRNNDataDescriptor(struct cudnn *data, int data_type, int layout, int length_max,
                                     int sequences, int features, const int lengths[], void *padding);
int cudnnSetRNNDataDescriptor(struct cudnn *data, int data_type, int layout, int length_max, int sequences,
                              int features, const int lengths[], void *padding)
{
    (void)layout, (void)lengths, (void)padding;
    *data = (struct cudnn){
        .data_type = data_type, .inputs = (size_t)features, .rows = (size_t)length_max * (size_t)sequences};
    return SUCCESS;
}

/* ---- Weights ------------------------------------------------------------------------------------------- */

static unsigned gates_of(const struct cudnn *rnn)
{
    return rnn->cell == LSTM ? 4 : rnn->cell == GRU ? 3 : 1;
}

/* The first half of a layer's matrices is of its input, the second of its state; one more projects. */
static struct extents matrix(const struct cudnn *rnn, int layer, unsigned which)
{
    unsigned gates = gates_of(rnn);
    size_t inputs = layer < rnn->directions ? rnn->inputs : rnn->outputs * (size_t)rnn->directions;
    return (struct extents){.rows = which < 2 * gates ? rnn->hidden : rnn->outputs,
                            .columns = which < gates       ? inputs
                                       : which < 2 * gates ? rnn->outputs
                                                           : rnn->hidden};
}

static unsigned matrices(const struct cudnn *rnn)
{
    return 2 * gates_of(rnn) + (rnn->outputs != rnn->hidden);
}

/* Elements of a layer's matrices from one on. */
static size_t elements_from(const struct cudnn *rnn, int layer, unsigned which)
{
    size_t sum = 0;
    for (; which < matrices(rnn); which++)
        sum += matrix(rnn, layer, which).rows * matrix(rnn, layer, which).columns;
    return sum;
}

/* Elements before a layer: a layer is its matrices and then its biases. */
static size_t elements_before(const struct cudnn *rnn, int layer)
{
    size_t sum = 0;
    for (int i = 0; i < layer; i++)
        sum += elements_from(rnn, i, 0) + (rnn->with_bias ? 2 * gates_of(rnn) * rnn->hidden : 0);
    return sum;
}

/* A program leaves out what it does not ask for: the matrix or the bias. */
static void describe(struct cudnn *tensor, const struct cudnn *rnn, struct extents extents)
{
    if (tensor)
        *tensor = (struct cudnn){.data_type = rnn->data_type, .extents = extents};
}

ANSWER int cudnnGetRNNWeightSpaceSize(void *handle, const struct cudnn *rnn, size_t *bytes);
int cudnnGetRNNWeightSpaceSize(void *handle, const struct cudnn *rnn, size_t *bytes)
{
    (void)handle;
    *bytes = elements_before(rnn, rnn->layers * rnn->directions) * bytes_of(rnn->data_type);
    return SUCCESS;
}

ANSWER int cudnnGetRNNWeightParams(void *handle, const struct cudnn *rnn, int layer, size_t bytes,
                                   const char *weights, int which, struct cudnn *matrix_tensor,
                                   const char **matrix_at, struct cudnn *bias_tensor, const char **bias_at);
int cudnnGetRNNWeightParams(void *handle, const struct cudnn *rnn, int layer, size_t bytes,
                            const char *weights, int which, struct cudnn *matrix_tensor,
                            const char **matrix_at, struct cudnn *bias_tensor, const char **bias_at)
{
    (void)handle, (void)bytes;
    size_t elements = elements_from(rnn, layer, (unsigned)which);
    size_t before = elements_before(rnn, layer) + elements_from(rnn, layer, 0) - elements;
    bool has_bias = rnn->with_bias && (unsigned)which < 2 * gates_of(rnn);
    weights += before * bytes_of(rnn->data_type);
    if (matrix_at)
        *matrix_at = weights;
    if (bias_at)
        *bias_at =
            has_bias ? weights + (elements + (size_t)which * rnn->hidden) * bytes_of(rnn->data_type) : NULL;
    describe(matrix_tensor, rnn, matrix(rnn, layer, (unsigned)which));
    describe(bias_tensor, rnn, (struct extents){1, has_bias ? rnn->hidden : 0});
    return SUCCESS;
}

/* Of a tensor that was filled in here. */
ANSWER int cudnnGetTensorNdDescriptor(const struct cudnn *tensor, int most, int *data_type, int *count,
                                      int extents[], int strides[]);
int cudnnGetTensorNdDescriptor(const struct cudnn *tensor, int most, int *data_type, int *count,
                               int extents[], int strides[])
{
    const int all[] = {1, (int)tensor->extents.rows, (int)tensor->extents.columns}, last = 2;
    *data_type = tensor->data_type;
    *count = last + 1;
    for (int i = last, stride = 1; i >= 0; stride *= all[i--])
        if (i < most)
            extents[i] = all[i], strides[i] = stride;
    return SUCCESS;
}

/* ---- What is kept -------------------------------------------------------------------------------------- */

/* At least what the backward pass reads: each gate, and the cell's state of an LSTM, at each position of each
 * layer. */
ANSWER int cudnnGetRNNTempSpaceSizes(void *handle, const struct cudnn *rnn, int trains,
                                     const struct cudnn *data, size_t *workspace_bytes, size_t *kept_bytes);
int cudnnGetRNNTempSpaceSizes(void *handle, const struct cudnn *rnn, int trains, const struct cudnn *data,
                              size_t *workspace_bytes, size_t *kept_bytes)
{
    (void)handle;
    size_t values = (size_t)rnn->layers * (size_t)rnn->directions * data->rows * rnn->hidden *
                    (gates_of(rnn) + (rnn->cell == LSTM));
    if (workspace_bytes)
        *workspace_bytes = emulated_no_workspace(__func__);
    if (kept_bytes)
        *kept_bytes = trains ? values * bytes_of(rnn->data_type) : 0;
    return SUCCESS;
}
