#!/usr/bin/env python3
"""The byte plan is enforced: a zr-train one rank of which leaks, or asks for more, on purpose (tests/support/zero/leaky.c) ends at the
call that goes beyond, which it names with the tag and the bytes; all ranks end, and what was saved is whole."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, "tests/support")
import zrtest
from zrtest import BUILD, HANG, ZR_TRAIN, arguments, done, finish, leftovers, note, ok, path, same, skip, text_file, train

LEAKY = os.path.abspath(os.path.join(BUILD, "tests", "zr-train-leaky"))
# Wide enough that stages 2 and 3 pay.
SHAPE = dict(data=text_file(), layers=4, hidden=128, heads=2, seq=32, batch=2, bucket_bytes=65536, steps=3, seed=5, threads=1)
WORDS = re.compile(r'beyond the byte plan: (.*?)(\w+)\(\) for (.+?): (\d+) bytes for (\w+) would make (it|all tags together) '
                   r'(\d+) in arena "training" \((\d+) requested, (\d+) live\); (?:its|their) tag limit is (\d+); '
                   r'.*raise the tag limit \(--over-plan continue\)')

# (what leaks, ranks, stage, other flags) -> (the call that is told, what it is for); the tag is that of the leak, unless
# all tags together are at their tag limit first.
CASES = [
    ("more:param:0:0", 1, 0, {}, "engine", "parameters"),
    ("more:workspace:0:0", 1, 3, {}, "open_context", "context->workspace"),
    ("more:master:0:0", 1, 1, dict(precision="bf16"), "engine", "masters"),
    ("free:activation:0:2", 1, 2, {}, "take_slot|zr_activations_take_gradient", ".*"),
    ("more:checkpoint:0:2", 1, 1, dict(no_contiguous=True), "take_part", "kept->part"),
    ("free:activation:1:2", 2, 0, {}, "take_slot|zr_activations_take_gradient", ".*"),
    ("more:grad:1:2", 2, 0, {}, "zr_engine_take_sums", "state->sum_shard"),
    ("more:optimizer:1:0", 2, 1, {}, "engine", "(momentum|variance)"),
    ("more:comm:0:0", 2, 1, {}, "zr_local_prepare", "comm->slots"),
    ("free:checkpoint:1:2", 2, 1, dict(recompute="full", no_contiguous=True), ".*", ".*"),
    ("free:grad:0:2", 2, 2, {}, "stage", "state->staging"),
    ("free:grad:1:2", 2, 2, dict(precision="bf16", accumulate=2), "stage|take_sums", "state->(staging|sum_shard)"),
    ("free:gathered:1:2", 2, 3, {}, "start_gathering", "state->gathered"),
    ("more:gathered:0:2", 2, 3, {}, "start_gathering", "state->gathered"),
]
plans = {}


def plan(**flags):
    key = repr(sorted(flags.items()))
    if key not in plans:
        run = train(dry_run=True, **{**SHAPE, **flags})
        plans[key] = run.report["ranks"]
    return plans[key]


def start(leak, **flags):
    """A run of the leaking program: its exit code and words."""
    command = [LEAKY] + arguments(**{**SHAPE, **flags})
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                               env={**os.environ, **({"ZR_TEST_LEAK": leak} if leak else {})}, stdin=subprocess.DEVNULL)
    return finish(process, HANG)


def check_words(err, leak, ranks, most, function, what):
    kind, tag, rank, step = leak.split(":")
    same(err.count("beyond the byte plan"), 1, "it is said once")
    found = WORDS.search(err)
    if not ok(found, "in words that can be read"):
        return note(err)
    place, caller, pointer, more, told, scope, made, asked, live, tag_limit = found.groups()
    more, made, asked, live, tag_limit = map(int, (more, made, asked, live, tag_limit))
    ok(re.fullmatch(function, caller) and re.fullmatch(what, pointer), f"the call is named: {place}{caller}() for {pointer}")
    ok(told == tag or scope != "it", f"and the tag: {told}")
    same(tag_limit, most["total" if scope != "it" else told], "what is planned, as --dry-run has it")
    ok(live <= tag_limit < made == live + more and 0 < asked <= more < asked + 256, "the bytes add up, and go beyond")
    ok(ranks == 1 or f"rank {rank}: " in err or step == "0", "so is the rank")
    ok(("after step 1: " in err) == (step == "2"), "and the step before")
    if caller in ("stage", "start_gathering", "reduce_to_sum"):
        ok(re.fullmatch(r"unit (wte|wpe|h\.[0-3]|ln_f), ", place), f"a unit is named: {place}")
    if caller in ("take_slot", "take_part", "zr_activations_take_gradient"):
        ok(re.fullmatch(r"(embeddings|h\.[0-3]|ln_f|head), ", place), f"a module is named: {place}")


def check(leak, ranks, stage, more, function, what):
    flags = dict(ranks=ranks, stage=stage, **more)
    saved, report = path("saved"), path("report.json")
    shutil.rmtree(saved, ignore_errors=True)
    if os.path.exists(report):
        os.unlink(report)
    most = plan(**flags)[int(leak.split(":")[2])]["planned_most_bytes"]
    code, err = start(leak, save=saved, save_every=1, json=report, **flags)
    note(f"{leak}, {flags}")
    if not same(code, 4, f"{leak}, {ranks} ranks at stage {stage}: exit code 4"):
        return note(err[-2000:])
    check_words(err, leak, ranks, most, function, what)
    same(leftovers(), [], "all ranks have ended")
    ok(not os.path.exists(report), "there is no report of it")
    steps = sorted(os.listdir(saved)) if os.path.isdir(saved) else []
    same(steps, ["step-00000001"] if leak.endswith(":2") else [], "of checkpoints there are those of before")
    return saved


for case in CASES:
    check(*case)

# The step that was saved before is as good as any.
flags = dict(ranks=2, stage=3)
whole = train(**{**SHAPE, **flags})
saved = check("free:gathered:0:2", 2, 3, {}, "start_gathering", "state->gathered")
rest = train(**{**SHAPE, **flags}, resume=saved)
same([whole.code, rest.code], [0, 0], "the trainer as it is goes on from there")
same(rest.losses, whole.losses[1:], "with the losses of a run that was never cut short")

# Who wants to go on does, and sees it in the table at the end; what leaked is told too.
zrtest.ZR_TRAIN = LEAKY
for leak, code in (("once:gathered:1:2", 1), ("more:gathered:1:2", 0), ("", 0)):
    run = train(environment={"ZR_TEST_LEAK": leak}, **{**SHAPE, **flags}, over_plan="continue")
    same(run.code, code, f"--over-plan continue, {leak or 'no leak'}: exit code {code}")
    same(run.losses, whole.losses, "all steps are made, to the same bits")
    same("DIFFERS" in run.out and "rank 1 of 2, which differs" in run.out, bool(leak), "and the table says what differs")
    same("left behind" in run.err, code == 1, "as does the end")
    most, peak = (run.report["ranks"][1][name]["gathered"] for name in ("planned_most_bytes", "peak_bytes"))
    same(peak > most, bool(leak), f"gathered: {peak} bytes at the peak, {most} planned")

# A step that leaks calls the driver, as often as was counted before the backend; what keeps to its plan does not.
for leak in ("free:checkpoint:0:1", ""):
    counts = path(f"calls{len(leak)}")
    run = train(environment={"ZR_TEST_LEAK": leak, "ZR_TEST_CALLS": counts}, over_plan="continue",
                **{**SHAPE, "steps": 2, "batch": 32}, recompute="full", no_contiguous=True)
    with open(counts) as file:
        before, after = [int(line.split()[1]) for line in file if line.startswith("2 ")][:2]
    same((run.report or {"ranks": [{}]})["ranks"][0].get("driver_calls_last_step"), after - before,
         f"{leak or 'no leak'}: as many driver calls in the last step as were counted") or note(run.err)
    same(after > before, bool(leak), f"which are {after - before}")

# Past --memory-limit nobody goes: the arena itself has no more to give.
reserved = [rank["planned_reserved_bytes"] for rank in plan(**flags)]
held = dict(SHAPE, **flags, over_plan="continue", memory_limit=max(reserved))
run = train(environment={"ZR_TEST_LEAK": "free:gathered:1:2"}, **held)
same(run.code, 4, "--over-plan continue under a limit of the plan's bytes: exit code 4")
ok("rank 1: after step 1: " in run.err and
   f"Cause: the arena holds {max(reserved)} of its limit of {max(reserved)} bytes." in run.err, "in the arena's words") or note(run.err)
run = train(environment={"ZR_TEST_LEAK": ""}, **held)
same(run.code, 0, "which are enough for who keeps to the plan") or note(run.err)
same(run.losses, whole.losses, "with the same losses")
zrtest.ZR_TRAIN = ZR_TRAIN

# Nothing of it costs a run that keeps to its plan: what passes through a step at other moments than its peak, a shorter
# last validation, the text at the end, checkpoints and their way back are in the plan.
saved = path("all")
for stage in range(4):
    more = dict(ranks=2, stage=stage, eval_every=1, sample=5, save=saved, save_every=1, keep=1, recompute="selective")
    run = train(**{**SHAPE, **more, "steps": 2 + stage, "batch": 3}, resume=saved if stage else None)
    same(run.code, 0, f"stage {stage}, all that a run can do: within its plan") or note(run.err)

if os.path.exists(os.path.join(BUILD, "tests", "libzr_comm_mpi.so")) and shutil.which("mpirun"):
    check("free:gathered:1:2", 2, 3, dict(comm="mpi"), "start_gathering", "state->gathered")
else:
    skip("there is no MPI here")

# The matrix library refuses products on one rank, which goes on without: said once, with the rank and the shape.
refusing = subprocess.run([LEAKY] + arguments(**{**SHAPE, "ranks": 2, "stage": 1}), capture_output=True, text=True, timeout=HANG,
                          env={**os.environ, "ZR_TEST_REFUSE": "1"}, stdin=subprocess.DEVNULL)
said = re.findall(r"rank (\d+): oneDNN refuses products, first (\d+) x (\d+) x (\d+)", refusing.stderr)
if not (same(refusing.returncode, 0, "a run whose second rank has no matrix library any more goes on")
        and same(said, [("1", "64", "384", "128")], "and says so once, with the rank and the first product's shape")):
    note(refusing.stderr)
done()
