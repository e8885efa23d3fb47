#!/usr/bin/env python3
"""The byte plan: equal to what is measured, for every tag; and equal to a formula that shares no code with it."""
import os
import random
import resource
import sys

sys.path.insert(0, "tests/support")
from zrtest import PLANNED_TAGS, done, note, ok, same, start_quickly, token_shard, train

start_quickly(fp32_alone=True)
FLOAT = 4
GRANULE = 2 << 20
GRANULES_PARTLY_USED = 2  # of the pool of tensors
STEPS = 3  # the last comes after an evaluation
PLAN_SECONDS = 20  # of a processor: ten times what a plan takes at most here
FORMULA = 0.001  # of each tag's bytes, on a model of half a billion parameters or more


def other_cap(steps, ranks):
    """Bytes of records, stacks and heap that README allows a rank."""
    threads = max(1, os.cpu_count() // ranks)
    return (8 << 20) + threads * (512 << 10) + 16 * steps


def processor_seconds():
    """What the runs so far have computed, in all their threads."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def up(n, multiple):
    return -(-n // multiple) * multiple


def units(layers, hidden, seq, vocabulary, **_):
    """Elements of what is gathered and reduced at a time: the two embeddings, each block, the last norm."""
    block = [hidden] * 2 + [3 * hidden * hidden, 3 * hidden] + [hidden * hidden, hidden] + [hidden] * 2 + \
        [4 * hidden * hidden, 4 * hidden] + [4 * hidden * hidden, hidden]
    return [vocabulary * hidden, seq * hidden] + layers * [sum(block)] + [2 * hidden]


def element(precision="fp32", **_):
    """Bytes of a parameter, a gradient, an activation."""
    return FLOAT if precision == "fp32" else 2


def formula(layers, hidden, heads, seq, batch, vocabulary, ranks, stage, recompute, accumulate, precision):
    """Bytes of states, checkpoints and activations at the peak, from the shapes alone. The peak is the start of the
    last block's backward: all blocks' activations, the gradient of the residual stream and of the wide layer. At
    stages 2 and 3 gradients that pass through whole are beside the state, see below."""
    elements, each = sum(units(layers, hidden, seq, vocabulary)), element(precision)
    rows, narrow = batch * seq, precision != "fp32"
    kept = each * hidden * (1 + 3 + 1 + 1 + 1 + 4 + 4)  # norms, qkv, attention, middle, fc, gelu
    kept += FLOAT * (4 + heads)  # statistics
    if recompute == "none":
        kept += each * heads * seq
    # The peak is one block later where the gradients of a second one, staged whole, are more than that block gave back.
    given_back = each * rows * hidden + (0 if recompute == "full" else rows * kept)
    late = stage >= 2 and each * units(layers, hidden, seq, vocabulary)[2] > given_back
    blocks_kept = 1 if recompute == "full" else layers - late
    states = {"param": each * elements / (ranks if stage == 3 else 1),
              "master": narrow * FLOAT * elements / (ranks if stage else 1),
              "optimizer": 2 * FLOAT * elements / (ranks if stage else 1)}
    if stage < 2:
        states["grad"] = each * elements
        if ranks > 1 or (narrow and accumulate > 1):  # what is summed aside: micro-batches, or the tied embedding's first contribution
            states["grad"] += FLOAT * (elements if accumulate > 1 else vocabulary * hidden) / ranks
    return {**states,
            "checkpoint": each * rows * hidden * (layers - late),
            "activation": rows * (blocks_kept * kept + each * (hidden + 4 * hidden + hidden) + 3 * FLOAT)}


SHAPES = [
    dict(layers=2, hidden=64, heads=4, seq=32, batch=2, ranks=1, stage=0),
    dict(layers=3, hidden=60, heads=5, seq=17, batch=3, ranks=3, stage=1, precision="fp16"),
    dict(layers=6, hidden=48, heads=6, seq=24, batch=2, ranks=2, stage=1),
    dict(layers=6, hidden=48, heads=6, seq=24, batch=2, ranks=2, stage=0),
    dict(layers=4, hidden=64, heads=2, seq=64, batch=4, ranks=2, stage=0, accumulate=2, precision="fp16"),
    dict(layers=5, hidden=64, heads=2, seq=32, batch=3, ranks=2, stage=1, recompute="full", precision="bf16"),
    dict(layers=5, hidden=64, heads=2, seq=32, batch=3, ranks=1, stage=0, recompute="selective", precision="bf16"),
    dict(layers=6, hidden=48, heads=6, seq=24, batch=2, ranks=2, stage=1, accumulate=3),
    dict(layers=8, hidden=60, heads=6, seq=24, batch=3, ranks=2, stage=2, precision="bf16"),
    dict(layers=8, hidden=60, heads=6, seq=24, batch=3, ranks=3, stage=3, accumulate=3, precision="bf16"),
    dict(layers=8, hidden=60, heads=6, seq=24, batch=3, ranks=4, stage=3, recompute="full", bucket_bytes=65536),
    dict(layers=120, hidden=16, heads=2, seq=8, batch=1, ranks=2, stage=3, accumulate=2, precision="bf16"),  # 3,000 allocations a pass
    *[dict(arch="llama", layers=4, hidden=48, heads=6, kv_heads=kv, ffn=100, seq=24, batch=3, ranks=2, stage=stage, precision=precision,
           recompute=recompute, **({"tie_embeddings": True} if tied else {}))
      for stage, kv, precision, recompute, tied in ((0, 6, "fp32", "none", True), (1, 2, "bf16", "full", False),
                                                    (2, 1, "fp32", "selective", False), (3, 3, "bf16", "none", True))],
]


def state(shape, padding):
    """ZeRO's formulas, between steps: in fp32 16, 8 + 8/N, 4 + 12/N, 16/N bytes per parameter, in two bytes 16, 4 + 12/N,
    2 + 14/N, 16/N; and where micro-batches add up aside 4/N for their fp32 sum, which at stages 2 and 3 takes the place
    of the shard of gradients."""
    ranks, stage, narrow = shape["ranks"], shape["stage"], element(**shape) == 2
    factor = {0: 16, 1: 4 + 12 / ranks if narrow else 8 + 8 / ranks,
              2: 2 + 14 / ranks if narrow else 4 + 12 / ranks, 3: 16 / ranks}[stage]
    if shape.get("accumulate", 1) > 1 and (ranks > 1 or narrow):
        factor += (4 if stage < 2 else 4 - element(**shape)) / ranks
    elements = sum(units(**shape, vocabulary=256))
    return factor * elements, factor * padding


def elements_sent(shape):
    """Without padding. Every micro-batch reduces each unit, the tied embedding twice; what was updated travels once;
    at stage 3 each micro-batch gathers each unit twice (positions once) instead."""
    wte, wpe, *rest = units(**shape, vocabulary=256)
    once, rounds, ranks = wte + wpe + sum(rest), shape.get("accumulate", 1), shape["ranks"]
    travels = rounds * (2 * once - wpe) if shape["stage"] == 3 else once
    return (rounds * (once + wte) + travels) * (ranks - 1) / ranks


def check_stage(shape, rank):
    """What a rank keeps between steps and sends in each, beside the formulas."""
    layers, ranks = shape["layers"], shape["ranks"]
    each = element(**shape)
    padding = (layers + 3) * (256 // each * ranks + 12 * 64 // each)
    want, slack = state(shape, padding)
    kept = rank["persistent_bytes"]
    same(kept, rank["planned_persistent_bytes"], f"rank {rank['rank']}: kept between steps as planned")
    ok(want <= kept["state"] <= want + slack, f"rank {rank['rank']}: its state is {kept['state']}, formula {want:.0f}")
    sent = elements_sent(shape)
    ok(sent <= rank["sent_elements_per_step"] <= sent + 6 * shape.get("accumulate", 1) * padding,
       f"rank {rank['rank']}: sends {rank['sent_elements_per_step']} elements a step, formula {sent:.0f}")
    # What was copied or added from others, counted there: as many, at stage 0 in two bytes with sums of several rounds in fp32.
    wider = (shape["stage"] == 0 and each == 2) * (FLOAT - each) * (ranks - 1) / ranks
    wider *= sum(units(**shape, vocabulary=256)) if shape.get("accumulate", 1) > 1 else units(**shape, vocabulary=256)[0]
    more = rank["received_bytes_per_step"] - rank["sent_elements_per_step"] * each
    ok(wider <= more <= wider + bool(wider) * FLOAT * padding, f"and receives as many: {more} bytes more, {wider:.0f} of them for sums")
    two = each * (sum(sorted(units(**shape, vocabulary=256))[-2:]) + padding)
    tied = (each == 2) * FLOAT * (units(**shape, vocabulary=256)[0] + padding) / ranks  # its two rounds add up in fp32
    most, planned = rank["peak_bytes"], rank["planned_most_bytes"]
    gathered, grad = (max(most[tag], planned[tag]) for tag in ("gathered", "grad"))  # at whatever moment, not the peak's alone
    ok(gathered <= two, f"gathered is at most two units: {gathered} <= {two}")
    ok((gathered > 0) == (shape["stage"] == 3), "and is there at stage 3 alone")
    ok(shape["stage"] < 2 or kept["grad"] <= grad <= kept["grad"] + two * 33 / 32 + tied,
       "staged gradients are at most two units and a little")

def check_formula(shape):
    """The same run with a model so large that rounding and padding are nothing: planned."""
    large = {**shape, **dict(layers=max(shape["layers"], 24), hidden=1536, heads=16, seq=512)}
    dry = train(**large, steps=4, dry_run=True)
    if not same(dry.code, 0, f"a plan of {large}"):
        return note(dry.err)
    want = formula(vocabulary=256, **{"recompute": "none", "accumulate": 1, "precision": "fp32", **large})
    planned = dict(dry.report["ranks"][0]["planned_bytes"], state=dry.report["ranks"][0]["planned_persistent_bytes"]["state"],
                   sent=dry.report["ranks"][0]["sent_elements_per_step"])
    want.update(state=state(large, 0)[0], sent=elements_sent(large))
    off = {tag: planned[tag] / value - 1 if value else float(planned[tag]) for tag, value in want.items()}
    ok(all(abs(value) <= FORMULA for value in off.values()), "of a model of " + f"{dry.report['parameters'] / 1e6:.0f} million "
       "parameters each tag is what the formula says: " + ", ".join(f"{tag} {100 * value:+.3f} %" for tag, value in off.items()))


optimizer = {}
for shape in SHAPES:
    words = " ".join(f"{key} {value}" for key, value in shape.items())
    run = train(**shape, steps=STEPS, eval_every=STEPS - 1, sample=2)
    if not same(run.code, 0, f"runs: {words}"):
        note(run.err)
        continue
    dry = train(**shape, steps=STEPS, dry_run=True)
    same([rank["sent_elements_per_step"] for rank in dry.report["ranks"]],
         [rank["sent_elements_per_step"] for rank in run.report["ranks"]], "elements sent in a step are as planned")
    sizes = {key: value for key, value in shape.items() if key != "bucket_bytes"}
    gpt2 = "arch" not in shape  # the formulas are of its tensors
    if gpt2:
        check_formula(sizes)
    for rank in run.report["ranks"]:
        planned, measured = rank["planned_bytes"], rank["peak_bytes"]
        same({t: measured[t] for t in PLANNED_TAGS}, {t: planned[t] for t in PLANNED_TAGS},
             f"rank {rank['rank']}: planned equals measured for every tag")
        cap = other_cap(STEPS, shape["ranks"])
        ok(0 < measured["other"] <= cap, f"rank {rank['rank']}: other is {measured['other']} <= {cap}")
        same(measured["total"], sum(measured[t] for t in PLANNED_TAGS) + measured["other"], "the tags add up")
        ok(rank["peak_reserved_bytes"] >= measured["total"] - measured["other"], "reserved covers what is live")
        same(rank["driver_calls_last_step"], 0, f"rank {rank['rank']}: the last step maps nothing")
        cap = max(0.005 * rank["peak_reserved_bytes"], GRANULES_PARTLY_USED * GRANULE)
        ok(rank["stranded_bytes"] <= cap, f"rank {rank['rank']}: stranded are {rank['stranded_bytes']} <= {cap:.0f}")
        if gpt2:
            check_stage(sizes, rank)
    if "accumulate" not in shape and gpt2:
        optimizer[tuple(sorted((k, v) for k, v in shape.items() if k != "stage")), shape["stage"]] = \
            run.report["ranks"][0]["peak_bytes"]["optimizer"]

for (shape, stage), sharded in optimizer.items():
    whole = optimizer.get((shape, 0))
    if stage == 1 and whole:
        ranks = dict(shape)["ranks"]
        ok(abs(sharded * ranks - whole) <= 64 * 256 * ranks,
           f"optimizer bytes at stage 1 ({sharded}) are 1/{ranks} of stage 0's ({whole})")

# A thousand ranks and a trillion parameters: rehearsed in seconds, and what the paper's figures are, in fp32.
# The seconds are a processor's: nothing is waited for, and what else the machine does is not counted.
before = processor_seconds()
run = train(dry_run=True, params="1e12", world_size=1024, stage=3, layers=None, hidden=None, heads=None, ranks=None)
seconds = processor_seconds() - before
if same(run.code, 0, "a trillion parameters on 1,024 ranks, dry"):
    ok(seconds < PLAN_SECONDS, f"in {seconds:.1f} s")
    state_bytes = run.report["ranks"][0]["planned_persistent_bytes"]["state"]
    ok(abs(state_bytes / (16e12 / 1024) - 1) < 0.01, f"a rank keeps {state_bytes / 1e9:.2f} GB of state")
    ok(len(run.report["ranks"]) == 1024, "and each of them is told")
    total, reserved = (run.report["ranks"][0][key] for key in ("planned_bytes", "planned_reserved_bytes"))
    total = total["total"]
    ok(total <= reserved <= 1.001 * total and f"{100 * (reserved / total - 1):.2f} % more" in run.out,
       f"with its fragmentation: {total} bytes at the peak, {reserved} in granules")

# Ten trillion on 4,096: the stages below have no addresses for theirs, and stage 3 is planned none the less.
before = processor_seconds()
run = train(dry_run=True, params="1e13", world_size=4096, stage=3, precision="bf16", layers=None, hidden=None, heads=None, ranks=None)
seconds = processor_seconds() - before
if same(run.code, 0, "ten trillion parameters on 4,096 ranks, dry") or note(run.err):
    ok(seconds < PLAN_SECONDS, f"in {seconds:.1f} s")
    state_bytes = run.report["ranks"][0]["planned_persistent_bytes"]["state"]
    ok(abs(state_bytes / (16e13 / 4096) - 1) < 0.01, f"a rank keeps {state_bytes / 1e9:.1f} GB of state")

# 7.5 billion on 64 ranks: ZeRO's own figures.
for stage, gigabytes in enumerate([120, 31.4, 16.6, 1.875]):
    run = train(dry_run=True, params="7.5e9", world_size=64, stage=stage, precision="bf16", layers=None, hidden=None, heads=None,
                ranks=None)
    if same(run.code, 0, f"7.5 billion parameters on 64 ranks at stage {stage}, dry") or note(run.err):
        rank, elements = run.report["ranks"][0], run.report["parameters"]
        kept, names = rank["planned_persistent_bytes"], ("param", "grad", "optimizer", "master")
        same(kept["state"], sum(kept[name] for name in names), "the state is parameters, gradients, optimizer and master")
        exact = [16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64][stage] * elements
        ok(abs(kept["state"] / exact - 1) < 0.01, f"a rank keeps {kept['state'] / 1e9:.2f} GB, by the formula {exact / 1e9:.2f}")
        ok(abs(kept["state"] / 1e9 / gigabytes - 1) < 0.01, f"which are {gigabytes} GB within a percent")

# A plan of --params says what it takes for what is not given, and of ranks elsewhere is the same on every machine.
plan = dict(data=None, dry_run=True, params="7.5e9", world_size=64, stage=3, precision="bf16", layers=None, hidden=None, heads=None, ranks=None, vocab=None, seq=None,
            threads=None)
run, given = train(**plan), train(**{**plan, "vocab": 50257, "seq": 1024, "threads": 1})
ok("\ntaken where not given: --vocab 50257 (GPT-2's) --seq 1024 (GPT-2's) --threads 1\n" in run.out and "50257 tokens" in run.out, "GPT-2's tokens and context are said") or note(run.out[:400])
same((run.report, "taken where" in given.out), (given.report, False), "and are the same where they are given")
one = train(prefix=("taskset", "-c", "0"), **plan)
same(one.report, run.report, "a machine of one core plans the same")
ok("256 tokens" in (run := train(**{**plan, "vocab": "byte", "seq": 128})).out and "given: --threads 1\n" in run.out, "an option stands")
run = train(**{**{name: value for name, value in plan.items() if name != "data"}, "params": "1e6", "threads": 1, "world_size": 2})
ok("256 tokens" in run.out and "sequences of 128\n" in run.out and "taken where" not in run.out, "as does the data's kind")

# The head of a card: as many rows of logits at a time as are in 1 GiB, or in what --memory-limit leaves, down to 64 MiB.
head = dict(data=None, dry_run=True, backend="cuda", precision="bf16", vocab=50257, layers=2, hidden=64, heads=4, seq=1024, batch=16, threads=1)
plans = {bits: train(logits_bytes=1 << bits, **head) for bits in range(25, 31)}
rows = {bits: run.report["logits_rows"] for bits, run in plans.items()}
need = {bits: run.report["ranks"][0]["planned_reserved_bytes"] for bits, run in plans.items()}
same(rows, {bits: (1 << bits) // (50304 * 2) for bits in plans}, "--logits-bytes is rows of two-byte logits")
same([need[bits + 1] - need[bits] for bits in range(26, 30)], [up((rows[bits + 1] - rows[bits]) * 50304 * 2, GRANULE) for bits in range(26, 30)],
     "and what the plan has for them") or note(need)
free = train(**head)
same((free.report["logits_rows"], f"logits of {rows[30]:,} rows" in free.out), (rows[30], True), "without a limit it is 1 GiB")
same(train(**{**head, "batch": 2}).report["logits_rows"], 2048, "or all rows")
same([train(memory_limit=need[bits], **head).report["logits_rows"] for bits in range(26, 31)], [rows[bits] for bits in range(26, 31)],
     "under a limit the largest that fits")
same([train(memory_limit=need[26] - 1, **head).code, train(memory_limit=need[26] - 1, logits_bytes=1 << 25, **head).code], [4, 0],
     "64 MiB at least, but where another number is given")
run = train(logits_bytes=4096)
ok(run.code == 2 and "--backend cuda" in run.err, "a processor's head has its own chunks") or note(run.err)

# What is sent passes through two slots of --bucket-bytes, never more; where that cannot be, it is not taken.
slots = dict(dry_run=True, params="1e9", stage=3, layers=None, hidden=None, heads=None, ranks=None)
for world, size, least in [(1025, 65536, 65536), (1026, 65536, 65600), (256, 4096, 16320), (65, 4096, 4096), (4, 5000, 192)]:
    run = train(**slots, world_size=world, bucket_bytes=size)
    if size < least:
        ok(run.code == 2 and f"give at least {least}" in run.err, f"{size} bytes are too few for {world} ranks") or note(run.err)
        run, size = train(**slots, world_size=world, bucket_bytes=least), least
    comm = run.report["ranks"][0]["planned_most_bytes"]["comm"]
    ok(0 < comm <= up(2 * size, 256), f"{world} ranks: comm takes {comm} of two slots of {size}")
run = train(**slots, world_size=65538, json=None)
ok(run.code == 0 and "comm has more than --bucket-bytes" in run.out, "the default is there for any world, which is said") or note(run.err)

# The step timeline: its own words in the report, and numbers that fit each other and what the run then sends.
speeds = dict(flops="1e12", bandwidth="1e9")
shape = dict(layers=8, hidden=48, heads=6, seq=24, batch=3, ranks=3, accumulate=3)
timelines = {}
for stage in range(4):
    run = train(**shape, stage=stage, **speeds, steps=2, eval_every=0)
    if not same(run.code, 0, f"stage {stage} with --flops and --bandwidth"):
        note(run.err)
        continue
    line = timelines[stage] = run.report["timeline"]
    sent = run.report["ranks"][0]["sent_elements_per_step"]
    same(line["sent_bytes"], FLOAT * sent, "the timeline sends what the run does")
    ok(abs(line["communication_seconds"] * 1e9 / line["sent_bytes"] - 1) < 1e-9, "in bytes / bandwidth")
    ok(abs(line["computing_seconds"] * 1e12 / line["flops"] - 1) < 1e-9, "and computes in operations / speed")
    ok(abs((line["computing_seconds"] + line["waiting_seconds"]) / line["step_seconds"] - 1) < 1e-9,
       "which is the step, with what is waited for")
    ok(abs(line["tokens_per_second"] * line["step_seconds"] - 3 * 3 * 3 * 24) < 1e-6, "of so many tokens")
    ok(abs(line["utilisation"] - line["flops"] / 1e12 / line["step_seconds"]) < 1e-9, "all operations are the model's")
    same(len(line["events"]), sum(phase["count"] for phase in line["phases"].values()), "every event is in a phase")
    gathers = [event for event in line["events"] if event["kind"] == "gather" and event["unit"] == "h.5"]
    same(len(gathers), {0: 0, 1: 1, 2: 1, 3: 6}[stage], "a block is gathered as often as the stage has it")
    ok("Step timeline of a rank, at 1.00 TFLOP/s and 1.00 GB/s" in run.out and "tokens a second, of all ranks" in run.out,
       "people read it too")
    dry = train(**shape, stage=stage, **speeds, steps=2, eval_every=0, dry_run=True)
    same(dry.report["timeline"], line, "and a dry run has the same")
if len(timelines) == 4:
    ok(timelines[3]["communication_seconds"] > 1.5 * timelines[2]["communication_seconds"], "stage 3 sends more")
    ok(timelines[3]["step_seconds"] > timelines[2]["step_seconds"], "and takes longer")
run = train(dry_run=True, **speeds)
ok(run.code == 0 and run.report["timeline"]["communication_hidden"] == 1 and run.report["timeline"]["sent_bytes"] == 0,
   "a rank alone sends nothing, and waits for nothing")
run = train(dry_run=True, recompute="full", **speeds)
ok(run.code == 0 and run.report["timeline"]["flops"] > run.report["timeline"]["model_flops"],
   "what is made again is not the model's")
ok("timeline" not in train(dry_run=True).report, "without the two speeds there is none")

# Thousands of layers, thousands of micro-batches: some are gone through, and each of the others takes as long as they do.
deep, start = {}, processor_seconds()
for count in (8, 1000):
    run = train(dry_run=True, layers=1000, hidden=64, heads=4, world_size=8, ranks=None, stage=1, accumulate=count, flops="1e14",
                bandwidth="1e11")
    if same(run.code, 0, f"1,000 layers, {count} micro-batches, dry"):
        deep[count] = run.report["timeline"]
if len(deep) == 2:
    seconds = processor_seconds() - start
    ok(seconds < PLAN_SECONDS, f"in {seconds:.1f} s of a processor")
    each = (deep[1000]["step_seconds"] - deep[8]["step_seconds"]) / 992
    ok(7 * each < deep[8]["step_seconds"] < 9 * each, f"each of them takes {each:.4f} s")
    for count, line in deep.items():
        same([line["phases"][phase]["count"] for phase in ("forward", "backward", "reduce")],
             [count * n for n in (1002, 1003, 1004)], "and has every event in a phase")

# --stage auto: of the stages that are possible the one that takes the fewest bytes, of equal ones the lowest.
for shape, highest in ((dict(layers=4, hidden=128, ranks=4), 3), (dict(layers=2, hidden=24, ranks=2), 3),
                       (dict(layers=4, hidden=128, ranks=4, accumulate=2, reduce="once"), 1), (dict(layers=2, ranks=1), 0)):
    plans = [train(dry_run=True, stage=stage, **shape).report["ranks"][0]["planned_reserved_bytes"]
             for stage in range(highest + 1)]
    run = train(dry_run=True, stage="auto", **shape)
    same(run.report and run.report["stage"], plans.index(min(plans)), f"{shape}: of {plans} --stage auto takes the least")
    ok(f"--stage auto: takes --stage {plans.index(min(plans))}" in run.err, "and says which")
trained = [train(layers=6, ranks=2, stage=stage) for stage in ("auto", 0)]
same(trained[0].losses, trained[1].losses, f"a run at the stage that was picked ({trained[0].report['stage']}) has the same losses")

# Where a stage keeps what the one below keeps, the plan says so, to people and in JSON, and the bytes are such.
PAYS = "takes more than it saves here"
kinds = set()
for shape in (dict(layers=2, ranks=4), dict(layers=2, ranks=8), dict(layers=6, ranks=3), dict(layers=6, ranks=1),
              dict(layers=4, ranks=2, vocab=5000), dict(layers=24, ranks=2, hidden=216, heads=4, vocab=20000)):
    for stage in (1, 2, 3):
        run = train(dry_run=True, stage=stage, **{**dict(hidden=24, heads=2, seq=12, vocab=60), **shape})
        rank, all_of_them = run.report["ranks"][0], run.report["parameters"]
        kept, ranks = rank["planned_persistent_bytes"], shape["ranks"]
        whole = [rank["whole_parameters"], rank["whole_gradients"]]
        for name, tag, count, from_stage in (("parameters", "param", whole[0], 3), ("gradients", "grad", whole[1], 2)):
            held = kept[tag] / FLOAT if stage >= from_stage and ranks > 1 else None
            told = [line for line in run.out.splitlines() if f"{name} whole" in line and PAYS in line]
            kinds.add((name, 0 if count == 0 else 1 if count < all_of_them else 2))
            same(len(told), int(count > 0), f"{count} {name} stay whole: {told}")
            if held is None:
                same(count, 0, "with nothing to shard, nothing is told")
            else:
                want = count + (all_of_them - count) / ranks
                ok(0.99 * want <= held <= 1.1 * want + 4096, f"it keeps {held:.0f}, {want:.0f} are so many and shards of the rest")
same(kinds, {("parameters", 0), ("parameters", 1), ("parameters", 2), ("gradients", 0), ("gradients", 2)},
     "all, some and none were among them")

# A plan of more than 1 GiB: the process's own memory is the plan, within 3 % and a base of 96 MiB.
big = dict(layers=8, hidden=768, heads=12, seq=16, batch=1, vocab=16384, ranks=1, stage=0, steps=2)
rng = random.Random(3)
run = train(environment={"ZR_CONF": "isa:auto"}, data=token_shard([rng.randrange(16384) for _ in range(8192)]), eval_every=0, **big)
if same(run.code, 0, "a model of more than 1 GiB runs"):
    rank = run.report["ranks"][0]
    plan = rank["planned_bytes"]["total"]
    own = rank["rss_anonymous_bytes"] + rank["rss_shared_bytes"]
    ok(plan >= 1 << 30, f"its plan is {plan / 2**30:.2f} GiB")
    ok(plan * 0.97 <= own <= plan * 1.03 + (96 << 20),
       f"its own memory is {own / 2**20:.0f} MiB, the plan {plan / 2**20:.0f} MiB")
    same({t: rank["peak_bytes"][t] for t in PLANNED_TAGS}, {t: rank["planned_bytes"][t] for t in PLANNED_TAGS},
         "planned equals measured for every tag")
    same(rank["driver_calls_last_step"], 0, "the last step maps nothing")
    cap = 0.005 * rank["peak_reserved_bytes"]
    ok(cap > GRANULES_PARTLY_USED * GRANULE and rank["stranded_bytes"] <= cap,
       f"stranded are {rank['stranded_bytes']}, of half a percent: {cap:.0f}")
else:
    note(run.err)
# The head makes logits in chunks of rows: they take 64 MiB at most, however many tokens there are (all: 3.3 GB).
head = dict(dry_run=True, layers=1, hidden=8, heads=1, seq=64)
few, many = (train(batch=batch, vocab=50257, **head).report["ranks"][0]["planned_bytes"]["activation"] for batch in (1, 256))
narrow = train(batch=256, vocab=300, **head).report["ranks"][0]["planned_bytes"]["activation"]
ok(few < many <= narrow + (64 << 20) + 256 * 64 * FLOAT, f"the logits of a wide vocabulary are bounded: {many} bytes, {narrow} of a narrow one")
done()
