#!/usr/bin/env python3
"""--tile: each product of a layer in column pieces, embedding and head by entries of the vocabulary. The bits are the
same wherever they lie, and near those of whole products; what passes through takes a fraction of the bytes, by a
formula of the shapes; the plan proposes it."""
import os
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, most_pairs
from saves import contents
from zrtest import PLANNED_TAGS, done, note, ok, path, same, start_quickly, train

start_quickly(fp32_alone=True)
SHAPE = dict(layers=3, hidden=48, heads=4, seq=12, batch=2, steps=3, clip=0.5, eval_every=2)
MODELS = {"gpt2": SHAPE, "llama": {**SHAPE, "arch": "llama", "kv_heads": 2, "ffn": 72}}
NEAR = {"fp32": 1e-6, "bf16": 1e-3, "fp16": 1e-3}  # of a loss: at two bytes each tile rounds the sum of its input's gradient
bases = {}


def base(**flags):
    key = tuple(flags.items())
    if key not in bases:
        model = flags.pop("model")
        bases[key] = logged(stage=0, **flags, **MODELS[model])
        same(bases[key].code, 0, f"{model} {flags}: stage 0") or note(bases[key].err[-600:])
    return bases[key]


def as_planned(run, words):
    for rank in run.report["ranks"]:
        planned, measured = rank["planned_bytes"], rank["peak_bytes"]
        differ = [tag for tag in PLANNED_TAGS if planned[tag] != measured[tag]]
        if differ or rank["driver_calls_last_step"]:
            return ok(False, f"{words}: as planned") or note(f"{differ} {rank['driver_calls_last_step']}")
    return ok(True, f"{words}: every tag as planned, no driver call in the last step")


for row in most_pairs(5, model=tuple(MODELS), ranks=(1, 2, 3), pp=(1, 2), stage=(0, 1, 2, 3), tile=(2, 4), precision=tuple(NEAR),
                    accumulate=(1, 2), recompute=("none", "full"), tier=(None, "cpu"), optimizer=("adamw", "sgd"), tp=(1, 2, "rows")):
    pipeline = dict(pp=2) if row["pp"] == 2 and row["ranks"] == 1 else {}
    tensor = dict(tp=2, sequence_parallel=row["tp"] == "rows" or None) if row["tp"] != 1 else {}
    stage = row["stage"] if not row["tier"] or row["ranks"] == 1 or row["stage"] else 1
    flags = dict(model=row["model"], ranks=(2 if pipeline else min(row["ranks"], 2) if tensor else row["ranks"]) * (2 if tensor else 1),
                 precision=row["precision"], accumulate=row["accumulate"], optimizer=row["optimizer"], **pipeline, **tensor)
    want, whole = base(tile=row["tile"], **flags), base(tile=None, **flags)
    model = flags.pop("model")
    got = logged(stage=stage, tile=row["tile"], recompute=row["recompute"], offload_optimizer=row["tier"], **flags,
                 offload_param="cpu" if row["tier"] and stage == 3 else None, **MODELS[model])
    words = " ".join(f"{k} {v}" for k, v in row.items())
    if not same(got.bits, want.bits, words):
        note(got.err[-600:])
        continue
    as_planned(got, words)
    far = [abs(float.fromhex(a) / float.fromhex(b) - 1) for a, b in zip(got.losses, whole.losses)]
    ok(max(far) <= NEAR[row["precision"]], f"without tiles: {max(far):.1e}")


def unit(ranks, *tensors):
    """Bytes in bf16 of what is gathered at a time: tensors begin on 64, shards of the ranks on 256."""
    sizes = [-(-2 * n // 64) * 64 for n in tensors[:-1]] + [2 * tensors[-1]]
    return -(-sum(sizes) // (256 * ranks)) * 256 * ranks


# What passes through is two tiles of the widest product: 1/N of its bytes. Gradients of them wait in staging likewise.
LARGE = dict(ranks=None, dry_run=True, hidden=512, heads=8, seq=8, batch=1, precision="bf16")
C, RANKS = 512, 4
for tile in (2, 4):
    two = unit(RANKS, C, C, 4 * C * C // tile, 4 * C // tile) + unit(RANKS, 4 * C * C // tile, 4 * C // tile)
    for flags in (dict(world_size=RANKS, stage=3), dict(world_size=RANKS, stage=3, offload_optimizer="cpu", offload_param="cpu")):
        rank = train(layers=6, tile=tile, **flags, **LARGE).report["ranks"][0]
        most, kept = rank["planned_most_bytes"], rank["planned_persistent_bytes"]
        same(most["gathered"], two, f"--tile {tile}: {two} bytes pass through, {flags}")
        staged = most["grad"] - kept["grad"] - (0 if "offload_param" in flags else 4 * 256 * C // RANKS)  # the tied embedding's sum
        ok(two <= staged <= two * 33 / 32, f"and as many of gradients, and a little: {staged}")
V, C = 16384, 64
for tile in (4, 8):  # two of two pieces are all of it: it stays whole
    two, sums = 2 * unit(RANKS, V * C // tile), 4 * V * C // RANKS
    for flags in (dict(), dict(arch="llama", kv_heads=8)):
        plan = train(layers=2, tile=tile, world_size=RANKS, stage=3, vocab=V, **{**LARGE, "hidden": C}, **flags).report["ranks"][0]
        most, kept = plan["planned_most_bytes"], plan["planned_persistent_bytes"]
        same(most["gathered"], two, f"--tile {tile} of {V} entries, {flags}: {two} bytes pass through")
        staged = most["grad"] - kept["grad"] - (0 if flags else sums)
        ok(two <= staged <= two * 33 / 32, f"and as many of gradients, and a little: {staged}")

# Files have whole tensors under their names; any number of tiles reads those of another.
folders = {}
for name, flags in (("whole", dict(stage=1)), ("four", dict(stage=3, tile=4)), ("four flat", dict(stage=0, tile=4))):
    folders[name] = path(name)
    run = train(ranks=2, save=folders[name], export=path(name + ".safetensors"), **flags, **SHAPE)
    same(run.code, 0, f"saves: {name}") or note(run.err[-600:])
state = os.path.join("step-00000003", "state.safetensors")
same(contents(os.path.join(folders["four"], state)), contents(os.path.join(folders["four flat"], state)), "a state is the same at any stage")
LATER = {**SHAPE, "steps": 5}
for name in ("whole", "four"):
    runs = [logged(**{"ranks": 2, **flags}, resume=folders[name], **LATER) for flags in
            (dict(stage=0), dict(stage=3, tile=4), dict(stage=2, tile=2), dict(stage=1, tile=2, tp=2, ranks=4))]
    far = [abs(float.fromhex(a) / float.fromhex(b) - 1) for run in runs[1:] for a, b in zip(run.losses or [], runs[0].losses)]
    ok(len(far) == 6 and max(far) <= 1e-6, f"resumed from {name}, with other tiles: {far}") or \
        note([run.err[-300:] for run in runs])
for model, flags in MODELS.items():
    files = [path(f"{model} {n}.safetensors") for n in range(2)]
    train(export=files[0], **flags)
    for mesh in (dict(stage=3, tile=4), dict(tp=2, tile=2)):
        run = train(resume=files[0], export=files[1], ranks=2, lr=0, **mesh, **flags)
        ok(run.code == 0 and contents(files[0]) == contents(files[1]), f"{model}: a model goes through tiles as it was") or note(run.err[-600:])
for flags in (dict(stage=3), dict(stage=2, accumulate=2, **MODELS["llama"]), dict(tp=2)):
    run = train(**{**SHAPE, **flags}, ranks=2, tile=4, prove=True)
    same(run.code, 0, "--prove finds nothing") or note(run.err[-600:])

# The plan proposes tiles where nothing else is enough; each is taken at its word, and fewer do not fit.
TIGHT = {**LARGE, **dict(layers=1, world_size=64, stage=3, recompute="full", bucket_bytes=8192)}
for tight in ({**TIGHT, "hidden": 64, "vocab": 65536}, TIGHT):
    need, least = (train(tile=tile, **tight).report["ranks"][0]["planned_reserved_bytes"] for tile in (None, 8))
    run = train(memory_limit=least, **tight)
    tiles = [choice["tile"] for choice in run.report["would_fit"]]
    if ok(run.code == 4 and least < need and tiles and 1 < tiles[0] <= 8 and f"--tile {tiles[0]}" in run.out, f"{least} of {need} bytes: --tile {tiles}"):
        same([train(memory_limit=least, tile=tile, **tight).code for tile in (tiles[0], tiles[0] // 2)], [0, 4], "which fits, and fewer do not")
found = [train(find_max="batch", memory_limit=need, tile=tile, **{**TIGHT, "batch": None}).report["find_max"]["value"] for tile in (None, 8)]
ok(0 < found[0] < found[1], f"--find-max knows them: {found} sequences")
lines = [train(flops=1e12, bandwidth=1e9, tile=tile, **{**TIGHT, "recompute": kept}).report["timeline"] for tile, kept in
         ((None, "none"), (4, "none"), (4, "full"))]
names = {kind: [event["unit"] for event in lines[1]["events"] if event["kind"] == kind] for kind in ("gather", "forward", "reduce")}
ok(all(names[kind].count(f"h.0.fc.{t}") == n for kind, n in (("gather", 2), ("forward", 1), ("reduce", 1)) for t in range(4)), "the timeline has each tile")
again = [sum(event["kind"] == "gather" and ".fc." in event["unit"] for event in line["events"]) for line in lines]
same(again, [0, 8, 12], "recomputation gathers them once more")
same(lines[1]["flops"] - lines[0]["flops"], 2 * 8 * 512 * 256, "and the products are the same, but that the head multiplies once more")
same(sum(name.startswith("wte.") for name in names["gather"]), 4 + 4 + 3, "the embedding has each tile of the vocabulary, the head has it twice, the last at once")

for words, flags, needle in (("no divisor", dict(tile=5), "nearest below that fit are --tile 4"), ("of keys", dict(tile=16, **MODELS["llama"]), "--tile 12"),
                             ("of a tensor rank", dict(tile=16, tp=2, ranks=2), "--tile 12"), ("of the vocabulary", dict(tile=512, hidden=512), "--tile 256"),
                             ("none", dict(tile=0), "--tile"),
                             ("too many", dict(tile=49), "--tile 48"), ("beyond counting", dict(tile=1 << 40), "--tile")):
    run = train(**{**SHAPE, **flags})
    ok(run.code == 2 and needle in run.err and "--tile" in run.err, f"{words}: {run.err.strip()[-140:]}") or note(f"{run.code} {run.err}")
done()
