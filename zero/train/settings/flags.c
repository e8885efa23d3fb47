/* flags.c: the one table of zr-train's options. To add an option, add a line. */
#include "zero/train/settings/flags.h"

#define FIELD(name) offsetof(struct zr_train_config, name), sizeof(((struct zr_train_config *)0)->name)

/* Which fields of the line are given where: name, group, argument, help, then what the kind needs. */
#define TEXT(option, group_, argument_, field, help_)                                                        \
    {                                                                                                        \
        option, group_, argument_, help_, NULL, NULL, NULL, ZR_FLAG_TEXT, FIELD(field), 0, 0                 \
    }
#define COUNT(option, group_, field, fallback_, least_, most_, help_)                                        \
    {                                                                                                        \
        option, group_, "N", help_, fallback_, NULL, NULL, ZR_FLAG_COUNT, FIELD(field), least_, most_        \
    }
#define REAL(option, group_, field, fallback_, least_, most_, help_)                                         \
    {                                                                                                        \
        option, group_, "F", help_, fallback_, NULL, NULL, ZR_FLAG_REAL, FIELD(field), least_, most_         \
    }
#define CHOICE(option, group_, field, fallback_, choices_, help_)                                            \
    {                                                                                                        \
        option, group_, NULL, help_, fallback_, NULL, choices_, ZR_FLAG_CHOICE, FIELD(field), 0, 0           \
    }

#define SWITCH(option, group_, field, help_)                                                                 \
    {                                                                                                        \
        option, group_, NULL, help_, NULL, NULL, NULL, ZR_FLAG_SWITCH, FIELD(field), 0, 0                    \
    }
/* What is recomputed, and of how many layers, side by side. */
#define RECOMPUTE_FIELDS offsetof(struct zr_train_config, shape.recompute), 2 * sizeof(unsigned)

/* Steps and seconds, side by side. */
#define EVERY_FIELDS(field) offsetof(struct zr_train_config, field), 2 * sizeof(uint64_t)

static const char model[] = "Model", data[] = "Data and steps", memory[] = "Ranks and memory",
                  optimizing[] = "Optimizer", files[] = "Files", text[] = "Text at the end",
                  other[] = "Other";

const struct zr_flag zr_flags[] = {
    TEXT("data", data, "FILE", data, "any text file, or an llm.c token shard with --vocab V"),
    {"vocab", data, "byte|V", "tokens are bytes, or V of them in a token shard", "byte", NULL, NULL,
     ZR_FLAG_VOCAB, FIELD(shape.vocabulary), 2, 1 << 24},
    COUNT("steps", data, steps, "200", 1, 1e12, "steps to train, those of a resumed run included"),
    COUNT("batch", data, shape.batch, "8", 1, 1 << 20, "sequences per data rank and micro-batch"),
    COUNT("accumulate", data, micro_batches, "1", 1, 65536, "batches whose gradients make one step"),
    COUNT("seq", data, shape.sequence, "128", 1, 1 << 20, "tokens per sequence"),
    COUNT("eval-every", data, eval_every, "100", 0, 1e12,
          "steps between validations on held-out text; 0: none"),
    COUNT("seed", data, seed, "1", 0, 9007199254740992.0,
          "of initial values, order of the data and the sample"),

    {"params", model, "N", "parameters, as 124e6, choose a shape; no --data: --vocab 50257 --seq 1024", NULL,
     NULL, NULL, ZR_FLAG_REAL, FIELD(parameters), 1000, 1e15},
    COUNT("layers", model, shape.layers, "4", 1, 65536, "transformer blocks"),
    COUNT("hidden", model, shape.hidden, "128", 1, 1 << 20, "channels; a multiple of --heads"),
    COUNT("heads", model, shape.heads, "4", 1, 65536, "attention heads"),
    CHOICE("arch", model, shape.architecture, "gpt2", "gpt2|llama", "what the model is made of"),
    {"kv-heads", model, "N", "LLaMA's heads of keys and values; a divisor of --heads", NULL, "--heads", NULL,
     ZR_FLAG_COUNT, FIELD(shape.kv_heads), 1, 65536},
    {"ffn", model, "N", "width of LLaMA's feed-forward layer", NULL, "8/3 of --hidden", NULL, ZR_FLAG_COUNT,
     FIELD(shape.ffn), 1, 1 << 22},
    {"rope-theta", model, "F", "base of LLaMA's rotary angles", NULL, "10000", NULL, ZR_FLAG_REAL,
     FIELD(shape.rope_theta), 1, 1e12},
    {"norm-epsilon", model, "F", "added to the mean square in LLaMA's norms", NULL, "1e-5", NULL,
     ZR_FLAG_REAL, FIELD(shape.norm_epsilon), 1e-12, 1},
    {"tie-embeddings", model, NULL, "LLaMA's head is its embedding, as GPT-2's is", NULL, NULL, NULL,
     ZR_FLAG_SWITCH, FIELD(shape.tied), 0, 0},
    {"recompute", model, NULL, "activations made again in backward; full:N: in N layers", "none", NULL,
     "none|selective|full", ZR_FLAG_RECOMPUTE, RECOMPUTE_FIELDS, 0, 0},
    CHOICE("precision", model, precision, "fp32", "fp32|bf16|fp16|fp8",
           "of parameters, gradients, activations; fp8: of bf16 products"),

    COUNT("ranks", memory, world, "1", 1, 256, "processes that train together"),
    COUNT("tp", memory, shape.tensor, "1", 1, 256, "ranks that divide each layer (tensor parallel)"),
    COUNT("pp", memory, stages.ranks, "1", 1, 256, "ranks that divide the layers (pipeline parallel)"),
    CHOICE("schedule", memory, stages.schedule, "1f1b", "1f1b|naive|gpipe|vhalf",
           "how micro-batches go through the stages of --pp"),
    {"interleave", memory, "N", "stages of each rank of --pp, with 1f1b", NULL, "1; vhalf has 2", NULL,
     ZR_FLAG_COUNT, FIELD(stages.interleave), 1, ZR_PIPELINE_PARTS_MOST},
    CHOICE("pipeline-cut", memory, pipeline_cut, "memory", "memory|equal",
           "layers of each stage, for equal peaks or equally many"),
    COUNT("tile", memory, shape.tiles, "1", 1, 65536,
          "pieces of each product and of the vocabulary, gathered one by one"),
    SWITCH("sequence-parallel", memory, shape.sequence_parallel,
           "ranks of --tp divide the rows of norms and residuals too"),
    CHOICE("stage", memory, stage, "0", "0|1|2|3|auto",
           "ZeRO: 1 divides optimizer, 2 gradients, 3 parameters; auto found"),
    {"threads", memory, "N", "threads of each rank", NULL, "cores / ranks; 1 with --world-size", NULL,
     ZR_FLAG_COUNT, FIELD(threads), 0, 1024},
    {"bucket-bytes", memory, "BYTES", "a slot of the communication buffers: 4096 or more, 64 per rank",
     "4MiB", NULL, NULL, ZR_FLAG_BYTES, FIELD(bucket_bytes), 4096, 1 << 30},
    {"memory-limit", memory, "BYTES", "largest arena of a rank's tensors (`other` is beside it)", NULL,
     "none", NULL, ZR_FLAG_BYTES, FIELD(memory_limit_bytes), 1 << 20, 1e18},
    {"logits-bytes", memory, "BYTES", "of the head at a time, on a card", NULL, "1GiB, or what fits", NULL,
     ZR_FLAG_BYTES, FIELD(logits_bytes), 1, 1e18},
    CHOICE("over-plan", memory, over_plan, "fail", "fail|continue",
           "when a tag is to have more than the byte plan says"),
    CHOICE("zero-r", memory, zero_r, NULL, "C1|C2|C3|C4|C5|auto",
           "C1 stage 1, C3 stage 2; C2, C4 in parts; C5 on the host; auto found all"),
    SWITCH("partition-activations", memory, checkpoints.partition,
           "each rank of --tp keeps a part of a checkpoint"),
    SWITCH("checkpoint-offload", memory, checkpoint_offload,
           "activation checkpoints go to host memory and back"),
    {"offload-optimizer", memory, NULL, "optimizer state and masters in host memory or a file on a disk",
     "none", NULL, "none|cpu|nvme:DIR", ZR_FLAG_TIER, FIELD(offload_optimizer), 0, 0},
    {"offload-param", memory, NULL, "stage 3: parameters in host memory or a file until used", "none", NULL,
     "none|cpu|nvme:DIR", ZR_FLAG_TIER, FIELD(offload_parameters), 0, 0},
    {"spill", memory, NULL, "between steps, when others need its memory, to a file: see zrd", "none", NULL,
     "none|nvme:DIR", ZR_FLAG_TIER, FIELD(spill), 0, 0},
    SWITCH("wait", memory, wait, "under zrd: a run that does not fit now waits until it does"),
    {"offload-ratio", memory, "F|auto", "part of the optimizer that is offloaded; auto: what must be", "1",
     NULL, NULL, ZR_FLAG_RATIO, FIELD(offload_ratio), 0, 1},
    SWITCH("delayed-update", memory, delayed_update,
           "the host updates while the next step computes: other losses"),
    {"speculative-update", memory, "BYTES|auto|none",
     "before the norm is known; room to undo it; auto: all of a file", "auto", NULL, NULL, ZR_FLAG_ROOM,
     FIELD(speculative_bytes), 4096, 1e18},
    {"offload-buffers", memory, "N", "units of state in a file that are in memory at a time", "3", NULL, NULL,
     ZR_FLAG_COUNT, FIELD(offload_buffers), 3, 16},
    {"host-limit", memory, "BYTES", "largest arena of what a rank keeps in host memory", NULL, "none", NULL,
     ZR_FLAG_BYTES, FIELD(host_limit_bytes), 1 << 20, 1e18},
    {"nvme-depth", memory, "N", "transfers of a file under way at a time", NULL, "measured", NULL,
     ZR_FLAG_COUNT, FIELD(nvme_depth), 1, 64},
    {"nvme-limit", memory, "BYTES", "largest files of what a rank offloads to a disk", NULL, "none", NULL,
     ZR_FLAG_BYTES, FIELD(nvme_limit_bytes), 1 << 20, 9e18},
    SWITCH("no-contiguous", memory, checkpoints.scattered, "checkpoints and gradients have no pools"),
    SWITCH("no-constant-buffers", memory, growing_buffers, "buffers as large as what passes through them"),
    CHOICE("policy", memory, policy, "zr", "zr|caching|expandable|bestfit",
           "refuse what another allocator could not place, by a model of it"),
    SWITCH("force", memory, force, "do what would save nothing as well"),
    CHOICE("find-max", memory, find_max, NULL, "batch|layers",
           "the largest that fits under --memory-limit, and its byte plan"),
    CHOICE("reduce", memory, reduce, "each", "each|once",
           "each batch, or (stages 0, 1) once a step: other bits"),
    CHOICE("backend", memory, backend, "host", "host|sim|cuda",
           "where memory comes from; sim with --dry-run only, cuda: a card"),
    COUNT("device", memory, device, "0", 0, 1023,
          "the card of --backend cuda; with --comm nccl of the first rank here"),
    SWITCH("cuda-graph", memory, cuda_graph, "--backend cuda: steps are one launch of a CUDA graph each"),
    CHOICE("comm", memory, comm, "local", "local|mpi|nccl", "how ranks talk to each other"),
    SWITCH("deterministic", memory, deterministic, "--comm nccl adds in rank order, as the others do"),
    COUNT("comm-timeout", memory, comm_timeout, "600", 1, 1000000,
          "seconds that a rank may be silent before it counts as lost"),

    {"lr", optimizing, "F", "highest learning rate", "1e-3", NULL, NULL, ZR_FLAG_REAL, FIELD(rate), 0, 10},
    {"min-lr", optimizing, "F", "learning rate of the last step", NULL, "a tenth of --lr", NULL, ZR_FLAG_REAL,
     FIELD(min_rate), 0, 10},
    {"warmup", optimizing, "N", "steps of climbing learning rate", NULL,
     "--steps/10; 20 to 100, half at most", NULL, ZR_FLAG_COUNT, FIELD(warmup), 0, 1e12},
    CHOICE("schedule-lr", optimizing, rate_kind, "cosine", "cosine|linear|constant",
           "learning rate after the warm-up"),
    REAL("weight-decay", optimizing, optimizer.weight_decay, "0.1", 0, 10, "of matrices"),
    REAL("beta1", optimizing, optimizer.beta1, "0.9", 0, 0.999999, "decay of the momentum"),
    REAL("beta2", optimizing, optimizer.beta2, "0.95", 0, 0.999999, "decay of the variance"),
    CHOICE("optimizer", optimizing, optimizer.kind, "adamw", "adamw|sgd", "AdamW, or SGD with momentum"),
    REAL("momentum", optimizing, optimizer.momentum_factor, "0.9", 0, 0.999999, "of --optimizer sgd"),
    REAL("lr-embeddings", optimizing, optimizer.groups[ZR_GROUP_EMBEDDINGS].rate_factor, "1", 0, 1000,
         "learning rate of the embeddings, in multiples of --lr"),
    REAL("lr-vectors", optimizing, optimizer.groups[ZR_GROUP_VECTORS].rate_factor, "1", 0, 1000,
         "learning rate of norms and biases, likewise"),
    REAL("clip", optimizing, optimizer.clip, "1", 0, 1e9, "largest gradient norm; 0: no clipping"),

    REAL("loss-scale", optimizing, loss_scale, "0", 0, 4294967296.0,
         "of --precision fp16; 0: as large as the gradients bear"),
    COUNT("loss-scale-power", optimizing, loss_scale_power, "16", 0, 32, "it starts at two to this power"),
    COUNT("loss-scale-window", optimizing, loss_scaling.window, "1000", 1, 1000000000,
          "steps without overflow before it doubles"),
    COUNT("loss-scale-hysteresis", optimizing, loss_scaling.hysteresis, "2", 1, 1000000,
          "steps with overflow before it halves; each is skipped"),
    REAL("min-loss-scale", optimizing, loss_scaling.least, "1", 1e-6, 4294967296.0,
         "its least; a step with overflow then ends the run"),

    TEXT("config", files, "FILE.json", config_file, "settings as DeepSpeed names them; options win over it"),
    TEXT("save", files, "DIR", save, "checkpoints go here; Ctrl-C and SIGTERM save and end, SIGUSR1 saves"),
    {"save-every", files, "STEPS|TIME", "between checkpoints, time as 30s, 10m, 2h; 0: at the end only",
     "10m", NULL, NULL, ZR_FLAG_EVERY, EVERY_FIELDS(save_every), 0, 1e12},
    COUNT("keep", files, keep, "0", 0, 1000000,
          "newest checkpoints that stay; 0: all. Not given: one of those by the clock"),
    TEXT("resume", files, "DIR|FILE", resume,
         "go on from the newest checkpoint, or start from a model as safetensors"),
    SWITCH("assume-shape", files, assume_shape,
           "--resume FILE without a config.json: the options are its shape"),
    TEXT("export", files, "FILE", export, "the model as one safetensors file, after the last step"),
    TEXT("log", files, "FILE.jsonl", log, "a line of JSON per step"),
    TEXT("json", files, "FILE", json, "all numbers of the run; - is standard output"),
    TEXT("trace", files, "FILE.zrt", trace,
         "every event of the arena, for the zr tools; of several ranks FILE.zrt.0, ..."),

    COUNT("sample", text, sample, "0", 0, 1000000, "tokens of text to make after the last step"),
    TEXT("prompt", text, "TEXT", prompt, "what the text starts with; with a token shard, numbers of tokens"),
    REAL("temperature", text, temperature, "0.8", 0, 100, "0: always the likeliest token"),

    {"dry-run", other, NULL, "print the byte plan and end", NULL, NULL, NULL, ZR_FLAG_SWITCH, FIELD(dry_run),
     0, 0},
    SWITCH("prove", other, prove, "compare each step with one rank that has the whole model"),
    {"tolerance", other, "F", "of --prove, of a tensor's size", NULL, "1e-5; 1e-2 in two bytes", NULL,
     ZR_FLAG_REAL, FIELD(tolerance), 1e-9, 1},
    {"world-size", other, "N", "ranks of the byte plan, with --dry-run", NULL, "--ranks", NULL, ZR_FLAG_COUNT,
     FIELD(world_size), 1, 1 << 20},
    {"flops", other, "F", "operations a second of a rank, as 312e12: the plan has a step timeline", NULL,
     NULL, NULL, ZR_FLAG_REAL, FIELD(flops_per_second), 1, 1e21},
    {"bandwidth", other, "F", "bytes a second that a rank sends, as 25e9; with --flops", NULL, NULL, NULL,
     ZR_FLAG_REAL, FIELD(bytes_per_second), 1, 1e18},
    {"host-bandwidth", other, "F", "bytes a second of host copies; with --flops", NULL,
     "measured, no dry run", NULL, ZR_FLAG_REAL, FIELD(host_bytes_per_second), 1, 1e18},
    {"nvme-bandwidth", other, "F", "bytes a second of nvme:DIR; with --flops", NULL, "measured, no dry run",
     NULL, ZR_FLAG_REAL, FIELD(nvme_bytes_per_second), 1, 1e18},
    {"help", other, NULL, "this text", NULL, NULL, NULL, ZR_FLAG_HELP, 0, 0, 0, 0},
    {"version", other, NULL, "the version; -V is the same", NULL, NULL, NULL, ZR_FLAG_VERSION, 0, 0, 0, 0},
};
_Static_assert(offsetof(struct zr_shape, recompute_layers) ==
                   offsetof(struct zr_shape, recompute) + sizeof(unsigned),
               "RECOMPUTE_FIELDS");
_Static_assert(sizeof zr_flags / sizeof *zr_flags <= ZR_FLAGS_MOST,
               "there are more options than ZR_FLAGS_MOST");
const size_t zr_flags_count = sizeof zr_flags / sizeof *zr_flags;
