"""service_soak.py: clients of zrd that take and give at random, kill -9 of clients and of zrd at random; in each round every
byte is accounted for, none twice, and nobody but the killed sees an error: tests/long/long_service.t, soak_service.t."""
import random
import time

from zrd_client import MIB, Program, Zrd, lent, status, use
from zrtest import SEED, ok, same, settles, wait_for

CLIENTS = 8
OPTIONS = ("--capacity", 384 * MIB, "--within", 300000)


def start(number):
    return Program(ZR_GROUP=f"group{number % 3}")


def play(zrd, clients, draws, counts, most):
    """One round; zrd, and what was wrong."""
    for client in clients:
        client.say(f"churn {draws.randint(most // 6, most)} {draws.randint(4, 20)}")
    time.sleep(draws.random() / 10)
    if draws.random() < 0.5:
        zrd.end(kill=True)
        zrd = Zrd(*OPTIONS)
        counts["restarts"] += 1
    if draws.random() < 0.7:
        clients.pop(draws.randrange(len(clients))).end(kill=True)
        counts["deaths"] += 1
    bad = [words for words in (client.hear() for client in clients) if words]
    if not wait_for(lambda: {one["pid"] for one in status()["clients"]} == {client.pid for client in clients}):
        bad.append("zrd's clients are not those that live")
    now = wait_for(lambda: found if (found := status())["lent_bytes"] == sum(one["held_bytes"] for one in found["clients"]) else None) or status()
    if now["lent_bytes"] != sum(one["held_bytes"] for one in now["clients"]):
        bad.append("what is lent is not what is held")
    bad += [f"{one} takes more than it holds" for one in now["clients"] if one["resident_bytes"] > one["held_bytes"]]
    while len(clients) < CLIENTS:
        clients.append(start(len(clients)))
        bad += [clients[-1].words] if clients[-1].words else []
    return zrd, bad


def soak(kind, seconds):
    use(kind, ZR_EMULATOR_MEMORY=str(384 * MIB))  # no more than zrd lends: what is lost is missed
    draws = random.Random(SEED)
    zrd, clients = Zrd(*OPTIONS), [start(i) for i in range(CLIENTS)]
    counts = {"rounds": 0, "deaths": 0, "restarts": 0}
    bad, end = [], time.monotonic() + seconds
    while time.monotonic() < end and not bad:
        counts["rounds"] += 1
        zrd, bad = play(zrd, clients, draws, counts, 300 if kind == "host" else 60)
    same(bad, [], f"{kind}: {counts['rounds']} rounds, {counts['deaths']} clients killed, {counts['restarts']} times zrd: all is accounted for")
    ok(counts["rounds"] > 2 and counts["deaths"] > 0 and counts["restarts"] > 0, "and there was something to see")
    same([client.obey("look") + client.obey("give") + client.obey("trim") for client in clients], [""] * len(clients),
         "no byte was changed by another")
    settles(lambda: same(lent(), 0, "at the end all is back"))
    same([client.end() for client in clients], [0] * len(clients), "they end well")
    same(zrd.end(), 0, "and so does zrd")
