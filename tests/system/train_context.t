#!/usr/bin/env python3
"""Context parallelism (--cp) and documents (--mask-documents): losses and norms of one rank that has whole sequences,
on every mesh, bytes as planned, saves that are resumed at another --cp, samples, and what is refused."""
import json
import os
import random
import sys

sys.path.insert(0, "tests/support")
from pairs import logged, most_pairs
from zrtest import done, note, ok, path, same, start_quickly, text_file, token_shard, train

start_quickly(fp32_alone=True)
VOCAB, EOS = 211, 7
rng = random.Random(5)
shard = token_shard([int(VOCAB * rng.random() ** 2) for _ in range(20000)])
SHAPE = dict(data=shard, vocab=VOCAB, layers=2, hidden=48, heads=4, seq=48, batch=2, steps=6, clip=0.5, eval_every=6)
MODELS = {"gpt2": SHAPE, "llama": {**SHAPE, "arch": "llama", "kv_heads": 2, "ffn": 64}}
# A window of 5 tokens in both layers: of a folder with a config.json.
os.mkdir(path("mistral"))
with open(path("mistral/config.json"), "w") as file:
    json.dump(dict(model_type="mistral", vocab_size=VOCAB, num_hidden_layers=2, hidden_size=48, num_attention_heads=4, num_key_value_heads=2,
                   intermediate_size=64, sliding_window=5), file)
MODELS["mistral"] = {**SHAPE, "model": path("mistral"), **dict.fromkeys(("vocab", "layers", "hidden", "heads"))}
DOCUMENTS = {False: {}, True: dict(eos=EOS, mask_documents=True)}
TAGS = ("param", "grad", "optimizer", "master", "gathered", "checkpoint", "activation", "comm", "workspace")
whole = {}


def whole_run(*key):
    model, data, precision, accumulate, documents, dropout = key
    if key not in whole:
        whole[key] = logged(ranks=data, precision=precision, accumulate=accumulate, dropout=dropout, **DOCUMENTS[documents],
                            **MODELS[model])
    return whole[key]


def near(run, other, most, words):
    pairs = [*zip(run.report["loss"], other.report["loss"]), *zip(run.norms, other.norms),
             (run.report["val_loss"], other.report["val_loss"])] if run.report and other.report else []
    worst = max((abs(a - b) / abs(b) for a, b in pairs), default=1)
    ok(len(pairs) == 13 and worst <= most, f"{words}: losses and norms within {worst:.1e}") or note(run.err[-600:])


def as_planned(run, words):
    differ = [(rank["rank"], tag, rank["planned_bytes"][tag], rank["peak_bytes"][tag])
              for rank in run.report["ranks"] for tag in TAGS if rank["planned_bytes"][tag] != rank["peak_bytes"][tag]]
    same(differ, [], f"{words}: every tag of every rank as planned")


# Pairs of everything; then the stages, which have the same bits.
for row in most_pairs(4, model=tuple(MODELS), context=(2, 4), rest=("", "data", "tp", "sp", "pp"), stage=(0, 1, 2, 3),
                      documents=(False, True), precision=("fp32", "bf16"), accumulate=(1, 3),
                      recompute=("none", "full"), dropout=(None, 0.2)):
    data = 2 if row["rest"] == "data" else 1
    mesh = {"tp": dict(tp=2), "sp": dict(tp=2, sequence_parallel=True), "pp": dict(pp=2)}.get(row["rest"], {})
    run = logged(ranks=row["context"] * (2 if row["rest"] else 1), cp=row["context"], **mesh, stage=row["stage"],
                 recompute=row["recompute"], precision=row["precision"], accumulate=row["accumulate"],
                 dropout=row["dropout"], **DOCUMENTS[row["documents"]], **MODELS[row["model"]])
    words = " ".join(f"{k} {v}" for k, v in row.items())
    near(run, whole_run(row["model"], data, row["precision"], row["accumulate"], row["documents"],
                        row["dropout"]),
         1e-5 if row["precision"] == "fp32" else 1e-2, words)
    if run.report:
        as_planned(run, words)
    if row["stage"] == 3 and row["rest"] in ("", "tp", "sp"):
        other = logged(ranks=row["context"] * (2 if row["rest"] else 1), cp=row["context"], **mesh, stage=0,
                       precision=row["precision"], accumulate=row["accumulate"], dropout=row["dropout"],
                       **DOCUMENTS[row["documents"]], **MODELS[row["model"]])
        same(other.bits, run.bits, f"{words}: and the bits of stage 0") or note(other.err[-600:])

# Documents matter; a save at one --cp goes on at another; a sample has the tokens of one rank; --prove agrees.
plain, masked = (whole_run("llama", 1, "fp32", 1, documents, None).report["loss"] for documents in (False, True))
ok(plain[0] != masked[0], "documents change the loss")
folder = path("saved")
run = train(ranks=2, cp=2, stage=2, save=folder, **{**SHAPE, "steps": 4})
same(run.code, 0, "saved at --cp 2") or note(run.err[-600:])
with open(f"{folder}/step-00000004/manifest.json") as file:
    same(json.load(file)["context_ranks"], 2, "as its manifest says")
one, four = (train(resume=folder, ranks=cp, cp=cp, sample=12, temperature=0, **SHAPE) for cp in (1, 4))
ok(one.report and four.report and max(abs(a - b) / a for a, b in zip(one.report["loss"], four.report["loss"])) < 1e-5,
   "and resumed at --cp 4 as on one rank") or note(four.err[-600:])
same(four.report and four.report.get("sample"), one.report and one.report.get("sample"), "with the same sample")
run = train(ranks=4, cp=2, tp=2, stage=3, prove=True, **{**SHAPE, "steps": 3})
same(run.code, 0, "--prove") or note(run.err[-600:])

# Activations are divided, by their formula: every column of a row, for half of the rows.
plans = [train(ranks=None, world_size=cp, dry_run=True, cp=cp, layers=4, hidden=256, heads=8, seq=4096, batch=1,
               recompute="full").report for cp in (1, 4)]
activation = [plan["ranks"][0]["planned_bytes"]["checkpoint"] for plan in plans]
same(activation[0], 4 * activation[1], "checkpoints of 4 context ranks are a quarter each")

for words, flags, needle in (("chunks", dict(ranks=4, cp=4, seq=36), "--seq 40"), ("tiles", dict(ranks=2, cp=2, tile=2), "--tile"),
                             ("ranks", dict(ranks=3, cp=2), "--ranks 4"), ("eos", dict(ranks=1, eos=7), "--mask-documents"),
                             ("documents", dict(ranks=1, mask_documents=True), "--eos"),
                             ("vocabulary", dict(ranks=1, mask_documents=True, eos=VOCAB), "--vocab")):
    run = train(**{**SHAPE, **flags})
    ok(run.code == 2 and needle in run.err, f"refused: {words}") or note(f"{run.code} {run.err[-300:]}")
done()
