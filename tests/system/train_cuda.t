#!/usr/bin/env python3
"""zr-train --backend cuda, on the emulated driver, which runs the card's kernels: what it computes at each stage beside the
processor's losses, its bytes beside the plan, and checkpoints that both read. More of it in tests/long/soak_train_cuda.t.
`train_cuda.t short`, for mutants, has the most different runs alone."""
import json
import os
import shlex
import subprocess
import sys

sys.path.insert(0, "tests/support")
from pairs import optimizers
from cuda_train import EMULATOR, FP32, card_of, LLAMA, SHAPE, near, on_card, on_host, tokens, went_well
from pairs import ALL_ROWS
from saves import contents
from zrtest import HANG, ZR_TRAIN, arguments, done, mpi_missing, note, ok, path, same, skip, token_shard

# Most runs are small: the emulated card computes whole tiles. These are odd, and wider than a head.
WIDE = dict(hidden=12, seq=5, batch=2)
# What is trained, and the stages that have to agree to the last bit.
CASES = (
    ("GPT-2", dict(steps=2, **WIDE), FP32, (0, 1, 2, 3) if ALL_ROWS else (0, 3)),
    ("LLaMA", dict(steps=2, **LLAMA, **{**WIDE, "hidden": 16}), FP32, (0, 3) if ALL_ROWS else (3,)),
    ("two ranks on one card", dict(ranks=2, steps=2), FP32, (1, 3)),
    ("frozen tensors", dict(ranks=2, steps=2, freeze=["wte.*", "h.0.*.bias", "h.0.ln_?.weight", "h.1.mlp.*"]), FP32, (0, 3) if ALL_ROWS else (3,)),
    ("dropout and an average", dict(ranks=2, steps=2, layers=1, accumulate=2, dropout=0.25, attention_dropout=0.2, ema=0.5, eval_every=2, noise_scale=0.5), FP32, (0, 3) if ALL_ROWS else (3,)),
    ("adapters", dict(ranks=2, steps=2, lora="4:*"), FP32, (1, 3) if ALL_ROWS else (3,)),
    ("adapters of LLaMA, bf16", dict(ranks=2, steps=2, precision="bf16", lora="4:*proj*", layers=1, **LLAMA), 2e-3, (0, 3) if ALL_ROWS else (3,)),
    ("over NCCL, a card each", dict(ranks=2, steps=2, layers=1, comm="nccl", deterministic=True), FP32, (0, 1, 2, 3) if ALL_ROWS else (3,)),
    ("tensor parallel", dict(ranks=4, tp=2, sequence_parallel=True, seq=6, steps=2, layers=1), FP32, (0,)),
    *([("groups over NCCL", dict(ranks=2, groups=2, steps=2, layers=1, comm="nccl", deterministic=True, outer="diloco:1"), FP32, (1,))] if ALL_ROWS else []),
    ("a pipeline over NCCL", dict(ranks=2, pp=2, accumulate=2, steps=2, comm="nccl", deterministic=True), FP32, (1,)),
    ("an asynchronous pipeline over NCCL", dict(ranks=2, pp=2, accumulate=2, steps=4, layers=1, comm="nccl", deterministic=True, schedule="2bw"), FP32, (1,)),
    ("bf16, attention on tensor cores, micro-batches, recomputation",
     dict(precision="bf16", hidden=64, heads=1, seq=17, layers=1, accumulate=2, recompute="full", steps=2), 2e-3, (2, 0) if ALL_ROWS else (2,)),
    ("fp8", dict(precision="fp8", hidden=32, heads=2, seq=16, batch=1, layers=1, accumulate=2, steps=2), 2e-3, (3, 0) if ALL_ROWS else (3,)),
    ("fp8, LLaMA, tensor parallel",
     dict(precision="fp8", arch="llama", heads=2, kv_heads=2, hidden=32, ffn=64, ranks=2, tp=2, seq=16, batch=1, layers=1, steps=2), 2e-3, (0,)),
)
if not mpi_missing():  # shards of three pieces
    CASES += (("by MPI, through this machine's memory", dict(ranks=2, steps=2, layers=1, hidden=20, bucket_bytes=4096, comm="mpi"), FP32, (0, 3) if ALL_ROWS else (3,)),
              ("tensor parallel by MPI", dict(ranks=4, tp=2, seq=6, steps=2, layers=1, comm="mpi"), FP32, (1,)))
SMALL = {"ZR_EMULATOR_GRANULARITY": "4096"}  # rings of a group in other granules than the world's
SHORT = sys.argv[1:] == ["short"]
TINY = dict(layers=1, hidden=4, heads=1, seq=3, batch=1, steps=2)
if SHORT:
    SHAPE.update(WIDE)
    CASES = (("GPT-2", dict(steps=2), FP32, (3,)), ("two ranks on one card", dict(ranks=2, steps=2, layers=1), FP32, (1,)),
             ("tensor parallel", dict(ranks=4, tp=2, seq=6, steps=2, layers=1), FP32, (0,)),
             ("over NCCL", dict(ranks=2, steps=2, layers=1, comm="nccl", deterministic=True), FP32, (1,)),
             ("by MPI", dict(ranks=2, steps=2, layers=1, hidden=20, bucket_bytes=4096, comm="mpi"), FP32, (3,)))
for words, flags, tolerance, stages in CASES:
    host = on_host(**{name: flag for name, flag in flags.items() if name not in ("comm", "deterministic")})
    first = on_card(stage=stages[0], **{**flags, "comm": "local"}) if "comm" in flags and "pp" not in flags else None
    for stage in stages:
        run = on_card(SMALL if "tp" in flags else None, stage=stage, **flags)
        if not went_well(run, f"{words}, stage {stage}", flags):
            continue
        near(run, host, tolerance, f"{words}, stage {stage}")
        ok("matrix products use " in run.err, f"{words}, stage {stage}: who makes the products is said") or note(run.err)
        ok(all(a == b or abs(a / b - 1) < 1e-4 for a, b in zip(sum(run.noise, []), sum(host.noise, []))), f"{words}, stage {stage}: the noise scale is the processor's") if "noise_scale" in flags else None
        same(run.bits, (first or run).bits, f"{words}, stage {stage}: the bits of {'--comm local' if 'comm' in flags and 'pp' not in flags else f'stage {stages[0]}'}")
        first = first or run

# ---- zr-train eval
few = token_shard([at * at % 23 for at in range(41)], "few.bin")
same(on_host(save=path("evaluated"), steps=1).code, 0, "a checkpoint")
line = [ZR_TRAIN, "eval", few, "--resume", path("evaluated"), "--stride", "2", "--json", "-", *arguments(**{key: SHAPE[key] for key in ("vocab", "layers", "hidden", "heads", "seq", "threads")})]
got = [subprocess.run([*line, *words], env={**os.environ, **environment}, capture_output=True, text=True) for words, environment in (([], {}), (["--backend", "cuda"], card_of({})))]
losses = [json.loads(run.stdout)["loss"] for run in got if run.returncode == 0]
ok(len(losses) == 2 and abs(losses[0] / losses[1] - 1) < FP32, f"zr-train eval: the processor's loss {losses}") or note(got[1].stderr)

# Models of --model: windows, norms of heads, a scale of the scores, layer norms, a part of each head that rotates.
ROOT = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=13, vocab_size=24)
FAMILIES = (("gpt2", dict(n_embd=16, n_head=2, n_layer=2, n_positions=6, vocab_size=24, scale_attn_by_inverse_layer_idx=True)),
            ("qwen3", dict(ROOT, num_key_value_heads=1, head_dim=8, use_sliding_window=True, sliding_window=3, max_window_layers=1)),
            ("gemma", dict(ROOT, num_key_value_heads=1, head_dim=8)), ("gpt_neox", dict(ROOT, rotary_pct=0.5)),
            ("gemma3_text", dict(ROOT, num_key_value_heads=1, head_dim=8, sliding_window=3, sliding_window_pattern=2, query_pre_attn_scalar=5)))
for family, config in () if SHORT else FAMILIES:
    os.mkdir(path(family))
    with open(path(f"{family}/config.json"), "w") as file:
        json.dump(dict(config, model_type=family), file)
    model = dict(model=path(family), steps=2, seq=5, vocab=None, layers=None, hidden=None, heads=None)
    near(on_card(**model), on_host(**model), FP32, f"a {family}")

# Two-byte parameters without masters: saved, taken up at another stage and saved again.
folders, frozen = [path(name) for name in ("frozen", "frozen-again")], dict(precision="bf16", freeze=["wte.*", "h.0.*"], ranks=2, steps=2)
for stage, resume, save in ((1, None, folders[0]), (3, folders[0], folders[1])):
    run = on_card(stage=stage, resume=resume, save=save, **frozen)
    ok(run.code == 0, f"frozen bf16 tensors, saved at stage {stage}") or note(run.err)
states = [os.path.join(folder, "step-00000002", "state.safetensors") for folder in folders]
ok(all(map(os.path.exists, states)) and contents(states[0]) == contents(states[1]), "the same bytes")

if not SHORT:  # what follows launches the same kernels in the same streams
    os.environ["ZR_EMULATOR_RACES"] = "0"
# fp8 on a card that has none.
run = on_card({"ZR_EMULATOR_CAPABILITY": "80"}, precision="fp8", hidden=32, seq=16)
ok(run.code == 2 and "Emulated GPU has 8.0; use --precision bf16" in run.err, "a card without fp8 is named") or note(run.err)

# Nothing is kept that no kernel of a card reads: attention's probabilities.
for model in ({}, {**LLAMA, "hidden": 8})[:1 if SHORT else None]:
    none, selective = (on_card(recompute=recompute, **{**TINY, **model}) for recompute in ("none", "selective"))
    if went_well(none, "nothing recomputed") and went_well(selective, "probabilities recomputed"):
        same(*(run.report["ranks"][0]["peak_bytes"]["activation"] for run in (none, selective)), "no bytes are kept for probabilities")
        same(none.bits, selective.bits, "and the bits are equal")

# The head in chunks of two rows: the losses of all at once, and gradients whose parts are not rounded one by one.
for words, flags in (("bf16, onto other micro-batches", dict(precision="bf16", accumulate=2, reduce="once", ranks=2, stage=1, layers=1)),
                     ("fp32, in tiles", dict(tile=2)), ("fp16", dict(precision="fp16", accumulate=2)))[:1 if SHORT else None]:
    whole, chunks = (on_card(steps=2, **WIDE, **flags, **more) for more in ({}, dict(logits_bytes=256)))
    if went_well(chunks, f"the head in chunks, {words}", flags):
        off = [max(abs(a - b) / b for a, b in zip(*pair)) for pair in ((chunks.report["loss"], whole.report["loss"]), (chunks.norms, whole.norms))]
        same(chunks.losses[0], whole.losses[0], f"the head in chunks, {words}: the first loss")
        ok(max(off) <= 1e-6, f"the head in chunks, {words}: losses and norms of all rows at once ({off[0]:.1e}, {off[1]:.1e})")

# Steps as graphs, with what comes between steps, which uses the contiguous pool of checkpoints too; another loss scale makes another
# graph. What graphs are at other stages is in train_streams.t.
for words, graphs, flags in (
        ("fp16, whose loss scale changes", 4, {**TINY, "steps": 6, "precision": "fp16", "loss_scale_window": 2}),
        ("two ranks, micro-batches, checkpoints, SGD, dropout, an average, evaluations and saves", 2,
         {**TINY, **LLAMA, "hidden": 8, "dropout": 0.25, "ema": 0.5, "ranks": 2, "steps": 4, "accumulate": 2, "recompute": "full", "stage": 3, "optimizer": "sgd", "eval_every": 2, "save_every": 3}),
)[:1 if SHORT else None]:
    runs = [on_card(**flags, **more, **({"save": path(f"{words} {len(more)}")} if "save_every" in flags else {}))
            for more in ({}, dict(cuda_graph=True))]
    if went_well(runs[1], f"graphs, {words}"):
        same(runs[1].bits, runs[0].bits, f"graphs, {words}: equal losses")
        same(runs[1].report["val_loss"], runs[0].report["val_loss"], f"graphs, {words}: equal losses of the validation")
        same({rank["graph_steps"] for rank in runs[1].report["ranks"]}, {graphs}, f"graphs, {words}: so many steps are graphs")

# A driver that loads a kernel at its first launch has that launch wait for the context: not where ranks share the card.
def loads(name, environment=None, **flags):
    run = on_card({"ZR_EMULATOR_WAITS": path(name), **(environment or {})}, **{**TINY, **flags})
    ok(run.code == 0, f"{name}: trains") or note(run.err[-600:])
    with open(path(name), encoding="utf-8") as file:
        return file.read().count(" cuLaunchKernel ")
ok(loads("alone") > 0, "a rank that is alone loads its kernels as it goes")
same(loads("shared", ranks=2), 0, "two ranks on one card load them before")
if not SHORT:
    ok(loads("own", ranks=2, comm="nccl", deterministic=True) > 0, "two ranks with a card each do not")
    same(loads("asked", {"CUDA_MODULE_LOADING": "EAGER"}), 0, "nor does a rank that is told to")
    ok(loads("told", {"CUDA_MODULE_LOADING": "LAZY"}, ranks=2) > 0, "who sets it has it so")

# Gradients of micro-batches that kernels add where they make them, beside those that the ranks add up: each of them once.
for run_on in (on_host, on_card)[:1 if SHORT else None]:
    each, once = (run_on(ranks=2, stage=1, batch=1, accumulate=3, steps=2, layers=1, reduce=when) for when in ("each", "once"))
    near(once, each, FP32, f"--reduce once {'on the host' if run_on is on_host else 'on a card'}, beside each")

# Beside one dense rank of the processor: what is proved, and what differs by more than nothing is named.
for flags in (dict(ranks=2, stage=3), dict(stage=1, precision="bf16"))[:1 if SHORT else None]:
    proved = on_card(prove=True, **flags, **TINY)
    ok(proved.code == 0 and "proved: beside one dense rank" in proved.err, f"--prove {flags} finds nothing") or note(proved.err[-600:])
wrong = on_card(prove=True, tolerance=1e-9, **TINY)
ok(wrong.code == 1 and "--prove: after step 1" in wrong.err and "(unit " in wrong.err,
   f"--prove names a tensor that differs by rounding: {wrong.err.strip()[-200:]}")
# What is picked is what a card can do: of four stages, no pipeline on one card, and no tensor ranks in a graph.
picked = on_card(zero_r="auto", memory_limit="1GB", ranks=2, stage=None, cuda_graph=True, **{**TINY, "layers": 2, "heads": 2})
ok(picked.code == 0 and "(taken)" in picked.out and "by 4 plans" in picked.out and "--pp 1 --stage 3" in picked.out,
   "--zero-r auto takes one of four") or note(picked.out[:900] + picked.err[-600:])

for kind in optimizers():
    runs = [run(steps=2, ranks=2, stage=2, layers=1, optimizer=kind) for run in (on_card, on_host)]
    near(*runs, FP32, f"--optimizer {kind}") if ok(all(run.code == 0 for run in runs), f"{kind} on a card and on the host") else note(runs[0].err)

# Saved by the one and resumed by the other, each going on as it would have itself.
card = on_card(steps=1 if SHORT else 2, save=path("card-run"), sample=3, eval_every=2, export=path("model.safetensors"))
host = on_host(steps=1 if SHORT else 2, save=path("host-run"), sample=3, eval_every=2)
ok(card.code == 0 and host.code == 0, "both save, validate and sample") or note(card.err + host.err)
near(card, host, FP32, "until then")
losses = [run.report["val_loss"] for run in (card, host)]
ok(abs(losses[0] - losses[1]) < 1e-5, f"both validate on the same windows: {losses}")
for words, start in (("a card's checkpoint", "card-run"), ("the processor's checkpoint", "host-run"), ("a model", "model.safetensors")):
    runs = [run(steps=2 if SHORT else 3, resume=path(start)) for run in (on_card, on_host)]
    if ok(all(run.code == 0 for run in runs), f"{words}: both go on from it"):
        near(*runs, FP32, words)
        same("matrix products of the checkpoint used" in runs[0].err + runs[1].err, start == "card-run", f"{words}: who else made its products is said if it says who")
    else:
        note(runs[0].err + runs[1].err)

# The library's algorithm of a product depends on the card and its version: others are said.
OTHERS = "matrix products of the checkpoint used cuBLASLt 13.0.2 on Emulated GPU"
for words, environment, flags, said in (("the same library", {}, {}, False), ("another library", {"ZR_EMULATOR_CUBLASLT": "130100"}, {}, True),
                                        ("another library", {"ZR_EMULATOR_CUBLASLT": "130100"}, {"deterministic": True}, True)):
    run = on_card(environment, steps=3, resume=path("card-run"), **flags)
    same((run.code, OTHERS in run.err, "this run uses cuBLASLt 13.1.0 on Emulated GPU" in run.err, "--deterministic makes resumed" in run.err),
         (0, said, said, bool(flags)), f"resumed with {words}{', --deterministic' if flags else ''}") or note(run.err)

if SHORT:
    done()
# Two "machines" of one rank each: mpirun starts them, and MPI carries what is said before NCCL is there.
if mpi_missing():
    skip(mpi_missing())
else:
    flags = dict(steps=2, layers=1, stage=2, seed=11)
    line = shlex.join([ZR_TRAIN, *arguments(**{"data": tokens(), "backend": "cuda", **SHAPE, **flags}, comm="nccl", deterministic=True,
                                            json=path("far.json"))])
    here = {"LD_LIBRARY_PATH": EMULATOR, "ZR_CONF": "kernels:emulated", "ZR_EMULATOR_SHARED": path("card"),
            **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")}
    def machine(line):
        return "export OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0; exec " + line + " --device $OMPI_COMM_WORLD_RANK"
    got = subprocess.run(["mpirun", "--oversubscribe", "-n", "2", "sh", "-c", machine(line)], env={**os.environ, **here}, capture_output=True,
                         text=True, timeout=HANG)
    if same(got.returncode, 0, "NCCL on two machines, by mpirun") or note(got.stderr[-1500:]):
        with open(path("far.json"), encoding="utf-8") as file:
            same(json.load(file)["loss_hex"], on_card(ranks=2, **flags).losses, "with the losses of --comm local")
    ok("products differ" not in got.stderr, "by one library") or note(got.stderr[-1500:])
    # A library of another version on the second machine may add a product up in another order.
    for words, line, code, said in (
            ("is said", line.replace(" --deterministic", ""), 0, "products differ between ranks in their last bits: they are made by {} on rank 0, and by {} on rank 1"),
            ("is refused with --deterministic", line, 2, "same card and version of cuBLASLt on every rank: rank 0 has {}, rank 1 has {}")):
        got = subprocess.run(["mpirun", "--oversubscribe", "-n", "2", "sh", "-c", "export ZR_EMULATOR_CUBLASLT=13010$OMPI_COMM_WORLD_RANK; " + machine(line)],
                             env={**os.environ, **here}, capture_output=True, text=True, timeout=HANG)
        cards = [f"cuBLASLt 13.1.{rank} on Emulated GPU (compute capability 9.0)" for rank in (0, 1)]
        same((got.returncode, said.format(*cards) in got.stderr), (code, True), f"another version of cuBLASLt {words}") or note(got.stderr[-1500:])
# What cannot be, in words. The emulated driver takes none of nvcc's kernels, if the build has them.
nowhere = {"LD_LIBRARY_PATH": "", "ZR_CONF": ""}
for words, code, environment, flags in (
        ("libcuda.so.1", 2, nowhere, {}),
        ("kernels", 2, {"ZR_CONF": ""}, {}),
        ("no CUDA device 7", 2, {}, dict(device=7)),
        ("no CUDA device 2", 2, {}, dict(ranks=2, comm="nccl", device=1)),
        ("--comm nccl", 2, {}, dict(ranks=2, pp=2)),
        ("--cuda-graph", 2, {}, dict(cuda_graph=True, ranks=2, tp=2)),
        ("--cuda-graph", 2, {}, dict(cuda_graph=True, ranks=2, comm="nccl")),
        ("--cuda-graph", 2, {}, dict(cuda_graph=True, backend="host")),
        ("device 0 has 8,388,608", 4, {"ZR_EMULATOR_MEMORY": str(8 << 20)}, dict(hidden=768, heads=8)),
):
    run = on_card(environment, **flags)
    ok(run.code == code and words in run.err, f"refused with {code} and `{words}`: {run.err.strip().splitlines()[-1][-150:] if run.err.strip() else ''}") or \
        note(f"{run.code}\n{run.err}")
done()
