#!/usr/bin/env python3
"""examples/click: the law of its samples, its AUC, and the bits of its parameters: in one process, beyond a memory limit and on
parameter servers. tests/long/long_click.t compares the timings."""
import hashlib
import json
import os
import struct
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, note, ok, path, same

CLICK = os.path.join(BUILD, "examples", "click")
HEADER, SAMPLE = struct.Struct("<8sQQII"), struct.Struct("<ii13i26I")
DRAWN = "e0e47f5e4d8ab483b8268ec174c63d77110414352e14e67e8fec54eb67d4805f"
TRAIN = ["--batch", "32", "--rows", "20000", "--eval-every", "1024"]


def click(*words, code=0):
    got = subprocess.run([CLICK, *words], capture_output=True, text=True, timeout=HANG)
    if not same(got.returncode, code, f"click {' '.join(words)[:90]} ends with {code}"):
        note(got.stderr[-500:])
    return got


def train(*words):
    got = click("train", path("samples"), "--json", *TRAIN, *words)
    return json.loads(got.stdout) if got.returncode == 0 else {}


def curve(run):
    return [(samples, auc) for samples, _, auc in run.get("curve", [])]


def auc(scores):
    """By definition: of all pairs of a click and no click."""
    clicks, others = ([score for score, clicked in scores if clicked == wanted] for wanted in (1, 0))
    return sum((a > b) + (a == b) / 2 for a in clicks for b in others) / (len(clicks) * len(others))


def check_samples():
    click("make", path("samples"), "4000", "1", "3000")
    with open(path("samples"), "rb") as file:
        data = file.read()
    same(hashlib.sha256(data).hexdigest(), DRAWN, "the samples of a seed have the same bits everywhere")
    samples = [SAMPLE.unpack_from(data, HEADER.size + i * SAMPLE.size) for i in range(4000)]
    ok(all(len({sample[15 + field] for sample in samples}) <= 3000 for field in range(26)), "no field has more values than asked for")
    counts = sorted((sum(sample[40] == value for sample in samples) for value in {sample[40] for sample in samples}), reverse=True)
    ok(1.6 < counts[0] / counts[1] < 2.6 and len(counts) > 700, f"values follow a Zipf law: {counts[:4]}, {len(counts)} values")
    return data, auc([(sample[1], sample[0]) for sample in samples[3600:]])


def check_damage(data):
    second = HEADER.size + 3 * SAMPLE.size
    for words, bad in (("a short file", data[:-1]), ("one sample less", data[:-SAMPLE.size]), ("nothing", b""), ("a header", data[:HEADER.size - 1]),
                       ("another file", b"PK" + data[2:]), ("too many samples", data[:8] + b"\xff" * 8 + data[16:]),
                       ("a click of 2", data[:second] + b"\x02" + data[second + 1:])):
        with open(path("bad"), "wb") as file:
            file.write(bad)
        got = click("train", path("bad"), code=3)
        ok("click: " in got.stderr and got.stdout == "", f"{words} is refused: {got.stderr.strip()}")
    line = "1\t" + "\t".join(["7", "", "-1"] + ["2"] * 10) + "\t" + "\t".join(["05db9164", ""] + ["ffffffff"] * 24) + "\n"
    for bad in ("2" + line[1:], line[:-1], line.replace("ffffffff", "100000000", 1), line.replace("\t7", "\tx"), line.replace("\t", " ", 1), line[2:],
                line[:-1] + "\t1\n", line.replace("\t7", "\t99999999999"), "x" * 3000):
        with open(path("text"), "w") as file:
            file.write(line + bad)
        got = click("convert", path("text"), path("converted"), code=3)
        ok("line 2 is not Criteo's format" in got.stderr and not os.path.exists(path("converted")), f"{bad[:20]!r} is refused")
    with open(path("text"), "w") as file:
        file.write(line * 20)
    click("convert", path("text"), path("converted"))
    with open(path("converted"), "rb") as file:
        read = file.read()
    unknown = -1 << 31
    same(SAMPLE.unpack_from(read, HEADER.size), (1, unknown, 7, unknown, -1, *[2] * 10, 0x05db9164, 0, *[0xffffffff] * 24), "Criteo's text is read")


def main():
    data, best = check_samples()
    check_damage(data)
    one = train()
    ok(abs(one["truth_auc"] - best) < 1e-6, f"AUC is that of all pairs: {best:.6f}")
    ok(0.6 < one["auc"] < best and one["curve"][0][2] < one["auc"], f"the model learns: {curve(one)}")
    beyond = train("--memory-limit", "1500KiB", "--file", path("."))
    same(curve(beyond), curve(one), "rows beyond a limit are in a file, with the same bits")
    tier = beyond["tiers"][0]
    ok(tier["file_measured_bytes"] >= tier["file_planned_bytes"] > 0 and tier["file_written_bytes"] >= tier["file_changed_bytes"] > 0, f"the file's bytes: {tier}")
    two = ["--workers", "2"]
    servers = train(*two, "--servers", "2")
    same(servers.get("auc"), train(*two).get("auc"), "two workers and two servers have the bits of one process")
    for tier in one["tiers"] + servers.get("tiers", []):  # the arena rounds each block to 256 bytes
        ok(0 <= tier["memory_measured_bytes"] - tier["memory_planned_bytes"] < 64 * 256, f"bytes are as planned: {tier}")
    done()


main()
