#!/usr/bin/env python3
"""--outer: groups have the losses of any stage and of a resumed run, take the plan's bytes and send those of the formula; --dry-run prints
these; what cannot be combined is refused with the reason."""
import os
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, path, same, start_quickly, train

start_quickly()
SHAPE = dict(ranks=4, groups=2, steps=8, eval_every=0, warmup=1, threads=1)


def outer(words, elements=None, **flags):
    """A run of groups, which takes and sends what is planned: with `elements` so many masters in fp32 per round."""
    run = train(**{**SHAPE, **flags})
    ranks = run.report["ranks"] if run.code == 0 else []
    planned = bool(ranks) and all(rank["peak_bytes"][tag] == bytes for rank in ranks for tag, bytes in rank["planned_bytes"].items() if tag not in ("other", "total"))
    sent = [rank["outer"] for rank in ranks]
    moved = all(one["sent_bytes"] == one["planned_bytes"] == one["received_bytes"] > 0 for one in sent)
    ok(planned and moved and all(elements is None or one["round_bytes"] == 4 * elements for one in sent), f"{words}: bytes as planned, {sent[:1]}") or note(run.err[-600:])
    return run


# Each of two data ranks owns half of a unit, which is padded to 64 elements for each rank, and sends 2 (G - 1) / G of it: all.
BLOCK = 12 * 32 * 32 + 13 * 32
ELEMENTS = sum((unit + 127) // 128 * 64 for unit in ((256 + 16) * 32, BLOCK, BLOCK, 2 * 32))
saved = path("saved")
whole = outer("stage 1", elements=ELEMENTS, stage=1, outer="diloco:4", save=saved, save_every=3)
plain = train(**{**SHAPE, "groups": 1, "stage": 1, "steps": 1, "outer": "none"})
same(whole.losses[:1], plain.losses, "the first step's loss is that of as many data ranks") or note(plain.err[-600:])
run = outer("stage 3", elements=ELEMENTS, stage=3, outer="diloco:4", resume=os.path.join(saved, "step-00000003"))
same(run.losses, whole.losses[3:], "resumed at stage 3, the losses of an uninterrupted run") or note(run.err[-600:])
saved = path("streams")
flags = dict(stage=2, outer="diloco:4", outer_fragments=2, outer_delay=1, compress="outer:int4")
whole = outer("fragments of 4 bits during a step", save=saved, save_every=4, **flags)
run = outer("the same", resume=os.path.join(saved, "step-00000004"), **{**flags, "stage": 1})
same(run.losses, whole.losses[4:], "resumed, the losses of an uninterrupted run") or note(run.err[-600:])
run = train(ranks=6, groups=3, stage=1, outer="diloco:4", compress="outer:int4", outer_fragments=2, outer_delay=1, steps=6, resume=os.path.join(saved, "step-00000004"))
ok(run.code == 0 and "has 2 groups, this run has 3" in run.err, "three groups continue from the states of two") or note(run.err[-600:])

run = train(dry_run=True, params="1e6", **{**SHAPE, "steps": None, "outer": "diloco:100", "layers": None, "hidden": None, "heads": None})
ok("1/100 of sums in each step" in run.out, "a plan prints the share of what is sent") or note(run.out[-900:])
for words, flags in {"--outer requires --groups": dict(groups=1, outer="diloco:4"),
                     "requires --outer diloco:H": dict(),
                     "take a multiple of 2 ranks": dict(ranks=3, outer="diloco:4"),
                     "not diloco:H": dict(outer="diloco"),
                     "must divide the H": dict(outer="diloco:4", outer_fragments=3),
                     "--outer-delay must be below": dict(outer="diloco:4", outer_delay=4),
                     "--outer-mix requires --outer-delay": dict(outer="diloco:4", outer_mix=0.5),
                     "groups skip different steps": dict(outer="diloco:4", precision="fp16"),
                     "cannot be combined with --ema": dict(outer="diloco:4", ema=0.9),
                     "cannot be combined with --delayed-update": dict(outer="diloco:4", stage=1, offload_optimizer="cpu", delayed_update=True),
                     "without what they add up": dict(outer="diloco:4", stage=1, compress="gradients:topk:0.1"),
                     "--outer cannot be combined with --prove": dict(outer="diloco:4", prove=True),
                     "a checkpoint has no exchange": dict(outer="diloco:4", outer_delay=1, save=path("none"), save_every=3),
                     "--compress outer requires --outer": dict(ranks=2, groups=1, compress="outer:int4")}.items():
    run = train(**{**SHAPE, **flags})
    ok(run.code == 2 and words in run.err, f"refused: {words}") or note(run.err[-300:])
done()
