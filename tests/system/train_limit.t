#!/usr/bin/env python3
"""--memory-limit: a plan above it ends the run before step 1 with exit 4, a table of what does not fit and one of what
would; each line of the latter is taken at its word. --find-max: what it finds fits, and one more does not."""
import json
import os
import re
import resource
import sys

sys.path.insert(0, "tests/support")
from zrtest import done, note, ok, path, same, train

MIB = 1 << 20


def would_fit(out):
    """The options of each choice in the table, without the last line, which raises the limit."""
    table = out.split("What would fit", 1)[1].splitlines()[1:]
    choices = [dict(re.findall(r"--([a-z-]+) (\S+)", line)) for line in table if "--" in line]
    return ([{key.replace("-", "_"): value for key, value in choice.items()} for choice in choices if
             "memory-limit" not in choice], [int(c["memory-limit"]) for c in choices if "memory-limit" in c])


def plan(**shape):
    return train(dry_run=True, **shape).report["ranks"][0]["planned_reserved_bytes"]


SHAPES = [
    dict(layers=4, hidden=128, heads=4, batch=16, seq=64, ranks=4, stage=0),
    dict(layers=8, hidden=192, heads=4, batch=2, seq=32, ranks=3, stage=1),
    dict(layers=4, hidden=128, heads=4, batch=8, seq=64, ranks=1, stage=0),
    dict(layers=6, hidden=128, heads=4, batch=4, seq=64, ranks=2, stage=0, reduce="once", accumulate=2),
    dict(layers=4, hidden=128, heads=4, batch=16, seq=64, ranks=2, stage=3, recompute="full"),
    dict(layers=8, hidden=192, heads=4, batch=2, seq=32, ranks=4, stage=1, reduce="once", accumulate=2),
]
seen = set()
for shape in SHAPES:
    need = plan(**shape)
    run = train(dry_run=True, **shape, memory_limit=need)
    same(run.code, 0, f"a limit of the plan's bytes is enough: {need}")
    same([run.report[key] for key in ("fits", "would_fit")], [True, []], "and said to be")
    for limit in [need - 1, need * 2 // 3, need // 3]:
        run = train(dry_run=True, **shape, memory_limit=limit)
        words = f"{shape['ranks']} ranks, {limit} of {need} bytes"
        if not same(run.code, 4, f"{words}: exit 4") or not ok("What does not fit" in run.out, "with a table"):
            note(run.out + run.err)
            continue
        ok(f"takes {need:,} bytes per rank, but --memory-limit allows {limit:,};" in run.err, "and words, to the byte")
        ok(re.search(r"\n  in granules .* over\n", run.out), "whose last line is over the limit")
        choices, limits = would_fit(run.out)
        told = [{"stage": str(choice["stage"]), "recompute": choice["recompute"], "batch": str(choice["batch"])}
                for choice in run.report["would_fit"]]
        ok(len(told) == len(choices) and all(choice.get(key, told[i][key]) == told[i][key] for i, choice in enumerate(choices)
                                             for key in told[i]), "--json has the same choices")
        same([run.report[key] for key in ("memory_limit_bytes", "planned_reserved_bytes", "fits")], [limit, need, False],
             "and that it does not fit")
        same(len(run.report["ranks"]), shape["ranks"], "with the plan")
        same(limits, [need], "the limit that would do is the plan")
        ok(all(choices.count(choice) == 1 for choice in choices), "nothing is said twice")
        for choice in choices:
            seen |= set(choice)
            same(train(dry_run=True, **{**shape, **choice}, memory_limit=limit).code, 0, f"{choice} fits")
            if "batch" in choice and "layers" not in choice:
                more = {**shape, **choice, "batch": int(choice["batch"]) + 1}
                same(train(dry_run=True, **more, memory_limit=limit).code, 4, "and one sequence more does not")
            if choice.get("stage", "0") > str(shape["stage"] + 1) and "recompute" not in choice:
                lower = {**shape, **choice, "stage": int(choice["stage"]) - 1}
                same(train(dry_run=True, **lower, memory_limit=limit).code, 4, "and the stage below does not")
same(seen, {"stage", "reduce", "recompute", "tile", "batch", "layers"},
     "stages, reduction, recomputation, tiles, batches and layers were all among them")

# The run itself: refused before anything is made; then trained as the table says, within the limit.
shape = SHAPES[0]
limit = plan(**shape) // 2
run = train(**shape, memory_limit=limit, save=path("unused"))
same(run.code, 4, "a run above its limit ends with 4")
same(run.err.count("zr-train:"), 1, "in one line of words, whoever found it")
ok("Byte plan" not in run.out and "What would fit" in run.out, "before any rank has opened, with the table")
ok(not os.path.exists(path("unused")), "and leaves no checkpoint")
ok(run.report and not run.report["fits"] and run.report["would_fit"] and not run.report["ranks"],
   "--json says so, in place of the report of an earlier run")
piped = train(**shape, memory_limit=limit, json="-")
same(json.loads(piped.out)["memory_limit_bytes"], limit, "on stdout too")
for choice in would_fit(run.out)[0][:2]:
    run = train(**{**shape, **choice}, steps=1, eval_every=0, memory_limit=limit)
    if same(run.code, 0, f"it trains with {choice}"):
        rank = run.report["ranks"][0]
        ok(rank["planned_reserved_bytes"] <= limit, "under the limit")
    else:
        note(run.err)

# A limit of exactly the plan's bytes is enough to train in.
for shape in SHAPES[:3]:
    limit = plan(**shape)
    run = train(**shape, steps=1, memory_limit=limit)
    if same(run.code, 0, f"{shape['ranks']} ranks at stage {shape['stage']} train in {limit} bytes") or note(run.err):
        ok(all(rank["planned_reserved_bytes"] <= limit for rank in run.report["ranks"]), "as planned")
        took = [rank["peak_reserved_bytes"] - rank["peak_host_reserved_bytes"] for rank in run.report["ranks"]]
        ok(0 < max(took) <= limit, f"and take {max(took)} of them; records, stacks and heap lie beside")

# Nothing that can be asked for is small enough: said so.
run = train(dry_run=True, layers=1, hidden=512, heads=4, ranks=1, memory_limit=MIB)
same(run.code, 4, "a limit below any plan")
ok("nothing smaller would" in run.err and not would_fit(run.out)[0], "has nothing that would fit")
run = train(dry_run=True, layers=40, hidden=64, heads=4, batch=1, ranks=1, recompute="full", memory_limit="16MiB")
same(run.code, 4, "a model too deep")
choices = would_fit(run.out)[0]
if ok(len(choices) == 1 and "layers" in choices[0], f"is told how deep it may be: {choices}"):
    deeper = {**choices[0], "layers": int(choices[0]["layers"]) + 1}
    base = dict(dry_run=True, hidden=64, heads=4, batch=1, ranks=1, recompute="full", memory_limit="16MiB")
    same(train(**base, **choices[0]).code, 0, "that deep it fits")
    same(train(**base, **deeper).code, 4, "one deeper it does not")

# --find-max, against --dry-run with the number it found and with one more.
for shape in SHAPES[:3]:
    for size in ["batch", "layers"]:
        limit = plan(**shape) * 5 // 4 + 123
        run = train(**{**shape, size: None}, find_max=size, memory_limit=limit, data=None)
        if not same(run.code, 0, f"--find-max {size}, {shape['ranks']} ranks"):
            note(run.err)
            continue
        found = run.report["find_max"]
        value = found["value"]
        same([found["size"], found["memory_limit_bytes"]], [size, limit], "JSON has what was asked for")
        here, beyond = plan(**{**shape, size: value}), plan(**{**shape, size: value + 1})
        same([found["reserved_bytes"], found["one_more_reserved_bytes"]], [here, beyond], "and the plans' bytes")
        ok(here <= limit < beyond, "on both sides of the limit")
        ok(value >= shape[size] and f"--{size} {value} is the largest that fits: its plan takes {here:,} bytes of {limit:,}, "
           f"that of --{size} {value + 1} {beyond:,}\n" in run.out, f"finds {value}, and says it") or note(run.out)
        same(run.report["ranks"][0]["planned_reserved_bytes"], here, "the plan that is printed is the largest's")
# The smallest number of layers of a pipeline: one for each stage, or less beside the embedding and the loss.
for cut, least in (("memory", 2), ("equal", 4)):
    staged = dict(ranks=None, world_size=4, dry_run=True, pp=4, pipeline_cut=cut, hidden=64, heads=4, seq=32, batch=2, vocab=256, data=None)
    for layers in (least, least + 5):
        limit = train(**staged, layers=layers).report["ranks"]
        run = train(**staged, layers=None, find_max="layers", memory_limit=max(rank["planned_reserved_bytes"] for rank in limit))
        ok(run.code == 0 and run.report["find_max"]["value"] >= layers, f"--find-max layers finds {layers} for 4 stages cut by {cut}") or note(run.err)
    ok(train(**staged, layers=None, find_max="layers", memory_limit=MIB).code == 4, "or says that nothing fits")
run = train(layers=1, hidden=4, heads=1, seq=1, batch=None, ranks=1, find_max="batch", memory_limit=10**18)
same(run.code, 0, "a limit above all that can be asked for")
same(run.report and [run.report["find_max"]["value"], run.report["find_max"]["one_more_reserved_bytes"]], [1048576, None],
     "is met by the most")
# So large that the stages below have no addresses, and so deep that a search by whole plans takes minutes of a processor.
deep = dict(layers=None, hidden=65536, heads=64, ranks=None, world_size=1024, stage=3, data=None)
spent = [resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime]
run = train(**deep, find_max="layers", memory_limit=10**12)
spent.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
if same(run.code, 0, "--find-max layers of hundreds of billions of parameters each") or note(run.err):
    value = run.report["find_max"]["value"]
    here = plan(**{**deep, "layers": value})
    spent.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
    beyond = plan(**{**deep, "layers": value + 1})
    ok(here <= 10**12 < beyond, f"finds {value} layers, of {here:,} bytes; one more takes {beyond:,}")
    times = (spent[1] - spent[0]) / (spent[2] - spent[1])
    ok(times < 40, f"takes {times:.1f} times what the plan that it finds takes")
run = train(hidden=512, heads=4, batch=None, find_max="batch", memory_limit=MIB)
same(run.code, 4, "not even 1 fits: exit 4")
ok("not even --batch 1 fits: its plan takes " in run.err, "in these words") or note(run.err)
same(run.report and [run.report[key] for key in ("memory_limit_bytes", "fits")], [MIB, False], "and in --json")

# What it looks for cannot be given too, wherever that stands.
for size, config, named in [("batch", None, "--batch"), ("layers", None, "--layers"),
                            ("batch", {"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu"),
                            ("batch", {"train_batch_size": 8}, "train_batch_size")]:
    flags = {} if config is None else {"config": path("find.json"), size: None}
    if config:
        with open(path("find.json"), "w") as file:
            json.dump(config, file)
    run = train(find_max=size, memory_limit="64MiB", data=None, **flags)
    ok(run.code == 2 and f"--find-max {size} " in run.err and named + " " in run.err and run.err.count("\n") == 1,
       f"--find-max {size} and {named}: refused by name") or note(f"{run.code} {run.err}")
with open(path("find.json"), "w") as file:
    json.dump({"train_batch_size": 8}, file)
found = [train(find_max="layers", layers=None, memory_limit="64MiB", ranks=2, **flags).report["find_max"]
         for flags in (dict(config=path("find.json"), batch=None), dict(batch=4))]
same(*found, "--find-max layers takes the batch that a file gives")
done()
