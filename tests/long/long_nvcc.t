#!/usr/bin/env python3
"""Every .cu source of kernels/cuda/ by nvcc, where the build found one, as a program has them: without a warning, with an entry for
each card in each fat binary, and with next to nothing kept outside of registers. Of attention on tensor cores what its machine code
shows without a card: HMMA instructions in its innermost loops, nothing kept outside of registers."""
import glob
import os
import re
import sys

sys.path.insert(0, "tests/support")
import sass
from sass import PTX, SASS
from zrtest import BUILD, done, note, ok, same, skip

CARDS = ("sm_80", "sm_90", "sm_100")
SPILLS_MAX = 64  # bytes a thread of a kernel stores
WIDTHS, KINDS = (64, 96, 128), ("forward", "backward_keys", "backward_queries")
WARPS, SLOTS_MAX, BLOCKS_MIN = 4, 5, 2  # of a block; instructions per HMMA; of a multiprocessor
SHARED = {80: 164, 90: 228, 100: 228}  # KiB of a multiprocessor, of which the driver has one for each block


def shared_bytes(kind, width):
    """What a launch brings: tiles in rows of 16 bytes more (kernels/cuda/cuda.c)."""
    rows = 128 + 2 * (48 if width == 128 else 64) if kind == "forward" else 4 * 64
    return rows * (2 * width + 16)


def blocks_at_once(kernel, card, kind, width):
    """Of a multiprocessor, which has 65,536 registers, in portions of 256 for a warp."""
    registers = 65536 // (-(-kernel.registers * 32 // 256) * 256 * WARPS)
    return min(registers, (SHARED[card] << 10) // (kernel.shared_bytes + shared_bytes(kind, width)))


def attention(card, kernel, kind, width):
    """Words of a kernel, and what is wrong with it."""
    loops = [kernel.longest(*loop) for loop in kernel.innermost().items()]
    loops = [(hmma, length) for hmma, length in loops if hmma]
    blocks = blocks_at_once(kernel, card, kind, width)
    wrong = ["no HMMA in an innermost loop"] * (not loops) + ["memory beside registers"] * (kernel.count(*sass.LOCAL) > 0)
    wrong += [f"{length} instructions for {hmma} HMMA" for hmma, length in loops if length > SLOTS_MAX * hmma]
    wrong += [f"{blocks} blocks at once"] * (blocks < BLOCKS_MIN)
    each = ", ".join(f"{length / hmma:.1f} instructions per HMMA" for hmma, length in sorted(loops, key=lambda loop: loop[1]))
    return f"{kernel.registers} registers, {blocks * WARPS} warps at once, {each}", wrong


images = sass.fat_binaries(os.path.join(BUILD, "nvcc/obj/kernels/cuda/images.o"))
if not images:
    skip("no kernels for a card: built without nvcc")
else:
    same(len(images), 3 * len(glob.glob("kernels/cuda/*.cu")) - 9,
         "a fat binary of each source and precision; of optimizers.cu, state.cu, fp8.cu and pack.cu one, of attention_mma.cu two")
    kinds = [{(kind, card) for kind, card, _ in image} for image in images]
    ok(all({(SASS, 80), (SASS, 90)} <= each and any(kind == PTX and card >= max(each)[1] for kind, card in each) for each in kinds),
       f"each for sm_80, sm_90 and later cards: {sorted(set().union(*kinds))}")
    for card in sorted({card for each in kinds for kind, card in each if kind == SASS}):
        kernels = {name: kernel for image in images for kind, of, data in image if (kind, of) == (SASS, card)
                   for name, kernel in sass.kernels(data, card).items()} if card in SHARED else {}
        for kind in KINDS:
            all_wrong = []
            for width in WIDTHS:
                for precision in ("bf16", "fp16"):
                    name = f"attention_{kind}_{width}_{precision}"
                    words, wrong = attention(card, kernels[name], kind, width) if name in kernels else ("", ["not there"])
                    all_wrong += [f"{name}: {each}" for each in wrong]
                    note(f"sm_{card}: {name}: {words}")
            same(all_wrong, [], f"sm_{card}: attention_{kind} runs on tensor cores, in registers")
    logs = "".join(open(log).read() for log in glob.glob(os.path.join(BUILD, "nvcc/device/kernels/cuda/*.log")))
    for card in CARDS:
        spills = re.findall(rf"entry function '(\w+)' for '{card}'\n.*\n.*?(\d+) bytes spill stores", logs)
        ok(len(spills) >= 80, f"{card}: {len(spills)} kernels")
        for name, count in sorted(spills):
            if int(count):
                note(f"{card}: {name} keeps {count} bytes outside of registers")
        ok(all(int(count) <= SPILLS_MAX for _, count in spills), f"{card}: none keeps more than {SPILLS_MAX} bytes outside of registers")
done()
