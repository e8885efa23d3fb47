#!/usr/bin/env python3
"""Files as people have them for DeepSpeed: those of transformers' documents, of DeepSpeed's examples and tutorials, of Megatron's
fork and of fine-tuning repositories, made here by a table. Most run as they are, with the settings that DeepSpeed's documents
give for what a file says and omits; each other one is refused with all its reasons in one message."""
import json
import math
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, path, same, start_quickly, train

start_quickly()
# ---- Parts of files

HF_FP16 = {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}
HF_ADAMW = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
HF_WARMUP = {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}
HF_DECAY = {"type": "WarmupDecayLR", "params": {**HF_WARMUP["params"], "total_num_steps": "auto"}}
HF_REST = {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000, "train_batch_size": "auto",
           "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": False}
CPU = {"device": "cpu", "pin_memory": True}
HF_ZERO2 = {"stage": 2, "offload_optimizer": CPU, "allgather_partitions": True, "allgather_bucket_size": 2e8, "overlap_comm": True,
            "reduce_scatter": True, "reduce_bucket_size": 2e8, "contiguous_gradients": True}
HF_ZERO3 = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU, "overlap_comm": True, "contiguous_gradients": True,
            "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True}
BF16, FP16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "auto_cast": False, **{k: v for k, v in HF_FP16.items() if k != "enabled"}}}
CHAT_ZERO = {"offload_param": {"device": "none"}, "offload_optimizer": {"device": "none"}, "stage3_param_persistence_threshold": 1e4,
             "stage3_max_live_parameters": 3e7, "stage3_prefetch_bucket_size": 3e7, "memory_efficient_linear": False}
SMALL = {"train_batch_size": 4, "steps_per_print": 10}


def adam(kind="Adam", **params):
    return {"optimizer": {"type": kind, "params": params}}


def rates(kind, **params):
    return {"scheduler": {"type": kind, "params": params}}


def zero(stage, **keys):
    return {"zero_optimization": {"stage": stage, **keys}}


# ---- The learning rates of DeepSpeed's documents, of step n from 1 on

def warmup(n, low, high, steps, kind="log"):
    if n >= steps:
        return high
    return low + (high - low) * (math.log(n) / math.log(steps) if kind == "log" else n / steps)


def decay(n, low, high, steps, total, kind="log"):
    return warmup(n, low, high, steps, kind) if n <= steps else low + (high - low) * max(0, total - n) / (total - steps)


def cosine(n, high, steps, total, low=0, end=1e-4, kind="log"):
    if n <= steps:
        return warmup(n, low * high, high, steps, kind)
    return high * (end + (1 - end) * (1 + math.cos(math.pi * (n - steps) / (total - steps))) / 2)


def constant(rate):
    return lambda n: rate


# What zr-train's options are for "auto" below, as the arguments of a Trainer are.
OURS = dict(batch=2, lr=2e-3, beta1=0.85, beta2=0.97, eps=1e-7, weight_decay=0.02, clip=0.5, warmup=2)
# name, the file, the command line beside it, the settings in force (those of DeepSpeed where not named), the rates
RUNS = [
    ("HF zero2", {"fp16": HF_FP16, "optimizer": HF_ADAMW, "scheduler": HF_WARMUP, "zero_optimization": HF_ZERO2, **HF_REST}, OURS,
     dict(**OURS, stage=2, offload_optimizer="cpu", bucket_bytes=800000000), lambda n: warmup(n, 0, 2e-3, 2)),
    ("HF zero3 with offload", {"fp16": HF_FP16, "bf16": {"enabled": "auto"}, "optimizer": HF_ADAMW, "scheduler": HF_WARMUP,
                               "zero_optimization": HF_ZERO3, **HF_REST}, OURS,
     dict(**OURS, stage=3, offload_optimizer="cpu", offload_param="cpu"), lambda n: warmup(n, 0, 2e-3, 2)),
    ("HF zero3 bf16 for --precision bf16", {"fp16": HF_FP16, "bf16": {"enabled": "auto"}, "optimizer": HF_ADAMW, "zero_optimization": {
        k: v for k, v in HF_ZERO3.items() if "offload" not in k}, **HF_REST}, dict(**OURS, precision="bf16"),
     dict(**OURS, stage=3, precision="bf16"), lambda n: 2e-3 * min(1, n / 2)),
    ("HF zero1", {"bf16": {"enabled": "auto"}, **zero(1), **HF_REST}, dict(batch=2, clip=0.5, lr=1e-3), dict(stage=1, batch=2, clip=0.5), constant(1e-3)),
    ("HF with linear decay", {"optimizer": HF_ADAMW, "scheduler": HF_DECAY, **zero(2), **HF_REST}, dict(**OURS, steps=4), dict(**OURS, stage=2),
     lambda n: decay(n, 0, 2e-3, 2, 4)),
    ("HF zero2 from numbers", {**FP16, **adam("AdamW", lr=3e-5, betas=[0.8, 0.999], eps=1e-8, weight_decay=3e-7),
                               **rates("WarmupLR", warmup_min_lr=0, warmup_max_lr=3e-5, warmup_num_steps=500), "zero_optimization": HF_ZERO2,
                               "train_micro_batch_size_per_gpu": 2}, {},
     dict(batch=2, precision="fp16", beta1=0.8, weight_decay=3e-7, stage=2, offload_optimizer="cpu", bucket_bytes=400000000),
     lambda n: warmup(n, 0, 3e-5, 500)),
    ("accelerate zero2", {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"},
                          "offload_param": {"device": "none"}}, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "steps_per_print": float(10 ** 9),
                          "zero_allow_untested_optimizer": True, **BF16}, {}, dict(batch=2, accumulate=2, clip=1, stage=2, precision="bf16"), constant(1e-3)),
    ("accelerate zero3", {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", **BF16,
                          **zero(3, stage3_gather_16bit_weights_on_model_save=True), "gradient_clipping": "auto", "steps_per_print": 10 ** 9},
     dict(batch=2), dict(batch=2, clip=1, stage=3, precision="bf16"), constant(1e-3)),
    ("tutorial: getting started", {"train_batch_size": 8, "gradient_accumulation_steps": 1, **adam(lr=0.00015), "fp16": {"enabled": True},
                                   "zero_optimization": {"stage": 0}}, {}, dict(batch=8, precision="fp16"), constant(0.00015)),
    ("tutorial: CIFAR-10", {**SMALL, **adam(lr=0.001, betas=[0.8, 0.999], eps=1e-8, weight_decay=3e-7),
                            **rates("WarmupLR", warmup_min_lr=0, warmup_max_lr=0.001, warmup_num_steps=1000), "gradient_clipping": 1.0,
                            "prescale_gradients": False, "bf16": {"enabled": False}, "fp16": {"enabled": True, "fp16_master_weights_and_grads": False,
                            "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 15},
                            "wall_clock_breakdown": False, **zero(0, allgather_partitions=True, reduce_scatter=True, allgather_bucket_size=50000000,
                            reduce_bucket_size=50000000, overlap_comm=True, contiguous_gradients=True, cpu_offload=False)}, {},
     dict(batch=4, beta1=0.8, weight_decay=3e-7, clip=1, precision="fp16", loss_scale_power=15, loss_scale_window=500), lambda n: warmup(n, 0, 1e-3, 1000)),
    ("tutorial: Megatron with ZeRO 1", {**SMALL, **zero(1, reduce_bucket_size=5e8), **adam("AdamW", lr=1e-4), **FP16}, {},
     dict(batch=4, stage=1, precision="fp16"), constant(1e-4)),
    ("tutorial: ZeRO 3 without limits", {**SMALL, **zero(3, contiguous_gradients=True, stage3_max_live_parameters=1e9, stage3_max_reuse_distance=1e9,
                                         stage3_prefetch_bucket_size=1e7, stage3_param_persistence_threshold=1e5, reduce_bucket_size=1e7, sub_group_size=1e9)}, {},
     dict(batch=4, stage=3), constant(1e-3)),
    ("tutorial: ZeRO offload", {**SMALL, **zero(2, offload_optimizer={"device": "cpu"}, contiguous_gradients=True, overlap_comm=True), **BF16}, {},
     dict(batch=4, stage=2, offload_optimizer="cpu", precision="bf16"), constant(1e-3)),
    ("old: cpu_offload", {**SMALL, **zero(2, cpu_offload=True, cpu_offload_use_pin_memory=True), **adam(lr=1e-5, adam_w_mode=True, torch_adam=True)}, {},
     dict(batch=4, stage=2, offload_optimizer="cpu"), constant(1e-5)),
    ("old: cpu_offload_params", {**SMALL, **zero(3, cpu_offload=True, cpu_offload_params=True)}, {},
     dict(batch=4, stage=3, offload_optimizer="cpu", offload_param="cpu"), constant(1e-3)),
    ("chat: training", {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "steps_per_print": 10, **zero(2, **CHAT_ZERO),
                        "fp16": {"enabled": True, "loss_scale_window": 100}, "gradient_clipping": 1.0, "prescale_gradients": False,
                        "wall_clock_breakdown": False, "hybrid_engine": {"enabled": False, "max_out_tokens": 512}}, {},
     dict(batch=4, accumulate=2, stage=2, clip=1, precision="fp16", loss_scale_window=100), constant(1e-3)),
    ("BERT", {**SMALL, "train_micro_batch_size_per_gpu": 4, "prescale_gradients": False, **adam(lr=4e-4, weight_decay=0.01, bias_correction=True, eps=1e-6),
              "gradient_clipping": 1.0, "wall_clock_breakdown": False, "fp16": {"enabled": True, "loss_scale": 0}, "dump_state": True}, {},
     dict(batch=4, weight_decay=0.01, eps=1e-6, clip=1, precision="fp16"), constant(4e-4)),
    ("SQuAD", {**SMALL, **adam(lr=3e-5, weight_decay=0.0, bias_correction=True), "gradient_clipping": 1.0, "fp16": {"enabled": False}}, {},
     dict(batch=4, clip=1), constant(3e-5)),
    ("GAN", {**SMALL, **adam(lr=0.0002, betas=[0.5, 0.999], eps=1e-8)}, {}, dict(batch=4, beta1=0.5), constant(2e-4)),
    ("Adam with L2 decay of 0", {**SMALL, **adam(lr=1e-3, adam_w_mode=False, weight_decay=0)}, {}, dict(batch=4), constant(1e-3)),
    ("Megatron's fork", {**SMALL, "train_micro_batch_size_per_gpu": 2, **zero(1, elastic_checkpoint=True), "gradient_clipping": 1.0, "prescale_gradients": False,
                         "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1, "initial_scale_power": 11},
                         "bf16": {"enabled": False}, "wall_clock_breakdown": False, "zero_allow_untested_optimizer": False,
                         "curriculum_learning": {"enabled": False, "curriculum_type": "seqlen"}, "data_efficiency": {"enabled": False}}, {},
     dict(batch=2, accumulate=2, stage=1, clip=1, precision="fp16", loss_scale_power=11, loss_scale_window=500), constant(1e-3)),
    ("BLOOM", {**SMALL, "gradient_clipping": 1.0, **zero(0), **BF16, "fp16": {"enabled": False}, "steps_per_print": 2000, "wall_clock_breakdown": False,
               "data_types": {"grad_accum_dtype": "fp32"}}, {}, dict(batch=4, clip=1, precision="bf16"), constant(1e-3)),
    ("activation checkpointing", {**SMALL, "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": False,
                                  "contiguous_memory_optimization": False, "number_checkpoints": None, "synchronize_checkpoint_boundary": False, "profile": False}},
     {}, dict(batch=4), constant(1e-3)),
    ("LLaVA zero2", {"fp16": HF_FP16, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
                     "gradient_accumulation_steps": "auto", **zero(2, overlap_comm=True, contiguous_gradients=True, sub_group_size=1e9, reduce_bucket_size="auto")},
     dict(batch=3), dict(batch=3, stage=2), constant(1e-3)),
    ("QLoRA-like, paged", {**SMALL, "zero_force_ds_cpu_optimizer": False, **zero(2, round_robin_gradients=True, allgather_bucket_size=1e9, reduce_bucket_size=5e8)},
     {}, dict(batch=4, stage=2), constant(1e-3)),
    ("monitors", {**SMALL, "tensorboard": {"enabled": True, "output_path": "x"}, "wandb": {"enabled": False}, "csv_monitor": {"enabled": True},
                  "flops_profiler": {"enabled": True, "profile_step": 1, "module_depth": -1}, "comms_logger": {"enabled": True}, "aio": {"block_size": 1048576},
                  "checkpoint": {"load_universal": True}, "autotuning": {"enabled": False}}, {}, dict(batch=4), constant(1e-3)),
    ("warm-up and cosine", {**SMALL, **adam("AdamW", lr=2e-3), **rates("WarmupCosineLR", total_num_steps=8, warmup_num_steps=3)}, {},
     dict(batch=4), lambda n: cosine(n, 2e-3, 3, 8)),
    ("cosine with all keys", {**SMALL, **adam("AdamW", lr=2e-3), **rates("WarmupCosineLR", total_num_steps=8, warmup_num_steps=3, warmup_min_ratio=0.1,
                                                                         cos_min_ratio=0.2, warmup_type="linear")}, {},
     dict(batch=4), lambda n: cosine(n, 2e-3, 3, 8, 0.1, 0.2, "linear")),
    ("decay with a maximum of its own", {**SMALL, **adam("AdamW", lr=9e-3), **rates("WarmupDecayLR", total_num_steps=8, warmup_min_lr=1e-5, warmup_max_lr=1e-3,
                                                                                 warmup_num_steps=3, warmup_type="linear")}, {},
     dict(batch=4), lambda n: decay(n, 1e-5, 1e-3, 3, 8, "linear")),
    ("WarmupLR with nothing", {**SMALL, **adam(lr=5e-2), "scheduler": {"type": "WarmupLR"}}, {}, dict(batch=4), lambda n: warmup(n, 0, 1e-3, 1000)),
    ("one cycle", {**SMALL, **adam("SGD", lr=0.1, momentum=0.9, weight_decay=1e-4), **rates(
        "OneCycle", cycle_first_step_size=3, cycle_second_step_size=5, cycle_min_lr=1e-4, cycle_max_lr=1e-2, cycle_momentum=False, decay_lr_rate=0)}, {},
     dict(batch=4, optimizer="sgd", momentum=0.9, weight_decay=1e-4, beta2=None, eps=None), lambda n: decay(n, 1e-4, 1e-2, 3, 8, "linear")),
    ("strings and comments", {"_comment": "from the tutorial", "//": 1, "train_batch_size": "4", **adam("AdamW", lr="1e-4", eps="1e-7"),
                              **zero("1", reduce_bucket_size="5e8")}, {}, dict(batch=4, eps=1e-7, stage=1), constant(1e-4)),
    ("ZeRO++", {**SMALL, "train_batch_size": 16, **zero(3, zero_quantized_weights=True, zero_hpz_partition_size=2, zero_quantized_gradients=True)},
     dict(ranks=4), dict(batch=4, ranks=4, stage=3, compress="qwz,qgz,hpz", node_size=2), constant(1e-3)),
    ("ZeRO++ on one rank", {**SMALL, **zero(3, zero_quantized_weights=True, zero_hpz_partition_size=16, zero_quantized_gradients=True)},
     {}, dict(batch=4, stage=3), constant(1e-3)),
    ("1-bit Adam", {**SMALL, "train_batch_size": 8, **adam("OneBitAdam", lr=1e-3, betas=[0.9, 0.5], freeze_step=2, cuda_aware=False,
                                                           comm_backend_name="nccl")},
     dict(ranks=2), dict(batch=4, ranks=2, beta2=0.5, compress="gradients:onebit", compress_warmup=2), constant(1e-3)),
    ("0/1 Adam", {**SMALL, "train_batch_size": 8, **adam("ZeroOneAdam", lr=1e-3, betas=[0.9, 0.5], var_freeze_step=4, var_update_scaler=1,
                                                         local_step_scaler=1, local_step_clipper=3, cuda_aware=False, comm_backend_name="nccl")},
     dict(ranks=2), dict(batch=4, ranks=2, stage=0, beta2=0.5, compress="zerone", compress_warmup=4, zerone_variance=1, zerone_local=1,
                         zerone_interval=3), constant(1e-3)),
    ("LAMB", {**SMALL, **adam("Lamb", lr=11e-3, weight_decay=0.01, bias_correction=True, max_coeff=0.3)}, {},
     dict(batch=4, optimizer="lamb", weight_decay=0.01, trust_max=0.3, trust_min=0.01), constant(11e-3)),
    ("1-bit LAMB", {**SMALL, "train_batch_size": 8, **adam("OneBitLamb", lr=11e-3, betas=[0.9, 0.5], freeze_step=2, max_coeff=0.3, coeff_beta=0.8,
                                                           factor_max=4.0, factor_min=0.5, factor_threshold=0.1, cuda_aware=False)},
     dict(ranks=2), dict(batch=4, ranks=2, optimizer="lamb", beta2=0.5, trust_max=0.3, trust_average=0.8, compress="gradients:onebit", compress_warmup=2),
     constant(11e-3)),
    ("nothing but a batch", {"train_batch_size": 4}, {}, dict(batch=4), constant(1e-3)),
    ("mixed precision of neither kind", {**SMALL, "amp": {"enabled": False, "opt_level": "O1"}, "bf16": {"enabled": False}}, {}, dict(batch=4), constant(1e-3)),
]
# name, the file, the keys of its reasons
REFUSED = [
    ("1-bit LAMB", {**SMALL, **adam("OneBitLamb", lr=11e-3, freeze_step=400, factor_max=3, factor_min=0.5, adam_w_mode=True)},
     ["optimizer.params.factor_max", "optimizer.params.adam_w_mode"]),
    ("keys of 0/1 Adam", {**SMALL, **adam("OneBitAdam", lr=1e-3, var_freeze_step=100, local_step_scaler=1000)},
     ["optimizer.params.var_freeze_step", "optimizer.params.local_step_scaler"]),
    ("LAMB", {**SMALL, **adam("Lamb", lr=11e-3, bias_correction=False, eps_inside_sqrt=True, coeff_beta=0.9)},
     ["optimizer.params.bias_correction", "optimizer.params.eps_inside_sqrt", "optimizer.params.coeff_beta"]),
    ("sparse attention and apex", {**SMALL, "sparse_attention": {"mode": "fixed", "block": 16, "enabled": True}, "amp": {"enabled": True, "opt_level": "O1"}},
     ["sparse_attention", "amp"]),
    ("compression", {**SMALL, "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": True}}, "enabled": True},
                     "communication_data_type": "fp32"}, ["compression_training", "communication_data_type"]),
    ("a range test", {**SMALL, **adam(lr=1e-3, max_grad_norm=1.0), **rates("LRRangeTest", lr_range_test_min_lr=1e-4, lr_range_test_step_size=200)},
     ["optimizer.params.max_grad_norm", "scheduler.params.lr_range_test_min_lr", "scheduler.params.lr_range_test_step_size", "scheduler.type"]),
]

MODEL = dict(layers=1, hidden=16, heads=2, seq=8, eval_every=0)
DEEPSPEED = dict(optimizer="adamw", beta2=0.999, eps=1e-8, weight_decay=0, clip=0, stage=0)


def write(name, config):
    with open(path(name), "w") as file:
        json.dump(config, file, indent=2)
    return path(name)


def rates_of(name, config, flags):
    log = path("log.jsonl")
    got = train(config=write("ds_config.json", config), log=log, **{**MODEL, **dict(steps=None, batch=None, stage=None), **flags})
    if got.code != 0:
        note(got.err)
        return got, None
    with open(log) as file:
        return got, [json.loads(line)["rate"] for line in file]


for name, config, flags, settings, rate in RUNS:
    ends = "total_num_steps" in str(config) and flags.get("steps") is None or "OneCycle" in str(config)
    got, measured = rates_of(name, config, flags if ends else {"steps": 3, **flags})
    if not ok(measured is not None, f"{name}: runs as it is"):
        continue
    steps = len(measured)
    ok(all(math.isclose(r, rate(n + 1), rel_tol=1e-6, abs_tol=1e-12) for n, r in enumerate(measured)), f"{name}: the rates of {steps} steps") or \
        note([measured, [rate(n + 1) for n in range(steps)]])
    # The same settings on the command line, and the file's schedule: the same bits.
    schedule = {"scheduler": config["scheduler"]} if "scheduler" in config else {}
    given = {**MODEL, **DEEPSPEED, **settings, "steps": steps if not ends else None}
    if not schedule:
        given = {"warmup": 0, "lr": rate(steps), "schedule_lr": "constant", **given}
    elif "warmup_max_lr" not in str(config) and "cycle_max_lr" not in str(config) and "Cosine" in str(config):
        given["lr"] = config["optimizer"]["params"]["lr"]
    want = train(config=write("schedule.json", schedule), **given)
    ok(want.code == 0 and want.losses == got.losses, f"{name}: the settings in force") or note(want.err + got.err)
for name, config, keys in REFUSED:
    got = train(config=write("ds_config.json", config), **{**MODEL, **dict(steps=None, batch=None, stage=None)})
    named = [line.split(": ")[1] for line in got.err.splitlines()[1:]]
    same((got.code, sorted(named)), (2, sorted(keys)), f"{name}: refused with {len(keys)} reasons in one message") or note(got.err)
ok(len(RUNS) >= 0.8 * (len(RUNS) + len(REFUSED)) and len(RUNS) + len(REFUSED) >= 40, f"{len(RUNS)} of {len(RUNS) + len(REFUSED)} files run as they are")
done()
