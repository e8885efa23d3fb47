#!/usr/bin/env python3
"""Every key of --config that --help lists: taken, and the same run as with the option that --help says beside it, which
is another one than without; a key that may have one value alone, or that is passed over, changes nothing."""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import ZR_TRAIN, done, note, ok, path, same, start_quickly, train

start_quickly()
MODEL = dict(layers=1, hidden=32, heads=2, seq=8, batch=1, ranks=2, stage=0, steps=4, seed=5, eval_every=0)

# What a key needs around it, in the file and as options.
NOTHING = ({}, {})
DEEPSPEED = dict(beta2=0.999, weight_decay=0, clip=0, schedule_lr="constant", warmup=0)  # what a file omits
QUIET = ({"fp16": {"enabled": True, "initial_scale_power": 6}}, dict(precision="fp16", loss_scale_power=6))
LOUD = ({"fp16": {"enabled": True, "initial_scale_power": 24}}, dict(precision="fp16", loss_scale_power=24))
ADAM = ({"optimizer": {"type": "AdamW"}}, dict(optimizer="adamw"))
SGD = ({"optimizer": {"type": "SGD"}}, dict(optimizer="sgd", beta2=None, momentum=0))
LAMB = ({"optimizer": {"type": "Lamb"}}, dict(optimizer="lamb", lr=1e-3, eps=1e-8))
ONEBIT_LAMB = ({"optimizer": {"type": "OneBitLamb", "params": {"betas": [0.9, 0.5], "freeze_step": 2}}},
               dict(optimizer="lamb", lr=1e-3, eps=1e-8, beta2=0.5, compress="gradients:onebit", compress_warmup=2))
WARM = {"warmup_type": "linear", "warmup_num_steps": 1, "total_num_steps": 4}
LINEAR = ({"scheduler": {"type": "WarmupDecayLR", "params": WARM}},
          dict(schedule_lr="linear", min_lr=0, warmup=1, steps=4))
COSINE = ({"scheduler": {"type": "WarmupCosineLR", "params": {**WARM, "cos_min_ratio": 0.5}}},
          dict(schedule_lr="cosine", min_lr=0.0005, warmup=1, steps=4))
SLOW = {key: {"scheduler": {**value["scheduler"], "params": {**value["scheduler"]["params"], "warmup_num_steps": 3}}}
        for key, value in (("linear", LINEAR[0]), ("cosine", COSINE[0]))}
CYCLE = ({"scheduler": {"type": "OneCycle", "params": {"cycle_first_step_size": 2, "cycle_second_step_size": 2, "cycle_min_lr": 0,
                                                       "cycle_max_lr": 1e-3, "cycle_momentum": False}}},
         dict(schedule_lr="linear", min_lr=0, warmup=2, steps=4))

STAGE3 = ({"zero_optimization": {"stage": 3}}, dict(stage=3))
DISK = path("disk")
os.mkdir(DISK)
FILED = ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": DISK}}}, dict(stage=3, offload_optimizer="nvme:" + DISK))
OFFLOADED = ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, dict(stage=3, offload_optimizer="cpu"))

# Key: a value, the options that are the same, what is around it.
EQUAL = {
    "train_batch_size": (6, dict(batch=3), NOTHING),
    "train_micro_batch_size_per_gpu": (2, dict(batch=2), NOTHING),
    "gradient_accumulation_steps": (3, dict(accumulate=3), NOTHING),
    "gradient_clipping": (0.25, dict(clip=0.25), NOTHING),
    "zero_optimization.stage": (2, dict(stage=2), NOTHING),
    "zero_optimization.reduce_bucket_size": (2048, dict(bucket_bytes=8192), NOTHING),
    "zero_optimization.allgather_bucket_size": (1024, dict(bucket_bytes=4096), NOTHING),
    "bf16.enabled": (True, dict(precision="bf16"), NOTHING),
    "bfloat16.enabled": (True, dict(precision="bf16"), NOTHING),
    "fp16.enabled": (True, dict(precision="fp16"), NOTHING),
    "fp16.loss_scale": (1000, dict(loss_scale=1000), QUIET),
    "fp16.initial_scale_power": (9, dict(loss_scale_power=9), QUIET),
    "fp16.loss_scale_window": (1, dict(loss_scale_window=1), QUIET),
    "fp16.hysteresis": (1, dict(loss_scale_hysteresis=1), LOUD),
    "fp16.min_loss_scale": (1e7, dict(min_loss_scale=1e7), LOUD),
    "optimizer.type": ("SGD", SGD[1], ADAM),
    "optimizer.params.lr": (0.004, dict(lr=0.004), ADAM),
    "optimizer.params.betas": ([0.5, 0.6], dict(beta1=0.5, beta2=0.6), ADAM),
    "optimizer.params.eps": (1e-3, dict(eps=1e-3), ADAM),
    "optimizer.params.weight_decay": (0.5, dict(weight_decay=0.5), ADAM),
    "optimizer.params.momentum": (0.5, dict(momentum=0.5), SGD),
    "optimizer.params.max_coeff": (0.3, dict(trust_max=0.3), LAMB),
    "optimizer.params.min_coeff": (0.5, dict(trust_min=0.5), LAMB),
    "optimizer.params.coeff_beta": (0.5, dict(trust_average=0.5), ONEBIT_LAMB),
    "parameter_groups": (["wte.*:lr=0.5", "*.bias:lr=2,decay=1"], dict(group=["wte.*:lr=0.5", "*.bias:lr=2,decay=1"]), NOTHING),
    "frozen_parameters": (["wte.*", "*.bias"], dict(freeze=["wte.*", "*.bias"]), NOTHING),
    "lora": ("3:*mlp*", dict(lora="3:*mlp*"), NOTHING),
    "lora_alpha": (1, dict(lora_alpha=1), ({"lora": "3"}, dict(lora="3"))),
    "scheduler.type": ("WarmupDecayLR", dict(schedule_lr="linear", min_lr=0),
                       ({"scheduler": {"type": "WarmupCosineLR", "params": WARM}}, COSINE[1])),
    "scheduler.params.warmup_min_lr": (1e-4, dict(warmup_lr=1e-4, min_lr=1e-4), LINEAR),
    "scheduler.params.warmup_type": ("log", dict(warmup_type="log"), (SLOW["linear"], {**LINEAR[1], "warmup": 3})),
    "scheduler.params.warmup_min_ratio": (0.5, dict(warmup_lr=0.0005), (SLOW["cosine"], {**COSINE[1], "warmup": 3})),
    "scheduler.params.cycle_min_lr": (1e-4, dict(warmup_lr=1e-4, min_lr=1e-4), CYCLE),
    "scheduler.params.cycle_max_lr": (0.004, dict(lr=0.004), CYCLE),
    "scheduler.params.cycle_first_step_size": (3, dict(warmup=3, steps=5), CYCLE),
    "scheduler.params.cycle_second_step_size": (3, dict(steps=5), CYCLE),
    "scheduler.params.warmup_max_lr": (0.004, dict(lr=0.004), LINEAR),
    "scheduler.params.warmup_num_steps": (3, dict(warmup=3), LINEAR),
    "scheduler.params.total_num_steps": (3, dict(steps=3), LINEAR),
    "scheduler.params.cos_min_ratio": (0.25, dict(min_lr=0.00025), COSINE),
    "zero_optimization.offload_optimizer.device": ("cpu", dict(offload_optimizer="cpu"), STAGE3),
    "zero_optimization.offload_optimizer.ratio": (0.4, dict(offload_ratio=0.4), OFFLOADED),
    "zero_optimization.offload_optimizer.buffer_count": (5, dict(offload_buffers=5), FILED),
    "zero_optimization.offload_param.device": ("cpu", dict(offload_param="cpu"), OFFLOADED),
    "activation_checkpointing.cpu_checkpointing": (True, dict(checkpoint_offload=True), NOTHING),
}
# What changes no bit, or needs several ranks: train_checkpoints.t, train_nvme.t, train_deepspeed.t.
ELSEWHERE = ("true is --", "false is --", "DIR of --", "true; false if", "--node-size and", "--compress-warmup", "--zerone-")
ENDS = {"fp16.min_loss_scale": 1}  # with overflow at the least scale the run ends
# Where keys that have one value stand.
AROUND = {"fp16": QUIET, "optimizer": ADAM, "scheduler": LINEAR,
          **dict.fromkeys(("optimizer.params.dampening", "optimizer.params.nesterov"), SGD),
          **dict.fromkeys(("optimizer.params.factor_max", "optimizer.params.factor_min", "optimizer.params.factor_threshold"), ONEBIT_LAMB),
          **{f"scheduler.params.{key}": CYCLE for key in ("cycle_momentum", "decay_lr_rate", "cycle_first_stair_count",
                                                          "cycle_second_stair_count")}}


def listed():
    """{key: what --help says of it}."""
    text = subprocess.run([ZR_TRAIN, "--help"], capture_output=True, text=True, check=True).stdout
    keys = {}
    for line in text.split("Keys of --config FILE", 1)[1].split("\n\n", 1)[0].splitlines()[1:]:
        key, words = re.fullmatch(r"  (\S*) +(\S.*)", line).groups()
        last = key or last
        keys[last] = (keys[last] + " " if last in keys else "") + words
    return keys


def with_key(config, key, value):
    copy = json.loads(json.dumps(config))
    *above, last = key.split(".")
    at = copy
    for name in above:
        at = at.setdefault(name, {})
    at[last] = value
    return copy


def run(config=None, **flags):
    """All that can be seen of the settings of a run."""
    log = path("log.jsonl")
    if os.path.exists(log):
        os.unlink(log)
    if config is not None:
        with open(path("config.json"), "w") as file:
            json.dump(config, file)
    settings = {**MODEL, **(DEEPSPEED if config is None else {}), **flags}
    if DISK in json.dumps([config, flags]):
        settings.update(force=True, nvme_depth=4)
    if config is not None:  # options would win
        settings.update(stage=None, steps=None if "scheduler" in config else settings["steps"],
                        batch=None if "batch_size" in json.dumps(config) else settings["batch"])
    got = train(config=path("config.json") if config is not None else None, log=log, **settings)
    lines = []
    if os.path.exists(log):
        with open(log) as file:
            lines = [json.loads(line) for line in file]
    return (got.code, got.losses, got.report and [(rank["planned_bytes"], rank.get("tiers", {}).get("host", {}).get("planned_bytes")) for rank in got.report["ranks"]],
            [[line.get(name) for name in ("rate", "gradient_norm", "loss_scale", "skipped")] for line in lines])


def alone(key):
    """A file with nothing but what the key needs: run once."""
    around = AROUND.get(key, AROUND.get(key.split(".")[0], NOTHING)) if key not in EQUAL else EQUAL[key][2]
    words = json.dumps(around[0])
    if words not in plain:
        plain[words] = run(around[0])
    return around, plain[words]


plain, keys = {}, listed()
ok(len(keys) > 40 and not any("null" in words for words in keys.values()), f"--help lists {len(keys)} keys")
same(sorted(set(EQUAL) - set(keys)), [], "all that have an option are among them")
for key, said in keys.items():
    around, without = alone(key)
    if key in EQUAL:
        value, flags, _ = EQUAL[key]
        want, got = run(**{**around[1], **flags}), run(with_key(around[0], key, value))
        ok(any(f"--{name.replace('_', '-')}" in said for name in flags), f"{key}: {said}")
        same(got, want, f"{key} {value} is {flags}")
        ok(got[0] == ENDS.get(key, 0) and got[3] and got != without, f"{key} {value} changes the run") or \
            note(f"{got}\n{without}")
    elif said != "-" and not said.startswith(ELSEWHERE):
        one = re.fullmatch(r"(fp32)|(\S+?)(, 0 or not enabled)? only", said)
        value = one and (one[1] or json.loads(one[2]))
        got = run(with_key(around[0], key, value)) if one else None
        ok(got == without and got[0] == 0, f"{key}: {said}, and it changes nothing") or note(f"{got}\n{without}")
passed, config = [key for key, said in keys.items() if said == "-"], {}
for key in passed:
    config = with_key(config, key, True)
for above in ("optimizer", "scheduler"):  # these need a type, and their keys are in other tests
    config.pop(above, None)
without = run({})
got = run(config)
ok(len(passed) > 50 and got == without and got[0] == 0, f"{len(passed)} keys are passed over, and change nothing") or note(f"{got}\n{without}")
done()
