#!/usr/bin/env python3
"""zr rehearse: a program of the CUDA runtime on simulated devices: its memory beside what it allocated, a card that is too small, what
is copied and what is read back, programs that cannot be rehearsed, and options that cannot be."""
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, note, path, same

ZR, PROGRAM = (os.path.abspath(os.path.join(BUILD, *names)) for names in (("bin", "zr"), ("tests", "rehearse_program")))
MIB = 1 << 20


def rehearse(*options, program=(PROGRAM,)):
    """The exit code, standard output, standard error and the JSON, if there is one."""
    got = subprocess.run([ZR, "rehearse", "--json", path("answer"), *options, "--", *program], capture_output=True, text=True, timeout=HANG,
                         cwd=os.path.dirname(path("answer")))
    answer = {}
    if os.path.exists(path("answer")):
        with open(path("answer"), encoding="utf-8") as file:
            answer = json.load(file)
        os.remove(path("answer"))
    return got.returncode, got.stdout, got.stderr, answer


def row(what, options, arguments, code, out, verdict, **figures):
    got = rehearse(*options, program=(PROGRAM, *arguments))
    same(got[:2] + (got[3].get("verdict"),), (code, out, verdict), what) or note(got[2])
    same({name: got[3].get(name) for name in figures}, figures, f"{what}: its figures")
    return got[2]


ENDS = "devices {} kept 7 lost 0 set 5 time 1\n"
row("blocks that fit", ("--context", "100MiB"), ("1000", "3"), 0, ENDS.format(1), "fits", peak_bytes=3100 * MIB, contexts=1, memory_bytes=81009 * MIB)
row("memory that no host has", ("--device", "b200", "--devices", "8", "--context", "1GiB"), ("51200", "6"), 0, ENDS.format(8), "fits",
    peak_bytes=(3 * 51200 + 1024) * MIB)
said = row("a card that is too small", ("--memory", "4GiB", "--context", "500MiB"), ("1000", "4"), 1, "out of memory\n", "does not fit",
           short_bytes=404 * MIB, peak_bytes=3500 * MIB)
same("device 0 is short by 404 MiB: 3.42 GiB of 4.00 GiB were in use when 1000 MiB were requested" in said, True, "in words") or note(said)
row("all of a card", ("--memory", "4GiB", "--context", "96MiB"), ("1000", "4"), 0, ENDS.format(1), "fits", peak_bytes=4096 * MIB)
row("a program without CUDA", (), (), 0, "", "no device used", peak_bytes=0)
said = row("the CUDA runtime inside", (), ("static",), 1, "", "refused")
same("link it with -cudart shared" in said, True, "in words") or note(said)
same(rehearse(program=("false",))[3].get("verdict"), "failed", "a program that fails for another reason")
# An H100 has 989 TFLOPS and a link of 64 GB/s: 1112 and 65 microseconds, and 2 for the start of each. The calls take one each.
EXACT = rehearse(program=(PROGRAM, "clock"))
same(re.match(r"product 111[2-9] us copy (6[6-9]|7[0-4]) us order 99999999", EXACT[1]) is not None, True, "work takes its time, and no event waits") or note(EXACT[1])
same(EXACT[3].get("libraries_bytes"), 32 * MIB, "cuBLAS has its workspace")
ORDERS = {seed: rehearse("--clock", seed, program=(PROGRAM, "clock")) for seed in ("1", "2")}
for seed, (code, out, _, answer) in ORDERS.items():
    order = out.split()[-1]
    same((code, set(order), answer.get("clock")), (0, {"0", "1"}, int(seed)), f"--clock {seed}: events wait, and either stream may end first") or note(out)
same(ORDERS["1"][1] != ORDERS["2"][1], True, "two seeds give two orders")
same(rehearse("--clock", "1", program=(PROGRAM, "clock"))[1], ORDERS["1"][1], "one seed gives one order")
for options, out in ((), "whole 0 single 0 kept 7 again 8 count 5 locked 6\n"), (("--fill", "3"), "whole 3 single 3 kept 7 again 8 count 5 locked 6\n"):
    got = rehearse(*options, program=(PROGRAM, "read"))
    same((got[1], got[3].get("reads_count"), got[3].get("reads_bytes"), got[3].get("certain", 0)), (out, 5, 28, None), f"what kernels made is counted, and read {options}")
# A program looks for torch and imports it later, as transformers does.
os.mkdir(path("site"))
with open(path("site/torch.py"), "w", encoding="utf-8") as file:
    file.write("""from types import SimpleNamespace as named
memory = named(_record_memory_history=lambda stacks, max_entries: print(stacks, max_entries > 0))
cuda = named(memory=memory, get_allocator_backend=lambda: "native", _lazy_call=lambda call: call(), is_initialized=lambda: False)
backends = named(cuda=named(is_built=lambda: True))""")
probes = "import sys; sys.path.append('site'); import importlib.util; importlib.util.find_spec('torch'); import torch; print('ran')"
same(rehearse(program=(sys.executable, "-c", probes))[:2], (0, "python True\nran\n"), "PyTorch's history begins although it was looked for before")
for what, options, program, code, words in (
        ("an unknown device", ("--device", "h1000"), ("true",), 2, "zr: rehearse: there is no device 'h1000'; give one of h100, h200"),
        ("too little memory for a context", ("--memory", "100MiB"), ("true",), 2, "zr: rehearse: a device of 100 MiB has no room beside a context of 520 MiB"),
        ("a seed that is no number", ("--clock", "1.5"), ("true",), 2, "zr: rehearse: --clock takes a whole number, not '1.5'"),
        ("a fill that is no number", ("--fill", "all"), ("true",), 2, "zr: rehearse: --fill takes a number, not 'all'"),
        ("more than all elements", ("--nonzero", "1.5"), ("true",), 2, "zr: rehearse: --nonzero takes a number from 0 to 1, not '1.5'"),
        ("nine devices", ("--devices", "9"), ("true",), 2, "zr: rehearse: --devices takes 1 to 8, not 9"),
        ("no program", (), (), 2, "zr: rehearse: the program is missing"),
        ("an unknown program", (), ("no-such-program",), 127, "zr: rehearse: no-such-program: No such file")):
    got = rehearse(*options, program=program)
    same((got[0], got[2].startswith(words)), (code, True), what) or note(got[2])
same([name for name in os.listdir(os.path.dirname(path("answer"))) if name.startswith("zr-rehearse")], [], "no folder is left without a snapshot")
done()
