#!/usr/bin/env python3
"""How much memory is free and of use to nobody: GPT-2 XL (1.5 B parameters) on 64 ranks at stage 1, in bf16, whose gradients
and checkpoints are blocks among the activations; what is reserved for what is in use at most, and the smallest
--memory-limit under which each allocator finds room. `bench_holes.py PICTURE.svg` draws it."""
import re
import sys

sys.path.insert(0, "tests/support")
from zrtest import train

SHAPE = dict(ranks=None, steps=None, dry_run=True, world_size=64, stage=1, precision="bf16", layers=48, hidden=1600, heads=25, seq=1024,
             batch=1, recompute="full:24", vocab=50257, threads=1, no_contiguous=True)
MIB = 1 << 20
WIDTH, BAR, LEFT, SCALE = 800, 34, 180, 62  # SCALE: pixels per GiB


def bytes_of(policy):
    """(reserved, in use) without a limit."""
    run = train(policy=policy, **SHAPE)
    if run.code:
        raise SystemExit(run.err)
    rank, use = run.report["ranks"][0], run.report.get("policy")
    return (use["reserved_bytes"], use["live_bytes"]) if use else (rank["planned_reserved_bytes"], rank["planned_bytes"]["total"])


def least_limit(policy, low, high):
    """In steps of 16 MiB."""
    while high - low > 16 * MIB:
        middle = (low + high) // 2 // MIB * MIB
        run = train(policy=policy, memory_limit=middle, **SHAPE)
        low, high = (low, middle) if run.code == 0 else (middle, high)
    return high


rows = []
for policy, words in (("zr", "zr, with its plan"), ("expandable", "expandable segments"), ("caching", "caching allocator")):
    reserved, live = bytes_of(policy)
    rows.append((words, live, reserved, least_limit(policy, live // 2, reserved + 32 * MIB)))
    print(f"{words:20} {reserved / 2**30:6.2f} GiB reserved for {live / 2**30:.2f} in use: {100 * (1 - live / reserved):4.1f} % stranded; "
          f"fits under {rows[-1][3] / 2**30:.2f} GiB", flush=True)
caching, zr = rows[-1], rows[0]
print(f"below {caching[3] / 2**30:.2f} GiB the caching allocator, which first gives whole free segments back to the driver, runs out "
      f"of memory with {100 * (1 - caching[1] / caching[3]):.1f} % of it free; zr's plan needs {zr[3] / 2**30:.2f} GiB")
if len(sys.argv) > 1:
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{len(rows) * 58 + 62}" font-family="sans-serif" font-size="14">',
             f'<rect width="{WIDTH}" height="{len(rows) * 58 + 62}" fill="#ffffff"/>']
    for i, (words, live, reserved, limit) in enumerate(rows):
        y, used, held = 14 + 58 * i, live / 2**30 * SCALE, reserved / 2**30 * SCALE
        lines += [f'<text x="{LEFT - 10}" y="{y + 22}" text-anchor="end" fill="#222222">{words}</text>',
                  f'<rect x="{LEFT}" y="{y}" width="{held:.1f}" height="{BAR}" fill="#f0b67f"/>',
                  f'<rect x="{LEFT}" y="{y}" width="{used:.1f}" height="{BAR}" fill="#2a6f97"/>',
                  f'<text x="{LEFT + 8}" y="{y + 22}" fill="#ffffff">{live / 2**30:.2f} GiB in use</text>',
                  f'<text x="{LEFT + max(used, held) + 6:.1f}" y="{y + 22}" fill="#222222">{reserved / 2**30:.2f}</text>',
                  f'<line x1="{LEFT + limit / 2**30 * SCALE:.1f}" x2="{LEFT + limit / 2**30 * SCALE:.1f}" y1="{y - 4}" y2="{y + BAR + 4}" '
                  'stroke="#9b2226" stroke-width="2"/>']
    y = 14 + 58 * len(rows) + 8
    for x, fill, words in ((LEFT, "#2a6f97", "in use at the peak"), (LEFT + 170, "#f0b67f", "reserved, and free"), (LEFT + 340, "#9b2226", "smallest limit it fits under")):
        lines += [f'<rect x="{x}" y="{y}" width="12" height="12" fill="{fill}"/>', f'<text x="{x + 18}" y="{y + 11}" fill="#222222">{words}</text>']
    with open(sys.argv[1], "w") as file:
        file.write("\n".join(lines + ["</svg>", ""]))
