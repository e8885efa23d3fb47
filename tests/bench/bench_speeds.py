"""bench_speeds.py: the speeds that were measured before, in bench_speeds.txt: a line for each processor and metric, as
"processor | metric | value | date | commit". A benchmark prints each of its speeds with speed(), which says beside it what
is stored for this processor, and tells when it has fallen by more than a tenth; nothing fails. With ZR_BENCH_STORE=1
(make bench-store) what was measured is stored instead: on a machine that does nothing else."""
import datetime
import os
import subprocess

STORE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench_speeds.txt")
FALL = 0.1
_fields = {}
with open("/proc/cpuinfo") as _file:
    for _line in _file:
        _key, _, _value = _line.partition(":")
        _fields.setdefault(_key.strip(), _value.strip())
CORES = len(os.sched_getaffinity(0))
MACHINE = (f"{_fields.get('model name', 'unknown processor')} (family {_fields.get('cpu family', '?')}, "
           f"model {_fields.get('model', '?')}), {CORES} cores")
# What was measured elsewhere on a kind of processor stands in for a machine that has no line of its own.
KINDS = [f"any with {flag}, 2 cores" for flag in ("amx_bf16",) if flag in _fields.get("flags", "").split() and CORES == 2]


def _lines():
    with open(STORE) as file:
        return [line.rstrip("\n") for line in file]


def _stored(metric):
    rows = [[word.strip() for word in line.split("|")] for line in _lines() if line and line[0] != "#"]
    for machine in [MACHINE, *KINDS]:
        for row in rows:
            if row[:2] == [machine, metric]:
                return row
    return None


def _store(metric, value):
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    line = " | ".join([MACHINE, metric, f"{value:.4g}", datetime.date.today().isoformat(), commit or "unknown"])
    lines = [old for old in _lines() if [word.strip() for word in old.split("|")][:2] != [MACHINE, metric]]
    with open(STORE + ".new", "w") as file:
        file.write("\n".join([*lines, line]) + "\n")
    os.replace(STORE + ".new", STORE)


def speed(metric, value, less=False):
    """Prints it beside what is stored. `less`: less of it is faster, as of nanoseconds."""
    if os.environ.get("ZR_BENCH_STORE"):
        _store(metric, value)
        return print(f"  stored: {metric}: {value:.4g}", flush=True)
    row = _stored(metric)
    if not row:
        return print(f"  speed: {metric}: {value:.4g}, nothing stored for {MACHINE}", flush=True)
    before = float(row[2])
    times = before / value if less else value / before
    words = f"FALLEN to {times:.2f} x" if times < 1 - FALL else f"{times:.2f} x"
    return print(f"  speed: {metric}: {value:.4g}, {words} of the {row[2]} of {row[3]}, commit {row[4]}, {row[0]}", flush=True)
