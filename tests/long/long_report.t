#!/usr/bin/env python3
"""A trace of a million events: zr stats and zr report, and the page in headless Chromium: no error, no request, and in
pictures of it (light, dark, on a phone, from near and from afar) what is known to lie there. Times are printed; what is
asserted of them has slack for a machine that does much else. ZR_TEST_PICTURES names a folder for the pictures."""
import itertools
import json
import os
import resource
import sys
import time

sys.path.insert(0, "tests/support")
from browser import PROGRAM, Browser
from drawn_snapshot import write_devices
from drawn_trace import GRANULE, Trace
from zrtest import BUILD, SEED, done, note, ok, path, run_limited, same, skip

ZR = os.path.abspath(os.path.join(BUILD, "bin", "zr"))
EVENTS, GRANULES, SLACK = 1000000, 400, 4
PICTURES = os.environ.get("ZR_TEST_PICTURES")


def timed(*words):
    """The run, its seconds, and its seconds of a processor."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    run = run_limited([ZR, *words])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return run, time.monotonic() - started, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def known_blocks(trace, count):
    """[index, block] that can be seen from near: of some length and size, without a failure beside them. One of each tag."""
    found, failures = {}, [one[0] for one in trace.refused]
    for index, (begin, end, _, size, _, tag, _) in enumerate(trace.blocks):
        life = end - begin
        if 40 <= life <= 400 and size >= 64 << 10 and not any(begin - 2 * life <= one <= end + 2 * life for one in failures):
            found.setdefault(tag, index)
    return [(index, trace.blocks[index]) for index in list(found.values())[:count]]


def take(browser, name):
    browser.frame()
    browser.frame()
    if PICTURES:
        browser.picture(os.path.join(PICTURES, name + ".png"))


def colour(words):
    return tuple(int(words[at:at + 2], 16) for at in (1, 3, 5))


def shades(words):
    """Of every other block one that is an eighth darker."""
    return [colour(words), tuple(round(value * 0.88) for value in colour(words))]


def check_near(browser, trace, blocks, words):
    """Each block is brought near: its tag's colour at its middle."""
    for number, (index, block) in enumerate(blocks):
        again = number * (trace.repeats - 1) // max(1, len(blocks) - 1)  # the first time, later ones, the last
        index += again * len(trace.blocks)
        got = browser.ask(f"[recording.from[{index}], recording.to[{index}], recording.place[{index}], recording.bytes[{index}],"
                          f" recording.tag[{index}]]")
        want = [block[0] + again * trace.period, block[1] + again * trace.period, block[2], block[3], block[5]]
        browser.ask(f"choose({index}, true)")
        take(browser, f"{words}_{number}")
        place = browser.ask(f"middleOf({index})")
        here, tags = browser.pixel(place["x"], place["y"]), browser.ask("recording.meta.tags")
        ok(got == want and here in shades(tags[block[5]][1]),
           f"{words}: block {index} is where the trace has it, in the colour of {tags[block[5]][0]}") or note(f"{got} {want} {here}")


def check_far(browser, trace, words):
    """The whole of it: free memory above all blocks, and blocks nearly everywhere below."""
    browser.ask("setView(whole()); state.block = -1")
    take(browser, words)
    top = max(block[2] + block[3] for block in trace.blocks) / (GRANULES * GRANULE)
    box = browser.ask("(() => { const c = canvases.map, b = c.node.getBoundingClientRect(); return {x: b.left + 1 + c.left / c.scale,"
                      " y: b.top + 1, width: c.width / c.scale, height: c.height / c.scale}; })()")
    free, back = (colour(browser.ask(f"colours().{name}")) for name in ("free", "back"))
    cells = browser.ask("lastMode")
    above = browser.pixels(box["x"] + 20, box["y"] + (1 - top) * box["height"] / 2, 60, 20)
    below = browser.pixels(box["x"] + box["width"] / 2, box["y"] + (1 - top * 0.4) * box["height"], 60, 20)
    blocks = sum(pixel not in (free, back) for line in below for pixel in line) / sum(map(len, below))
    ok(cells == "cells" and {pixel for line in above for pixel in line} == {free} and blocks > 0.5,
       f"{words}: free memory above, blocks on {100 * blocks:.0f} % of the part looked at below") or note(f"{cells} {above[0][:3]} {free}")


def check_page(page, trace):
    browser = Browser()
    try:
        browser.view(1280, 900)
        started = time.monotonic()
        browser.open(page)
        browser.ask("new Promise((go) => { const look = () => view ? go() : setTimeout(look, 5); look(); })")
        browser.frame()
        shown = time.monotonic() - started
        same(browser.ask("ready"), "ready", "the page unpacks its data")
        note(f"interactive after {shown:.2f} s, every block there after {time.monotonic() - started:.2f} s (bar: 2 s)")
        ok(shown < 2 * 10, "and is interactive while that goes on")
        same(browser.ask("recording.count"), len(trace.blocks) * trace.repeats, "it has all blocks")
        blocks = known_blocks(trace, 4)
        ok(len(blocks) == 4, "four blocks of four tags to look for")
        check_far(browser, trace, "light")
        check_near(browser, trace, blocks, "light_near")
        browser.view(1280, 900, dark=True)
        check_far(browser, trace, "dark")
        check_near(browser, trace, blocks[:2], "dark_near")
        browser.view(390, 844, phone=True)
        check_far(browser, trace, "phone")
        check_near(browser, trace, blocks[1:3], "phone_near")
        same(browser.ask("document.documentElement.scrollWidth <= innerWidth"), True, "nothing is wider than a phone")
        browser.view(1280, 900)
        browser.ask("setView(whole())")
        frames = browser.ask("""new Promise((go) => { const times = [], frame = (now) => { times.push(now);
            if (times.length > 60) go(times.slice(1).map((time, i) => time - times[i]));
            else { zoom(times.length <= 30 ? 0.7 : 1 / 0.7, 1, 0.37); requestAnimationFrame(frame); } };
            requestAnimationFrame(frame); })""")
        note(f"zoom: {1000 * len(frames) / sum(frames):.0f} frames/s, the slowest frame {max(frames):.0f} ms (bar: 30 frames/s)")
        same((browser.errors, browser.requests[1:]), ([], []), "no error on the console, and nothing asked of a network")
    finally:
        browser.close()


def check_snapshot(page):
    """Two devices, pools, annotations: the reason on top, selectors, flame graph, tables; at three widths, light and dark."""
    browser = Browser()
    text = "document.getElementById({!r}).textContent".format
    pick = "(() => {{ const node = document.getElementById({!r}); node.value = {!r}; node.onchange(); listSegments(); holders(); grow(); }})()".format
    live = "recording.blocksAt(state.moment).reduce((sum, i) => sum + recording.bytes[i], 0)"
    try:
        for width, dark in ((1440, False), (800, True), (420, False)):
            browser.view(width, 1000, dark=dark, phone=width < 500)
            browser.open(page)
            same(browser.ask("ready"), "ready", f"at {width} pixels")
            browser.ask("new Promise((go) => setTimeout(go, 200))")
            take(browser, f"devices_{width}")
            same(browser.ask("document.documentElement.scrollWidth <= innerWidth"), True, "nothing is wider than the window")
            box, curve = (browser.ask(f"(({{top, height}}) => ({{top, height}}))(document.getElementById('{name}').getBoundingClientRect())") for name in ("reason", "curve"))
            ok(box["height"] > 0 and box["top"] + box["height"] <= curve["top"], "the reason stands above the curve")
            split = browser.ask("""[...document.querySelectorAll("td.name, td.words, th")].flatMap((cell) => { const out = [], walk = document.createTreeWalker(cell, 4);
                while (walk.nextNode()) for (const word of walk.currentNode.data.matchAll(/[\\w.]+/g)) { const range = document.createRange();
                range.setStart(walk.currentNode, word.index); range.setEnd(walk.currentNode, word.index + word[0].length);
                if (range.getClientRects().length > 1) out.push(word[0]); } return out; })""")
            same(split, [], "no word of a table is broken")
        ok("20.0 MiB refused" in browser.ask(text("reason")) and "reason: fragmentation" in browser.ask(text("reason")), "the failure and its reason are named")
        same(browser.ask("flame.path[0].bytes"), browser.ask(live), "the flame graph has all live bytes")
        rows = browser.ask("[...document.querySelectorAll('#holders tbody tr')].map((row) => row.cells[2].textContent + row.cells[3].textContent)")
        same(sorted(set(rows)), sorted(rows), f"{len(rows)} rows of holders, none twice")
        same(browser.ask("choose(2, false); document.querySelectorAll('#stack li').length"), 200, "a stack is shown whole")
        ok(browser.ask("(({scrollHeight, clientHeight}) => scrollHeight > clientHeight)(document.getElementById('stack'))"), "in a box that scrolls")
        pools = browser.ask("[...document.getElementById('pool').options].map((one) => one.textContent)")
        private = [i - 1 for i, words in enumerate(pools) if "(3, 7)" in words]
        browser.ask(pick("pool", str(private[0])))
        same((browser.ask(live), browser.ask("flame.path[0].bytes")), (8 << 20, 8 << 20), f"of the pools {pools} the private one has 8 MiB")
        browser.ask(pick("pool", "-1"))
        segment = browser.ask("[...document.getElementById('segment').options].map((one) => one.value)[1]")
        browser.ask(pick("segment", segment))
        same((browser.ask(live), browser.ask("[view.y0, view.y1].join(' ')")), (2 << 20, segment), "a segment has its blocks, and fills the map")
        same(browser.ask("Array.from({length: 3}, (_, i) => recording.marks[i].label)"), ["forward pass", "mine", "after all"], "annotations")
        said = "(() => { const out = []; const label = canvases.curve.label; canvases.curve.label = (words) => out.push(words); draw(); delete canvases.curve.label; return out; })()"
        ok({"time", "mine"} <= set(browser.ask(said)), "on an axis that says that it has times")
        ok({"event"} <= set(browser.ask(pick("axis", "events") + "; " + said)), "or numbers of events")
        browser.ask("(() => { const node = document.getElementById('device'); node.value = 1; node.onchange(); })()")
        browser.ask("new Promise((go) => setTimeout(go, 300))")
        same(browser.ask("recording.meta.device"), 0, "the other device")
        same((browser.errors, browser.requests[1:]), ([], []), "no error on the console, and nothing asked of a network")
    finally:
        browser.close()


trace = Trace(EVENTS // 20, SEED, granules=GRANULES)
trace.repeat(20)
trace.write(path("million.zrt"))
run, seconds, processor = timed("stats", path("million.zrt"), "--json")
note(f"zr stats: {seconds:.2f} s, {processor:.2f} of a processor (bar: 2 s)")
changes = sorted([(block[0], block[3]) for block in trace.blocks] + [(block[1], -block[3]) for block in trace.blocks])
peak = max(itertools.accumulate(change for _, change in changes))
same(json.loads(run.stdout)["moments"]["peak"]["live_bytes"] if run.returncode == 0 else run.stderr, peak,
     f"zr stats of {trace.period * trace.repeats} events: the peak as counted here")
ok(processor < 2 * SLACK, "within its time")
run, seconds, processor = timed("report", path("million.zrt"), "-o", path("million.html"))
size = os.path.getsize(path("million.html")) if run.returncode == 0 else 0
note(f"zr report: {seconds:.2f} s, {processor:.2f} of a processor (bar: 5 s), {size / 1e6:.2f} MB")
ok(0 < size < 8e6 and processor < 5 * SLACK, "zr report of them, below 8 MB") or note(run.stderr)
if PROGRAM:
    check_page(path("million.html"), trace)
    run = timed("report", write_devices(path("devices.pickle")), "-o", path("devices.html"))[0]
    ok(run.returncode == 0, "a page of two devices") and check_snapshot(path("devices.html"))
else:
    skip("no chromium here (Debian's package chromium)")
done()
