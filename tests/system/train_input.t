#!/usr/bin/env python3
"""Bad input: a message that names the thing and the way out, the right exit code, and nothing half written."""
import os
import struct
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import FOLDER, ZR_TRAIN, done, note, ok, path, same, text_file, train


def refused(words, code, names, reports=False, **flags):
    before = set(os.listdir(FOLDER))
    run = train(**flags)
    good = same(run.code, code, f"{words}: exit {code}")
    for name in names:
        good &= ok(name in run.err, f"{words}: the message names {name!r}")
    if reports:
        good &= ok(run.report and not run.report["fits"], f"{words}: a report that says so")
    else:
        good &= ok(run.report is None, f"{words}: no report")
    left = set(os.listdir(FOLDER)) - before
    good &= same(left, set(), f"{words}: nothing is left behind")
    if not good:
        note(run.err)


def shard(name, header, tokens):
    where = path(name)
    with open(where, "wb") as file:
        file.write(struct.pack("<256i", *(header + [0] * (256 - len(header)))))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
    return where


for where, content in (("empty.txt", b""), ("short.txt", b"too short")):
    with open(path(where), "wb") as file:
        file.write(content)
os.mkdir(path("folder"))
text_file()
good_tokens = [i % 300 for i in range(4000)]
shards = {
    "magic.bin": ([1234, 1, 4000], good_tokens),
    "version.bin": ([20240520, 9, 4000], good_tokens),
    "count.bin": ([20240520, 1, 999999], good_tokens),
    "negative.bin": ([20240520, 1, -5], good_tokens),
    "token.bin": ([20240520, 1, 4000], good_tokens[:-1] + [5000]),
}
for name, (header, tokens) in shards.items():
    shard(name, header, tokens)
with open(path("cut.bin"), "wb") as file:
    file.write(struct.pack("<3i", 20240520, 1, 4000))

refused("no file", 3, ["nowhere.txt"], data=path("nowhere.txt"))
refused("an empty file", 3, ["empty.txt"], data=path("empty.txt"))
refused("a text shorter than one batch", 3, ["short.txt"], data=path("short.txt"))
refused("a directory", 3, ["folder"], data=path("folder"))
for name in shards:
    refused(f"shard {name}", 3, [name], data=path(name), vocab=300)
refused("a shard that is only a header's start", 3, ["cut.bin"], data=path("cut.bin"), vocab=300)
refused("no data flag", 2, ["--data"], data=None)
refused("heads that do not divide hidden", 2, ["--heads", "--hidden"], heads=5)
refused("0 ranks", 2, ["--ranks"], ranks=0)
refused("negative ranks", 2, ["--ranks"], ranks=-1)
refused("layers that are no number", 2, ["--layers", "many"], layers="many")
refused("a stage that is not there", 2, ["--stage", "4"], stage=4)
refused("one reduction per step of shards", 2, ["--reduce once", "--stage 1"], stage=2, reduce="once")
refused("a number and a shape", 2, ["--params", "--layers"], params="1e6")
refused("a flag that is not there yet", 2, ["--tp"], tp=2)
refused("an unknown flag", 2, ["--layrs"], layrs=2)
refused("a precision that is not there", 2, ["--precision", "fp32|bf16|fp16|fp8"], precision="fp4")
refused("a backend that is not there yet", 2, ["--backend"], backend="cuda")
refused("nothing to resume", 3, ["nothing-here"], resume=path("nothing-here"))
refused("a model larger than any memory", 4, ["--recompute"], hidden=16384, layers=200, heads=64)
refused("a plan above --memory-limit", 4, ["--memory-limit"], reports=True, memory_limit="1MiB")
refused("an impossible log", 3, ["no-folder"], log=path("no-folder/log.jsonl"))
refused("a bad ZR_FAULT", 2, ["ZR_FAULT", "mpa:3"], environment={"ZR_FAULT": "write:999999,mpa:3"})
refused("a bad count in ZR_FAULT", 2, ["ZR_FAULT", "map:3x"], environment={"ZR_FAULT": "map:3x"})
refused("a bad ZR_CONF", 2, ["ZR_CONF", "nonsense"], environment={"ZR_CONF": "nonsense:1"})

refused("a report where a rank's trace goes", 2, ["--json", "trace of rank 1"], ranks=2, trace=path("t"),
        json=path("t.1"))
refused("a log where a rank's trace goes", 2, ["--log", "trace of rank 0"], ranks=2, trace=path("t"),
        log=path("./t.0"))
same(train(ranks=1, trace=path("t"), json=path("t.0")).code, 0, "a rank alone has no such trace")
os.unlink(path("t"))
for words, options, environment in (("--help", ["--help"], {}), ("--version", ["--version"], {}),
                                    ("ZR_CONF=help", [], {"ZR_CONF": "help"})):
    with open("/dev/full", "w") as full:
        run = subprocess.run([ZR_TRAIN, *options], stdout=full, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, **environment})
    same(run.returncode, 3, f"{words} on a full disk: exit 3")
    ok("standard output" in run.stderr and "No space" in run.stderr, f"{words} on a full disk: the cause is named")

# No space left while saving, by fault site, at each write in turn: exit 3, the older checkpoint intact.
saved = path("saved")
same(train(save=saved, steps=2).code, 0, "a first checkpoint")
older = sorted(os.listdir(saved))
before = {name: os.stat(os.path.join(saved, older[0], name)).st_mtime_ns for name in os.listdir(
    os.path.join(saved, older[0]))}
for ranks in (1, 2):
    for nth in range(1, 4):
        run = train(save=saved, steps=3, ranks=ranks, json=None, log=None, environment={"ZR_FAULT": f"write:{nth}"})
        words = f"{ranks} ranks, write {nth} finds no space"
        if not (same(run.code, 3, f"{words}: exit 3") & ok("step-00000003" in run.err or "standard output" in run.err,
                                                               f"{words}: the file is named")):
            note(run.err)
        same(sorted(os.listdir(saved)), older, f"{words}: nothing half written")
        ok("left behind" not in run.err, f"{words}: and no memory left behind") or note(run.err)
after = {name: os.stat(os.path.join(saved, older[0], name)).st_mtime_ns for name in before}
same(after, before, "the older checkpoint was not touched")
same(train(resume=saved, steps=4).code, 0, "the older checkpoint still loads")
done()
