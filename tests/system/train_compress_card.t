#!/usr/bin/env python3
"""--compress with --backend cuda, on the emulated driver: losses are the processor's, bits depend neither on the stage nor on the
transport, and orders of streams change none: what is packed before the gradient is complete, or read before it is unpacked or
copied, shows. `train_compress_card.t short`, for mutants, has the orders alone."""
import os
import sys

sys.path.insert(0, "tests/support")
from cuda_train import FP32, near, on_card, on_host, went_well
from pairs import ALL_ROWS
from zrtest import done, mpi_missing, note, ok, path, same

SHORT = sys.argv[1:] == ["short"]
SMALL, CARDS = dict(layers=1, hidden=4, heads=1, seq=3, batch=1, steps=2), {"ZR_EMULATOR_DEVICES": "4"}
NEAR = 2e-3  # of losses where a rounding by the card may turn a sign, or an element of two bytes
BOTH, NCCL = "parameters:{0},gradients:{0}", dict(comm="nccl", deterministic=True)
NODES = dict(ranks=4, stage=3, node_size=2, compress="qwz,qgz,hpz", **SMALL)  # a copy per node, gradients in two hops
MPI = [] if mpi_missing() else [(None, dict(stage=3, comm="mpi"))]
ONEBIT = dict(ranks=2, stage=1, compress="gradients:onebit", beta2=0.5, **{**SMALL, "steps": 6})


def beside_the_host(words, *runs, tolerance=FP32, **flags):
    """Runs of one algorithm, each with more flags: the losses of the processor, and bits of the first one. Returns that."""
    first, host = None, on_host(**{**flags, "stage": flags.get("stage", runs[0][1].get("stage"))})
    for environment, more in runs:
        run = on_card(environment, **{**flags, **more})
        if went_well(run, f"{words}, {more}", {**flags, **more}):
            near(run, host, tolerance, f"{words}, {more}")
            first = first or run
            same(run.bits, first.bits, f"{words}, {more}: the bits of the first one")
    return first


if not SHORT:
    for packing, precision, stages in (("int8", "fp32", (1, 2, 3)), ("int4", "bf16", (1, 3)), ("int4_rotated", "fp32", (3,)), ("mxfp8", "fp32", (2,))):
        beside_the_host(f"{packing}, {precision}", *((None, dict(stage=stage)) for stage in ((1, 2, 3) if ALL_ROWS else stages)),
                        tolerance=FP32 if precision == "fp32" else NEAR, ranks=2, precision=precision, compress=BOTH.format(packing), **SMALL)
    beside_the_host("int8 over NCCL, MPI and in graphs", (None, dict(stage=1)), (CARDS, dict(stage=3, **NCCL)), (None, dict(stage=1, cuda_graph=True)), *MPI, (None, dict(stage=3, cuda_graph=True)),
                    ranks=2, compress=BOTH.format("int8"), **{**SMALL, "steps": 5})
    beside_the_host("two micro-batches, fp16", (None, dict(stage=1)), (None, dict(stage=3)), tolerance=5e-3, ranks=2, precision="fp16", accumulate=2, compress=BOTH.format("mxfp8"), **SMALL)
    beside_the_host("parameters on the host", (None, {}), ranks=2, stage=3, offload_optimizer="cpu", offload_param="cpu", compress=BOTH.format("int8"), **SMALL)
    for precision in ("fp32", "bf16"):
        saved, flags = path(f"onebit-{precision}"), {**ONEBIT, "precision": precision, "compress_warmup": None if precision == "fp32" else "auto"}
        run = beside_the_host(f"onebit, {precision}", (None, {}), (CARDS, NCCL), tolerance=NEAR, **flags)
        on_card(save=saved, save_every=4, **flags)
        last = os.path.join(saved, "step-00000004")
        again = on_card(resume=last, **flags)
        same(again.losses, run.losses[4:], "a resumed run has the losses of one without an interruption")
        near(on_host(resume=last, **flags), again, NEAR, "the processor resumes it")
    for reason, flags in {"--cuda-graph cannot be combined with --node-size": {**NODES, "cuda_graph": True}, "--compress gradients:onebit": {**ONEBIT, "cuda_graph": True},
                          "no kernels of a GPU": dict(ranks=2, stage=2, compress="sdp4bit", **SMALL)}.items():
        run = on_card(**flags)
        ok(run.code == 2 and reason in run.err, f"refused: {run.err.strip()[:150]}")

# The driver draws again how long each piece of work of each stream takes.
first = beside_the_host("two nodes", (None, {}), (CARDS, NCCL), **NODES)
for seed in range(1, 21 if ALL_ROWS else 7):
    environment, more = (CARDS, NCCL) if seed % 2 else ({}, {})
    run = on_card({"ZR_EMULATOR_SEED": str(seed), **environment}, **{**NODES, **more})
    same(run.bits if run.code == 0 else run.err[-600:], first.bits, f"two nodes, seed {seed}{', NCCL' if more else ''}: the bits of other orders")
done()
