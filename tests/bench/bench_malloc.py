#!/usr/bin/env python3
"""zr's preloaded malloc beside jemalloc's, glibc's and mimalloc's: time and peak memory over the workloads of
tests/bench/malloc, a block that grows, a server that goes idle, the start of a process. Prints; never fails on time."""
import argparse
import glob
import json
import math
import os
import statistics
import subprocess
import sys
import time

from bench_speeds import MACHINE

sys.path.insert(0, "tests/support")
from zrtest import BUILD

PROGRAM = os.path.join(BUILD, "tests", "malloc_workloads")
BASE = "jemalloc"


def found(name):
    return [path for folder in ("/usr/lib/*-linux-*", "/usr/lib64", "/usr/lib") for path in glob.glob(f"{folder}/{name}")]


# Name, the library to preload (the first that is there), who brings it.
LIBRARIES = (("glibc", [""], ""),
             ("jemalloc", found("libjemalloc.so.2"), "Debian's libjemalloc2"),
             ("mimalloc", found("libmimalloc.so.2*"), "Debian's libmimalloc-dev"),
             ("zr", glob.glob(os.path.abspath(os.path.join(BUILD, "lib", "libzr_malloc.so"))), "make"))
PARTS = ("workloads", "grow", "server", "start")
GROW_ROUNDS, STARTS = 3, 200
LOAD_SECONDS = 5  # by when a server's load is over where nothing else runs: the next begins while it idles
MIB = 1 << 20


def names(text):
    return text.split(",")


def environment(library):
    return {**{k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}, **({"LD_PRELOAD": library} if library else {})}


def begin(library, *words):
    return subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, env=environment(library), text=True)


def end(process):
    """What it printed, and the processor time it took, user's and system's."""
    out = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(process.args)} ended with {process.returncode}")
    return {**json.loads(out), "processor": usage.ru_utime + usage.ru_stime}


def rounds(allocators, count, run):
    """{allocator: [run(its library) of each round]}, in turn, beginning with another each time, so that a machine's mood
    falls on all alike."""
    order, results = list(allocators), {name: [] for name in allocators}
    for _ in range(count):
        for name in order:
            results[name].append(run(allocators[name]))
        order.append(order.pop(0))
    return results


def medians(runs, key):
    return {name: statistics.median(run[key] for run in list_) for name, list_ in runs.items()}


def same_checksums(name, results):
    sums = {run["checksum"] for runs in results.values() for run in runs}
    if len(sums) > 1:
        raise SystemExit(f"{name}: the allocators' checksums differ: {results}")



def ratios_of(values):
    base = values.get(BASE)
    return {name: value / base for name, value in values.items()} if base else {}


def workloads(allocators, chosen, count):
    """Three tables side by side: processor time, wall time and peak memory."""
    kinds = (("processor", "processor s", "{:.3f}", 1), ("seconds", "wall s", "{:.3f}", 1), ("peak_bytes", "peak MiB", "{:.1f}", MIB))
    others = [name for name in allocators if name != BASE]
    width = 12 + 9 * len(others)
    print(f"{count} rounds; medians, of {BASE} as they are, of the others as times {BASE}'s. Held to: processor time (user and system) and peak.")
    print(" " * 14 + " | ".join(f"{words + ', ' + BASE:<{width}}"[:width] for _, words, _, _ in kinds))
    print(" " * 14 + " | ".join(f"{BASE:>12}" + "".join(f"{name:>9}" for name in others) for _ in kinds))
    report, logs = {}, {kind[0]: {name: [] for name in others} for kind in kinds}
    for name in chosen:
        results = rounds(allocators, count, lambda library: end(begin(library, name)))
        same_checksums(name, results)
        report[name], cells = {}, []
        for key, _, form, unit in kinds:
            report[name][key] = values = medians(results, key)
            ratio = ratios_of(values)
            cells.append(f"{form.format(values[BASE] / unit) if BASE in values else '-':>12}")
            for other in others:
                cells[-1] += f"{ratio[other]:9.3f}" if ratio else f"{form.format(values[other] / unit):>9}"
                logs[key][other].append(math.log(ratio.get(other, 1)))
        print(f"{name:14}" + " | ".join(cells), flush=True)
    if BASE in allocators and chosen:
        means = {key: {other: math.exp(statistics.mean(of)) for other, of in logs[key].items()} for key in logs}
        print(f"{'geometric mean':14}" + " | ".join(f"{1:12.3f}" + "".join(f"{means[key][other]:9.3f}" for other in others) for key in means))
        report["geometric mean"] = means
    return report


def grow(allocators):
    print(f"\na block from 1 MiB to 1 GiB by realloc in steps of 1 MiB, its new pages written between the calls; the calls alone, median of {GROW_ROUNDS}:")
    if allocators.pop("mimalloc", None):
        print("  mimalloc is left out: it copies the block at every step, which takes minutes")
    results = rounds(allocators, GROW_ROUNDS, lambda library: end(begin(library, "grow")))
    same_checksums("grow", results)
    seconds, peaks = medians(results, "seconds"), medians(results, "peak_bytes")
    for name in allocators:
        faster = f"{seconds[BASE] / seconds[name]:8.1f} x as fast as {BASE}" if BASE in seconds else ""
        print(f"  {name:10} {1e3 * seconds[name]:10.2f} ms, peak {peaks[name] / MIB:6.0f} MiB {faster}", flush=True)
    return {name: {"seconds": seconds[name], "peak_bytes": peaks[name]} for name in allocators}


def server(allocators):
    report = {}
    for workload, sizes in (("server-large", "16 KiB to 8 MiB"), ("server-small", "16 to 2,048 bytes")):
        print(f"\na server's load, objects of {sizes}: resident MiB at the peak of 600 MiB in use, and once four fifths are freed:")
        processes = {}
        for name, library in allocators.items():
            processes[name] = begin(library, workload)
            time.sleep(LOAD_SECONDS)
        results = {name: end(process) for name, process in processes.items()}
        same_checksums(workload, {name: [run] for name, run in results.items()})
        base = results.get(BASE)
        for name, run in results.items():
            cells = (f"{words} {run['rss_bytes'][i] / MIB:6.1f}" + (f" ({run['rss_bytes'][i] / base['rss_bytes'][i]:5.3f} x {BASE}'s)" if base else "")
                     for i, words in enumerate(("at the peak", "1 s after", "30 s after")))
            print(f"  {name:10} {', '.join(cells)}; in use {run['live_bytes'] / MIB:.1f}", flush=True)
        report[workload] = {name: {key: run[key] for key in ("rss_bytes", "live_bytes", "peak_bytes")} for name, run in results.items()}
    return report


def start(allocators):
    def once(library):
        before = time.perf_counter()
        process = os.posix_spawn("/bin/true", ["true"], environment(library))
        os.waitpid(process, 0)
        return {"seconds": time.perf_counter() - before}

    values = medians(rounds({"glibc": "", **allocators}, STARTS, once), "seconds")
    print(f"\nthe start and end of /bin/true, medians of {STARTS} runs; {1e3 * values['glibc']:.2f} ms with nothing preloaded:")
    for name in allocators:
        print(f"  {name:10} {1e3 * (values[name] - values['glibc']):+.2f} ms", flush=True)
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = names(subprocess.run([PROGRAM, "list"], capture_output=True, text=True, check=True).stdout.strip().replace("\n", ","))
    known = [name for name, _, _ in LIBRARIES]
    for option, values in (("workloads", listed), ("allocators", known), ("parts", PARTS)):
        parser.add_argument(f"--{option}", type=names, default=list(values), metavar="A,B", help=f"of {', '.join(values)}")
    parser.add_argument("--rounds", type=int, default=5, help="of each workload, 5 if not given")
    parser.add_argument("--json", metavar="FILE", help="writes all medians there")
    given = parser.parse_args()
    for option, values in (("workloads", listed), ("allocators", known), ("parts", PARTS)):
        for name in getattr(given, option):
            if name not in values:
                parser.error(f"--{option} {name}: give some of {', '.join(values)}")
    if given.rounds < 1:
        parser.error("--rounds: give 1 or more")
    print(f"machine: {MACHINE}")
    allocators = {}
    for name, found, source in LIBRARIES:
        if name in given.allocators and found:
            allocators[name] = found[0]
        elif name in given.allocators:
            print(f"{name} is left out: its library is not here ({source} brings it)")
    report = {"machine": MACHINE, "rounds": given.rounds}
    for part, measure in (("workloads", lambda: workloads(allocators, given.workloads, given.rounds)), ("grow", lambda: grow(dict(allocators))),
                          ("server", lambda: server(allocators)), ("start", lambda: start(allocators))):
        if part in given.parts and allocators:
            report[part] = measure()
    if given.json:
        with open(given.json, "w") as file:
            json.dump(report, file, indent=1)


main()
