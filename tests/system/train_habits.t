#!/usr/bin/env python3
"""Habits of training: schedules, epochs, a moving average of the weights, samples drawn by rank and probability, the status file and the event file of
TensorBoard, read back by a reader that shares no code with zr-train."""
import array
import glob
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, "tests/support")
from pairs import optimizers
from saves import read_safetensors, step_folder
from zrtest import HANG, ZR_TRAIN, done, note, of_session, ok, path, same, start_quickly, text_file, train, wait_for

start_quickly()

BASE = dict(data=text_file(), layers=2, hidden=16, heads=2, seq=16, batch=2, steps=6, eval_every=0)


def run(**flags):
    got = train(**{**BASE, **flags})
    got.code == 0 or note(got.err[-1000:])
    return got


def refused(words, message, **flags):
    got = train(**{**BASE, **flags})
    same((got.code, message in got.err), (2, True), words) or note(got.err[-500:])


# ---- Schedules
def rates(**flags):
    log = path("log")
    run(log=log, **flags)
    return [json.loads(line)["rate"] for line in open(log)]


got = rates(steps=20, lr=1, min_lr=0.2, warmup=4, schedule_lr="wsd", decay_share=0.25)
ok(all(abs(a - b) < 1e-6 for a, b in zip(got, [0.25, 0.5, 0.75] + [1] * 12 + [0.84, 0.68, 0.52, 0.36, 0.2], strict=True)), "wsd: up, level, down")
got = rates(steps=20, lr=1, warmup=4, schedule_lr="inverse-sqrt")
ok(all(abs(a - min(n / 4, math.sqrt(4 / n))) < 1e-6 for n, a in enumerate(got, 1)), "inverse-sqrt: 2 / sqrt(step)")
refused("a share without wsd", "--decay-share requires", decay_share=0.5)
refused("a minimum that is not reached", "--min-lr requires --schedule-lr cosine", schedule_lr="inverse-sqrt", min_lr=1e-5)
refused("no warm-up", "requires --warmup 1 or more", schedule_lr="inverse-sqrt", warmup=0)

# ---- Epochs
windows = int(16000 * 0.95 - 1) // 16
whole = run(steps=None, epochs=1, data_order="epochs", batch=60, seq=16, accumulate=2)
steps = len(whole.losses)
same(steps, -(-windows // 120), "an epoch is as many steps as its windows take")
said = [line for line in whole.err.splitlines() if "an epoch is" in line]
ok(f"an epoch is {windows} windows" in "".join(said), "of the windows that the run names") or note(said)
halves = run(steps=None, epochs=2, data_order="epochs", batch=60, ranks=2, stage=1)
same(len(halves.losses), -(-2 * windows // 120), "two epochs, on two ranks")
saved = path("epochs")
run(steps=3, data_order="epochs", batch=60, accumulate=2, save=saved, warmup=2, schedule_lr="constant")
more = dict(data_order="epochs", warmup=2, schedule_lr="constant", resume=saved)
rest, straight = run(steps=None, epochs=1, batch=60, accumulate=2, **more), run(steps=steps, batch=60, accumulate=2, **more)
same((len(rest.losses), rest.losses), (steps - 3, straight.losses), "a resumed run reads the rest of the epoch")
refused("other rows per step", "give --steps 13", steps=None, epochs=1, batch=60, **more)
refused("a random order", "requires --data-order epochs", steps=None, epochs=1)
refused("steps and epochs", "cannot be combined with --steps", epochs=1, data_order="epochs")
refused("a chosen mesh", "these choose the rows", steps=None, epochs=1, data_order="epochs", zero_r="auto", memory_limit="1GiB")
refused("weights", "without weights", steps=None, epochs=1, data_order="epochs", data=text_file() + ":weight=1")

# ---- What a checkpoint remembers
kept = path("course")
run(steps=3, dropout=0.2, attention_dropout=0.1, warmup=1, schedule_lr="wsd", save=kept)
said = run(steps=3, dropout=0.3, warmup=1, schedule_lr="wsd", decay_share=0.5, resume=kept, save=path("other")).err
ok("--dropout 0.3; the checkpoint had 0.2" in said and "--attention-dropout 0; the checkpoint had 0.1" in said and "--decay-share 0.5 (it had 0.1)" in said, "a resumed run names another dropout and share") or note(said)
shape = [word for key in ("layers", "hidden", "heads", "seq") for word in (f"--{key}", str(BASE[key]))]


def command(name, *words, of=("--resume", kept), given=None):
    return subprocess.run([ZR_TRAIN, name, *of, *shape, *words], capture_output=True, text=True, input=given)


made = command("sample", "--prompt", "ab", "--sample", "5")
ok(made.returncode == 0 and made.stdout.startswith("ab"), "zr-train sample of a checkpoint, without its data, whatever its seed") or note(made.stderr)
several = command("sample", "--prompts", "-", "--sample", "5", "--ranks", "2", given="x\n\nab\r\n")
same([(line["prompt"], line["text"] + "\n" == made.stdout) for line in map(json.loads, several.stdout.splitlines())],
     [("x", False), ("", False), ("ab", True)], "a line of standard input has the text that it has alone, on any ranks") or note(several.stderr)
at = re.match(r"ab(\\x..)*", made.stdout).end()  # the first letter that is shown as it is
same(command("sample", "--prompt", "ab", "--sample", "5", "--stop", made.stdout[at]).stdout, made.stdout[:at] + "\n", "--stop ends the text")
for words, given, code, problem in ((["--prompts", "-"], "a\nb\0", 3, "line 2 of --prompts: it has a zero byte"), (["--prompts", path("none")], None, 3, "cannot open"),
                                    (["--prompts", "-", "--prompt", "a"], None, 2, "cannot be combined with --prompt"), (["--stride", "4"], None, 2, "does not take --stride")):
    got = command("sample", *words, given=given)
    same((got.returncode, problem in got.stderr), (code, True), f"{words}: refused") or note(got.stderr)

# ---- Evaluation: every token of a file but the first once
EVALUATED = path("evaluated.txt")
with open(EVALUATED, "w") as file:
    file.write(open(text_file()).read()[-100:])


def evaluated(*words, files=(EVALUATED,)):
    got = command("eval", *files, *words, "--json", "-")
    got.returncode == 0 or note(got.stderr)
    return json.loads(got.stdout)


def by_windows(stride):
    """The same loss from evaluations of single windows: files of at most 17 bytes, of which the last bytes count."""
    text, done, nats = open(EVALUATED).read(), 1, 0.0
    for first in range(0, len(text) - 1, stride):
        window, known = path("window.txt"), path("known.txt")
        ends = min(first + 17, len(text))
        for name, until in ((window, ends), (known, done)):
            with open(name, "w") as file:
                file.write(text[first:until])
        whole = evaluated(files=(window,))
        nats += whole["loss"] * whole["tokens"]
        if done - first > 1:
            part = evaluated(files=(known,))
            nats -= part["loss"] * part["tokens"]
        done = ends
        if done == len(text):
            break
    return nats / (len(text) - 1)


want = {stride: by_windows(stride) for stride in (16, 7)}
for stride, *words in ((16,), (16, "--batch", "3"), (7, "--batch", "5"), (7, "--ranks", "3", "--stage", "3"), (7, "--ranks", "2", "--tp", "2"),
                       (16, "--ranks", "2", "--pp", "2"), (7, "--ranks", "2", "--cp", "2"), (7, "--ranks", "4", "--cp", "2", "--batch", "1")):
    got = evaluated("--stride", str(stride), *words)
    ok(abs(got["loss"] - want[stride]) < 1e-6 and got["tokens"] == 99 and got["windows"] == -(-(99 - 16) // stride) + 1
       and abs(got["perplexity"] - math.exp(got["loss"])) < 1e-9 and abs(got["bits_per_byte"] - got["loss"] / math.log(2)) < 1e-9,
       f"eval, {stride} apart {words}: {got['loss']:.6f}") or note(want)
twice = evaluated(files=(EVALUATED, text_file(), EVALUATED))
one = [evaluated(files=(name,)) for name in (EVALUATED, text_file())]
ok(twice["tokens"] == 2 * 99 + 15999 and abs(twice["loss"] * twice["tokens"] - 2 * 99 * one[0]["loss"] - 15999 * one[1]["loss"]) < 1e-3,
   "no window has tokens of two files")
for name, size in (("short.txt", 36), ("window.txt", 17)):  # the last window of so short a text is the only one that validates
    with open(path(name), "w") as file:
        file.write(open(text_file()).read()[-size:])
for kind in optimizers():  # each has other state, which eval reads for the checksum
    short = run(data=path("short.txt"), batch=1, eval_every=6, optimizer=kind, save=path(f"short-{kind}"))
    last = command("eval", path("window.txt"), "--optimizer", kind, "--json", "-", of=("--resume", path(f"short-{kind}")))
    same(last.returncode == 0 and json.loads(last.stdout)["loss"], short.report["val_loss"], f"{kind}: the figure of a run's own validation") or note(last.stderr)
large = run(data=EVALUATED, layers=6, hidden=256, heads=2, batch=1, steps=1, save=path("large"))
limit = 2 * 4 * large.report["parameters"]
for words in ([], ["--ranks", "2", "--pp", "2"]):  # neither gradients nor optimizer state, which are 12 bytes of 16
    got = command("eval", EVALUATED, "--layers", "6", "--hidden", "256", "--memory-limit", str(limit), "--batch", "2", *words, of=("--resume", path("large")))
    ok(got.returncode == 0 and "round 4/4" in got.stderr, f"eval {words} in {limit} bytes, with progress") or note(got.stderr)
for words, code, problem in (([], 2, "requires files"), ([EVALUATED, "--steps", "3"], 2, "does not take --steps"), ([EVALUATED, "--stride", "17"], 2, "--stride is above --seq"),
                             ([EVALUATED + ":weight=1"], 2, "leave :weight=F out"), ([path("none")], 3, "cannot open"), (["-"], 2, "not an option"),
                             ([path("single")], 3, "no token that another one precedes"), ([path("shard")], 3, "token shard, not text")):
    open(path("single"), "w").write("a")
    open(path("shard"), "wb").write(array.array("i", [20240520, 1, 4] + [0] * 255).tobytes())
    got = command("eval", *words)
    same((got.returncode, problem in got.stderr), (code, True), f"eval {words}: refused") or note(got.stderr)
long = subprocess.Popen([ZR_TRAIN, "sample", "--resume", kept, *shape, "--seed", "11", "--ranks", "2", "--sample", "1000000"],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ticks(process):
    """Ticks of the processor's clock that a process has worked."""
    with open(f"/proc/{process}/stat") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))


wait_for(lambda: sum(map(ticks, of_session(long.pid))) > os.sysconf("SC_CLK_TCK"))  # a second of work: the text has begun
long.send_signal(signal.SIGINT)
words = long.communicate(timeout=HANG)[1]
same((long.returncode, "did not exit" in words), (130, False), "SIGINT ends a text between two tokens, on all ranks") or note(words)

# ---- Dropout
DROP = dict(dropout=0.3, attention_dropout=0.2, layers=3, batch=4, eval_every=6, warmup=0, schedule_lr="constant")


def near(got, want, words):
    far = max(abs(float.fromhex(a) - float.fromhex(b)) for a, b in zip(got, want, strict=True))
    ok(far < 2e-5, f"{words} ({far:.1e})")


for arch in ({}, dict(arch="llama", heads=4, kv_heads=2)):
    plain, drop = run(**{**DROP, **arch, "dropout": None, "attention_dropout": None}), run(**DROP, **arch)
    ok(all(a != b for a, b in zip(plain.losses, drop.losses)), f"{arch}: dropout changes losses")
    ok(run(**{**DROP, **arch, "attention_dropout": None}).losses[0] != drop.losses[0], "attention's, too")
    still = [run(**{**DROP, **arch, "dropout": share}, lr=0).report["val_loss"] for share in (0, 0.3)]
    same(still[0], still[1], "but no validation")
    for how in (dict(ranks=2, batch=2), dict(accumulate=2, batch=2), dict(ranks=2, tp=2), dict(tile=2), dict(ranks=2, tp=2, sequence_parallel=True),
                dict(ranks=4, batch=1, accumulate=2, pp=2), dict(pp=2, ranks=2), dict(backend="host", threads=2)):
        near(run(**{**DROP, **arch, **how}).losses, drop.losses, f"{how}: the same elements are dropped")
    for how in (dict(recompute="full"), dict(recompute="selective"), dict(stage=3), dict(stage=3, recompute="full:2")):
        same(run(**{**DROP, **arch, **how}).losses, drop.losses, f"{how}: the same bits")
    two = {**DROP, **arch, "batch": 2, "ranks": 2}
    want = run(**two)
    for how in (dict(stage=3, offload_optimizer="cpu", offload_param="cpu"), dict(stage=2, recompute="full", checkpoint_offload=True)):
        same(run(**{**two, **how}).losses, want.losses, f"{how}: the same bits on two ranks")
    for how in (dict(tp=2, ranks=2, sequence_parallel=True), dict(stage=3, ranks=2, tile=2), dict(pp=2, ranks=2, accumulate=2), dict(precision="bf16", ranks=2)):
        proved = train(**{**BASE, **DROP, **arch, **how}, prove=True)
        same(proved.code, 0, f"{how}: every gradient is that of one rank") or note(proved.err[-600:])
    kept = path(f"dropped-{len(arch)}")
    run(**{**DROP, **arch, "steps": 3}, save=kept)
    same(run(**DROP, **arch, resume=kept).losses, drop.losses[3:], "a resumed run drops the same")
same(run(**DROP, sample=5).out.split("text ──")[-1] == "", False, "samples are made")

# ---- The moving average of the weights
AVERAGE = dict(ema=0.75, warmup=0, schedule_lr="constant", lr=0.01, steps=4, eval_every=4)


def numbers(name):
    return {tensor: array.array("f", values) for tensor, (_, _, values) in read_safetensors(name)[0].items()}


def state(folder, step):
    return numbers(os.path.join(step_folder(folder, step), "state.safetensors"))


single = lambda value: struct.unpack("<f", struct.pack("<f", value))[0]
for optimizer in ("adamw", "adafactor"):
    kept = path("average-" + optimizer)
    run(**AVERAGE, optimizer=optimizer, save=kept, save_every=1, export=path("average.safetensors"))
    far = 0
    for step in range(2, 5):
        now, last = state(kept, step), state(kept, step - 1)
        for name in [n for n in now if n.startswith("optimizer.average.")]:
            weights = now[name.removeprefix("optimizer.average.")]
            far += sum(a != single(single(0.75 * b) + single(0.25 * w)) for a, b, w in zip(now[name], last[name], weights))
    same((len(now) > 20, far), (True, 0), f"{optimizer}: each step moves the average of every tensor a quarter towards the weights")
    exported = numbers(path("average.safetensors"))
    same(exported["h.1.mlp.c_fc.weight"], now["optimizer.average.h.1.mlp.c_fc.weight"], "and the export is the average")
plain = run(**{**AVERAGE, "ema": None})
for precision in ("fp32", "bf16"):
    want = run(**AVERAGE, precision=precision, ranks=2)
    for how in (dict(stage=1), dict(stage=2, accumulate=1), dict(stage=3), dict(stage=3, offload_optimizer="cpu"),
                dict(stage=3, offload_optimizer="cpu", offload_param="cpu"), dict(stage=2, offload_optimizer=f"nvme:{path('.')}", force=True),
                dict(stage=1, pp=2, ranks=4), dict(stage=1, offload_optimizer="cpu", speculative_update="1MiB")):
        if "pp" in how and precision == "bf16":
            continue  # a tied embedding of two stages rounds its sums in another order
        got = run(**{**AVERAGE, "precision": precision, "ranks": 2, **how})
        same((got.losses, got.report["val_loss"]), (want.losses, want.report["val_loss"]), f"{precision}, {how}: the same bits")
        same([[r[k]["optimizer"] for k in ("planned_bytes", "peak_bytes")] for r in got.report["ranks"]],
             [[r["planned_bytes"]["optimizer"]] * 2 for r in got.report["ranks"]], "its bytes are the planned ones")
one, with_it = (run(**{**AVERAGE, "ema": ema}).report["ranks"][0]["peak_bytes"]["optimizer"] for ema in (None, 0.5))
same(with_it * 2, one * 3, "it takes half of what AdamW keeps")
got = run(**AVERAGE)
same((got.losses, got.report["val_loss"] == plain.report["val_loss"]), (plain.losses, False),
     "training has the bits that it has without it, validation has the average's")
kept = path("average-half")
run(**{**AVERAGE, "steps": 2}, save=kept)
rest = run(**AVERAGE, resume=kept)
same((rest.losses, rest.report["val_loss"]), (got.losses[2:], got.report["val_loss"]), "a resumed run continues it")
same(train(**{**BASE, **AVERAGE, "ema": None}, resume=kept).code, 3, "not without it")
refused("a delayed update", "--delayed-update cannot be combined with --ema", **AVERAGE, delayed_update=True, offload_optimizer="cpu")

# ---- The gradient noise scale
NOISE = dict(arch="llama", heads=4, layers=3, batch=2, lr=0.01, warmup=0, schedule_lr="constant", steps=3, noise_scale=0.5)


def logged(**flags):
    log = path("noise.jsonl")
    got = run(**{**NOISE, **flags}, log=log)
    return got, [json.loads(line) for line in open(log)]


def squares(line, small, large):
    """The squares of the small and of the large batch, of sequences of 16 tokens, from the first line."""
    return [line["gradient_square"] + line["gradient_variance"] / (16 * count) for count in (small, large)]


alone = logged(noise_scale=None)[1][0]["gradient_norm"] ** 2  # of the first two rows, the small batch of the next
two, lines = logged(accumulate=2)
got = squares(lines[0], 2, 4)
ok(abs(got[0] / alone - 1) < 1e-5 and abs(got[1] / lines[0]["gradient_norm"] ** 2 - 1) < 1e-9, "the squares of a step's first micro-batch and of the step") or note((got, alone))
same(two.losses, logged(accumulate=2, noise_scale=None)[0].losses, "measuring changes no bit")
ok(all(line["noise_scale"] is None or abs(line["noise_scale"] * line["gradient_square"] / line["gradient_variance"] - 1) < 1e-9 for line in lines),
   "the scale is the ratio of the averages")
want = {}
for ranks in (2, 3):
    for how in (dict(stage=0), dict(stage=1), dict(stage=2), dict(stage=3), dict(stage=0, reduce="once", accumulate=1), dict(stage=3, offload_optimizer="cpu", offload_param="cpu"),
                dict(stage=2, recompute="full"), dict(stage=1, offload_optimizer=f"nvme:{path('.')}", force=True), dict(stage=2, no_contiguous=True)):
        got = [{key: line[key] for key in ("noise_scale", "gradient_square", "gradient_variance")} for line in logged(ranks=ranks, **how)[1]]
        same(got, want.setdefault(ranks, got), f"{ranks} ranks, {how}: the same bits")
for how, like in ((dict(ranks=4, tp=2), 2), (dict(ranks=4, pp=2, accumulate=1), 2), (dict(ranks=2, tile=2), 2), (dict(ranks=3, precision="bf16"), 3), (dict(ranks=3, precision="fp16", stage=2, loss_scale=1024), 3)):
    line = logged(**how)[1][0]
    far = max(abs(a / b - 1) for a, b in zip(squares(line, 2, 2 * like), squares(want[like][0], 2, 2 * like), strict=True))
    ok(far < (0.05 if "precision" in how else 1e-4), f"{how}: the squares of {like} ranks ({far:.1e})")
each = squares(logged(ranks=2, accumulate=2)[1][0], 2, 8), squares(logged(ranks=2, accumulate=2, reduce="once", stage=1)[1][0], 2, 8)
ok(all(abs(a / b - 1) < 1e-5 for a, b in zip(*each, strict=True)), "--reduce once: the first micro-batch, too") or note(each)
tied = [squares(logged(arch="gpt2", stage=stage, **how)[1][0], 2, 4) for stage, how in ((0, dict(accumulate=2)), (0, dict(ranks=2)), (3, dict(ranks=2)))]
ok(abs(tied[0][1] / tied[1][1] - 1) < 1e-5 and tied[1] == tied[2], "a tied embedding counts nowhere") or note(tied)
for words, how in (("one gradient", {}), ("parts of sequences", dict(cp=2, ranks=4)), ("parts of the gradients", dict(tp=2, ranks=4, sequence_parallel=True)),
                   ("--delayed-update", dict(ranks=2, stage=1, delayed_update=True, offload_optimizer="cpu"))):
    refused(f"noise: {words}", words, **{**NOISE, **how})

# ---- Samples
def text(**flags):
    return run(sample=40, prompt="ab", **flags).out.split("text ──")[-1].split("Next ──")[0]


drawn = dict(top_k=0, top_p=0.9, temperature=1.5)
want = text(**drawn, batch=4)
same({text(**drawn, batch=2, ranks=2, stage=stage, **how) for stage, how in ((1, {}), (3, {}))} | {text(**drawn, batch=4, pp=2, ranks=2)},
     {text(**drawn, batch=2, ranks=2)} | {want}, "the seed gives the same text at every stage, and on two pipeline ranks")
ok(text(**drawn, batch=4, seed=2) != want, "another seed, another text")
refused("draws without a temperature", "cannot be combined with --temperature 0", sample=5, temperature=0, top_p=0.5)
refused("draws without a text", "requires --sample", top_k=5)


# ---- TensorBoard and status
def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def mask(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(data, at):
    value = shift = 0
    while True:
        value, shift, at, more = value | (data[at] & 127) << shift, shift + 7, at + 1, data[at] & 128
        if not more:
            return value, at


def fields(data):
    """[(number, value)] of a protobuf message."""
    out, at = [], 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at:at + size], at + size
        out.append((key >> 3, value))
    return out


def events(name):
    """[(step, file version, {tag: value}, session status)] of an event file."""
    data, at, out = open(name, "rb").read(), 0, []
    while at < len(data):
        head, size = data[at:at + 8], struct.unpack_from("<Q", data, at)[0]
        body = data[at + 12:at + 12 + size]
        assert struct.unpack_from("<I", data, at + 8)[0] == mask(crc32c(head)), "checksum of a length"
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == mask(crc32c(body)), "checksum of an event"
        at += 16 + size
        event = dict(fields(body))
        assert struct.unpack("<d", event[1])[0] > 1.6e9, "the time of an event"
        values = {dict(fields(v))[1].decode(): struct.unpack("<f", dict(fields(v))[2])[0] for _, v in fields(event.get(5, b""))}
        out.append((event[2], event.get(3), values, event.get(7)))
    return out


same(crc32c(b"123456789"), 0xE3069283, "the reader's checksum is CRC-32C's check value")
folder, log, status = path("board/run"), path("log.jsonl"), path("status")
run(steps=4, tensorboard=folder, log=log, status=status, save=path("kept"), eval_every=2, accumulate=2, noise_scale=0.9)
files = glob.glob(folder + "/events.out.tfevents.*")
first, *rest = events(files[0])
same(first, (0, b"brain.Event:2", {}, None), "the file begins with its version")
lines = [json.loads(line) for line in open(log)]
names = {"train/loss": "loss", "train/grad_norm": "gradient_norm", "train/learning_rate": "rate", "train/tokens_per_second": "tokens_per_second",
         "train/noise_scale": "noise_scale", "eval/loss": "val_loss"}
same([(step, values) for step, _, values, _ in rest],
     [(line["step"], {tag: single(line[key]) for tag, key in names.items() if line.get(key) is not None}) for line in lines], "each step has the numbers of the log")
last = json.loads(open(status).read())
same((last["step"], last["steps"], last["state"], last["loss"], last["seconds_left"]), (4, 4, "done", lines[-1]["loss"], 0), "the status is that of the end")
run(steps=6, tensorboard=folder, resume=path("kept"), status=status)
later = [name for name in glob.glob(folder + "/*") if name not in files]
same([(event[0], event[3]) for event in events(later[0])], [(0, None), (5, b"\x08\x01"), (5, None), (6, None)],
     "a resumed run writes its own file, which replaces later steps")
same(run(ranks=2, status="/dev/full").code, 3, "a device is no status file")
full = run(tensorboard=path("a\x01b"), log="/dev/full")
same((full.code, "the run continues without its log" in full.err), (3, True), "a full disk ends the log, not the run")
same(len(events(glob.glob(path("a\x01b") + "/*")[0])), 7, "nor the event file")

done()
