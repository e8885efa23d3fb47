#!/usr/bin/env python3
"""zr serve: its metrics beside the figures of zr ps, on a socket and on a port; who gets nothing; hostile and slow askers;
the sample dashboard asks for metrics that are there."""
import atexit
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys

sys.path.insert(0, "tests/support")
from zrtest import BUILD, HANG, done, note, ok, path, same, settles, wait_for

ZR, LIBRARY = (os.path.abspath(os.path.join(BUILD, name)) for name in ("bin/zr", "lib/libzr.so"))
RUNTIME = path("runtime")
os.makedirs(RUNTIME, 0o700)
ENVIRONMENT = {**os.environ, "XDG_RUNTIME_DIR": RUNTIME}
SOCKET = os.path.join(RUNTIME, "zr", "metrics.sock")


def zr(*words):
    return subprocess.run([ZR, *map(str, words)], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT)


def serve(*words):
    """A server, and what it said first."""
    server = subprocess.Popen([ZR, "serve", *map(str, words)], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    atexit.register(server.kill)
    return server, server.stderr.readline()


def ask(where, data):
    """All of the answer; b"" where it closes without one."""
    with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as link:
        link.settimeout(HANG)
        link.connect(where)
        try:
            link.sendall(data)
            return b"".join(iter(lambda: link.recv(65536), b""))
        except (BrokenPipeError, ConnectionResetError):
            return b""


def get(where, head="GET /metrics HTTP/1.1\r\nHost: zr\r\n\r\n"):
    """Status and body."""
    answer = ask(where, head.encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    length = re.search(r"Content-Length: (\d+)", head)
    if body and (not length or int(length[1]) != len(body)):
        return None, answer
    return int(head.split()[1]) if head else None, body


def samples(text):
    """{name: {labels: value}}; every line is one of the format's, and a metric's lines are together."""
    found, order = {}, []
    for line in text.splitlines():
        if line.startswith("# "):
            assert re.fullmatch(r"# (HELP [a-z_]+ .+|TYPE [a-z_]+ (gauge|counter))", line), line
            continue
        name, _, labels, value = re.fullmatch(r'([a-z_]+)(\{((?:[a-z]+="(?:[^"\\\n]|\\["\\])*",?)*)\})? (\d+)', line).groups()
        found.setdefault(name, {})[tuple(sorted(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', labels or "")))] = int(value)
        order += [name] if order[-1:] != [name] else []
    assert len(order) == len(set(order)), order
    return found


program = subprocess.Popen(['/p"y\\\x1b\n', "tests/support/live_program.py", LIBRARY], executable="/usr/bin/python3",
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
atexit.register(program.kill)
program.stdout.readline()
server, words = serve()
same(words, f"zr: serve: /metrics at {SOCKET}\n", "it says where")
same(stat.S_IMODE(os.stat(SOCKET).st_mode), 0o600, "its socket is its user's alone")
metrics = {}


def check_metrics():
    status, text = get(SOCKET)
    same(status, 200, "it answers")
    metrics.clear()
    metrics.update(samples(text))
    for arena in json.loads(zr("ps", "--json").stdout)["processes"][0]["arenas"]:
        labels = {"pid": str(program.pid), "program": 'p\\"y\\\\??', "arena": str(arena["number"]), "name": arena["name"]}
        key = tuple(sorted(labels.items()))
        want = {name: value for name, value in arena.items() if isinstance(value, int) and name not in ("number", "stripes_count")}
        got = {name: metrics.get("zr_arena_" + (name if name == "blocks_count" else re.sub("_count$", "_total", name)), {}).get(key)
               for name in want}
        got["blocks_count"] = metrics["zr_arena_blocks"][key]
        same(got, want, f"arena {arena['name']}: the figures of zr ps")
        same([[metrics[f"zr_arena_tag_{which}_bytes"][tuple(sorted({**labels, "tag": tag}.items()))] for which in ("live", "peak")]
              for tag in arena["tags"]], [[tag["live_bytes"], tag["peak_bytes"]] for tag in arena["tags"].values()], "and by tag")
    same(list(metrics["zr_process_up"].values()), [1], "the process is up")
    same(samples(zr("serve", "--once").stdout), metrics, "--once prints the same")


settles(check_metrics)
with open("examples/grafana.json") as file:
    board = json.load(file)
asked = set(re.findall(r"zr_[a-z_]+", json.dumps([panel["targets"] for panel in board["panels"]] + board["templating"]["list"])))
ok(asked and asked <= set(metrics), f"the dashboard's {len(asked)} metrics are there") or note(asked - set(metrics))

for head, status in [("POST /metrics HTTP/1.1\r\n\r\n", 405), ("GET / HTTP/1.1\r\n\r\n", 404), ("GET /metricsx HTTP/1.1\r\n\r\n", 404),
                     ("GET /metrics?x=1 HTTP/1.0\n\n", 200), ("HEAD /metrics HTTP/1.1\r\n\r\n", 200), ("\r\n\r\n", 405),
                     ("GET\r\n\r\n", 405), ("GET /metrics HTTP/1.1\r\nA: \0\r\n\r\n", None), ("A" * 100000, None)]:
    same(get(SOCKET, head)[0], status, f"{head[:30]!r}: {status}")
same(get(SOCKET, "HEAD /metrics HTTP/1.1\r\n\r\n")[1], "", "HEAD has no body")
silent = [socket.socket(socket.AF_UNIX) for _ in range(2)]
for one in silent:
    one.connect(SOCKET)
silent[0].send(b"GET /met")
same(get(SOCKET)[0], 200, "silent askers do not stay in the way")
leaving = socket.socket(socket.AF_UNIX)
leaving.connect(SOCKET)
leaving.send(b"GET /metrics HTTP/1.1\r\n\r\n")
leaving.close()
same(get(SOCKET)[0], 200, "nor does one that leaves")
second, words = serve()
ok("another program listens" in words, "a second one does not take its place") or note(words)
same(second.wait(timeout=HANG) if "another" in words else None, 3, "and ends")
server.send_signal(signal.SIGTERM)
same((server.wait(timeout=HANG), os.path.exists(SOCKET)), (0, False), "it ends, and takes its socket along")

server, words = serve("--listen", "127.0.0.1:0", program.pid)
port = ("127.0.0.1", int(re.search(r"http://127\.0\.0\.1:(\d+)/metrics", words)[1]))
for host, status in (("127.0.0.1:1", 200), ("localhost", 200), ("evil.example:80", 403), ("127.0.0.1.evil.example", 403)):
    same(get(port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")[0], status, f"Host {host}: {status}")
program.send_signal(signal.SIGSTOP)
threads = f"/proc/{program.pid}/task"
wait_for(lambda: all(open(f"{threads}/{thread}/stat").read().rsplit(")", 1)[1].split()[0] == "T" for thread in os.listdir(threads)))
settles(lambda: same(list(samples(get(port, "GET /metrics HTTP/1.1\r\n\r\n")[1])["zr_process_up"].values()), [0], "one that is stopped is not up"))
program.kill()
program.wait()
settles(lambda: same((list((got := samples(get(port, "GET /metrics HTTP/1.1\r\n\r\n")[1]))["zr_process_up"].values()), got.get("zr_arena_live_bytes")),
                     ([0], None), "one that is gone has no figures"))
server.kill()
server.wait()
server, _ = serve("--socket", path("own.sock"))
server.kill()
server.wait()
server, words = serve("--socket", path("own.sock"))
ok("own.sock" in words and get(path("own.sock"))[0] == 200, "a socket that a killed one left is taken over")
server.send_signal(signal.SIGINT)
same(server.wait(timeout=HANG), 0, "Ctrl-C ends it")
with open(path("file"), "w") as file:
    file.write("mine")
for words, code, has in [(["--listen", "0.0.0.0:9464"], 2, "127.0.0.1:PORT"), (["--listen", "127.0.0.1:x"], 2, "127.0.0.1:PORT"),
                         (["--listen", "127.0.0.1:70000"], 2, "PORT"), (["--socket", path("file")], 3, "not a socket"),
                         (["--once", "--listen", "[::1]:1"], 2, "exclude each other"), (["x"], 2, "not the number of a process"), (["--socket", "x" * 200], 2, "too long")]:
    got = zr("serve", *words)
    ok(got.returncode == code and has in got.stderr, f"serve {' '.join(words)[:40]}: {has}") or note(got)
same(open(path("file")).read(), "mine", "a file in the way stays")
done()
