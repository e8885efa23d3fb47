"""hosts.py: two "hosts" of this machine, for runs under mpirun or over TCP: namespaces with names, addresses and a link of their own.

The calling process becomes the first host (its network and its host name change), so it should be a child for that purpose. The second
host ends with it. Nothing is left on the machine."""
import ctypes
import json
import os
import signal
import subprocess

from zrtest import MPI_SETTINGS, ZR_TRAIN, Run, arguments, mpi_missing, path

ADDRESSES = ("10.119.0.1", "10.119.0.2")
INTERFACE = "zr-link"
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_second = None


def _run(*command):
    """Why a command fails; "" if it succeeds."""
    try:
        got = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return "" if got.returncode == 0 else f"{' '.join(command)}: {got.stderr.strip()}"


def in_second(*command):
    """The command line that runs a command on the second host."""
    return ("nsenter", "-t", str(_second.pid), "-n", "-u", "--", *command)


def _start_second():
    """The process whose namespaces are the second host's, once it has them."""
    def leave():
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return subprocess.Popen(["unshare", "-n", "-u", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE, preexec_fn=leave)


def cut():
    """Cuts the link: packets of both hosts are lost without an error. Returns the reason if that is impossible."""
    return _run("ip", "link", "set", INTERFACE, "down")


def mend():
    """Restores the link. Returns the reason if that is impossible."""
    return _run("ip", "link", "set", INTERFACE, "up")


def become_hosts(mpi=True):
    """Makes this process the first of two hosts, mpi: for runs under mpirun. Returns why that cannot be; "": it is."""
    global _second
    why = mpi_missing() if mpi else ""
    if why:
        return why
    if _libc.unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0:
        return f"namespaces are refused (unshare: {os.strerror(ctypes.get_errno())})"
    _second = _start_second()
    if not _second.stdout.read(1):
        return "namespaces are refused (unshare -n -u)"
    why = _run("hostname", "zr-first") or _run(*in_second("hostname", "zr-second"))
    why = why or _run("ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", str(_second.pid))
    for address, command in zip(ADDRESSES, (lambda *words: words, in_second)):
        why = why or _run(*command("ip", "address", "add", address + "/24", "dev", INTERFACE))
        for name in ("lo", INTERFACE):
            why = why or _run(*command("ip", "link", "set", name, "up"))
    with open(path("agent"), "w", encoding="ascii") as file:  # started with the host's name and a command
        file.write(f"#!/bin/sh\nshift\nexec {' '.join(in_second('sh'))} -c \"$*\"\n")
    os.chmod(path("agent"), 0o755)
    return why


def shape(megabits):
    """Gives both ends of the link a rate. Returns why that cannot be."""
    rule = ("tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms")
    return _run(*rule) or _run(*in_second(*rule))


def unshape():
    _run("tc", "qdisc", "delete", "dev", INTERFACE, "root")
    _run(*in_second("tc", "qdisc", "delete", "dev", INTERFACE, "root"))


def sent_bytes():
    """Bytes that the first host has sent over the link."""
    with open(f"/proc/{os.getpid()}/net/dev", encoding="ascii") as file:
        return next(int(line.split()[9]) for line in file if line.strip().startswith(INTERFACE))


def train_on_hosts(ranks, flags=(), timeout=600, **options):
    """Runs zr-train as ranks of the first host and of the second one: (2, 1) is three of them. flags: of mpirun."""
    report = path("hosts.json")
    hosts = ",".join(f"{address}:{count}" for address, count in zip(ADDRESSES, ranks))
    settings = {"plm_rsh_agent": path("agent"), "oob_tcp_if_include": INTERFACE, "btl": "self,vader,tcp", "btl_tcp_if_include": INTERFACE,
                "pml": "ob1"}
    line = ["mpirun", "--host", hosts, "-n", str(sum(ranks)), *flags]
    for name, value in settings.items():
        line += ["--mca", name, value]
    got = subprocess.run([*line, ZR_TRAIN, *arguments(comm="mpi", json=report, **options)], capture_output=True, text=True, errors="replace",
                         timeout=timeout, env={**os.environ, **MPI_SETTINGS}, stdin=subprocess.DEVNULL)
    if not os.path.exists(report):
        return Run(got.returncode, got.stdout, got.stderr, None)
    with open(report) as file:
        parsed = json.load(file)
    os.unlink(report)
    return Run(got.returncode, got.stdout, got.stderr, parsed)
