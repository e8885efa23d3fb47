#!/usr/bin/env python3
"""--config FILE: each key is the option that --help says, options win, what is omitted has DeepSpeed's default, batches
multiply, and whatever is not supported is refused with file, line and path; damaged files are refused in one message,
whatever the damage. train_deepspeed.t has files as they are written elsewhere."""
import json
import os
import random
import re
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import HANG, SEED, ZR_TRAIN, done, note, ok, path, same, start_quickly, train

start_quickly()

FULL = {
    "train_batch_size": 12,
    "train_micro_batch_size_per_gpu": 3,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 4096, "allgather_bucket_size": 4.096e3,
                          "overlap_comm": True, "reduce_scatter": True, "contiguous_gradients": True,
                          "allgather_partitions": True, "offload_optimizer": {"device": "none"},
                          "offload_param": {"device": "none"}},
    "bf16": {"enabled": False},
    "fp16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.8, 0.99], "eps": 1e-8, "weight_decay": 0.05}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.003, "total_num_steps": 6,
                                                      "warmup_num_steps": 2, "warmup_type": "linear"}},
    "activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False, "profile": False},
    "wall_clock_breakdown": False,
}
FLAGS = dict(batch=3, accumulate=2, clip=0.5, stage=2, bucket_bytes=16384, optimizer="adamw", lr=3e-3, beta1=0.8,
             beta2=0.99, weight_decay=0.05, schedule_lr="linear", min_lr=0, warmup=2, steps=6)
MODEL = dict(layers=2, hidden=32, heads=2, seq=16, ranks=2, seed=5)


def write(what, name="config.json"):
    where = path(name)
    data = what if isinstance(what, bytes) else (what if isinstance(what, str) else json.dumps(what, indent=1)).encode()
    with open(where, "wb") as file:
        file.write(data)
    return where


def changed(base, **paths):
    """A copy of `base` with some values; a__b=1 is base["a"]["b"] = 1, None takes a key out."""
    copy = json.loads(json.dumps(base))
    for place, value in paths.items():
        *above, last = place.split("__")
        at = copy
        for key in above:
            at = at.setdefault(key, {})
        at.pop(last, None)
        if value is not None:
            at[last] = value
    return copy


def run(config, **flags):
    none = dict(steps=None, batch=None, stage=None)
    return train(config=write(config), **{**none, **MODEL, **flags})


# The file and the options: the same run, bit for bit.
with_file, with_flags = run(FULL), train(**MODEL, **FLAGS)
if same(with_file.code, 0, "a full file trains") and same(with_flags.code, 0, "and so do the options"):
    same(with_file.losses, with_flags.losses, "to the same bits")
    same([with_file.report[key] for key in ("stage", "accumulate", "steps")], [2, 2, 6], "stage, accumulation, steps")
    planned = [[rank["planned_bytes"] for rank in report["ranks"]] for report in (with_file.report, with_flags.report)]
    same(*planned, "and the same plan")
else:
    note(with_file.err + with_flags.err)
# What the file omits has DeepSpeed's default.
DEFAULTS = dict(beta2=0.999, weight_decay=0, clip=0, schedule_lr="constant", warmup=0)
for name, config, flags in [
        ("SGD, a constant rate", {"optimizer": {"type": "SGD", "params": {"lr": 0.01, "momentum": 0.5}},
                                  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": 0.02,
                                                                               "warmup_min_lr": 0.001}}},
         dict(optimizer="sgd", lr=0.02, momentum=0.5, warmup=3, warmup_lr=0.001, warmup_type="log", beta2=None)),
        ("cosine to a share of the rate", {"optimizer": {"type": "adam", "params": {"lr": 0.01, "eps": 1e-6, "betas": [0.8, 0.9]}},
                                           "scheduler": {"type": "WarmupCosineLR", "params": {
                                               "warmup_num_steps": 2, "warmup_type": "linear", "total_num_steps": 4,
                                               "warmup_min_ratio": 0.5, "cos_min_ratio": 0.25}}},
         dict(lr=0.01, schedule_lr="cosine", warmup=2, warmup_lr=0.005, min_lr=0.0025, eps=1e-6, beta1=0.8, beta2=0.9)),
        ("one cycle", {"optimizer": {"type": "ADAMW", "params": {"weight_decay": "0.2"}},
                       "scheduler": {"type": "OneCycle", "params": {
                           "cycle_first_step_size": 2, "cycle_second_step_size": 2, "cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2,
                           "cycle_momentum": False, "cycle_min_mom": 0.8, "decay_lr_rate": 0}}},
         dict(lr=0.01, schedule_lr="linear", warmup=2, warmup_lr=1e-4, min_lr=1e-4, weight_decay=0.2)),
        ("a decay with defaults", {"gradient_clipping": 1, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 4}}},
         dict(schedule_lr="linear", min_lr=0, warmup_type="log", clip=1)),
        ("bf16", {"bfloat16": {"enabled": True}, "fp16": {"enabled": False, "initial_scale_power": 3}},
         dict(precision="bf16")),
        ("fp16", {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 30, "loss_scale_window": 2,
                           "hysteresis": 1, "min_loss_scale": 0.5}},
         dict(precision="fp16", loss_scale_power=30, loss_scale_window=2, loss_scale_hysteresis=1, min_loss_scale=0.5)),
        ("nothing", {}, {}), ("nulls", {"optimizer": None, "gradient_clipping": None, "fp16": {"enabled": None}}, {})]:
    steps = dict(steps=4) if "total_num_steps" not in str(config) and "Cycle" not in str(config) else {}
    if name == "a decay with defaults":  # 1,000 steps of warm-up are more than the run has: only a file may have that
        config["scheduler"]["params"]["warmup_num_steps"] = 3
        flags["warmup"] = 3
    got, want = run(config, batch=2, stage=0, **steps), train(**MODEL, batch=2, stage=0, steps=4, **{**DEFAULTS, **flags})
    ok(got.code == want.code == 0 and got.losses == want.losses, f"{name}: the same bits") or note(got.err + want.err)
got = run({"scheduler": {"type": "WarmupLR"}}, steps=4)
ok(got.code == 0 and "--warmup 1000" in got.err, "a warm-up longer than the run") or note(got.err)
same(run({"scheduler": {"type": "WarmupLR"}}, steps=4, warmup=5).code, 2, "of the command line it is refused")

# Options win, wherever they stand.
same(run(FULL, stage=1).report["stage"], 1, "--stage wins over the file")
same(run(FULL, steps=3, warmup=1).report["steps"], 3, "--steps wins over total_num_steps")
same(run(FULL, lr=1e-4).losses == with_file.losses, False, "--lr changes the run")
same(run(FULL, lr=3e-3).losses, with_file.losses, "and the file's own rate does not")

half = run({"fp16": {"enabled": True}}, steps=1, batch=2, precision="bf16").report
same(half["precision"], "bf16", "--precision wins over fp16.enabled")
bucket = {"zero_optimization": {"reduce_bucket_size": 4096}, "bf16": {"enabled": True}}
same(run(bucket, dry_run=True).report["ranks"], train(**MODEL, precision="bf16", bucket_bytes=8192, steps=None, batch=None,
                                                      stage=None, dry_run=True).report["ranks"],
     "a bucket of 4,096 elements of bf16 has 8 KiB")
got = run({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, dry_run=True)
ok(got.code == 2 and "fp16.enabled" in got.err and "bf16.enabled" in got.err, "two precisions at once are refused")

# What was passed over, reduced, left to the options and assumed is said, a line each, by one of the ranks.
AUTO = changed(FULL, optimizer__params__lr="auto", scheduler__params__warmup_max_lr="auto", gradient_clipping="auto",
               train_batch_size="auto", train_micro_batch_size_per_gpu="auto", bf16__enabled="auto")
for config, flags, lines in [
        (changed(FULL, wall_clock_breakdown=None, activation_checkpointing=None), {},
         ["passed over, since they change no result: " + ", ".join(f"zero_optimization.{key}" for key in (
             "allgather_bucket_size", "overlap_comm", "reduce_scatter", "contiguous_gradients", "allgather_partitions"))]),
        ({"_comment": "x", "steps_per_print": 5, "activation_checkpointing": {"partition_activations": True},
          "optimizer": {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.1, "weight_decay": 0.1}}}, dict(clip=1, warmup=1),
         ["passed over, since they change no result: _comment, steps_per_print, activation_checkpointing.partition_activations",
          "what the file omits has DeepSpeed's default: --schedule-lr constant"]),
        ({"zero_optimization": {"reduce_bucket_size": 5e9}}, dict(lr=1e-3, schedule_lr="linear", warmup=2),
         ["reduced to zr-train's largest size: zero_optimization.reduce_bucket_size 5000000000 (here 268435456)",
          "what the file omits has DeepSpeed's default: --optimizer adamw --weight-decay 0 --beta1 0.9 --beta2 0.999 --eps 1e-08 --clip 0"]),
        (changed(AUTO, zero_optimization=None, wall_clock_breakdown=None, activation_checkpointing=None), dict(lr=0.5),
         ['"auto" is here: --batch 8 --clip 1'])]:
    got = run(config, dry_run=True, **flags)
    same((got.code, got.err), (0, "".join(f"zr-train: --config: {line}\n" for line in lines)), f"said: {len(lines)} lines")
same(run(changed(AUTO, fp16=None), dry_run=True, precision="bf16", batch=5).report["precision"], "bf16", "auto: --precision")
same(run({"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}, steps=2).err.count("DeepSpeed's default"), 1,
     "of two ranks one says it")

# Any two give the third, at the world that there is.
for precision, least in (({}, 1024), ({"bf16": {"enabled": True}}, 2048)):
    for size in (12.3, 100):
        got = run({**precision, "zero_optimization": {"reduce_bucket_size": size}}, dry_run=True)
        ok(got.code == 2 and f"at least {least} " in got.err, f"{size} elements: the limits are in elements too") or \
            note(got.err)
for given, accumulate in [({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3}, 4),
                          ({"train_batch_size": 24, "gradient_accumulation_steps": 3}, 3),
                          ({"train_batch_size": 24}, 1),
                          ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}, 2)]:
    got = run(given, dry_run=True)
    batch = given.get("train_micro_batch_size_per_gpu", 24 // (2 * accumulate))
    want = train(**MODEL, stage=0, batch=batch, accumulate=accumulate, dry_run=True)
    if not ok(got.code == 0 and got.report == want.report, f"{given} is --batch {batch} --accumulate {accumulate}"):
        note(got.err)
for given, flags in [(FULL, dict(ranks=3)), (FULL, dict(batch=4)), (FULL, dict(accumulate=3)),
                     ({"train_batch_size": 7}, {}), ({"train_batch_size": 1}, {}),
                     ({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 3}, {})]:
    got = run(given, dry_run=True, **flags)
    ok(got.code == 2 and "train_batch_size is" in got.err,
       f"does not multiply: {given['train_batch_size']} {flags}")
same(run(FULL, batch=6, accumulate=1, dry_run=True).code, 0, "two options with the same product do")

# What is not supported is named, with its path and its line.
REFUSED = [
    ("zero_optimization.stage", 4), ("zero_optimization.stage", "two"), ("zero_optimization.stage", True),
    ("zero_optimization.reduce_bucket_size", 5e-8), ("zero_optimization.zero_quantized_nontrainable_weights", True),
    ("zero_optimization.offload_optimizer.device", "nvme"),
    ("zero_optimization.offload_param.device", "nvme"), ("zero_optimization.offload_optimizer.buffer_count", 1),
    ("zero_optimization.offload_optimizer.ratio", 1.5), ("zero_optimization.cpu_offload", 1),
    ("zero_optimization.stag", 1), ("zero_optimization", 3), ("data_types.grad_accum_dtype", "bf16"),
    ("bf16.enabled", 1), ("fp16.loss_scale", -1), ("amp", {"enabled": True}), ("communication_data_type", "fp32"),
    ("fp16.hysteresis", 0), ("fp16.initial_scale_power", 33), ("fp16.consecutive_hysteresis", True),
    ("optimizer.type", "Lion"), ("optimizer.type", 7), ("optimizer.params.betas", [0.9]),
    ("optimizer.params.betas", [0.9, "x"]), ("optimizer.params.eps", 0), ("optimizer.params.momentum", 0.9),
    ("optimizer.params.lr", -1), ("optimizer.params.max_grad_norm", 1), ("optimizer.params.amsgrad", True),
    ("optimizer.params.bias_correction", False), ("scheduler.type", "LRRangeTest"), ("scheduler.params.warmup_type", "cosine"),
    ("scheduler.params.warmup_min_lr", -1e-5), ("scheduler.params.warmup_min_lr", "x"), ("scheduler.params.cycle_min_lr", 1),
    ("scheduler.params.cos_min_ratio", 0.1), ("scheduler.params.total_num_steps", 2.5),
    ("activation_checkpointing.partition_activations", 1), ("gradient_clipping", -1), ("gradient_clipping", "one"),
    ("train_batch_size", 1.5), ("train_batch_size", "12x"), ("train_micro_batch_size_per_gpu", 0), ("learning_rate", 1),
    ("gradient_accumulation_steps", 1e300), ("prescale_gradients", True), ("a.b", 1), ("zero_optimization.stage", []),
]
for key, value in REFUSED:
    config = json.loads(json.dumps(FULL))
    at = config
    *above, last = key.split(".")
    for part in above:
        at = at.setdefault(part, {})
    at[last] = value
    lines = json.dumps(config, indent=1).splitlines()
    got = run(config, dry_run=True)
    named = re.search(r"zr-train: --config '[^']*config.json' line (\d+): (\S+): ", got.err)
    if not ok(got.code == 2 and named and got.err.count("\n") == 1, f"refused: {key} = {value!r:.40}"):
        note(got.err)
        continue
    line, where = lines[int(named.group(1)) - 1], named.group(2)
    ok(f'"{where.split(".")[-1]}"' in line, f"at line {named.group(1)}: {where}")
# All problems are in one message.
got = run({"train_batch_size": 1.5, "optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 7, "stag": 1}}, dry_run=True)
ok(got.code == 2 and re.search(r"\Azr-train: --config '[^']*config.json': 4 problems:\n(  line \d+: \S+: .*\n){4}\Z", got.err),
   "all problems are in one message, with their lines") or note(got.err)
for what, config in [("no optimizer type", changed(FULL, optimizer__type=None)),
                     ("L2 decay", changed(FULL, optimizer__type="Adam", optimizer__params__adam_w_mode=False)),
                     ("a cycle of betas", {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}}}),
                     ("no total_num_steps", changed(FULL, scheduler__params__total_num_steps=None)),
                     ("betas for SGD", changed(FULL, optimizer__type="SGD")),
                     ("a dot in a key", {"zero_optimization.stage": 1})]:
    got = run(config, dry_run=True)
    ok(got.code == 2 and " line " in got.err, f"refused: {what}: {got.err.strip()[-60:]}")

# Hostile files: one line of words, exit 2 or 3, whatever is in them.
def command(where):
    return subprocess.run([ZR_TRAIN, "--dry-run", "--config", where, "--hidden", "32"], capture_output=True, timeout=HANG)


for what, data in [("nothing", b""), ("no object", b"[1]"), ("a number", b"7"), ("half", b'{"bf16": {'),
                   ("a key twice", b'{"bf16": {},\n"bf16": {}}'), ("a NUL", b'{"bf16\0": 1}'),
                   ("no UTF-8", b'{"\xff\xfe": 1}'), ("depth", b"[" * 60000), ("depth in a key", b'{"bf16":' * 7000),
                   ("length", b" " * 70000 + b"{}"), ("many small values", b"[" + b"0," * 32000 + b"0]"),
                   ("a huge number", b'{"gradient_clipping": 1e999}'), ("a comment", b"{} // no")]:
    got = command(write(data))
    good = got.returncode == 3 and got.stderr.count(b"\n") == 1 and b"config.json' line " in got.stderr
    if not ok(good, f"exit 3: {what}: {got.stderr.decode(errors='replace').strip()[-70:]}"):
        note(got.returncode)
for what, where in [("a file that is not there", path("none.json")), ("a folder", os.path.dirname(path("x")))]:
    got = command(where)
    ok(got.returncode == 3 and os.path.basename(where).encode() in got.stderr, f"exit 3: {what}")
got = command(write('{"line\\nfeed": 1, "bf16": {}}'))
same([got.returncode, got.stderr.count(b"\n")], [2, 1], "a line feed in a key stays out of the words")
same(command(write({"k" * 50000: 1})).returncode, 2, "a key of 50,000 letters is unknown")

rng, whole, bad = random.Random(SEED), json.dumps(FULL, indent=1).encode(), []
for trial in range(150):
    data = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        at, how = rng.randrange(len(data)), rng.randrange(3)
        data[at:at + how] = bytes([rng.choice(b'{}[],:"0123456789.-eE\\\n\0 tfn\xff')])
    if trial % 3 == 0:
        del data[rng.randrange(len(data)):]
    got = command(write(bytes(data)))
    if got.returncode not in (0, 2, 3) or (got.returncode and got.stderr.count(b"zr-train: ") != 1):
        bad.append((trial, got.returncode, got.stderr[:200]))
same(bad, [], "150 damaged files: taken or refused in one line")
done()
