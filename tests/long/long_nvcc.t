#!/usr/bin/env python3
"""Every .cu source of kernels/cuda/ by nvcc, where there is one, for each card that zr is for: without a warning, with machine
code in it, and with next to nothing kept outside of registers. What the build has of them is tests/system/card_images.t's matter."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, skip

CARDS = ("sm_80", "sm_90", "sm_100")
PRECISIONS = {"optimizers.cu": (0,), "state.cu": (0,), "fp8.cu": (0,), "pack.cu": (0,), "attention_mma.cu": (1, 2)}
SPILLS_MAX = 64  # bytes a thread of a kernel stores
places = [os.path.join(root, "bin", "nvcc") for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
nvcc = shutil.which("nvcc") or next((path for path in places if os.path.exists(path)), None)


def compile_one(source, precision, card, output):
    """The names of kernels, with the bytes that each stores outside of registers, and what nvcc said otherwise."""
    got = subprocess.run([nvcc, "-I.", f"-arch={card}", "-cubin", "-fmad=false", "-ftz=true", "-Werror", "all-warnings", "-Xptxas", "-v",
                          f"-DZR_PRECISION={precision}", source, "-o", output], capture_output=True, text=True)
    found = re.findall(r"Function properties for (\w+)\n.*?(\d+) bytes spill stores", got.stderr + got.stdout)
    return {name: int(spills) for name, spills in found}, got


if not nvcc:
    skip("no nvcc: install the CUDA toolkit or set CUDA_HOME")
else:
    sources = sorted(glob.glob("kernels/cuda/*.cu"))
    ok(len(sources) >= 6, f"{len(sources)} sources")
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "image.cubin")
        for card in CARDS:
            spilling, kernels = {}, 0
            for source in sources:
                for precision in PRECISIONS.get(os.path.basename(source), range(3)):
                    found, got = compile_one(source, precision, card, output)
                    kernels += len(found)
                    spilling.update({name: spills for name, spills in found.items() if spills})
                    if got.returncode != 0 or open(output, "rb").read(4) != b"\x7fELF":
                        ok(False, f"{source} of precision {precision} for {card}")
                        note(got.stderr[-2000:])
            ok(kernels >= 80, f"{card}: {kernels} kernels")
            for name, spills in sorted(spilling.items()):
                note(f"{card}: {name} keeps {spills} bytes outside of registers")
            ok(all(spills <= SPILLS_MAX for spills in spilling.values()),
               f"{card}: none keeps more than {SPILLS_MAX} bytes outside of registers")
done()
