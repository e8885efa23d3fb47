#!/usr/bin/env python3
"""make demo, as a newcomer types it: validation loss below 2.0 nats per byte, and what it is to say. ZR_DEMO names a file
of what it has said already: .ci/run has typed it. Then 300 steps of its shape in fp8, beside bf16, and
200 of 2bw and of compression."""
import os
import re
import sys

sys.path.insert(0, "tests/support")
from compressions import METHODS, SHAPE, is_unknown
from zrtest import BUILD, LONG_HANG, done, note, ok, run_limited, same, text_file, train

if os.environ.get("ZR_DEMO"):
    with open(os.environ["ZR_DEMO"], encoding="utf-8", errors="replace") as file:
        said = file.read()
else:
    got = run_limited(["make", "demo", f"BUILD={BUILD}"])
    said = got.stdout
    same(got.returncode, 0, "make demo ends well") or note(got.stderr[-2000:])
losses = re.findall(r"validation\s+([0-9.]+) nats", said)
ok(losses and float(losses[-1]) < 2.0, f"validation loss {losses[-1] if losses else 'missing'} is below 2.0")
for words in ("Byte plan", "stranded", "tokens/s", "as planned", "Next", "--prompt"):
    ok(words in said, f"the table shows {words!r}")

# The validation loss after 300 steps: eight bits cost less than a hundredth of it.
bible = os.path.join(BUILD, "demo", "bible.txt")
ends = {}
for precision in ("bf16", "fp8"):
    run = train(data=bible if os.path.exists(bible) else text_file("long.txt", size=400000), ranks=2, stage=1, layers=4, hidden=192, heads=6, seq=64, batch=4,
                steps=300, lr=2.5e-3, warmup=40, eval_every=300, precision=precision, timeout=LONG_HANG)
    if same(run.code, 0, f"300 steps in {precision}"):
        ends[precision] = run.report["val_loss"]
    else:
        note(run.err)
off = ends["fp8"] / ends["bf16"] - 1 if len(ends) == 2 else 1
ok(abs(off) < 0.01, f"fp8 ends {100 * off:+.2f} % beside bf16: {ends}")

# 200 steps of 2bw at a rate that gradients one update old bear: a delayed update's loss, and what the delay costs beside 1f1b.
two = dict(ranks=2, pp=2, batch=2, accumulate=4)
for words, flags in (("1f1b", two), ("2bw", dict(two, schedule="2bw")),
                     ("delayed", dict(two, ranks=1, pp=None, stage=1, offload_optimizer="cpu", delayed_update=True))):
    run = train(data=bible if os.path.exists(bible) else text_file("long.txt", size=400000), layers=4, hidden=192, heads=6, seq=64, steps=200, lr=3e-4,
                warmup=40, eval_every=200, timeout=LONG_HANG, **flags)
    if same(run.code, 0, f"200 steps of {words}"):
        ends[words] = run.report["val_loss"]
    else:
        note(run.err)
apart = {words: ends["2bw"] - ends[words] for words in ("1f1b", "delayed")} if len(ends) == 5 else {"1f1b": 9, "delayed": 9}
ok(abs(apart["delayed"]) < 0.02 and apart["1f1b"] < 0.2, f"2bw ends {apart} nats beside a delayed update and 1f1b")

# 200 steps of what ranks send in fewer bits, beside none; what sends a fraction of the numbers, with its error later, ends further away.
# topk is compared with SGD: AdamW divides the few numbers by their own variance, and a run of it ends far away (zero/train/MANUAL.md).
BANDS = {"int8": 0.01, "int4": 0.01, "qwz + qgz + hpz on 4 ranks": 0.01, "sdp4bit": 0.01, "onebit": 0.04, "powersgd": 0.01, "zerone": 0.04, "topk": 0.04}
SGD = dict(optimizer="sgd", momentum=0.9, lr=0.1, beta2=None)
plain = None
for method, more in [("none", {}), *((method, {}) for method in BANDS if method != "topk"), ("none", SGD), ("topk", SGD)]:
    run = train(**{**SHAPE, "layers": 2, "hidden": 96, "steps": 200, "lr": 2.5e-3, "beta2": 0.98, "eval_every": 200, "timeout": LONG_HANG,
                   "data": bible if os.path.exists(bible) else text_file("long.txt", size=400000), **METHODS[method], **more})
    if is_unknown(run):
        continue
    plain = (run.report or {}).get("val_loss") if method == "none" else plain
    off = run.report["val_loss"] / plain - 1 if plain and run.code == 0 else 1
    ok(abs(off) < BANDS.get(method, 0.01), f"200 steps of {method} end {100 * off:+.2f} % beside none") or note(run.err)
done()
