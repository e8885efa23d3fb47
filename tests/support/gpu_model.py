#!/usr/bin/env python3
"""The time that each kernel of a training step should take on an H100 SXM, from the machine code of this build.

    tests/support/gpu_model.py [--only WORDS] [--precision bf16|fp8] [--json FILE] [--llmc]

zr-train runs at the model's true shape on the emulated driver, which writes launches down instead of running them. sass_walk.py walks some
warps of each launch through its kernel's machine code (sm_90, by nvdisasm) and counts instructions and addresses. A launch takes the
longest of: issue slots, the busiest pipe of a multiprocessor (tensor cores among them), bytes that it moves from and to memory, bytes
from the second-level cache, and a warp's own time, in which nothing overlaps; and a launch's gap. Products of cuBLASLt, fills and copies take what is published.
--llmc prints the same of llm.c's step, whose speed is published: tests/long/long_model.t wants it within a quarter.

Not in it: bank conflicts of shared memory, divergence by data (data are taken as zero), caches' misses by conflict, clocks that fall
with power. Exit code 77: there is no nvdisasm, or no machine code for sm_90 in the build."""
import argparse
import collections
import functools
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "bench")]
import bench_gpu  # noqa: E402
import sass  # noqa: E402
import sass_walk  # noqa: E402
from gpu_card import ABSENT, environment_of  # noqa: E402
from zrtest import BUILD, path, train  # noqa: E402

# ---- Published figures -------------------------------------------------------------------------------------------------
# WAIT, MMA_SYNC, GAP and FLASH_2_FORWARD were written down without the page at hand: take them as assumptions until somebody has compared them.

# NVIDIA H100 Tensor Core GPU Architecture (white paper, 2023), H100 SXM5: multiprocessors, schedulers of each, boost clock, registers,
# warps and blocks of a multiprocessor, its first-level cache with shared memory, second-level cache.
PROCESSORS, SCHEDULERS, CLOCK = 132, 4, 1.83e9
REGISTERS, WARPS_MAX, BLOCKS_MAX, LEVEL_1, SHARED, LEVEL_2 = 65536, 64, 32, 256 << 10, 228 << 10, 50 << 20
PEAK = 989e12  # the same: dense bf16 with sums in floats
# github.com/NVIDIA/nccl/issues/1264: p2pBandwidthLatencyTest on 8 H100 SXM, a card's copy to itself, reads and writes counted (of 3,350e9).
COPY = 2573e9
# chipsandcheese.com, "Nvidia's H100: Funny L2, and Tons of Bandwidth" (2023): reads from the second-level cache, of a PCIe card with 114 multiprocessors at 1,755 MHz.
READ_LEVEL_2 = 5.5e12 / (114 * 1.755e9) * PROCESSORS * CLOCK
# arXiv 2402.13499, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture": cycles until global memory and shared memory answer;
# mma.sync's share of the tensor cores' peak, which only wgmma reaches.
WAIT = {"global": 478.8, "shared": 29.0}
MMA_SYNC = 0.629
# developer.nvidia.com/blog/cuda-graphs ("Getting Started with CUDA Graphs"): kernels of 2.9 us follow each other every 3.8 us.
GAP = 0.9e-6
# cuBLAS's products of n x n x n, TFLOP/s: github.com/pranjalssh/fast.cu, README; github.com/waynehacking8/blackwell-tensorcore-kernels,
# results/bench_sm90a.csv (cublas_tc), both on an H100 SXM5.
PRODUCTS = [(4096, 716), (8192, 795), (2048, 540.87), (4096, 726.40), (8192, 749.89)]
# The white paper: dense E4M3 has 1,979 TFLOP/s; arXiv 2501.12084: FP8 "nearly doubles" FP16 on Hopper. Assumed of cuBLAS: the steps of the sum, not a
# wave's begin and end, take half the time.
FP8_RATE = 1979e12 / PEAK
# docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication, "Tile Quantization", "Wave Quantization": the library's tiles.
TILES = [(256, 128), (128, 256), (192, 128), (128, 192), (128, 128)]
# FlashAttention-3, arXiv 2407.08608, figures 5 and 6: cuDNN, heads of 64, 1,024 tokens: forward causal and not, backward not causal; TFLOP/s.
CUDNN_FORWARD, CUDNN_BACKWARD = 288e12, 348e12 * 288 / 373
# The same, figure 5: FlashAttention-2, which has mma.sync, forward, causal: no kernel of mma.sync is expected to be faster. The bounds
# below are each one's own, as if all of them overlapped: for zr's forward kernel they come to 385 TFLOP/s.
FLASH_2_FORWARD = 229e12
# github.com/karpathy/llm.c/discussions/677 and scripts/run_gpt2_1558M.sh: eight H100 SXM, each -b 16 -t 1024, -d 1048576, -r 0, -z 1, -ge 1.
LLMC = {"tokens": 47_700, "batch": 16, "cards": 8, "total": 1_048_576}
# docs.nvidia.com/cuda/cuda-c-programming-guide, "Throughput of Native Arithmetic Instructions", compute capability 9.0: cycles of a
# multiprocessor that a warp's instruction keeps a pipe busy; memory: 128 bytes a cycle.
PIPES = [(("HMMA",), "tensor", None), (("LDSM",), "memory", 4), (("LDG", "STG", "LDS", "STS", "LDGSTS", "ATOM", "ATOMS", "ATOMG", "RED", "REDG", "LD", "ST", "LDL", "STL"), "memory", None),
         (("SHFL",), "memory", 1), (("MUFU", "I2F", "F2I", "F2F", "POPC", "FLO", "BREV"), "special", 2), (("DADD", "DMUL", "DFMA", "DSETP"), "double", 0.5),
         (("FFMA", "FADD", "FMUL", "HADD2", "HMUL2", "HFMA2"), "float", 0.25), (("IMAD",), "float", 0.5)]
OTHERS = "integer", 0.5


def pipe_of(name):
    """(the pipe, cycles of a multiprocessor) of an instruction; None where it has no pipe that is counted."""
    base = name.split(".")[0]
    for bases, pipe, cycles in PIPES:
        if base not in bases:
            continue
        if pipe == "tensor":
            flops = 2 * 16 * 8 * (8 if ".1688" in name else 16)
            return pipe, flops / (PEAK / PROCESSORS / CLOCK) / MMA_SYNC
        if cycles is None:
            cycles = 4 if ".128" in name else 2 if ".64" in name else 1
        return pipe, cycles
    if base[0] == "U" or base in ("BRA", "EXIT", "BSSY", "BSYNC", "NOP", "BAR", "CALL", "RET", "BREAK", "WARPSYNC", "LDC", "S2R", "CS2R", "MEMBAR", "DEPBAR", "LDGDEPBAR", "R2UR", "S2UR"):
        return None
    return OTHERS


def alone_cycles(name):
    """Cycles of a warp that waits for each of its instructions: of one scheduler's quarter of a pipe; memory's pipe is whole."""
    pipe = pipe_of(name)
    return max(1, pipe[1] * (1 if pipe[0] == "memory" else SCHEDULERS)) if pipe else 1


@functools.cache
def product_law():
    """(seconds of a wave of tiles of 128 x 256 for each step of the sum, seconds of its begin and end): a straight line through PRODUCTS."""
    points = [(n, 2 * n ** 3 / (rate * 1e12) / -(-(n // 128) * (n // 256) // PROCESSORS)) for n, rate in PRODUCTS]
    x, y = (sum(each) / len(points) for each in zip(*points))
    slope = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return slope, y - slope * x


def product_seconds(m, n, k, results=1, fp8=False):
    """`results`: matrices of the result's size that the product reads or writes: itself; what it adds; what GELU keeps, or its slope is taken at."""
    slope, start = product_law()
    waves = {(a, b): -(-(-(-m // a) * -(-n // b)) // PROCESSORS) for a, b in TILES}
    slope /= FP8_RATE if fp8 else 1
    multiply = min(count * (k * slope * a * b / (128 * 256) + start) for (a, b), count in waves.items())
    return max(multiply, ((1 if fp8 else 2) * (m * k + k * n) + 2 * results * m * n) / COPY)


# ---- Kernels -----------------------------------------------------------------------------------------------------------


def nvdisasm():
    places = [os.environ.get("NVDISASM"), *(os.path.join(root, "bin", "nvdisasm") for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root), shutil.which("nvdisasm"),
              *glob.glob(os.path.join(BUILD, "nvdisasm", "nvidia", "*", "bin", "nvdisasm"))]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def kernels():
    """{name: a function that reads it} of the build's kernels for sm_90; None: no nvdisasm, or no kernels."""
    program, found = nvdisasm(), {}
    for cubin in sass.cubins(os.path.join(BUILD, "bin", "zr-train"), 90) if program else ():
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            found.update(sass_walk.kernels_of(cubin, subprocess.run([program, "-c", file.name], capture_output=True, text=True, check=True).stdout))
    return found or None


def resident(kernel, threads, shared):
    """Blocks that a multiprocessor has at a time."""
    warps = -(-threads // 32)
    registers = -(-kernel.registers * 32 // 256) * 256 * warps
    shared += kernel.shared_bytes
    return max(1, min(BLOCKS_MAX, WARPS_MAX // warps, REGISTERS // registers if registers else BLOCKS_MAX, SHARED // shared if shared else BLOCKS_MAX))


LONG_WALK = 30000  # blocks of code, beyond which a launch is judged by one warp of the block in the middle


def middle(count, k, n):
    """The k-th of n places spread over [0, count)."""
    return (2 * k + 1) * count // (2 * n)


class Launch:
    """What a launch asks of the card. `samples` are walks of warps of blocks spread over the grid; `around` the base's neighbours."""

    def __init__(self, kernel, grid, threads, shared, argument):
        self.kernel, self.grid, self.threads, self.shared = kernel, grid, threads, shared
        self.blocks, self.count = grid[0] * grid[1] * grid[2], threads[0] * threads[1] * threads[2]
        self.warps = -(-self.count // 32)
        self.walk = functools.cache(lambda warp, x, y, z: sass_walk.Warp(kernel, grid, threads, (x, y, z), warp, argument).walk())
        where = [(self.warps // 2, grid[0] // 2, grid[1] // 2, grid[2] // 2)]
        n = min(grid[0], 1 if sum(self.walk(*where[0]).runs.values()) > LONG_WALK else 6)
        where = [(middle(self.warps, k, n), middle(grid[0], k, n), grid[1] // 2, grid[2] // 2) for k in range(n)]
        self.samples = [self.walk(*each) for each in where]
        self.base = max(where, key=lambda each: self.walk(*each).requested)

    def mean(self, f):
        return sum(f(walk) for walk in self.samples) / len(self.samples)

    def instructions(self):
        """{name: how often a warp issues it, in the mean}."""
        found = collections.Counter()
        for walk in self.samples:
            for at, runs in walk.runs.items():
                for name, count in self.kernel.blocks[at].counts.items():
                    found[name] += runs * count / len(self.samples)
        return found

    def waits(self, kind):
        return self.mean(lambda walk: sum(runs * self.kernel.blocks[at].waits[kind] for at, runs in walk.runs.items()))

    @functools.cache
    def bytes(self):
        """(from and to memory, from and to the second-level cache), by the sectors of sampled warps. What a neighbour (the next warp, the
        next block on each axis) asks for again, by the same instruction, is read once."""
        base, size = self.walk(*self.base), (self.warps, *self.grid)
        is_store = {i.at: i.base in ("STG", "ST", "RED", "REDG") for block in self.kernel.blocks.values() for i in block.instructions}
        new, read, written, again = {}, set(), set(), set()
        for at, sectors in sorted(base.touched.items()):
            known = written if is_store[at] else read | written
            new[at] = len(sectors - known)
            again |= sectors & known
            (written if is_store[at] else read).update(sectors)
        whole, share = {at: len(sectors) for at, sectors in base.touched.items()}, {}
        for axis in range(4):
            if size[axis] > 1:
                beside = list(self.base)
                beside[axis] += 1 if beside[axis] + 1 < size[axis] else -1
                other = self.walk(*beside).touched
                share[axis] = {at: len(sectors - base.touched[at]) / len(sectors) for at, sectors in other.items() if sectors and at in base.touched}

        def spread(counts, axes):
            total = 0
            for at, sectors in counts.items():
                for axis in axes:
                    sectors *= 1 + (size[axis] - 1) * share[axis].get(at, 1) if axis in share else 1
                total += 32 * sectors
            return total
        weight = self.mean(lambda walk: walk.requested) / base.requested if base.requested else 0
        at_a_time = resident(self.kernel, self.count, self.shared)
        asked_again = 32 * len(again) * self.warps * at_a_time  # bytes, of a multiprocessor at a time
        memory = spread(new if asked_again * PROCESSORS <= LEVEL_2 else whole, range(4))
        near = new if asked_again <= LEVEL_1 - self.shared * at_a_time else whole
        return memory * weight, spread(near, [0]) * self.blocks * weight

    @functools.cache
    def seconds(self):
        """(seconds, what bounds it)."""
        found, busy = self.instructions(), collections.Counter()
        at_a_time = resident(self.kernel, self.count, self.shared)
        for name, count in found.items():
            busy["issue slots"] += count / SCHEDULERS
            if pipe := pipe_of(name):
                busy[f"{pipe[0]} pipe"] += count * pipe[1]
        on_one = self.blocks / PROCESSORS if self.blocks > PROCESSORS * at_a_time else -(-self.blocks // PROCESSORS)
        alone = SCHEDULERS / min(SCHEDULERS, self.warps * on_one)  # fewer warps than schedulers
        seconds = {name: cycles * self.warps * on_one * alone / CLOCK for name, cycles in busy.items()}
        memory, level_2 = self.bytes()
        seconds["memory"], seconds["second-level cache"] = memory / COPY, level_2 / READ_LEVEL_2
        own = sum(count * alone_cycles(name) for name, count in found.items()) + sum(self.waits(kind) * cycles for kind, cycles in WAIT.items())
        seconds["a warp's own time"] = own * max(1, self.blocks / (PROCESSORS * at_a_time)) / CLOCK
        products = sum(count for name, count in found.items() if name.startswith("HMMA.16816"))
        seconds["published for mma.sync"] = 2 * 16 * 8 * 16 * products * self.warps * self.blocks / FLASH_2_FORWARD
        bound = max(seconds, key=seconds.get)
        return seconds[bound], bound


# ---- A step ------------------------------------------------------------------------------------------------------------


def launches(model, precision="bf16"):
    """The lines of one step, at the model's true shape, as the emulated driver writes them down."""
    where = path("launches")
    if os.path.exists(where):
        os.unlink(where)
    tokens = model["batch"] * model["seq"]
    run = train(environment_of(True, ZR_EMULATOR_LAUNCHES=where, ZR_EMULATOR_MEMORY=str(160 << 30)), data=bench_gpu.shard(model["vocab"], tokens * 4), steps=3, eval_every=0, backend="cuda",
                precision=precision, threads=1, **model)
    if run.code:
        raise SystemExit(f"gpu_model: zr-train: {run.err[-500:]}")
    with open(where, encoding="utf-8") as file:
        lines = [line.split() for line in file]
    names = [line[1] if line[0] == "kernel" else line[0] for line in lines]
    length = max((n for n in range(1, len(lines) // 2 + 1) if names[-n:] == names[-2 * n:-n]), default=0)
    if not length:
        raise SystemExit("gpu_model: the last two steps differ in their launches")
    return lines[-length:], run.report["parameters"]


class Row:
    def __init__(self):
        self.launches, self.seconds, self.bounds = 0, 0.0, collections.Counter()

    def add(self, seconds, bound):
        self.launches, self.seconds = self.launches + 1, self.seconds + seconds + GAP
        self.bounds[bound] += seconds


LAUNCHES = {}  # by kernel, grid and shape


def launch_of(line, known):
    name, numbers, argument = line[1], tuple(map(int, line[2:9])), bytes.fromhex(line[9])
    key = name, numbers, shape_of(argument)
    if key not in LAUNCHES:
        LAUNCHES[key] = Launch(known[name](), numbers[:3], numbers[3:6], numbers[6], argument)
    return LAUNCHES[key]


def product_of(argument):
    """m, n, k, the address of AUX, beta and whether it is in eight bits, of a struct lt_product (tests/emulators/cublaslt/cublaslt_emulator.h)."""
    m, n, k, *rest = struct.unpack("<4I2?6x12Q?7x4Q2fQ2I2Q", argument)
    return m, n, k, rest[13], rest[-6], rest[-4] != 0


def step(lines, known):
    """{kernel: Row} of a step's launches."""
    rows = collections.defaultdict(Row)
    for line in lines:
        if line[0] in ("fill", "copy"):
            rows[line[0]].add((2 if line[0] == "copy" else 1) * int(line[1]) / COPY, "published")
        elif line[1] == "lt_multiply":
            m, n, k, aux, beta, fp8 = product_of(bytes.fromhex(line[9]))
            rows[f"cuBLASLt_{n}x{m}x{k}" + "_fp8" * fp8].add(product_seconds(m, n, k, 1 + (aux != 0) + (beta != 0), fp8), "published")
        elif line[1] != "lt_together":  # of the library, too
            rows[line[1]].add(*launch_of(line, known).seconds())
    return dict(rows)


def shape_of(argument):
    """An argument without its addresses, which differ from layer to layer; of each only how far it is from a line of 64 bytes."""
    words = struct.unpack(f"<{len(argument) // 8}Q", argument[:len(argument) // 8 * 8])
    return tuple(word if word < 1 << 40 else ("address", word % 64) for word in words), argument[len(argument) // 8 * 8:]


def utilisation(tokens_per_second, parameters, model):
    return tokens_per_second * bench_gpu.operations(parameters, model) / PEAK


def llmc_step(batch, cards, total, layers=48, c=1600, heads=25, seq=1024, vocab=50304):
    """{kernel: seconds} of llm.c's step on one of so many cards, by its kernels as they are described: train_gpt2.cu and llmc/*.cuh. Products
    by cuBLASLt, bias and GELU within the forward ones; cuDNN's attention; what goes by memory at COPY."""
    rows, parameters = collections.Counter(), 12 * layers * c * c + 13 * layers * c + (vocab + seq) * c + 2 * c
    tokens = batch * seq
    act = 2 * tokens * c  # bytes of a tensor of activations

    def product(m, n, k, times=1):
        rows["products"] += times * (product_seconds(m, n, k) + GAP)

    def moved(name, count, times=1):
        rows[name] += times * (count / COPY + GAP)
    for inputs, outputs in ((c, 3 * c), (c, c), (c, 4 * c), (4 * c, c)):
        product(tokens, outputs, inputs, layers)  # forward, then of the inputs and of the weights
        product(tokens, inputs, outputs, layers)
        product(inputs, outputs, tokens, layers)
        moved("bias gradients", outputs * tokens * 2, layers)
    product(tokens, vocab, c)
    product(tokens, c, vocab)
    product(vocab, c, tokens)
    moved("encoder", 3 * act, 2)
    moved("residual and norm", 4 * act, 2 * layers)
    moved("norm backward", 4 * act, 2 * layers + 1)
    moved("GELU backward", 3 * 4 * act, layers)
    moved("classifier", 2 * 2 * tokens * vocab)
    flops = 2 * tokens * seq * c  # causal: a half of 4 tokens x seq x c
    rows["attention"] = layers * (flops / CUDNN_FORWARD + 2.5 * flops / CUDNN_BACKWARD + 3 * GAP)
    micro = total // (tokens * cards)
    rows = collections.Counter({name: seconds * micro for name, seconds in rows.items()})
    moved("AdamW and norm", (28 + 2) * parameters / cards)
    # The gradients' reduce-scatter and the parameters' all-gather, at NVLink's 450 GB/s each way (the white paper).
    rows["NCCL"] = 2 * 2 * parameters * (cards - 1) / cards / 450e9
    return rows


def llmc_tokens():
    rows = llmc_step(LLMC["batch"], LLMC["cards"], LLMC["total"])
    return LLMC["total"] / LLMC["cards"] / sum(rows.values()), rows


def expected(model, known, precision="bf16"):
    """(rows, tokens per second, parameters) of a model."""
    lines, parameters = launches(model, precision)
    rows = step(lines, known)
    return rows, model["batch"] * model["seq"] / sum(row.seconds for row in rows.values()), parameters


def merged(modelled):
    """What gpu_shot expects: the published figures of gpu_expected.json, and the model's {name: value} of the step "speed"."""
    with open(os.path.join(HERE, "gpu_expected.json"), encoding="utf-8") as file:
        found = json.load(file)
    for name, value in modelled.items():
        published = found["speed"].get(name)
        found["speed"][name] = {"value": value, "source": "modelled: gpu_model.py" + (f"; {published['source']}: {published['value']}" if published else "")}
    return found


def speeds(name, model, rows, tokens, parameters):
    """{gpu_shot's name: the value it expects} of a model."""
    return {**{f"{name}: {kernel}": round(row.seconds * 1e6, 1) for kernel, row in rows.items()}, f"{name}: all kernels": round(sum(row.seconds for row in rows.values()) * 1e6),
            f"{name}: zr": round(tokens), f"{name}: zr, part of peak": round(utilisation(tokens, parameters, model), 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="GPT-2", help="the models of bench_gpu.py whose names have this")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp8"))
    parser.add_argument("--json", metavar="FILE", help="for gpu_shot --expected")
    parser.add_argument("--llmc", action="store_true")
    asked = parser.parse_args()
    if asked.llmc:
        tokens, rows = llmc_tokens()
        for name, seconds in rows.most_common():
            print(f"{seconds * 1e3:10.1f} ms  {name}")
        print(f"llm.c, GPT-2 1558M: {tokens:,.0f} tokens/s on each card; published {LLMC['tokens']:,}")
        return 0
    known = kernels()
    if known is None:
        print("gpu_model: no nvdisasm (NVDISASM, CUDA_HOME, PATH), or no machine code in the build", file=sys.stderr)
        return ABSENT
    modelled = {}
    for name, model in bench_gpu.MODELS.items():
        if asked.only not in name:
            continue
        rows, tokens, parameters = expected(model, known, asked.precision)
        total = sum(row.seconds for row in rows.values())
        published = sum(row.seconds for row in rows.values() if "published" in row.bounds)
        print(f"{name}, batch {model['batch']} x {model['seq']}, {asked.precision}, recompute {model.get('recompute', 'none')}, on an H100 SXM: {total * 1e3:.1f} ms, {tokens:,.0f} tokens/s, "
              f"{utilisation(tokens, parameters, model):.1%} of {PEAK / 1e12:g} TFLOP/s; {published * 1e3:.1f} ms by published rates, the rest modelled")
        print("        us  launches  kernel, and what bounds it")
        for kernel, row in sorted(rows.items(), key=lambda each: -each[1].seconds):
            print(f"{row.seconds * 1e6:10.0f} {row.launches:9}  {kernel}: {row.bounds.most_common(1)[0][0]}")
        modelled.update(speeds(name, model, rows, tokens, parameters))
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(merged(modelled), file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
