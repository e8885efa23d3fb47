#!/usr/bin/env python3
"""Every optimizer with its state on the device, on the host and in a file, updated after a step, during the next one or before the norm is
known: --prove agrees, or the settings are refused with the reason; a delayed update is the update of the step before, and a run resumes at another
stage and tier. Adafactor and LAMB at each stage, and the bytes of Adafactor's state."""
import itertools
import os
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, optimizers
from saves import contents
from zrtest import done, note, ok, path, same, start_quickly, train

start_quickly()
OPTIMIZERS = optimizers()
DISK = "nvme:" + path("disk")
os.mkdir(path("disk"))
TIERS = {"resident": {}, "cpu": dict(offload_optimizer="cpu"), "nvme": dict(offload_optimizer=DISK, force=True)}
MODES = {"plain": {}, "delayed": dict(delayed_update=True), "speculative": dict(speculative_update="1GiB")}
SHAPE = dict(layers=6, hidden=21, heads=3, seq=11, batch=2, steps=4, eval_every=0, warmup=1)


def updated(**flags):
    """The bytes of the model after one update."""
    run = train(ranks=2, export=path("model.safetensors"), **{**SHAPE, "steps": 1}, **flags)
    return contents(path("model.safetensors")) if run.code == 0 else run.err


ok(len(OPTIMIZERS) >= 5, f"--help lists {' '.join(OPTIMIZERS)}")
for optimizer, tier, mode in itertools.product(OPTIMIZERS, TIERS, MODES):
    run = train(ranks=2, stage=3, prove=True, optimizer=optimizer, **TIERS[tier], **MODES[mode], **SHAPE)
    reason = ("requires --offload-optimizer" if mode == "delayed" and tier == "resident" else "changes losses" if mode == "delayed" else
              f"--optimizer {optimizer}" if mode == "speculative" and "--speculative-update" in OPTIMIZERS[optimizer] else None)
    words = f"--optimizer {optimizer}, state {tier}, {mode}"
    if reason:
        ok(run.code == 2 and reason in run.err, f"{words}: refused, {run.err.strip()[:150]}") or note(run.err[-600:])
    else:
        ok(run.code == 0 and "proved: beside one dense rank" in run.err, f"{words}: --prove agrees") or note(run.err[-600:])
for optimizer, excluded in OPTIMIZERS.items():
    plain, late = (dict(optimizer=optimizer, stage=stage, **more) for stage, more in ((0, {}), (3, MODES["delayed"])))
    one, *others = [logged(ranks=2, **late, **TIERS[tier], **SHAPE) for tier in ("cpu", "nvme")]
    ok(one.losses and all(run.bits == one.bits for run in others), f"{optimizer}: a delayed update of state on the host and in a file has the same bits") or note(one.err + others[0].err)
    want = updated(**plain)
    for tier in ("cpu", "nvme"):
        ok(updated(**late, **TIERS[tier]) == want, f"{optimizer}, state {tier}: the first delayed update is that of a plain run")
    saved, rest = path(optimizer), train(ranks=2, **plain, **SHAPE).losses[2:]
    ok(updated(lr=0, ema=0.5, **plain) == updated(lr=0, **plain), f"{optimizer}: the moving average of parameters that do not change is theirs")
    train(ranks=2, save=saved, save_every=2, **{**plain, "stage": 2}, **TIERS["nvme"], **SHAPE)
    for tier, stage in (("resident", 1), ("cpu", 3)):
        run = train(ranks=2, resume=os.path.join(saved, "step-00000002"), **{**plain, "stage": stage}, **TIERS[tier], **SHAPE)
        same(run.losses, rest, f"{optimizer}: saved of a file at stage 2, resumed at {stage}, state {tier}") or note(run.err)
    for more in (dict(ranks=2, tp=2), dict(tile=3)):
        run = train(prove=True, optimizer=optimizer, **more, **{**SHAPE, "hidden": 24, "heads": 4})
        refused = "--tp" in excluded
        ok(run.code == 2 and f"--optimizer {optimizer} " in run.err and "give --optimizer adamw" in run.err if refused else run.code == 0,
           f"{optimizer} with {' '.join(more)}: {run.err.strip()[:150] if refused else 'proved'}") or note(run.err[-600:])

# The factors of a matrix are its rows and columns, on every rank; a vector has a second moment by element, of which a rank has its shard.
C, LAYERS, ODD = SHAPE["hidden"], SHAPE["layers"], dict(ranks=3, clip=0.5, lr_vectors=2, group="h.0.*:lr=0.5", **SHAPE)
factors = 4 * (256 + C + SHAPE["seq"] + C + LAYERS * (4 * C + 2 * C + 5 * C + 5 * C))
vectors = 4 * (2 * C + LAYERS * (4 * C + 9 * C))
for optimizer, precision, accumulate in (("lamb", "bf16", 2), ("adafactor", "fp32", 1), ("adafactor", "bf16", 2)):
    runs = [logged(stage=stage, threads=1 + stage, optimizer=optimizer, precision=precision, accumulate=accumulate, **ODD) for stage in (0, 1, 2, 3)]
    ok(runs[0].losses and all(run.bits == runs[0].bits for run in runs), f"{optimizer} in {precision}, {accumulate} micro-batches: the bits of stage 0 at each stage, with more threads")
for stage, run in enumerate(runs):
    got, least = run.report["ranks"][0]["persistent_bytes"]["optimizer"], factors + vectors / (1 if stage == 0 else 3)
    ok(least <= got <= least + 64 * 3 * 4 * (LAYERS + 4), f"stage {stage}: {got} bytes of state, of {factors} of factors and {vectors} of vectors")
    planned, peak = (run.report["ranks"][0][f"{kind}_bytes"]["optimizer"] for kind in ("planned", "peak"))
    same(planned, peak, "as planned")
for words in (dict(offload_optimizer="cpu", offload_ratio=0.5), dict(offload_optimizer="cpu", offload_param="cpu"), dict(offload_optimizer=DISK, force=True, offload_param=DISK)):
    same(logged(stage=3, optimizer="adafactor", precision="bf16", accumulate=2, **words, **ODD).bits, runs[0].bits, f"and with {' '.join(words)}")
done()
