/* flags.c: the one table of zr-train's options. A new option is a new line of the table. */
#include "zero/train/settings/flags.h"

#define FIELD(name) offsetof(struct zr_train_config, name), sizeof(((struct zr_train_config *)0)->name)

/* Macros for the rows of the table: name, group, argument, help, then the fields of the option's kind. */
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
#define BY_OPTIMIZER(option, field, least_, most_, help_)                                                    \
    {                                                                                                        \
        option, optimizing, "F", help_, NULL, "by --optimizer", NULL, ZR_FLAG_REAL, FIELD(field), least_,    \
            most_                                                                                            \
    }
#define CHOICE(option, group_, field, fallback_, choices_, help_)                                            \
    {                                                                                                        \
        option, group_, NULL, help_, fallback_, NULL, choices_, ZR_FLAG_CHOICE, FIELD(field), 0, 0           \
    }

#define LIST(option, group_, kind_, field, argument_, help_)                                                 \
    {                                                                                                        \
        option, group_, argument_, help_, NULL, NULL, NULL, kind_, FIELD(field), 0, 0                        \
    }

#define SWITCH(option, group_, field, help_)                                                                 \
    {                                                                                                        \
        option, group_, NULL, help_, NULL, NULL, NULL, ZR_FLAG_SWITCH, FIELD(field), 0, 0                    \
    }
/* The policy and the number of layers, which are adjacent fields. */
#define RECOMPUTE_FIELDS offsetof(struct zr_train_config, shape.recompute), 2 * sizeof(unsigned)

/* Steps and seconds, which are adjacent fields. */
#define EVERY_FIELDS(field) offsetof(struct zr_train_config, field), 2 * sizeof(uint64_t)

static const char model[] = "Model", data[] = "Data and steps", memory[] = "Ranks and memory",
                  optimizing[] = "Optimizer", files[] = "Files", text[] = "Text at the end",
                  other[] = "Other";

const struct zr_flag zr_flags[] = {
    LIST("data", data, ZR_FLAG_SOURCES, data, "FILES[:weight=F]",
         "text, or with --vocab V tokens; * matches; may be repeated"),
    CHOICE("data-type", data, data_type, "auto", "auto|uint16|uint32|int64",
           "numbers of a token file without a header, as nanoGPT's"),
    CHOICE("data-order", data, epochs, "random", "random|epochs",
           "windows at random places, or each window once per epoch"),
    {"vocab", data, "byte|V", "tokens are bytes, or V of them in a token shard", "byte", NULL, NULL,
     ZR_FLAG_VOCAB, FIELD(shape.vocabulary), 2, 1 << 24},
    COUNT("steps", data, steps, "200", 1, 1e12, "steps to train, those of a resumed run included"),
    {"epochs", data, "N", "--data-order epochs: ends after N passes over the data, in place of --steps", NULL,
     NULL, NULL, ZR_FLAG_COUNT, FIELD(passes), 1, 1e9},
    COUNT("batch", data, shape.batch, "8", 1, 1 << 20, "sequences per data rank and micro-batch"),
    COUNT("accumulate", data, micro_batches, "1", 1, 65536,
          "micro-batches per step; their gradients are summed"),
    COUNT("seq", data, shape.sequence, "128", 1, 1 << 20, "tokens per sequence"),
    {"stride", data, "N", "of eval: tokens from one window to the next", NULL, "--seq", NULL, ZR_FLAG_COUNT,
     FIELD(stride), 1, 1 << 20},
    {"eos", data, "N", "token that ends a document, for --mask-documents", NULL, "none", NULL, ZR_FLAG_COUNT,
     FIELD(shape.eos), 0, (1 << 24) - 1},
    SWITCH("mask-documents", data, shape.documents,
           "attention and positions restart with each document of a sequence"),
    COUNT("eval-every", data, eval_every, "100", 0, 1e12,
          "steps between validations on held-out text; 0: none"),
    COUNT("seed", data, seed, "1", 0, 9007199254740992.0, "seed of initial values, data order and sample"),

    {"params", model, "N", "number of parameters, as 124e6: chooses a shape; without --data for GPT-2 text",
     NULL, NULL, NULL, ZR_FLAG_REAL, FIELD(parameters), 1000, 1e15},
    TEXT("model", model, "DIR", model,
         "model of transformers: shape of its config.json, values of its files, if any"),
    COUNT("layers", model, shape.layers, "4", 1, 65536, "transformer blocks"),
    COUNT("hidden", model, shape.hidden, "128", 1, 1 << 20, "channels; a multiple of --heads"),
    COUNT("heads", model, shape.heads, "4", 1, 65536, "attention heads"),
    CHOICE("arch", model, shape.architecture, "gpt2", "gpt2|llama", "architecture"),
    {"kv-heads", model, "N", "LLaMA: heads of keys and values; a divisor of --heads", NULL, "--heads", NULL,
     ZR_FLAG_COUNT, FIELD(shape.kv_heads), 1, 65536},
    {"ffn", model, "N", "LLaMA: width of the feed-forward layer", NULL, "8/3 of --hidden", NULL,
     ZR_FLAG_COUNT, FIELD(shape.ffn), 1, 1 << 22},
    {"rope-theta", model, "F", "LLaMA: base of the rotary angles", NULL, "10000", NULL, ZR_FLAG_REAL,
     FIELD(shape.rope_theta), 1, 1e12},
    {"norm-epsilon", model, "F", "LLaMA: added to the mean square in norms", NULL, "1e-5", NULL, ZR_FLAG_REAL,
     FIELD(shape.norm_epsilon), 1e-12, 1},
    {"tie-embeddings", model, NULL, "LLaMA: one matrix for embedding and head, as in GPT-2", NULL, NULL, NULL,
     ZR_FLAG_SWITCH, FIELD(shape.tied), 0, 0},
    REAL("dropout", model, shape.residual_dropout, "0", 0, 0.99,
         "share of embeddings and of outputs of attention and MLP that training drops"),
    REAL("attention-dropout", model, shape.attention_dropout, "0", 0, 0.99,
         "share of attention's probabilities that training drops"),
    {"recompute", model, NULL, "activations that backward recomputes; full:N: all of N layers", "none", NULL,
     "none|selective|full", ZR_FLAG_RECOMPUTE, RECOMPUTE_FIELDS, 0, 0},
    CHOICE("precision", model, precision, "fp32", "fp32|bf16|fp16|fp8",
           "of parameters, gradients, activations; fp8: bf16, fp8 products"),

    COUNT("ranks", memory, world, "1", 1, 256, "processes that train together"),
    COUNT("tp", memory, shape.tensor, "1", 1, 256, "ranks that divide each layer (tensor parallel)"),
    COUNT("cp", memory, shape.context, "1", 1, 256,
          "ranks that divide each sequence (context parallel, ring attention)"),
    COUNT("pp", memory, stages.ranks, "1", 1, 256, "ranks that divide the layers (pipeline parallel)"),
    CHOICE("schedule", memory, stages.schedule, "1f1b", "1f1b|naive|gpipe|vhalf|zb-h1|zb-v|2bw|pipedream",
           "order of micro-batches in the pipeline stages"),
    {"interleave", memory, "N", "pipeline stages per rank, for --schedule 1f1b", NULL, "1; vhalf, zb-v: 2",
     NULL, ZR_FLAG_COUNT, FIELD(stages.interleave), 1, ZR_PIPELINE_PARTS_MAX},
    CHOICE("pipeline-cut", memory, pipeline_cut, "memory", "memory|equal",
           "layers per stage: equal peak memory, or equal numbers"),
    COUNT("tile", memory, shape.tiles, "1", 1, 65536,
          "pieces of products and vocabulary, gathered one at a time"),
    SWITCH("sequence-parallel", memory, shape.sequence_parallel,
           "the ranks of --tp divide the rows of norms and residuals too"),
    CHOICE("stage", memory, stage, "0", "0|1|2|3|auto",
           "ZeRO stage: 1 shards optimizer state, 2 gradients, 3 parameters"),
    {"threads", memory, "N", "threads per rank", NULL, "cores / ranks; 1 with --world-size", NULL,
     ZR_FLAG_COUNT, FIELD(threads), 0, 1024},
    {"bucket-bytes", memory, "BYTES", "slot of the communication buffers: 4096 or more, 64 per rank", "4MiB",
     NULL, NULL, ZR_FLAG_BYTES, FIELD(bucket_bytes), 4096, 1 << 30},
    {"memory-limit", memory, "BYTES", "maximum arena of a rank's tensors, without tag `other`", NULL, "none",
     NULL, ZR_FLAG_BYTES, FIELD(memory_limit_bytes), 1 << 20, 1e18},
    {"logits-bytes", memory, "BYTES", "logits that the head computes at a time, on a GPU", NULL,
     "1GiB, or what fits", NULL, ZR_FLAG_BYTES, FIELD(logits_bytes), 1, 1e18},
    CHOICE("over-plan", memory, over_plan, "fail", "fail|continue",
           "what happens when a tag exceeds the byte plan"),
    CHOICE("zero-r", memory, zero_r, NULL, "C1|C2|C3|C4|C5|auto",
           "ZeRO-R preset: C1 to C5; auto: the fastest that fits --memory-limit"),
    SWITCH("partition-activations", memory, checkpoints.partition,
           "each rank of --tp keeps a part of each activation checkpoint"),
    SWITCH("checkpoint-offload", memory, checkpoint_offload, "keep activation checkpoints in host memory"),
    {"offload-optimizer", memory, NULL, "keep optimizer state and masters in host memory or in a file",
     "none", NULL, "none|cpu|nvme:DIR", ZR_FLAG_TIER, FIELD(offload_optimizer), 0, 0},
    {"offload-param", memory, NULL, "stage 3: keep parameters in host memory or in a file", "none", NULL,
     "none|cpu|nvme:DIR", ZR_FLAG_TIER, FIELD(offload_parameters), 0, 0},
    {"spill", memory, NULL, "under zrd: swap out to a file when another run needs memory", "none", NULL,
     "none|nvme:DIR", ZR_FLAG_TIER, FIELD(spill), 0, 0},
    SWITCH("wait", memory, wait, "under zrd: if the run does not fit now, wait until it does"),
    {"offload-ratio", memory, "F|auto", "fraction of optimizer state to offload; auto: the least that fits",
     "1", NULL, NULL, ZR_FLAG_RATIO, FIELD(offload_ratio), 0, 1},
    SWITCH("delayed-update", memory, delayed_update,
           "update on the host while the next step computes; changes losses"),
    {"speculative-update", memory, "BYTES|auto|none",
     "update before the norm is known; maximum bytes for old values", "auto", NULL, NULL, ZR_FLAG_ROOM,
     FIELD(speculative_bytes), 4096, 1e18},
    {"offload-buffers", memory, "N", "units of state in memory at a time, for nvme:DIR", "3", NULL, NULL,
     ZR_FLAG_COUNT, FIELD(offload_buffers), 3, 16},
    {"host-limit", memory, "BYTES", "maximum arena of a rank's host tier", NULL, "none", NULL, ZR_FLAG_BYTES,
     FIELD(host_limit_bytes), 1 << 20, 1e18},
    {"nvme-depth", memory, "N", "concurrent transfers per file", NULL, "measured", NULL, ZR_FLAG_COUNT,
     FIELD(nvme_depth), 1, 64},
    {"nvme-limit", memory, "BYTES", "maximum size of a rank's files in nvme:DIR", NULL, "none", NULL,
     ZR_FLAG_BYTES, FIELD(nvme_limit_bytes), 1 << 20, 9e18},
    SWITCH("no-contiguous", memory, checkpoints.scattered,
           "keep checkpoints and gradients in blocks, not in pools"),
    SWITCH("no-constant-buffers", memory, growing_buffers,
           "buffers as large as the largest tensor in transit"),
    CHOICE("policy", memory, policy, "zr", "zr|caching|expandable|bestfit",
           "refuse the run if a model of another allocator finds no space"),
    SWITCH("force", memory, force, "allow offload and partitioning that save no memory"),
    CHOICE("find-max", memory, find_max, NULL, "batch|layers",
           "print the largest number that fits --memory-limit, and its plan"),
    CHOICE("reduce", memory, reduce, "each", "each|once",
           "reduce gradients per micro-batch, or once per step (other bits)"),
    {"compress", memory, "KIND:METHOD,..", "pack parameters, gradients or activations to send", NULL, "none",
     NULL, ZR_FLAG_COMPRESS, FIELD(compression), 0, 0},
    {"compress-warmup", memory, "N", "plain steps before onebit and powersgd", NULL,
     "0, onebit: 1 / (1 - beta2)", NULL, ZR_FLAG_COUNT, FIELD(compress_warmup), 0, 1e9},
    {"compress-check", memory, "N", "steps between checks of its error; 0: none", NULL,
     "0, with a tolerance 100", NULL, ZR_FLAG_COUNT, FIELD(compress_check), 0, 1e9},
    REAL("compress-tolerance", memory, compress_tolerance, "0", 0, 1e6,
         "relative error above which a kind is sent in full precision; 0: none"),
    {"node-size", memory, "N", "data ranks of a node, for two hops and hpz", NULL, "those of a host", NULL,
     ZR_FLAG_COUNT, FIELD(node_ranks), 0, 65536},
    CHOICE("backend", memory, backend, "host", "host|sim|cuda",
           "memory of tensors; cuda: a GPU; sim: --dry-run only"),
    COUNT("device", memory, device, "0", 0, 1023, "GPU of --backend cuda; with --comm nccl the first rank's"),
    SWITCH("cuda-graph", memory, cuda_graph, "--backend cuda: launch each step as one CUDA graph"),
    CHOICE("comm", memory, comm, "local", "local|mpi|nccl", "transport between ranks"),
    SWITCH("deterministic", memory, deterministic,
           "--comm nccl: sum in rank order, as the other transports do"),
    COUNT("comm-timeout", memory, comm_timeout, "600", 1, 1000000,
          "seconds of silence after which a rank counts as lost"),

    CHOICE("optimizer", optimizing, optimizer.kind, "adamw", ZR_OPTIMIZER_NAMES,
           "update of parameters, see below"),
    BY_OPTIMIZER("lr", rate, 0, 10, "maximum learning rate"),
    {"min-lr", optimizing, "F", "learning rate of the last step", NULL, "a tenth of --lr", NULL, ZR_FLAG_REAL,
     FIELD(min_rate), 0, 10},
    {"warmup", optimizing, "N", "steps in which the learning rate rises", NULL, "--steps/10, but 20 to 100",
     NULL, ZR_FLAG_COUNT, FIELD(warmup), 0, 1e12},
    CHOICE("warmup-type", optimizing, log_warmup, "linear", "linear|log", "how the learning rate rises"),
    REAL("warmup-lr", optimizing, start_rate, "0", 0, 10,
         "learning rate before the first step of the warm-up"),
    CHOICE("schedule-lr", optimizing, rate_kind, "cosine", ZR_RATE_NAMES, "learning rate after the warm-up"),
    REAL("decay-share", optimizing, decay_share, "0.1", 0, 1,
         "--schedule-lr wsd: share of the steps in which it falls"),
    REAL("weight-decay", optimizing, optimizer.weight_decay, "0.1", 0, 10, "decay of matrices"),
    BY_OPTIMIZER("beta1", optimizer.beta1, 0, 0.999999, "decay of the momentum"),
    BY_OPTIMIZER("beta2", optimizer.beta2, 0, 0.999999, "decay of the variance"),
    BY_OPTIMIZER("eps", optimizer.epsilon, 1e-30, 1, "added to the root of the variance"),
    BY_OPTIMIZER("trust-min", optimizer.trust_min, 0, 1e6, "smallest trust ratio of a tensor"),
    BY_OPTIMIZER("trust-max", optimizer.trust_max, 0, 1e6, "largest trust ratio of a tensor"),
    BY_OPTIMIZER("trust-average", optimizer.trust_average, 0, 0.999999,
                 "decay of the average trust ratio, for onebit"),
    BY_OPTIMIZER("momentum", optimizer.momentum_factor, 0, 0.999999,
                 "share of the last momentum in the next; 0: none"),
    REAL("lr-embeddings", optimizing, optimizer.groups[ZR_GROUP_EMBEDDINGS].rate_factor, "1", 0, 1000,
         "learning rate of embeddings, as a multiple of --lr"),
    REAL("lr-vectors", optimizing, optimizer.groups[ZR_GROUP_VECTORS].rate_factor, "1", 0, 1000,
         "learning rate of norms and biases, as a multiple of --lr"),
    LIST("group", optimizing, ZR_FLAG_GROUP, trainable.groups, "PATTERN:lr=F,decay=F",
         "factors of --lr and --weight-decay for tensors by name; may be repeated"),
    LIST("freeze", optimizing, ZR_FLAG_LIST, trainable.frozen, "PATTERN",
         "tensors that keep their values, by name; may be repeated"),
    {"lora", optimizing, "RANK[:PATTERN]",
     "train adapters of matrices by name (*attn* by default), and nothing else", NULL, NULL, NULL,
     ZR_FLAG_LORA, FIELD(trainable.lora), 1, 65536},
    {"lora-alpha", optimizing, "F", "adapters are multiplied by this over their rank", NULL, "2 x the rank",
     NULL, ZR_FLAG_REAL, FIELD(trainable.lora.alpha), 0, 1e6},
    REAL("clip", optimizing, optimizer.clip, "1", 0, 1e9, "maximum gradient norm; 0: no clipping"),

    REAL("ema", optimizing, optimizer.average_decay, "0", 0, 0.9999999,
         "decay of a moving average of the weights for validation, sample and export"),

    REAL("noise-scale", optimizing, noise_decay, "0", 0, 0.9999999,
         "measure the gradient noise scale, averaging with this decay, as 0.99"),

    REAL("loss-scale", optimizing, loss_scale, "0", 0, 4294967296.0,
         "fixed loss scale of --precision fp16; 0: adaptive"),
    COUNT("loss-scale-power", optimizing, loss_scale_power, "16", 0, 32,
          "the adaptive loss scale starts at two to this power"),
    COUNT("loss-scale-window", optimizing, loss_scaling.window, "1000", 1, 1000000000,
          "steps without overflow before the scale doubles"),
    COUNT("loss-scale-hysteresis", optimizing, loss_scaling.hysteresis, "2", 1, 1000000,
          "steps with overflow before the scale halves; each is skipped"),
    REAL("min-loss-scale", optimizing, loss_scaling.least, "1", 1e-6, 4294967296.0,
         "minimum loss scale; an overflow there ends the run"),

    TEXT("config", files, "FILE.json", config_file,
         "DeepSpeed-style settings; command-line options take precedence"),
    TEXT("save", files, "DIR", save, "folder of checkpoints; Ctrl-C and SIGTERM save and end, SIGUSR1 saves"),
    {"save-every", files, "STEPS|TIME", "steps or time (30s, 10m, 2h) between saves; 0: only at the end",
     "10m", NULL, NULL, ZR_FLAG_EVERY, EVERY_FIELDS(save_every), 0, 1e12},
    COUNT("keep", files, keep, "0", 0, 1000000,
          "number of newest checkpoints to keep; 0: all; default 1 if saved by time"),
    TEXT("resume", files, "DIR|FILE", resume,
         "newest checkpoint of DIR to continue, or safetensors model to start from"),
    SWITCH("assume-shape", files, assume_shape,
           "--resume FILE without a config.json: the options are its shape"),
    TEXT("export", files, "FILE|DIR/", export,
         "write the model at the end: a safetensors file, or a folder for transformers"),
    {"export-part", files, "BYTES", "maximum safetensors file in the folder of --export", "5GB", NULL, NULL,
     ZR_FLAG_BYTES, FIELD(export_part_bytes), 1, 1e18},
    TEXT("log", files, "FILE.jsonl", log, "write a line of JSON per step"),
    TEXT("tensorboard", files, "DIR", tensorboard, "write an event file for TensorBoard, a record per step"),
    TEXT("status", files, "FILE", status,
         "keep the last step and the time left in a file of one line of JSON"),
    TEXT("json", files, "FILE", json, "write all numbers of the run; - is standard output"),
    TEXT("trace", files, "FILE.zrt", trace,
         "write every event of the arena for zr's tools; with ranks FILE.zrt.0, ..."),

    COUNT("sample", text, sample, "0", 0, 1000000, "tokens of text to generate after the last step"),
    TEXT("prompt", text, "TEXT", prompt, "start of the text; without a tokenizer, token numbers"),
    TEXT("prompts", text, "FILE", prompts,
         "of sample: a prompt per line (-: standard input); texts are lines of JSON"),
    TEXT("stop", text, "TEXT", stop, "end the text before this text"),
    TEXT("tokenizer", text, "FILE", tokenizer,
         "tokenizer.json of prompt and text (default that of --model, if it has one)"),
    REAL("temperature", text, temperature, "0.8", 0, 100,
         "temperature of the text; 0: always the likeliest token"),
    COUNT("top-k", text, top_k, "40", 0, 1 << 24, "draw from this many likeliest tokens; 0: from all"),
    REAL("top-p", text, top_p, "1", 1e-9, 1,
         "draw from the fewest likeliest tokens of this probability together"),

    {"dry-run", other, NULL, "print the byte plan and end", NULL, NULL, NULL, ZR_FLAG_SWITCH, FIELD(dry_run),
     0, 0},
    SWITCH("prove", other, prove, "compare each step with one rank that has the whole model"),
    {"tolerance", other, "F", "of --prove, relative to a tensor's size", NULL, "1e-5; bf16, fp16: 1e-2", NULL,
     ZR_FLAG_REAL, FIELD(tolerance), 1e-9, 1},
    {"world-size", other, "N", "ranks of the byte plan of --dry-run", NULL, "--ranks", NULL, ZR_FLAG_COUNT,
     FIELD(world_size), 1, 1 << 20},
    {"flops", other, "F", "operations per second of a rank, as 312e12; adds a timeline to the plan", NULL,
     NULL, NULL, ZR_FLAG_REAL, FIELD(flops_per_second), 1, 1e21},
    {"bandwidth", other, "BYTES", "bytes per second that a rank sends, as 25GB; for --flops", NULL, NULL,
     NULL, ZR_FLAG_RATE, FIELD(bytes_per_second), 1, 1e18},
    {"host-bandwidth", other, "BYTES", "bytes per second of host copies, for --flops", NULL,
     "measured; dry run: 0", NULL, ZR_FLAG_RATE, FIELD(host_bytes_per_second), 1, 1e18},
    {"nvme-bandwidth", other, "BYTES", "bytes per second of nvme:DIR, for --flops", NULL,
     "measured; dry run: 0", NULL, ZR_FLAG_RATE, FIELD(nvme_bytes_per_second), 1, 1e18},
    {"help", other, NULL, "print this text", NULL, NULL, NULL, ZR_FLAG_HELP, 0, 0, 0, 0},
    {"version", other, NULL, "print the version; also -V", NULL, NULL, NULL, ZR_FLAG_VERSION, 0, 0, 0, 0},
};
_Static_assert(offsetof(struct zr_shape, recompute_layers) ==
                   offsetof(struct zr_shape, recompute) + sizeof(unsigned),
               "RECOMPUTE_FIELDS");
_Static_assert(sizeof zr_flags / sizeof *zr_flags <= ZR_FLAGS_MAX,
               "there are more options than ZR_FLAGS_MAX");
const size_t zr_flags_count = sizeof zr_flags / sizeof *zr_flags;
