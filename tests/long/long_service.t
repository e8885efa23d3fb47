#!/usr/bin/env python3
"""A minute of zrd: eight clients that take and give at random, kill -9 of clients and of zrd at random; in each round every
byte is accounted for, none twice, and nobody but the killed sees an error."""
import random
import sys
import time

sys.path.insert(0, "tests/support")
from zrd_client import MIB, Program, Zrd, lent, status
from zrtest import SEED, done, ok, same, wait_for

SECONDS, CLIENTS = 60, 8
OPTIONS = ("--capacity", 384 * MIB, "--within", 300000)
draws = random.Random(SEED)
zrd, clients = Zrd(*OPTIONS), [Program(ZR_GROUP=f"group{i % 3}") for i in range(CLIENTS)]
rounds = deaths = restarts = 0
bad, end = [], time.monotonic() + SECONDS
while time.monotonic() < end and not bad:
    rounds += 1
    for client in clients:
        client.say(f"churn {draws.randint(50, 300)} {draws.randint(4, 20)}")
    time.sleep(draws.random() / 10)
    if draws.random() < 0.5:
        zrd.end(kill=True)
        zrd = Zrd(*OPTIONS)
        restarts += 1
    if draws.random() < 0.7:
        clients.pop(draws.randrange(len(clients))).end(kill=True)
        deaths += 1
    bad += [words for words in (client.hear() for client in clients) if words]
    if not wait_for(lambda: {one["pid"] for one in status()["clients"]} == {client.pid for client in clients}):
        bad.append("zrd's clients are not those that live")
    now = status()
    if now["lent_bytes"] != sum(one["held_bytes"] for one in now["clients"]):
        bad.append("what is lent is not what is held")
    bad += [f"{one} takes more than it holds" for one in now["clients"] if one["resident_bytes"] > one["held_bytes"]]
    while len(clients) < CLIENTS:
        clients.append(Program(ZR_GROUP=f"group{len(clients) % 3}"))
        bad += [clients[-1].words] if clients[-1].words else []
same(bad, [], f"{rounds} rounds, {deaths} clients killed, {restarts} times zrd: all is accounted for")
ok(rounds > 2 and deaths > 0 and restarts > 0, "and there was something to see")
same([client.obey("look") + client.obey("give") + client.obey("trim") for client in clients], [""] * len(clients),
     "no byte was changed by another")
same(lent(), 0, "at the end all is back")
same([client.end() for client in clients], [0] * len(clients), "they end well")
same(zrd.end(), 0, "and so does zrd")
done()
