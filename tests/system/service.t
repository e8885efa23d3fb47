#!/usr/bin/env python3
"""zrd, the allocator service: eight clients at random, kill -9 of clients and of zrd, every byte accounted for and none
read by another; forks; quotas, reclaim and its deadline; hostile, mute and deaf clients; another user; words and the way
out."""
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading

sys.path.insert(0, "tests/support")
from zrd_client import (CLIENT, ENVIRONMENT, FIELDS, FORM, KINDS, LISTENS, MAGIC, MIB, RUNTIME, SOCKET, UUID, VERSION, ZR, ZRD, FakeZrd, Program, Speaker,
                        Zrd, constant, lent, on_device, send, status, use, zr)
from cuda_train import on_card
from zrtest import BUILD, HANG, SEED, done, note, ok, path, same, settles, skip, train, wait_for

CAPACITY = 256 * MIB


def row(pid):
    return next((client for client in status()["clients"] if client["pid"] == pid), None)


def run_python(body, *options, **environment):
    return subprocess.run([ZR, "run", *options, "--", "/usr/bin/python3", "-c", body], capture_output=True, text=True,
                          timeout=HANG, env={**ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL)


def check_alone():
    """No zrd, and one that has left its socket."""
    for left in ("no zrd", "a stale socket"):
        got = Program("service:required")
        ok("zr service start" in got.words, f"{left}: who requires it is refused, with the way out: {got.words}")
        same(got.end(), 4, "and ends")
        lone = Program("service:on")
        same((lone.words, lone.command("take 5"), lone.end()), ("", "", 0), "a client that would like zrd goes on without it")
        got = zr("status")
        ok(got.returncode == 1 and "zr service start" in got.stderr, f"status: {got.stderr.strip()}")
        got = train(environment=ENVIRONMENT)
        ok(got.code == 0 and "continues without zrd" in got.err, "zr-train says so")
        got = run_python("pass", ZR_CONF="service:on")
        ok(got.returncode == 0 and "continues without zrd" in got.stderr, f"and a preloaded program: {got.stderr.strip()}")
        got = run_python("print(1)", ZR_CONF="service:required")
        ok(got.returncode == 1 and not got.stdout and "zr service start" in got.stderr, "zr run refuses where it is required")
        zrd = Zrd()
        zrd.end(kill=True)
        ok(os.path.exists(SOCKET), "kill -9 leaves the socket")
    got = run_python("print(1)", "--service", ZR_CONF="")
    settles(lambda: same((got.stdout, len(status()["clients"])), ("1\n", 0), "zr run --service starts zrd"))
    zr("stop")
    same(zr("start", "--capacity", "64MiB").returncode, 0, "zr service start goes over it")
    second = subprocess.run([ZRD], env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
    ok(second.returncode == 3 and "another zrd" in second.stderr, f"a second one: {second.stderr.strip()}")
    same(zr("start").returncode, 0, "a second start finds the first")
    late = Program("service:on")
    same(zr("stop").returncode, 0, "zr service stop")
    same(late.command("take 3"), "", "its client goes on")
    zrd = Zrd()
    ok(wait_for(lambda: row(late.pid) and row(late.pid)["held_bytes"] >= 3 * MIB), "and is counted by the next zrd")
    late.end()
    ok(wait_for(lambda: lent() == 0), "until it ends")
    zrd.end()


def check_folder():
    """The folder of the socket, or the socket, is removed: one zrd lends one capacity, and makes its socket again."""
    folder = os.path.dirname(SOCKET)
    zrd, client, other = Zrd("--capacity", 64 * MIB), Program(), Program()
    same((client.command("take 40"), zr("limit", "--group", "red", "--hard", "30MiB").returncode), ("", 0), "a client has 40 of 64 MiB, and a limit is set")
    for what, remove in (("folder", lambda: shutil.rmtree(folder)), ("socket", lambda: os.unlink(SOCKET))):
        os.kill(zrd.pid, signal.SIGSTOP)
        remove()
        second = subprocess.run([ZRD, "--capacity", "64MiB"], env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL)
        ok(second.returncode == 3 and f"`kill {zrd.pid}` ends it" in second.stderr, f"the {what} is removed: a second zrd finds the first: {second.stderr.strip()}")
        os.kill(zrd.pid, signal.SIGCONT)
        got = zr("start", "--capacity", "64MiB")
        ok(got.returncode == 0 and f"as process {zrd.pid}" in got.stderr, f"so does a start: {got.stderr.strip()}")
        ok(wait_for(lambda: os.path.exists(SOCKET)), "the socket is made again")
        ok("zrd has " in other.command("take 30") and lent() == 40 * MIB, "and no more than the capacity is lent")
        ok("the socket was removed" in zrd.words(), "the log says so")
        same(stat.S_IMODE(os.stat(SOCKET).st_mode), 0o600, "and the socket is its user's alone")
    with open(SOCKET + ".limits", encoding="utf-8") as file:
        ok("group 31457280 0 1 red" in file.read(), "and the limits are written there again")
    shutil.rmtree(folder)
    same((zr("stop").returncode, zrd.process.wait(timeout=HANG), client.command("look")), (0, 0, ""), "stop ends a zrd without a folder, and its client goes on")
    zrd.process.stderr.close()
    zrd = Zrd("--capacity", 64 * MIB)
    ok(wait_for(lambda: lent() == 40 * MIB), "and is a client of the next one")
    os.chmod(folder, 0o755)
    same(zr("stop").returncode, 0, "a zrd whose folder others may enter is stopped")
    zrd.end()
    taken = {"others may enter it": lambda: None, "a symbolic link": lambda: (os.rename(folder, folder + ".away"), os.symlink("nowhere", folder)), "a file": lambda: (os.unlink(folder), open(folder, "x", encoding="utf-8").close())}
    for what, make in taken.items():
        make()
        required = Program("service:required")
        required.end()
        for words in (required.words, zr("status").stderr, zr("start").stderr):
            ok(f"'{folder}' is not a folder of this user with mode 0700: remove it" in words, f"a folder that is not zrd's, {what}: {words.strip()}")
    os.unlink(folder)
    os.rename(folder + ".away", folder)
    os.chmod(folder, 0o700)
    for one in (client, other):
        one.end()


def check_release():
    """A zrd of another release: its version, its process and the way out are said, whoever asks; nobody is harmed."""
    def serve():
        while True:
            try:
                line = other.accept()[0]
            except OSError:
                return
            line.recv(FORM.size)
            line.send(FORM.pack(MAGIC, VERSION + 1, KINDS.index("refused"), *[0] * (len(FIELDS) - 6), b"", b"", b""))
            line.close()

    other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    other.bind(SOCKET)
    other.listen(64)
    threading.Thread(target=serve, daemon=True).start()
    lone, required = Program("service:on"), Program("service:required")
    same((lone.words, lone.command("take 5"), required.end()), ("", "", 4), "another release's zrd: a client that would like it goes on without it, one that requires it ends")
    words = {"a client": required.words, "zr-train": train(environment=ENVIRONMENT).err,
             **{name: got.stderr for name, got in (("status", zr("status")), ("start", zr("start")), ("run --service", run_python("pass", "--service", ZR_CONF="")))}}
    for who, said in words.items():
        ok(f"process {os.getpid()} uses version {VERSION + 1}" in said and "install zrd and the libraries of one release" in said, f"{who}: {said.strip():.300}")
    other.shutdown(socket.SHUT_RDWR)
    other.close()
    zrd = Zrd()
    ok(wait_for(lambda: row(lone.pid) and row(lone.pid)["held_bytes"] >= 5 * MIB), "it is a client of the zrd that comes after it")
    same((lone.command("look"), lone.end(), zrd.end()), ("", 0, 0), "and has lost nothing")


def check_random(kind, count, rounds, churn):
    """zrd waits long for the clients of a busy machine: a deadline that passes has a test of its own."""
    draws = random.Random(SEED)
    options = ("--capacity", CAPACITY, "--within", 120000)
    use(kind)
    zrd = Zrd(*options)
    clients = [Program(ZR_GROUP=f"group{i % 3}") for i in range(count)]
    same([client.words for client in clients], [""] * count, f"{count} clients of {kind} memory")
    for turn in range(rounds):
        for client in clients:
            client.say(f"churn {churn}")
        if turn < rounds - 1:
            zrd.end(kill=True)
            zrd = Zrd(*options)
            killed = clients.pop(draws.randrange(len(clients)))
            killed.end(kill=True)
        answers = [client.hear() for client in clients]
        same(answers, [""] * len(clients), f"{len(clients)} of them take and give, and see nothing of the deaths")
        ok(wait_for(lambda: {one["pid"] for one in status()["clients"]} == {client.pid for client in clients}),
           "those that live are zrd's clients, and no others")
        now = {}

        def check_sums():
            now.update(status())
            same(now["lent_bytes"], sum(one["held_bytes"] for one in now["clients"]), "what is lent is what they hold")
            same([one for one in now["clients"] if one["resident_bytes"] > one["held_bytes"]], [], "and none takes more of the machine than that")
        settles(check_sums)
        note(f"{now['lent_bytes'] / MIB:.0f} MiB lent, {sum(one['messages'] for one in now['clients'])} messages")
    ok(now["lent_bytes"] <= CAPACITY, "within the capacity")
    same([client.command("give") + client.command("trim") for client in clients], [""] * len(clients), "all is given back, unharmed")
    settles(lambda: same(lent(), 0, "none is lost and none there twice"))
    same([client.end() for client in clients], [0] * len(clients), "they end well")
    same(zrd.end(), 0, "and so does zrd")
    if kind == "cuda": # whose account counts what any process holds
        use(kind, ZR_EMULATOR_MEMORY=str(CAPACITY))
        zrd, client = Zrd("--capacity", CAPACITY), Program()
        same(client.command(f"take {CAPACITY // MIB}"), "", "all of the device is there")
        client.end()
        zrd.end()
        use(kind)


def check_steady(zrd):
    client = Program()
    client.command("take 20")
    client.command("give")
    before = row(client.pid)["messages"]
    for _ in range(50):
        client.command("take 20")
        client.command("give")
    more = row(client.pid)["messages"] - before
    ok(more <= 1, f"memory that comes and goes within the arena makes no message: {more} in 50 rounds, where one may have been on its way")
    same(client.end(kill=True) < 0 and wait_for(lambda: lent() == 0), True, "kill -9 of a client returns all")
    settles(lambda: same(len(status()["clients"]), 0, "and it is gone"))


def check_fork():
    parent = Program()
    same(parent.command("take 8") + parent.command("take 4"), "", "a client")
    same(parent.command("fork") + parent.command("take 6"), "", "its child sees what it has inherited, and takes its own")
    settles(lambda: same(sorted(one["held_bytes"] // MIB for one in status()["clients"]), [6, 12], "each holds its own"))
    os.kill(parent.pid, 9)
    ok(wait_for(lambda: (row(parent.pid) or {}).get("left")), "the parent is killed: its memory counts while the child maps it")
    same(parent.command("take 4"), "", "the child goes on")
    parent.end()
    ok(wait_for(lambda: lent() == 0), "and with the child's end all is back")


def check_quotas():
    client = Program(ZR_GROUP="blue")
    same(client.command("take 40"), "", "a client of a group")
    got = zr("limit", "--pid", client.pid, "--hard", "16MiB")
    ok(got.returncode == 0 and "more than the 16.0 MiB" in got.stderr, f"a quota below what is held: {got.stderr.strip()}")
    words = client.command("take 40")
    ok("hard quota of 16.0 MiB" in words and "--pid" in words, f"it gets no more: {words:.250}")
    same(client.command("look"), "", "and keeps what it has")
    got = zr("limit", "--capacity", "8MiB")
    ok(got.returncode == 0 and "all together holds" in got.stderr, f"a capacity below what is held: {got.stderr.strip()}")
    same((zr("limit", "--capacity", CAPACITY).returncode, client.command("look")), (0, ""), "nothing is lost")
    zr("limit", "--pid", client.pid, "--hard", 0)
    zr("limit", "--group", "blue", "--hard", "60MiB")
    ok("group blue" in client.command("take 40"), "a group's quota")
    same(client.command("take 10"), "", "up to which there is room")
    refused = [("--pid", 1, "--hard", 5), ("--group", "blue", "--hard", 5, "--soft", 6), ("--hard", 5), (),
               ("--group", "blue", "--shares", 0), ("--pid", client.pid, "--shares", 2), ("--capacity", 0),
               ("--group", "g" * 48, "--hard", 1)]
    for words in refused:
        got = zr("limit", *words)
        ok(got.returncode in (2, 3) and len(got.stderr) > 20, f"limit {' '.join(map(str, words))}: {got.stderr.strip()}")
    for words, want in ((("--hard", "1MiB"), "--pid N or --group NAME"), ((), "--capacity"), (("--capacity", 112), "granule"), (("--capacity", "900TiB"), "exceeds")):
        got = zr("limit", *words)
        ok(got.returncode == 2 and want in got.stderr, f"limit {' '.join(map(str, words))}: {got.stderr.strip()}")
    client.end()


def check_limits_kept():
    """Quotas stand in a file for the next zrd; one that is damaged is set aside, and a full disk said."""
    zrd = Zrd("--capacity", CAPACITY)
    client = Program(ZR_GROUP="red one")
    client.command("take 8")
    for words in (("--group", "red one", "--hard", "60MiB", "--shares", 3), ("--group", "gone", "--soft", "1MiB"), ("--group", "two words", "--hard", 1), ("--pid", client.pid, "--hard", "20MiB"),
                  ("--capacity", "200MiB"), ("--group", "gone", "--soft", 0)):
        same(zr("limit", *words).returncode, 0, f"limit {' '.join(map(str, words))}")
    kept = SOCKET + ".limits"
    with open(kept, encoding="utf-8") as file:
        text = file.read()
    ok("red_one" in text and "two_words" in text and "gone" not in text, "the file has them, and none that was taken away")
    zrd.end(kill=True)
    zrd = Zrd("--capacity", CAPACITY)
    ok(wait_for(lambda: row(client.pid)), "a new zrd")
    now = wait_for(lambda: row(client.pid))
    settles(lambda: same((status()["capacity_bytes"], now["hard_bytes"], now["shares"]), (200 * MIB, 20 * MIB, 3), "has the capacity, a process's quota and a group's shares"))
    ok("hard quota of 20.0 MiB" in client.command("take 30"), "which hold")
    client.end()
    zrd.end()
    zrd = Zrd("--capacity", "128MiB")
    settles(lambda: same(status()["capacity_bytes"], 128 * MIB, "a new capacity on the command line comes before the old limit"))
    os.mkdir(kept + ".new")
    got = zr("limit", "--group", "red", "--hard", "30MiB")
    os.rmdir(kept + ".new")
    ok(got.returncode == 0 and "the next zrd will not have the limit" in got.stderr, f"no file can be written: {got.stderr.strip()}")
    same(zr("limit", "--group", "red", "--hard", "31MiB").returncode, 0, "then one can")
    zrd.end()
    forbid = (os.path.join(BUILD, "tests", "forbid"), "fsync")
    if subprocess.run([*forbid, "true"], stderr=subprocess.DEVNULL).returncode == 0:
        with open(kept, "rb") as file:
            before = file.read()
        zrd = Zrd("--capacity", "128MiB", prefix=forbid)
        got = zr("limit", "--group", "red", "--hard", "32MiB")
        with open(kept, "rb") as file:
            same(("the next zrd will not have the limit" in got.stderr, file.read(), b" red" in before), (True, before, True), "a file takes the place of another when it is on the disk")
        zrd.end()
    else:
        skip("a disk that does not write: needs seccomp")
    os.unlink(kept)
    os.mkfifo(kept)
    os.mkfifo(kept + ".new")
    zrd = Zrd("--capacity", CAPACITY)
    got = zr("limit", "--group", "red", "--hard", "30MiB")
    ok(got.returncode == 0 and "the next zrd will not have the limit" in got.stderr and os.path.exists(kept + ".bad"), f"a named pipe for the file stops nothing: {got.stderr.strip()}")
    os.unlink(kept + ".bad")
    zrd.end()
    for damaged in (text[:-4], text.replace("group", "gruop"), "", "\0" * 100, text.replace("20971520", "x")):
        with open(kept, "w", encoding="utf-8") as file:
            file.write(damaged)
        zrd = Zrd("--capacity", CAPACITY)
        settles(lambda: ok("is invalid" in zrd.words().splitlines()[-2] and os.path.exists(kept + ".bad") and not os.path.exists(kept),
           f"a damaged file is said and set aside: {zrd.words().splitlines()[-2][:150]}"))
        settles(lambda: same(status()["capacity_bytes"], CAPACITY, "and nothing of it holds"))
        os.unlink(kept + ".bad")
        zrd.end()


def check_reclaim():
    thin, other = Program(ZR_GROUP="a"), Program(ZR_GROUP="b")
    same([thin.command("take 4") for _ in range(40)] + [thin.command("thin")], [""] * 41, "a client with 80 MiB idle, each 4 of them between two blocks")
    same((other.command("take 160"), thin.command("look")), ("", ""), "another gets it, and the blocks between stay as they are")
    settles(lambda: ok(row(thin.pid)["held_bytes"] <= 96 * MIB, "the whole granules between them are given"))
    thin.end()
    other.end()
    idle, busy = Program(ZR_GROUP="a"), Program(ZR_GROUP="b")
    idle.command("take 180")
    idle.command("give")
    settles(lambda: ok(row(idle.pid)["held_bytes"] >= 180 * MIB, "a client with idle memory"))
    same(busy.command("take 200"), "", "another gets it")
    settles(lambda: ok(row(idle.pid)["held_bytes"] <= 56 * MIB, "from the first"))
    words = idle.command("take 120")
    ok(f"pid {busy.pid} (service_client)" in words and "none idle" in words, f"what is in use stays: {words:.300}")
    same(busy.command("look"), "", "whole")
    busy.end()
    same(idle.command("take 120"), "", "and is there for others when it is free")
    idle.command("give")
    got = zr("drain")
    settles(lambda: same((got.returncode, lent()), (0, 0), "drain takes back what is idle"))
    back = f"zr service drain --end{f' --device {UUID}' if on_device() else ''}"  # pasted as it stands
    ok(f"`{back}`" in idle.command("take 5") and back in zr("status").stdout, "and lends no more; the refusal and the status say what ends it")
    subprocess.run(f"PATH={os.path.dirname(ZR)}:$PATH {back}", shell=True, env=ENVIRONMENT, check=True, timeout=HANG)
    same(idle.command("take 5"), "", "until its end")
    same(zr("drain").returncode, 1, "what is in use is told by the exit code")
    zr("drain", "--end")
    idle.end()


def check_tools():
    """zr top, serve, ledger and why show zrd's clients; what was measured says how soon idle memory comes back."""
    idle = Program(ZR_GROUP="a", ZR_CONF="service:required,publish:on")
    idle.command("take 100")
    idle.command("give")
    other = Program(ZR_GROUP="b")
    other.command("take 180")
    words = f"held by pid {idle.pid} (service_client)"
    tools = {"top": ["--once", "--columns", "100"], "serve": ["--once"], "ledger": [str(idle.pid)], "why": [path("refused.csv")]}
    with open(path("refused.csv"), "w", encoding="ascii") as file:
        file.write("event,address,bytes,unit_bytes,tag\nmap,0x200000,2097152,0,\nalloc,0x200000,1048576,,grad\nrefused,,9999999,,grad\n")
    said = {name: subprocess.run([ZR, name, *options], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
            for name, options in tools.items()}
    same([got.returncode for got in said.values()], [0] * 4, "top, serve, ledger and why") or note(str(said))
    ok("zrd lends" in said["top"].stdout and words in said["top"].stdout, "top has zrd's totals and clients")
    ok(f'zr_service_held_bytes{{pid="{idle.pid}",program="service_client",group="a"}}' in said["serve"].stdout
       and f"zr_service_capacity_bytes {CAPACITY}\n" in said["serve"].stdout, "serve its metrics")
    got = subprocess.run([ZR, "ps", "--json"], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    ok({status()["pid"], idle.pid, other.pid} <= {one["pid"] for one in json.loads(got.stdout)["processes"]}, "ps has zrd, and clients of any size")
    ok("zrd has lent it" in said["ledger"].stdout, "ledger what of a process's memory is leased")
    ok(words in said["why"].stdout and re.search(r"MiB idle, reclaimable in \d+ ms", said["why"].stdout), "why who holds what, and how soon it comes back")
    note(said["why"].stdout[said["why"].stdout.find("now zrd"):].strip())
    got = subprocess.run([ZR, "top", "--once", "--json"], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    shown = json.loads(got.stdout)["service"]
    same((shown["capacity_bytes"], {one["pid"] for one in shown["clients"]}), (CAPACITY, {idle.pid, other.pid}), "top --json has them, too")
    idle.end()
    other.end()


def check_deadline():
    zrd = Zrd("--capacity", CAPACITY, "--within", 400)
    deaf, mute = Speaker(), Speaker(flags=0)
    same([deaf.ask("lease", bytes=200 * MIB)["kind"], mute.ask("lease", bytes=2 * MIB)["kind"]], ["granted"] * 2,
         "a client that will answer nothing, and one that says that it cannot")
    deaf.send("file")
    same(deaf.hear()["kind"], "done", "the first has a file")
    os.ftruncate(deaf.fds[0], 5 * MIB)
    client = Program()
    same(client.command("take 100"), "", "a client that wants the memory gets it after the deadline")
    heard = [deaf.hear(deaf.bell), deaf.hear(deaf.bell), deaf.hear(deaf.bell), deaf.hear()]
    same([one and one["kind"] for one in heard], ["reclaim", "ended", None, None], "the first is asked, ended, and hung up on")
    ok("within 400 ms: its leases end" in heard[1]["words"], f"with words: {heard[1]['words']}")
    settles(lambda: ok(heard[1]["words"] in zrd.words(), "which are in the log, too"))
    settles(lambda: same((os.fstat(deaf.fds[0]).st_size, row(os.getpid())["held_bytes"]), (0, 2 * MIB),
                         "its memory is taken; who cannot answer was not asked, and keeps its own"))
    try:
        os.ftruncate(deaf.fds[0], MIB)
        ok(False, "the file cannot grow again")
    except PermissionError:
        ok(True, "the file cannot grow again")
    client.end()
    for one in (deaf, mute):
        one.close()
    zrd.end()


def check_gathered():
    """What a client gave back without a word before its zrd was killed, the next zrd does not hear of."""
    zrd, client = Zrd(), Program()
    same([client.command(order) for order in ("take 30", "gather", "give", "trim")], [""] * 4, "a client gives memory back, and has yet to say so")
    same(lent(), 30 * MIB, "when its zrd is killed")
    zrd.end(kill=True)
    zrd = Zrd()
    same((client.command("take 40"), client.command("gathered"), client.command("take 1")), ("", "", ""), "to the next zrd it says nothing of that")
    same(row(client.pid)["held_bytes"] // (8 * MIB), 5, "which counts what it has")
    client.end()
    zrd.end()


def check_last_words():
    """A zrd that hangs up with a request unread, which resets the connection: what it said before is heard."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(SOCKET)
        server.listen(8)
        asking = subprocess.Popen([ZR, "service", "status"], env=ENVIRONMENT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

        def turn_away():
            try:
                while True:
                    with server.accept()[0] as line:
                        select.select([line], [], [], HANG)
                        os.kill(asking.pid, signal.SIGSTOP)  # it reads when both the words and the end are there
                        os.waitid(os.P_PID, asking.pid, os.WSTOPPED)
                        send(line, "refused", result=1, words=b"it is turned away")
                    os.kill(asking.pid, signal.SIGCONT)
            except OSError:
                pass

        thread = threading.Thread(target=turn_away, daemon=True)
        thread.start()
        words = asking.communicate(timeout=HANG)[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    os.unlink(SOCKET)
    ok("it is turned away" in words, f"the last words before a reset are heard: {words.strip()}")


def check_ended():
    """A client whose leases zrd has ended says why, whatever zrd it meets next, and does not register again."""
    zrd = Zrd("--capacity", CAPACITY, "--within", 1000)
    ended, other = Program(), Program()
    same(ended.command("take 200"), "", "a client")
    ok(wait_for(lambda: row(ended.pid)["listens"]), "hears its bell: until then zrd asks it for nothing")
    os.kill(ended.pid, signal.SIGSTOP)
    ok(wait_for(lambda: not other.command("take 100")), "is stopped, and another gets its memory")
    other.end()
    zrd.end(kill=True)
    zrd = Zrd("--capacity", CAPACITY)
    before = len(zrd.words())
    ended.say("take 5")
    os.kill(ended.pid, signal.SIGCONT)
    words = ended.hear()
    ok("within 1000 ms: its leases end" in words, f"the next zrd is there when it goes on, and it says: {words}")
    said = zrd.words()[before:]
    ok(said.count(f"pid {ended.pid} ") <= 1, f"to the next zrd it is at most one line: {said}")
    clients = [Program(), Program()]
    for client in clients:
        client.command("take 5")
    ended.end(kill=True)
    zrd.end(kill=True)
    why = b"it is told why"
    for client, kind in zip(clients, ("adopt", "lease")):
        fake = FakeZrd(**{kind: lambda line, bell: send(bell, "ended", words=why)})
        same(client.command("take 30"), why.decode(), f"a zrd that ends it at its {kind}: it knows the reason")
        ok(fake.hellos < 4, f"and has not registered time and again: {fake.hellos}")
        fake.close()
        client.end(kill=True)


def check_device():
    """What is a device's alone: no zrd can take memory from a process that lives, and importers keep pages."""
    use("cuda", ZR_EMULATOR_MEMORY=str(512 * MIB))
    options = ("--capacity", "512MiB", "--within", 400)
    apart = Program("service:off")
    same(apart.command("take 256"), "bytes of another process", "a program that does without zrd has the half of the device, uncleared")
    zrd, speaker = Zrd(*options), Speaker()
    lease = speaker.ask("lease", bytes=4 * MIB)
    settles(lambda: same((lease["kind"], len(speaker.fds), row(os.getpid())["resident_bytes"]), ("granted", 1, 4 * MIB), "a piece comes by descriptor"))
    same(speaker.ask("file", count=lease["count"])["kind"], "done", "and once more for who asks by its number")
    same(speaker.ask("file", count=lease["count"] + 1)["kind"], "refused", "by no other")
    speaker.send("return", bytes=4 * MIB, count=lease["count"] + 1)
    while (heard := speaker.hear(speaker.bell))["kind"] == "inquire":
        pass
    ok("does not hold" in heard["words"], f"what it does not hold it cannot give back: {heard['words']}")
    ok(wait_for(lambda: row(os.getpid())["left"]), "its process lives, and what that holds counts")
    again = Speaker()
    settles(lambda: same(lent(), 0, "until it says hello again, and what it holds"))
    again.close()
    speaker.close()
    keeper, other = Program(), Program()
    same((keeper.command("take 200"), zrd.descriptors() < 60), ("", True), "a hundred pieces, and zrd keeps a descriptor of none")
    tools = [subprocess.run([ZR, *words], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL).stdout
             for words in (["service", "status", "--json"], ["service", "status"], ["top", "--once"], ["serve", "--once"])]
    shown = json.loads(tools[0])["devices"]
    same([(one["device"], one["lent_bytes"], len(one["clients"])) for one in shown], [(UUID, 200 * MIB, 2)], "status without a device shows all zrds")
    ok(f"of device {UUID} are lent" in tools[1] and f"zrd of device {UUID:.8} lends 200 MiB" in tools[2], "as does top")
    ok(f'zr_service_lent_bytes{{device="{UUID}"}} {200 * MIB}' in tools[3] and "zr_service_up 0" in tools[3], "and the metrics")
    zrd.end(kill=True)
    same(keeper.command("look"), "", "keeps its pages when zrd is killed")
    zrd = Zrd(*options)
    ok(wait_for(lambda: row(keeper.pid) and row(keeper.pid)["held_bytes"] == 200 * MIB), "and is counted by the next")
    words = other.command("take 100")
    ok("zrd may lend" in words and "CUDA driver refused" in words, f"which cannot lend what the device has not got: {words:.400}")
    same(keeper.command("give") + other.command("take 100"), "", "but has it from a client with idle memory")
    same(keeper.command("take 100"), "", "which takes the remainder")
    keeper.say("look")
    keeper.hear()
    os.kill(keeper.pid, 19)
    words = other.command("take 120")
    settles(lambda: ok(f"pid {keeper.pid} did not answer" in zrd.words() and "freed when it exits" in zrd.words(), "who does not answer loses its leases"))
    settles(lambda: ok(row(keeper.pid)["left"] and "cannot allocate them" in words, "and its memory counts while it lives"))
    os.kill(keeper.pid, 9)
    same(other.command("take 120"), "", "and is there when it ends")
    same(other.command("share"), "", "what was leased can be shared further, although the driver exports only what a process has made")
    keeper.end()
    other.end()
    apart.end()
    ok(wait_for(lambda: lent() == 0), "all is back")
    zrd.end()


def check_hostile(zrd, garbage_count):
    draws = random.Random(SEED)
    before = zrd.at_rest()
    wrong = Speaker(hello=False)
    answer = wrong.ask("hello", version=1)
    ok("version" in answer["words"] and wrong.hear() is None, f"another version: {answer['words']}")
    wrong.close()
    lies = [("return", {"bytes": 1}), ("lease", {"bytes": 0}), ("lease", {"bytes": 1 << 63}), ("given", {"serial": 7}),
            ("hello", {}), ("adopt", {}), ("granted", {}), ("file", {"fds": [0]}), ("adopt", {"fds": [0]}),
            ("adopt", {"fds": [0, 1]}), ("status", {"fds": [0, 1, 2, 0, 1]}), ("none", {}), ("lease", {"words": b"x" * 344})]
    with open(path("precious"), "w+", encoding="ascii") as precious:
        precious.write("mine")
        precious.flush()
        lies.append(("adopt", {"fds": [precious.fileno()]}))
        for kind, fields in lies:
            liar = Speaker()
            liar.send(kind, **fields)
            ended = liar.hear(liar.bell)
            while (answer := liar.hear()) is not None and answer["kind"] == "refused":
                pass
            ok(ended and ended["kind"] == "ended" and answer is None, f"{kind}: {ended and ended['words']}")
            liar.close()
        same(os.path.getsize(path("precious")), 4, "a file of another kind is not touched")
    refused = [Speaker(held_bytes=1 << 62) for _ in range(3)]
    same({one.bell for one in refused}, {None}, "who says that it holds more than there is is refused")
    for one in refused:
        one.close()
    early = Speaker(hello=False)
    early.send("lease", bytes=2 * MIB)
    same(early.hear(), None, "a lease before a hello")
    early.close()
    for i in range(garbage_count):
        garbage = Speaker(hello=i % 2 == 1)
        data = bytearray(draws.randbytes(draws.choice([1, 7, 8, 100, FORM.size - 1, FORM.size, FORM.size + 1, 4000])))
        if i % 3 == 0 and len(data) >= 8:
            data[:8] = FORM.pack(MAGIC, VERSION, draws.randrange(len(KINDS) + 2), *[0] * (len(FIELDS) - 6), b"", b"", b"")[:8]
        garbage.line.send(data, socket.MSG_NOSIGNAL)
        garbage.close()
    flood = Speaker()
    flood.line.settimeout(5)
    try:
        for _ in range(20000):
            flood.send("status")
    except (OSError, TimeoutError):
        pass
    ok(wait_for(lambda: "does not read its answers" in zrd.words()), "a client that stops reading is ended")
    flood.close()
    stopped = Speaker()
    stopped.send("status", flags=0)
    settles(lambda: ok(zrd.process.poll() is None and status() is not None, "zrd serves on"))
    stopped.close()
    ok(wait_for(lambda: zrd.descriptors() == before), f"and has {before} descriptors, as before")


def check_thousand(zrd):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 1000 if hard >= 4096 else 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    before = zrd.at_rest()
    crowd = [Speaker() for _ in range(count)]
    same({one.ask("lease", bytes=65536)["kind"] for one in crowd}, {"granted"}, f"{count} clients are served")
    settles(lambda: same((len(status()["clients"]), lent()), (count, count * 65536), "and shown"))
    for one in crowd:
        one.close()
    ok(wait_for(lambda: lent() == 0 and zrd.descriptors() == before), "and leave nothing")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def check_full():
    """A zrd without descriptors says so to each process that it turns away."""
    zrd = Zrd("--capacity", CAPACITY, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
    crowd, heard = [], []
    for _ in range(40):
        one = Speaker(hello=False)
        crowd.append(one)
        one.line.settimeout(25)  # after 30 s zrd hangs up on those that said nothing, and so has descriptors again
        try:
            one.send("hello", program=b"speaker", flags=LISTENS)
        except BrokenPipeError:
            pass
        try:
            heard.append(one.hear() or one.hear())
        except TimeoutError:
            heard.append(None)
            break
    same({one and one["kind"] for one in heard}, {"welcome", "refused"}, "more clients than a zrd has descriptors for")
    ok(all("no free descriptor" in one["words"] for one in heard if one and one["kind"] == "refused"), f"all are told: {heard[-1]}"[:300])
    required, got = Program("service:required"), [zr("status"), zr("start"), zr("drain")]
    for words in (required.words, *(one.stderr for one in got)):
        ok("raise `ulimit -n` where zrd is started" in words, f"and so are clients and tools: {words.strip()}")
    same((required.end(), [one.returncode for one in got]), (4, [1, 1, 1]), "which end")
    for one in crowd:
        one.close()
    ok(wait_for(lambda: (status() or {}).get("pid") == zrd.pid), "it serves again when they have gone")
    zrd.end()


def check_faults():
    """Each call of a zrd and of a client in turn: interrupted, it is made again; without a descriptor, twice, they end with
    words or serve, and what comes after is served."""
    refused = 0
    for nth in range(1, 13):
        signals, none = ",".join(f"{site}:eintr:{nth}" for site in ("descriptor", "receive", "send", "wait", "sync")), f"descriptor:twice:{nth}"
        zrd = Zrd("--capacity", CAPACITY, fault=f"{signals},{none},descriptor:{nth + 2}")  # three in a row
        if zrd.process.poll() is not None:
            refused += ok("descriptor" in (words := zrd.process.stderr.read()) or "(error 24)" in words or "Too many open files" in words, f"zrd, {none}: {words.strip()}") or 0
            continue
        for fault in (signals, none):
            one = Program(ZR_FAULT=fault)
            words = one.words or one.command("take 5")
            refused += fault == none and bool(words)
            ok(not words or (fault == none and "ulimit -n" in words), f"a client, {fault}: {words}")
            one.end()
        ok(wait_for(lambda: lent() == 0), f"zrd, {none}, serves on")
        last = Program()
        same(last.words or last.command("take 5"), "", "the next client is served")
        last.end()
        spare = [name for name in os.listdir(f"/proc/{zrd.pid}/fd") if int(name) > 2 and os.readlink(f"/proc/{zrd.pid}/fd/{name}") == "/dev/null"]
        same(len(spare), 1, "zrd has its spare descriptor again")
        same(zrd.end(), 0, "and ends")
    ok(refused > 2, f"{refused} were refused")


def check_other_user(zrd):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        skip("another user: needs root and setpriv")
        return
    ask = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c",
           f"import socket; s = socket.socket(1, 5); s.connect({SOCKET!r}); print(s.recv(1))"]
    folders = [RUNTIME, os.path.dirname(SOCKET), os.path.dirname(RUNTIME)]
    modes = [os.stat(folder).st_mode for folder in folders]
    os.chmod(folders[2], 0o711)
    os.chmod(RUNTIME, 0o711)
    got = subprocess.run(ask, capture_output=True, text=True, timeout=HANG)
    ok("PermissionError" in got.stderr, "another user cannot come to the socket")
    os.chmod(folders[1], 0o711)
    os.chmod(SOCKET, 0o666)
    got = subprocess.run(ask, capture_output=True, text=True, timeout=HANG)
    same(got.stdout, "b''\n", "nor is heard if he could")
    settles(lambda: ok("rejects user 65534" in zrd.words(), "and the log says so"))
    for folder, mode in zip(folders, modes):
        os.chmod(folder, mode)


def check_card_programs():
    """zr-train --backend cuda and a program under zr run --cuda take the device's memory from its zrd."""
    words = {"environment": ENVIRONMENT, "steps": 2, "layers": 1}
    program = [ZR, "run", "--cuda", "--", os.path.abspath(os.path.join(BUILD, "tests", "cuda_program")), "dlsym", "calls"]
    use("host")
    host = Zrd()
    use("cuda")
    ENVIRONMENT["ZR_CONF"] = "service:required,kernels:emulated"
    got = subprocess.run(program, capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    ok(got.returncode != 0 and f"zr service start --device {UUID}" in got.stderr, f"who requires the device's zrd does without no memory: {got.stderr.strip():.200}")
    run = on_card(**words)
    ok(run.code != 0 and f"zr service start --device {UUID}" in run.err, f"nor does zr-train: {run.err.strip()[-200:]}")
    card = Zrd("--capacity", CAPACITY)
    want = subprocess.run(program[4:], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    got = subprocess.run(program, capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    same((got.returncode, got.stdout, got.stderr), (0, want.stdout, ""), "a program that knows nothing of zr finds what it finds without")
    plain, run = on_card(steps=2, layers=1), on_card(**words)
    same((run.code, run.bits), (0, plain.bits), "zr-train: the same losses") or note(run.err)
    ok(wait_for(lambda: lent() == 0), "and nothing stays")
    zr("limit", "--capacity", "2MiB")
    run = on_card(**words)
    ok(run.code == 4 and "zrd lends 2.00 MiB" in run.err, f"who does not fit is told before step 1: {run.err.strip()[-300:]}")
    same((card.end(), host.end()), (0, 0), "both end well")
    ENVIRONMENT["ZR_CONF"] = "kernels:emulated"
    got = subprocess.run([*program[:2], "--service", "--device", "0", *program[2:]], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    same((got.returncode, got.stdout), (0, want.stdout), "zr run --service --device 0 starts the host's zrd and the device's") or note(got.stderr)
    same((status()["capacity_bytes"] > 0, zr("stop").returncode), (True, 0), "which serves, until it is stopped")
    got = subprocess.run([ZR, "run", "--service", "--device", "7", *program[2:]], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    ok(got.returncode != 0 and not got.stdout and "7" in got.stderr, f"a device that is not there: {got.stderr.strip()}")
    ENVIRONMENT["ZR_CONF"] = "service:on"
    use("host")
    same(zr("stop").returncode, 0, "and so is the host's")


def check_set_user_id():
    """A program with other rights than its caller uses none of the caller's variables."""
    program = path("set_user_id")
    shutil.copy(CLIENT, program)
    if os.geteuid() != 0 or os.statvfs(program).f_flag & os.ST_NOSUID:
        skip("a set-user-ID program: needs root and a file system that knows such programs")
        return
    for mode, said in ((0o755, ["no ", "no "]), (0o4755, ["ok ", "ok "])):
        os.chown(program, 65534, 65534)
        os.chmod(program, mode)
        got = [subprocess.run([program], input=orders, capture_output=True, text=True, timeout=HANG, cwd="/", env={**os.environ, **environment}).stdout.splitlines()
               for orders, environment in (("", {"ZR_CONF": "nonsense:1"}), ("take 5\n", {"ZR_CONF": "", "ZR_FAULT": "reserve:1,map:1"}))]
        same([lines[-1][:3] for lines in got], said, f"mode {mode:o}: {got}")
    os.unlink(program)


def check_programs():
    plain, on = train(ranks=2, stage=1), train(environment={**ENVIRONMENT, "ZR_CONF": "service:required"}, ranks=2, stage=1)
    same((on.code, on.losses), (0, plain.losses), "zr-train on the service: the same losses")
    body = "import sys; a = bytearray(96 << 20); print('there', flush=True); sys.stdin.read()"
    program = subprocess.Popen([ZR, "run", "--", "/usr/bin/python3", "-c", body], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               env=ENVIRONMENT)
    program.stdout.readline()
    settles(lambda: ok(any(one["held_bytes"] >= 96 * MIB for one in status()["clients"]), "a preloaded program is a client"))
    program.stdin.close()
    program.stdout.close()
    program.wait(timeout=HANG)
    ok(wait_for(lambda: lent() == 0), "and leaves nothing behind")


same((FORM.size, KINDS.index("kept")), (544, len(KINDS) - 1), "the protocol as the header has it")
same((constant("ZR_SERVICE_MAGIC"), constant("ZR_SERVICE_VERSION")), (MAGIC, VERSION), "and its first words")
check_alone()
check_faults()
check_folder()
check_release()
for kind, count, rounds, churn in (("host", 8, 3, "120 12"), ("cuda", 4, 3, "30 6")):
    check_random(kind, count, rounds, churn)
    service = Zrd("--capacity", CAPACITY, "--within", 120000)
    check_steady(service)
    check_quotas()
    check_reclaim()
    if kind == "host":
        check_fork()
        check_tools()
    check_hostile(service, 200 if kind == "host" else 20)
    if kind == "host":
        check_thousand(service)
        check_other_user(service)
    service.end()
check_device()
check_card_programs()
use("host")
check_full()
check_deadline()
check_gathered()
check_last_words()
check_ended()
check_limits_kept()
check_set_user_id()
service = Zrd()
check_programs()
service.end()
full = Program("service:on") if os.path.exists("/dev/full") else None
if full:
    full.end()
    deaf_log = subprocess.Popen([ZRD, "--log", "/dev/full"], env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    ok(wait_for(lambda: status() is not None), "a full disk for its log stops nothing")
    ok("lines of the log could not be written: free space" in (said := zr("status").stdout), f"and is said: {said.splitlines()[-1]}")
    deaf_log.terminate()
    same(deaf_log.wait(timeout=HANG), 0, "and it ends well")
for kind in ("host", "cuda"):
    use(kind)
    for capacity, want in ((112, "a capacity of 112 B is too small: the minimum is a granule, 2.00 MiB"), ("900TiB", "a capacity of 900 TiB exceeds the memory of the")):
        got = zr("start", "--capacity", capacity)
        ok(got.returncode == 2 and got.stderr.startswith(f"zr: {want}"), f"start --capacity {capacity}: {got.stderr.strip()}")
use("host")
for words in (["--capacity"], ["--capacity", "1XB"], ["--within", "1"], ["--nothing", "1"]):
    got = subprocess.run([ZRD, *words], capture_output=True, text=True, timeout=HANG, env=ENVIRONMENT)
    same((got.returncode, "zrd --help" in got.stderr), (2, True), f"zrd {' '.join(words)} is a mistake")
done()
