#!/usr/bin/env python3
"""Mistakes that parallel training is prone to, each put into a copy of the tree: --prove ends the run and names a tensor."""
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, "tests/support")
from zrtest import arguments, done, note, ok, same, text_file

loader = importlib.machinery.SourceFileLoader("mutants", "tests/mutants/run")
mutants = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
loader.exec_module(mutants)

SHAPE = dict(data=text_file(), layers=4, hidden=32, heads=4, seq=8, batch=2, steps=3, eval_every=0, threads=1, clip=0)
MISTAKES = (
    ("a norm's gradient is not summed over the tensor group", "take_part", "split == ZR_SPLIT_NORM && shape->sequence_parallel",
     "false", dict(ranks=2, tp=2, sequence_parallel=True), r"(ln_|bias|wpe)"),
    ("a tied embedding is summed once", "add_shared", "zr_ticket ticket;", "zr_ticket ticket; if (count) return ZR_OK;", dict(ranks=2, pp=2, accumulate=2), r"wte\.weight"),
    ("a micro-batch is scaled wrongly", "zr_module_pass_backward", "(float)zr_trainer_mean_micro_batches(trainer))",
     "(float)(zr_trainer_mean_micro_batches(trainer) + (trainer->pipelined && action->micro_batch == 1)))",
     dict(ranks=2, pp=2, accumulate=2), r"weight|bias"),
    ("a gathered buffer is stale", "zr_checkpoints_fetch", "return result == ZR_OK ? gather(c, kept) : result;",
     "{ kept->phase = ZR_CHECKPOINT_WHOLE; return result; }", dict(ranks=2, tp=2, recompute="full", partition_activations=True), r"weight|bias"),
    ("and in fp16", "zr_module_pass_backward", "(float)zr_trainer_mean_micro_batches(trainer))",
     "(float)(zr_trainer_mean_micro_batches(trainer) + (trainer->pipelined && action->micro_batch == 1)))",
     dict(ranks=2, pp=2, accumulate=2, precision="fp16", loss_scale_power=6, seq=1), r"weight|bias"),
    ("what ranks add up is not finite", "reduce_scatter", "scale = 1.0f / (float)engine->world", "scale = 1e30f",
     dict(ranks=2, stage=1, precision="fp16", loss_scale_power=6), None),
    ("a send is swapped", "make_ahead", "backward++, ZR_PIPELINE_BACKWARD", "backward++ ^ (ahead == 1), ZR_PIPELINE_BACKWARD", dict(ranks=2, pp=2, accumulate=2), r"weight|bias"))


def prove(tree, flags):
    words, code = tree.make("bin/zr-train")
    if code != 0:
        return code, words[-600:]
    run = subprocess.run([f"{tree.folder}/build/bin/zr-train", *arguments(prove=True, **{**SHAPE, **flags})], capture_output=True, text=True,
                         timeout=100, stdin=subprocess.DEVNULL)
    return run.returncode, run.stderr


with tempfile.TemporaryDirectory() as folder:
    tree, sources = mutants.Tree(folder), mutants.Sources()
    for words, function, text, instead, flags, tensor in MISTAKES:
        code, said = prove(tree, flags)
        ok(code == 0 and "proved: beside one dense rank" in said, f"without it {' '.join(arguments(**flags))} is right") or note(f"{code} {said[-600:]}")
        found, _ = sources.places(mutants.Mutant("", function, "", text, instead))
        same(len(found), 1, f"{function}() has what is to be wrong")
        if len(found) != 1:
            continue
        path, start, end = os.path.join(tree.folder, found[0][0]), *found[0][1:]
        source = open(path).read()
        with open(path, "w") as file:
            file.write(source[:start] + instead + source[end:])
        code, said = prove(tree, flags)
        with open(path, "w") as file:
            file.write(source)
        if tensor is None:
            ok(code == 1 and "step 1 is skipped" in said and "all are finite at 16 times" in said, f"{words}: that it is here alone is said") or \
                note(f"{code} {said[-600:]}")
            continue
        named = re.search(r"--prove: after step 1 (?:the gradient of )?(\S+) \(unit (\S+)\) is on rank (\d)", said)
        ok(code == 1 and named and re.search(tensor, named[1]), f"{words}: --prove names {named and named.group(0)[26:]}") or note(f"{code} {said[-600:]}")
done()
