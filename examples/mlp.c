/* mlp.c: a custom trainer: a perceptron learns to distinguish three spirals.
 *     cc mlp.c -o mlp $(pkg-config --cflags --libs zr_zero) -lm
 *     ./mlp 2 3 100 state.safetensors              2 ranks, stage 3, 100 steps, saved; 4 ranks can resume
 *     mpirun -n 2 ./mlp 0 2 100 state.safetensors  0: as many ranks as mpirun has started */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "zero/zr_zero.h"

enum { INPUTS = 2, HIDDEN = 128, LAYERS = 4, CLASSES = 3, CLASSES_STORED = 16, ROWS = 64 };
enum { HEAD = LAYERS, UNITS = LAYERS + 1, PARAMETERS = 2 * LAYERS + 1 };
enum { EACH = ROWS * HIDDEN, BLOCKS = 2 * LAYERS + 5 }; /* floats per block of memory, number of blocks */

/* Returns a result that is not ZR_OK from the calling function. */
#define TRY(call)                                                                                            \
    for (zr_result try_result = (call); try_result != ZR_OK;)                                                \
    return try_result

struct trainer {
    unsigned ranks, stage, steps, rank;
    const char *load, *save; /* state file; NULL: none */
    zr_backend *backend;
    zr_arena *arena;
    zr_comm *comm;
    zr_engine *engine;
    const struct zr_kernels *kernels;
    struct zr_kernel_context context;
    float *x[LAYERS + 1], *z[LAYERS], *dx, *dz, *logits, *losses; /* x: inputs of layers; z: of GELU */
    int32_t classes[ROWS];
};

/* LAYERS times linear and GELU, then a classifier. Each layer is a unit. */
static const struct zr_linear linears[LAYERS] = {{.rows = ROWS, .in = INPUTS, .out = HIDDEN},
                                                 {.rows = ROWS, .in = HIDDEN, .out = HIDDEN},
                                                 {.rows = ROWS, .in = HIDDEN, .out = HIDDEN},
                                                 {.rows = ROWS, .in = HIDDEN, .out = HIDDEN}};

static zr_result create_engine(struct trainer *t)
{
    struct zr_parameter p[PARAMETERS] = {[2 * HEAD] = {.name = "head.weight",
                                                       .shape = {CLASSES_STORED, HIDDEN},
                                                       .unit = HEAD,
                                                       .group = ZR_GROUP_DECAY,
                                                       .init_deviation = 0.05f}};
    struct zr_unit units[UNITS] = {[HEAD] = {.name = "head", .gradient_uses = 1}};
    for (unsigned l = 0; l < LAYERS; l++) {
        size_t in = linears[l].in;
        units[l].gradient_uses = 1;
        p[2 * l] = (struct zr_parameter){.shape = {in, HIDDEN},
                                         .unit = l,
                                         .group = ZR_GROUP_DECAY,
                                         .init_deviation = sqrtf(2.0f / (float)in)};
        p[2 * l + 1] = (struct zr_parameter){.shape = {HIDDEN}, .unit = l, .group = ZR_GROUP_NO_DECAY};
        snprintf(units[l].name, sizeof units[l].name, "layer.%u", l);
        snprintf(p[2 * l].name, sizeof p->name, "layer.%u.weight", l);
        snprintf(p[2 * l + 1].name, sizeof p->name, "layer.%u.bias", l);
    }
    const struct zr_engine_options options = {
        .struct_bytes = sizeof options,
        .arena = t->arena,
        .host_arena = t->arena,
        .kernels = t->kernels,
        .context = &t->context,
        .comm = t->comm,
        .list = {p, PARAMETERS, units, UNITS},
        .stage = t->stage,
        .seed = 1,
        .optimizer = {.beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f, .weight_decay = 0.01f, .clip = 1}};
    return zr_engine_create(&t->engine, &options);
}

static zr_result forward_layer(struct trainer *t, unsigned l)
{
    size_t weight = zr_engine_offset(t->engine, 2 * l), bias = zr_engine_offset(t->engine, 2 * l + 1);
    const void *base;
    TRY(zr_engine_gather(t->engine, l, &base));
    TRY(zr_engine_prefetch(t->engine, l + 1)); /* the gather overlaps with this layer's computation */
    const float *w = base;                     /* with a bf16 engine, parameters have two bytes */
    const struct zr_linear_forward linear = {linears[l], t->x[l], w + weight, w + bias, t->z[l], true};
    const struct zr_gelu_forward gelu = {EACH, t->z[l], t->x[l + 1], ZR_GELU_TANH};
    TRY(t->kernels->linear_forward(&t->context, &linear));
    TRY(t->kernels->gelu_forward(&t->context, &gelu));
    zr_engine_release(t->engine, l);
    return ZR_OK;
}

static zr_result head(struct trainer *t)
{
    const struct zr_linear shape = {.rows = ROWS, .in = HIDDEN, .out = CLASSES_STORED, .turned = true};
    const void *base;
    bool add;
    void *gradient;
    TRY(zr_engine_gather(t->engine, HEAD, &base));
    TRY(zr_engine_gradients(t->engine, HEAD, &gradient, &add));
    const struct zr_linear_forward linear = {shape, t->x[LAYERS], base, NULL, t->logits, true};
    const struct zr_cross_entropy loss = {ROWS,       CLASSES,     CLASSES_STORED, 0,
                                          t->classes, t->logits,   false,          t->losses,
                                          true,       1.0f / ROWS, NULL,           NULL};
    const struct zr_linear_backward back = {
        shape,    t->x[LAYERS], base,  t->logits, t->dx,
        gradient, NULL,         false, add,       false}; /* the gradient has overwritten the logits */
    TRY(t->kernels->linear_forward(&t->context, &linear));
    TRY(t->kernels->cross_entropy(&t->context, &loss));
    TRY(t->kernels->linear_backward(&t->context, &back));
    zr_engine_release(t->engine, HEAD);
    return zr_engine_reduce(t->engine, HEAD); /* the reduction overlaps with the layers below */
}

static zr_result backward_layer(struct trainer *t, unsigned l)
{
    size_t weight = zr_engine_offset(t->engine, 2 * l), bias = zr_engine_offset(t->engine, 2 * l + 1);
    const void *base;
    bool add;
    void *gradient;
    TRY(zr_engine_gather(t->engine, l, &base));
    TRY(zr_engine_gradients(t->engine, l, &gradient, &add));
    if (l > 0)
        TRY(zr_engine_prefetch(t->engine, l - 1));
    const float *w = base;
    float *g = gradient;
    const struct zr_linear_backward back = {linears[l], t->x[l],  w + weight, t->dz, l > 0 ? t->dx : NULL,
                                            g + weight, g + bias, false,      add,   false};
    TRY(t->kernels->gelu_backward(&t->context, &(struct zr_gelu_backward){EACH, t->z[l], t->dx, t->dz, 0}));
    TRY(t->kernels->linear_backward(&t->context, &back));
    zr_engine_release(t->engine, l);
    return zr_engine_reduce(t->engine, l);
}

/* Points on the three spirals; each rank and each step has its own points. */
static void make_batch(struct trainer *t, uint64_t step)
{
    for (unsigned row = 0; row < ROWS; row++) {
        uint64_t place = (step * ZR_MAX_WORLD + t->rank) * ROWS + row + 1; /* hashed below */
        place = (place ^ place >> 31) * UINT64_C(0x9e3779b97f4a7c15);
        float radius = (float)((place ^ place >> 29) * UINT64_C(0xbf58476d1ce4e5b9) >> 40) / (float)(1 << 24);
        t->classes[row] = (int32_t)(row % CLASSES);
        float angle = 5 * radius + (float)t->classes[row] * 2.0944f;
        t->x[0][2 * row] = radius * cosf(angle);
        t->x[0][2 * row + 1] = radius * sinf(angle);
    }
}

static zr_result train(struct trainer *t)
{
    struct zr_step_report report;
    if (t->load)
        TRY(zr_engine_load(t->engine, t->load));
    for (unsigned i = 0; i < t->steps; i++) {
        float loss = 0; /* the loss of this rank */
        make_batch(t, zr_engine_steps_done(t->engine));
        for (unsigned l = 0; l < LAYERS; l++)
            TRY(forward_layer(t, l));
        TRY(head(t));
        for (unsigned l = LAYERS; l-- > 0;)
            TRY(backward_layer(t, l));
        TRY(zr_engine_step(t->engine, 2e-3f, &report));
        for (unsigned row = 0; row < ROWS; row++)
            loss += t->losses[row] / ROWS;
        if (t->rank == 0 && (i % 50 == 0 || i + 1 == t->steps))
            printf("step %u loss %.6f norm %a\n", (unsigned)zr_engine_steps_done(t->engine), loss,
                   report.gradient_norm);
    }
    return t->save ? zr_engine_save(t->engine, t->save) : ZR_OK;
}

static zr_result take(struct trainer *t, zr_tag tag, size_t bytes, void *out /* address of a pointer */)
{
    return zr_arena_alloc(t->arena, &(struct zr_request){.bytes = bytes, .tag = tag}, out);
}

static zr_result open_all(struct trainer *t, struct zr_local_world *local)
{
    const struct zr_kernel_limits limits = {
        .rows = ROWS, .sequence = 1, .channels = HIDDEN, .heads = 1, .threads = 1};
    struct zr_comm_options comm = {.struct_bytes = sizeof comm, .bucket_bytes = 64 << 10};
    t->context = (struct zr_kernel_context){.parallel.threads = 1, .isa = zr_isa_best()};
    t->kernels = comm.kernels = zr_kernels_cpu(t->context.isa);
    t->context.workspace_bytes = t->kernels->workspace_bytes(&limits, t->context.isa);
    TRY(zr_backend_host_create(&t->backend, NULL));
    const struct zr_arena_options arena = {
        .struct_bytes = sizeof arena, .backend = t->backend, .name = "mlp"};
    TRY(zr_arena_create(&t->arena, &arena));
    comm.arena = comm.host_arena = t->arena;
    TRY(zr_comm_create(&t->comm, &comm, local, t->rank));
    TRY(take(t, ZR_TAG_WORKSPACE, t->context.workspace_bytes, &t->context.workspace));
    TRY(take(t, ZR_TAG_ACTIVATION, BLOCKS * EACH * sizeof(float), &t->x[0]));
    t->losses = (t->logits = (t->dz = (t->dx = t->x[0] + EACH) + EACH) + EACH) + EACH;
    for (unsigned l = 0; l < LAYERS; l++)
        t->x[l + 1] = (t->z[l] = t->losses + (2 * l + 1) * EACH) + EACH;
    TRY(t->kernels->open(&t->context));
    return create_engine(t);
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    struct trainer *t = argument;
    t->rank = rank;
    zr_result result = open_all(t, local);
    if (result == ZR_OK)
        result = train(t);
    if (result != ZR_OK)
        fprintf(stderr, "rank %u: %s\n", rank, zr_last_error());
    zr_engine_destroy(t->engine);
    t->kernels->close(&t->context);
    zr_comm_destroy(t->comm);
    zr_arena_destroy(t->arena, NULL); /* frees all remaining blocks */
    zr_backend_destroy(t->backend);
    fflush(stdout);
    return result == ZR_OK ? 0 : 3;
}

int main(int argc, char **argv)
{
    struct trainer t = {.save = argc == 5 ? argv[4] : NULL};
    if (argc < 4 || argc > 5 || sscanf(argv[1], "%u", &t.ranks) != 1 ||
        sscanf(argv[2], "%u", &t.stage) != 1 || sscanf(argv[3], "%u", &t.steps) != 1) {
        fprintf(stderr, "usage: mlp RANKS STAGE STEPS [FILE]   (goes on from FILE, and saves to it)\n");
        return 2;
    }
    t.load = t.save && access(t.save, F_OK) == 0 ? t.save : NULL;
    const struct zr_launch_options launch = {
        .struct_bytes = sizeof launch, .world = t.ranks, .rank_main = rank_main, .argument = &t};
    return zr_launch(&launch, t.ranks == 0 ? ZR_CARRIER_MPI : ZR_CARRIER_LOCAL, argv);
}
