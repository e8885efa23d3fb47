#!/usr/bin/env python3
"""Parameter groups, frozen tensors and adapters (LoRA): the same bits at every stage and placement, what is frozen keeps its
values and takes no optimizer state, plans that are what is measured, checkpoints taken up at another stage, PEFT's names."""
import json
import os
import sys

sys.path.insert(0, "tests/support")
from pairs import ALL_ROWS, logged, pairwise
from saves import contents, read_checkpoint, read_safetensors, step_folder
from zrtest import PLANNED_TAGS, done, note, ok, path, same, start_quickly, train

start_quickly(fp32_alone=True)
GPT2 = dict(layers=6, hidden=24, heads=2, seq=11, batch=2, steps=3, clip=0.5, eval_every=0)
LLAMA = {**GPT2, "arch": "llama", "kv_heads": 1, "ffn": 40}
FREEZE = dict(freeze=["w?e.weight", "h.1.*", "h.2.mlp.*", "*.ln_2.*"])
LORA = dict(lora="4")
KINDS = (("frozen tensors", GPT2, FREEZE), ("adapters", GPT2, LORA),
         ("adapters of LLaMA", LLAMA, dict(lora="3:*proj*", lora_alpha=5)), ("frozen tensors of LLaMA", LLAMA, dict(freeze=["model.layers.?.mlp.*", "*norm*"])))


def planned(run, words):
    pairs = [(rank["planned_bytes"][tag], rank["peak_bytes"][tag]) for rank in run.report["ranks"] for tag in PLANNED_TAGS] if run.report else [(0, 1)]
    ok(all(plan == peak for plan, peak in pairs), f"{words}: the plan is what was measured") or note(f"{pairs}\n{run.err[-800:]}")


def state_bytes(run):
    return {tag: run.report["ranks"][0]["persistent_bytes"][tag] for tag in ("param", "grad", "optimizer", "master")}


# ---- Stages, micro-batches, precisions, recomputation, pipelines, offload
DISK = "nvme:" + path("disk")
os.mkdir(path("disk"))
PLACED = ((1, {}), (2, dict(recompute="full")), (3, dict(recompute="selective")), (3, dict(offload_optimizer="cpu")),
          (3, dict(offload_optimizer="cpu", offload_param="cpu", speculative_update="1GiB")), (3, dict(offload_optimizer=DISK, offload_param=DISK, force=True)))
PRECISIONS = ("fp32", "bf16", "fp16")
chosen = [(row["kind"], row["precision"], row["placed"]) for row in pairwise(1, kind=range(len(KINDS)), precision=PRECISIONS, placed=range(len(PLACED)))]
for kind, (words, shape, how) in enumerate(KINDS):
    for precision in PRECISIONS:
        accumulate = 1 if precision == "bf16" else 3
        common = dict(ranks=3, precision=precision, accumulate=accumulate, **shape, **how, **(dict(loss_scale_power=6) if precision == "fp16" else {}))
        want = logged(stage=0, **common)
        ok(want.code == 0 and len(set(want.losses)) == shape["steps"], f"{words}, {precision}: stage 0 trains") or note(want.err[-1500:])
        planned(want, f"{words}, {precision}, stage 0")
        for placed, (stage, more) in enumerate(PLACED):
            if not ALL_ROWS and (kind, precision, placed) not in chosen:
                continue
            got = logged(stage=stage, **{**common, **more})
            same(got.bits, want.bits, f"{words}, {precision}, stage {stage} {more}: the same bits") or note(got.err[-1500:])
            planned(got, f"{words}, {precision}, stage {stage} {more}")
            if stage == 3 and got.report:
                ok(got.report["ranks"][0]["peak_bytes"]["gathered"] > 0, "and parameters are gathered")
    for more in (dict(pp=3, accumulate=3), dict(pp=3, accumulate=3, schedule="gpipe")):
        alone = logged(ranks=1, **{**shape, **how, "accumulate": 3})
        got = logged(ranks=3, **{**shape, **how, **more})
        near = list(zip(got.report["loss"], alone.report["loss"])) if got.report and alone.report else []
        ok(len(near) == 3 and all(abs(a - b) < 1e-5 for a, b in near), f"{words} {more}: the losses of one rank") or note(f"{near} {got.err[-1500:]}")
    for more in (dict(stage=3, precision="fp32"), dict(stage=1, precision="bf16", offload_optimizer="cpu"), dict(pp=3, precision="fp32")):
        run = train(ranks=3, prove=True, **{**shape, **how, **more})
        ok(run.code == 0, f"{words} {more}: --prove agrees") or note(run.err[-1500:])
tensor = train(ranks=2, tp=2, prove=True, **{**GPT2, **FREEZE})
ok(tensor.code == 0, "frozen tensors on two tensor ranks: --prove agrees") or note(tensor.err[-1500:])

# ---- What is frozen
for words, shape, how in KINDS:
    plain, frozen = (train(ranks=1, precision="bf16", **{**shape, **more}) for more in ({}, how))
    if not (plain.report and frozen.report):
        ok(False, f"{words}: both run") or note(frozen.err[-1500:])
        continue
    before, after = state_bytes(plain), state_bytes(frozen)
    ok(all(after[tag] < before[tag] for tag in ("grad", "optimizer", "master")), f"{words}: fewer bytes of gradients, state and masters: {before} {after}")
    folders = {steps: path(f"{words.replace(' ', '-')}-{steps}") for steps in (1, 3)}
    for precision in ("fp32", "bf16"):
        for steps, folder in folders.items():
            run = train(ranks=2, stage=3 if steps == 3 else 0, precision=precision, save=folder + precision, warmup=0, **{**shape, **how, "steps": steps})
            ok(run.code == 0, f"{words}, {precision}: {steps} steps, saved") or note(run.err[-1500:])
        (_, first), (_, last) = (read_checkpoint(step_folder(folder + precision, steps)) for steps, folder in folders.items())
        trained = set(first["momentum"])
        kept = {name: values for name, values in first["parameter"].items() if name not in trained}
        ok(trained and kept and set(first["variance"]) == trained, f"{words}, {precision}: {len(kept)} tensors have no state, {len(trained)} have it")
        same({name: last["parameter"][name] for name in kept}, kept, f"{words}, {precision}: and keep their values, to the bit")
        moved = [name for name in trained if last["parameter"][name] != first["parameter"][name]]
        ok(len(moved) >= len(trained) * 3 // 4, f"{words}, {precision}: {len(moved)} of the others move")

# ---- Checkpoints
for words, shape, how in KINDS:
    for precision, first, second in (("fp32", 3, 1), ("bf16", 0, 3)):
        folder, common = path(f"resumed-{words.replace(' ', '-')}-{precision}"), dict(ranks=2, precision=precision, **{**shape, **how, "steps": 5})
        whole = logged(stage=0, **common)
        train(stage=first, save=folder, save_every=2, **common)
        run = logged(stage=second, resume=step_folder(folder, 2), **common)
        same(run.bits, whole.bits[2:], f"{words}, {precision}: saved at stage {first}, resumed at {second}") or note(run.err[-1500:])
        run = logged(stage=3, offload_optimizer=DISK, offload_param=DISK, force=True, resume=step_folder(folder, 2), **common)
        same(run.bits, whole.bits[2:], "and with all in files") or note(run.err[-1500:])
        again = path(f"again-{words.replace(' ', '-')}-{precision}")
        train(stage=second, resume=folder, save=again, **common)
        name = os.path.join(step_folder("", 5), "state.safetensors")
        same(contents(os.path.join(again, name)), contents(os.path.join(folder, name)), "and saved again: the same bytes")
train(**{**GPT2, "steps": 2}, save=path("plain"))
for words, folder, how, needle in (("without adapters", "resumed-adapters-fp32", {}, "with --lora 4 and --lora-alpha 8; resume with them"),
                                   ("of another alpha", "resumed-adapters-fp32", dict(lora="4", lora_alpha=3), "with --lora 4 and --lora-alpha 8"),
                                   ("of other matrices", "resumed-adapters-fp32", dict(lora="4:*mlp*"), "adapters of other matrices"),
                                   ("with adapters", "plain", LORA, "was saved without --lora"), ("with frozen tensors", "plain", FREEZE, "other frozen tensors")):
    run = train(**{**GPT2, **how, "steps": 9}, resume=path(folder))
    ok(run.code == 3 and needle in run.err, f"a run {words} does not take up the other: {run.err[-200:]}") or note(run.err)

# ---- PEFT
base, out = path("base.safetensors"), path("out")
os.mkdir(out)
plain = train(**{**GPT2, "export": base})
for words, shape, how, prefix, matrices in (("GPT-2", GPT2, LORA, "base_model.model.transformer.h.", {"attn.c_attn": (24, 72), "attn.c_proj": (24, 24)}),
                                            ("LLaMA", LLAMA, dict(lora="3:*.?_proj.*"), "base_model.model.model.layers.",
                                             {"self_attn.q_proj": (24, 24), "self_attn.k_proj": (24, 12), "self_attn.v_proj": (24, 12), "self_attn.o_proj": (24, 24)})):
    rank, file = int(how["lora"].split(":")[0]), os.path.join(out, "adapter_model.safetensors")
    run = train(ranks=2, stage=3, export=file, **{**shape, **how})
    ok(run.code == 0, f"{words}: adapters are exported") or note(run.err[-1500:])
    tensors, metadata = read_safetensors(file)
    want = {}
    for layer in range(6):
        for name, (wide, narrow) in matrices.items():
            want[f"{prefix}{layer}.{name}.lora_A.weight"], want[f"{prefix}{layer}.{name}.lora_B.weight"] = [rank, wide], [narrow, rank]
    same({name: tensor[1] for name, tensor in tensors.items()}, want, f"{words}: PEFT's names and shapes, and nothing else")
    ok(all(any(tensor[2]) for tensor in tensors.values()), f"{words}: A and B have values")
    with open(os.path.join(out, "adapter_config.json")) as config:
        config = json.load(config)
    same((config["peft_type"], config["r"], config["lora_alpha"], config["fan_in_fan_out"], len(config["target_modules"])),
         ("LORA", rank, 2 * rank, words == "GPT-2", 6 * len(matrices)), f"{words}: adapter_config.json says how they are used")
    same(sorted(os.listdir(out)), ["adapter_config.json", "adapter_model.safetensors"], "nothing unfinished stays")
tuned, untuned = (train(resume=base, **{**GPT2, **how, "steps": 1}) for how in (LORA, {}))
same(tuned.losses, untuned.losses, "adapters on a model from a file: its loss first") or note(tuned.err[-1500:])
ok(tuned.code == 0, "which trains")

# ---- The plan of GPT-2 124M
size = dict(params=124e6, precision="bf16", dry_run=True, data=None, steps=None, layers=None, hidden=None, heads=None, seq=None, batch=1)
full, adapted = (train(**{**size, **how}) for how in ({}, dict(lora="8")))
states = [run.report["ranks"][0]["planned_persistent_bytes"]["optimizer"] for run in (full, adapted) if run.report]
ok(len(states) == 2 and states[1] < states[0] / 100, f"rank 8 on the attention of 124M parameters: optimizer state {states} bytes") or note(adapted.err)

limited = dict(layers=8, hidden=256, heads=4, seq=64, batch=8, ranks=2, eval_every=0, freeze=["w?e.weight", "h.1.mlp.c_fc.bias"])
run = train(memory_limit="40MiB", **limited)
ok(run.code == 4 and "What would fit" in run.out and "--tile" not in run.out, "changes that fit a limit have no tiles") or note(run.err[-900:])
run = train(memory_limit="90MiB", zero_r="auto", dry_run=True, **{**limited, "lora": "4", "ranks": 4})
ok(run.code == 0 and "(taken)" in run.out and "--tp 2" not in run.out, "nor has the fastest strategy tensor ranks beside adapters") or note(run.out[-900:] + run.err[-900:])

run, alone = (train(ranks=ranks, pp=ranks, accumulate=2, **{**GPT2, "lora": "4:h.5.*"}) for ranks in (2, 1))
near = list(zip(run.report["loss"], alone.report["loss"])) if run.report and alone.report else []
ok(len(near) == 3 and all(abs(a - b) < 1e-5 for a, b in near), "adapters of the last layer: a pipeline rank that trains nothing") or note(run.err)

# ---- Groups
plain = logged(**GPT2)
same(logged(group=["*:lr=1"], **GPT2).bits, plain.bits, "factors that change nothing")
same(logged(group=["*:lr=0.25", "w?e.weight:lr=0.5", "*ln_*:lr=1", "*.bias:lr=1"], **{**GPT2}).losses != plain.losses, True, "others do")
same(logged(group=["w?e.weight:lr=0.5"], **GPT2).bits, logged(lr_embeddings=0.5, **GPT2).bits, "a group of the embeddings is --lr-embeddings")
same(logged(group=["*:lr=0,decay=1"], **GPT2).losses[:1], plain.losses[:1], "a rate of nothing")
config = path("groups.json")
with open(config, "w") as file:
    json.dump({"parameter_groups": ["w?e.weight:lr=0.5"], "frozen_parameters": ["h.1.*"], "lora": "2:*c_attn*", "lora_alpha": 3}, file)
deepspeed = dict(beta2=0.999, weight_decay=0, clip=0, schedule_lr="constant", warmup=0)
rows = dict(group=["w?e.weight:lr=0.5"], freeze=["h.1.*"], lora="2:*c_attn*", lora_alpha=3)
same(logged(config=config, **GPT2).bits, logged(**{**deepspeed, **GPT2, **rows}).bits, "a file says the same as the options")
for how, code, needle in ((dict(group=["h.9.*:lr=1"]), 2, "no tensor of the model matches 'h.9.*'"), (dict(freeze=["nothing"]), 2, "no tensor of the model matches 'nothing'"),
                          (dict(freeze=["*"]), 2, "leaves no tensor to train"), (dict(lora="4:wte*"), 2, "no matrix of a block matches"),
                          (dict(lora="100"), 2, "give at most 24"), (dict(lora="0"), 2, "not a rank"), (dict(group=["h.*"]), 2, "not a group"),
                          (dict(group=["h.*:rate=1"]), 2, "not a group"), (dict(group=["h.*:lr=x"]), 2, "not a group"), (dict(lora_alpha=2), 2, "requires --lora"),
                          (dict(lora="2", ranks=2, tp=2), 2, "cannot be combined with --tp"), (dict(freeze=["w*"], tile=2), 2, "cannot be combined with --tile"),
                          (dict(group=[f"h.{i}.*:lr={i + 2}" for i in range(6)]), 2, "more than 8 pairs")):
    run = train(**{**GPT2, **how})
    ok(run.code == code and needle in run.err, f"{how}: refused: {run.err.strip()[:150]}") or note(f"{run.code} {run.err[-800:]}")
done()
