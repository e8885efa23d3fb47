/* ring.c: attention over the tokens of several context ranks: ring attention (Liu, Zaharia and Abbeel, 2023),
 * with two mirrored chunks of each sequence per rank, so that all ranks have the same work.
 *
 * In step s a rank has the keys and values of the rank s places before it, starts to send them to the next
 * rank, and computes. Results of different keys are merged in the order of the steps, which is fixed. In
 * backward the sums of a rank's gradients follow its keys and values around the ring, and arrive at home
 * after the last step. Sums are floats at every precision. */
#include "zero/model/transformer.h"

enum { KEYS, SUMS, GRADIENTS }; /* slots */

/* Columns of the rank's queries, and of its keys and values, by rows of qkv. */
struct ring {
    struct zr_module_pass *pass;
    void **slots;
    size_t queries, keys, bytes; /* bytes: of an element */
};

static size_t query_columns(const struct zr_shape *shape)
{
    return zr_shape_queries(shape) / zr_shape_tensor(shape);
}

static size_t key_columns(const struct zr_shape *shape)
{
    return 2 * zr_shape_head(shape) * shape->kv_heads / zr_shape_tensor(shape);
}

static struct ring ring_of(struct zr_module_pass *pass, unsigned slots)
{
    const struct zr_shape *shape = zr_pass_shape(pass);
    return (struct ring){pass, pass->slots + slots, query_columns(shape), key_columns(shape),
                         zr_precision_bytes(pass->context->precision)};
}

void zr_slots_ring(const struct zr_shape *shape, struct zr_slot *slots)
{
    bool several = shape->context > 1;
    size_t queries = several ? query_columns(shape) : 0, keys = several ? key_columns(shape) : 0;
    /* Two blocks of keys, and of their gradients: one is used while the other arrives. */
    slots[KEYS] = (struct zr_slot){"ring of keys", 2 * keys, ZR_SLOT_ELEMENTS, ZR_SLOT_TEMPORARY, false};
    slots[SUMS] = (struct zr_slot){"sums over the ring", queries, ZR_SLOT_FLOATS, ZR_SLOT_TEMPORARY, false};
    slots[GRADIENTS] =
        (struct zr_slot){"ring of gradients", 2 * keys, ZR_SLOT_FLOATS, ZR_SLOT_TEMPORARY, false};
}

/* The block of keys, or of gradients, of step `step`. */
static void *keys_at(const struct ring *ring, unsigned step)
{
    return (char *)ring->slots[KEYS] + step % 2 * ring->pass->rows * ring->keys * ring->bytes;
}

static float *gradients_at(const struct ring *ring, unsigned step)
{
    return (float *)ring->slots[GRADIENTS] + step % 2 * ring->pass->rows * ring->keys;
}

/* Columns of a matrix of pass->rows rows. */
struct columns {
    struct zr_numbers numbers;
    size_t first, line; /* elements */
};

static struct zr_numbers row_of(const struct columns *columns, size_t row)
{
    size_t at = (row * columns->line + columns->first) * zr_precision_bytes(columns->numbers.precision);
    return (struct zr_numbers){(char *)columns->numbers.at + at, columns->numbers.precision};
}

static zr_result copy_columns(const struct ring *ring, size_t count, struct columns from, struct columns to)
{
    struct zr_module_pass *pass = ring->pass;
    zr_result result = ZR_OK;
    for (size_t row = 0; row < pass->rows && result == ZR_OK; row++)
        result = pass->kernels->convert(pass->context,
                                        &(struct zr_convert){count, row_of(&from, row), row_of(&to, row)});
    return result;
}

static struct columns elements(const struct ring *ring, const void *at, size_t first, size_t line)
{
    return (struct columns){{(void *)at, ring->pass->context->precision}, first, line};
}

static struct columns floats(const void *at, size_t line)
{
    return (struct columns){{(void *)at, ZR_PRECISION_FP32}, 0, line};
}

/* Takes the block of keys, and copies this rank's own into its first half. */
static zr_result begin(const struct ring *ring, unsigned slots, const void *qkv)
{
    zr_result result = zr_module_take(ring->pass, slots + KEYS);
    if (result == ZR_OK)
        result = zr_module_take(ring->pass, slots + SUMS);
    return result == ZR_OK ? copy_columns(ring, ring->keys,
                                          elements(ring, qkv, ring->queries, ring->queries + ring->keys),
                                          elements(ring, keys_at(ring, 0), 0, ring->keys))
                           : result;
}

/* Starts to send a block to the next rank and to receive that of the rank before. */
static zr_result pass_on(const struct ring *ring, const void *send, void *receive, size_t element_bytes,
                         zr_ticket *ticket)
{
    zr_comm *comm = ring->pass->ring;
    unsigned ranks = zr_comm_world(comm), rank = zr_comm_rank(comm);
    size_t bytes = ring->pass->rows * ring->keys * element_bytes;
    return zr_comm_send_receive(
        comm,
        &(struct zr_transfer){.send = send,
                              .send_bytes = bytes,
                              .to = (rank + 1) % ranks,
                              .from = (rank + ranks - 1) % ranks,
                              .receive = receive,
                              .receive_bytes = bytes,
                              .type = element_bytes == sizeof(float)
                                          ? ZR_COMM_FP32
                                          : (enum zr_comm_type)ring->pass->context->precision},
        ticket);
}

/* The attention of one step. */
static struct zr_attention_ring step_of(const struct ring *ring, unsigned step)
{
    const struct zr_shape *shape = zr_pass_shape(ring->pass);
    return (struct zr_attention_ring){.ranks = shape->context,
                                      .queries = shape->context_rank,
                                      .keys = (shape->context_rank + shape->context - step) % shape->context,
                                      .kv = keys_at(ring, step),
                                      .merge = step > 0,
                                      .dq = ring->slots[SUMS],
                                      .dkv = gradients_at(ring, step)};
}

zr_result zr_pass_attend(struct zr_module_pass *pass, unsigned slots, const struct zr_attention_forward *op)
{
    unsigned ranks = (unsigned)zr_shape_context(zr_pass_shape(pass));
    struct ring ring = ring_of(pass, slots);
    struct zr_attention_forward now = *op;
    if (ranks == 1)
        return pass->kernels->attention_forward(pass->context, op);
    zr_result result = begin(&ring, slots, op->qkv);
    now.out = ring.slots[SUMS];
    now.p = NULL;
    for (unsigned s = 0; s < ranks && result == ZR_OK; s++) {
        zr_ticket ticket = 0;
        now.shape.ring = step_of(&ring, s);
        if (s + 1 < ranks)
            result = pass_on(&ring, keys_at(&ring, s), keys_at(&ring, s + 1), ring.bytes, &ticket);
        if (result == ZR_OK)
            result = pass->kernels->attention_forward(pass->context, &now);
        zr_result passed = zr_comm_wait(pass->ring, ticket); /* also after a failure: the slots are freed */
        result = result == ZR_OK ? passed : result;
    }
    if (result == ZR_OK)
        result = copy_columns(&ring, ring.queries, floats(ring.slots[SUMS], ring.queries),
                              elements(&ring, op->out, 0, ring.queries));
    zr_module_drop(pass, slots + SUMS);
    zr_module_drop(pass, slots + KEYS);
    return result;
}

/* Adds the gradients of step s, and starts the transfers for the next one. */
static zr_result backward_step(const struct ring *ring, const struct zr_attention_backward *op, unsigned s)
{
    struct zr_module_pass *pass = ring->pass;
    struct zr_attention_backward now = *op;
    zr_ticket keys = 0, gradients = 0;
    zr_result result = ZR_OK;
    now.shape.ring = step_of(ring, s);
    now.p = NULL;
    if (s + 1 < now.shape.ring.ranks)
        result = pass_on(ring, keys_at(ring, s), keys_at(ring, s + 1), ring->bytes, &keys);
    if (result == ZR_OK)
        result = pass->kernels->attention_backward(pass->context, &now);
    if (result == ZR_OK)
        result = pass_on(ring, gradients_at(ring, s), gradients_at(ring, s + 1), sizeof(float), &gradients);
    zr_result passed[] = {zr_comm_wait(pass->ring, keys), zr_comm_wait(pass->ring, gradients)};
    return result != ZR_OK ? result : passed[0] != ZR_OK ? passed[0] : passed[1];
}

zr_result zr_pass_attend_backward(struct zr_module_pass *pass, unsigned slots,
                                  const struct zr_attention_backward *op)
{
    unsigned ranks = (unsigned)zr_shape_context(zr_pass_shape(pass));
    struct ring ring = ring_of(pass, slots);
    size_t line = ring.queries + ring.keys, floats_bytes = pass->rows * sizeof(float);
    if (ranks == 1)
        return pass->kernels->attention_backward(pass->context, op);
    zr_result result = begin(&ring, slots, op->qkv);
    if (result == ZR_OK)
        result = zr_module_take(pass, slots + GRADIENTS);
    if (result == ZR_OK)
        result = pass->kernels->clear(pass->context,
                                      &(struct zr_clear){ring.queries * floats_bytes, ring.slots[SUMS]});
    if (result == ZR_OK)
        result = pass->kernels->clear(pass->context,
                                      &(struct zr_clear){ring.keys * floats_bytes, gradients_at(&ring, 0)});
    for (unsigned s = 0; s < ranks && result == ZR_OK; s++)
        result = backward_step(&ring, op, s);
    if (result == ZR_OK)
        result = copy_columns(&ring, ring.queries, floats(ring.slots[SUMS], ring.queries),
                              elements(&ring, op->dqkv, 0, line));
    if (result == ZR_OK)
        result = copy_columns(&ring, ring.keys, floats(gradients_at(&ring, ranks), ring.keys),
                              elements(&ring, op->dqkv, ring.queries, line));
    zr_module_drop(pass, slots + GRADIENTS);
    zr_module_drop(pass, slots + SUMS);
    zr_module_drop(pass, slots + KEYS);
    return result;
}
