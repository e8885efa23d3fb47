#!/usr/bin/env python3
"""zr-train --backend cuda with what is offloaded, on the emulated driver, which draws again how long each copy takes: the bits are
those of a run without, in any order of the streams; both tiers are as planned; and the host waits where it must, and no more often
with more work. In `make check`, and with `short` for mutants, there are fewer orders; long_card.t has all."""
import os
import sys

sys.path.insert(0, "tests/support")
from cuda_train import FP32, LLAMA, near, on_card, on_host, went_well
from saves import contents
from zrtest import done, note, ok, path, same

SHORT, LONG = sys.argv[1:] == ["short"], "ZR_TEST_LONG" in os.environ
SMALL = dict(layers=2, hidden=4, heads=1, seq=3, batch=1, steps=2)
CPU, PARAM, HOST = dict(offload_optimizer="cpu"), dict(offload_optimizer="cpu", offload_param="cpu"), dict(checkpoint_offload=True, recompute="full")
FILE = dict(offload_optimizer="nvme:" + path("disk"), nvme_depth=8, force=True)
os.mkdir(path("disk"))
HALF = dict(precision="bf16")
QUICK = {"ZR_EMULATOR_RACES": "0"}  # for runs that others are compared with
# What is trained, what of it is offloaded, and how often the host waits in a step: for the gradients, with each of two host messages
# until the stream of operations is empty (NCCL's are not waited for), and for each unit's buffer: of new parameters in two bytes, or
# of masters from a file.
ROWS = (
    (dict(stage=0), CPU, 3),
    (dict(stage=0, layers=4, accumulate=3, threads=2), CPU, 3),
    (dict(stage=1, ranks=2, **HALF), CPU, 8),
    (dict(stage=2, accumulate=2, optimizer="sgd", **HALF), CPU, 8),
    (dict(stage=3, ranks=2), {**PARAM, **HOST}, 3),
    (dict(stage=3, ranks=2, accumulate=2, **HALF), PARAM, 3),
    (dict(stage=3, accumulate=2, **HALF), PARAM, 3),
    (dict(stage=1, layers=5), HOST, 0),  # more than there are buffers
    (dict(stage=2, ranks=2), dict(offload_ratio=0.5, **CPU), 5),  # and before and behind a copy: the squares of what stays
    (dict(stage=1), FILE, 8),
    (dict(stage=3, **HALF), {**FILE, "offload_param": "cpu"}, 3),
    (dict(stage=1, ranks=2, optimizer="muon"), CPU, 7),  # and for the directions of each layer, there and back
    (dict(stage=1, ranks=2, freeze=["w?e.weight"]), FILE, 6),
    (dict(stage=2, ranks=2, comm="nccl", deterministic=True, layers=1, **HALF), CPU, 5),
)
plains = {}  # by what bits depend on, which is no stage


def without(flags):
    key = str({name: value for name, value in flags.items() if name != "stage"})
    if key not in plains:
        plains[key] = on_card(QUICK, **{**SMALL, **flags})
    return plains[key]


for number, (flags, offload, waits) in enumerate(ROWS):
    plain = without(flags)
    # The first order is the extreme: nothing runs before the host waits for it.
    orders = [{"ZR_EMULATOR_TICKS": "100000"}] + [{"ZR_EMULATOR_SEED": str(100 * number + seed)} for seed in range(2 if LONG else SHORT)]
    for order in orders:
        run, words = on_card(order, **{**SMALL, **flags, **offload}), f"{flags} {offload} {order}"
        if not went_well(run, words, offload):
            continue
        same(run.bits, plain.bits, f"{words}: the bits of a run without")
        for rank in run.report["ranks"]:
            same(rank["host_waits_last_step"], waits, f"{words}: so often the host waits in a step")
            for tier in rank["tiers"].values():
                pairs = [(tier.get(planned), tier.get(measured)) for planned, measured in
                         (("planned_by_tag_bytes", "peak_by_tag_bytes"), ("planned_bytes", "peak_bytes"),
                          ("planned_moved_bytes_per_step", "moved_bytes_per_step"))]
                ok(all(a == b for a, b in pairs) and pairs[1][0] > 0, f"{words}: the tier's bytes are the plan's") or note(str(pairs))

if not SHORT:  # what follows launches the same kernels in the same streams
    os.environ.update(QUICK)
# Where the driver refuses memory of a node: other kinds, the same bits; or words of what it refuses.
spread = {**SMALL, "stage": 3, "ranks": 2}
plain = without(dict(stage=3, ranks=2))
for refused, words in (("0", "memory of host node 0"), ("1", "without a node (host node 0: CUDA_ERROR_NOT_PERMITTED)"), ("2", "page-locked pages")):
    run = on_card({"ZR_EMULATOR_HOST": refused}, **{**spread, **PARAM, **HOST})
    if went_well(run, words, PARAM):
        same(run.bits, plain.bits, f"{words}: the bits of a run without")
        same(run.err.count("offloaded state is in"), 1, f"{words}: is said once") or note(run.err)
        ok(words in run.err, f"{words}: is what it says") or note(run.err)
run = on_card({"ZR_EMULATOR_HOST": "3"}, **{**spread, **CPU})
ok(run.code == 2 and all(words in run.err for words in ("--backend cuda: device 0 cannot use memory of this machine", "page-locked pages: CUDA_ERROR_NOT_PERMITTED", "--cap-add")),
   "refused where there is none of them") or note(f"{run.code} {run.err}")

# A delayed update has other bits, and the processor's losses.
for flags in (dict(stage=1, steps=4), dict(stage=3, steps=4, **HALF, **{**PARAM})):
    flags = {**SMALL, **CPU, **flags, "delayed_update": True}
    host, runs = on_host(**flags), [on_card({"ZR_EMULATOR_SEED": seed}, **flags) for seed in ("71", "72")]
    if went_well(runs[0], f"{flags}", flags):
        near(runs[0], host, FP32 if "precision" not in flags else 2e-3, f"{flags}")
        same(runs[1].bits, runs[0].bits, f"{flags}: in another order")

# Saved, resumed and exported, each as without: by the files' bytes.
long = {**SMALL, **LLAMA, **dict(hidden=8, stage=3, steps=4, eval_every=2, schedule_lr="constant", warmup=0)}
plain = on_card(save=path("plain"), export=path("plain.safetensors"), **long)
run = on_card(save=path("moved"), export=path("moved.safetensors"), **{**long, **PARAM})
same((run.bits, run.report and run.report["val_loss"]), (plain.bits, plain.report["val_loss"]), "with evaluations") or note(run.err[-600:])
same(*(contents(path(f"{name}.safetensors")) == contents(path("plain.safetensors")) for name in ("moved", "plain")), "the exported model")
on_card(save=path("half"), **{**long, **PARAM, "steps": 2})
for words, start, steps, offload in (("resumed", "half", 4, PARAM), ("resumed where nothing is offloaded", "half", 4, {})):
    again = on_card(resume=path(start), **{**long, **offload, "steps": steps})
    same(again.bits, plain.bits[2:], f"{words}: goes on") or note(again.err[-600:])
started = [on_card(resume=path("plain.safetensors"), **{**long, **offload, "steps": 2}) for offload in ({}, PARAM)]
same(started[1].bits, started[0].bits, "begun from a model") or note(started[1].err[-600:])

# What cannot be, in words.
for words, flags in (
        ("--cuda-graph", dict(cuda_graph=True, stage=1, **CPU)),
        ("--cuda-graph", dict(cuda_graph=True, **HOST)),
        ("--offload-param nvme:DIR", dict(stage=3, offload_param="nvme:" + path("disk"), **CPU)),
        ("--speculative-update", dict(stage=1, speculative_update="1MiB", **CPU)),
):
    run = on_card(**{**SMALL, **flags})
    ok(run.code == 2 and words in run.err, f"refused with `{words}`: {run.err.strip()[-150:]}") or note(f"{run.code} {run.err}")
ok(not os.listdir(path("disk")), "nothing is left of the files")
done()
