#!/usr/bin/env python3
"""zr rehearse: a program of the CUDA runtime on simulated devices: its memory beside what it allocated, a card that is too small, what
is copied and what is read back, several runs in a row, programs that cannot be rehearsed, and options that cannot be."""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, note, path, same

ZR, PROGRAM, RANKS = (os.path.abspath(os.path.join(BUILD, *names)) for names in (("bin", "zr"), ("tests", "rehearse_program"), ("tests", "rehearse_ranks")))
MIB = 1 << 20
ROWS_MIB = 2 + 4 + 16 + 64


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


ENDS = "devices {} kept 7 lost 0 set 5 time 1 freed 7 reused 0 handles 2\n"
row("blocks that fit", ("--context", "100MiB"), ("1000", "3"), 0, ENDS.format(1), "fits", peak_bytes=3100 * MIB, contexts=1, memory_bytes=81009 * MIB)
row("memory that no host has", ("--device", "b200", "--devices", "8", "--context", "1GiB"), ("51200", "6"), 0, ENDS.format(8), "fits",
    peak_bytes=(3 * 51200 + 1024) * MIB)
said = row("a card that is too small", ("--memory", "4GiB", "--context", "500MiB"), ("1000", "4"), 1, "out of memory\n", "does not fit",
           short_bytes=404 * MIB, peak_bytes=3500 * MIB)
same("device 0 is short by 404 MiB: 3.42 GiB of 4.00 GiB were in use when 1000 MiB were requested" in said, True, "in words") or note(said)
row("all of a card", ("--memory", "4GiB", "--context", "96MiB"), ("1000", "4"), 0, ENDS.format(1), "fits", peak_bytes=4096 * MIB)
row("a program without CUDA", (), (), 0, "", "no device used", peak_bytes=0)
said = row("the CUDA runtime inside", (), ("static",), 1, "", "refused")
same("link it with -cudart shared, or do not strip it" in said, True, "in words") or note(said)
row("memory in rows, arrays and pools", ("--context", "100MiB"), ("rows",), 0, "failed 0 pitch 1024 1024 set 5 5 0 behind 7 type 2\n", "fits",
    peak_bytes=(100 + ROWS_MIB) * MIB)
STATIC = os.path.abspath(os.path.join(BUILD, "tests", "rehearse_static"))
subprocess.run(["strip", "-o", path("stripped"), STATIC], check=True)
for what, program, code, out, verdict, peak in (
        ("the functions of a runtime inside are replaced", (STATIC,), 0, "code 0\n", "fits", 200),
        ("and those of a module that Python loads", (sys.executable, "-c", f"import ctypes; print('code', ctypes.CDLL('{STATIC}.so').module_run())"), 0, "code 0\n",
         "fits", 200),
        ("a stripped one has none to replace", (path("stripped"),), 1, "code 1\n", "refused", 0)):
    got = rehearse("--context", "100MiB", program=program)
    same(got[:2] + (got[3].get("verdict"), got[3].get("peak_bytes")), (code, out, verdict, peak * MIB), what) or note(got[2])
same(rehearse(program=("sh", "-c", "echo $USE_PYTORCH_KERNEL_CACHE $CUPY_CACHE_IN_MEMORY"))[1], "0 1\n", "kernels that do nothing are kept in no cache")
with zipfile.ZipFile(path("any.whl"), "w") as wheel:
    wheel.write(PROGRAM, "any.so")
lacks = subprocess.run([sys.executable, "tests/support/rehearse_functions.py", "--beyond", "alloc/rehearse/functions.txt", path("any.whl")],
                       capture_output=True, text=True, timeout=HANG)
same((lacks.returncode, [line.rpartition("/")[2] for line in lacks.stdout.splitlines()]), (1, [f"any.so: cuRehearse{name}" for name in ("Count", "Peek", "Poke", "Uniform")]),
     "what a wheel needs and the table lacks is named") or note(lacks.stdout + lacks.stderr)
same(rehearse(program=("false",))[3].get("verdict"), "failed", "a program that fails for another reason")
# Processes that share devices. A ring of 24 channels has 12 MiB each, a peer 32 channels of as many.
os.mkdir(path("shared"))
os.environ["TMPDIR"] = path("shared")
SUMS = "broadcast 7 sum 7 product 12 max 4 average 3.5 scaled 3 half 4000 brain 4000 minimum -6 -6 scattered {} received {} split 1\n"
for what, mode, code, out, nccl_bytes, words in (
        ("messages of NCCL arrive", "carry", 0, SUMS.format(2 << 60, 1) + SUMS.format(1, 0), (24 + 32) * 12 * MIB, "zr: NCCL       672 MiB of the device"),
        ("a message beyond a mebibyte carries nothing", "long", 0, "broadcast 0, then 7\nbroadcast 7, then 7\n", 24 * 12 * MIB, ""),
        ("a rank that waits for a dead one gets an error", "dead", 0, "error 6, then 0\n", 24 * 12 * MIB, "NCCL: rank 0 waits in an all-reduce for rank 1, whose process"),
        ("two ranks on one device", "twice", 1, "rank 0: error 5\nrank 1: error 5\n", 0, ""),
        ("a child of a process with CUDA has none", "fork", 0, "child 3\nparent 0\n", 0, ""),
        ("a process that was killed holds nothing", "killed", 0, "in use 100 MiB\n", 0, "contexts   1 of 100 MiB")):
    got = rehearse("--context", "100MiB", "--devices", "2", program=(RANKS, mode))
    same((got[0], "".join(sorted(got[1].splitlines(True))), got[3].get("nccl_bytes")), (code, "".join(sorted(out.splitlines(True))), nccl_bytes), what) or note(got[2])
    same(words in got[2], True, f"{what}: in words") or note(got[2])
# 1 GiB of each of two ranks over 450 GB/s of an H100, 32 GB/s of an L4; 8 and 9 microseconds for two steps, and 2 for the start.
for card, least, most in (("h100", 2394, 2404), ("l4", 33563, 33574)):
    got = rehearse("--device", card, "--devices", "2", program=(RANKS, "timed"))
    times = [int(word) for word in got[1].split() if word != "us"]
    same((len(times), all(least <= time <= most for time in times)), (4, True), f"an all-reduce and a broadcast take their time on {card}: {times}") or note(got[2])
got = rehearse("--devices", "12", program=(RANKS, "many"))
same((got[0], got[1]), (0, "sums 78 x 12\n"), "twelve ranks") or note(got[2])
for what, mode, option, out in (("what a rank has sent is known", "carry", ("--fill", "3"), SUMS.format(2 << 60, 1) + SUMS.format(1, 0)),
                                ("a rank that waits has its time", "late", ("--clock", "1", "--fill", "3"), "in time 7\nin time 0\n")):
    got = rehearse(*option, "--devices", "2", program=(RANKS, mode))
    same((got[0], sorted(got[1].splitlines(True))), (0, sorted(out.splitlines(True))), f"{what}: {' '.join(option)}") or note(got[2])
same(os.listdir(path("shared")), [], "no shared file is left")
del os.environ["TMPDIR"]
same(rehearse("--memory", "250MiB", "--context", "100MiB", "--devices", "2", program=(RANKS, "carry"))[3].get("verdict"), "does not fit", "NCCL's own memory may not fit")
for visible, out, peaks in (("2,0,9,1", "code 0 0000:03:00.0 0000:01:00.0", [300, 0, 200, 0]), ("", "code 100", [0] * 4), ("-1", "code 100", [0] * 4),
                            ("1,1", "code 100", [0] * 4), ("GPU-e0e1e2e3-e4e5-e6e7-e8e9-eaebecedee03", "code 0 0000:04:00.0", [0, 0, 0, 200]),
                            ("GPU-e0e1", "code 100", [0] * 4)):
    got = rehearse("--context", "100MiB", "--devices", "4", program=("env", f"CUDA_VISIBLE_DEVICES={visible}", RANKS, "visible"))
    same((got[1], [peak // MIB for peak in got[3].get("peaks", [])]), (out + "\n", peaks), f"CUDA_VISIBLE_DEVICES={visible}") or note(got[2])
# The lines that zr_rehearse_ranks.py writes for two ranks of PyTorch.
LINES = "12 1 0 1 5 3145728 0 s 1\\n11 0 0 0 5 2097152 0 s0\\nno line\\n"
got = rehearse("--devices", "2", program=(sys.executable, "-c", f"import os; open(os.environ['ZR_REHEARSE_LINES'] + '/ranks', 'w').write('{LINES}')"))
same([(rank["rank"], rank["process"], rank["device"], rank["reserved_bytes"], rank["snapshot"]) for rank in got[3].get("ranks", [])],
     [(0, 11, 0, 2 * MIB, "s0"), (1, 12, 1, 3 * MIB, "s 1")], "the ranks in their order") or note(got[2])
same("zr: ranks      2: rank 1 on device 1 has 0, of which PyTorch reserved 3.00 MiB, the most;" in got[2], True, "the rank with the most in words") or note(got[2])
# A second process has its context on rank 0's device.
LINES = {"ranks": "11 0 0 0 5 2097152 0 -\n12 1 0 1 5 3145728 0 -\n", "torch": "12 0 5 3145728 0 -\n11 0 5 2097152 0 -\n", "cupy": "9 8\n7 9\n"}
got = rehearse("--devices", "2", program=(sys.executable, "-c", f"""import ctypes, os
for name, lines in {LINES}.items():
    open(os.environ['ZR_REHEARSE_LINES'] + '/' + name, 'w').write(lines)
ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(4096))"""))
same([got[3].get(name) for name in ("device", "reserved_bytes", "cupy_reserved_bytes", "cupy_used_bytes")], [0, 2 * MIB, 9, 8],
     "the rank on the fullest device is shown, and CuPy's fullest pool") or note(got[2])
# PyTorch's allocator reports blocks, and its process is killed.
REPORTS = """import ctypes, os
lib, at = ctypes.CDLL(None), ctypes.c_void_p()
lib.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(1 << 22))
for sums in ((5, 7), (9, 8), (4, 9)):
    lib._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(at, ctypes.c_long(1), *map(ctypes.c_size_t, sums), 1)
os.kill(os.getpid(), 9)"""
got = rehearse(program=("env", "RANK=3", sys.executable, "-c", REPORTS))
same((got[3]["allocated_bytes"], got[3]["reserved_bytes"], [(rank["rank"], rank["reserved_bytes"]) for rank in got[3]["ranks"]], got[3]["verdict"]),
     (9, 9, [(3, 9)], "failed"), "a process that was killed leaves PyTorch's peaks") or note(got[2])
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
got = rehearse("--fill", "3", program=(PROGRAM, "compute"))
same((got[1], got[3].get("reads_count")), ("peek 0 number 7 uniform 1 2 4 1 peek 1 1 after 0\n", 3), "what is computed in a kernel's place is read, and counted") or note(got[2])
for options in ((), ("--clock", "1")):
    same(rehearse(*options, program=(PROGRAM, "reuse"))[1], "copied 7 reused 0\n", f"memory that is used again while copies are under way, {options}")
row("a handle of another device", ("--devices", "2", "--context", "100MiB"), ("handle",), 0, "", "fits", peak_bytes=200 * MIB, libraries_bytes=0, device=1)
# A program looks for torch and imports it later, as transformers does. The module takes memory as PyTorch does, and fails once.
os.mkdir(path("site"))
with open(path("site/torch.py"), "w", encoding="utf-8") as file:
    file.write("""import ctypes, os
from types import SimpleNamespace as named
__version__, version, used = "9.9", named(cuda=os.environ.get("CUDA_VERSION")), os.environ.get("USED")
if used:
    ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(int(used)))
memory = named(_record_memory_history=lambda enabled="all", stacks="all", max_entries=0: print(enabled, stacks, max_entries > 9),
               _dump_snapshot=lambda name: os.environ.get("FULL") and os.write(os.open("/dev/full", os.O_WRONLY), b"0"))
distributed = named(distributed_c10d=named(_get_pg_default_device=lambda group: "cuda"))  # as of PyTorch 2.5 and before
distributions = named(Distribution=named(set_default_validate_args=lambda on: print(on)))
cuda = named(memory=memory, get_allocator_backend=lambda: "native", _lazy_call=lambda call: call(), is_initialized=lambda: used, device_count=lambda: 1,
             memory_stats=lambda device: {"allocated_bytes.all.peak": 1, "reserved_bytes.all.peak": 2, "num_ooms": int(os.environ.get("FAILED", 1))})
backends = named(cuda=named(is_built=lambda: True))""")
probes = "import sys; sys.path.append('site'); import importlib.util; importlib.util.find_spec('torch'); import torch; record = torch.cuda.memory._record_memory_history; record(None); record(max_entries=2); print('ran')"
for what, environment, verdict, words in (
        ("a PyTorch without CUDA", {}, "no device used", "PyTorch 9.9 is a build for the CPU"),
        ("a PyTorch that is not used", {"CUDA_VERSION": "13.2"}, "no device used", "PyTorch 9.9 was imported, and the program put nothing on"),
        ("a request that failed", {"CUDA_VERSION": "13.2", "USED": str(1 << 50)}, "went on", "went on after 1 request that failed: device 0 is short by"),
        ("a snapshot for which there is no space", {"FULL": "1"}, "went on", ".pickle: No space left on device; give another --output")):
    os.environ.update(environment)
    got = rehearse(program=(sys.executable, "-c", probes))
    same((got[:2], got[3].get("verdict"), words in got[2]), ((0, "all python True\nFalse\nall all True\nran\n"), verdict, True), f"{what}, looked for and imported") or note(got[2])
del os.environ["FULL"]
got = rehearse(program=("env", "ZR_REHEARSE_LINES=/no/folder", sys.executable, "-c", probes))
same((got[0], got[1][-4:], "Traceback" in got[2]), (0, "ran\n", False), "a process that outlives its rehearsal imports PyTorch") or note(got[2])
os.environ.update({"USED": "1", "FAILED": "0"})
got = rehearse("--memory", "540MiB", program=(sys.executable, "-c", f"{probes}; import ctypes; sys.exit(ctypes.CDLL(None).cublasCreate_v2(ctypes.byref(ctypes.c_void_p())))"))
same((got[0], got[3].get("verdict"), got[3].get("failures")), (3, "does not fit", 0), "a workspace of cuBLAS's that finds no room") or note(got[2])
os.environ.update({"USED": str(1 << 50), "FAILED": "1"})
got = rehearse("--find-max", "n=2:4", program=(sys.executable, "-c", probes, "{n}"))
same((got[0], [row["values"] for row in got[3]["rows"]]), (1, [{"n": "2"}]), "a size at which a request failed does not fit, although the program went on")

got = rehearse("--context", "100MiB", "--output", path("kept"), "--verbose", program=(PROGRAM, "1"))
with open(path("kept/calls"), encoding="utf-8") as file:
    same((file.read(), got[3]["unanswered"], "zr: no answer  cudaFuncSetAttribute: called 1 time, returned" in got[2]),
         ("cudaFuncSetAttribute 1\n", {"cudaFuncSetAttribute": 1}, True), "functions without an answer are named")
got = rehearse(program=(sys.executable, "-c", """import ctypes
lib, size, block = ctypes.CDLL(None), ctypes.c_size_t(7), ctypes.c_void_p()
lib.cudnnGetConvolutionForwardWorkspaceSize(0, 0, 0, 0, 0, 0, ctypes.byref(size))
lib.cudnnBackendGetAttribute(None, 402, 3, 1, None, ctypes.byref(size))
lib.cufftMakePlan1d(0, 8, 41, 1, ctypes.byref(size))
lib.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(4))
print(size.value, lib.cusparseSnnz(0, 0, 0, 0, 0, 0, 0, 0, block))"""))
same((got[:2], got[3]["workspaces"], "zr: not in it  workspaces of cuDNN, cuFFT: they count as 0 bytes" in got[2]), ((0, "0 0\n"), {"cuDNN": 2, "cuFFT": 1}, True),
     "libraries whose workspaces are unknown are named, and a count for the device is left") or note(got[2])
os.mkdir(path("refused"))
got = rehearse("--memory", "4GiB", "--context", "96MiB", "--devices", "2", "--output", path("refused"), program=(PROGRAM, "1000", "9"))
traces = sorted(glob.glob(path("refused/device?.*.zrt")))
said = f"zr: next       zr why {os.path.realpath(path('refused'))}/device0.*.zrt\n"
same((len(traces), said in got[2]), (2, True), "each device has a trace, which is named") or note(got[2])
why = subprocess.run([ZR, "why", traces[0]], capture_output=True, text=True, timeout=HANG).stdout
same([words in why for words in ("1000 MiB, refused", "reason: shortage: 3.91 GiB of 3.91 GiB are live", "3.91 GiB in 4 blocks  other  main (")], [True] * 3,
     "zr why tells what was refused and which line holds what") or note(why)
rehearse("--output", path("visible"), "--devices", "2", "--memory", "4GiB", program=("env", "CUDA_VISIBLE_DEVICES=1", PROGRAM, "1000", "9"))
same([os.path.basename(file)[:8] for file in glob.glob(path("visible/*.zrt"))], ["device1."], "a trace has the machine's number of its device")
got = rehearse("--output", "/proc/sys", program=(PROGRAM, "1"))
same((got[0], "zr: rehearse: cannot " in got[2], "zr: next" in got[2]), (0, True, False), "a trace that cannot be written is not named as the next") or note(got[2])
os.mkdir(path("empty"))
rehearse("--output", path("empty"), program=("true",))
same(os.path.isdir(path("empty")), True, "a folder of the user's stays")

SMALL = ("--memory", "4GiB", "--context", "96MiB")
got = rehearse(*SMALL, "--sweep", "mib=100,1000", "--sweep", "n=4,5", program=(PROGRAM, "{mib}", "{n}"))
same((got[0], [(row["values"], row["verdict"], row["peak_bytes"] // MIB, row["short_bytes"]) for row in got[3]["rows"]]),
     (1, [({"mib": "100", "n": "4"}, "fits", 496, None), ({"mib": "100", "n": "5"}, "fits", 596, None), ({"mib": "1000", "n": "4"}, "fits", 4096, None),
          ({"mib": "1000", "n": "5"}, "does not fit", 4096, 1000 * MIB)]), "each combination of two sweeps is run") or note(got[1] + got[2])
same(got[1].splitlines()[4].split()[:6], ["1000", "5", "no", "-1000", "MiB", "4.00"], "in rows") or note(got[1])
for given, arguments, code, tried, largest in (
        ("n", ("100", "{n}"), 0, [1, 2, 4, 8, 16, 32, 64, 48, 40, 44, 42, 41], {"values": {"n": "40"}, "fits": True, "too_large": 41}),
        ("n=30:40", ("100", "{n}"), 0, [30, 40], {"values": {"n": "40"}, "fits": True, "too_large": None}),
        ("n=41:", ("100", "{n}"), 1, [41], {"values": {"n": "41"}, "fits": False, "too_large": 41})):
    got = rehearse(*SMALL, "--find-max", given, program=(PROGRAM, *arguments))
    same((got[0], [int(row["values"]["n"]) for row in got[3]["rows"]], got[3]["largest"]), (code, tried, [largest]), f"--find-max {given}") or note(got[1] + got[2])
got = rehearse(*SMALL, "--find-max", "n", "--sweep", "mib=500,1000", program=(PROGRAM, "{mib}", "{n}"))
same([row["values"]["n"] for row in got[3]["largest"]], ["8", "4"], "the largest for each value of a sweep")
got = rehearse("--sweep", "x=1,2", program=("sh", "-c", "echo out {x} {y}; echo err >&2; exit 7"))
same((got[0], len(got[3]["rows"]), got[3]["rows"][0]["exit_code"], got[2].splitlines()[1:]), (3, 1, 7, ["  out 1 {y}", "  err"]),
     "a failure for another reason ends a sweep with the program's last lines") or note(got[2])
got = rehearse("--allocators", program=("sh", "-c", "echo $PYTORCH_CUDA_ALLOC_CONF >> confs"))
with open(path("confs"), encoding="utf-8") as file:
    confs = file.read().splitlines()
same((confs[0], confs[1:]), ("", [one["conf"] for one in got[3]["allocators"]]), f"--allocators runs the program again with {confs[1:]}") or note(got[2])
same(len(confs), 3, "of a program without PyTorch's history the options that have no sizes")
running = subprocess.Popen([ZR, "rehearse", "--json", path("answer"), "--sweep", "s=60,61", "--", "sh", "-c", "echo $$ > pid; exec sleep {s}"],
                           stdout=subprocess.PIPE, cwd=os.path.dirname(path("answer")))
while not (os.path.exists(path("pid")) and os.path.getsize(path("pid"))):
    time.sleep(0.01)
with open(path("pid"), encoding="utf-8") as pid:
    program = f"/proc/{int(pid.read())}"
while open(f"{program}/comm", encoding="utf-8").read() != "sleep\n":  # a shell that is about to exec may lose the signal
    time.sleep(0.01)
running.send_signal(signal.SIGINT)
same(running.wait(HANG), 130, "an interrupt ends a sweep")
with open(path("answer"), encoding="utf-8") as file:
    same((os.path.exists(program), json.load(file)), (False, {"version": 1, "rows": [], "largest": [], "interrupted": True}), "and its program")
os.remove(path("answer"))
# As a signal that comes between two runs, while no program runs.
mark, waiting = path("mark"), lambda: (signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]), os.kill(os.getpid(), signal.SIGINT))
got = subprocess.run([ZR, "rehearse", "--sweep", "s=1,2", "--", "touch", mark, "{s}"], preexec_fn=waiting, env={**os.environ, "TMPDIR": path("shared")}, check=False)
same((got.returncode, os.path.exists(mark), os.listdir(path("shared"))), (130, False, []), "an interrupt before a run ends it, and leaves no folder")
for what, options, program, code, words in (
        ("an unknown device", ("--device", "h1000"), ("true",), 2, "zr: rehearse: there is no device 'h1000'; give one of h100, h200"),
        ("too little memory for a context", ("--memory", "100MiB"), ("true",), 2, "zr: rehearse: a device of 100 MiB has no room beside a context of 520 MiB"),
        ("a seed that is no number", ("--clock", "1.5"), ("true",), 2, "zr: rehearse: --clock takes a whole number, not '1.5'"),
        ("a fill that is no number", ("--fill", "all"), ("true",), 2, "zr: rehearse: --fill takes a number, not 'all'"),
        ("more than all elements", ("--nonzero", "1.5"), ("true",), 2, "zr: rehearse: --nonzero takes a number from 0 to 1, not '1.5'"),
        ("65 devices", ("--devices", "65"), ("true",), 2, "zr: rehearse: --devices takes 1 to 64, not 65"),
        ("a key that no argument has", ("--sweep", "batch=1"), ("true",), 2, "zr: rehearse: --sweep batch=1: no argument of the program has that name in braces"),
        ("a sweep without values", ("--sweep", "batch"), ("true", "{batch}"), 2, "zr: rehearse: --sweep batch: it takes NAME=VALUE,VALUE.."),
        ("a key twice", ("--sweep", "b=1", "--find-max", "b"), ("true", "{b}"), 2, "zr: rehearse: --find-max b: the name is there already"),
        ("a range from above", ("--find-max", "b=9:1"), ("true", "{b}"), 2, "zr: rehearse: --find-max b=9:1: it takes NAME or NAME=LOW:HIGH"),
        ("allocators of a sweep", ("--allocators", "--sweep", "b=1"), ("true", "{b}"), 2, "zr: rehearse: --allocators cannot be used with --sweep"),
        ("no program", (), (), 2, "zr: rehearse: the program is missing"),
        ("an unknown program", (), ("no-such-program",), 127, "zr: rehearse: no-such-program: No such file"),
        ("a script without its interpreter", (), ("train.py",), 127, "zr: rehearse: train.py: No such file or directory; give its interpreter, too: zr rehearse -- python3 train.py"),
        ("a folder", (), ("/",), 126, "zr: rehearse: /: Is a directory; give a program's path")):
    got = rehearse(*options, program=program)
    same((got[0], got[2].startswith(words)), (code, True), what) or note(got[2])
same([name for name in os.listdir(os.path.dirname(path("answer"))) if name.startswith("zr-rehearse")], [], "no folder is left without a snapshot")
done()
