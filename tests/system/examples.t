#!/usr/bin/env python3
"""The examples run as they stand."""
import ast
import os
import shutil
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, note, ok, path, same, skip

for words, command in (("arena.c", [os.path.join(BUILD, "examples", "arena")]),
                       ("arena.py", [sys.executable, "examples/arena.py", os.path.join(BUILD, "lib", "libzr.so")])):
    got = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    if not same(got.returncode, 0, f"examples/{words} ends well"):
        note(got.stderr)
    ok("bytes live" in got.stdout, f"examples/{words} says what it holds: {got.stdout.strip()}")
got = subprocess.run([os.path.join(BUILD, "examples", "mlp"), "2", "3", "20"], capture_output=True, text=True, timeout=HANG)
if not same(got.returncode, 0, "examples/mlp.c ends well (install.t looks closer)"):
    note(got.stderr)

# A model of one's own: the same bits at every stage, and it learns.
runs = []
for stage in "0123":
    got = subprocess.run([os.path.join(BUILD, "examples", "lines"), "2", stage, "100"], capture_output=True, text=True, timeout=HANG)
    if not same(got.returncode, 0, f"examples/lines.c trains resmlp.c at stage {stage}"):
        note(got.stderr)
    runs.append(got.stdout.splitlines())
same(runs[1:], runs[:1] * 3, "all stages have the same losses and norm")
losses = [float(line.split()[3]) for line in runs[0][:-1]]
ok(losses[-1] < 0.2 < 0.6 < losses[0], f"the loss falls: {losses}")

# A program that runs out of memory with its own caching, and not with the arena's; on the emulated driver.
runs = [subprocess.run([*command, os.path.join(BUILD, "examples", "fragment"), *mode], capture_output=True, text=True, timeout=HANG,
                       env={**os.environ, "LD_LIBRARY_PATH": os.path.join(os.path.abspath(BUILD), "tests", "emulator"),
                            "ZR_EMULATOR_MEMORY": "1153433600"})
        for command, mode in (([], []), ([os.path.join(BUILD, "bin", "zr"), "run", "--cuda", "--"], ["--direct"]))]
ok(runs[0].returncode == 4 and "MiB free in the allocator's segments" in runs[0].stdout, "examples/fragment.c dies of fragmentation")
shares = {sign: runs[0].stdout.split("\n", 1)[1].count(sign) for sign in "#+."}
ok(shares["#"] > 200 and shares["+"] > 20 and shares["."] > 5, f"its map has holes: {shares}")
ok(runs[1].returncode == 0 and runs[1].stdout.startswith("all 60 steps\n"), "and ends well under zr run --cuda")

# From anywhere; and what Python hands over is as large as what C reads.
LIBRARY = os.path.abspath(os.path.join(BUILD, "lib", "libzr.so"))
with open("examples/arena.py") as file:
    script = file.read()
with open(path("sizes.py"), "w") as file:
    file.write(script + "\nprint([ctypes.sizeof(one) for one in (ArenaOptions, Request)])\n")
got = subprocess.run([sys.executable, path("sizes.py"), LIBRARY], capture_output=True, text=True, timeout=HANG)
compiler = shutil.which("cc") or shutil.which("gcc")
if not compiler:
    skip("no C compiler")
else:
    with open(path("sizes.c"), "w") as file:
        file.write('#include <stdio.h>\n#include "alloc/zr.h"\nint main(void)\n{\n    printf("[%zu, %zu]\\n", sizeof(struct '
                   'zr_arena_options), sizeof(struct zr_request));\n}\n')
    subprocess.run([compiler, "-I.", path("sizes.c"), "-o", path("sizes")], check=True, timeout=HANG)
    want = subprocess.run([path("sizes")], capture_output=True, text=True, timeout=HANG).stdout
    same(ast.literal_eval(got.stdout.splitlines()[-1]), ast.literal_eval(want), "arena.py has the fields of alloc/zr.h") or \
        note(got.stderr)
copied = shutil.copy("examples/arena.py", path("arena.py"))
got = subprocess.run([sys.executable, copied], capture_output=True, text=True, timeout=HANG, cwd="/",
                     env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(LIBRARY)})
ok(got.returncode == 0 and "bytes live" in got.stdout, "arena.py alone takes the loader's library") or note(got.stderr)
done()
