"""pairs.py: what several test scripts need to try many settings: rows in which every two values of every two factors
meet (most faults need no more), all the bits that a run shows of its steps, and the optimizers."""
import itertools
import json
import os
import random
import re
import subprocess

from zrtest import ZR_TRAIN, path, train

ALL_ROWS = os.environ.get("ZR_TEST_ROWS") == "all"


def optimizers():
    """{name: what --help says of its defaults, and of what it excludes}: a new row of the table is in every sweep."""
    text = subprocess.run([ZR_TRAIN, "--help"], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"\n  (\w+) .*((?:\n {9}.*)+)", text.split("\nOptimizers, with", 1)[1].split("\n\n", 1)[0]))


def hard_to_prove(seed, count):
    """Right runs of many ranks whose rounding --prove has to tell from a mistake: any loss scale, sequences of one token."""
    rng = random.Random(seed)
    pick = rng.choice
    while count > 0:
        tp, pp, data = pick((1, 1, 2, 3)), pick((1, 1, 2)), pick((1, 2, 3))
        if not 1 < tp * pp * data < 7:
            continue
        heads, seq, llama = pick((6, 12)), pick((1, 1, 2, 6, 12)), pick((False, True))
        row = dict(ranks=tp * pp * data, tp=tp, pp=pp if pp > 1 else None, precision=pick(("fp32", "bf16", "fp16", "fp16")), heads=heads,
                   hidden=heads * pick((2, 4, 8)), layers=pick((2, 4)), seq=seq, batch=pick((1, 2, 3)), accumulate=pick((1, 2, 4)),
                   stage=pick((0, 1, 2, 3)) if data > 1 else 0, optimizer=pick(("adamw", "adamw", "sgd")), clip=pick((0, 0.5, 1)),
                   lr=pick((1e-4, 1e-3, 1e-2)), warmup=pick((0, 1)), seed=rng.randint(1, 10**6), steps=4, prove=True, eval_every=0,
                   recompute=pick(("none", "full", "selective")), sequence_parallel=pick((None, True)) if tp > 1 and seq % tp == 0 else None)
        if llama:
            row.update(arch="llama", ffn=72, kv_heads=pick((None, tp)), tie_embeddings=pick((None, True)))
        if row["precision"] == "fp16":
            row.update(loss_scale_power=pick((0, 2, 6, 10, 14, 16, 17, 18, 19, 20, 22, 24)), loss_scale_hysteresis=pick((1, 2)),
                       loss_scale_window=pick((1, 1000)))
        count -= 1
        yield row


def pairwise(seed, **factors):
    """Rows as dictionaries; few, but not the fewest."""
    rng = random.Random(seed)
    names = list(factors)
    missing = {(a, b, x, y) for a, b in itertools.combinations(names, 2)
               for x in range(len(factors[a])) for y in range(len(factors[b]))}
    while missing:
        best, best_met = None, set()
        for _ in range(40):  # of some rows around a missing pair, the one that has most of them
            row = {name: rng.randrange(len(factors[name])) for name in names}
            a, b, x, y = rng.choice(sorted(missing))
            row[a], row[b] = x, y
            met = missing & {(a, b, row[a], row[b]) for a, b in itertools.combinations(names, 2)}
            if len(met) > len(best_met):
                best, best_met = row, met
        missing -= best_met
        yield {name: factors[name][best[name]] for name in names}


def most_pairs(seed, **factors):
    """The first third of pairwise()'s rows, in which most pairs meet; all rows with
    ZR_TEST_ROWS=all, as in soak_pairs.t."""
    rows = list(pairwise(seed, **factors))
    return rows if ALL_ROWS else rows[:(len(rows) + 2) // 3]


def rolled_back(norms, clip):
    """How many updates are made again: a step that is clipped, or skipped and has no norm, is not speculated on, nor is the next."""
    wrong = [norm is None or norm > clip for norm in norms]
    return sum(now and not before for before, now in zip([False] + wrong, wrong))


def logged(**flags):
    """A run with the norms of its gradients and the parts of its noise scale, from its log, and its bits: loss and norm of each step, both exact. A
    norm shows the last bits of what a loss may round away."""
    log = path(f"log-{random.getrandbits(64):x}.jsonl")
    run = train(log=log, **flags)
    run.norms, run.noise = [], []
    if os.path.exists(log):
        with open(log) as file:
            lines = [json.loads(line) for line in file]
        run.norms = [line["gradient_norm"] for line in lines]
        run.noise = [[line.get(key) for key in ("gradient_square", "gradient_variance")] for line in lines]
        os.unlink(log)
    run.bits = list(itertools.zip_longest(run.losses or (), run.norms, run.noise))
    return run
