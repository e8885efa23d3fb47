/* fuzz_model_inputs.h: good files of a model and of a run for the fuzzers to start from, most of them written
 * by the very functions that write them for people. */
#ifndef ZR_FUZZ_MODEL_INPUTS_H
#define ZR_FUZZ_MODEL_INPUTS_H

#include "tests/support/fuzz/fuzz_inputs.h"
#include "tests/support/fuzz/fuzz_model.h"
#include "tests/support/fuzz/fuzz_settings.h"

/* ---- Saved by ranks of their own ----------------------------------------------------------------------- */

struct fuzz_saving {
    const char *folder;
    unsigned world, stage;
    enum zr_precision precision;
};

static inline int fuzz_save_rank(struct zr_local_world *local, unsigned rank, void *argument)
{
    const struct fuzz_saving *saving = argument;
    struct rig rig;
    char path[128];
    bool alone = saving->world == 1;
    must(fuzz_engine_open(&rig, &(struct fuzz_engine_options){.local = alone ? NULL : local,
                                                              .rank = rank,
                                                              .stage = saving->stage,
                                                              .precision = saving->precision}) == ZR_OK);
    must(fuzz_set_values(rig.engine, 0, 6) == ZR_OK);
    snprintf(path, sizeof path, "%s/saved-%u", saving->folder, saving->world);
    struct zr_checkpoint checkpoint = fuzz_checkpoint_of(&rig, path);
    checkpoint.stage = saving->stage;
    must(zr_checkpoint_save(&checkpoint, 7) == ZR_OK);
    snprintf(path, sizeof path, "%s/state-%u", saving->folder, saving->world);
    must(zr_engine_save(rig.engine, path) == ZR_OK);
    snprintf(path, sizeof path, "%s/model-%u", saving->folder, saving->world);
    must(zr_model_export(&(struct zr_model_file){
             .path = path, .engine = rig.engine, .comm = rig.comm, .shape = fuzz_shape}) == ZR_OK);
    must(zr_comm_barrier(rig.comm) == ZR_OK); /* who ends first does not cost the others their words */
    return rig_close(&rig) == 0 ? 0 : 1;
}

/* A log as a run leaves it. */
static inline bool fuzz_save_log(const char *folder)
{
    char path[128];
    struct zr_log log;
    snprintf(path, sizeof path, "%s/log", folder);
    zr_result result = zr_log_open(&log, path, 0);
    for (uint64_t step = FUZZ_LOG_STEP - 3; step < FUZZ_LOG_STEP + 3 && result == ZR_OK; step++)
        result = zr_log_step(&log, &(struct zr_step_line){.step = step, .loss = 4.5, .validated = step % 2});
    return result == ZR_OK && zr_log_close(&log) == ZR_OK;
}

/* Before fuzz_start(), as it forks. */
static inline bool fuzz_save_all(const char *folder)
{
    struct fuzz_saving two = {folder, 2, 3, ZR_PRECISION_FP32}, half = {folder, 1, 0, ZR_PRECISION_FP16};
    return rig_launch(two.world, fuzz_save_rank, &two) == 0 &&
           rig_launch(half.world, fuzz_save_rank, &half) == 0 && fuzz_save_log(folder);
}

/* ---- As inputs ----------------------------------------------------------------------------------------- */

/* Adds a file of the folder to the input. */
static inline bool fuzz_take(struct fuzz_input *input, const char *folder, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, input->data + input->bytes, FUZZ_MAX - input->bytes) : -1;
    if (fd >= 0)
        close(fd);
    input->bytes += got > 0 ? (size_t)got : 0;
    return got > 0;
}

static inline bool fuzz_saved_state(struct fuzz_input *input, const char *folder, unsigned world)
{
    char name[32];
    snprintf(name, sizeof name, "state-%u", world);
    *input = (struct fuzz_input){.bytes = 1, .data = {FUZZ_MAKE_SUM}};
    return fuzz_take(input, folder, name);
}

static inline bool fuzz_saved_model(struct fuzz_input *input, const char *folder)
{
    input->bytes = 0;
    return fuzz_take(input, folder, "model-2");
}

/* The manifest and the state, all sums to be made good. */
static inline bool fuzz_saved_checkpoint(struct fuzz_input *input, const char *folder, unsigned world)
{
    char step[160];
    snprintf(step, sizeof step, "%s/saved-%u/step-00000007", folder, world);
    *input = (struct fuzz_input){.bytes = 1, .data = {FUZZ_MAKE_SUM | FUZZ_MAKE_STATE_SUM}};
    bool good = fuzz_take(input, step, "manifest.json");
    fuzz_put(input, FUZZ_END, sizeof FUZZ_END - 1);
    return good && fuzz_take(input, step, ZR_CHECKPOINT_STATE);
}

/* A GPT-2 as others write it. */
struct fuzz_gpt_style {
    const char *prefix, *type; /* type: of two bytes */
    bool linear, head;         /* matrices are transposed; the head is there, and masks */
};

static inline void fuzz_gpt_put(struct fuzz_input *header, const struct fuzz_gpt_style *style,
                                const struct zr_parameter *p, size_t *at)
{
    char text[256];
    size_t rows = p->shape[0], columns = p->shape[1];
    bool turned = style->linear && columns && p->name[0] == 'h';
    if (strcmp(p->name, "wte.weight") == 0)
        rows = fuzz_shape.vocabulary;
    size_t bytes = 2 * rows * (columns ? columns : 1);
    int length = snprintf(text, sizeof text, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%zu", *at ? "," : "{",
                          style->prefix, p->name, style->type, turned ? columns : rows);
    fuzz_put(header, text, (size_t)length);
    length = columns ? snprintf(text, sizeof text, ",%zu", turned ? rows : columns) : 0;
    fuzz_put(header, text, (size_t)length);
    length = snprintf(text, sizeof text, "],\"data_offsets\":[%zu,%zu]}", *at, *at + bytes);
    fuzz_put(header, text, (size_t)length);
    *at += bytes;
}

static inline void fuzz_foreign_model(struct fuzz_input *input, const struct fuzz_gpt_style *style)
{
    static struct fuzz_input header;
    struct zr_parameter parameters[FUZZ_PARAMETERS];
    struct zr_unit units[FUZZ_UNITS];
    char text[256];
    size_t at = 0;
    shape_describe(&fuzz_shape, parameters, units);
    header.bytes = input->bytes = 0;
    for (unsigned i = 0; i < FUZZ_PARAMETERS; i++)
        fuzz_gpt_put(&header, style, &parameters[i], &at);
    if (style->head) { /* the mask lies before the head, which has the bits of wte: all of them one */
        int length = snprintf(text, sizeof text,
                              ",\"%sh.0.attn.bias\":{\"dtype\":\"BOOL\",\"shape\":[1,1,2,2],\"data_offsets\":"
                              "[%zu,%zu]},\"lm_head.weight\":{\"dtype\":\"%s\",\"shape\":[3,2],\"data_offsets"
                              "\":[%zu,%zu]},\"__metadata__\":{\"format\":\"pt\",\"n_head\":\"1\"}",
                              style->prefix, at, at + 4, style->type, at + 4, at + 16);
        fuzz_put(&header, text, (size_t)length);
        at += 16;
    }
    fuzz_put(&header, "}", 1);
    uint64_t header_bytes = header.bytes;
    fuzz_put(input, &header_bytes, sizeof header_bytes);
    fuzz_put(input, header.data, header.bytes);
    for (size_t i = 0; i < at / 2; i++) /* wte as the head: all the same */
        fuzz_put(input, &(uint16_t){(uint16_t)(i < 6 || i + 6 >= at / 2 ? 0x3c00 : 0x3c00 + i)}, 2);
}

/* ---- An archive of torch.save() ------------------------------------------------------------------------ */

static inline void fuzz_torch_tensor(struct fuzz_input *pickle, const char *name, unsigned offset)
{
    static const char rebuild[] = "ctorch._utils\n_rebuild_tensor_v2\n((", type[] = "ctorch\nFloatStorage\n",
                      shape[] = "tQK",
                      rest[] = "K\2K\3\x86K\3K\1\x86\x89"
                               "ccollections\nOrderedDict\n)RtR";
    fuzz_text(pickle, name, 2);
    fuzz_put(pickle, rebuild, sizeof rebuild - 1);
    fuzz_text(pickle, "storage", 2);
    fuzz_put(pickle, type, sizeof type - 1);
    fuzz_text(pickle, "0", 2);
    fuzz_text(pickle, "cpu", 2);
    fuzz_number(pickle, 8);
    fuzz_put(pickle, shape, sizeof shape - 1);
    fuzz_op(pickle, (int)offset);
    fuzz_put(pickle, rest, sizeof rest - 1);
}

/* Two tensors of one storage; `wide`: offsets in records of 64 bits. */
static inline void fuzz_torch_model(struct fuzz_input *input, bool wide)
{
    static struct fuzz_input pickle, directory;
    static const char start[] = "\x80\2"
                                "ccollections\nOrderedDict\n)R(",
                      names[3][12] = {"m/data.pkl", "m/byteorder", "m/data/0"};
    const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    pickle.bytes = directory.bytes = input->bytes = 0;
    fuzz_put(&pickle, start, sizeof start - 1);
    fuzz_torch_tensor(&pickle, "a", 0);
    fuzz_torch_tensor(&pickle, "b", 2);
    fuzz_put(&pickle, "u.", 2);
    const void *data[] = {pickle.data, "little", values};
    const uint32_t sizes[] = {(uint32_t)pickle.bytes, 6, sizeof values};
    for (unsigned i = 0; i < 3; i++) {
        uint16_t length = (uint16_t)strnlen(names[i], sizeof names[i]);
        uint64_t at = input->bytes;
        uint32_t place = wide ? UINT32_MAX : (uint32_t)at;
        unsigned char local[30] = "PK\3\4", entry[46] = "PK\1\2", extra[12] = "\1\0\x08";
        for (unsigned both = 0; both < 2; both++) {
            memcpy(local + 18 + 4 * both, &sizes[i], 4);
            memcpy(entry + 20 + 4 * both, &sizes[i], 4);
        }
        memcpy(local + 26, &length, 2);
        memcpy(entry + 28, &length, 2);
        entry[30] = wide ? sizeof extra : 0;
        memcpy(entry + 42, &place, 4);
        memcpy(extra + 4, &at, 8);
        fuzz_put(input, local, sizeof local);
        fuzz_put(input, names[i], length);
        fuzz_put(input, data[i], sizes[i]);
        fuzz_put(&directory, entry, sizeof entry);
        fuzz_put(&directory, names[i], length);
        fuzz_put(&directory, extra, wide ? sizeof extra : 0);
    }
    uint64_t place[] = {directory.bytes, input->bytes}, end_at = input->bytes + directory.bytes;
    uint32_t narrow[] = {wide ? UINT32_MAX : (uint32_t)place[0], wide ? UINT32_MAX : (uint32_t)place[1]};
    unsigned char end64[56] = "PK\6\6", locator[20] = "PK\6\7", end[22] = "PK\5\6";
    memcpy(end64 + 40, place, sizeof place);
    memcpy(locator + 8, &end_at, 8);
    memcpy(end + 12, narrow, sizeof narrow);
    fuzz_put(input, directory.data, directory.bytes);
    fuzz_put(input, end64, wide ? sizeof end64 : 0);
    fuzz_put(input, locator, wide ? sizeof locator : 0);
    fuzz_put(input, end, sizeof end);
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

/* Megatron's index of three sequences in two documents, and their tokens. */
static inline void fuzz_indexed(struct fuzz_input *input, bool wide)
{
    static const uint32_t lengths[] = {50, 100, 30};
    unsigned each = wide ? 4 : 2;
    uint64_t counts[2] = {3, 3}, places[] = {0, 50 * each, 150 * each}, documents[] = {0, 1, 3};
    char head[18] = "MMIDIDX\0\0\1";
    head[17] = wide ? 4 : 8;
    input->bytes = 0;
    fuzz_put(input, head, sizeof head);
    fuzz_put(input, counts, sizeof counts);
    fuzz_put(input, lengths, sizeof lengths);
    fuzz_put(input, places, sizeof places);
    fuzz_put(input, documents, sizeof documents);
    fuzz_put(input, FUZZ_END, sizeof FUZZ_END - 1);
    for (uint32_t i = 0; i < 180; i++)
        fuzz_put(input, &(uint32_t){i * 977 % 50257}, each);
}

static const char fuzz_adamw_config[] =
    "{\"train_batch_size\": 6, \"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 2,\n"
    " \"gradient_clipping\": 0.5, \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 4096,\n"
    " \"allgather_bucket_size\": 4.096e3, \"overlap_comm\": true, \"offload_param\": {\"device\": "
    "\"none\"}},\n"
    " \"bf16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-3,\n"
    " \"betas\": [0.8, 0.99], \"eps\": 1e-8, \"weight_decay\": 0.05}}, \"scheduler\": {\"type\":\n"
    " \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": 0.003, \"total_num_steps\": "
    "60,\n"
    " \"warmup_num_steps\": 2, \"warmup_type\": \"linear\"}}, \"wall_clock_breakdown\": false}\n";
static const char fuzz_sgd_config[] =
    "{\"train_batch_size\": 24, \"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"initial_scale_power\": "
    "12,\n"
    "  \"loss_scale_window\": 500, \"hysteresis\": 2, \"min_loss_scale\": 1, \"auto_cast\": false},\n"
    " \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": 0.9, \"dampening\": 0,\n"
    "  \"nesterov\": false}},\n \"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": "
    "{\"cos_min_ratio\":\n"
    "  0.01, \"total_num_steps\": 1000, \"warmup_num_steps\": 10, \"warmup_type\": \"linear\"}},\n"
    " \"activation_checkpointing\": {\"cpu_checkpointing\": false}}";
static const char fuzz_some_options[] =
    "vocab=byte\nsteps=20\nbatch=8\nbucket-bytes=4MiB\nmemory-limit=2GB\nprecision=bf16\nlr=1e-3\nparams="
    "124e6\n"
    "recompute=selective\nstage=3\nsave=folder\nprompt=Once\nloss-scale=1024\nworld-size=64";
static const char fuzz_torchrun[] = "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=4\n"
                                    "MASTER_ADDR=localhost\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID=none\n";
static const char fuzz_slurm[] =
    "SLURM_PROCID=2\nSLURM_NTASKS=3\nSLURM_LOCALID=2\nSLURM_JOB_ID=4711\nSLURM_STEP_ID=0\n";
static const char fuzz_mpirun[] =
    "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0\n"
    "OMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_NAMESPACE=prterun-a-1\n";
static const char fuzz_some_text[] =
    "The memory of a training run is what its parameters, gradients and optimizer take, and what stays of\n"
    "every layer until backward comes by; the rest is holes.\n";
static const char fuzz_machine_text[] =
    "MemTotal:       16303428 kB\nMemFree:  1 kB\nMemAvailable:    9000000 kB\nCommitLimit: 8 kB\n" FUZZ_END
    "processor\t: 0\nmodel name\t: A processor of a rather long name, at 2.00GHz, and more behind "
    "that\n" FUZZ_END "3:cpu,cpuacct:/\n1:memory:/\n0::/\n" FUZZ_END
    "24 1 0:20 / /proc rw - proc proc rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup "
    "rw\n" FUZZ_END "150000 100000\n" FUZZ_END "2147483648\n";

#endif
