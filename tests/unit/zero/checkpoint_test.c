/* checkpoint_test.c: saving and resuming with the real engine: other world sizes and stages, flipped bits,
 * cut and missing and hostile files, and failures of the system at every place. Each scene runs in ranks of
 * its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/heap/heap.h"
#include "tests/support/folder.h"
#include "tests/support/shape_list.h"
#include "tests/support/tap.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/engine/engine.h"
#include "zero/checkpoint/state.h"
#include "zero/checkpoint/checkpoint_inside.h"

static char folder[] = "/tmp/zr-checkpoint-XXXXXX";
static char runs[128];   /* folder/runs: what zr_checkpoint_save() is given */
static char words[2048]; /* what the ranks of the last scene wrote */

/* ---- A small model on a real engine -------------------------------------------------------------------- */

struct stand {
    zr_backend *backend;
    zr_arena *host_arena, *arena;
    zr_comm *comm;
    zr_engine *engine;
    struct zr_kernel_context context;
    struct zr_checkpoint checkpoint;
    struct zr_checkpoint_origin origin;
};

static const struct zr_shape shape = {.layers = 3,
                                      .hidden = 21,
                                      .heads = 3,
                                      .vocabulary = 60,
                                      .vocabulary_padded = 64,
                                      .sequence = 13,
                                      .batch = 2};

static const struct zr_checkpoint_course course = {.steps = 300,
                                                   .warmup = 21,
                                                   .schedule = "linear",
                                                   .rate = 0.1,
                                                   .min_rate = 1e-9,
                                                   .data_order = 2,
                                                   .data_tokens = 1 << 30,
                                                   .data_checksum = 0xfedcba9876543210,
                                                   .products = "cuBLASLt 13.0.2 on a card"};

struct scene {
    int (*act)(struct stand *stand, const struct scene *scene);
    unsigned world, stage;
    uint64_t step;
    unsigned salt;    /* of the values */
    const char *from; /* folder to resume from; NULL: runs */
    unsigned keep;
    unsigned site; /* of faults, with the kind */
    uint64_t nth;
};

static zr_result open_memory(struct stand *stand)
{
    zr_result result = zr_backend_host_create(
        &stand->backend, &(struct zr_host_options){.granule_bytes = 64 << 10, .small_pages = true});
    if (!result)
        result = zr_arena_create(&stand->host_arena, &(struct zr_arena_options){.backend = stand->backend,
                                                                                .name = "host",
                                                                                .reserve_bytes = 256 << 20});
    if (!result)
        result = zr_heap_start(stand->host_arena);
    if (!result)
        result = zr_arena_create(&stand->arena, &(struct zr_arena_options){.backend = stand->backend,
                                                                           .name = "training",
                                                                           .reserve_bytes = 64 << 20});
    return result;
}

static zr_result open_engine(struct stand *stand, const struct scene *scene)
{
    struct zr_parameter *parameters = zr_heap_zalloc(shape_parameters_count(&shape), sizeof *parameters);
    struct zr_unit *units = zr_heap_zalloc(shape_units_count(&shape), sizeof *units);
    struct zr_kernel_limits limits;

    zr_shape_limits(&shape, 1, &limits);
    stand->context = (struct zr_kernel_context){.parallel = {.threads = 1}, .isa = ZR_ISA_PLAIN};
    stand->context.workspace_bytes = zr_kernels_cpu(ZR_ISA_PLAIN)->workspace_bytes(&limits, ZR_ISA_PLAIN);
    shape_describe(&shape, parameters, units);
    if (zr_arena_alloc(stand->arena,
                       &(struct zr_request){.bytes = stand->context.workspace_bytes, .tag = ZR_TAG_WORKSPACE},
                       &stand->context.workspace))
        return ZR_ERR_MEMORY;
    zr_result result = zr_kernels_cpu(ZR_ISA_PLAIN)->open(&stand->context);
    if (result)
        return result;
    result = zr_engine_create(&stand->engine, &(struct zr_engine_options){
                                                  .arena = stand->arena,
                                                  .host_arena = stand->host_arena,
                                                  .kernels = zr_kernels_cpu(ZR_ISA_PLAIN),
                                                  .context = &stand->context,
                                                  .comm = stand->comm,
                                                  .list = {.parameters = parameters,
                                                           .parameters_count = shape_parameters_count(&shape),
                                                           .units = units,
                                                           .units_count = shape_units_count(&shape)},
                                                  .stage = scene->stage,
                                                  .seed = 5,
                                                  .optimizer = {.epsilon = 1e-8f}});
    zr_heap_free(parameters);
    zr_heap_free(units);
    return result;
}

static void say(unsigned rank, const char *text)
{
    char path[160];
    snprintf(path, sizeof path, "%s/words-%u", folder, rank);
    FILE *file = fopen(path, "a");
    fprintf(file, "rank %u: %s\n", rank, text);
    fclose(file);
}

static int rank_main(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct scene *scene = argument;
    static struct stand stand;
    size_t leaked_bytes[3] = {1, 1, 1};
    char left[128];
    int code = 99, files = open_descriptors();
    zr_result result = open_memory(&stand);
    struct zr_comm_options options = {.arena = stand.arena,
                                      .host_arena = stand.host_arena,
                                      .kernels = zr_kernels_cpu(ZR_ISA_PLAIN),
                                      .bucket_bytes = 4096};
    if (!result)
        result = scene->world == 1 ? zr_comm_null_create(&stand.comm, &options, 0, 1)
                                   : zr_comm_local_create(&stand.comm, &options, local, rank);
    if (!result)
        result = open_engine(&stand, scene);
    stand.checkpoint = (struct zr_checkpoint){.folder = scene->from ? scene->from : runs,
                                              .engine = stand.engine,
                                              .comm = stand.comm,
                                              .shape = shape,
                                              .seed = 5,
                                              .stage = scene->stage,
                                              .course = course,
                                              .origin = &stand.origin,
                                              .keep = scene->keep};
    if (!result) {
        code = scene->act(&stand, scene);
        zr_engine_destroy(stand.engine);
    }
    if (result || code)
        say(rank, zr_last_error());
    if (stand.comm) {
        zr_comm_barrier(stand.comm); /* who ends first does not cost the others their words */
        zr_comm_destroy(stand.comm);
    }
    zr_arena_free(stand.arena, stand.context.workspace);
    zr_heap_stop(&leaked_bytes[0]);
    zr_arena_destroy(stand.arena, &leaked_bytes[1]);
    zr_arena_destroy(stand.host_arena, &leaked_bytes[2]);
    zr_backend_destroy(stand.backend);
    if (leaked_bytes[0] + leaked_bytes[1] + leaked_bytes[2] == 0 && open_descriptors() == files)
        return code;
    snprintf(left, sizeof left, "left: %zu bytes of the heap, %zu and %zu of arenas, %d descriptors",
             leaked_bytes[0], leaked_bytes[1], leaked_bytes[2], open_descriptors() - files);
    say(rank, left);
    return 98;
}

/* Runs a scene in ranks of its own; returns 0 or the first failing rank's code. */
static int play(struct scene scene)
{
    char path[160];
    for (unsigned rank = 0; rank < 8; rank++) {
        snprintf(path, sizeof path, "%s/words-%u", folder, rank);
        unlink(path);
    }
    fflush(stdout);
    int code = zr_local_launch(
        &(struct zr_launch_options){.world = scene.world, .rank_main = rank_main, .argument = &scene});
    words[0] = '\0';
    for (unsigned rank = 0; rank < scene.world; rank++) {
        snprintf(path, sizeof path, "%s/words-%u", folder, rank);
        FILE *file = fopen(path, "r");
        size_t used = strlen(words);
        if (file) {
            words[used + fread(words + used, 1, sizeof words - 1 - used, file)] = '\0';
            for (char *end; (end = strchr(words, '\n'));)
                *end = ';';
            fclose(file);
        }
    }
    return strstr(words, ": left: ") ? 98 : code; /* the launcher has the code of one rank */
}

#define plays(scene_, code_, ...)                                                                            \
    do {                                                                                                     \
        int got_ = play(scene_);                                                                             \
        if (!tap_ok(got_ == (code_), __VA_ARGS__))                                                           \
            tap_note("code %d: %s", got_, words);                                                            \
    } while (0)

/* ---- Values -------------------------------------------------------------------------------------------- */

/* What stands at global element `index` of tensor `tensor`. */
static float value_of(uint64_t index, int tensor, unsigned salt)
{
    return (float)((index * 2654435761u + (unsigned)tensor * 104729u + salt * 7919u) % 1000003) * 1e-3f;
}

static float *tensor_of(const struct zr_shard_segment *segment, int tensor)
{
    return tensor == 0 ? segment->parameter : tensor == 1 ? segment->momentum : segment->variance;
}

/* Some steps were skipped. */
static uint64_t updates_of(uint64_t step)
{
    return step - step / 4;
}

static zr_result fill(struct stand *stand, const struct scene *scene, unsigned salt)
{
    struct zr_shard_segment segment;
    zr_result result = zr_engine_synchronize(stand->engine);
    for (size_t i = 0; i < zr_engine_segments_count(stand->engine); i++) {
        zr_engine_segment(stand->engine, i, &segment);
        for (int t = 0; t < 3; t++)
            for (size_t k = 0; k < segment.count; k++)
                tensor_of(&segment, t)[k] = value_of(segment.global_index + k, t, salt);
    }
    return result ? result : zr_engine_publish(stand->engine, updates_of(scene->step));
}

static bool holds(struct stand *stand, unsigned salt)
{
    struct zr_shard_segment segment;
    if (zr_engine_synchronize(stand->engine) || zr_engine_verify_replicas(stand->engine))
        return false;
    for (size_t i = 0; i < zr_engine_segments_count(stand->engine); i++) {
        zr_engine_segment(stand->engine, i, &segment);
        for (int t = 0; t < 3; t++)
            for (size_t k = 0; k < segment.count; k++)
                if (tensor_of(&segment, t)[k] != value_of(segment.global_index + k, t, salt)) {
                    zr_fail(ZR_ERR_CORRUPT, "element %llu of tensor %d has another value",
                            (unsigned long long)(segment.global_index + k), t);
                    return false;
                }
    }
    return true;
}

/* ---- Acts ---------------------------------------------------------------------------------------------- */

static int act_save(struct stand *stand, const struct scene *scene)
{
    if (fill(stand, scene, scene->salt))
        return 1;
    return zr_checkpoint_save(&stand->checkpoint, scene->step) ? 2 : 0;
}

static int act_resume(struct stand *stand, const struct scene *scene)
{
    uint64_t step = 0;
    if (zr_checkpoint_resume(&stand->checkpoint, &step))
        return 3;
    if (step != scene->step || zr_engine_steps_done(stand->engine) != updates_of(step)) {
        zr_fail(ZR_ERR_CORRUPT, "resumed at step %llu", (unsigned long long)step);
        return 4;
    }
    if (memcmp(&stand->origin.course, &course, sizeof course) != 0)
        return 6;
    return holds(stand, scene->salt) ? 0 : 5;
}

/* A fault on rank 1 alone. Of memory: in the save of tensors that the host does not see. */
static int act_save_faulty(struct stand *stand, const struct scene *scene)
{
    if (fill(stand, scene, scene->salt))
        return 1;
    stand->engine->host_invisible = scene->site == ZR_FAULT_CREATE;
    zr_arena_trim(stand->host_arena, 0, NULL);
    if (zr_comm_rank(stand->comm) == 1)
        zr_fault_set(scene->site, scene->nth);
    zr_result result = zr_checkpoint_save(&stand->checkpoint, scene->step);
    zr_fault_set(scene->site, 0);
    stand->engine->host_invisible = false;
    return result ? 2 : 0;
}

/* ---- World sizes and stages ---------------------------------------------------------------------------- */

static void remove_runs(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", runs);
    if (system(command) != 0)
        abort();
}

static void test_worlds(void)
{
    static const unsigned worlds[] = {1, 2, 3, 5};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned stage = 0; stage < 2; stage++) {
            remove_runs();
            plays(((struct scene){
                      .act = act_save, .world = worlds[i], .stage = stage, .step = 100, .salt = i + 1}),
                  0, "%u ranks save at stage %u", worlds[i], stage);
            for (unsigned k = 0; k < 4; k++)
                plays(((struct scene){.act = act_resume,
                                      .world = worlds[k],
                                      .stage = (stage + k) % 2,
                                      .step = 100,
                                      .salt = i + 1}),
                      0, "%u ranks resume at stage %u", worlds[k], (stage + k) % 2);
        }
}

static void test_choice(void)
{
    static char one[160];
    remove_runs();
    for (uint64_t step = 9; step <= 10; step++)
        plays(((struct scene){.act = act_save, .world = 2, .stage = 1, .step = step, .salt = (unsigned)step}),
              0, "step %llu is saved", (unsigned long long)step);
    snprintf(one, sizeof one, "%s/step-00000009", runs);
    plays(((struct scene){.act = act_resume, .world = 1, .step = 10, .salt = 10}), 0, "the newest is taken");
    plays(((struct scene){.act = act_resume, .world = 1, .step = 9, .salt = 9, .from = one}), 0,
          "or the one named");
    plays(((struct scene){.act = act_save, .world = 2, .stage = 1, .step = 10, .salt = 77}), 0,
          "a step saved again");
    plays(((struct scene){.act = act_resume, .world = 1, .step = 10, .salt = 77}), 0,
          "takes the place of the first");
    tap_is(folder_entries(runs), 2, "and nothing else is left");
    snprintf(one, sizeof one, "%s/step-100000000", runs);
    mkdir(one, 0700);
    plays(((struct scene){.act = act_resume, .world = 1, .step = 10, .salt = 77}), 0,
          "one without a manifest is none");
    rmdir(one);
    plays(((struct scene){.act = act_resume, .world = 2, .from = "/tmp/zr-no-such-folder"}), 3, "no folder");
    tap_ok(strstr(words, "does not exist"), "is told");
    plays(((struct scene){.act = act_resume, .world = 2, .from = folder}), 3, "a folder without checkpoints");
    tap_ok(strstr(words, "no complete checkpoint"), "is told");
}

/* Of steps 5, 6, 90 and one without a manifest, a save of step 7 that keeps two leaves 6, 7 and what is
 * later. */
static void test_keep(void)
{
    static const uint64_t steps[] = {5, 6, 90, 7};
    static char path[160];
    remove_runs();
    mkdir(runs, 0700);
    snprintf(path, sizeof path, "%s/step-00000004", runs);
    mkdir(path, 0700);
    for (unsigned i = 0; i < 4; i++)
        plays(((struct scene){
                  .act = act_save, .world = 2, .step = steps[i], .salt = i, .keep = steps[i] == 7 ? 2 : 0}),
              0, "step %llu is saved", (unsigned long long)steps[i]);
    tap_ok(access(path, F_OK) == 0, "what is no checkpoint is left alone");
    rmdir(path);
    tap_is(folder_entries(runs), 3, "three stay");
    for (unsigned i = 1; i < 4; i++) {
        snprintf(path, sizeof path, "%s/step-%08u", runs, (unsigned)steps[i]);
        plays(((struct scene){.act = act_resume, .world = 3, .step = steps[i], .salt = i, .from = path}), 0,
              "step %u is whole", (unsigned)steps[i]);
    }
}

/* ---- Damage -------------------------------------------------------------------------------------------- */

struct bytes {
    char path[192];
    unsigned char data[1 << 18];
    size_t count;
};

static void load_bytes(struct bytes *file, const char *name)
{
    snprintf(file->path, sizeof file->path, "%s/step-00000020/%s", runs, name);
    FILE *stream = fopen(file->path, "r");
    file->count = fread(file->data, 1, sizeof file->data, stream);
    fclose(stream);
}

static void store_bytes(const struct bytes *file, size_t count)
{
    FILE *stream = fopen(file->path, "w");
    fwrite(file->data, 1, count, stream);
    fclose(stream);
}

/* Writes one byte of the file anew. */
static void store_byte(const struct bytes *file, size_t at)
{
    int fd = open(file->path, O_WRONLY);
    if (pwrite(fd, file->data + at, 1, (off_t)at) != 1)
        abort();
    close(fd);
}

enum { FILES = 2 };
static const char *const names[FILES] = {"manifest.json", ZR_CHECKPOINT_STATE};

/* True when a resume is refused with words that name the file, and the engine still holds what it held. */
static bool is_refused(struct stand *stand, const char *name)
{
    uint64_t step = 0;
    zr_result result = zr_checkpoint_resume(&stand->checkpoint, &step);
    return (result == ZR_ERR_CORRUPT || result == ZR_ERR_FORMAT || result == ZR_ERR_IO) && step == 0 &&
           strstr(zr_last_error(), name);
}

/* Flips bits and cuts ends, one after the other. The exit code tells which kind was not noticed. */
static int act_damage(struct stand *stand, const struct scene *scene)
{
    static struct bytes file;
    uint64_t random = 99;

    if (fill(stand, scene, 1))
        return 1;
    for (int n = 0; n < FILES; n++) {
        load_bytes(&file, names[n]);
        size_t flips = n == 0 ? 8 * file.count : 1500;
        for (size_t flip = 0; flip < flips; flip++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t bit = n == 0 || flip < 600 ? flip : (random >> 20) % (8 * file.count);
            file.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            store_byte(&file, bit / 8);
            if (!is_refused(stand, names[n]))
                return 10 + n;
            file.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            store_byte(&file, bit / 8);
        }
        for (size_t count = 0; count < file.count; count += n == 0 ? 1 : count < 300 ? 1 : 997) {
            store_bytes(&file, count);
            if (!is_refused(stand, names[n]))
                return 20 + n;
        }
        unlink(file.path);
        if (n > 0 && !is_refused(stand, names[n]))
            return 30 + n;
        file.data[file.count] = ' ';
        store_bytes(&file, file.count + 1);
        if (!is_refused(stand, names[n]))
            return 40 + n;
        store_bytes(&file, file.count);
    }
    if (!holds(stand, 1))
        return 50; /* nothing of all this touched the engine */
    return act_resume(stand, scene);
}

/* ---- Hostile files with right checksums ---------------------------------------------------------------- */

static void store_manifest(json_t *root)
{
    struct bytes *file = calloc(1, sizeof *file);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    snprintf(file->path, sizeof file->path, "%s/step-00000020/manifest.json", runs);
    size_t used = strlen(text) - 2; /* less "\n}" */
    memcpy(file->data, text, used);
    uint64_t sum = zr_checkpoint_text_sum((const char *)file->data, used);
    used += (size_t)sprintf((char *)file->data + used, ZR_CHECKPOINT_SUM_KEY "%016llx\"}\n",
                            (unsigned long long)sum);
    store_bytes(file, used);
    free(text);
    free(file);
}

static json_t *load_manifest(const struct bytes *manifest)
{
    json_t *root = json_loadb((const char *)manifest->data, manifest->count, 0, NULL);
    json_object_del(root, "manifest_checksum");
    return root;
}

/* True when a resume is refused as above and says `word`; else words tell which of the cases it was. The
 * resume makes its JSON with functions of its own: afterwards they are this test's again. */
static bool case_is_refused(struct stand *stand, const char *name, const char *word, const char *which)
{
    bool good = is_refused(stand, name) && strstr(zr_last_error(), word);
    json_set_alloc_funcs(malloc, free);
    if (!good) {
        char *said = strdup(zr_last_error());
        zr_fail(ZR_ERR_CORRUPT, "%s: %.300s", which, said);
        free(said);
    }
    return good;
}

/* Manifests that are wrong in one value each: NULL removes it. */
static const struct {
    const char *object, *key, *value, *word;
} lies[] = {
    {NULL, "version", "2", "version 2"},
    {NULL, "version", "\"1\"", "not a manifest"},
    {NULL, "format", "\"other\"", "not a manifest"},
    {NULL, "format", NULL, "not a manifest"},
    {NULL, "step", "-1", "no step"},
    {NULL, "step", "1.5", "no step"},
    {NULL, "step", NULL, "no step"},
    {NULL, "data_order", "\"2\"", "its data order"},
    {NULL, "course", "[]", "course"},
    {"course", "schedule", "\"much longer than a schedule\"", "course"},
    {"course", "data_checksum", "7", "course"},
    {"course", "rate", NULL, "course"},
    {NULL, "seed", "6", "--seed 6"},
    {NULL, "seed", "[]", "no seed"},
    {NULL, "parameters", "1", "its number of parameters"},
    {NULL, "state", "[]", "checksum of the state"},
    {NULL, "state", NULL, "checksum of the state"},
    {NULL, "shape", "3", "shape"},
    {"shape", "arch", "\"llama\"", "--arch llama"},
    {"shape", "arch", NULL, "incomplete"},
    {"shape", "tied", "false", "--tie-embeddings"},
    {"shape", "tied", "1", "incomplete"},
    {"shape", "rope_theta", "500", "--rope-theta 500"},
    {"shape", "norm_epsilon", "0.5", "layer_norm_epsilon 0.5"},
    {"shape", "norm_epsilon", "[]", "incomplete"},
    {"shape", "kv_heads", "1", "--kv-heads 1"},
    {"shape", "ffn", "8", "--ffn 8"},
    {"shape", "layers", "4", "--layers 4"},
    {"shape", "hidden", "24", "--hidden 24"},
    {"shape", "heads", "7", "--heads 7"},
    {"shape", "vocabulary", "61", "--vocab 61"},
    {"shape", "sequence", "14", "--seq 14"},
    {"shape", "sequence", "\"13\"", "incomplete"},
    {"state", "checksum", "\"0000000000000000\"", "not the file of its manifest"},
    {"state", "checksum", "\"000000000000000\"", "checksum of the state"},
    {"state", "checksum", "\"                \"", "checksum of the state"},
    {"state", "checksum", "7", "checksum of the state"},
};

static int act_manifests(struct stand *stand, const struct scene *scene)
{
    static struct bytes manifest;
    load_bytes(&manifest, "manifest.json");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        json_t *root = load_manifest(&manifest), *object = root;
        if (lies[i].object)
            object = json_object_get(root, lies[i].object);
        if (lies[i].value)
            json_object_set_new(object, lies[i].key, json_loads(lies[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(object, lies[i].key);
        store_manifest(root);
        json_decref(root);
        if (!case_is_refused(stand, "step-00000020", lies[i].word, lies[i].key))
            return 10;
    }
    json_t *root = load_manifest(&manifest);
    store_manifest(root);
    json_decref(root);
    return act_resume(stand, scene);
}

static void test_damage(void)
{
    remove_runs();
    struct scene scene = {.act = act_save, .world = 2, .stage = 1, .step = 20, .salt = 3};
    plays(scene, 0, "a checkpoint to damage");
    scene.world = 1;
    scene.act = act_damage;
    plays(scene, 0, "every flipped bit, cut end and missing file is noticed");
    scene.act = act_manifests;
    plays(scene, 0, "%zu manifests that lie", sizeof lies / sizeof *lies);
    scene.world = 3;
    scene.act = act_resume;
    struct bytes *file = calloc(1, sizeof *file);
    load_bytes(file, ZR_CHECKPOINT_STATE);
    file->data[file->count - 5] ^= 4;
    store_bytes(file, file->count);
    plays(scene, 3, "three ranks find the damage together");
    const char *all = words;
    for (unsigned rank = 0; rank < 3; rank++) {
        char head[32];
        snprintf(head, sizeof head, "rank %u:", rank);
        const char *line = strstr(all, head);
        tap_ok(line && strstr(line, ZR_CHECKPOINT_STATE) && strstr(line, "checksum"), "rank %u says the same",
               rank);
    }
    free(file);
}

/* ---- Failures of the system ---------------------------------------------------------------------------- */

/* True when the folder holds nothing but complete steps and one of the two states can be resumed. */
static bool is_whole(struct stand *stand, bool may_be_new)
{
    uint64_t step = 0;
    char path[192];
    snprintf(path, sizeof path, "%s/.step-00000002.partial", runs);
    if (access(path, F_OK) == 0 || zr_checkpoint_resume(&stand->checkpoint, &step))
        return false;
    return (step == 1 && holds(stand, 1)) || (may_be_new && step == 2 && holds(stand, 2));
}

static int act_faults(struct stand *stand, const struct scene *scene)
{
    uint64_t failures = 0, step = 0;
    unsigned site = scene->site & 0xff;
    bool clean = false, must_pass = (scene->site & ~0xffu) >= ZR_FAULT_EINTR;
    struct scene two = *scene;
    two.step = 2;
    for (uint64_t nth = 1; !clean; nth += 1 + (must_pass ? nth : 0)) {
        if (fill(stand, &two, 2))
            return 1;
        zr_fault_set(scene->site, nth);
        zr_result result = zr_checkpoint_save(&stand->checkpoint, 2);
        clean = zr_fault_set(scene->site, 0) < nth;
        failures += !clean;
        if (clean || must_pass) {
            if (result || zr_checkpoint_resume(&stand->checkpoint, &step) || step != 2 || !holds(stand, 2))
                return 4;
        } else if (result != ZR_ERR_IO ||
                   !is_whole(stand, site == ZR_FAULT_SYNC || site == ZR_FAULT_DESCRIPTOR)) {
            return 2; /* only the last sync, of the folder above, comes after the rename */
        }
    }
    if (failures < scene->nth)
        return 3;
    clean = site != ZR_FAULT_OPEN && site != ZR_FAULT_READ && site != ZR_FAULT_DESCRIPTOR;
    for (uint64_t nth = 1; !clean; nth += 1 + (must_pass ? nth : 0)) {
        zr_fault_set(scene->site, nth);
        zr_result result = zr_checkpoint_resume(&stand->checkpoint, &step);
        clean = zr_fault_set(scene->site, 0) < nth;
        if ((clean || must_pass) && (result || !holds(stand, 2)))
            return 5;
        if (result && result != ZR_ERR_IO &&
            result != ZR_ERR_CORRUPT) /* that: it was proved, and fails afterwards */
            return 6;
    }
    return holds(stand, 2) ? 0 : 7;
}

static void test_faults(void)
{
    static const struct {
        unsigned site;
        uint64_t at_least;
    } sites[] = {{ZR_FAULT_OPEN, 3},
                 {ZR_FAULT_WRITE, 5},
                 {ZR_FAULT_SYNC, 6},
                 {ZR_FAULT_RENAME, 1},
                 {ZR_FAULT_READ, 0},
                 {ZR_FAULT_DESCRIPTOR, 3},
                 {ZR_FAULT_DESCRIPTOR | ZR_FAULT_TWICE, 3},
                 {ZR_FAULT_DESCRIPTOR | ZR_FAULT_EINTR, 2},
                 {ZR_FAULT_WRITE | ZR_FAULT_EINTR, 3},
                 {ZR_FAULT_WRITE | ZR_FAULT_SHORT, 3},
                 {ZR_FAULT_SYNC | ZR_FAULT_EINTR, 2},
                 {ZR_FAULT_READ | ZR_FAULT_EINTR, 0},
                 {ZR_FAULT_READ | ZR_FAULT_SHORT, 0}};
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        remove_runs();
        play((struct scene){.act = act_save, .world = 1, .step = 1, .salt = 1});
        plays(
            ((struct scene){.act = act_faults, .world = 1, .site = sites[i].site, .nth = sites[i].at_least}),
            0, "%s at every place: done, or the older checkpoint stays", zr_fault_site_name(sites[i].site));
    }
    remove_runs();
    play((struct scene){.act = act_save, .world = 1, .step = 1, .salt = 1});
    plays(((struct scene){.act = act_faults, .world = 1, .site = ZR_FAULT_SYNC, .nth = 7, .keep = 1}), 0,
          "a sync more where the older one goes");
    remove_runs();
    play((struct scene){.act = act_save, .world = 2, .step = 1, .salt = 1});
    plays(((struct scene){
              .act = act_save_faulty, .world = 2, .step = 2, .salt = 2, .site = ZR_FAULT_WRITE, .nth = 3}),
          2, "a full disk on rank 1");
    tap_ok(strstr(words, "rank 0: rank 1: ") && strstr(words, "rank 1: cannot write"),
           "is told by both ranks");
    plays(((struct scene){
              .act = act_save_faulty, .world = 2, .step = 2, .salt = 2, .site = ZR_FAULT_CREATE, .nth = 1}),
          2, "no memory on rank 1 for what is copied from a card");
    plays(((struct scene){.act = act_resume, .world = 2, .stage = 1, .step = 1, .salt = 1}), 0,
          "the older one is whole");
    tap_is(folder_entries(runs), 1, "and alone");
}

static void test_clean_up(void)
{
    char path[256];
    remove_runs();
    zr_checkpoint_clean_up("");
    zr_checkpoint_clean_up(runs);
    play((struct scene){.act = act_save, .world = 1, .step = 1, .salt = 1});
    static const char *const left[] = {".step-00000007.partial", ".step-00000123.partial"};
    static const char *const mine[] = {"notes", ".step-x", "x.partial", ".partial"};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/%s", runs, left[i]);
            mkdir(path, 0700);
            snprintf(path, sizeof path, "%s/%s/state.safetensors", runs, left[i]);
            close(open(path, O_CREAT | O_WRONLY, 0600));
        }
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/%s", runs, mine[i]);
            mkdir(path, 0700);
        }
        if (round == 0)
            zr_checkpoint_clean_up(runs);
        else
            play((struct scene){.act = act_save, .world = 1, .step = 1, .salt = 2});
        tap_is(folder_entries(runs), 5,
               round == 0 ? "unfinished saves are removed, all else stays" : "the next save does so too");
    }
    plays(((struct scene){.act = act_resume, .world = 1, .step = 1, .salt = 2}), 0,
          "the complete step is there");
}

static bool sync_fails;

int fsync(int fd)
{
    errno = EIO;
    return sync_fails ? -1 : (int)syscall(SYS_fsync, fd);
}

/* The step that was replaced goes when the name of the new one is on the disk. */
static void test_replaced(void)
{
    char aside[192], inside[224];
    snprintf(aside, sizeof aside, "%s/.step-00000001.replaced", runs);
    snprintf(inside, sizeof inside, "%s/manifest.json", aside);
    mkdir(aside, 0700);
    close(open(inside, O_CREAT | O_WRONLY, 0600));
    sync_fails = true;
    zr_checkpoint_clean_up(runs);
    sync_fails = false;
    tap_ok(access(inside, F_OK) == 0, "a step that was replaced stays while its folder is not synced");
    zr_checkpoint_clean_up(runs);
    tap_ok(access(aside, F_OK) != 0, "and goes then");
    plays(((struct scene){.act = act_resume, .world = 1, .step = 1, .salt = 2}), 0, "the new one is there");
}

/* One run at a time; a folder that was made for it goes with it, unless there is something in it. */
static void test_hold(void)
{
    struct zr_checkpoint_hold hold, second;
    char held[160], inside[192];
    int files = open_descriptors(), inherited = inherited_descriptors();
    snprintf(held, sizeof held, "%s/above/held", folder);
    snprintf(inside, sizeof inside, "%s/step", held);
    for (int round = 0; round < 3; round++) { /* it is made; it is there; it is made, and used */
        if (round == 1)
            mkdir(held, 0700);
        tap_result(zr_checkpoint_hold(&hold, held), ZR_OK, "a folder to save to");
        tap_is(inherited_descriptors(), inherited, "no program inherits the hold");
        if (round == 0)
            tap_ok(zr_checkpoint_hold(&second, held) == ZR_ERR_IO && strstr(zr_last_error(), "another run") &&
                       second.fd < 0,
                   "is another's while it is held");
        tap_is(open_descriptors(), files + 1, "and costs one descriptor");
        if (round == 2)
            mkdir(inside, 0700);
        zr_checkpoint_let_go(&hold, held);
        tap_is(access(held, F_OK) == 0, round > 0,
               "what was made for nothing goes, what is used or was there stays");
        tap_is(open_descriptors(), files, "and the descriptor");
        if (round == 1)
            rmdir(held);
    }
    tap_result(zr_checkpoint_hold(&hold, ""), ZR_OK, "no folder, nothing to hold");
    zr_checkpoint_let_go(&hold, "");
    tap_ok(zr_checkpoint_hold(&hold, "/dev/null/x") != ZR_OK && hold.fd < 0, "a folder that cannot be");
}

int main(void)
{
    if (!mkdtemp(folder))
        return 1;
    snprintf(runs, sizeof runs, "%s/runs", folder);
    test_worlds();
    test_choice();
    test_keep();
    test_damage();
    test_faults();
    test_clean_up();
    test_replaced();
    test_hold();
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        return 1;
    return tap_done();
}
